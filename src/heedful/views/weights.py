"""The numbers behind the attention views: shapes checked, pieces merged to words, the clearest layer.

Letters in shapes: L layers, H heads, T target positions (queries), S source positions (keys).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from heedful.errors import HeedfulError

Weights = np.ndarray[Any, np.dtype[np.float64]]

MARK = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z]+\])")  # </s>, <|endoftext|>, [SEP]: never a part of a word
NAMES = {"L": "layers", "H": "heads", "T": "target", "S": "source"}
SLACK = 0.02  # how far above 1 a weight may come: sums of pieces in bfloat16


def checked(source: Sequence[str], target: Sequence[str], weights: Any, dims: str) -> Weights:
    """``weights`` as a float64 array of shape ``dims`` ("LHTS" or "TS"), clipped to [0, 1].

    Takes nested lists, arrays, tensors of any device and precision, or a sequence of these. Raises ``HeedfulError``
    where a sentence is empty, the shape is another than the sentences ask for, or a weight is no number in [0, 1].
    """
    array = as_array(weights)
    asked = {"T": len(target), "S": len(source)}
    want = "(" + ", ".join(str(asked.get(dim, dim)) for dim in dims) + ")"
    if not source or not target:
        raise HeedfulError(f"nothing to draw: {len(source)} source and {len(target)} target pieces; give one of each")
    if array.ndim != len(dims) or array.shape[-2:] != (len(target), len(source)) or not array.size:
        raise HeedfulError(
            f"attention weights of shape {array.shape} do not fit {len(target)} target and {len(source)} source pieces;"
            f" give {want}, in the order {', '.join(NAMES[dim] for dim in dims)}"
        )
    bad = array[~((array >= 0) & (array <= 1 + SLACK))]
    if bad.size:
        raise HeedfulError(f"attention weight {bad.flat[0]:g} is not in 0..1; give the weights after the softmax")
    return array.astype(np.float64).clip(0, 1)


def as_array(weights: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Weights as an array of single or double precision, from nested lists, arrays, tensors, or a sequence of these.

    Tensors may lie on any device and have any precision; what is narrower than single becomes single.
    """
    if hasattr(weights, "detach"):  # a tensor: numpy knows neither other devices nor bfloat16
        weights = weights.detach().cpu()
        weights = weights.float().numpy() if weights.element_size() < 4 else weights.numpy()
    elif isinstance(weights, list | tuple):
        try:
            return np.stack([as_array(part) for part in weights])
        except ValueError as error:
            raise HeedfulError(f"attention weights are ragged ({error}); give one shape for all layers") from None
    array = np.asarray(weights)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def starts(pieces: Sequence[str]) -> list[bool]:
    """Which pieces begin a word: those with a leading space, marks such as ``</s>``, and what follows a mark.

    Where no piece after the first has a leading space (single words, scripts without spaces) every piece is a word.
    """
    if not any(piece[:1].isspace() for piece in pieces[1:]):
        return [True] * len(pieces)
    marks = [MARK.fullmatch(piece) is not None for piece in pieces]
    return [i == 0 or piece[:1].isspace() or marks[i] or marks[i - 1] for i, piece in enumerate(pieces)]


def merge_words(source: Sequence[str], target: Sequence[str], weights: Any) -> tuple[list[str], list[str], Weights]:
    """Pieces joined to words: the *sum* over a source word's pieces and the *mean* over a target word's.

    ``w(u, v) = 1/|u| Σ_{t∈u} Σ_{s∈v} w(t, s)``, so that rows still sum to what they did. ``weights`` is (T, S),
    (H, T, S) or (L, H, T, S). The words keep their leading space, so that they can be drawn as pieces are; marks such
    as ``</s>`` stay alone; sentences without spaces stay as they are. Raises ``HeedfulError`` as ``checked`` does.

    >>> merge_words(["Tues", "day", " 4"], ["mar", "di"], [[0.5, 0.5, 0.0], [0.1, 0.3, 0.6]])[2]
    array([[1. , 0. ],
           [0.4, 0.6]])
    """
    array = as_array(weights)
    array = checked(source, target, array, "LHTS"[-array.ndim :])
    first_source, first_target = np.flatnonzero(starts(source)), np.flatnonzero(starts(target))
    summed = np.add.reduceat(array, first_source, axis=-1)
    counts = np.diff(first_target, append=len(target))
    merged = np.add.reduceat(summed, first_target, axis=-2) / counts[:, None]
    return _joined(source, first_source), _joined(target, first_target), merged


def _joined(pieces: Sequence[str], first: Any) -> list[str]:
    ends = [*first[1:], len(pieces)]
    return ["".join(pieces[start:end]) for start, end in zip(first, ends, strict=True)]


def clearest(weights: Weights) -> int:
    """The layer of (L, H, T, S) whose head average says most about which target piece is looking from where.

    That is the mutual information ``1/T Σ_t Σ_s p(s|t) log(p(s|t) / p(s))`` of each layer's rows: nothing for rows
    that are all alike (uniform ones, or all at the end mark), ``log T`` for a clean alignment.
    """
    rows = weights.mean(axis=1)
    rows = rows / np.maximum(rows.sum(axis=-1, keepdims=True), 1e-12)
    ratio = rows / np.maximum(rows.mean(axis=1, keepdims=True), 1e-12)
    information = (rows * np.log(np.maximum(ratio, 1e-12))).sum(axis=-1).mean(axis=-1)
    return int(information.argmax())
