"""Compiled kernels: every format, every part of a stack, and every way of decoding, beside PyTorch's own kernels."""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import logging
import os
import pickle
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import compiled_calls
import fresh_process
import heedful
from answering_folders import saved
from emulated import Emulated
from heedful import cli, optimize_model
from heedful.cache import Cache
from heedful.config import AlibiPosition, LearnedPosition, RelativePosition, RotaryPosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import decoder_state, stream
from heedful.generation.decoder_state import create_state
from heedful.generation.options import resolve
from heedful.generation.slots import SlotDecoder
from heedful.kernels import compiled_step, few_rows, few_rows_build
from heedful.kernels.few_rows import CompiledLinear, compiler
from heedful.kernels.fixed_cache import SlotCache
from heedful.kernels.onednn_linear import has_onednn
from heedful.kernels.plan import apply_plan
from heedful.kernels.prepacked_linear import FloatLinear, HalfLinear, Int4Linear, Int8Linear
from heedful.layers.attention_kernels import explicit_attention
from heedful.layers.feedforward import ACTIVATIONS
from tolerances import assert_close

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ on Linux)")


@pytest.fixture(autouse=True)
def _needs_bfloat16(request: pytest.FixtureRequest) -> None:
    """Cases of bfloat16 are skipped, saying so, where ``optimize`` refuses to compile for it."""
    if "bfloat16" in request.node.name and not has_onednn(torch.bfloat16):
        pytest.skip("oneDNN has no products of bfloat16 on this processor")


IDS = torch.tensor([[9, 14, 33, 7, 52], [8, 30, 11, 47, 5], [55, 6, 24, 13, 38], [3, 4, 5, 6, 7]])
STORIES = Path(__file__).parents[2].parent / "shared" / "data" / "weights" / "stories260K"
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
CLASSES = {
    "float32": FloatLinear,
    "bfloat16": FloatLinear,
    "float16": HalfLinear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}


def possible() -> list[str]:
    """The dtypes for which PyTorch has kernels here; a compiled map takes them for many rows."""
    return [dtype for dtype in CLASSES if dtype != "bfloat16" or has_onednn(torch.bfloat16)]


WEIGHTS = {"bfloat16": torch.bfloat16}  # dtypes of the weights that are given; the others are float32
GROUPS = {"int8": 256, "int4": 32}  # inputs of a row with one scale, where the processor sums bytes (AVX512-VNNI)
# parts that a decoder of 2 blocks of 32 may have, and of an encoder-decoder
STACKS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": {"norm": "rms", "gated": True, "activation": "silu", "position": RotaryPosition(), "kv_heads": 2},
    "multi-query": {"kv_heads": 1, "attention_bias": "none", "ff_bias": False},
    "heads of 12": {"head_dim": 12, "position": RotaryPosition(base=100.0)},
    "query norms": {"qk_norm": "head", "norm": "rms", "position": RotaryPosition()},
    "alibi": {"position": AlibiPosition()},
    "relative": {"position": RelativePosition(), "scale": "none", "activation": "relu"},
    "learned, relative": {"position": LearnedPosition(length=64, buckets=8)},
    "sinusoidal, post-norm": {"position": SinusoidalPosition(), "placement": "post", "activation": "gelu_tanh"},
    "sandwich": {"placement": "sandwich", "norm": "rms"},
    "norms of outputs": {"placement": "out", "norm": "rms"},
    "scale": {"scale": 1.5},
    "embedding norm": {"embedding_norm": True, "ff_dim": 100},
    "no bias in norms": {"norm_bias": False, "first_norm": False, "embedding_norm": True},
    "half rotated": {"position": RotaryPosition(share=0.5, scaling="yarn", factor=4.0, original_length=8)},
    "parallel": {"sublayers": "parallel", "position": RotaryPosition(share=0.5)},
    "parallel, one norm": {"sublayers": "parallel-shared", "gated": True, "ff_dim": 100},
    "parallel sandwich": {"sublayers": "parallel", "placement": "sandwich", "norm": "rms"},
    "window": {"window": 4, "position": RotaryPosition()},
    "windows": {"window": (None, 4), "position": RotaryPosition()},
    "windows, relative": {"window": (4, None), "position": RelativePosition()},
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each compiled step of a stack."""
    return compiled_calls.rows_of_steps(monkeypatch)


def create(stack: str, name: str = "gpt-micro") -> Any:
    config = heedful.presets.get(name)
    shape = {"dim": 32, "depth": 2, "heads": 4, "ff_dim": 64}
    if name != "gpt-micro":
        shape = {key: getattr(config.decoder, key) for key in shape}
    changes: dict[str, Any] = {**shape, **STACKS[stack]}
    if "encoder" not in vars(config):
        return heedful.create(replace(config, decoder=replace(config.decoder, **changes)), seed=0).eval()
    same = {key: value for key, value in changes.items() if key in ("norm", "placement")}
    return heedful.create(
        replace(config, encoder=replace(config.encoder, **same), decoder=replace(config.decoder, **changes)), seed=0
    ).eval()


def pair(stack: str, dtype: str = "float32", name: str = "gpt-micro") -> tuple[Any, Any]:
    """A model as it is, and the same compiled."""
    plain = create(stack, name).to(torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    return plain, optimized(create(stack, name), dtype)


def optimized(model: Any, dtype: str = "float32") -> Any:
    """The model with compiled kernels, also if they had to be compiled first."""
    fast = heedful.optimize(model, dtype)
    wait_for_kernels(fast)
    fast.begin_call()
    return fast


def wait_for_kernels(model: Any) -> None:
    if model.compiling is not None:
        model.compiling.thread.join()


# -------------------------------------------------------------------------------------------------------- linear maps


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 17, 32, 40])
@pytest.mark.parametrize(("into", "out"), [(64, 12), (100, 7), (33, 1), (31, 5), (768, 50), (544, 130)])
@pytest.mark.parametrize("dtype", CLASSES)
@pytest.mark.full(keep=40)
def test_a_product_is_that_of_the_rounded_weights(dtype: str, into: int, out: int, rows: int) -> None:
    if dtype == "int4" and into % Int4Linear.GROUP:
        pytest.skip("int4 takes whole groups")
    assert_product(dtype, into, out, rows, has_vnni())


def assert_product(dtype: str, into: int, out: int, rows: int, is_rounded: bool) -> None:
    """The product of a few rows, which for int8 and int4 are rounded to 8 bits if ``is_rounded``."""
    generator = torch.Generator().manual_seed(into + out)
    weight, bias = torch.randn(out, into, generator=generator) / into**0.5, torch.randn(out, generator=generator)
    weight = weight.bfloat16() if dtype == "bfloat16" else weight
    linear = CompiledLinear(CLASSES[dtype], weight, bias)
    x = torch.randn(rows, into, generator=generator).to(weight.dtype)
    with torch.inference_mode():
        y = linear(x)
    rounded = expected_weight(dtype, weight)
    if dtype in GROUPS and is_rounded:
        x = rounded_rows(x, GROUPS[dtype])
    assert y.dtype is weight.dtype
    assert_close(y, F.linear(x.double(), rounded, bias.double()).to(y.dtype), "forward")


WEIGHTS_TO_ROUND = {
    "rows": torch.randn(37, 96, generator=torch.Generator().manual_seed(1)),
    "transposed": torch.randn(96, 37, generator=torch.Generator().manual_seed(2)).mT,
    "a part": torch.randn(40, 300, generator=torch.Generator().manual_seed(3))[3:, 100:196],
    "ties": torch.cat((torch.tensor([[127.0], [-127.0]]), torch.arange(95).expand(2, -1) - 40.5), 1),
    "ties of groups": torch.cat((torch.tensor([[0.0, 15.0]]), torch.arange(30)[None] % 15 + 0.5), 1),
    "zeros": torch.zeros(3, 32),
    "tiny": torch.full((2, 32), 1e-40),
    "alike": torch.full((2, 32), 3.7),
    "large": torch.tensor([[3.4e38, -3.4e38, *[1.0] * 30]]),
}


@pytest.mark.parametrize("name", WEIGHTS_TO_ROUND)
@pytest.mark.parametrize("dtype", GROUPS)
def test_weights_are_rounded_as_without_compiled_code(dtype: str, name: str) -> None:
    weight = WEIGHTS_TO_ROUND[name]
    for found, expected in zip(
        few_rows.rounded_numbers(CLASSES[dtype], weight), CLASSES[dtype].numbers(weight), strict=True
    ):
        assert found.is_contiguous()
        assert found.dtype is expected.dtype
        if name != "large" or dtype == "int8":  # else a scale is infinite, and levels are anything
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", GROUPS)
def test_a_weight_that_is_not_a_number_stays_visible(dtype: str) -> None:
    weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    weight[1, 40] = torch.nan
    _, scales, *_ = few_rows.rounded_numbers(CLASSES[dtype], weight)
    assert scales.isnan().sum() == 1
    assert scales[1].isnan().any()


def has_vnni() -> bool:
    return "avx512_vnni" in Path("/proc/cpuinfo").read_text()


def rounded_rows(x: Tensor, group: int) -> Tensor:
    """Rows in 8 bits, with a scale for each group."""
    groups = F.pad(x, (0, -x.size(1) % group)).unflatten(1, (-1, group))
    largest = groups.abs().amax(-1, keepdim=True)
    rounded = (groups * (127 / largest)).round() * (largest / 127)
    return rounded.flatten(1)[:, : x.size(1)]


def expected_weight(dtype: str, weight: Tensor) -> Tensor:
    """The numbers that the format holds, computed in float64 from the class's own levels and scales."""
    if dtype == "int8":
        levels, scales = Int8Linear.numbers(weight)
        return levels.double() * scales.double()[:, None]
    if dtype == "int4":
        levels, scales, middle = Int4Linear.numbers(weight)
        groups = levels.double().unflatten(1, (-1, Int4Linear.GROUP)) - 8
        return (groups * scales.double()[..., None] + middle.double()[..., None]).flatten(1)
    return (weight.half() if dtype == "float16" else weight).double()


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu", "tanh"])
def test_activations(name: str) -> None:
    x = torch.linspace(-12, 12, 4 * 32).view(4, 32)
    linear = CompiledLinear(FloatLinear, torch.eye(32), None, ACTIVATIONS[name])
    with torch.inference_mode():
        assert_close(linear(x), ACTIVATIONS[name](x.double()).float(), "layer")


