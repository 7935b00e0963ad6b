"""The adapted map by hand, and adapters on whole models: what is frozen, trained, merged, refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import heedful
from heedful.adapters import LoraConfig, LowRank, add_adapter, attach, low_rank_parts, merge, remove, train_whole
from heedful.config import DecoderConfig, EmbeddingConfig, EncoderConfig, StackConfig
from heedful.errors import HeedfulError
from heedful.layers.linear import Linear
from tolerances import assert_close

STACK = StackConfig(dim=16, depth=2, heads=4)
IDS = torch.tensor([[5, 7, 9, 11], [6, 8, 10, 12]])


def encoder(**changes: object) -> heedful.Encoder:
    config = EncoderConfig(embedding=EmbeddingConfig(vocab_size=23), encoder=replace(STACK, **changes))
    return heedful.create(config, seed=0).eval()


def adapted(rank: int = 2, **given: object) -> LowRank:
    made = LowRank(
        nn.Linear(5, 3), nn.Parameter(torch.randn(rank, 5)), nn.Parameter(torch.randn(3, rank)), alpha=6.0, **given
    )
    return made.double()


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 4), (True, 6 / 2)])
def test_it_computes_its_equation(rslora: bool, scale: float) -> None:
    part = adapted(4, rslora=rslora)
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    expected = torch.empty(2, 7, 3, dtype=torch.float64)
    for i in range(2):
        for t in range(7):
            low = part.lora_b @ (part.lora_a @ x[i, t])
            expected[i, t] = part.weight @ x[i, t] + part.bias + scale * low
    assert_close(part(x), expected, "layer")
    merged = part.merged()
    assert type(merged) is Linear
    assert_close(merged(x), expected, "layer")
    assert part.base().weight is part.weight
    assert_close(part.base()(x), expected - scale * (x @ part.lora_a.T @ part.lora_b.T))


@torch.no_grad()
def test_dropout_is_of_the_adapters_input_alone() -> None:
    part = adapted(dropout=0.5).train()
    x = torch.ones(20_000, 5, dtype=torch.float64)
    base, added = part.base()(x), part.eval()(x) - part.base()(x)
    low = part.train()(x) - base
    assert low.std(0).min() > 0
    torch.testing.assert_close(low.mean(0), added[0], rtol=0, atol=float(low.std() * 5 / 20_000**0.5))
    assert torch.equal(part.eval()(x), part.eval()(x))


def test_the_adapter_may_be_finer_than_its_map() -> None:
    part = adapted().float()
    part.weight.data, part.bias.data = part.weight.data.bfloat16(), part.bias.data.bfloat16()
    x = torch.randn(4, 5).bfloat16()
    assert part(x).dtype == torch.bfloat16
    low = part.scale * (x.float() @ part.lora_a.T @ part.lora_b.T)
    assert_close(part(x).float(), (part.base()(x) + low.bfloat16()).float())
    exact = part.weight.double() + part.scale * part.lora_b.double() @ part.lora_a.double()
    assert torch.equal(part.merged().weight, exact.bfloat16())


def test_only_the_adapter_learns() -> None:
    model = encoder()
    plain = model(IDS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert add_adapter(model, LoraConfig(rank=2), seed=0) is model
    assert torch.equal(model(IDS), plain)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    paths = [f"encoder.block.{i}.attention.{name}" for i in range(2) for name in ("query", "value")]
    assert trained == {f"{path}.lora_{which}" for path in paths for which in "ab"}
    assert list(low_rank_parts(model)) == paths
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # in the first step A has no gradient: B is zero
        model(IDS).square().sum().backward()
        optimiser.step()
    grown = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert grown == trained
    after = model.state_dict()
    assert before.keys() < after.keys(), "the map's own names stay"
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not torch.equal(model(IDS), plain)
    assert torch.equal(remove(model)(IDS), plain)
    assert model.state_dict().keys() == before.keys()


def test_a_seed_draws_the_same_and_leaves_the_rest_alone() -> None:
    state = torch.get_rng_state()
    one, other = (add_adapter(encoder(), LoraConfig(rank=3), seed=7).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], other[name]) for name in one)
    a = one["encoder.block.0.attention.query.lora_a"]
    assert a.abs().max() <= 16**-0.5
    assert not torch.equal(a, one["encoder.block.1.attention.query.lora_a"])


@pytest.mark.parametrize(
    ("targets", "count"),
    [(("query",), 2), (("down", "out"), 4), (("all",), 12), (("all", "query"), 12)],
    ids=str,
)
def test_targets(targets: tuple[str, ...], count: int) -> None:
    model = add_adapter(encoder(), LoraConfig(targets=targets))
    assert len(low_rank_parts(model)) == count
    merge(model)
    assert not any(isinstance(part, LowRank) for part in model.modules())


def test_gates_and_cross_attention_have_theirs() -> None:
    gated = add_adapter(encoder(gated=True), LoraConfig(targets=("gate",)))
    assert [path.rpartition(".")[2] for path in low_rank_parts(gated)] == ["gate", "gate"]
    crossed = add_adapter(heedful.create("transformer-tiny"), LoraConfig(targets=("key",)))
    assert sum("cross_attention" in path for path in low_rank_parts(crossed)) == crossed.config.decoder.depth


def test_maps_that_the_layout_stores_as_one_share_their_a() -> None:
    model = encoder()
    model.folder.fused = [
        [f"encoder.block.{i}.attention.{name}" for name in ("query", "key", "value")] for i in range(2)
    ]
    add_adapter(model, LoraConfig(targets=("query", "out")))
    first = model.encoder.block[0].attention
    assert first.query.lora_a is first.key.lora_a is first.value.lora_a
    assert first.query.lora_b is not first.key.lora_b
    assert first.out.lora_a is not first.query.lora_a
    assert first.query.lora_a is not model.encoder.block[1].attention.query.lora_a
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * 8 * (16 + 3 * 16 + 16 + 16)


def test_impossible_adapters_are_refused() -> None:
    for config, words in (
        (LoraConfig(targets=("gate",)), "no linear map 'gate'"),
        (LoraConfig(targets=("qury",)), "did you mean 'query'?"),
        (LoraConfig(targets=()), "no targets"),
    ):
        with pytest.raises(HeedfulError, match=words) as error:
            add_adapter(encoder(), config)
        assert "\n" not in str(error.value)
    with pytest.raises(HeedfulError, match="already has an adapter"):
        add_adapter(add_adapter(encoder(), LoraConfig()), LoraConfig())
    with pytest.raises(HeedfulError, match="not store the statistics of batch norm"):
        add_adapter(encoder(norm="batch"), LoraConfig())
    model = encoder()
    model.fresh = ["embedding.token.weight"]
    with pytest.raises(HeedfulError, match=r"embedding\.token\.weight has newly initialised weights"):
        add_adapter(model, LoraConfig())
    for wrong in ({"rank": 0}, {"dropout": 1.0}):
        with pytest.raises(HeedfulError):
            LoraConfig(**wrong)
    for take in (merge, remove):
        with pytest.raises(HeedfulError, match="no adapter"):
            take(encoder())
    with pytest.raises(HeedfulError, match="no adapter"):
        train_whole(encoder(), ["embedding.token.weight"])


def test_only_linear_maps_get_an_adapter() -> None:
    """A wrong path is refused before the model changes."""
    model, pair = encoder(), (torch.ones(2, 16), torch.ones(16, 2))
    before = repr(model)
    for wrong in ("encoder.block.0.attention", "encoder.block.0.attention.qury"):
        pairs = {"encoder.block.0.attention.query": pair, wrong: pair}
        with pytest.raises(HeedfulError, match=rf"no linear map '{re.escape(wrong)}' for an adapter; did you mean"):
            attach(model, LoraConfig(rank=2), pairs, ())
        assert repr(model) == before


def test_a_tied_map_is_not_merged() -> None:
    """Its weight is the embedding's too, which is to stay."""
    config = DecoderConfig(embedding=EmbeddingConfig(vocab_size=23), decoder=replace(STACK, causal=True))
    model = heedful.create(config, seed=0)
    output = model.head.output
    assert output.weight is model.embedding.token.weight
    add_adapter(model, LoraConfig())
    model.head.output = LowRank(output, nn.Parameter(torch.ones(2, 16)), nn.Parameter(torch.ones(23, 2)), alpha=1.0)
    with pytest.raises(HeedfulError, match=r"head\.output shares its weight"):
        merge(model)
    assert isinstance(model.head.output, LowRank)


def test_configurations_that_cannot_be() -> None:
    assert LoraConfig(targets="all").targets == ("all",)  # type: ignore[arg-type]  # what people write
    for rank in (0, 8.5, "8"):
        with pytest.raises(heedful.HeedfulError, match=r"rank must be (a whole number|at least 1), not"):
            LoraConfig(rank=rank)  # type: ignore[arg-type]
