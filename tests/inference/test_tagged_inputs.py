"""Inputs in the files that people have for learning: CoNLL for words, SQuAD's JSON for questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heedful.data import Kind
from heedful.data.prediction_inputs import read_inputs
from heedful.errors import HeedfulError

WORDS: dict[str, Kind] = {"words": "words"}
QUESTIONS: dict[str, Kind] = {"question": "text", "context": "text"}


def given(file: Path, kinds: dict[str, Kind], names: list[str] | None = None) -> list[tuple[Any, str, Any]]:
    return [
        (one.input, one.location.rpartition(":")[2], (one.row or {}).get("id"))
        for one in read_inputs(str(file), kinds, names, whole=True)
    ]


@pytest.mark.parametrize(
    ("name", "text", "names", "expected"),
    [
        ("a.conll", "Paris B-LOC\nis O\n\nBonn B-LOC\n", None, [(["Paris", "is"], "1"), (["Bonn"], "4")]),
        ("a.bio", "Paris\nis\n\n\nBonn\n", None, [(["Paris", "is"], "1"), (["Bonn"], "5")]),  # words alone
        ("a.iob2", "word\ttag\nParis\tO\n", None, [(["Paris"], "2")]),
        ("a.iob", "word\n", None, [(["word"], "1")]),  # of one column nothing says that it is a header
        ("a.conll", "1 Paris O\n2 is O\n", ["2"], [(["Paris", "is"], "1")]),
        ("a.conll", "n\tform\n1\tParis\n", ["form"], [(["Paris"], "2")]),
        ("a.conllu", "# text\n1-2\tdu\t_\t_\n1\tde\t_\tADP\n2\tle\t_\tDET\n", None, [(["de", "le"], "3")]),
        ("a.conll", "-DOCSTART- O\n\nParis O\n", None, [(["Paris"], "3")]),
    ],
)
def test_a_sentence_of_words_is_an_input(
    name: str, text: str, names: list[str] | None, expected: list[tuple[list[str], str]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert given(tmp_path / name, WORDS, names) == [(*one, None) for one in expected]


def test_a_question_of_squad_is_an_input(tmp_path: Path) -> None:
    qas = [{"id": "q1", "question": "Where?"}, {"question": "Who?", "answers": [{"text": "none of it"}]}]
    nested = {"data": [{"title": "t", "paragraphs": [{"context": "Ann sat there.", "qas": qas}]}]}
    (tmp_path / "set.json").write_text(json.dumps(nested, indent=1))
    assert given(tmp_path / "set.json", QUESTIONS) == [
        ({"question": "Where?", "context": "Ann sat there."}, "11", "q1"),
        ({"question": "Who?", "context": "Ann sat there."}, "14", None),
    ]
    (tmp_path / "flat.json").write_text(json.dumps([{"question": "Where?", "context": "There."}]))
    assert given(tmp_path / "flat.json", QUESTIONS) == [({"question": "Where?", "context": "There."}, "1", None)]


@pytest.mark.parametrize(
    ("name", "text", "kinds", "names", "message"),
    [
        ("a.conll", "Paris O\nis O O\n", WORDS, None, r"3 columns, but line 1 has 2, in .*a\.conll:2"),
        (
            "a.conll",
            "Paris O\n",
            WORDS,
            ["3"],
            r"2 columns, but column 3 is needed, in .*:1; choose other columns: --columns 1$",
        ),
        (
            "a.conll",
            "Paris O\n",
            WORDS,
            ["form"],
            r"no column 'form' .*:1; give the number of the word's column: --columns 1$",
        ),
        ("a.conll", "Paris O\n", {"source": "text"}, None, r"a\.conll has one word in each line; give text"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', QUESTIONS, None, r"no 'context' among 'qas', in .*:1"),
        (
            "a.json",
            '[{"question": 3, "context": "c"}]',
            QUESTIONS,
            None,
            r"'question' is 3, but text is expected, in .*:1",
        ),
        ("a.json", "[]", {"source": "text"}, None, r"a\.json is one JSON document; write one object in each line"),
        (
            "a.json",
            "[]",
            QUESTIONS,
            ["a", "b"],
            r"a\.json is one JSON document and has no columns; leave --col",
        ),
    ],
)
def test_wrong_files(
    name: str, text: str, kinds: dict[str, Kind], names: list[str] | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(HeedfulError, match=message):
        given(tmp_path / name, kinds, names)
