"""Where numbers that are none began, against faults put there on purpose; and steps that are far too long."""

from __future__ import annotations

import io
import json
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful import cli
from heedful.errors import HeedfulError
from heedful.settings import TrainingSettings
from heedful.training import Limits, Log
from heedful.training.guard import WINDOW, largest_gradient, locate_nonfinite, spike_ratio
from heedful.training.schedule import constant

IDS = torch.tensor([[5, 7, 9, 2], [4, 3, 8, 1]])
INPUTS = {
    "transformer-tiny": (IDS, IDS),
    "bert-tiny": (IDS,),
    "gpt-micro": (IDS,),
    "t5-small": (IDS, IDS),
    "vit-micro": (torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)),),
}
SMALL = {"dim": 16, "depth": 2, "heads": 2, "ff_dim": 32}


@pytest.fixture(scope="module", params=INPUTS)
def model(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[], Tensor]]:
    config = heedful.presets.get(request.param)
    sides = {side: getattr(config, side) for side in ("encoder", "decoder") if hasattr(config, side)}
    config = replace(config, **{side: replace(stack, **SMALL, head_dim=None) for side, stack in sides.items()})
    made = heedful.create(config, seed=0)
    return made, lambda: made(*INPUTS[request.param]).square().mean()


def spoiled(value: float) -> Callable[..., Tensor]:
    return lambda module, inputs, output: output * value


def test_every_module_is_found(model: tuple[nn.Module, Callable[[], Tensor]]) -> None:
    made, forward = model
    called: list[str] = []
    handles = [
        part.register_forward_hook(lambda *_, path=path: called.append(path)) for path, part in made.named_modules()
    ]
    forward()
    for handle in handles:
        handle.remove()
    assert len(called) > 15
    for number, path in enumerate(dict.fromkeys(called)):
        handle = made.get_submodule(path).register_forward_hook(spoiled((math.nan, math.inf)[number % 2]))
        assert locate_nonfinite(made, [forward]) == (path or "the model")
        handle.remove()


def test_an_error_inside_of_a_module_is_its_own(model: tuple[nn.Module, Callable[[], Tensor]]) -> None:
    """Between two of its parts: the attention itself, before its output map."""
    made, forward = model
    path, attention = next((path, part) for path, part in made.named_modules() if path.endswith("block.1.attention"))
    attend = attention.attend
    attention.attend = lambda *given: attend(*given) / 0
    assert locate_nonfinite(made, [forward]) == path
    attention.attend = attend


def test_a_weight_that_is_nan_already_is_named(model: tuple[nn.Module, Callable[[], Tensor]]) -> None:
    made, forward = model
    path, part = next((path, part) for path, part in made.named_modules() if path.endswith("block.1.feed_forward.up"))
    own = part.weight.detach().clone()
    with torch.no_grad():
        part.weight[0, 0] = math.nan
    assert locate_nonfinite(made, [forward]) == f"{path}, whose weight is not finite"
    with torch.no_grad():
        part.weight.copy_(own)


