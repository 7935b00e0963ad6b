"""Captured steps, recorded and replayed on a CPU: the tokens are those of steps that are not captured."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_static import COMPILED, ENDS, LENGTHS, METHODS, MODELS, STATIC, assert_same, model_of, prompts

import heedful
from heedful.config import SinusoidalPosition
from heedful.generation import decode, decoding, stream
from heedful.kernels import apply_plan, captured
from heedful.kernels.captured import CapturedSteps
from recorded_step import Captures, recorded_steps

OTHER_LENGTHS = (3, 5, 2, 4)  # as many rows, and fewer columns
LONG_LENGTHS = (30, 70, 2, 66)
OPTIONS = {"max_new_tokens": 12, "logprobs": True}
FOUR = {"max_new_tokens": 4, "min_new_tokens": 4}


@pytest.fixture(autouse=True)
def captures() -> Iterator[Captures]:
    with recorded_steps() as captures:
        yield captures


def marked(name: str) -> Any:
    """A model whose steps are captured, with the weights of ``model_of`` and the kernels of a GPU."""
    model = apply_plan(copy.deepcopy(model_of(name)), "gpu")
    model.captured = CapturedSteps()
    return model


def only_step(model: Any) -> Any:
    (step,) = model.captured._steps.values()
    return step


CASES = [(name, method) for name in MODELS for method in METHODS]
FIRST = [*((name, "greedy") for name in COMPILED), *(("encoder-decoder relative", method) for method in METHODS)]


@pytest.mark.full(keep=len(set(FIRST)))
@pytest.mark.parametrize(("name", "method"), dict.fromkeys([*FIRST, *CASES]))
def test_equals_uncaptured_steps(name: str, method: str, captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and third call replay the graph of the first; longer prompts have a graph of their own."""
    monkeypatch.setattr(decoding, "tokens_between_reads", lambda device: 3)
    model, options = marked(name), OPTIONS | METHODS[method]
    graphs = []
    for lengths in (LENGTHS, OTHER_LENGTHS, LENGTHS, LONG_LENGTHS):
        if max(lengths) > 40 and name.endswith("learned"):
            continue
        expected = decode(model_of(name), *prompts("right", lengths), **options)
        assert_same(decode(model, *prompts("right", lengths), **options), expected)
        graphs.append(len(captures))
    assert graphs[0] == graphs[1] == graphs[2] > 0
    assert captures.replays >= len(graphs)
    assert len(model.captured) == len(captures)


def test_rows_of_another_number_have_a_graph_of_their_own(captures: Captures) -> None:
    model = marked("rotary")
    for rows in (4, 2, 4, 2):
        ids, mask = (tensor[:rows] for tensor in prompts())
        assert_same(decode(model, ids, mask, **FOUR), decode(model_of("rotary"), ids, mask, **FOUR))
    assert len(captures) == 2


def test_a_search_goes_on_when_its_rows_grow(captures: Captures) -> None:
    """The first step has as many beams as the vocabulary has tokens; later steps have 30."""
    for name in ("rotary", "encoder-decoder learned"):
        model, options = marked(name), {"num_beams": 30, "max_new_tokens": 6}
        assert_same(decode(model, *prompts(), **options), decode(model_of(name), *prompts(), **options))
        assert captures.replays == 1
        assert not only_step(model).busy.locked()
        captures.replays = 0


@pytest.mark.parametrize("keep", [12, 5])
def test_a_full_context_is_read_into_the_same_memory(keep: int, captures: Captures) -> None:
    for name in ("learned", "window"):
        options = {"context": 12, "context_keep": keep, "max_new_tokens": 40}
        rows = prompts(lengths=(7, 2, 20, 12))
        assert_same(decode(marked(name), *rows, **options), decode(model_of(name), *rows, **options))


