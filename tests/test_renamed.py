"""Old module names: each imports the new module with one warning, and torch is not imported for it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
import warnings
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from heedful import cli, renamed
from heedful.cli.arguments import with_new_names
from heedful.settings import RunSettings, keys, read_toml, to_toml


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("old", renamed.MODULES)
def test_an_old_name_is_the_new_module(old: str) -> None:
    sys.modules.pop(f"heedful.{old}", None)
    new = f"heedful.{renamed.MODULES[old]}"
    with pytest.warns(DeprecationWarning, match=f"heedful.{old} is now {new}"):
        module = importlib.import_module(f"heedful.{old}")
    assert module is importlib.import_module(new)
    assert module.__name__ == module.__spec__.name == new


@pytest.mark.parametrize("old", renamed.ATTRIBUTES)
def test_an_old_attribute_is_the_new_one(old: str) -> None:
    module, _, name = old.rpartition(".")
    home, _, attribute = renamed.ATTRIBUTES[old].partition(":")
    with pytest.warns(DeprecationWarning, match=f"heedful.{old} is now heedful.{home}.{attribute}"):
        value = getattr(importlib.import_module(f"heedful.{module}"), name)
    assert value is getattr(importlib.import_module(f"heedful.{home}"), attribute)


@pytest.mark.parametrize(
    "line",
    [
        "from heedful.checkpoints import load, push, read_card, save",
        "from heedful.checkpoints.preprocessing import read_preprocessing",
        "from heedful.verification import verify, verify_resume",
        "from heedful.inference import prepare",
        "from heedful.answering.neighbours import Index",
        "import heedful.evaluation.paired as paired; paired.differences",
        "from heedful.files import write",
        "from heedful.looking.inspect import inspect",
        "import heedful; heedful.verification.verify",
    ],
)
@pytest.mark.full(keep=3)
def test_lines_of_older_documentation_run(line: str) -> None:
    done = fresh(line)
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning" in done.stderr
    assert "<string>:1" in done.stderr, "the warning names the line that imports"


def test_a_submodule_is_loaded_once() -> None:
    code = (
        "import sys, heedful.checkpoints.rules as old; from heedful.pretrained import rules; sys.exit(old is not rules)"
    )
    assert fresh(code).returncode == 0


def test_no_torch_and_no_warning_without_an_old_name() -> None:
    done = fresh(
        "import sys, heedful, heedful.config; sys.exit('torch' in sys.modules or 'warnings' not in sys.modules)"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_other_names_stay_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"heedful\.nothing"):
        importlib.import_module("heedful.nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ModuleNotFoundError, match=r"heedful\.pretrained\.nothing"):
            importlib.import_module("heedful.checkpoints.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("heedful.inference").nothing  # noqa: B018


VALUES = {float: 0.1, int: 2, bool: True, str: "a text"}


def section_of(old: str) -> tuple[type, str, str, object]:
    """The section's class, both names of the field, and a value."""
    section, _, name = old.partition(".")
    cls = get_type_hints(RunSettings)[section]
    new = renamed.SETTINGS[old].removeprefix(f"{section}.")
    hint = str(get_type_hints(cls)[new])
    value = ("a text",) if "tuple" in hint else next(value for kind, value in VALUES.items() if kind.__name__ in hint)
    if old == "masking.length":
        value = 2.0  # at least 1
    return cls, name, new, value


@pytest.mark.parametrize("old", renamed.SETTINGS)
def test_an_old_setting_is_the_new_one_in_python(old: str) -> None:
    cls, name, new, value = section_of(old)
    assert renamed.SETTINGS[old] in keys(RunSettings)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {renamed.SETTINGS[old]}"):
        section = cls(**{name: value})
    assert getattr(section, new) == value
    with pytest.warns(DeprecationWarning, match=f"{old} is now {renamed.SETTINGS[old]}"):
        assert getattr(section, name) == value
    assert name not in {f.name for f in fields(cls)}


@pytest.mark.parametrize("old", renamed.SETTINGS)
def test_an_old_setting_in_the_file_of_a_run_is_read_without_a_word(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cls, name, new, value = section_of(old)
    run = RunSettings("translation", train=("a",), out="o", **{cls.section: cls(**{new: value})})
    text = to_toml(run)
    assert f"{new} =" in text
    (tmp_path / "run.toml").write_text(text.replace(f"{new} =", f"{name} ="), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_toml(tmp_path / "run.toml") == run
    assert "".join(capsys.readouterr()) == ""


@pytest.mark.parametrize("old", [*(f"--{name}" for name in renamed.SETTINGS), *renamed.OPTIONS])
def test_an_old_option_is_the_new_one_with_one_line(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    new = renamed.OPTIONS.get(old) or f"--{renamed.SETTINGS[old.removeprefix('--')].replace('_', '-')}"
    assert with_new_names(["train", "x", f"{old}=1", old, "--", old]) == ["train", "x", f"{new}=1", new, "--", old]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(f"{old} is now {new}" in line for line in lines)


def test_an_old_key_of_a_file_of_options_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, data = tmp_path / "options.toml", tmp_path / "data.tsv"
    config.write_text('[averaging]\nshare = 0.2\n[training]\nfloor = 0.05\nschedule = "cosine"\n', encoding="utf-8")
    data.write_text("".join(f"day {n}\t{'good' if n % 2 else 'bad'}\n" for n in range(40)), encoding="utf-8")
    run = [
        "train",
        "text-classification",
        "--train",
        str(data),
        "--out",
        str(tmp_path / "out"),
        "--config",
        str(config),
    ]
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
    assert cli.main([*run, *small, "--max-steps=1", "--image.erase=0.5"]) == 2, "it has no effect here"
    assert "--image.random-erasing has no effect" in capsys.readouterr().err
    assert cli.main([*run, *small, "--max-steps=1", "--json"]) == 0
    error = capsys.readouterr().err
    assert f"{config}:2: averaging.share is now averaging.polynomial" in error
    assert f"{config}:4: training.floor is now training.min_lr_ratio" in error
    written = tomllib.loads((tmp_path / "out" / "run.toml").read_text(encoding="utf-8"))
    assert (written["averaging"]["polynomial"], written["training"]["min_lr_ratio"]) == (0.2, 0.05)
