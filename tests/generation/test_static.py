"""``cache_implementation="static"``: the tokens, lengths, scores and log-probabilities of the growing cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from ending_models import ENDS, POSITIONS, tiny_model
from torch import Tensor

import heedful
from heedful.cache import Cache
from heedful.errors import HeedfulError
from heedful.generation import Generated, decode, decoding, stream
from heedful.generation.decoder_state import create_state
from heedful.generation.options import resolve
from heedful.generation.static import StaticStep
from heedful.generation.token_choice import choose
from heedful.kernels import using
from heedful.kernels.fixed_cache import StaticCache
from heedful.layers import prefix_mask
from heedful.models.base import Model
from relative_schemes import CONTENT
from tolerances import assert_close

MODELS: dict[str, dict[str, Any]] = {
    **{name: {"position": name} for name in ("learned", *POSITIONS)},
    "grouped": {"position": "rotary", "kv_heads": 2},
    "grouped alibi": {"position": "alibi", "kv_heads": 1},
    "norms over all heads": {"position": "rotary", "kv_heads": 2, "qk_norm": "all", "placement": "out"},
    "capped": {"position": "rotary", "kv_heads": 2, "score_cap": 1.0, "norm": "rms-offset", "window": (5, None)},
    "window": {"position": "rotary", "window": 5},
    "window relative": {"position": "relative", "window": 4, "kv_heads": 2},
    "windows": {"position": "rotary", "window": (5, None), "kv_heads": 2},
    "windows alibi": {"position": "alibi", "window": (None, 4)},
    "encoder-decoder learned": {"position": "learned"},
    "encoder-decoder relative": {"position": "relative"},
    "encoder-decoder sinusoidal": {"position": "sinusoidal", "kv_heads": 2},
}
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 3, "num_return_sequences": 3},
    "filters": {"top_k": 9, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "temperature": 1.3, "seed": [1, 2, 3, 4]},
    "beams": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.7},
    "early stopping": {"num_beams": 3, "early_stopping": True},
    "more beams than tokens": {"num_beams": 30, "early_stopping": "never"},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "forced words": {"num_beams": 5, "force_words_ids": [[7, 8]]},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 3, "bad_words_ids": [[7, 8]]},
    "chunks": {"prefill_chunk_size": 2},
}
VOCAB = 24
LENGTHS = (7, 2, 5, 1)
STATIC = {"cache_implementation": "static"}


@cache
def model_of(name: str, dtype: torch.dtype = torch.float64) -> Model:
    cross = name.startswith("encoder-decoder")
    return tiny_model(VOCAB, learned=40, end_factor=2, cross=cross, dim=16, init_std=0.5, **MODELS[name]).to(dtype)


def prompts(side: str = "left", lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
    """Random rows; the filler is a token's id, so that it would show."""
    random, width = torch.Generator().manual_seed(1), max(lengths)
    ids, mask = torch.full((len(lengths), width), 7), torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        columns = slice(width - length, width) if side == "left" else slice(0, length)
        ids[row, columns] = torch.randint(12, VOCAB, (length,), generator=random)
        mask[row, columns] = True
    return ids, mask


def assert_same(actual: Generated, expected: Generated) -> None:
    assert torch.equal(actual.ids, expected.ids)
    assert torch.equal(actual.lengths, expected.lengths)
    assert_close(actual.scores, expected.scores)
    if expected.logprobs is not None:
        assert_close(actual.logprobs, expected.logprobs)


@pytest.fixture(params=[1, 3], ids=["reads each token", "reads every third token"])
def read_every(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "tokens_between_reads", lambda device: request.param)


EVERY = [
    (name, method, side, read) for name in MODELS for method in METHODS for side in ("left", "right") for read in (1, 3)
]
FIRST = [
    *((name, method, "left", 3) for name in MODELS for method in ("greedy", "sampling", "beams")),
    *(("grouped alibi", method, "right", 1) for method in METHODS),
]


@pytest.mark.parametrize(("name", "method", "side", "read"), dict.fromkeys([*FIRST, *EVERY]))
@pytest.mark.full(keep=len(FIRST))
def test_equals_the_growing_cache(
    name: str, method: str, side: str, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "tokens_between_reads", lambda device: read)
    model, (ids, mask), options = model_of(name), prompts(side), METHODS[method]
    expected = decode(model, ids, mask, max_new_tokens=20, logprobs=True, **options)
    assert_same(decode(model, ids, mask, max_new_tokens=20, logprobs=True, **options, **STATIC), expected)


def test_rows_end_at_different_steps() -> None:
    """Otherwise the comparisons above would see no row that stays behind the others."""
    lengths = []
    for name in MODELS:
        generated = decode(model_of(name), *prompts(), max_new_tokens=20)
        lengths.append(generated.lengths - (1 if name.startswith("encoder-decoder") else torch.tensor(LENGTHS)))
    assert sum(len(set(new.tolist())) > 2 for new in lengths) > len(MODELS) // 2
    assert sum(int(new.max()) < 20 for new in lengths) > 1


