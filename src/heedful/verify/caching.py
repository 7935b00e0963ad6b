"""Cached = uncached: what is computed token by token is what is computed all at once."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.cache import Cache
from heedful.config import DecoderConfig, EncoderDecoderConfig, LanguageHead
from heedful.verify.inputs import Call, distance, draw, pack
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import Subject

ALLOWED = 1e-10  # of the largest value, in float64
SHARES = (1.0, 0.5, 0.8)


@torch.no_grad()
def cached(subject: Subject) -> Outcome:
    """How far the step by step answer is from the whole, with each kind of cache that decoding uses."""
    config = subject.config
    if not isinstance(config, DecoderConfig | EncoderDecoderConfig):
        raise Skipped("nothing is decoded step by step")
    model, stack = subject.model(torch.float64), config.decoder
    # a sliding cache takes padding on the left only; a decoder's prompts are padded there, targets not at all
    call = pack(draw(config, SHARES), "left" if isinstance(config, DecoderConfig) else "right", config.special.pad)
    tokens, real = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert real is not None
    kinds = [Cache(stack.depth)] if stack.window is None else []
    kinds += [Cache(stack.depth, capacity=None if stack.window else tokens.size(1), window=stack.window)]
    whole = _answer(model, call, None)[real]
    worst = max(distance([_answer(model, call, cache)[real]], [whole]) for cache in kinds)
    return Outcome(difference=worst, allowed=ALLOWED)


def _answer(model: torch.nn.Module, call: Call, cache: Cache | None) -> Tensor:
    """Logits of a language model, else the stream: at once, or up to where every row has begun, then token by token."""
    tokens, mask = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert mask is not None
    begun = int(mask.int().argmax(1).max()) + 1
    memory = None if call.target is None else model.encode(call.ids, call.mask)  # type: ignore[operator]
    width = tokens.size(1)
    cuts = [width] if cache is None else range(begun, width + 1)
    parts, start = [], 0
    for end in cuts:
        part, real = tokens[:, start:end], mask[:, start:end]
        if memory is None:
            parts.append(model.hidden(part, real, cache=cache))  # type: ignore[operator]
        else:
            parts.append(model.decode(part, memory, real, call.mask, cache=cache))  # type: ignore[operator]
        start = end
    stream = torch.cat(parts, 1)
    return model.head(stream) if isinstance(model.config.head, LanguageHead) else stream  # type: ignore
