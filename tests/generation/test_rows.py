"""A row gives the same alone, padded on either side, in a mixed batch, and without a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heedful
from heedful.cache import StackCache
from heedful.errors import HeedfulError
from heedful.generation import decode, generate
from heedful.generation.decoder_state import DecoderState, EncoderDecoderState, align
from tolerances import assert_close

LENGTHS = [9, 2, 6, 1, 9, 4]
METHODS = {
    "greedy": {},
    "rules": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.6},
    "beams, no repeats": {"num_beams": 3, "no_repeat_ngram_size": 2, "early_stopping": "never"},
    "sampling": {"temperature": 1.2, "top_k": 20, "seed": 3, "num_return_sequences": 2},
}
WINDOWS = {"window": 4, "windows": (None, 4)}
# every kind of position, and sliding windows
MODELS = ["gpt2", "marian", "gpt-micro", "stories260k", "t5", "window", "windows"]
OTHERS = [method for method in METHODS if method != "beams"]
# each model with beams, whose rows change places, and with one of the other methods
FIRST = [(name, "beams") for name in MODELS]
FIRST += [(name, OTHERS[number % len(OTHERS)]) for number, name in enumerate(MODELS)]


def models_and_methods(test):
    cases = dict.fromkeys([*FIRST, *((name, method) for name in MODELS for method in METHODS)])
    table = [pytest.param(name, METHODS[method], id=f"{name}-{method}") for name, method in cases]
    return pytest.mark.full(keep=len(FIRST))(pytest.mark.parametrize(("name", "method"), table)(test))


def model_of(name, pairs):
    if name in pairs:
        return pairs[name](2).ours
    if name == "t5":
        return heedful.create(heedful.presets.t5(16, 2, 2, 32, 8), seed=1).double()
    if name in WINDOWS:
        config = heedful.presets.llama(16, 2, 4, 2, 32, 40)
        return heedful.create(replace(config, decoder=replace(config.decoder, window=WINDOWS[name])), seed=1).double()
    return heedful.create(name, seed=1).double()


@models_and_methods
def test_alone_left_right_and_mixed(pairs, prompts, plain, name, method):
    model = model_of(name, pairs)
    ids, mask = prompts(LENGTHS)
    alone = [decode(model, row[real][None], max_new_tokens=8, **method) for row, real in zip(ids, mask, strict=True)]
    expected = [tokens for made in alone for tokens in plain(made.ids, made.lengths)]
    scores = torch.cat([made.scores for made in alone])
    wide = torch.cat((torch.full_like(ids, 8), ids), 1), torch.cat((torch.zeros_like(mask), mask), 1)
    for batch in ((ids, mask), prompts(LENGTHS, "right"), wide):
        made = decode(model, *batch, max_new_tokens=8, **method)
        assert plain(made.ids, made.lengths) == expected
        assert_close(made.scores, scores)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_the_usual_limit_is_each_row_s_own(pairs, prompts, plain, options):
    model, (ids, mask) = pairs["marian"](3).ours, prompts([9, 2], "right")
    together = decode(model, ids, mask, **options)
    alone = [decode(model, row[real][None], **options) for row, real in zip(ids, mask, strict=True)]
    assert plain(together.ids, together.lengths) == [plain(one.ids, one.lengths)[0] for one in alone]
    assert [together.lengths.tolist()[i] <= 1 + 2 * n + 50 for i, n in enumerate([9, 2])] == [True, True]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"temperature": 1.0, "seed": 0}], ids=str)
def test_learned_positions_end_a_row_without_stopping_the_others(prompts, options):
    model = heedful.create("gpt-micro", seed=0)  # 64 positions, no end token
    made = decode(model, *prompts([60, 3, 64]), **options)
    assert made.lengths.tolist() == [65, 53, 65]


def test_a_context_longer_than_learned_positions_is_refused(prompts):
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match=r"prompt 1 has 65 tokens .* 64 learned positions.*context=64.*context_keep"):
        generate(model, *prompts([3, 65]))
    with pytest.raises(HeedfulError, match=r"prompt 0 has 60 tokens and needs 6 .*; lower max_new_tokens"):
        generate(model, *prompts([60, 3]), max_new_tokens=6)
    with pytest.raises(HeedfulError, match=r"prompt 0 has 1 token and needs 99 "):
        generate(model, *prompts([1]), max_new_tokens=99)
    assert generate(model, *prompts([60, 3]), max_new_tokens=5).shape == (2, 65)


class Uncached(DecoderState):
    """Reads everything again at each step."""

    def make_cache(self, steps):
        self.cache = StackCache()

    def prefill(self):
        self.seen, self.seen_real = self.prompt.clamp(min=0), self.prompt >= 0
        if isinstance(self, EncoderDecoderState):
            self.memory = self.model.encode(self.ids, self.real)
        return self.again()

    def step(self, tokens):
        self.seen = torch.cat((self.seen, tokens[:, None]), 1)
        self.seen_real = torch.cat((self.seen_real, torch.ones_like(tokens[:, None], dtype=torch.bool)), 1)
        return self.again()

    def again(self):
        if isinstance(self, EncoderDecoderState):
            return self.last_logits(self.model.decode(self.seen, self.memory, None, self.real))
        return self.last_logits(self.model.hidden(self.seen, self.seen_real))

    def select(self, rows):
        self.seen, self.seen_real = self.seen[rows], self.seen_real[rows]
        if isinstance(self, EncoderDecoderState):
            self.memory = self.memory[rows]
            self.real = None if self.real is None else self.real[rows]

    reorder = select


class UncachedCross(Uncached, EncoderDecoderState):
    pass


@models_and_methods
def test_cached_equals_uncached(pairs, prompts, monkeypatch, name, method):
    model, (ids, mask) = model_of(name, pairs), prompts(LENGTHS)
    cached = decode(model, ids, mask, max_new_tokens=8, **method)
    monkeypatch.setattr("heedful.generation.decoder_state.DecoderState", Uncached)
    monkeypatch.setattr("heedful.generation.decoder_state.EncoderDecoderState", UncachedCross)
    uncached = decode(model, ids, mask, max_new_tokens=8, **method)
    assert torch.equal(cached.ids, uncached.ids)
    assert_close(cached.scores, uncached.scores)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_cross_attention_projects_once_and_finished_rows_leave(pairs, prompts, options):
    model, (ids, mask) = pairs["marian"](0).ours, prompts([9, 2, 6, 1, 9, 4, 3, 5])
    projected, widths = [], []
    block = model.decoder.block[0]
    hooks = [
        block.cross_attention.key.register_forward_hook(lambda part, x, y: projected.append(tuple(y.shape))),
        block.register_forward_hook(lambda part, x, y: widths.append(len(y))),
    ]
    made = decode(model, ids, mask, max_new_tokens=20, **options)
    for hook in hooks:
        hook.remove()
    assert projected == [(8, 9, 16)]
    assert widths[0] == 8
    assert widths[1:] == sorted(widths[1:], reverse=True)
    assert widths[-1] < widths[1]
    assert made.lengths.min() < made.lengths.max()


def test_align():
    ids = torch.tensor([[1, 0, 2, 0], [0, 3, 0, 0]])
    left, real = align(ids, ids > 0, "left")
    assert left.tolist() == [[1, 2], [3, 0]]
    assert real.tolist() == [[True, True], [True, False]]
    assert align(ids, ids > 0, "right")[0].tolist() == [[1, 2], [0, 3]]


def test_dropout_is_off_inside_and_modes_come_back(prompts):
    model = heedful.create("transformer-tiny", seed=0)
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    ids, mask = prompts([5, 3])
    assert torch.equal(generate(model, ids, mask, max_new_tokens=6), generate(model, ids, mask, max_new_tokens=6))
    assert [module.training for module in model.modules()] == modes


def test_ids_may_be_trained_on(prompts):
    model = heedful.create("gpt-micro", seed=0)
    ids = generate(model, *prompts([5, 3]), max_new_tokens=4)
    model(ids).sum().backward()
    assert model.embedding.token.weight.grad is not None


def test_half_precision_scores_in_float32(prompts):
    model = heedful.create("gpt-micro", seed=0).bfloat16()
    assert decode(model, *prompts([5, 3]), max_new_tokens=4, num_beams=2).scores.dtype == torch.float32


def test_models_that_cannot_generate_are_refused():
    with pytest.raises(HeedfulError, match="'encoder' model"):
        generate(heedful.create("bert-tiny"), torch.tensor([[1]]))
    with pytest.raises(HeedfulError, match="'sequence' head"):
        generate(heedful.create("gpt-micro", head="sequence"), torch.tensor([[1]]))
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match="prompt 1 has no tokens"):
        generate(model, torch.tensor([[1], [1]]), torch.tensor([[True], [False]]))
    with pytest.raises(HeedfulError, match="shape"):
        generate(model, torch.tensor([1, 2]))
    with pytest.raises(HeedfulError, match="the mask has shape"):
        generate(model, torch.tensor([[1, 2]]), torch.tensor([[True]]))
