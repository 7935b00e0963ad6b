"""Slots: rows that join and leave at any step get the tokens of ``decode``, and with ``exact`` the same bits always."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from ending_models import ENDS, tiny_model

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation.options import resolve
from heedful.generation.slots import SlotDecoder, SlotRow, SlotToken
from heedful.kernels.captured import CapturedSteps
from heedful.kernels.compiled_step import reads_prompts
from heedful.kernels.few_rows import MOST_ROWS, compiler
from heedful.kernels.greedy_steps import STEPS, GreedySteps
from heedful.models.base import Model
from recorded_step import recorded_steps

MODELS: dict[str, dict[str, Any]] = {
    **{name: {"position": name} for name in ("learned", "sinusoidal", "rotary", "alibi", "relative")},
    "grouped": {"position": "rotary", "kv_heads": 2, "gated": True, "activation": "silu", "norm": "rms"},
    "grouped alibi": {"position": "alibi", "kv_heads": 1},
    "window": {"position": "rotary", "window": 21},
    "window relative": {"position": "relative", "window": 40, "kv_heads": 2},
    "windows": {"position": "learned", "window": (21, None)},
}
KERNELS: dict[str, tuple[str, bool]] = {
    "float32": ("float32", False),
    "bfloat16": ("bfloat16", False),
    "int8": ("int8", False),
    "int4": ("int4", False),
    "compiled float32": ("float32", True),
    "compiled bfloat16": ("bfloat16", True),
    "compiled int8": ("int8", True),
}
VOCAB = 301
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs g++")
OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 6},
    {"presence_penalty": 0.6, "frequency_penalty": 0.3},
    {"bad_words_ids": [[9], [7, 8]], "suppress_tokens": [12]},
    {"begin_suppress_tokens": [20, 21], "min_length": 20},
    {"encoder_no_repeat_ngram_size": 2, "forced_eos_token_id": 11},
    {"do_sample": True},
    {"do_sample": True},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.4, "top_p": 0.8, "repetition_penalty": 1.2},
    {"min_p": 0.05},
    {"typical_p": 0.7},
]


@cache
def model_of(name: str, kernels: str = "", end_factor: float = 3) -> Model:
    model = tiny_model(VOCAB, learned=300, end_factor=end_factor, dim=64, init_std=0.2, **MODELS[name])
    if not kernels:
        return model.double()
    dtype, compiled_decoding = KERNELS[kernels]
    return heedful.optimize(model, dtype, compiled_decoding=compiled_decoding)


class Request(NamedTuple):
    ids: list[int]
    options: dict[str, Any]
    limit: int
    top: int | None
    prompt_logprobs: bool = False


def requests(count: int) -> list[Request]:
    rng = random.Random(0)
    made = []
    for number in range(count):
        options = {**OPTIONS[number % len(OPTIONS)]}
        if resolve(options).do_sample:
            options["seed"] = rng.randrange(5)
        limit = rng.choice((1, 8, 20, 40))
        if "min_new_tokens" in options:
            options["min_new_tokens"] = min(options["min_new_tokens"], limit)
        length = rng.choice((1, 2, 15, 16, 17, 60, 64, 65, 130)) if number % 3 else rng.randrange(1, 150)
        ids = [rng.randrange(12, VOCAB) for _ in range(length)]
        made.append(Request(ids, options, limit, rng.choice((0, 0, 3))))
    return made


def joined(decoder: SlotDecoder, request: Request) -> SlotRow:
    options = {"top_logprobs": request.top, "prompt_logprobs": request.prompt_logprobs}
    return decoder.join(request.ids, resolve(request.options), limit=request.limit, **options)


def alone(decoder: SlotDecoder, request: Request) -> list[tuple[Any, ...]]:
    row = joined(decoder, request)
    tokens = [token[1:] for tokens in steps(decoder) for token in tokens if token.row is row]
    return with_prompt(row, tokens)


def with_prompt(row: SlotRow, tokens: list[Any]) -> list[Any]:
    return tokens if row.prompt_logprobs is None else [*tokens, row.prompt_logprobs]


def steps(decoder: SlotDecoder) -> Iterator[list[SlotToken]]:
    while decoder.rows:
        yield decoder.step()


def among_others(model: Model, wanted: list[Request], **settings: Any) -> list[list[tuple[Any, ...]]]:
    """Results of the requests, which join at random steps among others that join and leave at random."""
    rng, decoder = random.Random(1), SlotDecoder(model, **settings)
    results: dict[SlotRow, list[tuple[Any, ...]]] = {}
    others: list[SlotRow] = []
    left = list(wanted)
    while left or decoder.rows:
        while decoder.free and rng.random() < 0.8:
            if left and rng.random() < 0.5:
                results[joined(decoder, left.pop(0))] = []
            elif left:
                others.append(joined(decoder, wanted[rng.randrange(len(wanted))]))
        for token in decoder.step():
            if token.row in results:
                results[token.row].append(token[1:])
        if others and rng.random() < 0.4:
            decoder.leave(others.pop(rng.randrange(len(others))))
    assert decoder.free == decoder.slots
    return [with_prompt(row, tokens) for row, tokens in results.items()]


# ------------------------------------------------------------------------------------- the tokens of ``decode``


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_decode(name: str) -> None:
    model, wanted = model_of(name), requests(len(OPTIONS))
    rows = among_others(model, wanted, slots=5, capacity=200)
    lengths = set()
    for request, row in zip(wanted, rows, strict=True):
        options = request.options | {"max_new_tokens": request.limit}
        expected = decode(model, torch.tensor([request.ids]), logprobs=True, **options)
        new = slice(len(request.ids), None)
        assert [token for token, *_ in row] == expected.ids[0, new].tolist()
        assert [logprob for _, logprob, *_ in row] == pytest.approx(expected.logprobs[0, new].tolist(), abs=1e-9)
        assert [is_last for *_, is_last in row] == [False] * (len(row) - 1) + [True]
        lengths.add(len(row) < request.limit)
    assert lengths == {False, True}  # some rows end by an end token


# ------------------------------------------------------------------------------------------------- the same bits

GRID = [(*names, threads, 32) for threads in (1, 2) for names in product(MODELS, KERNELS)]
FIRST = [(name, "float32", 1 + number % 2, 32) for number, name in enumerate(MODELS)]
FIRST += [("grouped", kernels, 1, slots) for kernels in KERNELS for slots in (32, 6)]


@pytest.mark.parametrize(("name", "kernels", "threads", "slots"), dict.fromkeys([*FIRST, *GRID]))
@pytest.mark.full(keep=len(FIRST))
def test_the_same_bits_alone_and_among_others(
    name: str, kernels: str, threads: int, slots: int, request: pytest.FixtureRequest
) -> None:
    if kernels.startswith("compiled") and compiler() is None:
        pytest.skip("needs g++")
    count = len(OPTIONS)
    if request.config.getoption("--full"):
        count = 200 if (name, kernels, threads, slots) in FIRST else 40
    torch.set_num_threads(threads)
    assert rows_that_differ(name, kernels, slots, count) == []


def rows_that_differ(name: str, kernels: str, slots: int, count: int) -> list[tuple[Any, ...]]:
    """Returns the requests whose results, alone and among others, are not the same bits, with both."""
    model, settings = model_of(name, kernels), {"slots": slots, "capacity": 200, "exact": True}
    wanted = [one._replace(prompt_logprobs=number % 4 == 1) for number, one in enumerate(requests(count))]
    rows, decoder = among_others(model, wanted, **settings), SlotDecoder(model, **settings)
    pairs = [(one, row, alone(decoder, one)) for one, row in zip(wanted, rows, strict=True)]
    return [pair for pair in pairs if pair[1] != pair[2]]


# switches of the libraries that multiply, which give this processor the kernels of others
PROCESSORS = ["ONEDNN_MAX_CPU_ISA=AVX2", "MKL_CBWR=COMPATIBLE", "MKL_CBWR=AVX2", "ATEN_CPU_CAPABILITY=avx2"]
OTHER_PROCESSOR = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import torch
from test_slots import rows_that_differ
torch.set_num_threads(int(sys.argv[2]))
for name, kernels, slots in json.loads(sys.argv[3]):
    print(name, kernels, slots, len(rows_that_differ(name, kernels, slots, 12)))
"""


