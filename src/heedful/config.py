"""Model configurations: frozen dataclasses that serialise. Imports no torch.

``StackConfig`` describes a stack of blocks; the configuration of a family holds one or two stacks, its embedding and
its head. A choice is a word from a closed list (``Literal``), or one small dataclass for each case, looked up in a
table when the part is built. Nothing depends on the name of a model.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from heedful.errors import HeedfulError, nearest
from heedful.util.values import fits, type_in_words

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Norm = Literal["layer", "rms", "rms-offset", "batch"]  # or a registered name, as of attention, feed-forward and block
Pooling = Literal["first", "last", "mean", "max"]
OwnHead = Literal["standard"]  # or the name of a registered head, in place of the class of this configuration


_hints = cache(get_type_hints)  # which compiles every annotation at each call
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {  # field of type float: its check, and the check in words
    **dict.fromkeys(
        ("dropout", "pooler_dropout", "embedding", "attention", "hidden", "residual"),
        (lambda p: 0 <= p < 1, "a probability below 1"),
    ),
    "share": (lambda v: 0 < v <= 1, "a number above 0, at most 1"),
    "jitter": (lambda v: 0 <= v < 1, "a number from 0 to below 1"),
    **dict.fromkeys(
        ("norm_eps", "init_std", "balance", "z_loss"), (lambda v: 0 <= v < math.inf, "0 or a finite number above it")
    ),
    **dict.fromkeys(
        (
            *("score_cap", "logit_cap"),
            *("base", "window_base", "factor", "attention_factor", "beta_fast", "beta_slow"),
            *("low_frequency_factor", "high_frequency_factor"),
        ),
        (lambda v: 0 < v < math.inf, "a finite number above 0"),
    ),
}


# names of parts that ``heedful.register`` added, by kind; the field of ``StackConfig`` or a head has the same name
REGISTERED: dict[str, set[str]] = {
    kind: set() for kind in ("norm", "position", "attention", "feed_forward", "block", "head")
}


def unregistered(kind: str, name: str) -> str:
    """Returns the remedy for a part whose name is not registered, for messages."""
    return f"register it first: heedful.register({kind!r}, {name!r}, ...), or --import the file with that line"


INTEGERS = 1 << 63  # tensors hold integers below this
DISTANCES = 1 << 20  # maximum distance of positions with a row in a table
RELATIVE_SEGMENTS = 3  # XLNet's: two texts and the class token; attention only compares them


class Config:
    """Base class of all configurations: checks its fields, and converts to a dictionary and back.

    ``to_dict`` writes the class as ``"kind"``. ``from_dict`` raises for an unknown kind, key or word and names the
    nearest.
    """

    kind: ClassVar[str]
    least: ClassVar[int] = 1  #: lower bound of integers whose default is not 0
    kinds: ClassVar[dict[str, type[Config]]] = {}

    def __init_subclass__(cls) -> None:
        Config.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]  # a class can be hashed
        for f in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, hint = getattr(self, f.name), hints[f.name]
            names_part = f.name in REGISTERED and isinstance(value, str) and not isinstance(self, ModelConfig)
            if names_part and value in REGISTERED[f.name]:
                continue
            if not fits(value, hint):
                words = get_args(hint) if get_origin(hint) is Literal else None
                known = {*(words or ()), *(REGISTERED[f.name] if names_part else ())}
                remedy = nearest(str(value), known) if known else f"give {type_in_words(hint)}"
                if names_part:
                    remedy += f"; or {unregistered(f.name, value)}"
                raise HeedfulError(f"{self.kind}.{f.name} is {value!r}; {remedy}")
            least = 0 if f.default == 0 else self.least
            for number in value if isinstance(value, tuple) else (value,):
                if type(number) is int and number < least:
                    raise HeedfulError(f"{self.kind}.{f.name} is {number}; give at least {least}")
                is_valid, valid = _RANGES.get(f.name, (math.isfinite, "a finite number"))
                if hint in (float, float | None) and number is not None and not is_valid(number):
                    raise HeedfulError(f"{self.kind}.{f.name} is {number}; give {valid}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as plain JSON values."""
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Returns the configuration of a dictionary as ``to_dict`` writes it.

        Raises:
            HeedfulError: for an unknown kind, key or word, and a missing key.
        """
        kind = str(data.get("kind", cls.kind if cls is not Config else None))
        config = Config.kinds.get(kind)
        if config is None:
            raise HeedfulError(f"unknown kind of configuration {kind!r}; {nearest(kind, Config.kinds)}")
        if not issubclass(config, cls):
            raise HeedfulError(f"the configuration is of kind {kind!r}; give one of kind {cls.kind!r}")
        hints = _hints(config)  # type: ignore[arg-type]  # a class can be hashed
        names = [f.name for f in fields(config)]  # type: ignore[arg-type]  # subclasses are dataclasses
        for key in data:
            if key != "kind" and key not in names:
                raise HeedfulError(f"unknown key {key!r} in a {kind!r} configuration; {nearest(key, names)}")
        try:
            return config(**{k: _typed(hints[k], v) for k, v in data.items() if k != "kind"})
        except TypeError as error:  # Python's message names the missing keys
            raise HeedfulError(f"a {kind!r} configuration is incomplete: {error}; add the missing keys") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _typed(hint: Any, value: Any) -> Any:
    cases = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if isinstance(value, Mapping):
        owners = [case for case in cases if isinstance(case, type) and issubclass(case, Config)]
        return (owners[0] if len(owners) == 1 else Config).from_dict(value)
    return tuple(_typed(Any, part) for part in value) if isinstance(value, list) else value


# --------------------------------------------------------------------------------------------- positions, one case each


@dataclass(frozen=True, kw_only=True)
class NoPosition(Config):
    """No positions: the order of tokens has no effect."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class SinusoidalPosition(Config):
    """Fixed sines and cosines added to the embedding: interleaved as in the paper, or all sines first ("halves")."""

    kind: ClassVar[str] = "sinusoidal"
    order: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10000.0
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class LearnedPosition(Config):
    """A learned row for each of ``length`` positions, added to the embedding; position 0 has row ``offset``.

    With ``buckets``, the scores have also the bias of ``RelativePosition``, as in MPNet (Song et al. 2020).
    """

    kind: ClassVar[str] = "learned"
    length: int
    offset: int = 0
    buckets: int = 0  #: of distances; 0: no bias
    max_distance: int = 128  #: of the buckets

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.buckets < 4:
            raise HeedfulError(f"learned.buckets is {self.buckets}; give at least 4, or 0 for no bias of the scores")


