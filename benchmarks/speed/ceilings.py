"""The ceilings of this machine, measured beside the programs: memory read and copied, matrix products.

A process of its own, asked once a round. Each figure is the best of a few tries of the best way that PyTorch has: of
float32 and bfloat16 products ``F.linear`` and oneDNN with packed weights, of int8 oneDNN's quantised map.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.speed.worker import serve

TRIES = 3
MEGABYTES, SIDE = 256, 2048  # far more than any cache holds; a product large enough for any kernel
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def products(device: str, side: int) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """Precisions, and under each what makes ready a way of a product side × side by side × side, or fails to."""
    for name, dtype in TYPES.items():
        x, w = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        yield name, lambda x=x, w=w: partial(F.linear, x, w)
        if device == "cpu" and torch.backends.mkldnn.is_available():
            yield name, partial(packed, x, w)
    left, right = (torch.randint(-128, 128, (side, side), device=device, dtype=torch.int8) for _ in range(2))
    yield "int8", lambda: partial(torch._int_mm, left, right)
    if device == "cpu" and torch.backends.mkldnn.is_available():
        yield "int8", partial(quantised, right)


def packed(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], Any]:
    """oneDNN's product with a weight in its own order."""
    own = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return partial(torch.ops.mkldnn._linear_pointwise, x, own, None, "none", [], "")


def quantised(weight: torch.Tensor) -> Callable[[], Any]:
    """oneDNN's product of bytes."""
    side = len(weight)
    own, scales = torch.ops.onednn.qlinear_prepack(weight, None), torch.full((side,), 0.01)
    zeros, x = torch.zeros(side, dtype=torch.int32), torch.randint(0, 256, (side, side), dtype=torch.uint8)
    options: tuple[Any, ...] = (own, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    return partial(torch.ops.onednn.qlinear_pointwise, x, 0.01, 0, *options)


class Ceilings:
    """Tensors and calls, made once."""

    def __init__(self, device: str, short: bool) -> None:
        self.device = device
        side = 64 if short else SIDE
        numbers = torch.zeros((1 if short else MEGABYTES) * 2**18, device=device)  # float32: four bytes each
        other = torch.empty_like(numbers)
        self.ways: list[tuple[str, float, Callable[[], Any]]] = [
            ("read", numbers.nbytes, numbers.sum),
            ("copy", 2 * numbers.nbytes, lambda: other.copy_(numbers)),
        ]
        for name, ready in products(device, side):
            try:
                call = ready()
                call()
            except (RuntimeError, NotImplementedError):
                continue  # a kernel that this PyTorch or this machine has not
            self.ways.append((name, 2 * side**3, call))

    def measure(self) -> dict[str, float]:
        """Bytes or operations a second, by name: "read", "copy" and the precisions that there are."""
        found: dict[str, float] = {}
        for name, amount, call in self.ways:
            for _ in range(TRIES):
                self.settle()
                begun = time.perf_counter()
                call()
                self.settle()
                found[name] = max(found.get(name, 0.0), amount / (time.perf_counter() - begun))
        return found

    def settle(self) -> None:
        """Wait for what a GPU still has to do."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def main() -> None:
    """Answer ``{"open": "ceilings", "device": ..., "short": ...}``, then each ``{"measure": true}``."""
    made: list[Ceilings] = []

    @torch.inference_mode()
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if "open" in asked:
            made.append(Ceilings(asked["device"], asked["short"]))
            return {"opened": "ceilings"}
        return made[0].measure()

    serve(answer)


if __name__ == "__main__":
    main()
