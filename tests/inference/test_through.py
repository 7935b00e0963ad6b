"""A file of inputs through a model: in order, in bounded memory, and gone on with after any end."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import logging
import lzma
import os
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fresh_process
import heedful
from heedful.data.prediction_inputs import Input, read_inputs
from heedful.errors import HeedfulError
from heedful.inference import input_blocks as blocks
from heedful.inference import predict_file as through
from heedful.inference.output_file import PartialFile
from heedful.inference.pipeline import Pipeline
from heedful.inference.predict_file import predict
from heedful.tasks.task import Prediction, Task
from heedful.util import progress
from heedful.util.input_warnings import CountWarning, InputWarning

log = logging.getLogger("heedful")


class Echo:
    """A task that turns texts around, and can be told when to stop."""

    name = "translation"
    options = frozenset({"seed", "batch_tokens"})
    input_columns = {"source": "text"}  # noqa: RUF012
    columns = property(lambda self: self.input_columns)
    for_options = Task.for_options

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []
        self.stops: Callable[[Sequence[Any]], None] = lambda inputs: None

    def predict(self, model: Any, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        if inputs:
            self.asked.append(list(inputs))
            self.stops(inputs)
        return [Prediction(one, str(one)[::-1], None) for one in inputs]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Echo:
    """The task that stands in for a model, in blocks of at most 8; its folder is ``model``."""
    task = Echo()
    model = SimpleNamespace(generation={}, kernels="plain", begin_call=lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(through, "pipeline", lambda *_, **__: Pipeline(task, model))  # type: ignore[arg-type]
    monkeypatch.setattr(through, "FIRST", 2)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return task


def lines(count: int) -> str:
    return "".join(f"line {n} of the file\n" for n in range(count))


def quietly(source: str, out: str | None = "y.jsonl", **given: Any) -> dict[str, Any]:
    return predict("model", source, out, quiet=True, **given)


def stopped(echo: Echo, after: int, source: str = "x.txt", **given: Any) -> None:
    """A call that ends in its block number ``after``, from 0."""
    calls = 0

    def stop(inputs: Sequence[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt

    echo.stops = stop
    with pytest.raises(KeyboardInterrupt):
        quietly(source, **given)
    echo.stops = lambda inputs: None


# ------------------------------------------------------------------------------------------------------------ in order


def test_each_line_has_its_answer(echo: Echo) -> None:
    Path("x.txt").write_text("ab\n\n  \ncd\u2028e\r\nlast")
    told = quietly("x.txt")
    assert [json.loads(line) for line in Path("y.jsonl").read_text().split("\n")[:-1]] == [
        {"input": text, "output": text[::-1], "score": None} for text in ("ab", "", "  ", "cd\u2028e", "last")
    ]
    assert echo.asked == [["ab", ""], ["  ", "cd\u2028e", "last"]]
    assert {name: told[name] for name in ("task", "in", "out", "inputs", "before")} == {
        "task": "translation",
        "in": "x.txt",
        "out": "y.jsonl",
        "inputs": 5,
        "before": 0,
    }
    assert sorted(path.name for path in Path().iterdir()) == ["model", "x.txt", "y.jsonl"]


def test_blocks_double_up_to_the_most(echo: Echo) -> None:
    Path("x.txt").write_text(lines(30))
    quietly("x.txt")
    assert list(map(len, echo.asked)) == [2, 4, 8, 8, 8]


def test_long_inputs_make_short_blocks(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_CHARACTERS", 50)
    Path("x.txt").write_text(lines(10))
    quietly("x.txt")
    assert list(map(len, echo.asked)) == [2, 3, 3, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", "source\tother\nfirst\tx\nsecond\ty\n"),
        ("bare.tsv", "first\tx\nsecond\ty\n"),
        ("x.csv", 'other,source\nx,first\ny,"second"\n'),
        ("x.jsonl", '{"source": "first", "target": "?"}\n{"source": "second"}\n'),
        ("x.en", "first\nsecond\n"),
    ],
)
@pytest.mark.parametrize("pack", ["", ".gz", ".xz", ".zst"])
def test_every_kind_of_file(echo: Echo, name: str, text: str, pack: str) -> None:
    if pack == ".zst":
        packed = pytest.importorskip("zstandard").ZstdCompressor().compress(text.encode())
    else:
        packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[pack](text.encode())
    Path(name + pack).write_bytes(packed)
    quietly(name + pack, "y.txt")
    assert Path("y.txt").read_text() == "tsrif\ndnoces\n"


def test_parquet_and_built_in_sets(echo: Echo) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    table = pyarrow.table({"id": [7, 8], "source": ["first", "second"]})
    parquet.write_table(table, "x.parquet")
    quietly("x.parquet")
    assert [json.loads(line)["id"] for line in Path("y.jsonl").read_text().splitlines()] == [7, 8]
    quietly("builtin:cldr-dates/en-de", "dates.txt")
    assert len(Path("dates.txt").read_text().splitlines()) == len(
        heedful.data.read("builtin:cldr-dates/en-de", ["source"], split="test")
    )


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_json_lines_keep_the_columns(echo: Echo) -> None:
    Path("x.jsonl").write_text('{"id": "a1", "source": "ab", "more": [1, {"a": null}]}\n\n{"source": "", "id": [3]}\n')
    quietly("x.jsonl")
    assert rows_of("y.jsonl") == [
        {"id": "a1", "source": "ab", "more": [1, {"a": None}], "output": "ba", "score": None},
        {"output": "", "score": None},
        {"source": "", "id": [3], "output": "", "score": None},
    ]


def test_a_table_gives_a_table(echo: Echo) -> None:
    content = 'id,source,note\n007,ab,"two\nlines, ""quoted"""\n8,"c\td",\n'
    Path("x.csv").write_text(content)
    quietly("x.csv", "y.csv")
    with Path("y.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["id", "source", "note", "output", "score"],
            ["007", "ab", 'two\nlines, "quoted"', "ba", ""],
            ["8", "c\td", "", "d\tc", ""],
        ]
    quietly("x.csv", "y.tsv")
    assert Path("y.tsv").read_text() == (
        'id\tsource\tnote\toutput\tscore\n007\tab\ttwo\\nlines, "quoted"\tba\t\n8\tc\\td\t\td\\tc\t\n'
    )
    assert [item.input for item in read_inputs("y.csv", {"source": "text"})] == ["ab", "c\td"]
    assert sorted(path.name for path in Path().iterdir()) == ["model", "x.csv", "y.csv", "y.tsv"]


