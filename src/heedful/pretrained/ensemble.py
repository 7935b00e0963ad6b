"""Ensembles in folders: ``member-0``, ``member-1``, ... are complete folders of the members, beside ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from heedful.config import EnsembleConfig, SequenceHead
from heedful.errors import HeedfulError
from heedful.models import Ensemble, Model
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.fill_model import build_empty
from heedful.pretrained.folder import CONFIG, is_ensemble, is_multi_label, member_folder, members_of
from heedful.pretrained.model_types import OWN

OF_THE_RUN = ("settings", "metrics", "custom", "verdict", "steps")  # entries of heedful.json that members do not have


def member_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of an ensemble's ``heedful.json`` that hold for each member."""
    return {name: value for name, value in card.items() if name not in OF_THE_RUN}


def load_ensemble(folder: Path, hub: Mapping[str, Any], load_member: Callable[..., Model], **options: Any) -> Ensemble:
    """Returns the ensemble of a folder.

    Args:
        folder: the folder.
        hub: its ``config.json``.
        load_member: function that loads a member's folder, with ``options``.
        **options: arguments of :func:`heedful.pretrained.load`; the head and the sizes of an ensemble cannot be
            changed.
    """
    changes = {"head": options["head"], "num_labels": options["num_labels"], **options["sizes"]}
    for name, value in changes.items():
        if value not in (None, SequenceHead.kind if name == "head" else None):
            raise HeedfulError(
                f"{folder} is an ensemble, whose members have their own {name}; leave it out, or load a member: "
                f"{member_folder(folder)}"
            )
    members, labels = [load_member(member, **options) for member in members_of(folder)], label_names(dict(hub))
    for path, member in zip(members_of(folder), members, strict=True):
        if list(member.labels) != labels:
            raise HeedfulError(
                f"{path / CONFIG}: the labels differ from those of {folder / CONFIG}; use the files of the same model"
            )
    configs: Any = tuple(member.config for member in members)
    ensemble = build_empty(EnsembleConfig(members=configs))
    assert isinstance(ensemble, Ensemble)
    ensemble.members = nn.ModuleList(members)
    ensemble.folder.layout, ensemble.labels, ensemble.folder.config = OWN.name, labels, dict(hub)
    ensemble.multi_label = is_multi_label(hub)
    return ensemble


def refuse_ensemble(folder: Path, purpose: str) -> None:
    """Raises ``HeedfulError`` for an ensemble; ``purpose`` says what is done with one of its members instead."""
    if is_ensemble(folder):
        raise HeedfulError(f"{folder} is an ensemble; {purpose} one of its members: {member_folder(folder)}")
