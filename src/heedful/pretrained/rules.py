"""Reversible tensor rules: stored names and shapes ↔ ours.

"Stored" are the tensors of a folder in the Hub's layout, "ours" those of Heedful's model. A rule moves the tensors that
it knows from one mapping to another: ``read`` from stored to ours, ``write`` from ours to stored.
Patterns have ``{i}`` for a layer's number, ``{e}`` for an expert's, and ``{p}`` for "weight" or "bias"; both sides
share the values.

Torch is imported only where tensors are joined, so that reading a configuration does not need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    exact = re.escape(pattern)
    for name, values in {"i": r"\d+", "e": r"\d+", "p": "weight|bias"}.items():
        exact = exact.replace(rf"\{{{name}\}}", f"(?P<{name}>{values})")
    return re.compile(exact)


def bound(pattern: str, names: Iterable[str]) -> list[dict[str, str]]:
    """Returns the values of the pattern's placeholders for each name that matches the pattern."""
    return [match.groupdict() for name in names if (match := _compiled(pattern).fullmatch(name))]


class _Rule:
    """Base class of rules."""

    def sized(self, fields: Mapping[str, Any]) -> Any:
        """Returns the rule with the sizes that it needs of a flat configuration; most rules need none."""
        return self


@dataclass(frozen=True)
class _OneTensorRule(_Rule):
    """A rule for stored tensors whose names match one pattern."""

    hub_name: str

    def claims(self, name: str) -> bool:
        """Returns True if the rule applies to the stored tensor called ``name``."""
        return bool(bound(self.hub_name, [name]))


@dataclass(frozen=True)
class _JoiningRule(_Rule):
    """A rule for several stored tensors that make one tensor of ours."""

    hub_name: tuple[str, ...]
    ours: str

    def claims(self, name: str) -> bool:
        """Returns True if the rule applies to the stored tensor called ``name``."""
        return name in self.hub_name


@dataclass(frozen=True)
class Rename(_OneTensorRule):
    """Rule for a stored tensor that is one of ours under another name.

    Subclasses change its values: ``inward`` on reading, ``outward`` on writing.
    """

    ours: str

    def inward(self, tensor: Tensor) -> Tensor:
        """Returns our tensor for a stored tensor; here it is the same."""
        return tensor

    def outward(self, tensor: Tensor) -> Tensor:
        """Returns the tensor to store for a tensor of ours; here it is the same."""
        return tensor

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Moves the tensors to which the rule applies from ``stored``, by stored names, to ``loaded``, by ours."""
        for values in bound(self.hub_name, list(stored)):
            loaded[self.ours.format(**values)] = self.inward(stored.pop(self.hub_name.format(**values)))

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Moves the tensors to which the rule applies from ``ours`` to ``written``, by stored names."""
        for values in bound(self.ours, list(ours)):
            written[self.hub_name.format(**values)] = self.outward(ours.pop(self.ours.format(**values)))

    def hub_name_of(self, name: str) -> str | None:
        """Returns the stored name of our tensor ``name``; None if the rule does not apply to it."""
        values = bound(self.ours, [name])
        return self.hub_name.format(**values[0]) if values else None


@dataclass(frozen=True)
class Transpose(Rename):
    """Rule for a linear map that is stored as (in, out), as in GPT-2; a bias is unchanged."""

    def inward(self, tensor: Tensor) -> Tensor:
        """Returns the transposed matrix: (in, out) → (out, in)."""
        return tensor.t() if tensor.dim() == 2 else tensor

    outward = inward


