r"""
Several heads
=============

.. lead::

One softmax gives one weighted mean. A head is a small attention with its own slice of query and
key; several heads attend to the same words by different criteria. These four were made by hand, to
show what a head can select; training finds similar ones, less cleanly.
"""

import numpy as np
import torch

import heedful
from heedful.inspection import intervene
from heedful.inspection.head_scores import previous_token
from heedful.layers import Attention, LayerNorm
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import heads, model

text = ["the", "cat", "sat", "on", "the", "mat"]
words = sorted(set(text))
place, word = torch.eye(6), torch.eye(5)[[words.index(w) for w in text]]
x = torch.cat((word, place, torch.ones(6, 1)), 1)[
    None
]  # (1, 6, 12): which word, which position, and a constant

attention = Attention(12, heads=4, head_dim=12, bias="none")
q, k = (torch.zeros(4, 12, 12) for _ in range(2))  # (H, E, D)
q[0, :5, :5], k[0, :5, :5] = 40 * torch.eye(5), torch.eye(5)  # the same word
q[1, 5:11, 5:11], k[1, 5:11, 5:11] = (
    40 * torch.eye(6).roll(-1, 0),
    torch.eye(6),
)  # the previous position
q[2, 5, 11], k[2, 5, 5] = 40, 1  # the first position, for every query
with torch.no_grad():  # head 3 asks for nothing: all scores 0
    attention.query.weight.copy_(q.flatten(0, 1))
    attention.key.weight.copy_(k.flatten(0, 1))
with heedful.record(attention, "pattern") as recorded:
    attention(x)
weights = recorded["pattern"]  # (B, H, T, S) = (1, 4, 6, 6)
maps = AttentionMaps.of("self-attention", text, text, weights)
model(maps, "Four heads made by hand")

# %%
# .. math:: \mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O
#
# .. math:: \mathrm{head}_h = \mathrm{Attention}(X W^Q_h, X W^K_h, X W^V_h)
#
# (Vaswani et al. 2017, section 3.2.2.) There is no loop over heads: one projection makes all of
# them, and a reshape tells them apart.
#
# .. ours:: heedful.layers.attention.Attention.split
#    :mark: unflatten
#
# .. ours:: heedful.layers.attention.Attention.forward
#    :mark: split

head = weights[0].numpy()
assert np.allclose(
    head[0, 0], [0.5, 0, 0, 0, 0.5, 0], atol=1e-3
)  # "the" finds both of its positions
assert head[1].argmax(1)[1:].tolist() == [0, 1, 2, 3, 4]
assert previous_token(weights).argmax() == 1  # how such a head is found in a trained model
assert (head[2].argmax(1) == 0).all()
assert np.allclose(head[3], 1 / 6)
heads(maps, 0, 1, "Head 1 attends to the previous word")

# %%
# What heads cost
# ---------------
#
# Nothing: the four maps are :math:`D \times D`, however they are sliced. In ViT-B's block they
# hold, with their norm, 2,363,904 numbers; with 12 heads, or with 1.


def numbers(*parts: torch.nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for part in parts for p in part.parameters())


norm = LayerNorm(768)
for count in (1, 12):
    assert numbers(Attention(768, heads=count), norm) == 2_363_904

# %%
# What grows during generation is the cache: keys and values of every previous word.
# Several query heads may share one key-value head (Shazeer 2019; Ainslie et al. 2023); the cache
# shrinks by as much.

for shared in (12, 4, 1):
    grouped = Attention(768, heads=12, kv_heads=shared)
    with heedful.record(grouped, ["key", "value"]) as recorded:
        grouped(torch.zeros(1, 1, 768))
    remembered = recorded["key"].numel() + recorded["value"].numel()
    print(f"{shared:2} key-value heads: {numbers(grouped):,} parameters,", end=" ")
    print(f"{remembered:,} numbers in the cache a word")
    assert remembered == 2 * 64 * shared

# %%
# Heads are apart
# ---------------
#
# Take one head's part of the output away, and the others' stay as they were: the output is a sum
# over heads. That is why one can ask what a single head does by leaving it out
# (``heedful.inspection.intervene``).

torch.manual_seed(0)
attention, x = Attention(12, heads=3, bias="none"), torch.randn(1, 5, 12)
with torch.no_grad(), heedful.record(attention, "mixed") as recorded:
    output = attention(x)
    slices = attention.out.weight.unflatten(1, (3, 4))  # (D, H, E)
    shares = [recorded["mixed"][:, h] @ slices[:, h].T for h in range(3)]  # (B, T, D) each
    assert torch.allclose(sum(shares), output, atol=1e-6)
    with intervene(attention, "mixed", 0.0, heads=[1]):
        assert torch.allclose(attention(x), shares[0] + shares[2], atol=1e-6)
