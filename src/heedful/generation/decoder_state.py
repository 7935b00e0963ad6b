"""Source of next-token logits: a model, its cache, and the rows that are being decoded.

Shapes: B prompts, T their tokens, R rows at work (prompts × beams or samples), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from heedful.cache import Cache
from heedful.config import LanguageHead, LearnedPosition, StackConfig
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


def learned(stack: StackConfig) -> int | None:
    """The number of a stack's learned positions, beyond which it has none; None for every other kind of position."""
    return stack.position.length if isinstance(stack.position, LearnedPosition) else None


class Source:
    """A decoder: ``prefill`` reads the prompts, ``step`` one token more a row.

    Attributes:
        given: (B, T) the ids that were given, ``NONE`` for padding.
        prompt: (B, width) what stands before the first new token, right-aligned, ``NONE`` for padding.
        counts: (B,) its real tokens.
        usual: (B,) how many new tokens a row may have where nobody says.
        origin: (R,) the prompt to which each row at work belongs.
        chunk: the prompt is read so many tokens at a time; 0: at once.
        whole: the cache keeps what has left a sliding window, too, so that it can go back.
    """

    chunk, whole = 0, False

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
    def vocabulary(self) -> int:
        """The number of tokens that can be generated."""
        return int(self.model.config.embedding.vocab_size)

    @property
    def watchers(self) -> list[Any]:
        """Those who have been told of this generation since it began, and still watch."""
        return [one for one in self.told if one in self.model.watchers]

    def remember(self, steps: int | None) -> None:
        """Make a cache: with room for ``steps`` tokens after the prompt, or growing with None."""
        self.room, window = steps, None if self.whole else self.stack.window
        capacity = None if steps is None or window is not None else self.prompt.size(1) + steps
        self.cache = Cache(self.stack.depth, capacity=capacity, window=window)

    def prefill(self) -> Tensor:
        """Logits (B, V) after the prompt."""
        for hidden in self.opening():
            last = hidden
        logits = self.logits(last)
        self.tell(self.prompt[:, -1])
        return logits

    def opening(self) -> Iterator[Tensor]:
        """The hidden stream (B, t, D) of the prompt, piece by piece."""
        return self.pieces(self.ids, self.real)

    def pieces(self, ids: Tensor, real: Tensor | None) -> Iterator[Tensor]:
        """Read ``ids`` (B, T), ``chunk`` at a time: the hidden stream of each piece."""
        size = self.chunk or ids.size(1)
        reals = [None] * -(-ids.size(1) // size) if real is None else real.split(size, 1)
        for part, there in zip(ids.split(size, 1), reals, strict=True):
            yield self.read(part, there)

    def read(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """The hidden stream (R, t, D) of ``ids`` (R, t), after what was read before."""
        hidden: Tensor = self.model.hidden(ids, real, cache=self.cache)
        return hidden

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
        logits = self.logits(self.read(tokens[:, None]))
        self.tell(tokens)
        return logits

    def tell(self, tokens: Tensor) -> None:
        """A call is over, head and all, in which each row was given one of ``tokens`` (R,) last."""
        for watcher in self.watchers:
            watcher.step(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the last position of ``hidden`` (R, T, D), in float32 at least: (R, V)."""
        return self.scores(hidden[:, -1:])[:, 0]

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits of all positions of ``hidden`` (R, T, D), in float32 at least: (R, T, V)."""
        logits: Tensor = self.model.head(hidden)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Work on ``rows`` from now on: any of the present ones, any number of times.

        ``prompts``: as many of them belong to each of these prompts, in their order, and what belongs to a prompt is
        kept once for them all, as it is after ``reorder``.
        """
        self.cache.select(rows, prompts)
        self.moved(rows)

    def reorder(self, rows: Tensor) -> None:
        """The same where no prompt is dropped, ``rows`` stand in the order of their prompts, as many for each: what
        belongs to the prompts stays.
        """
        self.cache.reorder(rows)
        self.moved(rows)

    def moved(self, rows: Tensor) -> None:
        """``rows`` stand where others stood."""
        self.origin = self.origin.index_select(0, rows)
        for watcher in self.watchers:
            watcher.select(rows)


class CrossSource(Source):
    """An encoder-decoder: ``prefill`` reads the sources and what the targets begin with.

    That is the start token, or the real tokens of ``prefix`` (ids and which are real, (B, T)), after the start token
    where a row does not begin with it.
    """

    def __init__(self, model: Any, ids: Tensor, real: Tensor, prefix: tuple[Tensor, Tensor] | None = None) -> None:
        start = model.config.special.start
        if start is None:
            raise HeedfulError("the model's configuration names no start token; set special.start")
        self.model, self.stack = model, model.config.decoder
        # right-padded, so that positions are the same whether or not a family counts padding
        self.ids, real = align(ids, real, "left")
        self.real = None if bool(real.all()) else real
        self.given, self.prompt = self.ids.where(real, NONE), torch.full((len(ids), 1), start, device=ids.device)
        if prefix is not None:
            begun, there = align(*prefix, "left")
            again = (begun[:, :1] == start) & there[:, :1]
            begun, there = align(torch.cat((self.prompt, begun), 1), torch.cat((~again, there), 1), "right")
            self.prompt = begun.where(there, NONE)
        self.counts, self.usual = (self.prompt != NONE).sum(1), 2 * real.sum(1) + 50
        self.origin = torch.arange(len(ids), device=ids.device)
        self.told = tuple(model.watchers)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that can be generated."""
        return int((self.model.config.target or self.model.config.source).vocab_size)

    def opening(self) -> Iterator[Tensor]:
        """The decoder's hidden stream (B, t, D) of what the targets begin with, piece by piece."""
        self.memory = self.model.encode(self.ids, self.real)
        for watcher in self.watchers:
            watcher.read()
        there = self.prompt != NONE
        return self.pieces(self.prompt.clamp(min=0), None if bool(there.all()) else there)

    def read(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """The decoder's hidden stream (R, t, D) of ``ids`` (R, t), after what was read before."""
        hidden: Tensor = self.model.decode(ids, self.memory, real, self.real, cache=self.cache)
        return hidden

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Also of the sources; their keys and values are in the cache, so the memory itself is not read again."""
        super().select(rows, prompts)
        self.real = None if self.real is None else self.real.index_select(0, rows if prompts is None else prompts)


def source_of(
    model: Any, ids: Tensor, mask: Tensor | None, prefix: tuple[Tensor, Tensor | None] | None = None
) -> Source:
    """The source of a decoder or an encoder-decoder with a language-model head; raises ``HeedfulError`` for others.

    ``prefix``: what an encoder-decoder's targets begin with, ids and mask.
    """
    if not hasattr(model, "decoder") or not isinstance(model.config.head, LanguageHead):
        raise HeedfulError(
            f"a {model.config.kind!r} model with a {model.config.head.kind!r} head cannot generate; "
            "load a decoder or an encoder-decoder with its language-model head"
        )
    ids, real = checked("ids", ids, mask, model)
    if prefix is None:
        return (CrossSource if hasattr(model, "encode") else Source)(model, ids, real)
    if not hasattr(model, "encode"):
        raise HeedfulError(
            "decoder_input_ids begin the target of an encoder-decoder; put a decoder's before its prompt"
        )
    begun = checked("decoder_input_ids", *prefix, model)
    if len(begun[0]) != len(ids):
        raise HeedfulError(f"decoder_input_ids have {len(begun[0])} rows, the ids {len(ids)}; give one for each")
    return CrossSource(model, ids, real, begun)


def checked(name: str, ids: Tensor, mask: Tensor | None, model: Any) -> tuple[Tensor, Tensor]:
    """``ids`` and which are real, (B, T) both, where the model is; ``HeedfulError`` where they have another shape."""
    if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise HeedfulError(f"{name} are {ids.dtype} of shape {tuple(ids.shape)}; give whole numbers (rows, tokens)")
    if mask is not None and mask.shape != ids.shape:
        raise HeedfulError(f"the mask has shape {tuple(mask.shape)}, the {name} {tuple(ids.shape)}; make them equal")
    ids = ids.to(model.device, torch.int64)
    return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(model.device).bool()
