"""Several greedy steps in one call of compiled code, beside the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.config import AlibiPosition, RotaryPosition, SinusoidalPosition
from heedful.generation import decode, sampling, stream
from heedful.kernels import few_rows, greedy_steps
from heedful.kernels.few_rows import compiler
from heedful.kernels.greedy_steps import STEPS

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ on Linux)")

ROTARY = RotaryPosition(base=100.0)
IDS = torch.tensor([[9, 14, 33, 7, 52], [8, 30, 11, 47, 5], [55, 6, 24, 13, 38]])
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "llama": {"norm": "rms", "gated": True, "activation": "silu", "position": ROTARY, "kv_heads": 2},
    "sinusoidal": {"position": SinusoidalPosition(), "embedding_norm": True},
    "post-norm": {"placement": "post"},
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of each call."""
    seen: list[int] = []

    def run(operations: Any, call: Any, count: int) -> int:
        seen.append(few_rows.run(operations, call, count))
        return seen[-1]

    monkeypatch.setattr(greedy_steps, "run", run)
    return seen


def create(name: str = "learned", dtype: str = "float32", ends: tuple[int, ...] = ()) -> Any:
    """An optimised decoder whose tokens vary."""
    config = heedful.presets.get("gpt-micro")
    shape: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 4, "ff_dim": 64, **MODELS[name]}
    config = replace(config, decoder=replace(config.decoder, **shape), special=replace(config.special, end=ends))
    model = heedful.create(config, seed=0).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.size(1) ** 0.5 * 2
    return heedful.optimize(model, dtype)


def one_by_one(monkeypatch: pytest.MonkeyPatch, model: Any, ids: Tensor = IDS, **options: Any) -> Any:
    with monkeypatch.context() as patched:
        patched.setattr(sampling, "greedy_steps_of", lambda *_: None)
        return decode(model, ids, logprobs=True, **options)


