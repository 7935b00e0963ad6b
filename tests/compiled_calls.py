"""What compiled code computes during a test."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.kernels import compiled_step, few_rows, greedy_steps


def rows_of_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of rows of each compiled step of a stack, in one call or in several."""
    rows: list[int] = []

    def run(operations: Any, call: Any, steps: int = 1) -> int:
        done = few_rows.run(operations, call, steps)
        rows.extend([call.rows] * done)
        return done

    for owner in (compiled_step, greedy_steps):
        monkeypatch.setattr(owner, "run", run)
    return rows
