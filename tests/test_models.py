"""Whole models against torch's layers and transformers' models, and the same answer however a batch is padded.

The references run in float64 and should then agree to 1e-10. Where transformers rounds to float32 inside, whatever the
model's type (its RMS norms: ``.to(torch.float32)``), ``exactly`` lets that say float64. Its rotary tables stay float32,
as do ours, so that both turn by the very same angles.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    DenseConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    NoHead,
    NoPosition,
    PatchConfig,
    PooledHead,
    Position,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    SpanHead,
    StackConfig,
    TokenHead,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.heads import head_of
from heedful.layers.block import Block
from heedful.models import build
from heedful.stack import Stack
from relative_schemes import CONTENT
from tolerances import assert_close

SCHEMES = [
    NoPosition(),
    SinusoidalPosition(),
    LearnedPosition(length=16),
    RotaryPosition(),
    AlibiPosition(),
    LearnedPosition(length=16, buckets=8, max_distance=6),
    RelativePosition(buckets=8, max_distance=6),
    *CONTENT,
]
POSITIONS = pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)


def loud(model: nn.Module, std: float = 0.4) -> nn.Module:
    """In float64 with every parameter drawn anew: no bias is 0, no norm's weight is 1."""
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


# ------------------------------------------------------------------------------------------- torch's layers


def attention_weights_into(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight for part in parts]).detach()
    theirs.in_proj_bias.data = torch.cat([part.bias for part in parts]).detach()
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def copied(block: Block, theirs: nn.Module, names: list[str]) -> None:
    """A block's weights into torch's layer: its attentions, its two linear maps, its norms in order."""
    attention_weights_into(block.attention, theirs.self_attn)
    if hasattr(theirs, "multihead_attn"):
        attention_weights_into(block.cross_attention, theirs.multihead_attn)
    theirs.linear1.load_state_dict(block.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(block.feed_forward.down.state_dict())
    for i, name in enumerate(names, 1):
        residual = getattr(block, name)
        norm = next(m for m in (residual.before, residual.after) if isinstance(m, nn.LayerNorm))
        getattr(theirs, f"norm{i}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_torch_encoder_layer(placement: str, activation: str, mask: str) -> None:
    block = loud(Block(StackConfig(dim=16, depth=1, heads=4, ff_dim=24, placement=placement, activation=activation)))
    theirs = nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    copied(block, theirs, ["attention_residual", "feed_forward_residual"])
    theirs.train()  # without dropout: keeps it off its own fast path, whose masks are converted
    x, real = torch.randn(2, 5, 16, dtype=torch.float64), torch.arange(5) < torch.tensor([[5], [3]])
    given = {"none": None, "causal": "causal", "padding": real[:, None, None, :]}[mask]
    expected = theirs(
        x,
        src_mask=torch.ones(5, 5).triu(1).bool() if mask == "causal" else None,
        src_key_padding_mask=~real if mask == "padding" else None,
    )
    assert_close(block(x, mask=given), expected)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 4), (4, 1)], ids=str)
def test_torch_decoder_layer(placement: str, lengths: tuple[int, int]) -> None:
    """Target and source of different lengths, both padded."""
    queries, keys = lengths
    config = StackConfig(
        dim=16, depth=1, heads=4, ff_dim=24, placement=placement, activation="relu", causal=True, cross=True
    )
    block = loud(Block(config))
    theirs = nn.TransformerDecoderLayer(
        16, 4, 24, 0.0, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    copied(block, theirs, ["attention_residual", "cross_residual", "feed_forward_residual"])
    x, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (queries, keys))
    seen = torch.arange(keys) < torch.tensor([[keys], [max(1, keys - 2)]])
    expected = theirs(x, memory, tgt_mask=torch.ones(queries, queries).triu(1).bool(), memory_key_padding_mask=~seen)
    assert_close(block(x, mask="causal", memory=memory, memory_mask=seen[:, None, None, :]), expected)


def test_sandwich_by_its_equation() -> None:
    block = loud(Block(StackConfig(dim=16, depth=1, heads=4, placement="sandwich", norm="rms")))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    one, two = block.attention_residual, block.feed_forward_residual
    middle = x + one.out(block.attention(one.before(x)))
    assert_close(block(x), middle + two.out(block.feed_forward(two.before(middle))))


