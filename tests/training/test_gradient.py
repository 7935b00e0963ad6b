"""A step's gradient: ranks one after the other in one process, whose gradients add up to that of the whole."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from heedful.training.engine import Alone
from heedful.training.gradient import Gradient
from heedful.util.random_state import seed_generators
from heedful.util.ranks import Ranks, own_device
from tolerances import assert_close

BATCHES = [{"x": torch.full((rows, 3), 0.5 + rows, dtype=torch.float64)} for rows in (4, 1, 3, 2)]


def made(engine: Alone, **options) -> Gradient:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    settings = {
        "loss": lambda model, batch: model(batch["x"]).square().sum(),
        "count": lambda batch: len(batch["x"]),
        "precision": "fp32",
        "seed": 7,
        "device": torch.device("cpu"),
        "on_split": None,
    }
    return Gradient(model=model, engine=engine, zero_grad=model.zero_grad, **{**settings, **options})


def grads(gradient: Gradient) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in gradient.model.parameters()])


def computed(engine: Alone) -> tuple[torch.Tensor, float]:
    gradient = made(engine)
    loss = gradient.compute(replace(gradient.micro_batches(5, BATCHES), total=10))
    return grads(gradient), loss.item()


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_ranks_together_have_the_gradient_of_one(size):
    whole, loss = computed(Alone())
    parts = [computed(Alone(Ranks(rank, size))) for rank in range(size)]
    assert_close(sum(part for part, _ in parts) / size, whole)  # the engines divide by the ranks
    assert sum(each for _, each in parts) == pytest.approx(loss)


def test_every_rank_passes_as_often_and_the_idle_ones_count_nothing():
    shares = [made(Alone(Ranks(rank, 3))).micro_batches(0, BATCHES) for rank in range(3)]
    assert [[number for number, _ in share.numbered] for share in shares] == [[0, 3], [1, 4], [2, 5]]
    assert [share.has_filler for share in shares] == [False, True, True]
    assert [[len(batch["x"]) for batch in share.own] for share in shares] == [[4, 2], [1], [3]]
    assert [share.total for share in shares] == [6, 1, 3]


def test_random_numbers_depend_on_the_step_and_the_number_alone():
    gradient = made(Alone())
    drawn = [gradient.compute(gradient.micro_batches(step, BATCHES)).item() for step in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_every_kind_of_full_memory_splits_a_batch(error: RuntimeError) -> None:
    parts = []

    def objective(model: nn.Module, batch) -> torch.Tensor:
        if len(batch["x"]) > 2:
            raise error
        return model[0](batch["x"]).square().sum()

    gradient = made(Alone(), loss=objective, on_split=parts.append)
    gradient.compute(gradient.micro_batches(0, BATCHES))
    assert parts == [2]
    several = made(Alone(Ranks(0, 2)), loss=objective, on_split=parts.append)
    with pytest.raises(RuntimeError, match=re.escape(str(error)[:20])):  # the others wait in a sum
        several.compute(several.micro_batches(0, BATCHES))


def test_another_error_splits_no_batch() -> None:
    def objective(model: nn.Module, batch) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    gradient = made(Alone(), loss=objective, on_split=list)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gradient.compute(gradient.micro_batches(0, BATCHES))


def test_large_batches_are_split_until_they_fit_and_stay_so():
    told, rows = [], []

    def objective(model: nn.Module, batch) -> torch.Tensor:
        if len(batch["x"]) > 1:
            raise torch.OutOfMemoryError("full")
        rows.append(len(batch["x"]))
        return model[0](batch["x"]).square().sum()

    gradient = made(Alone(), loss=objective, on_split=told.append)
    loss = gradient.compute(gradient.micro_batches(0, BATCHES))
    assert (told, gradient.parts, sum(rows)) == ([2, 4], 4, 10)
    whole = made(Alone(), loss=lambda model, batch: model[0](batch["x"]).square().sum())
    assert loss.item() == pytest.approx(whole.compute(whole.micro_batches(0, BATCHES)).item())
    assert_close(grads(gradient), grads(whole))


def test_the_second_gpu_draws_from_its_own_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name, number in (("cuda:1", 1), ("cuda", 0)):
        seed_generators(7 + number, torch.device(name))
        assert generators[number].initial_seed() == torch.initial_seed() == 7 + number


@pytest.mark.parametrize(
    ("asked", "rank", "found"),
    [
        (None, "1", "cuda:1"),
        ("cuda", "1", "cuda:1"),
        ("cuda:0", "1", "cuda:0"),
        ("cpu", "1", "cpu"),
        (None, None, None),
    ],
)
def test_each_process_has_the_gpu_of_its_number(
    asked: str | None, rank: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert own_device(asked) == found
    assert current == ([1] if found == "cuda:1" else [])
