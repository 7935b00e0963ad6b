"""A window for each block: a banded model is a dense one under a mask for each block, written out pair by pair."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    Config,
    DropoutRates,
    LearnedPosition,
    NoHead,
    Position,
    RelativePosition,
    RotaryPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.generation.decoding import decode
from heedful.generation.options import resolve
from heedful.generation.slots import SlotDecoder
from heedful.kernels.plan import apply_plan
from heedful.layers import Rotary
from heedful.layers.mask import token_positions
from heedful.models.base import Model
from heedful.pretrained.model_types import express
from heedful.stack import Stack
from relative_schemes import CONTENT
from tolerances import assert_close

VOCAB, T = 23, 11
PATTERNS: list[Any] = [(None, 3), (2, None, 4), (5, 5, 5, 5, 5, None)]  # the last is Gemma 3's
POSITIONS = [
    LearnedPosition(length=40),
    LearnedPosition(length=40, buckets=8),
    RotaryPosition(),
    AlibiPosition(),
    RelativePosition(),
    *CONTENT,
]
IDS = torch.randint(VOCAB, (3, T), generator=torch.Generator().manual_seed(0))
REAL = {
    "none": torch.ones(3, T, dtype=torch.bool),
    "left": torch.arange(T) >= torch.tensor([[0], [4], [7]]),
    "right": torch.arange(T) < torch.tensor([[11], [4], [7]]),
}


def decoder(window: Any, position: Position | None = None, depth: int = 6) -> Model:
    config = presets.gpt2(16, depth, 4, VOCAB, 40, 0.0, 0.4)
    stack = replace(config.decoder, window=window, position=position or LearnedPosition(length=40), kv_heads=2)
    return heedful.create(replace(config, decoder=stack), seed=1).double().eval()


def band(real: Tensor, window: int | None) -> Tensor:
    """The mask (B, 1, T, T) of a block, pair by pair: of real tokens up to the query, the last ``window``."""
    mask = torch.zeros(len(real), 1, T, T, dtype=torch.bool)
    for row, query in real.nonzero().tolist():
        keys = [key for key in range(query + 1) if real[row, key]]
        mask[row, 0, query, keys if window is None else keys[-window:]] = True
    return mask[:, :, : real.size(1), : real.size(1)]


def by_hand(model: Model, ids: Tensor, real: Tensor) -> Tensor:
    """Logits of the dense model with the same weights, each block called with its own mask."""
    dense = heedful.create(replace(model.config, decoder=replace(model.config.decoder, window=None))).double().eval()
    dense.load_state_dict(model.state_dict())
    stack, pattern = dense.decoder, model.config.decoder.window
    positions = token_positions(real)
    encoding = stack.encoding(positions, positions)
    x = stack.position.embed(dense.embedding(ids), positions)
    for number, block in enumerate(stack.block):
        window = pattern[number % len(pattern)]
        x = block(x, mask=band(real, window)[..., : ids.size(1), : ids.size(1)], position=encoding)
    return dense.head(stack.norm(x))


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.kind)
@pytest.mark.parametrize("padding", REAL)
@pytest.mark.parametrize("window", PATTERNS, ids=str)
def test_a_banded_model_is_a_dense_one_under_masks(window: Any, padding: str, position: Position) -> None:
    model, real = decoder(window, position), REAL[padding]
    expected = by_hand(model, IDS, real)[real]
    given = None if padding == "none" else real
    assert_close(model(IDS, given)[real], expected)
    if padding != "right":
        cache = Cache(6, window=model.config.decoder.windows)
        parts = [model(IDS[:, :8], None if given is None else given[:, :8], cache=cache)]
        parts += [model(IDS[:, t : t + 1], cache=cache) for t in range(8, T)]
        assert_close(torch.cat(parts, 1)[real], expected)


@torch.no_grad()
def test_positions_are_encoded_once_for_blocks_that_read_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache, keys = decoder((None, 3), RotaryPosition()), Cache(6, window=(None, 3) * 3), list[int]()

    inner = Stack.encoding

    def encoding(self: Stack, queries: Tensor, own_keys: Tensor, *others: Any) -> Any:
        keys.append(own_keys.size(1))
        return inner(self, queries, own_keys, *others)

    monkeypatch.setattr(Stack, "encoding", encoding)
    model(IDS)
    for start, end in ((0, 3), (3, 8), (8, 9)):
        model(IDS[:, start:end], cache=cache)
    assert keys == [T, 3, 8, 9, 4]
    keys.clear()
    decode(model, IDS[:, :4], max_new_tokens=2, cache_implementation="static")
    assert keys == [4, 5, 3]


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("window", PATTERNS[:2], ids=str)
def test_decoding_reads_no_more_than_the_bands(window: Any, padding: str, options: dict[str, Any]) -> None:
    """Greedy tokens are the most probable by hand; a beam's score is their sum by hand."""
    model, prompt = decoder(window), 8
    ids, real = IDS[:, :prompt], REAL[padding][:, :prompt]
    made = decode(model, ids, real, max_new_tokens=3, **options)
    whole = REAL[padding].clone()
    whole[:, :prompt] = real
    tokens = torch.cat((ids, torch.stack([row[len(row) - 3 :] for row in made.ids])), 1)
    if padding == "left":  # rows come back with their padding on the right
        new = [row[row >= 0][int(n) :][:3] for row, n in zip(made.ids, real.sum(1), strict=True)]
        tokens = torch.cat((ids, torch.stack(new)), 1)
    logits = by_hand(model, tokens, whole)[:, prompt - 1 : -1]
    if "num_beams" in options:
        chosen = logits.log_softmax(-1).gather(2, tokens[:, prompt:, None])[..., 0].sum(1) / 3
        assert_close(made.scores, chosen)
    else:
        assert torch.equal(tokens[:, prompt:], logits.argmax(-1))


