r"""
Masks
=====

.. lead::

A mask is a table of yes and no: row by row, which keys this query may attend to. The figure
shows a text of four words and one padding token, in a model that may not look ahead.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

import heedful
from heedful.config import LanguageHead, LearnedPosition
from heedful.layers import (
    attention_weights,
    causal_mask,
    combine,
    explicit_attention,
    fused_attention,
    padding_mask,
    prefix_mask,
)
from heedful.presets import transformer
from heedful.views.figures import functions, masks

target = torch.tensor([[1, 2, 3, 4, 0]])  # 0 is padding
real = target != 0
both = combine("causal", padding_mask(real))
masks(
    {
        "may not look ahead": causal_mask(5).numpy(),
        "only real words": real.expand(5, 5).numpy(),
        "both": both[0, 0].numpy(),
    },
    "True means: may attend",
    queries=["1", "2", "3", "4", "pad"],
    keys=["1", "2", "3", "4", "pad"],
)

# %%
# One convention, everywhere in this library: **True means may attend.** Two masks are joined by
# *and*.
#
# .. ours:: heedful.layers.mask.causal_mask
#
# .. ours:: heedful.layers.mask.padding_mask
#
# .. ours:: heedful.layers.mask.combine
#    :mark: intersection & mask
#
# Worth checking in any code that you meet: for the words 1, 2, 3, 4 and one padding, the rows are
# the lower triangle with the last column off.

assert both[0, 0].int().tolist() == [
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [1, 1, 1, 0, 0],
    [1, 1, 1, 1, 0],
    [1, 1, 1, 1, 0],
]

# %%
# A mask for every pair
# ---------------------
#
# A model also takes a mask of all pairs of tokens, (B, T, T): True where the first may attend to
# the second. It replaces the mask that the model would make. A *prefix language model* is such a
# case: all tokens attend to the prefix, the others causally (Raffel et al. 2020).

pairs = prefix_mask(torch.tensor([2]), 4)
print(pairs[0].int())

# %%
# A masked score
# --------------
#
# .. math:: w_{ij} = \frac{e^{s_{ij}} M_{ij}}{\sum_{j'} e^{s_{ij'}} M_{ij'}}
#
# It becomes :math:`-\infty`, whose softmax is exactly zero.
#
# .. ours:: heedful.layers.attention_kernels.float_mask
#    :mark: inf
#
# Code that adds −1,000,000,000 instead works until a row is fully masked. Then softmax sees equal
# numbers, and the query attends to everything, the padding included; in half precision the number
# is out of range, and the row is NaN. Here such a row is zeros.

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 2, 4)
nothing = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
assert (q @ k.mT - 1e9).softmax(-1).eq(0.5).all()  # uniform
assert (
    torch.full((1, 2), -1e9).half().add(torch.tensor([1.0, 2.0]).half()).softmax(-1).isnan().all()
)
assert attention_weights(q, k, nothing, None, 0.5).eq(0).all()
for attend in (explicit_attention, fused_attention):
    assert attend(q, k, v, nothing, None, 0.5).eq(0).all()

# %%
# Two tests of any decoder
# ------------------------
#
# **The future changes nothing.** Change word 4: the outputs at positions 0 to 3 stay the same.
#
# **Padding changes nothing.** Pad the source: the outputs stay the same. Omit the mask in
# cross-attention alone, and they change.

config = transformer(dim=32, depth=1, heads=4, ff_dim=64, vocab=18)
config = replace(config, head=LanguageHead(tied=False))
model = heedful.create(config, seed=0).eval()
for weight in model.parameters():
    torch.nn.init.normal_(weight, std=0.4)  # large weights, so that every change shows

source, words = torch.randint(1, 18, (1, 6)), torch.tensor([[5, 6, 7, 8, 9]])
other = words.clone()
other[0, 4] = 4
with torch.no_grad():
    moved = (model(source, words) - model(source, other)).abs().amax(-1)[0]
    print("change of the outputs:", [f"{m:.1e}" for m in moved.tolist()])
    assert moved[:4].max() < 1e-5
    assert moved[4] > 0.1

    padded = torch.cat((source, torch.zeros(1, 3, dtype=torch.long)), 1)
    expected = model(source, words)
    assert torch.allclose(model(padded, words, padded != 0), expected, atol=1e-4)
    memory = model.encode(padded, padded != 0)
    forgotten = model.head(model.decode(words, memory))
    assert (forgotten - expected).abs().max() > 0.1

# %%
# A decoder that cheats
# ---------------------
#
# A mask in which 1 means "may attend" and another in which 1 means "masked", joined by a maximum:
# everything is allowed, silently, and the loss even looks better. The test: train on *random*
# targets over 17 symbols. No model can reach less than :math:`\ln 17 = 2.833`; one that does has
# seen the target.


def trained(broken: bool) -> list[float]:
    """The loss on new random targets, every five steps."""
    learner = replace(config, decoder=replace(config.decoder, position=LearnedPosition(length=10)))
    model = heedful.create(learner, seed=1)
    everything = torch.ones(64, 8, 8, dtype=torch.bool)  # what the wrong join comes to
    mask = everything if broken else None  # None: causal
    optimiser = torch.optim.Adam(model.parameters(), lr=6e-3)
    losses = []
    for _ in range(151):
        source, target = torch.randint(1, 18, (2, 64, 8))
        given = F.pad(target[:, :-1], (1, 0))  # the decoder's input: shifted by one position
        loss = F.cross_entropy(
            model(source, given, target_mask=mask).flatten(0, 1), target.flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(1)
honest, cheat = trained(broken=False), trained(broken=True)
floor = math.log(17)
assert 2.833 < floor < 2.834
print(
    f"after 150 steps: {honest[-1]:.3f} with the mask, {cheat[-1]:.3f} without; floor {floor:.3f}"
)
assert sum(honest[-20:]) / 20 > floor - 0.02
assert sum(cheat[-20:]) / 20 < floor - 0.5
functions(
    range(151),
    {"with the mask": honest, "without": cheat, "ln 17": [floor] * 151},
    "The loss on random targets",
    x_label="step",
)

# %%
# Masks belong to the decoder's *input*
# -------------------------------------
#
# The decoder reads ``target[:, :-1]`` and predicts ``target[:, 1:]``. Its mask is that of its
# input; a mask built from the whole target is one column too wide.

target = torch.tensor([[1, 5, 6, 7, 2], [1, 5, 2, 0, 0]])
given = target[:, :-1]
assert model(source.expand(2, -1), given, target_mask=given != 0).shape == (2, 4, 18)
try:
    model(source.expand(2, -1), given, target_mask=target != 0)
except RuntimeError as error:
    print("refused:", str(error).splitlines()[0])
else:
    raise AssertionError("a mask that does not fit was taken")
