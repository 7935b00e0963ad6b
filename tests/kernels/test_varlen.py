"""The attention of the plan "gpu": ``varlen_attn``, here replaced by plain PyTorch, and repeated heads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen as pytorch_varlen

import heedful
from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    NoPosition,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.kernels import varlen
from heedful.kernels.plan import apply_plan
from heedful.kernels.varlen import gpu_attention, needs_mask_if_right_padded, varlen_attention
from heedful.layers import text_starts
from heedful.layers.attention_kernels import explicit_attention
from heedful.layers.linear import Linear
from heedful.layers.position import PositionScheme
from heedful.stack import Stack, StackInput
from tolerances import assert_close
from varlen_reference import Reference

T, VOCAB = 6, 40
REAL = {
    "right": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool(),
    "left": torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]]).bool(),
    "inside": torch.tensor([[0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 1]]).bool(),
    "a row without tokens": torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]).bool(),
}
TEXTS = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 2, 3, 4, 4, 4], [1, 1, 1, 1, 1, 1]])
IDS = torch.randint(3, VOCAB, (3, T), generator=torch.Generator().manual_seed(0))
POSITIONS = (NoPosition(), SinusoidalPosition(), LearnedPosition(length=T), RotaryPosition(window_base=7.0))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Reference:
    """Stands in for ``varlen_attn``, on this CPU and in every floating dtype."""
    reference = Reference()
    monkeypatch.setattr(varlen, "has_varlen", lambda device: True)
    monkeypatch.setattr(varlen, "varlen_attention", reference)
    monkeypatch.setattr(varlen, "HALF_DTYPES", (*varlen.HALF_DTYPES, torch.float32, torch.float64))
    return reference


def stack_of(**options: Any) -> StackConfig:
    return StackConfig(**{"dim": 32, "depth": 2, "heads": 4, "kv_heads": 2, **options})


def model_of(family: str, **options: Any) -> Any:
    embedding = EmbeddingConfig(vocab_size=VOCAB)
    if family == "encoder":
        config: Any = EncoderConfig(embedding=embedding, encoder=stack_of(**options))
    elif family == "decoder":
        config = DecoderConfig(embedding=embedding, decoder=stack_of(causal=True, **options), head=LanguageHead())
    else:
        decoder = stack_of(causal=True, cross=True, **options)
        config = EncoderDecoderConfig(
            source=embedding,
            encoder=stack_of(**options),
            decoder=decoder,
            head=LanguageHead(),
            special=SpecialTokens(start=1, end=(2,), pad=0),
        )
    return heedful.create(config, seed=0).double().train()


def inputs_of(model: Any, mask: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, ...]:
    return (IDS, IDS.flip(1), source_mask, mask) if hasattr(model, "encode") else (IDS, mask)


def learned(model: Any, real: Tensor, run: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The hidden states of the tokens, and the gradients of a function of them; all states are finite."""
    model.zero_grad()
    hidden = run()
    assert hidden.isfinite().all()
    tokens = hidden[real]
    (tokens * torch.linspace(-1, 1, tokens.numel(), dtype=tokens.dtype).view_as(tokens)).sum().backward()
    return tokens.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_equal(model: Any, real: Tensor, run: Callable[[], Tensor]) -> None:
    """The plan "gpu" has the states and gradients of the plan "plain"."""
    states, gradients = learned(apply_plan(model, "plain"), real, run)
    others, other_gradients = learned(apply_plan(model, "gpu"), real, run)
    assert_close(others, states)
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        assert_close(other_gradients[name], gradient, "gradient", msg=name)


