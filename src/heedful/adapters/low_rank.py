"""Linear map with a low-rank adapter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.layers.linear import Linear


class LowRank(nn.Linear):
    """Linear map with a low-rank adapter: y = W x + b + s B A dropout(x).

    A is (r, in), B is (out, r), and s = α/r, or α/√r with ``rslora``.

    Hu et al. 2022, section 4.1; α/√r: Kalajdzievski 2023. The class is an ``nn.Linear``: W and b
    are its ``weight`` and ``bias``, A and B are ``lora_a`` and ``lora_b``. The adapter's dtype may differ from W's.

    Args:
        base: the linear map; its parameters are used, not copied.
        a: A, which several maps with the same input may share.
        b: B; with zeros the adapter adds nothing.
        alpha: α.
        dropout: dropout probability of the adapter's input in training.
        rslora: divides α by the square root of r.

    >>> import torch
    >>> base = nn.Linear(4, 3)
    >>> adapted = LowRank(base, nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(3, 2)), alpha=6.0)
    >>> bool(torch.allclose(adapted(torch.ones(1, 4)), base(torch.ones(1, 4)) + 6 / 2 * 8))
    True
    """

    def __init__(
        self,
        base: nn.Linear,
        a: nn.Parameter,
        b: nn.Parameter,
        *,
        alpha: float,
        dropout: float = 0.0,
        rslora: bool = False,
    ) -> None:
        nn.Module.__init__(self)  # not nn.Linear's, which would draw a weight
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.lora_a, self.lora_b = a, b
        self.scale = alpha / (len(a) ** 0.5 if rslora else len(a))
        self.dropout = dropout
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        y = F.linear(x, self.weight, self.bias)
        low = F.linear(F.dropout(x, self.dropout, self.training).to(self.lora_a.dtype), self.lora_a)  # (..., r)
        return y + (self.scale * F.linear(low, self.lora_b)).to(y.dtype)

    def extra_repr(self) -> str:
        """Returns the text in the brackets of ``repr``: sizes and bias as in ``nn.Linear``, and the rank."""
        return f"{super().extra_repr()}, rank={len(self.lora_a)}"

    def base(self) -> Linear:
        """Returns the linear map without its adapter: a ``Linear`` with the same parameters."""
        linear = Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear.train(self.training)

    @torch.no_grad()
    def merged(self) -> Linear:
        """Returns a linear map with weight W + s B A, summed in float32 at least and rounded once."""
        wide = torch.promote_types(torch.promote_types(self.weight.dtype, self.lora_a.dtype), torch.float32)
        added = self.scale * (self.lora_b.to(wide) @ self.lora_a.to(wide))
        linear = self.base()
        linear.weight = nn.Parameter((self.weight.to(wide) + added).to(self.weight.dtype))
        return linear
