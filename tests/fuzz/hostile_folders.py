"""Pretrained folders that are damaged, hostile or merely odd, of every model type and of every task."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from hostile_values import altered, broken_text, changed, damaged, hostile, shown
from safetensors.torch import load_file, save_file
from sandbox import CANARY, Case, Fault

import heedful
from answering_folders import saved
from heedful import tasks
from heedful.config import patches_of
from heedful.pretrained import load, save
from heedful.pretrained.configuration import config_of

LABELS = {"id2label": {"0": "no", "1": "yes", "2": "what"}, "label2id": {"no": 0, "yes": 1, "what": 2}}
IDS = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = IDS | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}
OPT = IDS | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
OPT |= {"max_position_embeddings": 12}
LLAMA = IDS | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 12, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
GPT_NEOX = IDS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
GPT_NEOX |= {"max_position_embeddings": 12}
BERT = IDS | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT |= {"max_position_embeddings": 14, "type_vocab_size": 2}
DISTIL = IDS | {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 12}
BART = IDS | {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "max_position_embeddings": 12}
BART |= {"decoder_start_token_id": 2}
T5 = IDS | {"d_model": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "d_kv": 6, "d_ff": 24}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0}
VIT = LABELS | {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
VIT |= {"patch_size": 4, "image_size": 12, "num_channels": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 100.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
LLAMA3 |= {"original_max_position_embeddings": 6, "rope_theta": 50.0}

# name: (model type, class, config.json)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT2),
    "gpt2 sequence": ("gpt2", "GPT2ForSequenceClassification", GPT2 | LABELS),
    "openai-gpt": ("openai-gpt", "OpenAIGPTLMHeadModel", GPT2),
    "opt": ("opt", "OPTForCausalLM", OPT),
    "opt post-norm": ("opt", "OPTForCausalLM", OPT | {"do_layer_norm_before": False}),
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", GPT_NEOX),
    "gptj": ("gptj", "GPTJForCausalLM", GPT2 | {"rotary_dim": 2}),
    "bloom": ("bloom", "BloomForCausalLM", IDS | {"hidden_size": 16, "n_layer": 2, "n_head": 4}),
    "llama": ("llama", "LlamaForCausalLM", LLAMA),
    "llama yarn": ("llama", "LlamaForCausalLM", LLAMA | {"rope_parameters": YARN}),
    "llama llama3": ("llama", "LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3, "head_dim": 6}),
    "mistral": ("mistral", "MistralForCausalLM", LLAMA | {"sliding_window": 3}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", LLAMA | {"head_dim": 8}),
    "phi3": ("phi3", "Phi3ForCausalLM", LLAMA),
    "mixtral": ("mixtral", "MixtralForCausalLM", LLAMA | {"num_local_experts": 3}),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", LLAMA),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", LLAMA | {"head_dim": 4, "sliding_window": 3}),
    "bert": ("bert", "BertForMaskedLM", BERT),
    "bert token": ("bert", "BertForTokenClassification", BERT | LABELS | {"classifier_dropout": 0.1}),
    "roberta": ("roberta", "RobertaForSequenceClassification", BERT | LABELS | {"pad_token_id": 1, "bos_token_id": 0}),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaForMaskedLM", BERT | {"pad_token_id": 1, "bos_token_id": 0}),
    "albert": ("albert", "AlbertForMaskedLM", BERT | {"embedding_size": 8}),
    "mpnet": ("mpnet", "MPNetForTokenClassification", BERT | LABELS | {"pad_token_id": 1, "bos_token_id": 0}),
    "electra": ("electra", "ElectraForMaskedLM", BERT | {"embedding_size": 8}),
    "camembert": (
        "camembert",
        "CamembertForTokenClassification",
        BERT | LABELS | {"pad_token_id": 1, "bos_token_id": 5},
    ),
    "modernbert": ("modernbert", "ModernBertForMaskedLM", BERT | {"local_attention": 4, "num_hidden_layers": 3}),
    "distilbert": ("distilbert", "DistilBertForQuestionAnswering", DISTIL),
    "marian": ("marian", "MarianMTModel", BART | {"pad_token_id": 22, "decoder_start_token_id": 22}),
    "bart": ("bart", "BartForConditionalGeneration", BART),
    "mbart": ("mbart", "MBartForConditionalGeneration", BART),
    "m2m_100": ("m2m_100", "M2M100ForConditionalGeneration", BART),
    "pegasus": ("pegasus", "PegasusForConditionalGeneration", BART),
    "mt5": ("mt5", "MT5ForConditionalGeneration", T5),
    "t5": ("t5", "T5ForConditionalGeneration", T5),
    "t5 gated": ("t5", "T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}),
    "switch_transformers": (
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        T5 | {"num_experts": 3},
    ),
    "vit": ("vit", "ViTForImageClassification", VIT),
    "deit": ("deit", "DeiTForImageClassificationWithTeacher", VIT),
    "dinov2": ("dinov2", "Dinov2ForImageClassification", VIT | {"mlp_ratio": 2}),
    "ijepa": ("ijepa", "IJepaForImageClassification", VIT),
}
TASKS = tuple(tasks.TASKS)
WRITERS = ("translation", "summarization", "generative-question-answering", "text-generation", "image-to-text")

# keys that config.json and its neighbours may hold, with a right value
CONFIG_KEYS: dict[str, Any] = {
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "rope_parameters": YARN,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "head_dim": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "mlp_bias": False,
    "hidden_act": "gelu",
    "classifier_dropout": 0.1,
    "problem_type": "multi_label_classification",
    "num_labels": 3,
    "id2label": {"0": "no", "1": "yes", "2": "what"},
    "label2id": {"no": 0, "yes": 1, "what": 2},
    "torch_dtype": "float32",
    "dtype": "bfloat16",
    "auto_map": {"AutoModel": "modeling_x.X", "AutoConfig": "modeling_x.X"},
    "custom_pipelines": {"x": {"impl": "modeling_x.X"}},
    "quantization_config": {"quant_method": "gptq", "bits": 4},
    "pruned_heads": {"0": [1]},
    "is_decoder": True,
    "is_encoder_decoder": True,
    "scale_embedding": True,
    "position_embedding_type": "absolute",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "qkv_bias": True,
    "decoder_start_token_id": 0,
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 2,
    "suppress_tokens": [1, 2],
    "bad_words_ids": [[3, 4]],
    "vocab_size": 23,
    "model_type": "bert",
    "architectures": ["BertModel"],
    "transformers_version": "5.0.0",
    "task_specific_params": {"summarization": {"prefix": "x", "num_beams": 2}},
    "attention_dropout": 0.1,
    "n_inner": 24,
    "scale_attn_by_inverse_layer_idx": True,
    "heedful": {"encoder.init": "xavier"},
    "unknown_key": 1,
}
GENERATION_KEYS: dict[str, Any] = {
    "max_length": 20,
    "max_new_tokens": 5,
    "min_length": 1,
    "min_new_tokens": 1,
    "num_beams": 2,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.9,
    "length_penalty": 1.0,
    "early_stopping": "never",
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.1,
    "encoder_no_repeat_ngram_size": 2,
    "suppress_tokens": [3],
    "begin_suppress_tokens": [4],
    "bad_words_ids": [[3, 4]],
    "force_words_ids": [[3]],
    "sequence_bias": [[[3], 1.0]],
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 2,
    "eos_token_id": [1, 2],
    "bos_token_id": 1,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "exponential_decay_length_penalty": [3, 1.1],
    "penalty_alpha": 0.6,
    "num_return_sequences": 2,
    "stop_strings": ["a"],
    "guidance_scale": 1.5,
    "max_time": 1.0,
    "use_cache": True,
    "cache_implementation": "static",
    "watermarking_config": {"bias": 2.0},
}
TEMPLATES = [
    "{{ messages[0]['content'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch harm') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ lipsum(n=100000) }}",
    "{% set x = 'a' * 100000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('\ud800 no') }}",
    "{% for %}",
    "{{ messages.nothing.nothing }}",
    "{{ [1] | map(attribute='x') | list }}",
    "",
]
TOKENIZER_KEYS: dict[str, Any] = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token": "<s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "[CLS]",
    "model_max_length": 16,
    "split_special_tokens": True,
    "add_bos_token": True,
    "add_eos_token": True,
    "add_prefix_space": True,
    "do_lower_case": True,
    "chat_template": "{{ messages }}",
    "added_tokens_decoder": {"3": {"content": "<new>", "special": True, "lstrip": False, "normalized": False}},
    "additional_special_tokens": ["<a>", "<b>"],
    "extra_special_tokens": {"image_token": "<img>"},
    "tokenizer_class": "BertTokenizer",
    "padding_side": "left",
    "truncation_side": "left",
    "clean_up_tokenization_spaces": True,
    "source_lang": "en",
    "separate_vocabs": True,
    "auto_map": {"AutoTokenizer": ["modeling_x.X", None]},
}
TOKENIZER_JSON_KEYS: dict[str, Any] = {
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
    "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": []},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 2, "direction": "Right"},
    "padding": {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
    "added_tokens": [{"id": 10**9, "content": "z", "special": True, "lstrip": False, "rstrip": False}],
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"},
    "version": "1.0",
}
CARD_KEYS: dict[str, Any] = {
    "task": "text-classification",
    "columns": {"text": "text", "label": "label"},
    "head": "pooled",
    "labels": ["a", "b"],
    "layout": "bert",
    "metrics": {"accuracy": 0.5},
    "prefix": "translate: ",
    "max_length": 8,
    "context": 8,
    "data": {"train": ["x.tsv"]},
}
IMAGE_KEYS: dict[str, Any] = {
    "image_mean": [0.5],
    "image_std": [0.5],
    "size": {"height": 28, "width": 28},
    "crop_size": {"height": 28, "width": 28},
    "do_center_crop": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 0.0039,
    "image_processor_type": "ViTImageProcessor",
    "feature_extractor_type": "ViTFeatureExtractor",
}
ADAPTER: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query", "value"]}
ADAPTER |= {"base_model_name_or_path": "base", "task_type": "SEQ_CLS", "lora_dropout": 0.0, "bias": "none"}
KEYS: dict[str, dict[str, Any]] = {
    "config.json": CONFIG_KEYS,
    "generation_config.json": GENERATION_KEYS,
    "tokenizer_config.json": TOKENIZER_KEYS,
    "tokenizer.json": TOKENIZER_JSON_KEYS,
    "heedful.json": CARD_KEYS,
    "preprocessor_config.json": IMAGE_KEYS,
    "special_tokens_map.json": {"pad_token": "<pad>", "eos_token": {"content": "</s>", "lstrip": False}},
    "added_tokens.json": {"<new>": 3},
    "adapter_config.json": ADAPTER,
    "sentence_bert_config.json": {"max_seq_length": 8, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
    "modules.json": {},
}
WEIGHTS = "model.safetensors"
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "U64", "C64", "X", ""]


def base(root: Path, name: str) -> Path:
    """The folder of a small model that is as it should be, made once below ``root``."""
    folder = root / name.replace(" ", "-")
    if not (folder / "config.json").exists():
        if name in TASKS:
            return saved(name, folder)
        kind, made, values = MODELS[name]
        folder.mkdir(parents=True)
        config = {"model_type": kind, "architectures": [made], **values}
        (folder / "config.json").write_text(json.dumps(config))
        save(heedful.create(config_of(folder), seed=0), folder / "saved")
        for path in (folder / "saved").iterdir():
            path.replace(folder / path.name)
        (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | config))
    return folder


def prepare(root: Path) -> None:
    """Makes all of them."""
    for name in (*TASKS, *MODELS):
        base(root, name)


def case(random: Random, root: Path, folder: Path) -> Case:
    """A copy of a right folder with one or two things changed, and what opens it and asks it."""
    name = random.choice(TASKS) if random.random() < 0.5 else random.choice(list(MODELS))
    model = folder / "model"
    shutil.copytree(base(root, name), model)
    done = [_change(random, model) for _ in range(random.choice([1, 1, 2]))]
    use, run = _use(random, name, model, folder / "out")
    return f"{name}: {'; '.join(done)} [{use}]", run


def _change(random: Random, model: Path) -> str:
    ways: list[tuple[Callable[[Random, Path], str], int]] = [
        (_value, 50),
        (_text, 8),
        (_special, 5),
        (_header, 10),
        (_tensors, 12),
        (_bytes, 4),
        (_shards, 4),
        (_pickle, 4),
        (_code, 2),
        (_template, 4),
        (_other_tokenizer, 3),
        (_adapter, 2),
    ]
    [way] = random.choices([way for way, _ in ways], [weight for _, weight in ways])
    return way(random, model)


def _json(random: Random, model: Path) -> Path:
    """One of the folder's JSON files, or one that could be there."""
    here = sorted(path for path in model.rglob("*.json") if path.is_file() and path.stat().st_size < 1 << 24)
    if not here or random.random() < 0.15:
        return model / random.choice(sorted(KEYS))
    weights = [5 if path.name == "config.json" else 2 for path in here]
    return random.choices(here, weights)[0]