@pytest.mark.full(keep="pairs")
@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: type(position).__name__)
@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(
    "family", ["encoder", "encoder windows", "decoder", "decoder window", "decoder windows", "encoder-decoder"]
)
def test_padding_is_left_out(family: str, kind: str, position: Any, reference: Reference) -> None:
    family, _, windows = family.partition(" ")
    options: dict[str, Any] = {"window": {"window": 2}, "windows": {"window": (None, 2)}}.get(windows, {})
    model = model_of(family, position=position, **options)
    target, source = REAL[kind], REAL[kind].flip(0)
    check_equal(model, target, lambda: model.hidden(*inputs_of(model, target, source)))
    assert reference.calls == (6 if family == "encoder-decoder" else 2)


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: type(position).__name__)
@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("family", ["encoder", "decoder", "decoder windows", "encoder windows"])
def test_inference_computes_no_padding(
    family: str, kind: str, position: Any, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, _, windows = family.partition(" ")
    options: dict[str, Any] = {"window": (None, 2)} if windows else {}
    model = model_of(family, position=position, **options).eval()
    real, stack = REAL[kind], model.decoder if hasattr(model, "decoder") else model.encoder
    with torch.inference_mode():
        expected = apply_plan(model, "plain").hidden(IDS, real)
        apply_plan(model, "gpu")
        padded_rows = tokens_of(stack, lambda: model.hidden(IDS, real), monkeypatch)
        monkeypatch.setattr(varlen, "PACKED_FROM", IDS.numel())
        rows = tokens_of(stack, lambda: model.hidden(IDS, real), monkeypatch)
        hidden = model.hidden(IDS, real)
    assert_close(hidden[real], expected[real])
    assert not hidden[~real].any()
    assert (padded_rows, rows) == ({IDS.numel()}, {int(real.sum())})
    assert reference.calls == 6
    monkeypatch.setattr(varlen, "PACKED_FROM", IDS.numel() + 1)
    assert not varlen.can_pack(stack, StackInput(torch.zeros(3, T, 32), real))


def tokens_of(stack: Any, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of tokens that the feed-forward layers compute; a hook would change the layout."""
    seen, inner = set[int](), F.linear
    size = tuple(stack.block[0].feed_forward.down.weight.shape)

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if tuple(weight.shape) == size:
            seen.add(x.numel() // x.size(-1))
        return inner(x, weight, bias)

    for part in stack.modules():
        if isinstance(part, Linear):
            monkeypatch.setattr(part, "linear", noted)
    run()
    return seen


def test_a_batch_without_tokens_is_zeros(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "PACKED_FROM", 1)
    model = apply_plan(model_of("encoder"), "gpu").eval()
    with torch.inference_mode():
        assert not model.hidden(IDS, torch.zeros_like(IDS, dtype=torch.bool)).any()


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: type(position).__name__)
@pytest.mark.parametrize("window", [None, 2, (2, None)])
def test_texts_of_a_packed_batch_attend_within_themselves(window: Any, position: Any, reference: Reference) -> None:
    model, starts = model_of("decoder", position=position, window=window), text_starts(TEXTS)
    check_equal(model, TEXTS > 0, lambda: model.hidden(IDS, TEXTS, text_starts=starts))
    assert reference.calls == 2


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_a_stack_of_its_own(compiled: bool, reference: Reference) -> None:
    """Also where the caller compiles it: the layout has no graph break."""
    torch.manual_seed(0)
    stack, x = Stack(stack_of(position=RotaryPosition())), torch.randn(3, T, 32)
    expected = stack(x, REAL["left"])
    apply_plan(stack, "gpu")
    run = torch.compile(stack, backend="eager", fullgraph=True) if compiled else stack
    assert_close(run(x, REAL["left"])[REAL["left"]], expected[REAL["left"]])
    assert compiled or reference.calls == 2


def test_pytorchs_own_function_takes_what_the_layout_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which knows shapes alone, forward and backward."""
    monkeypatch.setattr(varlen, "has_varlen", lambda device: True)
    called: list[Any] = []
    inner = pytorch_varlen.varlen_attn

    @functools.wraps(inner)
    def noted(*row: Any, **options: Any) -> Any:
        called.append(row)
        return inner(*row, **options)

    monkeypatch.setattr(pytorch_varlen, "varlen_attn", noted)
    model = apply_plan(model_of("encoder-decoder").to("meta", torch.bfloat16), "gpu")
    ids, real = IDS.to("meta"), REAL["left"].to("meta")
    model.hidden(ids, ids, real, real).sum().backward()
    assert len(called) == 6
    assert all(p.grad is not None for name, p in model.named_parameters() if ".block." in name)


def self_mask(model: Any) -> Tensor:
    return model.hidden(*inputs_of(model, REAL["left"]))


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("position", [AlibiPosition(), RelativePosition(), None])
def test_a_bias_on_the_scores_stays_a_mask(position: Any, family: str, reference: Reference) -> None:
    model = model_of(family, position=position or NoPosition())
    if position is None:  # a scheme of the caller's own may have a bias
        model.decoder.position = type("Own", (PositionScheme,), {})()
    check_equal(model, REAL["left"], lambda: model.hidden(*inputs_of(model, REAL["left"])))
    assert reference.calls == 0
    if family == "encoder-decoder":  # attention to the source has no bias
        check_equal(model, REAL["left"], lambda: model.hidden(*inputs_of(model, REAL["left"], REAL["right"])))
        assert reference.calls == (2 if position else 4)


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ({}, lambda model: model.hidden(IDS, TEXTS)),  # the host does not know how many texts there are
        ({}, lambda model: model.hidden(IDS, REAL["left"][:, None, :].expand(3, T, T))),
        ({}, lambda model: model.hidden(IDS, REAL["left"], cache=Cache(2))),
        ({}, lambda model: model.hidden(IDS[:, :1], REAL["right"][:, :1])),
        ({"dim": 48}, self_mask),  # heads of 12
        ({"heads": 1, "kv_heads": 1, "head_dim": 200}, self_mask),
    ],
    ids=["packed", "whole mask", "cache", "one token", "heads of 12", "heads of 200"],
)
def test_inputs_that_the_kernel_does_not_take(
    options: dict[str, Any], run: Callable[[Any], Tensor], reference: Reference
) -> None:
    model = model_of("decoder", **options)
    expected = run(model)
    assert_close(run(apply_plan(model, "gpu")), expected)
    assert reference.calls == 0


