"""Rules for all figures: the contrast of colors (WCAG 2.2, relative luminance)."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.views.svg import ink

# the ground of a cell, its full colour (of positive and of negative values), the usual ink and the other
LIGHT = ("f0eee8", ("3a3fb0", "b3461f"), "22201d", "ffffff")
DARK = ("22242b", ("ffc35c", "ff8f6b"), "ecebe7", "16171b")


def colour(code):
    return np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)])


def luminance(rgb):
    linear = np.where(rgb / 255 <= 0.04045, rgb / 255 / 12.92, ((rgb / 255 + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("negative", [False, True])
def test_a_number_has_the_ink_that_reads_better_on_its_shade(negative):
    for share in np.linspace(0, 1, 101):
        wanted = []
        for ground, cells, usual, other in (LIGHT, DARK):
            shade = colour(ground) + share * (colour(cells[negative]) - colour(ground))
            usual, other = contrast(shade, colour(usual)), contrast(shade, colour(other))
            wanted.append(other > usual if abs(other - usual) > 0.1 else None)  # where either will do, either may be
            assert max(usual, other) > 3.5
        light, dark = wanted
        given = ink(share, negative)
        assert light is None or (given == " deep") == light, share
        assert dark is None or (given != "") == dark, share
