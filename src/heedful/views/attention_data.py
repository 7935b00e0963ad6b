"""Data of attention maps: checks weights, keeps a window and an overview of long texts, merges pieces to words.

Letters in shapes: L layers, H heads, T queries (target), S keys (source), t × s the window's, r × c blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError

Weights = np.ndarray[Any, np.dtype[np.float64]]

SPECIAL_TOKEN = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z]+\])")  # special tokens: </s>, <|endoftext|>, [SEP]
AXIS_NAMES = {"L": "layers", "H": "heads", "T": "target", "S": "source"}
SLACK = 0.02  # excess over 1 that is allowed for sums of pieces in bfloat16


def checked_weights(source: Sequence[str], target: Sequence[str], weights: Any, dims: str) -> Weights:
    """Returns attention weights as a float64 array with the axes ``dims`` ("LHTS" or "TS"), clipped to [0, 1].

    ``weights`` may be nested lists, an array, a tensor of any device and precision, or a sequence of these. L are
    layers, H heads, T target and S source pieces. Raises ``HeedfulError``
    for an empty sentence, a shape that does not fit the sentences, or a weight outside [0, 1].
    """
    array = as_array(weights)
    lengths = {"T": len(target), "S": len(source)}
    expected = "(" + ", ".join(str(lengths.get(dim, dim)) for dim in dims) + ")"
    if not source or not target:
        raise HeedfulError(
            f"cannot draw {len(source)} source and {len(target)} target pieces; give at least one of each"
        )
    if array.ndim != len(dims) or array.shape[-2:] != (len(target), len(source)) or not array.size:
        raise HeedfulError(
            f"attention weights of shape {array.shape} do not fit {len(target)} target and {len(source)} source pieces;"
            f" give {expected}, in the order {', '.join(AXIS_NAMES[dim] for dim in dims)}"
        )
    invalid_weights = array[~((array >= 0) & (array <= 1 + SLACK))]
    if invalid_weights.size:
        raise HeedfulError(
            f"attention weight {invalid_weights.flat[0]:g} is not in 0..1; give the weights after the softmax"
        )
    return array.astype(np.float64).clip(0, 1)


def check_range(weights: Any) -> None:
    """Raises ``HeedfulError`` for a weight below 0, or above 1 by more than ``SLACK``."""
    if not (np.min(weights) >= 0 and np.max(weights) <= 1 + SLACK):
        raise HeedfulError("an attention weight is not in 0..1; give the weights after the softmax")


def as_array(weights: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns weights as float32 or float64, from nested lists, arrays, tensors, or a sequence of these.

    Tensors may be on any device and of any precision; narrower types become float32.
    """
    if hasattr(weights, "detach"):  # a tensor: numpy supports neither other devices nor bfloat16
        weights = weights.detach().cpu()
        weights = weights.float().numpy() if weights.element_size() < 4 else weights.numpy()
    elif isinstance(weights, list | tuple):
        try:
            return np.stack([as_array(part) for part in weights])
        except ValueError as error:
            raise HeedfulError(
                f"the layers' attention weights differ in shape ({error}); give the same shape for all layers"
            ) from None
    array = np.asarray(weights)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def word_starts(pieces: Sequence[str]) -> list[bool]:
    """Returns one boolean per piece: True if the piece begins a word.

    A piece begins a word if it is the first, has a leading space, is a special token (``</s>``) or follows a special
    token. If no piece after the first has a leading space (single words, scripts without spaces), every piece is a
    word.
    """
    if not any(piece[:1].isspace() for piece in pieces[1:]):
        return [True] * len(pieces)
    is_special = [SPECIAL_TOKEN.fullmatch(piece) is not None for piece in pieces]
    return [i == 0 or piece[:1].isspace() or is_special[i] or is_special[i - 1] for i, piece in enumerate(pieces)]