def _value(random: Random, model: Path) -> str:
    path = _json(random, model)
    try:
        tree = json.loads(path.read_text()) if path.is_file() and path.stat().st_size < 1 << 24 else {}
    except (ValueError, RecursionError):
        tree = {}  # an earlier change broke it
    done = changed(random, tree, KEYS.get(path.name, {}))
    path.write_text(json.dumps(tree))
    return f"{path.name}: {done}"


def _text(random: Random, model: Path) -> str:
    path = _json(random, model)
    how, content = broken_text(random, path.read_text(errors="replace") if path.is_file() else "{}")
    path.write_bytes(content)
    return f"{path.name}: {how}"


def _special(random: Random, model: Path) -> str:
    """A file that is no file."""
    here = sorted(path for path in model.iterdir() if path.is_file())
    path = random.choice([*here, model / random.choice(sorted(KEYS))])
    if path.is_dir() and not path.is_symlink():
        return f"{path.name}: a folder already"
    path.unlink(missing_ok=True)
    how = make_special(random, path)
    return f"{path.name}: {how}"


def make_special(random: Random, path: Path, pipes: bool = True) -> str:
    """A pipe, socket, device, folder, loop or an endless or absent file in the place of ``path``."""
    ways = ["socket", "folder", "loop", "zeros", "full", "nothing", "broken link", "sparse", "no"]
    how = random.choice(["FIFO", *ways] if pipes else ways)
    match how:
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's path is short
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
            os.chdir(here)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "zeros":
            path.symlink_to("/dev/zero")
        case "full":
            path.symlink_to("/dev/full")
        case "nothing":
            path.symlink_to("/dev/null")
        case "broken link":
            path.symlink_to(path.parent / "nowhere")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 30)
    return how


