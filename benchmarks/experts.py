"""Loss of a dense character model and of models with a mixture of experts that compute as much for a token.

    python benchmarks/experts.py input.txt    # 9 runs on one thread: about 5 minutes of a free core

input.txt is Tiny Shakespeare, data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn. Each model has 4 blocks
of width 128 and takes the same steps: batches of 16 windows of 64 characters, AdamW, seeds 0 to 2. "dense" has a
feed-forward network of width 256 in each block; "1 of 4" has 4 experts of this width, of which a character has one; "2
of 8" has 8 experts of width 128, of which a character has two. The losses, in nats a character, are those of 32,768
characters of the last tenth of the text, with their standard deviation over the seeds; the time is that of the CPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F

import heedful
from heedful.config import DecoderConfig, ExpertsConfig
from heedful.kernels.plan import apply_training_plan
from heedful.layers.experts import Router
from heedful.training import adamw, recording_routers

LENGTH, ROWS, RATE, BALANCE = 64, 16, 2e-3, 0.01
MODELS: dict[str, tuple[int, ExpertsConfig | None]] = {  # width of the feed-forward network, experts
    "dense": (256, None),
    "1 of 4": (256, ExpertsConfig(number=4, per_token=1, normalize=False, balance=BALANCE)),
    "2 of 8": (128, ExpertsConfig(number=8, per_token=2, balance=BALANCE)),
}


def config_of(name: str, vocabulary: int) -> DecoderConfig:
    """Returns the configuration of a model, gpt-micro with another feed-forward network."""
    config, (width, experts) = heedful.presets.get("gpt-micro"), MODELS[name]
    assert isinstance(config, DecoderConfig)
    stack = replace(config.decoder, ff_dim=width, experts=experts)
    return replace(config, embedding=replace(config.embedding, vocab_size=vocabulary), decoder=stack)


def batch_of(ids: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random windows of a text and the characters that follow."""
    starts = torch.randint(len(ids) - LENGTH, (ROWS,), generator=generator)
    windows = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: torch.nn.Module, ids: torch.Tensor) -> tuple[float, float]:
    """Returns the loss of a text, and the largest share of tokens that an expert has, times the number of experts."""
    count = (len(ids) - 1) // LENGTH
    inputs, targets = (ids[start : start + count * LENGTH].view(count, LENGTH) for start in (0, 1))
    shares = []
    routers = [part for part in model.modules() if isinstance(part, Router)]
    hooks = [
        router.register_forward_hook(lambda _, __, w: shares.append((w > 0).float().mean((0, 1)))) for router in routers
    ]
    losses = [
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        for x, y in zip(inputs.split(128), targets.split(128), strict=True)
    ]
    for hook in hooks:
        hook.remove()
    largest = max((float(share.max() / share.mean()) for share in shares), default=1.0)
    return float(torch.stack(losses).sum()) / targets.numel(), largest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = arguments.data.read_text()
    characters = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([characters[character] for character in text])
    learned, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :][:32769]
    moments = [arguments.steps * quarter // 4 for quarter in (1, 2, 3, 4)]
    print(
        "| model | parameters | active | " + " | ".join(f"step {m}" for m in moments) + " | largest share | ms a step |"
    )
    print("|---|---|---|" + "---|" * (len(moments) + 2))
    for name in arguments.models:
        curves, shares, seconds = [], [], 0.0
        for seed in range(arguments.seeds):
            model = heedful.create(config_of(name, len(characters)), seed=seed)
            apply_training_plan(model, "auto", device=torch.device("cpu"))
            optimizer, generator = adamw(model, lr=RATE), torch.Generator().manual_seed(seed)
            curve = []
            for step in range(1, arguments.steps + 1):
                started = time.process_time()
                for group in optimizer.param_groups:
                    group["lr"] = RATE * min(1, step / 100) * (1 - step / arguments.steps)
                x, y = batch_of(learned, generator)
                with recording_routers(model.train()) as router_loss:
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                if MODELS[name][1] is not None:
                    loss = loss + router_loss()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seconds += time.process_time() - started
                if step in moments:
                    loss, share = evaluate(model.eval(), held_out)
                    curve.append(loss)
            curves.append(curve)
            shares.append(share)
        info = heedful.summary(config_of(name, len(characters)))
        cells = [f"{mean(c):.3f} ± {stdev(c) if len(c) > 1 else 0:.3f}" for c in zip(*curves, strict=True)]
        each = 1000 * seconds / arguments.steps / arguments.seeds
        columns = [name, f"{info.parameters:,}", f"{info.active:,}", *cells, f"{max(shares):.1f}", f"{each:.0f}"]
        print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