def merge_words(source: Sequence[str], target: Sequence[str], weights: Any) -> tuple[list[str], list[str], Weights]:
    """Returns source words, target words, and their weights: summed over source pieces, averaged over target pieces.

    ``w(u, v) = 1/|u| Σ_{t∈u} Σ_{s∈v} w(t, s)``, so that the sums of rows do not change. ``weights`` is (T, S),
    (H, T, S) or (L, H, T, S). The words keep their leading space, as pieces do. Special tokens such as
    ``</s>`` and sentences without spaces are not merged. Raises ``HeedfulError`` as ``checked_weights`` does.

    >>> merge_words(["Tues", "day", " 4"], ["mar", "di"], [[0.5, 0.5, 0.0], [0.1, 0.3, 0.6]])[2]
    array([[1. , 0. ],
           [0.4, 0.6]])
    """
    array = as_array(weights)
    array = checked_weights(source, target, array, "LHTS"[-array.ndim :])
    source_starts, target_starts = np.flatnonzero(word_starts(source)), np.flatnonzero(word_starts(target))
    summed = np.add.reduceat(array, source_starts, axis=-1)
    counts = np.diff(target_starts, append=len(target))
    merged = np.add.reduceat(summed, target_starts, axis=-2) / counts[:, None]
    return _joined(source, source_starts), _joined(target, target_starts), merged


def _joined(pieces: Sequence[str], starts: Any) -> list[str]:
    ends = [*starts[1:], len(pieces)]
    return ["".join(pieces[start:end]) for start, end in zip(starts, ends, strict=True)]


