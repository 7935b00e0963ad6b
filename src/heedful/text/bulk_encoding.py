"""Encoding of long documents: in parts that fit memory; each distinct word is encoded once if that keeps the ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np

from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_training import PART_END, PART_LENGTH, WORD_PART_END, part_bounds

MAX_CACHED_CHARACTERS = 1 << 25  # the cache is cleared when its words have more
# Two ways to split a text into words: before each run of whitespace that begins with a space or a line's end, or with a
# space only.
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
    """Encoder of texts word by word that encodes each distinct word once.

    In 10 MB of English text nine of ten words are repetitions. The ids equal those of ``tokenizer.encode`` if the
    tokenizer also splits texts at word boundaries. The constructor tests this on ``PROBE_TEXTS``; ``is_exact`` is the
    result.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}
        self._size = 0
        self._pattern = next(filter(self._preserves_ids, WORD_PATTERNS), None)
        self._cache, self._size = {}, 0

    @property
    def is_exact(self) -> bool:
        """True if encoding word by word gives the ids of whole texts. If it is False, ``encode`` must not be called."""
        return self._pattern is not None

    def encode(self, text: str) -> np.ndarray:
        """Returns the token ids of a text, an int32 array (N,)."""
        assert self._pattern is not None, "the tokenizer gives words other ids than whole texts"
        return self._encode_words(self._pattern, text)

    def _encode_words(self, pattern: re.Pattern[str], text: str) -> np.ndarray:
        words = pattern.findall(text)
        new = set(words).difference(self._cache)
        if new:
            self._size += sum(map(len, new))
            if self._size > MAX_CACHED_CHARACTERS:
                self._cache.clear()
                new, self._size = set(words), sum(map(len, set(words)))
            self._cache.update(zip(new, self.tokenizer.encode(list(new)), strict=True))
        return np.fromiter(chain.from_iterable(map(self._cache.__getitem__, words)), np.int32)

    def _preserves_ids(self, pattern: re.Pattern[str]) -> bool:
        """Returns True if words split by ``pattern`` have the ids of whole texts, also around every added token."""
        added = sorted(token.content for token in self.tokenizer.backend.get_added_tokens_decoder().values())
        if any(any(letter.isspace() for letter in token) for token in added):
            return False
        with_added = "".join(f"{token} a {token}\n{token}a\n\n{token}" for token in added[:100])
        lines = (line for text in PROBE_TEXTS for line in text.split("\n"))
        texts = [*PROBE_TEXTS, with_added, with_added.replace("a", "."), *lines]
        self._cache.clear()
        return all(
            self._encode_words(pattern, text).tolist() == self.tokenizer.encode([text])[0]
            and [part for word in pattern.findall(text) for part in self._pre_tokens(word)] == self._pre_tokens(text)
            for text in texts
        )

    def _pre_tokens(self, text: str) -> list[str]:
        """Returns the pre-tokens of a text, which no token crosses."""
        backend = self.tokenizer.backend
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        if not backend.pre_tokenizer:
            return [text] if text else []
        return [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(text) if part]


# Characters encoded at a time: the library's encodings are far larger than their ids.
BATCH_CHARACTERS = 16 * PART_LENGTH


def encode_parts(
    tokenizer: Tokenizer, texts: Iterable[str], continues: Iterable[bool] = ()
) -> Iterator[tuple[bool, np.ndarray]]:
    """Encodes texts in parts that fit in memory; yields (True for the first part of a text, ids of the part, int32).

    ``continues`` is True for each text that continues the previous text; none does by default. Joined, the ids of the
    parts equal those of whole texts: a text is split only between a letter and a line end, and before words if the
    tokenizer allows it. It is not split if the tokenizer adds a space before every text.
    """
    whole, *halves = tokenizer.encode(["one\n two\n\nthree", "one", "\n two\n\nthree"])
    cache = WordCache(tokenizer)
    length = None if whole != halves[0] + halves[1] else BATCH_CHARACTERS if cache.is_exact else PART_LENGTH
    part_end = WORD_PART_END if cache.is_exact else PART_END
    for group in _grouped_parts(zip(texts, chain(continues, repeat(False)), strict=False), length, part_end):
        parts = (part for _, part in group)
        ids = map(cache.encode, parts) if cache.is_exact else _arrays(tokenizer.encode([*parts]))
        yield from zip((begins for begins, _ in group), ids, strict=True)


def _arrays(rows: Iterable[list[int]]) -> Iterator[np.ndarray]:
    return (np.array(ids, dtype=np.int32) for ids in rows)


def _grouped_parts(
    texts: Iterable[tuple[str, bool]], length: int | None, part_end: re.Pattern[str]
) -> Iterator[list[tuple[bool, str]]]:
    """Yields lists of (begins, part) of about ``BATCH_CHARACTERS`` characters; a part has about ``length``."""
    group: list[tuple[bool, str]] = []
    size = 0
    for text, continues in texts:
        for start, end in part_bounds(text, length, part_end):
            group.append((start == 0 and not continues, text[start:end]))
            size += end - start
            if size >= BATCH_CHARACTERS:
                yield group
                group, size = [], 0
    if group:
        yield group