@pytest.mark.parametrize(("threads", "processor"), list(product((2, 1), PROCESSORS)))
@pytest.mark.full(keep=2)
def test_the_same_bits_on_other_processors(threads: int, processor: str) -> None:
    name, _, value = processor.partition("=")
    environment = {**os.environ, name: value, "OMP_NUM_THREADS": str(threads)}
    cases = [("rotary", "float32", 32), ("alibi", "float32", 6), ("grouped", "int8", 32), ("window", "", 6)]
    arguments = [json.dumps(sys.path), str(threads), json.dumps(cases)]
    command = [sys.executable, "-c", OTHER_PROCESSOR, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    expected = [f"{name} {kernels} {slots} 0" for name, kernels, slots in cases]
    assert done.stdout.splitlines() == expected, done.stderr


def test_refuses_kernels_whose_bits_depend_on_the_place_of_a_row() -> None:
    model = copy.deepcopy(model_of("rotary"))
    part = model.decoder.block[1].feed_forward
    part.register_forward_hook(lambda _, inputs, output: output + 1e-9 * torch.arange(len(output))[:, None, None])
    with pytest.raises(HeedfulError, match=r"exact is not possible.* number of threads .* leave exact out"):
        SlotDecoder(model, slots=3, capacity=50, exact=True)
    assert SlotDecoder(model, slots=3, capacity=50).free == 3


def test_refuses_kernels_whose_last_bits_are_rounded_away_in_most_steps() -> None:
    """Attention whose rows differ by their place, in a model that rounds what attention returns to int8."""
    model = model_of.__wrapped__("rotary", "int8")  # an own one

    def depends_on_place(_: Any, inputs: Any) -> torch.Tensor:
        y = inputs[0]  # (R, 1, D)
        is_small = y.abs() < y.abs().amax(2, keepdim=True) / 2  # the largest number of a row scales all of them
        return torch.where(is_small, y * (1 + 2e-7 * torch.arange(len(y))[:, None, None]), y)

    model.decoder.block[0].attention.out.register_forward_pre_hook(depends_on_place)
    with pytest.raises(HeedfulError, match="exact is not possible"):
        SlotDecoder(model, slots=3, capacity=50, exact=True)


def test_numbers_of_rows_are_those_that_a_part_computes_alike() -> None:
    """A part that rounds otherwise in blocks that are not full, as many kernels do."""
    model = model_of.__wrapped__("rotary", "bfloat16")  # an own one

    def rounds(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        full = len(output) // 4 * 4
        return torch.cat((output[:full], output[full:] * 1.1))

    model.decoder.block[0].feed_forward.register_forward_hook(rounds)
    decoder = SlotDecoder(model, slots=6, capacity=50, exact=True)
    sizes = []
    model.head.register_forward_hook(lambda _, inputs, output: sizes.append(len(output)))
    rows = [decoder.join([20 + number], resolve({}), limit=2) for number in range(5)]
    assert decoder.free == 1
    for _ in steps(decoder):
        pass
    assert sizes == [8, 8]
    assert len({len(row.tokens) for row in rows}) == 1


@pytest.mark.parametrize("kernels", ["float32", "compiled float32"])
def test_the_same_bits_in_a_step_of_more_rows_than_compiled_kernels_compute_by_default(kernels: str) -> None:
    if kernels.startswith("compiled") and compiler() is None:
        pytest.skip("needs g++")
    slots = max(MOST_ROWS[torch.float32]) + 6
    wanted = [Request([20 + number], {"suppress_tokens": ENDS}, 6, 0) for number in range(slots)]
    same_alone_and_together(model_of("grouped", kernels), wanted, every=9)


def test_the_same_bits_with_a_large_vocabulary() -> None:
    """PyTorch splits a sum over the vocabulary of a single row among threads, but not one of several rows."""
    torch.set_num_threads(2)
    model = tiny_model(70_000, learned=300, end_factor=0, dim=16, init_std=0.2, position="rotary")
    wanted = [Request([20 + number], {"typical_p": 0.7, "seed": 1}, 12, 0) for number in range(12)]
    same_alone_and_together(model, wanted, every=4)


def same_alone_and_together(model: Model, wanted: list[Request], every: int = 1) -> None:
    settings: dict[str, Any] = {"slots": len(wanted), "capacity": 32, "exact": True, "chunk": len(wanted)}
    decoder = SlotDecoder(model, **settings)
    results: dict[SlotRow, list[tuple[Any, ...]]] = {joined(decoder, request): [] for request in wanted}
    for token in (token for tokens in steps(decoder) for token in tokens):
        results[token.row].append(token[1:])
    for request, row in list(zip(wanted, results.values(), strict=True))[::every]:
        assert row == alone(decoder, request)


@pytest.mark.parametrize("kernels", ["float32", "compiled int8"])
def test_a_slot_keeps_nothing_of_its_former_row(kernels: str) -> None:
    """Infinite keys and values of a row that has left would make all others NaN: 0 · ∞."""
    if kernels.startswith("compiled") and compiler() is None:
        pytest.skip("needs g++")
    model, settings = model_of("grouped", kernels), {"slots": 3, "capacity": 200, "exact": True}
    long, short = (Request(list(range(20, 20 + n)), {}, 20, 0) for n in (100, 10))
    decoder = SlotDecoder(model, **settings)
    rows = [joined(decoder, long) for _ in range(3)]
    for _ in range(8):
        decoder.step()
    with torch.inference_mode():
        for buffer in (buffer for pair in decoder._cache.buffers for buffer in pair):
            buffer[1, :, : rows[1].length] = float("inf")
    decoder.leave(rows[1])
    row = joined(decoder, short)
    tokens = [token[1:] for tokens in steps(decoder) for token in tokens if token.row is row]
    assert tokens == alone(SlotDecoder(model, **settings), short)


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "grouped alibi", "window relative"])
def test_a_captured_step_serves_all_rows(name: str) -> None:
    """As on a GPU: a step always computes all slots, in the same memory and without waiting for the device."""
    with recorded_steps() as captures:
        model = copy.deepcopy(model_of(name))
        model.captured = CapturedSteps()
        wanted = requests(len(OPTIONS))
        rows = among_others(model, wanted, slots=5, capacity=200)
    assert len(captures) == 1
    assert captures.replays > 20
    for request, row in zip(wanted, rows, strict=True):
        ids = torch.tensor([request.ids])
        expected = decode(model_of(name), ids, **request.options, max_new_tokens=request.limit)
        assert [token for token, *_ in row] == expected.ids[0, len(request.ids) :].tolist()


