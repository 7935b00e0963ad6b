"""There and back: a folder opened, saved, and opened again is the same model, down to the bits."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.config import ImageHead, LanguageHead, SequenceHead, TokenHead
from heedful.models import Model
from heedful.pretrained import load
from heedful.pretrained.configuration import told
from heedful.pretrained.flat import flat
from heedful.pretrained.model_types import family_of
from heedful.pretrained.rules import Drop, Tensors
from heedful.pretrained.weights import read_tensors
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import Subject

SHOWN = 3  # names in a reason


def reopened(subject: Subject) -> Outcome:
    """How many tensors, fields of the configuration and other facts of the model differ once it was saved."""
    again = load(subject.saved, dtype=subject.stored.dtype, device="cpu")
    wrong = _differences(subject.stored, again)
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=_listed("differ: ", wrong))


def _differences(before: Model, after: Model) -> list[str]:
    """Names of what is not the same."""
    ours, theirs = before.state_dict(), after.state_dict()
    wrong = [n for n in sorted(ours.keys() | theirs.keys()) if not _equal(ours.get(n), theirs.get(n))]
    said, says = flat(before.config), flat(after.config)
    wrong += [path for path in sorted(said.keys() | says.keys()) if said.get(path) != says.get(path)]
    head = before.config.head
    if isinstance(head, LanguageHead) and dict(before.generation) != dict(after.generation):
        wrong.append("generation")
    if isinstance(head, SequenceHead | TokenHead | ImageHead):
        unnamed = [f"LABEL_{number}" for number in range(head.labels)]
        if list(before.labels or unnamed) != list(after.labels or unnamed):
            wrong.append("labels")
        if before.multi_label != after.multi_label:
            wrong.append("multi_label")
        if before.regression != after.regression:
            wrong.append("regression")
    return wrong


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are there and have the same bits."""
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


def stored_again(subject: Subject) -> Outcome:
    """How many tensors, by the names of the files, are not what they were once the folder was saved.

    What may differ is told: older names, copies of a tied tensor, buffers that are computed, another type.
    """
    if subject.stored.adapter is not None:
        raise Skipped("the folder holds an adapter; the round trip compares its tensors")
    (described, _), (again, _) = told(subject.folder), told(subject.saved)
    if described["model_type"] != again["model_type"]:
        reason = f"the layout is {again['model_type']}, no longer {described['model_type']}"
        return Outcome(difference=1.0, allowed=0.0, reason=reason)
    family = family_of(described)
    case = family.case_of(described)
    files, copies = read_tensors(subject.folder), read_tensors(subject.saved)
    before, after = family.names(files, case), family.names(copies, case)
    both = before.keys() & after.keys()
    types = {str(after[name].dtype).removeprefix("torch.") for name in both if after[name].dtype != before[name].dtype}
    before |= {name: before[name].to(after[name].dtype) for name in both}
    lost = {name: before[name] for name in before.keys() - after.keys()}
    drops = [rule for rule in (*case.rules, *case.body, *family.rules) if isinstance(rule, Drop)]
    computed = {name for name in lost if any(rule.claims(name) for rule in drops) or not lost[name].any()}
    wrong = [name for name in sorted(both) if not torch.equal(before[name], after[name])]
    wrong += [name for name in sorted(lost.keys() - computed) if not _copy(lost[name], after)]
    wrong += [name for name in sorted(after.keys() - both) if not _copy(after[name], before)]
    older = len(both) - len(files.keys() & copies.keys())
    notes = [f"{older} names of today for older ones"] if older else []
    notes += [f"now {', '.join(sorted(types))}"] if types else []
    notes += [f"{len(computed)} computed or empty left out"] if computed else []
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=_listed("differ: ", wrong) or ", ".join(notes))


def _copy(tensor: Tensor, among: Tensors) -> bool:
    """Whether one of the tensors has the same values: a tied tensor under its other name."""
    return any(other.shape == tensor.shape and torch.equal(other.to(tensor.dtype), tensor) for other in among.values())


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return what + ", ".join(names[:SHOWN]) + more
