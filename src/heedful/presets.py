"""Presets: published model sizes, one line each, and small models of each family. Imports no torch.

A new size is one line in ``PRESETS``; a new architecture is one function above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from heedful.config import (
    Activation,
    AlibiPosition,
    Config,
    ConvolutionConfig,
    DecoderConfig,
    DisentangledPosition,
    DropoutRates,
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
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
    TransformerXLPosition,
    VisionConfig,
)
from heedful.errors import HeedfulError, nearest
from heedful.util import files


def transformer(
    dim: int,
    depth: int,
    heads: int,
    ff_dim: int,
    vocab: int,
    dropout: float = 0.1,
    activation: Any = "relu",
    special: SpecialTokens | None = None,
) -> EncoderDecoderConfig:
    """Returns the configuration of the original Transformer (Vaswani et al. 2017), as Marian stores it.

    It is post-norm and has one embedding for source and target. In a position's vector all sines come before all
    cosines; this permutation of the paper's order has no effect on training.
    """

    def stack(causal: bool) -> StackConfig:
        return StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            ff_dim=ff_dim,
            placement="post",
            activation=activation,
            position=SinusoidalPosition(order="halves"),
            causal=causal,
            cross=causal,
            dropout=DropoutRates(embedding=dropout, residual=dropout),
            init="xavier",
        )

    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=vocab, scale="sqrt"),
        encoder=stack(False),
        decoder=stack(True),
        special=special or SpecialTokens(pad=0, start=1, end=(2,)),
    )


def t5(
    dim: int, depth: int, heads: int, ff_dim: int, head_dim: int = 64, v1_1: bool = False, vocab: int = 32128
) -> EncoderDecoderConfig:
    """Returns the configuration of a T5 (Raffel et al. 2020): RMS pre-norm, relative positions, unscaled scores.

    With ``v1_1`` it is T5 1.1, whose feed-forward is gated and whose head is not tied.
    """

    def stack(causal: bool) -> StackConfig:
        return StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            head_dim=head_dim,
            ff_dim=ff_dim,
            norm="rms",
            norm_eps=1e-6,
            activation="gelu_tanh" if v1_1 else "relu",
            gated=v1_1,
            attention_bias="none",
            ff_bias=False,
            scale="none",
            position=RelativePosition(),
            causal=causal,
            cross=causal,
            dropout=DropoutRates.everywhere(0.1, attention=0.1),
        )

    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=vocab),
        encoder=stack(False),
        decoder=stack(True),
        head=LanguageHead(tied=not v1_1, scale="none" if v1_1 else "sqrt"),
        special=SpecialTokens(pad=0, start=0, end=(1,)),
    )


def switch(dim: int, depth: int, heads: int, ff_dim: int, experts: int) -> EncoderDecoderConfig:
    """Returns the configuration of a Switch Transformer (Fedus et al. 2021): a T5 with experts in each second block."""
    mixture = ExpertsConfig(
        number=experts, per_token=1, normalize=False, step=2, capacity=64, jitter=0.01, balance=0.001, z_loss=0.001
    )
    config = t5(dim, depth, heads, ff_dim)
    encoder, decoder = (replace(stack, experts=mixture) for stack in (config.encoder, config.decoder))
    return replace(config, encoder=encoder, decoder=decoder)


def bart(dim: int, depth: int, heads: int, vocab: int = 50265, length: int = 1024) -> EncoderDecoderConfig:
    """Returns the configuration of a BART (Lewis et al. 2020).

    It has post-norm, a norm after the embedding, and learned positions, of which the first is row 2 of the table.
    """

    def stack(causal: bool) -> StackConfig:
        return StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            placement="post",
            embedding_norm=True,
            position=LearnedPosition(length=length, offset=2),
            causal=causal,
            cross=causal,
            dropout=DropoutRates(embedding=0.1, residual=0.1),
        )

    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=vocab),
        encoder=stack(False),
        decoder=stack(True),
        special=SpecialTokens(pad=1, start=2, end=(2,)),
    )


def mbart(
    dim: int,
    depth: int,
    heads: int,
    ff_dim: int,
    vocab: int,
    activation: Activation = "gelu",
    position: Position | None = None,
    special: SpecialTokens | None = None,
) -> EncoderDecoderConfig:
    """Returns the configuration of an mBART (Liu et al. 2020): BART with pre-norm, final norms and scaled embeddings.

    With a ``position`` of their own, M2M-100 (Fan et al. 2021) and Pegasus (Zhang et al. 2020) have no embedding norm.
    """
    config = bart(dim, depth, heads, vocab)

    def stack(bart_stack: StackConfig) -> StackConfig:
        own = {} if position is None else {"position": position, "embedding_norm": False}
        return replace(bart_stack, ff_dim=ff_dim, activation=activation, placement="pre", **own)  # type: ignore[arg-type]  # a position and a truth value

    return replace(
        config,
        source=EmbeddingConfig(vocab_size=vocab, scale="sqrt"),
        encoder=stack(config.encoder),
        decoder=stack(config.decoder),
        special=special or config.special,
    )


def m2m_100(dim: int, depth: int, ff_dim: int, vocab: int) -> EncoderDecoderConfig:
    """Returns the configuration of an M2M-100 (Fan et al. 2021) or NLLB-200 (NLLB team 2022), with 16 heads."""
    sines = SinusoidalPosition(order="halves", base=10000.0 ** (dim / (dim - 2)), offset=2)
    return mbart(dim, depth, 16, ff_dim, vocab, "relu", sines)


def gpt2(
    dim: int,
    depth: int,
    heads: int,
    vocab: int = 50257,
    length: int = 1024,
    dropout: float = 0.1,
    std: float = 0.02,
    activation: Any = "gelu_tanh",
) -> DecoderConfig:
    """Returns the configuration of a GPT-2 (Radford et al. 2019).

    It has pre-norm with layer norms, learned positions, GELU in its tanh approximation, and a tied head.
    """
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab),
        decoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            activation=activation,
            position=LearnedPosition(length=length),
            causal=True,
            dropout=DropoutRates(embedding=dropout, attention=dropout, residual=dropout),
            init="scaled",
            init_std=std,
        ),
        special=SpecialTokens(start=vocab - 1, end=(vocab - 1,)) if vocab == 50257 else SpecialTokens(),
    )


def gpt(dim: int, depth: int, heads: int) -> DecoderConfig:
    """Returns the configuration of a GPT (Radford et al. 2018): a GPT-2 with post-norm, for 512 tokens."""
    config = gpt2(dim, depth, heads, vocab=40478, length=512)
    return replace(config, decoder=replace(config.decoder, placement="post", init="normal"))


def opt(dim: int, depth: int, heads: int) -> DecoderConfig:
    """Returns the configuration of an OPT (Zhang et al. 2022, table 1): a GPT-2 with ReLU, for 2,048 tokens."""
    config = gpt2(dim, depth, heads, 50272, activation="relu")
    stack = replace(
        config.decoder,
        position=LearnedPosition(length=2048, offset=2),
        dropout=DropoutRates(residual=0.1),
        init="normal",
    )
    return replace(config, decoder=stack, special=SpecialTokens(pad=1, start=2, end=(2,)))


def bloom(dim: int, depth: int, heads: int) -> DecoderConfig:
    """Returns the configuration of a Bloom (BigScience 2022): a GPT-2 with ALiBi and a norm of the embedding."""
    config = gpt2(dim, depth, heads, 250880, dropout=0.0)
    stack = replace(config.decoder, position=AlibiPosition(), embedding_norm=True, init="normal")
    return replace(config, decoder=stack, special=SpecialTokens(pad=3, start=1, end=(2,)))


def llama(
    dim: int,
    depth: int,
    heads: int,
    kv_heads: int | None,
    ff_dim: int,
    vocab: int = 32000,
    base: float = 10000.0,
    tied: bool = False,
    special: SpecialTokens | None = None,
    length: int = 2048,
    factor: float = 1.0,
    std: float | None = None,
) -> DecoderConfig:
    """Returns the configuration of a Llama (Touvron et al. 2023): RMS pre-norm, rotary positions, SwiGLU, no biases.

    A ``factor`` above 1 is Llama 3.1's scaling of the rotary positions, for ``factor`` times the 8,192 of Llama 3. With
    ``std`` the first weights are GPT-2's, of this standard deviation.
    """
    first: dict[str, Any] = {} if std is None else {"init": "scaled", "init_std": std}
    position = RotaryPosition(base=base, length=length)
    if factor > 1:
        position = replace(position, scaling="llama3", factor=factor, original_length=8192)
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab),
        decoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            kv_heads=kv_heads,
            ff_dim=ff_dim,
            norm="rms",
            activation="silu",
            gated=True,
            attention_bias="none",
            ff_bias=False,
            position=position,
            causal=True,
            **first,
        ),
        head=LanguageHead(tied=tied),
        special=special or SpecialTokens(start=1, end=(2,)),
    )


def llama2(dim: int, depth: int, heads: int, kv_heads: int, ff_dim: int) -> DecoderConfig:
    """Returns the configuration of a Llama 2 (Touvron et al. 2023b): a Llama for 4,096 tokens."""
    return llama(dim, depth, heads, kv_heads, ff_dim, length=4096)


def llama3(
    dim: int, depth: int, heads: int, ff_dim: int, tied: bool = False, length: int = 8192, factor: float = 1.0
) -> DecoderConfig:
    """Returns the configuration of a Llama 3 (Grattafiori et al. 2024): 8 key-value heads, 128,256 tokens."""
    special = SpecialTokens(start=128000, end=(128001,))
    return llama(dim, depth, heads, 8, ff_dim, 128256, 500000.0, tied, special, length, factor)


def phi3(
    dim: int,
    depth: int,
    heads: int,
    kv_heads: int,
    ff_dim: int,
    vocab: int = 32064,
    base: float = 10000.0,
    length: int = 4096,
    window: int | None = 2047,
    special: SpecialTokens | None = None,
) -> DecoderConfig:
    """Returns the configuration of a Phi-3 (Abdin et al. 2024): a Llama with a sliding window, or of a Phi-4."""
    special = special or SpecialTokens(pad=32000, start=1, end=(32000,))
    config = llama(dim, depth, heads, kv_heads, ff_dim, vocab, base, special=special, length=length)
    return replace(config, decoder=replace(config.decoder, window=window))


def mixtral(dim: int, depth: int, heads: int, ff_dim: int, length: int) -> DecoderConfig:
    """Returns the configuration of a Mixtral (Jiang et al. 2024): a Llama with two of eight experts for each token."""
    config = llama(dim, depth, heads, 8, ff_dim, base=1e6, length=length)
    return replace(config, decoder=replace(config.decoder, experts=ExpertsConfig(balance=0.001)))


def olmo2(dim: int, depth: int, heads: int, kv_heads: int, ff_dim: int) -> DecoderConfig:
    """Returns the configuration of an OLMo 2 (OLMo team 2025): a Llama with norms on the outputs of the sublayers.

    Queries and keys are normed over all heads together.
    """
    special = SpecialTokens(pad=100277, end=(100257,))
    config = llama(dim, depth, heads, kv_heads, ff_dim, 100352, 500000.0, special=special, length=4096)
    return replace(config, decoder=replace(config.decoder, placement="out", qk_norm="all", norm_eps=1e-6))


def gemma2(
    dim: int, depth: int, heads: int, kv_heads: int, ff_dim: int, head_dim: int = 256, scale: Any = "sqrt"
) -> DecoderConfig:
    """Returns the configuration of a Gemma 2 (Gemma team 2024): sandwich RMS norms and soft caps.

    Blocks with a window of 4,096 tokens alternate with dense ones.
    """
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=256000, scale="sqrt-rounded"),
        decoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ff_dim=ff_dim,
            norm="rms-offset",
            norm_eps=1e-6,
            placement="sandwich",
            activation="gelu_tanh",
            gated=True,
            attention_bias="none",
            ff_bias=False,
            scale=scale,
            score_cap=50.0,
            position=RotaryPosition(length=8192),
            causal=True,
            window=(4096, None),
        ),
        head=LanguageHead(logit_cap=30.0),
        special=SpecialTokens(pad=0, start=2, end=(1,)),
    )


def gpt3(dim: int, depth: int, heads: int) -> DecoderConfig:
    """Returns the configuration of a GPT-3 (Brown et al. 2020, table 2.1): a GPT-2 for 2,048 tokens.

    All blocks are dense. In the paper dense blocks and banded ones alternate, by a band that it does not tell:
    ``stack.window``, or ``--model.window 0,256``, sets one.
    """
    return gpt2(dim, depth, heads, length=2048)


def pythia(dim: int, depth: int, heads: int, vocab: int = 50304, activation: Any = "gelu") -> DecoderConfig:
    """Returns the configuration of a Pythia (Biderman et al. 2023), a GPT-NeoX (Black et al. 2022).

    It has pre-norm with layer norms, attention and feed-forward in parallel, a quarter of each head rotated, and a head
    that is not tied.
    """
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab),
        decoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            activation=activation,
            sublayers="parallel",
            position=RotaryPosition(length=2048, share=0.25),
            causal=True,
        ),
        head=LanguageHead(tied=False),
        special=SpecialTokens(start=0, end=(0,)),
    )


def gptj(dim: int, depth: int, heads: int, rotated: int, vocab: int = 50400) -> DecoderConfig:
    """Returns the configuration of a GPT-J (Wang and Komatsuzaki 2021); of a head ``rotated`` features are rotated.

    One norm serves attention and feed-forward, which are parallel; attention has no biases, and the head has one.
    """
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab),
        decoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            activation="gelu_tanh",
            sublayers="parallel-shared",
            attention_bias="none",
            position=RotaryPosition(length=2048, share=rotated * heads / dim),
            causal=True,
        ),
        head=LanguageHead(tied=False, bias=True),
        special=SpecialTokens(start=50256, end=(50256,)),
    )


def bert(dim: int, depth: int, heads: int, vocab: int = 30522, length: int = 512) -> EncoderConfig:
    """Returns the configuration of a BERT (Devlin et al. 2019) with its pooler and without a head.

    It has post-norm, a norm after the embedding, learned positions and two segments.
    """
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab, segments=2),
        encoder=_post_norm_encoder(dim, depth, heads, norm_eps=1e-12, position=LearnedPosition(length=length)),
        head=NoHead(pooler=True),
        special=SpecialTokens(pad=0),
    )


def roberta(dim: int, depth: int, heads: int, vocab: int, special: SpecialTokens) -> EncoderConfig:
    """Returns the configuration of a RoBERTa (Liu et al. 2019) with its pooler and without a head.

    It is a BERT of one segment, whose positions begin at the row after the padding token's id.
    """
    position = LearnedPosition(length=512, offset=(special.pad or 0) + 1)
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab, segments=1),
        encoder=_post_norm_encoder(dim, depth, heads, norm_eps=1e-5, position=position),
        head=NoHead(pooler=True),
        special=special,
    )


def distilbert(dim: int, depth: int, heads: int) -> EncoderConfig:
    """Returns the configuration of a DistilBERT (Sanh et al. 2019): a BERT without segments, pooler and head."""
    return replace(bert(dim, depth, heads), embedding=EmbeddingConfig(vocab_size=30522), head=NoHead())


def electra(dim: int, depth: int, heads: int, embedding_dim: int | None = None) -> EncoderConfig:
    """Returns the configuration of an ELECTRA (Clark et al. 2020) without a head.

    It is a BERT without a pooler, whose embedding may be narrower and is then projected.
    """
    config = bert(dim, depth, heads)
    return replace(config, encoder=replace(config.encoder, embedding_dim=embedding_dim), head=NoHead())


def albert(dim: int, depth: int, heads: int) -> EncoderConfig:
    """Returns the configuration of an ALBERT (Lan et al. 2020), version 2, with its pooler and without a head.

    All its blocks share their weights. The embedding has a width of 128; there is no dropout.
    """
    config = bert(dim, depth, heads, 30000)
    changes: dict[str, Any] = {"embedding_dim": 128, "distinct_blocks": 1, "activation": "gelu_tanh"}
    stack = replace(config.encoder, dropout=DropoutRates(), **changes)
    return replace(config, encoder=stack, special=SpecialTokens(pad=0, start=2, end=(3,)))


def mpnet(dim: int, depth: int, heads: int) -> EncoderConfig:
    """Returns the configuration of an MPNet (Song et al. 2020) with its pooler and without a head.

    It is a RoBERTa without segments, whose scores have also a bias for the distance of query and key.
    """
    config = roberta(dim, depth, heads, 30527, _ROBERTA)
    position = LearnedPosition(length=512, offset=2, buckets=32)
    return replace(
        config, embedding=EmbeddingConfig(vocab_size=30527), encoder=replace(config.encoder, position=position)
    )


def deberta(dim: int, depth: int, heads: int, convolution: ConvolutionConfig | None = None) -> EncoderConfig:
    """Returns the configuration of a DeBERTa v3 (He et al. 2023), or v2 (He et al. 2021), without a head.

    It has post-norm, a norm after the embedding and disentangled attention, whose position rows are normed and pass the
    projections of the content. The first block of v2 has a convolution beside it.
    """
    position = DisentangledPosition(length=512, buckets=256, norm=True)
    stack = _post_norm_encoder(dim, depth, heads, norm_eps=1e-7, position=position, convolution=convolution)
    return EncoderConfig(embedding=EmbeddingConfig(vocab_size=128100), encoder=stack, special=SpecialTokens(pad=0))


def deberta_v1(dim: int, depth: int, heads: int) -> EncoderConfig:
    """Returns the configuration of the first DeBERTa (He et al. 2021) without a head.

    Its position rows have projections of their own, and keys have no bias.
    """
    position = DisentangledPosition(length=512, projections="own")
    stack = _post_norm_encoder(dim, depth, heads, norm_eps=1e-7, position=position, attention_bias="all-but-key")
    return EncoderConfig(embedding=EmbeddingConfig(vocab_size=50265), encoder=stack, special=SpecialTokens(pad=0))


def _post_norm_encoder(dim: int, depth: int, heads: int, **more: Any) -> StackConfig:
    """Returns BERT's stack: post-norm, a norm after the embedding, dropout of 0.1; ``more`` are further fields."""
    rates = DropoutRates(embedding=0.1, attention=0.1, residual=0.1)
    return StackConfig(dim=dim, depth=depth, heads=heads, placement="post", embedding_norm=True, dropout=rates, **more)


