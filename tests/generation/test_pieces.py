"""Pieces of text: joined they are the whole, and none is half a character."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from heedful.generation.incremental_text import pieces
from heedful.text import Tokenizer

TEXT = "def naïve(ö): # 日本語 🙂👍🏽\n    return 'ﬁn…'\n\n\tx = 1  "


def utf8(row):
    return bytes(row).decode(errors="replace")


@pytest.mark.parametrize("before", ["", "caf", "é🙂", "x" * 50 + "é" * 20])
def test_whole_characters_only(before):
    made = list(pieces(utf8, before.encode(), (TEXT * 3).encode()))
    assert made == list(TEXT * 3)


def test_incomplete_characters_come_at_the_end():
    assert list(pieces(utf8, b"", b"a\xe2\x82")) == ["a", "�"]
    assert list(pieces(utf8, b"", b"a\xe2\x82b")) == ["a", "�b"]
    assert list(pieces(utf8, b"", "a�b".encode())) == ["a", "�b"]  # a person's own


def test_any_bytes():
    draw = random.Random(0)
    for _ in range(200):
        row = [draw.choice([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82]) for _ in range(90)]
        before = "é".encode() * draw.randrange(30)
        assert "".join(pieces(utf8, before, row)) == utf8(before + bytes(row))[len(utf8(before)) :]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "word", "character"])
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
        assert len(made) > (15 if kind == "word" else 20)


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    """As Llama's: what has no piece of its own is spelled in bytes."""
    tokens = ["<unk>", "</s>", "▁", "a", "▁b", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE({token: place for place, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    backend = Backend(model)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, {"eos_token": "</s>", "unk_token": "<unk>"})


def test_a_run_of_bytes_comes_when_it_is_over(fallback):
    """One byte too few spoils all the characters of its run, so that none may be shown before."""
    decode = lambda row: fallback.decode([row])[0]  # noqa: E731
    bytes_ = lambda text: [5 + byte for byte in text.encode()]  # noqa: E731
    assert list(pieces(decode, [3], [*bytes_("é€"), 3, 4], fallback.byte_tokens)) == ["é€a", " b"]
    assert list(pieces(decode, [3], [*bytes_("é€")[:-1], 3, 4], fallback.byte_tokens)) == ["����a", " b"]
    assert list(pieces(decode, [3], bytes_("🙂" * 20), fallback.byte_tokens)) == ["🙂" * 20]
    assert list(pieces(decode, bytes_("日本語" * 7), [*bytes_("語"), 3], fallback.byte_tokens)) == ["語a"]


def test_any_bytes_of_byte_fallback(fallback):
    decode = lambda row: fallback.decode([row])[0]  # noqa: E731
    draw = random.Random(0)
    for _ in range(300):
        row = []
        while len(row) < 90:
            whole = [5 + byte for byte in draw.choice("éß€語🙂").encode()]
            row += draw.choice([[3], [4], [2], [1], whole, whole, whole * 6, whole[:-1]])
        before = [5 + byte for byte in ("é" * draw.randrange(30)).encode()]
        made = "".join(pieces(decode, before, row, fallback.byte_tokens))
        assert made == decode(before + row)[len(decode(before)) :]


def test_only_byte_fallback_joins_tokens(fallback):
    assert fallback.byte_tokens == {1, *range(5, 261)}
    assert Tokenizer.train([TEXT], 300).byte_tokens == set()


def test_they_come_one_token_at_a_time():
    given = []
    tokens = (given.append(byte) or byte for byte in b"abc")
    made = pieces(utf8, b"", tokens)
    assert (next(made), len(given)) == ("a", 1)
    assert (next(made), len(given)) == ("b", 2)
