"""Configurations: closed vocabularies, dictionaries there and back, and what does not fit together refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest

from heedful import presets
from heedful.config import (
    AlibiPosition,
    Config,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    LearnedPosition,
    NoHead,
    PatchConfig,
    PooledHead,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
    VisionConfig,
    patches_of,
)
from heedful.errors import HeedfulError

STACK: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 4}
EMBEDDING = EmbeddingConfig(vocab_size=9)


def stack(**changes: Any) -> StackConfig:
    return StackConfig(**(STACK | changes))


@pytest.mark.parametrize(
    "config",
    [
        stack(position=RotaryPosition(scaling="yarn", factor=4.0), kv_heads=2, head_dim=6, causal=True, window=3),
        stack(depth=7, causal=True, window=(4, None, 4)),
        stack(
            position=LearnedPosition(length=5, offset=2),
            placement="sandwich",
            sublayers="parallel-shared",
            dropout=DropoutRates.everywhere(0.2),
        ),
        EncoderConfig(embedding=EMBEDDING, encoder=stack(position=AlibiPosition()), head=PooledHead(normalise=True)),
        DecoderConfig(embedding=EMBEDDING, decoder=stack(causal=True), special=SpecialTokens(pad=0, end=(1, 2))),
        EncoderDecoderConfig(
            source=EMBEDDING,
            target=EmbeddingConfig(vocab_size=7, scale="sqrt", segments=2),
            encoder=stack(position=RelativePosition(buckets=8)),
            decoder=stack(position=SinusoidalPosition(order="halves"), causal=True, cross=True),
            head=LanguageHead(tied=False, scale="sqrt"),
        ),
        VisionConfig(
            patches=PatchConfig(image_size=(8, 4), patch_size=2, prefix="none"), encoder=stack(), head=NoHead()
        ),
    ],
    ids=lambda c: c.kind,
)
def test_there_and_back(config: Config) -> None:
    text = json.dumps(config.to_dict())
    for reader in (Config, type(config)):
        assert reader.from_dict(json.loads(text)) == config
    assert hash(type(config).from_dict(json.loads(text))) == hash(config)


def test_every_field_survives() -> None:
    """Each field of each configuration that is a plain number, word or truth, given another value."""
    for made in (kind for name, kind in Config.kinds.items() if name != "custom"):  # which names a registered scheme
        needed = {f.name: 8 for f in dataclasses.fields(made) if f.default is f.default_factory is dataclasses.MISSING}
        if any(f.name in needed and "Config" in str(f.type) for f in dataclasses.fields(made)):
            continue
        config = made(**needed)
        for f in dataclasses.fields(made):
            value = getattr(config, f.name)
            other = {bool: not value, float: 0.5, int: 8}.get(type(value))
            if other is not None and f.name not in ("window", "patch_size", "size"):
                changed = dataclasses.replace(config, **{f.name: other})
                assert getattr(made.from_dict(changed.to_dict()), f.name) == other


def test_frozen_and_by_keyword() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        stack().dim = 4
    with pytest.raises(TypeError):
        StackConfig(16, 1, 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": "layr"}, r"stack\.norm is 'layr'; did you mean 'layer'\?"),
        ({"sublayers": "parallel", "placement": "post"}, "parallel sublayers have their norms before them"),
        ({"norm_bias": False, "norm": "rms"}, "norm_bias is False, but the norm is 'rms', not 'layer'"),
        ({"first_norm": False, "placement": "post"}, "first_norm is False, but no norm is before a sublayer"),
        ({"placement": "prenorm"}, "did you mean 'pre'|known: out, post, pre, sandwich"),
        ({"activation": "swish"}, "stack.activation is 'swish'"),
        ({"attention_bias": True}, "stack.attention_bias is True"),
        ({"dim": 18}, "dim 18 is not a multiple of 4 heads"),
        ({"kv_heads": 3}, "4 heads cannot share 3 key-value heads"),
        ({"kv_heads": 8}, "4 heads cannot share 8 key-value heads"),
        ({"norm": "batch", "causal": True}, "batch norm in a causal stack"),
        ({"window": 0, "causal": True}, "window"),
        ({"window": (None, 0), "causal": True, "depth": 2}, r"stack\.window is 0; .* window=\(None, None\)"),
        ({"window": (None, True), "causal": True, "depth": 2}, r"stack\.window is \(None, True\); give"),
        ({"window": (), "causal": True}, r"stack\.window has 0 numbers for 1 blocks; give 1 to 1"),
        ({"window": (4, None), "causal": True}, r"stack\.window has 2 numbers for 1 blocks"),
        (
            {"window": [None, "4"], "causal": True, "depth": 2},
            r"window is \(None, '4'\); give .* or a list of whole numbers$",
        ),
        ({"window": 10**30, "causal": True}, r"stack\.window is 10{30}; give less than"),
        ({"score_cap": 0.0}, r"stack\.score_cap is 0\.0; give a finite number above 0"),
        ({"score_cap": 2.0, "position": "shaw"}, "score_cap caps .* leave it out with"),
        ({"scale": "sqr"}, r"stack\.scale is 'sqr'; give one of sqrt, none or a number"),
        ({"scale": -1.0}, r"stack\.scale is -1\.0; give 'sqrt', 'none' or a number above 0"),
        ({"layer_scale": 0.1, "placement": "out"}, "layer_scale scales outputs that placement 'out' norms"),
        ({"dim": 0}, "dim"),
        ({"dim": -16}, "dim"),
        ({"heads": 0}, "heads"),
        ({"depth": -1}, "depth"),
        ({"kv_heads": 0}, "kv_heads|key-value heads"),
        ({"position": "rotery"}, "did you mean 'rotary'"),
        ({"position": DropoutRates()}, "position"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_wrong_configurations_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        stack(**changes)


def test_words_of_other_parts() -> None:
    with pytest.raises(HeedfulError, match=r"rotary\.scaling is 'dynamic'; known: default, linear, llama3, yarn"):
        RotaryPosition(scaling="dynamic")
    with pytest.raises(HeedfulError, match="did you mean 'mean'"):
        SequenceHead(pooling="means")
    with pytest.raises(HeedfulError, match=r"dropout|3"):
        DropoutRates(attention=3.0)
    with pytest.raises(HeedfulError, match="patch"):
        PatchConfig(patch_size=0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (STACK | {"ff_dimm": 3}, "unknown key 'ff_dimm' in a 'stack' configuration; did you mean 'ff_dim'"),
        (STACK | {"kind": "stak"}, "unknown kind of configuration 'stak'; did you mean 'stack'"),
        (STACK | {"position": {"kind": "rotery"}}, "did you mean 'rotary'"),
        (STACK | {"position": {"base": 3.0}}, "kind"),
        (STACK | {"position": {"kind": "dropout"}}, "position|dropout"),
        (STACK | {"position": {"kind": "rotary", "bass": 3.0}}, "unknown key 'bass' in a 'rotary'"),
        (STACK | {"dropout": {"kind": "rotary"}}, "rotary"),
        ({"kind": "stack", "depth": 1, "heads": 2}, "dim"),
        (STACK | {"dim": "16"}, "dim"),
    ],
    ids=lambda v: str(v)[-60:],
)
def test_a_dictionary_that_is_wrong(data: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        StackConfig.from_dict(data)


def test_another_familys_dictionary() -> None:
    """The message cannot be "unknown 'decoder'; did you mean 'decoder'?"."""
    data = DecoderConfig(embedding=EMBEDDING, decoder=stack(causal=True)).to_dict()
    with pytest.raises(HeedfulError, match="decoder") as caught:
        EncoderConfig.from_dict(data)
    assert "did you mean 'decoder'" not in str(caught.value)


def test_errors_are_one_line() -> None:
    for bad in (STACK | {"x": 1}, STACK | {"kind": "x"}, STACK | {"norm": "x"}):
        with pytest.raises(HeedfulError) as caught:
            StackConfig.from_dict(bad)
        assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- families


def test_stacks_of_two_widths() -> None:
    with pytest.raises(HeedfulError, match=r"encoder\.dim is 16 and decoder\.dim is 32"):
        EncoderDecoderConfig(source=EMBEDDING, encoder=stack(), decoder=stack(dim=32, causal=True, cross=True))


@pytest.mark.parametrize("decoder", [{"causal": True}, {"cross": True}, {}], ids=str)
def test_an_encoder_decoders_decoder_is_causal_and_looks_across(decoder: dict[str, bool]) -> None:
    """Otherwise it would ignore the source, or see its own future."""
    with pytest.raises(HeedfulError, match="decoder"):
        EncoderDecoderConfig(source=EMBEDDING, encoder=stack(), decoder=stack(**decoder))


@pytest.mark.parametrize("changes", [{"cross": True, "causal": True}, {}], ids=str)
def test_a_lone_decoder_is_causal_and_has_nothing_to_look_across_to(changes: dict[str, bool]) -> None:
    """Cross-attention without a source would fall back on the decoder's own, unmasked stream."""
    with pytest.raises(HeedfulError, match="decoder"):
        DecoderConfig(embedding=EMBEDDING, decoder=stack(**changes))


