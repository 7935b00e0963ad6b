"""Generation that ends between two steps: every method asks, none computes a step after the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ending_models import tiny_model

import heedful
from heedful.generation import decode, stream
from heedful.generation.decoder_state import DecoderState, EncoderDecoderState
from heedful.generation.options import methods
from heedful.generation.stopping import SHOULD_STOP, Interrupted, interruptible

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 1, "num_return_sequences": 2},
    "beam": {"num_beams": 3},
    "diverse beam": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "constrained beam": {"num_beams": 3, "force_words_ids": [[7, 8]]},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 3},
    "assisted": {"prompt_lookup_num_tokens": 3},
    "static": {"cache_implementation": "static", "num_beams": 2},
}
IDS = torch.tensor([[1, 2, 3, 1, 2], [4, 5, 6, 7, 8]])
LENGTH = {"max_new_tokens": 20, "min_new_tokens": 20}


def test_every_method_is_here() -> None:
    assert {method.name for method in methods()} <= WAYS.keys()


@pytest.fixture(params=["decoder", "encoder-decoder"])
def model(request: pytest.FixtureRequest) -> Any:
    cross = request.param == "encoder-decoder"
    return tiny_model(20, learned=64, end_factor=1.0, cross=cross, position="learned", dim=16)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the calls of decoders."""
    count = [0]
    for state in (DecoderState, EncoderDecoderState):

        def read(self: Any, *given: Any, own: Any = state.read) -> Any:
            count[0] += 1
            return own(self, *given)

        monkeypatch.setattr(state, "read", read)
    return lambda: count[0]


def answering(true_from: int) -> tuple[Callable[[], bool], list[int]]:
    """A function that returns True from a call on, and the number of its calls."""
    calls = [0]

    def should_stop() -> bool:
        calls[0] += 1
        return calls[0] > true_from

    return should_stop, calls


@pytest.mark.parametrize("way", WAYS)
def test_a_method_ends_before_its_next_step(model: Any, reads: Callable[[], int], way: str) -> None:
    before = reads()
    should_stop, calls = answering(true_from=3)
    with interruptible(should_stop), pytest.raises(Interrupted):
        decode(model, IDS, **LENGTH, **WAYS[way])
    assert calls[0] == 4
    if way != "static":  # whose step is captured
        assert 1 <= reads() - before <= 4  # the prompt, and at most a call for each step
    assert SHOULD_STOP.get() is None


@pytest.mark.parametrize("way", WAYS)
def test_a_method_that_is_not_ended_returns_the_same_bits(model: Any, way: str) -> None:
    alone = decode(model, IDS, logprobs=True, **LENGTH, **WAYS[way])
    should_stop, calls = answering(true_from=10**6)
    with interruptible(should_stop):
        found = decode(model, IDS, logprobs=True, **LENGTH, **WAYS[way])
    assert calls[0] == 20
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


def test_the_model_is_as_before_after_an_end() -> None:
    model = heedful.create("gpt-micro", seed=0).train()
    with interruptible(lambda: True), pytest.raises(Interrupted):
        decode(model, IDS, num_beams=2, **LENGTH)
    assert model.training
    with interruptible(lambda: True):
        tokens = stream(model, IDS, **LENGTH)
        with pytest.raises(Interrupted):
            next(tokens)
