"""``HeedfulError``, a one-line error for users, and helpers for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_LENGTH = 500  # characters of a message
MAX_NAMES = 50  # listed in a hint
LONGEST = 64  # letters of a name that may be misspelled: the time grows with their square
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


def misspelled(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name of which ``name`` may be a misspelling; None if there is none.

    Case, hyphens, underscores and spaces are ignored. About one error in three letters is a misspelling, and one in
    four if the first letters differ, where an error is a letter too many, missing or wrong, or two letters exchanged;
    a name that differs more is another name. Of several the first with the fewest errors is returned.

    >>> misspelled("Gpt-2", ["gpt2"]), misspelled("tranlsation", ["translation"]), misspelled("albert", ["bert"])
    ('gpt2', 'translation', None)
    """
    plain = str.maketrans("", "", "-_ ")
    wanted = name.lower().translate(plain)
    if not 2 <= len(wanted) <= LONGEST:
        return None
    errors = {}
    for name in known:
        other = name.lower().translate(plain)
        most = (len(wanted) + 1) // 3 if wanted[:1] == other[:1] else max(1, len(wanted) // 4)
        if abs(len(wanted) - len(other)) <= most and (count := edit_distance(wanted, other)) <= most:
            errors[name] = count
    return min(errors, key=errors.__getitem__, default=None)


def edit_distance(a: str, b: str) -> int:
    """Returns the least number of letters inserted, deleted, replaced, or exchanged with their neighbour, from a to b.

    That is the optimal string alignment distance (Damerau 1964, with each part edited once).

    >>> edit_distance("kitten", "sitting"), edit_distance("lr", "rl")
    (3, 1)
    """
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        earlier, before, row = before, row, [i]
        for j, right in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right)))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name: the known name that it misspells (``misspelled``), else the known ones that
    contain it or are contained in it, else the known names (at most 50).

    >>> nearest("gpt-2", ["gpt2", "bert-base"]), nearest("x", map(str, range(10, 99)))[-14:]
    ("did you mean 'gpt2'?", '59 and 39 more')
    >>> nearest("bert", ["bert-base", "bert-large", "gpt2"])
    'did you mean bert-base or bert-large?'
    """
    names = sorted(known)
    if (close := misspelled(name, names)) is not None:
        return f"did you mean {close!r}?"
    within = [one for one in names if len(name) > 2 and f"-{name.lower()}-" in f"-{one.lower().replace('_', '-')}-"]
    if 0 < len(within) <= FEW:
        return f"did you mean {' or '.join(within)}?" if len(within) > 1 else f"did you mean {within[0]!r}?"
    return known_names(names)


def known_names(known: Iterable[str]) -> str:
    """Returns the hint that lists the known names, at most 50: for names that files contain, which nobody misspelled.

    >>> known_names(["gpt2", "bert"])
    'known: bert, gpt2'
    """
    names = sorted(known)
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
