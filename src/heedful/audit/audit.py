"""``heedful audit``: all checks of the data of a run, without training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heedful import tasks
from heedful.audit.characters import check_characters
from heedful.audit.duplicates import (
    check_copies,
    check_duplicates,
    check_leakage,
    check_near_duplicates,
    check_preferences,
    check_skipped_rows,
)
from heedful.audit.encoded_examples import check_lengths, check_tokens, check_truncation, text_sample
from heedful.audit.findings import Finding
from heedful.audit.images import check_empty_folders, check_images, image_sample, without_unreadable_images
from heedful.audit.labels import check_labels, check_single_word_labels, check_unknown_labels, check_word_prefix
from heedful.config import ModelConfig, patches_of
from heedful.data import Rows, image_folder
from heedful.data.split import row_keys
from heedful.data.texts_on_disk import any_on_disk, continues_previous
from heedful.errors import HeedfulError, plural
from heedful.models.base import device_of
from heedful.pretrained.fill_model import build_empty
from heedful.settings import RunSettings
from heedful.tasks.documents import sampled_documents
from heedful.tasks.run_data import read_run_data
from heedful.tasks.task import Encoded, Task
from heedful.training.resolve import resolved, with_recipe

START_EXAMPLES = 200  # examples whose tokens are checked at the start of a run


@dataclass(frozen=True)
class Audit:
    """Findings on the data of one run."""

    task: str
    examples: int
    validation_examples: int
    findings: Sequence[Finding]
    sample: Sequence[str]  # lines that show the model's input
    seconds: float

    @property
    def ok(self) -> bool:
        """True if there is no warning."""
        return all(finding.level == "fact" for finding in self.findings)

    def lines(self) -> list[str]:
        """Returns the lines that ``heedful audit`` prints, warnings first."""
        ordered = sorted(self.findings, key=lambda finding: finding.level == "fact")
        count = sum(finding.level == "warning" for finding in ordered)
        verdict = "no problem found" if not count else f"{plural(count, 'warning')}, marked !"
        return [
            f"{plural(self.examples)}, {self.validation_examples:,} for validation: {verdict}",
            *(finding.line() for finding in ordered),
            *([""] if self.sample else []),
            *self.sample,
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the audit as a dictionary for JSON."""
        return {
            "task": self.task,
            "ok": self.ok,
            "examples": self.examples,
            "validation": self.validation_examples,
            "findings": [finding.as_dict() for finding in self.findings],
            "sample": list(self.sample),
            "seconds": round(self.seconds, 3),
        }


def audit(settings: RunSettings) -> Audit:
    """Audits the data of a run, read as ``train`` reads the data. Writes nothing and trains nothing.

    Images that cannot be read are a finding, and are left out of the other checks.

    Raises:
        HeedfulError: for other data or settings for which ``train`` raises it too.
    """
    began = time.perf_counter()
    kind = tasks.chosen(settings)
    kind, settings, train, validation = read_run_data(kind, with_recipe(kind, settings), lambda line: None)
    try:
        result = _audit(kind, settings, train, validation)
    except HeedfulError:
        train, unreadable = without_unreadable_images(kind, train, "train")
        validation, others = without_unreadable_images(kind, validation, "valid")
        if not (unreadable or others) or not train:
            raise
        result = _audit(kind, settings, train, validation)
        result = replace(result, findings=[*unreadable, *others, *result.findings])
    return replace(result, seconds=time.perf_counter() - began)


def _audit(kind: type[Task], settings: RunSettings, train: Rows, validation: Rows) -> Audit:
    """Returns the audit of the rows, of which every image can be read; its time is not measured."""
    settings = resolved(kind, train, settings, device_of("cpu"))
    task, config = _task_and_config(kind, train, settings)
    encoded = task.encode(train, settings.data.max_length)
    findings = [
        *row_findings(task, train, validation),
        *_near_duplicate_findings(task, train, validation),
        *token_findings(task, encoded),
        *_validation_findings(task, validation, settings.data.max_length),
    ]
    patches = patches_of(config)
    if patches is not None:
        findings += _image_findings(settings, train, validation)
    sample = text_sample(task, encoded) if patches is None else image_sample(task, patches, encoded)
    return Audit(task.name, len(train), len(validation), findings, sample, 0.0)


