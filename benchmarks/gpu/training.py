"""Rows that train: tokens a second of GPT-2 124M, and the character model to its validation loss.

Ours is trained as ``heedful train`` trains: the loss of the task in our ``Loop``, bfloat16 autocast, gradient clipping,
fused AdamW. Compiled, either each block is (the loss stays ours), or the model and a plain cross entropy are.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from benchmarks.gpu import nanogpt
from benchmarks.gpu.measure import Settings, median_seconds
from heedful import presets
from heedful.config import DecoderConfig, DropoutRates
from heedful.data.token_stream import Stream, StreamWindow, read_windows
from heedful.kernels.plan import apply_training_plan
from heedful.tasks.output_loss import output_loss
from heedful.training import GradientLimits, Limits, Loader, Loop, Objective, adamw
from heedful.training.ceiling import flops_of
from heedful.training.schedule import cosine

DECAY, CLIP = 0.1, 1.0
Steps = Callable[[int], float]  # takes steps of training, and returns the last loss


def task_loss(model: Any, batch: Any) -> Tensor:
    """The loss of ``heedful train text-generation``."""
    hidden = model.hidden(batch["ids"])
    return output_loss(model.head, hidden.flatten(0, 1), batch["labels"].flatten())


def plain_loss(model: Any, batch: Any) -> Tensor:
    """The same number, written for a compiler."""
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), reduction="sum")


class Ours:
    """Our model and loop, by the name of the program: "ours", "ours, blocks compiled", "ours, whole model compiled"."""

    def __init__(
        self,
        config: DecoderConfig,
        program: str,
        tokens: np.ndarray,
        batch: int,
        context: int,
        settings: Settings,
        lr: float,
        betas: tuple[float, float],
        total: int,
    ) -> None:
        self.model = apply_training_plan(heedful.create(config, seed=0).to(settings.device), "gpu")
        self.loss, self.total = task_loss, total
        if program.endswith("blocks compiled"):
            for block in self.model.decoder.block:
                block.compile(backend=settings.compiler)
        elif program.endswith("compiled"):
            self.loss = torch.compile(plain_loss, backend=settings.compiler)
        self.optimiser = adamw(self.model, lr=lr, betas=betas, eps=1e-8, weight_decay=DECAY)
        stream = Stream(tokens, context)

        def collate(windows: np.ndarray, random: np.random.Generator) -> dict[str, Tensor]:
            rows = torch.from_numpy(read_windows([StreamWindow(stream, int(i)) for i in windows], random).tokens)
            return {"ids": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()}

        self.loader = Loader(np.full(stream.windows, context), collate, tokens=batch * context)
        self.done = 0

    def __call__(self, steps: int) -> float:
        """Takes steps in our loop; the learning rate follows all of them."""
        first, factor = self.done, cosine(100, 0.1)
        loop = Loop(
            model=self.model,
            objective=Objective(loss=self.loss, count=lambda batch: batch["labels"].numel()),
            loader=self.loader,
            optimiser=self.optimiser,
            schedule=lambda step, progress: factor(first + step, (first + step) / self.total),
            limits=Limits(max_steps=steps),
            gradient_limits=GradientLimits(clip=CLIP),
            precision="bf16",
            seed=first,
        )
        peaks = [group["lr"] for group in self.optimiser.param_groups]
        loop.fit()
        for group, peak in zip(self.optimiser.param_groups, peaks, strict=True):
            group["lr"] = peak
        self.done += steps
        return float(loop.last_loss() or 0.0)


# ------------------------------------------------------------------------------------------------------------- GPT-2


def gpt2(settings: Settings, program: str, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Measures tokens a second of GPT-2 124M on random tokens, without dropout."""
    width, depth, heads, vocab = (32, 2, 2, 300) if settings.short else (768, 12, 12, 50257)
    config = presets.gpt2(width, depth, heads, vocab=vocab, length=context, dropout=0.0)
    tokens = np.random.default_rng(0).integers(0, vocab, 200 * batch * context, dtype=np.uint16)
    if program.startswith("ours"):
        take: Steps = Ours(config, program, tokens, batch, context, settings, 6e-4, (0.9, 0.95), 10_000)
    else:
        bias = "without biases" not in program
        model, loss = other(program, vocab, context, width, depth, heads, settings, bias=bias)
        optimise = nanogpt.optimiser(model, 6e-4, (0.9, 0.95), DECAY)
        take = nanogpt.Steps(loss, optimise, tokens, batch, context, settings.device)
    losses: list[float] = []
    taken, first = median_seconds(lambda: losses.append(take(steps)), settings.device)
    ids = torch.zeros(batch, context, dtype=torch.long)
    with torch.device("meta"):
        shapes = heedful.create(config)
    flops = flops_of(shapes)({"ids": ids, "labels": ids})
    return {
        "tokens_per_second": batch * context * steps / taken,
        "ms_per_step": 1e3 * taken / steps,
        "tflops": flops * steps / taken / 1e12,
        "first_seconds": first,
        "loss": losses[-1],
        "tokens_per_step": batch * context,
        "graphs": graphs(),
    }


