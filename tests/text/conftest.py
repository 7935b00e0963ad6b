"""Fixtures for the tests of published folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Make a folder of these files: bytes and strings as they are, all else as JSON."""

    def make(files: Mapping[str, Any]) -> Path:
        made = tmp_path / "published"
        made.mkdir(exist_ok=True)
        for name, what in files.items():
            text = what if isinstance(what, str | bytes) else json.dumps(what)
            (made / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return made

    return make
