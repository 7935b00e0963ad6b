"""How many tokens a row may have, and how many are read at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.options import Options
from heedful.generation.source import CrossSource, Source, learned


def limits_of(source: Source, options: Options, context: int | None = None) -> Tensor:
    """How many new tokens each prompt may have (B,), without a ``context`` capped by the model's learned positions.

    A row of n tokens needs n − 1 positions: the last is never read again. Raises ``HeedfulError`` where the prompt
    leaves no room, or less than the options ask for by number.
    """
    if options.max_new_tokens is not None:
        limits = torch.full_like(source.counts, options.max_new_tokens)
    elif options.max_length is not None:
        limits = options.max_length - source.counts
    else:
        limits = source.usual
    if int(limits.min()) < 1:
        row = int(limits.argmin())
        raise HeedfulError(
            f"max_length={options.max_length}, but prompt {row} has {int(source.counts[row])} tokens already; raise it"
        )
    length = learned(source.stack)
    if length is not None and context is None:
        room = length + 1 - source.counts
        asked = limits if limits is not source.usual else torch.ones_like(limits)
        if bool((asked > room).any()):
            row = int((asked - room).argmax())
            raise HeedfulError(
                f"prompt {row} has {int(source.counts[row])} tokens and is to get {int(asked[row])}, but the model has "
                f"{length} learned positions; shorten the prompt, or set max_new_tokens"
            )
        limits = limits.minimum(room)
    if options.min_new_tokens > int(limits.min()):
        raise HeedfulError(
            f"min_new_tokens={options.min_new_tokens}, but only {int(limits.min())} are allowed; raise max_new_tokens"
        )
    return limits


def check_context(source: Source, options: Options, context: int | None) -> None:
    """Raise ``HeedfulError`` where the model cannot go on from a part of what it has, or has fewer positions."""
    if context is None:
        return
    if isinstance(source, CrossSource) or options.method in ("beam", "contrastive"):
        whole = {"beam": "a beam search", "contrastive": "contrastive search"}
        what = "an encoder-decoder" if isinstance(source, CrossSource) else whole[options.method]
        raise HeedfulError(
            f"context={context} is for a decoder that samples or is greedy, not for {what}; leave it out"
        )
    most = learned(source.stack) or context
    if not 1 <= context <= most:
        raise HeedfulError(f"context is {context}; give a whole number from 1 to {most}, the model's positions")
