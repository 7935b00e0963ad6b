"""Masks (B, T, T), True where the first token may attend to the second, against attention written out in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import heedful
from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LearnedPosition,
    NoPosition,
    PooledHead,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.kernels import apply_plan
from heedful.layers import causal_mask, prefix_mask
from heedful.models.base import Model
from heedful.stack import Stack
from relative_schemes import CONTENT
from tolerances import assert_close

VOCAB = EmbeddingConfig(vocab_size=40)
LEARNED = LearnedPosition(length=32)
POSITIONS = [
    NoPosition(),
    RotaryPosition(),
    AlibiPosition(),
    RelativePosition(),
    *CONTENT,
    LEARNED,
    SinusoidalPosition(),
]
B, T = 3, 7


def stack_of(position: Position = LEARNED, **changes: Any) -> StackConfig:
    return StackConfig(dim=16, depth=2, heads=4, init_std=0.3, position=position, **changes)


def decoder(position: Position = LEARNED, **changes: Any) -> Model:
    config = DecoderConfig(embedding=VOCAB, decoder=stack_of(position, causal=True, **changes))
    return heedful.create(config, seed=1).eval().double()


def encoder(position: Position = LEARNED, **changes: Any) -> Model:
    return heedful.create(EncoderConfig(embedding=VOCAB, encoder=stack_of(position), **changes), seed=1).eval().double()


def encoder_decoder(position: Position = LEARNED) -> Model:
    decoder = stack_of(position, causal=True, cross=True)
    special = SpecialTokens(start=1)
    config = EncoderDecoderConfig(source=VOCAB, encoder=stack_of(position), decoder=decoder, special=special)
    return heedful.create(config, seed=1).eval().double()


def ids_of(tokens: int = T) -> Tensor:
    return torch.randint(40, (B, tokens), generator=torch.Generator().manual_seed(0))


def random_mask(queries: int = T, keys: int = T) -> Tensor:
    """Any mask: queries 2 of row 0 and all of row 1's query 0 may attend to nothing; every key is attended to."""
    mask = torch.rand(B, queries, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, -1] = True
    mask[0, 2] = mask[1, 0] = False
    return mask


def attend(attention: Any, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """Multi-head attention with a loop over heads; ``mask`` is (B, T, S). Queries that attend to nothing give zeros."""
    q, k, v = attention.query(x), attention.key(source), attention.value(source)
    outputs = []
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        scores = (q[..., part] @ k[..., part].mT / 2).masked_fill(~mask, -torch.inf)
        outputs.append(torch.softmax(scores, -1).nan_to_num(0.0) @ v[..., part])
    return attention.out(torch.cat(outputs, -1))


def expected_hidden(
    stack: Stack, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
) -> Tensor:
    """Final hidden states of a pre-norm stack with learned positions, written out."""
    x = x + stack.position.table.weight[torch.arange(x.size(1))]
    for block in stack.block:
        y = block.attention_residual.before(x, None)
        x = x + attend(block.attention, y, y, mask)
        if memory is not None:
            y = block.cross_residual.before(x, None)
            x = x + attend(block.cross_attention, y, memory, memory_mask)
        x = x + block.feed_forward(block.feed_forward_residual.before(x, None))
    return stack.norm(x, None)


def test_decoder_and_encoder_and_stack() -> None:
    ids, mask = ids_of(), random_mask()
    for model in (decoder(), encoder()):
        stack = model.decoder if hasattr(model, "decoder") else model.encoder
        x = model.embedding(ids)
        expected = expected_hidden(stack, x, mask)
        assert_close(model.hidden(ids, mask), expected)
        assert_close(stack(x, mask), expected)
        assert_close(model(ids, mask), model.head(expected))


def test_encoder_decoder() -> None:
    model, source, target = encoder_decoder(), ids_of(5), ids_of()
    source_mask, target_mask, cross_mask = random_mask(5, 5), random_mask(), random_mask(T, 5)
    memory = expected_hidden(model.encoder, model.embedding(source), source_mask)
    assert_close(model.encode(source, source_mask), memory)
    x, all_keys = model.embedding(target), torch.ones(B, T, 5, dtype=torch.bool)
    expected = expected_hidden(model.decoder, x, target_mask, memory, all_keys)
    assert_close(model.hidden(source, target, source_mask, target_mask), expected)
    assert_close(model(source, target, source_mask, target_mask), model.head(expected))
    expected = expected_hidden(model.decoder, x, target_mask, memory, cross_mask)
    assert_close(model.decode(target, memory, target_mask, cross_mask), expected)


def test_gradients_of_queries_that_attend_to_nothing() -> None:
    model, ids, mask = decoder(), ids_of(), random_mask()
    model.hidden(ids, mask).square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected_hidden(model.decoder, model.embedding(ids), mask).square().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close(gradients, {name: gradient.nan_to_num(0.0) for name, gradient in expected.items()}, "gradient")


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
@pytest.mark.parametrize("make", [decoder, encoder])
def test_every_position_scheme(make: Callable[[Position], Model], position: Position) -> None:
    """The fused kernel against explicit attention, output and gradient."""
    model, ids, mask = make(position), ids_of(), random_mask()
    results = []
    for plan in ("plain", "export"):
        hidden = apply_plan(model, plan).hidden(ids, mask)
        hidden.sum().backward()
        results.append((hidden, model.embedding.token.weight.grad))
        model.zero_grad()
    assert_close(results[0][0], results[1][0])
    assert_close(results[0][1], results[1][1], "gradient")


def test_bert_of_transformers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=40, attn_implementation="sdpa", **sizes)).eval()
    theirs.save_pretrained(tmp_path)
    ids, mask = ids_of(), random_mask() | torch.eye(T, dtype=torch.bool)
    expected = theirs(ids, attention_mask=mask[:, None]).last_hidden_state
    assert_close(heedful.from_pretrained(tmp_path).eval()(ids, mask), expected)


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_as_a_whole_mask(position: Position, side: str) -> None:
    """Causality and padding in one mask: positions count the tokens that some token may attend to."""
    ids, columns, length = ids_of(), torch.arange(T), torch.tensor([[4], [7], [1]])
    real = columns < length if side == "right" else columns >= T - length
    model = decoder(position)
    whole = causal_mask(T) & real[:, None, :]
    assert_close(model(ids, whole)[real], model(ids, real)[real])
    model = encoder(position)
    whole = real[:, :, None] & real[:, None, :]
    assert_close(model(ids, whole)[real], model(ids, real)[real])


