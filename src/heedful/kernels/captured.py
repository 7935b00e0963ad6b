"""Steps of decoding that are captured as CUDA graphs, and how they are captured.

A decoding step is some two hundred small kernels, each launched by the host. A captured step is one launch, and always
uses the memory addresses of its capture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import cache
from threading import Lock
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.util.out_of_memory import is_out_of_memory

DEVICES = {"cuda"}  # types of devices on which steps are captured
WARM_UPS = 2  # calls before a capture, besides the checked one
MOST_STEPS = 8  # kept for a model; each has keys and values of its own
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}
LIFTS = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
log = logging.getLogger("heedful")
_one_capture = Lock()  # PyTorch allows one at a time in a process


def can_capture(device: torch.device) -> bool:
    """Returns True for an NVIDIA GPU."""
    return device.type in DEVICES and torch.version.hip is None


class NoHostAccess(TorchDispatchMode):
    """Dispatch mode that raises ``RuntimeError`` if an operation waits for the device or copies to or from it.

    >>> with NoHostAccess():
    ...     torch.ones(3).sum().item()
    Traceback (most recent call last):
    RuntimeError: aten._local_scalar_dense.default makes the host wait
    """

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = operation.decompose(*args, **kwargs)  # in inference mode a composite operation arrives whole
        if parts is not NotImplemented:
            return parts
        waits = torch.Tag.data_dependent_output in operation.tags
        if operation in INDEXING:
            waits = any(index.dtype in (torch.bool, torch.uint8) for index in tree_leaves(args[1]) if index is not None)
        elif torch.Tag.dynamic_output_shape in operation.tags:
            waits = True
        if waits:
            raise RuntimeError(f"{operation} makes the host wait")
        result = operation(*args, **kwargs)
        is_host_data = operation in LIFTS and result.device.type != "cpu"  # ``torch.tensor([1, 2], device=...)``
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        # a 0-dim CPU tensor is passed as a kernel argument, unless it is copied
        devices = {tensor.device.type for tensor in tensors if tensor.dim() or operation in COPIES}
        if is_host_data or len(devices) > 1:
            raise RuntimeError(f"{operation} copies between the host and the device")
        return result


def warm_up(function: Callable[[], Tensor]) -> None:
    """Warms ``function`` up for a capture: libraries choose kernels and allocate workspaces.

    Raises ``RuntimeError`` if it waits for the device or copies, before the capture: a failed capture would leave
    PyTorch's allocator and random generator unusable.
    """
    with NoHostAccess():
        function()
    for _ in range(WARM_UPS):
        function()


@cache
def _side_stream(stream: Any) -> Any:
    """Returns the stream of captures for the work of ``stream``: graphs of one stream may share cuBLAS's workspace."""
    return torch.cuda.Stream(stream.device)


def capture(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Captures ``function`` as a CUDA graph in a private memory pool; returns what replays it.

    The function is called first (``warm_up``). It must not read from the device, copy to or from the host, or draw
    random numbers. A replay returns the tensor that the captured call returned, with new contents.

    Raises ``RuntimeError`` if the function does what a capture forbids.
    """
    with _one_capture, torch.cuda.device(device):
        current = torch.cuda.current_stream()
        stream = _side_stream(current)
        stream.wait_stream(current)
        # ``torch.cuda.graph`` enters the stream too, but would not leave it after a capture that failed
        with torch.cuda.stream(stream):
            try:
                warm_up(function)
            finally:
                current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # other threads may allocate and wait meanwhile, on streams of their own
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                output = function()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def stream_of(device: torch.device) -> Hashable:
    """Returns the stream on which a device works for this thread: a captured step belongs to one."""
    return torch.cuda.current_stream(device)


def _addresses(model: nn.Module) -> list[tuple[torch.dtype, int]]:
    return [(tensor.dtype, tensor.data_ptr()) for tensor in (*model.parameters(), *model.buffers())]


class Step(Protocol):
    """A captured step; ``busy`` is locked while a call uses it."""

    busy: Lock


S = TypeVar("S", bound=Step)


class CapturedSteps:
    """Captured steps of a model, by their shapes. A copied or pickled model begins without any.

    Attributes:
        refused: True if a step of the model cannot be captured.

    >>> CapturedSteps()
    CapturedSteps(graphs=0)
    """

    def __init__(self) -> None:
        self.refused = False
        self._has_warned = False
        self._steps: dict[Hashable, Any] = {}  # the least recently used is first
        self._weights: list[tuple[torch.dtype, int]] = []
        self._lock = Lock()

    def claim(self, model: nn.Module, key: Hashable, make: Callable[[], S]) -> S | None:
        """Returns the step of ``key``, made by ``make`` if there is none. The caller must release its ``busy``.

        Returns None if another call uses it, or if it cannot be captured; a warning says so once.
        """
        with self._lock:
            if _addresses(model) != self._weights:  # the steps read other weights
                self._steps.clear()
            step = self._steps.pop(key, None) or self._made(make)
            if step is None:
                return None
            self._weights = _addresses(model)  # a first call may have extended a table of positions
            self._steps[key] = step
            while len(self._steps) > MOST_STEPS:
                del self._steps[next(iter(self._steps))]
            return step if step.busy.acquire(blocking=False) else None

    def clear(self) -> None:
        """Forgets all steps, and frees their memory once no call uses them."""
        self._steps.clear()

    def _made(self, make: Callable[[], S]) -> S | None:
        try:
            return make()
        except RuntimeError as error:
            self._steps.clear()
            self.refused = self.refused or not is_out_of_memory(error)
            if not self._has_warned:
                reason = str(error).partition("\n")[0]
                log.warning(f"decoding runs as with compiled_decoding=False: a step could not be captured ({reason})")
            self._has_warned = True
            return None

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[type[CapturedSteps], tuple[()]]:
        return CapturedSteps, ()

    def __repr__(self) -> str:
        return f"CapturedSteps(graphs={len(self)})"