def assert_same(monkeypatch: pytest.MonkeyPatch, model: Any, ids: Tensor = IDS, **options: Any) -> Any:
    found = decode(model, ids, logprobs=True, **options)
    expected = one_by_one(monkeypatch, model, ids, **options)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.lengths, expected.lengths)
    # sums in another order may round a row to the next of 8 bits, or a key to the next of bfloat16
    most = 0.05 if model.optimised in ("int8", "int4") else 5e-6
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=most)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=most)
    return found


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_probabilities_are_those_of_single_steps(
    name: str, dtype: str, rows: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = assert_same(monkeypatch, create(name, dtype), IDS[:rows], max_new_tokens=21)
    assert steps == [STEPS, STEPS, 20 - 2 * STEPS]
    assert len(set(found.ids[0, 5:].tolist())) >= 3


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_end_within_a_call(rows: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends with its last row; rows that have ended before leave after it."""
    free = one_by_one(monkeypatch, create(), IDS[:rows], max_new_tokens=40).ids[:, 5:]
    ends = tuple({int(row[5 + 3 * number]) for number, row in enumerate(free)})
    found = assert_same(monkeypatch, create(ends=ends), IDS[:rows], max_new_tokens=40)
    assert found.lengths.max() < 45
    assert sum(steps) < 3 * STEPS
    least = assert_same(monkeypatch, create(ends=ends), IDS[:rows], max_new_tokens=40, min_new_tokens=19)
    assert least.lengths.min() >= 5 + 19
    many = tuple(range(20, 20 + greedy_steps.MOST_ENDS + 1))
    del steps[:]
    assert_same(monkeypatch, create(ends=many), IDS[:rows], max_new_tokens=20)
    assert steps == []


def test_rows_with_limits_of_their_own(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, mask = create("llama"), torch.ones_like(IDS, dtype=torch.bool)
    mask[1, :2] = False
    assert_same(monkeypatch, model, IDS, mask=mask, max_length=20)  # padding: step by step
    assert steps == []
    assert_same(monkeypatch, model, IDS, max_length=20, num_return_sequences=1)
    assert sum(steps) == 14


@pytest.mark.parametrize("context", [16, 30])
def test_a_text_longer_than_the_context(context: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(monkeypatch, create(), IDS, max_new_tokens=90, context=context)
    assert max(steps) == STEPS


def test_a_cache_that_has_to_grow(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.generation.decoder_state import DecoderState

    own = DecoderState.make_cache
    monkeypatch.setattr(DecoderState, "make_cache", lambda self, count: own(self, None))
    assert_same(monkeypatch, create("llama"), IDS, max_new_tokens=60)
    assert STEPS in steps


def test_capped_logits_are_left_to_single_steps(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = create("llama")
    model.head.cap = 0.5
    found = assert_same(monkeypatch, model, IDS, max_new_tokens=20)
    assert steps == []
    assert found.logprobs.min() > -6  # 65 tokens, whose logits differ by 1 at most


def by_a_hook(model: Any) -> None:
    model.head.register_forward_hook(lambda part, inputs, y: -y)


def by_a_hook_of_the_table(model: Any) -> None:
    model.embedding.token.register_forward_hook(lambda part, inputs, y: -y)


def of_the_head(model: Any) -> None:
    model.head.output = few_rows.CompiledLinear(model.head.output.linear_class, -model.head.output.weight)


def of_the_embedding(model: Any) -> None:
    model.embedding.token.weight = nn.Parameter(model.embedding.token.weight.detach().flip(0), requires_grad=False)


def of_the_embedding_s_data(model: Any) -> None:
    model.embedding.token.weight.data = model.embedding.token.weight.data.flip(0).contiguous()


def in_place(model: Any) -> None:
    model.embedding.token.weight.data.neg_()


@pytest.mark.parametrize(
    "change", [by_a_hook, by_a_hook_of_the_table, of_the_head, of_the_embedding, of_the_embedding_s_data, in_place]
)
def test_a_changed_model(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = create()
    before = decode(model, IDS, max_new_tokens=20).ids
    change(model)
    assert not torch.equal(assert_same(monkeypatch, model, max_new_tokens=20).ids, before)


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.5}, {"do_sample": True, "seed": 0}, {"num_beams": 2}, {"no_repeat_ngram_size": 2}],
)
def test_other_methods_go_step_by_step(options: dict[str, Any], steps: list[int]) -> None:
    decode(create(), IDS, max_new_tokens=12, **options)
    assert steps == []


def test_a_stream_and_a_recording_go_step_by_step(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = create("llama")
    streamed = [tokens.tolist() for tokens in stream(model, IDS, max_new_tokens=12)]
    with heedful.record(model, "stream") as seen:
        recorded = model.generate(IDS, max_new_tokens=12)
    assert steps == []
    assert seen
    assert model.generate(IDS, max_new_tokens=12)[:, 5:].T.tolist() == streamed == recorded[:, 5:].T.tolist()
    assert steps


def test_other_positions_go_step_by_step(steps: list[int]) -> None:
    config = heedful.presets.get("gpt-micro")
    changed = replace(config, decoder=replace(config.decoder, position=AlibiPosition()))
    heedful.optimize(heedful.create(changed, seed=0)).generate(IDS, max_new_tokens=12)
    assert steps == []


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 1024, 1025, 5000])
@pytest.mark.parametrize("forbids", [False, True])
def test_the_best_logit_and_its_probability(count: int, forbids: bool) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = torch.randn(7, count, generator=generator) * 4
    logits[1, count // 2] = logits[1, -1] = 30  # the first of equal ones
    logits[2, count // 3] = float("nan")
    logits[3] = -logits[3].abs()
    logits[4, -1] = float("inf")
    logits[5, :-1] = -float("inf")
    logits[6, 0] = 50
    scratch, tokens, log_p = logits.clone(), torch.zeros(2, 7, dtype=torch.int64), torch.zeros(7)
    ends, ended = torch.tensor([0, count - 1]), torch.zeros(2, 7, dtype=torch.uint8)
    call = few_rows.Call(
        rows=7,
        threads=1,
        scratch=scratch.data_ptr(),
        tokens=tokens.data_ptr(),
        log_p=log_p.data_ptr(),
        ends=ends.data_ptr(),
        end_count=2,
        without_end=int(forbids),
        has_ended=ended.data_ptr(),
    )
    assert few_rows.run((few_rows.Operation * 1)(few_rows.Operation(kind=few_rows.CHOOSE, inputs=count)), call) == 1
    allowed = logits.clone()
    if forbids:
        allowed[:, ends] = -float("inf")
    expected = allowed.argmax(1)  # NaN before all others
    usable = ~logits.isinf().any(1) & (allowed > -float("inf")).any(1) & ~logits.isnan().any(1)
    assert torch.equal(tokens[1][usable], expected[usable])
    wanted = logits.double().log_softmax(1).gather(1, expected[:, None])[:, 0].float()
    torch.testing.assert_close(log_p[usable], wanted[usable], rtol=1e-6, atol=2e-6)
    assert log_p[2].isnan()
    if not forbids or count > 2:
        assert tokens[1][2] == expected[2]
    assert torch.equal(ended[1].bool(), (tokens[1] == 0) | (tokens[1] == count - 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    model = create("llama")
    expected = decode(model, IDS, max_new_tokens=12).scores
    streamed = [tokens.tolist() for tokens in stream(model, IDS, max_new_tokens=12)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.testing.assert_close(decode(model, IDS, max_new_tokens=12).scores, expected)
        assert [tokens.tolist() for tokens in stream(model, IDS, max_new_tokens=12)] == streamed
    finally:
        torch.set_default_dtype(before)


def test_nan_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    model = create()
    model.decoder.norm.bias.data[3] = float("nan")
    assert decode(model, IDS[:1], max_new_tokens=12).scores.isnan().all()