@pytest.mark.parametrize("kernels", ["compiled float32", "compiled int8"])
@pytest.mark.parametrize("name", ["learned", "sinusoidal", "rotary", "grouped", "grouped alibi", "window"])
@needs_compiler
def test_several_tokens_in_a_call_are_those_of_single_steps(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows join and leave at any call, and end by an end token or their limit; a call ends with the first of them."""
    model, rng, counts = model_of(name, kernels, 1), random.Random(2), []
    flips = 0 if kernels == "compiled float32" else 2
    in_slots = GreedySteps.in_slots

    def counted(*arguments: Any) -> Any:
        counts.append(len(chosen := in_slots(*arguments)))
        return chosen

    monkeypatch.setattr(GreedySteps, "in_slots", counted)
    prompts = [[rng.randrange(12, VOCAB) for _ in range(rng.randrange(1, 40))] for _ in range(9)]
    plain = [Request(ids, {}, 1 + 7 * number, None) for number, ids in enumerate(prompts)]
    others = [Request([30, 31], {"do_sample": True, "seed": 1}, 2, None), Request([40], {}, 2, 1)]

    def answers(most: int) -> dict[int, list[int]]:
        decoder, left, found = SlotDecoder(model, slots=4, capacity=120), [*plain, *others], {}
        while left or decoder.rows:
            while left and decoder.free:
                found[len(found)] = joined(decoder, left.pop(0)).tokens
            ended = [token.row for token in decoder.step(most) if token.is_last]
            assert len(ended) == len(set(ended))
            assert not set(ended) & set(decoder.rows)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(model, "config", replace(model.config, special=replace(model.config.special, end=())))
        free = answers(1)
        assert counts == []
        assert alike(answers(100), free, flips)
    if name in ("grouped alibi", "window"):
        assert counts == []  # step by step
    else:
        assert max(counts) == STEPS
        assert len(set(counts)) > 2  # with the first row that reaches its limit
    ends = tuple({*free[8][20::15], *free[5][9::15]})
    monkeypatch.setattr(model, "config", replace(model.config, special=replace(model.config.special, end=ends)))
    single = answers(1)
    assert any(tokens[-1] in ends and tokens != free[number] for number, tokens in single.items())
    assert alike(answers(100), single, flips)


def alike(ours: dict[int, list[int]], theirs: dict[int, list[int]], most: int) -> bool:
    """True if the answers are equal, but for a few in which a near-tie of rounded numbers falls the other way."""
    return ours.keys() == theirs.keys() and sum(ours[number] != theirs[number] for number in ours) <= most


# ------------------------------------------------------------------------------------------------- joining, leaving


PROMPTS = [pytest.param("", id="apart"), pytest.param("compiled float32", id="in the step", marks=needs_compiler)]


@pytest.mark.parametrize("kernels", PROMPTS)
def test_a_long_prompt_delays_the_others_by_a_chunk(kernels: str) -> None:
    decoder = SlotDecoder(model_of("rotary", kernels), slots=4, capacity=400, chunk=16)
    first = decoder.join([20, 21], resolve({"suppress_tokens": ENDS}), limit=30)
    decoder.step()
    long = decoder.join(list(range(20, 120)), resolve({}), limit=2)
    short = decoder.join([30], resolve({}), limit=1)
    assert decoder.rows == [first, long, short]
    assert decoder.free == 1
    for number in range(
        6 if reads_prompts(decoder.model.decoder) else 5
    ):  # 100 tokens in six whole parts and a rest, or 99 in six equal ones
        assert [token.row for token in decoder.step()] == [first], number
    assert [token.row for token in decoder.step()] == [first, long, short]


@pytest.mark.parametrize("name", ["rotary", "window", "window relative", "grouped alibi"])
@needs_compiler
def test_prompts_are_read_in_the_compiled_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no other call reads them; a part that is hooked runs as written, also over rows that share a slot."""
    model = model_of(name, "compiled float32")
    if not reads_prompts(model.decoder):
        pytest.skip("on this processor compiled steps are for few rows, and prompts are read apart")
    wanted = requests(12)
    apart = SlotDecoder(model, slots=5, capacity=200)
    apart._is_joint = False
    expected = [alone(apart, request) for request in wanted]
    with monkeypatch.context() as patch:
        patch.setattr(SlotDecoder, "_read", None)
        rows = among_others(model, wanted, slots=5, capacity=200, chunk=23)
        hook = model.decoder.block[0].feed_forward.register_forward_hook(lambda *_: None)
        hooked = among_others(model, wanted, slots=5, capacity=200, chunk=23)
    hook.remove()
    for row, other, tokens in zip(rows, hooked, expected, strict=True):
        assert [token for token, *_ in row] == [token for token, *_ in other] == [token for token, *_ in tokens]


def test_several_short_prompts_are_read_in_a_step() -> None:
    decoder = SlotDecoder(model_of("rotary"), slots=9, capacity=100, chunk=64)
    rows = [decoder.join([20] * 20, resolve({}), limit=9) for _ in range(5)]
    assert [token.row for token in decoder.step()] == rows[:3]
    assert [row.is_live for row in rows] == [True, True, True, False, False]


@pytest.mark.parametrize("kernels", PROMPTS)
@pytest.mark.parametrize("when", [0, 1, 2, 3, 9])
def test_a_row_leaves_while_its_prompt_is_read_and_later(when: int, kernels: str) -> None:
    model = model_of("learned", kernels)
    decoder = SlotDecoder(model, slots=2, capacity=200, chunk=32)
    other = decoder.join([20, 21, 22], resolve({"suppress_tokens": ENDS}), limit=30)
    row = decoder.join(list(range(20, 100)), resolve({"suppress_tokens": ENDS}), limit=30)
    for _ in range(when):
        decoder.step()
    decoder.leave(row)
    decoder.leave(row)  # it has left
    assert decoder.free == 1
    assert decoder.rows == [other]
    again = decoder.join([25] * 9, resolve({}), limit=3)
    for _ in steps(decoder):
        pass
    for done, limit in ((other, 30), (again, 3)):
        options = {"suppress_tokens": ENDS} if done is other else {}
        expected = decode(model, torch.tensor([done.ids]), max_new_tokens=limit, **options).ids[0]
        assert done.ids + done.tokens == expected.tolist()[: len(done.ids) + len(done.tokens)]


@pytest.mark.parametrize("kernels", PROMPTS)
def test_a_row_leaves_while_the_prompt_of_another_is_read(kernels: str) -> None:
    model, ids = model_of("learned", kernels), list(range(20, 100))
    decoder = SlotDecoder(model, slots=4, capacity=200, chunk=32)
    others = [decoder.join([20 + number], resolve({"suppress_tokens": ENDS}), limit=40) for number in range(2)]
    decoder.step()
    row = decoder.join(ids, resolve({"suppress_tokens": ENDS}), limit=9)
    decoder.step()
    decoder.leave(others[0])
    for _ in steps(decoder):
        pass
    expected = decode(model, torch.tensor([ids]), max_new_tokens=9, suppress_tokens=ENDS).ids[0]
    assert ids + row.tokens == expected.tolist()


def test_samples_of_one_prompt_are_those_of_num_return_sequences() -> None:
    model, ids, options = model_of("alibi"), [20, 30, 40], {"do_sample": True, "seed": 4}
    decoder = SlotDecoder(model, slots=3, capacity=60)
    rows = [decoder.join(ids, resolve(options), limit=12, sample=sample) for sample in range(3)]
    for _ in steps(decoder):
        pass
    expected = decode(model, torch.tensor([ids]), num_return_sequences=3, max_new_tokens=12, **options)
    for row, tokens, length in zip(rows, expected.ids, expected.lengths, strict=True):
        assert ids + row.tokens == tokens[:length].tolist()


def test_most_probable_tokens() -> None:
    model, ids = model_of("sinusoidal"), [20, 30, 40]
    decoder = SlotDecoder(model, slots=3, capacity=60)
    decoder.join(ids, resolve({"suppress_tokens": [50]}), limit=1, top_logprobs=4)
    decoder.join(ids, resolve({}), limit=1, top_logprobs=0)
    decoder.join(ids, resolve({}), limit=1)
    first, second, third = decoder.step()
    with torch.inference_mode():
        logprobs, tokens = model(torch.tensor([ids]))[0, -1].log_softmax(0).topk(4)
    assert [token for token, _ in first.top] == tokens.tolist()
    assert [logprob for _, logprob in first.top] == pytest.approx(logprobs.tolist())
    assert second.logprob == pytest.approx(float(logprobs[0]))
    assert second.top == []
    assert third.logprob is None
    assert third.top == []


def test_learned_positions_end_a_row() -> None:
    decoder = SlotDecoder(model_of("learned"), slots=2, capacity=1000)
    row = decoder.join([20] * 295, resolve({"suppress_tokens": ENDS}), limit=100)
    for _ in steps(decoder):
        pass
    assert row.limit == len(row.tokens) == 6
    assert decoder.capacity == 300
    with pytest.raises(HeedfulError, match="300 learned positions"):
        decoder.join([20] * 301, resolve({}), limit=1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"context_keep": 8}, "context_keep"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences"),
    ],
)
def test_options_that_no_slot_has(options: dict[str, Any], name: str) -> None:
    decoder = SlotDecoder(model_of("learned"), slots=2, capacity=50)
    assert not decoder.takes(resolve(options))
    with pytest.raises(HeedfulError, match=f"{name}=.* does not work in slots"):
        decoder.join([20], resolve(options), limit=3)
    assert decoder.free == 2


