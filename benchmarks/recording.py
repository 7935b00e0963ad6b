"""The cost of recording: one layer's attention in twelve, every layer's, and a whole output, beside the bare model.

    python benchmarks/recording.py [PRESET] [--batch 4] [--tokens 128] [--rounds 15]

The same model and input in turn, so that a busy machine slows all alike; medians, and ratios to the bare forward. Two
cores, half a minute with the default, bert-base with fresh weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

import heedful
from heedful.config import EncoderDecoderConfig, VisionConfig


def seconds(run: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@torch.inference_mode()
def main(preset: str, batch: int, tokens: int, rounds: int) -> None:
    """Print the table."""
    model = heedful.create(preset, seed=0).eval()
    config = model.config
    if isinstance(config, VisionConfig):
        inputs = (torch.randn(batch, config.patches.channels, *config.patches.image_size),)
    else:
        ids = torch.randint(5, 1000, (batch, tokens))
        inputs = (ids, ids) if isinstance(config, EncoderDecoderConfig) else (ids,)
    middle = model.main.depth // 2

    def recorded(name: str, layers: list[int] | None) -> Callable[[], object]:
        def run() -> object:
            with heedful.record(model, name, layers=layers) as seen:
                model(*inputs)
            return seen

        return run

    runs: dict[str, Callable[[], object]] = {
        "bare": lambda: model(*inputs),
        f"pattern of block {middle}": recorded("attention.pattern", [middle]),
        "patterns of all blocks": recorded("attention.pattern", None),
        "streams of all blocks": recorded("stream", None),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 2):
        for name, run in runs.items():
            spent = seconds(run)
            if round_ >= 2:  # the first two warm up
                times[name].append(spent)
    bare = times["bare"]
    print(f"{preset}, {' and '.join(str(tuple(x.shape)) for x in inputs)}, {torch.get_num_threads()} threads")
    for name, found in times.items():
        ratio = median(one / other for one, other in zip(found, bare, strict=True))
        print(f"{name:<24}{1000 * median(found):9.1f} ms{ratio:8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default="bert-base")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    main(given.preset, given.batch, given.tokens, given.rounds)
