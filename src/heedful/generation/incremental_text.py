"""Incremental detokenisation: decodes tokens to text as they arrive; text that was yielded never changes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

CONTEXT_TOKENS = 16  # earlier tokens that are decoded with a new one; text before them no longer changes
INCOMPLETE = "\ufffd"  # text of an incomplete character, whose last bytes are missing


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
    row = _last_tokens(before, joined)
    shown = decode(row)
    for token in tokens:
        row.append(token)
        if token in joined:
            continue
        text = decode(row)
        complete = text.rstrip(INCOMPLETE)
        if len(complete) > len(shown):
            yield complete[len(shown) :]
            shown = complete
        if len(row) > 2 * CONTEXT_TOKENS and text == shown:
            row = _last_tokens(row, joined)
            shown = decode(row)
    if rest := decode(row)[len(shown) :]:
        yield rest


def _last_tokens(row: Sequence[int], joined: Container[int]) -> list[int]:
    """Returns the last tokens of a row; a run of ``joined`` tokens is not divided."""
    start = max(0, len(row) - CONTEXT_TOKENS)
    while start > 0 and row[start] in joined:
        start -= 1
    return list(row[start:])
