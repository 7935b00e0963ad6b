"""Inputs and targets of a batch as people see them: the tokens, and the target at each."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.audit.audit import audit
from heedful.data import Row, Rows, read
from heedful.settings import DataSettings, RunSettings
from heedful.tasks.inputs_and_targets import Side
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.token_classification import TokenClassification
from heedful.text import Tokenizer


@pytest.mark.parametrize("several", [False, True])
def test_a_class_is_not_taken_for_a_token_s_label(tmp_path: Path, several: bool) -> None:
    file = tmp_path / "set.csv"
    rows = [(f"maybe{' so' * (n % 4)}", ["yes", "no", "perhaps"][n % 3]) for n in range(24)]
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    data = DataSettings(label_separator=";" if several else None)
    settings = RunSettings("text-classification", train=(str(file),), valid=(str(file),), out="-", data=data)
    found = read([str(file)], TextClassification.columns, separator=data.label_separator)
    task = TextClassification.prepare(found, settings)
    batch = task.collate(task.encode(Rows(found[:1])).examples)
    assert batch["ids"].shape == batch["labels"].shape == (1, 3)  # as many tokens as labels
    (side,) = task.sides(batch)
    assert (side.pieces, side.targets) == (["<s>", " maybe", "</s>"], ["", "", ""])
    assert any("<s>| maybe|</s>" in line for line in audit(settings).sample)


def test_labels_of_tokens_where_there_are_as_many_as_classes() -> None:
    row = Row({"words": ("Paris",), "tags": ("B-LOC",)}, "places.conll", 1)
    other = Row({"words": ("in",), "tags": ("O",)}, "places.conll", 3)
    task = TokenClassification.prepare([row, other], RunSettings("token-classification", train=("-",), out="-"))
    batch = task.collate(task.encode(Rows([row])).examples)
    task.labels += [f"B-{n}" for n in range(batch["ids"].shape[1] - len(task.labels))]
    assert batch["ids"].shape == batch["labels"].shape == (1, len(task.labels))
    assert [target for target in task.sides(batch)[0].targets if target] == ["B-LOC"]


def test_nothing_reaches_a_terminal_that_moves_it() -> None:
    words = Tokenizer.train(["one two"], size=300)
    bell = words.encode(["a\x1b[2J\x07\n"])[0]
    line = Side("text", bell, words, ["x\x1b"] * len(bell)).line()
    assert line.isprintable()
    assert "⏎" in line


@pytest.mark.parametrize("predicts_next", [False, True])
@pytest.mark.parametrize("places", [[], [3], [58, 59], [60], [70, 300], [399], [5, 200, 398], range(400), [19, 25, 61]])
def test_of_a_long_text_the_first_and_the_last_lesson_are_shown(places: list[int], predicts_next: bool) -> None:
    words = Tokenizer.train(["one two"], size=300)
    said = [f"<{i}>" if i in places else "" for i in range(400)]
    shown = Side("text", [5] * 400, words, said, predicts_next).line(60).split("|")
    assert sum(piece != "…" for piece in shown) <= 60
    assert shown[0] != "…"
    assert (shown[-1] == "…") == (len(places) == 0 or max(places) < 396)
    told = [i for i in places if any(f"<{i}>" in piece for piece in shown)]
    assert told[:1] == list(places)[:1]
    assert told[-1:] == list(places)[-1:]
    assert "…|…" not in "|".join(shown)
