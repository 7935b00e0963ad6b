"""Ends of generation: stop strings, which may begin and end inside tokens, and callers that no longer want a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.incremental_text import CONTEXT_TOKENS, INCOMPLETE

SHOULD_STOP: ContextVar[Callable[[], bool] | None] = ContextVar("should_stop", default=None)


class Interrupted(Exception):
    """Generation that ``interruptible`` ended between two steps: nobody waits for its result."""


@contextmanager
def interruptible(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Lets ``should_stop`` end every generation that begins while entered, by any method and through any task.

    It is called before each step of a search, each token of the other methods; as soon as it returns True, the
    generation raises ``Interrupted``. Results of a generation that is not ended are the same bits as without.

    >>> import heedful
    >>> from heedful.generation import generate
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> answers = iter([False, False, True])
    >>> try:
    ...     with interruptible(lambda: next(answers)):
    ...         generate(model, torch.tensor([[1, 2, 3]]), num_beams=4)
    ... except Interrupted:
    ...     print("ended after two steps")
    ended after two steps
    """
    token = SHOULD_STOP.set(should_stop)
    try:
        yield
    finally:
        SHOULD_STOP.reset(token)


class Detokenizer(Protocol):
    """Interface of a tokenizer that decodes rows of ids to texts."""

    def decode(self, ids: Any, /) -> Any:
        """Returns a text for each row of ids."""


class StopStrings:
    """Detects rows whose newest token completes one of ``strings`` in the generated text.

    The text is the decoded tokens after the prompt. Only the end of a row that can contain a stop string is decoded,
    with some tokens before it, which give the first word its space and the first character its bytes. A stop string
    that names a special token, which has no text, is matched as that token.

    Args:
        strings: stop strings, none empty.
        tokenizer: has ``decode(rows of ids) -> texts``; None raises ``HeedfulError``.
        width: columns of the prompt in the history.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Detokenizer | None, width: int) -> None:
        if tokenizer is None:
            raise HeedfulError(
                f"stop_strings={list(strings)!r} need a tokenizer, but none is given; give the model's "
                "tokenizer (tokenizer=...), or stop_strings=[]"
            )
        self.strings, self.tokenizer, self.width = strings, tokenizer, width
        self.longest = max(map(len, strings))
        self.byte_tokens: frozenset[int] = getattr(tokenizer, "byte_tokens", frozenset())
        backend = getattr(tokenizer, "backend", None)
        numbers = [backend.token_to_id(string) for string in strings] if backend is not None else []
        ids = [number for number in numbers if number is not None]
        texts = tokenizer.decode([[number] for number in ids]) if ids else []
        self.special_ids = frozenset(number for number, text in zip(ids, texts, strict=True) if not text)

    def ended(self, history: Tensor) -> Tensor:
        """Returns a mask (R,) of the rows of ``history`` (R, N) that a stop string ends. ``history`` has at least one
        column after the prompt; −1 is no token.
        """
        new_count = history.size(1) - self.width
        ended, undecided = self._search(history, min(new_count, self.longest + CONTEXT_TOKENS), new_count)
        if undecided:  # rows of many tokens without text: all of their tokens are decoded
            ended |= {undecided[i] for i in self._search(history[undecided], new_count, new_count)[0]}
        is_ended = torch.zeros(len(history), dtype=torch.bool, device=history.device)
        if ended:  # copied to a GPU only if a row has ended
            is_ended[sorted(ended)] = True
        return is_ended

    def _search(self, history: Tensor, count: int, new_count: int) -> tuple[set[int], list[int]]:
        """Returns the rows with a stop string in their last ``count`` tokens, and the rows whose text there is too
        short to tell.
        """
        start = max(0, history.size(1) - count - CONTEXT_TOKENS)
        rows, contexts = [], []
        for i, row in enumerate(history[:, start:].tolist()):
            first = start
            if first and row[0] in self.byte_tokens:  # a run of bytes is decoded as one
                full_row = history[i].tolist()
                while first and full_row[first] in self.byte_tokens:
                    first -= 1
                row = full_row[first:]
            contexts.append([token for token in row[:-count] if token >= 0])
            rows.append([token for token in row if token >= 0])
        texts = self.tokenizer.decode([*rows, *contexts, *(row[:-1] for row in rows if count < new_count)])
        ended, undecided = set(), []
        for i, row in enumerate(rows):
            context_end = len(texts[len(rows) + i].rstrip(INCOMPLETE))
            is_special = bool(row) and row[-1] in self.special_ids
            if is_special or any(texts[i].find(string, context_end) >= 0 for string in self.strings):
                ended.add(i)
            elif count < new_count:
                text_before_last = texts[2 * len(rows) + i].rstrip(INCOMPLETE)
                if len(text_before_last) - context_end < self.longest - 1:
                    undecided.append(i)
        return ended, undecided


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """Cuts ``text`` after the first stop string in it.

    >>> cut_at_stop("One. Two. Three", ["T", ". "])
    'One. '
    """
    ends = [start + len(string) for string in strings if (start := text.find(string)) >= 0]
    return text[: min(ends, default=len(text))]


def until(pieces: Iterable[str], strings: Sequence[str]) -> Iterator[str]:
    """Yields the pieces up to the end of the first stop string, without delay: joined, they are ``cut_at_stop`` of all.

    >>> list(until(["One", ".", " Two", ". "], [". "]))
    ['One', '.', ' ']
    """
    overlap = max(map(len, strings), default=1) - 1  # characters of earlier pieces in which a stop string may begin
    tail = ""
    for piece in pieces:
        text = cut_at_stop(tail + piece, strings)
        if len(text) > len(tail):
            yield text[len(tail) :]
        if text != tail + piece or any(text.endswith(string) for string in strings):
            return
        tail = text[-overlap:] if overlap else ""
