"""Sentences, settings and small models of `transformers` for the tests of token classification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from heedful.data import Row, Rows
from heedful.models import Model
from heedful.pretrained import save
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.token_classification import TokenClassification

SMALL = ModelSettings(dim=32, heads=2, depth=1)
KINDS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTENCES = [
    ("Ann Lee lives in New York .", "B-PER I-PER O O B-LOC I-LOC O"),
    ("In Paris Bob met Ann !", "O B-LOC B-PER O B-PER O"),
    ("the rain , the rain", "O O O O O"),
    ("Bob Stone flew to Rome and New Delhi", "B-PER I-PER O O B-LOC O B-LOC I-LOC"),
    ("York is rainy", "B-LOC O O"),
]
SPEECH = [("the rain falls", "DET NOUN VERB"), ("rain the plants", "VERB DET NOUN"), ("a plants", "DET VERB")]


def rows(*sentences: tuple[str, str], file: str = "set.conll") -> Rows:
    found = [
        Row({"words": tuple(words.split()), "tags": tuple(tags.split())}, file, line)
        for line, (words, tags) in enumerate(sentences, 1)
    ]
    return Rows(found, 0, ("first", "last"))


def settings(**given: Any) -> RunSettings:
    chosen = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(size=200)} | given
    return RunSettings(task="token-classification", train=("-",), out="-", **chosen)


def saved(task: TokenClassification, model: Model, folder: Path) -> Path:
    """As a run writes it."""
    save(model, folder, extra={"task": task.name, "columns": dict(task.columns), **task.card_entries()})
    task.save(folder)
    return folder


# ----------------------------------------------------------------------------------------------------------- published

WORDS = "ann lee live s in new york paris bob met the rain , . ! stone flew to rome and delhi is y don ' t café 日本"
SHAPE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": SHAPE | {"max_position_embeddings": 40},
    "Roberta": SHAPE | {"max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1},
    "DistilBert": {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40, "max_position_embeddings": 40},
}


def tokenizer(name: str, prefix: bool = True) -> Any:
    """The family's own, over a small vocabulary; with ``prefix`` byte-level words begin with a space."""
    import tokenizers
    import transformers

    if name in ("Bert", "DistilBert"):
        letters = [mark + letter for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), *letters, "##s", "##本", "日"]
        return getattr(transformers, f"{name}Tokenizer")(vocab={w: i for i, w in enumerate(dict.fromkeys(vocabulary))})
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.pre_tokenizer = split
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=split.alphabet(), show_progress=False
    )
    backend.train_from_iterator([WORDS, WORDS.title(), "( and)"] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return getattr(transformers, f"{name}Tokenizer")(vocab=model["vocab"], merges=merges, add_prefix_space=prefix)


def published(name: str, folder: Path, labels: list[str], prefix: bool = True) -> tuple[Any, Any]:
    """A folder as its own library writes it: its tokenizer and model."""
    import transformers

    theirs = tokenizer(name, prefix)
    config = {**CONFIGS[name], "initializer_range": 0.5, "id2label": dict(enumerate(labels))}
    made = getattr(transformers, f"{name}Config")(vocab_size=len(theirs), **config)
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForTokenClassification")(made).eval()
    theirs.model_max_length = 40
    model.save_pretrained(folder)
    theirs.save_pretrained(folder)
    return theirs, model
