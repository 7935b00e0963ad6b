"""What the README shows is run, in order, as a reader would run it."""

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
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```([a-z]*)\n(.*?)^```$", README, re.S | re.M)
    return [text for named, text in fences if re.fullmatch(language, named)]


SMALL = {
    "translation": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "text-generation": ["--model.dim=16", "--model.heads=2", "--model.depth=1"],
    "text-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "token-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "question-answering": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "summarization": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "fill-mask": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"],
    "feature-extraction": ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=100"],
    "image-classification": ["--model.dim=16", "--model.heads=2", "--model.depth=1"],
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    for name in ("letters.txt", "texts.txt"):
        (tmp_path / name).write_text("\n".join(lines[:20]) + "\n", encoding="utf-8")
    tagged = "\n\n".join(f"{a} B-number\nof O\n{b} B-number" for a in WORDS for b in WORDS)
    (tmp_path / "names.conll").write_text(tagged + "\n", encoding="utf-8")
    asked = [{"question": "which one ?", "context": line} for line in lines]
    answers = [{"answers": [{"text": one["context"].split()[0], "answer_start": 0}], **one} for one in asked]
    qas = [{"context": one.pop("context"), "qas": [{"id": str(i), **one}]} for i, one in enumerate(answers)]
    data = [{"title": str(i), "paragraphs": [one]} for i, one in enumerate(qas)]
    (tmp_path / "squad.json").write_text(json.dumps({"data": data}), encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked[:5]), encoding="utf-8")
    for label, shade in (("dark", 30), ("light", 220)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("L", (16, 16), shade + number).save(tmp_path / "pictures" / label / f"{number}.png")
    Image.new("L", (16, 16), 10).save(tmp_path / "unseen.png")
    return tmp_path


def test_the_commands_and_the_python_face(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, ask, published, inside = (blocks("")[i].strip().splitlines() for i in (1, 2, 4, 5))
    for line in train:
        words = shlex.split(line)[1:]
        more = ["--max-steps", "3", *SMALL[words[1]]] if words[0] == "train" else []
        more = ["--json"] if words[0] == "watch" else more  # which would go on until it is stopped
        assert cli.main([*words, *more]) == 0, line
    for line in ask:
        words = shlex.split(line)[1:]
        capsys.readouterr()
        assert cli.main([*words, *(["--max-new-tokens", "3"] if "runs/en-fr" in words else [])]) == 0, line
        written = "--out" in words and Path(words[words.index("--out") + 1]).stat().st_size
        assert capsys.readouterr().out.strip() or written, line
    shutil.copytree("runs/book", "stories15M")  # in the place of what was downloaded
    shutil.copytree("runs/labels", "minilm-l6")
    for line in published:
        words = shlex.split(line)[1:]
        capsys.readouterr()
        assert cli.main([*words, *(["--max-steps", "3"] if "train" in words else [])]) == 0, line
        assert capsys.readouterr().out.strip(), line
    assert (desk / "runs" / "adapter" / "adapter_model.safetensors").is_file()
    for line in inside:
        capsys.readouterr()
        assert cli.main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out.strip(), line
    for made in ("model.html", "look.html", "steps.html", "lens.svg", "image.html"):
        assert (desk / made).stat().st_size > 2000
    first, second = blocks("python")
    names: dict[str, object] = {}
    capsys.readouterr()
    exec(first, names)
    printed = capsys.readouterr().out
    assert printed.startswith("124439808\n")
    assert "torch.Size([1, 12, 8, 8])" in printed
    assert "86,567,656 parameters" in printed
    exec(second, names)
    assert (desk / "out" / "model.safetensors").is_file()


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"heedful ([a-z]+)\b", " ".join(blocks("[a-z]*"))))
    assert {"train", "predict", "evaluate"} <= named
    for command in named:
        assert command in cli.app, command


def test_every_option_that_is_named_exists(capsys: pytest.CaptureFixture[str]) -> None:
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
        "verify",
        "verify resume",
        "export",
        "inspect",
        "summary",
    ):
        cli.main([*command.split(), "--help"])
        known += capsys.readouterr().out
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", " ".join((README, *OTHERS)))) - {
        "--help",
        "--nproc-per-node",
        "--index-url",
        "--torch-backend",
    }:
        assert option in known, option


def test_its_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z_]+\b", re.sub(r"`[^`]*`", "", README))
