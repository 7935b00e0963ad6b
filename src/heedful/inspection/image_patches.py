"""Vision Transformers: patch filters, feature maps, similarity of patch positions.

Shapes: B images, D model width, P a patch's side, C channels; an image has rows × columns patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.embedding_space import picture, similarity
from heedful.inspection.eval_mode import evaluating
from heedful.inspection.position_tables import position_table
from heedful.inspection.record import record
from heedful.models import VisionTransformer


@dataclass(frozen=True)
class Filters:
    """The axes along which a model's patch filters differ most, as pictures.

    Attributes:
        images: (count, P, P, C), of unit length and any sign: scale each, or all, about 0 to draw them.
        explained: (count,), the share of the filters' variance along each; what is missing from 1 is not shown.
    """

    images: Tensor
    explained: Tensor


def grid(model: nn.Module) -> tuple[int, int]:
    """Number of rows and columns of patches in an image.

    >>> import heedful
    >>> grid(heedful.create("vit-micro"))
    (4, 4)
    """
    patches = _vision(model).config.patches
    height, width = patches.image_size
    return height // patches.patch_size, width // patches.patch_size


def tokens(model: nn.Module) -> list[str]:
    """Names of an image's tokens: those before the patches, then each patch by row and column, from 0.

    >>> import heedful
    >>> tokens(heedful.create("vit-micro"))[:3]
    ['[class]', '0,0', '0,1']
    """
    rows, columns = grid(model)
    before = {"none": [], "class": ["[class]"], "class+distillation": ["[class]", "[distillation]"]}
    patches = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    return before[_vision(model).config.patches.prefix] + patches


def filters(model: nn.Module) -> Tensor:
    """The patch projection itself: for each of the D features, the picture (P, P, C) that it answers to.

    >>> import heedful
    >>> filters(heedful.create("vit-micro")).shape
    torch.Size([64, 7, 7, 1])
    """
    return _vision(model).embedding.projection.weight.detach().permute(0, 2, 3, 1)  # (D, C, P, P) → (D, P, P, C)


def patch_filters(model: nn.Module, count: int = 28) -> Filters:
    """The principal components of the patch projection. Dosovitskiy et al. 2021, figure 7, left.

    Each of the D filters is a vector of P · P · C numbers; the components are the axes of their greatest variance (see
    ``heedful.inspection.embedding_space.picture``). A trained model's first ones look like a basis of the fine
    structure of a patch; a fresh model's are noise.

    Args:
        model: a vision Transformer.
        count: how many; at most D and P · P · C.

    >>> import heedful
    >>> patch_filters(heedful.create("vit-micro", seed=0), 5).images.shape
    torch.Size([5, 7, 7, 1])
    """
    weight = filters(model)
    most = min(len(weight), weight[0].numel())
    if not 1 <= count <= most:
        raise HeedfulError(f"{count} filters are asked for; the model's {len(weight)} have from 1 to {most} components")
    found = picture(weight.flatten(1), count)
    return Filters(found.axes.unflatten(1, weight.shape[1:]), found.explained)


def feature_maps(model: nn.Module, pixels: Tensor, layer: int | None = None) -> Tensor:
    """Feature maps, one value a feature and patch: (B, C, height, width) → (B, D, rows, columns).

    Args:
        model: a vision Transformer. It is evaluated, without dropout or gradients.
        pixels: images as the model takes them.
        layer: the stream as it leaves this block, its tokens before the patches left out; None: what the patch
            projection makes, before positions.

    >>> import heedful
    >>> feature_maps(heedful.create("vit-micro", seed=0), torch.randn(2, 1, 28, 28), layer=0).shape
    torch.Size([2, 64, 4, 4])
    """
    vision = _vision(model)
    name = "embedding.maps" if layer is None else f"encoder.block.{layer}.stream"
    if layer is not None and not 0 <= layer < len(vision.encoder.block):
        raise HeedfulError(f"the model has no block {layer}; it has {len(vision.encoder.block)}, numbered from 0")
    with evaluating(vision), torch.no_grad(), record(vision, name) as seen:
        vision(pixels)
    if layer is None:
        return seen[name]
    return seen[name][:, vision.config.patches.prefix_tokens :].mT.unflatten(-1, grid(model))


def patch_position_similarity(model: nn.Module) -> Tensor:
    """Cosine similarity of the positions of all pairs of patches: (rows, columns, rows, columns).

    ``found[i, j]`` is the map of the patch in row i and column j. Dosovitskiy et al. 2021, figure 7, centre. The
    positions of the tokens before the patches are left out.

    >>> import heedful
    >>> patch_position_similarity(heedful.create("vit-micro", seed=0)).shape
    torch.Size([4, 4, 4, 4])
    """
    patches = _vision(model).config.patches
    rows = position_table(model, patches.tokens)[patches.prefix_tokens :]
    return similarity(rows).unflatten(1, grid(model)).unflatten(0, grid(model))


def _vision(model: nn.Module) -> VisionTransformer:
    found = [part for part in model.modules() if isinstance(part, VisionTransformer)]
    if not found:
        raise HeedfulError(f"a {type(model).__name__} reads no images; give a vision Transformer")
    return found[0]
