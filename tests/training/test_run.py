"""A whole run on files: what it leaves, what opens it, what stops and resumes it, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fresh_process
import heedful
from heedful import cli
from heedful.data import read
from heedful.metrics.example_scores import Sums
from heedful.pretrained import read_card
from heedful.settings import read_toml
from heedful.tasks.task import Measured
from heedful.tasks.translation import Translation
from heedful.training import Checkpoints
from heedful.training.report import shown_columns
from tolerances import assert_close

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SMALL = [
    "--preset=transformer-tiny",
    "--model.dim=16",
    "--model.heads=2",
    "--model.depth=1",
    "--tokenizer.size=300",
    "--training.batch-tokens=64",
    "--training.evaluate-every=20",
    "--training.log-every=10",
]


def pairs(folder: Path, rows: int = 100) -> Path:
    """Three words there, the same backwards here."""
    lines = [" ".join(WORDS[int(digit)] for digit in f"{number:03}") for number in range(0, 10 * rows, 10)]
    file = folder / "pairs.tsv"
    file.write_text("".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in lines), encoding="utf-8")
    return file


def command(data: Path, out: Path, *more: str) -> list[str]:
    return ["train", "translation", "--train", str(data), "--out", str(out), *SMALL, *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert cli.main([*command(pairs(folder), folder / "out", "--max-steps", "40"), "--json"]) == 0
    return folder / "out"


def test_files_of_a_run(run: Path) -> None:
    kept = {path.name for path in run.iterdir()}
    assert kept >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "heedful.json",
        "run.toml",
        "metrics.jsonl",
        "curve.svg",
        "checkpoint.pt",
        "last",
        "average",
    }
    assert not [name for name in kept if name.startswith(".") or name.endswith((".part", ".partial"))]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    assert lines[-1]["loss"] < lines[0]["loss"]
    card = json.loads((run / "heedful.json").read_text(encoding="utf-8"))
    assert card["task"] == "translation"
    assert card["settings"]["training"]["lr"] == pytest.approx(1e-3 * 4)
    assert card["data"]["examples"] == 80
    assert card["metrics"]["bleu"] >= 0


@pytest.mark.parametrize("part", [".", "last", "average"])
def test_it_opens_in_transformers(run: Path, part: str) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    theirs, told = AutoModelForSeq2SeqLM.from_pretrained(run / part, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = AutoTokenizer.from_pretrained(run / part)
    ours = heedful.from_pretrained(run / part)
    ids = tokenizer(["one two three"], return_tensors="pt").input_ids
    target = torch.tensor([[1, 40, 50]])
    theirs.eval()
    with torch.no_grad():
        assert_close(ours(ids, target), theirs(input_ids=ids, decoder_input_ids=target).logits)
    expected = theirs.generate(ids, max_new_tokens=8, num_beams=1, do_sample=False)
    assert ours.generate(ids, max_new_tokens=8).tolist() == expected.tolist()
    said = tokenizer.batch_decode(expected, skip_special_tokens=True)[0]
    assert heedful.pipeline("translation", run / part)("one two three", max_new_tokens=8)["output"] == said


def test_the_best_weights_are_the_folders_own(run: Path) -> None:
    """With averaging on, the average at the best evaluation; here that is the last one or an earlier one, never raw."""
    best, average, last = (load_file(run / part / "model.safetensors") for part in (".", "average", "last"))
    assert any(not torch.equal(best[name], last[name]) for name in best)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = {line["step"]: line["valid_bleu"] for line in lines if "valid_bleu" in line}
    if max(scores, key=lambda step: (scores[step], -step)) == 40:
        assert all(torch.equal(best[name], average[name]) for name in best)


def test_its_settings_make_the_same_run_again(run: Path, tmp_path: Path) -> None:
    assert cli.main(["train", "translation", "--config", str(run / "run.toml"), "--out", str(tmp_path / "again")]) == 0
    first, second = (load_file(folder / "last" / "model.safetensors") for folder in (run, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_validation_source_is_trained_on(run: Path) -> None:
    from heedful.data import split

    rows = read(str(run.parent / "pairs.tsv"), ("source", "target"))
    train, valid = split(rows, None, 0)
    assert not {row.values["source"] for row in train} & {row.values["source"] for row in valid}
    assert len(train) + len(valid) == 100


def wait_for(path: Path, process: fresh_process.Started, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
@pytest.mark.full(keep=1)
def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped where it happens to be, in the middle of an epoch, and taken up; against a run never stopped."""
    data = pairs(tmp_path)
    more = ["--max-steps", "60", "--training.save-every", "7", "--model.dropout", "0.2", "--training.accumulate", "2"]
    code, begun = "from heedful.cli import command; command()", command(data, tmp_path / "stopped", *more)
    with closing(fresh_process.Started(code, *begun, env=os.environ)) as process:
        wait_for(tmp_path / "stopped" / "checkpoint.pt", process)
        process.send_signal(number)
        status, error = process.wait(120), process.written[1]
    if number == signal.SIGINT:
        assert status == 130
        assert error.splitlines()[-1].startswith("heedful: stopped; continue with: heedful train translation")
        assert error.splitlines()[-1].endswith("--resume")
    for name, extra in (("stopped", ["--resume"]), ("whole", [])):
        assert cli.main(command(data, tmp_path / name, *more, *extra)) == 0
    stopped, whole = (
        [load_file(tmp_path / name / part / "model.safetensors") for part in ("last", "average", ".")]
        for name in ("stopped", "whole")
    )
    for ours, expected in zip(stopped, whole, strict=True):
        assert all(torch.equal(ours[name], expected[name]) for name in expected)
    logs = [
        [
            {name: value for name, value in json.loads(line).items() if "second" not in name}
            for line in (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for name in ("stopped", "whole")
    ]
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]


def test_a_run_that_is_done_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command(run.parent / "pairs.tsv", run, "--max-steps", "40"), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped_because"] == "already done"
    assert cli.main([*command(run.parent / "pairs.tsv", run, "--max-epochs", "90"), "--resume"]) == 0
    assert "this run had already ended, by --max-steps, after 40 steps" in capsys.readouterr().out


def test_an_evaluation_tells_what_the_model_says(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(("samples" in line) == ("valid_loss" in line) for line in lines)
    held = [tuple(sample[name] for name in ("input", "target")) for sample in lines[-1]["samples"]]
    assert len(held) == 3
    assert all(" ".join(source.split()[::-1]) == target for source, target in held)
    assert "target_tokens_per_second" in lines[-1]


def test_a_language_model_is_heard_as_its_pipeline_says(tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("".join(f"{' '.join(WORDS[i % 7 :])}, {i}.\n" for i in range(400)), encoding="utf-8")
    options = ["--preset=gpt-micro", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--max-steps=3"]
    options += ["--tokenizer.kind=character", "--data.max-length=32", "--out", str(tmp_path / "out")]
    assert cli.main(["train", "text-generation", "--train", str(text), *options]) == 0
    line = json.loads((tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    (sample,) = line["samples"]  # one document
    assert text.read_text(encoding="utf-8").count(sample["input"])
    go_on = heedful.pipeline("text-generation", str(tmp_path / "out"))
    (answer,) = go_on([sample["input"]], do_sample=False, max_new_tokens=60)
    assert " ".join(answer["output"].removeprefix(sample["input"]).split()) == sample["output"]


@pytest.mark.parametrize("changed", ["rows", "words", "validation"])
def test_resuming_on_other_data_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    other = pairs(tmp_path, rows=50 if changed == "rows" else 100)
    text = other.read_text(encoding="utf-8")
    if changed == "words":  # as many tokens, other ones
        other.write_text(text.replace("one", "_").replace("two", "one").replace("_", "two"), encoding="utf-8")
    more = ["--valid", str(other)] if changed == "validation" else []
    before = (run / "run.toml").read_bytes()
    assert cli.main([*command(other, run, "--max-steps", "80", *more), "--resume"]) == 2
    told = capsys.readouterr().err
    assert "started with other examples or another order of them" in told
    assert {"rows": "lengths", "words": "training data", "validation": "validation data"}[changed] in told
    assert (run / "run.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed=0"], "seed"),
        (["--training.optimiser=muon"], "--training.optimiser is muon, but the run in"),
        (["--tuning.layer-decay=0.5"], "--tuning.layer-decay is 0.5, but the run in"),
    ],
)
def test_options_that_a_resumed_run_cannot_change_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    begun = command(pairs(tmp_path, 30), tmp_path / "out")
    assert cli.main([*begun, "--seed=1", "--max-steps=1"]) == 0
    assert cli.main([*begun, "--max-steps=2", "--resume", *options]) == 2
    assert said in capsys.readouterr().err


def test_options_of_a_resumed_run_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = command(pairs(tmp_path, 30), tmp_path / "out")
    assert cli.main([*begun, "--max-steps=2", "--seed=1"]) == 0
    first = (tmp_path / "out" / "run.toml").read_text(encoding="utf-8")
    capsys.readouterr()
    assert cli.main([*begun, "--max-steps=2", "--resume"]) == 0
    assert "from now on" not in capsys.readouterr().out
    assert cli.main([*begun, "--max-steps=2", "--training.lr=0.1", "--resume"]) == 0  # which takes no step
    assert (tmp_path / "out" / "run.toml").read_text(encoding="utf-8") == first
    capsys.readouterr()
    assert cli.main([*begun, "--max-steps=3", "--training.lr=0.007", "--resume"]) == 0
    assert re.search(r"^--training\.lr is 0\.007 from now on; it was 0\.0\d+$", capsys.readouterr().out, re.M)
    assert cli.main([*begun, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stopped_because"], found["steps"]) == ("already done", 3)
    assert (found["settings"]["training"]["lr"], found["settings"]["seed"]) == (0.007, 1)


def test_fine_tuning_begins_where_the_model_stood(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    arguments = ["train", "translation", "--train", str(run.parent / "pairs.tsv"), "--out", str(out)]
    assert cli.main([*arguments, "--from", str(run), "--max-steps", "1", "--training.lr", "1e-12"]) == 0
    before, after = load_file(run / "model.safetensors"), load_file(out / "last" / "model.safetensors")
    assert before.keys() == after.keys()
    for name in before:
        assert_close(before[name], after[name], "gradient")
    tokenizers = [(folder / "tokenizer.json").read_text(encoding="utf-8") for folder in (run, out)]
    assert tokenizers[0] == tokenizers[1]


# ------------------------------------------------------------------------------------------------------------ bad input


def tsv(text: str | bytes, name: str = "bad.tsv") -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return ["--train", str(folder / name)]

    return write


def two(first: str, second: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "a.en").write_text(first, encoding="utf-8")
        (folder / "a.fr").write_text(second, encoding="utf-8")
        return ["--train", str(folder / "a.en"), str(folder / "a.fr")]

    return write


def good(*more: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["--train", str(pairs(folder)), *more]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda folder: ["--train", str(folder / "none.tsv")], ["none.tsv", "no such file"]),
        (tsv(""), ["bad.tsv", "no rows"]),
        (tsv(b"a\tb\nc\0\td\n"), ["bad.tsv:2", "NUL byte"]),
        (tsv("a\tb\nc\n"), ["bad.tsv:2", "column"]),
        (tsv("en,fr,de\na,b,c\nd,e,f\n", "bad.csv"), ["'en', 'fr', 'de'", "--data.columns en,fr"]),
        (two("a\nb\n", "a\n"), ["a.en:2", "2 lines", "1 line"]),
        (tsv(b"a\tb\nc\xff\td\n"), ["bad.tsv:2", "UTF-8", "iconv"]),
        (tsv('{"source": "a", "target": "b"}\n{"source":\n', "bad.jsonl"), ["bad.jsonl:2", "JSON"]),
        (tsv("a\tb\n" * 9), ["too few"]),
        (good("--trainig.lr", "1"), ["--trainig.lr"]),
        (good("--preset", "transformer-tinny"), ["did you mean 'transformer-tiny'"]),
        (good("--preset", "bert-tiny"), ["bert-tiny", "encoder-decoder"]),
        (good("--training.schedule", "cosin"), ["cosine"]),
        (good("--training.lr", "-1"), ["--training.lr", "above 0"]),
        (good("--model.heads", "5", "--model.dim", "16"), ["16", "5 heads"]),
        (good("--tokenizer.size", "10"), ["10", "too small"]),
        (good("--data.max-length", "1"), ["--data.max-length"]),
        (good("--device", "nowhere"), ["nowhere"]),
        (good("--resume", "--overwrite"), ["--resume", "--overwrite"]),
        (good("--valid", "builtin:cldr-dates", "--data.valid-fraction", "0.1"), ["--data.valid-fraction", "no effect"]),
    ],
    ids=lambda v: "-".join(v)[:40] if isinstance(v, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: Callable[[Path], list[str]], said: list[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["train", "translation", *given(tmp_path), "--out", str(out), "--max-steps", "2"]
    assert cli.main(arguments) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert all(part in printed[0] for part in said), printed[0]
    assert not out.exists()


def test_an_unknown_task_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "translatoin", "--train", str(pairs(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    assert "did you mean 'translation'" in capsys.readouterr().err


def test_an_unknown_key_of_a_file_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text("[training]\nlrr = 1e-3\n", encoding="utf-8")
    assert cli.main([*command(pairs(tmp_path), tmp_path / "out"), "--config", str(tmp_path / "run.toml")]) == 2
    error = capsys.readouterr().err
    assert "run.toml:2" in error
    assert "did you mean 'training.lr'" in error
    assert not (tmp_path / "out").exists()


def test_an_existing_run_is_kept_unless_meant(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert cli.main(command(run.parent / "pairs.tsv", run, "--max-steps", "2")) == 2
    error = capsys.readouterr().err
    assert "--resume" in error
    assert "--overwrite" in error
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_overwriting_takes_only_what_a_run_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear", encoding="utf-8")
    assert cli.main(command(pairs(tmp_path), mine, "--max-steps", "2", "--overwrite")) == 2
    assert "is not the folder of a heedful run" in capsys.readouterr().err
    assert (mine / "letter.txt").read_text(encoding="utf-8") == "dear"


def test_overwriting_begins_anew(tmp_path: Path) -> None:
    data, out = pairs(tmp_path), tmp_path / "out"
    assert cli.main(command(data, out, "--max-steps", "20")) == 0
    (out / "old.txt").write_text("old", encoding="utf-8")
    assert cli.main(command(data, out, "--max-steps", "10", "--overwrite")) == 0
    assert not (out / "old.txt").exists()
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["step"] == 10


@pytest.mark.parametrize("what", ["predict", "evaluate"])
def test_a_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    data = pairs(tmp_path)
    more = ["hello"] if what == "predict" else ["--data", str(data)]
    assert cli.main([what, str(tmp_path), *more]) == 2
    assert "not a model folder" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "gpt3"}', encoding="utf-8")
    assert cli.main([what, str(tmp_path), *more]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_model_of_another_task(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(run, other)
    card = json.loads((other / "heedful.json").read_text(encoding="utf-8"))
    (other / "heedful.json").write_text(json.dumps(card | {"task": "fill-mask"}), encoding="utf-8")
    assert cli.main(["predict", str(other), "hello"]) == 2
    assert "fill-mask" in capsys.readouterr().err
    assert cli.main(["predict", str(other), "hello", "--task", "translation"]) == 2
    assert "was trained for fill-mask" in capsys.readouterr().err


def test_predict_and_evaluate(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(run), "one two three", "four", "--json", "--max-new-tokens", "5"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["input"] for answer in answers] == ["one two three", "four"]
    assert all(set(answer) == {"input", "output", "score"} for answer in answers)
    data = str(run.parent / "pairs.tsv")
    assert cli.main(["evaluate", str(run), "--data", data, "--num-beams", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["examples"] == 100
    assert set(result["metrics"]) >= {"bleu", "chrf", "exact_match", "bleu_signature"}
    assert "version:" in result["metrics"]["bleu_signature"]


def test_two_vocabularies(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(command(pairs(tmp_path), out, "--max-steps", "5", "--tokenizer.shared=false")) == 0
    assert (out / "tokenizer.target.json").is_file()
    model = heedful.from_pretrained(out)
    assert model.target_embedding is not model.embedding
    assert isinstance(heedful.pipeline(None, out)("one two", max_new_tokens=3)["output"], str)


def test_long_examples_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pairs(tmp_path)
    data.write_text(data.read_text(encoding="utf-8") + "zebra " * 60 + "\tzebra\n", encoding="utf-8")
    assert cli.main(command(data, tmp_path / "out", "--max-steps", "2", "--data.max-length", "40")) == 0
    assert "1 example longer than 40 tokens left out (--data.max-length)" in capsys.readouterr().out


def test_names_that_name_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(run.parent / "pairs.tsv")
    assert cli.main(["evaluate", str(run), "--data", data, "--split", "tset"]) == 2
    assert "did you mean 'test'" in capsys.readouterr().err
    assert cli.main(["train", "translation", "--train", data, "--out", "", "--max-steps", "2"]) == 2
    assert "--out is empty" in capsys.readouterr().err


def test_a_short_run_has_a_short_warm_up(tmp_path: Path) -> None:
    assert cli.main(command(pairs(tmp_path), tmp_path / "out", "--max-steps", "20")) == 0
    assert "warmup = 5" in (tmp_path / "out" / "run.toml").read_text(encoding="utf-8")


def test_a_resumed_run_cannot_change_what_it_is_made_of(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run.parent / "pairs.tsv"
    for option, said in (
        ("--model.dim=32", "--model.dim is 32, but the run in"),
        ("--model.ff-dim=32", "was started without it; leave it out, or start a new run"),
        ("--tokenizer.size=77", "was started with 300; leave it out"),
        ("--data.prefix=to French: ", "was started without it; leave it out, or start a new run"),
        ("--preset=transformer-small", "was started with transformer-tiny"),
        (f"--from={run}", "--from is"),
    ):
        assert cli.main(["train", "translation", "--train", str(data), "--out", str(run), "--resume", option]) == 2
        assert said in capsys.readouterr().err
    vectors = [
        "train",
        "feature-extraction",
        "--train",
        str(data),
        "--data.columns=1,2",
        "--out",
        str(run.parent / "near"),
    ]
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60", "--max-steps=1"]
    assert cli.main([*vectors, *small]) == 0
    capsys.readouterr()
    for option, said in (
        ("--pooling.kind=max", "started with mean"),
        ("--pooling.normalise=false", "started with True"),
    ):
        assert cli.main([*vectors, "--resume", option]) == 2
        assert said in capsys.readouterr().err
    other = ["train", "text-generation", "--train", str(data), "--out", str(run), "--resume"]
    assert cli.main(other) == 2
    assert "trains for translation, not for text-generation" in capsys.readouterr().err


def test_a_class_token_is_part_of_what_a_run_is_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--preset=vit-micro", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--data.limit=60"]
    out = ["--train=builtin:digits", "--out", str(tmp_path / "out"), *small, "--max-steps=1"]
    run = ["train", "image-classification", *out]
    assert cli.main(run) == 0
    capsys.readouterr()
    assert cli.main([*run, "--resume", "--model.class-token=false"]) == 2
    assert "--model.class-token is False, but the run in" in capsys.readouterr().err
    assert cli.main([*run, "--resume", "--model.class-token=true"]) == 0
    assert cli.main([*run, "--overwrite", "--model.class-token=false"]) == 0
    assert cli.main([*run, "--resume", "--model.class-token=false"]) == 0
    assert cli.main([*run, "--resume", "--model.class-token=true"]) == 2


def test_the_folder_has_the_weights_of_the_best_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gone back to an older checkpoint, with a rate that makes nothing better."""
    out = tmp_path / "out"
    options = [
        "--training.keep-checkpoints=4",
        "--training.evaluate-every=5",
        "--training.save-every=5",
        "--training.schedule=constant",
    ]
    options += ["--training.lr=0.001", "--training.warmup=1", "--averaging.polynomial=0"]
    options += ["--data.valid-fraction=0.05"]
    assert cli.main(command(pairs(tmp_path), out, *options, "--max-steps=20")) == 0
    metrics = json.loads((out / "heedful.json").read_text(encoding="utf-8"))["metrics"]
    for name in ("checkpoint.pt", "checkpoint.1.pt"):
        (out / name).unlink()
    capsys.readouterr()
    assert cli.main([*command(tmp_path / "pairs.tsv", out, *options, "--max-steps=20", "--resume"), "--json"]) == 0
    told, said = capsys.readouterr()
    assert "best weights are from a step after" not in said + told
    assert json.loads(told)["best_step"] in (15, 20), "after the checkpoint that is gone back to"
    assert json.loads(told)["metrics"] == metrics == json.loads((out / "heedful.json").read_text())["metrics"]
    for name in ("checkpoint.pt", "checkpoint.1.pt"):
        (out / name).unlink()
    other = [*command(tmp_path / "pairs.tsv", out, *options, "--max-steps=20", "--resume"), "--training.lr=1.0"]
    assert cli.main([*other, "--json"]) == 0
    told, said = capsys.readouterr()
    assert "! the best weights are from a step after this checkpoint" in said + told
    found = json.loads(told.splitlines()[-1])
    assert found["best_step"] in (15, 20)
    assert found["metrics"] == json.loads((out / "heedful.json").read_text(encoding="utf-8"))["metrics"] != metrics


@pytest.mark.parametrize(
    ("scored", "step", "told"),
    [
        (
            50,
            40,
            "step 40; their bleu is within a standard error of the highest (step 20), and their loss is lower\n",
        ),  # a 7th of them
        (5000, 20, "those of step 20\n"),  # a 70th of them
        (None, 20, "those of step 20\n"),
    ],
)
def test_of_weights_that_chance_cannot_tell_apart_those_of_the_lower_loss_are_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scored: int | None,
    step: int,
    told: str,
) -> None:
    given = iter([{"bleu": 50.0, "loss": 3.0}, {"bleu": 46.0, "loss": 2.0}])

    def measure(task: Any, model: Any, examples: Any, rows: Any, **options: Any) -> Measured:
        metrics = next(given)
        right = np.arange(scored or 0) * 100 < (scored or 0) * metrics["bleu"]
        each = Sums(np.stack([right, np.ones_like(right)], 1), lambda sums: {"bleu": 100 * sums[0] / sums[1]})
        return Measured(metrics, example_scores=each if scored else None, outputs=[""] * len(rows))

    monkeypatch.setattr(Translation, "measure", measure)
    assert cli.main([*command(pairs(tmp_path), tmp_path / "out", "--max-steps=40", "--json")]) == 0
    assert json.loads((result := capsys.readouterr()).out)["best_step"] == step
    assert told in result.err
    assert read_card(tmp_path / "out")["metrics"] == (
        {"bleu": 46.0, "loss": 2.0} if step == 40 else {"bleu": 50.0, "loss": 3.0}
    )
    kept, end = (load_file(tmp_path / "out" / part / "model.safetensors") for part in ("", "average"))
    assert all(torch.equal(kept[name], end[name]) for name in end) == (step == 40)


@pytest.mark.parametrize("has", [True, False])
def test_bf16_without_instructions_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has: bool
) -> None:
    data = tmp_path / "data.csv"
    data.write_text(
        "text,label\n" + "".join(f"{word} {n},{word}\n" for word in ("good", "bad") for n in range(20)),
        encoding="utf-8",
    )
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has}, raising=False)
    small = ["--preset=bert-tiny", "--model.dim=8", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *small]
    assert cli.main([*run, "--max-steps=1", "--training.precision=bf16"]) == 0
    said = [line for line in "".join(capsys.readouterr()).splitlines() if "bfloat16 instructions" in line]
    told = "! --training.precision bf16 is many times slower: this machine has no bfloat16 instructions; take fp32"
    assert said == ([] if has else [told])


# ---------------------------------------------------------------------------------------------------- what a run stores


def ended_by_itself(data: Path, out: Path, *more: str) -> list[str]:
    """A run whose weights do not change, so that patience ends it."""
    return command(data, out, "--training.lr=1e-12", "--training.patience=1", "--max-steps=200", *more)


def test_a_run_that_patience_ended_keeps_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = pairs(tmp_path), tmp_path / "out"
    assert cli.main(ended_by_itself(data, out)) == 0
    said = capsys.readouterr().out
    assert "freed" in said
    assert "--training.keep-checkpoints 1" in said
    assert not list(out.glob("checkpoint*"))
    assert cli.main(ended_by_itself(data, out, "--resume", "--training.patience=5")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in (str(out), "step", "--from", str(out / "last"), "--training.keep-checkpoints 1"):
        assert word in error


def test_a_checkpoint_that_is_asked_for_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = pairs(tmp_path), tmp_path / "out"
    assert cli.main(ended_by_itself(data, out, "--training.keep-checkpoints=1")) == 0
    assert "freed" not in capsys.readouterr().out
    assert (out / "checkpoint.pt").is_file()
    assert cli.main(ended_by_itself(data, out, "--resume")) == 0
    assert "had already ended" in capsys.readouterr().out
    assert (out / "checkpoint.pt").is_file()


def test_keep_0_keeps_none_after_a_limit_either(tmp_path: Path) -> None:
    assert cli.main(command(pairs(tmp_path), tmp_path / "out", "--max-steps=5", "--training.keep-checkpoints=0")) == 0
    assert not list((tmp_path / "out").glob("checkpoint*"))


@pytest.mark.parametrize("average", ["--averaging.polynomial=0.1", "--averaging.last=2", "--averaging.polynomial=0"])
def test_a_checkpoint_does_not_store_again_what_the_folder_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str
) -> None:
    data, straight, out = pairs(tmp_path), tmp_path / "straight", tmp_path / "out"
    options = [average, "--training.schedule=constant", "--training.warmup=5"]
    assert cli.main(command(data, straight, "--max-steps=40", *options)) == 0
    monkeypatch.setattr("heedful.training.finish.WORTHWHILE", 0)
    assert cli.main(command(data, out, "--max-steps=20", *options)) == 0
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert state["model"] == {}, "all of them are in last/"
    if average == "--averaging.polynomial=0.1":
        assert state["average"]["weights"] == {}
    weights = (out / "last" / "model.safetensors").stat().st_size
    assert (out / "checkpoint.pt").stat().st_size < (straight / "checkpoint.pt").stat().st_size - 0.8 * weights
    assert cli.main(command(data, out, "--max-steps=20", *options, "--resume")) == 0
    assert cli.main(command(data, out, "--max-steps=40", *options, "--resume")) == 0
    for part in (".", "last"):
        one, other = (load_file(folder / part / "model.safetensors") for folder in (straight, out))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_whose_weights_were_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.training.finish.WORTHWHILE", 0)
    data, out = pairs(tmp_path), tmp_path / "out"
    assert cli.main(command(data, out, "--max-steps=20")) == 0
    weights = load_file(out / "last" / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name] + 1}, out / "last" / "model.safetensors", {"format": "pt"})
    capsys.readouterr()
    assert cli.main(command(data, out, "--max-steps=40", "--resume")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(out / "last") in error
    assert "--from" in error


def test_equal_weights_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one evaluation, at the end, the best weights are the averaged ones. Without hard links there are two."""
    data, linked, apart = pairs(tmp_path), tmp_path / "linked", tmp_path / "apart"
    assert cli.main(command(data, linked, "--max-steps=20")) == 0
    files = [linked / part / "model.safetensors" for part in (".", "average", "last")]
    assert files[0].samefile(files[1])
    assert not files[0].samefile(files[2])

    def refused(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    assert cli.main(command(data, apart, "--max-steps=20")) == 0
    files = [apart / part / "model.safetensors" for part in (".", "average")]
    assert not files[0].samefile(files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not [path.name for path in (apart / "average").iterdir() if path.name.startswith(".")]


def test_the_threads_of_a_run_are_kept_and_used_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out, used = pairs(tmp_path), tmp_path / "out", []
    assert cli.main(command(data, out, "--max-steps=2", "--training.threads=2")) == 0
    assert "threads = 2" in (out / "run.toml").read_text(encoding="utf-8")
    assert torch.get_num_threads() == 1, "as before"
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, *a, **b: (used.append(torch.get_num_threads()), save(self, *a, **b))[1]
    )
    capsys.readouterr()
    assert cli.main(command(data, out, "--max-steps=4", "--resume")) == 0
    assert set(used) == {2}
    assert "threads    2" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- a run that was stopped


def test_a_folder_without_weights_names_the_line_that_resumes_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a kill before the first evaluation: run.toml and last/ are there, the folder's own model is not."""
    out = tmp_path / "a run"
    shutil.copytree(run / "last", out / "last")
    shutil.copy(run / "run.toml", out)
    data = read_toml(out / "run.toml").train[0]
    for arguments in (["predict", str(out), "one"], ["evaluate", str(out), "--data", data], ["verify", str(out)]):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"heedful train translation --train {data} --out '{out}' --resume" in error
    (out / "run.toml").rename(out / "run.toml.part")
    assert cli.main(["predict", str(out), "one"]) == 2
    assert "--resume" in capsys.readouterr().err
    (out / "run.toml.part").write_text("nonsense")
    assert cli.main(["predict", str(out), "one"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_a_model_whose_run_was_stopped_is_used_and_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", str(run), "one two three"]) == 0
    assert "--resume" not in capsys.readouterr().err, "it ended"
    out = tmp_path / "out"
    shutil.copytree(run, out)
    card = json.loads((out / "last" / "heedful.json").read_text(encoding="utf-8"))
    assert card["steps"] == 40
    (out / "last" / "heedful.json").write_text(json.dumps({**card, "steps": 0}), encoding="utf-8")
    assert cli.main(["predict", str(out), "one two three"]) == 0
    told = capsys.readouterr()
    assert "step 40" in told.err
    assert f"--out {out} --resume" in told.err
    assert "--resume" not in told.out


@pytest.mark.parametrize(
    ("header", "expected"), [("kind\ttext\n", "kind"), ("", "text in column 2, label in column 1")]
)
def test_the_head_says_what_a_column_without_a_name_is(header: str, expected: str, tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2]}\tthe text {i} of a {word}\n" for i in range(20) for word in ("fig", "saw")]
    (tmp_path / "set.tsv").write_text(header + "".join(lines), encoding="utf-8")
    rows = read(tmp_path / "set.tsv", {"text": "text", "label": "label"})
    assert expected in ", ".join(shown_columns(rows))
