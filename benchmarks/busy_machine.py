"""Training beside other programs, and alone: python benchmarks/busy_machine.py

Trains the same 80 steps alone and beside two busy loops, each three times in turns, and prints the seconds and their
ratio. The command line chooses how threads wait, and with --python the library; with --as-it-was threads spin, as they
do where nobody chooses.
On two quiet cores it takes about ten minutes. Exits with status 1 where the ratio of the medians is above 2.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

LOOP = "while True: pass"
RUN = "train translation --train builtin:cldr-dates/en-fr --preset transformer-tiny --model.depth 2 --model.dropout 0"
RUN += " --training.batch-tokens 1024 --training.evaluate-every 80 --max-steps 80 --json"
FROM_PYTHON = """
import sys, heedful
heedful.train("translation", "builtin:cldr-dates/en-fr", out=sys.argv[-1], preset="transformer-tiny", max_steps=80,
              max_epochs=None, model_settings={"depth": 2, "dropout": 0},
              training={"batch_tokens": 1024, "evaluate_every": 80})
"""
MOST = 2.5
SETTLED = 2.0  # seconds until the loops are seen in the load


def seconds(loops: int, spinning: bool, python: bool) -> float:
    """Seconds of the run beside so many busy loops."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    if spinning:
        environ["OMP_WAIT_POLICY"] = "ACTIVE"
    others = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        time.sleep(SETTLED)
        with TemporaryDirectory() as folder:
            began = time.monotonic()
            program = ["-c", FROM_PYTHON] if python else ["-m", "heedful", *RUN.split(), "--out"]
            command = [sys.executable, *program, str(Path(folder, "run"))]
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return time.monotonic() - began
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> int:
    """Measure, print, and return 1 where training beside loops takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="runs of each")
    parser.add_argument("--loops", type=int, default=2, help="busy loops")
    parser.add_argument("--python", action="store_true", help="train from Python, by heedful.train")
    parser.add_argument("--as-it-was", action="store_true", help="threads spin while they wait")
    options = parser.parse_args()
    alone, beside = [], []
    for _ in range(options.times):
        alone.append(seconds(0, options.as_it_was, options.python))
        beside.append(seconds(options.loops, options.as_it_was, options.python))
        print(f"alone {alone[-1]:.1f} s, beside {options.loops} loops {beside[-1]:.1f} s", flush=True)
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"{ratio:.2f} times as long; at most {MOST} are wanted")
    return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
