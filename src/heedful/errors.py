"""``HeedfulError``, a one-line error for users, and helpers for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

MAX_LENGTH = 500  # characters of a message
MAX_NAMES = 50  # listed in a hint
FEW, LISTED_LENGTH = 8, 200  # items of a file that a message lists, and their characters


class HeedfulError(ValueError):
    """Error that the user can fix. The message is one line: what happened, where (file, line), what to do.

    The command line prints the message and exits with status 2; in Python it is an ordinary ``ValueError``.

    >>> str(HeedfulError("no such file: a\\nb.tsv; check the path"))
    'no such file: a b.tsv; check the path'
    """

    def __str__(self) -> str:
        """Returns the message on one line; line breaks in quoted text become spaces."""
        return " ".join(super().__str__().splitlines())


class InputError(HeedfulError):
    """Error about one of the inputs of a call, which the message names by its index, or by file and line (``named``).

    >>> error = InputError(3, "has no text")
    >>> str(error), str(error.named("a.txt:4")), str(InputError(0, "has no text", of=1))
    ('input 3 has no text', 'a.txt:4 has no text', 'the input has no text')
    """

    def __init__(self, position: int, text: str, of: int | None = None) -> None:
        """``position`` is the index of the input, ``of`` the number of inputs; if 1, it is called "the input"."""
        super().__init__(f"{'the input' if of == 1 else f'input {position}'} {text}")
        self.position, self.text = position, text

    def named(self, name: str) -> HeedfulError:
        """Returns the same error with ``name``, such as a file and line, in place of "input 3"."""
        return HeedfulError(f"{name} {self.text}")


def shorten(message: str, length: int = MAX_LENGTH) -> str:
    """Returns a message on one line of at most ``length`` characters, shortened in the middle to keep the remedy.

    >>> shorten("x" * 600 + "; give less", 30)
    'xxxxxxxxxxxx ... xx; give less'
    """
    line = " ".join(message.split())
    if len(line) <= length:
        return line
    end = length * 2 // 5
    return f"{line[: length - end - 6]} ... {line[len(line) - end - 1 :]}"


def first_few(items: Sequence[str], separator: str = ", ") -> str:
    """Returns the first items of a list, long ones shortened, and the number of the others.

    >>> first_few(["a", "b"], "; "), first_few([*"abcdefghijk"])
    ('a; b', 'a, b, c, d, e, f, g, h and 3 more')
    """
    more = f" and {len(items) - FEW:,} more" if len(items) > FEW else ""
    return separator.join(shorten(item, LISTED_LENGTH) for item in items[:FEW]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name: the most similar known name, else the known names (at most 50).

    >>> nearest("gpt-2", ["gpt2", "bert-base"]), nearest("x", map(str, range(10, 99)))[-14:]
    ("did you mean 'gpt2'?", '59 and 39 more')
    """
    names = sorted(known)
    by_lower = {known_name.lower(): known_name for known_name in names}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "known: " + ", ".join(names[:MAX_NAMES]) + more


def plural(count: int, noun: str = "example", irregular: str | None = None) -> str:
    """Returns a count with its noun, such as "3 labels"; ``irregular`` is the plural of a noun that does not add an s.

    >>> plural(1), plural(1200, "label"), plural(0, "entity", "entities")
    ('1 example', '1,200 labels', '0 entities')
    """
    return f"{count:,} {noun if count == 1 else irregular or noun + 's'}"


def lookup(table: Mapping[str, T], key: str, kind: str) -> T:
    """Returns ``table[key]``. Raises ``HeedfulError`` for an unknown key, with a hint; ``kind`` is the noun for a key.

    >>> lookup({"relu": max}, "relu", "activation")
    <built-in function max>
    """
    if key not in table:
        raise HeedfulError(f"unknown {kind} {key!r}; {nearest(str(key), table)}")
    return table[key]
