"""Tensors from a folder's files: safetensors, whole or in shards; a pickle only as plain tensors.

Files are memory-mapped: a tensor is read when it is used.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from heedful.checkpoints.folder import INDEX, PICKLE, WEIGHTS, read_json
from heedful.checkpoints.rules import Tensors
from heedful.errors import HeedfulError


def read_tensors(folder: Path) -> Tensors:
    """All tensors of a model's folder, by their stored names, on the CPU."""
    if (folder / WEIGHTS).exists():
        return _safetensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        return _shards(folder / INDEX)
    if (folder / PICKLE).exists():
        return _pickle(folder / PICKLE)
    raise HeedfulError(f"{folder} has no weights: {WEIGHTS}, {INDEX} or {PICKLE} is needed")


def _safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping: it has only keys
    except (SafetensorError, OSError) as error:
        raise HeedfulError(f"{path} is no whole safetensors file ({error}); copy or download it again") from None


def _shards(index: Path) -> Tensors:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(f, str) and Path(f).name == f for f in names.values()):
        raise HeedfulError(f'{index} has no "weight_map" from tensors to files beside it; download it again')
    files = sorted(set(names.values()))
    missing = [name for name in files if not (index.parent / name).exists()]
    if missing:
        raise HeedfulError(f"{index.parent} lacks {', '.join(missing)}, named in {index.name}; download them")
    tensors: Tensors = {}
    for name in files:
        tensors |= _safetensors(index.parent / name)
    return tensors


def _pickle(path: Path) -> Tensors:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise HeedfulError(
            f"{path} is no plain file of tensors ({str(error).splitlines()[0]}); "
            "a pickle may run code: only tensors are read; convert it to safetensors where it came from"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise HeedfulError(f"{path} holds more than tensors; convert it to safetensors where it came from")
    return dict(state)
