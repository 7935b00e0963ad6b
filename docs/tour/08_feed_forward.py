r"""
The feed-forward network
========================

.. lead::

After attention has brought words together, the feed-forward network works on each word alone: up to
a wider row, through an activation, down again. Without the activation the two maps would be one.
The figure shows three activations.
"""

import numpy as np
import torch

from heedful.layers import FeedForward, LayerNorm
from heedful.layers.feedforward import ACTIVATIONS
from heedful.views.figures import bars, functions

x = torch.linspace(-4, 4, 161)
functions(
    x.numpy(),
    {
        "ReLU": ACTIVATIONS["relu"](x).numpy(),
        "GELU": ACTIVATIONS["gelu"](x).numpy(),
        "SiLU": ACTIVATIONS["silu"](x).numpy(),
    },
    "Three activations",
)

# %%
# .. math:: \mathrm{ReLU}(x) = \max(0, x)
#
# .. math:: \mathrm{GELU}(x) = x\, \Phi(x)
#
# .. math:: \mathrm{SiLU}(x) = \frac{x}{1 + e^{-x}}
#
# :math:`\Phi(x)` is the share of a normal distribution below :math:`x`. GELU (Hendrycks and Gimpel
# 2016) dips below zero on its way, by 0.17 at most; a formula with a hyperbolic tangent comes
# within 0.0005 of it, and GPT-2 was trained with that one.

gelu, approximate = ACTIVATIONS["gelu"], ACTIVATIONS["gelu_tanh"]
assert np.allclose(gelu(torch.tensor([1.0, -1.0])), [0.8413, -0.1587], atol=5e-5)
assert abs(gelu(x).min() + 0.17) < 0.001
assert (gelu(x) - approximate(x)).abs().max() < 0.0005

# %%
# With a pencil
# -------------
#
# .. math:: \mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2
#
# (Vaswani et al. 2017, equation 2.)
#
# .. ours:: heedful.layers.feedforward.FeedForward.forward
#    :mark: self.down

w1 = torch.tensor([[0.1, 0.2], [-0.1, 0.1], [0.3, -0.2], [0.2, 0.1]])
b1 = torch.tensor([0.01, 0.02])
w2 = torch.tensor([[1, -0.5, 0.8, 0.2], [0.5, 0.3, -0.2, 0.4]])
b2 = torch.tensor([0.03, -0.01, 0.02, 0.01])
word = torch.tensor([0.5, -0.2, 0.1, 0.8])

network = FeedForward(4, 2, activation="relu")
with torch.no_grad():
    for parameter, value in (
        (network.up.weight, w1.T),
        (network.up.bias, b1),
        (network.down.weight, w2.T),
        (network.down.bias, b2),
    ):
        parameter.copy_(value)
    inner = word @ w1 + b1
    print("up:", inner.numpy().round(4), " down:", network(word).numpy().round(4))
    assert np.allclose(inner, [0.27, 0.16])
    assert np.allclose(network(word), [0.38, -0.097, 0.204, 0.128])

bars(
    ["in 1", "in 2", "in 3", "in 4", "inner 1", "inner 2", "out 1", "out 2", "out 3", "out 4"],
    [*word.tolist(), *inner.tolist(), *network(word).tolist()],
    "Four numbers in, two inside, four out",
)

# %%
# Each word alone: the other positions change nothing.

torch.manual_seed(0)
network, text = FeedForward(8), torch.randn(1, 5, 8)
other = text.clone()
other[0, 1:] = 0
assert torch.equal(network(text)[0, 0], network(other)[0, 0])

# %%
# Two thirds of the model
# -----------------------
#
# The inner width is four times the model's. So the two maps hold :math:`8 D^2` numbers where
# attention's four hold :math:`4 D^2`: in ViT-B, 4,723,968 with the norm, twice as many as the
# attention beside it.

count = sum(p.numel() for part in (FeedForward(768), LayerNorm(768)) for p in part.parameters())
assert count == 4_723_968
print(f"feed-forward and norm {count:,} + attention and norm 2,363,904 = {count + 2_363_904:,}")
assert count + 2_363_904 == 7_087_872

# %%
# The gated kind (Shazeer 2020), in Llama and its relatives, multiplies by a second row instead of
# applying the activation to the only one:
#
# .. math:: \mathrm{SwiGLU}(x) = \left(\mathrm{SiLU}(x W_g) \odot x W_1\right) W_2

gated = FeedForward(8, 16, activation="silu", gated=True, bias=False)
with torch.no_grad():
    by_hand = (
        torch.nn.functional.silu(text @ gated.gate.weight.T) * (text @ gated.up.weight.T)
    ) @ gated.down.weight.T
    assert torch.allclose(gated(text), by_hand, atol=1e-6)
