"""Reading people's files: every format gives the same rows, and every way to be broken one line that helps."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from heedful.data import Kind, Row, Rows, read
from heedful.data.prediction_inputs import read_inputs
from heedful.data.text_files import LONGEST_ROW, raw_lines
from heedful.errors import HeedfulError

PAIR = ("source", "target")
# Characters at which str.splitlines breaks a line and a file does not.
PAIRS = [("Hello\u2028 \x0bthere", "Bon\x85jour"), ('a "quoted" word', "un « mot »"), ("three", "trois")]

Write = Callable[[str, str | bytes], str]


@pytest.mark.parametrize("name", ["long.tsv", "long.csv", "long.jsonl", "long.txt"])
def test_a_line_longer_than_any_example(name: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST_ROW >= 1 << 24
    monkeypatch.setattr(raw_lines, "__defaults__", (1000,))
    path = write(name, "text\n" * (not name.endswith("jsonl")) + json.dumps({"text": "a" * 990}) + "\n")
    message = said(path, ["text"])
    assert "the line has more than 1,000 bytes" in message
    assert name in message
    assert "split" in message


def values(rows: Rows) -> list[tuple[str, ...]]:
    return [tuple(row.values[column] for column in row.values) for row in rows]


def said(source: str | Sequence[str], columns: Sequence[str] = PAIR, **options: object) -> str:
    """The one line that reading says."""
    with pytest.raises(HeedfulError) as caught:
        read(source, columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "no remedy"
    return message


def tsv(pairs: Sequence[tuple[str, str]] = PAIRS) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def parquet(table: dict[str, list]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), sink)
    return sink.getvalue()


CSV = "source,target\n" + "".join(
    ",".join('"' + cell.replace('"', '""') + '"' for cell in pair) + "\n" for pair in PAIRS
)
JSONL = "".join(json.dumps({"id": 7, "target": target, "source": source}) + "\n" for source, target in PAIRS)
FILES: dict[str, str | bytes] = {
    "pairs.tsv": tsv(),
    "header.tsv": "id\ttarget\tsource\n" + "".join(f"7\t{target}\t{source}\n" for source, target in PAIRS),
    "pairs.csv": CSV,
    "pairs.jsonl": JSONL,
    "pairs.ndjson": JSONL,
    "pairs.parquet": parquet({"target": [b for _, b in PAIRS], "id": [1, 2, 3], "source": [a for a, _ in PAIRS]}),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", FILES)
def test_every_table_gives_the_same_rows(write: Write, name: str, packed: str) -> None:
    content = FILES[name]
    path = write(name + packed, PACK[packed](content if isinstance(content, bytes) else content.encode()))
    rows = read(path, PAIR)
    assert values(rows) == PAIRS
    headed = name in ("header.tsv", "pairs.csv")
    assert rows[1] == Row(dict(zip(PAIR, PAIRS[1], strict=True)), path, 3 if headed else 2)
    assert rows.columns == (("1", "2") if name == "pairs.tsv" else PAIR)
    assert rows.skipped == 0


@pytest.mark.parametrize("packed", PACK)
def test_parallel_files(write: Write, packed: str) -> None:
    sides = [
        write(name + packed, PACK[packed]("".join(pair[place] + "\n" for pair in PAIRS).encode()))
        for place, name in enumerate(("train.en", "train.fr"))
    ]
    rows = read(sides, PAIR)
    assert values(rows) == PAIRS
    assert (rows[2].file, rows[2].line) == (sides[0], 3)


def test_windows_line_ends_and_marks(write: Write) -> None:
    assert values(read(write("a.tsv", "\ufeffsource\ttarget\r\none\tun\r\n"), PAIR)) == [("one", "un")]
    assert values(read(write("a.csv", '\ufeffsource,target\r\n"one\r\nmore",un\r\n'), PAIR)) == [("one\r\nmore", "un")]
    assert values(read([write("a.en", "\ufeffone\r\n"), write("a.fr", "un")], PAIR)) == [("one", "un")]
    assert values(read(write("a.jsonl", b'\xef\xbb\xbf{"source": "one", "target": "un"}'), PAIR)) == [("one", "un")]


def test_one_column_is_a_row_a_line(write: Write) -> None:
    rows = read(write("text.txt", "one\n\n two\tparts \n"), ["text"])
    assert [(row.values["text"], row.line) for row in rows] == [("one", 1), (" two\tparts ", 3)]
    assert rows.skipped == 1
    assert values(read(write("test.en", "one\n"), ["source"])) == [("one",)]
    assert values(read(write("test.tsv", "one\tun\n"), ["source"])) == [("one",)]


class Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(tsv().encode()))
    rows = read("-", PAIR)
    assert values(rows) == PAIRS
    assert rows[0].file == "-"
    monkeypatch.setattr(sys, "stdin", Stdin(b"one\tun\n"))
    assert values(read("-", ["text"])) == [("one\tun",)]
    monkeypatch.setattr(sys, "stdin", Stdin(b"one\n"))
    assert "1 column, but column 2 is needed for 'target', in standard input:1" in said("-")


def test_rows_with_a_blank_side_are_skipped_and_counted(write: Write) -> None:
    rows = read([write("a.en", "one\n\nthree\n  \n"), write("a.fr", "un\ndeux\n \n\n")], PAIR)
    assert values(rows) == [("one", "un")]
    assert rows.skipped == 3
    rows = read(write("a.tsv", "\none\tun\n\ntwo\t\n"), PAIR)
    assert (values(rows), rows.skipped, rows[0].line) == ([("one", "un")], 3, 2)
    rows = read(write("a.csv", "\nsource,target\none,un\n,\n\n"), PAIR)
    assert (values(rows), rows.skipped, rows[0].line) == ([("one", "un")], 3, 3)
    rows = read(write("a.jsonl", '\n{"source": "one", "target": "un"}\n{"source": "", "target": "x"}\n'), PAIR)
    assert (values(rows), rows.skipped, rows[0].line) == ([("one", "un")], 2, 2)


def test_a_limit_stops_early(write: Write) -> None:
    assert values(read(write("a.tsv", tsv() + "broken\n"), PAIR, limit=2)) == PAIRS[:2]


def test_names_choose_columns(write: Write) -> None:
    table = "en,de,fr\none,eins,un\n"
    assert values(read(write("a.csv", table), PAIR, names=("fr", "de"))) == [("un", "eins")]
    assert values(read(write("b.csv", table.split("\n")[1]), PAIR, names=("3", "1"))) == [("un", "one")]
    rows = read(write("a.tsv", table.replace(",", "\t")), PAIR, names=("fr", "en"))
    assert values(rows) == [("un", "one")]
    assert rows.columns == ("fr", "en")
    nested = json.dumps({"translation": {"en": "one", "fr": "un"}, "a.b": "plain"})
    assert values(read(write("a.jsonl", nested), PAIR, names=("translation.en", "a.b"))) == [("one", "plain")]
    stored = write("a.parquet", parquet({"translation": [{"en": "one", "fr": "un"}]}))
    assert values(read(stored, PAIR, names=("translation.fr", "translation.en"))) == [("un", "one")]


def test_long_fields_of_csv(write: Write) -> None:
    long = "a" * 200_000
    assert values(read(write("a.csv", f"source,target\n{long},un\n"), PAIR)) == [(long, "un")]
    path = write("b.csv", f'source,target\none,un\n"{long},deux\nthree,trois\n')
    assert f"broken CSV (unexpected end of data), in {path}:3;" in said(path)


def test_a_header_with_blanks_around_its_names(write: Write) -> None:
    rows = read(write("a.csv", " source, target\n one,un\n"), PAIR)
    assert (values(rows), rows.columns) == ([(" one", "un")], PAIR)
    assert values(read(write("a.tsv", "en \t fr\none\tun\n"), PAIR, names=("fr", "en"))) == [("un", "one")]
    assert values(read(write("b.tsv", "en \tfr\none\tun\n"), PAIR, names=("en ", "fr"))) == [("one", "un")]
    scored = read(write("b.csv", "text, text_pair, score\na,b,2\n"), SCORED)
    assert scored[0].values == {"text": "a", "text_pair": "b", "score": 2.0}


def test_a_name_that_two_columns_have(write: Write) -> None:
    path = write("a.csv", "source,target, target\none,un,uno\n")
    assert said(path) == f"2 columns are called 'target', in {path}:1; give each column a different name"
    other = write("b.tsv", "source\ttarget\tid\tid\none\tun\t1\t2\n")  # nobody asks for these
    assert values(read(other, PAIR)) == [("one", "un")]


def test_columns_too_many_without_a_header(write: Write) -> None:
    path = write("a.tsv", "one\tun\tuno\ntwo\tdeux\tdos\n")
    told = f"3 columns without a header, but 2 are needed (source, target), in {path}:1; "
    assert said(path).startswith(told)
    assert "--data.columns 1,2" in said(path)
    assert values(read(path, PAIR, names=("2", "3"))) == [("un", "uno"), ("deux", "dos")]
    numbered = write("c.tsv", "1\tone\tun\n2\ttwo\tdeux\n")
    assert values(read(numbered, PAIR)) == [("one", "un"), ("two", "deux")]
    path = write("b.tsv", "a\tb\tc\n")
    assert said(path, SCORED).endswith("1,2, or with a third column: --data.columns 1,2,negative=3")
    assert read(path, SCORED, names=["1", "2", "negative=3"])[0].values["negative"] == "c"
    assert [given.input for given in read_inputs(path, {"text": "text", "text_pair": "text"})] == [
        {"text": "a", "text_pair": "b"}  # what is asked comes first, its answer may follow
    ]


def test_only_names_that_are_near_are_suggested(write: Write) -> None:
    path = write("a.csv", "content,target\none,un\n")
    assert "among 'content', 'target'" in said(path, ["text", "label"], names=("text", "label"))
    assert "did you mean" not in said(path, ["text", "label"], names=("text", "label"))
    slip = write("b.csv", "text,labl\na,b\n")
    assert "did you mean 'labl'?" in said(slip, ["text", "label"], names=("text", "label"))


def test_line_numbers_where_fields_run_over_lines(write: Write) -> None:
    path = write("a.csv", 'source,target\n"one\nmore",un\n"two",deux\n"a","b","c"\n')
    assert f"3 columns, but line 1 has 2, in {path}:5" in said(path)
    good = read(write("b.csv", 'source,target\n"one\nmore",un\ntwo,deux\n'), PAIR)
    assert [row.line for row in good] == [2, 4]


# What is wrong, with which columns, what is said of it. "{path}" is the file.
BROKEN: dict[str, tuple[str, str | bytes, str]] = {
    "empty": ("a.tsv", "", "no rows in {path}; give a file with source and target"),
    "empty csv": ("a.csv", "", "no rows in {path};"),
    "empty jsonl": ("a.jsonl", "", "no rows in {path};"),
    "empty parquet file": ("a.parquet", b"", "no rows in {path};"),
    "empty parquet table": ("a.parquet", parquet({"source": [], "target": []}), "no rows in {path};"),
    "blank lines": ("a.tsv", "\n \n", "only blank rows (2) in {path};"),
    "header alone": ("a.csv", "source,target\n", "no rows in {path};"),
    "binary": ("a.tsv", b"one\tun\n\x00\x01\tx\n", "the file has a NUL byte and is not text, in {path}:2;"),
    "an image": (
        "a.tsv",
        b"\x89PNG\r\n\x1a\n\0\0",
        "{path} is a PNG image, but text is expected; save its text as UTF-8",
    ),
    "a workbook": (
        "a.csv",
        b"PK\x03\x04\x14\0\n",
        "{path} is a ZIP archive, as Word and Excel write them, but text is",
    ),
    "utf-16": (
        "a.tsv",
        tsv().encode("utf-16"),
        "the file is UTF-16, in {path}:1; convert it: iconv -f UTF-16 -t UTF-8 {path}",
    ),
    "latin-1": (
        "a.tsv",
        "one\tun\ntwo\tâgé\n".encode("latin-1"),
        "invalid UTF-8 (byte 0xe2 at byte 5 of the line), in {path}:2; convert the file: iconv -f WINDOWS-1252",
    ),
    "latin-1 csv": ("a.csv", "source,target\nâ,b\n".encode("latin-1"), "invalid UTF-8 (byte 0xe2 at byte 1 of the"),
    "too few columns": ("a.tsv", "one\tun\ntwo\n", "1 column, but line 1 has 2, in {path}:2; correct this row"),
    "too many columns": ("a.tsv", "one\tun\ntwo\td\te\n", "3 columns, but line 1 has 2, in {path}:2;"),
    "one column": ("a.tsv", "one\ntwo\n", "1 column, but column 2 is needed for 'target', in {path}:1; separate the"),
    "csv without the names": (
        "a.csv",
        "en,fr,de\none,un,eins\ntwo,deux,zwei\n",
        "no column 'source' among 'en', 'fr', 'de', in {path}:1; 'source' and 'target' may be the columns 'en' "
        "or 'fr' or 'de'; name the columns: --data.columns en,fr, or by number without a header: --data.columns 1,2",
    ),
    "csv with a slip": (
        "a.csv",
        "sourse,number\na,1\nb,2\n",
        "in {path}:1; did you mean 'sourse'? no column has content that fits 'target'; name the columns",
    ),
    "open quote": ("a.csv", 'source,target\n"one,un\n', "broken CSV (unexpected end of data), in {path}:2;"),
    "broken json": (
        "a.jsonl",
        '{"source": "one", "target": "un"}\n{"source": "one",\n',
        "broken JSON (Expecting property name enclosed in double quotes: line 1 column 18 (char 17)), in {path}:2;",
    ),
    "deep json": ("a.jsonl", "[" * 100_000, "broken JSON ("),
    "no object": (
        "a.jsonl",
        '["one", "un"]\n',
        '["one", "un"] is not a JSON object, in {path}:1; write one object in each line',
    ),
    "missing key": (
        "a.jsonl",
        '{"source": "one", "target": "un"}\n{"source": "two", "goal": {"fr": "deux"}}\n',
        "no column 'target' among 'source', 'goal.fr', in {path}:2; name the columns: --data.columns source,goal.fr",
    ),
    "not text": ("a.jsonl", '{"source": "one", "target": 1}\n', "'target' is 1, but text is expected, in {path}:1;"),
    "null": ("a.jsonl", '{"source": null, "target": "a"}\n', "'source' is null, but text is expected, in {path}:1;"),
    "surrogate": (
        "a.jsonl",
        r'{"source": "\ud83d", "target": "a"}',
        "'source' has half of a UTF-16 surrogate pair, in {path}",
    ),
    "parquet: no text": (
        "a.parquet",
        parquet({"source": ["a"], "target": [None]}),
        "'target' is null, but text is expected",
    ),
    "parquet: columns": (
        "a.parquet",
        parquet({"en": ["a", "b"], "id": [7, 7]}),
        "no column 'source' among 'en', 'id', in {path}",
    ),
    "parquet: broken": ("a.parquet", b"PAR1 and no more", "{path} is not a complete Parquet file ("),
    "parquet: half": ("a.parquet", FILES["pairs.parquet"][:200], "{path} is not a complete Parquet file ("),
    "gz: half": (
        "a.tsv.gz",
        gzip.compress(tsv().encode() * 99, mtime=0)[:60],
        "{path} is incomplete: it ends too early; copy or",
    ),
    "xz: half": (
        "a.tsv.xz",
        lzma.compress(tsv().encode() * 99)[:80],
        "{path} is incomplete: it ends too early; copy or",
    ),
    "zst: half": (
        "a.tsv.zst",
        PACK[".zst"](tsv().encode() * 99)[:-9],
        "{path} is incomplete: it ends too early; copy or",
    ),
    "gz: other": ("a.tsv.gz", b"plain text\n", "{path} is not a complete .gz file (Not a gzipped file"),
    "gz: rotten": (
        "a.tsv.gz",
        gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 20,
        "{path} is not a complete .gz file (Error -3",
    ),
    "xz: other": ("a.tsv.xz", b"plain text\n", "{path} is not a complete .xz file (Input format not"),
    "zst: other": ("a.tsv.zst", b"plain text\n", "{path} is not a complete .zst file ("),
    "unknown extension": (
        "a.xlsx",
        "x",
        "unknown extension '.xlsx', and its lines have no columns, in {path}; give one table (.tsv, .csv, .jsonl",
    ),
    "no extension": ("pairs", "x", "no extension, and its lines have no columns, in {path}; give one table"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_errors(write: Write, case: str) -> None:
    name, content, expected = BROKEN[case]
    path = write(name, content)
    assert expected.replace("{path}", path) in said(path)


def test_explicit_names_that_are_not_there(write: Write) -> None:
    path = write("a.tsv", "english\tfrench\none\tun\n")
    message = said(path, names=("english", "frensh"))
    assert f"no column 'frensh' among 'english', 'french', in {path}:1; did you mean 'french'?" in message
    message = said(path, names=("1", "3"))
    assert f"2 columns, but column 3 is needed for 'target', in {path}:1;" in message
    path = write("a.jsonl", '{"translation": {"en": "one", "fr": "un"}}')
    assert "did you mean 'translation.fr'?" in said(path, names=("translation.en", "translation.fx"))


@pytest.mark.parametrize(
    ("names", "suggested"),
    [
        (("complaints", "team"), "complaint,team"),
        (("complaint", "teams"), "complaint,team"),
        (("ticket  id", "team"), "'ticket id,team'"),
        (("nothing", "team"), "SOURCE,team"),
    ],
)
def test_the_given_names_are_suggested_again_with_the_unknown_one_corrected(
    write: Write, names: tuple[str, str], suggested: str
) -> None:
    path = write("a.csv", "ticket id,complaint,team\n1,late,mail\n")
    assert said(path, names=names).endswith(f"name the columns: --data.columns {suggested}")


def test_numbers_are_those_of_the_suggested_columns(write: Write) -> None:
    path = write("a.csv", "no,en,fr,de\n2,one,un,eins\n3,two,deux,zwei\n")
    expected = "--data.columns en,fr, or by number without a header: --data.columns 2,3"
    assert said(path).endswith(f"name the columns: {expected}")


def test_names_must_be_as_many_as_columns(write: Write) -> None:
    message = said(write("a.tsv", tsv()), names=("1",))
    assert (
        message == "1 names (1) for 2 columns; give --data.columns one name for each of source, target, in that order"
    )


SCORED: dict[str, Kind] = {"text": "text", "text_pair": "text", "negative": "text?", "score": "number?"}


def test_one_column_alone_is_named(write: Write) -> None:
    cells = [("one", "un", "0.5"), ("two", "deux", "1")]
    table = "".join("\t".join(row) + "\n" for row in cells)
    expected = [("one", "un", 0.5), ("two", "deux", 1.0)]
    rows = read(write("a.tsv", "text\ttext_pair\tlikeness\n" + table), SCORED, names=["score=likeness"])
    assert values(rows) == expected
    assert [*rows[0].values] == ["text", "text_pair", "score"]
    assert rows.columns == ("text", "text_pair", "likeness")
    assert values(read(write("b.tsv", "a\tb\tc\n" + table), SCORED, names=["score=c", "a", "b"])) == expected
    assert values(read(write("c.tsv", table), SCORED, names=["1", "2", "score=3"])) == expected
    swapped = [(b, a) for a, b, _ in expected]
    assert values(read(write("d.tsv", table), SCORED, names=["text=2", "text_pair=1"])) == swapped
    records = "".join(json.dumps({"pair": {"a": a, "b": b}, "score": float(c)}) + "\n" for a, b, c in cells)
    names = ["text=pair.a", "text_pair=pair.b", "score=score"]
    assert values(read(write("e.jsonl", records), SCORED, names=names)) == expected
    odd = read(write("f.csv", "x=1,target\none,un\n"), PAIR, names=["x=1", "target"])  # no column of ours is called x
    assert values(odd) == [("one", "un")]


def test_columns_that_are_named_wrongly(write: Write) -> None:
    path = write("a.tsv", "one\tun\t1\n")
    two = "a column is named twice (score=3,score=2); name each column once"
    assert said(path, SCORED, names=["score=3", "score=2"]) == two.replace(",", ", ")
    told = said(path, SCORED, names=["1", "score=3"])
    assert told == "1 names (1) beside score=3; name each of text, text_pair, in that order, or none of them"
    told = said(path, SCORED, names=["1", "2", "3"])
    assert told.endswith("negative (optional), score (optional), in that order, or column=name for some of the columns")
    assert "no column 'text' among 'one', 'un', '1', in " in said(path, SCORED, names=["score=likeness"])


def test_prompts_are_named(write: Write) -> None:
    columns: dict[str, Kind] = {"text": "document", "prompt": "text?", "completion": "text?", "messages": "messages?"}
    path = write("a.csv", "asked,said\nWhy?,So.\n")
    assert read(path, columns, names=["completion=said", "prompt=asked"])[0].values == {
        "prompt": "Why?",
        "completion": "So.",
    }
    assert "names only the column 'prompt'; name both, prompt=... and completion=..." in said(
        path, columns, names=["prompt=a"]
    )
    text = write("a.txt", "Why?\n")
    told = said(text, columns, names=["prompt=a", "completion=b"])
    assert told == f"{text} is not a table with prompt and completion; leave --data.columns out"


def test_a_path_is_as_good_as_its_name(write: Write) -> None:
    assert values(read(Path(write("a.tsv", tsv())), PAIR)) == PAIRS


@pytest.mark.parametrize("source", ["", [], ["a.tsv", ""]])
def test_no_name_is_no_file(source: str | list[str]) -> None:
    assert said(source) == "the file name is empty; give a file, a folder, or a built-in set: builtin:NAME"


def test_refusals_of_the_system_are_errors_of_one_line(tmp_path: Path) -> None:
    path = f"{tmp_path}/{'x' * 300}.tsv"
    assert said(path) == f"{path} cannot be read (File name too long); correct this or give another file"


def test_missing_files_and_folders(write: Write, tmp_path: Path) -> None:
    write("train.en.gz", "")
    write("validation.tsv", "")
    assert f"no such file: {tmp_path}/train.en; did you mean '{tmp_path}/train.en.gz'?" in said(
        [f"{tmp_path}/train.en", f"{tmp_path}/train.fr"]
    )
    assert f"did you mean '{tmp_path}/validation.tsv'?" in said(f"{tmp_path}/valdation.tsv")
    assert f"check the path; {tmp_path} has no similar name" in said(f"{tmp_path}/x.tsv")
    assert f"there is no folder {tmp_path}/none either" in said(f"{tmp_path}/none/x.tsv")
    (tmp_path / "folder.tsv").mkdir()
    assert f"{tmp_path}/folder.tsv is a folder, but a file is expected; give" in said(f"{tmp_path}/folder.tsv")


def test_parallel_files_of_different_length(write: Write) -> None:
    english, french = write("a.en", "1\n2\n3\n4\n5\n"), write("a.fr", "1\n2\n3\n")
    message = said([english, french])
    assert f"({english} has 5 lines, {french} has 3 lines), in {english}:4;" in message
    assert f", in {english}:4;" in said([french, english])


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").symlink_to("gone.tsv")
    assert said(f"{tmp_path}/a.tsv") == f"{tmp_path}/a.tsv is a broken link, to 'gone.tsv'; correct or remove it"


def test_broken_lines_of_parallel_files(write: Write) -> None:
    french = write("a.fr", b"1\n\xe2\n")
    assert f"in {french}:2;" in said([write("a.en", "1\n2\n"), french])
    assert "no rows in " in said([write("b.en", ""), write("b.fr", "")])


def test_the_wrong_number_of_files(write: Write) -> None:
    paths = [write(name, "x\n") for name in ("a.en", "a.fr", "a.de")]
    assert "3 files for 2 columns (source, target); give one table" in said(paths)
    assert "2 files for 1 column (text); give one table" in said(paths[:2], ["text"])
    table = write("a.tsv", tsv())
    assert f"{table} is a table and cannot be combined with plain text files" in said([table, paths[0]])
    assert "'-' has all columns" in said([paths[0], "-"])
    assert "leave --data.columns out" in said(paths[:2], names=("en", "fr"))


@pytest.mark.parametrize(("library", "name"), [("zstandard", "a.tsv.zst"), ("pyarrow", "a.parquet")])
def test_a_missing_extra_names_its_install_line(
    write: Write, monkeypatch: pytest.MonkeyPatch, library: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.parquet", None)
    path = write(name, b"x")
    assert said(path) == f"reading {path} needs {library}; pip install 'heedful[data]'"


def test_several_compressed_frames_are_one_file(write: Write) -> None:
    path = write("a.tsv.zst", PACK[".zst"](b"one\tun\n") + PACK[".zst"](b"two\tdeux\n"))
    assert values(read(path, PAIR)) == [("one", "un"), ("two", "deux")]


def test_a_header_of_other_names_is_no_row(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    for header in ("sorce\ttraget", "txt\ttraget", "text\tlabel", "Sentence\tScore"):
        file.write_text(f"{header}\nthe cow\tla vache\n")
        assert values(read(file, ["source", "target"])) == [("the cow", "la vache")]
        assert len(read(file, ["source", "target"], names=["1", "2"])) == 2
    for header in ("english\tfrench", "en\tfr", "content\ttitle"):
        file.write_text(f"{header}\nthe cow\tla vache\n")
        assert read(file, ["source", "target"]).mapping == dict(zip(PAIR, header.split("\t"), strict=True))
    file.write_text("image\timage\nmessage\tmessage\n")  # words that two languages share
    assert len(read(file, ["source", "target"])) == 2
    file.write_text("text\nthe cow\n")  # a single word is a word, unless it is nearly what is wanted
    assert len(read(file, ["source"])) == 2


def test_parquet_of_inputs_may_call_its_words_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "asked.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"tokens": [["a", "b"], ["c"]], "id": [7, 8]}), path)
    found = [(one.input, one.row) for one in read_inputs(str(path), {"words": "words"}, whole=True)]
    assert [(words, row and row["id"]) for words, row in found] == [(["a", "b"], 7), (["c"], 8)]


def test_parquet_is_read_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, texts = tmp_path / "a.parquet", [f"text {n}" for n in range(1000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=300)
    monkeypatch.setattr("heedful.data.records.BATCH_BYTES", 1000)
    sizes = []

    class Counted(pyarrow.parquet.ParquetFile):
        def iter_batches(self, *arguments: object, **more: object):
            for batch in super().iter_batches(*arguments, **more):
                sizes.append(len(batch))
                yield batch

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    assert [row.values["text"] for row in read(path, ["text"])] == texts
    assert sum(sizes) == 1000
    assert max(sizes) < 200
