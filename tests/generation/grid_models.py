"""Tiny random ``transformers`` models of many families in float64, ours from their folders, and what both search.

Every weight is random: norms of either sign (otherwise a tied head repeats its input), so that sentences end at
different steps with one of three end tokens. Theirs decodes each prompt alone and without padding; ours all together.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers as hf
from torch import Tensor
from transformers.generation import utils
from transformers.models.bloom import modeling_bloom
from transformers.models.mixtral import modeling_mixtral

from heedful.generation import decode
from heedful.pretrained import load

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

VOCAB, PAD, ENDS = 40, 3, (5, 11, 20)
STEPS = 10
ROWS = ((9, 30, 12, 8, 33), (14, 7), (31, 22, 22, 6, 17, 38, 9), (25, 13, 6))

COMMON = {"vocab_size": VOCAB, "pad_token_id": PAD, "eos_token_id": list(ENDS), "bos_token_id": 4}
GPT2 = {**COMMON, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "tie_word_embeddings": False}
OPT = {**COMMON, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
OPT |= {"max_position_embeddings": 64, "activation_function": "gelu", "tie_word_embeddings": False}
BLOOM = {**COMMON, "hidden_size": 24, "n_layer": 2, "n_head": 3, "tie_word_embeddings": False}
LLAMA = {**COMMON, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"intermediate_size": 24, "max_position_embeddings": 64}
GPT_NEOX = {**COMMON, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
GPT_NEOX |= {"max_position_embeddings": 64}
PAIR = {**COMMON, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
PAIR |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
PAIR |= {"decoder_start_token_id": PAD, "forced_eos_token_id": None}
APART = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB}
T5 = {**COMMON, "d_model": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 6, "d_ff": 24}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": PAD}

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "llama": (hf.LlamaForCausalLM, LLAMA),
    "mistral": (hf.MistralForCausalLM, {**LLAMA, "sliding_window": 4}),
    "qwen3": (hf.Qwen3ForCausalLM, {**LLAMA, "head_dim": 8}),
    "t5": (hf.T5ForConditionalGeneration, T5),
    "bart": (hf.BartForConditionalGeneration, PAIR),
    "marian": (hf.MarianMTModel, {**PAIR, "scale_embedding": True, **APART}),
    "mbart": (hf.MBartForConditionalGeneration, {**PAIR, "scale_embedding": True}),
    "openai-gpt": (hf.OpenAIGPTLMHeadModel, GPT2),
    "opt": (hf.OPTForCausalLM, OPT),
    "opt post-norm": (hf.OPTForCausalLM, {**OPT, "do_layer_norm_before": False}),
    "mixtral": (hf.MixtralForCausalLM, {**LLAMA, "num_local_experts": 4}),
    "switch_transformers": (
        hf.SwitchTransformersForConditionalGeneration,
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1},
    ),
    "olmo2": (hf.Olmo2ForCausalLM, LLAMA),
    "bloom": (hf.BloomForCausalLM, BLOOM),
    "phi3": (hf.Phi3ForCausalLM, {**LLAMA, "sliding_window": 4}),
    "gptj": (hf.GPTJForCausalLM, {**GPT2, "rotary_dim": 4}),
    "gpt_neox": (hf.GPTNeoXForCausalLM, GPT_NEOX),
}
# the deviation of matrices, of a tied embedding, and what makes end tokens come often enough
SPREAD = {"gpt2": 0.5, "llama": 0.4, "mistral": 0.4, "qwen3": 0.4, "t5": 0.6, "bart": 0.4, "marian": 0.4, "mbart": 0.4}
SPREAD |= {
    "olmo2": 0.4,
    "switch_transformers": 0.6,
    "mixtral": 0.4,
    "bloom": 0.4,
    "phi3": 0.4,
    "gpt_neox": 0.4,
    "gptj": 0.5,
    "openai-gpt": 0.5,
    "opt": 0.5,
    "opt post-norm": 0.5,
}
TIED = {"switch_transformers": 0.3, "t5": 0.3, "bart": 1.0, "mbart": 1.0}
LOUD = {"gpt2": 1.5, "llama": 1.0, "mistral": 1.2, "qwen3": 1.5, "t5": 2.0, "bart": 2.0, "marian": 1.2, "mbart": 2.0}
LOUD |= {
    "olmo2": 1.5,
    "switch_transformers": 2.0,
    "mixtral": 1.2,
    "bloom": 1.5,
    "phi3": 1.2,
    "gpt_neox": 1.2,
    "gptj": 1.5,
    "openai-gpt": 1.5,
    "opt": 1.5,
    "opt post-norm": 2.0,
}


@dataclass(frozen=True)
class Both:
    ours: Any
    hub_name: Any
    prefix: int | None  # tokens before the first new one: the start token's 1, or a decoder's own prompt


@functools.cache
def both(family: str, seed: int = 0) -> Both:
    """Theirs, and ours from what theirs wrote."""
    made, settings = FAMILIES[family]
    theirs = made(made.config_class(**settings)).double().eval()
    start = {"decoder_start_token_id": PAD} if theirs.config.is_encoder_decoder else {}
    theirs.generation_config = hf.GenerationConfig(pad_token_id=PAD, eos_token_id=list(ENDS), **start)
    random = torch.Generator().manual_seed(1000 * seed + list(FAMILIES).index(family))
    head = theirs.get_output_embeddings().weight
    with torch.no_grad():
        for name, tensor in theirs.named_parameters():
            noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
            if "embed_positions" in name and family == "marian":
                continue  # computed, not learned
            if tensor.dim() == 1:
                tensor.copy_(noise.sign() + 0.3 * noise if "weight" in name else 0.1 * noise)
            else:
                tied = tensor is head and family in TIED
                attends = (
                    0.3 if "att" in name.lower() and family in ("bart", "marian", "mbart") else 1.0
                )  # else the source decides
                tensor.copy_(noise * (TIED[family] if tied else SPREAD[family] * attends))
        head[list(ENDS)] *= LOUD[family]
    for part in theirs.modules():
        if hasattr(part, "variance_epsilon"):
            part.forward = functools.partial(exactly, part)
        if isinstance(part, modeling_mixtral.MixtralTopKRouter):
            part.forward = functools.partial(routed, part)
            theirs.set_experts_implementation("eager")  # their grouped products have no float64
        if hasattr(part, "expert_capacity"):
            part.dtype = torch.float64  # theirs is float32
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load(folder, dtype=torch.float64)
    return Both(ours, theirs, 1 if theirs.config.is_encoder_decoder else None)


def exactly(norm: Any, x: Tensor) -> Tensor:
    """The RMS norm of their model in the precision of ``x``: theirs rounds to float32, whatever comes in."""
    return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


@contextmanager
def in_float64() -> Iterator[None]:
    """Their decoding rounds logits to float32 and sums beams in it; for a fair comparison it does not, in here."""
    words = SimpleNamespace(**{**vars(torch), "float32": torch.float64, "float": torch.float64})
    bloom, gelu = modeling_bloom, functools.partial(torch.nn.functional.gelu, approximate="tanh")
    with (
        mock.patch.object(utils, "torch", words),
        mock.patch.object(bloom, "torch", words),  # its softmax rounds too, and its GELU
        mock.patch.object(bloom, "bloom_gelu_forward", gelu),
    ):
        yield


class CountPenalty(hf.LogitsProcessor):
    """s − presence · [n > 0] − frequency · n over the n times a token was generated: theirs has no such options."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, tokens in enumerate(ids[:, self.prompt :].tolist()):
            for token in set(tokens):
                scores[row, token] -= self.presence + self.frequency * tokens.count(token)
        return scores


