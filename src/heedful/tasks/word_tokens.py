"""Words and their tokens: the first token and the characters of each word, and windows with every word in exactly one.

The label of a word is predicted at its first token (Devlin et al. 2019, section 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.tasks.encoder_task import overlapping_windows
from heedful.tasks.model_setup import special_id
from heedful.text import Tokenizer


class WordTokens(NamedTuple):
    """Text with the characters of its words, its token ids, and the first token of each word."""

    text: str
    spans: list[tuple[int, int]]  # the characters of each word: text[start:end]
    ids: list[int]  # without special tokens
    first: list[int]  # position of each word's first token


def joined_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Returns the words joined by spaces, and the characters (start, end) of each.

    >>> joined_words(["in", "Paris"])
    ('in Paris', [(0, 2), (3, 8)])
    """
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def tokens_of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordTokens]:
    """Encodes sentences that are given as lists of words.

    Each word is encoded on its own, as ``transformers`` does with ``is_split_into_words``. The text of a sentence is
    its words joined by spaces. A word without tokens (a control character) becomes the unknown token, since it has a
    tag like all others.
    """
    encoded = []
    for words, (ids, owners) in zip(sentences, tokenizer.encode_words(sentences), strict=True):
        first = dict(zip(reversed(owners), range(len(ids) - 1, -1, -1), strict=True))  # the first of equal owners stays
        if len(first) < len(words):
            ids, first = _with_unknown(tokenizer, ids, owners, len(words))
        encoded.append(WordTokens(*joined_words(words), ids, [first[word] for word in range(len(words))]))
    return encoded


def _with_unknown(
    tokenizer: Tokenizer, ids: Sequence[int], owners: Sequence[int], words: int
) -> tuple[list[int], dict[int, int]]:
    """Returns the ids with an unknown token for each word without tokens, and each word's first position."""
    unknown = special_id(tokenizer.end) if tokenizer.unknown is None else tokenizer.unknown
    pieces: list[list[int]] = [[] for _ in range(words)]
    for token, owner in zip(ids, owners, strict=True):
        pieces[owner].append(token)
    filled: list[int] = []
    first = {}
    for word, own in enumerate(pieces):
        first[word] = len(filled)
        filled += own or [unknown]
    return filled, first


def tokens_of_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[WordTokens]:
    """Encodes texts and finds their words.

    If the vocabulary marks tokens inside a word (BERT's ``##``), every other token begins a word, so that punctuation
    is separate. Else (byte-level) words are separated by white space. The ``transformers`` pipeline does the same.
    Unlike that pipeline, this function never splits the bytes of a character between words, and a token that is only
    the space before a word is the word's first token, as it is in training (``tokens_of_words``). White space belongs
    to no word.
    """
    marked = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    encoded = []
    for text, (ids, offsets) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        first: list[int] = []
        spans: list[tuple[int, int]] = []
        blank = -1  # position of the last token of white space alone
        for position, (token, (start, end)) in enumerate(zip(ids, offsets, strict=True)):
            start, end = _stripped(text, start, end)
            if start == end:
                blank = position
                continue
            if marked:
                is_inside = _has_mark(tokenizer, token, marked)
            else:
                is_inside = start > 0 and not text[start - 1].isspace()
            if spans and (is_inside or start < spans[-1][1]):  # or another byte of the same character
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spaced = position - 1 == blank >= 0 and not tokenizer.pieces([token])[0].startswith(" ")
                first.append(blank if spaced else position)
                spans.append((start, end))
        encoded.append(WordTokens(text, spans, ids, first))
    return encoded


def _has_mark(tokenizer: Tokenizer, token: int, mark: str) -> bool:
    name = tokenizer.backend.id_to_token(token)
    return name is not None and name.startswith(mark)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the span without white space around it."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


class WordRange(NamedTuple):
    """Window of a text: its range of tokens, and the range of words whose labels it predicts."""

    tokens: range
    words: range


def word_windows(first: Sequence[int], length: int, most: int, stride: int) -> Iterator[WordRange]:
    """Yields windows over a text that share ``stride`` tokens, with every word in exactly one window.

    That is the window in which the word's first token has the most context on its shorter side.

    Args:
        first: position of the first token of each word.
        length: number of tokens of the text.
        most: maximum number of tokens of a window.
        stride: number of tokens that neighbouring windows share.

    >>> [(list(tokens), list(words)) for tokens, words in word_windows([0, 1, 3, 5], 6, 4, 2)]
    [([0, 1, 2, 3], [0, 1]), ([2, 3, 4, 5], [2, 3])]
    """
    parts = overlapping_windows(length, most, stride)
    word = 0
    for number, part in enumerate(parts):
        begin = word
        while word < len(first) and first[word] in part:
            context = _context(first[word], part, length)
            if any(_context(first[word], other, length) > context for other in _later(parts, number, first[word])):
                break
            word += 1
        if word > begin:
            yield WordRange(part, range(begin, word))


def _later(parts: Sequence[range], number: int, position: int) -> Iterator[range]:
    for later in range(number + 1, len(parts)):
        if position not in parts[later]:
            return
        yield parts[later]


def _context(position: int, part: range, length: int) -> float:
    """Returns the number of tokens from a position to the nearest end of the window inside the text."""
    before = position - part.start if part.start else float("inf")
    after = part.stop - 1 - position if part.stop < length else float("inf")
    return min(before, after)


def window_stride(stride: int | None, most: int) -> int:
    """Returns the number of tokens that neighbouring windows of at most ``most`` tokens share.

    It is ``stride`` or, if that is None, a quarter of ``most``. Raises ``HeedfulError`` if windows could not advance.
    """
    if stride is not None and stride >= most:
        raise HeedfulError(f"stride {stride:,} is too large for windows of {most:,} tokens; give {most - 1} or less")
    return most // 4 if stride is None else stride
