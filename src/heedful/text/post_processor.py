"""Special tokens that a tokenizer adds around a text or a pair, read from its post-processor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.errors import HeedfulError

Item = tuple[int | str, int]  # (special id, or "A" or "B" for a text; its segment)
BARE: dict[bool, list[Item]] = {False: [("A", 0)], True: [("A", 0), ("B", 1)]}


@dataclass(frozen=True)
class InputTemplate:
    """Template of one input: the special ids before, between and after its texts, and the segment of each part.

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
        """Builds a template from its items, (id or text "A" or "B", segment) in order.

        Raises `HeedfulError` unless each text occurs once, and A before B.
        """
        texts = [index for index, (item, _) in enumerate(items) if isinstance(item, str)]
        names = "".join(str(items[index][0]) for index in texts)
        if names not in ("A", "AB"):
            raise HeedfulError(
                f"the tokenizer's template has the texts in the order {names!r}, not A or AB; change the template in "
                "tokenizer.json"
            )
        first, second = texts[0], texts[-1]
        parts = (items[:first], items[first + 1 : second], items[second + 1 :])
        before, between, after = (tuple(int(item) for item, _ in part) for part in parts)
        segments = [tuple(segment for _, segment in part) for part in parts]
        return cls(before, between, after, (segments[0], items[first][1], segments[1], items[second][1], segments[2]))

    @property
    def added(self) -> int:
        """Number of special ids that are added to the texts."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Sequence[int], second: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Returns the ids of an input and their segments: 0, or 1 for ids that belong to the second text."""
        before, of_first, between, of_second, after = self.segments
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, [*before, *[of_first] * len(first), *between, *[of_second] * len(second), *after]


def read_input_template(post_processor: Any, pair: bool) -> InputTemplate:
    """Returns the template of a text, or with ``pair`` of a pair, from a `tokenizers` post-processor (or None).

    Raises `HeedfulError` for a template that `InputTemplate` cannot express: another order of texts, or two templates.
    """
    state = json.loads(post_processor.__getstate__()) if post_processor is not None else {"type": "ByteLevel"}
    templates = [part for part in state.get("processors", [state]) if part["type"] != "ByteLevel"]
    if len(templates) > 1:
        raise HeedfulError(
            f"the tokenizer's post-processor has {len(templates)} templates in sequence; write a single template in "
            "tokenizer.json"
        )
    return InputTemplate.of(_items(templates[0], pair) if templates else BARE[pair])


def _items(processor: dict[str, Any], pair: bool) -> list[Item]:
    if processor["type"] == "TemplateProcessing":
        pieces = processor["pair" if pair else "single"]
        return [item for piece in pieces for item in _template_items(piece, processor["special_tokens"])]
    start, end = int(processor["cls"][1]), int(processor["sep"][1])
    if not pair:
        return [(start, 0), ("A", 0), (end, 0)]
    if processor["type"] == "RobertaProcessing":
        return [(start, 0), ("A", 0), (end, 0), (end, 0), ("B", 0), (end, 0)]
    return [(start, 0), ("A", 0), (end, 0), ("B", 1), (end, 1)]


def _template_items(piece: dict[str, Any], special_tokens: dict[str, Any]) -> list[Item]:
    ((kind, value),) = piece.items()
    name, segment = value["id"], value["type_id"]
    if kind == "Sequence":
        return [(name, segment)]
    if name not in special_tokens:
        raise HeedfulError(
            f"the template of tokenizer.json names the token {name!r}, which its special_tokens lack; "
            "save or download it again"
        )
    return [(token, segment) for token in special_tokens[name]["ids"]]
