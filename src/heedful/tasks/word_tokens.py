"""Words in tokens: which token begins a word, where in the text the word stands, and windows that lose none.

What is said of a word is said where its first token stands (Devlin et al. 2019, section 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.tasks.encoder_task import overlapping_windows
from heedful.tasks.model_setup import special_id
from heedful.text import Tokenizer


class Worded(NamedTuple):
    """A text in words and tokens."""

    text: str
    spans: list[tuple[int, int]]  # the characters of each word: text[start:end]
    ids: list[int]  # without what the tokenizer puts around
    first: list[int]  # the place of each word's first token


def spread(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Words with a space between, and the characters of each.

    >>> spread(["in", "Paris"])
    ('in Paris', [(0, 2), (3, 8)])
    """
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[Worded]:
    """Sentences given in words, each word encoded on its own, as ``transformers`` does (``is_split_into_words``). Their
    texts are the words with a space between.

    A word of nothing that the tokenizer writes (a control character) becomes its unknown token: it has a tag like all.
    """
    made = []
    for words, (ids, owners) in zip(sentences, tokenizer.words(sentences), strict=True):
        first = dict(zip(reversed(owners), range(len(ids) - 1, -1, -1), strict=True))  # of equal ones the first stays
        if len(first) < len(words):
            ids, first = _filled(tokenizer, ids, owners, len(words))
        made.append(Worded(*spread(words), ids, [first[word] for word in range(len(words))]))
    return made


def _filled(
    tokenizer: Tokenizer, ids: Sequence[int], owners: Sequence[int], words: int
) -> tuple[list[int], dict[int, int]]:
    """The ids with an unknown token for each word that has none, and the place of each word's first one."""
    nothing = special_id(tokenizer.end) if tokenizer.unknown is None else tokenizer.unknown
    pieces: list[list[int]] = [[] for _ in range(words)]
    for one, owner in zip(ids, owners, strict=True):
        pieces[owner].append(one)
    made: list[int] = []
    first = {}
    for word, own in enumerate(pieces):
        first[word] = len(made)
        made += own or [nothing]
    return made, first


def of_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Worded]:
    """Texts and the words in them, which are those that the vocabulary knows: where it marks the tokens that go on with
    a word (BERT's ``##``), all others begin one, so that punctuation stands apart; where it does not (byte-level), a
    word is what stands between blanks. So does the ``transformers`` pipeline; but here the bytes of a letter are never
    parted, and a token of nothing but the space before a word is the word's first one, as in ``of_words`` and so in
    training. The blanks around belong to no word.
    """
    marked = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    made = []
    for text, (ids, offsets) in zip(texts, tokenizer.offsets(texts), strict=True):
        first: list[int] = []
        spans: list[tuple[int, int]] = []
        blank = -1  # the place of the last token of nothing but blanks
        for place, (one, (start, end)) in enumerate(zip(ids, offsets, strict=True)):
            start, end = _bare(text, start, end)
            if start == end:
                blank = place
                continue
            if marked:
                goes_on = _marked(tokenizer, one, marked)
            else:
                goes_on = start > 0 and not text[start - 1].isspace()
            if spans and (goes_on or start < spans[-1][1]):  # or the next byte of the same letter
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spaced = place - 1 == blank >= 0 and not tokenizer.pieces([one])[0].startswith(" ")
                first.append(blank if spaced else place)
                spans.append((start, end))
        made.append(Worded(text, spans, ids, first))
    return made


def _marked(tokenizer: Tokenizer, one: int, mark: str) -> bool:
    token = tokenizer.backend.id_to_token(one)
    return token is not None and token.startswith(mark)


def _bare(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters without the blanks around them."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


class WordRange(NamedTuple):
    """Some tokens of a text, and the words that are asked for in them."""

    tokens: range
    words: range


def windows(first: Sequence[int], length: int, most: int, stride: int) -> Iterator[WordRange]:
    """Windows of at most ``most`` of ``length`` tokens that share ``stride``, with every word in exactly one of them:
    where its first token stands farthest from an edge at which the text goes on.

    >>> [(list(tokens), list(words)) for tokens, words in windows([0, 1, 3, 5], 6, 4, 2)]
    [([0, 1, 2, 3], [0, 1]), ([2, 3, 4, 5], [2, 3])]
    """
    parts = overlapping_windows(length, most, stride)
    word = 0
    for number, part in enumerate(parts):
        begin = word
        while word < len(first) and first[word] in part:
            here = _context(first[word], part, length)
            if any(_context(first[word], other, length) > here for other in _later(parts, number, first[word])):
                break
            word += 1
        if word > begin:
            yield WordRange(part, range(begin, word))


def _later(parts: Sequence[range], number: int, place: int) -> Iterator[range]:
    for later in range(number + 1, len(parts)):
        if place not in parts[later]:
            return
        yield parts[later]


def _context(place: int, part: range, length: int) -> float:
    """The tokens between a place and the nearest end of the window that is no end of the text."""
    before = place - part.start if part.start else float("inf")
    after = part.stop - 1 - place if part.stop < length else float("inf")
    return min(before, after)


def shared(stride: int | None, most: int) -> int:
    """The tokens that windows of ``most`` share: as asked for, or a quarter."""
    if stride is not None and stride >= most:
        raise HeedfulError(f"windows of {most:,} tokens cannot share {stride:,} (stride); give {most - 1} or less")
    return most // 4 if stride is None else stride
