"""Base of settings: a frozen dataclass a section, whose fields define flags, their help, and the keys of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from heedful.errors import HeedfulError, nearest
from heedful.util.values import BOUNDS, check

type_hints: Callable[[type], dict[str, Any]] = cache(get_type_hints)  # which compiles every annotation at each call
# names that ``heedful.register`` added, by setting
REGISTERED: dict[str, list[str]] = {"training.optimiser": [], "training.schedule": []}


# names of settings in other programs: ours
FOREIGN_NAMES = {
    "learning_rate": "lr",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "num_train_epochs": "max_epochs",
    "output_dir": "out",
    "hub_model_id": "push",
    "hidden_size": "dim",
    "d_model": "dim",
    "n_embd": "dim",
    "intermediate_size": "ff_dim",
    "layers": "depth",
    "num_layers": "depth",
    "num_hidden_layers": "depth",
    "n_layer": "depth",
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "vocab_size": "size",
    "optimizer": "optimiser",
    "optim": "optimiser",
    "lr_scheduler_type": "schedule",
    "warmup_steps": "warmup",
    "per_device_train_batch_size": "batch_size",
    "logging_steps": "log_every",
    "eval_steps": "evaluate_every",
    "save_steps": "save_every",
    "save_total_limit": "keep_checkpoints",
    "early_stopping": "patience",
    "early_stopping_patience": "patience",
    "gradient_accumulation_steps": "accumulate",
    "label_smoothing_factor": "label_smoothing",
    "max_seq_length": "max_length",
    "block_size": "max_length",
    "validation_split": "valid_fraction",
    "unlabeled": "unlabelled",
    "fsdp": "shard",
    "torch_compile": "compile",
    "max_grad_norm": "clip",
    "grad_clip": "clip",
    "min_lr": "min_lr_ratio",
    "report_to": "report",
    "reprob": "random_erasing",
    "fp16": "precision",
    "bf16": "precision",
}


# keys of settings in files of earlier versions: present keys
EARLIER_KEYS = {
    "averaging.share": "averaging.polynomial",
    "data.separate": "data.document_mask",
    "image.augment": "image.rand_augment",
    "image.crop": "image.crop_padding",
    "image.erase": "image.random_erasing",
    "masking.length": "masking.span_length",
    "masking.share": "masking.probability",
    "training.decay": "training.decay_ratio",
    "training.floor": "training.min_lr_ratio",
    "training.keep": "training.keep_checkpoints",
    "training.watch": "training.record_attention",
}


def with_present_keys(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of a run's file, which an earlier version may have written, under their present keys.

    >>> with_present_keys({"image": {"erase": 0.1, "size": 8}})
    {'image': {'random_erasing': 0.1, 'size': 8}}
    """
    present: dict[str, Any] = {}
    for name, value in values.items():
        key = EARLIER_KEYS.get(f"{prefix}{name}".replace("-", "_"), name).removeprefix(prefix)
        present[key] = with_present_keys(value, f"{prefix}{name}.") if isinstance(value, Mapping) else value
    return present


