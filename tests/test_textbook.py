"""Worked numbers, counts and correct forms: what tutorials get wrong, held here to the papers' definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    NoPosition,
    PatchConfig,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.layers import (
    Attention,
    BatchNorm,
    FeedForward,
    LayerNorm,
    PatchEmbedding,
    Sinusoidal,
    TokenEmbedding,
    attention_weights,
    combine,
    explicit_attention,
    fused_attention,
    padding_mask,
)
from heedful.models import build
from heedful.models.initial_weights import initialise
from heedful.stack import Stack
from tolerances import assert_close

SCHEMES = [
    NoPosition(),
    SinusoidalPosition(),
    LearnedPosition(length=16),
    RotaryPosition(),
    AlibiPosition(),
    RelativePosition(buckets=8, max_distance=12),
]


def near(tensor: Tensor, expected: list, places: float = 5e-5) -> None:
    torch.testing.assert_close(tensor.detach(), torch.tensor(expected), atol=places, rtol=0)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def loud(model: nn.Module) -> nn.Module:
    """Every parameter drawn widely, so that nothing is too small to be seen."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def pairs(position: Position | None = None, dim: int = 16, vocab: int = 20, **changes: object) -> EncoderDecoderConfig:
    """A small encoder-decoder."""
    encoder = StackConfig(dim=dim, depth=1, heads=4, position=position or SinusoidalPosition())
    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=vocab, scale="sqrt"),
        encoder=encoder,
        decoder=replace(encoder, causal=True, cross=True, **changes),
    )


def text(position: Position, depth: int = 2) -> DecoderConfig:
    """A small decoder."""
    stack = StackConfig(dim=16, depth=depth, heads=4, causal=True, position=position)
    return DecoderConfig(embedding=EmbeddingConfig(vocab_size=20), decoder=stack)


# ------------------------------------------------------------------------------------------------------------- sinusoid


def test_sinusoid_position_2() -> None:
    near(Sinusoidal(4).embed(torch.zeros(1, 1, 4), torch.tensor([[2]]))[0, 0], [0.9093, -0.4161, 0.0200, 0.9998])
    near(Sinusoidal(300).embed(torch.zeros(1, 1, 300), torch.tensor([[2]]))[0, 0, 2:4], [0.9523, -0.3051])


@pytest.mark.parametrize("order", ["interleaved", "halves"])
def test_sinusoid_of_odd_width(order: str) -> None:
    row = Sinusoidal(5, order=order).embed(torch.zeros(1, 1, 5), torch.tensor([[3]]))[0, 0]
    waves = [f(3 / 10000 ** (2 * i / 5)) for i in range(3) for f in (math.sin, math.cos)]
    near(row, waves[:5] if order == "interleaved" else [*waves[::2], *waves[1:5:2]])


# ----------------------------------------------------------------------------------------------------------- layer norm


def test_layer_norm_divides_by_the_biased_deviation() -> None:
    near(LayerNorm(4)(torch.tensor([2.0, -1.0, 3.0, 0.0])), [0.6325, -1.2649, 1.2649, -0.6325])


# ---------------------------------------------------------------------------------------------------------------- scale


def test_scale_is_the_heads_size() -> None:
    attention = Attention(384, heads=6)
    assert attention.scale == 1 / 8
    assert attention.scale / 384**-0.5 == pytest.approx(2.449, abs=5e-4)


def test_scale_as_it_is_applied() -> None:
    """With queries and keys as they come, the weights are softmax(x xᵀ / √E), not over √D."""
    attention = Attention(8, heads=2, bias="none")
    with torch.no_grad():
        for part in (attention.query, attention.key, attention.value, attention.out):
            part.weight.copy_(torch.eye(8))
    x = torch.randn(1, 3, 8)
    heads = [F.softmax(h @ h.T / math.sqrt(4), -1) @ h for h in (x[0, :, :4], x[0, :, 4:])]
    near(attention(x)[0], torch.cat(heads, -1).tolist())


