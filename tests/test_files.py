"""A file is written whole or not at all; a damaged one that is read is one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.pretrained.folder import atomic_write
from heedful.util.files import atomic_file, parse_json, parse_toml, read_json, read_toml, sync, write


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


def test_content_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name never stands for a file without its content."""
    calls: list[tuple[str, Any]] = []
    own = os.replace

    def replace(source: Any, target: Any) -> None:
        calls.append(("replace", Path(target).name))
        own(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(("fsync", os.fstat(descriptor).st_size)))
    monkeypatch.setattr(os, "replace", replace)
    for _ in range(2):  # a new folder is renamed as a whole; in one that is there each file is
        with atomic_write(tmp_path / "model") as temporary:
            (temporary / "config.json").write_bytes(b"12")
            (temporary / "weights").write_bytes(b"123")
    synced = [("fsync", 2), ("fsync", 3)]
    assert calls[:5] == [*synced, ("replace", "model"), *synced]
    assert [name for kind, name in calls[6:]] == ["config.json", "weights"]
    assert all(kind == "replace" for kind, _ in calls[5:])
    calls.clear()
    with atomic_file(tmp_path / "checkpoint.pt") as file:
        file.write(b"state")
        sync(file)
    assert calls == [("fsync", 5), ("replace", "checkpoint.pt")]


DAMAGED: dict[str, tuple[Callable[[Path], Any], bytes, str]] = {
    "JSON's syntax": (lambda path: read_json(path, "mend it"), b'{"a": 1,\n,}', ":2: "),
    "JSON that ends early": (lambda path: read_json(path, "mend it"), b"", ":1: "),
    "JSON that is not UTF-8": (lambda path: read_json(path, "mend it"), b'{"a": "\xff"}', "0xff"),
    "JSON's depth": (lambda path: read_json(path, "mend it"), b"[" * 300_000, "levels deep"),
    "a depth that JSON's reader takes": (
        lambda path: read_json(path, "mend it"),
        b"[" * 200 + b"]" * 200,
        "levels deep",
    ),
    "JSON's number of 401 digits": (lambda path: read_json(path, "mend it"), b'{"a": 1' + b"0" * 400 + b"}", "digits"),
    "JSON's number of 5,000 digits": (lambda path: read_json(path, "mend it"), b"9" * 5000, "digits"),
    "TOML's syntax": (lambda path: read_toml(path, "mend it"), b"a = [1,\n2 3]", "line 2"),
    "TOML that is not UTF-8": (lambda path: read_toml(path, "mend it"), b'a = "\xff"', "0xff"),
    "TOML's depth": (lambda path: read_toml(path, "mend it"), b"a=" + b"[" * 900 + b"]" * 900, "levels deep"),
    "TOML's tables": (lambda path: read_toml(path, "mend it"), b"[" + b"a." * 300 + b"a]", "levels deep"),
    "TOML's number of 401 digits": (lambda path: read_toml(path, "mend it"), b"a = [1" + b"0" * 400 + b"]", "digits"),
}


@pytest.mark.parametrize(("read", "content", "said"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_json_is_an_error_of_one_line(
    tmp_path: Path, read: Callable[[Path], Any], content: bytes, said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(HeedfulError, match=r"mend it$") as told:
        read(path)
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)
    assert said in str(told.value)
    assert len(str(told.value)) < 300


def test_sources_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("[]")
    for name, said in (
        ("folder", "not a regular file"),
        ("none", "No such file"),
        ("a\0b", "null"),
        ("x" * 999, "too long"),
    ):
        with pytest.raises(HeedfulError, match=said):
            read_json(tmp_path / name, "mend it")
    monkeypatch.setattr("heedful.util.files.MAX_BYTES", 1)
    with pytest.raises(HeedfulError, match="large has 2 bytes, more than 1; mend it"):
        read_json(tmp_path / "large", "mend it")


def test_whole_json_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2, 2.5, null, "\xc3\xa9"]}', "a", "") == {"a": [1, -2, 2.5, None, "é"]}
    assert parse_json("1" + "0" * 299, "a", "") == 10**299
    assert parse_json("3", "a", "") == 3
    assert parse_json("[" * 100 + "]" * 100, "a", "")
    assert parse_toml("a.b = [1, 2.5]", "a", "") == {"a": {"b": [1, 2.5]}}
