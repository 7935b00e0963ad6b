"""Inputs of masked language models: texts with blanks to fill in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.tasks.task import short
from heedful.text import Tokenizer
from heedful.text.mask_filling import mask_of
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")


class Blank(NamedTuple):
    """Ids to read, whose text they are of, and where in them masks stand that are to be filled."""

    owner: int
    ids: list[int]
    places: list[int]


def blanks(tokenizer: Tokenizer, texts: Sequence[str], longest: int) -> list[Blank]:
    """One for each text; of a text of more than ``longest`` tokens one for each of its masks, the part around it, and a
    warning says so. The masks of a text come in their order.

    >>> tokenizer = Tokenizer.train(["a small text"], size=300, template="both", mask=True)
    >>> blanks(tokenizer, ["<mask> <mask>"], 8)
    [Blank(owner=0, ids=[1, 4, 4, 2], places=[1, 2])]
    >>> blanks(tokenizer, ["<mask><mask>"], 3)
    [Blank(owner=0, ids=[1, 4, 2], places=[1]), Blank(owner=0, ids=[1, 4, 2], places=[1])]
    """
    (name, mask), around = mask_of(tokenizer), tokenizer.around()
    room, shift = longest - around.added, len(around.before)
    made, cut = [], 0
    for owner, (text, ids) in enumerate(zip(texts, tokenizer.encode(texts), strict=True)):
        places = [place for place, token in enumerate(ids) if token == mask]
        if len(places) != text.count(name):
            raise HeedfulError(
                f"the tokenizer reads {name} as plain text in {short(text)!r}; set split_special_tokens to false in "
                "its tokenizer_config.json"
            )
        if len(ids) <= room:
            made.append(Blank(owner, around.join(ids)[0], [place + shift for place in places]))
            continue
        cut += 1
        for place in places:
            first = min(max(0, place - room // 2), len(ids) - room)
            made.append(Blank(owner, around.join(ids[first : first + room])[0], [place - first + shift]))
    if cut:
        log.warning(
            CountWarning(
                cut,
                len(texts),
                f"longer than the {longest:,} tokens that the model reads; so many around each mask were read",
            )
        )
    return made
