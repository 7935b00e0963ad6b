"""The models that are measured: random weights from one seed, made once, and what the engines read of them.

    python -m benchmarks.speed.weights FOLDER MODEL/FORM...     writes what is missing, prints what could not be made

Fresh weights are too tame to tell programs apart: a tied head then says one token again and again. So the matrices of
the blocks keep the size of what goes through them, embeddings are five times as large, so that tokens and positions
matter to the answer, and vectors are no longer zeros and ones.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.speed.programs import Absent, need
from benchmarks.speed.works import LABELS

if TYPE_CHECKING:
    from heedful.config import ModelConfig

# llama.cpp's types of matrices. The embedding, which is the head, is in that type too: as ours, and fewer bytes than
# llama.cpp's own command makes of it, which gives the head of a Q4_0 file six bits.
GGUF = {"float32": "f32", "float16": "f16", "int8": "q8_0", "int4": "q4_0"}


def config_of(name: str) -> ModelConfig:
    """The configuration of a model by its name here; the tiny ones are of the same shape.

    Those to be trained have no dropout, so that all programs come to the same losses, but for one that is to have it.
    """
    from heedful import presets
    from heedful.config import SpecialTokens

    if name.endswith("-train"):
        return _to_train(name.removesuffix("-train"))

    special = SpecialTokens(pad=0, start=1, end=(2,))
    made: dict[str, Callable[[], ModelConfig]] = {
        "gpt2-whole": lambda: presets.get("gpt2"),
        "gpt2-tiny": lambda: presets.gpt2(64, 2, 4, vocab=300, length=64),
        "llama-whole": lambda: presets.llama(288, 6, 6, 6, 768, length=256, tied=True, special=special),
        "llama-tiny": lambda: presets.llama(64, 2, 4, 4, 96, vocab=300, length=64, tied=True, special=special),
        "pair-whole": lambda: presets.transformer(512, 6, 8, 2048, 32000, special=special),
        "pair-tiny": lambda: presets.transformer(64, 2, 4, 256, 300, special=special),
        "bert-whole": lambda: presets.get("bert-base"),
        "deberta-whole": lambda: presets.get("deberta-v3-base"),
        "deberta-tiny": _small_deberta,
        "bert-tiny": lambda: presets.bert(64, 2, 4, vocab=300, length=32),
        "vit-whole": lambda: presets.get("vit-b/16"),
        "vit-tiny": lambda: presets.vit(64, 2, 4, 8, image=32, labels=10),
    }
    return made[name]()


def _small_deberta() -> ModelConfig:
    from heedful import presets

    config = presets.deberta(64, 2, 4)
    return replace(config, embedding=replace(config.embedding, vocab_size=300))


def _to_train(name: str) -> ModelConfig:
    """As ``config_of``, with the heads that are trained and without dropout."""
    from heedful import presets
    from heedful.config import DropoutRates, SequenceHead, StackConfig

    short, characters = name.endswith("-tiny"), {"vocab": 65, "activation": "gelu"}
    made: dict[str, Callable[[], ModelConfig]] = {
        "gpt2-4x128": lambda: presets.gpt2(*(64, 2, 2) if short else (128, 4, 4), length=64, **characters),
        "gpt2-6x384": lambda: presets.gpt2(*(64, 2, 2) if short else (384, 6, 6), length=256, **characters),
    }
    config = made.get(name.rpartition("-")[0], lambda: config_of(name))()
    rate = 0.2 if name.startswith("gpt2-6x384") else 0.0
    dropout = DropoutRates(embedding=rate, attention=rate, residual=rate)
    stacks = {part: replace(own, dropout=dropout) for part, own in vars(config).items() if isinstance(own, StackConfig)}
    if name.startswith("bert"):
        stacks["head"] = SequenceHead(labels=LABELS, dropout=0.0)  # type: ignore[assignment]  # not a stack
    if name.startswith("deberta"):
        stacks["head"] = SequenceHead(labels=LABELS, dropout=0.0, pooler_activation="gelu")  # type: ignore[assignment]
    return replace(config, **stacks)


def place(folder: Path, model: str, form: str) -> Path:
    """Where a form of a model lies."""
    return folder / (model if form == "folder" else f"{model}-{form}")


def make(folder: Path, model: str, form: str) -> None:
    """Write a form of a model, and what it is made of, unless it is there."""
    out = place(folder, model, form)
    if out.exists():
        return
    if form == "folder":
        _model(model, out)
        return
    make(folder, model, "folder")
    if form in ("ctranslate2", "onnx"):
        from heedful.export import export

        export(place(folder, model, "folder"), form, out)
        return
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    engine = form.partition("-")[0]
    if engine == "openvino":
        from benchmarks.speed import to_openvino

        to_openvino.write(place(folder, model, "folder"), form, part)
    elif engine == "gguf":
        from heedful.export import export

        need("gguf")
        kind = GGUF[form.partition("-")[2]]
        export(place(folder, model, "folder"), "gguf", part / "model.gguf", quantization=kind)
    else:
        make(folder, model, "onnx")
        _quantised(place(folder, model, "onnx"), part)
    part.rename(out)


def _quantised(onnx: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(onnx / "model.onnx", out / "model.onnx", per_channel=True, weight_type=QuantType.QInt8)


def _model(name: str, out: Path) -> None:
    import torch

    import heedful
    from heedful.pretrained.preprocessing import Preprocessing, write_preprocessing

    config = config_of(name)
    model, random = heedful.create(config, seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=random)
            if tensor.dim() == 1:
                tensor.add_(0.02 * noise)
            elif ".block." in path:
                tensor.copy_(noise / tensor.size(1) ** 0.5)
            else:
                tensor.mul_(5.0)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    vocab = getattr(config, "embedding", None) or getattr(config, "source", None)
    if vocab is not None:
        _tokenizer(vocab.vocab_size, part)
    if name.startswith("vit"):
        write_preprocessing(
            Preprocessing(size=model.config.patches.image_size[0], mean=(0.5,) * 3, std=(0.5,) * 3), part
        )
    part.rename(out)


def _tokenizer(size: int, folder: Path) -> None:
    """Tokens that are named by their numbers, for engines that are asked in words."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    from heedful.text import Tokenizer

    named = {f"t{number}": number for number in range(size)}
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "t0", "bos_token": "t1", "eos_token": "t2"}
    backend = Backend(BPE(named, []))
    backend.pre_tokenizer, backend.decoder = ByteLevel(add_prefix_space=False), Decoder()
    Tokenizer(backend, {**words, "unk_token": "t3"}).save(folder)


def main(folder: str, *asked: str) -> None:
    """Make each form of a model, and print as JSON why one could not be made."""
    failed = {}
    for each in asked:
        try:
            make(Path(folder), *each.split("/"))
        except Absent as error:
            failed[each] = str(error)
        except Exception as error:
            failed[each] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    print(json.dumps(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
