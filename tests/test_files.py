"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from heedful.files import write


def test_writing_makes_the_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "page.html", "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for place in (tmp_path / "folder", tmp_path / "file" / "page.html"):
        with pytest.raises(HeedfulError, match="cannot write") as told:
            write(place, "y")
        assert "\n" not in str(told.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "page.html", "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(HeedfulError, match="No space left on device"):
        write(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
