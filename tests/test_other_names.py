"""Names and habits from other libraries and shells: arguments, a profile, completion, versions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fresh_process
import heedful
from heedful import cli
from heedful.cli.parser import app
from heedful.errors import HeedfulError, edit_distance
from heedful.pretrained.model_types import model_type_of
from heedful.recipes import RECIPES
from heedful.tasks import named
from heedful.training import report

ROWS = [{"text": f"{a} {b} ."} for a in ("one", "two", "three") for b in ("red", "blue")] * 8
SMALL: dict[str, Any] = {"quiet": True, "model_settings": {"dim": 32, "depth": 1, "heads": 4}}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("torch_dtype", "write dtype="),
        ("device_map", "write device="),
        ("trust_remote_code", "nothing in a folder is ever run"),
        ("load_in_8bit", 'write dtype="int8"'),
        ("devcie", "did you mean 'device'"),
    ],
)
def test_arguments_of_other_libraries_have_a_hint(argument: str, words: str, tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    with pytest.raises(HeedfulError) as error:
        heedful.from_pretrained(tmp_path, **{argument: "auto"})
    assert str(error.value).startswith(f"from_pretrained has no argument {argument!r}; ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("input_ids", "model(ids, mask)"),
        ("attention_mask", "pass it as mask"),
        ("labels", "F.cross_entropy"),
        ("output_attentions", 'heedful.record(model, "pattern")'),
        ("past_key_values", "model.generate"),
        ("mems", "cache="),
        ("perm_mask", "model.query_hidden"),
    ],
)
def test_a_call_in_the_words_of_transformers_has_a_hint(argument: str, words: str) -> None:
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError) as error:
        model(torch.tensor([[1, 2]]), **{argument: torch.ones(1, 2)})
    assert words in str(error.value)
    with pytest.raises(TypeError, match="other"):  # Python's own for everything else
        model(torch.tensor([[1, 2]]), other=1)


def test_a_profile_is_a_trace_of_steps(tmp_path: Path) -> None:
    heedful.train("text-generation", ROWS, out=tmp_path / "run", max_steps=9, training={"profile": True}, **SMALL)
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")}
    assert steps == {f"ProfilerStep#{number}" for number in range(3, 8)}
    assert any("addmm" in str(event.get("name")) or "linear" in str(event.get("name")) for event in events)
    heedful.train("text-generation", ROWS, out=tmp_path / "plain", max_steps=1, **SMALL)
    assert not (tmp_path / "plain" / "trace.json").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_folder_names_versions_and_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report.git_commit() == ""
    run = heedful.train("text-generation", ROWS, out="run", max_steps=1, **SMALL)
    versions = json.loads((run.folder / "heedful.json").read_text())["versions"]
    assert {*versions} == {"heedful", "python", *report.PACKAGES}
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(tmp_path)]
    Path("mine.py").write_text("x = 1\n")
    for command in (["init", "-q"], ["add", "mine.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = report.git_commit()
    assert len(commit) == 12
    Path("mine.py").write_text("x = 2\n")
    assert report.git_commit() == commit + "+"
    assert (
        json.loads(
            (
                heedful.train("text-generation", ROWS, out="other", max_steps=1, **SMALL).folder / "heedful.json"
            ).read_text()
        )["versions"]["git"]
        == commit + "+"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str, tmp_path: Path) -> None:
    script = "import sys; from heedful import cli; sys.exit(cli.main(sys.argv[1:]))"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SHELL": f"/bin/{shell}"}
    done = fresh_process.run(script, "--install-completion", "--shell", shell, env=environment)
    assert done.returncode == 0, done.stderr
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert all(command in written for command in ("train", "predict", "inspect"))


def offered(*words: str) -> list[str]:
    """The values that ``heedful __complete`` offers to a shell for the last word."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert cli.main(["__complete", *words]) == 0
    return [line.partition("\t")[0] for line in output.getvalue().splitlines() if line and line[0] != "\x1f"]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["train", ""], ["translation", "fill-mask"]),
        (["train", "translation", "--preset", ""], ["transformer-tiny", "gpt2"]),
        (["train", "translation", "--recipe", ""], list(RECIPES)),
        (["train", "translation", "--training.schedule", ""], ["cosine", "linear"]),
        (["predict", "runs/a", "--dtype", ""], ["int8", "float32"]),
        (["train", "translation", "--training.lr", ""], []),
    ],
)
def test_a_shell_completes_values(words: list[str], some: list[str]) -> None:
    found = offered(*words)
    assert {*some} <= {*found}
    assert found or not some


