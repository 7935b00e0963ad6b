"""Word boundaries in a vocabulary's tokens and in a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
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
HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF))
JOINERS = "\u00ad\u200c\u200d\u2060"  # inside words: soft hyphen, zero-width (non-)joiner, word joiner
POINTS = ".,\u066b\u066c"  # between two digits: decimal points and thousands separators, also Arabic
BYTE_PREFIX = "<0x"  # `Tokenizer.pieces` writes a byte of an incomplete character so


class WordJoints(NamedTuple):
    """Flags for each id of a vocabulary: ``before`` if it may continue a word, ``after`` if a word may continue after
    it.
    """

    before: Sequence[bool]
    after: Sequence[bool]


def word_joints(tokenizer: Tokenizer) -> WordJoints:
    """Returns, for each token of a vocabulary, whether it can continue a word, and whether a word can continue after
    it.

    Two tokens are parts of one word if letters, digits, marks or bytes of characters touch, without a space between:
    "play" and "##ing" in BERT's vocabularies, " play" and "ing" in those with spaces. "play" does not join " ing", "."
    or "[SEP]". In scripts without spaces each token is a word.

    >>> tokenizer = Tokenizer.train(["a man."], size=20, kind="character")
    >>> table, ids = word_joints(tokenizer), tokenizer.encode(["a man."])[0]
    >>> [table.before[i] for i in ids]
    [True, False, True, True, True, False]
    """
    ids = range(tokenizer.vocab_size)
    special = tokenizer.special
    texts = ["" if i in special else piece for i, piece in zip(ids, tokenizer.pieces(ids), strict=True)]
    return WordJoints(
        [text.startswith(BYTE_PREFIX) or _is_word_character(text[:1]) for text in texts],
        [(text.endswith(">") and BYTE_PREFIX in text) or _is_word_character(text[-1:]) for text in texts],
    )


def _is_word_character(character: str) -> bool:
    """Returns True for a letter, a digit, or a mark on one."""
    if not character or _is_in_ranges(character, SPACELESS):
        return False
    return character.isalnum() or _is_mark(character)


def is_word_border(text: str, position: int) -> bool:
    """Returns True if no word of ``text`` continues across the gap before the character at ``position``.

    Letters, digits and their marks form a word, and so does a number with its points ("3,000", "2.5"). Scripts without
    spaces have a boundary at each character, and so has Hangul, where particles are attached to names. A mark never
    begins a word.

    >>> [position for position in range(12) if is_word_border("It's 2.5 ½km", position)]
    [0, 2, 3, 4, 5, 8, 9]
    """
    if not 0 < position < len(text):
        return True
    before, after = text[position - 1], text[position]
    if _is_mark(after) or after in JOINERS or before in JOINERS:
        return False
    if _is_decimal_point(text, position - 1) or _is_decimal_point(text, position):
        return False
    return not (_is_word_character(before) and _is_word_character(after)) or (
        _is_in_ranges(before, HANGUL) or _is_in_ranges(after, HANGUL)
    )


def _is_decimal_point(text: str, position: int) -> bool:
    """Returns True if the character is a point between two digits."""
    window = text[max(0, position - 1) : position + 2]
    return text[position] in POINTS and len(window) == 3 and window[0].isdigit() and window[2].isdigit()


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _is_in_ranges(character: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)
