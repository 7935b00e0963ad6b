"""A model type (a Hub layout such as ``gpt2``) as data: config keys, tensor rules, and its architectures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from heedful.config import Config, EncoderDecoderConfig, ModelConfig
from heedful.errors import HeedfulError, known_names
from heedful.pretrained.config_keys import (
    AnyConfigKey,
    ConfigKey,
    Inexpressible,
    LayerTypesKey,
    OnlyValue,
    StoredTensor,
    required_values,
)
from heedful.pretrained.flat_config import Flat, flat, nested
from heedful.pretrained.rules import RenameBeside, Rule, Tensors

# fields of initialisation and training, which change nothing that the model computes; if a model type has no key for
# one, it is saved under "heedful" in config.json
FREE = (
    "init",
    "init_std",
    "experts.z_loss",
    *(f"dropout.{site}" for site in ("embedding", "attention", "hidden", "residual")),
    "head.dropout",
    "head.pooler_dropout",
)
EVERYWHERE = (
    *required_values(quantization_config=None, per_layer_config=None),
    LayerTypesKey("layer_types", None, None),
)  # features that no model type of ours has


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Class of a model type, such as ``BertForMaskedLM``: its head in our configuration and the head's tensor names.

    Of two architectures with the same name, the first whose ``OnlyValue`` keys match is chosen.

    Attributes:
        name: name of the class in ``transformers``.
        fixed: fields of our configuration that always have the same value, by path.
        config_keys: keys of ``config.json`` that only this architecture has.
        rules: rules for the head's tensors.
        body: rules for tensors of the body that only this architecture has.
        prefix: prefix of the body's tensor names, if it differs from the model type's.
    """

    name: str
    fixed: Mapping[str, Any]
    config_keys: tuple[AnyConfigKey, ...] = ()
    rules: tuple[Rule, ...] = ()
    body: tuple[Rule, ...] = ()
    prefix: str | None = None

    def fits(self, hub: Mapping[str, Any]) -> bool:
        """Returns True if the keys of a ``config.json`` have the values that this architecture requires."""
        return all(key.matches(hub) for key in self.config_keys if isinstance(key, OnlyValue))


def rename_architectures(architectures: Iterable[Architecture], old: str, new: str) -> tuple[Architecture, ...]:
    """Returns architectures with ``old`` in their names replaced by ``new``: ``LlamaModel`` → ``MistralModel``."""
    return tuple(replace(architecture, name=architecture.name.replace(old, new, 1)) for architecture in architectures)


