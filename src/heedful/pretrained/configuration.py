"""Reads a folder's JSON files: the model configuration and the generation settings.

Tensors are read only from PEFT's adapter folders, whose head is known from its tensors alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.config import ModelConfig
from heedful.errors import HeedfulError
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.folder import ADAPTER_CONFIG, CONFIG, GENERATION, read_required_json
from heedful.pretrained.model_types import OWN, model_type_of
from heedful.pretrained.peft_config import find_base, read_config, split_tensors, trained_head

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
OTHER_PADDING = "_pad_token_id"  # that of config.json, if generation_config.json has another
ABOUT = ("_from_model_config", "transformers_version")  # keys of generation_config.json that are about the file
# generation settings that config.json holds in folders from before 2023, which have no generation_config.json
GENERATION_KEYS = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty"),
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "force_words_ids", "constraints", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
    *("forced_bos_token_id", "forced_eos_token_id", "renormalize_logits", "remove_invalid_values", "token_healing"),
    *("exponential_decay_length_penalty", "penalty_alpha", "guidance_scale", "dola_layers", "watermarking_config"),
)


def read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns two mappings: ``config.json``, and the generation settings of ``generation_config.json``.

    The token ids of ``generation_config.json`` are in the first.
    """
    if home(folder, CONFIG) != folder:
        return _config_over_base(folder)
    hub = read_required_json(folder / CONFIG)
    if (folder / GENERATION).exists():
        generation = read_required_json(folder / GENERATION)
    else:
        generation = {key: hub[key] for key in GENERATION_KEYS if hub.get(key) is not None}
        if hub.get("force_bos_token_to_be_generated"):  # BART's older key
            generation.setdefault("forced_bos_token_id", hub.get("bos_token_id"))
    for key in ABOUT:
        generation.pop(key, None)
    ids = {key: generation.pop(key, None) for key in IDS}
    other = hub.get("pad_token_id") if ids["pad_token_id"] not in (None, hub.get("pad_token_id")) else None
    ids |= {} if other is None else {OTHER_PADDING: other}
    return hub | {key: value for key, value in ids.items() if value is not None}, generation


def _config_over_base(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the base's configuration, with the head and classes of an adapter whose folder has no ``config.json``."""
    from heedful.pretrained.weights import read_tensors  # which imports torch

    config = read_config(folder)
    _, rest = split_tensors(folder, read_tensors(folder))
    _, base_folder = find_base(folder, config)
    kind, classes = trained_head(folder, config, base_folder, rest)
    hub, generation = read_configs(base_folder)
    model_type = model_type_of(hub)
    if model_type is not OWN and model_type.architecture_of(hub).fixed["head.kind"] != kind:
        architecture = next(
            architecture for architecture in model_type.architectures if architecture.fixed["head.kind"] == kind
        )
        hub = {key: value for key, value in hub.items() if key != "heedful"} | {"architectures": [architecture.name]}
    if classes is not None and classes != len(label_names(hub)):
        hub = {key: value for key, value in hub.items() if key != "id2label"} | {"num_labels": classes}
    return hub, generation


def home(folder: Path, *files: str) -> Path:
    """Returns the folder that has a model's files: ``folder``, or its base model's folder.

    It is the base model's if ``folder`` holds an adapter and none of ``files``.
    """
    if not (folder / ADAPTER_CONFIG).exists() or any((folder / name).exists() for name in files):
        return folder
    return find_base(folder, read_config(folder))[1]


def config_of(folder: Path) -> ModelConfig:
    """Returns the configuration of a folder's model. Fields that follow from the tensors have their default values."""
    hub, _ = read_configs(folder)
    try:
        model_type = model_type_of(hub)
        return model_type.read(hub, model_type.architecture_of(hub), {})
    except HeedfulError as error:
        raise HeedfulError(f"{folder / CONFIG}: {error}") from None
