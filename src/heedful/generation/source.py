"""Where the next token's logits come from: a model, what it remembers, and the rows it is working on.

Shapes: B prompts, T their tokens, R rows at work (prompts × beams or samples), V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.cache import Cache
from heedful.config import LanguageHead
from heedful.errors import HeedfulError

NONE = -1  # in a history: no token here


def align(ids: Tensor, real: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """The real tokens of each row at its ``side`` ("left" or "right"), in their order, in as few columns as hold them.

    >>> align(torch.tensor([[5, 0, 6], [7, 0, 0]]), torch.tensor([[True, False, True], [True, False, False]]), "right")
    (tensor([[5, 6],
            [0, 7]]), tensor([[ True,  True],
            [False,  True]]))
    """
    order = real.int().argsort(dim=1, descending=side == "left", stable=True)
    width = int(real.sum(1).max())
    order = order[:, :width] if side == "left" else order[:, order.size(1) - width :]
    return ids.gather(1, order), real.gather(1, order)


class Source:
    """A decoder: ``prefill`` reads the prompts, ``step`` one token more a row.

    Attributes:
        given: (B, T) the ids that were given, ``NONE`` for padding.
        prompt: (B, width) what stands before the first new token, right-aligned, ``NONE`` for padding.
        counts: (B,) its real tokens.
        usual: (B,) how many new tokens a row may have where nobody says.
        origin: (R,) the prompt to which each row at work belongs.
    """

    def __init__(self, model: Any, ids: Tensor, real: Tensor) -> None:
        if not bool(real.any(1).all()):
            row = int(real.any(1).int().argmin())
            raise HeedfulError(f"prompt {row} has no tokens; begin it with a start token")
        self.model, self.stack = model, model.config.decoder
        self.ids, real = align(ids, real, "right")
        self.real = None if bool(real.all()) else real
        self.given = self.prompt = self.ids.where(real, NONE)
        self.counts, self.origin = real.sum(1), torch.arange(len(ids), device=ids.device)
        self.usual = torch.full_like(self.counts, 50)
        self.told = tuple(model.watchers)

    @property
    def watchers(self) -> list[Any]:
        """Those who have been told of this generation since it began, and still watch."""
        return [one for one in self.told if one in self.model.watchers]

    def remember(self, steps: int | None) -> None:
        """Make a cache: with room for ``steps`` tokens after the prompt, or growing with None.

        Room pays where rows stay in place. Reordering copies everything at each step, which is faster without empty
        room between the rows.
        """
        self.room, window = steps, self.stack.window
        capacity = None if steps is None or window is not None else self.prompt.size(1) + steps
        self.cache = Cache(self.stack.depth, capacity=capacity, window=window)

    def prefill(self) -> Tensor:
        """Logits (B, V) after the prompt."""
        logits = self.logits(self.model.hidden(self.ids, self.real, cache=self.cache))
        for watcher in self.watchers:
            watcher.step(self.ids[:, -1])
        return logits

    def reread(self, history: Tensor, begins: Tensor) -> Tensor:
        """Logits (R, V) after ``history`` (R, N), each row from its column ``begins`` (R,); the rest is forgotten."""
        for watcher in self.watchers:
            watcher.reread()
        first = int(begins.min())
        real = torch.arange(first, history.size(1), device=history.device) >= begins[:, None]
        self.ids, self.real = history[:, first:].clamp(min=0), None if bool(real.all()) else real
        self.remember(self.room)
        return self.prefill()

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (R, V) after ``tokens`` (R,)."""
        logits = self.logits(self.model.hidden(tokens[:, None], None, cache=self.cache))
        for watcher in self.watchers:
            watcher.step(tokens)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the last position of ``hidden`` (R, T, D), in float32 at least: (R, V)."""
        logits = self.model.head(hidden[:, -1:])[:, 0]
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def select(self, rows: Tensor) -> None:
        """Work on ``rows`` from now on: any of the present ones, any number of times."""
        self.cache.select(rows)
        self.origin = self.origin.index_select(0, rows)
        for watcher in self.watchers:
            watcher.select(rows)

    def reorder(self, rows: Tensor) -> None:
        """The same where every row takes the place of one of its own prompt: what belongs to the prompt stays."""
        self.cache.reorder(rows)
        for watcher in self.watchers:
            watcher.select(rows)


class CrossSource(Source):
    """An encoder-decoder: ``prefill`` reads the sources and the start token."""

    def __init__(self, model: Any, ids: Tensor, real: Tensor) -> None:
        start = model.config.special.start
        if start is None:
            raise HeedfulError("the model's configuration names no start token; set special.start")
        self.model, self.stack = model, model.config.decoder
        # right-padded, so that positions are the same whether or not a family counts padding
        self.ids, real = align(ids, real, "left")
        self.real = None if bool(real.all()) else real
        self.given, self.prompt = self.ids.where(real, NONE), torch.full((len(ids), 1), start, device=ids.device)
        self.counts, self.usual = torch.ones_like(real.sum(1)), 2 * real.sum(1) + 50
        self.origin = torch.arange(len(ids), device=ids.device)
        self.told = tuple(model.watchers)

    def prefill(self) -> Tensor:
        """Logits (B, V) after the start token."""
        self.memory = self.model.encode(self.ids, self.real)
        for watcher in self.watchers:
            watcher.read()
        return self.step(self.prompt[:, 0])

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (R, V) after ``tokens`` (R,)."""
        logits = self.logits(self.model.decode(tokens[:, None], self.memory, None, self.real, cache=self.cache))
        for watcher in self.watchers:
            watcher.step(tokens)
        return logits

    def select(self, rows: Tensor) -> None:
        """Also of the sources; their keys and values are in the cache, so the memory itself is not read again."""
        super().select(rows)
        self.real = None if self.real is None else self.real.index_select(0, rows)


def source_of(model: Any, ids: Tensor, mask: Tensor | None) -> Source:
    """The source of a decoder or an encoder-decoder with a language-model head; raises ``HeedfulError`` for others."""
    if not hasattr(model, "decoder") or not isinstance(model.config.head, LanguageHead):
        raise HeedfulError(
            f"a {model.config.kind!r} model with a {model.config.head.kind!r} head cannot generate; "
            "load a decoder or an encoder-decoder with its language-model head"
        )
    if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise HeedfulError(f"ids are {ids.dtype} of shape {tuple(ids.shape)}; give whole numbers (rows, tokens)")
    if mask is not None and mask.shape != ids.shape:
        raise HeedfulError(f"the mask has shape {tuple(mask.shape)}, the ids {tuple(ids.shape)}; make them equal")
    ids = ids.to(model.device, torch.int64)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(model.device).bool()
    return (CrossSource if hasattr(model, "encode") else Source)(model, ids, real)
