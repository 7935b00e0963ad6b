"""Training and validation rows of a run: from two sources, from the splits of one source, or by a random split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from heedful.data import LazyImage, Row, Rows, read, splits
from heedful.data.conll import with_stripped_words
from heedful.data.rows import required_columns
from heedful.data.split import Same, content_digest, earlier_digest, exact_bytes
from heedful.data.tables import NoColumn
from heedful.data.text_files import display_name
from heedful.errors import HeedfulError, plural
from heedful.pretrained import read_card
from heedful.settings import RunSettings
from heedful.tasks.known_models import with_known_model, without_auto
from heedful.tasks.task import Task

# In heedful.json, under data.same: how a run's rows were split. The rule of the oldest folders is not stored there.
SPLIT_RULES: Mapping[str, Same] = {"content": earlier_digest, "content, by class": content_digest}


@contextmanager
def counting_unreadable_images(kind: type[Task], *parts: Rows) -> Iterator[None]:
    """Adds the number of unreadable images of ``parts`` to an error about one of them, if there are several."""
    try:
        yield
    except HeedfulError as error:
        unreadable = [row for rows in parts for row in unreadable_images(kind, rows)]
        if len(unreadable) < 2:
            raise
        raise HeedfulError(f"{len(unreadable):,} images cannot be read, which heedful audit lists; {error}") from error


def unreadable_images(kind: type[Task], rows: Rows) -> list[Row]:
    """Returns the rows whose images cannot be decoded: missing, empty or broken files. Decodes all images."""
    columns = [column for column, value in kind.columns.items() if value == "image"]
    return [row for row in rows if not all(_is_readable(row.values[column]) for column in columns)]


def _is_readable(image: LazyImage) -> bool:
    try:
        image.pixels()
    except HeedfulError:
        return False
    return True


def training_columns(model: str | None) -> dict[str, str]:
    """Returns the columns of a model's training data, by task column; {} if the folder does not store them."""
    return columns_in_card(read_card(model)) if model is not None and Path(model).is_dir() else {}


def columns_in_card(card: Mapping[str, Any]) -> dict[str, str]:
    """Returns the columns of the training data, by task column, from ``heedful.json``; {} if it stores none."""
    data = card.get("data")
    columns = data.get("columns") if isinstance(data, Mapping) else None
    if not isinstance(columns, Mapping):
        return {}
    return {name: source for name, source in columns.items() if isinstance(name, str) and isinstance(source, str)}


def equality_rule(card: Mapping[str, Any]) -> Same:
    """Returns the function that maps equal values to the same key, which a run used to split its rows.

    It compares by content or, if ``heedful.json`` does not say so, byte by byte.
    """
    data = card.get("data")
    name = data.get("same") if isinstance(data, Mapping) else None
    return SPLIT_RULES.get(name, exact_bytes) if isinstance(name, str) else exact_bytes


def equality_entry(same: Same) -> dict[str, str]:
    """Returns the entry of ``heedful.json`` from which ``equality_rule`` returns ``same``."""
    return next(({"same": name} for name, rule in SPLIT_RULES.items() if rule is same), {})


def read_run_data(
    kind: type[Task],
    settings: RunSettings,
    say: Callable[[str], None],
    same: Same = content_digest,
    chosen_by: RunSettings | None = None,
) -> tuple[type[Task], RunSettings, Rows, Rows]:
    """Reads the data of a run, and what depends on it: the variant of the task and the model of ``--from auto``.

    Args:
        kind: class of the task; of a run that is resumed already the variant for its rows.
        settings: settings of the run.
        say: is called with a line on the model that ``auto`` chose.
        same: as for ``train_and_validation_rows``.
        chosen_by: settings by which the variant is chosen; default ``settings``.

    Returns:
        The variant, the settings with the chosen model in place of ``auto``, and the training and validation rows.
    """
    reading = without_auto(settings)
    rows, valid_rows = train_and_validation_rows(kind, reading, settled=settings.resume, same=same)
    if not settings.resume:
        kind = kind.for_rows(rows, chosen_by or settings)
    if settings.teacher and not settings.resume and "teacher" not in kind.used_settings:
        raise HeedfulError(
            "--teacher teaches a text classifier, but this run trains another model; leave the option out"
        )
    if settings.unlabelled and not settings.resume:  # their vectors and tokens are in a resumed run's model
        if "unlabelled" not in kind.used_settings:
            raise HeedfulError(
                "--unlabelled teaches a new ensemble of text classifiers, but this run trains another model; leave the "
                "option out"
            )
        rows.unlabelled = unlabelled_rows(settings.unlabelled, rows, valid_rows)
    return kind, with_known_model(kind, rows, settings, say), rows, valid_rows


