"""The optimised copy with which ``Model.generate`` decodes from its second call on: same tokens, never old weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn

import compiled_calls
import heedful
from heedful.config import AlibiPosition, RelativePosition, RotaryPosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import decoding_copy
from heedful.kernels import apply_plan, few_rows
from heedful.kernels.few_rows import compiler
from heedful.kernels.onednn_linear import has_onednn
from heedful.layers.norm import Identity

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ on Linux)")

IDS = torch.tensor([[9, 14, 33, 7, 52], [8, 30, 11, 47, 5]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
STACKS: dict[str, dict[str, Any]] = {
    "learned": {},
    "llama": {"norm": "rms", "gated": True, "activation": "silu", "position": RotaryPosition(), "kv_heads": 2},
    "alibi": {"position": AlibiPosition()},
    "relative": {"position": RelativePosition()},
    "sinusoidal": {"position": SinusoidalPosition()},
    "windows": {"window": (None, 4), "position": RotaryPosition()},
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each compiled step."""
    return compiled_calls.rows_of_steps(monkeypatch)


def create(stack: str = "learned", name: str = "gpt-micro") -> Any:
    config = heedful.presets.get(name)
    if name != "gpt-micro":
        return heedful.create(name, seed=0)
    changes: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 4, "ff_dim": 64, **STACKS[stack]}
    return heedful.create(replace(config, decoder=replace(config.decoder, **changes)), seed=0)


def tokens(model: Any, **options: Any) -> list[list[int]]:
    return model.generate(IDS, MASK, **{"max_new_tokens": 12, **options}).tolist()


def with_copy(model: Any) -> Any:
    """The model after two calls."""
    for _ in range(2):
        tokens(model)
    assert model.decoding_copy.model is not None
    return model


@pytest.mark.parametrize("stack", STACKS)
def test_every_call_gives_the_same_tokens(stack: str, calls: list[int]) -> None:
    model = create(stack)
    first = tokens(model)
    assert calls == []
    for _ in range(2):
        assert tokens(model) == first
        assert len(calls) == 11
        calls.clear()
    assert tokens(model, num_beams=3) == tokens(create(stack), num_beams=3)
    assert model.kernels == "auto"


@pytest.mark.parametrize("name", ["transformer-tiny", "stories260k"])
def test_other_families(name: str, calls: list[int]) -> None:
    model = create(name=name)
    assert tokens(with_copy(model)) == tokens(create(name=name))
    assert calls


@pytest.mark.skipif(not has_onednn(torch.bfloat16), reason="this processor has no kernels for bfloat16")
def test_weights_of_bfloat16(calls: list[int]) -> None:
    model = with_copy(create().to(torch.bfloat16))
    assert model.decoding_copy.model.dtype is torch.bfloat16
    assert calls


def train(model: Any) -> None:
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=3.0)
    model(IDS).logsumexp(-1).sub(model(IDS)[..., 3]).mean().backward()
    optimiser.step()
    model.eval()


def by_data(model: Any) -> None:
    model.decoder.block[1].feed_forward.down.weight.data.mul_(-20)


def one_number_by_data(model: Any) -> None:
    model.head.output.weight.data[3, 5] = 300


def of_another_tensor(model: Any) -> None:
    model.decoder.norm.weight.data = torch.linspace(-3, 3, 32)


def of_a_part(model: Any) -> None:
    model.decoder.block[0].feed_forward_residual.before = Identity()


def of_a_setting(model: Any) -> None:
    model.decoder.block[0].attention.scale = 30.0


def of_a_function(model: Any) -> None:
    model.decoder.block[0].feed_forward.activation = lambda x: -100 * x


def of_forward(model: Any) -> None:
    model.decoder.block[1].feed_forward.forward = lambda x, *_, **__: -50 * x


def by_a_hook(model: Any) -> None:
    model.decoder.block[0].register_forward_hook(lambda part, inputs, y: -y.roll(1, -1) * 9)


class Negated(nn.Module):
    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return -40 * x


def by_an_own_part(model: Any) -> None:
    model.decoder.block[0].feed_forward = Negated()


