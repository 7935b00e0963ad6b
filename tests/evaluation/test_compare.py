"""Two models beside each other: differences, chance, verdicts, and the examples that tell them apart."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

import heedful
from heedful import tasks
from heedful.cli.scores import compared
from heedful.data import read
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.metrics.classification import ClassifierScores
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.intervals import draws
from heedful.metrics.paired import Difference, comparison_line, differences, randomised
from heedful.metrics.translation import translation_scores
from heedful.pretrained import save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.training.report import card_of

# ------------------------------------------------------------------------------------------------------------ by chance


def rate(right: Any) -> Sums:
    return Sums([[one, 1] for one in right], lambda sums: {"accuracy": 100 * sums[0] / sums[1]})


def labelled(right: Any) -> ClassifierScores:
    return ClassifierScores.of(["no", "yes"], [["yes"]] * len(right), [["yes"] if one else ["no"] for one in right])


def exact_p(a: np.ndarray, b: np.ndarray) -> float:
    """Of all 2^N ways to exchange the answers, the share with at least as large a difference of the sums."""
    apart = (b.astype(int) - a.astype(int))[a != b]
    every = [abs(np.dot(signs, apart)) for signs in itertools.product((-1, 1), repeat=len(apart))]
    return float(np.mean(np.array(every) >= abs(apart.sum())))


@pytest.mark.parametrize("make", [rate, labelled])
@pytest.mark.parametrize("seed", range(3))
def test_p_is_the_share_of_all_exchanges(make: Callable[[Any], Any], seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.random(60) < 0.6
    b = np.where(draw.random(60) < 0.15, ~a, a)
    found = differences(make(a), make(b), times=4000)["accuracy"]
    assert found.p == pytest.approx(exact_p(a, b), abs=0.03)
    assert found.difference == pytest.approx(100 * (b.mean() - a.mean()))
    drawn = np.concatenate([100 * (b[rows].mean(1) - a[rows].mean(1)) for rows in draws(60, 4000, 0)])
    assert found.interval == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_few_answers_that_differ_show_nothing() -> None:
    """Three, all in favour of B: a quarter of all exchanges do as much. The bootstrap alone would have said 95 %."""
    a = np.array([True] * 50 + [False] * 50)
    b = a.copy()
    b[50:53] = True
    found = differences(rate(a), rate(b))["accuracy"]
    assert found.p == pytest.approx(0.25, abs=0.05)
    assert found.better is None
    b[50:58] = True
    assert differences(rate(a), rate(b))["accuracy"].better == "b"
    assert differences(rate(b), rate(a))["accuracy"].better == "a"


def test_a_model_is_not_better_than_itself() -> None:
    right = np.random.default_rng(0).random(40) < 0.5
    assert differences(rate(right), rate(right))["accuracy"] == Difference(
        100 * right.mean(), 100 * right.mean(), 0.0, (0.0, 0.0), 1.0, None, 0.0
    )


def test_false_alarms_are_as_rare_as_promised() -> None:
    """400 pairs of models that are right in 70 % of 100 examples, each for itself: B better or worse in about 5 %."""
    draw = np.random.default_rng(1)
    alarms = 0
    for _ in range(400):
        a, b = draw.random((2, 100)) < 0.7
        alarms += differences(rate(a), rate(b), times=200)["accuracy"].better is not None
    assert 0.015 <= alarms / 400 <= 0.075


def test_the_better_of_two_models_is_found() -> None:
    draw = np.random.default_rng(2)
    found = 0
    for _ in range(40):
        a, b = draw.random(400) < 0.6, draw.random(400) < 0.75
        found += differences(rate(a), rate(b), times=300)["accuracy"].better == "b"
    assert found >= 38


def texts(count: int, noise: float, seed: int) -> list[str]:
    draw = np.random.default_rng(0)
    references = [" ".join(draw.choice(list("abcdefgh"), draw.integers(3, 12))) for _ in range(count)]
    if not noise:
        return references
    change = np.random.default_rng(seed)
    return [" ".join(w if change.random() > noise else "x" for w in text.split()) for text in references]


@pytest.mark.parametrize("noise", [0.24, 0.3])
def test_translations_differ_as_in_sacrebleus_own_test(noise: float) -> None:
    references, a, b = texts(80, 0, 0), texts(80, 0.22, 1), texts(80, noise, 2)
    test = PairedTest([("a", a), ("b", b)], {"bleu": BLEU(), "chrf": CHRF()}, [references], test_type="ar")
    theirs = test()[1]
    found = differences(*(translation_scores(side, references, ter=False) for side in (a, b)))
    assert set(found) == {"bleu", "chrf", "exact_match"}
    for name, metric in (("bleu", "BLEU"), ("chrf", "chrF2")):
        _, result = theirs[metric]
        assert found[name].b == pytest.approx(result.score)
        assert found[name].p == pytest.approx(result.p_value, abs=0.05)


def test_less_of_a_loss_is_better() -> None:
    losses = np.random.default_rng(3).random(50)
    a, b = (Sums(np.stack([side, np.ones(50)], 1), lambda s: {"loss": s[0] / s[1]}) for side in (losses, losses + 0.1))
    found = differences(a, b)["loss"]
    assert found.better == "a"
    assert comparison_line("loss", found).startswith("A is better at 95 %: loss")
    assert found.difference == pytest.approx(0.1)


def test_exchanges_are_of_whole_answers() -> None:
    """Where B has all that A has and more, every exchange leaves the sum of both as it is."""
    draw = np.random.default_rng(4)
    a, b = (Sums(draw.random((30, 2)), lambda s: {"first": s[0], "both": s[0] + s[1]}) for _ in range(2))
    chance = randomised(a, b, times=200)
    apart = {name: overall(b)[name] - overall(a)[name] for name in ("first", "both")}
    assert abs(np.mean(chance["first"])) < 3 * np.std(chance["first"]) / np.sqrt(200)
    assert np.abs(chance["first"]).max() <= np.abs(b.statistics[:, 0] - a.statistics[:, 0]).sum() + 1e-9
    assert set(chance) == set(apart)
    with pytest.raises(ValueError, match="3 and 4 examples"):
        differences(rate([1, 0, 1]), rate([1, 0, 1, 1]))


# ---------------------------------------------------------------------------------------------------------- two folders

FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]
SMALL = ModelSettings(dim=16, heads=2, depth=1)


def folder_of(name: str, file: Path, out: Path, seed: int, **more: Any) -> Path:
    """A model of a task with fresh weights, its folder as a run leaves it."""
    kind = tasks.get(name)
    asked = {"size": more.pop("size", 300), "lowercase": more.pop("lowercase", None)}
    tokens = TokenizerSettings(kind="bpe", shared=True if name == "translation" else None, **asked)
    settings = RunSettings(name, train=(str(file),), out=str(out), seed=seed, model=SMALL, tokenizer=tokens, **more)
    rows = read(str(file), kind.columns)
    task = kind.prepare(rows, settings)
    model = heedful.create(task.config(settings), seed=seed)
    task.before_training(model, settings)
    save(model, out, extra=card_of(task, rows, settings))
    task.save(out)
    return out


def quiet(line: str) -> None:
    """Hear nothing."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classifiers, two translators, two language models with other tokens, and their data."""
    desk = tmp_path_factory.mktemp("desk")
    labels = [f"one {w} {n}\t{k}" for k, ws in {"fruit": FRUIT, "tool": TOOLS}.items() for w in ws for n in range(3)]
    (desk / "labels.tsv").write_text("\n".join(["text\tlabel", *labels]) + "\n", "utf-8")
    pairs = [f"the {a} and a {b}\t{b} {a}" for a in FRUIT for b in TOOLS[:3]]
    (desk / "pairs.tsv").write_text("\n".join(["source\ttarget", *pairs]) + "\n", "utf-8")
    books = [json.dumps({"text": f"the {a} fell on the {b} .\n" * 3}) for a in FRUIT for b in TOOLS]
    (desk / "books.jsonl").write_text("\n".join(books) + "\n", "utf-8")
    for seed in (0, 1):
        folder_of("text-classification", desk / "labels.tsv", desk / f"labels{seed}", seed, preset="bert-tiny")
        folder_of("translation", desk / "pairs.tsv", desk / f"pairs{seed}", seed, preset="transformer-tiny")
        length = DataSettings(max_length=16)
        more = {"preset": "gpt-micro", "data": length, "size": 270 + 100 * seed}
        folder_of("text-generation", desk / "books.jsonl", desk / f"books{seed}", seed, **more)
    return desk


