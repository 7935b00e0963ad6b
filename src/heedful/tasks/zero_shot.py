r"""Zero-shot classification: any labels, by a model of natural language inference (Yin et al. 2019, section 4).

A label becomes a hypothesis, "This example is {}." by default, and the model says whether the text entails it. With the
logits :math:`e_c` of entailment and :math:`n_c` of contradiction for each label c, the probabilities are

.. math:: p_c = \frac{\exp e_c}{\sum_k \exp e_k}, \qquad p_c = \frac{\exp e_c}{\exp e_c + \exp n_c},

the second if several labels may hold (``multi_label``), as in the pipeline of ``transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.data import Kind, Rows
from heedful.errors import HeedfulError, plural
from heedful.models import Model
from heedful.tasks.choices import CHOICES, checked_choices
from heedful.tasks.labels import labels_to_list, row_labels, top_labels
from heedful.tasks.task import Baseline, Batch, Encoded, Prediction
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_pairs import EncodedPair
from heedful.tasks.used_settings import USED_SETTINGS

TEMPLATE = "This example is {}."


class TextWithHypotheses(NamedTuple):
    """A text paired with the hypothesis of each choice, and the indices of its labels among the choices."""

    pairs: tuple[EncodedPair, ...]
    labels: tuple[float, ...]


class ZeroShotClassification(TextClassification):
    """Text classification among the ``choices`` of a call, by a model of natural language inference.

    Args:
        task: the task of the model.
        options: options of a call: ``choices``, ``hypothesis_template`` and ``multi_label``.
    """

    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["ZeroShotClassification"]

    def __init__(self, task: TextClassification, options: Mapping[str, Any]) -> None:
        choices, template = checked_choices(options[CHOICES]), options.get("hypothesis_template") or TEMPLATE
        if template.count("{}") != 1:
            raise HeedfulError(
                f"the hypothesis template {template!r} needs one {{}}, the place of a label: {TEMPLATE!r}"
            )
        columns: dict[str, Kind] = {"text": "text", "label": "label"}
        super().__init__(task.tokenizer, choices, columns=columns, multi_label=bool(options.get("multi_label")))
        self.task = task
        self.entailment, self.contradiction = inference_labels(task.labels)
        self.hypotheses = [template.replace("{}", choice) for choice in choices]
        if "text_pair" not in task.columns:
            raise HeedfulError("choices need a model of pairs of texts, and this one reads single texts; use another")

    def for_options(self, options: Mapping[str, Any]) -> TextClassification:
        """Returns this task, whose choices are set."""
        return self

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes the pairs of each row's text and a hypothesis; raises ``HeedfulError`` for a label that is no choice.

        A text is truncated where a pair is longer than ``max_length`` tokens or the model's limit.
        """
        for row in rows:
            if unknown := set(row_labels(row)).difference(self.labels):
                raise HeedfulError(
                    f"{row.file}:{row.line}: the label {min(unknown)!r} is none of the choices "
                    f"{', '.join(self.labels)!s:.80}; give choices that include it, or correct the row"
                )
        count, limit = len(self.labels), min(max_length or self.longest, self.longest)
        pairs = [(row.values["text"], hypothesis) for row in rows for hypothesis in self.hypotheses]
        encoded, truncated = self.task.examples(pairs, [()] * len(pairs), limit)
        examples = [
            TextWithHypotheses(tuple(encoded[number * count : (number + 1) * count]), self.targets_of(row))
            for number, row in enumerate(rows)
        ]
        cut = sorted({place // count for place in truncated})
        reason = "--data.max-length" if limit == max_length else "the model takes no more"
        note = f"{plural(len(cut))} cut to {limit} tokens ({reason})" if cut else ""
        return Encoded(examples, rows, note, len(cut), [rows[number] for number in cut])

    def _outputs(
        self, model: Model, examples: Sequence[Any], tokens: int | None
    ) -> Iterable[tuple[np.ndarray, tuple[Tensor, Tensor, Tensor]]]:
        pairs = [pair for example in examples for pair in example.pairs]
        logits = torch.zeros(len(pairs))
        for places, values in self.task.map_batches(model, pairs, lambda batch: self.evidence(model, batch), tokens):
            logits[places] = values
        by_choice, labels = logits.view(len(examples), len(self.labels)), self.target_tensor(examples)
        yield np.arange(len(examples)), (labels.bool(), by_choice, self._losses(by_choice, labels))

    def evidence(self, model: Model, batch: Batch) -> Tensor:
        """Returns the logits (B,) of the hypotheses of a batch: e, or with ``multi_label`` e − n."""
        logits = self.task.logits(model, batch).float().cpu()
        entailment = logits[:, self.entailment]
        return entailment - logits[:, self.contradiction] if self.multi_label else entailment

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a linear model on words; raises ``HeedfulError`` if no text that it learns from has a choice as label.

        The rows on which a model of natural language inference was trained have none.
        """
        texts = learned()
        if not {label for row in texts for label in row_labels(row)} & {*self.labels}:
            raise HeedfulError(
                "the model was trained on no texts with these choices as labels; name files of such texts for the "
                "baseline: --baseline-train FILE"
            )
        return super().baseline(rows, lambda: texts)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the most probable choice for each text, with its probability as the score.

        With ``top_k`` the output is a list of the ``top_k`` most probable ones (of all, if None), ``{"label",
        "score"}``, best first. An input without text gets an empty output.
        """
        for value in inputs:
            if not isinstance(value, str):
                raise HeedfulError(f"choices are labels of a text, not of {value!r:.60}; give a text")

        def compute(batch: Batch) -> list[tuple[Any, float | None]]:
            return [(logit, None) for logit in self.evidence(model, batch).tolist()]

        pairs = [(text, hypothesis) for text in inputs for hypothesis in self.hypotheses]
        found = self.task.predictions(model, pairs, None, compute, options.get("batch_tokens"))
        logits, count = [prediction.output for prediction in found], len(self.labels)
        top_k = labels_to_list(options, self.labels)
        predictions = []
        for number, text in enumerate(inputs):
            own = logits[number * count : (number + 1) * count]
            if None in own:
                predictions.append(Prediction(text, [] if top_k else "", None))
                continue
            p = self.probabilities(torch.tensor([own]))
            listed = top_labels(p, self.labels, top_k or 1)[0]
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
