"""File format of a data file, from its extension or its content."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from heedful.data.text_files import STDIN, extension, open_file

EXTENSIONS = (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet")
BYTES = 1 << 20  # bytes of a file that are examined
MIN_EQUAL = 0.95  # minimum fraction of a table's lines with the same number of cells
MAX_LABELS, MIN_LINES = 100, 3  # of labelled lines: number of labels, and mean number of lines a label
LABEL = re.compile(r"\w([\w:+/#.-]{0,38}[\w+#])?")  # the first word of a labelled line
NOTES = {
    ",": "cells between commas (CSV)",
    ";": "cells between semicolons (CSV)",
    "\t": "cells between tabs",
}


class Format(NamedTuple):
    """Format of a data file.

    Attributes:
        kind: "tsv", "csv", "jsonl" (an object a line), "json" (an array of objects), "parquet", "labelled" (a label, a
            space and a text a line), or "text".
        delimiter: delimiter of "csv".
        note: the recognised format, for people; "" if the extension shows it.
    """

    kind: Literal["tsv", "csv", "jsonl", "json", "parquet", "labelled", "text"]
    delimiter: str = ","
    note: str = ""

    @property
    def is_table(self) -> bool:
        """True if files of this format have columns."""
        return self.kind != "text"

    @property
    def is_keyed(self) -> bool:
        """True if the rows of this format are objects with keys."""
        return self.kind in ("jsonl", "json", "parquet")


def detect_format(path: str, labelled: bool = False) -> Format:
    """Returns the format of a data file.

    The extensions ``.tsv``, ``.jsonl``, ``.ndjson`` and ``.parquet`` determine it; standard input is TSV. The delimiter
    of ``.csv`` (comma, semicolon or tab) is inferred. The format of any other file is inferred from its first MiB. With
    ``labelled``, it may also be lines of a label, a space and a text.
    """
    match ".tsv" if path == STDIN else extension(path):
        case ".tsv":
            return Format("tsv")
        case ".jsonl" | ".ndjson":
            return Format("jsonl")
        case ".parquet":
            return Format("parquet")
        case ".csv":
            delimiter = _delimiter(_beginning(path), ",;\t") or ","
            return Format("csv", delimiter, "" if delimiter == "," else NOTES[delimiter])
        case _:
            return _detect_from_lines(_beginning(path), labelled)


def _beginning(path: str) -> list[str]:
    """Returns the first whole lines of a file; invalid UTF-8 is replaced."""
    with open_file(path) as stream:
        content = stream.read(BYTES)
    lines = content.decode(errors="replace").removeprefix("\ufeff").split("\n")
    complete = lines if len(content) < BYTES or len(lines) == 1 else lines[:-1]
    return [line.removesuffix("\r") for line in complete if line.strip()]


def _detect_from_lines(lines: Sequence[str], labelled: bool) -> Format:
    text = "\n".join(lines[:9]).lstrip()
    if "\0" in text:
        return Format("text")
    if re.match(r"\[\s*\{", text):
        return Format("json", note="a JSON array of objects")
    if text.startswith("{"):
        return Format("jsonl", note="JSON lines (one object in each line)") if _is_object(lines[0]) else Format("text")
    delimiter = _delimiter(lines, "\t,;")
    if delimiter == "\t":
        return Format("tsv", note=NOTES["\t"])
    if delimiter:
        return Format("csv", delimiter, NOTES[delimiter])
    if labelled and _are_labelled(lines):
        return Format("labelled", note="lines of a label, a space and a text")
    return Format("text")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _delimiter(lines: Sequence[str], candidates: str) -> str | None:
    """Returns the first delimiter that gives nearly all rows the same number of cells, at least two; else None."""
    for delimiter in candidates:
        widths = [len(cells) for cells in _rows(lines, delimiter) if any(cells)]
        width, count = Counter(widths).most_common(1)[0] if widths else (0, 0)
        if width > 1 and count >= MIN_EQUAL * len(widths) and (len(widths) > 1 or delimiter == "\t"):
            return delimiter
    return None


def _rows(lines: Sequence[str], delimiter: str) -> Iterator[Sequence[str]]:
    if delimiter == "\t":  # quotes are plain characters there
        yield from (line.split("\t") for line in lines)
        return
    try:
        yield from csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    except csv.Error:
        return


def _are_labelled(lines: Sequence[str]) -> bool:
    pairs = [line.split(" ", 1) for line in lines]
    full = [(first, rest) for first, *more in pairs for rest in more if rest.strip()]
    labels = {first for first, _ in full}
    if len(full) < MIN_EQUAL * len(lines) or not 1 < len(labels) <= max(2, min(MAX_LABELS, len(full) / MIN_LINES)):
        return False
    return all(map(LABEL.fullmatch, labels)) and fmean(len(rest.split()) for _, rest in full) >= 2
