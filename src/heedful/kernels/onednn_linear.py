"""Float32 linear maps on a CPU through oneDNN, with weights that are not prepacked, in inference mode and training.

``torch.nn.functional.linear`` multiplies by a general routine of MKL. On processors of other makers than Intel, oneDNN,
which is part of PyTorch, is faster at most sizes. One row alone is fastest as a batch of matrix-vector products; on
Intel processors MKL is the fastest for up to three rows.

Shapes: x (..., in), W (out, in), b (out,), y (..., out).
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW = 4  # oneDNN is slower with one or two rows than with this many
BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # names that ``torch.cpu.get_capabilities`` has for them


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes x Wᵀ + b of float32 on a CPU through oneDNN in inference mode, otherwise by PyTorch's own product.

    >>> x, linear = torch.randn(2, 8), torch.nn.Linear(8, 16)
    >>> with torch.inference_mode():
    ...     torch.allclose(onednn_linear(x, linear.weight, linear.bias), linear(x), atol=1e-6)
    True
    """
    if not torch.is_inference_mode_enabled() or x.dtype is not torch.float32 or not x.is_cpu:
        return F.linear(x, weight, bias)
    if mkl_is_faster(x.numel() // weight.size(1)):
        return mkl_product(x.reshape(-1, weight.size(1)), weight, bias).view(*x.shape[:-1], -1)
    return onednn_product(x, weight, bias)


def onednn_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes x Wᵀ + b of float32 by ``OnednnProduct`` with a gradient, and by ``onednn_linear`` without one.

    >>> linear, x = torch.nn.Linear(512, 512), torch.randn(5, 512)
    >>> plain = torch.autograd.grad(linear(x).square().sum(), linear.weight)[0]
    >>> y = onednn_training_linear(x, linear.weight, linear.bias)
    >>> torch.allclose(torch.autograd.grad(y.square().sum(), linear.weight)[0], plain, atol=1e-4)
    True
    """
    if not x.is_cpu or x.dtype is not torch.float32 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled() or x.numel() < FEW * weight.size(1):
        return onednn_linear(x, weight, bias)
    y: Tensor = OnednnProduct.apply(x, weight, bias)
    return y


class OnednnProduct(torch.autograd.Function):
    """y = x Wᵀ + b and dx = dy W by oneDNN; dW = dyᵀ x by PyTorch's routine, since oneDNN's is no faster.

    Arithmetic is float32 throughout; only the order of the sums differs from PyTorch's.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns dx, dW and db; None for each that needs no gradient."""
        x, weight = ctx.saved_tensors
        x_needs, weight_needs, bias_needs = ctx.needs_input_grad
        dy_rows = dy.reshape(-1, dy.size(-1))
        return (
            onednn_product(dy.contiguous(), weight.mT, None) if x_needs else None,
            dy_rows.mT @ x.reshape(-1, x.size(-1)) if weight_needs else None,
            dy_rows.sum(0) if bias_needs else None,
        )


def onednn_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none", formula: str = ""
) -> Tensor:
    """Computes act(x Wᵀ + b) by oneDNN, W plain or prepacked; ``activation`` and ``formula`` are oneDNN's names."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], formula)
    return y


def mkl_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes x Wᵀ + b of a few rows of float32 by MKL: one row as a batch of at least two matrix-vector products.

    On processors of other makers than Intel, MKL reads W at memory speed for such a batch, but at a third of this speed
    for a single product. On Intel processors it reads W at memory speed for a single product, at half for a batch.
    """
    if is_intel_with_mkl():
        return F.linear(rows, weight, bias)
    parts = max(2, torch.get_num_threads())
    even = len(weight) // parts * parts
    y = torch.bmm(weight[:even].view(parts, -1, weight.size(1)), rows.expand(parts, 1, -1).mT).view(1, even)
    if even < len(weight):
        y = torch.cat((y, F.linear(rows, weight[even:])), 1)
    return y if bias is None else y.add_(bias)


# ---------------------------------------------------------------------------------------------------- the processor


@cache
def is_intel_with_mkl() -> bool:
    """Returns True if this is an Intel processor with MKL, which uses its best kernels only on Intel processors."""
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        processor = platform.processor()
    return "GenuineIntel" in processor and torch.backends.mkl.is_available()


def mkl_is_faster(rows: int) -> bool:
    """Returns True if MKL multiplies this number of rows of float32 faster than oneDNN does."""
    if is_intel_with_mkl():
        return rows < FEW
    return rows == 1 and torch.backends.mkl.is_available()


def onednn_is_faster() -> bool:
    """Returns True if oneDNN multiplies many rows of float32 faster than MKL: on processors of other makers.

    Processors with AVX2 but no AVX-512 are an exception: MKL is fast there.
    """
    narrow = torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"
    return has_onednn(torch.float32) and not is_intel_with_mkl() and not narrow


def kernels_depend_on_rows() -> bool:
    """Returns True if a product of training on a CPU compiles a kernel for each number of rows, as oneDNN does."""
    return onednn_is_faster() or (torch.is_autocast_enabled("cpu") and has_onednn(torch.get_autocast_dtype("cpu")))


def has_onednn(dtype: torch.dtype) -> bool:
    """Returns True if oneDNN multiplies numbers of this type on this CPU."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype is torch.bfloat16:
        supported: Any = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
        return bool(supported())
    return dtype is torch.float32


def emulates_bfloat16(device: torch.device) -> bool:
    """Returns True if a device lacks instructions for bfloat16 products and computes these products in float32."""
    if device.type == "cuda":
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_instructions = [capabilities[name] for name in BFLOAT16_INSTRUCTIONS if name in capabilities]
    # oneDNN also computes with AVX-512 alone, which has none, at a third of the speed of float32
    return not has_onednn(torch.bfloat16) or (bool(has_instructions) and not any(has_instructions))