# ---------------------------------------------------------------------------------------------------------------- masks


def test_rows_of_a_padded_target() -> None:
    rows = combine("causal", padding_mask(torch.tensor([[1, 2, 3, 4, 0]]) != 0))
    assert rows[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
    ]


def test_a_model_sees_those_rows() -> None:
    """The same rows, read off what reaches attention in a decoder."""
    model, seen = loud(build(text(NoPosition(), depth=1))), []

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: None, scale: float, dropout: float) -> Tensor:
        seen.append(attention_weights(q, k, mask, bias, scale) > 0)
        return fused_attention(q, k, v, mask, bias, scale, dropout)

    model.decoder.block[0].attention.attend = spy
    target = torch.tensor([[1, 2, 3, 4, 0]])
    model(target, target != 0)
    assert torch.equal(seen[0][0, 0], combine("causal", padding_mask(target != 0))[0, 0])


@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
@pytest.mark.parametrize("window", [None, 3])
def test_a_later_token_does_not_move_earlier_logits(position: Position, window: int | None) -> None:
    config = text(position)
    model = loud(build(replace(config, decoder=replace(config.decoder, window=window))))
    a = torch.tensor([[5, 6, 7, 8, 9]])
    b = torch.tensor([[5, 6, 7, 8, 4]])
    moved = (model(a) - model(b)).abs().amax(-1)[0]
    assert moved[:4].max() < 1e-6
    assert moved[4] > 1e-3


@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
def test_a_later_target_does_not_move_earlier_logits(position: Position) -> None:
    model = loud(build(pairs(position)))
    source, a = torch.randint(20, (1, 7)), torch.tensor([[5, 6, 7, 8, 9]])
    b = torch.tensor([[5, 6, 7, 8, 4]])
    moved = (model(source, a) - model(source, b)).abs().amax(-1)[0]
    assert moved[:4].max() < 1e-6
    assert moved[4] > 1e-3


@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_a_source_changes_nothing(position: Position, side: str) -> None:
    model = loud(build(pairs(position))).double()
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 5))
    junk = torch.randint(20, (2, 3))
    order = [junk, source] if side == "left" else [source, junk]
    padded = torch.cat(order, 1)
    mask = torch.cat([torch.full_like(part, part is source, dtype=torch.bool) for part in order], 1)
    expected = model(source, target)
    assert_close(model(padded, target, mask), expected, "layer")
    memory = model.encode(padded, mask)
    unmasked = model.head(model.decode(target, memory))  # what forgetting the cross-attention mask would do
    assert (unmasked - expected).abs().max() > 1e-3


def test_nothing_to_attend_to_is_zeros_where_adding_1e9_is_uniform() -> None:
    q, k, v = torch.randn(3, 1, 1, 2, 4)
    nothing = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    near((q @ k.mT - 1e9).softmax(-1)[0, 0], [[0.5, 0.5], [0.5, 0.5]])
    for body in (fused_attention, explicit_attention):
        assert body(q, k, v, nothing, None, 0.5, 0.0).eq(0).all()


# ---------------------------------------------------------------------------------- the random targets, and a cheat


FLOOR = math.log(17)


def _held_out_loss(broken: bool) -> float:
    """Train on targets that are pure noise over 17 symbols; the loss on new noise."""
    torch.manual_seed(1)
    model = build(replace(pairs(LearnedPosition(length=10), dim=32, vocab=18), head=LanguageHead(tied=False)))
    optimiser = torch.optim.Adam(model.parameters(), lr=6e-3)

    def loss(rows: int) -> Tensor:
        source, target = torch.randint(1, 18, (2, rows, 8))
        given = F.pad(target[:, :-1], (1, 0))
        everything = torch.ones(rows, 8, 8, dtype=torch.bool)  # as after joining masks of opposite meaning
        logits = model(source, given, target_mask=everything if broken else None)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    for _ in range(150):
        optimiser.zero_grad()
        loss(64).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        return loss(2000).item()


