"""Checks of images: sizes, colours, odd shapes and several frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.audit.findings import Finding, place, relative
from heedful.config import VisionConfig
from heedful.data import Row, image_folder
from heedful.errors import many
from heedful.tasks.task import Encoded
from heedful.util.escaping import named

LONG = 4  # times as long as wide, from which a square shows little of an image


def looks(rows: Sequence[Row]) -> Iterator[Finding]:
    """The sizes and the colours of images; those of odd shape, and those of which only a part is read."""
    heads = [row.values["image"].head() for row in rows]
    sizes = sorted({head.size for head in heads}, key=lambda size: (size[0] * size[1], size))
    middle = sorted((head.size for head in heads), key=lambda size: (size[0] * size[1], size))[len(heads) // 2]
    told = _by(sizes[0])
    if len(sizes) > 1:
        told += f" at the smallest, {_by(middle)} in the middle, {_by(sizes[-1])} at the largest"
    colours = {
        "grey": sum(not head.colour for head in heads),
        "in colour": sum(head.colour for head in heads),
        "with what is transparent, laid on white": sum(head.transparent for head in heads),
    }
    told += "; " + ", ".join(f"{count:,} {what}" for what, count in colours.items() if count)
    yield Finding("sizes", "fact", len(sizes), told)
    odd = [row for row, head in zip(rows, heads, strict=True) if _odd(*head.size)]
    if odd:
        text = (
            f"{many(len(odd), 'image')} of one pixel, or more than {LONG} times as long as wide; a square shows little"
        )
        yield Finding("shapes", "warning", len(odd), text, list(map(place, odd)))
    moving = [row for row, head in zip(rows, heads, strict=True) if head.moving]
    if moving:
        text = f"{many(len(moving), 'image')} of several frames, of which the first alone is read"
        yield Finding("frames", "warning", len(moving), text, list(map(place, moving)))


def _odd(width: int, height: int) -> bool:
    return width * height == 1 or max(width, height) > LONG * min(width, height)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def bare(sources: Sequence[str], part: str) -> Iterator[Finding]:
    """The folders of a ``part`` ("train", "valid") that name a label and hold no image."""
    found = []
    for source in filter(os.path.isdir, sources):
        parts = image_folder.parts(source)
        found += image_folder.bare(parts.get(part, "") if parts else source)
    if found:
        names = ", ".join(f"'{named(Path(folder).name)}'" for folder in found[:5])
        text = f"{many(len(found), 'folder')} without an image ({names}), so that no such label is learned"
        yield Finding("empty", "warning", len(found), text, [relative(folder) for folder in found])


def pictured(config: VisionConfig, encoded: Encoded) -> list[str]:
    """What the model is given of the first image: its size, its channels and its patches."""
    row, patches = encoded.rows[0], config.patches
    height, width = patches.image_size
    size = row.values["image"].head().size
    made = f" resized to {width} × {height}" if size != (width, height) else ""
    number = patches.tokens - patches.prefix_tokens
    before = "".join(f" + {each}" for each in patches.prefix.split("+") if each != "none")
    side = patches.patch_size
    line = (
        f"  {named(Path(row.values['image'].name).name)}, {_by(size)}{made}, {many(patches.channels, 'channel')}, "
        f"{many(number, 'patch', 'patches')} of {side} × {side}{before} → {named(row.values['label'])}"
    )
    return ["the first example, as the model is given it", line]
