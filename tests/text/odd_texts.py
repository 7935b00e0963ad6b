"""Texts that break tokenizers, SentencePiece models of a few lines, and what `transformers` makes of them."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from heedful.text import Tokenizer

LINES = [
    "The old man met the other man in 1997, and the theatre was open.",
    "L'homme âgé a rencontré l'autre homme à 15:05 au théâtre.",
    "A thesis on the thermos: whether the other thing is thicker than that.",
    "Der alte Mann traf den anderen Mann; das Theater hatte geöffnet.",
    "he said 'it's theirs' and they didn't answer (not at once).",
] * 20
ODD = [
    "the man",
    "  two  spaces   within  and around  ",
    "tab\tand\nnew\r\nlines\n\n",
    "",
    "   ",
    "naïve Ångström, e\u0301 as two",
    "日本語のテキスト 한국어",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 an emoji \U0001f600",
    "ﬁne ½ ① Ⅻ １２３ ＡＢＣ",
    "\u00a0no break\u200bzero",
    "▁the ▁▁ man",
    'they didn\'t say "1,997.50" (x)',
    "a" * 120,
    "no character: \uffff.",
    *LINES[:5],
]


def sentencepiece(lines: Iterable[str] = LINES, **options: Any) -> bytes:
    """A SentencePiece model trained on the lines."""
    package = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    return model.getvalue()


def same(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    """Ids, segments and decoded texts, of texts and of pairs, are those of a `transformers` tokenizer."""
    alone, pairs = ours.template(), ours.template(pair=True)
    rows = ours.encode(texts)
    assert [alone.join(row)[0] for row in rows] == theirs(texts)["input_ids"]
    for first, second, a, b in zip(texts, texts[1:], rows, rows[1:], strict=False):
        if second:  # an empty one is no second text there
            pair = theirs(first, second, return_token_type_ids=True)
            assert pairs.join(a, b) == (pair["input_ids"], pair["token_type_ids"])
    assert ours.decode(rows) == [theirs.decode(row, skip_special_tokens=True) for row in rows]


def here_and_saved(folder: Path, tmp_path: Path, texts: list[str], **options: Any) -> Tokenizer:
    """The folder read here and by `transformers`, and what is saved here read by both."""
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.load(folder)
    same(ours, transformers.AutoTokenizer.from_pretrained(folder, **options), texts)
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    same(ours, again, texts)
    assert set(again("the man")) == set(ours.config["model_input_names"])
    loaded = Tokenizer.load(tmp_path / "saved")
    same(loaded, again, texts)
    ids = [(it.start, it.end, it.pad, it.unknown, it.mask) for it in (ours, loaded)]
    assert ids[0] == ids[1]
    return ours
