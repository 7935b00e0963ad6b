"""A run's folder is whole or counts for nothing: what a kill leaves at its beginning, and ever after, is taken up."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import fresh_process
from heedful import cli
from heedful.data.split import Same, content_digest, earlier_digest, exact_bytes
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import training_rows
from heedful.inference.pipeline import pipeline
from heedful.pretrained import read_card
from heedful.settings import RunSettings, TokenizerSettings, TrainingSettings, read_toml, to_toml
from heedful.training import run
from heedful.training.run import train
from heedful.training.run_folder import (
    SETTINGS,
    UNFINISHED_SETTINGS,
    create_run_folder,
    mark_complete,
    resumed_settings,
    temporary_files,
)
from heedful.util.locks import LOCK, locked


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    lr, lower = TrainingSettings(lr=0.5), TokenizerSettings(lowercase=True)
    return RunSettings(
        "translation", train=("a.tsv",), out=str(tmp_path / "run"), seed=7, max_steps=9, training=lr, tokenizer=lower
    )


def asked(settings: RunSettings, **more: object) -> RunSettings:
    """The same run, resumed by a shorter command."""
    return RunSettings(settings.task, train=settings.train, out=settings.out, resume=True, **more)


def test_a_run_that_is_begun_is_taken_up_with_its_settings(settings: RunSettings) -> None:
    out, said = Path(settings.out), []
    create_run_folder(out, settings)
    mark_complete(out, settings)
    assert os.listdir(out) == [SETTINGS]
    found = resumed_settings(asked(settings, max_steps=20), said.append)
    assert found == replace(settings, resume=True, max_steps=20)
    assert said == []


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "an empty one"])
def test_where_nothing_is_the_run_begins_and_says_so(settings: RunSettings, there: bool) -> None:
    said: list[str] = []
    if there:
        Path(settings.out).mkdir()
    found = resumed_settings(replace(settings, resume=True), said.append)
    assert found == settings
    assert said == [f"{settings.out} holds no run yet; the run starts from the beginning"]


def test_a_run_cut_off_while_it_began_begins_anew_with_its_settings_and_seed(settings: RunSettings) -> None:
    out, said = Path(settings.out), []
    create_run_folder(out, settings)
    (out / "last").mkdir()
    found = resumed_settings(asked(settings), said.append)
    assert found == settings
    assert said == [f"the run in {out} was cut off before its first step; it starts again, with seed 7"]


def test_an_overwritten_run_is_gone_after_any_kill(settings: RunSettings) -> None:
    out = Path(settings.out)
    old = replace(settings, seed=3, training=TrainingSettings(lr=0.25))
    create_run_folder(out, old)
    mark_complete(out, old)
    for name in ("checkpoint.pt", "notes.txt"):
        (out / name).write_text("old", encoding="utf-8")
    again = replace(settings, overwrite=True)
    unfinished = "overwrite = true\n" + to_toml(again)  # killed before the other files were removed
    (out / UNFINISHED_SETTINGS).write_text(unfinished, encoding="utf-8")
    found = resumed_settings(asked(settings), lambda line: None)
    assert found == again
    create_run_folder(out, found)
    assert os.listdir(out) == [UNFINISHED_SETTINGS]
    mark_complete(out, found)
    assert os.listdir(out) == [SETTINGS]
    assert not read_toml(out / SETTINGS).overwrite, "the file is one that --config reads"


def test_a_person_s_folder_is_no_run(settings: RunSettings) -> None:
    out = Path(settings.out)
    out.mkdir()
    (out / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(HeedfulError, match=r"holds no run to resume \(no run\.toml\)"):
        resumed_settings(replace(settings, resume=True), lambda line: None)
    assert os.listdir(out) == ["letter.txt"]


def test_another_task_does_not_go_on_with_a_run_that_hardly_began(settings: RunSettings) -> None:
    create_run_folder(Path(settings.out), settings)
    with pytest.raises(HeedfulError, match="trains for translation, not for summarization"):
        resumed_settings(replace(asked(settings), task="summarization"), lambda line: None)


def test_partial_files_go_and_other_files_stay(settings: RunSettings) -> None:
    out = Path(settings.out)
    create_run_folder(out, settings)
    mark_complete(out, settings)
    for folder in (out / "last", out / ".12-345.part", out / ".last.12-345.part"):
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
    halves = [".checkpoint.pt.12-345.part", "checkpoint.pt.part", "metrics.jsonl.part"]
    halves += [".run.toml.part.ab_d3f9h", "last/.tokenizer.json.ab_d3f9h"]
    mine = [".gitignore", ".notes.markdown", ".env.local123", "plan.part", "last/config.json"]
    for name in (*halves, *mine):
        (out / name).write_text("", encoding="utf-8")
    assert len(temporary_files(out)) == 6
    resumed_settings(asked(settings), lambda line: None, tidy=False)
    assert len(temporary_files(out)) == 6, "another process may be writing them"
    resumed_settings(asked(settings), lambda line: None)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {SETTINGS, *mine}


SMALL = ("--preset=bert-tiny", "--model.dim=8", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [f"{a} {b},{'even' if i % 2 else 'odd'}\n" for i, a in enumerate(words) for b in words]
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    return tmp_path / "labels.csv"


def test_two_runs_started_together_do_not_share_a_folder(data: Path) -> None:
    out, code = data.with_name("run"), "from heedful.cli import command; command()"
    command = [code, "train", "text-classification", "--train", str(data), "--out", str(out), *SMALL, "--max-steps=40"]
    first, second = (fresh_process.Started(*command, f"--seed={seed}", env=os.environ) for seed in (1, 2))
    with closing(first), closing(second):
        statuses = [run.wait(120) for run in (first, second)]
        errors = [run.written[1] for run in (first, second)]
    assert sorted(statuses) == [0, 2], errors
    refused = statuses.index(2)
    assert len(errors[refused].splitlines()) == 1
    assert str(out) in errors[refused]
    assert read_toml(out / SETTINGS).seed == 2 - refused, "the settings are those of the run that ended well"
    assert not (out / LOCK).exists()


@pytest.mark.parametrize("more", [(), ("--resume",), ("--overwrite",)])
def test_a_locked_folder_is_left_alone(
    data: Path, settings: RunSettings, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(settings.out)
    create_run_folder(out, settings)
    mark_complete(out, settings)
    with locked(out):
        tokens = ["train", "text-classification", "--train", str(data), "--out", str(out), *SMALL, *more]
        assert cli.main(tokens) == 2
        assert f"{out} is in use: process {os.getpid()}" in capsys.readouterr().err
        assert sorted(os.listdir(out)) == [LOCK, SETTINGS]
        create_run_folder(out, replace(settings, overwrite=True))
        assert sorted(os.listdir(out)) == [LOCK, UNFINISHED_SETTINGS], "overwriting keeps the lock"


def test_a_folder_with_the_lock_of_a_killed_run_alone_is_empty(
    data: Path, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(settings.out)
    out.mkdir()
    (out / LOCK).write_text("123 elsewhere\n", encoding="utf-8")
    assert temporary_files(out) == []
    tokens = ["train", "text-classification", "--train", str(data), "--out", str(out), *SMALL, "--max-steps=1"]
    assert cli.main(tokens) == 0, capsys.readouterr().err
    assert not (out / LOCK).exists()


def test_data_that_is_refused_leaves_no_folder(data: Path, settings: RunSettings) -> None:
    data.write_text("nothing\n", encoding="utf-8")
    tokens = ["train", "text-classification", "--train", str(data), "--out", settings.out, *SMALL]
    assert cli.main(tokens) == 2
    assert not Path(settings.out).exists()


def test_a_run_that_ended_meanwhile_is_not_written_over(data: Path, settings: RunSettings) -> None:
    """Two runs found the folder empty, and the first has ended before the second locks it."""
    create_run_folder(Path(settings.out), settings)
    mark_complete(Path(settings.out), settings)
    with pytest.raises(HeedfulError, match=r"--resume .*--overwrite"):
        train(replace(settings, task="text-classification", train=(str(data),)))


@pytest.mark.full
def test_a_run_killed_before_a_change_of_its_folder_ends_with_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL where a file was about to be opened or renamed; the whole list of changes takes minutes, not seconds."""
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [f"{a} {b},{'even' if i % 2 else 'odd'}\n" for i, a in enumerate(words) for b in words]
    data = tmp_path / "labels.csv"
    data.write_text("text,label\n" + "".join(lines), encoding="utf-8")
    at = [
        "os.rename .run.toml.part",
        "os.rename last/.tokenizer.json",
        "os.remove run.toml.part",
        "os.rename .checkpoint.pt.",
        ".ready/model.safetensors",
    ]
    small = ["--preset=bert-tiny", "--model.dim=8", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
    small += ["--training.save-every=1", "--training.evaluate-every=2", "--max-steps=3"]
    command = [sys.executable, str(Path(__file__).with_name("killed_at.py")), str(tmp_path), ",".join(at)]
    command += ["text-classification", "--train", str(data), *small]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [end[2] for end in ends] == ["the same"] * len(at), done.stdout + done.stderr
    assert [end[0] for end in ends] == at, "all of them were killed"
    assert "the best model" in dict(zip(at, [end[1] for end in ends], strict=True))[".ready/model.safetensors"]


@pytest.mark.parametrize("rule", [earlier_digest, content_digest])
def test_a_run_is_resumed_with_the_split_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rule: Same
) -> None:
    data, out = tmp_path / "set.tsv", tmp_path / "run"
    texts = "".join(f"word{i} one\t{'ab'[i % 2]}\n" for i in range(100))
    data.write_text("text\tlabel\n" + texts, encoding="utf-8")
    command = ["train", "text-classification", "--train", str(data), "--out", str(out), *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr(run, "content_digest", rule)
        assert cli.main([*command, "--max-steps=1"]) == 0, capsys.readouterr().err
    for steps in (2, 3):
        assert cli.main([*command, f"--max-steps={steps}", "--resume"]) == 0, capsys.readouterr().err
    examples = read_card(out)["data"]["examples"]
    assert examples == {earlier_digest: 95, content_digest: 80}[rule]
    assert len(training_rows(pipeline(None, out))) == examples


def test_a_run_that_divided_its_rows_as_written_is_resumed_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of before name no rule in heedful.json; their rows differ by case as well."""
    rows = [(text, "ab"[i % 2]) for i in range(40) for text in (f"word{i} one", f"Word{i}  one")]
    data, out = tmp_path / "set.tsv", tmp_path / "run"
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    command = ["train", "text-classification", "--train", str(data), "--out", str(out)]
    command += [*SMALL, "--data.valid-fraction=0.2"]
    with monkeypatch.context() as patch:
        patch.setattr(run, "content_digest", exact_bytes)
        assert cli.main([*command, "--max-steps=1"]) == 0, capsys.readouterr().err
    assert "same" not in read_card(out / "last")["data"]
    for steps in (2, 3):
        assert cli.main([*command, f"--max-steps={steps}", "--resume"]) == 0, capsys.readouterr().err
    examples = read_card(out)["data"]["examples"]
    pipe = pipeline(None, out)
    assert len(training_rows(pipe)) == examples
    pipe.card["data"]["same"] = "content"
    assert [row.line for row in training_rows(pipe)] != [row.line for row in training_rows(pipeline(None, out))]