def both(folders: Path, name: str, data: str, **options: Any) -> dict[str, Any]:
    models = [str(folders / f"{name}{seed}") for seed in (0, 1)]
    return compare(models, [str(folders / data)], say=options.pop("say", quiet), **options)


def test_two_classifiers(folders: Path) -> None:
    result = both(folders, "labels", "labels.tsv")
    assert result["task"] == "text-classification"
    assert result["main_metric"] == "accuracy"
    assert result["examples"] == 36
    assert set(result["metrics"]) == {"loss", "accuracy", "macro_f1", "matthews"}
    for seed, letter in enumerate("ab"):
        pipe = heedful.pipeline(None, folders / f"labels{seed}")
        rows = read(folders / "labels.tsv", pipe.task.columns)
        said = [answer["output"] for answer in pipe([row.values["text"] for row in rows])]
        right = [row.values["label"] == one for row, one in zip(rows, said, strict=True)]
        assert result["metrics"]["accuracy"][letter] == pytest.approx(100 * np.mean(right))
        for example in result["differing_examples"]:
            row = rows[example["place"]]
            assert example["input"] == row.values["text"]
            assert example["expected"] == row.values["label"]
            assert example[letter] == said[example["place"]]
            assert example["line"] == row.line
    assert len(result["differing_examples"]) == 5
    assert json.loads(json.dumps(result))["metrics"]["accuracy"]["a"] == result["metrics"]["accuracy"]["a"]
    lines = compared(result)
    assert lines[0].startswith("A  ")
    assert result["verdict"] in lines


