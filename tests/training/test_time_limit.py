"""A run with --max-minutes: what is fitted to the measured speed, what stays, and where it ends. No real time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import fresh_process
import heedful
from heedful import cli, presets, tasks
from heedful.cli import processes
from heedful.data import Row, Rows
from heedful.settings import ModelSettings, RunSettings, TrainingSettings, read_toml, resolve
from heedful.tasks import defaults
from heedful.tasks.defaults import EncoderDecoderSize
from heedful.tasks.task import Encoded, Measured
from heedful.training import time_limit
from heedful.training.clock import Clock as TrainingClock
from heedful.training.clock import ReservedTime
from heedful.training.pace import Pace
from heedful.training.report import baseline_seconds, end_reason, too_short
from heedful.training.resolve import resolved, with_machine
from heedful.training.schedule import Limits
from heedful.training.time_limit import Speed, batch_halver, choose_plan, divide_time, ending_seconds, smaller_sizes
from heedful.training.validation import Validation, part

ASKED = RunSettings(task="translation", train=("a.tsv",), out="a", max_minutes=3.0)
SIZE = EncoderDecoderSize("transformer-small", 8000, 0.1, 10, 400, 4096)
DEFAULTS = replace(defaults.encoder_decoder(SIZE, ASKED, dim=256), model=ModelSettings())
SUGGESTED = with_machine(resolve(ASKED, DEFAULTS), torch.device("cpu"))


def asked(**training: Any) -> RunSettings:
    return replace(ASKED, training=TrainingSettings(**training))


class Fake:
    """A trial whose steps take as long as a table says, by the width of the model and the tokens of a batch."""

    seconds: Callable[[RunSettings], float]

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def steps(self, seconds: float) -> Speed:
        per_epoch = 200 * 4096 // (self.settings.training.batch_tokens or 4096)
        return Speed(type(self).seconds(self.settings), per_epoch)

    def evaluation(self, seconds: float) -> tuple[float, float]:
        return 0.001, 0.02


def plan(seconds: Callable[[RunSettings], float], left: float = 170.0, given: RunSettings = ASKED) -> Any:
    trial = type("Timed", (Fake,), {"seconds": staticmethod(seconds)})
    config = presets.get("transformer-small")

    def candidates() -> Iterator[tuple[RunSettings, tuple[str, ...]]]:
        first = replace(SUGGESTED, training=replace(SUGGESTED.training, **given.training.given()))
        yield first, ()
        for shape in smaller_sizes(given, SUGGESTED, config):
            yield replace(first, model=ModelSettings(**shape)), ("model dim",)

    return choose_plan(given, candidates(), batch_halver(given, SUGGESTED), trial, lambda: left, 1000, 300)


def test_a_fast_machine_keeps_what_the_data_suggests() -> None:
    made = plan(lambda settings: 0.001)
    assert made.steps == 2000
    assert made.settings.model == ModelSettings()
    assert (made.settings.training.warmup, made.settings.training.batch_tokens) == (400, 4096)
    assert made.settings.training.evaluate_examples is None
    assert made.settings.training.planned_steps >= 2000
    assert not [line for line in made.lines() if line.startswith("!")]


def test_a_slow_machine_gets_a_smaller_model_a_shorter_warm_up_and_smaller_evaluations() -> None:
    made = plan(lambda settings: 0.6 if (settings.model.dim or 256) > 128 else 0.1)
    training = made.settings.training
    assert made.settings.model.dim == 128
    assert made.settings.model.depth == 4, "no smaller than needed"
    assert training.warmup == made.steps // 10
    assert training.planned_steps == made.steps
    assert made.steps * 0.1 + made.evaluations * made.evaluation_seconds <= 170
    assert made.evaluations * made.evaluation_seconds <= 0.2 * 170
    assert 3 <= made.evaluations <= 10
    assert training.evaluate_examples == made.examples < 1000
    assert any("model dim" in line for line in made.lines())


@pytest.mark.parametrize(("least", "dim"), [(300, 256), (800, 128)])
def test_a_model_that_needs_many_steps_is_smaller(least: int, dim: int) -> None:
    """The suggested size has time for 400 steps, the next one for 1,200."""

    class Timed(Fake):
        seconds = staticmethod(lambda settings: 0.3 if (settings.model.dim or 256) > 128 else 0.1)

    smaller = replace(SUGGESTED, model=ModelSettings(dim=128))
    candidates = [(SUGGESTED, ()), (smaller, ("model dim 128",))]
    made = choose_plan(ASKED, candidates, batch_halver(ASKED, SUGGESTED), Timed, lambda: 170.0, 1000, least)
    assert (made.settings.model.dim or 256) == dim


@pytest.mark.parametrize(("preset", "least"), [("transformer-small", 800), ("bert-tiny", 300), ("gpt-micro", 300)])
def test_an_encoder_decoder_needs_the_most_steps(preset: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def noted(*arguments: Any) -> Any:
        given.append(arguments[-1])
        return plan(lambda settings: 0.1)

    monkeypatch.setattr(time_limit, "choose_plan", noted)
    monkeypatch.setattr(time_limit, "units", lambda *_: 100)
    model: Any = type("Model", (), {"config": presets.get(preset)})
    nothing: Any = None
    time_limit.plan_run(
        ASKED,
        SUGGESTED,
        nothing,
        model,
        nothing,
        ends=0.0,
        ranks=nothing,
        resolve=nothing,
        build_loop=nothing,
    )
    assert given == [least]


def test_few_steps_take_a_smaller_batch() -> None:
    made = plan(lambda settings: 1.0 * (settings.training.batch_tokens or 0) / 4096)
    assert made.settings.training.batch_tokens == 2048
    least = plan(lambda settings: 10.0)
    assert least.settings.training.batch_tokens == 1024, "a quarter at least"


def test_far_too_slow_a_machine_tries_the_smallest_model_alone() -> None:
    """Measuring costs time as well, there most of all."""
    tried: list[int | None] = []

    def seconds(settings: RunSettings) -> float:
        tried.append(settings.model.dim)
        return 4.0 if settings.model.dim is None else 0.5

    chosen = plan(seconds).settings.model
    assert (chosen.dim, chosen.depth) == (64, 2)
    assert tried == [None, 64]


def test_time_that_is_over_before_the_first_step_is_a_warning() -> None:
    made = plan(lambda settings: 1.0, left=-10.0)
    assert made.steps == 1
    (warning,) = [line for line in made.lines() if line.startswith("!")]
    for word in ("reading the data", "minutes", "--data.limit"):
        assert word in warning


def test_a_smaller_model_that_is_hardly_quicker_is_not_taken() -> None:
    assert plan(lambda settings: 0.5).settings.model == ModelSettings()


def test_other_programs_that_slow_the_measurement_do_not_shrink_the_model() -> None:
    """A step takes 0.6 s in the mean and 0.05 s between the turns of other programs; the plan counts the mean."""

    class Disturbed(Fake):
        def steps(self, seconds: float) -> Speed:
            return super().steps(seconds)._replace(quiet_step=0.05)

        seconds = staticmethod(lambda settings: 0.6)

    candidates = [(SUGGESTED, ()), (replace(SUGGESTED, model=ModelSettings(dim=128, depth=4)), ("model dim",))]
    made = choose_plan(ASKED, candidates, batch_halver(ASKED, SUGGESTED), Disturbed, lambda: 170.0, 1000, 300)
    assert made.settings.model.dim is None
    assert made.steps < 170 / 0.6


@pytest.mark.parametrize(
    ("seconds", "given", "kept"),
    [(0.1, None, 1.0), (5.0, None, 0.0), (5.0, 1.0, 1.0)],
    ids=["an epoch fits", "none fits", "given"],
)
def test_r_drop_gives_way_where_no_epoch_fits(seconds: float, given: float | None, kept: float) -> None:
    """Each example passes twice with R-Drop: without it a step takes half the time."""

    class Twice(Fake):
        seconds = staticmethod(lambda settings: seconds * (1 if settings.model.r_drop else 0.5))

    asked = replace(ASKED, start_from="folder", model=ModelSettings(r_drop=given))
    fine = replace(SUGGESTED, preset=None, start_from="folder", model=ModelSettings(r_drop=1.0))
    made = choose_plan(asked, [(fine, ())], batch_halver(asked, fine), Twice, lambda: 170.0, 1000, 300)
    assert made.settings.model.r_drop == kept
    assert made.speed.step == seconds * (1 if kept else 0.5) / (fine.training.batch_tokens or 1) * (
        made.settings.training.batch_tokens or 1
    )
    assert ("no R-Drop" in made.notes) == (kept == 0.0)


def test_time_replaces_the_suggested_epochs_and_no_given_ones() -> None:
    rows = Rows([Row({"source": f"some words {i}", "target": f"other words {i}"}, "a.tsv", i) for i in range(50)])
    kind, cpu = tasks.get("translation"), torch.device("cpu")
    without = resolved(kind, rows, replace(ASKED, max_minutes=None), cpu)
    assert without.max_epochs
    assert resolved(kind, rows, ASKED, cpu).max_epochs is None
    assert resolved(kind, rows, replace(ASKED, max_epochs=7), cpu).max_epochs == 7


def test_cheap_evaluations_are_many_and_dear_ones_few() -> None:
    """Patience needs many: a run whose time is its only limit ends by it when more steps do not help."""
    settings = replace(SUGGESTED, max_epochs=None)
    cheap = divide_time(settings, ASKED, Speed(0.01, 100, 0.00001, 0.0), 300.0, 1000)
    dear = divide_time(settings, ASKED, Speed(0.01, 100, 0.01, 0.02), 300.0, 1000)
    assert cheap.evaluations > 2 * (settings.training.patience or 0)
    assert dear.evaluations <= 10


def test_no_model_is_narrower_than_64() -> None:
    for preset, sizes in (
        ("transformer-small", [(128, 4), (128, 2), (64, 2)]),
        ("bert-tiny", [(64, 2), (64, 1)]),
        ("vit-micro", [(64, 2)]),
    ):
        shapes = smaller_sizes(ASKED, SUGGESTED, presets.get(preset))
        assert [(shape["dim"], shape["depth"]) for shape in shapes] == sizes


def test_a_smaller_model_has_a_block_for_each_window() -> None:
    for window, depths in (("0,8", {2, 4}), ("0,8,8", {3, 4})):
        given = replace(ASKED, model=ModelSettings(window=window))
        shapes = smaller_sizes(given, SUGGESTED, presets.get("transformer-small"))
        assert {shape["depth"] for shape in shapes} == depths


@pytest.mark.parametrize(
    "given",
    [
        replace(ASKED, preset="transformer-small"),
        replace(ASKED, model=ModelSettings(dim=256)),
        replace(ASKED, start_from="folder"),
    ],
    ids=["preset", "width", "from"],
)
def test_a_size_that_was_set_stays(given: RunSettings) -> None:
    assert list(smaller_sizes(given, SUGGESTED, presets.get("transformer-small"))) == []


def test_given_options_stay_with_a_warning() -> None:
    given = asked(warmup=400, batch_tokens=4096, evaluate_every=50, evaluate_examples=700, log_every=7)
    made = plan(lambda settings: 1.0, given=given)
    training = made.settings.training
    told = (training.warmup, training.batch_tokens, training.evaluate_every)
    assert told == (400, 4096, 50)
    assert (training.evaluate_examples, training.log_every) == (700, 7)
    (warning,) = [line for line in made.lines() if line.startswith("!")]
    assert "warm-up" in warning
    assert "--training.warmup" in warning
    assert "minutes" in warning
    assert "--preset" in warning


def test_less_than_an_epoch_is_a_warning_with_a_remedy() -> None:
    made = plan(lambda settings: 1.0, given=replace(asked(batch_tokens=4096), preset="transformer-small"))
    (warning,) = [line for line in made.lines() if line.startswith("!")]
    assert made.epochs < 1
    assert "%" in warning
    for remedy in ("minutes", "--preset", "--data.limit"):
        assert remedy in warning
    tuned = replace(made, settings=replace(made.settings, preset=None, start_from="folder"))
    assert "--from" in tuned.lines()[-1]
    assert "--preset" not in tuned.lines()[-1]


def test_steps_that_were_asked_for_are_a_limit_of_the_plan() -> None:
    given = replace(ASKED, max_steps=30)
    settings = replace(SUGGESTED, max_steps=30)
    made = divide_time(settings, given, Speed(0.01, 200, 0.001, 0.02), 170.0, 1000)
    assert made.steps == 30
    assert made.settings.max_steps == 30


def test_no_time_at_all_is_one_step() -> None:
    made = divide_time(SUGGESTED, ASKED, Speed(5.0, 200, 0.001, 0.02), -3.0, 1000)
    assert made.steps == 1
    assert made.settings.training.warmup == 1


def test_planned_steps_are_the_progress_and_the_clock_the_guard() -> None:
    limits = Limits(max_minutes=1, planned_steps=100)
    assert limits.progress(steps=50, epochs=0.0, seconds=59.0) == 0.5
    assert limits.shares(steps=50, epochs=0.0, seconds=60.0)["max_minutes"] == 1
    assert limits.shares(steps=100, epochs=0.0, seconds=1.0)["max_minutes"] == 1


# ------------------------------------------------------------------------------------------------------------- the loop


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("heedful.training.clock.time.monotonic", made)
    return made


def timed(toy: Any, clock: Clock, step: float, evaluation: float, **options: Any) -> tuple[Any, list[Any]]:
    """The toy run, in which a step and an evaluation take so many seconds; and the shares evaluated."""
    shares: list[Any] = []

    def evaluate(share: float = 1.0) -> dict[str, float]:
        shares.append(share)
        clock.now += evaluation * share
        return {"loss": 1.0}

    def at(_: int) -> None:
        clock.now += step / 2  # two micro-batches a step

    loop = toy.loop(at=at, evaluate=evaluate, evaluate_part=evaluate, patience=None, **options)
    return loop, shares


def test_a_run_ends_in_time_with_its_last_evaluation_and_writing(toy: Any, clock: Clock) -> None:
    limits = Limits(max_minutes=1)
    loop, shares = timed(
        toy, clock, 1, 6, limits=limits, evaluate_every=10**6, beginning=10, evaluation_seconds=6, ending=4
    )
    outcome = loop.fit()
    assert outcome.stopped_because == "max_minutes"
    assert outcome.steps == 40
    assert shares == [1]
    assert clock.now - 1000 + 10 + 4 == 60


def test_no_step_is_made_that_no_evaluation_could_follow(toy: Any, clock: Clock) -> None:
    """The evaluation takes four times as long as planned: with 15 seconds left it is the last."""
    limits = Limits(max_minutes=1)
    loop, shares = timed(toy, clock, 1, 20, limits=limits, evaluate_every=25, evaluation_seconds=5)
    assert loop.fit().steps == 25
    assert shares == [1]


def test_an_evaluation_that_would_overrun_is_cut(toy: Any, clock: Clock) -> None:
    """The step before takes longer than planned; the evaluation has time for a part only."""
    limits = Limits(max_minutes=1)
    loop, shares = timed(toy, clock, 30, 20, limits=limits, evaluate_every=50, evaluation_seconds=20, beginning=5)
    loop.fit()
    assert len(shares) == 1
    assert shares[0] < 1
    assert clock.now - 1000 + 5 <= 60 + 5


def test_planned_steps_end_a_run_before_its_time(toy: Any, clock: Clock) -> None:
    loop, _ = timed(toy, clock, 1, 1, limits=Limits(max_minutes=1, planned_steps=12))
    outcome = loop.fit()
    assert (outcome.steps, outcome.stopped_because) == (12, "max_minutes")
    assert end_reason(outcome, 12).startswith("all planned steps are done after 12 steps")
    assert end_reason(outcome, 13) == end_reason(outcome)
    assert end_reason(outcome).startswith("the time of --max-minutes is over")


@pytest.mark.parametrize(
    ("planned", "warmup", "said"),
    [
        (12, 20, None),
        (13, 5, None),
        (40, 5, "30%"),
        (40, 12, "warm-up of 12"),
        (None, 12, "warm-up of 12"),
        (None, 5, None),
    ],
)
def test_a_run_that_its_time_ends_early_says_so(
    toy: Any, clock: Clock, planned: int | None, warmup: int, said: str | None
) -> None:
    loop, _ = timed(toy, clock, 1, 1, limits=Limits(max_minutes=1, planned_steps=12))
    training = replace(SUGGESTED.training, planned_steps=planned, warmup=warmup)
    found = too_short(loop.fit(), replace(SUGGESTED, max_minutes=1, training=training))
    assert (found is None) == (said is None)
    assert said is None or (said in str(found) and "--max-minutes" in str(found))


# --------------------------------------------------------------------------------------------------------------- pace


def paced(toy: Any, clock: Clock, seconds: Callable[[int], float], planned: int, **options: Any) -> Any:
    """The toy run of a minute with so many planned steps, of which each takes ``seconds(step)``; an evaluation takes 1.

    Returns the loop, the learning rate of each step, and what was saved.
    """
    changes, saved = options.pop("changes", ()), []
    rates: list[float] = []

    def at(step: int) -> None:
        clock.now += seconds(step) / 2  # two micro-batches a step

    def evaluate(share: float = 1.0) -> dict[str, float]:
        clock.now += share
        return {"loss": 1.0}

    loop = toy.loop(
        options.pop("folder", None),
        at=at,
        evaluate=evaluate,
        evaluate_part=evaluate,
        evaluate_every=10,
        evaluation_seconds=1.0,
        patience=None,
        limits=Limits(max_minutes=1, planned_steps=planned),
        pace=Pace(planned, changes, lambda decided: saved.append(list(decided))),
        after_step=lambda: rates.append(loop.optimiser.param_groups[0]["lr"]),
        **options,
    )
    return loop, rates, saved


@pytest.mark.parametrize("planned", [15, 40, 52, 70, 400])
def test_a_plan_that_was_wrong_is_mended_in_the_run(toy: Any, clock: Clock, planned: int) -> None:
    """A step takes a second: about 52 fit into the minute, with an evaluation of a second every 10 steps."""
    loop, rates, saved = paced(toy, clock, lambda step: 1.0, planned)
    outcome = loop.fit()
    assert 54 <= clock.now - 1000 <= 60, "no less than 90 % of the time is used, and no more than it"
    assert outcome.steps == loop.limits.planned_steps, "the schedule is complete"
    assert rates[-1] < 0.01 * max(rates)
    assert saved[-1] == loop.pace.changes


def test_a_machine_that_becomes_slower_or_quicker_is_noticed(toy: Any, clock: Clock) -> None:
    for seconds in (lambda step: 1.0 if step < 20 else 2.0, lambda step: 1.0 if step < 20 else 0.5):
        clock.now = 1000.0
        loop, rates, _ = paced(toy, clock, seconds, 50)
        loop.fit()
        assert 54 <= clock.now - 1000 <= 60
        assert rates[-1] < 0.05 * max(rates)


def test_a_plan_that_shrinks_is_not_made_anew_at_every_step(toy: Any, clock: Clock) -> None:
    loop, _, saved = paced(toy, clock, lambda step: 1.0, 400)
    loop.fit()
    steps = [step for step, _ in saved[-1]]
    assert len(steps) > 4
    assert min(after - before for before, after in pairwise(steps)) >= 2


def test_late_in_a_run_more_steps_do_not_raise_its_learning_rate(toy: Any, clock: Clock, tmp_path: Path) -> None:
    def seconds(step: int) -> float:
        return 1.0 if step < 36 else 0.25

    loop, rates, _ = paced(toy, clock, seconds, 50)
    outcome = loop.fit()
    assert outcome.steps > 70, "there is time for more than the 50 planned steps"
    assert 54 <= clock.now - 1000 <= 60
    falling = rates[36:]
    assert falling == sorted(falling, reverse=True), "the rate does not rise again"
    assert rates[-1] < 0.01 * max(rates)

    class Killed(Exception):
        pass

    def killed(step: int) -> float:
        if step == 44:
            raise Killed
        return seconds(step)

    clock.now = 1000.0
    changes = loop.pace.changes
    assert any(36 < step < 44 for step, _ in changes), "a decision before the kill"
    first, before, _ = paced(toy, clock, killed, 50, folder=tmp_path, save_every=1, changes=changes)
    with pytest.raises(Killed):
        first.fit()
    second, after, _ = paced(toy, clock, seconds, 50, folder=tmp_path, save_every=1, changes=changes)
    second.fit()
    assert before + after == rates, "a resumed run has the same rates"


def test_decisions_before_a_kill_are_made_again(toy: Any, clock: Clock, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def killed(step: int) -> float:
        if step == 10:
            raise Killed
        return 1.0

    whole, _, _ = paced(toy, clock, lambda step: 1.0, 15)
    whole.fit()
    loop, _, saved = paced(toy, clock, killed, 15, folder=tmp_path, save_every=6)
    with pytest.raises(Killed):
        loop.fit()
    early = saved[-1]
    assert 6 < early[-1][0] < 10, "the last decision is newer than the checkpoint of step 6"
    assert early == whole.pace.changes[: len(early)]

    # another speed: what is in the file stays, the next decisions are new
    again, _, later = paced(toy, clock, lambda step: 0.5, 15, folder=tmp_path, save_every=6, changes=early)
    again.fit()
    assert later[0][: len(early)] == early
    # nothing is left to decide, whatever the speed: the same bits
    repeated, _, nothing = paced(toy, clock, lambda step: 0.2, 15, changes=whole.pace.changes)
    repeated.fit()
    assert nothing == []
    first, second = (made.model.state_dict() for made in (whole, repeated))
    assert all(torch.equal(first[name], second[name]) for name in first)


STOPS = """
import os, signal, subprocess, time
from heedful.training.clock import STOPPED, running_time
with STOPPED.counted():
    started = running_time(), time.monotonic()
    subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    print(running_time() - started[0], time.monotonic() - started[1])
