"""The summary against published numbers and PyTorch's own counter over a real forward."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import heedful
from heedful.errors import HeedfulError


def test_the_published_parts_of_vit_b() -> None:
    info = heedful.summary("vit-b/16")
    layers = {layer.path: layer for layer in info.layers}
    block = "encoder.block.0."
    assert layers[block + "attention"].parameters + layers[block + "attention_residual"].parameters == 2_363_904
    assert layers[block + "feed_forward"].parameters + layers[block + "feed_forward_residual"].parameters == 4_723_968
    assert layers[block[:-1]].parameters == 7_087_872
    assert layers["encoder.block"].parameters == 85_054_464
    assert layers["embedding.projection"].parameters == 590_592
    assert info.parameters == 86_567_656
    assert layers["embedding"].output == (1, 197, 768)
    assert layers["embedding.projection"].output == (1, 768, 14, 14)
    # 17.6 G multiply-adds at 224 × 224, not 173 M: attention's products are counted
    tokens, dim = 197, 768
    by_hand = 12 * (24 * tokens * dim**2 + 4 * tokens**2 * dim) + 2 * 196 * dim * dim + 2 * dim * 1000
    assert info.flops == by_hand


@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "bert-tiny", "vit-micro", "transformer-tiny"])
def test_flops_are_those_of_a_real_forward(name: str) -> None:
    info = heedful.summary(name)
    model = heedful.create(name, seed=0).eval()
    inputs = [torch.zeros(shape, dtype=torch.float32 if "vit" in name else torch.long) for shape in info.input]
    # the fused CPU kernel is one that the counter does not know
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    assert info.flops == counter.get_total_flops()
    assert info.parameters == model.count()


def test_any_module() -> None:
    layer = nn.TransformerEncoderLayer(768, 12, batch_first=True)
    info = heedful.summary(layer, input_shape=(1, 5, 768))
    assert info.parameters == sum(p.numel() for p in layer.parameters())
    assert next(layer.parameters()).device.type == "cpu"
    with pytest.raises(HeedfulError, match="input_shape"):
        heedful.summary(layer)
    with pytest.raises(HeedfulError, match=r"\(1, 5, 7\)"):
        heedful.summary(layer, input_shape=(1, 5, 7))


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
    assert {layer["path"] for layer in data["layers"]} >= {"encoder.block.1.attention.query", "head.pooler.dense"}
