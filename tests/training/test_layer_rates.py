"""Rates by depth in all four families, told from the parameters' names alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import cli, presets
from heedful.training.muon import muon
from heedful.training.optimisation import adamw, layer_rates

SMALL = ["vit-micro", "bert-tiny", "gpt-micro", "transformer-tiny", "t5-small"]


def on_meta(config: Any) -> heedful.models.Model:
    with torch.device("meta"):  # nothing is computed
        return heedful.create(config)


def expected(name: str, depth: int, decay: float) -> float:
    if ".block." in name:
        return decay ** (depth - int(name.split(".block.")[1].split(".")[0]))
    lowest = name.startswith(("embedding.", "target_embedding.")) or ".position." in name or ".embedding_norm." in name
    return decay ** (depth + 1) if lowest else 1.0


@pytest.mark.parametrize("optimiser", [adamw, muon])
@pytest.mark.parametrize("preset", SMALL)
def test_each_parameter_has_the_rate_of_its_depth(preset: str, optimiser: Any) -> None:
    model = on_meta(presets.get(preset))
    (depth,) = {len(part.block) for part in model.children() if hasattr(part, "block")}
    options = {"lr": 2.0, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    made = optimiser(model, **options, rates=layer_rates(model, 0.5))
    found = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert sum(len(group["params"]) for group in made.param_groups) == len(named)
    for name, parameter in named.items():
        assert found[id(parameter)] == pytest.approx(2.0 * expected(name, depth, 0.5)), name
    one, other = (
        {id(p): group["weight_decay"] for group in each.param_groups for p in group["params"]}
        for each in (made, optimiser(model, **options))
    )
    assert one == other


def test_encoder_and_decoder_count_their_own_blocks() -> None:
    config = presets.get("transformer-tiny")
    model = on_meta(replace(config, decoder=replace(config.decoder, depth=5)))
    rates = layer_rates(model, 0.5)
    first, last = (model.encoder.block[n].feed_forward.up.weight for n in (0, -1))
    assert (rates[id(first)], rates[id(last)]) == (0.5 ** len(model.encoder.block), 0.5)
    first, last = (model.decoder.block[n].cross_attention.query.weight for n in (0, -1))
    assert (rates[id(first)], rates[id(last)]) == (0.5**5, 0.5)


def test_a_step_is_as_long_as_its_rate() -> None:
    """Adam's first step moves each weight by its rate, whatever the gradient."""
    model = heedful.create("vit-micro", seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = adamw(model, lr=0.01, eps=1e-30, weight_decay=0.0, rates=layer_rates(model, 0.5))
    model(torch.randn(2, 1, 28, 28)).square().sum().backward()
    optimiser.step()
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).abs().max().item()
        assert moved == pytest.approx(0.01 * expected(name, len(model.encoder.block), 0.5), rel=1e-3), name


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_the_log_tells_the_highest_rate(tmp_path: Path, optimiser: str) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(20)), encoding="utf-8")
    asked = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--max-steps=2"]
    asked += ["--tuning.layer-decay=0.5", "--training.schedule=constant", "--training.warmup=0", "--training.lr=1e-3"]
    run = ["train", "text-classification", "--train", str(data), "--out", str(tmp_path / "out"), *asked]
    assert cli.main([*run, f"--training.optimiser={optimiser}", "--json"]) == 0
    lines = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["lr"] for line in lines} == {1e-3}
