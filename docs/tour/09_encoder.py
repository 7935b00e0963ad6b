r"""
The encoder: every word attends to every word
=============================================

.. lead::

An encoder is a block, over and over: attention, in which every word sees every other, then the
feed-forward network, each in its residual. What goes in is a row a word; what comes out is a row a
word that knows its text.
"""

from dataclasses import replace
from itertools import pairwise

import torch

import heedful
from heedful.config import EmbeddingConfig, EncoderConfig, SinusoidalPosition, StackConfig
from heedful.presets import get
from heedful.views.figures import Arrow, Box, bars, flow

steps = [
    ("words", "words", "data"),
    ("embedding", "embedding and positions", "step"),
    ("norm 1", "norm", "step"),
    ("attention", "attention", "main"),
    ("+ 1", "+", "sum"),
    ("norm 2", "norm", "step"),
    ("feed-forward", "feed-forward", "main"),
    ("+ 2", "+", "sum"),
    ("norm 3", "norm", "step"),
    ("rows", "a row a word", "data"),
]
flow(
    {name: Box(text=text, row=row, kind=kind) for row, (name, text, kind) in enumerate(steps)},
    [
        *(Arrow(start=a[0], end=b[0]) for a, b in pairwise(steps)),
        Arrow(start="embedding", end="+ 1", way="left"),
        Arrow(start="+ 1", end="+ 2", way="left"),
    ],
    "An encoder of one block",
    note="from the first norm to the second + is the block; others stand on top of it",
)

# %%
# .. math:: x \leftarrow x + \mathrm{Attention}(\mathrm{norm}(x))
#
# .. math:: x \leftarrow x + \mathrm{FFN}(\mathrm{norm}(x))
#
# .. ours:: heedful.layers.block.Block.sublayers
#    :mark: residual(
#
# The whole stack: positions, dropout, blocks, and a last norm where blocks begin with one.
#
# .. ours:: heedful.stack.padded
#    :mark: for block
#
# And the family, in two lines:
#
# .. ours:: heedful.models.encoder.Encoder.hidden
#
# .. ours:: heedful.models.encoder.Encoder.forward


# %%
# A block, counted
# ----------------
#
# That of ViT-B, and of BERT-base but for the place of the norms. Counting is the quickest test of
# your own block:


def numbers(part: torch.nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in part.parameters())


with torch.device("meta"):  # shapes without numbers
    vit = heedful.create("vit-b/16")
block = vit.encoder.block[0]
attention = numbers(block.attention) + numbers(block.attention_residual)
feed_forward = numbers(block.feed_forward) + numbers(block.feed_forward_residual)
assert (attention, feed_forward, numbers(block)) == (2_363_904, 4_723_968, 7_087_872)
assert numbers(vit.encoder.block) == 85_054_464
assert numbers(vit.encoder.block) + numbers(vit.encoder.norm) == 85_056_000
print(heedful.summary(block, input_shape=(1, 197, 768)))

# %%
# The encoder of a translator: vocabulary 10,000, width 300, 12 blocks of 4 heads, and a
# feed-forward of only 64:

stack = StackConfig(
    dim=300,
    depth=12,
    heads=4,
    ff_dim=64,
    placement="post",
    activation="relu",
    position=SinusoidalPosition(),
)
with torch.device("meta"):
    encoder = heedful.Encoder(
        EncoderConfig(embedding=EmbeddingConfig(vocab_size=10_000, scale="sqrt"), encoder=stack)
    )
assert encoder.num_parameters() == 7_813_968

bars(
    ["attention and norm", "feed-forward and norm", "block"],
    [count / 1e6 for count in (attention, feed_forward, numbers(block))],
    "Millions of parameters in a block",
    note="width 768, inner width 3,072",
)

# %%
# Both ways
# ---------
#
# Change one word, and every row moves, those before it too. Pad the text, and with its mask nothing
# moves: a row alone, padded, or in a mixed batch is the same row.

small = replace(
    get("bert-base"),
    embedding=EmbeddingConfig(vocab_size=50),
    encoder=StackConfig(dim=32, depth=2, heads=4),
)
model = heedful.create(small, head="none", seed=0).eval()
for weight in model.parameters():
    torch.nn.init.normal_(weight, std=0.3)
text = torch.tensor([[4, 5, 6, 7, 8]])
other, padded = text.clone(), torch.tensor([[0, 0, 4, 5, 6, 7, 8]])
other[0, 2] = 9
with torch.no_grad():
    moved = (model(text) - model(other)).abs().amax(-1)[0]
    assert (moved > 0.01).all()
    assert torch.allclose(model(padded, padded != 0)[:, 2:], model(text), atol=1e-4)

# %%
# What a head on top makes of the rows gives the family its uses: the first row through a classifier
# (BERT), each row through one (named entities), the mean of all (sentence vectors), each row
# through the vocabulary (fill in the blank).
