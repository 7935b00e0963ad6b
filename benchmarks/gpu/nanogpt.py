"""A GPT of the architecture that nanoGPT publishes, with its optimiser groups and its training step.

Karpathy 2022, github.com/karpathy/nanoGPT, written anew from its description: GPT-2 (Radford et al. 2019), with or
without biases (its training does without), one product for queries, keys and values, exact GELU, tied embeddings, a
vocabulary padded to a multiple of 64, batches pinned and fetched while the GPU computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(dim, bias=bias) for _ in range(2))
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=bias), nn.Linear(dim, dim, bias=bias)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=bias), nn.Linear(4 * dim, dim, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)  # (B, H, T, E)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.mlp_norm(x)))))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a final norm, and a tied output layer."""

    def __init__(
        self, vocab: int, context: int, dim: int, depth: int, heads: int, dropout: float = 0.0, bias: bool = False
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(-(-vocab // 64) * 64, dim), nn.Embedding(context, dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout, bias) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, bias=bias)
        self.output = nn.Linear(dim, self.token.num_embeddings, bias=False)
        for path, tensor in self.named_parameters():
            if tensor.dim() == 2:
                is_residual = path.endswith(("out.weight", "down.weight"))
                nn.init.normal_(tensor, std=0.02 / math.sqrt(2 * depth) if is_residual else 0.02)
        self.output.weight = self.token.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of ``labels`` (B, T) given ``ids`` (B, T)."""
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.drop(self.token(ids) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def optimiser(model: nn.Module, lr: float, betas: tuple[float, float], decay: float) -> torch.optim.AdamW:
    """Returns fused AdamW; matrices and embeddings decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


class Steps:
    """nanoGPT's training loop: autocast to bfloat16, gradient clipping, the next batch fetched meanwhile.

    Args:
        loss: returns the mean loss of ids and labels.
        parameters: of the optimiser ``optimise``.
        tokens: the text as token ids.
        rate: factor of the learning rate, given the number of the step from 1.
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimise: torch.optim.Optimizer,
        tokens: np.ndarray,
        batch: int,
        context: int,
        device: str,
        rate: Callable[[int], float] = lambda step: 1.0,
    ) -> None:
        self.loss, self.optimise, self.rate = loss, optimise, rate
        self.tokens, self.shape, self.device = tokens, (batch, context), device
        self.parameters = [p for group in optimise.param_groups for p in group["params"]]
        self.rates = [group["lr"] for group in optimise.param_groups]
        self.random, self.done = np.random.default_rng(0), 0
        self.next = self._batch()

    def __call__(self, steps: int) -> float:
        """Takes steps, and returns the last loss."""
        for _ in range(steps):
            self.done += 1
            for group, rate in zip(self.optimise.param_groups, self.rates, strict=True):
                group["lr"] = rate * self.rate(self.done)
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.loss(*self.next)
            self.next = self._batch()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimise.step()
            self.optimise.zero_grad(set_to_none=True)
        return loss.item()

    def _batch(self) -> tuple[Tensor, Tensor]:
        batch, context = self.shape
        starts = self.random.integers(0, len(self.tokens) - context, batch)
        rows = torch.from_numpy(self.tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
        if self.device == "cuda":
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
