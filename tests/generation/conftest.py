"""Tiny random GPT-2 and Marian models in float64, every bias and norm random, with the same weights on both sides."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.config import LanguageHead, SpecialTokens

VOCAB, PAD = 40, 3
ENDS = (5, 11, 20)

MARIAN = [
    (r"model\.encoder\.embed_tokens\.", "embedding.token."),
    (r"model\.decoder\.embed_tokens\.", "target_embedding.token."),
    (r"model\.(en|de)coder\.layers\.", r"\1coder.block."),
    (r"self_attn_layer_norm", "attention_residual.after"),
    (r"encoder_attn_layer_norm", "cross_residual.after"),
    (r"final_layer_norm", "feed_forward_residual.after"),
    (r"encoder_attn\.", "cross_attention."),
    (r"self_attn\.", "attention."),
    (r"q_proj", "query"),
    (r"k_proj", "key"),
    (r"v_proj", "value"),
    (r"out_proj", "out"),
    (r"fc1", "feed_forward.up"),
    (r"fc2", "feed_forward.down"),
    (r"lm_head\.", "head.output."),
    (r"final_logits_bias", "head.output.bias"),
]
GPT2 = [
    (r"transformer\.wte\.", "embedding.token."),
    (r"transformer\.wpe\.", "decoder.position.table."),
    (r"transformer\.h\.", "decoder.block."),
    (r"transformer\.ln_f\.", "decoder.norm."),
    (r"ln_1", "attention_residual.before"),
    (r"ln_2", "feed_forward_residual.before"),
    (r"attn\.c_proj", "attention.out"),
    (r"mlp\.c_fc", "feed_forward.up"),
    (r"mlp\.c_proj", "feed_forward.down"),
    (r"lm_head\.", "head.output."),
]


@dataclass
class Pair:
    ours: Any
    hub_name: Any

    def reference(self, ids: Tensor, mask: Tensor | None = None, **options: Any) -> tuple[list[list[int]], Tensor]:
        """Rows, without padding, and beam scores from transformers."""
        mask = torch.ones_like(ids) if mask is None else mask.long()
        out = self.hub_name.generate(
            ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, do_sample=False, **options
        )
        new = 1 if self.hub_name.config.is_encoder_decoder else ids.size(1)
        copies = len(out.sequences) // len(ids)
        rows = []
        for i, row in enumerate(out.sequences.tolist()):
            prompt = row[:1] if new == 1 else ids[i // copies][mask[i // copies].bool()].tolist()
            rows.append(prompt + ended(row[new:]))
        return rows, getattr(out, "sequences_scores", None)


def ended(tokens: list[int]) -> list[int]:
    """Up to the end token; without one, up to the padding."""
    for place, token in enumerate(tokens):
        if token in ENDS:
            return tokens[: place + 1]
    while tokens and tokens[-1] == PAD:
        tokens = tokens[:-1]
    return tokens


def rename(state: dict[str, Tensor], rules: list[tuple[str, str]]) -> dict[str, Tensor]:
    named = {}
    for name, tensor in state.items():
        for pattern, made in rules:
            name = re.sub(pattern, made, name)
        if "embed_positions" in name or "shared" in name:
            continue
        if "attn.c_attn" in name:
            for part, piece in zip(("query", "key", "value"), tensor.movedim(0, -1).chunk(3), strict=True):
                named[name.replace("attn.c_attn", f"attention.{part}")] = piece
        else:
            conv = "decoder.block" in name and rules is GPT2 and tensor.dim() == 2
            named[name] = tensor.T if conv else tensor.flatten() if name == "head.output.bias" else tensor
    return named


def randomise(model: torch.nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if "embed_positions" in name:
            continue
        noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
        if (".ln_" in name or "layer_norm" in name) and "weight" in name:
            tensor.copy_(noise.sign() + 0.3 * noise)  # of either sign: otherwise a tied head repeats its input
        else:
            tensor.copy_(noise * (0.1 if tensor.dim() == 1 else 0.22 if "_attn" in name else 0.5))
        if name == "final_logits_bias":
            tensor[0, list(ENDS)] += 1.0


@cache
def marian(seed: int = 0, vocab: int = VOCAB) -> Pair:
    transformers = pytest.importorskip("transformers")
    config = transformers.MarianConfig(
        vocab_size=vocab,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation_function="silu",
        scale_embedding=True,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=list(ENDS),
        forced_eos_token_id=None,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        share_encoder_decoder_embeddings=False,
    )
    theirs = transformers.MarianMTModel(config).double().eval()
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=PAD, eos_token_id=list(ENDS), decoder_start_token_id=PAD
    )
    randomise(theirs, seed)
    special = SpecialTokens(pad=PAD, start=PAD, end=ENDS)
    made = presets.transformer(16, 2, 2, 32, vocab, 0.1, "silu", special)
    made = replace(made, target=made.source, head=LanguageHead(tied=False, bias=True))
    ours = heedful.create(made).double()
    ours.load_state_dict(rename(theirs.state_dict(), MARIAN))
    return Pair(ours, theirs)


@cache
def gpt2(seed: int = 0, vocab: int = VOCAB) -> Pair:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=PAD, eos_token_id=list(ENDS)
    )
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    theirs.generation_config = transformers.GenerationConfig(pad_token_id=PAD, eos_token_id=list(ENDS))
    randomise(theirs, seed)
    made = presets.gpt2(16, 2, 2, vocab, 64)
    ours = heedful.create(replace(made, special=SpecialTokens(pad=PAD, end=ENDS))).double()
    ours.load_state_dict(rename(theirs.state_dict(), GPT2))
    return Pair(ours, theirs)


@pytest.fixture(scope="session")
def pairs() -> dict[str, Callable[..., Pair]]:
    return {"gpt2": gpt2, "marian": marian}


@pytest.fixture(scope="session")
def plain() -> Callable[[Tensor, Tensor], list[list[int]]]:
    """Rows without padding, from ids and lengths."""
    return lambda ids, lengths: [row[:n] for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]


@pytest.fixture(scope="session")
def prompts() -> Callable[..., tuple[Tensor, Tensor]]:
    """Random rows of the lengths given, padded at a side; the filler is a real token's id, so that it would show."""

    def make(lengths: list[int], side: str = "left", seed: int = 0) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(seed)
        width = max(lengths)
        ids = torch.full((len(lengths), width), 7)
        mask = torch.zeros(len(lengths), width, dtype=torch.bool)
        for row, n in enumerate(lengths):
            where = slice(width - n, width) if side == "left" else slice(0, n)
            ids[row, where] = torch.randint(6, VOCAB, (n,), generator=random)
            mask[row, where] = True
        return ids, mask

    return make


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
