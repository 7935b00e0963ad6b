"""Rows that were trained on: told by evaluate and compare, wherever the folder lies; the file of hashes by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful import cli
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.evaluation.trained_on import DOCUMENT, FILE, Overlap, TrainedOn, hashed
from tolerances import approx

TINY = ["--preset=bert-tiny", "--model.depth=1", "--model.dim=16", "--model.heads=2", "--training.log-every=10"]
SEEN = [(f"{word} number {i}", label) for i in range(40) for word, label in (("good", "a"), ("bad", "b"))]
NEW = [(f"{word} thing {i}", label) for i in range(15) for word, label in (("good", "a"), ("bad", "b"))]


def table(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 80 rows, moved since."""
    place = tmp_path_factory.mktemp("trained")
    train, valid = table(place / "train.tsv", SEEN), table(place / "valid.tsv", NEW[:4])
    command = ["train", "text-classification", "--train", train, "--valid", valid, "--out", str(place / "before")]
    assert cli.main([*command, *TINY, "--max-steps", "10", "--json"]) == 0
    return (place / "before").rename(place / "moved")


def test_evaluate_tells_how_many_and_the_score_on_the_others(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    again = [(f"  {text.upper()}  ", label) for text, label in SEEN[:50]]  # letters and blanks as the audit compares
    found = evaluate(str(folder), [table(tmp_path / "some.tsv", again + NEW)], say=said.append)
    assert found["trained_on"] == 50
    alone = evaluate(str(folder), [table(tmp_path / "new.tsv", NEW)], say=print)
    assert alone["trained_on"] == 0
    assert "metrics_others" not in alone
    for name, value in alone["metrics"].items():
        assert found["metrics_others"][name] == approx(value, "training")
    (line,) = [line for line in said if "trained on" in line]
    assert "50 of 80" in line
    assert f"{found['metrics_others']['accuracy']:.4g} on the other rows" in line
    assert json.loads(json.dumps(found))["trained_on"] == 50


def test_all_or_none_of_them(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = evaluate(str(folder), [table(tmp_path / "seen.tsv", SEEN)], say=said.append)
    assert found["trained_on"] == 80
    assert "metrics_others" not in found
    assert any("80 of 80" in line and "held out" in line for line in said)
    said.clear()
    assert evaluate(str(folder / "last"), [table(tmp_path / "s.tsv", SEEN[:9])], say=said.append)["trained_on"] == 9
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    (bare / FILE).unlink()
    said.clear()
    found = evaluate(str(bare), [str(tmp_path / "seen.tsv")], say=said.append)
    assert "trained_on" not in found
    assert not any("trained on" in line for line in said)


def test_compare_tells_it_of_both(folder: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    (bare / FILE).unlink()
    said: list[str] = []
    data = [table(tmp_path / "some.tsv", SEEN[:10] + NEW)]
    found = compare([str(folder), str(bare)], data, say=said.append)
    assert found["trained_on"] == {"a": 10, "b": None}
    assert found["metrics_others"]["accuracy"]["difference"] == 0
    assert [line[:2] for line in said if "trained on" in line] == ["A:"]


def test_a_model_that_is_fine_tuned_was_trained_on_both(folder: Path, tmp_path: Path) -> None:
    train = table(tmp_path / "more.tsv", NEW)
    command = ["train", "text-classification", "--train", train, "--from", str(folder), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--max-steps", "2", "--json"]) == 0
    known = TrainedOn.read(tmp_path / "out")
    assert known is not None
    before = TrainedOn.read(folder)
    assert before is not None
    assert set(before.hashes.tolist()) < set(known.hashes.tolist())


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    for content in (b"", b"1234567", np.array([0, 5, 3], "<u8").tobytes(), np.array([99], "<u8").tobytes()):
        (broken / FILE).write_bytes(content)
        with pytest.raises(HeedfulError, match=rf"{FILE} is damaged.*remove the file"):
            TrainedOn.read(broken)


def rows_of(count: int, first: int = 0) -> Rows:
    return Rows(Row({"text": f"row {i}", "label": "a"}, "set", i + 1) for i in range(first, first + count))


class Asked:
    """As much of a task as is hashed."""

    def __init__(self, kind: str = "text") -> None:
        self.columns, self.model_columns = {"text": kind, "label": "label"}, ["text"]


def test_of_very_many_rows_a_share_is_kept_and_the_number_is_estimated(tmp_path: Path) -> None:
    task: Any = Asked()
    known = TrainedOn.of(task, rows_of(8000), limit=1000)
    assert known.k >= 3
    assert len(known.hashes) <= 1000
    every = np.concatenate([*hashed(task, rows_of(8000))])
    bound = 2 ** (64 - known.k)
    assert known.hashes.tolist() == sorted(value for value in every.tolist() if value < bound)
    known.write(tmp_path)
    back = TrainedOn.read(tmp_path)
    assert back is not None
    assert back.k == known.k
    assert back.hashes.tolist() == known.hashes.tolist()
    found = Overlap.of(tmp_path, task, [*rows_of(3000), *rows_of(3000, first=9000)])
    assert found is not None
    assert found.estimated
    assert abs(found.trained - 3000) < 600
    assert not found.others[:3000].any()
    assert 150 < found.others.sum() < 3000


def test_documents_are_compared_by_their_beginnings() -> None:
    task: Any = Asked("document")
    text = "x" * DOCUMENT
    first, same, other = np.concatenate(
        [*hashed(task, [Row({"text": one}, "a", 1) for one in (text + " end", text + " another", "y" + text)])]
    ).tolist()
    assert first == same != other


def test_validation_rows_are_not_among_them(tmp_path: Path) -> None:
    train = table(tmp_path / "train.tsv", SEEN)
    command = ["train", "text-classification", "--train", train, "--out", str(tmp_path / "out"), "--seed", "3"]
    assert cli.main([*command, *TINY, "--max-steps", "2", "--json"]) == 0
    found = evaluate(str(tmp_path / "out"), [train], say=print)
    card = json.loads((tmp_path / "out" / "heedful.json").read_text(encoding="utf-8"))
    assert found["trained_on"] == card["data"]["examples"] < 80
