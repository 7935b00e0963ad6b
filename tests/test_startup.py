"""Help, version and every error of the options come before anything slow is imported."""

from __future__ import annotations

import os
import pydoc
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fresh_process
import heedful

SLOW = ("torch", "numpy", "tokenizers", "transformers", "safetensors", "huggingface_hub", "sacrebleu", "babel", "PIL")
SLOW += ("fastapi", "uvicorn", "pydantic", "prometheus_client")
STRICT = "import warnings; warnings.simplefilter('error')"
COMMANDS = f"{STRICT}; import heedful.cli.command_line"  # what each command line imports first
PYTORCH = f"{STRICT}; {fresh_process.PYTORCH}"
REPORT = f"""
import sys
from heedful.cli import main
status = main(sys.argv[1:])
print([name for name in {SLOW!r} if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""


def run(folder: Path, code: str, *tokens: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
    command = [sys.executable, "-W", "error", "-c", code, *tokens]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def forked(folder: Path, code: str, *tokens: str, imports: str) -> subprocess.CompletedProcess[str]:
    return fresh_process.run(code, *tokens, cwd=folder, env={**os.environ, "COLUMNS": "80"}, imports=imports)


@pytest.mark.parametrize(
    ("tokens", "status", "part"),
    [
        ([], 0, "heedful demo"),
        (["--help"], 0, "heedful demo"),
        (["train", "--help"], 0, "--training.lr"),
        (["train", "--help-all"], 0, "--training.betas"),
        (["train", "text-classification", "--help"], 0, "--data.label-kind"),
        (["predict", "--help"], 0, "--num-beams"),
        (["--version"], 0, "."),
        (["-V"], 0, "."),
        (["help"], 0, "Usage: heedful COMMAND"),
        (["help", "summary"], 0, "Usage: heedful summary"),
        (["tasks"], 0, "translation"),
        (["presets"], 0, "transformer-base"),
        (["trian"], 2, "Did you mean"),
        (["train", "translation", "--trian", "x"], 2, "Did you mean --train instead of --trian?"),
        (["train", "translatio", "--train", "x", "--out", "y"], 2, "translation"),
        (["train", "translation", "--train", "x", "--out", "y", "--preset", "transformer-bas"], 2, "transformer-base"),
        (["train", "translation", "--train", "x.tsv", "--out", "y"], 2, "x.tsv: no such file"),
        (["train", "translation", "--train", "x.tsv", "--out", "y", "--training.lr", "-1"], 2, "above 0"),
        (["predict", "./nothing", "hi"], 2, "./nothing: no such folder"),
        (["serve", "--help"], 0, "--token-file"),
        (["serve", "./nothing"], 2, "./nothing: no such folder"),
        (["serve", "org/name", "--host", "0.0.0.0"], 2, "needs a token"),
        (["evaluate", "./nothing", "--data", "x"], 2, "./nothing: no such folder"),
        (["summary", "gpt22"], 2, "gpt2"),
        (["verify", "--help"], 0, "--save"),
        (["verify", "./nothing"], 2, "./nothing: no such folder"),
        (["verify", "org/name", "--task", "translatio"], 2, "translation"),
        (["verify", "resume", "--help"], 0, "--kills"),
        (["verify", "resume", "translation", "--train", "x", "--max-minutes", "1"], 2, "--max-minutes ends a run by"),
        (["export", "org/name", "--to", "onx", "--out", "y"], 2, "did you mean 'onnx'?"),
        (["export", "org/name", "--to", "hf", "--out", "y", "--quantization", "int8"], 2, "has no effect on --to hf"),
    ],
)
def test_no_slow_import(tmp_path: Path, tokens: list[str], status: int, part: str) -> None:
    done = forked(tmp_path, REPORT, *tokens, imports=COMMANDS)
    *errors, slow = done.stderr.splitlines()
    assert slow == "[]"
    assert done.returncode == status
    assert part in (done.stdout if status == 0 else errors[0])
    assert len(errors) == (0 if status == 0 else 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "module", ["heedful", "heedful.settings", "heedful.errors", "heedful.presets", "heedful.tasks"]
)
def test_light_modules(tmp_path: Path, module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('torch', 'cyclopts', 'rich') if name in sys.modules])"
    done = run(tmp_path, code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_compiler_is_imported_by_no_room(tmp_path: Path) -> None:
    """It takes longer than PyTorch itself; a command that compiles nothing starts without it."""
    code = "import sys, heedful; [getattr(heedful, room) for room in heedful._ROOMS]; import heedful.training.run; "
    code += "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    done = forked(tmp_path, code, imports=PYTORCH)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])  # the first has an AdamW, too
def test_a_run_imports_no_compiler(tmp_path: Path, optimiser: str) -> None:
    code = f"""
import heedful, sys
rows = [dict(source=f"{{i}} a", target=f"a {{i}}") for i in range(20)]
small = dict(dim=16, heads=2, depth=1)
given = dict(out="run", model_settings=small, training=dict(optimiser={optimiser!r}), quiet=True)
heedful.train("translation", rows, max_steps=2, **given)
heedful.train("translation", rows, max_steps=3, resume=True, **given)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    assert forked(tmp_path, code, imports=PYTORCH).stdout == "[]\n"


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("room", heedful._ROOMS)
def test_every_room_is_reached_after_importing_the_package_alone(tmp_path: Path, room: str) -> None:
    code = f"import heedful; print(heedful.{room}.__name__, len(heedful.{room}.__doc__) > 50)"
    done = forked(tmp_path, code, imports=PYTORCH)
    assert (done.stdout, done.stderr) == (f"heedful.{room} True\n", "")
    assert room in dir(heedful)


def test_help_begins_with_examples_that_run(tmp_path: Path) -> None:
    """``help(heedful)`` shows the package's docstring; its lines of code are run as they stand there, for an epoch."""
    text = pydoc.render_doc(heedful, renderer=pydoc.plaintext)
    description = textwrap.dedent(text.partition("\nDESCRIPTION\n")[2].partition("\nPACKAGE CONTENTS\n")[0])
    blocks = re.findall(r"(?:^    .*\n|^\n)+", description, re.M)
    code = "".join(textwrap.dedent(block) for block in blocks)
    for name in ("train", "pipeline", "create", "record"):
        assert f"heedful.{name}(" in code
    for room in heedful._ROOMS:
        assert f"``{room}``" in description.replace("``heedful.", "``")
    assert code.count("max_epochs=20") == 1
    code = f"import torch, heedful\n{code.replace('max_epochs=20', 'max_epochs=1')}"
    done = forked(tmp_path, code, imports=PYTORCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("torch.Size([1, 4, 3, 3])")
    assert "'output'" in done.stdout


def test_the_module_is_the_command(tmp_path: Path) -> None:
    code = "import runpy; runpy.run_module('heedful', run_name='__main__')"
    done = forked(tmp_path, code, "trian", imports=COMMANDS)
    assert done.returncode == 2
    assert done.stderr.startswith('heedful: Unknown command "trian".')
