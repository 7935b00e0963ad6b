"""`read`: rows from paths, standard input, built-in sets, the Hub or Python objects."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from os import PathLike
from typing import Any

from heedful.data import builtin, conll, conversations, documents, hub_datasets, image_reader, squad
from heedful.data.cell_values import Labels, Numbers
from heedful.data.column_inference import check_header, check_tags
from heedful.data.file_formats import EXTENSIONS
from heedful.data.image_folder import PARTS
from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Kind, Row, Rows, required_columns, resolve_columns
from heedful.data.tables import Reader, Table
from heedful.data.text_files import STDIN, display_name, extension, read_lines
from heedful.errors import HeedfulError

PLURALS = {"image": "images", "number": "numbers"}
HOLDS = {"image": LazyImage, "words": tuple, "tags": tuple, "answers": tuple, "messages": tuple, "number": float}


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
    """The rows of a file, of parallel files, of a folder, or of a built-in set.

    Args:
        source: what to read, one or several:

            - One table: ``.tsv`` (tabs separate, quotes are plain characters), ``.csv`` (RFC 4180, or with semicolons
              or tabs), ``.jsonl`` or ``.ndjson`` (an object a line), ``.parquet``; of any other extension one whose
              form its first MiB shows: these, a JSON array of objects, or, where labels are wanted, a label, a space
              and a text a line.
            - As many files as `columns`, of any other extension: plain text, a row a line, line n of one belonging to
              line n of the others. So one plain file is a row a line where one column is wanted.
            - ``-``: standard input, TSV, or a row a line where one column is wanted.
            - ``builtin:NAME[/ARG][:SPLIT]``: see `heedful.data.builtin`. Further values of such rows are kept.
            - ``hub:ORG/NAME[@REVISION][/PATH][:SPLIT]``: a data set of the Hub, see `heedful.data.hub_datasets`.
            - Documents: see `heedful.data.documents`; images: `heedful.data.image_reader`; messages:
              `heedful.data.conversations`.

            Every file may be compressed (``.gz``, ``.xz``, ``.zst``).
        columns: the names of the values and what they hold; names alone mean "text" each.

            - "text": a line or cell with something in it; "text?" the same where the source has it: under its own name,
              or named by `names`. Rows of a source without it have no such value.
            - "tag?": as "text?", a short one that stands in many rows: the name of a language.
            - "label": the name of a class, without blanks around it; of numbers and true or false as JSON and Parquet
              have them, these written out, or the names that the file gives them (the Hugging Face Hub's ClassLabel).
              Where the file has lists, or a `separator` is given, a tuple of names, () where a row has none.
            - "document": a whole text, line ends and all. "image": a `LazyImage`.
            - "words" and "tags": a tuple of words, never empty, and one of labels, as many. CoNLL files, a word a line,
              or lists in JSON or Parquet: see `heedful.data.conll`.
            - "answers": a tuple of `Span`, pieces of a "context", () where it has no answer. SQuAD's JSON, or a table:
              see `heedful.data.squad`.
            - "number": a float; "number?": a float, where the source has it.
            - "messages?": a tuple of mappings with their "role" and "content", or in its place the texts "prompt" and
              "completion", where the source is a table that has them: see `heedful.data.conversations`.
        names: what the file calls the columns: names, numbers from 1, or dotted keys of nested JSON ("translation.en"),
            for all columns, or for all but the optional ones; by default as the task does. One column alone is named by
            "column=name", such as "score=similarity": see `heedful.data.rows.resolve_columns`. A first row that holds
            all the names is a header. Without `names` a table has the task's names, or its columns are inferred from
            their content (`heedful.data.column_inference`). A TSV file of texts without a header is read by position.
        split: the split of a source that has `splits` and names none: "train" (default), "valid" or "test". It has no
            effect on others.
        limit: read at most so many rows.
        separator: what stands between the labels of a row that may have several or none.
        remembered: what another file called the columns (`Rows.mapping`): where a table has such a column and there are
            no `names`, it goes before one of the task's name.

    Rows with a blank value are left out and counted in `Rows.skipped`.

    Raises `HeedfulError` with file, line and remedy for anything that is not as described, and for no rows at all.

    >>> read("builtin:cldr-dates/en-de:test", ["source", "target"], limit=2)[1].line
    2
    """
    kinds: dict[str, Kind] = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "text")
    sources = _as_list(source)
    if not all(sources) or not sources:
        raise HeedfulError("no file is named; give a file, a folder, or a built-in set: builtin:NAME")
    if hub_set := next((one for one in sources if one.startswith(hub_datasets.PREFIX)), None):
        if len(sources) > 1:
            raise HeedfulError(f"{hub_set} is a set of its own and cannot be one of several sources; give it alone")
        return _shards(hub_datasets.files(hub_set, split), kinds, names, limit, separator, remembered)
    talking = "messages?" in kinds.values()
    kinds, names = resolve_columns(kinds, names)
    if talking and separator is None:
        talks = conversations.read_rows(sources, names, limit)
        if talks is not None:
            return talks
        if not required_columns(kinds):
            raise HeedfulError(
                f"{display_name(sources[0])} is no table with {' and '.join(kinds)}; leave --data.columns out"
            )
        kinds = {name: kinds[name] for name in required_columns(kinds)}
    _check(kinds, names, separator)
    if len(sources) == 1 and sources[0].startswith(builtin.PREFIX):
        return _builtin(sources[0], kinds, names, split, limit, separator)
    if "image" in kinds.values():
        return image_reader.read_rows(sources, kinds, names, split, limit, remembered)
    if "tags" in kinds.values():
        return conll.read_rows(sources, kinds, names, split, limit)
    if "answers" in kinds.values():
        return squad.read_rows(sources, kinds, names, split, limit, remembered)
    if "document" in kinds.values():
        return documents.read_rows(sources, next(iter(kinds)), names, split, limit, remembered)
    if (table := _table(sources, kinds, names, separator, remembered)) is not None:
        lines = (
            (line, dict(zip(table.chosen_columns, values, strict=True)) if values else {}) for line, values in table
        )
        rows = _non_blank_rows(lines, sources[0], limit)
        table.annotate(rows)
    else:
        taken = _check_plain(sources, kinds, names, split)
        rows = _non_blank_rows(_parallel(sources, taken, separator), sources[0], limit)
        rows.columns = tuple(sources)
    if not rows:
        found = f"only blank rows ({rows.skipped})" if rows.skipped else "no rows"
        raise HeedfulError(
            f"{found} in {display_name(', '.join(sources))}; give a file with {' and '.join(required_columns(kinds))}"
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
    """The one source as a table; None where it is none, or where a row a line is wanted and its extension says no other
    thing.
    """
    several = len(required_columns(kinds)) > 1 or names is not None
    if len(sources) > 1 or os.path.isdir(sources[0]) or not (several or extension(sources[0]) in EXTENSIONS):
        return None
    table = Table(sources[0], kinds, names, separator, remembered or {})
    return table if table.format.is_table else None


def splits(source: str | PathLike[str] | Sequence[str | PathLike[str]]) -> tuple[str, ...]:
    """Which of "train", "valid" and "test" the source itself tells apart, so that `read` takes one of them.

    A built-in set that is not asked for one of them has all three; a set of images, or a folder whose sub-folders are
    called so, has those that are there. Files have none: ().
    """
    sources = _as_list(source)
    if len(sources) == 1 and sources[0].startswith(builtin.PREFIX):
        return () if ":" in sources[0].removeprefix(builtin.PREFIX) else builtin.SPLITS
    if len(sources) == 1 and sources[0].startswith(hub_datasets.PREFIX):
        return hub_datasets.splits(sources[0])
    if len(sources) == 1 and os.path.isdir(sources[0]):
        return image_reader.splits(sources) or documents.splits(sources[0])
    return image_reader.splits(sources)


def _shards(
    files: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    limit: int | None,
    separator: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    """The rows of files that are parts of one, in their order; of all of them the first says what is called how."""
    if "document" in kinds.values():  # which may be too many for memory
        return read(files, kinds, names=names, limit=limit, separator=separator, remembered=remembered)
    rows = read(files[0], kinds, names=names, limit=limit, separator=separator, remembered=remembered)
    remembered = rows.mapping or remembered
    for file in files[1:]:
        if limit is not None and len(rows) >= limit:
            break
        found = read(
            file, kinds, names=names, limit=limit and limit - len(rows), separator=separator, remembered=remembered
        )
        if extension(file) in EXTENSIONS and found.columns != rows.columns:
            here, there = (", ".join(map(repr, one.columns)) for one in (found, rows))
            raise HeedfulError(f"{here} in {file}, but {there} in {files[0]}; name the columns: --data.columns")
        rows.extend(found)
        rows.skipped += found.skipped
        rows.blank += found.blank
    return rows


def _as_list(source: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    return [str(source)] if isinstance(source, str | PathLike) else [str(one) for one in source]


def _check(kinds: Mapping[str, Kind], names: Sequence[str] | None, separator: str | None) -> None:
    if names is not None and len(names) not in (len(kinds), len(required_columns(kinds))):
        every = ", ".join(f"{name} (optional)" if kind.endswith("?") else name for name, kind in kinds.items())
        raise HeedfulError(
            f"{len(names)} names ({','.join(names)}) for {len(kinds)} columns; --data.columns takes one for each of "
            f"{every}, in that order"
            + (", or column=name for some" if any(kind.endswith("?") for kind in kinds.values()) else "")
        )
    if separator == "":
        raise HeedfulError("an empty label separator; give what stands between labels: --data.label-separator ,")
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
    made: dict[str, Callable[[], Reader]] = {"label": lambda: Labels(separator), "number": Numbers, "number?": Numbers}
    labels = [made[kind]() if kind in made else None for kind in columns.values()]
    counts = [0] * len(sources)
    for line, texts in enumerate(zip_longest(*streams), 1):
        counts = [count + (text is not None) for count, text in zip(counts, texts, strict=True)]
        if None not in texts:
            values = {
                column: label.read(text, column, f"{path}:{line}") if label else text
                for column, label, text, path in zip(columns, labels, texts, sources, strict=True)
            }
            yield line, values
    if len(set(counts)) > 1:
        both = ", ".join(f"{path} has {count} lines" for path, count in zip(sources, counts, strict=True))
        longest = sources[counts.index(max(counts))]
        raise HeedfulError(
            f"parallel files of different length ({both}), in {longest}:{min(counts) + 1}; line n of one must belong "
            "to line n of the others, so find the line that is missing or too many"
        )


def _folder_hint(folder: str, split: str | None, most: int) -> str:
    """Returns a hint on how to use the files of a folder, by the splits in their names; "" without any."""
    found: dict[str, list[str]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        words = re.split(r"[^a-z]+", entry.name.lower())
        part = next((part for name, part in (("dev", "valid"), *PARTS.items()) if name in words), None)
        if part is not None and os.path.isfile(entry.path):
            found.setdefault(part, []).append(shlex.quote(entry.path))
    files = {part: " ".join(found[part][:most]) for part in found}
    if split == "train" and "train" in files:
        valid = f" --valid {files['valid']}" if "valid" in files else ""
        return f"give the files in it: --train {files['train']}{valid}"
    if split == "train" and files:
        held = " and ".join(part for part in ("valid", "test") if part in files)
        part = "test" if "test" in files else "valid"
        return (
            f"it holds {held} files alone: train on others, and score with heedful evaluate MODEL --data {files[part]}"
        )
    part = next((part for part in (split or "test", "test", "valid", "train") if part in files), None)
    return f"give the file in it: {files[part]}" if part else ""


def _check_plain(
    sources: Sequence[str], kinds: Mapping[str, Kind], names: Sequence[str] | None, split: str | None
) -> dict[str, Kind]:
    """The columns that as many plain files stand for."""
    columns = required_columns(kinds)
    wanted = f"{len(columns)} column{'s' if len(columns) > 1 else ''} ({', '.join(columns)})"
    either = f"give one table ({', '.join(EXTENSIONS)})" + (
        f" or {len(columns)} plain text files, one a column" if len(columns) > 1 else " or one plain text file"
    )
    folder = next((one for one in sources if os.path.isdir(one)), None)
    if folder is not None:
        use = _folder_hint(folder, split, 1 if "label" in columns else len(columns)) or either
        raise HeedfulError(f"{folder} is a folder and a file is wanted; {use}")
    if len(sources) == 1 and len(columns) > 1:
        kind = extension(sources[0])
        unknown = f"unknown extension {kind!r}" if kind else "no extension"
        raise HeedfulError(f"{unknown} and no columns in its lines, in {sources[0]}; {either}")
    if len(sources) not in (len(columns), len(kinds)):
        raise HeedfulError(f"{len(sources)} files for {wanted}; {either}")
    special = next((one for one in sources if one == STDIN or one.startswith(builtin.PREFIX)), None)
    if len(sources) > 1 and special is not None:
        raise HeedfulError(f"{special!r} stands for all columns and cannot be one of several files; give it alone")
    tables = [one for one in sources if extension(one) in EXTENSIONS]
    if tables:
        raise HeedfulError(f"{tables[0]} is a table and cannot be one of several plain text files; {either}")
    if names is not None:
        raise HeedfulError(f"columns are named for {sources[0]}, which is plain text; leave --data.columns out")
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
        raise HeedfulError(f"--data.label-separator has no effect on {source}, whose rows have one label; leave it out")
    made = builtin.load(source, split)
    taken = required_columns(kinds) if names is not None and len(names) < len(kinds) else list(kinds)
    if names is None:
        taken = [name for name in taken if not kinds[name].endswith("?") or name in made[0]]
    rows = Rows(columns=names or taken)
    for line, values in enumerate(made[:limit], 1):
        chosen = {}
        for column, name in zip(taken, rows.columns, strict=True):
            if name not in values:
                raise HeedfulError(f"no column {name!r} in {source}; it has {', '.join(values)}")
            kind = kinds[column].rstrip("?")
            if not isinstance(values[name], HOLDS.get(kind, str)):
                held = next((other for other, made in HOLDS.items() if isinstance(values[name], made)), "text")
                raise HeedfulError(
                    f"{name!r} of {source} holds {PLURALS.get(held, held)} and cannot be {column!r}; give other data"
                )
            chosen[column] = values[name]
        rows.append(Row({**values, **chosen}, source, line))
    return rows
