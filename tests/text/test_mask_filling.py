"""Sentinels in vocabularies, texts with holes, and what is put into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from odd_texts import sentencepiece

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.mask_filling import check_sentinels, fill_sentinels, sentinel_ids, sentinel_spans, span_text

TEXTS = ["The old man met the other man in 1997.", "the theatre, the thesis and the thermos: 3:05 PM", "« là »"] * 3
KINDS = ("bpe", "unigram", "wordpiece", "word", "character")


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS, 400, request.param, sentinels=10)


def test_sentinels_are_the_last_ids_the_first_of_them_the_highest(trained: Tokenizer, tmp_path: Path) -> None:
    size = trained.vocab_size
    assert sentinel_ids(trained) == list(range(size - 1, size - 11, -1))
    assert trained.pieces([size - 1, size - 10]) == ["<extra_id_0>", "<extra_id_9>"]
    assert size <= 400
    assert trained.special == {0, 1, 2, 3, *sentinel_ids(trained)}
    trained.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert sentinel_ids(again) == sentinel_ids(trained)
    text = "the <extra_id_0> man <extra_id_1>"
    assert again.encode([text]) == trained.encode([text])
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == [*trained.encode([text])[0], trained.end]


def test_a_text_with_holes_is_read_as_in_training(trained: Tokenizer) -> None:
    """The tokens of the whole text, but for those of the words that are missing."""
    ids = trained.encode(["the other man in 1997."])[0]
    words = trained.encode(["the"])[0], trained.encode(["the other man"])[0]
    first, last = len(words[0]), len(words[1])
    if trained.pieces([ids[first]]) == [" "]:  # of characters the space is a token of its own, and stays
        first += 1
    hole = sentinel_ids(trained)[0]
    assert trained.encode(["the <extra_id_0> in 1997."])[0] == [*ids[:first], hole, *ids[last:]]
    span = span_text(trained, ids[first:last])
    assert fill_sentinels(trained, "the <extra_id_0> in 1997.", [span]) == "the other man in 1997."


def test_an_empty_span_is_nothing(trained: Tokenizer) -> None:
    assert span_text(trained, []) == span_text(trained, [2, trained.vocab_size - 1]) == ""
    letters = not trained.marks_continuations and "WordLevel" in str(trained.backend.model)  # spaces are their own
    made = fill_sentinels(trained, "The <extra_id_0>, and <extra_id_1>", ["", ""])
    assert made == ("The , and " if letters else "The, and")


def test_of_two_spaces_one_stays() -> None:
    words = Tokenizer.train(TEXTS, 400, sentinels=2)
    assert fill_sentinels(words, "The <extra_id_0> man <extra_id_1>.", ["", " walks"]) == "The man walks."
    assert fill_sentinels(words, "  <extra_id_0>: 5 %  of\tit", [" old"]) == "old: 5 %  of\tit"
    letters = Tokenizer.train(TEXTS, 400, "character", sentinels=2)
    assert fill_sentinels(letters, "The <extra_id_0> man <extra_id_1>.", ["", "walks"]) == "The man walks."
    assert fill_sentinels(letters, "th<extra_id_0>y", ["e"]) == "they"


def test_parts_of_characters_are_written_together() -> None:
    words = Tokenizer.train(["a b"], 400, sentinels=2)
    ids = words.encode([" là"])[0]
    assert len(ids) > 3
    assert span_text(words, ids) == " là"


def test_the_span_of_a_sentinel_follows_it() -> None:
    s = [99, 98, 97]
    assert sentinel_spans([99, 5, 98, 97, 6], s, 2) == [[5], []]
    assert sentinel_spans([98, 5, 99, 6, 99, 7], s, 2) == [[6], [5]]  # in any order; of one that comes again the first
    assert sentinel_spans([4, 98, 5], s, 3) == [[], [5], []]  # what stands before the first is of none
    assert sentinel_spans([], s, 1) == [[]]


def test_sentinels_are_counted_and_wrong_ones_refused() -> None:
    assert check_sentinels("<extra_id_0><extra_id_1> and <extra_id_2>") == 3
    for text, told in {
        "no hole": r"the input has no <extra_id_0>: 'no hole'; write <extra_id_0> where words are missing",
        "a [MASK]": r"the input has no <extra_id_0> \(it has \[MASK\], .*\): 'a \[MASK\]'; write <extra_id_0>",
        "a <extra_id_1>": r"has <extra_id_1> where <extra_id_0> is expected: .*; number .* from 0",
        "<extra_id_0> <extra_id_0>": r"has <extra_id_0> where <extra_id_1> is expected",
    }.items():
        with pytest.raises(HeedfulError, match=told):
            check_sentinels(text)


def test_a_vocabulary_without_sentinels() -> None:
    with pytest.raises(
        HeedfulError, match=r"no <extra_id_0>.*; use a T5 model, or train a new model: heedful train fill-m"
    ):
        sentinel_ids(Tokenizer.train(TEXTS, 300))
    with pytest.raises(HeedfulError, match="a bpe vocabulary of 300 tokens is too small; choose 360 or more"):
        Tokenizer.train(TEXTS, 300, sentinels=100)


def test_a_published_t5_reads_holes_so_too(folder: Callable[[Mapping[str, Any]], Path]) -> None:
    pytest.importorskip("sentencepiece")
    model = sentencepiece(vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    t5 = Tokenizer.load(folder({"config.json": {"model_type": "t5"}, "spiece.model": model}))
    assert len(sentinel_ids(t5)) == 100
    assert sentinel_ids(t5)[0] == t5.vocab_size - 1
    assert set(sentinel_ids(t5)) <= t5.special
    one, two = t5.encode(["the"])[0], t5.encode(["man"])[0]
    assert t5.encode(["the <extra_id_0> man"])[0] == [*one, sentinel_ids(t5)[0], *two]
    assert fill_sentinels(t5, "the <extra_id_0>.", [span_text(t5, two)]) == "the man."
