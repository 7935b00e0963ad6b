"""Memory of a forward pass, counted tensor by tensor on the meta device, and attention without a fused kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.config import EncoderDecoderConfig, ModelConfig, StackConfig, VisionConfig, patches_of
from heedful.inspection.summary.table import CacheBytes, Memory, Unfused
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import SoftCappedAttention

Storage = torch.UntypedStorage
ATTEND = F.scaled_dot_product_attention


def measure_memory(
    module: nn.Module, inputs: Sequence[Tensor], dtype: torch.dtype, config: ModelConfig | None
) -> tuple[Memory, list[Unfused]]:
    """Returns the memory of one forward pass of a module on the meta device, and its attentions without a fused kernel.

    ``module`` is left in ``dtype``. ``config`` gives the size of a model's cache; None for other modules.
    """
    module.to(dtype)
    typed_inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
    name = str(dtype).removeprefix("torch.")
    attentions: list[Unfused] = []
    module.eval()
    with torch.no_grad(), _CpuAttention(module, "prediction", name, attentions), _LiveMemory(typed_inputs) as live:
        module(*typed_inputs)
    module.train()
    saved = _SavedTensors(module)
    training = _CpuAttention(module, "training", name, attentions)
    with torch.enable_grad(), training, saved_tensors_hooks(saved, _unpack):
        module(*typed_inputs)
    module.zero_grad()
    cache = None if config is None else cache_bytes(config, typed_inputs[0], dtype)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    return Memory(name, weights, live.peak, saved.bytes, cache), attentions


class _LiveMemory(TorchDispatchMode):
    """Tracks the memory of tensors that operations return, from their creation to their release, views excepted."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.current = self.peak = 0
        self.finalizers: dict[int, weakref.finalize[Any, Any]] = {}
        for tensor in inputs:
            self._add(tensor.untyped_storage())

    def _add(self, storage: Storage) -> None:
        if id(storage) not in self.finalizers and storage.nbytes():
            self.current += storage.nbytes()
            self.peak = max(self.peak, self.current)
            finalizer = weakref.finalize(storage, self._remove, id(storage), storage.nbytes())
            finalizer.atexit = False
            self.finalizers[id(storage)] = finalizer

    def _remove(self, key: int, size: int) -> None:
        del self.finalizers[key]
        self.current -= size

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._add(leaf.untyped_storage())
        return output


class _SavedTensors:
    """Sums the memory of tensors that autograd saves for the backward pass, each once; parameters are excluded."""

    def __init__(self, module: nn.Module) -> None:
        self.model_storages = {id(t.untyped_storage()) for t in (*module.parameters(), *module.buffers())}
        self.storages: dict[int, Storage] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in self.model_storages:
            self.storages[id(storage)] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


