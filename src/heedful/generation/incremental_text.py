"""Incremental detokenisation: text of tokens as they arrive, in pieces that never change afterwards."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

KEPT = 16  # tokens that are decoded again with a new one; what stands before them changes no more
PART = "\ufffd"  # what a decoder makes of the first bytes of a character


def pieces(
    decode: Callable[[Sequence[int]], str],
    before: Sequence[int],
    tokens: Iterable[int],
    joined: Container[int] = (),
) -> Iterator[str]:
    """The text that ``tokens`` add to the text of ``before``, piece by piece.

    A character whose bytes are spread over several tokens comes when it is whole; what never becomes one comes at the
    end, as the decoder has it. Joined, the pieces are ``decode(before + tokens)`` without ``decode(before)``, for every
    decoder whose text of a row begins with its text of the row's beginning, but for rows that end with tokens
    ``joined``: such a run is read as one (``Tokenizer.joined``), and comes when it is over.

    >>> utf8 = lambda row: bytes(row).decode(errors="replace")
    >>> list(pieces(utf8, b"caf", "é €".encode() + b"\\xff"))
    ['é', ' ', '€', '�']
    """
    row = _last(before, joined)
    shown = decode(row)
    for token in tokens:
        row.append(token)
        if token in joined:
            continue
        text = decode(row)
        whole = text.rstrip(PART)
        if len(whole) > len(shown):
            yield whole[len(shown) :]
            shown = whole
        if len(row) > 2 * KEPT and text == shown:
            row = _last(row, joined)
            shown = decode(row)
    if rest := decode(row)[len(shown) :]:
        yield rest


def _last(row: Sequence[int], joined: Container[int]) -> list[int]:
    """The last tokens of a row, from no run of ``joined`` ones a part."""
    start = max(0, len(row) - KEPT)
    while start > 0 and row[start] in joined:
        start -= 1
    return list(row[start:])
