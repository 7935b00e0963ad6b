r"""
Cross-attention: one text attends to another
============================================

.. lead::

To translate is to read one text and write another. The encoder reads; the decoder writes, and at
every word attends to the encoder's output. This small one was trained, a moment ago, to write
words backwards. Nothing in its training says where to attend.
"""

import random
import string

import torch
import torch.nn.functional as F

import heedful
from heedful.config import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    LanguageHead,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.presets import transformer
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import Arrow, Box, flow, heads, matrix

START, END = 0, 1
letters = string.ascii_lowercase


def batch(draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """32 random words of 8 letters (B, T), and the same backwards between start and end."""
    words = [[2 + draw.randrange(26) for _ in range(8)] for _ in range(32)]
    return torch.tensor(words), torch.tensor([[START, *reversed(word), END] for word in words])


draw = random.Random(0)
special = SpecialTokens(pad=END, start=START, end=(END,))
model = heedful.create(
    transformer(64, depth=1, heads=2, ff_dim=128, vocab=28, dropout=0.0, special=special), seed=0
)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(300):
    source, target = batch(draw)
    loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()

word = "stressed"
source = torch.tensor([[2 + letters.index(letter) for letter in word]])
given = torch.tensor([[START, *(2 + letters.index(letter) for letter in reversed(word))]])
with torch.no_grad(), heedful.record(model, "cross_attention.pattern") as recorded:
    answer = model(source, given).argmax(-1)[0, :-1]
pattern = recorded["decoder.block.0.cross_attention.pattern"]  # (B, H, T, S) = (1, 2, 9, 8)
wrote = "".join(letters[i - 2] if i > 1 else "?" for i in answer.tolist())
print(word, "→", wrote, f"(loss {loss.item():.3f})")
maps = AttentionMaps.of("cross-attention", [*wrote, "(end)"], list(word), pattern)
matrix(maps, 0, None, "Writing backwards: each letter attends to the one it copies")

# %%
# .. math:: \mathrm{softmax}\left(\frac{(X W^Q)(M W^K)^\top}{\sqrt{E}}\right) M W^V
#
# Queries come from the decoder's stream :math:`X`, keys and values from the encoder's output
# :math:`M`. It is the same class, given a ``source``:
#
# .. ours:: heedful.layers.attention.Attention.forward
#    :mark: source
#
# .. ours:: heedful.layers.block.Block.sublayers
#    :mark: cross
#
# .. ours:: heedful.models.encoder_decoder.EncoderDecoder.decode

assert wrote == "desserts"
looked = pattern[0].mean(0)[:8].argmax(-1).tolist()
print("where each letter looked most:", looked)
assert looked == [7, 6, 5, 4, 3, 2, 1, 0]  # from the last letter to the first
heads(maps, 0, 0, "The same weights as lines, head 0")

# %%
# The path of a word
# ------------------

flow(
    {
        "source": Box(text="source", kind="data"),
        "encoder": Box(text="encoder", row=1),
        "memory": Box(text="a row a word", row=2, kind="data"),
        "target": Box(text="target so far", column=1.6, kind="data"),
        "self": Box(text="self-attention", column=1.6, row=1),
        "cross": Box(text="cross-attention", column=1.6, row=2, kind="main"),
        "forward": Box(text="feed-forward", column=1.6, row=3),
        "next": Box(text="next word", column=1.6, row=4, kind="data"),
    },
    [
        Arrow(start="source", end="encoder"),
        Arrow(start="encoder", end="memory"),
        Arrow(start="memory", end="cross", text="keys, values"),
        Arrow(start="target", end="self"),
        Arrow(start="self", end="cross", text="queries"),
        Arrow(start="cross", end="forward"),
        Arrow(start="forward", end="next"),
    ],
    "Two texts, three attentions",
)

# %%
# Three attentions, three masks
# -----------------------------
#
# The encoder's words attend to all real words of the source; the decoder's to those before them;
# and cross-attention to all real words of the source, whatever the two lengths are. Written out by
# hand for the first block:

with torch.no_grad():
    memory = model.encode(source)  # (B, S, D)
    with heedful.record(model, "attention.pattern") as patterns:
        model(source, given)
    print({path: tuple(pattern.shape) for path, pattern in patterns.items()})
    assert (patterns["encoder.block.0.attention.pattern"] > 0).all()
    assert patterns["decoder.block.0.attention.pattern"].triu(1).eq(0).all()

    with heedful.record(model, "decoder.block.0.attention_residual.sum") as recorded:
        model(source, given)
    (x,) = recorded.values()  # the decoder's stream as cross-attention finds it
    cross = model.decoder.block[0].cross_attention
    q, k = (
        cross.split(cross.query(x)),
        cross.split(cross.key(memory)),
    )  # the decoder asks, the encoder's output offers
    assert torch.allclose((q @ k.mT / 32**0.5).softmax(-1), pattern, atol=1e-5)

# %%
# Reading once, writing step by step
# ----------------------------------
#
# The encoder runs once; its keys and values are projected once and cached. Only the decoder steps.

written = model.generate(source, max_new_tokens=9)
again = "".join(letters[i - 2] for i in written[0].tolist() if i > 1)
print(again)
assert again == "desserts"

# %%
# A count to check yours by: vocabulary 10,000 on each side, width 300, 12 + 12 blocks of 4 heads,
# feed-forward 64, a head of its own with a bias.


def stack(causal: bool) -> StackConfig:
    """One side of the paper's Transformer, at this size."""
    return StackConfig(
        dim=300,
        depth=12,
        heads=4,
        ff_dim=64,
        placement="post",
        activation="relu",
        position=SinusoidalPosition(),
        causal=causal,
        cross=causal,
    )


table = EmbeddingConfig(vocab_size=10_000, scale="sqrt")
config = EncoderDecoderConfig(
    source=table,
    target=table,
    encoder=stack(False),
    decoder=stack(True),
    head=LanguageHead(tied=False, bias=True),
)
with torch.device("meta"):
    whole = heedful.create(config)
assert whole.num_parameters() == 22_979_536
groups = (
    (whole.embedding, whole.encoder),
    (whole.target_embedding, whole.decoder),
    (whole.head,),
)
parts = [sum(p.numel() for part in group for p in part.parameters()) for group in groups]
assert parts == [7_813_968, 12_155_568, 3_010_000]