@pytest.mark.parametrize("sublayers", ["parallel", "parallel-shared"])
def test_parallel_sublayers_by_their_equation(sublayers: Any) -> None:
    block = loud(Block(StackConfig(dim=16, depth=1, heads=4, sublayers=sublayers)))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    first, second = block.attention_residual.before, block.feed_forward_residual.before
    assert (first is second) == (sublayers == "parallel-shared")
    expected = x + block.attention(first(x)) + block.feed_forward(second(x))
    assert_close(block(x), expected)
    assert (block(x) - x).abs().max() > 1


def test_layer_norms_without_bias_and_a_first_block_without_norm() -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=2, heads=4, norm_bias=False, first_norm=False, embedding_norm=True)))
    assert not [name for name, _ in stack.named_parameters() if "norm" in name and name.endswith("bias")]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    expected = stack.embedding_norm(x)
    assert_close(expected, nn.functional.layer_norm(x, (16,), stack.embedding_norm.weight))
    for number, block in enumerate(stack.block):
        before = block.attention_residual.before
        assert isinstance(before, nn.LayerNorm) == (number > 0)
        expected = expected + block.attention(before(expected))
        expected = expected + block.feed_forward(block.feed_forward_residual.before(expected))
    assert_close(stack(x), stack.norm(expected))


def test_norms_of_outputs_by_their_equation() -> None:
    block = loud(Block(StackConfig(dim=16, depth=1, heads=4, placement="out", norm="rms")))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    middle = x + block.attention_residual.out(block.attention(x))
    assert_close(block(x), middle + block.feed_forward_residual.out(block.feed_forward(middle)))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_layer_scale_by_its_equation(placement: Any) -> None:
    block = Block(StackConfig(dim=16, depth=1, heads=4, placement=placement, layer_scale=0.3))
    assert (block.attention_residual.out.weight == 0.3).all()
    one, two, x = block.attention_residual, block.feed_forward_residual, torch.randn(2, 5, 16, dtype=torch.float64)
    loud(block)
    middle = one.after(x + one.out.weight * block.attention(one.before(x)))
    assert_close(block(x), two.after(middle + two.out.weight * block.feed_forward(two.before(middle))))


def test_a_classifier_of_the_class_token_and_the_mean_of_the_patches() -> None:
    head = head_of(ImageHead(labels=3, tokens="class+mean"), 16, prefix_tokens=2)
    hidden = torch.randn(2, 7, 16)
    assert_close(head(hidden), head.output[0](torch.cat((hidden[:, 0], hidden[:, 2:].mean(1)), 1)))
    assert head.tokens_read == slice(None)


@pytest.mark.parametrize(("placement", "norms"), [("pre", 5), ("post", 4), ("sandwich", 9), ("out", 5)])
def test_a_final_norm_exactly_where_blocks_begin_with_one(placement: str, norms: int) -> None:
    stack = Stack(StackConfig(dim=8, depth=2, heads=2, placement=placement))
    assert sum(isinstance(m, nn.LayerNorm) for m in stack.modules()) == norms


# ------------------------------------------------------------------------------------------- transformers' models


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """Run a reference with its own roundings to float32 taken out."""

    def run(call: Callable[..., Any], *given: Any, **options: Any) -> Tensor:
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(torch, "float32", torch.float64)
            return call(*given, **options).logits

    return run


def filled(ours: nn.Module, theirs: nn.Module, rules: list[tuple[str, str]]) -> None:
    """Our state from theirs, by renaming; every tensor of ours and every parameter of theirs is used."""
    state = {}
    for name, tensor in theirs.state_dict().items():
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        if not name.startswith("drop"):
            assert name not in state or torch.equal(state[name], tensor), name
            state[name] = tensor
    for name in ours.state_dict().keys() & {"target_embedding.token.weight"}:  # the same table under a second name
        state[name] = state["embedding.token.weight"]
    ours.load_state_dict(state)


