"""Readers of documents: whole texts from files, folders, tables or standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from heedful.data.builtin import PREFIX
from heedful.data.file_formats import EXTENSIONS
from heedful.data.image_folder import PARTS, split_hint
from heedful.data.rows import Row, Rows
from heedful.data.tables import NoColumn, Table, extension_of
from heedful.data.text_files import STDIN, NotText, display_name, extension, files_below, read_text, subfolders
from heedful.data.texts_on_disk import are_large, can_stay_on_disk, file_slices, table_on_disk
from heedful.errors import HeedfulError


def read_rows(
    sources: Sequence[str],
    column: str,
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    r"""A row for each document of `sources`, in their order; its text is the value of `column`.

    - A text file (any extension that no table has), or ``-``, standard input: one document, every line end ``\n``.
    - A table: a document in each row, in the column of that name, or in the one that `names` names, or that was
      `remembered`, or else the column of texts, if one is longer than any other.
    - A folder: every text file and table in it, then those of the folders in it; hidden ones are passed over. `splits`
      says when it has parts, of which `split` chooses one (None: the training part).

    Where text files, JSON lines and Parquet, none of them packed, have 256 MiB and more together, their texts are read
    when they are asked for: `heedful.data.texts_on_disk` and `heedful.data.texts_on_disk`. Of the text files each MiB
    is then a row.
    A `limit` counts documents, and with it all are read at once.

    `Rows.skipped` counts blank documents, and the files of a folder that are no text in UTF-8, or tables without the
    column. Raises `HeedfulError` for anything else that cannot be read, and where no document is found.
    """
    if len(sources) > 1 and (special := next((one for one in sources if one.startswith(PREFIX)), None)):
        raise HeedfulError(f"{special} is a set of its own and cannot be one of several sources; give it alone")
    rows = Rows(columns=names or [column])
    files = [*_files(sources, split)]
    large = limit is None and are_large(path for path, _ in files)
    for path, chosen in files:
        before = len(rows)
        # Columns are named, so that of the files that nobody chose one by one no table is read by position.
        asked = names or [column] if extension(path) in EXTENSIONS else None
        told = names if chosen else asked
        try:
            if large and can_stay_on_disk(path) and (asked or not told):
                _add_on_disk(rows, path, column, asked and [_name(rows, path, column, told, remembered)])
            else:
                _add(rows, path, _texts(rows, path, column, told, (chosen and remembered) or {}), column, limit)
        except (NotText, NoColumn):
            if chosen or len(rows) > before:
                raise
            rows.skip(path)
    if not rows:
        found = f"only what is blank or no text ({rows.skipped})" if rows.skipped else "no text"
        raise HeedfulError(
            f"{found}, in {display_name(', '.join(sources))}; give text files, a folder of them, or a table"
        )
    return rows


def _files(sources: Sequence[str], split: str | None) -> Iterator[tuple[str, bool]]:
    """The files of sources, and whether a person chose each by its name."""
    for source in sources:
        if os.path.isdir(source):
            yield from ((path, False) for path in _chosen(source, split))
        else:
            yield source, True


def line_of_character(row: Row, text: str, offset: int) -> int:
    r"""The line that a character of a row's text stands in: its own in a text file, else that of the row.

    >>> line_of_character(Row({"text": "one\ntwo"}, "book.txt", 1), "one\ntwo", 4)
    2
    """
    held = row.file.startswith(PREFIX) or extension_of(row.file) in (*EXTENSIONS, ".json")
    return row.line if held else row.line + text.count("\n", 0, offset)


def splits(folder: str) -> tuple[str, ...]:
    """Of "train", "valid" and "test" those that a folder has: where all its sub-folders are called train, val (valid,
    validation) or test, and one of them is train. Files beside these belong to no part, and are not read.
    """
    return tuple(_split_folders(folder))


def _split_folders(folder: str) -> dict[str, str]:
    inner = subfolders(folder)
    if not all(name.lower() in PARTS for name in inner):
        return {}
    found = {PARTS[name.lower()]: os.path.join(folder, name) for name in inner}
    return {part: found[part] for part in ("train", "valid", "test") if part in found} if "train" in found else {}


def _splits_without_train(folder: str) -> list[str]:
    """The parts that a folder's sub-folders are called, where it holds nothing else and training is none of them."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    found = {PARTS.get(entry.name.lower(), "") if os.path.isdir(entry.path) else "" for entry in entries}
    return [] if {"", "train"} & found else sorted(found)


def _chosen(folder: str, split: str | None) -> Iterator[str]:
    folders = _split_folders(folder)
    if split == "train" and not folders and (others := _splits_without_train(folder)):
        raise HeedfulError(
            f"no split 'train' in {folder}; it has {' and '.join(others)}{split_hint(others, split, folder)}"
        )
    if folders and split and split not in folders:
        raise HeedfulError(f"no split {split!r} in {folder}; it has {' and '.join(folders)}")
    return files_below(folders[split or "train"] if folders else folder)


def _texts(
    rows: Rows, path: str, column: str, names: Sequence[str] | None, remembered: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """(line, text) of each document in a file; `rows` are told how a table is read."""
    if path != STDIN and extension(path) in EXTENSIONS:
        table = Table(path, {column: "document"}, names, remembered=remembered)
        for line, values in table:
            if values:
                table.annotate(rows)
            yield line, values[0] if values else ""
    elif names is not None:
        raise HeedfulError(f"columns are named for {display_name(path)}, which is plain text; leave --data.columns out")
    else:
        yield 1, read_text(path)


def _name(rows: Rows, path: str, column: str, names: Sequence[str] | None, remembered: Mapping[str, str] | None) -> str:
    """Returns the table's name for the column of documents; `rows` are told."""
    if names:
        return names[0]
    table = Table(path, {column: "document"}, None, remembered=remembered or {})
    if next((values for _, values in table if values), None) is None:
        return column
    table.annotate(rows)
    return table.file_columns[0]


def _add_on_disk(rows: Rows, path: str, column: str, names: Sequence[str] | None) -> None:
    """Rows whose texts stay in the file."""
    if names is None:
        found = file_slices(path, column)
        rows.extend(found)
        if not found:
            rows.skip(path)
        return
    for line, row in table_on_disk(path, column, names[0]).rows():
        if row is None:
            rows.skip(path, line)
        else:
            rows.append(row)


def _add(rows: Rows, path: str, texts: Iterator[tuple[int, str]], column: str, limit: int | None) -> None:
    for line, text in () if len(rows) == limit else texts:
        if text.strip():
            rows.append(Row({column: text}, path, line))
            if len(rows) == limit:
                return
        else:
            rows.skip(path, line)
