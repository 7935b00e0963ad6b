"""Tiny folders of every task, and servers on them that run in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running_server import Running

import heedful
from browser_pages import browser, open_address, open_page, until
from heedful import cli
from heedful.inference.pipeline import Pipeline
from heedful.serving.admission import ServiceLimits
from heedful.text.chat_template import DEFAULT_TEMPLATE
from test_every_task import command_of

__all__ = ["browser", "open_address", "open_page", "until"]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder of a run of two steps, by task and, for encoders, by preset."""
    made: dict[tuple[str, ...], Path] = {}

    def folder(name: str, *encoder: str) -> Path:
        if (name, *encoder) not in made:
            place = tmp_path_factory.mktemp(name)
            command = [*command_of(name, place, *encoder), "--out", str(place / "tiny"), "--max-steps=2", "--json"]
            assert cli.main(command) == 0
            made[name, *encoder] = place / "tiny"
        return made[name, *encoder]

    return folder


@pytest.fixture(scope="session")
def talking(folder_of: Callable[..., Path]) -> Pipeline:
    """A decoder of random weights with a chat template and 512 positions."""
    pipe = heedful.pipeline(None, folder_of("text-generation"))
    config: Any = pipe.model.config
    stack = replace(config.decoder, position=replace(config.decoder.position, length=512))
    model = heedful.optimize(heedful.create(replace(config, decoder=stack), seed=3))
    model.generation = {"do_sample": True, "max_new_tokens": 20}
    pipe.task.context = 512  # type: ignore[attr-defined]
    pipe.task.tokenizer.config["chat_template"] = DEFAULT_TEMPLATE  # type: ignore[attr-defined]
    return Pipeline(pipe.task, model)


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., Running]]:
    """Starts servers, which end with the module, all at once."""
    made: list[Running] = []

    def start(
        pipe: Pipeline, token: str | None = None, before: Any = None, exact: bool = False, **limits: Any
    ) -> Running:
        limits = {"max_tokens": 512, **limits}
        made.append(stack.enter_context(Running(pipe, ServiceLimits(**limits), token, before, exact)))
        return made[-1]

    with ExitStack() as stack:
        yield start
        for running in made:
            running.server.should_exit = running.server.force_exit = True