def test_slots() -> None:
    model = decoder((2, None, 4)).float()
    decoder_of_slots = SlotDecoder(model, slots=2, capacity=30)
    options = resolve({})
    rows = [decoder_of_slots.join(IDS[row, :length].tolist(), options, limit=6) for row, length in ((0, 9), (1, 2))]
    while decoder_of_slots.rows:
        decoder_of_slots.step()
    for row in rows:
        whole = model.generate(torch.tensor([row.ids]), max_new_tokens=6)
        assert row.tokens == whole[0, len(row.ids) :].tolist()


@torch.no_grad()
def test_patterns_are_zero_outside_of_the_band() -> None:
    model = decoder((None, 3))
    with heedful.record(model, "pattern") as seen:
        model(IDS)
    for number in range(6):
        pattern = seen[f"decoder.block.{number}.attention.pattern"]
        mask = band(REAL["none"], (None, 3)[number % 2])
        assert (pattern * ~mask).abs().max() == 0
        assert pattern.masked_select(mask).min() > 0


def test_a_text_longer_than_the_context_slides() -> None:
    """Read again from a later token, every block begins anew: as the last tokens alone."""
    model = decoder((None, 3))
    made = model.generate(IDS[:1], max_new_tokens=60, context=20, context_keep=19)
    last = model.generate(made[:, -20:-1], max_new_tokens=1)
    assert last[0, -1] == made[0, -1]


def test_alternating_blocks_learn() -> None:
    model = heedful.create(replace(decoder((None, 3)).config), seed=0)
    text = torch.randint(VOCAB, (16, 6), generator=torch.Generator().manual_seed(3)).repeat(1, 3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


# ----------------------------------------------------------------------------------------------------- configurations


def stack(**changes: Any) -> StackConfig:
    return StackConfig(**({"dim": 16, "depth": 6, "heads": 4, "causal": True} | changes))


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((None, None), None),
        ((4,), 4),
        ((4,) * 6, 4),
        ((None, 4) * 3, (None, 4)),
        ((None, 4, None, 4, None), (None, 4, None, 4, None)),  # the sixth is dense: it begins anew
        ((4, 4, None), (4, 4, None)),
        ((4, 4, 4, 4, 4, None), (4, 4, 4, 4, 4, None)),
    ],
    ids=str,
)
def test_a_pattern_is_stored_as_short_as_possible(given: Any, stored: Any) -> None:
    config = stack(window=given)
    assert config.window == stored
    assert config.windows == tuple(given[block % len(given)] for block in range(6))
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config == stack(window=config.windows)
    assert hash(config) == hash(stack(window=config.windows))


def test_one_window_is_written_as_before() -> None:
    assert stack(window=4).to_dict()["window"] == 4
    assert stack().to_dict()["window"] is None
    assert stack(window=(None, 4)).to_dict()["window"] == [None, 4]
    assert stack(window=[None, 4]) == stack(window=(None, 4))  # as JSON has it