def _task_and_config(kind: type[Task], train: Rows, settings: RunSettings) -> tuple[Task, ModelConfig]:
    """Returns the task as it is before the first training step, and the configuration of its model."""
    if settings.start_from:
        task, model = kind.for_fine_tuning(settings.start_from, train, settings)
    else:
        task = kind.prepare(train, settings)
        model = build_empty(task.model_config(settings))
    task.before_training(model, settings)
    return task, model.config


def start_warnings(task: Task, train: Rows, validation: Rows, encoded: Encoded) -> list[str]:
    """Returns the warnings that a run prints at its start, from all rows and the tokens of 200 examples."""
    findings = [*row_findings(task, train, validation), *check_tokens(task, encoded, max_examples=START_EXAMPLES)]
    return [finding.line() for finding in findings if finding.level == "warning"]


def row_findings(task: Task, train: Rows, validation: Rows) -> Iterator[Finding]:
    """Yields the findings on rows, before any tokenizer reads them."""
    columns = dict(task.columns)
    yield from (
        Finding("columns", "fact", len(rows), note, (), split) for rows, split, note in _notes(train, validation)
    )
    if any_on_disk(train):
        unit = "pieces of documents" if any(map(continues_previous, train)) else "documents"
        total = len(train)
        yield from check_skipped_rows(train)
        train = Rows(sampled_documents(train), 0, train.columns)
        yield Finding("sampled", "fact", len(train), f"{len(train):,} of {total:,} {unit} were checked")
    yield from check_skipped_rows(train)
    yield from (replace(finding, part="valid") for finding in check_skipped_rows(validation))
    train_keys, validation_keys = (row_keys(rows, columns, task.model_columns) for rows in (train, validation))
    yield from check_duplicates(train, train_keys, columns)
    yield from check_copies(train, columns)
    yield from check_preferences(train)
    yield from check_leakage(train, train_keys, validation, validation_keys)
    yield from check_word_prefix(train, columns)
    yield from check_labels(train, columns)
    yield from check_single_word_labels(train, columns)
    yield from check_characters([*train, *validation], columns)


def _notes(train: Rows, validation: Rows) -> list[tuple[Rows, Literal["train", "valid"], str]]:
    """Returns (rows, split, note) for each note on how the files of the two splits were read."""
    validation_notes = [note for note in validation.notes if note not in train.notes]
    return [
        *((train, "train", note) for note in train.notes),
        *((validation, "valid", note) for note in validation_notes),
    ]


def _near_duplicate_findings(task: Task, train: Rows, validation: Rows) -> Iterator[Finding]:
    """Yields the findings on near-duplicates. This check is too slow for the start of a run."""
    if not any_on_disk(train):
        yield from check_near_duplicates(train, validation, dict(task.columns), task.model_columns)


def _image_findings(settings: RunSettings, train: Rows, validation: Rows) -> Iterator[Finding]:
    """Yields the findings on images, and on label folders without images."""
    yield from check_images(train)
    yield from check_empty_folders(settings.train, "train")
    sources = settings.valid or [source for source in settings.train if image_folder.split_folders(source)]
    yield from (
        replace(finding, part="valid")
        for finding in (*check_images(validation), *check_empty_folders(sources, "valid"))
    )


def token_findings(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """Yields the findings on encoded examples."""
    yield from check_lengths(task, encoded)
    yield from check_truncation(encoded)
    yield from check_tokens(task, encoded)


def _validation_findings(task: Task, validation: Rows, max_length: int | None) -> Iterator[Finding]:
    """Yields the findings on encoded validation examples, and on labels unknown to the model."""
    known_rows, labels = validation, getattr(task, "labels", None)
    if labels is not None:  # a task of one's own may have others, or name them otherwise
        unknown_labels, known_rows = check_unknown_labels(validation, labels, task.columns)
        yield from unknown_labels
    if known_rows:
        encoded = task.encode(known_rows, max_length)
        yield from (
            replace(finding, part="valid") for finding in (*check_truncation(encoded), *check_tokens(task, encoded))
        )
