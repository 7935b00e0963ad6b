"""Follows a real photograph through a vision Transformer, step by step and shape by shape.

    python examples/vision_step_by_step.py [OUT] [MODEL]

One core, twenty seconds; scikit-learn brings the photograph. Writes
grid.svg, strip.svg and features.svg into the folder OUT ("vision" by default). The weights are random and the
prediction is a guess, unless MODEL is the folder of a trained ViT-B/16. To expect:

    photograph                     (427, 640, 3)
    cropped and resized            (224, 224, 3)
    pixels from -1 to 1            (1, 3, 224, 224)
    patch projection               (1, 768, 14, 14)
    flattened: 196 patches         (1, 196, 768)
    class token first: 197 tokens  (1, 197, 768)
    positions added                (1, 197, 768)
    after 12 blocks and the norm   (1, 197, 768)
    the class token alone          (1, 768)
    logits                         (1, 1000)
    the same by multiplication of flattened patches: yes
    head for fine-tuning, one linear layer, 1,000 classes: 769,000 parameters
    head for pre-training, one hidden layer, 21,843 classes: 17,387,859 parameters

The paper: Dosovitskiy et al. 2021, equations 1 to 4; its section 3.1 has the two heads.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image
from torch import nn

import heedful
from heedful.config import ImageHead
from heedful.heads import head_of
from heedful.util.files import write
from heedful.views import feature_maps_svg, patch_grid_svg, strip_svg

PATCH, SIZE = 16, 224


def show(step: str, thing: object) -> None:
    """A step, and the shape of what comes out of it."""
    print(f"{step:30} {tuple(thing.shape)}")  # type: ignore[attr-defined]  # arrays and tensors have one


def show_head(use: str, head: nn.Module, labels: int) -> None:
    """A classifier's size."""
    print(f"head for {use}, {labels:,} classes: {sum(p.numel() for p in head.parameters()):,} parameters")


@torch.no_grad()
def follow(model: heedful.VisionTransformer, out: Path) -> None:
    """One photograph through a model of width 768, step by step."""
    embedding, encoder, head = model.embedding, model.encoder, model.head
    photo = load_sample_image("china.jpg")
    show("photograph", photo)
    pixels = torch.from_numpy(np.array(ImageOps.fit(Image.fromarray(photo), (SIZE, SIZE))))
    show("cropped and resized", pixels)  # the middle, by bicubic interpolation
    x = (pixels.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    show("pixels from -1 to 1", x)

    maps = embedding.projection(x)  # a convolution whose stride is its width: each patch is seen once
    show("patch projection", maps)
    patches = maps.flatten(2).mT
    show("flattened: 196 patches", patches)
    tokens = torch.cat((embedding.prefix, patches), dim=1)
    show("class token first: 197 tokens", tokens)
    placed = tokens + encoder.position.table.weight
    show("positions added", placed)
    hidden = placed
    for block in encoder.block:
        hidden = block(hidden)
    hidden = encoder.norm(hidden)
    show(f"after {len(encoder.block)} blocks and the norm", hidden)
    show("the class token alone", hidden[:, 0])
    logits = head(hidden)
    show("logits", logits)
    assert torch.allclose(logits, model(x), atol=1e-4), "the model is these steps and nothing else"
    surest = int(logits.argmax())
    name = model.labels[surest] if model.labels else f"class {surest}"
    print(f"answer: {name}, probability {float(logits.softmax(-1).max()):.3f}")

    # the projection is a linear map of the flattened patch: 16 × 16 × 3 = 768 numbers in, 768 out
    cut = nn.functional.unfold(x, PATCH, stride=PATCH).mT  # (1, 196, 768)
    product = cut @ embedding.projection.weight.flatten(1).mT + embedding.projection.bias
    same = torch.allclose(product, patches, atol=1e-4)
    print("the same by multiplication of flattened patches:", "yes" if same else "no")

    show_head("fine-tuning, one linear layer", head, logits.size(1))
    with torch.device("meta"):  # to be counted, not used
        deep = head_of(ImageHead(labels=21843, hidden=768), 768, prefix_tokens=1)
    show_head("pre-training, one hidden layer", deep, 21843)

    features = maps[0].flatten(1).std(dim=1).topk(5).indices.tolist()  # the five of 768 that differ most over the image
    pictures = {
        "grid.svg": patch_grid_svg(pixels.numpy(), PATCH, "The photograph in its patches"),
        "strip.svg": strip_svg(pixels.numpy(), PATCH, "The row of tokens"),
        "features.svg": feature_maps_svg(maps[0, features], [f"feature {i}" for i in features], "Five feature maps"),
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, text in pictures.items():
        write(out / file, text)
        print(f"wrote {out / file}")


if __name__ == "__main__":
    given = sys.argv[1:]
    model = heedful.from_pretrained(given[1]) if given[1:] else heedful.create("vit-b/16", seed=0)
    follow(model.eval(), Path(given[0] if given else "vision"))
