"""Questions and answers as people have them: SQuAD's JSON and tables, and every way in which they can be wrong."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from heedful.data import Rows, read
from heedful.data.rows import Kind, Span
from heedful.errors import HeedfulError

COLUMNS: dict[str, Kind] = {"question": "text", "context": "text", "answers": "answers"}
XQUAD = Path(__file__).parents[2].parent / "shared" / "data" / "xquad"
ROOMS = "The kitchen is in the cellar. Élan and the 東京 room are upstairs, in the loft."


def asked(question: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {
        "question": question,
        "id": f"id-{question}",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **more,
    }


def document(*questions: dict[str, Any], context: str = ROOMS, **more: Any) -> dict[str, Any]:
    return {
        "version": "1.1",
        "data": [{"title": "House", "paragraphs": [{"context": context, "qas": [*questions]}]}],
        **more,
    }


def put(folder: Path, name: str, content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(folder / name)


def plain(rows: Rows) -> list[tuple[str, tuple[Span, ...]]]:
    return [(row.values["question"], row.values["answers"]) for row in rows]


# ----------------------------------------------------------------------------------------------------------- SQuAD JSON


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_squad_one_with_several_answers(name: str, tmp_path: Path) -> None:
    where, room = ROOMS.index("the cellar"), ROOMS.index("東京")
    path = put(
        tmp_path,
        name,
        document(asked("Where?", ("the cellar", where), ("cellar", where + 4)), asked("Which?", ("東京 room ", room))),
    )
    rows = read(path, COLUMNS)
    assert plain(rows) == [
        ("Where?", (Span("the cellar", where), Span("cellar", where + 4))),
        ("Which?", (Span("東京 room", room),)),  # blanks at an end belong to no answer
    ]
    assert all(row.values["title"] == "House" and row.values["context"] == ROOMS for row in rows)
    assert rows.columns == ("question", "context", "answers")
    assert read(path, COLUMNS, limit=1) == rows[:1]


def test_squad_two_says_what_has_no_answer(tmp_path: Path) -> None:
    never = asked("Why?", is_impossible=True, plausible_answers=[{"text": "nonsense", "answer_start": 3}])
    odd = asked("How?", ("cellar", 3), is_impossible=True)  # wrong, and not to be read
    path = put(
        tmp_path, "two.json", document(asked("Where?", ("loft", ROOMS.index("loft")), is_impossible=False), never, odd)
    )
    assert [row.values["answers"] for row in read(path, COLUMNS)] == [(Span("loft", ROOMS.index("loft")),), (), ()]


def test_each_question_knows_its_line(tmp_path: Path) -> None:
    """Also where texts hold what looks like a key, where letters are escaped, and after CRLF and a byte order mark."""
    tricky = 'He said: "question": "answers" \\ "context": { and\nleft.'
    document_ = document(
        asked('Is "question": a key?', ("left", tricky.index("left"))), asked("Où?", ("He", 0)), context=tricky
    )
    document_["data"].append({"paragraphs": [{"context": "Ann is in.", "qas": [asked("Who?", ("Ann", 0))]}]})
    for text in (
        json.dumps(document_, indent=2),
        json.dumps(document_, indent=2, ensure_ascii=False),
        "\ufeff" + json.dumps(document_, indent=2).replace("\n", "\r\n"),
        json.dumps(document_),
    ):
        path = put(tmp_path, "lines.json", text)
        rows = read(path, COLUMNS)
        lines = text.splitlines() if "\r" not in text else text.split("\r\n")
        for row in rows:
            key = json.dumps(row.values["question"], ensure_ascii="\\u" in text)
            assert f'"question": {key}' in lines[row.line - 1]
        assert [row.values["question"] for row in rows] == ['Is "question": a key?', "Où?", "Who?"]
        assert rows[0].values["context"] == tricky
        assert "title" not in rows[2].values


def test_a_list_of_flat_records(tmp_path: Path) -> None:
    """As people write it themselves, and as the Hub's squad is turned into one file."""
    flat = [
        {"question": "Where?", "context": "In Rome.", "answers": {"text": ["Rome"], "answer_start": [3]}},
        {"question": "Who?", "context": "Ann, in Rome.", "answer": "Ann"},
    ]
    for content in (flat, {"version": 2, "data": flat}):
        rows = read(put(tmp_path, "flat.json", content), COLUMNS)
        assert plain(rows) == [("Where?", (Span("Rome", 3),)), ("Who?", (Span("Ann", 0),))]
        assert rows[0].line < rows[1].line


