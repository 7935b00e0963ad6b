"""A text cut into pieces is the text: the same tokens as of the whole, read when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heedful import cli
from heedful.data import read, texts_on_disk
from heedful.data.documents import read_documents
from heedful.data.texts_on_disk import FileSlice, any_on_disk, row_size
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.tasks.documents import split_documents, token_stream
from heedful.text import Tokenizer
from tolerances import approx

TEXT = "".join(f"The {n} old café\r\nstood {'—' * (n % 3)} by\n\n  the sea, {n * n} times;\n" for n in range(400))
COLUMNS = {"text": "document"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(texts_on_disk, "PIECE", 700)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "kept"))


def made(folder: Path, content: bytes | str = TEXT) -> str:
    file = folder / "sea.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def in_pieces(monkeypatch: pytest.MonkeyPatch, *files: str) -> list:
    monkeypatch.setattr(texts_on_disk, "LARGE", 1000)
    return read_documents(files, "text")


def test_the_pieces_joined_are_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = read(made(tmp_path), COLUMNS)
    rows = in_pieces(monkeypatch, made(tmp_path))
    assert len(rows) > 20
    assert any_on_disk(rows)
    assert "".join(row.values["text"] for row in rows) == whole.values["text"]
    text = TEXT.replace("\r\n", "\n")
    seen = 0
    for row in rows:
        assert row.line == 1 + text[:seen].count("\n")
        seen += len(row.values["text"])


@pytest.mark.parametrize("content", ["—é" * 3000, "x" * 5000, "a b " * 2000 + "é\n" * 900], ids=["wide", "one", "some"])
def test_without_good_places_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    rows = in_pieces(monkeypatch, made(tmp_path, content))
    assert len(rows) > 3
    assert "".join(row.values["text"] for row in rows) == content


@pytest.mark.parametrize("kind", ["bpe", "character", "wordpiece"])
def test_their_tokens_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    tokenizer = Tokenizer.train([TEXT], 300, kind, template="none")
    other = tmp_path / "other.txt"
    other.write_text("a short text\n")
    files = [made(tmp_path), str(other)]
    whole, starts = token_stream(tokenizer, read_documents(files, "text"), [7], [5])
    rows = in_pieces(monkeypatch, *files)
    found, places = token_stream(tokenizer, rows, [7], [5])
    assert isinstance(found, np.memmap)
    assert found.tolist() == whole.tolist()
    assert places.tolist() == starts.tolist()


def test_tokens_are_made_once_for_a_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train([TEXT], 300, template="none")
    rows = in_pieces(monkeypatch, made(tmp_path))
    first, _ = token_stream(tokenizer, rows, [], [5])
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("made again"))
        assert token_stream(tokenizer, rows, [], [5])[0].tolist() == first.tolist()
    again = in_pieces(monkeypatch, made(tmp_path, TEXT.replace("old", "new")))
    assert token_stream(tokenizer, again, [], [5])[0].tolist() != first.tolist()
    assert not list((tmp_path / "kept").glob("**/.*"))


def test_the_last_pieces_are_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = in_pieces(monkeypatch, made(tmp_path))
    train, held = split_documents(rows, None, 0)
    assert [*train, *held] == [*rows]
    assert abs(sum(map(row_size, held)) - 4 * 700) <= max(map(row_size, rows)) / 2
    assert all(row.line >= train[-1].line for row in held)
    assert len(split_documents(rows, 0.5, 0)[1]) == round(0.5 * len(rows))
    with pytest.raises(HeedfulError, match="give --valid FILE"):
        split_documents(rows[:3], None, 0)


def test_a_wrong_byte_is_an_error_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"plain text here\n"] * 200
    lines[150] = b"fa\xe7ade\n"
    with pytest.raises(HeedfulError, match=r"byte 0xe7 at byte 3 of the line\), in .*sea.txt:151; convert"):
        in_pieces(monkeypatch, made(tmp_path, b"".join(lines)))
    lines[150] = b"a\0b\n"
    with pytest.raises(HeedfulError, match=r"a NUL byte.*sea.txt:151;"):
        in_pieces(monkeypatch, made(tmp_path, b"".join(lines)))


def test_a_file_that_is_gone_or_another_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = in_pieces(monkeypatch, made(tmp_path))[3]
    made(tmp_path, b"\xff" * 9000)
    with pytest.raises(HeedfulError, match=r"sea.txt changed during the run .*; start the run again"):
        row.values["text"]
    (tmp_path / "sea.txt").unlink()
    with pytest.raises(HeedfulError, match=r"sea.txt changed during the run .*No such file.*; start the run again"):
        row.values["text"]


def test_a_piece_is_a_mapping_of_one_text(tmp_path: Path) -> None:
    piece = FileSlice(made(tmp_path, "one two"), "text", 4, 7)
    assert (dict(piece), piece.get("other"), len(piece)) == ({"text": "two"}, None, 1)


def test_a_model_learns_from_them_as_from_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, held = made(tmp_path), tmp_path / "held.txt"
    held.write_text(TEXT[:3000], newline="")
    small = ["--preset=gpt-micro", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.kind=character"]
    run = ["train", "text-generation", "--train", file, "--valid", str(held), *small, "--data.max-length=16"]
    run += ["--max-steps=6", "--training.log-every=1", "--training.batch-tokens=64"]
    for name, large in (("whole", 1 << 28), ("cut", 1000)):
        monkeypatch.setattr(texts_on_disk, "LARGE", large)
        assert cli.main([*run, "--out", str(tmp_path / name)]) == 0
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert list((tmp_path / "kept").glob("*.tokens"))


@pytest.mark.parametrize("task", ["text-generation", "fill-mask"])
def test_held_back_texts_are_measured(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path)
    monkeypatch.setattr(texts_on_disk, "LARGE", 1000)
    preset = "gpt-micro" if task == "text-generation" else "bert-tiny"
    small = [f"--preset={preset}", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.kind=character"]
    run = ["train", task, "--train", file, "--out", str(tmp_path / "run"), *small, "--data.max-length=16"]
    assert cli.main([*run, "--max-steps=2", "--training.batch-tokens=64"]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["valid_loss"] < 10
    (tmp_path / "tail.txt").write_text("".join(row.values["text"] for row in read_documents([file], "text")[-4:]))
    found = []
    for large in (1000, 1 << 28):
        monkeypatch.setattr(texts_on_disk, "LARGE", large)
        found.append(evaluate(str(tmp_path / "run"), [str(tmp_path / "tail.txt")], say=str)["metrics"])
    assert found[0] == approx(found[1], "layer")
