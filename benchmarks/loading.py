"""Opening a model beside the quickest reading there is: time, and memory of its own.

    OMP_NUM_THREADS=1 python benchmarks/loading.py [folder]

The folder is where the files are made (about 1.5 GB; a temporary one where none is given): GPT-2 of 124 M parameters
with random weights, as one file, in shards, in float16. Linux; half a minute. The readings alternate over a warm page
cache, five times; the medians of the processor's time count, which other programs disturb less than the clock's. Expect
`from_pretrained` at 2.1 to 2.3 times `load_file` with the sum of every tensor, 0.9 to 1.0 times with
`check_finite=False`, on two cores of an AMD EPYC with torch 2.13 (49 ms, 20 ms and 22 ms: all map the file, looking for
NaN reads it once, and making 300 modules takes 15 ms), where `open(file, "rb").read()` takes 255 ms;
and in anonymous memory 1.01 times the weights' size where their type changes, 0.01 where it stays.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

import heedful

ROUNDS = 5
CASES = (("one file", "whole", None), ("shards", "shards", None), ("float16 → float32", "half", "float32"))
CASES = (*CASES, ("float32 → bfloat16", "whole", "bfloat16"))

MEASURE = """
import sys, threading, torch, heedful, heedful.models

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

folder, dtype = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
model = heedful.from_pretrained(folder, dtype=dtype)
done.set()
watcher.join()
size = sum(p.nbytes for p in model.parameters())
print((anonymous() - before) / size, (max(peak, anonymous()) - before) / size)
"""


def main(place: str) -> None:
    folder = Path(place)
    make(folder)

    def read() -> list[torch.Tensor]:
        return [tensor.sum() for file in weights(folder / "whole") for tensor in load_file(file).values()]

    def touched() -> list[torch.Tensor]:
        return [parameter.sum() for parameter in heedful.from_pretrained(folder / "whole").parameters()]

    def unread() -> object:
        return heedful.from_pretrained(folder / "whole", check_finite=False)

    times = alternated(read, lambda: heedful.from_pretrained(folder / "whole"), touched, unread)
    print(f"load_file and the sum of every tensor   {1000 * times[0]:6.1f} ms")
    print(f"from_pretrained                         {1000 * times[1]:6.1f} ms, ratio {times[1] / times[0]:.2f}")
    print(f"from_pretrained and the sums            {1000 * times[2]:6.1f} ms, ratio {times[2] / times[0]:.2f}")
    print(f"from_pretrained, check_finite=False     {1000 * times[3]:6.1f} ms, ratio {times[3] / times[0]:.2f}")
    print("anonymous memory above the empty process, over the weights' size: after, at most")
    for name, kind, dtype in CASES:
        command = [sys.executable, "-c", MEASURE, str(folder / kind), *([dtype] if dtype else [])]
        after, most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        print(f"  {name:<20} {float(after):.2f}  {float(most):.2f}")


def make(folder: Path) -> None:
    model = heedful.create("gpt2", seed=0)
    model.save_pretrained(folder / "whole")
    model.save_pretrained(folder / "shards", max_shard_size="100MB")
    model.save_pretrained(folder / "half")
    for file in weights(folder / "half"):
        save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def alternated(*works: Callable[[], object]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS + 1):
        for work, taken in zip(works, seconds, strict=True):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    return [median(taken[1:]) for taken in seconds]  # the first fills the cache


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as made:
            main(made)
