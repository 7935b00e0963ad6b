"""The logit lens against the model's own logits, against models cut off after a block, and against transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    StackConfig,
    TokenHead,
)
from heedful.errors import HeedfulError
from heedful.inspection.logit_lens import head_stack, lens_logits, logit_lens
from heedful.models import Model, build
from tolerances import assert_close

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 5, 11]])
LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool()


def stack(causal: bool = True, **options: Any) -> StackConfig:
    options = {"position": LearnedPosition(length=8), "depth": 3, "dropout": DropoutRates.everywhere(0.4), **options}
    return StackConfig(dim=16, heads=4, ff_dim=24, causal=causal, **options)


def decoder(head: Any = None, scale: str = "none", **options: Any) -> DecoderConfig:
    embedding = EmbeddingConfig(vocab_size=20, scale=scale)  # type: ignore[arg-type]
    return DecoderConfig(embedding=embedding, decoder=stack(**options), head=head or LanguageHead())


def pair(target: bool = False, head: Any = None, **options: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=20, scale="sqrt"),
        target=EmbeddingConfig(vocab_size=23) if target else None,
        encoder=stack(False, **{**options, "depth": 1}),
        decoder=stack(True, cross=True, **options),
        head=head or LanguageHead(),
    )


def encoder(head: Any, **options: Any) -> EncoderConfig:
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=20, segments=2), encoder=stack(False, **options), head=head
    )


CONFIGS = {
    "pre": decoder(),
    "post, embedding norm": decoder(placement="post", embedding_norm=True),
    "sandwich, rms, rotary": decoder(placement="sandwich", norm="rms", position=RotaryPosition()),
    "norms of outputs": decoder(placement="out", norm="rms", qk_norm="all", position=RotaryPosition()),
    "layer scale": decoder(layer_scale=0.4, score_cap=1.5, norm="rms-offset"),
    "untied, bias": decoder(LanguageHead(tied=False, bias=True), position=AlibiPosition(), scale="sqrt"),
    "T5's scale": pair(head=LanguageHead(scale="sqrt"), norm="rms", scale="none", position=RelativePosition()),
    "the paper's": pair(placement="post", position=SinusoidalPosition()),
    "pair, apart, untied": pair(target=True, head=LanguageHead(tied=False)),
    "masked": encoder(MaskedHead(), placement="post", embedding_norm=True),
    "batch norm": encoder(TokenHead(labels=5), norm="batch"),
    "sequence": encoder(SequenceHead(labels=3)),
    "last token": decoder(SequenceHead(labels=3, pooling="last", pooler=False)),
}


def noisy(config: Any, dtype: torch.dtype = torch.float32) -> Model:
    model = build(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype)  # in training, with dropout: the lens must not care


def call(model: Model, mask: Tensor | None) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Inputs, and masks by name; of a pair the source is padded right and the target left."""
    if not isinstance(model, heedful.EncoderDecoder):
        return (IDS,), {} if mask is None else {"mask": mask}
    source = torch.tensor([[4, 3, 5, 6, 2], [5, 4, 2, 0, 0]])
    return (source, IDS), {} if mask is None else {"source_mask": source > 0, "target_mask": mask}


