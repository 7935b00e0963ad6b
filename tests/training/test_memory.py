"""What a person is told whose batch does not fit; the batch told instead is tried on a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from heedful import cli
from heedful.settings import TrainingSettings
from heedful.training.memory import smaller


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (TrainingSettings(batch_tokens=4097), "--training.batch-tokens=2048 --training.accumulate=2 --overwrite: "),
        (TrainingSettings(batch_size=32, accumulate=3), "--training.batch-size=16 --training.accumulate=6 --overwrite"),
        (
            TrainingSettings(batch_size=32, batch_tokens=100, accumulate=1),
            "--training.batch-tokens=50 --training.batch-size=16 --training.accumulate=2 --overwrite: steps of as many",
        ),
        (TrainingSettings(batch_size=1), "a batch is one example already"),
        (TrainingSettings(batch_size=1, batch_tokens=512), "a batch is one example already"),
    ],
)
def test_half_of_a_batch_twice_as_often(training: TrainingSettings, told: str) -> None:
    assert told in smaller(training)


def test_a_run_out_of_memory_ends_with_settings_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device with room for eight rows."""
    forward = nn.Embedding.forward

    def crowded(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and len(ids) > 8:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which more"
            )
        return forward(self, ids)

    monkeypatch.setattr(nn.Embedding, "forward", crowded)
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(40)), encoding="utf-8")
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--max-steps=3"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *small]
    assert cli.main([*run, "--training.batch-size=16"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("heedful: a batch does not fit the device's memory (CUDA out of memory. Tried to allocate")
    told = re.search(r"take (--.*? --overwrite):", error)
    assert told is not None
    assert cli.main([*run, *told[1].split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["training"]["batch_size"] == 8
