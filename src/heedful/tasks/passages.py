"""Texts that are asked about: their tokens with the characters these stand for, and windows over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data.rows import Span
from heedful.errors import HeedfulError, plural
from heedful.tasks.encoder_task import overlapping_windows
from heedful.text import Tokenizer
from heedful.text.word_boundaries import is_word_border

LONGEST, STRIDE = 384, 128  # tokens of a window and of what two share, where nobody says (as in BERT's run_squad.py)
BATCH = 1000  # texts tokenised at a time: the library's offsets are far larger than these arrays
NOWHERE = -1


class Passage(NamedTuple):
    """A text: the ids of its tokens (n,), the characters (n, 2), from and to, that each stands for, and whether any of
    these can be seen (n,): a tokenizer may have tokens of blanks alone.
    """

    text: str
    ids: NDArray[np.int32]
    places: NDArray[np.int32]
    seen: NDArray[np.bool_]

    def characters(self, first: int, last: int) -> Span:
        """The piece from token ``first`` to token ``last``, without blanks around it."""
        start, end = int(self.places[first, 0]), int(self.places[last, 1])
        piece = self.text[start:end]
        return Span(piece.strip(), start + len(piece) - len(piece.lstrip()))

    def whole_words(self, span: Span) -> Span:
        """The piece widened until no word goes on before or after it; one at word borders stays as it is.

        >>> text = "Denver's 3,000 fans"
        >>> passage = Passage(text, np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, bool))
        >>> [passage.whole_words(span).text for span in (Span("enve", 1), Span("Denver", 0), Span("000 f", 11))]
        ['Denver', 'Denver', '3,000 fans']
        """
        start, end = span.start, span.start + len(span.text)
        while not is_word_border(self.text, start):
            start -= 1
        while not is_word_border(self.text, end):
            end += 1
        return Span(self.text[start:end], start)

    def tokens(self, span: Span) -> tuple[int, int]:
        """The first and the last token that have something of ``span``; the last is before the first where none has."""
        first = np.searchsorted(self.places[:, 1], span.start, side="right")
        last = np.searchsorted(self.places[:, 0], span.start + len(span.text), side="left") - 1
        return int(first), int(last)


class QuestionWindow(NamedTuple):
    """A question and the tokens ``first`` to ``last`` - 1 of a passage; the answer's first and last token in the
    passage, ``NOWHERE`` where the window does not hold it whole; the place of the question's row.
    """

    question: list[int]
    passage: Passage
    first: int
    last: int
    start: int
    end: int
    row: int


class QuestionWindows(NamedTuple):
    """The windows of some questions, those of one together, and what a person should know of them."""

    windows: list[QuestionWindow]
    note: str
    unread: list[int]  # the places of questions of which not all is read or learned


def passages_of(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, Passage]:
    """Each different text as a passage."""
    found: dict[str, Passage] = {}
    distinct = list(dict.fromkeys(texts))
    for number in range(0, len(distinct), BATCH):
        some = distinct[number : number + BATCH]
        for text, (ids, places) in zip(some, tokenizer.offsets(some), strict=True):
            seen = np.array([bool(text[first:last].strip()) for first, last in places], bool)
            found[text] = Passage(text, np.array(ids, np.int32), np.array(places, np.int32).reshape(-1, 2), seen)
    return found


def question_windows(
    tokenizer: Tokenizer,
    asked: Sequence[tuple[str, str]],
    answers: Sequence[Sequence[Span]],
    most: int,
    stride: int | None = None,
) -> QuestionWindows:
    """Windows of at most ``most`` tokens, special ones and the question counted.

    Args:
        tokenizer: of the model.
        asked: questions and their texts.
        answers: of each the answers, of which the first is learned; none means that there is none.
        most: tokens of a window. A question keeps at most half of them.
        stride: tokens that neighbouring windows share, at most half of ``most``; None is 128, or a third of ``most``
            where that is less. Beside a long question it is half of what is left for the text, if that is less.
    """
    around = tokenizer.around(pair=True)
    room = most - around.added
    shared = min(STRIDE, most // 3) if stride is None else stride
    if room < 4:
        raise HeedfulError(f"--data.max-length {most} has no room for a question and a text; give {around.added + 4}")
    if shared > most // 2:
        raise HeedfulError(
            f"windows of {plural(most, 'token')} cannot share {shared} (stride); give {most // 2} or less"
        )
    passages = passages_of(tokenizer, (context for _, context in asked))
    questions = tokenizer.encode([question for question, _ in asked])
    found: list[QuestionWindow] = []
    split, cut, lost = 0, 0, 0
    unread: list[int] = []
    for row, (ids, (_, context), golds) in enumerate(zip(questions, asked, answers, strict=True)):
        made = list(_windows(ids[: room // 2], passages[context], golds, room, shared, row))
        split += len(made) > 1
        short, nowhere = len(ids) > room // 2, bool(golds) and all(window.start == NOWHERE for window in made)
        cut, lost = cut + short, lost + nowhere
        unread += [row] if short or nowhere else []
        found += made
    told = (
        (split, f"{plural(split, 'question')} on texts read in windows of {most} tokens that share {shared}"),
        (cut, f"{plural(cut, 'question')} cut to {room // 2} tokens"),
        (lost, f"{plural(lost, 'answer')} in no window whole, so learned as none"),
    )
    return QuestionWindows(found, "; ".join(text for count, text in told if count), unread)


def _windows(
    question: list[int], passage: Passage, answers: Sequence[Span], room: int, shared: int, row: int
) -> Iterator[QuestionWindow]:
    room -= len(question)
    start, end = passage.tokens(answers[0]) if answers else (NOWHERE, NOWHERE)
    for window in overlapping_windows(len(passage.ids), room, min(shared, room // 2)):
        within = window.start <= start <= end < window.stop
        own = (start, end) if within else (NOWHERE, NOWHERE)
        yield QuestionWindow(question, passage, window.start, window.stop, *own, row)
