"""Figures of a run folder or an evaluation, as files: loss curve, confusion matrix, mistakes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.util.files import parse_json, write
from heedful.views.confusion import confusion_svg
from heedful.views.curve import loss_curve
from heedful.views.mistakes import Mistake, mistakes_html, mistakes_svg

if TYPE_CHECKING:
    from heedful.data import Row
    from heedful.tasks.task import Measured

ANSWERS = {
    "label",
    "tags",
    "answers",
    "target",
    "summary",
    "score",
}  # columns that a mistake shows as what was expected


def draw_run(folder: str | os.PathLike[str], metric: str | None = None) -> Path | None:
    """Writes ``curve.svg`` of the ``metrics.jsonl`` in ``folder``; None where nothing was logged yet.

    ``metric``, such as ``"valid_accuracy"``, is what the lower panel shows; by default see ``curve.chief``.
    """
    folder = Path(folder)
    log = folder / "metrics.jsonl"
    lines = list(_lines(log)) if log.is_file() else []
    return write(folder / "curve.svg", loss_curve(lines, folder.name, metric=metric)) if lines else None


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """Returns the objects of a log; lines that hold none are passed over, as ``heedful watch`` does."""
    for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(HeedfulError):
            if isinstance(line := parse_json(text, log, "remove the line"), dict):
                yield line


def draw_report(folder: str | os.PathLike[str], measured: Measured, rows: Sequence[Row]) -> list[Path]:
    """Writes what ``measured`` holds that can be looked at, and give the paths; nothing where it holds nothing such.

    - ``confusion.svg`` where it has a ``"confusion"``;
    - where it has ``"mistakes"``, ``mistakes.svg`` of images, ``mistakes.html`` of texts.

    Args:
        folder: where to write; made where it is missing.
        measured: of a classifier; the ``"place"`` of a mistake is a place in ``rows``.
        rows: what was measured.
    """
    folder, details = Path(folder), measured.details
    written = []
    if "confusion" in details:
        labels, counts = details["confusion"]["labels"], details["confusion"]["counts"]
        title = f"{folder.name}: what was taken for what"
        written.append(write(folder / "confusion.svg", confusion_svg(labels, counts, title)))
    if "mistakes" in details:
        title = f"{folder.name}: the surest mistakes"
        images = any("image" in row.values for row in rows[:1])
        draw, name = (mistakes_svg, "mistakes.svg") if images else (mistakes_html, "mistakes.html")
        mistakes = [_mistake(one, rows[one["place"]]) for one in details["mistakes"]]
        written.append(write(folder / name, draw(mistakes, title, details.get("mistakes_total"))))
    return written


def _mistake(one: dict[str, Any], row: Row) -> Mistake:
    """Returns a mistake with the whole of what was asked, which the details only name."""
    if "image" in row.values:
        asked = row.values["image"].pixels()
    else:
        given = (value for column, value in row.values.items() if column not in ANSWERS)
        asked = "\n".join(value if isinstance(value, str) else " ".join(value) for value in given)
    return Mistake(asked, _labels(one["expected"]), _labels(one["output"]), min(1.0, max(0.0, one["score"])))


def _labels(answer: str | Sequence[str]) -> str:
    """Returns a label, or of several their names; none is "none"."""
    return answer if isinstance(answer, str) else ", ".join(answer) or "none"
