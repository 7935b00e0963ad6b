"""Tasks, with their base classes and defaults. Each task is a class in its own file, named as in transformers.

A task defines its columns, the conversion of a row to tensors, the head, the loss, the metrics and the predictions.
Training, evaluation and prediction use only the interface ``Task`` (task.py) and no task's name. To add a task, add a
file here, an entry in ``TASKS`` and in ``TaskName``, and its settings in ``used_settings.py``. This file imports no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import HeedfulError, misspelled, nearest
from heedful.tasks.used_settings import USED_SETTINGS

if TYPE_CHECKING:
    from heedful.settings import RunSettings
    from heedful.tasks.encoder_task import EncoderTask
    from heedful.tasks.task import Baseline, Encoded, Measured, Prediction, PredictionDict, Task
    from heedful.tasks.token_batches import padded_with_mask

_HOMES = {
    "Baseline": "task",
    "Encoded": "task",
    "EncoderTask": "encoder_task",
    "Measured": "task",
    "Prediction": "task",
    "PredictionDict": "task",
    "Task": "task",
    "padded_with_mask": "token_batches",
}

__all__ = [  # beside the functions of this file, which tell of the tasks
    "Baseline",
    "Encoded",
    "EncoderTask",
    "Measured",
    "Prediction",
    "PredictionDict",
    "Task",
    "TaskName",
    "get",
    "names",
    "padded_with_mask",
]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.tasks.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Entry of a task in ``TASKS``: its path, summary and metrics, which are read without importing the task's file."""

    path: str  # "module:class"
    summary: str  # one line
    # Every ``main_metric`` that the task or a variant can have, the most common first: the curve of ``heedful watch``.
    main_metrics: Sequence[str]
    # (kind of model, kind of head) of the published models that are for this task; a model of text and one of images
    # are different kinds
    heads: Sequence[tuple[str, str]] = ()
    # "module:class" of a variant, by a family of models ("encoder-decoder"), and by a kind of label ("number",
    # "preference", "choices") or of model or objective ("permutation")
    families: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def variants(self) -> dict[str, str]:
        """Path ("module:class") of each variant of the task, by model family, kind of label or kind of model."""
        return {**self.families, **self.kinds}


