"""The command: see ``benchmarks.speed``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import IO, Any

from benchmarks.speed import machine, page, report, results
from benchmarks.speed.rounds import Plan, Row, Times, Worker, Workers
from benchmarks.speed.weights import place
from benchmarks.speed.works import COMPETITORS, ROWS, Competitor, Work, data, works

ROOT = Path(__file__).resolve().parents[2]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="Ours beside others, in turns.")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {','.join(ROWS)}; all without it")
    parser.add_argument("--rounds", type=int, help="how often each program does each work: 5, in the short form 1")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="of every program: the physical cores")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (programs that cannot are left out)")
    parser.add_argument("--nanogpt", type=Path, help="a folder with model.py of github.com/karpathy/nanoGPT")
    parser.add_argument("--short", action="store_true", help="tiny models: to see that it works, not how fast")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="weights are kept here: 7 GB")
    parser.add_argument("--out", type=Path, help="the JSON to write: results.json in that folder")
    parser.add_argument("--docs", type=Path, help="the page to write, with its JSON and its picture beside it")
    asked = parser.parse_args(given)
    unknown = [row for row in asked.rows.split(",") if row not in ROWS]
    if unknown:
        parser.error(f"--rows: there is no {unknown[0]!r}; choose of {','.join(ROWS)}")
    if (asked.rounds is not None and asked.rounds < 1) or asked.threads < 1:
        parser.error("--rounds and --threads are whole numbers from 1")
    return asked


def weights(plan: Plan, rows: Sequence[str], log: IO[str]) -> dict[str, str]:
    """Make what is missing, in a process of its own: ``model/form`` that could not be made, and why."""
    missing = []
    for row in rows:
        model = works(row, plan.short)[0].model
        for form in dict.fromkeys(("folder", *(each.form for each in COMPETITORS[row]))):
            if not place(plan.folder, model, form).exists():
                missing.append(f"{model}/{form}")
    missing = list(dict.fromkeys(missing))  # rows share models
    if not missing:
        return {}
    command = [sys.executable, "-m", "benchmarks.speed.weights", str(plan.folder), *missing]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, env=plan.environment(), check=True)
    failed: dict[str, str] = json.loads(told.stdout.splitlines()[-1])
    return failed


def judged(plan: Plan, work: Work, times: Times, judge: Worker) -> dict[Competitor, float]:
    """The judge's number of each answer."""
    answers = {each: file for each, file in times.answers.items() if each.judged}
    folder = str(place(plan.folder, work.model, "folder"))
    told = judge.ask(folder=folder, work=data(work), files=[*answers.values()])
    if "failed" in told:
        raise RuntimeError(f"the judge failed: {told['failed']}; see {plan.folder / 'log.txt'}")
    return dict(zip(answers, told["apart"], strict=True))


def run(plan: Plan, rows: Sequence[str], out: Path) -> dict[str, Any]:
    """Every row, printed as it comes, and kept in ``out`` so that what ends early is not lost; then all figures."""
    begun = time.perf_counter()
    own: dict[str, Any] = {"date": date.today().isoformat(), "machine": machine.described()}
    own["settings"] = {"rounds": plan.rounds, "threads": plan.threads, "device": plan.device, "short": plan.short}
    told: dict[str, Any] = {"format": results.FORMAT, "runs": [own], "works": [], "left_out": {}}
    speeds: list[dict[str, float]] = []
    plan.folder.mkdir(parents=True, exist_ok=True)
    with open(plan.folder / "log.txt", "w", encoding="utf-8") as log, Workers(plan, log) as workers:
        unmade = weights(plan, rows, log)
        for name in rows:
            asked = works(name, plan.short)
            failed = {each: unmade.get(f"{asked[0].model}/{each.form}") for each in COMPETITORS[name]}
            row = Row(name, asked[0].model, [each for each, why in failed.items() if why is None], plan, workers)
            row.left_out |= {each.name: why for each, why in failed.items() if why is not None}
            for work in asked:
                times = row.measure(work)
                told["works"].append(results.figures(work, times, judged(plan, work, times, workers.judge)))
                speeds += times.ceilings
                print(report.table(told["works"][-1]), flush=True)
            if not plan.short:
                workers.close()  # a row's models need not lie in memory beside the next one's
            told["left_out"][name] = row.left_out
            print(report.left_out(row.left_out), flush=True)
            own |= {"ceilings": results.ceilings(speeds), "minutes": (time.perf_counter() - begun) / 60}
            results.write(told, out)
    return results.read(out)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a program gave another answer, so that its time says nothing."""
    asked = arguments(given)
    plan = Plan(
        folder=asked.folder.resolve(),
        rounds=asked.rounds or (1 if asked.short else 5),
        short=asked.short,
        threads=asked.threads,
        device=asked.device,
        nanogpt=None if asked.nanogpt is None else str(asked.nanogpt.resolve()),
    )
    out = asked.out or plan.folder / "results.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    told = run(plan, asked.rows.split(","), out)
    print(report.ceilings(told["runs"][0]["ceilings"]))
    print(f"written: {out}")
    if asked.docs is not None:
        print("written: " + ", ".join(map(str, page.add(told, asked.docs))))
    wrong = results.disagreeing(told)
    for line in wrong:
        print(f"other answers, so the time says nothing: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