def test_random_targets_cannot_be_learned() -> None:
    """16,000 symbols: the mean's own noise is below 0.01."""
    assert 2.833 < FLOOR < 2.834
    assert _held_out_loss(broken=False) > FLOOR - 0.01


def test_random_targets_can_be_cheated_without_the_causal_mask() -> None:
    """So the test above can fail."""
    assert _held_out_loss(broken=True) < FLOOR - 0.5


# ------------------------------------------------------------------------------------------------------------- shifting


def test_masks_belong_to_the_decoders_input() -> None:
    model = build(pairs()).eval()
    source = torch.randint(20, (2, 4))
    target = torch.tensor([[1, 5, 6, 7, 2], [1, 5, 2, 0, 0]])
    given = target[:, :-1]
    assert model(source, given, target_mask=given != 0).shape == (2, 4, 20)
    with pytest.raises(RuntimeError):
        model(source, given, target_mask=target != 0)


def test_nothing_is_shifted_inside() -> None:
    """Position t answers to the tokens up to and with t, so t's own token moves it and t + 1's does not."""
    model = loud(build(pairs()))
    source, target = torch.randint(20, (1, 4)), torch.randint(20, (1, 6))
    x = model.target_embedding(target).detach().requires_grad_()
    memory = model.encode(source)
    for t in range(6):
        (gradient,) = torch.autograd.grad(model.decoder(x, memory=memory)[0, t].norm(), x, retain_graph=True)
        assert (gradient[0].abs().amax(-1) > 0).tolist() == [s <= t for s in range(6)]


# ----------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize("init", ["normal", "scaled", "truncated", "xavier"])
@pytest.mark.parametrize("tied", [True, False])
def test_scaled_embeddings_begin_as_loud_as_one(init: str, tied: bool) -> None:
    """Times √d their rms is 1, beside the positions' 0.707; N(0, 1) would make it 17.3 at d = 300."""
    encoder = StackConfig(dim=300, depth=1, heads=4, position=SinusoidalPosition(), init=init)
    config = EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=1000, scale="sqrt"),
        target=None if tied else EmbeddingConfig(vocab_size=1000, scale="sqrt"),
        encoder=encoder,
        decoder=replace(encoder, causal=True, cross=True),
        head=LanguageHead(tied=tied),
    )
    model = build(config)
    ids = torch.arange(1000)[None]
    for embedding in (model.embedding, model.target_embedding):
        assert embedding(ids).square().mean().sqrt().item() == pytest.approx(1, abs=0.02)
    positions = model.encoder.position.embed(torch.zeros(1, 50, 300), torch.arange(50)[None])
    assert positions.square().mean().sqrt().item() == pytest.approx(0.707, abs=1e-3)


def test_the_papers_preset_begins_so() -> None:
    model = heedful.create("transformer-tiny", seed=0)
    assert model.embedding.token.weight.std().item() == pytest.approx(128**-0.5, rel=0.02)


def test_unscaled_embeddings_begin_small() -> None:
    model = heedful.create("gpt-micro", seed=0)
    assert model.embedding.token.weight.std().item() == pytest.approx(0.06, rel=0.05)  # the preset's own


def test_scaled_initialisation_shrinks_what_writes_to_the_stream() -> None:
    model = heedful.create("gpt-mini", seed=0)
    block = model.decoder.block[0]
    for part in (block.attention.out, block.feed_forward.down):
        assert part.weight.std().item() == pytest.approx(0.035 / math.sqrt(12), rel=0.03)
    assert block.attention.query.weight.std().item() == pytest.approx(0.035, rel=0.03)
    assert block.attention.query.bias.eq(0).all()


def test_each_stack_begins_by_its_own_table() -> None:
    model = build(pairs(dim=64, init_std=0.5))
    assert model.encoder.block[0].attention.query.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.decoder.block[0].attention.query.weight.std().item() == pytest.approx(0.5, rel=0.1)


