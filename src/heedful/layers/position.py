"""Positions. A scheme does two things: ``embed`` adds to the embedding (absolute schemes), ``prepare`` makes, once a
forward, the ``Place`` that every block's attention uses (rotation of queries and keys, or a bias joined to the mask).

Shapes: B sequences, T queries, S keys, H heads, E head size. Positions are integers (B or 1, T), counted over real
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import (
    AlibiPosition,
    LearnedPosition,
    NoPosition,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.layers.mask import Mask, add_bias


class Place:
    """Position information for attention: here, none."""

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, T, E), turned by their positions."""
        return x

    def join(self, mask: Mask) -> Mask:
        """The mask, with the positions' bias where there is one."""
        return mask


NOWHERE = Place()


class Turned(Place):
    """Rotation by the tables ``cos`` and ``sin`` (B or 1, 1, T, E / 2), the two halves of a head turned together."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def rotate(self, x: Tensor) -> Tensor:
        """(a, b) → (a cos − b sin, b cos + a sin): (a, b) cos + (b, a) (−sin, sin), in three passes."""
        swapped = x.roll(x.size(-1) // 2, dims=-1)
        return torch.addcmul(x * self.cos.to(x.dtype), swapped, self.sin.to(x.dtype))


class Biased(Place):
    """A bias (B or 1, H, T, S) on the attention scores."""

    def __init__(self, bias: Tensor) -> None:
        self.bias = bias

    def join(self, mask: Mask) -> Mask:
        """The bias where the mask allows, −∞ elsewhere."""
        return add_bias(mask, self.bias)


class Unplaced(nn.Module):
    """No positions, and the base of all schemes."""

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """``x`` (B, T, D) with what the scheme adds at ``positions`` (B or 1, T), all known to be below ``end``."""
        return x

    def prepare(self, queries: Tensor, keys: Tensor) -> Place:
        """The place for queries at positions (B or 1, T) and keys at positions (B or 1, S)."""
        return NOWHERE


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


class Sinusoidal(Unplaced):
    """Adds the fixed sinusoid of each position; any length. See ``sinusoid``.

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
        """Computes the table anew for ``length`` positions, where it is shorter."""
        if length + self.offset > self.table.size(0):
            self.table = sinusoid(length + self.offset, self.dim, self.base, self.order).to(self.table)

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """``x`` (B, T, D) + the rows of ``positions`` (B or 1, T); ``end``, where known, saves looking for the last."""
        length = int(positions.max()) + 1 if end is None else end
        if length + self.offset > self.table.size(0):
            self.extend(2 * length)
        return x + F.embedding(positions + self.offset, self.table).to(x.dtype)