def test_a_table_of_positions_grows_under_a_running_graph(captures: Captures) -> None:
    config = model_of("rotary").config
    config = replace(config, decoder=replace(config.decoder, position=SinusoidalPosition()))
    plain = heedful.create(config, seed=0).eval()
    model = copy.deepcopy(plain)
    model.captured = CapturedSteps()
    ids = prompts()[0]
    expected = list(stream(plain, ids, max_new_tokens=20))
    running = stream(model, ids, max_new_tokens=20)
    first = [next(running) for _ in range(5)]
    assert len(model.decoder.position.table) == 512
    assert any(table is model.decoder.position.table for table in only_step(model)._tables)  # CUDA would free it
    longer = {"max_new_tokens": 600, "suppress_tokens": ENDS}
    assert torch.equal(model.generate(ids[:1], **longer), plain.generate(ids[:1], **longer))
    assert len(model.decoder.position.table) > 512
    assert torch.equal(torch.stack([*first, *running]), torch.stack(expected))


def test_a_stopped_stream_frees_its_graph(captures: Captures) -> None:
    model, rows = marked("alibi"), prompts()
    for end in ("close", "forget"):
        tokens = stream(model, *rows, max_new_tokens=12)
        for _ in range(3):
            next(tokens)
        step = only_step(model)
        assert step.busy.locked()
        if end == "close":
            tokens.close()
        del tokens
        gc.collect()
        assert not step.busy.locked()
        assert_same(decode(model, *rows, **OPTIONS), decode(model_of("alibi"), *rows, **OPTIONS))
    assert len(captures) == 1


def test_a_second_call_runs_uncaptured_beside_a_stream(captures: Captures) -> None:
    model, rows, others = marked("grouped"), prompts(), prompts(lengths=OTHER_LENGTHS)
    expected = list(stream(model_of("grouped"), *rows, max_new_tokens=12))
    running = stream(model, *rows, max_new_tokens=12)
    tokens = [next(running) for _ in range(4)]
    before = captures.replays
    assert_same(decode(model, *others, **OPTIONS), decode(model_of("grouped"), *others, **OPTIONS))
    assert captures.replays == before
    assert torch.equal(torch.stack([*tokens, *running]), torch.stack(expected))
    assert captures.replays > before


def test_threads(captures: Captures) -> None:
    model, plain = marked("rotary"), model_of("rotary")
    calls = [prompts(lengths=lengths) for lengths in (LENGTHS, OTHER_LENGTHS) * 4]
    expected = [decode(plain, *rows, **OPTIONS) for rows in calls]
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = decode(model, *calls[number], **OPTIONS)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, generated in enumerate(expected):
        assert_same(found[number], generated)
    assert len(captures) == 1


