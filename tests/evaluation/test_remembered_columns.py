"""A run keeps what its data called the columns; evaluating, comparing, answering and going on find them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.cli import main
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.inference.predict_file import predict
from heedful.pretrained import read_card

SIZE = ["--preset", "bert-tiny", "--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--max-steps", "1"]
ROWS = [(f"a {mood} film of the {place} kind", mood) for mood in ("good", "bad") for place in "abcdefghij"]


def written(path: Path, *header: str) -> str:
    lines = [f"{number},{text},{mood},en" for number, (text, mood) in enumerate(ROWS, 100)]
    path.write_text("\n".join([",".join(header), *lines]) + "\n", "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run on columns that no task calls so, and what it printed."""
    folder = tmp_path_factory.mktemp("remembered")
    data = written(folder / "train.csv", "id", "review", "mood", "lang")
    with pytest.MonkeyPatch.context() as patch:
        told: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: told.append(" ".join(map(str, words))))
        train = ["train", "text-classification", "--train", data, "--out", str(folder / "run"), *SIZE]
        assert main(train) in (0, None)
    return folder / "run", "\n".join(told)


def test_the_guess_is_printed_and_kept(run: tuple[Path, str]) -> None:
    folder, told = run
    assert "columns    text=review, label=mood (guessed; --data.columns TEXT,LABEL changes it)" in told
    assert read_card(folder)["data"]["columns"] == {"text": "review", "label": "mood"}


def test_other_commands_find_the_columns_again(run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = run
    # another column has the task's own name, and a second could be the label: only memory tells
    data = written(tmp_path / "test.csv", "text", "review", "mood", "label")
    lines: list[str] = []
    found = evaluate(str(folder), [data], say=lines.append)
    assert found["examples"] == len(ROWS)
    assert "text=review, label=mood (as in training; --columns TEXT,LABEL changes it)" in lines
    lines.clear()
    assert compare([str(folder)] * 2, [data], say=lines.append)["examples"] == len(ROWS)
    assert any("as in training" in line for line in lines)
    out = tmp_path / "out.jsonl"
    predict(folder, data, str(out), as_json=True, quiet=True)
    assert [json.loads(line)["review"] for line in out.read_text().splitlines()] == [text for text, _ in ROWS]


def test_a_column_that_is_not_there_is_guessed_again(run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = run
    lines: list[str] = []
    data = written(tmp_path / "test.csv", "id", "body", "mood", "lang")
    assert evaluate(str(folder), [data], say=lines.append)["examples"] == len(ROWS)
    assert "text=body, label=mood (guessed; --columns TEXT,LABEL changes it)" in lines


def test_an_audit_from_the_model_finds_them_too(
    run: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = run
    data = written(tmp_path / "more.csv", "text", "review", "mood", "label")
    main(["audit", "text-classification", "--train", data, "--from", str(folder)])
    assert "text=review, label=mood (as in training; --data.columns" in capsys.readouterr().out
    main(["audit", "text-classification", "--train", data, "--data.columns", "review,mood"])
    assert "as in training" not in capsys.readouterr().out
