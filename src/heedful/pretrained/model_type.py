"""A family of foreign checkpoints is data: facts for the configuration, rules for the tensors, a case a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heedful.config import Config, EncoderDecoderConfig, ModelConfig
from heedful.errors import HeedfulError, nearest
from heedful.pretrained.config_keys import Fact, Inexpressible, Key, LayerTypes, Only, Stored, only
from heedful.pretrained.flat_config import Flat, flat, nested
from heedful.pretrained.rules import Rule, Tensors

# fields that tell how a model is born and trained, not what it computes: where a family has no word for one, its
# config.json keeps it under "heedful"
FREE = (
    "init",
    "init_std",
    *(f"dropout.{site}" for site in ("embedding", "attention", "hidden", "residual")),
    "head.dropout",
)
EVERYWHERE = (
    *only(quantization_config=None, per_layer_config=None),
    LayerTypes("layer_types", None, None),
)  # what no family of ours has


@dataclass(frozen=True, kw_only=True)
class Case:
    """One class of the family: which head of ours it is, and what that head's tensors are called.

    ``fixed`` are fields of ours; of two cases of one name the first whose ``Only`` facts hold is meant. ``prefix``
    stands before the names of the body's tensors, where it is another than the family's; ``body`` are tensors of it
    that only this case has.
    """

    name: str
    fixed: Mapping[str, Any]
    facts: tuple[Fact, ...] = ()
    rules: tuple[Rule, ...] = ()
    body: tuple[Rule, ...] = ()
    prefix: str | None = None


def called(cases: Iterable[Case], old: str, new: str) -> tuple[Case, ...]:
    """The same classes under another family's name: ``LlamaModel`` → ``MistralModel``."""
    return tuple(replace(case, name=case.name.replace(old, new, 1)) for case in cases)


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a ``model_type`` means: our fixed fields, the facts, the body's tensors, the classes.

    ``old_names`` are endings of tensor names and what they are called today.
    """

    name: str
    fixed: Mapping[str, Any]
    facts: tuple[Fact, ...]
    rules: tuple[Rule, ...]
    cases: tuple[Case, ...]
    prefix: str = ""
    old_names: Mapping[str, str] = field(default_factory=dict)

    def case_of(self, theirs: Mapping[str, Any]) -> Case:
        """The case that a configuration names."""
        names = theirs.get("architectures")
        known = [case.name for case in self.cases]
        if not isinstance(names, list) or not names:
            raise HeedfulError(f'"architectures" is missing; add the class of the weights, one of {", ".join(known)}')
        cases = [case for case in self.cases if case.name == names[0]]
        if not cases:
            raise HeedfulError(f"the class {names[0]!r} is not supported; {nearest(str(names[0]), known)}")
        fitting = [c for c in cases if all(f.holds(theirs) for f in c.facts if isinstance(f, Only))]
        return next(iter(fitting), cases[-1])  # the last one's facts say what does not fit

    def told(self, case: Case, tensors: Tensors) -> dict[str, bool]:
        """For each fact that a tensor tells: what it tells."""
        return {f.theirs: f.look(tensors) for f in (*self.facts, *case.facts) if isinstance(f, Stored)}

    def read(self, theirs: Mapping[str, Any], case: Case, stored: Mapping[str, bool]) -> ModelConfig:
        """Our configuration of theirs; ``stored`` says which tensors are there."""
        ours: Flat = {**self.fixed, **case.fixed}
        for fact in (*EVERYWHERE, *self.facts, *case.facts):
            fact.read(theirs, ours, stored)
        unsaid = theirs.get("heedful")
        ours.update({k: v for k, v in unsaid.items() if k.endswith(FREE)} if isinstance(unsaid, Mapping) else {})
        try:
            config: ModelConfig = Config.from_dict(nested(ours))  # type: ignore[assignment]  # the kind is a model's
            _check_start(config)
            return config
        except HeedfulError as error:
            key = self._key(case, str(error).partition(" ")[0])
            raise HeedfulError(f"{key}: {error}" if key else str(error)) from None

    def _key(self, case: Case, path: str) -> str | None:
        """Their key of the field of ours that an error begins with ("dropout.hidden"), if any has it."""
        named = [
            (field, fact.theirs)
            for fact in (*case.facts, *self.facts)
            if isinstance(fact, Key)
            for field in fact.fields
        ]
        ends = (path, path.rpartition(".")[2])
        return next((theirs for end in ends for field, theirs in named if f".{field}".endswith(f".{end}")), None)

    def write(self, config: ModelConfig, case: Case) -> dict[str, Any] | None:
        """Their configuration of ours, or None where reading it back would give another model."""
        ours = flat(config)
        theirs: dict[str, Any] = {"architectures": [case.name], "model_type": self.name}
        facts = (*self.facts, *case.facts)
        try:
            for fact in facts:
                fact.write(ours, theirs)
            told = {f.theirs: f.foretold(ours) for f in facts if isinstance(f, Stored)}
            back = flat(self.read(theirs, case, told))
        except (Inexpressible, HeedfulError):
            return None
        unsaid = {path: value for path, value in ours.items() if path not in back or back[path] != value}
        if back.keys() != ours.keys() or not all(path.endswith(FREE) for path in unsaid):
            return None
        return theirs | ({"heedful": unsaid} if unsaid else {})

    def names(self, stored: Tensors, case: Case) -> Tensors:
        """Stored tensors by their names of today, without the prefix, which some files lack."""
        prefix = self._prefix(case) or self.prefix
        return {self._name(name).removeprefix(prefix): tensor for name, tensor in stored.items()}

    def _prefix(self, case: Case) -> str:
        return self.prefix if case.prefix is None else case.prefix

    def _name(self, name: str) -> str:
        for old, new in self.old_names.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name

    def tensors_in(self, stored: Tensors, case: Case, head: bool = True) -> Tensors:
        """Our tensors of theirs (see ``names``), the head's too unless told; what no rule knows stays in ``stored``."""
        made: Tensors = {}
        for rule in (*(case.rules if head else ()), *case.body, *self.rules):
            rule.read(stored, made)
        return made

    def tensors_out(self, ours: Tensors, case: Case) -> Tensors:
        """Their tensors of ours: the rules backwards, the prefix put on again."""
        remaining, body, head = dict(ours), {}, {}  # type: tuple[Tensors, Tensors, Tensors]
        for rule in reversed(case.rules):  # first, as on the way in: a class may have names of its own for the body's
            rule.write(remaining, head)
        for rule in reversed((*case.body, *self.rules)):
            rule.write(remaining, body)
        assert not remaining, f"no rule of {self.name} writes {sorted(remaining)}"
        prefix = self._prefix(case)
        return {prefix + name: tensor for name, tensor in body.items()} | head

    def their_name(self, name: str, case: Case) -> str:
        """Their name of our tensor, for messages."""
        prefix = self._prefix(case)
        body = [prefix + theirs for rule in (*case.body, *self.rules) if (theirs := rule.their_name(name))]
        head = [theirs for rule in case.rules if (theirs := rule.their_name(name))]
        return next(iter(head + body), name)

    def known(self, name: str) -> bool:
        """Whether any class of the family has a tensor of this name."""
        return any(rule.claims(name) for case in self.cases for rule in (*case.rules, *case.body, *self.rules))


def _check_start(config: ModelConfig) -> None:
    """Raises ``HeedfulError`` for a start token that a decoder's vocabulary does not have."""
    if not isinstance(config, EncoderDecoderConfig) or config.special.start is None:
        return
    start, tokens = config.special.start, (config.target or config.source).vocab_size
    if start >= tokens:
        raise HeedfulError(f"special.start is {start}, but there are {tokens} tokens; give one of theirs")
