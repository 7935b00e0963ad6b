"""Findings of the audit on data with known faults, and none on clean data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful import cli
from heedful.audit.audit import Audit, audit
from heedful.audit.characters import check_characters
from heedful.audit.encoded_examples import check_tokens
from heedful.audit.labels import check_word_prefix
from heedful.data import Row, Rows, read, texts_on_disk
from heedful.errors import HeedfulError
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.question_answering import QuestionAnswering
from heedful.tasks.task import Encoded
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_generation import TextGeneration

COLUMNS = TextClassification.columns
SAID = {"good": "fine", "bad": "poor"}
RIGHT = [(f"the {a} {b} is {word}", label) for label, word in SAID.items() for a in "abcde" for b in "vwxyz"]


def table(folder: Path, rows: list[tuple[str, ...]], name: str = "set.tsv", header: str = "text\tlabel") -> Path:
    file = folder / name
    lines = [header, *("\t".join(row) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return file


def audited(task: str, train: Path, **given: Any) -> Audit:
    tokenizer = TokenizerSettings(size=300)
    return audit(RunSettings(task=task, train=(str(train),), out="-", **({"tokenizer": tokenizer} | given)))


def found(result: Audit) -> dict[str, tuple[str, int, list[int]]]:
    """Of each finding its level, its count, and the lines it names."""
    first = {one.name: [place.split(" = ")[0].rpartition(":")[2] for place in one.places] for one in result.findings}
    lines = {name: [int(line) for line in places] for name, places in first.items()}
    return {one.name: (one.level, one.count, lines[one.name]) for one in result.findings}


def test_data_that_is_right_is_facts_alone(tmp_path: Path) -> None:
    result = audited("text-classification", table(tmp_path, RIGHT))
    assert result.ok
    assert {one.name for one in result.findings} == {"labels", "lengths"}
    assert "no problem found" in result.lines()[0]
    assert result.examples + result.validation_examples == len(RIGHT)


def test_duplicates_and_contradictions(tmp_path: Path) -> None:
    file = table(tmp_path, [*RIGHT, ("The a  V is fine", "good"), ("the b w is fine", "bad")])
    held = table(tmp_path, [("the A v is poor", "bad"), ("never seen", "good")], "held.tsv")
    result = audited("text-classification", file, valid=(str(held),))
    assert found(result)["duplicates"] == ("warning", 1, [52])  # letters in either case, blanks as one
    assert found(result)["contradictions"] == ("warning", 1, [53])
    assert found(result)["leakage"] == ("warning", 1, [2])
    leak = next(one for one in result.findings if one.name == "leakage")
    assert leak.places == [f"{held}:2 = {file}:27"]


def test_sentences_may_be_said_again(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    held = table(tmp_path, [("new", "new")], "held.tsv", header="source\ttarget")
    result = audited("translation", table(tmp_path, pairs + pairs[:17], header="source\ttarget"), valid=(str(held),))
    assert found(result)["duplicates"][:2] == ("fact", 17)
    assert result.ok


def test_but_not_most_of_them(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    held = table(tmp_path, [("new", "new")], "held.tsv", header="source\ttarget")
    result = audited("translation", table(tmp_path, pairs + pairs[:18], header="source\ttarget"), valid=(str(held),))
    assert found(result)["duplicates"] == ("warning", 18, [*range(37, 55)])
    assert "remove them unless this is intended" in "\n".join(result.lines())
    file = table(tmp_path, pairs + pairs[:18], header="source\ttarget")
    command = ["audit", "translation", "--train", str(file), "--valid", str(held), "--tokenizer.size=300"]
    assert cli.main([*command, "--strict"]) == 1


@pytest.mark.parametrize(
    ("task", "header", "texts", "level", "lines"),
    [
        ("translation", "source\ttarget", [("a", "a"), *[(f"{n} c", f"d {n}") for n in range(20)]], "warning", [2]),
        ("translation", "source\ttarget", [("a", "a"), *[(f"{n} c", f"d {n}") for n in range(120)]], "fact", [2]),
        (
            "summarization",
            "text\tsummary",
            [("c", "b"), ("a b", "a  b"), *[(f"{n} c", "d") for n in range(9)]],
            "warning",
            [3],
        ),
        (
            "feature-extraction",
            "text\ttext_pair",
            [("a", "a"), *[(f"{n} c", f"d {n}") for n in range(120)]],
            "warning",
            [2],
        ),
        (
            "feature-extraction",
            "text\ttext_pair\tnegative",
            [*[(f"{n} c", f"d {n}", f"e {n}") for n in range(120)], ("a", "b", "b"), ("c", "d", "c")],
            "warning",
            [122, 123],
        ),
        (
            "feature-extraction",
            "text\ttext_pair\tscore",
            [("a", "a", "5"), *[(f"{n} c", "d", "1") for n in range(9)]],
            "",
            [],
        ),
        (
            "text-classification",
            "text\ttext_pair\tlabel",
            [("a", "a", "x"), *[(f"{n} c", "d", "y") for n in range(9)]],
            "",
            [],
        ),
    ],
)
def test_texts_that_are_copies(
    tmp_path: Path, task: str, header: str, texts: list[tuple[str, ...]], level: str, lines: list[int]
) -> None:
    result = audited(
        task, table(tmp_path, texts, header=header), valid=(str(table(tmp_path, texts[:3], "v.tsv", header)),)
    )
    copies = [one for one in result.findings if one.name == "copies"]
    assert [(one.level, one.places[0].rpartition(":")[2]) for one in copies] == [(level, str(line)) for line in lines]


def test_a_pair_is_asked_as_a_whole(tmp_path: Path) -> None:
    pairs = [(f"the {a}", f"is {b}", "yes" if a < b else "no") for a in "abcdefg" for b in "vwxyz"]
    file = table(tmp_path, [*pairs, ("the a", "is v", "no")], header="text\ttext_pair\tlabel")
    held = table(tmp_path, [("the a", "is new", "yes"), ("the b", "IS z", "no")], "held.tsv", "text\ttext_pair\tlabel")
    names = found(audited("text-classification", file, valid=(str(held),)))
    assert names["contradictions"] == ("warning", 1, [37])
    assert names["leakage"] == ("warning", 1, [3])
    assert "duplicates" not in names


def test_labels_that_are_rare_alike_or_alone(tmp_path: Path) -> None:
    rows = [*RIGHT, ("one more x", "Good"), ("one more y", "good "), ("odd one", "gud")]
    result = audited("text-classification", table(tmp_path, rows), valid=(str(table(tmp_path, RIGHT[:2], "v.tsv")),))
    names = found(result)
    assert names["rare"] == ("warning", 2, [52, 54])
    assert names["spelling"][0] == "warning"
    skewed = [(f"text number {i}", "yes") for i in range(96)] + [(f"another {i}", "no") for i in range(6)]
    assert found(audited("text-classification", table(tmp_path, skewed, "skewed.tsv")))["skewed"][0] == "warning"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "caf\ufffd here"),
        ("mojibake", "the cafÃ© here"),
        ("mojibake", "itâ€™s here"),
        ("controls", "a \x07 bell"),
        ("invisible", "in\u200bvisible"),
        ("invisible", "\u202eturned"),
        ("markup", "fish &amp; chips"),
        ("markup", "two<br>lines"),
        ("forms", "cafe\u0301 here"),
    ],
)
def test_odd_characters(tmp_path: Path, name: str, text: str) -> None:
    names = found(audited("text-classification", table(tmp_path, [*RIGHT[:30], (text, "good"), *RIGHT[30:]])))
    assert names[name] == ("warning", 1, [32])
    assert set(names) - {name} <= {"labels", "lengths", "unknown"}


@pytest.mark.parametrize(
    "text", ["Ärger über Öl, naïve café", "a < b & c > d", "日本語の文", "«Ça va ?»", "e-mail\tor not", "Ã la"]
)
def test_ordinary_letters_are_not_odd(tmp_path: Path, text: str) -> None:
    rows = [*RIGHT, (text.replace("\t", " "), "good")]
    names = found(audited("text-classification", table(tmp_path, rows)))
    assert set(names) <= {"labels", "lengths", "unknown"}


def test_cut_examples_and_unknown_tokens(tmp_path: Path) -> None:
    rows = [*RIGHT, (" ".join("vwxyz" * 30), "good")]
    result = audited("text-classification", table(tmp_path, rows), data=DataSettings(max_length=16))
    names = found(result)
    assert names["truncation"][:2] == ("warning", 1)
    lengths = next(one for one in result.findings if one.name == "lengths")
    assert "maximum 16" in lengths.text
    odd = [(f"{'ab' * 60}{i} the", "good" if i % 2 else "bad") for i in range(60)]
    names = found(audited("text-classification", table(tmp_path, odd, "odd.tsv")))
    assert names["unknown"][0] == "warning"


def test_no_other_tokenizer_is_advised_for_an_ensemble(tmp_path: Path) -> None:
    """Some of its members read pieces of words, and ``--tokenizer.kind bpe`` would train one model alone."""
    rows = [(f"a {'good' if i % 2 else 'bad'} film by w{i}", "good" if i % 2 else "bad") for i in range(100)]
    held = table(tmp_path, [("ЖШЩ Ъ Ы Ь", "good"), ("Э Ю Я", "bad")], "held.tsv")
    levels = {}
    for members in (None, 1):
        settings = RunSettings("text-classification", train=(str(table(tmp_path, rows)),), valid=(str(held),), out="-")
        result = audit(replace(settings, model=ModelSettings(members=members)))
        levels[members] = [
            (one.level, "bpe" in one.text) for one in result.findings if (one.name, one.part) == ("unknown", "valid")
        ]
    assert levels == {None: [("fact", False)], 1: [("warning", True)]}


def test_examples_with_nothing_to_learn(tmp_path: Path) -> None:
    talks = [[{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"{i}"}] for i in range(5)]
    rows = Rows((Row({"messages": tuple(talk)}, "talks.jsonl", i) for i, talk in enumerate(talks, 1)), 0, ("messages",))
    task = TextGeneration.prepare(rows, RunSettings("text-generation", train=("talks.jsonl",), out="-"))
    encoded = task.encode(rows)
    assert [one.name for one in check_tokens(task, encoded)] == []
    for place in (1, 3):
        talk = encoded.examples[place]
        encoded.examples[place] = talk._replace(learned=[True] + [False] * (len(talk.ids) - 1))  # first: never
    (finding,) = check_tokens(task, encoded)
    assert (finding.name, finding.level, finding.count) == ("no target", "warning", 2)
    assert finding.places == ["talks.jsonl:2", "talks.jsonl:4"]
    assert "every label is masked" in finding.line()


def test_of_many_examples_a_sample_is_checked(tmp_path: Path) -> None:
    rows = Rows((Row({"text": f"a {i}"}, "set.csv", i) for i in range(7)), 0, ("text",))
    task = TextGeneration.prepare(rows, RunSettings("text-generation", train=("set.csv",), out="-"))
    encoded = Encoded([task.encode(rows).examples[0]] * 7, rows)
    (finding,) = check_tokens(task, encoded, max_examples=3)
    assert (finding.name, finding.level, finding.count) == ("sampled", "fact", 3)
    assert "the tokens of 3 of 7 examples were checked" in finding.line()
    assert not list(check_tokens(task, encoded, max_examples=7))


def test_the_sample_shows_where_something_is_learned(tmp_path: Path) -> None:
    asked = " ".join(["so"] * 150)
    talks = [[{"role": "user", "content": asked}, {"role": "assistant", "content": f"yes {i}"}] for i in range(24)]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks), encoding="utf-8")
    result = audited("text-generation", file)
    line = next(line for line in result.sample if "so" in line)
    assert "|…|" in line
    assert all(f"‹{piece}›" in line for piece in ("yes", " 1")), line
    count = next(line for line in result.sample if "positions have a target" in line)
    assert line.count("‹") == int(count.split()[0])


def test_the_sample_is_what_the_model_is_given(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    result = audited("translation", table(tmp_path, pairs, header="source\ttarget"))
    sample = "\n".join(result.sample)
    assert "source     one| a| v|</s>" in sample
    assert "target    <s>|‹ v›|‹ a›|‹</s>›" in sample
    assert "3 of 3 positions have a target" in sample
    words = "".join(f"see\tO\n{a}{b}\tB-x\n\n" for a in "abcdefg" for b in "vwxyz")
    (tmp_path / "set.conll").write_text(words, encoding="utf-8")
    result = audited("token-classification", tmp_path / "set.conll")
    notes = [one.line() for one in result.findings if "tags of" in one.text]
    assert [note.split()[0] for note in notes] == ["examples", "examples"]  # of training and validation; none is cut
    sample = "\n".join(result.sample)
    assert "see→O" in sample
    assert "→B-x" in sample


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, [*RIGHT, ("the a v is fine", "good"), ("caf\ufffd", "bad")])
    command = ["audit", "text-classification", "--train", str(file), "--tokenizer.size=300"]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert f"({file}:52)" in text
    assert f"({file}:53)" in text
    assert cli.main([*command, "--strict"]) == 1
    capsys.readouterr()
    assert cli.main([*command, "--strict", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert {"task", "examples", "validation", "findings", "sample", "seconds"} <= set(told)
    assert {one["name"] for one in told["findings"] if one["level"] == "warning"} == {"duplicates", "broken"}
    assert cli.main([*command, "--data.max-length=1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert cli.main(["audit", "text-classification", "--train", "nowhere.tsv"]) == 2
    assert "nowhere.tsv: no such file" in capsys.readouterr().err


def test_a_run_begins_with_what_stands_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, [*RIGHT, ("the a v is fine", "good")])
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300", "--max-steps=1"]
    command = ["train", "text-classification", "--train", str(file), "--out", str(tmp_path / "out"), *small]
    assert cli.main([*command, "--preset=bert-tiny"]) == 0
    assert "! duplicates" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["set.jsonl", "set.txt"])
def test_of_texts_on_disk_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(texts_on_disk, "LARGE", 1)
    monkeypatch.setattr(texts_on_disk, "PIECE", 20)
    texts = [f"line {n} has some words in it\n" for n in range(400)]
    lines = texts if name == "set.txt" else [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / name).write_text("".join(lines))
    told = next(one for one in audited("text-generation", tmp_path / name).findings if one.name == "sampled")
    what = "pieces of documents" if name == "set.txt" else "documents"
    assert 40 < told.count < 100
    assert re.fullmatch(rf"{told.count} of \d\d\d {what} were checked", told.text)


TOPICS = ["moss", "granite", "weather", "violins", "harbours", "chess", "lamps", "glaciers", "bread", "maps"]


def talk(asked: str, answered: str) -> dict[str, Any]:
    told = [("system", "You are a helpful assistant who answers briefly and never lies to anyone who asks.")]
    return {
        "messages": [{"role": role, "content": text} for role, text in (*told, ("user", asked), (ASSISTANT, answered))]
    }


def instruction(asked: str, answered: str) -> dict[str, Any]:
    return {"prompt": asked, "completion": answered}


ASSISTANT = "assistant"
ASKED = [
    (f"{how} {topic}?", f"It is {topic}.") for topic in TOPICS for how in ("What is", "Who ever liked", "Where are")
]


def listed(folder: Path, rows: list[dict[str, Any]], name: str = "set.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("made", [talk, instruction])
def test_instructions_are_asked_by_what_comes_before_the_answer(tmp_path: Path, made: Callable[..., Any]) -> None:
    apart = listed(tmp_path, [made(*one) for one in ASKED[5:]])
    held = listed(tmp_path, [made(*one) for one in ASKED[:5]], "held.jsonl")
    result = audited("text-generation", apart, valid=(str(held),))
    assert not {"contradictions", "leakage", "duplicates", "overlap", "similar"} & set(found(result))

    rows = [made(*one) for one in [*ASKED[5:], ASKED[5], (ASKED[6][0], "Nobody knows.")]]
    asked = [ASKED[0], (ASKED[7][0].upper(), "Who knows?"), ("Where ever arre the glaciers of the harbours", "No")]
    rows.append(made("Where, ever, are the glaciers of the harbours?", "Up north."))
    held = listed(tmp_path, [made(*one) for one in asked], "held.jsonl")
    result = audited("text-generation", listed(tmp_path, rows), valid=(str(held),))
    assert found(result)["duplicates"] == ("fact", 1, [26])
    assert found(result)["contradictions"] == ("fact", 1, [27])
    assert found(result)["leakage"] == ("warning", 1, [2])
    near = next(one for one in result.findings if one.name == "overlap")
    assert near.places == [f"{held}:3 ~ {tmp_path / 'set.jsonl'}:28"]


def test_a_conversation_is_asked_by_all_that_was_said_before(tmp_path: Path) -> None:
    def longer(first: str, last: str) -> dict[str, Any]:
        said = [("user", "Hello."), (ASSISTANT, first), ("user", "Really?"), (ASSISTANT, last)]
        return {"messages": [{"role": role, "content": text} for role, text in said]}

    rows = [longer(f"Say {topic}", "Yes.") for topic in TOPICS]
    held = listed(tmp_path, [longer("Say sand", "Yes."), longer("Say chess", "Never.")], "held.jsonl")
    names = found(audited("text-generation", listed(tmp_path, rows), valid=(str(held),)))
    assert "contradictions" not in names
    assert names["leakage"] == ("warning", 1, [2])
    twice = listed(tmp_path, [*rows, longer("Say moss", "No.")])
    assert found(audited("text-generation", twice, valid=(str(held),)))["contradictions"] == ("fact", 1, [11])


def test_an_odd_character_of_a_document_has_the_line_it_stands_in(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("one\ntwo\nthr\x07ee\nfour\n" * 3, encoding="utf-8")
    row = read(str(file), {"text": "document"})[0]
    (found,) = check_characters([row], {"text": "document"})
    assert (found.name, found.places) == ("controls", [f"{file}:3"])


def test_odd_characters_of_messages_and_labels(tmp_path: Path) -> None:
    rows = [talk(*one) for one in ASKED]
    rows[3] = talk("What is a caf\ufffd?", "A house.")
    rows[5] = talk("What is tea?", "In\u200bvisible.")
    held = listed(tmp_path, [talk("Fish &amp; chips?", "Yes.")], "held.jsonl")
    names = found(audited("text-generation", listed(tmp_path, rows), valid=(str(held),)))
    assert (names["broken"][2], names["invisible"][2], names["markup"][2]) == ([4], [6], [1])
    labelled = [*RIGHT[:30], *[("the a b is odd", "go\u200bod")], *RIGHT[30:]]
    assert found(audited("text-classification", table(tmp_path, labelled)))["invisible"][2] == [32]
    words = "".join(f"see\tO\n{a}{b}\tB-x\n\n" for a in "abcdefg" for b in "vwxyz") + "see\tO\nyou\tB-\ufeffx\n"
    (tmp_path / "set.conll").write_text(words, encoding="utf-8")
    assert found(audited("token-classification", tmp_path / "set.conll"))["invisible"][1] == 1


def of_validation(result: Audit) -> dict[str, tuple[str, int, list[str]]]:
    valid = (one for one in result.findings if one.part == "valid")
    return {one.name: (one.level, one.count, [place.rpartition(":")[2] for place in one.places]) for one in valid}


@pytest.mark.parametrize("separator", [None, ";"])
def test_labels_that_validation_alone_has(tmp_path: Path, separator: str | None) -> None:
    rows = [("the a v is fine", "good"), ("new", "odd"), ("newer", "bad"), ("newest", "other"), ("last", "odd")]
    held = table(tmp_path, rows, "held.tsv")
    given = {"valid": (str(held),), "data": DataSettings(label_separator=separator)}
    result = audited("text-classification", table(tmp_path, RIGHT), **given)
    assert of_validation(result)["unseen labels"] == ("warning", 2, ["3", "6", "5"])
    line = next(line for line in result.lines() if "unseen labels" in line)
    assert "validation: 2 labels that are not in training ('odd', 'other')" in line
    known = table(tmp_path, [("new", "good"), ("newer", "bad")], "known.tsv")
    result = audited("text-classification", table(tmp_path, RIGHT), **given | {"valid": (str(known),)})
    assert "unseen labels" not in of_validation(result)


def test_tags_that_validation_alone_has(tmp_path: Path) -> None:
    words = "".join(f"see\tO\n{a}{b}\tB-x\n\n" for a in "abcdefg" for b in "vwxyz")
    (tmp_path / "set.conll").write_text(words)
    (tmp_path / "held.conll").write_text("see\tO\nyou\tI-x\n\nsee\tO\nhim\tB-y\nher\tB-y\n\nav\tB-x\n")
    held = str(tmp_path / "held.conll")
    result = audited("token-classification", tmp_path / "set.conll", valid=(held,))
    assert of_validation(result)["unseen labels"] == ("warning", 2, ["5", "6", "2"])
    (tmp_path / "held.conll").write_text("see\tO\nyou\tO\n\n\nsee\tO\nhim\tB-y\n")
    line = next(
        line
        for line in audited("token-classification", tmp_path / "set.conll", valid=(held,)).lines()
        if "unseen" in line
    )
    assert f"({held}:6)" in line


def test_validation_rows_that_train_refuses_are_named(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    long = " ".join("vwxyz" * 30)
    held = table(tmp_path, [(long, long)], "held.tsv", header="source\ttarget")
    train = table(tmp_path, pairs, header="source\ttarget")
    with pytest.raises(HeedfulError, match=rf"longer than 16 tokens, in {held}; raise --data.max-length"):
        audited("translation", train, valid=(str(held),), data=DataSettings(max_length=16))
    talks = listed(tmp_path, [instruction(long, long)], "talks.jsonl")
    asked = listed(tmp_path, [instruction(*one) for one in ASKED[:9]])
    with pytest.raises(HeedfulError, match=rf"longer than 16 tokens, in {talks}; raise"):
        audited("text-generation", asked, valid=(str(talks),), data=DataSettings(max_length=16))


def test_validation_rows_are_checked(tmp_path: Path) -> None:
    rows = [("the a v is fine", "good"), ("ЖШЩЮ Ъ", "bad"), ("", "bad"), (" ".join("vwxyz" * 30), "bad")]
    held = table(tmp_path, rows, "held.tsv")
    train = table(tmp_path, [*RIGHT, ("", "good"), (" ", "bad")])
    given = {"valid": (str(held),), "data": DataSettings(max_length=16)}
    result = audited("text-classification", train, **given)
    valid = of_validation(result)
    assert (valid["unknown"][0], valid["unknown"][2]) == ("warning", ["3"])
    assert valid["truncation"] == ("warning", 1, ["5"])
    assert valid["skipped"] == ("warning", 1, ["4"])
    skipped = next(one for one in result.findings if one.name == "skipped" and one.part == "train")
    assert skipped.places == [f"{train}:52", f"{train}:53"]
    assert {one["part"] for one in result.as_dict()["findings"]} == {"train", "valid"}


def test_nothing_that_moves_a_terminal(tmp_path: Path) -> None:
    odd = "a\x1b[2Jb\x07\x0b\x0c\u202ed"
    rows = [
        {"text": f"{odd} {text}", "label": "x" * 3000 if label == "bad" else f"{odd}\nnew"} for text, label in RIGHT
    ]
    file = listed(tmp_path, [*rows, {"text": "rare", "label": f"{odd}\n2"}, {"text": "rarer", "label": f"{odd}\nNEW"}])
    result = audited("text-classification", file)
    lines = [*result.lines(), *result.sample]
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1000
    assert any("a␛[2Jb␇" in line for line in result.sample)
    held = listed(tmp_path, [{"text": "new", "label": "\x1b[2J" + "y" * 3000}], "held.jsonl")
    lines = audited("text-classification", file, valid=(str(held),)).lines()
    assert all(line.isprintable() and len(line) < 1000 for line in lines)
    task = TextClassification.prepare(
        read([str(file)], TextClassification.columns), RunSettings("-", train=("-",), out="-")
    )
    assert task.row_line(Row(rows[0], "set.jsonl", 1)).isprintable()


@pytest.mark.parametrize(
    ("name", "text", "task", "lines"),
    [
        ("a.tsv", "a #\tb #\n \tx\n", "translation", [2, 4, 6]),
        (
            "a.jsonl",
            '{"prompt": "a #", "completion": "c"}\n{"prompt": "", "completion": "c"}\n',
            "text-generation",
            [2, 4, 6],
        ),
        ("a.jsonl", '{"text": "a #\\nb"}\n{"text": ""}\n', "text-generation", [2, 4, 6]),
        (
            "a.jsonl",
            '{"words": ["a", "#"], "tags": ["O", "X"]}\n{"words": [], "tags": []}\n',
            "token-classification",
            [2, 4, 6],
        ),
    ],
)
def test_where_blank_rows_are(tmp_path: Path, name: str, text: str, task: str, lines: list[int]) -> None:
    file, held = tmp_path / name, tmp_path / f"held-{name}"
    for one in (file, held):
        one.write_text("".join(text.replace("#", str(n)) for n in range(30)))
    for given in ({"valid": (str(held),)}, {}):
        places = [one.places for one in audited(task, file, **given).findings if one.name == "skipped"]
        assert [place[:3] for place in places] == [
            [f"{one}:{line}" for line in lines] for one in (file, held)[: 1 + len(given)]
        ]
        assert all(len(place) == 30 for place in places)


def test_files_of_a_folder_that_are_nothing_wanted(tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"{n}.txt").write_text(f"one of the texts, number {n}\n" * 20)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00\x00")
    result = audited("text-generation", tmp_path)
    assert [one.places for one in result.findings if one.name == "skipped"] == [[str(tmp_path / "odd.txt")]]


@pytest.mark.parametrize(
    ("task", "header", "long", "level"),
    [
        ("translation", "source\ttarget", ("x " * 40, "y"), 1),
        ("summarization", "text\tsummary", ("x " * 40, "y"), 1),
        ("feature-extraction", "text\ttext_pair", ("a", "x " * 40), 1),
        ("text-classification", "text\tlabel", ("x " * 40, "one"), 1),
        ("text-generation", "prompt\tcompletion", ("x " * 40, "y"), 1),
    ],
)
def test_where_what_is_cut_or_left_out_is(
    tmp_path: Path, task: str, header: str, long: tuple[str, str], level: int
) -> None:
    rows = [(f"{a} {b}", "one" if a < "d" else "two") for a in "abcdefg" for b in "vwxyz"]
    held = table(tmp_path, [("new", "one"), long], "held.tsv", header)
    file = table(tmp_path, [*rows[:7], long, *rows[7:]], header=header)
    result = audited(task, file, valid=(str(held),), data=DataSettings(max_length=16))
    assert [one.places for one in result.findings if one.name == "truncation" and one.count] == [
        [f"{file}:9"],
        [f"{held}:3"],
    ]


def test_lengths_say_of_what_they_are(tmp_path: Path) -> None:
    rows = [(f"{a} {b}", f"{b} {b} {b} {a}", "5" if a < "d" else "1.5") for a in "abcdefg" for b in "vwxyz"]
    pairs = audited("feature-extraction", table(tmp_path, rows, header="text\ttext_pair\tscore"))
    (lengths,) = (one.text for one in pairs.findings if one.name == "lengths")
    assert re.fullmatch(r"text median 4 tokens, .*; text_pair median 6 tokens, .*", lengths)
    assert any(re.fullmatch(r"  score +(5|1\.5)", line) for line in pairs.sample)
    sources = audited("translation", table(tmp_path, [row[:2] for row in rows], header="source\ttarget"))
    (lengths,) = (one.text for one in sources.findings if one.name == "lengths")
    assert re.match(r"source median \d+ tokens, .*; target median \d+ tokens", lengths)


def test_places_are_seen_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the files were named; those outside stay as they were given."""
    inside, outside = tmp_path / "here" / "data", tmp_path / "there"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "train.tsv").write_text("text\tlabel\n" + "same &amp; text\tgood\nother text\tbad\n" * 3)
    monkeypatch.chdir(tmp_path / "here")

    def places(train: str, valid: str) -> set[str]:
        found = audit(RunSettings(task="text-classification", train=(train,), valid=(valid,), out="-"))
        return {part.partition(":")[0] for one in found.findings for at in one.places for part in at.split(" = ")}

    own = str(Path("data", "train.tsv"))
    assert places(str(inside / "train.tsv"), own) == {own}
    assert places(own, str(outside / "train.tsv")) == {own, str(outside / "train.tsv")}
    assert places(own, str(Path("..", "there", "train.tsv"))) == {own, str(Path("..", "there", "train.tsv"))}


