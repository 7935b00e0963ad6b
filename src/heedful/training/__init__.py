"""Training: the loop and the objects that it takes.

- ``run`` puts a training run together for a task; ``resolve`` resolves its settings, ``time_limit`` fits them to
  ``--max-minutes``, ``report`` writes its lines and metadata;
- ``loop`` is the loop; ``gradient`` the gradient of one step, ``guard`` its checks, ``memory`` what follows an
  out-of-memory error; ``loader`` yields whole steps and resumes;
- ``optimisation`` (AdamW) and ``muon`` update the weights, ``layer_rates`` scales learning rates by depth, ``schedule``
  has the schedules and limits, ``averages`` averages weights;
- ``checkpoint`` is the file that a run resumes from (``sharded``: one a rank), ``run_folder`` its folder;
- ``engine`` runs several processes, ``determinism`` asks for the same bits;
- ``log`` writes ``metrics.jsonl`` and the progress bar, ``reporters`` other places, ``ceiling`` the share of the
  machine's peak; ``record_attention`` and ``series`` record attention maps over a run; ``range_test`` tries learning
  rates.

``loop`` knows no model and no task; ``run`` and ``record_attention`` do.
"""

from heedful.training.averages import Exponential, Last, Polynomial
from heedful.training.checkpoint import Checkpoints
from heedful.training.guard import GradientLimits
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop
from heedful.training.loop_parts import Evaluation, Logging, Objective, Outcome, Saving
from heedful.training.optimisation import adamw
from heedful.training.schedule import SCHEDULES, Limits

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
    "adamw",
]
