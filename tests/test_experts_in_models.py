"""Models with a mixture of experts: training, decoding, kernels, inspection and export."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import heedful
from heedful.adapters import LoraConfig, add_adapter, merge
from heedful.config import DecoderConfig, ExpertsConfig
from heedful.errors import HeedfulError
from heedful.inspection import ablate, prune
from heedful.kernels import apply_plan
from heedful.layers.experts import Experts, Router
from heedful.models import Model
from heedful.training.router_loss import recording_routers
from tolerances import assert_close

IDS = torch.tensor([[5, 7, 9, 11], [6, 8, 10, 12]])


def config_of(preset: str = "gpt-micro", **options: Any) -> Any:
    config = heedful.presets.get(preset)
    name = "decoder" if isinstance(config, DecoderConfig) else "encoder"
    experts = ExpertsConfig(**{"number": 4, "per_token": 2, **options})
    return replace(config, **{name: replace(getattr(config, name), experts=experts)})


def model_of(preset: str = "gpt-micro", **options: Any) -> Model:
    model = heedful.create(config_of(preset, **options), seed=0).eval()
    for part in model.modules():  # else a router of small weights gives its experts equal shares
        if isinstance(part, Router):
            torch.nn.init.normal_(part.weight, generator=torch.Generator().manual_seed(0))
    return model


def test_summary_counts_active_parameters_and_operations() -> None:
    dense, sparse = heedful.summary("gpt-micro"), heedful.summary(config_of(per_token=1))
    router = 4 * 4 * 128  # in four blocks
    expert = 2 * 128 * 512 + 512 + 128
    assert sparse.parameters == dense.parameters + 4 * 3 * expert + router
    assert sparse.active == dense.active + router == dense.parameters + router
    assert sparse.flops == dense.flops + 2 * 64 * router
    assert f"{sparse.active:,} active for a token" in str(sparse)
    assert "active" not in str(dense)


@torch.no_grad()
def test_decoding_with_a_cache_equals_decoding_without() -> None:
    model = model_of()
    out = model.generate(IDS, max_new_tokens=6, do_sample=False)
    for length in range(4, 10):
        assert torch.equal(model(out[:, :length])[:, -1].argmax(-1), out[:, length])
    static = model.generate(IDS, max_new_tokens=6, do_sample=False, cache_implementation="static")
    assert torch.equal(static, out)
    padded = torch.nn.functional.pad(IDS, (2, 0))
    same = model.generate(padded, padded > 0, max_new_tokens=6, do_sample=False)
    assert torch.equal(same[:, -6:], out[:, -6:])


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_optimised_for_inference(dtype: str) -> None:
    model = model_of()
    expected = model(IDS)
    fast = heedful.optimize(model_of(), dtype=dtype)
    assert type(fast.decoder.block[0].feed_forward.router) is Router  # it is small, and decides
    assert (fast(IDS) - expected).abs().max() <= {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.1}[
        dtype
    ] * expected.abs().max()
    out = fast.generate(IDS, max_new_tokens=6, do_sample=False)
    if dtype == "float32":
        assert torch.equal(out, model.generate(IDS, max_new_tokens=6, do_sample=False))


def test_compiled_training_has_the_same_loss_and_gradients() -> None:
    results = []
    for compiled in (False, True):
        model = model_of(balance=1.0).train()
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with recording_routers(model) as router_loss:
            loss = call(IDS).square().mean() + router_loss()
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    assert_close(results[1][0], results[0][0], "forward")
    for name, gradient in results[0][1].items():
        assert_close(results[1][1][name], gradient, "gradient")


def test_recorded_router_shows_the_choice_and_may_be_changed() -> None:
    model = model_of(number=3, per_token=1)
    with heedful.record(model, "router", layers=[1]) as seen:
        model(IDS)
    (path, weights), *rest = seen.items()
    assert (path, rest) == ("decoder.block.1.feed_forward.router", [])
    assert weights.shape == (2, 4, 3)
    assert torch.equal(weights.sum(-1), torch.ones(2, 4))
    first = torch.tensor([1.0, 0.0, 0.0]).expand(2, 4, 3)
    with heedful.intervene(model, path, lambda _: first), heedful.record(model, "feed_forward.output") as seen:
        model(IDS)
    forced = model.decoder.block[1].feed_forward.expert[0]
    block = model.decoder.block[1]
    with heedful.record(model, "attention_residual.sum", layers=[1]) as sums:
        model(IDS)
    expected = forced(block.feed_forward_residual.before(sums["decoder.block.1.attention_residual.sum"]))
    assert_close(seen["decoder.block.1.feed_forward.output"], expected, "forward")


def test_pruned_units_of_experts() -> None:
    model = model_of()
    every = {f"block.{i}.feed_forward.expert.{e}": [0, 1] for i in range(4) for e in range(4)}
    small = prune(model, units=every)
    assert small.config.decoder.ff_dim == 510
    with torch.no_grad():
        for path in every:
            expert: Any = model.get_submodule(f"decoder.{path}")
            expert.down.weight[:, :2] = 0
        assert_close(small(IDS), model(IDS), "forward")
    assert len(prune(model, layers=[1]).decoder.block) == 3
    with pytest.raises(HeedfulError, match="some blocks of the decoder have experts, by their numbers"):
        prune(model_of(step=2), layers=[1])


def test_ablation_leaves_experts_whole() -> None:
    model = model_of()
    loss = lambda: torch.nn.functional.cross_entropy(model(IDS)[0, :-1], IDS[0, 1:])  # noqa: E731
    assert ablate(model, loss, "layers").change["decoder"].shape == (4,)
    with pytest.raises(HeedfulError, match="no tensor 'activation'"):
        ablate(model, loss, "units")


def test_adapters_on_experts_but_not_on_the_router() -> None:
    model = add_adapter(model_of(), LoraConfig(rank=2, targets=("all",)))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any(".feed_forward.expert.3.down.lora_b" in name for name in trained)
    assert not any("router" in name for name in trained)
    expected = model(IDS)
    assert_close(merge(model)(IDS), expected, "forward")


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = model_of("bert-tiny")
    model.save_pretrained(tmp_path)
    again = heedful.from_pretrained(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(IDS), model(IDS))


def test_recomputed_activations_have_the_same_gradients() -> None:
    from heedful.kernels.plan import apply_training_plan

    gradients: list[dict[str, Tensor]] = []
    for recompute in (False, True):
        model = apply_training_plan(model_of(balance=1.0).train(), "plain", recompute=recompute)
        with recording_routers(model) as router_loss:
            loss = model(IDS).square().mean() + router_loss()
        loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    tree_map(lambda one, other: assert_close(one, other, "gradient"), *gradients)


def test_an_encoder_of_cpu_plans_reads_as_the_plain_one() -> None:
    model, mask = model_of("bert-tiny"), torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    with torch.no_grad():
        expected = model(IDS, mask)[mask]
        for plan in ("cpu-inference", "cpu-training", "gpu", "export"):
            assert_close(apply_plan(model, plan)(IDS, mask)[mask], expected, "forward")
    assert any(isinstance(part, Experts) for part in model.modules())


TEXT = "the quick brown fox jumps over the lazy dog and runs away from it\n" * 60


def losses_of(out: Path, **options: Any) -> tuple[Model, list[float]]:
    """Trains for three steps; returns the model and the losses in the log."""
    data = out.parent / "text.txt"
    data.write_text(TEXT)
    model = {"dim": 32, "depth": 2, "heads": 2, "experts": 4, "experts_per_token": 1, **options.pop("model", {})}
    training = {"log_every": 1, "batch_size": 4, "warmup": 0, **options.pop("training", {})}
    run = heedful.train(
        "text-generation",
        data,
        out=out,
        preset="gpt-micro",
        max_steps=3,
        seed=0,
        quiet=True,
        model_settings=model,
        training=training,
        **options,
    )
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return run.model, [line["loss"] for line in lines if "loss" in line]


def test_training_adds_the_balance_loss(tmp_path: Path) -> None:
    (model, plain), (_, balanced) = (losses_of(tmp_path / str(w), model={"balance": w}) for w in (0.0, 1.0))
    assert model.config.decoder.experts == ExpertsConfig(number=4, per_token=1, balance=0.0)
    assert 1.9 < balanced[0] - plain[0] < 2.6  # 1 for each block where the shares are equal
    assert balanced[1] != plain[1]


def test_settings_of_experts(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"experts_per_token.* is given for a model without experts"):
        losses_of(tmp_path / "run", model={"experts": None})


def test_the_page_runs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "experts.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, names)
    assert names["choice"].shape == (8, 33)
    assert names["loss"] > 3
