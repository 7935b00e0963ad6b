"""Reversible rules for tensors: their names and shapes in, ours out, and back.

A rule takes the tensors it knows from one mapping and puts them into another. The way out is the way in, reversed.
Patterns hold ``{i}`` for a layer's number and ``{p}`` for "weight" or "bias"; what one side binds, the other uses.

Torch is imported where tensors are joined: who reads a configuration alone does not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    exact = re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{p\}", r"(?P<p>weight|bias)")
    return re.compile(exact)


def bound(pattern: str, names: Iterable[str]) -> list[dict[str, str]]:
    """Returns the values of ``{i}`` and ``{p}`` for each name that matches the pattern."""
    return [found.groupdict() for name in names if (found := _compiled(pattern).fullmatch(name))]


@dataclass(frozen=True)
class _OneTensorRule:
    """A rule for tensors of theirs with one pattern of names."""

    theirs: str

    def claims(self, name: str) -> bool:
        """Returns whether a tensor of theirs is known to the rule."""
        return bool(bound(self.theirs, [name]))


@dataclass(frozen=True)
class _JoiningRule:
    """A rule for several tensors of theirs that are one of ours."""

    theirs: tuple[str, ...]
    ours: str

    def claims(self, name: str) -> bool:
        """Returns whether a tensor of theirs is known to the rule."""
        return name in self.theirs


@dataclass(frozen=True)
class Rename(_OneTensorRule):
    """One tensor of theirs is one of ours. Its kin differ in ``inward`` and ``outward``."""

    ours: str

    def inward(self, tensor: Tensor) -> Tensor:
        """Ours, of theirs."""
        return tensor

    def outward(self, tensor: Tensor) -> Tensor:
        """Theirs, of ours."""
        return tensor

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Moves what the rule knows from ``stored`` (theirs) to ``made`` (ours)."""
        for values in bound(self.theirs, list(stored)):
            loaded[self.ours.format(**values)] = self.inward(stored.pop(self.theirs.format(**values)))

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Moves what the rule knows from ``ours`` to ``written`` (theirs)."""
        for values in bound(self.ours, list(ours)):
            written[self.theirs.format(**values)] = self.outward(ours.pop(self.ours.format(**values)))

    def their_name(self, name: str) -> str | None:
        """Returns their name of our tensor, where the rule knows it."""
        values = bound(self.ours, [name])
        return self.theirs.format(**values[0]) if values else None


@dataclass(frozen=True)
class Transpose(Rename):
    """A linear map stored as (in, out), as GPT-2's are; a bias stays as it is."""

    def inward(self, tensor: Tensor) -> Tensor:
        """(in, out) → (out, in)."""
        return tensor.t() if tensor.dim() == 2 else tensor

    outward = inward


@dataclass(frozen=True)
class RenameBeside(Rename):
    """A tensor that they call so only where another of ours, ``beside``, is in the same layer, by a rule before this.

    T5's second matrix is ``wi`` in a plain feed-forward, and ``wi_1`` beside a gate.
    """

    beside: str

    def write(self, ours: Tensors, written: Tensors) -> None:
        """As ``Rename``, where the other is there."""
        fitting = {self.ours.format(**v) for v in bound(self.ours, list(ours)) if self.beside.format(**v) in ours}
        chosen = {name: ours.pop(name) for name in fitting}
        super().write(chosen, written)


@dataclass(frozen=True)
class Squeeze(Rename):
    """A tensor stored with a leading axis of one."""

    def inward(self, tensor: Tensor) -> Tensor:
        """(1, ...) → (...)."""
        return tensor.squeeze(0)

    def outward(self, tensor: Tensor) -> Tensor:
        """(...) → (1, ...)."""
        return tensor.unsqueeze(0)


