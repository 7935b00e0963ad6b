"""Relative positions that depend on the queries and keys of a layer: Shaw, Transformer-XL, DeBERTa and XLNet.

A score has terms besides the product of query and key: products of the query, or of the key, with a row for the
distance of the two. The rows are few (clipped distances, buckets) or one for each distance. With the row p(t, s) of
query t and key s, the scores are

    scale · ((q_t + u) · k_s + (q_t + v) · A_p(t, s) + k_s · C_p(t, s) + (q_t + w) · S_d(t, s)),

where every scheme leaves some parts out, and the output of a query is Σ_s α_ts (v_s + V_p(t, s)). The row d(t, s) of S
tells whether the two tokens are of different segments.

The stack prepares the distances and the rows that all layers share (``PositionScheme.prepare``). Each attention has a
``RelativeLayer``, which makes the ``Terms`` of its layer from them: ``SharedTerms``, bound to a layer, are the
``ScoreTerms`` that attention takes as its bias. They are computed for a block of queries at a time.

Shapes: B sequences, T queries, t of them in a block, S keys, H heads, E head size, D model width, P rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from heedful.config import CustomPosition, DisentangledPosition, ShawPosition, StackConfig, TransformerXLPosition
from heedful.layers.dropout import Dropout
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask, mask_rows

S = TypeVar("S")  # what a stack's scheme gives to all layers
ALL = slice(None)
Selection = slice | Tensor  # of queries or heads: a part, or their numbers
ProjectRows = Callable[[Tensor], tuple[Tensor, Tensor]]  # rows (P, D) → as queries and as keys (H or K, P, E)
STORED_INDEX = 2**22  # pairs of query and key whose row numbers are stored for all layers
BLOCK = {"cpu": 2**21}  # elements of the scores of a block, about, by the type of the device
LARGE_BLOCK = 2**27  # on other devices, where every block costs launches
# of the scores, for records: content to content, content to position, position to content, content to segment
TERMS = ("content", "c2p", "p2c", "c2s")
STORED = 512  # queries up to which training stores the scores of all blocks


class Distances:
    """Rows for the distances of queries and keys: row ``table[q − k − lowest]``, the ends for distances beyond.

    Args:
        queries: (B or 1, T) positions.
        keys: (B or 1, S) positions.
        lowest: distance of the first row of ``table``.
        table: (highest − lowest + 1,) row of each distance, ascending.

    >>> positions = torch.arange(3)[None]
    >>> Distances(positions, positions, -2, torch.tensor([0, 0, 1, 2, 2])).rows()
    tensor([[[1, 0, 0],
             [2, 1, 0],
             [2, 2, 1]]])
    """

    def __init__(self, queries: Tensor, keys: Tensor, lowest: int, table: Tensor) -> None:
        self.queries, self.keys, self.lowest, self.table = queries, keys, lowest, table
        self._stored: Tensor | None = None

    def rows(self, sequences: slice = ALL, queries: Selection = ALL) -> Tensor:
        """Returns the rows (B or 1, t, S) of a part of the sequences and queries."""
        if self._stored is None:
            sizes = max(self.queries.size(0), self.keys.size(0)), self.queries.size(1), self.keys.size(1)
            if torch.compiler.is_compiling() or math.prod(sizes) > STORED_INDEX:
                return self._compute(self._part(self.queries, sequences)[:, queries], self._part(self.keys, sequences))
            self._stored = self._compute(self.queries, self.keys)
        return self._part(self._stored, sequences)[:, queries]

    def crop(self, length: int, queries: slice) -> Distances:
        """Returns the distances of the first ``length`` positions, from these ``queries`` to all."""
        return Distances(self.queries[:, :length][:, queries], self.keys[:, :length], self.lowest, self.table)

    def _compute(self, queries: Tensor, keys: Tensor) -> Tensor:
        distances = queries[:, :, None] - keys[:, None, :] - self.lowest
        return self.table[distances.clamp(0, self.table.size(0) - 1)]

    @staticmethod
    def _part(x: Tensor, sequences: slice) -> Tensor:
        return x if sequences == ALL or x.size(0) == 1 else x[sequences]  # not ``len``, a constant in a traced graph


class Segments(NamedTuple):
    """Segments of the tokens, of which attention knows whether two are the same.

    >>> segments = torch.tensor([[0, 0, 1]])
    >>> Segments(segments, segments).differ().int()
    tensor([[[0, 0, 1],
             [0, 0, 1],
             [1, 1, 0]]], dtype=torch.int32)
    """

    queries: Tensor  # (B, T)
    keys: Tensor  # (B, S)

    def differ(self, sequences: slice = ALL, queries: Selection = ALL) -> Tensor:
        """Returns a mask (B, t, S) of a part of the sequences and queries, True for keys of another segment."""
        return self.queries[sequences][:, queries, None] != self.keys[sequences][:, None, :]


class Terms(NamedTuple):
    """Tensors of one layer for the terms of its scores, None for a term that a scheme lacks."""

    query_rows: Tensor | None = None  # (H or 1, P, E) A, for the content of the query
    key_rows: Tensor | None = None  # (H or 1, P, E) C, for the content of the key
    query_offset: Tensor | None = None  # (H, 1, E) v, added to the query before its product with A
    query_map: Tensor | None = None  # (H, E, D) applied to the query before its product with A (1, P, D)
    key_query: Tensor | None = None  # (H, 1, E) u, a query of every token
    value_rows: Tensor | None = None  # (H or 1, P, E) V
    segment_rows: Tensor | None = None  # (H or 1, 2, E) S, for keys of the query's segment and of others
    segment_offset: Tensor | None = None  # (H, 1, E) w, added to the query before its product with S

    def of(self, heads: Tensor | None, dtype: torch.dtype) -> Terms:
        """Returns the terms of these heads, or of all, in a dtype."""
        parts = self if heads is None else (x if x is None or len(x) == 1 else x[heads] for x in self)
        return Terms(*(None if x is None else x.to(dtype) for x in parts))


@dataclass(frozen=True)
class SharedTerms(Generic[S]):
    """Inputs of the terms that depend on queries and keys, shared by all layers; ``bound`` returns a layer's terms."""

    distances: Distances
    shared: S  # what the stack's scheme gives to all layers
    segments: Segments | None = None

    def bound(self, layer: RelativeLayer[S], project: ProjectRows, queries: int) -> ScoreTerms:
        """Returns the terms of a layer, for a number of queries, of all sequences together."""
        return ScoreTerms(self.distances, layer.terms(self.shared, project, queries), self.segments)


