"""Steps on several processes, started by ``torchrun``: ranks_steps.py FILE. The first writes what it
found: the collectives of a step, and the steps after which runs stop.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks_script import Given, count, made, objective
from torch import nn

from heedful.training import Limits, Loop, Objective, adamw
from heedful.training.callbacks import Callbacks, TrainingRun
from heedful.training.engine import Alone, Replicated, Sharded
from heedful.training.loop_parts import Evaluation, Logging
from heedful.training.schedule import constant
from heedful.util.ranks import Ranks, join_ranks

COLLECTIVES = ("all_reduce", "all_gather_object", "broadcast_object_list", "barrier")


class Pooled(nn.Module):
    """A batch norm, whose buffers change, and a pooler that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.dropout = nn.Embedding(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.output, self.pooler = nn.Linear(8, 20), nn.Linear(8, 20)

    def forward(self, rows: Any, is_pooled: bool) -> Any:
        hidden = self.dropout(self.norm(self.embedding(rows).transpose(1, 2)).transpose(1, 2))
        return (self.output(hidden) + self.pooler(hidden) if is_pooled else self.output(hidden)).flatten(0, 1)


def looped(
    engine: Alone, loss: Any = objective, model: Any = None, same_parameters: bool = False, **options: Any
) -> Loop:
    """A run of six steps of four micro-batches."""
    model = made("decoder", dropout=0.1) if model is None else model
    learn = engine.wrap(model, loss, same_parameters)
    settings: dict[str, Any] = {"limits": Limits(max_steps=6), **options}
    return Loop(
        model=model,
        objective=Objective(loss=learn, count=count),
        loader=Given([2, 2, 2, 2]),
        optimiser=adamw(model, lr=0.01),
        schedule=constant(),
        engine=engine,
        **settings,
    )


def called_in_a_step(engine: Alone, callbacks: Callbacks | None, log_every: int = 50) -> dict[str, int]:
    """Calls of each collective from the end of the third step to the end of the fourth."""
    calls, counts = Counter[str](), []

    def counted(name: str, function: Any, *args: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*args, **options)

    logging = Logging(every=log_every)
    loop = looped(engine, callbacks=callbacks, logging=logging, after_step=lambda: counts.append(Counter(calls)))
    with mock.patch.multiple(dist, **{name: partial(counted, name, getattr(dist, name)) for name in COLLECTIVES}):
        loop.fit()
    return dict(counts[3] - counts[2])


def called_back(ranks: Ranks, *functions: Any) -> Callbacks:
    return Callbacks(functions if ranks.is_first else (), TrainingRun("nowhere", "none"))


def stopped(ranks: Ranks, at: Any = None, functions: Any = None, **options: Any) -> list[int]:
    """The last step on each rank, where ``at(step)`` is called in the loss and ``functions`` after a step."""

    def loss(model: Any, batch: Any) -> Any:
        if at is not None:
            at(loop.step)
        return objective(model, batch)

    callbacks = None if functions is None else called_back(ranks, *functions)
    loop = looped(Replicated(ranks), loss, callbacks=callbacks, **options)
    with suppress(KeyboardInterrupt):
        loop.fit()
    return ranks.gather(loop.step)


def searched(ranks: Ranks, pooled: Any) -> dict[str, Any]:
    """Tells if DDP searches for unused parameters, and if the run is that of a DDP which always does.

    ``pooled(step)`` says which batches use the pooler.
    """

    def loss(model: Any, batch: Any) -> Any:
        logits = model(batch["rows"], pooled(loop.step))
        return F.cross_entropy(logits, batch["rows"].flatten(), reduction="sum")

    ends, engines = [], []
    for same_parameters in (True, False):
        torch.manual_seed(0)
        engines.append(Replicated(ranks))
        loop = looped(engines[-1], loss, Pooled(), same_parameters)
        loop.fit()
        ends.append(loop.model.state_dict())
    if engines[0]._ddp is None or engines[1]._ddp is None or not engines[1]._ddp.find_unused_parameters:
        raise AssertionError("both engines wrap the model, and the second searches for unused parameters")
    same = all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    return {"searches": engines[0]._ddp.find_unused_parameters, "same": same}


def tables(ranks: Ranks, is_saved: bool) -> list[float]:
    """On each rank a buffer that was set to the rank's number before the last steps."""
    model = nn.Linear(6, 20).double()
    model.register_buffer("table", torch.zeros(1), persistent=is_saved)

    def set_table() -> None:
        if loop.step == 2:
            model.table.fill_(ranks.rank)

    def loss(model: Any, batch: Any) -> Any:
        return model(batch["rows"].double()).square().mean()

    loop = looped(Replicated(ranks), loss, model, after_step=set_table)
    loop.fit()
    return ranks.gather(model.table.item())


def found(ranks: Ranks) -> dict[str, Any]:
    def interrupted(step: int) -> None:
        if step == 2 and ranks.rank == 1 and not received:
            received.append(step)
            signal.raise_signal(signal.SIGINT)

    def measured(step: int, share: float) -> dict[str, float]:
        interrupted(step)
        return {"loss": 1.0}

    received: list[int] = []
    result: dict[str, Any] = {}
    for engine in (Replicated, Sharded):
        result[engine.__name__] = called_in_a_step(engine(ranks), None)
        result[f"{engine.__name__}, log line"] = called_in_a_step(engine(ranks), None, log_every=1)
        result[f"{engine.__name__}, callbacks"] = called_in_a_step(engine(ranks), called_back(ranks))
    result["tables"], result["statistics"] = tables(ranks, False), tables(ranks, True)
    result["all used"] = searched(ranks, lambda step: True)
    result["never used"] = searched(ranks, lambda step: False)
    result["used by one"] = searched(ranks, lambda step: ranks.is_first)
    result["interrupted"] = stopped(ranks, interrupted)
    received.clear()
    result["interrupted evaluation"] = stopped(ranks, evaluation=Evaluation(measure=measured, every=2))
    result["callback"] = stopped(ranks, functions=[lambda run: run.step == 2 and run.stop()])
    result["time"] = stopped(ranks, limits=Limits(max_minutes=1e-9))
    return result


def main() -> None:
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        result = found(ranks)
        if ranks.is_first:
            Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
