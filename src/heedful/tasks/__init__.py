"""Tasks: one file and one object each, named as the ecosystem names them.

A task says which columns it needs, how an example becomes tensors, what is learned from them, how tensors become an
answer and how answers are scored. Training, evaluation and prediction are written once, over tasks. This file imports
no torch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.errors import HeedfulError, nearest

if TYPE_CHECKING:
    from heedful.settings import RunSettings
    from heedful.tasks.task import Task

# name: (where it lives, what it does)
TASKS = {
    "translation": ("heedful.tasks.translation:Translation", "one text into another: languages, spellings, formats"),
    "text-generation": ("heedful.tasks.text_generation:TextGeneration", "a text goes on: books, code, tables of texts"),
    "text-classification": (
        "heedful.tasks.text_classification:TextClassification",
        "a label, or several, for a text or a pair of texts",
    ),
    "token-classification": (
        "heedful.tasks.token_classification:TokenClassification",
        "a label for each word of a text: names, parts of speech",
    ),
    "question-answering": (
        "heedful.tasks.question_answering:QuestionAnswering",
        "the piece of a text that answers a question",
    ),
    "summarization": ("heedful.tasks.summarization:Summarization", "a long text in few words"),
    "fill-mask": ("heedful.tasks.fill_mask:FillMask", "the words that are missing from a text"),
    "feature-extraction": (
        "heedful.tasks.feature_extraction:FeatureExtraction",
        "a vector for a text, near those of texts that mean the same",
    ),
    "image-classification": ("heedful.tasks.image_classification:ImageClassification", "a label for an image"),
}
# what a family does in a way of its own: (task, family)
OTHERS = {("fill-mask", "encoder-decoder"): "heedful.tasks.span_corruption:SpanCorruption"}
# what a task does for labels of another kind: (task, kind of label)
LABEL_KINDS = {("text-classification", "number"): "heedful.tasks.text_regression:TextRegression"}


def names() -> list[dict[str, str]]:
    """Every task with a line that describes it."""
    return [{"name": name, "summary": summary} for name, (_, summary) in TASKS.items()]


def check(name: str) -> None:
    """Raise ``HeedfulError``, naming the nearest, where there is no task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise HeedfulError(f"unknown task {name!r}; {nearest(str(name), TASKS)}")


def get(name: str, family: str | None = None) -> type[Task]:
    """Returns the task's class, for a ``family`` of models ("encoder-decoder", ...) or a kind of label ("number") that
    has a class of its own.
    """
    check(name)
    module, _, attribute = (OTHERS | LABEL_KINDS).get((name, str(family)), TASKS[name][0]).partition(":")
    made: type[Task] = getattr(import_module(module), attribute)
    return made


def chosen(settings: RunSettings) -> type[Task]:
    """The class of a run's task, for the family of the model that it goes on with, starts from, or makes."""
    check(settings.task)
    if settings.task not in {name for name, _ in OTHERS}:
        return get(settings.task)
    from heedful import presets
    from heedful.pretrained.configuration import config_of
    from heedful.pretrained.folder import find

    folder = Path(settings.out) / "last" if settings.resume else settings.start_from
    if folder is not None:
        return get(settings.task, config_of(find(folder)).kind)
    return get(settings.task, presets.get(settings.preset).kind if settings.preset else None)