def other(
    program: str,
    vocab: int,
    context: int,
    width: int,
    depth: int,
    heads: int,
    settings: Settings,
    dropout: float = 0.0,
    bias: bool = False,
) -> tuple[Any, Callable[[Tensor, Tensor], Tensor]]:
    """Returns the model of another program, and its mean loss for ids and labels."""
    torch.manual_seed(0)
    if program.startswith("nanoGPT"):
        model: Any = nanogpt.GPT(vocab, context, width, depth, heads, dropout, bias).to(settings.device)
        return model, torch.compile(model, backend=settings.compiler) if program.endswith("compiled") else model
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": width, "n_layer": depth, "n_head": heads}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    special = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=vocab, n_positions=context, use_cache=False, **sizes, **rates, **special)
    model = GPT2LMHeadModel(config).to(settings.device).train()
    return model, lambda ids, labels: F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten())


def graphs() -> int:
    """Returns the number of graphs that ``torch.compile`` made in this row."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


# --------------------------------------------------------------------------------------------------------- characters


def text_of(settings: Settings) -> tuple[str, str]:
    """Returns the text of the character model, and where it is from."""
    if settings.text is not None:
        raw = Path(settings.text).read_bytes()
        return (gzip.decompress(raw) if settings.text.endswith(".gz") else raw).decode("utf-8"), Path(
            settings.text
        ).name
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("etaoinshrdlu"), random.integers(2, 8))) for _ in range(2000)]
    share = 1 / np.arange(1, len(words) + 1)
    chosen = random.choice(len(words), 2000 if settings.short else 200_000, p=share / share.sum())
    return "\n".join(" ".join(words[i] for i in chosen[n : n + 9]) for n in range(0, len(chosen), 9)), "generated"


def characters(settings: Settings, program: str, batch: int, context: int, steps: int, every: int) -> dict[str, Any]:
    """Trains nanoGPT's character model, and measures the seconds and the validation loss over the last tenth."""
    text, source = text_of(settings)
    number = {letter: index for index, letter in enumerate(sorted(set(text)))}
    ids = np.array([number[letter] for letter in text], dtype=np.uint16)
    train, valid = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    width, depth, heads = (32, 2, 2) if settings.short else (384, 6, 6)
    if program.startswith("ours"):
        config = presets.get("gpt-mini")
        rates = DropoutRates(embedding=0.2, attention=0.2, residual=0.2)
        small = presets.gpt2(width, depth, heads, len(number), context, std=config.decoder.init_std, activation="gelu")
        config = replace(small, decoder=replace(small.decoder, dropout=rates))
        ours = Ours(config, program, train, batch, context, settings, 1e-3, (0.9, 0.99), steps)
        model, take = ours.model, ours

        def mean_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
    else:
        model, compiled = other(program, len(number), context, width, depth, heads, settings, dropout=0.2)
        mean_loss, optimise = model, nanogpt.optimiser(model, 1e-3, (0.9, 0.99), DECAY)
        factor = cosine(100, 0.1)
        rate = {"rate": lambda step: factor(step, step / steps)}
        take = nanogpt.Steps(compiled, optimise, train, batch, context, settings.device, **rate)
    curve: list[dict[str, float]] = []
    spent = 0.0
    for done in range(every, steps + 1, every):
        model.train()
        started = time.perf_counter()
        train_loss = take(every)  # reads the loss, so the device has ended
        spent += time.perf_counter() - started
        loss = validation(model, mean_loss, valid, context, settings)
        curve.append({"step": done, "seconds": spent, "train_loss": train_loss, "loss": loss})
    return {
        "loss": min(point["loss"] for point in curve),
        "last_loss": curve[-1]["loss"],
        "seconds": spent,
        "steps_per_second": steps / spent,
        "tokens_per_second": steps * batch * context / spent,
        "text": f"{source}, {len(text):,} characters",
        "curve": curve,
        "graphs": graphs(),
    }


@torch.no_grad()
def validation(model: Any, mean_loss: Any, ids: np.ndarray, context: int, settings: Settings) -> float:
    """Returns the mean loss over consecutive windows; what follows the last whole window is left out."""
    model.eval()
    count = (len(ids) - 1) // context
    rows = ids[np.arange(count)[:, None] * context + np.arange(context + 1)].astype(np.int64)
    total = torch.zeros((), dtype=torch.float64, device=settings.device)
    for part in torch.from_numpy(rows).split(64):
        part = part.to(settings.device)
        with torch.autocast(settings.device, torch.bfloat16):
            total += len(part) * mean_loss(part[:, :-1], part[:, 1:]).double()
    return total.item() / count
