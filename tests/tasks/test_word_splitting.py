"""Texts are split into words as the training data was, so that a string is predicted as its list of words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tagging_models import rows, saved, settings

import heedful
from heedful.errors import HeedfulError
from heedful.tasks.token_classification import TokenClassification
from heedful.tasks.word_splitting import WordSplitting


def words(rules: WordSplitting, text: str) -> list[str]:
    found = rules.words_of(text)
    assert all(text[start:end] == word for word, (start, end) in found)
    return [word for word, _ in found]


def learned(*sentences: str) -> WordSplitting:
    return WordSplitting.learn([sentence.split() for sentence in sentences])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the item 13.272.B, BQ-221.", "the item 13.272.B , BQ-221 ."),
        ("\n in  (A-12)\u00a0'x'", "in ( A-12 ) ' x '"),
        ("the U.S., e.g. Mr. Lee's don't", "the U.S. , e.g. Mr . Lee's don't"),
        ('"Rome"?!... «Paris» “York”', '" Rome " ? ! . . . « Paris » “ York ”'),
        ("$5 50% 1,000.5 -3 @ann #tag", "$ 5 50 % 1,000.5 - 3 @ ann # tag"),
        ("a@b.com http://x.y/z and/or it--that", "a@b.com http://x.y/z and/or it--that"),
        ("Rome👍🏽👍 ❤️! 👩‍💻x 🇫🇷🇩🇪 1️⃣", "Rome 👍🏽 👍 ❤️ ! 👩‍💻 x 🇫🇷 🇩🇪 1️⃣"),
        ("हिन्दी, cafe\u0301.", "हिन्दी , cafe\u0301 ."),
        ("我爱iPhone手机。", "我 爱 iPhone 手 机 。"),
        ("\u200b \u0007 ", ""),
        ("\ue000 \ue001.", "\ue000 \ue001 ."),
        ("... - .", ". . . - ."),
    ],
)
def test_words_of_texts_without_evidence(text: str, expected: str) -> None:
    assert words(WordSplitting(), text) == expected.split()


@pytest.mark.parametrize(
    ("sentences", "text", "expected"),
    [
        (["New - York is big .", "Ann - Lee"], "Port-au-Prince 3-4.", "Port - au - Prince 3-4 ."),
        (["New - York", "an e-mail , A-12 B-7"], "Port-au-Prince", "Port-au-Prince"),
        (["e-mail", *["New - York"] * 6], "an e-mail x-y", "an e-mail x - y"),
        (["e-mail", *["New - York"] * 5], "an e-mail x-y", "an e-mail x-y"),
        (["It ends . Then 3.a b.c ."], "xy.zw.", "xy.zw ."),  # a period before a capital ends a sentence
        (["Ann 's dog", "I do n't", "I ca n't"], "Bob's cat won't \u201cgo\u201d", "Bob 's cat wo n't “ go ”"),
        (["l' eau de aujourd'hui", "l' ami"], "l'homme aujourd'hui", "l' homme aujourd'hui"),
        (["Ann's dog", "don't"], "Bob's 'cat'", "Bob's ' cat '"),
        (["he said ... no", "x += 1"], "yes...y+=2", "yes...y += 2"),
        (["box . wide ( 2 ) += 1"], "a.b(3)+=4.5", "a . b ( 3 ) += 4.5"),
        (["in the U.S. now .", "Mr. Lee"], "the U.S.. Mr. X.", "the U.S. . Mr. X ."),
        (["no. 5", "no", "no", "no"], "I say no.", "I say no ."),  # the more frequent way
        (["@a @b @c", "@d @e"], "(@ann) a@", "( @ann ) a @"),
        (["@a is"], "@ann @a", "@ ann @a"),
        (["我 爱 北京", "北京 大学 。"], "我在北京大学。", "我 在 北京 大学 。"),
        (["我 爱 北 京"], "我在北京", "我 在 北 京"),
        (["A股 3月"], "A股,3月", "A股 , 3月"),
    ],
)
def test_words_of_training_say_how_texts_are_split(sentences: list[str], text: str, expected: str) -> None:
    rules = learned(*sentences)
    assert words(rules, text) == expected.split()
    assert WordSplitting.read(json.loads(json.dumps(rules.as_dict())), "x") == WordSplitting.read(rules.as_dict(), "y")
    assert words(WordSplitting.read(rules.as_dict(), "x"), text) == expected.split()


def test_words_of_training_stay_whole() -> None:
    """Joined by spaces, training sentences are split into the words that they were given as."""
    sentences = [
        "( Ann 's \"dog\" , i.e. Rex ) ran -- fast ... :-) 50% 5 % \u00e9\u0301l\u00e8ve's",
        "a.b box.wide += `` quoted '' __init__ *args **kw $5 C++ .NET 我们 的 ，， 日本。",
        "don't ca n't -LRB- x -RRB- 12:30 1,000 #1 No.1 'n' ' .",
    ]
    rules = learned(*sentences)
    for sentence in sentences:
        assert words(rules, sentence) == sentence.split()
    assert words(learned(*sentences, "a b"), "no blank") == ["no", "blank"]
    assert WordSplitting.learn([["of two", "words"], []]).as_dict() == {}


def test_a_string_is_predicted_as_its_words(tmp_path: Path) -> None:
    data = rows(("we got BQ-221 , and 13.272.B", "O O B-X O O B-X"), ("A-12 is here", "O O O"))
    asked = settings()
    task = TokenClassification.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0)
    task.before_training(model, asked)
    model.eval()
    folder = saved(task, model, tmp_path / "model")
    pipe = heedful.pipeline("token-classification", folder)
    text = "  BQ-774, (10.190.B) and\tA-12."
    string, listed = pipe([text, ["BQ-774", ",", "(", "10.190.B", ")", "and", "A-12", "."]])
    assert string["score"] == pytest.approx(listed["score"])
    assert [one["label"] for one in string["output"]] == [one["label"] for one in listed["output"]]
    assert all(text[one["start"] : one["end"]] == one["text"] for one in string["output"])
    assert pipe([" ", "\u200b"])[1]["output"] == []
    tuned, _ = TokenClassification.for_fine_tuning(folder, rows(("New - York", "B-X O O")), asked)
    assert tuned.splitting is not None
    assert tuned.splitting.as_dict() == {"separate": ["a-a"]}


@pytest.mark.parametrize("stored", [7, {"other": "x"}, {"words": "x"}, {"leading": ["@"]}, {"separate": [1]}])
def test_rules_that_are_none(stored: object) -> None:
    with pytest.raises(HeedfulError, match=r"model: word_splitting"):
        WordSplitting.read(stored, "model")
