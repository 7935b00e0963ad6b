"""The folder that an export writes: new or meant, whole or not there; and what travels beside the weights. No torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.pretrained.configuration import home
from heedful.util.files import move, temporary_path

# what tells a tokenizer or a preprocessor apart from weights, configurations and a run's own files
BESIDE = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)

WRITTEN = ("config.json", "model.bin", "model.onnx")  # one of them is in every folder that an export wrote


def check_target(out: str | Path, overwrite: bool) -> None:
    """Raises ``HeedfulError`` where the folder is a file, holds something that is not to be replaced, or cannot be."""
    path = Path(out).expanduser()
    if not str(out).strip():
        raise HeedfulError("--out is empty; name a folder for the export")
    if path.exists() and not path.is_dir():
        raise HeedfulError(f"--out {out} is a file; name a folder")
    filled = path.is_dir() and any(path.iterdir())
    if filled and not overwrite:
        raise HeedfulError(f"--out {out} is not empty; --overwrite replaces it")
    if filled and not any((path / name).is_file() for name in WRITTEN):
        raise HeedfulError(f"--overwrite: {out} holds no model; empty it yourself, or choose another --out")
    _check_writable(path, out)


def check_file_target(out: str | Path, overwrite: bool) -> None:
    """Raises ``HeedfulError`` where the file is a folder, is not to be replaced, or cannot be written."""
    path = Path(out).expanduser()
    if path.is_dir():
        raise HeedfulError(f"--out {out} is a folder; name a file, or leave {path.suffix} out to write a folder")
    if path.exists() and not overwrite:
        raise HeedfulError(f"{out} is there already; --overwrite replaces it")
    _check_writable(path, out)


def _check_writable(path: Path, out: str | Path) -> None:
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {parent}; choose another folder")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """Returns a new folder that takes the place of ``out`` when the block ends well; otherwise ``out`` is as it was."""
    out = out.expanduser().absolute()
    place, old = temporary_path(out), out.with_name(f".{out.name}.{os.getpid()}.old")
    try:
        place.mkdir(parents=True)
        yield place
        if out.exists():
            move(out, old)
        move(place, out)
    except OSError as error:
        if old.exists() and not out.exists():
            move(old, out)
        raise HeedfulError(f"cannot write {out}: {error.strerror or error}; make room, or choose another") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def replaced_file(out: Path) -> Iterator[Path]:
    """A new file that takes the place of ``out`` when the block ends well and wrote nothing else beside it; otherwise
    ``out`` is as it was.
    """
    out = out.expanduser().absolute()
    folder = temporary_path(out)
    try:
        folder.mkdir(parents=True)
        yield folder / out.name
        if len(list(folder.iterdir())) > 1:
            raise HeedfulError(
                f"the weights are larger than one {out.suffix} file can hold; leave {out.suffix} out of --out, and "
                "a folder is written"
            )
        os.replace(folder / out.name, out)
    except OSError as error:
        raise HeedfulError(f"cannot write {out}: {error.strerror or error}; make room, or choose another") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_beside(source: Path, place: Path) -> list[str]:
    """Copies the files of tokenizer and preprocessing, an adapter's base's where it has none; those that are there
    already stay. Their names.
    """
    found: list[Path] = []
    for folder in (source, home(source)):
        found = found or sorted({file for pattern in BESIDE for file in folder.glob(pattern) if file.is_file()})
    for file in found:
        if not (place / file.name).exists():
            shutil.copyfile(file, place / file.name)
    return [file.name for file in found]


def need(*packages: str, format: str) -> None:
    """Raises ``HeedfulError``, with the line that installs them, where packages are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise HeedfulError(f"--to {format} needs {' and '.join(missing)}; pip install 'heedful[{format}]'")
