"""GGUF: llama.cpp reads the same tokens from a text, continues it as we do, and gives the same probabilities."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from heedful import cli
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    ExpertsConfig,
    LanguageHead,
    LearnedPosition,
    ModelConfig,
    RotaryPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.export.gguf_vocabulary import PATTERNS, vocabulary_of
from heedful.models import Model, build
from heedful.pretrained import load, save
from heedful.tasks.defaults import DECODER, DecoderSize
from heedful.tasks.text_generation import TextGeneration
from heedful.text import Tokenizer, chat_template

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>"]
TEXTS = [
    "The cat's dog didn't say 3 words, we'll see 12345 of them!",
    "Straße, naïve façade — „Zitat“ … 50 €",
    "Съешь ещё этих мягких французских булок, 2024 год",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "نص عربي مع أرقام ١٢٣ وعلامات، هنا",
    "हिन्दी में कुछ शब्द १२३",
    "ภาษาไทยไม่มีช่องว่าง",
    "快速的棕色狐狸跳过了懒狗。",
    "日本語の文章とカタカナ、123と４５６",
    "한국어 문장입니다.",
    "emoji 🎉👩‍👩‍👧 and \u200d joiners",
    "  two  spaces\tand tabs \n\n\nlines \r\n end  ",
    "def f(x):\n    return x**2  # comment\n",
    "a</s>b <s> c<|user|>d <|user|>",
]
LENGTH, NEW, PROMPT = 96, 20, "The cat's dog"


# ----------------------------------------------------------------------------------------------------------- tokenizers


def byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer, ignore_merges: bool = False, normalizer: Any = None
) -> Tokenizer:
    """A byte-level BPE trained with this pre-tokenizer, which puts nothing around a text."""
    backend = Backend(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.add_tokens([AddedToken("[tool]", special=False, normalized=False)])
    return Tokenizer(backend, {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def gpt2_tokenizer(prefix: bool = False) -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=prefix))


def qwen_tokenizer() -> Tokenizer:
    return byte_level(split(pattern_of("qwen2")), normalizer=normalizers.NFC())


def bloom_tokenizer() -> Tokenizer:
    return byte_level(split(pattern_of("bloom")))


def llama3_tokenizer() -> Tokenizer:
    """As Llama 3's: ``<s>`` before a text, and whole words before merges."""
    tokenizer = byte_level(split(pattern_of("llama-bpe")), ignore_merges=True)
    tokenizer.backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def digits_tokenizer() -> Tokenizer:
    """As SmolLM's."""
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return byte_level(pre_tokenizers.Sequence(steps))


def pattern_of(name: str) -> str:
    return next(pattern for pattern, own in PATTERNS.items() if own == name)


def sentencepiece(scheme: str = "legacy") -> Tokenizer:
    """A BPE as SentencePiece's files become: every pair of tokens that makes a third is a merge, with byte tokens."""
    letters = Backend(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    letters.train_from_iterator(TEXTS[:3] * 3, trainers.BpeTrainer(vocab_size=260, show_progress=False))
    pieces = sorted(letters.get_vocab().items(), key=lambda item: item[1])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *(piece for piece, _ in pieces)]
    ids = {token: number for number, token in enumerate(tokens)}
    known = set(tokens[259:])
    merges = [(t[:i], t[i:]) for t in tokens[259:] for i in range(1, len(t)) if {t[:i], t[i:]} <= known]
    backend = Backend(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme == "legacy":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "<s>", "</s>", "<|user|>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"})


# --------------------------------------------------------------------------------------------------------------- models

