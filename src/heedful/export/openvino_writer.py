"""OpenVINO: models as Intel's engine reads them, in the layout of Optimum, by the engine's own converter.

    decoder that generates text    openvino_model: input_ids, attention_mask, beam_idx → logits
    encoder-decoder that does      openvino_encoder_model: input_ids, attention_mask → last_hidden_state
                                   openvino_decoder_model: input_ids, encoder_hidden_states, encoder_attention_mask,
                                   beam_idx → logits
    any other model                openvino_model: the inputs and the output of the ONNX graph

Each is an ``.xml`` file with its weights in a ``.bin`` file. A decoder keeps its keys and values as the model's state,
which a request resets: ``input_ids`` are the new tokens, ``attention_mask`` covers all tokens, and ``beam_idx`` are the
rows of the state to continue. Keys and values of a source are computed at each step.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.config import DecoderConfig, EncoderDecoderConfig, LanguageHead, StackConfig, patches_of
from heedful.errors import HeedfulError
from heedful.export.hugging_face import load_merged, stored_dtype
from heedful.export.target import copy_beside, copy_configuration, need
from heedful.export.traceable import example_inputs, input_names, output_name, traceable
from heedful.export.traced_decoding import (
    TRACED,
    TracedDecoder,
    TracedSource,
    TracedTarget,
    cache_names,
    empty_shape,
)
from heedful.models import Model

DEFAULTS = """
import sys, openvino
core = openvino.Core()
print(*(core.get_property("CPU", name).get_type_name() for name in sys.argv[1:]))
"""
PAST, PRESENT = "past_key_values", "present"


@dataclass(frozen=True)
class Graph:
    """A graph to write: its file's name, the traced module, example inputs by name, and the name of its output.

    ``stack`` is the stack whose cache becomes the state; None: the graph has no state.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    output: str
    stack: StackConfig | None = None


def write(source: Path, out: Path, quantization: str | None = None) -> dict[str, Any]:
    """Writes the folder ``out``: the graphs of the model of ``source``, its tokenizer, preprocessing and configuration.

    Args:
        source: the model's folder.
        out: the folder to write.
        quantization: type of the weights: "float32", "float16", or "int8" with a scale and a zero for each row of a
            matrix; None: float16 if stored so, else float32.
    """
    if quantization == "int8":
        need("nncf", format="openvino")
    import openvino

    kind = quantization or ("float16" if stored_dtype(source) == "float16" else "float32")
    written = {}
    for graph in graphs(load_merged(source, "float32")):
        converted = _converted(graph)
        if kind == "int8":
            converted = _compressed(converted)
        openvino.save_model(converted, out / f"{graph.name}.xml", compress_to_fp16=kind == "float16")
        written[graph.name] = [port.get_any_name() for port in converted.inputs]
    copy_configuration(source, out)
    notes = _precision_notes("beam_idx" in chain.from_iterable(written.values()))
    return {"graphs": written, "quantization": kind, "notes": notes, "beside": copy_beside(source, out)}


def _precision_notes(has_state: bool) -> list[str]:
    """Returns a note if OpenVINO rounds float32 by default on this machine's CPU; ``has_state``: a state, too.

    A process of its own asks, since the engine's CPU part leaves a process with a freed signal stack.
    """
    names = ["INFERENCE_PRECISION_HINT", *(["KV_CACHE_PRECISION"] if has_state else [])]
    answer = subprocess.run([sys.executable, "-c", DEFAULTS, *names], capture_output=True, encoding="utf-8")
    kinds = dict(zip(names, answer.stdout.split(), strict=False))
    rounded = {name: kind for name, kind in kinds.items() if kind != "f32"}
    if not rounded:
        return []
    parts = {"INFERENCE_PRECISION_HINT": "computes in {}", "KV_CACHE_PRECISION": "keeps the state in {}"}
    how = " and ".join(parts[name].format(kind) for name, kind in rounded.items())
    return [
        f"OpenVINO {how} by default on this CPU, so its answers differ in the last digits; for those of float32: "
        f"compile_model(..., config={json.dumps(dict.fromkeys(rounded, 'f32'))})"
    ]


