"""Directions and labels of metrics, as every reader of them sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heedful import tasks
from heedful.metrics import registry, regression
from heedful.metrics.example_scores import Sums
from heedful.metrics.paired import differences
from heedful.metrics.registry import Metric, label_of, lower_is_better, most_telling, registered, sign
from heedful.serving.runs import WatchedRun
from heedful.views.curve import loss_curve

LOWER = {
    "loss",
    "perplexity",
    "pseudo_perplexity",
    "generator_loss",
    "bits_per_byte",
    "bits_per_character",
    "ter",
    "mae",
}


def test_these_metrics_are_better_when_lower() -> None:
    assert {name for name in registered() if lower_is_better(name)} == LOWER
    assert {sign(name) for name in LOWER} == {-1}
    assert sign("bleu") == sign("a_score_of_mine") == 1


def test_a_name_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "METRICS", (*regression.METRICS, Metric("bleu", "BLEU")))
    registered.cache_clear()
    try:
        with pytest.raises(ValueError, match="bleu"):
            registered()
    finally:
        registered.cache_clear()


def test_a_new_metric_in_one_file_is_known_to_figures_comparison_and_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Metric("word_errors", "word errors, %", lower_is_better=True, headline=True)
    monkeypatch.setattr(regression, "METRICS", (*regression.METRICS, own))
    monkeypatch.setitem(tasks.TASKS, "translation", _with_main_metric(tasks.TASKS["translation"], own.name))
    registered.cache_clear()
    try:
        lines = [{"step": step, "loss": 1.0, "valid_word_errors": value} for step, value in ((1, 50.0), (2, 20.0))]
        assert own.label in loss_curve(lines, "run")

        few, many = (Sums([[value]] * 40, lambda sums: {own.name: sums[0] / 40}) for value in (1, 2))
        assert differences(many, few)[own.name].better == "b"

        (tmp_path / "run.toml").write_text('task = "translation"\ntrain = ["a"]\nout = "run"\n', encoding="utf-8")
        log = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "metrics.jsonl").write_text(log, encoding="utf-8")
        run = WatchedRun(tmp_path, "run")
        run.update()
        assert run.as_dict(0.0)["best"] == {"metric": own.label, "value": 20.0, "step": 2}
    finally:
        registered.cache_clear()


def _with_main_metric(entry: tasks.TaskEntry, name: str) -> tasks.TaskEntry:
    return tasks.TaskEntry(path=entry.path, summary=entry.summary, main_metrics=(name,))


def test_a_metric_that_no_file_lists_has_its_name_as_label() -> None:
    assert label_of("rougeL") == "rougeL"
    assert label_of("top_5") == "top 5"
    assert most_telling(["a_score", "f1"]) == "f1"
    assert most_telling(["a_score", "another"]) == "a_score"
    assert most_telling([]) is None


def test_the_registry_needs_no_torch() -> None:
    code = f"import sys; from {registry.__name__} import registered; registered(); sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
