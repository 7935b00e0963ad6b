"""Reversible config keys: keys of a Hugging Face ``config.json`` ↔ fields of our configuration.

In names and docstrings, "hub" is the ``config.json`` and "ours" is Heedful's configuration, flat (``flat_config``).
``read`` fills our flat configuration from the Hub's, ``write`` the Hub's from ours. ``write`` raises ``Inexpressible``
for a value that their layout lacks.
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
    """Exception if a model type cannot express a configuration; its message is the path of the field at fault."""


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

LAYER_TYPES = ("full_attention", "sliding_attention")

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", list: "a list"}
_NAMES |= {type(None): "a whole number"}


def checked(key: str, value: Any, default: Any) -> Any:
    """Returns ``value`` if it has the type of ``default`` (None: null or an integer), else raises ``HeedfulError``."""
    kind = type(default)
    accepted = {float: (int, float), type(None): (int, type(None))}.get(kind, (kind,))
    not_finite = isinstance(value, float) and not math.isfinite(value)  # Python's reader accepts NaN and Infinity
    if not isinstance(value, accepted) or not_finite or (isinstance(value, bool) and kind is not bool):
        raise HeedfulError(f"{key} is {value!r}; it must be {_NAMES[kind]}")
    return value


@dataclass(frozen=True)
class ConfigKey:
    """Key of a Hugging Face ``config.json`` that sets a field of our configuration, or several fields to one value.

    Attributes:
        hub_name: name of the key.
        ours: path of our field, or paths of several.
        default: value of an absent key; its type is the type of all values.
        words: maps values of ``config.json`` to ours; if several map to the same value of ours, the first is written.
        fallback: key to read instead if ``hub`` is absent or null.
        minimum: smallest allowed whole number.
        null: True if null is accepted.
    """

    hub_name: str
    ours: str | tuple[str, ...]
    default: Any
    words: Mapping[Any, Any] | None = None
    fallback: str | None = None
    minimum: int = 1
    null: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of our fields."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our fields in ``ours`` from ``hub``, the content of ``config.json``.

        ``stored`` holds the values that follow from the folder's tensors.
        """
        value = hub.get(self.hub_name, None if self.fallback else self.default)
        if value is None and self.fallback:
            value = hub.get(self.fallback, self.default)
        checked(self.hub_name, value, None if self.null and value is None else self.default)
        if type(value) is int and isinstance(self.default, int | None) and value < self.minimum:
            raise HeedfulError(f"{self.hub_name} is {value}; it must be {self.minimum} or more")
        if self.words is not None:
            if value not in self.words:
                raise HeedfulError(
                    f"{self.hub_name} is {value!r}; only {', '.join(map(repr, self.words))} are supported"
                )
            value = self.words[value]
        ours.update(dict.fromkeys(self.fields, value))

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets this key in ``hub``, the content of ``config.json``, from our fields in ``ours``."""
        if self.fields[0] not in ours:
            raise Inexpressible(self.fields[0])
        value = ours[self.fields[0]]
        hub[self.hub_name] = value if self.words is None else self._word_for(value)

    def _word_for(self, value: Any) -> Any:
        """Returns the first word of ``config.json`` that maps to our value."""
        for word, meaning in (self.words or {}).items():
            if meaning == value:
                return word
        raise Inexpressible(self.fields[0])


@dataclass(frozen=True)
class WordKey(ConfigKey):
    """Key of ``config.json`` whose value is a word, such as T5's "gated-gelu", that sets several of our fields."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our fields in ``ours`` to the values that the word in ``config.json`` (``hub``) stands for."""
        word, words = hub.get(self.hub_name, self.default), self.words or {}
        if not isinstance(word, str) or word not in words:
            raise HeedfulError(f"{self.hub_name} is {word!r}; only {', '.join(map(repr, words))} are supported")
        ours.update(zip(self.fields, words[word], strict=True))

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key in ``config.json`` (``hub``) to the first word that stands for the values of our fields."""
        hub[self.hub_name] = self._word_for(tuple(ours.get(name) for name in self.fields))


@dataclass(frozen=True)
class TokenIdKey(ConfigKey):
    """Key of ``config.json`` with a token id or null.

    With ``several``, the key has an id, a list of ids or null, and our field is a list.
    """

    several: bool = False
    required: bool = False  # their configuration refuses null

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our token id, or list of token ids, from the content of ``config.json`` (``hub``)."""
        value = hub.get(self.hub_name, self.default)
        ids = value if isinstance(value, list) and self.several else [value]
        for token_id in ids:
            checked(self.hub_name, token_id, None)
        ours.update(dict.fromkeys(self.fields, [i for i in ids if i is not None] if self.several else value))

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key in ``config.json`` (``hub``) to a token id, a list of token ids, or null."""
        super().write(ours, hub)
        if self.several:
            ids = hub[self.hub_name]
            hub[self.hub_name] = ids if len(ids) > 1 else next(iter(ids), None)
        if self.required and hub[self.hub_name] is None:
            raise Inexpressible(self.fields[0])


@dataclass(frozen=True)
class SizeKey(ConfigKey):
    """Key of ``config.json`` with a size in pixels: a side, or (height, width).

    Our field is a pair, or a side if ``square`` is True.
    """

    square: bool = False

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets the image size in pixels in ``ours`` from ``hub``, the content of ``config.json``."""
        value = hub.get(self.hub_name, self.default)
        sides = list(value) if isinstance(value, list | tuple) else [value, value]
        if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
            raise HeedfulError(f"{self.hub_name} is {value!r}; it must be a whole number or two whole numbers")
        if self.square and sides[0] != sides[1]:
            raise HeedfulError(f"{self.hub_name} is {value!r}; only squares are supported")
        ours[self.fields[0]] = sides[0] if self.square else sides

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the size in ``config.json`` (``hub``): one number if the sides are equal, else a pair."""
        super().write(ours, hub)
        if not self.square and len(set(hub[self.hub_name])) == 1:
            hub[self.hub_name] = hub[self.hub_name][0]


@dataclass(frozen=True)
class LabelKeys(ConfigKey):
    """Key ``id2label`` of ``config.json``, whose length is our number of labels; ``save`` writes the names later."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets the number of labels: the length of ``id2label``, or else ``num_labels``, or else 2."""
        names, number = label_names(hub), hub.get("num_labels", self.default)
        ours[self.fields[0]] = len(names) if names else checked("num_labels", number, 2)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets placeholders as label names: ``LABEL_0``, ``LABEL_1``, ..."""
        super().write(ours, hub)
        hub.update(label_tables([f"LABEL_{i}" for i in range(hub[self.hub_name])]))


@dataclass(frozen=True)
class StoredTensor(ConfigKey):
    """Boolean field of our configuration that is True if the tensor ``hub`` is stored and not all zeros."""

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> bool:
        """Returns True if the tensor is among the stored ones and not all zeros."""
        return self.hub_name in tensors and bool(tensors[self.hub_name].any())

    def from_config(self, ours: Flat) -> bool:
        """Returns the value that the tensors of a model with this configuration will imply once it is saved."""
        return bool(ours.get(self.fields[0]))

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our field to the value that the stored tensors imply."""
        ours[self.fields[0]] = stored.get(self.hub_name, self.default)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Writes nothing, because the stored tensor implies the value."""


@dataclass(frozen=True)
class OnlyValue:
    """Key of ``config.json`` that changes the computation, and of which only one value is supported."""

    hub_name: str
    value: Any
    default: Any  # value of an absent key

    def matches(self, hub: Mapping[str, Any]) -> bool:
        """Returns True if the key has the supported value."""
        return hub.get(self.hub_name, self.default) == self.value

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Raises ``HeedfulError`` if the key has a value that is not supported."""
        if not self.matches(hub):
            other = hub.get(self.hub_name, self.default)
            raise HeedfulError(f"{self.hub_name} is {other!r}; only {self.value!r} is supported")

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key to the supported value, unless an absent key means this value."""
        if self.value != self.default:
            hub[self.hub_name] = self.value


@dataclass(frozen=True)
class LayerTypesKey(OnlyValue):
    """Key ``layer_types`` of ``config.json``, the layers' attention types: checked here, read by ``WindowKeys``."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Raises ``HeedfulError`` for an unknown attention type."""
        kinds = hub.get(self.hub_name)
        if kinds is None:
            return
        checked(self.hub_name, kinds, [])
        for kind in kinds:
            if kind not in LAYER_TYPES:
                raise HeedfulError(
                    f"{self.hub_name} names {kind!r}; only {', '.join(map(repr, LAYER_TYPES))} are supported"
                )


