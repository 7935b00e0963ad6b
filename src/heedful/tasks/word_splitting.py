"""Splits a text into words as the training data does, which are lists of words.

The words of a run's data show which characters stand inside words (``BQ-221``), which are words of their own, and which
words the rules alone would break (``U.S.``, ``...``, 北京).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

from heedful.errors import HeedfulError
from heedful.text.word_boundaries import JOINERS, SPACELESS

MOST_WORDS = 20_000  # words that a folder stores, the most frequent first
FEWEST = 5  # different words to which a sign must be attached until it is attached to new words too
RARE = 5  # times as often as inside words, where a text may also have had blanks around the sign (``New - York``)
NEAR = 4  # words between which a sign that is a word is looked for
APOSTROPHES = "'’"
ENDS = ".!?…"  # before a capital they end a sentence, which says nothing about "a.b"
ABBREVIATION = re.compile(r"(?:[^\W\d_]\.){2,}")
# Kinds of characters, as in ``WordSplitting.separate``: a letter, a digit; a letter of a script without spaces; a sign
# (punctuation or symbol).
LETTER, DIGIT, SPACELESS_LETTER, SIGN = "a1字."
SHORT = re.compile(rf"[^\W\d_][{APOSTROPHES}][^\W\d_]")
JOINED = re.compile("[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")  # skin tones and tags continue an emoji
REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]")  # two letters make a flag
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class WordSplitting:
    """Rules that split a text into words, with what the training words add to them.

    Blanks separate words. Signs (punctuation, symbols, emoji) at the ends of a word are words of their own, one each;
    inside it they do not split it. A character of a script without spaces is a word. Abbreviations of single letters
    keep their last period (``U.S.``). The fields are exceptions.

    >>> rules = WordSplitting()
    >>> [text for text, _ in rules.words_of('He said "BQ-221, U.S." (13.5)!')]
    ['He', 'said', '"', 'BQ-221', ',', 'U.S.', '"', '(', '13.5', ')', '!']
    >>> learned = WordSplitting.learn([["Ann", "'s", "New", "-", "York", "..."]])
    >>> [text for text, _ in learned.words_of("Bob's Port-au-Prince...")]
    ['Bob', "'s", 'Port', '-', 'au', '-', 'Prince', '...']

    Attributes:
        leading: signs that belong to the word after them (``@ann``).
        trailing: signs that belong to the word before them (``5%``).
        separate: signs that are words inside a word too, with the kinds of characters around: ``a-a`` is a hyphen
            between letters, ``1.1`` a point between digits.
        endings: ends of words that are words of their own, such as ``n't``.
        words: words that these rules would split.
    """

    leading: str = ""
    trailing: str = ""
    separate: Sequence[str] = ()
    endings: Sequence[str] = ()
    words: Sequence[str] = ()

    @classmethod
    def learn(cls, sentences: Iterable[Sequence[str]]) -> Self:
        """Returns the rules for lists of words.

        A sign is attached if it is attached to more words than it stands alone, and to at least ``FEWEST`` different
        ones. It is separate between two kinds of characters if it is a word between them more than ``RARE`` times as
        often as it stands inside a word, an apostrophe more often. A word with signs at its ends is an exception unless
        it is more frequent without them.
        """
        counts: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        for words in sentences:
            counts.update(words)
            if not all(map(str.isalnum, words)):
                alone.update(_separate_signs(words))
        special = {word: count for word, count in counts.items() if not (word.isascii() and word.isalnum())}
        endings = _endings(special)
        inside: Counter[str] = Counter()
        for word, count in special.items():
            if word not in endings:
                inside.update(dict.fromkeys(_inner_signs(word), count))
        rules = cls(
            leading=_attached(special, counts, is_leading=True),
            trailing=_attached(special, counts, is_leading=False),
            separate=sorted(
                key for key, count in alone.items() if count > inside[key] * (1 if key[1] in APOSTROPHES else RARE)
            ),
            endings=sorted(endings),
        )
        broken = [word for word in special if len(word.split()) == 1 and len(rules._spans(word)) > 1]
        broken = [word for word in broken if _is_usual(word, counts)]
        broken.sort(key=lambda word: (-counts[word], word))
        return cls(**asdict(rules) | {"words": sorted(broken[:MOST_WORDS])})

    @classmethod
    def read(cls, stored: Any, source: object) -> Self:
        """Returns the rules that ``as_dict`` returned; raises ``HeedfulError`` that names ``source`` for others."""
        names = {field.name for field in fields(cls)}
        if not isinstance(stored, Mapping) or not names.issuperset(stored):
            raise HeedfulError(f"{source}: word_splitting is {stored!r:.60}; write an object of {', '.join(names)}")
        for name, value in stored.items():
            kind = str if name in ("leading", "trailing") else list
            if not isinstance(value, kind) or not all(isinstance(item, str) for item in value):
                raise HeedfulError(f"{source}: word_splitting.{name} is {value!r:.60}; write text, or a list of texts")
        return cls(**stored)

    def as_dict(self) -> dict[str, Any]:
        """Returns the rules for JSON, without those that add nothing."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if isinstance(value, str) else list(value) for name, value in values.items() if value}

    def words_of(self, text: str) -> list[tuple[str, Span]]:
        """Returns the words of a text, each with its characters (start, end). Control characters alone are no word."""
        found = []
        for chunk in re.finditer(r"\S+", text):
            for start, end in self._joined(chunk[0], self._spans(chunk[0])):
                word = chunk[0][start:end]
                if any(unicodedata.category(character) not in ("Cc", "Cf") for character in word):
                    found.append((word, (chunk.start() + start, chunk.start() + end)))
        return found

    @cached_property
    def _known(self) -> tuple[frozenset[str], int]:
        """The exceptions, and the length of the longest."""
        return frozenset(self.words), max(map(len, self.words), default=0)

    def _joined(self, chunk: str, spans: Sequence[Span]) -> Iterator[Span]:
        """Yields the spans; those that together are a known word as one span, the longest first."""
        known, longest = self._known
        first = 0
        while first < len(spans):
            start = spans[first][0]
            last = first + 1
            for end in range(first + 2, len(spans) + 1):
                if spans[end - 1][1] - start > longest:
                    break
                if chunk[start : spans[end - 1][1]] in known:
                    last = end
            yield start, spans[last - 1][1]
            first = last

    def _spans(self, chunk: str) -> list[Span]:
        """Returns the words of a text without blanks, before known words are joined."""
        if chunk.isascii() and chunk.isalnum():
            return [(0, len(chunk))]
        characters = _characters(chunk)
        kinds = [_kind(chunk[start]) for start, _ in characters]
        size = len(kinds)
        first = next((i for i, kind in enumerate(kinds) if kind != SIGN), size)
        end = size - next((i for i, kind in enumerate(reversed(kinds)) if kind != SIGN), 0)
        cuts = {0, size}
        if first == size:
            cuts.update(range(size))
        else:
            cuts.update(range(1, first + 1), range(end, size))
            if first and chunk[characters[first - 1][0]] in self.leading:
                cuts.discard(first)
            if end < size and self._keeps_next(chunk, characters, first, end):
                cuts.discard(end)
            cuts.update(self._inner_cuts(chunk, characters, kinds, first, end))
        starts = [start for start, _ in characters] + [len(chunk)]
        return [(starts[one], starts[other]) for one, other in pairwise(sorted(cuts))]

    def _keeps_next(self, chunk: str, characters: Sequence[Span], first: int, end: int) -> bool:
        """Returns True if the sign after a word belongs to it: attached, or the last period of an abbreviation."""
        sign = chunk[characters[end][0]]
        word = chunk[characters[first][0] : characters[end][0] + 1]
        return sign in self.trailing or (
            ABBREVIATION.fullmatch(word) is not None and _key(LETTER, ".", LETTER) not in self.separate
        )

    def _inner_cuts(
        self, chunk: str, characters: Sequence[Span], kinds: Sequence[str], first: int, end: int
    ) -> Iterator[int]:
        """Yields the boundaries inside a word that neither begins nor ends with a sign."""
        core = chunk[characters[first][0] : characters[end - 1][1]]
        ending = next((text for text in self.endings if core.endswith(text) and core != text), "")
        border = characters[end - 1][1] - len(ending)
        for i in range(first, end):
            start, stop = characters[i]
            if ending and start >= border:
                if start == border:
                    yield i
                return
            if kinds[i] == SPACELESS_LETTER:
                yield from (i, i + 1)
            elif kinds[i] == SIGN and first < i < end - 1:
                before, after = _around(kinds, i)
                if SPACELESS_LETTER in (before, after) or _key(before, chunk[start:stop], after) in self.separate:
                    yield from (i, i + 1)


