"""The formats that a model can be handed on in, and ``export``. Only ``export`` imports torch, when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError, lookup, nearest
from heedful.export.target import check_file_target, check_target, need, replaced, replaced_file

DTYPES = ("float32", "float16", "bfloat16", "float64")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


@dataclass(frozen=True)
class ExportFormat:
    """An export format: its module, options, required packages, and the extension of the single
    file that can be written in place of a folder ("" where there is none).
    """

    module: str
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extension: str = ""


FORMATS: Mapping[str, ExportFormat] = {
    "hf": ExportFormat("heedful.export.hugging_face", options=("dtype",)),
    "ctranslate2": ExportFormat(
        "heedful.export.ctranslate2_writer",
        options=("quantization",),
        needs=("ctranslate2", "transformers"),
    ),
    "onnx": ExportFormat("heedful.export.onnx_writer", needs=("onnx", "onnxscript"), extension=".onnx"),
}
FILES = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".gguf")  # extensions that no folder is meant to have


def check(to: str, out: str | Path, overwrite: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given; raises ``HeedfulError`` for what is wrong with them, before anything is opened."""
    made = lookup(FORMATS, to, "format")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in made.options:
            owners = [f"--to {word}" for word, each in FORMATS.items() if name in each.options]
            raise HeedfulError(f"--{name} has no effect on --to {to}; it is for {' and '.join(owners)}; leave it out")
    for name, known in (("dtype", DTYPES), ("quantization", QUANTIZATIONS)):
        if name in given and given[name] not in known:
            raise HeedfulError(f"unknown {name} {given[name]!r}; {nearest(str(given[name]), known)}")
    if single(to, out):
        check_file_target(out, overwrite)
    elif (extension := Path(out).suffix.lower()) in FILES and not Path(out).expanduser().is_dir():
        raise HeedfulError(f"--to {to} writes a folder, and --out {out} is named as a file; leave {extension} out")
    else:
        check_target(out, overwrite)
    need(*made.needs, format=to)
    return given


def single(to: str, out: str | Path) -> bool:
    """Returns whether one file is written, in place of a folder: where ``out`` has the extension of the format's files.

    >>> single("onnx", "model.onnx"), single("onnx", "model"), single("hf", "model.onnx")
    (True, False, False)
    """
    return bool(FORMATS[to].extension) and Path(out).suffix.lower() == FORMATS[to].extension


def export(
    model: str | Path,
    to: str,
    out: str | Path,
    *,
    dtype: str | None = None,
    quantization: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a model's folder in another format.

    Args:
        model: a model's folder, ours or Hugging Face's, or a Hub id.
        to: "hf", Hugging Face's layout with adapters merged, which ``transformers`` opens; "ctranslate2", for that
            engine, converted by its own tool; "onnx", one graph without a cache, traced by ``torch.onnx``.
        out: the folder to write; it appears whole, or not at all. For "onnx" a name that ends in ``.onnx`` is a file:
            the graph alone, without tokenizer and configuration.
        dtype: of the weights ("hf"): "float32", "float16", "bfloat16", "float64"; None: as stored.
        quantization: of the weights ("ctranslate2"): "int8", "int8_float16", "float16", ...; None: as stored.
        overwrite: replace a folder that holds a model, or a file.

    Returns:
        ``{"format", "model", "out", "files": {name: bytes}, ...}`` and what the format has to say; names are relative
        to the folder, a single file has its own.

    Raises:
        HeedfulError: for an unknown format, an option that the format does not take, a target that is not empty, a
            missing package, and a model that the format cannot say, naming the fields.

    >>> import heedful, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heedful.create("gpt-micro", seed=0).save_pretrained(f"{folder}/model")
    ...     export(f"{folder}/model", "hf", f"{folder}/out", dtype="bfloat16")["layout"]
    'gpt2'
    """
    given = check(to, out, overwrite, {"dtype": dtype, "quantization": quantization})
    writer = import_module(FORMATS[to].module)
    from heedful.pretrained.configuration import home
    from heedful.pretrained.folder import find

    source, target = find(model), Path(out)
    if single(to, out):
        with replaced_file(target) as place:
            told = writer.write_file(source, place, **given)
        size = target.expanduser().stat().st_size
        return {"format": to, "model": str(model), "out": str(out), **told, "files": {target.name: size}}
    there = target.expanduser().resolve()
    for whose, folder in (("model's own", source), ("adapter's base", home(source))) if overwrite else ():
        here = folder.resolve()
        if here == there or here in there.parents or there in here.parents:
            raise HeedfulError(f"--out {out} is the {whose} folder, inside it or around it; name another")
    with replaced(target) as place:
        told = writer.write(source, place, **given)
    files = {str(file.relative_to(target)): file.stat().st_size for file in sorted(target.rglob("*")) if file.is_file()}
    return {"format": to, "model": str(model), "out": str(out), **told, "files": files}