@dataclass(frozen=True)
class SplitHeads(Rename):
    """Rule for a linear map of an attention that is stored as (D, H, E), as in XLNet.

    Our tensor ``beside`` (H, E) of the same layer has the sizes to write; a later rule must write it. With
    ``transposed`` the map is from D to the heads, else from the heads to D.
    """

    beside: str
    transposed: bool

    def inward(self, tensor: Tensor) -> Tensor:
        """Returns the map, (H E, D) if it is transposed, else (D, H E)."""
        if tensor.dim() != 3:
            return tensor  # the error about its shape names it
        return tensor.flatten(1).t() if self.transposed else tensor.flatten(1)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Writes the maps as (D, H, E)."""
        for values in bound(self.ours, list(ours)):
            weight = ours.pop(self.ours.format(**values))
            heads = ours[self.beside.format(**values)].shape
            weight = weight.t() if self.transposed else weight
            written[self.hub_name.format(**values)] = weight.unflatten(1, heads)


@dataclass(frozen=True)
class RenameBeside(Rename):
    """Rule that renames a tensor only if there is our tensor ``beside``, of the same layer; else another rule does.

    T5's second matrix is ``wi`` in a plain feed-forward, and ``wi_1`` beside a gate. OPT's norms come before the
    sublayers if there is a last norm, else after them. An earlier rule reads ``beside``.
    """

    beside: str

    def renames(self, name: str, names: Container[str]) -> bool:
        """Returns True for our tensor ``name`` if ``beside`` is among our tensors ``names``."""
        return any(self.beside.format(**values) in names for values in bound(self.ours, [name]))

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Reads the tensors whose layer also has the tensor ``beside``."""
        found = [v for v in bound(self.hub_name, list(stored)) if self.beside.format(**v) in loaded]
        names = [self.hub_name.format(**values) for values in found]
        super().read({name: stored.pop(name) for name in names}, loaded)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Writes the tensors whose layer also has the tensor ``beside``."""
        names = {self.ours.format(**v) for v in bound(self.ours, list(ours)) if self.beside.format(**v) in ours}
        super().write({name: ours.pop(name) for name in names}, written)


@dataclass(frozen=True)
class Squeeze(Rename):
    """Rule for a tensor that is stored with an additional first axis of size 1."""

    def inward(self, tensor: Tensor) -> Tensor:
        """Returns the tensor without its first axis: (1, ...) → (...)."""
        return tensor.squeeze(0)

    def outward(self, tensor: Tensor) -> Tensor:
        """Returns the tensor with an additional first axis: (...) → (1, ...)."""
        return tensor.unsqueeze(0)


@dataclass(frozen=True)
class SqueezeUnlessZero(Squeeze):
    """Rule for a buffer that is always stored, with a further first axis of size 1; zeros mean that it is absent."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Reads the buffer unless it is zero."""
        for name in [name for name in stored if self.claims(name) and not stored[name].any()]:
            del stored[name]
        super().read(stored, loaded)


@dataclass(frozen=True)
class RenameUnlessZero(Rename):
    """Rule that renames a layer's tensors; a weight of zeros means that the model lacks the layer, such as a pooler.

    The weight alone decides, as for the ``StoredTensor`` config key.
    """

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Reads weight and bias unless the weight is zero."""
        names = [name for name in stored if self.claims(name)]
        weights = [name for name in names if name.endswith("weight")]
        for name in names if weights and not stored[weights[0]].any() else []:
            del stored[name]
        super().read(stored, loaded)


@dataclass(frozen=True)
class Split(_OneTensorRule):
    """Rule for a stored tensor that is several of ours: equal parts of its first axis, or if transposed of its last.

    GPT-2's ``c_attn`` holds query, key and value.
    """

    ours: tuple[str, ...]
    transposed: bool = False

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Splits the stored tensor into ours."""
        for values in bound(self.hub_name, list(stored)):
            whole = stored.pop(self.hub_name.format(**values))
            parts = self.split(self._transposed(whole))
            for name, part in zip(self.ours, parts, strict=False):
                loaded[name.format(**values)] = part

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Joins our tensors into the tensor to store."""
        for values in bound(self.ours[0], list(ours)):
            parts = [ours.pop(name.format(**values)) for name in self.ours]
            written[self.hub_name.format(**values)] = self._transposed(self.join(parts))

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        """Returns the parts of the first axis."""
        return whole.chunk(len(self.ours)) if whole.dim() else [whole]  # the error about its shape names it

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the tensor of which these are the parts."""
        import torch

        return torch.cat(list(parts))

    def hub_name_of(self, name: str) -> str | None:
        """Returns the stored name of our tensor ``name``; None if the rule does not apply to it."""
        values = [values for pattern in self.ours for values in bound(pattern, [name])]
        return self.hub_name.format(**values[0]) if values else None

    def _transposed(self, tensor: Tensor) -> Tensor:
        return tensor.t() if self.transposed and tensor.dim() == 2 else tensor