def test_columns_of_the_same_name_stay(echo: Echo) -> None:
    Path("x.tsv").write_text("source\toutput\tscore\nab\tgold\t3\n")
    quietly("x.tsv", "y.csv")
    assert Path("y.csv").read_text() == "source,output,score,predicted_output,predicted_score\nab,gold,3,ba,\n"


@pytest.mark.parametrize("out", ["y.csv", "y.jsonl", "y.parquet"])
def test_a_second_prediction_stands_beside_the_first(echo: Echo, out: str) -> None:
    first, second = ({"output": "old", "predicted_output": text, "score": 1.0} for text in ("one", "two"))
    Path("x.jsonl").write_text(
        json.dumps({"source": "ab", **first}) + "\n" + json.dumps({"source": "c", **second}) + "\n"
    )
    source = "x.jsonl"
    if out == "y.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        quietly("x.jsonl", "x.parquet")
        table = parquet.read_table("x.parquet").drop(["predicted_output_2", "predicted_score"])
        parquet.write_table(table, "x.parquet")
        source = "x.parquet"
    quietly(source, out)
    if out == "y.parquet":
        rows = parquet.read_table(out).to_pylist()
    else:
        rows = rows_of(out) if out == "y.jsonl" else list(csv.DictReader(Path(out).read_text().splitlines()))
    assert [row["predicted_output"] for row in rows] == ["one", "two"]
    assert [row["predicted_output_2"] for row in rows] == ["ba", "c"]


def test_columns_of_one_name_are_both_kept(echo: Echo) -> None:
    Path("x.csv").write_text("source,x,x,,\nab,1,2,3,4\n")
    quietly("x.csv", "y.csv")
    assert Path("y.csv").read_text() == "source,x,x_3,,column_5,output,score\nab,1,2,3,4,ba,\n"
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table([["ab"], [1], [2]], names=["source", "x", "x"]), "x.parquet")
    with pytest.raises(HeedfulError, match=r"two columns are called 'x', in x.parquet; rename one"):
        quietly("x.parquet", "z.csv")


