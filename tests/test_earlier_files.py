"""Files of earlier versions: settings that have another name today are read under it."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from heedful import cli
from heedful.settings import RunSettings, keys, read_toml, to_toml
from heedful.settings.base import EARLIER_KEYS

VALUES = {float: 0.1, int: 2, bool: True, str: "a text"}


def section_of(old: str) -> tuple[type, str, str, object]:
    """The section's class, both names of the field, and a value."""
    section, _, name = old.partition(".")
    cls = get_type_hints(RunSettings)[section]
    new = EARLIER_KEYS[old].removeprefix(f"{section}.")
    hint = str(get_type_hints(cls)[new])
    value = ("a text",) if "tuple" in hint else next(value for kind, value in VALUES.items() if kind.__name__ in hint)
    if old == "masking.length":
        value = 2.0  # at least 1
    return cls, name, new, value


@pytest.mark.parametrize("old", EARLIER_KEYS)
def test_a_setting_in_the_file_of_an_earlier_run_is_read(old: str, tmp_path: Path) -> None:
    assert EARLIER_KEYS[old] in keys(RunSettings)
    assert old not in keys(RunSettings)
    cls, name, new, value = section_of(old)
    run = RunSettings("translation", train=("a",), out="o", **{cls.section: cls(**{new: value})})
    text = to_toml(run)
    assert f"{new} =" in text
    (tmp_path / "run.toml").write_text(text.replace(f"{new} =", f"{name} ="), encoding="utf-8")
    assert read_toml(tmp_path / "run.toml") == run


def test_config_reads_the_file_of_an_earlier_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, data = tmp_path / "run.toml", tmp_path / "data.tsv"
    config.write_text('[averaging]\nshare = 0.2\n[training]\nfloor = 0.05\nschedule = "cosine"\n', encoding="utf-8")
    data.write_text("".join(f"day {n}\t{'good' if n % 2 else 'bad'}\n" for n in range(40)), encoding="utf-8")
    files = ["--train", str(data), "--out", str(tmp_path / "out"), "--config", str(config)]
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
    assert cli.main(["train", "text-classification", *files, *small, "--max-steps=1", "--json"]) == 0
    capsys.readouterr()
    written = read_toml(tmp_path / "out" / "run.toml")
    assert (written.averaging.polynomial, written.training.min_lr_ratio) == (0.2, 0.05)
    assert cli.main(["train", "text-classification", *files, "--training.floor=0.05"]) == 2
    assert "--training.floor" in capsys.readouterr().err, "the command line takes present names alone"
