"""The picture of a run, from what its log holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

from heedful.files import write
from heedful.views.curve import loss_curve


def draw_run(folder: str | os.PathLike[str], metric: str | None = None) -> Path | None:
    """Write ``curve.svg`` of the ``metrics.jsonl`` in ``folder``; None where nothing was logged yet."""
    folder = Path(folder)
    log = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    return write(folder / "curve.svg", loss_curve(lines, folder.name, metric=metric)) if lines else None
