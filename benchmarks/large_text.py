"""The memory of training on a text that is larger than it: anonymous memory, which no file stands behind.

    python benchmarks/large_text.py input.txt                     # 5 GB, 200 steps
    python benchmarks/large_text.py input.txt --gigabytes 0.5     # a first look

input.txt gives the words: Tiny Shakespeare, data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, as it is or
gzipped. The made text and its tokens lie in a temporary folder meanwhile (``--folder``: in that one), which needs twice
the size of the text. Linux alone tells what is asked for (RssAnon in ``/proc/PID/status``, read ten times a second).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

TRAIN = "train text-generation --preset gpt-micro --tokenizer.kind bpe --tokenizer.size 4000"
TRAIN += " --training.evaluate-every 100 --training.save-every 50"
PAUSE = 0.1  # seconds between two looks


def make(words: Sequence[str], to: Path, size: float) -> int:
    """Write lines of 5 to 17 words drawn by their frequency, every 33rd the last of a document; the bytes of all."""
    random, every = np.random.default_rng(0), np.array(words, dtype=object)
    written = 0
    with to.open("w", encoding="utf-8") as file:
        while written < size:
            drawn = every[random.integers(0, len(every), 1_000_000)].tolist()
            ends = np.cumsum(random.integers(5, 18, len(drawn) // 17)).tolist()
            lines = [" ".join(drawn[first:last]) for first, last in zip([0, *ends], ends, strict=False)]
            lines = [line + "\n" * (random.random() < 0.03) for line in lines]
            text = "\n".join(lines) + "\n"
            written += file.write(text)
    return to.stat().st_size


def anonymous(process: int) -> int:
    """KiB of a process that no file stands behind; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def run(text: Path, folder: Path, steps: int) -> dict[str, float]:
    """Train on ``text`` and evaluate: the most memory there was, and how long it took."""
    command = [sys.executable, "-m", "heedful", *TRAIN.split(), "--max-steps", str(steps)]
    command += ["--train", str(text), "--out", str(folder / "run")]
    began, most = time.monotonic(), 0
    with subprocess.Popen(command, env={**os.environ, "HEEDFUL_CACHE": str(folder / "tokens")}) as process:
        while process.poll() is None:
            most = max(most, anonymous(process.pid))
            time.sleep(PAUSE)
    if process.returncode:
        sys.exit(process.returncode)
    return {"anonymous_kib": most, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(prog="benchmarks/large_text.py", description="Memory of training on a large text.")
    parser.add_argument("words", type=Path, help="a text whose words are drawn")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="10^9 bytes of text to make; 5")
    parser.add_argument("--steps", type=int, default=200, help="of training; 200")
    parser.add_argument("--folder", type=Path, help="where text, tokens and run lie meanwhile")
    asked = parser.parse_args()
    opened = gzip.open if asked.words.suffix == ".gz" else open
    with opened(asked.words, "rt", encoding="utf-8") as file:
        words = file.read().split()
    with TemporaryDirectory(dir=asked.folder) as place:
        folder = Path(place)
        size = make(words, folder / "text.txt", 1e9 * asked.gigabytes)
        print(json.dumps({"bytes": size, **run(folder / "text.txt", folder, asked.steps)}))


if __name__ == "__main__":
    main()
