"""ONNX Runtime: one graph, through ``heedful export --to onnx``; int8 is its own dynamic quantisation of that graph."""

from __future__ import annotations

import numpy as np

from benchmarks.speed.programs import Absent, Call, Ready, Setting, need
from benchmarks.speed.works import Work


def encoder(at: Setting) -> Ready:
    """The last hidden states."""
    need("onnxruntime")
    import onnxruntime

    provider = "CPUExecutionProvider" if at.device == "cpu" else "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise Absent(f"this onnxruntime has no {provider} (pip install onnxruntime-gpu)")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = at.threads
    session = onnxruntime.InferenceSession(str(at.model / "model.onnx"), options, providers=[provider])

    def ready(work: Work) -> Call:
        ids = work.ids()
        given = {"input_ids": ids, "attention_mask": work.mask().astype(np.int64), "token_type_ids": np.zeros_like(ids)}
        return lambda: session.run(None, given)[0]

    return ready
