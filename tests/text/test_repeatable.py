"""The same texts give the same vocabulary, whatever order the library's tables are in; unigram's alone may differ."""

from __future__ import annotations

import itertools

import pytest

from heedful.text import Tokenizer

LETTERS = "abcdefghijklmnop"
# many pieces of equal frequency: nothing but order decides between them
TEXTS = [" ".join(map("".join, itertools.islice(itertools.permutations(LETTERS[i : i + 4]), 24))) for i in range(12)]
TEXTS += ["Ärger über Öl, 日本語 и русский.", "one ##two [three]"]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("size", [300, 420])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "word", "character"])
def test_training_again_gives_the_same_vocabulary(kind: str, size: int, lowercase: bool) -> None:
    made = {Tokenizer.train(TEXTS, size, kind, lowercase, "both").backend.to_str() for _ in range(4)}
    assert len(made) == 1


def test_letters_within_a_word_are_no_special_tokens() -> None:
    tokenizer = Tokenizer.train(TEXTS, 300, "wordpiece", template="both")
    added = {token.content for token in tokenizer.backend.get_added_tokens_decoder().values()}
    assert added == {"<pad>", "<s>", "</s>", "<unk>"}
    assert tokenizer.vocab_size <= 300
    assert [tokenizer.backend.token_to_id(name) for name in ("<pad>", "<s>", "</s>", "<unk>")] == [0, 1, 2, 3]
    (ids,) = tokenizer.encode(["x ##b"])
    assert tokenizer.decode([ids]) != ["xb"]


def test_an_alphabet_larger_than_wordpiece_keeps() -> None:
    texts = [" ".join(chr(0x4E00 + i * 7 + j) + chr(0x3041 + j) for j in range(20)) for i in range(300)]
    made = {Tokenizer.train(texts, 1500, "wordpiece").backend.to_str() for _ in range(3)}
    assert len(made) == 1
