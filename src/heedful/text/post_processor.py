"""Special tokens that a tokenizer adds around a text or a pair, read from its post-processor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.errors import HeedfulError

Item = tuple[int | str, int]  # an id to put in, or "A" or "B" for a text; and its segment
BARE: dict[bool, list[Item]] = {False: [("A", 0)], True: [("A", 0), ("B", 1)]}


@dataclass(frozen=True)
class InputTemplate:
    """The ids before, between and after the texts of one input, and the segment that each part is counted to.

    >>> template = InputTemplate.of([(101, 0), ("A", 0), (102, 0), ("B", 1), (102, 1)])  # BERT's pair
    >>> template.join([7, 8], [9])
    ([101, 7, 8, 102, 9, 102], [0, 0, 0, 0, 1, 1])
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]

    @classmethod
    def of(cls, items: Sequence[Item]) -> InputTemplate:
        """Makes it from the items in order. Raises `HeedfulError` unless each text occurs once, A before B."""
        texts = [place for place, (what, _) in enumerate(items) if isinstance(what, str)]
        names = "".join(str(items[place][0]) for place in texts)
        if names not in ("A", "AB"):
            raise HeedfulError(f"the tokenizer's template sets the texts as {names!r}, not A or AB; write it anew")
        first, second = texts[0], texts[-1]
        parts = (items[:first], items[first + 1 : second], items[second + 1 :])
        before, between, after = (tuple(int(what) for what, _ in part) for part in parts)
        marks = [tuple(segment for _, segment in part) for part in parts]
        return cls(before, between, after, (marks[0], items[first][1], marks[1], items[second][1], marks[2]))

    @property
    def added(self) -> int:
        """The number of added ids, for which truncation leaves room."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Sequence[int], second: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Returns the ids of an input and their segments: 0, or 1 for ids that belong to the second text."""
        before, one, between, two, after = self.segments
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, [*before, *[one] * len(first), *between, *[two] * len(second), *after]


def read_input_template(post_processor: Any, pair: bool) -> InputTemplate:
    """Returns what a `tokenizers` post-processor (or None) adds around a text, or a pair.

    Raises `HeedfulError` for one that `InputTemplate` cannot express: another order of texts, or two templates.
    """
    state = json.loads(post_processor.__getstate__()) if post_processor is not None else {"type": "ByteLevel"}
    adding = [part for part in state.get("processors", [state]) if part["type"] != "ByteLevel"]
    if len(adding) > 1:
        raise HeedfulError(f"the tokenizer's post-processor has {len(adding)} templates in a row; write it with one")
    return InputTemplate.of(_items(adding[0], pair) if adding else BARE[pair])


def _items(part: dict[str, Any], pair: bool) -> list[Item]:
    if part["type"] == "TemplateProcessing":
        return [item for piece in part["pair" if pair else "single"] for item in _template_items(piece, part)]
    start, end = int(part["cls"][1]), int(part["sep"][1])
    if not pair:
        return [(start, 0), ("A", 0), (end, 0)]
    if part["type"] == "RobertaProcessing":
        return [(start, 0), ("A", 0), (end, 0), (end, 0), ("B", 0), (end, 0)]
    return [(start, 0), ("A", 0), (end, 0), ("B", 1), (end, 1)]


def _template_items(piece: dict[str, Any], part: dict[str, Any]) -> list[Item]:
    ((kind, what),) = piece.items()
    if kind == "Sequence":
        return [(what["id"], what["type_id"])]
    if what["id"] not in part["special_tokens"]:
        raise HeedfulError(
            f"the template of tokenizer.json names the token {what['id']!r}, which its special_tokens lack; "
            "save or download it again"
        )
    return [(one, what["type_id"]) for one in part["special_tokens"][what["id"]]["ids"]]
