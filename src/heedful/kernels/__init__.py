"""Kernels: how the core's operations are computed on this machine, in training and in inference.

``plan`` applies and removes kernels of a model: what ``onednn_linear``, ``blocked_attention``, ``cpu_dropout``,
``unpadded_training`` (training on a CPU), ``unpadded`` and ``prepacked_linear`` (inference) hold.
``optimize`` changes a model's storage for inference, for good: ``prepacked_linear``, ``fused_projections``,
``last_block``. ``allocator`` keeps freed memory in the process.
"""

from heedful.kernels.optimize import KINDS, optimize
from heedful.kernels.plan import PLANS, Plan, apply_plan, using

__all__ = ["KINDS", "PLANS", "Plan", "apply_plan", "optimize", "using"]
