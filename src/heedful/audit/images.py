"""Checks of images: sizes, colours, elongated shapes and several frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from heedful.audit.findings import Finding, location, relative_path
from heedful.config import PatchConfig
from heedful.data import Row, Rows, image_folder
from heedful.errors import plural
from heedful.tasks.run_data import unreadable_images
from heedful.tasks.task import Encoded, Task
from heedful.util.escaping import named as escaped_label

SHOWN = 20  # unreadable images that are printed
MAX_RATIO = 4  # ratio of the sides from which a square crop or resize loses most of an image


def without_unreadable_images(
    kind: type[Task], rows: Rows, part: Literal["train", "valid"]
) -> tuple[Rows, list[Finding]]:
    """Returns the rows of a split whose images can be decoded, and a finding on the others, if there are any."""
    unreadable = unreadable_images(kind, rows)
    if not unreadable:
        return rows, []
    left_out = set(map(id, unreadable))
    readable = Rows((row for row in rows if id(row) not in left_out), rows.skipped, rows.columns)
    readable.blank = rows.blank
    readable.inherit_from(rows)
    it = "it" if len(unreadable) == 1 else "them"
    text = f"{plural(len(unreadable), 'image')} missing, empty or broken, which train refuses; copy or download {it} "
    text += f"again, or delete {it}"
    places = list(map(location, unreadable))
    return readable, [Finding("unreadable", "warning", len(unreadable), text, places, part, SHOWN)]


def check_images(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yields findings on the sizes and colours of images, elongated images, and images with several frames."""
    headers = [row.values["image"].header() for row in rows]
    sizes = sorted((header.size for header in headers), key=lambda size: (size[0] * size[1], size))
    smallest, median, largest = map(_size_text, (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    text = smallest
    if smallest != largest:
        text += f" (smallest), {median} (median), {largest} (largest)"
    colours = {
        "grey": sum(not header.colour for header in headers),
        "in colour": sum(header.colour for header in headers),
        "with transparency, shown on white": sum(header.transparent for header in headers),
    }
    text += "; " + ", ".join(f"{count:,} {name}" for name, count in colours.items() if count)
    yield Finding("sizes", "fact", len(set(sizes)), text)
    elongated = [row for row, header in zip(rows, headers, strict=True) if _is_elongated(*header.size)]
    if elongated:
        text = f"{plural(len(elongated), 'image')} of one pixel, or more than {MAX_RATIO} times as long as wide"
        text += "; resized to a square, they show little: crop or remove them"
        yield Finding("shapes", "warning", len(elongated), text, list(map(location, elongated)))
    animated = [row for row, header in zip(rows, headers, strict=True) if header.has_frames]
    if animated:
        text = f"{plural(len(animated), 'image')} with several frames, of which only the first is read"
        text += "; save the other frames as images if needed"
        yield Finding("frames", "warning", len(animated), text, list(map(location, animated)))


def _is_elongated(width: int, height: int) -> bool:
    return width * height == 1 or max(width, height) > MAX_RATIO * min(width, height)


def _size_text(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def check_empty_folders(sources: Sequence[str], split: str) -> Iterator[Finding]:
    """Yields findings on the label folders of a split ("train", "valid") that have no image."""
    empty_folders = []
    for source in filter(os.path.isdir, sources):
        folders = image_folder.split_folders(source)
        empty_folders += image_folder.empty_label_folders(folders.get(split, "") if folders else source)
    if empty_folders:
        names = ", ".join(f"'{escaped_label(Path(folder).name)}'" for folder in empty_folders[:5])
        text = f"{plural(len(empty_folders), 'label folder')} without an image ({names}): these labels are not learned"
        text += "; add images or remove the folders"
        yield Finding("empty", "warning", len(empty_folders), text, [relative_path(path) for path in empty_folders])


def image_sample(task: Task, patches: PatchConfig, encoded: Encoded) -> list[str]:
    """Returns lines that show the model's input for the first image: size, channels and patches."""
    row = encoded.rows[0]
    height, width = patches.image_size
    size = row.values["image"].header().size
    resized = f" resized to {width} × {height}" if size != (width, height) else ""
    patch_count = patches.tokens - patches.prefix_tokens
    prefix = "".join(f" + {token}" for token in patches.prefix.split("+") if token != "none")
    patch_side = patches.patch_size
    escaped_name = escaped_label(Path(row.values["image"].name).name)
    label = escaped_label(str(task.input_and_target(row)[1]))
    line = (
        f"  {escaped_name}, {_size_text(size)}{resized}, {plural(patches.channels, 'channel')}, "
        f"{plural(patch_count, 'patch', 'patches')} of {patch_side} × {patch_side}{prefix} → {label}"
    )
    return ["the first example, as the model gets it", line]
