"""Hostile values: what stands in a configuration, a data file or an option where something else is meant."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

DEEP = 40  # levels of a nested value that any reader of JSON takes
ABYSS = 200_000  # levels that none takes

NUMBERS: list[Any] = [0, 1, -1, 2, 3, 7, 255, 2**31, 2**63, 10**9, 10**40, -(10**18)]
NUMBERS += [0.5, -0.5, 1.5, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf]
TEXTS = ["", " ", "x", "None", "null", "false", "1_0", "٣", "1e999", "-", "--", "\0", "\ud800", "\u202eabc", "é́", "\n"]
TEXTS += [
    "../../etc/passwd",
    "/dev/zero",
    "{{7*7}}",
    "%s%n",
    "<script>alert(1)</script>",
    "builtin:nothing",
    "a" * 50_000,
]
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "Zürich",
    "日本",
    "😀",
    "don't",
    "and",
    "so",
    "3.14",
    "[MASK]",
    "<s>",
    "</s>",
]


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


def hostile(random: Random) -> Any:
    """A value of any JSON type, more often one that is none of the expected."""
    kind = random.randrange(8)
    if kind <= 2:
        return random.choice(NUMBERS)
    if kind <= 4:
        return random.choice(TEXTS)
    if kind == 5:
        return random.choice([None, True, False])
    if kind == 6:
        return random.choice([[], [None], [[]], [1], ["x"], [1.5, "x"], list(range(3000)), [math.nan], nested(DEEP)])
    return random.choice([{}, {"": {}}, {"a": 1}, {"0": "x"}, {"type": "x"}, {"\ud800": None}, {"a": nested(DEEP)}])


def altered(random: Random, value: Any) -> Any:
    """A value near a right one: of its type but out of bounds, or the right one as another type."""
    if isinstance(value, bool):
        return random.choice([not value, int(value), str(value).lower(), None])
    if isinstance(value, int | float):
        near = [value + 1, value - 1, -value, 0, value * 1000, value * 10**9, value / 2, float(value), str(value)]
        return random.choice([*near, [value], None, math.nan, math.inf])
    if isinstance(value, str):
        near = [value.upper(), value[:-1], value + "x", f" {value}", value + "\ud800", value + "\0", value * 2000]
        return random.choice([*near, [value], {value: value}, None, ""])
    if isinstance(value, list):
        near = [value[1:], value * 2, [*value, hostile(random)], value[::-1], value * 3000, [value], {"0": value}]
        return random.choice([*near, [hostile(random) for _ in value], dict(enumerate(value))])
    if isinstance(value, dict) and value:
        key = random.choice(sorted(value))
        without = {name: held for name, held in value.items() if name != key}
        near = [without, without | {key + "x": value[key]}, value | {key: hostile(random)}, list(value.items())]
        return random.choice([*near, value | {"x": hostile(random)}, dict.fromkeys(value, hostile(random)), {}])
    return hostile(random)


def places(tree: Any, path: tuple[Any, ...] = (), depth: int = 5) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document, down to ``depth``."""
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if depth:
        for key, value in items:
            found += places(value, (*path, key), depth - 1)
    return found


def changed(random: Random, tree: Any, more: dict[str, Any]) -> str:
    """Changes one value of a JSON document in place, or adds one of the keys in ``more``. Returns what it did."""
    found = places(tree)
    if isinstance(tree, dict) and more and (not found or random.random() < 0.35):
        key = random.choice(sorted(more))
        value = altered(random, more[key]) if random.random() < 0.6 else hostile(random)
        tree[key] = more[key] if random.random() < 0.2 else value
        return f"{key} = {shown(tree[key])}"
    if not found:
        return "nothing"
    top = [path for path in found if len(path) == 1]
    path = random.choice(top if random.random() < 0.5 else found)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    name = ".".join(map(str, path))
    if random.random() < 0.15:
        del holder[path[-1]]
        return f"{name} deleted"
    near = random.random() < 0.5
    holder[path[-1]] = altered(random, holder[path[-1]]) if near else hostile(random)
    return f"{name} = {shown(holder[path[-1]])}"


def broken_text(random: Random, text: str) -> tuple[str, bytes]:
    """A JSON document that is damaged as a file, and how."""
    whole = text.encode()
    at = random.randrange(len(whole) + 1)
    ways: dict[str, bytes] = {
        "empty": b"",
        "cut off": whole[:at],
        "one byte changed": whole[:at] + bytes([random.randrange(256)]) + whole[at + 1 :],
        "NUL bytes": b"\0" * 100,
        "byte order mark": b"\xef\xbb\xbf" + whole,
        "UTF-16": text.encode("utf-16"),
        "not UTF-8": whole[:at] + b"\xff\xfe\xe9" + whole[at:],
        "brackets without end": b"[" * ABYSS,
        "objects without end": b'{"a":' * ABYSS,
        "5,000 digits": b"9" * 5000,
        "400 zeros": b'{"a": 1' + b"0" * 400 + b"}",
        "a list": b"[" + whole + b"]",
        "null": b"null",
        "a text": json.dumps(text).encode(),
        "a number": b"1e999",
        "a key twice": whole.replace(b"{", b'{"model_type": null, "model_type": "gpt2",', 1),
        "trailing text": whole + b"}",
        "comments": b"// a comment\n" + whole,
        "NaN": b"NaN",
        "blanks": b" " * 100_000 + whole,
    }
    how = random.choice(sorted(ways))
    return how, ways[how]


def damaged(random: Random, whole: bytes) -> tuple[str, bytes]:
    """Bytes with some of them changed, cut, doubled or put in, and how."""
    a, b = sorted(random.randrange(len(whole) + 1) for _ in range(2))
    noise = random.randbytes(random.choice([1, 4, 300]))
    ways = {
        "empty": b"",
        "cut off": whole[:a],
        "beginning cut off": whole[a:],
        "a piece left out": whole[:a] + whole[b:],
        "a piece doubled": whole[:b] + whole[a:],
        "noise put in": whole[:a] + noise + whole[a:],
        "noise over it": whole[:a] + noise + whole[a + len(noise) :],
        "noise after it": whole + noise,
        "only noise": noise,
        "zeros over it": whole[:a] + b"\0" * (b - a) + whole[b:],
        "twice": whole + whole,
    }
    how = random.choice(sorted(ways))
    return how, ways[how]


def shown(value: Any) -> str:
    """A value in a line of a report."""
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:50]}...({len(text)})"


def sentence(random: Random, least: int = 1, most: int = 9) -> str:
    """A few words."""
    return " ".join(random.choice(WORDS) for _ in range(random.randint(least, most)))
