"""Examples of a server's page: the model card's, the run's, or neutral ones, and inputs that the model takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from answering_folders import made, saved
from heedful.serving.examples import COUNT, MESSAGES, NEUTRAL, input_examples


def logged(folder: Path, *inputs: str) -> None:
    samples = [{"input": text, "output": "o", "target": "t"} for text in inputs]
    lines = [
        {"step": 1, "samples": [{"input": "an old one"}]},
        {"step": 2, "samples": samples},
        {"step": 3, "loss": 1.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def card(folder: Path, widget: str) -> None:
    (folder / "README.md").write_text(f"---\ntags:\n- a\nwidget:\n{widget}\n---\n\n# A model\n", encoding="utf-8")


def test_the_card_comes_before_the_run_and_the_run_before_neutral_texts(tmp_path: Path) -> None:
    task, _ = made("text-classification")
    assert input_examples(task, str(tmp_path), False) == [{"text": text} for text in NEUTRAL]
    assert input_examples(task, "", False) == [{"text": text} for text in NEUTRAL]
    logged(tmp_path, "a pear", "", "a text that was cut…", "a saw", "a drill")
    assert input_examples(task, str(tmp_path), False) == [{"text": "a pear"}, {"text": "a saw"}]
    card(tmp_path, "- text: of the card\n- src: image.png\n- text: 7")
    assert input_examples(task, str(tmp_path), False) == [{"text": "of the card"}]


def test_columns_of_a_question_have_the_names_of_the_hub(tmp_path: Path) -> None:
    task, _ = made("question-answering")
    neutral = [{"question": "What does it say?", "context": text} for text in NEUTRAL]
    logged(tmp_path, "a question, and a context that were joined")
    assert input_examples(task, str(tmp_path), False) == neutral
    card(tmp_path, "- text: Who came?\n  context: Ann came.\n- text: without a context")
    assert input_examples(task, str(tmp_path), False) == [{"question": "Who came?", "context": "Ann came."}]


@pytest.mark.parametrize(
    ("readme", "log"),
    [
        ("---\nwidget: [\n---\n", '{"samples": 7}\n'),
        ("---\nwidget: 7\n---\n", '{"samples": [{}]}\n'),
        ("\ud800", "\x00"),
    ],
)
def test_damaged_files_give_neutral_texts(tmp_path: Path, readme: str, log: str) -> None:
    task, _ = made("text-classification")
    (tmp_path / "README.md").write_bytes(readme.encode("utf-8", "surrogatepass"))
    (tmp_path / "metrics.jsonl").write_text(log, encoding="utf-8")
    assert input_examples(task, str(tmp_path), False) == [{"text": text} for text in NEUTRAL]


def test_other_inputs() -> None:
    task, _ = made("text-generation")
    assert input_examples(task, "", True) == [{"text": message} for message in MESSAGES]
    assert input_examples(made("image-classification")[0], "", False) == []
    assert len(input_examples(made("translation", tagged=True)[0], "", False)) == COUNT


def test_a_mask_stands_in_a_text_for_a_model_that_fills_masks(tmp_path: Path) -> None:
    pipe = heedful.pipeline(None, saved("fill-mask", tmp_path / "folder"))
    for example in input_examples(pipe.task, "", False):
        assert example["text"].count("<mask>") == 1
        assert pipe(example["text"])["output"]
