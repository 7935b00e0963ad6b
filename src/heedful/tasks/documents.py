"""Documents of plain text: split into training and validation, and joined to one stream of tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import chain
from typing import Any

import numpy as np

from heedful.data import Row, Rows, texts_on_disk
from heedful.data.split import Same, content_digest, split, split_text
from heedful.data.texts_on_disk import any_on_disk, continues_previous, row_size, text_identity
from heedful.data.token_stream import cached_tokens
from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.bulk_encoding import encode_parts

VOCABULARY = 64  # size in pieces of the sample of texts on disk from which a vocabulary is trained
PIECES = 4  # size in pieces of the validation part of texts on disk
FEW = 20  # number of documents below which the last part of each is split off, instead of whole documents
VALID = 0.1  # share of each


def split_documents(rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
    """Returns training and validation rows.

    Holds out some documents for validation or, if there are few, the last lines of each. ``valid`` is the fraction to
    hold out.
    """
    if any_on_disk(rows):
        return _last(rows, valid)
    if len(rows) >= FEW:
        many_train, many_held = split(rows, valid, seed, by="text", same=same)
        return Rows(many_train, rows.skipped, rows.columns), Rows(many_held, 0, rows.columns)
    train, held = Rows([], rows.skipped, rows.columns), Rows([], 0, rows.columns)
    for row in rows:
        text = row.values["text"]
        first, last = split_text(text, valid or VALID) if "\n" in text.strip() else (text, "")
        train.append(Row({"text": first}, row.file, row.line))
        if last:
            held.append(Row({"text": last}, row.file, row.line + first.count("\n")))
    if not held:
        where = f", in {rows[0].file}" if rows else ""
        raise HeedfulError(
            f"no text has two lines{where}, so no line can be held out for validation; give --valid FILE"
        )
    return train, held


def sampled_documents(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns all rows or, if their texts are read on access, an evenly spaced sample of about 64 MiB."""
    return (
        rows[:: max(1, round(sum(map(row_size, rows)) / (VOCABULARY * texts_on_disk.PIECE)))]
        if any_on_disk(rows)
        else rows
    )


def _last(rows: Rows, valid: float | None) -> tuple[Rows, Rows]:
    """Returns training and validation rows. The last rows are held out, by default about 4 MiB, since each evaluation
    reads all of them.
    """
    count = _few(rows) if valid is None else max(1, round(valid * len(rows)))
    if not 0 < count < len(rows):
        what = "pieces" if any(map(continues_previous, rows)) else "documents"
        raise HeedfulError(f"holding out {count} of {len(rows)} {what} leaves none for training; give --valid FILE")
    return Rows(rows[:-count], rows.skipped, rows.columns), Rows(rows[-count:], 0, rows.columns)


def _few(rows: Rows) -> int:
    """Returns how many rows from the end hold about 4 MiB together; at least one."""
    left, count = PIECES * texts_on_disk.PIECE, 0
    while count < len(rows) and (2 * left > row_size(rows[-1 - count]) or not count):
        left -= row_size(rows[-1 - count])
        count += 1
    return count


def joined_tokens(
    tokenizer: Tokenizer, rows: Sequence[Row], begins: Sequence[int], closes: Sequence[int]
) -> np.ndarray:
    """Returns the tokens of all documents as one array.

    ``begins`` and ``closes`` are the ids that are put before and after each document.
    """
    return token_stream(tokenizer, rows, begins, closes)[0]


def token_stream(
    tokenizer: Tokenizer, rows: Sequence[Row], begins: Sequence[int], closes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of all documents as one array, and the position of the first token of each document.

    ``begins`` and ``closes`` are the ids that are put before and after each document. The tokens of texts on disk are
    written to a file once for each text and tokenizer, and read from there (``heedful.data.token_stream``).
    """
    kind = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    starts = array("q")
    if not any_on_disk(rows):
        tokens = np.concatenate([*_parts(tokenizer, rows, begins, closes, kind, starts)])
        return tokens, np.array(starts, dtype=np.int64)
    identity = chain((tokenizer.backend.to_str(), begins, closes, kind.str), map(text_identity, rows))
    return cached_tokens(identity, lambda: _parts(tokenizer, rows, begins, closes, kind, starts), kind, starts)


def _parts(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    begins: Sequence[int],
    closes: Sequence[int],
    kind: np.dtype[Any],
    starts: MutableSequence[int],
) -> Iterator[np.ndarray]:
    """Yields the stream of tokens in parts; appends the position of each document's first token to ``starts``."""
    size, last = 0, list[int]()
    texts = (row.values["text"] for row in rows)
    for first, ids in encode_parts(tokenizer, texts, (continues_previous(row) for row in rows)):
        if first or not starts:  # the validation part of a large text may begin inside a document
            starts.append(size + len(last))
        part = np.concatenate([np.array([*last, *begins], kind), ids.astype(kind)]) if first else ids.astype(kind)
        size, last = size + len(part), list(closes)
        yield part
    yield np.array(last, kind)