def test_requests_that_do_not_fit_are_refused() -> None:
    decoder = SlotDecoder(model_of("rotary"), slots=1, capacity=50)
    with pytest.raises(HeedfulError, match="has 30 tokens and may get 22 more, but a slot has room for 50"):
        decoder.join([20] * 30, resolve({}), limit=22)
    with pytest.raises(HeedfulError, match="min_new_tokens=9, but only 4"):
        decoder.join([20], resolve({"min_new_tokens": 9}), limit=4)
    with pytest.raises(HeedfulError, match="limit is 0; give 1 or more"):
        decoder.join([20], resolve({}), limit=0)
    for name in ("forced_bos_token_id", "forced_eos_token_id"):  # not in a step, which ends all rows
        with pytest.raises(HeedfulError, match=f"{name} is 999, but the model has 301 tokens"):
            decoder.join([20], resolve({name: 999}), limit=4)
    decoder.join([20] * 30, resolve({}), limit=21)
    with pytest.raises(HeedfulError, match="all 1 slots are taken"):
        decoder.join([20], resolve({}), limit=4)


def test_models_without_slots() -> None:
    with pytest.raises(HeedfulError, match="an encoder-decoder decodes whole batches with generate"):
        SlotDecoder(heedful.create("transformer-tiny", seed=0), slots=1, capacity=50)
    with pytest.raises(HeedfulError, match="cannot generate"):
        SlotDecoder(heedful.create("bert-tiny", seed=0), slots=1, capacity=50)
    with pytest.raises(HeedfulError, match="slots is 0"):
        SlotDecoder(model_of("rotary"), slots=0, capacity=50)


