"""The log of a run, shown by others as well: what they were told is what metrics.jsonl holds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heedful import cli
from heedful.training.reporters import REPORTERS
from tolerances import approx

TINY = ("--preset=transformer-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=280")
RUN = (*TINY, "--training.log-every=2", "--training.batch-tokens=200", "--training.evaluate-every=4")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six"]
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{a} {b}\t{b} {a}\n" for a in words for b in words))
    return file


def train(data: Path, *options: str) -> int:
    return cli.main(["train", "translation", "--train", str(data), "--out", str(data.parent / "run"), *RUN, *options])


def written(run: Path) -> dict[str, list[tuple[int, float]]]:
    """By the name of a number, its steps and values."""
    told: dict[str, list[tuple[int, float]]] = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                told.setdefault(name, []).append((line["step"], value))
    return told


def test_tensorboard_has_the_log_and_drops_what_a_resumed_run_does_again(data: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for options in (["--max-steps=8"], ["--resume", "--max-steps=12"]):
        assert train(data, "--training.report=tensorboard", "--training.schedule=constant", *options) == 0
    read = EventAccumulator(str(data.parent / "run/tensorboard"))
    read.Reload()
    found = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    logged = map(json.loads, (data.parent / "run/metrics.jsonl").read_text().splitlines())
    evaluations = {line["step"] for line in logged if "samples" in line}
    assert {event.step for event in read.Tensors("samples/text_summary")} == evaluations == {4, 8, 12}
    for name, points in written(data.parent / "run").items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == approx([value for _, value in points], "layer"), name


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_each_line(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    begun: list[dict[str, Any]] = []
    told: list[tuple[int, dict[str, Any]]] = []
    ended: list[bool] = []

    def init(**options: Any) -> Any:
        begun.append(options)
        return SimpleNamespace(
            log=lambda numbers, step: told.append((step, numbers)), finish=lambda: ended.append(True)
        )

    made = SimpleNamespace(init=init, Table=SimpleNamespace, __spec__=SimpleNamespace())
    monkeypatch.setitem(__import__("sys").modules, name, made)
    assert train(data, f"--training.report={name}", "--max-steps=4") == 0
    assert ended == [True]
    assert begun[0]["project"] == "heedful"
    assert begun[0]["resume"] == "allow"
    assert begun[0]["config"]["training"]["batch_tokens"] == 200
    assert begun[0]["name"].startswith("run")
    expected = written(data.parent / "run")
    assert [(step, numbers["loss"]) for step, numbers in told if "loss" in numbers] == expected["loss"]
    (table,) = (numbers.pop("samples") for _, numbers in told if "samples" in numbers)
    samples = json.loads((data.parent / "run/metrics.jsonl").read_text().splitlines()[-1])["samples"]
    assert [dict(zip(table.columns, row, strict=True)) for row in table.data] == samples
    assert all(math.isfinite(value) for _, numbers in told for value in numbers.values())


def test_wandb_itself_takes_it_offline(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert train(data, "--training.report=wandb", "--max-steps=4") == 0
    assert list((data.parent / "run/wandb").glob("offline-run-*/run-*.wandb"))


def test_a_service_that_cannot_begin_is_one_line(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**options: Any) -> Any:
        raise RuntimeError("no key\nat all")

    monkeypatch.setitem(__import__("sys").modules, "wandb", SimpleNamespace(init=init, __spec__=SimpleNamespace()))
    assert train(data, "--training.report=wandb", "--max-steps=4") == 2
    assert "wandb cannot start (no key at all); log in with: wandb login" in capsys.readouterr().err


def test_a_missing_package_is_an_error_before_anything_is_written(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(REPORTERS["trackio"], "package", "no_such_package")
    assert train(data, "--training.report=trackio", "--max-steps=4") == 2
    assert "trackio of --training.report is not installed; pip install 'heedful[trackio]'" in capsys.readouterr().err
    assert train(data, "--training.report=tensorbord", "--max-steps=4") == 2
    assert "tensorboard" in capsys.readouterr().err
    assert not (data.parent / "run").exists()
