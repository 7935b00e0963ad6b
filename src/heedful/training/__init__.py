"""Training: the loop and what it is given.

``loop`` the one loop, made of functions; ``schedule`` where a run ends and its learning rate; ``optimisation`` AdamW,
``muon`` Muon; ``averages`` of the weights; ``loader`` whole steps, resumable; ``checkpoint`` the file a run is taken up
from, ``beginning`` its folder; ``log`` ``metrics.jsonl`` and the progress bar, ``ceiling`` the share of
what the machine can compute; ``run`` puts them together for a task, with the settings that ``choices`` finds and the
words of ``report``; ``watch`` looks into the model at each evaluation, and ``series`` is the file of what it saw. Only
these but ``series`` import models and tasks; the loop must go on knowing neither.
"""

from heedful.training.averages import Exponential, Last, Polynomial
from heedful.training.checkpoint import Checkpoints
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop, Outcome
from heedful.training.optimisation import adamw
from heedful.training.schedule import SCHEDULES, Limits

__all__ = [
    "SCHEDULES",
    "Checkpoints",
    "Exponential",
    "Last",
    "Limits",
    "Loader",
    "Log",
    "Loop",
    "Outcome",
    "Polynomial",
    "adamw",
]
