"""Zero-shot classification by a model of natural language inference, beside the pipeline of ``transformers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from answering_folders import made
from heedful import cli
from heedful.errors import HeedfulError
from heedful.pretrained import read_card
from heedful.pretrained.writing import save

TEXTS = ["the apple is a fruit", "a saw", "pear and plum and quince"]
CHOICES = ["fruit", "tool", "apple pie"]


def inference_folder(folder: Path, labels: list[str]) -> Path:
    task, model = made("text-classification")
    task.labels = model.labels = labels  # type: ignore[attr-defined]
    save(model, folder, extra={"task": task.name})
    task.save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inference_folder(tmp_path_factory.mktemp("nli") / "model", ["entailment", "neutral", "contradiction"])


@pytest.mark.parametrize("given", [{}, {"hypothesis_template": "it is {} ."}, {"multi_label": True}])
def test_the_probabilities_are_those_of_transformers(folder: Path, given: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    ours = heedful.pipeline("zero-shot-classification", folder, device="cpu")
    listed = ours(TEXTS, choices=CHOICES, top_k=None, **given)
    best = ours(TEXTS, choices=CHOICES, **given)
    for text, found, one in zip(TEXTS, listed, best, strict=True):
        expected = theirs(text, candidate_labels=CHOICES, **given)
        assert [each["label"] for each in found["output"]] == expected["labels"]
        assert [each["score"] for each in found["output"]] == pytest.approx(expected["scores"], abs=1e-5)
        assert (one["output"], one["score"]) == (expected["labels"][0], pytest.approx(expected["scores"][0], abs=1e-5))


def test_blank_texts_and_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipe = heedful.pipeline(folder, device="cpu")
    assert pipe(["", "a saw"], choices=CHOICES)[0] == {"input": "", "output": "", "score": None}
    Path("x.csv").write_text("n,text\n1,a saw\n2,the apple is a fruit\n", encoding="utf-8")
    assert cli.main(["predict", str(folder), "--in", "x.csv", "--out", "y.csv", "--choices", "fruit,tool"]) == 0
    rows = [line.split(",") for line in Path("y.csv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["n", "text", "output", "score"]
    expected = pipe(["a saw", "the apple is a fruit"], choices=["fruit", "tool"])
    assert [row[2] for row in rows[1:]] == [one["output"] for one in expected]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a", {"hypothesis_template": "it is {}"}, "hypothesis_template has no effect without choices"),
        ("a", {"multi_label": True}, "multi_label has no effect without choices"),
        ("a", {"choices": CHOICES, "hypothesis_template": "it is"}, r"template 'it is' needs one {}"),
        ("a", {"choices": ["one"]}, "give two or more different texts"),
        (("a", "b"), {"choices": CHOICES}, r"labels of a text, not of \('a', 'b'\)"),
        ("a", {"candidate_labels": CHOICES}, "the option candidate_labels has no effect .*; did you mean 'choices'?"),
    ],
)
def test_wrong_calls(folder: Path, text: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        heedful.pipeline(folder, device="cpu")([text], **options)


def test_other_classifiers_have_no_choices(tmp_path: Path) -> None:
    two = heedful.pipeline(inference_folder(tmp_path / "two", ["not_entailment", "entailment", "x"]), device="cpu")
    assert two("a saw", choices=CHOICES)["output"] in CHOICES
    other = heedful.pipeline(inference_folder(tmp_path / "other", ["fruit", "other", "tool"]), device="cpu")
    with pytest.raises(HeedfulError, match=r"need a model of natural language inference, .* has fruit, other, tool"):
        other("a saw", choices=CHOICES)


ROWS = [("the apple is a fruit", "fruit"), ("a saw", "tool"), ("pear and plum", "fruit"), ("a pie", "apple pie")]


@pytest.mark.parametrize("options", [{}, {"hypothesis_template": "it is {} ."}, {"multi_label": True}])
def test_an_evaluation_has_the_metrics_of_the_choices(folder: Path, options: dict[str, Any]) -> None:
    metrics, transformers = pytest.importorskip("sklearn.metrics"), pytest.importorskip("transformers")
    theirs = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    labels = [label for _, label in ROWS]
    p = []
    for text, _ in ROWS:
        scores = theirs(text, candidate_labels=CHOICES, **options)
        p.append([scores["scores"][scores["labels"].index(choice)] for choice in CHOICES])
    p, rows = np.array(p), [{"text": text, "label": label} for text, label in ROWS]
    result = heedful.evaluate(folder, rows, choices=CHOICES, **options)
    truth = np.array([[label == choice for choice in CHOICES] for label in labels])
    if "multi_label" in options:
        expected = {
            "exact_match": 100 * metrics.accuracy_score(truth, p >= 0.5),
            "micro_f1": 100 * metrics.f1_score(truth, p >= 0.5, average="micro"),
            "macro_f1": 100 * metrics.f1_score(truth, p >= 0.5, average="macro", zero_division=0),
            "loss": -np.where(truth, np.log(p), np.log(1 - p)).mean(),
        }
    else:
        predicted = [CHOICES[best] for best in p.argmax(1)]
        expected = {
            "accuracy": 100 * metrics.accuracy_score(labels, predicted),
            "matthews": 100 * metrics.matthews_corrcoef(labels, predicted),
            "loss": -np.log(p[truth]).mean(),
        }
        assert result["confusion"]["labels"] == CHOICES
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert [each["label"] for each in result["by_class"]] == CHOICES


def test_files_of_evaluations_and_comparisons(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{text},{label}\n" for text, label in ROWS)
    Path("x.csv").write_text("text,label\n" + lines, encoding="utf-8")
    Path("odd.csv").write_text("text,label\n" + lines + "a lamp,light\n", encoding="utf-8")
    names = ["--choices", ",".join(CHOICES)]
    assert cli.main(["evaluate", str(folder), "--data", "x.csv", *names, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    found = heedful.pipeline(folder, device="cpu")([text for text, _ in ROWS], choices=CHOICES)
    right = [each["output"] == label for each, (_, label) in zip(found, ROWS, strict=True)]
    assert metrics["accuracy"] == pytest.approx(100 * sum(right) / len(ROWS))
    assert cli.main(["compare", str(folder), str(folder), "--data", "x.csv", *names, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["metrics"]["accuracy"]
    assert compared["a"] == compared["b"] == pytest.approx(metrics["accuracy"])
    with_baseline = ["evaluate", str(folder), "--data", "x.csv", *names, "--json", "--baseline-train", "x.csv"]
    assert cli.main(with_baseline) == 0
    assert json.loads(capsys.readouterr().out)["baseline"]["metrics"]["accuracy"] > 0
    assert cli.main(["evaluate", str(folder), "--data", "x.csv", *names, "--baseline"]) == 2
    assert "--baseline-train FILE" in capsys.readouterr().err
    assert cli.main(["evaluate", str(folder), "--data", "odd.csv", *names]) == 2
    assert "odd.csv:6: the label 'light' is none of the --choices fruit, tool, apple pie" in capsys.readouterr().err
    assert cli.main(["evaluate", str(folder), "--data", "x.csv", "--multi-label"]) == 2
    assert "--multi-label has no effect without choices; give choices" in capsys.readouterr().err


def test_a_table_needs_no_second_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model learned from a column ``text_pair``; with choices, hypotheses take its place."""
    monkeypatch.chdir(tmp_path)
    folder = inference_folder(tmp_path / "nli", ["entailment", "neutral", "contradiction"])
    card = read_card(folder) | {"columns": {"text": "text", "text_pair": "text", "label": "label"}}
    (folder / "heedful.json").write_text(json.dumps(card), encoding="utf-8")
    Path("x.csv").write_text("text\na saw\nthe apple is a fruit\n", encoding="utf-8")
    assert cli.main(["predict", str(folder), "--in", "x.csv", "--out", "y.csv"]) == 2
    assert "text_pair" in capsys.readouterr().err
    assert cli.main(["predict", str(folder), "--in", "x.csv", "--out", "y.csv", "--choices", "fruit,tool"]) == 0
    pipe = heedful.pipeline(folder, device="cpu")
    expected = [each["output"] for each in pipe(["a saw", "the apple is a fruit"], choices=["fruit", "tool"])]
    assert [line.split(",")[1] for line in Path("y.csv").read_text(encoding="utf-8").splitlines()[1:]] == expected
    pandas = pytest.importorskip("pandas")
    frame = pipe(pandas.read_csv("x.csv"), choices=["fruit", "tool"])
    assert list(frame["output"]) == expected
    rows = [{"text": text, "label": label} for text, label in zip(("a saw", "the apple is"), expected, strict=True)]
    assert heedful.evaluate(folder, rows, choices=["fruit", "tool"])["examples"] == 2


def test_a_model_of_single_texts_has_no_choices(tmp_path: Path) -> None:
    folder = inference_folder(tmp_path / "single", ["entailment", "neutral", "contradiction"])
    card = read_card(folder) | {"columns": {"text": "text", "label": "label"}}
    (folder / "heedful.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.raises(HeedfulError, match="choices need a model of pairs of texts"):
        heedful.pipeline(folder, device="cpu")("a saw", choices=CHOICES)
