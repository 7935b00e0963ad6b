"""Rows of a beam search in a new order: positions, caches, and the source that the beams of a sentence share."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import heedful
from heedful import presets
from heedful.cache import Cache
from heedful.config import SpecialTokens
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation.beam import order_by_parent
from heedful.layers.attention_kernels import explicit_attention, fused_attention
from tolerances import assert_close


def pair(seed: int = 0):
    special = SpecialTokens(pad=0, start=1, end=(4,))
    model = heedful.create(presets.transformer(16, 2, 2, 32, 9, special=special), seed=seed).double().eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=random, dtype=p.dtype) * 0.4)
    return model


@pytest.mark.parametrize("beams", [1, 2, 3, 4])
def test_every_parent_keeps_a_child_in_its_place(beams):
    """All ways in which beams can have parents: each is kept once, and only children of absent parents' places move."""
    parents = torch.tensor(list(product(range(beams), repeat=beams)))
    order = order_by_parent(parents)
    assert torch.equal(order.sort(1).values, torch.arange(beams).expand_as(order))
    for before, after in zip(parents.tolist(), parents.gather(1, order).tolist(), strict=True):
        assert all(after[place] == place for place in set(before))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("kind", ["none", "padding", "bias"])
def test_rows_that_share_keys_attend_as_if_each_had_its_own(queries, kv_heads, kind):
    q = torch.randn(6, 4, queries, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_heads, 7, 8, dtype=torch.float64)
    mask = {
        "none": None,
        "padding": (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None],
        "bias": torch.randn(2, 1, 1, 7, dtype=torch.float64),
    }[kind]
    given = (None, mask) if kind == "bias" else (mask, None)
    own = [None if x is None else x.repeat_interleave(3, 0) for x in (k, v, *given)]
    expected = explicit_attention(q, *own, 0.5)
    assert_close(fused_attention(q, k, v, *given, 0.5), expected, "layer")


def test_rows_that_share_keys_have_no_mask_of_their_own():
    q, k = torch.randn(4, 2, 3, 8), torch.randn(2, 2, 3, 8)
    with pytest.raises(HeedfulError, match=r"^4 rows of queries share 2 rows of keys.* not 'causal'; give each row"):
        fused_attention(q, k, k, "causal", None, 1.0)
    with pytest.raises(RuntimeError):
        fused_attention(q, k, k, torch.ones(2, 1, 3, 3, dtype=torch.bool), None, 1.0)


@torch.no_grad()
@pytest.mark.parametrize("capacity", [None, 12], ids=["growing", "preallocated"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_source_is_kept_once_for_all_its_beams(capacity, padded):
    """One row a sentence made into three, put in order, then a sentence dropped: as if each row were alone."""
    model = pair()
    source, target = torch.randint(2, 9, (3, 7)), torch.randint(2, 9, (9, 6))
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]]) if padded else None
    memory, cache = model.encode(source, mask), Cache(2, capacity=capacity)
    text = target[::3, :1]
    model.decode(text, memory, None, mask, cache=cache)

    def go(rows, sources):
        nonlocal text
        text = torch.cat((text[rows], target[: len(rows), text.size(1), None]), 1)
        shared = None if mask is None else mask[sources]
        made = model.decode(text[:, -1:], memory, None, shared, cache=cache)
        own = sources.repeat_interleave(3)
        whole = model.decode(text, memory[own], None, None if mask is None else mask[own])
        assert_close(made, whole[:, -1:], "layer")
        assert {len(cross.pair[0]) for _, cross in cache.pairs} == {len(sources)}

    every = torch.arange(3)
    for rows in ([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 5, 4, 3, 6, 7, 8], [2, 1, 2, 3, 3, 3, 8, 6, 6]):
        cache.reorder(torch.tensor(rows))
        go(torch.tensor(rows), every)
    kept, rows = torch.tensor([0, 2]), torch.tensor([1, 0, 0, 8, 7, 6])
    cache.select(rows, kept)
    go(rows, kept)