def test_a_folder_keeps_the_pattern(tmp_path: Any) -> None:
    model = decoder((2, None, 4))
    model.save_pretrained(tmp_path)
    again = heedful.from_pretrained(tmp_path)
    assert again.config.decoder.windows == (2, None, 4, 2, None, 4)
    weights = again.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    with torch.no_grad():  # products may round by where the weights lie in memory
        assert_close(again(IDS), model(IDS))


def test_layers_of_qwen_share_one_window() -> None:
    config = presets.llama(16, 6, 4, 2, 32, VOCAB)
    own = replace(config.decoder, attention_bias="qkv", position=RotaryPosition())
    for window, layout in (((None, 4), "qwen2"), ((4, None, None), "qwen2"), ((2, 4), None), ((2, None, 4), None)):
        found = express(replace(config, decoder=replace(own, window=window)), None)
        assert (found and found[0].name) == layout


def test_transformers_is_told_that_gpt2_has_no_windows(tmp_path: Any) -> None:
    model = decoder((None, 4))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] != "gpt2"
    with pytest.raises(HeedfulError, match="window"):
        export(tmp_path, "hf", tmp_path / "hf")


# ------------------------------------------------------------------------------------------------------------ encoders


def encoder(window: Any, position: Position | None = None) -> Model:
    config = presets.bert(16, 4, 2, VOCAB, 40)
    position = position or RotaryPosition(base=300.0, window_base=20.0)
    stack = replace(config.encoder, window=window, position=position, dropout=DropoutRates())
    return heedful.create(replace(config, encoder=stack, head=NoHead()), seed=1).double().eval()


def both_sides(real: Tensor, window: int | None) -> Tensor:
    """The mask (B, 1, T, T) of an encoder's block, pair by pair: of real tokens up to half the window away."""
    mask = torch.zeros(len(real), 1, T, T, dtype=torch.bool)
    for row in range(len(real)):
        places = real[row].nonzero()[:, 0].tolist()
        for number, query in enumerate(places):
            first = 0 if window is None else max(0, number - window // 2)
            last = len(places) if window is None else number + window // 2 + 1
            mask[row, 0, query, places[first:last]] = True
    return mask


@torch.no_grad()
@pytest.mark.parametrize("plan", ["plain", "cpu-inference", "cpu-training", "gpu"])
@pytest.mark.parametrize("padding", REAL)
@pytest.mark.parametrize("window", [4, 5, (None, 3, 2)], ids=str)
def test_an_encoders_window_is_half_on_each_side(window: Any, padding: str, plan: str) -> None:
    """Blocks with a window have a rotary base of their own."""
    model, real = encoder(window), REAL[padding]
    stack, positions = model.encoder, token_positions(real)
    x = stack.embedding_norm(model.embedding(IDS, torch.zeros_like(IDS)))
    for number, block in enumerate(stack.block):
        own = window[number % 3] if isinstance(window, tuple) else window
        rotary = Rotary(8, RotaryPosition(base=300.0 if own is None else 20.0))
        x = block(x, mask=both_sides(real, own), position=rotary.prepare(positions, positions))
    assert_close(apply_plan(model, plan)(IDS, real)[real], x[real])


@pytest.mark.parametrize("position", [LearnedPosition(length=40), RelativePosition(), AlibiPosition()], ids=str)
def test_an_encoders_window_trains_without_padding(position: Position) -> None:
    gradients = []
    for plan in ("plain", "cpu-training"):
        model = apply_plan(encoder((None, 3), position).train(), plan)
        model(IDS, REAL["right"])[REAL["right"]].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.encoder.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert_close(one, two, "gradient")


@torch.no_grad()
def test_packed_texts_of_an_encoder_with_windows() -> None:
    model = encoder((None, 3))
    texts = torch.tensor([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]])
    packed = model(IDS[:1], texts)[0]
    assert_close(packed[:5], model(IDS[:1, :5])[0])
    assert_close(packed[5:9], model(IDS[:1, 5:9])[0])


@torch.no_grad()
def test_parts_of_an_encoder_with_windows_alone() -> None:
    """Mask and rotation are known to the stack."""
    model = encoder((None, 3))
    x, positions = torch.randn(1, 5, 16, dtype=torch.float64), torch.arange(5)[None]
    encoding = model.encoder.encoding(positions, positions)
    with pytest.raises(HeedfulError, match=r"depends on the window of the block; give position\.of\(window\)"):
        model.encoder.block[1](x, position=encoding, mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(HeedfulError, match=r"the attention's window is known to its stack; give mask"):
        model.encoder.block[1].attention(x, position=encoding.of(3))
