"""Texts without labels beside few labelled ones: what they teach, how they are read, and where they are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful import cli
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.tasks import defaults, token_vectors
from heedful.tasks.classifier_ensemble import ClassifierEnsemble
from heedful.tasks.run_data import unlabelled_rows
from heedful.training.callbacks import TrainingRun
from heedful.verify.run_comparison import compare_runs

WORDS = {label: [f"{label}{number}" for number in range(24)] for label in ("sea", "land")}
KNOWN = 6  # words of each kind that labelled texts have; the validation texts have the others
SMALL = {"model_settings": {"members": 2, "dim": 16}, "tokenizer": {"size": 300}}


def texts(label: str, words: Sequence[str], count: int, length: int) -> list[dict[str, str]]:
    draw = random.Random(f"{label} {count}")
    return [{"text": " ".join(draw.sample(words, length)), "label": label} for _ in range(count)]


LABELLED = [row for label, words in WORDS.items() for row in texts(label, words[:KNOWN], 12, 3)]
VALID = [row for label, words in WORDS.items() for row in texts(label, words[KNOWN:], 40, 3)]
MORE = [{"text": row["text"]} for label, words in WORDS.items() for row in texts(label, words, 200, 6)]


def train(out: Path, data: Any = LABELLED, **given: Any) -> TrainingRun:
    options: dict[str, Any] = {"quiet": True, **SMALL, "valid": VALID, "training": {"lr": 0.01}, **given}
    return heedful.train("text-classification", data, out=out, **options)


def write(path: Path, rows: Sequence[dict[str, str]]) -> str:
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def rows(values: Sequence[str]) -> Rows:
    return Rows((Row({"text": text, "label": "a"}, "set.tsv", i) for i, text in enumerate(values, 1)), 0)


def test_words_that_no_labelled_text_has_are_learned(tmp_path: Path) -> None:
    steps = {"max_steps": 40}
    with_more = train(tmp_path / "more", unlabelled=MORE, **steps)
    without = train(tmp_path / "without", **steps)
    assert with_more.metrics["accuracy"] > 90
    assert without.metrics["accuracy"] < 70


def test_vectors_are_the_decomposition_of_counted_neighbours() -> None:
    draw = random.Random(0)
    texts = [[draw.randrange(1, 30) for _ in range(draw.randrange(1, 12))] for _ in range(200)]
    special, size = {1, 2}, 31  # no text has token 30
    counts = np.zeros((size, size))
    for text in texts:
        tokens = [token for token in text if token not in special]
        for i, first in enumerate(tokens):
            for second in tokens[i + 1 : i + 1 + token_vectors.WINDOW]:
                counts[first, second] += 1
                counts[second, first] += 1
    n = counts.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log(counts * (n**0.75).sum() / np.outer(n, n**0.75))
    u, sigma, _ = np.linalg.svd(np.where(pmi > 0, pmi, 0))
    by_hand = u[:, :6] * np.sqrt(sigma[:6])
    ours = token_vectors.token_vectors(texts, size, 6, special)
    known = sorted({*range(3, 30)})
    assert not ours[[0, 1, 2, 30]].any()
    assert np.square(ours[known]).mean() == pytest.approx(1)
    factor = np.square(by_hand[known]).mean()
    np.testing.assert_allclose(ours @ ours.T, by_hand @ by_hand.T / factor, atol=0.02)
    assert not token_vectors.token_vectors([[4], [], [5]], 9, 4, ()).any()  # without neighbours


def test_a_run_that_broke_off_ends_with_the_same_bits(tmp_path: Path, capsys: Any) -> None:
    files = ["--train", write(tmp_path / "set.tsv", LABELLED), "--valid", write(tmp_path / "valid.tsv", VALID)]
    files += ["--unlabelled", write(tmp_path / "more.tsv", MORE)]
    small = ["--model.members=2", "--model.dim=16", "--training.evaluate-every=2", "--training.log-every=1", "--json"]
    command = ["train", "text-classification", *files, *small, "--training.schedule=constant"]
    whole, parts = tmp_path / "whole" / "run", tmp_path / "parts" / "run"  # model cards hold the folder's name
    assert cli.main([*command, "--out", str(whole), "--max-steps=6"]) == 0
    assert cli.main([*command, "--out", str(parts), "--max-steps=3"]) == 0
    resume = ["train", "text-classification", *files[:2], "--out", str(parts), "--resume", "--max-steps=6"]
    assert cli.main(resume) == 0
    found = {check.name: check for check in compare_runs(whole, parts)}
    for name in ("last weights", "averaged weights", "checkpoint"):
        assert found[name].verdict == "ok", (name, found[name].reason)
    capsys.readouterr()
    assert cli.main([*resume, "--unlabelled", files[1]]) == 2
    assert "--unlabelled is" in capsys.readouterr().err


def test_texts_that_are_read_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("first\n\nFirst \nknown\nheld\nsecond\n")
    table = write(tmp_path / "table.tsv", [{"label": "b", "text": "third"}, {"label": "", "text": "second"}])
    (tmp_path / "rows.jsonl").write_text(json.dumps({"label": 3, "text": "fourth"}) + "\n")
    sources = [str(tmp_path / "lines.txt"), table, str(tmp_path / "rows.jsonl")]
    found = unlabelled_rows(sources, rows(["known"]), rows(["HELD"]))
    assert [row.values for row in found] == [{"text": text} for text in ("first", "second", "third", "fourth")]
    assert found.skipped == 1
    read = "only column text of {} is read"
    assert found.notes == [
        *(read.format(source) for source in sources[1:]),
        "4 texts left out, which are repeated or among the labelled ones",
    ]
    sentences = write(tmp_path / "sentences.tsv", [{"label": "b", "sentence": "fifth", "title": "a title"}])
    labelled = rows(["known"])
    labelled.mapping = {"text": "sentence", "label": "label"}  # as in the training data
    assert [row.values for row in unlabelled_rows([sentences], labelled, Rows())] == [{"text": "fifth"}]


def test_texts_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("known\nheld\n")
    with pytest.raises(HeedfulError, match=r"known\.txt: all 2 texts of --unlabelled are among the labelled ones"):
        unlabelled_rows([str(tmp_path / "known.txt")], rows(["known"]), rows(["held"]))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(HeedfulError, match=r"no rows in .*empty\.txt"):
        unlabelled_rows([str(tmp_path / "empty.txt")], rows(["known"]), Rows())
    (tmp_path / "numbers.csv").write_text("id,size\n1,5\n2,7\n")
    with pytest.raises(HeedfulError, match=r"numbers\.csv has no column of texts; call it 'text'"):
        unlabelled_rows([str(tmp_path / "numbers.csv")], rows(["known"]), Rows())


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("translation", {}, "--unlabelled has no effect for translation"),
        ("text-classification", {"model_settings": {"members": 1}}, "teaches a new ensemble of text classifiers"),
        ("text-classification", {"preset": "bert-tiny"}, "teaches a new ensemble of text classifiers"),
    ],
)
def test_runs_without_use_for_it_refuse_it(task: str, given: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = LABELLED if task == "text-classification" else [{"source": "a", "target": "b"}] * 3
    message = message.replace("--", "")
    with pytest.raises(HeedfulError, match=message):
        heedful.train(task, data, out=tmp_path / "run", unlabelled=MORE, quiet=True, max_steps=1, **given)
    assert not (tmp_path / "run").exists()


def test_the_head_of_a_run_says_it(tmp_path: Path, capsys: Any) -> None:
    files = ["--train", write(tmp_path / "set.tsv", LABELLED), "--unlabelled", write(tmp_path / "more.tsv", MORE)]
    small = ["--model.members=2", "--model.dim=16", "--out", str(tmp_path / "run"), "--max-steps=1"]
    assert cli.main(["train", "text-classification", *files, *small]) == 0
    told = capsys.readouterr().out
    assert f"unlabelled {len({row['text'] for row in MORE})} texts: two members begin with vectors" in told
    assert "only column text of" in told
    card = json.loads((tmp_path / "run" / "heedful.json").read_text())
    assert card["settings"]["unlabelled"] == [str(tmp_path / "more.tsv")]


def test_two_members_read_the_words_of_all_texts() -> None:
    given = RunSettings(task="text-classification", train=("a",), out="b", unlabelled=("c",))
    assert defaults.member_count(30_000, given, ["new", "words"]) == 6
    suggested = defaults.ensemble(10, given, ["a word"])
    assert (suggested.model.members, suggested.max_epochs) == (6, 30)
    specs = defaults.members(suggested)
    assert [spec.vectors for spec in specs] == [True, True, False, False, False, False]
    data = Rows([Row(row, "set.tsv", 1) for row in LABELLED])
    data.unlabelled = Rows([Row(row, "more.txt", 1) for row in MORE])
    task = ClassifierEnsemble.prepare(data, suggested)
    assert task.members[0].tokenizer is task.members[1].tokenizer
    sizes = [member.tokenizer.vocab_size for member in task.members[:4]]
    assert sizes[1] > sizes[2] == sizes[3]


def test_rows_from_python_are_not_needed_to_resume(tmp_path: Path) -> None:
    train(tmp_path / "run", unlabelled=MORE, max_steps=1)
    assert len((tmp_path / "run" / "data" / "unlabelled.jsonl").read_text().splitlines()) == len(MORE)
    (tmp_path / "run" / "data" / "unlabelled.jsonl").unlink()
    assert train(tmp_path / "run", None, resume=True, max_steps=2).step == 2
