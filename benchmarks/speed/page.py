"""Writes docs/benchmarks.md and docs/benchmarks-training.md, with their pictures, from the JSON of the runs.

python -m benchmarks.speed.page RESULTS.json [RESULTS.json ...] docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speed import report
from benchmarks.speed.results import LOSSES, TOLERANCE, fastest
from benchmarks.speed.works import PRECISIONS, ROWS, action, title
from heedful.views.figures import bars

ANSWERING, TRAINING = "answering", "training"


def write(told: Mapping[str, Any], file: Path) -> list[Path]:
    """Write the page, and its picture beside it; their paths."""
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = file.with_suffix(".svg")
    drawn = compared(told["works"])
    if drawn:
        note = "how many times as fast ours is as the fastest other program, same weights, same precision; 1: as fast"
        picture.write_text(bars([*drawn], [*drawn.values()], "Ours beside the fastest other", note=note), "utf-8")
    text = "\n\n".join(part for part in page(told, picture.name if drawn else "", file) if part)
    file.write_text(text + "\n", encoding="utf-8")
    return [file, picture] if drawn else [file]


def joined(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several runs on one machine as one: of a work that several have measured, the last; ceilings over them all."""
    works = {work["work"]["name"]: work for told in runs for work in told["works"]}
    names = dict.fromkeys(name for told in runs for name in told["ceilings"])
    measured = {name: [told["ceilings"][name] for told in runs if name in told["ceilings"]] for name in names}
    ceilings = {
        name: {"median": median(each["median"] for each in of), "best": max(each["best"] for each in of)}
        for name, of in measured.items()
    }
    left_out = {row: reasons for told in runs for row, reasons in told["left_out"].items()}
    ordered = sorted(works.values(), key=lambda work: ROWS.index(work["work"]["row"]))
    minutes = sum(told["minutes"] for told in runs)
    rounds = sorted({told["settings"]["rounds"] for told in runs})
    settings = {**runs[-1]["settings"], "rounds": rounds[0] if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"}
    found = {"works": ordered, "left_out": left_out, "ceilings": ceilings, "minutes": minutes}
    return {**runs[-1], "settings": settings, **found}


def compared(works: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A bar each: works and precisions, and how many times as fast ours is as the fastest other program."""
    found = {}
    for work in works:
        for precision in PRECISIONS:
            other = fastest(work, precision)
            if other is not None and other.get("ours_faster"):
                found[f"{work['work']['name']}, {precision}"] = other["ours_faster"]
    return found


def kinds(told: Mapping[str, Any]) -> set[str]:
    """The kinds of rows that were measured: ``ANSWERING``, ``TRAINING`` or both."""
    return {TRAINING if action(work["work"]["row"]) == TRAINING else ANSWERING for work in told["works"]}


def command(told: Mapping[str, Any], file: Path) -> str:
    """The command that makes a page of these rows; without them, of all."""
    rows = report.rows(told["works"])
    asked = "" if set(rows) == set(ROWS) else f" --rows {','.join(rows)}"
    return f"python -m benchmarks.speed{asked} --docs docs/{file.name}"


def page(told: Mapping[str, Any], picture: str, file: Path) -> Iterator[str]:
    """The page's parts."""
    settings = told["settings"]
    yield "# Speed of training" if kinds(told) == {TRAINING} else "# Speed"
    if settings["short"]:
        yield "Written by the short form, which shows that the program works: none of these times means anything."
    if picture:
        yield f"![Speed of Heedful relative to the fastest other program of each work]({picture})"
    yield (
        "Heedful and other programs compute the same work with the same weights and threads, in turns in one "
        "run. *Of the bound* is the shortest time in which this machine can read and compute what the work "
        "needs, divided by the measured time. *Ours is* is the speed of Heedful relative to a program in the "
        "same precision; for Heedful itself, relative to its own float32. One command measures all of it:"
    )
    yield f"    {command(told, file)}"
    for row, works in report.rows(told["works"]).items():
        yield f"## {title(row)}"
        yield table(works)
    yield from how(told)
    yield from left(told)


def table(works: Sequence[Mapping[str, Any]]) -> str:
    """The works of a row side by side, a program a line."""
    names = list(dict.fromkeys(one["name"] for work in works for one in work["results"]))
    heads = [f"{work['work']['name']}, {work['unit']} | of the bound | ours is" for work in works]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "--:|" * (3 * len(works))]
    for name in names:
        cells = [cell(next((one for one in work["results"] if one["name"] == name), None)) for work in works]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(one: Mapping[str, Any] | None) -> str:
    """Time, share and ratio of one program; a time with a wrong output is struck out."""
    if one is None:
        return "– | |"
    time = report.number(one["ms"])
    if one["agrees"] is False:
        return f"~~{time}~~ other outputs | |"
    return " | ".join((time, report.line(one)[3], report.faster(one)))


def how(told: Mapping[str, Any]) -> Iterator[str]:
    """The method and the machine."""
    settings, machine = told["settings"], told["machine"]
    waiting = "".join(f" {name}={value}." for name, value in machine["waiting"].items())
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    ceilings = told["ceilings"]
    yield "## How it is measured"
    yield (
        "Each program runs in its own process, loads once, does the work once uncounted, and then once in "
        f"each round, in turns; the others sleep meanwhile. There were {settings['rounds']} rounds. Works "
        "under half a second are repeated within a turn. Times are medians over the rounds. Ratios and "
        "shares are computed within each round, against the other programs and the machine's ceilings of the "
        "same seconds, and their median is shown. The bound is the slower of reading and computing, at the "
        "ceilings of the same round. Weights are random, from one seed, with blocks that affect the output."
    )
    if ANSWERING in kinds(told):
        yield from of_answers()
    if TRAINING in kinds(told):
        yield from of_steps()
    rows = [
        f"| {name} | {each['median']:.1f} | {each['best']:.1f} | {report.unit(name)} |"
        for name, each in ceilings.items()
    ]
    yield "\n".join(["| | median | best | |", "|---|--:|--:|---|", *rows])
    yield (
        f"On {told['date']}: {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}, Python {machine['python']}; threads of every program: {settings['threads']}, device "
        f"{settings['device']}.{waiting} {versions}. The whole run took {told['minutes']:.0f} minutes."
    )


def of_answers() -> Iterator[str]:
    """The method for answers."""
    yield (
        "Generations are greedy, and none may end early. `plain` is a model as training leaves it, without "
        "`heedful.optimize`; `uncompiled` is optimised with `compiled_decoding=False`. Where cores are busy, another "
        "process multiplies matrices on as many threads, also while the ceilings are measured. OpenVINO and "
        "llama.cpp choose for themselves what their settings leave open: the heads of "
        "`benchmarks/speed/programs/openvino.py` and `llama_cpp.py` list both. Every output is compared. Our plain "
        "float32 model reads the tokens of "
        f"each program: in float32 none may lie more than {TOLERANCE['float32']} standard deviations below "
        "its best, in lower precisions no more than rounding explains; beams are compared by "
        "log-probability, states and logits by their largest difference. A time with a wrong output is "
        "struck out. x-transformers is measured with its own weights and is not compared."
    )


def of_steps() -> Iterator[str]:
    """The method for steps of training."""
    yield (
        "A step of training is forward, backward, gradients clipped to a norm of 1, and AdamW, on the same "
        "batch each time, without dropout unless the title says so, with weights in float32 (under bfloat16: "
        "autocast). `ours` is the whole `Loop`, with its loader and log, without checkpoints. `bare loop` is "
        "the same model and loss in five lines; *ours is* beside it is the cost of the loop: 0.99 × is one "
        "in a hundred. Other programs take the batch as it is padded; ours leaves padding out where it can. "
        "All use PyTorch's one-pass AdamW, except nanoGPT, which has its own choice. The losses of the first "
        "steps are compared with those of our plain model in float32: they may differ by "
        f"{100 * LOSSES['float32']:g} % in float32, by {100 * LOSSES['bfloat16']:g} % in bfloat16. With dropout each "
        "program draws its own numbers, and nothing is compared. The bound is 6 operations for each weight "
        "of a matrix and each real token, those of attention, and the reads and writes of AdamW."
    )


def left(told: Mapping[str, Any]) -> Iterator[str]:
    """The programs that were left out, and the reasons."""
    yield "## What is not measured"
    reasons = {name: why for row in told["left_out"].values() for name, why in row.items()}
    general = (
        "Loading and converting; reading and writing text; memory. Sampling, and rows that end at different "
        "times. `transformers` compiled, whose first call takes over a minute. Other "
        "machines: the ratios hold for this one."
    )
    yield general
    yield "\n".join(f"- {name}: {why}" for name, why in reasons.items())


if __name__ == "__main__":
    *files, docs = map(Path, sys.argv[1:])
    write(joined([json.loads(file.read_text(encoding="utf-8")) for file in files]), docs)
