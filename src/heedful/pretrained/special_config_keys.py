"""Config keys that few model types have: rotary scaling, patches, windows, T5's head, configurations in another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.config import DISTANCES, PatchConfig
from heedful.errors import HeedfulError
from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    LAYER_TYPES,
    AnyConfigKey,
    ConfigKey,
    Inexpressible,
    OnlyValue,
    SizeKey,
    StoredTensor,
    TokenIdKey,
    WrittenKey,
    checked,
)
from heedful.pretrained.flat_config import Flat, nested
from heedful.pretrained.rules import moved_name

if TYPE_CHECKING:
    from torch import Tensor

# kinds of rotary scaling: their keys ↔ our fields, besides the base
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
REQUIRED = ("factor", "low_freq_factor", "high_freq_factor")
# keys that have no effect at these values
NEUTRAL: dict[str, tuple[Any, ...]] = {
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
    """Keys of rotary positions: ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``.

    Attributes:
        share: default of ``partial_rotary_factor``; None: all features of a head are rotated.
        names: older names of ``rope_theta`` and ``partial_rotary_factor``.
        kinds: kinds of scaling that the model type has.
    """

    hub_name: str = "rope_parameters"
    ours: str = "decoder.position"
    default: float = 10000.0
    share: float | None = None
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    kinds: tuple[str, ...] = tuple(SCALINGS)

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets the base and scaling of our rotary positions; an error names an unsupported kind of scaling, or key."""
        key = "rope_scaling" if hub.get("rope_scaling") else self.hub_name
        settings = hub.get(key) or {}
        if not isinstance(settings, Mapping):
            raise HeedfulError(f"{key} is {settings!r}; it must be an object")
        older_base, older_share = self.names
        settings = {"partial_rotary_factor": hub.get(older_share, self.share)} | dict(settings)
        base = settings.pop("rope_theta", hub.get(older_base, self.default))
        if self.share is not None:
            share = settings.pop("partial_rotary_factor")
            ours[f"{self.ours}.share"] = _positive("partial_rotary_factor", share)
        older_kind = settings.pop("type", "default")
        kind = settings.pop("rope_type", older_kind)
        if kind not in self.kinds:
            verb = "is" if len(self.kinds) == 1 else "are"
            raise HeedfulError(f"rope_type is {kind!r}; only {', '.join(map(repr, self.kinds))} {verb} supported")
        ours[f"{self.ours}.base"] = _positive("rope_theta", base)
        ours[f"{self.ours}.scaling"] = kind
        fields = SCALINGS[kind]
        if "original_max_position_embeddings" in fields:
            settings.setdefault("original_max_position_embeddings", hub.get("max_position_embeddings", 2048))
        for name, value in settings.items():
            if name not in fields and value not in NEUTRAL.get(name, ()):
                raise HeedfulError(f"{key} has {name} {value!r}, which {kind!r} does not have; remove it")
        for name, field in fields.items():
            value = settings.get(name)
            if value is None and name in REQUIRED:
                raise HeedfulError(f"{key} of type {kind!r} lacks {name}; add it")
            if value is not None:
                is_length = field == "original_length"
                ours[f"{self.ours}.{field}"] = checked(name, value, 1) if is_length else _positive(name, value)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets ``rope_parameters``, the newer key, in ``config.json``."""
        if f"{self.ours}.scaling" not in ours:
            raise Inexpressible(self.ours)
        kind = ours[f"{self.ours}.scaling"]
        if kind not in self.kinds:
            raise Inexpressible(f"{self.ours}.scaling")
        scaling = {name: ours[f"{self.ours}.{field}"] for name, field in SCALINGS[kind].items()}
        scaling = {name: value for name, value in scaling.items() if value is not None}
        share = {} if self.share is None else {"partial_rotary_factor": ours[f"{self.ours}.share"]}
        hub[self.hub_name] = {"rope_theta": ours[f"{self.ours}.base"], "rope_type": kind, **scaling, **share}


@dataclass(frozen=True)
class RotaryDimKey(ConfigKey):
    """Key of GPT-J with the number of features of a head that are rotated; ours is their share of the head."""

    hub_name: str = "rotary_dim"
    ours: str = "decoder.position.share"
    default: int = 64

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our share, so that the product with the size of a head, rounded down, is the number."""
        super().read(hub, ours, stored)
        number, size = ours[self.ours], ours["decoder.dim"] // ours["decoder.heads"]
        if number > size:
            raise HeedfulError(f"{self.hub_name} is {number}, but a head has {size} features; give at most {size}")
        share = number / size
        ours[self.ours] = share if int(size * share) == number else math.nextafter(share, 1)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the number of features."""
        super().write(ours, hub)
        hub[self.hub_name] = int(ours["decoder.head_dim"] * hub[self.hub_name])


@dataclass(frozen=True)
class RepeatedKey(ConfigKey):
    """Redundant key of ``config.json``: it is compared with the keys that were read before it, and not written.

    Other programs may read this key instead. ``words`` maps values of ``config.json`` to ours.
    """

    ours: str
    default: Any = None

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Raises ``HeedfulError`` if the key contradicts a field that other keys have set."""
        value = hub.get(self.hub_name)
        our_value = value if self.words is None else self.words.get(str(value))
        if value is not None and our_value != ours[self.ours]:
            raise HeedfulError(
                f"{self.hub_name} is {value!r}, but other keys set {self.ours} to {ours[self.ours]!r}; correct one of "
                "them"
            )

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Writes nothing, because the key is redundant."""


@dataclass(frozen=True)
class PatchTokensKey(ConfigKey):
    """Number of positions of an image, which ``config.json`` lacks: the number of patches plus prefix tokens."""

    hub_name: str = ""
    ours: str = "encoder.position.length"
    default: int = 0

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our number of positions from the sizes of image and patches."""
        patches = PatchConfig.from_dict(nested(ours)["patches"])
        ours[self.fields[0]] = patches.tokens

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Writes nothing, because the sizes imply the number of positions."""


@dataclass(frozen=True)
class SquareImageKey(SizeKey):
    """Key of ``config.json`` with the side of square images; positions of others would be interpolated at each call."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our image size; raises ``HeedfulError`` for two different sides."""
        super().read(hub, ours, stored)
        if len({*ours[self.fields[0]]}) > 1:
            raise HeedfulError(f"{self.hub_name} is {hub[self.hub_name]!r}; only squares are supported")


