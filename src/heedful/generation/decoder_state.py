"""State of a decoder during generation: the model, its cache, and the rows that are being decoded.

The source of an encoder-decoder is token ids or an image. Shapes: B prompts, T their tokens, R running rows (prompts ×
beams or samples), V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.cache import Cache
from heedful.config import EncoderConfig, LanguageHead, LearnedPosition, StackConfig, patches_of
from heedful.errors import HeedfulError
from heedful.kernels.compiled_step import stored_dtype
from heedful.layers.embedding import check_ids
from heedful.layers.mask import attended_tokens

NONE = -1  # in ids: no token here


def align(ids: Tensor, real: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """Moves the non-padding tokens of each row to its ``side`` ("left" or "right"), in order, and drops unused columns.

    >>> align(torch.tensor([[5, 0, 6], [7, 0, 0]]), torch.tensor([[True, False, True], [True, False, False]]), "right")
    (tensor([[5, 6],
            [0, 7]]), tensor([[ True,  True],
            [False,  True]]))
    """
    order = aligned_columns(real, side)
    return ids.gather(1, order), real.gather(1, order)


def align_pairs(mask: Tensor, real: Tensor, side: str) -> Tensor:
    """Moves the rows and columns of a mask (B, T, T) as ``align`` moves the tokens."""
    order = aligned_columns(real, side)
    rows = mask.gather(1, order[:, :, None].expand(-1, -1, mask.size(2)))
    return rows.gather(2, order[:, None, :].expand(-1, order.size(1), -1))


def aligned_columns(real: Tensor, side: str) -> Tensor:
    """Returns the column that each token comes from when the non-padding tokens move to ``side``: (B, width)."""
    order = real.int().argsort(dim=1, descending=side == "left", stable=True)
    width = int(real.sum(1).max())
    return order[:, :width] if side == "left" else order[:, order.size(1) - width :]


def learned_positions(stack: StackConfig) -> int | None:
    """Returns the number of a stack's learned positions; None for position schemes without a limit."""
    return stack.position.length if isinstance(stack.position, LearnedPosition) else None


