"""What an audit finds, of data made wrong on purpose, and that it says nothing of data that is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from heedful import cli
from heedful.auditing.audit import Audit, audit
from heedful.auditing.tokens import looked_at
from heedful.data import Row, Rows
from heedful.data import pieces as cut
from heedful.settings import DataSettings, RunSettings, TokenizerSettings
from heedful.tasks.text_generation import TextGeneration

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
    assert "nothing stands out" in result.lines()[0]
    assert result.examples + result.held == len(RIGHT)


def test_what_is_said_twice_and_what_contradicts(tmp_path: Path) -> None:
    file = table(tmp_path, [*RIGHT, ("The a  V is fine", "good"), ("the b w is fine", "bad")])
    held = table(tmp_path, [("the A v is poor", "bad"), ("never seen", "good")], "held.tsv")
    result = audited("text-classification", file, valid=(str(held),))
    assert found(result)["duplicates"] == ("warning", 1, [52])  # letters in either case, blanks as one
    assert found(result)["contradict"] == ("warning", 1, [53])
    assert found(result)["leakage"] == ("warning", 1, [2])
    leak = next(one for one in result.findings if one.name == "leakage")
    assert leak.places == [f"{held}:2 = {file}:27"]


def test_sentences_may_be_said_again(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    held = table(tmp_path, [("new", "new")], "held.tsv", header="source\ttarget")
    result = audited("translation", table(tmp_path, pairs * 2, header="source\ttarget"), valid=(str(held),))
    assert found(result)["duplicates"][:2] == ("fact", 35)
    assert result.ok


def test_a_pair_is_asked_as_a_whole(tmp_path: Path) -> None:
    pairs = [(f"the {a}", f"is {b}", "yes" if a < b else "no") for a in "abcdefg" for b in "vwxyz"]
    file = table(tmp_path, [*pairs, ("the a", "is v", "no")], header="text\ttext_pair\tlabel")
    held = table(tmp_path, [("the a", "is new", "yes"), ("the b", "IS z", "no")], "held.tsv", "text\ttext_pair\tlabel")
    names = found(audited("text-classification", file, valid=(str(held),)))
    assert names["contradict"] == ("warning", 1, [37])
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


def test_what_is_cut_and_what_is_unknown(tmp_path: Path) -> None:
    rows = [*RIGHT, (" ".join("vwxyz" * 30), "good")]
    result = audited("text-classification", table(tmp_path, rows), data=DataSettings(max_length=16))
    names = found(result)
    assert names["read"][:2] == ("warning", 1)
    lengths = next(one for one in result.findings if one.name == "lengths")
    assert "16 at most" in lengths.text
    odd = [(f"{'ab' * 60}{i} the", "good" if i % 2 else "bad") for i in range(60)]
    names = found(audited("text-classification", table(tmp_path, odd, "odd.tsv")))
    assert names["unknown"][0] == "warning"


def test_examples_with_nothing_to_learn(tmp_path: Path) -> None:
    talks = [[{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"{i}"}] for i in range(5)]
    rows = Rows((Row({"messages": tuple(talk)}, "talks.jsonl", i) for i, talk in enumerate(talks, 1)), 0, ("messages",))
    task = TextGeneration.prepare(rows, RunSettings("text-generation", train=("talks.jsonl",), out="-"))
    encoded = task.encode(rows)
    assert [one.name for one in looked_at(task, encoded)] == []
    for place in (1, 3):
        talk = encoded.examples[place]
        encoded.examples[place] = talk._replace(learned=[True] + [False] * (len(talk.ids) - 1))  # first: never
    (finding,) = looked_at(task, encoded)
    assert (finding.name, finding.level, finding.count) == ("masked", "warning", 2)
    assert finding.places == ["talks.jsonl:2", "talks.jsonl:4"]
    assert "every label is masked" in finding.line()


def test_the_sample_is_what_the_model_is_given(tmp_path: Path) -> None:
    pairs = [(f"one {a} {b}", f"{b} {a}") for a in "abcdefg" for b in "vwxyz"]
    result = audited("translation", table(tmp_path, pairs, header="source\ttarget"))
    sample = "\n".join(result.sample)
    assert "source     one| a| v|</s>" in sample
    assert "target    <s>|‹ v›|‹ a›|‹</s>›" in sample
    assert "3 of 3 places are learned from" in sample
    words = "".join(f"see\tO\n{a}{b}\tB-x\n\n" for a in "abcdefg" for b in "vwxyz")
    (tmp_path / "set.conll").write_text(words, encoding="utf-8")
    sample = "\n".join(audited("token-classification", tmp_path / "set.conll").sample)
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
    monkeypatch.setattr(cut, "LARGE", 1)
    monkeypatch.setattr(cut, "PIECE", 20)
    texts = [f"line {n} has some words in it\n" for n in range(400)]
    lines = texts if name == "set.txt" else [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / name).write_text("".join(lines))
    told = next(one for one in audited("text-generation", tmp_path / name).findings if one.name == "sampled")
    what = "pieces of documents" if name == "set.txt" else "documents"
    assert 40 < told.count < 100
    assert re.fullmatch(rf"{told.count} of \d\d\d {what} were looked at", told.text)
