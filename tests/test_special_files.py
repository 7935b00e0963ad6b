"""Pipes, sockets, devices and folders where a file is meant: refused in one line, and never waited on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.data.text_files import read_lines
from heedful.errors import HeedfulError
from heedful.pretrained import load, save
from heedful.pretrained.preprocessing import read_preprocessing
from heedful.text import Tokenizer, chat_template

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
SMALL = ("--preset=bert-tiny", "--model.dim=8", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60")


@pytest.fixture(autouse=True)
def _impatient() -> Iterator[None]:
    """Opening a pipe that nobody writes to waits for ever."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": as_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("special")
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [f"{a} {b},{'even' if i % 2 else 'odd'}\n" for i, a in enumerate(words) for b in words]
    (folder / "labels.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    tokens = ["train", "text-classification", "--train", str(folder / "labels.csv"), "--out", str(folder / "run")]
    assert cli.main([*tokens, *SMALL, "--max-steps=2"]) == 0
    return folder / "run"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["config.json", "heedful.json", "generation_config.json", "tokenizer.json", "model.safetensors"]
)
def test_files_of_a_model(run: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "model")
    (tmp_path / "model" / name).unlink(missing_ok=True)
    KINDS[kind](tmp_path / "model" / name)
    assert cli.main(["predict", str(tmp_path / "model"), "one"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0] or "model" in lines[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
def test_files_beside_a_tokenizer(run: Path, tmp_path: Path, name: str, kind: str) -> None:
    """They may be missing, and what stands in their place is not taken for that."""
    shutil.copy(run / "tokenizer.json", tmp_path)
    KINDS[kind](tmp_path / name)
    with pytest.raises(HeedfulError, match=rf"{name} is not a regular file; .*(again|anew)"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt"])
def test_files_of_a_published_tokenizer(tmp_path: Path, name: str, kind: str) -> None:
    KINDS[kind](tmp_path / name)
    with pytest.raises(HeedfulError, match=rf"{name} is not a regular file; .*(again|anew)"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_two_languages(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "vocab.json").write_text("{}")
    KINDS[kind](tmp_path / "source.spm")
    with pytest.raises(HeedfulError, match=r"source\.spm is not a regular file"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_template(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / chat_template.FILE)
    with pytest.raises(HeedfulError, match=rf"{chat_template.FILE} is not a regular file"):
        chat_template.read_template(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_preprocessing_of_images(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "preprocessor_config.json")
    with pytest.raises(HeedfulError, match=r"preprocessor_config\.json is not a regular file"):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_of_an_adapter(run: Path, tmp_path: Path, name: str, kind: str) -> None:
    model = load(run)
    add_adapter(model, LoraConfig(rank=2))
    save(model, tmp_path / "adapter")
    load(tmp_path / "adapter")
    (tmp_path / "adapter" / name).unlink()
    KINDS[kind](tmp_path / "adapter" / name)
    with pytest.raises(HeedfulError, match=rf"{name} is not a regular file; .*(again|anew)"):
        load(tmp_path / "adapter")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.toml", "metrics.jsonl", "checkpoint.pt"])
def test_files_of_a_run_that_is_resumed(
    run: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    if name != "checkpoint.pt" or (tmp_path / "run" / name).exists():
        (tmp_path / "run" / name).unlink()
    KINDS[kind](tmp_path / "run" / name)
    tokens = ["train", "text-classification", "--train", str(run.parent / "labels.csv"), "--resume", "--max-steps=4"]
    assert cli.main([*tokens, "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("heedful: ")] == lines[-1:]
    assert name in lines[-1] or "no run" in lines[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_file(run: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    KINDS[kind](tmp_path / "run.toml")
    data = str(run.parent / "labels.csv")
    tokens = ["train", "text-classification", "--train", data, "--out", str(tmp_path / "out")]
    assert cli.main([*tokens, "--config", str(tmp_path / "run.toml")]) == 2
    assert "run.toml" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["socket", "device", "folder"])
def test_data_files(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "data.txt")
    with pytest.raises(HeedfulError, match=r"data\.txt is .*file is expected"):
        list(read_lines(str(tmp_path / "data.txt")))


def test_a_pipe_that_a_person_names_is_data(tmp_path: Path) -> None:
    """As a shell makes one of ``<(zcat data.txt.gz)``."""
    os.mkfifo(tmp_path / "data.txt")
    writer = threading.Thread(target=(tmp_path / "data.txt").write_text, args=("one\ntwo\n",))
    writer.start()
    assert list(read_lines(str(tmp_path / "data.txt"))) == [(1, "one"), (2, "two")]
    writer.join()
