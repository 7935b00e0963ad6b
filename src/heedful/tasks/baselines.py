"""Simple methods as baselines: linear models, kernel ridge regression, nearest neighbours, n-grams, compression.

Fixed maximum numbers of rows, characters and pixels keep each within seconds; the clock limits none of them.
"""

from __future__ import annotations

import lzma
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data import LazyImage, Row, Rows
from heedful.data.image_transforms import resize
from heedful.errors import HeedfulError
from heedful.metrics.classification import best_threshold
from heedful.metrics.rouge import words

SIDE = 32  # pixels to which larger images are reduced
IMAGES = 10_000  # maximum number of training images of `nearest_images`
KERNEL_IMAGES, KERNEL_PIXELS = 5_000, 1_024  # maximum training images of `kernel_images`, and values of an image
KERNEL_RIDGE = 0.3  # λ of `kernel_images`
BLOCK = 250  # images or texts that are compared with all known ones at a time
TEXTS, RIDGE_TEXTS = 20_000, 10_000  # maximum number of training texts of `nearest_texts`, of `ridge_text`
# of `linear_text`: maximum number of training texts, and that times the labels; and those of its quick variant
LINEAR_TEXTS, QUICK_LINEAR_TEXTS = (50_000, 3_000_000), (20_000, 600_000)
CHARACTERS = 2_000_000  # maximum number of characters of all training texts from which n-grams are made
BEGINNING = 500  # maximum characters of a text of `nearest_texts`
TYPICAL = 4  # number of candidates for the best constant text, beside the most frequent one
PENALTIES = (0.3, 1.0, 3.0, 10.0)  # of `ridge_text`
READ = 1 << 23  # maximum number of bytes that xz reads first
LABELLED, RIDGE = 5000, 0.1  # maximum number of training texts of `ridge_labels`, and its λ
QUICK_LABELLED = 2000  # of its quick variant
CLASSES = 100  # number of labels above which `linear_text` uses naive Bayes
NEIGHBORS = ((), (1,), (-1,), (1, 2), (-2, -1), (-1, 1))  # of `MaskedNGrams`: offsets of each context's tokens
DISCOUNT = 0.85  # of counts; on Shakespeare and Wikipedia a lower loss than 0.75, 0.95, or estimated from the counts
MASKED_TOKENS, MASKED_BLOCK = 1 << 21, 1 << 16  # maximum number of its training tokens, read in blocks
PAIRS, PAIR_COST = 10_000, 1.0  # of `linear_rewards`: maximum number of training pairs, inverse of the penalty
CODE_BITS = 62  # maximum size of an n-gram as a number


