"""Vocabularies with a mask, words made of tokens, and texts filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.mask_filling import check_has_mask, fill_masks, mask_token
from heedful.text.word_boundaries import word_joints

TEXTS = [
    "The old man met the other man in 1997.",
    "the theatre, the thesis and the thermos: 3:05 PM",
    "<s> stands in the text, and so does </s>",
    "a café is où on boit, « là »",
] * 3
KINDS = ("bpe", "unigram", "wordpiece", "word", "character")


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS, 400, request.param, template="both", mask=True)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, by the table."""
    table, ids = word_joints(tokenizer), tokenizer.encode([text])[0]
    made: list[str] = []
    for place, (token, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True)):
        if place and table.after[ids[place - 1]] and table.before[token]:
            made[-1] += piece
        else:
            made.append(piece)
    return [word.strip() for word in made if word.strip()]


def test_the_mask_is_id_4_and_others_have_none(trained: Tokenizer) -> None:
    assert (trained.pad, trained.start, trained.end, trained.unknown, trained.mask) == (0, 1, 2, 3, 4)
    assert trained.special == {0, 1, 2, 3, 4}
    assert trained.config["mask_token"] == "<mask>"
    assert mask_token(trained) == ("<mask>", 4)
    plain = Tokenizer.train(TEXTS, 400)
    assert plain.mask is None
    assert "mask_token" not in plain.config
    with pytest.raises(HeedfulError, match=r"no mask token .*; use another model, or train one with heedful train fi"):
        mask_token(plain)


def test_the_mask_may_be_written_and_so_may_the_others(trained: Tokenizer) -> None:
    ids = trained.encode(["the <mask> man</s><mask>"])[0]
    assert [token for token in ids if token < 5 and token != 3] == [4, 2, 4]
    assert trained.pieces([4, 2]) == ["<mask>", "</s>"]
    assert "man" in trained.decode([ids])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["the old <mask> met", "the old man <mask>, the", "<mask> old man", "man <mask>"])
def test_around_a_mask_stands_what_stands_around_a_word(kind: Any, text: str) -> None:
    """The ids around a mask are those around a word in its place."""
    tokenizer = Tokenizer.train(TEXTS, 400, kind, template="both", mask=True)
    asked, whole = tokenizer.encode([text, text.replace("<mask>", "thesis")])
    place = asked.index(4)
    before, after = asked[:place], asked[place + 1 :]
    assert whole[: len(before)] == before
    assert after == whole[len(whole) - len(after) :]


def test_a_vocabulary_too_small_for_the_mask() -> None:
    with pytest.raises(HeedfulError, match="a bpe vocabulary of 260 tokens is too small; choose 261 or more"):
        Tokenizer.train(TEXTS, 260, mask=True)


def test_transformers_reads_the_same_ids_and_knows_the_mask(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.mask_token, theirs.mask_token_id) == ("<mask>", 4)
    texts = ["the old <mask> met the <mask>.", "</s> <pad> the man", "<mask>", " the man"]
    assert [ids[1:-1] for ids in theirs(texts)["input_ids"]] == trained.encode(texts)
    again = Tokenizer.load(tmp_path)
    assert again.encode(texts) == trained.encode(texts)
    assert again.mask == 4


def test_words_are_the_same_in_every_vocabulary(trained: Tokenizer) -> None:
    found = words(trained, "The thermos, in 1997: the café « old » man.")
    assert found == ["The", "thermos", ",", "in", "1997", ":", "the", "café", "«", "old", "»", "man", "."]


def test_words_of_scripts_without_spaces_are_their_tokens() -> None:
    tokenizer = Tokenizer.train(["日本語の本を読む"] * 3, 30, "character", mask=True)
    assert words(tokenizer, "日本語") == ["日", "本", "語"]


def test_parts_of_a_character_are_of_one_word() -> None:
    tokenizer = Tokenizer.train(["one text"], 300, mask=True)  # é is two bytes
    assert len(tokenizer.encode(["é"])[0]) == 2
    assert words(tokenizer, "one éte!")[1:] == ["<0xC3><0xA9>te", "!"]


@pytest.mark.parametrize(
    ("kind", "text", "word", "expected"),
    [
        ("bpe", "the old <mask> met", " man", "the old man met"),
        ("bpe", "<mask> met", " man", "man met"),
        ("bpe", "the   <mask>.", "man", "theman."),
        ("wordpiece", "(<mask>) met,  twice", "man", "(man) met,  twice"),
        ("wordpiece", "the <mask> <mask>", "man", "the man <mask>"),
        ("unigram", "the old <mask>, met", " the", "the old the, met"),
        ("character", "the m<mask>n", "a", "the man"),
        ("character", "the<mask>man", " ", "the man"),
    ],
)
def test_a_word_takes_the_masks_place(kind: Any, text: str, word: str, expected: str) -> None:
    tokenizer = Tokenizer.train([*TEXTS, "man man man theman"] * 3, 400, kind, template="both", mask=True)
    (token,) = [
        i
        for i in range(5, tokenizer.vocab_size)
        if tokenizer.pieces([i])[0] == (f" {word}" if kind == "wordpiece" else word)
    ]
    blanks = text.count("<mask>")
    assert fill_masks(tokenizer, text, [token, *[None] * (blanks - 1)]) == expected


def test_continuations_of_a_word_follow_it() -> None:
    tokenizer = Tokenizer.train(["play plays playing played"] * 3, 40, "wordpiece", mask=True)
    token = tokenizer.backend.token_to_id("##s")
    assert fill_masks(tokenizer, "play <mask> here", [token]) == "plays here"


def test_a_text_without_a_mask_is_an_error_that_names_it() -> None:
    check_has_mask("the <mask>", "<mask>")
    with pytest.raises(HeedfulError) as told:
        check_has_mask("the [MASK]", "<mask>", 3, 5)
    problem = "input 3 has no <mask> (it has [MASK], which this model does not use): 'the [MASK]'"
    assert str(told.value) == f"{problem}; write <mask> where a word is missing"
    with pytest.raises(HeedfulError, match=r"the input has no \[MASK\]: 'the man'; write \[MASK\] where"):
        check_has_mask("the man", "[MASK]")
