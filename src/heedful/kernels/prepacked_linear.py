"""Prepacked linear maps for inference: y = act(x Wᵀ + b), with W in the order that a kernel reads.

On a CPU ``torch.nn.functional.linear`` multiplies by a general routine, which reads the weights at a fraction of the
memory's speed for a few rows (a step of decoding). oneDNN, which is part of PyTorch, is faster at every size, and
faster still with prepacked weights; one row alone is fastest as a batch of matrix-vector products. On Intel
processors the general routine is MKL, the fastest for up to three rows. Quantised weights are fewer bytes to read.

Shapes: x (..., into), W (out, into), b (out,), y (..., out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.kernels.onednn_linear import FEW, mkl_is_faster, mkl_product, onednn_product
from heedful.layers.feedforward import ACTIVATIONS

Activation = Callable[[Tensor], Tensor]
# activations that oneDNN fuses: its name and its formula
FUSED = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


class PrepackedLinear(nn.Module):
    """act(x Wᵀ + b) with W in the packed form of a subclass; for inference only, without gradient.

    Args:
        weight: (out, into), floating point.
        bias: (out,), or None.
        activation: applied to each output; None is the identity.
        numbers: ``numbers(weight)`` if they are known; the weight may then be on the meta device.
    """

    packed_names: ClassVar[tuple[str, ...]] = ("packed",)  # attributes that ``pack`` sets, which suit one processor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Activation | None = None,
        *,
        numbers: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach().clone()
        self.activation = activation
        if numbers is None:
            self.check(weight)
            numbers = self.numbers(weight)
        self.pack(*numbers)

    @classmethod
    def numbers(cls, weight: Tensor) -> Sequence[Tensor]:
        """Returns the numbers (out, into) that are stored, and their scales, in no packed form yet."""
        return (weight.detach(),)

    def pack(self, *numbers: Tensor) -> None:
        """Stores the packed form of ``numbers``."""
        raise NotImplementedError  # each packed form has its own

    @classmethod
    def check(cls, weight: Tensor) -> None:
        """Raises ``HeedfulError`` if the weight cannot be packed in this form, or this machine has no kernel for it."""

    def stored_numbers(self) -> Sequence[Tensor]:
        """Returns the numbers that were packed, those of ``numbers``."""
        raise NotImplementedError  # each packed form has its own

    @classmethod
    def of_numbers(cls, numbers: Sequence[Tensor]) -> Tensor:
        """Returns the weight (out, into) that ``numbers`` stand for."""
        return numbers[0]

    @property
    def weight(self) -> Tensor:
        """W (out, into), unpacked: rounded as it is stored."""
        return self.of_numbers(self.stored_numbers())

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to copy and pickle, with the numbers in no packed form: another machine packs otherwise."""
        own = {name: value for name, value in self.__dict__.items() if name not in self.packed_names}
        return {**own, "numbers": tuple(self.stored_numbers())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        numbers = state.pop("numbers")
        super().__setstate__(state)
        self.pack(*numbers)

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b) for ``rows`` (N, into): (N, out)."""
        raise NotImplementedError  # each packed form has its own

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., into) to (..., out)."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise HeedfulError(
                "a model optimised for inference has no gradients; load it again with heedful.from_pretrained"
            )
        return self.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def activated(self, y: Tensor) -> Tensor:
        """Applies the activation, for kernels that do not include it."""
        return y if self.activation is None else self.activation(y)

    def extra_repr(self) -> str:
        """Returns the sizes and the bias, as ``nn.Linear`` shows them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class FloatLinear(PrepackedLinear):
    """Weights of float32 or bfloat16 in oneDNN's own order; nothing is rounded.

    The original float32 weights are kept too, for single rows; weights that are memory-mapped stay memory-mapped.

    >>> x, linear = torch.randn(3, 8), nn.Linear(8, 16)
    >>> packed = FloatLinear(linear.weight, linear.bias)
    >>> torch.allclose(packed(x), linear(x), atol=1e-6), torch.equal(packed.weight, linear.weight)
    (True, True)
    """

    packed_names = ("packed", "plain", "attribute", "formula")

    def pack(self, *numbers: Tensor) -> None:
        """Stores the weight in oneDNN's order."""
        weight = numbers[0].contiguous()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.attribute, self.formula = _fused(self.activation)
        self.plain = weight if weight.dtype is torch.float32 and torch.backends.mkl.is_available() else None

    def stored_numbers(self) -> tuple[Tensor]:
        """Returns W, exactly equal to the original."""
        return (self.packed.to_dense(),)

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b); oneDNN gets at least ``FEW`` rows; rows are repeated if needed."""
        count = len(rows)
        if self.plain is not None and mkl_is_faster(count):
            return self.activated(mkl_product(rows, self.plain, self.bias))
        if count < FEW:
            rows = torch.cat([rows] * -(-FEW // max(1, count)))
        return onednn_product(rows, self.packed, self.bias, self.attribute, self.formula)[:count]


class HalfLinear(PrepackedLinear):
    """Weights rounded to float16, arithmetic in float32: half the memory traffic, 11 significant bits.

    A CPU without float16 arithmetic widens the weights as it reads them.
    """

    @classmethod
    def check(cls, weight: Tensor) -> None:
        """Raises ``HeedfulError`` for a weight beyond the range of float16."""
        check_kernels("float16", "quantized", "linear_prepack_fp16", "linear_dynamic_fp16")
        largest = float(weight.detach().abs().amax())
        if not largest <= torch.finfo(torch.float16).max:
            raise HeedfulError(f"a weight of {largest:g} is too large for float16; use bfloat16 or float32")

    def pack(self, *numbers: Tensor) -> None:
        """Stores the weight in float16, and the bias beside it."""
        self.packed = torch.ops.quantized.linear_prepack_fp16(numbers[0].float().contiguous(), self.bias)

    @classmethod
    def of_numbers(cls, numbers: Sequence[Tensor]) -> Tensor:
        """Returns W, rounded to float16, in float32."""
        return numbers[0].half().float()

    def stored_numbers(self) -> tuple[Tensor]:
        """Returns rounded W in float32."""
        return (torch.ops.quantized.linear_unpack_fp16(self.packed)[0],)

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b); weights are widened to float32."""
        return self.activated(torch.ops.quantized.linear_dynamic_fp16(rows, self.packed))


