"""Encoding of long documents: in parts that fit memory, and each word once where that is exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np

from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_training import PART_END, PART_LENGTH, WORD_PART_END, part_bounds

MAX_CACHED_CHARACTERS = 1 << 25  # characters of cached words after which the cache is cleared
# Ways to split a text into words: before a space or a line's end, or before a space only, that follows no other.
WORD_PATTERNS = (
    re.compile(r"\s*\S+(?:[^\S \n]\s*\S*)*|\s+"),
    re.compile(r"\s*\S+(?:[^\S ]\s*\S*)*|\s+"),
)
# Texts on which splitting into words is known to change tokens.
PROBE_TEXTS = (
    "one two\nthree  four\n\n\tfive \n six\t\n seven\x1ceight.\x1c nine\r\nten\u00a0\n x\u2003 y \u3000z",
    "word. Word, (word) word! 'tis it's we'll \" quoted \" 12 345 6\n7.8\n\n9 a1 1a .\n.\n\n. ,\n\n a\n -b --",
    "c -\n\n-",
    "über Ναύς ΟΔΟΣ ΟΣ\nдом עִבְרִית हिन्दी 漢字 漢\nかな 한국어",
    "e\u0301 e \u0301 \ufeff x\n\ufeff y \u200d z 👩\u200d👩 👍🏽\n🇩🇪 ﬁ ½ ①",
    "  begins\nends \n",
    "   \n \n",
)


class WordCache:
    """Encodes texts word by word, each distinct word once. In 10 MB of English nine words of ten recur.

    The ids are those of ``tokenizer.encode`` if the tokenizer splits texts at these places too. That is tested on
    awkward texts: see ``part_bounds``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._size = 0
        self._words = next(filter(self._is_exact, WORD_PATTERNS), None)
        self._known, self._size = {}, 0

    @property
    def cuts(self) -> bool:
        """True if texts can be encoded by words; else ``encode`` must not be called."""
        return self._words is not None

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids (N,) int32 of a text."""
        assert self._words is not None, "the tokenizer reads words otherwise where they stand alone"
        return self._joined(self._words, text)

    def _joined(self, words: re.Pattern[str], text: str) -> np.ndarray:
        found = words.findall(text)
        new = set(found).difference(self._known)
        if new:
            self._size += sum(map(len, new))
            if self._size > MAX_CACHED_CHARACTERS:
                self._known.clear()
                new, self._size = set(found), sum(map(len, set(found)))
            self._known.update(zip(new, self.tokenizer.encode(list(new)), strict=True))
        return np.fromiter(chain.from_iterable(map(self._known.__getitem__, found)), np.int32)

    def _is_exact(self, words: re.Pattern[str]) -> bool:
        """Returns True if the ids of words, split so, are those of whole texts, with every added token among them."""
        added = sorted(token.content for token in self.tokenizer.backend.get_added_tokens_decoder().values())
        if any(any(letter.isspace() for letter in token) for token in added):
            return False
        among = "".join(f"{token} a {token}\n{token}a\n\n{token}" for token in added[:100])
        texts = [
            *PROBE_TEXTS,
            among,
            among.replace("a", "."),
            *(word for text in PROBE_TEXTS for word in text.split("\n")),
        ]
        self._known.clear()
        return all(
            self._joined(words, text).tolist() == self.tokenizer.encode([text])[0]
            and [part for word in words.findall(text) for part in self._cut(word)] == self._cut(text)
            for text in texts
        )

    def _cut(self, text: str) -> list[str]:
        """Returns the pre-tokens of a text, which no token crosses."""
        backend = self.tokenizer.backend
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        cut = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, (0, len(text)))]
        return [part for part, _ in cut if part]


BATCH_CHARACTERS = (
    16 * PART_LENGTH
)  # characters encoded at a time: the library's encodings are far larger than their ids


def encode_parts(
    tokenizer: Tokenizer, texts: Iterable[str], continues: Iterable[bool] = ()
) -> Iterator[tuple[bool, np.ndarray]]:
    """Yields (begins, ids): the ids of ``texts`` in parts (N,) int32, and whether a text begins there. ``continues``
    marks texts that continue the one before; none by default.

    The joined ids are those of whole texts: a text is split only between a letter and a line's end, before words too
    if the tokenizer allows it, and not at all for a tokenizer that adds a space before every text.
    """
    whole, *halves = tokenizer.encode(["one\n two\n\nthree", "one", "\n two\n\nthree"])
    words = WordCache(tokenizer)
    most = None if whole != halves[0] + halves[1] else BATCH_CHARACTERS if words.cuts else PART_LENGTH
    at = WORD_PART_END if words.cuts else PART_END
    for group in _grouped_parts(zip(texts, chain(continues, repeat(False)), strict=False), most, at):
        parts = (part for _, part in group)
        ids = map(words.encode, parts) if words.cuts else _arrays(tokenizer.encode([*parts]))
        yield from zip((begins for begins, _ in group), ids, strict=True)


def _arrays(rows: Iterable[list[int]]) -> Iterator[np.ndarray]:
    return (np.array(ids, dtype=np.int32) for ids in rows)


def _grouped_parts(
    texts: Iterable[tuple[str, bool]], most: int | None, at: re.Pattern[str]
) -> Iterator[list[tuple[bool, str]]]:
    """Yields lists of (begins, part of about ``most`` characters); a list has about ``BATCH_CHARACTERS`` characters."""
    group: list[tuple[bool, str]] = []
    size = 0
    for text, continues in texts:
        for start, end in part_bounds(text, most, at):
            group.append((start == 0 and not continues, text[start:end]))
            size += end - start
            if size >= BATCH_CHARACTERS:
                yield group
                group, size = [], 0
    if group:
        yield group
