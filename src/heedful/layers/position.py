"""Position schemes: sinusoidal, learned, rotary, ALiBi, and relative of four kinds.

A scheme has two methods: ``embed`` adds to the embedding (absolute schemes), ``prepare`` computes once per forward
pass the ``PositionEncoding`` that the attention of every block uses (a rotation of queries and keys, or a bias on the
scores). Where the bias depends on the queries and keys (Shaw, Transformer-XL, DeBERTa), each layer computes its own:
``heedful.layers.relative``.

Shapes: B sequences, T queries, S keys, H heads, E head size. Positions are integers (B or 1, T), counted without
padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import (
    AlibiPosition,
    CustomPosition,
    DisentangledPosition,
    LearnedPosition,
    NoPosition,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    StackConfig,
    TransformerXLPosition,
)
from heedful.errors import HeedfulError
from heedful.layers.mask import Mask, add_bias
from heedful.layers.norm import Identity, LayerNorm
from heedful.layers.relative import ContentBiases, Distances, S, Segments, SharedTerms


class PositionEncoding:
    """Position information for attention: a rotation or a bias. This base class adds no positions.

    Attributes:
        bias: added to the scores: a tensor (B or 1, H or 1, T, S), or terms that each layer computes.
        has_mask: True if ``bias`` is −∞ where a mask forbids attention, so that attention needs no mask besides.
    """

    bias: Tensor | SharedTerms[Any] | None = None
    has_mask = False

    def rotate(self, x: Tensor) -> Tensor:
        """Returns queries or keys (B, H, T, E), rotated by their positions."""
        return x

    def with_mask(self, mask: Mask, queries: int, keys: int) -> tuple[Mask, PositionEncoding]:
        """Returns a mask and an encoding for attention under ``mask``: a bias tensor holds it, computed once for all
        layers.
        """
        return mask, self

    def of(self, window: int | None) -> PositionEncoding:
        """Returns the encoding for the blocks with this window, where it is not the same for all blocks."""
        return self

    def with_segments(self, segments: Tensor, keys: int) -> PositionEncoding:
        """Returns an encoding with the segments (B, T) of the queries, which are the last of ``keys`` tokens.

        Earlier keys are of segment 0. Encodings without a term for segments ignore them.
        """
        return self


NO_ENCODING = PositionEncoding()


class Rotation(PositionEncoding):
    """Rotation by the tables ``cos`` and ``sin`` (B or 1, 1, T, E / 2), the two halves of a head together."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        self._rounded: dict[torch.dtype, tuple[Tensor, Tensor]] = {}  # by dtype, once for all layers

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates (a, b) to (a cos − b sin, b cos + a sin): (a, b) cos + (b, a) (−sin, sin), in three passes."""
        cos, sin = self._tables(x.dtype)
        return torch.addcmul(x * cos, x.roll(x.size(-1) // 2, dims=-1), sin)

    def _tables(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():  # else a first block, which fills the dictionary, would compile anew
            return self.cos.to(dtype), self.sin.to(dtype)
        if dtype not in self._rounded:
            self._rounded[dtype] = self.cos.to(dtype), self.sin.to(dtype)
        return self._rounded[dtype]


class RotationByWindow(PositionEncoding):
    """Two rotations, of which ``of`` returns that of the blocks without a window, or of those with one."""

    def __init__(self, dense: PositionEncoding, banded: PositionEncoding) -> None:
        self.dense, self.banded = dense, banded

    def of(self, window: int | None) -> PositionEncoding:
        """Returns the rotation of the blocks with this window."""
        return self.dense if window is None else self.banded

    def rotate(self, x: Tensor) -> Tensor:
        """Raises ``HeedfulError``, because the rotation depends on the block."""
        raise HeedfulError("the rotation depends on the window of the block; give position.of(window)")


class PositionBias(PositionEncoding):
    """Bias (B or 1, H or 1, T, S) of the attention scores; raises ``HeedfulError`` for another number of dimensions."""

    def __init__(self, bias: Tensor) -> None:
        if bias.ndim != 4:
            raise HeedfulError(
                f"a position bias of shape {tuple(bias.shape)} has {bias.ndim} dimensions; give four: (B or 1, heads "
                "or 1, queries, keys)"
            )
        self.bias: Tensor = bias

    def with_mask(self, mask: Mask, queries: int, keys: int) -> tuple[Mask, PositionEncoding]:
        """Returns no mask, and the bias with −∞ where ``mask`` forbids attention."""
        if mask is None:
            return None, self
        encoding = PositionBias(add_bias(mask, self.bias, queries, keys))
        encoding.has_mask = True
        return None, encoding


class RelativeEncoding(PositionEncoding):
    """Terms of the scores that depend on the queries and keys of a layer: see ``heedful.layers.relative``.

    ``shared`` is what the scheme gives to the ``RelativeLayer`` of every attention, ``segments`` those of the tokens.
    """

    def __init__(self, distances: Distances, shared: S, segments: Segments | None = None) -> None:
        self.bias: SharedTerms[S] = SharedTerms(distances, shared, segments)

    def with_segments(self, segments: Tensor, keys: int) -> PositionEncoding:
        """Returns the encoding with the segments of queries and keys."""
        of_keys = F.pad(segments, (keys - segments.size(1), 0))
        return RelativeEncoding(self.bias.distances, self.bias.shared, Segments(segments, of_keys))


class RowEncoding(PositionEncoding):
    """Rotation of the tokens of a row, with the bias of the padded batch from which they are."""

    def __init__(self, row: PositionEncoding, batch: PositionEncoding) -> None:
        self.row, self.bias, self.has_mask = row, batch.bias, batch.has_mask

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates queries or keys (1, H, N, E) by the positions of the row."""
        return self.row.rotate(x)