@dataclass(frozen=True, kw_only=True)
class RotaryPosition(Config):
    """Queries and keys rotated by their position; ``scaling`` extends a model beyond ``original_length``.

    ``length`` is the number of positions that the model was trained for; later positions are computed too.
    """

    kind: ClassVar[str] = "rotary"
    length: int = 2048
    base: float = 10000.0
    share: float = 1.0  #: share of a head's features that are rotated, rounded down (Black et al. 2022, section 2.1)
    window_base: float | None = None  #: of blocks with a window, whose angles are not scaled; None: as the others
    scaling: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_length: int = 2048
    low_frequency_factor: float = 1.0  #: llama3
    high_frequency_factor: float = 4.0  #: llama3
    beta_fast: float = 32.0  #: yarn
    beta_slow: float = 1.0  #: yarn
    attention_factor: float | None = None  #: yarn; None is 0.1 ln(factor) + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaling == "llama3" and self.low_frequency_factor == self.high_frequency_factor:
            raise HeedfulError(
                f"rotary.low_frequency_factor and rotary.high_frequency_factor are both {self.low_frequency_factor}; "
                "llama3 scaling divides by their difference: give two different numbers"
            )
        if self.scaling == "yarn" and self.base == 1:
            raise HeedfulError("rotary.base is 1.0; yarn scaling divides by its logarithm: give another number")


@dataclass(frozen=True, kw_only=True)
class AlibiPosition(Config):
    """A penalty on attention that grows linearly with distance, one slope a head."""

    kind: ClassVar[str] = "alibi"


@dataclass(frozen=True, kw_only=True)
class RelativePosition(Config):
    """A learned bias for each bucket of distances and each head, shared by all blocks of the stack."""

    kind: ClassVar[str] = "relative"
    buckets: int = 32
    max_distance: int = 128


@dataclass(frozen=True, kw_only=True)
class ShawPosition(Config):
    """Learned rows for distances up to ``distance``, added to keys and with ``values`` to values (Shaw et al. 2018).

    Each layer has its own rows, and each head, unless ``heads`` is "shared".
    """

    kind: ClassVar[str] = "shaw"
    distance: int = 16  #: k of the paper; larger distances have the row of k
    values: bool = True  #: rows are added to the values too; no fused kernel computes these
    heads: Literal["own", "shared"] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance > DISTANCES:
            raise HeedfulError(f"shaw.distance is {self.distance}; give at most {DISTANCES}")


@dataclass(frozen=True, kw_only=True)
class TransformerXLPosition(Config):
    """Sinusoids of distances as further keys, by a projection of each layer (Dai et al. 2019).

    The queries of content and of position that are the same for all tokens, u and v, belong to each layer, or are
    shared by the stack. With ``segments``, two rows of each layer, for keys of the query's own segment and of another,
    are further keys (relative segment encodings, Yang et al. 2019, section 2.5); the model then takes segments.
    """

    kind: ClassVar[str] = "transformer-xl"
    biases: Literal["layer", "stack"] = "layer"
    segments: bool = False
    max_distance: int = 0  #: larger distances have the sinusoid of this one; 0 is no limit


