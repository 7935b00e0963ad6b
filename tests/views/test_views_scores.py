"""Scores as lines: columns that stand apart whatever a metric is called."""

from __future__ import annotations

from heedful.views.scores import scored


def test_a_long_name_stands_apart_from_its_figure() -> None:
    result = {"metrics": {"loss": 5.9, "pseudo_perplexity": 352.6}, "seconds": 1.0}
    assert scored(result) == ["loss               5.9", "pseudo_perplexity  352.6", "seconds            1"]
    beside = {"baseline": {"name": "frequencies", "metrics": {"pseudo_perplexity": 61.5}}}
    assert scored(result | beside) == [
        "                          frequencies",
        "loss               5.9",
        "pseudo_perplexity  352.6  61.5",
        "seconds            1",
    ]
