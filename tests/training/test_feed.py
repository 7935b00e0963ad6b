"""Batches one step ahead of a GPU: the same run, bit for bit."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits, Loader
from heedful.training.engine import Alone
from heedful.training.feed import PrefetchingLoader
from heedful.training.gradient import Batch, MicroBatches
from heedful.util.ranks import Ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def created(fails: int | None = None) -> tuple[PrefetchingLoader, Loader]:
    """A feed and its loader, whose micro-batch number ``fails`` cannot be collated."""
    collated = []

    def collate(indices: np.ndarray, random: np.random.Generator) -> dict[str, torch.Tensor]:
        collated.append(indices)
        if len(collated) == fails:
            raise HeedfulError(f"row {indices[0]} is damaged")
        return {"indices": torch.from_numpy(indices)}

    def share(step: int, batches: Any) -> MicroBatches:
        own = list(batches)  # collates
        return MicroBatches(step, list(enumerate(own)), sum(len(batch["indices"]) for batch in own), False)

    loader = Loader(np.ones(20, dtype=int), collate, tokens=4, seed=3)
    return PrefetchingLoader(loader, share), loader


def indices(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch["indices"].tolist()]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_the_order_and_the_position_are_those_of_the_loader(looks_ahead: bool) -> None:
    (feed, loader), (_, reference) = created(), created()
    for step in range(12):
        expected, epochs, state = indices(next(reference)), reference.epochs, reference.state_dict()
        taken = feed.take(step)
        if looks_ahead:
            feed.prefetch(step + 1)
            feed.prefetch(step + 1)
        assert taken.step == step
        assert indices(taken.own) == expected
        assert (feed.epochs, feed.state_dict()) == (epochs, state)
    assert (loader.state_dict() != state) == looks_ahead
    feed.close()
    assert loader.state_dict() == state
    assert indices(next(loader)) == indices(next(reference))


def test_an_error_is_raised_where_its_step_is_taken() -> None:
    feed, loader = created(fails=3)
    assert feed.count_next(0) == 4
    assert feed.count_next(0) == 4
    feed.take(0)
    feed.prefetch(1)
    feed.take(1)
    state = feed.state_dict()
    assert feed.count_next(2) == 0
    assert feed.state_dict() == state != loader.state_dict()
    with pytest.raises(HeedfulError, match=r"row [0-9]+ is damaged"):
        feed.take(2)


# ----------------------------------------------------------------------------------------------------------- whole runs


def loop(toy: Any, device: torch.device, *arguments: Any, **options: Any) -> Any:
    """The toy run on the CPU, fed as ``device`` would be."""
    made = toy.loop(*arguments, **options)
    if device is GPU:
        learn = made._learn

        def learn_and_look_ahead(micro_batches: MicroBatches) -> Any:
            result = learn(micro_batches)
            if not made._ends_at(made.step + 1):
                made._feed.prefetch(made.step + 1)
            return result

        made._learn = learn_and_look_ahead
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
    assert Checkpoints(tmp_path).load()["numbers"]["step"] == at  # type: ignore[index]
    resumed = loop(toy, GPU, tmp_path)
    resumed.fit()
    assert end(resumed) == end(whole)


def test_an_error_in_a_step_is_its_own(toy: Any) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise ValueError("a bug")

    run = loop(toy, GPU, at=fail)
    with pytest.raises(ValueError, match="a bug"):
        run.fit()
    assert run.step == 2


def test_an_error_of_prefetching_is_raised_in_its_own_step(toy: Any) -> None:
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
