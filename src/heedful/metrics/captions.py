"""Metrics of image captions, each against one reference or several: BLEU, CIDEr, ROUGE-L and exact match.

CIDEr is CIDEr-D (Vedantam et al. 2015, section 5), the variant of the COCO leaderboard and of ``pycocoevalcap``, in
percent: 100 times the number that ``pycocoevalcap`` returns, so that 120 here is 1.2 there. Words are in lower case,
without punctuation (``heedful.metrics.rouge.words``); ``pycocoevalcap`` leaves the words to its caller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.example_scores import Metrics, Sums
from heedful.metrics.registry import Metric
from heedful.metrics.rouge import rouge, words

METRICS = (Metric("cider", "CIDEr", headline=True),)
ORDERS, SIGMA = 4, 6.0  # n-grams of CIDEr-D, and the deviation of its penalty on another length
NGram = tuple[str, ...]


def cider(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Returns CIDEr-D of each output against its references, 0 to 1000.

    For n = 1 … 4, g(c) is the vector of the weights tf · (ln N − ln max(1, df)) of a text's n-grams, where N is the
    number of images and df the number of images with the n-gram in a reference. The score is the mean over n and over
    the references r of an image of

        1000 · e^(−(l_c − l_r)² / (2 · 6²)) · min(g(c), g(r)) · g(r) / (‖g(c)‖ ‖g(r)‖),

    with the lengths l in words. An n-gram that is in the references of all images has the weight 0: for a single image
    every score is 0.

    Args:
        outputs: one text for each image.
        references: the references of each image, at least one.

    >>> refs = [["a red circle above a blue square"], ["a green cross"]]
    >>> [round(score) for score in cider(["a red circle above a blue square", "a red cross"], refs)]
    [1000, 125]
    """
    texts = [[_ngrams(text) for text in of_image] for of_image in references]
    frequency = Counter(chain.from_iterable(set(chain.from_iterable(of_image)) for of_image in texts))
    images = math.log(len(texts)) if texts else 0.0
    idf = {ngram: images - math.log(count) for ngram, count in frequency.items()}
    scores = []
    for output, of_image in zip(outputs, texts, strict=True):
        candidate = _vectors(_ngrams(output), idf, images)
        similar = [_similarity(candidate, _vectors(reference, idf, images)) for reference in of_image]
        scores.append(1000 * sum(similar) / len(similar))
    return scores


Vectors = tuple[list[dict[NGram, float]], int]  # a vector for each n, and the number of words


def _ngrams(text: str) -> Counter[NGram]:
    tokens = words(text)
    starts = ((n, i) for n in range(1, ORDERS + 1) for i in range(len(tokens) - n + 1))
    return Counter(tuple(tokens[i : i + n]) for n, i in starts)


def _vectors(ngrams: Counter[NGram], idf: dict[NGram, float], unseen: float) -> Vectors:
    vectors: list[dict[NGram, float]] = [{} for _ in range(ORDERS)]
    for ngram, count in ngrams.items():
        vectors[len(ngram) - 1][ngram] = count * idf.get(ngram, unseen)
    return vectors, sum(count for ngram, count in ngrams.items() if len(ngram) == 1)


def _similarity(candidate: Vectors, reference: Vectors) -> float:
    total = 0.0
    for own, other in zip(candidate[0], reference[0], strict=True):
        norm = math.sqrt(sum(v * v for v in own.values()) * sum(v * v for v in other.values()))
        if norm:
            common = own.keys() & other.keys()
            # fsum is exact: other sums depend on the order of a set, and so on the hashes of its n-grams
            total += math.fsum(min(own[ngram], other[ngram]) * other[ngram] for ngram in common) / norm
    return total / ORDERS * math.exp(-((candidate[1] - reference[1]) ** 2) / (2 * SIGMA**2))


def caption_scores(
    outputs: Sequence[str], references: Sequence[Sequence[str]], counted: Sequence[bool] | None = None
) -> Sums:
    """Returns per-example scores of captions: ``bleu``, ``cider``, ``rougeL`` and ``exact_match``, in percent.

    BLEU is sacreBLEU's with several references (Papineni et al. 2002). ROUGE-L is the F1 against the closest reference
    (Lin 2004). An output is exact if it equals a reference, ignoring outer white space.

    Args:
        outputs: a text for each row.
        references: the references of each row's image.
        counted: True for one row of each image, which counts; the others add nothing. Default: all.
    """
    from sacrebleu.metrics import BLEU

    bleu, rows = BLEU(), list(zip(outputs, references, counted or [True] * len(outputs), strict=True))
    chosen = [(output, of_image) for output, of_image, counts in rows if counts]
    consensus = iter(cider([output for output, _ in chosen], [of_image for _, of_image in chosen]))
    statistics = np.zeros((len(rows), 14))
    for row, (output, of_image, counts) in zip(statistics, rows, strict=True):
        if counts:
            counted_words = bleu.corpus_score([output], [[reference] for reference in of_image])
            row[:10] = *counted_words.counts, *counted_words.totals, counted_words.sys_len, counted_words.ref_len
            overlap = max(rouge(output, reference)["rougeL"].f1 for reference in of_image)
            row[10:] = next(consensus), overlap, output.strip() in [text.strip() for text in of_image], 1
    return Sums(statistics, _metrics)


def _metrics(sums: NDArray[Any]) -> Metrics:
    from sacrebleu.metrics import BLEU

    *counts, sys_len, ref_len = (round(number) for number in sums[:10])
    consensus, overlap, exact, images = sums[10:].tolist()
    images = max(1, images)
    return {
        "bleu": BLEU.compute_bleu(counts[:4], counts[4:], sys_len, ref_len, smooth_method="exp").score,
        "cider": consensus / images,
        "rougeL": 100 * overlap / images,
        "exact_match": 100 * exact / images,
    }


def signature(references: Sequence[Sequence[str]]) -> str:
    """Returns sacreBLEU's signature of BLEU for the references of all images."""
    from sacrebleu.metrics import BLEU

    most, least = max(map(len, references)), min(map(len, references))
    streams: Any = [["", ""] for _ in range(most)]
    streams[-1][1] = "" if least == most else None  # sacreBLEU's sign of a varying number
    return str(BLEU(references=streams).get_signature())
