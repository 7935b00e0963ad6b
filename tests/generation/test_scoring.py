"""Log-probabilities of given choices, against a loop over transformers' logits in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from answering_folders import saved
from heedful.errors import HeedfulError
from heedful.generation.scoring import choice_logprobs

VOCABULARY = 60
PROMPTS = [[5, 9, 31, 7, 8], [4], [11, 12, 13, 14, 15, 16, 17, 18, 19]]
CHOICES = [[[3], [8, 9, 10], [7, 7, 7, 7]], [[20, 21]], [[40, 41, 42, 43, 44], [6]]]


def theirs(kind: str) -> Any:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        MistralConfig,
        MistralForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    if kind == "mistral":  # its window is shorter than a prompt
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
        return MistralForCausalLM(MistralConfig(vocab_size=VOCABULARY, hidden_size=16, sliding_window=4, **sizes))
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", **sizes, **special)
    )


# transformers computes Mistral's norms and rotations, and T5's softmax, in float32 in any model
TOLERANCES = {"gpt2": 1e-9, "mistral": 1e-6, "t5": 1e-5}


def ours(model: Any, prompt: list[int], choice: list[int]) -> float:
    """The same by one call of our model without a cache, all of it in float64."""
    with torch.no_grad():
        if hasattr(model, "encode"):
            logits = model(torch.tensor([prompt]), torch.tensor([[0, *choice[:-1]]]))[0]
        else:
            logits = model(torch.tensor([[*prompt, *choice[:-1]]]))[0, len(prompt) - 1 :]
    return sum(float(row.log_softmax(0)[token]) for row, token in zip(logits, choice, strict=True))


def looped(model: Any, prompt: list[int], choice: list[int]) -> float:
    """Σ log p of the choice's tokens, by one call without a cache."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            logits = model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *choice[:-1]]])).logits[0]
        else:
            logits = model(torch.tensor([[*prompt, *choice[:-1]]])).logits[0, len(prompt) - 1 :]
    return sum(float(row.log_softmax(0)[token]) for row, token in zip(logits, choice, strict=True))


def padded(side: str) -> tuple[Tensor, Tensor]:
    width = max(map(len, PROMPTS)) + 1
    rows = [[0] * (width - len(row)) + row if side == "left" else row + [0] * (width - len(row)) for row in PROMPTS]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in PROMPTS]
    return torch.tensor(rows), torch.tensor(mask if side == "right" else [row[::-1] for row in mask]).bool()


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "t5"])
def test_equals_a_loop_over_transformers(kind: str, tmp_path: Path) -> None:
    oracle = theirs(kind).eval().double()
    oracle.save_pretrained(tmp_path)
    model = heedful.from_pretrained(tmp_path, dtype=torch.float64)
    pairs = list(zip(PROMPTS, CHOICES, strict=True))
    wanted = [[ours(model.eval(), prompt, choice) for choice in own] for prompt, own in pairs]
    for (prompt, choices), row in zip(pairs, wanted, strict=True):
        assert row == pytest.approx([looped(oracle, prompt, one) for one in choices], abs=TOLERANCES[kind])
    for side in ("left", "right"):
        ids, mask = padded(side)
        for batch_tokens in (None, 4):  # in the second case alone, and a choice at a time
            scores = heedful.score(model, ids, CHOICES, mask, batch_tokens=batch_tokens)
            assert scores.dtype == torch.float64
            for row, own in zip(scores.tolist(), wanted, strict=True):
                assert row[: len(own)] == pytest.approx(own, abs=1e-10)
                assert row[len(own) :] == [-torch.inf] * (3 - len(own))
    per_token = heedful.score(model, *padded("left")[:1], CHOICES, padded("left")[1], normalise="tokens")
    assert per_token[0].tolist() == pytest.approx([wanted[0][0], wanted[0][1] / 3, wanted[0][2] / 4], abs=1e-9)
    common = heedful.score(model, torch.tensor([PROMPTS[0]] * 2), torch.tensor([[8, 9], [3, 3]]))
    assert common[0].tolist() == pytest.approx(common[1].tolist(), abs=1e-12)
    assert common[0, 0].item() == pytest.approx(ours(model, PROMPTS[0], [8, 9]), abs=1e-9)


