"""Compressed files: read in linear time, bombs refused, memory bounded."""

from __future__ import annotations

import gzip
import lzma
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import heedful.data.text_files as text_files
from heedful.data.split import collapse_blanks
from heedful.data.text_files import open_file, read_lines
from heedful.errors import HeedfulError
from heedful.text import Tokenizer, tokenizer_training
from heedful.text.tokenizer_training import WORD_PART_END, part_bounds

zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def test_zst_copies_each_byte_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of 8 MiB comes out of one call; reading it copied what was left of it for each 16 KiB."""
    size, copied = 8 << 20, Counter[str]()

    class Held(bytes):
        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            copied["bytes"] += len(found)
            return Held(found)

    class Frame:
        eof, unused_data = True, b""

        def decompress(self, packed: bytes) -> bytes:
            return Held(size)

    fake = types.SimpleNamespace(
        ZstdDecompressor=lambda: types.SimpleNamespace(decompressobj=Frame), ZstdError=ValueError
    )
    monkeypatch.setattr(text_files, "require_library", lambda library, path: fake)
    (tmp_path / "zeros.zst").write_bytes(b"packed")
    with open_file(str(tmp_path / "zeros.zst")) as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 14), b""))) == size
    assert copied["bytes"] <= 3 * size


def test_zst_decompresses_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros are 3 KiB packed: all came out of one call."""
    path, most = tmp_path / "zeros.zst", 0
    path.write_bytes(zstandard.compress(bytes(64 << 20)))

    class Frame:
        def __init__(self) -> None:
            self.inner = zstandard.ZstdDecompressor().decompressobj()

        def decompress(self, packed: bytes) -> bytes:
            nonlocal most
            found = self.inner.decompress(packed)
            most = max(most, len(found))
            return found

        eof = property(lambda self: self.inner.eof)
        unused_data = property(lambda self: self.inner.unused_data)

    fake = types.SimpleNamespace(
        ZstdDecompressor=lambda: types.SimpleNamespace(decompressobj=Frame), ZstdError=zstandard.ZstdError
    )
    monkeypatch.setattr(text_files, "require_library", lambda library, path: fake)
    with open_file(str(path)) as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) == 64 << 20
    assert 0 < most <= 16 << 20


@pytest.mark.parametrize("kind", PACK)
def test_compressed_files_are_read_whole(tmp_path: Path, kind: str) -> None:
    lines = [f"line {number} é {'x' * (number % 97)}" for number in range(5000)]
    path = tmp_path / f"text.txt{kind}"
    whole = "\n".join(lines).encode()
    path.write_bytes(PACK[kind](whole[:70000]) + PACK[kind](whole[70000:]))  # of two frames
    assert list(read_lines(str(path))) == list(enumerate(lines, 1))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HeedfulError, match=r"ends too early|not a complete"):
        list(read_lines(str(path)))


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.full(keep=1)
def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(text_files, "BOMB_BYTES", 1 << 20)
    bomb, text = tmp_path / f"bomb.txt{kind}", tmp_path / f"text.txt{kind}"
    bomb.write_bytes(PACK[kind](b"a\n" * (2 << 20)))
    with pytest.raises(HeedfulError, match=r"expands to more than \d,.*decompress it") as told:
        list(read_lines(str(bomb)))
    assert f"{bomb} has {bomb.stat().st_size:,} bytes" in str(told.value)
    assert "\n" not in str(told.value)
    text.write_bytes(PACK[kind](b"".join(b"%d\n" % (7919 * number) for number in range(300_000))))  # 2.7 MB
    assert sum(1 for _ in read_lines(str(text))) == 300_000
    bomb.write_bytes(PACK[kind](b"a\n" * (1 << 19)))  # as many times, but of a size that harms nobody
    assert sum(1 for _ in read_lines(str(bomb))) == 1 << 19


TRAINED = """
import random, resource
from heedful.text import Tokenizer
random.seed(0)
words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(3000)]
text = "\\n".join(" ".join(random.choices(words, k=12)) + " " for _ in range(80_000))
Tokenizer.train([text[:1000]], 300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Tokenizer.train([text], 300, template="none")
print(len(text), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no getrusage")
def test_a_vocabulary_is_learned_from_a_long_text_in_bounded_memory() -> None:
    """The library held every word of it as an object of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", TRAINED], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    size, more = map(int, done.stdout.split())
    more *= 1 if sys.platform == "darwin" else 1024
    assert size > 5_000_000
    assert more < 25 * size


def test_blanks_of_a_long_text_become_one_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " \n".join(f"word{n} \t\u00a0 {'x' * (n % 9)}" for n in range(500)) + "\n\n"
    monkeypatch.setattr(sys.modules["heedful.data.split"], "CHUNK", 7)
    assert collapse_blanks(text) == " ".join(text.split())
    assert collapse_blanks(" \n" * 20) == collapse_blanks("") == ""


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "character", "unigram"])
@pytest.mark.parametrize("kwargs", [{"template": "none"}, {"template": "both", "mask": True}, {}], ids=str)
@pytest.mark.full(keep=4)
def test_the_parts_of_a_long_text_give_its_vocabulary(
    kind: Any, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [number * 7919 % 1009 for number in range(4000)]
    text = (
        "\n".join(
            f"{'é' * (n % 3)}word{n % 50} Some other{n % 7}\n\n  in its, 1{n} place.{' ' * (n % 2)}" for n in numbers
        )
        + "\nend"
    )
    whole = Tokenizer.train([text], 400, kind, **kwargs)
    monkeypatch.setattr(tokenizer_training, "PART_LENGTH", 100)
    parts = Tokenizer.train([text], 400, kind, **kwargs)
    if kind != "unigram":  # of which two trainings differ anyway
        assert parts.backend.to_str() == whole.backend.to_str()
    backend = whole.backend
    found, expected = Counter[str](), Counter[str]()
    for count, pieces in (
        (found, [text[start:end] for start, end in part_bounds(text, 100, WORD_PART_END)]),
        (expected, [text]),
    ):
        for piece in pieces:
            normal = piece if backend.normalizer is None else backend.normalizer.normalize_str(piece)
            count.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    if kind != "bpe" or kwargs:  # else a space is put before each text, and a text is learned from whole
        assert found == expected
