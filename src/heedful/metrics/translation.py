"""Translation metrics against references, by the official scorer where there is one."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.example_scores import Metrics, Sums, overall
from heedful.metrics.registry import Metric

METRICS = (
    Metric("bleu", "BLEU", headline=True),
    Metric("chrf", "chrF"),
    Metric("ter", "TER", lower_is_better=True),
    Metric("exact_match", "exact match, %"),
)
# scripts that put no space between words, by the first word of their letters' Unicode names
UNSPACED = frozenset({"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"})
SPACED = 6  # letters per space below which texts of these scripts count as segmented
ORDERS, BETA = 6, 2  # chrF's largest n-gram order, and its weight of recall


def translation_metrics(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Returns BLEU, chrF and TER with sacreBLEU's signatures, and the exact match.

    Args:
        outputs: predictions, detokenised.
        references: one reference for each output.

    Returns:
        ``bleu``, ``chrf`` and ``ter`` (0–100; ``ter`` may exceed 100, lower is better), ``exact_match`` (percent of
        outputs that equal their reference, ignoring white space around them), and ``bleu_signature``,
        ``chrf_signature``, ``ter_signature``.
    """
    return {**overall(translation_scores(outputs, references)), **signatures()}


def translation_scores(
    outputs: Sequence[str],
    references: Sequence[str],
    counted: Sequence[bool] | None = None,
    *,
    ter: bool = True,
    lowercase: bool = False,
) -> Sums:
    """Returns per-example scores of translations: sacreBLEU's metrics for any selection of the examples.

    BLEU and TER are sacreBLEU's own counts and formulae (Papineni et al. 2002; Snover et al. 2006). chrF (Popović 2015)
    counts the character n-grams without spaces, n = 1 … 6: c_n in the output, r_n in the reference, m_n in both. P and
    R are the means of m_n / c_n and m_n / r_n over the n that both sides have, and chrF is 5 P R / (4 P + R).

    Args:
        outputs: predictions.
        references: one reference for each output.
        counted: True for the examples that count; the others add nothing. Default: all.
        ter: compute TER too, which takes some milliseconds for each sentence.
        lowercase: compare both sides in lower case, for a model that writes no capitals.
    """
    from sacrebleu.metrics import BLEU, TER

    if lowercase:
        outputs, references = ([text.lower() for text in side] for side in (outputs, references))
    words, edits = BLEU(), TER() if ter else None
    rows = zip(outputs, references, counted or [True] * len(outputs), strict=True)
    nothing = np.zeros(10 + 3 * ORDERS + 4)
    statistics = [_row(words, edits, *pair) if counts else nothing for *pair, counts in rows]
    return Sums(np.array(statistics).reshape(-1, len(nothing)), partial(_metrics, ter=ter))


def signatures(*, ter: bool = True, lowercase: bool = False) -> dict[str, str]:
    """Returns sacreBLEU's signatures of BLEU, chrF and TER: scores are comparable if their signatures are equal."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    references = [[""]]  # one reference, since the signature states the number
    kinds = {"bleu": BLEU(lowercase, references=references), "chrf": CHRF(lowercase=lowercase, references=references)}
    if ter:
        kinds["ter"] = TER(references=references)  # ignores case anyway
    return {f"{name}_signature": str(kind.get_signature()) for name, kind in kinds.items()}


def _row(words: Any, edits: Any, output: str, reference: str) -> list[float]:
    """Returns the statistics of one example: BLEU's counts, totals and lengths (10), chrF's c, r and m by order (18),
    TER's edits and length, 1 if the output equals the reference, and 1.
    """
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    bleu = words.corpus_score([output], [[reference]])
    ter = None if edits is None else edits.corpus_score([output], [[reference]])
    ngrams = [extract_all_char_ngrams(text, ORDERS) for text in (output, reference)]
    # orders that the reference is too short for are not counted in the output
    chars = [(a.total() if b else 0, b.total(), (a & b).total()) for a, b in zip(*ngrams, strict=True)]
    return [
        *(*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len),
        *chain.from_iterable(chars),
        *((0, 0) if ter is None else (ter.num_edits, ter.ref_length)),
        *(output.strip() == reference.strip(), 1),
    ]


def _metrics(sums: NDArray[Any], ter: bool) -> Metrics:
    from sacrebleu.metrics import BLEU

    *counts, sys_len, ref_len = (round(number) for number in sums[:10])
    edits, length, right, examples = sums[-4:].tolist()
    rate = 100 * edits / length if length else 100.0 * (edits > 0)
    return {
        "bleu": BLEU.compute_bleu(counts[:4], counts[4:], sys_len, ref_len, smooth_method="exp").score,
        "chrf": _chrf(sums[10:-4].reshape(ORDERS, 3)),
        **({"ter": rate} if ter else {}),
        "exact_match": 100 * right / max(1, examples),
    }


def _chrf(orders: NDArray[Any]) -> float:
    """Returns chrF from (outputs, references, both) counts of each order."""
    outputs, references, both = orders[(orders[:, :2] > 0).all(1)].T
    if not both.any():
        return 0.0
    precision, recall = (both / outputs).mean(), (both / references).mean()
    square = BETA**2
    return float(100 * (1 + square) * precision * recall / (square * precision + recall))


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of outputs that equal their reference, ignoring outer white space; 0 for no outputs."""
    right = [output.strip() == reference.strip() for output, reference in zip(outputs, references, strict=True)]
    return 100.0 * sum(right) / max(1, len(right))


def warnings_of(outputs: Sequence[str], references: Sequence[str]) -> list[str]:
    """Returns caveats of BLEU and TER for people: outputs in scripts without spaces, or outputs split into tokens.

    >>> warnings_of(["猫が好き"], ["猫が好きです"])[0].rpartition("; ")[2]
    'use chrF'
    """
    warnings = []
    if unspaced(references):
        warnings.append(
            "the references have no spaces between words, but BLEU (tok:13a) and TER count words between spaces; "
            "use chrF"
        )
    cut = sum(output.endswith(" .") for output in outputs)
    if cut >= 100:
        warnings.append(
            f"{cut:,} outputs end in a space and a full stop, like tokenised text; detokenise them before "
            "you compare BLEU with published scores"
        )
    return warnings


def unspaced(texts: Sequence[str]) -> bool:
    """Returns True if most letters are of scripts without spaces between words, such as Chinese, Japanese and Thai.

    Returns False for such texts if spaces separate their words.

    >>> unspaced(["我喜欢猫 和狗也很好"]), unspaced(["我 喜欢 猫 和 狗"]), unspaced(["I like cats"])
    (True, False, False)
    """
    scripts = [unicodedata.name(letter, "?").partition(" ")[0] for text in texts for letter in text if letter.isalpha()]
    own = sum(script in UNSPACED for script in scripts)
    spaces = sum(text.strip().count(" ") for text in texts)
    return 2 * own > len(scripts) and SPACED * spaces <= own
