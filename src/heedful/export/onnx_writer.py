"""ONNX: the model as one graph, traced by ``torch.onnx``, with dynamic batch size and lengths.

Inputs are named as Optimum names them: ``input_ids``, ``attention_mask``, ``token_type_ids``, ``decoder_input_ids``,
``pixel_values``; the output is ``logits``, ``last_hidden_state`` if the model has no head, ``sentence_embedding``
if it pools. An encoder-decoder is one graph: source and target in, logits of every target token out. A graph
has no cache. An ensemble is one graph too: each member has its own inputs, ``input_ids_0``, ``attention_mask_0``,
``input_ids_1`` and so on, whose tokenizers are in the folders ``member-0``, ``member-1`` and so on.
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

from heedful.config import EnsembleConfig, ModelConfig
from heedful.errors import HeedfulError
from heedful.export.hugging_face import load_merged
from heedful.export.target import copy_beside, copy_configuration
from heedful.export.traceable import axis_limits, example_inputs, input_names, output_name, traceable
from heedful.pretrained.folder import members_of

GRAPH = "model.onnx"
OPSET = 20


def write(source: Path, out: Path) -> dict[str, Any]:
    """Writes the folder ``out``: the traced model of ``source``, its tokenizer, preprocessing and configuration."""
    details = write_file(source, out / GRAPH)
    copy_configuration(source, out)
    beside = copy_beside(source, out)
    for member in members_of(source):
        (out / member.name).mkdir()
        copy_configuration(member, out / member.name)
        beside += [f"{member.name}/{name}" for name in copy_beside(member, out / member.name)]
    return {**details, "beside": beside}


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
            axes = _dynamic_axes(names, config)
            by_position = isinstance(config, EnsembleConfig)  # its forward takes any number of inputs
            given: Any = (tuple(inputs.values()), {}) if by_position else ((), inputs)
            shapes: Any = (tuple(axes.values()),) if by_position else axes
            program = torch.export.export(traced, *given, dynamic_shapes=shapes, strict=False)
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
    if isinstance(config, EnsembleConfig):
        return {name: {0: batch, 1: dims[f"length_{name.rpartition('_')[2]}"]} for name in names}
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
