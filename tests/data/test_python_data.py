"""Python objects as data: rows of DataFrames, data sets, columns and iterables, as a table that files' readers read."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from heedful.data import python_data, read
from heedful.errors import HeedfulError

ROWS = [{"text": "a fine film", "label": "good"}, {"text": 'a\tdull\n"film" é', "label": "bad"}]


def table_of(data: Any, folder: Path) -> list[dict[str, Any]]:
    python_data.write_table(data, folder / "rows.jsonl")
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def data_set() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(ROWS)


class Columns:
    """A polars DataFrame, as far as it is used."""

    columns = ("text", "label")

    def iter_rows(self, named: bool) -> Any:
        assert named
        return iter(ROWS)


@pytest.mark.parametrize(
    "data",
    [
        lambda: ROWS,
        lambda: (row for row in ROWS),
        lambda: {"text": [row["text"] for row in ROWS], "label": [row["label"] for row in ROWS]},
        lambda: {"text": np.array([row["text"] for row in ROWS]), "label": [row["label"] for row in ROWS]},
        frame,
        Columns,
        data_set,
        lambda: data_set().to_iterable_dataset(),
    ],
    ids=["list", "generator", "columns", "arrays", "pandas", "polars", "Dataset", "IterableDataset"],
)
def test_every_kind_of_data_gives_the_same_table(data: Any, tmp_path: Path) -> None:
    assert table_of(data(), tmp_path) == ROWS
    rows = read(tmp_path / "rows.jsonl", {"text": "text", "label": "label"})
    assert [dict(row.values) for row in rows] == ROWS


def test_numbers_of_classes_become_their_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B"])),
        }
    )
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    table = table_of(datasets.Dataset.from_dict(rows, features=features), tmp_path)
    assert [row["label"] for row in table] == ["good", "bad", None]
    assert [row["tags"] for row in table] == [["O", "B"], [], ["B"]]


def test_values_of_numpy_pandas_and_torch_become_plain(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    row = {
        "whole": np.int64(3),
        "number": np.float32(0.5),
        "flag": np.bool_(True),
        "nan": float("nan"),
        "missing": pandas.NA,
        "time": pandas.Timestamp("2026-01-02"),
        "list": np.array([1, 2]),
        "tensor": torch.tensor([1.0, 2.0]),
        "nested": {"a": [np.int64(1)], 5: "b"},
    }
    assert table_of([row], tmp_path) == [
        {
            "whole": 3,
            "number": 0.5,
            "flag": True,
            "nan": None,
            "missing": None,
            "time": "2026-01-02T00:00:00",
            "list": [1, 2],
            "tensor": [1.0, 2.0],
            "nested": {"a": [1], "5": "b"},
        }
    ]


def test_images_are_written_without_loss(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    colour, grey = (random.integers(0, 256, shape, dtype=np.uint8) for shape in ((5, 4, 3), (5, 4)))
    Image.fromarray(colour).save(tmp_path / "own.png")
    encoded = (tmp_path / "own.png").read_bytes()
    images = {
        "array": (colour, colour),
        "grey": (grey, grey[..., None]),
        "fractions": (colour / 255, colour),
        "PIL": (Image.fromarray(colour), colour),
        "bytes": (encoded, colour),
        "the Hub's": ({"bytes": encoded, "path": None}, colour),
        "the Hub's path": ({"bytes": None, "path": str(tmp_path / "own.png")}, colour),
        "path": (tmp_path / "own.png", colour),
        "tensor": (torch.tensor(colour).permute(2, 0, 1), colour),
    }
    table = table_of([{"image": image, "label": name} for name, (image, _) in images.items()], tmp_path / "run")
    assert not any(Path(row["image"]).is_absolute() for row in table if "path" not in row["label"])
    rows = read(tmp_path / "run" / "rows.jsonl", {"image": "image", "label": "label"})
    for row, (name, (_, pixels)) in zip(rows, images.items(), strict=True):
        assert row.values["label"] == name
        np.testing.assert_array_equal(row.values["image"].pixels(), pixels)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "data of type NoneType cannot be read; give a path"),
        (3, "data of type int cannot be read"),
        ([], "no rows"),
        ([ROWS[0], ("a", "b")], "row 2 of the data is of type tuple, not a dict"),
        ({"text": ["a", "b"], "label": ["x"]}, "'text' has 2 values, 'label' has 1 value"),
        ({"text": "ab"}, "column 'text' of the data is not a list but str"),
        ([{"text": object()}], "row 1 of the data: column 'text' holds a value of type object"),
        ([{"image": b"no image"}], "row 1 of the data: column 'image': the file is not an image"),
    ],
)
def test_other_objects_are_refused_with_the_row_and_the_column(data: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as error:
        python_data.write_table(data, tmp_path / "rows.jsonl")
    assert words in str(error.value)
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_broken_iterable_leaves_no_table(tmp_path: Path) -> None:
    def rows() -> Any:
        yield ROWS[0]
        raise ValueError("the source failed")

    with pytest.raises(ValueError, match="the source failed"):
        python_data.write_table(rows(), tmp_path / "rows.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_flat(tmp_path: Path) -> None:
    tracemalloc.start()
    count = python_data.write_table(({"text": f"{i} " * 50} for i in range(40_000)), tmp_path / "rows.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000
    assert (tmp_path / "rows.jsonl").stat().st_size > 10_000_000 > 10 * peak


def test_splits_are_found_by_name() -> None:
    splits = {"train": ROWS, "validation": ROWS[:1], "test": ROWS[1:]}
    assert python_data.is_splits(splits)
    assert python_data.mapped_split(splits, "train") is ROWS
    assert python_data.mapped_split(splits, "valid") == ROWS[:1]
    assert python_data.mapped_split(ROWS, "train") is ROWS
    assert python_data.mapped_split(ROWS, "valid") is None
    assert not python_data.is_splits({"text": ["a"], "label": ["b"]})
    with pytest.raises(HeedfulError, match="no split 'train', only 'test'"):
        python_data.mapped_split({"test": ROWS}, "train")
