"""``heedful predict --in FILE --out FILE`` with real models: each task's files, and every error in one line."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from PIL import Image

import heedful
from heedful import cli
from heedful.inference import input_blocks as blocks
from heedful.inference import predict_file as through
from tolerances import approx

sys.path.insert(0, str(Path(__file__).parent / "tasks"))  # where the tiny models of all tasks are made
from answering_folders import WORDS, saved

TEXTS = [f"the {WORDS[n % 8]} is a tool" for n in range(20)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each task that is asked here."""
    where = tmp_path_factory.mktemp("models")
    tasks = ("translation", "text-generation", "question-answering", "image-classification", "token-classification")
    return {name: saved(name, where / name) for name in tasks}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *tokens: object, status: int = 0) -> tuple[str, str]:
    assert cli.main(["predict", *map(str, tokens)]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def objects(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_texts_in_and_answers_out(folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = folders["translation"]
    out, err = run(capsys, model, "--in", "x.txt", "--out", "y.jsonl", "--max-new-tokens", 6)
    assert out == ""
    assert err.startswith("20 inputs predicted in ")
    assert err.endswith(" s: y.jsonl\n")
    answers = heedful.pipeline(None, model)(TEXTS, max_new_tokens=6)
    assert [{**one, "score": approx(one["score"], "layer")} for one in answers] == objects("y.jsonl")
    run(capsys, model, "--in", "x.txt", "--out", "y.fr", "--max-new-tokens", 6)
    assert Path("y.fr").read_text().split("\n")[:-1] == [one["output"] for one in answers]
    out, err = run(capsys, model, "--in", "x.txt", "--max-new-tokens", 6)
    assert out == Path("y.fr").read_text()
    assert err == ""
    out, _ = run(capsys, model, "--in", "x.txt", "--out", "-", "--json", "--max-new-tokens", 6)
    assert [json.loads(line) for line in out.splitlines()] == objects("y.jsonl")
    out, _ = run(capsys, model, "--in", "x.txt", "--out", "z.txt", "--json", "--max-new-tokens", 6)
    told = json.loads(out)
    assert (told["task"], told["inputs"], told["before"], told["out"]) == ("translation", 20, 0, "z.txt")


def test_standard_input(
    folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for out in (["--out", "y.txt"], []):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"the saw\n\nthe pear")))
        shown, _ = run(capsys, folders["translation"], "--in", "-", "--max-new-tokens", 3, *out)
        text = Path("y.txt").read_text() if out else shown
        assert len(text.splitlines()) == 3
        assert text.splitlines()[1] == ""


def test_log_probabilities_are_in_the_json(
    folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folders["text-generation"]
    given = (model, "--logprobs", "--max-new-tokens", 3, "--do-sample=false")
    run(capsys, *given, "--in", "x.txt", "--out", "y.jsonl")
    assert all(1 <= len(one["logprobs"]) <= 3 for one in objects("y.jsonl"))
    out, _ = run(capsys, *given, "--json", TEXTS[5])
    assert json.loads(out)["logprobs"] == approx(objects("y.jsonl")[5]["logprobs"])
    for wrong in (["the saw"], ["--in", "x.txt", "--out", "y.txt"], ["--in", "x.txt"]):
        _, err = run(capsys, *given, *wrong, status=2)
        assert err == "heedful: --logprobs needs JSON output; give --json, or write a .jsonl file\n"


@pytest.mark.parametrize("seed", [[], ["--seed", "7"]])
def test_samples_are_repeatable(
    folders: dict[str, Path],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seed: list[str],
) -> None:
    monkeypatch.setattr(through, "FIRST", 4)
    monkeypatch.setattr(blocks, "BLOCK", 4)
    model = folders["text-generation"]
    drawing = {"temperature": 2.0, "min_new_tokens": 8, "max_new_tokens": 8}  # so long that no two come out alike
    flags = [part for name, value in drawing.items() for part in (f"--{name.replace('_', '-')}", value)]
    given = (model, "--in", "x.txt", *flags, *seed)
    added, add = 0, through.PartialFile.add

    def stop(self: Any, lines: list[str]) -> None:
        nonlocal added
        added += 1
        if added == 4:
            raise KeyboardInterrupt
        add(self, lines[: 4 - (added == 3)])  # of its last block not all

    with monkeypatch.context() as patch:
        patch.setattr(through.PartialFile, "add", stop)
        _, err = run(capsys, *given, "--out", "y.jsonl", status=130)
        assert err == "12 predictions kept in y.jsonl.part; the same command continues from there\nheedful: stopped\n"
    drawn = json.loads(Path("y.jsonl.part.json").read_text())["kept"]["seed"]
    _, err = run(capsys, *given, "--out", "y.jsonl")
    assert err.startswith("continues after 11 predictions\n9 inputs predicted in ")
    if not seed:
        given = (*given, "--seed", drawn)
    run(capsys, *given, "--out", "z.jsonl")
    assert Path("y.jsonl").read_bytes() == Path("z.jsonl").read_bytes()
    outputs = [one["output"] for one in objects("y.jsonl")]
    assert len(set(outputs)) == 20  # equal prompts draw anew
    whole = heedful.pipeline(None, model)(TEXTS, **drawing, seed=drawn)
    assert [one["output"] for one in whole] == outputs


def test_questions_and_words(folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "q1", "question": "what is pear?", "context": "the pear is a fruit"}]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    run(capsys, folders["question-answering"], "--in", "q.jsonl", "--out", "y.jsonl")
    first, blank = objects("y.jsonl")
    assert first["id"] == "q1"
    assert first["context"] == "the pear is a fruit"
    assert set(first["output"]) == {"answer", "start", "end"}
    assert blank["output"] == {"answer": "", "start": 0, "end": 0}
    Path("w.jsonl").write_text('{"tokens": ["the", "saw"], "id": 4}\n')
    run(capsys, folders["token-classification"], "--in", "w.jsonl", "--out", "w.out.jsonl")
    (told,) = objects("w.out.jsonl")
    assert told["id"] == 4
    assert isinstance(told["output"], list)


def test_images_by_folder_and_by_table(
    folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        path = Path("images", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (28, 28), dtype=np.uint8)).save(path)
    model = folders["image-classification"]
    run(capsys, model, "--in", "images", "--out", "y.jsonl", "--top-k", 2)
    assert [one["input"] for one in objects("y.jsonl")] == ["images/a/1.png", "images/a/2.png", "images/b/3.png"]
    assert [len(one["output"]) for one in objects("y.jsonl")] == [2, 2, 2]
    Path("images/list.csv").write_text("id,image\n1,b/3.png\n2,\n3,a/1.png\n")
    run(capsys, model, "--in", "images/list.csv", "--out", "z.jsonl", "--top-k", 2)
    third, blank, first = objects("z.jsonl")
    assert (third["id"], third["output"][0]["label"]) == ("1", objects("y.jsonl")[2]["output"][0]["label"])
    assert blank == {"id": "2", "image": "", "output": [], "score": None}
    assert first["image"] == "a/1.png"
    Path("images/list.csv").write_text("image\na/1.png\nnone.png\n")
    _, err = run(capsys, model, "--in", "images/list.csv", status=2)
    assert err.startswith("heedful: there is no image images/none.png, in images/list.csv:3; write paths")
    Path("images/a/2.png").write_bytes(b"broken")
    _, err = run(capsys, model, "--in", "images", status=2)
    problem = "the file is not an image of a known format, in images/a/2.png"
    assert err == f"heedful: {problem}; save it as PNG, JPEG, WebP, BMP, GIF or TIFF\n"
    _, err = run(capsys, model, "images", status=2)
    assert err == "heedful: images is a folder; predict the images in it with --in images\n"


def test_labels_are_lines_for_people(folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.zeros((28, 28), np.uint8)).save("x.png")
    out, _ = run(capsys, folders["image-classification"], "x.png", "--top-k", 2)
    json_out, _ = run(capsys, folders["image-classification"], "x.png", "--top-k", 2, "--json")
    labels = json.loads(json_out)["output"]
    assert [line.split() for line in out.splitlines()] == [[one["label"], f"{one['score']:.4f}"] for one in labels]
    out, _ = run(capsys, folders["token-classification"], "the saw")
    json_out, _ = run(capsys, folders["token-classification"], "the saw", "--json")
    assert [line.split() for line in out.splitlines() if line != "[]"] == [
        [one["label"], f"{one['score']:.4f}", *one["text"].split()] for one in json.loads(json_out)["output"]
    ]


def test_a_text_that_names_a_file_and_a_folder_beside(
    folders: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = run(capsys, folders["translation"], "x.txt", "--max-new-tokens", 4, "--json")
    assert json.loads(out)["input"] == "x.txt"
    assert err == "x.txt is the name of a file, but predicted as a text; did you mean --in x.txt?\n"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wrong = f"{folders['translation']}s"
    for name in (wrong, os.path.relpath(wrong)):
        _, err = run(capsys, name, "a text", status=2)
        assert err.endswith(f"; did you mean {name[:-1]!r}?\n")
    monkeypatch.chdir(folders["translation"].parent)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    _, err = run(capsys, "translations", "a text", status=2)
    assert err.startswith("heedful: no folder translations here, and the Hub ")
    assert err.endswith("; did you mean 'translation'?\n")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--out", "y.txt"], "--out needs a file of inputs; give it with --in FILE (- is standard input)"),
        (["--overwrite"], "--overwrite needs a file of inputs; give it with --in FILE (- is standard input)"),
        (["--columns", "a"], "--columns needs a file of inputs; give it with --in FILE (- is standard input)"),
        (["--in", "x.txt", "text"], "--in FILE and texts are both given; give only one of them"),
        (["--in", "y.txt"], "y.txt: no such file; did you mean 'x.txt'?"),
        (["--in", "x.txt", "--out", "y.xlsx"], "y.xlsx: predictions cannot be written as .xlsx; name the file .jsonl"),
        (["--in", "x.txt", "--out", "y.conll"], "y.conll: predictions cannot be written as .conll; name the file .jso"),
        (["--in", "x.txt", "--out", "y.BIO"], "y.BIO: predictions cannot be written as .bio; name the file .jsonl"),
        (
            ["--in", "x.txt", "--out", "y.txt.gz"],
            "y.txt.gz: predictions cannot be written as .gz; name the file .jsonl",
        ),
        (["--in", "x.txt", "--out", "x.txt"], "--out x.txt is the file of inputs; name another"),
        (["--in", "x.txt", "--out", "."], "--out . is a folder; name a file in it, such as predictions.csv"),
        (["--in", "x.txt", "--out", "x.txt/y.txt"], "--out x.txt/y.txt: cannot write in"),
        (["--in", "x.txt", "--out", "there.txt"], "there.txt exists; --overwrite replaces it"),
        (["--in", "x.txt", "--overwrite"], "--overwrite has no effect without --out"),
        (["--in", "x.txt", "--task", "translatio"], "unknown task 'translatio'; did you mean 'translation'?"),
    ],
)
def test_wrong_command_lines(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
    message: str,
) -> None:
    Path("there.txt").write_text("answers\n")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(through, "pipeline", load)
    monkeypatch.setattr(heedful, "pipeline", load, raising=False)
    out, err = run(capsys, "model", *tokens, status=2)
    assert out == ""
    assert err.startswith(f"heedful: {message}")
    assert err.count("\n") == 1
    assert Path("there.txt").read_text() == "answers\n"


