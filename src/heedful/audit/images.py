"""Checks of images: sizes, colours, odd shapes and several frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.audit.findings import Finding, location, relative_path
from heedful.config import VisionConfig
from heedful.data import Row, image_folder
from heedful.errors import plural
from heedful.tasks.task import Encoded
from heedful.util.escaping import named

MAX_RATIO = 4  # ratio of the sides from which a square crop or resize loses most of an image


def check_images(rows: Sequence[Row]) -> Iterator[Finding]:
    """Reports sizes and colours of images, odd shapes, and images of several frames."""
    heads = [row.values["image"].head() for row in rows]
    sizes = sorted((head.size for head in heads), key=lambda size: (size[0] * size[1], size))
    smallest, median, largest = map(_size_text, (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    text = smallest
    if smallest != largest:
        text += f" at the smallest, {median} in the middle, {largest} at the largest"
    colours = {
        "grey": sum(not head.colour for head in heads),
        "in colour": sum(head.colour for head in heads),
        "with transparency, laid on white": sum(head.transparent for head in heads),
    }
    text += "; " + ", ".join(f"{count:,} {name}" for name, count in colours.items() if count)
    yield Finding("sizes", "fact", len(set(sizes)), text)
    odd = [row for row, head in zip(rows, heads, strict=True) if _odd(*head.size)]
    if odd:
        text = f"{plural(len(odd), 'image')} of one pixel, or more than {MAX_RATIO} times as long as wide"
        text += "; a square shows little"
        yield Finding("shapes", "warning", len(odd), text, list(map(location, odd)))
    animated = [row for row, head in zip(rows, heads, strict=True) if head.moving]
    if animated:
        text = f"{plural(len(animated), 'image')} of several frames, of which only the first is read"
        yield Finding("frames", "warning", len(animated), text, list(map(location, animated)))


def _odd(width: int, height: int) -> bool:
    return width * height == 1 or max(width, height) > MAX_RATIO * min(width, height)


def _size_text(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def check_empty_folders(sources: Sequence[str], split: str) -> Iterator[Finding]:
    """Reports label folders of a split ("train", "valid") without an image."""
    empty = []
    for source in filter(os.path.isdir, sources):
        folders = image_folder.split_folders(source)
        empty += image_folder.empty_label_folders(folders.get(split, "") if folders else source)
    if empty:
        names = ", ".join(f"'{named(Path(folder).name)}'" for folder in empty[:5])
        text = f"{plural(len(empty), 'folder')} without an image ({names}), so that no such label is learned"
        yield Finding("empty", "warning", len(empty), text, [relative_path(folder) for folder in empty])


def image_sample(config: VisionConfig, encoded: Encoded) -> list[str]:
    """Returns lines that show the model's input for the first image: size, channels and patches."""
    row, patches = encoded.rows[0], config.patches
    height, width = patches.image_size
    size = row.values["image"].head().size
    resized = f" resized to {width} × {height}" if size != (width, height) else ""
    count = patches.tokens - patches.prefix_tokens
    prefix = "".join(f" + {token}" for token in patches.prefix.split("+") if token != "none")
    side = patches.patch_size
    name = named(Path(row.values["image"].name).name)
    line = (
        f"  {name}, {_size_text(size)}{resized}, {plural(patches.channels, 'channel')}, "
        f"{plural(count, 'patch', 'patches')} of {side} × {side}{prefix} → {named(row.values['label'])}"
    )
    return ["the first example, as the model is given it", line]