@dataclass(frozen=True)
class FeedForwardRatioKeys(ConfigKey):
    """Keys of DINOv2's feed-forward network: ``mlp_ratio``, ``use_swiglu_ffn``, and ``hidden_act`` of one without gate.

    With a gate, two thirds of the width remain, rounded up to a multiple of 8.
    """

    hub_name: str = "mlp_ratio"
    ours: str = "encoder.ff_dim"
    default: int = 4

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets width, gate and activation."""
        super().read(hub, ours, stored)
        width = ours[self.ours] * ours["encoder.dim"]
        gated = checked("use_swiglu_ffn", hub.get("use_swiglu_ffn", False), False)
        ours |= {self.ours: (int(width * 2 / 3) + 7) // 8 * 8 if gated else width, "encoder.gated": gated}
        ConfigKey("hidden_act", "encoder.activation", "gelu", ACTIVATIONS).read(hub, ours, stored)
        if gated:
            ours["encoder.activation"] = "silu"

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the keys; the ratio is the nearest, which gives another width if none is expressible."""
        gated = ours["encoder.gated"]
        ratio = ours[self.ours] * (1.5 if gated else 1.0) / ours["encoder.dim"]
        hub |= {self.hub_name: max(1, round(ratio)), "use_swiglu_ffn": gated}
        if not gated:
            ConfigKey("hidden_act", "encoder.activation", "gelu", ACTIVATIONS).write(ours, hub)


