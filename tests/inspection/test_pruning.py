"""A pruned model against the large one with the same parts silenced by plain hooks, and opened again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.adapters import LoraConfig, add_adapter, merge
from heedful.config import (
    AlibiPosition,
    ConvolutionConfig,
    DecoderConfig,
    DisentangledPosition,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LearnedPosition,
    NoHead,
    PatchConfig,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.inspection import intervene
from heedful.inspection.pruning import prune, remaining_heads
from heedful.models import Model, build
from tolerances import assert_close

STACK = StackConfig(dim=24, depth=3, heads=4, ff_dim=10)
TEXT = EmbeddingConfig(vocab_size=23)


def decoder(**changes: Any) -> DecoderConfig:
    return DecoderConfig(embedding=TEXT, decoder=replace(STACK, causal=True, **changes))


def encoder(**changes: Any) -> EncoderConfig:
    return EncoderConfig(embedding=replace(TEXT, segments=2), encoder=replace(STACK, **changes))


def pair(**changes: Any) -> EncoderDecoderConfig:
    ours = replace(STACK, **changes)
    return EncoderDecoderConfig(source=TEXT, encoder=ours, decoder=replace(ours, causal=True, cross=True, depth=2))


def vision(prefix: str = "class", **changes: Any) -> VisionConfig:
    patches = PatchConfig(image_size=(8, 12), patch_size=4, channels=2, prefix=prefix)
    ours = replace(STACK, **{"position": LearnedPosition(length=patches.tokens), **changes})
    return VisionConfig(patches=patches, encoder=ours, head=ImageHead(labels=5))


GROUPED = {"heads": 6, "kv_heads": 3}
CONFIGS = {
    "decoder learned": decoder(position=LearnedPosition(length=9)),
    "decoder rotary gated rms": decoder(
        position=RotaryPosition(), norm="rms", gated=True, activation="silu", attention_bias="none", ff_bias=False
    ),
    "decoder head size, qk norms": decoder(position=RotaryPosition(), head_dim=8, qk_norm="head", attention_bias="qkv"),
    "decoder alibi": decoder(position=AlibiPosition()),
    "decoder relative": decoder(position=RelativePosition(buckets=8, max_distance=6)),
    "decoder learned, relative": decoder(position=LearnedPosition(length=9, buckets=8, max_distance=6)),
    "decoder disentangled": decoder(position=DisentangledPosition(length=6, buckets=4)),
    "decoder window, sandwich": decoder(window=2, placement="sandwich", attention_bias="out"),
    "decoder norms of outputs": decoder(placement="out", norm="rms"),
    "encoder post": encoder(placement="post", embedding_norm=True, position=SinusoidalPosition()),
    "encoder batch norm": encoder(norm="batch", position=SinusoidalPosition(order="halves")),
    "encoder without order": encoder(scale="none"),
    "pair sinusoidal": pair(placement="post", position=SinusoidalPosition()),
    "pair relative": pair(norm="rms", position=RelativePosition(), head_dim=4, scale="none", attention_bias="none"),
    "vision": vision(),
    "vision, layer scale": vision(layer_scale=0.4),
    "vision distilled": vision("class+distillation", attention_bias="out"),
}


def large(config: Any, dtype: torch.dtype = torch.float64) -> Model:
    """Every parameter and stored buffer random, norms and biases too."""
    model = build(config).to(dtype)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in model.state_dict() and tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor) * 0.5)
    return model.eval()


def outputs(model: Model) -> Tensor:
    ids, real = torch.tensor([[5, 7, 9, 11], [6, 8, 10, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    with torch.no_grad():
        if isinstance(model.config, VisionConfig):
            size = model.config.patches
            noise = torch.randn(2, size.channels, *size.image_size, generator=torch.Generator().manual_seed(3))
            return model(noise.to(model.dtype))
        if isinstance(model.config, EncoderDecoderConfig):
            return model(ids, ids.flip(1)[:, :3], real)
        return model(ids, real)[real]


@contextmanager
def silenced(
    model: Model, heads: dict[str, list[int]], units: dict[str, list[int]], blocks: list[str]
) -> Iterator[None]:
    """Sets the contributions of removed parts to 0: inputs of output projections, and what a block adds."""

    def zeros(columns: list[int], part: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].index_fill(-1, torch.tensor(columns, dtype=torch.long), 0.0),)

    hooks = []
    for path, numbers in heads.items():
        attention = model.get_submodule(path)
        size = attention.head_dim
        columns = [h * size + i for h in numbers for i in range(size)]
        hooks.append(attention.out.register_forward_pre_hook(partial(zeros, columns)))
    for path, numbers in units.items():
        hooks.append(model.get_submodule(path).down.register_forward_pre_hook(partial(zeros, numbers)))
    hooks += [model.get_submodule(path).register_forward_hook(lambda _, inputs, out: inputs[0]) for path in blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def everywhere(model: Model, kind: str, numbers: list[list[int]]) -> dict[str, list[int]]:
    """A list for each attention, or feed-forward, in turn."""
    ends = ("attention",) if kind == "heads" else ("feed_forward",)
    paths = [path for path, part in model.named_modules() if path.endswith(ends) and [*part.parameters()]]
    return {path: numbers[i % len(numbers)] for i, path in enumerate(paths)}


def check(model: Model, tmp_path: Path | None = None, **parts: Any) -> Model:
    """Prune, compare with silencing, save, open, compare again; the large one is as it was."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = outputs(model)
    with silenced(model, parts.get("heads", {}), parts.get("units", {}), parts.get("layers", [])):
        expected = outputs(model)
    assert (expected - whole).abs().max() > 1e-3  # something was silenced
    small = prune(model, **parts)
    assert type(small) is type(model)
    assert_close(outputs(small), expected)
    if tmp_path is not None:
        small.save_pretrained(tmp_path / "small")
        again = heedful.from_pretrained(tmp_path / "small")
        assert again.state_dict().keys() == small.state_dict().keys()
        assert again.num_parameters() == small.num_parameters() < model.num_parameters()
        assert_close(outputs(again), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return small


@pytest.mark.parametrize("case", CONFIGS)
def test_all_at_once_equals_the_masked_model_and_opens_again(case: str, tmp_path: Path) -> None:
    model = large(CONFIGS[case])
    stack = model.main
    alike = stack.position.kind in ("relative", "alibi") or case == "decoder learned, relative"
    heads = everywhere(model, "heads", [[0, 2]] if alike else [[0, 3], [1, 2], [2, 3]])
    units = everywhere(model, "units", [[0, 5, 9], [1, 2, 3], [4, 7, 8]])
    name = next(iter(heads)).partition(".")[0]
    small = check(model, tmp_path, heads=heads, units=units, layers=[f"{name}.block.1"])
    made = small.main
    assert (made.depth, made.heads, made.ff_dim) == (2, 2, 7)
    assert made.head_dim == (stack.head_dim or stack.dim // stack.heads)


@pytest.mark.parametrize(
    ("heads", "sizes"),
    [
        ([[0, 1], [4, 5], [2, 3]], (4, 2)),  # whole groups
        ([[0, 2, 4], [1, 2, 5], [1, 3, 5]], (3, 3)),  # one of each group
        ([[0, 1, 2, 5], [2, 3, 1, 4], [4, 5, 0, 3]], (2, 2)),  # both
    ],
)
def test_grouped_queries(heads: list[list[int]], sizes: tuple[int, int], tmp_path: Path) -> None:
    model = large(decoder(**GROUPED, position=RotaryPosition(), attention_bias="qkv"))
    small = check(model, tmp_path, heads=everywhere(model, "heads", heads))
    assert (small.main.heads, small.main.kv_heads, small.main.head_dim) == (*sizes, 4)


def test_slopes_of_alibi_find_their_places() -> None:
    """Of 4 heads the slopes are 2^-2, 2^-4, 2^-6, 2^-8, of 3 they are 2^-4, 2^-8, 2^-2."""
    check(large(decoder(position=AlibiPosition())), heads=everywhere(large(decoder()), "heads", [[2]]))
    grouped = large(decoder(position=AlibiPosition(), heads=8, kv_heads=4, dim=32))
    check(grouped, heads=everywhere(grouped, "heads", [[0, 2, 4, 6]]))


def test_multi_query() -> None:
    model = large(decoder(kv_heads=1, position=LearnedPosition(length=9)))
    small = check(model, heads=everywhere(model, "heads", [[0], [3], [2]]))
    assert (small.main.heads, small.main.kv_heads) == (3, 1)


@pytest.mark.parametrize(
    ("config", "heads", "sizes"),
    [
        (decoder(), [[0], [], [1, 2, 3]], (4, 4)),
        (decoder(), [[0], [0, 1, 2, 3], [1, 2]], (3, 3)),
        (decoder(**GROUPED), [[0, 1, 2], [3, 4, 5], [0, 4, 5]], (4, 2)),
        (decoder(position=RelativePosition()), [[0, 1], [0, 2], [0, 3, 1]], (3, 3)),
        (decoder(position=AlibiPosition()), [[0, 2], [0, 1, 2], [0, 2, 3]], (2, 2)),
        (pair(position=RelativePosition()), [[0], [0], [0], [0, 1], [2, 3], [0, 2], [3]], (3, 3)),
    ],
)
def test_padding_with_silent_heads(config: Any, heads: list[list[int]], sizes: tuple[int, int]) -> None:
    model = large(config)
    parts = everywhere(model, "heads", heads)
    units = everywhere(model, "units", [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9]])
    small = check(model, heads=parts, units=units, pad=True)
    first = small.encoder if isinstance(config, EncoderDecoderConfig) else small.decoder
    assert (first.config.heads, first.config.kv_heads or first.config.heads, first.config.ff_dim) == (*sizes, 9)


def test_it_equals_an_intervention() -> None:
    model = large(CONFIGS["pair sinusoidal"])
    with intervene(model, "mixed", 0.0, heads=[1]), intervene(model, "encoder.block.2.feed_forward.activation", _half):
        expected = outputs(model)
    heads, units = {"attention": [1], "cross_attention": [1]}, {"encoder.block.2.feed_forward": range(5)}
    small = prune(model, heads=heads, units=units, pad=True)
    assert_close(outputs(small), expected)


def _half(activation: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(activation[..., :5]), activation[..., 5:]), -1)


