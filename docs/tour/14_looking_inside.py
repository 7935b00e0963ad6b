r"""
Looking inside
==============

.. lead::

Every tensor of a model has a name, by which it can be recorded and changed while the model runs.
Here a small decoder has learned one thing: at each letter, to say the letter *before* it. The
picture is the *logit lens*: what the model would say after its embedding alone, after its first
block, and at the end.
"""

import torch
import torch.nn.functional as F

import heedful
from heedful.config import DecoderConfig, EmbeddingConfig, RotaryPosition, StackConfig
from heedful.inspection import intervene, paths
from heedful.inspection.ablation import ablate
from heedful.inspection.head_scores import previous_token
from heedful.inspection.logit_lens import logit_lens
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import grid, heads, lens
from heedful.views.lens_html import LensPredictions

stack = StackConfig(dim=32, depth=2, heads=4, causal=True, position=RotaryPosition())
embedding = EmbeddingConfig(vocab_size=26)
model = heedful.create(DecoderConfig(embedding=embedding, decoder=stack), seed=0)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(0)


def loss_of(ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the previous letter, at every position but the first."""
    return F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())


for _ in range(150):
    loss = loss_of(torch.randint(26, (32, 12)))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()

word = list("transformer")
ids = torch.tensor([[ord(letter) - 97 for letter in word]])  # a is 0
found = logit_lens(model, ids, top=3)
said = [
    [[(chr(97 + i), p) for i, p in zip(*place, strict=True)] for place in zip(*layer, strict=True)]
    for layer in zip(found.ids[:, 0].tolist(), found.probabilities[:, 0].tolist(), strict=True)
]
seen_by = LensPredictions(pieces=word, layers=found.layers, top=said, target=["", *word[:-1]])
lens(seen_by, "What the model would say after each block")

# %%
# .. math:: p_l = \mathrm{softmax}\left(\mathrm{head}(\mathrm{norm}(x_l))\right)
#
# After the embedding it can only name the letter itself; from the first block on it names the one
# before, which is what it should say (the picture's last row). So whatever fetches it stands in
# block 0.
#
# .. ours:: heedful.inspection.logit_lens.lens_logits
#    :mark: norm
#
# The names of the tensors of block 0:

print("\n".join(path for path in paths(model) if ".block.0." in path))
after_embedding, after_block_0, answer = found.ids[:, 0, 1:, 0].tolist()
assert after_embedding == ids[0, 1:].tolist()
assert after_block_0 == answer == ids[0, :-1].tolist()

# %%
# Found by its score
# ------------------
#
# For each head, the mean weight that a letter gives to the one before it:
#
# .. math:: \mathrm{score}_h = \frac{1}{T - 1}\sum_{t=1}^{T-1} w^h_{t,\,t-1}
#
# .. ours:: heedful.inspection.head_scores.previous_token

many = torch.randint(26, (50, 12))
with torch.no_grad(), heedful.record(model, "pattern") as recorded:
    model(many)
scores = torch.stack([previous_token(pattern) for pattern in recorded.values()])  # (L, H)
layer, head = divmod(int(scores.argmax()), 4)
print(f"block {layer}, head {head}: {scores.max():.2f}")
assert scores.max() > 0.9
assert layer == 0

grid(scores.numpy(), "Mean weight on the letter before")

# %%
# Shown as lines
# --------------

with torch.no_grad(), heedful.record(model, "pattern") as recorded:
    model(ids)
patterns = torch.stack([pattern[0] for pattern in recorded.values()])  # (L, H, T, T)
maps = AttentionMaps.of("self-attention", word, word, patterns)
heads(maps, layer, head, f"Layer {layer}, head {head}")

# %%
# Tested by ablation
# ------------------
#
# A head with the right pattern need not be the one that does the work. Ablate each in turn, and
# compare the loss:

without = ablate(model, lambda: loss_of(many))
change = torch.stack(list(without.change.values()))  # (L, H)
print(
    f"loss {without.base:.3f} with all heads, {without.base + change.max():.3f} without one of them"
)
assert divmod(int(change.argmax()), 4) == (layer, head)
assert change.max() > 10 * without.base

grid(change.numpy(), "What the loss gains without a head")

# %%
# The same by hand, under the tensor's name. ``intervene`` takes a number, a tensor, or a function
# of what was there, and gradients flow through it.

with torch.no_grad():
    whole = loss_of(many).item()
    with intervene(model, "mixed", 0.0, layers=[layer], heads=[head]):
        broken = loss_of(many).item()
    assert loss_of(many).item() == whole  # nothing stays behind
assert abs(broken - whole - change.max().item()) < 1e-4

# %%
# Recording changes nothing
# -------------------------
#
# The recorded model's output is the model's own, bit for bit: patterns are computed beside the
# fused kernel, not instead of it.

with torch.no_grad():
    plain = model(ids)
    with heedful.record(model, ["pattern", "stream", "query", "activation", "logits"]) as recorded:
        output = model(ids)
assert torch.equal(output, plain)
print(len(recorded), "tensors recorded")

# %%
# For a model in a folder, ``heedful inspect MODEL "a text" --out page.html`` shows all of this as
# one page that needs no network.
