"""Tolerances of the comparisons in all tests: one table, by dtype, device and operation.

Two values are close where |actual − expected| ≤ absolute + relative · |expected|. A comparison states its operation;
dtype and device are those of the tensors. Results that must be equal to the bit use ``torch.equal``. A tolerance that
belongs to an experiment (a sampling error, the rounding of a page) stands in its test, with its reason.

Operations:
    layer: one layer, or one formula, against another implementation.
    forward: outputs and scores of a whole model, or what is computed from them.
    gradient: gradients of a whole model.
    training: weights and losses after several steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn


class Tolerance(NamedTuple):
    relative: float
    absolute: float


TOLERANCES: dict[tuple[torch.dtype, str], dict[str, Tolerance]] = {
    (torch.float64, "cpu"): {
        "layer": Tolerance(1e-12, 1e-12),
        "forward": Tolerance(1e-10, 1e-10),
        "gradient": Tolerance(1e-8, 1e-10),
        "training": Tolerance(1e-7, 1e-7),
    },
    (torch.float32, "cpu"): {
        "layer": Tolerance(1.3e-6, 1e-6),
        "forward": Tolerance(1.3e-6, 1e-5),  # PyTorch's own defaults
        "gradient": Tolerance(1e-4, 1e-5),
        "training": Tolerance(1e-4, 1e-4),
    },
    (torch.bfloat16, "cpu"): {  # eight bits of mantissa: 2⁻⁸ = 4e-3 a rounding
        "layer": Tolerance(1.6e-2, 1e-2),
        "forward": Tolerance(1.6e-2, 2e-2),
        "gradient": Tolerance(4e-2, 4e-2),
        "training": Tolerance(4e-2, 4e-2),
    },
}


def tolerance(operation: str, dtype: torch.dtype, device: str = "cpu") -> Tolerance:
    """Tolerance of ``operation`` in ``dtype`` on ``device``; integers and booleans are compared exactly."""
    if not dtype.is_floating_point:
        return Tolerance(0.0, 0.0)
    return TOLERANCES[dtype, device][operation]


def assert_close(actual: Any, expected: Any, operation: str = "forward", **options: Any) -> None:
    """Fails where tensors, arrays, numbers, or lists and dicts of tensors differ by more than the table allows.

    The tolerance is that of the less precise dtype of the two. ``dtype`` in ``options`` states the precision of the
    computation where the result is held in a wider one; the others are those of ``torch.testing.assert_close``.
    """
    if isinstance(actual, Mapping):
        assert actual.keys() == expected.keys()
        actual, expected = list(actual.values()), [expected[key] for key in actual]
    if isinstance(actual, (list, tuple)) and actual and isinstance(actual[0], Tensor):
        for a, b in zip(actual, expected, strict=True):
            assert_close(a, b, operation, **options)
        return
    actual, expected, allowed = _tensors(actual, expected, operation, options.pop("dtype", None))
    torch.testing.assert_close(actual, expected, rtol=allowed.relative, atol=allowed.absolute, **options)


def assert_same_model(actual: nn.Module, expected: nn.Module, *inputs: Tensor) -> None:
    """Fails where a weight differs by a bit, or the outputs for ``inputs`` by more than the table allows.

    Saving and loading keep the bits of weights alone. A loaded weight is a view of its file, not aligned or even
    transposed, and kernels then sum in another order.
    """
    state = expected.state_dict()
    assert actual.state_dict().keys() == state.keys()
    for name, tensor in actual.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert_close(actual(*inputs), expected(*inputs))


def is_close(actual: Any, expected: Any, operation: str = "forward") -> bool:
    """True where no value differs by more than the table allows."""
    actual, expected, allowed = _tensors(actual, expected, operation, None)
    return torch.allclose(actual, expected, rtol=allowed.relative, atol=allowed.absolute)


def approx(expected: Any, operation: str = "forward", dtype: torch.dtype = torch.float32) -> Any:
    """``pytest.approx`` with the table's tolerance: for numbers, and for lists and dicts of them."""
    allowed = tolerance(operation, dtype)
    return pytest.approx(expected, rel=allowed.relative, abs=allowed.absolute)


def _tensors(actual: Any, expected: Any, operation: str, dtype: torch.dtype | None) -> tuple[Tensor, Tensor, Tolerance]:
    """Both as tensors, a number in the other's shape, and the tolerance.

    Python's numbers have the dtype of the other side; on both sides they count as float32.
    """
    tensors = [
        torch.as_tensor(np.asarray(value)) if not isinstance(value, Tensor) else value for value in (actual, expected)
    ]
    precisions = [
        tensor.dtype for tensor, value in zip(tensors, (actual, expected), strict=True) if hasattr(value, "dtype")
    ]
    if dtype is None:
        dtype = max(precisions or [torch.float32], key=_epsilon)
    if not (isinstance(actual, Tensor) and isinstance(expected, Tensor)):
        tensors = [tensor.double() for tensor in tensors]
    if not (tensors[0].dim() and tensors[1].dim()):
        tensors = list(torch.broadcast_tensors(*tensors))
    return tensors[0], tensors[1], tolerance(operation, dtype, tensors[0].device.type)


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
