"""Findings of the audit on images: sizes, colors, shapes, frames and folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful import cli
from heedful.audit.audit import Audit, audit
from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.settings import ImageSettings, RunSettings


def image(folder: Path, name: str, size: tuple[int, int], mode: str = "RGB", seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    width, height = size
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, channels), dtype=np.uint8)
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(folder / name)
    return folder / name


def pictures(folder: Path) -> Path:
    for seed in range(16):
        image(folder / "ab"[seed % 2], f"{seed}.png", (16, 16), seed=seed)
    return folder


def audited(folder: Path, *valid: Path, size: int | None = 16) -> Audit:
    held = tuple(map(str, valid)) or None
    settings = RunSettings(
        "image-classification", train=(str(folder),), valid=held, out="-", image=ImageSettings(size=size)
    )
    return audit(settings)


def told(result: Audit, part: str = "train") -> dict[str, tuple[str, int, str, list[str]]]:
    return {
        one.name: (one.level, one.count, one.text, [Path(place).name for place in one.places])
        for one in result.findings
        if one.part == part
    }


def test_images_that_are_alike(tmp_path: Path) -> None:
    result = audited(pictures(tmp_path / "set"), pictures(tmp_path / "held"))
    assert told(result)["sizes"][2] == "16 × 16; 16 in colour"
    assert told(result, "valid")["sizes"][2] == "16 × 16; 16 in colour"
    assert not {"lengths", "shapes", "frames", "empty", "truncation"} & set(told(result))
    assert result.sample[1:] == ["  0.png, 16 × 16, 3 channels, 16 patches of 4 × 4 + class → a"]


def test_sizes_shapes_and_colours(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set")
    image(folder / "a", "100.png", (20, 20), "L")
    image(folder / "a", "101.png", (30, 20), "RGBA")
    image(folder / "b", "102.png", (1, 1))
    image(folder / "b", "103.png", (81, 20))
    image(folder / "b", "104.png", (80, 20))
    image(folder / "b", "105.png", (20, 200))
    found = told(audited(folder, pictures(tmp_path / "held")))
    assert found["sizes"][2] == (
        "1 × 1 (smallest), 16 × 16 (median), 20 × 200 (largest); 1 grey, 21 in colour, "
        "1 with transparency, shown on white"
    )
    assert found["shapes"][:2] == ("warning", 3)
    assert found["shapes"][3] == ["102.png:1", "103.png:1", "105.png:1"]
    (first,) = audited(folder, pictures(tmp_path / "held"), size=8).sample[1:]
    assert "16 × 16 resized to 8 × 8" in first


def test_frames_and_folders(tmp_path: Path) -> None:
    folder, held = pictures(tmp_path / "set"), pictures(tmp_path / "held")
    frames = [Image.open(image(tmp_path, f"{n}.png", (16, 16), seed=50 + n)) for n in range(3)]
    frames[0].save(folder / "b" / "moving.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "b" / "still.gif")
    (folder / "c" / "deeper").mkdir(parents=True)
    (folder / "c" / "notes.txt").write_text("no image")
    (folder / ".hidden").mkdir()
    (held / "d").mkdir()
    result = audited(folder, held)
    assert told(result)["frames"] == (
        "warning",
        1,
        "1 image with several frames, of which only the first is read; save the other frames as images if needed",
        ["moving.gif:1"],
    )
    assert told(result)["empty"][:2] == ("warning", 1)
    assert told(result)["empty"][3] == ["c"]
    assert told(result, "valid")["empty"][3] == ["d"]


def broken(folder: Path) -> list[Path]:
    """Makes four images of a folder unreadable: not an image, empty, and cut in its middle or at its end."""
    files = [folder / "a" / "0.png", *(folder / "b" / f"{number}.png" for number in (3, 5, 7))]
    cut = files[2].read_bytes()[:400], files[3].read_bytes()[:-60]
    for file, content in zip(files, (b"oh", b"", *cut), strict=True):
        file.write_bytes(content)
    return files


def test_unreadable_images_are_listed_and_left_out(tmp_path: Path) -> None:
    folder, held = pictures(tmp_path / "set"), pictures(tmp_path / "held")
    whole = told(audited(folder, held))
    assert "unreadable" not in whole
    broken(folder)
    (held / "a" / "2.png").write_bytes(b"")
    result = audited(folder, held)
    assert (result.examples, result.validation_examples, result.ok) == (12, 15, False)
    names = ["0.png:1", "3.png:1", "5.png:1", "7.png:1"]
    assert told(result)["unreadable"] == (
        "warning",
        4,
        "4 images missing, empty or broken, which train refuses; copy or download them again, or delete them",
        names,
    )
    line = next(line for line in result.lines() if "unreadable" in line)
    assert all(name in line for name in names)
    assert told(result, "valid")["unreadable"][1:] == (
        1,
        "1 image missing, empty or broken, which train refuses; copy or download it again, or delete it",
        ["2.png:1"],
    )
    assert told(result)["sizes"][2] == "16 × 16; 12 in colour"


def test_an_audit_without_a_readable_image_is_an_error(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set")
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"oh" + file.name.encode())
    with pytest.raises(HeedfulError, match="not an image of a known format"):
        audited(folder, pictures(tmp_path / "held"))


def test_training_refuses_and_counts_unreadable_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, held = pictures(tmp_path / "set"), pictures(tmp_path / "held")
    command = ["train", "image-classification", "--train", str(folder), "--valid", str(held), "--max-steps", "1"]
    (held / "a" / "2.png").write_bytes(b"")
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"heedful: the image file is empty, in {held / 'a' / '2.png'}; copy or download it again"
    first = broken(folder)[0]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("heedful: 5 images cannot be read, which heedful audit lists; the file is not an image of")
    assert str(first) in error


def test_the_parts_of_one_folder(tmp_path: Path) -> None:
    pictures(tmp_path / "set" / "train")
    pictures(tmp_path / "set" / "valid")
    (tmp_path / "set" / "valid" / "e").mkdir()
    result = audited(tmp_path / "set")
    assert "empty" not in told(result)
    assert told(result, "valid")["empty"][3] == ["e"]
    divided = pictures(tmp_path / "one")
    (divided / "c").mkdir()
    result = audited(divided)
    assert told(result)["empty"][3] == ["c"]
    assert "empty" not in told(result, "valid")


def test_labels_of_images_that_validation_alone_has(tmp_path: Path) -> None:
    held = pictures(tmp_path / "held")
    image(held / "z", "1.png", (16, 16), seed=99)
    found = told(audited(pictures(tmp_path / "set"), held), "valid")
    assert (found["unseen labels"][:2], found["unseen labels"][3]) == (("warning", 1), ["1.png:1"])


@pytest.mark.parametrize(
    ("mode", "colour", "transparent"),
    [("L", False, False), ("LA", False, True), ("P", True, False), ("I;16", False, False)],
)
def test_the_head_of_an_image(tmp_path: Path, mode: str, colour: bool, transparent: bool) -> None:
    Image.new(mode, (3, 2)).save(tmp_path / "x.png")
    head = LazyImage.of(tmp_path / "x.png").header()
    assert head == ((3, 2), colour, transparent, False)
    assert LazyImage.of(np.zeros((2, 3), dtype=np.uint8)).header() == ((3, 2), False, False, False)
