"""Every recipe against its source, and as settings that a run takes."""

from __future__ import annotations

from typing import Any

import pytest

from heedful import presets, recipes, tasks
from heedful.config import DecoderConfig, EncoderDecoderConfig, VisionConfig
from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.training.schedule import schedule

FAMILY = {
    "translation": EncoderDecoderConfig,
    "text-generation": DecoderConfig,
    "image-classification": VisionConfig,
}

# Dosovitskiy et al. 2021, table 3: models, data, epochs, base rate, decay, weight decay, dropout
TABLE_3 = """
    vit-b/16 vit-b/32             jft300m     7    8e-4  linear  0.1   0.0
    vit-l/32                      jft300m     7    6e-4  linear  0.1   0.0
    vit-l/16                      jft300m     14   4e-4  linear  0.1   0.0
    vit-h/14                      jft300m     14   3e-4  linear  0.1   0.0
    vit-b/16 vit-b/32             imagenet21k 90   1e-3  linear  0.03  0.1
    vit-l/16 vit-l/32             imagenet21k 90   1e-3  linear  0.03  0.1
    vit-b/16 vit-b/32 vit-l/16 vit-l/32 imagenet 300 3e-3 cosine 0.3   0.1
"""


def as_run(name: str) -> RunSettings:
    recipe = recipes.get(name)
    return RunSettings.from_dict({"task": recipe.task, "train": ("data",), "out": "run", **recipe.settings})


def table_3() -> dict[str, tuple[Any, ...]]:
    rows = {}
    for line in TABLE_3.split("\n"):
        *models, data, epochs, lr, decay, weight_decay, dropout = line.split() or [""] * 7
        for model in filter(None, models):
            rows[f"{model}-{data}"] = (model, int(epochs), float(lr), decay, float(weight_decay), float(dropout))
    return rows


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_is_settings_of_a_run(name: str) -> None:
    run = as_run(name)
    assert run.task in {told["name"] for told in tasks.names()}
    assert isinstance(presets.get(run.preset), FAMILY[run.task])
    assert run.max_steps or run.max_epochs or run.training.schedule == "constant"
    told = schedule(run.training.schedule, run.training.warmup, run.training.min_lr_ratio)  # the pair is one that fits
    assert told(1, 0.0) == pytest.approx(1 / max(1, run.training.warmup))


def test_the_rows_of_table_3() -> None:
    assert {name for name in recipes.names() if name.startswith("vit")} == table_3().keys()
    for name, (preset, epochs, lr, decay, weight_decay, dropout) in table_3().items():
        run = as_run(name)
        told = run.training
        assert (run.preset, run.max_epochs, told.lr, told.schedule) == (preset, epochs, lr, decay)
        assert (told.weight_decay, run.model.dropout) == (weight_decay, dropout)
        # its caption, and section 4.1
        assert (told.batch_size, told.warmup, told.betas, run.image.size) == (4096, 10_000, (0.9, 0.999), 224)
        assert told.clip == (1.0 if name.endswith("imagenet") else 0.0)
        assert "table 3" in recipes.get(name).source


def test_the_paper_s_transformer() -> None:
    for name, dim, dropout, steps in (("base", 512, 0.1, 100_000), ("big", 1024, 0.3, 300_000)):
        run = as_run(f"transformer-{name}")
        told = run.training
        rate = schedule(told.schedule, told.warmup)
        for step in (1, 400, 4000, 50_000):  # equation 3
            assert told.lr * rate(step, None) == pytest.approx(dim**-0.5 * min(step**-0.5, step * 4000**-1.5))
        assert (told.betas, told.eps, told.label_smoothing, told.batch_tokens) == ((0.9, 0.98), 1e-9, 0.1, 25_000)
        assert (run.model.dropout, run.max_steps, run.tokenizer.size) == (dropout, steps, 37_000)
        stack = presets.get(run.preset).encoder
        assert (stack.dim, stack.dropout.residual) == (dim, dropout)


def test_the_constant_rate() -> None:
    told = as_run("transformer-constant").training
    assert (told.lr, told.schedule, told.warmup, told.betas, told.eps) == (1e-4, "constant", 0, (0.9, 0.98), 1e-9)


def test_nanogpt() -> None:
    for name, layers, heads, dim, context, batch, dropout, steps in (
        ("nanogpt-shakespeare", 6, 6, 384, 256, 64, 0.2, 5000),
        ("nanogpt-shakespeare-cpu", 4, 4, 128, 64, 12, 0.0, 2000),
    ):
        run = as_run(name)
        told, stack = run.training, presets.get(run.preset).decoder
        assert (stack.depth, stack.heads, stack.dim) == (layers, heads, dim)
        assert {stack.dropout.embedding, stack.dropout.attention, stack.dropout.residual} == {dropout}
        assert (run.data.max_length, told.batch_tokens, run.max_steps) == (context, batch * context, steps)
        assert stack.position.length == context
        assert (told.lr, told.warmup, told.schedule, told.lr * told.min_lr_ratio) == (1e-3, 100, "cosine", 1e-4)
        assert (told.betas, told.weight_decay, told.clip) == ((0.9, 0.99), 0.1, 1.0)
        assert (run.tokenizer.kind, run.data.valid_fraction) == ("character", 0.1)


def test_options_that_a_source_does_not_use_are_off() -> None:
    for name in recipes.names():
        told = as_run(name).training
        assert (as_run(name).averaging.polynomial, told.patience) == (0.0, 0), name
        assert told.label_smoothing == (0.1 if name in ("transformer-base", "transformer-big") else 0.0)


def test_names_and_descriptions() -> None:
    with pytest.raises(HeedfulError, match="unknown recipe 'vit-b16-imagenet'; did you mean 'vit-b/16-imagenet'"):
        recipes.get("vit-b16-imagenet")
    told = recipes.describe()
    assert [line["name"] for line in told] == recipes.names()
    assert all(line["source"] and line["task"] and line["preset"] in presets.names() for line in told)


def test_ours_is_nanogpts_but_for_what_it_names() -> None:
    ours, theirs = as_run("shakespeare-cpu"), as_run("nanogpt-shakespeare-cpu")
    named = {"optimiser", "lr", "warmup", "min_lr_ratio", "batch_tokens"}
    changed = {name for name, value in vars(ours.training).items() if value != getattr(theirs.training, name)}
    assert changed == named
    assert (ours.preset, ours.data, ours.tokenizer) == (theirs.preset, theirs.data, theirs.tokenizer)
    tokens = [run.max_steps * run.training.batch_tokens for run in (ours, theirs)]
    assert tokens[0] < tokens[1]  # fewer tokens in the same time: a step of Muon costs more
