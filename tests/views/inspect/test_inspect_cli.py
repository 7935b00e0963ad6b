"""`heedful inspect`: what it writes and prints, and every wrong option in one line."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful import cli
from heedful.views.inspect.catalogue import VIEWS
from tolerances import assert_close

Make = Callable[[str], Path]
SLOW = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "PIL")


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def image(tmp_path: Path) -> str:
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).save(tmp_path / "a.png")
    return "a.png"


def test_minilm_as_a_page(shared_data: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(shared_data("weights/minilm-l6"))
    assert cli.main(["inspect", folder, "I love transformers", "--view", "model", "--out", "v.html"]) == 0
    assert capsys.readouterr().out == "v.html\n"
    text = Path("v.html").read_text(encoding="utf-8")
    assert "transformers" in text
    assert text.index('data-view="model"') < text.index('data-view="heads"')
    assert not re.search(r'src="http|@import|href="http', text)
    assert cli.main(["inspect", folder, "I love transformers", "--view", "model", "--json"]) == 0
    (maps,) = json.loads(capsys.readouterr().out)["maps"]
    assert [piece.strip() for piece in maps["queries"]] == ["[CLS]", "i", "love", "transformers", "[SEP]"]
    assert (len(maps["weights"]), len(maps["weights"][0])) == (6, 12)
    expected = [0.3465, 0.0288, 0.0442, 0.0476, 0.5330]
    assert_close(maps["weights"][0][0][0], expected, "training")  # four decimals
    assert sorted(os.listdir()) == ["v.html"]  # --json alone writes nothing


@pytest.mark.parametrize(
    ("kind", "view", "options"),
    [
        ("encoder", "heads", []),
        ("encoder", "gradient", []),
        ("encoder", "embeddings", []),
        ("decoder", "matrix", ["--layers", "1", "--heads", "0", "2"]),
        ("decoder", "steps", ["--max-new-tokens", "4"]),
        ("decoder", "lens", ["--queries", "0:3"]),
        ("decoder", "importance", []),
        ("pair", "model", ["--target", "les chats"]),
        ("pair", "steps", ["--num-beams", "2", "--max-new-tokens", "4"]),
        ("pair", "gradient", ["--target", "les chats"]),
        ("pair", "lens", ["--target", "les chats"]),
    ],
)
def test_every_view_of_a_text(
    made: Make, capsys: pytest.CaptureFixture[str], kind: str, view: str, options: list[str]
) -> None:
    words = ["inspect", str(made(kind)), "a small dog sees two cats", "--view", view, *options]
    assert cli.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["view"] == view
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{kind}.{view}.html\n"
    page = Path(f"{kind}.{view}.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "cats" in page
    assert len(page) < 5_000_000
    assert cli.main([*words, "--out", "drawn.svg"]) == 0
    assert Path("drawn.svg").read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize("view", [None, "heads", "gradient", "importance"])
def test_every_view_of_an_image(made: Make, image: str, capsys: pytest.CaptureFixture[str], view: str | None) -> None:
    words = ["inspect", str(made("vision")), image, *(["--view", view] if view else [])]
    assert cli.main([*words, "--out", "out/drawn.html"]) == 0
    assert "a.png" in Path("out/drawn.html").read_text(encoding="utf-8")
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["view"] == (view or "image")


@pytest.mark.parametrize(
    ("kind", "inputs", "view"),
    [
        ("encoder", ["two cats", "the cats", "a red ball"], "similarity"),
        ("pair", ["two cats", "the cats"], "similarity"),
        ("decoder", ["two cats", "the cats"], "similarity"),
        ("decoder", ["two cats", "the cats"], "importance"),
        ("decoder", [], "positions"),
        ("pair", [], "positions"),
        ("vision", [], "positions"),
        ("vision", [], "filters"),
        ("vision", ["a.png", "a.png"], "similarity"),
    ],
)
@pytest.mark.usefixtures("image")
def test_other_numbers_of_inputs(made: Make, kind: str, inputs: list[str], view: str) -> None:
    assert cli.main(["inspect", str(made(kind)), *inputs, "--view", view, "--out", "x.html"]) == 0
    assert Path("x.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_standard_input_is_one_text(
    made: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a small dog\nsees two cats\n"))
    assert cli.main(["inspect", str(made("decoder")), "-", "--json"]) == 0
    (maps,) = json.loads(capsys.readouterr().out)["maps"]
    assert "".join(maps["queries"]) == "a small dog\nsees two cats"


def test_a_file_is_replaced_whole(made: Make) -> None:
    Path("x.html").write_text("mine", encoding="utf-8")
    words = ["inspect", str(made("decoder")), "a dog", "--out", "x.html"]
    assert cli.main([*words, "--layers", "7"]) == 2
    assert Path("x.html").read_text(encoding="utf-8") == "mine"
    assert cli.main(words) == 0
    assert Path("x.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.listdir() == ["x.html"]


def test_pictures_of_every_kind(made: Make) -> None:
    pytest.importorskip("typst", reason="typst is not installed: pip install 'heedful[figures]'")
    for name, begins in (("x.svg", b"<svg "), ("x.PNG", b"\x89PNG"), ("x.pdf", b"%PDF")):
        assert cli.main(["inspect", str(made("decoder")), "a small dog", "--view", "matrix", "--out", name]) == 0
        assert Path(name).read_bytes().startswith(begins)


def test_it_is_opened_where_that_is_asked(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    words = ["inspect", str(made("decoder")), "a dog", "--out", "x.html"]
    assert cli.main(words) == 0
    assert seen == []
    assert cli.main([*words, "--open"]) == 0
    assert seen == [Path("x.html").resolve().as_uri()]


ENCODER = "heads, model, matrix, gradient, embeddings, similarity, positions, importance"


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("encoder", ["a", "--view", "heds"], "unknown view 'heds'; did you mean 'heads'?"),
        (
            "encoder",
            ["a", "--view", "steps"],
            f"works only with models that write text; for encoder (encoder), choose from {ENCODER}",
        ),
        (
            "encoder",
            ["a", "--view", "filters"],
            "works only with models of images; for encoder (encoder), choose from heads",
        ),
        (
            "vision",
            ["a.png", "--view", "lens"],
            "works only with models that write text or fill masks; for vision (vision), choose from heads, model, ",
        ),
        ("decoder", ["a", "--layers", "2"], "no layer 2; the model's layers are 0 to 1"),
        ("decoder", ["a", "--heads", "0", "4"], "no head 4; the model's heads are 0 to 3"),
        ("decoder", ["a", "--heads", "1", "1"], "heads 1, 1 has duplicates"),
        ("encoder", ["a", "--target", "b"], "target has no effect on encoder (encoder)"),
        ("decoder", ["a", "--queries", "3"], "queries '3' is not a range; give START:END"),
        ("decoder", ["a", "--keys", "5:5"], "keys '5:5' is not a range; give START:END"),
        ("decoder", ["a small dog", "--queries", "90:"], "queries begin at 90, but there are"),
        ("decoder", ["a", "--max-new-tokens", "3"], "max_new_tokens has no effect: view 'heads' generates no text"),
        ("encoder", ["a", "--num-beams", "3"], "num_beams has no effect: encoder (encoder) generates no text"),
        ("decoder", ["a", "--view", "embeddings", "--layers", "0"], "layers has no effect on view 'embeddings'"),
        ("decoder", ["a", "--view", "positions"], "view 'positions' takes no input, not 1"),
        ("decoder", ["a", "--view", "similarity"], "give 2 inputs or more, not 1"),
        ("decoder", ["a", "b"], "takes a text, not 2 inputs"),
        ("decoder", [], "give a text, not nothing"),
        ("decoder", [""], "the input is empty; give a text"),
        ("encoder", ["  "], "the text is empty"),
        ("pair", ["a", "--target", ""], "the target is empty"),
        ("pair", ["a", "--target", "b", "--num-beams", "2"], "num_beams: with a target, no text is generated"),
        ("pair", ["a", "b", "--view", "importance", "--target", "b"], "a target needs a single input, but there are 2"),
        ("decoder", ["a " * 200], "decoder takes at most 32; give a shorter text"),
        ("short", ["a " * 200], "short takes at most 32; give a shorter text"),
        ("short", ["a " * 200, "--view", "steps"], "short takes at most 32; give a shorter text"),
        ("short", ["a", "--target", "a " * 200], "tokens, but short takes at most 32; give a shorter text"),
        ("vision", ["none.png"], "none.png"),
        ("vision", ["not.png"], "not an image of a known format, in not.png"),
        ("decoder", ["a", "--out", "x.gif"], "x.gif ends in .gif; use a name that ends in .html, .svg, .png, .pdf"),
        ("decoder", ["a", "--out", "x"], "x ends in no suffix; use a name that ends in"),
        ("decoder", ["a", "--out", "dir.html"], "dir.html is a folder; name a file in it"),
        ("decoder", ["a", "--json", "--open"], "--open opens the written page"),
        ("decoder", ["a", "--device", "abacus"], "device 'abacus' cannot be used here"),
        ("decoder", ["a", "--view", "gradient", "--target", ""], "the target is empty"),
        ("encoder", ["a", "--view", "gradient", "--target", "maybe"], "the model has no label 'maybe'"),
        ("decoder", ["a", "--view", "importance"], "is one token, so no token is predicted"),
        (
            "decoder",
            ["a", "--view", "embeddings"],
            "the figure needs 3 different tokens, but 'a' has 1; give a longer text",
        ),
        ("decoder", ["a " * 40, "--view", "steps"], "tokens, but decoder takes at most 32; give a shorter text"),
        ("encoder", ["caf\udce9"], "'caf\\udce9' is not UTF-8; convert it first"),  # as a shell's bytes come
        ("pair", ["a", "--target", "caf\udce9"], "is not UTF-8; convert it first"),
        ("encoder", ["a", "b"], "or give a pair of texts as one input with a tab between"),
    ],
)
def test_every_wrong_option_is_one_line(
    made: Make, capsys: pytest.CaptureFixture[str], kind: str, words: list[str], said: str
) -> None:
    Path("not.png").write_text("no image", encoding="utf-8")
    Path("dir.html").mkdir()
    assert cli.main(["inspect", str(made(kind)), *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert re.fullmatch(r"heedful: [^\n]+\n", told.err)
    assert sorted(os.listdir()) == ["dir.html", "not.png"]


# each command in a fork of one process that has imported the command line; their statuses are printed
REPORT = f"""
import json, os, sys
from heedful.cli import main
for number, words in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT), stream)
        status = main(words)
        print([name for name in {SLOW!r} if name in sys.modules], file=sys.stderr)
        sys.exit(status)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
