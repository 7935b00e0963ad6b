"""Tensors of a model that can be recorded and edited, and their paths: a module's path, a dot, the tensor's name.

Letters in axes: B sequences, T tokens (queries), S keys, H heads, K key-value heads, E head size, D width, F inner
width, X experts, C classes or vocabulary, h and w the rows and columns of patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from heedful import heads
from heedful.errors import HeedfulError, nearest
from heedful.layers.attention import Attention
from heedful.layers.block import Block, Residual
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.experts import Expert, Experts
from heedful.layers.feedforward import FeedForward
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.stack import Stack

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class TensorKind:
    """Kind of tensor that the modules of a class compute, such as the pattern of attentions.

    Attributes:
        name: the last part of the tensor's path.
        axes: one letter for each axis.
        side: "output" or "input" of a module, or "inside" attention.
        description: what the tensor is, for people.
        module_of: returns the module whose output or input the tensor is.
    """

    name: str
    axes: str
    side: str
    description: str
    module_of: Callable[[nn.Module], nn.Module] = lambda module: module


def _child(name: str) -> Callable[[nn.Module], nn.Module]:
    return lambda module: getattr(module, name)


EMBEDDED = TensorKind("embedded", "BTD", "output", "embeddings, before positions")
TOKEN_LOGITS = (TensorKind("logits", "BTC", "output", "logits of the head"),)
INPUT_LOGITS = (TensorKind("logits", "BC", "output", "logits of the head"),)

TENSORS: dict[type[nn.Module], tuple[TensorKind, ...]] = {
    TokenEmbedding: (EMBEDDED,),
    PatchEmbedding: (
        TensorKind("maps", "BDhw", "output", "feature maps of the patch projection", _child("projection")),
        EMBEDDED,
    ),
    Stack: (
        TensorKind(
            "stream", "BTD", "output", "input of the first block: embeddings and positions", _child("projection")
        ),
        TensorKind("hidden", "BTD", "output", "the final stream, normed"),
    ),
    Block: (TensorKind("stream", "BTD", "output", "the stream after the block"),),
    Residual: (TensorKind("sum", "BTD", "output", "the stream after this residual"),),
    Attention: (
        TensorKind("query", "BHTE", "inside", "queries, after rotation"),
        TensorKind("key", "BKSE", "inside", "keys, after rotation"),
        TensorKind("value", "BKSE", "inside", "values"),
        TensorKind("scores", "BHTS", "inside", "scaled products, before the softmax; −∞ where masked"),
        TensorKind("pattern", "BHTS", "inside", "attention weights, before dropout"),
        TensorKind("mixed", "BHTE", "inside", "each head's weighted sum of values"),
        TensorKind("output", "BTD", "output", "attention's update of the stream"),
    ),
    FeedForward: (
        TensorKind("activation", "BTF", "input", "the inner units, before dropout", _child("dropout")),
        TensorKind("output", "BTD", "output", "the feed-forward's update of the stream"),
    ),
    Expert: (),  # it has some tokens of a batch, not (B, T)
    Experts: (
        TensorKind("router", "BTX", "output", "weights of a token's experts, 0 for the others", _child("router")),
        TensorKind("output", "BTD", "output", "the experts' update of the stream"),
    ),
    heads.LanguageModel: TOKEN_LOGITS,
    heads.MaskedLanguageModel: TOKEN_LOGITS,
    heads.TokenClassifier: TOKEN_LOGITS,
    heads.SpanFinder: TOKEN_LOGITS,
    heads.SequenceClassifier: INPUT_LOGITS,
    heads.ImageClassifier: INPUT_LOGITS,
    heads.Pooled: (TensorKind("vector", "BD", "output", "the pooled vector"),),
}


TERM_KINDS = {  # of attentions whose positions depend on queries and keys
    "content": TensorKind("content", "BHTS", "inside", "the part of the scores from content to content"),
    "c2p": TensorKind("c2p", "BHTS", "inside", "the part of the scores from content to position"),
    "p2c": TensorKind("p2c", "BHTS", "inside", "the part of the scores from position to content"),
    "c2s": TensorKind("c2s", "BHTS", "inside", "the part of the scores from content to segment"),
}


@dataclass(frozen=True)
class HookPoint:
    """A tensor of a model: its path, its kind, and the module that computes it."""

    path: str
    kind: TensorKind
    module: nn.Module

    @property
    def layer(self) -> int | None:
        """Number of the block that computes the tensor; None outside of blocks."""
        numbers = [word for word in self.path.split(".") if word.isdigit()]
        return int(numbers[-1]) if numbers else None

    @property
    def is_cross(self) -> bool:
        """True for a tensor of cross-attention, whose keys are another stack's tokens."""
        return isinstance(self.module, Attention) and self.path.split(".")[-2] == "cross_attention"

    @property
    def heads(self) -> int:
        """Number of heads that the tensor has; 0 without heads."""
        if not isinstance(self.module, Attention):
            return 0
        return {"H": self.module.heads, "K": self.module.kv_heads}.get(self.kind.axes[1], 0)


