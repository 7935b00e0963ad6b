"""BPE-dropout: words are segmented anew in each epoch, with merges skipped at random."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from heedful.errors import HeedfulError
from heedful.text.tokenizer import BATCH_SIZE, Tokenizer

MAX_CACHED_LETTERS = 32  # letters of a word whose rounds are cached
MAX_CACHED_WORDS = 100_000  # number of cached words, about a kilobyte each


class WordIds(list[int]):
    """Ids of a text with the starts of its words, for segmentation with dropout.

    Args:
        ids: the ids of the whole input.
        starts: starts of the words, and the end of the last one; ids outside stay unchanged.
        most: maximum number of ids after segmentation.
    """

    __slots__ = ("most", "starts")

    def __init__(self, ids: Iterable[int], starts: Sequence[int], most: int | None) -> None:
        super().__init__(ids)
        self.starts, self.most = tuple(starts), most


class BpeDropout:
    """Segments words with BPE-dropout (Provilkov et al. 2020, algorithm 1).

    A word starts as its letters. In each round every possible merge is dropped with probability ``rate``; the first of
    the others, in learned order, is applied wherever it was not dropped; without any the word is done. At rate 0
    these are the tokenizer's own ids.

    The library's own dropout draws from a generator that cannot be set, so a resumed run would see other tokens.

    >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300)
    >>> again = BpeDropout(tokenizer, 0.5)
    >>> (words,) = again.marked(["a small text"], tokenizer.encode(["a small text"]))
    >>> tokenizer.decode([again(words, np.random.default_rng(0))])
    ['a small text']

    Raises :class:`HeedfulError` for a vocabulary that is not made of merges.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model = json.loads(tokenizer.backend.to_str())["model"]
        if model["type"] != "BPE":
            raise HeedfulError(
                f"--tokenizer.dropout leaves out merges, of which a vocabulary of the kind {model['type']} has none; "
                "leave it out, or take --tokenizer.kind=bpe"
            )
        self.tokenizer, self.rate = tokenizer, rate
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}  # a pair of ids to its rank and its token
        self._halves: dict[int, tuple[int, int]] = {}
        vocabulary, inside = model["vocab"], len(model.get("continuing_subword_prefix") or "")
        for rank, merge in enumerate(model["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            pair, made = (vocabulary[left], vocabulary[right]), vocabulary[left + right[inside:]]
            self._merges[pair] = rank, made
            self._halves.setdefault(made, pair)
        self._known: dict[tuple[int, ...], tuple[list[int], list[tuple[list[int], int]]]] = {}

    def marked(self, texts: Sequence[str], rows: Sequence[list[int]], most: int | None = None) -> list[WordIds]:
        """Returns ``rows``, the ids of ``texts``, with the starts of their words.

        ``rows`` may have ids before and after those of the text, and may end within it.
        """
        found = []
        before = len(self.tokenizer.around().before)
        for first in range(0, len(texts), BATCH_SIZE):
            given = list(texts[first : first + BATCH_SIZE])
            cut = self.tokenizer.backend.encode_batch(given, add_special_tokens=False)
            for row, encoding in zip(rows[first : first + BATCH_SIZE], cut, strict=True):
                words, ids = encoding.word_ids, encoding.ids
                whole = next((n for n, (a, b) in enumerate(zip(row[before:], ids, strict=False)) if a != b), len(ids))
                end = min(whole, len(row) - before)
                starts = [n for n in range(end) if n == 0 or words[n] is None or words[n] != words[n - 1]]
                found.append(WordIds(row, [before + n for n in (*starts, end)], most))
        return found

    def __call__(self, ids: list[int], random: np.random.Generator) -> list[int]:
        """Returns ``ids`` from :meth:`marked`, segmented anew; unchanged if they would be too many."""
        assert isinstance(ids, WordIds)
        draws = self._draws(random)
        made = ids[: ids.starts[0]]
        for start, end in pairwise(ids.starts):
            made += self._again(tuple(ids[start:end]), draws)
        made += ids[ids.starts[-1] :]
        return list(ids) if ids.most is not None and len(made) > ids.most else made

    @staticmethod
    def _draws(random: np.random.Generator) -> Iterator[float]:
        while True:
            yield from random.random(512).tolist()

    def _again(self, word: tuple[int, ...], draws: Iterator[float]) -> Sequence[int]:
        if word not in self._known:
            if len(self._known) == MAX_CACHED_WORDS:
                self._known.clear()
            self._known[word] = self._rounds(word)
        letters, rounds = self._known[word]
        if len(letters) < 2 or self.rate == 0:
            return word
        if not rounds:
            return self._merged(letters, draws)
        # Up to the first round whose merge is left out, all goes as without dropping: so many rounds, in one draw.
        sound = int(math.log1p(-next(draws)) / math.log1p(-self.rate))
        return word if sound >= len(rounds) else self._merged(rounds[sound][0], draws, out=rounds[sound][1])

    def _rounds(self, word: tuple[int, ...]) -> tuple[list[int], list[tuple[list[int], int]]]:
        """What the word is merged of; and of each round without dropping its tokens and the place of its merge, where
        that is always one, and the word is not long.

        A word that merging does not give back has no letters: its end was cut off.
        """
        letters: list[int] = []
        rest = list(reversed(word))
        while rest:
            token = rest.pop()
            if token in self._halves:
                rest += reversed(self._halves[token])
            else:
                letters.append(token)
        rounds, now, one = list[tuple[list[int], int]](), letters, True
        while (after := self._round(now, pairs := self._pairs(now))) is not None:
            one = one and len(now) - len(after) == 1 and len(letters) <= MAX_CACHED_LETTERS
            rounds.append((now, min(pairs)[2]))
            now = after
        return letters if tuple(now) == word else [], rounds if one else []

    def _merged(self, word: list[int], draws: Iterator[float], out: int = -1) -> list[int]:
        """``word`` merged to its end; in the first round the merge at the place ``out`` is left out."""
        while True:
            pairs = [pair for pair in self._pairs(word) if pair[2] != out and next(draws) >= self.rate]
            after = self._round(word, pairs)
            if after is None:
                return word
            word, out = after, -1

    def _pairs(self, word: Sequence[int]) -> list[tuple[int, int, int]]:
        """Rank, token and place of each merge that could be made."""
        merges = self._merges
        return [(*merges[pair], place) for place, pair in enumerate(pairwise(word)) if pair in merges]

    @staticmethod
    def _round(word: list[int], pairs: Sequence[tuple[int, int, int]]) -> list[int] | None:
        """``word`` with the first of ``pairs`` merged, wherever it stands among them; None where there is none."""
        if not pairs:
            return None
        first, made, _ = min(pairs)
        joined, done = list[int](), 0
        for place in (place for rank, _, place in pairs if rank == first):
            if place >= done:  # of three alike the first two
                joined += [*word[done:place], made]
                done = place + 2
        return joined + word[done:]
