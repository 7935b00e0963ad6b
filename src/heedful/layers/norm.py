"""Norms. All are called ``norm(x, real)``; only batch norm uses ``real``, a (B, T) mask, False for padding."""

from __future__ import annotations

from collections.abc import Callable

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
    "batch": BatchNorm,
}
