"""Mixtures of prompted data sets: templates make pairs of texts from the rows of tables (Sanh et al. 2022).

A mixture is a TOML file of sets, each with its files and its templates, in the form of promptsource (Bach et al. 2022):
Jinja, with ``|||`` between the input and the target, and ``answer_choices``, texts with ``|||`` between them::

    limit = 500_000                                 # of the training rows of a set, all of its templates together

    [[sets]]
    name = "trec"
    train = "TREC.train.xz"                         # also valid and test; relative to the mixture's folder
    test = "TREC.test.xz"
    classes.label = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]   # label is the number of its class, from 0

    [[sets.templates]]
    name = "what_kind"
    answer_choices = "An abbreviation ||| A description ||| A thing ||| A person ||| A place ||| A number"
    jinja = "What does this question ask for? {{text}} ||| {{answer_choices[label]}}"

Each row of a set becomes a row under each of its templates. A template that writes nothing for a row leaves it out.
Templates run in a sandbox with limits (``heedful.util.template_sandbox``), which has no filter ``random``: a row has
the same text each time, so that a run can be resumed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from heedful.data import builtin, hub_datasets
from heedful.data.file_formats import detect_format
from heedful.data.records import BLANK, ParquetRecords, read_json_array, read_json_lines
from heedful.data.rows import Kind, Row, Rows
from heedful.data.split import content_digest
from heedful.data.text_files import display_name
from heedful.errors import HeedfulError, nearest, plural
from heedful.util import files
from heedful.util.values import check

SUFFIX, SPLITS = ".toml", ("train", "valid", "test")
BETWEEN, PROTECTED = "|||", "\ufdd0"  # a noncharacter stands for the bars of a row's own text
CHOICES = "answer_choices"
PAIR_COLUMNS = ("text", "text?")  # kinds of the columns that a pair may fill
ReadTable = Callable[..., Rows]  # heedful.data.read, which reads mixtures too


@dataclass(frozen=True)
class Template:
    """Template of a set: Jinja programs of input and target together, of the input alone, and of the choices."""

    name: str
    line: int  # of the mixture's file, where it begins
    pair: Any
    input: Any
    choices: Any
    columns: frozenset[str]  # that it reads
    input_columns: frozenset[str]  # that input and choices read


@dataclass(frozen=True)
class PromptedSet:
    """Set of a mixture: its file for each split, and its templates."""

    name: str
    files: Mapping[str, str]
    templates: Sequence[Template]
    columns: Sequence[str] = ()  # names of the columns of a table without a header
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    weight: float | None = None


@dataclass(frozen=True)
class Mixture:
    """Sets with their templates, and how they are mixed."""

    path: str
    sets: Sequence[PromptedSet]
    limit: int | None = None
    separator: str = ""


def is_mixture(sources: Sequence[str]) -> bool:
    """Returns True if the only source is a mixture."""
    return len(sources) == 1 and sources[0].endswith(SUFFIX)


def mixture_splits(path: str) -> tuple[str, ...]:
    """Returns the splits ("train", "valid", "test") that a set of the mixture has."""
    found = {name for part in load_mixture(path).sets for name in part.files}
    return tuple(name for name in SPLITS if name in found)


def read_mixture(path: str, columns: Mapping[str, Kind], split: str | None, read: ReadTable) -> Rows:
    """Returns the rows of a split, of the sets that have it: for each row of a set one under each template.

    The first two columns of texts get input and target; the other values are ``set``, ``template``, the name of its set
    before it, and ``choices``, if the template has some. ``group`` is equal for all rows of one example, and for rows
    with equal inputs. ``Rows.mix`` draws the training rows (``mixed``). ``read`` reads the tables of the sets.

    Raises ``HeedfulError``, with file and line, for a column that is missing, an empty input or target, and a target
    that is none of the choices.
    """
    mixture = load_mixture(path)
    pair = [name for name, kind in columns.items() if kind in PAIR_COLUMNS][:2]
    if len(pair) < 2 or "label" in columns.values():
        raise HeedfulError(
            f"{path} is a mixture of texts to read and to write, but the data has {', '.join(columns)}; use a task "
            "that learns pairs of texts, such as translation or text-generation"
        )
    rows, blank = Rows(columns=(*pair, "set", "template", "choices")), 0
    for part, file in _with_split(mixture, split or "train"):
        count = len(rows)
        needed = frozenset[str]().union(*(template.columns for template in part.templates))
        for location, line, values in _examples(part, file, split, needed, read):
            for template in part.templates:
                rendered = _pair(mixture, template, values, f"{display_name(location)}:{line}")
                if rendered is None:
                    blank += 1
                    continue
                source, target, choices = rendered
                values_of_row: dict[str, Any] = {pair[0]: source, pair[1]: target, "set": part.name}
                values_of_row["template"] = f"{part.name}/{template.name}"
                if choices is not None:
                    values_of_row["choices"] = choices
                rows.append(Row(values_of_row, location, line))
        rows.notes.append(
            f"{part.name}: {plural(len(rows) - count, 'row')} under {plural(len(part.templates), 'template')}"
        )
    if not rows:
        raise HeedfulError(f"the templates of {path} write no rows; check their conditions")
    if blank:
        rows.notes.append(f"{plural(blank, 'row')} left out, for which a template writes nothing")
    grouped = _grouped(rows, pair[0])
    grouped.mix = partial(mixed, mixture=mixture)
    return grouped


def read_prompts(path: str, read: ReadTable, split: str = "test") -> Iterator[tuple[str, tuple[str, ...] | None, str]]:
    """Yields (input, its choices, file and line) of each row under each template, without reading targets.

    ``read`` reads the tables of the sets.
    """
    mixture = load_mixture(path)
    for part, file in _with_split(mixture, split):
        needed = frozenset[str]().union(*(template.input_columns for template in part.templates))
        for location, line, values in _examples(part, file, split, needed, read):
            where = f"{display_name(location)}:{line}"
            for template in part.templates:
                choices = _choices(mixture, template, values, where)
                text = _render(mixture, template, template.input, {**values, CHOICES: choices}, where)
                source = text.partition(BETWEEN)[0].strip().replace(PROTECTED, BETWEEN)
                if source:
                    yield source, choices, where


def _with_split(mixture: Mixture, split: str) -> list[tuple[PromptedSet, str]]:
    found = [(part, part.files[split]) for part in mixture.sets if split in part.files]
    if not found:
        have = ", ".join(mixture_splits(mixture.path))
        raise HeedfulError(f"no set of {mixture.path} has a file for the split {split}, only for {have}; name one")
    return found


# ------------------------------------------------------------------------------------------------------------- the rows


def _examples(
    part: PromptedSet, path: str, split: str | None, needed: frozenset[str], read: ReadTable
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields (file, line, values) of each row of a set's table. JSON and Parquet keep their lists and numbers."""
    paths = hub_datasets.files(path, split) if path.startswith(hub_datasets.PREFIX) else [path]
    for file in paths:
        records = None if file.startswith(builtin.PREFIX) else _records(file)
        if records is not None:
            for line, record in records:
                if record is not BLANK:
                    yield file, line, _converted(part, record, f"{display_name(file)}:{line}")
            continue
        labels = {"label", *part.classes}
        names = sorted(needed, key=lambda name: (name in labels, name))
        kinds: dict[str, Kind] = {name: "label" if name in labels else "text" for name in names}
        if absent := [name for name in names if part.columns and name not in part.columns]:
            raise HeedfulError(
                f"the templates of the set {part.name} read {absent[0]!r}, which is none of its columns; "
                f"{nearest(absent[0], part.columns)}"
            )
        numbers = [str(part.columns.index(name) + 1) for name in names] if part.columns else None
        try:
            rows = read(file, kinds, names=numbers, split=split)
        except HeedfulError as error:
            hint = f"columns of the set {part.name} in the mixture"
            raise HeedfulError(str(error).replace("--data.columns", hint)) from error
        for row in rows:
            yield row.file, row.line, _converted(part, row.values, f"{display_name(row.file)}:{row.line}")


