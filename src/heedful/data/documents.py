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


def read_documents(
    sources: Sequence[str],
    column: str,
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    r"""Returns a row for each document of `sources`, in order; its text is the value of `column`.

    - A text file (any extension but a table's), or ``-``, standard input: one document, every line end becomes ``\n``.
    - A table: a document in each row. Its column is the one in `names` or `remembered`, else the one called `column`,
      else the one with the longest texts.
    - A folder: every text file and table in it, then those of its sub-folders, without hidden ones. If it has `splits`,
      `split` chooses one (None: "train").

    If uncompressed text files, JSON lines and Parquet have 256 MiB or more together, their texts are read on access
    (`heedful.data.texts_on_disk`), and a row is one MiB of a text file. A `limit` counts documents; with it all texts
    are read at once.

    `Rows.skipped` counts blank documents, and the files of a folder that are not UTF-8 text or are tables without the
    column. Raises `HeedfulError` for other unreadable files, and if there are no documents.
    """
    if len(sources) > 1 and (special := next((path for path in sources if path.startswith(PREFIX)), None)):
        raise HeedfulError(f"{special} cannot be combined with other sources; give it alone")
    rows = Rows(columns=names or [column])
    files = [*_files(sources, split)]
    large = limit is None and are_large(path for path, _ in files)
    for path, is_named in files:
        rows_before = len(rows)
        # In the files of a folder columns are looked up by name, so that no table is read by position.
        table_names = names or [column] if extension(path) in EXTENSIONS else None
        file_names = names if is_named else table_names
        try:
            if large and can_stay_on_disk(path) and (table_names or not file_names):
                on_disk = table_names and [_text_column(rows, path, column, file_names, remembered)]
                _add_on_disk(rows, path, column, on_disk)
            else:
                texts = _texts(rows, path, column, file_names, (is_named and remembered) or {})
                _add(rows, path, texts, column, limit)
        except (NotText, NoColumn):
            if is_named or len(rows) > rows_before:
                raise
            rows.skip(path)
    if not rows:
        problem = f"only blank or unreadable texts ({rows.skipped})" if rows.skipped else "no text"
        raise HeedfulError(
            f"{problem}, in {display_name(', '.join(sources))}; give text files, a folder of them, or a table"
        )
    return rows


def _files(sources: Sequence[str], split: str | None) -> Iterator[tuple[str, bool]]:
    """Yields (file, True if it is named in `sources` and not found in a folder)."""
    for source in sources:
        if os.path.isdir(source):
            yield from ((path, False) for path in _files_in_folder(source, split))
        else:
            yield source, True


def line_of_character(row: Row, text: str, offset: int) -> int:
    r"""Returns the line number of the character at ``offset`` in a row's text; in a table, the line of the row.

    >>> line_of_character(Row({"text": "one\ntwo"}, "book.txt", 1), "one\ntwo", 4)
    2
    """
    has_row_lines = row.file.startswith(PREFIX) or extension_of(row.file) in (*EXTENSIONS, ".json")
    return row.line if has_row_lines else row.line + text.count("\n", 0, offset)


def document_splits(folder: str) -> tuple[str, ...]:
    """Returns the splits of a folder of documents ("train", "valid", "test"); () if it has none.

    A folder has splits if all its sub-folders are called train, val (valid, validation) or test, and one is called
    train. Files beside these sub-folders are then not read.
    """
    return tuple(_split_folders(folder))


def _split_folders(folder: str) -> dict[str, str]:
    names = subfolders(folder)
    if not all(name.lower() in PARTS for name in names):
        return {}
    folders = {PARTS[name.lower()]: os.path.join(folder, name) for name in names}
    return (
        {split: folders[split] for split in ("train", "valid", "test") if split in folders}
        if "train" in folders
        else {}
    )


def _splits_without_train(folder: str) -> list[str]:
    """Returns the splits of a folder that has only folders of splits, and none for training; else []."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    present = {PARTS.get(entry.name.lower(), "") if os.path.isdir(entry.path) else "" for entry in entries}
    return [] if {"", "train"} & present else sorted(present)


def _files_in_folder(folder: str, split: str | None) -> Iterator[str]:
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
    """Yields (line, text) for each document in a file. Annotates `rows`."""
    if path != STDIN and extension(path) in EXTENSIONS:
        table = Table(path, {column: "document"}, names, remembered=remembered)
        for line, values in table:
            if values:
                table.annotate(rows)
            yield line, values[0] if values else ""
    elif names is not None:
        raise HeedfulError(f"{display_name(path)} is plain text and has no columns; leave --data.columns out")
    else:
        yield 1, read_text(path)


def _text_column(
    rows: Rows, path: str, column: str, names: Sequence[str] | None, remembered: Mapping[str, str] | None
) -> str:
    """Returns the table's name for the column of documents. Annotates `rows`."""
    if names:
        return names[0]
    table = Table(path, {column: "document"}, None, remembered=remembered or {})
    if next((values for _, values in table if values), None) is None:
        return column
    table.annotate(rows)
    return table.file_columns[0]


def _add_on_disk(rows: Rows, path: str, column: str, names: Sequence[str] | None) -> None:
    """Adds rows whose texts stay in the file."""
    if names is None:
        slices = file_slices(path, column)
        rows.extend(slices)
        if not slices:
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