GPT2 = StackConfig(
    dim=64, depth=2, heads=4, ff_dim=96, causal=True, activation="gelu_tanh", position=LearnedPosition(length=LENGTH)
)
BLOOM = StackConfig(
    dim=96, depth=2, heads=6, causal=True, activation="gelu_tanh", position=AlibiPosition(), embedding_norm=True
)
LLAMA = StackConfig(
    dim=64,
    depth=2,
    heads=4,
    kv_heads=2,
    ff_dim=96,
    causal=True,
    norm="rms",
    gated=True,
    activation="silu",
    attention_bias="none",
    ff_bias=False,
    position=RotaryPosition(length=LENGTH),
)
OLMO2 = replace(LLAMA, placement="out", qk_norm="all")
GEMMA2 = replace(LLAMA, placement="sandwich", norm="rms-offset", activation="gelu_tanh", head_dim=32)
GEMMA2 = replace(GEMMA2, score_cap=1.5, window=(8, None))
LLAMA3_ROPE = RotaryPosition(
    length=LENGTH, scaling="llama3", factor=8.0, original_length=32, low_frequency_factor=1.0, base=5e5
)
YARN = RotaryPosition(length=LENGTH, scaling="yarn", factor=4.0, original_length=24, beta_fast=16.0)


@dataclass(frozen=True)
class Case:
    """A model of a layout, with its tokenizer and llama.cpp's architecture and pre-tokenizer."""

    stack: StackConfig
    tokenizer: Callable[[], Tokenizer]
    architecture: str
    pre: str
    tied: bool = True
    cap: float | None = None  # of logits
    spare: int = 0  # embeddings without a token


CASES = {
    "gpt2": Case(GPT2, gpt2_tokenizer, "gpt2", "gpt-2", spare=3),
    "llama": Case(LLAMA, sentencepiece, "llama", "default", tied=False),
    "llama, biases, llama3": Case(
        replace(LLAMA, attention_bias="all", ff_bias=True, position=LLAMA3_ROPE),
        *(llama3_tokenizer, "llama", "llama-bpe"),
    ),
    "llama, linear": Case(
        replace(LLAMA, head_dim=24, position=RotaryPosition(length=LENGTH, scaling="linear", factor=2.0)),
        *(digits_tokenizer, "llama", "smollm"),
    ),
    "llama, yarn": Case(replace(LLAMA, position=YARN), sentencepiece, "llama", "default"),
    "mistral": Case(
        replace(LLAMA, window=64),
        *(lambda: byte_level(split(pattern_of("tekken")), ignore_merges=True), "llama", "tekken"),
    ),
    "qwen2": Case(replace(LLAMA, attention_bias="qkv"), qwen_tokenizer, "qwen2", "qwen2", tied=False),
    "qwen2, yarn": Case(
        replace(LLAMA, attention_bias="qkv", position=replace(YARN, attention_factor=1.3)),
        *(qwen_tokenizer, "qwen2", "qwen2"),
    ),
    "bloom": Case(BLOOM, bloom_tokenizer, "bloom", "bloom", tied=False, spare=3),
    "qwen3": Case(replace(LLAMA, qk_norm="head", head_dim=32), qwen_tokenizer, "qwen3", "qwen2"),
    "gemma2": Case(GEMMA2, sentencepiece, "gemma2", "default", cap=3.0),
    "olmo2": Case(replace(OLMO2, position=YARN), qwen_tokenizer, "olmo2", "qwen2"),
}


def made(case: Case, folder: Path) -> Path:
    """A folder with a random model: weights large enough that tokens and positions matter."""
    tokenizer = case.tokenizer()
    size = tokenizer.vocab_size + case.spare
    config: ModelConfig = DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=size, scale="sqrt-rounded" if case.cap else "none"),
        decoder=case.stack,
        head=LanguageHead(tied=case.tied, logit_cap=case.cap),
        special=SpecialTokens(pad=tokenizer.pad, start=tokenizer.start, end=(tokenizer.end or 0,)),
    )
    save(randomised(config), folder)
    tokenizer.save(folder)
    return folder


def randomised(config: ModelConfig) -> Model:
    model, random = build(config).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=random)
            matrix = tensor.dim() == 2 and ".block." in name
            norm = tensor.dim() == 1 and name.endswith("weight")
            noise = noise - 1 if norm and config.decoder.norm == "rms-offset" else noise
            tensor.copy_(
                noise * (2 / tensor.size(-1) ** 0.5) if matrix else noise.sign() + noise / 4 if norm else noise / 3
            )
    return model


# ------------------------------------------------------------------------------------------------------------ llama.cpp


