"""Filters, feature maps and positions of a vision Transformer, against sklearn and sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

import heedful
from heedful.config import LearnedPosition, PatchConfig, RotaryPosition, StackConfig, VisionConfig
from heedful.errors import HeedfulError
from heedful.inspection.image_patches import feature_maps, filters, patch_filters, patch_grid, patch_position_similarity
from heedful.models import Model, build
from tolerances import approx, assert_close


def made(prefix: Any = "class", **changes: Any) -> Model:
    """Images of 8 × 12 in patches of 4, with random weights everywhere."""
    patches = PatchConfig(image_size=(8, 12), patch_size=4, channels=2, prefix=prefix)
    stack = StackConfig(dim=40, depth=2, heads=4, position=LearnedPosition(length=patches.tokens))
    model = build(VisionConfig(patches=patches, encoder=replace(stack, **changes)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


def test_filters_and_their_components_are_sklearns() -> None:
    model = made()
    weight = model.embedding.projection.weight.detach()
    theirs = PCA(6, svd_solver="full").fit(weight.flatten(1).numpy())
    found = patch_filters(model, 6)
    assert found.images.shape == (6, 4, 4, 2)
    expected = torch.from_numpy(theirs.components_).unflatten(1, (2, 4, 4)).permute(0, 2, 3, 1)
    # theirs orders the 32 numbers by channel, row, column and ours by row, column, channel: the axes are the same
    assert_close(found.images, expected, check_stride=False)
    assert_close(found.explained, torch.from_numpy(theirs.explained_variance_ratio_))
    assert torch.equal(filters(model)[7, 1, 2], weight[7, :, 1, 2])
    assert patch_filters(model, 32).explained.sum() == pytest.approx(1.0)


def test_maps_of_the_projection_by_hand() -> None:
    model, pixels = made(), torch.randn(2, 2, 8, 12).double()
    found = feature_maps(model, pixels)
    assert found.shape == (2, 40, 2, 3)
    weight, bias = model.embedding.projection.weight, model.embedding.projection.bias
    for row in range(2):
        for column in range(3):
            patch = pixels[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            expected = torch.einsum("bcij,dcij->bd", patch, weight) + bias
            assert_close(found[:, :, row, column], expected.detach())


@pytest.mark.parametrize("prefix", ["class", "class+distillation"])
def test_maps_of_a_block_are_its_streams_patches(prefix: str) -> None:
    model, pixels = made(prefix).train(), torch.randn(2, 2, 8, 12).double()
    streams: list[Tensor] = []
    hook = model.encoder.block[1].register_forward_hook(lambda _, x, y: streams.append(y.detach()))
    model.eval()(pixels)
    hook.remove()
    found = feature_maps(model.train(), pixels, layer=1)
    assert model.training
    skipped = model.config.patches.prefix_tokens
    for row in range(2):
        for column in range(3):
            assert torch.equal(found[:, :, row, column], streams[0][:, skipped + 3 * row + column])


def test_positions_on_the_grid() -> None:
    model = made("class+distillation")
    table = model.encoder.position.table.weight.detach()
    found = patch_position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    for one in range(6):
        for other in range(6):
            a, b = table[2 + one], table[2 + other]
            value = found[one // 3, one % 3, other // 3, other % 3]
            assert float(value) == approx(float(a @ b / (a.norm() * b.norm())), "layer", dtype=torch.float64)
    assert patch_grid(model) == (2, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: patch_grid(heedful.create("gpt-micro")), "a Decoder reads no images"),
        (lambda: patch_filters(made(), 33), "count is 33; give a number from 1 to 32: the model's 40 filters"),
        (lambda: patch_filters(made(), 0), "count is 0; give"),
        (lambda: feature_maps(made(), torch.randn(1, 2, 8, 12).double(), layer=2), "no block 2; it has 2"),
        (lambda: feature_maps(made(), torch.randn(1, 2, 12, 8).double()), "but the model needs"),
        (lambda: patch_position_similarity(made(position=RotaryPosition())), "'rotary' positions add no rows"),
    ],
)
def test_missing_tables_of_images_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said) as error:
        call()
    assert "\n" not in str(error.value)
