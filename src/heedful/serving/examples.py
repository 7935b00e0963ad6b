"""Examples for the page of a server: inputs that fit the model, which a visitor runs by one press."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.pretrained.folder import MODEL_CARD
from heedful.serving.requests import takes_images
from heedful.serving.runs import LOG
from heedful.tasks.task import Task
from heedful.util.files import parse_json

COUNT = 2
NEUTRAL = ("The train was late, but the staff was friendly.", "Ann Lee opened a small bakery near the old harbor.")
MESSAGES = ("What can I cook with rice and tomatoes?", "Write two lines about the sea.")  # of a conversation
TAIL = 1 << 16  # bytes of a log's end that are searched


def input_examples(task: Task, folder: str, has_template: bool) -> list[dict[str, str]]:
    """Returns up to two inputs for people to try, each a text for each required column of a request.

    They come from the model card (``widget``, the Hub's entry for examples), else from the samples of the run's last
    evaluation, else they are neutral sentences. None for tasks whose inputs are images.

    Args:
        task: the model's task.
        folder: the model's folder; "" or a Hub id without one.
        has_template: True for a model of conversations, whose input is a message.
    """
    columns = [name for name, kind in task.request_columns.items() if not kind.endswith("?")]
    if takes_images(task):
        return []
    if has_template:
        return [{columns[0]: message} for message in MESSAGES]
    path = Path(folder) if folder else None
    found = [] if path is None else [*_of_card(path, columns)] or [*_of_log(path, columns)]
    return found[:COUNT] or [_by_column(value, columns) for value in task.trial_inputs(NEUTRAL)]


def _by_column(value: Any, columns: Sequence[str]) -> dict[str, str]:
    parts = value.split("\t") if isinstance(value, str) and len(columns) > 1 else value
    return dict(zip(columns, [parts] if isinstance(parts, str) else parts, strict=False))


def _of_card(folder: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the examples of a model card that have a text for each column; the Hub calls a question "text"."""
    try:
        head = (folder / MODEL_CARD).read_text(encoding="utf-8").split("\n---", 1)[0]
    except (OSError, UnicodeDecodeError):
        return
    if "\nwidget:" not in head:
        return
    from huggingface_hub import metadata_load

    try:
        entries = (metadata_load(folder / MODEL_CARD) or {}).get("widget")
    except Exception:  # a person's file: whatever is wrong with its YAML, the page has other examples
        return
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and "text" in entry:
            example = {columns[0]: entry["text"], **{name: entry.get(name) for name in columns[1:]}}
            if all(isinstance(text, str) for text in example.values()):
                yield example


def _of_log(folder: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the whole inputs among the samples of a run's last evaluation; of several columns they are joined."""
    if len(columns) > 1:
        return
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - TAIL))
            lines = log.read().splitlines()
    except OSError:
        return
    for line in reversed(lines):
        if b'"samples"' not in line:
            continue
        try:
            samples = parse_json(line, LOG, "it is left out")["samples"]
            texts = [sample["input"] for sample in samples]
        except (HeedfulError, KeyError, TypeError):
            return
        yield from ({columns[0]: text} for text in texts if isinstance(text, str) and text and text[-1] != "…")
        return
