"""Simple methods beside a model: by hand, by scikit-learn, by the compressor itself; and what they learn from."""

from __future__ import annotations

import json
import lzma
import sys
from collections import Counter
from collections.abc import Callable
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
from heedful.metrics.entities import EntityScores
from heedful.metrics.translation import translation_metrics
from heedful.pretrained import save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks import baselines
from heedful.tasks.baselines import (
    MaskedNGrams,
    constant_texts,
    kernel_images,
    linear_text,
    nearest_texts,
    ridge_labels,
    xz_bits_per_byte,
)
from heedful.tasks.generated_text_baselines import nearest_targets
from heedful.tasks.labels import constant_baseline
from heedful.tasks.run_data import train_and_validation_rows
from heedful.tasks.tagging import LinearTagger
from heedful.tasks.task import Baseline
from heedful.tasks.text_generation import TextGeneration
from heedful.tasks.translation import Translation
from heedful.training.report import card_of
from heedful.views.run_figures import draw_report

FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]
SETS = {"fruit": FRUIT, "tool": TOOLS}

# ---------------------------------------------------------------------------------------------------------- the methods


def test_words_tell_labels_apart() -> None:
    texts = [f"a {word} on the table" for words in SETS.values() for word in words]
    labels = [(name,) for name, words in SETS.items() for _ in words]
    name, said = linear_text(texts, labels, ["my fig", "that old saw", "the chisel , then"])
    assert name == "a linear SVM on words and character n-grams"
    assert said == [("fruit",), ("tool",), ("tool",)]


def test_letters_tell_languages_of_new_words_apart() -> None:
    """No word of the new texts was in training: logistic regression on words is right for the most frequent label."""
    columns = {"text": "text", "label": "label"}
    learned, asked = read("builtin:cldr-languages", columns), read("builtin:cldr-languages:test", columns)
    texts, labels = ([row.values[name] for row in learned] for name in ("text", "label"))
    _, said = linear_text(texts, [(label,) for label in labels], [row.values["text"] for row in asked])
    assert np.mean([(row.values["label"],) == label for row, label in zip(asked, said, strict=True)]) > 0.8


def test_masked_ngrams_are_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    ordinary = np.arange(12) > 2
    train = draw.integers(0, 12, 400) % draw.integers(1, 13, 400)
    contexts = {offset: draw.integers(-1, 12, 60) for offset in (-2, -1, 1, 2)}
    for model in (MaskedNGrams(train, ordinary), MaskedNGrams(train[:3], ordinary), MaskedNGrams(train[:0], ordinary)):
        p = np.stack([model.p(contexts, np.full(60, token)) for token in range(12)])
        np.testing.assert_allclose(p.sum(0), 1)
        assert (p[~ordinary] == 0).all()
        assert (p[ordinary] > 0).all()
    model = MaskedNGrams(train, ordinary)
    p = np.stack([model.p(contexts, np.full(60, token)) for token in range(12)])
    assert np.mean(p.argmax(0) == model.likeliest(contexts)) > 0.9  # no context's most frequent token: rare
    monkeypatch.setattr(baselines, "MASKED_TOKENS", 128)
    monkeypatch.setattr(baselines, "MASKED_BLOCK", 32)
    pieces = [train[first : first + 32] for first in (0, 122, 245, 368)]
    expected = MaskedNGrams(np.concatenate(pieces), ordinary).p(contexts, np.full(60, 5))
    np.testing.assert_array_equal(MaskedNGrams(train, ordinary).p(contexts, np.full(60, 5)), expected)


def test_it_is_the_linear_line_of_scikit_learn() -> None:
    feature, linear = (pytest.importorskip(f"sklearn.{name}") for name in ("feature_extraction.text", "svm"))
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(draw.choice(words, 6)) for _ in range(120)]
    labels = [("abc"[sum("w1" in w for w in text.split()) % 3],) for text in texts]
    of_words = feature.TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    of_letters = feature.TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3))
    known, new = (
        np.hstack([getattr(half, how)(part).toarray() for half in (of_words, of_letters)])
        for how, part in (("fit_transform", texts[:90]), ("transform", texts[90:]))
    )
    model = linear.LinearSVC().fit(known, [x for (x,) in labels[:90]])
    _, said = linear_text(texts[:90], labels[:90], texts[90:])
    assert np.mean([(label,) == own for label, own in zip(model.predict(new), said, strict=True)]) > 0.9


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
    assert linear_text(["a", "b"], [("x",), ("x",)], ["c"]) == ("the label x", [("x",)])
    with pytest.raises(HeedfulError, match="no training text contains a word"):
        ridge_labels(["!", "?"], [("x",), ("y",)], ["c"])
    with pytest.raises(HeedfulError, match="no training text contains a character"):
        linear_text(["", " "], [("x",), ("y",)], ["c"])


