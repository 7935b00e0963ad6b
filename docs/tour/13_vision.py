r"""
One token for the whole image
=============================

.. lead::

The class token stands before the patches, belongs to no position of the image, and collects what
the prediction needs. After a few seconds of training a small model distinguishes three shapes; the
overlay shows from where its class token took what it knows.
"""

import torch
import torch.nn.functional as F

import heedful
from heedful.config import ImageHead, LearnedPosition, PatchConfig, StackConfig, VisionConfig
from heedful.inspection.attention_maps import class_token_overlay
from heedful.views.figures import bars, heat, overlay

SHAPES = ("disc", "ring", "cross")
y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy images (B, 1, 24, 24) of a shape, its kind (B,) and its position (B, 2)."""
    which, middle = torch.randint(3, (count,)), 5 + 14 * torch.rand(count, 2)
    down, right = (y - middle[:, :1, None]).abs(), (x - middle[:, 1:, None]).abs()
    far = (down**2 + right**2).sqrt()
    kinds = torch.stack(
        (
            far < 4.5,
            (far < 4.5) & (far > 2.5),
            (torch.minimum(down, right) < 1) & (torch.maximum(down, right) < 4.5),
        )
    )
    pictures = kinds[which, torch.arange(count)].float() + 0.15 * torch.randn(count, 24, 24)
    return pictures[:, None], which, middle


torch.manual_seed(0)
patches = PatchConfig(image_size=(24, 24), patch_size=4, channels=1)
stack = StackConfig(
    dim=48, depth=1, heads=4, position=LearnedPosition(length=patches.tokens), init="truncated"
)
model = heedful.create(
    VisionConfig(patches=patches, encoder=stack, head=ImageHead(labels=3)), seed=0
)
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=400)
for _ in range(400):
    pixels, which, _ = draw(32)
    loss = F.cross_entropy(model(pixels), which)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    falling.step()
model.eval()

pixels, which, middle = draw(500)
with torch.no_grad(), heedful.record(model, "pattern") as recorded:
    answers = model(pixels).argmax(-1)
pattern = recorded["encoder.block.0.attention.pattern"]  # (B, H, 1 + N, 1 + N)
looked = class_token_overlay(pattern, (6, 6))  # (B, H, rows, columns)
looked = looked / looked.sum((-1, -2), keepdim=True)
ring = int((which == 1).nonzero()[0])
shown = (pixels[ring, 0].clamp(0, 1) * 255).byte()[..., None].expand(-1, -1, 3).numpy()
overlay(shown, looked[ring].mean(0).numpy(), "A ring, and where the class token looked")

# %%
# .. math:: \hat{y} = W\, \mathrm{norm}(z_L^{0}) + b
#
# The classifier reads row 0 of the last stream, and no other (Dosovitskiy et al. 2021, section
# 3.1).
#
# .. ours:: heedful.heads.ImageClassifier.forward
#    :mark: hidden[:
#
# .. ours:: heedful.models.vision.VisionTransformer.hidden
#
# The overlay is row 0 of the pattern, laid on the image:
#
# .. ours:: heedful.inspection.attention_maps.class_token_overlay
#    :mark: return

right = (answers == which).float().mean().item()
print(f"right: {100 * right:.1f} % of 500 new images; guessing is 33 %")
assert right > 0.9

with torch.no_grad():
    stream = model.hidden(pixels[:1])
    other = stream.clone()
    other[:, 1:] = 0  # take all patches' rows away at the end
    assert torch.equal(model.head(other), model.head(stream))

# %%
# Does it attend to the shape?
# ----------------------------
#
# One overlay proves nothing: here are 500. The patches within 6 pixels of the shape's middle are a
# fifth of the image. A model that attends anywhere gives them a fifth of its attention.

rows, columns = torch.arange(36) // 6 * 4 + 1.5, torch.arange(36) % 6 * 4 + 1.5
near = ((rows - middle[:, :1]) ** 2 + (columns - middle[:, 1:]) ** 2).sqrt() < 6  # (B, N)
chance = near.float().mean().item()
shares = (looked.flatten(2) * near[:, None]).sum(-1).mean(0)  # (H,)
print(f"by chance {chance:.2f}; heads: {[round(share, 2) for share in shares.tolist()]}")
assert 0.15 < chance < 0.25
assert shares.mean() > 2 * chance

bars(
    ["anywhere", *(f"head {h}" for h in range(4))],
    [chance, *shares.tolist()],
    "The share of attention that lies on the shape",
)

# %%
# One row for every image
# -----------------------
#
# The class token is *one* learned row, expanded over the batch. Code that makes it as large as the
# batch trains another token for each place in the batch, and cannot take a batch of another size.
#
# .. ours:: heedful.layers.embedding.PatchEmbedding.forward
#    :mark: expand

assert model.embedding.prefix.shape == (1, 1, 48)
with torch.no_grad():
    first = model.embedding(pixels[:7])[:, 0]  # (7, D)
assert torch.equal(first, model.embedding.prefix[0].expand(7, -1))

# %%
# Learned positions
# -----------------
#
# Positions are learned, one row each, and nothing says that the image has two dimensions. A little
# of it shows after these few seconds; after days of training, neighbours are similar (Dosovitskiy
# et al. 2021, figure 7). Here the similarity of each position to the one in the third row and
# fourth column:

table = model.encoder.position.table.weight.detach()[1:]  # without the class token's position
alike = F.cosine_similarity(table[2 * 6 + 3], table, dim=-1).view(6, 6)
assert torch.isclose(alike[2, 3], torch.tensor(1.0))
heat(
    alike.numpy(),
    [f"row {r + 1}" for r in range(6)],
    [f"column {c + 1}" for c in range(6)],
    "Similarity of learned positions to one of them",
)

# %%
# The largest of the paper's models, counted: H/14 with 1,000 classes.

with torch.device("meta"):
    assert heedful.create("vit-h/14").num_parameters() == 632_045_800
