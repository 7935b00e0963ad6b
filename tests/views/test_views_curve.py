from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from heedful.errors import HeedfulError
from heedful.views.curve import chief, curve, log_ticks, loss_curve, thinned, ticks
from heedful.views.run_figures import draw_run

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [json.loads(line) for line in (json.dumps({"step": s, "loss": 5 * 0.99**s}) for s in range(1, 200))]
EVALUATIONS = [{"step": s, "valid_loss": 5 * 0.99**s + 0.1, "valid_bleu": s / 2} for s in range(50, 200, 50)]


def drawn(text):
    return ET.fromstring(text.encode("utf-8"))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def points(path):
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.-]+) ([\d.-]+)", path.get("d"))]


def test_a_run_shows_both_losses_and_its_metric():
    root = drawn(loss_curve(STEPS + EVALUATIONS, "dates & <more>"))
    said = texts(root)
    assert said[0] == root.find(f"{SVG}title").text == "dates & <more>"
    assert {"loss", "BLEU", "step", "validation 75"} <= set(said)
    assert f"training {5 * 0.99**199:.4g}" in said
    assert f"validation {5 * 0.99**150 + 0.1:.4g}" in said
    runs = [element for element in root if (element.get("class") or "").startswith("run")]
    assert [len(points(run)) for run in runs] == [199, 3, 3]
    assert len(root.findall(f"{SVG}circle")) == 6


def test_another_metric_may_be_asked_for_and_must_be_there():
    rows = [{"step": 1, "loss": 1.0, "valid_bleu": 3.0, "valid_exact_match": 0.5}]
    assert "exact match, %" in texts(drawn(loss_curve(rows, "t", metric="valid_exact_match")))
    with pytest.raises(HeedfulError, match="nothing to draw for 'chrF'"):
        loss_curve(rows, "t", metric="valid_chrf")
    with pytest.raises(HeedfulError, match="nothing to draw for 'loss'"):
        loss_curve([], "t")


@pytest.mark.parametrize(
    ("logged", "metric", "name"),
    [
        (("macro_f1", "accuracy", "loss"), "accuracy", "accuracy, %"),
        (("exact_match", "macro_f1", "micro_f1"), "micro_f1", "micro F1, %"),
        (("perplexity", "bits_per_byte"), "bits_per_byte", "bits a byte"),
        (("top5_accuracy",), "top5_accuracy", "top-5 accuracy, %"),
        (("chrf", "bleu"), "bleu", "BLEU"),
        (("own_score", "other"), "own_score", "own score"),
    ],
)
def test_of_several_metrics_the_one_that_says_most_is_drawn_under_its_name(logged, metric, name):
    rows = [{"step": 1, "loss": 2.0}, {"step": 2, **{f"valid_{one}": 3.0 for one in logged}}]
    assert chief(rows) == f"valid_{metric}"
    assert name in texts(drawn(loss_curve(rows, "t")))


def test_a_metric_without_a_value_is_not_chosen():
    rows = [{"step": 1, "loss": 2.0, "valid_bleu": math.nan, "valid_accuracy": None, "valid_loss": 1.0}]
    assert chief(rows) is None
    assert "loss" in texts(drawn(loss_curve(rows, "t")))


def test_a_perplexity_that_falls_far_is_drawn_on_a_logarithmic_axis():
    rows = [{"step": step, "loss": 2.0, "valid_perplexity": 100.0 / step**4} for step in (1, 2, 3)]
    assert {"loss", "perplexity, log scale"} <= set(texts(drawn(loss_curve(rows, "t"))))


