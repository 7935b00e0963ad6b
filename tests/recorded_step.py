"""A stand-in for the capture of CUDA graphs: the operations of a function, recorded and computed again.

As a graph does, a replay reads and writes the tensors of the recording, and runs no Python of the function: numbers
that the host had then are those of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.kernels import captured


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return getattr(tensor, "held", tensor).untyped_storage().data_ptr()  # of a pretend GPU's tensor: on the CPU


class Recorder(TorchDispatchMode):
    """Records operations, and the results that have memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor | None]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        shared = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        results = [None if _storage(tensor) in shared else tensor for tensor in _tensors(result)]
        self.calls.append((operation, args, kwargs, results))
        return result

    def replay(self) -> None:
        """Computes the operations again, into the tensors of the recording."""
        for operation, args, kwargs, results in self.calls:
            for tensor, new in zip(results, _tensors(operation(*args, **kwargs)), strict=True):
                if tensor is not None:
                    tensor.copy_(new)


class Captures(list[Recorder]):
    """The recordings, in order, and how often they were replayed.

    Attributes:
        replays: number of all replays.
        error: raised in place of the next recordings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0
        self.error: BaseException | None = None

    def capture(self, function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        """Has the signature of ``heedful.kernels.captured.capture``."""
        captured.warm_up(function)
        if self.error is not None:
            raise self.error
        with Recorder() as recorder:
            output = function()
        self.append(recorder)

        def replay() -> Tensor:
            self.replays += 1
            recorder.replay()
            return output

        return replay


@contextmanager
def recorded_steps(device: str = "cpu") -> Iterator[Captures]:
    """Models on ``device`` that are marked (``Model.captured``) record and replay their steps while entered."""
    captures = Captures()
    with (
        mock.patch.object(captured, "DEVICES", {device}),
        mock.patch.object(captured, "capture", captures.capture),
        mock.patch.object(captured, "stream_of", return_value=None),
    ):
        yield captures
