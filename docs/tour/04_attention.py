r"""
Attention, with a pencil
========================

.. lead::

Two queries, two keys, two values, small enough for a pencil. Each query attends to both keys, and
receives the mean of their values, weighted by the attention.
"""

import math

import numpy as np
import torch

from heedful.layers import Attention, attention_weights, explicit_attention, fused_attention
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import Arrow, Box, flow, matrix

queries = torch.tensor([[1.0, 0, 1], [0, 1, 1]])
keys = torch.tensor([[1.0, 2, 1], [2, 1, 0]])
values = torch.tensor([[0.5, 0.8], [0.2, 0.3]])
q, k, v = (part[None, None] for part in (queries, keys, values))  # (B, H, T, E): one text, one head

weights = attention_weights(q, k, None, None, scale=1 / math.sqrt(3))
maps = AttentionMaps.of(
    "cross-attention", ["query 1", "query 2"], ["key 1", "key 2"], weights.numpy()
)
matrix(maps, 0, 0, "Two queries attend to two keys")

# %%
# .. math:: \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{E}}\right) V
#
# (Vaswani et al. 2017, equation 1.) The lines that compute it when the weights are
# recorded:
#
# .. ours:: heedful.layers.attention_kernels.attention_scores
#    :mark: scale * q
#
# .. ours:: heedful.layers.attention_kernels.weights_of
#    :mark: softmax
#
# .. ours:: heedful.layers.attention_kernels.explicit_attention
#    :mark: return
#
# Step by step. The products :math:`Q K^\top`: query 1 fits both keys equally, query 2 fits key 1
# better.

products = queries @ keys.T
assert products.tolist() == [[2, 2], [3, 1]]

# %%
# Over :math:`\sqrt{3}`, and through softmax, row by row:

shares = (products / math.sqrt(3)).softmax(-1)
print(shares.numpy().round(4))
assert np.allclose(shares, [[0.5, 0.5], [0.7604, 0.2396]], atol=5e-5)
assert torch.allclose(shares, weights[0, 0])

# %%
# And the values, mixed by the shares. Query 1 gets the mean of both; query 2 gets 0.7604 of the
# first and 0.2396 of the second:

mixed = shares @ values
print(mixed.numpy().round(4))
assert np.allclose(mixed, [[0.35, 0.55], [0.4281, 0.6802]], atol=5e-5)

# %%
# One kernel does it all
# ----------------------
#
# The weights themselves are not needed: PyTorch's fused kernel computes the same output without
# storing the square of weights, and every model here uses it. Recording (``heedful.record``)
# computes the weights beside it and leaves the output unchanged.
#
# .. ours:: heedful.layers.attention_kernels.fused_attention
#    :mark: scaled_dot_product_attention

for attend in (explicit_attention, fused_attention):
    assert torch.allclose(
        attend(q, k, v, None, None, scale=1 / math.sqrt(3))[0, 0], mixed, atol=1e-6
    )

# %%
# Where queries, keys and values come from
# ----------------------------------------
#
# Three learned maps of the same words: what a word asks for, what it offers, and what it gives when
# it is chosen. A fourth map projects the result back to the model's width.
#
# .. math:: Q = X W^Q, \quad K = X W^K, \quad V = X W^V
#
# .. ours:: heedful.layers.attention.Attention.forward
#    :mark: self.attend

torch.manual_seed(0)
attention, x = Attention(6, heads=1, bias="none"), torch.randn(1, 4, 6)
with torch.no_grad():
    q, k, v = (x @ part.weight.T for part in (attention.query, attention.key, attention.value))
    by_hand = (q @ k.mT / math.sqrt(6)).softmax(-1) @ v @ attention.out.weight.T
    assert torch.allclose(attention(x), by_hand, atol=1e-6)

flow(
    {
        "x": Box(text="words", column=1, kind="data"),
        "q": Box(text="queries", row=1),
        "k": Box(text="keys", column=1, row=1),
        "v": Box(text="values", column=2, row=1),
        "w": Box(text="softmax(Q Kᵀ / √E)", column=0.5, row=2, kind="main"),
        "m": Box(text="mixture of values", column=1, row=3),
        "o": Box(text="a row a word", column=1, row=4, kind="data"),
    },
    [
        *(Arrow(start="x", end=part) for part in "qkv"),
        *(Arrow(start=part, end="w") for part in "qk"),
        *(Arrow(start=part, end="m") for part in "wv"),
        Arrow(start="m", end="o"),
    ],
    "Self-attention: the same words ask, offer and give",
)