@dataclass(frozen=True, kw_only=True)
class DisentangledPosition(Config):
    """DeBERTa's disentangled attention (He et al. 2021): rows for distances, which queries and keys attend to.

    ``length`` is the number of positions that the model was trained for; later positions are computed too.
    """

    kind: ClassVar[str] = "disentangled"
    length: int = 512
    max_distance: int = 0  #: largest distance with a row of its own, or, with buckets, in one; 0 is ``length``
    buckets: int = 0  #: rows each way: half for one distance each, half growing logarithmically; 0: a row a distance
    terms: Literal["both", "c2p", "p2c", "none"] = "both"  #: content to position, position to content
    projections: Literal["content", "own"] = "content"  #: of rows to keys and queries: the content's (v3), or own
    norm: bool = False  #: a norm of the rows

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = self.max_distance or self.length
        if largest > DISTANCES:
            raise HeedfulError(f"disentangled: the largest distance is {largest}; give at most {DISTANCES}")
        if self.buckets and not 1 < self.buckets // 2 < largest - 1:
            raise HeedfulError(
                f"disentangled.buckets is {self.buckets}; give at least 4, and less than twice the largest distance, "
                f"{largest}"
            )


@dataclass(frozen=True, kw_only=True)
class CustomPosition(Config):
    """A position scheme that ``heedful.register("position", scheme, ...)`` added."""

    kind: ClassVar[str] = "custom"
    scheme: str

    def __post_init__(self) -> None:
        super().__post_init__()
        known, remedy = REGISTERED["position"], unregistered("position", self.scheme)
        if self.scheme not in known:
            built_in = {case.kind for case in get_args(Position)} - {self.kind}
            remedy = f"{nearest(self.scheme, known | built_in)}; or {remedy}"
            raise HeedfulError(f"the position scheme {self.scheme!r} is unknown; {remedy}")


Position = (
    NoPosition
    | SinusoidalPosition
    | LearnedPosition
    | RotaryPosition
    | AlibiPosition
    | RelativePosition
    | ShawPosition
    | TransformerXLPosition
    | DisentangledPosition
    | CustomPosition
)

ContentPosition = ShawPosition | TransformerXLPosition | DisentangledPosition  # they depend on queries and keys


