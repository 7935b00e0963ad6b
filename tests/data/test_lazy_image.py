"""Pictures: every kind of image becomes the same array, and what is broken is said in one line."""

from __future__ import annotations

import ast
import io
import os
import pickle
import struct
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile, ImageOps, TiffImagePlugin

from heedful.data import LazyImage, image_arrays, lazy_image, read
from heedful.data.lazy_image import as_uint8
from heedful.errors import HeedfulError
from tolerances import assert_close

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (5, 7), dtype=np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def said(thing: Any, name: str | None = None) -> str:
    """The one line that decoding says."""
    with pytest.raises(HeedfulError) as caught:
        LazyImage.of(thing, name).pixels()
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "no remedy"
    return message


def test_every_source_gives_the_same_pixels(tmp_path: Path) -> None:
    image = Image.fromarray(COLOUR)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(image))
    for thing in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), image, COLOUR, Image.open(path)):
        picture = LazyImage.of(thing)
        assert picture.size == (7, 5)
        assert picture.pixels().dtype == np.uint8
        assert np.array_equal(picture.pixels(), COLOUR)
        assert np.array_equal(picture.pixels(3), COLOUR)
        assert np.array_equal(picture.pixels(1)[..., 0], np.asarray(image.convert("L")))
    assert LazyImage.of(path).name == str(path)
    assert LazyImage.of(COLOUR, "a.npz:3").name == "a.npz:3"
    picture = LazyImage.of(COLOUR)
    assert LazyImage.of(picture) is picture


def test_grey_stays_one_channel_and_repeats_to_three() -> None:
    for thing in (GREY, GREY[..., None], encoded(Image.fromarray(GREY)), Image.fromarray(GREY)):
        assert np.array_equal(LazyImage.of(thing).pixels(), GREY[..., None])
        assert np.array_equal(LazyImage.of(thing).pixels(3), np.stack([GREY] * 3, axis=-1))


def test_pixels_are_the_callers_own() -> None:
    kept = COLOUR.copy()
    picture = LazyImage.of(kept)
    picture.pixels()[:] = 0
    assert np.array_equal(picture.pixels(), COLOUR)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation: int) -> None:
    image = Image.fromarray(COLOUR)
    exif = image.getexif()
    exif[0x0112] = orientation
    for form in ("PNG", "JPEG", "WEBP", "TIFF"):
        stored = encoded(image, form, exif=exif)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(stored))))
        picture = LazyImage.of(stored)
        assert np.array_equal(picture.pixels(), expected)
        assert picture.size == expected.shape[1::-1]
    # 6: the camera was held so that the right of the scene lies at the top of the file
    if orientation == 6:
        assert np.array_equal(picture.pixels(), np.rot90(COLOUR, -1))


def test_transparency_becomes_white() -> None:
    alpha = np.tile(np.array([0, 128, 255], np.uint8), (4, 1))
    for channels in (1, 3):
        array = np.dstack([np.full((4, 3), 40, np.uint8)] * channels + [alpha])
        image = Image.fromarray(array)
        for thing in (array, image, encoded(image)):
            pixels = LazyImage.of(thing).pixels()
            assert pixels.shape == (4, 3, channels)
            assert pixels[0, :, 0].tolist() == [255, 147, 40]  # 255 + (40 − 255) · 128 / 255 = 147.1
    indexed = Image.fromarray(np.array([[0, 1]], np.uint8), "L").convert("P")
    indexed.putpalette([10, 20, 30, 200, 0, 0])
    assert LazyImage.of(encoded(indexed)).pixels()[0].tolist() == [[10, 20, 30], [200, 0, 0]]
    assert LazyImage.of(encoded(indexed, transparency=0)).pixels()[0].tolist() == [[255, 255, 255], [200, 0, 0]]