@dataclass(frozen=True)
class WrittenKey:
    """Constant key of ``config.json`` that is written for other programs and not read."""

    hub_name: str
    value: Any

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Does nothing, because no field of ours corresponds to the key."""

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key in ``config.json`` (``hub``)."""
        hub[self.hub_name] = self.value


AnyConfigKey = ConfigKey | OnlyValue | WrittenKey


def required_values(**values: Any) -> tuple[OnlyValue, ...]:
    """Returns an ``OnlyValue`` for each keyword ``key=value``: the key must be absent or have this value."""
    return tuple(OnlyValue(key, value, value) for key, value in values.items())


def label_names(hub: Mapping[str, Any]) -> list[str]:
    """Returns the label names of a ``config.json``, ordered by id; [] if it has none.

    Raises ``HeedfulError`` for ids other than 0, 1, 2, ... and for names that are neither text nor whole numbers.
    """
    table = hub.get("id2label")
    if not isinstance(table, Mapping):
        if table is not None:
            raise HeedfulError(f"id2label is {table!r}; give an object that maps ids to names")
        return []
    ids = [int(key) if re.fullmatch("-?[0-9]{1,9}", str(key)) else str(key) for key in table]
    invalid = next((number for number in ids if number not in range(len(ids))), None)
    if invalid is not None or len({*ids}) < len(ids):
        problem = "gives an id twice" if invalid is None else f"has the id {invalid!r}"
        raise HeedfulError(f"id2label {problem} among {len(ids)} names; number them 0 to {len(ids) - 1}")
    for key, name in table.items():
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise HeedfulError(f"id2label gives the class {key} the name {name!r}; a name must be text")
    return [str(name) for _, name in sorted(zip(ids, table.values(), strict=True), key=lambda pair: int(pair[0]))]


