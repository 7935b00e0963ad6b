"""Untrusted text as it is shown: nothing hides, nothing turns what stands around it."""

from __future__ import annotations

import unicodedata

import pytest

from heedful.views.page import page
from heedful.views.text import visible

TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # of Unicode's Annex 9


def test_characters_that_turn_a_text_are_shown_by_number() -> None:
    turning = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in TURNS]
    assert len(turning) == len(TURNS)
    for character in [*turning, "\u200e", "\u200f", "\u061c"]:
        shown = visible(f"a{character}b")
        assert shown == f"a<U+{ord(character):04X}>b"
        assert character not in page(f"a{character}b", "")


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\u00ad", "\u2060", "\u200d", "\u200c\u200d"])
def test_invisible_characters_are_shown(text: str) -> None:
    assert visible(text) == "".join(f"<U+{ord(character):04X}>" for character in text)


@pytest.mark.parametrize("text", ["👩\u200d👧", "می\u200cخواهم", "שלום", "🇫🇷", "e\u0301", "❤\ufe0f"])
def test_writing_is_left_as_it_is(text: str) -> None:
    assert visible(text) == text
