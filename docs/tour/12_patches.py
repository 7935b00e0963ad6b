r"""
An image as a sentence
======================

.. lead::

A vision Transformer cuts the image into squares and reads them as words, row by row: 224 × 224
pixels in squares of 16 are 196 words. Nothing else in the model knows that the input is an image.
"""

import numpy as np
import torch

import heedful
from heedful import HeedfulError
from heedful.config import PatchConfig
from heedful.layers import PatchEmbedding
from heedful.views import feature_maps_svg, patch_grid_svg, strip_svg

y, x = np.mgrid[0:224, 0:224] / 224
sky = np.stack([250 - 150 * y, 150 - 40 * y, 90 + 90 * y], -1)
sun = np.hypot(x - 0.64, y - 0.42) < 0.15
sky[sun] = [255, 236, 170]
sea = y > 0.62 + 0.006 * np.sin(40 * x)
sky[sea] = (
    np.stack([40 + 90 * x, 60 + 60 * x, 110 + 30 * y], -1) + 45 * (np.sin(90 * y) > 0.7)[..., None]
)[sea]
picture = sky.clip(0, 255).astype(np.uint8)  # (224, 224, 3): a sunset, drawn here
patch_grid_svg(picture, 16, "224 × 224 pixels, 16 × 16 a patch")

# %%
# .. math:: N = \frac{H}{P} \cdot \frac{W}{P}
#
# .. math:: z_0 = \left[x_{\mathrm{class}};\; x_p^1 E;\; \ldots;\; x_p^N E\right] + E_{\mathrm{pos}}
#
# (Dosovitskiy et al. 2021, equation 1.) Each patch of :math:`P \times P` pixels and 3 colours is
# flattened and goes through one linear map :math:`E`. A convolution whose stride is as large as its
# filter does just that, for all patches at once.
#
# .. ours:: heedful.layers.embedding.PatchEmbedding.forward
#    :mark: self.projection

config = PatchConfig(image_size=(224, 224), patch_size=16)
assert config.tokens == 197  # 196 patches, and the class token before them

pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255  # (B, C, H, W)
torch.manual_seed(0)
embedding = PatchEmbedding(768)
assert sum(p.numel() for p in embedding.projection.parameters()) == 590_592
with torch.no_grad():
    tokens = embedding(pixels)  # (B, 1 + N, D)
    assert tokens.shape == (1, 197, 768)
    patch = pixels[0, :, 16:32, 48:64].flatten()  # second row, fourth column: patch 14 · 1 + 3
    assert torch.allclose(
        tokens[0, 1 + 14 + 3],
        embedding.projection.weight.flatten(1) @ patch + embedding.projection.bias,
        atol=1e-5,
    )

strip_svg(picture, 16, "The same image as the model reads it")

# %%
# What does not fit is refused
# ----------------------------
#
# Both sides must be multiples of the patch. Code that divides and rounds cuts off the rest of
# the image silently.

for size, patch_size in (((230, 224), 16), ((240, 240), 32)):
    try:
        PatchConfig(image_size=size, patch_size=patch_size)
    except HeedfulError as error:
        print(error)
    else:
        raise AssertionError(f"{size} at {patch_size} was taken")

# %%
# A coincidence that misleads
# ---------------------------
#
# At 224 × 224 in patches of 16, a patch holds :math:`16 \cdot 16 \cdot 3 = 768` numbers, and B/16
# is 768 wide: tokens hold exactly as many numbers as the image. It looks like a law, and is a
# coincidence of this size: at any other patch or width the two differ.

for name, patch_size, width in (
    ("B/16", 16, 768),
    ("B/32", 32, 768),
    ("L/16", 16, 1024),
    ("H/14", 14, 1280),
):
    count = (224 // patch_size) ** 2
    print(f"{name}: {count} patches, {count * patch_size**2 * 3:,} numbers in the image,", end=" ")
    print(f"{count * width:,} in the tokens")
    assert (patch_size**2 * 3 == width) == (name == "B/16")

# %%
# What the filters see
# --------------------
#
# Each of the 768 rows of :math:`E` is a filter of 16 × 16 pixels. Set four of them by hand, and
# see their output for the image, one number a patch:

with torch.no_grad():
    filters = torch.zeros(4, 3, 16, 16)
    filters[0] = 1 / 768  # brightness
    filters[1, 0], filters[1, 2] = 1 / 256, -1 / 256  # red against blue
    filters[2, :, :8], filters[2, :, 8:] = 1 / 384, -1 / 384  # above against below
    filters[3, :, :, :8], filters[3, :, :, 8:] = 1 / 384, -1 / 384  # left against right
    maps = torch.nn.functional.conv2d(pixels, filters, stride=16)[0]  # (4, 14, 14)
assert torch.isclose(maps[0, 0, 0], pixels[0, :, :16, :16].mean(), atol=1e-5)
feature_maps_svg(
    maps.numpy(),
    ["brightness", "red − blue", "above − below", "left − right"],
    "Four filters, one number a patch",
)

# %%
# The same for a whole model, without allocating its weights:

print(heedful.summary("vit-b/16").parameters)
assert heedful.summary("vit-b/16").parameters == 86_567_656