def _stored(model: Path) -> dict[str, torch.Tensor] | None:
    try:
        return load_file(model / WEIGHTS)
    except Exception:
        return None  # an earlier change took it


def _header(random: Random, model: Path) -> str:
    """The same numbers under a header that says something else."""
    path = model / WEIGHTS
    if not path.is_file() or path.stat().st_size < 8 or path.stat().st_size > 1 << 24:
        return "no weights"
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    try:
        told = json.loads(whole[8 : 8 + length])
    except (ValueError, MemoryError):
        return "no header"
    if random.random() < 0.2:
        number = random.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1])
        path.write_bytes(struct.pack("<Q", number) + whole[8:])
        return f"header of {number} bytes"
    name = random.choice([key for key in sorted(told) if key != "__metadata__"])
    entry = told[name]
    a, b = entry["data_offsets"]
    how = random.choice(["dtype", "shape", "offsets", "value", "metadata", "name", "twice", "many"])
    match how:
        case "dtype":
            entry["dtype"] = random.choice(DTYPES)
        case "shape":
            entry["shape"] = random.choice([[], [0], [-1], [2**62, 4], entry["shape"] + [1], entry["shape"][::-1]])
        case "offsets":
            entry["data_offsets"] = random.choice([[b, a], [0, 0], [a, b + 8], [-1, b], [a, 2**63], [a], [a, b, b]])
        case "value":
            changed(random, told, {})
        case "metadata":
            told["__metadata__"] = random.choice([{"format": "pt"}, {"a": 1}, [], None, {"x": "y" * 10**6}])
        case "name":
            told[random.choice(["", "\0", "a" * 5000, "../x", "\ud800", name.upper()])] = told.pop(name)
        case "twice":
            told[name + ".copy"] = dict(entry)
        case "many":
            told |= {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [b, b]} for i in range(20_000)}
    said = json.dumps(told).encode()
    path.write_bytes(struct.pack("<Q", len(said)) + said + whole[8 + length :])
    return f"header: {how} of {name} = {shown(told.get(name))}"


