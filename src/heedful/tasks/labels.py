"""Labels of rows and of models, for all classifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data import Row, Rows
from heedful.data.cell_values import brief
from heedful.data.column_inference import MAX_DISTINCT_NAMES, columns_option, implausible_classes
from heedful.data.file_formats import EXTENSIONS
from heedful.data.split import Same, content_digest
from heedful.data.text_files import extension
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.classification import ClassifierScores
from heedful.metrics.example_scores import overall
from heedful.pretrained.config_keys import label_names
from heedful.tasks.task import Baseline


def row_labels(row: Row) -> tuple[str, ...]:
    """Returns the labels of a row, a tuple even if there is only one."""
    label = row.values["label"]
    return (label,) if isinstance(label, str) else label


def are_multi_label(rows: Sequence[Row]) -> bool:
    """Returns True if rows may have several labels, or none: their labels are tuples."""
    return not isinstance(rows[0].values["label"], str)


def training_labels(rows: Sequence[Row]) -> list[str]:
    """Returns the training labels in alphabetical order; raises ``HeedfulError`` for fewer than two labels."""
    names = sorted({label for row in rows for label in row_labels(row)})
    if not names or (len(names) == 1 and not are_multi_label(rows)):
        which = f"only the label {names[0]!r}" if names else "no label"
        raise HeedfulError(
            f"{rows[0].file}: {which} in {plural(len(rows), 'row')}; add rows, so that there are two or more "
            "different labels"
        )
    return names


def constant_baseline(labels: Sequence[str], rows: Rows, learned: Rows) -> Baseline:
    """Scores the best prediction that ignores the input: the most frequent label of the rows ``learned``.

    With several labels a row it is the k most frequent labels, for the k with the highest micro F1 on ``learned``:
    2 Σ n(label) / (k · rows + Σ n of all labels), with the sum over the k labels.
    """
    counts = Counter(label for row in learned for label in row_labels(row)).most_common()
    name, constant = "the most frequent label", tuple(label for label, _ in counts[:1])
    if counts and are_multi_label(rows):
        total, hits = sum(count for _, count in counts), np.cumsum([count for _, count in counts])
        sizes = np.arange(1, len(counts) + 1)
        best = int(np.argmax(2 * hits / (sizes * len(learned) + total))) + 1
        name = name if best == 1 else f"the {best} most frequent labels"
        constant = tuple(label for label, _ in counts[:best])
    scored = ClassifierScores.of(labels, list(map(row_labels, rows)), [constant] * len(rows), are_multi_label(rows))
    return Baseline(name, overall(scored), scored)


def label_ids(row: Row, labels: Sequence[str]) -> tuple[int, ...]:
    """Returns the indices of a row's labels in ``labels``; raises ``HeedfulError`` for an unknown label."""
    try:
        return tuple(labels.index(label) for label in row_labels(row))
    except ValueError:
        check_known_labels([row], labels)
        raise


def check_known_labels(rows: Iterable[Row], labels: Sequence[str]) -> None:
    """Raises ``HeedfulError`` if rows have labels that are not among ``labels``: the first one, and how many rows."""
    known = frozenset(labels)
    unknown = [row for row in rows if not known.issuperset(row_labels(row))]
    if not unknown:
        return
    first = unknown[0]
    label = next(label for label in row_labels(first) if label not in known)
    swapped = _texts_for_labels(labels)
    hint = swapped or nearest(label, labels)
    if len(unknown) > 1:
        hint = f"{len(unknown):,} rows have unknown labels; {hint}"
    if swapped is None:
        it, row = ("it", "the row") if len(unknown) == 1 else ("them", "the rows")
        hint += f"{'' if hint.endswith('?') else ';'} correct {it}, or delete {row}"
    raise HeedfulError(f"{first.file}:{first.line}: the model has no label {label!r}; {hint}")


