"""Attention of one query a row: the Triton kernels beside plain PyTorch in float64.

They run on an NVIDIA GPU, or with TRITON_INTERPRET=1 on a CPU where Triton is installed beside PyTorch.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.config import LanguageHead
from heedful.kernels import decode_attention as module
from heedful.kernels.decode_attention import decode_attention, store_for, store_in_one_kernel, takes_one_query
from heedful.kernels.fixed_cache import store_columns
from heedful.kernels.varlen import gpu_attention
from heedful.layers.attention_kernels import fused_attention
from heedful.layers.linear import AlignedLinear
from heedful.optimize_model import _align_vocabulary
from tolerances import assert_close

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
compiled_or_interpreted = pytest.mark.skipif(
    not HAS_TRITON or (DEVICE == "cpu" and not IS_INTERPRETED),
    reason="needs Triton, and a CUDA GPU or TRITON_INTERPRET=1",
)
# rows of queries and of keys, heads of queries and of keys, columns, head size, least columns of a part
SHAPES = {
    "one part": (3, 3, 4, 4, 37, 8, 512),
    "shared keys": (4, 2, 4, 2, 130, 16, 512),
    "grouped": (2, 2, 8, 2, 300, 24, 512),
    "several parts": (1, 1, 2, 1, 700, 64, 100),
    "parts without keys": (6, 2, 2, 2, 90, 5, 10),
    "large head": (2, 2, 2, 2, 40, 160, 512),
    "large scores": (1, 1, 2, 1, 300, 64, 100),
}


def given(rows: int, key_rows: int, heads: int, key_heads: int, columns: int, size: int) -> tuple[Tensor, ...]:
    """Queries, keys and values in float64, of which the first are transposed and the last are a part of a buffer."""
    random = torch.Generator().manual_seed(0)
    q = torch.randn(rows, 1, heads, size, generator=random, dtype=torch.float64).transpose(1, 2)
    k, v = torch.randn(2, key_rows, key_heads, columns + 3, size, generator=random, dtype=torch.float64)
    return q, k[:, :, :columns], v[:, :, :columns]


def masks(rows: int, key_rows: int, columns: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    some = torch.rand(key_rows, 1, 1, columns, generator=random) < 0.5
    some[-1] = False  # a query that may attend to nothing
    of_rows = torch.rand(rows, 1, 1, columns, generator=random) < 0.2
    return {"keys": some, "every key": torch.ones(1, 1, 1, columns, dtype=torch.bool), "rows": of_rows}


@compiled_or_interpreted
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter, in values that are not chosen
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_is_attention(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    *sizes, least = SHAPES[name]
    monkeypatch.setattr(module, "LEAST_COLUMNS", least)
    rows, key_rows, columns, size = sizes[0], sizes[1], sizes[4], sizes[5]
    q, k, v = (x.to(dtype) for x in given(*sizes))
    if name == "large scores":
        q = 50 * q
    for kind, mask in masks(rows, key_rows, columns).items():
        if kind == "rows" and rows != key_rows:
            exact = [x.double().repeat_interleave(rows // key_rows, 0) for x in (k, v)]
        else:
            exact = [x.double() for x in (k, v)]
        expected = fused_attention(q.double(), *exact, mask, None, size**-0.5)
        found = decode_attention(*(x.to(DEVICE) for x in (q, k, v, mask)), size**-0.5).cpu()
        assert found.dtype == dtype
        assert_close(found.double(), expected, dtype=dtype, msg=kind)
        assert not found[~mask.any(3)[:, 0, 0].repeat_interleave(rows // len(mask), 0)].any(), kind


@compiled_or_interpreted
@pytest.mark.parametrize("size", [5, 64])
def test_the_kernel_stores_a_token_of_each_row(size: int) -> None:
    new = [torch.randn(2, 1, 3, size).transpose(1, 2), torch.randn(2, 3, 1, size)]
    rows, columns = torch.tensor([3, 1]), torch.tensor([8, 0])
    expected = torch.zeros(2, 4, 3, 9, size).unbind()
    found = torch.zeros(2, 4, 3, 9, size, device=DEVICE).unbind()
    store_columns(expected, (new[0], new[1]), rows, columns)
    store_in_one_kernel(found, tuple(x.to(DEVICE) for x in new), rows.to(DEVICE), columns.to(DEVICE))
    assert all(torch.equal(mine.cpu(), plain) for mine, plain in zip(found, expected, strict=True))


def test_the_kernel_is_used_for_one_query_under_a_boolean_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "runs_triton", lambda device: True)
    q, k, v = (x.float() for x in given(2, 2, 4, 2, 6, 8))
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    assert takes_one_query(q, k, v, mask)
    for case, arguments in {
        "no mask": (q, k, v, None),
        "a bias": (q, k, v, mask.float()),
        "two queries": (q.expand(-1, -1, 2, -1), k, v, mask),
        "a mask of heads": (q, k, v, mask.expand(-1, 4, -1, -1)),
        "a gradient": (q.clone().requires_grad_(), k, v, mask),
        "float64": (q.double(), k.double(), v.double(), mask),
        "two types": (q, k.bfloat16(), v, mask),
        "values apart": (q, k, v.mT.contiguous().mT, mask),
        "a mask apart": (q, k, v, torch.ones(6, 1, 1, 2, dtype=torch.bool).transpose(0, 3)),
        "a mask of fewer keys": (q, k, v, mask[..., :1]),
        "a mask of other rows": (q, k, v, mask.repeat(2, 1, 1, 1)),
        "other rows of keys": (q[:1], k, v, mask),
        "values of another size": (q, k, v[..., :4], mask),
        "keys of another size": (q, k[..., :4], v[..., :4], mask),
        "no rows": (q[:0], k[:0], v[:0], mask[:0]),
    }.items():
        assert not takes_one_query(*arguments), case
    calls: list[Any] = []
    monkeypatch.setattr("heedful.kernels.varlen.decode_attention", lambda *given: calls.append(given) or given[0])
    assert gpu_attention(q, k, v, mask, None, 1.0) is q
    assert len(calls) == 1
    gpu_attention(q, k, v, mask, None, 1.0, dropout=0.5)
    assert len(calls) == 1, "the kernel drops no weights"
    monkeypatch.setattr(module, "MANY_QUERIES", 8)
    assert takes_one_query(q, k, v, mask)
    monkeypatch.setattr(module, "MANY_COLUMNS", 6)
    assert not takes_one_query(q, k, v, mask), "PyTorch reads shared keys once"


def test_the_kernel_stores_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert store_for(device) is store_columns
    monkeypatch.setattr(module, "runs_triton", lambda device: True)
    assert store_for(device) is store_in_one_kernel
    monkeypatch.setattr(module, "_store_kernel", lambda: pytest.fail("it takes neither float64 nor columns apart"))
    rows = torch.tensor([0])
    for buffers, new in (
        (torch.zeros(2, 1, 1, 3, 4, dtype=torch.float64), torch.randn(2, 1, 1, 1, 4, dtype=torch.float64)),
        (torch.zeros(2, 1, 1, 3, 4), torch.randn(2, 1, 1, 4, 2)[..., :1].mT),
    ):
        store_in_one_kernel(tuple(buffers), tuple(new), rows, torch.tensor([2]))
        assert torch.equal(buffers[:, :, :, 2:], new)


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_output_projection_of_a_gpu_has_aligned_rows(is_tied: bool) -> None:
    config = presets.get("gpt-micro")
    model = heedful.create(replace(config, head=LanguageHead(tied=is_tied)), seed=0).eval()
    ids = torch.tensor([[1, 2, 3]])
    expected = model(ids)
    vocabulary = model.head.output.out_features
    _align_vocabulary(model)
    output, embedding = model.head.output, model.embedding.token
    assert isinstance(output, AlignedLinear)
    assert output.weight.size(0) % 64 == 0
    assert output.out_features == vocabulary
    assert_close(model(ids), expected)
    assert (embedding.weight.data_ptr() == output.weight.data_ptr()) == is_tied
