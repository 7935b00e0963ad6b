"""Vision Transformers: patch filters, feature maps, similarity of patch positions.

Shapes: B images, D model width, P a patch's side, C channels; an image has rows × columns patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import PatchConfig, patches_of
from heedful.errors import HeedfulError
from heedful.inspection.embedding_space import cosine_similarity, principal_components
from heedful.inspection.eval_mode import evaluating
from heedful.inspection.position_tables import position_table
from heedful.inspection.record import record
from heedful.models import EncoderDecoder, Model


@dataclass(frozen=True)
class PatchFilters:
    """Principal components of a model's patch filters, as images.

    Attributes:
        images: (count, P, P, C), of unit length and arbitrary sign. To draw them, scale them so that 0 is the
            middle grey.
        explained: (count,), the share of the filters' variance along each component.
    """

    images: Tensor
    explained: Tensor


def patch_grid(model: nn.Module) -> tuple[int, int]:
    """Returns the number of rows and columns of patches in an image.

    >>> import heedful
    >>> patch_grid(heedful.create("vit-micro"))
    (4, 4)
    """
    height, width = patches(model).image_size
    return height // patches(model).patch_size, width // patches(model).patch_size


def tokens(model: nn.Module) -> list[str]:
    """Returns the names of an image's tokens: special tokens, then each patch by row and column, from 0.

    >>> import heedful
    >>> tokens(heedful.create("vit-micro"))[:3]
    ['[class]', '0,0', '0,1']
    """
    rows, columns = patch_grid(model)
    before = {"none": [], "class": ["[class]"], "class+distillation": ["[class]", "[distillation]"]}
    return before[patches(model).prefix] + [f"{row},{column}" for row in range(rows) for column in range(columns)]


def filters(model: nn.Module) -> Tensor:
    """Returns the weights of the patch projection: for each of D features a filter (P, P, C).

    >>> import heedful
    >>> filters(heedful.create("vit-micro")).shape
    torch.Size([64, 7, 7, 1])
    """
    weight: Tensor = _vision(model).embedding.projection.weight
    return weight.detach().permute(0, 2, 3, 1)  # (D, C, P, P) → (D, P, P, C)


def patch_filters(model: nn.Module, count: int = 28) -> PatchFilters:
    """Returns the principal components of the patch projection. Dosovitskiy et al. 2021, figure 7, left.

    Each of the D filters is a vector of P · P · C numbers; the components are the axes of their greatest variance
    (``principal_components``). The first components of a trained model resemble a basis of the fine structure of a
    patch; the components of an untrained model are noise.

    Args:
        model: a vision Transformer.
        count: number of components; at most D and P · P · C.

    >>> import heedful
    >>> patch_filters(heedful.create("vit-micro", seed=0), 5).images.shape
    torch.Size([5, 7, 7, 1])
    """
    weight = filters(model)
    maximum = min(len(weight), weight[0].numel())
    if not 1 <= count <= maximum:
        raise HeedfulError(
            f"count is {count}; give a number from 1 to {maximum}: the model's {len(weight)} filters have no more "
            "components"
        )
    components = principal_components(weight.flatten(1), count)
    return PatchFilters(components.axes.unflatten(1, weight.shape[1:]), components.explained)


def feature_maps(model: nn.Module, pixels: Tensor, layer: int | None = None) -> Tensor:
    """Returns feature maps, one value for each feature and patch: (B, C, height, width) → (B, D, rows, columns).

    Args:
        model: a vision Transformer. It runs in evaluation mode, without gradients.
        pixels: images as the model takes them.
        layer: number of the block whose output is returned, without the tokens before the patches; None returns the
            output of the patch projection, before positions are added.

    >>> import heedful
    >>> feature_maps(heedful.create("vit-micro", seed=0), torch.randn(2, 1, 28, 28), layer=0).shape
    torch.Size([2, 64, 4, 4])
    """
    vision = _vision(model)
    name = "embedding.maps" if layer is None else f"encoder.block.{layer}.stream"
    if layer is not None and not 0 <= layer < len(vision.encoder.block):
        raise HeedfulError(f"the model has no block {layer}; it has {len(vision.encoder.block)}, numbered from 0")
    with evaluating(vision), torch.no_grad(), record(vision, name) as recorded:
        vision.encode(pixels) if isinstance(vision, EncoderDecoder) else vision(pixels)
    if layer is None:
        return recorded[name]
    return recorded[name][:, patches(model).prefix_tokens :].mT.unflatten(-1, patch_grid(model))


def patch_position_similarity(model: nn.Module) -> Tensor:
    """Returns the cosine similarity of the positions of all pairs of patches: (rows, columns, rows, columns).

    Entry (i, j) is the map of the patch in row i and column j. Dosovitskiy et al. 2021, figure 7, centre. The positions
    of the tokens before the patches are left out.

    >>> import heedful
    >>> patch_position_similarity(heedful.create("vit-micro", seed=0)).shape
    torch.Size([4, 4, 4, 4])
    """
    rows = position_table(model, patches(model).tokens)[patches(model).prefix_tokens :]
    return cosine_similarity(rows).unflatten(1, patch_grid(model)).unflatten(0, patch_grid(model))


def patches(model: nn.Module) -> PatchConfig:
    """Returns the configuration of a model's patches; raises ``HeedfulError`` for a model that reads no images."""
    found = patches_of(_vision(model).config)
    assert found is not None  # _vision has checked it
    return found


def _vision(model: nn.Module) -> Any:
    """Returns the model that reads images: a vision Transformer, or an encoder-decoder of images."""
    models = (module for module in model.modules() if isinstance(module, Model))
    vision = next((module for module in models if patches_of(module.config) is not None), None)
    if vision is None:
        raise HeedfulError(f"a {type(model).__name__} reads no images; give a vision Transformer")
    return vision
