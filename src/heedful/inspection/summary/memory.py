"""The bytes that a forward holds, counted tensor by tensor on the meta device, where nothing is allocated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.config import EncoderDecoderConfig, ModelConfig, StackConfig, VisionConfig
from heedful.inspection.summary.kernels import fused, reason
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
    """What generating from ``ids`` (B, T) remembers; None for a family that does not generate.

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