class Engine:
    """llama.cpp's server of a file."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a request."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text, without a start token."""
        return list(self.post("/tokenize", content=text, parse_special=special)["tokens"])

    def greedy(self, prompt: str | Sequence[int], count: int = NEW) -> dict[str, Any]:
        """The next tokens, and the log-probabilities of the likeliest at each that is a whole character."""
        return self.post(
            "/completion",
            prompt=prompt,
            n_predict=count,
            samplers=["top_k"],
            top_k=1,
            n_probs=8,
            return_tokens=True,
            cache_prompt=False,
        )


# In a process of its own, which is killed: the engine's own end waits for ever now and then.
ENGINE = """
import sys
import xllamacpp

options = xllamacpp.CommonParams()
options.model.path = sys.argv[1]
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
options.n_parallel, options.n_ctx, options.n_gpu_layers = 1, 0, 0
options.fit_params = options.warmup = options.cache_prompt = False
options.cache_ram_mib = 0
options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds more
options.verbosity = 1  # errors
server = xllamacpp.Server(options)
print("listens", server.listening_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def engine(file: Path) -> Iterator[Engine]:
    pytest.importorskip("xllamacpp")
    command = [sys.executable, "-c", ENGINE, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield Engine(next(line.split()[1] for line in lines if line.startswith("listens")))
        finally:
            process.kill()


@torch.no_grad()
def ours(model: Model, ids: Sequence[int]) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens after ``ids``, and the log-probabilities (N, V) of each."""
    prompt = torch.tensor([list(ids)])
    whole = model.generate(prompt, max_new_tokens=NEW, do_sample=False)
    new = whole[0, len(ids) :].tolist()
    return new, model(whole[:, :-1])[0, len(ids) - 1 :].log_softmax(-1)


def special_of(model: Model) -> SpecialTokens:
    assert isinstance(model.config, DecoderConfig)
    return model.config.special


def check(opened: Engine, folder: Path, prompt: str, tolerance: float, except_for: Sequence[str] = ()) -> None:
    """llama.cpp's tokens, greedy text and probabilities are ours."""
    task, model = TextGeneration.load(folder), load(folder)
    texts = [*TEXTS, *("x" + " " * n + "y" for n in range(1, 20))]
    other = {text for text in texts if opened.tokens(text) != task.tokenizer.encode([text])[0]}
    assert other == set(except_for)
    ids = [*task.before, *task.tokenizer.encode([prompt])[0]]
    wanted, scores = ours(model, ids)
    found = opened.greedy(prompt)["tokens"]
    assert len(set(wanted)) > 3  # not one token again and again
    assert found == wanted[: len(found)]
    assert len(found) == len(wanted) or wanted[len(found)] in special_of(model).end
    compared = 0
    for past in range(len(found)):
        for row in opened.greedy([*ids, *wanted[:past]], 1).get("completion_probabilities", []):
            for one in row["top_logprobs"]:
                assert abs(one["logprob"] - float(scores[past, one["id"]])) <= tolerance
                compared += 1
    assert compared >= 8 * 5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.full(keep=11)
