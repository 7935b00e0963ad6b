"""Reversible config keys: keys of a foreign ``config.json`` ↔ fields of our configuration.

A config key reads their dictionary into ours and writes ours into theirs; it raises ``Inexpressible`` for a value that
their layout lacks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.pretrained.flat_config import Flat

if TYPE_CHECKING:
    from torch import Tensor


class Inexpressible(Exception):
    """Raised for a configuration of ours that a model type cannot express."""


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

LAYERS = ("full_attention", "sliding_attention")

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", list: "a list"}
_NAMES |= {type(None): "a whole number"}


def checked(key: str, value: Any, like: Any) -> Any:
    """``value`` of the same type as ``like``; a key whose default is null takes whole numbers and null."""
    kind = type(like)
    accepted = {float: (int, float), type(None): (int, type(None))}.get(kind, (kind,))
    endless = isinstance(value, float) and not math.isfinite(value)  # JSON has no such numbers, Python's reader has
    if not isinstance(value, accepted) or endless or (isinstance(value, bool) and kind is not bool):
        raise HeedfulError(f"{key} is {value!r}; it must be {_NAMES[kind]}")
    return value


@dataclass(frozen=True)
class ConfigKey:
    """A key of theirs ↔ a field of ours, or several that have the same value.

    ``default`` is what an absent key means; ``words`` maps their values to ours (the first of theirs is written);
    an absent or null one is read from the key ``otherwise`` where that is given. ``least`` bounds whole numbers;
    ``null`` says that null may stand for none.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any
    words: Mapping[Any, Any] | None = None
    otherwise: str | None = None
    least: int = 1
    null: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields, however many."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Puts our value of theirs into ``ours``."""
        value = theirs.get(self.theirs, None if self.otherwise else self.default)
        if value is None and self.otherwise:
            value = theirs.get(self.otherwise, self.default)
        checked(self.theirs, value, None if self.null and value is None else self.default)
        if type(value) is int and isinstance(self.default, int | None) and value < self.least:
            raise HeedfulError(f"{self.theirs} is {value}; it must be {self.least} or more")
        if self.words is not None:
            if value not in self.words:
                raise HeedfulError(f"{self.theirs} is {value!r}; only {', '.join(map(repr, self.words))} are supported")
            value = self.words[value]
        ours.update(dict.fromkeys(self.fields, value))

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Puts their value of ours into ``theirs``."""
        if self.fields[0] not in ours:
            raise Inexpressible(self.fields[0])
        value = ours[self.fields[0]]
        if self.words is not None:
            named = [word for word, meaning in self.words.items() if meaning == value]
            if not named:
                raise Inexpressible(self.fields[0])
            value = named[0]
        theirs[self.theirs] = value


@dataclass(frozen=True)
class WordKey(ConfigKey):
    """A word of theirs ↔ several fields of ours, each with a value of its own: T5's "gated-gelu"."""

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Puts the values of their word into ``ours``."""
        word, words = theirs.get(self.theirs, self.default), self.words or {}
        if not isinstance(word, str) or word not in words:
            raise HeedfulError(f"{self.theirs} is {word!r}; only {', '.join(map(repr, words))} are supported")
        ours.update(zip(self.fields, words[word], strict=True))

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Puts the first word of our values into ``theirs``."""
        values = tuple(ours.get(name) for name in self.fields)
        named = [word for word, meaning in (self.words or {}).items() if meaning == values]
        if not named:
            raise Inexpressible(self.fields[0])
        theirs[self.theirs] = named[0]


@dataclass(frozen=True)
class TokenIdKey(ConfigKey):
    """A token id or null; where ours is several ids, theirs is one, a list or null."""

    several: bool = False
    needed: bool = False  # their configuration refuses null

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Puts our ids of theirs into ``ours``."""
        value = theirs.get(self.theirs, self.default)
        ids = value if isinstance(value, list) and self.several else [value]
        for each in ids:
            checked(self.theirs, each, None)
        ours.update(dict.fromkeys(self.fields, [i for i in ids if i is not None] if self.several else value))

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Puts their id or ids of ours into ``theirs``."""
        super().write(ours, theirs)
        if self.several:
            ids = theirs[self.theirs]
            theirs[self.theirs] = ids if len(ids) > 1 else next(iter(ids), None)
        if self.needed and theirs[self.theirs] is None:
            raise Inexpressible(self.fields[0])


