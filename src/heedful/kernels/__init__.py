"""Kernels: fast implementations of the layers' operations for this machine, in training and in inference.

    plan                the table of plans, and the one function that applies them to a model
    blocked_attention   attention of a training step on a CPU        cpu_dropout  dropout on a CPU
    onednn_linear       linear maps through oneDNN                   unpadded     layouts without padding
    allocator           keeps freed memory in the process            varlen       attention on a GPU
    prepacked_linear    prepacked and quantised linear maps          fused_projections  one product for q, k and v
    compiled_step       a decoding step, or whole sequences, in one call of C++
    greedy_steps        several steps in a call, with the choice of tokens
    few_rows            that C++ code, its weights and its library   few_rows_build  compiles it

A plan writes one attribute of each part (``Attention.attend``, ``Linear.linear``, ...) and can be removed. A new kernel
is a function in a file here, its entry in ``KERNELS`` and the plans that use it (``plan``).
"""

from heedful.kernels.fixed_cache import SlotCache, StaticCache
from heedful.kernels.plan import PLANS, Plan, apply_plan, using

__all__ = ["PLANS", "Plan", "SlotCache", "StaticCache", "apply_plan", "using"]