def unwrapped_path(path: str) -> str:
    """Returns a module's path without the parts that wrappers (compile, data parallel) put into it."""
    return ".".join(word for word in path.split(".") if word not in WRAPPERS)


def hook_points(model: nn.Module) -> Iterator[HookPoint]:
    """Yields every tensor of ``model`` that can be recorded and edited, in the order of its modules."""
    pairs = [(path, part) for path, part in model.named_modules() if isinstance(part, EncoderDecoder)]
    shared = {part.embedding: (path, part) for path, part in pairs if part.embedding is part.target_embedding}
    for path, module in model.named_modules():
        if module in shared:  # it runs twice, and only the stacks know for which side
            path, pair = shared[module]
            kind = replace(EMBEDDED, side="input")
            for name, stack in (("embedding", pair.encoder), ("target_embedding", pair.decoder)):
                yield HookPoint(unwrapped_path(f"{path}.{name}.embedded").removeprefix("."), kind, stack)
            continue
        base = next((base for base in type(module).__mro__ if base in TENSORS), nn.Module)
        for kind in (*TENSORS.get(base, ()), *_terms(module)):
            yield HookPoint(f"{unwrapped_path(path)}.{kind.name}".removeprefix("."), kind, module)


def _terms(module: nn.Module) -> tuple[TensorKind, ...]:
    """Returns the terms of an attention's scores; () if its positions do not depend on queries and keys."""
    relative = module.relative if isinstance(module, Attention) else None
    return () if relative is None else tuple(TERM_KINDS[name] for name in relative.recorded)


def paths(model: nn.Module) -> list[str]:
    """Returns the path of every tensor of ``model`` that can be recorded and edited.

    >>> import heedful
    >>> paths(heedful.create("gpt-micro", seed=0))[:4]
    ['embedding.embedded', 'decoder.stream', 'decoder.hidden', 'decoder.block.0.stream']
    """
    return [point.path for point in hook_points(model)]


def select_hook_points(
    model: nn.Module,
    name: str | Sequence[str],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> list[HookPoint]:
    """Returns the tensors whose path ends in ``name``, or in one of several names, in the blocks ``layers``.

    Raises ``HeedfulError`` for a name, layer or head that the model does not have, for a tensor without heads or
    queries, and for an empty selection.
    """
    for option, value in (("name", name), ("layers", layers), ("heads", heads), ("queries", queries)):
        if isinstance(value, int):
            raise HeedfulError(f"{option} is {value}, but must be a list; give [{value}]")
        if value is not None and not len(value):
            raise HeedfulError(f"{option} is empty; give at least one number, or leave {option} out")
    points = list(hook_points(model))
    selected_paths: set[str] = set()
    for suffix in [name] if isinstance(name, str) else name:
        matching = [point for point in points if f".{point.path}".endswith(f".{suffix}")]
        if not matching:
            raise HeedfulError(f"the model has no tensor {suffix!r}; {_hint(suffix, points)}")
        if layers is not None:
            matching = [point for point in matching if point.layer in layers]
            missing = set(layers) - {point.layer for point in matching}
            if missing:
                raise HeedfulError(f"the model has no block {min(missing)} with {suffix!r}; blocks are numbered from 0")
        selected_paths |= {point.path for point in matching}
    selected = [point for point in points if point.path in selected_paths]
    for point in selected:
        if heads is not None and not point.heads:
            raise HeedfulError(f"{point.path} has no heads; leave heads out, or name a pattern, query or mixed")
        wrong = [head for head in heads or () if not 0 <= head < point.heads]
        if wrong:
            raise HeedfulError(f"{point.path} has no head {wrong[0]}; its {point.heads} heads are numbered from 0")
        if queries is not None and "T" not in point.kind.axes:
            raise HeedfulError(f"{point.path} has no queries; leave queries out")
    return selected


def _hint(name: str, points: Sequence[HookPoint]) -> str:
    """Returns the nearest path, or else the names of tensors: a model has hundreds of paths."""
    near = nearest(name, [point.path for point in points])
    return near if near.startswith("did") else nearest(name, {point.kind.name for point in points})