def test_dropped_weights_are_drawn_under_a_mask_and_in_training_alone(reference: Reference) -> None:
    model = apply_plan(model_of("decoder", dropout=DropoutRates(attention=0.1)), "gpu")
    self_mask(model)
    assert reference.calls == 0
    self_mask(model.eval())
    assert reference.calls == 2


def test_observers_see_the_padded_batch(reference: Reference) -> None:
    model = apply_plan(model_of("decoder"), "gpu")
    with heedful.record(model, "pattern") as seen:
        self_mask(model)
    assert seen["decoder.block.0.attention.pattern"].shape == (3, 4, T, T)
    assert reference.calls == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_stay_with_the_mask(dtype: torch.dtype, reference: Reference, monkeypatch: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(varlen, "has_varlen", lambda device: True)
    monkeypatch.setattr(varlen, "varlen_attention", reference)
    model = apply_plan(model_of("decoder").to(dtype), "gpu")
    self_mask(model)
    assert reference.calls == 0
    with torch.autocast("cpu", torch.bfloat16):
        self_mask(model.float())
    assert reference.calls == 2


def test_the_compiler_takes_both_conditions_as_constants() -> None:
    """By the mark that PyTorch's own decorator sets."""
    marked = torch.compiler.assume_constant_result(lambda: True)
    assert vars(varlen.has_varlen) == vars(varlen.shares_heads) == vars(marked) != {}


def test_a_cpu_has_no_such_kernel() -> None:
    assert not varlen.has_varlen(torch.device("cpu"))
    model = model_of("decoder").to(torch.bfloat16)
    expected = self_mask(model)
    assert torch.equal(self_mask(apply_plan(model, "gpu")), expected)


# -------------------------------------------------------------------------------------------------------- the one call


def rows(heads: int, key_heads: int) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, n, 8, generator=random) for n in (heads, key_heads, key_heads))
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    return q, k, v, starts, starts, 3, 3, 0.5, (-1, 0)


def test_pytorch_takes_these_arguments() -> None:
    names = inspect.signature(pytorch_varlen.varlen_attn).parameters
    assert varlen.varlen_parameters() == set(names)
    assert [*names][:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]


