"""Series of attention maps over the steps of a run: the file ``watch.jsonl``, of bounded size and resumable."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.util.files import check_regular, parse_json, write

Array = np.ndarray[Any, np.dtype[Any]]
FILE = "watch.jsonl"
FORMAT = 1
MAX_WEIGHTS = 3_000_000  # of a series, a byte each: a page that holds them stays below 5 MB
MIN_SNAPSHOTS = 24  # that fit into a series
MEAN = -1  # head number of the mean of all heads


@dataclass(frozen=True, kw_only=True)
class RecordedMaps:
    """Attention maps of one input and one kind of attention, with the tokens of queries and keys."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]  # or MEAN alone
    weights: Array  # (layers, heads, queries, keys), in [0, 1]
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the maps as ``watch.jsonl`` stores them: each weight w is the byte ``round(255 w)``, in base64."""
        codes = np.rint(self.weights * 255).astype(np.uint8)
        return vars(self) | {
            "queries": list(self.queries),
            "keys": list(self.keys),
            "layers": list(self.layers),
            "heads": list(self.heads),
            "weights": base64.b64encode(codes.tobytes()).decode("ascii"),
        }


def fit_maps(maps: Sequence[RecordedMaps], max_weights: int) -> list[RecordedMaps]:
    """Returns the maps of one input, reduced to ``max_weights`` weights.

    Heads are averaged first, then the last queries are dropped. The notes of the maps say what was done.

    Raises:
        HeedfulError: not even one query fits.
    """
    if sum(m.weights.size for m in maps) <= max_weights:
        return list(maps)
    averaged = [_mean_of_heads(m) for m in maps]
    if sum(m.weights.size for m in averaged) <= max_weights:
        return averaged
    return [_first_queries(m, max_weights // len(averaged)) for m in averaged]


def _mean_of_heads(maps: RecordedMaps) -> RecordedMaps:
    note = f"{maps.note} the mean of {len(maps.heads)} heads".strip()
    weights = maps.weights.mean(axis=1, keepdims=True)
    return RecordedMaps(**vars(maps) | {"heads": [MEAN], "weights": weights, "note": note})


def _first_queries(maps: RecordedMaps, max_weights: int) -> RecordedMaps:
    count = max_weights // (len(maps.layers) * len(maps.keys))
    if count < 1:
        raise HeedfulError(f"attention over {len(maps.keys):,} tokens is too large to record; give a shorter text")
    if count >= len(maps.queries):
        return maps
    note = f"{maps.note}, the first {count} of {len(maps.queries)} queries".strip(", ")
    queries, weights = maps.queries[:count], maps.weights[:, :, :count]
    return RecordedMaps(**vars(maps) | {"queries": queries, "weights": weights, "note": note})


class Series:
    """Series of snapshots of a run's attention maps, in the file ``watch.jsonl`` of ``folder``.

    All snapshots are stored until the file is full; then every second, every fourth snapshot, and so on, and always the
    last one. Which snapshots stay depends only on the steps of the evaluations, so a resumed run ends with the
    same file.
    """

    def __init__(self, folder: Path, inputs: Sequence[Mapping[str, Any]], max_weights: int = MAX_WEIGHTS) -> None:
        self.path, self.max_weights = folder / FILE, max_weights
        self.inputs = [dict(entry) for entry in inputs]
        self.steps: list[int] = []  # of all snapshots
        self.stride = 1
        self.lines: dict[int, str] = {}  # stored snapshots, by step
        self.sizes: dict[int, int] = {}  # their weights
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        remedy = "remove it to start a new series"
        check_regular(self.path, remedy)
        try:
            head, *lines = self.path.read_text(encoding="utf-8").splitlines()
            facts = parse_json(head, self.path, remedy)
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']}")
            recorded_texts = [entry["text"] for entry in facts["inputs"]]
            self.steps, self.stride = list(facts["steps"]), int(facts["stride"])
            for line in lines:
                snapshot = parse_json(line, self.path, remedy)
                self.lines[snapshot["step"]], self.sizes[snapshot["step"]] = line, snapshot["size"]
        except HeedfulError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise HeedfulError(f"{self.path} is damaged ({error}); {remedy}") from None
        if recorded_texts != [entry["text"] for entry in self.inputs]:
            raise HeedfulError(
                f"--training.record-attention names other inputs than {self.path} holds; leave it out to continue "
                "with the recorded inputs, or remove that file"
            )

    def add(self, step: int, metric: str, value: float | None, maps: Sequence[Sequence[RecordedMaps]]) -> None:
        """Stores the maps of each input at ``step``; drops snapshots of the same step and of later steps."""
        self.steps = [earlier for earlier in self.steps if earlier < step]
        last = len(self.steps)
        self.steps.append(step)
        indices = {step: index for index, step in enumerate(self.steps)}
        size = sum(m.weights.size for of_input in maps for m in of_input)
        line = {
            "step": step,
            "metric": metric,
            "value": value,
            "size": size,
            "maps": [[m.as_dict() for m in of_input] for of_input in maps],
        }
        self.lines[step], self.sizes[step] = json.dumps(line), size
        while True:
            for stored in list(self.lines):
                index = indices.get(stored)
                if index is None or (index % self.stride and index != last):
                    del self.lines[stored], self.sizes[stored]
            if sum(self.sizes.values()) <= self.max_weights or len(self.lines) < 3:
                break
            self.stride *= 2
        head = {"format": FORMAT, "inputs": self.inputs, "steps": self.steps, "stride": self.stride}
        write(self.path, "\n".join([json.dumps(head), *(self.lines[step] for step in sorted(self.lines))]) + "\n")
