"""One line from text to answer: a model folder, opened, with its task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from heedful import tasks
from heedful.checkpoints import load, read_card
from heedful.checkpoints.folder import find
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.models.base import device_of
from heedful.tasks.task import Answer, Task


class Pipeline:
    """A model and its task, called with one text or a list of them."""

    def __init__(self, task: Task, model: Model) -> None:
        self.task, self.model = task, model

    def answers(self, inputs: Sequence[str], **options: Any) -> list[Answer]:
        """The answer to each input, in order; options are those of ``model.generate``."""
        return self.task.answer(self.model, inputs, **options)

    @overload
    def __call__(self, inputs: str, **options: Any) -> dict[str, Any]: ...
    @overload
    def __call__(self, inputs: Sequence[str], **options: Any) -> list[dict[str, Any]]: ...
    def __call__(self, inputs: str | Sequence[str], **options: Any) -> dict[str, Any] | list[dict[str, Any]]:
        """``{"input", "output", "score"}`` for one text, a list of them for a list."""
        if isinstance(inputs, str):
            return self.answers([inputs], **options)[0].as_dict()
        return [answer.as_dict() for answer in self.answers(list(inputs), **options)]


def pipeline(task: str | None, model: str | Path, device: str | None = None, dtype: Any = None) -> Pipeline:
    """The model in a folder, ready to answer.

    Args:
        task: what to do with it; None is what the folder was trained for. Another one is an error.
        model: a model folder, or a Hub id.
        device: "cpu", "cuda", ...; None: the best there is.
        dtype: "float32", "bfloat16" or a torch.dtype; None: as stored.

    >>> import heedful
    >>> translate = heedful.pipeline("translation", "runs/en-fr")  # doctest: +SKIP
    >>> translate("How are you?")["output"]  # doctest: +SKIP
    'Comment allez-vous ?'
    """
    if task is not None:
        tasks.check(task)
    model = find(model)
    own = read_card(model).get("task")
    if own is None and task is None:
        raise HeedfulError(f"{model} does not say what it was trained for; name a task: {', '.join(tasks.TASKS)}")
    if task is not None and own is not None and task != own:
        raise HeedfulError(f"{model} was trained for {own}, not for {task}; use a model of that task")
    loaded = load(model, device=device_of(device), dtype=dtype)
    made = tasks.get(str(task or own)).load(model)
    made.check(loaded)
    return Pipeline(made, loaded)