@pytest.mark.parametrize("row", ["nan", "inf", "1e-38", "0.0"])
@pytest.mark.parametrize("dtype", CLASSES)
def test_a_row_of_odd_numbers(dtype: str, row: str) -> None:
    """NaN and infinity stay visible, in their own row; a number near zero is not mistaken for a large one."""
    weight = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    weight = weight.bfloat16() if dtype == "bfloat16" else weight
    linear = CompiledLinear(CLASSES[dtype], weight, None, ACTIVATIONS["relu"])
    x = torch.ones(3, 64, dtype=weight.dtype)
    x[1] = 0
    x[1, 2] = float(row)
    with torch.inference_mode():
        y = linear(x)
    assert torch.equal(y[0], y[2])
    assert y[0].isfinite().all()
    if row == "nan":
        assert y[1].isnan().all()
    elif row == "inf":
        assert not y[1].isfinite().all()
    else:
        assert y[1].abs().max() < 1e-36


@pytest.mark.parametrize("size", [1, 32])
def test_every_number_of_float16(size: int) -> None:
    """All that are finite, as a weight of a whole step, and of the inputs after it."""
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).float()
    weight = numbers[numbers.isfinite()][:, None].repeat(1, size)
    linear = CompiledLinear(HalfLinear, weight)
    with torch.inference_mode():
        assert torch.equal(linear(torch.eye(size)[:1])[0], weight[:, 0])


@pytest.mark.parametrize("dtype", CLASSES)
def test_a_row_is_the_same_alone_and_in_a_batch(dtype: str) -> None:
    """To the bit, up to the largest number of rows."""
    linear = CompiledLinear(CLASSES[dtype], torch.randn(50, 288, dtype=WEIGHTS.get(dtype, torch.float32)))
    x = torch.randn(min(linear.most_rows, 140), 288).to(WEIGHTS.get(dtype, torch.float32))
    with torch.inference_mode():
        alone = torch.cat([linear(x[[row]]) for row in range(len(x))])
        for rows in (2, 3, 5, 8, 16, 17, 31, 33, len(x)):
            assert torch.equal(linear(x[:rows]), alone[:rows])


def test_many_rows_take_the_other_map() -> None:
    linear = CompiledLinear(FloatLinear, torch.randn(5, 8))
    x = torch.randn(linear.most_rows + 1, 8)
    with torch.inference_mode():
        assert torch.equal(linear(x), linear.many_rows(x))
        assert linear(x[:0]).shape == (0, 5)


