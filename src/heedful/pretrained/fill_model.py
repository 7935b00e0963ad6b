"""Fills a model that was built without weights; one error names every tensor that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.config import LearnedPosition, ModelConfig, SinusoidalPosition, VisionConfig
from heedful.errors import HeedfulError
from heedful.heads import head_of
from heedful.models import Model, build
from heedful.pretrained.flat_config import flat
from heedful.pretrained.rules import Tensors, same
from heedful.pretrained.weights import FLOATS
from heedful.stack import initialise

SIZES = (
    "dim",
    "heads",
    "kv_heads",
    "head_dim",
    "ff_dim",
    "vocab_size",
    "segments",
    "buckets",
    "patch_size",
    "channels",
)
PIECE = 1 << 18  # numbers looked at in a go: they stay in the processor's cache
ROWS = (LearnedPosition.kind, SinusoidalPosition.kind)  # positions that are rows of a table


class _Unfilled(TorchFunctionMode):
    """Fresh weights on the meta device are not drawn: there is nothing to draw, and asking for it takes a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def check_sizes(config: ModelConfig, stored: Tensors) -> None:
    """Refuses a configuration of sizes that what is stored cannot have, before anything of these sizes is made."""
    most, paths = sum(tensor.numel() for tensor in stored.values()), flat(config)
    for path, value in paths.items():
        stack, _, field = path.rpartition(".")
        limit = {"depth": len(stored), **dict.fromkeys(SIZES, most)}.get(field)
        if field in ("length", "offset") and paths[f"{stack}.kind"] in ROWS:
            limit = most
        if type(value) is int and limit is not None and value > limit:
            what = f"{limit} tensors" if field == "depth" else f"{limit} numbers"
            raise HeedfulError(f"{path} is {value}, but the weights are {what} in all; they do not belong together")


def build_empty(config: ModelConfig) -> Model:
    """Returns the model of a configuration, without weights."""
    try:
        with torch.device("meta"), _Unfilled():
            return build(config)
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise HeedfulError(f"a model of these sizes cannot be made: {str(error).splitlines()[0]}") from None


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """Returns the names of each stored tensor by the first: names of one shared parameter together."""
    return _grouped(model.state_dict(keep_vars=True))


