"""Texts and pairs of texts: read off what a person asks with, and made examples with what the tokenizer puts around."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from heedful.data import Kind
from heedful.errors import HeedfulError
from heedful.tasks.task import short
from heedful.text import Tokenizer

SIDES = ("text", "text_pair")


class Example(NamedTuple):
    """Token ids with the special ones, the segment of each, and the ids of the labels, or the number in their place."""

    ids: list[int]
    segments: list[int]
    labels: tuple[float, ...]  # or the number that is learned


def sides_of(one: Any, pair: Kind | None) -> tuple[str, ...]:
    """The text of an input, or both texts of a pair; nothing where one is blank.

    A pair is ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab between them. ``pair`` is
    the kind of the column ``text_pair``: None where there is none, "text?" where it may be left out.
    """
    sides: tuple[Any, ...]
    if isinstance(one, str):
        sides = tuple(one.split("\t", 1)) if pair else (one,)
    elif isinstance(one, Mapping):
        sides = tuple(one[name] for name in SIDES if name in one)
    else:
        sides = tuple(one) if isinstance(one, tuple | list) else (one,)
    texts = all(isinstance(side, str) for side in sides)
    if texts and sides and not all(side.strip() for side in sides):
        return ()
    if not texts or len(sides) not in {None: (1,), "text": (2,), "text?": (1, 2)}[pair]:
        wanted = {None: "a text", "text": "two texts", "text?": "a text, or two"}[pair]
        how = ": (text, pair), or one string with a tab between them" if pair else ""
        raise HeedfulError(f"this model is asked with {wanted}{how}; not with {short(repr(one))}")
    return sides


def examples_of(
    tokenizer: Tokenizer, texts: Iterable[tuple[str, ...]], labels: Iterable[tuple[float, ...]], most: int
) -> tuple[list[Example], list[int]]:
    """The examples of texts and pairs, each of at most ``most`` tokens, and the numbers of those that were cut."""
    texts = list(texts)
    encoded = iter(tokenizer.encode([side for sides in texts for side in sides]))
    around = {number: tokenizer.around(pair=number == 2) for number in set(map(len, texts))}
    examples, cut = [], []
    for number, (sides, own) in enumerate(zip(texts, labels, strict=True)):
        parts = [next(encoded) for _ in sides]
        kept = fitted(parts, most, around[len(sides)].added)
        if kept != parts:
            cut.append(number)
        examples.append(Example(*around[len(sides)].join(*kept), own))
    return examples, cut


def fitted(parts: list[list[int]], most: int, added: int) -> list[list[int]]:
    """One or two rows of ids, cut at their ends until they and ``added`` others are ``most``: the longer one first."""
    room = most - added
    if room < len(parts):
        raise HeedfulError(f"--data.max-length {most} has no room for text; give {added + len(parts)}")
    if sum(map(len, parts)) <= room:
        return parts
    if len(parts) == 1:
        return [parts[0][:room]]
    first, second = parts
    least = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return [first[:least], second[: room - least]]
    return [first[: room - least], second[:least]]
