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

EXPECTED = {"label", "tags", "answers", "target", "summary", "score"}  # columns of expected outputs


def draw_run(folder: str | os.PathLike[str], metric: str | None = None) -> Path | None:
    """Draws a run's loss curve as ``curve.svg`` in its folder, and returns the path; None if nothing is logged yet.

    ``metric``, such as ``"valid_accuracy"``, is the metric of the lower panel; the default is ``curve.chief``.
    """
    folder = Path(folder)
    log = folder / "metrics.jsonl"
    lines = list(_lines(log)) if log.is_file() else []
    return write(folder / "curve.svg", loss_curve(lines, folder.name, metric=metric)) if lines else None


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a log, without invalid lines, as ``heedful watch`` reads it."""
    for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(HeedfulError):
            if isinstance(line := parse_json(text, log, "remove the line"), dict):
                yield line


def draw_report(folder: str | os.PathLike[str], measured: Measured, rows: Sequence[Row]) -> list[Path]:
    """Writes the figures of an evaluation, and returns their paths.

    - ``confusion.svg``: the confusion matrix;
    - ``mistakes.svg`` for images, or ``mistakes.html`` for texts: the most confident mistakes.

    Args:
        folder: folder for the figures; created if it does not exist.
        measured: evaluation of a classifier; the ``"place"`` of a mistake is an index of ``rows``.
        rows: the evaluated rows.
    """
    folder, details = Path(folder), measured.details
    written = []
    if "confusion" in details:
        labels, counts = details["confusion"]["labels"], details["confusion"]["counts"]
        title = f"{folder.name}: confusion matrix"
        written.append(write(folder / "confusion.svg", confusion_svg(labels, counts, title)))
    if "mistakes" in details:
        title = f"{folder.name}: most confident mistakes"
        images = any("image" in row.values for row in rows[:1])
        draw, name = (mistakes_svg, "mistakes.svg") if images else (mistakes_html, "mistakes.html")
        mistakes = [_mistake(mistake, rows[mistake["place"]]) for mistake in details["mistakes"]]
        written.append(write(folder / name, draw(mistakes, title, details.get("mistakes_total"))))
    return written


def _mistake(details: dict[str, Any], row: Row) -> Mistake:
    """Returns a mistake with its whole input and its place, of which the details have only a name and an index."""
    if "image" in row.values:
        model_input = row.values["image"].pixels()
    else:
        texts = (value for column, value in row.values.items() if column not in EXPECTED)
        model_input = "\n".join(text if isinstance(text, str) else " ".join(text) for text in texts)
    score = min(1.0, max(0.0, details["score"]))
    return Mistake(
        model_input, _labels(details["expected"]), _labels(details["output"]), score, f"{row.file}:{row.line}"
    )


def _labels(labels: str | Sequence[str]) -> str:
    """Returns a label, or several joined by commas, or "none"."""
    return labels if isinstance(labels, str) else ", ".join(labels) or "none"
