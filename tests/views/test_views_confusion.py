from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from heedful.errors import HeedfulError
from heedful.views import confusion_svg
from heedful.views.confusion import most_confused

SVG = "{http://www.w3.org/2000/svg}"
COUNTS = [[40, 7, 0], [3, 50, 1], [0, 0, 12]]
NAMES = ["cat", "dog", "eel"]


def drawn(labels, counts, title="t"):
    return ET.fromstring(confusion_svg(labels, counts, title).encode("utf-8"))


def texts(root, kind):
    return [element.text for element in root.iter(f"{SVG}text") if element.get("class").split()[0] == kind]


def titles(root):
    return [group.find(f"{SVG}title").text for group in root.iter(f"{SVG}g")]


def random_matrix(size, seed=0):
    rng = np.random.default_rng(seed)
    return np.diag(rng.integers(100, 200, size)) + rng.integers(0, 4, (size, size))


def test_every_count_stands_in_its_cell():
    root = drawn(NAMES, COUNTS)
    cells = {group.find(f"{SVG}title").text: group for group in root.iter(f"{SVG}g")}
    sums = [47, 54, 12]
    expected = {
        f"{NAMES[i]} → {NAMES[j]}: {count} of {sums[i]}": str(count)
        for i, row in enumerate(COUNTS)
        for j, count in enumerate(row)
        if count
    }
    assert {title: cell.find(f"{SVG}text").text for title, cell in cells.items()} == expected
    row, column = {}, {}
    for title, cell in cells.items():
        truth, said = title.split(":")[0].split(" → ")
        box = cell.find(f"{SVG}rect")
        row.setdefault(truth, set()).add(float(box.get("y")))
        column.setdefault(said, set()).add(float(box.get("x")))
    assert all(len(places) == 1 for places in [*row.values(), *column.values()])  # rows are the truth
    assert sorted(row, key=lambda name: min(row[name])) == sorted(column, key=lambda name: min(column[name])) == NAMES
    assert len([e for e in root.iter(f"{SVG}rect") if e.get("class") == "own"]) == 3


def test_shades_are_the_roots_of_the_shares():
    root = drawn(NAMES, COUNTS)
    shades = {
        group.find(f"{SVG}title").text: float(group.findall(f"{SVG}rect")[1].get("fill-opacity"))
        for group in root.iter(f"{SVG}g")
    }
    for title, shade in shades.items():
        part, whole = map(int, re.search(r"(\d+) of (\d+)", title).groups())
        assert shade == pytest.approx(math.sqrt(part / whole), abs=0.006)


def test_recall_and_precision_are_scikit_learns():
    matrix = random_matrix(9)
    truth, said = (np.repeat(place.ravel(), matrix.ravel()) for place in np.indices(matrix.shape))
    precision, recall, _, _ = precision_recall_fscore_support(truth, said)
    root = drawn([str(i) for i in range(9)], matrix.tolist())
    found = texts(root, "score")
    assert found[0::2] == [f"{100 * share:.1f}" for share in recall]
    assert found[1::2] == [f"{100 * share:.1f}" for share in precision]


def test_a_class_never_true_or_never_said_has_no_score():
    assert texts(drawn(["a", "b"], [[5, 0], [0, 0]]), "score") == ["100", "100", "–", "–"]


def test_of_many_classes_the_most_confused_are_shown():
    matrix = random_matrix(59)
    matrix[3, 50], matrix[50, 7] = 90, 80
    root = drawn([f"class {i}" for i in range(59)], matrix.tolist())
    notes = texts(root, "quiet")
    assert notes[1] == "25 of 59 classes, the most confused; shares and scores are of all classes"
    names = texts(root, "name")
    assert len(names) == 50
    assert len(set(names)) == 25
    assert {"class 3", "class 50", "class 7"} <= set(names)
    assert f"class 3 → class 50: 90 of {matrix[3].sum()}" in titles(root)
    assert names[0::2] == sorted(names[0::2], key=lambda name: int(name.split()[1]))
    assert f"{matrix.trace():,} of {matrix.sum():,} right" in notes[0]


def test_up_to_thirty_classes_are_all_shown():
    root = drawn([f"class {i}" for i in range(30)], random_matrix(30).tolist())
    assert len(set(texts(root, "name"))) == 30
    assert len(texts(root, "quiet")) == 1


def test_where_little_is_confused_the_most_frequent_fill_up():
    matrix = np.diag(np.arange(40))
    matrix[1, 2] = 1
    assert most_confused(matrix, 4) == [1, 2, 38, 39]


def test_a_count_too_long_for_its_cell_stands_in_the_title():
    matrix = [[123_456_789, 1], [0, 2]]
    root = drawn(["a", "b"], matrix)
    assert texts(root, "count")[:2] == ["1", "2"]
    assert "a → a: 123,456,789 of 123,456,790" in titles(root)


def test_long_and_hostile_names_are_cut_and_escaped_and_whole_in_the_title():
    long, hostile = "a very long name of a class, longer than all others are", "</svg><script>alert(1)</script>\ud800"
    text = confusion_svg([long, hostile], [[1, 2], [3, 4]], hostile)
    root = ET.fromstring(text.encode("utf-8"))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "title", "desc", "style", "rect", "text", "g")
    }
    assert titles(root).count(long) == 2
    assert all(name.endswith("…") for name in texts(root, "name")[:2])
    assert "https" not in text
    assert not re.search(r"href|url\(|@import", text)
    assert "prefers-color-scheme:dark" in text


def test_everything_stays_within_the_picture():
    for size, name in (
        (1, "a"),
        (2, "Donaudampfschifffahrt" * 4),
        (12, "negative"),
        (30, "一九九七年一月一日"),
        (60, "W"),
    ):
        root = drawn([name] * size, random_matrix(size).tolist(), "Wide " * 10)
        wide, high = float(root.get("width")), float(root.get("height"))
        for element in root.iter():
            if element.get("x"):
                assert 0 <= float(element.get("x")) <= wide - float(element.get("width") or 0)
                assert 0 <= float(element.get("y")) <= high - float(element.get("height") or 0)


def test_the_description_names_the_worst():
    told = drawn(NAMES, COUNTS).find(f"{SVG}desc").text
    assert told.startswith("102 of 113 right (90.3 %). Most frequent confusions: cat taken for dog 7 times; dog taken")
    assert drawn(["a"], [[1]]).find(f"{SVG}desc").text.endswith("confusions: none")


@pytest.mark.parametrize(
    ("labels", "counts", "message"),
    [
        ([], [], "no class"),
        (["a", "b"], [[1, 2]], "1 rows of 2 counts for 2 classes; give 2 × 2"),
        (["a", "b"], [[1, 2], [3]], "2 rows of 1 or 2 counts for 2 classes"),
        (["a", "b"], [[1, 2, 3], [1, 2, 3]], "2 rows of 3 counts"),
        (["a"], [[-1]], "smallest value -1"),
        (["a"], [[0.5]], "float64"),
    ],
)
def test_wrong_confusion_matrices_are_refused(labels, counts, message):
    with pytest.raises(HeedfulError, match=message):
        confusion_svg(labels, counts, "t")
