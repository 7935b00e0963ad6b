"""A run stopped anywhere and taken up again ends with the same bits."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fresh_process
from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits, Loader, Log
from heedful.training.engine import Alone
from heedful.util.ranks import Ranks


def everything(loop):
    """All that a run ends with, but its times."""
    numbers = {name: value for name, value in loop.state()["numbers"].items() if not name.endswith("seconds")}
    optimiser = loop.optimiser.state_dict()
    return {
        "model": loop.model.state_dict(),
        "optimiser": {f"{i} {name}": t for i, slots in optimiser["state"].items() for name, t in slots.items()},
        "average": {} if loop.average is None else loop.average.weights,
        "numbers": numbers | loop.loader.state_dict(),
    }


def assert_same(one, other):
    for part, tensors in one.items():
        assert tensors.keys() == other[part].keys()
        for name, value in tensors.items():
            found = other[part][name]
            same = torch.equal(value, found) if isinstance(value, torch.Tensor) else value == found
            assert same, f"{part} {name}: {value} is not {found}"


@pytest.fixture(scope="module")
def straight(toy):
    torch.set_num_threads(1)
    loop = toy.loop()
    outcome = loop.fit()
    assert outcome.epochs > 2, "the run is to end past the middle of an epoch after the first"
    assert outcome.stopped_because == "max_steps"
    return everything(loop)


class Crash(Exception):
    pass


@pytest.mark.parametrize("stops", [(2,), (5, 6), (9, 14), (12, 13, 19), (20,)], ids=str)
def test_a_run_that_crashed_ends_with_the_same_bits(toy, straight, tmp_path, stops):
    for stop in stops:

        def crash(step, stop=stop):
            if step == stop:
                raise Crash

        with pytest.raises(Crash):
            toy.loop(tmp_path, at=crash).fit()
        torch.manual_seed(stop)  # a new process knows nothing of the old one's generator
    resumed = toy.loop(tmp_path)
    resumed.fit()
    assert_same(straight, everything(resumed))


def test_a_killed_process_is_taken_up_again(toy, straight, tmp_path):
    killed = fresh_process.run(Path(toy.__file__).read_text(encoding="utf-8"), str(tmp_path), "17")
    assert killed.returncode == -signal.SIGKILL
    resumed = toy.loop(tmp_path)
    resumed.fit()
    assert_same(straight, everything(resumed))


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_lets_the_step_end_and_saves_it(toy, straight, tmp_path, number, error):
    before = signal.getsignal(number)
    sent = []

    def once(step):
        if step == 10 and not sent:  # in the first of the step's two forward passes
            sent.append(step)
            signal.raise_signal(number)

    with pytest.raises(error) as raised:
        toy.loop(tmp_path, at=once).fit()
    assert error is KeyboardInterrupt or raised.value.code == 128 + number
    assert signal.getsignal(number) is before
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == 10
    resumed = toy.loop(tmp_path)
    resumed.fit()
    assert_same(straight, everything(resumed))


def test_an_evaluation_is_left_at_once_and_made_again(toy, straight, tmp_path):
    loop = toy.loop(tmp_path, log=Log(tmp_path / "metrics.jsonl", quiet=True))
    measure, reached = loop.evaluation.measure, []

    def interrupted(step, share):
        if step == 8:
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the evaluation")
        return measure(step, share)

    loop.evaluation = replace(loop.evaluation, measure=interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.fit()
    assert not reached
    state = Checkpoints(tmp_path).load()
    assert (state["numbers"]["step"], state["numbers"]["evaluated"]) == (8, 4)
    for name, value in loop.model.state_dict().items():
        assert torch.equal(value, state["model"][name]), "the checkpoint holds averaged weights"
    resumed = toy.loop(tmp_path, log=Log(tmp_path / "metrics.jsonl", quiet=True))
    resumed.fit()
    assert_same(straight, everything(resumed))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 12, 15, 16, 20]
    assert all("loss" in line for line in lines)
    assert ["valid_loss" in line for line in lines] == [line["step"] % 4 == 0 for line in lines]
    toy.loop(tmp_path / "whole", log=Log(tmp_path / "whole.jsonl", quiet=True)).fit()
    whole = [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines] == [
        line["lr"] for line in whole
    ]  # step 8 was told after the run was taken up
    assert [line["loss"] for line in lines] == [line["loss"] for line in whole]


class Second(Ranks):
    """The second of two processes, whose first agrees to everything until it goes."""

    def __init__(self):
        super().__init__(1, 2)

    def sum(self, *numbers):
        return list(numbers)

    def all_reduce(self, tensor):
        return tensor

    def broadcast(self, value=None):
        return value


@pytest.mark.parametrize("saved", [None, 3])  # before the step 4 in which the first goes; whether it is on disk is open
def test_where_the_first_goes_in_a_step_another_writes_the_step_before(toy, tmp_path, saved):
    def gone(step):
        if step == 4:
            raise RuntimeError("gloo: Connection closed by peer")

    loop = toy.loop(tmp_path, at=gone, engine=Alone(Second()), save_every=saved or 50)
    with pytest.raises(HeedfulError, match=r"has ended, at step 4; the checkpoint of step 3 is in .*checkpoint\.pt"):
        loop.fit()
    state = Checkpoints(tmp_path).load()
    assert state["numbers"]["step"] == 3
    again = toy.loop(tmp_path, engine=Alone(Second()))
    again.fit()
    whole = toy.loop(engine=Alone(Second()))
    whole.fit()
    assert_same(everything(whole), everything(again))


class Shares(Alone):
    """As if each process held a share of the weights."""

    needs_all = True


@pytest.mark.parametrize("lost", [4, 7])
@pytest.mark.parametrize("ended", [0, 3])  # the step of the last one whose writing ended; every third is saved
def test_only_complete_shards_are_named(toy, tmp_path, ended, lost):
    error = RuntimeError("gloo: Connection closed by peer")

    def gone(step):
        if step == lost:
            raise error

    loop = toy.loop(tmp_path, at=gone, engine=Shares(Second()), save_every=3, evaluate=None, patience=None)
    write = loop.saving.checkpoints._write

    def some(state):
        if state["numbers"]["step"] > ended:
            raise error
        write(state)

    loop.saving.checkpoints._write = some
    with pytest.raises(HeedfulError, match=r"has ended, at step \d+; ") as told:
        loop.fit()
    assert ("the checkpoint of step 3 is in" in str(told.value)) == bool(ended)
    assert "checkpoint of step 6" not in str(told.value)
    assert (Checkpoints(tmp_path).load() is None) == (not ended)


def test_best_weights_that_were_replaced_are_forgotten(toy, tmp_path):
    loop = toy.loop(tmp_path)
    loop.fit()
    best = loop.state()["numbers"]["best"]
    assert not loop.forget_best(best["metrics"])
    assert loop.state()["numbers"]["best"] == best
    assert loop.forget_best({**best["metrics"], "loss": best["value"] + 1})
    assert [loop.state()["numbers"][name] for name in ("best", "highest", "stale")] == [None, None, 0]
    assert not loop.forget_best({})


def test_where_the_first_goes_in_an_evaluation_no_other_writes(toy, tmp_path):
    def gone():
        raise RuntimeError("gloo: Connection closed by peer")

    with pytest.raises(HeedfulError, match="has ended, at step 5; see its own error message") as error:
        toy.loop(tmp_path, engine=Alone(Second()), evaluate=gone).fit()
    assert "checkpoint" not in str(error.value)
    assert Checkpoints(tmp_path).load() is None, "the first may not have kept the best weights"


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(toy, straight, tmp_path, caplog):
    stopped = toy.loop(tmp_path, at=lambda step: [][0] if step == 17 else None)
    stopped.saving.checkpoints.keep = 2
    with pytest.raises(IndexError):
        stopped.fit()
    newest = stopped.saving.checkpoints.path
    newest.write_bytes(newest.read_bytes()[:-1])
    resumed = toy.loop(tmp_path)
    resumed.fit()
    assert "the run resumes from the older checkpoint.1.pt" in caplog.text
    assert_same(straight, everything(resumed))


def test_no_evaluation_is_made_twice(toy, tmp_path):
    made = []
    for stop in (13, 17, None):
        crashing = toy.loop(tmp_path, at=lambda step, stop=stop: [][0] if step == stop else None, save_every=4)

        def evaluate(loop=crashing):
            made.append(loop.step)
            return {"loss": 1.0}

        crashing.evaluation = replace(crashing.evaluation, measure=lambda step, share: evaluate())
        if stop is None:
            crashing.fit()
        else:
            with pytest.raises(IndexError):
                crashing.fit()
    assert made == [4, 8, 12, 16, 20]
    assert crashing.state()["numbers"]["stale"] == 4


def test_a_second_interrupt_leaves_at_once_and_saves_nothing(toy, tmp_path):
    def twice(step):
        if step == 8:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        toy.loop(tmp_path, at=twice).fit()
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == 6


def test_an_interrupt_out_of_a_step_is_no_reason_to_save_half_a_step(toy, tmp_path):
    def raising(step):
        if step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toy.loop(tmp_path, at=raising).fit()
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == 6


def test_the_loop_runs_outside_the_main_thread(toy):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(toy.loop(limits=Limits(max_steps=2)).fit()))
    thread.start()
    thread.join()
    assert outcomes[0].steps == 2


def test_saving_and_evaluating_change_nothing(toy, straight):
    bare = toy.loop(evaluate=None, patience=None)
    bare.fit()
    found = everything(bare)
    for part in ("model", "optimiser", "average"):
        assert_same({part: straight[part]}, found)


def test_limits_count_from_the_beginning_of_the_run(toy, straight, tmp_path):
    first = toy.loop(tmp_path)
    first.fit()
    again = toy.loop(tmp_path)
    outcome = again.fit()
    assert (outcome.steps, outcome.stopped_because) == (20, "already done")
    assert_same(straight, everything(again))
    longer = toy.loop(tmp_path, limits=Limits(max_steps=23)).fit()
    assert (longer.steps, longer.stopped_because) == (23, "max_steps")
    assert longer.seconds > outcome.seconds


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"average": None}, "averaging on"),
        ({"loader": (24, 1, 0)}, "accumulate, seed"),
        ({"loader": (25, 2, 1)}, "tokens"),
    ],
    ids=str,
)
def test_another_run_cannot_be_taken_up(toy, tmp_path, changed, words):
    toy.loop(tmp_path, limits=Limits(max_steps=2)).fit()
    if "loader" in changed:
        tokens, accumulate, seed = changed["loader"]
        changed = {"loader": Loader(toy.LENGTHS, toy.collate, tokens=tokens, accumulate=accumulate, seed=seed)}
    with pytest.raises(HeedfulError, match=words):
        toy.loop(tmp_path, **changed).fit()


def test_another_model_cannot_be_taken_up(toy, tmp_path):
    toy.loop(tmp_path, limits=Limits(max_steps=2)).fit()
    loop = toy.loop(tmp_path)
    loop.model.inner = torch.nn.Linear(8, 8, bias=False)
    with pytest.raises(HeedfulError, match=r"do not fit this model.*inner\.bias") as error:
        loop.fit()
    assert "\n" not in str(error.value)


def test_settings_given_on_resuming_hold(toy, tmp_path):
    toy.loop(tmp_path, limits=Limits(max_steps=2)).fit()
    loop = toy.loop(tmp_path, limits=Limits(max_steps=3), schedule=lambda step, progress: 0.5)
    loop.optimiser.param_groups[0]["weight_decay"] = 0.25
    loop.fit()
    assert loop.optimiser.param_groups[0]["weight_decay"] == 0.25
    assert loop.optimiser.param_groups[0]["lr"] == 0.01


def test_steps_are_made_while_a_checkpoint_is_written(toy, straight, tmp_path, monkeypatch):
    save, waited, steps = torch.save, threading.Event(), []

    def slow(state, file):
        if state["numbers"]["step"] == 3:
            assert waited.wait(30), "the loop waits for its checkpoint"
        save(state, file)

    def at(step):
        steps.append(step)
        if step == 6:  # the next save is after it
            waited.set()

    monkeypatch.setattr(torch, "save", slow)
    loop = toy.loop(tmp_path, at=at)
    loop.fit()
    assert_same(straight, everything(loop))
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == 20, "the last one is there when the run is over"


def test_a_checkpoint_that_cannot_be_written_ends_the_run(toy, tmp_path, monkeypatch):
    def full(state, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(HeedfulError, match=r"cannot write .*checkpoint\.pt: No space left"):
        toy.loop(tmp_path).fit()