@pytest.mark.parametrize("language", ["en", "de"])
def test_xquad(language: str) -> None:
    path = XQUAD / f"xquad.{language}.json.xz"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    rows = read(str(path), COLUMNS)
    assert len(rows) == 1190
    assert len({row.values["context"] for row in rows}) == 240
    assert len({row.values["title"] for row in rows}) == 48
    for row in rows:
        (span,) = row.values["answers"]
        assert row.values["context"][span.start :].startswith(span.text)
    assert [row.line for row in rows] == sorted(row.line for row in rows)


# --------------------------------------------------------------------------------------------------------------- tables

HUB = {
    "id": "1",
    "title": "House",
    "context": ROOMS,
    "question": "Where?",
    "answers": {"text": ["the cellar"], "answer_start": [ROOMS.index("the cellar")]},
}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (HUB["answers"], ["the cellar"]),
        ({"text": [], "answer_start": []}, []),
        ({"text": ["loft", "the loft"]}, ["loft", "the loft"]),
        ([{"text": "loft", "answer_start": ROOMS.index("loft")}], ["loft"]),
        ("loft", ["loft"]),
        (["loft", ""], ["loft"]),
        ([], []),
        (None, []),
        ("", []),
    ],
)
def test_json_lines_as_people_have_them(answers: Any, expected: list[str], tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", json.dumps({**HUB, "answers": answers}) + "\n\n")
    rows = read(path, COLUMNS)
    (found,) = (row.values["answers"] for row in rows)
    assert [span.text for span in found] == expected
    assert all(ROOMS[span.start :].startswith(span.text) for span in found)
    assert (rows.skipped, rows[0].values["title"]) == (1, "House")


def test_parquet_as_the_hub_has_it(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pylist([HUB, {**HUB, "answers": {"text": [], "answer_start": []}}])
    parquet.write_table(table, tmp_path / "squad.parquet")
    rows = read(str(tmp_path / "squad.parquet"), COLUMNS)
    assert [row.values["answers"] for row in rows] == [(Span("the cellar", ROOMS.index("the cellar")),), ()]
    assert [row.line for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "question\tcontext\tanswer\nWhere?\tIn Rome.\tRome\nWhy?\tIn Rome.\t\n"),
        ("b.tsv", "Where?\tIn Rome.\tRome\nWhy?\tIn Rome.\t\n"),
        ("c.tsv", "answers\tquestion\tcontext\r\nRome\tWhere?\tIn Rome.\r\n\tWhy?\tIn Rome.\r\n"),
        ("d.csv", '\ufeffquestion,context,answer,answer_start\nWhere?,"In Rome.",Rome,3\nWhy?,In Rome.,,\n'),
    ],
)
def test_flat_tables(name: str, content: str, tmp_path: Path) -> None:
    rows = read(put(tmp_path, name, content), COLUMNS)
    assert plain(rows) == [("Where?", (Span("Rome", 3),)), ("Why?", ())]
    assert rows[-1].line == content.count("\n")


def test_named_columns(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "q,text,gold\nWhere?,In Rome.,Rome\n")
    assert plain(read(path, COLUMNS, names=("q", "text", "gold"))) == [("Where?", (Span("Rome", 3),))]
    nested = put(tmp_path, "a.jsonl", '{"q": {"text": "Where?"}, "text": "In Rome.", "gold": ["Rome"]}')
    assert plain(read(nested, COLUMNS, names=("q.text", "text", "gold"))) == [("Where?", (Span("Rome", 3),))]


def test_an_answer_that_occurs_several_times_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(tmp_path, "a.tsv", "Who?\tAnn and Ann.\tAnn\nWho else?\tAnn and Bob.\tBob\n \tno question\tno\n")
    with caplog.at_level(logging.WARNING):
        rows = read(path, COLUMNS)
    assert [row.values["answers"][0].start for row in rows] == [0, 8]
    assert rows.skipped == 1
    assert caplog.messages == [
        "1 answer occurs several times in the context: the first occurrence counts; give answer_start to choose another"
    ]
    caplog.clear()
    start = put(
        tmp_path, "b.jsonl", '{"question": "Who?", "context": "Ann and Ann.", "answer": "Ann", "answer_start": 8}'
    )
    assert read(start, COLUMNS)[0].values["answers"] == (Span("Ann", 8),)
    assert not caplog.messages