def _records(path: str) -> Iterator[tuple[int, dict[str, Any]]] | None:
    match detect_format(path, labelled=True).kind:
        case "jsonl":
            return read_json_lines(path)
        case "json":
            return read_json_array(path)
        case "parquet":
            return iter(ParquetRecords(path))
    return None


def _converted(part: PromptedSet, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a row's values for templates: texts with protected bars, and the numbers of classes for their names."""
    values = {name: _protected(value) for name, value in record.items()}
    for name, classes in part.classes.items():
        if name in values:
            if str(values[name]) not in classes:
                raise HeedfulError(
                    f"{name!r} is {values[name]!s:.40}, which is none of the classes {', '.join(classes)!s:.80} of the "
                    f"set {part.name}, in {where}; add it to classes.{name}"
                )
            values[name] = classes.index(str(values[name]))
    return values


def _protected(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(BETWEEN, PROTECTED)
    if isinstance(value, Mapping):
        return {name: _protected(item) for name, item in value.items()}
    return [_protected(item) for item in value] if isinstance(value, list | tuple) else value


def _pair(
    mixture: Mixture, template: Template, values: Mapping[str, Any], where: str
) -> tuple[str, str, tuple[str, ...] | None] | None:
    """Returns (input, target, choices) of a row under a template; None if the template writes nothing."""
    choices = _choices(mixture, template, values, where)
    bare = None if choices is None else [text.removeprefix(mixture.separator) for text in choices]
    text = _render(mixture, template, template.pair, {**values, CHOICES: bare}, where)
    if not text.strip():
        return None
    source, bars, target = (piece.strip().replace(PROTECTED, BETWEEN) for piece in text.partition(BETWEEN))
    if not source or not target:
        side = "input" if not source else "target"
        missing = f": it writes no {BETWEEN}" if not bars else ""
        raise HeedfulError(
            f"the template {template.name!r} writes an empty {side}{missing}, in {where}; correct it, in "
            f"{mixture.path}:{template.line}"
        )
    target = mixture.separator + target
    if choices is not None and target not in choices:
        raise HeedfulError(
            f"the target {target.strip()!s:.40} is none of the answer_choices {', '.join(choices)!s:.80} of the "
            f"template {template.name!r}, in {where}; correct it, in {mixture.path}:{template.line}"
        )
    return source, target, choices


def _choices(mixture: Mixture, template: Template, values: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    if template.choices is None:
        return None
    parts = _render(mixture, template, template.choices, values, where).split(BETWEEN)
    texts = tuple(mixture.separator + part.strip().replace(PROTECTED, BETWEEN) for part in parts)
    if len({*texts}) < max(2, len(texts)) or not all(text.strip() for text in texts):
        raise HeedfulError(
            f"answer_choices of the template {template.name!r} are {', '.join(texts)!s:.80}, in {where}; write two or "
            f"more different texts with {BETWEEN} between them, in {mixture.path}:{template.line}"
        )
    return texts


def _render(mixture: Mixture, template: Template, program: Any, values: Mapping[str, Any], where: str) -> str:
    import jinja2

    from heedful.util.template_sandbox import LimitExceeded

    try:
        text: str = program.render(values)
    except LimitExceeded as error:
        raise HeedfulError(
            f"the template {template.name!r} was stopped: {error}, in {where}; correct it, in "
            f"{mixture.path}:{template.line}"
        ) from None
    except jinja2.UndefinedError as error:
        missing = next(iter(sorted(template.columns - values.keys())), None)
        problem = f"there is no column {missing!r}; {nearest(missing, values.keys())}" if missing else f"{error}"
        raise HeedfulError(
            f"{problem}, in {where}, for the template {template.name!r}, in {mixture.path}:{template.line}"
        ) from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise HeedfulError(
            f"the template {template.name!r} fails ({' '.join(str(error).split())}), in {where}; correct it, in "
            f"{mixture.path}:{template.line}"
        ) from None
    return text


def _grouped(rows: Rows, column: str) -> Rows:
    """Returns the rows with a ``group``: rows of one example, or with equal inputs, are of one group."""
    parents: dict[Any, Any] = {}

    def root(key: Any) -> Any:
        while parents.setdefault(key, key) != key:
            parents[key] = key = parents[parents[key]]
        return key

    keys = [((row.file, row.line), content_digest(row.values[column])) for row in rows]
    for example, text in keys:
        parents[root(text)] = root(example)
    smallest: dict[Any, str] = {}
    for row, (example, _) in zip(rows, keys, strict=True):
        own = row.values[column]
        smallest[root(example)] = min(own, smallest.get(root(example), own))
    grouped = Rows((replace(row, group=smallest[root(key)]) for row, (key, _) in zip(rows, keys, strict=True)))
    grouped.columns, grouped.notes = rows.columns, rows.notes
    return grouped


# ----------------------------------------------------------------------------------------------------------- the mixing


def mixed(rows: Rows, seed: int, mixture: Mixture) -> Rows:
    """Returns the training rows of an epoch, in the order of ``rows``.

    Without weights the sets are mixed by size, with a limit (Raffel et al. 2020, section 3.5.2): with t templates, a
    template of a set gives min(n, limit / t) of its n rows (Sanh et al. 2022, section 5), drawn by a hash of (seed,
    row). With weights, as many rows altogether are divided by the weights: a set with too few repeats them.
    """
    own: dict[str, dict[str, list[int]]] = {part.name: defaultdict(list) for part in mixture.sets}
    for index, row in enumerate(rows):
        own[row.values["set"]][row.values["template"]].append(index)
    counts = {part.name: len(part.templates) for part in mixture.sets}

    def drawn(indices: Sequence[int], count: int) -> list[int]:
        if count >= len(indices):
            return list(indices)
        digests = {
            index: blake2b(
                f"{seed}\0{rows[index].values['template']}\0{rows[index].file}\0{rows[index].line}".encode(
                    "utf-8", "surrogatepass"
                )
            ).digest()
            for index in indices
        }
        return sorted(sorted(indices, key=digests.__getitem__)[:count])

    chosen: dict[str, list[int]] = {}
    for name, templates in own.items():
        most = len(rows) if mixture.limit is None else max(1, mixture.limit // counts[name])
        chosen[name] = [index for indices in templates.values() for index in drawn(indices, most)]
    weights = {part.name: part.weight for part in mixture.sets if part.weight is not None and chosen[part.name]}
    if weights:
        total, whole = sum(map(len, chosen.values())), sum(weights.values())
        for name, weight in weights.items():
            times, rest = divmod(max(1, round(total * weight / whole)), len(chosen[name]))
            chosen[name] = chosen[name] * times + drawn(chosen[name], rest)
    result = Rows((rows[index] for index in sorted(index for some in chosen.values() for index in some)), rows.skipped)
    result.columns, result.blank = rows.columns, rows.blank
    result.inherit_from(rows)
    shares = ", ".join(f"{name} {len(some):,}" for name, some in chosen.items() if some)
    result.notes = [*rows.notes, f"an epoch has {plural(len(result), 'row')}: {shares}"]
    return result


# ------------------------------------------------------------------------------------------------------------- the file

_WORDS = {list: "a list", int: "a whole number", str: "a text", dict: "a table", float: "a number"}
_KEYS: dict[str, Any] = {"sets": list, "limit": int, "separator": str}
_SET_KEYS = {"name": str, "templates": list, "columns": list, "classes": dict, "weight": float} | dict.fromkeys(
    SPLITS, str
)
_TEMPLATE_KEYS = {"name": str, "jinja": str, CHOICES: str}


def load_mixture(path: str) -> Mixture:
    """Reads a mixture; raises ``HeedfulError``, with the line where there is one, for a file that is none."""
    values = files.read_toml(Path(path), "write a mixture of sets with templates (docs/tasks/prompts.md)")
    _check_keys(values, _KEYS, ("sets",), path)
    with Path(path).open(encoding="utf-8") as file:
        lines = file.read().splitlines()
    limit = values.get("limit")
    check(f"limit in {path}", limit, int | None, least=1)
    sets = [_set(part, path, lines) for part in values["sets"]]
    _check_names([part.name for part in sets], "sets", path)
    weighted = [part.weight is not None for part in sets]
    if any(weighted) and not all(weighted):
        part = sets[weighted.index(False)]
        raise HeedfulError(f"the set {part.name} has no weight, but others have, in {path}; weigh all or none")
    return Mixture(path, sets, limit, values.get("separator", ""))


def _set(values: Any, path: str, lines: Sequence[str]) -> PromptedSet:
    _check_keys(values, _SET_KEYS, ("name", "templates"), path)
    name = values["name"]
    named = {split: _located(values[split], path) for split in SPLITS if split in values}
    if not named:
        raise HeedfulError(f"the set {name} has no file, in {path}; name one: train = FILE, valid or test")
    check(f"weight of the set {name} in {path}", values.get("weight"), float | None, above=0)
    classes = values.get("classes", {})
    for column, texts in classes.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise HeedfulError(f"classes.{column} of the set {name} is not a list of texts, in {path}; write one")
    templates = [_template(part, path, lines) for part in values["templates"]]
    _check_names([template.name for template in templates], f"templates of {name}", path)
    return PromptedSet(name, named, templates, values.get("columns", ()), classes, values.get("weight"))


def _located(file: str, path: str) -> str:
    """Returns the path of a set's file, relative to the mixture's folder."""
    if file.startswith((builtin.PREFIX, hub_datasets.PREFIX)):
        return file
    return os.path.join(os.path.dirname(path), os.path.expanduser(file))


def _template(values: Any, path: str, lines: Sequence[str]) -> Template:
    _check_keys(values, _TEMPLATE_KEYS, ("name", "jinja"), path)
    text, choices = values["jinja"], values.get(CHOICES)
    line = _line_of(text, values["name"], lines)
    pair, columns = _program(text, values["name"], path, line)
    before, bars, _ = text.partition(BETWEEN)
    try:
        alone, input_columns = _program(before, values["name"], path, line) if bars else (pair, columns)
    except HeedfulError:  # a condition spans input and target
        alone, input_columns = pair, columns
    if choices is None:
        program, of_choices = None, frozenset[str]()
    else:
        program, of_choices = _program(choices, values["name"], path, _line_of(choices, values["name"], lines))
    if choices is None and CHOICES in columns:
        raise HeedfulError(
            f"the template {values['name']!r} reads answer_choices, but has none, in {path}:{line}; give some"
        )
    columns, input_columns = columns - {CHOICES} | of_choices, input_columns - {CHOICES} | of_choices
    return Template(values["name"], line, pair, alone, program, columns, input_columns)


def _program(text: str, name: str, path: str, line: int) -> tuple[Any, frozenset[str]]:
    """Returns the compiled template and the names that it reads."""
    import jinja2
    from jinja2 import meta

    from heedful.util.template_sandbox import data_program

    try:
        program = data_program(text)
        return program, frozenset(meta.find_undeclared_variables(jinja2.Environment().parse(text)))
    except jinja2.TemplateError as error:
        inside = getattr(error, "lineno", 1) or 1
        problem = " ".join(str(error).split())
        raise HeedfulError(
            f"the template {name!r} is broken ({problem}), in {path}:{line + inside - 1}; correct it"
        ) from None


def _line_of(text: str, name: str, lines: Sequence[str]) -> int:
    """Returns the line of the file, from 1, where a template's text begins; else that of its name."""
    first = next(filter(str.strip, text.splitlines()), "")
    leading = len(text[: text.find(first)].splitlines()) if first else 0
    for number, line in enumerate(lines, 1):
        if first and first in line.replace('\\"', '"'):
            return max(1, number - leading)
    pattern = re.compile(rf"\bname\s*=\s*[\"']{re.escape(name)}[\"']")
    return next((number for number, line in enumerate(lines, 1) if pattern.search(line)), 1)


def _check_keys(values: Any, known: Mapping[str, type], required: Sequence[str], path: str) -> None:
    if not isinstance(values, dict):
        raise HeedfulError(f"{values!s:.40} is not a table, in {path}; write [[sets]] and [[sets.templates]]")
    for name, value in values.items():
        if name not in known:
            raise HeedfulError(f"unknown key {name!r} in {path}; {nearest(name, known)}")
        kind = known[name]
        if (
            not isinstance(value, (int, float) if kind is float else kind)
            or isinstance(value, bool)
            or value in ("", [])
        ):
            raise HeedfulError(f"{name} is {value!s:.40} in {path}; give {_WORDS[kind]}")
    for name in required:
        if name not in values:
            raise HeedfulError(f"{values.get('name', 'the file')!s:.40} has no {name}, in {path}; give it")


def _check_names(names: Sequence[str], what: str, path: str) -> None:
    if again := next((name for name in names if names.count(name) > 1), None):
        raise HeedfulError(f"two {what} are named {again!r}, in {path}; give each a name of its own")
