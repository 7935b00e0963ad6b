"""Windows over the contexts of questions, as tokens with their character offsets, or as texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data.rows import Span
from heedful.errors import HeedfulError, plural
from heedful.tasks.encoder_task import overlapping_windows
from heedful.text import Tokenizer
from heedful.text.word_boundaries import is_word_border

LONGEST, STRIDE = 384, 128  # default tokens of a window, and of the overlap of two (as in BERT's run_squad.py)
BATCH = 1000  # texts tokenised at a time, since the library's offsets take much more memory than these arrays
ROOM = 4  # least number of tokens of a window for a question and a text
NOWHERE = -1  # the answer is not in the window


class Passage(NamedTuple):
    """Text with its token ids and the characters of each token."""

    text: str
    ids: NDArray[np.int32]  # (n,)
    offsets: NDArray[np.int32]  # (n, 2), first character of each token and the one after its last
    visible: NDArray[np.bool_]  # (n,), False for tokens of white space alone

    def characters(self, first: int, last: int) -> Span:
        """Returns the characters from token ``first`` to token ``last`` as a span, without white space around them."""
        start, end = int(self.offsets[first, 0]), int(self.offsets[last, 1])
        piece = self.text[start:end]
        return Span(piece.strip(), start + len(piece) - len(piece.lstrip()))

    def whole_words(self, span: Span) -> Span:
        """Returns the span widened to whole words; a span that begins and ends at word borders is unchanged.

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
        """Returns the indices of the first and the last token that overlap a span of characters.

        If no token does, the last index is less than the first.
        """
        first = np.searchsorted(self.offsets[:, 1], span.start, side="right")
        last = np.searchsorted(self.offsets[:, 0], span.start + len(span.text), side="left") - 1
        return int(first), int(last)


class QuestionWindow(NamedTuple):
    """Question and a window of tokens of its context, with the position of the answer."""

    question: list[int]
    passage: Passage
    first: int  # first token of the window in the passage
    last: int  # the token after its last one
    start: int  # first token of the answer in the passage; NOWHERE unless the window holds all of it
    end: int  # last token of the answer, or NOWHERE
    row: int  # number of the question


class QuestionWindows(NamedTuple):
    """Windows over the contexts of several questions, in the order of the questions."""

    windows: list[QuestionWindow]
    note: str  # for people: splits, truncated questions, answers in no window
    unread: list[int]  # numbers of the questions that are truncated or whose answer is in no window


def passages_of(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, Passage]:
    """Returns a `Passage`, with the tokens and their characters, for each distinct text."""
    passages: dict[str, Passage] = {}
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), BATCH):
        batch = distinct[start : start + BATCH]
        for text, (ids, offsets) in zip(batch, tokenizer.encode_with_offsets(batch), strict=True):
            visible = np.array([bool(text[first:last].strip()) for first, last in offsets], bool)
            passages[text] = Passage(text, np.array(ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2), visible)
    return passages


