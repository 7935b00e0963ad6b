"""Shows shapes, parameters and multiply-adds of one encoder block of ViT-B/16 and of BERT-base.

    python examples/encoder_block.py

Any computer, ten seconds, most of them for importing PyTorch: the model runs on shapes alone, without weights. To
expect, after a table for each block:

    ViT-B/16 attention and its norm: 2,363,904 parameters
    ViT-B/16 feed-forward and its norm: 4,723,968 parameters
    ViT-B/16 block: 7,087,872 parameters, 1,453,954,560 multiply-adds
    ViT-B/16 all 12 blocks: 85,054,464 parameters
    ViT-B/16 whole model: 86,567,656 parameters, 17,563,828,224 multiply-adds
    BERT-base block: 7,087,872 parameters, 4,026,531,840 multiply-adds
    BERT-base whole model: 109,482,240 parameters, 48,318,382,080 multiply-adds

The two blocks differ in the placement of their norms alone. The multiply-adds include attention's own products,
queries by keys and weights by values, which a count of layers with weights would miss.
"""

from __future__ import annotations

import heedful
from heedful import Block, presets


def by_hand(tokens: int, dim: int) -> int:
    """Multiply-adds of a block: four projections, the two products of attention, two maps between dim and 4 dim."""
    return 4 * tokens * dim**2 + 2 * tokens**2 * dim + 8 * tokens * dim**2


def main() -> None:
    """Print both tables, and read the published numbers off them."""
    for name, preset, tokens in (("ViT-B/16", "vit-b/16", 197), ("BERT-base", "bert-base", 512)):
        config = presets.get(preset).encoder  # type: ignore[union-attr]  # both have one
        block = heedful.summary(Block(config), input_shape=(1, tokens, config.dim))
        print(f"{name}: one of {config.depth} blocks, {config.placement}-norm, {tokens} tokens of width {config.dim}\n")
        print(block, "\n")

        rows = {layer.path: layer for layer in block.layers}
        attention, feed_forward = rows["attention_residual"], rows["feed_forward_residual"]
        assert attention.parameters + feed_forward.parameters == block.parameters
        assert block.multiply_adds == by_hand(tokens, config.dim)

        whole = heedful.summary(preset, length=tokens if name == "BERT-base" else None)  # an image is always 197
        print(f"{name} attention and its norm: {attention.parameters:,} parameters")
        print(f"{name} feed-forward and its norm: {feed_forward.parameters:,} parameters")
        print(f"{name} block: {block.parameters:,} parameters, {block.multiply_adds:,} multiply-adds")
        print(f"{name} all {config.depth} blocks: {config.depth * block.parameters:,} parameters")
        print(f"{name} whole model: {whole.parameters:,} parameters, {whole.multiply_adds:,} multiply-adds\n")


if __name__ == "__main__":
    main()