@dataclass(frozen=True, kw_only=True)
class ModelType:
    """Layout of model folders on the Hub, such as ``gpt2``: fixed fields, config keys, tensor rules and architectures.

    ``old_names`` maps endings of tensor names in older files to the current endings. ``unnamed`` is the architecture of
    folders whose ``config.json`` names none; without it they are refused.
    """

    name: str
    fixed: Mapping[str, Any]
    config_keys: tuple[AnyConfigKey, ...]
    rules: tuple[Rule, ...]
    architectures: tuple[Architecture, ...]
    prefix: str = ""
    old_names: Mapping[str, str] = field(default_factory=dict)
    unnamed: str = ""

    def architecture_of(self, hub: Mapping[str, Any]) -> Architecture:
        """Returns the architecture that a ``config.json`` (``hub``) names."""
        names = hub.get("architectures") or ([self.unnamed] if self.unnamed else None)
        known = [architecture.name for architecture in self.architectures]
        if not isinstance(names, list) or not names:
            raise HeedfulError(f'"architectures" is missing; add the class of the weights, one of {", ".join(known)}')
        architectures = [architecture for architecture in self.architectures if architecture.name == names[0]]
        if not architectures:
            raise HeedfulError(f"the class {names[0]!r} is not supported; {known_names(known)}")
        fitting = [architecture for architecture in architectures if architecture.fits(hub)]
        return next(iter(fitting), architectures[-1])  # the last one's config keys say what does not fit

    def ordered(self, source: Mapping[str, Any]) -> list[Architecture]:
        """Returns the architectures, of equal names first those that a ``config.json`` (``source``) fits."""
        names = [architecture.name for architecture in self.architectures]
        return sorted(self.architectures, key=lambda a: (names.index(a.name), not a.fits(source)))

    def implied_by(self, architecture: Architecture, tensors: Tensors) -> dict[str, bool]:
        """Returns the values of our fields that follow from the stored tensors, by the name of the tensor."""
        return {
            key.hub_name: key.from_tensors(tensors)
            for key in (*self.config_keys, *architecture.config_keys)
            if isinstance(key, StoredTensor)
        }

    def read(self, hub: Mapping[str, Any], architecture: Architecture, stored: Mapping[str, bool]) -> ModelConfig:
        """Returns our configuration for a ``config.json`` (``hub``); ``stored`` comes from :meth:`implied_by`."""
        ours: Flat = {**self.fixed, **architecture.fixed}
        for config_key in (*EVERYWHERE, *self.config_keys, *architecture.config_keys):
            config_key.read(hub, ours, stored)
        extra = hub.get("heedful")
        ours.update({k: v for k, v in extra.items() if k.endswith(FREE)} if isinstance(extra, Mapping) else {})
        try:
            config: ModelConfig = Config.from_dict(nested(ours))  # type: ignore[assignment]  # the kind is a model's
            _check_start(config)
            return config
        except HeedfulError as error:
            key = self._hub_key(architecture, str(error).partition(" ")[0])
            raise HeedfulError(f"{key}: {error}" if key else str(error)) from None

    def _hub_key(self, architecture: Architecture, path: str) -> str | None:
        """Returns the key of ``config.json`` that sets our field, such as "dropout.hidden"; None if there is none."""
        named = [
            (field, config_key.hub_name)
            for config_key in (*architecture.config_keys, *self.config_keys)
            if isinstance(config_key, ConfigKey)
            for field in config_key.fields
        ]
        ends = (path, path.rpartition(".")[2])
        return next((hub for end in ends for field, hub in named if f".{field}".endswith(f".{end}")), None)

    def write(self, config: ModelConfig, architecture: Architecture) -> dict[str, Any] | None:
        """Returns the ``config.json`` for our configuration, or None if reading it back would give another model."""
        fixed = {**self.fixed, **architecture.fixed}
        # no key sets these two: most architectures are ruled out before the configuration is written and read back
        if config.kind != fixed["kind"] or config.head.kind != fixed.get("head.kind", config.head.kind):
            return None
        ours = flat(config)
        hub: dict[str, Any] = {"architectures": [architecture.name], "model_type": self.name}
        config_keys = (*self.config_keys, *architecture.config_keys)
        try:
            for config_key in config_keys:
                config_key.write(ours, hub)
            implied = {key.hub_name: key.from_config(ours) for key in config_keys if isinstance(key, StoredTensor)}
            reread = flat(self.read(hub, architecture, implied))
        except (Inexpressible, HeedfulError):
            return None
        extra = {path: value for path, value in ours.items() if path not in reread or reread[path] != value}
        if reread.keys() != ours.keys() or not all(path.endswith(FREE) for path in extra):
            return None
        return hub | ({"heedful": extra} if extra else {})

    def sized(self, config: ModelConfig) -> Self:
        """Returns the model type with the rules for the sizes of a configuration."""
        fields = flat(config)
        rules = tuple(rule.sized(fields) for rule in self.rules)
        return self if rules == self.rules else replace(self, rules=rules)

    def names(self, stored: Tensors, architecture: Architecture) -> Tensors:
        """Returns the stored tensors by their current names, without the prefix that only some files have."""
        prefix = self._prefix(architecture) or self.prefix
        return {self._present_name(name).removeprefix(prefix): tensor for name, tensor in stored.items()}

    def _prefix(self, architecture: Architecture) -> str:
        return self.prefix if architecture.prefix is None else architecture.prefix

    def _present_name(self, name: str) -> str:
        for old, new in self.old_names.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name

    def tensors_in(self, stored: Tensors, architecture: Architecture, head: bool = True) -> Tensors:
        """Moves the tensors of the model from ``stored`` to a new mapping, by our names, and returns this mapping.

        With ``head=False`` the head's tensors stay in ``stored``.
        """
        loaded: Tensors = {}
        for rule in (*(architecture.rules if head else ()), *architecture.body, *self.rules):
            rule.read(stored, loaded)
        return loaded

    def tensors_out(self, ours: Tensors, architecture: Architecture) -> Tensors:
        """Returns the tensors to store, by their stored names, for the tensors of a model by our names."""
        remaining, body, head = dict(ours), {}, {}  # type: tuple[Tensors, Tensors, Tensors]
        # the architecture's rules come first, as in tensors_in: it may have its own names for tensors of the body
        for rule in reversed(architecture.rules):
            rule.write(remaining, head)
        for rule in reversed((*architecture.body, *self.rules)):
            rule.write(remaining, body)
        if remaining:
            names = ", ".join(sorted(remaining))
            raise HeedfulError(
                f"the layout {self.name!r} cannot store {names}; a part of the model was replaced: restore the "
                "original part, or save the weights with torch.save(model.state_dict(), ...)"
            )
        prefix = self._prefix(architecture)
        return {prefix + name: tensor for name, tensor in body.items()} | head

    def hub_name_of(self, name: str, architecture: Architecture, names: Container[str] = ()) -> str:
        """Returns the name under which the folder stores a tensor of ours; ``names`` are those of all our tensors.

        Without them, as for messages, it is the name in a model without the tensors that a rule looks for beside it.
        """
        prefix, rules = self._prefix(architecture), (*architecture.body, *self.rules)
        beside = [rule for rule in rules if isinstance(rule, RenameBeside) and rule.renames(name, names)]
        body = [prefix + hub for rule in (*beside, *rules) if (hub := rule.hub_name_of(name))]
        head = [hub for rule in architecture.rules if (hub := rule.hub_name_of(name))]
        return next(iter(head + body), name)

    def known(self, name: str) -> bool:
        """Returns True if any architecture of the model type has a tensor of this name."""
        return any(
            rule.claims(name)
            for architecture in self.architectures
            for rule in (*architecture.rules, *architecture.body, *self.rules)
        )


def _check_start(config: ModelConfig) -> None:
    """Raises ``HeedfulError`` for a start token outside the decoder's vocabulary."""
    if not isinstance(config, EncoderDecoderConfig) or config.special.start is None:
        return
    start, tokens = config.special.start, config.tokens.vocab_size
    if start >= tokens:
        raise HeedfulError(f"special.start is {start}, but the vocabulary has {tokens} tokens; give a smaller id")