@pytest.mark.parametrize("position", POSITIONS[:4], ids=lambda p: p.kind)
def test_packed_texts_as_a_whole_mask(position: Position) -> None:
    """Where distances alone count, a block-diagonal mask is a packed batch."""
    ids, texts = ids_of(), torch.tensor([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 2], [1] * 7])
    same, real = (texts[:, :, None] == texts[:, None, :]) & (texts > 0)[:, None, :], texts > 0
    precision = torch.float32 if isinstance(position, RotaryPosition) else torch.float64  # of the angles
    model = decoder(position)
    assert_close(model(ids, same & causal_mask(T))[real], model(ids, texts)[real], dtype=precision)
    model = encoder(position)
    assert_close(model(ids, same)[real], model(ids, texts)[real], dtype=precision)


def test_a_whole_mask_replaces_the_window() -> None:
    wide, narrow = decoder(), decoder(window=2)
    narrow.load_state_dict(wide.state_dict())
    ids, mask = ids_of(), random_mask()
    assert_close(narrow(ids, mask), wide(ids, mask))
    near = causal_mask(T) & ~causal_mask(T).tril(-2)
    assert_close(wide(ids, near.expand(B, T, T)), narrow(ids))
    mixed = decoder(window=(None, 2))
    mixed.load_state_dict(wide.state_dict())
    assert_close(mixed(ids, mask), wide(ids, mask))


@pytest.mark.parametrize("plan", ["cpu-training", "cpu-inference", "cpu-decoding", "gpu", "export"])
def test_every_plan(plan: str) -> None:
    ids, whole = ids_of(), torch.ones(B, T, T, dtype=torch.bool)
    for mask in (random_mask(), whole, whole & (torch.arange(T) < 5)):
        for model in (decoder(), encoder(head=PooledHead(pooling="first")), encoder_decoder()):
            inputs = (ids, ids, mask, mask) if hasattr(model, "encode") else (ids, mask)
            expected = model(*inputs)
            assert_close(apply_plan(model, plan)(*inputs), expected)
            expected.sum().backward()
            gradient = model.embedding.token.weight.grad.clone()
            model.zero_grad()
            model.train()(*inputs).sum().backward()
            assert_close(model.embedding.token.weight.grad, gradient, "gradient")


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max"])
def test_pooling_reads_the_tokens_that_are_attended_to(pooling: str) -> None:
    model, ids = encoder(head=PooledHead(pooling=pooling)), ids_of()
    real = torch.arange(T) >= torch.tensor([[3], [0], [6]])
    assert_close(model(ids, real[:, None, :].expand(B, T, T)), model(ids, real))


