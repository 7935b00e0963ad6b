"""Places where a long text may be cut, so that its parts have the tokens of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

PART = 1 << 18  # characters of one part, about
CUT = re.compile(r"[^\W\d_](?=\n)")  # between a letter and a line's end tokenizers of words cut too
WORD_CUT = re.compile(r"[^\W\d_](?=\n| [^\W\d_])")  # those that read a word alone as in a text cut before a word, too


def cuts(text: str, most: int | None, at: re.Pattern[str] = CUT) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of parts of at least ``most`` characters each, but for the last; None: one part.

    >>> list(cuts("one\\ntwo", 2))
    [(0, 3), (3, 7)]
    """
    start = 0
    while most is not None and (found := at.search(text, start + most)):
        yield start, found.end()
        start = found.end()
    yield start, len(text)