def _tensors(random: Random, model: Path) -> str:
    """Other tensors than the configuration says, or other numbers in them."""
    tensors = _stored(model)
    if not tensors:
        return "no weights"
    name = random.choice(sorted(tensors))
    tensor = tensors[name]
    floats = tensor.is_floating_point()
    how = random.choice(["NaN", "infinity", "huge", "missing", "extra", "flat", "wide", "type", "empty", "scalar", "0"])
    match how:
        case "NaN" | "infinity" | "huge":
            value = {"NaN": math.nan, "infinity": random.choice([math.inf, -math.inf]), "huge": 3e38}[how]
            if floats and tensor.numel():
                tensor.view(-1)[random.randrange(tensor.numel())] = value
        case "missing":
            del tensors[name]
        case "extra":
            tensors[random.choice(["x", name + ".x", name.replace(".0.", ".7."), "lm_head.bias"])] = torch.ones(3)
        case "flat":
            tensors[name] = tensor.reshape(-1)
        case "wide":
            tensors[name] = torch.cat((tensor, tensor))
        case "type":
            kinds = [torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.uint8]
            tensors[name] = tensor.to(random.choice(kinds))
        case "empty":
            tensors[name] = tensor[:0].clone()
        case "scalar":
            tensors[name] = torch.tensor(1.0)
        case "0":
            tensors[name] = torch.zeros_like(tensor)
    save_file(tensors, model / WEIGHTS)
    return f"tensor {name}: {how}"


