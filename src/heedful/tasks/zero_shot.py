r"""Zero-shot classification: any labels, by a model of natural language inference (Yin et al. 2019, section 4).

A label becomes a hypothesis, "This example is {}." by default, and the model says whether the text entails it. With the
logits :math:`e_c` of entailment and :math:`n_c` of contradiction for each label c, the probabilities are

.. math:: p_c = \frac{\exp e_c}{\sum_k \exp e_k}, \qquad p_c = \frac{\exp e_c}{\exp e_c + \exp n_c},

the second if several labels may hold (``multi_label``), as in the pipeline of ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.tasks.choices import CHOICES, checked_choices
from heedful.tasks.labels import labels_to_list, top_labels
from heedful.tasks.task import Batch, Prediction

if TYPE_CHECKING:
    from heedful.tasks.text_classification import TextClassification

TEMPLATE = "This example is {}."
OPTIONS = frozenset({CHOICES, "hypothesis_template", "multi_label"})


def check_options(options: Mapping[str, Any]) -> bool:
    """Returns True if the options ask for labels of the call; raises ``HeedfulError`` for others without them."""
    given = options.get(CHOICES) is not None
    for name in () if given else sorted((OPTIONS - {CHOICES}) & options.keys()):
        if options[name] is not None:
            raise HeedfulError(f"{name} has no effect without choices; give choices, or leave it out")
    return given


def predict(
    task: TextClassification, model: Model, inputs: Sequence[Any], options: Mapping[str, Any]
) -> list[Prediction]:
    """Returns the most probable of the ``choices`` for each text, with its probability as the score.

    With ``top_k`` the output is a list of the ``top_k`` most probable ones (of all, if None), ``{"label", "score"}``,
    best first. An input without text gets an empty output.
    """
    choices, template = checked_choices(options[CHOICES]), options.get("hypothesis_template") or TEMPLATE
    if template.count("{}") != 1:
        raise HeedfulError(f"the hypothesis template {template!r} needs one {{}}, the place of a label: {TEMPLATE!r}")
    entailment, contradiction = inference_labels(task.labels)
    hypotheses = [template.replace("{}", choice) for choice in choices]
    for value in inputs:
        if not isinstance(value, str):
            raise HeedfulError(f"choices are labels of a text, not of {value!r:.60}; give a text")

    def compute(batch: Batch) -> list[tuple[Any, float | None]]:
        return [(row, None) for row in task.logits(model, batch)[:, [entailment, contradiction]].float().tolist()]

    pairs = [(text, hypothesis) for text in inputs for hypothesis in hypotheses]
    found = task.predictions(model, pairs, None, compute, options.get("batch_tokens"))
    rows = [prediction.output for prediction in found]
    top_k = labels_to_list(options, choices)
    predictions = []
    for number, text in enumerate(inputs):
        logits = rows[number * len(choices) : (number + 1) * len(choices)]
        if None in logits:
            predictions.append(Prediction(text, [] if top_k else "", None))
            continue
        both = torch.tensor(logits)
        p = both.softmax(1)[:, 0] if options.get("multi_label") else both[:, 0].softmax(0)
        listed = top_labels(p[None], choices, top_k or 1)[0]
        predictions.append(Prediction(text, listed if top_k else listed[0]["label"], listed[0]["score"]))
    return predictions


def inference_labels(labels: Sequence[str]) -> tuple[int, int]:
    """Returns the indices of entailment and contradiction among a model's labels; the latter may be "not entailment".

    Raises ``HeedfulError`` for a model that was not trained for natural language inference.

    >>> inference_labels(["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]), inference_labels(["entailment", "not_entailment"])
    ((2, 0), (0, 1))
    """
    lower = [label.lower() for label in labels]
    entailment = [i for i, label in enumerate(lower) if label.startswith("entail")]
    contradiction = [i for i, label in enumerate(lower) if label.startswith(("contra", "not"))]
    if len(entailment) != 1 or len(contradiction) != 1:
        known = ", ".join(labels[:8])
        raise HeedfulError(
            f"choices need a model of natural language inference, with the labels entailment and contradiction; this "
            f"one has {known}; leave choices out, or use another model"
        )
    return entailment[0], contradiction[0]
