"""The summary against published numbers and PyTorch's own counter over a real forward."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import heedful
from heedful import cli, presets
from heedful.config import (
    DecoderConfig,
    DisentangledPosition,
    EncoderDecoderConfig,
    ModelConfig,
    StackConfig,
    TransformerXLPosition,
    VisionConfig,
    patches_of,
)
from heedful.errors import HeedfulError


def test_the_published_parts_of_vit_b() -> None:
    info = heedful.summary("vit-b/16")
    layers = {layer.path: layer for layer in info.layers}
    block = "encoder.block.0."
    assert layers[block + "attention_residual"].parameters == 2_363_904  # the sub-block: attention and its norm
    assert layers[block + "attention"].parameters == 2_363_904 - 2 * 768
    assert layers[block + "feed_forward_residual"].parameters == 4_723_968
    assert layers[block[:-1]].parameters == 7_087_872
    assert layers["encoder.block"].parameters == 85_054_464
    assert layers["embedding.projection"].parameters == 590_592
    assert info.parameters == 86_567_656
    assert layers["embedding"].output == (1, 197, 768)
    assert layers["embedding.projection"].output == (1, 768, 14, 14)
    assert info.multiply_adds == 17_563_828_224  # attention's products are counted
    assert info.flops == 2 * info.multiply_adds
    tokens, dim = 197, 768
    one = 12 * tokens * dim**2 + 2 * tokens**2 * dim
    assert layers[block[:-1]].multiply_adds == one
    assert layers["encoder.block"].multiply_adds == layers["encoder"].multiply_adds == 12 * one
    assert layers[block + "attention_residual"].multiply_adds == 4 * tokens * dim**2 + 2 * tokens**2 * dim
    assert layers[block + "feed_forward_residual"].multiply_adds == 8 * tokens * dim**2
    assert info.multiply_adds == 12 * one + 196 * dim * dim + 1000 * dim


def position_products(stack: StackConfig, tokens: int) -> int:
    """Multiply-adds of a block's scores that depend on positions: a row for every distance, projected, times tokens."""
    rows = 2 * tokens - 1
    if isinstance(stack.position, TransformerXLPosition):  # (q + v) W r and u k
        return rows * stack.dim**2 + tokens * rows * stack.dim + tokens * stack.dim
    if isinstance(stack.position, DisentangledPosition):  # content to position, and position to content
        return 2 * (rows * stack.dim**2 + tokens * rows * stack.dim)
    return 0


def block_products(stack: StackConfig, tokens: int, memory: int = 0) -> int:
    """Multiply-adds of a block over ``tokens``, one by one as the papers' equations have them."""
    size = stack.head_dim or stack.dim // stack.heads
    queries, keys = stack.heads * size, (stack.kv_heads or stack.heads) * size
    own = tokens * stack.dim * (2 * queries + 2 * keys) + 2 * tokens * tokens * queries
    cross = 2 * tokens * stack.dim * queries + 2 * memory * stack.dim * keys + 2 * tokens * memory * queries
    fed = (3 if stack.gated else 2) * tokens * stack.dim * (stack.ff_dim or 4 * stack.dim)
    return own + position_products(stack, tokens) + (cross if stack.cross else 0) + fed


def products(config: ModelConfig, tokens: int) -> int:
    """Multiply-adds of a whole model: its blocks, its patches, its head."""
    if isinstance(config, VisionConfig):
        patches, dim = config.patches, config.encoder.dim
        cut = (patches.tokens - patches.prefix_tokens) * patches.patch_size**2 * patches.channels * dim
        rows = max(1, patches.prefix_tokens)  # a classifier each
        return (
            cut
            + config.encoder.depth * block_products(config.encoder, patches.tokens)
            + rows * dim * config.head.labels
        )
    if isinstance(config, EncoderDecoderConfig):
        memory, both = tokens, 0
        if (patches := patches_of(config)) is not None:
            memory = patches.tokens
            pixels = patches.patch_size**2 * patches.channels
            both = (memory - patches.prefix_tokens) * pixels * config.encoder.dim
        if config.encoder.dim != config.decoder.dim:  # the memory's projection
            both += memory * config.encoder.dim * config.decoder.dim
        both += config.encoder.depth * block_products(config.encoder, memory)
        both += config.decoder.depth * block_products(config.decoder, tokens, memory=memory)
        return both + tokens * config.decoder.dim * config.tokens.vocab_size
    if isinstance(config, DecoderConfig):
        stack = config.decoder
        return stack.depth * block_products(stack, tokens) + tokens * stack.dim * config.embedding.vocab_size
    stack = config.encoder
    beside = tokens * stack.convolution.size * stack.dim**2 if stack.convolution else 0  # the first block
    return stack.depth * block_products(stack, tokens) + beside


def kind(name: str) -> tuple[type, ...]:
    """The family of a preset, and the kinds of its stacks' positions."""
    config = presets.get(name)
    return type(config), *(type(part.position) for part in vars(config).values() if isinstance(part, StackConfig))


FIRST = list({kind(name): name for name in reversed(presets.names())}.values())  # of every kind


@pytest.mark.parametrize("name", [*FIRST, *(name for name in presets.names() if name not in FIRST)])
@pytest.mark.full(keep=len(FIRST))
def test_multiply_adds_of_every_preset_by_hand(name: str) -> None:
    config = presets.get(name)
    # the shape of every block is the same: a few of them, with every window, stand for all
    few = {part: replace(getattr(config, part), depth=3) for part in ("encoder", "decoder") if hasattr(config, part)}
    config = replace(config, **few)
    info = heedful.summary(config)
    assert info.multiply_adds == products(config, info.input[-1][1])


