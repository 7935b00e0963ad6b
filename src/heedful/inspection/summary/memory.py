"""Memory of a forward, counted tensor by tensor on the meta device, and attention without a fused kernel."""

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

from heedful.config import EncoderDecoderConfig, ModelConfig, StackConfig, VisionConfig
from heedful.inspection.summary.table import CacheBytes, Memory, Unfused

Storage = torch.UntypedStorage
ATTEND = F.scaled_dot_product_attention


def measured(
    module: nn.Module, inputs: Sequence[Tensor], dtype: torch.dtype, config: ModelConfig | None
) -> tuple[Memory, list[Unfused]]:
    """The memory of one forward of a module that lies on the meta device, and where attention has no fused kernel.

    ``module`` is left in ``dtype``. ``config`` tells of a model what its cache holds.
    """
    module.to(dtype)
    given = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
    name = str(dtype).removeprefix("torch.")
    attentions: list[Unfused] = []
    module.eval()
    with torch.no_grad(), _Kernels(module, "prediction", name, attentions), _Live(given) as live:
        module(*given)
    module.train()
    kept = _Kept(module)
    with torch.enable_grad(), _Kernels(module, "training", name, attentions), saved_tensors_hooks(kept, _as_it_is):
        module(*given)
    module.zero_grad()
    cache = None if config is None else cache_bytes(config, given[0], dtype)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    return Memory(name, weights, live.most, kept.bytes, cache), attentions


class _Live(TorchDispatchMode):
    """Follows the memory of every tensor that an operation returns, until nobody holds it; views hold none of it."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, weakref.finalize[Any, Any]] = {}
        for tensor in inputs:
            self._meet(tensor.untyped_storage())

    def _meet(self, storage: Storage) -> None:
        if id(storage) not in self.known and storage.nbytes():
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            gone = weakref.finalize(storage, self._part, id(storage), storage.nbytes())
            gone.atexit = False
            self.known[id(storage)] = gone

    def _part(self, key: int, size: int) -> None:
        del self.known[key]
        self.now -= size

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        before = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in before:
                self._meet(leaf.untyped_storage())
        return made


class _Kept:
    """Adds up the memory of what the backward pass will ask for: each once, the model's own tensors not."""

    def __init__(self, module: nn.Module) -> None:
        self.own = {id(t.untyped_storage()) for t in (*module.parameters(), *module.buffers())}
        self.storages: dict[int, Storage] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in self.own:
            self.storages[id(storage)] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class _Kernels(TorchFunctionMode):
    """Lets attention on the meta device compute as the CPU would, and tells where that has no fused kernel."""

    def __init__(self, module: nn.Module, mode: str, dtype: str, told: list[Unfused]) -> None:
        super().__init__()
        self.mode, self.dtype, self.told = mode, dtype, told
        self.module, self.running = module, [""]

    def __enter__(self) -> _Kernels:
        self.hooks = []
        for path, part in self.module.named_modules():
            self.hooks.append(part.register_forward_pre_hook(partial(self._enter, path)))
            self.hooks.append(part.register_forward_hook(self._leave))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*error)

    def _enter(self, path: str, *_: Any) -> None:
        self.running.append(path)

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
        asked = query, key, value, attn_mask, dropout_p, is_causal
        if not fused(*asked, grouped=enable_gqa):
            self.told.append(Unfused(self.running[-1], self.mode, self.dtype, reason(*asked, grouped=enable_gqa)))
            return ATTEND(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # as PyTorch does before the kernel
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -torch.inf)
        kernel: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def cache_bytes(config: ModelConfig, ids: Tensor, dtype: torch.dtype) -> CacheBytes | None:
    """Size of the cache for generating from ``ids`` (B, T); None for a family that does not generate.

    A block keeps, of each token, a key and a value of E numbers for each of its K key-value heads: 2 K E. With a
    sliding window it keeps those of the last ``window`` tokens. Cross-attention keeps as much of each source token.
    """
    stack = next((s for s in vars(config).values() if isinstance(s, StackConfig) and s.causal), None)
    if stack is None or isinstance(config, VisionConfig):
        return None
    numbers = 2 * stack.depth * (stack.kv_heads or stack.heads) * (stack.head_dim or stack.dim // stack.heads)
    rows, tokens = ids.shape
    token = numbers * dtype.itemsize
    source = token if isinstance(config, EncoderDecoderConfig) else 0
    kept = min(tokens, stack.window or tokens)
    return CacheBytes(token, source, stack.window, rows * (kept * token + tokens * source))


MATH = 0  # what PyTorch calls the way without a fused kernel


@dataclass(frozen=True)
class _Kind:
    """Properties that decide PyTorch's choice of kernel; of batch size and lengths, whether they are 1 and equal."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    dtype: torch.dtype
    mask_dtype: torch.dtype | None
    learned: bool  # whether the mask asks for a gradient
    gradient: bool
    dropout: float
    causal: bool
    grouped: bool


@cache
def _choice(kind: _Kind) -> bool:
    """True if PyTorch chooses a fused kernel."""

    def real(shape: tuple[int, ...], dtype: torch.dtype | None, gradient: bool) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", requires_grad=gradient)

    mask = None if kind.mask is None else real(kind.mask, kind.mask_dtype, kind.learned)
    q, k, v = (real(shape, kind.dtype, kind.gradient) for shape in (kind.query, kind.key, kind.value))
    choice = torch._fused_sdp_choice(q, k, v, mask, kind.dropout, kind.causal, scale=1.0, enable_gqa=kind.grouped)
    return bool(choice != MATH)


def _kind(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, grouped: bool) -> _Kind:
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
    return _Kind(
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


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool) -> bool:
    """True if PyTorch computes this attention by a fused kernel on the CPU; the tensors may be on any device."""
    return q.dim() == 4 and _choice(_kind(q, k, v, mask, dropout, causal, grouped))


def reason(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool) -> str:
    """Explains why no fused kernel is used: the fewest properties without which one would be."""
    if q.dim() != 4:
        return f"queries of {q.dim()} dimensions"
    kind = _kind(q, k, v, mask, dropout, causal, grouped)
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
            if _choice(replace(kind, **without)):
                return " and ".join(names)
    return f"{str(kind.dtype).removeprefix('torch.')} with heads of {q.size(-1)}"
