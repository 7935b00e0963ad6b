"""A stored model made to another size: what was stored is kept, what is new says so, what means nothing is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write

import heedful
from heedful import presets
from heedful.config import (
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    PatchConfig,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
    VisionConfig,
)
from heedful.pretrained import load, save
from tolerances import assert_close, assert_same_model

LEARNED = LearnedPosition(length=8)
STACK = StackConfig(dim=16, depth=2, heads=2, ff_dim=64, causal=True, position=LEARNED, activation="gelu_tanh")
GPT = DecoderConfig(embedding=EmbeddingConfig(vocab_size=11), decoder=replace(STACK, init="scaled"))
ENCODER = replace(STACK, causal=False, placement="post", embedding_norm=True, activation="gelu")
MASKED = EncoderConfig(
    embedding=EmbeddingConfig(vocab_size=11, segments=2), encoder=ENCODER, head=MaskedHead(norm_eps=1e-5)
)
BOTH = EncoderDecoderConfig(
    source=EmbeddingConfig(vocab_size=11, scale="sqrt"),
    encoder=replace(STACK, causal=False),
    decoder=replace(STACK, cross=True),
    head=LanguageHead(bias=True),
)
VIT = VisionConfig(
    patches=PatchConfig(image_size=(32, 32), patch_size=8),
    encoder=replace(STACK, causal=False, position=LearnedPosition(length=17), init="truncated", activation="gelu"),
)
IDS = torch.tensor([[1, 2, 3, 4]])


def kept(config: Any, folder: Path, **options: Any) -> Any:
    """A model with random biases and norms, saved."""
    model = heedful.create(config, seed=0, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    save(model, folder)
    return model


@pytest.mark.parametrize("offset", [0, 2])
def test_more_positions(offset: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    position = LearnedPosition(length=8, offset=offset)
    model = kept(replace(GPT, decoder=replace(GPT.decoder, position=position)), tmp_path)
    with caplog.at_level(logging.WARNING, logger="heedful"):
        longer = load(tmp_path, positions=200)
    name = f"decoder.position.table.weight[{8 + offset}:{200 + offset}]"
    assert list(longer.fresh) == [name]
    assert f"rows are new and untrained: {name}" in caplog.text
    assert longer.config.decoder.position.length == 200
    assert_close(longer(IDS), model(IDS))
    assert longer(torch.ones(1, 200, dtype=torch.long)).isfinite().all()
    table = longer.decoder.position.table.weight.detach()
    assert torch.equal(table[: 8 + offset], model.decoder.position.table.weight)
    assert table[8 + offset :].std() == pytest.approx(GPT.decoder.init_std, rel=0.1)


def test_fewer_positions(tmp_path: Path) -> None:
    model = kept(GPT, tmp_path / "a")
    shorter = load(tmp_path / "a", positions=4)
    assert list(shorter.fresh) == []
    assert_close(shorter(IDS), model(IDS))
    with pytest.raises(heedful.HeedfulError, match="5 tokens, but the model has 4 learned positions"):
        shorter(torch.ones(1, 5, dtype=torch.long))
    save(shorter, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["n_positions"] == 4
    assert_same_model(load(tmp_path / "b"), shorter, IDS)


def test_both_stacks_have_more_positions(tmp_path: Path) -> None:
    model = kept(BOTH, tmp_path)
    longer = load(tmp_path, positions=12)
    assert list(longer.fresh) == [f"{side}.position.table.weight[8:12]" for side in ("encoder", "decoder")]
    assert_close(longer(IDS, IDS), model(IDS, IDS))


def test_rotary_positions_change_only_the_length(tmp_path: Path) -> None:
    config = replace(GPT, decoder=replace(STACK, position=RotaryPosition(length=8)))
    model = kept(config, tmp_path)
    longer = load(tmp_path, positions=100)
    assert longer.config.decoder.position.length == 100
    assert list(longer.fresh) == []
    assert_close(longer(IDS), model(IDS))


@pytest.mark.parametrize("size", [(64, 64), (16, 16), (48, 80), 40])
def test_images_of_another_size(size: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kept(VIT, tmp_path / "a", num_labels=3)
    model = load(tmp_path / "a", image_size=size)
    sides = size if isinstance(size, tuple) else (size, size)
    assert model.config.patches.image_size == sides
    assert list(model.fresh) == []
    pixels = torch.randn(2, 3, *sides)
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "a").eval()
    expected = theirs(pixels, interpolate_pos_encoding=True).logits
    assert_close(model(pixels), expected)
    save(model, tmp_path / "b")
    assert_same_model(load(tmp_path / "b"), model, pixels)


@pytest.mark.parametrize("size", [(24, 24), (8, 8), (16, 24)])
def test_images_of_another_size_for_a_model_that_interpolates_itself(size: tuple[int, int], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write("dinov2 image", tmp_path / "a")
    model, pixels = load(tmp_path / "a", image_size=size), torch.randn(2, 2, *size)
    theirs = transformers.Dinov2ForImageClassification.from_pretrained(tmp_path / "a").eval()
    assert_close(model(pixels), theirs(pixels).logits)
    assert save(model, tmp_path / "b") == ("dinov2" if len({*size}) == 1 else "heedful")  # theirs has squares alone
    assert_same_model(load(tmp_path / "b"), model, pixels)


def test_positions_of_two_prefix_tokens_are_kept(tmp_path: Path) -> None:
    """Each column of a grid that is linear in the row stays nearly so, away from the borders."""
    patches = PatchConfig(image_size=(64, 32), patch_size=8, prefix="class+distillation")
    stack = replace(VIT.encoder, position=LearnedPosition(length=patches.tokens))
    model = kept(VisionConfig(patches=patches, encoder=stack), tmp_path, num_labels=3)
    table = model.encoder.position.table.weight
    with torch.no_grad():
        table[2:] = torch.arange(8.0).repeat_interleave(4)[:, None]
    save(model, tmp_path)
    again = load(tmp_path, image_size=(128, 32)).encoder.position.table.weight.detach()
    assert torch.equal(again[:2], table[:2])
    rows = again[2:].unflatten(0, (16, 4))[..., 0]
    expected = (torch.arange(4.0, 12.0)[:, None] / 2 - 0.25).expand(8, 4)
    torch.testing.assert_close(rows[4:12], expected, rtol=0, atol=0.05)
    assert torch.equal(load(tmp_path, image_size=(64, 32)).encoder.position.table.weight, table)


TOKENS = {
    "tied": (GPT, ["embedding.token.weight[11:40]"]),
    "untied": (
        replace(GPT, head=LanguageHead(tied=False)),
        ["embedding.token.weight[11:40]", "head.output.weight[11:40]"],
    ),
    "a bias": (MASKED, ["embedding.token.weight[11:40]", "head.output.bias[11:40]"]),
    "one table for both sides": (BOTH, ["embedding.token.weight[11:40]", "head.output.bias[11:40]"]),
    "a table for each side": (
        replace(BOTH, target=EmbeddingConfig(vocab_size=7, scale="sqrt")),
        ["embedding.token.weight[11:40]", "target_embedding.token.weight[7:40]", "head.output.bias[7:40]"],
    ),
}


@pytest.mark.parametrize("name", TOKENS)
def test_more_tokens(name: str, tmp_path: Path) -> None:
    config, fresh = TOKENS[name]
    model = kept(config, tmp_path / "a")
    more = load(tmp_path / "a", vocab_size=40)
    assert list(more.fresh) == fresh
    inputs = (IDS, IDS) if isinstance(config, EncoderDecoderConfig) else (IDS,)
    logits, before = more(*inputs), model(*inputs)
    assert logits.shape[-1] == 40
    assert_close(logits[..., : before.shape[-1]], before)
    state, old = more.state_dict(), model.state_dict()
    for key in (row.partition("[")[0] for row in fresh):
        rows = state[key][len(old[key]) :]
        std = 0.25 if isinstance(config, EncoderDecoderConfig) else 0.02
        torch.testing.assert_close(rows, old[key].mean(0).expand_as(rows), rtol=0, atol=5 * std)
        assert rows.dim() == 1 or rows.std(0).mean() == pytest.approx(std, rel=0.3)
    save(more, tmp_path / "b")
    assert_same_model(load(tmp_path / "b"), more, *inputs)


def test_more_tokens_open_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kept(GPT, tmp_path / "a")
    more = load(tmp_path / "a", vocab_size=40, positions=20)
    save(more, tmp_path / "b")
    ids = torch.randint(40, (1, 20))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").eval()
    assert_close(theirs(ids).logits, more(ids))


def test_more_tokens_of_a_file_that_stores_both_tied_tables(tmp_path: Path) -> None:
    kept(GPT, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}, file)
    more = load(tmp_path, vocab_size=40)
    assert more.head.output.weight is more.embedding.token.weight
    assert list(more.fresh) == ["embedding.token.weight[11:40]"]


def test_more_tokens_under_another_head(tmp_path: Path) -> None:
    model = kept(replace(MASKED, head=presets.get("bert-base").head), tmp_path, head="token", num_labels=3)
    more = load(tmp_path, vocab_size=40)
    assert list(more.fresh) == ["embedding.token.weight[11:40]"]
    assert torch.equal(more(IDS), model(IDS))
    fresh = load(tmp_path, vocab_size=40, head="sequence", num_labels=5)
    assert {"head.output.weight", "embedding.token.weight[11:40]"} < {*fresh.fresh}


NOTHING: dict[str, tuple[Any, dict[str, Any], str]] = {
    "image_size of text": (GPT, {"image_size": 32}, "image_size is 32, but this model reads text; leave it out"),
    "positions of images": (
        VIT,
        {"positions": 32},
        "positions applies to text models; for this image model give image_size",
    ),
    "both": (VIT, {"positions": 32, "image_size": 64}, "positions and image_size are both given"),
    "tokens of images": (VIT, {"vocab_size": 32}, "vocab_size is 32, but this model has no vocabulary; leave it out"),
    "fewer tokens": (
        GPT,
        {"vocab_size": 10},
        "vocab_size is 10, but 11 tokens are stored and none can be removed; give 11 or more",
    ),
    "no patches": (VIT, {"image_size": 33}, "image height 33 is not a multiple of the patch size 8"),
    "three sides": (VIT, {"image_size": (32, 32, 32)}, "image_size is .*; give one number, or height and width"),
    "a word": (GPT, {"positions": "many"}, "positions is 'many'; give a whole number of 1 or more"),
    "none": (GPT, {"positions": 0}, "positions is 0; give a whole number of 1 or more"),
    "negative": (VIT, {"image_size": (-8, 8)}, "image_size is -8; give a whole number of 1 or more"),
    "endless": (GPT, {"positions": 10**12}, "positions is 1000000000000; give a whole number"),
    "sinusoids": (
        replace(GPT, decoder=replace(STACK, position=SinusoidalPosition())),
        {"positions": 32},
        "positions is 32, but 'sinusoidal' positions have no maximum; leave it out",
    ),
    "distances": (
        replace(GPT, decoder=replace(STACK, position=RelativePosition())),
        {"positions": 32},
        "positions is 32, but 'relative' positions have no maximum; leave it out",
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_options_without_meaning_are_refused(name: str, tmp_path: Path) -> None:
    config, options, message = NOTHING[name]
    kept(config, tmp_path)
    with pytest.raises(heedful.HeedfulError, match=message) as error:
        load(tmp_path, **options)
    assert "\n" not in str(error.value)


def test_tensors_of_wrong_shapes_are_not_resized(tmp_path: Path) -> None:
    kept(GPT, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_positions": 9}))
    with pytest.raises(
        heedful.HeedfulError, match=r"position.table.weight has the shape \(8, 16\), but config.json says 9"
    ):
        load(tmp_path, positions=20)
