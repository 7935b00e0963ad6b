"""Models of all families for tests of exported graphs: random weights, inputs with padding, our own outputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from heedful.config import (
    AlibiPosition,
    ConvolutionConfig,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ExpertsConfig,
    ImageHead,
    LanguageHead,
    LearnedPosition,
    ModelConfig,
    NoHead,
    PatchConfig,
    PooledHead,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    StackConfig,
    TransformerXLPosition,
    VisionConfig,
)
from heedful.models import Model, build
from relative_schemes import CONTENT

WORDS = EmbeddingConfig(vocab_size=60)
STACK = StackConfig(dim=16, depth=1, heads=4)
SINES = replace(STACK, placement="post", position=SinusoidalPosition(order="halves"))
BUCKETS = replace(STACK, norm="rms", scale="none", position=RelativePosition(buckets=8, max_distance=12))
CASES: dict[str, tuple[ModelConfig, str]] = {
    "decoder, learned": (
        DecoderConfig(embedding=WORDS, decoder=replace(STACK, causal=True, position=LearnedPosition(length=40))),
        "logits",
    ),
    "decoder, learned, buckets": (
        DecoderConfig(
            embedding=WORDS, decoder=replace(STACK, causal=True, position=LearnedPosition(length=40, buckets=8))
        ),
        "logits",
    ),
    "encoder, narrow embedding, shared blocks": (
        EncoderConfig(
            embedding=WORDS,
            encoder=replace(
                STACK, depth=2, distinct_blocks=1, embedding_dim=6, position=LearnedPosition(length=40, buckets=8)
            ),
            head=NoHead(),
        ),
        "last_hidden_state",
    ),
    "decoder, rotary, window, grouped": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(
                STACK,
                causal=True,
                position=RotaryPosition(),
                window=4,
                kv_heads=2,
                qk_norm="head",
                gated=True,
                norm="rms",
            ),
        ),
        "logits",
    ),
    "decoder, half rotated, parallel": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(STACK, causal=True, position=RotaryPosition(share=0.5), sublayers="parallel-shared"),
        ),
        "logits",
    ),
    "decoder, norms of outputs and over all heads": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(
                STACK, causal=True, position=RotaryPosition(), kv_heads=2, qk_norm="all", placement="out", norm="rms"
            ),
        ),
        "logits",
    ),
    "decoder, caps, offset norms, windows": (
        DecoderConfig(
            embedding=replace(WORDS, scale="sqrt-rounded"),
            decoder=replace(
                STACK,
                depth=2,
                causal=True,
                position=RotaryPosition(),
                kv_heads=2,
                placement="sandwich",
                norm="rms-offset",
                score_cap=1.0,
                scale=0.4,
                window=(4, None),
            ),
            head=LanguageHead(logit_cap=2.0),
        ),
        "logits",
    ),
    "decoder, learned, windows": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(STACK, depth=2, causal=True, position=LearnedPosition(length=40), window=(3, None)),
        ),
        "logits",
    ),
    "decoder, ALiBi, sequence": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(STACK, causal=True, position=AlibiPosition()),
            head=SequenceHead(pooling="last", pooler=False),
        ),
        "logits",
    ),
    "decoder, experts": (
        DecoderConfig(
            embedding=WORDS,
            decoder=replace(
                STACK, causal=True, position=RotaryPosition(), experts=ExpertsConfig(number=4), gated=True, norm="rms"
            ),
        ),
        "logits",
    ),
    "encoder, experts of a capacity": (
        EncoderConfig(
            embedding=WORDS,
            encoder=replace(
                STACK,
                depth=2,
                position=BUCKETS.position,
                experts=ExpertsConfig(number=3, per_token=1, normalize=False, capacity=2, step=2, router_bias=True),
            ),
            head=NoHead(),
        ),
        "last_hidden_state",
    ),
    "decoder, Transformer-XL": (
        DecoderConfig(embedding=WORDS, decoder=replace(STACK, causal=True, position=CONTENT[1])),
        "logits",
    ),
    "encoder, disentangled, convolution": (
        EncoderConfig(
            embedding=WORDS, encoder=replace(STACK, position=CONTENT[2], convolution=ConvolutionConfig()), head=NoHead()
        ),
        "last_hidden_state",
    ),
    "encoder, windows": (
        EncoderConfig(
            embedding=WORDS,
            encoder=replace(
                STACK, depth=3, window=(None, 3, 4), position=RotaryPosition(window_base=20.0), norm_bias=False
            ),
            head=NoHead(),
        ),
        "last_hidden_state",
    ),
    "encoder, segments": (
        EncoderConfig(
            embedding=replace(WORDS, segments=2),
            encoder=replace(STACK, placement="post", embedding_norm=True, position=LearnedPosition(length=40)),
            head=NoHead(),
        ),
        "last_hidden_state",
    ),
    "encoder, relative segments": (
        EncoderConfig(
            embedding=replace(WORDS, query=True),
            encoder=replace(STACK, placement="post", position=TransformerXLPosition(segments=True, max_distance=4)),
        ),
        "last_hidden_state",
    ),
    "encoder, batch norm, pooled": (
        EncoderConfig(
            embedding=WORDS,
            encoder=replace(STACK, norm="batch", position=SinusoidalPosition()),
            head=PooledHead(normalise=True),
        ),
        "sentence_embedding",
    ),
    "pair, sines": (
        EncoderDecoderConfig(source=WORDS, encoder=SINES, decoder=replace(SINES, causal=True, cross=True)),
        "logits",
    ),
    "pair, buckets": (
        EncoderDecoderConfig(source=WORDS, encoder=BUCKETS, decoder=replace(BUCKETS, causal=True, cross=True)),
        "logits",
    ),
    "pictures, layer scale": (
        VisionConfig(
            patches=PatchConfig(image_size=(8, 12), patch_size=4, channels=2, mask_token=True),
            encoder=replace(STACK, position=LearnedPosition(length=7), layer_scale=0.3, gated=True),
            head=ImageHead(labels=3, tokens="class+mean"),
        ),
        "logits",
    ),
    "pictures": (
        VisionConfig(
            patches=PatchConfig(image_size=(8, 12), patch_size=4, channels=2, prefix="class+distillation"),
            encoder=replace(STACK, position=LearnedPosition(length=8)),
            head=ImageHead(labels=3),
        ),
        "logits",
    ),
}


def randomised(config: ModelConfig) -> Model:
    model = build(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
            elif name.endswith("running_mean"):
                buffer.normal_()
    return model


def inputs(model: Model, rows: int, length: int, target: int) -> dict[str, Tensor]:
    """Random ones; of several rows the first is padded on the right, the second on the left."""
    ids, mask = torch.randint(60, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    if rows > 1:
        mask[0, -2:] = 0
        mask[1, :3] = 0
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    made["decoder_input_ids"] = torch.randint(60, (rows, target))
    if isinstance(model.config, VisionConfig):
        made["pixel_values"] = torch.randn(rows, 2, 8, 12)
    return made


@torch.no_grad()
def wanted(model: Model, given: dict[str, Tensor]) -> Tensor:
    mask = given["attention_mask"].bool()
    if isinstance(model.config, VisionConfig):
        return model(given["pixel_values"])
    if isinstance(model.config, EncoderDecoderConfig):
        return model(given["input_ids"], given["decoder_input_ids"], mask)
    segments = isinstance(model.config, EncoderConfig) and model.config.segments
    return model(given["input_ids"], mask, *([given["token_type_ids"]] if segments else []))
