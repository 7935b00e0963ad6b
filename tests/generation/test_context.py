"""Text longer than a model reads at a time, and tokens as they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heedful
from heedful.config import AlibiPosition, LearnedPosition, RelativePosition, RotaryPosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import decode, generate, stream
from tolerances import assert_close

LENGTHS = [9, 2, 12, 1, 13, 20]  # of prompts: shorter than a context of 12, as long, longer


def by_hand(model, prompt, steps, context, keep=0):
    """Greedy, every step a whole forward pass over what is read."""
    read, made = list(prompt), list(prompt)
    for _ in range(steps):
        if len(read) > context:
            read = read[-(keep or max(1, context // 2)) :]
        token = int(model(torch.tensor([read]))[0, -1].argmax())
        read.append(token)
        made.append(token)
        if token in model.config.special.end:
            break
    return made


@pytest.mark.parametrize("context", [12, 5, 2, 1])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_half_is_read_again(pairs, prompts, plain, context, side):
    model = pairs["gpt2"](1).ours.eval()  # with end tokens: rows leave at different times
    ids, mask = prompts(LENGTHS, side)
    expected = [by_hand(model, row[real].tolist(), 30, context) for row, real in zip(ids, mask, strict=True)]
    made = decode(model, ids, mask, max_new_tokens=30, context=context)
    assert plain(made.ids, made.lengths) == expected
    assert max(map(len, expected)) > 2 * context


@pytest.mark.parametrize("keep", [12, 11, 5, 1])
@pytest.mark.parametrize("side", ["left", "right"])
def test_kept_tokens_are_read_again(pairs, prompts, plain, keep, side):
    model = pairs["gpt2"](1).ours.eval()
    ids, mask = prompts(LENGTHS, side)
    expected = [by_hand(model, row[real].tolist(), 30, 12, keep) for row, real in zip(ids, mask, strict=True)]
    made = decode(model, ids, mask, max_new_tokens=30, context=12, context_keep=keep)
    assert plain(made.ids, made.lengths) == expected


def nanogpt(model, ids, steps, block_size):
    """nanoGPT's loop: a pass over the last ``block_size`` tokens for each new one, without a cache."""
    for _ in range(steps):
        ids = torch.cat((ids, model(ids[:, -block_size:])[:, -1:].argmax(-1)), 1)
    return ids


@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_the_window_slides_as_in_nanogpt(length):
    config = heedful.presets.get("gpt-micro")
    decoder = replace(config.decoder, depth=2, position=LearnedPosition(length=16))  # without an end token
    model = heedful.create(replace(config, decoder=decoder), seed=0).eval().double()
    ids = torch.randint(65, (2, length), generator=torch.Generator().manual_seed(length))
    expected = nanogpt(model, ids, 24, 16)
    assert torch.equal(generate(model, ids, max_new_tokens=24, context_keep=16), expected)
    assert torch.equal(generate(model, ids, max_new_tokens=24, context=16, context_keep=16), expected)
    tokens = torch.stack(list(stream(model, ids, max_new_tokens=24, context_keep=16)), 1)
    assert torch.equal(tokens, expected[:, length:])


@pytest.mark.parametrize("position", [RotaryPosition(), AlibiPosition(), RelativePosition(), SinusoidalPosition()])
def test_other_positions_slide_in_a_given_context(position):
    config = heedful.presets.get("gpt-micro")
    model = heedful.create(replace(config, decoder=replace(config.decoder, position=position)), seed=0).eval().double()
    ids = torch.randint(65, (2, 5), generator=torch.Generator().manual_seed(0))
    made = generate(model, ids, max_new_tokens=30, context=16, context_keep=16)
    assert torch.equal(made, nanogpt(model, ids, 30, 16))


@pytest.mark.parametrize("method", [{"prompt_lookup_num_tokens": 3}, {"assistant_model": True}], ids=str)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.2, "seed": 3, "num_return_sequences": 2}], ids=str)
def test_reading_ahead_in_a_sliding_window(pairs, prompts, method, sampling):
    model = pairs["gpt2"](1).ours.eval()
    ids, mask = prompts(LENGTHS)
    method = {"assistant_model": pairs["gpt2"](2).ours} if "assistant_model" in method else method
    options = {"max_new_tokens": 20, "context": 12, "context_keep": 12, **sampling}
    ahead = decode(model, ids, mask, **options, **method)
    if not sampling or "prompt_lookup_num_tokens" in method:
        assert torch.equal(ahead.ids, decode(model, ids, mask, **options).ids)


def test_without_end_tokens_beyond_all_positions(prompts):
    model = heedful.create("gpt-micro", seed=0)  # 64 positions
    ids, mask = prompts([3, 70, 64])
    made = decode(model, ids, mask, max_new_tokens=80, context=64)
    assert made.lengths.tolist() == [83, 150, 144]
    assert made.ids[1, :70].tolist() == ids[1].tolist()
    assert made.ids[2, :64].tolist() == ids[2][mask[2]].tolist()


