"""Metadata of image files, of which only the orientation is read; Pillow gets a file without them.

Pillow copies and parses metadata in Python each time it opens a file: a hostile file of 12 MB would take it a minute,
and its older versions many times the file's memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

ORIENTATION = 0x0112  # EXIF tag of the camera's orientation
MAX_BLOCKS = 10_000  # of metadata, of which cameras and editors write up to some hundred
MAX_CHUNKS = 1 << 17  # of a PNG; its pixels are usually in chunks of 8 KiB or more
MAX_RATIONALS = 1000  # fractions of a tag, which take Pillow 50 times their bytes
PNG_START, EXIF_START, XMP_START = b"\x89PNG\r\n\x1a\n", b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
XMP_TEXT = b"XML:com.adobe.xmp\0"
TIFF_START = re.compile(rb"II|MM")
# chunks of a PNG and segments of a JPEG without which its pixels are others
PNG_KEPT = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL", b"fcTL"})
JPEG_KEPT = frozenset({*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xDB, 0xE0), 0xE0, 0xEE})
JPEG_SCAN, JPEG_EXIF = 0xDA, 0xE1
JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xDA)})  # markers without a length
JPEG_MARKER = re.compile(rb"\xff([^\x00\xff])")
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
SUB_DIRECTORIES = frozenset({34665, 34853, 40965})  # TIFF tags that point to directories: EXIF, GPS, interoperability
SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)  # bytes of a value, by TIFF's number of its type
WHOLE = {1: "B", 3: "H", 4: "I"}  # types of TIFF for whole numbers


class PlainImage(NamedTuple):
    """An image file without metadata, and its orientation (1 to 8); None for a TIFF, which Pillow turns."""

    content: bytes
    orientation: int | None


def without_metadata(content: bytes) -> PlainImage:
    """Returns an image file without its metadata, and its orientation.

    Raises ``ValueError`` or ``struct.error`` for a damaged file, and for one with more metadata than images have.
    """
    if content.startswith(PNG_START):
        return _of_png(content)
    if content.startswith(b"\xff\xd8\xff"):
        return _of_jpeg(content)
    if content.startswith(b"GIF8"):
        _check_gif(content)
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        blocks = dict(_webp_chunks(content))
        return PlainImage(content, _orientation(blocks.get(b"EXIF", b""), blocks.get(b"XMP ", b"")))
    elif TIFF_START.match(content) and {42, 43} & {*content[2:4]}:
        _check_tags(content)
        return PlainImage(content, None)
    return PlainImage(content, 1)


def _of_png(content: bytes) -> PlainImage:
    kept, place, exif, xmp = [PNG_START], len(PNG_START), b"", b""
    for _ in range(MAX_CHUNKS):
        if place + 8 > len(content):
            return PlainImage(b"".join((*kept, content[place:])), _orientation(exif, xmp))
        length, kind = struct.unpack_from(">I4s", content, place)
        end = place + 12 + length
        if kind in PNG_KEPT:
            kept.append(content[place:end])
        elif kind == b"eXIf":
            exif = exif or content[place + 8 : end - 4]
        elif kind == b"iTXt" and content.startswith(XMP_TEXT, place + 8):
            xmp = xmp or content[place + 8 : end - 4]
        place = end
    raise ValueError(f"it has more than {MAX_CHUNKS:,} chunks")


def _of_jpeg(content: bytes) -> PlainImage:
    kept, place, xmp = [content[:2]], 2, b""
    exif: list[bytes] = []
    for _ in range(MAX_BLOCKS):
        marker = JPEG_MARKER.search(content, place)
        if marker is None or marker[1][0] == JPEG_SCAN:
            rest = b"" if marker is None else content[marker.start() :]
            return PlainImage(b"".join((*kept, rest)), _orientation(b"".join(exif), xmp))
        kind, place = marker[1][0], marker.end()
        if kind in JPEG_ALONE:
            continue
        start, place = place + 2, place + max(2, int.from_bytes(content[place : place + 2]))
        if kind in JPEG_KEPT:
            kept.append(content[marker.start() : place])
        elif kind == JPEG_EXIF and content.startswith(EXIF_START, start):
            exif.append(content[start + len(EXIF_START) : place])
        elif kind == JPEG_EXIF and content.startswith(XMP_START, start):
            xmp = content[start + len(XMP_START) : place]
    raise ValueError(f"it has more than {MAX_BLOCKS:,} segments before its pixels")


def _webp_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields (kind, data) of the metadata of a WebP file."""
    place = 12
    for _ in range(MAX_CHUNKS):
        if place + 8 > len(content):
            return
        kind, length = struct.unpack_from("<4sI", content, place)
        if kind in (b"EXIF", b"XMP "):
            yield kind, content[place + 8 : place + 8 + length]
        place += 8 + length + length % 2
    raise ValueError(f"it has more than {MAX_CHUNKS:,} chunks")


