"""Text of an answer that is generated token by token: whole characters, and stop strings left out at every border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heedful.generation.incremental_text import IncrementalText
from heedful.text import Tokenizer

LEAST = -9999.0  # log-probability of what is impossible, as OpenAI gives it: JSON has no infinity


class TokenText(NamedTuple):
    """A token of an answer with its log-probability."""

    text: str  # with its leading space; for a special token its name, for a part of a character ``<0xE8>``
    logprob: float | None  # None for the first token of a text
    top: list[tuple[str, float]]  # the most likely tokens at this position, best first
    offset: int  # of the token's text in the answer
    id: int = 0
    is_special: bool = False


class AnswerPiece(NamedTuple):
    """Text and tokens that may be sent after a new token."""

    text: str
    tokens: list[TokenText]
    finish: str | None  # "stop" or "length" at the end


class HeldText:
    """Text with its stop strings left out; what may be the beginning of a stop string is held back.

    Of several stop strings, the one that is completed first ends the text, however the text is divided into pieces.

    >>> held = HeldText(["END"])
    >>> [held.add(piece) for piece in ("a E", "N", "E", "ND b")], held.stopped_by
    (['a ', '', 'EN', ''], 'END')
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings, self.longest = strings, max(map(len, strings), default=0)
        self.stopped_by, self._held = "", ""

    def add(self, text: str) -> str:
        """Returns the text that may be shown now."""
        text = self._held + text
        found = [(start + len(string), start) for string in self.strings if (start := text.find(string)) >= 0]
        if found:
            end, start = min(found)
            self.stopped_by, self._held = text[start:end], ""
            return text[:start]
        for count in range(min(len(text), self.longest - 1), 0, -1):
            if any(string.startswith(text[-count:]) for string in self.strings):
                self._held = text[-count:]
                return text[:-count]
        self._held = ""
        return text

    def end(self) -> str:
        """Returns the text that was held back."""
        return self._held


class AnswerText:
    """Turns the tokens of one answer into pieces of text.

    Args:
        tokenizer: the model's.
        prompt: ids of the prompt, whose last tokens may share a word or a character with the answer.
        stop: texts that end the answer and are left out. The name of a special token, which has no text, is matched as
            that token.
        with_tokens: True to return each token with its log-probability.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = (), with_tokens: bool = False
    ) -> None:
        self._decode = lambda row: tokenizer.decode([row])[0]
        self._tokenizer, self._with_tokens = tokenizer, with_tokens
        self._text = IncrementalText(self._decode, prompt, tokenizer.byte_tokens)
        self._held = HeldText(stop)
        ids = (tokenizer.backend.token_to_id(string) for string in stop)
        self._stop_ids = {number for number in ids if number is not None and not self._decode([number])}
        self._tokens: list[TokenText] = []  # not sent yet
        self._shown = self._decoded = 0  # characters sent, and decoded
        self.count = 0  # of tokens
        self.stopped_by = ""  # a stop string
        self.logprobs: list[float] = []  # of all tokens, if requested

    def add(
        self, token: int, logprob: float, top: Sequence[tuple[int, float]], is_last: bool, is_end: bool
    ) -> AnswerPiece:
        """Returns what a token adds; ``is_last`` for the last one, which ``is_end`` tells to be an end token."""
        self.count += 1
        logprob = max(logprob, LEAST)
        if self._with_tokens:
            self.logprobs.append(logprob)
            name, *names = self._tokenizer.pieces([token, *(number for number, _ in top)])
            best = [(other, max(log_p, LEAST)) for other, (_, log_p) in zip(names, top, strict=True)]
            self._tokens.append(TokenText(name, logprob, best, self._decoded, token, token in self._tokenizer.special))
        if token in self._stop_ids:
            return self._piece(self._held.add(self._text.end()) + self._held.end(), "stop")
        new = self._text.add(token)
        if is_last:
            new += self._text.end()
        self._decoded += len(new)
        text = self._held.add(new)
        self.stopped_by = self._held.stopped_by
        if self.stopped_by:
            return self._piece(text, "stop", cut=True)
        if not is_last:
            return self._piece(text, None)
        return self._piece(text + self._held.end(), "stop" if is_end else "length")

    def _piece(self, text: str, finish: str | None, cut: bool = False) -> AnswerPiece:
        self._shown += len(text)
        sent = len(self._tokens)
        if finish is None or cut:  # a token is sent with the first character of its text
            sent = next((i for i, token in enumerate(self._tokens) if token.offset >= self._shown), sent)
        tokens, self._tokens = self._tokens[:sent], self._tokens[sent:]
        return AnswerPiece(text, tokens, finish)


def prompt_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[tuple[float, Sequence[tuple[int, float]]]]
) -> list[TokenText]:
    """Returns the tokens of a prompt with their log-probabilities, which the first token has not.

    ``logprobs`` are those of ``SlotRow.prompt_logprobs``.
    """
    text, tokens = AnswerText(tokenizer, [], with_tokens=True), list[TokenText]()
    for number, (token, (logprob, top)) in enumerate(zip(ids, [(0.0, ()), *logprobs], strict=True), start=1):
        tokens += text.add(token, logprob, top, is_last=number == len(ids), is_end=False).tokens
    return [tokens[0]._replace(logprob=None), *tokens[1:]]
