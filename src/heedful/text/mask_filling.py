"""Masks and T5's sentinels (``<extra_id_0>``, ...) in a text, and the text with them filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, takewhile

from heedful.errors import HeedfulError, InputError
from heedful.text.tokenizer import SENTINEL, Tokenizer

COMMON_MASKS = ("<mask>", "[MASK]", "___")  # what people write elsewhere


def mask_token(tokenizer: Tokenizer) -> tuple[str, int]:
    """Returns the mask token and its id. Raises ``HeedfulError`` if there is none."""
    name, number = tokenizer.config.get("mask_token"), tokenizer.mask
    if number is None or name is None:
        raise HeedfulError(
            "the tokenizer has no mask token (mask_token in its tokenizer_config.json), so that nothing can be hidden "
            "from the model; take another model, or train one with heedful train fill-mask"
        )
    return str(name["content"] if isinstance(name, dict) else name), number


def check_has_mask(text: str, mask: str, position: int = 0, of: int = 1) -> None:
    """Raises ``InputError``, with the mask's spelling, if ``text``, input ``position`` of ``of``, has none."""
    if mask not in text:
        other = next((name for name in COMMON_MASKS if name in text), None)
        found = f"has no {mask}" + (f", but {other}" if other else "")
        raise InputError(position, f"{found}: {text[:60]!r}; write {mask} where a word is missing", of)


def fill_masks(tokenizer: Tokenizer, text: str, ids: Sequence[int | None]) -> str:
    """Returns the text with each mask replaced by a token; None leaves the mask.

    A token that begins a word follows a space if the vocabulary marks words by spaces, and replaces the mask in place
    otherwise; one that continues a word is joined to it.

    >>> tokenizer = Tokenizer.train(["one man, two men"], size=300, mask=True)
    >>> fill_masks(tokenizer, "one <mask> two", tokenizer.encode([","])[0])
    'one, two'
    """
    mask, number = mask_token(tokenizer)
    added = tokenizer.backend.get_added_tokens_decoder().get(number)
    spaced = added is not None and added.lstrip  # the space before a mask belongs to it, as to a word's token
    first, *others = text.split(mask)
    for token, following in zip(ids, others, strict=True):
        piece = mask if token is None else tokenizer.pieces([token])[0]
        if token is not None and tokenizer.by_words:
            before = first if piece.startswith(" ") else first.rstrip()
            piece = piece.removeprefix(" ")
        elif token is not None and spaced:
            before = first.rstrip()
            piece = piece if before else piece.lstrip()
        else:
            before = first
        first = before + piece + following
    return first


SENTINEL_PATTERN = re.compile(r"<extra_id_(\d+)>")


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of ``<extra_id_0>``, ``<extra_id_1>``, ..., as many as the vocabulary has in a row; none is an error.

    >>> sentinel_ids(Tokenizer.train(["a text"], size=300, sentinels=2))[0] > 200
    True
    """
    ids = map(tokenizer.backend.token_to_id, map(SENTINEL.format, count()))
    found = [number for number in takewhile(lambda number: number is not None, ids) if number is not None]
    if not found:
        raise HeedfulError(
            f"the tokenizer has no {SENTINEL.format(0)}, behind which spans of text are hidden; take a T5, or train a "
            "model anew: heedful train fill-mask --preset t5-small"
        )
    return found


def check_sentinels(text: str, position: int = 0, of: int = 1) -> int:
    """Returns the number of sentinels in a text, input ``position`` of ``of``. Raises ``InputError``, which
    says how to write them, if there are none or they are not numbered 0, 1, ... in order.

    >>> check_sentinels("The <extra_id_0> says <extra_id_1>.")
    2
    """
    numbers = [int(number) for number in SENTINEL_PATTERN.findall(text)]
    if not numbers:
        other = next((name for name in COMMON_MASKS if name in text), None)
        found = f"has no {SENTINEL.format(0)}" + (f", but {other}" if other else "")
        raise InputError(position, f"{found}: {text[:60]!r}; write {SENTINEL.format(0)} where words are missing", of)
    wrong = next((place for place, number in enumerate(numbers) if number != place), None)
    if wrong is not None:
        due, written_there = SENTINEL.format(wrong), SENTINEL.format(numbers[wrong])
        raise InputError(
            position,
            f"has {written_there} where {due} is due: {text[:60]!r}; number what is missing from 0, in its order",
            of,
        )
    return len(numbers)


def sentinel_spans(ids: Sequence[int], sentinels: Sequence[int], number: int) -> list[list[int]]:
    """Returns the tokens after each of the first ``number`` sentinels, up to the next sentinel of any number; an empty
    list for an absent sentinel. Of a repeated sentinel the first counts.

    >>> sentinel_spans([99, 5, 6, 98, 7, 97], sentinels=[99, 98, 97], number=2)
    [[5, 6], [7]]
    """
    places = {token: place for place, token in enumerate(sentinels)}
    found: dict[int, list[int]] = {}
    span: list[int] = []  # what stands before the first sentinel is of none
    for token in ids:
        if token in places:
            span = []
            found.setdefault(places[token], span)
        else:
            span.append(token)
    return [found.get(place, []) for place in range(number)]


def span_text(tokenizer: Tokenizer, span: Sequence[int]) -> str:
    """The text of a span, with the space before it where its first token begins a word.

    >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, sentinels=1)
    >>> span_text(tokenizer, tokenizer.encode(["a small text"])[0][1:])
    ' small text'
    """
    kept = [token for token in span if token not in tokenizer.special]
    [text] = tokenizer.decode([kept])
    begins = kept and tokenizer.pieces(kept[:1])[0].startswith(" ")
    return f" {text}" if begins and not text.startswith(" ") else text


def fill_sentinels(tokenizer: Tokenizer, text: str, spans: Sequence[str]) -> str:
    """The text with a span, as ``span_text`` gives it, in the place of each of its holes.

    All else stays as it was. The spaces before a hole are the span's to give, where the tokenizer counts them to the
    hole, and where it brings a space of its own; of an empty span's two spaces one stays.

    >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, sentinels=1)
    >>> fill_sentinels(tokenizer, "The <extra_id_0> says <extra_id_1>.", [" cow", ""])
    'The cow says.'
    """
    added = tokenizer.backend.get_added_tokens_decoder().get(sentinel_ids(tokenizer)[0])
    swallows = added is not None and added.lstrip
    made, *others = SENTINEL_PATTERN.split(text)[::2]
    for span, following in zip(spans, others, strict=True):
        if swallows or span[:1].isspace() or (not span and following[:1].isspace()):
            made = made.rstrip()
        made = (made + span if made else span.lstrip()) + following
    return made
