"""Log-probabilities of the new tokens against the model run over the finished rows, in float64."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.generation import decode
from tolerances import approx

LENGTHS = [7, 2, 5, 1, 7]
METHODS = {
    "greedy": {},
    "greedy under rules": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "sampling": {"do_sample": True, "seed": 3, "temperature": 1.7, "top_k": 20, "num_return_sequences": 3},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "beams under rules": {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 0.6, "bad_words_ids": [[9]]},
    "eager beams": {"num_beams": 5, "early_stopping": True, "num_return_sequences": 5, "length_penalty": 0.0},
}


@torch.no_grad()
def forced(pair, source: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """log p of each token of a row after its first, all at once."""
    pair.ours.eval()
    logits = pair.ours(source[None], row[None]) if pair.hub_name.config.is_encoder_decoder else pair.ours(row[None])
    return logits[0, :-1].log_softmax(-1).gather(1, row[1:, None])[:, 0]


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_they_are_those_of_the_model_run_over_the_row(pairs, prompts, family, side, options):
    for seed in range(2):
        pair = pairs[family](seed)
        ids, mask = prompts(LENGTHS, side, seed)
        made = decode(pair.ours, ids, mask, logprobs=True, max_new_tokens=12, **options)
        plain = decode(pair.ours, ids, mask, max_new_tokens=12, **options)
        assert torch.equal(made.ids, plain.ids)
        assert torch.equal(made.scores, plain.scores)
        assert plain.logprobs is None
        assert made.logprobs.shape == made.ids.shape
        assert made.logprobs.dtype == torch.float64
        copies = len(made.ids) // len(ids)
        for i, (row, n, said, score) in enumerate(zip(*made[:2], made.logprobs, made.scores, strict=True)):
            source = ids[i // copies][mask[i // copies]]
            begin = 1 if family == "marian" else len(source)
            expected = forced(pair, source, row[:n])[begin - 1 :]
            assert (said[begin:n] - expected).abs().max() < 1e-10
            assert (said[:begin] == 0).all()
            assert (said[n:] == 0).all()
            assert len(expected) == n - begin > 0
            if "rules" not in str(options) and "bad_words_ids" not in options:
                power = options.get("length_penalty", 1.0)
                assert score.item() == approx(expected.sum().item() / (n - begin).item() ** power, dtype=torch.float64)


def test_beyond_the_context_they_are_of_what_was_read():
    model, context = heedful.create("gpt-micro", seed=0).double().eval(), 8
    ids = torch.tensor([[1, 2, 3]])
    made = decode(model, ids, context=context, max_new_tokens=30, logprobs=True)
    row, read = made.ids[0].tolist(), made.ids[0, :3].tolist()
    model.requires_grad_(False)
    for place in range(3, len(row)):
        if len(read) > context:
            read = read[-context // 2 :]
        expected = model(torch.tensor([read]))[0, -1].log_softmax(-1)[row[place]]
        assert abs(float(made.logprobs[0, place] - expected)) < 1e-10
        read.append(row[place])


def test_they_may_be_used_in_training():
    model = heedful.create("gpt-micro", seed=0)
    made = decode(model, torch.tensor([[1, 2, 3]]), num_beams=2, max_new_tokens=4, logprobs=True)
    (made.logprobs * torch.ones(1, requires_grad=True)).sum().backward()
