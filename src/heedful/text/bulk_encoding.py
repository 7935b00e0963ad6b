"""Encoding long documents: in parts, so that memory need not hold a whole one; each word once where that is exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np

from heedful.text.pipelines import CUT, PART, WORD_CUT, cuts
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_cache import WordCache

TOGETHER = 16 * PART  # characters encoded at a time: the library's encodings are far larger than their ids


def encode_parts(
    tokenizer: Tokenizer, texts: Iterable[str], continues: Iterable[bool] = ()
) -> Iterator[tuple[bool, np.ndarray]]:
    """The ids of ``texts``, one after the other in parts (N,) int32, each with whether a text begins there.
    ``continues`` says which of them go on with the one before; by default none.

    The ids of a text's parts, joined, are those of the whole: it is cut only between a letter and the end of a line,
    before a word too where words are read alike alone and in a text, and not at all for a tokenizer that reads a part
    otherwise (one that puts a space before every text).
    """
    whole, *halves = tokenizer.encode(["one\n two\n\nthree", "one", "\n two\n\nthree"])
    words = WordCache(tokenizer)
    most = None if whole != halves[0] + halves[1] else TOGETHER if words.cuts else PART
    at = WORD_CUT if words.cuts else CUT
    for group in _grouped(zip(texts, chain(continues, repeat(False)), strict=False), most, at):
        parts = (part for _, part in group)
        ids = map(words.encode, parts) if words.cuts else _arrays(tokenizer.encode([*parts]))
        yield from zip((begins for begins, _ in group), ids, strict=True)


def _arrays(rows: Iterable[list[int]]) -> Iterator[np.ndarray]:
    return (np.array(ids, dtype=np.int32) for ids in rows)


def _grouped(
    texts: Iterable[tuple[str, bool]], most: int | None, at: re.Pattern[str]
) -> Iterator[list[tuple[bool, str]]]:
    """Lists of (whether a text begins, part of about ``most`` characters), each list of ``TOGETHER`` characters."""
    group: list[tuple[bool, str]] = []
    size = 0
    for text, continues in texts:
        for start, end in cuts(text, most, at):
            group.append((start == 0 and not continues, text[start:end]))
            size += end - start
            if size >= TOGETHER:
                yield group
                group, size = [], 0
    if group:
        yield group
