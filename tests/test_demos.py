"""The demos, cut short: every step of each is taken, on a handful of examples."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful import cli, demos
from heedful.data import Rows
from heedful.demos import definitions, show
from heedful.errors import HeedfulError

LIMITS = {"dates": 500, "languages": 2000, "code": 30, "digits": 300}


@pytest.fixture
def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of training on a few rows, a few rows to score."""
    train, read = show.train, show.read

    def few(settings: Any, **more: Any) -> Any:
        name = settings.train[0].split(":")[1].split("/")[0]
        limit = LIMITS[{"cldr-dates": "dates", "cldr-languages": "languages", "stdlib": "code"}.get(name, name)]
        data = replace(settings.data, limit=limit)
        return train(replace(settings, max_steps=2, max_epochs=None, data=data), **more)

    def first(*given: Any, **more: Any) -> Rows:
        return read(*given, **more, limit=60 if "stdlib" not in given[0][0] else 2)

    monkeypatch.setattr(show, "train", few)
    monkeypatch.setattr(show, "read", first)
    monkeypatch.setattr("heedful.training.validation.MAX_PREDICTED", 5)


def test_the_first_demo_learns_as_much_on_a_slow_machine() -> None:
    settings = definitions.dates().settings
    assert (settings.max_epochs, settings.max_minutes) == (3, None)


@pytest.mark.parametrize(
    ("name", "metrics", "pictures", "words"),
    [
        ("dates", {"exact_match", "bleu", "chrf"}, {"attention.html", "attention.svg"}, "copying the source"),
        ("languages", {"accuracy", "macro_f1"}, {"confusion.svg", "mistakes.html"}, "the most frequent one"),
        ("code", {"bits_per_byte", "perplexity"}, set(), "xz -9 needs"),
        ("digits", {"accuracy", "macro_f1"}, {"confusion.svg", "mistakes.svg"}, "the most frequent one"),
    ],
)
@pytest.mark.full(keep=2)
def test_a_demo_takes_every_step(
    cut_short: None, tmp_path: Path, name: str, metrics: set[str], pictures: set[str], words: str
) -> None:
    said: list[str] = []
    result = demos.demo(name, str(tmp_path / "run"), say=said.append, quiet=True)
    assert set(result) >= {"task", "model", "headline", "metrics", "baseline", "seconds", "files", "examples"}
    assert set(result["metrics"]) >= metrics
    assert {Path(file).name for file in result["files"].values()} >= pictures | {"curve.svg"}
    for path in map(Path, result["files"].values()):
        assert path.stat().st_size > 1000
        assert "://" not in path.read_text(encoding="utf-8").replace("http://www.w3.org", "")
    text = "\n".join(said)
    assert result["headline"] in text
    assert words in text
    asked = shlex.split(next(line for line in said if "heedful predict" in line).partition("predict ")[2])
    assert cli.main(["predict", *asked]) == 0
    assert all(str(example["output"]).partition("\n")[0] in text for example in result["examples"])
    with pytest.raises(HeedfulError, match="not empty"):
        demos.demo(name, str(tmp_path / "run"), say=said.append, quiet=True)


def test_all_demos_have_one_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stand_in(name: str, out: str | None, say: Any, quiet: bool) -> dict[str, Any]:
        return {"headline": f"{name} done", "metrics": {"x": 1.0}, "seconds": 2.0, "model": f"runs/{name}"}

    monkeypatch.setattr(demos, "demo", stand_in)
    said: list[str] = []
    result = demos.all_demos(said.append, quiet=True)
    assert list(result["metrics"]) == [f"{name}_x" for name in demos.DEMOS]
    assert all(f"{name} done" in "\n".join(said) for name in demos.DEMOS)


def test_unknown_demos_are_errors_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="did you mean 'digits'"):
        demos.demo("digit", str(tmp_path / "run"))
    with pytest.raises(HeedfulError, match="xx"):
        demos.demo("dates", str(tmp_path / "run"), quiet=True, to="xx")
    assert not (tmp_path / "run").exists()
