"""Options of the audit: every option of a run that changes the model's input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful import cli
from heedful.settings import DataSettings, MaskingSettings, RunSettings, TokenizerSettings, TrainingSettings, to_toml


def told(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    assert cli.main(["audit", *map(str, options), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.txt"
    file.write_text("".join(f"there are {n} birds on the roof and {n * n} in the wood\n" for n in range(300)))
    return file


def hidden(result: dict[str, Any]) -> int:
    """The places of the first example that are learned."""
    line = next(line for line in result["sample"] if "positions have a target" in line)
    return int(line.split()[0])


def test_options_of_masking(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = ("fill-mask", "--train", book, "--tokenizer.size", 400)
    assert 3 * hidden(told(capsys, *of, "--masking.probability", 0.1)) < hidden(
        told(capsys, *of, "--masking.probability", 0.6)
    )


def test_a_prefix_of_every_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "set.tsv"
    pairs.write_text("".join(f"{n} birds\t{n} oiseaux\n" for n in range(30)))
    of = ("translation", "--train", pairs, "--tokenizer.size", 300, "--data.prefix", "birds 1: ")
    assert re.match(r"  source +birds\| 1\|:\| ", told(capsys, *of)["sample"][1])


def test_the_family_of_a_preset(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = ("fill-mask", "--train", book, "--tokenizer.size", 400)
    sides = [line.split()[0] for line in told(capsys, *of, "--preset", "t5-small")["sample"] if "|" in line]
    assert sides[:2] == ["source", "target"]
    assert cli.main(["audit", *map(str, of), "--preset", "nothing"]) == 2
    assert "unknown preset 'nothing'" in capsys.readouterr().err


def test_a_preset_that_another_task_has(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "text-generation", "--train", str(book), "--preset", "bert-base"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_images_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for n in range(12):
        (tmp_path / "ab"[n % 2]).mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "ab"[n % 2] / f"{n}.png")
    of = ("image-classification", "--train", tmp_path)
    assert "16 patches of 4 × 4" in told(capsys, *of)["sample"][1]
    made = told(capsys, *of, "--image.size", 24, "--image.channels", 1, "--model.patch-size", 8)
    assert "16 × 16 resized to 24 × 24, 1 channel, 9 patches of 8 × 8 + class" in made["sample"][1]


def test_the_settings_of_a_run(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = RunSettings(
        "fill-mask",
        train=(str(book),),
        out=str(tmp_path / "run"),
        max_steps=5,
        data=DataSettings(max_length=24),
        tokenizer=TokenizerSettings(size=400),
        masking=MaskingSettings(probability=0.6),
        training=TrainingSettings(lr=1e-3, batch_size=8),
    )
    file = tmp_path / "run.toml"
    file.write_text(to_toml(settings))
    written = told(capsys, "--config", file)
    asked = ("--data.max-length", 24, "--tokenizer.size", 400, "--masking.probability", 0.6)
    assert written["sample"] == told(capsys, "fill-mask", "--train", book, *asked)["sample"]
    assert hidden(told(capsys, "--config", file, "--masking.probability", 0.1)) < hidden(written)
    file.write_text("[masking]\nshard = 0.6\n")
    assert cli.main(["audit", "fill-mask", "--train", str(book), "--config", str(file)]) == 2
    assert f"{file}:2: unknown key 'masking.shard'" in capsys.readouterr().err


def test_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "set.tsv"
    pairs.write_text("".join(f"{n} birds\t{n} oiseaux\n" for n in range(300)))
    assert cli.main(["audit", "translation", "--train", str(pairs), "--recipe", "nothing"]) == 2
    assert "unknown recipe 'nothing'" in capsys.readouterr().err
