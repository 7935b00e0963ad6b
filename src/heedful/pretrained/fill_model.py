"""Fills a model that was built without weights; one error names every tensor that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.config import LearnedPosition, ModelConfig, SinusoidalPosition, VisionConfig
from heedful.errors import HeedfulError, first_few
from heedful.heads import head_of
from heedful.models import Model, build
from heedful.models.initial_weights import initialise
from heedful.pretrained.flat_config import flat
from heedful.pretrained.rules import Tensors, same
from heedful.pretrained.weights import FLOATS

SIZES = (
    "dim",
    "embedding_dim",
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
SHARED = 512  # blocks that may share their weights
PIECE = 1 << 18  # numbers of a chunk that fits into the processor's cache
ALIGNMENT = 64  # bytes: PyTorch allocates memory on a CPU at multiples of it
ROWS = (LearnedPosition.kind, SinusoidalPosition.kind)  # positions that are rows of a table


class _SkipInit(TorchFunctionMode):
    """Skips weight initialisation on the meta device, where it takes a second and does nothing."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def check_sizes(config: ModelConfig, stored: Tensors) -> None:
    """Raises ``HeedfulError`` if the configuration has a size above the number of all stored values.

    A model of such a size could exhaust the memory.
    """
    numbers, fields = sum(tensor.numel() for tensor in stored.values()), flat(config)
    for path, value in fields.items():
        parent, _, field = path.rpartition(".")
        blocks = len(stored) if fields.get(f"{parent}.distinct_blocks") is None else max(len(stored), SHARED)
        limit = {"depth": blocks, "number": len(stored), **dict.fromkeys(SIZES, numbers)}.get(field)
        if field in ("length", "offset") and fields[f"{parent}.kind"] in ROWS:
            limit = numbers
        if type(value) is int and limit is not None and value > limit:
            unit = "tensors" if field in ("depth", "number") else "numbers"
            raise HeedfulError(
                f"{path} is {value}, but the stored weights have only {limit} {unit} in all; use the config.json and "
                "the weights of the same model"
            )


def build_empty(config: ModelConfig) -> Model:
    """Returns the model of a configuration on the meta device, without weights."""
    try:
        with torch.device("meta"), _SkipInit():
            return build(config)
    except (RuntimeError, OverflowError, MemoryError) as error:
        problem = str(error).splitlines()[0]
        raise HeedfulError(f"a model of these sizes cannot be built: {problem}; correct the sizes") from None


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """Returns ``{first name: all names}`` of the model's tensors; a tied parameter has several names."""
    return _group_tied(model.state_dict(keep_vars=True))


