"""Token and patch embeddings against their definitions."""

from __future__ import annotations

import pytest
import torch

from heedful.config import LanguageHead
from heedful.errors import HeedfulError
from heedful.heads import head_of
from heedful.layers import PatchEmbedding, TokenEmbedding
from tolerances import assert_close


def test_tokens_scaled_and_segments_not() -> None:
    layer = TokenEmbedding(20, 9, scale="sqrt", segments=2)
    ids, segments = torch.tensor([[3, 4]]), torch.tensor([[0, 1]])
    expected = layer.token.weight[[3, 4]] * 3 + layer.segment.weight
    assert_close(layer(ids, segments)[0], expected)
    assert_close(layer(ids)[0], layer.token.weight[[3, 4]] * 3 + layer.segment.weight[0])


def test_a_factor_rounded_to_the_type_of_the_rows() -> None:
    layer, plain = (TokenEmbedding(20, 24, scale=scale).bfloat16() for scale in ("sqrt-rounded", "sqrt"))
    ids = torch.arange(20)[None]
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(ids), layer.token.weight[None] * torch.tensor(24**0.5).bfloat16())
    assert not torch.equal(layer(ids), plain(ids))
    assert torch.equal(layer.float()(ids), plain.load_state_dict(layer.state_dict()) and plain.float()(ids))


def test_a_factor_of_1_is_no_operation() -> None:
    layer, ids = TokenEmbedding(20, 9), torch.tensor([[3, 4]])
    assert layer(ids).grad_fn.name() == "EmbeddingBackward0"
    assert torch.equal(layer(ids)[0], layer.token.weight[[3, 4]])
    assert head_of(LanguageHead(), 9, layer.token).transform(hidden := torch.randn(1, 2, 9)) is hidden


def test_segments_without_a_table() -> None:
    with pytest.raises(HeedfulError, match="no segment embedding"):
        TokenEmbedding(20, 8)(torch.tensor([[1]]), torch.tensor([[0]]))


@pytest.mark.parametrize("prefix", ["none", "class", "class+distillation"])
def test_patches_are_a_linear_map_of_each(prefix: str) -> None:
    """Rows first, then columns; each patch flattened channel by channel."""
    layer = PatchEmbedding(5, image_size=(6, 8), patch_size=2, channels=3, prefix=prefix).double()
    pixels = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    rows = []
    if prefix == "none":
        assert layer.prefix is None
    else:
        torch.nn.init.normal_(layer.prefix)
        rows += [layer.prefix[0, i].expand(2, -1) for i in range(len(prefix.split("+")))]
    for top in range(0, 6, 2):
        for left in range(0, 8, 2):
            patch = pixels[:, :, top : top + 2, left : left + 2].flatten(1)
            rows.append(patch @ layer.projection.weight.flatten(1).T + layer.projection.bias)
    assert_close(layer(pixels), torch.stack(rows, 1), "layer")
    assert layer(pixels).is_contiguous()


@pytest.mark.parametrize("shape", [(3, 8, 6), (1, 6, 8), (3, 12, 8)])
def test_another_shape_is_refused(shape: tuple[int, int, int]) -> None:
    layer = PatchEmbedding(5, image_size=(6, 8), patch_size=2)
    with pytest.raises(HeedfulError, match=r"\(3, 6, 8\)"):
        layer(torch.zeros(1, *shape))
