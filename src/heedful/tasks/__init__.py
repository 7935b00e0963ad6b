"""Tasks: one file and one object each, named as the ecosystem names them.

A task says which columns it needs, how an example becomes tensors, what is learned from them, how tensors become an
answer and how answers are scored. Training, evaluation and prediction are written once, over tasks. This file imports
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from heedful.errors import HeedfulError, nearest

if TYPE_CHECKING:
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


def names() -> list[dict[str, str]]:
    """Every task with a line that describes it."""
    return [{"name": name, "summary": summary} for name, (_, summary) in TASKS.items()]


def check(name: str) -> None:
    """Raise ``HeedfulError``, naming the nearest, where there is no task of this name."""
    if name not in TASKS:
        raise HeedfulError(f"unknown task {name!r}; {nearest(name, TASKS)}")


def get(name: str) -> type[Task]:
    """The task's class."""
    check(name)
    module, _, attribute = TASKS[name][0].partition(":")
    made: type[Task] = getattr(import_module(module), attribute)
    return made