def test_other_colour_spaces_and_depths() -> None:
    deep = np.array([[0, 257, 1000, 65535]], np.uint16)
    for form in ("PNG", "TIFF"):
        assert LazyImage.of(encoded(Image.fromarray(deep), form)).pixels()[0, :, 0].tolist() == [0, 1, 4, 255]
    bits = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert LazyImage.of(encoded(bits)).pixels()[0, :, 0].tolist() == [0, 255]
    red = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    assert LazyImage.of(encoded(red, "TIFF")).pixels()[0, 0].tolist() == [255, 0, 0]
    shares = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert LazyImage.of(encoded(shares, "TIFF")).pixels()[0, :, 0].tolist() == [0, 128, 255]
    assert "values from -1 to 3, more than 16 bits" in said(Image.fromarray(np.array([[-1, 3]], np.int32)))
    frames = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(LazyImage.of(moving).pixels(1)[..., 0], GREY)


def test_values_that_are_taken_and_refused() -> None:
    assert as_uint8(np.array([True, False]), "a").tolist() == [255, 0]
    assert as_uint8(np.array([0, 1, 255], np.int64), "a").tolist() == [0, 1, 255]
    assert as_uint8(np.array([0.0, 0.2, 1.0], np.float16), "a").tolist() == [0, 51, 255]
    assert as_uint8(np.array([0.0, 7.0, 255.0]), "a").tolist() == [0, 7, 255]
    for values in ([-0.5, 0.5], [0.5, 2.5], [0, 256], [0.1, np.nan]):
        with pytest.raises(
            HeedfulError, match=r"the pixels have values from .* in a\.npz; save them as whole numbers from 0 to 255"
        ):
            as_uint8(np.array(values), "a.npz")
    with pytest.raises(HeedfulError, match="the pixels have the type <U1"):
        as_uint8(np.array(["x"]), "a.npz")


def test_equal_images_are_equal_and_hash_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(COLOUR)))
    again = tmp_path / "b.png"
    again.write_bytes(path.read_bytes())
    assert LazyImage.of(path) == LazyImage.of(again) == LazyImage.of(path.read_bytes())
    assert len({LazyImage.of(path), LazyImage.of(again), LazyImage.of(COLOUR), LazyImage.of(COLOUR.copy())}) == 2
    assert LazyImage.of(COLOUR) != LazyImage.of(255 - COLOUR)
    # the same values in another shape are another image
    assert LazyImage.of(GREY).digest_bytes() != LazyImage.of(GREY.reshape(7, 5)).digest_bytes()
    assert LazyImage.of(path).digest_bytes() == path.read_bytes()
    assert pickle.loads(pickle.dumps(LazyImage.of(COLOUR))) == LazyImage.of(COLOUR)


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    picture = LazyImage.of(tmp_path / "absent.png")
    assert "no such file: " in said(picture)
    Image.fromarray(COLOUR).save(tmp_path / "absent.png")
    assert picture.size == (7, 5)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels, and has none."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