def position_called(name: str) -> Position:
    """Returns the position scheme of this name: a built-in one with its defaults, or a registered one.

    >>> position_called("shaw").distance
    16
    """
    case = {case.kind: case for case in get_args(Position)}.get(name, CustomPosition)
    if case is CustomPosition:
        return CustomPosition(scheme=name)
    missing = [f.name for f in fields(case) if f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise HeedfulError(f"position {name!r} has no default {missing[0]}; give {case.__name__}({missing[0]}=...)")
    return case()


# ------------------------------------------------------------------------------------------------------------ the stack


@dataclass(frozen=True, kw_only=True)
class DropoutRates(Config):
    """Dropout probabilities of embedding, attention weights, feed-forward and sublayer outputs."""

    kind: ClassVar[str] = "dropout"
    embedding: float = 0.0  #: after tokens, positions and the embedding norm
    attention: float = 0.0  #: on attention weights; has no fused kernel on CPU
    hidden: float = 0.0  #: inside the feed-forward
    residual: float = 0.0  #: on the output of a sublayer, before it is added to the stream

    @classmethod
    def everywhere(cls, rate: float, *, attention: float = 0.0) -> DropoutRates:
        """Returns ``DropoutRates`` with ``rate`` everywhere except on attention weights, which have ``attention``."""
        return cls(embedding=rate, attention=attention, hidden=rate, residual=rate)


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(Config):
    """A convolution beside the first block, of ``size`` tokens around each (He et al. 2021, DeBERTa v2 xlarge)."""

    kind: ClassVar[str] = "convolution"
    size: int = 3  #: odd
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise HeedfulError(f"convolution.size is {self.size}; give an odd number, so that a token is in the middle")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(Config):
    """A mixture of experts in place of a block's feed-forward: y = Σ w_e(x) expert_e(x), over ``per_token`` experts.

    With p = softmax(W x), the chosen experts are those with the largest p_e, and the weights are w_e = p_e, divided by
    their sum if ``normalize`` (Mixtral: 2 of 8, Jiang et al. 2024; Switch Transformers: 1, Fedus et al. 2021).
    """

    kind: ClassVar[str] = "experts"
    number: int = 8  #: E, experts in a block, each as large as the feed-forward network of ``ff_dim``
    per_token: int = 2  #: experts that compute a token
    normalize: bool = True  #: the weights of a token's experts sum to 1
    step: int = 1  #: blocks 1, 1 + step, ... have experts, counted from 0; with 1 all blocks
    capacity: int = 0  #: most tokens of a sequence that an expert computes, without the later ones; 0 is no limit
    router_bias: bool = False  #: W x + b
    jitter: float = 0.0  #: in training, x is multiplied by noise, uniform in 1 ± jitter
    balance: float = 0.01  #: weight α of the balance loss in training: α E Σ f_e P_e (Fedus et al. 2021, equation 4)
    z_loss: float = 0.0  #: weight of the mean of (log Σ exp W x)² in training (Zoph et al. 2022, equation 5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_token > self.number:
            raise HeedfulError(f"experts.per_token is {self.per_token}, of {self.number} experts; give at most as many")

    def in_block(self, block: int) -> bool:
        """Returns True if this block, counted from 0, has experts."""
        return block % self.step == 1 % self.step


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """A stack of ``depth`` equal blocks: self-attention, cross-attention if ``cross``, feed-forward."""

    kind: ClassVar[str] = "stack"
    dim: int  #: width of the stream
    depth: int  #: number of blocks
    heads: int  #: query heads
    kv_heads: int | None = None  #: None is as many as heads; fewer are grouped queries, 1 is multi-query
    head_dim: int | None = None  #: None is dim / heads
    ff_dim: int | None = None  #: None is 4 dim
    norm: Norm = "layer"  #: or the name of a registered norm
    norm_eps: float = 1e-5  #: ε of the norms
    norm_bias: bool = True  #: layer norms have a bias
    placement: Literal["pre", "post", "sandwich", "out"] = "pre"
    """Norms of a sublayer's input ("pre"), of the sum ("post"), of input and output ("sandwich"), or of the output
    alone, before the sum ("out", OLMo 2)."""
    layer_scale: float | None = None
    """First value of the learned factors of a sublayer's output, one a feature (Touvron et al. 2021b); None: none."""
    sublayers: Literal["sequential", "parallel", "parallel-shared"] = "sequential"
    """The feed-forward f reads what attention a has written, y = x + a(x), y + f(y); or in parallel the block's input,
    x + a(x) + f(x), after a norm of its own, or one that both share (Wang and Komatsuzaki 2021)."""
    embedding_norm: bool = False  #: a norm of the embedding
    embedding_dim: int | None = None
    """Width of tokens, positions and the norm of the embedding, which a linear map projects to ``dim`` (Lan et al.
    2020, section 3.1); None: there is no map."""
    first_norm: bool = True
    """A norm before the first block's attention; False where the embedding's norm serves (ModernBERT)."""
    activation: Activation = "gelu"  #: of the feed-forward network
    gated: bool = False  #: a gated feed-forward network (Shazeer 2020)
    attention_bias: Literal["all", "all-but-key", "qkv", "out", "none"] = "all"  #: the projections that have a bias
    ff_bias: bool = True  #: the linear maps of the feed-forward network have a bias
    scale: Literal["sqrt", "none"] | float = "sqrt"  #: scores are divided by √head_dim, or not (T5); or times a number
    score_cap: float | None = None
    """A soft cap c of the scores s: c · tanh(s / c), before bias and mask (Gemma 2, 2024). No fused kernel has it."""
    qk_norm: Literal["head", "all", "none"] = "none"
    """An RMS norm on the queries and keys of each head (Qwen3), or of all heads of a token together (OLMo 2)."""
    position: Position = field(default_factory=NoPosition)  #: or the name of a scheme, with its defaults, or registered
    attention: Literal["softmax"] = "softmax"  #: or the name of a registered function
    feed_forward: Literal["mlp"] = "mlp"  #: or the name of a registered part
    block: Literal["standard"] = "standard"  #: or the name of a registered block
    causal: bool = False  #: a token attends to itself and earlier tokens
    cross: bool = False  #: each block has cross-attention
    window: int | tuple[int | None, ...] | None = None
    """A query attends to the last ``window`` keys, itself included; None: to all before it. In a stack that is not
    causal, to the keys up to ⌊window / 2⌋ positions before and after it. A tuple is a pattern that the blocks repeat:
    ``(None, 256)`` alternates dense and banded blocks. It is stored as short as possible."""
    convolution: ConvolutionConfig | None = None  #: beside the first block of an encoder
    distinct_blocks: int | None = None
    """Number of blocks with weights of their own: ``depth / distinct_blocks`` successive blocks share theirs (Lan et
    al. 2020, section 3.1, ALBERT has 1); None: all blocks have their own."""
    experts: ExpertsConfig | None = None  #: experts in place of the feed-forward network, in all blocks or some
    dropout: DropoutRates = field(default_factory=DropoutRates)
    init: Literal["normal", "scaled", "truncated", "xavier"] = "normal"  #: distribution of the first weights
    init_std: float = 0.02  #: standard deviation of the first weights; with "xavier" of embeddings alone

    def __post_init__(self) -> None:
        if isinstance(self.position, str):
            object.__setattr__(self, "position", position_called(self.position))
        if isinstance(self.window, list):
            object.__setattr__(self, "window", tuple(self.window))
        if isinstance(self.window, tuple) and 0 in self.window:  # which --model.window takes for all tokens
            dense = tuple(width or None for width in self.window)
            raise HeedfulError(f"stack.window is 0; give at least 1, or None for all tokens: window={dense}")
        super().__post_init__()
        if self.head_dim is None and self.dim % self.heads:
            raise HeedfulError(f"dim {self.dim} is not a multiple of {self.heads} heads; change one, or give head_dim")
        if self.heads % (self.kv_heads or self.heads):
            raise HeedfulError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly; make heads a multiple of "
                "kv_heads"
            )
        first_differs = self.convolution is not None or not self.first_norm
        if self.distinct_blocks is not None and (self.depth % self.distinct_blocks or first_differs):
            raise HeedfulError(
                f"stack.distinct_blocks is {self.distinct_blocks}, but the depth is {self.depth}; give a divisor of "
                "it, no convolution, which only the first block has, and first_norm=True"
            )
        if self.distinct_blocks == self.depth:
            object.__setattr__(self, "distinct_blocks", None)
        if self.sublayers != "sequential" and self.placement == "post":
            raise HeedfulError(
                f"{self.sublayers} sublayers have their norms before them; give placement 'pre' or 'sandwich'"
            )
        if not self.norm_bias and self.norm != "layer":
            raise HeedfulError(f"norm_bias is False, but the norm is {self.norm!r}, not 'layer'; leave norm_bias out")
        if not self.first_norm and (self.placement not in ("pre", "sandwich") or self.block != "standard"):
            raise HeedfulError(
                "first_norm is False, but no norm is before a sublayer, or the block is your own; leave first_norm out"
            )
        if self.causal and self.norm == "batch":
            raise HeedfulError("batch norm in a causal stack leaks later tokens; use norm 'layer' or 'rms'")
        if isinstance(self.window, tuple):
            if not 0 < len(self.window) <= self.depth:
                raise HeedfulError(
                    f"stack.window has {len(self.window)} numbers for {self.depth} blocks; give 1 to {self.depth}"
                )
            object.__setattr__(self, "window", shortest_pattern(self.windows))
        pattern = self.window if isinstance(self.window, tuple) else (self.window,)
        if max(window or 0 for window in pattern) >= INTEGERS:  # other sizes as large fit no weights
            raise HeedfulError(f"stack.window is {self.window}; give less than {INTEGERS}, as tensors hold")
        self._check_parts()

    def _check_parts(self) -> None:
        """Raises for parts that other choices leave no place for."""
        if self.convolution is not None and (self.causal or self.block != "standard"):
            raise HeedfulError(
                "stack.convolution reads the tokens around each, in a standard block; leave it out of causal stacks "
                "and of stacks with a block of your own"
            )
        if self.experts is not None and (self.feed_forward != "mlp" or self.block != "standard"):
            raise HeedfulError(
                "stack.experts are built-in feed-forward networks in standard blocks; leave experts out of a stack "
                "with a feed_forward or block of your own"
            )
        if self.experts is not None and not any(map(self.experts.in_block, range(self.depth))):
            raise HeedfulError(
                f"experts.step is {self.experts.step}, so that none of {self.depth} blocks has experts; give 1"
            )
        if self.experts is not None and self.distinct_blocks is not None:
            raise HeedfulError("a stack with experts shares no blocks; leave distinct_blocks or experts out")
        if self.layer_scale is not None and self.placement in ("sandwich", "out"):
            raise HeedfulError(
                f"stack.layer_scale scales outputs that placement {self.placement!r} norms, whose weights do so; leave "
                "it out"
            )
        if not isinstance(self.scale, str) and not 0 < self.scale < math.inf:
            raise HeedfulError(f"stack.scale is {self.scale}; give 'sqrt', 'none' or a number above 0")
        if self.score_cap is not None and (isinstance(self.position, ContentPosition) or self.attention != "softmax"):
            raise HeedfulError(
                "stack.score_cap caps the products of queries and keys in a softmax; leave it out with an attention of "
                "your own, and with positions that depend on queries"
            )

    @property
    def shared_blocks(self) -> int:
        """Number of successive blocks that share their weights, 1 if all blocks have their own."""
        return self.depth // (self.distinct_blocks or self.depth)

    @property
    def width(self) -> int:
        """Width of the embedding, on which the stack is called."""
        return self.embedding_dim or self.dim

    @property
    def relative_segments(self) -> bool:
        """True if attention takes the segments of the tokens."""
        return isinstance(self.position, TransformerXLPosition) and self.position.segments

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each block.

        >>> StackConfig(dim=8, depth=3, heads=2, causal=True, window=(None, 4)).windows
        (None, 4, None)
        """
        pattern = self.window if isinstance(self.window, tuple) else (self.window,)
        return tuple(pattern[block % len(pattern)] for block in range(self.depth))


def shortest_pattern(windows: tuple[int | None, ...]) -> int | tuple[int | None, ...] | None:
    """Returns the shortest pattern that repeats to ``windows``, one for each block; of one number, the number itself.

    >>> shortest_pattern((None, 4, None)), shortest_pattern((4, 4))
    ((None, 4), 4)
    """
    size = next(n for n in range(1, len(windows) + 1) if all(w == windows[i % n] for i, w in enumerate(windows)))
    return windows[0] if size == 1 else windows[:size]


# ----------------------------------------------------------------------------------------------------------- embeddings


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """Token embedding, multiplied by √dim with ``scale="sqrt"``; ``segments`` > 0 adds a segment embedding.

    With ``scale="sqrt-rounded"`` √dim is first rounded to the type of the embedding (Gemma 2).
    ``bigrams`` > 0 adds, in an encoder, an embedding of each token with the one before it, hashed to ``bigrams`` rows.
    """

    kind: ClassVar[str] = "embedding"
    vocab_size: int
    scale: Literal["sqrt", "sqrt-rounded", "none"] = "none"
    segments: int = 0
    bigrams: int = 0
    query: bool = False  #: a learned vector that begins the query stream of permutation language models (XLNet)


@dataclass(frozen=True, kw_only=True)
class PatchConfig(Config):
    """An image cut into square patches, with prefix tokens before them.

    ``mask_token`` stores the vector that stood for masked patches in a published model's pre-training (DINOv2); the
    model does not use it.
    """

    kind: ClassVar[str] = "patches"
    image_size: tuple[int, int] = (224, 224)  #: height, width
    patch_size: int = 16
    channels: int = 3
    prefix: Literal["none", "class", "class+distillation"] = "class"
    mask_token: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for side, length in zip(("height", "width"), self.image_size, strict=True):
            if length % self.patch_size:
                raise HeedfulError(
                    f"image {side} {length} is not a multiple of the patch size {self.patch_size}; change one of them"
                )

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return {"none": 0, "class": 1, "class+distillation": 2}[self.prefix]

    @property
    def tokens(self) -> int:
        """Number of tokens, (H / P)(W / P) patches and the tokens before them."""
        height, width = self.image_size
        return (height // self.patch_size) * (width // self.patch_size) + self.prefix_tokens


@dataclass(frozen=True, kw_only=True)
class SpecialTokens(Config):
    """Token ids that generation uses; ``start`` is the first token of an encoder-decoder's target."""

    kind: ClassVar[str] = "special"
    least: ClassVar[int] = 0
    pad: int | None = None
    start: int | None = None
    end: tuple[int, ...] = ()