@torch.no_grad()
def test_rows_that_stay_are_not_touched():
    """Reordering in place moves only what must move: the others' memory is the same, bit for bit and byte for byte."""
    model, cache = pair(), Cache(2)
    memory = model.encode(torch.randint(2, 9, (4, 5)))
    for _ in range(3):
        model.decode(torch.randint(2, 9, (4, 1)), memory, cache=cache)
    before = [[(part.data_ptr(), part.clone()) for part in own.pair] for own, _ in cache.pairs]
    cache.reorder(torch.tensor([0, 3, 2, 3]))
    for own, kept in zip((own for own, _ in cache.pairs), before, strict=True):
        for part, (place, old) in zip(own.pair, kept, strict=True):
            assert part.data_ptr() == place
            assert torch.equal(part, old[[0, 3, 2, 3]])


def test_reordering_can_be_trained_through():
    """With gradients on nothing is written in place."""
    model, cache = pair(), Cache(2)
    source, target = torch.randint(2, 9, (2, 5)), torch.randint(2, 9, (2, 4))
    memory, rows = model.encode(source), torch.tensor([0, 0])
    loss = model.decode(target[:, :2], memory, cache=cache).square().sum()
    cache.select(rows)
    loss = loss + model.decode(target[:, 2:3], memory, cache=cache).square().sum()
    cache.reorder(torch.tensor([1, 1]))
    loss = loss + model.decode(target[:, 3:], memory, cache=cache).square().sum()
    (own,) = torch.autograd.grad(loss, model.target_embedding.token.weight)
    again = model.encode(source)
    text = torch.cat((target[rows][:, :2], target[:, 2:]), 1)
    last = torch.cat((target[rows][:, :2], target[[1, 1]][:, 2:3], target[:, 3:]), 1)
    loss = model.decode(target[:, :2], again).square().sum()
    loss = loss + model.decode(text[:, :3], again[rows])[:, 2:].square().sum()
    loss = loss + model.decode(last, again[rows])[:, 3:].square().sum()
    (expected,) = torch.autograd.grad(loss, model.target_embedding.token.weight)
    assert_close(own, expected)


@torch.no_grad()
def test_a_cache_made_in_inference_mode_goes_on_outside():
    model, target = pair(), torch.randint(2, 9, (2, 6))
    memory, cache = model.encode(torch.randint(2, 9, (1, 5)).expand(2, -1)), Cache(2)
    with torch.inference_mode():
        for t in range(2):
            model.decode(target[:, t : t + 1], memory, cache=cache)
    cache.reorder(torch.tensor([1, 1]))
    parts = [model.decode(target[:, t : t + 1], memory, cache=cache) for t in range(2, 6)]
    text = torch.cat((target[[1, 1], :2], target[:, 2:]), 1)
    assert_close(torch.cat(parts, 1), model.decode(text, memory)[:, 2:], "layer")


@pytest.mark.parametrize("name", ["pattern", "key", "value", "query", "mixed"])
def test_recorded_beams_are_those_of_a_search_without_a_record(name):
    """To the last bit, and each returned row has what one forward over its own text and source shows."""
    model = pair(3)
    rows = torch.tensor([[2, 3, 5, 6], [3, 7, 0, 0], [8, 2, 2, 0]])
    mask = rows > 0
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 6}
    plain = decode(model, rows, mask, **options)
    path = f"decoder.block.1.cross_attention.{name}"
    with heedful.record(model, path) as seen:
        made = decode(model, rows, mask, **options)
    assert torch.equal(made.ids, plain.ids)
    assert torch.equal(made.scores, plain.scores)
    for row, length in enumerate(made.lengths.tolist()):
        source = rows[row // 2][mask[row // 2]][None]
        with heedful.record(model, path) as alone, torch.no_grad():
            model(source, made.ids[row : row + 1, : length - 1])
        expected, got = alone[path][0], seen[path][row]
        got = got[:, :, : source.size(1)] if name == "pattern" else got
        near = got[:, : expected.size(1)]
        assert_close(near, expected)
