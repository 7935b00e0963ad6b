"""`read`: whatever a person gives as data, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from os import PathLike

from heedful.data import builtin
from heedful.data.files import STDIN, extension, shown, text_stream
from heedful.data.rows import Row, Rows
from heedful.data.tables import EXTENSIONS, Table
from heedful.errors import HeedfulError


def read(
    source: str | PathLike[str] | Sequence[str | PathLike[str]],
    columns: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Rows:
    """The rows of a file, of parallel files, or of a built-in set; their values are named by `columns`.

    - One table: ``.tsv`` (tabs separate, quotes are plain characters), ``.csv`` (RFC 4180), ``.jsonl`` or ``.ndjson``
      (an object a line), ``.parquet``.
    - As many files as `columns`, of any other extension: plain text, a row a line, line n of one belonging to line n of
      the others. So one plain file is a row a line where one column is wanted.
    - ``-``: standard input, TSV, or a row a line where one column is wanted.
    - ``builtin:NAME[/ARG][:SPLIT]``: see `heedful.data.builtin`. `split` ("train", "valid" or "test", default "train")
      is the part to read where the source names none; a file has no parts. Further values of such rows are kept.

    Every file may be compressed (``.gz``, ``.xz``, ``.zst``).

    `names` is what the file calls the columns: names, numbers from 1, or dotted keys of nested JSON ("translation.en");
    by default as the task does. A first row that holds all the names is a header. Without `names`, a TSV file without
    such a header is read by position; any other table must hold the task's names.

    Rows with a blank value are left out and counted in `Rows.skipped`. At most `limit` rows are read.

    Raises `HeedfulError` with file, line and remedy for anything that is not as described, and for no rows at all.
    """
    sources = [str(source)] if isinstance(source, str | PathLike) else [str(one) for one in source]
    if names is not None and len(names) != len(columns):
        raise HeedfulError(
            f"{len(names)} names ({','.join(names)}) for {len(columns)} columns; --data.columns takes one for each of "
            f"{', '.join(columns)}, in that order"
        )
    if len(sources) == 1 and sources[0].startswith(builtin.PREFIX):
        return _builtin(sources[0], columns, names, split, limit)
    table = len(sources) == 1 and (
        extension(sources[0]) in EXTENSIONS or (sources[0] == STDIN and (len(columns) > 1 or names is not None))
    )
    if table:
        lines = Table(sources[0], columns, names)
        rows = _kept(lines, columns, sources[0], limit)
        rows.columns = lines.found
    else:
        _check_plain(sources, columns, names)
        rows = _kept(_parallel(sources), columns, sources[0], limit)
        rows.columns = tuple(sources)
    if not rows:
        found = f"only blank rows ({rows.skipped})" if rows.skipped else "no rows"
        raise HeedfulError(f"{found} in {shown(', '.join(sources))}; give a file with {' and '.join(columns)}")
    return rows


def _kept(lines: Iterable[tuple[int, Sequence[str]]], columns: Sequence[str], file: str, limit: int | None) -> Rows:
    rows = Rows()
    for line, values in lines:
        if values and all(value.strip() for value in values):
            rows.append(Row(dict(zip(columns, values, strict=True)), file, line))
            if len(rows) == limit:
                break
        else:
            rows.skipped += 1
    return rows


def _parallel(sources: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    streams = [(text for _, text in text_stream(path)) for path in sources]
    counts = [0] * len(sources)
    for line, texts in enumerate(zip_longest(*streams), 1):
        counts = [count + (text is not None) for count, text in zip(counts, texts, strict=True)]
        if None not in texts:
            yield line, texts
    if len(set(counts)) > 1:
        both = ", ".join(f"{path} has {count} lines" for path, count in zip(sources, counts, strict=True))
        longest = sources[counts.index(max(counts))]
        raise HeedfulError(
            f"parallel files of different length ({both}), in {longest}:{min(counts) + 1}; line n of one must belong "
            "to line n of the others, so find the line that is missing or too many"
        )


def _check_plain(sources: Sequence[str], columns: Sequence[str], names: Sequence[str] | None) -> None:
    wanted = f"{len(columns)} column{'s' if len(columns) > 1 else ''} ({', '.join(columns)})"
    either = f"give one table ({', '.join(EXTENSIONS)})" + (
        f" or {len(columns)} plain text files, one a column" if len(columns) > 1 else " or one plain text file"
    )
    if len(sources) == 1 and len(columns) > 1:
        kind = extension(sources[0])
        raise HeedfulError(f"{f'unknown extension {kind!r}' if kind else 'no extension'}, in {sources[0]}; {either}")
    if len(sources) != len(columns):
        raise HeedfulError(f"{len(sources)} files for {wanted}; {either}")
    special = next((one for one in sources if one == STDIN or one.startswith(builtin.PREFIX)), None)
    if len(sources) > 1 and special is not None:
        raise HeedfulError(f"{special!r} stands for all columns and cannot be one of several files; give it alone")
    tables = [one for one in sources if extension(one) in EXTENSIONS]
    if tables:
        raise HeedfulError(f"{tables[0]} is a table and cannot be one of several plain text files; {either}")
    if names is not None:
        raise HeedfulError(f"columns are named for {sources[0]}, which is plain text; leave --data.columns out")


def _builtin(
    source: str, columns: Sequence[str], names: Sequence[str] | None, split: str | None, limit: int | None
) -> Rows:
    wanted = columns if names is None else names
    rows = Rows(columns=wanted)
    for line, values in enumerate(builtin.load(source, split), 1):
        missing = next((name for name in wanted if name not in values), None)
        if missing is not None:
            raise HeedfulError(f"no column {missing!r} in {source}; it has {', '.join(values)}")
        chosen = {column: values[name] for column, name in zip(columns, wanted, strict=True)}
        rows.append(Row({**values, **chosen}, source, line))
        if len(rows) == limit:
            break
    return rows