def one_window(ours: Flat, path: str) -> tuple[int | None, list[int | None]]:
    """Returns the window that some blocks have, and the pattern of blocks; ``Inexpressible`` for several windows."""
    window = ours.get(path)
    pattern = window if isinstance(window, list) else [window]
    sizes = {*pattern} - {None}
    if len(sizes) > 1:
        raise Inexpressible(path)
    return next(iter(sizes), None), pattern


@dataclass(frozen=True)
class WindowKeys(ConfigKey):
    """Keys of Qwen's sliding attention window. Each layer has the window, or none."""

    hub_name: str = "sliding_window"
    ours: str = "decoder.window"
    default: int = 4096

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our window from the keys ``use_sliding_window``, ``layer_types`` and ``max_window_layers``."""
        used = checked("use_sliding_window", hub.get("use_sliding_window", False), False)
        window = hub.get(self.hub_name, self.default) if used else None
        first = checked("max_window_layers", hub.get("max_window_layers", 28), 28)
        kinds = hub.get("layer_types")
        if kinds is None:
            kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(ours["decoder.depth"])]
        kinds = _one_a_layer(kinds, ours["decoder.depth"])
        if window is not None and "sliding_attention" in kinds:
            size = checked(self.hub_name, window, self.default)
            ours[self.ours] = [size if kind == "sliding_attention" else None for kind in kinds]
        else:
            ours[self.ours] = None

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the size of the attention window, and each layer's type: sliding or full attention."""
        size, pattern = one_window(ours, self.ours)
        kinds = ["full_attention" if window is None else "sliding_attention" for window in pattern]
        dense = 0 if size is None else kinds.index("sliding_attention")  # before the first layer with a window
        hub |= {"use_sliding_window": size is not None, "sliding_window": size, "max_window_layers": dense}
        hub["layer_types"] = [kinds[layer % len(kinds)] for layer in range(ours["decoder.depth"])]


@dataclass(frozen=True)
class TwoSidedWindowKeys(ConfigKey):
    """Keys of ModernBERT's windows: ``local_attention``, and the layers that have it.

    Those are in ``layer_types``, or in older files all but each ``global_attn_every_n_layers``-th.
    """

    hub_name: str = "local_attention"
    ours: str = "encoder.window"
    default: int = 128

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our window of each block."""
        ConfigKey(self.hub_name, self.ours, self.default).read(hub, ours, stored)
        size, depth, kinds = ours[self.ours], ours["encoder.depth"], hub.get("layer_types")
        if kinds is None:
            every = checked("global_attn_every_n_layers", hub.get("global_attn_every_n_layers", 3), 3)
            if every < 1:
                raise HeedfulError(f"global_attn_every_n_layers is {every}; it must be 1 or more")
            kinds = ["sliding_attention" if layer % every else "full_attention" for layer in range(depth)]
        if len(kinds) != depth:
            raise HeedfulError(
                f"layer_types has {len(kinds)} words, but the model has {depth} layers; give one word per layer"
            )
        ours[self.ours] = [size if kind == "sliding_attention" else None for kind in kinds]

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the size of the window, and each layer's type."""
        size, pattern = one_window(ours, self.ours)
        hub[self.hub_name] = self.default if size is None else size
        kinds = ["full_attention" if window is None else "sliding_attention" for window in pattern]
        hub["layer_types"] = [kinds[layer % len(kinds)] for layer in range(ours["encoder.depth"])]


