"""Tables: TSV, CSV, JSON lines and Parquet as (line, values of the wanted columns)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any, ClassVar

from heedful.data.cell_values import Labels, Numbers, brief, checked_text
from heedful.data.column_inference import (
    NEAR,
    SAMPLE,
    ColumnProfile,
    UndecidedColumns,
    candidate_columns,
    infer_columns,
    is_header,
    resembles_header,
)
from heedful.data.file_formats import Format, detect_format
from heedful.data.records import (
    BLANK,
    MISSING,
    ParquetRecords,
    class_names,
    nested_keys,
    nested_value,
    read_json_array,
    read_json_lines,
)
from heedful.data.rows import Kind, Rows, required_columns
from heedful.data.text_files import STDIN, display_name, extension, raw_lines, read_lines
from heedful.errors import HeedfulError

Reader = Labels | Numbers
FIELD = 2**31 - 1  # characters of a CSV field, the most that every platform can be told


class NoColumn(HeedfulError):
    """A wanted column is not in the table."""


@dataclass
class Table:
    """One table file, and where in it the wanted columns are looked for.

    `columns` are the task's names with what they hold ("image": whatever the file has), `names` the person's own (None:
    nothing was said), `separator` what stands between several labels of one cell, `remembered` what another file called
    the columns, which goes before the task's own names. Columns that neither names nor numbers tell are inferred from
    their content (`heedful.data.column_inference`). After the first row has been read, `taken` holds those of
    `columns` whose values the rows have, `found` what the file calls them, and `notes` what a person should know of the
    choice.
    """

    path: str
    columns: Mapping[str, Kind]
    names: Sequence[str] | None = None
    separator: str | None = None
    remembered: Mapping[str, str] = field(default_factory=dict)
    spare: ClassVar[bool] = False  # whether a table without a header may have more columns than are wanted
    taken: tuple[str, ...] = field(default=(), init=False)
    found: tuple[str, ...] = field(default=(), init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _reason: str = field(default="", init=False)  # why nothing was guessed
    _likely: list[str] = field(default_factory=list, init=False)  # columns that may be the needed ones

    def __post_init__(self) -> None:
        self.form: Format = detect_format(
            self.path, labelled=self.spare or bool({"label", "number"} & {*self.columns.values()})
        )
        if self.form.note:
            self.notes.append(f"{display_name(self.path)} is read as {self.form.note}")

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """(line, the values of the columns in `taken`); a blank line is (line, [])."""
        match self.form.kind:
            case "csv":
                return self._delimited(_csv_rows(self.path, self.form.delimiter), headless=False)
            case "jsonl":
                return self._records(read_json_lines(self.path), {})
            case "json":
                return self._records(read_json_array(self.path), {})
            case "parquet":
                parquet = ParquetRecords(self.path, self._wanted())
                return self._records(parquet, parquet.features)
            case kind:
                cut, most = ("\t", -1) if kind != "labelled" else (" ", 1)
                lines = read_lines(self.path)
                rows = ((line, text.split(cut, most) if text.strip() else []) for line, text in lines)
                return self._delimited(rows, headless=True)

    def tell(self, rows: Rows) -> None:
        """Tell `rows`, which were read of this table, how."""
        rows.columns, rows.mapping = self.found, dict(zip(self.taken, self.found, strict=True))
        rows.notes.extend(note for note in self.notes if note not in rows.notes)

    def _wanted(self) -> list[str]:
        """Returns the columns to read from a file that stores its columns apart."""
        if self.names is None and self.remembered:
            return []
        return [*(self.names or self.columns)]

    def _needed(self) -> list[str]:
        """The columns that the table must have."""
        return required_columns(self.columns)

    def _optional(self) -> list[str]:
        """The columns that are taken where the table has them under their names."""
        return [column for column, kind in self.columns.items() if kind.endswith("?")]

    def _choose(self, there: Container[str]) -> None:
        """Settle which columns are taken, and under which names; an optional one is where it is named, or `there`."""
        chosen = list(self.columns)
        if self.names is None:
            needed = required_columns(self.columns)
            chosen = [column for column in chosen if column in needed or self._called(column, there) in there]
        elif len(self.names) < len(chosen):
            chosen = required_columns(self.columns)
        self.taken = tuple(chosen)
        self.found = tuple(self.names or (self._called(column, there) for column in chosen))

    def _called(self, column: str, there: Container[str]) -> str:
        """The name of a column: the remembered one where the file has it, else the task's own."""
        name = self.remembered.get(column, column)
        return name if name in there and not name.isdecimal() else column

    def _guess(self, profiles: Mapping[str, ColumnProfile], there: Container[str]) -> bool:
        """Settle by their content those columns that are not called as they should be; whether that could be done."""
        needed, more = self._needed(), self._optional()
        fixed = {column: name for column in needed if (name := self._called(column, there)) in there}
        kinds = {name: self.columns[name] for name in needed}
        self._likely = candidate_columns(kinds, profiles, fixed)
        if "text_pair" in more:
            kinds["text_pair"] = "text?"
        try:
            chosen = infer_columns(kinds, profiles, fixed)
        except UndecidedColumns as error:
            self._reason = str(error)
            return False
        chosen |= {name: called for name in more if (called := self._called(name, there)) in there}
        self.taken = tuple(column for column in self.columns if column in chosen)
        self.found = tuple(chosen[column] for column in self.taken)
        return True

    def _say(self, how: str) -> None:
        """Note under which names the columns were found, where these are not the task's."""
        if self.names is None and self.found != self.taken:
            pairs = zip(self.taken, self.found, strict=True)
            needed = {*self._needed()}
            called = ", ".join(f"{column}={name}" for column, name in pairs if column in needed or column != name)
            self.notes.append(f"{called} ({how}; --data.columns {self._example()} changes it)")

    def _example(self) -> str:
        return ",".join(column.upper() for column in self._needed())

    def _left_out(self) -> list[str]:
        return [] if self.names else [column for column in self.columns if column not in self.taken]

    def _labels(self, features: Mapping[str, Any]) -> list[Reader | None]:
        """For each column that is taken what reads its labels or numbers, if it is one of these."""
        made: dict[str, Callable[[str], Reader]] = {
            "label": lambda name: Labels(self.separator, class_names(features, name)),
            "number": lambda name: Numbers(),
        }
        kinds = [self.columns[column].rstrip("?") for column in self.taken]
        return [made[kind](name) if kind in made else None for kind, name in zip(kinds, self.found, strict=True)]

    # ------------------------------------------------------------------------------------------------------------ cells

    def _delimited(self, rows: Iterable[tuple[int, list[str]]], headless: bool) -> Iterator[tuple[int, list[Any]]]:
        """Rows of cells. `headless`: without a header and without names, the first columns are the wanted ones."""
        rows = iter(rows)
        blank = []
        for line, first in rows:
            if first:
                break
            blank.append((line, first))
        else:
            yield from blank
            return
        sample = list(islice(rows, SAMPLE)) if self.names is None and not self._is_called(first) else []
        header, places = self._places(first, line, headless, [cells for _, cells in sample])
        labels = self._labels({})
        yield from blank
        for number, cells in chain([] if header else [(line, first)], sample, rows):
            if cells and len(cells) != len(first):
                raise HeedfulError(
                    f"{_count(len(cells))} where line {line} has {len(first)}, in {display_name(self.path)}:{number}; "
                    "mend that row (a tab or a comma too few or too many?)"
                )
            where = f"{display_name(self.path)}:{number}"
            values = [
                label.read(cells[place], name, where) if label else cells[place]
                for name, place, label in zip(self.found, places, labels, strict=True)
                if cells
            ]
            yield number, values

    def _is_called(self, first: list[str]) -> bool:
        """Returns True if a first row holds the name of every column that is needed."""
        there = {*first, *(cell.strip() for cell in first)}
        self._choose(there)
        return all(name in there for name in self.found)

    def _places(
        self, first: list[str], line: int, headless: bool, others: Sequence[list[str]]
    ) -> tuple[bool, list[int]]:
        """Returns True if the first row is a header, and the place of each column that is taken; `others` are rows
        after it,
        where they matter.
        """
        cells = [cell.strip() for cell in first]
        self._choose({*first, *cells})
        header = next((row for row in (first, cells) if all(name in row for name in self.found)), None)
        if header:
            self._check_once(cells, line)
            self._say("as in training")
            return True, [header.index(name) for name in self.found]
        # A name among the cells shows that this is a header, which calls another column otherwise.
        known = any(name in cells for name in self.found) or resembles_header(cells, self.found)
        if self.names is None and not known and self._remember_places(len(first)):
            return False, [int(name) - 1 for name in self.found]
        if self.names is None and not (headless and not known and self._stand_in_order([first, *others])):
            found = self._guessed(cells, [row for row in others if len(row) == len(first)], headless, known)
            if found is not None:
                return found
        if self.names is None and headless and not known:
            if 1 < len(self.taken) < len(first) and not self.spare:
                raise self._surplus(first, line)
            self.found = tuple(str(place) for place in range(1, len(self.taken) + 1))
        elif not all(name.isdecimal() for name in self.found):
            raise self._not_found(cells, line)
        outside = next((name for name in self.found if not 1 <= int(name) <= len(first)), None)
        if outside is not None:
            separator = "commas" if self.form.kind == "csv" else "tabs"
            raise HeedfulError(
                f"{_count(len(first))}, and column {outside} is wanted for {self.taken[self.found.index(outside)]!r}, "
                f"in {display_name(self.path)}:{line}; separate the columns by {separator}, or choose others: "
                "--data.columns 1,2"
            )
        return False, [int(name) - 1 for name in self.found]

    def _remember_places(self, width: int) -> bool:
        """Settle the columns by their remembered numbers, where all have one that the table has."""
        numbers = [self.remembered.get(column, "") for column in self.taken]
        if not all(number.isdecimal() and 1 <= int(number) <= width for number in numbers) or not numbers:
            return False
        usual = [str(place) for place in range(1, len(numbers) + 1)]
        self.found = tuple(numbers)
        if numbers != usual:
            self._say("as in training")
        return True

    def _stand_in_order(self, rows: Sequence[list[str]]) -> bool:
        """Returns True if the columns of a table without a header are the wanted ones in their order: texts alone, as
        many as
        are wanted, or of more columns the first, where it is text.
        """
        if {"label", "number", "image", "answers"} & {self.columns[column] for column in self.taken}:
            return False
        if len(rows[0]) <= len(self.taken):
            return True
        if len(self.taken) > 1 and not self.spare:
            return False
        first = ColumnProfile.of(row[0] for row in rows if row)
        return first.is_text or (self.spare and first.is_words and not first.is_label)

    def _guessed(
        self, first: list[str], others: Sequence[list[str]], headless: bool, known: bool
    ) -> tuple[bool, list[int]] | None:
        """As `_places`, by the content of the columns; None where it does not tell."""
        header = known or is_header(first, others, None, usual=not headless)
        names = [*first] if header else [str(place) for place in range(1, len(first) + 1)]
        if header:
            names = [name or f"#{place}" for place, name in enumerate(names, 1)]
        rows = others if header else [first, *others]
        profiles = {name: ColumnProfile.of(row[place] for row in rows) for place, name in enumerate(names)}
        if not self._guess(profiles, names if header else ()):
            return None
        places = [names.index(name) for name in self.found]
        label = next((place for place, column in zip(places, self.taken, strict=True) if self._is_label(column)), None)
        if not known and is_header(first, others, label, usual=not headless) != header:
            if header:  # the labels of other rows stand in it
                names = [str(place) for place in range(1, len(first) + 1)]
            else:
                names = first
            header = not header
            self.found = tuple(names[place] for place in places)
        if header or places != [*range(len(places))] or len(first) > len(places):
            self._say("guessed")
        return header, places

    def _is_label(self, column: str) -> bool:
        return self.columns[column] in ("label", "number")

    def _check_once(self, header: list[str], line: int) -> None:
        """Raise where two cells of a header have a name that is wanted."""
        twice = next((name for name in self.found if header.count(name) > 1 and not name.isdecimal()), None)
        if twice is not None:
            raise HeedfulError(
                f"{header.count(twice)} columns are called {twice!r}, in {display_name(self.path)}:{line}; give each a "
                "name of its own"
            )

    def _surplus(self, first: list[str], line: int) -> HeedfulError:
        wanted = len(self.taken)
        chosen = ",".join(str(place) for place in range(1, wanted + 1))
        optional = next((name for name in self._left_out() if self.columns[name].endswith("?")), None)
        also = f", or with a third: --data.columns {chosen},{optional}={wanted + 1}" if optional and wanted == 2 else ""
        return HeedfulError(
            f"{_count(len(first))} without a header, and {wanted} are wanted ({', '.join(self.taken)}), in "
            f"{display_name(self.path)}:{line}; say which, by number: --data.columns {chosen}{also}"
        )

    # ---------------------------------------------------------------------------------------------------------- records

    def _records(
        self, records: Iterable[tuple[int, dict[str, Any]]], features: Mapping[str, Any]
    ) -> Iterator[tuple[int, list[Any]]]:
        began, labels = 0, list[Reader | None]()
        records = iter(records)
        for line, record in records:
            if record is BLANK:
                yield line, []
                continue
            if not began:
                wanted = {*self.columns, *self.remembered.values()}
                self._choose({column for column in wanted if nested_value(record, column) is not MISSING})
                if self.names is None:
                    if any(nested_value(record, name) is MISSING for name in self.found):
                        sample = list(islice(records, SAMPLE))
                        self._guess_keys([record, *(one for _, one in sample)], features)
                        records = chain(sample, records)
                    else:
                        self._say("as in training")
                began, labels = line, self._labels(features)
            late = next((name for name in self._left_out() if nested_value(record, name) is not MISSING), None)
            if late is not None:
                raise HeedfulError(
                    f"{late!r} is here and not in line {began}, in {self.path}:{line}; write it in every row or in none"
                )
            values = [
                self._value(record, column, name, line, label)
                for column, name, label in zip(self.taken, self.found, labels, strict=True)
            ]
            yield line, values

    def _guess_keys(self, records: Sequence[dict[str, Any]], features: Mapping[str, Any]) -> None:
        """Settle the columns by the content of records."""
        names = list(dict.fromkeys(name for record in records for name in nested_keys(record)))
        profiles = {}
        for name in names:
            values = [value for record in records if (value := nested_value(record, name)) is not MISSING]
            called = class_names(features, name)
            if called:
                values = [called[value] if _is_place(value, called) else value for value in values]
            profiles[name] = ColumnProfile.of(values)
        answers = {"answers", "answer"} & {*records[0]}  # a record of its own, as SQuAD has it
        profiles |= {name: ColumnProfile.of(record.get(name) for record in records) for name in answers}
        if self._guess(profiles, [*profiles]):
            self._say("guessed")

    def _value(self, record: dict[str, Any], column: str, name: str, line: int, label: Reader | None) -> Any:
        value, where = nested_value(record, name), f"{display_name(self.path)}:{line}"
        if value is MISSING:
            raise self._not_found(list(nested_keys(record)), line)
        if label:
            return label.read(value, name, where)
        if self.columns[column].rstrip("?") in ("image", "words", "tags", "answers", "messages"):
            return value
        if not isinstance(value, str):
            raise HeedfulError(
                f"{name!r} is {brief(json.dumps(value, default=str))} and text is wanted, in {where}; write it as a "
                "string, or choose another column: --data.columns"
            )
        return checked_text(value, name, where)

    def _not_found(self, found: list[str], line: int) -> NoColumn:
        missing = next(name for name in self.found if name not in found)
        close = get_close_matches(missing, found, n=1, cutoff=NEAR)
        hint = f"did you mean {close[0]!r}? " if close else ""
        numbers = "" if self.form.is_keyed else ", or by number where there is no header: --data.columns 1,2"
        wanted = len(self._needed())
        named = self._likely or (found[:wanted] if len(found) >= wanted and not self._reason else [])
        example = ",".join(named) or self._example()
        reason = f"{self._reason}; " if self._reason else ""
        return NoColumn(
            f"no column {missing!r} among {', '.join(repr(brief(name)) for name in found[:12])}, in "
            f"{display_name(self.path)}:{line}; {hint}{reason}say which to use: --data.columns "
            f"{brief(example)}{numbers}"
        )


def extension_of(path: str) -> str:
    """The extension, standard input being TSV."""
    return ".tsv" if path == STDIN else extension(path)


def _is_place(value: Any, names: Sequence[str]) -> bool:
    return isinstance(value, int) and 0 <= value < len(names)


def _csv_rows(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows by RFC 4180, each with the line it begins at: a quoted field may run over several."""
    # This is a setting of the whole process: other readers may be at work, so it is raised and never put back.
    csv.field_size_limit(max(FIELD, csv.field_size_limit()))
    reader = csv.reader((line for _, line in raw_lines(path)), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells if any(cell.strip() for cell in cells) else []
            line = reader.line_num + 1
    except csv.Error as error:
        raise HeedfulError(
            f'broken CSV ({error}), in {path}:{line}; a field with a quote in it is written "a ""word"""'
        ) from error


def _count(number: int) -> str:
    return f"{number} column" if number == 1 else f"{number} columns"