@dataclass(frozen=True)
class SplitProjections(Split):
    """Rule for the rows of queries, keys and values that are stored as one: all queries, all keys, all values (Phi-3).

    With ``by_group`` each key-value head has its queries, its key and its value together (GPT-NeoX).
    """

    by_group: bool = False
    stack: str = "decoder"
    groups: int = 1
    sizes: tuple[int, ...] = ()  # of the parts of a group; none before ``sized``

    def sized(self, fields: Mapping[str, Any]) -> SplitProjections:
        """Returns the rule for the heads of the configuration."""
        heads, kv_heads, size = (fields[f"{self.stack}.{name}"] for name in ("heads", "kv_heads", "head_dim"))
        groups = kv_heads if self.by_group else 1
        return replace(self, groups=groups, sizes=tuple(n // groups * size for n in (heads, kv_heads, kv_heads)))

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        """Returns the rows of queries, keys and values."""
        if not whole.dim() or len(whole) != self.groups * sum(self.sizes):
            return super().split(whole)  # the error about their shapes names them
        return [part.flatten(0, 1) for part in whole.unflatten(0, (self.groups, -1)).split(self.sizes, 1)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the rows as they are stored."""
        import torch

        return torch.cat([part.unflatten(0, (self.groups, -1)) for part in parts], 1).flatten(0, 1)


@dataclass(frozen=True)
class RotatedPairs(_Rule):
    """Rule for the order of the rows of a head, whose pairs rotary positions rotate: ours are (i, i + E/2).

    Stored are first the R rows that are rotated, with the pairs (i, i + R/2), or (2i, 2i + 1) if ``interleaved``. The
    tensors have our names: another rule, before this one, has renamed them.
    """

    ours: str
    interleaved: bool = False
    stack: str = "decoder"
    order: tuple[int, ...] = ()  # the stored row of each row of ours; none before ``sized``

    def sized(self, fields: Mapping[str, Any]) -> RotatedPairs:
        """Returns the rule for the head size of the configuration, and the share of a head that is rotated."""
        size = fields[f"{self.stack}.head_dim"]
        half = int(size * fields[f"{self.stack}.position.share"]) // 2
        pairs = [(2 * i, 2 * i + 1) if self.interleaved else (i, i + half) for i in range(half)]
        pairs += [(i, i + size // 2 - half) for i in range(2 * half, size // 2 + half)]
        return replace(self, order=(*(first for first, _ in pairs), *(second for _, second in pairs)))

    def claims(self, name: str) -> bool:
        """Returns False, because another rule applies to the stored tensor."""
        return False

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Orders the rows of the tensors in ``loaded`` as ours."""
        loaded.update({name: self.inward(loaded[name]) for name in self.names(loaded)})

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Orders the rows of the tensors in ``ours`` as they are stored."""
        ours.update({name: self.outward(ours[name]) for name in self.names(ours)})

    def names(self, tensors: Iterable[str]) -> list[str]:
        """Returns the names of the tensors to which the rule applies."""
        return [self.ours.format(**values) for values in bound(self.ours, tensors)]

    def inward(self, tensor: Tensor) -> Tensor:
        """Returns a tensor (H E, ...) with the rows of each head in our order."""
        return self._ordered(tensor, self.order)

    def outward(self, tensor: Tensor) -> Tensor:
        """Returns a tensor (H E, ...) with the rows of each head in the stored order."""
        return self._ordered(tensor, sorted(range(len(self.order)), key=self.order.__getitem__))

    def _ordered(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        if (
            [*order] == [*range(len(order))] or not tensor.dim() or len(tensor) % len(order)
        ):  # the error about its shape names it
            return tensor
        return tensor.unflatten(0, (-1, len(order)))[:, list(order)].flatten(0, 1)

    def hub_name_of(self, name: str) -> str | None:
        """Returns None, because another rule has the stored name."""
        return None


@dataclass(frozen=True)
class Join(_JoiningRule):
    """Rule for several stored tensors, (1, 1, D) each, that are the rows of one of ours along its second axis.

    DeiT stores its class and distillation tokens apart.
    """

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Joins the tensors if all are stored; otherwise the stored tensors remain and are reported as unexpected."""
        import torch

        if not all(name in stored for name in self.hub_name):
            return
        rows = [stored.pop(name) for name in self.hub_name]
        if {tuple(row.shape) for row in rows} != {(1, 1, *rows[0].shape[-1:])}:
            shapes = ", ".join(f"{name} is {tuple(row.shape)}" for name, row in zip(self.hub_name, rows, strict=True))
            raise HeedfulError(f"{shapes}; each must have the shape (1, 1, width); use other weights")
        loaded[self.ours] = torch.cat(rows, dim=1)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Splits our tensor into its rows."""
        if self.ours in ours:
            rows = ours.pop(self.ours).split(1, dim=1)
            written.update({name: row.clone() for name, row in zip(self.hub_name, rows, strict=True)})

    def hub_name_of(self, name: str) -> str | None:
        """Returns the stored names of our tensor ``name``; None if the rule does not apply to it."""
        return " + ".join(self.hub_name) if name == self.ours else None


@dataclass(frozen=True)
class Tie(_JoiningRule):
    """Rule for a tensor with several stored names: any of them is read, the first is written."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Reads the first name that is stored; the tensors of the other names must be equal."""
        copies = {name: stored.pop(name) for name in self.hub_name if name in stored}
        if copies:
            loaded[self.ours] = same(copies)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Writes our tensor under the first stored name."""
        if self.ours in ours:
            written[self.hub_name[0]] = ours.pop(self.ours)

    def hub_name_of(self, name: str) -> str | None:
        """Returns the first stored name of our tensor ``name``; None if the rule does not apply to it."""
        return self.hub_name[0] if name == self.ours else None


@dataclass(frozen=True)
class Drop(_OneTensorRule):
    """Rule for a stored tensor that is neither read nor written: it is computed, or of a head that the model lacks."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Removes the tensor from ``stored``."""
        for values in bound(self.hub_name, list(stored)):
            del stored[self.hub_name.format(**values)]

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Writes nothing, because the tensor is not stored."""

    def hub_name_of(self, name: str) -> str | None:
        """Returns None, because the rule applies to no tensor of ours."""
        return None


@dataclass(frozen=True)
class SinusoidTable(Rename):
    """Rule for a table of sinusoids, all sines first, that is stored but computed; ``save`` makes it.

    A file may lack it; a table of other values is refused.
    """

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Removes the table from ``stored``; raises ``HeedfulError`` if it holds other values."""
        from heedful.layers.position import sinusoid

        table = stored.pop(self.hub_name, None)
        if table is None:
            return
        computed = sinusoid(*table.shape[:2], order="halves") if table.ndim == 2 else None  # type: ignore[misc]  # 2 sizes
        if computed is None or (table.cpu().float() - computed).abs().max() > 0.01:
            raise HeedfulError(f"{self.hub_name} is not the table of sinusoids that this layout computes; remove it")


Rule = Rename | Split | RotatedPairs | Join | Tie | Drop


def rename_rules(rules: Iterable[Rule], prefix: str, moved: Iterable[tuple[str, str]] = ()) -> tuple[Rule, ...]:
    """Returns the rules of a model that is a part of another: with ``prefix`` before the stored names.

    ``moved`` has pairs of beginnings of our names: in the model on its own, and in the model that contains it.
    """

    def renamed(rule: Rule) -> Rule:
        if isinstance(rule, RotatedPairs):
            return replace(rule, ours=moved_name(rule.ours, moved))
        stored: Any = _each(lambda name: prefix + name, rule.hub_name)
        if isinstance(rule, Drop):
            return replace(rule, hub_name=stored)
        return replace(rule, hub_name=stored, ours=_each(lambda name: moved_name(name, moved), rule.ours))

    return tuple(map(renamed, rules))


def before_sublayers(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Returns the rules of a post-norm model for a pre-norm model with the same stored names."""
    return tuple(
        replace(rule, ours=rule.ours.replace("_residual.after.", "_residual.before."))
        for rule in rules
        if isinstance(rule, Rename)
    )


def _each(change: Callable[[str], str], names: str | tuple[str, ...]) -> Any:
    return change(names) if isinstance(names, str) else tuple(map(change, names))


def moved_name(name: str, moved: Iterable[tuple[str, str]]) -> str:
    """Returns a name, or a field's path, with its beginning replaced if ``moved`` has it.

    >>> moved_name("patches.channels", [("patches.", "source.")])
    'source.channels'
    """
    return next((new + name.removeprefix(old) for old, new in moved if name.startswith(old)), name)


def same(tensors: Tensors) -> Tensor:
    """Returns the first of several tensors, by name, that must be equal; raises ``HeedfulError`` if two differ."""
    (first, tensor), *others = tensors.items()
    for name, other in others:
        if other.shape != tensor.shape or not other.equal(tensor):
            raise HeedfulError(
                f"{first} and {name} are one tensor in this model, but are stored with different values; make the two "
                "equal"
            )
    return tensor
