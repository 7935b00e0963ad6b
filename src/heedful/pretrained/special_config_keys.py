"""Config keys of single model types: rotary scaling, repeated keys, patches, windows, position rows, T5's own head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.config import PatchConfig
from heedful.errors import HeedfulError
from heedful.pretrained.config_keys import ConfigKey, Inexpressible, StoredTensor, checked
from heedful.pretrained.flat_config import Flat, nested

if TYPE_CHECKING:
    from torch import Tensor

# of each kind of rotary scaling: their keys ↔ our fields, beside the base
SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "original_max_position_embeddings": "original_length",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "attention_factor": "attention_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
    },
}
NEEDED = ("factor", "low_freq_factor", "high_freq_factor")
# keys that say nothing at these values
IDLE: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (1, None),
    "mscale": (0, None),
    "mscale_all_dim": (0, None),
    "truncate": (True, None),
}


def _positive(key: str, value: Any) -> float:
    if checked(key, value, 1.0) <= 0:
        raise HeedfulError(f"{key} is {value!r}; it must be above 0")
    return float(value)


@dataclass(frozen=True)
class RotaryKeys(ConfigKey):
    """``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling`` ↔ the fields of ``RotaryPosition``."""

    theirs: str = "rope_parameters"
    ours: str = "decoder.position"
    default: float = 10000.0

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Base and scaling; a kind of scaling, or a key of it, that we do not compute is refused by name."""
        key = "rope_scaling" if theirs.get("rope_scaling") else self.theirs
        given = theirs.get(key) or {}
        if not isinstance(given, Mapping):
            raise HeedfulError(f"{key} is {given!r}; it must be an object")
        given = {"partial_rotary_factor": theirs.get("partial_rotary_factor")} | dict(given)
        base = given.pop("rope_theta", theirs.get("rope_theta", self.default))
        older = given.pop("type", "default")
        kind = given.pop("rope_type", older)
        if not isinstance(kind, str) or kind not in SCALINGS:
            raise HeedfulError(f"rope_type is {kind!r}; only {', '.join(map(repr, SCALINGS))} are supported")
        ours[f"{self.ours}.base"] = _positive("rope_theta", base)
        ours[f"{self.ours}.scaling"] = kind
        fields = SCALINGS[kind]
        if "original_max_position_embeddings" in fields:
            given.setdefault("original_max_position_embeddings", theirs.get("max_position_embeddings", 2048))
        for name in given:
            if name not in fields and given[name] not in IDLE.get(name, ()):
                raise HeedfulError(f"{key} has {name} {given[name]!r}, which {kind!r} does not know")
        for name, field in fields.items():
            value = given.get(name)
            if value is None and name in NEEDED:
                raise HeedfulError(f"{key} of type {kind!r} lacks {name}")
            if value is not None:
                whole = field == "original_length"
                ours[f"{self.ours}.{field}"] = checked(name, value, 1) if whole else _positive(name, value)

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """In the newer spelling."""
        if f"{self.ours}.scaling" not in ours:
            raise Inexpressible(self.ours)
        kind = ours[f"{self.ours}.scaling"]
        given = {name: ours[f"{self.ours}.{field}"] for name, field in SCALINGS[kind].items()}
        given = {name: value for name, value in given.items() if value is not None}
        theirs[self.theirs] = {"rope_theta": ours[f"{self.ours}.base"], "rope_type": kind, **given}


@dataclass(frozen=True)
class RepeatedKey(ConfigKey):
    """A key of theirs that says again what a config key before has read: where it says otherwise, it is refused.

    Another program would take its word. ``words`` maps their values to ours. It is not written.
    """

    ours: str
    default: Any = None

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Refuses what does not agree."""
        value = theirs.get(self.theirs)
        meant = value if self.words is None else self.words.get(str(value))
        if value is not None and meant != ours[self.ours]:
            raise HeedfulError(f"{self.theirs} is {value!r}, but other keys make {self.ours} {ours[self.ours]!r}")

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Nothing: it is said."""


