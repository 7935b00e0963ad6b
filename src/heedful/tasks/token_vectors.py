"""Vectors of tokens from the tokens around them: truncated SVD of positive PMI (Levy and Goldberg 2014)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

WINDOW = 5  # tokens on each side that count as neighbours
SMOOTHING = 0.75  # power of the neighbours' frequencies (Levy, Goldberg and Dagan 2015, section 3.2)
CHUNK = 20_000  # texts whose pairs are in memory at once


def token_vectors(
    texts: Sequence[Sequence[int]], vocabulary: int, dim: int, special: Collection[int | None]
) -> np.ndarray:
    r"""Returns a vector for each token (vocabulary, dim), near those of tokens that have the same neighbours.

    .. math:: M_{ij} = \max\Bigl(0, \log \frac{n_{ij} \sum_k n_k^{0.75}}{n_i\, n_j^{0.75}}\Bigr) \approx U Σ V^⊤,
        \quad W = U \sqrt{Σ}

    n_ij is how often token j is at most 5 tokens from token i, and n_i its sum over j. W is scaled to a root mean
    square of 1 over the rows that are not 0: those of ``special`` tokens, and of tokens without neighbours, are.

    Args:
        texts: token ids of each text.
        vocabulary: number of tokens.
        dim: size of a vector.
        special: ids that count as no neighbours: padding, the unknown token, begin and end of a text; None has no
            meaning.

    >>> drinks, tools = [[4, 6], [5, 6], [4, 7], [5, 7]], [[8, 10], [9, 10], [8, 11], [9, 11]]
    >>> near = token_vectors(drinks + tools, 12, 4, special=[0])
    >>> bool(near[4] @ near[5] > 1 > abs(near[4] @ near[8]))
    True
    """
    from scipy.sparse import csr_matrix  # scikit-learn needs SciPy, too
    from sklearn.utils.extmath import randomized_svd

    counts = csr_matrix((vocabulary, vocabulary), dtype=np.float64)
    for first, second in _neighbours(texts, special):
        counts += csr_matrix((np.ones(len(first)), (first, second)), shape=counts.shape)
    counts = (counts + counts.T).tocoo()
    vectors = np.zeros((vocabulary, dim))
    n = np.bincount(counts.row, counts.data, vocabulary)
    smoothed = n**SMOOTHING
    pmi = np.log(counts.data * smoothed.sum() / (n[counts.row] * smoothed[counts.col]))
    positive = pmi > 0
    if not positive.any():
        return vectors
    matrix = csr_matrix((pmi[positive], (counts.row[positive], counts.col[positive])), shape=counts.shape)
    u, sigma, _ = randomized_svd(matrix, min(dim, vocabulary), random_state=0)
    vectors[:, : len(sigma)] = u * np.sqrt(sigma)
    has_vector = n > 0
    vectors[~has_vector] = 0
    return vectors / np.sqrt(np.square(vectors[has_vector]).mean())


def _neighbours(
    texts: Sequence[Sequence[int]], special: Collection[int | None]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields pairs of neighbouring tokens, each pair once, as two arrays of ids for some texts and one distance."""
    for start in range(0, len(texts), CHUNK):
        part = texts[start : start + CHUNK]
        ids = np.fromiter((token for text in part for token in text), dtype=np.int64)
        numbers = np.repeat(np.arange(len(part)), [len(text) for text in part])
        kept = ~np.isin(ids, [token for token in special if token is not None])
        ids, numbers = ids[kept], numbers[kept]
        for distance in range(1, WINDOW + 1):
            same_text = numbers[:-distance] == numbers[distance:]
            yield ids[:-distance][same_text], ids[distance:][same_text]
