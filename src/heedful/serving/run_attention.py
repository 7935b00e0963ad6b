"""Attention views of a watched run's saved model, as ``heedful inspect`` makes them, of its validation examples.

A view is computed when a page requests it, on the CPU with one thread, so that the training beside it keeps the
others.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.serving.runs import SavedModel
from heedful.views.inspect.catalogue import VIEWS, View, stack_names
from heedful.views.inspect.request import Request, check_request

if TYPE_CHECKING:
    from heedful.config import ModelConfig
    from heedful.data import Row
    from heedful.tasks.task import Task
    from heedful.views.inspect.opened_model import OpenedModel

EXAMPLES = 50  # validation examples that can be shown: the first ones
TOKENS = 128  # of an example that are shown
CHARACTERS = 20  # of a token, beyond which nothing is tokenised


@dataclass(frozen=True)
class _Opened:
    """A saved model with its task and the first validation examples of its run."""

    saved: SavedModel
    model: OpenedModel
    task: Task
    rows: list[Row]


class RunAttention:
    """Views of the saved models of runs, one at a time; the last model stays in memory for the next view."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    def view(self, name: str, saved: SavedModel, example: int, view: str | None = None) -> dict[str, Any]:
        """Returns a view of a validation example as a page, and what else can be shown.

        Args:
            name: the run's name, for the page.
            saved: the model that the run has saved.
            example: number of the example, counted from 0; beyond the last one, counting begins again.
            view: name of the view; None or one that the model does not have: the model's default.

        Returns:
            ``{"page", "view", "views", "example", "examples"}``: the HTML page, the name of its view and those of all
            views of one input that the model has, the example's number and how many there are.

        Raises:
            HeedfulError: the model or the run's data cannot be read, or the model cannot show the example.
        """
        import torch

        from heedful.views.inspect.inspect import run_view

        with self._lock:
            if torch.get_num_threads() > 1:
                torch.set_num_threads(1)
            if self._opened is None or self._opened.saved != saved:
                self._opened = None  # frees the memory before the next model needs it
                self._opened = _open(name, saved)
            opened = self._opened
            number, config = example % len(opened.rows), opened.model.model.config
            views = [other for other, entry in VIEWS.items() if _shows_one(entry, config)]
            item = _input(opened, opened.rows[number])
            request = Request.of(item, view if view in views else None)
            result = run_view(opened.model, check_request(config, name, request), opened.task)
            return {
                "page": result.html(),
                "view": result.view,
                "views": views,
                "example": number,
                "examples": len(opened.rows),
            }


def _open(name: str, saved: SavedModel) -> _Opened:
    """Loads a saved model, and reads the validation data of its run."""
    from heedful import tasks
    from heedful.pretrained import load, read_card
    from heedful.pretrained.configuration import config_of
    from heedful.settings import RunSettings, with_present_keys
    from heedful.tasks.run_data import equality_rule, train_and_validation_rows
    from heedful.views.inspect.opened_model import opened_of

    folder = saved.folder
    card = read_card(folder)
    if "task" not in card or "settings" not in card:
        raise HeedfulError(f"{folder / 'heedful.json'} names no task and settings; it is written with the weights")
    settings = RunSettings.from_dict(with_present_keys(card["settings"]))
    kind = tasks.get(card["task"], config_of(folder).kind).for_folder(folder)
    _, held = train_and_validation_rows(kind, settings, settled=True, same=equality_rule(card))
    if not held:
        raise HeedfulError("the run has no validation examples; train with --valid")
    model = load(folder, head=kind.head, device="cpu")
    return _Opened(saved, opened_of(model, folder, name), kind.load(folder), list(held[:EXAMPLES]))


def _shows_one(view: View, config: ModelConfig) -> bool:
    """Returns True for a view of one input that a model has."""
    return view.has(config) and view.least == 1


def _input(opened: _Opened, row: Row) -> Any:
    """Returns the input of an example as the views take it; long texts are cut."""
    task = opened.task
    names = [name for name in dict.fromkeys((*task.model_columns, *task.request_columns)) if row.values.get(name)]
    parts = {name: _part(row.values[name], opened.model, len(names)) for name in names}
    value = task.as_read(parts if len(parts) > 1 else next(iter(parts.values()), ""))
    return tuple(value.values()) if isinstance(value, Mapping) else value


def _part(value: Any, opened: OpenedModel, parts: int) -> Any:
    """Returns the value of a column: words as a text, a text cut to what is shown, a conversation as a list."""
    if isinstance(value, tuple):
        if not all(isinstance(word, str) for word in value):
            return list(value)
        value = " ".join(value)
    if not isinstance(value, str):
        return value
    positions = [getattr(stack.position, "length", 0) for stack in stack_names(opened.model.config).values()]
    halves = [number // 2 for number in positions if number]  # a view may generate the other half
    most = min([TOKENS, *halves]) // parts
    ((_, offsets),) = opened.source.encode_with_offsets([value[: most * CHARACTERS]])
    return value if len(offsets) <= most else value[: offsets[most - 1][1]]
