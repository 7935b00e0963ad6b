"""Sets of the Hub: their parts by the names of files and folders, several files of one part read as one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heedful import cli
from heedful.data import hub_datasets, read, splits, texts_on_disk
from heedful.data.prediction_inputs import read_inputs
from heedful.data.texts_on_disk import any_on_disk
from heedful.errors import HeedfulError
from heedful.util import downloads

Asked = list[tuple[str, Any, Any]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Requests to the Hub, which has the files below the folder ``hub``."""
    found: Asked = []

    def fetched(name: str, patterns: Iterable[str], revision: str | None = None, kind: str = "model") -> Path:
        found.append((name, revision, kind))
        there, here = tmp_path / "hub" / name, tmp_path / "brought" / name
        if not there.is_dir():
            raise downloads.Refused("has no such repository")
        for file in there.rglob("*"):
            path = file.relative_to(there)
            if file.is_file() and any(fnmatch(path.as_posix(), pattern) for pattern in patterns):
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                (here / path).write_bytes(file.read_bytes())
        return here

    monkeypatch.setattr(downloads, "fetched", fetched)
    hub_datasets._download.cache_clear()
    return found


def put(folder: Path, **files: list[str]) -> None:
    """Parquet with these texts, and labels; "__" in a name stands for "/"."""
    for name, texts in files.items():
        path = folder / "hub" / "org" / "set" / f"{name.replace('__', '/')}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": texts, "label": [text[0] for text in texts]}), path)


def texts(source: str, **options: Any) -> list[str]:
    return [row.values["text"] for row in read(source, {"text": "text", "label": "label"}, **options)]


LAYOUTS: dict[str, dict[str, list[str]]] = {
    "shards": {"data__train-00000": ["a", "b"], "data__train-00001": ["c"], "data__validation-0": ["d"], "x": ["e"]},
    "names": {"train": ["a", "b", "c"], "val": ["d"], "trainer": ["e"], "unsupervised": ["f"]},
    "folders": {"train__0": ["a"], "train__1": ["b", "c"], "dev__0": ["d"]},
}


def test_inputs_for_prediction_are_those_of_the_test_split(asked: Asked, tmp_path: Path) -> None:
    def inputs(source: str) -> list[str]:
        return [item.input for item in read_inputs(source, {"text": "text"})]

    put(tmp_path, train=["a", "b"], val=["c"])
    assert inputs("hub:org/set") == ["a", "b"], "without a test split, the first"
    put(tmp_path, train=["a", "b"], val=["c"], **{"test-0": ["d"], "test-1": ["e"]})
    hub_datasets._download.cache_clear()
    assert inputs("hub:org/set") == ["d", "e"]
    assert inputs("hub:org/set:val") == ["c"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_recognized_by_their_names(asked: Asked, tmp_path: Path, layout: str) -> None:
    put(tmp_path, **LAYOUTS[layout])
    assert splits("hub:org/set") == ("train", "valid")
    assert texts("hub:org/set") == texts("hub:org/set", split="train") == ["a", "b", "c"]
    assert texts("hub:org/set", split="valid") == texts("hub:org/set:validation") == texts("hub:org/set:dev") == ["d"]
    assert splits("hub:org/set:train") == ()
    assert texts("hub:org/set", limit=2) == ["a", "b"]
    assert set(asked) == {("org/set", None, "dataset")}
    assert len(asked) == 1
    with pytest.raises(
        HeedfulError, match=r"no split 'test' in hub:org/set:test; it has train and valid; name a split: "
    ):
        read("hub:org/set:test", ["text"])


def test_without_parts_all_is_read(asked: Asked, tmp_path: Path) -> None:
    put(tmp_path, b=["b"], more__a=["a"])
    assert splits("hub:org/set") == ()
    assert texts("hub:org/set") == texts("hub:org/set", split="valid") == ["b", "a"]


def test_one_of_several_sets_is_chosen_by_its_path(asked: Asked, tmp_path: Path) -> None:
    put(tmp_path, en__train=["a"], en__test=["b"], fr__train=["c"])
    with pytest.raises(HeedfulError, match=r"several subsets \(en, fr\) in hub:org/set; choose one: hub:org/set/en"):
        read("hub:org/set", ["text"])
    assert texts("hub:org/set/en") == ["a"]
    assert texts("hub:org/set/en/:test") == ["b"]
    assert texts("hub:org/set@v1/fr/train.parquet") == ["c"]
    assert asked[-1] == ("org/set", "v1", "dataset")
    assert texts("hub:org/set@refs%2Fpr%2F1/fr") == ["c"]
    assert asked[-1] == ("org/set", "refs/pr/1", "dataset")


def test_json_lines_are_read_where_there_is_no_parquet(asked: Asked, tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "org" / "set"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"text": "a", "label": "x"}\n')
    (folder / "notes.txt").write_text("no row\n")
    assert texts("hub:org/set") == ["a"]


def test_unreadable_sets_are_errors(asked: Asked, tmp_path: Path) -> None:
    with pytest.raises(
        HeedfulError, match=r"cannot get the data set org/none: the Hub has no such repository; check the name"
    ):
        read("hub:org/none", ["text"])
    for wrong in ("hub:alone", "hub:", "hub:a/b:c:d"):
        with pytest.raises(HeedfulError, match=r"is not the name of a data set; write hub:ORG/NAME"):
            read(wrong, ["text"])
    put(tmp_path, train=["a"])
    with pytest.raises(HeedfulError, match="cannot be combined with other sources; give it alone"):
        read(["hub:org/set", "more.tsv"], ["text"])
    (tmp_path / "hub" / "org" / "bare").mkdir()
    (tmp_path / "hub" / "org" / "bare" / "README.md").write_text("x")
    with pytest.raises(HeedfulError, match=r"no readable file \(.parquet, .*\) in hub:org/bare; "):
        read("hub:org/bare", ["text"])


def test_shards_with_other_columns_are_errors(asked: Asked, tmp_path: Path) -> None:
    put(tmp_path, train__0=["a"])
    pq.write_table(
        pa.table({"text": ["b"], "label": ["x"], "text_pair": ["c"]}), tmp_path / "hub/org/set/train/1.parquet"
    )
    with pytest.raises(HeedfulError, match=r"'text', 'text_pair', 'label' in .*1.parquet, but 'text', 'label' in "):
        read("hub:org/set", {"text": "text", "text_pair": "text?", "label": "label"})


def test_a_large_set_stays_on_disk(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, data__train_0=["a", "b"], data__train_1=["c"])
    monkeypatch.setattr(texts_on_disk, "LARGE", 1)
    rows = read("hub:org/set", {"text": "document", "prompt": "text?", "messages": "messages?"})
    assert any_on_disk(rows)
    assert [row.values["text"] for row in rows] == ["a", "b", "c"]


def test_a_classifier_learns_from_a_set(asked: Asked, tmp_path: Path) -> None:
    words = {"cat": "it purrs", "dog": "it barks"}
    put(
        tmp_path,
        **{
            name: [f"{word} {n} {words[word]}" for n in range(8) for word in words]
            for name in ("train_0", "train_1", "test")
        },
    )
    out = tmp_path / "out"
    run = ["train", "text-classification", "--train", "hub:org/set", "--valid", "hub:org/set:test", "--out", str(out)]
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--max-steps=2"]
    assert cli.main([*run, *small]) == 0
    assert json.loads((out / "heedful.json").read_text())["data"]["examples"] == 32