TASKS = {
    "translation": TaskEntry(
        path="heedful.tasks.translation:Translation",
        summary="one text into another: languages, spellings, formats",
        main_metrics=("accuracy", "bleu"),
        heads=[("encoder-decoder", "language-model")],
    ),
    "text-generation": TaskEntry(
        path="heedful.tasks.text_generation:TextGeneration",
        summary="a continuation of a text: books, code, conversations",
        main_metrics=("accuracy", "loss"),
        heads=[("decoder", "language-model")],
        kinds={"preference": "heedful.tasks.preference_tuning:PreferenceTuning"},
    ),
    "text-classification": TaskEntry(
        path="heedful.tasks.text_classification:TextClassification",
        summary="a label, or several, for a text or a pair of texts",
        main_metrics=("accuracy", "micro_f1", "r2"),
        heads=[(kind, "sequence") for kind in ("encoder", "decoder", "encoder-decoder", "ensemble")],
        families={"ensemble": "heedful.tasks.classifier_ensemble:ClassifierEnsemble"},
        kinds={
            "number": "heedful.tasks.text_regression:TextRegression",
            "preference": "heedful.tasks.reward_model:RewardModel",
            "choices": "heedful.tasks.zero_shot:ZeroShotClassification",
        },
    ),
    "token-classification": TaskEntry(
        path="heedful.tasks.token_classification:TokenClassification",
        summary="a label for each word of a text: names, parts of speech",
        main_metrics=("f1", "accuracy"),
        heads=[("encoder", "token")],
    ),
    "question-answering": TaskEntry(
        path="heedful.tasks.question_answering:QuestionAnswering",
        summary="the piece of a text that answers a question",
        main_metrics=("f1",),
        heads=[("encoder", "span")],
    ),
    "generative-question-answering": TaskEntry(
        path="heedful.tasks.generative_question_answering:GenerativeQuestionAnswering",
        summary="a generated answer to a question about a text",
        main_metrics=("f1",),
        heads=[("encoder-decoder", "language-model"), ("decoder", "language-model")],
        families={"decoder": "heedful.tasks.decoder_question_answering:DecoderQuestionAnswering"},
    ),
    "summarization": TaskEntry(
        path="heedful.tasks.summarization:Summarization",
        summary="a short summary of a long text",
        main_metrics=("rougeL",),
        heads=[("encoder-decoder", "language-model")],
    ),
    "fill-mask": TaskEntry(
        path="heedful.tasks.fill_mask:FillMask",
        summary="the words that are missing from a text",
        main_metrics=("loss", "perplexity"),
        heads=[("encoder", "masked-language-model"), ("encoder", "language-model")],
        families={"encoder-decoder": "heedful.tasks.span_corruption:SpanCorruption"},
        kinds={
            "permutation": "heedful.tasks.permutation:PermutationFillMask",
            "replaced-token": "heedful.tasks.replaced_tokens:ReplacedTokens",
        },
    ),
    "feature-extraction": TaskEntry(
        path="heedful.tasks.feature_extraction:FeatureExtraction",
        summary="a vector for a text, near those of texts that mean the same",
        main_metrics=("mrr", "spearman"),
        heads=[("encoder", "pooled"), ("decoder", "pooled")],
    ),
    "image-classification": TaskEntry(
        path="heedful.tasks.image_classification:ImageClassification",
        summary="a label for an image",
        main_metrics=("accuracy",),
        heads=[("vision", "image")],
    ),
    "image-to-text": TaskEntry(
        path="heedful.tasks.image_to_text:ImageToText",
        summary="a text for an image: a caption",
        main_metrics=("cider",),
        heads=[("image encoder-decoder", "language-model")],
    ),
}
TaskName = Literal[  # the keys of ``TASKS``, for editors
    "translation",
    "text-generation",
    "text-classification",
    "token-classification",
    "question-answering",
    "generative-question-answering",
    "summarization",
    "fill-mask",
    "feature-extraction",
    "image-classification",
    "image-to-text",
]
# names of tasks in other libraries, and of what people call them: the tasks of ours that they may mean, the usual first
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "sentiment-analysis": ("text-classification",),
    "sequence-classification": ("text-classification",),
    "zero-shot-classification": ("text-classification",),
    "ner": ("token-classification",),
    "named-entity-recognition": ("token-classification",),
    "text2text-generation": ("translation", "summarization", "generative-question-answering"),
    "language-modeling": ("text-generation",),
    "causal-lm": ("text-generation",),
    "chat": ("text-generation",),
    "conversational": ("text-generation",),
    "masked-lm": ("fill-mask",),
    "sentence-similarity": ("feature-extraction",),
    "sentence-embeddings": ("feature-extraction",),
    "embeddings": ("feature-extraction",),
    "image-captioning": ("image-to-text",),
    "captioning": ("image-to-text",),
}
PAIR_OF_LANGUAGES = re.compile("translation_[a-z]+_to_[a-z]+")  # a name of transformers: translation_en_to_fr
# what the variants by kind learn from, or train, for messages
KINDS = {
    "number": "labels that are numbers",
    "preference": "chosen and rejected answers",
    "choices": "labels given in a call",
    "replaced-token": "replaced-token detection",
    "permutation": "a model with a query stream, which always predicts spans of 1 to 5 tokens",
}
EMBEDDING_TASK = "feature-extraction"  # the task whose predictions are vectors of texts: ``heedful nearest``


def names() -> list[dict[str, str]]:
    """Returns ``{"name", "summary"}`` of every task."""
    return [{"name": name, "summary": entry.summary} for name, entry in TASKS.items()]


def check(name: str) -> None:
    """Raises ``HeedfulError`` for an unknown task; the message names the nearest known one."""
    if not isinstance(name, str) or name not in TASKS:
        meant = misspelled(str(name), [*TASKS, *OTHER_NAMES])
        other = OTHER_NAMES.get(meant or "")
        hint = f"did you mean {other[0]!r}?" if other else nearest(str(name), TASKS)
        raise HeedfulError(
            f"unknown task {name!r}; {hint}; a task of your own is registered by --import FILE, "
            "or in Python by heedful.register"
        )


