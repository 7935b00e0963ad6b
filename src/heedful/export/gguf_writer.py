"""GGUF: one file with model, tokenizer and chat template for llama.cpp and programs built on it, such as Ollama.

The file is written by the package ``gguf``, which llama.cpp's authors maintain. Matrices have the chosen type; vectors,
the table of learned positions and rotary factors are float32, as in llama.cpp's own conversions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.config import DecoderConfig, LanguageHead, RotaryPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.export.gguf_vocabulary import Vocabulary, vocabulary_of
from heedful.export.hugging_face import load_expressible, stored_dtype
from heedful.layers.position import SCALINGS
from heedful.models import Model
from heedful.pretrained.fill_model import tied_names
from heedful.pretrained.model_types import express
from heedful.pretrained.scaled_output import saved_tensors
from heedful.tasks.text_generation import TextGeneration
from heedful.text.chat_template import template_text

# our layouts: llama.cpp's architecture, and the activation that it computes
ARCHITECTURES = {
    "gpt2": ("gpt2", "gelu_tanh"),
    "llama": ("llama", "silu"),
    "mistral": ("llama", "silu"),
    "qwen2": ("qwen2", "silu"),
    "qwen3": ("qwen3", "silu"),
    "bloom": ("bloom", "gelu_tanh"),
    "olmo2": ("olmo2", "silu"),
    "gemma2": ("gemma2", "gelu_tanh"),
}
FUSED = ("gpt2", "bloom")  # architectures whose queries, keys and values are one matrix
UNLIMITED = 2048  # tokens of the context of a model without a number of positions: those that Bloom was trained with
# our names of tensors: GGUF's
NAMES = {
    "embedding.token": "token_embd",
    "decoder.position.table": "position_embd",
    "decoder.embedding_norm": "token_embd_norm",
    "decoder.norm": "output_norm",
    "head.output": "output",
}
BLOCK_NAMES = {
    "attention_residual.before": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention.out": "attn_output",
    "attention_residual.out": "post_attention_norm",
    "feed_forward_residual.before": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
    "feed_forward_residual.out": "post_ffw_norm",
}
STORED = {"float16": "f16", "bfloat16": "bf16"}  # the type for a stored dtype; else f32
RANGE = {"F16": 65504.0, "Q8_0": 127 * 65504.0, "Q4_0": 8 * 65504.0}  # largest weight of a type
ROW = {"Q8_0": 32, "Q4_0": 32}  # rows of matrices in a type are whole blocks of so many weights
END_KEYS = ("eos", "eot", "eom")  # keys for the tokens that end a text
GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


def write_file(source: Path, file: Path, quantization: str | None = None) -> dict[str, Any]:
    """Writes one GGUF ``file``: the model of ``source``, with its tokenizer and chat template.

    Args:
        source: the model's folder.
        file: the file to write.
        quantization: type of the matrices, "f32", "f16", "bf16", "q8_0" or "q4_0"; None: as stored.

    Raises:
        HeedfulError: the model or its tokenizer has a feature that llama.cpp does not have.
    """
    import gguf

    model = load_expressible(source)
    architecture, config = _architecture(model)
    task = TextGeneration.load(source)
    vocabulary = vocabulary_of(task.tokenizer, config.embedding.vocab_size)
    kind = (quantization or STORED.get(stored_dtype(source) or "", "f32")).upper()
    context = _context(config, task.context)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_sizes(writer, config, context)
    _add_vocabulary(writer, vocabulary)
    _add_special_tokens(writer, task, config)
    for name, tensor in _tensors(model, architecture, config).items():
        _add_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    details = {"architecture": architecture, "quantization": kind.lower(), "tokenizer": vocabulary.pre}
    return {**details, "context_length": context, "notes": [*vocabulary.notes, *_notes(config, context)], "beside": []}


# ------------------------------------------------------------------------------------------------------------ the model


def _architecture(model: Model) -> tuple[str, DecoderConfig]:
    """Returns llama.cpp's architecture and the configuration; raises for a model that llama.cpp does not have."""
    config, layout = model.config, express(model.config, model.folder.layout)
    assert layout is not None  # load_expressible refuses a model without a layout
    name = layout[0].name
    if not isinstance(config, DecoderConfig) or not isinstance(config.head, LanguageHead):
        raise HeedfulError("--to gguf writes decoders that generate text, and this model is another; use --to onnx")
    if name not in ARCHITECTURES:
        raise HeedfulError(
            f"--to gguf writes {', '.join(ARCHITECTURES)}, and this model is of the layout {name}; use --to onnx"
        )
    architecture, activation = ARCHITECTURES[name]
    stack = config.decoder
    scaling = stack.position.scaling if isinstance(stack.position, RotaryPosition) else "default"
    faults = [
        f"activation {stack.activation!r}" if stack.activation != activation else "",
        "attention_bias" if architecture in ("qwen3", "olmo2", "gemma2") and stack.attention_bias != "none" else "",
        "llama3 rotary scaling" if architecture.startswith(("qwen", "olmo2", "gemma2")) and scaling == "llama3" else "",
        "head_dim of its own"
        if architecture == "olmo2" and stack.head_dim not in (None, stack.dim / stack.heads)
        else "",
        "ff_bias" if architecture.startswith("qwen") and stack.ff_bias else "",
    ]
    if architecture == "gemma2":
        faults += _faults_of_caps(config, config.head)
    if any(faults):
        raise HeedfulError(
            f"llama.cpp's {architecture} has no {' and no '.join(filter(None, faults))}; use --to hf or --to onnx"
        )
    return architecture, config


