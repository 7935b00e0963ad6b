"""One line from text to answer: a model folder, opened, with its task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heedful import tasks
from heedful.checkpoints import load, read_card
from heedful.checkpoints.configuration import config_of
from heedful.checkpoints.folder import find
from heedful.config import (
    Config,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    SequenceHead,
    VisionConfig,
)
from heedful.errors import HeedfulError, nearest
from heedful.inference.prepare import prepare, stored_as
from heedful.models import Model
from heedful.models.base import device_of
from heedful.tasks.task import Answer, Streams, Task
from heedful.text.chat import is_conversation

# a model of this family with this head: this task
HEADS: tuple[tuple[type[Config], type[Config], str], ...] = (
    (DecoderConfig, LanguageHead, "text-generation"),
    (EncoderDecoderConfig, LanguageHead, "translation"),
    (EncoderConfig, SequenceHead, "text-classification"),
    (DecoderConfig, SequenceHead, "text-classification"),
    (EncoderDecoderConfig, SequenceHead, "text-classification"),
    (VisionConfig, ImageHead, "image-classification"),
)


class Pipeline:
    """A model and its task, called with one input or a list of them; ``card`` is the folder's ``heedful.json``."""

    def __init__(self, task: Task, model: Model, card: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.task, self.model, self.card = task, model, card

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options; one that the task does not take is an error."""
        for name in options:
            if name not in self.task.options:
                known = self.task.options
                hint = nearest(name, known) if known else "leave it out"
                raise HeedfulError(f"the option {name} has no effect for {self.task.name}; {hint}")
        return dict(options)

    def answers(self, inputs: Sequence[Any], **options: Any) -> list[Answer]:
        """The answer to each input, in order; the options are the task's."""
        return self.task.answer(self.model, inputs, **self.checked(options))

    def stream(self, text: Any, **options: Any) -> Iterator[str]:
        """The answer to one text, or to one list of messages, in pieces as they are made; an error where the task makes
        its answers whole.
        """
        if not isinstance(self.task, Streams):
            raise HeedfulError(f"{self.task.name} answers as a whole; call the pipeline instead of stream")
        return self.task.stream(self.model, text, **self.checked(options))

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """``{"input", "output", "score"}`` for one input, a list of them for a list; a list of messages, each with its
        ``"role"``, is one input.
        """
        if isinstance(inputs, list) and not is_conversation(inputs):
            return [answer.as_dict() for answer in self.answers(inputs, **options)]
        return self.answers([inputs], **options)[0].as_dict()


def task_of(folder: Path) -> str:
    """The task that a published model's head is for; raises ``HeedfulError`` where there is none."""
    config = config_of(folder)
    for family, head, name in HEADS:
        if isinstance(config, family) and isinstance(config.head, head):
            return name
    remedy = "an encoder learns to classify: heedful train text-classification --from MODEL"
    if isinstance(config, EncoderDecoderConfig | DecoderConfig):
        remedy = "take the model with its language-model head"
    raise HeedfulError(
        f"{folder} names no task, and none here answers with a model of kind {config.kind!r} whose head is of kind "
        f"{config.head.kind!r}; {remedy}"
    )


def pipeline(task: str | None, model: str | Path, device: str | None = None, dtype: Any = None) -> Pipeline:
    """The model in a folder, prepared to answer fast: see ``heedful.inference.prepare``.

    Args:
        task: what to do with it; None is what the folder was trained for, or, where it does not say, what its model's
            head is for. Another one than the folder's is an error.
        model: a model folder, or a Hub id.
        device: "cpu", "cuda", ...; None: the best there is.
        dtype: "float32", "bfloat16", "float16", "int8", "int4" (see ``heedful.inference.prepare``) or a torch.dtype;
            None: as stored.

    >>> import heedful
    >>> translate = heedful.pipeline("translation", "runs/en-fr")  # doctest: +SKIP
    >>> translate("How are you?")["output"]  # doctest: +SKIP
    'Comment allez-vous ?'
    >>> talk = heedful.pipeline("text-generation", "runs/assistant")  # doctest: +SKIP
    >>> talk([{"role": "user", "content": "How are you?"}])["output"]  # doctest: +SKIP
    'Well, thank you.'
    """
    if task is not None:
        tasks.check(task)
    model = find(model)
    card = read_card(model)
    own = card.get("task")
    if task is not None and own is not None and task != own:
        raise HeedfulError(f"{model} was trained for {own}, not for {task}; use a model of that task")
    kind = tasks.get(task or own or task_of(model))
    place = device_of(device)
    loaded = load(model, device=place, dtype=stored_as(dtype, place))
    made = kind.load(model)
    made.check(loaded)
    return Pipeline(made, prepare(loaded, dtype), card)
