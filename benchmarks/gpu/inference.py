"""Rows that decode, encode, classify images and translate, in bfloat16 with random weights made on the device.

Ours is optimised as ``heedful.pipeline`` optimises a model (``heedful.optimize``), captured with
``compiled_decoding=True``; compiled, the model is plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import heedful
from benchmarks.gpu.measure import Settings, median_seconds
from benchmarks.speed.works import Work
from heedful import presets
from heedful.config import DecoderConfig, ModelConfig, SpecialTokens
from heedful.kernels.plan import apply_plan
from heedful.optimize_model import optimize
from heedful.stack import Stack

PROMPT = 16  # tokens of a prompt


def created(config: ModelConfig, device: str) -> Any:
    """Returns a model with bfloat16 weights, drawn on the device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return heedful.create(config, seed=0).to(device).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def theirs(kind: str, config: Any, device: str) -> Any:
    """Returns a model by an automatic class of transformers with bfloat16 weights, drawn on the device."""
    import transformers

    transformers.logging.set_verbosity_error()
    with torch.device(device):
        return getattr(transformers, kind).from_config(config, dtype=torch.bfloat16).eval()


def ours(config: ModelConfig, program: str, settings: Settings) -> Any:
    """Returns our model, ready for inference."""
    model = created(config, settings.device)
    if not program.endswith("compiled"):
        captures = program.endswith("captured") and settings.device == "cuda"  # on a CPU it would be other code
        return optimize(model, "bfloat16", compiled_decoding=captures)
    model = apply_plan(model, "gpu")
    model.compile(backend=settings.compiler)
    return model


def ids_of(rows: int, length: int, vocab: int, device: str) -> Tensor:
    """Random token ids (rows, length), none of them a special token."""
    return torch.from_numpy(np.random.default_rng(0).integers(10, vocab, (rows, length))).to(device)


# ---------------------------------------------------------------------------------------------------------- decoding


def decoder(name: str, short: bool) -> DecoderConfig:
    """Returns GPT-2 124M, TinyLlama 1.1B or the shape of Llama 7B; short: tiny ones of the same kinds."""
    if short:
        tiny = {"124M": presets.gpt2(32, 2, 2, vocab=300, length=64), "1.1B": presets.llama(32, 2, 4, 2, 64, 300)}
        return tiny.get(name) or presets.llama(64, 2, 4, 4, 128, 300)
    if name == "7B":
        return presets.llama(4096, 32, 32, 32, 11008)
    config = presets.get({"124M": "gpt2", "1.1B": "tinyllama-1.1b"}[name])
    assert isinstance(config, DecoderConfig)
    return config


def same_decoder(config: DecoderConfig, name: str) -> Any:
    """Returns the configuration of transformers for the same sizes."""
    from transformers import GPT2Config, LlamaConfig

    stack, vocab = config.decoder, config.embedding.vocab_size
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "124M":
        sizes = {"n_embd": stack.dim, "n_layer": stack.depth, "n_head": stack.heads, "n_positions": 1024}
        return GPT2Config(vocab_size=vocab, **sizes, **special)
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=stack.dim,
        intermediate_size=stack.ff_dim,
        num_hidden_layers=stack.depth,
        num_attention_heads=stack.heads,
        num_key_value_heads=stack.kv_heads,
        **special,
    )