@dataclass(frozen=True)
class TwoBasesKeys(ConfigKey):
    """Keys of ModernBERT's rotary bases, of layers without and with a window: ``rope_parameters``, by the layer's type.

    Older files have ``global_rope_theta`` and ``local_rope_theta``.
    """

    hub_name: str = "rope_parameters"
    ours: str = "encoder.position"
    default: float = 160000.0
    window_default: float = 10000.0

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets both bases, and the scaling of the layers without a window."""
        if hub.get("rope_scaling") is not None:
            raise HeedfulError(f"rope_scaling is {hub['rope_scaling']!r}; only None is supported")
        settings = hub.get(self.hub_name) or {}
        if not isinstance(settings, Mapping):
            raise HeedfulError(f"{self.hub_name} is {settings!r}; it must be an object")
        dense, banded = ({self.hub_name: settings.get(kind)} for kind in ("full_attention", "sliding_attention"))
        length = {"max_position_embeddings": hub.get("max_position_embeddings", 8192)}
        window: Flat = {}
        RotaryKeys(default=self.window_default, names=("local_rope_theta", ""), kinds=("default",), ours="").read(
            {**hub, **banded}, window, stored
        )
        RotaryKeys(default=self.default, names=("global_rope_theta", ""), ours=self.ours).read(
            {**hub, **dense, **length}, ours, stored
        )
        ours[f"{self.ours}.window_base"] = window[".base"]

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets ``rope_parameters`` for both types of layers."""
        if ours.get(f"{self.ours}.window_base") is None:
            raise Inexpressible(f"{self.ours}.window_base")
        RotaryKeys(ours=self.ours).write(ours, hub)
        banded = {"rope_theta": ours[f"{self.ours}.window_base"], "rope_type": "default"}
        hub[self.hub_name] = {"full_attention": hub[self.hub_name], "sliding_attention": banded}


@dataclass(frozen=True)
class AlternatingWindowKeys(ConfigKey):
    """Keys of Gemma 2's sliding attention window: ``sliding_window`` and ``layer_types``.

    By default every second layer has the window, from the first on.
    """

    hub_name: str = "sliding_window"
    ours: str = "decoder.window"
    default: int = 4096

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our window of each block."""
        depth, size = ours["decoder.depth"], checked(self.hub_name, hub.get(self.hub_name, self.default), self.default)
        kinds = hub.get("layer_types") or [LAYER_TYPES[1 - layer % 2] for layer in range(depth)]
        ours[self.ours] = [size if kind == "sliding_attention" else None for kind in _one_a_layer(kinds, depth)]

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the size of the window, and each layer's type: sliding or full attention."""
        size, pattern = one_window(ours, self.ours)
        kinds = [LAYER_TYPES[window is not None] for window in pattern]
        hub[self.hub_name] = self.default if size is None else size
        hub["layer_types"] = [kinds[layer % len(kinds)] for layer in range(ours["decoder.depth"])]


def _one_a_layer(kinds: list[Any], depth: int) -> list[Any]:
    """Returns the types of the layers; raises ``HeedfulError`` unless there is one for each layer."""
    if len(checked("layer_types", kinds, [])) != depth:
        raise HeedfulError(
            f"layer_types has {len(kinds)} words, but the model has {depth} layers; give one word per layer"
        )
    return kinds


@dataclass(frozen=True)
class ScoreScaleKey(ConfigKey):
    """Key with the whole number whose square root divides the scores: our "sqrt" if it is the size of a head."""

    hub_name: str = "query_pre_attn_scalar"
    ours: str = "decoder.scale"
    default: int = 256

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our scale."""
        super().read(hub, ours, stored)
        ours[self.ours] = "sqrt" if ours[self.ours] == ours["decoder.head_dim"] else ours[self.ours] ** -0.5

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key to the number that gives our scale."""
        scale = 1.0 if ours[self.ours] == "none" else ours[self.ours]
        hub[self.hub_name] = ours["decoder.head_dim"] if scale == "sqrt" else round(scale**-2)
        if scale not in ("sqrt", hub[self.hub_name] ** -0.5):
            raise Inexpressible(self.ours)


