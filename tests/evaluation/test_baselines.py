"""Simple methods beside a model: by hand, by scikit-learn, by the compressor itself; and what they learn from."""

from __future__ import annotations

import json
import lzma
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful import tasks
from heedful.data import LazyImage, Row, Rows, read
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate, training_rows
from heedful.inference.pipeline import pipeline
from heedful.metrics.translation import translation_metrics
from heedful.pretrained import save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.baselines import linear_images, linear_text, ridge_labels, xz_bits_per_byte
from heedful.tasks.run_data import train_and_validation_rows
from heedful.tasks.text_generation import TextGeneration
from heedful.training.report import card_of
from heedful.views.run_figures import draw_report

FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]
SETS = {"fruit": FRUIT, "tool": TOOLS}

# ---------------------------------------------------------------------------------------------------------- the methods


def test_words_tell_labels_apart() -> None:
    texts = [f"a {word} on the table" for words in SETS.values() for word in words]
    labels = [(name,) for name, words in SETS.items() for _ in words]
    said = linear_text(texts, labels, ["my fig", "that old saw", "the chisel , then"])
    assert said == [("fruit",), ("tool",), ("tool",)]


def test_it_is_the_linear_line_of_scikit_learn() -> None:
    feature = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(draw.choice(words, 6)) for _ in range(120)]
    labels = [("abc"[sum("w1" in w for w in text.split()) % 3],) for text in texts]
    vectors = feature.TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    model = linear.LogisticRegression(C=10, max_iter=300).fit(
        vectors.fit_transform(texts[:90]), [x for (x,) in labels[:90]]
    )
    expected = [(label,) for label in model.predict(vectors.transform(texts[90:]))]
    assert linear_text(texts[:90], labels[:90], texts[90:]) == expected


def test_several_labels_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["red car", "blue car", "red bike", "blue bike", "car", "sky"] * 3
    labels = [("red", "car"), ("car",), ("red",), (), ("car",), ()] * 3
    new_texts = ["red car", "blue sky", "one red thing"]
    name, said = ridge_labels(texts, labels, new_texts)
    assert name == "TF-IDF and ridge regression on 18 texts"
    assert said == [("car", "red"), (), ("car", "red")]
    monkeypatch.setattr("heedful.tasks.baselines.LABELLED", 2)
    assert ridge_labels(texts, labels, new_texts, most=18) == (name, said), "in parts of two texts"
    assert ridge_labels(["a", "b"], [("x",), ("x",)], ["c"])[1] == [("x",)]
    assert linear_text(["a", "b"], [("x",), ("x",)], ["c"]) == [("x",)]
    for method in (linear_text, ridge_labels):
        with pytest.raises(HeedfulError, match="no training text contains a word"):
            method(["!", "?"], [("x",), ("y",)], ["c"])


def test_pixels_tell_labels_apart() -> None:
    columns = {"image": "image", "label": "label"}
    learned, asked = read("builtin:digits", columns), read("builtin:digits:test", columns)
    name, said = linear_images(learned, asked, channels=1, side=8)
    assert name == "logistic regression on 8 × 8 pixels"
    right = np.mean([row.values["label"] == label for row, label in zip(asked, said, strict=True)])
    assert right > 0.93


def test_large_and_many_images_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.baselines.IMAGES", 20)
    draw = np.random.default_rng(0)
    made = [draw.integers(100, size=(40, 60, 3)) + 150 * (i % 2) for i in range(50)]
    rows = Rows(
        Row({"image": LazyImage.of(image.astype(np.uint8), f"{i}"), "label": "ab"[i % 2]}, "set", i + 1)
        for i, image in enumerate(made)
    )
    name, said = linear_images(rows, rows, channels=3, side=224)
    assert name == "logistic regression on 32 × 32 pixels of 17 images"
    assert said == ["ab"[i % 2] for i in range(50)]


def test_packed_is_what_the_compressor_adds() -> None:
    learned = ["The cat sat on the mat.\n" * 20, "Une chatte, là-bas : où ?\n" * 10]
    asked = ["The cat sat là-bas.\n" * 5, "où ?"]
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]

    def size(texts: list[str]) -> int:
        data = "".join(f"{text}\n" for text in texts).encode()
        return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))

    read_before = size(learned + asked) - size(learned)
    assert xz_bits_per_byte(learned, asked) == pytest.approx(8 * read_before / len("".join(asked).encode()))
    assert xz_bits_per_byte(learned, asked) < xz_bits_per_byte([], asked)


def test_without_scikit_learn_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(HeedfulError, match=r"--baseline needs scikit-learn.*pip install scikit-learn"):
        linear_text(["a", "b"], [("x",), ("y",)], ["c"])


# ------------------------------------------------------------------------------------------------------ beside a model


def folder_of(name: str, files: list[Path], out: Path, data: DataSettings | None = None) -> Path:
    """A model of a task with fresh weights, its folder as a run leaves it."""
    kind = tasks.get(name)
    settings = RunSettings(
        name,
        train=tuple(map(str, files)),
        out=str(out),
        data=data or DataSettings(),
        preset={"text-classification": "bert-tiny", "translation": "transformer-tiny"}.get(name, "gpt-micro"),
        model=ModelSettings(dim=16, heads=2, depth=1),
        tokenizer=TokenizerSettings(kind="bpe", size=300, shared=True if name == "translation" else None),
    )
    rows, _ = train_and_validation_rows(kind, settings)
    task = kind.prepare(rows, settings)
    model = heedful.create(task.config(settings), seed=0)
    task.before_training(model, settings)
    save(model, out, extra=card_of(task, rows, settings))
    task.save(out)
    return out


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    lines = [f"one {w} {n}\t{k}" for k, ws in SETS.items() for w in ws for n in range(4)]
    file = tmp_path / "labels.tsv"
    file.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    return file


