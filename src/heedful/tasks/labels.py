"""Labels of rows and of models, and what all classifiers do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from heedful.data import Row, Rows
from heedful.data.cell_values import brief
from heedful.data.column_inference import MOST, implausible_classes
from heedful.data.file_formats import EXTENSIONS
from heedful.data.split import Same, content_digest
from heedful.data.text_files import extension
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.classification import Labelled
from heedful.metrics.example_scores import overall
from heedful.pretrained.config_keys import label_names
from heedful.tasks.task import Baseline


def labels_of(row: Row) -> tuple[str, ...]:
    """The label of a row, or its labels where it may have several."""
    label = row.values["label"]
    return (label,) if isinstance(label, str) else label


def several(rows: Sequence[Row]) -> bool:
    """Returns True if rows may have several labels, or none."""
    return not isinstance(rows[0].values["label"], str)


def names_of(rows: Sequence[Row]) -> list[str]:
    """The labels of training, in alphabetical order; too few to learn from are an error."""
    names = sorted({label for row in rows for label in labels_of(row)})
    if not names or (len(names) == 1 and not several(rows)):
        found = f"the one label {names[0]!r}" if names else "no label"
        raise HeedfulError(f"{rows[0].file}: {found} in {plural(len(rows), 'row')}; there must be two to tell apart")
    return names


def most_frequent(labels: Sequence[str], rows: Rows, learned: Rows) -> Baseline:
    """The scores of the label, or set of labels, that most of the training rows have, given to all ``rows``."""
    ((label, _),) = Counter(map(labels_of, learned)).most_common(1)
    scored = Labelled.of(labels, list(map(labels_of, rows)), [label] * len(rows), several(rows))
    return Baseline("the most frequent label", overall(scored), scored)


def numbers_of(row: Row, labels: Sequence[str]) -> tuple[int, ...]:
    """The places of a row's labels among ``labels``; one that is not there is an error."""
    for label in labels_of(row):
        if label not in labels:
            hint = _texts_for_labels(labels) or nearest(label, labels)
            raise HeedfulError(f"{row.file}:{row.line}: the label {label!r} is none that the model learned; {hint}")
    return tuple(labels.index(label) for label in labels_of(row))


def _texts_for_labels(labels: Sequence[str]) -> str | None:
    """Returns a hint if the training labels look like texts, as they do where columns are exchanged."""
    if len(labels) <= MOST or implausible_classes(labels) != "text":
        return None
    return (
        f"its {plural(len(labels), 'label')}, such as {brief(labels[0])!r}, look like text; if they are, say which "
        "column of the training data holds the labels: --data.columns"
    )


def stored(theirs: Mapping[str, Any]) -> list[str]:
    """The label names of a ``config.json``; where it tells none, those that transformers would give."""
    return label_names(theirs) or [f"LABEL_{number}" for number in range(theirs.get("num_labels", 2))]


def checked_top(k: Any) -> int | None:
    """``top_k``, how many labels to tell; None is the answer alone, what is no number of labels an error."""
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise HeedfulError(f"top_k is {k!r}; give a whole number from 1, of how many labels to tell")
    return k


def likeliest(p: Tensor, labels: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
    """The ``k`` likeliest of ``labels`` for each row of ``p`` (B, labels), ``{"label", "score"}`` each, the first the
    best; of equally likely ones the first of ``labels`` first.
    """
    scores, places = p.sort(dim=1, descending=True, stable=True)
    return [
        [{"label": labels[place], "score": score} for place, score in zip(told, row, strict=True)]
        for told, row in zip(places[:, :k].tolist(), scores[:, :k].tolist(), strict=True)
    ]


def teachable(train: Rows, held: Rows, by: str, same: Same = content_digest) -> tuple[Rows, Rows]:
    """The two parts, but what has a label that no training row would have goes to training, with all rows that are
    alike in column ``by``: held out, it could teach nothing and score nothing.
    """
    known = {label for row in train for label in labels_of(row)}
    keys = [same(row.values[by]) for row in held]
    lone = {key for row, key in zip(held, keys, strict=True) if not known.issuperset(labels_of(row))}
    moved = [row for row, key in zip(held, keys, strict=True) if key in lone]
    if len(moved) == len(held):
        where = f"{moved[0].file}: " if moved else ""
        raise HeedfulError(f"{where}{_too_few([*train, *held], train.columns)}")
    kept = (row for row, key in zip(held, keys, strict=True) if key not in lone)
    return Rows([*train, *moved], train.skipped, train.columns), Rows(kept, 0, held.columns)


def _too_few(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Why nothing can be held back, and what to do: in a table the labels may stand in the other column."""
    labels = [label for row in rows for label in labels_of(row)]
    swapped = extension(rows[0].file) in EXTENSIONS and len(columns) == 2
    found = implausible_classes(labels) if swapped else None
    if found is None:
        return "every label has too few examples to hold some back; give validation data: --valid"
    return (
        f"{plural(len(set(labels)), 'different label')} in {plural(len(rows), 'row')}, such as {brief(labels[0])!r}: "
        "they "
        f"look like {found}; say where the labels stand, if in the other column: --data.columns "
        f"{','.join(reversed(columns))}, else give validation data: --valid"
    )