def test_a_cache_continues() -> None:
    """A prefix that attends in both directions, then tokens with their own rows of the mask, or causal ones."""
    ids, lengths = ids_of(), torch.tensor([3, 4, 4])
    for model in (decoder(), decoder(RotaryPosition()), decoder(RelativePosition())):
        mask = prefix_mask(lengths, T)
        expected = model(ids, mask)
        cache = Cache(2)
        first = model(ids[:, :4], mask[:, :4, :4], cache=cache)
        assert_close(first, expected[:, :4])
        assert_close(model(ids[:, 4:5], cache=cache), expected[:, 4:5])
        assert_close(model(ids[:, 5:], mask[:, 5:], cache=cache), expected[:, 5:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_prefix_mask(side: str) -> None:
    lengths, columns = torch.tensor([2, 0, 5]), torch.arange(T)
    assert prefix_mask(lengths, T).tolist() == [
        [[key <= query or key < length for key in range(T)] for query in range(T)] for length in (2, 0, 5)
    ]
    count = torch.tensor([[4], [6], [7]])
    real = columns < count if side == "right" else columns >= T - count
    mask, whole = prefix_mask(lengths, T, real), prefix_mask(lengths, T)
    for row, (length, tokens) in enumerate(zip(lengths, count[:, 0], strict=True)):
        kept = real[row]
        assert torch.equal(mask[row][kept][:, kept], whole[row, :tokens, :tokens]), length
        assert not mask[row][:, ~kept].any()


def test_wrong_masks_are_refused() -> None:
    model, ids = decoder(), ids_of()
    for mask in (torch.ones(B, T, T), torch.ones(B, T, T - 1, dtype=torch.bool), torch.ones(2, T, T, dtype=torch.bool)):
        with pytest.raises(HeedfulError, match=r"a mask of three axes is .* a boolean tensor of shape \(3, 7, 7\)"):
            model(ids, mask)


# ---------------------------------------------------------------------------------------------------------- generation


@torch.no_grad()
def greedy(model: Model, prompt: Tensor, length: int, steps: int) -> tuple[list[int], float]:
    """Greedy decoding of one text after a prefix of ``length``, a whole forward pass a token; and the mean log p."""
    ids, log_p = prompt[None], 0.0
    for _ in range(steps):
        mask = prefix_mask(torch.tensor([length]), ids.size(1))
        best = model(ids, mask)[:, -1:].log_softmax(-1).max(-1)
        ids, log_p = torch.cat((ids, best.indices), 1), log_p + best.values.item()
    return ids[0].tolist(), log_p / steps


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
@pytest.mark.parametrize("side", ["left", "right"])
def test_prefix_language_model_generates(position: Position, side: str) -> None:
    model, ids, lengths = decoder(position), ids_of(), torch.tensor([3, 5, 7])
    count, columns = torch.tensor([[4], [5], [7]]), torch.arange(T)
    real = columns < count if side == "right" else columns >= T - count
    expected = [greedy(model, row[kept], int(n), 6) for row, kept, n in zip(ids, real, lengths, strict=True)]
    made = decode(model, ids, prefix_mask(lengths, T, real), max_new_tokens=6)
    assert [row[:n].tolist() for row, n in zip(made.ids, made.lengths, strict=True)] == [text for text, _ in expected]
    precision = torch.float32 if isinstance(position, RotaryPosition) else torch.float64  # of the angles
    assert_close(made.scores, torch.tensor([score for _, score in expected], dtype=torch.float64), dtype=precision)
    assert abs(expected[0][1] - greedy(model, ids[0][real[0]], 0, 6)[1]) > 1e-4  # another score than the causal mask's


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2},
        {"temperature": 1.3, "seed": 1, "num_return_sequences": 2},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"prompt_lookup_num_tokens": 3},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"num_beams": 4, "force_words_ids": [[7, 8]]},
    ],
    ids=str,
)
def test_every_method_takes_the_mask_of_a_prompt(options: dict[str, Any]) -> None:
    """The causal mask written out gives what no mask gives; a prefix alone and in a batch give the same."""
    model, ids = decoder(), ids_of()
    options = {**options, "max_new_tokens": 5}
    plain = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, causal_mask(T).expand(B, T, T), **options), plain)
    mask = prefix_mask(torch.tensor([7, 7, 7]), T)
    batch = model.generate(ids, mask, **options)
    assert not torch.equal(batch, plain)
    if "seed" not in options:
        alone = [model.generate(ids[row : row + 1], mask[row : row + 1], **options) for row in range(B)]
        assert torch.equal(torch.cat(alone), batch)


def test_an_assistant_reads_the_mask_too() -> None:
    model, ids = decoder(), ids_of()
    mask = prefix_mask(torch.tensor([7, 3, 5]), T)
    assisted = model.generate(ids, mask, assistant_model=decoder(RotaryPosition()), max_new_tokens=6)
    assert torch.equal(assisted, model.generate(ids, mask, max_new_tokens=6))


def test_an_encoder_decoder_generates_from_a_source_mask() -> None:
    model, ids = encoder_decoder(), ids_of()
    mask = random_mask()
    target = torch.ones(B, 1, dtype=torch.long)
    for _ in range(5):
        target = torch.cat((target, model(ids, target, mask)[:, -1:].argmax(-1)), 1)
    assert torch.equal(model.generate(ids, mask, max_new_tokens=5), target)
    assert torch.equal(model.generate(ids, mask, max_new_tokens=5, num_beams=1, prefill_chunk_size=2), target)


@pytest.mark.parametrize("options", [{"context": 16}, {"prefill_chunk_size": 2}], ids=str)
def test_a_prompt_with_its_own_mask_is_read_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(HeedfulError, match=f"is read at once; leave {next(iter(options))} out"):
        decoder().generate(ids_of(), random_mask(), **options)
