"""Stop strings: texts that end a row, wherever its token boundaries lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.incremental_text import KEPT, PART


class Decodes(Protocol):
    """Tokenizer interface for stop strings: decodes rows of ids to texts."""

    def decode(self, ids: Any, /) -> Any:
        """One text a row."""


class StopStrings:
    """Detects rows whose newest token completes one of ``strings`` in the generated text.

    The text is what the tokenizer makes of the tokens after the prompt, as they stand behind it. Only as much of a
    row's end is decoded as may hold a stop string, after some tokens that give a first word its space and a first
    character its bytes. A special token, which leaves no text, is met by its name as a token of its own.

    Args:
        strings: none of them empty.
        tokenizer: has ``decode(rows of ids) -> texts``; None raises ``HeedfulError``.
        width: of the prompt in the history.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Decodes | None, width: int) -> None:
        if tokenizer is None:
            raise HeedfulError(
                f"stop_strings={list(strings)!r} are met in text, and nothing says what text the tokens are; give the "
                "model's tokenizer (tokenizer=...), or stop_strings=[]"
            )
        self.strings, self.tokenizer, self.width = strings, tokenizer, width
        self.longest = max(map(len, strings))
        self.joined: frozenset[int] = getattr(tokenizer, "joined", frozenset())
        backend = getattr(tokenizer, "backend", None)
        named = [backend.token_to_id(string) for string in strings] if backend is not None else []
        known = [number for number in named if number is not None]
        texts = tokenizer.decode([[number] for number in known]) if known else []
        self.special = frozenset(number for number, text in zip(known, texts, strict=True) if not text)

    def ended(self, history: Tensor) -> Tensor:
        """(R,) boolean, for a ``history`` (R, N) with at least one token after the prompt, −1 for none."""
        made = history.size(1) - self.width
        ended, open_ = self._look(history, min(made, self.longest + KEPT), made)
        if open_:  # many tokens without text: all of them are read
            ended |= {open_[i] for i in self._look(history[open_], made, made)[0]}
        found = torch.zeros(len(history), dtype=torch.bool)
        found[sorted(ended)] = True
        return found.to(history.device)

    def _look(self, history: Tensor, count: int, made: int) -> tuple[set[int], list[int]]:
        """The rows whose last ``count`` tokens hold a stop string, and those in which these have too little text."""
        start = max(0, history.size(1) - count - KEPT)
        rows, befores = [], []
        for i, row in enumerate(history[:, start:].tolist()):
            first = start
            if first and row[0] in self.joined:  # a run of bytes is decoded as one
                whole = history[i].tolist()
                while first and whole[first] in self.joined:
                    first -= 1
                row = whole[first:]
            befores.append([token for token in row[:-count] if token >= 0])
            rows.append([token for token in row if token >= 0])
        texts = self.tokenizer.decode([*rows, *befores, *(row[:-1] for row in rows if count < made)])
        ended, open_ = set(), []
        for i, row in enumerate(rows):
            shown = len(texts[len(rows) + i].rstrip(PART))
            if (row and row[-1] in self.special) or any(texts[i].find(string, shown) >= 0 for string in self.strings):
                ended.add(i)
            elif count < made and len(texts[2 * len(rows) + i].rstrip(PART)) - shown < self.longest - 1:
                open_.append(i)
        return ended, open_


def cut(text: str, strings: Sequence[str]) -> str:
    """``text`` up to the end of the first stop string in it.

    >>> cut("One. Two. Three", ["T", ". "])
    'One. '
    """
    ends = [place + len(string) for string in strings if (place := text.find(string)) >= 0]
    return text[: min(ends, default=len(text))]


def until(pieces: Iterable[str], strings: Sequence[str]) -> Iterator[str]:
    """The pieces up to the end of the first stop string: joined, ``cut`` of all of them. Nothing is held back.

    >>> list(until(["One", ".", " Two", ". "], [". "]))
    ['One', '.', ' ']
    """
    seen = max(map(len, strings), default=1) - 1  # of what was shown, a stop string may begin in so many characters
    shown = ""
    for piece in pieces:
        text = cut(shown + piece, strings)
        if len(text) > len(shown):
            yield text[len(shown) :]
        if text != shown + piece or any(text.endswith(string) for string in strings):
            return
        shown = text[-seen:] if seen else ""
