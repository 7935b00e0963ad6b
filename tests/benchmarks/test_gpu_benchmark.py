"""The benchmark for a GPU runs through on a CPU, resumes where it was killed, and goes on after a row that failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import heedful  # noqa: E402
from benchmarks.gpu import __main__ as program  # noqa: E402
from benchmarks.gpu import nanogpt, rows  # noqa: E402
from heedful import presets  # noqa: E402
from heedful.config import DropoutRates  # noqa: E402
from tolerances import assert_close  # noqa: E402

OURS = ("ceiling", "decode 124M x 1, ours", "translation, 4 beams x 64, ours")  # none of which is compiled


def command(out: Path, *names: str, more: tuple[str, ...] = ()) -> list[str]:
    chosen = [f"--rows={name}" for name in names]
    return [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--short", f"--out={out}", *chosen, *more]


def written(out: Path) -> dict[str, Any]:
    return json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}


def test_a_killed_benchmark_goes_on_without_repeating_a_row(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    killed = subprocess.Popen(command(out, *OURS), cwd=ROOT, stdout=subprocess.DEVNULL)
    while len(before := written(out)) < 3:
        assert killed.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = written(out)
    wanted = {name for name in rows.ROWS if name.startswith(OURS)}
    assert before.keys() < wanted
    subprocess.run(command(out, *OURS), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = written(out)
    assert after.keys() == wanted
    assert {name: after[name] for name in before} == before  # with their times of measurement
    again = subprocess.run(command(out, *OURS), cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stdout == f"written: {out}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("raise ImportError('no such\\n  package')", "ImportError: no such package"),
        ("import os; os._exit(3)", "the process ended: 3"),
    ],
)
def test_a_row_that_fails_is_a_line_and_the_next_goes_on(tmp_path: Path, failure: str, told: str) -> None:
    (tmp_path / "transformers.py").write_text(failure, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    out, names = tmp_path / "gpu.json", ("ceiling, copy", "BERT-base 64 x 16-512, t", "ViT-B/16 x 128, ours")
    done = subprocess.run(
        command(out, *names), cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 1
    found = written(out)
    assert found["BERT-base 64 x 16-512, transformers"]["error"] == told
    assert found["ViT-B/16 x 128, ours"]["images_per_second"] > 0
    assert f"failed: BERT-base 64 x 16-512, transformers: {told}" in done.stderr


class Slow:
    """A worker whose rows never end."""

    def measure(self, name: str, timeout: float) -> dict[str, Any]:
        raise program.OutOfTime

    def end(self) -> None:
        pass


def test_a_row_cut_off_by_its_part_is_left_and_one_over_its_limit_is_recorded(tmp_path: Path) -> None:
    results = program.Results(tmp_path / "gpu.json", {"device": "cpu", "short": True})
    row = next(iter(rows.ROWS.values()))
    assert program.measured(row, Slow(), results, row.limit / 2) is None
    assert written(tmp_path / "gpu.json") == {}
    assert program.measured(row, Slow(), results, row.limit) is None
    assert written(tmp_path / "gpu.json")[row.name]["error"] == f"not ended within {row.limit:.0f} s"


def test_only_failed_rows_are_measured_again(tmp_path: Path) -> None:
    out, (first, second) = tmp_path / "gpu.json", [row for row in rows.ROWS.values() if row.part == 0][2:]
    results = program.Results(out, {"device": "cpu", "short": True})
    results.add(first, {"tflops": 0.125}, 1.0)
    results.add(second, {"error": "ValueError: no"}, 1.0)
    subprocess.run(
        command(out, first.name, second.name, more=("--retry",)), cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    assert written(out)[first.name]["tflops"] == 0.125
    assert written(out)[second.name]["gb_per_second"] > 0


def test_rows_of_other_settings_or_another_machine_are_not_mixed(tmp_path: Path) -> None:
    out, settings = tmp_path / "gpu.json", {"device": "cpu", "short": True}
    results = program.Results(out, settings)
    results.describe({"device": "cpu", "torch": "2.11"})
    results.add(next(iter(rows.ROWS.values())), {"tflops": 1.0}, 1.0)
    with pytest.raises(SystemExit, match="rows of other settings"):
        program.Results(out, {**settings, "short": False})
    with pytest.raises(SystemExit, match=r"was measured on 2\.11, not 2\.13"):
        program.Results(out, settings).describe({"device": "cpu", "torch": "2.13"})


def test_parts_fit_ten_minutes() -> None:
    assert program.PART_MINUTES < 10
    assert {row.part for row in rows.ROWS.values()} == {0, 1, 2, 3}
    assert max(row.limit for row in rows.ROWS.values()) < 60 * program.PART_MINUTES


def test_the_nanogpt_to_compare_with_is_a_gpt() -> None:
    """It has the loss of ours with the same weights and no biases."""
    config = presets.gpt2(32, 2, 4, vocab=64, length=16, activation="gelu")
    stack = config.decoder
    own = heedful.create(config, seed=0).eval()
    assert stack.dropout != DropoutRates()
    other = nanogpt.GPT(64, 16, 32, 2, 4).eval()
    pairs = [
        (other.token, own.embedding.token),
        (other.position, own.decoder.position.table),
        (other.norm, own.decoder.norm),
    ]
    for block, ours in zip(other.blocks, own.decoder.block, strict=True):
        block.qkv.weight.data = torch.cat([getattr(ours.attention, name).weight for name in ("query", "key", "value")])
        pairs += [
            (block.out, ours.attention.out),
            (block.up, ours.feed_forward.up),
            (block.down, ours.feed_forward.down),
        ]
        pairs += [
            (block.attention_norm, ours.attention_residual.before),
            (block.mlp_norm, ours.feed_forward_residual.before),
        ]
    for module, ours in pairs:
        module.weight.data.copy_(ours.weight)
    ids = torch.randint(0, 64, (3, 17))
    expected = torch.nn.functional.cross_entropy(own(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert_close(other(ids[:, :-1], ids[:, 1:]), expected)


@pytest.mark.full
def test_every_row_is_filled(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = subprocess.run(command(out), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = written(out)
    assert found.keys() == rows.ROWS.keys()
    for name, entry in found.items():
        rates = [value for key, value in entry.items() if key.endswith(("_per_second", "tflops"))]
        assert rates, name
        assert min(rates) > 0, name
        assert "compiled" not in name or "characters" in name or entry.get("graphs", 1) == 1, name
