"""``heedful export``: a model handed on to other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.arguments import check_model
from heedful.cli.parser import Json
from heedful.util.terminal import to_json


def export(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *,
    to: Annotated[
        str,
        Parameter(help="hf: Hugging Face's layout, adapters merged; ctranslate2; onnx: one graph without a cache"),
    ],
    out: Annotated[str, Parameter(help="folder to write; for onnx a name in .onnx is one file, the graph alone")],
    dtype: Annotated[str | None, Parameter(help="hf: float32, float16, bfloat16; as stored by default")] = None,
    quantization: Annotated[
        str | None, Parameter(help="ctranslate2: int8, int8_float16, float16, ...; as stored by default")
    ] = None,
    overwrite: Annotated[bool, Parameter(help="replace a folder that holds a model, or a file")] = False,
    json: Json = False,
) -> None:
    """Hand a model on: for transformers, CTranslate2 or ONNX."""
    check_model(model)
    from heedful.export import formats

    formats.check(to, out, overwrite, {"dtype": dtype, "quantization": quantization})
    result = formats.export(model, to, out, dtype=dtype, quantization=quantization, overwrite=overwrite)
    if json:
        print(to_json(result))
        return
    place = Path(out).parent if formats.single(to, out) else Path(out)
    for name, size in result["files"].items():
        print(f"{place / name}  {size:,} bytes")