@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "bert-tiny", "vit-micro", "transformer-tiny"])
def test_flops_are_those_of_a_real_forward(name: str) -> None:
    info = heedful.summary(name)
    model = heedful.create(name, seed=0).eval()
    inputs = [torch.zeros(shape, dtype=torch.float32 if "vit" in name else torch.long) for shape in info.input]
    # the fused CPU kernel is one that the counter does not know
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    assert info.flops == counter.get_total_flops()
    assert info.parameters == model.num_parameters()


def test_any_module() -> None:
    layer = nn.TransformerEncoderLayer(768, 12, batch_first=True)
    info = heedful.summary(layer, input_shape=(1, 5, 768))
    assert info.parameters == sum(p.numel() for p in layer.parameters())
    assert next(layer.parameters()).device.type == "cpu"
    with pytest.raises(HeedfulError, match="input_shape"):
        heedful.summary(layer)
    with pytest.raises(HeedfulError, match=r"\(1, 5, 7\)"):
        heedful.summary(layer, input_shape=(1, 5, 7))


class Shifted(nn.Module):
    """Adds what a part returns: a view of its own parameter."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(8))

        def forward(self) -> torch.Tensor:
            return self.shift[None]

    def __init__(self) -> None:
        super().__init__()
        self.map, self.bias = nn.Linear(8, 8), self.Shift()
        self.map.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(x) + self.bias()


def test_a_part_may_return_a_view_of_its_parameter() -> None:
    info = heedful.summary(Shifted(), input_shape=(4, 8))
    assert (info.parameters, info.trainable, info.multiply_adds) == (80, 72, 4 * 8 * 8)
    xlnet = heedful.summary("xlnet-base")  # its biases of Transformer-XL
    assert {layer.path: layer.parameters for layer in xlnet.layers}["encoder.block.0.attention.relative.biases"] == 1536


def test_a_block_alone_is_read_as_the_published_table() -> None:
    info = heedful.summary(heedful.Block(presets.get("vit-b/16").encoder), input_shape=(1, 197, 768))
    rows = {line.split()[0]: line for line in str(info).splitlines()[1:] if line}
    assert str(info).splitlines()[0].split() == ["layer", "kind", "input", "output", "parameters", "multiply-adds"]
    assert rows["attention_residual"].split()[-3:] == ["2,363,904", "524.4", "M"]
    assert rows["feed_forward_residual"].split()[-3:] == ["4,723,968", "929.6", "M"]
    assert "1 × 197 × 3072" in rows["feed_forward.up"]
    assert (info.parameters, info.multiply_adds) == (7_087_872, 1_453_954_560)
    assert "1.5 G multiply-adds, 2.9 GFLOPs" in str(info)


class Listed(nn.Module):
    """Lists in lists, one part called twice and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 5)
        self.last = nn.Linear(8, 8)
        self.rows = nn.ModuleList(nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in self.rows:
            for part in row:
                x = part(part(x))
        return self.last(x)


def test_rows_stand_in_the_order_in_which_they_run() -> None:
    info = heedful.summary(Listed(), input_shape=(4, 8))
    paths = ["never", "rows", "rows.0", "rows.0.0", "rows.0.1", "rows.1", "rows.1.0", "rows.1.1", "last"]
    assert [layer.path for layer in info.layers] == paths
    counts = {layer.path: layer.multiply_adds for layer in info.layers}
    once = 4 * 8 * 8
    assert counts["rows.0.0"] == 2 * once
    assert (counts["rows.0"], counts["rows"]) == (4 * once, 8 * once)
    assert (counts["never"], counts["last"], info.multiply_adds) == (0, once, 9 * once)
    assert {layer.path: layer.parameters for layer in info.layers}["rows"] == 4 * 72


def test_ties_count_once_and_nothing_is_allocated() -> None:
    info = heedful.summary("bert-large")  # 1.3 GB, were its weights made
    assert info.parameters == 335_141_888
    tied = heedful.summary("gpt2")
    assert tied.parameters == 124_439_808
    assert sum(layer.parameters for layer in tied.layers if "." not in layer.path) > tied.parameters


def test_it_prints_as_a_table_and_as_json() -> None:
    info = heedful.summary("bert-tiny", input_shape=(2, 16))
    text = str(info)
    assert "4,385,920 parameters" in text
    assert "2 × 16 × 128" in text
    data = json.loads(json.dumps(info.as_dict()))
    assert data["parameters"] == 4_385_920
    assert data["input"] == [[2, 16]]
    assert data["flops"] == 2 * data["multiply_adds"] > 0
    assert all(layer["flops"] == 2 * layer["multiply_adds"] for layer in data["layers"])
    assert {layer["path"] for layer in data["layers"]} >= {"encoder.block.1.attention.query", "head.pooler.dense"}


def test_the_table_says_what_is_trainable_and_has_the_depth_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = heedful.create("gpt-micro", seed=0)
    model.embedding.requires_grad_(False)
    frozen = sum(parameter.numel() for parameter in model.embedding.parameters())
    info = heedful.summary(model, depth=1)
    assert f"{info.parameters - frozen:,} trainable, {frozen:,} frozen" in str(info)
    paths = [layer.path for layer in info.layers]
    for depth in (1, 2, 5):
        assert cli.main(["summary", "gpt-micro", "--depth", str(depth)]) == 0
        printed = capsys.readouterr().out
        shown = {line.split()[0] for line in printed.split("\n\n")[0].splitlines()[1:]}
        assert shown == {path for path in paths if path.count(".") < depth}
    assert cli.main(["summary", "gpt-micro", "--depth", "0"]) == 2
    assert "depth is 0; give at least 1" in capsys.readouterr().err
