"""``torch.compile`` makes a graph of fixed shapes and one of any length, of models and all losses, without a break."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import OBJECTIVES, PLANS, Compiled, losses, objective_of, of_forward, of_objective, of_static_step
from counted import FAMILIES, GENERATORS

BUDGET = Compiled(graphs=1, breaks=0, recompiled=1)

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("plan", PLANS)
def test_a_forward_pass(family: str, plan: str) -> None:
    assert of_forward(family, plan) == BUDGET


EVERY_LOSS = sorted(((*loss, plan) for loss in losses() for plan in PLANS), key=lambda case: -case[1])
# each plan, an encoder, a decoder and both, with R-Drop and without it
FIRST_LOSSES = [
    ("language model", 0.1, "gpu"),
    ("seq2seq, r-drop", 0.1, "gpu"),
    ("classification", 0.1, "plain"),
]


@pytest.mark.full(keep=len(FIRST_LOSSES))
@pytest.mark.parametrize(("name", "dropout", "plan"), dict.fromkeys([*FIRST_LOSSES, *EVERY_LOSS]))
def test_the_loss_of_a_task(name: str, dropout: float, plan: str, tmp_path: Path) -> None:
    task, options = OBJECTIVES[name]
    objective = objective_of(task, tmp_path, *options, f"--model.dropout={dropout}")
    assert of_objective(objective, plan) == BUDGET


@pytest.mark.full(keep=1)  # test_static.py compiles the static step of more kinds of models
@pytest.mark.parametrize("name", GENERATORS)
def test_the_static_step(name: str) -> None:
    assert of_static_step(name) == Compiled(graphs=1, breaks=0, recompiled=0)
