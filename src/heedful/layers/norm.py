"""Norms. All are called ``norm(x, real)``; only batch norm uses ``real``, a (B, T) mask, False for padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Identity(nn.Identity):
    """Absent norm: the identity."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns ``x`` unchanged."""
        return x


class LayerNorm(nn.LayerNorm):
    r"""Layer norm over the last axis: (x − mean) / √(var + ε) · weight + bias, var the *biased* variance.

    Ba, Kiros and Hinton 2016, equation 4.

    >>> import torch
    >>> LayerNorm(4)(torch.tensor([2.0, -1.0, 3.0, 0.0]))
    tensor([ 0.6325, -1.2649,  1.2649, -0.6325], grad_fn=<NativeLayerNormBackward0>)
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises ``x`` (..., dim); ``real``, the mask of non-padding positions, is ignored."""
        return super().forward(x)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm over the last axis: x / √(mean(x²) + ε) · weight. Zhang and Sennrich 2019, equation 4.

    >>> import torch
    >>> RMSNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises ``x`` (..., dim); ``real``, the mask of non-padding positions, is ignored."""
        return super().forward(x)


class OffsetRMSNorm(RMSNorm):
    """RMS norm whose weight is stored minus 1: x / √(mean(x²) + ε) · (1 + weight). Gemma 2, 2024.

    It is computed in float32 at least: 1 + weight would lose bits in half precision.

    >>> import torch
    >>> OffsetRMSNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)
    """

    def reset_parameters(self) -> None:
        """Makes the weight zeros."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises ``x`` (..., dim); ``real``, the mask of non-padding positions, is ignored."""
        wide = x if x.dtype is torch.float64 else x.float()
        return F.rms_norm(wide, self.normalized_shape, 1 + self.weight.to(wide.dtype), self.eps).to(x.dtype)


class HeadsNorm(RMSNorm):
    """RMS norm over all heads of a token together, with a weight for each of the H · E numbers. OLMo 2025, section 3.

    >>> import torch
    >>> HeadsNorm(4)(torch.tensor([3.0, 4.0, 0.0, 0.0]).view(1, 2, 1, 2)).flatten()
    tensor([1.2000, 1.6000, 0.0000, 0.0000], grad_fn=<ViewBackward0>)
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises queries or keys ``x`` (..., H, T, E)."""
        rows = x.transpose(-3, -2)  # (..., T, H, E), as they were projected
        return super().forward(rows.flatten(-2)).view(rows.shape).transpose(-3, -2)


class LayerScale(nn.Module):
    """Learned factor of each feature, y · weight, called as a norm. Touvron et al. 2021b, equation 4.

    >>> import torch
    >>> LayerScale(2, 0.1)(torch.tensor([3.0, 4.0]))
    tensor([0.3000, 0.4000], grad_fn=<MulBackward0>)
    """

    def __init__(self, dim: int, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), float(value)))

    def forward(self, y: Tensor, real: Tensor | None = None) -> Tensor:
        """Scales ``y`` (..., dim); ``real``, the mask of non-padding positions, is ignored."""
        return y * self.weight


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of each feature over all non-padding tokens of the batch. Ioffe and Szegedy 2015, algorithm 1.

    Training uses the biased variance of the batch and updates the running statistics (detached; the running variance is
    unbiased); evaluation uses the running statistics. Padding is left out of the statistics and becomes zeros.

    >>> import torch
    >>> norm = BatchNorm(2)
    >>> norm(torch.tensor([[[0.0, 1.0], [2.0, 3.0], [9.0, 9.0]]]), torch.tensor([[True, True, False]]))[0, :2]
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]], grad_fn=<SliceBackward0>)
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises ``x`` (B, T, D) over the tokens where ``real`` (B, T) is True."""
        if real is None:
            return super().forward(x.flatten(0, -2)).view(x.shape)  # (..., D) → (N, D) and back
        mask = real.bool()[..., None]
        if not self.training:  # running statistics do not depend on the batch
            return super().forward(x.flatten(0, -2)).view(x.shape).masked_fill(~mask, 0.0)
        return x.new_zeros(x.shape).masked_scatter(mask, super().forward(x[mask[..., 0]]))


NORMS: dict[str, Callable[..., nn.Module]] = {  # ``heedful.register`` adds others
    "layer": LayerNorm,
    "rms": RMSNorm,
    "rms-offset": OffsetRMSNorm,
    "batch": BatchNorm,
}