def _group_tied(state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    return {shared[0]: shared for shared in names.values()}


def match_tensors(
    model: Model, loaded: Tensors, unknown: list[str], hub_name: Callable[[str], str], may_be_fresh: bool
) -> tuple[Tensors, list[str]]:
    """Returns the loaded tensor of each parameter and buffer; raises one error for all tensors that do not fit.

    Args:
        model: model without weights, from :func:`build_empty`.
        loaded: tensors by our names; the mapping is emptied to save memory.
        unknown: names of stored tensors that the model type does not have.
        hub_name: returns the stored name for one of our names, for messages.
        may_be_fresh: True if the head may have parameters without a stored tensor; they are initialised later.

    Returns:
        The tensors by the parameter's first name, and the names of the head parameters without a stored tensor.
    """
    tensors: Tensors = {}
    fresh, missing, misshaped, mistyped = [], [], [], []
    state = model.state_dict(keep_vars=True)
    for first, names in _group_tied(state).items():
        candidates = {name: loaded.pop(name) for name in names if name in loaded}
        if len(candidates) > 1:
            same({hub_name(name): tensor for name, tensor in candidates.items()})
        stored, tensor = next(iter(candidates.items()), (first, None))
        empty = state[first]
        if tensor is not None and tensor.shape == empty.shape:
            tensors[first] = tensor
            if tensor.dtype not in (FLOATS.values() if empty.is_floating_point() else (empty.dtype,)):
                mistyped.append(f"{hub_name(stored)} is {tensor.dtype}, not {empty.dtype}")
        elif may_be_fresh and all(name.startswith("head.") for name in names):
            fresh.append(first)
        elif tensor is None:
            missing.append(hub_name(first))
        else:
            shapes = f"{tuple(tensor.shape)}, but the configuration requires {tuple(empty.shape)}"
            misshaped.append(f"{hub_name(stored)} is {shapes}")
    problems = {
        "missing": sorted(set(missing)),
        "unexpected": sorted([*unknown, *map(hub_name, loaded)]),
        "of another shape": misshaped,
        "of another type": mistyped,
    }
    if any(problems.values()):
        listed = "; ".join(f"{problem}: {first_few(names)}" for problem, names in problems.items() if names)
        remedy = "use the config.json and the weights of the same model"
        raise HeedfulError(f"the weights do not fit the configuration; {listed}; {remedy}")
    return tensors, fresh


def not_finite(tensors: Tensors, dtype: torch.dtype | None, hub_name: Callable[[str], str]) -> list[str]:
    """Returns a message for each tensor that holds NaN, infinity or a number beyond the range of ``dtype``.

    The check sums each tensor, as fast as memory is read: a finite sum has finite terms. Only if the sum is not finite,
    or ``dtype`` is narrower than the stored one, it computes the largest number.
    """
    problems = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.device.type == "meta" or not tensor.numel():
            continue
        fits = dtype is None or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max
        if fits and math.isfinite(tensor.sum()):
            continue
        highest = _highest(tensor)
        if math.isnan(highest):
            problems.append(f"{hub_name(name)} holds NaN")
        elif math.isinf(highest):
            problems.append(f"{hub_name(name)} holds infinity")
        elif dtype is not None and highest > torch.finfo(dtype).max:
            problems.append(f"{hub_name(name)} holds {highest:.4g}, too large for {str(dtype).removeprefix('torch.')}")
    return problems


def _highest(tensor: Tensor) -> float:
    """Returns the largest absolute value, or NaN if any number is NaN; reads in memory order, without a copy."""
    if tensor.dim() == 2 and tensor.stride(0) == 1:
        tensor = tensor.t()
    rows = max(1, PIECE // max(1, tensor[:1].numel())) if tensor.dim() else 0
    pieces = [piece.aminmax() for piece in (tensor.split(rows) if rows else [tensor])]
    return float(torch.stack([bound for both in pieces for bound in both]).double().abs().amax())


def build_head(model: Model) -> nn.Module:
    """Returns a new head of the kind in the model's configuration; it may share weights with the embedding."""
    config, embedding = model.config, getattr(model, "target_embedding", model.embedding)
    prefix = config.patches.prefix_tokens if isinstance(config, VisionConfig) else 0
    token = getattr(embedding, "token", None)
    last: Any = getattr(model, "decoder", None) or model.encoder
    return head_of(config.head, last.config.dim, token, prefix)


def fresh_head(model: Model, names: list[str]) -> Tensors:
    """Returns initial values, drawn from torch's random state, for the head's parameters called ``names``."""
    if not names:
        return {}
    head = build_head(model)
    initialise(head, model.main)
    state = head.state_dict()
    return {name: state[name.removeprefix("head.")] for name in names}


def fill(model: Model, tensors: Tensors, dtype: torch.dtype, device: torch.device) -> None:
    """Sets the model's parameters and buffers in ``dtype`` on ``device``; empties ``tensors`` to save memory."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for first, names in tied_names(model).items():
        tensor = tensors.pop(first)
        value = _converted(tensor, dtype if tensor.is_floating_point() else tensor.dtype, device)
        for name in names:
            module, _, last = name.rpartition(".")
            if name == first and last not in modules[module]._buffers:
                value = _parameter(value, modules[module].get_parameter(last).requires_grad)
            setattr(modules[module], last, value)
    for name, buffer in list(model.named_buffers()):  # computed buffers are not rounded
        module, _, last = name.rpartition(".")
        wide = torch.promote_types(buffer.dtype, dtype) if buffer.is_floating_point() else buffer.dtype
        setattr(modules[module], last, buffer.to(device, wide))


def _converted(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the tensor in a dtype on a device: itself, still mapped from its file, if nothing changes; else a copy.

    A transposed matrix, or a part of a wider one, stays a view: the kernels are as fast on it.
    """
    if tensor.dtype != dtype or tensor.device != device:
        return torch.empty(tensor.shape, dtype=dtype, device=device).copy_(tensor)
    is_transposed = tensor.dim() == 2 and tensor.stride(0) == 1 and tensor.stride(1) >= tensor.size(0)
    return tensor if is_transposed else tensor.contiguous()


def _parameter(tensor: Tensor, requires_grad: bool) -> nn.Parameter:
    """Returns a parameter; a view is made contiguous when its first gradient arrives.

    PyTorch's fused optimisers walk through the memory of weight, gradient and state in parallel and ignore strides.
    A state that is loaded again belongs to contiguous weights.
    """
    parameter = nn.Parameter(tensor, requires_grad)
    if tensor.is_contiguous() or not requires_grad:
        return parameter

    def on_first_gradient(parameter: Tensor) -> None:
        _make_contiguous(parameter)
        handle.remove()  # a hook costs each step of a small model as much as a kernel

    handle = parameter.register_post_accumulate_grad_hook(on_first_gradient)
    return parameter


def _make_contiguous(parameter: Tensor) -> None:
    parameter.data = parameter.data.contiguous()
    parameter.grad = None if parameter.grad is None else parameter.grad.contiguous()


def align_weights(model: nn.Module) -> None:
    """Makes every weight contiguous and aligned before training, so that results do not depend on the file's layout.

    Kernels sum in another order where memory is not aligned. A new weight always is; one that is mapped from a file
    begins wherever the file's header and the tensors before it end.
    """
    for parameter in model.parameters():
        _make_contiguous(parameter)
        if parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
