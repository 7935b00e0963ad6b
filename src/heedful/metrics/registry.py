"""Registry of metrics: each has a label and a direction (higher or lower is better), listed in its scorer's file.

Every file of this package may have a tuple ``METRICS``. For a metric that no file
lists, higher is better, and its label is its name. No torch.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from heedful import metrics


@dataclass(frozen=True)
class Metric:
    """Name, label and direction (higher or lower is better) of a metric."""

    name: str  #: its key in the metrics of a run or an evaluation
    label: str  #: on the axis of a figure, with its unit
    lower_is_better: bool = False  #: else higher is better
    headline: bool = False  #: figures of a run show a headline metric before others


REGISTERED: dict[str, Metric] = {}  # by ``heedful.register``


@cache
def registered() -> Mapping[str, Metric]:
    """Returns every metric that a file of this package lists, by name."""
    modules = (import_module(f"{metrics.__name__}.{module.name}") for module in pkgutil.iter_modules(metrics.__path__))
    listed = [metric for module in modules for metric in getattr(module, "METRICS", ())]
    table = {metric.name: metric for metric in listed}
    if len(table) < len(listed):
        raise ValueError(f"a metric is listed twice: {sorted(metric.name for metric in listed)}; remove one entry")
    return table | REGISTERED


def lower_is_better(name: str) -> bool:
    """Returns True if a lower value of the metric is better. For a name that is not listed, higher is better.

    >>> lower_is_better("loss"), lower_is_better("bleu"), lower_is_better("my_score")
    (True, False, False)
    """
    return name in registered() and registered()[name].lower_is_better


def sign(name: str) -> int:
    """Returns −1 if lower is better, else 1: ``sign(name) * value`` is highest for the best value."""
    return -1 if lower_is_better(name) else 1


def label_of(name: str) -> str:
    """Returns a metric's label for people. A name that is not listed is its own label, with spaces for underscores.

    >>> label_of("micro_f1"), label_of("my_score")
    ('micro F1, %', 'my score')
    """
    return registered()[name].label if name in registered() else name.replace("_", " ")


def most_telling(names: Iterable[str]) -> str | None:
    """Returns the name of the metric that a figure of a run shows.

    It is the first headline metric among ``names``, else the first listed metric, else the first name; None if there
    are no names.

    >>> most_telling(["exact_match", "micro_f1", "my_score"])
    'micro_f1'
    """

    def rank(name: str) -> int:
        return 1 + registered()[name].headline if name in registered() else 0

    return max(names, key=rank, default=None)
