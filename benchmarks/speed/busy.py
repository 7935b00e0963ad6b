"""Keeps the cores busy: multiplies matrices in a loop on OMP_NUM_THREADS threads, until it or its parent ends.

It prints one line when it has begun. ``rounds`` starts and ends it.
"""

from __future__ import annotations

import os

import torch

SIDE = 1024


def main() -> None:
    """Multiply until the process that started this one is gone."""
    parent, matrix = os.getppid(), torch.randn(SIDE, SIDE)
    matrix @ matrix
    print("busy", flush=True)
    while os.getppid() == parent:
        matrix @ matrix


if __name__ == "__main__":
    main()