def test_a_carriage_return_is_quoted(echo: Echo) -> None:
    Path("x.jsonl").write_text(json.dumps({"source": "a\rb"}) + "\n")
    quietly("x.jsonl", "y.csv")
    assert Path("y.csv").read_bytes() == b'source,output,score\n"a\rb","b\ra",\n'
    assert [item.input for item in read_inputs("y.csv", {"source": "text"})] == ["a\rb"]


def test_a_finished_table_is_never_replaced_unasked(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.txt").write_text("ab\n")
    unlink = Path.unlink

    def stop(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(".part.json"):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            quietly("x.txt", "y.csv")
    Path("y.csv").write_text("changed by hand")
    with pytest.raises(HeedfulError, match=r"y.csv exists; --overwrite replaces it"):
        PartialFile("y.csv", json.loads(Path("y.csv.part.json").read_text())["facts"], {})
    assert Path("y.csv").read_text() == "changed by hand"


def test_rows_without_a_header_or_with_other_keys(echo: Echo) -> None:
    Path("x.csv").write_text("1,ab\n2,cd\n")
    quietly("x.csv", "y.csv", columns=["2"])
    assert Path("y.csv").read_text() == "column_1,source,output,score\n1,ab,ba,\n2,cd,dc,\n"
    Path("x.jsonl").write_text('{"source": "ab", "n": 1}\n{"source": "cd", "tags": ["a"], "n": null}\n')
    quietly("x.jsonl", "z.csv")
    assert Path("z.csv").read_text() == ('source,n,output,score,tags\nab,1,ba,,\ncd,,dc,,"[""a""]"\n')


def test_lines_of_text_give_a_table(echo: Echo) -> None:
    Path("x.txt").write_text("ab\n\ncd\n")
    quietly("x.txt", "y.csv")
    assert Path("y.csv").read_text() == "input,output,score\nab,ba,\n,,\ncd,dc,\n"


def test_a_table_is_continued(echo: Echo) -> None:
    Path("x.csv").write_text("source,note\n" + "".join(f'line {n},"a\nb"\n' for n in range(20)))
    stopped(echo, after=2, source="x.csv", out="y.csv")
    assert not Path("y.csv").exists()
    assert quietly("x.csv", "y.csv")["before"] == 6
    once = Path("y.csv").read_bytes()
    quietly("x.csv", "y.csv", overwrite=True)
    assert Path("y.csv").read_bytes() == once
    stopped(echo, after=2, source="x.csv", out="y.csv", overwrite=True)
    Path("y.csv").unlink()
    Path("x.csv").write_text(Path("x.csv").read_text().replace("a\nb", "c"))  # not what the model reads
    with pytest.raises(HeedfulError, match="different input"):
        quietly("x.csv", "y.csv")


def test_parquet_keeps_its_types(echo: Echo) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    day = datetime.date(2024, 2, 29)
    table = pyarrow.table(
        {
            "source": ["ab", "cd", None],
            "day": [day, None, day],
            "n": pyarrow.array([1, 2, 3], "int8"),
            "raw": [b"x"] * 3,
        }
    ).slice(0, 2)
    parquet.write_table(table, "x.parquet")
    quietly("x.parquet", "y.parquet")
    found = parquet.read_table("y.parquet")
    assert found.select(table.column_names).equals(table)
    assert found["output"].to_pylist() == ["ba", "dc"]
    assert found.column_names == [*table.column_names, "output", "score"]
    quietly("x.parquet", "y.jsonl")
    assert rows_of("y.jsonl")[0] == {"source": "ab", "day": "2024-02-29", "n": 1, "output": "ba", "score": None}


def test_parquet_of_other_tables(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("heedful.inference.output_file.TABLE_ROWS", 2)
    rows = [{"source": "ab", "late": None}, {"source": "b"}, {"source": "c"}, {"source": "d", "late": 1.5}]
    Path("x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quietly("x.jsonl", "y.parquet")
    assert parquet.read_table("y.parquet").to_pylist() == [
        {"source": row["source"], "late": row.get("late"), "output": str(row["source"])[::-1], "score": None}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("1", "2", "null", '"a"', "3"), "x.jsonl:4: .*one type in a column; correct the value, or"),
        (("1", '"a"'), "x.jsonl:2: "),
        (("{}", "{}"), "x.jsonl: .*no child field"),
        (("2", "18446744073709551616", "1"), "x.jsonl:2: .*too large"),
        ((r'"\ud800"', '"a"'), "x.jsonl:1: .*surrogates"),
        (("[1]", "[]", '["a"]'), "x.jsonl:3: "),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 4096])
def test_what_parquet_cannot_hold(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], message: str, rows: int
) -> None:
    """Known before the first prediction, however the rows lie in blocks."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("heedful.inference.output_file.TABLE_ROWS", rows)
    Path("x.jsonl").write_text("".join(f'{{"source": "ab", "n": {value}}}\n' for value in values))
    with pytest.raises(HeedfulError, match=message) as error:
        quietly("x.jsonl", "y.parquet")
    assert "y.parquet cannot hold column 'n': " in str(error.value)
    assert not echo.asked
    assert not list(Path().glob("y.*"))
    quietly("x.jsonl", "y.csv")
    assert [row.split(",")[0] for row in Path("y.csv").read_text().splitlines()] == ["source", *["ab"] * len(values)]


def test_what_parquet_cannot_hold_is_kept_as_json_lines(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that loses digits in the type of all rows is found when they are converted."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("heedful.inference.output_file.TABLE_ROWS", 1)
    Path("x.jsonl").write_text("".join(f'{{"source": "ab", "n": {number}}}\n' for number in (2**60 + 1, 1.5)))
    with pytest.raises(HeedfulError, match=r"y.parquet: .*; the predictions are in y.parquet.part, as JSON lines"):
        quietly("x.jsonl", "y.parquet")
    assert not Path("y.parquet").exists()
    assert [row["n"] for row in rows_of("y.parquet.part")] == [2**60 + 1, 1.5]


def test_a_prediction_that_parquet_cannot_hold_stops_a_call_that_json_lines_continue(echo: Echo) -> None:
    """Such as those of fill-mask with ``top_k``, of a text with one mask and one with two."""
    pytest.importorskip("pyarrow")
    Path("x.txt").write_text(lines(40))
    odd = lines(40).splitlines()[20]
    own = Echo.predict
    whole = [{"text": "a"}], [[{"text": "b"}]]

    def predict(model: Any, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        return [Prediction(one.input, whole[one.input == odd], None) for one in own(echo, model, inputs, **options)]

    echo.predict = predict  # type: ignore[method-assign]
    message = "x.txt:21: y.parquet cannot hold column .output.: .* the same command with --out y.jsonl continues"
    with pytest.raises(HeedfulError, match=message):
        quietly("x.txt", "y.parquet")
    asked = sum(map(len, echo.asked))
    assert 21 <= asked < 40
    assert not list(Path().glob("y.parquet*"))
    assert quietly("x.txt", "y.jsonl")["before"] == asked
    assert [row["output"] for row in rows_of("y.jsonl")] == [whole[n == 20] for n in range(40)]
    assert sum(map(len, echo.asked)) < 2 * 40
    with pytest.raises(HeedfulError, match=r"in y.parquet.part, as JSON lines: name another output"):
        quietly("x.txt", "y.parquet")  # y.jsonl exists
    assert len(rows_of("y.parquet.part")) == asked


def test_inputs_of_several_forms_are_refused_before_the_first_prediction(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a mixture, of which some have choices."""
    pytest.importorskip("pyarrow")
    inputs = [Input("ab", "m.toml:1"), Input({"source": "b", "choices": ["c", "d"]}, "m.toml:2")]
    monkeypatch.setattr(through, "read_inputs", lambda *_, **__: iter(inputs))
    with pytest.raises(HeedfulError, match=r"m.toml:2: y.parquet cannot hold column 'input'"):
        quietly("m.toml", "y.parquet")
    assert not echo.asked
    quietly("m.toml", "y.jsonl")


def test_parquet_needs_its_library(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.txt").write_text("ab\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(HeedfulError, match=r"writing y.parquet needs pyarrow; pip install 'heedful\[data\]'"):
        quietly("x.txt", "y.parquet")
    assert not echo.asked


def test_columns_by_other_names(echo: Echo) -> None:
    Path("x.jsonl").write_text('{"id": 1, "sentence": {"en": "ab"}}\n')
    quietly("x.jsonl", columns=["sentence.en"])
    assert rows_of("y.jsonl") == [{"id": 1, "sentence": {"en": "ab"}, "output": "ba", "score": None}]
    Path("x.csv").write_text("1,ab\n2,cd\n")
    quietly("x.csv", "y.txt", columns=["2"])
    assert Path("y.txt").read_text() == "ba\ndc\n"


def test_several_columns_become_a_mapping(echo: Echo) -> None:
    echo.input_columns = {"question": "text", "context": "text"}
    Path("x.jsonl").write_text('{"context": "c", "question": "q", "id": 5}\n\n')
    quietly("x.jsonl")
    assert echo.asked == [[{"question": "q", "context": "c"}, {"question": "", "context": ""}]]


@pytest.mark.parametrize("name", ["words", "tokens", "text"])
def test_words_are_called_as_files_call_them(echo: Echo, name: str) -> None:
    echo.input_columns = {"words": "words"}
    value = "a b" if name == "text" else ["a", "b"]
    Path("x.jsonl").write_text(json.dumps({name: value, "tags": ["X", "Y"]}) + "\n")
    quietly("x.jsonl")
    assert echo.asked == [[value]]


def test_messages_and_prompts_are_inputs(echo: Echo) -> None:
    echo.input_columns = {"text": "document"}
    talk = [{"role": "user", "content": "Hello"}]
    Path("x.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    quietly("x.jsonl")
    Path("x.jsonl").write_text(json.dumps({"prompt": "Hello", "completion": "Hi"}) + "\n")
    quietly("x.jsonl", overwrite=True)
    assert echo.asked == [[talk], ["Hello"]]


def test_plain_lines_and_half_characters(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Echo, "predict", lambda self, model, inputs, **_: [Prediction(one, "a\r\nb\ud800", 0.5) for one in inputs]
    )
    Path("x.txt").write_text("a\n")
    quietly("x.txt", "y.txt")
    assert Path("y.txt").read_bytes() == b"a\\r\\nb\\ud800\n"
    quietly("x.txt")
    assert json.loads(Path("y.jsonl").read_bytes()) == {"input": "a", "output": "a\r\nb\ud800", "score": 0.5}


def test_without_a_file_each_answer_is_shown(echo: Echo) -> None:
    Path("x.txt").write_text("ab\ncd\nef\n")
    seen: list[str] = []
    predict("model", "x.txt", show=seen.append)
    assert seen == ["ba", "dc", "fe"]
    seen.clear()
    predict("model", "x.txt", show=seen.append, as_json=True)
    assert json.loads(seen[2]) == {"input": "ef", "output": "fe", "score": None}


# --------------------------------------------------------------------------------------------------------- going on


def test_it_goes_on_after_any_byte(echo: Echo) -> None:
    """Cut anywhere in its last lines, at a block's end or in the middle of one, with more or less than was flushed."""
    Path("x.txt").write_text(lines(20))
    quietly("x.txt", "whole.jsonl")
    whole = Path("whole.jsonl").read_bytes()
    stopped(echo, after=2)
    part, beside = Path("y.jsonl.part"), Path("y.jsonl.part.json")
    written, told = part.read_bytes(), beside.read_bytes()
    assert whole.startswith(written)
    assert written.count(b"\n") == 6
    for end in (*range(len(written) - 150, len(written) + 1), 0, 1):
        part.write_bytes(written[:end])
        beside.write_bytes(told)
        quietly("x.txt")
        assert Path("y.jsonl").read_bytes() == whole
        assert not part.exists()
        assert not beside.exists()
        Path("y.jsonl").unlink()
    for end in (len(whole), len(whole) - 1):  # all was written, but for the name, or the last line's end
        part.write_bytes(whole[:end])
        beside.write_bytes(told)
        assert quietly("x.txt")["before"] == 20 - (end < len(whole))
        assert Path("y.jsonl").read_bytes() == whole
        Path("y.jsonl").unlink()


def test_a_block_is_asked_again_as_it_was(echo: Echo) -> None:
    Path("x.txt").write_text(lines(20))
    stopped(echo, after=2)
    part = Path("y.jsonl.part")
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:4]))
    asked = [*echo.asked]
    echo.asked.clear()
    told = quietly("x.txt")
    assert told["before"] == 4
    assert told["inputs"] == 20
    assert echo.asked[0] == asked[1]  # the four of the block, of which two were kept
    assert list(map(len, echo.asked)) == [4, 8, 6]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: Path("x.txt").write_text(lines(21)), "input"),
        (lambda: Path("model/config.json").write_text('{"a": 1}'), "model"),
        (lambda: Path("model/model.safetensors").write_bytes(b"other weights"), "model"),
        (lambda: None, "options"),
    ],
)
def test_nothing_is_mixed(echo: Echo, change: Callable[[], object], what: str) -> None:
    Path("x.txt").write_text(lines(20))
    stopped(echo, after=2)
    change()
    given = {"options": {"batch_tokens": 5}} if what == "options" else {}
    with pytest.raises(
        HeedfulError, match=rf"y.jsonl.part was begun with different {what}; add --overwrite to start again"
    ):
        quietly("x.txt", **given)
    quietly("x.txt", overwrite=True, **given)
    assert len(Path("y.jsonl").read_text().splitlines()) == 20 + (what == "input")