@dataclass(frozen=True)
class SqueezeUnlessZero(Squeeze):
    """The same for a buffer that is always stored, and means nothing where all of it is zero."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """As ``Rename``; zeros are left out."""
        for name in [name for name in stored if self.claims(name) and not stored[name].any()]:
            del stored[name]
        super().read(stored, loaded)


@dataclass(frozen=True)
class RenameUnlessZero(Rename):
    """Another name for tensors that are not there where the weight is zero: a pooler that its class asks for.

    The weight alone tells, as it does for the ``StoredTensor`` config key.
    """

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """As ``Rename``; what belongs to a weight of zeros is left out."""
        names = [name for name in stored if self.claims(name)]
        weights = [name for name in names if name.endswith("weight")]
        for name in names if weights and not stored[weights[0]].any() else []:
            del stored[name]
        super().read(stored, loaded)


@dataclass(frozen=True)
class Split(_OneTensorRule):
    """One tensor of theirs is several of ours, in equal parts along the first axis once transposed (see ``Transpose``).

    GPT-2's ``c_attn`` holds query, key and value.
    """

    ours: tuple[str, ...]
    transposed: bool = False

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Cuts what is stored."""
        for values in bound(self.theirs, list(stored)):
            whole = stored.pop(self.theirs.format(**values))
            parts = self._turned(whole).chunk(len(self.ours))
            for name, part in zip(self.ours, parts, strict=False):
                loaded[name.format(**values)] = part

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Joins what we have."""
        import torch

        for values in bound(self.ours[0], list(ours)):
            parts = [ours.pop(name.format(**values)) for name in self.ours]
            written[self.theirs.format(**values)] = self._turned(torch.cat(parts))

    def their_name(self, name: str) -> str | None:
        """Returns their name of our tensor, where the rule knows it."""
        values = [values for pattern in self.ours for values in bound(pattern, [name])]
        return self.theirs.format(**values[0]) if values else None

    def _turned(self, tensor: Tensor) -> Tensor:
        return tensor.t() if self.transposed and tensor.dim() == 2 else tensor


@dataclass(frozen=True)
class Join(_JoiningRule):
    """Several tensors of theirs, each of one row, are the rows of one of ours along the second axis.

    DeiT keeps its class and distillation tokens apart, (1, 1, D) each.
    """

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Joins them where all are stored; otherwise they are left, and so unexpected."""
        import torch

        if not all(name in stored for name in self.theirs):
            return
        rows = [stored.pop(name) for name in self.theirs]
        if {tuple(row.shape) for row in rows} != {(1, 1, *rows[0].shape[-1:])}:
            found = ", ".join(f"{name} is {tuple(row.shape)}" for name, row in zip(self.theirs, rows, strict=True))
            raise HeedfulError(f"{found}; each must have the shape (1, 1, width), so take other weights")
        loaded[self.ours] = torch.cat(rows, dim=1)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Cuts ours into its rows."""
        if self.ours in ours:
            rows = ours.pop(self.ours).split(1, dim=1)
            written.update({name: row.clone() for name, row in zip(self.theirs, rows, strict=True)})

    def their_name(self, name: str) -> str | None:
        """Returns their names of our tensor."""
        return " + ".join(self.theirs) if name == self.ours else None


@dataclass(frozen=True)
class Tie(_JoiningRule):
    """Names of theirs for one and the same tensor: any of them is read, the first is written."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Takes the first that is stored; copies of it must be equal."""
        found = {name: stored.pop(name) for name in self.theirs if name in stored}
        if found:
            loaded[self.ours] = same(found)

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Writes the first name."""
        if self.ours in ours:
            written[self.theirs[0]] = ours.pop(self.ours)

    def their_name(self, name: str) -> str | None:
        """Returns their first name of our tensor."""
        return self.theirs[0] if name == self.ours else None


@dataclass(frozen=True)
class Drop(_OneTensorRule):
    """A tensor that is computed, or belongs to a head that we have not: ignored coming in, not written."""

    def read(self, stored: Tensors, loaded: Tensors) -> None:
        """Drops it."""
        for values in bound(self.theirs, list(stored)):
            del stored[self.theirs.format(**values)]

    def write(self, ours: Tensors, written: Tensors) -> None:
        """Nothing."""

    def their_name(self, name: str) -> str | None:
        """None: it is no tensor of ours."""
        return None


Rule = Rename | Split | Join | Tie | Drop


def same(tensors: Tensors) -> Tensor:
    """Returns the one tensor that all of these are; raises where two differ."""
    (first, tensor), *others = tensors.items()
    for name, other in others:
        if other.shape != tensor.shape or not other.equal(tensor):
            raise HeedfulError(f"{first} and {name} are one tensor in this model, but are stored with different values")
    return tensor