class Learned(Unplaced):
    """Adds a learned row for each position below ``length``; ``offset`` rows stand before that of position 0.

    >>> import torch
    >>> Learned(4, length=10).embed(torch.zeros(1, 3, 4), torch.arange(3)[None]).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, dim: int, *, length: int, offset: int = 0) -> None:
        super().__init__()
        self.length, self.offset = length, offset
        self.table = nn.Embedding(length + offset, dim)

    def embed(self, x: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """``x`` (B, T, D) + the rows of ``positions`` (B or 1, T); a position past the last is an error."""
        try:
            return x + self.table(positions + self.offset)
        except IndexError:
            raise HeedfulError(
                f"{int(positions.max()) + 1} tokens, but the model has {self.length} learned positions; "
                "cut the input, or make the model with more"
            ) from None


class Rotary(Unplaced):
    """Rotary positions: the pair (x_i, x_{i+E/2}) of every head turned by the angle p · base^(−2i/E).

    Su et al. 2021, equation 34, in the half-split layout of the Hub's Llama checkpoints. ``scaling`` stretches the
    angles: linear (Chen et al. 2023), llama3 (Llama 3.1's smooth cut between low and high frequencies), yarn (Peng et
    al. 2023, with its attention factor). Angles are float32, as in the published models.

    >>> import torch
    >>> place = Rotary(8).prepare(torch.arange(5)[None], torch.arange(5)[None])
    >>> place.rotate(torch.randn(2, 4, 5, 8)).shape
    torch.Size([2, 4, 5, 8])
    """

    frequencies: Tensor

    def __init__(self, head_dim: int, config: RotaryPosition | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise HeedfulError(f"rotary positions turn pairs: head size {head_dim} is odd")
        config = config or RotaryPosition()
        frequencies, self.magnitude = SCALINGS[config.scaling](head_dim, config)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        """Moved, but never rounded: in bfloat16 position 1,000 would be turned by another angle."""
        exact = self.frequencies
        super()._apply(fn, recurse)
        self.frequencies = exact.to(self.frequencies.device)
        return self

    def prepare(self, queries: Tensor, keys: Tensor) -> Place:
        """Tables for ``queries`` (B or 1, T); new keys stand where the queries do, earlier ones were turned before."""
        angle = queries[:, None, :, None].float() * self.frequencies.float()  # (B, 1, T, E / 2)
        return Turned(angle.cos() * self.magnitude, angle.sin() * self.magnitude)


def _frequencies(head_dim: int, base: float) -> Tensor:
    return 1.0 / base ** (torch.arange(0, head_dim, 2, device="cpu").float() / head_dim)


def _default(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    return _frequencies(head_dim, config.base), 1.0


def _linear(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    return _frequencies(head_dim, config.base) / config.factor, 1.0


def _llama3(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    """Long waves are stretched, short ones kept, those between mixed smoothly."""
    plain = _frequencies(head_dim, config.base)
    turns = config.original_length * plain / (2 * math.pi)  # full turns within the original length
    low, high = config.low_frequency_factor, config.high_frequency_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * plain / config.factor + keep * plain, 1.0


def _yarn(head_dim: int, config: RotaryPosition) -> tuple[Tensor, float]:
    """Pairs that turn more than beta_fast times are kept, fewer than beta_slow stretched, between mixed linearly."""

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


class Alibi(Unplaced):
    """Attention with linear biases: −m_h |p_query − p_key|, slopes m_h geometric from 2^(−8/H). Press et al. 2021.

    >>> import torch
    >>> p = torch.arange(3)[None]
    >>> Alibi(2).prepare(p, p).join(None)[0, 0]
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0625, -0.0000, -0.0625],
            [-0.1250, -0.0625, -0.0000]])
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        whole = 2 ** math.floor(math.log2(heads))  # a head count that is no power of two takes every other finer slope
        self.slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]  # no buffer: bfloat16 would round them
        self.slopes += [2 ** (-4 * (2 * h + 1) / whole) for h in range(heads - whole)]

    def prepare(self, queries: Tensor, keys: Tensor) -> Place:
        """The bias (B or 1, H, T, S)."""
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return Biased(-torch.tensor(self.slopes, device=queries.device)[:, None, None] * distance)


class Relative(Unplaced):
    """T5's relative positions: a learned bias a head for each bucket of distances. Raffel et al. 2020, section 2.1.

    Half of the buckets hold one distance each, the other half grow logarithmically up to ``max_distance``; where a
    query may look both ways, each direction takes half of the buckets.

    >>> import torch
    >>> p = torch.arange(5)[None]
    >>> Relative(heads=4).prepare(p, p).join(None).shape
    torch.Size([1, 4, 5, 5])
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, both_ways: bool = True) -> None:
        super().__init__()
        self.max_distance, self.both_ways = max_distance, both_ways
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key position − query position."""
        ways = 1 + self.both_ways
        buckets = self.table.num_embeddings // ways
        ahead = (distance > 0).long() * buckets * self.both_ways
        back = distance.abs() * self.both_ways + (-distance).clamp(min=0) * (not self.both_ways)
        exact = buckets // 2
        ratio = torch.log(back.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return ahead + torch.where(back < exact, back, far)

    def prepare(self, queries: Tensor, keys: Tensor) -> Place:
        """The bias (B or 1, H, T, S)."""
        distance = keys[:, None, :] - queries[:, :, None]
        return Biased(self.table(self.bucket(distance)).permute(0, 3, 1, 2))


def position_of(config: StackConfig) -> Unplaced:
    """The module for a stack's position scheme."""
    head_dim = config.head_dim or config.dim // config.heads
    return _BUILDERS[type(config.position)](config, config.position, head_dim)


_BUILDERS = {
    NoPosition: lambda stack, p, head_dim: Unplaced(),
    SinusoidalPosition: lambda stack, p, _: Sinusoidal(stack.dim, order=p.order, base=p.base, offset=p.offset),
    LearnedPosition: lambda stack, p, _: Learned(stack.dim, length=p.length, offset=p.offset),
    RotaryPosition: lambda stack, p, head_dim: Rotary(head_dim, p),
    AlibiPosition: lambda stack, p, _: Alibi(stack.heads),
    RelativePosition: lambda stack, p, _: Relative(
        stack.heads, buckets=p.buckets, max_distance=p.max_distance, both_ways=not stack.causal
    ),
}
