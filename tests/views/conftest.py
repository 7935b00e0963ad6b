"""A real browser, and the pixels of small maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from browser_pages import browser, open_address, open_page, until

__all__ = ["browser", "open_address", "open_page", "until"]


@pytest.fixture
def shades() -> Callable[[Any], NDArray[np.float64]]:
    """Reads a small map in light: each pixel's share of the way from the colour of nothing (white) to that of all."""

    def read(canvas: Any) -> NDArray[np.float64]:
        high, wide, red = canvas.evaluate(
            """canvas => {
                const { width, height } = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
                return [height, width, [...Array(width * height).keys()].map(i => data[4 * i])];
            }"""
        )
        return (255 - np.array(red, dtype=np.float64).reshape(high, wide)) / (255 - 0x3A)

    return read