def conll(folder: Path, sentences: list[list[tuple[str, str]]], name: str = "set.conll") -> Path:
    file = folder / name
    file.write_text(
        "\n\n".join("\n".join("\t".join(pair) for pair in one) for one in sentences) + "\n", encoding="utf-8"
    )
    return file


CITIES = ["Oslo", "Rome", "Bern", "Lima", "Kyiv", "Cairo"]
TRIPS = [[("Then", "O"), (f"Ann{i}", "B-PER"), ("saw", "O"), (CITIES[i % 6], "B-LOC"), (".", "O")] for i in range(30)]


def named(found: Audit, name: str) -> list[Any]:
    return [one for one in found.findings if one.name == name]


def test_a_prefix_that_all_words_share_is_seen_and_its_remedy_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = conll(tmp_path, TRIPS)
    wiki = conll(tmp_path, [[(f"en:{word}", tag) for word, tag in one] for one in TRIPS], "wiki.conll")
    assert not named(audited("token-classification", clean), "prefix")
    [found] = named(audited("token-classification", wiki), "prefix")
    assert (found.level, found.places[0]) == ("warning", f"{wiki}:1")
    assert "--data.strip-prefix en:" in found.text
    told = audited("token-classification", wiki, data=DataSettings(strip_prefix="en:"))
    wanted = audited("token-classification", clean)
    assert told.sample == wanted.sample  # what the model is given
    assert not named(told, "prefix")
    command = ["train", "token-classification", "--train", str(wiki), "--out", str(tmp_path / "run"), "--max-steps=2"]
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=120", "--data.strip-prefix=en:"]
    assert cli.main([*command, *small, "--json"]) == 0
    assert "strip_prefix" in (tmp_path / "run" / "run.toml").read_text()
    capsys.readouterr()
    scores = []
    for file in (wiki, clean):  # remembered: with the prefix or without, the model reads the same
        assert cli.main(["evaluate", str(tmp_path / "run"), "--data", str(file), "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["metrics"])
        assert cli.main(["predict", str(tmp_path / "run"), "--in", str(file), "--json"]) == 0
        scores.append([json.loads(line)["output"] for line in capsys.readouterr().out.splitlines()])
    assert scores[:2] == scores[2:]
    assert cli.main([*command, *small, "--data.strip-prefix=de:", "--overwrite"]) == 2
    said = capsys.readouterr().err
    assert "--data.strip-prefix" in said
    assert f"{wiki}:1" in said
    tokens = ["train", "text-classification", "--train", str(wiki), "--out", "x", "--data.strip-prefix=en:"]
    assert cli.main(tokens) == 2
    assert "--data.strip-prefix" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["@ann"] * 9 + ["fine"] * 20, ["-"] * 40, ["en:"] * 40, ["the"] * 40])
