"""Training without padding and with oneDNN's products has the same losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    SpecialTokens,
    StackConfig,
)
from heedful.kernels import plan as plans
from heedful.kernels import unpadded
from heedful.kernels.allocator import rounded_rows
from heedful.kernels.onednn_linear import onednn_linear, onednn_training_linear
from heedful.kernels.plan import apply_training_plan, decoding_kernels
from heedful.kernels.unpadded import TokenRow
from heedful.layers.linear import Linear
from heedful.training.optimisation import adamw
from relative_schemes import CONTENT
from tolerances import approx, assert_close

REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
IDS = torch.randint(3, 50, REAL.shape, generator=torch.Generator().manual_seed(0)).masked_fill(~REAL, 0)


def learned(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss in float64, without dropout, and the gradients by name."""
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model.zero_grad()
    found = loss(model)
    found.backward()
    return found.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_equal(model: nn.Module, loss: Callable[[nn.Module], Tensor], quick: Callable[[nn.Module], None]) -> None:
    """Losses and gradients are the same after ``quick`` as before, and finite."""
    model.double()
    plain, gradients = learned(model, loss)
    quick(model)
    again, others = learned(model, loss)
    assert_close(again, plain)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        assert_close(others[name], gradient, "gradient", msg=name)


def encoder(**stack: object) -> nn.Module:
    told = {"dim": 16, "depth": 2, "heads": 4, **stack}
    return heedful.create(EncoderConfig(embedding=EmbeddingConfig(vocab_size=50), encoder=StackConfig(**told)), seed=0)


def scored(model: nn.Module) -> Tensor:
    """A loss of the real tokens' states."""
    hidden = model.hidden(IDS, REAL)[REAL]
    return (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)).sum()


