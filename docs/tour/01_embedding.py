r"""
From words to vectors
=====================

.. lead::

A model computes with numbers, so every word of its vocabulary has a row of a table, and a text is
the list of its rows. The embedding is that table, and embedding a word is looking up its row.
"""

import numpy as np
import torch

from heedful.layers import Sinusoidal, TokenEmbedding
from heedful.views.figures import bars, heat

torch.manual_seed(1)
vocabulary = ["<pad>", "a", "cat", "dog", "mat", "on", "sat", "the"]
text = ["the", "cat", "sat", "on", "the", "mat"]
ids = torch.tensor([[vocabulary.index(word) for word in text]])  # (B, T) = (1, 6)

embedding = TokenEmbedding(len(vocabulary), 10)
x = embedding(ids).detach()  # (B, T, D) = (1, 6, 10)
heat(
    x[0].numpy(), text, [str(i) for i in range(10)], "A text as the rows of a table: one row a word"
)

# %%
# The two rows of *the* are the same, wherever the word stands: a row knows its word and nothing
# else. What the word means *here* is what the rest of the model adds to it.
#
# .. math:: x_t = E_{w_t}
#
# .. ours:: heedful.layers.embedding.TokenEmbedding.forward
#    :mark: self.token
#
# :math:`E` is the table, one row a word, and :math:`w_t` the number of the word at position
# :math:`t`.

assert ids.tolist() == [[7, 2, 6, 5, 7, 4]]
assert torch.equal(x[0, 0], x[0, 4])  # "the", twice
assert torch.equal(x[0, 1], embedding.token.weight[2])  # "cat" is row 2

# %%
# A look-up is a product
# ----------------------
#
# Textbooks write the same as a matrix product: a vector of zeros with a one at the word's index,
# times the table. The ones and zeros pick the row. It is the same number for number, and the reason
# why a gradient reaches the rows that were looked up and no others.

one_hot = torch.nn.functional.one_hot(ids, len(vocabulary)).float()
assert torch.allclose(one_hot @ embedding.token.weight, embedding(ids))

embedding(ids).sum().backward()
touched = embedding.token.weight.grad.abs().sum(1) > 0
print(
    "rows with a gradient:",
    [word for word, moved in zip(vocabulary, touched, strict=True) if moved],
)
assert [vocabulary[i] for i in touched.nonzero()[:, 0].tolist()] == [
    "cat",
    "mat",
    "on",
    "sat",
    "the",
]

# %%
# The scale of a row
# ------------------
#
# The first Transformer multiplies what it looks up by :math:`\sqrt{d}` (Vaswani et al. 2017,
# section 3.4), and then adds the positions of the next page, whose root mean square is 0.707. If
# the table is initialised as in ``nn.Embedding``, with deviation 1, the product has deviation
# :math:`\sqrt{d}`: 17.3 at :math:`d = 300`, and the positions hardly count. A table that will be
# multiplied is initialised with deviation :math:`1/\sqrt{d}`.
#
# .. math:: x_t = \sqrt{d}\; E_{w_t} + \mathrm{PE}_t
#
# .. ours:: heedful.layers.embedding.TokenEmbedding.__init__
#    :only: self.factor


def root_mean_square(values: torch.Tensor) -> float:
    """The root mean square."""
    return values.square().mean().sqrt().item()


dim, words = 300, torch.arange(1000)[None]
large, scaled = TokenEmbedding(1000, dim, scale="sqrt"), TokenEmbedding(1000, dim, scale="sqrt")
torch.nn.init.normal_(scaled.token.weight, std=dim**-0.5)
positions = Sinusoidal(dim).embed(torch.zeros(1, 50, dim), torch.arange(50)[None])
tables = (large(words), scaled(words), positions)
sizes = [root_mean_square(values) for values in tables]
print([round(size, 3) for size in sizes])
assert np.allclose(sizes, [17.3, 1.0, 0.707], rtol=0.01)

bars(
    ["words, table at 1", "words, table at 1/√d", "positions"],
    sizes,
    "Root mean square at width 300",
)

# %%
# ``heedful.create`` initialises the right way: ``heedful.models.initialise`` draws
# a table that is multiplied by :math:`\sqrt{d}` at :math:`1/\sqrt{d}`, and any other at the
# deviation of its configuration.
