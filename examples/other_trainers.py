"""Trains a heedful model with transformers' Trainer and with Lightning, by adapters of a few lines.

    python examples/other_trainers.py [STEPS]

Both need their package: pip install transformers accelerate lightning. A task gives what they ask for: batches
(``collate``) and the loss (``objective``, a sum over ``count`` predictions). 60 steps take ten seconds on one core. To
expect, and the same losses for both:

    Trainer    loss 0.803 → 0.002
    Lightning  loss 0.803 → 0.002
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import heedful
from heedful.data import Row, Rows
from heedful.settings import ModelSettings, RunSettings
from heedful.tasks import Task, get

WORDS = {"fruit": ["apple", "pear", "fig", "plum"], "tool": ["saw", "drill", "file", "hammer"]}


class ForTrainer(nn.Module):
    """A model that returns its loss, as the Trainer wants it."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model, self.losses = task, model, list[float]()

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """Returns the mean loss of the batch's predictions."""
        loss = self.task.objective(self.model, batch) / self.task.count(batch)
        self.losses.append(loss.item())
        return {"loss": loss}


def with_trainer(task: Task, model: nn.Module, batches: Sequence[dict[str, Tensor]], lr: float) -> list[float]:
    """Trains by AdamW on the batches, in their order; returns the loss of each step."""
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    adapted = ForTrainer(task, model)
    with tempfile.TemporaryDirectory() as folder:
        options = {"lr_scheduler_type": "constant", "max_grad_norm": 0, "remove_unused_columns": False, "use_cpu": True}
        options |= {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
        options |= {
            "max_steps": len(batches),
            "learning_rate": lr,
            "per_device_train_batch_size": 1,
        }  # a row is a batch
        arguments = TrainingArguments(output_dir=folder, **options)
        InOrder(adapted, arguments, train_dataset=batches, data_collator=lambda rows: rows[0]).train()
    return adapted.losses


def with_lightning(task: Task, model: nn.Module, batches: Sequence[dict[str, Tensor]], lr: float) -> list[float]:
    """Trains by AdamW on the batches, in their order; returns the loss of each step."""
    import lightning

    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            loss = task.objective(self.model, batch) / task.count(batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr, weight_decay=0)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_steps=len(batches), accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    return losses


def main(steps: int = 60) -> None:
    """Train the same model twice."""
    texts = [(f"one {word} number {n}", label) for label, words in WORDS.items() for word in words for n in range(10)]
    rows = Rows([Row({"text": text, "label": label}, "words", n) for n, (text, label) in enumerate(texts, 1)])
    small = ModelSettings(dim=32, depth=1, heads=4, dropout=0.0)
    settings = RunSettings(task="text-classification", train=("-",), out="-", preset="bert-tiny", model=small)
    task = get("text-classification").prepare(rows, settings)
    examples = task.encode(rows).examples
    random = torch.Generator().manual_seed(0)
    batches = [
        task.collate([examples[i] for i in torch.randint(len(examples), (16,), generator=random)]) for _ in range(steps)
    ]
    for name, fit in (("Trainer", with_trainer), ("Lightning", with_lightning)):
        losses = fit(task, heedful.create(task.config(settings), seed=0), batches, 3e-3)
        print(f"{name:<10} loss {losses[0]:.3f} → {losses[-1]:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
