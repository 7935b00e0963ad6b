"""Several outputs for an input (``num_return_sequences``): samples, or the best beams, as those of ``transformers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import heedful
from answering_folders import made, saved
from heedful.cli import main
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.inference.pipeline import Pipeline
from tolerances import approx

TEXTS = ["the saw is a tool", "a", "the quince, the plum", "the saw is a tool"]
BEAMS: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 6, "do_sample": False}
DRAWN: dict[str, Any] = {"do_sample": True, "seed": 3, "num_return_sequences": 3, "max_new_tokens": 6}


@pytest.mark.parametrize("name", ["translation", "text-generation"])
def test_the_beams_of_transformers(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path)
    pipe = heedful.pipeline(None, folder)
    auto = transformers.AutoModelForSeq2SeqLM if name == "translation" else transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(folder).eval()
    tokenizer = pipe.task.source if name == "translation" else pipe.task.tokenizer  # type: ignore[attr-defined]
    for text, prediction in zip(TEXTS, pipe(TEXTS, **BEAMS), strict=True):
        ids = tokenizer.encode([text])[0] + ([tokenizer.end] if name == "translation" else [])
        made = theirs.generate(
            torch.tensor([ids]), return_dict_in_generate=True, output_scores=True, length_penalty=1.0, **BEAMS
        )
        assert [item["text"] for item in prediction["output"]] == tokenizer.decode(made.sequences.tolist())
        assert [item["score"] for item in prediction["output"]] == approx(made.sequences_scores.tolist())
        assert prediction["score"] == prediction["output"][0]["score"]


@pytest.mark.parametrize("name", ["translation", "summarization", "text-generation"])
@pytest.mark.parametrize("options", [BEAMS, DRAWN], ids=["beams", "sampling"])
def test_alone_and_in_a_batch(name: str, options: dict[str, Any]) -> None:
    pipe = Pipeline(*made(name))
    together = pipe(TEXTS, **options)
    for text, prediction in zip(TEXTS[:3], together, strict=False):
        alone = pipe(text, **options)
        assert alone["input"] == text
        assert [item["text"] for item in alone["output"]] == [item["text"] for item in prediction["output"]]
        assert len(alone["output"]) == 3
    if options is DRAWN:  # a repeated input, and each of its outputs, is drawn anew
        texts = [item["text"] for prediction in (together[0], together[3]) for item in prediction["output"]]
        assert len(set(texts)) > 3
    first = pipe(TEXTS, **{**options, "num_return_sequences": 1})
    if options is BEAMS:
        assert [one["output"] for one in first] == [prediction["output"][0]["text"] for prediction in together]


def test_log_probabilities_and_empty_inputs() -> None:
    pipe = Pipeline(*made("translation"))
    told, empty = pipe(["the saw", " "], logprobs=True, **BEAMS)
    assert [list(item) for item in told["output"]] == [["text", "score", "logprobs"]] * 3
    assert empty == {"input": " ", "output": [], "score": None}


def test_missing_beams_are_left_out() -> None:
    task, model = made("text-generation")
    pipe = Pipeline(task, model)
    size = model.config.embedding.vocab_size  # type: ignore[union-attr]
    options = {"suppress_tokens": list(range(2, size)), "max_new_tokens": 1, "num_beams": 4, "do_sample": False}
    assert len(pipe("the", num_return_sequences=4, **options)["output"]) == 2


def test_the_number_of_a_folder_has_no_effect() -> None:
    task, model = made("text-generation")
    model.generation = {"num_return_sequences": 2, "do_sample": True}
    assert isinstance(Pipeline(task, model)("the", seed=1)["output"], str)
    assert "".join(Pipeline(task, model).stream("the", seed=1)).startswith("the")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(saved("translation", tmp_path / "model"))
    options = ["--num-beams", "3", "--num-return-sequences", "2", "--max-new-tokens", "4"]
    main(["predict", folder, "the saw", *options, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [set(item) for item in told["output"]] == [{"text", "score"}] * 2
    main(["predict", folder, "the saw", *options])
    assert json.loads(capsys.readouterr().out) == told["output"]
    (tmp_path / "in.txt").write_text("the saw\n\n")
    main(["predict", folder, "--in", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.jsonl"), *options])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [item["text"] for item in lines[0]["output"]] == [item["text"] for item in told["output"]]
    assert lines[1]["output"] == []


def test_where_several_have_no_meaning(tmp_path: Path) -> None:
    pipe = Pipeline(*made("text-generation"))
    with pytest.raises(HeedfulError, match="stream cannot return several sequences; leave num_return_sequences out"):
        pipe.stream("the", do_sample=True, num_return_sequences=2)
    with pytest.raises(HeedfulError, match="num_return_sequences=2 has no effect on greedy decoding"):
        pipe("the", do_sample=False, num_return_sequences=2)
    with pytest.raises(HeedfulError, match="stride joins one summary of each piece"):
        Pipeline(*made("summarization"))("the saw", stride=2, **BEAMS)
    folder = saved("translation", tmp_path)
    (tmp_path / "valid.tsv").write_text("source\ttarget\nthe saw\tthe saw\n")
    with pytest.raises(HeedfulError, match="num_return_sequences has no effect: it changes the shown output"):
        evaluate(folder, tmp_path / "valid.tsv", decoding=BEAMS)
    with pytest.raises(HeedfulError, match="num_return_sequences has no effect: it changes the shown output"):
        compare([str(folder), str(folder)], [str(tmp_path / "valid.tsv")], decoding=BEAMS)
