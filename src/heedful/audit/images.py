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

LONG = 4  # ratio of the sides from which a square crop or resize loses most of an image


def looks(rows: Sequence[Row]) -> Iterator[Finding]:
    """Reports sizes and colours of images, odd shapes, and images of several frames."""
    heads = [row.values["image"].head() for row in rows]
    sizes = sorted({head.size for head in heads}, key=lambda size: (size[0] * size[1], size))
    middle = sorted((head.size for head in heads), key=lambda size: (size[0] * size[1], size))[len(heads) // 2]
    text = _by(sizes[0])
    if len(sizes) > 1:
        text += f" at the smallest, {_by(middle)} in the middle, {_by(sizes[-1])} at the largest"
    colours = {
        "grey": sum(not head.colour for head in heads),
        "in colour": sum(head.colour for head in heads),
        "with what is transparent, laid on white": sum(head.transparent for head in heads),
    }
    text += "; " + ", ".join(f"{count:,} {name}" for name, count in colours.items() if count)
    yield Finding("sizes", "fact", len(sizes), text)
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
    """Reports label folders of a split ("train", "valid") without an image."""
    empty = []
    for source in filter(os.path.isdir, sources):
        parts = image_folder.parts(source)
        empty += image_folder.bare(parts.get(part, "") if parts else source)
    if empty:
        names = ", ".join(f"'{named(Path(folder).name)}'" for folder in empty[:5])
        text = f"{many(len(empty), 'folder')} without an image ({names}), so that no such label is learned"
        yield Finding("empty", "warning", len(empty), text, [relative(folder) for folder in empty])


def pictured(config: VisionConfig, encoded: Encoded) -> list[str]:
    """Returns lines that show the model's input for the first image: size, channels and patches."""
    row, patches = encoded.rows[0], config.patches
    height, width = patches.image_size
    size = row.values["image"].head().size
    resized = f" resized to {width} × {height}" if size != (width, height) else ""
    number = patches.tokens - patches.prefix_tokens
    before = "".join(f" + {token}" for token in patches.prefix.split("+") if token != "none")
    side = patches.patch_size
    line = (
        f"  {named(Path(row.values['image'].name).name)}, {_by(size)}{resized}, {many(patches.channels, 'channel')}, "
        f"{many(number, 'patch', 'patches')} of {side} × {side}{before} → {named(row.values['label'])}"
    )
    return ["the first example, as the model is given it", line]
