"""Heads: language model, masked language model, sequence, token, span, pooled, image.

All are called ``head(hidden, real)``: the final hidden states (B, T, D) and the model's mask, (B, T) or (B, T, T), or
None.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import (
    DenseConfig,
    Head,
    ImageHead,
    LanguageHead,
    MaskedHead,
    NoHead,
    PooledHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from heedful.layers.attention_kernels import soft_cap
from heedful.layers.dropout import Dropout
from heedful.layers.feedforward import ACTIVATIONS
from heedful.layers.linear import Linear
from heedful.layers.mask import attended_tokens
from heedful.layers.norm import LayerNorm
from heedful.stack import ALL_TOKENS


def _first(hidden: Tensor, real: Tensor) -> Tensor:
    return hidden[torch.arange(hidden.size(0), device=hidden.device), real.int().argmax(1)]


def _last(hidden: Tensor, real: Tensor) -> Tensor:
    return _first(hidden.flip(1), real.flip(1))


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    return (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def _max(hidden: Tensor, real: Tensor) -> Tensor:
    largest = hidden.masked_fill(~real[..., None], float("-inf")).amax(1)
    return largest.masked_fill(~real.any(1, keepdim=True), 0.0)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"first": _first, "last": _last, "mean": _mean, "max": _max}


READ = {"first": slice(0, 1), "last": slice(-1, None)}  # non-padding tokens that a pooling reads; default all


def pool(hidden: Tensor, real: Tensor | None, pooling: str) -> Tensor:
    """Pools the non-padding tokens of each sequence: (B, T, D) → (B, D).

    ``pooling`` is "first" (BERT's class token), "last", "mean" or "max". ``real`` (B, T) is False for padding.
    """
    real = hidden.new_ones(hidden.shape[:2]).bool() if real is None else attended_tokens(real).bool()
    return POOLINGS[pooling](hidden, real)


class Dense(nn.Module):
    """Linear map with an activation, act(W x + b): BERT's pooler, and the hidden layer of ViT's pre-training head."""

    def __init__(self, into: int, out: int, activation: str = "tanh") -> None:
        super().__init__()
        self.dense = Linear(into, out)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        return self.activation(self.dense(x))


class DenseNorm(nn.Module):
    """Layer before the output of a head: norm(act(W x + b)); without ``config.norm``, act(W x + b)."""

    def __init__(self, config: DenseConfig, dim: int) -> None:
        super().__init__()
        self.dense = Linear(dim, dim, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = LayerNorm(dim, config.norm_eps, bias=config.norm_bias) if config.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., D) to (..., D)."""
        return self.norm(self.activation(self.dense(x)))


def _dense_of(config: DenseConfig | None, dim: int) -> nn.Module:
    return nn.Identity() if config is None else DenseNorm(config, dim)


class Hidden(nn.Module):
    """Absent head: returns the hidden states unchanged. It stores an unused pooler for a head that is added later."""

    def __init__(self, config: NoHead, dim: int) -> None:
        super().__init__()
        self.pooler = Dense(dim, dim) if config.pooler else nn.Identity()

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the hidden states (B, T, D) unchanged."""
        return hidden


class LanguageModel(nn.Module):
    """Language-model head: logits over the vocabulary, optionally by tied embedding weights (Press and Wolf 2017)."""

    def __init__(self, config: LanguageHead, dim: int, token: nn.Embedding) -> None:
        super().__init__()
        self.output = Linear(dim, token.num_embeddings, bias=config.bias)
        if config.tied:
            self.output.weight = token.weight
        self.factor = {"sqrt": dim**-0.5, "none": 1.0}[config.scale]
        self.cap = config.logit_cap

    def transform(self, hidden: Tensor) -> Tensor:
        """Returns the input (B, T, D) of the output projection."""
        return hidden if self.factor == 1.0 else hidden * self.factor

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, T, V)."""
        return soft_cap(self.output(self.transform(hidden)), self.cap)


class MaskedLanguageModel(nn.Module):
    """BERT's masked-language-model head: logits = norm(act(dense(hidden))) Eᵀ + b.

    E is the token embedding, to whose width the dense layer maps, b a bias. Devlin et al. 2019.
    """

    def __init__(self, config: MaskedHead, dim: int, token: nn.Embedding) -> None:
        super().__init__()
        width = token.embedding_dim
        self.dense = Linear(dim, width, bias=config.dense_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = LayerNorm(width, config.norm_eps, bias=config.norm_bias)
        self.output = Linear(width, token.num_embeddings, bias=config.bias)
        if config.tied:
            self.output.weight = token.weight

    def transform(self, hidden: Tensor) -> Tensor:
        """Returns the input (B, T, D) of the output projection."""
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, T, V)."""
        return self.output(self.transform(hidden))


class SequenceClassifier(nn.Module):
    """Head that classifies a sequence: logits (B, labels) from one pooled vector of each sequence."""

    def __init__(self, config: SequenceHead, dim: int) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.pooler_dropout = Dropout(config.pooler_dropout) if config.pooler_dropout else nn.Identity()
        self.pooler = Dense(dim, dim, config.pooler_activation) if config.pooler else nn.Identity()
        self.hidden = _dense_of(config.dense, dim)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(dim, config.labels, bias=config.bias)

    @property
    def tokens_read(self) -> slice:
        """Slice of a sequence's non-padding tokens on which the output depends."""
        return READ.get(self.pooling, ALL_TOKENS)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, labels)."""
        pooled = self.pooler_dropout(pool(hidden, real, self.pooling))
        return self.output(self.dropout(self.hidden(self.pooler(pooled))))


class TokenClassifier(nn.Module):
    """Head that classifies every token: logits (B, T, labels), after a dense layer if the configuration has one."""

    def __init__(self, config: TokenHead, dim: int) -> None:
        super().__init__()
        self.hidden = _dense_of(config.dense, dim)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(dim, config.labels)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, T, labels)."""
        return self.output(self.dropout(self.hidden(hidden)))


