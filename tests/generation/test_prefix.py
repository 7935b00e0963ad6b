"""First tokens of an encoder-decoder's targets: against transformers, alone and in a batch."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, stream
from tolerances import assert_close

LENGTHS = [6, 3, 8, 6]
METHODS = {
    "greedy": {},
    "rules": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "sampling": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
    "beams": {"num_beams": 4, "length_penalty": 0.6, "num_return_sequences": 2},
    "begin": {"forced_bos_token_id": 9, "begin_suppress_tokens": [8, 11]},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "words": {"num_beams": 4, "force_words_ids": [[9, 8]]},
    "chunks": {"prefill_chunk_size": 2},
}


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 8},
        {"max_length": 9},
        {"max_new_tokens": 8, "num_beams": 3, "length_penalty": 0.6},
        {"max_new_tokens": 8, "num_beams": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"max_length": 9, "begin_suppress_tokens": [8, 12, 30], "min_length": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 4])
def test_as_in_transformers(pairs, prompts, plain, options, width):
    for seed in range(3):
        pair, (ids, mask) = pairs["marian"](seed), prompts(LENGTHS, "right", seed)
        begun = prompts([width] * 4, seed=seed + 9)[0]
        made = decode(pair.ours, ids, mask, decoder_input_ids=begun, **options)
        theirs = pair.hub_name.generate(
            ids, attention_mask=mask.long(), decoder_input_ids=begun, do_sample=False, **options
        )
        for row, other in zip(plain(made.ids, made.lengths), theirs.tolist(), strict=True):
            assert row == other[: len(row)]
            assert set(other[len(row) :]) <= {3}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_a_row_is_the_same_alone_and_beside_others(pairs, prompts, plain, side, options):
    model, (ids, mask) = pairs["marian"](1).ours, prompts(LENGTHS, "right")
    begun, real = prompts([3, 1, 5, 2], side, 4)
    begun[0, real[0].int().argmax()] = 3  # the start token is there already
    given = {"decoder_input_ids": begun, "decoder_attention_mask": real}
    made = decode(model, ids, mask, max_new_tokens=10, **given, **options)
    copies = len(made.ids) // 4
    for i, row in enumerate(plain(made.ids, made.lengths)):
        one = slice(i // copies, i // copies + 1)
        own = begun[one][real[one]].tolist()
        first = own if own[0] == 3 else [3, *own]
        assert row[: len(first)] == first
        assert len(row) - len(first) <= 10
        alone = decode(model, ids[one], mask[one], max_new_tokens=10, decoder_input_ids=torch.tensor([own]), **options)
        assert plain(alone.ids, alone.lengths)[i % copies] == row
        assert_close(alone.scores[i % copies], made.scores[i])


def test_the_tokens_are_those_of_the_model_over_the_whole_target(pairs, prompts):
    model, (ids, mask) = pairs["marian"](2).ours, prompts(LENGTHS, "right")
    begun, real = prompts([3, 1, 5, 2], "left", 4)
    made = decode(
        model, ids, mask, max_new_tokens=6, logprobs=True, decoder_input_ids=begun, decoder_attention_mask=real
    )
    model.eval()
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        with torch.no_grad():
            log_p = model(ids[i][mask[i]][None], row[None, : n - 1])[0].log_softmax(1)
        first = 1 + int(real[i].sum())
        assert row[first:n].tolist() == log_p[first - 1 :].argmax(1).tolist()
        expected = log_p.gather(1, row[1:n, None])[first - 1 :, 0]
        assert_close(made.logprobs[i, first:n], expected)
        assert not made.logprobs[i, :first].any()


def test_another_start_token_is_that_of_transformers(pairs, prompts, plain):
    pair, (ids, mask) = pairs["marian"](2), prompts(LENGTHS, "right")
    options = {"decoder_start_token_id": 7, "max_new_tokens": 6, "num_beams": 2}
    found = pair.ours.generate(ids, mask, **options)
    theirs = pair.hub_name.generate(input_ids=ids, attention_mask=mask.long(), do_sample=False, **options)
    assert found.tolist() == theirs.tolist()
    assert found[:, 0].tolist() == [7] * len(ids)
    static = pair.ours.generate(ids, mask, cache_implementation="static", **options)
    assert static.tolist() == found.tolist()
    assert found.tolist() != pair.ours.generate(ids, mask, max_new_tokens=6, num_beams=2).tolist()
    with pytest.raises(HeedfulError, match=r"decoder_start_token_id is 999, but the vocabulary has .* smaller id"):
        pair.ours.generate(ids, mask, decoder_start_token_id=999)
    with pytest.raises(HeedfulError, match="decoder_start_token_id is only for an encoder-decoder"):
        pairs["gpt2"](0).ours.generate(ids, mask, decoder_start_token_id=7)


def test_the_stream_has_the_new_tokens(pairs, prompts, plain):
    model, (ids, mask) = pairs["marian"](0).ours, prompts(LENGTHS, "right")
    begun = prompts([2] * 4)[0]
    made = decode(model, ids, mask, max_new_tokens=6, decoder_input_ids=begun)
    steps = torch.stack(list(stream(model, ids, mask, max_new_tokens=6, decoder_input_ids=begun)), 1)
    rows = [[token for token in row if token >= 0] for row in steps.tolist()]
    assert rows == [row[3:] for row in plain(made.ids, made.lengths)]


def test_a_row_that_begins_with_nothing_but_the_start_token(pairs, prompts, plain):
    model, (ids, mask) = pairs["marian"](0).ours, prompts(LENGTHS, "right")
    usual = decode(model, ids, mask, max_new_tokens=6)
    begun, none = torch.full((4, 2), 9), torch.zeros(4, 2, dtype=torch.bool)
    none[0] = True
    made = decode(model, ids, mask, max_new_tokens=6, decoder_input_ids=begun, decoder_attention_mask=none)
    assert plain(made.ids, made.lengths)[1:] == plain(usual.ids, usual.lengths)[1:]
    assert plain(made.ids, made.lengths)[0][:3] == [3, 9, 9]


@pytest.mark.parametrize("method", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_recording(pairs, prompts, method):
    model, (ids, mask) = pairs["marian"](1).ours.eval(), prompts(LENGTHS, "right")
    begun, real = prompts([3, 1, 5, 2], "right", 4)
    with heedful.record(model, ("decoder.block.1.attention.pattern", "cross_attention.pattern")) as seen:
        made = decode(
            model, ids, mask, max_new_tokens=5, decoder_input_ids=begun, decoder_attention_mask=real, **method
        )
    copies = len(made.ids) // 4
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        k = i // copies
        with heedful.record(model, ("decoder.block.1.attention.pattern", "cross_attention.pattern")) as whole:
            model(ids[k][mask[k]][None], row[None, : n - 1])
        first = int(real[k].sum())
        for path, tensor in whole.items():
            expected = tensor[0, :, first:]
            assert_close(seen[path][i, :, : n - 1 - first, : expected.size(2)], expected)


def test_errors_are_one_line(pairs, prompts):
    model, ids = pairs["marian"](0).ours, prompts(LENGTHS, "right")[0]
    with pytest.raises(HeedfulError, match="for a decoder, put them in the prompt"):
        decode(pairs["gpt2"](0).ours, ids, decoder_input_ids=ids)
    with pytest.raises(HeedfulError, match="decoder_input_ids have 2 rows, but the ids have 4"):
        decode(model, ids, decoder_input_ids=ids[:2])
    with pytest.raises(HeedfulError, match=r"decoder_input_ids are torch.float32 of shape \(4, 8\)"):
        decode(model, ids, decoder_input_ids=ids.float())
    with pytest.raises(HeedfulError, match=r"the mask has shape \(4, 7\), but the decoder_input_ids have \(4, 8\)"):
        decode(model, ids, decoder_input_ids=ids, decoder_attention_mask=torch.ones(4, 7))
    with pytest.raises(HeedfulError, match="decoder_attention_mask has no effect without decoder_input_ids"):
        decode(model, ids, decoder_attention_mask=torch.ones(4, 8))
    with pytest.raises(HeedfulError, match="max_length=9, but prompt 0 already has 9 tokens"):
        decode(model, ids, decoder_input_ids=ids, max_length=9)
