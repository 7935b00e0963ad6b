"""Steps of decoding that are captured as CUDA graphs, and how they are captured.

A step of decoding is some two hundred small kernels, and the host needs longer to launch them one by one than the GPU
to run them. A captured step is launched at once. It always reads and writes the memory that it was captured with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from heedful.util.out_of_memory import is_out_of_memory

DEVICES = {"cuda"}  # types of devices on which steps are captured
WARM_UPS = 3  # calls before the capture, in which libraries choose their kernels and allocate workspaces
MOST_STEPS = 8  # of a model; each has keys and values of its own
log = logging.getLogger("heedful")
_one_capture = Lock()  # PyTorch allows one at a time in a process


def can_capture(device: torch.device) -> bool:
    """Returns True for an NVIDIA GPU."""
    return device.type in DEVICES and torch.version.hip is None


def capture(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Captures ``function`` as a CUDA graph in a private memory pool; returns what replays it.

    The function is called first, ``WARM_UPS`` times. It must not read from the device, copy to or from the host, or
    draw random numbers. A replay returns the tensor that the captured call returned, with new contents.

    Raises ``RuntimeError`` if the function does what a capture forbids.
    """
    with _one_capture, torch.cuda.device(device):
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        # left by this context also after a failed capture, which leaves the stream that it has entered itself current
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
            graph = torch.cuda.CUDAGraph()
            # other threads may allocate and wait meanwhile, on streams of their own
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                output = function()
        current.wait_stream(stream)

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
            if _addresses(model) != self._weights:  # the steps read others
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
                log.warning(f"decoding runs as without compile=True: a step could not be captured ({reason})")
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
