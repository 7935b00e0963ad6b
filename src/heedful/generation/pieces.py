"""The text of tokens as they come, in pieces that are never taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

KEPT = 16  # tokens that are decoded again with a new one; what stands before them changes no more
PART = "\ufffd"  # what a decoder makes of the first bytes of a character


def pieces(decode: Callable[[Sequence[int]], str], before: Sequence[int], tokens: Iterable[int]) -> Iterator[str]:
    """The text that ``tokens`` add to the text of ``before``, piece by piece.

    A character whose bytes are spread over several tokens comes when it is whole; what never becomes one comes at the
    end, as the decoder has it. Joined, the pieces are ``decode(before + tokens)`` without ``decode(before)``, for every
    decoder whose text of a row begins with its text of the row's beginning.

    >>> utf8 = lambda row: bytes(row).decode(errors="replace")
    >>> list(pieces(utf8, b"caf", "é €".encode() + b"\\xff"))
    ['é', ' ', '€', '�']
    """
    row = list(before[-KEPT:])
    shown = decode(row)
    for token in tokens:
        row.append(token)
        text = decode(row)
        whole = text.rstrip(PART)
        if len(whole) > len(shown):
            yield whole[len(shown) :]
            shown = whole
        if len(row) > 2 * KEPT and text == shown:
            row = row[-KEPT:]
            shown = decode(row)
    if rest := decode(row)[len(shown) :]:
        yield rest
