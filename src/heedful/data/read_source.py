"""``read``: rows from paths, standard input, built-in sets, the Hub or Python objects."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from os import PathLike
from typing import Any

from heedful.data import (
    builtin,
    conll,
    conversations,
    documents,
    hub_datasets,
    image_reader,
    mixtures,
    preferences,
    squad,
)
from heedful.data.cell_values import Labels, Numbers
from heedful.data.column_inference import check_header, check_tags
from heedful.data.file_formats import EXTENSIONS
from heedful.data.image_folder import PARTS
from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Kind, Row, Rows, required_columns, resolve_columns
from heedful.data.tables import Reader, Table
from heedful.data.text_files import STDIN, display_name, extension, read_lines
from heedful.errors import HeedfulError, plural

PLURALS = {"image": "images", "number": "numbers"}
TYPES = {
    "image": LazyImage,
    "words": tuple,
    "tags": tuple,
    "answers": tuple,
    "references": tuple,
    "messages": tuple,
    "number": float,
}


def read(
    source: str | PathLike[str] | Sequence[str | PathLike[str]],
    columns: Mapping[str, Kind] | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    separator: str | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """Reads the rows of a file, of parallel files, of a folder, of a built-in set or of a data set of the Hub.

    Args:
        source: a path, or several; every file may be compressed (``.gz``, ``.xz``, ``.zst``):

            - A table: ``.tsv`` (tabs; quotes are plain characters), ``.csv`` (RFC 4180, or with semicolons or tabs),
              ``.jsonl`` or ``.ndjson`` (an object a line), ``.parquet``. The format of another extension is inferred
              from the first MiB: these, a JSON array of objects or, for labels, lines of a label, a space and a text.
            - Plain text files, one for each of ``columns``: lines with the same number form a row. With one column,
              each line of a plain text file is a row.
            - ``-``: standard input, TSV or, with one column, a row in each line.
            - ``builtin:NAME[/ARG][:SPLIT]``: see ``heedful.data.builtin``; the rows have all columns of the set.
            - ``hub:ORG/NAME[@REVISION][/PATH][:SPLIT]``: see ``heedful.data.hub_datasets``.
            - A mixture (``heedful.data.mixtures``): ``.toml``, sets and templates for a task that learns pairs of
              texts.
            - Documents (``heedful.data.documents``), images (``heedful.data.image_reader``), conversations
              (``heedful.data.conversations``), preferences (``heedful.data.preferences``), words with tags
              (``heedful.data.conll``), questions with answers (``heedful.data.squad``).
        columns: names of the columns and their kinds (``heedful.data.rows.Kind``); names alone mean "text".
        names: names of the columns in the file: names, numbers from 1, or dotted keys of nested JSON
            ("translation.en"), for all columns or for the required ones. "column=name" renames a single column
            (``heedful.data.rows.resolve_columns``). A first row with all the names is a header. Without ``names`` a
            table has the task's names, or its columns are inferred from their content
            (``heedful.data.column_inference``); a TSV file of texts without a header is read by position.
        split: "train" (default), "valid" or "test", if the source has splits and does not name one itself.
        limit: maximum number of rows.
        separator: separates the labels of a row that may have several or none.
        remembered: names of the columns in an earlier file (``Rows.mapping``). Without ``names``, they take precedence
            over the task's.

    Rows with a blank value are left out and counted in ``Rows.skipped``. Raises ``HeedfulError`` with file, line and
    remedy for any other form, and for a source without rows.

    >>> read("builtin:cldr-dates/en-de:test", ["source", "target"], limit=2)[1].line
    2
    """
    kinds: dict[str, Kind] = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "text")
    sources = _as_list(source)
    if not all(sources) or not sources:
        raise HeedfulError("the file name is empty; give a file, a folder, or a built-in set: builtin:NAME")
    if hub_set := next((path for path in sources if path.startswith(hub_datasets.PREFIX)), None):
        if len(sources) > 1:
            raise HeedfulError(f"{hub_set} cannot be combined with other sources; give it alone")
        return _shards(hub_datasets.files(hub_set, split), kinds, names, limit, separator, remembered)
    if mixtures.is_mixture(sources):
        _check_mixture(sources[0], names, limit, separator)
        return mixtures.read_mixture(sources[0], kinds, split, read)
    if any(kind.startswith("turns") for kind in kinds.values()):
        preference_rows = preferences.read_preferences(sources, kinds, names, limit, remembered)
        if preference_rows is not None:
            return preference_rows
        kinds = _other_columns(kinds, sources)
    may_be_conversations = "messages?" in kinds.values() and separator is None
    kinds, names = resolve_columns(kinds, names)
    if may_be_conversations:
        conversation_rows = conversations.read_conversations(sources, names, limit)
        if conversation_rows is not None:
            return conversation_rows
        kinds = _document_columns(kinds, sources)
    _check(kinds, names, separator)
    rows = _read_special(sources, kinds, names, split, limit, separator, remembered)
    return _read_lines(sources, kinds, names, split, limit, separator, remembered) if rows is None else rows


def _check_mixture(path: str, names: Sequence[str] | None, limit: int | None, separator: str | None) -> None:
    """Raises ``HeedfulError`` for options that the mixture's file sets itself."""
    for flag, value in (("columns", names), ("limit", limit), ("label-separator", separator)):
        if value is not None:
            raise HeedfulError(f"--data.{flag} has no effect on a mixture; set it in {path}, or leave the option out")


