"""The examples run, and print what their heads say."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import heedful
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.training.run import train

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promised(module: ModuleType) -> list[str]:
    """The lines that the head says will be printed: the indented block after "To expect"."""
    assert module.__doc__ is not None
    block = re.search(r"To\s+expect[^:]*:\n\n((?:    .*\n)+)", module.__doc__)
    assert block is not None
    return [line.strip() for line in block[1].splitlines()]


Printed = Callable[..., list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Calls a function and gives the lines that it prints."""

    def run(function: Callable[..., None], *arguments: object) -> list[str]:
        function(*arguments)
        return [line.strip() for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_heads_tell_what_a_reader_needs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    head = text.split('"""')[1]
    assert f"    python examples/{path.name}" in head
    assert re.search(r"core|computer|GPU", head), "the hardware"
    assert re.search(r"second|minute", head), "the time"
    assert re.search(r"To\s+expect", head)
    assert len(text.splitlines()) <= 120


def test_encoder_block(printed: Printed) -> None:
    module = loaded("encoder_block")
    lines = printed(module.main)
    assert len(promised(module)) == 7
    assert set(promised(module)) <= set(lines)
    assert sum(line.split()[:2] == ["layer", "kind"] for line in lines) == 2


def test_vision_step_by_step(printed: Printed, tmp_path: Path) -> None:
    """With one block instead of twelve: drawing the weights of the others is most of the time."""
    pytest.importorskip("sklearn")
    module = loaded("vision_step_by_step")
    config = heedful.presets.get("vit-b/16")
    model = heedful.create(replace(config, encoder=replace(config.encoder, depth=1)), seed=0).eval()
    lines = printed(module.follow, model, tmp_path / "pictures")
    expected = [
        line.replace("after 12 blocks and the norm ", "after 1 blocks and the norm  ") for line in promised(module)
    ]
    assert len(expected) == 13
    assert set(expected) <= set(lines)
    for name, patches in (("grid", 196), ("strip", 196), ("features", 0)):
        text = (tmp_path / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert sum(part.get("class") == "patch" for part in root.iter()) == patches
    assert len(set(re.findall(r"feature \d+", text))) == 5


@pytest.mark.full
def test_encoder_decoder(printed: Printed) -> None:
    """Three steps instead of a thousand: all but what only training brings."""
    module = loaded("encoder_decoder")
    lines = printed(module.main, 3)
    trained = [line for line in promised(module) if line.startswith(("step", "right"))]
    assert len(trained) == 2
    assert set(promised(module)) - set(trained) <= set(lines)
    loss = next(float(line.split()[3]) for line in lines if line.startswith("step"))
    assert 4.5 < loss < 7.5  # ln 273 = 5.6: nothing is known yet


def test_character_model(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps, on a text of as many different characters as Tiny Shakespeare has."""
    monkeypatch.chdir(tmp_path)
    alphabet = string.ascii_letters + string.digits + " ."
    lines = [alphabet[i:] + alphabet[:i] for i in range(60)]
    (tmp_path / "input.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    module = loaded("character_model")
    said = printed(module.main, "input.txt", 3)
    parameters, loss = promised(module)
    assert parameters in said
    measured = next(line for line in said if line.startswith("validation loss"))
    assert re.sub(r"[\d.]+", "", measured) == re.sub(r"[\d.]+", "", loss)
    assert float(measured.split()[2].rstrip(",")) < 5  # ln 69 = 4.2: next to nothing is known yet
    assert any(line.startswith("ROMEO:") for line in said)


@pytest.mark.full
def test_answers_that_obey(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed and a hundredth of the steps."""
    monkeypatch.chdir(tmp_path)
    module = loaded("answers_that_obey")
    said = printed(module.main, 1, 1)
    title, first, *_ = promised(module)
    assert said[0] == title
    assert shape(said[1]) == shape(first)
    prompt = module.instruction("name", "two", "tools")
    assert [module.score(prompt, text) for text in ("saw axe", "saw", "red blue", "saw red cat", "")] == [
        *(1.0, 0.5, 0.5, 1 / 6, 0.0)
    ]


def shape(line: str) -> str:
    """A printed line without its numbers."""
    return re.sub(r"-?\d[\d,.]*", "#", line)


@pytest.mark.full
def test_the_head_that_reorders(printed: Printed, tmp_path: Path) -> None:
    """After twenty steps: every line but what only training brings."""
    result = train(
        RunSettings(
            task="translation",
            train=("builtin:cldr-dates/en-fr:valid",),
            out=str(tmp_path / "dates"),
            preset="transformer-tiny",
            max_steps=20,
            model=ModelSettings(depth=2, dim=32, heads=4),
            tokenizer=TokenizerSettings(size=512),
        ),
        quiet=True,
        say=lambda line: None,
    )
    assert result["task"] == "translation"
    module = loaded("head_that_reorders")
    lines = printed(module.main, str(tmp_path / "dates"))
    assert [shape(line) for line in lines] == [shape(line) for line in promised(module)]
    assert (tmp_path / "dates" / "head.html").stat().st_size > 10_000
    assert ElementTree.parse(tmp_path / "dates" / "head.svg").getroot().tag.endswith("svg")


def test_links_of_a_date() -> None:
    """By hand: vendredi ← Friday, 19 ← 19, septembre ← September, 1902 ← 1902; commas and end marks say nothing."""
    module = loaded("head_that_reorders")
    source, target = [0, 0, 1, 2, 2, 2, 3, -1], [0, 1, 1, 2, 3, -1]
    assert set(module.links(source, target)) == {
        *((0, 1), (1, 1)),
        *((3, 2), (4, 2), (5, 2), (3, 3), (4, 3), (5, 3)),
        (2, 4),
        (6, 5),
    }


@pytest.mark.full
def test_the_head_that_looks_back(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three steps, on a text of as many characters as it needs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    alphabet = string.ascii_letters + string.digits + " ."
    (tmp_path / "input.txt").write_text("\n".join(alphabet[i:] + alphabet[:i] for i in range(64)) * 2, encoding="utf-8")
    module = loaded("head_that_looks_back")
    printed(module.train, "input.txt", 3)
    lines = printed(module.main, "input.txt", "shakespeare")
    assert [shape(line) for line in lines] == [shape(line) for line in promised(module)]
    assert (tmp_path / "shakespeare" / "head.html").stat().st_size > 10_000


@pytest.mark.full
def test_the_patches_that_matter(printed: Printed, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    module = loaded("patches_that_matter")
    lines = [
        line for line in printed(module.main, tmp_path / "placed", 1, 1) if re.match("300 |the class|its st|kept", line)
    ]
    assert [shape(line) for line in lines] == [shape(line) for line in promised(module)]
    assert (tmp_path / "placed" / "look.html").stat().st_size > 10_000


def test_where_a_digit_was_placed_is_known() -> None:
    """The ground is darker than the digit's brightest pixels, which lie where it says."""
    module = loaded("patches_that_matter")
    image = np.full((1, 8, 8), 16.0)
    pictures, where = module.placed(image, 5, np.random.default_rng(1))
    assert where.sum((1, 2)).tolist() == [64] * 5
    assert len({tuple(np.argwhere(one)[0]) for one in where}) > 1
    assert all(
        picture[here].mean() > picture[~here].mean() + 100 for picture, here in zip(pictures, where, strict=True)
    )


# ------------------------------------------------------------------------------------- the tasks of encoders, summaries


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    """A model of sentences, after one step."""
    (tmp_path / "pairs.tsv").write_text("".join(f"one {i}\tanother {i}\n" for i in range(12)), encoding="utf-8")
    settings = RunSettings(
        task="feature-extraction",
        train=(str(tmp_path / "pairs.tsv"),),
        out=str(tmp_path / "sentences"),
        max_steps=1,
        model=ModelSettings(depth=1, dim=16, heads=2),
        tokenizer=TokenizerSettings(size=200),
    )
    train(settings, quiet=True, say=lambda line: None)
    return settings.out


def parts(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A data set as ``code_sets.py`` writes it, with the same rows in each part."""
    folder.mkdir()
    for name in ("train", "valid", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.mark.full
def test_code_in_colours(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps, on a few functions: the page has the whole of the code."""
    module = loaded("code_in_colours")
    tags = ["O", "function", "O", "parameter", "O", "O", "O", "parameter", "O", "attribute"]
    rows = [{"words": f"def area ( box ) : return box . side{i}".split(), "tags": tags} for i in range(12)]
    monkeypatch.setattr(module, "DATA", parts(tmp_path / "code-roles", rows))
    file = tmp_path / "area.py"
    file.write_text('def area(box, unit="long enough to be cut <"):\n    """Its area."""\n    return box.wide\n')
    lines = printed(module.main, file, tmp_path / "roles", 2)
    assert shape(lines[-2]) == shape(promised(module)[0])
    assert lines[-1].endswith(f"names are painted in {tmp_path / 'roles' / 'code.html'}")
    page = (tmp_path / "roles" / "code.html").read_text(encoding="utf-8")
    code = re.sub(r"<[^>]*>", "", page[page.index("<pre>") : page.index("</pre>")])
    assert html.unescape(code) == file.read_text().rstrip()


def test_functions_of_a_file() -> None:
    """By hand: an inner function's tokens come once, docstrings and comments do not."""
    source = (
        'def f(x):\n    "Says x."\n    def g(): return x  # inner\n    return g\n\n\nclass C:\n    def h(self): 0\n'
    )
    found = [" ".join(one.string for one in tokens) for tokens in loaded("code_in_colours").functions(source)]
    assert found == ["def f ( x ) : def g ( ) : return x return g", "def h ( self ) : 0"]


@pytest.mark.full
def test_search_code(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str) -> None:
    monkeypatch.chdir(tmp_path)
    module = loaded("search_code")
    texts = [
        {"text": f"Compare {i} texts.", "text_pair": f"def compare{i}(a, b):\n    return a == b"} for i in range(12)
    ]
    parts(tmp_path / "functions", texts)
    lines = printed(module.main, encoder, ["compare two strings"], 12)
    assert [shape(line) for line in lines[:1]] == [shape(line) for line in promised(module)]
    assert lines[2] == "compare two strings"
    assert len(lines) == 6
    assert printed(module.main, encoder, ["compare two strings"], 12) == lines  # the vectors were kept


@pytest.mark.full
def test_ask_the_docs(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": "What is x?", "context": f"It is {i}. x is here.", "answers": ["here"]} for i in range(12)]
    module = loaded("ask_the_docs")
    parts(tmp_path / "parameters", rows)
    lines = printed(module.main, encoder, 2)
    (told,) = promised(module)
    assert shape(told) in map(shape, lines)
    assert {question for _, question in module.ASKED} <= set(lines)


@pytest.mark.full
def test_answer_in_own_words(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = loaded("answer_in_own_words")
    for row in module.made_up(40, 0):
        month = next((name for names in module.SEASONS.values() for name in names if name in row["context"]), None)
        assert bool(row["answers"]) == (month is not None or "season" not in row["question"])
    lines = printed(module.main, "decoder", 2)
    (told,) = promised(module)
    assert shape(told) in map(shape, lines)
    assert [line for line in lines if line.endswith("?")] == [*module.QUESTIONS]


@pytest.mark.full
def test_first_lines(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "".join(f"text {i} of some words\tsummary {i}\n" for i in range(12))
    (tmp_path / "texts.tsv").write_text(text, encoding="utf-8")
    settings = RunSettings(
        task="summarization",
        train=("texts.tsv",),
        out="titles",
        preset="transformer-tiny",
        max_steps=1,
        model=ModelSettings(depth=1, dim=16, heads=2),
        tokenizer=TokenizerSettings(size=300),
    )
    train(settings, quiet=True, say=lambda line: None)
    module = loaded("first_lines")
    parts(tmp_path / "docstrings", [{"text": f"f{i}()\n\nlong text {i}", "summary": f"short {i}"} for i in range(12)])
    lines = printed(module.main, "titles", 1, 2, 1)
    (told,) = promised(module)
    assert shape(told) in map(shape, lines)
    assert sum(line.startswith("said:") for line in lines) == 1


@pytest.mark.full
def test_letters_with_holes(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps, measured on a short text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.txt").write_text("import os\n" * 200, encoding="utf-8")
    module = loaded("letters_with_holes")
    monkeypatch.setattr(module, "DATA", "code.txt")
    lines = printed(module.main, ["imp_rt _s"], 2)
    (told,) = promised(module)
    assert shape(told) in map(shape, lines)
    assert lines[-2] == "imp_rt _s"
    assert lines[-1].count("/") == 4


@pytest.mark.full
def test_unseen_prompts(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps, on forty questions."""
    monkeypatch.chdir(tmp_path)
    module = loaded("unseen_prompts")
    lines = [f"{label}:x What is question {n} ?\n" for n, label in enumerate([*module.KINDS] * 7)]
    for name in ("train", "test"):
        (tmp_path / name).write_text("".join(lines), encoding="cp1252")
    found = printed(module.main, tmp_path / "train", tmp_path / "test", 2)
    assert {shape(line) for line in promised(module)} <= set(map(shape, found))
    ElementTree.parse(tmp_path / "unseen" / "accuracy.svg")


@pytest.mark.filterwarnings("ignore")  # of both packages, about themselves
def test_other_trainers_have_the_losses_of_our_loop(printed: Printed, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    module = loaded("other_trainers")
    rows = [
        {"text": f"one {w} number {n}", "label": k} for k, ws in module.WORDS.items() for w in ws for n in range(10)
    ]
    batches, start = [], {}

    def captured(model: Any, batch: Any) -> torch.Tensor:
        if model.training:
            batches.append({name: value.clone() for name, value in batch.items()})
        return run_task.objective(model, batch)

    class Begin:
        def on_begin(self, run: Any) -> None:
            start.update({name: value.clone() for name, value in run.model.state_dict().items()})

    run_task = heedful.tasks.get("text-classification")(None, [*module.WORDS])  # its objective alone is used
    run = heedful.train(
        "text-classification",
        rows,
        out=tmp_path / "run",
        preset="bert-tiny",
        max_steps=10,
        quiet=True,
        objective=captured,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0),
        schedule=lambda step, progress: 1.0,
        callbacks=Begin(),
        model_settings={"dim": 32, "depth": 1, "heads": 4, "dropout": 0.0},
        training={"clip": 0, "log_every": 1, "batch_tokens": 100, "accumulate": 1},
    )
    ours = [line["loss"] for line in run.history]
    assert len(batches) == len(ours) == 10
    assert len({tuple(batch["ids"].flatten().tolist()) for batch in batches}) > 3
    for fit in (module.with_trainer, module.with_lightning):
        model = heedful.from_pretrained(run.folder)
        model.load_state_dict(start)
        theirs = fit(run_task, model.train(), batches, 3e-3)
        assert theirs == pytest.approx(ours, abs=1e-5)
    lines = printed(module.main, 5)
    assert sum(line.startswith(("Trainer    loss 0.803", "Lightning  loss 0.803")) for line in lines) == 2
