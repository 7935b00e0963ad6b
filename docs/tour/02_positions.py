r"""
Positions
=========

.. lead::

Without positions, attention sees a bag of words: shuffle the text and every word gets the same
output as before. The first Transformer therefore adds to each row a pattern of waves, from fast
(left) to slow (right), that differs at every position.
"""

import math

import numpy as np
import torch

from heedful.layers import Alibi, Attention, Rotary, Sinusoidal
from heedful.layers.position import sinusoid
from heedful.views.figures import functions, heat

waves = sinusoid(48, 64, order="halves").numpy()  # (T, D), all sines first, then all cosines
heat(
    waves,
    range(48),
    [f"{'sin' if i < 32 else 'cos'} {i % 32}" for i in range(64)],
    "Sinusoidal positions: a row of waves for each position",
    signed=False,
)

# %%
# A sine and its cosine are one clock hand, as the same angle's height and breadth. The first hand
# turns once in 6.28 positions, the last of these 32 once in 47,117. (The paper puts each cosine
# beside its sine; for the eye they are apart here. It is the same model but for the order of its
# columns.)
#
# .. math:: \mathrm{PE}_{p,\,2i} = \sin\frac{p}{10000^{2i/d}}
#
# .. math:: \mathrm{PE}_{p,\,2i+1} = \cos\frac{p}{10000^{2i/d}}
#
# .. ours:: heedful.layers.position.sinusoid
#    :mark: base **
#
# :math:`p` is the position, :math:`d` the width, and :math:`i` counts the *pairs*. Here many
# implementations go wrong: their loop steps through the columns by two and then doubles the step
# again, so that the exponent is twice what it should be.

assert round(2 * math.pi * 10000 ** (62 / 64)) == 47_117

rows = Sinusoidal(4).embed(torch.zeros(1, 3, 4), torch.arange(3)[None])[0]
print("position 2 of width 4:", [round(v, 4) for v in rows[2].tolist()])
assert np.allclose(rows[2], [0.9093, -0.4161, 0.0200, 0.9998], atol=5e-5)

wide = Sinusoidal(300).embed(torch.zeros(1, 3, 300), torch.arange(3)[None])[0, 2]
assert np.allclose(wide[2:4], [0.9523, -0.3051], atol=5e-5)
doubled = [math.sin(2 / 10000 ** (2 * 2 / 300)), math.cos(2 / 10000 ** (2 * 2 / 300))]
print("elements 3 and 4 of width 300:", [round(v, 4) for v in wide[2:4].tolist()], end="; ")
print("with the step doubled:", [round(v, 4) for v in doubled])
assert not np.allclose(wide[2:4], doubled, atol=0.01)

# %%
# Why waves
# ---------
#
# The product of two positions' rows depends on their distance and on nothing else, because
# :math:`\sin a \sin b + \cos a \cos b = \cos(a - b)`. A model can ask "three words back" with one
# fixed map, anywhere in a text.

alike = waves @ waves.T
assert np.allclose(alike[10, 13], alike[30, 33], atol=1e-4)
assert np.allclose(alike[5], alike[:, 5])

heat(
    alike,
    range(48),
    range(48),
    "Similarity of the rows of two positions",
    signed=False,
)

# %%
# Without positions: a bag of words
# ---------------------------------
#
# Attention without positions is *equivariant* to order: shuffle the words and the outputs are
# shuffled in the same way. It is not *invariant*, as is often said: each word keeps its own
# output. Add positions, and the outputs change.

torch.manual_seed(0)
attention, x = Attention(16, heads=2), torch.randn(1, 5, 16)
shuffle = torch.tensor([3, 0, 4, 1, 2])
with torch.no_grad():
    assert torch.allclose(
        attention(x[:, shuffle]), attention(x)[:, shuffle], atol=1e-6
    )  # equivariant
    assert not torch.allclose(attention(x[:, shuffle]), attention(x), atol=1e-2)  # not invariant

    place = Sinusoidal(16)
    where = torch.arange(5)[None]
    placed = attention(place.embed(x[:, shuffle], where))
    assert not torch.allclose(placed, attention(place.embed(x, where))[:, shuffle], atol=1e-2)

# %%
# Later schemes
# -------------
#
# *Rotary* positions (Su et al. 2021) turn the clock hands of the queries and keys themselves
# instead of adding a row, so that a product sees the distance and nothing but the distance:
#
# .. math:: (a, b) \to (a\cos\theta_p - b\sin\theta_p,\; b\cos\theta_p + a\sin\theta_p)
#
# .. ours:: heedful.layers.position.Rotation.rotate
#
# *ALiBi* (Press et al. 2021) turns nothing and subtracts from every score what grows with the
# distance, in each head with another slope:
#
# .. math:: \mathrm{score}_{ij} = \frac{q_i \cdot k_j}{\sqrt{E}} - m_h\,|i - j|
#
# .. ours:: heedful.layers.position.Alibi.prepare
#
# A query, and forty equal keys at growing distance: the share that each key gets. Without positions
# all would get a fortieth.

steps = torch.arange(40)[None]
rotary = Rotary(32).prepare(steps, steps).rotate(torch.ones(1, 1, 40, 32))[0, 0]  # (T, E)
scores = rotary @ rotary[0] / math.sqrt(32)
assert torch.allclose(scores[:30], rotary[10:] @ rotary[10] / math.sqrt(32), atol=1e-5)  # distance
assert torch.allclose(scores * math.sqrt(32), 2 * sinusoid(40, 32) @ sinusoid(40, 32)[0], atol=1e-4)

alibi = Alibi(8).prepare(steps, steps).bias[0, :, :, 0]  # (H, T)
assert torch.allclose(alibi[1], -(2.0**-2) * torch.arange(40))
functions(
    np.arange(40),
    {
        "rotary": scores.softmax(-1).numpy(),
        "ALiBi, head 2 of 8": alibi[1].softmax(-1).numpy(),
        "ALiBi, head 4 of 8": alibi[3].softmax(-1).numpy(),
        "none": np.full(40, 1 / 40),
    },
    "The share of each of forty equal keys",
    x_label="distance",
)

# %%
# *Learned* positions (``heedful.layers.Learned``) are a second table, looked up by position, as on
# the page before; *relative* ones (``heedful.layers.Relative``, T5's) learn one number a head for
# each range of distances. The field ``position`` of a stack's configuration selects the scheme.