# -------------------------------------------------------------------------------------------------------------- patches


@pytest.mark.parametrize(
    ("size", "patch", "named"),
    [((230, 224), 16, "height 230"), ((224, 230), 16, "width 230"), ((240, 240), 32, "height 240")],
)
def test_an_image_is_never_cut_off(size: tuple[int, int], patch: int, named: str) -> None:
    with pytest.raises(HeedfulError, match=rf"{named} is not a multiple of the patch size {patch}"):
        PatchConfig(image_size=size, patch_size=patch)
    with pytest.raises(HeedfulError, match=named):
        PatchEmbedding(8, image_size=size, patch_size=patch)


def test_tokens_of_an_image() -> None:
    patches = PatchConfig()
    assert (patches.tokens - patches.prefix_tokens, patches.tokens) == (196, 197)
    same = {
        name: config.patches.patch_size**2 * config.patches.channels == config.encoder.dim
        for name, config in ((name, presets.get(name)) for name in ("vit-b/16", "vit-l/16", "vit-h/14"))
    }
    assert same == {"vit-b/16": True, "vit-l/16": False, "vit-h/14": False}  # N P² C = N D


def test_the_class_token_is_one_row() -> None:
    model = loud(heedful.create("vit-micro"))
    assert model.embedding.prefix.shape == (1, 1, 64)
    rows = model.embedding(torch.randn(3, 1, 28, 28))[:, 0]
    assert torch.equal(rows, model.embedding.prefix[0].expand(3, -1))


def test_the_head_reads_the_class_tokens_row_alone() -> None:
    model = loud(heedful.create("vit-micro"))
    hidden = torch.randn(2, 17, 64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.head(hidden).sum(), hidden)
    assert gradient[:, 0].ne(0).all()
    assert gradient[:, 1:].eq(0).all()


# --------------------------------------------------------------------------------------------------------- permutations


def test_attention_is_equivariant_to_order_not_invariant() -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=2, heads=4)))
    x, order = torch.randn(1, 6, 16), torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(stack(x[:, order]), stack(x)[:, order])
    assert (stack(x[:, order]) - stack(x)).abs().max() > 0.1


@pytest.mark.parametrize("position", SCHEMES[1:], ids=lambda p: p.kind)
def test_positions_break_it(position: Position) -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=2, heads=4, position=position)))
    x, order = torch.randn(1, 6, 16), torch.tensor([3, 0, 5, 1, 4, 2])
    assert (stack(x[:, order]) - stack(x)[:, order]).abs().max() > 1e-2


def test_cross_attentions_queries_come_from_the_decoder() -> None:
    """Its order of keys is free, its order of queries is not; there are as many rows as queries."""
    attention = loud(Attention(16, 4))
    x, source, order = torch.randn(1, 3, 16), torch.randn(1, 5, 16), torch.tensor([4, 2, 0, 1, 3])
    y = attention(x, source)
    assert y.shape == x.shape
    assert_close(attention(x, source[:, order]), y)
    assert_close(attention(x.flip(1), source), y.flip(1))


# ----------------------------------------------------------------------------------------------------------- batch norm


def test_batch_norm_would_leak_the_future() -> None:
    """Why it is refused: moving position 4 moves position 0."""
    norm = BatchNorm(8)
    x = torch.randn(1, 5, 8)
    y = x.clone()
    y[:, 4] += 3
    assert (norm(x)[:, 0] - norm(y)[:, 0]).abs().max() > 0.1
    with pytest.raises(HeedfulError, match="batch norm in a causal stack"):
        StackConfig(dim=8, depth=1, heads=2, norm="batch", causal=True)


def test_running_statistics() -> None:
    norm = BatchNorm(2)
    x = torch.randn(4, 5, 2, requires_grad=True) * 2 + 1
    norm(x)
    rows = x.detach().flatten(0, 1)
    assert norm.running_mean.grad_fn is None
    assert norm.running_var.grad_fn is None
    near(norm.running_mean, (0.1 * rows.mean(0)).tolist())
    near(norm.running_var, (0.9 + 0.1 * rows.var(0, unbiased=True)).tolist())