def int8_product(rows: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Returns Σ (x − 128) w, times the scale of the output, for rows of unsigned bytes x, in float32."""
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@cache
def int8_weight_levels() -> int:
    """Returns the largest level of an int8 weight whose products the kernel sums exactly: 127 or 63.

    Kernels without VNNI add two products in 16 bits, where larger weights overflow in silence. Which kernel runs is
    found by products of the largest numbers: it follows from the processor, and from oneDNN's own settings
    (``ONEDNN_MAX_CPU_ISA``).
    """
    inputs, outputs = 64, 16
    packed = torch.ops.onednn.qlinear_prepack(torch.full((outputs, inputs), 127, dtype=torch.int8), None)
    scales, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
    for count in (1, FEW + 1, 64):
        rows = torch.full((count, inputs), 255, dtype=torch.uint8)
        if not (int8_product(rows, packed, scales, zeros) == inputs * 127 * 127).all():
            return 63
    return 127


class Int8Linear(PrepackedLinear):
    """Int8 weights W ≈ s_out q, with a scale per output; rows of x are quantised as they are read: x ≈ s_row q.

    s = max |·| / 127 (for weights where the kernel needs it, max |·| / 63: ``int8_weight_levels``), so that zero stays
    zero. Integer products are exact: y = s_row s_out Σ q q + b. Each row has its own scale, so its result is the same
    alone and in a batch.
    """

    LEVELS = 127
    packed_names = ("packed", "scales", "zeros")

    @classmethod
    def check(cls, weight: Tensor) -> None:
        """Raises ``HeedfulError`` if this build of PyTorch has no int8 kernel."""
        check_kernels("int8", "onednn", "qlinear_prepack", "qlinear_pointwise")

    def pack(self, *numbers: Tensor) -> None:
        """Stores the levels in oneDNN's order."""
        levels, self.scales = numbers
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack(levels, None)

    @classmethod
    def numbers(cls, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q (out, into) in int8 and s_out (out,) in float32."""
        weight = weight.detach().float()
        scales = _scale(weight, int8_weight_levels())[:, 0].contiguous()
        levels = (weight / scales[:, None]).round().to(torch.int8).contiguous()  # GPT-2's weights are transposed
        return levels, scales

    def stored_numbers(self) -> tuple[Tensor, Tensor]:
        """Returns q (out, into) in int8 and s_out (out,)."""
        return self.packed.to_dense().view(-1, self.out_features).mT.contiguous(), self.scales

    @classmethod
    def of_numbers(cls, numbers: Sequence[Tensor]) -> Tensor:
        """Returns s q in float32."""
        levels, scales = numbers
        return levels.float() * scales[:, None]

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b); the kernel reads rows of unsigned bytes, 128 for zero."""
        scale = _scale(rows, self.LEVELS)
        levels = (rows / scale).round_().add_(128).to(torch.uint8)
        y = int8_product(levels, self.packed, self.scales, self.zeros).mul_(scale)
        return self.activated(y if self.bias is None else y.add_(self.bias))


class Int4Linear(PrepackedLinear):
    """Int4 weights W ≈ s q + z, with s and z for each ``GROUP`` inputs of an output; x is bfloat16.

    s = (max − min) / 15 and z of the group make its extremes exact up to bfloat16's rounding of s and z.
    """

    GROUP = 32
    MULTIPLE = 64  # the kernel's number of outputs
    packed_names = ("packed", "scales")

    @classmethod
    def check(cls, weight: Tensor) -> None:
        """Raises ``HeedfulError`` if the number of inputs is no multiple of ``GROUP``, or a kernel is missing."""
        check_kernels("int4", "aten", "_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
        if weight.size(1) % cls.GROUP:
            raise HeedfulError(f"int4 needs a multiple of {cls.GROUP} input features, not {weight.size(1)}; use int8")

    def __init__(self, weight: Tensor, *arguments: Any, **named: Any) -> None:
        super().__init__(weight, *arguments, **named)
        self.output_dtype = weight.dtype

    def pack(self, *numbers: Tensor) -> None:
        """Stores the levels in the kernel's order; outputs of zeros fill up to ``MULTIPLE``."""
        levels, scales, middle = (F.pad(part, (0, 0, 0, -self.out_features % self.MULTIPLE)) for part in numbers)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.int(), 1)
        self.scales = torch.stack((scales.mT, middle.mT), -1).contiguous()  # (groups, out, 2)

    @classmethod
    def numbers(cls, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q (out, into) in uint8, s and z + 8 s (out, groups) in bfloat16: the kernel reads q − 8."""
        groups = weight.detach().float().unflatten(1, (-1, cls.GROUP))
        low, high = groups.aminmax(dim=-1)
        scales = ((high - low) / 15).clamp_(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
        middle = (low + 8 * scales.float()).bfloat16()
        quotients = (groups - middle.float()[..., None]) / scales.float()[..., None]
        return (quotients.round() + 8).clamp_(0, 15).flatten(1).to(torch.uint8), scales, middle

    def stored_numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q (out, into) in uint8, s and z + 8 s (out, groups) in bfloat16.

        q − 8 are the products of the unit vectors with scales of 1.
        """
        one_and_zero = torch.tensor([1, 0], dtype=self.scales.dtype).expand_as(self.scales).contiguous()
        eye = torch.eye(self.in_features, dtype=torch.bfloat16)
        levels = self._bfloat16_product(eye, one_and_zero).mT
        scales, middle = (part.mT[: self.out_features].contiguous() for part in self.scales.unbind(-1))
        return (levels + 8).to(torch.uint8), scales, middle

    @classmethod
    def of_numbers(cls, numbers: Sequence[Tensor]) -> Tensor:
        """Returns s (q − 8) + (z + 8 s) in float32."""
        levels, scales, middle = (part.float() for part in numbers)
        groups = levels.unflatten(1, (-1, cls.GROUP)) - 8
        return (groups * scales[..., None] + middle[..., None]).flatten(1)

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b); sums are float32, and y is rounded to bfloat16."""
        y = self._bfloat16_product(rows.bfloat16(), self.scales).to(self.output_dtype)
        return self.activated(y if self.bias is None else y + self.bias)

    def _bfloat16_product(self, rows: Tensor, scales: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows.contiguous(), self.packed, self.GROUP, scales)
        return y[:, : self.out_features]


def check_kernels(dtype: str, space: str, *names: str) -> None:
    """Raises ``HeedfulError`` if this build of PyTorch lacks a kernel."""
    if any(not hasattr(getattr(torch.ops, space), name) for name in names):
        raise HeedfulError(f"this build of PyTorch has no kernel for {dtype} weights; use bfloat16 or float32")


def _fused(activation: Activation | None) -> tuple[str, str]:
    """Returns oneDNN's name and formula of an activation."""
    return ("none", "") if activation is None else FUSED[activation_name(activation)]


def activation_name(activation: Activation | None) -> str:
    """Returns the name of an activation that kernels can apply, "none" for None; copies, such as of a ``partial``, are
    recognised.
    """
    if activation is None:
        return "none"
    for name in FUSED:
        if _function(ACTIVATIONS[name]) == _function(activation):
            return name
    raise HeedfulError(
        f"there is no kernel for the activation {activation}, only for {', '.join(FUSED)}; do not optimise this model"
    )


def _function(activation: Any) -> tuple[Any, Any]:
    return getattr(activation, "func", activation), getattr(activation, "keywords", None)


def _scale(rows: Tensor, levels: int) -> Tensor:
    """Returns max |row| / levels of each row, (N, 1); for a row of zeros a tiny number."""
    return rows.abs().amax(1, keepdim=True).div_(levels).clamp_(min=torch.finfo(rows.dtype).tiny)
