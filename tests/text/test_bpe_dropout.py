"""BPE-dropout against the library's own segmentation and dropout, and against all possible outcomes of a word."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from heedful import cli
from heedful.errors import HeedfulError
from heedful.tasks import get
from heedful.tasks.token_batches import IGNORED
from heedful.text.bpe_dropout import BpeDropout
from heedful.text.tokenizer import Tokenizer

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
TEXTS = [line for line in LINES if line.strip()]
ODD = ["", " ", "  two   spaces  ", "naïve 日本語 🙂", "</s> is text", "a" * 7, "12 345", "unseen: ŵŷ", "\ttab\u00a0x"]


def ours() -> Tokenizer:
    return Tokenizer.train(TEXTS, size=600)


def bytes_behind() -> Tokenizer:
    """As Llama's and Gemma's are made: merges of characters, with unknown ones as bytes, and no words at all."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *bytes_], show_progress=False)
    backend.train_from_iterator([text[:40] for text in TEXTS], trainer)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    return Tokenizer(backend, {"unk_token": "<unk>"})


def ends_of_words() -> Tokenizer:
    """As subword-nmt's: the last letter of a word is another than the same within it."""
    backend = Backend(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return Tokenizer(backend, {"unk_token": "<unk>"})


MADE = {"bytes": ours, "byte fallback": bytes_behind, "ends of words": ends_of_words}


@pytest.fixture(scope="module", params=MADE)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return MADE[request.param]()


def test_without_dropping_the_ids_are_the_librarys(tokenizer: Tokenizer) -> None:
    again = BpeDropout(tokenizer, 0.0)
    rows = tokenizer.encode([*TEXTS, *ODD])
    marked = again.with_word_starts([*TEXTS, *ODD], rows)
    assert marked == rows
    assert [again(words, np.random.default_rng(0)) for words in marked] == rows
    letters = [letters for letters, _ in again._cache.values()]
    assert sum(map(bool, letters)) > 0.9 * len(letters)  # nearly all can be cut anew


def test_dropping_changes_the_tokens_and_not_the_text(tokenizer: Tokenizer) -> None:
    again = BpeDropout(tokenizer, 0.3)
    rows = tokenizer.encode(TEXTS)
    random = np.random.default_rng(0)
    made = [again(words, random) for words in again.with_word_starts(TEXTS, rows)]
    assert tokenizer.decode(made) == tokenizer.decode(rows)
    assert all(len(one) >= len(row) for one, row in zip(made, rows, strict=True))
    assert sum(map(len, made)) > 1.05 * sum(map(len, rows))


def test_as_many_tokens_as_with_the_librarys_dropout(tokenizer: Tokenizer) -> None:
    """About as many: the library's draws anew for what it left out whenever it meets a pair that is no more."""
    model = tokenizer.backend.model
    rows = tokenizer.encode(TEXTS)
    again = BpeDropout(tokenizer, 0.2)
    marked = again.with_word_starts(TEXTS, rows)
    draws = np.random.default_rng(0)
    found = np.mean([sum(len(again(words, draws)) for words in marked) for _ in range(5)])
    model.dropout = 0.2
    try:
        expected = np.mean([sum(map(len, tokenizer.encode(TEXTS))) for _ in range(5)])
    finally:
        model.dropout = None
    assert found == pytest.approx(expected, rel=0.05)


def outcomes(word: tuple[str, ...], ranks: dict[tuple[str, str], int], rate: float) -> Iterator[tuple[str, float]]:
    """Every way that algorithm 1 can end, with its probability: every choice of what is left out in each round."""
    places = [place for place, pair in enumerate(pairwise(word)) if pair in ranks]
    for chosen in range(2 ** len(places)):
        kept = [place for number, place in enumerate(places) if chosen >> number & 1]
        chance = (1 - rate) ** len(kept) * rate ** (len(places) - len(kept))
        if not kept:
            yield " ".join(word), chance
            continue
        first = min(ranks[word[place], word[place + 1]] for place in kept)
        joined, at = [], 0
        while at < len(word):
            made = at in kept and ranks[word[at], word[at + 1]] == first
            joined.append("".join(word[at : at + 1 + made]))
            at += 1 + made
        for end, after in outcomes(tuple(joined), ranks, rate):
            yield end, chance * after


@pytest.mark.parametrize("word", ["lower", "aaaa"])
def test_each_way_to_cut_a_word_is_as_likely_as_the_algorithm_says(word: str) -> None:
    merges = [("l", "o"), ("e", "r"), ("lo", "w"), ("w", "e"), ("low", "er"), ("a", "a"), ("aa", "aa")]
    names = sorted({*"lowera", *("".join(pair) for pair in merges)})
    vocabulary = {name: number for number, name in enumerate(names)}
    again = BpeDropout(Tokenizer(Backend(models.BPE(vocabulary, merges)), {}), 0.4)
    (words,) = again.with_word_starts([word], again.tokenizer.encode([word]))
    expected = Counter[str]()
    for end, chance in outcomes(tuple(word), {pair: rank for rank, pair in enumerate(merges)}, 0.4):
        expected[end] += chance
    assert sum(expected.values()) == pytest.approx(1)
    draws, many = np.random.default_rng(0), 20_000
    found = Counter(" ".join(names[one] for one in again(words, draws)) for _ in range(many))
    assert found.keys() == expected.keys()
    for end, chance in expected.items():
        assert abs(found[end] / many - chance) < 4 * (chance * (1 - chance) / many) ** 0.5 + 1e-3, end


def test_the_same_generator_gives_the_same_ids() -> None:
    again = BpeDropout(ours(), 0.3)
    (words,) = again.with_word_starts([" ".join(TEXTS[:5])], again.tokenizer.encode([" ".join(TEXTS[:5])]))
    one, two, other = (again(words, np.random.default_rng([1, epoch, 2])) for epoch in (0, 0, 1))
    assert one == two != other


def test_special_tokens_and_cuts_stay() -> None:
    tokenizer = Tokenizer.train(TEXTS, size=600, template="both")
    again = BpeDropout(tokenizer, 0.99)
    text = "def test_something_long_enough_to_be_cut(tokenizer)"
    (ids,) = tokenizer.encode([text])
    whole, cut = [1, *ids, 2], [1, *ids[: len(ids) // 2], 2]
    for row in (whole, cut):
        (words,) = again.with_word_starts([text], [row])
        made = again(words, np.random.default_rng(0))
        assert (made[0], made[-1]) == (1, 2)
        assert tokenizer.decode([made]) == tokenizer.decode([row])
        assert len(made) > len(row)
    (words,) = again.with_word_starts([text], [whole], max_ids=len(whole) + 1)
    assert again(words, np.random.default_rng(0)) == whole  # there is no room for more


def test_added_tokens_stay_whole() -> None:
    tokenizer = ours()
    tokenizer.add(["<2fr>"])
    again = BpeDropout(tokenizer, 0.9)
    (words,) = again.with_word_starts(["<2fr> a text"], tokenizer.encode(["<2fr> a text"]))
    made = again(words, np.random.default_rng(0))
    assert made[0] == words[0] == tokenizer.backend.token_to_id("<2fr>")
    assert len(made) > len(words)


def test_a_vocabulary_without_merges_is_refused() -> None:
    with pytest.raises(HeedfulError, match=r"of the kind WordPiece; leave the option out, or use"):
        BpeDropout(Tokenizer.train(TEXTS, size=300, kind="wordpiece"), 0.1)


# ------------------------------------------------------------------------------------------------------------- in a run


def pairs(folder: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]
    draws = random.Random(0)
    lines = [" ".join(draws.choices(words, k=3)) for _ in range(80)]
    file = folder / "pairs.tsv"
    file.write_text(
        "".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in dict.fromkeys(lines)), encoding="utf-8"
    )
    return file


SMALL = ["--preset=transformer-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"]


def test_a_run_learns_from_words_cut_anew_and_is_measured_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = get("translation")
    seen: dict[bool, list[tuple[tuple[int, ...], ...]]] = {True: [], False: []}  # by whether a generator was given
    collate = kind.collate

    def watched(self: Any, examples: list[Any], random: np.random.Generator | None = None) -> Any:
        made = collate(self, examples, random)
        targets = [tuple(one for one in row if one != IGNORED) for row in made["labels"].tolist()]
        seen[random is not None] += targets
        return made

    monkeypatch.setattr(kind, "collate", watched)
    asked = ["train", "translation", "--train", str(pairs(tmp_path)), *SMALL, "--max-epochs=2"]
    assert cli.main([*asked, "--out", str(tmp_path / "a"), "--tokenizer.dropout=0.5"]) == 0
    tokenizer = Tokenizer.load(tmp_path / "a")

    def exact(row: tuple[int, ...]) -> bool:
        return tuple(tokenizer.encode(tokenizer.decode([row]))[0]) == row[:-1]

    assert seen[False]
    assert all(map(exact, seen[False]))
    assert sum(map(exact, seen[True])) < 0.2 * len(seen[True])
    texts = Counter(tokenizer.decode(seen[True]))
    assert set(texts.values()) == {2}  # each in both epochs
    assert len(set(seen[True])) > 1.5 * len(texts)
    told = json.loads((tmp_path / "a" / "heedful.json").read_text(encoding="utf-8"))
    assert told["settings"]["tokenizer"]["dropout"] == 0.5


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["text-generation", "--tokenizer.dropout=0.1"], "--tokenizer.dropout has no effect for text-generation"),
        (["translation", "--tokenizer.dropout=0.1", "--tokenizer.kind=unigram"], "of the kind Unigram"),
    ],
)
def test_where_it_has_no_effect_it_is_refused(
    tmp_path: Path, asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task, *more = asked
    run = ["train", task, "--train", str(pairs(tmp_path)), "--out", str(tmp_path / "out"), *more]
    assert cli.main([*run, *(SMALL[1:] if task == "text-generation" else SMALL), "--max-steps=1"]) == 2
    assert told in capsys.readouterr().err


def test_few_words_are_remembered_and_all_are_cut_alike(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tokenizer.encode(TEXTS)
    made = []
    for most in (100_000, 5):
        monkeypatch.setattr("heedful.text.bpe_dropout.MAX_CACHED_WORDS", most)
        again, random = BpeDropout(tokenizer, 0.3), np.random.default_rng(0)
        made.append([again(words, random) for words in again.with_word_starts(TEXTS, rows)])
    assert made[0] == made[1]
    assert len(again._cache) <= 5