def _characters(text: str) -> list[Span]:
    """Returns the characters as people see them: each with its marks, an emoji with its parts."""
    spans: list[Span] = []
    for i, character in enumerate(text):
        continues = bool(spans) and (
            unicodedata.category(character)[0] == "M"
            or character in JOINERS
            or JOINED.match(character) is not None
            or (text[i - 1] == "\u200d" and unicodedata.category(character) == "So")
            or (REGIONAL.match(character) is not None and REGIONAL.fullmatch(text[slice(*spans[-1])]) is not None)
        )
        if continues:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
    return spans


def _kind(character: str) -> str:
    """Returns the kind of a character: ``LETTER``, ``DIGIT``, ``SPACELESS_LETTER`` or ``SIGN``."""
    if unicodedata.category(character)[0] in "PS":
        return SIGN
    if any(first <= ord(character) <= last for first, last in SPACELESS):
        return SPACELESS_LETTER
    return DIGIT if character.isdigit() else LETTER


def _key(before: str, sign: str, after: str) -> str:
    return before + sign + after


def _around(kinds: Sequence[str], position: int) -> tuple[str, str]:
    """Returns the kinds of the nearest characters before and after a position that are no signs."""
    before = next(kind for kind in reversed(kinds[:position]) if kind != SIGN)
    return before, next(kind for kind in kinds[position + 1 :] if kind != SIGN)


