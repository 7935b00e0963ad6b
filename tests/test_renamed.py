"""Old module names: each imports the new module with one warning, and torch is not imported for it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings

import pytest

from heedful import renamed


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
def test_lines_of_older_documentation_run(line: str) -> None:
    done = fresh(line)
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning" in done.stderr
    assert "<string>:1" in done.stderr, "the warning names the line that imports"


def test_a_submodule_is_loaded_once() -> None:
    code = "import heedful.checkpoints.rules as old; from heedful.pretrained import rules; assert old is rules"
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
