"""Runs what the README and the pages show, in order, as a reader would."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from heedful import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tasks.md", "docs/checkpoints.md", "docs/inside.md")
README, *OTHERS = ((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
OTHERS[0] += "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in re.findall(r"\]\((tasks/[\w-]+\.md)\)", OTHERS[0])
)
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page whose language matches."""
    fences = re.findall(r"^```([a-z{}]*)\n(.*?)^```$", page, re.S | re.M)
    return [text for name, text in fences if re.fullmatch(language, name)]


def commands(page: str) -> list[list[str]]:
    """The arguments of each ``heedful`` line in a page's blocks without a language."""
    lines = "".join(blocks(page, "")).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("heedful ")]


SMALL = {
    "translation": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "text-generation": ["--model.dim=16", "--model.heads=2", "--model.depth=1"],
    "text-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "token-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "question-answering": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "generative-question-answering": [
        *("--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"),
    ],
    "summarization": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "fill-mask": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "feature-extraction": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "image-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1"],
    "image-to-text": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
}


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a person's files in it."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{a} {b}" for a in WORDS for b in WORDS]
    for name, texts in {"train": lines, "test": lines[::9]}.items():
        (tmp_path / f"{name}.en").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (tmp_path / f"{name}.fr").write_text("\n".join(text[::-1] for text in texts) + "\n", encoding="utf-8")
    (tmp_path / "book.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = "".join(f"{line},{'even' if i % 2 else 'odd'}\n" for i, line in enumerate(lines))
    (tmp_path / "labels.csv").write_text("text,label\n" + table, encoding="utf-8")
    held = "".join(f"{line} more,{'even' if i % 2 else 'odd'}\n" for i, line in enumerate(lines[:20]))
    (tmp_path / "held-out.csv").write_text("text,label\n" + held, encoding="utf-8")
    pairs = "".join(f"{line}\t{line[::-1]}\n" for line in lines)
    (tmp_path / "articles.tsv").write_text("text\tsummary\n" + pairs, encoding="utf-8")
    (tmp_path / "alike.tsv").write_text("text\ttext_pair\n" + pairs, encoding="utf-8")
    (tmp_path / "dates.txt").write_text("Monday, March 3, 2025\n4:05 PM\n", encoding="utf-8")
    for name in ("letters.txt", "texts.txt"):
        (tmp_path / name).write_text("\n".join(lines[:20]) + "\n", encoding="utf-8")
    tagged = "\n\n".join(f"{a} B-number\nof O\n{b} B-number" for a in WORDS for b in WORDS)
    (tmp_path / "names.conll").write_text(tagged + "\n", encoding="utf-8")
    questions = [{"question": "which one ?", "context": line} for line in lines]
    qas = [
        {"id": str(i), "question": "which one ?", "answers": [{"text": line.split()[0], "answer_start": 0}]}
        for i, line in enumerate(lines)
    ]
    data = [
        {"title": str(i), "paragraphs": [{"context": line, "qas": [qa]}]}
        for i, (line, qa) in enumerate(zip(lines, qas, strict=True))
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": data}), encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps(question) + "\n" for question in questions[:5]), encoding="utf-8"
    )
    for label, shade in (("dark", 30), ("light", 220)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("L", (16, 16), shade + number).save(tmp_path / "pictures" / label / f"{number}.png")
    Image.new("L", (16, 16), 10).save(tmp_path / "unseen.png")
    (tmp_path / "photos").mkdir()
    captions = ["image,text"]
    for number in range(12):
        Image.new("RGB", (16, 16), (20 * number, 90, 90)).save(tmp_path / "photos" / f"{number}.png")
        captions.append(f"{number}.png,{lines[number]}")
    (tmp_path / "photos" / "captions.csv").write_text("\n".join(captions) + "\n", encoding="utf-8")
    Image.new("RGB", (16, 16), (9, 90, 90)).save(tmp_path / "photo.png")
    return tmp_path


def test_the_commands_and_python_of_the_readme(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (session,) = blocks(README, "console")
    shown = re.findall(r"^\$ heedful (.*)\n((?:(?!\$ ).*\n)*)", session, re.M)
    assert len(shown) == 8
    for line, output in shown:
        arguments = shlex.split(line)
        if arguments[0] == "train":
            arguments += ["--max-steps", "3", *SMALL["translation"], "--data.limit", "200"]
        if arguments[0] in ("evaluate", "predict"):
            arguments += ["--max-new-tokens", "3"]
        status = cli.main(arguments)
        printed = capsys.readouterr()
        if "missing.tsv" in arguments:
            assert (status, printed.err) == (2, output)
        else:
            assert status == 0, line
            assert output.split()[0] in printed.out + printed.err or arguments[0] == "predict", line
    assert (data_folder / "dates.jsonl").read_text(encoding="utf-8").count('"output"') == 2
    assert (data_folder / "look.html").stat().st_size > 2000
    assert (data_folder / "en-fr.onnx").stat().st_size > 2000

    (code,) = blocks(README, "python")
    exec(code, {})
    (printed_there,) = blocks(README, "text")
    assert capsys.readouterr().out.splitlines()[1:] == printed_there.splitlines()[1:]
    assert (data_folder / "out" / "model.safetensors").is_file()


def test_the_commands_of_the_pages(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of docs/tasks.md and its pages make the runs that the other two pages use."""
    tasks, pretrained, inside = (commands(page) for page in OTHERS)
    assert {words[1] for words in tasks if words[0] == "train"} == {*SMALL}
    for words in tasks:
        if words[0] == "train":
            more = ["--max-steps", "3", *SMALL[words[1]]]
        elif words[0] == "watch":  # runs until it is stopped
            more = ["--json"]
        else:
            more = ["--max-new-tokens", "3"] if "runs/en-fr" in words else []
        capsys.readouterr()
        assert cli.main([*words, *more]) == 0, words
        written = "--out" in words and Path(words[words.index("--out") + 1]).exists()
        assert capsys.readouterr().out.strip() or written, words
    shutil.copytree("runs/book", "stories15M")  # in place of the published models
    shutil.copytree("runs/labels", "minilm-l6")
    for words in [*pretrained, *inside]:
        capsys.readouterr()
        assert cli.main([*words, *(["--max-steps", "3"] if words[0] == "train" else [])]) == 0, words
        assert capsys.readouterr().out.strip(), words
    assert (data_folder / "runs" / "adapter" / "adapter_model.safetensors").is_file()
    for name in ("model.html", "look.html", "steps.html", "lens.svg", "image.html"):
        assert (data_folder / name).stat().st_size > 2000


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 10_000


def test_every_command_exists() -> None:
    text = "\n".join(block for page in (README, *OTHERS) for block in blocks(page, "|console|sh"))
    named = set(re.findall(r"^(?:\$ )?heedful ([a-z]+)\b", text, re.M))
    assert {"train", "predict", "evaluate", "audit", "doctor"} <= named
    for command in named:
        assert command in cli.app, command


def test_every_option_exists(capsys: pytest.CaptureFixture[str]) -> None:
    known = ""
    for command in (
        "train",
        "predict",
        "evaluate",
        "compare",
        "audit",
        "watch",
        "nearest",
        "demo",
        "chat",
        "serve",
        "verify",
        "verify resume",
        "export",
        "inspect",
        "summary",
        "push",
    ):
        cli.main([*command.split(), "--help-all" if command == "train" else "--help"])
        known += capsys.readouterr().out
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", " ".join((README, *OTHERS)))) - {
        "--help",
        "--help-all",
        "--install-completion",
        "--show-completion",
        "--nproc-per-node",
        "--index-url",
        "--torch-backend",
    }:
        assert option in known, option


def test_pictures_and_links_exist() -> None:
    pictures = re.findall(r"!\[[^]]*\]\((?!https:)([^)]+)\)", README)
    assert len(pictures) == 6
    for path in [*pictures, *re.findall(r"\]\(([\w/.-]+)\)", README)]:
        assert (ROOT / path).is_file(), path


def test_figures_of_the_first_screen_are_those_of_their_pages() -> None:
    """Each line ends with the page that has its figures; the sentence on speed is written from those of its page."""
    head = README.partition("## Install")[0]
    lines = re.findall(r"^(.+) \(\[[\w-]+\]\((docs/[\w/-]+\.md)\)\)[.:]$", head, re.M)
    assert [page for _, page in lines] == ["docs/benchmarks.md", "docs/tasks/text-classification.md", "docs/results.md"]
    for line, page in lines:
        text = (ROOT / page).read_text(encoding="utf-8")
        figures = re.findall(r"\d[\d,.–]*\d(?: M)?", line)
        assert figures or page == "docs/benchmarks.md"
        for figure in figures:
            assert re.search(rf"(?<!\d){re.escape(figure)}(?!\d)", text), f"{figure} in {page}"


def test_no_placeholder_is_left() -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z_]+\b", re.sub(r"`[^`]*`", "", README))


def test_the_python_of_the_page_on_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(code, names)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "things",
        "small",
        "typed",
        "gated",
        "stopped",
        "own",
    }