WHOLE = encoded(Image.fromarray(RANDOM.integers(0, 256, (40, 40, 3), dtype=np.uint8)))
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the image file is empty, in {path}; copy or download it again"),
    "no image": (b"<html>not found</html>", "not an image of a known format, in {path}; save it as PNG, JPEG"),
    "cut off": (WHOLE[: len(WHOLE) // 2], "the image is broken (image file is truncated), in {path};"),
    "only a head": (WHOLE[:20], ", in {path}; "),
    "rotten": (WHOLE[:41] + bytes(20) + WHOLE[61:], "the image is broken ("),
    "no pixels": (png(0, 5), ", in {path}; "),
    "pixels missing": (png(5, 5), "the image is broken ("),
    "a bomb": (png(40_000, 40_000), "the image is too large to decode (Image size (1600000000 pixels) exceeds limit"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_images_are_errors(tmp_path: Path, case: str) -> None:
    content, expected = BROKEN[case]
    path = tmp_path / "a.png"
    path.write_bytes(content)
    assert expected.replace("{path}", str(path)) in said(path)
    with pytest.raises(HeedfulError) if content else pytest.raises(HeedfulError, match="the image file is empty"):
        LazyImage.of(content, "set.parquet:3").pixels()
    if content:
        assert "in set.parquet:3; " in said(content, "set.parquet:3")


def test_large_images_do_not_warn() -> None:
    """Pillow warns from 89 million pixels on, and refuses twice that."""
    assert LazyImage.of(png(10_000, 10_000)).size == (10_000, 10_000)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_damage_anywhere_gives_pixels_or_one_line(form: str) -> None:
    whole = encoded(Image.fromarray(RANDOM.integers(0, 256, (12, 9, 3), dtype=np.uint8)), form)
    refused = []
    for _ in range(60):
        broken = bytearray(whole[: RANDOM.integers(1, len(whole) + 1)])
        for place in RANDOM.integers(0, len(broken), 4):
            broken[place] = RANDOM.integers(0, 256)
        try:
            assert LazyImage.of(bytes(broken), "a").pixels().ndim == 3
        except HeedfulError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all("in a; " in line and "\n" not in line for line in refused)


def test_damaged_exif_does_not_matter() -> None:
    stored = encoded(Image.fromarray(COLOUR), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01" * 9)
    assert LazyImage.of(stored).size == (7, 5)
    assert LazyImage.of(stored).pixels().shape == (5, 7, 3)


def test_paths_without_images_are_errors(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder, but a file is expected" in said(tmp_path)
    assert "empty" in said("")
    assert "' '" in said(" ")
    assert "int 3 is not an image" in said(3).replace("'", "")
    for shape in ((3,), (2, 2, 5), (1, 2, 2, 3), (0, 4), (3, 0, 3)):
        assert f"an array of shape {shape} is not an image, in x:1;" in said(np.zeros(shape, np.uint8), "x:1")
    assert "0 × 4 pixels" in said(Image.new("RGB", (0, 4)))
    with pytest.raises(HeedfulError, match="2 is not a number of channels"):
        LazyImage.of(COLOUR).pixels(2)  # type: ignore[arg-type]


def test_a_large_png_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (8200, 8200)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(HeedfulError, match=r"8,200 × 8,200 pixels.*large\.png.*smaller"):
        LazyImage.of(tmp_path / "large.png").pixels(3)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize("name", ["a.eps", "a.png"])
def test_no_image_starts_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    program, started = tmp_path / "programs" / "gs", tmp_path / "started"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho $0 >> {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # not looked for yet
    (tmp_path / name).write_bytes(EPS)
    message = said(tmp_path / name)
    assert message.endswith("; save it as PNG, JPEG, WebP, BMP, GIF or TIFF")
    assert "gs" not in message.replace(str(tmp_path), "")
    with pytest.raises(HeedfulError):
        _ = LazyImage.of(EPS).size
    assert not started.exists()


def test_every_image_is_opened_in_named_formats() -> None:
    calls = [
        (path.name, call)
        for path in Path(lazy_image.__file__).parents[1].rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Image.open"
    ]
    assert calls
    assert [name for name, call in calls if "formats" not in {word.arg for word in call.keywords}] == []


def exif_after_pixels(image: Image.Image) -> bytes:
    """A PNG with its EXIF block at the end, as ImageMagick writes it."""
    whole, exif = encoded(image), image.getexif()
    exif[0x0112] = 6
    end = whole.index(b"IEND") - 4
    return whole[:end] + chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + whole[end:]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PNG, EXIF last", "TIFF, turned"])
def test_size_and_pixel_count_need_no_decoding(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.fromarray(COLOUR)
    if form == "PNG, EXIF last":
        stored = exif_after_pixels(image)
    elif form == "TIFF, turned":
        stored = encoded(image, "TIFF", tiffinfo={0x0112: 6}, compression="tiff_deflate")
    else:
        stored = encoded(image, form)
    is_turned, picture = "," in form, LazyImage.of(stored)
    assert picture.pixels().shape[:2] == ((7, 5) if is_turned else (5, 7))
    for kind in (Image.Image, ImageFile.ImageFile, TiffImagePlugin.TiffImageFile):
        monkeypatch.setattr(kind, "load", lambda self: pytest.fail("it was decoded"))
    assert picture.size == ((5, 7) if is_turned else (7, 5))
    assert picture.decoded_pixels == 35


def tiled_tiff(side: int, tile: int, *more: tuple[int, int]) -> bytes:
    """A grey TIFF of one tile of zeros; ``more`` are further tags with their values."""
    data = zlib.compress(bytes(tile * tile))
    tags = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1), *more, (322, tile), (323, tile), (324, 0)]
    tags.append((325, len(data)))
    start = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, start if tag == 324 else value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def test_tiles_larger_than_the_image_count_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = LazyImage.of(tiled_tiff(20, 64))
    assert (picture.size, picture.decoded_pixels) == ((20, 20), 64 * 64)
    assert picture.pixels().shape == (20, 20, 1)
    monkeypatch.setattr(lazy_image, "MAX_PIXELS", 1000)
    assert "20 × 20 pixels or larger tiles" in said(tiled_tiff(20, 64))
    # of two numbers, Pillow might compare the one and its decoder use the other
    for tag in (256, 322):
        assert "a TIFF tag occurs twice" in said(tiled_tiff(20, 16, (tag, 16)))


def test_a_jpeg_of_thousands_of_scans_is_refused() -> None:
    whole = encoded(Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)), "JPEG", progressive=True)
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    count = whole.count(b"\xff\xda")
    few = whole[:-2] + scan * (100 - count) + whole[-2:]
    assert LazyImage.of(few).pixels().shape == (64, 64, 3)
    assert said(whole[:-2] + scan * (101 - count) + whole[-2:], "a.jpg").startswith(
        "the JPEG has more than 100 scans or 10,000 segments, in a.jpg"
    )
    # neither metadata nor what follows the image, as the video of a moving photo, has scans
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 400) + b"\xff\xda" * 200
    assert LazyImage.of(whole[:2] + comment + whole[2:] + b"\xff\xda" * 200).pixels().shape == (64, 64, 3)


def with_metadata(form: str, metadata: bytes, value: int = 0) -> bytes:
    """An image whose file has blocks of metadata before its pixels, or a TIFF with tags of ``value`` items."""
    whole = encoded(Image.fromarray(GREY), form)
    if form == "TIFF":
        tags = [(60000 + number, value) for number in range(2)]
        entries = b"".join(struct.pack("<HHII", tag, 5, count, 8) for tag, count in tags)
        start = struct.unpack_from("<I", whole, 4)[0]
        (count,) = struct.unpack_from("<H", whole, start)
        own = whole[start + 2 : start + 2 + 12 * count]
        head = whole[:4] + struct.pack("<I", len(whole)) + whole[8:]
        return head + struct.pack("<H", count + len(tags)) + own + entries + bytes(4) + metadata
    if form == "WEBP":
        whole = encoded(Image.fromarray(GREY), form, exif=b"Exif\0\0II*\0") + metadata
        return whole[:4] + struct.pack("<I", len(whole) - 8) + whole[8:]
    place = {"PNG": 33, "JPEG": 2, "GIF": 13 + (6 << (whole[10] & 7))}[form]
    return whole[:place] + metadata + whole[place:]


@pytest.mark.parametrize(
    ("form", "metadata", "value", "message"),
    [
        ("PNG", chunk(b"teSt", b"") * (1 << 17), 0, "more than 131,072 chunks"),
        ("JPEG", b"\xff\xe5\0\2" * 10_000, 0, "more than 10,000 segments"),
        ("JPEG", b"\xff\xe1\0\x09Exif\0\0a" * 10_000, 0, "more than 10,000 segments"),
        ("GIF", b"!\xfe\1a\0" * 10_000, 0, "more than 10,000 blocks before"),
        ("GIF", b"!\xfe" + b"\1a" * 10_000 + b"\0", 0, "a comment of more than 10,000 blocks"),
        ("GIF", bytes(10_000), 0, "more than 10,000 blocks before"),
        ("WEBP", b"abcd" + bytes(4), 1 << 17, "more than 131,072 chunks"),
        ("TIFF", bytes(9000), 1001, "TIFF tag 60000 has 1,001 fractions"),
        ("TIFF", bytes(900), 100, "tags are larger than the file"),
    ],
)
def test_endless_metadata_is_refused(form: str, metadata: bytes, value: int, message: str) -> None:
    stored = with_metadata(form, metadata * (value if form == "WEBP" else 1), value)
    assert message in said(stored, "x")
    with pytest.raises(HeedfulError, match="in x"):
        _ = LazyImage.of(stored, "x").size
    few = with_metadata(form, bytes(90) if form == "TIFF" else b"", 3)
    assert LazyImage.of(few).size == (7, 5)


def test_pillow_reads_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.fromarray(COLOUR)
    exif = image.getexif()
    exif[0x0112] = 6
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    monkeypatch.setattr(Image.Exif, "load", lambda *_: pytest.fail("Pillow reads EXIF"))
    for form in ("JPEG", "PNG", "WEBP"):
        picture = LazyImage.of(encoded(image, form, exif=exif, icc_profile=bytes(200)))
        assert (picture.size, picture.pixels().shape) == ((5, 7), (7, 5, 3))
        if form != "WEBP":
            with picture._image() as (opened, orientation):
                assert not {"exif", "icc_profile", "xmp"} & opened.info.keys()
                assert orientation == 6
    for form in ("JPEG", "WEBP"):  # a block of XMP has the orientation where EXIF has none
        turned = LazyImage.of(encoded(image, form, xmp=xmp, lossless=True, quality=100)).pixels()
        assert turned.shape == (7, 5, 3)
        if form == "WEBP":
            assert np.array_equal(turned, np.rot90(COLOUR, 1))


def test_a_large_jpeg_is_decoded_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (800, 400), (200, 100, 50)).save(tmp_path / "photo.jpg")
    assert LazyImage.of(tmp_path / "photo.jpg").pixels(3).shape == (400, 800, 3)
    monkeypatch.setattr(lazy_image, "MAX_PIXELS", 100_000)
    found = LazyImage.of(tmp_path / "photo.jpg").pixels(3)
    assert found.shape == (200, 400, 3)
    assert abs(found.reshape(-1, 3).astype(int) - (200, 100, 50)).max() <= 3


def test_a_pipe_in_the_place_of_an_image_is_never_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(HeedfulError, match=r"pipe\.png is a pipe.*regular file"):
        LazyImage.of(tmp_path / "pipe.png").pixels(3)


def test_pipes_among_images_are_left_out(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / label / "one.png")
    os.mkfifo(tmp_path / "cat" / "two.png")
    rows = read(str(tmp_path), {"image": "image", "label": "label"})
    assert [row.values["label"] for row in rows] == ["cat", "dog"]
    assert (rows.skipped, rows.blank) == (1, [str(tmp_path / "cat" / "two.png")])
    unlabelled = read(str(tmp_path), {"image": "image"})
    assert (len(unlabelled), unlabelled.skipped) == (2, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_moments_are_those_of_all_pixels_together(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (channels, 30, 20), dtype=np.uint8) for _ in range(9)]
    images += [np.full((channels, 30, 20), 7, np.uint8)]
    monkeypatch.setattr(image_arrays, "CHUNK", 64)
    mean, std = image_arrays.channel_moments(iter(images))
    pixels = np.stack(images) / 255
    assert_close(mean, pixels.mean((0, 2, 3)), "layer")
    assert_close(std, pixels.std((0, 2, 3)), "layer")


def test_moments_hold_one_image_at_a_time() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def images() -> Iterator[np.ndarray]:
        for value in range(20):
            assert sum(one() is not None for one in alive) <= 2
            image = np.full((3, 64, 64), value, np.uint8)
            alive.append(weakref.ref(image))
            yield image

    assert image_arrays.channel_moments(images())[0][0] == pytest.approx(9.5 / 255)