@dataclass(frozen=True)
class ScoreTerms:
    """Bias of the scores of one layer that depends on its queries and keys."""

    distances: Distances
    terms: Terms
    segments: Segments | None = None

    def crop(self, length: int, queries: slice) -> ScoreTerms:
        """Returns the terms of the first ``length`` tokens, for a part of their queries."""
        return replace(self, distances=self.distances.crop(length, queries))

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        scale: float,
        mask: Mask = None,
        *,
        sequences: slice = ALL,
        queries: Selection = ALL,
        heads: Tensor | None = None,
    ) -> Tensor:
        """Returns what is added to scale · q kᵀ, −∞ where attention is not allowed: (B, H, t, S).

        Args:
            q: (B, H, t, E) of a part of the sequences, queries and heads.
            k: (B, H or K, S, E) of these sequences and heads.
            scale: factor of the scores.
            mask: of all sequences, queries and heads.
            sequences: the part of the sequences.
            queries: the part of the queries, or their numbers.
            heads: numbers of the heads; None: all.
        """
        terms = self.terms.of(heads, q.dtype)
        rows = self.distances.rows(sequences, queries)[:, None].expand(*q.shape[:3], k.size(2))  # (B, H, t, S)
        bias = None
        if terms.query_rows is not None:
            bias = query_products(q * scale, scale, terms).gather(-1, rows)
        if terms.key_rows is not None:
            products_of_keys = products(repeated(k, q) * scale, terms.key_rows).transpose(-2, -1).gather(-2, rows)
            bias = products_of_keys if bias is None else bias.add_(products_of_keys)
        if terms.key_query is not None:
            of_keys = (terms.key_query * scale) @ repeated(k, q).transpose(-2, -1)  # (B, H, 1, S)
            bias = of_keys.expand(rows.shape) if bias is None else bias.add_(of_keys)
        if terms.segment_rows is not None and self.segments is not None:
            x = q if terms.segment_offset is None else q + terms.segment_offset
            same, other = products(x * scale, terms.segment_rows).split(1, -1)  # (B, H, t, 1)
            of_segments = torch.where(self.segments.differ(sequences, queries)[:, None], other, same)
            bias = of_segments if bias is None else of_segments.add_(bias)
        if bias is None:
            bias = q.new_zeros(rows.shape)
        allowed = mask_rows(mask, queries, self.distances.queries.size(1), k.size(2), heads, k.device)
        if allowed is None:
            return bias
        allowed = allowed[sequences] if sequences != ALL and allowed.ndim == 4 and allowed.size(0) > 1 else allowed
        return (bias.clone() if terms.query_rows is None and terms.key_rows is None else bias).masked_fill_(
            ~allowed, float("-inf")
        )

    def term(self, name: str, q: Tensor, k: Tensor, scale: float, queries: Tensor, heads: Tensor) -> Tensor:
        """Returns one of ``TERMS`` of the scores (B, H, t, S), masked or not; their sum is the scores.

        "content" is scale · (q_t + u) · k_s, "c2p" scale · (q_t + v) · A_p, "p2c" scale · k_s · C_p and "c2s"
        scale · (q_t + w) · S_d. The arguments are those of ``bias``.
        """
        terms = self.terms.of(heads, q.dtype)
        if name == "content":
            return scale * (q if terms.key_query is None else q + terms.key_query) @ repeated(k, q).transpose(-2, -1)
        own = {"c2p": Terms(query_rows=terms.query_rows, query_offset=terms.query_offset, query_map=terms.query_map)}
        own |= {"p2c": Terms(key_rows=terms.key_rows)}
        own |= {"c2s": Terms(segment_rows=terms.segment_rows, segment_offset=terms.segment_offset)}
        return replace(self, terms=own[name]).bias(q, k, scale, queries=queries)

    def values(self, weights: Tensor, sequences: slice = ALL, queries: Selection = ALL) -> Tensor:
        """Returns Σ_s α_ts V_p(t, s) for the weights α (B, H, t, S) of a part of the queries: (B, H, t, E)."""
        value_rows = self.terms.value_rows
        assert value_rows is not None  # asked by the caller
        rows = self.distances.rows(sequences, queries)[:, None].expand(weights.shape)
        sums = weights.new_zeros(*weights.shape[:3], value_rows.size(1)).scatter_add(-1, rows, weights)  # (B, H, t, P)
        return products(sums, value_rows.transpose(-2, -1))