LLAMA = [
    (r"model\.embed_tokens", "embedding.token"),
    (r"model\.layers\.", "decoder.block."),
    (r"self_attn\.(q|k)_norm", r"attention.\1_norm"),
    (r"attention\.q_norm", "attention.query_norm"),
    (r"attention\.k_norm", "attention.key_norm"),
    (r"self_attn\.q_proj", "attention.query"),
    (r"self_attn\.k_proj", "attention.key"),
    (r"self_attn\.v_proj", "attention.value"),
    (r"self_attn\.o_proj", "attention.out"),
    (r"mlp\.(up|gate|down)_proj", r"feed_forward.\1"),
    (r"input_layernorm", "attention_residual.before"),
    (r"post_attention_layernorm", "feed_forward_residual.before"),
    (r"model\.norm", "decoder.norm"),
    (r"lm_head", "head.output"),
]

ROPE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "linear": ({"factor": 4.0}, {"factor": 4.0}),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_length": 32},
    ),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 32},
        {"factor": 4.0, "original_length": 32},
    ),
    "yarn with all its numbers": (
        {
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.3,
        },
        {"factor": 4.0, "original_length": 32, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3},
    ),
}


@pytest.mark.parametrize("scaling", ROPE)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_transformers_llama(scaling: str, kind: str, exactly: Callable[..., Tensor]) -> None:
    """Rotary positions and their scalings, grouped queries, a head size of its own, and norms on queries and keys."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    theirs_say, ours_say = ROPE[scaling]
    word = scaling.split()[0]
    config, model = (LlamaConfig, LlamaForCausalLM) if kind == "llama" else (Qwen3Config, Qwen3ForCausalLM)
    theirs = loud(
        model(
            config(
                vocab_size=50,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                rms_norm_eps=1e-5,
                max_position_embeddings=128,
                rope_parameters={"rope_type": word, "rope_theta": 500.0, **theirs_say},
                tie_word_embeddings=False,
                attn_implementation="sdpa",
            )
        )
    )
    ours = build(
        DecoderConfig(
            embedding=EmbeddingConfig(vocab_size=50),
            decoder=StackConfig(
                dim=32,
                depth=2,
                heads=4,
                kv_heads=2,
                head_dim=16,
                ff_dim=48,
                norm="rms",
                activation="silu",
                gated=True,
                attention_bias="none",
                ff_bias=False,
                qk_norm="head" if kind == "qwen3" else "none",
                position=RotaryPosition(base=500.0, scaling=word, **ours_say),
                causal=True,
            ),
            head=LanguageHead(tied=False),
        )
    )
    filled(ours.double().eval(), theirs, LLAMA)
    ids = torch.randint(50, (2, 100))
    expected = exactly(theirs, ids)
    assert expected.abs().max() > 1
    assert_close(ours(ids), expected)
    real = torch.arange(100) >= torch.tensor([[0], [30]])  # left padding: positions begin at the first real token
    place = (real.cumsum(1) - 1).clamp(min=0)
    padded = exactly(theirs, ids, attention_mask=real.long(), position_ids=place)
    assert_close(ours(ids, real)[real], padded[real])


T5 = [
    (r"^(en|de)coder\.embed_tokens\.", "shared."),
    (r"^shared", "embedding.token"),
    (r"(encoder|decoder)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias", r"\1.position.table"),
    (r"(block\.\d+)\.layer\.0\.SelfAttention", r"\1.attention"),
    (r"(block\.\d+)\.layer\.0\.layer_norm", r"\1.attention_residual.before"),
    (r"(decoder\.block\.\d+)\.layer\.1\.EncDecAttention", r"\1.cross_attention"),
    (r"(decoder\.block\.\d+)\.layer\.1\.layer_norm", r"\1.cross_residual.before"),
    (r"(block\.\d+)\.layer\.\d\.DenseReluDense\.(wi_1|wi)\.", r"\1.feed_forward.up."),
    (r"(block\.\d+)\.layer\.\d\.DenseReluDense\.wi_0", r"\1.feed_forward.gate"),
    (r"(block\.\d+)\.layer\.\d\.DenseReluDense\.wo", r"\1.feed_forward.down"),
    (r"(block\.\d+)\.layer\.\d\.layer_norm", r"\1.feed_forward_residual.before"),
    (r"attention\.q\.", "attention.query."),
    (r"attention\.k\.", "attention.key."),
    (r"attention\.v\.", "attention.value."),
    (r"attention\.o\.", "attention.out."),
    (r"final_layer_norm", "norm"),
    (r"^lm_head", "head.output"),
]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("scaled_head", [True, False])
def test_transformers_t5(gated: bool, scaled_head: bool, exactly: Callable[..., Tensor]) -> None:
    """Relative positions beyond their longest distance, unscaled scores, a head size of its own, a tied head."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=50,
        d_model=24,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj="gated-gelu" if gated else "relu",
        dropout_rate=0.0,
        attn_implementation="eager",
    )
    config.scale_decoder_outputs = scaled_head
    theirs = loud(T5ForConditionalGeneration(config))
    encoder = StackConfig(
        dim=24,
        depth=2,
        heads=4,
        head_dim=8,
        ff_dim=32,
        norm="rms",
        norm_eps=1e-6,
        activation="gelu_tanh" if gated else "relu",
        gated=gated,
        attention_bias="none",
        ff_bias=False,
        scale="none",
        position=RelativePosition(buckets=8, max_distance=12),
    )
    ours = build(
        EncoderDecoderConfig(
            source=EmbeddingConfig(vocab_size=50),
            encoder=encoder,
            decoder=replace(encoder, causal=True, cross=True),
            head=LanguageHead(scale="sqrt" if scaled_head else "none"),
        )
    )
    filled(ours.double().eval(), theirs, T5)
    source, target = torch.randint(50, (2, 30)), torch.randint(50, (2, 20))
    real = torch.arange(30) < torch.tensor([[30], [11]])
    expected = exactly(theirs, source, attention_mask=real.long(), decoder_input_ids=target)
    assert expected.abs().max() > 0.1
    assert_close(ours(source, target, real), expected)


