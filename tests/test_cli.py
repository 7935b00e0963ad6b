"""The command line against stand-ins for what it calls: parsing, calling, printing, refusing."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful import cli, presets, tasks
from heedful.errors import HeedfulError
from heedful.settings import RunSettings, keys


class Calls(dict[str, Any]):
    """Calls of the stand-ins, and what ``train`` is to do."""

    on_train: Callable[[RunSettings], None] = staticmethod(lambda settings: None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen = Calls()

    def train(settings: RunSettings, say: Callable[[str], None], quiet: bool, **draw: Any) -> dict[str, Any]:
        seen["train"] = settings
        seen["quiet"] = quiet
        say("reading the data")
        seen.on_train(settings)
        metrics = {"bleu": 41.25, "loss": float("nan"), "accuracy": float("inf")}
        tried = ["predict", settings.out, "it's"]
        ended = {"task": settings.task, "model": settings.out, "metrics": metrics, "seconds": 1.5, "next": tried}
        return {**ended, "settings": {"push": settings.push}}

    def evaluate(model: str, data: Any, **options: Any) -> dict[str, Any]:
        options.pop("say")("scoring")
        seen["evaluate"] = (model, tuple(data), options)
        return {"task": "translation", "model": model, "metrics": {"exact_match": 0.5}, "seconds": 0.1}

    def pipeline(task: str | None, model: str, **options: Any) -> Any:
        seen["pipeline"] = (task, model, options["device"])
        seen["compiled_decoding"] = options["compiled_decoding"]
        seen["batches"] = []

        class Pipe:
            task = None

            def __call__(self, texts: list[str], **decoding: Any) -> list[dict[str, Any]]:
                assert isinstance(texts, list)
                seen["batches"].append(texts)
                seen["decoding"] = decoding
                return [{"input": text, "output": text.upper(), "score": 0.25} for text in texts]

        return Pipe()

    class Summary:
        def __str__(self) -> str:
            return "a table"

        def as_dict(self) -> dict[str, Any]:
            return {"parameters": 3, "flops": 4, "layers": []}

    def summary(name: str, **options: Any) -> Summary:
        seen["summary"] = name
        return Summary()

    def demo(name: str, out: str | None, say: Callable[[str], None], quiet: bool, **choices: str) -> dict[str, Any]:
        say("training")
        seen["demo"] = (name, out, choices)
        return {"task": "translation", "model": out, "metrics": {"exact_match": 1.0}, "seconds": 9}

    for place, stand_in in (("training.run", train), ("evaluation.evaluate", evaluate), ("demos", demo)):
        monkeypatch.setattr(f"heedful.{place}.{stand_in.__name__}", stand_in)
    monkeypatch.setattr(heedful, "pipeline", pipeline, raising=False)
    monkeypatch.setattr(heedful, "summary", summary, raising=False)
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data, a model folder and nothing else."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.fr", "valid.en", "valid.fr"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


TRAIN = ["train", "translation", "--train", "train.en", "train.fr", "--out", "run"]


def error_of(capsys: pytest.CaptureFixture[str], *tokens: str, status: int = 2) -> str:
    """The one line on standard error of a command line that must fail."""
    assert cli.main(tokens) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert "Traceback" not in captured.err
    return captured.err.strip()


# ------------------------------------------------------------------------------------------------ parsing


def test_train_takes_every_kind_of_option(calls: Calls, folder: Path) -> None:
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text("{}", encoding="utf-8")
    tokens = [
        *TRAIN,
        "--valid",
        "valid.en",
        "--valid",
        "valid.fr",
        "--from",
        "base",
        "--seed",
        "7",
        "--max-minutes=0.5",
    ]
    tokens += [
        "--training.lr",
        "1e-3",
        "--training.betas",
        "0.9",
        "0.98",
        "--model.tied=false",
        "--data.columns",
        "en,fr",
    ]
    assert cli.main([*tokens, "--tokenizer.kind", "unigram", "--training.schedule", "cosine"]) == 0
    settings = calls["train"]
    assert (settings.task, settings.out, settings.start_from, settings.seed) == ("translation", "run", "base", 7)
    assert settings.train == ("train.en", "train.fr")
    assert settings.valid == ("valid.en", "valid.fr")
    assert settings.max_minutes == 0.5
    assert (settings.training.lr, settings.training.betas) == (1e-3, (0.9, 0.98))
    assert settings.training.schedule == "cosine"
    assert settings.model.tied is False
    assert settings.data.columns == ("en", "fr")
    assert settings.tokenizer.kind == "unigram"
    assert settings.model.dim is None
    assert settings.tokenizer.lowercase is None


def help_of_train(*tokens: str) -> str:
    """The output of ``train`` on a terminal of 80 columns."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed):
        patched.setenv("COLUMNS", "80")
        assert cli.main(["train", *tokens]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def everything() -> str:
    return help_of_train("--help-all")


def test_all_options_are_those_of_every_task(everything: str) -> None:
    assert help_of_train("translation", "--help-all") == everything


@pytest.mark.parametrize("task", ["", *tasks.TASKS])
def test_help_shows_what_the_task_takes_and_help_all_the_rest(task: str, everything: str) -> None:
    text = help_of_train(*([task] if task else []), "--help")
    lines = text.splitlines()
    flags = set(re.findall(r"--[a-z][\w.-]+", text)) - {"--help-all", "--help", "--import", "--training.lr"}
    assert {"--train", "--out", "--max-minutes", "--from"} <= flags <= set(re.findall(r"--[a-z][\w.-]+", everything))
    for option in keys(RunSettings):
        if option not in ("training.gradient_checkpointing",):  # its name is broken over two lines
            assert f"--{option.replace('_', '-')}" in everything
    assert "--help-all" in text
    if not task:
        return
    assert len(lines) <= 70
    for flag in flags:
        name = flag.removeprefix("--").replace("-", "_")
        if {name, name.partition(".")[0]} & tasks.specific_settings():
            assert tasks.uses(task, name) or tasks.uses(task, name.partition(".")[0]), flag


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--train", "-"], ("-",)),
        (["--train=-"], ("-",)),
        (["--train", "train.en", "-"], ("train.en", "-")),
        (["--train", "-", "train.fr"], ("-", "train.fr")),
        (["--train", "builtin:cldr-dates"], ("builtin:cldr-dates",)),
    ],
)
def test_standard_input_and_built_in_data_are_values(
    calls: Calls, folder: Path, given: list[str], read: tuple[str, ...]
) -> None:
    assert cli.main(["train", "translation", *given, "--out", "run"]) == 0
    assert calls["train"].train == read


