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
    Metric("bits_per_byte", "bits a byte", lower_is_better=True, headline=True),
    Metric("bits_per_character", "bits a character", lower_is_better=True),  # of logs of former versions
)


def next_token_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, Σ −log p / tokens in nats, and ``perplexity``, e^loss, from Σ −log p and the number of
    predicted tokens.
    """
    nats, tokens = sums.tolist()
    loss = nats / max(1, tokens)
    return {"loss": loss, "perplexity": math.exp(loss)}


def text_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns the ``next_token_metrics`` and ``bits_per_byte``, Σ −log₂ p / bytes, from Σ −log p, the number of
    predicted tokens and that of bytes.

    >>> import numpy as np
    >>> text_metrics(np.array([8 * math.log(2), 4, 8]))["bits_per_byte"]
    1.0
    """
    return next_token_metrics(sums[:2]) | {"bits_per_byte": float(sums[0]) / math.log(2) / max(1, float(sums[2]))}


def span_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, ``perplexity`` and ``accuracy`` in percent from Σ −log p, the number of right tokens and that
    of hidden tokens; loss and accuracy are NaN where nothing was hidden.
    """
    nats, right, hidden = map(float, sums)
    loss = nats / hidden if hidden else math.nan
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,  # the exponential of more overflows
        "accuracy": 100 * right / hidden if hidden else math.nan,
    }


def masked_metrics(sums: NDArray[Any]) -> Metrics:
    """Returns ``loss``, ``accuracy`` in percent and ``pseudo_perplexity`` from Σ −log p, the number of right tokens and
    that of hidden tokens, and Σ −log p and the number of tokens hidden one at a time; NaN where nothing was hidden.
    """
    nats, right, hidden, single_nats, single_hidden = map(float, sums)
    return {
        "loss": nats / hidden if hidden else math.nan,
        "accuracy": 100 * right / hidden if hidden else math.nan,
        "pseudo_perplexity": math.exp(single_nats / single_hidden) if single_hidden else math.nan,
    }