def _bytes(random: Random, model: Path) -> str:
    here = sorted(path for path in model.iterdir() if path.is_file() and path.stat().st_size < 1 << 24)
    if not here:
        return "no files"
    path = random.choice(here)
    how, content = damaged(random, path.read_bytes())
    path.write_bytes(content)
    return f"{path.name}: {how}"


def _shards(random: Random, model: Path) -> str:
    """The tensors in two files, under an index that has something wrong."""
    tensors = _stored(model)
    if not tensors or len(tensors) < 2:
        return "no weights"
    (model / WEIGHTS).unlink()
    names = sorted(tensors)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::2]}, model / file)
    index: Any = {"metadata": {"total_size": 1}, "weight_map": {name: files[i % 2] for i, name in enumerate(names)}}
    how = "nothing"
    if random.random() < 0.9:
        name = random.choice(names)
        bad = [
            "../x.safetensors",
            "/dev/zero",
            "x",
            files[0],
            files[1],
            "a" * 5000,
            "\0",
            None,
            3,
            ["x"],
            "config.json",
        ]
        index["weight_map"][name] = value = random.choice(bad)
        how = f"{name} in {shown(value)}"
    if random.random() < 0.3:
        how += ", " + changed(random, index, {})
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return f"index: {how}"


class Harm:
    """Code in a pickle: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _pickle(random: Random, model: Path) -> str:
    """A pickle beside the weights or in their place."""
    tensors = _stored(model) or {}
    if random.random() < 0.8:
        (model / WEIGHTS).unlink(missing_ok=True)
    name = random.choice(
        ["pytorch_model.bin", "pytorch_model.bin", "training_args.bin", "optimizer.pt", "tokenizer.pkl"]
    )
    path, how = model / name, random.choice(["code", "bare code", "tensors", "damaged", "more", "zip"])
    match how:
        case "code":
            torch.save(tensors | {"x": Harm(model / CANARY)}, path)
        case "bare code":
            path.write_bytes(pickle.dumps({"a": Harm(model / CANARY)}))
        case "tensors":
            torch.save(tensors, path, _use_new_zipfile_serialization=random.random() < 0.5)
        case "damaged":
            torch.save(tensors, path)
            path.write_bytes(damaged(random, path.read_bytes())[1])
        case "more":
            torch.save(random.choice([{"model": tensors}, list(tensors.values()), tensors | {"a": 1}, 3, None]), path)
        case "zip":
            path.write_bytes(b"PK\x03\x04" + random.randbytes(300))
    return f"{name}: {how}"


def _code(random: Random, model: Path) -> str:
    """Modules that a folder asks to import."""
    line = f"open({str(model / CANARY)!r}, 'w').close()\nclass X: pass\n"
    names = ["modeling_x.py", "tokenization_x.py", "__init__.py", "sitecustomize.py", "torch.py", "heedful.py"]
    for name in names:
        (model / name).write_text(line)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        path = model / name
        with suppress(ValueError, OSError, RecursionError):
            tree = json.loads(path.read_text()) if path.is_file() and path.stat().st_size < 1 << 24 else None
            if isinstance(tree, dict):
                tree |= {"auto_map": {f"Auto{kind}": "modeling_x.X" for kind in ("Model", "Config", "Tokenizer")}}
                tree |= random.choice([{}, {"custom_generate": "modeling_x.py"}, {"model_type": "x"}])
                path.write_text(json.dumps(tree))
    return "code"


def _template(random: Random, model: Path) -> str:
    template = random.choice(TEMPLATES)
    (model / "chat_template.jinja").write_text(template, errors="surrogatepass")
    return f"chat_template.jinja: {shown(template)}"


def _other_tokenizer(random: Random, model: Path) -> str:
    """The files of older tokenizers in the place of tokenizer.json."""
    (model / "tokenizer.json").unlink(missing_ok=True)
    vocab = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", "[UNK]", "a", "b", "ab", "th", "e"])}
    lines = "\n".join(vocab)
    files = random.choice(
        [
            {"vocab.txt": lines},
            {"vocab.json": json.dumps(vocab), "merges.txt": "#version: 0.2\na b\nt h\n"},
            {"vocab.json": json.dumps(vocab | {"a": hostile(random)}), "merges.txt": "a b c\n\n"},
            {"vocab.json": json.dumps(altered(random, vocab)), "merges.txt": "a b"},
            {"vocab.json": "[]", "merges.txt": "\0"},
            {"vocab.txt": "a\na\na\n"},
            {"vocab.txt": "\n" * 10},
            {"spiece.model": "\n\x0e\n\x05"},
            {"tokenizer.model": "\0" * 100},
            {"sentencepiece.bpe.model": ""},
            {"source.spm": "x", "target.spm": "x", "vocab.json": json.dumps(vocab)},
        ]
    )
    for name, text in files.items():
        (model / name).write_text(text)
    return f"tokenizer of {', '.join(files)}"


def _adapter(random: Random, model: Path) -> str:
    """An adapter's configuration beside or in place of the weights."""
    config = dict(ADAPTER)
    config["base_model_name_or_path"] = random.choice(["base", "", "..", str(model), "/dev/zero", None, 3, "a/b/c"])
    done = changed(random, config, {"auto_mapping": {"x": 1}, "modules_to_save": ["classifier"], "rank_pattern": {}})
    (model / "adapter_config.json").write_text(json.dumps(config))
    if random.random() < 0.5 and (model / WEIGHTS).is_file():
        (model / WEIGHTS).rename(model / "adapter_model.safetensors")
    return f"adapter_config.json: {done}"


