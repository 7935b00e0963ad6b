"""Scores as lines: columns that stand apart whatever a metric is called."""

from __future__ import annotations

from heedful.cli.scores import class_table, scored


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


def one(label, support):
    return {"label": label, "precision": 100.0, "recall": 7.25, "f1": 13.5, "support": support}


def test_the_table_is_aligned_and_by_support():
    lines = class_table([one("少数", 5), one("many", 12_345)])
    assert lines == [
        "label  precision  recall     F1  support",
        "many       100.0     7.2   13.5   12,345",
        "少数       100.0     7.2   13.5        5",
    ]


def test_the_table_says_how_many_it_leaves_out():
    lines = class_table([one(f"c{i}", i) for i in range(59)])
    assert len(lines) == 42
    assert lines[1].startswith("c58 ")
    assert lines[40].startswith("c19 ")
    assert lines[-1] == "and 19 more of 59, with less or equal support"
    assert len(class_table([one(f"c{i}", i) for i in range(40)])) == 41


def test_the_table_cuts_long_labels_and_shows_control_characters():
    lines = class_table([one("x" * 100, 1), one("a\nb", 2)])
    assert lines[1].startswith("a␊b ")
    assert lines[2].startswith("x" * 39 + "… ")
    assert len({len(line) for line in lines}) == 1