def _faults_of_caps(config: DecoderConfig, head: LanguageHead) -> list[str]:
    """Returns what llama.cpp does not compute of a model with soft caps, whose windows and scale it assumes."""
    stack = config.decoder
    window, head_dim = _window(stack), stack.head_dim or stack.dim // stack.heads
    scaled = stack.dim / stack.heads if stack.depth == 46 else head_dim  # the 27B model, which it knows by its blocks
    scale = head_dim**-0.5 if stack.scale == "sqrt" else stack.scale
    return [
        "" if stack.score_cap and head.logit_cap else "scores or logits without a cap",
        "" if head.tied else "output of its own",
        "" if scale == scaled**-0.5 else f"scale of scores {scale}",
        ""
        if stack.windows == tuple((window, None)[block % 2] for block in range(stack.depth))
        else "other windows than that of every second block, from the first on",
    ]


def _context(config: DecoderConfig, read: int | None) -> int:
    """Returns the number of tokens of the context: those that the task reads, or the model's positions.

    A window ends it, since llama.cpp's layouts here have no window, but for the one with soft caps.
    """
    window = None if config.decoder.score_cap else _window(config.decoder)
    positions = getattr(config.decoder.position, "length", read or UNLIMITED)  # ALiBi has no number of positions
    return min(positions, read or positions, window or positions)


def _window(stack: StackConfig) -> int | None:
    """Returns the smallest window of a block; None if none has a window."""
    return min(filter(None, stack.windows), default=None)


def _notes(config: DecoderConfig, context: int) -> list[str]:
    if context != _window(config.decoder) or config.decoder.score_cap:
        return []
    return [
        f"llama.cpp computes this architecture without the sliding window of {_window(config.decoder)} tokens; the "
        "context length is set to it, up to which both are the same"
    ]


def _add_sizes(writer: Any, config: DecoderConfig, context: int) -> None:
    """Writes the sizes, norm and rotary positions of the model."""
    stack = config.decoder
    heads, head_size = stack.heads, stack.head_dim or stack.dim // stack.heads
    writer.add_vocab_size(config.embedding.vocab_size)
    writer.add_context_length(context)
    writer.add_embedding_length(stack.dim)
    writer.add_feed_forward_length(stack.ff_dim or 4 * stack.dim)
    writer.add_block_count(stack.depth)
    writer.add_head_count(heads)
    writer.add_head_count_kv(stack.kv_heads or heads)
    if stack.norm in ("rms", "rms-offset"):
        writer.add_layer_norm_rms_eps(stack.norm_eps)
    else:
        writer.add_layer_norm_eps(stack.norm_eps)
    if (window := _window(stack)) is not None:
        writer.add_sliding_window(window)
    if stack.score_cap and isinstance(config.head, LanguageHead) and config.head.logit_cap:
        writer.add_attn_logit_softcapping(stack.score_cap)
        writer.add_final_logit_softcapping(config.head.logit_cap)
    if isinstance(stack.position, RotaryPosition):
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
        _add_rotary(writer, stack.position, head_size)


def _add_rotary(writer: Any, position: RotaryPosition, head_size: int) -> None:
    """Writes base and scaling of rotary positions; those of llama3 are a tensor."""
    import gguf

    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(position.base)
    if position.scaling not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType[position.scaling.upper()])
    writer.add_rope_scaling_factor(position.factor)
    if position.scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(position.original_length)
        writer.add_rope_scaling_yarn_beta_fast(position.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(position.beta_slow)
        _, magnitude = SCALINGS["yarn"](head_size, position)
        writer.add_rope_scaling_attn_factors(magnitude / (0.1 * math.log(position.factor) + 1))  # the rest is its own


# -------------------------------------------------------------------------------------------------------- the tokenizer


def _add_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.add_prefix)