def cut(tokens: list[int]) -> tuple[int, ...]:
    """Up to the first end token; what has none reached its limit and has no padding."""
    ends = [place + 1 for place, token in enumerate(tokens) if token in ENDS]
    return tuple(tokens[: min(ends, default=len(tokens))])


@torch.no_grad()
def theirs_alone(pair: Both, row: tuple[int, ...], **options: Any) -> tuple[list[tuple[int, ...]], list[float], Any]:
    """New tokens, best first, beam scores, and the scores of every step, of one prompt without padding."""
    ids, width = torch.tensor([row]), pair.prefix or len(row)
    presence, frequency = options.pop("presence_penalty", 0.0), options.pop("frequency_penalty", 0.0)
    more = hf.LogitsProcessorList()
    if presence or frequency:
        more.append(CountPenalty(width, presence, frequency))
    with in_float64():
        out = pair.hub_name.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            logits_processor=more,
            **options,
        )
    scores = getattr(out, "sequences_scores", None)
    found = [cut(tokens[width:]) for tokens in out.sequences.tolist()]
    return found, [] if scores is None else scores.tolist(), out.scores


def padded(rows: tuple[tuple[int, ...], ...], side: str) -> tuple[Tensor, Tensor]:
    """Ids and mask; the filler is a real token's id, so that it would show."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 7), torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        where = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[place, where], mask[place, where] = torch.tensor(row), True
    return ids, mask


def ours_together(
    pair: Both, rows: tuple[tuple[int, ...], ...], side: str, **options: Any
) -> list[tuple[list[tuple[int, ...]], list[float]]]:
    """The same of all ``rows`` in one batch padded at ``side``."""
    made = decode(pair.ours, *padded(rows, side), **options)
    copies, found = len(made.ids) // len(rows), []
    for place, row in enumerate(rows):
        width, part = pair.prefix or len(row), slice(copies * place, copies * (place + 1))
        ids = zip(made.ids[part].tolist(), made.lengths[part].tolist(), strict=True)
        found.append(([tuple(tokens[width:n]) for tokens, n in ids], made.scores[part].tolist()))
    return found


def routed(router: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mixtral's router in the precision of ``x``: theirs rounds to float32, whatever comes in."""
    logits = torch.nn.functional.linear(x.reshape(-1, router.hidden_dim), router.weight)
    weights, choice = logits.softmax(-1).topk(router.top_k)
    return logits, weights / weights.sum(-1, keepdim=True), choice