def _other_columns(kinds: Mapping[str, Kind], sources: Sequence[str]) -> dict[str, Kind]:
    """Returns the columns of sources that have no preferences; raises ``HeedfulError`` if they are required."""
    if "turns" in kinds.values():
        raise HeedfulError(
            f"{display_name(sources[0])} is not a table with {' and '.join(required_columns(kinds))}; give one, or "
            "name its columns: --data.columns chosen=NAME,rejected=NAME"
        )
    return {name: kind for name, kind in kinds.items() if kind != "turns?"}


def _document_columns(kinds: Mapping[str, Kind], sources: Sequence[str]) -> dict[str, Kind]:
    """Returns the columns of sources that are not conversations."""
    required = required_columns(kinds)
    if not required:
        raise HeedfulError(
            f"{display_name(sources[0])} is not a table with {' and '.join(kinds)}; leave --data.columns out"
        )
    return {name: kinds[name] for name in required}


def _read_special(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    split: str | None,
    limit: int | None,
    separator: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows | None:
    """Returns the rows of a built-in set, images, tagged words, questions or documents; None for other columns."""
    if len(sources) == 1 and sources[0].startswith(builtin.PREFIX):
        return _builtin(sources[0], kinds, names, split, limit, separator)
    if "image" in kinds.values():
        return image_reader.read_images(sources, kinds, names, split, limit, remembered)
    if "tags" in kinds.values():
        return conll.read_tagged_words(sources, kinds, names, split, limit)
    if {"answers", "references"} & {*kinds.values()}:
        return squad.read_squad(sources, kinds, names, split, limit, remembered)
    if "document" in kinds.values():
        return documents.read_documents(sources, next(iter(kinds)), names, split, limit, remembered)
    return None


def _read_lines(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    split: str | None,
    limit: int | None,
    separator: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    """Returns the rows of a table, or of parallel plain text files."""
    if (table := _table(sources, kinds, names, separator, remembered)) is not None:
        lines = ((line, dict(zip(table.chosen_columns, cells, strict=True)) if cells else {}) for line, cells in table)
        rows = _non_blank_rows(lines, sources[0], limit)
        table.annotate(rows)
    else:
        chosen = _check_plain(sources, kinds, names, split)
        rows = _non_blank_rows(_parallel(sources, chosen, separator), sources[0], limit)
        rows.columns = tuple(sources)
    if not rows:
        problem = f"only blank rows ({rows.skipped})" if rows.skipped else "no rows"
        raise HeedfulError(
            f"{problem} in {display_name(', '.join(sources))}; give a file with {' and '.join(required_columns(kinds))}"
        )
    check_tags(rows, kinds, sources)
    if names is None:
        check_header(rows, kinds)
    return rows


def _table(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    separator: str | None,
    remembered: Mapping[str, str] | None,
) -> Table | None:
    """Returns the only source as a table, or None if it is plain text.

    A file with an unknown extension is plain text if one column is requested without a name.
    """
    needs_table = len(required_columns(kinds)) > 1 or names is not None
    if len(sources) > 1 or os.path.isdir(sources[0]) or not (needs_table or extension(sources[0]) in EXTENSIONS):
        return None
    table = Table(sources[0], kinds, names, separator, remembered or {})
    return table if table.format.is_table else None


def splits(source: str | PathLike[str] | Sequence[str | PathLike[str]]) -> tuple[str, ...]:
    """Returns the splits of a source ("train", "valid", "test"), which ``read`` accepts as its argument ``split``.

    A built-in set has all three, unless its name includes one. An image data set, a folder with sub-folders of these
    names and a data set of the Hub have those that are present. Files have none: ().
    """
    sources = _as_list(source)
    if mixtures.is_mixture(sources):
        return mixtures.mixture_splits(sources[0])
    if len(sources) == 1 and sources[0].startswith(builtin.PREFIX):
        return () if ":" in sources[0].removeprefix(builtin.PREFIX) else builtin.SPLITS
    if len(sources) == 1 and sources[0].startswith(hub_datasets.PREFIX):
        return hub_datasets.hub_splits(sources[0])
    if len(sources) == 1 and os.path.isdir(sources[0]):
        return image_reader.image_splits(sources) or documents.document_splits(sources[0])
    return image_reader.image_splits(sources)


def _shards(
    files: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    limit: int | None,
    separator: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    """Returns the rows of the files of one data set, in order. The first file determines the columns."""
    if "document" in kinds.values():  # these may exceed memory
        return read(files, kinds, names=names, limit=limit, separator=separator, remembered=remembered)
    rows = read(files[0], kinds, names=names, limit=limit, separator=separator, remembered=remembered)
    remembered = rows.mapping or remembered
    for file in files[1:]:
        if limit is not None and len(rows) >= limit:
            break
        shard = read(
            file, kinds, names=names, limit=limit and limit - len(rows), separator=separator, remembered=remembered
        )
        if extension(file) in EXTENSIONS and shard.columns != rows.columns:
            shard_columns, columns = (", ".join(map(repr, each.columns)) for each in (shard, rows))
            raise HeedfulError(
                f"the columns are {shard_columns} in {file}, but {columns} in {files[0]}; name the "
                "columns with --data.columns"
            )
        rows.extend(shard)
        rows.skipped += shard.skipped
        rows.blank += shard.blank
    return rows


def _as_list(source: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    return [str(source)] if isinstance(source, str | PathLike) else [str(path) for path in source]


def _check(kinds: Mapping[str, Kind], names: Sequence[str] | None, separator: str | None) -> None:
    if names is not None and len(names) not in (len(kinds), len(required_columns(kinds))):
        listed = ", ".join(f"{name} (optional)" if kind.endswith("?") else name for name, kind in kinds.items())
        raise HeedfulError(
            f"{len(names)} names ({','.join(names)}) for {len(kinds)} columns; give --data.columns one name for each "
            f"of {listed}, in that order"
            + (", or column=name for some of the columns" if any(kind.endswith("?") for kind in kinds.values()) else "")
        )
    if separator == "":
        raise HeedfulError(
            'the label separator is empty; give the characters between labels: --data.label-separator ","'
        )
    if separator is not None and ("label" not in kinds.values() or "image" in kinds.values()):
        raise HeedfulError(f"--data.label-separator has no effect on {', '.join(kinds)}; leave it out")


def _non_blank_rows(lines: Iterable[tuple[int, dict[str, Any]]], file: str, limit: int | None) -> Rows:
    rows = Rows()
    for line, values in lines:
        if values and not any(isinstance(value, str) and not value.strip() for value in values.values()):
            rows.append(Row(values, file, line))
            if len(rows) == limit:
                break
        else:
            rows.skip(file, line)
    return rows


def _parallel(
    sources: Sequence[str], columns: Mapping[str, Kind], separator: str | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    streams = [(text for _, text in read_lines(path)) for path in sources]
    factories: dict[str, Callable[[], Reader]] = {
        "label": lambda: Labels(separator),
        "number": Numbers,
        "number?": Numbers,
    }
    readers = [factories[kind]() if kind in factories else None for kind in columns.values()]
    counts = [0] * len(sources)
    for line, texts in enumerate(zip_longest(*streams), 1):
        counts = [count + (text is not None) for count, text in zip(counts, texts, strict=True)]
        if None not in texts:
            values = {
                column: reader.read(text, column, f"{path}:{line}") if reader else text
                for column, reader, text, path in zip(columns, readers, texts, sources, strict=True)
            }
            yield line, values
    if len(set(counts)) > 1:
        lengths = ", ".join(f"{path} has {count} lines" for path, count in zip(sources, counts, strict=True))
        longest = sources[counts.index(max(counts))]
        raise HeedfulError(
            f"the parallel files have different lengths ({lengths}), in {longest}:{min(counts) + 1}; find the missing "
            "or extra line: lines of the same number belong together"
        )


def _folder_hint(folder: str, split: str | None, max_files: int) -> str:
    """Returns a hint on how to use the files of a folder, by the splits in their names; "" without any."""
    by_split: dict[str, list[str]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        words = re.split(r"[^a-z]+", entry.name.lower())
        entry_split = next((name for word, name in (("dev", "valid"), *PARTS.items()) if word in words), None)
        if entry_split is not None and os.path.isfile(entry.path):
            by_split.setdefault(entry_split, []).append(shlex.quote(entry.path))
    files = {name: " ".join(paths[:max_files]) for name, paths in by_split.items()}
    if split == "train" and "train" in files:
        valid = f" --valid {files['valid']}" if "valid" in files else ""
        return f"give the files in it: --train {files['train']}{valid}"
    if split == "train" and files:
        present = " and ".join(name for name in ("valid", "test") if name in files)
        scored = files["test"] if "test" in files else files["valid"]
        return (
            f"it has only {present} files: train on other files, and score with heedful evaluate MODEL --data {scored}"
        )
    chosen = next((name for name in (split or "test", "test", "valid", "train") if name in files), None)
    return f"give the file in it: {files[chosen]}" if chosen else ""


def _check_plain(
    sources: Sequence[str], kinds: Mapping[str, Kind], names: Sequence[str] | None, split: str | None
) -> dict[str, Kind]:
    """Returns the columns of plain text files, one a column. Raises ``HeedfulError`` if the files do not fit them."""
    columns = required_columns(kinds)
    requested = f"{plural(len(columns), 'column')} ({', '.join(columns)})"
    remedy = f"give one table ({', '.join(EXTENSIONS)})" + (
        f" or {len(columns)} plain text files, one for each column" if len(columns) > 1 else " or one plain text file"
    )
    folder = next((path for path in sources if os.path.isdir(path)), None)
    if folder is not None:
        hint = _folder_hint(folder, split, 1 if "label" in columns else len(columns)) or remedy
        raise HeedfulError(f"{folder} is a folder, but a file is expected; {hint}")
    if len(sources) == 1 and len(columns) > 1:
        kind = extension(sources[0])
        problem = f"unknown extension {kind!r}" if kind else "no extension"
        raise HeedfulError(f"{problem}, and its lines have no columns, in {sources[0]}; {remedy}")
    if len(sources) not in (len(columns), len(kinds)):
        raise HeedfulError(f"{len(sources)} files for {requested}; {remedy}")
    special = next((path for path in sources if path == STDIN or path.startswith(builtin.PREFIX)), None)
    if len(sources) > 1 and special is not None:
        raise HeedfulError(f"{special!r} has all columns and cannot be combined with other files; give it alone")
    tables = [path for path in sources if extension(path) in EXTENSIONS]
    if tables:
        raise HeedfulError(f"{tables[0]} is a table and cannot be combined with plain text files; {remedy}")
    if names is not None:
        raise HeedfulError(f"{sources[0]} is plain text and has no columns; leave --data.columns out")
    return {name: kind for name, kind in kinds.items() if len(sources) == len(kinds) or name in columns}


def _builtin(
    source: str,
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    split: str | None,
    limit: int | None,
    separator: str | None,
) -> Rows:
    if separator is not None:
        raise HeedfulError(
            f"--data.label-separator has no effect on {source}, whose rows have one label; leave the option out"
        )
    examples = builtin.load(source, split)
    columns = required_columns(kinds) if names is not None and len(names) < len(kinds) else list(kinds)
    if names is None:
        columns = [name for name in columns if not kinds[name].endswith("?") or name in examples[0]]
    rows = Rows(columns=names or columns)
    for line, values in enumerate(examples[:limit], 1):
        chosen = {}
        for column, name in zip(columns, rows.columns, strict=True):
            if name not in values:
                raise HeedfulError(f"no column {name!r} in {source}; choose one of its columns: {', '.join(values)}")
            kind = kinds[column].rstrip("?")
            if not isinstance(values[name], TYPES.get(kind, str)):
                actual = next((other for other, cls in TYPES.items() if isinstance(values[name], cls)), "text")
                raise HeedfulError(
                    f"column {name!r} of {source} has {PLURALS.get(actual, actual)} and cannot be used as {column!r}; "
                    "give other data"
                )
            chosen[column] = values[name]
        rows.append(Row({**values, **chosen}, source, line))
    return rows