def test_existing_files_are_not_lost(echo: Echo) -> None:
    Path("x.txt").write_text(lines(20))
    quietly("x.txt")
    with pytest.raises(HeedfulError, match=r"y.jsonl exists; --overwrite replaces it"):
        quietly("x.txt")
    Path("part.jsonl.part").write_text("of somebody else's\n")
    with pytest.raises(HeedfulError, match=r"part.jsonl.part has no valid record \(.part.json\); add --overwrite"):
        quietly("x.txt", "part.jsonl")
    before = Path("y.jsonl").read_bytes()
    stopped(echo, after=1, overwrite=True)
    assert Path("y.jsonl").read_bytes() == before  # until the new one is whole
    quietly("x.txt")  # and this goes on with it
    assert Path("y.jsonl").read_bytes() == before
    assert not Path("y.jsonl.part").exists()


def test_only_one_writes(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with PartialFile(tmp_path / "y", {"a": 1}, {}) as first:
        first.add(["one"])
        with pytest.raises(HeedfulError, match=r"y is being written by another call"):
            PartialFile(tmp_path / "y", {"a": 1}, {})
    with PartialFile(tmp_path / "y", {"a": 1}, {}) as second:
        assert second.done == 1
        second.finish()
    assert (tmp_path / "y").read_text() == "one\n"


def test_standard_input_cannot_be_gone_on_with(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed() -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=__import__("io").BytesIO(lines(20).encode())))

    typed()
    stopped(echo, after=2, source="-")
    typed()
    with pytest.raises(HeedfulError, match="was begun with different input; add --overwrite"):
        quietly("-")
    typed()
    assert quietly("-", overwrite=True)["inputs"] == 20


