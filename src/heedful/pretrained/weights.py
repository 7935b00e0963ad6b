"""Reads the tensors of a folder: safetensors, whole or in shards; pickles of plain tensors only.

Files are memory-mapped: a tensor is read when it is used, and changes in memory do not reach the file.
On Windows, which refuses to replace a mapped file, tensors are read at once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from heedful.errors import HeedfulError, first_few
from heedful.pretrained.folder import INDEX, PICKLE, PICKLE_INDEX, WEIGHTS, read_required_json, reason
from heedful.pretrained.rules import Tensors
from heedful.util.files import WINDOWS, check_regular

FLOATS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # masks and ids of older files


def read_tensors(folder: Path) -> Tensors:
    """Returns all tensors of a model's folder by their stored names, on the CPU; raises for unsupported dtypes."""
    for name, read in _READERS.items():
        check_regular(folder / name, "copy or download it again")
        if (folder / name).is_file():
            tensors = read(folder / name)
            break
    else:
        raise HeedfulError(f"{folder} has no weights; add {WEIGHTS}, {INDEX} or {PICKLE}")
    unsupported = [f"{name} is {tensor.dtype}" for name, tensor in tensors.items() if tensor.dtype not in _DTYPES]
    if unsupported:
        raise HeedfulError(f"unsupported weights in {folder}: {first_few(unsupported)}; convert them to float32")
    return tensors


def refuse_not_finite(folder: Path, faults: list[str]) -> None:
    """Raises ``HeedfulError`` if there are ``faults``, the messages about tensors that hold NaN or infinity.

    Each begins with the stored tensor's name. The error has the first fault, its file, and the number of faults.
    """
    if not faults:
        return
    name = faults[0].partition(" ")[0]
    file = next((file for file in _READERS if (folder / file).is_file()), WEIGHTS)
    if file in (INDEX, PICKLE_INDEX):  # the index has the name with its prefix
        file = read_required_json(folder / file)["weight_map"].get(name, file)
    more = f", and {len(faults) - 1} more tensors hold such numbers" if len(faults) > 1 else ""
    raise HeedfulError(
        f"{folder / file}: {faults[0]}{more}; use earlier weights, or load these in Python with check_finite=False"
    )


def _safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys()
            return {name: file.get_tensor(name).clone() if WINDOWS else file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise HeedfulError(
            f"{path} is not a complete safetensors file ({reason(error)}); copy or download it again"
        ) from None


def _pickle(path: Path) -> Tensors:
    """Returns the tensors of a file of ``torch.save``. Files from before 2020 cannot be memory-mapped."""
    try:
        is_archive = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive and not WINDOWS)
    except Exception as error:  # a damaged pickle may raise anything
        detail = "" if "Weights only" in str(error) else f" ({reason(error)})"  # PyTorch's advice is to run the code
        raise HeedfulError(
            f"{path} is damaged or contains pickled Python objects{detail}, which could run code and are not "
            "loaded; save the weights as safetensors with the program that wrote the file"
        ) from None
    if not isinstance(state, dict) or not all(_is_plain(name, value) for name, value in state.items()):
        raise HeedfulError(
            f"{path} is not a plain mapping of names to tensors; save it as safetensors with the program that wrote it"
        )
    if is_archive and _tensor_bytes(state) != _archive_bytes(path):  # PyTorch does not check a mapped file
        raise HeedfulError(f"{path} is damaged (its size does not fit its tensors); copy or download it again")
    return {name: tensor.detach() for name, tensor in state.items()}


def _is_plain(name: object, value: object) -> bool:
    """Returns True if a pickle's entry is a named, dense, unquantised tensor on the CPU."""
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _tensor_bytes(state: Tensors) -> int:
    """Returns the size of the tensors' storages."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _archive_bytes(path: Path) -> int:
    """Returns the size of the storages in an archive."""
    with zipfile.ZipFile(path) as archive:
        return sum(entry.compress_size for entry in archive.infolist() if "/data/" in entry.filename)


def _shards(index: Path, ending: str, read: Callable[[Path], Tensors]) -> Tensors:
    """Returns the tensors of all shards that an index names; raises if a tensor is missing or in the wrong shard."""
    shard_of = weight_map(index, ending)
    files = sorted(set(shard_of.values()))
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise HeedfulError(f"{index.parent} lacks {first_few(missing)}, named in {index.name}; download them")
    tensors: Tensors = {}
    problems: list[str] = []
    for file in files:
        shard = read(index.parent / file)
        problems += [f"{name} is not in {file}" for name in shard_of if shard_of[name] == file and name not in shard]
        problems += [f"{file} holds {name}, not listed for it" for name in shard if shard_of.get(name) != file]
        tensors |= shard
    if problems:
        raise HeedfulError(f"{index} does not fit its files: {first_few(problems, '; ')}; download all of them again")
    return tensors


def weight_map(index: Path, ending: str = ".safetensors") -> dict[str, str]:
    """Returns the file that holds each tensor, by the tensor's name, as the ``index`` of a sharded model lists them."""
    shard_of = read_required_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(_is_file_name(file, ending) for file in shard_of.values()):
        raise HeedfulError(
            f'{index} has no "weight_map" that maps tensors to {ending} files in its folder; download it again'
        )
    return shard_of


def _is_file_name(file: object, ending: str) -> bool:
    """Returns True for a valid file name without folders."""
    return isinstance(file, str) and Path(file).name == file and file.endswith(ending) and len(file) < 256


_DTYPES = {*FLOATS.values(), *INTEGERS}
_READERS: dict[str, Callable[[Path], Tensors]] = {  # the first file that exists is read
    WEIGHTS: _safetensors,
    INDEX: lambda index: _shards(index, ".safetensors", _safetensors),
    PICKLE: _pickle,
    PICKLE_INDEX: lambda index: _shards(index, ".bin", _pickle),
    "adapter_model.safetensors": _safetensors,  # the only files in an adapter's folder
    "adapter_model.bin": _pickle,
}
