"""Columns are remembered or guessed by what they hold, forms of files recognised; what is unclear names candidates."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.data import Kind, read
from heedful.data.column_inference import orange_header
from heedful.data.file_formats import detect_format
from heedful.data.prediction_inputs import read_inputs
from heedful.errors import HeedfulError

CLASSES: dict[str, Kind] = {"text": "text", "text_pair": "text?", "label": "label"}
PAIR: dict[str, Kind] = {"source": "text", "target": "text"}
SUMMARY: dict[str, Kind] = {"text": "text", "summary": "text"}
QUESTIONS: dict[str, Kind] = {"question": "text", "context": "text", "answers": "answers"}
DATA = Path(__file__).parents[3] / "shared" / "data"
TEXTS = [f"the film of {day} was {how} and long enough" for day in ("Monday", "May", "noon") for how in ("good", "bad")]
MOODS = ["pos", "neg"] * 3

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_bytes(lzma.compress(content.encode()) if name.endswith(".xz") else content.encode())
        return str(path)

    return write


def table(*columns: list[str] | list[int], header: str = "", cut: str = ",") -> str:
    rows = [cut.join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


IDS = list(range(11, 17))
SAME = ["en"] * 6
GUESSES: dict[str, tuple[str, dict[str, Kind], dict[str, str]]] = {
    "id first": (table(IDS, TEXTS, MOODS, header="id,review,mood"), CLASSES, {"text": "review", "label": "mood"}),
    "constant": (table(SAME, MOODS, TEXTS, header="lang,y,body"), CLASSES, {"text": "body", "label": "y"}),
    "unnamed index": (table(IDS, TEXTS, MOODS, header=",body,kind"), CLASSES, {"text": "body", "label": "kind"}),
    "no header": (table(MOODS, TEXTS, IDS), CLASSES, {"text": "2", "label": "1"}),
    "whole numbers": (table(TEXTS, [1, 2, 1, 2, 1, 2], header="tweet,v"), CLASSES, {"text": "tweet", "label": "v"}),
    "codes": (
        table([f"tt-{n}" for n in IDS], TEXTS, MOODS, header="key,review,mood"),
        CLASSES,
        {"text": "review", "label": "mood"},
    ),
    "two labels, one called so": (
        table(TEXTS, ["web", "app"] * 3, MOODS, header="review,device,sentiment"),
        CLASSES,
        {"text": "review", "label": "sentiment"},
    ),
    "the longest text": (
        table([text[12:28] for text in TEXTS], TEXTS, MOODS, header="title,body,mood"),
        CLASSES,
        {"text": "body", "label": "mood"},
    ),
    "a pair": (
        table(TEXTS, TEXTS[::-1], MOODS, header="premise,hypothesis,mood"),
        CLASSES,
        {"text": "premise", "text_pair": "hypothesis", "label": "mood"},
    ),
    "capitals": (table(TEXTS, MOODS, header="Text,Label"), CLASSES, {"text": "Text", "label": "Label"}),
    "parallel": (table(IDS, TEXTS, TEXTS[::-1], header="id,en,fr"), PAIR, {"source": "en", "target": "fr"}),
    "summary": (
        table([text[8:20] for text in TEXTS], TEXTS, header="headline,body"),
        SUMMARY,
        {"text": "body", "summary": "headline"},
    ),
    "questions": (
        table([text[12:16] for text in TEXTS], [f"what is {n} of it" for n in IDS], TEXTS, header="a,q,passage"),
        QUESTIONS,
        {"question": "q", "context": "passage", "answers": "a"},
    ),
}


@pytest.mark.parametrize("case", GUESSES)
def test_columns_are_guessed_from_their_content(write: Write, case: str) -> None:
    content, columns, expected = GUESSES[case]
    rows = read(write("a.csv", content), columns)
    assert rows.mapping == expected
    assert len(rows) == 6
    assert "guessed; --data.columns" in rows.notes[-1]
    assert all(f"{column}={name}" in rows.notes[-1] for column, name in expected.items())


@pytest.mark.parametrize("count", [20, 2500])  # fewer and more than are read ahead
@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_guessed_keys_lose_no_record(write: Write, count: int, ending: str) -> None:
    """Records that were read ahead to guess the columns were left out."""
    lines = [json.dumps({"body": f"text number {n} of many", "kind": "ab"[n % 2]}) for n in range(count)]
    text = "\n".join(lines) + "\n" if ending == ".jsonl" else "[" + ",\n".join(lines) + "]"
    rows = read(write(f"rows{ending}", text), CLASSES)
    assert rows.mapping == {"text": "body", "label": "kind"}
    assert [row.values["text"] for row in rows] == [f"text number {n} of many" for n in range(count)]
    assert [row.line for row in rows] == list(range(1, count + 1))


def test_keys_of_records_are_guessed_too(write: Write) -> None:
    records = [{"n": n, "data": {"body": a, "kind": b}} for n, a, b in zip(IDS, TEXTS, MOODS, strict=True)]
    rows = read(write("a.jsonl", "\n".join(map(json.dumps, records))), CLASSES)
    assert rows.mapping == {"text": "data.body", "label": "data.kind"}
    assert len(rows) == 6
    both = [{"translation": {"en": a, "fr": b}} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    rows = read(write("b.json", json.dumps(both)), PAIR)
    assert rows.mapping == {"source": "translation.en", "target": "translation.fr"}


def test_an_unclear_column_is_an_error_that_names_the_candidates(write: Write) -> None:
    two = write("a.csv", table(IDS, TEXTS, TEXTS[::-1], MOODS, header="id,front,back,mood"))
    with pytest.raises(HeedfulError, match=r"'text' may be the column 'front' or 'back'; .*--data\.columns") as caught:
        read(two, CLASSES)
    assert "--data.columns id" not in str(caught.value)
    moods = write("b.csv", table(TEXTS, MOODS, ["x", "y"] * 3, header="review,mood,side"))
    with pytest.raises(HeedfulError, match=r"b\.csv:1; 'label' may be the column 'mood' or 'side'"):
        read(moods, CLASSES)
    none = write("c.csv", table(IDS, TEXTS, header="id,review"))
    with pytest.raises(
        HeedfulError, match=r"among 'id', 'review', in .*c\.csv:1; no column has content that fits 'label'"
    ):
        read(none, CLASSES)


def test_a_header_alone_is_no_example(write: Write) -> None:
    with pytest.raises(HeedfulError, match=r"no column 'text' among 'review', 'mood', in .*a\.csv:1"):
        read(write("a.csv", "review,mood\n"), CLASSES)


@pytest.mark.parametrize(("extension", "separator"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("header", ["kind,question", "question,kind", "id,kind,question", "date,question", "question"])
def test_columns_remembered_by_number_do_not_hide_a_header(
    write: Write, header: str, extension: str, separator: str
) -> None:
    """A model was trained on a table without a header, whose second column had the texts."""
    texts = [f"Who found number {n} ?" for n in range(40)]
    columns = {"question": texts, "kind": ["HUM", "NUM"] * 20, "id": list(map(str, range(40)))}
    columns["date"] = [f"2024-01-{day:02d}" for day in range(1, 21)] * 2
    names = header.split(",")
    lines = [names, *zip(*(columns[name] for name in names), strict=True)]
    path = write(f"asked.{extension}", "".join(separator.join(line) + "\n" for line in lines))
    remembered = {"text": "2", "label": "1"}
    assert [given.input for given in read_inputs(path, {"text": "text"}, remembered=remembered)] == texts
    if {"question", "kind"} <= {*names}:
        rows = read(path, CLASSES, remembered=remembered)
        assert [(row.values["text"], row.values["label"]) for row in rows][:2] == [(texts[0], "HUM"), (texts[1], "NUM")]


def test_a_row_of_single_words_is_no_header_of_such_rows(write: Write) -> None:
    path = write("places.csv", "de,Berlin\nfr,Paris\nde,Bonn\nfr,Lyon\n")
    inputs = read_inputs(path, {"text": "text"}, remembered={"text": "2", "label": "1"})
    assert [given.input for given in inputs] == ["Berlin", "Paris", "Bonn", "Lyon"]
    path = write("asked.csv", "HUM,Who\n" + "HUM,Who are you ?\nNUM,How far is it ?\n" * 20)
    inputs = read_inputs(path, {"text": "text"}, remembered={"text": "2", "label": "1"})
    assert [given.input for given in inputs][:2] == ["Who", "Who are you ?"]


def test_remembered_columns_come_first(write: Write) -> None:
    path = write("a.csv", table(TEXTS, TEXTS[::-1], MOODS, header="text,back,label"))
    rows = read(path, CLASSES, remembered={"text": "back", "label": "label"})
    assert rows.mapping == {"text": "back", "label": "label"}
    assert "as in training" in rows.notes[0]
    assert read(path, CLASSES, names=["text", "label"], remembered={"text": "back"}).mapping["text"] == "text"
    gone = read(path, CLASSES, remembered={"text": "review", "label": "mood"})
    assert gone.mapping == {"text": "text", "label": "label"}
    by_number = write("b.tsv", table(MOODS, TEXTS, cut="\t"))
    assert read(by_number, CLASSES, remembered={"text": "2", "label": "1"})[0].values["text"] == TEXTS[0]
    lines = write("c.jsonl", "\n".join(json.dumps({"text": "no", "back": text}) for text in TEXTS))
    assert [row.values["text"] for row in read(lines, ["text"], remembered={"text": "back"})] == TEXTS


FORMS = {
    "tab": ("a.tab", table(MOODS, TEXTS, cut="\t"), "tsv"),
    "tabs in txt": ("a.txt", table(MOODS, TEXTS, cut="\t"), "tsv"),
    "semicolons": ("a.csv", table(TEXTS, MOODS, header="text;label", cut=";"), "csv"),
    "semicolons in data": ("a.data", table(TEXTS, MOODS, header="text;label", cut=";"), "csv"),
    "commas in dat": ("a.dat", table(TEXTS, MOODS, header="text,label"), "csv"),
    "no extension": ("a", table(TEXTS, MOODS, header="text,label"), "csv"),
    "json lines": (
        "a.txt",
        "".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in zip(TEXTS, MOODS, strict=True)),
        "jsonl",
    ),
    "json array": (
        "a.json",
        json.dumps([{"text": a, "label": b} for a, b in zip(TEXTS, MOODS, strict=True)], indent=1),
        "json",
    ),
    "label and text": ("a.train.xz", table(MOODS, TEXTS, cut=" "), "labelled"),
    "quotes are plain": ("a.tab", table(MOODS, [f'"{text}' for text in TEXTS], cut="\t"), "tsv"),
}


@pytest.mark.parametrize("case", FORMS)
def test_the_form_of_a_file_is_recognised(write: Write, case: str) -> None:
    name, content, kind = FORMS[case]
    path = write(name, content)
    rows = read(path, CLASSES)
    assert detect_format(path, labelled=True).kind == kind
    assert [row.values["label"] for row in rows] == MOODS
    assert [row.values["text"].strip('"') for row in rows] == TEXTS
    assert rows.notes[0].startswith(f"{path} is read as ")


def test_plain_text_is_no_table(write: Write) -> None:
    lines = "It was late, and dark.\nNobody came.\nI, too, went home, alone.\nThe end\n"
    assert detect_format(write("a.txt", lines), labelled=True).kind == "text"
    assert [row.values["text"] for row in read(write("a.txt", "a\tb\nc\td\n"), ["text"])] == ["a\tb", "c\td"]
    with pytest.raises(HeedfulError, match=r"unknown extension '\.txt', and its lines have no columns, in .*a\.txt"):
        read(write("a.txt", lines), CLASSES)


def test_a_json_array_says_where_it_is_broken(write: Write) -> None:
    path = write("a.json", '[\n{"text": "a", "label": "b"},\n{"text": }\n]')
    with pytest.raises(HeedfulError, match=r"broken JSON array .*a\.json:3; "):
        read(path, CLASSES)
    whole = write("b.json", '[{"text": "a",\n"label": "b"},\n{"text": "c", "label": "d"}]')
    assert [row.line for row in read(whole, CLASSES)] == [1, 3]
    with pytest.raises(HeedfulError, match=r"broken JSON array .*c\.json:1; "):
        read(write("c.json", '[{"text": "a", "label": "b"}'), CLASSES)


def test_inputs_are_found_as_in_training_or_guessed(write: Write) -> None:
    path = write("a.csv", table(IDS, TEXTS, MOODS, header="id,review,mood"))
    told: list[str] = []
    assert [given.input for given in read_inputs(path, {"text": "text"}, say=told.append)] == TEXTS
    assert told == ["text=review (guessed; --columns TEXT changes it)"]
    both = write("b.csv", table(TEXTS, TEXTS[::-1], header="a,b"))
    assert [given.input for given in read_inputs(both, {"text": "text"}, remembered={"text": "b"})] == TEXTS[::-1]
    with pytest.raises(HeedfulError, match=r"'text' may be the column 'a' or 'b'.*--columns"):
        list(read_inputs(both, {"text": "text"}))
    spaced = write("c.train", table(MOODS, TEXTS, cut=" "))
    assert [given.input for given in read_inputs(spaced, {"text": "text"}, ["2"])] == TEXTS
    assert next(read_inputs(spaced, {"text": "text"})).input == f"pos {TEXTS[0]}"


def test_a_folder_says_how_its_files_are_used(write: Write, tmp_path: Path) -> None:
    write("test.tsv", table(TEXTS, MOODS, cut="\t"))
    with pytest.raises(HeedfulError, match=r"it has only test files.*heedful evaluate MODEL --data .*test\.tsv"):
        read(str(tmp_path), CLASSES, split="train")
    with pytest.raises(HeedfulError, match=r"give the file in it: .*test\.tsv"):
        read(str(tmp_path), CLASSES, split="test")
    write("train.tsv", table(TEXTS, MOODS, cut="\t"))
    write("dev.tsv", table(TEXTS, MOODS, cut="\t"))
    with pytest.raises(HeedfulError, match=r"--train .*/train\.tsv --valid .*/dev\.tsv"):
        read(str(tmp_path), CLASSES, split="train")
    (tmp_path / "docs" / "test").mkdir(parents=True)
    (tmp_path / "docs" / "test" / "a.txt").write_text("a text")
    with pytest.raises(
        HeedfulError, match=r"no split 'train' in .*docs; it has test only: .*evaluate MODEL --data .*docs --split t"
    ):
        read(str(tmp_path / "docs"), {"text": "document"}, split="train")


PUBLISHED = {
    "sent-conv/stsa.binary.train.xz": (CLASSES, {"text": "2", "label": "1"}, 6920),
    "sent-conv/TREC.test.xz": (CLASSES, {"text": "2", "label": "1"}, 500),
    "sms-spam/sms.tsv.xz": (CLASSES, {"text": "2", "label": "1"}, 5574),
    "debian_ddtp/en-de.tsv.xz": (PAIR, {"source": "2", "target": "3"}, 36931),
    "tatoeba_en-es/spa.60k.tsv.xz": (PAIR, {"source": "1", "target": "2"}, 60000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_read_as_they_are(name: str) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    columns, expected, count = PUBLISHED[name]
    rows = read(path, columns)
    assert (rows.mapping, len(rows)) == (expected, count)


def test_a_published_line_that_is_no_utf8_says_how_it_is_converted() -> None:
    path = DATA / "sent-conv" / "TREC.train.xz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with pytest.raises(HeedfulError, match=r"TREC\.train\.xz:66; .*xz -dc .* \| iconv -f"):
        read(path, CLASSES)


ORANGE = {
    "flags.tab": "mS#name\tC#label\n{}",
    "flags.csv": "mS#name,cD#label\n{}",
    "rows.tab": "name\tsort\nstring\tdiscrete\nmeta\tclass\n{}",
    "rows.tsv": "name\tsort\ns\td\n\tclass\n{}",
}


@pytest.mark.parametrize("name", ORANGE)
def test_the_header_of_an_orange_file_is_no_row(name: str, tmp_path: Path) -> None:
    texts = [f"a {size} {thing} of {n}" for size in ("large", "small") for thing in ("fig", "saw") for n in range(9)]
    delimiter = "," if name.endswith(".csv") else "\t"
    lines = "".join(f"{text}{delimiter}{n % 2}\n" for n, text in enumerate(texts))
    (tmp_path / name).write_text(ORANGE[name].format(lines), encoding="utf-8")
    rows = read(tmp_path / name, {"text": "text", "label": "label"})
    assert [row.values for row in rows] == [{"text": text, "label": str(n % 2)} for n, text in enumerate(texts)]
    assert rows[0].line == (2 if name.startswith("flags") else 4)
    assert rows.columns[0] == "name"
    assert any("has an Orange header" in note for note in rows.notes)


def test_a_table_that_only_resembles_one_of_orange(tmp_path: Path) -> None:
    """Types or roles alone, and names with a "#" of their own."""
    for name, head in {"a": "text\tlabel\nstring\tclass", "b": "C# code\tA#b", "c": "text\tlabel\n\t\n\t"}.items():
        assert orange_header([line.split("\t") for line in [*head.split("\n"), "a fine\tx", "b\ty"]]) is None, name