def test_options_of_another_task_and_prompts_that_do_not_fit(
    folders: dict[str, Path],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, err = run(capsys, folders["image-classification"], "--in", ".", "--num-beams", 3, status=2)
    assert err.startswith("heedful: --num-beams has no effect for image-classification; ")
    Path("long.txt").write_text("short\n" + "long " * 20 + "\n")
    _, err = run(capsys, folders["text-generation"], "--in", "long.txt", "--num-beams", 2, "--out", "y.txt", status=2)
    assert err.startswith("heedful: long.txt:2 has 100 tokens, but a beam search reads at most the model's 32 tokens;")
    run(capsys, folders["text-generation"], "--in", "long.txt", "--max-new-tokens", 2, "--out", "z.txt")
    wanted = "long.txt:2 has 100 tokens, only the last 16 of them are read (the model takes no more)"
    assert caplog.messages[-1] == wanted


def test_a_terminal_gets_no_control_characters(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = saved("text-classification", tmp_path / "labels")
    config = json.loads((model / "config.json").read_text())
    config["id2label"] = {number: f"\x1b[31m{label}" for number, label in config["id2label"].items()}
    config["label2id"] = {label: int(number) for number, label in config["id2label"].items()}
    (model / "config.json").write_text(json.dumps(config))
    for terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_one=terminal: is_one, raising=False)
        for tokens in ((model, "a saw"), (model, "a saw", "--top-k", 2), (model, "--in", "x.txt")):
            out, _ = run(capsys, *tokens)
            assert ("\x1b" in out) == (not terminal)
            assert ("\u241b[31m" in out) == terminal
