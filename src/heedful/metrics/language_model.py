"""Metrics of language models, from sums over tokens: loss, perplexity, bits per byte, accuracy of hidden tokens."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from heedful.metrics.example_scores import Metrics
from heedful.metrics.registry import Metric

METRICS = (
    Metric("loss", "loss", lower_is_better=True),
    Metric("perplexity", "perplexity", lower_is_better=True),
    Metric("pseudo_perplexity", "pseudo perplexity", lower_is_better=True),
    Metric("generator_loss", "generator loss", lower_is_better=True),  # of replaced-token detection
    Metric("bits_per_byte", "bits a byte", lower_is_better=True, headline=True),
    Metric("bits_per_character", "bits a character", lower_is_better=True),  # for logs of earlier versions
)


def next_token_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, the mean of −log p over tokens in nats, and ``perplexity``, e^loss.

    ``sums`` has two sums over examples: Σ −log p, and the number of predicted tokens.
    """
    nats, tokens = sums.tolist()
    loss = nats / max(1, tokens)
    return {"loss": loss, "perplexity": math.exp(loss)}


def text_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, ``perplexity`` and ``bits_per_byte`` of a language model.

    ``loss`` is the mean of −log p over tokens in nats, ``perplexity`` is e^loss, and ``bits_per_byte`` is Σ −log₂ p /
    bytes. ``sums`` has three sums over examples: Σ −log p, the number of predicted tokens, and the number of bytes.

    >>> import numpy as np
    >>> text_metrics(np.array([8 * math.log(2), 4, 8]))["bits_per_byte"]
    1.0
    """
    return next_token_metrics(sums[:2]) | {"bits_per_byte": float(sums[0]) / math.log(2) / max(1, float(sums[2]))}


def span_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, ``perplexity`` and ``accuracy`` (in percent) of hidden tokens.

    ``sums`` has three sums over examples: Σ −log p, the number of correct tokens, and the number of hidden tokens. Loss
    and accuracy are NaN if no token was hidden.
    """
    nats, correct, hidden = map(float, sums)
    loss = nats / hidden if hidden else math.nan
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,  # the exponential of more overflows
        "accuracy": 100 * correct / hidden if hidden else math.nan,
    }


def masked_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, ``accuracy`` (in percent) and ``pseudo_perplexity`` of masked tokens; NaN if there are none.

    ``sums`` has five sums over examples. The first three are Σ −log p, the number of correct tokens and the number of
    masked tokens. The last two are Σ −log p and the number of tokens that were masked one at a time, for the
    pseudo-perplexity.
    """
    nats, correct, hidden, single_nats, single_hidden = map(float, sums)
    return {
        "loss": nats / hidden if hidden else math.nan,
        "accuracy": 100 * correct / hidden if hidden else math.nan,
        "pseudo_perplexity": math.exp(single_nats / single_hidden) if single_hidden else math.nan,
    }