def test_columns_repeated(calls: Calls, folder: Path) -> None:
    assert cli.main([*TRAIN, "--data.columns", "2", "--data.columns", "1"]) == 0
    assert calls["train"].data.columns == ("2", "1")


def test_negative_numbers_are_values(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "model", "hi", "--length-penalty", "-0.5"]) == 0
    assert calls["decoding"] == {"length_penalty": -0.5}
    capsys.readouterr()
    assert error_of(capsys, *TRAIN, "--training.lr", "-1") == "heedful: --training.lr must be above 0, not -1.0"


# ------------------------------------------------------------------------------------------------ the file


def write(folder: Path, text: str) -> list[str]:
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return ["--config", "run.toml"]


def test_a_file_is_read_and_the_command_line_wins(calls: Calls, folder: Path) -> None:
    text = """
task = "translation"
train = ["train.en", "train.fr"]     # a command's name, and a key all the same
out = "elsewhere"
max_minutes = 5
data.columns = [1, 2]
overwrite = true
[training]
lr = 1e-3
warmup = 10
betas = [0.9, 0.98]
[model]
tied = false
heads = 8
"""
    assert cli.main(["train", *write(folder, text), "--out", "run", "--training.warmup", "20"]) == 0
    settings = calls["train"]
    assert (settings.task, settings.train, settings.out) == ("translation", ("train.en", "train.fr"), "run")
    assert (settings.max_minutes, settings.overwrite) == (5, True)
    assert (settings.training.lr, settings.training.warmup, settings.training.betas) == (1e-3, 20, (0.9, 0.98))
    assert (settings.model.tied, settings.model.heads) == (False, 8)
    assert settings.data.columns == ("1", "2")