def test_a_shell_completes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/small", "runs/large", "alone/only/inner", ".hidden"):
        Path(name).mkdir(parents=True)
    Path("pairs.tsv").write_text("a\tb\n")
    assert offered("predict", "") == ["alone/", "pairs.tsv", "runs/"]
    assert offered("predict", "runs/s") == ["runs/small/"]
    assert offered("predict", "ru") == ["runs/large/", "runs/small/"]  # no space after a folder's name
    assert offered("predict", "al") == ["alone/only/inner/"]
    assert offered("predict", "nothing/") == []
    assert offered("predict", "~/") == []  # bash would quote it
    Path("alone/loop").symlink_to("loop")
    os.close(os.open(os.fsencode(tmp_path) + b"/alone/bad\xff", os.O_CREAT | os.O_WRONLY))
    assert offered("predict", "alone/") == ["alone/loop", "alone/only/"]
    assert offered("train", "translation", "--train", "pa") == ["pairs.tsv"]


def test_bash_completes_values(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash is installed")
    program = tmp_path / "heedful"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom heedful import cli\nsys.exit(cli.main(sys.argv[1:]))\n")
    program.chmod(0o755)
    (tmp_path / "h.bash").write_text(app.generate_completion(shell="bash", prog_name="heedful"))
    line = "COMP_WORDS=(heedful train translation --preset transformer-t) COMP_CWORD=4"
    script = f'source h.bash; {line}; _heedful; echo "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["transformer-tiny"]


def test_help_names_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("image-caption", "did you mean 'image-to-text'?"),  # a misspelling of another library's name
        ("tranlsation", "did you mean 'translation'?"),
        ("text_clasification", "did you mean 'text-classification'?"),
        ("classification", "did you mean image-classification or text-classification or token-classification?"),
        ("image-segmentation", "known: feature-extraction, fill-mask"),  # similar, but another task
    ],
)
def test_a_hint_is_a_misspelling_or_none(name: str, hint: str) -> None:
    with pytest.raises(HeedfulError, match=re.escape(f"unknown task {name!r}; {hint}")):
        named(name)


@pytest.mark.parametrize("model_type", ["roformer", "mobilebert", "mvp", "gpt22"])
def test_the_type_of_a_model_is_never_guessed(model_type: str) -> None:
    with pytest.raises(HeedfulError, match=f"'{model_type}' is not supported; known: albert, bart, bert, "):
        model_type_of({"model_type": model_type, "architectures": ["Model"]})


def test_edit_distance_is_the_shortest_path_of_edits() -> None:
    """Breadth-first over all strings of three letters, a step an edit."""

    def edits(word: str) -> set[str]:
        cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
        found = {a + c + b for a, b in cuts for c in "abc"} | {a + b[1:] for a, b in cuts}
        return (
            found
            | {a + c + b[1:] for a, b in cuts if b for c in "abc"}
            | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
        )

    start, seen, ring = "abca", {"abca": 0}, {"abca"}
    for distance in (1, 2):
        ring = {word for old in ring for word in edits(old)} - seen.keys()
        seen |= dict.fromkeys(ring, distance)
    # exchanged letters are not edited again, so that a distance may be one more than the shortest path
    assert all(seen[word] <= edit_distance(start, word) <= seen[word] + (seen[word] > 1) for word in seen)
    assert all(edit_distance(start, word) == distance for word, distance in seen.items() if distance < 2)
