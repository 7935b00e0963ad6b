"""What all tests share: the same random numbers, one thread, and the data that lies beside the project."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: the suite's own processes make the machine busy

import torch

torch.set_num_threads(1)  # on tensors this small two wait for each other: tests take several times as long

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """The path of a file or folder under ../shared/data; the test is skipped, saying so, where it is absent."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"../shared/data/{name} is absent")
        return DATA / name

    return find
