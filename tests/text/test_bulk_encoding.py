"""Long documents in parts: the ids of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest

from heedful.text import Tokenizer, bulk_encoding
from heedful.text.bulk_encoding import encode_parts

CODE = Path(bulk_encoding.__file__).read_text(encoding="utf-8")
AWKWARD = 'word\n\n\n  indented\n\tname\n\n  \nüber\nend.\n"quoted"\n 12\n34\n\'tis\nlast\n'
TEXTS = [CODE * 3, AWKWARD * 20, "one line only", "a\nb"]


def joined(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    rows: list[list[int]] = []
    for begins, ids in encode_parts(tokenizer, texts):
        if begins:
            rows.append([])
        rows[-1] += ids.tolist()
    return rows


@pytest.mark.parametrize("kind", ["bpe", "character", "unigram", "word", "wordpiece"])
def test_joined_they_are_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_encoding, "BATCH_CHARACTERS", 50)
    tokenizer = Tokenizer.train(TEXTS, 400, kind, template="none")  # type: ignore[arg-type]
    assert joined(tokenizer, TEXTS) == tokenizer.encode(TEXTS)
    assert len(list(encode_parts(tokenizer, TEXTS))) > 2 * len(TEXTS)


def test_a_published_tokenizer(shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that puts a space before every text is given the text whole."""
    monkeypatch.setattr(bulk_encoding, "PART_LENGTH", 50)
    tokenizer = Tokenizer.load(shared_data("weights/stories15M"))
    assert joined(tokenizer, TEXTS) == tokenizer.encode(TEXTS)


def test_where_a_part_would_read_otherwise_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_encoding, "PART_LENGTH", 50)
    tokenizer = Tokenizer.train(TEXTS, 400, "bpe", template="end")
    assert joined(tokenizer, TEXTS) == tokenizer.encode(TEXTS)
    assert len(list(encode_parts(tokenizer, TEXTS))) == len(TEXTS)


def test_little_is_encoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_encoding, "PART_LENGTH", 50)
    monkeypatch.setattr(bulk_encoding, "BATCH_CHARACTERS", 200)
    tokenizer = Tokenizer.train(TEXTS, 400, "character", template="none")
    tokenizer.add(["one line"])  # no words are cut where a token has a space in it, lines are
    encode, asked = tokenizer.encode, list[Sequence[str]]()
    monkeypatch.setattr(tokenizer, "encode", lambda texts: encode(asked.append(texts) or texts))  # type: ignore[func-returns-value]
    found = list(chain.from_iterable(joined(tokenizer, TEXTS)))
    assert found == list(chain.from_iterable(encode(TEXTS)))
    sizes = [sum(map(len, texts)) for texts in asked if texts[0] in CODE]
    assert 5 * max(sizes) < sum(sizes)