CHANGES: tuple[Callable[[Any], None], ...] = (
    train,
    by_data,
    one_number_by_data,
    of_another_tensor,
    of_a_part,
    of_a_setting,
    of_a_function,
    of_forward,
    by_a_hook,
    by_an_own_part,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_the_one_that_decodes(change: Callable[[Any], None]) -> None:
    """In the first call after the change, and in those that follow."""
    model, expected = with_copy(create()), create()
    before = tokens(model)
    change(model)
    change(expected)
    wanted = heedful.generation.generate(expected, IDS, MASK, max_new_tokens=12).tolist()
    assert wanted != before
    assert [tokens(model) for _ in range(3)] == [wanted] * 3


def test_a_recorded_model_is_the_one_that_decodes() -> None:
    model = with_copy(create())
    with heedful.record(model, "pattern") as seen:
        tokens(model)
    assert seen["decoder.block.1.attention.pattern"].shape[1] == 4
    with heedful.intervene(model, "feed_forward.output", lambda value: value * -30):
        changed = tokens(model)
    assert changed != tokens(model)


def test_the_copy_shares_the_weights_and_stays_with_one_model() -> None:
    model = with_copy(create())
    copied = model.decoding_copy.model
    assert copied.embedding.token.weight.data_ptr() == model.embedding.token.weight.data_ptr()
    assert all(part.requires_grad for part in model.parameters())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.decoding_copy is None
        assert tokens(other) == tokens(model)
    assert "decoding_copy" not in "".join(model.state_dict())
    assert "decoding_copy='cpu-compiled'" in repr(model)
    model.train()
    assert model.decoding_copy is None
    assert "decoding_copy" not in repr(model)


def test_models_made_in_inference_mode_and_with_attributes_of_their_own(calls: list[int]) -> None:
    with torch.inference_mode():
        made = create()
    long = create("sinusoidal")
    long.generate(IDS, MASK, max_new_tokens=600)  # extends the table of positions
    locked = create()
    locked.lock = Lock()
    for model in (made, long, locked):
        calls.clear()
        assert tokens(model) == tokens(model) == tokens(model)
        assert calls
    view = create()
    view.register_buffer("scale", torch.zeros(1).expand(10**10))
    seen = create()
    seen.last = seen(IDS)
    for model in (view, seen):
        calls.clear()
        assert tokens(model) == tokens(model) == tokens(model)
        assert calls == []


def test_an_option_that_is_no_number_is_refused_as_before() -> None:
    with pytest.raises(HeedfulError, match="max_new_tokens"):
        create().generate(IDS, MASK, max_new_tokens="12")


def test_few_tokens_and_other_kernels_have_no_copy(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (create(), apply_plan(create(), "plain"), create().double()):
        for _ in range(3):
            tokens(model, max_new_tokens=12 if model.kernels == "plain" or model.dtype is torch.float64 else 4)
    monkeypatch.setattr(decoding_copy, "available_memory", lambda: 1000)
    model = create()
    for _ in range(3):
        tokens(model)
    assert model.decoding_copy.is_refused
    assert calls == []


def test_without_the_library_the_model_decodes(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = create()
    few_rows._library.cache_clear()
    with monkeypatch.context() as patched:
        patched.setenv("CXX", "no-such-compiler")
        patched.setattr(few_rows, "packaged", lambda: None)
        for _ in range(3):
            tokens(model)
    assert calls == []
    tokens(model)
    assert calls


def test_a_checksum_finds_every_bit() -> None:
    numbers = torch.randn(1003)
    before = few_rows.checksum(numbers)
    assert before == few_rows.checksum(numbers.clone())
    bits = numbers.view(torch.int32)
    for place in (0, 1, 500, 1001, 1002):
        for bit in (0, 13, 31):
            bits[place] ^= 1 << bit if bit < 31 else -(2**31)
            assert few_rows.checksum(numbers) != before
            bits[place] ^= 1 << bit if bit < 31 else -(2**31)
    assert few_rows.checksum(numbers) == before
    assert few_rows.checksum(numbers[torch.arange(1002, -1, -1)]) != before
