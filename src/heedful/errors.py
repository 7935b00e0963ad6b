"""`HeedfulError`, a one-line error for users, and helpers for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

LONGEST = 500  # characters of a message
SHOWN = 50  # names listed in a hint


class HeedfulError(ValueError):
    """Error that the user can fix. The message is one line: what happened, where (file, line), what to do.

    The command line prints it and leaves with exit status 2; in Python it is an ordinary ``ValueError``.

    >>> str(HeedfulError("no such file: a\\nb.tsv; check the path"))
    'no such file: a b.tsv; check the path'
    """

    def __str__(self) -> str:
        """Returns the message; line breaks in quoted text become blanks."""
        return " ".join(super().__str__().splitlines())


class InputError(HeedfulError):
    """Error about one input of a call; a caller that passes inputs block by block names the input anew.

    >>> error = InputError(3, "has no text")
    >>> str(error), str(error.named("a.txt:4")), str(InputError(0, "has no text", of=1))
    ('input 3 has no text', 'a.txt:4 has no text', 'the input has no text')
    """

    def __init__(self, position: int, text: str, of: int | None = None) -> None:
        """``position`` counts the inputs of the call from 0; ``of`` is their number: a single input is "the input"."""
        super().__init__(f"{'the input' if of == 1 else f'input {position}'} {text}")
        self.position, self.text = position, text

    def named(self, name: str) -> HeedfulError:
        """Returns the same error with ``name`` as the name of the input."""
        return HeedfulError(f"{name} {self.text}")


def shorten(message: str, most: int = LONGEST) -> str:
    """Returns a message on one line of at most ``most`` characters, shortened in the middle: its end is the remedy.

    >>> shorten("x" * 600 + "; give less", 30)
    'xxxxxxxxxxxx ... xx; give less'
    """
    line = " ".join(message.split())
    if len(line) <= most:
        return line
    end = most * 2 // 5
    return f"{line[: most - end - 6]} ... {line[len(line) - end - 1 :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint after an unknown name: the closest known one, or else the known names, at most 50.

    >>> nearest("gpt-2", ["gpt2", "bert-base"]), nearest("x", map(str, range(10, 99)))[-14:]
    ("did you mean 'gpt2'?", '59 and 39 more')
    """
    names = sorted(known)
    lower = {known.lower(): known for known in names}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "known: " + ", ".join(names[:SHOWN]) + more


def many(count: int, what: str = "example", plural: str | None = None) -> str:
    """Returns a count with its noun; ``plural`` is the plural if it is not formed by an s.

    >>> many(1), many(1200, "label"), many(0, "entity", "entities")
    ('1 example', '1,200 labels', '0 entities')
    """
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def lookup(table: Mapping[str, T], key: str, what: str) -> T:
    """Returns ``table[key]``. Raises ``HeedfulError`` for an unknown key, naming the nearest; ``what`` names its kind.

    >>> lookup({"relu": max}, "relu", "activation")
    <built-in function max>
    """
    if key not in table:
        raise HeedfulError(f"unknown {what} {key!r}; {nearest(str(key), table)}")
    return table[key]
