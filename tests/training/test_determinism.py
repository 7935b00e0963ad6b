"""The switch of the whole process: on while a run lasts, and put back; what PyTorch refuses is one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from heedful import cli
from heedful.errors import HeedfulError
from heedful.layers.linear import Linear
from heedful.training.determinism import WORKSPACE, deterministic


def state() -> tuple[bool, bool, bool, str | None]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_it_is_put_back(asked: bool, workspace: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    if workspace:
        monkeypatch.setenv(WORKSPACE, workspace)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = state()
    with deterministic(asked):
        assert state() == ((True, False, False, workspace or ":4096:8") if asked else before)
    assert state() == before
    with pytest.raises(KeyError), deterministic(asked):
        raise KeyError
    assert state() == before


def test_operations_without_equal_bits_are_errors_of_one_line() -> None:
    def draws() -> None:
        torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))

    draws()
    told = r"^put_ has no deterministic algorithm in PyTorch .*; run without --deterministic$"
    with pytest.raises(HeedfulError, match=told), deterministic(True):
        draws()
    with pytest.raises(RuntimeError, match="other"), deterministic(True):
        raise RuntimeError("other")


def test_a_gpu_that_was_used_before_is_an_error_of_one_line() -> None:
    theirs = f"this operation is not deterministic because it uses CuBLAS; set {WORKSPACE}=:4096:8 or :16:8"
    with (
        pytest.raises(HeedfulError, match=rf"needs .* {WORKSPACE}=:4096:8 before .* start Python$"),
        deterministic(True),
    ):
        raise RuntimeError(theirs)


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_is_made_so(tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = Linear.forward

    def watched(self: Linear, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(torch.are_deterministic_algorithms_enabled())
        return forward(self, x)

    monkeypatch.setattr(Linear, "forward", watched)
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(20)), encoding="utf-8")
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--max-steps=2"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *small]
    assert cli.main([*run, *(["--deterministic"] if asked else [])]) == 0
    assert set(seen) == {asked}
    assert not torch.are_deterministic_algorithms_enabled()