def named(name: str, wanted: str | None = None) -> str:
    """Returns the name of a task; names of other libraries (``OTHER_NAMES``) become ours.

    Where such a name may mean several tasks, that is ``wanted`` if it is one of them. Raises as ``check`` does.

    >>> named("ner"), named("text2text-generation"), named("text2text-generation", "summarization")
    ('token-classification', 'translation', 'summarization')
    """
    if name not in TASKS and isinstance(name, str):
        meant = ("translation",) if PAIR_OF_LANGUAGES.fullmatch(name) else OTHER_NAMES.get(name.lower(), (name,))
        name = wanted if wanted in meant else meant[0]
    check(name)
    return name


def get(name: str, variant: str | None = None) -> type[Task]:
    """Returns the class of a task.

    ``variant`` is a model family, a kind of label or a kind of model. If the task has a variant class for it, that
    class is returned.
    """
    check(name)
    entry = TASKS[name]
    return _imported(entry.variants.get(str(variant), entry.path))


def main_metrics(name: str) -> Sequence[str]:
    """Returns the metrics of a task that can choose the best weights; () for an unknown task."""
    return TASKS[name].main_metrics if name in TASKS else ()


def specific_settings() -> frozenset[str]:
    """Returns the settings ("section" or "section.name") that some tasks use and others do not."""
    return frozenset[str]().union(*map(_used_settings, TASKS))


def uses(name: str, setting: str) -> bool:
    """Returns True if the task, or one of its variants, uses a task-specific setting."""
    return setting in _used_settings(name)


def unused_settings(name: str) -> frozenset[str]:
    """Returns the settings ("section" or "section.name") that other tasks use, and no variant of this task does."""
    check(name)
    return specific_settings() - _used_settings(name)


def _used_settings(name: str) -> frozenset[str]:
    """Returns the task-specific settings that the task or a variant uses. Only registered tasks are imported."""
    used = frozenset[str]()
    for path in (TASKS[name].path, *TASKS[name].variants.values()):
        is_built_in = path.startswith("heedful.")
        used |= USED_SETTINGS[path.partition(":")[2]] if is_built_in else _imported(path).used_settings
    return used


def idle_settings(kind: type[Task], given: Iterable[str]) -> list[str]:
    """Returns those of the ``given`` settings ("section.name") that other tasks use, and this class does not."""
    idle = specific_settings() - kind.used_settings
    return [name for name in given if not idle.isdisjoint((name, name.partition(".")[0]))]


def no_effect(kind: type[Task], names: Iterable[str]) -> HeedfulError:
    """Returns the error for settings ("section.name") that have no effect for a task, or for a variant of it."""
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    path = f"{kind.__module__}:{kind.__qualname__}"
    for variant, variant_path in TASKS[kind.name].kinds.items():
        if path == variant_path:
            return HeedfulError(f"{flags} has no effect on {KINDS[variant]}; leave the option out")
    return HeedfulError(f"{flags} has no effect for {kind.name}; leave it out")


def chosen(settings: RunSettings) -> type[Task]:
    """Returns the task class of a run: the variant for the family of the model that the run trains.

    The model is the one that the run resumes, fine-tunes or creates; with ``--from auto`` the class is the task's own.
    """
    check(settings.task)
    if not TASKS[settings.task].families:
        return get(settings.task)
    from heedful import presets
    from heedful.pretrained.configuration import config_of
    from heedful.pretrained.folder import find
    from heedful.settings import AUTO

    folder = Path(settings.out) / "last" if settings.resume else settings.start_from
    if folder not in (None, AUTO):
        return get(settings.task, config_of(find(folder)).kind)
    return get(settings.task, presets.get(settings.preset).kind if settings.preset else None)


def _imported(path: str) -> type[Task]:
    module, _, attribute = path.partition(":")
    kind: type[Task] = getattr(import_module(module), attribute)
    return kind
