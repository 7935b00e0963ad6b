"""What the tasks of plain text do alike: documents held back, and joined to one stream of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heedful.data import Row, Rows
from heedful.data.split import divide_text, split
from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.parts import encode_parts

FEW = 20  # below so many documents a part of each is held back, from there on some documents
VALID = 0.1  # the share of each


def divided(rows: Rows, valid: float | None, seed: int) -> tuple[Rows, Rows]:
    """Training and validation rows: of many documents some are held back, of few the last part of each that has lines,
    cut at a line's end.
    """
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


def joined(tokenizer: Tokenizer, texts: Sequence[str], begins: Sequence[int], closes: Sequence[int]) -> np.ndarray:
    """What begins a document, its ids and what closes it, for each."""
    return located(tokenizer, texts, begins, closes)[0]


def located(
    tokenizer: Tokenizer, texts: Sequence[str], begins: Sequence[int], closes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """As ``joined``, and the place of the first token of each document."""
    kind = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    parts, last = [], []  # type: tuple[list[np.ndarray], list[int]]
    starts, size = [], 0  # type: tuple[list[int], int]
    for first, ids in encode_parts(tokenizer, texts):
        if first:
            starts.append(size + len(last))
        parts.append(np.array([*last, *begins, *ids] if first else ids, kind))
        size, last = size + len(parts[-1]), list(closes)
    return np.concatenate([*parts, np.array(last, kind)]), np.array(starts, dtype=np.int64)
