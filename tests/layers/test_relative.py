"""Positions that depend on queries and keys, against their papers' equations written out and published code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import XLNetConfig
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

import heedful
from heedful.config import (
    ConvolutionConfig,
    DisentangledPosition,
    EmbeddingConfig,
    EncoderConfig,
    SequenceHead,
    ShawPosition,
    StackConfig,
    TransformerXLPosition,
)
from heedful.inspection import intervene
from heedful.kernels import using
from heedful.kernels.fused_projections import FusedAttention, plain_linear
from heedful.layers import relative
from heedful.layers.position import PositionScheme, RelativeEncoding, log_bucket
from heedful.models.deberta import first_block_of
from heedful.stack import Stack
from relative_schemes import CONTENT, OTHER_CONTENT
from tolerances import assert_close

SCHEMES = pytest.mark.parametrize("position", [*CONTENT, *OTHER_CONTENT], ids=repr)
B, T, D, H, E = 2, 6, 12, 3, 4


def stack_of(position: Any, depth: int = 1, **changes: Any) -> Stack:
    torch.manual_seed(0)
    config = StackConfig(dim=D, depth=depth, heads=H, position=position, **changes)
    stack = Stack(config, first_block_of(config)).double().eval()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.4)
    return stack


def attended(stack: Stack, x: Tensor, mask: Any = None) -> Tensor:
    """The output of the first attention for its input ``x`` (B, T, D)."""
    positions = torch.arange(x.size(1))[None]
    attention: Any = stack.block[0].attention
    return attention(x, mask=mask, position=stack.encoding(positions, positions))


def split(linear: nn.Module, x: Tensor) -> Tensor:
    return linear(x).unflatten(-1, (H, E)).transpose(1, 2)  # (B, H, T, E)


@pytest.mark.parametrize("heads", ["own", "shared"])
@pytest.mark.parametrize("values", [True, False])
def test_shaw_by_its_equations(heads: Any, values: bool) -> None:
    """Equations 3 and 4 with a row for each pair of tokens."""
    k = 2
    stack, x = stack_of(ShawPosition(distance=k, heads=heads, values=values)), torch.randn(B, T, D).double()
    attention: Any = stack.block[0].attention
    p = torch.arange(T)
    clipped = (p[:, None] - p).clamp(-k, k) + k  # ours counts query − key

    def rows(table: nn.Embedding | None) -> Tensor:
        if table is None:
            return torch.zeros(H, T, T, E).double()
        return table.weight[clipped].unflatten(-1, (-1, E)).movedim(2, 0).expand(H, T, T, E)

    q, key, v = (split(part, x) for part in (attention.query, attention.key, attention.value))
    keys = key[:, :, None] + rows(attention.relative.key)  # (B, H, T, S, E)
    scores = torch.einsum("bhte,bhtse->bhts", q, keys) / E**0.5
    y = torch.einsum("bhts,bhtse->bhte", scores.softmax(-1), v[:, :, None] + rows(attention.relative.value))
    assert_close(attended(stack, x), attention.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("biases", ["layer", "stack"])
def test_transformer_xl_is_xlnets_attention(biases: Any) -> None:
    """XLNet's attention without segments is Transformer-XL's, both ways, with its own shift of the products."""
    stack, x = stack_of(TransformerXLPosition(biases=biases)), torch.randn(B, T, D).double()
    ours: Any = stack.block[0].attention
    theirs = XLNetRelativeAttention(XLNetConfig(d_model=D, n_head=H, d_inner=8, dropout=0.0)).double().eval()
    part: Any = ours.relative.biases or stack.position.biases
    pairs = ((theirs.q, ours.query), (theirs.k, ours.key), (theirs.v, ours.value), (theirs.r, ours.relative.position))
    with torch.no_grad():
        for weight, linear in pairs:
            weight.copy_(linear.weight.T.unflatten(-1, (H, E)))
            if linear.bias is not None:
                linear.bias.zero_()
        theirs.r_w_bias.copy_(part.content)
        theirs.r_r_bias.copy_(part.position)
    distances = torch.arange(T, -T, -1.0)[:, None]  # from far before to far after, as XLNet counts
    angle = distances * 10000 ** (-torch.arange(0, D, 2) / D)
    rows = torch.cat((angle.sin(), angle.cos()), -1).double()[:, None].expand(-1, B, -1)
    q, k, v = (torch.einsum("tbd,dhe->tbhe", x.transpose(0, 1), w) for w in (theirs.q, theirs.k, theirs.v))
    r = torch.einsum("tbd,dhe->tbhe", rows, theirs.r)
    expected = theirs.rel_attn_core(q, k, v, r)  # (T, B, H, E)
    expected = ours.out(expected.transpose(0, 1).flatten(2))
    torch.testing.assert_close(attended(stack, x), expected, atol=1e-6, rtol=0)  # their sinusoids are float32


@SCHEMES
@pytest.mark.parametrize("fused", [False, True])
def test_an_attention_alone_computes_its_positions_under_every_mask(position: Any, fused: bool) -> None:
    stack, x = stack_of(position), torch.randn(B, T, D).double()
    attention: Any = stack.block[0].attention
    if fused:
        attention = FusedAttention(attention, plain_linear)
    p = torch.arange(T)[None]
    encoding, expected = stack.encoding(p, p), attended(stack, x)
    assert_close(attention(x, position=encoding), expected)
    # a causal query attends to the tokens up to itself, as the last query of a shorter text does
    prefixes = [attended(stack, x[:, :length])[:, -1:] for length in range(1, T + 1)]
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    for mask in ("causal", allowed, allowed[None, None]):
        assert_close(attention(x, mask=mask, position=encoding), torch.cat(prefixes, 1))


@SCHEMES
def test_a_causal_block_alone_is_causal(position: Any) -> None:
    stack, x, p = stack_of(position, causal=True), torch.randn(B, T, D).double(), torch.arange(T)[None]
    own = stack.encoding(p, p)
    expected = stack.block[0](x, mask="causal", position=own)
    assert_close(stack.block[0](x, position=own), expected)
    changed = x.clone()
    changed[:, -1] += 1
    assert_close(stack.block[0](changed, position=own)[:, :-1], expected[:, :-1])


def test_few_queries_are_projected_in_place_of_the_rows() -> None:
    layer: Any = stack_of(TransformerXLPosition()).block[0].attention.relative
    shared = (torch.randn(40, D).double(), None)
    few, many = (layer.terms(shared, None, queries) for queries in (1, 100))
    assert few.query_map is not None
    assert many.query_map is None
    q = torch.randn(B, H, 2, E).double()
    results = [relative.query_products(q, 1.0, terms) for terms in (few, many)]
    assert_close(results[0], results[1])


@pytest.mark.parametrize(("buckets", "largest"), [(256, 512), (8, 32), (5, 20), (32, 40), (4, 600)])
def test_buckets_are_debertas(buckets: int, largest: int) -> None:
    distances = torch.arange(-700, 701)
    theirs = modeling_deberta_v2.make_log_bucket_position(distances, buckets, largest)
    assert torch.equal(log_bucket(distances, buckets, largest), theirs.long())


@pytest.mark.parametrize("name", ["shaw", "transformer-xl", "disentangled", "alibi"])
def test_by_name(name: str) -> None:
    config = StackConfig(dim=D, depth=1, heads=H, position=name)  # type: ignore[arg-type]
    assert config.position.kind == name
    assert StackConfig.from_dict(config.to_dict()) == config


def test_names_that_need_more() -> None:
    with pytest.raises(heedful.HeedfulError, match=r"'learned' has no default length; give LearnedPosition\(length="):
        StackConfig(dim=D, depth=1, heads=H, position="learned")  # type: ignore[arg-type]
    with pytest.raises(heedful.HeedfulError, match="buckets is 3"):
        DisentangledPosition(buckets=3)


# ------------------------------------------------------------------------------------------- blocks of queries


@SCHEMES
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_give_what_the_whole_gives(position: Any, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients, in blocks of sequences and of queries, and recomputed for the backward pass."""
    gap = [True, True, False, False, False, True]  # the distance of its ends is 2, unlike in other rows
    real = torch.tensor([[True] * T, [False] * 2 + [True] * (T - 2), gap]) if padded else None
    stack, x = stack_of(position, causal=True, kv_heads=1, depth=2), torch.randn(3, T, D).double()

    def learned() -> list[Tensor]:
        y = stack(x, real) if real is None else stack(x, real)[real]
        stack.zero_grad()
        (y * torch.linspace(1, 2, y.numel()).view_as(y)).sum().backward()
        return [y.detach(), *(p.grad.clone() for p in stack.parameters() if p.grad is not None)]

    whole = learned()
    for block, stored in ((2 * H * T * T, 512), (2 * H * T, 512), (2 * H * T, 2), (1, 2)):
        monkeypatch.setitem(relative.BLOCK, "cpu", block)
        monkeypatch.setattr("heedful.layers.row_layout.STORED", stored)
        monkeypatch.setattr(relative, "STORED_INDEX", block)
        for found, expected in zip(learned(), whole, strict=True):
            assert_close(found, expected)


