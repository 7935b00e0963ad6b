from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from heedful import cli
from heedful.errors import HeedfulError
from heedful.settings import AveragingSettings, RunSettings, resolve
from heedful.tasks import defaults
from heedful.training import Exponential, Last, Polynomial
from heedful.training.resolve import with_machine
from tolerances import assert_close


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def walked(steps, dtype=torch.float32, share=0.1):
    """A model whose one weight is a given walk, and its average."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    average = Polynomial(model, share=share)
    for value in steps:
        nn.init.constant_(model.weight, value)
        average.update()
    return model, average


def test_the_average_weighs_late_weights_most():
    # In closed form: with γ = 2 the weights of 1..t are s(s+1): Γ(s + γ) / Γ(s).
    values = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, average = walked(values.tolist(), torch.float64, share=0.25)
    s = torch.arange(1, 51, dtype=torch.float64)
    assert_close(average.weights["weight"].squeeze(), (s * (s + 1) * values).sum() / (s * (s + 1)).sum())


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_mean_age_is_the_share_whatever_the_length(share):
    for steps in (200, 2000):
        _, average = walked(range(steps), torch.float64, share=share)
        assert 1 - average.weights["weight"].item() / steps == pytest.approx(share, abs=0.01)


def test_the_first_average_is_the_weights():
    _, average = walked([5.0])
    assert average.weights["weight"].item() == 5.0


def test_a_half_precision_model_is_averaged_in_single():
    model, average = walked([1.0, 1.0078125, 1.0], torch.bfloat16)
    assert average.weights["weight"].dtype == torch.float32
    assert 1.0 < average.weights["weight"].item() < 1.0078125  # neighbours in bfloat16: nothing lies between them
    with average.swapped():
        assert model.weight.dtype == torch.bfloat16


def test_tied_weights_are_averaged_once_and_frozen_ones_not():
    average = Polynomial(Tied())
    assert set(average.weights) == {"embedding.weight", "head.bias", "inner.weight", "inner.bias"}


def test_the_own_weights_come_back_bit_for_bit_whatever_happens_meanwhile():
    model, average = walked([1.0, 2.0, 0.1])
    own = copy.deepcopy(model.state_dict())
    held = average.weights["weight"].clone()

    def fails():
        with average.swapped():
            assert torch.equal(model.weight, held)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert torch.equal(model.weight, own["weight"])
    assert torch.equal(average.weights["weight"], held)


def test_an_average_goes_on_from_its_state():
    values = torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()
    _, straight = walked(values)
    _, half = walked(values[:9])
    state = copy.deepcopy(half.state_dict())
    model, rest = walked([])
    rest.load_state_dict(state)
    for value in values[9:]:
        nn.init.constant_(model.weight, value)
        rest.update()
    assert torch.equal(rest.weights["weight"], straight.weights["weight"])


def test_an_average_of_another_model_is_refused():
    with pytest.raises(HeedfulError, match="do not fit this model"):
        Polynomial(nn.Linear(2, 1)).load_state_dict(Polynomial(nn.Linear(3, 1)).state_dict())


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(HeedfulError, match="share"):
        Polynomial(nn.Linear(1, 1), share=share)


def walk(model, steps):
    """The model's weights drawn anew, ``steps`` times."""
    for number in range(steps):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype))
        yield number


def test_the_exponential_average_is_torchs():
    # d = 0.15 is below (1 + 1) / (10 + 1): no warm-up
    model = nn.Linear(3, 2).double()
    ours, theirs = Exponential(model, decay=0.15), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.15))
    theirs.update_parameters(model)  # the first one copies
    for _ in walk(model, 20):
        ours.update()
        theirs.update_parameters(model)
    for name, parameter in theirs.module.named_parameters():
        assert_close(ours.weights[name], parameter.detach())


def test_the_decay_warms_up():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    mean, average = 0.0, Exponential(model, decay=0.9)
    for step in range(1, 201):
        nn.init.constant_(model.weight, step)
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * step
        assert average.weights["weight"].item() == pytest.approx(mean)
    assert 200 - mean == pytest.approx(9)  # d / (1 − d) steps behind