# ------------------------------------------------------------------------------------------------- heads, one case each


@dataclass(frozen=True, kw_only=True)
class NoHead(Config):
    """No head: returns the hidden states. ``pooler`` stores BERT's pooler with the model, for a head added later."""

    kind: ClassVar[str] = "no-head"
    pooler: bool = False


@dataclass(frozen=True, kw_only=True)
class LanguageHead(Config):
    """Logits over the vocabulary, by the embedding's weights if ``tied``, times 1/√dim with ``scale="sqrt"``.

    With ``logit_cap`` c a logit x becomes c · tanh(x / c) (Gemma 2, 2024).
    """

    kind: ClassVar[str] = "language-model"
    tied: bool = True
    bias: bool = False
    scale: Literal["sqrt", "none"] = "none"
    logit_cap: float | None = None
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class DenseConfig(Config):
    """A layer of a head before its output: norm(act(W x + b)) (ModernBERT), or without the norm (ELECTRA)."""

    kind: ClassVar[str] = "dense"
    activation: Activation = "gelu"
    bias: bool = True
    norm: bool = True
    norm_eps: float = 1e-5
    norm_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class MaskedHead(Config):
    """BERT's masked language model: dense to the embedding's width, activation, norm, the vocabulary with a bias."""

    kind: ClassVar[str] = "masked-language-model"
    tied: bool = True
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    norm_bias: bool = True
    dense_bias: bool = True
    bias: bool = True  #: of the output
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class SequenceHead(Config):
    """Label logits of a sequence: pooling, BERT's dense layer if ``pooler``, then a linear map."""

    kind: ClassVar[str] = "sequence"
    labels: int = 2
    pooling: Pooling = "first"
    pooler: bool = True
    pooler_activation: Activation = "tanh"
    bias: bool = True
    dropout: float = 0.1
    pooler_dropout: float = 0.0  #: on the pooled vector, before the dense layer
    dense: DenseConfig | None = None  #: of the pooled vector, after the pooler
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class TokenHead(Config):
    """Label logits of each token; ``dense`` is a layer before the linear map.

    With this layer and one label it is ELECTRA's discriminator (Clark et al. 2020): that a token was replaced.
    """

    kind: ClassVar[str] = "token"
    labels: int = 2
    dropout: float = 0.1
    dense: DenseConfig | None = None  #: of each token
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class SpanHead(Config):
    """Two logits for each token: that the answer starts there, and that it ends there."""

    kind: ClassVar[str] = "span"
    dropout: float = 0.0
    dense: DenseConfig | None = None  #: of each token
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class PooledHead(Config):
    """One vector for each sequence: pooling, BERT's dense layer if ``pooler``, unit length if ``normalise``."""

    kind: ClassVar[str] = "pooled"
    pooling: Pooling = "mean"
    pooler: bool = False
    normalise: bool = False
    head: OwnHead = "standard"


