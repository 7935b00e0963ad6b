"""The suite under ``python -O``: the asserts of the package vanish, those of tests and of their helpers do not.

The whole suite runs so by ``make test-optimised``; here a part of it does (marked `full`).
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# What callers must not do, refused by errors and not by asserts, and numerics with caches.
SELECTION = [
    "layers/test_attention.py",
    "adapters/test_low_rank.py",
    "test_cache.py",
    "generation/test_beam_rows.py::test_rows_that_share_keys_have_no_mask_of_their_own",
    "text/test_tokenizer.py::test_encoding_a_text_without_a_list_is_refused",
]
FAILING = """
import sys
import pytest
from heedful.layers import mask
from tolerances import assert_close

def test_python_is_optimised():
    assert sys.flags.optimize == 1

def test_the_packages_asserts_vanish():
    with pytest.raises(AttributeError):  # of None: the assert before it is gone
        mask.sliding_window(None, None)

def test_fails_by_an_assert():
    assert 1 + 1 == 3

def test_fails_by_an_assert_of_a_helper():
    assert_close({"a": 1.0}, {"a": 1.0, "b": 2.0})
"""


@pytest.mark.full
def test_a_selection_passes_and_false_asserts_fail(tmp_path: Path) -> None:
    failing = tmp_path / "test_failing.py"
    failing.write_text(FAILING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", str(TESTS.parent / "pyproject.toml")]
    command += ["-n", "0", "-p", "no:cacheprovider", *(str(TESTS / name) for name in SELECTION), str(failing)]
    environment = os.environ | {"PYTHONOPTIMIZE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    failed = re.findall(r"^FAILED \S*::(\w+)", done.stdout, re.M)
    assert failed == ["test_fails_by_an_assert", "test_fails_by_an_assert_of_a_helper"], done.stdout + done.stderr
    assert "assert (1 + 1) == 3" in done.stdout
    assert done.returncode == 1


def test_programs_of_tests_have_no_asserts() -> None:
    """Programs that tests start are not rewritten: under ``-O`` their asserts would hold always."""
    for path in {*TESTS.rglob("*.py")} - {Path(__file__)}:
        text = path.read_text(encoding="utf-8")
        is_program = 'if __name__ == "__main__":' in text
        for node in ast.walk(ast.parse(text)):
            is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
            asserts_in_string = is_string and re.search(r"(^|;)\s*assert ", node.value, re.M)
            assert not asserts_in_string, f"{path}:{node.lineno}"
            assert not (is_program and isinstance(node, ast.Assert)), f"{path}:{node.lineno}"