SLOWLY = """
import sys, time, types
from pathlib import Path
from heedful.inference import input_blocks, predict_file
from heedful.inference.pipeline import Pipeline
from heedful.tasks.task import Prediction, Task
class Echo:
    name, options, input_columns = "translation", frozenset({"seed", "batch_tokens"}), {"source": "text"}
    columns, for_options = input_columns, Task.for_options
    def predict(self, model, inputs, **options):
        time.sleep(0.01 * len(inputs))
        return [Prediction(one, one[::-1], None) for one in inputs]
model = types.SimpleNamespace(generation={}, kernels="plain", begin_call=lambda: False)
predict_file.pipeline = lambda *_, **__: Pipeline(Echo(), model)
predict_file.FIRST = 2
input_blocks.BLOCK = 8
predict_file.predict("model", "x.txt", "y.jsonl", quiet=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_and_gone_on(echo: Echo) -> None:
    Path("x.txt").write_text(lines(400))
    quietly("x.txt", "whole.jsonl")
    part = Path("y.jsonl.part")
    with closing(fresh_process.Started(SLOWLY, env=os.environ)) as process:
        while process.poll() is None and not (part.exists() and part.stat().st_size > 2000):
            time.sleep(0.003)
        process.send_signal(signal.SIGKILL)
    assert 0 < part.stat().st_size < Path("whole.jsonl").stat().st_size
    told = quietly("x.txt")
    assert 0 < told["before"] < 400
    assert Path("y.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


# ------------------------------------------------------------------------------------------------------- wrong inputs


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"", "the file contains no inputs"),
        ("x.txt", b"one\ntw\xe7\n", r"invalid UTF-8 .*x.txt:2; convert"),
        ("x.txt", b"one\n\0\n", r"NUL byte.*x.txt:2"),
        ("x.jsonl", b'{"source": "a"}\n{"source"\n', r"broken JSON .*x.jsonl:2; write"),
        (
            "x.jsonl",
            b'{"source": "a"}\n{"source": 3}\n',
            r"'source' is 3, but text is expected, in x.jsonl:2; .*--columns",
        ),
        ("x.jsonl", b'{"source": "a"}\n{"source": null}\n', r"'source' is null, .*x.jsonl:2"),
        (
            "x.jsonl",
            b'{"soruce": 7}\n',
            r"'soruce' is 7, but text is expected, in x.jsonl:1; .*--columns",
        ),
        ("x.jsonl", b'{"source": "\\ud800"}\n', r"half of a UTF-16 surrogate pair, in x.jsonl:1"),
        ("x.tsv", b"source\tb\na\n", r"1 column, but line 1 has 2, in x.tsv:2"),
        ("x.csv", b"id\n7\n", r"no column 'source' .*x.csv:1; .*--columns SOURCE"),
        ("x.txt.gz", gzip.compress(b"a\nb\n", mtime=0)[:-6], r"x.txt.gz is incomplete"),
        ("x.conll", b"a B\n", r"x.conll has one word in each line; give text"),  # to which no words are wanted
        ("x.json", b'{"data": []}', r"x.json is one JSON document; write one object in each line, and name it .jsonl"),
    ],
)
def test_a_wrong_file(echo: Echo, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(HeedfulError, match=message) as caught:
        quietly(name)
    assert "\n" not in str(caught.value)
    assert echo.asked == []  # what is broken is said before the work begins
    assert sorted(path.name for path in Path().iterdir()) == ["model", name]


def test_files_that_are_none(echo: Echo) -> None:
    with pytest.raises(HeedfulError, match=r"no such file: x.txt"):
        quietly("x.txt")
    with pytest.raises(HeedfulError, match=r"model is a folder, but a file is expected"):
        quietly("model")
    Path("x.txt").write_text("a\n")
    with pytest.raises(HeedfulError, match=r"x.txt is plain text and has no columns; leave --columns out"):
        quietly("x.txt", columns=["a"])
    with pytest.raises(HeedfulError, match=r"2 names \(a,b\) for the columns source; give --columns"):
        quietly("x.txt", columns=["a", "b"])
    with pytest.raises(HeedfulError, match=r"y.xlsx: predictions cannot be written as .xlsx; name the file .jsonl"):
        quietly("x.txt", "y.xlsx")
    with pytest.raises(HeedfulError, match=r"option nothing has no effect for translation"):
        quietly("x.txt", options={"nothing": 1})


def test_an_error_of_the_task_names_the_line(echo: Echo) -> None:
    def refuse(inputs: Sequence[Any]) -> None:
        if any("17" in one for one in inputs):
            raise HeedfulError("this text is none; give another")

    echo.stops = refuse
    Path("x.txt").write_text(lines(30))
    with pytest.raises(HeedfulError, match=r"^this text is none; give another, in x.txt:18$"):
        quietly("x.txt")
    echo.stops = lambda inputs: None
    quietly("x.txt")  # and the answers before it are kept
    assert Path("y.jsonl").read_text().count("\n") == 30


def test_refused_inputs_leave_no_file(echo: Echo) -> None:
    def refuse(inputs: Sequence[Any]) -> None:
        raise HeedfulError("this text is none; give another")

    echo.stops = refuse
    Path("x.txt").write_text(lines(3))
    with pytest.raises(HeedfulError, match=r", in x.txt:1$"):
        quietly("x.txt")
    assert sorted(path.name for path in Path().iterdir()) == ["model", "x.txt"]


def test_warnings_name_the_line_or_are_added_up(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    def warn(inputs: Sequence[Any]) -> None:
        for place, one in enumerate(inputs):
            if "7" in one:
                log.warning(InputWarning(place, f"has {len(one):,} tokens"))
        text = "cut to 5 tokens (the model takes no more)"
        log.warning(CountWarning(len(inputs) // 2, len(inputs), text))

    echo.stops = warn
    Path("x.txt").write_text(lines(20))
    with caplog.at_level(logging.WARNING):
        quietly("x.txt")
    assert caplog.messages == [
        "x.txt:8 has 18 tokens",
        "x.txt:18 has 19 tokens",
        "10 of 20 inputs cut to 5 tokens (the model takes no more)",
    ]
    assert log.filters == []


def test_many_warnings_are_counted(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    echo.stops = lambda inputs: [log.warning(InputWarning(place, "is odd")) for place in range(len(inputs))] and None
    Path("x.txt").write_text(lines(70))
    with caplog.at_level(logging.WARNING):
        quietly("x.txt")
    assert caplog.messages[49:] == ["x.txt:50 is odd", "20 more warnings like these, not shown"]


# ------------------------------------------------------------------------------------------------------------- memory


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python held at a time for a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(
        Echo, "predict", lambda self, model, inputs, **_: [Prediction(one, one[:3], None) for one in inputs]
    )
    line = "many words " * 50 + "\n"
    Path("short.txt").write_text(line * 200)
    Path("long.txt").write_text(line * 4000)  # 2 MB
    quietly("short.txt", "short.jsonl")
    assert peak(lambda: quietly("long.txt")) < 2 * peak(lambda: quietly("short.txt", overwrite=True))


def test_a_packed_file_is_unpacked_as_it_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    small, large = tmp_path / "small.zst", tmp_path / "large.zst"
    random, pack = np.random.default_rng(0), zstandard.ZstdCompressor().compress
    digits = random.integers(48, 58, (20_000, 200), dtype=np.uint8)
    digits[:, -1] = 10
    small.write_bytes(pack(digits[:1000].tobytes()))
    large.write_bytes(pack(digits.tobytes()) + pack(b"last\n"))

    def read_it(path: Path) -> int:
        return sum(1 for _ in read_inputs(str(path), {"source": "text"}))

    assert read_it(large) == 20_001
    assert peak(lambda: read_it(large)) < 2 * peak(lambda: read_it(small))


def test_a_pipeline_holds_no_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Echo, "predict", lambda self, model, inputs, **_: [Prediction(one, one[:3], None) for one in inputs]
    )
    monkeypatch.setattr(blocks, "BLOCK", 64)
    pipe = Pipeline(Echo(), SimpleNamespace(generation={}, kernels="plain", begin_call=lambda: False))  # type: ignore[arg-type]

    def through_it(count: int) -> None:
        made = ("many words " * 50 + str(n) for n in range(count))
        assert sum(1 for _ in pipe(made)) == count

    through_it(10)
    assert peak(lambda: through_it(4000)) < 2 * peak(lambda: through_it(200))


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_has_plain_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    seen = StringIO()
    with progress.Progress(1000, 100, stream=seen) as shown:
        shown.tick(200)
        shown.note("a line")
    first, second = seen.getvalue().splitlines()
    assert first.startswith("200 of 1,000 inputs  ")
    assert first.endswith(" left")
    assert second == "a line"
    seen = Terminal()
    with progress.Progress(1000, stream=seen) as shown:
        shown.tick(1000)
        shown.bar.refresh()
    assert "1,000" in seen.getvalue()
    assert "inputs/s" in seen.getvalue()
    seen = StringIO()
    with progress.Progress(None, quiet=True, stream=seen) as shown:
        shown.tick(5)
        shown.note("a line")
    assert seen.getvalue() == ""
