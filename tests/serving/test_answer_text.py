"""Text of answers: whole characters, stop strings left out at every border, tokens with their text."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest

from heedful.generation.stopping import cut_at_stop
from heedful.serving.answer_text import AnswerText, HeldText
from heedful.text import Tokenizer

TEXT = "a👩‍👩‍👧é€ — ok\n\nuser: 日本"


def splits(text: str) -> list[list[str]]:
    """All ways to divide a text into up to four pieces."""
    found = [[text]]
    for count in (1, 2, 3):
        for borders in combinations(range(1, len(text)), count):
            ends = [0, *borders, len(text)]
            found.append([text[a:b] for a, b in pairwise(ends)])
    return found


@pytest.mark.parametrize("stops", [["END"], ["abcd", "bc"], ["aab"], ["x", "abab"], ["ENDE", "NDE", "D"], ["zz"]])
def test_stop_strings_are_left_out_however_the_text_is_divided(stops: list[str]) -> None:
    for text in ("aEND b", "xabcdx", "aaaabb", "ababab", "ENDENDE", "EEND", "a EN", ""):
        whole = cut_at_stop(text, stops)  # which keeps the stop string
        expected = min((whole.removesuffix(stop) for stop in stops), key=len)
        for pieces in splits(text):
            held, shown = HeldText(stops), ""
            for piece in pieces:
                shown += held.add(piece)
                assert not any(stop in shown for stop in stops)
                if held.stopped_by:
                    break
            if held.stopped_by:
                assert shown + held.stopped_by == whole
            shown += "" if held.stopped_by else held.end()
            assert shown == expected, (text, pieces)


def byte_tokenizer() -> Tokenizer:
    return Tokenizer.train(["plain words"], size=260, kind="bpe")


@pytest.mark.parametrize("stop", [(), ("user:",), ("\n\n",), ("€",), ("👧",)])
def test_no_character_is_divided(stop: tuple[str, ...]) -> None:
    tokenizer = byte_tokenizer()
    (ids,) = tokenizer.encode([TEXT])
    assert len(ids) > len(TEXT)
    first = tokenizer.decode([ids[:1]])[0].lstrip()
    answer, pieces = AnswerText(tokenizer, ids[:1], stop), []
    for number, token in enumerate(ids[1:], 2):
        pieces.append(answer.add(token, -1.0, [], number == len(ids), False))
        if pieces[-1].finish:
            break
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert "".join(piece.text for piece in pieces) == (TEXT.partition(stop[0])[0] if stop else TEXT).removeprefix(first)
    assert pieces[-1].finish == ("stop" if stop else "length")


def test_bytes_that_are_no_character_come_at_the_end() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(["ok €"])[0][:-1]
    answer = AnswerText(tokenizer, [])
    texts = [answer.add(token, 0.0, [], number == len(ids) - 1, False).text for number, token in enumerate(ids)]
    assert "".join(texts).startswith("ok ")
    assert "\ufffd" in texts[-1]


def test_a_special_token_stops_by_its_name_and_has_no_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend.add_special_tokens(["<|turn|>"])
    turn = tokenizer.backend.token_to_id("<|turn|>")
    answer = AnswerText(tokenizer, [], ["<|turn|>"])
    word = tokenizer.encode(["w"])[0][-1]
    assert answer.add(word, 0.0, [], False, False).text == "w"
    assert answer.add(turn, 0.0, [], False, False)[::2] == ("", "stop")


def test_each_token_is_sent_with_the_first_character_of_its_text() -> None:
    tokenizer = byte_tokenizer()
    for text, stop in product(("plain words", "plain €"), ((), ("words",), ("n w",))):
        (ids,) = tokenizer.encode([text])
        answer, shown, tokens = AnswerText(tokenizer, [], stop, with_tokens=True), "", []
        for number, token in enumerate(ids, 1):
            piece = answer.add(token, -float(number), [(token, -float(number))], number == len(ids), False)
            shown, tokens = shown + piece.text, tokens + piece.tokens
            if piece.finish:
                break
        assert [token.logprob for token in tokens] == [-float(n) for n in range(1, len(tokens) + 1)]
        assert all(token.offset < len(shown) for token in tokens)
        if "€" not in text:
            assert "".join(token.text for token in tokens).lstrip().startswith(shown.lstrip())
        assert len(answer.logprobs) == answer.count