@pytest.mark.parametrize("options", [{}, {"temperature": 1.2, "seed": 3, "num_return_sequences": 2}], ids=str)
def test_a_context_that_is_long_enough_changes_nothing(pairs, prompts, options):
    model = pairs["gpt2"](2).ours
    ids, mask = prompts([9, 2, 20])
    whole, short = (decode(model, ids, mask, max_new_tokens=8, context=n, **options) for n in (None, 28))
    assert torch.equal(whole.ids, short.ids)
    assert torch.equal(whole.scores, short.scores)


def test_samples_are_the_same_alone_and_in_a_batch(pairs, prompts, plain):
    model = pairs["gpt2"](3).ours
    ids, mask = prompts(LENGTHS)
    options = {"max_new_tokens": 25, "context": 12, "top_k": 20, "seed": 1, "num_return_sequences": 2}
    alone = [decode(model, row[real][None], **options) for row, real in zip(ids, mask, strict=True)]
    made = decode(model, ids, mask, **options)
    assert plain(made.ids, made.lengths) == [row for one in alone for row in plain(one.ids, one.lengths)]
    assert_close(made.scores, torch.cat([one.scores for one in alone]))


def test_the_rest_is_read_token_by_token():
    model, widths = heedful.create("gpt-micro", seed=0), []
    model.decoder.block[0].attention.key.register_forward_hook(lambda part, x, y: widths.append(x[0].size(1)))
    generate(model, torch.arange(60).view(2, 30), max_new_tokens=18, context=10)
    assert widths == [5, 1, 1, 1, 1, 1] * 3


def test_where_a_context_cannot_be():
    ids = torch.tensor([[1, 2]])
    model = heedful.create("gpt-micro", seed=0)
    for wrong in (0, 65):
        with pytest.raises(HeedfulError, match=f"context is {wrong}, .* give 1 to 64"):
            generate(model, ids, context=wrong)
    with pytest.raises(HeedfulError, match="not for a beam search"):
        generate(model, ids, context=8, num_beams=2)
    with pytest.raises(HeedfulError, match="not for an encoder-decoder"):
        generate(heedful.create("transformer-tiny", seed=0), ids, context=8)
    with pytest.raises(HeedfulError, match=r"context_keep=4 works only for .* a beam search; leave context_keep out"):
        generate(model, ids, context_keep=4, num_beams=2)
    with pytest.raises(HeedfulError, match="context_keep=9 is more than the context of 8 tokens; give 1 to 8"):
        generate(model, ids, context=8, context_keep=9)
    with pytest.raises(HeedfulError, match="context_keep=9, but the model's positions have no limit; give context too"):
        generate(heedful.create("stories260k", seed=0), ids, context_keep=9)
    assert generate(model, ids, defaults={"context_keep": 64}, max_new_tokens=70).size(1) == 72  # a folder's
    assert generate(model, ids, defaults={"context_keep": 64}, max_new_tokens=5, num_beams=2).size(1) == 7


# --------------------------------------------------------------------------------------------------------- as they come


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.2, "seed": 3, "num_return_sequences": 2}], ids=str)
def test_the_stream_is_what_generate_gives(pairs, prompts, plain, family, options):
    model, (ids, mask) = pairs[family](0).ours, prompts([9, 2, 6], "right")
    made = decode(model, ids, mask, max_new_tokens=20, **options)
    steps = torch.stack(list(stream(model, ids, mask, max_new_tokens=20, **options)), 1)
    copies = len(made.ids) // len(ids)
    first = [1 if family == "marian" else int(n) for n in mask.sum(1).repeat_interleave(copies)]
    rows = [[token for token in row if token >= 0] for row in steps.tolist()]
    assert rows == [row[n:] for row, n in zip(plain(made.ids, made.lengths), first, strict=True)]
    assert len({len(row) for row in rows}) > 1  # some ended before others


def test_a_token_is_there_before_the_next_is_made(prompts):
    model, calls = heedful.create("gpt-micro", seed=0), []
    model.train()
    model.decoder.register_forward_hook(lambda *_: calls.append(model.training))
    steps = stream(model, torch.tensor([[1, 2, 3]]), max_new_tokens=50)
    assert calls == []
    tokens = [next(steps), next(steps)]
    assert calls == [False, False]
    assert not torch.is_inference_mode_enabled()
    model(torch.stack(tokens, 1)).sum().backward()  # no inference tensor
    del steps
    assert all(module.training for module in model.modules())


def test_a_search_cannot_be_streamed():
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match="num_beams=3: a beam search cannot stream"):
        stream(model, torch.tensor([[1]]), num_beams=3)
    with pytest.raises(HeedfulError, match="num_beams=4"):
        stream(model, torch.tensor([[1]]), defaults={"num_beams": 4})
    with pytest.raises(HeedfulError, match="unknown decoding option"):
        stream(model, torch.tensor([[1]]), beams=4)