@pytest.mark.parametrize("shared", [False, True], ids=["2.11", "2.12"])
def test_shared_heads_are_repeated_for_an_older_pytorch(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, Any] = {}

    def older(q: Tensor, k: Tensor, v: Tensor, *row: Any, scale: float, window_size: tuple[int, int]) -> Tensor:
        called.update(heads=k.size(1))
        return Reference()(q, k, v, *row, scale, window_size)

    def newer(*given: Any, enable_gqa: bool = False, **options: Any) -> Tensor:
        called.update(enable_gqa=enable_gqa)
        return older(*given, **options)

    function = newer if shared else older
    monkeypatch.setattr(pytorch_varlen, "varlen_attn", function)
    monkeypatch.setattr(varlen, "varlen_parameters", varlen.varlen_parameters.__wrapped__)
    assert_close(varlen_attention(*rows(4, 2)), Reference()(*rows(4, 2)))
    assert called == ({"heads": 2, "enable_gqa": True} if shared else {"heads": 4})


# -------------------------------------------------------------------------------------------------------- shared heads


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of PyTorch's function, True if it had shared heads."""
    seen: list[bool] = []
    inner = F.scaled_dot_product_attention

    def noted(*given: Any, **options: Any) -> Tensor:
        seen.append(given[0].size(1) != given[1].size(1))
        return inner(*given, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("mask", "queries", "rows", "flash"),
    [
        (None, 5, 2, True),
        ("causal", 5, 2, True),
        ("causal", 3, 2, False),  # a mask tensor: PyTorch's own is aligned top-left
        (torch.rand(2, 1, 5, 5) > 0.3, 5, 2, False),
        (torch.rand(2, 1, 1, 5) > 0.3, 3, 4, False),  # rows share their keys
    ],
)
def test_heads_are_repeated_where_flash_does_not_apply(
    mask: Any, queries: int, rows: int, flash: bool, dtype: torch.dtype, shared: list[bool]
) -> None:
    q, k, v = torch.randn(rows, 4, queries, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    y = gpu_attention(q, k, v, mask, None, 0.3)
    assert shared == [flash and dtype is torch.bfloat16]
    repeats = rows // 2
    own_k, own_v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
    self_mask = mask.repeat_interleave(repeats, 0) if isinstance(mask, Tensor) else mask
    assert_close(
        y, explicit_attention(q.float(), own_k.float(), own_v.float(), self_mask, None, 0.3).to(dtype), "layer"
    )


def test_the_heads_of_a_single_query_stay_shared(shared: list[bool]) -> None:
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.rand(2, 1, 1, 5) > 0.3
    assert_close(gpu_attention(q, k, v, mask, None, 0.3), explicit_attention(q, k, v, mask, None, 0.3))
    assert shared == [False]


# ------------------------------------------------------------------------------------------------- padding on the right


def test_a_causal_stack_needs_no_mask_for_padding_on_the_right() -> None:
    model, custom = apply_plan(model_of("encoder-decoder"), "gpu"), model_of("encoder-decoder")
    custom.decoder.block[0].attention.attend = explicit_attention
    assert not needs_mask_if_right_padded(model.decoder)
    assert needs_mask_if_right_padded(model.encoder)
    assert needs_mask_if_right_padded(apply_plan(model_of("encoder-decoder"), "cpu-training").decoder)
    assert needs_mask_if_right_padded(apply_plan(model_of("encoder-decoder"), "plain").decoder)
    assert needs_mask_if_right_padded(apply_plan(custom, "gpu").decoder)
    for window in (2, (None, 2)):  # has a mask tensor as it is
        assert needs_mask_if_right_padded(apply_plan(model_of("decoder", window=window), "gpu").decoder)
    real = REAL["right"]
    with_mask, gradients = learned(model, real, lambda: model.hidden(IDS, IDS, real, real))
    without, others = learned(model, real, lambda: model.hidden(IDS, IDS, real))
    assert_close(without, with_mask)
    for name, gradient in gradients.items():
        assert_close(others[name], gradient, "gradient", msg=name)
