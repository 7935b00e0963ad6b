"""Words with tags: CoNLL files as people have them, lists in JSON and Parquet, and every way these can be wrong."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.data import Row, Rows, read
from heedful.data.conll import line_of_word
from heedful.errors import HeedfulError

COLUMNS = {"words": "words", "tags": "tags"}
TWO = "in\tO\nParis\tB-LOC\n\nAnn\tB-PER\nLee\tI-PER\n"


def rows_of(path: Path | list[Path], **given: Any) -> Rows:
    return read(path, COLUMNS, **given)  # type: ignore[arg-type]


def written(folder: Path, text: str | bytes, name: str = "set.conll") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def plain(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(" ".join(row.values["words"]), " ".join(row.values["tags"]), row.line) for row in rows]


EXPECTED = [("in Paris", "O B-LOC", 1), ("Ann Lee", "B-PER I-PER", 4)]


# --------------------------------------------------------------------------------------------------------------- CoNLL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TWO, EXPECTED),
        (TWO.replace("\t", " "), EXPECTED),
        (TWO.replace("\t", "  \t").replace("\n\n", "\n \t \n"), EXPECTED),
        (TWO.replace("\n\n", "\n\t\n"), EXPECTED),
        (TWO.replace("\n", "\r\n"), EXPECTED),
        ("\ufeff" + TWO.strip(), EXPECTED),
        ("\n\n" + TWO + "\n\n\n", [(words, tags, line + 2) for words, tags, line in EXPECTED]),
        ("in IN x O\nParis NNP y B-LOC\n", EXPECTED[:1]),
        ("-DOCSTART- -X- O O\n\nin IN O O\nParis NNP O B-LOC\n", [("in Paris", "O B-LOC", 3)]),
        ("-DOCSTART- O\nin IN O O\n-DOCSTART-\nParis NNP O B-LOC\n", [("in", "O", 2), ("Paris", "B-LOC", 4)]),
        ("# id 7\n# text = in Paris\nin\tO\nParis\tB-LOC\n", [("in Paris", "O B-LOC", 3)]),
        ("# O\n1 B-NR\n\n#\tO\nyes\tO\n", [("# 1", "O B-NR", 1), ("# yes", "O O", 4)]),
        ("# a comment of five words\n# O\nx O\n", [("# x", "O O", 2)]),
        ("a\u00a0b O\n\u00a0\tO\n", [("a\u00a0b \u00a0", "O O", 1)]),
        ("New York\tB-LOC\n", [("New York", "B-LOC", 1)]),
        ("a\tO\t\nb\tO\t\n", [("a b", "O O", 1)]),
    ],
)
def test_columns_and_what_parts_sentences(text: str, expected: list[tuple[str, str, int]], tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path, text))
    assert plain(rows) == expected
    assert rows.columns == ("words", "tags")
    assert all(len(row.values["words"]) == len(row.values["tags"]) for row in rows)


@pytest.mark.parametrize(("name", "pack"), [("a.conll.gz", gzip.compress), ("b.txt.xz", lzma.compress), ("c", bytes)])
def test_packed_and_of_any_name(name: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    assert plain(rows_of(written(tmp_path, pack(TWO.encode()), name))) == EXPECTED


def test_other_columns_by_number_and_by_name(tmp_path: Path) -> None:
    four = written(tmp_path, "1 in IN O\n2 Paris NNP B-LOC\n")
    assert plain(rows_of(four, names=["2", "3"])) == [("in Paris", "IN NNP", 1)]
    headed = written(tmp_path, "nr\tform\tpos\n1\tin\tIN\n2\tParis\tNNP\n", "headed.tsv")
    rows = rows_of(headed, names=["form", "pos"])
    assert (plain(rows), rows.columns) == ([("in Paris", "IN NNP", 2)], ("form", "pos"))


def test_a_first_line_that_names_its_columns_is_a_header(tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path, "Word\tpos\tTag\nin\tP\tO\nParis\tN\tB-LOC\n"))
    assert (plain(rows), rows.columns) == ([("in Paris", "O B-LOC", 2)], ("Word", "Tag"))
    assert plain(rows_of(written(tmp_path, "word O\nTag O\n"))) == [("word Tag", "O O", 1)]
    assert [line_of_word(rows[0], place) for place in (0, 1)] == [2, 3]
    assert {line_of_word(Row({}, file, 2), 1) for file in ("a.jsonl", "a.conllu.gz")} == {2}


def test_conll_u(tmp_path: Path) -> None:
    lines = [
        "# sent_id = 1",
        "# text = vámonos al mar",
        "1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_",
        "2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_",
        "2.1\tx\tx\tX\t_\t_\t1\tobj\t_\t_",
        "",
        "# sent_id = 2",
        "1\tmar\tmar\tNOUN\tN\t_\t0\troot\t_\t_",
    ]
    path = written(tmp_path, "\n".join(lines), "es.conllu")
    assert plain(rows_of(path)) == [("vamos nos", "VERB PRON", 4), ("mar", "NOUN", 9)]
    assert plain(rows_of(path, names=["2", "8"]))[1] == ("mar", "root", 9)


def test_several_files_and_a_limit(tmp_path: Path) -> None:
    one, two = written(tmp_path, TWO), written(tmp_path, "x O\n", "other.txt")
    rows = rows_of([one, two])
    assert [(row.file, row.line) for row in rows] == [(str(one), 1), (str(one), 4), (str(two), 1)]
    assert plain(rows_of([one, two], limit=1)) == EXPECTED[:1]
    assert len(rows_of([two, one], limit=2)) == 2


def test_wnut_as_it_is_published(shared_data: Callable[[str], Path]) -> None:
    """Its training file has a lone tab on most lines between sentences."""
    counts = {"wnut17train.conll.xz": (3394, 62730), "emerging.dev.conll.xz": (1009, 15733)}
    for name, (sentences, words) in counts.items():
        path = shared_data(f"wnut17/{name}")
        rows = rows_of(path)
        assert (len(rows), sum(len(row.values["words"]) for row in rows)) == (sentences, words)
        with lzma.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")
        row = rows[1000]
        assert lines[row.line - 1] == f"{row.values['words'][0]}\t{row.values['tags'][0]}"
        assert not lines[row.line - 2].strip()
    assert Counter(tag for row in rows for tag in row.values["tags"])["B-person"] == 470


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            "a O\nb\n",
            None,
            r"^1 column, but line 1 has 2, in .*set\.conll:2; is the tag missing\? write one word, a tab",
        ),
        ("a O\nb x O\n", None, r"^3 columns, but line 1 has 2, in .*:2; write"),
        ("a\nb\n", None, r"^the word 'a' has no tag, in .*:1; write one word, a tab and its tag in each line"),
        ("a\tO\nb\t\n", None, r"^1 column, but line 1 has 2, in .*:2"),
        ("a\tO\n\tO\n", None, r"^the tag 'O' has no word, in .*:2"),
        ("a\tx\tO\nb\tx\tO\n", ["1", "4"], r"^3 columns, but column 4 is needed, in .*:1; .*--data\.columns 1,3"),
        ("a O\n", ["0", "2"], r"^2 columns, but column 0 is needed"),
        ("a O\n", ["word", "tag"], r"^no column 'word' among 'a', 'O', in .*:1; .*--data\.columns 1,2"),
        ("", None, r"^no sentences in .*set\.conll; write one word"),
        ("\n \t\n-DOCSTART- O\n", None, r"^no sentences in"),
        ("# only a comment\n", None, r"^no sentences in"),
        (b"a O\ncaf\xe9 O\n", None, r"^invalid UTF-8 .*:2; convert"),
        ("a O\n".encode("utf-16"), None, r"^the file is UTF-16, in .*:1"),
    ],
)
def test_wrong_lines(text: str | bytes, names: list[str] | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=message) as error:
        rows_of(written(tmp_path, text), names=names)
    assert "\n" not in str(error.value)


def test_wrong_sources(tmp_path: Path) -> None:
    for source, message in [
        (tmp_path, "is a folder, but a file is expected"),
        (tmp_path / "gone.conll", "no such file"),
        (written(tmp_path, "word,tag\na,O\n", "a.csv"), r"a\.csv is a table of cells, .* write one word, a tab"),
        (
            written(tmp_path, "[]", "a.json"),
            r"a\.json is one JSON document, .* write one object in each line, .* name it \.jsonl$",
        ),
        (
            written(tmp_path, '{"words": [], "tags": []}\n', "a.jsonl"),
            r"no sentences in .*a\.jsonl; write one object in each line: {",
        ),
        ([written(tmp_path, TWO), "builtin:digits"], "cannot be combined with other files; give it alone"),
    ]:
        with pytest.raises(HeedfulError, match=message):
            rows_of(source)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- lists

RECORDS = [{"id": "0", "tokens": ["in", "Paris"], "ner_tags": [0, 1]}, {"id": "1", "tokens": ["Ann"], "ner_tags": [0]}]


def lines(*records: Any) -> str:
    return "\n".join(json.dumps(record) for record in records)


def test_json_lines(tmp_path: Path) -> None:
    ours = [{"words": ["in", "Paris"], "tags": ["O", "B-LOC"]}, {"words": [], "tags": []}]
    rows = rows_of(written(tmp_path, lines(*ours) + "\n\n", "a.jsonl"))
    assert (plain(rows), rows.skipped, rows.columns) == ([("in Paris", "O B-LOC", 1)], 2, ("words", "tags"))
    rows = rows_of(written(tmp_path, lines(*RECORDS), "b.ndjson"))
    assert (plain(rows), rows.columns) == ([("in Paris", "0 1", 1), ("Ann", "0", 2)], ("tokens", "ner_tags"))
    nested = [{"x": {"w": ["a"]}, "pos": [" N "]}]
    rows = rows_of(written(tmp_path, lines(*nested), "c.jsonl"), names=["x.w", "pos"])
    assert plain(rows) == [("a", "N", 1)]


def test_words_and_tags_have_no_other_columns_beside_them(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"words": ["in"], "tags": ["O"], "intent": "go"}), "a.jsonl")
    message = r"read alone, but the task has the columns words, tags, intent; give them the kind 'texts'"
    with pytest.raises(HeedfulError, match=message):
        read(path, {"words": "words", "tags": "tags", "intent": "label"})
    rows = read(path, {"words": "texts", "tags": "texts", "intent": "label"})
    assert rows[0].values == {"words": ("in",), "tags": ("O",), "intent": "go"}


def test_parquet_names_its_tags(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    label = {"names": ["O", "B-LOC"], "_type": "ClassLabel"}
    features = {"tokens": {"feature": {"dtype": "string"}}, "ner_tags": {"feature": label, "_type": "Sequence"}}
    told = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = arrow.Table.from_pylist(RECORDS)
    parquet.write_table(table.replace_schema_metadata(told), tmp_path / "a.parquet")
    rows = rows_of(tmp_path / "a.parquet")
    assert plain(rows) == [("in Paris", "O B-LOC", 1), ("Ann", "O", 2)]
    parquet.write_table(table, tmp_path / "b.parquet")
    assert plain(rows_of(tmp_path / "b.parquet", names=["tokens", "ner_tags"]))[0] == ("in Paris", "0 1", 1)
    wrong = arrow.Table.from_pylist([{"tokens": ["a"], "ner_tags": [2]}])
    parquet.write_table(wrong.replace_schema_metadata(told), tmp_path / "c.parquet")
    with pytest.raises(
        HeedfulError, match=r"'ner_tags' holds 2, but the file has names only for the tags 0 to 1 \(O, B-LOC\)"
    ):
        rows_of(tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, r"^2 words, but 1 tag, in .*:2; write exactly one tag"),
        ({"words": "a b", "tags": ["O"]}, r"^'words' is \"a b\", but a list is expected, in .*:2"),
        (
            {"words": ["a"], "labels": ["O"]},
            r"^no column 'tags' among 'words', 'labels', in .*:2; .*columns words,labels$",
        ),
        (
            {"words": ["a"], "tag": "O"},
            r"^no column 'tags' among 'words', 'tag', in .*:2; write one object in each line: {",
        ),
        ({"words": [7], "tags": ["O"]}, r"^'words' holds 7, but a word is expected, in .*:2"),
        ({"words": [""], "tags": ["O"]}, r"^'words' holds \"\", but a word is expected"),
        ({"words": ["a"], "tags": [None]}, r"^'tags' holds null, but a tag is expected, in .*:2"),
        ({"words": ["a"], "tags": [True]}, r"^'tags' holds true"),
        ({"words": ["\ud800"], "tags": ["O"]}, r"^'words' has half of a UTF-16 surrogate pair, in .*:2"),
        (["a"], r"is not a JSON object, in .*:2"),
    ],
)
def test_wrong_lists(record: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, lines({"words": ["x"], "tags": ["O"]}, record), "a.jsonl")
    with pytest.raises(HeedfulError, match=message) as error:
        rows_of(path)
    assert "\n" not in str(error.value)
