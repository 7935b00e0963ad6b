"""Tensors from a folder's files: safetensors, whole or in shards; a pickle only as plain tensors.

Files are memory-mapped: a tensor is read when it is used, and one that is changed in memory is no longer the file's.
On Windows, which refuses to replace a mapped file, tensors are read at once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from heedful.errors import HeedfulError
from heedful.pretrained.folder import INDEX, PICKLE, PICKLE_INDEX, WEIGHTS, read_json, reason
from heedful.pretrained.rules import Tensors
from heedful.util.files import WINDOWS, check_regular

FLOATS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # masks and ids of older files


def read_tensors(folder: Path) -> Tensors:
    """All tensors of a model's folder, by their stored names, on the CPU; numbers of other kinds are an error."""
    for name, read in _READERS.items():
        check_regular(folder / name, "copy or download it again")
        if (folder / name).is_file():
            tensors = read(folder / name)
            break
    else:
        raise HeedfulError(f"{folder} has no weights: {WEIGHTS}, {INDEX} or {PICKLE} is needed")
    odd = [f"{name} is {tensor.dtype}" for name, tensor in tensors.items() if tensor.dtype not in _KNOWN]
    if odd:
        raise HeedfulError(f"weights in {folder} are of types that are not read: {', '.join(odd)}; convert to float32")
    return tensors


def refuse_not_finite(folder: Path, faults: list[str]) -> None:
    """Raises ``HeedfulError`` where there are ``faults``, each of which begins with a stored tensor's name: it names
    the first, its file, and how many there are.
    """
    if not faults:
        return
    name = faults[0].partition(" ")[0]
    file = next((file for file in _READERS if (folder / file).is_file()), WEIGHTS)
    if file in (INDEX, PICKLE_INDEX):  # a name without its prefix may not be in it
        file = read_json(folder / file)["weight_map"].get(name, file)
    more = f", and {len(faults) - 1} more tensors hold such numbers" if len(faults) > 1 else ""
    raise HeedfulError(
        f"{folder / file}: {faults[0]}{more}; take weights from before that, or open them all the same in Python with "
        "check_finite=False"
    )


def _safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys()
            return {name: file.get_tensor(name).clone() if WINDOWS else file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise HeedfulError(
            f"{path} is no whole safetensors file ({reason(error)}); copy or download it again"
        ) from None


def _pickle(path: Path) -> Tensors:
    """The tensors of a file that ``torch.save`` wrote; those of before 2020 are no archives and cannot be mapped."""
    try:
        whole = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=whole and not WINDOWS)
    except Exception as error:  # a damaged pickle may raise anything
        raise HeedfulError(
            f"{path} is no plain file of tensors ({reason(error)}); "
            "a pickle may run code: only tensors are read; convert it to safetensors where it came from"
        ) from None
    if not isinstance(state, dict) or not all(_plain(name, value) for name, value in state.items()):
        raise HeedfulError(f"{path} holds more than tensors; convert it to safetensors where it came from")
    if whole and _claimed(state) != _held(path):  # PyTorch does not look when it maps a file
        raise HeedfulError(f"{path} is no plain file of tensors (its sizes do not fit); copy or download it again")
    return {name: tensor.detach() for name, tensor in state.items()}


def _plain(name: object, value: object) -> bool:
    """Returns whether a pickle's entry is a named, dense, unquantised tensor on the CPU."""
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _claimed(state: Tensors) -> int:
    """Returns the number of bytes of numbers the tensors are made of."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _held(path: Path) -> int:
    """Returns the number of bytes of numbers the archive holds."""
    with zipfile.ZipFile(path) as archive:
        return sum(entry.compress_size for entry in archive.infolist() if "/data/" in entry.filename)


def _shards(index: Path, ending: str, read: Callable[[Path], Tensors]) -> Tensors:
    """Returns the tensors of the files that an index names: each there, and in no file but the one named for it."""
    places = weight_map(index, ending)
    files = sorted(set(places.values()))
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise HeedfulError(f"{index.parent} lacks {', '.join(missing)}, named in {index.name}; download them")
    tensors: Tensors = {}
    wrong: list[str] = []
    for file in files:
        found = read(index.parent / file)
        wrong += [f"{name} is not in {file}" for name, place in places.items() if place == file and name not in found]
        wrong += [f"{file} holds {name} unasked" for name in found if places.get(name) != file]
        tensors |= found
    if wrong:
        raise HeedfulError(f"{index} does not fit its files: {'; '.join(wrong)}; download all of them again")
    return tensors


def weight_map(index: Path, ending: str = ".safetensors") -> dict[str, str]:
    """Returns the file of each tensor as an index names it: its name alone, since it lies beside the index."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(_beside(file, ending) for file in places.values()):
        raise HeedfulError(f'{index} has no "weight_map" from tensors to {ending} files beside it; download it again')
    return places


def _beside(file: object, ending: str) -> bool:
    """Returns whether an index names a file in its own folder, by a name that a file system takes."""
    return isinstance(file, str) and Path(file).name == file and file.endswith(ending) and len(file) < 256


_KNOWN = {*FLOATS.values(), *WHOLE}
_READERS: dict[str, Callable[[Path], Tensors]] = {  # the first that is there is read
    WEIGHTS: _safetensors,
    INDEX: lambda index: _shards(index, ".safetensors", _safetensors),
    PICKLE: _pickle,
    PICKLE_INDEX: lambda index: _shards(index, ".bin", _pickle),
    "adapter_model.safetensors": _safetensors,  # an adapter's folder has none of the others
    "adapter_model.bin": _pickle,
}
