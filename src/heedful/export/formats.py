"""The table of export formats, and ``export``, which alone imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError, lookup, nearest
from heedful.export.target import check_file_target, check_target, need, replaced, replaced_file

DTYPES = ("float32", "float16", "bfloat16", "float64")
CTRANSLATE2_TYPES = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
OPENVINO_TYPES = ("float32", "float16", "int8")
GGUF_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


@dataclass(frozen=True)
class ExportFormat:
    """Format of an export: the module that writes it, its options, and the packages that it needs.

    Attributes:
        module: name of the module whose function ``write`` writes the folder, and ``write_file`` a single file.
        options: the options that the format takes, with their values.
        needs: names of the packages that it requires.
        extension: extension of a single file that can be written in place of a folder; "" for none.
        folder: if False, only the single file can be written.
    """

    module: str
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    extension: str = ""
    folder: bool = True


FORMATS: Mapping[str, ExportFormat] = {
    "hf": ExportFormat("heedful.export.hugging_face", options={"dtype": DTYPES}),
    "ctranslate2": ExportFormat(
        "heedful.export.ctranslate2_writer",
        options={"quantization": CTRANSLATE2_TYPES},
        needs=("ctranslate2", "transformers"),
    ),
    "openvino": ExportFormat(
        "heedful.export.openvino_writer",
        options={"quantization": OPENVINO_TYPES},
        needs=("openvino",),
    ),
    "onnx": ExportFormat("heedful.export.onnx_writer", needs=("onnx", "onnxscript"), extension=".onnx"),
    "gguf": ExportFormat(
        "heedful.export.gguf_writer",
        options={"quantization": GGUF_TYPES},
        needs=("gguf",),
        extension=".gguf",
        folder=False,
    ),
}
FILES = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".xml")  # extensions of files, not of folders


def check(to: str, out: str | Path, overwrite: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the arguments of an export before anything is loaded; returns the options that are not None.

    Args:
        to: name of the format.
        out: the folder or file to write.
        overwrite: True if ``out`` may be replaced.
        options: ``{name: value}`` of the formats' options.

    Raises:
        HeedfulError: for a format or option that does not exist, a target that must not be written, or a missing
            package.
    """
    export_format = lookup(FORMATS, to, "format")
    set_options = {name: value for name, value in options.items() if value is not None}
    for name in set_options:
        if name not in export_format.options:
            owners = [f"--to {word}" for word, candidate in FORMATS.items() if name in candidate.options]
            raise HeedfulError(f"--{name} has no effect on --to {to}, only on {' and '.join(owners)}; leave it out")
    for name, value in set_options.items():
        if value not in (known := export_format.options[name]):
            raise HeedfulError(f"unknown {name} {value!r} of --to {to}; {nearest(str(value), known)}")
    if writes_file(to, out):
        check_file_target(out, overwrite)
    elif not export_format.folder:
        raise HeedfulError(f"--to {to} writes a file; give --out a name that ends in {export_format.extension}")
    elif (extension := Path(out).suffix.lower()) in FILES and not Path(out).expanduser().is_dir():
        raise HeedfulError(f"--to {to} writes a folder, and --out {out} is named like a file; remove {extension}")
    else:
        check_target(out, overwrite)
    need(*export_format.needs, format=to)
    return set_options


def writes_file(to: str, out: str | Path) -> bool:
    """Returns True if the export writes a single file: ``out`` has the extension of the format.

    >>> writes_file("onnx", "model.onnx"), writes_file("onnx", "model"), writes_file("hf", "model.onnx")
    (True, False, False)
    """
    return bool(FORMATS[to].extension) and Path(out).suffix.lower() == FORMATS[to].extension


def _source(model: str | Path, to: str) -> Path:
    """Returns the folder of a model; raises ``HeedfulError`` for an ensemble, which ONNX alone stores."""
    from heedful.pretrained.folder import find, is_ensemble

    source = find(model)
    if to != "onnx" and is_ensemble(source):
        raise HeedfulError(
            f"{source} is an ensemble, which only --to onnx writes; for other formats train one model: "
            "--model.members 1"
        )
    return source


def export(
    model: str | Path,
    to: str,
    out: str | Path,
    *,
    dtype: str | None = None,
    quantization: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a model in another format.

    Args:
        model: a model folder, ours or Hugging Face's, or a Hub id.
        to: "hf", Hugging Face's layout with adapters merged, which ``transformers`` loads; "ctranslate2", for that
            engine, converted by its own tool; "gguf", one file for llama.cpp, by the package ``gguf``; "openvino",
            for Intel's engine, a decoder's cache as state; "onnx", one graph without a cache, traced by ``torch.onnx``.
        out: the folder to write, atomically; for "gguf" the file, ``NAME.gguf``. For "onnx" a name that ends in
            ``.onnx`` is a file: the graph alone, without tokenizer and configuration.
        dtype: dtype of the weights, for "hf": "float32", "float16", "bfloat16", "float64"; None: as stored.
        quantization: type of the weights, for "ctranslate2": "int8", "int8_float16", "float16", ...; for "gguf": "f32",
            "f16", "bf16", "q8_0", "q4_0"; for "openvino": "float32", "float16", "int8"; None: as stored.
        overwrite: replace a folder that holds a model, or a file.

    Returns:
        ``{"format", "model", "out", "files": {name: bytes}, ...}`` and details of the format. Names are relative to the
        folder.

    Raises:
        HeedfulError: for an unknown format, an option that the format does not take, a target that is not empty, a
            missing package, and a model that the format cannot express; the message names the fields.

    >>> import heedful, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heedful.create("gpt-micro", seed=0).save_pretrained(f"{folder}/model")
    ...     export(f"{folder}/model", "hf", f"{folder}/out", dtype="bfloat16")["layout"]
    'gpt2'
    """
    options = check(to, out, overwrite, {"dtype": dtype, "quantization": quantization})
    writer = import_module(FORMATS[to].module)
    from heedful.pretrained.configuration import home

    source, target = _source(model, to), Path(out)
    if writes_file(to, out):
        with replaced_file(target) as file:
            details = writer.write_file(source, file, **options)
        size = target.expanduser().stat().st_size
        return {"format": to, "model": str(model), "out": str(out), **details, "files": {target.name: size}}
    target_path = target.expanduser().resolve()
    for whose, folder in (("model's own", source), ("adapter's base", home(source))) if overwrite else ():
        path = folder.resolve()
        if path == target_path or path in target_path.parents or target_path in path.parents:
            raise HeedfulError(f"--out {out} overlaps the {whose} folder, {folder}; choose another folder")
    with replaced(target) as folder:
        details = writer.write(source, folder, **options)
    files = {str(file.relative_to(target)): file.stat().st_size for file in sorted(target.rglob("*")) if file.is_file()}
    return {"format": to, "model": str(model), "out": str(out), **details, "files": files}