def test_words_that_begin_alike_by_right_have_no_prefix(words: list[str]) -> None:
    rows = [Row({"words": tuple(words), "tags": ("O",) * len(words)}, "a.conll", 1)]
    assert list(check_word_prefix(rows, {"words": "words", "tags": "tags"})) == []


def test_a_label_that_stands_on_one_word_alone(tmp_path: Path) -> None:
    [found] = named(
        audited("token-classification", conll(tmp_path, [*TRIPS, *[[("Acme", "B-ORG")]] * 5])), "single-word"
    )
    assert (found.level, found.count, found.places) == ("warning", 1, [f"{tmp_path / 'set.conll'}:181"])
    assert "B-ORG" in found.text
    assert not named(audited("token-classification", conll(tmp_path, TRIPS)), "single-word")
    speech = [[("to", "PART"), (f"go{i}", "VERB")] for i in range(20)]  # a part of speech may have one word
    assert not named(audited("token-classification", conll(tmp_path, speech)), "single-word")


def test_numeric_labels_are_a_warning(tmp_path: Path) -> None:
    file = table(tmp_path, [(f"text number {i}", f"{i % 30 / 8}") for i in range(150)])
    [one] = named(audited("text-classification", file, data=DataSettings(label_kind="class")), "numeric labels")
    assert (one.level, one.count) == ("warning", 30)
    assert "--data.label-kind number" in one.text
    found = audited("text-classification", file)  # recognised: it is said what they are learned as
    assert not named(found, "numeric labels")
    assert not named(found, "rare")
    assert "numbers from 0 to" in named(found, "labels")[0].text
    few = table(tmp_path, [(f"text {i}", str(i % 5)) for i in range(60)], "few.tsv")
    assert not named(audited("text-classification", few, data=DataSettings(label_kind="class")), "numeric labels")


