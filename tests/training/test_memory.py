"""A batch that does not fit is learned from in parts; where it cannot be cut, the batch told instead works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from heedful import cli
from heedful.settings import TrainingSettings
from heedful.training.memory import smaller_batch
from tolerances import approx


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (TrainingSettings(batch_tokens=4097), "--training.batch-tokens=2048 --training.accumulate=2 --overwrite: "),
        (TrainingSettings(batch_size=32, accumulate=3), "--training.batch-size=16 --training.accumulate=6 --overwrite"),
        (
            TrainingSettings(batch_size=32, batch_tokens=100, accumulate=1),
            "--training.batch-tokens=50 --training.batch-size=16 --training.accumulate=2 --overwrite: as many",
        ),
        (TrainingSettings(batch_size=1), "a batch has one example already"),
        (TrainingSettings(batch_size=1, batch_tokens=512), "a batch has one example already"),
    ],
)
def test_half_of_a_batch_twice_as_often(training: TrainingSettings, told: str) -> None:
    assert told in smaller_batch(training)


SMALL = ("--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--training.warmup=0")
ROOM = 8  # rows


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device with room for eight rows while gradients are wanted; the batches that came, of one after the other."""
    seen: list[int] = []
    forward = nn.Embedding.forward

    def held(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(len(ids))
        if torch.is_grad_enabled() and len(ids) > ROOM:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which more"
            )
        return forward(self, ids)

    monkeypatch.setattr(nn.Embedding, "forward", held)
    return seen


def classified(folder: Path, out: str, *options: str) -> list[str]:
    data = folder / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(40)), encoding="utf-8")
    fixed = ["--preset=bert-tiny", *SMALL, "--training.log-every=1", "--training.schedule=constant"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(folder / out), *fixed]
    return [*run, "--training.batch-size=20", "--training.evaluate-every=100", *options]


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


def test_a_batch_that_does_not_fit_is_learned_from_in_parts(
    tmp_path: Path, crowded: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--max-steps=4", "--model.dropout=0", "--data.valid-fraction=0.05")
    assert cli.main(classified(tmp_path, "parts", *options)) == 0
    told = capsys.readouterr()
    note = "from step 1 on each batch is split into 4 parts, since larger parts do not fit the memory"
    assert note in told.out + told.err
    assert crowded[:2] == [20, 10]
    assert max(crowded[2:]) == 5  # once for all: later steps do not try again
    monkeypatch.undo()
    assert cli.main(classified(tmp_path, "whole", *options)) == 0
    assert losses(tmp_path / "parts") == approx(losses(tmp_path / "whole"), "gradient")


@pytest.mark.usefixtures("crowded")
def test_a_run_in_parts_is_taken_up_to_the_bit(tmp_path: Path) -> None:
    """With dropout, whose numbers depend on how batches are cut."""
    assert cli.main(classified(tmp_path, "whole", "--max-steps=4")) == 0
    assert cli.main(classified(tmp_path, "broken", "--max-steps=2")) == 0
    assert cli.main(classified(tmp_path, "broken", "--max-steps=4", "--resume")) == 0
    one, other = ((tmp_path / name / "last/model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert one == other


def test_one_row_that_does_not_fit_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr(nn.Embedding, "forward", never)
    assert cli.main(classified(tmp_path, "out", "--max-steps=4")) == 2
    assert "a batch does not fit the device's memory (CUDA out of memory." in capsys.readouterr().err.splitlines()[-1]


LIMITED = """
import resource, sys, torch
from torch import nn
from heedful.training import Limits, Loop, Objective
from heedful.training.schedule import constant

class Given:
    epochs = 0.5
    def __next__(self): return [{"x": torch.arange(16.0)[:, None]}]
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

def objective(model, batch):  # 32 MB a row, and more behind
    return (model(batch["x"]).expand(-1, 2**23) * 1.0).mean(1).square().sum()

def learned():
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
    counted = Objective(loss=objective, count=lambda batch: len(batch["x"]))
    loop = Loop(model=model, objective=counted, loader=Given(),
                optimiser=torch.optim.SGD(model.parameters(), lr=1e-3), schedule=constant(), limits=Limits(max_steps=2))
    loop.fit()
    return loop.state()["numbers"]["parts"], model.weight.item()

torch.set_num_threads(1)
whole, plain = learned()
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
parts, limited = learned()
print(whole, parts, plain, limited)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a process' memory is limited as Linux does it")
def test_a_process_that_may_not_have_more_goes_on_in_parts() -> None:
    """Allocations fail in earnest."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    whole, parts, plain, limited = map(float, done.stdout.split())
    assert whole == 1
    assert parts in (2, 4, 8)
    assert limited == pytest.approx(plain, rel=1e-5)


def test_a_loss_of_a_whole_batch_ends_with_settings_that_work(
    tmp_path: Path, crowded: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"day {n}\tnight {n}\n" for n in range(60)), encoding="utf-8")
    run = ["train", "feature-extraction", "--train", str(data), "--out", str(tmp_path / "out"), "--preset=bert-tiny"]
    run += [*SMALL, "--max-steps=3"]
    assert cli.main([*run, "--training.batch-size=16"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("heedful: a batch does not fit the device's memory (CUDA out of memory. Tried to allocate")
    told = re.search(r"take (--.*? --overwrite):", error)
    assert told is not None
    assert max(crowded) == 16
    assert cli.main([*run, *told[1].split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["training"]["batch_size"] == 8