"""


def test_a_stop_by_a_signal_is_no_time() -> None:
    done = fresh_process.run(STOPS)
    assert done.returncode == 0, done.stderr
    running, passed = map(float, done.stdout.split())
    assert passed >= 2.5
    assert 0.3 <= running <= passed - 1.5


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture
def data(tmp_path: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    file = tmp_path / "pairs.tsv"
    rows = [f"{a} {b} {c}\t{c} {b} {a}" for a in words for b in words for c in words[:3]]
    file.write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """A machine on which a step takes two seconds, or 0.05 with a narrower model; what was measured."""
    measured: list[RunSettings] = []

    class Timed(time_limit.LoopTrial):
        def steps(self, seconds: float) -> Speed:
            settings = self.settings
            measured.append(settings)
            found = super().steps(0.0)  # the real ones are made, and leave nothing behind
            return Speed(2.0 if settings.model.depth is None else 0.05, found.steps_per_epoch)

        def evaluation(self, seconds: float) -> tuple[float, float]:
            super().evaluation(0.0)
            return 0.001, 0.05

    monkeypatch.setattr(time_limit, "LoopTrial", Timed)
    return measured


TINY = ("--tokenizer.size=280", "--training.batch-tokens=60", "--max-epochs=2", "--training.evaluate-examples=3")


def train(data: Path, out: Path, *options: str) -> int:
    return cli.main(["train", "translation", "--train", str(data), "--out", str(out), *TINY, *options])


def test_a_whole_run_is_fitted_saved_and_resumed_with_the_same_bits(
    data: Path, tmp_path: Path, slow: list[RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    assert train(data, once, "--max-minutes=0.35") == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("time ")]
    kept = read_toml(once / "run.toml")
    assert kept.model.dim == 64
    assert "! a width of 64 is below the 128 that such models are known to need" in said
    assert kept.training.planned_steps is not None
    assert kept.training.batch_tokens == 60, "as set"
    assert kept.training.evaluate_examples == 3, "as set"
    assert len(slow) > 1, "sizes were tried"
    records = [json.loads(line) for line in (once / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = records[-1]["step"]
    assert steps <= kept.training.planned_steps

    slow.clear()
    stopped = max(1, steps // 2)
    assert train(data, again, "--config", str(once / "run.toml"), f"--max-steps={stopped}") == 0
    assert slow == [], "a plan that is given is not made again"
    assert train(data, again, "--resume", f"--max-steps={steps}") == 0
    assert slow == [], "nor on resuming"
    first, second = (load_file(folder / "last" / "model.safetensors") for folder in (once, again))
    assert all(bool((first[name] == second[name]).all()) for name in first)


def test_an_ensemble_gives_way_where_no_epoch_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["good", "bad", "fine", "poor", "film", "actor"]
    lines = [f"{a} {b} {c}\t{'good' if 'good' in (a, b) else 'bad'}" for a in words for b in words for c in words]
    data = tmp_path / "labels.tsv"
    data.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr(time_limit.LoopTrial, "steps", lambda self, seconds: Speed(3.0, 50))
    command = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--max-minutes=0.5", "--max-steps=2"]) == 0
    said = capsys.readouterr().out
    assert "0.5 min are no epoch of 4 classifiers: one is trained" in said
    assert read_toml(tmp_path / "out" / "run.toml").model.members == 1
    assert heedful.from_pretrained(tmp_path / "out").config.kind == "encoder"


def test_the_time_is_accounted_for(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--preset=transformer-tiny", "--max-minutes=5", "--max-steps=3", "--json")
    started = time.monotonic()
    assert train(data, tmp_path / "out", *options) == 0
    passed = time.monotonic() - started
    result = json.loads(capsys.readouterr().out)
    account = result["time"]
    assert list(account) == ["reading_and_planning", "training", "evaluations", "saving_and_verdict"]
    assert all(seconds > 0 for seconds in account.values())
    assert sum(account.values()) == pytest.approx(passed, abs=0.3 * passed)
    assert train(data, tmp_path / "lines", *options[:-1]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("time: ")]
    for use in ("of 5:00", "reading and planning", "training", "evaluations", "saving and verdict"):
        assert use in line


def test_a_new_model_predicts_few_examples_after_few_steps() -> None:
    """An untrained generator writes every text to its limit."""
    seen: list[int] = []

    class Task:
        columns: ClassVar[dict[str, str]] = {"text": "text"}
        main_metric = "loss"

        def validate(self, model: Any, examples: Any, rows: Rows, most: int) -> Measured:
            seen.append(most)
            return Measured({"loss": 1.0}, [])

        def logged_samples(self, *_: Any) -> list[Any]:
            return []

    rows = Rows([Row({"text": str(number)}, "a.tsv", number) for number in range(10)])
    model = heedful.create("bert-tiny", seed=0)
    for settings in (SUGGESTED, replace(SUGGESTED, preset=None, start_from="folder")):
        validation = Validation(Task(), model, Encoded(list(rows), rows), settings)  # type: ignore[arg-type]
        for step in (1, 100, 5000):
            validation.measure(step)
    assert seen == [50, 200, 500, 500, 500, 500]


def test_the_start_of_the_program_counts(
    data: Path, tmp_path: Path, slow: list[RunSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    for seconds in (0.0, 30.0):
        monkeypatch.setattr(processes, "started", time.monotonic() - seconds)
        assert train(data, tmp_path / str(seconds), "--max-minutes=1", "--max-steps=2") == 0
        planned.append(read_toml(tmp_path / str(seconds) / "run.toml").training.planned_steps or 0)
    assert planned[1] < 0.7 * planned[0]


def test_a_resumed_run_with_more_minutes_has_more_planned_steps(
    data: Path, tmp_path: Path, slow: list[RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert train(data, out, "--max-minutes=5", "--training.planned-steps=4") == 0
    assert train(data, out, "--resume", "--max-minutes=10") == 0
    assert "8 steps" in capsys.readouterr().out
    assert read_toml(out / "run.toml").training.planned_steps == 8
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert records[-1]["step"] == 8
    assert slow == []


@pytest.mark.parametrize("options", [("--training.replanned=20",), ("--training.replanned=20:300",)], ids=str)
def test_changes_of_no_plan_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert train(data, tmp_path / "out", "--max-minutes=1", *options) == 2
    assert "--training.replanned" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_planned_steps_without_a_limit_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, tmp_path / "out", "--training.planned-steps=4") == 2
    said = capsys.readouterr().err
    assert "--training.planned-steps" in said
    assert "--max-minutes" in said


def test_a_trial_leaves_the_run_as_it_was(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of a run that was given the plan and measured nothing."""
    measured, given = tmp_path / "measured", tmp_path / "given"
    assert train(data, measured, "--preset=transformer-tiny", "--max-minutes=5", "--max-steps=3") == 0
    assert train(data, given, "--preset=transformer-tiny", "--max-steps=3") == 0
    first, second = (load_file(folder / "last" / "model.safetensors") for folder in (measured, given))
    warmups = [read_toml(folder / "run.toml").training.warmup for folder in (measured, given)]
    assert warmups[0] == warmups[1], "or the bits may differ"
    assert all(bool((first[name] == second[name]).all()) for name in first)