@dataclass(frozen=True)
class SizeKey(ConfigKey):
    """A side, or (height, width): theirs is either, ours is a pair, or one number where ``square``."""

    square: bool = False

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Puts our size into ``ours``."""
        value = theirs.get(self.theirs, self.default)
        sides = list(value) if isinstance(value, list | tuple) else [value, value]
        if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
            raise HeedfulError(f"{self.theirs} is {value!r}; it must be a whole number or a pair of them")
        if self.square and sides[0] != sides[1]:
            raise HeedfulError(f"{self.theirs} is {value!r}; only squares are supported")
        ours[self.fields[0]] = sides[0] if self.square else sides

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Puts their size into ``theirs``: one number where the sides are equal."""
        super().write(ours, theirs)
        if not self.square and len(set(theirs[self.theirs])) == 1:
            theirs[self.theirs] = theirs[self.theirs][0]


@dataclass(frozen=True)
class LabelKeys(ConfigKey):
    """The number of labels ↔ the table of their names, which save fills in."""

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Counts them: in ``id2label``, or else ``num_labels``, or else two."""
        names, number = label_names(theirs), theirs.get("num_labels", self.default)
        ours[self.fields[0]] = len(names) if names else checked("num_labels", number, 2)

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Names that say no more than the number."""
        super().write(ours, theirs)
        theirs.update(label_tables([f"LABEL_{i}" for i in range(theirs[self.theirs])]))


@dataclass(frozen=True)
class StoredTensor(ConfigKey):
    """A boolean of ours that no key of theirs tells: whether the tensor ``theirs`` is stored, with more than zeros."""

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> bool:
        """Returns the value that the stored tensors imply."""
        return self.theirs in tensors and bool(tensors[self.theirs].any())

    def from_config(self, ours: Flat) -> bool:
        """Returns the value that our model's tensors will imply once saved."""
        return bool(ours.get(self.fields[0]))

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Looks among the tensors."""
        ours[self.fields[0]] = stored.get(self.theirs, self.default)

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Nothing: the tensor tells."""


@dataclass(frozen=True)
class OnlyValue:
    """A key of theirs that changes what is computed, and the one value of it that we speak. ``default``: if absent."""

    theirs: str
    value: Any
    default: Any

    def holds(self, theirs: Mapping[str, Any]) -> bool:
        """Returns whether it has that value."""
        return theirs.get(self.theirs, self.default) == self.value

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Refuses any other value."""
        if not self.holds(theirs):
            found = theirs.get(self.theirs, self.default)
            raise HeedfulError(f"{self.theirs} is {found!r}; only {self.value!r} is supported")

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Writes it, where silence would say otherwise."""
        if self.value != self.default:
            theirs[self.theirs] = self.value


@dataclass(frozen=True)
class LayerTypesKey(OnlyValue):
    """Attention type of each layer: known words, or absent. Other config keys read their meaning."""

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Refuses other words."""
        kinds = theirs.get(self.theirs)
        if kinds is None:
            return
        checked(self.theirs, kinds, [])
        for kind in kinds:
            if kind not in LAYERS:
                raise HeedfulError(f"{self.theirs} names {kind!r}; only {', '.join(map(repr, LAYERS))} are supported")


@dataclass(frozen=True)
class WrittenKey:
    """A key of theirs that is written for other programs and tells us nothing."""

    theirs: str
    value: Any

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Nothing."""

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Writes it."""
        theirs[self.theirs] = self.value


AnyConfigKey = ConfigKey | OnlyValue | WrittenKey


def only(**values: Any) -> tuple[OnlyValue, ...]:
    """Keys that must have their default value."""
    return tuple(OnlyValue(key, value, value) for key, value in values.items())


def label_names(theirs: Mapping[str, Any]) -> list[str]:
    """Returns the names of the classes in a ``config.json``, in the order of their ids; [] where it tells none.

    Raises ``HeedfulError`` for ids other than 0, 1, 2, ... and for names that are no text or whole number.
    """
    table = theirs.get("id2label")
    if not isinstance(table, Mapping):
        if table is not None:
            raise HeedfulError(f"id2label is {table!r}; give an object, from ids to names")
        return []
    ids = [int(key) if re.fullmatch("-?[0-9]{1,9}", str(key)) else str(key) for key in table]
    wrong = next((number for number in ids if number not in range(len(ids))), None)
    if wrong is not None or len({*ids}) < len(ids):
        what = "gives an id twice" if wrong is None else f"has the id {wrong!r}"
        raise HeedfulError(f"id2label {what} among {len(ids)} names; number them 0 to {len(ids) - 1}")
    for key, name in table.items():
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise HeedfulError(f"id2label names the class {key} {name!r}; give a text")
    return [str(name) for _, name in sorted(zip(ids, table.values(), strict=True), key=lambda pair: int(pair[0]))]


def label_tables(names: list[str]) -> dict[str, Any]:
    """Label names as a foreign configuration keeps them."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
