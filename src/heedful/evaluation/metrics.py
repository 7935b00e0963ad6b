"""Metrics, by the official scorers where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def translation_metrics(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF with sacreBLEU's signatures, and the exact match.

    Args:
        outputs: what the model said, detokenised.
        references: what was wanted, one reference each.

    Returns:
        ``bleu`` and ``chrf`` (0–100), ``exact_match`` (0–100, percent of outputs equal to their reference, spaces at
        the ends aside), and ``bleu_signature``, ``chrf_signature``.
    """
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(list(outputs), [list(references)])
    chrf_score = chrf.corpus_score(list(outputs), [list(references)])
    return {
        "bleu": bleu_score.score,
        "chrf": chrf_score.score,
        "exact_match": exact_match(outputs, references),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Percent of outputs that equal their reference, spaces at the ends aside; 0 where there are none."""
    right = [output.strip() == reference.strip() for output, reference in zip(outputs, references, strict=True)]
    return 100.0 * sum(right) / max(1, len(right))
