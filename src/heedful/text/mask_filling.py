"""Masks and T5's sentinels (``<extra_id_0>``, ...): finding them in a text and filling them in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, takewhile

from heedful.errors import HeedfulError, InputError
from heedful.text.tokenizer import SENTINEL, Tokenizer

COMMON_MASKS = ("<mask>", "[MASK]", "___")  # as other models and people write them


def mask_token(tokenizer: Tokenizer) -> tuple[str, int]:
    """Returns the mask token of a tokenizer and its id. Raises ``HeedfulError`` if it has none."""
    name, number = tokenizer.config.get("mask_token"), tokenizer.mask
    if number is None or name is None:
        raise HeedfulError(
            "the tokenizer has no mask token (mask_token in its tokenizer_config.json); use another model, or train "
            "one with heedful train fill-mask"
        )
    return str(name["content"] if isinstance(name, dict) else name), number


def check_has_mask(text: str, mask: str, position: int = 0, of: int = 1) -> None:
    """Raises ``InputError`` if a text has no mask token ``mask``.

    ``position`` is the index of the text among the ``of`` inputs, for the message.
    """
    if mask not in text:
        other = next((name for name in COMMON_MASKS if name in text), None)
        problem = f"has no {mask}" + (f" (it has {other}, which this model does not use)" if other else "")
        raise InputError(position, f"{problem}: {text[:60]!r}; write {mask} where a word is missing", of)


def fill_masks(tokenizer: Tokenizer, text: str, ids: Sequence[int | None]) -> str:
    """Returns a text with each mask replaced by the token with the id in ``ids``; None leaves the mask.

    A token that begins a word is preceded by a space if the vocabulary marks words by spaces; otherwise it replaces the
    mask in place. A token that continues a word is joined to it.

    >>> tokenizer = Tokenizer.train(["one man, two men"], size=300, mask=True)
    >>> fill_masks(tokenizer, "one <mask> two", tokenizer.encode([","])[0])
    'one, two'
    """
    mask, number = mask_token(tokenizer)
    added = tokenizer.backend.get_added_tokens_decoder().get(number)
    takes_space = added is not None and added.lstrip  # the space before a mask is part of it, as of a word's token
    filled, *others = text.split(mask)
    for token, following in zip(ids, others, strict=True):
        piece = mask if token is None else tokenizer.pieces([token])[0]
        if token is not None and tokenizer.marks_continuations:
            before = filled if piece.startswith(" ") else filled.rstrip()
            piece = piece.removeprefix(" ")
        elif token is not None and takes_space:
            before = filled.rstrip()
            piece = piece if before else piece.lstrip()
        else:
            before = filled
        filled = before + piece + following
    return filled


SENTINEL_PATTERN = re.compile(r"<extra_id_(\d+)>")


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of ``<extra_id_0>``, ``<extra_id_1>``, ..., up to the first that the vocabulary lacks.

    Raises ``HeedfulError`` if there are none.

    >>> sentinel_ids(Tokenizer.train(["a text"], size=300, sentinels=2))[0] > 200
    True
    """
    ids = map(tokenizer.backend.token_to_id, map(SENTINEL.format, count()))
    sentinels = [number for number in takewhile(lambda number: number is not None, ids) if number is not None]
    if not sentinels:
        raise HeedfulError(
            f"the tokenizer has no {SENTINEL.format(0)}, which stands for a missing span of text; use a T5 model, or "
            "train a new model: heedful train fill-mask --preset t5-small"
        )
    return sentinels


def check_sentinels(text: str, position: int = 0, of: int = 1) -> int:
    """Returns the number of sentinels in a text.

    Raises ``InputError`` if there are none, or if they are not numbered 0, 1, ... in order. ``position`` is the index
    of the text among the ``of`` inputs, for the message.

    >>> check_sentinels("The <extra_id_0> says <extra_id_1>.")
    2
    """
    numbers = [int(number) for number in SENTINEL_PATTERN.findall(text)]
    if not numbers:
        other = next((name for name in COMMON_MASKS if name in text), None)
        problem = f"has no {SENTINEL.format(0)}" + (
            f" (it has {other}, which this model does not use)" if other else ""
        )
        raise InputError(position, f"{problem}: {text[:60]!r}; write {SENTINEL.format(0)} where words are missing", of)
    wrong = next((expected for expected, number in enumerate(numbers) if number != expected), None)
    if wrong is not None:
        expected, actual = SENTINEL.format(wrong), SENTINEL.format(numbers[wrong])
        raise InputError(
            position,
            f"has {actual} where {expected} is expected: {text[:60]!r}; number the missing spans from 0, in order",
            of,
        )
    return len(numbers)


def sentinel_spans(ids: Sequence[int], sentinels: Sequence[int], number: int) -> list[list[int]]:
    """Returns the ids after each of the first ``number`` sentinels, up to the next sentinel of any number.

    A missing sentinel gives an empty list. If a sentinel is repeated, its first occurrence counts.

    >>> sentinel_spans([99, 5, 6, 98, 7, 97], sentinels=[99, 98, 97], number=2)
    [[5, 6], [7]]
    """
    numbers = {token: index for index, token in enumerate(sentinels)}
    spans: dict[int, list[int]] = {}
    span: list[int] = []  # tokens before the first sentinel belong to no span
    for token in ids:
        if token in numbers:
            span = []
            spans.setdefault(numbers[token], span)
        else:
            span.append(token)
    return [spans.get(index, []) for index in range(number)]


def span_text(tokenizer: Tokenizer, span: Sequence[int]) -> str:
    """Returns the text of a span, with a leading space if its first token begins a word.

    >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, sentinels=1)
    >>> span_text(tokenizer, tokenizer.encode(["a small text"])[0][1:])
    ' small text'
    """
    tokens = [token for token in span if token not in tokenizer.special]
    [text] = tokenizer.decode([tokens])
    begins_word = tokens and tokenizer.pieces(tokens[:1])[0].startswith(" ")
    return f" {text}" if begins_word and not text.startswith(" ") else text


def fill_sentinels(tokenizer: Tokenizer, text: str, spans: Sequence[str]) -> str:
    """Returns a text with each sentinel replaced by the text of its span.

    ``spans`` has these texts, as ``span_text`` returns them. The spaces before a sentinel are dropped if the tokenizer
    makes them part of the sentinel, or if the span begins with a space. An empty span leaves one of the two spaces
    around it. Nothing else changes.

    >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, sentinels=1)
    >>> fill_sentinels(tokenizer, "The <extra_id_0> says <extra_id_1>.", [" cow", ""])
    'The cow says.'
    """
    added = tokenizer.backend.get_added_tokens_decoder().get(sentinel_ids(tokenizer)[0])
    takes_space = added is not None and added.lstrip
    filled, *others = SENTINEL_PATTERN.split(text)[::2]
    for span, following in zip(spans, others, strict=True):
        if takes_space or span[:1].isspace() or (not span and following[:1].isspace()):
            filled = filled.rstrip()
        filled = (filled + span if filled else span.lstrip()) + following
    return filled
