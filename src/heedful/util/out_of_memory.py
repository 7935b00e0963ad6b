"""Out-of-memory errors, which few devices and libraries give a type of their own. Imports no torch."""

from __future__ import annotations

import re

# the CPU's allocator; CUDA's, HIP's, XPU's and MPS's; cuBLAS, cuDNN, cuSOLVER and cuSPARSE
MESSAGES = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|not enough memory"
    r"|(CUDA|HIP|XPU|MPS)[\w ]*( error:|:)? out of memory|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True for an out-of-memory error of Python, of a device, or of a library that computes on it.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and MESSAGES.search(str(error)) is not None
