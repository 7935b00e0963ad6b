"""The example with which a run ends: an input that can be copied to ``heedful predict``."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from answering_folders import made
from heedful import cli
from heedful.data import LazyImage, Row
from heedful.training import report

LONG = "so many words " * 9


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        ("translation", {"source": "How\nare you?"}, "How are you?"),
        ("translation", {"source": LONG}, " ".join(LONG.split()[:13])),
        ("translation", {"source": "x" * 99}, "x" * 60),
        ("translation", {"source": "--json"}, None),
        ("fill-mask", {"text": "the pear is"}, "the pear <mask>"),
        ("token-classification", {"words": ("the", "pear"), "tags": ("O", "O")}, "the pear"),
        ("question-answering", {"question": "what?", "context": "a pear"}, None),
        ("text-generation", {"messages": [{"role": "user", "content": "hi"}]}, None),
        ("text-generation", {"prompt": "2 + 2 =", "completion": "4"}, "2 + 2 ="),
    ],
)
def test_an_example_of_the_data(task: str, values: dict[str, Any], expected: str | None) -> None:
    assert made(task)[0].example_input(Row(values, "f", 1)) == expected


def test_an_image_is_its_file(tmp_path: Path) -> None:
    task, pixels = made("image-classification")[0], np.zeros((28, 28), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert task.example_input(Row({"image": LazyImage.of(tmp_path / "x.png")}, "f", 1)) == str(tmp_path / "x.png")
    assert task.example_input(Row({"image": LazyImage.of(pixels, "row 1")}, "f", 1)) is None


# ------------------------------------------------------------------------------------- the suggested command lines run

TEXTS = [f"the {a} and the {b} {n}" for a in ("fig", "pear", "plum") for b in ("saw", "drill", "file") for n in "12345"]
SMALL = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--max-steps=1"]


def _table(folder: Path, name: str, header: str, cells: Callable[[int, str], list[str]]) -> str:
    delimiter = "," if name.endswith(".csv") else "\t"
    lines = [header.replace(" ", delimiter), *(delimiter.join(cells(i, text)) for i, text in enumerate(TEXTS))]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def _lines(folder: Path, record: Callable[[str], dict[str, Any]]) -> str:
    (folder / "set.jsonl").write_text("".join(json.dumps(record(text)) + "\n" for text in TEXTS), encoding="utf-8")
    return "set.jsonl"


def _talk(text: str, answer: str = "yes") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def _pictures() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), np.arange(40, dtype=np.uint8) % 2


def _mnist(folder: Path) -> str:
    (folder / "mnist").mkdir()
    for part in ("train", "t10k"):
        for name, array in zip(("images-idx3", "labels-idx1"), _pictures(), strict=True):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (folder / "mnist" / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())
    return "mnist"


def _idx_files(folder: Path) -> str:
    return f"{_mnist(folder)}/train-images-idx3-ubyte mnist/train-labels-idx1-ubyte"


def _npz(folder: Path) -> str:
    images, labels = _pictures()
    np.savez(folder / "own.npz", pixels=images, kinds=labels)
    return "own.npz --data.columns pixels,kinds"


def _image_folder(folder: Path) -> str:
    for number, pixels in enumerate(_pictures()[0]):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return "images"


def _chosen(text: str) -> dict[str, Any]:
    return {"prompt": text, "chosen": "a fine answer", "rejected": "no"}


def _chosen_talks(text: str) -> dict[str, Any]:
    return {"chosen": _talk(text), "rejected": _talk(text, "no")}


KINDS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "folder of IDX files": ("image-classification", _mnist),
    "two IDX files": ("image-classification", _idx_files),
    "arrays of own names": ("image-classification", _npz),
    "folder of images": ("image-classification", _image_folder),
    "built-in images": ("image-classification", lambda folder: "builtin:digits --data.limit 60"),
    "texts that begin with a dash": (
        "text-classification",
        lambda folder: _table(folder, "set.tsv", "text label", lambda i, text: [f"-{text}", "xy"[i % 2]]),
    ),
    "own columns": (
        "text-classification",
        lambda folder: (
            _table(folder, "set.csv", "body sort", lambda i, text: [text, "xy"[i % 2]]) + " --data.columns body,sort"
        ),
    ),
    "pairs": (
        "text-classification",
        lambda folder: _table(folder, "set.csv", "text text_pair label", lambda i, text: [text, text, "xy"[i % 2]]),
    ),
    "preferences": ("text-classification", lambda folder: _lines(folder, _chosen)),
    "preferences of messages": ("text-classification", lambda folder: _lines(folder, _chosen_talks)),
    "conversations": ("text-generation", lambda folder: _lines(folder, lambda text: {"messages": _talk(text)})),
    "instructions": (
        "text-generation",
        lambda folder: _table(folder, "set.csv", "prompt completion", lambda i, text: [text, text[::-1]]),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("useful", [True, False])
def test_the_command_that_a_run_suggests_runs(
    kind: str, useful: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    task, make = KINDS[kind]
    remedy = report.remedy
    if useful:
        monkeypatch.setattr(report, "remedy", lambda *given: None)
    else:
        below = report.Verdict("below", "below", "loss", 9)
        monkeypatch.setattr(report, "remedy", lambda judgement, *given: remedy(below, *given))
    assert cli.main(["train", task, "--train", *make(tmp_path).split(), "--out", "run", *SMALL]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    suggested = shlex.split(line[line.index("heedful ") :])[1:]
    assert suggested[0] in (("predict", "chat") if useful else ("audit",))
    if suggested[0] == "chat":
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert cli.main(suggested) == 0
    assert capsys.readouterr().out.strip()