class SpanFinder(nn.Module):
    """Head that finds a span: the logits (B, T, 2) of each token as its start and as its end, padding included."""

    def __init__(self, config: SpanHead, dim: int) -> None:
        super().__init__()
        self.hidden = _dense_of(config.dense, dim)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(dim, 2)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, T, 2) of the span's start and end."""
        return self.output(self.dropout(self.hidden(hidden)))


class Pooled(nn.Module):
    """Pooled head: one vector per sequence, for sentence embeddings."""

    def __init__(self, config: PooledHead, dim: int) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.pooler = Dense(dim, dim) if config.pooler else nn.Identity()
        self.normalise: Callable[..., Tensor] = F.normalize if config.normalise else nn.Identity()

    @property
    def tokens_read(self) -> slice:
        """Slice of a sequence's non-padding tokens on which the output depends."""
        return READ.get(self.pooling, ALL_TOKENS)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the vectors (B, D)."""
        return self.normalise(self.pooler(pool(hidden, real, self.pooling)))


class ImageClassifier(nn.Module):
    """Head that classifies an image: logits (B, labels) from the class token.

    A distillation token has a classifier of its own, whose logits are averaged with those of the class token. A model
    without these tokens classifies the mean of the patches. With ``tokens="class+mean"`` one classifier reads the class
    token and the mean of the patches.

    Dosovitskiy et al. 2021, section 3.1; Touvron et al. 2021, section 4; Beyer et al. 2022, section 2.
    """

    def __init__(self, config: ImageHead, dim: int, prefix_tokens: int) -> None:
        super().__init__()
        self.prefix_tokens, self.joins_mean = prefix_tokens, config.tokens == "class+mean"
        read = 2 * dim if self.joins_mean else dim
        self.hidden = Dense(read, config.hidden) if config.hidden else nn.Identity()
        width = config.hidden or read
        rows = max(1, prefix_tokens) if config.tokens == "all" else 1
        self.has_prefix = prefix_tokens > 0
        self.output = nn.ModuleList(Linear(width, config.labels) for _ in range(rows))

    @property
    def tokens_read(self) -> slice:
        """Slice of an image's tokens on which the output depends."""
        return slice(0, len(self.output)) if self.has_prefix and not self.joins_mean else ALL_TOKENS

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the logits (B, labels)."""
        vectors = hidden[:, : len(self.output)] if self.has_prefix else hidden.mean(1, keepdim=True)
        if self.joins_mean:
            vectors = torch.cat((vectors, hidden[:, self.prefix_tokens :].mean(1, keepdim=True)), -1)  # (B, 1, 2 D)
        rows = self.hidden(vectors).unbind(1)
        return torch.stack([output(row) for output, row in zip(self.output, rows, strict=True)]).mean(0)


def checked_output(head: nn.Module, hidden: Tensor, output: Tensor) -> Tensor:
    """Returns the ``output`` of ``head`` for ``hidden``; raises ``HeedfulError`` if a registered head returned another
    shape than the head in whose place it stands.
    """
    shape = getattr(head, "registered_output", None)
    if shape is not None and not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        shape.check(hidden, output)
    return output


HEADS: dict[str, Callable[..., nn.Module]] = {}  # registered heads: (config, dim, token) → module


def head_of(config: Head, dim: int, token: nn.Embedding | None = None, prefix_tokens: int = 0) -> nn.Module:
    """Returns a new head.

    Args:
        config: configuration of the head.
        dim: width of the stack below it.
        token: token embedding, whose weights the head may share.
        prefix_tokens: number of tokens before an image's patches.
    """
    if not isinstance(config, NoHead) and config.head in HEADS:
        return HEADS[config.head](config, dim, token)
    return _BUILDERS[type(config)](config, dim, token, prefix_tokens)


_BUILDERS: dict[type[Head], Callable[..., nn.Module]] = {
    NoHead: lambda config, dim, token, prefix: Hidden(config, dim),
    LanguageHead: lambda config, dim, token, prefix: LanguageModel(config, dim, token),
    MaskedHead: lambda config, dim, token, prefix: MaskedLanguageModel(config, dim, token),
    SequenceHead: lambda config, dim, token, prefix: SequenceClassifier(config, dim),
    TokenHead: lambda config, dim, token, prefix: TokenClassifier(config, dim),
    SpanHead: lambda config, dim, token, prefix: SpanFinder(config, dim),
    PooledHead: lambda config, dim, token, prefix: Pooled(config, dim),
    ImageHead: lambda config, dim, token, prefix: ImageClassifier(config, dim, prefix),
}
