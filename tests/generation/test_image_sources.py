"""Generation over images, against a loop that computes every position anew from the definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, generate, stream
from heedful.models import build
from heedful.presets import captioner, gpt2, vit

START, END, VOCABULARY, NEW = 1, 2, 13, 6


def random_model(vision_width: int, text_width: int) -> Any:
    special = heedful.config.SpecialTokens(pad=0, start=START, end=(END,))
    text = gpt2(text_width, 2, 4, VOCABULARY, 12, 0.0)
    model = build(captioner(vit(vision_width, 2, 4, 4, image=8), text, special))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.5)
    return model.eval()


@pytest.fixture(scope="module", params=[24, 16], ids=["projected", "same width"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(16, request.param).double()


PIXELS = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def log_p(model: Any, image: Tensor, ids: list[int]) -> Tensor:
    return model(image[None], torch.tensor([ids]))[0, -1].log_softmax(-1)


def greedy(model: Any, image: Tensor) -> list[int]:
    ids = [START]
    while len(ids) <= NEW and ids[-1] != END:
        ids.append(int(log_p(model, image, ids).argmax()))
    return ids


def best_of_all(model: Any, image: Tensor, beams: int, penalty: float) -> tuple[list[int], float]:
    """A beam search without a cache: ``beams`` open texts, the best ended one by Σ log p / length^penalty."""
    open_texts, ended = [([START], 0.0)], []
    for step in range(1, NEW + 1):
        longer = [
            ([*ids, token], total + float(log_p(model, image, ids)[token]))
            for ids, total in open_texts
            for token in range(VOCABULARY)
        ]
        longer.sort(key=lambda pair: -pair[1])
        ended += [(ids, total / step**penalty) for ids, total in longer[:beams] if ids[-1] == END]
        open_texts = [pair for pair in longer[: 2 * beams] if pair[0][-1] != END][:beams]
    ended += [(ids, total / NEW**penalty) for ids, total in open_texts]
    return max(ended, key=lambda pair: pair[1])


def rows(ids: Tensor) -> list[list[int]]:
    return [[token for n, token in enumerate(row) if END not in row[:n]] for row in ids.tolist()]


@pytest.mark.parametrize("cache", [None, "static"])
def test_greedy_is_the_loop_without_a_cache(model: Any, cache: str | None) -> None:
    expected = [greedy(model, image) for image in PIXELS]
    assert len({tuple(row) for row in expected}) > 1  # the image matters
    options = {} if cache is None else {"cache_implementation": cache}
    assert rows(generate(model, PIXELS, max_new_tokens=NEW, **options)) == expected
    assert [rows(generate(model, image[None], max_new_tokens=NEW))[0] for image in PIXELS] == expected


def test_stream_and_lookup_give_the_greedy_tokens(model: Any) -> None:
    expected = [greedy(model, image) for image in PIXELS]
    columns = torch.stack(list(stream(model, PIXELS, max_new_tokens=NEW)), 1)
    assert [[START, *(token for token in row if token >= 0)] for row in columns.tolist()] == expected
    assert rows(generate(model, PIXELS, max_new_tokens=NEW, prompt_lookup_num_tokens=2)) == expected
    assert rows(generate(model, PIXELS, max_new_tokens=NEW, assistant_model=random_model(16, 8).double())) == expected


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beams_are_the_search_without_a_cache(model: Any, penalty: float) -> None:
    options = {"num_beams": 3, "length_penalty": penalty, "early_stopping": "never", "max_new_tokens": NEW}
    generated = decode(model, PIXELS, **options)
    for row, score, image in zip(rows(generated.ids), generated.scores.tolist(), PIXELS, strict=True):
        expected, total = best_of_all(model, image, 3, penalty)
        assert row == expected
        assert score == pytest.approx(total, abs=1e-10)


def test_a_sample_depends_on_its_image_and_seed_alone(model: Any) -> None:
    options = {"do_sample": True, "temperature": 1.5, "seed": 7, "max_new_tokens": NEW}
    batch = rows(generate(model, PIXELS, **options))
    assert [rows(generate(model, image[None], **options))[0] for image in PIXELS] == batch
    twice = rows(generate(model, PIXELS[[0, 0]], **options | {"num_return_sequences": 4}))
    assert len({tuple(row) for row in twice}) > 2  # equal images draw numbers of their own


def test_log_probabilities_and_a_given_beginning(model: Any) -> None:
    generated = decode(model, PIXELS, max_new_tokens=NEW, logprobs=True)
    for row, found, image in zip(rows(generated.ids), generated.logprobs, PIXELS, strict=True):
        expected = [float(log_p(model, image, row[:n])[row[n]]) for n in range(1, len(row))]
        assert found[1 : len(row)].tolist() == pytest.approx(expected, abs=1e-10)
    begun = generate(model, PIXELS, decoder_input_ids=torch.tensor([[7, 8]] * 4), max_new_tokens=2)
    assert begun[:, :3].tolist() == [[START, 7, 8]] * 4
    expected = int(log_p(model, PIXELS[0], [START, 7, 8]).argmax())
    assert int(begun[0, 3]) == expected


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_an_optimised_model_generates_what_its_logits_say(dtype: str) -> None:
    model = random_model(32, 64)
    plain = [greedy(model, image.float()) for image in PIXELS]
    fast = heedful.optimize(model, dtype=dtype)
    images = PIXELS.float()
    found = rows(generate(fast, images, max_new_tokens=NEW))
    if dtype == "float32":
        assert found == plain
    for row, image in zip(found, images, strict=True):  # kernels for few rows and for many round otherwise
        for length in range(1, len(row)):
            logits = log_p(fast, image, row[:length])
            assert float(logits[row[length]]) > float(logits.max()) - 0.1


def test_wrong_sources_are_refused(model: Any) -> None:
    ids = torch.tensor([[1, 2, 3]])
    for arguments, options, words in [
        ((ids,), {}, "the model reads images, but the source is torch.int64"),
        ((PIXELS[:, :2],), {}, r"give pixels of shape \(rows, 3, 8, 8\)"),
        ((PIXELS, torch.ones(4, 5).bool()), {}, "an image has no padding; leave the mask out"),
        ((PIXELS,), {"encoder_no_repeat_ngram_size": 2}, "needs a source of tokens, not an image"),
        ((PIXELS,), {"decoder_input_ids": ids}, "1 rows, but the ids have 4"),
        ((PIXELS,), {"context": 4}, "not for an encoder-decoder"),
        ((PIXELS,), {"assistant_model": heedful.create("transformer-tiny")}, "the model of kind .* of images"),
    ]:
        with pytest.raises(HeedfulError, match=words):
            generate(model, *arguments, **options)
