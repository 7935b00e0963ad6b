"""Writing a model's folder: in the layout of the first family that can say the configuration, or else in our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from heedful import __version__
from heedful.checkpoints.facts import label_tables
from heedful.checkpoints.families import OWN, OWN_CASE, express
from heedful.checkpoints.folder import CARD, CONFIG, GENERATION, MULTI_LABEL, WEIGHTS, to_json, written
from heedful.checkpoints.reading import places
from heedful.checkpoints.rules import Tensors
from heedful.config import ImageHead, LanguageHead, SequenceHead, TokenHead, VisionConfig
from heedful.errors import HeedfulError
from heedful.models import Model


def save(model: Model, folder: str | Path, *, extra: Mapping[str, Any] | None = None) -> str:
    """Write a model: ``config.json``, ``model.safetensors``, ``generation_config.json`` where it generates, a card.

    Tied weights are stored once. Files are written beside and renamed; others in the folder stay.

    Args:
        model: of any family, on any device, in its own dtype.
        folder: made where it does not exist.
        extra: what ``heedful.json`` says besides the layout: task, labels, metrics, ...; ``labels``, a list of names,
            goes into ``config.json`` too.

    Returns:
        The layout: "gpt2", "bert", ... open elsewhere as they are; "heedful" is our own, which only we open.
    """
    extra = dict(extra or {})
    family, case, theirs = express(model.config) or (OWN, OWN_CASE, {"model_type": OWN.name, **model.config.to_dict()})
    theirs |= _labels(model, extra)
    theirs["dtype"] = str(model.dtype).removeprefix("torch.")
    tensors = family.tensors_out(_once(model), case)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = {CONFIG: theirs, CARD: {"layout": family.name, "heedful": __version__} | extra}
    if isinstance(model.config.head, LanguageHead):
        files[GENERATION] = _generation(model)
    try:
        with written(Path(folder).expanduser().resolve()) as place:
            for name, content in files.items():
                (place / name).write_bytes(to_json(content))
            save_file(tensors, place / WEIGHTS, metadata={"format": "pt"})
            (place / WEIGHTS).chmod((place / CONFIG).stat().st_mode)  # it is written for the owner alone
    except SafetensorError as error:
        raise HeedfulError(f"cannot write {folder}: {error}; free some room or choose another folder") from None
    return family.name


def _once(model: Model) -> Tensors:
    """The model's tensors by our names, those with several places under the first."""
    state = model.state_dict()
    return {names[0]: state[names[0]] for names in places(model)}


def _labels(model: Model, extra: Mapping[str, Any]) -> dict[str, Any]:
    head = model.config.head
    names = extra.get("labels") or vars(model).get("labels") or []
    if not names or not isinstance(head, SequenceHead | TokenHead | ImageHead):
        return {}
    if len(names) != head.labels:
        raise HeedfulError(f"{len(names)} label names for a head of {head.labels} labels")
    several = MULTI_LABEL if vars(model).get("multi_label") else {}
    return label_tables([str(name) for name in names]) | several


def _generation(model: Model) -> dict[str, Any]:
    """The token ids, and the settings that came with the model."""
    config = model.config
    assert not isinstance(config, VisionConfig)
    special = config.special
    start = "bos_token_id" if config.kind == "decoder" else "decoder_start_token_id"
    end = list(special.end) if len(special.end) > 1 else next(iter(special.end), None)
    ids = {start: special.start, "eos_token_id": end, "pad_token_id": special.pad}
    return {key: value for key, value in ids.items() if value is not None} | vars(model).get("generation", {})
