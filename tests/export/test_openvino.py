"""OpenVINO's tests, in a process of their own: the tests that train after them in one process crash.

The cases, and what they compare, are in ``openvino_cases.py``.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("openvino_cases.py")


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino() -> None:
    command = [sys.executable, "-m", "pytest", "--numprocesses=0", "-p", "no:cacheprovider", "--tb=short", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1] or "100%" in done.stdout