@dataclass(frozen=True)
class PatchTokensKey(ConfigKey):
    """A field of ours that follows from the patches: their number, with the prefix tokens."""

    theirs: str = ""
    ours: str = "encoder.position.length"
    default: int = 0

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Counts them."""
        patches = PatchConfig.from_dict(nested(ours)["patches"])
        ours[self.fields[0]] = patches.tokens

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Nothing: it follows."""


@dataclass(frozen=True)
class WindowKeys(ConfigKey):
    """Qwen's sliding window, which it may give to some layers only: here all of them have it, or none."""

    theirs: str = "sliding_window"
    ours: str = "decoder.window"
    default: int = 4096

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """By ``use_sliding_window``, ``layer_types`` and ``max_window_layers``."""
        used = checked("use_sliding_window", theirs.get("use_sliding_window", False), False)
        window = theirs.get(self.theirs, self.default) if used else None
        first = checked("max_window_layers", theirs.get("max_window_layers", 28), 28)
        kinds = theirs.get("layer_types")
        if kinds is None:
            kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(ours["decoder.depth"])]
        if len(checked("layer_types", kinds, [])) != ours["decoder.depth"]:
            raise HeedfulError(
                f"layer_types has {len(kinds)} words, the model {ours['decoder.depth']} layers; give each one"
            )
        if window is None or all(kind == "full_attention" for kind in kinds):
            ours[self.ours] = None
        elif all(kind == "sliding_attention" for kind in kinds):
            ours[self.ours] = checked(self.theirs, window, self.default)
        else:
            raise HeedfulError("only some layers have a sliding window (layer_types); only all or none are supported")

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Writes which layers."""
        window = ours.get(self.ours)
        kind = "full_attention" if window is None else "sliding_attention"
        theirs |= {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
        theirs["layer_types"] = [kind] * ours["decoder.depth"]


@dataclass(frozen=True)
class PositionRowsKey(ConfigKey):
    """RoBERTa's position rows, which begin after the row of the padding's id."""

    theirs: str = "max_position_embeddings"
    ours: str = "encoder.position"
    default: int = 512

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """``max_position_embeddings`` counts all rows, ours the positions."""
        rows, offset = checked(self.theirs, theirs.get(self.theirs, self.default), 1), (ours["special.pad"] or 0) + 1
        ours[f"{self.ours}.offset"], ours[f"{self.ours}.length"] = offset, rows - offset

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """All rows."""
        if f"{self.ours}.offset" not in ours:
            raise Inexpressible(self.ours)
        theirs[self.theirs] = ours[f"{self.ours}.offset"] + ours[f"{self.ours}.length"]


@dataclass(frozen=True)
class OwnHeadKeys(StoredTensor):
    """T5: whether the head has weights of its own, and whether it is scaled, two config keys that one key tells.

    ``tie_word_embeddings: false`` means both a head of its own and no scale (T5 1.1). Newer files always say true, tell
    the scale by ``scale_decoder_outputs``, and untie the head by storing it with other values than the embedding's.
    """

    theirs: str = "lm_head.weight"
    ours: tuple[str, ...] = ("head.tied", "head.scale")
    default: bool = False
    embedding: str = "shared.weight"

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> bool:
        """Returns whether it is stored with other values than the embedding's."""
        if self.theirs not in tensors or self.embedding not in tensors:
            return self.theirs in tensors
        own, shared = tensors[self.theirs], tensors[self.embedding]
        return own.shape != shared.shape or not own.equal(shared)

    def from_config(self, ours: Flat) -> bool:
        """Returns whether it will be."""
        return not ours.get("head.tied")

    def read(self, theirs: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """From the tensors and both keys."""
        tied = checked("tie_word_embeddings", theirs.get("tie_word_embeddings", True), True)
        scaled = checked("scale_decoder_outputs", theirs.get("scale_decoder_outputs", tied), True)
        ours["head.tied"] = tied and not stored.get(self.theirs, self.default)
        ours["head.scale"] = "sqrt" if scaled else "none"

    def write(self, ours: Flat, theirs: dict[str, Any]) -> None:
        """Both keys, the first as older programs read it."""
        scaled = ours.get("head.scale") == "sqrt"
        theirs["tie_word_embeddings"] = bool(ours.get("head.tied")) or scaled
        theirs["scale_decoder_outputs"] = scaled
