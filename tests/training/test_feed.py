"""Batches one step ahead of a GPU: the same run, bit for bit, and no thread after a step."""

from __future__ import annotations

import signal
import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits, Loader
from heedful.training.engine import Alone
from heedful.training.feed import Feed
from heedful.training.gradient import Batch, MicroBatches
from heedful.util.ranks import Ranks

CPU, GPU = torch.device("cpu"), torch.device("mps")  # a device for which nothing is pinned


def created(device: torch.device, fails: int | None = None) -> tuple[Feed, Loader, list[str]]:
    """A feed, its loader, and the names of the threads that have collated."""
    threads: list[str] = []

    def collate(indices: np.ndarray, random: np.random.Generator) -> dict[str, torch.Tensor]:
        threads.append(threading.current_thread().name)
        if len(threads) == fails:
            raise HeedfulError(f"row {indices[0]} is damaged")
        return {"indices": torch.from_numpy(indices)}

    def share(step: int, batches: Any) -> MicroBatches:
        own = list(batches)  # collates
        return MicroBatches(step, list(enumerate(own)), sum(len(batch["indices"]) for batch in own), False)

    loader = Loader(np.ones(20, dtype=int), collate, tokens=4, seed=3)
    return Feed(loader, share, device), loader, threads


def no_thread_is_left() -> bool:
    return "batches" not in {thread.name for thread in threading.enumerate()}


def indices(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch["indices"].tolist()]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_order_and_the_position_are_those_of_the_loader(device: torch.device, counted: bool) -> None:
    feed, loader, threads = created(device)
    reference = created(device)[1]
    for step in range(12):
        expected, epochs, state = indices(next(reference)), reference.epochs, reference.state_dict()
        if counted:
            assert feed.count_next(step) == len(expected)
        taken = feed.take(step)
        with feed.ahead(step + 1):
            assert taken.step == step
            assert indices(taken.own) == expected
        assert (feed.epochs, feed.state_dict()) == (epochs, state)
        assert no_thread_is_left()
    assert set(threads[1:]) == {"batches" if device is GPU else "MainThread"}
    ahead = loader.state_dict() != state
    assert ahead == (device is GPU)
    feed.close()
    assert loader.state_dict() == state
    assert [indices(next(loader))] == [indices(step) for step in islice(reference, 1)]


def test_nothing_is_collated_that_no_step_takes() -> None:
    feed, _, threads = created(GPU)
    feed.take(0)
    with feed.ahead(None):
        pass
    assert len(threads) == 1


@pytest.mark.parametrize("counted", [False, True])
def test_an_error_is_raised_where_its_step_is_taken(counted: bool) -> None:
    feed, loader, _ = created(CPU if counted else GPU, fails=2)
    feed.take(0)
    state = loader.state_dict()
    with feed.ahead(1):
        pass
    if counted:
        assert feed.count_next(1) == 0
    assert feed.state_dict() == state
    with pytest.raises(HeedfulError, match=r"row [0-9]+ is damaged"):
        feed.take(1)


# ----------------------------------------------------------------------------------------------------------- whole runs


def loop(toy: Any, device: torch.device, *arguments: Any, **options: Any) -> Any:
    """The toy run on the CPU, fed as ``device`` would be."""
    made = toy.loop(*arguments, **options)
    made._feed._device = device
    return made


def end(loop: Any) -> list[Any]:
    state = loop.state()
    numbers = {name: value for name, value in state["numbers"].items() if not name.endswith("seconds")}
    return [numbers, state["loader"], *(value.tolist() for value in state["model"].values())]


def test_a_run_that_is_fed_ahead_has_the_same_bits(toy: Any) -> None:
    ends = []
    for device in (CPU, GPU):
        run = loop(toy, device)
        run.fit()
        ends.append(end(run))
        assert run.loader.state_dict() == run.state()["loader"]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("at", [7, 12])
def test_an_interrupted_run_goes_on_with_the_same_bits(toy: Any, tmp_path: Any, at: int) -> None:
    sent: list[int] = []

    def once(step: int) -> None:
        if step == at and not sent:
            sent.append(step)
            signal.raise_signal(signal.SIGINT)

    whole = loop(toy, CPU)
    whole.fit()
    stopped = loop(toy, GPU, tmp_path, at=once)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    assert no_thread_is_left()
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == at  # type: ignore[index]
    resumed = loop(toy, GPU, tmp_path)
    resumed.fit()
    assert end(resumed) == end(whole)


def test_an_error_in_a_step_leaves_no_thread(toy: Any) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise ValueError("a bug")

    run = loop(toy, GPU, at=fail)
    with pytest.raises(ValueError, match="a bug"):
        run.fit()
    assert no_thread_is_left()
    assert run.step == 2


def test_what_fails_ahead_fails_in_its_own_step(toy: Any) -> None:
    collated = []

    def collate(rows: np.ndarray, random: np.random.Generator) -> dict[str, torch.Tensor]:
        collated.append(rows)
        if len(collated) == 6:
            raise HeedfulError("data.tsv:7: the image is damaged; remove the row")
        return toy.collate(rows)

    loader = Loader(toy.LENGTHS, collate, tokens=24, accumulate=1, seed=1)
    run = loop(toy, GPU, loader=loader)
    with pytest.raises(HeedfulError, match=r"^data\.tsv:7: the image is damaged; remove the row$"):
        run.fit()
    assert run.step == 5


def test_several_ranks_know_the_predictions_of_a_step_before_it(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two equal ones: each sum is twice its own number."""
    sums = []

    def total(self: Ranks, *numbers: float) -> list[float]:
        if len(numbers) > 1:  # the other ones follow a line of the log
            sums.append(numbers)
        return [2 * number for number in numbers]

    monkeypatch.setattr(Ranks, "sum", total)
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, tensor: tensor)
    counted: list[int] = []

    def count(batch: Any) -> int:
        counted.append(toy.count(batch))
        return counted[-1]

    run = loop(toy, CPU, engine=Alone(Ranks(0, 2)), count=count, evaluate=None, patience=None, checkpoints=None)
    run.limits = run._clock.limits = Limits(max_steps=4)
    run.fit()
    assert len(sums) == 5, "one collective a step, and one before the first"
    assert [numbers[-1] for numbers in sums[:-1]] == counted
    assert sums[-1][-1] == 0, "no step follows"
    assert run.state()["numbers"]["tokens"] == 2 * sum(counted)
