"""Writes docs/benchmarks.md, its picture, and the figures that other pages quote, from docs/benchmarks.json.

python -m benchmarks.speed.page docs/benchmarks.md [RESULTS.json ...]     after adding these results to the JSON
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speed import report, results
from benchmarks.speed.results import LOSSES, TOLERANCE, fastest
from benchmarks.speed.works import LOADING, PRECISIONS, SERVING, action, title
from heedful.views.figures import bars

ANSWERING, TRAINING = "answering", "training"
Takes = Callable[[Mapping[str, Any]], bool]  # of a program's figures
# what each program computes with if nothing is asked for: OpenVINO rounds to bfloat16 where the processor has it
UNASKED = {"openvino": "bfloat16"}
QUOTED = re.compile(r"(<!-- speed: ([^>]*) -->\n).*?(<!-- speed end -->)", re.DOTALL)


def add(told: Mapping[str, Any], file: Path) -> list[Path]:
    """Add results to the JSON beside a page, and write the page; the paths of all that is written."""
    kept = file.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    results.write(results.joined(*([results.read(kept)] if kept.exists() else []), told), kept)
    return [kept, *write(file)]


def write(file: Path) -> list[Path]:
    """Write a page, its picture, and the quoted figures of other pages; the paths of those that changed."""
    changed = []
    for path, text in texts(file).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def texts(file: Path) -> dict[Path, str]:
    """The page, its picture, and the pages that quote it: README.md and all Markdown files beside it."""
    told = results.read(file.with_suffix(".json"))
    picture = file.with_suffix(".svg")
    drawn = {work["work"]["name"]: ratio for work in told["works"] if (ratio := best(work)) is not None}
    found = {file: "\n\n".join(part for part in page(told, picture.name if drawn else "", file) if part) + "\n"}
    if drawn:
        note = "how many times as fast Heedful is as the fastest other program, each in its fastest precision"
        names = ["the fastest other", *drawn]
        found[picture] = bars(names, [1.0, *drawn.values()], "Heedful beside the fastest other program", note=note)
    for path in (file.parent.parent / "README.md", *file.parent.glob("*.md")):
        if path != file and path.exists():
            text = path.read_text(encoding="utf-8")
            if QUOTED.search(text):
                found[path] = QUOTED.sub(lambda match: f"{match[1]}{quoted(told, match[2])}\n{match[3]}", text)
    return found


def quoted(told: Mapping[str, Any], what: str) -> str:
    """The lines of a quotation: ``summary``, or rows and programs, as in ``generation,small: ours, llama_cpp``."""
    if what == "summary":
        return sentence(told)
    rows, _, programs = what.partition(": ")
    works = [work for work in told["works"] if work["work"]["row"] in rows.split(",")]
    return by_precision(works, programs.split(", ")) + "\n\n" + when(told, works)


def sentence(told: Mapping[str, Any]) -> str:
    """In how many works and precisions ours is the fastest, and by how much."""
    drawn = compared(told["works"])
    ahead = [ratio for ratio in drawn.values() if ratio >= 1]
    middle, least, most = median(drawn.values()), min(drawn.values()), max(drawn.values())
    threads = " or ".join(dict.fromkeys(str(run["settings"]["threads"]) for run in told["runs"]))
    return (
        f"On {threads} CPU threads Heedful is fastest in {len(ahead)} of {len(drawn)} comparisons at equal weights and "
        f"precision: {middle:.2f} × the next in the median, {least:.2f} to {most:.2f} ×."
    )


def by_precision(works: Sequence[Mapping[str, Any]], programs: Sequence[str]) -> str:
    """A line for each work and precision: the times of some programs, ours with its ratio to the fastest other."""
    lines = [f"| | {' | '.join(programs)} |", "|---|" + "--:|" * len(programs)]
    for work in works:
        precisions = dict.fromkeys(one["precision"] for one in work["results"])
        for precision in precisions:
            cells = []
            for program in programs:
                one = next((each for each in results.right(work) if each["name"] == f"{program} {precision}"), None)
                cells.append("–" if one is None else report.number(one["ms"]))
                other = fastest(work, precision)
                if one is not None and program == "ours" and other is not None and other.get("ours_faster"):
                    cells[-1] += f" ({other['ours_faster']:.2f} ×)"
            if cells[0] != "–":
                lines.append(f"| {work['work']['name']}, {precision}, {work['unit']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def when(told: Mapping[str, Any], works: Sequence[Mapping[str, Any]]) -> str:
    """The days and machines of some works."""
    runs = [told["runs"][number] for number in dict.fromkeys(work["run"] for work in works)]
    return "; ".join(dict.fromkeys(f"{run['date']}, {processor(run)}" for run in runs)) + "."


def processor(run: Mapping[str, Any]) -> str:
    """Processor and threads of a run."""
    kinds = "".join(f", {name}" for name in run["machine"].get("instructions", ()))
    return f"{run['machine']['processor']}{kinds}, {run['settings']['threads']} threads"


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


def commands(told: Mapping[str, Any], file: Path) -> str:
    """The commands that measure these rows again."""
    rows = report.rows(told["works"])
    found = []
    if own := [row for row in rows if row != SERVING]:
        found.append(f"    python -m benchmarks.speed --rows {','.join(own)} --docs docs/{file.name}")
    served = {(work["work"]["model"], work["results"][0]["precision"]): work["run"] for work in rows.get(SERVING, ())}
    for (model, precision), run in served.items():
        settings = told["runs"][run]["settings"]
        asked = f"--dtype {precision} --rounds {settings['rounds']} --seconds {settings['seconds']:g} --overload 0"
        found.append(f"    python -m benchmarks.serving FOLDER/{model} {asked} --docs docs/{file.name}")
    return "\n".join(found)


def page(told: Mapping[str, Any], picture: str, file: Path) -> Iterator[str]:
    """The page's parts."""
    yield "# Speed"
    if any(run["settings"]["short"] for run in told["runs"]):
        yield "Written by the short form, which shows that the program works: none of these times means anything."
    if picture:
        yield f"![Speed of Heedful relative to the fastest other program of each work]({picture})"
    yield (
        "Heedful and other programs compute the same work with the same weights and threads, in turns in one "
        "run. *Ours is* is the speed of Heedful relative to a program; above 1, Heedful is faster. These commands "
        f"measure all of it, and write this page from `{file.with_suffix('.json').name}`:"
    )
    yield commands(told, file)
    answering = [work for work in told["works"] if action(work["work"]["row"]) != TRAINING]
    if answering:
        yield "## Without a flag"
        yield (
            "Float32 weights, loaded and run without an option, as `heedful.pipeline` and `heedful predict` do; "
            "OpenVINO then computes in bfloat16."
        )
        yield pairs(answering, is_unasked)
        yield "## The fastest of each"
        yield "Whatever the precision, of those that are compared."
        yield pairs(answering, is_compared)
        yield (
            "In the tables below, *of the bound* is the shortest time in which this machine can read and compute what "
            "the work needs, divided by the measured time. *Ours is* compares with Heedful in the same precision; "
            "beside Heedful itself, with its own float32."
        )
    for row, works in report.rows(told["works"]).items():
        yield f"## {title(row)}"
        yield table(works)
    yield from how(told)
    yield from left(told)


