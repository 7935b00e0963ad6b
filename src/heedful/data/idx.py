"""IDX files, as MNIST and its relatives ship: a magic number, the sizes, then the values."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import numpy as np

from heedful.data.text_files import COMPRESSED, opened
from heedful.errors import HeedfulError

USUAL = re.compile(r"(train|t10k|test)-(images|labels)[.-]idx\d-ubyte(\.gz|\.xz|\.zst)?")
PARTS = {"train": "train", "t10k": "test", "test": "test"}
UNSIGNED_BYTES = 8  # of the codes of types, the one in which images and their labels are shipped
PACKED = {b"\x1f\x8b": ".gz", b"\xfd7": ".xz", b"(\xb5": ".zst"}  # how compressed files begin


def usual(folder: str) -> dict[str, tuple[str, str]]:
    """Part → (images, labels), the paths of files that have MNIST's own names; a part with one of two is left out."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(Path(folder).iterdir(), reverse=True):  # reversed: the plain file counts before its .gz
        if match := USUAL.fullmatch(path.name):
            found.setdefault(PARTS[match[1]], {})[match[2]] = str(path)
    whole = {part: (files["images"], files["labels"]) for part, files in found.items() if len(files) == 2}
    return {part: whole[part] for part in ("train", "test") if part in whole}


def read(path: str) -> np.ndarray:
    """The array of unsigned bytes in an IDX file.

    The file is two zero bytes, the code of the type, the number of dimensions, their sizes (32 bits each, the highest
    byte first), then the values in C order. Raises `HeedfulError`, naming the file and what was found, for any other
    beginning or type, and for a file that is cut off or goes on too long.
    """
    with opened(path) as stream:
        content = stream.read()
    if len(content) < 4 or content[:2] != b"\0\0":
        found = f"begins with 0x{content[:4].hex()}" if content else "is empty"
        packed = PACKED.get(content[:2])
        remedy = (
            f"it is compressed, so name it {Path(path).name}{packed}"
            if packed and not path.endswith(COMPRESSED)
            else "give images and labels as MNIST ships them, an image folder, .npz or a table"
        )
        raise HeedfulError(f"{path} {found} and is no IDX file; {remedy}")
    if content[2] != UNSIGNED_BYTES:
        raise HeedfulError(f"values of type 0x{content[2]:02x}, in {path}; store unsigned bytes (type 0x08)")
    head = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], ">u4")) if len(content) >= head else ()
    wanted = prod(shape)
    if not shape or len(content) - head != wanted:
        sizes = f"{' × '.join(map(str, shape))} = {wanted:,}" if shape else f"{content[3]} dimensions"
        raise HeedfulError(
            f"{max(0, len(content) - head):,} values where the head says {sizes}, in {path}; copy or download it again"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
