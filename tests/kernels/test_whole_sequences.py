"""Whole sequences in compiled code: encoders, images and prompts, beside plain models in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.cache import Cache
from heedful.config import AlibiPosition, NoPosition, RotaryPosition, SinusoidalPosition
from heedful.kernels import compiled_step, few_rows
from heedful.kernels.few_rows import CompiledLinear, Operation, compiler
from heedful.kernels.few_rows_build import features
from heedful.kernels.onednn_linear import has_onednn
from heedful.kernels.prepacked_linear import FloatLinear, Int4Linear, Int8Linear
from heedful.layers.feedforward import ACTIVATIONS
from heedful.stack import StackInput
from tolerances import assert_close

pytestmark = pytest.mark.skipif(
    compiler() is None or "avx512_vnni" not in features(), reason="no C++ compiler, or no AVX512-VNNI"
)
# parts that an encoder of 2 blocks of 64 may have
STACKS: dict[str, dict[str, Any]] = {
    "bert": {},
    "pre-norm": {"placement": "pre"},
    "llama": {"placement": "pre", "norm": "rms", "gated": True, "activation": "silu", "position": RotaryPosition()},
    "grouped, query norms": {"kv_heads": 1, "qk_norm": "head", "position": RotaryPosition()},
    "sinusoidal": {"position": SinusoidalPosition(), "activation": "relu", "ff_dim": 100},
    "no positions": {"position": NoPosition(), "ff_bias": False, "attention_bias": "none"},
    "heads of 96": {"head_dim": 96},
    "heads of 48": {"head_dim": 48},
    "sandwich": {"placement": "sandwich", "norm": "rms"},
    "norms of outputs": {"placement": "out", "norm": "rms"},
}
LENGTHS = (37, 1, 20, 16, 6, 0)
IDS = torch.arange(2 * 30).view(2, 30) % 59 + 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call for whole sequences."""
    rows: list[int] = []

    def run_sequences(operations: Any, call: Any) -> None:
        rows.append(call.rows)
        few_rows.run_sequences(operations, call)

    monkeypatch.setattr(compiled_step, "run_sequences", run_sequences)
    return rows


def encoder(stack: str = "bert") -> Any:
    config = heedful.presets.bert(64, 2, 2, vocab=60, length=64)
    return heedful.create(replace(config, encoder=replace(config.encoder, **STACKS[stack])), seed=0).eval()


def decoder(name: str = "gpt-micro", **changes: Any) -> Any:
    config = heedful.presets.get(name)
    shape = {"dim": 64, "depth": 2, "heads": 2, "ff_dim": 100, **changes}
    return heedful.create(replace(config, decoder=replace(config.decoder, **shape)), seed=0).eval()


def optimized(model: Any, dtype: str) -> Any:
    """A compiled copy, also if the kernels had to be compiled first."""
    if dtype == "bfloat16" and (not has_onednn(torch.bfloat16) or "amx_bf16" in features()):
        pytest.skip("in bfloat16 this processor's whole sequences are PyTorch's")
    few_rows.library()
    return heedful.optimize(copy.deepcopy(model), dtype)


def padded() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    mask[2] = mask[2].flip(0)  # on the left
    return torch.randint(1, 60, mask.shape, generator=generator) * mask, mask


