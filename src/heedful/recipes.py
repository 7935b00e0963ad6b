"""Published training settings by name, as data. Nothing here imports torch.

A recipe has the settings of its source. Methods that the source does not use (averaged weights, label smoothing, mixup,
early stopping, ...) are off. Settings that the source does not give are inferred from the data, as without a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heedful.errors import HeedfulError, nearest

_EXTRAS_OFF = {"label_smoothing": 0.0, "clip": 0.0, "weight_decay": 0.0, "patience": 0}
_AVERAGING_OFF = {"polynomial": 0.0}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training settings and where they were published.

    Attributes:
        task: name of the task.
        source: the paper and its table or section.
        settings: nested mappings, as ``RunSettings.from_dict`` takes them.
    """

    task: str
    source: str
    settings: Mapping[str, Any]


# -------------------------------------------------------------------------------------------------- encoder-decoder


def vaswani(preset: str, dim: int, dropout: float, steps: int) -> Recipe:
    """Returns the recipe of the original Transformer (Vaswani et al. 2017, sections 5.1, 5.3 and 5.4, table 3).

    lr = dim^−½ · min(step^−½, step · 4000^−1½), whose peak, at step 4,000, is (4000 dim)^−½. A batch has 25,000
    source tokens and 25,000 target tokens, and both sides share a vocabulary of 37,000 byte pairs.
    """
    return Recipe(
        task="translation",
        source="Vaswani et al. 2017, sections 5.1 to 5.4 and table 3",
        settings={
            "preset": preset,
            "max_steps": steps,
            "tokenizer": {"kind": "bpe", "size": 37000, "shared": True},
            "model": {"dropout": dropout},
            "averaging": _AVERAGING_OFF,
            "training": _EXTRAS_OFF
            | {
                "lr": (dim * 4000) ** -0.5,
                "schedule": "inverse_sqrt",
                "warmup": 4000,
                "betas": (0.9, 0.98),
                "eps": 1e-9,
                "label_smoothing": 0.1,
                "batch_tokens": 25000,
            },
        },
    )


_CONSTANT = Recipe(  # padding is never part of the loss, in any recipe
    task="translation",
    source="Vaswani et al. 2017, section 5.3, at the constant rate of 1e-4 that tutorials use",
    settings={
        "preset": "transformer-base",
        "model": {"dropout": 0.1},
        "averaging": _AVERAGING_OFF,
        "training": _EXTRAS_OFF | {"lr": 1e-4, "schedule": "constant", "warmup": 0, "betas": (0.9, 0.98), "eps": 1e-9},
    },
)


# ---------------------------------------------------------------------------------------------------------- decoder


def nanogpt(preset: str, context: int, batch_size: int, steps: int, source: str) -> Recipe:
    """Returns the recipe with nanoGPT's settings for Tiny Shakespeare: ``batch_size`` × ``context`` characters a step.

    The presets have nanoGPT's sizes and its dropout. Two things differ: linear maps and norms have biases here, and
    embeddings have no weight decay.
    """
    return Recipe(
        task="text-generation",
        source=source,
        settings={
            "preset": preset,
            "max_steps": steps,
            "data": {"max_length": context, "valid_fraction": 0.1},
            "tokenizer": {"kind": "character"},
            "averaging": _AVERAGING_OFF,
            "training": _EXTRAS_OFF
            | {
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup": 100,
                "min_lr_ratio": 0.1,
                "betas": (0.9, 0.99),
                "eps": 1e-8,
                "weight_decay": 0.1,
                "clip": 1.0,
                "batch_tokens": batch_size * context,
                "evaluate_every": 250,
            },
        },
    )


def shakespeare() -> Recipe:
    """Returns the recipe that trains nanoGPT's CPU model to a lower loss in the same time.

    Its settings are the best that ``benchmarks/character_model.py`` found: the optimiser Muon, twice the batch, and the
    number of steps that fits the time. The weights of its preset have a larger initial standard deviation.
    """
    base = nanogpt("gpt-micro", 64, 24, 850, "benchmarks/character_model.py, in the time of nanogpt-shakespeare-cpu")
    changes = {"optimiser": "muon", "lr": 6e-3, "warmup": 20, "min_lr_ratio": 0.0}
    return replace(base, settings={**base.settings, "training": base.settings["training"] | changes})


# ----------------------------------------------------------------------------------------------------------- vision