def is_unasked(one: Mapping[str, Any]) -> bool:
    """True for a program that runs as it does if nothing is asked for."""
    return not one["way"] and one["precision"] == UNASKED.get(one["program"], "float32")


def is_compared(one: Mapping[str, Any]) -> bool:
    """True for a program whose answer was compared: not for 4 bits, which give answers of their own."""
    return one["agrees"] is not None


def pair(work: Mapping[str, Any], takes: Takes) -> tuple[Any, Any] | None:
    """Ours and the fastest other, of those that ``takes`` is true for; None if one is missing."""
    found = sorted((one for one in results.right(work) if takes(one)), key=lambda one: one["ms"])
    ours = next((one for one in found if one["program"] == "ours" and not one["way"]), None)
    other = next((one for one in found if one["program"] != "ours"), None)
    return None if ours is None or other is None else (ours, other)


def best(work: Mapping[str, Any]) -> float | None:
    """How many times as fast ours is as the fastest other, whatever the precision."""
    found = pair(work, is_compared)
    return None if found is None else results.ratio(found[1]["rounds_ms"], found[0]["rounds_ms"])


def pairs(works: Sequence[Mapping[str, Any]], takes: Takes) -> str:
    """A line for each work: ours, and the fastest other, of those that ``takes`` is true for."""
    lines = ["| | ours | | fastest other | | ours is |", "|---|--:|---|--:|---|--:|"]
    for work in works:
        found = pair(work, takes)
        if found is not None:
            ours, other = found
            cells = [report.number(ours["ms"]), ours["precision"], report.number(other["ms"]), other["name"]]
            cells.append(f"{results.ratio(other['rounds_ms'], ours['rounds_ms']):.2f} ×")
            lines.append(f"| {work['work']['name']}, {work['unit']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(works: Sequence[Mapping[str, Any]]) -> str:
    """The works of a row side by side, a program a line."""
    names = list(dict.fromkeys(one["name"] for work in works for one in work["results"]))
    second = "of the bound"
    if works[0]["work"]["row"] == SERVING:
        second = "first token, ms"
    heads = [f"{work['work']['name']}, {work['unit']} | {second} | ours is" for work in works]
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
    second = report.number(one["first_p99"]) if "first_p99" in one else report.line(one)[3]
    return " | ".join((time, second, report.faster(one)))


def how(told: Mapping[str, Any]) -> Iterator[str]:
    """The method and the machines."""
    yield "## How it is measured"
    yield (
        "Each program runs in its own process, loads once, does the work once uncounted, and then once in "
        "each round, in turns; the others sleep meanwhile (a model that is opened is loaded each time). Works "
        "under half a second are repeated within a turn. Times are medians over the rounds. Ratios and "
        "shares are computed within each round, against the other programs and the machine's ceilings of the "
        "same seconds, and their median is shown. The bound is the slower of reading and computing, at the "
        "ceilings of the same round. Weights are random, from one seed, with blocks that affect the output."
    )
    if ANSWERING in kinds(told):
        yield from of_answers()
    if SERVING in report.rows(told["works"]):
        yield (
            "A server runs in its own process, clients on the same cores, in a closed loop: each asks again when its "
            "answer is complete. A time is that of a token of all clients together; *first token* is the 99th "
            "percentile from the request to the first token. Answers are not compared."
        )
    if LOADING in report.rows(told["works"]):
        yield (
            "A model is opened from files that the system has read before: none waits for a disk. Under int8 and int4 "
            "ours and CTranslate2 round the weights while they open them; in the files of OpenVINO and llama.cpp they "
            "are rounded."
        )
    if TRAINING in kinds(told):
        yield from of_steps()
    for number, run in enumerate(told["runs"]):
        yield from of_run(run, [work for work in told["works"] if work["run"] == number])


def of_run(run: Mapping[str, Any], works: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A run: its day, works, machine, versions and ceilings."""
    settings, machine = run["settings"], run["machine"]
    waiting = "".join(f" {name}={value}." for name, value in machine["waiting"].items())
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    commit = f" (commit {machine['commit']})" if machine.get("commit") else ""
    yield (
        f"{run['date']}{commit}, {', '.join(report.rows(works))}: {processor(run)}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}, device {settings['device']}; "
        f"rounds: {settings['rounds']}.{waiting} {versions}."
    )
    rows = [
        f"| {name} | {each['median']:.1f} | {each['best']:.1f} | {report.unit(name)} |"
        for name, each in run["ceilings"].items()
    ]
    yield "\n".join(["| this machine | median | best | |", "|---|--:|--:|---|", *rows])


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
        "Converting; reading and writing text; memory. Sampling, and rows that end at different "
        "times. `transformers` compiled, whose first call takes over a minute. Other "
        "machines: the ratios hold for this one."
    )
    yield general
    yield "\n".join(f"- {name}: {why}" for name, why in reasons.items())


if __name__ == "__main__":
    docs, *files = map(Path, sys.argv[1:])
    for result in files:
        add(results.read(result), docs)
    print("\n".join(map(str, write(docs))))
