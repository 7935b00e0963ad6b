"""``heedful audit``: all checks of the data of a run, without training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heedful import tasks
from heedful.audit.characters import odd_characters
from heedful.audit.duplicates import copied, leaked, repeated, skipped
from heedful.audit.encoded_lengths import lengths, looked_at, shown, unread
from heedful.audit.findings import Finding
from heedful.audit.images import bare, looks, pictured
from heedful.audit.labels import balance, unlearned
from heedful.audit.near_duplicates import near
from heedful.audit.tagged_words import bound, prefixed
from heedful.config import ModelConfig, VisionConfig
from heedful.data import Rows, image_folder
from heedful.data.lazy_texts import continues, on_disk
from heedful.data.split import keys_of
from heedful.errors import many
from heedful.models.base import device_of
from heedful.pretrained.fill_model import blank
from heedful.settings import RunSettings, resolve
from heedful.tasks.documents import sampled
from heedful.tasks.sources import divided
from heedful.tasks.task import Encoded, Task
from heedful.training.choices import asked_for, settled, suggested_for

FEW = 200  # examples whose tokens the short form looks at


@dataclass(frozen=True)
class Audit:
    """What was found of the data of one run."""

    task: str
    examples: int
    held: int
    findings: Sequence[Finding]
    sample: Sequence[str]  # lines: exactly what the model sees
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is likely wrong."""
        return all(finding.level == "fact" for finding in self.findings)

    def lines(self) -> list[str]:
        """For a person, warnings first."""
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
        """For JSON."""
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
    """Read the data of a run as ``train`` would, and look at it; nothing is written and nothing is trained.

    Raises:
        HeedfulError: for what ``train`` would refuse.
    """
    began = time.perf_counter()
    kind = tasks.chosen(settings)
    settings = asked_for(kind, settings)
    rows, held = divided(kind, settings)
    kind = kind.for_rows(rows, settings)
    settings = settled(resolve(settings, suggested_for(kind, rows, settings)), device_of("cpu"))
    task, config = _made(kind, rows, settings)
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


def _made(kind: type[Task], rows: Rows, settings: RunSettings) -> tuple[Task, ModelConfig]:
    """The task as it is before the first step, and what model it would train."""
    if settings.start_from:
        task, model = kind.start(settings.start_from, rows, settings)
    else:
        task = kind.prepare(rows, settings)
        model = blank(task.config(settings))
    task.ready(model, settings)
    return task, model.config


def warnings(task: Task, rows: Rows, held: Rows, learned: Encoded) -> list[str]:
    """The short form, for the head of a run: what is likely wrong, of all rows and of some examples' tokens."""
    found = [*findings_of(task, rows, held), *looked_at(task, learned, most=FEW)]
    return [finding.line() for finding in found if finding.level == "warning"]


def findings_of(task: Task, rows: Rows, held: Rows) -> Iterator[Finding]:
    """What rows tell by themselves."""
    columns = dict(task.columns)
    yield from (Finding("columns", "fact", len(part), note, (), name) for part, name, note in _notes(rows, held))
    if on_disk(rows):
        of = f"of {len(rows):,} {'pieces of documents' if any(map(continues, rows)) else 'documents'}"
        yield from skipped(rows)
        rows = Rows(sampled(rows), 0, rows.columns)
        yield Finding("sampled", "fact", len(rows), f"{len(rows):,} {of} were looked at")
    yield from skipped(rows)
    yield from (replace(one, part="valid") for one in skipped(held))
    keys, others = (keys_of(part, columns, task.input_columns) for part in (rows, held))
    yield from repeated(rows, keys, columns)
    yield from copied(rows, columns)
    yield from leaked(rows, keys, held, others)
    yield from prefixed(rows, columns)
    yield from balance(rows, columns)
    yield from bound(rows, columns)
    yield from odd_characters([*rows, *held], columns)


def _notes(rows: Rows, held: Rows) -> list[tuple[Rows, Literal["train", "valid"], str]]:
    """Notes for people on how the files were read."""
    others = [note for note in held.notes if note not in rows.notes]
    return [*((rows, "train", note) for note in rows.notes), *((held, "valid", note) for note in others)]


def _findings_of_pairs(task: Task, rows: Rows, held: Rows) -> Iterator[Finding]:
    """What rows tell beside each other; too slow for the head of a run."""
    if not on_disk(rows):
        yield from near(rows, held, dict(task.columns), task.input_columns)


def _findings_of_images(settings: RunSettings, rows: Rows, held: Rows) -> Iterator[Finding]:
    """What images look like, and folders without any."""
    yield from looks(rows)
    yield from bare(settings.train, "train")
    sources = settings.valid or [source for source in settings.train if image_folder.parts(source)]
    yield from (replace(one, part="valid") for one in (*looks(held), *bare(sources, "valid")))


def findings_of_tokens(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """What the model would be given of them."""
    yield from lengths(task, encoded)
    yield from unread(encoded)
    yield from looked_at(task, encoded)


def _findings_of_validation(task: Task, held: Rows, max_length: int | None) -> Iterator[Finding]:
    """What the model would be asked, and cannot be."""
    strange, known = unlearned(held, getattr(task, "labels", ()), task.columns)
    yield from strange
    if known:
        encoded = task.encode(known, max_length)
        yield from (replace(one, part="valid") for one in (*unread(encoded), *looked_at(task, encoded)))