def modernbert(dim: int, depth: int, heads: int, ff_dim: int) -> EncoderConfig:
    """Returns the configuration of a ModernBERT (Warner et al. 2024) without a head.

    It has pre-norm without biases, gated GELU, and rotary positions. Two of three blocks attend to 64 tokens on each
    side, and have a rotary base of their own.
    """
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=50368),
        encoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            ff_dim=ff_dim,
            norm_bias=False,
            embedding_norm=True,
            first_norm=False,
            gated=True,
            attention_bias="none",
            ff_bias=False,
            position=RotaryPosition(length=8192, base=160000.0, window_base=10000.0),
            window=(None, 128, 128),
        ),
        special=SpecialTokens(pad=50283, start=50281, end=(50282,)),
    )


def xlnet(dim: int, depth: int, heads: int, vocab: int = 32000) -> EncoderConfig:
    """Returns the configuration of an XLNet (Yang et al. 2019) without a head.

    It has post-norm, Transformer-XL's positions, relative segments, and the vector that begins the query stream.
    """
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=vocab, query=True),
        encoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            norm_eps=1e-12,
            placement="post",
            attention_bias="none",
            position=TransformerXLPosition(segments=True),
            dropout=DropoutRates.everywhere(0.1, attention=0.1),
        ),
        special=SpecialTokens(pad=5, start=1, end=(2,)),
        class_token="last",
    )


