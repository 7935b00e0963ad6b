"""Every preset: it builds, it survives JSON, and it has exactly as many parameters as transformers' own model."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

import heedful
from heedful import presets
from heedful.config import Config, Position, patches_of
from heedful.errors import HeedfulError

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-v1.1-small": 76_961_152,
    "bart-base": 139_420_416,
    "vit-b/16": 86_567_656,
    "vit-b/32": 88_224_232,
    "vit-l/16": 304_326_632,
    "vit-l/32": 306_535_400,
    "vit-h/14": 632_045_800,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm-135m": 134_515_008,
    "smollm-360m": 361_821_120,
}


def gpt2(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    s = c.decoder
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.embedding.vocab_size,
            n_positions=s.position.length,
            n_embd=s.dim,
            n_layer=s.depth,
            n_head=s.heads,
        )
    )


def llama(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    s = c.decoder
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            intermediate_size=s.ff_dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            tie_word_embeddings=c.head.tied,
        )
    )


def bert(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import BertConfig, BertModel

    s = c.encoder
    return BertModel(
        BertConfig(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            max_position_embeddings=s.position.length,
        )
    )


def t5(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    s = c.encoder
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=c.source.vocab_size,
            d_model=s.dim,
            d_kv=s.head_dim,
            d_ff=s.ff_dim,
            num_layers=s.depth,
            num_heads=s.heads,
            feed_forward_proj="gated-gelu" if s.gated else "relu",
        )
    )  # which always ties its head: the head of 1.1 comes beside
    own = nn.Identity() if c.head.tied else nn.Linear(s.dim, c.source.vocab_size, bias=False)
    return nn.ModuleList((model, own))


def bart(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    s = c.encoder
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=c.source.vocab_size,
            d_model=s.dim,
            encoder_layers=s.depth,
            decoder_layers=s.depth,
            encoder_attention_heads=s.heads,
            decoder_attention_heads=s.heads,
            encoder_ffn_dim=4 * s.dim,
            decoder_ffn_dim=4 * s.dim,
            max_position_embeddings=s.position.length,
        )
    )


def marian(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    s = c.encoder
    return MarianMTModel(
        MarianConfig(
            vocab_size=c.source.vocab_size,
            d_model=s.dim,
            encoder_layers=s.depth,
            decoder_layers=s.depth,
            encoder_attention_heads=s.heads,
            decoder_attention_heads=s.heads,
            encoder_ffn_dim=s.ff_dim,
            decoder_ffn_dim=s.ff_dim,
            pad_token_id=0,
        )
    )


def vit(c: heedful.config.VisionConfig) -> nn.Module:
    from transformers import (
        DeiTConfig,
        DeiTForImageClassificationWithTeacher,
        ViTConfig,
        ViTForImageClassification,
    )

    s, distilled = c.encoder, c.patches.prefix == "class+distillation"
    config, model = (
        (DeiTConfig, DeiTForImageClassificationWithTeacher) if distilled else (ViTConfig, ViTForImageClassification)
    )
    return model(
        config(
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            image_size=c.patches.image_size[0],
            patch_size=c.patches.patch_size,
            num_channels=c.patches.channels,
            num_labels=c.head.labels,
        )
    )


def captioner(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    s, t = c.encoder, c.decoder
    encoder = ViTConfig(
        hidden_size=s.dim,
        num_hidden_layers=s.depth,
        num_attention_heads=s.heads,
        intermediate_size=4 * s.dim,
        image_size=c.source.image_size[0],
        patch_size=c.source.patch_size,
    )
    decoder = GPT2Config(
        vocab_size=c.target.vocab_size,
        n_positions=t.position.length,
        n_embd=t.dim,
        n_layer=t.depth,
        n_head=t.heads,
        is_decoder=True,
        add_cross_attention=True,
    )
    config = VisionEncoderDecoderConfig(encoder=encoder.to_dict(), decoder=decoder.to_dict())
    model = VisionEncoderDecoderModel(config)
    model.encoder.pooler = None  # read by nothing
    return model


# which of transformers' models a preset is, by the beginning of its name
ORACLES: dict[str, Callable[..., nn.Module]] = {
    "gpt": gpt2,
    "tinyllama": llama,
    "smollm": llama,
    "stories": llama,
    "bert": bert,
    "t5": t5,
    "bart": bart,
    "marian": marian,
    "transformer": marian,
    "vit-gpt2": captioner,
    "captioner": captioner,
    "vit": vit,
    "deit": vit,
}


def oracle(name: str) -> Callable[..., nn.Module]:
    return next(made for start, made in ORACLES.items() if name.startswith(start))


def count(model: nn.Module) -> int:
    """Without the tables of sines that Marian keeps among its parameters."""
    frozen = [m for m in model.modules() if "Sinusoidal" in type(m).__name__]
    fixed = {id(p) for m in frozen for p in m.parameters()}
    return sum(p.numel() for p in model.parameters() if id(p) not in fixed)


@pytest.mark.parametrize("name", presets.names())
def test_as_many_parameters_as_transformers(name: str) -> None:
    with torch.device("meta"):
        ours = heedful.create(name)
        theirs = oracle(name)(presets.get(name))
    assert ours.count() == count(theirs)
    assert ours.count() == PUBLISHED.get(name, ours.count())
    assert ours.count() == presets.PRESETS[name][1]


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_survives_json(name: str) -> None:
    config = presets.get(name)
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert type(again) is type(config)
    assert hash(again) == hash(config)


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_runs_without_weights(name: str) -> None:
    """On the meta device: shapes alone, as counting operations needs them."""
    config = presets.get(name)
    with torch.device("meta"):
        model = heedful.create(name)
    model.to("meta")  # tables are computed at once, wherever the weights are
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    if config.kind == "vision":
        pixels = torch.empty(2, config.patches.channels, *config.patches.image_size, device="meta")
        assert model(pixels).shape == (2, config.head.labels)
    elif config.kind == "encoder-decoder":
        source = ids
        if (patches := patches_of(config)) is not None:
            source = torch.empty(2, patches.channels, *patches.image_size, device="meta")
        assert model(source, ids[:, :2]).shape == (2, 2, config.tokens.vocab_size)
    elif config.kind == "decoder":
        assert model(ids).shape == (2, 3, config.embedding.vocab_size)
    else:
        assert model(ids).shape == (2, 3, config.encoder.dim)


def test_every_published_line_is_held() -> None:
    assert PUBLISHED.keys() <= set(presets.names())
    assert all(source for source, *_ in presets.PRESETS.values())


@pytest.mark.parametrize(("wrong", "right"), [("gpt-2", "gpt2"), ("vit-b-16", "vit-b/16"), ("BERT-base", "bert-base")])
def test_an_unknown_name_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(HeedfulError, match=f"unknown preset {wrong!r}; did you mean {right!r}"):
        heedful.create(wrong)


def test_special_tokens_lie_in_the_vocabulary() -> None:
    for name in presets.names():
        config = presets.get(name)
        if config.kind != "vision":
            size = (config.source if config.kind == "encoder-decoder" else config.embedding).vocab_size
            ids = [config.special.pad, config.special.start, *config.special.end]
            assert all(i is None or 0 <= i < size for i in ids), name


def test_positions_are_of_a_known_kind() -> None:
    for name in presets.names():
        config = presets.get(name)
        stack = config.decoder if config.kind == "decoder" else config.encoder
        assert isinstance(stack.position, Position)