def test_pixels_tell_labels_apart() -> None:
    columns = {"image": "image", "label": "label"}
    learned, asked = read("builtin:digits", columns), read("builtin:digits:test", columns)
    name, said = kernel_images(learned, asked, channels=1, side=8)
    assert name == "kernel ridge regression on 8 × 8 pixels"
    right = np.mean([row.values["label"] == label for row, label in zip(asked, said, strict=True)])
    assert right > 0.96, "logistic regression on the same pixels has 0.95"


def images_of(pixels: list[Any], labels: str) -> Rows:
    return Rows(
        Row({"image": LazyImage.of(image.astype(np.uint8), f"{i}"), "label": labels[i % len(labels)]}, "set", i + 1)
        for i, image in enumerate(pixels)
    )


def test_kernel_ridge_regression_by_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    rows = images_of([draw.integers(256, size=(4, 4, 1)) for _ in range(60)], "abc")
    learned, asked = Rows(rows[:40]), Rows(rows[40:])
    monkeypatch.setattr("heedful.tasks.baselines.BLOCK", 7)
    _, said = kernel_images(learned, asked, channels=1, side=4)
    x, z = (np.stack([row.values["image"].pixels(1).ravel() / 255 for row in part]) for part in (learned, asked))
    kernel, against = (np.exp(-((u[:, None] - x[None]) ** 2).sum(-1) / (16 * np.float32(x).var())) for u in (x, z))
    truth = np.eye(3)[["abc".index(row.values["label"]) for row in learned]]
    values = against @ np.linalg.solve(kernel + 0.3 * np.eye(40), truth)
    assert said == ["abc"[i] for i in values.argmax(1)]


def test_large_and_many_images_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.baselines.KERNEL_IMAGES", 20)
    draw = np.random.default_rng(0)
    rows = images_of([draw.integers(100, size=(40, 60, 3)) + 150 * (i % 2) for i in range(50)], "ab")
    name, said = kernel_images(rows, rows, channels=3, side=224)
    assert name == "kernel ridge regression on 18 × 18 pixels of 20 images"
    assert said == ["ab"[i % 2] for i in range(50)]


SCRIPTS = [("the cat sleeps", "猫は眠る"), ("the dog runs", "犬は走る"), ("a bird sings", "鳥は歌う")]


def test_the_nearest_text_in_any_script(monkeypatch: pytest.MonkeyPatch) -> None:
    english, japanese = ([pair[side] for pair in SCRIPTS] for side in (0, 1))
    assert nearest_texts(english, ["dogs run", "two birds", "my cat"]) == [1, 2, 0]
    assert nearest_texts(japanese, ["犬が走った", "鳥", "猫"]) == [1, 2, 0]
    assert nearest_texts(["!", "?"], ["?"]) == [1], "punctuation has no words, but characters"
    assert nearest_texts(["same", "same"], ["same", "zzz"]) == [0, 0], "of equal ones the first"
    monkeypatch.setattr("heedful.tasks.baselines.TEXTS", 2)
    monkeypatch.setattr("heedful.tasks.baselines.BLOCK", 1)
    assert nearest_texts(english, ["the dog runs", "a bird"]) == [0, 2], "of the first and the last"


def test_one_text_for_all_inputs_is_the_best_on_training_rows() -> None:
    texts = ["b c d"] * 2 + [f"a {word} is here" for word in FRUIT]
    candidates = constant_texts(texts)
    assert candidates[0] == "b c d", "the most frequent text"
    assert set(candidates[1:]) <= set(texts[2:])
    assert candidates[1:]


def test_a_linear_tagger_knows_letters_and_neighbours() -> None:
    """Names are unknown words: capitals, an ending, or the word before tells."""
    train = [
        (f"in {word.title()}ville we met Mr {tool.title()}", "O B-LOC O O O B-PER") for word in FRUIT for tool in TOOLS
    ]
    rows = Rows(Row({"words": tuple(a.split()), "tags": tuple(b.split())}, "s", 1) for a, b in train)
    asked = [["in", "Nashville", "we", "met", "Mr", "Kiwi"], [], ["in"], ["we", "met", "Mr", "Lemon"]]
    assert LinearTagger(rows).tags(asked) == [train[0][1].split(), [], ["O"], ["O", "O", "O", "B-PER"]]
    only = Rows([Row({"words": ("a", "b"), "tags": ("X", "X")}, "s", 1)])
    assert LinearTagger(only).tags([["c"]]) == [["X"]]


def test_a_tagger_s_words_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(Row({"words": ("a", "b"), "tags": ("AB"[i > 0], "C")}, "s", 1) for i in range(100))
    for limit in ("WORDS", "MIN_WORDS"):
        monkeypatch.setattr(f"heedful.tasks.tagging.{limit}", 4)
    assert len(LinearTagger(rows).tags([["a"], ["b", "a"]])) == 2