def _inner_signs(word: str) -> set[str]:
    """Returns the signs inside a word, with the kinds of characters around."""
    characters = _characters(word)
    kinds = [_kind(word[start]) for start, _ in characters]
    letters = [i for i, kind in enumerate(kinds) if kind != SIGN]
    found = set()
    for i in range(letters[0] + 1, letters[-1]) if letters else ():
        if kinds[i] == SIGN:
            before, after = _around(kinds, i)
            found.add(_key(before, word[slice(*characters[i])], after))
    return found


def _separate_signs(words: Sequence[str]) -> Iterator[str]:
    """Yields the signs that are words between two others, or apostrophes at such a border (``Ann 's``, ``l' eau``).

    A repeated sign (``...``) is another word than the sign.
    """
    for i in range(1, len(words) - 1):
        word = words[i]
        signs = [] if word.isalnum() else [word[slice(*span)] for span in _characters(word)]
        if any(_kind(sign[0]) != SIGN for sign in signs) or len(signs) > 1 == len({*signs}):
            continue
        before = next((other[-1] for other in reversed(words[max(0, i - NEAR) : i]) if other[-1].isalnum()), None)
        after = next((other[0] for other in words[i + 1 : i + 1 + NEAR] if other[0].isalnum()), None)
        if before and after and not (word in ENDS and after.isupper()):
            yield from (_key(_kind(before), sign, _kind(after)) for sign in signs)
    for word, other in pairwise(words):
        if word[-1] in APOSTROPHES or other[0] in APOSTROPHES:
            sign = word[-1] if word[-1] in APOSTROPHES else other[0]
            left, right = (word[-2:-1], other[0]) if word[-1] in APOSTROPHES else (word[-1], other[1:2])
            if left.isalnum() and right.isalnum():
                yield _key(_kind(left), sign, _kind(right))


def _endings(special: Mapping[str, int]) -> set[str]:
    """Returns words of two letters around an apostrophe (``n't``) that end no longer word as often."""
    found = {word for word in special if SHORT.fullmatch(word) and special[word] > 1}
    return {
        ending
        for ending in found
        if special[ending] > sum(count for word, count in special.items() if word != ending and word.endswith(ending))
    }


def _attached(special: Mapping[str, int], counts: Mapping[str, int], *, is_leading: bool) -> str:
    """Returns the signs that are attached to words more often than they are words, to several different ones."""
    tokens: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for word, count in special.items():
        sign, neighbour = (word[:1], word[1:2]) if is_leading else (word[-1:], word[-2:-1])
        if neighbour and sign not in APOSTROPHES and _kind(sign) == SIGN and _kind(neighbour) != SIGN:
            tokens[sign] += count
            kinds[sign] += 1
    return "".join(sorted(s for s in tokens if kinds[s] >= FEWEST and tokens[s] > counts.get(s, 0)))


def _is_usual(word: str, counts: Mapping[str, int]) -> bool:
    """Returns False for a word that is more frequent without the signs at its ends."""
    first = next((i for i, character in enumerate(word) if _kind(character) != SIGN), len(word))
    end = len(word) - next((i for i, character in enumerate(reversed(word)) if _kind(character) != SIGN), 0)
    core = word[first:end]
    return core in ("", word) or counts[word] >= counts.get(core, 0)
