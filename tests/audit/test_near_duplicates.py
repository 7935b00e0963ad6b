"""Examples that are nearly the same, against every pair compared by brute force, and what an audit says of them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from heedful import cli
from heedful.audit import duplicates as module
from heedful.audit.duplicates import check_near_duplicates, folded, similar_pairs
from heedful.audit.findings import Finding
from heedful.data import LazyImage, Row

WORDS = ["river", "stone", "amber", "winter", "meadow", "candle", "harbour", "thunder", "velvet", "orchard", "a", "of"]


def rows(texts: list[str], file: str = "train.txt") -> list[Row]:
    return [Row({"text": text}, file, line) for line, text in enumerate(texts, start=1)]


def found(train: list[str], held: list[str] = ()) -> dict[str, Finding]:  # type: ignore[assignment]
    given = rows(train), rows(list(held), "valid.txt")
    return {one.name: one for one in check_near_duplicates(*given, {"text": "text"}, ["text"])}


@cache
def pieces(text: str) -> frozenset[str]:
    return frozenset(text[i : i + 5] for i in range(len(text) - 4))


plain_of = cache(folded)


def changed(text: str, drawn: random.Random) -> str:
    """A text with some letters, words or signs changed."""
    words = text.split()
    for _ in range(drawn.randrange(3)):
        at = drawn.randrange(len(words))
        words[at] = drawn.choice([words[at].upper(), words[at] + ",", drawn.choice(WORDS), words[at][:-1] or "x"])
    return drawn.choice([" ", "  "]).join(words)


def made(seed: int, count: int) -> list[str]:
    drawn = random.Random(seed)
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randrange(1, 16))) for _ in range(count // 2)]
    return drawn.sample(texts + [changed(drawn.choice(texts), drawn) for _ in range(count - count // 2)], count)


def by_hand(train: list[str], held: list[str]) -> dict[str, list[str]]:
    """The same from the definition: every two texts compared, in the order of their lines."""
    plain = lambda text: " ".join(text.split()).casefold()  # noqa: E731
    told: dict[str, list[str]] = {"similar": [], "overlap": []}
    before: dict[str, int] = {}
    for line, text in enumerate(train, start=1):
        if plain(text) not in before:
            if alike(text, before):
                told["similar"].append(f"train.txt:{line}")
            before[plain(text)] = line
    for line, text in enumerate(held, start=1):
        if plain(text) not in {*before, *map(plain, held[: line - 1])} and alike(text, before):
            told["overlap"].append(f"valid.txt:{line}")
    return told


def alike(text: str, others: dict[str, int]) -> bool:
    one = plain_of(text.casefold())
    for other in map(plain_of, others):
        a, b = pieces(one), pieces(other)
        if one and (one == other or (a | b and len(a & b) / len(a | b) >= 0.8)):
            return True
    return False


@pytest.mark.parametrize("seed", range(8))
def test_near_examples_are_those_of_every_pair_compared(seed: int) -> None:
    texts = made(seed, 160)
    train, held = texts[:110], texts[110:]
    told = found(train, held)
    expected = by_hand(train, held)
    assert min(map(len, expected.values())) > 3
    for name, places in expected.items():
        assert [place.split(" ~ ")[0] for place in told[name].places] == places
        assert told[name].count == len(places)
        for place in told[name].places:  # each with an example of training that it is like
            one, other = ((train if ":" in p and p.startswith("train") else held) for p in place.split(" ~ "))
            a, b = (side[int(p.split(":")[1]) - 1] for side, p in zip((one, other), place.split(" ~ "), strict=True))
            assert place.split(" ~ ")[1].startswith("train.txt:")
            assert alike(a, {b.casefold(): 1})


@pytest.mark.parametrize("seed", range(4))
def test_similar_pairs_are_all_pairs(seed: int) -> None:
    drawn = random.Random(seed)
    letters = "ab" if seed % 2 else "abcdefghij"
    texts = ["".join(drawn.choices(letters, k=drawn.randrange(24))) for _ in range(110)]
    texts += [text + drawn.choice(letters) for text in texts[:40]]
    expected = [
        (i, j)
        for i, a in enumerate(texts)
        for j, b in enumerate(texts)
        if i < j and pieces(a) & pieces(b) and 5 * len(pieces(a) & pieces(b)) >= 4 * len(pieces(a) | pieces(b))
    ]
    assert expected
    assert similar_pairs(texts) == (expected, True)


def test_which_differences_are_ignored() -> None:
    train = ["Meet me at 5 o'clock, Anna!", "The price is 12", "12 + 7 =", "12 - 7 =", "3 * 9", "日本語の文", "😀", "…"]
    held = ["meet me at 6 oclock anna", "the price is 13.", "13 + 7 =", "4 * 9", "日本語の文。", "😀!", "?"]
    told = found(train, held)
    assert told["overlap"].places == [
        "valid.txt:1 ~ train.txt:1",
        "valid.txt:2 ~ train.txt:2",
        "valid.txt:5 ~ train.txt:6",
    ]
    assert "only case, punctuation or digits differ" in told["overlap"].text
    assert told["similar"].places == ["train.txt:4 ~ train.txt:3"]  # only the sign between the same digits differs


def test_exact_duplicates_are_left_to_another_check() -> None:
    text = "the river runs by the orchard and the harbour"
    assert found([text, text.upper(), f"  {text} "], [text, text.title()]) == {}
    told = found([text, text, text + "s", text + "s"], [text + "!", text + "!", text])
    assert told["similar"].places == ["train.txt:3 ~ train.txt:1"]
    assert told["overlap"].places == ["valid.txt:1 ~ train.txt:1"]


def test_of_several_columns_each_must_be_like_the_other_s() -> None:
    context = "The river runs by the orchard. In winter the harbour is frozen, and no candle burns. " * 3
    columns = {"question": "text", "context": "text", "answers": "answers"}
    asked = [
        ("Where does the river run?", context),
        ("When is the harbour frozen?", context),
        ("where does the river run", context[:-3]),
        ("Where does the river run", "velvet and thunder and amber " * 5),
    ]
    given = [Row({"question": q, "context": c, "answers": ()}, "a.json", i) for i, (q, c) in enumerate(asked, 1)]
    (told,) = check_near_duplicates(given, [], columns, ["question", "context"])  # type: ignore[arg-type]
    assert told.places == ["a.json:3 ~ a.json:1"]


def test_images_and_nothing_are_none_of_it(tmp_path: Path) -> None:
    pictures = [Row({"image": LazyImage.of(str(tmp_path / "none.png")), "label": "a"}, "a", 1)] * 3
    assert list(check_near_duplicates(pictures, pictures, {"image": "image", "label": "label"}, ["image"])) == []
    assert list(check_near_duplicates([], [], {"text": "text"}, ["text"])) == []
    assert list(check_near_duplicates(rows(["a"]), rows(["b"]), {"text": "text"}, [])) == []


def test_much_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(400)]
    texts = [" ".join(drawn.sample(words, 5)) for _ in range(100)]
    train = [copy for text in texts for copy in (text, text + ".")]
    assert found(train)["similar"].count == 100
    monkeypatch.setattr(module, "MAX_EXAMPLES", 150)
    told = found(train, ["?"] * 100)["similar"]
    assert "of 120 checked" in told.text
    assert 10 < told.count < 70
    monkeypatch.setattr(module, "MAX_EXAMPLES", 1000)
    monkeypatch.setattr(module, "MAX_CHARACTERS", 6000)
    assert "checked" in found(train)["similar"].text


def test_too_many_that_are_alike_are_counted_as_far_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(WORDS * 3)
    train = [f"{text} {chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(120)]
    assert found(train)["similar"].count == 119
    monkeypatch.setattr(module, "MAX_MEETINGS", 4000)
    told = found(train)["similar"]
    assert told.text.startswith("at least ")
    assert 60 < told.count <= 119


def test_the_command_tells_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        f"the {a} runs by the {b} where the {c} stands" for a, b, c in zip(WORDS, WORDS[1:], WORDS[2:], strict=False)
    ]
    train = [(text, "good" if i % 2 else "bad") for i, text in enumerate(texts * 2)]
    train = [(text.replace(" ", f" {'very ' * (i >= len(texts))}", 1), label) for i, (text, label) in enumerate(train)]
    held = [(texts[3].upper() + "!!!", "good"), ("never seen", "bad")]
    for name, table in (("train.tsv", train), ("valid.tsv", held)):
        lines = ["text\tlabel", *("\t".join(row) for row in table)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("train.tsv", "valid.tsv")]
    command = ["audit", "text-classification", "--train", paths[0], "--valid", paths[1], "--tokenizer.size=300"]
    assert cli.main([*command, "--json"]) == 0
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert told["overlap"]["level"] == "warning"  # half of validation
    assert told["overlap"]["places"] == [f"{paths[1]}:2 ~ {paths[0]}:5"]
    assert told["similar"]["level"] == "fact"
    assert "leakage" not in told
    assert cli.main([*command, "--strict"]) == 1
    assert "! overlap" in capsys.readouterr().out
