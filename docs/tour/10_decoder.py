r"""
The decoder: only what came before
==================================

.. lead::

A decoder is an encoder whose words see only themselves and those before, and a head that says which
word comes next. Here a small one reads a nursery rhyme letter by letter, after a few seconds of
training: the probability of each letter.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

import heedful
from heedful.config import (
    DecoderConfig,
    EmbeddingConfig,
    LanguageHead,
    LearnedPosition,
    StackConfig,
)
from heedful.presets import get
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import bars, functions, saliency
from heedful.views.figures import model as overview

rhyme = "humpty dumpty sat on a wall, humpty dumpty had a great fall. "
letters = sorted(set(rhyme))
ids = torch.tensor([[letters.index(letter) for letter in rhyme]])  # (B, T)

stack = StackConfig(
    dim=48, depth=2, heads=4, causal=True, position=LearnedPosition(length=64), init_std=0.06
)
model = heedful.create(
    DecoderConfig(embedding=EmbeddingConfig(vocab_size=len(letters)), decoder=stack), seed=0
)
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(81):
    logits = model(ids[:, :-1])  # reads all but the last letter ...
    loss = F.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten()
    )  # ... and predicts all but the first
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if step == 25:
        right = logits.detach().softmax(-1)[0].gather(1, ids[0, 1:, None])[:, 0]  # (T − 1,)
model.eval()
saliency(list(rhyme[1:]), right.numpy(), "Probability of each letter after 25 steps")

# %%
# .. math:: p(w_1, \ldots, w_T) = \prod_t p(w_t \mid w_1, \ldots, w_{t-1})
#
# One pass predicts all positions at once, because no position sees its target:
#
# .. ours:: heedful.models.decoder.Decoder.forward
#
# .. ours:: heedful.layers.mask.causal
#    :mark: causal
#
# .. ours:: heedful.heads.LanguageModel.forward

guessing = math.log(len(letters))
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses) - 1} steps; ", end="")
print(f"guessing is ln {len(letters)} = {guessing:.3f}")
assert abs(losses[0] - guessing) < 0.3
assert losses[-1] < 0.5
assert math.isclose(-right.log().mean(), losses[25], rel_tol=1e-4)  # the loss is the mean of −ln p
functions(
    range(len(losses)),
    {"loss": losses, "guessing": [guessing] * len(losses)},
    "Learning a rhyme by heart",
    x_label="step",
)

# %%
# Nothing above the diagonal
# --------------------------
#
# Every head of every block, over the first twelve letters:

with torch.no_grad(), heedful.record(model, "pattern") as recorded:
    model(ids[:, :12])
patterns = torch.stack([pattern[0] for pattern in recorded.values()])  # (L, H, T, T)
assert patterns.triu(1).eq(0).all()
assert torch.allclose(patterns.sum(-1), torch.ones(2, 4, 12), atol=1e-5)
overview(
    AttentionMaps.of("self-attention", list(rhyme[:12]), list(rhyme[:12]), patterns),
    "A decoder's heads look back",
)

# %%
# One letter after the other
# --------------------------
#
# To generate, the model predicts the next letter, the letter is appended to the text, and the model
# predicts again. Keys and values of earlier letters do not change, so they are cached: each step
# runs one letter, not the whole text.
#
# .. ours:: heedful.cache.Growing.update

prompt = ids[:, :7]
written = model.generate(prompt, max_new_tokens=40)
print("".join(letters[i] for i in written[0].tolist()))
longer = prompt
with torch.no_grad():
    for _ in range(40):  # the same without a cache
        longer = torch.cat((longer, model(longer)[:, -1:].argmax(-1)), 1)
assert torch.equal(written, longer)

with torch.no_grad():
    after = model(ids[:, :20])[0, -1].softmax(-1)
best = after.topk(5)
bars(
    [repr(letters[i]) for i in best.indices.tolist()], best.values.tolist(), f"After {rhyme[:20]!r}"
)

# %%
# A count to check yours by: 65 letters, 6 blocks of width 384, 6 heads, 256 positions, no bias on
# queries, keys and values, a head of its own with a bias.

config = get("gpt-mini")
config = replace(
    config,
    decoder=replace(config.decoder, attention_bias="out"),
    head=LanguageHead(tied=False, bias=True),
)
with torch.device("meta"):
    assert heedful.create(config).num_parameters() == 10_788_929