@dataclass(frozen=True)
class AttentionTypesKeys(ConfigKey):
    """Keys of GPT-Neo's windows: ``attention_types``, as ``[[["global", "local"], 12]]``, and ``window_size``."""

    hub_name: str = "attention_types"
    ours: str = "decoder.window"
    default: int = 256

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our window of each block: ``window_size`` of a local one, none of a global one."""
        types, kinds = hub.get(self.hub_name) or [[["global", "local"], 12]], list[Any]()
        for item in checked(self.hub_name, types, []):
            match item:
                case [[*words], int(times)] if 0 <= times <= ours["decoder.depth"]:
                    kinds += words * times
                case _:
                    raise HeedfulError(f'{self.hub_name} has {item!r}; give words and how often, as [["global"], 2]')
        unknown = next((kind for kind in kinds if kind not in ("global", "local")), None)
        if unknown is not None:
            raise HeedfulError(f"{self.hub_name} names {unknown!r}; only 'global', 'local' are supported")
        if len(kinds) != ours["decoder.depth"]:
            raise HeedfulError(
                f"{self.hub_name} has {len(kinds)} words, but the model has {ours['decoder.depth']} layers; give one "
                "word per layer"
            )
        size = checked("window_size", hub.get("window_size", self.default), self.default)
        ours[self.ours] = [size if kind == "local" else None for kind in kinds]

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the types of the layers, and the size of the window of the local ones."""
        size, pattern = one_window(ours, self.ours)
        depth, kinds = ours["decoder.depth"], ["global" if window is None else "local" for window in pattern]
        times, rest = divmod(depth, len(kinds))
        hub[self.hub_name] = [[kinds, times]] + ([[kinds[:rest], 1]] if rest else [])
        hub["window_size"] = self.default if size is None else size


@dataclass(frozen=True)
class SparseLayersKey(ConfigKey):
    """Key of Switch Transformers with the number of layers that have experts, in the stack that ``ours`` names.

    Their layers 1, 1 + step, ... have experts, counted from 0, where the step is the number of all layers divided by
    this number, rounded down, or for 0 the number of all layers.
    """

    ours: str

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our step."""
        sparse, depth = checked(self.hub_name, hub.get(self.hub_name, self.default), 0), ours[f"{self.ours}.depth"]
        if sparse > depth:  # the step would be 0
            raise HeedfulError(f"{self.hub_name} is {sparse}, of {depth} layers, so that none has experts; use T5")
        ours[f"{self.ours}.experts.step"] = depth // sparse if sparse > 0 else depth

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the number of layers with experts."""
        step, depth = ours.get(f"{self.ours}.experts.step"), ours[f"{self.ours}.depth"]
        if step is None or depth // max(1, depth // step) != step:
            raise Inexpressible(f"{self.ours}.experts.step")
        hub[self.hub_name] = depth // step


@dataclass(frozen=True)
class OptionalKey(ConfigKey):
    """Key of ``config.json`` that may be absent or null, our None, which is not written."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our field; None if the key is absent or null."""
        if hub.get(self.hub_name) is None:
            ours.update(dict.fromkeys(self.fields))
        else:
            super().read(hub, ours, stored)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key, unless our field is None."""
        if ours.get(self.fields[0]) is not None:
            super().write(ours, hub)


@dataclass(frozen=True)
class EmbeddingSizeKey(ConfigKey):
    """Key of ELECTRA's width of the embedding, which is projected to the model's width if the two differ."""

    hub_name: str = "embedding_size"
    ours: str = "encoder.embedding_dim"
    default: int = 128

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our width of the embedding; None if it is the model's."""
        super().read(hub, ours, stored)
        if ours[self.ours] == ours["encoder.dim"]:
            ours[self.ours] = None

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key, which never means a projection between equal widths."""
        super().write(ours, hub)
        hub[self.hub_name] = hub[self.hub_name] or ours["encoder.dim"]


@dataclass(frozen=True)
class GroupsKey(ConfigKey):
    """Key of ALBERT's number of groups of layers, of which each has weights of its own: 1, or one for each layer."""

    hub_name: str = "num_hidden_groups"
    ours: str = "encoder.distinct_blocks"
    default: int = 1

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our number of distinct blocks; None if each has its own weights."""
        super().read(hub, ours, stored)
        groups, depth = ours[self.ours], ours["encoder.depth"]
        if groups not in (1, depth):
            raise HeedfulError(f"{self.hub_name} is {groups}; only 1 and the number of layers, {depth}, are supported")
        ours[self.ours] = None if groups == depth else groups

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key."""
        super().write(ours, hub)
        hub[self.hub_name] = hub[self.hub_name] or ours["encoder.depth"]


