"""Which tokens make one word together, in any vocabulary."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from heedful.text.tokenizer import Tokenizer

# Scripts written without spaces between words: Thai to Tibetan, Myanmar, Khmer, kana and ideographs.
SPACELESS = (
    (0x0E00, 0x0FFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
PART = "<0x"  # as `Tokenizer.pieces` writes a byte that is only a part of a character


class Joints(NamedTuple):
    """For each id of a vocabulary whether it may go on with a word, and whether a word may go on after it."""

    before: Sequence[bool]
    after: Sequence[bool]


def joints(tokenizer: Tokenizer) -> Joints:
    """Two tokens are of one word where the first may be gone on with and the second goes on: letters, digits, marks or
    parts of characters touch, and no space stands between them. So ``play`` and ``##ing`` are, in BERT's vocabularies,
    and in those with spaces of their own `` play`` and ``ing``, but not ``play`` and `` ing``, ``.`` or ``[SEP]``.

    Of scripts without spaces each token is a word.

    >>> tokenizer = Tokenizer.train(["a man."], size=20, kind="character")
    >>> table, ids = joints(tokenizer), tokenizer.encode(["a man."])[0]
    >>> [table.before[i] for i in ids]
    [True, False, True, True, True, False]
    """
    ids = range(tokenizer.vocab_size)
    special = tokenizer.special
    texts = ["" if i in special else piece for i, piece in zip(ids, tokenizer.pieces(ids), strict=True)]
    return Joints(
        [text.startswith(PART) or _letter(text[:1]) for text in texts],
        [(text.endswith(">") and PART in text) or _letter(text[-1:]) for text in texts],
    )


def _letter(character: str) -> bool:
    """Whether this is part of a word: a letter, a digit, a mark on one."""
    if not character or any(first <= ord(character) <= last for first, last in SPACELESS):
        return False
    return character.isalnum() or unicodedata.category(character).startswith("M")
