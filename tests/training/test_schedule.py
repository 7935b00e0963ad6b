from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from heedful import cli
from heedful.errors import HeedfulError
from heedful.training.schedule import SCHEDULES, Limits, constant, cosine, inverse_sqrt, linear, schedule, wsd
from tolerances import approx


def factors(schedule, total):
    return [schedule(step, (step - 1) / total) for step in range(1, total + 1)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_rises_in_a_line_to_one_and_never_above(name):
    found = factors(SCHEDULES[name](10), 50)
    assert found[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert max(found) == 1
    assert all(one >= other for one, other in pairwise(found[9:]))


def test_inverse_square_root_is_that_of_the_paper():
    dim, warmup = 512, 4000
    schedule = inverse_sqrt(warmup)
    for step in (1, 100, 4000, 4001, 100_000):
        paper = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert schedule(step, None) * (dim * warmup) ** -0.5 == pytest.approx(paper)


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 30), (5, 30), (29, 30)])
def test_linear_and_cosine_are_those_of_torch(warmup, total):
    def oracle(fall):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimiser = torch.optim.SGD([parameter], lr=1.0)
        schedule = fall(optimiser)
        found = []
        for _ in range(total - warmup):
            found.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            schedule.step()
        return found

    rest = total - warmup
    line = oracle(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=rest))
    wave = oracle(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, rest, eta_min=0.1))
    assert factors(linear(warmup), total)[warmup:] == approx(line, dtype=torch.float64)
    assert factors(cosine(warmup, min_lr_ratio=0.1), total)[warmup:] == approx(wave, dtype=torch.float64)


def test_a_run_limited_by_time_falls_as_one_limited_by_steps_of_that_pace():
    schedule, limits = cosine(10), Limits(max_minutes=2)
    by_time = [
        schedule(step, limits.progress(steps=step - 1, epochs=0.0, seconds=1.5 * (step - 1))) for step in range(1, 81)
    ]
    assert by_time == pytest.approx(factors(schedule, 80))


@pytest.mark.parametrize("schedule", [linear(3), cosine(3), wsd(3)], ids=["linear", "cosine", "wsd"])
def test_a_schedule_that_falls_needs_an_end(schedule):
    with pytest.raises(HeedfulError, match="max-steps"):
        schedule(1, None)


def test_constant_and_inverse_square_root_need_none():
    assert constant(4)(2, None) == 0.5
    assert inverse_sqrt(4)(16, None) == 0.5


def test_progress_is_that_of_the_nearest_limit():
    limits = Limits(max_steps=100, max_epochs=4, max_minutes=10)
    assert limits.progress(steps=10, epochs=2.0, seconds=60.0) == 0.5
    assert limits.progress(steps=10, epochs=0.0, seconds=540.0) == 0.9
    assert limits.progress(steps=101, epochs=0.0, seconds=0.0) == 1.0
    assert Limits().progress(steps=10, epochs=0.0, seconds=0.0) is None


@pytest.mark.parametrize("value", [0, -1, math.nan])
@pytest.mark.parametrize("name", ["max_steps", "max_epochs", "max_minutes"])
def test_a_limit_of_nothing_is_refused(name, value):
    with pytest.raises(HeedfulError, match=name.replace("_", "-")):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_a_floor_is_where_the_fall_ends(name):
    found = factors(schedule(name, 10, 0.1), 1000)
    bare = factors(schedule(name, 10), 1000)
    assert found == approx(
        [one if step < 10 else 0.1 + 0.9 * one for step, one in enumerate(bare)], dtype=torch.float64
    )
    assert found[-1] == pytest.approx(0.1, abs=1e-2)


@pytest.mark.parametrize("name", ["constant", "inverse_sqrt"])
def test_a_floor_without_effect_is_refused(name):
    assert factors(schedule(name, 10), 50) == factors(SCHEDULES[name](10), 50)
    with pytest.raises(HeedfulError, match="no effect"):
        schedule(name, 10, 0.1)


@pytest.mark.parametrize("name", ["constant", "inverse_sqrt", "cosine", "linear"])
def test_a_decay_without_effect_is_refused(name):
    with pytest.raises(HeedfulError, match=f"training.decay-ratio has no effect with the schedule {name}; .* use wsd"):
        schedule(name, 10, None, 0.1)


@pytest.mark.parametrize("decay", [0.1, 0.2, 1.0])
def test_warm_up_stable_decay_is_one_minus_the_root_of_its_last_part(decay):
    # Hägele et al. (2024): 1 − √((n − (N − N_decay)) / N_decay), n steps done of N, of which the last N_decay fall
    total, falling = 1000, round(1000 * decay)
    found = factors(schedule("wsd", 0, None, decay), total)
    paper = [1 - math.sqrt(max(0, n - (total - falling)) / falling) for n in range(total)]
    assert found == approx(paper, "layer")


def test_before_its_decay_a_run_does_not_feel_its_length():
    short, long = factors(wsd(10), 100), factors(wsd(10), 10_000)
    assert short[:80] == long[:80]
    assert short[81] < long[81] == 1


def test_an_option_that_the_schedule_has_not_is_refused_before_anything_is_written(tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(20)), encoding="utf-8")
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out")]
    assert cli.main([*run, "--training.schedule=cosine", "--training.decay-ratio=0.1"]) == 2
    assert "--training.decay-ratio has no effect with the schedule cosine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