def far(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, in standard deviations."""
    return float((actual.double() - expected.double()).abs().max() / expected.double().std())


# ----------------------------------------------------------------------------------------------------------- encoders


@pytest.mark.parametrize("stack", STACKS)
def test_an_encoder_of_every_kind(stack: str, calls: list[int]) -> None:
    """Padding on both sides, and a text of none: its states are zeros."""
    model, (ids, mask) = encoder(stack), padded()
    fast = optimized(model, "float32")
    with torch.inference_mode():
        output, expected = fast.hidden(ids, mask), model.double().hidden(ids, mask)
        assert_close(output[mask], expected[mask].float(), "forward")
        assert not output[~mask].any()
        assert_close(fast.hidden(ids[:1]), expected[:1].float(), "forward")
    assert calls == [sum(LENGTHS), 37]


@pytest.mark.parametrize("read", [slice(0, 1), slice(1, 3), slice(-2, None)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_last_block_computes_the_tokens_that_are_read(read: slice, dtype: str, calls: list[int]) -> None:
    fast, (ids, mask) = optimized(encoder(), dtype), padded()
    with torch.inference_mode():
        whole, some = fast.hidden(ids, mask), fast.hidden(ids, mask, tokens_read=read)
    for row, length in enumerate(LENGTHS):
        real = mask[row].nonzero()[:, 0][read]
        assert torch.equal(some[row, real], whole[row, real])
        assert len(real) == len(range(length)[read])
    assert int(some.any(-1).sum()) == sum(len(range(length)[read]) for length in LENGTHS)
    assert len(calls) == 2


@pytest.mark.parametrize("head_dim", [16, 48, 80])
def test_head_sizes_that_are_no_whole_vector_of_bfloat16(head_dim: int, calls: list[int]) -> None:
    config = heedful.presets.bert(64, 2, 2, vocab=60, length=64)
    model = heedful.create(replace(config, encoder=replace(config.encoder, head_dim=head_dim)), seed=0).eval()
    (ids, mask), fast = padded(), optimized(model, "int8")
    with torch.inference_mode():
        assert far(fast.hidden(ids, mask)[mask], model.double().hidden(ids, mask)[mask]) < 0.06
    assert len(calls) == 1


# the largest difference from float64 that rounding explains, in standard deviations; PyTorch's own kernels have as much
@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.06), ("int8", 0.06), ("int4", 0.5)])
def test_rounded_weights_are_no_further_from_float64_than_pytorch_s_kernels(
    dtype: str, most: float, calls: list[int]
) -> None:
    model, (ids, mask) = encoder(), padded()
    fast = optimized(model, dtype)
    assert {type(part) for part in fast.encoder.block[0].modules() if hasattr(part, "many_rows")} == {CompiledLinear}
    other = heedful.optimize(copy.deepcopy(model), dtype, compiled_decoding=False)
    with torch.inference_mode():
        states = fast.hidden(ids, mask)[mask]
        expected = model.double().hidden(ids, mask)[mask]
        reference = far(other.hidden(ids, mask)[mask], expected)
    assert far(states, expected) < min(most, 1.5 * reference)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_a_text_is_the_same_alone_and_in_a_batch(dtype: str) -> None:
    """To the bit: rows are rounded and summed by themselves, whatever chunk and tile they are in."""
    fast, (ids, mask) = optimized(encoder(), dtype), padded()
    with torch.inference_mode():
        together = fast.hidden(ids, mask)
        for row in range(len(LENGTHS) - 1):
            alone = fast.hidden(ids[row][mask[row]][None])[0]
            assert torch.equal(together[row][mask[row]], alone)


def test_images() -> None:
    model = heedful.create(heedful.presets.vit(64, 2, 2, 8, image=32, labels=5), seed=0).eval()
    pixels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    fast = optimized(model, "float32")
    with torch.inference_mode():
        assert_close(fast(pixels), model.double()(pixels.double()).float(), "forward")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    fast, (ids, mask) = optimized(encoder(), "int8"), padded()
    before = torch.get_num_threads()
    with torch.inference_mode():
        expected = fast.hidden(ids, mask)
        try:
            torch.set_num_threads(threads)
            assert torch.equal(fast.hidden(ids, mask), expected)
        finally:
            torch.set_num_threads(before)


def test_long_texts_are_more_than_a_chunk() -> None:
    config = heedful.presets.bert(64, 2, 2, vocab=60, length=700)
    model = heedful.create(config, seed=0).eval()
    ids, fast = torch.arange(2 * 650).view(2, 650) % 59 + 1, optimized(model, "float32")
    with torch.inference_mode():
        assert_close(fast.hidden(ids), model.double().hidden(ids).float(), "forward")


def test_numbers_that_are_not_finite_stay_in_their_text() -> None:
    model, (ids, mask) = encoder(), padded()
    model.embedding.token.weight.data[ids[0, 3]] = float("nan")
    ids[1:][ids[1:] == ids[0, 3]] = 59
    fast = optimized(model, "int8")
    with torch.inference_mode():
        states = fast.hidden(ids, mask)
    assert states[0, :37].isnan().all()
    assert states[1:].isfinite().all()


# -------------------------------------------------------------------------------------------- what takes another way


def test_parts_of_your_own_leave_an_encoder_as_it_is() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor, **context: Any) -> Tensor:
            return x

    few_rows.library()
    for part, attribute, own in (("attention", None, Own()), ("feed_forward", "activation", torch.sin)):
        model = encoder()
        block = model.encoder.block[0]
        setattr(block if attribute is None else getattr(block, part), attribute or part, own)
        expected = copy.deepcopy(model).hidden(IDS)
        fast = heedful.optimize(model, "int8")
        assert fast.kernels == "cpu-inference"
        with torch.inference_mode():
            assert far(fast.hidden(IDS), expected) < 0.1


def test_other_dtypes_and_masks_are_pytorch_s() -> None:
    """C++ knows float32 and bfloat16 alone, and a mask with a row for each text."""
    for stack, cache in (
        (optimized(encoder(), "float32").encoder, None),
        (optimized(decoder(), "float32").decoder, Cache(2)),
    ):
        step = compiled_step.step_of(stack)
        assert step is not None
        batch = StackInput(torch.zeros(2, 40, 64), torch.ones(2, 40, dtype=torch.bool), cache=cache)
        assert step.fits_sequences(batch)
        assert not step.fits_sequences(batch._replace(x=batch.x.double()))
        assert not step.fits_sequences(batch._replace(x=batch.x.half()))
        assert not step.fits_sequences(batch._replace(mask=batch.mask[:1]))
        assert not step.fits_sequences(batch._replace(mask=batch.mask[:, :, None]))
        assert not step.fits_sequences(batch._replace(mask=2 * batch.mask.long()))
        assert not step.fits_sequences(batch._replace(memory=batch.x))


def test_every_second_token_of_a_prompt(calls: list[int]) -> None:
    model, ids = decoder(), torch.arange(2 * 40).view(2, 40) % 61
    fast = optimized(model, "float32")
    with torch.inference_mode():
        for cache in (None, Cache(2)):
            some = fast.hidden(ids, cache=cache, tokens_read=slice(None, None, 2))
            assert_close(some[:, ::2], model.hidden(ids)[:, ::2], "forward")


def test_other_encoders_are_pytorch_s(calls: list[int]) -> None:
    """With a bias, observers, and a mask (B, T, T)."""
    (ids, mask), model = padded(), encoder()
    few_rows.library()
    config = replace(model.config, encoder=replace(model.config.encoder, position=AlibiPosition()))
    assert heedful.optimize(heedful.create(config, seed=0), "int8").kernels == "cpu-inference"
    fast = optimized(model, "float32")
    whole = mask[:, None] & mask[..., None]
    with torch.inference_mode():
        expected = model.hidden(ids[:2], mask[:2])
        assert_close(fast.hidden(ids[:2], whole[:2])[mask[:2]], expected[mask[:2]], "forward")
        with heedful.record(fast, "pattern", layers=[0]) as recorded:
            assert_close(fast.hidden(ids[:2], mask[:2])[mask[:2]], expected[mask[:2]], "forward")
        assert recorded["encoder.block.0.attention.pattern"].shape == (2, 2, 37, 37)
        handle = fast.encoder.block[0].register_forward_hook(lambda *_: None)
        fast.hidden(ids[:2], mask[:2])
        handle.remove()
    assert calls == []
    with torch.inference_mode():
        fast.hidden(ids[:2], mask[:2])
    assert calls == [38]


# ------------------------------------------------------------------------------------------------------------- prompts


DECODERS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": {"norm": "rms", "gated": True, "activation": "silu", "position": RotaryPosition(), "kv_heads": 1},
    "query norms": {"qk_norm": "head", "norm": "rms", "position": RotaryPosition()},
    "sinusoidal, post-norm": {"position": SinusoidalPosition(), "placement": "post"},
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("stack", DECODERS)
def test_a_prompt_and_the_steps_after_it(stack: str, rows: int, calls: list[int]) -> None:
    model = decoder(**DECODERS[stack])
    fast, ids = optimized(model, "float32"), torch.arange(rows * 45).view(rows, 45) % 61
    model = model.double()
    caches = [Cache(2) for _ in range(2)]
    with torch.inference_mode():
        first, expected = (each(ids[:, :40], cache=cache) for each, cache in zip((fast, model), caches, strict=True))
        assert_close(first, expected.float(), "forward")
        for (own, _), (right, _) in zip(caches[0].pairs, caches[1].pairs, strict=True):
            for stored, wanted in zip(own.pair, right.pair, strict=True):
                assert_close(stored, wanted.float(), "forward")
        for step in range(40, 45):
            next_logits = [each(ids[:, [step]], cache=cache) for each, cache in zip((fast, model), caches, strict=True)]
            assert_close(next_logits[0], next_logits[1].float(), "forward")
        assert_close(fast(ids), model(ids).float(), "forward")
    assert calls == [40 * rows, 45 * rows]
    assert caches[0].length == caches[0].pairs[0][0].length == 45


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stack", DECODERS)
def test_prompts_with_padding(stack: str, side: str, calls: list[int]) -> None:
    """Also a row of padding alone: keys and values there are zeros, which later steps read under their mask."""
    model = decoder(**DECODERS[stack])
    fast, ids = optimized(model, "float32"), torch.arange(4 * 40).view(4, 40) % 61
    mask = torch.arange(40) < torch.tensor([40, 7, 0, 25])[:, None]
    mask = mask.flip(1) if side == "left" else mask
    model = model.double()
    caches = [Cache(2) for _ in range(2)]
    with torch.inference_mode():
        first, expected = (each(ids, mask, cache=cache) for each, cache in zip((fast, model), caches, strict=True))
        assert_close(first[mask], expected[mask].float(), "forward")
        last = fast.hidden(ids, mask, cache=Cache(2), tokens_read=slice(-1, None))
        whole = fast.hidden(ids, mask, cache=Cache(2))
        for row in (0, 1, 3):
            place = mask[row].nonzero()[-1]
            assert torch.equal(last[row, place], whole[row, place])
        for step in range(2):
            after = [each(ids[:, [step]], cache=cache) for each, cache in zip((fast, model), caches, strict=True)]
            assert_close(after[0], after[1].float(), "forward")
    assert calls == [72] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_tokens_that_are_read_alone(dtype: str) -> None:
    fast, ids = optimized(decoder(ff_dim=96), dtype), torch.arange(3 * 40).view(3, 40) % 61
    with torch.inference_mode():
        whole, last = (fast.hidden(ids, cache=Cache(2), tokens_read=read) for read in (slice(None), slice(-2, None)))
    assert torch.equal(last[:, -2:], whole[:, -2:])
    assert not last[:, :-2].any()


@pytest.mark.parametrize("method", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 1}, {"capacity": 80}])
def test_generation_after_long_prompts(method: dict[str, Any], calls: list[int]) -> None:
    model, ids = decoder(), torch.arange(2 * 40).view(2, 40) % 61
    fast = optimized(model, "float32")
    if "capacity" in method:
        cache = Cache(2, capacity=80)
        with torch.inference_mode():
            assert_close(fast(ids, cache=cache), model(ids), "forward")
        assert cache.pairs[0][0].allocated == 80
    else:
        expected = model.generate(ids, max_new_tokens=8, **method)
        assert torch.equal(fast.generate(ids, max_new_tokens=8, **method), expected)
    assert calls == [80]


def test_other_prompts_are_pytorch_s(calls: list[int]) -> None:
    """A cache that is not empty, few tokens, several texts in a row, a window, and a bias."""
    model, ids = decoder(), torch.arange(2 * 40).view(2, 40) % 61
    fast, packed = optimized(model, "float32"), torch.arange(1, 41).div(21, rounding_mode="floor").add(1).expand(2, 40)
    with torch.inference_mode():
        assert_close(fast(ids, packed), model(ids, packed), "forward")
        cache = Cache(2)
        fast(ids[:, :5], cache=cache)
        assert_close(fast(ids[:, 5:], cache=cache), model(ids)[:, 5:], "forward")
    for changes in ({"position": AlibiPosition()}, {"window": 4}):
        other = decoder(**changes)
        with torch.inference_mode():
            cache = Cache(2, window=other.config.decoder.windows)
            assert_close(optimized(other, "float32")(ids, cache=cache), other(ids), "forward")
    assert calls == []


# ---------------------------------------------------------------------------------------------------------- linear maps


@pytest.mark.parametrize("rows", [64, 65, 131])
@pytest.mark.parametrize("group", [256, 64, None])
def test_int8_of_many_rows(rows: int, group: int | None) -> None:
    """Rows of which each group of inputs has one scale, or all have; the output as exact sums give it."""
    few_rows.library()
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(70, 300, generator=generator) / 17, torch.randn(70, generator=generator)
    linear = CompiledLinear(Int8Linear, weight, bias, ACTIVATIONS["gelu"], group=group)
    assert linear.group == (320 if group is None else group)
    rows = min(rows, linear.most_rows)
    x = torch.randn(rows, 300, generator=generator)
    levels, scales = Int8Linear.numbers(weight)
    groups = nn.functional.pad(x, (0, -300 % linear.group)).double().unflatten(1, (-1, linear.group))
    largest = groups.float().abs().amax(-1, keepdim=True)
    rounded = ((groups.float() * (127 / largest)).round().double() * (largest.double() / 127)).flatten(1)[:, :300]
    expected = rounded @ (levels.double() * scales.double()[:, None]).T + bias.double()
    with torch.inference_mode():
        y = linear(x)
    assert_close(y, nn.functional.gelu(expected).float(), "forward")
    with torch.inference_mode():
        assert torch.equal(linear(x[:1]), y[:1])
    assert_close(linear.weight, (levels.double() * scales.double()[:, None]).float(), "layer")


@pytest.fixture
def fresh_library() -> Iterator[None]:
    few_rows._library.cache_clear()
    yield
    few_rows._library.cache_clear()


BUILDS = {
    "without AVX512-BF16": ("-march=icelake-server",),
    "undefined": ("-march=native", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"),
}


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.full
def test_other_builds(build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[int]) -> None:
    """Another processor that this one can stand for, and undefined behaviour, which then ends the process."""
    if build != "undefined" and not {"gfni", "vpclmulqdq"} <= features():
        pytest.skip("this processor cannot stand for an Ice Lake")
    common = tuple(flag for flag in few_rows.FLAGS if not flag.startswith("-march"))
    monkeypatch.setattr(few_rows, "FLAGS", (*common, *BUILDS[build]))
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    for stack in STACKS:
        del calls[:]
        test_an_encoder_of_every_kind(stack, calls)
    del calls[:]
    test_rounded_weights_are_no_further_from_float64_than_pytorch_s_kernels("int8", 0.06, calls)
    for stack in DECODERS:
        del calls[:]
        test_a_prompt_and_the_steps_after_it(stack, 3, calls)
    for dtype in ("int8", "int4"):
        test_tokens_that_are_read_alone(dtype)
        test_a_text_is_the_same_alone_and_in_a_batch(dtype)
    test_int8_of_many_rows(131, None)


def test_sums_of_a_row_fit_32_bits() -> None:
    few_rows.library()
    size = 2**16
    linear = CompiledLinear(Int8Linear, torch.full((1, size), 127.0), group=None)
    assert linear.group * 255 * 127 < 2**31
    with torch.inference_mode():
        y = linear(torch.ones(1, size))
    assert float(y) == pytest.approx(127.0 * size, rel=1e-5)


@pytest.mark.parametrize("linear_class", [FloatLinear, Int4Linear])
def test_an_operation_of_many_rows_is_that_of_few(linear_class: Any) -> None:
    """To the bit, whatever threads and tiles compute them."""
    few_rows.library()
    linear = CompiledLinear(linear_class, torch.randn(70, 96, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(100, 96, generator=torch.Generator().manual_seed(1))
    scratch = torch.cat((x.flatten(), torch.zeros(100 * 70)))
    call = few_rows.Call(rows=100, threads=2, scratch=scratch.data_ptr(), shared=96 + 70)
    few_rows.run_sequences((Operation * 1)(linear.operation()), call)
    with torch.inference_mode():
        assert torch.equal(scratch[9600:].view(100, 70)[:8], linear(x[:8]))
