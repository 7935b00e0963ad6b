"""CTranslate2 runs what is exported, and generates what we do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    EmbeddingConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    ModelConfig,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.export import ctranslate2_writer as engine
from heedful.export import export
from heedful.models import Model, build
from heedful.text import Tokenizer

TEXT = ["the cat sat on the mat", "a dog ran to the big red house", "she sells sea shells by the sea shore"]
TOKENIZER = Tokenizer.train(TEXT * 5, size=300)
TARGET = Tokenizer.train([text[::-1] for text in TEXT * 5], size=300)
SIZE, NEW = TOKENIZER.vocab_size, 12
GREEDY = {"sampling_topk": 1, "include_prompt_in_result": False}
PLAIN = SpecialTokens(pad=0, start=1, end=(2,))
STACK = StackConfig(dim=32, depth=2, heads=4, kv_heads=4, head_dim=8, ff_dim=48)


def decoder(**changes: object) -> ModelConfig:
    config = presets.get("gpt-micro")
    embedding = EmbeddingConfig(vocab_size=SIZE)
    stack = replace(STACK, causal=True, **changes)  # type: ignore[arg-type]
    return replace(config, embedding=embedding, decoder=stack, special=PLAIN)


def pair(
    special: SpecialTokens = PLAIN, target: int | None = None, head: LanguageHead | None = None, **changes: object
) -> ModelConfig:
    stack = replace(STACK, **changes)  # type: ignore[arg-type]
    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=SIZE, scale="sqrt" if target is not None or head is None else "none"),
        target=None if target is None else EmbeddingConfig(vocab_size=target, scale="sqrt"),
        encoder=stack,
        decoder=replace(stack, causal=True, cross=True),
        head=head or LanguageHead(),
        special=special,
    )


MARIAN = presets.get("transformer-tiny").encoder
SINES = {"placement": "post", "position": MARIAN.position, "init": "xavier", "activation": "relu"}
T5 = {"norm": "rms", "norm_eps": 1e-6, "scale": "none", "attention_bias": "none", "ff_bias": False}
T5 |= {"position": RelativePosition(), "activation": "relu"}
LLAMA = {"norm": "rms", "activation": "silu", "gated": True, "attention_bias": "none", "ff_bias": False}
LLAMA |= {"position": RotaryPosition(), "kv_heads": 2}
BART = {"placement": "post", "embedding_norm": True, "position": LearnedPosition(length=64, offset=2)}
M2M = SinusoidalPosition(order="halves", base=10000 ** (32 / 30), offset=1)
OPT = {"position": LearnedPosition(length=64, offset=2), "activation": "relu"}
EIGHTS = EmbeddingConfig(vocab_size=-(-SIZE // 8) * 8)  # as the engine reads OPT alone
CASES = {
    "gpt2": decoder(position=LearnedPosition(length=64), activation="gelu_tanh"),
    "llama": decoder(**LLAMA),
    "mistral": decoder(**LLAMA, window=24),
    "opt": replace(decoder(**OPT), embedding=EIGHTS),
    "opt, post-norm": replace(decoder(**OPT, placement="post"), embedding=EIGHTS),
    "bloom": decoder(position=AlibiPosition(), activation="gelu_tanh", embedding_norm=True, ff_dim=None),
    "gptj": replace(
        decoder(position=RotaryPosition(share=0.5), sublayers="parallel-shared", attention_bias="none"),
        head=LanguageHead(tied=False, bias=True),
    ),
    "marian": pair(**SINES),
    "marian, two vocabularies": pair(target=TARGET.vocab_size, **SINES),
    "t5": pair(SpecialTokens(pad=0, start=0, end=(2,)), head=LanguageHead(scale="sqrt"), **T5),
    "bart": pair(head=LanguageHead(), **BART),
    "mbart": pair(head=LanguageHead(), **{**BART, "placement": "pre"}),
    "m2m_100": pair(placement="pre", activation="relu", position=M2M),
    "pegasus": pair(placement="pre", activation="relu", position=SinusoidalPosition(order="halves")),
}


def randomised(config: ModelConfig, seed: int = 0) -> Model:
    """Every weight random, norms of either sign: a tied head otherwise repeats what it is given."""
    model, random = build(config).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=random)
            norm = tensor.dim() == 1 and name.endswith("weight")
            tensor.copy_(noise.sign() + 0.3 * noise if norm else 0.3 * noise)
    return model


def stored(model: Model, folder: Path) -> Path:
    model.save_pretrained(folder)
    TOKENIZER.save(folder)
    config = model.config
    if isinstance(config, EncoderDecoderConfig) and config.target is not None:
        TARGET.save(folder, "tokenizer.target")
    return folder


def run(folder: Path, config: ModelConfig) -> list[list[int]]:
    """Greedy tokens from the engine."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    pieces = [[TOKENIZER.backend.id_to_token(i) or "" for i in ids] for ids in TOKENIZER.encode(TEXT)]
    if isinstance(config, EncoderDecoderConfig):
        back = (TOKENIZER if config.target is None else TARGET).backend
        made = ctranslate2.Translator(str(folder)).translate_batch(pieces, beam_size=1, max_decoding_length=NEW)
        return [[back.token_to_id(token) for token in one.hypotheses[0]] for one in made]
    made = ctranslate2.Generator(str(folder)).generate_batch(pieces, max_length=NEW, **GREEDY)
    return [one.sequences_ids[0] for one in made]


