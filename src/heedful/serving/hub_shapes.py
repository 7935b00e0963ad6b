"""Table of the tasks in the Hub's API: names of their options, and shapes of their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from heedful.serving.requests import MAX_VALUES
from heedful.tasks.choices import CHOICES
from heedful.tasks.questions import question_and_context
from heedful.tasks.task import Prediction, Task

Output = Callable[[Prediction], Any]


@dataclass(frozen=True, kw_only=True)
class HubShape:
    """Options and answers of a task in the Hub's API.

    Attributes:
        output: returns a prediction in the shape of the API.
        names: our options for parameters with another name.
        defaults: the options that the API sets if they are unset.
        fixed: given the task, returns the parameters that have a single value here.
        tasks: further names of the task.
        lists_one: True if one input is answered with a list of one answer.
        required: the parameter without which there is no answer.
        further: shapes of further tasks of the same model, by name; a request has one by its name, or by the parameter
            that the task requires.
    """

    output: Output
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Callable[[Any], Mapping[str, Any]] = lambda task: {}
    tasks: frozenset[str] = frozenset()
    lists_one: bool = False
    required: str | None = None
    further: Mapping[str, HubShape] = field(default_factory=dict)

    def of_request(self, name: str | None, parameters: Mapping[str, Any]) -> HubShape:
        """Returns the shape of a request with the ``name`` of a task, or None: this one or a further one."""
        asked = (shape for task, shape in self.further.items() if task == name or shape.required in parameters)
        return next(asked, self)


def plain(prediction: Prediction) -> Any:
    """Returns ``{"output", "score"}``."""
    return {"output": prediction.output, "score": prediction.score}


def text_under(key: str) -> Output:
    """Returns the shape ``{key: text}`` of a generated text; a list of these for several outputs.

    >>> text_under("translation_text")(Prediction("How are you?", "Ça va ?", -0.1))
    {'translation_text': 'Ça va ?'}
    """

    def shape(prediction: Prediction) -> Any:
        if isinstance(prediction.output, list):
            return [{key: output["text"]} for output in prediction.output]
        return {key: prediction.output}

    return shape


def labels(prediction: Prediction) -> Any:
    """Returns labels with their probabilities, best first."""
    return prediction.output


def number(prediction: Prediction) -> list[dict[str, Any]]:
    """Returns the number as the score of the only label; no label for an input without text."""
    return [] if prediction.output is None else [{"label": "LABEL_0", "score": prediction.output}]


def entities(prediction: Prediction) -> list[dict[str, Any]]:
    """Returns the entities, as of the Hub's aggregation strategy "first"."""
    names = {"label": "entity_group", "text": "word"}
    return [{names.get(name, name): value for name, value in entity.items()} for entity in prediction.output]


def masked(prediction: Prediction) -> list[Any]:
    """Returns the most likely tokens with the text that each gives, in a list for each of several masks."""
    names = {"label": "token_str", "text": "sequence", "score": "score"}

    def shaped(choices: list[Any]) -> list[Any]:
        return [
            shaped(choice) if isinstance(choice, list) else {names[name]: value for name, value in choice.items()}
            for choice in choices
        ]

    return shaped(prediction.output)


def span(prediction: Prediction) -> Any:
    """Returns the answer with its score, or with ``top_k`` a list of answers."""
    if isinstance(prediction.output, list):
        return prediction.output
    return {**prediction.output, "score": prediction.score or 0.0}


def answer(prediction: Prediction) -> Any:
    """Returns a written answer with its score as a probability; with several outputs a list of answers.

    The score is the geometric mean of the probabilities of the answer's tokens. ``start`` and ``end`` are there if the
    context contains the answer.
    """

    def shape(text: str, log_p: float | None) -> dict[str, Any]:
        _, context = question_and_context(prediction.input, "generative-question-answering")
        start = context.find(text) if text else 0
        place = {"start": start, "end": start + len(text)} if start >= 0 else {}
        return {"answer": text, "score": 0.0 if log_p is None else math.exp(min(0.0, log_p)), **place}

    if isinstance(prediction.output, list):
        return [shape(one["text"], one["score"]) for one in prediction.output]
    return shape(prediction.output, prediction.score)


SHAPES: Mapping[str, HubShape] = {  # by the name of a task's class, so that no other task is imported
    "TextClassification": HubShape(
        output=labels,
        defaults={"top_k": 100},
        fixed=lambda task: {"function_to_apply": "sigmoid" if task.multi_label else "softmax"},
        lists_one=True,
        further={
            "zero-shot-classification": HubShape(
                output=labels,
                names={"candidate_labels": CHOICES},
                defaults={"top_k": MAX_VALUES},  # all labels: a request has no more values
                required="candidate_labels",
            )
        },
    ),
    "TextRegression": HubShape(output=number, lists_one=True),
    "RewardModel": HubShape(output=number, lists_one=True),
    "TokenClassification": HubShape(output=entities, fixed=lambda task: {"aggregation_strategy": "first"}),
    "ImageClassification": HubShape(
        output=labels, defaults={"top_k": 5}, fixed=lambda task: {"function_to_apply": "softmax"}
    ),
    "FillMask": HubShape(output=masked, defaults={"top_k": 5}),
    "ReplacedTokens": HubShape(output=plain),
    "FeatureExtraction": HubShape(output=plain, tasks=frozenset({"sentence-similarity"})),
    "QuestionAnswering": HubShape(output=span, names={"doc_stride": "stride", "max_answer_len": "max_answer_length"}),
    "GeneratedAnswers": HubShape(
        output=answer,
        names={"doc_stride": "stride", "max_answer_len": "max_new_tokens", "top_k": "num_return_sequences"},
        tasks=frozenset({"question-answering"}),
    ),
    "Translation": HubShape(
        output=text_under("translation_text"),
        names={"src_lang": "source_language", "tgt_lang": "target_language"},
        lists_one=True,
    ),
    "Summarization": HubShape(output=text_under("summary_text"), lists_one=True),
    "SequenceToSequence": HubShape(output=text_under("generated_text"), lists_one=True),
    "ImageToText": HubShape(output=text_under("generated_text"), lists_one=True),
    "TextGeneration": HubShape(
        output=plain,
        names={"stop": "stop_strings"},
        fixed=lambda task: {"watermark": False, "decoder_input_details": False},
    ),
}
PLAIN = HubShape(output=plain)


def shape_of(task: Task) -> HubShape:
    """Returns the shape of a task, or of the nearest task from which it derives; by default ``{"output", "score"}``."""
    return next((SHAPES[base.__name__] for base in type(task).__mro__ if base.__name__ in SHAPES), PLAIN)