@dataclass(frozen=True, kw_only=True)
class ImageHead(Config):
    """Class logits of an image: the mean over the prefix tokens, each with its own classifier.

    Without prefix tokens the head reads the mean of the patches (Beyer et al. 2022, section 2); with ``tokens="class"``
    it reads the class token alone, with "class+mean" that and the mean of the patches as one vector (Oquab et al.
    2024). ``hidden`` is the width of a hidden layer with tanh (the head of pre-training); 0 is a single linear layer.
    """

    kind: ClassVar[str] = "image"
    labels: int = 1000
    hidden: int = 0
    tokens: Literal["all", "class", "class+mean"] = "all"
    head: OwnHead = "standard"


Head = NoHead | LanguageHead | MaskedHead | SequenceHead | TokenHead | SpanHead | PooledHead | ImageHead


# ------------------------------------------------------------------------------------------------------------- families


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """Encoder (BERT): every token attends to every other.

    ``class_token`` is the side of a text on which its tokenizer puts the token that classifiers read: BERT's ``[CLS]``
    comes first, XLNet's ``<cls>`` last.
    """

    kind: ClassVar[str] = "encoder"
    embedding: EmbeddingConfig
    encoder: StackConfig
    head: Head = field(default_factory=NoHead)
    special: SpecialTokens = field(default_factory=SpecialTokens)
    class_token: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_stack(self.encoder, "encoder", cross=False)
        _check_head(self.head, self.kind, not_on=(ImageHead,), stack=self.encoder)
        if self.embedding.segments and self.encoder.relative_segments:
            raise HeedfulError("segments are embedded and relative; give embedding.segments or position.segments")
        stack = self.encoder
        is_standard = stack.block == "standard" and stack.convolution is None and stack.norm != "batch"
        is_standard = is_standard and stack.sublayers == "sequential" and stack.experts is None
        if self.embedding.query and not (isinstance(stack.position, ContentPosition) and is_standard):
            raise HeedfulError(
                "embedding.query begins a query stream, which needs standard blocks, no batch norm, no experts, and "
                "positions that depend on queries, such as 'transformer-xl'; change the stack, or leave it out"
            )

    @property
    def segments(self) -> int:
        """Number of segments that tokens may have, 0 if the model takes none: relative ones are A, B and the class."""
        return RELATIVE_SEGMENTS if self.encoder.relative_segments else self.embedding.segments


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """Decoder (GPT-2, Llama): every token attends to itself and the tokens before it."""

    kind: ClassVar[str] = "decoder"
    embedding: EmbeddingConfig
    decoder: StackConfig
    head: Head = field(default_factory=LanguageHead)
    special: SpecialTokens = field(default_factory=SpecialTokens)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_no_bigrams(self.embedding, self.kind)
        _check_stack(self.decoder, "decoder", cross=False, causal=True, family=self.kind)
        _check_query(self.embedding, self.kind)
        _check_head(self.head, self.kind, not_on=(ImageHead,), stack=self.decoder)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(Config):
    """Encoder-decoder (Vaswani et al. 2017, T5, BART). ``target`` None: source and target share one embedding.

    With ``source`` patches, the encoder reads an image, as in ViT; the widths of encoder and decoder may then differ.
    ``pooler`` stores a published image encoder's pooler with the model, which does not use it.
    """

    kind: ClassVar[str] = "encoder-decoder"
    source: EmbeddingConfig | PatchConfig
    target: EmbeddingConfig | None = None
    encoder: StackConfig
    decoder: StackConfig
    head: Head = field(default_factory=LanguageHead)
    special: SpecialTokens = field(default_factory=SpecialTokens)
    pooler: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        reads_images = isinstance(self.source, PatchConfig)
        if self.encoder.dim != self.decoder.dim and not reads_images:
            raise HeedfulError(
                f"encoder.dim is {self.encoder.dim} and decoder.dim is {self.decoder.dim}; make them the same"
            )
        if self.encoder.width != self.decoder.width and self.target is None and not reads_images:
            raise HeedfulError(
                "encoder and decoder share one embedding, but have not the same embedding_dim; make it the same, or "
                "give target, an embedding"
            )
        if reads_images and self.target is None:
            raise HeedfulError("the source is an image, which has no tokens to share; give target, an embedding")
        if reads_images and not isinstance(self.head, LanguageHead | NoHead):
            raise HeedfulError(
                f"an encoder-decoder that reads images has a language-model head or none, not {self.head.kind!r}; "
                "choose another head"
            )
        if self.pooler and not reads_images:
            raise HeedfulError("encoder-decoder.pooler is True, but the source is text; leave it out")
        _check_stack(self.encoder, "encoder", cross=False, family=self.kind)
        _check_stack(self.decoder, "decoder", cross=True, causal=True, family=self.kind)
        for embedding in (self.source, self.target):
            _check_query(embedding, self.kind)
            _check_no_bigrams(embedding, self.kind)
        _check_head(self.head, self.kind, not_on=(ImageHead,), stack=self.decoder)

    @property
    def tokens(self) -> EmbeddingConfig:
        """Embedding of the target tokens, which the decoder reads and the language-model head predicts."""
        tokens = self.target or self.source
        assert isinstance(tokens, EmbeddingConfig)
        return tokens


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """Encoder over image patches (ViT, DeiT)."""

    kind: ClassVar[str] = "vision"
    patches: PatchConfig
    encoder: StackConfig
    head: Head = field(default_factory=ImageHead)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_stack(self.encoder, "encoder", cross=False, family=self.kind)
        _check_head(self.head, self.kind, not_on=(LanguageHead, MaskedHead))
        if isinstance(self.head, ImageHead) and self.head.tokens == "class+mean" and not self.patches.prefix_tokens:
            raise HeedfulError("image.tokens is 'class+mean', but the patches have no class token; choose 'all'")


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(Config):
    """Ensemble of classifiers of the same labels, encoders of which each has its own tokenizer."""

    kind: ClassVar[str] = "ensemble"
    members: tuple[EncoderConfig, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = {getattr(member.head, "labels", None) for member in self.members}
        if len(self.members) < 2 or len(labels) > 1 or not isinstance(self.head, SequenceHead):
            raise HeedfulError(
                "an ensemble has two or more members, classifiers of texts by the same labels; give such configurations"
            )

    @property
    def head(self) -> Head:
        """Head of the first member; those of the others have as many labels."""
        return self.members[0].head


def _check_stack(
    stack: StackConfig, name: str, *, cross: bool, causal: bool | None = None, family: str | None = None
) -> None:
    """Raises if the cross-attention or causal mask of a stack does not fit its family.

    ``family`` is that of a model that takes no segments.
    """
    if stack.cross != cross or (causal is not None and stack.causal != causal):
        required = f"cross={cross}" + (f", causal={causal}" if causal is not None else "")
        raise HeedfulError(f"the {name} has cross={stack.cross}, causal={stack.causal}; its family needs {required}")
    if stack.relative_segments and family is not None:
        raise HeedfulError(f"a model of family {family!r} takes no segments; leave position.segments out")


def _check_query(embedding: EmbeddingConfig | PatchConfig | None, family: str) -> None:
    if isinstance(embedding, EmbeddingConfig) and embedding.query:
        raise HeedfulError(f"a model of family {family!r} has no query stream; leave embedding.query out")


def _check_no_bigrams(embedding: EmbeddingConfig | PatchConfig | None, family: str) -> None:
    """Raises for pairs of tokens in a family that generates: a step of decoding embeds one token alone."""
    if isinstance(embedding, EmbeddingConfig) and embedding.bigrams:
        raise HeedfulError(f"embedding.bigrams is {embedding.bigrams} in a model of family {family!r}; leave it out")


def _check_head(head: Head, family: str, *, not_on: tuple[type[Config], ...], stack: StackConfig | None = None) -> None:
    """Raises for a head that its family cannot have, or whose weights are of another width than the embedding's."""
    if stack is not None and isinstance(head, LanguageHead) and head.tied and stack.width != stack.dim:
        raise HeedfulError(
            f"the language-model head reads a width of {stack.dim}, but the embedding, whose weights it shares, has "
            f"{stack.width}; give LanguageHead(tied=False), or leave embedding_dim out"
        )
    if isinstance(head, not_on):
        raise HeedfulError(
            f"a model of family {family!r} cannot have a head of kind {head.kind!r}; choose another head"
        )


ModelConfig = EncoderConfig | DecoderConfig | EncoderDecoderConfig | VisionConfig | EnsembleConfig


def with_head(config: ModelConfig, head: Head) -> ModelConfig:
    """Returns a model's configuration with another head; raises ``HeedfulError`` for an ensemble."""
    if isinstance(config, EnsembleConfig):
        raise HeedfulError("an ensemble has the heads of its members, which cannot be replaced; change a member's")
    return replace(config, head=head)


def patches_of(config: ModelConfig) -> PatchConfig | None:
    """Returns the patches of a model that reads images; None for a model that reads text."""
    if isinstance(config, VisionConfig):
        return config.patches
    if isinstance(config, EnsembleConfig):
        return None
    source = config.source if isinstance(config, EncoderDecoderConfig) else config.embedding
    return source if isinstance(source, PatchConfig) else None


def source_tokens(config: ModelConfig) -> EmbeddingConfig:
    """Returns the embedding of the tokens that a model of text reads, of an encoder-decoder the source's."""
    assert not isinstance(config, VisionConfig | EnsembleConfig)
    source = config.source if isinstance(config, EncoderDecoderConfig) else config.embedding
    assert isinstance(source, EmbeddingConfig)  # the caller has asked patches_of
    return source