def bytes_of_step(config: DecoderConfig, batch: int, length: float) -> float:
    """Returns the bytes that a decoding step must read: the weights, and keys and values of ``length`` tokens."""
    with torch.device("meta"):
        model = heedful.create(config)
    stack, tables = config.decoder, [model.embedding.token, *model.decoder.position.modules()]
    unread = sum(part.weight.numel() for part in tables if isinstance(part, nn.Embedding))
    if model.head.output.weight is model.embedding.token.weight:
        unread -= model.embedding.token.weight.numel()  # a tied output layer reads it
    cache = 2 * stack.depth * (stack.kv_heads or stack.heads) * (stack.head_dim or stack.dim // stack.heads)
    return 2.0 * (model.num_parameters() - unread + cache * batch * length)


def decoding(settings: Settings, program: str, model: str, batch: int, new: int) -> dict[str, Any]:
    """Measures greedy decoding after prompts of 16 tokens: new tokens a second of all rows, and the bytes read."""
    config = decoder(model, settings.short)
    ids = ids_of(batch, PROMPT, config.embedding.vocab_size, settings.device)
    options: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    if program.startswith("ours"):
        made = ours(config, program, settings)
    else:
        made = theirs("AutoModelForCausalLM", same_decoder(config, model), settings.device)
        options |= {"cache_implementation": "static", "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    lengths: list[int] = []
    taken, first = median_seconds(lambda: lengths.append(made.generate(ids, **options).size(1)), settings.device)
    if set(lengths) != {PROMPT + new}:
        raise ValueError(f"{lengths[0]} tokens were generated, not {PROMPT + new}")
    return {
        "tokens_per_second": batch * new / taken,
        "ms_per_token": 1e3 * taken / new,
        "gb_per_second": bytes_of_step(config, batch, PROMPT + new / 2) * new / taken / 1e9,
        "first_seconds": first,
    }


# ------------------------------------------------------------------------------------- encoder, images, translation


def forward_flops(config: ModelConfig, part: str, lengths: list[int]) -> float:
    """Returns the FLOPs of a forward pass through the blocks, without padding, for texts of these lengths."""
    with torch.device("meta"):
        stack: Stack = getattr(heedful.create(config), part)
    maps = sum(module.weight.numel() for module in stack.modules() if isinstance(module, nn.Linear))
    pairs = stack.config.depth * stack.config.dim * sum(length**2 for length in lengths)
    return 2.0 * maps * sum(lengths) + 4.0 * pairs


def bert(settings: Settings, program: str, batch: int, shortest: int, longest: int) -> dict[str, Any]:
    """Measures hidden states of right-padded texts whose lengths are spread evenly; padding counts for nothing."""
    config = presets.bert(32, 2, 2, vocab=300, length=32) if settings.short else presets.get("bert-base")
    work = Work(name="", row="encoder", model="bert", batch=batch, shortest=shortest, longest=longest, vocab=300)
    ids, mask = (torch.from_numpy(part).to(settings.device) for part in (work.ids(), work.mask()))
    if program.startswith("ours"):
        model = ours(config, program, settings)
    else:
        from transformers import BertConfig

        tiny = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        model = theirs("AutoModel", BertConfig(**(tiny if settings.short else {})), settings.device)
    mask = mask if program.startswith("ours") else mask.long()
    with torch.inference_mode():
        taken, first = median_seconds(lambda: model(ids, mask), settings.device)
    lengths = work.lengths.tolist()
    return {
        "texts_per_second": batch / taken,
        "tokens_per_second": sum(lengths) / taken,
        "tflops": forward_flops(config, "encoder", lengths) / taken / 1e12,
        "first_seconds": first,
    }


def vit(settings: Settings, program: str, batch: int) -> dict[str, Any]:
    """Measures the logits of a batch of images."""
    config = presets.vit(32, 2, 2, 8, image=32, labels=10) if settings.short else presets.get("vit-b/16")
    side = 32 if settings.short else 224
    pixels = torch.randn(batch, 3, side, side).to(settings.device, torch.bfloat16)
    if program.startswith("ours"):
        model = ours(config, program, settings)
    else:
        from transformers import ViTConfig

        tiny = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        tiny |= {"image_size": 32, "patch_size": 8}
        sizes = ViTConfig(num_labels=10, **tiny) if settings.short else ViTConfig(num_labels=1000)
        model = theirs("AutoModelForImageClassification", sizes, settings.device)
    with torch.inference_mode():
        taken, first = median_seconds(lambda: model(pixels), settings.device)
    tokens = (side // (8 if settings.short else 16)) ** 2 + 1
    return {
        "images_per_second": batch / taken,
        "tflops": forward_flops(config, "encoder", [tokens] * batch) / taken / 1e12,
        "first_seconds": first,
    }


def translation(settings: Settings, program: str, batch: int, length: int) -> dict[str, Any]:
    """Measures a beam search with 4 beams: sources and translations of ``length`` tokens."""
    width, depth, heads, ff, vocab = (32, 2, 2, 64, 300) if settings.short else (512, 6, 8, 2048, 32000)
    special = SpecialTokens(pad=0, start=1, end=(2,))
    ids = ids_of(batch, length, vocab, settings.device)
    options: dict[str, Any] = {"max_new_tokens": length, "min_new_tokens": length, "num_beams": 4}
    if program.startswith("ours"):
        model = ours(presets.transformer(width, depth, heads, ff, vocab, special=special), program, settings)
    else:
        from transformers import MarianConfig

        sides = {
            key.format(side): value
            for side in ("encoder", "decoder")
            for key, value in {"{}_layers": depth, "{}_attention_heads": heads, "{}_ffn_dim": ff}.items()
        }
        tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
        config = MarianConfig(vocab_size=vocab, d_model=width, scale_embedding=True, **sides, **tokens)
        model = theirs("AutoModelForSeq2SeqLM", config, settings.device)
        options |= {"attention_mask": torch.ones_like(ids), "do_sample": False}
    taken, first = median_seconds(lambda: model.generate(ids, **options), settings.device)
    return {
        "texts_per_second": batch / taken,
        "tokens_per_second": batch * length / taken,
        "ms_per_token": 1e3 * taken / length,
        "first_seconds": first,
    }
