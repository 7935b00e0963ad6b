"""Demos: a small model of each family, trained in minutes on data of the package.

    definitions  the four demos: dates, languages, code, digits
    show         the steps of every demo: train, score, print, draw

Only the command line imports them. To add a demo, write its function in ``definitions`` and its name in ``DEMOS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from heedful.errors import HeedfulError, nearest

DEMOS = ("dates", "languages", "code", "digits")


def demo(
    name: str = "dates",
    out: str | None = None,
    say: Callable[[str], None] = print,
    quiet: bool = False,
    **choices: str,
) -> dict[str, Any]:
    """Trains the small model of a demo, scores it on held-out examples, and prints and draws the results.

    Args:
        name: "dates", "languages", "code" or "digits".
        out: folder of the run; ``runs/demo-NAME`` by default, where an earlier demo is replaced.
        say: is called with each line to print.
        quiet: show no progress.
        **choices: options of the demo: ``to="de"`` is the language of the demo "dates".

    Returns:
        ``{"task", "model", "metrics", "baseline", "examples", "seconds", "files"}`` and the task's details.
        ``metrics`` are the model's scores on held-out examples, ``baseline`` are a simple method's.
    """
    if name not in DEMOS:
        raise HeedfulError(f"unknown demo {name!r}; {nearest(name, DEMOS)}")
    from heedful.demos import definitions
    from heedful.demos.show import show

    return show(getattr(definitions, name)(**choices), out, say, quiet)


def all_demos(say: Callable[[str], None] = print, quiet: bool = False) -> dict[str, Any]:
    """Runs every demo and returns ``{"task": "all", "demos": [...], "metrics", "seconds"}``."""
    began = time.monotonic()
    results = []
    for number, name in enumerate(DEMOS, 1):
        say(f"{'' if number == 1 else chr(10)}━━ {number} of {len(DEMOS)}: {name} {'━' * 60}"[:80])
        results.append(demo(name, None, say, quiet))
    seconds = round(time.monotonic() - began, 1)
    headlines = [(result["headline"], result["seconds"], result["model"]) for result in results]
    say(f"\nAll four families from one core, in {seconds:.0f} s:")
    for (headline, spent, folder), name in zip(headlines, DEMOS, strict=True):
        say(f"  {name:<11}{headline:<72}{spent:4.0f} s  {folder}")
    metrics = {
        f"{name}_{metric}": value
        for name, result in zip(DEMOS, results, strict=True)
        for metric, value in result["metrics"].items()
    }
    return {"task": "all", "demos": results, "metrics": metrics, "seconds": seconds}
