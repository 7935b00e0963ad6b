"""Muon, an optimiser for matrices with orthogonalised momentum, combined with AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from heedful.training.optimisation import EagerOptimiser, adamw, groups_by_rate

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose slope at 0 is steepest while it stays near 1
STEPS = 5


class Muon(EagerOptimiser):
    """Muon (Jordan et al., 2024): orthogonalised momentum, for matrices.

    M ← μM + (1 − μ)G,  O = orthogonal((1 − μ)G + μM),  θ ← θ − lr (0.2 √max(rows, columns) O + weight_decay · θ),

    where ``orthogonal`` sets all singular values to about 1. The factor 0.2 √max(rows, columns) makes the entries of an
    update about as large as AdamW's, so that one learning rate serves both (Liu et al., 2025, section 2.2). Matrices of
    one shape and one learning rate are updated together. Where matrices are sharded (``fully_shard``), each rank has
    its shard of M, gathers the matrices to orthogonalise, and updates its shard.

    Args:
        matrices: parameters with two dimensions, or groups of such parameters.
        lr: learning rate.
        momentum: μ.
        weight_decay: decoupled weight decay.
        dtype: dtype in which matrices are orthogonalised; None: that of the matrices. Published Muon uses bfloat16,
            which takes a sixth to a third of the time on a processor with instructions for bfloat16. M and θ keep
            their dtype.
    """

    def __init__(
        self,
        matrices: ParamsT,
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closures
        """Updates the matrices that have a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in by_shape.items():
                gradients: list[Tensor] = [matrix.grad for matrix in matrices if matrix.grad is not None]
                means = [self._mean(matrix) for matrix in matrices]
                torch._foreach_lerp_(means, gradients, 1 - momentum)
                ahead = [gradient.clone() for gradient in gradients]  # torch 2.11 shards lerp in place alone
                torch._foreach_lerp_(ahead, means, momentum)  # Nesterov momentum
                stacked = torch.stack(list(map(gathered, ahead)))
                steps = orthogonal(stacked.to(self.dtype or stacked.dtype)).to(stacked.dtype) * (
                    -0.2 * lr * max(shape) ** 0.5
                )
                torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
                torch._foreach_add_(matrices, list(map(sharded_like, steps, matrices)))

    def _mean(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["mean"] = torch.zeros_like(matrix)
        mean: Tensor = state["mean"]
        return mean


def gathered(matrix: Any) -> Tensor:
    """Returns the whole matrix, gathered from all ranks if it is sharded; all ranks must call this."""
    whole: Tensor = matrix.full_tensor() if hasattr(matrix, "full_tensor") else matrix
    return whole


def sharded_like(matrix: Tensor, like: Any) -> Tensor:
    """Returns a whole ``matrix`` sharded over the ranks like ``like``; the matrix itself if ``like`` is not sharded."""
    if not hasattr(like, "full_tensor"):
        return matrix
    from torch.distributed.tensor import DTensor, Replicate  # takes a second to import

    mesh = like.device_mesh
    return DTensor.from_local(matrix, mesh, [Replicate()] * mesh.ndim, run_check=False).redistribute(
        mesh, like.placements
    )


def orthogonal(matrices: Tensor) -> Tensor:
    """Returns matrices (N, rows, columns) with the same singular vectors and singular values of about 0.7 to 1.2.

    Five steps of X ← aX + b(XXᵀ)X + c(XXᵀ)²X from X / ‖X‖ (Newton–Schulz; Bernstein and Newhouse, 2024).

    >>> import torch
    >>> matrices = orthogonal(torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0)))
    >>> bool(((torch.linalg.svdvals(matrices) - 0.95).abs() < 0.3).all())
    True
    """
    a, b, c = COEFFICIENTS
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices  # the smaller side squared is the smaller product
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class CombinedOptimiser:
    """Optimiser that combines several optimisers, each with its own parameters."""

    def __init__(self, *optimisers: torch.optim.Optimizer) -> None:
        self.optimisers = optimisers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of all optimisers."""
        return [group for optimiser in self.optimisers for group in optimiser.param_groups]

    def zero_grad(self) -> None:
        """Clears the gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()

    def step(self) -> None:
        """Updates the parameters of all optimisers."""
        for optimiser in self.optimisers:
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all optimisers."""
        return {"optimisers": [optimiser.state_dict() for optimiser in self.optimisers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from :meth:`state_dict`; raises ``ValueError`` for another number of optimisers."""
        states: Sequence[dict[str, Any]] = state.get("optimisers", ())
        if len(states) != len(self.optimisers):
            raise ValueError(f"the checkpoint holds {len(states)} optimisers, not {len(self.optimisers)}")
        for optimiser, optimiser_state in zip(self.optimisers, states, strict=True):
            optimiser.load_state_dict(optimiser_state)


def muon(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    rates: Mapping[int, float] = MappingProxyType({}),
    dtype: torch.dtype | None = None,
) -> CombinedOptimiser | torch.optim.Optimizer:
    """Returns Muon for the matrices of the model's blocks, and AdamW for all other parameters.

    The arguments are those of :func:`heedful.training.optimisation.adamw`, and ``dtype`` is that of ``Muon``.
    """
    inside = {id(p) for name, p in model.named_parameters() if ".block." in name and p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in inside and p.requires_grad]
    optimisers: list[torch.optim.Optimizer] = []
    if matrices:
        optimisers.append(Muon(groups_by_rate(matrices, lr, rates), lr=lr, weight_decay=weight_decay, dtype=dtype))
    if any(p.requires_grad and id(p) not in inside for p in model.parameters()):  # an adapter has only matrices
        optimisers.append(
            adamw(model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, without=inside, rates=rates)
        )
    return CombinedOptimiser(*optimisers) if len(optimisers) > 1 else optimisers[0]