def test_several_files(tmp_path: Path) -> None:
    first = put(tmp_path, "a.json", document(asked("Where?", ("loft", ROOMS.index("loft")))))
    second = put(tmp_path, "b.tsv", "Who?\tAnn.\tAnn\n")
    assert [(row.file, row.values["question"]) for row in read([first, second], COLUMNS)] == [
        (first, "Where?"),
        (second, "Who?"),
    ]
    assert len(read([first, second], COLUMNS, limit=1)) == 1


# ---------------------------------------------------------------------------------------------------------- wrong files


def wrong(path: str, message: str, **options: Any) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        read(path, COLUMNS, **options)
    assert "\n" not in str(caught.value)
    assert Path(path).name in str(caught.value)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            asked("Where?", ("cellar", 20)),
            r"the answer 'cellar' is not at 20 \(the context has 'e cell' there\), in .*/a\.json:11 "
            r"\(question 'id-Where\?'\); it is at 22$",
        ),
        (asked("Where?", ("the", 5)), r"a\.json:11 \(.*\); it is at 18 \(and at 39, 68\)$"),
        (
            asked("Where?", ("cellar", 900)),
            r"is not at 900 \(the context ends at 77\), in .*; it is at 22$",
        ),
        (asked("Where?", ("CELLAR", 22)), r"; write it as in the context, 'cellar', at 22$"),
        (asked("Where?", ("garden", 22)), r"; write the answer exactly as in the context"),
        (asked("Where?", ("cellar", -1)), r"answer_start is -1, in .*a\.json:11; give the number of"),
        ({"question": "Where?", "answers": [{"text": 3}]}, r"answers are \[\{\"text\": 3\}\], in .*a\.json:11; write "),
        (
            {"question": "Where?", "id": "7"},
            r"no 'answers' among 'question', 'id', in .*a\.json:11 \(question '7'\); write",
        ),
        (
            {"question": 5, "answers": []},
            r"'question' is 5, but text is expected, in .*a\.json:11; write it as a string",
        ),
    ],
)
def test_wrong_questions(question: dict[str, Any], message: str, tmp_path: Path) -> None:
    wrong(put(tmp_path, "a.json", document(question)), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"data": [\n{"title": "x",\n}]}',
            r"broken JSON \(.*, at character \d+\), in .*a\.json:[23]; correct it there",
        ),
        ("[" * 100_000, r"(lists are nested too deeply|broken JSON), .*in .*a\.json"),
        (
            '{"a": 1}\n{"a": 2}',
            r"broken JSON \(Extra data, .*a\.json:2; .*; if the file has one object in each line, name it \.jsonl$",
        ),
        ("\n", r"a\.json is empty; give SQuAD's JSON: "),
        ("{}", r"^no list 'data', in .*a\.json:1; SQuAD's JSON is "),
        ('{"version": 2, "rows": []}', r"no list 'data' among 'version', 'rows', in .*a\.json:1; SQuAD's JSON is "),
        ("3", r"no object, in .*a\.json:1; SQuAD's JSON is "),
        ('{"data": []}', r"no questions in .*a\.json; give a file with question, context and answers$"),
        ('{"data": [\n3]}', r"an article is 3, not an object, in .*a\.json:1; "),
        ('{"data": [\n{"paragraphs": 3}]}', r"'paragraphs' is 3, not a list of objects, in .*a\.json:2; "),
        ('{"data": [{"paragraphs": [\n{"qas": []}]}]}', r"no 'context' among 'qas', in .*a\.json:2; write "),
        ('{"data": [{"paragraphs": [\n\n{"context": ""}]}]}', r"no 'qas' among 'context', in .*a\.json:3; write "),
        (document(asked("Where?"), context=" \n"), r"the context is empty, in .*a\.json:11 \(question 'id-Where\?'\);"),
        (document(asked("Where?"), context=None), r"'context' is null, but text is expected, in .*a\.json:11"),
        (document(asked(" ")), r"only blank rows \(1\) in .*a\.json"),
    ],
)
def test_wrong_documents(content: Any, message: str, tmp_path: Path) -> None:
    wrong(put(tmp_path, "a.json", content), message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "Where?\tIn Rome.\tPisa\n",
            r"the answer 'Pisa' is not in the context, in .*a\.tsv:1; write the answer",
        ),
        ("a.tsv", "Where?\tIn Rome.\trome\n", r"in .*a\.tsv:1; write it as in the context, 'Rome', at 3$"),
        ("a.tsv", "Where?\tIn Rome.\tRome\nWhy?\t \tRome\n", r"the context is empty, in .*a\.tsv:2; give the text"),
        ("a.tsv", "Where?\tIn Rome.\n", r"2 columns, but column 3 is needed for 'answers', in .*a\.tsv:1; "),
        (
            "a.csv",
            "question,text,answer\nWhere?,7,x\n",
            r"no column 'context' among 'question', 'text', 'answer', in .*:1",
        ),
        (
            "a.csv",
            "question,context\nWhere?,x\n",
            r"no column 'answers' among 'question', 'context', in .*a\.csv:1; write question, context and answer",
        ),
        (
            "a.csv",
            "question;context;answer\nQ;c;d\n",
            r"the answer 'd' is not in the context, in .*a\.csv:2",
        ),
        ("a.jsonl", '{"question": "Q"}\n', r"no column 'context' among 'question', in .*a\.jsonl:1"),
        (
            "a.jsonl",
            '{"question": "Q", "context": "c"}\n',
            r"no column 'answers' .*a\.jsonl:1; write {\"question\": \"\.\.\.\", .*\"answer_start\": \[0\]}}$",
        ),
        ("a.jsonl", '{"data": []}\n', r"no column .*a\.jsonl:1; SQuAD's own JSON ends in \.json: rename it$"),
        (
            "a.jsonl",
            '{"question": "Q", "context": "c", "answers": "c"}\n{',
            r"broken JSON .*a\.jsonl:2; write one complete",
        ),
        (
            "a.jsonl",
            '{"question": "Q", "context": "c", "answers": {"text": ["c"], "answer_start": []}}',
            r"the answers are .*, in .*a\.jsonl:1; write .*, two lists of equal length, or only the texts$",
        ),
        (
            "a.jsonl",
            '{"question": "Q", "context": "c", "answers": {"text": ["c"], "answer_start": ["x"]}}',
            r"answer_start is \"x\", in .*a\.jsonl:1; give the number of characters before the answer, 0 or more$",
        ),
        (
            "a.jsonl",
            '{"question": "Q", "context": "\\ud800", "answer": ""}',
            r"half of a UTF-16 surrogate pair, in .*a\.jsonl:1",
        ),
        ("a.txt", "Where?", r"unknown extension '\.txt', in .*a\.txt; give SQuAD's \.json, or a table"),
        ("a", "Where?", r"no extension, in .*/a; give SQuAD's \.json, or a table"),
    ],
)
def test_wrong_tables(name: str, content: str, message: str, tmp_path: Path) -> None:
    wrong(put(tmp_path, name, content), message)


def test_names_are_not_for_squads_own_json_and_bytes_are_not_text(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", document(asked("Where?")))
    wrong(
        path,
        r"a\.json is SQuAD's JSON, whose keys are fixed; leave --data\.columns out",
        names=("a", "b", "c"),
    )
    (tmp_path / "b.json").write_bytes(b'{"data": [\n"\xe9"]}')
    wrong(str(tmp_path / "b.json"), r"invalid UTF-8 \(byte 0xe9 at byte 2 of the line\), in .*b\.json:2")
    wrong(str(tmp_path / "c.json"), r"no such file: .*c\.json; ")


def test_records_without_a_context_are_shown_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "Who?", "answers": {"text": ["cow"], "answer_start": [4]}}\n')
    with pytest.raises(HeedfulError, match=r"no column 'context' among .*a\.jsonl:1; write {\"question\": "):
        read(file, {"question": "text", "context": "text", "answers": "answers"})