def _grouped(state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    return {shared[0]: shared for shared in names.values()}


def match_tensors(
    model: Model, loaded: Tensors, unknown: list[str], named: Callable[[str], str], may_be_fresh: bool
) -> tuple[Tensors, list[str]]:
    """A tensor for each of the model's places, and the names of the head's that have none; all misfits in one error.

    ``made`` is emptied; ``unknown`` are stored names that no rule knows, and ``named`` gives their name of ours.
    """
    tensors: Tensors = {}
    fresh, missing, misshaped, mistyped = [], [], [], []
    state = model.state_dict(keep_vars=True)
    for first, names in _grouped(state).items():
        found = {name: loaded.pop(name) for name in names if name in loaded}
        if len(found) > 1:
            same({named(name): tensor for name, tensor in found.items()})
        stored, tensor = next(iter(found.items()), (first, None))
        wanted = state[first]
        if tensor is not None and tensor.shape == wanted.shape:
            tensors[first] = tensor
            if tensor.dtype not in (FLOATS.values() if wanted.is_floating_point() else (wanted.dtype,)):
                mistyped.append(f"{named(stored)} is {tensor.dtype}, not {wanted.dtype}")
        elif may_be_fresh and all(name.startswith("head.") for name in names):
            fresh.append(first)
        elif tensor is None:
            missing.append(named(first))
        else:
            shapes = f"{tuple(tensor.shape)}, the configuration says {tuple(wanted.shape)}"
            misshaped.append(f"{named(stored)} is {shapes}")
    lists = {
        "missing": sorted(set(missing)),
        "unexpected": sorted([*unknown, *map(named, loaded)]),
        "of another shape": misshaped,
        "of another type": mistyped,
    }
    wrong = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
    if wrong:
        raise HeedfulError(f"the weights do not fit the configuration; {'; '.join(wrong)}")
    return tensors, fresh


def not_finite(tensors: Tensors, dtype: torch.dtype | None, named: Callable[[str], str]) -> list[str]:
    """For each tensor that holds NaN, infinity or a number beyond ``dtype``: its name and what it holds.

    One pass of sums, as fast as memory is read: a sum is finite where all that it is of is. Where it is not, or where
    ``dtype`` is narrower than the stored one, the largest numbers are looked for.
    """
    found = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.device.type == "meta" or not tensor.numel():
            continue
        fits = dtype is None or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max
        if fits and math.isfinite(tensor.sum()):
            continue
        highest = _highest(tensor)
        if math.isnan(highest):
            found.append(f"{named(name)} holds NaN")
        elif math.isinf(highest):
            found.append(f"{named(name)} holds infinity")
        elif dtype is not None and highest > torch.finfo(dtype).max:
            found.append(f"{named(name)} holds {highest:.4g}, more than {str(dtype).removeprefix('torch.')} has")
    return found


def _highest(tensor: Tensor) -> float:
    """max |x|, NaN where there is one; read in the order of memory, and never copied."""
    if tensor.dim() == 2 and tensor.stride(0) == 1:
        tensor = tensor.t()
    rows = max(1, PIECE // max(1, tensor[:1].numel())) if tensor.dim() else 0
    pieces = [piece.aminmax() for piece in (tensor.split(rows) if rows else [tensor])]
    return float(torch.stack([bound for both in pieces for bound in both]).double().abs().amax())


def fresh_head(model: Model, names: list[str]) -> Tensors:
    """New values for parameters of the head, drawn from torch's random state."""
    if not names:
        return {}
    config, embedding = model.config, getattr(model, "target_embedding", model.embedding)
    prefix = config.patches.prefix_tokens if isinstance(config, VisionConfig) else 0
    head = head_of(config.head, model.main.dim, getattr(embedding, "token", None), prefix)
    initialise(head, model.main)
    state = head.state_dict()
    return {name: state[name.removeprefix("head.")] for name in names}


def fill(model: Model, tensors: Tensors, dtype: torch.dtype, device: torch.device) -> None:
    """Puts the tensors into all their places, and everything on the device. ``tensors`` is emptied, to save memory."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for first, names in tied_names(model).items():
        tensor = tensors.pop(first)
        value = _placed(tensor, dtype if tensor.is_floating_point() else tensor.dtype, device)
        for name in names:
            module, _, last = name.rpartition(".")
            if name == first and last not in modules[module]._buffers:
                value = _weight(value)
            setattr(modules[module], last, value)
    for name, buffer in list(model.named_buffers()):  # computed ones keep their precision
        module, _, last = name.rpartition(".")
        setattr(modules[module], last, buffer.to(device))


def _placed(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor where and as it is to be: itself, still mapped from its file, where nothing changes; else a copy.

    A matrix that is stored turned, or as a part of a wider one, stays so: the kernels take it as fast.
    """
    if tensor.dtype != dtype or tensor.device != device:
        return torch.empty(tensor.shape, dtype=dtype, device=device).copy_(tensor)
    turned = tensor.dim() == 2 and tensor.stride(0) == 1 and tensor.stride(1) >= tensor.size(0)
    return tensor if turned else tensor.contiguous()


def _weight(tensor: Tensor) -> nn.Parameter:
    """A parameter. One stored turned, or as a part of a wider matrix, is packed when its first gradient arrives.

    PyTorch's fused optimisers walk weight, gradient and their own state side by side through memory, whatever the order
    of the rows: they step over gaps as if there were none, and a state that is taken up again is of packed weights.
    """
    parameter = nn.Parameter(tensor)
    if not tensor.is_contiguous():
        parameter.register_post_accumulate_grad_hook(_packed)
    return parameter


def _packed(parameter: Tensor) -> None:
    parameter.data = parameter.data.contiguous()
    parameter.grad = None if parameter.grad is None else parameter.grad.contiguous()


def make_contiguous(model: nn.Module) -> None:
    """Gives every weight memory of its own, row after row, before training: the same sums whatever the file's order."""
    for parameter in model.parameters():
        _packed(parameter)
