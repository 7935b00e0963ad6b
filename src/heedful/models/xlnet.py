"""XLNet's two streams: a query stream that predicts tokens beside the content stream that it reads.

Shapes: B sequences, T tokens, M of them in the query stream, D model width.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor

from heedful.cache import Cross
from heedful.errors import HeedfulError
from heedful.layers.block import Block
from heedful.layers.embedding import TokenEmbedding
from heedful.layers.mask import Mask
from heedful.layers.position import RelativeEncoding
from heedful.layers.relative import Distances, Segments
from heedful.stack import Stack


def query_hidden(
    stack: Stack,
    embedding: TokenEmbedding,
    ids: Tensor,
    visible: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Returns the final query stream (B, M, D) at the positions ``targets`` (B, M), which predicts their tokens.

    Two-stream attention (Yang et al. 2019, section 2.3). The content stream h begins with the tokens, the query stream
    g with one vector for all. ``visible`` (B, T, T) is True where the first token may attend to the second. In each
    block g_t attends to the content of the tokens that are visible to token t, and h_t to these tokens and token t. If
    token t is visible to one of these tokens, or to a token that is visible to these, g_t depends on it. With the
    tokens in any order, and the earlier ones visible to each, it does not.

    Args:
        stack: of standard blocks, with positions that depend on queries and keys.
        embedding: with a ``query`` vector; ``HeedfulError`` without.
        ids: (B, T).
        visible: as above.
        targets: as above.
        mask: (B, T), False at padding.
        segments: (B, T), as in ``Stack.forward``.

    >>> import heedful, torch
    >>> model = heedful.create(heedful.presets.xlnet(16, 2, 4, vocab=50), seed=0).eval()
    >>> visible = torch.tensor([True, False, True]).expand(1, 3, 3)  # no token attends to the second
    >>> a, b = (model.query_hidden(torch.tensor([[5, x, 9]]), visible, torch.tensor([[1]])) for x in (7, 8))
    >>> a.shape, torch.equal(a, b)
    (torch.Size([1, 1, 16]), True)
    """
    if embedding.query is None:
        raise HeedfulError("the model has no query stream; create it with EmbeddingConfig(query=True)")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    visible = visible & real[:, None]
    itself = torch.eye(ids.size(1), dtype=torch.bool, device=ids.device) & real[:, None]
    content_mask = (visible | itself)[:, None]  # (B, 1, T, T)
    query_mask = visible.gather(1, targets[..., None].expand(-1, -1, ids.size(1)))[:, None]  # (B, 1, M, T)
    positions = torch.arange(ids.size(1), device=ids.device)[None]
    content = stack.encoding(positions, positions, segments)
    assert isinstance(content, RelativeEncoding)  # the configuration has checked it
    query = encoding_at(content, targets)
    x = embedding(ids, None if stack.config.relative_segments else segments)
    g = embedding.query.expand(*targets.shape, -1)
    x, g = (stack.embedded(stream) for stream in (x, g))
    for block in stack.block:
        assert isinstance(block, Block)  # the configuration has checked it
        streams: Any = block.run(MethodType(both_streams, block), x, g, content_mask, query_mask, content, query)
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
    """Returns ``encoding``, which has a query at every position, for the queries at ``tokens`` (B, M) alone."""
    distances, segments = encoding.bias.distances, encoding.bias.segments
    queries = distances.queries.expand(len(tokens), -1).gather(1, tokens)
    keys = distances.keys.expand(len(tokens), -1)
    if segments is not None:
        segments = Segments(segments.queries.gather(1, tokens), segments.keys)
    own = Distances(queries, keys, distances.lowest, distances.table)
    return RelativeEncoding(own, encoding.bias.shared, segments)
