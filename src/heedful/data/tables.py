"""Tables: TSV, CSV, JSON lines and Parquet, read as (line, values of the requested columns)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any, ClassVar

from heedful.data.cell_values import Labels, Numbers, Texts, brief, checked_text
from heedful.data.column_inference import (
    NEAR,
    SAMPLE,
    ColumnProfile,
    UndecidedColumns,
    candidate_columns,
    columns_option,
    infer_columns,
    is_header,
    orange_header,
    resembles_header,
    stands_out,
)
from heedful.data.file_formats import Format, detect_format
from heedful.data.records import (
    BLANK,
    MISSING,
    ParquetRecords,
    nested_keys,
    nested_value,
    read_json_array,
    read_json_lines,
    record_classes,
)
from heedful.data.rows import Kind, Row, Rows, required_columns
from heedful.data.text_files import STDIN, display_name, extension, raw_lines, read_lines
from heedful.errors import HeedfulError, plural

Reader = Labels | Numbers | Texts
WholeRow = tuple[int, list[Any], Mapping[str, Any] | Sequence[str]]
MAX_FIELD = 2**31 - 1  # characters of a CSV field: the largest limit that every platform accepts


class NoColumn(HeedfulError):
    """Error: a requested column is not in the table."""


@dataclass
class Table:
    """Table file, read as (line, values of the requested columns).

    Columns that neither names nor numbers identify are inferred from their content (`heedful.data.column_inference`).

    Args:
        path: the file.
        columns: the task's columns and their kinds ("image": any value of the file).
        names: the user's names of these columns in the file; None: not given.
        separator: separates several labels in one cell.
        remembered: names of the columns in an earlier file; they take precedence over the task's own names.

    Attributes, set when the first row has been read:
        chosen_columns: the task's columns that are read.
        file_columns: their names in the file.
        header: the names of all columns, if the file has a header.
        notes: lines for people about the choice of columns.
    """

    path: str
    columns: Mapping[str, Kind]
    names: Sequence[str] | None = None
    separator: str | None = None
    remembered: Mapping[str, str] = field(default_factory=dict)
    allows_extra: ClassVar[bool] = False  # a table without a header may have more columns
    chosen_columns: tuple[str, ...] = field(default=(), init=False)
    file_columns: tuple[str, ...] = field(default=(), init=False)
    header: tuple[str, ...] = field(default=(), init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _has_header: bool = field(default=False, init=False)  # as the form of the first rows shows
    _reason: str = field(default="", init=False)  # why no columns could be inferred
    _candidates: list[str] = field(default_factory=list, init=False)  # likely names of the required columns

    def __post_init__(self) -> None:
        self.format = self._detected_format()
        if self.format.note:
            self.notes.append(f"{display_name(self.path)} is read as {self.format.note}")

    def _detected_format(self) -> Format:
        labelled = self.allows_extra or bool({"label", "number"} & {*self.columns.values()})
        return detect_format(self.path, labelled=labelled)

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """Yields (line, values of `chosen_columns`); a blank line gives (line, [])."""
        return ((line, values) for line, values, _ in self.whole_rows())

    def whole_rows(self) -> Iterator[WholeRow]:
        """Yields (line, values of `chosen_columns`, whole row); a blank line gives (line, [], {}) or (line, [], []).

        A whole row is the cells in the order of the columns or, where rows have keys, the record. Of a Parquet file it
        has the columns of ``_columns_to_read``.
        """
        match self.format.kind:
            case "csv":
                return self._delimited(_csv_rows(self.path, self.format.delimiter), headless=False)
            case "jsonl":
                return self._records(read_json_lines(self.path), {})
            case "json":
                return self._records(read_json_array(self.path), {})
            case "parquet":
                parquet = ParquetRecords(self.path, self._columns_to_read())
                return self._records(parquet, parquet.features)
            case kind:
                delimiter, max_splits = ("\t", -1) if kind != "labelled" else (" ", 1)
                lines = read_lines(self.path)
                rows = ((line, text.split(delimiter, max_splits) if text.strip() else []) for line, text in lines)
                return self._delimited(rows, headless=True)

    def annotate(self, rows: Rows) -> None:
        """Copies the columns, the mapping and the notes of this table to `rows`, which were read from it."""
        rows.columns, rows.mapping = self.file_columns, dict(zip(self.chosen_columns, self.file_columns, strict=True))
        rows.notes.extend(note for note in self.notes if note not in rows.notes)

    def _columns_to_read(self) -> list[str]:
        """Returns the names of the columns to read from a Parquet file; [] to read all."""
        if self.names is None and self.remembered:
            return []
        return [*(self.names or self.columns)]

    def _required(self) -> list[str]:
        """Returns the columns that the table must have."""
        return required_columns(self.columns)

    def _optional(self) -> list[str]:
        """Returns the optional columns, which are read if the table has a column of that name."""
        return [column for column, kind in self.columns.items() if kind.endswith("?")]

    def _choose_columns(self, available: Container[str]) -> None:
        """Chooses columns and their names in the file. An optional one is read if it is named or `available`."""
        chosen = list(self.columns)
        if self.names is None:
            required = required_columns(self.columns)
            chosen = [
                column for column in chosen if column in required or self._file_column(column, available) in available
            ]
        elif len(self.names) < len(chosen):
            chosen = required_columns(self.columns)
        self.chosen_columns = tuple(chosen)
        self.file_columns = tuple(self.names or (self._file_column(column, available) for column in chosen))

    def _file_column(self, column: str, available: Container[str]) -> str:
        """Returns a column's name in the file: the remembered one if it is available, else the task's own."""
        name = self.remembered.get(column, column)
        return name if name in available and not name.isdecimal() else column

    def _infer(self, profiles: Mapping[str, ColumnProfile], available: Container[str]) -> bool:
        """Infers columns without a known name from their content. Returns False if that is not possible."""
        required, optional = self._required(), self._optional()
        fixed = {column: name for column in required if (name := self._file_column(column, available)) in available}
        kinds = {name: self.columns[name] for name in required}
        self._candidates = candidate_columns(kinds, profiles, fixed)
        if "text_pair" in optional:
            kinds["text_pair"] = "text?"
        try:
            chosen = infer_columns(kinds, profiles, fixed)
        except UndecidedColumns as error:
            self._reason = str(error)
            return False
        chosen |= {column: name for column in optional if (name := self._file_column(column, available)) in available}
        self.chosen_columns = tuple(column for column in self.columns if column in chosen)
        self.file_columns = tuple(chosen[column] for column in self.chosen_columns)
        return True

    def _note_columns(self, reason: str) -> None:
        """Notes the chosen names and the reason, if they are not the task's."""
        if self.names is None and self.file_columns != self.chosen_columns:
            pairs = zip(self.chosen_columns, self.file_columns, strict=True)
            required = {*self._required()}
            chosen = ", ".join(f"{column}={name}" for column, name in pairs if column in required or column != name)
            self.notes.append(f"{chosen} ({reason}; --data.columns {self._example_names()} changes it)")

    def _example_names(self) -> str:
        return ",".join(column.upper() for column in self._required())

    def _absent(self) -> list[str]:
        return [] if self.names else [column for column in self.columns if column not in self.chosen_columns]

    def _readers(self, features: Mapping[str, Any]) -> list[Reader | None]:
        """Returns the reader of each chosen column; None for columns of other kinds."""
        readers: dict[str, Callable[[str], Reader]] = {
            "label": lambda name: Labels(self.separator, record_classes(features, name)),
            "number": lambda name: Numbers(),
            "texts": lambda name: Texts(),
        }
        kinds = [self.columns[column].rstrip("?") for column in self.chosen_columns]
        return [
            readers[kind](name) if kind in readers else None
            for kind, name in zip(kinds, self.file_columns, strict=True)
        ]

    # ------------------------------------------------------------------------------------------------------------ cells

    def _delimited(self, rows: Iterable[tuple[int, list[str]]], headless: bool) -> Iterator[WholeRow]:
        """Yields (line, values, cells) from rows of cells.

        With `headless`, a table without a header and without names is read by position.
        """
        rows = self._without_orange_flags(iter(rows))
        blank = []
        for line, first in rows:
            if first:
                break
            blank.append((line, first))
        else:
            yield from ((number, [], []) for number, _ in blank)
            return
        sample = list(islice(rows, SAMPLE)) if self.names is None and not self._has_all_names(first) else []
        has_header, positions = self._locate(first, line, headless, [cells for _, cells in sample])
        readers = self._readers({})
        self.header = tuple(cell.strip() for cell in first) if has_header else ()
        yield from ((number, [], []) for number, _ in blank)
        for number, cells in chain([] if has_header else [(line, first)], sample, rows):
            if cells and len(cells) != len(first):
                raise HeedfulError(
                    f"{plural(len(cells), 'column')}, but line {line} has {len(first)}, in "
                    f"{display_name(self.path)}:{number}; correct this row: is a tab or comma missing or extra?"
                )
            location = f"{display_name(self.path)}:{number}"
            values = [
                reader.read(cells[position], name, location) if reader else cells[position]
                for name, position, reader in zip(self.file_columns, positions, readers, strict=True)
                if cells
            ]
            yield number, values, cells

    def _without_orange_flags(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
        """Returns the rows; of an Orange file with the names alone as its header."""
        first = list(islice(rows, 4))
        header = orange_header([cells for _, cells in first]) if first and all(cells for _, cells in first) else None
        if header is None:
            return chain(first, rows)
        names, count = header
        self._has_header = True
        self.notes.append(f"{display_name(self.path)} has an Orange header; its types and roles are not read")
        return chain([(first[0][0], names)], first[count:], rows)

    def _has_all_names(self, first: list[str]) -> bool:
        """Returns True if a first row holds the names of all required columns."""
        cells = {*first, *(cell.strip() for cell in first)}
        self._choose_columns(cells)
        return all(name in cells for name in self.file_columns)

    def _locate(
        self, first: list[str], line: int, headless: bool, others: Sequence[list[str]]
    ) -> tuple[bool, list[int]]:
        """Returns True if the first row is a header, and the position of each chosen column.

        `others` are the rows after the first, if columns may have to be inferred.
        """
        cells = [cell.strip() for cell in first]
        self._choose_columns({*first, *cells})
        header = next((row for row in (first, cells) if all(name in row for name in self.file_columns)), None)
        if header:
            self._check_unique(cells, line)
            self._note_columns("as in training")
            return True, [header.index(name) for name in self.file_columns]
        # A known name among the cells shows that the row is a header, in which another column has another name.
        is_known_header = self._has_header or any(name in cells for name in self.file_columns)
        is_known_header = is_known_header or resembles_header(cells, self.file_columns)
        may_choose = self.names is None
        full = [row for row in others if len(row) == len(first)]
        if may_choose and self.remembered and not is_known_header:
            is_known_header = stands_out(cells, full)  # numbers of another table's columns say nothing here
        if may_choose and not is_known_header and self._use_remembered_numbers(len(first)):
            return False, [int(name) - 1 for name in self.file_columns]
        if may_choose and not (headless and not is_known_header and self._are_in_order([first, *others])):
            inferred = self._infer_delimited(cells, full, headless, is_known_header)
            if inferred is not None:
                return inferred
        if may_choose and headless and not is_known_header:
            if 1 < len(self.chosen_columns) < len(first) and not self.allows_extra:
                raise self._surplus_error(first, line)
            self.file_columns = tuple(map(str, range(1, len(self.chosen_columns) + 1)))
        elif not all(name.isdecimal() for name in self.file_columns):
            raise self._missing_error(cells, line)
        self._check_numbers(len(first), line)
        return False, [int(name) - 1 for name in self.file_columns]

    def _check_numbers(self, width: int, line: int) -> None:
        """Raises `HeedfulError` for a column number that the table lacks."""
        pairs = zip(self.chosen_columns, self.file_columns, strict=True)
        outside = next(((column, name) for column, name in pairs if not 1 <= int(name) <= width), None)
        if outside is not None:
            column, number = outside
            separator = "commas" if self.format.kind == "csv" else "tabs"
            raise HeedfulError(
                f"{plural(width, 'column')}, but column {number} is needed for {column!r}, in "
                f"{display_name(self.path)}:{line}; "
                f"separate the columns by {separator}, or choose other columns: --data.columns 1,2"
            )

    def _use_remembered_numbers(self, width: int) -> bool:
        """Chooses columns by their remembered numbers.

        Returns False if a column has no remembered number, or the table has no column of that number.
        """
        numbers = [self.remembered.get(column, "") for column in self.chosen_columns]
        if not all(number.isdecimal() and 1 <= int(number) <= width for number in numbers) or not numbers:
            return False
        self.file_columns = tuple(numbers)
        if numbers != [str(number) for number in range(1, len(numbers) + 1)]:
            self._note_columns("as in training")
        return True

    def _are_in_order(self, rows: Sequence[list[str]]) -> bool:
        """Returns True if a table without a header is read by position.

        That needs text columns only: as many as are requested, or more if the first column contains text.
        """
        if {"label", "number", "image", "answers", "references"} & {
            self.columns[column] for column in self.chosen_columns
        }:
            return False
        if len(rows[0]) <= len(self.chosen_columns):
            return True
        if len(self.chosen_columns) > 1 and not self.allows_extra:
            return False
        first = ColumnProfile.of(row[0] for row in rows if row)
        return first.is_text or (self.allows_extra and first.is_words and not first.is_label)

    def _infer_delimited(
        self, first: list[str], others: Sequence[list[str]], headless: bool, is_known_header: bool
    ) -> tuple[bool, list[int]] | None:
        """Infers the columns from their content, as `_locate`. Returns None if that is not possible."""
        has_header = is_known_header or is_header(first, others, None, usual=not headless)
        numbers = [str(number) for number in range(1, len(first) + 1)]
        names = [name or f"#{number}" for number, name in enumerate(first, 1)] if has_header else numbers
        rows = others if has_header else [first, *others]
        profiles = {name: ColumnProfile.of(row[index] for row in rows) for index, name in enumerate(names)}
        if not self._infer(profiles, names if has_header else ()):
            return None
        positions = [names.index(name) for name in self.file_columns]
        pairs = zip(positions, self.chosen_columns, strict=True)
        label = next((position for position, column in pairs if self._is_label(column)), None)
        if not is_known_header and is_header(first, others, label, usual=not headless) != has_header:
            has_header = not has_header  # the label column decides: its first cell is a label of other rows, or not
            names = first if has_header else numbers
            self.file_columns = tuple(names[position] for position in positions)
        if has_header or positions != [*range(len(positions))] or len(first) > len(positions):
            self._note_columns("guessed")
        return has_header, positions

    def _is_label(self, column: str) -> bool:
        return self.columns[column] in ("label", "number")

    def _check_unique(self, header: list[str], line: int) -> None:
        """Raises `HeedfulError` if two cells of a header have the same requested name."""
        repeated = next((name for name in self.file_columns if header.count(name) > 1 and not name.isdecimal()), None)
        if repeated is not None:
            raise HeedfulError(
                f"{header.count(repeated)} columns are called {repeated!r}, in {display_name(self.path)}:{line}; "
                "give each column a different name"
            )

    def _surplus_error(self, first: list[str], line: int) -> HeedfulError:
        count = len(self.chosen_columns)
        numbers = ",".join(str(number) for number in range(1, count + 1))
        optional = next((name for name in self._absent() if self.columns[name].endswith("?")), None)
        also = (
            f", or with a third column: --data.columns {numbers},{optional}={count + 1}"
            if optional and count == 2
            else ""
        )
        return HeedfulError(
            f"{plural(len(first), 'column')} without a header, but {count} are needed "
            f"({', '.join(self.chosen_columns)}), in {display_name(self.path)}:{line}; "
            f"give their numbers: --data.columns {numbers}{also}"
        )

    # ---------------------------------------------------------------------------------------------------------- records

    def _records(
        self, records: Iterable[tuple[int, dict[str, Any]]], features: Mapping[str, Any]
    ) -> Iterator[WholeRow]:
        records = iter(records)
        for first_line, first in records:
            if first is not BLANK:
                break
            yield first_line, [], BLANK
        else:
            return
        names = {*self.columns, *self.remembered.values()}
        self._choose_columns({name for name in names if nested_value(first, name) is not MISSING})
        sample: list[tuple[int, dict[str, Any]]] = []
        if self.names is None:
            if any(nested_value(first, name) is MISSING for name in self.file_columns):
                sample = list(islice(records, SAMPLE))
                self._infer_keys([first, *(other for _, other in sample)], features)
            else:
                self._note_columns("as in training")
        readers = self._readers(features)
        for line, record in chain([(first_line, first)], sample, records):
            if record is BLANK:
                yield line, [], BLANK
                continue
            late = next((name for name in self._absent() if nested_value(record, name) is not MISSING), None)
            if late is not None:
                raise HeedfulError(
                    f"the row has the key {late!r}, which line {first_line} lacks, in {self.path}:{line}; write it in "
                    "every row or in no row"
                )
            values = [
                self._cell_value(record, column, name, line, reader)
                for column, name, reader in zip(self.chosen_columns, self.file_columns, readers, strict=True)
            ]
            yield line, values, record

    def _infer_keys(self, records: Sequence[dict[str, Any]], features: Mapping[str, Any]) -> None:
        """Infers the columns from the content of records."""
        names = list(dict.fromkeys(name for record in records for name in nested_keys(record)))
        profiles = {}
        for name in names:
            values = [value for record in records if (value := nested_value(record, name)) is not MISSING]
            classes = record_classes(features, name)
            if classes:
                values = [classes[value] if _is_class_number(value, classes) else value for value in values]
            profiles[name] = ColumnProfile.of(values)
        answers = {"answers", "answer"} & {*records[0]}  # a nested record in SQuAD's files
        profiles |= {name: ColumnProfile.of(record.get(name) for record in records) for name in answers}
        if self._infer(profiles, [*profiles]):
            self._note_columns("guessed")

    def _cell_value(self, record: dict[str, Any], column: str, name: str, line: int, reader: Reader | None) -> Any:
        value, location = nested_value(record, name), f"{display_name(self.path)}:{line}"
        if value is MISSING:
            raise self._missing_error(list(nested_keys(record)), line)
        if reader:
            return reader.read(value, name, location)
        if self.columns[column].rstrip("?") in ("image", "words", "tags", "answers", "references", "messages"):
            return value
        if not isinstance(value, str):
            raise HeedfulError(
                f"{name!r} is {brief(json.dumps(value, default=str))}, but text is expected, in {location}; write it "
                "as a string, or choose another column with --data.columns"
            )
        return checked_text(value, name, location)

    def _missing_error(self, names: list[str], line: int) -> NoColumn:
        missing = next(name for name in self.file_columns if name not in names)
        close = get_close_matches(missing, names, n=1, cutoff=NEAR)
        hint = f"did you mean {close[0]!r}? " if close else ""
        suggested = self._suggested_columns(names)
        numbers = ""
        if not (self.format.is_keyed or close or any(name in names for name in self.file_columns)):  # no header
            known = [str(names.index(name) + 1) for name in suggested if name in names]
            matching = known if len(known) == len(suggested) else map(str, range(1, len(suggested) + 1))
            numbers = f", or by number without a header: {columns_option(matching)}"
        reason = f"{self._reason}; " if self._reason else ""
        return NoColumn(
            f"no column {missing!r} among {', '.join(repr(brief(name)) for name in names[:12])}, in "
            f"{display_name(self.path)}:{line}; {hint}{reason}name the columns: {columns_option(suggested)}{numbers}"
        )

    def _suggested_columns(self, names: list[str]) -> list[str]:
        """Returns the columns to name among ``names``: those that were given, unknown ones corrected, or likely ones.

        A name that is like none stands for the first other column of a table with as many columns as names. Otherwise
        its suggestion is the task's name in capitals.
        """
        if self.names is None:
            count = len(self._required())
            first = names[:count] if len(names) >= count and not self._reason else []
            return self._candidates or first or [column.upper() for column in self._required()]
        close = [[name] if name in names else get_close_matches(name, names, 1, NEAR) for name in self.file_columns]
        others = [name for name in names if [name] not in close] if len(names) == len(close) else []
        return [
            found[0] if found else others.pop(0) if others else column.upper()
            for column, found in zip(self.chosen_columns, close, strict=True)
        ]


def extension_of(path: str) -> str:
    """Returns the extension of a file; standard input is TSV."""
    return ".tsv" if path == STDIN else extension(path)


def _is_class_number(value: Any, classes: Sequence[str]) -> bool:
    return isinstance(value, int) and 0 <= value < len(classes)


def _csv_rows(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) by RFC 4180; the line is the row's first, since a quoted field may span several."""
    # The limit applies to the whole process, in which other readers may run: it is raised and never restored.
    csv.field_size_limit(max(MAX_FIELD, csv.field_size_limit()))
    reader = csv.reader((line for _, line in raw_lines(path)), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells if any(cell.strip() for cell in cells) else []
            line = reader.line_num + 1
    except csv.Error as error:
        raise HeedfulError(
            f'broken CSV ({error}), in {path}:{line}; write a field that contains quotes as "a ""word"""'
        ) from error


def converted_rows(
    tables: Iterable[Table],
    convert: Callable[[Mapping[str, Any], str], Mapping[str, Any] | None],
    limit: int | None,
    needed: str,
) -> Rows:
    """Returns the rows of tables with the same columns, at most ``limit``, with the values that ``convert`` makes.

    ``convert`` takes the values of a row by column and the row's location, for errors; it returns None for a row with a
    blank text, which is skipped.

    Raises ``HeedfulError`` if all rows are blank; ``needed`` names what to fill in.
    """
    rows, paths = Rows(), []
    for table in tables:
        paths.append(table.path)
        for line, cells in table:
            location = f"{display_name(table.path)}:{line}"
            values = convert(dict(zip(table.chosen_columns, cells, strict=True)), location) if cells else None
            if values is None:
                rows.skip(table.path, line)
                continue
            rows.append(Row(values, table.path, line))
            if len(rows) == limit:
                return rows
    if not rows:
        raise HeedfulError(f"only blank rows ({rows.skipped}) in {display_name(', '.join(paths))}; fill in {needed}")
    return rows