def _check_gif(content: bytes) -> None:
    """Raises ``ValueError`` for a GIF with too many blocks before its first image."""
    has_palette, bits = content[10:11] > b"\x7f", (content[10] & 7) + 1 if len(content) > 10 else 0
    place = 13 + (3 << bits if has_palette else 0)
    for _ in range(MAX_BLOCKS):
        if content[place : place + 1] in (b"", b",", b";"):
            return
        if content[place] != ord("!"):  # Pillow skips what is no block
            place += 1
            continue
        place += 2
        for _ in range(MAX_BLOCKS):
            length = content[place] if place < len(content) else 0
            place += 1 + length
            if not length:
                break
        else:
            break
    else:
        raise ValueError(f"it has more than {MAX_BLOCKS:,} blocks before its first image")
    raise ValueError(f"it has a comment of more than {MAX_BLOCKS:,} blocks")


# ----------------------------------------------------------------------------------------------------------- TIFF tags


class _Tag(NamedTuple):
    """Entry of a directory of a TIFF: its number of values, and the place of its value or of the value's offset."""

    number: int
    kind: int
    length: int
    place: int


def _tags(content: bytes, start: int | None = None) -> tuple[str, bool, list[_Tag]]:
    """Returns the byte order, True for a BigTIFF, and the tags of a directory; of the first one by default."""
    order, is_big = "<" if content[:2] == b"II" else ">", 43 in content[2:4]
    if start is None:
        start, *_ = struct.unpack_from(order + ("8xQ" if is_big else "4xI"), content)
    count, *_ = struct.unpack_from(order + ("Q" if is_big else "H"), content, start)
    first, size = (start + 8, 20) if is_big else (start + 2, 12)
    if count > MAX_BLOCKS:
        raise ValueError(f"it has {count:,} TIFF tags, more than {MAX_BLOCKS:,}")
    entry, value = struct.Struct(order + ("HHQ" if is_big else "HHI")), size * 3 // 5 if is_big else 8
    places = range(first, first + count * size, size)
    return order, is_big, [_Tag._make((*entry.unpack_from(content, place), place + value)) for place in places]


def _check_tags(content: bytes) -> None:
    """Raises ``ValueError`` for a TIFF with a tag twice, of which Pillow and its decoder may read different ones, and
    for tags that are larger than the file, since they share bytes, or that hold many fractions.
    """
    waiting: list[int | None] = [None]
    total = 0
    for start in waiting:
        order, is_big, tags = _tags(content, start)
        if len({tag.number for tag in tags}) < len(tags):
            raise ValueError("a TIFF tag occurs twice")
        for tag in tags:
            size = SIZES[tag.kind] if tag.kind < len(SIZES) else 0
            total += size * tag.length
            if size == 8 and tag.kind in (5, 10) and tag.length > MAX_RATIONALS:
                raise ValueError(f"TIFF tag {tag.number} has {tag.length:,} fractions, more than {MAX_RATIONALS:,}")
            if tag.number in SUB_DIRECTORIES and start is None and size:
                waiting += struct.unpack_from(order + ("Q" if is_big and size == 8 else "I"), content, tag.place)
    if total > len(content):
        raise ValueError("its TIFF tags are larger than the file")


def _orientation(exif: bytes, xmp: bytes) -> int:
    """Returns the orientation in an EXIF block, else that of XMP; 1 (upright) for damaged ones, as some cameras write.

    >>> _orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\1\\x01\\x12\\0\\3\\0\\0\\0\\1\\0\\6\\0\\0\\0\\0\\0\\0", b"")
    6
    """
    exif = exif.removeprefix(EXIF_START)
    try:
        order, _, tags = _tags(exif)
        for tag in tags:
            if tag.number == ORIENTATION and tag.kind in WHOLE:
                return int(struct.unpack_from(order + WHOLE[tag.kind], exif, tag.place)[0])
    except (ValueError, struct.error):
        pass
    match = XMP_ORIENTATION.search(xmp)
    return 1 if match is None else int(match[1])
