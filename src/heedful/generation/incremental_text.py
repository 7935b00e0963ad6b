"""Incremental detokenisation: decodes tokens to text as they arrive; text that was yielded never changes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

CONTEXT_TOKENS = 16  # earlier tokens that are decoded with a new one; text before them no longer changes
INCOMPLETE = "\ufffd"  # text of an incomplete character, whose last bytes are missing


class IncrementalText:
    """Text of tokens that arrive one by one.

    Args:
        decode: returns the text of a row of ids.
        before: tokens before the first new one, such as a prompt; their text is not returned.
        joined: consecutive tokens that are decoded together (``Tokenizer.byte_tokens``); their text is returned when
            their run ends.

    >>> text = IncrementalText(lambda row: bytes(row).decode(errors="replace"))
    >>> [text.add(byte) for byte in "é!".encode()], text.end()
    (['', 'é', '!'], '')
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = (), joined: Container[int] = ()
    ) -> None:
        self.decode, self.joined = decode, joined
        self._row = _last_tokens(before, joined)
        self._shown = decode(self._row)

    def add(self, token: int) -> str:
        """Returns the text that a token completes; "" within a character or a run of ``joined``."""
        self._row.append(token)
        if token in self.joined:
            return ""
        text = self.decode(self._row)
        complete = text.rstrip(INCOMPLETE)
        new = complete[len(self._shown) :]
        if new:
            self._shown = complete
        if len(self._row) > 2 * CONTEXT_TOKENS and text == self._shown:
            self._row = _last_tokens(self._row, self.joined)
            self._shown = self.decode(self._row)
        return new

    def end(self) -> str:
        """Returns the rest of the text: bytes that never became a character, as the decoder shows them."""
        return self.decode(self._row)[len(self._shown) :]


def pieces(
    decode: Callable[[Sequence[int]], str],
    before: Sequence[int],
    tokens: Iterable[int],
    joined: Container[int] = (),
) -> Iterator[str]:
    """Yields the text that ``tokens`` add to the text of ``before``, piece by piece.

    A character of several tokens is yielded when it is complete; bytes that never become a character are yielded at the
    end, as the decoder shows them. Joined, the pieces are ``decode(before + tokens)`` without ``decode(before)``, if
    the text of the first tokens is always the beginning of the text of all. Consecutive tokens in ``joined`` are
    decoded together (``Tokenizer.byte_tokens``), and their text is yielded when their run ends.

    >>> utf8 = lambda row: bytes(row).decode(errors="replace")
    >>> list(pieces(utf8, b"caf", "é €".encode() + b"\\xff"))
    ['é', ' ', '€', '�']
    """
    text = IncrementalText(decode, before, joined)
    yield from filter(None, map(text.add, tokens))
    if rest := text.end():
        yield rest


def _last_tokens(row: Sequence[int], joined: Container[int]) -> list[int]:
    """Returns the last tokens of a row; a run of ``joined`` tokens is not divided."""
    start = max(0, len(row) - CONTEXT_TOKENS)
    while start > 0 and row[start] in joined:
        start -= 1
    return list(row[start:])