def question_windows(
    tokenizer: Tokenizer,
    questions: Sequence[tuple[str, str]],
    answers: Sequence[Sequence[Span]],
    most: int,
    stride: int | None = None,
) -> QuestionWindows:
    """Splits the contexts of questions into windows of at most ``most`` tokens, special tokens and question included.

    Args:
        tokenizer: tokenizer of the model.
        questions: (question, context) pairs.
        answers: the answers of each question, of which the first is learned; () for no answer.
        most: maximum number of tokens of a window. A question is truncated to half of that number.
        stride: number of tokens that neighbouring windows share, at most half of ``most``; None for 128, or a third of
            ``most`` if that is less. A long question may reduce it to half of the remaining tokens.
    """
    template = tokenizer.template(pair=True)
    room = most - template.added
    if room < ROOM:
        raise HeedfulError(
            f"--data.max-length {most} has no room for a question and a text; give {template.added + ROOM} or more"
        )
    shared = shared_tokens(most, stride)
    passages = passages_of(tokenizer, (context for _, context in questions))
    question_ids = tokenizer.encode([question for question, _ in questions])
    windows: list[QuestionWindow] = []
    split, cut, lost = 0, 0, 0
    unread: list[int] = []
    for row, (ids, (_, context), golds) in enumerate(zip(question_ids, questions, answers, strict=True)):
        own = list(_windows(ids[: room // 2], passages[context], golds, room, shared, row))
        split += len(own) > 1
        is_cut, is_lost = len(ids) > room // 2, bool(golds) and all(window.start == NOWHERE for window in own)
        cut, lost = cut + is_cut, lost + is_lost
        unread += [row] if is_cut or is_lost else []
        windows += own
    notes = (
        (split, f"{plural(split, 'question')} on texts read in windows of {most} tokens that share {shared}"),
        (cut, f"{plural(cut, 'question')} cut to {room // 2} tokens"),
        (lost, f"{plural(lost, 'answer')} that no window contains completely, learned as no answer"),
    )
    return QuestionWindows(windows, "; ".join(text for count, text in notes if count), unread)


def shared_tokens(most: int, stride: int | None) -> int:
    """Returns the number of tokens that neighbouring windows of ``most`` tokens share; None for the default ``stride``.

    Raises ``HeedfulError`` if the stride is more than half of a window.
    """
    shared = min(STRIDE, most // 3) if stride is None else stride
    if shared > most // 2:
        raise HeedfulError(
            f"stride {shared} is too large for windows of {plural(most, 'token')}; give {most // 2} or less"
        )
    return shared


def _windows(
    question: list[int], passage: Passage, answers: Sequence[Span], room: int, shared: int, row: int
) -> Iterator[QuestionWindow]:
    room -= len(question)
    start, end = passage.tokens(answers[0]) if answers else (NOWHERE, NOWHERE)
    for window in overlapping_windows(len(passage.ids), room, min(shared, room // 2)):
        within = window.start <= start <= end < window.stop
        own = (start, end) if within else (NOWHERE, NOWHERE)
        yield QuestionWindow(question, passage, window.start, window.stop, *own, row)


class TextWindow(NamedTuple):
    """Question with a window of its context, as texts."""

    question: str
    context: str
    row: int  # number of the question


class TextWindows(NamedTuple):
    """Windows over the contexts of several questions as texts, in the order of the questions."""

    windows: list[TextWindow]
    note: str  # for people: splits, truncated questions
    cut: list[int]  # numbers of the truncated questions


Count = Callable[[Sequence[tuple[str, str]]], list[int]]


def text_windows(
    tokenizer: Tokenizer, questions: Sequence[tuple[str, str]], most: int, stride: int | None, count: Count
) -> TextWindows:
    """Splits the contexts of questions into pieces of text, so that each fits into ``most`` tokens with its question.

    A pair that fits as a whole is unchanged.

    Args:
        tokenizer: tokenizer of the contexts.
        questions: (question, context) pairs.
        most: maximum number of tokens of a window. A question that does not fit with its context is truncated to half
            of the tokens that ``count`` leaves.
        stride: as in ``question_windows``.
        count: returns the number of tokens of (question, context) pairs as the model reads them, with special tokens.
    """
    [empty] = count([("", "")])
    shared = shared_tokens(most, stride)
    half = (most - empty) // 2
    windows: list[TextWindow] = []
    split, cut = 0, list[int]()
    for row, ((question, context), length) in enumerate(zip(questions, count(questions), strict=True)):
        pieces = [context]
        if length > most:
            [(ids, offsets)] = tokenizer.encode_with_offsets([question])
            if len(ids) > half:
                question = question[: offsets[half - 1][1]]
                cut.append(row)
            pieces = _pieces(tokenizer, question, context, most, shared, count)
        split += len(pieces) > 1
        windows += [TextWindow(question, piece, row) for piece in pieces]
    notes = (
        (split, f"{plural(split, 'question')} on texts read in windows of {most} tokens that share {shared}"),
        (len(cut), f"{plural(len(cut), 'question')} cut to {half} tokens"),
    )
    return TextWindows(windows, "; ".join(text for number, text in notes if number), cut)


def _pieces(tokenizer: Tokenizer, question: str, context: str, most: int, shared: int, count: Count) -> list[str]:
    """Returns the overlapping pieces of a context that fit with a question; the whole context if it fits."""
    [whole, bare] = count([(question, context), (question, "")])
    if whole <= most:
        return [context]
    [(_, offsets)] = tokenizer.encode_with_offsets([context])
    for size in range(max(1, most - bare), 0, -1):
        windows = overlapping_windows(len(offsets), size, min(shared, size // 2))
        texts = (context[offsets[window[0]][0] : offsets[window[-1]][1]].strip() for window in windows)
        pieces = [text for text in texts if text]
        # a piece that begins inside a word may have a token more than it has in the context
        if max(count([(question, piece) for piece in pieces])) <= most:
            return pieces
    raise HeedfulError(f"{plural(most, 'token')} have no room for the question {question[:40]!r} and a text; give more")
