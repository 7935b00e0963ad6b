"""Blocks that share their weights: against blocks applied in turn, in training, inspection, adapters and kernels."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heedful
from compiled_calls import rows_of_steps
from heedful.adapters import LoraConfig, add_adapter, low_rank_parts, merge, remove
from heedful.cache import Cache
from heedful.config import (
    Config,
    ConvolutionConfig,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    LearnedPosition,
    RotaryPosition,
    SequenceHead,
    ShawPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.inspection import intervene
from heedful.inspection.pruning import prune
from heedful.kernels import few_rows, using
from heedful.kernels.few_rows import compiler
from heedful.pretrained import load, save
from heedful.stack import Stack, set_drop_path
from heedful.training.ceiling import flops_of
from heedful.training.engine import Alone, Sharded
from heedful.training.optimisation import adamw, layer_rates
from heedful.util.ranks import Ranks
from tolerances import assert_close, assert_same_model

SIZES: dict[str, Any] = {"dim": 16, "depth": 4, "heads": 4, "distinct_blocks": 2, "init_std": 0.3}
IDS = torch.tensor([[5, 7, 9, 11, 4], [6, 8, 10, 0, 0]])
MASK = IDS > 0


def encoder(**more: Any) -> Any:
    stack = StackConfig(**SIZES | {"placement": "post", "position": LearnedPosition(length=12)} | more)
    config = EncoderConfig(embedding=EmbeddingConfig(vocab_size=23), encoder=stack, head=SequenceHead(dropout=0.0))
    return heedful.create(config, seed=0).eval()


def decoder(**more: Any) -> Any:
    stack = StackConfig(**SIZES | {"causal": True, "position": RotaryPosition()} | more)
    return heedful.create(DecoderConfig(embedding=EmbeddingConfig(vocab_size=23), decoder=stack), seed=0).eval()


def apart(model: Any) -> Any:
    """The same model, whose blocks have copies of the weights."""
    other = encoder(distinct_blocks=None)
    other.load_state_dict(model.state_dict())
    return other


def is_shared(stack: Any) -> bool:
    """Blocks 0 and 1, and blocks 2 and 3, have the same parameters, and no other."""
    rows = [[id(p) for p in block.parameters()] for block in stack.block]
    return rows[0] == rows[1] and rows[2] == rows[3] and not {*rows[1]} & {*rows[2]}


def test_the_first_blocks_are_applied_twice() -> None:
    model = encoder()
    x = model.encoder.position.embed(model.embedding(IDS), torch.arange(5)[None])
    for index in (0, 0, 2, 2):
        x = model.encoder.block[index](x)
    assert_close(model.hidden(IDS), x)
    assert is_shared(model.encoder)


def test_parameters_count_once_and_operations_each_time() -> None:
    model = encoder()
    other = apart(model)
    block = sum(p.numel() for p in model.encoder.block[0].parameters())
    assert model.num_parameters() == other.num_parameters() - 2 * block
    ours, theirs = heedful.summary(model), heedful.summary(other)
    assert (ours.parameters, ours.flops) == (model.num_parameters(), theirs.flops)
    assert [layer.path for layer in ours.layers] == [layer.path for layer in theirs.layers]
    batch = {"ids": IDS, "mask": MASK}
    assert flops_of(model)(batch) == flops_of(other)(batch)


def test_gradients_are_sums_over_the_uses() -> None:
    model = encoder()
    other = apart(model)
    for each in (model, other):
        each.train()(IDS, MASK).square().sum().backward()
    assert_close(model(IDS, MASK), other(IDS, MASK))
    gradients = {name: p.grad for name, p in other.named_parameters()}
    for name, parameter in model.encoder.block[0].named_parameters():
        both = sum(gradients[f"encoder.block.{index}.{name}"] for index in (0, 1))
        assert_close(parameter.grad, both, "gradient")
    optimiser = adamw(model, lr=0.1)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(model.parameters()))
    optimiser.step()
    assert is_shared(model.encoder)
    rate = layer_rates(model, 0.5)[id(model.encoder.block[0].attention.out.weight)]
    assert rate == 0.5**3  # of the last block that has the weight


def test_a_model_stays_shared(tmp_path: Path) -> None:
    model = encoder()
    assert Config.from_dict(model.config.to_dict()) == model.config
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).double()):
        assert is_shared(other.encoder)
    save(model, tmp_path)
    stored = [name for name in load_file(tmp_path / "model.safetensors") if ".attention.out.weight" in name]
    assert stored == [f"encoder.block.{index}.attention.out.weight" for index in (0, 2)]
    again = load(tmp_path)
    assert is_shared(again.encoder)
    assert_same_model(again, model, IDS, MASK)
    optimiser = adamw(model, lr=0.1)
    model(IDS).sum().backward()
    optimiser.step()
    state = Alone().state(model, optimiser)
    Alone().restore(again, adamw(again, lr=0.1), state)
    assert is_shared(again.encoder)
    assert_same_model(again, model, IDS, MASK)


def test_deep_stacks_have_few_tensors(tmp_path: Path) -> None:
    model = encoder(depth=100, distinct_blocks=1)
    save(model, tmp_path)
    assert_same_model(load(tmp_path), model, IDS)


def test_each_block_is_recorded_and_changed() -> None:
    model = encoder()
    with torch.no_grad(), heedful.record(model, ["pattern", "stream"]) as seen:
        model(IDS)
    patterns = [seen[f"encoder.block.{index}.attention.pattern"] for index in range(4)]
    assert not any(torch.equal(patterns[0], other) for other in patterns[1:])
    change = intervene(model, "attention.output", 0.0, layers=[1])
    with torch.no_grad(), heedful.record(model, "stream") as changed, change:
        model(IDS)
    same = [torch.equal(seen[path], changed[path]) for path in (f"encoder.block.{index}.stream" for index in range(4))]
    assert same == [True, False, False, False]


def test_drop_path_rises_with_the_block() -> None:
    model = encoder()
    set_drop_path(model, 0.3)
    rates = [block.attention_residual.drop_path.rate for block in model.encoder.block]
    assert_close(rates, [0.0, 0.1, 0.2, 0.3])


def test_adapters_are_shared(tmp_path: Path) -> None:
    save(encoder(), tmp_path / "base")
    model = add_adapter(load(tmp_path / "base"), LoraConfig(rank=2, targets=("all",)), seed=0)
    parts = low_rank_parts(model)
    assert len(parts) == 24
    assert model.num_parameters(trainable_only=True) - sum(p.numel() for p in model.head.output.parameters()) == sum(
        part.lora_a.numel() + part.lora_b.numel() for path, part in parts.items() if ".block.1." in path
    ) * 2 + sum(p.numel() for p in model.head.pooler.parameters())
    for part in parts.values():
        torch.nn.init.normal_(part.lora_b)
    expected = model(IDS, MASK)
    save(model, tmp_path / "adapter")
    assert len([name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors") if "lora" in name]) == 24
    again = load(tmp_path / "adapter")
    assert_close(again(IDS, MASK), expected)
    assert is_shared(again.encoder)
    merged = merge(model)
    assert_close(merged(IDS, MASK), expected)
    assert is_shared(merged.encoder)
    assert_same_model(remove(again), load(tmp_path / "base"), IDS)
    assert is_shared(again.encoder)


def test_pruning() -> None:
    model = encoder(distinct_blocks=1)
    small = prune(model, heads={"attention": [1]}, units={"feed_forward": [0, 5]}, layers=[3])
    assert (small.config.encoder.depth, small.config.encoder.distinct_blocks) == (3, 1)
    whole = apart(model)
    expected = prune(whole, heads={"attention": [1]}, units={"feed_forward": [0, 5]}, layers=[3])
    assert_close(small(IDS, MASK), expected(IDS, MASK))
    refused = "blocks of the encoder share their weights; prune the same heads and units in every block"
    with pytest.raises(HeedfulError, match=refused):
        prune(model, heads={0: [1]}, pad=True)
    with pytest.raises(HeedfulError, match=refused):
        prune(encoder(), layers=[3])


@pytest.mark.parametrize("dtype", [None, "int8", "bfloat16"])
def test_optimised(dtype: Any) -> None:
    model = encoder()
    expected = heedful.optimize(apart(model), dtype)(IDS, MASK)
    fast = heedful.optimize(copy.deepcopy(model), dtype)
    assert_close(fast(IDS, MASK), expected)
    first, second, third, _ = fast.encoder.block
    assert first.attention.projections is second.attention.projections
    assert first.feed_forward.down is second.feed_forward.down
    assert first.feed_forward.down is not third.feed_forward.down
    assert fast.num_parameters() == model.num_parameters()
    with heedful.record(fast, "pattern") as seen:
        fast(IDS, MASK)
    assert len(seen) == 4


@pytest.mark.parametrize("plan", ["cpu-training", "cpu-inference"])
@pytest.mark.parametrize("position", [LearnedPosition(length=12), ShawPosition()], ids=repr)
def test_unpadded(plan: str, position: Any) -> None:
    model = encoder(position=position).train(plan == "cpu-training")
    with torch.set_grad_enabled(model.training):
        expected = model(IDS, MASK)
        with using(model, plan):
            assert_close(model(IDS, MASK), expected)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ on Linux)")
@pytest.mark.parametrize("window", [None, (None, 2)])
def test_decoding(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(window=window)
    memory = Cache(4, window=model.config.decoder.windows)
    with torch.no_grad():
        parts = [model(part, cache=memory) for part in IDS[:1].split(1, dim=1)]
        assert_close(torch.cat(parts, 1), model(IDS[:1]))
    plain = copy.deepcopy(model)
    plain.kernels = "plain"
    greedy = plain.generate(IDS, MASK, max_new_tokens=6)
    few_rows.library()
    rows = rows_of_steps(monkeypatch)
    assert torch.equal(heedful.optimize(model).generate(IDS, MASK, max_new_tokens=6), greedy)
    assert rows


def test_compiled() -> None:
    model = encoder()
    with torch.no_grad():
        assert_close(torch.compile(model, backend="aot_eager")(IDS, MASK), model(IDS, MASK))


def test_what_does_not_fit_is_refused() -> None:
    for wrong in ({"distinct_blocks": 3}, {"distinct_blocks": 2, "convolution": ConvolutionConfig()}):
        with pytest.raises(HeedfulError, match=r"stack.distinct_blocks is \d, but the depth is 4; give a divisor"):
            StackConfig(**SIZES | wrong)
    assert StackConfig(**SIZES | {"distinct_blocks": 4}).distinct_blocks is None
    assert is_shared(Stack(StackConfig(**SIZES)))
    with pytest.raises(HeedfulError, match=r"the blocks share their weights, which --training.shard cannot divide"):
        Sharded(Ranks(0, 2)).wrap(encoder(), lambda model, batch: model(batch))