@dataclass(frozen=True)
class SpanKey(ConfigKey):
    """Key of DeBERTa with a number of distances, of which every number below 1 means that it is not set: our 0."""

    default: int

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our number of distances."""
        value = checked(self.hub_name, hub.get(self.hub_name, self.default), self.default)
        ours.update(dict.fromkeys(self.fields, max(0, value)))

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key, to its default if our number is 0."""
        super().write(ours, hub)
        hub[self.hub_name] = hub[self.hub_name] or self.default


@dataclass(frozen=True)
class HeadSizeKey(RepeatedKey):
    """Key with the size of a head, which must be the width divided by the number of heads, and is always written."""

    hub_name: str = "d_head"
    ours: str = "encoder"
    default: Any = None

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Raises ``HeedfulError`` for another size of a head."""
        size = ours[f"{self.ours}.dim"] // ours[f"{self.ours}.heads"]
        super().read(hub, {self.ours: size}, stored)
        ours[f"{self.ours}.head_dim"] = size

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the size of a head."""
        hub[self.hub_name] = ours[f"{self.ours}.head_dim"]


@dataclass(frozen=True)
class ConvolutionKeys(ConfigKey):
    """Keys of the convolution of DeBERTa v2: ``conv_kernel_size``, 0 for none, and ``conv_act``."""

    hub_name: str = "conv_kernel_size"
    ours: str = "encoder.convolution"
    default: int = 0

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our convolution, or None."""
        size = checked(self.hub_name, hub.get(self.hub_name, self.default), self.default)
        if size <= 0:
            ours[self.ours] = None
            return
        ours |= {f"{self.ours}.kind": "convolution", f"{self.ours}.size": size}
        ConfigKey("conv_act", f"{self.ours}.activation", "tanh", ACTIVATIONS).read(hub, ours, stored)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets both keys, if there is a convolution."""
        if f"{self.ours}.size" in ours:
            hub[self.hub_name] = ours[f"{self.ours}.size"]
            ConfigKey("conv_act", f"{self.ours}.activation", "tanh", ACTIVATIONS).write(ours, hub)