@cache
def inputs(task: str) -> tuple[Any, ...]:
    """Inputs of a task."""
    if task in ("image-classification", "image-to-text"):
        from PIL import Image

        return (Image.new("L", (30, 20), 99),)
    if task.endswith("question-answering"):
        return ({"question": "what is a saw?", "context": "the saw is a tool, and saw"},)
    if task == "fill-mask":
        return ("the <mask> is a tool",)
    return ("the saw is a tool", "plum")


def _use(random: Random, name: str, model: Path, out: Path) -> tuple[str, Callable[[], str]]:
    if name in TASKS and random.random() < 0.85:
        options: dict[str, Any] = {}
        if name in WRITERS:
            options["max_new_tokens"] = 4
            options |= random.choice([{}, {}, {"num_beams": 2}, {"do_sample": True, "seed": 1}])
        talk = name == "text-generation" and (model / "chat_template.jinja").is_file()
        return f"pipeline {options or ''}", lambda: _asked(name, model, options, talk)
    choices: list[dict[str, Any]] = [{}, {}, {}, {"head": "sequence", "num_labels": 2}, {"dtype": "bfloat16"}]
    choices += [{"num_labels": 5}, {"vocab_size": 30}, {"positions": 20}, {"image_size": 16}, {"dtype": "int8"}]
    given = random.choice(choices)
    if random.random() < 0.1:
        return "summary", lambda: f"summary of {len(str(heedful.summary(str(model))))} characters"[:10]
    return f"load {given or ''}", lambda: _opened(model, given, out)


def _asked(task: str, model: Path, options: dict[str, Any], talk: bool) -> str:
    pipe = heedful.pipeline(None, model)
    answers = pipe([[{"role": "user", "content": "hi"}]] if talk else list(inputs(task)), **options)
    json.dumps(answers, default=str)
    for answer in answers:
        score = answer["score"]
        if isinstance(score, float) and math.isnan(score):
            raise Fault("a score of NaN is answered")
    return "answered"


def _opened(model: Path, given: dict[str, Any], out: Path) -> str:
    made = load(model, **given)
    config = made.config
    with torch.no_grad():
        source = torch.tensor([[0, 1, 2]])
        if (patches := patches_of(config)) is not None:
            source = torch.zeros(1, patches.channels, *patches.image_size, dtype=made.dtype)
        made(source, *([torch.tensor([[0, 1]])] if config.kind == "encoder-decoder" else []))
    if "head" not in given and not all(each.isfinite().all() for each in made.parameters()):
        raise Fault("weights that are not finite are opened")
    if "dtype" in given and given["dtype"] == "int8":
        return "opened"
    made.save_pretrained(out / "again")
    load(out / "again")
    return "opened and saved"