@pytest.mark.parametrize("dtype", CLASSES)
def test_the_weight_is_that_of_the_format(dtype: str) -> None:
    """Also where the weights are in memory once, interleaved."""
    weight = torch.randn(50, 96)
    weight = weight.bfloat16() if dtype == "bfloat16" else weight
    linear = CompiledLinear(CLASSES[dtype], weight)
    assert_close(linear.weight.float(), expected_weight(dtype, weight).float(), "layer")
    assert linear(torch.zeros(0, 96, dtype=weight.dtype)).shape == (0, 50)


@pytest.mark.parametrize("linear_class", [Int8Linear, Int4Linear])
@pytest.mark.parametrize(("out", "into"), [(70, 96), (50, 288), (16, 64), (301, 64), (33, 32)])
def test_interleaved_numbers_come_back(linear_class: Any, out: int, into: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "is_interleaved", lambda: True)
    numbers = linear_class.numbers(torch.randn(out, into) * 0.1 + 0.3)
    back = few_rows.interleaved_numbers(few_rows.weights_of(linear_class, numbers), out, into)
    assert all(map(torch.equal, back, numbers))


# ------------------------------------------------------------------------------------------------------------- stacks


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("stack", STACKS)
def test_a_step_of_every_kind_of_stack(stack: str, rows: int, calls: list[int]) -> None:
    plain, fast = pair(stack)
    assert_steps_equal(plain, fast, rows, decoder_logits)
    assert calls == [rows] * 4


NOT_COMPILED: dict[str, dict[str, Any]] = {
    "norms over all heads": {"qk_norm": "all", "norm": "rms"},
    "offset norms": {"norm": "rms-offset"},
    "capped scores": {"score_cap": 0.5},
    "layer scale": {"layer_scale": 0.5},
}


@pytest.mark.parametrize("stack", NOT_COMPILED)
def test_parts_that_are_not_compiled_are_left_to_pytorch(
    stack: str, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    monkeypatch.setitem(STACKS, stack, NOT_COMPILED[stack])
    plain, fast = pair(stack)
    assert_steps_equal(plain, fast, 2, decoder_logits)
    assert calls == []


@pytest.mark.parametrize(("stack", "windows"), [("gpt", 1), ("window", 1), ("windows", 2)])
def test_a_step_makes_one_bias_for_each_window(stack: str, windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each block, which may be many."""
    masks: list[Any] = []

    own = compiled_step.bias_of

    def bias_of(mask: Any, *bias: Any) -> Any:
        masks.append(mask)
        return own(mask, *bias)

    monkeypatch.setattr(compiled_step, "bias_of", bias_of)
    with torch.inference_mode():
        decoder_logits(pair(stack)[1], 3)
    assert sum(mask is not None for mask in masks) == 4 * windows


@pytest.mark.parametrize("stack", ["gpt", "llama", "relative", "sinusoidal, post-norm"])
def test_a_step_of_an_encoder_decoder(stack: str, calls: list[int]) -> None:
    plain, fast = pair(stack, name="transformer-tiny")
    assert_steps_equal(plain, fast, 3, encoder_decoder_logits)
    assert calls == [3] * 4


@pytest.mark.parametrize("stack", ["gpt", "llama"])
def test_bfloat16_has_a_cache_of_bfloat16(stack: str, calls: list[int]) -> None:
    plain, fast = pair(stack, "bfloat16")
    with torch.inference_mode():
        exact = decoder_logits(plain.float(), 3)
        assert_close(decoder_logits(fast, 3), exact.bfloat16(), "forward")
    assert calls == [3] * 4


@pytest.mark.parametrize("stack", ["gpt", "llama", "window", "relative"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_keys_beside_weights_of_few_bits_are_stored_in_bfloat16(dtype: str, stack: str, calls: list[int]) -> None:
    """What compiled steps and PyTorch's kernels read of such a cache is the same; a float32 one is as near as rounding
    lets it be."""
    fast, stored = optimized(create(stack), dtype), torch.bfloat16
    with torch.inference_mode():
        whole, halves = decoder_logits(fast, 3), decoder_logits(fast, 3, stored)
        assert calls == [3] * 8
        handle = fast.decoder.block[1].feed_forward.register_forward_hook(lambda *_: None)
        others = decoder_logits(fast, 3, stored)
        handle.remove()
    assert calls == [3] * 8
    spread = float(whole.std())
    assert 0 < float((halves - whole).abs().max()) < 0.1 * spread
    assert float((halves - others).abs().max()) < 0.1 * spread


def stored_by_generation(model: Any, ids: Tensor, **settings: Any) -> set[torch.dtype]:
    """The dtypes of the keys and values after a prompt."""
    state = create_state(model, ids, torch.ones_like(ids).bool())
    vars(state).update(settings)
    state.make_cache(4)
    with torch.inference_mode():
        state.prefill()
    return {buffer.dtype for own, _ in state.cache.pairs for buffer in own.buffers}


def test_generation_chooses_how_keys_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "PROMPT_ROWS", 3)  # on any processor
    fast, plain, translator = (
        optimized(create("llama"), "int8"),
        optimized(create("llama"), "float32"),
        optimized(create("gpt", "transformer-tiny"), "int8"),
    )
    assert stored_by_generation(fast, IDS) == {torch.bfloat16}
    assert stored_by_generation(fast, IDS, keeps_all=True) == {torch.float32}  # will be cropped
    assert stored_by_generation(plain, IDS) == {torch.float32}
    assert compiled_step.stored_dtype(translator.decoder, 1) is None
    monkeypatch.setattr(compiled_step.step_of(fast.decoder), "most_rows", 3)
    assert stored_by_generation(fast, IDS) == {torch.float32}
    assert stored_by_generation(fast, IDS[:3]) == {torch.bfloat16}
    monkeypatch.setattr(compiled_step, "PROMPT_ROWS", 4)  # samples of a prompt may be more rows than are compiled
    assert stored_by_generation(fast, IDS[:3]) == {torch.float32}


def test_rows_of_another_dtype_join_slots_and_static_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model goes over to compiled kernels while a server has its slots; a prompt is read again beside other rows."""
    fast, halves = optimized(create("llama"), "int8"), torch.bfloat16
    for before, after in ((None, halves), (halves, None)):
        monkeypatch.setattr(decoder_state, "stored_dtype", lambda *_, dtype=before: dtype)
        slots = SlotDecoder(fast, slots=2, capacity=50)
        monkeypatch.setattr(decoder_state, "stored_dtype", lambda *_, dtype=after: dtype)
        slots.join([5, 9, 14], resolve({"max_new_tokens": 6, "min_new_tokens": 6}), limit=6)
        tokens = []
        while slots.rows:
            tokens += slots.step()
        assert len(tokens) == 6
        dtypes = iter([before, after] * 20)
        monkeypatch.setattr(decoder_state, "stored_dtype", lambda *_, rest=dtypes: next(rest))
        options = {"max_new_tokens": 30, "min_new_tokens": 30, "context": 16, "cache_implementation": "static"}
        assert fast.generate(IDS[:1], **options).shape == (1, IDS.size(1) + 30)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_cache_of_another_dtype_is_left_to_pytorch(dtype: torch.dtype, calls: list[int]) -> None:
    """Compiled code would write beyond it."""
    fast, ids = optimized(create("llama"), "int8"), torch.arange(40)[None] % 60 + 1
    caches = Cache(2, dtype=dtype), Cache(2)
    with torch.inference_mode():
        logits = [torch.cat((fast(ids, cache=cache), fast(ids[:, :1], cache=cache)), 1) for cache in caches]
    assert {buffer.dtype for own, _ in caches[0].pairs for buffer in own.buffers} == {dtype}
    assert calls == [1]  # of the other cache
    assert float((logits[0] - logits[1]).abs().max()) < 0.1 * float(logits[1].std())


def assert_steps_equal(plain: Any, fast: Any, rows: int, logits: Any) -> None:
    with torch.inference_mode():
        assert_close(logits(fast, rows), logits(plain.double(), rows).float(), "forward")


def decoder_logits(model: Any, rows: int, dtype: torch.dtype | None = None) -> Tensor:
    cache = Cache(model.config.decoder.depth, window=model.config.decoder.windows, dtype=dtype)
    model(IDS[:rows], None if rows == 1 else MASK[:rows], cache=cache)
    return torch.cat([model(IDS[:rows, [step]], cache=cache) for step in range(4)], 1)


def encoder_decoder_logits(model: Any, rows: int) -> Tensor:
    cache, memory = Cache(model.config.decoder.depth), model.encode(IDS[:rows], MASK[:rows])
    model.decode(IDS[:rows, :2], memory, None, MASK[:rows], cache=cache)
    steps = [model.decode(IDS[:rows, [step]], memory, None, MASK[:rows], cache=cache) for step in range(4)]
    return model.head(torch.cat(steps, 1))


# ----------------------------------------------------------------------------------------------------------- decoding


METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 1, "num_return_sequences": 2},
    "beams": {"num_beams": 3},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 3},
    "static": {"cache_implementation": "static"},
    "static beams": {"cache_implementation": "static", "num_beams": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "transformer-tiny"])