def test_examples_are_shown_by_how_far_apart_they_are(folders: Path) -> None:
    found = both(folders, "pairs", "pairs.tsv", examples=100, decoding={"max_new_tokens": 8})
    assert found["main_metric"] == "bleu"
    assert {"loss", "bleu", "chrf", "ter", "exact_match"} == set(found["metrics"])
    apart = [abs(one["score_b"] - one["score_a"]) for one in found["differing_examples"]]
    assert apart == sorted(apart, reverse=True)
    assert all(one["a"] != one["b"] for one in found["differing_examples"])
    again = both(folders, "pairs", "pairs.tsv", examples=2, decoding={"max_new_tokens": 8})
    assert again["differing_examples"] == found["differing_examples"][:2]


def test_with_one_that_writes_no_capitals_both_are_scored_in_lower_case(folders: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("source\ttarget\n" + "".join(f"the {a}\tThe {a.title()}\n" for a in FRUIT * 5), encoding="utf-8")
    lower = folder_of("translation", data, tmp_path / "lower", 0, preset="transformer-tiny", lowercase=True)
    heard: list[str] = []
    compare([str(folders / "pairs0"), str(lower)], [str(data)], decoding={"max_new_tokens": 2}, say=heard.append)
    assert "both models are scored in lower case: one model writes no capital letters" in heard
    heard.clear()
    compare([str(lower), str(lower)], [str(data)], decoding={"max_new_tokens": 2}, say=heard.append)
    assert not [line for line in heard if "lower case" in line]


def test_language_models_with_other_tokens_are_compared_by_the_byte(folders: Path) -> None:
    result = both(folders, "books", "books.jsonl")
    assert result["main_metric"] == "bits_per_byte"
    assert result["verdict"].split(": ")[1].startswith("bits_per_byte")
    assert result["examples"] == 36
    example = result["differing_examples"][0]
    assert set(example) == {"place", "file", "line", "input", "expected", "score_a", "score_b"}
    assert example["expected"] is None
    assert any(line.strip().startswith("A (") for line in compared(result))


def test_rows_that_one_model_cannot_take_are_left_out_for_both(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "long.tsv"
    data.write_text("source\ttarget\n" + "the fig and a saw\tsaw fig\n" * 3 + f"{'the fig ' * 40}\tfig\n", "utf-8")

    def opened(task: str | None, model: str, **options: Any) -> Pipeline:
        pipe = pipeline(task, model, **options)
        pipe.task.positions = 16 if model.endswith("1") else None
        return pipe

    told: list[str] = []
    monkeypatch.setattr("heedful.evaluation.compare.pipeline", opened)
    result = both(folders, "pairs", str(data), say=told.append, decoding={"max_new_tokens": 4})
    assert result["examples"] == 3
    assert told == [
        "3 examples",
        "B: 1 example longer than 16 tokens left out (the model takes no more)",
        "1 example left out for both models: not accepted by one of the models",
        "the interval of 3 examples is too narrow; give 30 examples or more",
    ]
    (tmp_path / "none.tsv").write_text(f"source\ttarget\n{'the fig ' * 40}\tfig\n", "utf-8")
    with pytest.raises(HeedfulError, match="every example is longer than 16 tokens"):
        both(folders, "pairs", str(tmp_path / "none.tsv"))


def test_one_text_shows_the_figures_and_nothing_more(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the fig fell on the saw .\n" * 9, "utf-8")
    result = both(folders, "books", str(tmp_path / "book.txt"))
    figures = result["metrics"]["bits_per_byte"]
    assert figures["difference"] == figures["b"] - figures["a"]
    assert figures["interval"] is figures["p"] is figures["better"] is None
    assert result["verdict"].startswith(
        "one example (a text counts as one) cannot show which model is better: bits_per_byte"
    )
    assert result["differing_examples"] == [] or len(result["differing_examples"]) == 1
    assert result["verdict"] in compared(result)


def test_of_tagged_sentences_entities_are_shown(tmp_path: Path) -> None:
    lines = [f"the O\n{a} B-fruit\n{a} I-fruit\non O\n{b} B-tool\n" for a in FRUIT for b in TOOLS]
    (tmp_path / "set.conll").write_text("\n".join(lines), "utf-8")
    file = tmp_path / "set.conll"
    models = [
        str(folder_of("token-classification", file, tmp_path / f"m{seed}", seed, preset="bert-tiny")) for seed in (0, 1)
    ]
    result = compare(models, [str(file)], say=quiet)
    (first, _), wanted = result["differing_examples"][:2], result["differing_examples"][0]["expected"]
    fruit = first["input"].split()[1]
    assert wanted[0] == {"label": "fruit", "text": f"{fruit} {fruit}", "start": 4, "end": 4 + 2 * len(fruit) + 1}
    shown = next(line for line in compared(result) if line.strip().startswith("expected"))
    assert shown.split(None, 1)[1].startswith(f"fruit {fruit} {fruit}, tool ")


def test_columns_are_named_by_the_flag_that_is_there(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.tsv").write_text("id\tlabel\n7\tfruit\n8\ttool\n", "utf-8")
    model, data = str(folders / "labels0"), [str(tmp_path / "wrong.tsv")]
    for run in (lambda: compare([model, model], data, say=quiet), lambda: evaluate(model, data, say=quiet)):
        with pytest.raises(HeedfulError, match=r"no column 'text' .* name the columns: --columns TEXT,LABEL"):
            run()


def test_models_that_cannot_be_compared_are_refused(folders: Path, tmp_path: Path) -> None:
    labels, pairs = str(folders / "labels0"), str(folders / "pairs0")
    data = str(folders / "labels.tsv")
    with pytest.raises(HeedfulError, match=r"labels0 is for text-classification, .*pairs0 for translation; only"):
        compare([labels, pairs], [data], say=quiet)
    with pytest.raises(HeedfulError, match="num_beams has no effect for text-classification"):
        compare([labels, labels], [data], decoding={"num_beams": 2}, say=quiet)
    with pytest.raises(HeedfulError, match="unknown split 'tset'; did you mean 'test'"):
        compare([labels, labels], [data], split="tset", say=quiet)
    (tmp_path / "pairs.tsv").write_text("text\ttext_pair\tlabel\none\ttwo\tyes\nthree\tfour\tno\n", "utf-8")
    other = folder_of("text-classification", tmp_path / "pairs.tsv", tmp_path / "two", 0, preset="bert-tiny")
    with pytest.raises(HeedfulError, match=r"takes text, label, .* takes text, text_pair, label; only"):
        compare([labels, str(other)], [data], say=quiet)
    lists = [json.dumps({"text": f"one {w}", "label": [w, "all"]}) for w in FRUIT]
    (tmp_path / "lists.jsonl").write_text("\n".join(lists) + "\n", "utf-8")
    several = folder_of("text-classification", tmp_path / "lists.jsonl", tmp_path / "several", 0, preset="bert-tiny")
    with pytest.raises(HeedfulError, match=r"is accuracy, that of .*several is micro_f1; only"):
        compare([labels, str(several)], [data], say=quiet)
    same = compare([labels, labels], [data], say=quiet)
    assert same["verdict"].startswith("no difference shown at 95 %: accuracy")
    assert same["differing_examples"] == []


def test_nothing_tells_a_model_from_itself(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the fig fell on the saw .\n" * 9, "utf-8")
    for name, data in (("books0", folders / "books.jsonl"), ("books0", tmp_path / "book.txt"), ("labels0", None)):
        model, file = str(folders / name), str(data or folders / "labels.tsv")
        result = compare([model, model], [file], say=quiet)
        assert all(one["difference"] == 0 and one["better"] is None for one in result["metrics"].values())
        assert result["differing_examples"] == []
        assert compared(result)[-1] == result["verdict"]
    apart = compared(both(folders, "books", "books.jsonl"))
    assert not [line for line in apart if line != line.rstrip()]
