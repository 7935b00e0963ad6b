"""A text encoded word by word, each word once: the ids of the whole, or the text is not cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heedful.text import Tokenizer, bulk_encoding
from heedful.text.bulk_encoding import WORD_PATTERNS, WordCache

CODE = Path(bulk_encoding.__file__).read_text(encoding="utf-8")
SIGNS = [*"abAB12.,'-(\"\n\n   \t\r#", "\u00a0", "\x1c", "\u2003", "\x85", "\u3000", "é", "Σ", "ς", "漢", "한", "ﬁ"]
SIGNS += ["e\u0301", "\u0300", "\u200d", "👩\u200d👩", "\ufeff", "</s>", "<mask>", "<extra_id_0>", "[SEP]", "'s", "##"]
# how GPT-4 and Llama 3 cut: what is no word takes the line's end behind it
NEWER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
NEWER += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(SIGNS, k=draw.randrange(1, 40))) for _ in range(count)]


def check(tokenizer: Tokenizer) -> None:
    words = WordCache(tokenizer)
    assert words.is_exact
    made = [*texts(400), CODE]
    assert [words.encode(text).tolist() for text in made] == tokenizer.encode(made)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "character", "unigram", "word", "wordpiece"])
def test_words_joined_are_the_text(kind: str, mask: bool) -> None:
    check(Tokenizer.train([CODE], 400, kind, template="none", mask=mask))  # type: ignore[arg-type]


def test_sentinels_and_lower_case() -> None:
    check(Tokenizer.train([CODE], 400, sentinels=3))
    check(Tokenizer.train([CODE, "ΝΑΥΣ"], 400, lowercase=True, template="none"))


@pytest.mark.parametrize("name", ["bert-tiny-question", "minilm-l6"])
def test_published_tokenizers(name: str, shared_data: Callable[[str], Path]) -> None:
    check(Tokenizer.load(shared_data(f"weights/{name}")))


def learned(pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> Tokenizer:
    backend = Backend(models.BPE())
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([CODE, *texts(200)], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    return Tokenizer(backend, {})


def test_where_a_line_end_goes_with_what_stands_before_it_no_line_is_cut() -> None:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = learned(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(NEWER), "isolated"), level]))
    check(tokenizer)
    assert WordCache(tokenizer)._pattern is WORD_PATTERNS[1]


@pytest.mark.parametrize("split", [None, pre_tokenizers.Split("\n", "isolated")], ids=["nowhere", "lines"])
def test_a_tokenizer_whose_tokens_reach_over_words_is_not_cut(split: pre_tokenizers.PreTokenizer | None) -> None:
    assert not WordCache(learned(split)).is_exact


def test_a_tokenizer_that_puts_a_space_before_each_text_is_not_cut() -> None:
    assert not WordCache(Tokenizer.train([CODE], 400)).is_exact


def test_an_added_token_with_a_space_in_it_is_found() -> None:
    tokenizer = Tokenizer.train([CODE], 400, template="none")
    tokenizer.add(["two words"])
    assert not WordCache(tokenizer).is_exact


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_encoding, "MAX_CACHED_CHARACTERS", 100)
    tokenizer = Tokenizer.train([CODE], 400, template="none")
    words, longest = WordCache(tokenizer), max(map(len, CODE.splitlines()))
    assert longest < len(CODE) / 10
    for line in CODE.splitlines():
        assert words.encode(line).tolist() == tokenizer.encode([line])[0]
        assert sum(map(len, words._cache)) <= max(100, longest)