@pytest.mark.full(keep=10)
def test_every_method_gives_the_same_tokens(name: str, method: str, calls: list[int]) -> None:
    options = METHODS[method]
    rows = 1 if method == "prompt lookup" else 2
    expected = heedful.create(name, seed=0).generate(IDS[:rows], MASK[:rows], max_new_tokens=12, **options)
    fast = heedful.optimize(heedful.create(name, seed=0))
    assert torch.equal(fast.generate(IDS[:rows], MASK[:rows], max_new_tokens=12, **options), expected)
    assert calls or method == "prompt lookup"  # which reads the tokens it proposes together


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("prompt lookup", "sampling")])
def test_every_method_decodes_in_eight_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens as probable as those of the same model with a cache in float32: log p about -1 each, and -16 at random."""
    if not STORIES.is_dir():
        pytest.skip(f"no published weights at {STORIES}")
    plain, fast = (heedful.from_pretrained(STORIES, dtype=dtype) for dtype in ("float32", "int8"))
    wait_for_kernels(fast)
    fast.begin_call()
    options = {"max_new_tokens": 24, "min_new_tokens": 24, **METHODS[method]}

    def log_p() -> float:
        ids = fast.generate(IDS[:2], **options)
        with torch.inference_mode():
            each = plain(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])
        return float(each[:, IDS.size(1) - 1 :].mean())

    monkeypatch.setattr(decoder_state, "stored_dtype", lambda *_: torch.bfloat16)
    found = log_p()
    monkeypatch.setattr(decoder_state, "stored_dtype", lambda *_: None)
    assert found == pytest.approx(log_p(), abs=0.3)
    assert found > -2


def test_a_text_longer_than_the_context_and_a_window() -> None:
    plain, fast = pair("gpt")
    expected = plain.generate(IDS[:2], max_new_tokens=100, context=32)
    assert torch.equal(fast.generate(IDS[:2], max_new_tokens=100, context=32), expected)
    for name in ("window", "windows"):
        plain, fast = pair(name)
        assert torch.equal(fast.generate(IDS[:2], max_new_tokens=100), plain.generate(IDS[:2], max_new_tokens=100))


@pytest.mark.parametrize("allowed", [[], [0, 2], [4]])
def test_a_mask_of_all_pairs(allowed: list[int], calls: list[int]) -> None:
    """A token that may attend to some, to itself alone, or to nothing, which gives zeros."""
    plain, fast = pair("llama")
    mask = torch.zeros(1, 1, 5, dtype=torch.bool)
    mask[..., allowed] = True
    logits = []
    for model in (plain.double(), fast):
        cache = Cache(2)
        with torch.inference_mode():
            model(IDS[:1, :4], cache=cache)
            logits.append(model(IDS[:1, [4]], mask, cache=cache).float())
    assert_close(logits[1], logits[0], "forward")
    assert calls == [1]


def test_not_a_number_in_a_query_stays_visible(calls: list[int]) -> None:
    fast, cache = pair("gpt")[1], Cache(2)
    with torch.inference_mode():
        fast(IDS[:1], cache=cache)
        fast.decoder.block[-1].attention.projections.bias[0] = torch.nan  # of a query of the first head
        assert fast(IDS[:1, [0]], cache=cache).isnan().all()
    assert calls == [1] * len(calls)
    assert calls


def test_columns_after_the_token_of_a_row_are_not_read(calls: list[int]) -> None:
    """The shorter row has columns up to the longest row's, which are empty."""
    fast, prefix = pair("gpt")[1], Cache(2)
    with torch.inference_mode():
        fast(IDS[:1], cache=prefix)
        cache = SlotCache(prefix, slots=2, capacity=40)
        for slot in range(2):
            cache.fill(slot, prefix, IDS.size(1))
        cache.begin([IDS.size(1), 30])
        for own in cache.buffers:
            for buffer in own:
                buffer[0, :, IDS.size(1) + 1 :] = torch.nan
        assert not fast(IDS[:2, [0]], cache=cache)[0].isnan().any()
    assert calls == [2]