def linear_text(
    texts: Sequence[str],
    labels: Sequence[tuple[str, ...]],
    new_texts: Sequence[str],
    most: tuple[int, int] = LINEAR_TEXTS,
) -> tuple[str, list[tuple[str, ...]]]:
    """Returns the name of the method and the label that a linear model predicts for each of ``new_texts``.

    The model is a linear support vector machine on words, pairs of words and character trigrams, which tell languages
    and inflected words apart (scikit-learn's ``TfidfVectorizer`` and ``LinearSVC``). For more than 100 labels
    complement naive Bayes (Rennie et al. 2003) is used instead, whose time hardly depends on the number of labels.

    Args:
        texts: training texts.
        labels: the label of each training text, as a tuple.
        new_texts: the texts to label.
        most: maximum number of training texts, which are evenly spaced; and with a support vector machine of these
            times the labels, since its time grows with the product.
    """
    number = len({*labels})
    chosen = evenly_spaced(len(texts), min(most[0], most[1] // number) if number <= CLASSES else most[0])
    known, new = _words_and_characters([texts[i] for i in chosen], new_texts, lengths=(3, 3))
    own = [labels[i][0] for i in chosen]
    if len({*own}) == 1:
        return f"the label {own[0]}", [(own[0],)] * len(new_texts)
    if number > CLASSES:
        name, model = "naive Bayes", sklearn_module("naive_bayes").ComplementNB(alpha=0.1)
    else:
        name, model = "a linear SVM", sklearn_module("svm").LinearSVC(tol=0.05, max_iter=30, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more steps might gain a little: it is a baseline
        predicted = model.fit(known, own).predict(new)
    return f"{name} on words and character n-grams", [(str(label),) for label in predicted]


def ridge_labels(
    texts: Sequence[str], labels: Sequence[tuple[str, ...]], new_texts: Sequence[str], most: int = LABELLED
) -> tuple[str, list[tuple[str, ...]]]:
    """Returns the name of the method and the labels, any number a text, that ridge regression predicts.

    It is regression on the labels' indicators Y (n, labels) in its dual form, one solution for all labels, however many
    there are: α = (K + λ I)⁻¹ (Y − ȳ) with K = X Xᵀ of the TF-IDF vectors X and λ = 0.1. A label is predicted from the
    threshold with the highest micro F1 of the leave-one-out predictions Y − α / diag (K + λ I)⁻¹ (Rifkin and Lippert
    2007, section 4). At most ``most`` training texts are used, evenly spaced: time and memory grow with their square.
    """
    step = -(-len(texts) // most)
    texts, labels = texts[::step], labels[::step]
    names = sorted({name for own in labels for name in own})
    known, new = _tf_idf(texts, new_texts)
    truth = np.array([[name in own for name in names] for own in labels], dtype=np.float64)
    mean = truth.mean(0)
    inverse = np.linalg.inv((known @ known.T).toarray() + RIDGE * np.eye(len(texts)))
    weights = inverse @ (truth - mean)
    threshold = best_threshold([(truth, truth - weights / np.diag(inverse)[:, None])])
    predicted = list[tuple[str, ...]]()
    for first in range(0, len(new_texts), LABELLED):  # of all new texts at once the products would fill the memory
        flags = (new[first : first + LABELLED] @ known.T) @ weights + mean >= threshold
        predicted += [tuple(name for name, is_label in zip(names, row, strict=True) if is_label) for row in flags]
    return f"TF-IDF and ridge regression on {len(texts):,} texts", predicted


def _tf_idf(texts: Sequence[str], new_texts: Sequence[str]) -> tuple[Any, Any]:
    """Returns the vectors of ``texts`` and ``new_texts``, sparse (N, words and pairs of words)."""
    words = sklearn_module("feature_extraction.text").TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    try:
        return words.fit_transform(texts), words.transform(new_texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError(
            "no training text contains a word, so --baseline has nothing to learn; leave --baseline out"
        ) from error


def ridge_text(texts: Sequence[str], numbers: Sequence[float], new_texts: Sequence[str]) -> NDArray[np.float64]:
    """Returns the numbers that ridge regression on words and character n-grams predicts for ``new_texts``.

    It is fitted to ``texts`` and their standardised ``numbers`` (scikit-learn's ``Ridge``). Its penalty α is 0.3, 1, 3
    or 10: that with the lowest squared error on every fifth text when fitted to the others. At most 10,000 training
    texts are used, evenly spaced.
    """
    chosen = evenly_spaced(len(texts), RIDGE_TEXTS)
    known, new = _words_and_characters([texts[i] for i in chosen], new_texts, lengths=(2, 4))
    true = np.asarray(numbers, dtype=np.float64)[chosen]
    mean, deviation = true.mean(), true.std() or 1.0
    true = (true - mean) / deviation
    is_held = np.arange(len(true)) % 5 == 4
    kept, held = np.flatnonzero(~is_held), np.flatnonzero(is_held)

    def predicted(penalty: float, rows: NDArray[np.int64], vectors: Any) -> NDArray[np.float64]:
        model = sklearn_module("linear_model").Ridge(alpha=penalty, solver="lsqr").fit(known[rows], true[rows])
        numbers: NDArray[np.float64] = model.predict(vectors)
        return numbers

    def error(penalty: float) -> float:
        return float(np.square(predicted(penalty, kept, known[held]) - true[held]).sum())

    penalty = min(PENALTIES, key=error) if len(held) > 1 else 1.0
    return predicted(penalty, np.arange(len(true)), new) * deviation + mean


def linear_rewards(
    pairs: Sequence[tuple[str, str, str]], new_pairs: Sequence[tuple[str, str, str]]
) -> NDArray[np.float64]:
    """Returns linear rewards (N, 2) of the two answers of each of ``new_pairs``: (prompt, answer, answer).

    The reward is w · x. The features x of an answer are its TF-IDF vector of words, pairs of words and character
    trigrams, its log length in characters, and the product of its vector with its prompt's. The weights w are those of
    logistic regression on x_w − x_l (Bradley and Terry's model; scikit-learn's ``LogisticRegression``) of ``pairs``,
    (prompt, chosen answer, rejected answer), of which at most 10,000 are used, evenly spaced.

    >>> pairs = [("Tea ?", "Yes please .", "No ."), ("Milk ?", "Yes do .", "No never .")] * 5
    >>> ((no, yes),) = linear_rewards(pairs, [("Salt ?", "No thanks .", "Yes thanks .")])
    >>> bool(yes > no)
    True
    """
    prompts, chosen, rejected = zip(*(pairs[i] for i in evenly_spaced(len(pairs), PAIRS)), strict=True)
    new_prompts, first, second = zip(*new_pairs, strict=True)
    texts = (chosen, rejected, prompts, first, second, new_prompts)
    answers, others = _words_and_characters([*chosen, *rejected], [*chain(*texts[2:])], lengths=(3, 3))
    ends = np.cumsum([0, *map(len, texts)]).tolist()
    stacked = import_module("scipy.sparse").vstack([answers, others]).tocsr()
    vectors = [stacked[start:end] for start, end in pairwise(ends)]

    def features(side: int, prompt: int) -> Any:
        likeness = vectors[side].multiply(vectors[prompt]).sum(1)
        lengths = np.log1p([len(text) for text in texts[side]])
        return import_module("scipy.sparse").hstack([vectors[side], np.column_stack([likeness, lengths])]).tocsr()

    signs = np.where(np.arange(len(chosen)) % 2, -1.0, 1.0)  # logistic regression needs both classes
    differences = (features(0, 2) - features(1, 2)).multiply(signs[:, None]).tocsr()
    model = sklearn_module("linear_model").LogisticRegression(
        C=PAIR_COST, fit_intercept=False, solver="liblinear", random_state=0
    )
    weights = model.fit(differences, signs).coef_[0] if len(signs) > 1 else np.asarray(differences.sum(0))[0]
    return np.stack([features(side, 5) @ weights for side in (3, 4)], axis=1)


def nearest_texts(texts: Sequence[str], new_texts: Sequence[str]) -> list[int]:
    """Returns the index of the training text that is most similar to each of ``new_texts``.

    The similarity is the cosine of TF-IDF vectors of words and character trigrams, of the first 500 characters. At most
    20,000 training texts are used, evenly spaced; of equal ones the first.

    >>> nearest_texts(["a red house", "the blue sky", "8 May"], ["the sky is blue", "9 May"])
    [1, 2]
    """
    chosen = evenly_spaced(len(texts), TEXTS)
    known, new = _words_and_characters(
        [texts[i][:BEGINNING] for i in chosen], [text[:BEGINNING] for text in new_texts], lengths=(3, 3)
    )
    nearest = list[int]()
    for first in range(0, new.shape[0], BLOCK):
        similarities = (new[first : first + BLOCK] @ known.T).toarray()
        nearest += [chosen[place] for place in similarities.argmax(1)]
    return nearest


def constant_texts(texts: Sequence[str]) -> list[str]:
    """Returns candidates for the best constant output: the most frequent text, and those most like all ``texts``.

    The latter are the texts with the highest mean similarity to all, as of ``nearest_texts``.

    >>> constant_texts(["yes", "no", "yes"])
    ['yes', 'no']
    """
    ((frequent, _),) = Counter(texts).most_common(1)
    sample = list(dict.fromkeys(texts[i] for i in evenly_spaced(len(texts), TEXTS)))
    try:
        vectors, _ = _words_and_characters([text[:BEGINNING] for text in sample], [], lengths=(3, 3))
    except HeedfulError:
        return [frequent]
    similar = np.asarray(vectors @ vectors.mean(0).T).ravel()
    return list(dict.fromkeys([frequent, *(sample[i] for i in np.argsort(-similar, kind="stable")[:TYPICAL])]))


def _words_and_characters(texts: Sequence[str], new_texts: Sequence[str], lengths: tuple[int, int]) -> tuple[Any, Any]:
    """Returns the TF-IDF vectors of ``texts`` and ``new_texts``: words, pairs of words, and character n-grams.

    Words are those of ``heedful.metrics.rouge.words``, single characters in scripts without spaces. Character n-grams,
    of the given shortest and longest length, are of a word with a space on either side. Of long texts they are those
    of the first characters, at most two million of all texts. Either half has length 1.
    """
    most = max(1, CHARACTERS // max(1, len(texts)))
    vectorizer, hstack = sklearn_module("feature_extraction.text").TfidfVectorizer, import_module("scipy.sparse").hstack
    halves = (
        vectorizer(tokenizer=words, token_pattern=None, lowercase=False, ngram_range=(1, 2), dtype=np.float32),
        vectorizer(analyzer="char_wb", ngram_range=lengths, dtype=np.float32),
    )
    vectors = []
    beginnings = [[text[:most] for text in side] for side in (texts, new_texts)]
    for half, (old, new) in zip(halves, ((texts, new_texts), beginnings), strict=True):
        try:
            known_half = half.fit_transform(old)
            vectors.append((known_half, half.transform(new) if len(new) else known_half[:0]))
        except ValueError:  # an empty vocabulary: texts of punctuation have no words
            continue
    if not vectors:
        raise HeedfulError("no training text contains a character, so --baseline has nothing to learn; leave it out")
    known_halves, new_halves = zip(*vectors, strict=True)
    return hstack(known_halves).tocsr(), hstack(new_halves).tocsr()


def evenly_spaced(count: int, most: int) -> list[int]:
    """Returns the indices of at most ``most`` of ``count`` items, at equal distances.

    >>> evenly_spaced(3, 5), evenly_spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    indices: list[int] = np.linspace(0, count - 1, min(count, most)).astype(np.int64).tolist()
    return indices


def word_vectors(texts: Sequence[str], *new_texts: Sequence[str]) -> list[Any]:
    """Returns the TF-IDF vectors of texts: for each list in ``new_texts`` a sparse array (N, words).

    Words and document frequencies are those of ``texts``. The weight of a word is tf · (ln((1 + n) / (1 + df)) + 1),
    where n is the number of ``texts`` and df the number of ``texts`` with the word. Each row is scaled to length 1
    (scikit-learn's ``TfidfVectorizer``).
    """
    words = sklearn_module("feature_extraction.text").TfidfVectorizer(token_pattern=r"(?u)[^\W_]+")
    try:
        words.fit(texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError(
            "no training text contains a word, so --baseline has nothing to learn; leave --baseline out"
        ) from error
    return [words.transform(part) for part in new_texts]


def kernel_images(train: Rows, new: Rows, channels: Literal[1, 3], side: int) -> tuple[str, list[str]]:
    """Returns the name of the method and the labels that kernel ridge regression on pixels predicts for ``new``.

    It is regression on the labels' indicators Y (n, labels), α = (K + λ I)⁻¹ Y with λ = 0.3 and the kernel
    K = exp(−‖x − x'‖² / (d · var x)) of images x of d values. The label with the highest value is predicted
    (scikit-learn's ``KernelRidge``). Images are resized to at most 32 × 32 grey or 18 × 18 colour pixels. At most 5,000
    training images are used, evenly spaced.
    """
    sample = [train[i] for i in evenly_spaced(len(train), KERNEL_IMAGES)]
    side = min(side, math.isqrt(KERNEL_PIXELS // channels))
    labels, targets = np.unique([row.values["label"] for row in sample], return_inverse=True)
    known = _pixels(sample, channels, side)
    scale = 1 / (known.shape[1] * (float(known.var()) or 1.0))
    model = sklearn_module("kernel_ridge").KernelRidge(alpha=KERNEL_RIDGE, kernel="rbf", gamma=scale)
    model.fit(known, np.eye(len(labels), dtype=np.float32)[targets])
    predicted = list[str]()
    for first in range(0, len(new), BLOCK):
        values = model.predict(_pixels(new[first : first + BLOCK], channels, side))
        predicted += labels[values.argmax(1)].tolist()
    number = f" of {len(sample):,} images" if len(sample) < len(train) else ""
    return f"kernel ridge regression on {side} × {side} pixels{number}", predicted


def nearest_images(train: Rows, new: Rows, channels: Literal[1, 3], side: int) -> list[int]:
    """Returns the index of the training image that is nearest to each of ``new``, by the distance of their pixels.

    Images are resized to ``side`` × ``side`` pixels, at most 32. At most 10,000 training images are used, evenly
    spaced.
    """
    step, side = -(-len(train) // IMAGES), min(side, SIDE)
    known, vectors = _pixels(train[::step], channels, side), _pixels(new, channels, side)
    lengths = (known**2).sum(1)
    nearest = [int((lengths - 2 * known @ vector).argmin()) for vector in vectors]
    return [step * place for place in nearest]


def _pixels(rows: Sequence[Row], channels: Literal[1, 3], side: int) -> NDArray[np.float32]:
    """Returns the pixels of images resized to ``side`` × ``side``, a vector for each, from 0 to 1."""
    vectors = np.empty((len(rows), side * side * channels), dtype=np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        image: LazyImage = row.values["image"]
        vector[:] = resize(image.pixels(channels), (side, side)).ravel()
    vectors /= 255
    return vectors


class NGrams:
    """N-gram model of tokens with the interpolation of Witten and Bell (1991).

    With N(h) the count of a history h of tokens, T(h) the number of distinct tokens that followed it, and h' the
    history without its first token: p(w | h) = (N(hw) + T(h) p(w | h')) / (N(h) + T(h)). For an empty history p(w | h')
    is 1 / vocabulary.

    Args:
        tokens: (N,) training tokens.
        vocabulary: size of the vocabulary.
        order: maximum length of an n-gram; less for a vocabulary whose n-grams do not fit into 62 bits.

    >>> model = NGrams(np.array([0, 1, 0, 1, 0, 1]), vocabulary=2, order=2)
    >>> first, second, _ = model.nats(np.array([0, 1, 0]))
    >>> bool(second < first)
    True
    """

    def __init__(self, tokens: NDArray[Any], vocabulary: int, order: int = 3) -> None:
        self.vocabulary = max(2, vocabulary)
        self.order = max(1, min(order, int(CODE_BITS / np.log2(self.vocabulary))))
        self._counts: list[tuple[NDArray[np.int64], ...]] = []  # of each order: n-grams, counts, histories, N, T
        for order in range(1, self.order + 1):
            grams, counts = np.unique(self._codes(tokens, order), return_counts=True)
            histories, first = np.unique(grams // self.vocabulary, return_index=True)
            totals = np.add.reduceat(counts, first) if len(first) else counts
            self._counts.append((grams, counts, histories, totals, np.diff([*first, len(grams)])))

    def nats(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Returns −ln p of each token given the tokens before it, an array (N,)."""
        p = np.full(len(tokens), 1 / self.vocabulary)
        for size, (grams, counts, histories, total, kinds) in enumerate(self._counts, 1):
            codes = self._codes(tokens, size)
            gram_count = _lookup(grams, counts, codes)
            history_count = _lookup(histories, total, codes // self.vocabulary)
            distinct = _lookup(histories, kinds, codes // self.vocabulary)
            part = p[size - 1 :]
            known = history_count > 0
            numerator = gram_count[known] + distinct[known] * part[known]
            part[known] = numerator / (history_count[known] + distinct[known])
        return -np.log(p)

    def _codes(self, tokens: NDArray[Any], order: int) -> NDArray[np.int64]:
        """Returns the n-grams (N − order + 1,) as numbers in base ``vocabulary``."""
        size = max(0, len(tokens) - order + 1)
        code = np.zeros(size, dtype=np.int64)
        for offset in range(order):
            code = code * self.vocabulary + np.asarray(tokens[offset : offset + size], dtype=np.int64)
        return code


class MaskedNGrams:
    """N-gram model of masked tokens, given their neighbors on both sides, with absolute discounting.

    A token w is predicted from contexts c of up to two neighbors, from no neighbor to one on either side
    (``NEIGHBORS``). Each context's estimate is interpolated with that of the context before it:
    p(w | c) = (max(N(cw) − D, 0) + D T(c) p(w | c')) / N(c), with the count N(c) of a context, the number T(c) of
    distinct tokens in it, and the discount D = 0.85 (Ney, Essen and Kneser 1994). The first estimate is uniform. A
    context that was not counted, or has a token that is masked itself, is skipped. The probabilities of all ordinary
    tokens sum to 1.

    Args:
        tokens: (N,) training tokens; of more than two million, evenly spaced blocks are used.
        ordinary: (V,) boolean, True for tokens that can be masked.

    >>> model = MaskedNGrams(np.array([0, 1, 2, 0, 1, 2, 0]), np.array([True, True, True]))
    >>> around = {-2: np.array([-1]), -1: np.array([0]), 1: np.array([2]), 2: np.array([-1])}
    >>> model.likeliest(around).tolist()
    [1]
    """

    def __init__(self, tokens: NDArray[Any], ordinary: NDArray[np.bool_]) -> None:
        if len(tokens) > MASKED_TOKENS:
            firsts = np.linspace(0, len(tokens) - MASKED_BLOCK, MASKED_TOKENS // MASKED_BLOCK).astype(np.int64)
            tokens = np.concatenate([tokens[first : first + MASKED_BLOCK] for first in firsts])
        self.vocabulary, self.uniform = len(ordinary), ordinary / ordinary.sum()
        longest = CODE_BITS / math.log2(max(2, self.vocabulary)) - 1
        tokens = np.asarray(tokens, dtype=np.int64)
        counted = [_ContextCounts.of(tokens, ordinary, part) for part in NEIGHBORS if len(part) <= longest]
        self._contexts = [counts for counts in counted if len(counts.grams)]

    def p(self, neighbors: Mapping[int, NDArray[np.int64]], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the probabilities (N,) of ``tokens`` (N,).

        ``neighbors`` has the tokens (N,) at the offsets −2, −1, 1 and 2 from each; −1 for a token that is not known.
        """
        p = self.uniform[tokens]
        for counts in self._contexts:
            context = self._codes(counts.offsets, neighbors, len(tokens))
            total = _lookup(counts.histories, counts.totals, context)
            count = _lookup(counts.grams, counts.counts, context * self.vocabulary + tokens)
            kinds = _lookup(counts.histories, counts.kinds, context)
            own = np.maximum(count - DISCOUNT, 0) + DISCOUNT * kinds * p
            p = np.divide(own, total, out=p, where=total > 0)
        return p

    def likeliest(self, neighbors: Mapping[int, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Returns the likeliest token (N,) at each place, of those that are most frequent in one of its contexts."""
        size = len(neighbors[1])
        tokens = np.full(size, int(self.uniform.argmax()), dtype=np.int64)
        best = self.p(neighbors, tokens)
        for counts in self._contexts:
            context = self._codes(counts.offsets, neighbors, size)
            is_known = _lookup(counts.histories, counts.totals, context) > 0
            candidate = np.where(is_known, _lookup(counts.histories, counts.frequent, context), tokens)
            p = self.p(neighbors, candidate)
            tokens, best = np.where(p > best, candidate, tokens), np.maximum(p, best)
        return tokens

    def _codes(self, offsets: tuple[int, ...], neighbors: Mapping[int, NDArray[np.int64]], size: int) -> Any:
        """Returns contexts (N,) as numbers in base ``vocabulary``, −1 for those with a token that is not known."""
        codes, is_known = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool)
        for offset in offsets:
            codes, is_known = codes * self.vocabulary + neighbors[offset], is_known & (neighbors[offset] >= 0)
        return np.where(is_known, codes, -1)


class _ContextCounts(NamedTuple):
    """Counts of the tokens in contexts of neighbors at ``offsets``; n-grams and contexts are sorted numbers."""

    offsets: tuple[int, ...]
    grams: NDArray[np.int64]  # context and token
    counts: NDArray[np.int64]
    histories: NDArray[np.int64]  # contexts
    totals: NDArray[np.int64]
    kinds: NDArray[np.int64]  # number of distinct tokens
    frequent: NDArray[np.int64]  # most frequent token

    @classmethod
    def of(cls, tokens: NDArray[np.int64], ordinary: NDArray[np.bool_], offsets: tuple[int, ...]) -> _ContextCounts:
        vocabulary, first, last = len(ordinary), -min(0, *offsets, 0), max(0, *offsets, 0)
        end = max(first, len(tokens) - last)
        codes = np.zeros(end - first, dtype=np.int64)
        for offset in (*offsets, 0):
            codes = codes * vocabulary + tokens[first + offset : end + offset]
        grams, counts = np.unique(codes[ordinary[tokens[first:end]]], return_counts=True)
        histories, starts = np.unique(grams // vocabulary, return_index=True)
        totals = np.add.reduceat(counts, starts) if len(starts) else counts
        by_count = np.lexsort((-counts, grams // vocabulary))
        kinds, frequent = np.diff([*starts, len(grams)]), grams[by_count[starts]] % vocabulary
        return cls(offsets, grams, counts, histories, totals, kinds, frequent)


def _lookup(keys: NDArray[np.int64], values: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the value of each code that is among the sorted ``keys``, 0 for any other code."""
    if not len(keys):
        return np.zeros(len(codes), dtype=np.int64)
    indices = np.minimum(np.searchsorted(keys, codes), len(keys) - 1)
    return np.where(keys[indices] == codes, values[indices], 0)


def xz_bits_per_byte(train_texts: Sequence[str], texts: Sequence[str]) -> float:
    """Returns the bits per byte that xz (LZMA2, preset 9) needs for ``texts`` after it has compressed ``train_texts``.

    This is 8 (|xz(training texts, texts)| − |xz(training texts)|) / |texts|, with the last 8 MiB of the training texts.
    A line end closes each text, as the end token does for a language model.

    >>> same = xz_bits_per_byte(["abc" * 100], ["abc" * 100])
    >>> same < xz_bits_per_byte(["xyz" * 100], ["abc" * 100])
    True
    """
    train, new = (
        b"".join(text.encode("utf-8", "surrogatepass") + b"\n" for text in part) for part in (train_texts, texts)
    )
    train = train[-READ:]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return 8 * (_compressed_size(train + new) - _compressed_size(train)) / size


def _compressed_size(data: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]
    return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))


def sklearn_module(module: str) -> Any:
    """Imports a module of scikit-learn."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise HeedfulError("--baseline needs scikit-learn for this task; pip install scikit-learn") from error