BART = [
    (r"^model\.", ""),
    (r"^(en|de)coder\.embed_tokens", "shared"),
    (r"^lm_head", "head.output"),
    (r"^shared", "embedding.token"),
    (r"^final_logits_bias", "drop"),
    (r"embed_positions", "position.table"),
    (r"layernorm_embedding", "embedding_norm"),
    (r"\.layers\.", ".block."),
    (r"self_attn\.", "attention."),
    (r"encoder_attn\.", "cross_attention."),
    (r"self_attn_layer_norm", "attention_residual.after"),
    (r"encoder_attn_layer_norm", "cross_residual.after"),
    (r"final_layer_norm", "feed_forward_residual.after"),
    (r"q_proj", "query"),
    (r"k_proj", "key"),
    (r"v_proj", "value"),
    (r"out_proj", "out"),
    (r"fc1", "feed_forward.up"),
    (r"fc2", "feed_forward.down"),
]


def test_transformers_bart(exactly: Callable[..., Tensor]) -> None:
    """Post-norm, embedding norm, learned positions that begin at row 2."""
    from transformers import BartConfig, BartForConditionalGeneration

    theirs = loud(
        BartForConditionalGeneration(
            BartConfig(
                vocab_size=50,
                d_model=24,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                max_position_embeddings=40,
                attn_implementation="sdpa",
            )
        ),
        std=0.2,
    )
    encoder = StackConfig(
        dim=24,
        depth=2,
        heads=4,
        ff_dim=32,
        placement="post",
        embedding_norm=True,
        position=LearnedPosition(length=40, offset=2),
    )
    ours = build(
        EncoderDecoderConfig(
            source=EmbeddingConfig(vocab_size=50), encoder=encoder, decoder=replace(encoder, causal=True, cross=True)
        )
    )
    filled(ours.double().eval(), theirs, BART)
    source, target = torch.randint(3, 50, (2, 30)), torch.randint(3, 50, (2, 20))
    real = torch.arange(30) < torch.tensor([[30], [11]])
    expected = exactly(theirs, source, attention_mask=real.long(), decoder_input_ids=target)
    assert expected.abs().max() > 0.1
    assert_close(ours(source, target, real), expected)


# ------------------------------------------------------------------------------------------- however it is padded