def test_its_own_split_never_leaks_by_case_or_blanks(tmp_path: Path) -> None:
    forms = ["Text {} here", "text {} here", "TEXT  {} HERE", " text {} here "]
    rows = [(form.format(i), "good" if i % 2 else "bad") for i in range(40) for form in forms]
    found = audited("text-classification", table(tmp_path, rows))
    assert found.validation_examples
    assert not named(found, "leakage")
    words = [[(word.upper() if i % 2 else word, tag) for word, tag in TRIPS[i // 2]] for i in range(60)]
    assert not named(audited("token-classification", conll(tmp_path, words)), "leakage")


def test_characters_of_windows_are_no_controls(tmp_path: Path) -> None:
    rows = [("thats it", "good"), ("thatÂ\u0092s it", "bad"), ("that\u0092s it", "good"), ("a\x07 bell", "bad")]
    found = {
        one.name: one.places for one in check_characters(list(read(str(table(tmp_path, rows)), COLUMNS)), dict(COLUMNS))
    }
    assert found == {
        name: [f"{tmp_path / 'set.tsv'}:{line}"] for name, line in (("mojibake", 3), ("windows", 4), ("controls", 5))
    }


def test_a_window_is_named_by_the_line_of_its_row(tmp_path: Path) -> None:
    text = "Ann came to Oslo . " * 20
    asked = [
        {"question": f"Who came {i} ?", "context": text, "answers": {"text": ["Ann"], "answer_start": [0]}}
        for i in (1, 2)
    ]
    file = tmp_path / "asked.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")
    rows = read(str(file), QuestionAnswering.columns)
    settings = RunSettings(task="question-answering", train=(str(file),), out="-", data=DataSettings(max_length=40))
    task = QuestionAnswering.prepare(rows[:1], settings)
    held = Rows([replace(rows[1], values={**rows[1].values, "question": "Who ☃ came ?"})], 0, rows.columns)
    encoded = task.encode(held)
    assert len(encoded.examples) > len(held)
    [found] = [one for one in check_tokens(task, encoded) if one.name == "unknown"]
    assert found.places == [f"{file}:2"]