@dataclass(frozen=True)
class TermsKey(ConfigKey):
    """Key of the terms of DeBERTa's scores: a list of "p2c" and "c2p", or both in a word, "p2c|c2p"."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our terms."""
        value = hub.get(self.hub_name) or []
        names = [name.strip() for name in value.lower().split("|")] if isinstance(value, str) else value
        if not isinstance(names, list) or any(name not in ("p2c", "c2p") for name in names):
            raise HeedfulError(f"{self.hub_name} is {value!r}; only 'p2c' and 'c2p' are supported")
        ours[self.fields[0]] = "both" if len({*names}) == 2 else names[0] if names else "none"

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the list of the terms."""
        if self.fields[0] not in ours:
            raise Inexpressible(self.fields[0])
        terms = ours[self.fields[0]]
        hub[self.hub_name] = {"both": ["p2c", "c2p"], "none": []}.get(terms, [terms])


@dataclass(frozen=True)
class PositionRowsKey(ConfigKey):
    """Key of RoBERTa's positions, of which the first is the table's row after the padding token's id.

    In MPNet it is always the row ``first``.
    """

    hub_name: str = "max_position_embeddings"
    ours: str = "encoder.position"
    default: int = 512
    first: int | None = None

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our offset and length from ``max_position_embeddings``, which counts all rows of the table."""
        rows = checked(self.hub_name, hub.get(self.hub_name, self.default), 1)
        offset = (ours["special.pad"] or 0) + 1 if self.first is None else self.first
        ours[f"{self.ours}.offset"], ours[f"{self.ours}.length"] = offset, rows - offset

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets ``max_position_embeddings`` to the number of all rows of the table."""
        if f"{self.ours}.offset" not in ours or f"{self.ours}.length" not in ours:
            raise Inexpressible(self.ours)
        hub[self.hub_name] = ours[f"{self.ours}.offset"] + ours[f"{self.ours}.length"]


@dataclass(frozen=True)
class ShiftedSinusoidKey(ConfigKey):
    """Padding token of M2M-100, whose sinusoids follow from its id and from the width D.

    Position 0 has the row after the padding's id. Pair i turns by 10000^(−i / (D/2 − 1)) a position, so that the last
    of the D/2 pairs has the wavelength 2π · 10000: our 2i/D with the base 10000^(D / (D − 2)).
    """

    hub_name: str = "pad_token_id"
    ours: tuple[str, ...] = ("encoder.position", "decoder.position")
    default: int = 1
    minimum: int = 0

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our padding token, and offset and base of the sinusoids; raises ``HeedfulError`` if they have none."""
        found: Flat = {}
        super().read(hub, found, stored)
        if (other := hub.get("_pad_token_id")) is not None:
            raise HeedfulError(
                f"pad_token_id is {other} in config.json, but {hub[self.hub_name]} in generation_config.json, and "
                "positions follow from it; make them equal"
            )
        pad, dim = found[self.fields[0]], ours["encoder.dim"]
        if dim % 2 or dim < 4:
            raise HeedfulError(f"d_model is {dim}; the sinusoids need an even number, 4 or more")
        if pad >= ours["source.vocab_size"]:
            raise HeedfulError(f"{self.hub_name} is {pad}; it must be below vocab_size, {ours['source.vocab_size']}")
        if pad == ours["special.start"]:
            raise HeedfulError(
                f"decoder_start_token_id is {pad}, the padding token, which has no position; give another"
            )
        ours["special.pad"] = pad
        for position in self.fields:
            ours[f"{position}.offset"], ours[f"{position}.base"] = pad + 1, 10000.0 ** (dim / (dim - 2))

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the padding token; offset and base are compared when the file is read back."""
        if ours["special.pad"] is None:
            raise Inexpressible("special.pad")
        hub[self.hub_name] = ours["special.pad"]


@dataclass(frozen=True)
class StoredSinusoidKey(WrittenKey):
    """Number of rows of Pegasus' sinusoids, whose table a file holds; the model computes more positions too."""

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Raises ``HeedfulError`` for a number of rows that no table has."""
        rows = checked(self.hub_name, hub.get(self.hub_name, self.value), self.value)
        if not 0 < rows <= DISTANCES:
            raise HeedfulError(f"{self.hub_name} is {rows}; it must be 1 to {DISTANCES}")


@dataclass(frozen=True)
class OwnHeadKeys(StoredTensor):
    """Keys of T5's head, which may be tied to the embedding, and whose input may be scaled.

    ``tie_word_embeddings: false`` means both an untied head and no scale (T5 1.1). Newer files always have true, set
    the scale by ``scale_decoder_outputs``, and store an untied head with other values than the embedding's.
    """

    hub_name: str = "lm_head.weight"
    ours: tuple[str, ...] = ("head.tied", "head.scale")
    default: bool = False
    embedding: str = "shared.weight"
    may_scale: bool = True  # False: mT5, which never scales, and whose ``tie_word_embeddings`` means nothing

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> bool:
        """Returns True if the head is stored with other values than the embedding's."""
        if self.hub_name not in tensors or self.embedding not in tensors:
            return self.hub_name in tensors
        own, shared = tensors[self.hub_name], tensors[self.embedding]
        return own.shape != shared.shape or not own.equal(shared)

    def from_config(self, ours: Flat) -> bool:
        """Returns True if the head will be stored with other values than the embedding's."""
        return not ours.get("head.tied")

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets whether our head is tied and scaled, from the stored tensors and both keys."""
        tied = checked("tie_word_embeddings", hub.get("tie_word_embeddings", True), True) or not self.may_scale
        scaled = checked("scale_decoder_outputs", hub.get("scale_decoder_outputs", tied), True)
        ours["head.tied"] = tied and not stored.get(self.hub_name, self.default)
        ours["head.scale"] = "sqrt" if scaled and self.may_scale else "none"

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets both keys; ``tie_word_embeddings`` has the meaning that it has for older programs."""
        scaled = ours.get("head.scale") == "sqrt"
        hub["tie_word_embeddings"] = bool(ours.get("head.tied")) or scaled
        if self.may_scale:
            hub["scale_decoder_outputs"] = scaled