QUICK: list[tuple[list[str], int, str]] = [  # words, status, and a part of what is written
    (["--help"], 0, "--queries"),
    (["./nothing", "a"], 2, "./nothing: no such folder"),
    (["MODEL", "a", "--view", "heds"], 2, "did you mean 'heads'?"),
    (["MODEL", "a", "--view", "steps"], 2, "works only with models that write text"),
    (["MODEL", "a", "--layers", "9"], 2, "no layer 9"),
    (["MODEL", "a", "--layers", "x"], 2, "--layers"),
    (["MODEL", "a", "--out", "x.gif"], 2, "x.gif ends in .gif"),
    (["MODEL", "a", "--quer", "1:2"], 2, "--queries"),
]


def test_nothing_slow_for_help_and_errors(made: Make) -> None:
    folder = str(made("encoder"))
    commands = [["inspect", *(folder if word == "MODEL" else word for word in words)] for words, *_ in QUICK]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
    program = [sys.executable, "-W", "error", "-c", REPORT, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for number, ((words, status, said), ended) in enumerate(zip(QUICK, done.stdout.split(), strict=True)):
        out, err = (Path(f"{number}.{name}").read_text(encoding="utf-8") for name in ("out", "err"))
        *errors, slow = err.splitlines()
        assert (int(ended), slow) == (status, "[]"), words
        assert said in (out if status == 0 else errors[0]), words


def test_the_help_names_every_view(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ", ".join(list(VIEWS)[:-1]) + " or " + list(VIEWS)[-1] in text
    assert "Example: heedful inspect" in text