def test_a_linear_tagger_is_far_above_the_most_frequent_tag_on_wnut17(shared_data: Callable[[str], Path]) -> None:
    """Each word's most frequent tag has an F1 of 6.0."""
    columns = {"words": "words", "tags": "tags"}
    names = ("wnut17train.conll", "emerging.test.annotated")
    learned, asked = (read(str(shared_data(f"wnut17/{name}.xz")), columns) for name in names)
    scores = EntityScores()
    for row, tags in zip(asked, LinearTagger(learned).tags([row.values["words"] for row in asked]), strict=True):
        scores.add(row.values["tags"], tags)
    assert scores.metrics()["f1"] > 14


def test_the_best_constant_set_of_labels() -> None:
    """Micro F1 of {a} is 12 / (8 + 10) = 0.67, of {a, b} 18 / (16 + 10) = 0.69, of all three 20 / (24 + 10) = 0.59."""
    sets = [("a", "b")] * 3 + [("a",)] * 3 + [("c",), ()]
    rows = Rows(Row({"text": "", "label": labels}, "s", 1) for labels in sets)
    found = constant_baseline(["a", "b", "c"], rows, rows)
    assert found.name == "the 2 most frequent labels"
    assert found.metrics["micro_f1"] == pytest.approx(100 * 18 / 26)


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
        "name": "a linear SVM on words and character n-grams",
        "metrics": {"accuracy": 100.0, "macro_f1": 100.0, "matthews": pytest.approx(100.0)},
    }
    low, high = result["intervals"]["accuracy"]
    assert low <= result["metrics"]["accuracy"] <= high
    assert set(result["intervals"]) == {"loss", "accuracy", "macro_f1", "matthews"}
    assert json.loads(json.dumps(result))["baseline"] == result["baseline"]
    assert told[0] == "48 examples"


def test_held_back_rows_stay_out(labels: Path, tmp_path: Path) -> None:
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


def test_a_baseline_that_cannot_be_is_refused_before_the_model_is_scored(
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


def translations(folder: Path, pairs: list[tuple[str, str]], held: list[tuple[str, str]]) -> tuple[Path, Path]:
    """A translator of ``pairs`` with fresh weights, and a file of ``held``."""
    for name, part in (("train", pairs), ("held", held)):
        (folder / f"{name}.tsv").write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in part), "utf-8")
    return folder_of("translation", [folder / "train.tsv"], folder / "run"), folder / "held.tsv"


def test_a_translation_is_held_against_the_nearest_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"the {a} {b}", f"the {b}" if b < a else f"the {a} {b}") for a in FRUIT for b in TOOLS]
    held = [(f"the {a} {b} {c}",) * 2 for a in FRUIT for b in TOOLS for c in ("box", "cup")]
    folder, file = translations(tmp_path, pairs, held)
    options: dict[str, Any] = {"decoding": {"max_new_tokens": 4}, "say": lambda line: None}
    found = evaluate(str(folder), [str(file)], baseline=True, **options)["baseline"]
    assert found["name"] == "a copy of the source"
    expected = translation_metrics(*zip(*held, strict=True))
    assert found["metrics"] == pytest.approx({name: expected[name] for name in ("bleu", "chrf", "ter", "exact_match")})
    (tmp_path / "train.tsv").unlink()
    found = evaluate(str(folder), [str(file)], baseline=True, **options)["baseline"]
    assert found["name"] == "a copy of the source; the training data is unknown"
    with pytest.raises(HeedfulError, match=r"none\.tsv"):
        evaluate(str(folder), [str(file)], baseline_train=[str(tmp_path / "none.tsv")], **options)
    monkeypatch.setattr(Translation, "baseline", lambda task, rows, learned: Baseline("a copy", {}))
    with pytest.raises(HeedfulError, match=r"train has no effect: the baseline \(a copy\) is not trained"):
        evaluate(str(folder), [str(file)], baseline_train=[str(file)], **options)


def test_between_scripts_the_nearest_source_counts(tmp_path: Path) -> None:
    folder, file = translations(tmp_path, SCRIPTS * 4, [(f"{source} now", target) for source, target in SCRIPTS])
    options: dict[str, Any] = {"decoding": {"max_new_tokens": 4}, "say": lambda line: None}
    found = evaluate(str(folder), [str(file)], baseline_train=[str(tmp_path / "train.tsv")], **options)["baseline"]
    assert found["name"] == "the target of the most similar training source"
    assert found["metrics"]["exact_match"] == 100


def test_the_nearest_source_is_one_of_the_same_language() -> None:
    def rows(*triples: tuple[str, str, str]) -> Rows:
        return Rows(Row({"source": a, "target": b, "language": c}, "s", 1) for a, b, c in triples)

    learned = rows(("good day", "bonjour", "fr"), ("good day", "guten Tag", "de"), ("bye", "adieu", "fr"))
    asked = rows(("good days", "", "de"), ("good days", "", "fr"), ("good", "", "es"))
    source, target, language = (lambda row, name=name: row.values[name] for name in ("source", "target", "language"))
    assert nearest_targets(learned, asked, source, target, language) == ["guten Tag", "bonjour", ""]


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