class DecoderState:
    """State of a decoder-only model: ``prefill`` reads the prompts, ``step`` one more token per row.

    Attributes:
        given_ids: (B, T) the ids of the call, ``NONE`` for padding.
        prompt: (B, width) the ids before the first new token, right-aligned, ``NONE`` for padding.
        prompt_lengths: (B,) number of tokens of each prompt, without padding.
        default_limits: (B,) maximum number of new tokens of a row, if neither the call nor the folder sets a maximum.
        prompt_index: (R,) the prompt of each running row.
        prefill_chunk_size: tokens of the prompt that are read at a time; 0 reads all at once.
        whole_mask: (B, width, width) which tokens of the prompt (of an encoder-decoder's source) attend to which; None:
            as the stack's configuration says.
        start: the token that the call begins an encoder-decoder's targets with; None: the model's start token.
        keeps_all: True if the cache keeps tokens outside of a sliding window too, so that it can be cropped.
    """

    prefill_chunk_size, keeps_all = 0, False
    start: int | None = None
    whole_mask: Tensor | None = None
    side = "right"  # to which the ids are aligned

    def __init__(self, model: Any, ids: Tensor, real: Tensor) -> None:
        if not bool(real.any(1).all()):
            row = int(real.any(1).int().argmin())
            raise HeedfulError(f"prompt {row} has no tokens; begin it with a start token")
        self.model, self.stack = model, model.main
        self.ids, real = align(ids, real, self.side)
        self.real = None if bool(real.all()) else real
        self.given_ids = self.prompt = self.ids.where(real, NONE)
        self.prompt_lengths, self.prompt_index = real.sum(1), torch.arange(len(ids), device=ids.device)
        self.default_limits = torch.full_like(self.prompt_lengths, 50)
        self._first_observers = tuple(model.observers)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that can be generated."""
        return int(self.model.config.embedding.vocab_size)

    @property
    def draw_ids(self) -> Tensor:
        """Ids (B, N) on which the random numbers of a prompt depend, ``NONE`` for padding: those of the call."""
        return self.given_ids

    def state_of(self, model: Any) -> DecoderState:
        """Returns the state of another model for the same prompts or sources, at their beginning."""
        return create_state(model, self.given_ids.clamp(min=0), self.given_ids != NONE, start=self.start)

    @property
    def observers(self) -> list[Any]:
        """The model's observers that were present when generation began and are still present."""
        return [observer for observer in self._first_observers if observer in self.model.observers]

    def make_cache(self, steps: int | None) -> None:
        """Creates a cache with room for ``steps`` tokens after the prompt; None creates a growing cache."""
        self._cache_steps, depth = steps, self.stack.depth
        windows = (None,) * depth if self.keeps_all else self.stack.windows
        capacity = None if steps is None or None not in windows else self.prompt.size(1) + steps
        # calls of several tokens, after which a cache is cropped, take other kernels
        dtype = None if self.keeps_all else stored_dtype(self.model.decoder, len(self.ids))
        self.cache = Cache(depth, capacity=capacity, window=windows, dtype=dtype)

    def prefill(self) -> Tensor:
        """Returns the logits (B, V) after the prompt."""
        for hidden in self.prefill_hidden():
            last = hidden
        logits = self.last_logits(last)
        self.notify(self.prompt[:, -1])
        return logits

    def prefill_hidden(self) -> Iterator[Tensor]:
        """Yields the hidden states (B, t, D) of the prompt, a chunk at a time."""
        return self._read_chunks(self.ids, self.real, self.whole_mask)

    def _read_chunks(self, ids: Tensor, real: Tensor | None, whole_mask: Tensor | None = None) -> Iterator[Tensor]:
        if whole_mask is not None:
            yield self.read(ids, whole_mask)
            return
        size = self.prefill_chunk_size or ids.size(1)
        masks = [None] * -(-ids.size(1) // size) if real is None else real.split(size, 1)
        for chunk, mask in zip(ids.split(size, 1), masks, strict=True):
            yield self.read(chunk, mask)

    def read(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the hidden states (R, t, D) of ``ids`` (R, t), after the tokens in the cache."""
        hidden: Tensor = self.model.hidden(ids, real, cache=self.cache)
        return hidden

    def reread(self, history: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``history`` (R, N), each row from column ``starts`` (R,), in a new cache."""
        for observer in self.observers:
            observer.reread()
        first = int(starts.min())
        real = torch.arange(first, history.size(1), device=history.device) >= starts[:, None]
        self.ids, self.real = history[:, first:].clamp(min=0), None if bool(real.all()) else real
        self.make_cache(self._cache_steps)
        return self.prefill()

    def step(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,)."""
        logits = self.last_logits(self.read(tokens[:, None]))
        self.notify(tokens)
        return logits

    def notify(self, tokens: Tensor) -> None:
        """Notifies the observers after a call of the decoder; ``tokens`` (R,) are the last tokens that were read."""
        for observer in self.observers:
            observer.step(tokens)

    def last_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits (R, V) of the last position of ``hidden`` (R, T, D), in float32 at least."""
        return self.all_logits(hidden[:, -1:])[:, 0]

    def all_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits (R, T, V) of all positions of ``hidden`` (R, T, D), in float32 at least."""
        logits: Tensor = self.model.head(hidden)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Keeps the rows with the indices ``rows``, in this order; an index may occur any number of times.

        ``prompts``: the prompts of the rows, in order and with equally many rows each; the data of a prompt is then
            stored once for all of its rows, as after ``reorder``.
        """
        self.cache.select(rows, prompts)
        self._reordered(rows)

    def reorder(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order. The prompts keep their order and have equally
        many rows each, so the data of the prompts stays unchanged.
        """
        self.cache.reorder(rows)
        self._reordered(rows)

    def _reordered(self, rows: Tensor) -> None:
        self.prompt_index = self.prompt_index.index_select(0, rows)
        for observer in self.observers:
            observer.select(rows)


class EncoderDecoderState(DecoderState):
    """State of an encoder-decoder: ``prefill`` reads the sources and the beginnings of the targets.

    A target begins with the start token, then has the non-padding tokens of ``prefix`` (ids and mask, (B, T)); a
    ``prefix`` row that already begins with the start token gets no second one.
    """

    side = "left"

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        real: Tensor,
        prefix: tuple[Tensor, Tensor] | None = None,
        start: int | None = None,
    ) -> None:
        self.start, first = start, decoder_start(model, start)
        self.model, self.stack = model, model.config.decoder
        # right-padded, so that positions are the same whether or not a family counts padding
        self.ids, real = align(ids, real, self.side)
        self.real = None if bool(real.all()) else real
        self.given_ids = self.ids.where(real, NONE)
        self._begin_targets(first, real.sum(1), prefix)

    def _begin_targets(self, start: int, source_tokens: Tensor, prefix: tuple[Tensor, Tensor] | None) -> None:
        """Sets the beginnings of the targets, for sources with ``source_tokens`` (B,) tokens each."""
        count, device = len(source_tokens), source_tokens.device
        self.prompt = torch.full((count, 1), start, device=device)
        if prefix is not None:
            target, target_real = align(*prefix, "left")
            has_start = (target[:, :1] == start) & target_real[:, :1]
            target, target_real = torch.cat((self.prompt, target), 1), torch.cat((~has_start, target_real), 1)
            target, target_real = align(target, target_real, "right")
            self.prompt = target.where(target_real, NONE)
        self.prompt_lengths, self.default_limits = (self.prompt != NONE).sum(1), 2 * source_tokens + 50
        self.prompt_index = torch.arange(count, device=device)
        self._first_observers = tuple(self.model.observers)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that can be generated."""
        return int(self.model.config.tokens.vocab_size)

    def prefill_hidden(self) -> Iterator[Tensor]:
        """Yields the decoder's hidden states (B, t, D) of the targets' beginnings, a chunk at a time."""
        self.memory = self.model.encode(self.ids, self.real if self.whole_mask is None else self.whole_mask)
        for observer in self.observers:
            observer.read()
        real = self.prompt != NONE
        return self._read_chunks(self.prompt.clamp(min=0), None if bool(real.all()) else real)

    def read(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the decoder's hidden states (R, t, D) of ``ids`` (R, t), after the tokens in the cache."""
        hidden: Tensor = self.model.decode(ids, self.memory, real, self.real, cache=self.cache)
        return hidden

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Selects rows of the source masks too; the sources' keys and values are in the cache."""
        super().select(rows, prompts)
        self.real = None if self.real is None else self.real.index_select(0, rows if prompts is None else prompts)


class ImageDecoderState(EncoderDecoderState):
    """State of an encoder-decoder whose sources are images: ``prefill`` reads their patches.

    The sources have no ids: ``given_ids`` is (B, 0).
    """

    def __init__(
        self, model: Any, pixels: Tensor, prefix: tuple[Tensor, Tensor] | None = None, start: int | None = None
    ) -> None:
        self.model, self.stack = model, model.config.decoder
        self.ids, self.real, self.start = pixels, None, start
        tokens = torch.full((len(pixels),), model.config.source.tokens, device=pixels.device)
        self.given_ids = tokens.new_empty(len(pixels), 0)
        self._begin_targets(decoder_start(model, start), tokens, prefix)

    @property
    def draw_ids(self) -> Tensor:
        """Ids (B, 2) on which the random numbers of an image depend: a digest of its pixels."""
        digests = [hashlib.blake2b(image.numpy().tobytes(), digest_size=8).digest() for image in self.ids.float().cpu()]
        parts = [[int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")] for digest in digests]
        return torch.tensor(parts, device=self.ids.device)

    def state_of(self, model: Any) -> DecoderState:
        """Returns the state of another model for the same images, at the beginning."""
        return create_state(model, self.ids, None, start=self.start)


class ReadTokens:
    """Tokens so far (R, N), in place of their keys and values, of a model that reads them all at each step."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids[:, :0]
        self.real = self.ids.bool()

    def add(self, ids: Tensor, real: Tensor | None) -> None:
        """Adds tokens (R, t); ``real`` is False for padding."""
        own = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        self.ids, self.real = torch.cat((self.ids, ids), 1), torch.cat((self.real, own), 1)

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Keeps the rows with the indices ``rows``, as ``Cache.select``."""
        self.ids, self.real = self.ids.index_select(0, rows), self.real.index_select(0, rows)

    reorder = select


class PermutationState(DecoderState):
    """State of a permutation language model (XLNet): the query stream predicts the token after the text.

    Tokens attend to those after them too, so each step reads the whole text, with a place for the next token that none
    attends to (Yang et al. 2019, section 2.3).
    """

    cache: Any

    def make_cache(self, steps: int | None) -> None:
        """Begins an empty text; keys and values change with each token, and are not stored."""
        self._cache_steps, self.cache = steps, ReadTokens(self.ids)

    def prefill_hidden(self) -> Iterator[Tensor]:
        """Yields the query stream (B, 1, D) after the prompt."""
        yield self._next_hidden(self.ids, self.real)

    def read(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the query stream (R, t, D) after each of ``ids`` (R, t)."""
        columns = range(ids.size(1))
        reals = [None if real is None else real[:, n : n + 1] for n in columns]
        return torch.cat([self._next_hidden(ids[:, n : n + 1], reals[n]) for n in columns], 1)

    def _next_hidden(self, ids: Tensor, real: Tensor | None) -> Tensor:
        self.cache.add(ids, real)
        text, mask = F.pad(self.cache.ids, (0, 1)), F.pad(self.cache.real, (0, 1), value=True)
        rows, end = len(text), text.size(1) - 1
        visible = torch.arange(end + 1, device=text.device).expand(rows, end + 1, -1) < end
        hidden: Tensor = self.model.query_hidden(text, visible, torch.full_like(text[:, :1], end), mask)
        return hidden


def decoder_start(model: Any, start: int | None = None) -> int:
    """Returns the token that an encoder-decoder's targets begin with, ``start`` if it is given; ``HeedfulError`` if
    there is none.
    """
    if start is not None:
        if start >= model.config.tokens.vocab_size:
            size = model.config.tokens.vocab_size
            raise HeedfulError(
                f"decoder_start_token_id is {start}, but the vocabulary has {size} tokens; give a smaller id"
            )
        return start
    if model.config.special.start is None:
        raise HeedfulError("the model's configuration has no start token; set special.start")
    return int(model.config.special.start)


def create_state(
    model: Any,
    ids: Tensor,
    mask: Tensor | None,
    prefix: tuple[Tensor, Tensor | None] | None = None,
    start: int | None = None,
) -> DecoderState:
    """Returns the state of a model that generates; ``HeedfulError`` for other models.

    ``prefix``: ids and mask of the beginnings of an encoder-decoder's targets; ``start``: their first token, instead of
    the model's start token.
    """
    permutes = isinstance(model.config, EncoderConfig) and model.config.embedding.query
    if not (hasattr(model, "decoder") or permutes) or not isinstance(model.config.head, LanguageHead):
        raise HeedfulError(
            f"a {model.config.kind!r} model with a {model.config.head.kind!r} head cannot generate; "
            "load a decoder, an encoder-decoder or an XLNet with its language-model head"
        )
    if patches_of(model.config) is not None:
        pixels = checked_pixels(ids, mask, model)
        return ImageDecoderState(model, pixels, checked_prefix(prefix, len(pixels), model), start)
    if mask is not None and mask.shape == (*ids.shape, ids.size(1)):
        state = create_state(model, ids, attended_tokens(mask), prefix, start)
        pairs = mask.to(model.device)
        state.whole_mask = align_pairs(pairs, attended_tokens(pairs), state.side)
        return state
    ids, real = checked_ids("ids", ids, mask, model)
    if hasattr(model, "encode"):
        return EncoderDecoderState(model, ids, real, checked_prefix(prefix, len(ids), model), start)
    if prefix is not None or start is not None:
        name = "decoder_input_ids are" if prefix is not None else "decoder_start_token_id is"
        raise HeedfulError(f"{name} only for an encoder-decoder; for a decoder, put them in the prompt")
    return (PermutationState if permutes else DecoderState)(model, ids, real)


def checked_prefix(prefix: tuple[Tensor, Tensor | None] | None, rows: int, model: Any) -> tuple[Tensor, Tensor] | None:
    """Returns the beginnings of the targets of ``rows`` sources, checked as ``checked_ids`` does; None if none are
    given.
    """
    if prefix is None:
        return None
    target = checked_ids("decoder_input_ids", *prefix, model)
    if len(target[0]) != rows:
        raise HeedfulError(
            f"decoder_input_ids have {len(target[0])} rows, but the ids have {rows}; give equally many rows"
        )
    return target


def checked_pixels(pixels: Tensor, mask: Tensor | None, model: Any) -> Tensor:
    """Returns ``pixels`` (B, channels, height, width) on the model's device in its dtype; raises ``HeedfulError`` for
    ids, an image of another shape, and a mask.
    """
    shape = (model.config.source.channels, *model.config.source.image_size)
    if pixels.shape[1:] != shape or not pixels.is_floating_point() or not len(pixels):
        raise HeedfulError(
            f"the model reads images, but the source is {pixels.dtype} of shape {tuple(pixels.shape)}; give pixels of "
            f"shape (rows, {', '.join(map(str, shape))})"
        )
    if mask is not None:
        raise HeedfulError("an image has no padding; leave the mask out")
    return pixels.to(model.device, model.dtype)


def checked_ids(name: str, ids: Tensor, mask: Tensor | None, model: Any) -> tuple[Tensor, Tensor]:
    """Returns ``ids`` and a mask, False for padding, both (B, T), on the model's device; raises ``HeedfulError`` for
    other shapes, and for a GPU also for ids outside the vocabulary (on a CPU the embedding finds them).
    """
    if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise HeedfulError(f"{name} are {ids.dtype} of shape {tuple(ids.shape)}; give integers of shape (rows, tokens)")
    if mask is not None and mask.shape != ids.shape:
        raise HeedfulError(
            f"the mask has shape {tuple(mask.shape)}, but the {name} have {tuple(ids.shape)}; make the shapes equal"
        )
    if model.device.type != "cpu":
        table = model.target_embedding if name != "ids" else model.embedding
        check_ids(ids, table.token.num_embeddings)
    ids = ids.to(model.device, torch.int64)
    return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(model.device).bool()