def vit(preset: str, epochs: int, lr: float, schedule: str, weight_decay: float, dropout: float, clip: float) -> Recipe:
    """Returns the recipe of one row of table 3 in the ViT paper (Dosovitskiy et al. 2021, appendix B.1).

    All rows have 4,096 images of 224 × 224 pixels a batch, and 10,000 steps of warm-up.

    Adam has β = (0.9, 0.999), section 4.1. Fine-tuning (table 4) uses SGD with momentum, which Heedful does not have,
    and is left out. Label smoothing, which section 4.3 mentions, is left out since the paper gives no value.
    """
    return Recipe(
        task="image-classification",
        source="Dosovitskiy et al. 2021, table 3",
        settings={
            "preset": preset,
            "max_epochs": epochs,
            "image": {"size": 224, "rand_augment": 0, "random_erasing": 0.0, "mixup": 0.0},
            "model": {"dropout": dropout},
            "averaging": _AVERAGING_OFF,
            "training": _EXTRAS_OFF
            | {
                "lr": lr,
                "schedule": schedule,
                "warmup": 10000,
                "betas": (0.9, 0.999),
                "weight_decay": weight_decay,
                "clip": clip,
                "batch_size": 4096,
            },
        },
    )


# Where the table gives two numbers of epochs (7/14 and 30/90), the recipe is the longer one.
RECIPES: dict[str, Recipe] = {
    "transformer-base": vaswani("transformer-base", 512, 0.1, 100_000),
    "transformer-big": vaswani("transformer-big", 1024, 0.3, 300_000),
    "transformer-constant": _CONSTANT,
    "nanogpt-shakespeare": nanogpt("gpt-mini", 256, 64, 5000, "nanoGPT, 2023, config/train_shakespeare_char.py"),
    "nanogpt-shakespeare-cpu": nanogpt("gpt-micro", 64, 12, 2000, "nanoGPT, 2023, README, for a laptop's CPU"),
    "shakespeare-cpu": shakespeare(),
    "vit-b/16-jft300m": vit("vit-b/16", 7, 8e-4, "linear", 0.1, 0.0, 0.0),
    "vit-b/32-jft300m": vit("vit-b/32", 7, 8e-4, "linear", 0.1, 0.0, 0.0),
    "vit-l/32-jft300m": vit("vit-l/32", 7, 6e-4, "linear", 0.1, 0.0, 0.0),
    "vit-l/16-jft300m": vit("vit-l/16", 14, 4e-4, "linear", 0.1, 0.0, 0.0),
    "vit-h/14-jft300m": vit("vit-h/14", 14, 3e-4, "linear", 0.1, 0.0, 0.0),
    "vit-b/16-imagenet21k": vit("vit-b/16", 90, 1e-3, "linear", 0.03, 0.1, 0.0),
    "vit-b/32-imagenet21k": vit("vit-b/32", 90, 1e-3, "linear", 0.03, 0.1, 0.0),
    "vit-l/16-imagenet21k": vit("vit-l/16", 90, 1e-3, "linear", 0.03, 0.1, 0.0),
    "vit-l/32-imagenet21k": vit("vit-l/32", 90, 1e-3, "linear", 0.03, 0.1, 0.0),
    "vit-b/16-imagenet": vit("vit-b/16", 300, 3e-3, "cosine", 0.3, 0.1, 1.0),
    "vit-b/32-imagenet": vit("vit-b/32", 300, 3e-3, "cosine", 0.3, 0.1, 1.0),
    "vit-l/16-imagenet": vit("vit-l/16", 300, 3e-3, "cosine", 0.3, 0.1, 1.0),
    "vit-l/32-imagenet": vit("vit-l/32", 300, 3e-3, "cosine", 0.3, 0.1, 1.0),
}


def names() -> list[str]:
    """Returns all recipe names."""
    return list(RECIPES)


def get(name: str) -> Recipe:
    """Returns the recipe called ``name``; raises ``HeedfulError``, which names the nearest recipe, if there is none.

    >>> get("transformer-base").settings["training"]["warmup"]
    4000
    """
    if name not in RECIPES:
        raise HeedfulError(f"unknown recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]


def describe() -> list[dict[str, Any]]:
    """Returns the name, task, preset and source of each recipe."""
    return [
        {"name": name, "task": recipe.task, "preset": recipe.settings["preset"], "source": recipe.source}
        for name, recipe in RECIPES.items()
    ]