def option(help: str, default: Any = None, words: Sequence[str] = (), common: bool = False, **bounds: float) -> Any:
    """Returns a field with its line of help and the bounds of its numbers (above, least, below, most).

    A field with ``words`` takes one of them, or a name that ``heedful.register`` added. ``--help`` shows ``common``
    options, and ``--help-all`` all.
    """
    return field(default=default, metadata={"help": help, "words": tuple(words), "common": common, **bounds})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all sections: checks the values in the constructor, and converts to and from a dictionary."""

    section: ClassVar[str] = ""  # prefix of the section's flags, and name of its table in a file

    def __post_init__(self) -> None:
        hints = type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):  # JSON and TOML have no tuples
                value = tuple(value)
                object.__setattr__(self, f.name, value)
            flag = "--" + key(type(self), f.name).replace("_", "-")
            words = f.metadata.get("words", ())
            words = (*words, *REGISTERED.get(key(type(self), f.name), ())) if words else ()
            if words and value is not None and value not in words:
                raise HeedfulError(f"unknown {flag} {value!r}; {nearest(str(value), words)}")
            check(flag, value, hints[f.name], **{name: f.metadata[name] for name in BOUNDS if name in f.metadata})

    @classmethod
    def check_value(cls, name: str, value: Any) -> None:
        """Raises ``HeedfulError`` for a value that the field ``name`` does not take; the message names it as it is."""
        bounds = {bound: limit for bound, limit in cls.__dataclass_fields__[name].metadata.items() if bound in BOUNDS}
        check(name, tuple(value) if isinstance(value, list) else value, type_hints(cls)[name], **bounds)

    def _split(self, name: str) -> None:
        """Splits a field's text of names with commas; call it before the names are checked."""
        value = getattr(self, name)
        if isinstance(value, (tuple, list)) and len(value) == 1 and isinstance(value[0], str):
            object.__setattr__(self, name, tuple(part.strip() for part in value[0].split(",")))

    def given(self) -> dict[str, Any]:
        """Returns the options that are not *auto*, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries, lists and scalars, as ``heedful.json`` holds them."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Settings):
                plain[name] = value.to_dict()
            else:
                plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns settings from the output of :meth:`to_dict`; raises ``HeedfulError`` for an unknown key or value."""
        hints = type_hints(cls)
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                known = [key(cls, n) for n in names]
                meant = FOREIGN_NAMES.get(name)
                hint = nearest(key(cls, name), known) if meant is None else f"did you mean {_place(cls, meant)}?"
                raise HeedfulError(f"unknown setting {key(cls, name)!r}; {hint}")
        for f in fields(cls):
            if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
                raise HeedfulError(f"the setting {key(cls, f.name)!r} is missing; give it a value")
        return cls(
            **{
                name: hints[name].from_dict(value)
                if isinstance(value, Mapping) and isinstance(hints[name], type) and issubclass(hints[name], Settings)
                else value
                for name, value in values.items()
            }
        )


def key(cls: type[Settings], name: str) -> str:
    """Returns the name of a field for people: ``training.lr``, and ``from`` (reserved in Python) for ``start_from``."""
    return f"{cls.section}.{name}" if cls.section else {"start_from": "from"}.get(name, name)


def _place(cls: type[Settings], name: str) -> str:
    """Returns the quoted key of the field ``name``: of the section ``cls``, or of another one."""
    owners = [cls, *Settings.__subclasses__()]
    return repr(key(next((owner for owner in owners if name in {f.name for f in fields(owner)}), cls), name))


def keys(cls: type[Settings]) -> list[str]:
    """Returns all keys of a settings file: ``["task", ..., "training.lr", ...]``."""
    hints = type_hints(cls)
    names: list[str] = []
    for f in fields(cls):
        nested = hints[f.name]
        names += keys(nested) if isinstance(nested, type) and issubclass(nested, Settings) else [key(cls, f.name)]
    return names


def common_keys(cls: type[Settings]) -> set[str]:
    """Returns the keys of the options that ``--help`` shows: those marked as common, and those without a default."""
    hints = type_hints(cls)
    names: set[str] = set()
    for f in fields(cls):
        nested = hints[f.name]
        if isinstance(nested, type) and issubclass(nested, Settings):
            names |= common_keys(nested)
        elif f.metadata.get("common") or (f.default is MISSING and f.default_factory is MISSING):
            names.add(key(cls, f.name))
    return names


S = TypeVar("S", bound=Settings)


def resolve(first: S, *others: S) -> S:
    """Returns for each field the first value that is not None: ``resolve(given, recipe, suggested)``."""
    merged: dict[str, Any] = {}
    for f in fields(first):
        values = [getattr(layer, f.name) for layer in (first, *others)]
        if isinstance(values[0], Settings):
            merged[f.name] = resolve(*values)
        else:
            merged[f.name] = next((value for value in values if value is not None), None)
    return replace(first, **merged)
