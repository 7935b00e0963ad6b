from __future__ import annotations

import copy
from itertools import islice

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import Loader

LENGTHS = np.random.default_rng(0).integers(1, 20, 100)


def indices(chosen, random):
    return {"indices": torch.from_numpy(chosen), "drawn": torch.from_numpy(random.integers(1 << 60, size=2))}


def loader(lengths=LENGTHS, collate=indices, **options):
    return Loader(lengths, collate, **{"tokens": 60, "accumulate": 4, "seed": 3} | options)


def take(source, steps):
    return [[batch["indices"].tolist() for batch in step] for step in islice(source, steps)]


def test_an_epoch_holds_every_example_once_and_steps_never_mix_epochs():
    source = loader()
    for epoch in range(3):
        steps = take(source, 1) + take(source, source.steps_per_epoch - 1)
        assert source.epochs == epoch + 1
        assert sorted(i for step in steps for batch in step for i in batch) == list(range(100))
        assert {len(step) for step in steps[:-1]} == {4}
        assert 1 <= len(steps[-1]) <= 4


def test_random_numbers_of_a_batch_come_again_after_a_resume():
    def drawn(source, steps):
        return [tuple(batch["drawn"].tolist()) for step in islice(source, steps) for batch in step]

    source = loader()
    first = drawn(source, 3)
    state = copy.deepcopy(source.state_dict())
    rest = drawn(source, 3 * source.steps_per_epoch)
    assert len(set(first + rest)) == len(first + rest)  # every batch of every epoch draws anew
    resumed = loader()
    resumed.load_state_dict(state)
    assert drawn(resumed, 3 * source.steps_per_epoch) == rest
    assert drawn(loader(seed=4), 3) != first


def test_epochs_differ():
    source = loader()
    first = take(source, source.steps_per_epoch)
    assert first != take(source, len(first))


def test_the_share_of_an_epoch_counts_steps():
    source = loader()
    assert source.epochs == 0
    take(source, 1)
    assert source.epochs == 1 / source.steps_per_epoch


def test_from_any_step_the_state_goes_on_with_the_next():
    source = loader()
    steps, states = [], []
    for _ in range(3 * source.steps_per_epoch):
        steps += take(source, 1)
        states.append(copy.deepcopy(source.state_dict()))
    for at, state in enumerate(states[:-1]):
        resumed = loader()
        resumed.load_state_dict(state)
        assert take(resumed, len(steps) - at - 1) == steps[at + 1 :]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lengths": LENGTHS[:-1]}, "lengths"),
        ({"lengths": LENGTHS[::-1]}, "lengths"),
        ({"lengths": LENGTHS.reshape(50, 2)}, "lengths"),
        ({"tokens": 61}, "tokens"),
        ({"accumulate": 3}, "accumulate"),
        ({"seed": 4}, "seed"),
        ({"max_rows": 5}, "max_rows"),
        ({"digests": {"training data": "b"}}, "training data"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_state_of_another_order_is_refused(changed, named):
    source = loader()
    take(source, 2)
    with pytest.raises(HeedfulError, match=rf"changed: {named}\)"):
        loader(**changed).load_state_dict(source.state_dict())


def test_the_same_lengths_given_otherwise_are_the_same_data():
    source = loader()
    loader(lengths=LENGTHS.astype(np.int32).tolist()).load_state_dict(source.state_dict())


@pytest.mark.parametrize(("options", "words"), [({"lengths": []}, "no example"), ({"accumulate": 0}, "at least 1")])
def test_data_without_a_step_are_refused(options, words):
    with pytest.raises(HeedfulError, match=words):
        loader(**options)