def repeated(k: Tensor, q: Tensor) -> Tensor:
    """Returns the keys (B, K, S, E) of each head of ``q`` (B, H, T, E): (B, H, S, E)."""
    return k if k.size(1) == q.size(1) else k.repeat_interleave(q.size(1) // k.size(1), dim=1)


def query_products(scaled_q: Tensor, scale: float, terms: Terms) -> Tensor:
    """Returns scale · (q_t + v) · A_p for every row p: (B, H, t, P)."""
    assert terms.query_rows is not None  # asked by the caller
    x = scaled_q if terms.query_offset is None else scaled_q + terms.query_offset * scale
    return products(x if terms.query_map is None else x @ terms.query_map, terms.query_rows)


def products(x: Tensor, rows: Tensor) -> Tensor:
    """Returns the products of ``x`` (B, H, T, E) with ``rows`` (H or 1, P, E) of its head: (B, H, T, P)."""
    if rows.size(0) == 1:
        return x @ rows[0].transpose(-2, -1)
    if x.size(0) == 1:
        return x @ rows.transpose(-2, -1)
    # PyTorch would copy the rows for each sequence
    return (x.transpose(0, 1).flatten(1, 2) @ rows.transpose(-2, -1)).unflatten(1, (x.size(0), -1)).transpose(0, 1)


def block_sizes(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Returns the numbers of sequences and queries of a block, whose scores have about ``BLOCK`` elements."""
    sequences, heads, queries, _ = q.shape
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return sequences, queries
    size = BLOCK.get(q.device.type, LARGE_BLOCK) // (heads * k.size(2))  # queries
    if queries <= STORED:
        return max(1, min(sequences, size // max(1, queries))), queries
    return max(1, min(sequences, size // queries)), max(1, min(queries, size))


class RelativeLayer(nn.Module, Generic[S]):
    """Part of an attention that makes the terms of its scores; the base class of all schemes.

    Attributes:
        score_terms: number of terms of a score, which is divided by its square root.
        recorded: names of the terms that can be recorded, of ``TERMS``.
    """

    score_terms = 1
    recorded: tuple[str, ...] = TERMS[:3]

    def terms(self, shared: S, project: ProjectRows, queries: int) -> Terms:
        """Returns the terms of the layer.

        Args:
            shared: what the stack's scheme gives to all layers.
            project: the layer's projections of rows (P, D) to queries and keys.
            queries: number of queries of all sequences together.
        """
        raise NotImplementedError


class ShawLayer(RelativeLayer[slice]):
    """Learned rows for clipped distances, added to keys and values. Shaw et al. 2018, equations 3 and 4.

    Args:
        config: of the scheme.
        heads: H, each with rows of its own if ``config.heads`` is "own".
        head_dim: E.
    """

    def __init__(self, config: ShawPosition, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        width = head_dim * (heads if config.heads == "own" else 1)
        self.key = nn.Embedding(2 * config.distance + 1, width)
        self.value = nn.Embedding(2 * config.distance + 1, width) if config.values else None

    def terms(self, shared: slice, project: ProjectRows, queries: int) -> Terms:
        """Returns the rows of keys and values; ``shared`` is the slice of the distances that occur."""
        key, value = (
            None if table is None else table.weight[shared].unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
            for table in (self.key, self.value)
        )
        return Terms(query_rows=key, value_rows=value)


Sinusoids = tuple[Tensor, "ContentBiases | None"]  # of distances (P, D), and the biases of the stack


class TransformerXLLayer(RelativeLayer[Sinusoids]):
    """Projected sinusoids of distances, and a query of content and of position. Dai et al. 2019, section 3.3.

    A score is ((q + u) · k + (q + v) · W_R r_d) / √E, r_d the sinusoid of the distance d. With ``config.segments`` it
    has a third term, (q + w) · S_d, for keys of the query's own segment and of others (Yang et al. 2019, section 2.5).

    Args:
        config: of the scheme; u and v are the stack's if ``config.biases`` is "stack".
        dim: D.
        heads: H.
        head_dim: E.
    """

    def __init__(self, config: TransformerXLPosition, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.position = Linear(dim, heads * head_dim, bias=False)
        self.biases = ContentBiases(heads, head_dim) if config.biases == "layer" else None
        self.segment = SegmentRows(heads, head_dim) if config.segments else None
        self.recorded = TERMS if config.segments else TERMS[:3]

    def terms(self, shared: Sinusoids, project: ProjectRows, queries: int) -> Terms:
        """Returns the terms; ``shared`` are the sinusoids (P, D) and the stack's biases.

        For few queries, as in decoding, the query is projected in place of all rows: (q W_R) · r_d.
        """
        rows, biases = shared
        own = self.biases or biases
        assert own is not None  # of the layer, or of the stack
        content, position = own()
        rows = rows.to(self.position.weight.dtype)
        count, dim = rows.shape
        weight: Tensor = self.position.weight
        cost = queries * (dim + count * dim // self.head_dim - count)
        terms = Terms(query_offset=position, key_query=content)
        if self.segment is not None:
            terms = terms._replace(
                segment_rows=self.segment.rows.transpose(0, 1), segment_offset=self.segment.query[:, None]
            )
        if not torch.compiler.is_compiling() and cost < count * dim:  # fewer multiplications
            return terms._replace(query_rows=rows[None], query_map=weight.view(self.heads, -1, dim))
        projected = self.position(rows).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, P, E)
        return terms._replace(query_rows=projected)


class ContentBiases(nn.Module):
    """Queries of Transformer-XL that are the same for all tokens: u for content, v for position (H, E)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.content, self.position = (nn.Parameter(torch.zeros(heads, head_dim)) for _ in range(2))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Returns u and v (H, 1, E)."""
        return self.content[:, None], self.position[:, None]


class SegmentRows(nn.Module):
    """Rows (2, H, E) for keys of the query's segment and of others, and a query of segments, w (H, E), for all tokens.

    Yang et al. 2019, section 2.5.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(2, heads, head_dim))
        self.query = nn.Parameter(torch.zeros(heads, head_dim))


class DisentangledLayer(RelativeLayer[Tensor]):
    """Disentangled attention: products of content and position both ways. He et al. 2021, equation 4.

    A score is (q_c k_c + q_c k_r(δ(t, s)) + k_c q_r(δ(s, t))) / √(3E): content to content, content to position ("c2p")
    and position to content ("p2c"). ``config.terms`` names those of the last two that it has. The stack's position rows
    become k_r and q_r by the projections of the content ("content", DeBERTa v3), or by their own.

    Args:
        config: of the scheme.
        dim: D.
        heads: H.
        head_dim: E.
        dropout: probability on the rows in training.
        key_bias: an own projection to keys has a bias, as that to queries (v2), or none (v1).
    """

    def __init__(
        self,
        config: DisentangledPosition,
        dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.has_c2p, self.has_p2c = config.terms in ("both", "c2p"), config.terms in ("both", "p2c")
        self.score_terms = 1 + self.has_c2p + self.has_p2c
        own = config.projections == "own"
        self.key = Linear(dim, heads * head_dim, bias=key_bias) if own and self.has_c2p else None
        self.query = Linear(dim, heads * head_dim) if own and self.has_p2c else None
        self.shares = not own
        self.dropout = Dropout(dropout)

    def terms(self, shared: Tensor, project: ProjectRows, queries: int) -> Terms:
        """Returns the terms; ``shared`` are the position rows (P, D)."""
        if self.score_terms == 1:
            return Terms()
        rows = self.dropout(shared)
        if self.shares:
            query_rows, key_rows = (repeated(x[None], x.new_empty(1, self.heads))[0] for x in project(rows))
            return Terms(key_rows if self.has_c2p else None, query_rows if self.has_p2c else None)
        return Terms(self._split(self.key, rows), self._split(self.query, rows))

    def _split(self, projection: Linear | None, rows: Tensor) -> Tensor | None:
        return None if projection is None else projection(rows).unflatten(-1, (self.heads, -1)).transpose(0, 1)


_BUILDERS: dict[type, Callable[[StackConfig, Any, int], RelativeLayer[Any]]] = {
    ShawPosition: lambda stack, p, head_dim: ShawLayer(p, stack.heads, head_dim),
    TransformerXLPosition: lambda stack, p, head_dim: TransformerXLLayer(p, stack.dim, stack.heads, head_dim),
    DisentangledPosition: lambda stack, p, head_dim: DisentangledLayer(
        p, stack.dim, stack.heads, head_dim, stack.dropout.embedding, stack.attention_bias != "all-but-key"
    ),
}


LAYERS: dict[str, Callable[[StackConfig], RelativeLayer[Any]]] = {}  # of registered schemes, by name


def relative_layer_of(config: StackConfig) -> RelativeLayer[Any] | None:
    """Returns the part of a stack's self-attention for positions that depend on queries and keys, if there are any."""
    if isinstance(config.position, CustomPosition):
        return LAYERS[config.position.scheme](config) if config.position.scheme in LAYERS else None
    builder = _BUILDERS.get(type(config.position))
    return None if builder is None else builder(config, config.position, config.head_dim or config.dim // config.heads)
