"""A long prompt read in pieces: the same as read at once, whatever the position scheme, the padding and the method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import AlibiPosition, RelativePosition, RotaryPosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation.decoder_state import create_state
from tolerances import assert_close, is_close

LENGTHS = [9, 2, 13, 1, 13]
METHODS = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "context": {"context": 8},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "words": {"num_beams": 4, "force_words_ids": [[9, 8]]},
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_every_method_gives_the_same(pairs, prompts, side, options):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts(LENGTHS, side)
    whole = decode(model, ids, mask, max_new_tokens=12, logprobs=True, **options)
    for size in (1, 3, 4, 13, 50):
        made = decode(model, ids, mask, max_new_tokens=12, logprobs=True, prefill_chunk_size=size, **options)
        assert torch.equal(made.ids, whole.ids)
        assert (made.logprobs - whole.logprobs).abs().max() < 1e-10
        assert (made.scores - whole.scores).abs().max() < 1e-10


SCHEMES = {
    "rotary": {"position": RotaryPosition()},
    "alibi": {"position": AlibiPosition()},
    "relative": {"position": RelativePosition()},
    "sinusoidal": {"position": SinusoidalPosition()},
    "grouped": {"position": RotaryPosition(), "kv_heads": 1},
    "sliding": {"position": RotaryPosition(), "window": 5},
    "windows": {"position": AlibiPosition(), "window": (5, None)},
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_logits_after_the_prompt_and_after_more(prompts, scheme, side):
    config = presets.gpt2(16, 2, 2, 40, 64)
    model = heedful.create(replace(config, decoder=replace(config.decoder, **scheme)), seed=0).double().eval()
    ids, mask = prompts(LENGTHS, side)
    expected = []
    for row, real in zip(ids, mask, strict=True):
        text = torch.cat((row[real], torch.tensor([4, 5])))
        expected.append(model(text[None])[0, -3:])
    for size in (1, 2, 5, 6, 13, 40):
        state = create_state(model, ids, mask)
        state.prefill_chunk_size = size
        state.make_cache(2)
        made = [state.prefill(), state.step(torch.full((5,), 4)), state.step(torch.full((5,), 5))]
        assert_close(torch.stack(made, 1), torch.stack(expected))


def test_no_call_reads_more_than_was_said():
    model, widths = heedful.create("gpt-micro", seed=0), []
    model.decoder.block[0].attention.key.register_forward_hook(lambda part, x, y: widths.append(x[0].size(1)))
    model.generate(torch.arange(60).view(2, 30), max_new_tokens=3, prefill_chunk_size=8)
    assert widths == [8, 8, 8, 6, 1, 1]


@pytest.mark.parametrize("method", [{}, {"num_beams": 3}], ids=str)
def test_recording_sees_the_same(pairs, prompts, method):
    model, (ids, mask) = pairs["gpt2"](2).ours, prompts(LENGTHS)
    seen = []
    for size in (0, 4):
        with heedful.record(model, ("pattern", "key", "stream")) as one:
            decode(model, ids, mask, max_new_tokens=5, prefill_chunk_size=size, **method)
        seen.append(one)
    assert seen[0].keys() == seen[1].keys()
    assert all(is_close(seen[1][path], tensor) for path, tensor in seen[0].items())


def test_a_folder_may_say_so_and_a_wrong_size_is_one_line():
    model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3]])
    model.generation = {"prefill_chunk_size": 2}
    assert model.generate(ids, max_new_tokens=2).shape == (1, 5)
    with pytest.raises(HeedfulError, match="prefill_chunk_size is -1; give a whole number from 0"):
        model.generate(ids, prefill_chunk_size=-1)