def test_a_recorded_model_makes_no_step() -> None:
    model = heedful.create("gpt-micro", seed=0)
    decoder = SlotDecoder(model, slots=1, capacity=50)
    decoder.join([1], resolve({}), limit=4)
    with pytest.raises(HeedfulError, match="do not work in slots"), heedful.record(model):
        decoder.step()
    assert len(decoder.step()) == 1


@pytest.mark.parametrize("kernels", PROMPTS)
@pytest.mark.parametrize("name", ["learned", "rotary", "alibi", "relative", "window"])
def test_log_probabilities_of_a_prompt(name: str, kernels: str) -> None:
    model = tiny_model(VOCAB, learned=128, end_factor=1.0, dim=16, **MODELS[name])
    if kernels:
        heedful.optimize(model)
    decoder = SlotDecoder(model, slots=2, capacity=128, chunk=16)
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in (1, 16, 17, 50)]
    for ids in rows:
        logits: list[int] = []
        own = model.head.forward

        def head(hidden: torch.Tensor, own: Any = own, sizes: list[int] = logits) -> Any:
            sizes.append(hidden.size(1))
            return own(hidden)

        alone = decoder.join(ids, resolve({}), limit=1)
        while decoder.rows:
            (plain,) = decoder.step() or (None,)
        assert alone.prompt_logprobs is None
        model.head.forward = head
        row = decoder.join(ids, resolve({}), limit=1, top_logprobs=2, prompt_logprobs=True)
        while decoder.rows:
            (token,) = decoder.step() or (None,)
        del model.head.forward
        assert token.token == plain.token
        assert max(logits) <= 24  # the logits of a chunk at a time
        with torch.no_grad():
            expected = model(torch.tensor([ids])).log_softmax(2)[0, :-1]
        found = row.prompt_logprobs
        assert found is not None
        assert len(found) == len(ids) - 1
        for (logprob, top), number, own_row in zip(found, ids[1:], expected, strict=True):
            assert logprob == pytest.approx(float(own_row[number]), abs=1e-5)
            assert [value for _, value in top] == pytest.approx(own_row.topk(2).values.tolist(), abs=1e-5)
            assert [float(own_row[other]) for other, _ in top] == pytest.approx([value for _, value in top], abs=1e-5)
