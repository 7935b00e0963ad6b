"""What ``torchrun`` runs for the tests of steps on several processes: ranks_steps.py FILE. The first writes what it
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
from ranks_script import Given, count, made, objective

from heedful.training import Limits, Loop, Objective, adamw
from heedful.training.callbacks import Callbacks, TrainingRun
from heedful.training.engine import Alone, Replicated, Sharded
from heedful.training.loop_parts import Evaluation
from heedful.training.schedule import constant
from heedful.util.ranks import Ranks, join_ranks

COLLECTIVES = ("all_reduce", "all_gather_object", "broadcast_object_list", "barrier")


def looped(engine: Alone, loss: Any = objective, **options: Any) -> Loop:
    """A run of six steps of four micro-batches."""
    model = made("decoder", dropout=0.1)
    learn = engine.wrap(model, loss)
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


def called_in_a_step(engine: Alone, callbacks: Callbacks | None) -> dict[str, int]:
    """Calls of each collective from the end of the third step to the end of the fourth."""
    calls, counts = Counter[str](), []

    def counted(name: str, function: Any, *args: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*args, **options)

    loop = looped(engine, callbacks=callbacks, after_step=lambda: counts.append(Counter(calls)))
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
        result[f"{engine.__name__}, callbacks"] = called_in_a_step(engine(ranks), called_back(ranks))
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
