"""Continuations of published weights: what transformers made of them (``expected.json`` beside each)."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli import main
from heedful.generation import decode
from heedful.inference.pipeline import Pipeline
from tolerances import approx

WEIGHTS = Path(__file__).parents[2].parent / "shared" / "data" / "weights"
TITLER = Path(os.environ.get("HEEDFUL_TITLER", WEIGHTS / "flan-t5-small-titler"))  # 308 MB, made by a script beside
FOLDERS = {"stories260K": WEIGHTS / "stories260K", "stories15M": WEIGHTS / "stories15M", "titler": TITLER}


def folder_of(name: str) -> Path:
    folder = FOLDERS[name]
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"the weights of {name} are not at {folder}")
    return folder


@cache
def opened(folder: Path) -> tuple[Pipeline, dict[str, Any]]:
    """On a CPU, computed in float32 as the expectations were."""
    pipe = heedful.pipeline(None, folder, device="cpu", dtype="float32")
    return pipe, json.loads((folder / "expected.json").read_text("utf-8"))


def new_ids(made: Any, case: dict[str, Any], model: Any) -> list[list[int]]:
    before = len(case["ids"]) if model.config.kind == "decoder" else 1
    return [row[before:length] for row, length in zip(made.ids.tolist(), made.lengths.tolist(), strict=True)]


@pytest.mark.parametrize("name", FOLDERS)
def test_greedy_rows_are_those_expected(name):
    pipe, expected = opened(folder_of(name))
    for case in [*expected["greedy"], *expected.get("repetition", [])]:
        options = {"max_new_tokens": case["max_new_tokens"], **case.get("settings", {})}
        made = decode(pipe.model, torch.tensor([case["ids"]]), defaults=pipe.model.generation, **options)
        assert new_ids(made, case, pipe.model) == [case["new_ids"]]


@pytest.mark.parametrize("name", FOLDERS)
def test_beams_are_those_expected(name):
    pipe, expected = opened(folder_of(name))
    for case in expected["beam"]:
        made = decode(pipe.model, torch.tensor([case["ids"]]), defaults=pipe.model.generation, **case["settings"])
        assert new_ids(made, case, pipe.model) == [one["new_ids"] for one in case["returned"]]
        for score, one in zip(made.scores.tolist(), case["returned"], strict=True):
            assert score == approx(one["score"])


@pytest.mark.parametrize("name", FOLDERS)
def test_texts_go_in_and_come_out_as_expected(name):
    """From text to text by the task: the published tokenizer's ids, the prompt as it was, no space lost or won."""
    pipe, expected = opened(folder_of(name))
    decoder = pipe.model.config.kind == "decoder"
    for case in expected["greedy"]:
        most = {"max_new_tokens": case["max_new_tokens"]}
        answer = pipe(case["prompt"], do_sample=False, **most)
        assert answer["output"].startswith(case["prompt"] if decoder else "")
        new = answer["output"][len(case["prompt"]) :] if decoder else answer["output"]
        assert new.strip() == case["text"].strip()
        if decoder and case["prompt"]:
            assert new[0] == " "  # all of these go on with a new word
        if decoder:
            assert "".join(pipe.stream(case["prompt"], do_sample=False, **most)) == answer["output"]


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_a_prompt_comes_back_as_it_was(name):
    pipe, expected = opened(folder_of(name))
    for case in expected["tokenizer"]:
        answer = pipe(case["text"], max_new_tokens=1)
        assert answer["output"].startswith(case["text"])
        assert pipe.task.prompt_ids([case["text"]]) == [case["ids"]]


def test_a_story_without_repeated_pairs_of_words(capsys):
    folder = folder_of("stories15M")
    asked = ["--max-length", "100", "--no-repeat-ngram-size", "2", "--top-k", "50", "--top-p", "0.95"]
    told = set()
    for seed in range(4):
        line = ["predict", str(folder), "In a world where", *asked, "--temperature", "0.7", "--seed", str(seed)]
        assert main([*line, "--device", "cpu", "--json"]) == 0
        text = json.loads(capsys.readouterr().out)["output"]
        assert text.startswith("In a world where ")
        pipe, _ = opened(folder)
        ids = pipe.task.prompt_ids([text])[0]
        assert 20 < len(ids) <= 100
        pairs = list(pairwise(ids))
        assert len(pairs) == len(set(pairs))
        told.add(text)
    assert len(told) == 4