def test_threads_share_a_model() -> None:
    fast = pair("llama")[1]
    prompts = [IDS[[row % 4]] for row in range(12)]
    expected = [fast.generate(ids, max_new_tokens=20) for ids in prompts]

    def generate(number: int) -> Tensor:
        torch.set_num_threads(1 + number % 3)  # of this thread
        ids: Tensor = fast.generate(prompts[number], max_new_tokens=20)
        return ids

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(generate, range(12)))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "int4"])  # PyTorch cannot copy oneDNN's tensors
def test_copies_and_deleted_models(dtype: str, calls: list[int]) -> None:
    fast = pair("llama", dtype)[1]
    expected = fast.generate(IDS[:1], max_new_tokens=9)
    known = len(compiled_step.STEPS)
    copies = [copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))]
    del fast
    gc.collect()
    assert len(compiled_step.STEPS) < known
    for model in copies:
        del calls[:]
        assert torch.equal(model.generate(IDS[:1], max_new_tokens=9), expected)
        assert calls


def test_a_pruned_model(calls: list[int]) -> None:
    """Blocks of one head, and an odd number of units in a feed-forward network."""
    parts: dict[str, Any] = {"heads": {0: [0, 2, 3], 1: [0, 1, 3]}, "units": {0: [5], 1: [33]}}
    plain, fast = (heedful.inspection.prune(create("gpt"), **parts) for _ in range(2))
    assert_steps_equal(plain, heedful.optimize(fast), 3, decoder_logits)
    assert calls == [3] * 4


def test_many_tokens_in_a_window_in_flat_memory(calls: list[int]) -> None:
    """Under every limit of a token: the cache's buffers, and what the step holds."""
    fast = pair("window")[1]
    sizes = set()
    cache = Cache(2, window=4)
    with torch.inference_mode():
        fast(IDS[:1], cache=cache)
        for step in range(2000):
            fast(IDS[:1, [step % 5]], cache=cache)
            sizes.add(cache.pairs[0][0].buffers[0].size(2))
    assert len(calls) == 2000
    assert max(sizes) < 32


# ---------------------------------------------------------------------------------------- what is left to PyTorch


def test_a_recorded_or_changed_model_runs_as_written(calls: list[int]) -> None:
    plain, fast = pair("llama")
    with heedful.record(plain, "pattern") as expected, torch.inference_mode():
        decoder_logits(plain, 1)
    fast.generate(IDS[:1], max_new_tokens=3)
    del calls[:]
    with heedful.record(fast, "pattern") as seen, torch.inference_mode():
        decoder_logits(fast, 1)
    assert calls == []
    for path, pattern in expected.items():
        assert_close(seen[path], pattern, "forward")
    handle = fast.decoder.block[1].feed_forward.register_forward_hook(lambda part, inputs, output: output * 0)
    with torch.inference_mode():
        changed = decoder_logits(fast, 1)
    handle.remove()
    assert calls == []
    with torch.inference_mode():
        assert not torch.allclose(decoder_logits(fast, 1), changed)
    assert calls == [1] * 4