def test_llama_cpp_continues_as_we_do(case: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    one = CASES[case]
    folder = made(one, tmp_path / "model")
    file = tmp_path / "model.gguf"
    told = export(folder, "gguf", file)
    assert (told["architecture"], told["tokenizer"], told["quantization"]) == (one.architecture, one.pre, "f32")
    assert told["context_length"] == {"bloom": 2048, "gemma2": LENGTH}.get(one.architecture, one.stack.window or LENGTH)
    marks = TEXTS[5:7] if one.pre == "tekken" else ()  # of which llama.cpp's pattern knows nothing
    assert bool(told["notes"]) == ((one.stack.window is not None and one.cap is None) or one.pre in ("qwen2", "tekken"))
    tolerance = 2e-2 if one.architecture in ("gpt2", "bloom") else 1e-3  # it looks GELU up in a float16 table
    with engine(file) as opened:
        check(opened, folder, PROMPT, tolerance, except_for=marks)


@pytest.mark.parametrize("quantization", [None, "q8_0"])
def test_published_weights(quantization: str | None, shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    folder, file = shared_data("weights/stories15M"), tmp_path / "stories.gguf"
    told = export(folder, "gguf", file, quantization=quantization)
    assert told["quantization"] == (quantization or "f16")  # as stored
    assert file.stat().st_size < {None: 32e6, "q8_0": 18e6}[quantization]
    with engine(file) as opened:
        check(opened, folder, "Once upon a time", {None: 1e-2, "q8_0": 0.5}[quantization])
        for row in json.loads((folder / "expected.json").read_text())["tokenizer"]:
            assert opened.post("/tokenize", content=row["text"], add_special=True)["tokens"] == row["ids"]


def test_the_published_tokenizer_of_gpt2(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    import lzma

    pytest.importorskip("gguf")
    source = shared_data("gpt2_tokenizer")
    for old, new in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (tmp_path / new).write_bytes(lzma.decompress((source / f"{old}.xz").read_bytes()))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokenizer = Tokenizer.load(tmp_path)
    folder = made(replace(CASES["gpt2"], tokenizer=lambda: tokenizer), tmp_path / "model")
    assert export(folder, "gguf", tmp_path / "model.gguf")["notes"] == []
    with engine(tmp_path / "model.gguf") as opened:
        for text in [*TEXTS, "a<|endoftext|>b"]:
            assert opened.tokens(text) == tokenizer.encode([text])[0]


def test_a_tokenizer_trained_here(tmp_path: Path) -> None:
    """The tokens differ only where the note says so."""
    pytest.importorskip("gguf")
    tokenizer = Tokenizer.train([*TEXTS, "a\n\n1"] * 5, size=400, template="none")
    folder = made(replace(CASES["gpt2"], tokenizer=lambda: tokenizer), tmp_path / "model")
    (note,) = export(folder, "gguf", tmp_path / "model.gguf")["notes"]
    assert "several line ends or tabs stand before a digit" in note
    with engine(tmp_path / "model.gguf") as opened:
        for text in (*TEXTS[:-1], "1 22  333\n4", "a\n\nb"):
            assert opened.tokens(text, special=False) == tokenizer.encode([text])[0]
        assert opened.tokens("a\n\n1") != tokenizer.encode(["a\n\n1"])[0]


@pytest.mark.parametrize("has_template", [False, True])
def test_a_space_before_the_first_part_alone(has_template: bool, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    folder = made(replace(CASES["llama"], tokenizer=lambda: sentencepiece("first")), tmp_path / "model")
    if has_template:
        (folder / chat_template.FILE).write_text(
            "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
        )
    (note,) = export(folder, "gguf", tmp_path / "model.gguf")["notes"]
    assert ("with no space" in note) == has_template
    tokenizer = Tokenizer.load(folder)
    with engine(tmp_path / "model.gguf") as opened:
        same = "<s><|user|>The cat<|user|> sat" if has_template else "The cat  sat"
        assert opened.tokens(same) == tokenizer.encode([same])[0]


def test_chat_template_and_end_tokens(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    folder = made(CASES["llama, biases, llama3"], tmp_path / "model")
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": [3, 2], "pad_token_id": 0}')
    (folder / chat_template.FILE).write_text(
        "{{- bos_token }}{%- for m in messages %}<|user|>{{ m.role }}\n"
        "{%- if m.role == 'assistant' -%}  {%- generation -%} {{ m.content }} {%- endgeneration -%}\n"
        "{% else %}{{ m.content }}{% endif %}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|user|>{% endif %}"
    )
    export(folder, "gguf", tmp_path / "model.gguf")
    keys = gguf.GGUFReader(tmp_path / "model.gguf").fields
    ids = {name: keys[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos", "eot", "padding")}
    assert ids == {"bos": 1, "eos": 2, "eot": 3, "padding": 0}
    assert keys["tokenizer.ggml.add_bos_token"].contents() is True
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Good day"},
        {"role": "user", "content": "Bye"},
    ]
    with engine(tmp_path / "model.gguf") as opened:
        told = opened.post("/apply-template", messages=talk)["prompt"]
    task = TextGeneration.load(folder)
    assert told.removeprefix("<s>") == chat_template.render_prompt(task.tokenizer, talk).removeprefix("<s>")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_weights_are_rounded_to_the_type(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize

    folder = made(CASES["qwen3"], tmp_path / "model")
    file = tmp_path / "model.gguf"
    export(folder, "gguf", file, quantization=kind)
    stored = {one.name: dequantize(one.data, one.tensor_type) for one in gguf.GGUFReader(file).tensors}
    state = load(folder).state_dict()
    for block in range(2):
        for ours, theirs in (("attention.out", "attn_output"), ("feed_forward.up", "ffn_up")):
            weight = state[f"decoder.block.{block}.{ours}.weight"]
            found = torch.tensor(stored[f"blk.{block}.{theirs}.weight"])
            blocks = weight.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1)
            step = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 1.13 / 254, "q4_0": 1.01 / 8}[kind]
            assert bool(
                (
                    (found - weight).abs()
                    <= step * (blocks if kind.startswith("q") else weight.abs()) + 1e-7 * (step > 0)
                ).all()
            )
    assert torch.equal(torch.tensor(stored["output_norm.weight"]), state["decoder.norm.weight"])
    assert {str(one.tensor_type.name) for one in gguf.GGUFReader(file).tensors} == {"F32", kind.upper()}


def test_a_tokenizer_of_bytes(tmp_path: Path) -> None:
    """Without merges."""
    pytest.importorskip("gguf")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    tokenizer = Tokenizer(backend, {"eos_token": "</s>"})
    folder = made(replace(CASES["gpt2"], tokenizer=lambda: tokenizer), tmp_path / "model")
    export(folder, "gguf", tmp_path / "model.gguf")
    with engine(tmp_path / "model.gguf") as opened:
        for text in TEXTS:
            assert opened.tokens(text) == tokenizer.encode([text])[0]


LETTERS = "Straße, naïve façade — 12 € „Zitat“ 한국어 🎉\n\t<s>"  # of one to four bytes


@pytest.mark.parametrize("size", DECODER, ids=lambda entry: f"{entry[1].preset}, {entry[0]:g}")
def test_the_default_language_model_is_that_of_llama_cpp(size: tuple[float, DecoderSize], tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text(
        "".join(f"{LETTERS} {n} the cat sat on the mat, and {n} dogs barked.\n" for n in range(99)), "utf-8"
    )
    kind, context = size[1].kind, 48
    command = ["train", "text-generation", "--train", str(text), "--out", str(tmp_path / "run"), "--max-steps=20"]
    command += ["--tokenizer.kind", kind, "--tokenizer.size=400", "--data.max-length", str(context)]
    assert cli.main([*command, "--model.dim=32", "--model.depth=1", "--training.lr=0.01", "--json"]) == 0
    told = export(tmp_path / "run", "gguf", tmp_path / "model.gguf")
    assert (told["architecture"], told["context_length"]) == ("llama", context)
    task, model = TextGeneration.load(tmp_path / "run"), load(tmp_path / "run")
    with engine(tmp_path / "model.gguf") as opened:
        for part in ("the cat sat", LETTERS, "한국어\n\n\t🎉 9"):
            assert opened.tokens(part, special=False) == task.tokenizer.encode([part])[0]
        ids = task.tokenizer.encode(["the cat"])[0]
        wanted, scores = ours(model, ids)
        found = opened.greedy("the cat")
        assert found["tokens"] == wanted[: len(found["tokens"])]
        assert len(found["tokens"]) == NEW
        expected = scores[0].sort(descending=True).values[:4].tolist()
        top = found["completion_probabilities"][0]["top_logprobs"][:4]
        assert [one["logprob"] for one in top] == pytest.approx(expected, abs=2e-4)


def test_the_context_is_that_of_training(tmp_path: Path) -> None:
    """Learned and rotary positions: in the configuration, the tokenizer, the task, and the file."""
    text = tmp_path / "book.txt"
    text.write_text("the cat sat on the mat.\n" * 40, encoding="utf-8")
    for preset in ("gpt2", "stories260k"):
        out = tmp_path / preset
        command = ["train", "text-generation", "--train", str(text), "--out", str(out), "--preset", preset]
        command += ["--tokenizer.kind=bpe", "--tokenizer.size=300", "--data.max-length=24", "--max-steps=1"]
        assert cli.main([*command, "--model.dim=16", "--model.heads=2", "--model.kv-heads=2", "--model.depth=1"]) == 0
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        assert config.get("max_position_embeddings", config.get("n_positions")) == 24
        assert TextGeneration.load(out).reads == 24
        assert json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))["model_max_length"] == 24
        assert export(out, "gguf", tmp_path / f"{preset}.gguf")["context_length"] == 24
    tokenizer = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    (out / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_max_length": 16}), encoding="utf-8")
    assert export(out, "gguf", tmp_path / "shorter.gguf")["context_length"] == 16


def test_characters_that_a_vocabulary_lacks_are_left_out(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["ab é"], 50, "character", template="none")
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size)
    assert vocabulary.merges == ["Ã ©"]
    assert set(vocabulary.tokens) == {"<pad>", "<s>", "</s>", "<unk>", "a", "b", "Ġ", "Ã©"}
    assert "leaves out characters that are not in the vocabulary" in vocabulary.notes[0]
    with pytest.raises(HeedfulError, match="of characters with the normaliser Lowercase"):
        vocabulary_of(Tokenizer.train(["ab"], 50, "character", lowercase=True, template="none"), 6)


def test_rows_that_are_no_whole_blocks_are_float16(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    folder = made(replace(CASES["gpt2"], stack=replace(GPT2, ff_dim=100)), tmp_path / "model")
    export(folder, "gguf", tmp_path / "model.gguf", quantization="q8_0")
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert kinds["position_embd.weight"] == "F32"


def test_the_stored_type_is_kept_and_an_adapter_merged(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize

    from heedful.adapters import LoraConfig, add_adapter, low_rank_parts, merge

    folder = made(CASES["qwen2"], tmp_path / "base")
    save(load(folder, dtype="bfloat16"), folder)
    model = add_adapter(load(folder), LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for part in low_rank_parts(model).values():
            part.lora_b.normal_()
    save(model, tmp_path / "adapter")
    told = export(tmp_path / "adapter", "gguf", tmp_path / "model.gguf")
    assert told["quantization"] == "bf16"
    found = {one.name: one for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}["blk.1.attn_q.weight"]
    merged = merge(load(tmp_path / "adapter")).state_dict()["decoder.block.1.attention.query.weight"]
    assert torch.equal(torch.tensor(dequantize(found.data, found.tensor_type)).bfloat16(), merged.bfloat16())


# --------------------------------------------------------------------------------------------------------------- errors

REFUSED = {
    "activation": (replace(CASES["llama"], stack=replace(LLAMA, activation="gelu")), "llama has no activation 'gelu'"),
    "gpt2's": (replace(CASES["gpt2"], stack=replace(GPT2, activation="relu")), "gpt2 has no activation 'relu'"),
    "bias": (replace(CASES["qwen3"], stack=replace(LLAMA, qk_norm="head", attention_bias="all")), "no attention_bias"),
    "experts": (
        replace(CASES["llama"], stack=replace(LLAMA, experts=ExpertsConfig())),
        "this model is of the layout mixtral; use --to onnx",
    ),
    "bias of norms": (replace(CASES["olmo2"], stack=replace(OLMO2, attention_bias="all")), "olmo2 has no attention_b"),
    "windows": (replace(CASES["gemma2"], stack=replace(GEMMA2, window=8)), "gemma2 has no other windows than"),
    "caps": (replace(CASES["gemma2"], stack=replace(GEMMA2, score_cap=None)), "no scores or logits without a cap"),
    "factor": (replace(CASES["gemma2"], stack=replace(GEMMA2, scale=0.25)), r"gemma2 has no scale of scores 0\.25"),
    "untied": (replace(CASES["gemma2"], tied=False), "gemma2 has no output of its own"),
    "size of heads": (replace(CASES["olmo2"], stack=replace(OLMO2, head_dim=32)), "olmo2 has no head_dim of its own"),
    "scaling": (
        replace(CASES["qwen2"], stack=replace(LLAMA, attention_bias="qkv", position=LLAMA3_ROPE)),
        "qwen2 has no llama3 rotary scaling",
    ),
    "words": (
        replace(CASES["gpt2"], tokenizer=lambda: Tokenizer.train(TEXTS, 200, "unigram", template="none")),
        "of type Unigram; .*--tokenizer.kind bpe",
    ),
    "lowercase": (
        replace(CASES["gpt2"], tokenizer=lambda: Tokenizer.train(TEXTS, 300, lowercase=True, template="none")),
        "the normaliser Lowercase",
    ),
    "prefix": (replace(CASES["gpt2"], tokenizer=lambda: gpt2_tokenizer(prefix=True)), "pre-tokenizer"),
    "pattern": (replace(CASES["gpt2"], tokenizer=lambda: byte_level(split(r"\w+"))), r"pre-tokenizer.*\\w"),
    "merges": (
        replace(CASES["gpt2"], tokenizer=lambda: byte_level(split(pattern_of("llama-bpe")))),
        "kind 'llama-bpe' with ignore_merges False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_llama_cpp_lacks_are_refused(case: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    one, message = REFUSED[case]
    folder = made(one, tmp_path / "model")
    with pytest.raises(HeedfulError, match=message):
        export(folder, "gguf", tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_other_models_are_refused(tmp_path: Path) -> None:
    import heedful

    pytest.importorskip("gguf")
    heedful.create("bert-tiny", seed=0).save_pretrained(tmp_path / "bert")
    with pytest.raises(HeedfulError, match="decoders that generate text, and this model is another"):
        export(tmp_path / "bert", "gguf", tmp_path / "model.gguf")
    save(randomised(DecoderConfig(embedding=EmbeddingConfig(vocab_size=9), decoder=GPT2)), tmp_path / "bare")
    with pytest.raises(HeedfulError, match="tokenizer"):
        export(tmp_path / "bare", "gguf", tmp_path / "model.gguf")


def test_sentencepiece_merges_that_scores_do_not_express() -> None:
    state = json.loads(sentencepiece().backend.to_str())
    state["model"]["merges"] = state["model"]["merges"][1:]
    tokenizer = Tokenizer(Backend.from_str(json.dumps(state)), {})
    with pytest.raises(HeedfulError, match="merges no scores of tokens express"):
        vocabulary_of(tokenizer, tokenizer.vocab_size)


def test_tokens_and_embeddings_that_do_not_fit() -> None:
    with pytest.raises(HeedfulError, match="but the model has 5 embeddings"):
        vocabulary_of(gpt2_tokenizer(), 5)
    tokenizer = gpt2_tokenizer()
    tokenizer.add(["<2fr>"])  # with the spaces after it
    with pytest.raises(HeedfulError, match="rstrip on the token '<2fr>'"):
        vocabulary_of(tokenizer, tokenizer.vocab_size)


def test_weights_beyond_the_type(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    folder = made(CASES["gpt2"], tmp_path / "model")
    model = load(folder)
    with torch.no_grad():
        model.get_parameter("decoder.block.0.feed_forward.up.weight")[0, 0] = 1e5
    save(model, folder)
    with pytest.raises(HeedfulError, match=r"ffn_up\.weight has the value 100000, too large for f16"):
        export(folder, "gguf", tmp_path / "model.gguf", quantization="f16")
    export(folder, "gguf", tmp_path / "model.gguf", quantization="bf16")


def test_the_command_writes_a_file_and_its_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    folder = made(CASES["mistral"], tmp_path / "model")
    command = ["export", str(folder), "--to", "gguf", "--out"]
    assert cli.main([*command, str(tmp_path / "folder")]) == 2
    assert "--to gguf writes a file; give --out a name that ends in .gguf" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "a.gguf"), "--quantization", "int8"]) == 2
    assert "unknown quantization 'int8' of --to gguf" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "a.gguf")]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'a.gguf'}  {(tmp_path / 'a.gguf').stat().st_size:,} bytes\n"
    assert "without the sliding window of 64 tokens" in printed.err
