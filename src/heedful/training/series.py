"""Attention maps of fixed inputs over the steps of a run: ``watch.jsonl``, bounded, resumable."""

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
ROOM = 3_000_000  # weights in a series, a byte each: a page that holds them stays under 5 MB
FEWEST = 24  # looks that there is room for
MEAN = -1  # stands for a head: the mean of all


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The maps of one kind of attention at one look: what looks, what is looked at, and the weights between them."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]  # or MEAN alone
    weights: Array  # (layers, heads, queries, keys), in [0, 1]
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As a line of the file holds it: ``round(255 w)``, a byte each, in base64."""
        codes = np.rint(self.weights * 255).astype(np.uint8)
        return vars(self) | {
            "queries": list(self.queries),
            "keys": list(self.keys),
            "layers": list(self.layers),
            "heads": list(self.heads),
            "weights": base64.b64encode(codes.tobytes()).decode("ascii"),
        }


def fitted(seen: Sequence[Seen], room: int) -> list[Seen]:
    """The maps of one input in at most ``room`` weights, each saying what was given up: heads, then the last queries.

    Raises:
        HeedfulError: there is no room for one query.
    """
    if sum(one.weights.size for one in seen) <= room:
        return list(seen)
    averaged = [_averaged(one) for one in seen]
    own = room // len(averaged)
    if sum(one.weights.size for one in averaged) <= room:
        return averaged
    return [_cut(one, own) for one in averaged]


def _averaged(seen: Seen) -> Seen:
    told = f"the mean of {len(seen.heads)} heads"
    weights = seen.weights.mean(axis=1, keepdims=True)
    return Seen(**vars(seen) | {"heads": [MEAN], "weights": weights, "note": f"{seen.note} {told}".strip()})


def _cut(seen: Seen, room: int) -> Seen:
    rows = room // (len(seen.layers) * len(seen.keys))
    if rows < 1:
        raise HeedfulError(
            f"attention over {len(seen.keys):,} tokens is too much to be kept at every evaluation; watch a shorter text"
        )
    if rows >= len(seen.queries):
        return seen
    told = f"{seen.note}, the first {rows} of {len(seen.queries)} queries"
    return Seen(
        **vars(seen) | {"queries": seen.queries[:rows], "weights": seen.weights[:, :, :rows], "note": told.strip(", ")}
    )


class Series:
    """The looks of a run so far, kept in ``folder``.

    Every look is kept until there is no room, then every second, every fourth, ..., and always the last: which ones
    depends on the run's evaluations alone, so that a run stopped and taken up again ends with the same file.
    """

    def __init__(self, folder: Path, inputs: Sequence[Mapping[str, Any]], room: int = ROOM) -> None:
        self.path, self.room = folder / FILE, room
        self.inputs = [dict(one) for one in inputs]
        self.steps: list[int] = []  # of all looks
        self.stride = 1
        self.kept: dict[int, str] = {}  # lines, by step
        self.sizes: dict[int, int] = {}
        if self.path.exists():
            self._take_up()

    def _take_up(self) -> None:
        remedy = "remove it to begin the series anew"
        check_regular(self.path, remedy)
        try:
            head, *lines = self.path.read_text(encoding="utf-8").splitlines()
            facts = parse_json(head, self.path, remedy)
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']}")
            before = [one["text"] for one in facts["inputs"]]
            self.steps, self.stride = list(facts["steps"]), int(facts["stride"])
            for line in lines:
                look = parse_json(line, self.path, remedy)
                self.kept[look["step"]], self.sizes[look["step"]] = line, look["size"]
        except HeedfulError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise HeedfulError(f"{self.path} is damaged ({error}); {remedy}") from None
        asked = [one["text"] for one in self.inputs]
        if before != asked:
            raise HeedfulError(
                f"--training.record-attention names other inputs than {self.path} holds; leave it out to continue "
                "with those, or remove the file"
            )

    def add(self, step: int, metric: str, value: float | None, looks: Sequence[Sequence[Seen]]) -> None:
        """Keep the maps of each input at ``step``; a look at the same step or a later one is forgotten."""
        self.steps = [one for one in self.steps if one < step]
        index = len(self.steps)
        self.steps.append(step)
        held = {one: place for place, one in enumerate(self.steps)}
        size = sum(seen.weights.size for maps in looks for seen in maps)
        line = {
            "step": step,
            "metric": metric,
            "value": value,
            "size": size,
            "looks": [[seen.as_dict() for seen in maps] for maps in looks],
        }
        self.kept[step], self.sizes[step] = json.dumps(line), size
        while True:
            for one in list(self.kept):
                place = held.get(one)
                if place is None or (place % self.stride and place != index):
                    del self.kept[one], self.sizes[one]
            if sum(self.sizes.values()) <= self.room or len(self.kept) < 3:
                break
            self.stride *= 2
        head = {"format": FORMAT, "inputs": self.inputs, "steps": self.steps, "stride": self.stride}
        write(self.path, "\n".join([json.dumps(head), *(self.kept[one] for one in sorted(self.kept))]) + "\n")
