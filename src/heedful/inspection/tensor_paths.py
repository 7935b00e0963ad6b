"""Tensors that can be recorded and edited. A path is a module's path, a dot, and the tensor's name.

Letters in axes: B sequences, T tokens (queries), S keys, H heads, K key-value heads, E head size, D width, F inner
width, C classes or vocabulary, h and w the rows and columns of patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from heedful import heads
from heedful.errors import HeedfulError, nearest
from heedful.layers.attention import Attention
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.feedforward import FeedForward
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.stack import Block, Residual, Stack

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Point:
    """One tensor of a kind of module.

    Attributes:
        name: its name.
        axes: a letter an axis.
        side: "output" or "input" of a module, or "inside" attention.
        of: the module whose output or input it is.
        says: what it is, for people.
    """

    name: str
    axes: str
    side: str
    says: str
    of: Callable[[nn.Module], nn.Module] = lambda part: part


def _part(name: str) -> Callable[[nn.Module], nn.Module]:
    return lambda module: getattr(module, name)


EMBEDDED = Point("embedded", "BTD", "output", "embeddings, before positions")
LOGITS = (Point("logits", "BTC", "output", "what the head says"),)
WHOLE = (Point("logits", "BC", "output", "what the head says"),)

POINTS: dict[type[nn.Module], tuple[Point, ...]] = {
    TokenEmbedding: (EMBEDDED,),
    PatchEmbedding: (
        Point("maps", "BDhw", "output", "feature maps of the patch projection", _part("projection")),
        EMBEDDED,
    ),
    Stack: (
        Point("stream", "BTD", "output", "what the first block reads: embeddings and positions", _part("dropout")),
        Point("hidden", "BTD", "output", "the final stream, normed"),
    ),
    Block: (Point("stream", "BTD", "output", "the stream as it leaves the block"),),
    Residual: (Point("sum", "BTD", "output", "the stream after this residual"),),
    Attention: (
        Point("query", "BHTE", "inside", "queries, after rotation"),
        Point("key", "BKSE", "inside", "keys, after rotation"),
        Point("value", "BKSE", "inside", "values"),
        Point("scores", "BHTS", "inside", "scaled products, before the softmax; −∞ where masked"),
        Point("pattern", "BHTS", "inside", "attention weights, before dropout"),
        Point("mixed", "BHTE", "inside", "each head's weighted sum of values"),
        Point("output", "BTD", "output", "what attention adds to the stream"),
    ),
    FeedForward: (
        Point("activation", "BTF", "input", "the inner units, before dropout", _part("dropout")),
        Point("output", "BTD", "output", "what the feed-forward adds to the stream"),
    ),
    heads.LanguageModel: LOGITS,
    heads.MaskedLanguageModel: LOGITS,
    heads.TokenClassifier: LOGITS,
    heads.SpanFinder: LOGITS,
    heads.SequenceClassifier: WHOLE,
    heads.ImageClassifier: WHOLE,
    heads.Pooled: (Point("vector", "BD", "output", "the pooled vector"),),
}


@dataclass(frozen=True)
class Place:
    """A tensor of a model: its path, what it is, and the module that makes it."""

    path: str
    point: Point
    part: nn.Module

    @property
    def layer(self) -> int | None:
        """The number of the block that it stands in; None outside of blocks."""
        numbers = [word for word in self.path.split(".") if word.isdigit()]
        return int(numbers[-1]) if numbers else None

    @property
    def cross(self) -> bool:
        """True if its keys are another stack's tokens."""
        return isinstance(self.part, Attention) and self.path.split(".")[-2] == "cross_attention"

    @property
    def heads(self) -> int:
        """Number of heads; 0 without heads."""
        if not isinstance(self.part, Attention):
            return 0
        return {"H": self.part.heads, "K": self.part.kv_heads}.get(self.point.axes[1], 0)


def clean(path: str) -> str:
    """A module's path without what wrappers (compile, data parallel) put into it."""
    return ".".join(word for word in path.split(".") if word not in WRAPPERS)


def places(model: nn.Module) -> Iterator[Place]:
    """Every tensor of ``model`` that can be seen and changed, in the order of its modules."""
    pairs = [(path, part) for path, part in model.named_modules() if isinstance(part, EncoderDecoder)]
    shared = {part.embedding: (path, part) for path, part in pairs if part.embedding is part.target_embedding}
    for path, part in model.named_modules():
        if part in shared:  # it runs twice, and only the stacks know for whom
            path, pair = shared[part]
            for name, stack in (("embedding", pair.encoder), ("target_embedding", pair.decoder)):
                yield Place(clean(f"{path}.{name}.embedded").removeprefix("."), replace(EMBEDDED, side="input"), stack)
            continue
        kind = next((kind for kind in type(part).__mro__ if kind in POINTS), nn.Module)
        for point in POINTS.get(kind, ()):
            yield Place(f"{clean(path)}.{point.name}".removeprefix("."), point, part)


def paths(model: nn.Module) -> list[str]:
    """The path of every tensor of ``model`` that can be recorded and intervened on.

    >>> import heedful
    >>> paths(heedful.create("gpt-micro", seed=0))[:4]
    ['embedding.embedded', 'decoder.stream', 'decoder.hidden', 'decoder.block.0.stream']
    """
    return [place.path for place in places(model)]


def chosen_places(
    model: nn.Module,
    name: str | Sequence[str],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> list[Place]:
    """The places whose path ends in ``name`` (or one of several), of the blocks ``layers`` alone.

    Raises ``HeedfulError`` where a name, layer or head is not there, where a tensor has no heads or queries, or where
    nothing is asked for.
    """
    for what, given in (("name", name), ("layers", layers), ("heads", heads), ("queries", queries)):
        if isinstance(given, int):
            raise HeedfulError(f"{what} is {given}, but a list is wanted; give [{given}]")
        if given is not None and not len(given):
            raise HeedfulError(f"{what} is empty, which asks for nothing; give one at least, or leave it out")
    every = list(places(model))
    found: dict[str, Place] = {}
    for one in [name] if isinstance(name, str) else name:
        own = {place.path: place for place in every if f".{place.path}".endswith(f".{one}")}
        if not own:
            raise HeedfulError(f"nothing in the model is called {one!r}; {_hint(one, every)}")
        if layers is not None:
            own = {path: place for path, place in own.items() if place.layer in layers}
            missing = set(layers) - {place.layer for place in own.values()}
            if missing:
                raise HeedfulError(f"the model has no block {min(missing)} with a {one!r}; number them from 0")
        found |= own
    kept = [place for place in every if place.path in found]
    for place in kept:
        if heads is not None and not place.heads:
            raise HeedfulError(f"{place.path} has no heads; leave heads out, or ask for a pattern, query or mixed")
        wrong = [head for head in heads or () if not 0 <= head < place.heads]
        if wrong:
            raise HeedfulError(f"{place.path} has no head {wrong[0]}; number its {place.heads} heads from 0")
        if queries is not None and "T" not in place.point.axes:
            raise HeedfulError(f"{place.path} has no queries; leave queries out")
    return kept


def _hint(name: str, every: Sequence[Place]) -> str:
    """The nearest path where one is near, otherwise the names: a model has hundreds of paths."""
    near = nearest(name, [place.path for place in every])
    return near if near.startswith("did") else nearest(name, {place.point.name for place in every})
