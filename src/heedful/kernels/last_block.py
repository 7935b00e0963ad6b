"""A last block that answers for the tokens the head reads: the others are only looked at.

Where a head reads one token (the class token of BERT and ViT, the last token of GPT-2), nothing after the last block's
keys and values needs the rest. Of a block's 12 D² multiplications a token, 9 are left out; of 12 blocks, 6 %.

Shapes: B sequences, T tokens, D model width, k tokens read.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.cache import NoCache
from heedful.heads import ImageClassifier, Pooled, SequenceClassifier
from heedful.kernels.unpadded import Ragged, Row, attends_by, enter, fused_row_attention, watched
from heedful.models import Decoder, Encoder, Model, VisionTransformer
from heedful.stack import Block, Stack

FIRST, LAST = slice(0, 1), slice(-1, None)


def read(stack: Stack, x: Tensor, mask: Tensor | None, kept: slice) -> Tensor:
    """The final stream (B, k, D) at the tokens ``kept`` of each sequence of ``x`` (B, T, D), real where ``mask`` is.

    Zeros for a sequence without a token.
    """
    row = Row(mask, (x.size(0), x.size(1)), x.device)
    if not row.groups:
        return x.new_zeros(x[:, kept].shape)
    x, within, place = enter(stack, row.gather(x), row)
    for block in stack.block[:-1]:
        x = block(x, mask=Ragged(row.groups, within), position=place)
    last = stack.block[-1]
    assert isinstance(last, Block)
    residual = last.attention_residual

    def attention(_: Tensor, **context: Any) -> Tensor:
        return last.attention(residual.before(x, None), **context)  # every token is looked at

    y = residual(x[:, row.ends(kept)], None, attention, mask=Ragged(row.groups, within, kept), position=place)
    y = last.feed_forward_residual(y, None, last.feed_forward)
    return row.by_sequence(stack.norm(y))


def tokens_read(model: Model) -> slice | None:
    """Which tokens of a sequence the head reads; None where it wants them all."""
    head = model.head
    if isinstance(head, ImageClassifier):
        return slice(0, len(head.output)) if head.prefixed else None
    if isinstance(head, SequenceClassifier | Pooled):  # "causal" lets the only query of a call see every key
        return {"first": None if model.main.causal else FIRST, "last": LAST}.get(head.pooling)
    return None


def readable(model: Model) -> bool:
    """Returns whether nobody watches a model, and its attentions know the masks of rows."""
    stacks = (stack for stack in model.children() if isinstance(stack, Stack))
    return not watched(model) and all(attends_by(stack, fused_row_attention) for stack in stacks)


class ReadingEncoder(Encoder):
    """An encoder whose call computes what its head reads, no more. Watched or in training, it computes all."""

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the head makes of the tokens it reads."""
        kept = tokens_read(self)
        if kept is None or self.training or not readable(self):
            return super().forward(ids, mask, segments)
        return self.head(read(self.encoder, self.embedding(ids, segments), mask, kept))


class ReadingDecoder(Decoder):
    """The same of a decoder, where it is called without a cache."""

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, cache: NoCache | None = None) -> Tensor:
        """What the head makes of the tokens it reads."""
        kept = tokens_read(self)
        if kept is None or cache is not None or self.training or not readable(self):
            return super().forward(ids, mask, cache=cache)
        return self.head(read(self.decoder, self.embedding(ids), mask, kept))


class ReadingVision(VisionTransformer):
    """The same of a vision model."""

    def forward(self, pixels: Tensor) -> Tensor:
        """What the head makes of the tokens it reads."""
        kept = tokens_read(self)
        if kept is None or self.training or not readable(self):
            return super().forward(pixels)
        return self.head(read(self.encoder, self.embedding(pixels), None, kept))


READING = {Encoder: ReadingEncoder, Decoder: ReadingDecoder, VisionTransformer: ReadingVision}


def read_only(model: Model) -> None:
    """Let a model compute, from now on, only what its head reads; one whose head reads every token is left as it is.

    Without the plan ``cpu-inference`` it computes all. ``model.hidden`` still gives the whole stream.

    >>> import heedful, torch
    >>> from heedful.kernels.plan import apply_plan
    >>> model, pixels = heedful.create("vit-micro", seed=0).eval(), torch.randn(2, 1, 28, 28)
    >>> whole = model(pixels)
    >>> read_only(apply_plan(model, "cpu-inference"))
    >>> torch.allclose(model(pixels), whole, atol=1e-5)
    True
    """
    if type(model) not in READING or tokens_read(model) is None:
        return
    model.__class__ = READING[type(model)]
