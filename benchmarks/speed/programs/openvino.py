"""OpenVINO, Intel's engine: its CPU plugin, on the forms that ``to_openvino`` writes.

Settings: the hint LATENCY, which makes one stream of ``threads`` threads; INFERENCE_PRECISION_HINT is float32 or
bfloat16 as asked. What is not named is the engine's own choice: under int8 and int4 the arithmetic between the
products, which is bfloat16 where the processor multiplies matrices of it, and the quantisation of activations in groups
of 32; except under float32 the cache, whose keys and values then have eight bits. Threads are pinned to their cores.

Each step of a generation is one request to the model, which keeps its cache and returns the logits of the last tokens;
the highest is found by NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.speed.programs import Absent, Call, Ready, Setting, need
from benchmarks.speed.works import Work

HINTS = {"float32": {"INFERENCE_PRECISION_HINT": "f32"}, "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"}}


def opened(at: Setting, **more: str) -> Any:
    """Returns a request of the compiled model."""
    need("openvino")
    import openvino

    if at.device != "cpu":
        raise Absent("measured on a CPU alone")
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": at.threads,
        **HINTS.get(at.precision, {}),
        **more,
    }
    core = openvino.Core()
    hardware = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if at.precision == "bfloat16" and "BF16" not in hardware:
        raise Absent("this CPU has no instructions for bfloat16, and OpenVINO would compute in float32")
    return core.compile_model(at.model / "model.xml", "CPU", options).create_infer_request()


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    request = opened(at, **({"KV_CACHE_PRECISION": "f32"} if at.precision == "float32" else {}))

    names = {name for port in request.model_inputs for name in port.get_names()}

    def step(ids: np.ndarray, first: int, rows: np.ndarray) -> np.ndarray:
        if "positions" in names:
            inputs = {"ids": ids, "positions": np.broadcast_to(np.arange(first, first + ids.shape[1]), ids.shape)}
        else:
            inputs = {"input_ids": ids, "attention_mask": np.ones((len(ids), first + ids.shape[1]), dtype=np.int64)}
        request.infer({**inputs, "beam_idx": rows})
        logits = request.get_output_tensor(0).data
        return (logits if logits.ndim == 2 else logits[:, -1]).argmax(-1)[:, None]

    def ready(work: Work) -> Call:
        prompt, rows = work.ids(), np.arange(work.batch)

        def call() -> np.ndarray:
            request.reset_state()
            made = [step(prompt, 0, rows)]
            for count in range(work.new - 1):
                made.append(step(made[-1], work.longest + count, rows))
            return np.concatenate(made, 1)

        return call

    return ready


def encoder(at: Setting) -> Ready:
    """The last hidden states."""
    request = opened(at)
    return lambda work: _called(request, [work.ids(), work.mask().astype(np.int64)])


def vit(at: Setting) -> Ready:
    """The logits."""
    request = opened(at)
    return lambda work: _called(request, [work.pixels()])


def _called(request: Any, inputs: list[np.ndarray]) -> Call:
    def call() -> np.ndarray:
        request.infer(inputs, share_inputs=True)
        return request.get_output_tensor(0).data

    return call