def test_the_average_of_the_last_evaluations():
    model = nn.Linear(3, 2).double()
    average, theirs = Last(model, most=3), AveragedModel(model)
    for step in walk(model, 20):
        average.update()
        if step % 4 == 3:
            own = copy.deepcopy(model.state_dict())
            if step >= 11:
                theirs.update_parameters(model)
            with average.swapped():
                pass
            with average.swapped():  # looked at twice, taken once
                if step == 19:
                    for name, parameter in theirs.module.named_parameters():
                        assert_close(dict(model.named_parameters())[name].detach(), parameter.detach())
            assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())


MADE = {
    "polynomial": lambda model: Polynomial(model, share=0.2),
    "exponential": lambda model: Exponential(model, decay=0.9),
    "last": lambda model: Last(model, most=2),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("stop", [1, 5, 6, 11])
def test_each_goes_on_from_its_state_with_the_same_bits(kind, stop, tmp_path):
    straight = nn.Linear(3, 2)
    half, rest = copy.deepcopy(straight), copy.deepcopy(straight)
    whole, first, second = (MADE[kind](model) for model in (straight, half, rest))
    for average, model in ((whole, straight), (first, half)):
        for step in walk(model, 12 if average is whole else stop):
            average.update()
            if step % 3 == 2:
                with average.swapped():
                    pass
    torch.save(first.state_dict(), tmp_path / "state")
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for step in walk(rest, 12):
        if step >= stop:
            second.update()
            if step % 3 == 2:
                with second.swapped():
                    pass
    with whole.swapped(), second.swapped():
        for one, other in zip(straight.parameters(), rest.parameters(), strict=True):
            assert torch.equal(one, other)


def test_an_average_of_another_kind_or_model_is_refused():
    model = nn.Linear(3, 1)
    with pytest.raises(HeedfulError, match=r"kind last, not exponential; resume with the --averaging"):
        Exponential(model).load_state_dict(Last(model).state_dict())
    kept = Last(model)
    with kept.swapped(), pytest.raises(HeedfulError, match="do not fit this model"):
        Last(nn.Linear(2, 1)).load_state_dict(kept.state_dict())


def test_numbers_out_of_range_are_refused():
    with pytest.raises(HeedfulError, match="decay is 1"):
        Exponential(nn.Linear(1, 1), decay=1)
    with pytest.raises(HeedfulError, match="number above 1"):
        Last(nn.Linear(1, 1), most=1)


def test_two_averages_are_refused():
    def asked(**averages):
        run = RunSettings(task="translation", train=("a",), out="o", averaging=AveragingSettings(**averages))
        return with_machine(resolve(run, defaults.encoder(100, run)), torch.device("cpu"))

    assert asked(polynomial=0.0, ema=0.9).averaging.ema == 0.9
    with pytest.raises(HeedfulError, match=r"--averaging.polynomial and --averaging.ema .*; give one"):
        asked(polynomial=0.1, ema=0.9)
    with pytest.raises(HeedfulError, match=r"--averaging.ema and --averaging.last cannot be combined"):
        asked(polynomial=0.0, ema=0.9, last=5)
    with pytest.raises(HeedfulError, match=r"--averaging.last is 1; give at least 2"):
        asked(last=1)


@pytest.mark.parametrize("asked", ["--averaging.ema=0.9", "--averaging.last=2"])
def test_a_run_with_it_stands_in_place_of_the_suggested_average(tmp_path, asked):
    data = tmp_path / "data.tsv"
    data.write_text(
        "".join(f"{word} day {n}\t{word}\n" for word in ("good", "bad") for n in range(20)), encoding="utf-8"
    )
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *small, asked]
    assert cli.main([*run, "--max-steps=6", "--training.evaluate-every=2", "--json"]) == 0
    told = json.loads((tmp_path / "out" / "heedful.json").read_text(encoding="utf-8"))["settings"]
    assert told["averaging"]["polynomial"] is None
    assert (tmp_path / "out" / "average" / "model.safetensors").is_file()