@pytest.mark.parametrize("change", ["forward", "attend", "dropout", "training", "global hook"])
def test_a_changed_part_is_seen_in_the_next_step(
    change: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, cache = pair("gpt")[1], Cache(2)
    block = fast.decoder.block[1]
    with torch.inference_mode():
        fast(IDS[:1], cache=cache)
        fast(IDS[:1, [0]], cache=cache)
        assert calls == [1]
        if change == "forward":
            monkeypatch.setattr(block.feed_forward, "forward", torch.zeros_like)
        elif change == "attend":
            monkeypatch.setattr(block.attention, "attend", explicit_attention)
        elif change == "dropout":
            block.feed_forward.dropout.train()
        elif change == "training":
            fast.train()
        else:
            monkeypatch.setitem(nn.modules.module._global_forward_hooks, -1, lambda *call: None)
        fast(IDS[:1, [0]], cache=cache)
    assert calls == [1]


def test_a_replaced_forward_of_a_part_is_left_alone(calls: list[int]) -> None:
    fast = pair("gpt")[1]
    fast.decoder.block[1].feed_forward.forward = torch.zeros_like
    fast.generate(IDS[:1], max_new_tokens=3)
    assert calls == []


def test_a_cache_of_other_keys_is_left_to_pytorch(calls: list[int]) -> None:
    """Compiled code would read and write beyond it."""
    fast, other, caches = pair("gpt")[1], create("heads of 12"), []
    for model, rows, dtype in ((fast, 2, torch.float32), (other, 1, torch.float32), (fast, 1, torch.float16)):
        cache = Cache(2)
        with torch.inference_mode():
            model(IDS[:rows], cache=cache)
        for own, _ in cache.pairs:
            own.buffers = tuple(buffer.to(dtype) for buffer in own.buffers)
        caches.append(cache)
    del calls[:]
    for cache in caches:
        with torch.inference_mode(), contextlib.suppress(RuntimeError):
            fast(IDS[:1, [0]], cache=cache)
    assert calls == []


def test_a_mask_of_another_length_is_refused() -> None:
    fast, cache = pair("gpt", name="transformer-tiny")[1], Cache(3)
    with torch.inference_mode():
        memory = fast.encode(IDS, MASK)
        fast.decode(IDS[:, :2], memory, None, MASK, cache=cache)
        with pytest.raises(HeedfulError, match=r"mask of shape \(4, 1, 1, 3\) does not fit 4 rows, 4 heads and 5 keys"):
            fast.decode(IDS[:, [0]], memory, None, MASK[:, :3], cache=cache)


def test_a_decoder_without_the_keys_of_its_memory_is_left_to_pytorch(calls: list[int]) -> None:
    fast, cache = pair("gpt", name="transformer-tiny")[1], Cache(3)
    with torch.inference_mode():
        memory = fast.encode(IDS, MASK)
        fast.decode(IDS[:, :2], memory, None, MASK, cache=cache)
        for before in ([], [4]):  # a cache that no step has used, and one that a step has
            for _, cross in cache.pairs:
                cross.pair = ()
            fast.decode(IDS[:, [0]], memory, None, MASK, cache=cache)
            assert calls == before
            fast.decode(IDS[:, [0]], memory, None, MASK, cache=cache)
            assert calls == [*before, 4]


def test_a_part_replaced_later_is_used(calls: list[int]) -> None:
    fast = pair("gpt")[1]
    fast.generate(IDS[:1], max_new_tokens=3)
    del calls[:]
    fast.decoder.block[0].feed_forward = Zero()
    fast.generate(IDS[:1], max_new_tokens=3)
    assert calls == []


class Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def test_a_custom_feed_forward_is_left_alone(calls: list[int]) -> None:
    model = create("gpt")
    model.decoder.block[0].feed_forward = Zero()
    expected = model.generate(IDS[:1], max_new_tokens=5)
    fast = heedful.optimize(model)
    assert torch.equal(fast.generate(IDS[:1], max_new_tokens=5), expected)
    assert calls == []


def test_another_plan_and_print() -> None:
    fast = pair("gpt")[1]
    assert "kernels='cpu-compiled'" in repr(fast)
    assert "layout=compiled_layout" in repr(fast)
    assert "CompiledLinear(in_features=32, out_features=96" in repr(fast)
    expected = fast.generate(IDS[:1], max_new_tokens=5)
    assert torch.equal(apply_plan(fast, "plain").generate(IDS[:1], max_new_tokens=5), expected)


# ------------------------------------------------------------------------------------------------- the library


@pytest.fixture
def fresh_library() -> Iterator[None]:
    few_rows._library.cache_clear()
    yield
    few_rows._library.cache_clear()


GCC = "Copyright (C) Free Software Foundation, Inc."
# what is in place of the compiler, and a part of the message
COMPILERS = {
    "missing": ("", r"a wheel or the C\+\+ compiler g\+\+"),
    "another": ("echo clang version 14.0.6", "cxx is not GCC"),
    "fails": (f"echo '{GCC}'; [ $1 = --version ]", "cannot compile the kernels: it ends with 1;"),
    "full disk": (
        f"echo '{GCC}'; [ $1 = --version ] || {{ echo 'fatal error: No space left on device' >&2; exit 1; }}",
        "cannot compile the kernels: fatal error: No space left on device;",
    ),
    "hangs": ("exec sleep 60", "cxx has not ended after 1 seconds"),
    "no program": ("#", "cannot be stored or loaded: .*; set HEEDFUL_CACHE to another folder"),
}


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("name", COMPILERS)
def test_without_a_compiler_everything_works_as_before(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, reason = COMPILERS[name]
    path = tmp_path / "cxx"
    if script:
        path.write_bytes(b"\x7fELF" if script == "#" else f"#!/bin/sh\n{script}\n".encode())
        path.chmod(0o755)
    monkeypatch.setattr(few_rows, "TIMEOUT", 1)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    assert_not_compiled(reason, caplog)
    assert not [*tmp_path.rglob("*.so")]


def assert_not_compiled(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """A line says why, and decoding goes on."""
    with caplog.at_level(logging.WARNING, "heedful"):
        model = heedful.optimize(create("gpt"))
        wait_for_kernels(model)
        assert torch.equal(model.generate(IDS, max_new_tokens=5), create("gpt").generate(IDS, max_new_tokens=5))
    assert model.kernels == "cpu-inference"
    assert model.compiling is None
    message = caplog.messages[-1]
    assert message.startswith("decoding is not compiled: ")
    assert "do without them: --no-compiled-decoding" in message
    assert "\n" not in message
    with pytest.raises(HeedfulError, match=reason):
        few_rows.library()


# other processors that this one can stand for, and undefined behaviour, which then ends the process
BUILDS = {
    "AVX2": ("-march=haswell",),
    "SSE4": ("-march=x86-64-v2",),
    "SSE2": ("-march=x86-64",),
    "AVX512": ("-march=skylake-avx512",),
    "VNNI": ("-march=icelake-server",),
    "undefined": ("-march=native", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"),
}
NEEDED = {"AVX512": ("avx512bw",), "VNNI": ("avx512_vnni", "gfni", "vpclmulqdq")}
OWN_HEADERS = ("undefined", "AVX512", "VNNI")  # GCC's headers leave vectors of AVX512 undefined, which warns
WARNINGS = ("-Wall", "-Wextra", "-Werror")


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
@pytest.mark.full(keep=0)
def test_other_processors(build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[int]) -> None:
    """They multiply and attend alike, with no warning and no instruction that their processor lacks."""
    if any(name not in Path("/proc/cpuinfo").read_text() for name in NEEDED.get(build, ())):
        pytest.skip(f"this processor cannot stand for one with {build}")
    common = tuple(flag for flag in few_rows.FLAGS if not flag.startswith("-march"))
    warnings = () if build in OWN_HEADERS else WARNINGS
    monkeypatch.setattr(few_rows, "FLAGS", (*common, *BUILDS[build], *warnings))
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    rounds = build == "VNNI" or (build == "undefined" and has_vnni())
    for dtype in possible():
        for into, out in ((64, 12), (96, 7), (100, 9), (31, 5)):
            if dtype != "int4" or into % Int4Linear.GROUP == 0:
                for rows in (1, 2, 3, 8, *((20, 40) if rounds else ())):
                    assert_product(dtype, into, out, rows, rounds)
        test_a_row_of_odd_numbers(dtype, "nan")
    for dtype in GROUPS:
        for name in WEIGHTS_TO_ROUND:
            test_weights_are_rounded_as_without_compiled_code(dtype, name)
    test_every_number_of_float16(32)
    for stack in STACKS:
        assert_steps_equal(*pair(stack), 3, decoder_logits)
    assert_steps_equal(*pair("gpt", name="transformer-tiny"), 3, encoder_decoder_logits)
    del calls[:]
    if "bfloat16" in possible():
        test_bfloat16_has_a_cache_of_bfloat16("llama", calls)
    (library,) = tmp_path.rglob("*.so")
    code = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout
    assert ("%ymm" in code) == (build in ("AVX2", *OWN_HEADERS))
    assert "%zmm" not in code or build in OWN_HEADERS
    assert "%tmm" not in code or build == "undefined"


# compiler, emulator, machine and name of the wheel's kinds of processor
EMULATORS = {
    "armv8": ("aarch64-linux-gnu-g++", ("qemu-aarch64",), "aarch64"),
    "v2": ("g++", ("qemu-x86_64", "-cpu", "Nehalem"), "x86_64"),
    "v3": ("g++", ("qemu-x86_64", "-cpu", "Haswell"), "x86_64"),
}


@pytest.mark.parametrize("name", EMULATORS)
@pytest.mark.full
def test_processors_in_an_emulator(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wheel's libraries need no instruction that their processor lacks, and multiply and attend alike."""
    compiler, emulator, machine = EMULATORS[name]
    for program in (compiler, emulator[0]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if machine == "x86_64" and platform.machine() != machine:
        pytest.skip("the compiler is not for x86")
    (processor,) = (each for each in few_rows_build.PROCESSORS[machine] if each.name == name)
    emulated = Emulated((compiler, *few_rows_build.flags_of(processor), "-static"), tmp_path, emulator)
    monkeypatch.setattr(few_rows, "library", lambda: emulated)
    monkeypatch.setattr(few_rows, "is_ready", lambda: True)
    for dtype in possible():
        for into, out in ((96, 7), (100, 9), (31, 5)):
            if dtype != "int4" or into % Int4Linear.GROUP == 0:
                for rows in (1, 3, 8):
                    assert_product(dtype, into, out, rows, is_rounded=False)
    for stack in ("gpt", "llama", "heads of 12", "query norms", "windows, relative"):
        assert_steps_equal(*pair(stack), 3, decoder_logits)
    assert_steps_equal(*pair("gpt", name="transformer-tiny"), 3, encoder_decoder_logits)
    fast = optimized(create("llama"), "int8")
    with torch.inference_mode():
        whole, halves = decoder_logits(fast, 3), decoder_logits(fast, 3, torch.bfloat16)
    assert 0 < float((halves - whole).abs().max()) < 0.1 * float(whole.std())
    before = emulated.calls
    expected = heedful.create("stories260k", seed=0).generate(IDS[:2], MASK[:2], max_new_tokens=12)
    fast = optimized(heedful.create("stories260k", seed=0))
    assert torch.equal(fast.generate(IDS[:2], MASK[:2], max_new_tokens=12), expected)
    assert emulated.calls > before


@pytest.mark.full
def test_threads_do_not_race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ThreadSanitizer ends a program that does: steps of few rows, several steps a call, and whole sequences."""
    flags = ("-fsanitize=thread", "-DOWN_THREADS", "-g1", "-Wno-tsan")
    watched = Emulated(("g++", *few_rows.FLAGS, *flags), tmp_path)
    monkeypatch.setenv("TSAN_OPTIONS", "halt_on_error=1 exitcode=66")
    monkeypatch.setattr(few_rows, "library", lambda: watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for dtype in ("float32", "int8", "int4"):
        assert_product(dtype, 96, 130, 3, has_vnni())
        fast, before = optimized(heedful.create("gpt-micro", seed=0), dtype), watched.calls
        fast.generate(torch.arange(2 * 40).view(2, 40) % 60 + 3, max_new_tokens=12, min_new_tokens=12)
        assert watched.calls > before


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("folder", ["a file", "no home"])
def test_without_a_folder_everything_works_as_before(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if folder == "a file":
        (tmp_path / "file").touch()
        monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "file"))
    else:
        for name in ("HEEDFUL_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    assert_not_compiled("cannot be stored or loaded: .*; set HEEDFUL_CACHE to another folder", caplog)


# flags in /proc/cpuinfo, and the library that is chosen
PROCESSORS = {
    "an Athlon of 2005": ("fpu sse sse2", None),
    "a Nehalem": ("pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm", "v2"),
    "a Haswell": (" ".join(few_rows_build._V3), "v3"),
    "a Skylake with AVX512 and no VNNI": (" ".join(few_rows_build._VNNI - {"avx512_vnni"}), "v3"),
    "an Ice Lake": (" ".join(few_rows_build._VNNI), "vnni"),
    "an EPYC": (" ".join(few_rows_build._BF16), "bf16"),
    "a Sapphire Rapids": (" ".join(few_rows_build._AMX), "amx"),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_wheel_s_library_is_that_of_the_processor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, expected = PROCESSORS[name]
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: {name}\nflags\t\t: {flags}\n")
    assert few_rows_build.packaged(tmp_path, cpuinfo) is None  # no wheel
    for each in few_rows_build.PROCESSORS["x86_64"]:
        (tmp_path / few_rows_build.file_name("x86_64", each)).touch()
    found = few_rows_build.packaged(tmp_path, cpuinfo)
    assert (found and found.name.split("-")[2]) == expected
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert few_rows_build.packaged(tmp_path, cpuinfo) is None


@pytest.mark.usefixtures("fresh_library")
def test_a_library_of_the_wheel_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = compiler()
    assert command is not None
    file = tmp_path / "packaged.so"
    few_rows_build.build(command, file, ("-O1", *few_rows.FLAGS[1:]))
    monkeypatch.setattr(few_rows, "packaged", lambda: file)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "unused"))
    fast = heedful.optimize(create("gpt"))
    assert (fast.kernels, fast.compiling) == ("cpu-compiled", None)
    assert torch.equal(fast.generate(IDS[:1], max_new_tokens=5), create("gpt").generate(IDS[:1], max_new_tokens=5))
    assert not (tmp_path / "unused").exists()


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


FUNCTIONS = (
    "void run() {} void run_sequences() {} long interleaved() { return 0; } void interleave() {} void checksum() {} "
    "void round8() {} void round4() {}"
)


@pytest.fixture
def quick_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_library: None) -> None:
    """A library of the same functions, without their bodies, which compiles in a tenth of the time."""
    source = f'extern "C" {{ {FUNCTIONS} }}\n'
    (tmp_path / "quick.cpp").write_text(source + f"char large[{2**14}] = {{1}};\n")
    monkeypatch.setattr(few_rows, "SOURCE", tmp_path / "quick.cpp")
    monkeypatch.setattr(few_rows, "FLAGS", ("-std=c++17", "-fopenmp", "-fPIC"))


@pytest.mark.usefixtures("quick_library")
def test_a_damaged_library_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A truncated one would end the process when a page of it is read. The compiler may be a command with arguments."""
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "env LC_ALL=C g++")
    few_rows.library()
    (file,) = tmp_path.rglob("*.so")
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:9999] + b"?" + content[10000:]):
        file.unlink()  # it is mapped
        file.write_bytes(damaged)
        few_rows._library.cache_clear()
        few_rows.library()
        assert file.stat().st_size == len(content)
        assert few_rows._is_whole(file)


PLANTED = """#include <cstdio>
__attribute__((constructor)) void planted() { FILE* file = fopen("%s", "w"); if (file) fclose(file); }
extern "C" { %s }
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's own: in a closed one nobody reaches the folders below."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.mark.usefixtures("quick_library")
@pytest.mark.parametrize("planted", ["by another", "writable", "in a shared folder", "in a folder of another"])
def test_no_library_of_another_user_is_loaded(
    planted: str, monkeypatch: pytest.MonkeyPatch, open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if "another" in planted and os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    monkeypatch.setenv("HEEDFUL_CACHE", str(open_folder / "cache"))
    with monkeypatch.context() as patched:  # a second library of one path would not be loaded
        functions = {name: Mock() for name in re.findall(r"(\w+)\(\)", FUNCTIONS)}
        patched.setattr(few_rows.ctypes, "CDLL", lambda path: SimpleNamespace(**functions))
        few_rows.library()
    (file,) = open_folder.rglob("*.so")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file)]
    (open_folder / "planted.cpp").write_text(PLANTED % (open_folder / "started", FUNCTIONS))
    command = ["g++", "-shared", "-fPIC", str(open_folder / "planted.cpp"), "-o", str(open_folder / "planted.so")]
    subprocess.run(command, check=True)
    content = (open_folder / "planted.so").read_bytes()
    file.write_bytes(content + hashlib.sha256(content).digest())
    file.chmod(0o666 if planted == "writable" else 0o644)
    if planted == "by another":
        os.chown(file, 65534, -1)
    if planted == "in a shared folder":
        file.parent.parent.chmod(0o777)
    if planted == "in a folder of another":
        os.chown(file.parent, 65534, -1)
    few_rows._library.cache_clear()
    caplog.clear()
    assert few_rows.library()
    assert not (open_folder / "started").exists()
    assert "compiling the kernels" in caplog.text
    assert ("other users may write to" in caplog.text) == ("in a" in planted)
    assert modes == [0o700, 0o700]


TWO_PROCESSES = """
import os, sys
from heedful.kernels import few_rows
few_rows.FLAGS = tuple(sys.argv[1:])
processes = []
for _ in range(2):
    process = os.fork()
    if not process:
        few_rows.library()
        os.write(1, b"ready\\n")
        os._exit(0)
    processes.append(process)
for process in processes:
    os.waitpid(process, 0)
"""


@pytest.mark.usefixtures("fresh_library")
def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    monkeypatch.setattr(few_rows, "FLAGS", ("-std=c++17", "-fopenmp", "-fPIC"))  # quick
    assert fresh_process.run(TWO_PROCESSES, *few_rows.FLAGS).stdout == "ready\n" * 2
    (file,) = tmp_path.rglob("*.so")
    before = file.stat().st_mtime_ns
    few_rows.library()
    assert file.stat().st_mtime_ns == before


def test_the_command_line(
    calls: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(saved("translation", tmp_path / "model"))
    predict = ["predict", folder, "the apple", "--max-new-tokens", "8", "--device", "cpu"]
    assert cli.main([*predict, "--no-compiled-decoding"]) == 0
    expected = capsys.readouterr().out
    assert calls == []
    assert cli.main(predict) == 0
    assert capsys.readouterr().out == expected
    assert calls
    del calls[:]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the apple\tone\nthe pear\ttwo\n")
    assert cli.main(["evaluate", folder, "--data", str(pairs), "--device", "cpu"]) == 0
    assert calls
    del calls[:]
    monkeypatch.setenv("HEEDFUL_COMPILED_DECODING", "false")
    assert cli.main(predict) == 0
    assert calls == []
    for command in ("predict", "evaluate"):
        assert cli.main([command, "--help"]) == 0
        assert "--compiled-decoding" in capsys.readouterr().out


def test_models_without_compiled_stacks_are_optimised_as_without_it(caplog: pytest.LogCaptureFixture) -> None:
    assert heedful.optimize(heedful.create("deberta-v3-xsmall", seed=0)).kernels == "cpu-inference"
    assert heedful.optimize(heedful.create("bert-tiny", seed=0), "float16").kernels == "cpu-inference"
    assert heedful.optimize(create("gpt"), "float64").kernels == "cpu-inference"
    assert not caplog.messages


def test_systems_without_compiled_kernels_say_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_rows._library.cache_clear()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert heedful.optimize(create("gpt")).kernels == "cpu-inference"
    assert not caplog.messages


def test_without_memory_for_a_second_order_of_the_weights(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize_model, "available_memory", lambda: 10**5)
    assert heedful.optimize(create("gpt")).kernels == "cpu-inference"
    assert re.match(
        r"decoding is not compiled: the weights would need 0\.\d GB more, of 0\.0 free", caplog.messages[-1]
    )


# --------------------------------------------------------------------------------------------- in the background


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("dtype", CLASSES)
def test_a_model_goes_over_to_compiled_kernels_between_two_calls(
    dtype: str, calls: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never within a call; the weights are those of a model for which the library was there from the beginning."""
    fast = optimized(create("gpt"), dtype)
    few_rows._library.cache_clear()
    may_end = Event()
    own = few_rows._compile

    def slow_compiler(*arguments: Any) -> None:
        assert may_end.wait(60)
        own(*arguments)

    monkeypatch.setattr(few_rows, "_compile", slow_compiler)
    monkeypatch.setattr(few_rows, "FLAGS", ("-O1", *few_rows.FLAGS[1:]))  # takes less time
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    model = heedful.optimize(create("gpt"), dtype)
    assert "kernels='cpu-inference', compiling=in the background" in repr(model)
    copied = copy.deepcopy(model)
    first = model.generate(IDS[:1], max_new_tokens=5)
    assert calls == []
    text = stream(model, IDS[:1], max_new_tokens=5)
    next(text)
    may_end.set()
    wait_for_kernels(model)
    assert len([*text]) == 4
    assert calls == []
    again = model.generate(IDS[:1], max_new_tokens=5)
    assert calls
    assert model.kernels == "cpu-compiled"
    assert torch.equal(again, fast.generate(IDS[:1], max_new_tokens=5))
    if dtype in ("float32", "float16"):
        assert torch.equal(first, again)
    del calls[:]
    wait_for_kernels(copied)
    assert torch.equal(copied.generate(IDS[:1], max_new_tokens=5), again)
    assert calls
    prompts = torch.arange(200).view(4, 50) % 60  # more rows than the compiled kernels take
    with torch.inference_mode():
        assert_close(model(prompts), fast(prompts), "forward")


ENDS = """
import os, sys, torch, heedful
model = heedful.optimize(heedful.create("gpt-micro", seed=0))
model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2)
print(model.kernels)
"""


def test_a_program_that_ends_leaves_the_library_to_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "env SLOW=1 g++")
    assert fresh_process.run(ENDS).stdout == "cpu-inference\n"
    for _ in range(600):
        if [*tmp_path.rglob("few-rows-*.so")]:
            break
        time.sleep(0.1)
    assert fresh_process.run(ENDS).stdout == "cpu-compiled\n"
    assert not [path for path in (tmp_path / "kernels").iterdir() if path.is_dir()]
