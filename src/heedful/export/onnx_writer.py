"""ONNX: the model as one graph, traced by ``torch.onnx``, with dynamic batch size and lengths.

Inputs are named as Optimum names them: ``input_ids``, ``attention_mask``, ``token_type_ids``, ``decoder_input_ids``,
``pixel_values``; the output is ``logits``, ``last_hidden_state`` if the model has no head, ``sentence_embedding``
if it pools. An encoder-decoder is one graph: source and target in, logits of every target token out. A graph
has no cache.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from heedful.config import ModelConfig
from heedful.errors import HeedfulError
from heedful.export.hugging_face import load_merged
from heedful.export.target import copy_beside, copy_configuration
from heedful.export.traceable import axis_limits, example_inputs, input_names, output_name, traceable

GRAPH = "model.onnx"
OPSET = 20


def write(source: Path, out: Path) -> dict[str, Any]:
    """Writes the folder ``out``: the traced model of ``source``, its tokenizer, preprocessing and configuration."""
    details = write_file(source, out / GRAPH)
    copy_configuration(source, out)
    return {**details, "beside": copy_beside(source, out)}


def write_file(source: Path, file: Path) -> dict[str, Any]:
    """Writes one ``file``: the traced graph of the model of ``source``, with its weights.

    The exporter puts weights of more than two gigabytes into a second file.
    """
    model = load_merged(source, "float32")
    config = model.config
    names, outputs = input_names(config), [output_name(config)]
    traced = traceable(model)
    inputs = example_inputs(names, model)
    with _quiet():
        try:
            program = torch.export.export(traced, (), inputs, dynamic_shapes=_dynamic_axes(names, config), strict=False)
            graph = torch.onnx.export(
                program,
                (),
                input_names=list(names),
                output_names=outputs,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except (torch.onnx.errors.OnnxExporterError, torch._dynamo.exc.UserError) as error:
            reason = " ".join(str(error).split())[:300]
            raise HeedfulError(
                f"torch {torch.__version__} cannot trace this model ({reason}); try another version of torch"
            ) from None
        assert graph is not None
        graph.save(file)
    return {"inputs": list(names), "outputs": outputs, "opset": OPSET, "beside": []}


def _dynamic_axes(names: tuple[str, ...], config: ModelConfig) -> dict[str, dict[int, Any]]:
    """Returns the dynamic axes of each input: the batch, and lengths up to the number of positions."""
    batch = Dim("batch", min=1)
    limits = axis_limits(config)
    dims = {name: Dim(name, min=1, max=limit) if limit else Dim(name, min=1) for name, limit in limits.items()}
    return {
        name: {0: batch}
        if name == "pixel_values"
        else {0: batch, 1: dims["decoder_length" if name.startswith("decoder_") else "length"]}
        for name in names
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Switches off the warnings and log lines of the exporter."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
