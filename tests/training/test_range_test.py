"""Learning rates tried on problems whose largest rate is known, and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heedful import cli
from heedful.errors import HeedfulError
from heedful.training import GradientLimits, Limits, Loop, Objective
from heedful.training import range_test as range_test_module
from heedful.training.range_test import DIVERGED, HIGHEST, LOWEST, STEPS, range_test
from heedful.training.schedule import cosine
from tolerances import approx


class Same:
    """One batch, for ever."""

    epochs = 0.5

    def __next__(self) -> list[dict[str, torch.Tensor]]:
        return [{"x": torch.ones(1)}]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def bowl(curvature: float, start: float = 1.0, **options: Any) -> Loop:
    """½ λ θ² under plain descent, which falls apart at rates above 2 / λ."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, start)
    given = {"limits": Limits(max_steps=5), "schedule": cosine(2), **options}
    return Loop(
        model=model,
        objective=Objective(
            loss=lambda model, batch: curvature / 2 * model(batch["x"]).square().sum() + 1, count=lambda batch: 1
        ),
        gradient_limits=GradientLimits(clip=None),
        loader=Same(),
        optimiser=torch.optim.SGD(model.parameters(), lr=0.123),
        **given,
    )


@pytest.mark.parametrize("curvature", [100.0, 2e3, 2e4])
def test_the_lowest_loss_lies_before_the_rate_at_which_it_falls_apart(curvature: float) -> None:
    found = range_test(bowl(curvature))
    assert 0.3 / curvature < found.lowest < 10 / curvature  # it takes some steps above 2 / λ to climb out again
    assert 0.03 / curvature < found.steepest < found.lowest
    assert found.suggested == min(found.steepest, found.lowest / 10)
    assert found.losses[-1] > DIVERGED * min(found.losses)  # it went no further than that
    assert len(found.rates) < STEPS


def test_the_rates_are_a_fixed_factor_apart() -> None:
    found = range_test(bowl(1e-2, start=100.0))
    assert len(found.rates) == STEPS
    assert (found.rates[0], found.rates[-1]) == pytest.approx((LOWEST, HIGHEST))
    logs = torch.tensor(found.rates).double().log().diff()
    assert (logs - logs.mean()).abs().max() < 1e-6


def test_the_loss_told_is_the_mean_with_those_around() -> None:
    found = range_test(bowl(20.0))
    theta, raw = 1.0, []
    for rate in found.rates:
        raw.append(10 * theta**2 + 1)
        theta -= rate * 20 * theta
    for number, loss in enumerate(found.losses):
        around = [raw[other] for other in range(len(raw)) if abs(other - number) <= 4]
        assert loss == approx(sum(around) / len(around), "gradient")


def test_nan_ends_the_test_and_the_table_is_printed() -> None:
    def overflows(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = 100 * model(batch["x"]).square().sum() + 1
        return loss / 0 if loop.optimiser.param_groups[0]["lr"] > 3e-3 else loss

    loop = bowl(200.0)
    loop.objective = replace(loop.objective, loss=overflows)
    found = range_test(loop)
    assert found.rates[-1] <= 3e-3
    lines = found.lines()
    assert len(lines) <= 17
    assert lines[-1].endswith(f"take --training.lr={found.suggested:.1e}")


def test_a_loss_that_is_not_finite_at_first_is_an_error() -> None:
    loop = bowl(200.0)
    loop.objective = replace(loop.objective, loss=lambda model, batch: model(batch["x"]).sum() / 0)
    with pytest.raises(HeedfulError, match="at step 1"):
        range_test(loop)
    with pytest.raises(HeedfulError, match="did not fall at any learning rate"):
        range_test(bowl(0.0))


DATA = "".join(f"{word} day {n}\t{word}\n" for word in ("good", "bad") for n in range(40))
SMALL = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--training.batch-size=8"]


def test_the_command_suggests_a_rate_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(range_test_module, "STEPS", 40)
    Path("data.tsv").write_text(DATA, encoding="utf-8")
    run = ["train", "text-classification", "--train", "data.tsv", *SMALL, "--lr-range-test"]
    assert cli.main([*run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "text-classification"
    assert LOWEST < found["suggested"] < found["lowest"] <= HIGHEST
    assert len(found["rates"]) == len(found["losses"])
    assert cli.main(run) == 0
    shown = capsys.readouterr()
    assert f"--training.lr={found['suggested']:.1e}" in shown.out.splitlines()[-1]
    assert shown.err.splitlines()[0].startswith("step 10 of 40  epoch 1.")
    assert [path.name for path in tmp_path.iterdir()] == ["data.tsv"]
    assert cli.main([*run, "--resume"]) == 2
    assert "--lr-range-test starts a new run" in capsys.readouterr().err
    assert cli.main([*run, "--training.report", "tensorboard"]) == 2
    assert "--lr-range-test writes no log to report; leave --training.report out" in capsys.readouterr().err
    assert cli.main([*run[:-1], "--lr-range-test=false"]) == 2
    assert "--out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data.tsv"]


def test_all_settings_are_printed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.tsv").write_text(DATA, encoding="utf-8")
    run = ["train", "text-classification", "--train", "data.tsv", *SMALL, "--max-steps=3"]
    assert cli.main([*run, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "out = " not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["data.tsv"]
    Path("mine.toml").write_text(printed, encoding="utf-8")
    assert cli.main([*run, "--out=given", "--quiet"]) == 0
    assert cli.main(["train", "--config=mine.toml", "--out=read", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    written = Path("given", "run.toml").read_text(encoding="utf-8")
    assert written.replace('out = "given"\n', "") == printed
    assert Path("read", "run.toml").read_text(encoding="utf-8") == written.replace("given", "read")
    assert cli.main([*run, "--print-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["batch_size"] == 8
    for more, message in ((["--resume"], "--print-config starts a new run"), (["--lr-range-test"], "give one of them")):
        assert cli.main([*run, "--print-config", *more]) == 2
        assert message in capsys.readouterr().err


def test_groups_of_lower_rates_keep_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    import heedful
    from heedful.training.optimisation import adamw, layer_rates

    model = heedful.create("vit-micro", seed=0)
    pixels = torch.rand(4, 1, 28, 28)
    optimiser = adamw(model, lr=1e-3, rates=layer_rates(model, 0.5))
    shares = {group["lr"] / 1e-3 for group in optimiser.param_groups}
    loop = bowl(1.0)
    loop = Loop(
        model=model,
        objective=Objective(
            loss=lambda model, batch: nn.functional.cross_entropy(model(pixels), torch.arange(4), reduction="sum"),
            count=lambda batch: 4,
        ),
        loader=Same(),
        optimiser=optimiser,
        schedule=cosine(),
        limits=Limits(max_steps=1),
    )
    seen = []
    step = optimiser.step
    monkeypatch.setattr(optimiser, "step", lambda: seen.append([g["lr"] for g in optimiser.param_groups]) or step())
    found = range_test(loop)
    assert [max(rates) for rates in seen][: len(found.rates)] == found.rates
    assert {round(rate / max(seen[3]), 6) for rate in seen[3]} == {round(share, 6) for share in shares}
