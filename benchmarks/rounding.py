"""The cost of rounding weights: the perplexity of a text, decoded a token at a time, in each precision.

    python benchmarks/rounding.py MODEL [TEXT] [--tokens 8000]

Without a text the model writes its own, in float32, by sampling. Four rows of 256 tokens are read together; each step
uses the kernels of decoding, PyTorch's or the compiled ones. Two minutes for stories15M on two cores.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import heedful
from heedful.cache import Cache
from heedful.generation.decoder_state import learned_positions
from heedful.kernels.compiled_step import stored_dtype
from heedful.text import Tokenizer

ROWS, LENGTH = 4, 256


def read_rows(model: Any, folder: str, text: str | None, tokens: int) -> Tensor:
    """Rows (N, LENGTH) of ids, shorter if the model has fewer positions, each with the start token if it has one."""
    length = min(LENGTH, learned_positions(model.config.decoder) or LENGTH)
    count = max(ROWS, tokens // length // ROWS * ROWS)
    special = model.config.special
    start = next(number for number in (special.start, *special.end, 0) if number is not None)
    if text is None:
        ids = torch.full((count, 1), start)
        options: dict[str, Any] = {"max_new_tokens": length - 1, "min_new_tokens": length - 1}
        return model.generate(ids, do_sample=True, seed=0, **options)
    ids = torch.tensor(Tokenizer.load(folder).encode([Path(text).read_text(encoding="utf-8")])[0])
    ids = ids[: count * (length - 1)].view(-1, length - 1)
    return torch.cat((ids.new_full((len(ids), 1), start), ids), 1)


@torch.inference_mode()
def perplexity(model: Any, ids: Tensor) -> float:
    """exp of the mean of −log p of all tokens but the first two of each row, each after the step that read its past."""
    total, length = 0.0, ids.size(1)
    for rows in ids.split(ROWS):
        stored = stored_dtype(model.decoder, ROWS)  # as generation stores keys and values
        cache = Cache(model.config.decoder.depth, window=model.config.decoder.window, dtype=stored)
        model(rows[:, :1], cache=cache)  # a prompt of one token
        for step in range(1, length - 1):
            logits = model(rows[:, step : step + 1], cache=cache)[:, 0].double()
            total -= logits.log_softmax(1).gather(1, rows[:, step + 1 : step + 2]).sum().item()
    return math.exp(total / (len(ids) * (length - 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--tokens", type=int, default=8000)
    asked = parser.parse_args()
    ids = read_rows(heedful.from_pretrained(asked.model), asked.model, asked.text, asked.tokens)
    print(f"{ids.numel():,} tokens\nprecision   PyTorch   compiled")
    for dtype in ("float32", "bfloat16", "float16", "int8", "int4"):
        found = [
            perplexity(heedful.optimize(heedful.from_pretrained(asked.model), dtype, compiled_decoding=compiled), ids)
            for compiled in (False, True)
        ]
        print(f"{dtype:<9}" + "".join(f"{number:11.4f}" for number in found), flush=True)


if __name__ == "__main__":
    main()