class PositionScheme(nn.Module):
    """No positions; the base class of all schemes."""

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """Adds the embedding of ``positions`` (B or 1, T), which are all below ``end``, to ``x`` (B, T, D)."""
        return x

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the encoding for attention of queries at positions (B or 1, T) to keys at positions (B or 1, S)."""
        return NO_ENCODING


def sinusoid(length: int, dim: int, base: float = 10000.0, order: str = "interleaved") -> Tensor:
    """Rows PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d)). Vaswani et al. 2017, section 3.5.

    i counts the pairs; with ``order="halves"`` all sines come first. Angles are taken in float64, the table is float32
    (length, dim). An odd ``dim`` ends with a sine that has no cosine.
    """
    rate = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
    angle = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * rate  # (length, ceil(dim / 2))
    if order == "halves":
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[:, :dim].float()
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :dim].float()


class Sinusoidal(PositionScheme):
    """Adds fixed sinusoids (see ``sinusoid``) to the embeddings; the length is unlimited.

    >>> import torch
    >>> x = Sinusoidal(4).embed(torch.zeros(1, 3, 4), torch.arange(3)[None])
    >>> x[0, 2]
    tensor([ 0.9093, -0.4161,  0.0200,  0.9998])
    """

    table: Tensor

    def __init__(self, dim: int, *, order: str = "interleaved", base: float = 10000.0, offset: int = 0) -> None:
        super().__init__()
        self.dim, self.order, self.base, self.offset = dim, order, base, offset
        self.register_buffer("table", sinusoid(512 + offset, dim, base, order), persistent=False)

    def extend(self, length: int) -> None:
        """Extends the table to ``length`` positions if it is shorter."""
        if length + self.offset > self.table.size(0):
            self.table = sinusoid(length + self.offset, self.dim, self.base, self.order).to(self.table)

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """Adds the rows of ``positions`` (B or 1, T) to ``x`` (B, T, D); ``end``, if given, is above all positions."""
        length = int(positions.max()) + 1 if end is None else end
        if length + self.offset > self.table.size(0):
            self.extend(2 * length)
        return x + F.embedding(positions + self.offset, self.table).to(x.dtype)


class Learned(PositionScheme):
    """Adds a learned row for each position below ``length``; the table has ``offset`` rows before that of position 0.

    >>> import torch
    >>> Learned(4, length=10).embed(torch.zeros(1, 3, 4), torch.arange(3)[None]).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, dim: int, *, length: int, offset: int = 0) -> None:
        super().__init__()
        self.length, self.offset = length, offset
        self.table = nn.Embedding(length + offset, dim)

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """Adds the rows of ``positions`` (B or 1, T) to ``x`` (B, T, D); too large a position is an error.

        It is found before the lookup, since after a lookup out of range no GPU can be used any more. Positions below
        ``end`` are not read if it is no larger than the table.
        """
        if (end is None or end > self.length) and not torch.compiler.is_compiling():
            tokens = int(positions.max()) + 1  # padding is in ``end``, but has no position of its own
            if tokens > self.length:
                raise HeedfulError(
                    f"the input has {tokens} tokens, but the model has {self.length} learned positions; cut the "
                    "input, or create a model with more positions"
                )
        return x + self.table(positions + self.offset)


