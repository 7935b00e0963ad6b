"""llama.cpp's forms of GPT-2: GGUF files by the package ``gguf``, of tokens that are named t0, t1, ...

    gguf-float32, gguf-float16    F32, F16
    gguf-int8, gguf-int4          Q8_0, Q4_0: blocks of 32 weights with a scale

All matrices are in that type, with the embedding, which is the head, too: as ours, and fewer bytes than llama.cpp's own
command makes of it, which gives the head of a Q4_0 file six bits. Vectors and the table of positions are float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.speed.programs import need

TYPES = {"float32": "F32", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
NAMES = {  # of a block: of the same in the file
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def tensors(folder: Path, depth: int) -> dict[str, np.ndarray]:
    """Returns the weights by llama.cpp's names, matrices as (out, in)."""
    stored = {name.removeprefix("transformer."): x for name, x in load_file(folder / "model.safetensors").items()}
    made = {"token_embd.weight": stored["wte.weight"], "position_embd.weight": stored["wpe.weight"]}
    for part in ("weight", "bias"):
        made[f"output_norm.{part}"] = stored[f"ln_f.{part}"]
        for n in range(depth):
            made |= {f"blk.{n}.{own}.{part}": stored[f"h.{n}.{name}.{part}"].T for name, own in NAMES.items()}
    return made


def write(folder: Path, form: str, out: Path) -> None:
    """Writes a form of the model in ``folder`` as ``out``/model.gguf; ``out`` exists."""
    need("gguf")
    import gguf
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wanted = TYPES[form.partition("-")[2]]
    writer = gguf.GGUFWriter(out / "model.gguf", "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if wanted == 'F32' else 'MOSTLY'}_{wanted}"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in tensors(folder, config["n_layer"]).items():
        matrix = tensor.ndim == 2 and name != "position_embd.weight"
        kind = gguf.GGMLQuantizationType[wanted if matrix else "F32"]
        writer.add_tensor(name, quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