def test_padding_takes_no_part_in_batch_norm() -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=1, heads=4, norm="batch")))
    x, junk = torch.randn(2, 5, 16), torch.randn(2, 2, 16) * 100
    mask = torch.tensor([[True] * 5 + [False] * 2] * 2)
    for training in (True, False):
        stack.train(training)
        alone, padded = stack(x), stack(torch.cat((x, junk), 1), mask)[:, :5]
        assert_close(padded, alone, "training")


# ------------------------------------------------------------------------------------------------------ worked examples


def test_soft_look_up() -> None:
    """Over the scores together."""
    scores = torch.tensor([4.0, 3.0, -1.0])
    q, k = torch.ones(1, 1, 1, 1), scores.view(1, 1, 3, 1)
    near(attention_weights(q, k, None, None, 1.0)[0, 0, 0], [0.7275, 0.2676, 0.0049])
    q, k, v = q.expand(-1, -1, -1, 3), k.expand(-1, -1, -1, 3) / 3, torch.eye(3)[None, None]
    near(fused_attention(q, k, v, None, None, 1.0),
         [[[[0.7275, 0.2676, 0.0049]]]])  # fmt: skip


def test_softmax() -> None:
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([2.0, 4.0, 5.0]).view(1, 1, 3, 1)
    near(attention_weights(q, k, None, None, 1.0).flatten(), [0.0351, 0.2595, 0.7054])


@pytest.mark.parametrize("body", [fused_attention, explicit_attention])
def test_worked_attention(body: fused_attention) -> None:
    q = torch.tensor([[[[1.0, 0, 1], [0, 1, 1]]]])
    k = torch.tensor([[[[1.0, 2, 1], [2, 1, 0]]]])
    v = torch.tensor([[[[0.5, 0.8], [0.2, 0.3]]]])
    near(attention_weights(q, k, None, None, 3**-0.5)[0, 0], [[0.5, 0.5], [0.7604, 0.2396]])
    near(body(q, k, v, None, None, 3**-0.5, 0.0)[0, 0], [[0.35, 0.55], [0.4281, 0.6802]])


def test_worked_feed_forward() -> None:
    layer = FeedForward(4, 2, activation="relu")
    with torch.no_grad():
        layer.up.weight.copy_(torch.tensor([[0.1, 0.2], [-0.1, 0.1], [0.3, -0.2], [0.2, 0.1]]).T)
        layer.up.bias.copy_(torch.tensor([0.01, 0.02]))
        layer.down.weight.copy_(torch.tensor([[1, -0.5, 0.8, 0.2], [0.5, 0.3, -0.2, 0.4]]).T)
        layer.down.bias.copy_(torch.tensor([0.03, -0.01, 0.02, 0.01]))
    near(layer(torch.tensor([0.5, -0.2, 0.1, 0.8])), [0.38, -0.097, 0.204, 0.128])


def test_dot_products() -> None:
    q = torch.tensor([-2, 3, 2.5, -1, 1.5, -2]).view(1, 1, 1, 6)
    k = torch.tensor([[-1.8, 2.8, 3, 0.2, 2.5, -1.5], [-1.5, -2, 2.8, -0.5, -2, 3]]).view(1, 1, 2, 6)
    near((q @ k.mT).flatten(), [26.05, -4.5])
    near(attention_weights(q, k, None, None, 6**-0.5).flatten(), [0.999996, 0.000004], 5e-7)


# --------------------------------------------------------------------------------------------------------------- counts


def test_parts_of_vit_b() -> None:
    with torch.device("meta"):
        model = heedful.create("vit-b/16")
    block = model.encoder.block[0]
    assert parameters(block.attention) + parameters(block.attention_residual) == 2_363_904
    assert parameters(block.feed_forward) + parameters(block.feed_forward_residual) == 4_723_968
    assert parameters(block) == 7_087_872
    assert parameters(model.encoder.block) == 85_054_464
    assert parameters(model.encoder.block) + parameters(model.encoder.norm) == 85_056_000
    assert parameters(model.embedding.projection) == 590_592
    assert model.num_parameters() == 86_567_656