def test_numbers_name_blocks_of_every_stack() -> None:
    model = large(CONFIGS["pair sinusoidal"])
    small = prune(model, layers=[0], heads={1: [0], "block.2.attention": [3]})
    assert (small.config.encoder.depth, small.config.decoder.depth) == (2, 1)
    assert (small.config.encoder.heads, small.config.decoder.heads) == (3, 3)
    with silenced(
        model,
        {
            "encoder.block.1.attention": [0],
            "encoder.block.2.attention": [3],
            "decoder.block.1.attention": [0],
            "decoder.block.1.cross_attention": [0],
        },
        {},
        ["encoder.block.0", "decoder.block.0"],
    ):
        assert_close(outputs(small), outputs(model))


@pytest.mark.parametrize(
    ("preset", "theirs", "parts"),
    [
        ("gpt-micro", "GPT2LMHeadModel", {"layers": [1, 2], "units": {0: range(100), 3: range(100, 200)}}),
        ("bert-tiny", "BertModel", {"layers": [0], "units": {1: [5, 6]}}),
        ("vit-micro", "ViTForImageClassification", {"layers": [3]}),
        ("stories260k", "LlamaForCausalLM", {"heads": {"attention": [0, 1, 4, 5]}}),
        (
            "transformer-tiny",
            "MarianMTModel",
            {"layers": ["encoder.block.1"], "units": {f"decoder.block.{i}.feed_forward": [i] for i in range(3)}},
        ),
        ("t5", "T5ForConditionalGeneration", {"heads": {"attention": [2], "cross_attention": [0]}}),
    ],
)
def test_a_layout_that_can_say_the_sizes_opens_in_transformers(
    preset: str, theirs: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    config = heedful.presets.t5(16, 2, 4, 24, head_dim=6) if preset == "t5" else heedful.presets.get(preset)
    small = prune(large(config, torch.float32), **parts)
    small.save_pretrained(tmp_path)
    other = getattr(transformers, theirs).from_pretrained(tmp_path).eval()
    ids = torch.tensor([[5, 7, 9, 11]])
    with torch.no_grad():
        if preset.startswith("vit"):
            pixels = torch.randn(2, 1, 28, 28)
            ours, expected = small(pixels), other(pixels).logits
        elif small.config.kind == "encoder-decoder":
            ours, expected = small(ids, ids), other(input_ids=ids, decoder_input_ids=ids).logits
        else:
            ours, out = small(ids), other(ids)
            expected = out.logits if hasattr(out, "logits") else out.last_hidden_state
    assert (ours - expected).abs().max() < 1e-4 * expected.abs().max()


def test_labels_of_a_folder_stay_with_the_pruned_model(tmp_path: Path) -> None:
    model = heedful.create("bert-tiny", head="sequence", num_labels=3, seed=0)
    model.labels = ["no", "yes", "what"]
    model.save_pretrained(tmp_path / "large")
    model = heedful.from_pretrained(tmp_path / "large").train()
    model.embedding.token.weight.requires_grad_(False)
    small = prune(model, layers=[0])
    assert (small.labels, small.folder.layout, small.training, small.fresh, small.folder.source) == (
        model.labels,
        "bert",
        True,
        [],
        "",
    )
    assert small.folder.classifier == model.folder.classifier
    assert [n for n, p in small.named_parameters() if not p.requires_grad] == ["embedding.token.weight"]
    small.save_pretrained(tmp_path / "small")
    again = heedful.from_pretrained(tmp_path / "small")
    assert list(again.labels) == ["no", "yes", "what"]
    assert again.folder.layout == "bert"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_type_of_the_weights_stays(dtype: torch.dtype) -> None:
    model = large(CONFIGS["encoder batch norm"], dtype)
    small = prune(model, layers=[1])
    kinds = {name: tensor.dtype for name, tensor in small.state_dict().items()}
    theirs = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert kinds == {name: theirs[name] for name in kinds}


def test_padding_keeps_no_more_than_it_must() -> None:
    """Brute force over all sizes: the fewest heads in even groups that hold all that speak."""
    draw = random.Random(0)
    for _ in range(200):
        groups, size = draw.choice([(6, 1), (3, 2), (2, 4), (1, 5)])
        heads = groups * size
        gone = {path: {h for h in range(heads) if draw.random() < draw.choice([0.3, 0.8])} for path in "abc"}
        stay = {path: set(range(heads)) - numbers for path, numbers in gone.items()}
        if not any(stay.values()):
            continue
        kept = remaining_heads(gone, heads, groups, (), pad=True)
        spoken = [[len({h for h in own if h // size == g}) for g in range(groups)] for own in stay.values()]
        least = min(
            count * most
            for count in range(1, groups + 1)
            for most in range(1, size + 1)
            if all(max(own) <= most and sum(map(bool, own)) <= count for own in spoken)
        )
        for path, numbers in kept.numbers.items():
            assert stay[path] <= set(numbers)
            assert len(numbers) == least
            assert numbers == sorted(set(numbers))
            assert len({sum(n // size == g for n in numbers) for g in range(groups)} - {0}) == 1


def test_a_tied_head_stays_tied_and_memory_is_its_own() -> None:
    model = heedful.create("gpt-micro", seed=0)
    small = prune(model, heads={"attention": [0]})
    assert small.head.output.weight is small.embedding.token.weight
    theirs = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert not theirs & {p.untyped_storage().data_ptr() for p in small.parameters()}


def test_it_trains_and_generates() -> None:
    small = prune(heedful.create("gpt-micro", seed=0), heads={"attention": [1, 2]}, layers=[0]).train()
    small(torch.tensor([[1, 2, 3]])).square().mean().backward()
    assert all(p.grad is not None for p in small.parameters())
    assert small.eval().generate(torch.tensor([[1, 2]]), max_new_tokens=4).shape == (1, 6)


def test_adapters_are_merged_first() -> None:
    model = add_adapter(large(decoder()), LoraConfig(rank=2), seed=0)
    with pytest.raises(HeedfulError, match="merge it first"):
        prune(model, heads={"attention": [0]})
    check(merge(model), heads=everywhere(model, "heads", [[0]]))


def test_nothing_asked_is_a_copy() -> None:
    model = large(CONFIGS["vision"])
    copy = prune(model)
    assert copy.config == model.config
    assert torch.equal(outputs(copy), outputs(model))


@pytest.mark.parametrize(
    ("config", "parts", "said"),
    [
        (decoder(), {"heads": {0: [1]}}, r"block\.0\.attention would keep heads \[0, 2, 3\], but others keep 4"),
        (decoder(), {"heads": {"attention": [0, 1, 2, 3]}}, "no head would be left"),
        (decoder(), {"heads": {"attention": [4]}}, "has no part 4; its 4 heads or units are numbered from 0"),
        (decoder(), {"heads": {3: [0]}}, "no part at 3 to prune; blocks are numbered from 0"),
        (decoder(), {"heads": {"atention": [0]}}, "no part at 'atention' to prune; did you mean|known"),
        (decoder(), {"heads": {"cross_attention": [0]}}, "no part at 'cross_attention'"),
        (decoder(), {"units": {0: [1]}}, "would keep 9 units and others 10"),
        (decoder(), {"units": {"feed_forward": range(10)}}, "no unit would be left"),
        (decoder(), {"units": {"feed_forward": [-1]}}, "has no part -1"),
        (decoder(), {"layers": [0, 1, 2]}, "no block of the decoder would be left"),
        (decoder(), {"layers": [3]}, "no block at 3"),
        (decoder(**GROUPED), {"heads": {"attention": [0]}}, "of groups of 2 that share a key-value head"),
        (
            decoder(position=RelativePosition()),
            {"heads": {0: [0], 1: [0], 2: [1]}},
            "share one table of positions",
        ),
        (
            decoder(position=AlibiPosition()),
            {"heads": {"attention": [0]}},
            r"those of 3 are the slopes of heads \[0, 1, 3\] here",
        ),
        (
            decoder(position=AlibiPosition(), heads=8, kv_heads=4, dim=32),
            {"heads": {0: [4, 5, 6], 1: [4, 6, 7], 2: [4, 6, 7]}, "pad": True},
            "slopes separate heads that share",
        ),
        (decoder(position="shaw"), {"heads": {0: [0]}}, "'shaw' positions of the decoder have weights for each head"),
        (decoder(qk_norm="all"), {"heads": {0: [0]}}, "decoder norms the queries of all heads together"),
        (encoder(convolution=ConvolutionConfig()), {"layers": [0]}, "first block of the encoder has a convolution"),
        (pair(), {"heads": {"decoder.block.0.attention": [0], "decoder.block.1.attention": [0]}}, "would keep"),
    ],
)
def test_wrong_prunings_are_refused(config: Any, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said) as error:
        prune(build(config), **parts)
    assert "\n" not in str(error.value)


def test_another_module_is_refused() -> None:
    with pytest.raises(HeedfulError, match="a Linear cannot be pruned"):
        prune(nn.Linear(2, 2))  # type: ignore[type-var]


def test_a_body_without_head() -> None:
    config = encoder(placement="post")
    check(large(replace(config, head=NoHead(pooler=True))), layers=["encoder.block.2"])
