"""Training: the loop and the objects that it takes.

- ``run`` trains a model for a task: ``resolve`` resolves its settings, ``time_limit`` fits them to ``--max-minutes``,
  ``report`` writes its lines and metadata, ``finish`` ends it;
- ``loop`` is the loop, ``loop_parts`` the objects that it takes; ``gradient`` computes the gradient of a step,
  ``router_loss`` adds the loss of a router, ``guard`` checks it, ``memory`` handles out-of-memory errors; ``loader``
  yields steps and resumes, ``feed`` collates them ahead;
- ``optimisation`` (AdamW, learning rates by depth) and ``muon`` update the weights, ``schedule`` has schedules and
  limits, ``averages`` averages weights, ``validation`` evaluates them, ``best_weights`` chooses the best;
- ``checkpoint`` is the file from which a run resumes (``sharded``: one a rank), ``run_folder`` its folder;
- ``engine`` runs one or several processes, ``determinism`` makes results repeatable, ``clock`` counts time,
  ``pace`` plans the steps of ``--max-minutes`` anew;
- ``log`` writes ``metrics.jsonl`` and the progress bar, ``reporters`` send its lines elsewhere, ``ceiling`` measures
  the share of the machine's peak; ``record_attention`` and ``series`` record attention maps over a run;
  ``range_test`` tries learning rates.

``loop`` knows no model and no task; ``run`` and ``record_attention`` do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heedful.training.averages import Exponential, Last, Polynomial
from heedful.training.callbacks import TrainingRun
from heedful.training.checkpoint import Checkpoints
from heedful.training.guard import GradientLimits
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop
from heedful.training.loop_parts import Evaluation, Logging, Objective, Outcome, Saving
from heedful.training.optimisation import adamw
from heedful.training.router_loss import recording_routers
from heedful.training.schedule import SCHEDULES, Limits

if TYPE_CHECKING:
    from heedful.training.run import train

__all__ = [
    "SCHEDULES",
    "Checkpoints",
    "Evaluation",
    "Exponential",
    "GradientLimits",
    "Last",
    "Limits",
    "Loader",
    "Log",
    "Logging",
    "Loop",
    "Objective",
    "Outcome",
    "Polynomial",
    "Saving",
    "TrainingRun",
    "adamw",
    "recording_routers",
    "train",
]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "train":  # imported on first use, with all that a whole run needs
            return import_module("heedful.training.run").train
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