def test_the_verdict_is_of_all_rows_or_of_those_for_which_time_is_planned(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation has three of the 29 rows."""
    seen: list[tuple[int, int]] = []

    def judged(task: Any, settings: Any, learned: Any, held: Any, measured: Any, outcome: Any) -> dict[str, Any]:
        seen.append((len(held.rows), len(measured.outputs)))
        return {}

    monkeypatch.setattr("heedful.training.finish.save_verdict", judged)
    for options in ([], ["--max-minutes=5"]):
        out = tmp_path / f"out{len(options)}"
        assert train(data, out, "--preset=transformer-tiny", "--max-steps=2", *options) == 0
    assert seen == [(29, 29), (3, 3)]


def test_a_busy_machine_keeps_more_time_for_the_end() -> None:
    model = heedful.create("vit-micro", seed=0)
    quiet, busy, busiest = (ending_seconds(SUGGESTED, model, 1.0, slowdown) for slowdown in (0.5, 1.5, 1000.0))
    assert ending_seconds(SUGGESTED, model, 0.0, 1.0) == quiet - 1.0
    assert 5 < quiet < busy < busiest <= 0.1 * 180


@pytest.mark.parametrize(
    ("task", "values", "labels", "seconds"),
    [
        ("text-classification", {"text": "a" * 340, "label": "b"}, 2, 4 / 17),
        ("text-classification", {"text": "a" * 340, "label": "b"}, 50, 100 / 17),
        ("token-classification", {"words": ("word",) * 2, "tags": ("O",) * 2}, 9, 0.7),
        ("token-classification", {"words": ("word",) * 9, "tags": ("O",) * 9}, 9, 2.1),
        ("image-classification", {"image": None, "label": "b"}, 10, 2.1),
        ("translation", {"source": "a", "target": "b"}, 0, 2.0),
        ("feature-extraction", {"text": "a", "text_pair": "b"}, 0, 0.0),
        ("text-generation", {"text": "a"}, 0, 0.0),
    ],
)
def test_a_baseline_of_much_data_keeps_time_for_the_end(
    task: str, values: dict[str, Any], labels: int, seconds: float
) -> None:
    rows = Rows([Row(values, "a.tsv", number) for number in range(10_000)])
    assert baseline_seconds(tasks.get(task), rows, labels) == pytest.approx(seconds)  # type: ignore[arg-type]


def test_a_baseline_of_numbers_keeps_time_for_the_texts_that_it_reads() -> None:
    rows = Rows([Row({"text": "a" * 300, "label": "1"}, "a.tsv", number) for number in range(10_000)])
    regression = tasks.get("text-classification", "number")
    assert baseline_seconds(regression, rows, 0) == pytest.approx(301 * 5000 / 3e5)  # type: ignore[arg-type]


def test_the_time_before_a_run_reads_its_data_does_not_tell_a_busy_machine(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program started long before; the processor time of that is not known here."""
    slowdowns: list[float] = []

    def reserved(settings: Any, model: Any, baseline: float, slowdown: float) -> float:
        slowdowns.append(slowdown)
        return 1.0

    monkeypatch.setattr("heedful.training.run.ending_seconds", reserved)
    monkeypatch.setattr(processes, "started", time.monotonic() - 2000)
    assert train(data, tmp_path / "out", "--preset=transformer-tiny", "--max-steps=1", "--max-minutes=100") == 0
    assert max(slowdowns) < 100, "2,000 s over the processor time of reading a small file would be far more"


def test_evaluations_are_of_the_same_part_of_the_validation_rows() -> None:
    class Task:
        columns: ClassVar[dict[str, str]] = {"text": "text"}

        def encode(self, rows: Rows, max_length: int | None) -> Encoded:
            return Encoded(list(rows), rows)

    rows = Rows([Row({"text": str(number)}, "a.tsv", number) for number in range(10)])
    held = Encoded(list(rows), rows)
    assert [row.values["text"] for row in part(Task(), held, 0.5, None).rows] == ["0", "2", "4", "6", "8"]
    assert part(Task(), held, 1.0, None) is held

    Task.columns = {"text": "document"}
    documents = Rows([Row({"text": "some words of a text"}, "a.txt", 1), Row({"text": "and another one"}, "a.txt", 2)])
    some = part(Task(), Encoded(list(documents), documents), 0.4, None)
    (row,) = some.rows
    assert row.values["text"] == "some words of"


def test_a_checkpoint_without_the_seconds_before_the_steps_is_read() -> None:
    clock = TrainingClock(Limits(max_steps=1), ReservedTime())
    clock.restore({"seconds": 3.0})
    assert clock.state() == {
        "seconds": 3.0,
        "spent_seconds": 0.0,
        "evaluation_seconds": 0.0,
        "steps_seconds": 0.0,
        "evaluations_seconds": 0.0,
        "rest_seconds": 0.0,
    }