def test_the_curve_of_a_run_is_written_beside_its_log(tmp_path):
    assert draw_run(tmp_path) is None
    rows = [{"step": 1, "loss": 2.0}, {"step": 2, "valid_loss": 1.5, "valid_macro_f1": 40.0, "valid_accuracy": 60.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert draw_run(tmp_path) == tmp_path / "curve.svg"
    assert "accuracy, %" in texts(drawn((tmp_path / "curve.svg").read_text(encoding="utf-8")))
    draw_run(tmp_path, "valid_macro_f1")
    assert "macro F1, %" in texts(drawn((tmp_path / "curve.svg").read_text(encoding="utf-8")))


def test_points_stand_where_their_values_say():
    root = drawn(curve({"a": [(0, 0), (5, 50), (10, 100)]}, title="t", x_label="x", y_label="y"))
    (run,) = (element for element in root if (element.get("class") or "").startswith("run"))
    (x0, y0), (x1, y1), (x2, y2) = points(run)
    assert (x1, y1) == ((x0 + x2) / 2, (y0 + y2) / 2)
    assert x2 - x0 == 560
    assert y0 - y2 == 250
    labels = {element.text: float(element.get("y")) for element in root.iter(f"{SVG}text")}
    assert labels["0"] > labels["100"]


def test_a_logarithmic_axis_makes_a_decay_straight():
    root = drawn(curve({"a": [(i, 10.0**-i) for i in range(4)]}, title="t", x_label="x", y_label="y", y_scale="log"))
    (run,) = (element for element in root if (element.get("class") or "").startswith("run"))
    ys = [y for _, y in points(run)]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.15)
    assert "y, log scale" in texts(root)


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis():
    assert "loss, log scale" in texts(drawn(loss_curve([{"step": 1, "loss": 6.0}, {"step": 2, "loss": 0.2}], "t")))
    assert "loss" in texts(drawn(loss_curve([{"step": 1, "loss": 6.0}, {"step": 2, "loss": 0.0}], "t")))


def test_values_that_are_not_finite_leave_a_gap():
    line = [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0), (5, 2.0)]
    root = drawn(curve({"a": line}, title="t", x_label="x", y_label="y"))
    runs = [element for element in root if (element.get("class") or "").startswith("run")]
    assert [len(points(run)) for run in runs] == [2, 2]
    with pytest.raises(HeedfulError, match="no point has a finite value"):
        curve({"a": [(0, math.nan)]}, title="t", x_label="x", y_label="y")


def test_one_point_is_seen():
    root = drawn(curve({"a": [(7, 3.0)]}, title="t", x_label="x", y_label="y"))
    assert len(root.findall(f"{SVG}circle")) == 1
    assert {"0", "2", "4", "6"} <= set(texts(root))  # its place among the steps, from the first on


def test_a_long_run_is_averaged_within_its_range():
    line = [(float(i), float(i % 2)) for i in range(100_000)]
    (run,), band = thinned(line)
    assert len(run) == len(band) == 400
    assert all(y == pytest.approx(0.5) for _, y in run)
    assert {(low, high) for _, low, high in band} == {(0.0, 1.0)}
    assert len(curve({"a": line}, title="t", x_label="x", y_label="y")) < 40_000


def test_names_at_the_ends_do_not_touch():
    series = {name: [(0, 1.0), (1, value)] for name, value in zip("abcd", (0.0, 0.01, 0.02, 0.9), strict=True)}
    root = drawn(curve(series, title="t", x_label="x", y_label="y"))
    ends = sorted(float(e.get("y")) for e in root.iter(f"{SVG}text") if "name f" in e.get("class"))
    assert len(ends) == 4
    assert all(below - above >= 17 for above, below in itertools.pairwise(ends))


def test_lines_differ_without_colour():
    series = {name: [(0, 1.0), (1, i)] for i, name in enumerate("abcd")}
    text = curve(series, title="t", x_label="x", y_label="y")
    root = drawn(text)
    assert len(root.findall(f"{SVG}circle")) == 2
    assert len([e for e in root.findall(f"{SVG}rect") if e.get("width") == "7"]) == 2
    assert text.count("stroke-dasharray") == 2
    with pytest.raises(HeedfulError, match="5 lines"):
        curve({name: [(0, 1.0)] for name in "abcde"}, title="t", x_label="x", y_label="y")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 6.5, [0, 2, 4, 6, 8]),
        (0, 3000, [0, 500, 1000, 1500, 2000, 2500, 3000]),
        (0.31, 0.34, [0.31, 0.315, 0.32, 0.325, 0.33, 0.335, 0.34]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_enclose_their_range():
    for low, high in [(1e-9, 3e-9), (5, 5), (0, 0), (-7, -7), (123, 98765), (0.1, 0.7), (1e-14, 3e-14), (1e12, 3e12)]:
        marks = ticks(low, high)
        assert marks[0] <= low <= high <= marks[-1]
        assert 2 <= len(marks) <= 8
    for low, high in [(0.15, 6.5), (1, 1), (1e-5, 2.0), (0.2, 0.2), (3, 4)]:
        marks = log_ticks(low, high)
        assert marks[0] <= low <= high <= marks[-1]
        assert 2 <= len(marks) <= 12


def test_nothing_is_fetched_and_dark_is_served():
    text = loss_curve(STEPS, "t")
    assert not re.search(r"https?:", text.replace("http://www.w3.org/2000/svg", ""))
    assert not re.search(r"href|url\(|@import", text)
    assert "prefers-color-scheme:dark" in text


def test_the_room_imports_no_torch():
    code = "import sys, heedful.views as v; v.loss_curve, v.attention_page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
