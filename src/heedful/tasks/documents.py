"""What the tasks of plain text do alike: documents held back, and joined to one stream of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heedful.data import Row, Rows
from heedful.data.pieces import continues, identity, is_cut
from heedful.data.split import divide_text, split
from heedful.data.tokens import stored
from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.parts import encode_parts

VOCABULARY = 64  # pieces of a text that a vocabulary is learned from
PIECES = 4  # of a text that is cut into pieces, so many are held back
FEW = 20  # below so many documents a part of each is held back, from there on some documents
VALID = 0.1  # the share of each


def divided(rows: Rows, valid: float | None, seed: int) -> tuple[Rows, Rows]:
    """Training and validation rows: of many documents some are held back, of few the last part of each that has lines,
    cut at a line's end.
    """
    if is_cut(rows):
        return _last_pieces(rows, valid)
    if len(rows) >= FEW:
        whole, kept = split(rows, valid, seed, by="text")
        return Rows(whole, rows.skipped, rows.columns), Rows(kept, 0, rows.columns)
    train, held = Rows([], rows.skipped, rows.columns), Rows([], 0, rows.columns)
    for row in rows:
        text = row.values["text"]
        first, last = divide_text(text, valid or VALID) if "\n" in text.strip() else (text, "")
        train.append(Row({"text": first}, row.file, row.line))
        if last:
            held.append(Row({"text": last}, row.file, row.line + first.count("\n")))
    if not held:
        where = f", in {rows[0].file}" if rows else ""
        raise HeedfulError(
            f"no text has two lines{where}, so that a part could be held back; give a validation file: --valid FILE"
        )
    return train, held


def sampled(rows: Sequence[Row]) -> Sequence[Row]:
    """All rows; of a text in pieces as many as a vocabulary is learned from, evenly over all of it."""
    return rows[:: -(-len(rows) // VOCABULARY)] if is_cut(rows) else rows


def _last_pieces(rows: Rows, valid: float | None) -> tuple[Rows, Rows]:
    """The last pieces are held back, few of them where no share is given: each evaluation reads them all."""
    count = PIECES if valid is None else max(1, round(valid * len(rows)))
    if not 0 < count < len(rows):
        raise HeedfulError(f"{count} of {len(rows)} pieces cannot be held back; give a validation file: --valid FILE")
    return Rows(rows[:-count], rows.skipped, rows.columns), Rows(rows[-count:], 0, rows.columns)


def joined(tokenizer: Tokenizer, rows: Sequence[Row], begins: Sequence[int], closes: Sequence[int]) -> np.ndarray:
    """What begins a document, its ids and what closes it, for each."""
    return located(tokenizer, rows, begins, closes)[0]


def located(
    tokenizer: Tokenizer, rows: Sequence[Row], begins: Sequence[int], closes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """As ``joined``, and the place of the first token of each document.

    Of pieces of a large file the tokens are written to a file of their own, once for each text and tokenizer, and read
    from there: ``heedful.data.tokens``.
    """
    kind = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    starts: list[int] = []
    if not is_cut(rows):
        tokens = np.concatenate([*_parts(tokenizer, rows, begins, closes, kind, starts)])
        return tokens, np.array(starts, dtype=np.int64)
    made = repr((tokenizer.backend.to_str(), begins, closes, kind.str, [*map(identity, rows)]))
    return stored(made, lambda: _parts(tokenizer, rows, begins, closes, kind, starts), kind, starts)


def _parts(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    begins: Sequence[int],
    closes: Sequence[int],
    kind: np.dtype[Any],
    starts: list[int],
) -> Iterator[np.ndarray]:
    """The stream, part by part; ``starts`` gets the place of each document."""
    size, last = 0, list[int]()
    texts = (row.values["text"] for row in rows)
    for first, ids in encode_parts(tokenizer, texts, (continues(row) for row in rows)):
        if first:
            starts.append(size + len(last))
        part = np.concatenate([np.array([*last, *begins], kind), ids.astype(kind)]) if first else ids.astype(kind)
        size, last = size + len(part), list(closes)
        yield part
    yield np.array(last, kind)