@pytest.fixture(params=[False, True], ids=["", "filled"])
def filled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both forms: rows as they are, and filled up to a multiple of a number, here of three."""
    monkeypatch.setattr(unpadded, "kernels_depend_on_rows", lambda: request.param)
    monkeypatch.setattr(unpadded, "rounded_rows", lambda rows: -(-rows // 3) * 3)
    return bool(request.param)


@pytest.mark.parametrize(
    "stack",
    [
        {},
        {"placement": "post", "embedding_norm": True},
        {"placement": "sandwich", "kv_heads": 2},
        {"placement": "out", "norm": "rms", "qk_norm": "all"},
        {"layer_scale": 0.5},
        {"position": RotaryPosition()},
        {"position": AlibiPosition()},
        {"position": RelativePosition()},
        *({"position": position} for position in CONTENT),
        {"norm": "batch"},
        {"causal": True},
        {"causal": True, "window": 2},
        {"window": (None, 2), "position": RotaryPosition(window_base=20.0)},
    ],
)
def test_an_encoder_learns_the_same_without_padding(stack: dict[str, object], filled: bool) -> None:
    check_equal(encoder(**stack), scored, apply_training_plan)


SOME_REAL = REAL[[0, 1, 3]]
CLASSIFIED = pytest.mark.parametrize("real", [SOME_REAL, torch.ones_like(SOME_REAL), None], ids=range(3))


@CLASSIFIED
@pytest.mark.parametrize(
    "stack",
    [
        {"placement": "post", "embedding_norm": True, "depth": 1},
        {"placement": "sandwich", "kv_heads": 2},
        {"placement": "out", "norm": "rms", "qk_norm": "all"},
        {"layer_scale": 0.5},
        {"position": RotaryPosition(), "norm": "rms"},
        {"position": AlibiPosition()},
        *({"position": position} for position in CONTENT),
        {"norm": "batch"},
    ],
)
def test_a_class_token_learns_the_same_without_the_last_states_of_others(
    stack: dict[str, object], real: Tensor | None, filled: bool
) -> None:
    model = heedful.create(replace(encoder(**stack).config, head=SequenceHead(labels=3)), seed=0)
    ids = IDS[: 3 if real is None else len(real)]

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(ids, real), ids[:, 0] % 3)

    check_equal(model, loss, apply_training_plan)


def test_the_last_block_maps_the_class_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = heedful.create(replace(encoder().config, head=SequenceHead(labels=3)), seed=0).train()
    apply_training_plan(model)
    seen: list[int] = []
    for block in model.encoder.block:
        block.feed_forward.up.register_forward_pre_hook(lambda part, given: seen.append(given[0].size(1)))
    monkeypatch.setattr(unpadded, "is_observed", lambda stack: False)
    monkeypatch.setattr(unpadded, "kernels_depend_on_rows", lambda: False)
    real = REAL[[0, 1, 3]]
    model(IDS[[0, 1, 3]], real)
    assert seen == [10, 3]
    model(IDS, REAL)  # a text without a token
    assert seen[2:] == [10, 10]
    model.encoder.block[-1].register_forward_pre_hook(lambda part, given: None)  # as where ranks share its weights
    model(IDS[[0, 1, 3]], real)
    assert seen[4:] == [10, 10]


def test_rows_are_filled_with_what_is_not_learned_from(filled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    model = encoder()
    apply_training_plan(model)
    model.encoder.block[0].feed_forward.up.register_forward_pre_hook(lambda part, given: seen.append(given[0].size(1)))
    monkeypatch.setattr(unpadded, "is_observed", lambda stack: False)
    scored(model.train())
    assert seen == [12 if filled else 10]
    model.encoder.config = replace(model.encoder.config, norm="batch")  # its statistics would be of the copies too
    scored(model)
    assert seen[1] == 10


def test_between_two_powers_of_two_there_are_few_numbers_of_rows() -> None:
    numbers = [rounded_rows(rows) for rows in range(1, 5000)]
    assert all(rows <= number <= rows * 33 / 32 for rows, number in enumerate(numbers, 1))
    assert len({number for number in numbers if 2048 < number <= 4096}) == 32


def test_an_encoder_decoder_learns_the_same_without_padding(filled: bool) -> None:
    config = presets.transformer(16, 2, 4, 32, 50, special=SpecialTokens(pad=0, start=1, end=(2,)))
    target = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
    ids = torch.randint(3, 50, target.shape, generator=torch.Generator().manual_seed(1)).masked_fill(~target, 0)

    def loss(model: nn.Module) -> Tensor:
        hidden = model.hidden(IDS, ids, REAL, target)
        return F.cross_entropy(model.head(hidden[target]), ids[target], reduction="sum")

    check_equal(heedful.create(config, seed=0), loss, apply_training_plan)


def test_dropout_still_drops_the_real_tokens() -> None:
    model = encoder(dropout=DropoutRates(embedding=0.5, attention=0.3, residual=0.5))
    apply_training_plan(model)
    model.train()
    first, second = scored(model), scored(model)
    assert first.isfinite()
    assert first != second
    assert not model.hidden(IDS, REAL)[~REAL].any()


def test_rows_are_made_only_where_something_learns_and_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = encoder(), []
    apply_training_plan(model)
    begin = TokenRow.__init__

    def counted(self: TokenRow, real: Tensor, fill: bool) -> None:
        made.append(real)
        begin(self, real, fill)

    monkeypatch.setattr(TokenRow, "__init__", counted)
    model.train().hidden(IDS, REAL)
    assert len(made) == 1
    model.hidden(IDS)
    model.hidden(IDS[:1], REAL[:1])
    with torch.no_grad():
        model.hidden(IDS, REAL)
    with heedful.record(model, "pattern", layers=[0]) as seen:
        model.hidden(IDS, REAL)
    assert next(iter(seen.values())).shape == (4, 4, 5, 5)
    model.eval().hidden(IDS, REAL)
    assert len(made) == 1


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which MKL is not at its best."""
    monkeypatch.setattr("heedful.kernels.onednn_linear.is_intel_with_mkl", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps learn through oneDNN as large ones do."""
    monkeypatch.setattr(plans, "LARGE", 1)


@pytest.mark.usefixtures("foreign", "small")
def test_products_by_onednn_are_the_same_to_rounding() -> None:
    torch.manual_seed(0)
    for shape in ((5, 7), (2, 3, 7), (1, 7), (0, 7), (3, 1, 7)):
        linear, x = Linear(7, 9, bias=len(shape) == 2), torch.randn(shape, requires_grad=True)
        inputs = [x, *linear.parameters()]
        weights = torch.randn(*shape[:-1], 9)
        wanted = torch.autograd.grad((linear(x) * weights).sum(), inputs)
        apply_training_plan(linear)
        assert linear.linear is onednn_training_linear
        assert_close(torch.autograd.grad((linear(x) * weights).sum(), inputs), wanted)
        expanded = torch.autograd.grad(linear(x).sum(), inputs)  # a gradient that is one number, expanded
        assert all(part.isfinite().all() for part in expanded)


@pytest.mark.parametrize(
    ("intel", "widest", "direct"),
    [(False, "AVX512", True), (False, "AVX2", False), (False, "NEON", True), (True, "AVX512", False)],
)
def test_small_maps_stay_as_they_are_and_all_where_mkl_is_at_its_best(
    intel: bool, widest: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.kernels.onednn_linear.is_intel_with_mkl", lambda: intel)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: widest)
    model = nn.Sequential(Linear(512, 512), Linear(512, 64))
    apply_training_plan(model)
    assert [part.linear for part in model] == [onednn_training_linear if direct else onednn_linear, onednn_linear]


@pytest.mark.usefixtures("foreign", "small")
def test_frozen_weights_get_no_gradient() -> None:
    linear = Linear(7, 9)
    linear.weight.requires_grad_(False)
    apply_training_plan(linear)
    linear(torch.randn(5, 7)).sum().backward()
    assert linear.weight.grad is None
    assert_close(linear.bias.grad, torch.full((9,), 5.0))


@pytest.mark.usefixtures("foreign", "small")
def test_autocast_and_double_keep_their_own_products() -> None:
    linear, double = Linear(7, 9), Linear(7, 9).double()
    apply_training_plan(linear)
    apply_training_plan(double)
    assert double.linear is F.linear
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(5, 7)).dtype == torch.bfloat16
    with torch.inference_mode(), decoding_kernels(linear):
        assert linear(torch.randn(5, 7)).shape == (5, 9)
    assert linear.linear is onednn_training_linear


@pytest.mark.usefixtures("foreign", "small")
def test_a_model_under_the_training_plan_learns_what_a_plain_one_does_and_is_saved_alike() -> None:
    config = presets.gpt2(32, 2, 4, vocab=50, length=16, dropout=0.0)
    ids = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    ends = []
    for quick in (lambda model: None, apply_training_plan):
        model = heedful.create(config, seed=0).train()
        names = list(model.state_dict())
        quick(model)
        assert list(model.state_dict()) == names
        optimiser, losses = adamw(model, lr=1e-3), []
        for _ in range(5):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
        ends.append(losses)
    assert ends[0] == approx(ends[1], "gradient")
    assert ends[0][-1] < ends[0][0]