def test_vit_h_14() -> None:
    with torch.device("meta"):
        assert heedful.create("vit-h/14").num_parameters() == 632_045_800


def test_multiply_adds_of_vit_b() -> None:
    """17.6 thousand million, not the 173 million that counting each convolution weight once gives."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        heedful.create("vit-b/16")(torch.empty(1, 3, 224, 224))
    linear = 196 * 590_592 + 12 * 197 * 12 * 768**2 + 768 * 1000 - 196 * 768  # the projection without its bias
    assert counter.get_total_flops() == 2 * (linear + 12 * 2 * 197**2 * 768)
    assert counter.get_total_flops() / 2 == pytest.approx(17.56e9, rel=1e-3)


def test_encoder_decoder_of_width_300() -> None:
    """Post-norm, an embedding for each side, a head of its own with a bias."""

    def stack(causal: bool) -> StackConfig:
        return StackConfig(
            dim=300,
            depth=12,
            heads=4,
            ff_dim=64,
            placement="post",
            activation="relu",
            position=SinusoidalPosition(),
            causal=causal,
            cross=causal,
        )

    embedding = EmbeddingConfig(vocab_size=10_000, scale="sqrt")
    head = LanguageHead(tied=False, bias=True)
    config = EncoderDecoderConfig(
        source=embedding, target=embedding, encoder=stack(False), decoder=stack(True), head=head
    )
    with torch.device("meta"):
        model = build(config)
    assert parameters(model.embedding) + parameters(model.encoder) == 7_813_968
    assert parameters(model.target_embedding) + parameters(model.decoder) == 12_155_568
    assert parameters(model.head) == 3_010_000
    assert model.num_parameters() == 22_979_536


def test_character_model() -> None:
    config = presets.get("gpt-mini")
    assert (config.decoder.dim, config.decoder.depth, config.decoder.heads) == (384, 6, 6)
    config = replace(
        config,
        decoder=replace(config.decoder, attention_bias="out"),
        head=LanguageHead(tied=False, bias=True),
    )
    with torch.device("meta"):
        assert build(config).num_parameters() == 10_788_929


def test_ties_are_counted_once() -> None:
    config = presets.get("gpt-micro")
    with torch.device("meta"):
        tied, untied = build(config), build(replace(config, head=LanguageHead(tied=False)))
    assert untied.num_parameters() - tied.num_parameters() == 65 * 128


def test_initialise_draws_again() -> None:
    """Twice from one seed is the same, from another is not; norms begin as the identity."""
    config = EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=9), encoder=StackConfig(dim=8, depth=1, heads=2, placement="post")
    )
    model, again = heedful.create(config, seed=1), heedful.create(config, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    before = model.embedding.token.weight.clone()
    initialise(model, config.encoder)
    assert not torch.equal(model.embedding.token.weight, before)
    norm = model.encoder.block[0].attention_residual.after
    assert (norm.weight.unique().tolist(), norm.bias.unique().tolist()) == ([1.0], [0.0])


def test_a_vision_model_of_two_unequal_sides() -> None:
    patches = PatchConfig(image_size=(8, 12), patch_size=4, channels=1)
    stack = StackConfig(dim=8, depth=1, heads=2, position=LearnedPosition(length=patches.tokens))
    assert build(VisionConfig(patches=patches, encoder=stack))(torch.randn(2, 1, 8, 12)).shape == (2, 1000)


def test_layers_in_the_same_words() -> None:
    """The segment and token tables of BERT, as published: 30,522 × 768 and 2 × 768."""
    with torch.device("meta"):
        table = TokenEmbedding(30_522, 768, segments=2)
    assert parameters(table) == 30_524 * 768
