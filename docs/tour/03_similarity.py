r"""
The similarity of two vectors
=============================

.. lead::

Attention asks one question over and over: how well does this query fit that key? The answer is a
dot product, and softmax turns a row of such scores into weights that sum to one. The figure shows
the weights of three scores.
"""

import math

import numpy as np
import torch

from heedful.layers import Attention, attention_weights
from heedful.views.figures import bars, functions

scores = torch.tensor([4.0, 3.0, -1.0])
shares = scores.softmax(-1)
bars(
    ["score 4", "score 3", "score −1"],
    shares.tolist(),
    "softmax(4, 3, −1)",
)

# %%
# .. math:: \mathrm{softmax}(s)_i = \frac{e^{s_i}}{\sum_j e^{s_j}}
#
# .. ours:: heedful.layers.attention_kernels.weights_of
#    :mark: softmax
#
# It runs over the scores *together*: one score alone would always become 1, and then nothing would
# be compared.

assert np.allclose(shares, [0.7275, 0.2676, 0.0049], atol=5e-5)
assert [score.softmax(-1).item() for score in scores[:, None]] == [1, 1, 1]  # one by one: wrong
assert np.allclose(torch.tensor([2.0, 4.0, 5.0]).softmax(-1), [0.0351, 0.2595, 0.7054], atol=5e-5)

# %%
# A soft look-up table
# --------------------
#
# A dictionary gives the value of the one key that is equal to what was asked. Attention gives a
# mixture of all values, each by the share of its key. Make the scores large, and it becomes the
# dictionary.

values = torch.tensor([10.0, 20.0, 30.0])
for sharpness in (0.0, 0.5, 1.0, 10.0):
    soft = (sharpness * scores).softmax(-1)
    print(f"scores × {sharpness:4}: shares {soft.numpy().round(4)}, value {soft @ values:.4f}")
assert torch.isclose((0 * scores).softmax(-1) @ values, values.mean())  # no matter what was asked
assert torch.isclose(soft @ values, values[0], atol=1e-3)  # the look-up

grid = torch.linspace(-6, 6, 121)
curve = torch.stack([torch.tensor([s, 0.0, -1.0]).softmax(-1) for s in grid])
functions(
    grid.numpy(),
    {
        "its own share": curve[:, 0].numpy(),
        "of the score 0": curve[:, 1].numpy(),
        "of the score −1": curve[:, 2].numpy(),
    },
    "One score moves, two stay",
    x_label="the moving score",
)

# %%
# The dot product
# ---------------
#
# .. math:: q \cdot k = \sum_{i=1}^{E} q_i\, k_i
#
# Large where the two point the same way, negative where they point apart. Six numbers a vector, by
# hand:

q = torch.tensor([-2, 3, 2.5, -1, 1.5, -2])
friend = torch.tensor([-1.8, 2.8, 3, 0.2, 2.5, -1.5])
stranger = torch.tensor([-1.5, -2, 2.8, -0.5, -2, 3])
for name, key in (("friend", friend), ("stranger", stranger)):
    terms = q * key
    print(f"{name:9}", " + ".join(f"{term:.2f}" for term in terms), f"= {terms.sum():.2f}")
assert torch.isclose(q @ friend, torch.tensor(26.05))
assert torch.isclose(q @ stranger, torch.tensor(-4.5))

weights = torch.stack((q @ friend, q @ stranger)).div(math.sqrt(6)).softmax(-1)
assert np.allclose(weights, [0.999996, 0.000004], atol=5e-7)
keys = torch.stack((friend, stranger))[None, None]  # (B, H, S, E)
ours = attention_weights(q.view(1, 1, 1, 6), keys, None, None, scale=6**-0.5)
assert torch.allclose(ours.flatten(), weights)

# %%
# Why the square root
# -------------------
#
# A product of :math:`E` random terms has deviation :math:`\sqrt{E}`: the longer the vectors, the
# larger the scores, and the harder the softmax. Where it is hard its slope is next to nothing, and
# nothing is learned. Divided by :math:`\sqrt{E}` the scores have deviation 1 at any length.
#
# .. math:: \mathrm{score} = \frac{q \cdot k}{\sqrt{E}}

torch.manual_seed(0)
plain, scaled, slopes = {}, {}, {}
for size in (4, 16, 64, 256):
    q, k = torch.randn(4000, 1, size), torch.randn(4000, 8, size)  # 8 keys a query
    products = (q * k).sum(-1)
    plain[size] = products.std().item()
    scaled[size] = products.div(math.sqrt(size)).std().item()
    share, share_scaled = products.softmax(-1), products.div(math.sqrt(size)).softmax(-1)
    slopes[size] = [(w * (1 - w)).mean().item() for w in (share, share_scaled)]  # dw/ds = w (1 − w)
    print(f"E = {size:3}: deviation {plain[size]:5.2f}, over √E {scaled[size]:.2f}")
    assert abs(plain[size] / math.sqrt(size) - 1) < 0.05
    assert abs(scaled[size] - 1) < 0.05
assert slopes[256][0] < slopes[256][1] / 4

bars(
    [f"{'over √E' if i else 'plain'}, E = {size}" for size in slopes for i in (0, 1)],
    [slope for pair in slopes.values() for slope in pair],
    "The mean slope of softmax",
)

# %%
# :math:`E` is the size of a *head*, not the width of the model. With width 384 and 6 heads a head
# has 64 numbers, and a copy that divides by :math:`\sqrt{384}` makes all scores 2.449 times too
# small.
#
# .. ours:: heedful.layers.attention.Attention.__init__
#    :only: self.scale =

attention = Attention(384, heads=6)
assert attention.scale == 1 / math.sqrt(64)
assert abs(attention.scale * math.sqrt(384) - 2.449) < 5e-4