def padded(rows: list[Tensor], sides: list[str]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths in one batch, each padded on its own side with random tokens."""
    length = max(map(len, rows)) + 2
    ids, mask = torch.randint(20, (len(rows), length)), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (row, side) in enumerate(zip(rows, sides, strict=True)):
        start = {"left": length - len(row), "right": 0, "both": 1}[side]
        ids[i, start : start + len(row)], mask[i, start : start + len(row)] = row, True
    return ids, mask


SIDES = pytest.mark.parametrize("sides", [["left"] * 3, ["right"] * 3, ["left", "right", "both"]], ids=str)
ROWS = [torch.tensor([3, 1, 4, 1, 5]), torch.tensor([9, 2]), torch.tensor([6])]


@torch.no_grad()
@POSITIONS
@SIDES
@pytest.mark.parametrize("family", ["encoder", "decoder", "decoder with a window"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_padding_changes_nothing(position: Position, sides: list[str], family: str, placement: str) -> None:
    stack = StackConfig(dim=16, depth=2, heads=4, placement=placement, position=position, embedding_norm=True)
    window = 2 if "window" in family else None
    model = loud(
        build(
            EncoderConfig(embedding=EmbeddingConfig(vocab_size=20), encoder=stack)
            if family == "encoder"
            else DecoderConfig(
                embedding=EmbeddingConfig(vocab_size=20), decoder=replace(stack, causal=True, window=window)
            )
        )
    )
    ids, mask = padded(ROWS, sides)
    together = model(ids, mask)
    assert together.isfinite().all()
    for i, row in enumerate(ROWS):
        assert_close(together[i][mask[i]], model(row[None])[0])


@torch.no_grad()
@POSITIONS
@SIDES
def test_padding_changes_nothing_in_pairs(position: Position, sides: list[str]) -> None:
    stack = StackConfig(dim=16, depth=2, heads=4, position=position)
    model = loud(
        build(
            EncoderDecoderConfig(
                source=EmbeddingConfig(vocab_size=20, scale="sqrt"),
                encoder=stack,
                decoder=replace(stack, causal=True, cross=True),
            )
        )
    )
    targets = [torch.tensor([7]), torch.tensor([8, 2, 8, 4]), torch.tensor([5, 9, 0])]
    source, source_mask = padded(ROWS, sides)
    target, target_mask = padded(targets, sides[::-1])
    together = model(source, target, source_mask, target_mask)
    assert together.isfinite().all()
    for i, (row, aim) in enumerate(zip(ROWS, targets, strict=True)):
        assert_close(together[i][target_mask[i]], model(row[None], aim[None])[0])


@POSITIONS
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_a_row_of_padding_alone(position: Position, norm: str) -> None:
    """No NaN, not even in a gradient, and nothing of it in the other rows."""
    stack = StackConfig(dim=16, depth=2, heads=4, position=position, norm=norm)
    model = build(
        EncoderDecoderConfig(
            source=EmbeddingConfig(vocab_size=20),
            encoder=stack,
            decoder=replace(stack, norm="layer", causal=True, cross=True),
        )
    )
    source, target = torch.randint(20, (2, 5)), torch.randint(20, (2, 4))
    source_mask, target_mask = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
    source_mask[1], target_mask[1] = False, False
    logits = model(source, target, source_mask, target_mask)
    assert_close(logits[:1], model(source[:1], target[:1]))
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", [torch.long, torch.float32, torch.int32])
def test_a_mask_of_ones_and_zeros_is_a_mask(kind: torch.dtype) -> None:
    """As a tokenizer makes it: taken as boolean or refused, never added to the scores."""
    stack = StackConfig(dim=16, depth=1, heads=4, position=RotaryPosition())
    model = loud(build(EncoderConfig(embedding=EmbeddingConfig(vocab_size=20), encoder=stack)))
    ids, mask = torch.randint(20, (1, 4)), torch.tensor([[1, 1, 1, 0]])
    try:
        y = model(ids, mask.to(kind))
    except HeedfulError:
        return
    assert_close(y[:, :3], model(ids, mask.bool())[:, :3])


# ------------------------------------------------------------------------------------------- heads

STACK = StackConfig(dim=16, depth=1, heads=4)
HEADS = {
    "none": (NoHead(pooler=True), (2, 5, 16)),
    "language model": (LanguageHead(), (2, 5, 20)),
    "masked": (MaskedHead(), (2, 5, 20)),
    "sequence": (SequenceHead(labels=3), (2, 3)),
    "masked without biases": (MaskedHead(bias=False, dense_bias=False, norm_bias=False), (2, 5, 20)),
    "token": (TokenHead(labels=3), (2, 5, 3)),
    "span": (SpanHead(), (2, 5, 2)),
    "pooled": (PooledHead(normalise=True), (2, 16)),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_head_has_its_shape(head: str) -> None:
    config, shape = HEADS[head]
    model = build(EncoderConfig(embedding=EmbeddingConfig(vocab_size=20), encoder=STACK, head=config)).eval()
    ids = torch.randint(20, (2, 5))
    assert model(ids).shape == shape
    assert model.hidden(ids).shape == (2, 5, 16)
    assert_close(model(ids, torch.ones(2, 5, dtype=torch.bool)), model(ids))


@pytest.mark.parametrize("kind", [SequenceHead, TokenHead, SpanHead])
def test_a_dense_layer_before_the_output(kind: Any) -> None:
    from heedful.heads import head_of

    more = {"pooler": False} if kind is SequenceHead else {}
    dense = DenseConfig(activation="relu", bias=False, norm_bias=False, norm_eps=1e-3)
    head = loud(head_of(kind(dense=dense, **more), 16))
    assert not [name for name, _ in head.hidden.named_parameters() if name.endswith("bias")]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    inner = nn.functional.linear(x, head.hidden.dense.weight).relu()
    inner = nn.functional.layer_norm(inner, (16,), head.hidden.norm.weight, eps=1e-3)
    expected = nn.functional.linear(inner, head.output.weight, head.output.bias)
    assert_close(head(x), expected[:, 0] if kind is SequenceHead else expected)


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max"])
def test_pooling_over_real_tokens(pooling: str) -> None:
    from heedful.heads import pool

    hidden = torch.randn(3, 5, 4)
    real = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]]).bool()
    for i, row in enumerate(pool(hidden, real, pooling)):
        chosen = hidden[i][real[i]]
        by_hand = {"first": chosen[0], "last": chosen[-1], "mean": chosen.mean(0), "max": chosen.amax(0)}[pooling]
        assert_close(row, by_hand)
    assert_close(pool(hidden, None, pooling), pool(hidden, torch.ones(3, 5).bool(), pooling))
    assert pool(hidden, torch.zeros(3, 5).bool(), pooling).isfinite().all()


def test_pooled_is_of_unit_length_where_asked() -> None:
    config = EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=20), encoder=STACK, head=PooledHead(pooling="max", normalise=True)
    )
    assert_close(build(config)(torch.randint(20, (3, 5))).norm(dim=1), torch.ones(3))


@pytest.mark.parametrize(
    ("name", "head"), [("gpt-micro", "sequence"), ("bert-tiny", "sequence"), ("vit-micro", "pooled")]
)
def test_create_puts_a_head_on(name: str, head: str) -> None:
    model = heedful.create(name, head=head, num_labels=7 if head == "sequence" else None, seed=0).eval()
    given = torch.randn(2, 1, 28, 28) if "vit" in name else torch.randint(9, (2, 5))
    assert model(given).shape == ((2, 7) if head == "sequence" else (2, 64))


def test_a_decoder_pools_its_last_real_token() -> None:
    model = loud(heedful.create("gpt-micro", head="sequence", seed=0))
    ids = torch.randint(65, (1, 5))
    right = torch.cat((ids, torch.randint(65, (1, 2))), 1)
    assert_close(model(right, torch.tensor([[True] * 5 + [False] * 2])), model(ids))
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 65
    assert (model(other) - model(ids)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bert-tiny", {"head": "sequnce"}, "unknown head 'sequnce'; did you mean 'sequence'"),
        ("bert-tiny", {"num_labels": 3}, "give head='sequence'"),
        ("gpt-micro", {"num_labels": 3}, "'language-model' head has no labels"),
        ("vit-micro", {"head": "language-model"}, "head|language"),
        ("vit-micro", {"head": "masked-language-model"}, "head|language"),
    ],
    ids=str,
)
def test_create_refuses(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        heedful.create(name, **options)


def test_a_distilled_classifier_averages_its_two() -> None:
    patches = PatchConfig(image_size=(8, 8), patch_size=4, channels=1, prefix="class+distillation")
    model = loud(build(VisionConfig(patches=patches, encoder=STACK, head=ImageHead(labels=3))))
    pixels = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    hidden = model.hidden(pixels)
    assert hidden.shape == (2, 6, 16)
    first, second = model.head.output
    assert_close(model(pixels), (first(hidden[:, 0]) + second(hidden[:, 1])) / 2)


# ------------------------------------------------------------------------------------------- the model as an object

NAMES = ["gpt-micro", "stories260k", "bert-tiny", "transformer-tiny", "vit-micro"]


def inputs(name: str, batch: int = 2, length: int = 3) -> tuple[Tensor, ...]:
    ids = torch.randint(60, (batch, length))
    return {"vit": (torch.randn(batch, 1, 28, 28),), "tra": (ids, ids[:, :1])}.get(name[:3], (ids,))


@pytest.mark.parametrize("name", NAMES)
def test_copied_and_pickled(name: str) -> None:
    model, given = heedful.create(name, seed=0).eval(), inputs(name)
    expected = model(*given)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(*given), expected)
        assert again.num_parameters() == model.num_parameters()
        assert again.config == model.config


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 4), (3, 1)])
def test_the_smallest_shapes(name: str, batch: int, length: int) -> None:
    model, given = heedful.create(name, seed=0).eval(), inputs(name, batch, length)
    assert len(model(*given)) == batch
    assert model(*given).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str) -> None:
    model, given = heedful.create(name, seed=0).eval(), inputs(name)
    expected = model(*given)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(*given)
    whole = copy.deepcopy(model).bfloat16()
    assert whole.dtype == torch.bfloat16
    cast = whole(*(x.bfloat16() if x.is_floating_point() else x for x in given))
    assert cast.dtype == torch.bfloat16
    for y in (mixed, cast):
        assert (y.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_trained(name: str) -> None:
    """A gradient reaches each; the pooler that waits for its head is the one exception."""
    model = heedful.create(name, seed=0)
    model(*inputs(name)).square().sum().backward()
    idle = {n for n, p in model.named_parameters() if p.grad is None}
    assert idle == ({"head.pooler.dense.weight", "head.pooler.dense.bias"} if name == "bert-tiny" else set())


def test_dropout_is_at_its_four_sites() -> None:
    """Each alone makes a training call random; none does in evaluation."""
    for site in ("embedding", "attention", "hidden", "residual"):
        stack = replace(STACK, dropout=DropoutRates(**{site: 0.5}), init_std=0.5)
        model = build(EncoderConfig(embedding=EmbeddingConfig(vocab_size=20), encoder=stack))
        ids = torch.randint(20, (2, 5))
        assert not torch.equal(model(ids), model(ids)), site
        model.eval()
        assert torch.equal(model(ids), model(ids)), site


def test_a_seed_leaves_torchs_own_state_alone() -> None:
    before = torch.random.get_rng_state()
    a, b = heedful.create("gpt-micro", seed=3), heedful.create("gpt-micro", seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    c = heedful.create("gpt-micro")
    assert not torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(c.embedding.token.weight, a.embedding.token.weight)


def test_tied_weights_are_one_tensor_and_stay_so() -> None:
    model = heedful.create("transformer-tiny", seed=0)
    assert model.head.output.weight is model.embedding.token.weight
    assert model.target_embedding is model.embedding
    sizes = {parameter.data_ptr(): parameter.numel() for _, parameter in model.named_parameters(remove_duplicate=False)}
    assert model.num_parameters() == sum(sizes.values())
    model.embedding.requires_grad_(False)
    trainable = sum(sizes.values()) - model.embedding.token.weight.numel()
    assert model.num_parameters(trainable_only=True) == trainable
    model.double().float()
    assert model.head.output.weight is model.embedding.token.weight


def test_too_many_tokens_are_named() -> None:
    with pytest.raises(HeedfulError, match="65 tokens, but the model has 64 learned positions"):
        heedful.create("gpt-micro")(torch.zeros(1, 65, dtype=torch.long))


def test_padding_does_not_use_up_positions() -> None:
    """70 columns of which 60 are real fit into 64 positions."""
    model = heedful.create("gpt-micro", seed=0).eval()
    ids, mask = torch.randint(65, (1, 70)), torch.arange(70)[None] >= 10
    assert_close(model(ids, mask)[:, 10:], model(ids[:, 10:]))
