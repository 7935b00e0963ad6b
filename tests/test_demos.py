"""The demo, cut short: every step is taken, on a handful of dates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful import demo
from heedful.errors import HeedfulError
from heedful.settings import DataSettings


def test_the_demo_takes_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = demo._settings, demo.read
    few = {"max_steps": 2, "max_epochs": None, "data": DataSettings(limit=500)}
    monkeypatch.setattr(demo, "_settings", lambda *given, **more: replace(made(*given, **more), **few))
    monkeypatch.setattr("heedful.training.run.ANSWERED", 5)
    monkeypatch.setattr(demo, "read", lambda *given, **more: read(*given, **more, limit=60))
    said: list[str] = []
    result: dict[str, Any] = demo.demo("de", str(tmp_path / "run"), say=said.append, quiet=True)
    assert set(result) >= {"task", "model", "metrics", "by_format", "baseline", "seconds", "files", "examples"}
    assert set(result["metrics"]) >= {"exact_match", "bleu", "chrf"}
    for path in result["files"].values():
        assert Path(path).stat().st_size > 1000
    page = Path(result["files"]["page"]).read_text(encoding="utf-8")
    assert "://" not in page.replace("http://www.w3.org", "")
    text = "\n".join(said)
    assert "copying the source" in text
    assert "heedful predict" in text
    assert all(f"→ {example['output']}" in text for example in result["examples"])
    with pytest.raises(HeedfulError, match="not empty"):
        demo.demo("de", str(tmp_path / "run"), say=said.append, quiet=True)


def test_an_unknown_language_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="xx"):
        demo.demo("xx", str(tmp_path / "run"), say=print, quiet=True)
    assert not (tmp_path / "run").exists()