@pytest.mark.parametrize("mask", [None, LEFT], ids=["whole", "left-padded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_last_layer_is_the_models_own_answer_bit_for_bit(name: str, mask: Tensor | None) -> None:
    model = noisy(CONFIGS[name])
    inputs, named = call(model, mask)
    seen = logit_lens(model, *inputs, top=3, **named)
    assert all(part.training for part in model.modules())
    with torch.no_grad():
        logits = model.eval()(*inputs, **named)
    best = logits.log_softmax(-1).topk(3)
    assert torch.equal(seen.ids[-1], best.indices)
    assert torch.equal(seen.probabilities[-1], best.values.exp())
    assert seen.divergence[-1].eq(0).all()
    assert seen.divergence[0].amax(-1 if logits.dim() == 3 else 0).gt(1e-4).all()
    assert seen.layers == ["embedding", "block 0", "block 1", "block 2"]

    last = f"{head_stack(model)[0]}.block.2.stream"
    with torch.no_grad(), heedful.record(model, last) as stream:
        model(*inputs, **named)
    with torch.no_grad():
        assert torch.equal(lens_logits(model, stream[last], named.get("target_mask", named.get("mask"))), logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_layer_is_what_a_model_cut_off_there_says(name: str) -> None:
    """A model of fewer blocks with the same weights, which knows of no lens."""
    model = noisy(CONFIGS[name], torch.float64).eval()
    inputs, named = call(model, LEFT)
    seen = logit_lens(model, *inputs, top=2, **named)
    side = head_stack(model)[0]
    for depth in (1, 2, 3):
        config = replace(model.config, **{side: replace(getattr(model.config, side), depth=depth)})
        shorter = build(config).double().eval()
        shorter.load_state_dict(model.state_dict(), strict=False)
        with torch.no_grad():
            best = shorter(*inputs, **named).softmax(-1).topk(2)
        assert_close(seen.probabilities[depth], best.values)
        assert torch.equal(seen.ids[depth], best.indices)


def test_the_embedding_by_hand() -> None:
    """Post-norm: logits are (norm(√D E[id] + P)) Eᵀ; pre-norm: norm_final(E[id] + P) Eᵀ."""
    for options, norm in (({"placement": "post", "embedding_norm": True}, "embedding_norm"), ({}, "norm")):
        model = noisy(decoder(scale="sqrt", **options), torch.float64)
        state = model.state_dict()
        table = state["embedding.token.weight"]
        x = 4.0 * table[IDS] + state["decoder.position.table.weight"][:4]
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = x * state[f"decoder.{norm}.weight"] + state[f"decoder.{norm}.bias"]
        expected = (x @ table.T).softmax(-1)
        seen = logit_lens(model, IDS, top=20)
        assert_close(torch.zeros_like(expected).scatter(-1, seen.ids[0], seen.probabilities[0]), expected)


def gpt2() -> tuple[Any, Callable[[Any, Tensor], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=3, n_head=4, n_positions=8, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config), lambda model, x: model.lm_head(model.transformer.ln_f(x))


def llama() -> tuple[Any, Callable[[Any, Tensor], Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, pad_token_id=0)
    config.intermediate_size = 24
    return LlamaForCausalLM(config), lambda model, x: model.lm_head(model.model.norm(x))


def t5() -> tuple[Any, Callable[[Any, Tensor], Tensor]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=20, d_model=16, num_layers=3, num_heads=4, d_kv=4, d_ff=24, decoder_start_token_id=0)
    return (
        T5ForConditionalGeneration(config),
        lambda model, x: model.lm_head(model.decoder.final_layer_norm(x) * 16**-0.5),
    )


def marian() -> tuple[Any, Callable[[Any, Tensor], Tensor]]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(vocab_size=20, d_model=16, encoder_layers=3, decoder_layers=3, max_position_embeddings=8)
    config.encoder_attention_heads = config.decoder_attention_heads = 4
    config.encoder_ffn_dim = config.decoder_ffn_dim = 24
    config.scale_embedding, config.pad_token_id, config.decoder_start_token_id, config.eos_token_id = True, 19, 19, 2
    model = MarianMTModel(config)
    model.final_logits_bias.normal_()
    return model, lambda model, x: model.lm_head(x) + model.final_logits_bias


@pytest.mark.parametrize("made", [gpt2, llama, t5, marian])
def test_transformers_own_hidden_states(made: Callable[[], Any], tmp_path: Path) -> None:
    theirs, say = made()
    for parameter in theirs.parameters():
        if parameter.requires_grad:  # Marian's sinusoids stay
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.eval().save_pretrained(tmp_path)
    model = heedful.from_pretrained(tmp_path)
    with torch.no_grad():
        if isinstance(model, heedful.EncoderDecoder):
            source = torch.tensor([[4, 3, 5, 6, 2], [5, 4, 7, 8, 2]])
            out = theirs(input_ids=source, decoder_input_ids=IDS, output_hidden_states=True)
            seen, hidden = logit_lens(model, source, IDS, top=20), out.decoder_hidden_states
        else:
            out = theirs(IDS, output_hidden_states=True)
            seen, hidden = logit_lens(model, IDS, top=20), out.hidden_states
        expected = [*(say(theirs, x) for x in hidden[:-1]), out.logits]  # theirs normed the last one already
    assert len(expected) == 4
    for ids, probabilities, logits in zip(seen.ids, seen.probabilities, expected, strict=True):
        made_full = torch.zeros_like(logits).scatter(-1, ids, probabilities)
        assert_close(made_full, logits.softmax(-1), "gradient")


def test_left_padding_changes_nothing() -> None:
    model = noisy(decoder())
    alone = logit_lens(model, torch.tensor([[7, 8]]))
    padded = logit_lens(model, IDS[:1], mask=LEFT[:1])
    assert_close(padded.probabilities[:, :, 2:], alone.probabilities)
    assert torch.equal(padded.ids[:, :, 2:], alone.ids)


def test_targets_and_divergence() -> None:
    model = noisy(decoder()).eval()
    target = torch.tensor([[6, 7, 8, -1], [10, 5, 11, 0]])
    seen = logit_lens(model, IDS, target=target, top=20)
    assert seen.target_probability is not None
    assert seen.target_rank is not None
    for layer in range(4):
        full = torch.zeros(2, 4, 20).scatter(-1, seen.ids[layer], seen.probabilities[layer])
        final = torch.zeros(2, 4, 20).scatter(-1, seen.ids[-1], seen.probabilities[-1])
        apart = F.kl_div(full.log(), final.log(), log_target=True, reduction="none").sum(-1)
        assert_close(seen.divergence[layer], apart, "gradient")
        for b in range(2):
            for t in range(4):
                if target[b, t] < 0:
                    assert seen.target_probability[layer, b, t].isnan()
                    assert seen.target_rank[layer, b, t] == -1
                    continue
                assert float(seen.target_probability[layer, b, t]) == pytest.approx(float(full[b, t, target[b, t]]))
                assert seen.ids[layer, b, t, seen.target_rank[layer, b, t]] == target[b, t]


def test_chosen_positions_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some positions, or all a few at a time: the same numbers."""
    model = noisy(CONFIGS["batch norm"])
    target = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
    whole = logit_lens(model, IDS, mask=LEFT, target=target)
    some = logit_lens(model, IDS, mask=LEFT, target=target, queries=[3, -2])
    monkeypatch.setattr(sys.modules["heedful.inspection.logit_lens"], "MAX_LOGITS", 3 * 2 * 5)
    parts = logit_lens(model, IDS, mask=LEFT, target=target)
    for name in ("probabilities", "divergence", "target_probability", "target_rank"):
        assert_close(getattr(some, name), getattr(whole, name)[:, :, [3, 2]])
        assert_close(getattr(parts, name), getattr(whole, name))


def test_heads_that_speak_once() -> None:
    model = heedful.create("vit-micro", seed=0)
    seen = logit_lens(model, torch.randn(2, 1, 28, 28), top=3, target=torch.tensor([1, 7]))
    assert seen.ids.shape == (5, 2, 3)
    assert seen.target_rank is not None
    assert seen.target_rank.shape == (5, 2)
    with pytest.raises(HeedfulError, match="one output"):
        logit_lens(model, torch.randn(2, 1, 28, 28), queries=[0])


def test_compiled() -> None:
    model = heedful.create("gpt-micro", seed=0)
    assert torch.equal(
        logit_lens(torch.compile(model, backend="eager"), IDS).probabilities, logit_lens(model, IDS).probabilities
    )
    with pytest.raises(HeedfulError, match="a Linear is not a model of heedful"):
        logit_lens(torch.nn.Linear(2, 2), IDS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top": 0}, "top is 0"),
        ({"top": 66}, "from 1 to 65"),
        ({"target": torch.zeros(2, 3, dtype=torch.long)}, r"shape \(2, 3\)"),
        ({"target": torch.full((2, 4), 65)}, "ids up to 65"),
        ({"target": torch.tensor([1, 2])}, r"give \(B, T\) ids"),
        ({"queries": [4]}, "query 4"),
        ({"masks": None}, "masks"),
    ],
)
def test_refuses(options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        logit_lens(heedful.create("gpt-micro", seed=0), IDS, **options)


@pytest.mark.parametrize("head", ["none", "span", "pooled"])
def test_a_head_without_logits(head: str) -> None:
    with pytest.raises(HeedfulError, match=r"no probabilities"):
        logit_lens(heedful.create("bert-tiny", head=head, seed=0), IDS)