def graphs(model: Model) -> list[Graph]:
    """Returns the graphs of a model."""
    config = model.config
    if isinstance(config, EncoderDecoderConfig) and patches_of(config) is not None:
        raise HeedfulError("OpenVINO is not written for a model that writes a text about an image; use --to onnx")
    inputs = example_inputs(input_names(config), model)
    generates = isinstance(config.head, LanguageHead)
    if isinstance(config, DecoderConfig) and generates:
        inputs = {"input_ids": inputs["input_ids"][:, -2:], "attention_mask": inputs["attention_mask"]}
        return [_with_cache("openvino_model", TracedDecoder(model), inputs, config.decoder)]
    if isinstance(config, EncoderDecoderConfig) and generates:
        mask = inputs["attention_mask"]
        memory = torch.zeros(*mask.shape, config.encoder.dim)
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        target = {"input_ids": inputs["decoder_input_ids"], "encoder_hidden_states": memory}
        target["encoder_attention_mask"] = mask
        return [
            Graph("openvino_encoder_model", TracedSource(model), source, "last_hidden_state"),
            _with_cache("openvino_decoder_model", TracedTarget(model), target, config.decoder),
        ]
    return [Graph("openvino_model", traceable(model, TRACED), inputs, output_name(config))]


def _with_cache(name: str, module: nn.Module, inputs: Mapping[str, Tensor], stack: StackConfig) -> Graph:
    """Returns a graph with ``beam_idx`` and the cache as further inputs; the example has as many tokens as fit."""
    ids = inputs["input_ids"]
    earlier = inputs["attention_mask"].size(1) - ids.size(1) if "attention_mask" in inputs else 3
    heads, size = empty_shape(stack)
    past = dict.fromkeys(cache_names(stack, PAST), torch.zeros(len(ids), heads, earlier, size))
    return Graph(name, module, {**inputs, "beam_idx": torch.arange(len(ids)), **past}, "logits", stack)


# ----------------------------------------------------------------------------------------------------------- conversion


def _converted(graph: Graph) -> Any:
    """Returns the graph as OpenVINO's model, with named inputs and outputs and, if it has a cache, a state.

    ``openvino.convert_model`` does the same and reports its use to Intel, without asking; its front end does not.
    """
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # of Python numbers, constants for the tracer
        try:
            decoder = TorchScriptPythonDecoder(graph.module, example_input=tuple(graph.inputs.values()))
            front_end = FrontEndManager().load_by_framework("pytorch")
            model = front_end.convert(front_end.load(decoder))
        except Exception as error:  # any, of the tracer, of a registered part that it runs, or of the converter
            reason = " ".join(str(error).split())[:300]
            raise HeedfulError(f"OpenVINO cannot convert this model ({reason}); use --to onnx") from None
    for port, (name, example) in zip(model.inputs, graph.inputs.items(), strict=True):
        port.set_names({name})
        port.get_node().set_partial_shape(openvino.PartialShape(_shape(name, example)))
    outputs = [graph.output, *(cache_names(graph.stack, PRESENT) if graph.stack else [])]
    for port, name in zip(model.outputs, outputs, strict=True):
        port.set_names({name})
    model.validate_nodes_and_infer_types()
    if graph.stack is not None:
        _make_stateful(model, graph.stack)
    return model


def _shape(name: str, example: Tensor) -> list[int]:
    """Returns the shape of an input, -1 for an axis of any size: the batch, and tokens."""
    if name == "pixel_values":
        return [-1, *example.shape[1:]]
    if name.startswith(PAST):
        return [-1, example.size(1), -1, example.size(3)]
    return [-1] * min(example.dim(), 2) + list(example.shape[2:])


def _make_stateful(model: Any, stack: StackConfig) -> None:
    """Turns the cache from inputs and outputs into the model's state, which begins as (B, K, 0, E)."""
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    names = zip(cache_names(stack, PAST), cache_names(stack, PRESENT), strict=True)
    apply_make_stateful_transformation(model, dict(names))
    heads, size = empty_shape(stack)
    batch = ops.shape_of(model.input("beam_idx"), "i64")  # (1,)
    shape = ops.concat([batch, ops.constant(np.array([heads, 0, size]))], 0)
    empty = ops.broadcast(ops.constant(np.float32(0)), shape)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()


def _compressed(model: Any) -> Any:
    """Returns the model with matrices of eight bits; activations are not quantised."""
    os.environ.setdefault("NNCF_CI", "1")  # else it reports its use to Intel
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level would change the user's handlers too
    with redirect_stdout(sys.stderr):  # it draws a progress bar
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
