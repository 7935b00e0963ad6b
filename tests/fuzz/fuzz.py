"""Hostile inputs by the thousand: pretrained folders, data files, command lines, environments.

    python tests/fuzz/fuzz.py                          # 3,000, 2,500, 500 and 200 cases: some 20 minutes on two cores
    python tests/fuzz/fuzz.py --short                  # as the test suite runs it: some seconds
    python tests/fuzz/fuzz.py folders --seed 3 --case 17 --show     # one case again

Each case runs in a process of its own (sandbox.py). It is right where it is accepted, or refused by a ``HeedfulError``
of one short line. It is wrong where another exception arises, it is busy for more than 10 seconds of processor time or
waits for a minute, takes more than 2 GiB, starts a process, runs code of a file, reaches for the network, or writes
outside its own output folder. A case is a function of (kind, seed, number) alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
sys.path[:0] = [str(HERE), str(HERE.parent), str(SOURCE)]
os.environ |= {
    "PYTHONPATH": str(SOURCE),
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from sandbox import GOOD, Limits, tried  # noqa: E402 (beside this file)

# kind: cases in all, and in the short form
KINDS = {"folders": (3000, 80), "data": (2500, 50), "commands": (500, 25), "environments": (200, 3)}
FAULTS = {"faults": (12, 12)}  # wrong on purpose
# libraries that the package imports when it needs them: imported once, before cases are forked
LIBRARIES = ("safetensors.torch", "tokenizers", "pyarrow.parquet", "zstandard", "PIL.Image", "jinja2.sandbox", "numpy")
LIBRARIES += ("sacrebleu", "sklearn.linear_model", "sentencepiece", "babel.dates", "rich.progress")


def imported() -> None:
    """Imports the package whole, so that a case does not pay for it."""
    import heedful

    for name in LIBRARIES:
        with suppress(ImportError):
            import_module(name)
    for module in pkgutil.walk_packages(heedful.__path__, "heedful."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    import torch

    from heedful.kernels import few_rows

    torch.set_num_threads(1)
    if few_rows.compiler() is not None:
        few_rows.library()  # or a case, which has another home folder, would start the compiler


def worker(kind: str, seed: int, numbers: list[int], limits: Limits) -> None:
    """Prints the outcome of each case, a JSON object a line."""
    imported()
    module = import_module(f"hostile_{kind}")
    with tempfile.TemporaryDirectory(prefix="heedful-fuzz-") as scratch:
        root = Path(scratch)
        _prepared(module.prepare, root / "base")
        for number in numbers:
            make = partial(module.case, Random(f"{kind} {seed} {number}"), root / "base")
            outcome = tried(make, root / str(number), limits, guarded=kind != "environments")
            print(json.dumps({"case": number, **asdict(outcome)}), flush=True)


def _prepared(prepare: Callable[[Path], object], root: Path) -> None:
    """Calls ``prepare`` in a process of its own: training a tokenizer leaves threads, which are not to be forked."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # outcomes go there, and nothing else
        try:
            prepare(root)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the right folders and files cannot be made")


def gathered(kind: str, seed: int, numbers: list[int], workers: int, limits: Limits, say: bool) -> list[dict[str, Any]]:
    """The outcomes of all, in order, from several processes."""
    found: list[dict[str, Any]] = []
    command = [sys.executable, __file__, kind, "--worker", "--seed", str(seed)]
    command += ["--busy", str(limits.busy), "--waiting", str(limits.waiting), "--memory", str(limits.memory >> 20)]

    def run(part: list[int]) -> None:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            process.stdin.write(" ".join(map(str, part)))
            process.stdin.close()
            for line in process.stdout:
                found.append(json.loads(line))
                if say:
                    print(line, end="", flush=True)

    threads = [Thread(target=run, args=(numbers[i::workers],)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda one: one["case"])


def table(kind: str, seed: int, asked: int, found: list[dict[str, Any]]) -> list[str]:
    """Report on a kind: outcomes, the slowest, the largest, and faults, equal ones together."""
    counts = Counter(one["kind"] for one in found)
    if len(found) < asked:
        counts["not run"] = asked - len(found)
    told = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    slow = max(found, key=lambda one: one["seconds"], default=None)
    large = max(found, key=lambda one: one["memory"], default=None)
    lines = [f"{kind}, seed {seed}: {len(found):,} cases: {told}"]
    if slow and large:
        lines[0] += f"; at most {slow['seconds']:.1f} s (case {slow['case']}) and "
        lines[0] += f"{large['memory'] / 2**20:,.0f} MiB (case {large['case']})"
    wrong: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        if one["kind"] not in GOOD:
            wrong.setdefault((one["kind"], one["detail"].partition(": ")[0]), []).append(one)
    for (name, _), cases in sorted(wrong.items(), key=lambda item: -len(item[1])):
        first = cases[0]
        lines.append(f"  {name} x {len(cases)}: {first['detail']}")
        lines.append(f"      {first['what']}")
        lines.append(f"      python tests/fuzz/fuzz.py {kind} --seed {seed} --case {first['case']} --show")
    return lines


def main() -> int:
    """Runs what is asked for; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="how many of each kind")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--show", action="store_true", help="print each outcome; of one case also its message")
    parser.add_argument("--short", action="store_true", help="the short form")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--busy", type=float, default=10.0, help="seconds of processor time after which a case hangs")
    parser.add_argument("--waiting", type=float, default=60.0, help="seconds of any kind after which it does")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a case may take")
    parser.add_argument(
        "--json", action="store_true", help="print each outcome as JSON when it is there, and nothing else"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    kinds = asked.kinds or list(KINDS)
    sizes = KINDS | FAULTS
    if unknown := [kind for kind in kinds if kind not in sizes]:
        parser.error(f"no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    limits = Limits(asked.busy, asked.waiting, asked.memory << 20)
    if asked.worker:
        worker(kinds[0], asked.seed, [int(number) for number in sys.stdin.read().split()], limits)
        return 0
    wrong = 0
    for kind in kinds:
        count = asked.cases or sizes[kind][asked.short]
        numbers = list(range(count)) if asked.case is None else [asked.case]
        found = gathered(kind, asked.seed, numbers, min(asked.workers, len(numbers)), limits, asked.json)
        for one in found if asked.show else []:
            print(f"{one['case']:5} {one['seconds']:6.2f} s {one['memory'] / 2**20:6.0f} MiB", end="  ")
            print(f"{one['kind']}: {one['detail']}\n      <- {one['what']}")
        if not asked.json:
            print("\n".join(table(kind, asked.seed, len(numbers), found)), flush=True)
        wrong += sum(one["kind"] not in GOOD for one in found) + len(numbers) - len(found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