class ExactScheme(PositionScheme):
    """Scheme whose buffer called ``exact`` is of the model's dtype, or float32 if that is narrower, as bfloat16 is."""

    exact: str

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ExactScheme:
        buffer = getattr(self, self.exact)
        super()._apply(fn, recurse)
        moved = getattr(self, self.exact)
        setattr(self, self.exact, buffer.to(moved.device, torch.promote_types(torch.float32, moved.dtype)))
        return self


class Rotary(ExactScheme):
    """Rotary positions: the pair (x_i, x_{i+E/2}) of every head is rotated by the angle p · base^(−2i/R).

    Su et al. 2021, equation 34, in the half-split layout of the Hub's Llama checkpoints. R = ⌊share · E⌋ features of a
    head are rotated; the pairs from i = R/2 on stay (Black et al. 2022, section 2.1). ``scaling`` stretches the
    angles: linear (Chen et al. 2023), llama3 (Llama 3.1's smooth cut between low and high frequencies), yarn (Peng et
    al. 2023, with its attention factor). Angles are float32, as in the published models.

    >>> import torch
    >>> encoding = Rotary(8).prepare(torch.arange(5)[None], torch.arange(5)[None])
    >>> encoding.rotate(torch.randn(2, 4, 5, 8)).shape
    torch.Size([2, 4, 5, 8])
    """

    exact = "frequencies"
    frequencies: Tensor

    def __init__(self, head_dim: int, config: RotaryPosition | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise HeedfulError(f"rotary positions rotate pairs, but head size {head_dim} is odd; give an even head_dim")
        config = config or RotaryPosition()
        rotated = int(head_dim * config.share)
        if rotated % 2 or not rotated:
            raise HeedfulError(
                f"rotary.share is {config.share}, {rotated} of the {head_dim} features of a head, but pairs are "
                "rotated; give the share of an even number of features"
            )
        frequencies, self.magnitude = SCALINGS[config.scaling](rotated, config)
        frequencies = F.pad(frequencies, (0, (head_dim - rotated) // 2))  # an angle of 0 leaves a pair as it is
        self.register_buffer("frequencies", frequencies, persistent=False)

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns tables for ``queries`` (B or 1, T); new keys use the same, cached keys are already rotated."""
        angle = queries[:, None, :, None].float() * self.frequencies.float()  # (B, 1, T, E / 2)
        if self.magnitude == 1.0:
            return Rotation(angle.cos(), angle.sin())
        magnitude = torch.where(self.frequencies > 0, self.magnitude, 1.0)  # of the pairs that are rotated
        return Rotation(angle.cos() * magnitude, angle.sin() * magnitude)


class WindowedRotary(Rotary):
    """Rotary positions of which the blocks with a window have another base, ``config.window_base``, and no scaling.

    >>> import torch
    >>> p = torch.arange(5)[None]
    >>> encoding, x = WindowedRotary(8, RotaryPosition(window_base=100.0)).prepare(p, p), torch.ones(1, 1, 5, 8)
    >>> [round(encoding.of(window).rotate(x)[0, 0, 4, 1].item(), 2) for window in (None, 3)]
    [0.53, -0.65]
    """

    def __init__(self, head_dim: int, config: RotaryPosition) -> None:
        super().__init__(head_dim, config)
        assert config.window_base is not None
        self.banded = Rotary(head_dim, replace(config, base=config.window_base, window_base=None, scaling="default"))

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns both rotations of ``queries`` (B or 1, T)."""
        return RotationByWindow(super().prepare(queries, keys), self.banded.prepare(queries, keys))


def _frequencies(head_dim: int, base: float) -> Tensor:
    return 1.0 / base ** (torch.arange(0, head_dim, 2, device="cpu").float() / head_dim)


def _default(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    return _frequencies(head_dim, config.base), 1.0


def _linear(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    return _frequencies(head_dim, config.base) / config.factor, 1.0


def _llama3(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    """Stretches long wavelengths, keeps short wavelengths, and interpolates smoothly between both."""
    plain = _frequencies(head_dim, config.base)
    turns = config.original_length * plain / (2 * math.pi)  # full turns within the original length
    low, high = config.low_frequency_factor, config.high_frequency_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * plain / config.factor + keep * plain, 1.0


def _yarn(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    """Stretches pairs of under beta_slow turns, keeps pairs of over beta_fast turns, interpolates between both."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(config.original_length / (turns * 2 * math.pi)) / (2 * math.log(config.base))

    plain = _frequencies(head_dim, config.base)
    low = max(math.floor(dimension(config.beta_fast)), 0)
    high = min(math.ceil(dimension(config.beta_slow)), head_dim - 1)
    index = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    keep = 1 - ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    magnitude = config.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0
    return (1 - keep) * plain / config.factor + keep * plain, magnitude


SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


class Alibi(ExactScheme):
    """Attention with linear biases: ``−m_h |p_query − p_key|``, slopes m_h geometric from 2^(−8/H). Press et al. 2021.

    >>> import torch
    >>> p = torch.arange(3)[None]
    >>> Alibi(2).prepare(p, p).bias[0, 0]
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0625, -0.0000, -0.0625],
            [-0.1250, -0.0625, -0.0000]])
    """

    exact = "factors"
    factors: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        power = 2 ** math.floor(math.log2(heads))  # other head counts take every other of the next finer slopes
        self.slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        self.slopes += [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
        factors = -torch.tensor(self.slopes, device="cpu")[:, None, None]  # on the model's device: no copy at each step
        self.register_buffer("factors", factors, persistent=False)

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the bias (B or 1, H, T, S)."""
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return PositionBias(self.factors * distance)


class Relative(PositionScheme):
    """T5's relative positions: a learned bias per head and bucket of distances. Raffel et al. 2020, section 2.1.

    Half of the buckets hold one distance each, the other half grow logarithmically up to ``max_distance``. With
    ``both_ways``, keys before the query and keys after it use half of the buckets each.

    >>> import torch
    >>> p = torch.arange(5)[None]
    >>> Relative(heads=4).prepare(p, p).bias.shape
    torch.Size([1, 4, 5, 5])
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, both_ways: bool = True) -> None:
        super().__init__()
        self.max_distance, self.both_ways = max_distance, both_ways
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Returns the bucket of key position − query position."""
        first: Tensor | int = 0
        if self.both_ways:  # the upper half of the buckets is for keys after the query
            buckets = self.table.num_embeddings // 2
            first, length = (distance > 0).long() * buckets, distance.abs()
        else:
            buckets = self.table.num_embeddings
            length = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(length.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        logarithmic = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(length < exact, length, logarithmic)

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the bias (B or 1, H, T, S)."""
        distance = keys[:, None, :] - queries[:, :, None]
        return PositionBias(self.table(self.bucket(distance)).permute(0, 3, 1, 2))


class LearnedRelative(Learned):
    """Learned rows, added to the embeddings, and the bias of ``Relative`` on the scores: MPNet. Song et al. 2020.

    >>> p = torch.arange(5)[None]
    >>> LearnedRelative(8, Relative(heads=4), length=10).prepare(p, p).bias.shape
    torch.Size([1, 4, 5, 5])
    """

    def __init__(self, dim: int, relative: Relative, *, length: int, offset: int = 0) -> None:
        super().__init__(dim, length=length, offset=offset)
        self.relative = relative

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the bias (B or 1, H, T, S)."""
        return self.relative.prepare(queries, keys)


def distance_range(queries: Tensor, keys: Tensor) -> tuple[int, int]:
    """Returns bounds of query − key position for queries (B, T) that are the last of the keys (B, S).

    Positions rise by at most 1 from token to token, and a query attends to no key further away than their columns.
    """
    return 1 - queries.size(1), keys.size(1) - 1


class Clipped(PositionScheme):
    """Base of schemes with a row for each distance, or range of distances, up to a largest one.

    ``row_of`` (2L + 1,) is the row of each distance −L, ..., L, ascending.
    """

    row_of: Tensor

    def __init__(self, row_of: Tensor) -> None:
        super().__init__()
        self.register_buffer("row_of", row_of, persistent=False)
        self.rows: list[int] = row_of.tolist()  # the same on the host

    def shared(self, rows: slice) -> object:
        """Returns what all layers share, for a part of the rows."""
        raise NotImplementedError

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the distances, and what the layers need of the rows that occur."""
        if keys.size(1) == 0:  # rotates nothing
            return NO_ENCODING
        largest = len(self.rows) // 2
        lowest, highest = -largest, largest
        if not (torch.jit.is_tracing() or torch.compiler.is_compiling()):  # a graph takes any length
            nearest, farthest = distance_range(queries, keys)
            lowest, highest = max(lowest, nearest), min(highest, farthest)
        first, last = self.rows[lowest + largest], self.rows[highest + largest]
        table = self.row_of[lowest + largest : highest + largest + 1] - first
        return RelativeEncoding(Distances(queries, keys, lowest, table), self.shared(slice(first, last + 1)))


class Shaw(Clipped):
    """Relative positions of Shaw et al. 2018: learned rows for the distance of query and key, clipped to ±k.

    Each layer has the rows (``heedful.layers.relative.ShawLayer``).

    >>> import torch
    >>> from heedful.config import ShawPosition
    >>> p = torch.arange(3)[None]
    >>> Shaw(ShawPosition(distance=1)).prepare(p, p).bias.distances.rows()
    tensor([[[1, 0, 0],
             [2, 1, 0],
             [2, 2, 1]]])
    """

    def __init__(self, config: ShawPosition) -> None:
        super().__init__(torch.arange(2 * config.distance + 1, device="cpu"))

    def shared(self, rows: slice) -> slice:
        """Returns the rows that occur."""
        return rows


class TransformerXL(PositionScheme):
    """Relative positions of Dai et al. 2019, section 3.3: sinusoids of the distances of queries and keys.

    All sines come first. With ``config.biases`` "stack" all layers share u and v; distances beyond
    ``config.max_distance`` have its sinusoid.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> scheme = position_of(StackConfig(dim=8, depth=1, heads=2, position="transformer-xl"))
    >>> scheme.prepare(torch.tensor([[4]]), torch.arange(5)[None]).bias.shared[0].shape
    torch.Size([5, 8])
    """

    frequencies: Tensor

    def __init__(self, config: TransformerXLPosition, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        rate = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
        self.dim, self.max_distance = dim, config.max_distance
        self.register_buffer("frequencies", rate.float(), persistent=False)
        self.biases = ContentBiases(heads, head_dim) if config.biases == "stack" else None

    def prepare(self, queries: Tensor, keys: Tensor) -> PositionEncoding:
        """Returns the distances, with their sinusoids (P, D)."""
        if keys.size(1) == 0:  # rotates nothing
            return NO_ENCODING
        lowest, highest = distance_range(queries, keys)
        distances = torch.arange(lowest, highest + 1, device=keys.device)
        angle = self.clamped(distances)[:, None].float() * self.frequencies.float()
        rows = torch.cat((angle.sin(), angle.cos()), dim=-1)[:, : self.dim]
        return RelativeEncoding(Distances(queries, keys, lowest, distances - lowest), (rows, self.biases))

    def clamped(self, distances: Tensor) -> Tensor:
        """Returns distances of at most ``config.max_distance``, if there is one."""
        return distances.clamp(-self.max_distance, self.max_distance) if self.max_distance else distances


class Disentangled(Clipped):
    """Rows for the distances of DeBERTa's disentangled attention, shared by all layers. He et al. 2021, section 3.

    Row span + d is that of the distance d; a distance beyond the span has the first or last row. With buckets the
    distance is first compressed (``log_bucket``), as in DeBERTa v2.

    Args:
        config: of the scheme.
        dim: width of a row.
        norm_eps: epsilon of the rows' norm.
    """

    def __init__(self, config: DisentangledPosition, dim: int, norm_eps: float) -> None:
        largest = config.max_distance or config.length
        span = config.buckets or largest
        distances = torch.arange(-largest, largest + 1, device="cpu")
        buckets = log_bucket(distances, config.buckets, largest) if config.buckets else distances
        super().__init__((buckets + span).clamp(0, 2 * span - 1))
        self.table = nn.Embedding(2 * span, dim)
        self.norm = LayerNorm(dim, norm_eps) if config.norm else Identity()

    def shared(self, rows: slice) -> Tensor:
        """Returns the rows that occur (P, D)."""
        return self.norm(self.table(torch.arange(rows.start, rows.stop, device=self.table.weight.device)))


def log_bucket(distances: Tensor, buckets: int, largest: int) -> Tensor:
    """Returns distances compressed to ±``buckets``: exact up to half of them, then logarithmic up to ``largest``.

    >>> log_bucket(torch.tensor([-511, -3, 0, 3, 5, 511]), 8, 512)
    tensor([-7, -3,  0,  3,  5,  7])
    """
    middle = buckets // 2
    length = distances.abs().clamp(min=middle - 1)
    ratio = torch.log(length / middle) / torch.log(torch.tensor((largest - 1) / middle, device="cpu"))
    logarithmic = torch.ceil(ratio * (middle - 1)) + middle
    return torch.where(length <= middle, distances, (logarithmic * distances.sign()).long())


def position_of(config: StackConfig) -> PositionScheme:
    """Returns the module of a stack's position scheme."""
    head_dim = config.head_dim or config.dim // config.heads
    return _BUILDERS[type(config.position)](config, config.position, head_dim)


def _relative(stack: StackConfig, p: RelativePosition | LearnedPosition) -> Relative:
    return Relative(stack.heads, buckets=p.buckets, max_distance=p.max_distance, both_ways=not stack.causal)


def _learned(stack: StackConfig, p: LearnedPosition) -> Learned:
    if p.buckets:
        return LearnedRelative(stack.width, _relative(stack, p), length=p.length, offset=p.offset)
    return Learned(stack.width, length=p.length, offset=p.offset)


SCHEMES: dict[str, Callable[[StackConfig], PositionScheme]] = {}  # registered schemes
_BUILDERS = {
    NoPosition: lambda stack, p, head_dim: PositionScheme(),
    SinusoidalPosition: lambda stack, p, _: Sinusoidal(stack.width, order=p.order, base=p.base, offset=p.offset),
    LearnedPosition: lambda stack, p, _: _learned(stack, p),
    RotaryPosition: lambda stack, p, head_dim: (Rotary if p.window_base is None else WindowedRotary)(head_dim, p),
    AlibiPosition: lambda stack, p, _: Alibi(stack.heads),
    CustomPosition: lambda stack, p, _: SCHEMES[p.scheme](stack),
    RelativePosition: lambda stack, p, _: _relative(stack, p),
    ShawPosition: lambda stack, p, _: Shaw(p),
    TransformerXLPosition: lambda stack, p, head_dim: TransformerXL(p, stack.dim, stack.heads, head_dim),
    DisentangledPosition: lambda stack, p, _: Disentangled(p, stack.dim, stack.norm_eps),
}
