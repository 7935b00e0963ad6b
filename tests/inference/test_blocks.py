"""Pipelines of any number of inputs: in blocks, as one call would answer them."""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from answering_folders import WORDS, made
from heedful.errors import HeedfulError
from heedful.generation.options import resolve
from heedful.inference import input_blocks as blocks
from heedful.inference.input_blocks import BlockOptions, BlockWarnings, input_size
from heedful.inference.pipeline import Pipeline
from heedful.util.input_warnings import CountWarning
from tolerances import approx

TEXTS = [f"the {WORDS[n % 8]}{' and more' * (n % 5)}" for n in range(50)]
DRAWN: dict[str, Any] = {"max_new_tokens": 5, "temperature": 3.0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most 8 inputs."""
    monkeypatch.setattr("heedful.inference.pipeline.BLOCK", 8)
    monkeypatch.setattr(blocks, "BLOCK", 8)


@pytest.mark.parametrize("task", ["translation", "text-generation"])
@pytest.mark.parametrize("seed", [5, list(range(100, 150))])
def test_blocks_draw_as_one_call_would(task: str, seed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline(*made(task))
    whole = [one.output for one in pipe.predict(TEXTS, seed=seed, **DRAWN)]
    assert len(set(whole)) > 45  # the same texts draw anew
    monkeypatch.setattr("heedful.inference.pipeline.BLOCK", 8)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    assert [one.output for one in pipe.predict(TEXTS, seed=seed, **DRAWN)] == whole
    assert [one["output"] for one in pipe(iter(TEXTS), seed=seed, **DRAWN)] == whole


@pytest.mark.parametrize("count", [49, 51])
def test_a_seed_too_few_or_too_many(small: None, count: int) -> None:
    pipe = Pipeline(*made("translation"))
    with pytest.raises(
        HeedfulError, match=rf"seed has {count} numbers, but there are .* inputs; give one seed for each"
    ):
        list(pipe(iter(TEXTS), seed=[1] * count, **DRAWN))
    with pytest.raises(HeedfulError, match=rf"seed has {count} numbers"):
        pipe(TEXTS, seed=[1] * count, **DRAWN)


def test_an_iterator_is_read_as_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, taken = Pipeline(*made("text-classification")), list[str]()

    def texts() -> Iterator[str]:
        for text in TEXTS * 3:
            taken.append(text)
            yield text

    answers = pipe(texts())
    assert taken == []
    first = next(answers)
    assert len(taken) == blocks.FIRST
    every = [first, *answers]
    assert taken == TEXTS * 3
    for mine, whole in zip(every, pipe(TEXTS * 3), strict=True):
        assert mine == whole | {"score": approx(whole["score"], "layer")}


def test_one_input_and_several() -> None:
    pipe = Pipeline(*made("text-classification"))
    assert isinstance(pipe("the saw"), dict)
    assert isinstance(pipe(["the saw"]), list)
    for several in (iter(["the saw"]), (text for text in ["the saw"]), {"the saw": 1}.keys(), {"the saw"}):
        assert [one["input"] for one in pipe(several)] == ["the saw"]
    assert pipe([]) == []
    assert list(pipe(iter([]))) == []
    images = Pipeline(*made("image-classification"))
    assert isinstance(images(np.zeros((28, 28), dtype=np.uint8)), dict)


def test_options_are_refused_before_anything_is_read(small: None) -> None:
    def texts() -> Iterator[str]:
        raise AssertionError("read")
        yield ""

    pipe = Pipeline(*made("translation"))
    with pytest.raises(HeedfulError, match="num_beam"):
        pipe(texts(), num_beam=3)
    with pytest.raises(HeedfulError, match=r"seed is 'one'"):
        pipe(texts(), seed="one")
    with pytest.raises(HeedfulError, match="the option seed has no effect for text-classification"):
        Pipeline(*made("text-classification"))(texts(), seed=1)


@pytest.mark.parametrize("options", [{}, {"do_sample": False}, {"num_beams": 2}])
def test_a_seed_where_nothing_is_drawn_is_harmless_and_said_once(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = Pipeline(*made("translation"))
    wanted = pipe(TEXTS, **options)
    assert not caplog.records
    assert pipe(TEXTS, seed=3, **options) == wanted
    assert list(pipe(iter(TEXTS), seed=3, **options)) == wanted
    assert [("seed" in one.getMessage(), "--do-sample" in one.getMessage()) for one in caplog.records] == [(True, True)]


@pytest.mark.parametrize("task", ["translation", "text-generation"])
def test_options_are_resolved_once(task: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, calls = Pipeline(*made(task)), list[Any]()

    def counted(call: Any, defaults: Any = None) -> Any:
        calls.append(call)
        return resolve(call, defaults)

    for module in ("generation.decoding", "tasks.encoder_decoder_task", "tasks.text_generation"):
        monkeypatch.setattr(importlib.import_module(f"heedful.{module}"), "resolve", counted)
    assert len(pipe.predict(TEXTS, seed=5, **DRAWN)) == 50
    assert len(calls) == 1


def test_warnings_and_errors_count_over_all_blocks(small: None, caplog: pytest.LogCaptureFixture) -> None:
    long = "and " * 60
    pipe = Pipeline(*made("text-classification"))
    with caplog.at_level(logging.WARNING):
        pipe([*TEXTS[:20], long, *TEXTS[20:], long])
    (said,) = caplog.messages
    assert said.startswith("2 of 52 inputs cut to 32 tokens")
    caplog.clear()
    task, model = made("translation")
    task.positions = 16  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        list(Pipeline(task, model)(iter(["the saw"] * 20 + [long]), max_new_tokens=2))
    (said,) = caplog.messages
    assert said.startswith("input 20 has 241 tokens, only 16 of them are read")
    pipe = Pipeline(*made("text-generation"))
    with pytest.raises(HeedfulError, match=r"^input 30 has 240 tokens, but a beam search reads at most"):
        pipe([*["the saw"] * 30, long], num_beams=2, max_new_tokens=2, do_sample=False)


def live() -> int:
    """Bytes of all tensors that are held."""
    gc.collect()
    held = {}
    for one in gc.get_objects():
        # and none of those that stand for others while exporting, nor prepacked ones, whose memory is oneDNN's
        if type(one) in (torch.Tensor, torch.nn.Parameter) and not one.is_mkldnn:
            storage = one.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def test_tensors_do_not_add_up(small: None) -> None:
    pipe = Pipeline(*made("text-classification"))
    answers = pipe(iter(TEXTS * 4))
    next(answers)
    before = live()
    for _ in range(150):
        next(answers)
    assert live() <= before


def test_sizes() -> None:
    assert input_size("abc") == 3
    assert input_size(("ab", "c")) == 3
    assert input_size([{"role": "user", "content": "hi"}]) == 6
    assert input_size(b"x" * 100) == 5
    assert input_size(np.zeros((10, 10), dtype=np.uint8)) == 5
    assert input_size(7) == 0


def test_warnings_of_one_input_are_added_up_too(caplog: pytest.LogCaptureFixture) -> None:
    merged, log = BlockWarnings(), logging.getLogger("heedful")
    with merged.naming(str):
        log.warning(CountWarning(1, 1, "cut to 5 tokens"))
        log.warning(CountWarning(2, 3, "cut to 5 tokens", "question"))
        log.warning(CountWarning(1, 2, "cut to 5 tokens", "text"))
    assert caplog.messages == []
    merged.end(6)
    assert caplog.messages == ["4 of 6 inputs cut to 5 tokens"]


def test_seeds_of_equal_inputs_differ_and_can_be_had_again() -> None:
    options = {"decoding": resolve({"do_sample": True, "seed": 3}), "batch_tokens": 9}
    blocks_of, again = BlockOptions(options), BlockOptions(options)
    own = [blocks_of.of(["a", "b", "a"]), blocks_of.of(["a", "c"])]
    given = [seed for one in own for seed in one["decoding"].seed]
    assert own[1] == {"decoding": replace(options["decoding"], seed=given[3:]), "batch_tokens": 9}
    assert len(set(given)) == 3  # a's second and third
    assert given[0] == given[1] == given[4] == 3
    assert again.of(["a", "b", "a", "a", "c"])["decoding"].seed == given
