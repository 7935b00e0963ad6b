"""BPE-dropout: in each epoch words are segmented anew, and some merges are skipped at random."""

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
    """Token ids of a text with the starts of its words, which segmentation with dropout needs.

    Args:
        ids: the ids of the whole input.
        starts: the start index of each word, and the end of the last word; ids outside the words stay unchanged.
        max_ids: maximum number of ids after segmentation.
    """

    __slots__ = ("max_ids", "starts")

    def __init__(self, ids: Iterable[int], starts: Sequence[int], max_ids: int | None) -> None:
        super().__init__(ids)
        self.starts, self.max_ids = tuple(starts), max_ids


class BpeDropout:
    """Segmentation of words with BPE-dropout (Provilkov et al. 2020, algorithm 1).

    A word starts as single letters. In each round every possible merge is dropped with probability ``rate``. Of the
    remaining merges the first in learned order is applied, at every position where it was not dropped. The word is done
    when no merge remains. At rate 0 the ids are those of ``Tokenizer.encode``.

    The library's own dropout is not used: its random generator cannot be seeded, so a resumed run would draw other
    segmentations.

    >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300)
    >>> segment = BpeDropout(tokenizer, 0.5)
    >>> (words,) = segment.with_word_starts(["a small text"], tokenizer.encode(["a small text"]))
    >>> tokenizer.decode([segment(words, np.random.default_rng(0))])
    ['a small text']

    Raises :class:`HeedfulError` if the vocabulary has no merges (another kind than BPE).
    """

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model = json.loads(tokenizer.backend.to_str())["model"]
        if model["type"] != "BPE":
            raise HeedfulError(
                f"--tokenizer.dropout needs a BPE vocabulary, but this one is of the kind {model['type']}; "
                "leave the option out, or use --tokenizer.kind=bpe"
            )
        self.tokenizer, self.rate = tokenizer, rate
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}  # pair of ids -> rank and merged token
        self._halves: dict[int, tuple[int, int]] = {}  # merged token -> its pair
        vocabulary, prefix_length = model["vocab"], len(model.get("continuing_subword_prefix") or "")
        for rank, merge in enumerate(model["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            pair, merged = (vocabulary[left], vocabulary[right]), vocabulary[left + right[prefix_length:]]
            self._merges[pair] = rank, merged
            self._halves.setdefault(merged, pair)
        self._cache: dict[tuple[int, ...], tuple[list[int], list[tuple[list[int], int]]]] = {}

    def with_word_starts(
        self, texts: Sequence[str], rows: Sequence[list[int]], max_ids: int | None = None
    ) -> list[WordIds]:
        """Returns the ids of each text together with the starts of its words, as segmentation needs them.

        ``rows`` has the ids of the texts; they may have other ids before and after the text, and may end within it.
        After segmentation, a text has at most ``max_ids`` ids.
        """
        rows_of_words = []
        before = len(self.tokenizer.template().before)
        for first in range(0, len(texts), BATCH_SIZE):
            batch = list(texts[first : first + BATCH_SIZE])
            encodings = self.tokenizer.backend.encode_batch(batch, add_special_tokens=False)
            for row, encoding in zip(rows[first : first + BATCH_SIZE], encodings, strict=True):
                words, ids = encoding.word_ids, encoding.ids
                common = next((n for n, (a, b) in enumerate(zip(row[before:], ids, strict=False)) if a != b), len(ids))
                end = min(common, len(row) - before)
                starts = [n for n in range(end) if n == 0 or words[n] is None or words[n] != words[n - 1]]
                rows_of_words.append(WordIds(row, [before + n for n in (*starts, end)], max_ids))
        return rows_of_words

    def __call__(self, ids: list[int], random: np.random.Generator) -> list[int]:
        """Segments ``ids`` (from :meth:`with_word_starts`) anew; returns ``ids`` if the result exceeds ``max_ids``.

        Raises ``HeedfulError`` for ids without the starts of their words, as a task of one's own may encode them.
        """
        if not isinstance(ids, WordIds):
            raise HeedfulError(
                "--tokenizer.dropout needs examples with the starts of their words, but the task's encode returned "
                f"a {type(ids).__name__}; encode with BpeDropout.with_word_starts, or leave the option out"
            )
        draws = self._draws(random)
        segmented = ids[: ids.starts[0]]
        for start, end in pairwise(ids.starts):
            segmented += self._segment_word(tuple(ids[start:end]), draws)
        segmented += ids[ids.starts[-1] :]
        return list(ids) if ids.max_ids is not None and len(segmented) > ids.max_ids else segmented

    @staticmethod
    def _draws(random: np.random.Generator) -> Iterator[float]:
        while True:
            yield from random.random(512).tolist()

    def _segment_word(self, word: tuple[int, ...], draws: Iterator[float]) -> Sequence[int]:
        if word not in self._cache:
            if len(self._cache) == MAX_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = self._rounds(word)
        letters, rounds = self._cache[word]
        if len(letters) < 2 or self.rate == 0:
            return word
        if not rounds:
            return self._merge(letters, draws)
        # Before the first dropped merge the rounds are those without dropout: one geometric draw gives their number.
        undropped = int(math.log1p(-next(draws)) / math.log1p(-self.rate))
        if undropped >= len(rounds):
            return word
        tokens, position = rounds[undropped]
        return self._merge(tokens, draws, dropped=position)

    def _rounds(self, word: tuple[int, ...]) -> tuple[list[int], list[tuple[list[int], int]]]:
        """Returns the letters of a word, and for each round without dropout its tokens and the position of its merge.

        The list of rounds is empty if a round merges at several positions or the word is long. The list of letters is
        empty if merging the letters does not give the word, because truncation cut off its end.
        """
        letters: list[int] = []
        rest = list(reversed(word))
        while rest:
            token = rest.pop()
            if token in self._halves:
                rest += reversed(self._halves[token])
            else:
                letters.append(token)
        rounds, tokens, is_cacheable = list[tuple[list[int], int]](), letters, len(letters) <= MAX_CACHED_LETTERS
        while (shorter := self._apply_first(tokens, merges := self._possible_merges(tokens))) is not None:
            is_cacheable = is_cacheable and len(tokens) - len(shorter) == 1
            rounds.append((tokens, min(merges)[2]))
            tokens = shorter
        return letters if tuple(tokens) == word else [], rounds if is_cacheable else []

    def _merge(self, tokens: list[int], draws: Iterator[float], dropped: int = -1) -> list[int]:
        """Merges until no merge remains; the first round also drops the merge at position ``dropped``."""
        while True:
            merges = [
                merge for merge in self._possible_merges(tokens) if merge[2] != dropped and next(draws) >= self.rate
            ]
            shorter = self._apply_first(tokens, merges)
            if shorter is None:
                return tokens
            tokens, dropped = shorter, -1

    def _possible_merges(self, tokens: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns (rank, merged token, position) of each adjacent pair that has a merge."""
        merges = self._merges
        return [(*merges[pair], position) for position, pair in enumerate(pairwise(tokens)) if pair in merges]

    @staticmethod
    def _apply_first(tokens: list[int], merges: Sequence[tuple[int, int, int]]) -> list[int] | None:
        """Applies the merge of lowest rank at all its positions in ``merges``; None if there are no merges."""
        if not merges:
            return None
        lowest, merged, _ = min(merges)
        result, end = list[int](), 0
        for position in (position for rank, _, position in merges if rank == lowest):
            if position >= end:  # of three equal tokens the first two are merged
                result += [*tokens[end:position], merged]
                end = position + 2
        return result + tokens[end:]
