"""XLNet's two streams: a query stream that predicts tokens beside the content stream that it reads.

Shapes: B sequences, T tokens, M of them in the query stream, D model width.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor

from heedful.cache import Cross
from heedful.layers.mask import Mask
from heedful.layers.position import RelativeEncoding
from heedful.layers.relative import Distances, Segments
from heedful.stack import Block, Stack


def query_stream(
    stack: Stack,
    x: Tensor,
    g: Tensor,
    mask: Tensor,
    query_mask: Tensor,
    targets: Tensor,
    segments: Tensor | None = None,
) -> Tensor:
    """Maps the query stream ``g`` (B, M, D) at the positions ``targets`` (B, M) to its final states (B, M, D).

    Yang et al. 2019, section 2.3.

    Args:
        stack: of standard blocks, with positions that depend on queries and keys.
        x: (B, T, D) embeddings of the tokens, the content stream.
        g: (B, M, D) first states of the query stream.
        mask: (B, T, T), True where the first token of the content may attend to the second.
        query_mask: (B, T, T) the same for queries of the query stream, which may not attend to themselves.
        targets: (B, M) positions of the query stream.
        segments: as in ``Stack.forward``.
    """
    positions = torch.arange(x.size(1), device=x.device)[None]
    content = stack.encoding(positions, positions, segments)
    assert isinstance(content, RelativeEncoding)  # the configuration has checked it
    query = encoding_at(content, targets)
    rows = query_mask.gather(1, targets[..., None].expand(-1, -1, x.size(1)))  # (B, M, T)
    x, g = (stack.dropout(stack.embedding_norm(stream, None)) for stream in (x, g))
    for block in stack.block:
        assert isinstance(block, Block)  # the configuration has checked it
        streams: Any = block.run(MethodType(both_streams, block), x, g, mask[:, None], rows[:, None], content, query)
        x, g = streams
    return stack.norm(g, None)


def both_streams(
    block: Block,
    x: Tensor,
    g: Tensor,
    mask: Mask,
    query_mask: Mask,
    position: RelativeEncoding,
    query_position: RelativeEncoding,
) -> tuple[Tensor, Tensor]:
    """Computes the sublayers of a block for both streams, with the keys and values of the content."""
    shared = Cross()  # the first call stores the content's, which the second reads
    y = block.attention_residual(x, None, block.attention, mask=mask, position=position, cache=shared)
    g = block.attention_residual(g, None, block.attention, mask=query_mask, position=query_position, cache=shared)
    y, g = (block.feed_forward_residual(stream, None, block.feed_forward) for stream in (y, g))
    return y, g


def encoding_at(encoding: RelativeEncoding, tokens: Tensor) -> RelativeEncoding:
    """Returns the encoding of the queries ``tokens`` (B, M) alone, of one query for each key."""
    distances, segments = encoding.bias.distances, encoding.bias.segments
    queries = distances.queries.expand(len(tokens), -1).gather(1, tokens)
    keys = distances.keys.expand(len(tokens), -1)
    if segments is not None:
        segments = Segments(segments.queries.gather(1, tokens), segments.keys)
    own = Distances(queries, keys, distances.lowest, distances.table)
    return RelativeEncoding(own, encoding.bias.shared, segments)
