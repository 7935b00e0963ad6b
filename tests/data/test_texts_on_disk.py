"""Tables and folders of documents larger than memory: the rows of small ones, their texts read when asked for."""

from __future__ import annotations

import gc
import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heedful import cli
from heedful.data import Kind, Rows, read, texts_on_disk
from heedful.data.documents import read_documents
from heedful.data.texts_on_disk import OnDisk, any_on_disk, row_size
from heedful.errors import HeedfulError
from heedful.tasks.documents import sampled_documents, split_documents, token_stream
from heedful.text import Tokenizer

SMALL, LARGE = 1 << 28, 1
TEXTS = [f"Document {n}\r\nhas {'—' * (n % 3)} café {n * n}\n" * (n % 5) + " " * (n % 2) for n in range(90)]
WORDS = [text for text in TEXTS if text.strip()]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(texts_on_disk, "PIECE", 700)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path_factory.mktemp("kept")))


def json_lines(path: Path, texts: list[str], name: str = "text") -> Path:
    lines = [json.dumps({"id": n, name: text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(texts)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join(lines).encode())
    return path


def parquet(path: Path, texts: list[str], name: str = "text", group: int = 17) -> Path:
    pq.write_table(pa.table({"id": range(len(texts)), name: texts}), path, row_group_size=group)
    return path


def nested(path: Path, texts: list[str]) -> Path:
    pq.write_table(pa.table({"page": [{"text": text, "id": 1} for text in texts]}), path, row_group_size=40)
    return path


def read_both(monkeypatch: pytest.MonkeyPatch, *sources: Path, names: list[str] | None = None) -> tuple[Rows, Rows]:
    found = []
    for least in (SMALL, LARGE):
        monkeypatch.setattr(texts_on_disk, "LARGE", least)
        found.append(read_documents([str(source) for source in sources], "text", names))
    assert not any_on_disk(found[0])
    assert all(isinstance(row.values, OnDisk) for row in found[1])
    return found[0], found[1]


MADE: dict[str, tuple[Callable[[Path], Path], list[str] | None]] = {
    "jsonl": (lambda folder: json_lines(folder / "a.jsonl", TEXTS), None),
    "ndjson": (lambda folder: json_lines(folder / "a.ndjson", TEXTS, "body"), ["body"]),
    "parquet": (lambda folder: parquet(folder / "a.parquet", TEXTS), None),
    "named": (lambda folder: parquet(folder / "a.parquet", TEXTS, "body", 1000), ["body"]),
    "nested": (lambda folder: nested(folder / "a.parquet", TEXTS), ["page.text"]),
}


@pytest.mark.parametrize("kind", MADE)
def test_rows_are_those_of_a_small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, names = MADE[kind]
    whole, rows = read_both(monkeypatch, make(tmp_path), names=names)
    assert [*rows] == [*whole]
    assert (rows.skipped, rows.blank, rows.columns) == (whole.skipped, whole.blank, whole.columns)
    assert len(rows.blank) == rows.skipped
    assert rows.skipped >= len(TEXTS) - len(WORDS)
    assert [row.values["text"] for row in rows] == WORDS
    assert [row_size(row) for row in rows] == [len(text.encode()) for text in WORDS]
    assert (dict(rows[3].values), rows[3].values.get("id"), "id" in rows[3].values) == ({"text": WORDS[3]}, None, False)


@pytest.mark.parametrize("kind", MADE)
def test_in_any_order_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("heedful.data.records.BATCH_ROWS", 7)  # several batches in a row group
    make, names = MADE[kind]
    _, rows = read_both(monkeypatch, make(tmp_path), names=names)
    order = random.Random(0).sample(range(len(WORDS)), len(WORDS))
    assert [rows[i].values["text"] for i in order] == [WORDS[i] for i in order]


def test_of_several_files_one_is_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [parquet(tmp_path / f"{n}.parquet", WORDS[n::3]) for n in range(3)]
    _, rows = read_both(monkeypatch, *files)
    assert [row.values["text"] for row in rows] == [text for n in range(3) for text in WORDS[n::3]]
    assert texts_on_disk._decoder.cache_info().currsize == 1
    assert rows[0].values["text"] == WORDS[0]


def test_a_folder_is_large_where_its_files_are_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    json_lines(folder / "a.jsonl", WORDS[:20])
    parquet(folder / "b.parquet", WORDS[20:40])
    json_lines(folder / "c.jsonl", WORDS, "other")
    (folder / "d.txt").write_text("".join(WORDS), newline="")
    (folder / "e.txt").write_text("a short text\n")
    (folder / "f.txt").write_text(" \n")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "g.csv").write_text("text\na cell\n")
    (folder / "h.txt.gz").write_bytes(gzip.compress(b"packed"))
    total = sum(os.path.getsize(path) for path in folder.iterdir() if path.suffix not in (".csv", ".gz"))
    tokenizer = Tokenizer.train(WORDS, 300, template="none")
    found = []
    for least, large in ((total + 1, False), (total, True)):
        monkeypatch.setattr(texts_on_disk, "LARGE", least)
        rows = read_documents([str(folder)], "text")
        assert any_on_disk(rows) is large
        assert rows.skipped == 19 + 4  # blank lines; no column, no words, no UTF-8, no text
        tokens, starts = token_stream(tokenizer, rows, [7], [5])
        found.append((tokens.tolist(), starts.tolist()))
    assert len(rows) > 46
    assert found[0] == found[1]
    kept = {Path(row.file).suffix for row in rows if not isinstance(row.values, OnDisk)}
    assert kept == {".csv", ".gz"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tokens_are_made_once_for_a_table_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, path = {"jsonl": json_lines, "parquet": parquet}[kind], tmp_path / f"a.{kind}"
    tokenizer = Tokenizer.train(WORDS, 300, template="none")
    make(path, WORDS)
    whole, rows = read_both(monkeypatch, path)
    expected, starts = token_stream(tokenizer, whole, [7], [5])
    found, places = token_stream(tokenizer, rows, [7], [5])
    assert isinstance(found, np.memmap)
    assert (found.tolist(), places.tolist()) == (expected.tolist(), starts.tolist())
    with monkeypatch.context() as patch:
        patch.setattr(texts_on_disk.TableOnDisk, "text", lambda *_: pytest.fail("read again"))
        assert token_stream(tokenizer, rows, [7], [5])[0].tolist() == expected.tolist()
        assert token_stream(tokenizer, read_both(monkeypatch, path)[1], [7], [5])[0].tolist() == expected.tolist()
    make(path, [text.replace("has", "had") for text in WORDS])
    with pytest.raises(HeedfulError, match=rf"a.{kind} changed during the run .*; start the run again"):
        token_stream(tokenizer, rows, [8], [5])
    assert token_stream(tokenizer, read_both(monkeypatch, path)[1], [7], [5])[0].tolist() != expected.tolist()


def test_the_last_documents_are_held_back_and_some_of_all_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rows = read_both(monkeypatch, parquet(tmp_path / "a.parquet", WORDS * 20))
    train, held = split_documents(rows, None, 0)
    assert [*train, *held] == [*rows]
    assert abs(sum(map(row_size, held)) - 4 * 700) <= max(map(row_size, rows)) / 2
    assert len(split_documents(rows, 0.25, 0)[1]) == round(0.25 * len(rows))
    with pytest.raises(HeedfulError, match="holding out 1 of 1 documents leaves none for training; give --valid FILE"):
        split_documents(Rows(rows[:1]), None, 0)
    some, every = sampled_documents(rows), sum(map(row_size, rows))
    assert every > 64 * 700
    assert 0.6 < sum(map(row_size, some)) / (64 * 700) < 1.5
    assert some[0] is rows[0]
    assert rows.index(some[-1]) > 0.95 * len(rows)


BROKEN = {
    "a.jsonl": ('{"text": "one"}\n{"text": 2}\n', "'text' is 2, but text is expected, in {path}:2;"),
    "b.jsonl": ('{"text": "one"}\n{"text": "two"\n', "broken JSON"),
    "c.jsonl": ('{"text": "one"}\n{"body": "two"}\n', "no column 'text' among 'body', in {path}:2;"),
    "d.jsonl": ('{"text": "a\\ud800"}\n', "'text' has half of a UTF-16 surrogate pair, in {path}:1;"),
    "e.txt": ("\n \n", "only blank or unreadable texts (1), in {path};"),
    "f.parquet": ("PAR1", "{path} is not a complete Parquet file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_errors_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    content, expected = BROKEN[name]
    (tmp_path / name).write_text(content)
    said = []
    for least in (SMALL, LARGE):
        monkeypatch.setattr(texts_on_disk, "LARGE", least)
        with pytest.raises(HeedfulError) as caught:
            read(tmp_path / name, {"text": "document"})
        said.append(str(caught.value))
    assert expected.replace("{path}", str(tmp_path / name)) in said[1]
    assert said[0] == said[1]


def test_null_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": ["one", None]}), tmp_path / "a.parquet")
    monkeypatch.setattr(texts_on_disk, "LARGE", LARGE)
    with pytest.raises(HeedfulError, match=r"'text' is null, but text is expected, in .*a.parquet:2;"):
        read(tmp_path / "a.parquet", {"text": "document"})


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_document_costs_little_and_its_text_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    texts = [f"{n} " + "word " * 200 for n in range(5000)]
    path = {"jsonl": json_lines, "parquet": parquet}[kind](tmp_path / f"a.{kind}", texts)
    monkeypatch.setattr(texts_on_disk, "LARGE", LARGE)
    read_documents([str(path)], "text")  # imports
    texts_on_disk._decoder.cache_clear()
    gc.collect()
    tracemalloc.start()
    rows = read_documents([str(path)], "text")
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / len(texts) < 300
    assert rows[7].values["text"] == texts[7]
    assert rows[7].values["text"] is not rows[7].values["text"]


def test_a_limit_counts_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "a.parquet", WORDS)
    monkeypatch.setattr(texts_on_disk, "LARGE", LARGE)
    kinds: dict[str, Kind] = {"text": "document"}
    assert [row.values["text"] for row in read(path, kinds, limit=3)] == WORDS[:3]


@pytest.mark.parametrize("task", ["text-generation", "fill-mask", "t5"])
def test_a_model_learns_from_them_as_from_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    folder, held = tmp_path / "shards", tmp_path / "held.jsonl"
    folder.mkdir()
    parquet(folder / "0.parquet", WORDS[:50])
    json_lines(folder / "1.jsonl", WORDS[50:])
    json_lines(held, WORDS[::7])
    small = {
        "text-generation": ["--preset=gpt-micro", "--model.depth=1"],
        "fill-mask": ["--preset=bert-tiny", "--model.depth=1"],
        "t5": ["--preset=transformer-tiny", "--masking.probability=0.3"],
    }[task]
    run = ["train", task.replace("t5", "fill-mask"), "--train", str(folder), "--valid", str(held), *small]
    run += ["--model.dim=16", "--model.heads=2", "--model.ff-dim=16", "--tokenizer.size=400", "--data.max-length=16"]
    run += ["--max-steps=4", "--training.log-every=1", "--training.batch-tokens=64"]
    for name, least in (("whole", SMALL), ("disk", LARGE)):
        monkeypatch.setattr(texts_on_disk, "LARGE", least)
        assert cli.main([*run, "--out", str(tmp_path / name)]) == 0
    assert "on disk in" in capsys.readouterr().out
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "disk")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    digests = [
        json.loads((tmp_path / name / "heedful.json").read_text())["data"]["sha256"] for name in ("whole", "disk")
    ]
    assert digests[0] == digests[1]
