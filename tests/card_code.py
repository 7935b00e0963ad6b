"""The Python code of a model card, executed beside its folder as a person would paste it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from PIL import Image


def outputs_of_card(folder: Path, image: str = "RGB") -> list[Any]:
    """Returns what each block of Python code in the folder's README.md prints, or the model that it loads.

    ``image.png``, which the code may read, is an image of 32 × 32 pixels in the mode ``image``.
    """
    before = Path.cwd()
    os.chdir(folder.parent)
    try:
        Image.linear_gradient("L").resize((32, 32)).convert(image).save("image.png")
        blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
        return [_executed(block) for block in blocks]
    finally:
        os.chdir(before)


def _executed(code: str) -> Any:
    printed: list[Any] = []
    names: dict[str, Any] = {"print": printed.append}
    exec(compile(code, "README.md", "exec"), names)
    assert len(printed) <= 1
    return printed[0] if printed else names["model"]