def unlabelled_rows(sources: Sequence[str], rows: Rows, valid_rows: Rows) -> Rows:
    """Returns the texts of ``--unlabelled``, each once, without those of the training and validation rows.

    A file is lines of text, or a table, of which only the column of texts is read: that of the training data's name,
    or ``text``, or the one that looks like texts. The notes of the result name it, and say what was left out.

    Raises ``HeedfulError`` for a file that cannot be read, and if no text is left.
    """
    found, notes = Rows(), []
    for source in sources:
        try:
            part = read(source, {"text": "text"}, split="train", remembered=rows.mapping)
        except NoColumn:
            raise HeedfulError(f"{display_name(source)} has no column of texts; call it 'text'") from None
        found.extend(part)
        found.skipped += part.skipped
        if part.mapping:
            notes.append(f"only column {part.columns[0]} of {display_name(source)} is read")
    known = {content_digest(row.values["text"]) for row in (*rows, *valid_rows)}
    new: dict[bytes, Row] = {}
    for row in found:
        key = content_digest(row.values["text"])
        if key not in known:
            new.setdefault(key, row)
    if not new:
        raise HeedfulError(
            f"{sources[0]}: all {plural(len(found), 'text')} of --unlabelled are among the labelled ones; give other "
            "texts, or leave the option out"
        )
    result = Rows((Row({"text": row.values["text"]}, row.file, row.line) for row in new.values()), found.skipped)
    result.notes = notes
    if left_out := len(found) - len(new):
        notes.append(f"{plural(left_out, 'text')} left out, which are repeated or among the labelled ones")
    return result


def train_and_validation_rows(
    kind: type[Task], settings: RunSettings, settled: bool = False, same: Same = content_digest
) -> tuple[Rows, Rows]:
    """Returns the training and validation rows of a run; equal settings give equal rows. A mixture is mixed here.

    Args:
        kind: class of the task.
        settings: settings of the run.
        settled: True if ``kind`` is already the variant for these rows; else ``kind.for_rows`` chooses the variant.
        same: maps equal values of the first column to the same key; rows with equal keys stay together.

    Raises ``HeedfulError`` for data that cannot be read, and for ``--data.valid-fraction`` together with validation
    data.
    """
    data = settings.data
    read_rows = partial(kind.read_rows, names=data.columns, separator=data.label_separator)
    remembered = training_columns(settings.start_from)
    rows = read_rows(list(settings.train), kind.columns, split="train", limit=data.limit, remembered=remembered)
    if data.strip_prefix is not None:
        _check_prefix(rows, data.strip_prefix)
        rows = with_stripped_words(rows, data.strip_prefix)
    if not settled:
        kind = kind.for_rows(rows, settings)
        rows = kind.convert_rows(rows)
    if has_validation_data(settings):
        if data.valid_fraction is not None:
            raise HeedfulError(
                "--data.valid-fraction has no effect where validation data is given; leave the option out"
            )
        held = kind.read_rows(
            list(settings.valid or settings.train),
            kind.columns,
            names=data.columns,
            separator=data.label_separator,
            split="valid",
            remembered=rows.mapping,
        )
        _check_columns(held, kind)
        rows = rows if rows.mix is None else rows.mix(rows, settings.seed or 0)
        return rows, with_stripped_words(held, data.strip_prefix)
    learned, held = kind.split_rows(rows, data.valid_fraction, settings.seed or 0, same)
    learned.blank = rows.blank
    learned.inherit_from(rows)
    return learned if rows.mix is None else rows.mix(learned, settings.seed or 0), held


def has_validation_data(settings: RunSettings) -> bool:
    """Returns True if validation data is given, as a file or as a split of the training data's source."""
    return bool(settings.valid) or "valid" in splits(settings.train)


def _check_columns(held: Rows, kind: type[Task]) -> None:
    """Raises ``HeedfulError`` for validation rows of another form than the training rows', such as preferences."""
    needed = {column for column in required_columns(kind.columns) if kind.columns[column] != "document"}
    if held and not needed <= held[0].values.keys():
        expected, found = (", ".join(names) for names in (sorted(needed), held[0].values))
        raise HeedfulError(
            f"{held[0].file} has {found}, but the training data {expected}; give validation data of the same form"
        )


def stripped_prefix(card: Mapping[str, Any]) -> str | None:
    """Returns the prefix that was stripped from every word of the training data, from ``heedful.json``; None if none
    was.
    """
    settings = card.get("settings")
    data = settings.get("data") if isinstance(settings, Mapping) else None
    prefix = data.get("strip_prefix") if isinstance(data, Mapping) else None
    return prefix if isinstance(prefix, str) else None


def _check_prefix(rows: Rows, prefix: str) -> None:
    if not prefix or not any(word.startswith(prefix) for row in rows for word in row.values.get("words", ())):
        first = f"{rows[0].file}:{rows[0].line}: " if rows else ""
        raise HeedfulError(
            f"{first}no word begins with {prefix!r} (--data.strip-prefix); correct the prefix, or leave the option out"
        )
