r"""
The stream, and what keeps it in bounds
=======================================

.. lead::

A Transformer is a stream, one vector a word, that flows from the embedding to the head. Attention
and feed-forward read from it and *add* to it; nothing is ever overwritten. What each reads is first
brought to one size by a norm. The figure shows how large the stream grows over 24 fresh blocks with
the norm before each part, and with the norm after.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

import heedful
from heedful import HeedfulError
from heedful.config import StackConfig
from heedful.layers import BatchNorm, LayerNorm, RMSNorm
from heedful.models import initialise
from heedful.stack import Stack
from heedful.views.figures import Arrow, Box, flow, functions


def sizes(placement: str) -> list[float]:
    """The stream's root mean square, before the first and after each of 24 fresh blocks."""
    torch.manual_seed(0)
    config = StackConfig(dim=64, depth=24, heads=4, placement=placement, init_std=0.1)
    stack = Stack(config)
    initialise(stack, config)
    with torch.no_grad(), heedful.record(stack, "stream") as recorded:
        stack(torch.randn(1, 32, 64))
    return [stream.square().mean().sqrt().item() for stream in recorded.values()]


pre, post = sizes("pre"), sizes("post")
functions(
    range(25),
    {"norm before (pre)": pre, "norm after (post)": post},
    "How large the stream is after each block",
    x_label="block",
)

# %%
# .. math:: \mathrm{pre:}\quad x \leftarrow x + f(\mathrm{norm}(x))
#
# .. math:: \mathrm{post:}\quad x \leftarrow \mathrm{norm}(x + f(x))
#
# Post is the first Transformer's (Vaswani et al. 2017); pre came with GPT-2 and trains without a
# warm-up (Xiong et al. 2020). Both are one line here; the place of the norm is which of its three
# slots is filled.
#
# .. ours:: heedful.layers.block.every_slot
#    :mark: residual.
#
# .. ours:: heedful.layers.block.Residual.__init__
#    :mark: norm_of

assert pre[-1] > 2 * pre[0]  # it grows with the depth, and a last norm is needed at the end
assert np.allclose(post[1:], 1, atol=0.01)  # every block's norm brings it back to 1

# %%
# Layer norm, with a pencil
# -------------------------
#
# .. math:: \mathrm{LayerNorm}(x) = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot \gamma + \beta
#
# For :math:`x = (2, -1, 3, 0)`: the mean is 1, and the variance :math:`(1 + 4 + 4 + 1)/4 = 2.5`. It
# is the *biased* variance, divided by 4, not by 3. Home-made norms that call ``std`` divide by 3,
# and are 13 % too small at this width.

x = torch.tensor([2.0, -1, 3, 0])
normed = LayerNorm(4)(x).detach()
print(
    "layer norm:",
    normed.numpy().round(4),
    " with std:",
    ((x - x.mean()) / x.std()).numpy().round(4),
)
assert np.allclose(normed, [0.6325, -1.2649, 1.2649, -0.6325], atol=5e-5)
assert np.allclose((x - x.mean()) / x.std(), [0.5477, -1.0954, 1.0954, -0.5477], atol=5e-5)

# %%
# *RMS norm* (Zhang and Sennrich 2019) leaves the mean alone:
#
# .. math:: \mathrm{RMSNorm}(x) = \frac{x}{\sqrt{\frac{1}{D}\sum_i x_i^2 + \epsilon}} \odot \gamma

assert np.allclose(RMSNorm(2)(torch.tensor([3.0, 4.0])).detach(), [0.8485, 1.1314], atol=5e-5)

# %%
# Why not batch norm
# ------------------
#
# Batch norm takes its mean over other words and other texts. A word at position 0 then depends on
# position 4: in a model that must not look ahead, the future leaks through the norm.

torch.manual_seed(0)
norm, words = BatchNorm(8), torch.randn(1, 5, 8)
changed = words.clone()
changed[0, 4] += 1
moved = (norm(words) - norm(changed)).abs().amax(-1)[0]
print("moving word 4 moves word 0 by", round(moved[0].item(), 2))
assert moved[0] > 0.1
assert LayerNorm(8)(words)[0, :4].equal(LayerNorm(8)(changed)[0, :4])  # layer norm: each word alone

# %%
# So such a stack is refused:

try:
    replace(StackConfig(dim=8, depth=1, heads=2, norm="batch"), causal=True)
except HeedfulError as error:
    print(error)
else:
    raise AssertionError("a causal stack with batch norm was taken")

# %%
# In training it divides by the biased variance of the batch, but what it keeps for later is the
# unbiased one, as in PyTorch, and is cut off from the gradient:

norm = BatchNorm(1)
norm(torch.tensor([[[0.0], [2.0], [4.0]]]))
assert torch.isclose(norm.running_var, torch.tensor(0.9 * 1 + 0.1 * 4.0)).all()  # 8 / 2, not 8 / 3
assert not norm.running_mean.requires_grad

# %%
# The block's two residuals
# -------------------------

flow(
    {
        "x": Box(text="stream", kind="data"),
        "norm": Box(text="norm", row=1),
        "f": Box(text="attention", row=2, kind="main"),
        "+": Box(text="+", row=3, kind="sum"),
        "y": Box(text="stream", row=4, kind="data"),
        "x2": Box(text="stream", column=1, kind="data"),
        "f2": Box(text="attention", column=1, row=1, kind="main"),
        "+2": Box(text="+", column=1, row=2, kind="sum"),
        "norm2": Box(text="norm", column=1, row=3),
        "y2": Box(text="stream", column=1, row=4, kind="data"),
    },
    [
        *(Arrow(start=a, end=b) for a, b in pairwise(("x", "norm", "f", "+", "y"))),
        *(Arrow(start=a, end=b) for a, b in pairwise(("x2", "f2", "+2", "norm2", "y2"))),
        Arrow(start="x", end="+", way="left"),
        Arrow(start="x2", end="+2", way="right"),
    ],
    "Norm before, and norm after",
)