def test_a_list_on_the_command_line_replaces_the_files(calls: Calls, folder: Path) -> None:
    assert cli.main([*TRAIN, *write(folder, 'train = ["other.tsv"]\nfrom = "model"\n')]) == 0
    assert calls["train"].train == ("train.en", "train.fr")
    assert calls["train"].start_from == "model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\nmax_step = 5\n", "run.toml:2: unknown key 'max_step'; did you mean 'max_steps'?"),
        ("[training]\n\nlrr = 1\n", "run.toml:3: unknown key 'training.lrr'; did you mean 'training.lr'?"),
        ("[model]\nlr = 1\n[trainning]\nlr = 1\n", "run.toml:2: unknown key 'model.lr'"),
        ("[trainning]\nlr = 1\n", "run.toml:2: unknown key 'trainning.lr'; did you mean 'training.lr'?"),
        ("training = 5\n", "run.toml:1: unknown key 'training'"),
        ("json = true\n", "run.toml:1: unknown key 'json'"),
        ("[train]\nlr = 1\n", "run.toml:2: unknown key 'train.lr'"),
        ("seed = \n", "run.toml is not a TOML file: Invalid value (at line 1, column 8)"),
        ("[training]\nlr = 'fast'\n", 'unable to convert "fast" into float'),
        ("[training]\nlr = -1\n", "--training.lr must be above 0, not -1"),
        ("[training]\nschedule = 'cosin'\n", "did you mean 'cosine'?"),
        ("max_steps = 1.5\n", "--max-steps must be a whole number, not 1.5"),
        ("[training]\nlr = [1, 2]\n", "run.toml"),
        ("train = []\n", "--train"),
    ],
)
def test_a_wrong_file(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    tokens = ["train", "translation", "--out", "run"] + ([] if "train = []" in text else TRAIN[2:5])
    assert message in error_of(capsys, *tokens, *write(folder, text))
    assert "train" not in calls


def test_variables_are_read_and_the_command_line_wins(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("TRAINING_LR", "0.002"), ("TRAINING_WARMUP", "7"), ("DATA_COLUMNS", "1"), ("JSON", "true")):
        monkeypatch.setenv(f"HEEDFUL_{name}", value)
    file = write(folder, "max_minutes = 5\n[training]\nlr = 1e-3\nwarmup = 10\nclip = 2\n")
    assert cli.main([*TRAIN, *file, "--training.warmup", "20"]) == 0
    settings = calls["train"]
    assert (settings.training.lr, settings.training.warmup, settings.training.clip) == (0.002, 20, 2)
    assert (settings.max_minutes, settings.data.columns) == (5, ("1",))
    captured = capsys.readouterr()
    assert json.loads(captured.out)["task"] == "translation"  # HEEDFUL_JSON
    assert "HEEDFUL" not in captured.err
    monkeypatch.setenv("HEEDFUL_TRAINING_LR", "fast")
    assert "HEEDFUL_TRAINING_LR" in error_of(capsys, *TRAIN)


def test_a_variable_that_is_no_option_is_named(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEEDFUL_TRANING_LR", "1")
    monkeypatch.setenv("HEEDFUL_NUM_BEAMS", "4")  # of another command
    monkeypatch.setenv("HEEDFUL_CACHE", "kept")
    assert cli.main(TRAIN) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "HEEDFUL" in line]
    assert "HEEDFUL_TRANING_LR is no option of a command; did you mean 'HEEDFUL_TRAINING_LR'?" in line


def test_all_unknown_options_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = error_of(capsys, *TRAIN, "--nothing", "1", "--learning-rate", "1", "--seed", "3", "--max-step=5")
    assert line == (
        "heedful: Unknown options: --nothing, --learning-rate (did you mean --training.lr?), "
        "--max-step (did you mean --max-steps?) (see heedful train --help)"
    )
    line = error_of(capsys, "predict", "model", "hi", "--beams", "4", "--no-compiled-decoding", "--", "--text")
    assert line == "heedful: Unknown option: --beams. Did you mean --num-beams? (see heedful predict --help)"


def test_commands_are_listed_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    words = capsys.readouterr().out.split()
    order = ["Start", "demo", "Train", "train", "predict", "serve", "evaluate", "inspect", "Lists", "tasks", "Options"]
    places = [words.index(word, words.index("Start")) for word in order]
    assert places == sorted(places)


def test_a_file_that_is_missing_or_not_text(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, *TRAIN, "--config", "none.toml") == "heedful: none.toml: no such file; check the path"
    (folder / "run.toml").write_bytes(b"seed = \xff")
    assert "run.toml is not a TOML file" in error_of(capsys, *TRAIN, "--config", "run.toml")


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        ([*TRAIN, "--max-step", "5"], "Unknown option: --max-step. Did you mean --max-steps?"),
        ([*TRAIN, "--training.lrr=1"], "Unknown option: --training.lrr. Did you mean --training.lr?"),
        ([*TRAIN, "--training.lr", "fast"], 'Invalid value for --training.lr: unable to convert "fast" into float'),
        ([*TRAIN, "--max-steps", "1.5"], "--max-steps must be a whole number, not 1.5"),
        ([*TRAIN, "--training.schedule", "cosin"], "did you mean 'cosine'?"),
        ([*TRAIN, "--training.lr", "nan"], "--training.lr must be a finite number, not nan"),
        ([*TRAIN, "--model.dropout", "1"], "--model.dropout must be below 1"),
        ([*TRAIN, "--resume", "--overwrite"], "--resume"),
        ([*TRAIN, "--preset", "gpt2", "--from", "model"], "--preset"),
        ([*TRAIN, "--preset", "gpt-2"], "did you mean 'gpt2'?"),
        ([*TRAIN, "extra"], "unexpected ['extra']"),
        (["train", "translatio", *TRAIN[2:]], "did you mean 'translation'?"),
        (["train"], "heedful: TASK is missing (see heedful train --help)"),
        (["train", "translation", "--out", "run"], "heedful: --train is missing (see heedful train --help"),
        (["train", "translation", "--train", "--out", "run"], "--train"),
        (["train", "translation", "--train", "train.en", "--out"], "--out requires an argument"),
        (
            ["train", "translation", "--train", "trian.en", "--out", "run"],
            "trian.en: no such file; did you mean 'train.en'?",
        ),
        (["train", "translation", "--train", "no/such.en", "--out", "run"], "no/such.en: no such file"),
        ([*TRAIN, "--valid", "zzzz"], "zzzz: no such file; check the path"),
        ([*TRAIN[:-1], "model"], "--out model is not empty; --resume continues that run, --overwrite replaces it"),
        ([*TRAIN[:-1], "train.en"], "--out train.en is a file; name a folder"),
        ([*TRAIN[:-1], "train.en/run"], "cannot write in"),
        ([*TRAIN, "--from", "./nothing"], "./nothing: no such folder"),
        (["predict"], "MODEL is missing"),
        (["predict", "./nothing", "hi"], "./nothing: no such folder"),
        (["predict", "train.en", "hi"], "train.en is a file, not a model folder; give the folder of a model"),
        (["predict", "model/config.json", "hi"], "is a file, not a model folder; give its folder, model"),
        (["predict", "model", "hi", "--task", "translatoin"], "did you mean 'translation'?"),
        ([*TRAIN, "--lr", "1"], "Unknown option: --lr. Did you mean --training.lr?"),
        (
            [*TRAIN, "--training.learning_rate=1"],
            "Unknown option: --training.learning_rate. Did you mean --training.lr?",
        ),
        ([*TRAIN, "--batch-size=1"], "Did you mean --training.batch-size?"),
        (["predict", "model", "hi", "--num-beam", "4"], "Unknown option: --num-beam. Did you mean --num-beams?"),
        (["predict", "model", "hi", "--num-beams", "0"], "--num-beams must be at least 1, not 0"),
        (["predict", "model", "-", "hi"], "- (standard input) cannot be combined with other texts; give only one"),
        (["predict", "model", "hi", "--", "-"], "- (standard input) cannot be combined with other texts"),
        (["predict", "model", "h\udcff"], "text 1 of the command line is not UTF-8"),
        (["evaluate", "model"], "--data is missing"),
        (["evaluate", "model", "--data", "tran.en"], "did you mean 'train.en'?"),
        (["summary", "bert-bas"], "bert-bas is not a folder, file or preset; did you mean 'bert-base'?"),
        (["demo", "--too", "de"], "Unknown option: --too. Did you mean --to?"),
    ],
)
def test_bad_command_lines(
    calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], message: str
) -> None:
    before = sorted(folder.rglob("*"))
    assert message in error_of(capsys, *tokens)
    assert not {"train", "evaluate", "pipeline", "summary", "demo"} & calls.keys()
    assert sorted(folder.rglob("*")) == before


