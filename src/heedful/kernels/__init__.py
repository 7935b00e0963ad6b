"""Kernels: how the core's operations run on this machine, in training and for inference. The results are the same.

Training on a CPU: ``training`` puts in place what ``training_linear``, ``blocked_attention``, ``dropout`` and
``unpadded_training`` hold. Inference: ``optimize`` puts in place ``prepacked_linear``, ``fused_projections``,
``unpadded``, ``last_block``, ``residual`` and ``allocator``.
"""

from heedful.kernels.optimize import KINDS, prepare
from heedful.kernels.prepacked_linear import direct

__all__ = ["KINDS", "direct", "prepare"]
