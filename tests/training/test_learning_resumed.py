"""All that a run draws or remembers at once: taken up in a second session it ends with the bits of a single one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heedful import cli

SMALL = ["--preset=transformer-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=2", "--tokenizer.size=280"]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]


def run(data: Path, out: Path, *more: str) -> list[str]:
    asked = ["--training.schedule=constant", "--training.warmup=3", "--training.batch-tokens=64"]
    asked += ["--model.dropout=0.1", "--model.drop-path=0.3", "--tokenizer.dropout=0.3", "--training.skip-spikes=20"]
    asked += ["--training.evaluate-every=3", "--training.log-every=1", "--training.accumulate=2"]
    return ["train", "translation", "--train", str(data), "--out", str(out), *SMALL, *asked, *more]


@pytest.mark.parametrize(
    "more",
    [
        ["--averaging.last=3", "--training.optimiser=muon", "--tuning.layer-decay=0.8"],
        ["--averaging.ema=0.9", "--tuning.layer-decay=0.8"],
    ],
    ids=["last, muon", "ema, adamw"],
)
@pytest.mark.full(keep=1)
def test_two_sessions_are_one(tmp_path: Path, more: list[str]) -> None:
    data = tmp_path / "pairs.tsv"
    lines = [" ".join(WORDS[int(digit)] for digit in f"{number:03}") for number in range(0, 600, 10)]
    data.write_text("".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in lines), encoding="utf-8")
    assert cli.main(run(data, tmp_path / "whole", *more, "--max-steps=14")) == 0
    assert cli.main(run(data, tmp_path / "halves", *more, "--max-steps=8")) == 0
    assert cli.main(run(data, tmp_path / "halves", *more, "--max-steps=14", "--resume")) == 0
    losses = [
        {line["step"]: line["loss"] for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())}
        for out in (tmp_path / "whole", tmp_path / "halves")
    ]
    assert losses[0] == losses[1]
    last = [load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "halves")]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    if "--averaging.ema=0.9" in more:  # of evaluations the first run had one more, at its end
        average = [load_file(tmp_path / name / "average" / "model.safetensors") for name in ("whole", "halves")]
        assert all(torch.equal(average[0][name], average[1][name]) for name in average[0])


def test_a_resumed_run_does_not_depend_on_where_its_file_holds_the_weights(tmp_path: Path) -> None:
    """A resumed run maps its weights from a file, at any multiple of 8 bytes; one row is then summed otherwise."""
    data = tmp_path / "days.tsv"
    data.write_text("".join(f"{word} day {n}\t{word}\n" for word in ("good", "bad") for n in range(20)))
    small = ["--preset=bert-tiny", "--tokenizer.size=60", "--model.dim=64", "--model.heads=2"]
    one_row = ["--training.batch-size=1", "--training.schedule=constant", "--training.warmup=2"]

    def train(name: str, *more: str) -> dict[str, torch.Tensor]:
        out = tmp_path / name
        assert (
            cli.main(["train", "text-classification", "--train", f"{data}", f"--out={out}", *small, *one_row, *more])
            == 0
        )
        return load_file(out / "last" / "model.safetensors")

    whole = train("whole", "--max-steps=8")
    train("halves", "--max-steps=4")
    halves = train("halves", "--max-steps=8", "--resume")
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
