"""``heedful.pipeline`` as people call it: a folder alone, all labels, what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from answering_folders import LABELS, saved
from heedful.errors import HeedfulError


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("text-classification", tmp_path_factory.mktemp("models") / "texts")


def test_a_folder_alone_is_opened_for_its_own_task(texts: Path) -> None:
    alone, named = heedful.pipeline(texts, device="cpu"), heedful.pipeline("text-classification", texts, device="cpu")
    assert alone.task.name == named.task.name == "text-classification"
    assert heedful.pipeline(str(texts), device="cpu")("an apple") == named("an apple")
    assert repr(alone) == f"<Pipeline for text-classification of {str(texts)!r} on cpu>"
    (texts / "heedful.json").rename(texts / "aside.json")
    try:
        assert heedful.pipeline(texts, device="cpu").task.name == "text-classification"  # by its head
    finally:
        (texts / "aside.json").rename(texts / "heedful.json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text-classification", r"no model is given for text-classification; .*pipeline\('text-classification', 'runs"),
        (None, "no model is given; name its folder or Hub id"),
        (3, "no model is given; name its folder or Hub id"),
    ],
)
def test_a_task_alone_is_refused(given: Any, message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        heedful.pipeline(given)


@pytest.mark.parametrize("task", ["text-classification", "image-classification"])
def test_top_k_none_lists_all_labels(task: str, tmp_path: Path) -> None:
    pipe = heedful.pipeline(saved(task, tmp_path / "model"), device="cpu")
    value = "an apple" if task.startswith("text") else np.zeros((28, 28), np.uint8)
    listed = pipe(value, top_k=None)["output"]
    assert listed == pipe(value, top_k=len(LABELS))["output"]
    assert sorted(label["label"] for label in listed) == sorted(pipe.labels) == sorted(LABELS)
    assert sum(label["score"] for label in listed) == pytest.approx(1, abs=1e-5)
    assert pipe(value)["output"] == listed[0]["label"]
    assert heedful.pipeline(saved("translation", tmp_path / "translator"), device="cpu").labels == []


@pytest.fixture(scope="module")
def classify(texts: Path) -> heedful.Pipeline:
    return heedful.pipeline(texts, device="cpu")


def test_a_dataframe_keeps_its_columns(classify: heedful.Pipeline) -> None:
    pandas = pytest.importorskip("pandas")
    inputs = ["an apple", "the saw", "a pear"]
    expected = classify(inputs)
    frame = pandas.DataFrame({"n": [1, 2, 3], "text": inputs, "score": [0.0, 0.5, 1.0]}, index=[7, 7, 9])
    found = classify(frame)
    assert list(found.columns) == ["n", "text", "score", "output", "predicted_score"]
    assert list(found.index) == [7, 7, 9]
    assert found["output"].tolist() == [one["output"] for one in expected]
    assert found["predicted_score"].tolist() == pytest.approx([one["score"] for one in expected])
    assert list(frame.columns) == ["n", "text", "score"]  # the caller's own is unchanged
    assert classify(frame, as_frame=False) == expected
    assert classify(frame.rename(columns={"text": "said"})[["said"]])["output"].tolist() == found["output"].tolist()
    with pytest.raises(HeedfulError, match=r"no column 'text' among 'n', .*in the DataFrame:1"):
        classify(frame[["n", "score"]])


def test_a_dataframe_is_read_as_a_file(classify: heedful.Pipeline, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    found = classify(pandas.DataFrame({"text": ["a saw", None, float("nan"), pandas.NA], 7: range(4)}))
    assert found["output"].tolist() == [classify("a saw")["output"], "", "", ""]
    assert classify(pandas.DataFrame([["an apple", 1]], columns=["text", 0]))["output"].tolist() != [""]
    twice = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(HeedfulError, match="two columns of the DataFrame are called 'text'; rename one"):
        classify(twice)
    assert list(classify(pandas.Index(["a saw"]), as_frame=True).columns) == ["input", "output", "score"]
    tag = heedful.pipeline(saved("token-classification", tmp_path / "tags"), device="cpu")
    for words in (["the", "saw"], np.array(["the", "saw"])):
        assert tag(pandas.DataFrame({"tokens": [words]}))["output"].tolist() == [tag([["the", "saw"]])[0]["output"]]
    polars = pytest.importorskip("polars")
    with pytest.raises(HeedfulError, match=r"a LazyFrame has no rows yet; call its collect\(\) first"):
        classify(polars.DataFrame({"text": ["a saw"]}).lazy())


def test_a_column_gives_a_list_or_a_frame(classify: heedful.Pipeline) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(["an apple", "the saw"], index=["a", "b"])
    assert classify(series) == classify(series.tolist())
    found = classify(series, as_frame=True, top_k=2)
    assert list(found.index) == ["a", "b"]
    assert found["input"].tolist() == series.tolist()
    assert [len(labels) for labels in found["output"]] == [2, 2]
    listed = classify(series.tolist(), as_frame=True)
    assert listed.to_dict("records") == classify(series.tolist())
    with pytest.raises(HeedfulError, match="as_frame=True takes a list, a Series or a DataFrame"):
        classify("an apple", as_frame=True)


def test_polars_gives_polars(classify: heedful.Pipeline) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": ["an apple", "the saw"], "n": [1, None]})
    found = classify(frame)
    assert isinstance(found, polars.DataFrame)
    assert found.columns == ["text", "n", "output", "score"]
    assert found["output"].to_list() == [one["output"] for one in classify(frame["text"].to_list())]
    assert classify(frame["text"]) == classify(frame["text"].to_list())
    assert classify(frame["text"], as_frame=True).columns == ["input", "output", "score"]


def test_pairs_in_a_dataframe(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    answer = heedful.pipeline(saved("question-answering", tmp_path / "model"), device="cpu")
    frame = pandas.DataFrame({"context": ["the pear is a fruit"], "question": ["what is pear?"], "id": ["q1"]})
    found = answer(frame)
    assert found["id"].tolist() == ["q1"]
    assert found["output"].tolist() == [
        answer({"question": "what is pear?", "context": "the pear is a fruit"})["output"]
    ]
