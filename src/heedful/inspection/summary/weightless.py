"""Builds a module without weights from a preset, a configuration or a folder, to be counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful import presets
from heedful.config import ModelConfig
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained import load
from heedful.pretrained.configuration import read_configs
from heedful.pretrained.fill_model import build_empty, check_sizes, match_tensors
from heedful.pretrained.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    WEIGHTS,
    find,
    read_required_json,
)
from heedful.pretrained.model_types import model_type_of
from heedful.pretrained.resizing import resized
from heedful.pretrained.weights import weight_map

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
Size = int | tuple[int, int] | None


def module_of(what: str | Path | ModelConfig | nn.Module, image_size: Size) -> tuple[nn.Module, str]:
    """Returns the module to be counted, and its name.

    A preset, a configuration, a ``config.json`` and a folder with safetensors are built without weights: only the
    headers of files are read, which have names and shapes. A pickle and an adapter are loaded, mapped from their files.
    """
    if isinstance(what, nn.Module):
        if image_size is not None:
            raise HeedfulError("image_size would build another model, but a module is given; give input_shape instead")
        if isinstance(what, Model):
            what.check_not_optimised("count its parts")
        return what, type(what).__name__
    if isinstance(what, str) and what in presets.PRESETS:
        return build_empty(resized(presets.get(what), image_size=image_size)), what
    if not isinstance(what, str | Path):
        return build_empty(resized(what, image_size=image_size)), what.kind
    if Path(what).is_file() and Path(what).name != CONFIG:
        return build_empty(resized(_config_of_file(Path(what)), image_size=image_size)), str(what)
    folder = find(Path(what).parent if Path(what).is_file() else what)
    if any((folder / name).is_file() for name in (PICKLE, PICKLE_INDEX, ADAPTER_CONFIG)) and not _headers(folder):
        return load(folder, image_size=image_size), str(what)
    return build_empty(resized(_config_of_folder(folder), image_size=image_size)), str(what)


def _config_of_file(path: Path) -> ModelConfig:
    """Reads the configuration in a ``config.json``; values that only the weights would show have their defaults."""
    config = read_required_json(path)
    try:
        model_type = model_type_of(config)
        return model_type.read(config, model_type.architecture_of(config), {})
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error}") from None


def _config_of_folder(folder: Path) -> ModelConfig:
    """Reads the configuration of a folder; weights must fit it by name, shape and type."""
    hub_config, _ = read_configs(folder)
    headers = _headers(folder)
    if not headers:
        return _config_of_file(folder / CONFIG)
    files = {id(tensor): (path, name) for name, (path, tensor) in headers.items()}
    try:
        with _UnreadTensors(files):
            model_type = model_type_of(hub_config)
            architecture = model_type.architecture_of(hub_config)
            stored = model_type.names({name: tensor for name, (_, tensor) in headers.items()}, architecture)
            config = model_type.read(hub_config, architecture, model_type.implied_by(architecture, stored))
            check_sizes(config, stored)
            tensors = model_type.sized(config).tensors_in(stored, architecture)
            match_tensors(
                build_empty(config),
                tensors,
                list(stored),
                partial(model_type.hub_name_of, architecture=architecture),
                False,
            )
    except HeedfulError as error:
        raise HeedfulError(f"{folder / CONFIG}: {error}") from None
    return config


class _UnreadTensors(TorchFunctionMode):
    """Answers questions about tensors of ``files`` without reading them all.

    ``Tensor.any`` reads the tensor from its file. ``Tensor.equal`` returns True: tensors that must be equal are taken
    to be.
    """

    def __init__(self, files: Mapping[int, tuple[Path, str]]) -> None:
        super().__init__()
        self.files = files

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function == Tensor.equal:
            return True
        if function == Tensor.any and id(args[0]) in self.files:
            path, name = self.files[id(args[0])]
            with safe_open(path, framework="pt", device="cpu") as file:
                return file.get_tensor(name).any()
        return function(*args, **(kwargs or {}))


def _headers(folder: Path) -> dict[str, tuple[Path, Tensor]]:
    """Returns the tensors of a folder's safetensors files, on the meta device, with their files; {} without any."""
    files = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []
    if not files and (folder / INDEX).is_file():
        files = [folder / name for name in sorted(set(weight_map(folder / INDEX).values()))]
    return {name: (file, tensor) for file in files for name, tensor in _header(file).items()}


def _header(path: Path) -> dict[str, Tensor]:
    """Reads the header of a safetensors file: its length in 8 bytes, then JSON of names, types and shapes."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            table = json.loads(file.read(length))
        table.pop("__metadata__", None)
        return {
            name: torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="meta")
            for name, entry in table.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise HeedfulError(f"{path} is not a complete safetensors file ({error}); copy or download it again") from None