def label_tables(names: list[str]) -> dict[str, Any]:
    """Returns the tables ``id2label`` and ``label2id`` of ``config.json`` for a list of label names."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def encoder_layer_keys(
    dim: int, depth: int, heads: int, ff_dim: int, norm_eps: float, activation: str = "gelu", dropout: float = 0.1
) -> tuple[AnyConfigKey, ...]:
    """Returns the config keys of the layers, which are BERT's in several model types, with a type's defaults."""
    return (
        ConfigKey("hidden_size", "encoder.dim", dim),
        ConfigKey("num_hidden_layers", "encoder.depth", depth),
        ConfigKey("num_attention_heads", "encoder.heads", heads),
        ConfigKey("intermediate_size", "encoder.ff_dim", ff_dim),
        ConfigKey("hidden_act", "encoder.activation", activation, ACTIVATIONS),
        ConfigKey("layer_norm_eps", "encoder.norm_eps", norm_eps),
        ConfigKey("hidden_dropout_prob", ("encoder.dropout.embedding", "encoder.dropout.residual"), dropout),
        ConfigKey("attention_probs_dropout_prob", "encoder.dropout.attention", dropout),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
    )


def pair_layer_keys(activation: str, vocab_size: int, attention_dropout: float) -> tuple[AnyConfigKey, ...]:
    """Returns the config keys of BART's encoder and decoder, which several model types share, with a type's defaults.

    A shared vocabulary has the key ``vocab_size``.
    """
    sides = ("encoder", "decoder")
    return (
        ConfigKey("vocab_size", "source.vocab_size", vocab_size),
        ConfigKey("d_model", ("encoder.dim", "decoder.dim"), 1024),
        *(
            ConfigKey(f"{side}_{key}", f"{side}.{ours}", default)
            for side in sides
            for key, ours, default in (
                ("layers", "depth", 12),
                ("attention_heads", "heads", 16),
                ("ffn_dim", "ff_dim", 4096),
            )
        ),
        ConfigKey("activation_function", ("encoder.activation", "decoder.activation"), activation, ACTIVATIONS),
        ConfigKey(
            "dropout", tuple(f"{side}.dropout.{site}" for side in sides for site in ("embedding", "residual")), 0.1
        ),
        ConfigKey("attention_dropout", ("encoder.dropout.attention", "decoder.dropout.attention"), attention_dropout),
        ConfigKey("activation_dropout", ("encoder.dropout.hidden", "decoder.dropout.hidden"), 0.0),
        ConfigKey("init_std", ("encoder.init_std", "decoder.init_std"), 0.02),
    )
