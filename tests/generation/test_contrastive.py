"""Contrastive search against the formula, written out token by token in float64."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, stream
from heedful.generation.options import resolve
from tolerances import assert_close

LENGTHS = [7, 2, 5, 1, 7]
ENDS = (5, 11, 20)


@torch.no_grad()
def by_hand(model, prompt, steps, k, alpha, penalty=1.0):
    """Every candidate a whole forward pass; the hidden states are those that the head reads."""
    model.eval()
    encodes = hasattr(model, "encode")
    text = [3] if encodes else list(prompt)

    def streams(text):
        ids = torch.tensor([text])
        return model.hidden(torch.tensor([prompt]), ids)[0] if encodes else model.hidden(ids)[0]

    for _ in range(steps):
        states = streams(text)
        logits = model.head(states[None])[0, -1]
        for token in set(text):
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        p = logits.softmax(0)
        best = None
        for v in p.topk(k).indices.tolist():
            own = streams([*text, v])[-1]
            alike = max(float(own @ h / (own.norm() * h.norm())) for h in states)
            value = (1 - alpha) * float(p[v]) - alpha * alike
            if best is None or value > best[0]:
                best = value, v
        text.append(best[1])
        if best[1] in ENDS:
            break
    return text


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize(("k", "alpha", "penalty"), [(4, 0.6, 1.0), (2, 0.3, 1.0), (7, 1.0, 1.0), (5, 0.5, 1.6)])
@pytest.mark.parametrize(("side", "seed"), [("left", 0), ("right", 1), ("left", 1), ("right", 0)])
@pytest.mark.full(keep=16)  # both sides
def test_as_written_out(pairs, prompts, plain, family, side, seed, k, alpha, penalty):
    model, (ids, mask) = pairs[family](seed).ours, prompts(LENGTHS, side, seed)
    options = {"penalty_alpha": alpha, "top_k": k, "repetition_penalty": penalty}
    made = decode(model, ids, mask, max_new_tokens=8, **options)
    expected = [by_hand(model, row[real].tolist(), 8, k, alpha, penalty) for row, real in zip(ids, mask, strict=True)]
    assert plain(made.ids, made.lengths) == expected


def test_it_differs_from_greedy(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](3).ours, prompts(LENGTHS)
    greedy = decode(model, ids, mask, max_new_tokens=8)
    assert not torch.equal(decode(model, ids, mask, max_new_tokens=8, penalty_alpha=0.6, top_k=4).ids, greedy.ids)
    nearly = decode(model, ids, mask, max_new_tokens=8, penalty_alpha=1e-9, top_k=4)
    assert torch.equal(nearly.ids, greedy.ids)
    assert_close(nearly.scores, greedy.scores)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_a_row_is_the_same_alone_and_as_it_comes(pairs, prompts, plain, family):
    model, (ids, mask) = pairs[family](1).ours, prompts(LENGTHS)
    options = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 12}
    made = decode(model, ids, mask, logprobs=True, **options)
    for i, row in enumerate(plain(made.ids, made.lengths)):
        alone = decode(model, ids[i][mask[i]][None], **options)
        assert plain(alone.ids, alone.lengths) == [row]
        assert_close(alone.scores, made.scores[i])
    steps = torch.stack(list(stream(model, ids, mask, **options)), 1).tolist()
    first = [1 if family == "marian" else n for n in LENGTHS]
    assert [[token for token in row if token >= 0] for row in steps] == [
        row[n:] for row, n in zip(plain(made.ids, made.lengths), first, strict=True)
    ]
    assert_close(made.logprobs.sum(1) / (made.lengths - torch.tensor(first)), made.scores)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_recording(pairs, prompts, family):
    model, (ids, mask) = pairs[family](1).ours.eval(), prompts(LENGTHS)
    name, logits = "decoder.block.1.attention.pattern", "head.logits"
    with heedful.record(model, [name, logits]) as seen:
        made = decode(model, ids, mask, max_new_tokens=6, penalty_alpha=0.6, top_k=3)
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        text = row[None, : n - 1]
        with heedful.record(model, [name, logits]) as whole:
            model(*((ids[i][mask[i]][None], text) if family == "marian" else (text,)))
        first = 0 if family == "marian" else LENGTHS[i] - 1
        assert_close(seen[logits][i, : n - 1 - first], whole[logits][0, first:])
        assert_close(seen[name][i, :, : n - 1 - first, : n - 1], whole[name][0, :, first:])


def test_options_beside_contrastive_search():
    assert resolve({"penalty_alpha": 0.6, "top_k": 4}).method == "contrastive"
    assert resolve({}, {"penalty_alpha": 0.6, "top_k": 4}).method == "contrastive"
    assert resolve({"num_beams": 2}, {"penalty_alpha": 0.6, "top_k": 4}).method == "beam"
    assert resolve({"temperature": 0.5}, {"penalty_alpha": 0.6, "top_k": 4}).method == "sampling"
    assert resolve({"penalty_alpha": 0.6, "top_k": 4}, {"do_sample": True, "num_beams": 4}).method == "contrastive"
    assert resolve({"penalty_alpha": 0.0}).method == "greedy"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6 chooses among top_k tokens; give top_k=2 or more"),
        ({"penalty_alpha": 0.6, "top_k": 1}, "give top_k=2 or more"),
        ({"penalty_alpha": 1.5, "top_k": 4}, "penalty_alpha is 1.5; give a number from 0 to 1"),
        ({"penalty_alpha": 0.6, "top_k": 4, "num_beams": 2}, "has no effect on beam decoding"),
        ({"penalty_alpha": 0.6, "top_k": 4, "do_sample": True}, "penalty_alpha=0.6 has no effect on sampling"),
        ({"penalty_alpha": 0.6, "top_k": 4, "top_p": 0.9}, "has no effect on sampling"),
        ({"penalty_alpha": 0.6, "top_k": 4, "seed": 1}, "seed=1 has no effect on contrastive decoding"),
        ({"penalty_alpha": 0.6, "top_k": 4, "num_return_sequences": 2}, "has no effect on contrastive decoding"),
    ],
)
def test_wrong_options_are_refused(call, words):
    with pytest.raises(HeedfulError) as caught:
        resolve(call)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_part_of_a_text_is_forgotten(pairs, prompts):
    with pytest.raises(HeedfulError, match=r"context=8 works only for .* by a decoder, not for contrastive search"):
        decode(pairs["gpt2"](0).ours, *prompts([5]), penalty_alpha=0.6, top_k=4, context=8)
