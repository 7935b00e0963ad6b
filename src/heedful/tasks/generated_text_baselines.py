"""Baselines of tasks that generate texts: the target of the nearest training source, and one text for all inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.metrics.registry import sign
from heedful.tasks.baselines import constant_texts, evenly_spaced, nearest_texts
from heedful.tasks.task import Baseline, short

SAMPLE = 200  # training rows on which the best constant text is chosen
Score = Callable[[str, Sequence[str], Rows], Baseline]  # (name, outputs, rows) -> baseline


def nearest_targets(
    learned: Rows,
    rows: Rows,
    source_of: Callable[[Row], str],
    target_of: Callable[[Row], str],
    group_of: Callable[[Row], Hashable] = lambda row: None,
) -> list[str]:
    """Returns for each of ``rows`` the target of the training row with the most similar source (``nearest_texts``).

    Only training rows of the same group count, such as those of the same target language; without such rows the output
    is "".
    """
    outputs, groups = [""] * len(rows), dict[Hashable, list[int]]()
    for index, row in enumerate(rows):
        groups.setdefault(group_of(row), []).append(index)
    for group, indices in groups.items():
        known = [row for row in learned if group_of(row) == group]
        places = nearest_texts([*map(source_of, known)], [source_of(rows[i]) for i in indices]) if known else []
        for index, place in zip(indices, places, strict=False):
            outputs[index] = target_of(known[place])
    return outputs


def with_learned(
    learned: Callable[[], Rows], methods: Mapping[str, Callable[[Rows], list[str]]], others: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Returns the outputs of simple methods by name: of ``methods``, which learn from the training rows, and
    ``others``, which learn nothing.

    A folder may not say what its model was trained on. Then there are only the others, and their names say so.
    """
    try:
        rows = learned()
    except HeedfulError:
        return {f"{other}; the training data is unknown": outputs for other, outputs in others.items()}
    return {**{name: method(rows) for name, method in methods.items()}, **others}


def best_constant(learned: Rows, rows: Rows, target_of: Callable[[Row], str], score: Score, *metrics: str) -> Baseline:
    """Scores the same text for every input: of ``constant_texts`` of the training targets the best one by ``metrics``
    (``better_of``) on at most 200 training rows.
    """
    sample = Rows(learned[i] for i in evenly_spaced(len(learned), SAMPLE))
    candidates = constant_texts([target_of(row) for row in learned])
    scored = {text: score("", [text] * len(sample), sample) for text in candidates}
    best = better_of([*scored.values()], *metrics)
    text = next(text for text in candidates if scored[text] is best)
    return score(f"one text for all inputs, {short(text, 40)!r}", [text] * len(rows), rows)


def better_of(baselines: Sequence[Baseline], *metrics: str) -> Baseline:
    """Returns the best baseline by the first of ``metrics``, of equal ones by the next; else the first baseline."""
    return max(baselines, key=lambda baseline: [sign(metric) * baseline.metrics[metric] for metric in metrics])