@pytest.mark.parametrize("family", ["encoder", "vision", "encoder-decoder"])
def test_an_encoder_has_nothing_to_look_across_to(family: str) -> None:
    with pytest.raises(HeedfulError, match="encoder"):
        {
            "encoder": lambda: EncoderConfig(embedding=EMBEDDING, encoder=stack(cross=True)),
            "vision": lambda: VisionConfig(patches=PatchConfig(), encoder=stack(cross=True)),
            "encoder-decoder": lambda: EncoderDecoderConfig(
                source=EMBEDDING, encoder=stack(cross=True), decoder=stack(causal=True, cross=True)
            ),
        }[family]()


def test_heads_that_need_what_the_family_has_not() -> None:
    """Logits over a vocabulary from patches; classes of an image from a text."""
    for head in (LanguageHead(),):
        with pytest.raises(HeedfulError, match="head"):
            VisionConfig(patches=PatchConfig(), encoder=stack(), head=head)
    with pytest.raises(HeedfulError, match="head"):
        EncoderConfig(embedding=EMBEDDING, encoder=stack(), head=ImageHead())


def test_a_source_of_image_patches() -> None:
    made = presets.get("captioner-micro")
    assert isinstance(made, EncoderDecoderConfig)
    assert Config.from_dict(made.to_dict()) == made
    assert patches_of(made) == made.source
    assert patches_of(presets.get("t5-small")) is None
    for change, words in [
        ({"target": None}, "the source is an image, which has no tokens to share; give target"),
        ({"head": SequenceHead()}, "a language-model head or none, not 'sequence'"),
        ({"source": EmbeddingConfig(vocab_size=9)}, "encoder.dim is 64 and decoder.dim is 128; make them the same"),
    ]:
        with pytest.raises(HeedfulError, match=words):
            replace(made, **change)
    with pytest.raises(HeedfulError, match="pooler is True, but the source is text"):
        replace(presets.get("t5-small"), pooler=True)
