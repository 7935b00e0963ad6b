"""The tests for a real GPU run through on a CPU, so that a change of the package is noticed where no GPU is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_the_tests_for_a_gpu_pass_on_a_cpu() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-rs",
        "--full",
        str(Path(__file__).with_name("test_cuda.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GPU_DRY_RUN": "1"})
    assert done.returncode == 0, done.stdout[-3000:]
    assert "no CUDA GPU; GPU_DRY_RUN" not in done.stdout