def fail_with(error: BaseException) -> Callable[[RunSettings], None]:
    def fail(settings: RunSettings) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (HeedfulError("train.en:3: not UTF-8; convert it"), 2, "train.en:3: not UTF-8; convert it"),
        (HeedfulError("two\nlines"), 2, "two lines"),
        (FileNotFoundError(2, "No such file or directory", "x.tsv"), 2, "x.tsv: No such file or directory"),
        (
            PermissionError(13, "Permission denied", "run"),
            2,
            "run: Permission denied; change the permissions or use another folder",
        ),
        (OSError(28, "No space left on device"), 2, "No space left on device; free some space or use another folder"),
        (RuntimeError("boom\nat length"), 1, "a bug in heedful: RuntimeError: boom at length"),
    ],
)
def test_errors_of_the_work_are_one_line(
    calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str], error: Exception, status: int, message: str
) -> None:
    calls.on_train = fail_with(error)
    assert cli.main([*TRAIN, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[1:] == [
        line for line in captured.err.splitlines() if line.startswith(f"heedful: {message}")
    ]


def test_messages_about_options_name_the_flags(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise HeedfulError("length_penalty=2.0 acts on a search, temperature does not; see num_beams and 'top_k'")

    monkeypatch.setattr(heedful, "pipeline", refuse)
    said = error_of(capsys, "predict", "model", "hi", "--length-penalty", "2")
    assert said == "heedful: --length-penalty=2.0 acts on a search, temperature does not; see --num-beams and 'top_k'"


def test_the_traceback_is_there_for_who_asks(calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_DEBUG", "1")
    with pytest.raises(HeedfulError):
        cli.main(["train", "translatio", *TRAIN[2:]])


def test_a_current_folder_that_was_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["tasks"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("heedful: the current folder was removed; ")
    assert "cd" in error
    assert error.count("\n") == 1


def test_stopped_by_hand(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls.on_train = fail_with(KeyboardInterrupt())
    assert cli.main(TRAIN) == 130
    assert capsys.readouterr().err == "heedful: stopped\n"

    def save_and_stop(settings: RunSettings) -> None:
        (folder / "my run").mkdir(exist_ok=True)
        (folder / "my run" / "last").touch()
        raise KeyboardInterrupt

    calls.on_train = save_and_stop
    again = "heedful train translation --train train.en train.fr --out 'my run' --resume"
    for extra in ([], ["--resume"], ["--overwrite"]):
        assert cli.main([*TRAIN[:-1], "my run", *extra]) == 130
        assert capsys.readouterr().err == f"heedful: stopped; continue with: {again}\n"


# ------------------------------------------------------------------------------------------------ printing


def only_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (
            [*TRAIN, "--json"],
            {
                "task": "translation",
                "model": "run",
                "metrics": {"bleu": 41.25, "loss": None, "accuracy": None},
                "seconds": 1.5,
                "next": ["predict", "run", "it's"],
                "settings": {"push": None},
            },
        ),
        (
            ["evaluate", "model", "--data", "train.en", "train.fr", "--json"],
            {"task": "translation", "model": "model", "metrics": {"exact_match": 0.5}, "seconds": 0.1},
        ),
        (["summary", "gpt2", "--json"], {"parameters": 3, "flops": 4, "layers": []}),
        (["presets", "--json"], presets.describe()),
        (["tasks", "--json"], tasks.names()),
        (
            ["demo", "--json"],
            {"task": "translation", "model": None, "metrics": {"exact_match": 1.0}, "seconds": 9},
        ),
        (["predict", "model", "grüß", "--json"], {"input": "grüß", "output": "GRÜSS", "score": 0.25}),
    ],
)
def test_json_is_all_there_is_on_standard_output(
    calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], expected: Any
) -> None:
    assert cli.main(tokens) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert only_json(printed) == expected


def test_people_read_text(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(TRAIN) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "reading the data"
    assert "bleu" in out
    assert "41.25" in out
    assert "next: heedful predict run 'it'\"'\"'s'\n" in out
    assert calls["quiet"] is False
    assert cli.main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "family", "parameters", "source"]
    assert re.fullmatch(r"gpt2 +decoder +124,439,808 +Radford et al. 2019", next(x for x in lines if x[:5] == "gpt2 "))
    assert len(lines) == 1 + len(presets.names())
    assert cli.main(["summary", "model"]) == 0
    assert capsys.readouterr().out == "a table\n"
    assert cli.main(["demo", "--to", "de", "--out", "runs/demo"]) == 0
    assert capsys.readouterr().out == "training\n"
    assert calls["demo"] == ("dates", "runs/demo", {"to": "de"})


@pytest.mark.parametrize("verdict", [{}, {"verdict": {"remedy": "add more examples: heedful audit translation"}}])
def test_the_suggested_command_imports_what_the_run_imported(
    calls: Calls,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: dict[str, Any],
) -> None:
    (folder / "my parts.py").write_text("", encoding="utf-8")
    ended = {"model": "run", "metrics": {}, "seconds": 1.0, "next": ["predict", "run", "one"], **verdict}
    ended["settings"] = {"push": None}
    monkeypatch.setattr("heedful.training.run.train", lambda settings, **named: ended)
    assert cli.main([*TRAIN, "--import", "my parts.py"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("next: ")
    assert last.endswith(" --import 'my parts.py'")
    assert ("heedful audit" if verdict else "heedful predict") in last


def test_evaluate_passes_its_options_on(calls: Calls, folder: Path) -> None:
    tokens = ["evaluate", "model", "--data", "train.en", "--columns", "en,fr", "--split", "valid", "--device", "cpu"]
    assert cli.main([*tokens, "--dtype", "int8", "--num-beams", "5", "--max-new-tokens", "9"]) == 0
    decoding = {"num_beams": 5, "max_new_tokens": 9}
    options = {"columns": ("en", "fr"), "decoding": decoding, "device": "cpu", "split": "valid", "draw": None}
    options |= {"dtype": "int8", "compiled_decoding": True, "baseline": False, "baseline_train": None}
    assert calls["evaluate"] == ("model", ("train.en",), options)


# ------------------------------------------------------------------------------------------------ predicting


class Stdin(io.TextIOWrapper):
    """A standard input that hands over its chunks one by one, as a pipe does."""

    def __init__(self, chunks: list[bytes], terminal: bool = False) -> None:
        class Raw(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def readinto(self, buffer: Any) -> int:
                chunk = chunks.pop(0) if chunks else b""
                buffer[: len(chunk)] = chunk
                return len(chunk)

        self.terminal = terminal
        super().__init__(io.BufferedReader(Raw()), encoding="utf-8")

    def isatty(self) -> bool:
        return self.terminal


def predict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chunks: list[bytes], *options: str
) -> tuple[int, str, str]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Stdin(chunks))
        status = cli.main(["predict", "model", *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_arguments_are_answered(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "model", "one", "", "two", "--num-beams", "4", "--device", "cpu", "--", "- three"]) == 0
    assert capsys.readouterr().out == "ONE\n\nTWO\n- THREE\n"
    assert calls["pipeline"] == (None, "model", "cpu")
    assert calls["decoding"] == {"num_beams": 4}


def test_standard_input_is_answered_as_it_comes_and_in_order(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = [b"\xef\xbb\xbfone\r\ntw", b"o\n\n", b"gr\xc3", b"\xbc\xc3\x9f\nlast"]
    assert predict(monkeypatch, capsys, chunks) == (0, "ONE\nTWO\n\nGRÜSS\nLAST\n", "")
    assert calls["batches"] == [["one"], ["two", ""], ["grüß"], ["last"]]


@pytest.mark.parametrize("options", [["-"], ["-", "--device", "cpu"], ["--num-beams", "4", "-"], ["--", "-"]])
def test_a_hyphen_is_standard_input(
    calls: Calls,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    assert predict(monkeypatch, capsys, [b"one\ntwo\n"], *options) == (0, "ONE\nTWO\n", "")


def test_much_input_is_answered_in_bounded_batches(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}" for number in range(1000)]
    status, out, _ = predict(
        monkeypatch, capsys, ["".join(f"{line}\n" for line in lines[i : i + 500]).encode() for i in (0, 500)]
    )
    assert status == 0
    assert out.splitlines() == [line.upper() for line in lines]
    assert max(map(len, calls["batches"])) == 64


def test_empty_lines_are_the_tasks_to_answer(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = predict(monkeypatch, capsys, [b"\n a \n"], "--json")
    assert status == 0
    assert [only_json(line) for line in out.splitlines()] == [
        {"input": "", "output": "", "score": 0.25},
        {"input": " a ", "output": " A ", "score": 0.25},
    ]
    assert predict(monkeypatch, capsys, []) == (0, "", "")


def test_text_that_is_not_utf8_is_named_by_its_line(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = predict(monkeypatch, capsys, [b"one\ntwo\n", b"three\nfa\xe7ade\nfive\n"])
    assert status == 2
    assert out == "ONE\nTWO\nTHREE\n"
    assert err == "heedful: standard input:4: byte 0xe7 at position 3 is not UTF-8; convert the text first\n"


def test_a_terminal_shows_what_is_awaited(
    calls: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Stdin([b"one\n"], terminal=True))
        assert cli.main(["predict", "model"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "ONE\n"
    assert captured.err == "write one text per line; Ctrl-D ends\n"


# ------------------------------------------------------------------------------------------------ real processes

FAKE = """
import sys, types, heedful
class Pipe:
    task = None
    def __call__(self, texts):
        return [{"input": text, "output": text * 99, "score": 1.0} for text in texts]
heedful.pipeline = lambda task, model, **options: Pipe()
from heedful.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def process(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``heedful predict model`` in a process of its own, with a stand-in for the model."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**streams: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"}
        command = [sys.executable, "-c", FAKE, "predict", "model"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=folder, **streams
        )
        started.append(process)
        return process

    yield start
    for running in started:
        running.kill()
        running.communicate()


def test_one_line_is_answered_before_the_next_is_written(process: Callable[..., subprocess.Popen[bytes]]) -> None:
    running = process(stdout=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    for text in ("ja", "ķ"):  # the second has no place in Latin-1, the locale here
        running.stdin.write(f"{text}\n".encode())
        running.stdin.flush()
        assert running.stdout.readline().decode() == text * 99 + "\n"
    assert running.communicate() == (b"", b"")
    assert running.returncode == 0


def test_a_reader_that_leaves_ends_it_quietly(process: Callable[..., subprocess.Popen[bytes]]) -> None:
    reader, writer = os.pipe()
    running = process(stdout=writer)
    os.close(writer)
    os.close(reader)
    _, err = running.communicate(b"text\n" * 1000)
    assert (running.returncode, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_a_full_disk_is_one_line(process: Callable[..., subprocess.Popen[bytes]]) -> None:
    with open("/dev/full", "wb") as full:
        running = process(stdout=full)
        _, err = running.communicate(b"text\n")
    assert running.returncode == 2
    assert err == b"heedful: No space left on device; free some space or use another folder\n"


@pytest.mark.parametrize(("processes", "status"), [("1", -6), ("2", 0)])  # one alone leaves by Python's own door
def test_one_of_several_processes_ends_well_whatever_its_threads_do_then(processes: str, status: int) -> None:
    crash = "import atexit, os; atexit.register(os.abort); from heedful.cli import command; command()"
    environment = {
        **os.environ,
        "WORLD_SIZE": processes,
        "RANK": "1",
        "LOCAL_RANK": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", crash, "train", "--help"], capture_output=True, env=environment, check=False
    )
    assert (ended.returncode, ended.stderr) == (status, b"")
    assert b"Train a model" in ended.stdout


def test_long_messages_keep_their_beginning_and_their_remedy(
    calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.on_train = lambda settings: (_ for _ in ()).throw(HeedfulError("a.tsv:3: " + "long " * 2000 + "; mend it"))
    assert cli.main(TRAIN) == 2
    said = capsys.readouterr().err.strip()
    assert len(said) <= len("heedful: ") + 500
    assert said.startswith("heedful: a.tsv:3: long")
    assert said.endswith("long ; mend it")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64,000 bytes"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_too_little_memory_is_one_line(
    calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def lack(settings: RunSettings) -> None:
        raise error

    calls.on_train = lack
    assert cli.main(TRAIN) == 2
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert "--training.batch" in said
    assert said.count("\n") == 1


def test_an_out_that_is_not_utf_8(calls: Calls, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = error_of(capsys, *TRAIN[:-1], "run\udcff")
    assert "--out" in said
    assert "not UTF-8" in said


@pytest.mark.parametrize("number", [None, "", "2"])
def test_processes_that_are_not_told_which_they_are(
    number: str | None, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    if number is not None:
        monkeypatch.setenv("RANK", number)
    assert cli.main(TRAIN) == 2
    if number != "2":  # the third of two says it for itself
        assert "WORLD_SIZE=2 and no RANK; start with torchrun" in capsys.readouterr().err