@dataclass(frozen=True)
class SubConfig(OnlyValue):
    """Key of ``config.json`` that holds the configuration of a model of its own, of the model type ``value``.

    Attributes:
        config_keys: the keys of that configuration.
        moved: beginnings of our fields' paths: of the model on its own → of the model that contains it.
        known: the model types that other architectures have here, for messages.
    """

    config_keys: tuple[AnyConfigKey, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    known: tuple[str, ...] = ()

    def matches(self, hub: Mapping[str, Any]) -> bool:
        """Returns True if the key holds the configuration of the model type ``value``."""
        inner = hub.get(self.hub_name)
        return isinstance(inner, Mapping) and inner.get("model_type") == self.value

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our fields from the keys of the inner configuration; messages name the key, ``encoder.hidden_size``."""
        inner = hub.get(self.hub_name)
        if not isinstance(inner, Mapping):
            raise HeedfulError(f"{self.hub_name} is {inner!r}; it must be an object, the model's configuration")
        if not self.matches(hub):
            names = " and ".join(map(repr, self.known))
            raise HeedfulError(f"{self.hub_name}.model_type is {inner.get('model_type')!r}; only {names} is supported")
        fields = self._inner_fields(ours)
        for config_key in self.config_keys:
            try:
                config_key.read(inner, fields, stored)
            except HeedfulError as error:
                raise HeedfulError(f"{self.hub_name}.{error}") from None
        ours.update({moved_name(path, self.moved): value for path, value in fields.items()})

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key to the inner configuration of our fields."""
        fields, inner = self._inner_fields(ours), {"model_type": self.value}
        for config_key in self.config_keys:
            config_key.write(fields, inner)
        hub[self.hub_name] = inner

    def _inner_fields(self, ours: Flat) -> Flat:
        """Returns our fields by their paths in the model on its own."""
        back = [(outer, inner) for inner, outer in self.moved]
        return {moved_name(path, back): value for path, value in ours.items()}


@dataclass(frozen=True)
class OuterTokenIdKey(TokenIdKey):
    """Token id beside the two configurations, which the decoder's own id stands for if it is absent or null.

    Of several keys (``fallback``), the first that is not null is read.
    """

    inner: str = ""  # the decoder's key

    def read(self, hub: Mapping[str, Any], ours: Flat, stored: Mapping[str, bool]) -> None:
        """Sets our token id, or list of token ids."""
        decoder = hub.get("decoder")
        own = decoder.get(self.inner, self.default) if isinstance(decoder, Mapping) else self.default
        outer = (hub.get(key) for key in (self.hub_name, self.fallback) if key is not None)
        value = next((token for token in outer if token is not None), own)
        super().read({self.hub_name: value}, ours, stored)

    def write(self, ours: Flat, hub: dict[str, Any]) -> None:
        """Sets the key, and the decoder's own, which would otherwise have its default."""
        super().write(ours, hub)
        if "decoder" in hub:  # else the configuration has parts that the layout lacks
            hub["decoder"][self.inner] = hub[self.hub_name]
