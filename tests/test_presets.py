"""Every preset: it builds, it survives JSON, and it has exactly as many parameters as transformers' own model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import heedful
from heedful import presets
from heedful.config import Config, Position, patches_of
from heedful.errors import HeedfulError
from heedful.pretrained import model_type
from heedful.pretrained.flat_config import flat
from heedful.pretrained.model_types import MODEL_TYPES, express

PUBLISHED = {
    "openai-gpt": 116_534_784,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "bloom": 176_247_271_424,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "distilbert-base": 66_362_880,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "xlm-roberta-base": 278_043_648,
    "xlm-roberta-large": 559_890_432,
    "camembert-base": 110_621_952,
    "camembert-large": 336_661_504,
    "albert-base": 11_683_584,
    "albert-large": 17_683_968,
    "albert-xlarge": 58_724_864,
    "albert-xxlarge": 222_595_584,
    "mpnet-base": 109_486_464,
    "electra-small": 13_483_008,
    "electra-base": 108_891_648,
    "electra-large": 334_092_288,
    "deberta-v3-xsmall": 70_682_112,
    "deberta-v3-small": 141_304_320,
    "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160,
    "deberta-v2-xlarge": 884_593_152,
    "deberta-v2-xxlarge": 1_564_549_632,
    "modernbert-base": 149_014_272,
    "modernbert-large": 394_781_696,
    "xlnet-base": 116_718_336,
    "xlnet-large": 360_268_800,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "switch-base-8": 619_339_008,
    "switch-base-16": 1_072_397_568,
    "switch-base-32": 1_978_514_688,
    "switch-base-64": 3_790_748_928,
    "switch-base-128": 7_415_217_408,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "t0-3b": 2_849_757_184,
    "t0": 11_135_332_352,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "mbart-large-cc25": 610_851_840,
    "mbart-large-50": 610_879_488,
    "m2m100-418m": 483_905_536,
    "m2m100-1.2b": 1_239_470_080,
    "nllb-200-600m": 615_073_792,
    "nllb-200-1.3b": 1_370_638_336,
    "nllb-200-3.3b": 3_344_863_232,
    "pegasus-large": 568_699_904,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648,
    "mt5-xxl": 12_921_057_280,
    "vit-b/16": 86_567_656,
    "vit-b/32": 88_224_232,
    "vit-l/16": 304_326_632,
    "vit-l/32": 306_535_400,
    "vit-h/14": 632_045_800,
    "deit-ti": 5_717_416,
    "deit-s": 22_050_664,
    "deit-b": 86_567_656,
    "deit-b-distilled": 87_338_192,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm-135m": 134_515_008,
    "smollm-360m": 361_821_120,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "dinov2-s/14": 22_056_576,
    "dinov2-b/14": 86_580_480,
    "dinov2-l/14": 304_368_640,
    "dinov2-g/14": 1_136_480_768,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
}
# Brown et al. 2020: blocks, width, heads and their size (table 2.1), and millions of parameters (table D.1)
GPT3 = {
    "gpt3-125m": (12, 768, 12, 64, 125),
    "gpt3-350m": (24, 1024, 16, 64, 356),
    "gpt3-760m": (24, 1536, 16, 96, 760),
    "gpt3-1.3b": (24, 2048, 16, 128, 1_320),  # in the paper 24 heads
    "gpt3-2.7b": (32, 2560, 32, 80, 2_650),
    "gpt3-6.7b": (32, 4096, 32, 128, 6_660),
    "gpt3-13b": (40, 5120, 40, 128, 12_850),  # in the paper a width of 5140
    "gpt3-175b": (96, 12288, 96, 128, 174_600),
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


def gpt(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    s = c.decoder
    return OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(
            vocab_size=c.embedding.vocab_size,
            n_positions=s.position.length,
            n_embd=s.dim,
            n_layer=s.depth,
            n_head=s.heads,
        )
    )


def opt(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    s = c.decoder
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            ffn_dim=4 * s.dim,
        )
    )


def neox(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    s = c.decoder
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
        )
    )


def gptj(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import GPTJConfig, GPTJForCausalLM

    return GPTJForCausalLM(GPTJConfig())  # the published values


def bloom(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import BloomConfig, BloomForCausalLM

    s = c.decoder
    return BloomForCausalLM(
        BloomConfig(vocab_size=c.embedding.vocab_size, hidden_size=s.dim, n_layer=s.depth, n_head=s.heads)
    )


def llama(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

    s = c.decoder
    config, model = (Olmo2Config, Olmo2ForCausalLM) if s.qk_norm == "all" else (LlamaConfig, LlamaForCausalLM)
    return model(
        config(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            intermediate_size=s.ff_dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            tie_word_embeddings=c.head.tied,
        )
    )


def phi3(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import Phi3Config, Phi3ForCausalLM

    s = c.decoder
    return Phi3ForCausalLM(
        Phi3Config(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            intermediate_size=s.ff_dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
        )
    )


def mixtral(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    s = c.decoder
    return MixtralForCausalLM(
        MixtralConfig(
            hidden_size=s.dim,
            intermediate_size=s.ff_dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
        )
    )


def switch(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    s = c.encoder
    return SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(  # the published values
            d_ff=s.ff_dim, num_experts=s.experts.number, num_sparse_encoder_layers=6, num_sparse_decoder_layers=6
        )
    )


def gemma2(c: heedful.config.DecoderConfig) -> nn.Module:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    s = c.decoder
    return Gemma2ForCausalLM(
        Gemma2Config(
            hidden_size=s.dim,
            intermediate_size=s.ff_dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            head_dim=s.head_dim,
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


def roberta(c: heedful.config.EncoderConfig, name: str = "Roberta") -> nn.Module:
    import transformers

    s = c.encoder
    return getattr(transformers, f"{name}Model")(
        getattr(transformers, f"{name}Config")(
            vocab_size=c.embedding.vocab_size,
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            max_position_embeddings=514,
            type_vocab_size=1,
        )
    )


def xlm_roberta(c: heedful.config.EncoderConfig) -> nn.Module:
    return roberta(c, "XLMRoberta")


def camembert(c: heedful.config.EncoderConfig) -> nn.Module:
    return roberta(c, "Camembert")


def distilbert(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig())  # the published values


def electra(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import ElectraConfig, ElectraModel

    s = c.encoder
    return ElectraModel(
        ElectraConfig(
            hidden_size=s.dim,
            embedding_size=s.width,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
        )
    )


def albert(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import AlbertConfig, AlbertModel

    s = c.encoder
    return AlbertModel(
        AlbertConfig(
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
        )
    )


def mpnet(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import MPNetConfig, MPNetModel

    return MPNetModel(MPNetConfig(max_position_embeddings=514))  # the published values


def deberta(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2Model

    s = c.encoder
    return DebertaV2Model(
        DebertaV2Config(  # the published values
            vocab_size=128100,
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type="p2c|c2p",
            position_biased_input=False,
            conv_kernel_size=0 if s.convolution is None else 3,
        )
    )


def deberta_v1(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import DebertaConfig, DebertaModel

    s = c.encoder
    return DebertaModel(
        DebertaConfig(  # the published values
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type="c2p|p2c",
        )
    )


def modernbert(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import ModernBertConfig, ModernBertModel

    s = c.encoder
    return ModernBertModel(
        ModernBertConfig(
            hidden_size=s.dim, num_hidden_layers=s.depth, num_attention_heads=s.heads, intermediate_size=s.ff_dim
        )
    )


def xlnet(c: heedful.config.EncoderConfig) -> nn.Module:
    from transformers import XLNetConfig, XLNetModel

    s = c.encoder
    return XLNetModel(
        XLNetConfig(
            vocab_size=c.embedding.vocab_size, d_model=s.dim, n_layer=s.depth, n_head=s.heads, d_inner=4 * s.dim
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


def mbart(c: heedful.config.EncoderDecoderConfig, name: str = "MBart") -> nn.Module:
    import transformers

    s = c.encoder
    return getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(
            vocab_size=c.source.vocab_size,
            d_model=s.dim,
            encoder_layers=s.depth,
            decoder_layers=s.depth,
            encoder_attention_heads=s.heads,
            decoder_attention_heads=s.heads,
            encoder_ffn_dim=s.ff_dim,
            decoder_ffn_dim=s.ff_dim,
        )
    )


def m2m_100(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    return mbart(c, "M2M100")


def pegasus(c: heedful.config.EncoderDecoderConfig) -> nn.Module:
    return mbart(c, "Pegasus")


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


def dinov2(c: heedful.config.VisionConfig) -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    s = c.encoder
    return Dinov2Model(
        Dinov2Config(
            hidden_size=s.dim,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            image_size=518,
            use_swiglu_ffn=s.gated,
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
    "openai-gpt": gpt,
    "opt": opt,
    "gpt-neox": neox,
    "pythia": neox,
    "gpt-j": gptj,
    "bloom": bloom,
    "gpt": gpt2,
    "llama": llama,
    "tinyllama": llama,
    "phi": phi3,
    "smollm": llama,
    "olmo2": llama,
    "gemma2": gemma2,
    "stories": llama,
    "switch": switch,
    "mixtral": mixtral,
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": xlm_roberta,
    "camembert": camembert,
    "distilbert": distilbert,
    "mpnet": mpnet,
    "albert": albert,
    "electra": electra,
    **dict.fromkeys(("deberta-base", "deberta-large", "deberta-xlarge"), deberta_v1),
    "deberta": deberta,
    "modernbert": modernbert,
    "xlnet": xlnet,
    "t5": t5,
    "t0": t5,
    "bart": bart,
    "marian": marian,
    "mbart": mbart,
    "m2m100": m2m_100,
    "nllb": m2m_100,
    "pegasus": pegasus,
    "mt5": t5,
    "transformer": marian,
    "vit-gpt2": captioner,
    "captioner": captioner,
    "vit": vit,
    "deit": vit,
    "dinov2": dinov2,
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
    assert ours.num_parameters() == count(theirs)
    assert ours.num_parameters() == PUBLISHED.get(name, ours.num_parameters())
    assert ours.num_parameters() == presets.PRESETS[name][1]


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_survives_json(name: str) -> None:
    config = presets.get(name)
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert type(again) is type(config)
    assert hash(again) == hash(config)


def shortened(config: Config) -> Config:
    """The configuration with as few blocks in each stack as have all its windows, at least two."""
    stacks = {name: getattr(config, name) for name in ("encoder", "decoder") if hasattr(config, name)}
    windows = {name: stack.window if isinstance(stack.window, tuple) else () for name, stack in stacks.items()}
    return replace(config, **{name: replace(stacks[name], depth=max(2, len(windows[name]))) for name in stacks})


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_runs_without_weights(name: str) -> None:
    """On the meta device: shapes alone, as counting operations needs them."""
    config = shortened(presets.get(name))
    with torch.device("meta"):
        model = heedful.create(config)
    model.to("meta")  # tables are computed at once, wherever the weights are
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    if config.kind == "vision":
        pixels = torch.empty(2, config.patches.channels, *config.patches.image_size, device="meta")
        bare = (config.patches.tokens, config.encoder.dim)  # without a head
        assert model(pixels).shape == (2, *((config.head.labels,) if hasattr(config.head, "labels") else bare))
    elif config.kind == "encoder-decoder":
        source = ids
        if (patches := patches_of(config)) is not None:
            source = torch.empty(2, patches.channels, *patches.image_size, device="meta")
        assert model(source, ids[:, :2]).shape == (2, 2, config.tokens.vocab_size)
    elif config.kind == "decoder":
        assert model(ids).shape == (2, 3, config.embedding.vocab_size)
    else:
        assert model(ids).shape == (2, 3, config.encoder.dim)


def gpt3_parameters(depth: int, dim: int, inner: int) -> int:
    """Tokens and positions; in each block attention, feed-forward and two norms; a last norm."""
    attention = 4 * dim * inner + 3 * inner + dim
    feed_forward = 8 * dim**2 + 5 * dim
    return (50257 + 2048) * dim + depth * (attention + feed_forward + 4 * dim) + 2 * dim


def rounded(parameters: int, millions: int) -> int:
    """As many digits of the millions as the table has, without the zeros at its end."""
    digits = len(str(millions)) - len(str(millions).rstrip("0"))
    return round(round(parameters / 1e6), -digits)


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_is_the_papers(name: str) -> None:
    depth, dim, heads, size, millions = GPT3[name]
    config = presets.get(name)
    stack = config.decoder
    assert (stack.depth, stack.dim, stack.heads, stack.dim // stack.heads) == (depth, dim, heads, size)
    assert stack.position.length == 2048
    assert config.embedding.vocab_size == 50257
    assert presets.PRESETS[name][1] == gpt3_parameters(depth, dim, heads * size)
    assert rounded(presets.PRESETS[name][1], millions) == millions
    assert express(config, None)[0].name == "gpt2"


def test_the_papers_table_of_shapes_contradicts_its_table_of_counts() -> None:
    """13B at a width of 5140, and 1.3B with 24 heads of 128: why the presets have 5120, and 16 heads."""
    assert rounded(gpt3_parameters(40, 5140, 40 * 128), 12_850) == 12_940
    assert rounded(gpt3_parameters(24, 2048, 24 * 128), 1_320) == 1_520


def test_alternating_blocks_have_as_many_parameters() -> None:
    config = presets.get("gpt3-125m")
    with torch.device("meta"):
        model = heedful.create(replace(config, decoder=replace(config.decoder, window=(None, 256))))
    assert model.num_parameters() == presets.PRESETS["gpt3-125m"][1]


@pytest.mark.parametrize("name", [name for name in presets.names() if re.match(r"llama\d", name)])
def test_a_llama_is_the_published_configuration(name: str) -> None:
    """The keys of ``config.json`` as Meta published them."""
    published = {
        "llama2": {"max_position_embeddings": 4096, "vocab_size": 32000, "rope_theta": 10000.0},
        "llama3": {"max_position_embeddings": 8192, "vocab_size": 128256, "rope_theta": 500000.0},
        "llama3.2": {"max_position_embeddings": 131072, "vocab_size": 128256, "rope_theta": 500000.0},
    }[name.partition("-")[0]]
    layout, architecture = express(presets.get(name), None)[:2]
    theirs = layout.write(presets.get(name), architecture)
    rotary = theirs["rope_parameters"]
    scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"rope_type": "llama3", "original_max_position_embeddings": 8192}
    assert rotary.pop("rope_theta") == published.pop("rope_theta")
    assert rotary == (scaling if name.startswith("llama3.2") else {"rope_type": "default"})
    assert {key: theirs[key] for key in published} == published
    assert theirs["rms_norm_eps"] == 1e-5
    assert (theirs["bos_token_id"], theirs["eos_token_id"]) == (
        (1, 2) if name.startswith("llama2") else (128000, 128001)
    )


def test_most_architectures_are_ruled_out_before_a_configuration_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its family and head, which no key of ``config.json`` sets: a run looks for its layout at every save."""
    written = []
    monkeypatch.setattr(model_type, "flat", lambda config: written.append(config) or flat(config))
    for name, own in (("gpt2", "GPT2LMHeadModel"), ("t5-small", "T5ForConditionalGeneration"), ("vit-b/16", None)):
        written.clear()
        found = express(presets.get(name), "")
        assert found is not None
        assert own in (None, found[1].name)
        assert len(written) <= 12, "two for each architecture that is tried, of 104"
    for kind in MODEL_TYPES.values():
        for architecture in kind.architectures:
            keys = (*model_type.EVERYWHERE, *kind.config_keys, *architecture.config_keys)
            assert {"kind", "head.kind"}.isdisjoint(field for key in keys for field in getattr(key, "fields", ()))


@pytest.mark.parametrize(
    "name", ["roberta-base", "roberta-large", "distilbert-base", "deit-b-distilled", "t5-large", "t5-3b", "t5-11b"]
)
def test_a_preset_is_saved_in_the_layout_of_its_name(name: str) -> None:
    found = express(presets.get(name))
    assert found is not None
    assert found[0].name == name.partition("-")[0]


def test_xlm_roberta_is_saved_in_either_layout_of_a_roberta() -> None:
    assert express(presets.get("xlm-roberta-base"), "xlm-roberta")[0].name == "xlm-roberta"


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
            size = (config.tokens if config.kind == "encoder-decoder" else config.embedding).vocab_size
            ids = [config.special.pad, config.special.start, *config.special.end]
            assert all(i is None or 0 <= i < size for i in ids), name


def test_positions_are_of_a_known_kind() -> None:
    for name in presets.names():
        config = presets.get(name)
        stack = config.decoder if config.kind == "decoder" else config.encoder
        assert isinstance(stack.position, Position)
