"""The folder or file that an export writes atomically, and the files copied beside the weights. Imports no torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.pretrained.configuration import home, read_configs
from heedful.pretrained.folder import CONFIG, GENERATION, HEEDFUL_JSON, TOKENIZER_FILES, indented_json
from heedful.util.files import move, temporary_path

WRITTEN = ("config.json", "model.bin", "model.onnx", "openvino_model.xml")  # every exported folder has one of them


def check_target(out: str | Path, overwrite: bool) -> None:
    """Raises ``HeedfulError`` unless the folder ``out`` can be written: it is new or empty, or may be replaced.

    With ``overwrite`` a folder that holds an exported model may be replaced, but no other folder.
    """
    path = Path(out).expanduser()
    if not str(out).strip():
        raise HeedfulError("--out is empty; name a folder for the export")
    if path.exists() and not path.is_dir():
        raise HeedfulError(f"--out {out} is a file; name a folder")
    has_files = path.is_dir() and any(path.iterdir())
    if has_files and not overwrite:
        raise HeedfulError(f"--out {out} is not empty; --overwrite replaces it")
    if has_files and not any((path / name).is_file() for name in WRITTEN):
        raise HeedfulError(
            f"--overwrite only replaces a model, and {out} holds other files; empty it yourself, or choose another "
            "--out"
        )
    _check_writable(path, out)


def check_file_target(out: str | Path, overwrite: bool) -> None:
    """Raises ``HeedfulError`` unless the file ``out`` can be written: it is new, or ``overwrite`` is True."""
    path = Path(out).expanduser()
    if path.is_dir():
        raise HeedfulError(f"--out {out} is a folder; name a file, or remove {path.suffix} to write a folder")
    if path.exists() and not overwrite:
        raise HeedfulError(f"{out} exists already; --overwrite replaces it")
    _check_writable(path, out)


def _check_writable(path: Path, out: str | Path) -> None:
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {parent}; choose another folder")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """Context manager that yields a new folder, which replaces ``out`` only if the block succeeds."""
    out = out.expanduser().absolute()
    new, old = temporary_path(out), out.with_name(f".{out.name}.{os.getpid()}.old")
    try:
        new.mkdir(parents=True)
        yield new
        if out.exists():
            move(out, old)
        move(new, out)
    except OSError as error:
        if old.exists() and not out.exists():
            move(old, out)
        raise HeedfulError(
            f"cannot write {out}: {error.strerror or error}; free some space, or choose another --out"
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def replaced_file(out: Path) -> Iterator[Path]:
    """Context manager that yields a new file's path; the file replaces ``out`` if the block succeeds.

    Otherwise ``out`` does not change.
    The block may write only this file; a second file beside it is an error.
    """
    out = out.expanduser().absolute()
    folder = temporary_path(out)
    try:
        folder.mkdir(parents=True)
        yield folder / out.name
        if len(list(folder.iterdir())) > 1:
            raise HeedfulError(
                f"the weights do not fit into one {out.suffix} file; remove {out.suffix} from --out to write a folder"
            )
        os.replace(folder / out.name, out)
    except OSError as error:
        raise HeedfulError(
            f"cannot write {out}: {error.strerror or error}; free some space, or choose another --out"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_configuration(source: Path, out: Path) -> None:
    """Copies the configuration, the generation settings and the card of a model into ``out``.

    An adapter's folder without a ``config.json`` has the base's, with the adapter's head.
    """
    for name in (CONFIG, GENERATION, HEEDFUL_JSON):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    if not (source / CONFIG).exists():
        for name, content in zip((CONFIG, GENERATION), read_configs(source), strict=True):
            if content and not (out / name).exists():
                (out / name).write_bytes(indented_json(content))


def copy_beside(source: Path, out: Path) -> list[str]:
    """Copies the tokenizer and preprocessing files of a model into ``out``, and returns their names.

    For a folder ``source`` with an adapter, these are the files of the adapter's base model.

    Existing files are not replaced.
    """
    paths: list[Path] = []
    for folder in (source, home(source)):
        paths = paths or sorted(
            {file for pattern in TOKENIZER_FILES for file in folder.glob(pattern) if file.is_file()}
        )
    for file in paths:
        if not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)
    return [file.name for file in paths]


def need(*packages: str, format: str) -> None:
    """Raises ``HeedfulError``, with the ``pip`` command to install them, if packages are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise HeedfulError(f"--to {format} needs {' and '.join(missing)}; pip install 'heedful[{format}]'")
