"""Whole texts: from files, folders, tables and standard input, and what is no text said or counted."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from heedful.data import Kind, Row, read, splits
from heedful.data.documents import line_of_character
from heedful.errors import HeedfulError

TEXT: dict[str, Kind] = {"text": "document"}
BOOK = "One\n\n  two\tand\fthree\n"


def make(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def texts(source: str | Path | Sequence[str | Path], **options: object) -> list[str]:
    return [row.values["text"] for row in read(source, TEXT, **options)]


def said(source: str | Path | Sequence[str | Path], **options: object) -> str:
    with pytest.raises(HeedfulError) as caught:
        read(source, TEXT, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "no remedy"
    return message


def parquet(table: dict[str, list]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), sink)
    return sink.getvalue()


def test_a_plain_file_is_one_document(tmp_path: Path) -> None:
    packed = gzip.compress(BOOK.encode())
    make(tmp_path, {"a.txt": BOOK, "b.md": "\ufeffone\r\ntwo\rthree", "c.gz": packed, "README": "x"})
    assert read(tmp_path / "a.txt", TEXT) == [Row({"text": BOOK}, str(tmp_path / "a.txt"), 1)]
    assert texts([tmp_path / "b.md", tmp_path / "README", tmp_path / "c.gz"]) == ["one\ntwo\nthree", "x", BOOK]
    assert read(tmp_path / "a.txt", TEXT).columns == ("text",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", json.dumps({"text": BOOK}) + "\n\n" + json.dumps({"text": "two"}) + "\n"),
        ("a.ndjson", json.dumps({"text": BOOK}) + '\n{"text": "\\n"}\n{"text": "two"}'),
        ("a.csv", f'id,text\n1,"{BOOK}"\n2,\n3,two\n'),
        ("a.parquet", parquet({"text": [BOOK, "", "two"]})),
    ],
)
def test_a_table_is_a_document_a_row(tmp_path: Path, name: str, content: str | bytes) -> None:
    make(tmp_path, {name: content})
    (path,) = tmp_path.iterdir()
    rows = read(path, TEXT)
    assert [row.values["text"] for row in rows] == [BOOK, "two"]
    assert rows.skipped == 1


def test_a_table_by_position_and_by_name(tmp_path: Path) -> None:
    make(tmp_path, {"a.tsv": "first\tx\nsecond\ty\n", "b.jsonl": json.dumps({"page": {"body": "one"}})})
    assert texts(tmp_path / "a.tsv") == ["first", "second"]
    assert texts(tmp_path / "a.tsv", names=("2",)) == ["x", "y"]
    assert texts(tmp_path / "b.jsonl", names=("page.body",)) == ["one"]
    assert texts(tmp_path / "b.jsonl") == ["one"]
    make(tmp_path, {"c.jsonl": json.dumps({"page": {"number": 1}})})
    assert "no column 'text' among 'page.number'" in said(tmp_path / "c.jsonl")


def test_a_folder_is_all_text_in_it(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            "b.txt": "B",
            "a/z.py": "Z",
            "a/c.txt": "C",
            "a/.hidden.txt": "no",
            ".git/config": "no",
            "data.jsonl": '{"text": "J1"}\n{"text": "J2"}\n',
            "other.csv": "x,y\n1,2\n",
            "numbers.tsv": "1\t2\n",
            "picture.png": b"\x89PNG\0\0",
            "latin.txt": "é".encode("latin-1"),
            "empty.txt": "",
            "blank.txt": " \n",
        },
    )
    rows = read(tmp_path, TEXT)
    assert [row.values["text"] for row in rows] == ["B", "J1", "J2", "C", "Z"]
    assert rows[2] == Row({"text": "J2"}, str(tmp_path / "data.jsonl"), 2)
    assert rows.skipped == 6  # two tables without the column, a picture, another encoding, two without a word
    assert texts([tmp_path / "a", tmp_path / "b.txt"]) == ["C", "Z", "B"]


def test_broken_files_of_a_folder_are_errors(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "A", "b.jsonl": '{"text": "J1"}\n{"words": "J2"}\n'})
    assert f"no column 'text' among 'words', in {tmp_path}/b.jsonl:2;" in said(tmp_path)
    make(tmp_path, {"b.jsonl": '{"text": "J1"', "c.gz": b"x"})
    assert f"broken JSON (Expecting ',' delimiter: line 1 column 14 (char 13)), in {tmp_path}/b.jsonl" in said(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    assert f"{tmp_path}/c.gz is not a complete .gz file" in said(tmp_path)


def test_pipes_and_broken_links_of_a_folder_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "A"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert texts(tmp_path) == ["A"]


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {"a.txt": "A", "closed/b.txt": "B"})
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert (
        said(tmp_path) == f"{tmp_path}/closed cannot be read (Permission denied); correct this or give another folder"
    )


def test_standard_input_is_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(b"one\ttwo\r\nthree\n")}))
    assert texts("-") == ["one\ttwo\nthree\n"]


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "A", "b.jsonl": '{"text": "B"}\nbroken', "c.gz": b"broken"})
    assert texts(tmp_path, limit=1) == ["A"]
    assert texts(tmp_path, limit=2) == ["A", "B"]


def test_folders_of_parts(tmp_path: Path) -> None:
    make(tmp_path, {"train/a.txt": "A", "train/more/b.txt": "B", "val/c.txt": "C", "README.md": "of no part"})
    assert splits(tmp_path) == ("train", "valid")
    assert texts(tmp_path) == texts(tmp_path, split="train") == ["A", "B"]
    assert texts(tmp_path, split="valid") == ["C"]
    assert "no split 'test' in" in said(tmp_path, split="test")
    make(tmp_path, {"other/d.txt": "D"})
    assert splits(tmp_path) == ()
    assert texts(tmp_path, split="valid") == ["of no part", "D", "A", "B", "C"]


@pytest.mark.parametrize("names", [["test"], ["src", "test"], []])
def test_folders_without_a_training_part_are_whole(tmp_path: Path, names: list[str]) -> None:
    make(tmp_path, {"a.txt": "A"} | {f"{name}/b.txt": "B" for name in names})
    assert splits(tmp_path) == ()
    assert texts(tmp_path) == ["A"] + ["B"] * len(names)


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "only blank or unreadable texts (1), in {path}; give text files, a folder of them, or a table"),
    "blank": (" \n\n", "only blank or unreadable texts (1), in {path};"),
    "binary": (b"text\n\0", "the file has a NUL byte and is not text, in {path}:2;"),
    "utf-16": (BOOK.encode("utf-16"), "the file is UTF-16, in {path}:1;"),
    "latin-1": ("one\ntwo é\n".encode("latin-1"), "invalid UTF-8 (byte 0xe9 at byte 5 of the line), in {path}:2;"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_without_text_are_errors(tmp_path: Path, case: str) -> None:
    content, expected = BROKEN[case]
    make(tmp_path, {"a.txt": content})
    assert expected.replace("{path}", f"{tmp_path}/a.txt") in said(tmp_path / "a.txt")


def test_folders_without_text_and_wrong_sources_are_errors(tmp_path: Path) -> None:
    assert f"no text, in {tmp_path};" in said(tmp_path)
    make(tmp_path, {"a.png": b"\0", "b.txt": ""})
    assert f"only blank or unreadable texts (2), in {tmp_path};" in said(tmp_path)
    assert "no such file: " in said(tmp_path / "none.txt")
    make(tmp_path, {"c.txt": "C", "d.parquet": b"PAR1"})
    assert "leave --data.columns out" in said(tmp_path / "c.txt", names=("text",))
    assert "is not a complete Parquet file" in said(tmp_path / "d.parquet")
    assert "builtin:stdlib cannot be combined with other sources" in said([tmp_path / "c.txt", "builtin:stdlib"])
    with pytest.raises(HeedfulError, match="is a folder, but a file is expected"):
        read(tmp_path, ["text"])


def test_the_line_of_a_character(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "one\r\ntwo\n\x07three\n", "a.jsonl": json.dumps({"text": "one\n\x07two"}) + "\n"})
    for name, line in (("a.txt", 3), ("a.jsonl", 1)):
        (row,) = read(tmp_path / name, TEXT)
        text = row.values["text"]
        assert line_of_character(row, text, text.index("\x07")) == line, name
    assert line_of_character(Row({}, "book.txt", 40), "a\nb", 2) == 41  # a piece of a large file
    assert line_of_character(Row({}, "squad.json", 7), "a\nb", 2) == 7
    assert line_of_character(Row({}, "builtin:stdlib", 7), "a\nb", 2) == 7
