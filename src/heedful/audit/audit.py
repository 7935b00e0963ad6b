"""``heedful audit``: all checks of the data of a run, without training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heedful import tasks
from heedful.audit.characters import odd_characters
from heedful.audit.duplicates import copied, leaked, near, repeated, skipped
from heedful.audit.encoded_examples import lengths, looked_at, shown, unread
from heedful.audit.findings import Finding
from heedful.audit.images import bare, looks, pictured
from heedful.audit.labels import balance, bound, prefixed, unlearned
from heedful.config import ModelConfig, VisionConfig
from heedful.data import Rows, image_folder
from heedful.data.split import keys_of
from heedful.data.texts_on_disk import continues, on_disk
from heedful.errors import many
from heedful.models.base import device_of
from heedful.pretrained.fill_model import blank
from heedful.settings import RunSettings
from heedful.tasks.documents import sampled
from heedful.tasks.run_data import divided
from heedful.tasks.task import Encoded, Task
from heedful.training.resolve import asked_for, resolved

FEW = 200  # examples whose tokens are checked at the start of a run


@dataclass(frozen=True)
class Audit:
    """Findings on the data of one run."""

    task: str
    examples: int
    held: int
    findings: Sequence[Finding]
    sample: Sequence[str]  # lines that show the model's input
    seconds: float

    @property
    def ok(self) -> bool:
        """True if there is no warning."""
        return all(finding.level == "fact" for finding in self.findings)

    def lines(self) -> list[str]:
        """Returns the printed lines, warnings first."""
        ordered = sorted(self.findings, key=lambda finding: finding.level == "fact")
        count = sum(finding.level == "warning" for finding in ordered)
        verdict = "nothing stands out" if not count else f"{many(count, 'thing')} to look at, marked !"
        return [
            f"{many(self.examples)}, {self.held:,} for validation: {verdict}",
            *(finding.line() for finding in ordered),
            *([""] if self.sample else []),
            *self.sample,
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the audit for JSON."""
        return {
            "task": self.task,
            "ok": self.ok,
            "examples": self.examples,
            "validation": self.held,
            "findings": [finding.as_dict() for finding in self.findings],
            "sample": list(self.sample),
            "seconds": round(self.seconds, 3),
        }


def audit(settings: RunSettings) -> Audit:
    """Reads the data of a run as ``train`` would and checks it. Writes nothing, trains nothing.

    Raises:
        HeedfulError: ``train`` would refuse the data or the settings.
    """
    began = time.perf_counter()
    kind = tasks.chosen(settings)
    settings = asked_for(kind, settings)
    rows, held = divided(kind, settings)
    kind = kind.for_rows(rows, settings)
    settings = resolved(kind, rows, settings, device_of("cpu"))
    task, config = _task_and_config(kind, rows, settings)
    encoded = task.encode(rows, settings.data.max_length)
    findings = [
        *findings_of(task, rows, held),
        *_findings_of_pairs(task, rows, held),
        *findings_of_tokens(task, encoded),
        *_findings_of_validation(task, held, settings.data.max_length),
    ]
    if isinstance(config, VisionConfig):
        findings += _findings_of_images(settings, rows, held)
    sample = pictured(config, encoded) if isinstance(config, VisionConfig) else shown(task, encoded)
    return Audit(task.name, len(rows), len(held), findings, sample, time.perf_counter() - began)


def _task_and_config(kind: type[Task], rows: Rows, settings: RunSettings) -> tuple[Task, ModelConfig]:
    """Returns the task before the first step, and the configuration of its model."""
    if settings.start_from:
        task, model = kind.for_fine_tuning(settings.start_from, rows, settings)
    else:
        task = kind.prepare(rows, settings)
        model = blank(task.config(settings))
    task.before_training(model, settings)
    return task, model.config


def warnings(task: Task, rows: Rows, held: Rows, learned: Encoded) -> list[str]:
    """Returns the warnings that a run begins with, from all rows and the tokens of 200 examples."""
    findings = [*findings_of(task, rows, held), *looked_at(task, learned, most=FEW)]
    return [finding.line() for finding in findings if finding.level == "warning"]


def findings_of(task: Task, rows: Rows, held: Rows) -> Iterator[Finding]:
    """Yields the findings on rows, before any tokenizer reads them."""
    columns = dict(task.columns)
    yield from (Finding("columns", "fact", len(part), note, (), name) for part, name, note in _notes(rows, held))
    if on_disk(rows):
        of = f"of {len(rows):,} {'pieces of documents' if any(map(continues, rows)) else 'documents'}"
        yield from skipped(rows)
        rows = Rows(sampled(rows), 0, rows.columns)
        yield Finding("sampled", "fact", len(rows), f"{len(rows):,} {of} were looked at")
    yield from skipped(rows)
    yield from (replace(finding, part="valid") for finding in skipped(held))
    keys, others = (keys_of(part, columns, task.input_columns) for part in (rows, held))
    yield from repeated(rows, keys, columns)
    yield from copied(rows, columns)
    yield from leaked(rows, keys, held, others)
    yield from prefixed(rows, columns)
    yield from balance(rows, columns)
    yield from bound(rows, columns)
    yield from odd_characters([*rows, *held], columns)


def _notes(rows: Rows, held: Rows) -> list[tuple[Rows, Literal["train", "valid"], str]]:
    """Returns (rows, split, note) of each note on how the files were read."""
    others = [note for note in held.notes if note not in rows.notes]
    return [*((rows, "train", note) for note in rows.notes), *((held, "valid", note) for note in others)]


def _findings_of_pairs(task: Task, rows: Rows, held: Rows) -> Iterator[Finding]:
    """Yields near-duplicates; too slow for the start of a run."""
    if not on_disk(rows):
        yield from near(rows, held, dict(task.columns), task.input_columns)


def _findings_of_images(settings: RunSettings, rows: Rows, held: Rows) -> Iterator[Finding]:
    """Yields the findings on images, and on label folders without any."""
    yield from looks(rows)
    yield from bare(settings.train, "train")
    sources = settings.valid or [source for source in settings.train if image_folder.parts(source)]
    yield from (replace(finding, part="valid") for finding in (*looks(held), *bare(sources, "valid")))


def findings_of_tokens(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """Yields the findings on encoded examples."""
    yield from lengths(task, encoded)
    yield from unread(encoded)
    yield from looked_at(task, encoded)


def _findings_of_validation(task: Task, held: Rows, max_length: int | None) -> Iterator[Finding]:
    """Yields the findings on encoded validation examples, and on labels unknown to the model."""
    unknown_labels, known = unlearned(held, getattr(task, "labels", ()), task.columns)
    yield from unknown_labels
    if known:
        encoded = task.encode(known, max_length)
        yield from (replace(finding, part="valid") for finding in (*unread(encoded), *looked_at(task, encoded)))