def test_methods_that_are_not_captured(captures: Captures) -> None:
    model, plain, rows = marked("rotary"), model_of("rotary"), prompts()
    for options in ({"penalty_alpha": 0.6, "top_k": 4}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": plain}):
        expected = plain.generate(*rows, max_new_tokens=8, **options)
        assert torch.equal(model.generate(*rows, max_new_tokens=8, **options), expected)
    with heedful.record(model, "pattern") as seen:
        model.generate(*rows, max_new_tokens=8)
    assert seen
    calls: list[Any] = []
    hook = model.head.register_forward_hook(lambda module, inputs, output: calls.append(output))
    model.generate(*rows, **FOUR)
    assert len(calls) == 4
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(*rows, max_new_tokens=8)
    assert not captures
    assert_same(decode(model, *rows, **OPTIONS, **STATIC), decode(plain, *rows, **OPTIONS))
    assert captures


def test_moved_or_replaced_weights_are_captured_anew(captures: Captures) -> None:
    model, rows = marked("rotary"), prompts()
    decode(model, *rows, **OPTIONS)
    model.to(torch.float32)
    assert len(model.captured) == 0
    model.to(torch.float64)
    decode(model, *rows, **OPTIONS)
    for parameter in model.parameters():
        parameter.data = parameter.data.flip(0)
    plain = copy.deepcopy(model)
    plain.captured = None
    assert_same(decode(model, *rows, **OPTIONS), decode(plain, *rows, **OPTIONS))
    assert (len(captures), len(model.captured)) == (3, 1)
    apply_plan(model, "plain")
    decode(model, *rows, **OPTIONS)
    assert len(captures) == 4


def test_the_least_recently_used_graph_is_dropped(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_STEPS", 2)
    model, (ids, mask) = marked("rotary"), prompts()
    for rows in (1, 2, 1, 3, 1):
        model.generate(ids[:rows], mask[:rows], **FOUR)
    assert (len(captures), len(model.captured)) == (3, 2)
    model.generate(ids[:2], mask[:2], **FOUR)
    assert len(captures) == 4


def test_copies_begin_without_graphs_and_graphs_go_with_the_model(captures: Captures) -> None:
    model = marked("rotary")
    model.generate(*prompts(), **FOUR)
    assert len(model.captured) == 1
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(other.captured) == 0
        assert "captured=CapturedSteps(graphs=0)" in repr(other)
    buffers = weakref.ref(only_step(model).cache.pairs[0][0].buffers[0])
    captures.clear()
    del model
    gc.collect()
    assert buffers() is None


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted\nmore"), torch.OutOfMemoryError("CUDA")])
def test_a_step_that_cannot_be_captured_is_a_single_warning(
    error: RuntimeError, captures: Captures, caplog: pytest.LogCaptureFixture
) -> None:
    model, rows = marked("rotary"), prompts()
    captures.error = error
    with caplog.at_level(logging.WARNING, "heedful"):
        for _ in range(2):
            assert_same(decode(model, *rows, **OPTIONS), decode(model_of("rotary"), *rows, **OPTIONS))
    reason = str(error).partition("\n")[0]
    assert [record.message for record in caplog.records] == [
        f"decoding runs as with compiled_decoding=False: a step could not be captured ({reason})"
    ]
    assert model.captured.refused != isinstance(error, torch.OutOfMemoryError)  # there may be memory later


def test_nothing_is_captured_on_other_devices() -> None:
    model = heedful.optimize(heedful.create("gpt-micro", seed=0).to("meta"))
    assert (model.captured, model.kernels) == (None, "gpu")


X = torch.linspace(-1, 1, 12).view(3, 4)
ON_META = X.to("meta")
FORBIDDEN = {
    "a number is read": lambda: X.sum().item(),
    "a condition is read": lambda: bool((X > 0).any()),
    "a boolean index": lambda: X[X > 0],
    "a boolean index is written": lambda: X.clone().index_put_((X > 0,), X[0, 0]),
    "positions of what is true": lambda: X.nonzero(),
    "numbers of repetitions": lambda: X.repeat_interleave(torch.tensor([1, 2, 3]), 0),
    "a copy": lambda: X.to("meta"),
    "a new tensor of the host's numbers": lambda: torch.ops.aten.lift_fresh(ON_META),  # what a GPU shows of it
    "an index on another device": lambda: ON_META[torch.tensor([0, 2])],
}
ALLOWED = {
    "products": lambda: X @ X.mT + 1.5,
    "an index": lambda: X[torch.tensor([0, 2])],
    "a number as a tensor": lambda: X * torch.tensor(2.0),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(X[None], X[None], X[None], X @ X.mT > 0),
    "repetition": lambda: X.repeat_interleave(2, 0),
}


@pytest.mark.parametrize("inference", [False, True])
def test_operations_that_a_capture_forbids_are_found_before_it(inference: bool) -> None:
    with torch.inference_mode(inference):
        for function in FORBIDDEN.values():
            with captured.NoHostAccess(), pytest.raises(RuntimeError, match=r"makes the host wait|copies between the"):
                function()
        with captured.NoHostAccess():
            for function in ALLOWED.values():
                function()
        X.sum().item()


def test_a_part_that_reads_from_the_device_is_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    model = marked("rotary")
    forward = model.decoder.norm.forward
    model.decoder.norm.forward = lambda x, *rest: forward(x, *rest) if x.isfinite().all() else x
    assert_same(decode(model, *prompts(), **OPTIONS), decode(model_of("rotary"), *prompts(), **OPTIONS))
    assert "could not be captured (aten._local_scalar_dense.default makes the host wait)" in caplog.text
