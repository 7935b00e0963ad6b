"""Labels and optional columns: the same names whatever the file, and what is no label said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from heedful.data import Kind, Rows, read
from heedful.errors import HeedfulError

ONE: dict[str, Kind] = {"text": "text", "label": "label"}
PAIR: dict[str, Kind] = {"text": "text", "text_pair": "text?", "label": "label"}

Write = Callable[[str, str | bytes], str]


def labels(rows: Rows) -> list[object]:
    return [row.values["label"] for row in rows]


def jsonl(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def parquet(table: dict[str, list], features: dict[str, object] | None = None) -> bytes:
    made = pyarrow.table(table)
    if features is not None:
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    sink = BytesIO()
    pyarrow.parquet.write_table(made, sink)
    return sink.getvalue()


def said(source: str | Sequence[str], columns: dict[str, Kind] = ONE, **options: object) -> str:
    with pytest.raises(HeedfulError) as caught:
        read(source, columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "no remedy"
    return message


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "good\tyes\nbad\t no \n"),
        ("b.tsv", "label\ttext\nyes\tgood\nno\tbad\n"),
        ("a.csv", "text,label\ngood,yes\nbad, no\n"),
        ("a.jsonl", jsonl({"text": "good", "label": "yes"}, {"text": "bad", "label": "no "})),
        ("a.parquet", parquet({"label": ["yes", "no"], "text": ["good", "bad"]})),
    ],
)
def test_labels_are_names_without_blanks_around(write: Write, name: str, content: str | bytes) -> None:
    rows = read(write(name, content), ONE)
    assert [(row.values["text"], row.values["label"]) for row in rows] == [("good", "yes"), ("bad", "no")]


def test_plain_files_side_by_side(write: Write) -> None:
    assert labels(read([write("a.txt", "good\nbad\n"), write("a.label", "yes \nno\n")], ONE)) == ["yes", "no"]


def test_numbers_and_booleans_are_written_out(write: Write) -> None:
    assert labels(read(write("a.jsonl", jsonl(*({"text": "x", "label": one} for one in (3, -1, 0)))), ONE)) == [
        "3",
        "-1",
        "0",
    ]
    assert labels(read(write("b.jsonl", jsonl(*({"text": "x", "label": one} for one in (True, False)))), ONE)) == [
        "true",
        "false",
    ]
    assert labels(read(write("a.parquet", parquet({"text": ["x", "y"], "label": [2, 10]})), ONE)) == ["2", "10"]


def test_numbers_of_the_hub_get_their_names(write: Write) -> None:
    names = {"names": ["negative", "positive"], "_type": "ClassLabel"}
    text = {"dtype": "string", "_type": "Value"}
    table = {"text": ["x", "y"], "label": [1, 0]}
    assert labels(read(write("a.parquet", parquet(table, {"text": text, "label": names})), ONE)) == [
        "positive",
        "negative",
    ]
    several = {"text": ["x", "y", "z"], "label": [[1, 0], [], [0]]}
    wanted = [("positive", "negative"), (), ("negative",)]
    for number, feature in enumerate(({"feature": names, "_type": "List"}, [names])):
        assert labels(read(write(f"{number}.parquet", parquet(several, {"label": feature})), ONE)) == wanted
    nested = parquet({"sentence": ["x"], "answer": [{"label": 1}]}, {"answer": {"label": names}})
    assert labels(read(write("n.parquet", nested), ONE, names=("sentence", "answer.label"))) == ["positive"]
    path = write("b.parquet", parquet({"text": ["x", "y"], "label": [1, -1]}, {"label": names}))
    assert (
        f"'label' is -1, but the file has names only for the labels 0 to 1 (negative, positive), in {path}:2;"
        in said(path)
    )
    unnamed = parquet(table, {"label": {"dtype": "int64", "_type": "Value"}})
    assert labels(read(write("c.parquet", unnamed), ONE)) == ["1", "0"]


@pytest.mark.parametrize("metadata", [b"no json", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}'])
def test_metadata_that_says_nothing_is_passed_over(write: Write, metadata: bytes) -> None:
    sink = BytesIO()
    made = pyarrow.table({"text": ["x"], "label": [1]}).replace_schema_metadata({b"huggingface": metadata})
    pyarrow.parquet.write_table(made, sink)
    assert labels(read(write("a.parquet", sink.getvalue()), ONE)) == ["1"]


def test_lists_are_several_labels_or_none(write: Write) -> None:
    path = write(
        "a.jsonl",
        jsonl(
            {"text": "x", "label": ["b", " a", "b"]}, {"text": "y", "label": []}, {"text": "z", "label": [7, True, ""]}
        ),
    )
    rows = read(path, ONE)
    assert labels(rows) == [("b", "a"), (), ("7", "true")]
    assert rows.skipped == 0


def test_a_separator_cuts_labels(write: Write) -> None:
    rows = read(write("a.tsv", "x\tb; a;b\ny\t\nz\t ; c\n"), ONE, separator=";")
    assert labels(rows) == [("b", "a"), (), ("c",)]
    assert labels(read(write("a.csv", 'label,text\n"b,a",x\n'), ONE, separator=",")) == [("b", "a")]
    assert labels(read([write("a.txt", "x\ny\n"), write("a.label", "a b\n\n")], ONE, separator=" ")) == [("a", "b"), ()]
    assert labels(read(write("a.jsonl", jsonl({"text": "x", "label": "a|b"})), ONE, separator="|")) == [("a", "b")]
    assert labels(read(write("b.tsv", "x\tb;a\n"), ONE)) == ["b;a"]


def test_a_blank_label_is_a_blank_row_where_each_row_has_one(write: Write) -> None:
    rows = read(write("a.tsv", "x\ta\ny\t \n\t\n"), ONE)
    assert (labels(rows), rows.skipped) == (["a"], 2)


LABELLED: dict[str, tuple[list[object], str]] = {
    "null": (["a", None], "'label' is null, but a label is expected, in {path}:2; write it as text or a whole number"),
    "not a number": ([float("nan")], "'label' is NaN, but a label is expected, in {path}:1;"),
    "record": ([{"a": 1}], "'label' is {\"a\": 1}, but a label is expected, in {path}:1;"),
    "null in a list": ([["a"], [None]], "'label' is null, but a label is expected, in {path}:2;"),
    "a list late": (["a", ["a"]], "'label' is a list, unlike in earlier rows, in {path}:2; write a list"),
    "a list at first": ([["a"], "a"], "'label' is not a list, unlike in earlier rows, in {path}:2;"),
    "surrogate": (["\ud83d"], "'label' has half of a UTF-16 surrogate pair, in {path}:1;"),
}


@pytest.mark.parametrize("case", LABELLED)
def test_a_value_that_is_no_label_is_an_error(write: Write, case: str) -> None:
    found, expected = LABELLED[case]
    path = write("a.jsonl", jsonl(*({"text": "x", "label": label} for label in found)))
    assert expected.replace("{path}", path) in said(path)


def test_null_and_infinity_of_parquet_are_errors(write: Write) -> None:
    path = write("a.parquet", parquet({"text": ["x", "y"], "label": ["a", None]}))
    assert f"'label' is null, but a label is expected, in {path}:2;" in said(path)
    path = write("b.parquet", parquet({"text": ["x"], "label": [float("inf")]}))
    assert f"'label' is Infinity, but a label is expected, in {path}:1;" in said(path)


def test_a_separator_without_effect_is_refused(write: Write) -> None:
    path = write("a.tsv", "x\ta\n")
    assert "the label separator is empty;" in said(path, separator="")
    assert "--data.label-separator has no effect on text, other; leave it out" in said(
        path, {"text": "text", "other": "text"}, separator=","
    )
    assert "has no effect on builtin:cldr-languages" in said("builtin:cldr-languages", separator=",")


# ---------------------------------------------------------------------------------------------------- optional columns


def test_an_optional_column_is_taken_where_it_is_there(write: Write) -> None:
    both = [("x", "y", "a")]
    with_pair = {
        "a.tsv": "label\ttext\ttext_pair\na\tx\ty\n",
        "a.csv": "text_pair,text,label\ny,x,a\n",
        "a.jsonl": jsonl({"text": "x", "label": "a", "text_pair": "y"}),
        "a.parquet": parquet({"label": ["a"], "id": [1], "text_pair": ["y"], "text": ["x"]}),
    }
    for name, content in with_pair.items():
        rows = read(write(name, content), PAIR)
        assert [tuple(row.values[column] for column in PAIR) for row in rows] == both
        assert rows.columns == tuple(PAIR)
    without = {
        "b.tsv": "label\ttext\na\tx\n",
        "b.csv": "id,text,label\n1,x,a\n",
        "b.jsonl": jsonl({"text": "x", "label": "a", "pair": "y"}),
        "b.parquet": parquet({"label": ["a"], "text": ["x"]}),
    }
    for name, content in without.items():
        rows = read(write(name, content), PAIR)
        assert [row.values for row in rows] == [{"text": "x", "label": "a"}], name
    plain = [write(name, text) for name, text in (("x.txt", "x\n"), ("y.txt", "y\n"), ("z.txt", "a\n"))]
    assert read(plain, PAIR)[0].values == {"text": "x", "text_pair": "y", "label": "a"}
    assert read(plain[::2], PAIR)[0].values == {"text": "x", "label": "a"}


def test_names_for_all_columns_or_for_the_needed_ones(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("a.csv", "one,two,three,text_pair\nx,y,a,z\n")
    assert read(path, PAIR, names=("one", "two", "three"))[0].values == {"text": "x", "text_pair": "y", "label": "a"}
    rows = read(path, PAIR, names=("one", "three"))
    assert rows[0].values == {"text": "x", "label": "a"}
    assert rows.columns == ("one", "three")
    message = said(path, PAIR, names=("one",))
    assert message.startswith(
        "1 names (one) for 3 columns; give --data.columns one name for each of text, text_pair (opt"
    )
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": BytesIO(b"a\tx\ty\n")}))
    assert read("-", PAIR, names=("2", "3", "1"))[0].values == {"text": "x", "text_pair": "y", "label": "a"}


def test_a_blank_optional_value_leaves_the_row_out(write: Write) -> None:
    rows = read(write("a.csv", "text,text_pair,label\nx,y,a\nx,,a\n"), PAIR)
    assert (len(rows), rows.skipped) == (1, 1)


def test_an_optional_key_that_comes_late_or_goes_is_an_error(write: Write) -> None:
    with_pair, without = {"text": "x", "text_pair": "y", "label": "a"}, {"text": "x", "label": "a"}
    path = write("a.jsonl", jsonl(without, without, with_pair))
    assert said(path, PAIR) == (
        f"the row has the key 'text_pair', which line 1 lacks, in {path}:3; write it in every row or in no row"
    )
    path = write("b.jsonl", jsonl(with_pair, without))
    assert f"no column 'text_pair' among 'text', 'label', in {path}:2;" in said(path, PAIR)


def test_a_header_with_other_names_is_no_example(write: Write) -> None:
    """The header that many published sets of sentences have."""
    path = write("train.tsv", "sentence\tlabel\na fine film\t1\n")
    assert read(path, ONE).mapping == {"text": "sentence", "label": "label"}
    assert labels(read(path, ONE, names=("sentence", "label"))) == ["1"]
    assert len(read(path, ONE, names=("1", "2"))) == 2


def test_one_column_where_two_are_wanted(write: Write) -> None:
    path = write("a.tsv", "only\n")
    assert f"1 column, but column 2 is needed for 'label', in {path}:1;" in said(path, PAIR)
    path = write("a.txt", "only\n")
    assert f"unknown extension '.txt', and its lines have no columns, in {path}; give one table" in said(path, PAIR)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder, but a file is expected; give one table (.tsv" in said(str(tmp_path))


def test_only_wanted_columns_of_parquet_are_decoded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    original = pyarrow.parquet.ParquetFile.iter_batches

    def iter_batches(self: object, *args: object, columns: object = None, **options: object) -> object:
        asked.append(columns)
        return original(self, *args, columns=columns, **options)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", iter_batches)
    path = write("a.parquet", parquet({"text": ["x"], "vector": [[0.5]], "label": ["a"]}))
    assert labels(read(path, ONE)) == ["a"]
    assert asked == [["label", "text"]]