@pytest.mark.parametrize("method", ["greedy", "sampling", "beams"])
@pytest.mark.parametrize("name", ["learned", "encoder-decoder learned"])
def test_rows_stop_at_the_last_learned_position(name: str, method: str, read_every: None) -> None:
    model, options = model_of(name), {**METHODS[method], "suppress_tokens": ENDS}
    rows = prompts(lengths=(33, 2, 39, 20))
    for length in ({"max_length": 41}, {}):
        assert_same(decode(model, *rows, **length, **options, **STATIC), decode(model, *rows, **length, **options))
    assert decode(model, *rows, max_length=41, **options, **STATIC).lengths.max() == 41  # the last token is not read


@pytest.mark.parametrize("keep", [12, 5])
@pytest.mark.parametrize("method", ["greedy", "sampling"])
@pytest.mark.parametrize("name", ["learned", "relative", "window"])
def test_a_full_context_is_read_again(name: str, method: str, keep: int, read_every: None) -> None:
    model, options = model_of(name), {**METHODS[method], "context": 12, "context_keep": keep, "max_new_tokens": 40}
    rows = prompts(lengths=(7, 2, 20, 12))
    assert_same(decode(model, *rows, **options, **STATIC), decode(model, *rows, **options))


def test_a_mask_of_pairs() -> None:
    model, (ids, mask) = model_of("rotary"), prompts()
    pairs = prefix_mask(mask.sum(1) // 2, ids.size(1), mask)
    assert_same(decode(model, ids, pairs, max_new_tokens=20, **STATIC), decode(model, ids, pairs, max_new_tokens=20))


def test_a_target_prefix() -> None:
    model, (ids, mask) = model_of("encoder-decoder relative"), prompts()
    prefix = {"decoder_input_ids": ids.flip(0), "decoder_attention_mask": mask.flip(0)}
    for method in ("greedy", "beams"):
        options = {**METHODS[method], **prefix, "max_new_tokens": 12}
        assert_same(decode(model, ids, mask, **options, **STATIC), decode(model, ids, mask, **options))


def test_stop_strings() -> None:
    class Letters:
        def decode(self, rows: list[list[int]]) -> list[str]:
            return ["".join(chr(97 + token) for token in row) for row in rows]

    options: dict[str, Any] = {"stop_strings": ["s", "o"], "tokenizer": Letters(), "max_new_tokens": 20}
    for method in ("greedy", "beams"):
        model, rows = model_of("alibi"), prompts()
        assert_same(
            decode(model, *rows, **METHODS[method], **options, **STATIC),
            decode(model, *rows, **METHODS[method], **options),
        )


def test_streams_the_same_tokens() -> None:
    model, rows = model_of("rotary"), prompts()
    expected = list(stream(model, *rows, max_new_tokens=20))
    tokens = list(stream(model, *rows, max_new_tokens=20, **STATIC))
    assert torch.equal(torch.stack(tokens), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimised_model(dtype: torch.dtype) -> None:
    model = heedful.optimize(heedful.create("stories260k", seed=0).eval(), str(dtype).removeprefix("torch."))
    ids = torch.tensor([[9, 14, 33, 7]])
    options = {"max_new_tokens": 8}
    expected, actual = (
        decode(model, ids, logprobs=True, **options),
        decode(model, ids, logprobs=True, **options, **STATIC),
    )
    assert torch.equal(actual.ids, expected.ids)
    assert_close(actual.logprobs, expected.logprobs, "gradient", dtype=dtype)


# ----------------------------------------------------------------------------------------------------- the step itself


def started(name: str, steps: int = 20, lengths: tuple[int, ...] = LENGTHS) -> tuple[StaticStep, Tensor]:
    """A static step, and the tokens after the prompt."""
    state = create_state(model_of(name), *prompts(lengths=lengths))
    step = StaticStep(state, torch.full((len(lengths),), steps))
    step.make_cache(None)
    return step, step.prefill().argmax(1)


@pytest.mark.parametrize("name", MODELS)
def test_needs_room_for_the_tokens_of_the_call_alone(name: str) -> None:
    with torch.inference_mode():
        step, tokens = started(name, steps=9)
        step.step(tokens)
    config = model_of(name).config.decoder
    prompt = 1 if name.startswith("encoder-decoder") else max(LENGTHS)
    numbers = 2 * len(LENGTHS) * (config.kv_heads or config.heads) * (config.dim // config.heads)
    for window, (attention, _) in zip(config.windows, step.cache.pairs, strict=True):
        slots = min(prompt + 9 - 1, window or 1000)  # the last token is not read
        assert sum(buffer.numel() for buffer in attention.buffers) == numbers * slots


def addresses(step: StaticStep) -> list[tuple[int, torch.Size]]:
    cache = step.cache
    held = [cache.positions, cache.last, cache.rows]
    held += [tensor for ring in cache.rings.values() for tensor in (ring.columns, ring.new_columns)]
    held += [tensor for attention, cross in cache.pairs for tensor in (*attention.buffers, *cross.pair)]
    held += [step.state.real] if step.state.real is not None else []
    return [(tensor.data_ptr(), tensor.shape) for tensor in held]


@pytest.mark.parametrize("name", MODELS)
def test_addresses_and_shapes_stay(name: str) -> None:
    with torch.inference_mode():
        step, tokens = started(name)
        tokens = step.step(tokens).argmax(1)
        before = addresses(step)
        for _ in range(6):
            tokens = step.step(tokens).argmax(1)
            step.reorder(torch.tensor([1, 0, 3, 2]))
            assert addresses(step) == before


COMPILED = ("windows", "window relative", "grouped alibi", "none", *(position.kind for position in CONTENT))
COMPILED += ("encoder-decoder learned", "encoder-decoder relative", "encoder-decoder sinusoidal")


@pytest.mark.parametrize("name", dict.fromkeys([*COMPILED, *MODELS]))
@pytest.mark.full(keep=len(COMPILED))
def test_one_graph_for_all_steps(name: str) -> None:
    """The step and the choice of a sampled token, compiled together."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(graph)
        return graph

    uniform = torch.rand(20, len(LENGTHS), dtype=torch.float64)
    rows = []
    with torch.inference_mode(), using(model_of(name), "plain"):
        for compiles in (False, True):
            torch._dynamo.reset()
            step, tokens = started(name)
            step.step(tokens)  # makes the cache

            def token(tokens: Tensor, index: Tensor, step: StaticStep = step) -> Tensor:
                return choose(step(tokens), uniform.index_select(0, index)[0])

            call = torch.compile(token, fullgraph=True, backend=backend) if compiles else token
            for index in range(12):
                tokens = call(tokens, torch.tensor([index]))
                rows.append(tokens.clone())
    assert torch.equal(torch.stack(rows[:12]), torch.stack(rows[12:]))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["learned", "rotary", "alibi", "relative", "window", "windows", "grouped"])
def test_a_row_is_replaced_while_others_go_on(name: str) -> None:
    """Slots of a server: a row takes another prompt, and each row gives the logits that it gives alone."""
    model = model_of(name)
    texts = [[13, 14, 15, 16, 17, 18, 19, 20], [21, 22], [23, 12, 13]]

    def alone(tokens: list[int]) -> Tensor:
        return model(torch.tensor([tokens]))[0, -1]

    with torch.inference_mode():
        prefix = Cache(2, window=model.config.decoder.windows)
        width = max(map(len, texts[:2]))
        ids = torch.tensor([[0] * (width - len(text)) + text for text in texts[:2]])
        real = torch.tensor([[False] * (width - len(text)) + [True] * len(text) for text in texts[:2]])
        model(ids, real, cache=prefix)
        lengths = torch.tensor([len(text) for text in texts[:2]])
        windows = model.config.decoder.windows
        slots = StaticCache(prefix, lengths, torch.tensor([15, 15]), end=16, windows=windows)
        running = texts[:2]
        for step in range(10):
            if step == 3:
                prefix = Cache(2, window=model.config.decoder.windows)
                model(torch.tensor([texts[2]]), cache=prefix)
                slots.fill(torch.tensor([1]), prefix, torch.tensor([3]), torch.tensor([15]))
                running = [running[0], texts[2]]
            running = [[*running[0], 6 + step], [*running[1], 9 + step]]
            logits = model(torch.tensor([[text[-1]] for text in running]), cache=slots)[:, 0]
            for row, text in enumerate(running):
                if len(text) <= 16:
                    assert_close(logits[row], alone(text))


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("options", [{"penalty_alpha": 0.6, "top_k": 4}, {"prompt_lookup_num_tokens": 3}])
def test_methods_that_read_several_tokens_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HeedfulError, match="cache_implementation='static' does not work with"):
        resolve({**options, **STATIC})


def test_other_values_are_refused_and_a_folders_value_is_ignored() -> None:
    with pytest.raises(HeedfulError, match="give 'dynamic' or 'static'"):
        resolve({"cache_implementation": "hybrid"})
    for value in ("static", "hybrid"):
        assert resolve({}, {"cache_implementation": value}).cache_implementation == "dynamic"


def test_a_recorded_model_is_refused() -> None:
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match="cache_implementation='static'"), heedful.record(model, "pattern"):
        model.generate(torch.tensor([[1, 2, 3]]), **STATIC)


def test_a_static_cache_takes_one_token_a_row() -> None:
    with torch.inference_mode():
        step, tokens = started("rotary")
        step.step(tokens)
        with pytest.raises(HeedfulError, match="one token a row"):
            model_of("rotary")(torch.tensor([[1, 2]] * 4), cache=step.cache)
