"""Runs on several processes, started by ``torchrun``: ranks_script.py FILE. The first writes the results.

Each engine's run of two steps is compared with that of one process without one, over the same examples otherwise cut.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful.config import (
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    PatchConfig,
    SequenceHead,
    StackConfig,
    VisionConfig,
)
from heedful.kernels.plan import apply_training_plan
from heedful.training import GradientLimits, Limits, Loop, Objective, adamw
from heedful.training.averages import Polynomial
from heedful.training.engine import Alone, Replicated, Sharded
from heedful.training.muon import muon
from heedful.training.schedule import constant
from heedful.util.ranks import Ranks, join_ranks

ROWS = torch.randint(3, 20, (8, 6), generator=torch.Generator().manual_seed(3))
ROWS[::3, 4:] = 0  # padding: micro-batches hold unlike numbers of tokens
ADAMW = partial(adamw, lr=0.01)
SPREADS = {"8": [8], "4+4": [4, 4], "2+2+2+2": [2, 2, 2, 2], "5+1+2": [5, 1, 2]}


class Given:
    """The same step again and again, cut into micro-batches of so many rows."""

    epochs = 0.5

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __next__(self) -> list[dict[str, Tensor]]:
        return [{"rows": rows} for rows in ROWS.split(self.sizes)]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def made(family: str, dropout: float) -> nn.Module:
    stack = StackConfig(dim=8, depth=2, heads=2, dropout=DropoutRates(residual=dropout, attention=dropout))
    embedding, causal = EmbeddingConfig(vocab_size=20), StackConfig(**{**vars(stack), "causal": True})
    config: Any = {
        "decoder": lambda: DecoderConfig(embedding=embedding, decoder=causal, head=LanguageHead()),
        "encoder": lambda: EncoderConfig(
            embedding=embedding, encoder=stack, head=SequenceHead(labels=5, dropout=dropout)
        ),
        "encoder_decoder": lambda: EncoderDecoderConfig(
            source=embedding,
            encoder=stack,
            decoder=StackConfig(**{**vars(causal), "cross": True}),
            head=LanguageHead(),
        ),
        "vision": lambda: VisionConfig(
            patches=PatchConfig(image_size=(8, 8), patch_size=4), encoder=stack, head=ImageHead(labels=5)
        ),
    }[family]()
    return heedful.create(config, seed=0).double()


def objective(model: Any, batch: Any) -> Tensor:
    """Σ −log p over real tokens, of whatever the family predicts."""
    rows = batch["rows"]
    real = rows != 0
    if isinstance(model, heedful.EncoderDecoder):
        logits = model(rows, rows, real, real)
    elif isinstance(model, heedful.VisionTransformer):
        logits = model(rows[:, :4].repeat(1, 48).view(-1, 3, 8, 8).double() / 20)
    else:
        logits = model(rows, real)
    if logits.ndim == 2:
        return F.cross_entropy(logits, rows[:, 0] % 5, reduction="sum")
    target = (rows * 3 + 1) % 20
    return F.cross_entropy(logits.flatten(0, 1), target.where(real, -100).flatten(), reduction="sum")


def count(batch: Any) -> int:
    return int((batch["rows"] != 0).sum())


def orthogonalised(model: nn.Module) -> Any:
    """Muon, with AdamW beside it."""
    return muon(model, lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)


def run(
    family: str,
    sizes: list[int],
    engine: Alone,
    dropout: float = 0.0,
    again: bool = False,
    optimiser: Any = ADAMW,
    looked_at: bool = False,
) -> dict[str, Tensor]:
    """Gradients of the last of two steps, the weights and their average after it."""
    model = made(family, dropout)
    if again:
        apply_training_plan(model, "plain", recompute=True)
    learn = engine.wrap(model, objective, same_parameters=True)
    if looked_at:  # before the first step, as a run that is taken up may be
        with torch.no_grad(), engine.evaluating(model):
            objective(model, {"rows": ROWS})
    average = Polynomial(model)
    loop = Loop(
        model=model,
        objective=Objective(loss=learn, count=count),
        loader=Given(sizes),
        optimiser=optimiser(model),
        schedule=constant(),
        limits=Limits(max_steps=2),
        gradient_limits=GradientLimits(clip=0.5),
        engine=engine,
        average=average,
    )
    loop.fit()
    parts = {"weight": dict(model.named_parameters()), "average": average.weights}
    parts["gradient"] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {f"{part} {name}": whole(t) for part, tensors in parts.items() for name, t in tensors.items()}


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        return float("inf")
    return max((one[name] - other[name]).abs().max().item() for name in one)


def found(ranks: Ranks) -> dict[str, float]:
    engines = {"replicated": lambda: Replicated(ranks), "sharded": lambda: Sharded(ranks)}
    differences = {}
    for family in ("encoder", "decoder", "encoder_decoder", "vision"):
        plain = run(family, [8], Alone())
        for name, engine in engines.items():
            for spread, sizes in SPREADS.items():
                differences[f"{family}, {name}, {spread}"] = difference(plain, run(family, sizes, engine()))
            alone = run(family, [4, 4], Alone(), dropout=0.3)
            differences[f"{family}, {name}, dropout"] = difference(alone, run(family, [4, 4], engine(), dropout=0.3))
            forgotten = run(family, [4, 4], engine(), dropout=0.3, again=True)
            differences[f"{family}, {name}, dropout, made again"] = difference(alone, forgotten)
        stepped = run(family, [8], Alone(), optimiser=orthogonalised)
        looked = run(family, [4, 4], Sharded(ranks), looked_at=True)
        differences[f"{family}, sharded, looked at first"] = difference(plain, looked)
        for name, engine in engines.items():
            shared = run(family, [5, 1, 2], engine(), optimiser=orthogonalised)
            differences[f"{family}, {name}, muon"] = difference(stepped, shared)
        differences[f"{family}, alone, no muon"] = 0.0 if difference(plain, stepped) > 1e-3 else 1.0
        differences[f"{family}, alone, no dropout"] = 0.0 if difference(plain, alone) > 1e-3 else 1.0  # it was there
    return differences


def main() -> None:
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        differences = found(ranks)
        told = [ranks.sum(ranks.rank, 1), ranks.broadcast("first" if ranks.is_first else "other")]
        if ranks.is_first:
            Path(sys.argv[1]).write_text(json.dumps({"differences": differences, "told": told}))


if __name__ == "__main__":
    main()