class Spoil(torch.autograd.Function):
    """The same there, nothing but NaN back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan


def test_a_gradient_is_followed_from_the_loss_backwards(model: tuple[nn.Module, Callable[[], Tensor]]) -> None:
    made, forward = model
    path, part = next((path, part) for path, part in made.named_modules() if path.endswith("block.1.attention.out"))
    handle = part.register_forward_hook(lambda module, inputs, output: Spoil.apply(output))
    made.zero_grad()
    forward().backward()
    assert locate_nonfinite(made, [forward]) == f"the gradient of {path}.weight"
    handle.remove()
    made.zero_grad()
    forward().backward()
    assert locate_nonfinite(made, [forward]) == "the sum over all gradients, each of which is finite"
    assert (
        locate_nonfinite(made, [forward, lambda: forward() * math.nan])
        == "the loss function, whose inputs from the model are finite"
    )


def test_no_hook_stays(model: tuple[nn.Module, Callable[[], Tensor]]) -> None:
    made, forward = model
    locate_nonfinite(made, [forward])
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in made.modules())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_names_the_place_and_its_weights_are_those_before(toy: Any, tmp_path: Path, precision: str) -> None:
    def breaks(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / 0 if loop.step == 6 else output

    loop = toy.loop(tmp_path, precision=precision, schedule=constant())
    loop.model.inner.register_forward_hook(breaks)
    before = toy.loop(limits=Limits(max_steps=6), schedule=constant())
    with pytest.raises(
        HeedfulError, match=r"the loss is nan at step 7, first in inner; the checkpoint of step 6 is in .*; lower the"
    ):
        loop.fit()
    if precision == "fp32":
        before.fit()
        for one, other in zip(loop.model.parameters(), before.model.parameters(), strict=True):
            assert torch.equal(one, other)


# --------------------------------------------------------------------------------------------------------------- spikes


def test_a_spike_is_measured_by_the_median_of_the_last_hundred() -> None:
    given = torch.rand(250, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    norms: list[float] = []
    for number, norm in enumerate(given):
        found = spike_ratio(norms, norm)
        last = given[max(0, number - WINDOW) : number]
        assert found == (norm / statistics.median(last) if len(last) == WINDOW else 0)
    assert norms == given[-WINDOW:]


def test_large_gradients_that_stay_become_usual() -> None:
    norms = [1.0] * WINDOW
    times = [spike_ratio(norms, 20.0) for _ in range(WINDOW)]
    assert times[0] == 20.0
    assert times[-1] == 1.0


def spiking(toy: Any, folder: Path | None, stop: int, **options: Any) -> Any:
    def learn(model: nn.Module, batch: Any) -> Tensor:
        return toy.objective(model, batch) * (50.0 if made.step in (110, 120) else 1.0)

    given = {"limits": Limits(max_steps=stop), "schedule": constant(), "evaluate": None, "patience": None}
    made = toy.loop(folder, **given, **options)
    made.objective = replace(made.objective, loss=learn)
    return made


def test_a_spike_is_left_out_counted_and_gone_on_from(toy: Any, tmp_path: Path) -> None:
    taken: list[int] = []
    log = Log(tmp_path / "metrics.jsonl", quiet=True)
    made = spiking(toy, None, 130, skip_spikes=8.0, log=log, log_every=1)
    step = made.optimiser.step
    made.optimiser.step = lambda: taken.append(made.step) or step()
    made.fit()
    assert sorted({*range(130)} - {*taken}) == [110, 120]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("skipped") == 1] == [*range(111, 121)]
    assert lines[-1]["skipped"] == 2

    spiking(toy, tmp_path, 115, skip_spikes=8.0).fit()
    rest = spiking(toy, tmp_path, 130, skip_spikes=8.0)
    rest.fit()
    for one, other in zip(made.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_parameter_with_most_of_the_gradient_is_named(toy: Any) -> None:
    said = io.StringIO()
    made = spiking(toy, None, 115, skip_spikes=8.0, log=Log(stream=said))
    made.fit()
    (line,) = [line for line in said.getvalue().splitlines() if "skipped" in line]
    found = re.fullmatch(
        r"step 111 is skipped: its gradient norm is [0-9.]+ times the usual; (.+) has (\d+) % of the squared norm", line
    )
    assert found
    assert found[1] in dict(made.model.named_parameters())
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    model[0].weight.grad, model[0].bias.grad = torch.full((2, 2), 1.0), torch.zeros(2)
    model[1].weight.grad = torch.full((1, 2), 4.0)
    assert largest_gradient(model, nn.utils.get_total_norm) == "1.weight has 89 % of the squared norm"
    model[0].bias.grad[1] = math.inf
    assert largest_gradient(model, nn.utils.get_total_norm) == "the gradient of 0.bias is not finite"


def test_without_spikes_the_run_is_the_same(toy: Any) -> None:
    plain, watched = toy.loop(), toy.loop(skip_spikes=3.0)
    plain.fit()
    watched.fit()
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_factor_that_leaves_out_half_of_the_steps_is_refused() -> None:
    with pytest.raises(HeedfulError, match="must be above 1, or 0 for none, not"):
        TrainingSettings(skip_spikes=0.5)


def test_the_command_names_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate at which the weights themselves leave float32."""
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(20)), encoding="utf-8")
    asked = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--max-steps=20"]
    asked += ["--training.schedule=constant", "--training.warmup=0", "--training.lr=1e37", "--training.clip=0"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *asked]
    assert cli.main(run) == 2
    assert "first in e" in capsys.readouterr().err.splitlines()[-1]  # encoder.block... or embedding...