def test_a_classifier_learns_from_what_its_model_learned_from(labels: Path, tmp_path: Path) -> None:
    folder = folder_of("text-classification", [labels], tmp_path / "run", DataSettings(valid_fraction=0.25))
    told: list[str] = []
    result = evaluate(str(folder), [str(labels)], baseline=True, say=told.append)
    assert result["baseline"] == {
        "name": "TF-IDF and logistic regression",
        "metrics": {"accuracy": 100.0, "macro_f1": 100.0, "matthews": pytest.approx(100.0)},
    }
    low, high = result["intervals"]["accuracy"]
    assert low <= result["metrics"]["accuracy"] <= high
    assert set(result["intervals"]) == {"loss", "accuracy", "macro_f1", "matthews"}
    assert json.loads(json.dumps(result))["baseline"] == result["baseline"]
    assert told[0] == "48 examples"


def test_what_was_held_back_stays_out(labels: Path, tmp_path: Path) -> None:
    folder = folder_of("text-classification", [labels], tmp_path / "run", DataSettings(valid_fraction=0.25))
    pipe = pipeline(None, folder)
    every = read(str(labels), pipe.task.columns)
    rows = training_rows(pipe)
    assert len(rows) == pipe.card["data"]["examples"] == 36
    assert {row.values["text"] for row in rows} < {row.values["text"] for row in every}
    assert len(training_rows(pipe, files=[str(labels)])) == 48


def test_training_files_that_are_gone(labels: Path, tmp_path: Path) -> None:
    folder = folder_of("text-classification", [labels], tmp_path / "run")
    moved = labels.rename(tmp_path / "moved.tsv")
    with pytest.raises(
        HeedfulError, match=r"was trained on .*labels.tsv, which cannot be found; .*: --baseline-train FILE"
    ):
        evaluate(str(folder), [str(moved)], baseline=True, say=lambda line: None)
    result = evaluate(str(folder), [str(moved)], baseline_train=[str(moved)], say=lambda line: None)
    assert result["baseline"]["metrics"]["accuracy"] == 100.0
    card = folder / "heedful.json"
    card.write_text(json.dumps({k: v for k, v in json.loads(card.read_text()).items() if k != "settings"}))
    with pytest.raises(HeedfulError, match="does not say what it was trained on; name the files"):
        evaluate(str(folder), [str(moved)], baseline=True, say=lambda line: None)
    without = evaluate(str(folder), [str(moved)], say=lambda line: None)
    assert "baseline" not in without


def test_what_a_baseline_lacks_is_said_before_the_model_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [{"prompt": f"the {word}", "completion": "yes"} for word in FRUIT]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)), "utf-8")
    folder = folder_of("text-generation", [tmp_path / "asked.jsonl"], tmp_path / "run", DataSettings(max_length=16))
    data = [str(tmp_path / "asked.jsonl")]
    told: list[str] = []
    evaluate(str(folder), data, say=told.append, draw=partial(draw_report, tmp_path / "drawn"))
    assert told[-1].startswith("no figure was drawn: there is none for text-generation")
    assert not (tmp_path / "drawn").exists()
    monkeypatch.setattr(TextGeneration, "measure", None)  # a call would fail otherwise
    with pytest.raises(HeedfulError, match="there is no baseline for prompts or messages; leave --baseline out"):
        evaluate(str(folder), data, baseline=True, say=told.append)


def test_a_translation_is_held_against_its_source(tmp_path: Path) -> None:
    pairs = [(f"the {a} {b}", f"the {b}" if b < a else f"the {a} {b}") for a in FRUIT for b in TOOLS]
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    folder = folder_of("translation", [file], tmp_path / "run")
    options: dict[str, Any] = {"decoding": {"max_new_tokens": 4}, "say": lambda line: None}
    found = evaluate(str(folder), [str(file)], baseline=True, **options)["baseline"]
    expected = translation_metrics(*zip(*pairs, strict=True))
    assert found["metrics"] == pytest.approx({name: expected[name] for name in ("bleu", "chrf", "ter", "exact_match")})
    assert found["metrics"]["exact_match"] > 0
    with pytest.raises(HeedfulError, match=r"train has no effect: the baseline \(.*source.*\) is not trained"):
        evaluate(str(folder), [str(file)], baseline_train=[str(file)], **options)


def test_a_language_model_is_held_against_a_compressor(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    books = [" ".join(draw.choice(FRUIT + TOOLS, 40)) for _ in range(40)]
    for part, texts in (("train", books[:30]), ("test", books[30:])):
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (tmp_path / f"{part}.jsonl").write_text("".join(lines), "utf-8")
    folder = folder_of("text-generation", [tmp_path / "train.jsonl"], tmp_path / "run", DataSettings(max_length=16))
    result = evaluate(str(folder), [str(tmp_path / "test.jsonl")], baseline=True, say=lambda line: None)
    held = Counter(row.values["text"] for row in training_rows(pipeline(None, folder)))
    assert 24 <= sum(held.values()) < 30
    expected = xz_bits_per_byte([text for text in books[:30] if text in held], books[30:])
    assert result["baseline"]["metrics"] == {"bits_per_byte": pytest.approx(expected)}
    assert set(result["intervals"]) == {"loss", "perplexity", "bits_per_byte"}
    assert result["baseline"]["metrics"]["bits_per_byte"] < result["metrics"]["bits_per_byte"]