def vit(
    dim: int,
    depth: int,
    heads: int,
    patch: int,
    image: int = 224,
    channels: int = 3,
    prefix: Any = "class",
    labels: int = 1000,
    std: float = 0.02,
) -> VisionConfig:
    """Returns the configuration of a ViT (Dosovitskiy et al. 2021) or DeiT (Touvron et al. 2021).

    It has pre-norm with layer norms, learned positions and, by default, a class token.
    """
    patches = PatchConfig(image_size=(image, image), patch_size=patch, channels=channels, prefix=prefix)
    return VisionConfig(
        patches=patches,
        encoder=StackConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            norm_eps=1e-12,
            position=LearnedPosition(length=patches.tokens),
            init="truncated",
            init_std=std,
        ),
        head=ImageHead(labels=labels),
    )


def dinov2(dim: int, depth: int, heads: int, gated: bool = False) -> VisionConfig:
    """Returns the configuration of a DINOv2 (Oquab et al. 2024) without a head: a ViT with layer scale, for 518 × 518.

    The largest has a gated feed-forward network.
    """
    body = vit(dim, depth, heads, 14, image=518)
    encoder = replace(body.encoder, norm_eps=1e-6, layer_scale=1.0)
    if gated:
        encoder = replace(encoder, ff_dim=8 * dim // 3, gated=True, activation="silu")
    return replace(body, patches=replace(body.patches, mask_token=True), encoder=encoder, head=NoHead())


def captioner(vision: VisionConfig, text: DecoderConfig, special: SpecialTokens | None = None) -> EncoderDecoderConfig:
    """Returns the configuration of a vision encoder and a text decoder that attends to its patches.

    The encoder is that of ``vision``, and the decoder that of ``text`` with cross-attention in each block.
    """
    return EncoderDecoderConfig(
        source=vision.patches,
        target=text.embedding,
        encoder=vision.encoder,
        decoder=replace(text.decoder, cross=True),
        head=text.head,
        special=special or text.special,
    )


_MARIAN = SpecialTokens(pad=58100, start=58100, end=(0,))
_PEGASUS, _SINES = SpecialTokens(pad=0, start=0, end=(1,)), SinusoidalPosition(order="halves")
_STORY = SpecialTokens(start=1, end=(1, 2))
_ROBERTA = SpecialTokens(pad=1, start=0, end=(2,))
_CAMEMBERT = SpecialTokens(pad=1, start=5, end=(6,))
_NGRAMS = ConvolutionConfig(size=3, activation="gelu")
_CAPTIONS = SpecialTokens(pad=0, start=1, end=(2,))

# The published std of 0.02 is for wide models; narrow ones learn far more in the same steps with about 0.7/√dim.
# name: (publication, number of parameters, configuration)
PRESETS: dict[str, tuple[str, int, Callable[[], ModelConfig]]] = {
    # encoder-decoder
    "transformer-base": ("Vaswani et al. 2017, table 3", 63_082_496, lambda: transformer(512, 6, 8, 2048, 37000)),
    "transformer-big": (
        "Vaswani et al. 2017, table 3",
        214_245_376,
        lambda: transformer(1024, 6, 16, 4096, 37000, 0.3),
    ),
    "transformer-small": ("laptop", 9_420_800, lambda: transformer(256, 4, 4, 1024, 8000)),
    "transformer-tiny": ("laptop", 1_900_544, lambda: transformer(128, 3, 4, 512, 4000)),
    "marian": ("OPUS-MT, en-de", 73_886_208, lambda: transformer(512, 6, 8, 2048, 58101, 0.1, "silu", _MARIAN)),
    "t5-small": ("Raffel et al. 2020", 60_506_624, lambda: t5(512, 6, 8, 2048)),
    "t5-base": ("Raffel et al. 2020", 222_903_552, lambda: t5(768, 12, 12, 3072)),
    "t5-large": ("Raffel et al. 2020", 737_668_096, lambda: t5(1024, 24, 16, 4096)),
    "t5-3b": ("Raffel et al. 2020", 2_851_598_336, lambda: t5(1024, 24, 32, 16384, 128)),
    "t5-11b": ("Raffel et al. 2020", 11_307_321_344, lambda: t5(1024, 24, 128, 65536, 128)),
    "t5-v1.1-small": ("Raffel et al. 2020, 1.1", 76_961_152, lambda: t5(512, 8, 6, 1024, v1_1=True)),
    "t5-v1.1-base": ("Raffel et al. 2020, 1.1", 247_577_856, lambda: t5(768, 12, 12, 2048, v1_1=True)),
    "t5-v1.1-large": ("Raffel et al. 2020, 1.1", 783_150_080, lambda: t5(1024, 24, 16, 2816, v1_1=True)),
    "t5-v1.1-xl": ("Raffel et al. 2020, 1.1", 2_849_757_184, lambda: t5(2048, 24, 32, 5120, v1_1=True)),
    "t5-v1.1-xxl": ("Raffel et al. 2020, 1.1", 11_135_332_352, lambda: t5(4096, 24, 64, 10240, v1_1=True)),
    "switch-base-8": ("Fedus et al. 2021", 619_339_008, lambda: switch(768, 12, 12, 3072, 8)),
    "switch-base-16": ("Fedus et al. 2021", 1_072_397_568, lambda: switch(768, 12, 12, 3072, 16)),
    "switch-base-32": ("Fedus et al. 2021", 1_978_514_688, lambda: switch(768, 12, 12, 3072, 32)),
    "switch-base-64": ("Fedus et al. 2021", 3_790_748_928, lambda: switch(768, 12, 12, 3072, 64)),
    "switch-base-128": ("Fedus et al. 2021", 7_415_217_408, lambda: switch(768, 12, 12, 3072, 128)),
    # T5 1.1 of sizes xl and xxl, trained on as a language model and then on prompts
    "t0-3b": ("Sanh et al. 2022", 2_849_757_184, lambda: t5(2048, 24, 32, 5120, v1_1=True)),
    "t0": ("Sanh et al. 2022", 11_135_332_352, lambda: t5(4096, 24, 64, 10240, v1_1=True)),
    "bart-base": ("Lewis et al. 2020", 139_420_416, lambda: bart(768, 6, 12)),
    "bart-large": ("Lewis et al. 2020", 406_291_456, lambda: bart(1024, 12, 16)),
    "mbart-large-cc25": ("Liu et al. 2020", 610_851_840, lambda: mbart(1024, 12, 16, 4096, 250027)),
    "mbart-large-50": ("Tang et al. 2020", 610_879_488, lambda: mbart(1024, 12, 16, 4096, 250054)),
    "m2m100-418m": ("Fan et al. 2021", 483_905_536, lambda: m2m_100(1024, 12, 4096, 128112)),
    "m2m100-1.2b": ("Fan et al. 2021", 1_239_470_080, lambda: m2m_100(1024, 24, 8192, 128112)),
    "nllb-200-600m": ("NLLB team 2022", 615_073_792, lambda: m2m_100(1024, 12, 4096, 256206)),
    "nllb-200-1.3b": ("NLLB team 2022", 1_370_638_336, lambda: m2m_100(1024, 24, 8192, 256206)),
    "nllb-200-3.3b": ("NLLB team 2022", 3_344_863_232, lambda: m2m_100(2048, 24, 8192, 256206)),
    "pegasus-large": (
        "Zhang et al. 2020",
        568_699_904,
        lambda: mbart(1024, 16, 16, 4096, 96103, "relu", _SINES, _PEGASUS),
    ),
    "mt5-small": ("Xue et al. 2021", 300_176_768, lambda: t5(512, 8, 6, 1024, v1_1=True, vocab=250112)),
    "mt5-base": ("Xue et al. 2021", 582_401_280, lambda: t5(768, 12, 12, 2048, v1_1=True, vocab=250112)),
    "mt5-large": ("Xue et al. 2021", 1_229_581_312, lambda: t5(1024, 24, 16, 2816, v1_1=True, vocab=250112)),
    "mt5-xl": ("Xue et al. 2021", 3_742_619_648, lambda: t5(2048, 24, 32, 5120, v1_1=True, vocab=250112)),
    "mt5-xxl": ("Xue et al. 2021", 12_921_057_280, lambda: t5(4096, 24, 64, 10240, v1_1=True, vocab=250112)),
    "vit-gpt2": ("ViT-B/16 and GPT-2", 238_605_312, lambda: captioner(vit(768, 12, 12, 16), gpt2(768, 12, 12))),
    "captioner-micro": (
        "laptop",
        881_344,
        lambda: captioner(
            vit(64, 4, 4, 4, image=32, std=0.08), gpt2(128, 2, 4, 1000, 64, 0.0, 0.06, "gelu"), _CAPTIONS
        ),
    ),
    # decoder
    "openai-gpt": ("Radford et al. 2018", 116_534_784, lambda: gpt(768, 12, 12)),
    "gpt2": ("Radford et al. 2019", 124_439_808, lambda: gpt2(768, 12, 12)),
    "gpt2-medium": ("Radford et al. 2019", 354_823_168, lambda: gpt2(1024, 24, 16)),
    "gpt2-large": ("Radford et al. 2019", 774_030_080, lambda: gpt2(1280, 36, 20)),
    "gpt2-xl": ("Radford et al. 2019", 1_557_611_200, lambda: gpt2(1600, 48, 25)),
    # In table 2.1 the 13B has a width of 5140 and the 1.3B has 24 heads of 128. With 5120 and 16 heads, the counts are
    # those of the paper's table D.1.
    "gpt3-125m": ("Brown et al. 2020, table 2.1", 125_226_240, lambda: gpt3(768, 12, 12)),
    "gpt3-350m": ("Brown et al. 2020, table 2.1", 355_871_744, lambda: gpt3(1024, 24, 16)),
    "gpt3-760m": ("Brown et al. 2020, table 2.1", 760_300_032, lambda: gpt3(1536, 24, 16)),
    "gpt3-1.3b": ("Brown et al. 2020, table 2.1", 1_315_723_264, lambda: gpt3(2048, 24, 16)),
    "gpt3-2.7b": ("Brown et al. 2020, table 2.1", 2_651_553_280, lambda: gpt3(2560, 32, 32)),
    "gpt3-6.7b": ("Brown et al. 2020, table 2.1", 6_658_404_352, lambda: gpt3(4096, 32, 32)),
    "gpt3-13b": ("Brown et al. 2020, table 2.1", 12_853_386_240, lambda: gpt3(5120, 40, 40)),
    "gpt3-175b": ("Brown et al. 2020, table 2.1", 174_604_259_328, lambda: gpt3(12288, 96, 96)),
    # 350M has post-norm and an embedding of half the width
    "opt-125m": ("Zhang et al. 2022, table 1", 125_239_296, lambda: opt(768, 12, 12)),
    "opt-1.3b": ("Zhang et al. 2022, table 1", 1_315_758_080, lambda: opt(2048, 24, 32)),
    "opt-2.7b": ("Zhang et al. 2022, table 1", 2_651_596_800, lambda: opt(2560, 32, 32)),
    "opt-6.7b": ("Zhang et al. 2022, table 1", 6_658_473_984, lambda: opt(4096, 32, 32)),
    "opt-13b": ("Zhang et al. 2022, table 1", 12_853_473_280, lambda: opt(5120, 40, 40)),
    "opt-30b": ("Zhang et al. 2022, table 1", 29_974_540_288, lambda: opt(7168, 48, 56)),
    "opt-66b": ("Zhang et al. 2022, table 1", 65_719_701_504, lambda: opt(9216, 64, 72)),
    "opt-175b": ("Zhang et al. 2022, table 1", 174_604_468_224, lambda: opt(12288, 96, 96)),
    "gpt-j-6b": ("Wang and Komatsuzaki 2021", 6_050_882_784, lambda: gptj(4096, 28, 16, 64)),
    "gpt-neox-20b": ("Black et al. 2022", 20_554_567_680, lambda: pythia(6144, 44, 64, 50432, "gelu_tanh")),
    "pythia-70m": ("Biderman et al. 2023, table 1", 70_426_624, lambda: pythia(512, 6, 8)),
    "pythia-160m": ("Biderman et al. 2023, table 1", 162_322_944, lambda: pythia(768, 12, 12)),
    "pythia-410m": ("Biderman et al. 2023, table 1", 405_334_016, lambda: pythia(1024, 24, 16)),
    "pythia-1b": ("Biderman et al. 2023, table 1", 1_011_781_632, lambda: pythia(2048, 16, 8)),
    "pythia-1.4b": ("Biderman et al. 2023, table 1", 1_414_647_808, lambda: pythia(2048, 24, 16)),
    "pythia-2.8b": ("Biderman et al. 2023, table 1", 2_775_208_960, lambda: pythia(2560, 32, 32)),
    "pythia-6.9b": ("Biderman et al. 2023, table 1", 6_857_302_016, lambda: pythia(4096, 32, 32, 50432)),
    "pythia-12b": ("Biderman et al. 2023, table 1", 11_846_072_320, lambda: pythia(5120, 36, 40, 50688)),
    "bloom-560m": ("BigScience 2022", 559_214_592, lambda: bloom(1024, 24, 16)),
    "bloom-1b1": ("BigScience 2022", 1_065_314_304, lambda: bloom(1536, 24, 16)),
    "bloom-1b7": ("BigScience 2022", 1_722_408_960, lambda: bloom(2048, 24, 16)),
    "bloom-3b": ("BigScience 2022", 3_002_557_440, lambda: bloom(2560, 30, 32)),
    "bloom-7b1": ("BigScience 2022", 7_069_016_064, lambda: bloom(4096, 30, 32)),
    "bloom": ("BigScience 2022", 176_247_271_424, lambda: bloom(14336, 70, 112)),
    "gpt-mini": ("laptop", 10_770_816, lambda: gpt2(384, 6, 6, 65, 256, 0.2, 0.035, "gelu")),
    "gpt-micro": ("laptop", 809_856, lambda: gpt2(128, 4, 4, 65, 64, 0.0, 0.06, "gelu")),
    "llama-mini": ("laptop", 10_646_784, lambda: llama(384, 6, 6, None, 1024, 65, tied=True, length=256, std=0.035)),
    "llama-micro": ("laptop", 800_000, lambda: llama(128, 4, 4, None, 344, 65, tied=True, length=256, std=0.06)),
    "tinyllama-1.1b": ("Zhang et al. 2024", 1_100_048_384, lambda: llama(2048, 22, 32, 4, 5632)),
    "llama2-7b": ("Touvron et al. 2023", 6_738_415_616, lambda: llama2(4096, 32, 32, 32, 11008)),
    "llama2-13b": ("Touvron et al. 2023", 13_015_864_320, lambda: llama2(5120, 40, 40, 40, 13824)),
    "llama2-70b": ("Touvron et al. 2023", 68_976_648_192, lambda: llama2(8192, 80, 64, 8, 28672)),
    "llama3-8b": ("Grattafiori et al. 2024", 8_030_261_248, lambda: llama3(4096, 32, 32, 14336)),
    "llama3-70b": ("Grattafiori et al. 2024", 70_553_706_496, lambda: llama3(8192, 80, 64, 28672)),
    "llama3.2-1b": ("Llama 3.2, 2024", 1_235_814_400, lambda: llama3(2048, 16, 32, 8192, True, 131072, 32.0)),
    "llama3.2-3b": ("Llama 3.2, 2024", 3_212_749_824, lambda: llama3(3072, 28, 24, 8192, True, 131072, 32.0)),
    "mixtral-8x7b": ("Jiang et al. 2024", 46_702_792_704, lambda: mixtral(4096, 32, 32, 14336, 32768)),
    "mixtral-8x22b": ("Mixtral 8x22B, 2024", 140_620_634_112, lambda: mixtral(6144, 56, 48, 16384, 65536)),
    "olmo2-1b": ("OLMo 2, 2025", 1_484_916_736, lambda: olmo2(2048, 16, 16, 16, 8192)),
    "olmo2-7b": ("OLMo team 2025", 7_298_617_344, lambda: olmo2(4096, 32, 32, 32, 11008)),
    "olmo2-13b": ("OLMo team 2025", 13_716_198_400, lambda: olmo2(5120, 40, 40, 40, 13824)),
    "olmo2-32b": ("OLMo 2, 2025", 32_234_279_936, lambda: olmo2(5120, 64, 40, 8, 27648)),
    "gemma2-2b": ("Gemma team 2024", 2_614_341_888, lambda: gemma2(2304, 26, 8, 4, 9216)),
    "gemma2-9b": ("Gemma team 2024", 9_241_705_984, lambda: gemma2(3584, 42, 16, 8, 14336)),
    "gemma2-27b": (
        "Gemma team 2024",
        27_227_128_320,
        lambda: gemma2(4608, 46, 32, 16, 36864, head_dim=128, scale=144**-0.5),
    ),
    "smollm-135m": ("SmolLM, 2024", 134_515_008, lambda: llama(576, 30, 9, 3, 1536, 49152, tied=True)),
    "smollm-360m": ("SmolLM, 2024", 361_821_120, lambda: llama(960, 32, 15, 5, 2560, 49152, tied=True)),
    "phi3-mini": ("Abdin et al. 2024", 3_821_079_552, lambda: phi3(3072, 32, 32, 32, 8192)),
    "phi3-medium": ("Abdin et al. 2024", 13_960_238_080, lambda: phi3(5120, 40, 40, 10, 17920)),
    "phi4": (
        "Abdin et al. 2024b",
        14_659_507_200,
        lambda: phi3(
            5120, 40, 40, 10, 17920, 100352, 250000.0, 16384, None, SpecialTokens(start=100257, end=(100257,))
        ),
    ),
    "stories15m": (
        "llama2.c, 2023",
        15_191_712,
        lambda: llama(288, 6, 6, 6, 768, tied=True, special=_STORY, length=256),
    ),
    "stories260k": (
        "llama2.c, 2023",
        260_032,
        lambda: llama(64, 5, 8, 4, 172, 512, tied=True, special=_STORY, length=512),
    ),
    # encoder
    "bert-base": ("Devlin et al. 2019", 109_482_240, lambda: bert(768, 12, 12)),
    "bert-large": ("Devlin et al. 2019", 335_141_888, lambda: bert(1024, 24, 16)),
    "distilbert-base": ("Sanh et al. 2019", 66_362_880, lambda: distilbert(768, 6, 12)),
    "roberta-base": ("Liu et al. 2019", 124_645_632, lambda: roberta(768, 12, 12, 50265, _ROBERTA)),
    "roberta-large": ("Liu et al. 2019", 355_359_744, lambda: roberta(1024, 24, 16, 50265, _ROBERTA)),
    "xlm-roberta-base": ("Conneau et al. 2020", 278_043_648, lambda: roberta(768, 12, 12, 250002, _ROBERTA)),
    "xlm-roberta-large": ("Conneau et al. 2020", 559_890_432, lambda: roberta(1024, 24, 16, 250002, _ROBERTA)),
    "camembert-base": ("Martin et al. 2020", 110_621_952, lambda: roberta(768, 12, 12, 32005, _CAMEMBERT)),
    "camembert-large": ("Martin et al. 2020", 336_661_504, lambda: roberta(1024, 24, 16, 32005, _CAMEMBERT)),
    "electra-small": ("Clark et al. 2020", 13_483_008, lambda: electra(256, 12, 4, 128)),
    "electra-base": ("Clark et al. 2020", 108_891_648, lambda: electra(768, 12, 12)),
    "electra-large": ("Clark et al. 2020", 334_092_288, lambda: electra(1024, 24, 16)),
    "albert-base": ("Lan et al. 2020, v2", 11_683_584, lambda: albert(768, 12, 12)),
    "albert-large": ("Lan et al. 2020, v2", 17_683_968, lambda: albert(1024, 24, 16)),
    "albert-xlarge": ("Lan et al. 2020, v2", 58_724_864, lambda: albert(2048, 24, 16)),
    "albert-xxlarge": ("Lan et al. 2020, v2", 222_595_584, lambda: albert(4096, 12, 64)),
    "mpnet-base": ("Song et al. 2020", 109_486_464, lambda: mpnet(768, 12, 12)),
    "deberta-base": ("He et al. 2021", 138_601_728, lambda: deberta_v1(768, 12, 12)),
    "deberta-large": ("He et al. 2021", 405_163_008, lambda: deberta_v1(1024, 24, 16)),
    "deberta-xlarge": ("He et al. 2021", 757_804_032, lambda: deberta_v1(1024, 48, 16)),
    "deberta-v3-xsmall": ("He et al. 2023", 70_682_112, lambda: deberta(384, 12, 6)),
    "deberta-v3-small": ("He et al. 2023", 141_304_320, lambda: deberta(768, 6, 12)),
    "deberta-v3-base": ("He et al. 2023", 183_831_552, lambda: deberta(768, 12, 12)),
    "deberta-v3-large": ("He et al. 2023", 434_012_160, lambda: deberta(1024, 24, 16)),
    "deberta-v2-xlarge": ("He et al. 2021", 884_593_152, lambda: deberta(1536, 24, 24, _NGRAMS)),
    "deberta-v2-xxlarge": ("He et al. 2021", 1_564_549_632, lambda: deberta(1536, 48, 24, _NGRAMS)),
    "modernbert-base": ("Warner et al. 2024, table 4", 149_014_272, lambda: modernbert(768, 22, 12, 1152)),
    "modernbert-large": ("Warner et al. 2024, table 4", 394_781_696, lambda: modernbert(1024, 28, 16, 2624)),
    "xlnet-base": ("Yang et al. 2019", 116_718_336, lambda: xlnet(768, 12, 12)),
    "xlnet-large": ("Yang et al. 2019", 360_268_800, lambda: xlnet(1024, 24, 16)),
    "bert-mini": ("Turc et al. 2019", 11_170_560, lambda: bert(256, 4, 4)),
    "bert-tiny": ("Turc et al. 2019", 4_385_920, lambda: bert(128, 2, 2)),
    # vision
    "vit-b/16": ("Dosovitskiy et al. 2021, table 1", 86_567_656, lambda: vit(768, 12, 12, 16)),
    "vit-b/32": ("Dosovitskiy et al. 2021, table 1", 88_224_232, lambda: vit(768, 12, 12, 32)),
    "vit-l/16": ("Dosovitskiy et al. 2021, table 1", 304_326_632, lambda: vit(1024, 24, 16, 16)),
    "vit-l/32": ("Dosovitskiy et al. 2021, table 1", 306_535_400, lambda: vit(1024, 24, 16, 32)),
    "vit-h/14": ("Dosovitskiy et al. 2021, table 1", 632_045_800, lambda: vit(1280, 32, 16, 14)),
    "deit-ti": ("Touvron et al. 2021, table 1", 5_717_416, lambda: vit(192, 12, 3, 16)),
    "deit-s": ("Touvron et al. 2021, table 1", 22_050_664, lambda: vit(384, 12, 6, 16)),
    "deit-b": ("Touvron et al. 2021, table 1", 86_567_656, lambda: vit(768, 12, 12, 16)),
    "deit-ti-distilled": ("Touvron et al. 2021", 5_910_800, lambda: vit(192, 12, 3, 16, prefix="class+distillation")),
    "deit-s-distilled": ("Touvron et al. 2021", 22_436_432, lambda: vit(384, 12, 6, 16, prefix="class+distillation")),
    "deit-b-distilled": ("Touvron et al. 2021", 87_338_192, lambda: vit(768, 12, 12, 16, prefix="class+distillation")),
    "dinov2-s/14": ("Oquab et al. 2024", 22_056_576, lambda: dinov2(384, 12, 6)),
    "dinov2-b/14": ("Oquab et al. 2024", 86_580_480, lambda: dinov2(768, 12, 12)),
    "dinov2-l/14": ("Oquab et al. 2024", 304_368_640, lambda: dinov2(1024, 24, 16)),
    "dinov2-g/14": ("Oquab et al. 2024", 1_136_480_768, lambda: dinov2(1536, 40, 24, gated=True)),
    "vit-mini": ("laptop", 4_028_170, lambda: vit(192, 9, 3, 4, image=32, labels=10, std=0.05)),
    "vit-micro": ("laptop", 205_066, lambda: vit(64, 4, 4, 7, image=28, channels=1, labels=10, std=0.08)),
}


def names() -> list[str]:
    """Returns all preset names."""
    return list(PRESETS)


def describe() -> list[dict[str, str | int]]:
    """Returns every preset's name, family, number of parameters and source."""
    return [
        {"name": name, "family": get(name).kind, "parameters": parameters, "source": source}
        for name, (source, parameters, _) in PRESETS.items()
    ]


def get(name: str) -> ModelConfig:
    """Returns the configuration of a preset, or the configuration in a file: a path that ends in ``.json``.

    The file holds a dictionary as ``to_dict`` writes it. Raises ``HeedfulError`` with the nearest name for an unknown
    preset, and for a file that is missing or holds no configuration of a model.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    if name not in PRESETS:
        raise HeedfulError(f"unknown preset {name!r}; {nearest(name, PRESETS)}; or give a .json file")
    return _built(name)


@cache
def _built(name: str) -> ModelConfig:
    return PRESETS[name][2]()


def _read(path: Path) -> ModelConfig:
    values = files.read_json(path, "give a configuration as config.to_dict() writes it")
    if not isinstance(values, dict):
        raise HeedfulError(f"{path} holds no JSON object; give a configuration as config.to_dict() writes it")
    try:
        config = Config.from_dict(values)
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error}") from None
    if not isinstance(config, ModelConfig):
        raise HeedfulError(f"{path} holds a configuration of kind {config.kind!r}; give that of a model")
    return config