def _texts_for_labels(labels: Sequence[str]) -> str | None:
    """Returns a hint for an error message if the labels look like texts, as if columns were swapped; else None."""
    if len(labels) <= MAX_DISTINCT_NAMES or implausible_classes(labels) != "text":
        return None
    return (
        f"its {plural(len(labels), 'label')}, such as {brief(labels[0])!r}, look like texts; if so, train again "
        "and name the column of labels with --data.columns"
    )


def stored_label_names(hub: Mapping[str, Any]) -> list[str]:
    """Returns the label names in a ``config.json``; if it has none, the default names of transformers (``LABEL_0``)."""
    return label_names(hub) or [f"LABEL_{number}" for number in range(hub.get("num_labels", 2))]


def checked_top_k(k: Any) -> int | None:
    """Returns the option ``top_k``; None stands for the best prediction alone.

    Raises ``HeedfulError`` unless it is None or a whole number from 1.
    """
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise HeedfulError(f"top_k is {k!r}; give the number of predictions, a whole number from 1")
    return k


def labels_to_list(options: Mapping[str, Any], labels: Sequence[str]) -> int | None:
    """Returns how many ``labels`` the option ``top_k`` lists; all if it is None, as in ``transformers``, and None, for
    the best label alone, if it is not given.
    """
    k = checked_top_k(options.get("top_k"))
    return len(labels) if k is None and "top_k" in options else k


def top_labels(p: Tensor, labels: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
    """Returns the ``k`` most likely ``labels`` for each row of probabilities, ``{"label", "score"}``, best first.

    ``p`` is (B, labels). Equally likely labels keep the order of ``labels``.
    """
    scores, order = p.sort(dim=1, descending=True, stable=True)
    return [
        [{"label": labels[index], "score": score} for index, score in zip(indices, row, strict=True)]
        for indices, row in zip(order[:, :k].tolist(), scores[:, :k].tolist(), strict=True)
    ]


def with_learnable_labels(train: Rows, held: Rows, by: str, same: Same = content_digest) -> tuple[Rows, Rows]:
    """Returns training and validation rows after moving rows with unknown labels from validation to training.

    A label is unknown if no row of ``train`` has it, so a model could never predict it. Rows with equal values in
    column ``by`` move together. Raises ``HeedfulError`` if all rows of ``held`` would move.
    """
    known = {label for row in train for label in row_labels(row)}
    keys = [same(row.values[by]) for row in held]
    unknown = {key for row, key in zip(held, keys, strict=True) if not known.issuperset(row_labels(row))}
    moved = [row for row, key in zip(held, keys, strict=True) if key in unknown]
    if len(moved) == len(held):
        where = f"{moved[0].file}: " if moved else ""
        rows = [*train, *held]
        different = len({same(row.values[by]) for row in rows})
        counts = Counter(label for row in rows for label in row_labels(row))
        if different <= len(counts) < len(rows):
            raise HeedfulError(
                f"{where}only {different} of {plural(len(rows))} are different, and equal ones are never divided "
                "between training and validation, so none can be held out; remove copies, or give --valid FILE"
            )
        raise HeedfulError(f"{where}{_too_few(rows, train.columns)}")
    remaining = (row for row, key in zip(held, keys, strict=True) if key not in unknown)
    return Rows([*train, *moved], train.skipped, train.columns), Rows(remaining, 0, held.columns)


def _too_few(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Returns the error text for labels with too few examples to hold any out for validation. If the two columns of a
    table look swapped, it says so.
    """
    labels = [label for row in rows for label in row_labels(row)]
    swapped = extension(rows[0].file) in EXTENSIONS and len(columns) == 2
    kind = implausible_classes(labels) if swapped else None
    if kind is None:
        return "every label has too few examples to hold any out for validation; add examples, or give --valid FILE"
    return (
        f"{plural(len(set(labels)), 'different label')} in {plural(len(rows), 'row')}, such as {brief(labels[0])!r}: "
        f"they look like {kind}; if the columns are swapped, give {columns_option(reversed(columns))}, else "
        "give --valid FILE"
    )
