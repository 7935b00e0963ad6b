"""Tiny multilingual translators with their tokenizers, as ``transformers`` writes them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers as hf

hf.logging.set_verbosity_error()

WORDS = ["▁the", "▁man", "▁is", "▁here", "▁le", "▁homme", "▁est", "▁ici", "▁a", "▁and"]
TEXTS = ["the man is here", "a man and the homme", "here and here and here is a man"]
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64}
SIZES |= {"scale_embedding": True}


def mbart_tokenizer(kind: Any) -> Any:
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -5.0)]
    codes = import_module(kind.__module__).FAIRSEQ_LANGUAGE_CODES
    words = [(word, -float(n)) for n, word in enumerate(WORDS, 1)]
    return kind(vocab=[*first, *words, *((code, 0.0) for code in codes), ("<mask>", 0.0)])


def nllb_tokenizer(**settings: Any) -> Any:
    letters = sorted({letter for word in WORDS for letter in word})
    vocab = {name: number for number, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    return hf.NllbTokenizer(vocab=vocab, merges=[], **settings)


# name: (tokenizer, model, settings, two directions, does the language begin the target in place of the start token)
CASES: dict[str, tuple[Callable[[], Any], Any, dict[str, Any], list[tuple[str, str]], bool]] = {
    "mbart-50": (
        lambda: mbart_tokenizer(hf.MBart50Tokenizer),
        hf.MBartForConditionalGeneration,
        {"decoder_start_token_id": 2},
        [("en_XX", "fr_XX"), ("fr_XX", "de_DE")],
        False,
    ),
    "mbart-25": (
        lambda: mbart_tokenizer(hf.MBartTokenizer),
        hf.MBartForConditionalGeneration,
        {},
        [("en_XX", "fr_XX"), ("fr_XX", "ro_RO")],
        True,
    ),
    "nllb": (
        nllb_tokenizer,
        hf.M2M100ForConditionalGeneration,
        {"decoder_start_token_id": 2},
        [("eng_Latn", "fra_Latn"), ("fra_Latn", "deu_Latn")],
        False,
    ),
    "nllb legacy": (
        lambda: nllb_tokenizer(legacy_behaviour=True),
        hf.M2M100ForConditionalGeneration,
        {"decoder_start_token_id": 2},
        [("eng_Latn", "fra_Latn"), ("fra_Latn", "deu_Latn")],
        False,
    ),
}


def published(case: str, folder: Path, seed: int = 0) -> Path:
    """A tiny model with its tokenizer, as ``transformers`` writes them."""
    make, kind, settings, _, _ = CASES[case]
    tokenizer = make()
    model = kind(kind.config_class(**SIZES, **settings, vocab_size=len(tokenizer)))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.5 + ("norm" in name and "weight" in name))
        table = model.get_input_embeddings().weight
        special = [n for name, n in tokenizer.get_vocab().items() if "▁" not in name and len(name) > 1]
        table[special] *= 0.2  # so that words are generated
    model.generation_config.max_new_tokens = 9
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
