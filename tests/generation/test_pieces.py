"""Pieces of text: joined they are the whole, and none is half a character."""

from __future__ import annotations

import random

import pytest

from heedful.generation.pieces import pieces
from heedful.text import Tokenizer

TEXT = "def naïve(ö): # 日本語 🙂👍🏽\n    return 'ﬁn…'\n\n\tx = 1  "


def utf8(row):
    return bytes(row).decode(errors="replace")


@pytest.mark.parametrize("before", ["", "caf", "é🙂", "x" * 50 + "é" * 20])
def test_whole_characters_only(before):
    made = list(pieces(utf8, before.encode(), (TEXT * 3).encode()))
    assert made == list(TEXT * 3)


def test_what_never_becomes_a_character_comes_at_the_end():
    assert list(pieces(utf8, b"", b"a\xe2\x82")) == ["a", "�"]
    assert list(pieces(utf8, b"", b"a\xe2\x82b")) == ["a", "�b"]
    assert list(pieces(utf8, b"", "a�b".encode())) == ["a", "�b"]  # a person's own


def test_any_bytes():
    draw = random.Random(0)
    for _ in range(200):
        row = [draw.choice([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82]) for _ in range(90)]
        before = "é".encode() * draw.randrange(30)
        assert "".join(pieces(utf8, before, row)) == utf8(before + bytes(row))[len(utf8(before)) :]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character"])
@pytest.mark.parametrize("template", ["none", "end"])
def test_every_kind_of_tokenizer(kind, template):
    tokenizer = Tokenizer.train([TEXT, "the end isn't near. 'tis!"], 400, kind, template=template)
    decode = lambda row: tokenizer.decode([row])[0]  # noqa: E731
    ids = tokenizer.encode([TEXT * 2 + "the end isn't near. 'tis!"])[0]
    for place in (0, 1, 30):
        before = ids[:place]
        if "�" in decode(before):
            continue
        made = list(pieces(decode, before, ids[place:]))
        assert "".join(made) == decode(ids)[len(decode(before)) :]
        assert not any("�" in piece for piece in made)
        assert len(made) > 20


def test_they_come_one_token_at_a_time():
    given = []
    tokens = (given.append(byte) or byte for byte in b"abc")
    made = pieces(utf8, b"", tokens)
    assert (next(made), len(given)) == ("a", 1)
    assert (next(made), len(given)) == ("b", 2)