def most_informative_layer(weights: Weights) -> int:
    """Returns the index of the layer whose attention, averaged over heads, is the most informative.

    ``weights`` is (L, H, T, S). The measure is the mutual information of target and source, ``1/T Σ_t Σ_s p(s|t)
    log(p(s|t) / p(s))``: 0 for equal rows (uniform, or all on the end token), ``log T`` for a clean alignment.
    """
    rows = weights.mean(axis=1)
    rows = rows / np.maximum(rows.sum(axis=-1, keepdims=True), 1e-12)
    ratio = rows / np.maximum(rows.mean(axis=1, keepdims=True), 1e-12)
    information = (rows * np.log(np.maximum(ratio, 1e-12))).sum(axis=-1).mean(axis=-1)
    return int(information.argmax())


Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """Attention weights after the softmax, with the pieces of queries and keys.

    ``weights[l, h, i, j]`` is the weight of query ``rows[0] + i`` on key ``columns[0] + j`` in layer ``layers[l]``,
    head ``heads[h]``. Self-attention has ``queries == keys``.

    Attributes:
        name: "self-attention", "encoder self-attention", "decoder self-attention" or "cross-attention".
        queries: all T pieces that attend; a leading space marks the start of a word.
        keys: all S pieces attended to.
        layers: the layers' numbers in the model, in the order of ``weights``.
        heads: the heads' numbers in the model, in the order of ``weights``.
        weights: (L, H, t, s) in [0, 1]. A row may sum to less than 1 if the window leaves keys out, and to 0 if its
            query may attend to nothing. Tensors and nested lists are accepted.
        rows: the window's queries, [first, end).
        columns: the window's keys, [first, end).
        overview: (L, H, r, c), the mean weight in each block of the whole text, if the window is only a part. The
            blocks' limits are ``block_edges(T, r)`` and ``block_edges(S, c)``.
        note: a sentence for the page, such as what was left out.

    Raises:
        HeedfulError: an empty text, numbers and shapes that do not fit, a window outside the text, or weights outside
            [0, 1].
    """

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]
    weights: Array
    rows: tuple[int, int]
    columns: tuple[int, int]
    overview: Array | None = None
    note: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        queries: Sequence[str],
        keys: Sequence[str],
        weights: Any,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> AttentionMaps:
        """Returns the ``AttentionMaps`` of a whole text; layers and heads are numbered from 0 by default.

        >>> maps = AttentionMaps.of("self-attention", ["a", " b"], ["a", " b"], [[[[1, 0], [0.25, 0.75]]]])
        >>> maps.weights.shape, maps.rows, maps.is_whole_text, maps.is_self_attention
        ((1, 1, 2, 2), (0, 2), True, True)
        """
        array = as_array(weights)
        if array.ndim != 4:
            raise HeedfulError(f"{name} weights have shape {array.shape}; give (layers, heads, queries, keys)")
        return cls(
            name=name,
            queries=queries,
            keys=keys,
            layers=range(array.shape[0]) if layers is None else layers,
            heads=range(array.shape[1]) if heads is None else heads,
            weights=array,
            rows=(0, len(queries)),
            columns=(0, len(keys)),
        )

    def __post_init__(self) -> None:
        for name in ("queries", "keys", "layers", "heads"):
            if not len(getattr(self, name)):
                raise HeedfulError(f"cannot draw {self.name}: it has no {name}; give at least one of each")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, (first, end), count in (
            ("queries", self.rows, len(self.queries)),
            ("keys", self.columns, len(self.keys)),
        ):
            if not 0 <= first < end <= count:
                raise HeedfulError(
                    f"{name} {first}:{end} of {self.name} are not within 0:{count}; give a range within 0:{count}"
                )
        layers_and_heads = len(self.layers), len(self.heads)
        window_shape = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        object.__setattr__(self, "weights", self._checked("weights", self.weights, (*layers_and_heads, *window_shape)))
        if self.overview is not None:
            block_counts = np.shape(self.overview)[2:]
            if len(block_counts) != 2 or not (
                0 < block_counts[0] <= len(self.queries) and 0 < block_counts[1] <= len(self.keys)
            ):
                raise HeedfulError(
                    f"the overview has shape {np.shape(self.overview)} for {len(self.queries)} queries and"
                    f" {len(self.keys)} keys; give (layers, heads, blocks of queries, blocks of keys)"
                )
            object.__setattr__(
                self, "overview", self._checked("overview", self.overview, (*layers_and_heads, *block_counts))
            )

    def _checked(self, name: str, values: Any, shape: tuple[int, ...]) -> Array:
        array = as_array(values)
        if array.shape != shape:
            raise HeedfulError(
                f"{self.name} {name} of shape {array.shape} do not fit {len(self.layers)} layers, {len(self.heads)}"
                f" heads, queries {self.rows[0]}:{self.rows[1]} and keys {self.columns[0]}:{self.columns[1]}; give"
                f" {shape}"
            )
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1 + SLACK):
            invalid_weight = high if low >= 0 or low != low else low
            raise HeedfulError(
                f"{self.name} weight {invalid_weight:g} is not in 0..1; give the weights after the softmax"
            )
        return array.clip(0, 1) if high > 1 else array

    @property
    def is_self_attention(self) -> bool:
        """True if queries and keys are the same text: self-attention."""
        return self.queries == self.keys

    @property
    def is_whole_text(self) -> bool:
        """True if the window is the whole text."""
        return self.rows == (0, len(self.queries)) and self.columns == (0, len(self.keys))

    def weights_of(self, layer: int, head: int | None = None) -> Array:
        """Returns the window's weights (t, s) of the layer and head with these numbers; None is the mean over heads."""
        for axis, number, numbers in (("layer", layer, self.layers), ("head", head, self.heads)):
            if number is not None and number not in numbers:
                known = ", ".join(map(str, numbers))
                raise HeedfulError(f"no {axis} {number} in this {self.name}; there are {known}")
        by_head: Array = self.weights[tuple(self.layers).index(layer)]
        weights: Array = by_head.mean(axis=0) if head is None else by_head[tuple(self.heads).index(head)]
        return weights


def block_edges(length: int, parts: int) -> list[int]:
    """Returns the limits ``⌊i · length / parts⌋`` of ``parts`` blocks of ``length`` pieces, 0 and the end included.

    >>> block_edges(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [i * length // parts for i in range(parts + 1)]


def block_means(weights: Array, rows: int, columns: int) -> Array:
    """Returns the mean weight in each of ``rows`` × ``columns`` blocks of the last two axes, cut at ``block_edges``.

    >>> block_means(np.array([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]), 1, 2)
    array([[0.5, 0. ]])
    """
    row_edges, column_edges = block_edges(weights.shape[-2], rows), block_edges(weights.shape[-1], columns)
    sums = np.add.reduceat(np.add.reduceat(weights, row_edges[:-1], axis=-2), column_edges[:-1], axis=-1)
    means: Array = sums / (np.diff(row_edges)[:, None] * np.diff(column_edges))
    return means