@SCHEMES
def test_no_tensor_holds_the_scores_of_all_queries(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(relative.BLOCK, "cpu", 2**17)
    monkeypatch.setattr(relative, "STORED_INDEX", 2**17)

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            y = function(*args, **(kwargs or {}))
            for tensor in y if isinstance(y, tuple | list) else [y]:
                if isinstance(tensor, Tensor):
                    self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
            return y

    length = 600
    stack, x = stack_of(position, causal=True).float(), torch.randn(1, length, D)
    for parameter in stack.parameters():
        parameter.grad = None
    with Largest() as largest:
        stack(x).sum().backward()
    assert largest.size < H * length**2 / 3


@SCHEMES
@torch.no_grad()
def test_classifiers_compute_one_query_in_the_last_block(position: Any) -> None:
    """The terms of that query alone, in rows of different lengths."""
    stack = StackConfig(dim=D, depth=2, heads=H, position=position)
    embedding = EmbeddingConfig(vocab_size=20)
    model = heedful.create(EncoderConfig(embedding=embedding, encoder=stack, head=SequenceHead(labels=3)), seed=0)
    for parameter in model.eval().double().parameters():
        nn.init.normal_(parameter, std=0.4)
    ids, real = torch.randint(0, 20, (3, T)), torch.arange(T) < torch.tensor([[T], [2], [4]])
    y = model(ids, real)
    with using(model, "cpu-inference"):
        assert_close(model(ids, real), y)


# ---------------------------------------------------------------------------------------- recorded and changed


@SCHEMES
@torch.no_grad()
def test_the_recorded_pattern_is_the_one_used(position: Any) -> None:
    stack, x = stack_of(position), torch.randn(B, T, D).double()
    attention: Any = stack.block[0].attention
    with heedful.record(stack, ["pattern", "scores", "value", "mixed", "attention.output"]) as seen:
        y = stack(x)
    assert torch.equal(y, stack(x))
    pattern, mixed = seen["block.0.attention.pattern"], seen["block.0.attention.mixed"]
    assert_close(pattern, seen["block.0.attention.scores"].softmax(-1))
    y = pattern @ seen["block.0.attention.value"]
    if getattr(attention.relative, "value", None) is not None:
        p, k = torch.arange(T), position.distance
        rows = attention.relative.value.weight[(p[:, None] - p).clamp(-k, k) + k].unflatten(-1, (-1, E))  # (T, S, H, E)
        y = y + torch.einsum("bhts,tshe->bhte", pattern, rows.expand(T, T, H, E))
    assert_close(y, mixed)


@SCHEMES
@torch.no_grad()
def test_changed_queries_keys_and_patterns(position: Any) -> None:
    """The terms follow the changed tensors; a pattern changed to itself changes nothing."""
    stack, x = stack_of(position), torch.randn(B, T, D).double()
    y, attention = stack(x), stack.block[0].attention
    with intervene(stack, "block.0.attention.pattern", lambda pattern: pattern):
        assert_close(stack(x), y)
    for name, linear in (("query", attention.query), ("key", attention.key)):
        if name == "query" or not isinstance(position, DisentangledPosition):  # its rows pass the same maps
            before = linear.weight.clone(), linear.bias.clone()
            with intervene(stack, f"block.0.attention.{name}", lambda tensor: 2 * tensor):
                changed = stack(x)
            if getattr(position, "projections", "own") == "own":
                linear.weight.mul_(2), linear.bias.mul_(2)
                assert_close(changed, stack(x))
                linear.weight.copy_(before[0]), linear.bias.copy_(before[1])
            assert (changed - y).abs().max() > 1e-3


@SCHEMES
@torch.no_grad()
def test_the_terms_add_up_to_the_scores(position: Any) -> None:
    stack, x = stack_of(position, kv_heads=1), torch.randn(B, T, D).double()
    with heedful.record(stack, [*relative.TERMS[:3], "scores"], heads=[2, 0], queries=[-1, 1]) as seen:
        stack(x)
    content, c2p, p2c, scores = (seen[f"block.0.attention.{name}"] for name in (*relative.TERMS[:3], "scores"))
    assert_close(content + c2p + p2c, scores)
    has_p2c = getattr(position, "terms", "c2p") in ("both", "p2c")
    assert bool(p2c.any()) == has_p2c
    assert bool(c2p.any()) == (getattr(position, "terms", "c2p") != "p2c")
    with (
        pytest.raises(heedful.HeedfulError, match="c2p can be recorded, but not changed"),
        intervene(stack, "block.0.attention.c2p", lambda tensor: tensor),
    ):
        pass


def test_a_registered_scheme_with_a_part_in_each_layer() -> None:
    """A learned query for each layer that looks at distances alone."""

    class Layer(relative.RelativeLayer):
        def __init__(self, config: StackConfig) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(1, 3, config.dim // config.heads))

        def terms(self, shared: Any, project: Any, queries: int) -> relative.Terms:
            return relative.Terms(query_rows=self.rows * shared)

    class Scheme(PositionScheme):
        layer = Layer

        def __init__(self, config: StackConfig) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def prepare(self, queries: Tensor, keys: Tensor) -> Any:
            table = torch.tensor([0, 1, 2])
            return RelativeEncoding(relative.Distances(queries, keys, -1, table), self.factor)

    heedful.register("position", "own-relative", Scheme)
    stack, x = stack_of("own-relative"), torch.randn(B, T, D).double()
    attention: Any = stack.block[0].attention
    q, k, v = (split(part, x) for part in (attention.query, attention.key, attention.value))
    p = torch.arange(T)
    rows = attention.relative.rows[0][(p[:, None] - p).clamp(-1, 1) + 1] * stack.position.factor
    scores = (q @ k.mT + torch.einsum("bhte,tse->bhts", q, rows)) / E**0.5
    expected = attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    assert_close(attended(stack, x), expected)
    heedful.register("position", "own-relative", PositionScheme)  # without a part of its own
    assert relative.relative_layer_of(StackConfig(dim=D, depth=1, heads=H, position="own-relative")) is None  # type: ignore[arg-type]


def test_values_need_a_softmax() -> None:
    heedful.register("attention", "doubled", lambda q, k, v, bias, scale, dropout: 2 * v)
    with pytest.raises(heedful.HeedfulError, match=r"'doubled' mixes values .* ShawPosition\(values=False\)"):
        stack_of("shaw", attention="doubled")


def test_dropout_drops_elements_of_the_rows() -> None:
    """DeBERTa's position rows drop out in each layer, at the rate of the embedding."""
    layer = relative.DisentangledLayer(DisentangledPosition(projections="own"), D, H, E, dropout=0.5).train()
    assert layer.key is not None
    nn.init.eye_(layer.key.weight)
    nn.init.zeros_(layer.key.bias)
    rows = layer.terms(torch.ones(1000, D), lambda rows: (rows, rows), 1).query_rows
    assert rows is not None
    assert rows.unique().tolist() == [0, 2]
    assert rows.mean().item() == pytest.approx(1, abs=0.1)


@SCHEMES
@torch.no_grad()
def test_a_registered_attention_gets_the_terms_as_its_bias(position: Any) -> None:
    def softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float) -> Tensor:
        return (scale * q @ k.mT + bias).softmax(-1) @ v

    heedful.register("attention", "own-softmax", softmax)
    if getattr(position, "values", False):
        return
    x = torch.randn(B, T, D).double()
    own, plain = stack_of(position, attention="own-softmax"), stack_of(position)
    assert_close(own(x), plain(x))


@SCHEMES
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_and_autocast(position: Any, dtype: torch.dtype) -> None:
    stack, x = stack_of(position, depth=2), torch.randn(B, T, D).double()
    y = stack(x)
    tolerance = 1e-4 if dtype is torch.float32 else 0.3
    torch.testing.assert_close(stack.to(dtype)(x.to(dtype)).double(), y, atol=tolerance, rtol=tolerance)
    with torch.autocast("cpu", torch.bfloat16), heedful.record(stack.float(), "pattern") as seen:
        torch.testing.assert_close(stack(x.float()).double(), y, atol=0.3, rtol=0.3)
    assert all(pattern.dtype is torch.float32 for pattern in seen.values())


@SCHEMES
def test_dropout_in_training_plans_drops_as_often_as_elsewhere(position: Any) -> None:
    """With dropout the training plan's blocked kernel computes the biased scores."""
    rates = heedful.config.DropoutRates(attention=0.5)
    stack = stack_of(position, dropout=rates).train()
    x = torch.randn(1, T, D).double().expand(400, -1, -1)
    with using(stack, "cpu-training"):
        trained = attended(stack, x).mean(0)
    expected = attended(stack.eval(), x)[0]
    assert (trained - expected).abs().max() < 0.35 * expected.abs().max()


# ----------------------------------------------------------------------------------- a convolution beside a block


@torch.no_grad()
@pytest.mark.parametrize("plan", ["plain", "cpu-training", "cpu-inference"])
def test_a_convolution_reads_its_own_text_alone(plan: str) -> None:
    """The same alone, padded on either side and packed."""
    config = ConvolutionConfig(size=5, activation="tanh")
    stack = stack_of(CONTENT[2], depth=2, convolution=config, placement="post")
    texts = [torch.randn(1, length, D).double() for length in (4, 2, 1)]
    x = torch.randn(2, 8, D).double()
    x[0, 1:5], x[0, 5:7], x[0, 7:], x[1, 3:7] = texts[0][0], texts[1][0], texts[2][0], texts[0][0]
    numbers = torch.tensor([[0, 1, 1, 1, 1, 2, 2, 3], [0, 0, 0, 1, 1, 1, 1, 0]])
    with using(stack, plan):
        packed, padded = stack(x, numbers), stack(x[1:], numbers[1:].bool())
    for place, text in zip((slice(1, 5), slice(5, 7), slice(7, 8)), texts, strict=True):
        assert_close(packed[0, place], stack(text)[0])
    assert_close(padded[0, 3:7], stack(texts[0])[0])
    assert (stack(texts[0]) - stack_of(CONTENT[2], depth=2, placement="post")(texts[0])).abs().max() > 0.1


@pytest.mark.parametrize("changes", [{"causal": True}, {"block": "parallel-here"}])
def test_a_convolution_is_for_encoders_of_standard_blocks(changes: Any) -> None:
    heedful.register("block", "parallel-here", heedful.Block)
    with pytest.raises(heedful.HeedfulError, match="convolution reads the tokens around each"):
        StackConfig(dim=D, depth=1, heads=H, convolution=ConvolutionConfig(), **changes)


def test_a_stack_alone_says_where_its_convolution_is() -> None:
    with pytest.raises(heedful.HeedfulError, match=r"convolution beside its first .*ConvolutionBlock"):
        Stack(StackConfig(dim=D, depth=1, heads=H, convolution=ConvolutionConfig()))
