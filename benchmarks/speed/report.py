"""The printed report: a table a work, the programs left out, the ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("", "ms", "rounds", "of the bound", "ours is", "answers")


def table(work: Mapping[str, Any]) -> str:
    """The figures of one work, in columns."""
    lines = [HEAD, *(line(one) for one in work["results"])]
    wide = [max(len(row[column]) for row in lines) for column in range(len(HEAD))]
    rows = [
        "  ".join(cell.ljust(wide[n]) if n == 0 else cell.rjust(wide[n]) for n, cell in enumerate(row)) for row in lines
    ]
    return "\n".join([f"\n{work['work']['name']}, {work['unit']}", *(row.rstrip() for row in rows)])


def line(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One competitor's cells."""
    low, high = min(one["rounds_ms"]), max(one["rounds_ms"])
    return (
        one["name"],
        number(one["ms"]),
        f"{number(low)}–{number(high)}",
        "" if one["share"] is None else f"{100 * one['share']:.0f} %",
        faster(one),
        answers(one),
    )


def faster(one: Mapping[str, Any]) -> str:
    """The speed of ours divided by this program's; for ours, its speed divided by that of its float32."""
    if one.get("ours_faster"):
        return f"{one['ours_faster']:.2f} ×"
    over = one.get("over_float32")
    return f"{over:.2f} × its float32" if over and one["precision"] != "float32" else ""


def answers(one: Mapping[str, Any]) -> str:
    """The judge's number, and what it means."""
    if one["apart"] is None:
        return "not compared"
    return f"{one['apart']:.2g}" + {True: "", False: " OTHER", None: " not judged"}[one["agrees"]]


def number(value: float) -> str:
    """Milliseconds with three digits or so."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def left_out(reasons: Mapping[str, str]) -> str:
    """A line each."""
    return "\n".join(f"not measured: {name}: {why}" for name, why in reasons.items())


def ceilings(found: Mapping[str, Mapping[str, float]]) -> str:
    """The machine's, in a line each."""
    return "\n".join(
        [
            "\nthis machine, the median of all rounds (the best)",
            *(f"{name:10}{each['median']:8.1f} ({each['best']:.1f}) {unit(name)}" for name, each in found.items()),
        ]
    )


def unit(ceiling: str) -> str:
    """The unit of a ceiling."""
    return "GB/s" if ceiling in ("read", "copy") else "billion operations a second"


def rows(works: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Works by their row, in order."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for work in works:
        found.setdefault(work["work"]["row"], []).append(work)
    return found