def _add_special_tokens(writer: Any, task: TextGeneration, config: DecoderConfig) -> None:
    """Writes the special tokens, which of them begin a text, and the chat template."""
    tokenizer, before = task.tokenizer, task.before
    ends = [task.end, *(token for token in config.special.end if token != task.end)]
    if len(before) > 1:
        raise HeedfulError(
            f"the tokenizer puts {len(before)} tokens before a text, and llama.cpp at most one; use --to hf or onnx"
        )
    if len(ends) > len(END_KEYS):
        raise HeedfulError(
            f"{len(ends)} tokens end a text, and GGUF has {len(END_KEYS)}; remove some of eos_token_id from "
            "generation_config.json"
        )
    start = before[0] if before else tokenizer.start
    writer.add_bos_token_id(task.end if start is None else start)  # without one, llama.cpp takes token 11
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(False)
    for key, token in zip(END_KEYS, ends, strict=False):
        getattr(writer, f"add_{key}_token_id")(token)
    if tokenizer.pad is not None:
        writer.add_pad_token_id(tokenizer.pad)
    if tokenizer.unknown is not None:
        writer.add_unk_token_id(tokenizer.unknown)
    if "chat_template" in tokenizer.config:  # the marks of the assistant's text are for training
        writer.add_chat_template(
            GENERATION.sub(
                lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}",
                template_text(tokenizer),
            )
        )


# ---------------------------------------------------------------------------------------------------------- the tensors


def _tensors(model: Model, architecture: str, config: DecoderConfig) -> dict[str, Tensor]:
    """Returns the tensors by GGUF's names; a tied output is left out, since llama.cpp then takes the embedding.

    Only for OLMo 2 llama.cpp asks for the output all the same.
    """
    state, stack = saved_tensors(model), config.decoder
    tensors = {_name(name): state[name].detach() for name in tied_names(model)}
    if architecture == "olmo2":
        tensors.setdefault("output.weight", tensors["token_embd.weight"])
    if stack.norm == "rms-offset":  # llama.cpp stores 1 + weight
        tensors |= {name: 1 + tensor.float() for name, tensor in tensors.items() if name.endswith("_norm.weight")}
    for block in range(stack.depth):
        for part in ("weight", "bias"):
            q, k, v = (f"blk.{block}.attn_{letter}.{part}" for letter in "qkv")
            if q not in tensors:
                continue
            if architecture in FUSED:
                tensors[f"blk.{block}.attn_qkv.{part}"] = torch.cat([tensors.pop(name) for name in (q, k, v)])
            elif architecture == "llama":  # it rotates neighbouring numbers of a head
                tensors[q] = _interleaved(tensors[q], stack.heads)
                tensors[k] = _interleaved(tensors[k], stack.kv_heads or stack.heads)
    if isinstance(stack.position, RotaryPosition) and stack.position.scaling == "llama3":
        tensors["rope_freqs.weight"] = _llama3_factors(stack, stack.position)
    return tensors


def _name(ours: str) -> str:
    """Returns GGUF's name of one of our tensors: ``decoder.block.0.attention.out.bias`` → ``blk.0.attn_output.bias``.

    >>> _name("decoder.block.0.attention.out.bias"), _name("embedding.token.weight")
    ('blk.0.attn_output.bias', 'token_embd.weight')
    """
    module, _, part = ours.rpartition(".")
    names: Mapping[str, str] = NAMES
    prefix = ""
    if match := re.fullmatch(r"decoder\.block\.(\d+)\.(.+)", module):
        names, prefix, module = BLOCK_NAMES, f"blk.{match[1]}.", match[2]
    return f"{prefix}{names[module]}.{part}"


def _interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Returns rows (H E, ...) with the two halves of each head alternating: 0, E/2, 1, E/2 + 1, ..."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _llama3_factors(stack: StackConfig, position: RotaryPosition) -> Tensor:
    """Returns by how much llama3 scaling lowers each frequency (E/2,)."""
    size = stack.head_dim or stack.dim // stack.heads
    return SCALINGS["default"](size, position)[0] / SCALINGS["llama3"](size, position)[0]


def _add_tensor(writer: Any, name: str, tensor: Tensor, kind: str) -> None:
    """Adds a tensor: a matrix in the type ``kind``, or float16 if its rows are not whole blocks of that type."""
    import gguf
    from gguf.quants import quantize

    values = np.ascontiguousarray(tensor.float().numpy())
    if values.ndim == 1 or name.startswith("position_embd"):
        kind = "F32"
    elif values.shape[-1] % ROW.get(kind, 1):
        kind = "F16"
    largest = float(np.abs(values).max(initial=0.0))
    if largest > RANGE.get(kind, math.inf):
        raise HeedfulError(
            f"{name} has the value {largest:g}, too large for {kind.lower()}; --quantization bf16 or f32"
        )
    quant = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, quantize(values, quant), raw_dtype=quant)