class _CpuAttention(TorchFunctionMode):
    """Computes attention on the meta device as the CPU would, and notes calls for which it has no fused kernel."""

    def __init__(self, module: nn.Module, mode: str, dtype: str, unfused: list[Unfused]) -> None:
        super().__init__()
        self.mode, self.dtype, self.unfused = mode, dtype, unfused
        self.module, self.running = module, [""]

    def __enter__(self) -> _CpuAttention:
        self.hooks = []
        for path, part in self.module.named_modules():
            self.hooks.append(part.register_forward_pre_hook(partial(self._enter, path)))
            self.hooks.append(part.register_forward_hook(self._leave))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*error)

    def _enter(self, path: str, part: nn.Module, *_: Any) -> None:
        self.running.append(path)
        if isinstance(part, Attention) and isinstance(part.attend, SoftCappedAttention):
            self.unfused.append(Unfused(path, self.mode, self.dtype, "a soft cap of the scores"))

    def _leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is ATTEND:
            return self._attend(*args, **(kwargs or {}))
        F.scaled_dot_product_attention = self._attend  # type: ignore[assignment]  # for calls inside, unseen by modes
        try:
            return function(*args, **(kwargs or {}))
        finally:
            F.scaled_dot_product_attention = ATTEND

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        inputs = query, key, value, attn_mask, dropout_p, is_causal
        if not is_fused(*inputs, grouped=enable_gqa):
            reason = unfused_reason(*inputs, grouped=enable_gqa)
            self.unfused.append(Unfused(self.running[-1], self.mode, self.dtype, reason))
            return ATTEND(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # as PyTorch does before the kernel
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -torch.inf)
        kernel: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def cache_bytes(config: ModelConfig, ids: Tensor, dtype: torch.dtype) -> CacheBytes | None:
    """Returns the size of the cache for generating from ``ids`` (B, T); None for a family that does not generate.

    A block stores 2 K E numbers per token: a key and a value for each of its K key-value heads. With a sliding window
    it stores only the last ``window`` tokens; blocks may differ. Cross-attention stores the same for each source token.
    """
    stack = next((s for s in vars(config).values() if isinstance(s, StackConfig) and s.causal), None)
    if stack is None or isinstance(config, VisionConfig):
        return None
    numbers = 2 * (stack.kv_heads or stack.heads) * (stack.head_dim or stack.dim // stack.heads)
    patches = patches_of(config)
    rows, tokens = ids.shape if patches is None else (len(ids), patches.tokens)
    block = numbers * dtype.itemsize
    token = stack.depth * block
    source = token if isinstance(config, EncoderDecoderConfig) else 0
    cached = sum(min(tokens, window or tokens) for window in stack.windows)
    return CacheBytes(token, source, stack.window, rows * (cached * block + tokens * source))


MATH = 0  # PyTorch's number of the backend without a fused kernel


@dataclass(frozen=True)
class _AttentionInput:
    """Properties that decide PyTorch's choice of kernel; of sizes only whether they are 1 or equal."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    dtype: torch.dtype
    mask_dtype: torch.dtype | None
    learned: bool  # True if the mask requires a gradient
    gradient: bool
    dropout: float
    causal: bool
    grouped: bool


@cache
def _has_fused_kernel(kind: _AttentionInput) -> bool:
    """Returns True if PyTorch chooses a fused kernel."""

    def empty(shape: tuple[int, ...], dtype: torch.dtype | None, gradient: bool) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", requires_grad=gradient)

    mask = None if kind.mask is None else empty(kind.mask, kind.mask_dtype, kind.learned)
    q, k, v = (empty(shape, kind.dtype, kind.gradient) for shape in (kind.query, kind.key, kind.value))
    choice = torch._fused_sdp_choice(q, k, v, mask, kind.dropout, kind.causal, scale=1.0, enable_gqa=kind.grouped)
    return bool(choice != MATH)


def _attention_input(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, grouped: bool
) -> _AttentionInput:
    queries, keys = q.size(-2), k.size(-2)
    small: Mapping[int, int] = {1: 1, queries: min(queries, 2), keys: min(keys, 2 if keys == queries else 3)}

    def like(tensor: Tensor) -> tuple[int, ...]:
        *batch, heads, length, size = tensor.shape
        return (*(min(n, 2) for n in batch), heads, small[length], size)

    shape = None
    if mask is not None:
        *before, rows, columns = mask.shape
        heads = before[-1:]
        shape = (*(min(n, 2) for n in before[:-1]), *heads, small[rows], small[columns])
    grad = torch.is_grad_enabled()
    return _AttentionInput(
        query=like(q),
        key=like(k),
        value=like(v),
        mask=shape,
        dtype=q.dtype,
        mask_dtype=None if mask is None else mask.dtype,
        learned=grad and mask is not None and mask.requires_grad,
        gradient=grad and q.requires_grad,
        dropout=dropout,
        causal=causal,
        grouped=grouped,
    )


def is_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool
) -> bool:
    """Returns True if PyTorch computes this attention by a fused CPU kernel; the tensors may be on any device."""
    return q.dim() == 4 and _has_fused_kernel(_attention_input(q, k, v, mask, dropout, causal, grouped))


def unfused_reason(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool
) -> str:
    """Returns why PyTorch has no fused kernel for this attention: the fewest properties that would have to change."""
    if q.dim() != 4:
        return f"queries of {q.dim()} dimensions"
    kind = _attention_input(q, k, v, mask, dropout, causal, grouped)
    changes: dict[str, dict[str, Any]] = {}
    if kind.dropout:
        changes[f"dropout {kind.dropout:g} on the weights"] = {"dropout": 0.0}
    if kind.learned:
        changes["a learned bias"] = {"learned": False}
    if kind.grouped:
        changes["grouped key-value heads"] = {"key": kind.query, "value": kind.query, "grouped": False}
    if kind.mask is not None:
        changes["a mask"] = {"mask": None}
    for number in range(1, len(changes) + 1):
        for names in combinations(changes, number):
            without: dict[str, Any] = {}
            for name in names:
                without |= changes[name]
            if _has_fused_kernel(replace(kind, **without)):
                return " and ".join(names)
    return f"{str(kind.dtype).removeprefix('torch.')} with heads of size {q.size(-1)}"