def ours(model: Model) -> list[list[int]]:
    """Greedy tokens from us, one text at a time: without prompt, start and end."""
    rows = []
    for ids in TOKENIZER.encode(TEXT):
        made = model.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False)[0].tolist()
        rows.append(made[1 if isinstance(model.config, EncoderDecoderConfig) else len(ids) :])
    return [row[: row.index(2)] if 2 in row else row for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_the_engine_generates_what_we_do(case: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = randomised(CASES[case])
    told = export(stored(model, tmp_path / "model"), "ctranslate2", tmp_path / "out")
    assert told["layout"] == case.split(",")[0]
    wanted = ours(model)
    assert len({tuple(row) for row in wanted}) > 1
    assert run(tmp_path / "out", CASES[case]) == wanted
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_a_folder_of_mt5(tmp_path: Path) -> None:
    """The engine has its own reader, which takes the folder as the layout that it has."""
    pytest.importorskip("ctranslate2")
    config = pair(SpecialTokens(pad=0, start=0, end=(2,)), head=LanguageHead(), **T5)
    folder = stored(randomised(config), tmp_path / "model")
    named = json.loads((folder / "config.json").read_text())
    named |= {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
    (folder / "config.json").write_text(json.dumps(named))
    assert export(folder, "ctranslate2", tmp_path / "out")["layout"] == "mt5"
    assert run(tmp_path / "out", config) == ours(heedful.from_pretrained(folder))


def test_a_marian_model_as_published(tmp_path: Path) -> None:
    """Padding begins the target, is embedded as zeros, and stands last: the converter's own reader takes it."""
    pytest.importorskip("ctranslate2")
    told = json.loads(TOKENIZER.backend.to_str())
    told["model"]["vocab"]["<none>"] = told["model"]["vocab"].pop("<pad>")
    told["added_tokens"][0]["content"] = "<none>"
    told["added_tokens"].append({**told["added_tokens"][0], "id": SIZE, "content": "<pad>"})
    config = pair(SpecialTokens(pad=SIZE, start=SIZE, end=(2,)), **SINES)
    assert isinstance(config, EncoderDecoderConfig)
    model = randomised(replace(config, source=replace(config.source, vocab_size=SIZE + 1)))
    with torch.no_grad():
        model.get_parameter("embedding.token.weight")[SIZE] = 0
    folder = stored(model, tmp_path / "model")
    (folder / "tokenizer.json").write_text(json.dumps(told))
    assert engine.as_published(model, Tokenizer.load(folder))
    export(folder, "ctranslate2", tmp_path / "out")
    assert run(tmp_path / "out", config) == ours(model)


def test_quantised_weights_are_smaller(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = stored(randomised(CASES["marian"]), tmp_path / "model")
    sizes = {
        how: export(folder, "ctranslate2", tmp_path / str(how), quantization=how)["files"]["model.bin"]
        for how in (None, "int8", "float16")
    }
    assert sizes["int8"] < 0.65 * sizes[None]  # the table of positions stays whole
    assert sizes["float16"] < 0.65 * sizes[None]
    assert all(map(len, run(tmp_path / "int8", CASES["marian"])))


def test_a_tokenizer_of_older_files_without_an_unknown_token(tmp_path: Path) -> None:
    """GPT-2's own files: vocab.json and merges.txt, and nothing that names special tokens."""
    pytest.importorskip("ctranslate2")
    from tokenizers.pre_tokenizers import ByteLevel

    letters = [*sorted(ByteLevel.alphabet()), "th", "the", "<|endoftext|>"]
    folder = tmp_path / "model"
    config = decoder(position=LearnedPosition(length=64), activation="gelu_tanh")
    config = replace(config, embedding=EmbeddingConfig(vocab_size=len(letters)), special=SpecialTokens(end=(258,)))
    model = randomised(config)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    export(folder, "ctranslate2", tmp_path / "out")
    import ctranslate2

    ids = Tokenizer.load(folder).encode(["the tooth"])[0]
    runner = ctranslate2.Generator(str(tmp_path / "out"))
    told = runner.generate_batch([[letters[i] for i in ids]], max_length=NEW, min_length=NEW, **GREEDY)[0]
    ours = model.generate(torch.tensor([ids]), max_new_tokens=NEW, min_new_tokens=NEW)[0, len(ids) :]
    assert told.sequences_ids[0] == ours.tolist()


def test_models_that_the_engine_cannot_take_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path / "bare")
    with pytest.raises(HeedfulError, match=r"bare has no tokenizer, and CTranslate2 needs its vocabulary"):
        export(tmp_path / "bare", "ctranslate2", tmp_path / "out")
    for preset in ("vit-micro", "bert-tiny"):
        folder = stored(heedful.create(preset, seed=0), tmp_path / preset)
        with pytest.raises(
            HeedfulError,
            match=rf"runs only models that generate text from text, and .*{preset} does not; use --to onnx",
        ):
            export(folder, "ctranslate2", tmp_path / "out")
    capped = heedful.presets.gemma2(16, 2, 4, 2, 24, head_dim=8)
    capped = replace(capped, embedding=replace(capped.embedding, vocab_size=60))
    folder = stored(heedful.create(capped, seed=0), tmp_path / "capped")
    with pytest.raises(HeedfulError, match="reader of gemma2 leaves out caps of scores and logits, windows and"):
        export(folder, "ctranslate2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


REFUSED = {
    "gpt_neox": decoder(position=RotaryPosition(share=0.25), sublayers="parallel"),
    "phi3": decoder(**{**LLAMA, "position": RotaryPosition(share=0.5)}),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_layouts_whose_newer_keys_the_converter_does_not_read(layout: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = stored(randomised(REFUSED[layout]), tmp_path / "model")
    with pytest.raises(HeedfulError, match=rf"CTranslate2 cannot convert this {layout} model .*; use --to onnx"):
        export(folder, "ctranslate2", tmp_path / "out")


def test_windows_of_attention(tmp_path: Path) -> None:
    """The engine has Mistral's for prompts that fit one, and its readers of other layouts have none."""
    pytest.importorskip("ctranslate2")
    folder = stored(randomised(CASES["mistral"]), tmp_path / "model")
    (note,) = export(folder, "ctranslate2", tmp_path / "out")["notes"]
    assert "after a prompt of more than 24 tokens, the window of attention; give it shorter ones" in note
    folder = stored(randomised(decoder(**LLAMA, qk_norm="head", window=24)), tmp_path / "qwen3")
    with pytest.raises(HeedfulError, match="reader of qwen3 leaves out windows of attention; use --to onnx"):
        export(folder, "ctranslate2", tmp_path / "none")
    folder = stored(randomised(CASES["llama"]), tmp_path / "llama")
    assert export(folder, "ctranslate2", tmp_path / "llama.ct2")["notes"] == []


def test_the_converters_table_is_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from ctranslate2.converters import transformers as readers

    before = dict(readers._MODEL_LOADERS)
    export(stored(randomised(CASES["bart"]), tmp_path / "model"), "ctranslate2", tmp_path / "out")
    assert before == readers._MODEL_LOADERS