def test_a_prompt_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder sees a source once, a decoder its prompt's tokens once, whatever the number of choices."""
    model = heedful.create("gpt-micro", seed=0).eval()
    lengths, forward = [], model.decoder.forward
    monkeypatch.setattr(
        model.decoder, "forward", lambda x, *a, **k: (lengths.append(x.shape[:2]), forward(x, *a, **k))[1]
    )
    choice_logprobs(model, torch.tensor([[1, 2, 3, 4, 5, 6]]), None, [[[7, 8], [9, 10], [11, 12]]])
    assert [tuple(shape) for shape in lengths] == [(1, 6), (3, 1)]
    both = heedful.create("transformer-tiny", seed=0).eval()
    sources, encode = [], both.encode
    monkeypatch.setattr(both, "encode", lambda ids, *a: (sources.append(ids.shape), encode(ids, *a))[1])
    choice_logprobs(both, torch.tensor([[5, 6, 7]]), None, [[[7, 8], [9, 10], [11, 12]]])
    assert [tuple(shape) for shape in sources] == [(1, 3)]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([[3], []], "a list of choices is empty"),
        ([[[3]], [[3]]], "2 lists of choices for 1 inputs"),
        ([[3], [65]], "a choice has the token 65, but the model's tokens are 0 to 64"),
        ([[3], [4] * 62], "prompt 0 and its longest choice have 66 tokens, but the model has 64 learned positions"),
    ],
)
def test_wrong_choices_are_an_error(choices: Any, message: str) -> None:
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match=message):
        heedful.score(model, torch.tensor([[1, 2, 3, 4]]), choices)


def test_a_choice_may_end_at_the_last_position() -> None:
    model = heedful.create("gpt-micro", seed=0)
    assert heedful.score(model, torch.tensor([[1, 2, 3, 4]]), [[4] * 61, [5]]).isfinite().all()


@pytest.mark.parametrize("task", ["translation", "text-generation"])
def test_a_pipeline_ranks_texts(task: str, tmp_path: Path) -> None:
    pipe = heedful.pipeline(None, saved(task, tmp_path / "model"))
    texts, choices = ["the pear is a", "the saw"], ["fruit", "tool", "the tool"]
    scores = heedful.score(pipe, texts, choices)
    tokenizer = getattr(pipe.task, "tokenizer", None) or pipe.task.target
    ends = [] if task == "text-generation" else [tokenizer.end]
    ids = [[*row, *ends] for row in tokenizer.encode(choices)]
    for text, row, shown in zip(texts, scores.tolist(), pipe(texts, choices=choices), strict=True):
        own = pipe.task.prompt_ids([text])[0] if not ends else [*pipe.task.source.encode([text])[0], *ends]
        assert row == pytest.approx(heedful.score(pipe.model, torch.tensor([own]), ids)[0].tolist(), abs=1e-4)
        best = max(range(3), key=lambda i: row[i])
        assert shown == {"input": text, "output": choices[best], "score": row[best]}
    per_character = heedful.score(pipe, texts, choices, normalise="characters")
    assert torch.allclose(per_character, scores / torch.tensor([5.0, 4.0, 8.0]))
    listed = pipe(texts[0], choices=choices, top_k=2)["output"]
    assert [one["score"] for one in listed] == pytest.approx(sorted(scores[0].tolist(), reverse=True)[:2])
    name = "source" if ends else "prompt"
    mixed = pipe([{name: texts[0], "choices": choices[:2]}, texts[1]], max_new_tokens=3, do_sample=False)
    assert mixed[0]["output"] in choices[:2]
    assert mixed[1] == pipe(texts[1], max_new_tokens=3, do_sample=False)


def test_options_of_generation_are_an_error_with_choices(tmp_path: Path) -> None:
    pipe = heedful.pipeline(None, saved("translation", tmp_path / "model"))
    for options, message in (
        ({"choices": ["yes"]}, "give two or more different texts"),
        ({"choices": ["yes", "no"], "num_beams": 2}, "num_beams has no effect: choices are ranked"),
        ({"choices": ["yes", "no"], "logprobs": True}, "logprobs has no effect"),
        ({"choices": ["yes", "no"], "normalise": "bytes"}, "normalise must be one of tokens, characters"),
        ({"normalise": "tokens"}, "normalise has no effect without choices"),
    ):
        with pytest.raises(HeedfulError, match=message):
            pipe("the pear", **options)
    writer = heedful.pipeline(None, saved("text-generation", tmp_path / "writer"))
    with pytest.raises(HeedfulError, match="stream cannot return choices"):
        next(writer.stream("the pear", choices=["yes", "no"]))
    classify = heedful.pipeline(None, saved("text-classification", tmp_path / "labels"))
    with pytest.raises(HeedfulError, match="ranks no choices"):
        heedful.score(classify, "the pear", ["yes", "no"])
