"""Tensors recorded during generation, against one forward pass over the returned text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    LanguageHead,
    LearnedPosition,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.generation import decode, stream
from heedful.models import build
from tolerances import assert_close

VOCAB, ENDS = 12, (5, 7)
NAMES = ("pattern", "scores", "query", "mixed", "attention.output", "activation", "stream", "logits", "embedded")


def noisy(config: Any) -> Any:
    torch.manual_seed(3)
    model = build(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def decoder(**stack: Any) -> Any:
    return noisy(
        DecoderConfig(
            embedding=EmbeddingConfig(vocab_size=VOCAB),
            decoder=StackConfig(dim=16, depth=2, heads=4, causal=True, **stack),
            head=LanguageHead(tied=True),
            special=SpecialTokens(pad=0, end=ENDS),
        )
    )


def pair() -> Any:
    config = presets.get("transformer-tiny")
    small = {"dim": 16, "depth": 2, "heads": 4, "ff_dim": 32}
    return noisy(
        replace(
            config,
            source=replace(config.source, vocab_size=VOCAB),
            encoder=replace(config.encoder, **small),
            decoder=replace(config.decoder, **small),
            special=SpecialTokens(pad=0, start=1, end=ENDS),
        )
    )


PROMPTS = torch.tensor([[3, 4, 6, 8, 9], [0, 0, 2, 10, 3], [0, 0, 0, 0, 11]])
MASK = PROMPTS != 0
WAYS = {
    "greedy": {"max_new_tokens": 9},
    "sampled": {"max_new_tokens": 9, "temperature": 1.5, "seed": 1, "num_return_sequences": 3},
    "beams": {"max_new_tokens": 9, "num_beams": 4, "num_return_sequences": 2},
    "never": {"max_new_tokens": 12, "num_beams": 3, "early_stopping": "never", "length_penalty": 0.0},
}


def rows_of(made: Any, copies: int, width: int) -> list[tuple[int, list[int], int]]:
    """(prompt, ids, number of new tokens) of each returned row."""
    found = []
    for row, (ids, length) in enumerate(zip(made.ids.tolist(), made.lengths.tolist(), strict=True)):
        prompt = row // copies
        found.append((prompt, ids[:length], length - width if width == 1 else length - int(MASK[prompt].sum())))
    return found


def check(seen: dict[str, Tensor], row: int, path: str, single: Tensor, before: int, new: int) -> None:
    """Row ``row`` of what was recorded against one forward: the queries that chose, zeros after them."""
    kept, name = seen[path][row], path.rpartition(".")[2]
    queries = slice(before - 1, before - 1 + new)
    if name in ("pattern", "scores"):
        expected, empty = single[0][:, queries], float("-inf") if name == "scores" else 0.0
        keys = expected.size(-1)
        for step in range(new):  # under a causal mask a query has seen no key after its own
            seen_by = keys if "cross" in path else before + step
            assert_close(kept[:, step, :seen_by], expected[:, step, :seen_by])
            assert kept[:, step, seen_by:].eq(empty).all()
        assert kept[:, new:].eq(empty).all()
    elif name in ("key", "value"):
        size = before + new - 1
        assert_close(kept[:, :size], single[0][:, :size])
        assert kept[:, size:].eq(0).all()
    elif name in ("query", "mixed"):
        assert_close(kept[:, :new], single[0][:, queries])
        assert kept[:, new:].eq(0).all()
    else:
        assert_close(kept[:new], single[0][queries])
        assert kept[new:].eq(0).all()


POSITIONS = {
    "learned": {"position": LearnedPosition(length=32)},
    "sinusoidal": {"position": SinusoidalPosition()},
    "rotary": {"position": RotaryPosition(), "kv_heads": 2, "qk_norm": "head"},
    "alibi": {"position": AlibiPosition()},
    "relative": {"position": RelativePosition()},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_decoders_rows(position: str, way: str) -> None:
    model, options = decoder(**POSITIONS[position]), WAYS[way]
    copies = options.get("num_return_sequences", 1)
    plain = decode(model, PROMPTS, MASK, **options)
    with heedful.record(model, [*NAMES, "key", "value"]) as seen:
        made = decode(model, PROMPTS, MASK, **options)
    assert torch.equal(made.ids, plain.ids)
    assert torch.equal(made.scores, plain.scores)
    assert len({ids.tobytes() for ids in made.ids.numpy()}) > 1
    steps = max(new for _, _, new in rows_of(made, copies, 0))
    pattern = seen["decoder.block.1.attention.pattern"]
    assert pattern.shape == (len(made.ids), 4, steps, made.ids.size(1))
    for row, (prompt, ids, new) in enumerate(rows_of(made, copies, 0)):
        with torch.no_grad(), heedful.record(model, [*NAMES, "key", "value"]) as alone:
            model(torch.tensor([ids]))
        for path, single in alone.items():
            check(seen, row, path, single, int(MASK[prompt].sum()), new)


@pytest.mark.parametrize("way", WAYS)
def test_the_rows_of_an_encoder_decoder(way: str) -> None:
    """Cross-attention of the beam that is returned."""
    model, options = pair(), WAYS[way]
    copies = options.get("num_return_sequences", 1)
    plain = decode(model, PROMPTS, MASK, **options)
    with heedful.record(model, NAMES) as seen:
        made = decode(model, PROMPTS, MASK, **options)
    assert torch.equal(made.ids, plain.ids)
    assert torch.equal(made.scores, plain.scores)
    for row, (prompt, ids, new) in enumerate(rows_of(made, copies, 1)):
        source = PROMPTS[prompt][MASK[prompt]][None]
        with torch.no_grad(), heedful.record(model, NAMES) as alone:
            model(source, torch.tensor([ids]))
        for path, single in alone.items():
            if path.startswith(("encoder.", "embedding.")):
                count = source.size(1)
                one = seen[path][row][..., :count, :count] if "pattern" in path else seen[path][row]
                if path.endswith(("pattern", "stream", "activation", "attention.output", "embedded")):
                    one = one if "pattern" in path else one[:count]
                    assert_close(one, single[0])
            else:
                check(seen, row, path, single, 1, new)
        width = seen["decoder.block.0.cross_attention.pattern"].size(-1)
        assert width == int(MASK.sum(1).max())
        assert seen["decoder.block.0.cross_attention.pattern"][row, :, :, source.size(1) :].eq(0).all()


@pytest.mark.parametrize("window", [3, (3, None), (None, 2)])
def test_a_sliding_window_keeps_its_columns(window: Any) -> None:
    model = decoder(position=RotaryPosition(), window=window)
    with heedful.record(model, "pattern") as seen:
        made = decode(model, PROMPTS, MASK, max_new_tokens=8)
    for row, (prompt, ids, new) in enumerate(rows_of(made, 1, 0)):
        with torch.no_grad(), heedful.record(model, "pattern") as alone:
            model(torch.tensor([ids]))
        for path, single in alone.items():
            check(seen, row, path, single, int(MASK[prompt].sum()), new)


def test_heads_and_tokens_that_are_asked_for() -> None:
    model = decoder(position=AlibiPosition())
    with heedful.record(model) as whole:
        decode(model, PROMPTS, MASK, max_new_tokens=6, num_beams=3)
    with heedful.record(model, layers=[1], heads=[3, 0], queries=[-1, 2]) as some:
        decode(model, PROMPTS, MASK, max_new_tokens=6, num_beams=3)
    (path,) = some
    assert path == "decoder.block.1.attention.pattern"
    assert torch.equal(some[path], whole[path][:, [3, 0]][:, :, [-1, 2]])


def test_streaming_is_recorded_when_it_has_ended() -> None:
    model = decoder(position=RotaryPosition())
    with heedful.record(model) as seen:
        for number, _ in enumerate(stream(model, PROMPTS, MASK, max_new_tokens=4)):
            assert not seen, number
    with heedful.record(model) as whole:
        model.generate(PROMPTS, MASK, max_new_tokens=4)
    assert seen.keys() == whole.keys()
    assert all(torch.equal(seen[path], whole[path]) for path in whole)
    assert not any(tensor.is_inference() for tensor in seen.values())
    assert model.observers == ()


def test_a_text_read_anew_cannot_be_recorded() -> None:
    model = decoder(position=RotaryPosition())
    with pytest.raises(HeedfulError, match="give a larger context"), heedful.record(model):
        model.generate(PROMPTS, MASK, max_new_tokens=8, context=6)
    assert model.observers == ()
    with heedful.record(model) as seen:  # and what follows is not disturbed
        model(PROMPTS[:1])
    assert seen["decoder.block.0.attention.pattern"].shape == (1, 4, 5, 5)


def test_an_intervention_lasts_through_a_generation() -> None:
    """A head that says nothing at each step is a head whose rows in the output map are zero."""
    model = decoder(position=RotaryPosition())
    with heedful.inspection.intervene(model, "mixed", 0.0, layers=[1], heads=[2]):
        silent = decode(model, PROMPTS, MASK, max_new_tokens=9, num_beams=3)
    with torch.no_grad():
        model.decoder.block[1].attention.out.weight[:, 8:12] = 0.0
    cut = decode(model, PROMPTS, MASK, max_new_tokens=9, num_beams=3)
    assert torch.equal(silent.ids, cut.ids)
    assert_close(silent.scores, cut.scores)
    with (
        pytest.raises(HeedfulError, match=r"queries cannot be chosen during a generation.* leave queries out"),
        heedful.inspection.intervene(model, "mixed", 0.0, queries=[0]),
    ):
        model.generate(PROMPTS, MASK, max_new_tokens=2)


def test_a_record_is_left_before_its_stream_has_ended() -> None:
    model = decoder(position=RotaryPosition())
    plain = list(stream(model, PROMPTS, MASK, max_new_tokens=6))
    with heedful.record(model) as seen:
        tokens = stream(model, PROMPTS, MASK, max_new_tokens=6)
        made = [next(tokens), next(tokens)]
    made += tokens
    assert len(plain) == len(made)
    assert all(torch.equal(a, b) for a, b in zip(made, plain, strict=True))
    assert not seen


def test_one_generation_at_a_time() -> None:
    """The second is refused and the first goes on; a stream that is dropped makes room."""
    model = decoder(position=RotaryPosition())
    with heedful.record(model) as alone:
        list(stream(model, PROMPTS, MASK, max_new_tokens=6))
    with heedful.record(model) as seen:
        first = stream(model, PROMPTS, MASK, max_new_tokens=6)
        next(first)
        with pytest.raises(HeedfulError, match="another generation is still being recorded"):
            model.generate(PROMPTS, MASK, max_new_tokens=2)
        list(first)
        assert all(torch.equal(seen[path], alone[path]) for path in alone)
        dropped = stream(model, PROMPTS, MASK, max_new_tokens=6)
        next(dropped)
        del dropped
        model(PROMPTS[:1])
    assert seen["decoder.block.0.attention.pattern"].shape == (1, 4, 5, 5)
