"""Zero-shot classification by a model of natural language inference, beside the pipeline of ``transformers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heedful
from answering_folders import made
from heedful import cli
from heedful.errors import HeedfulError
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
