"""Heedful on a real GPU: numbers against float64 on the CPU, attention kernels, memory, graphs, NCCL, killed runs.

    python -m pytest -n 4 --dist load tests/gpu/test_cuda.py                  # on a machine with a CUDA GPU
    GPU_DRY_RUN=1 python -m pytest -n 2 --dist load tests/gpu/test_cuda.py    # on a CPU, what needs no GPU

Most tests compare one small model or one kernel, in milliseconds; those of whole runs start processes of their own.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once, before its first product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import heedful
from heedful import presets
from heedful.config import AlibiPosition, DecoderConfig, EncoderDecoderConfig, LanguageHead
from heedful.generation import decode, stream
from heedful.heads import head_of
from heedful.kernels import varlen
from heedful.kernels.captured import CapturedSteps
from heedful.kernels.plan import apply_plan
from heedful.kernels.varlen import varlen_attention
from heedful.kernels.vocabulary_loss import has_triton
from heedful.layers import text_starts
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import explicit_attention, fused_attention
from heedful.layers.mask import Mask, causal_mask, padding_mask
from heedful.optimize_model import optimize
from heedful.tasks import output_loss as loss_module
from heedful.tasks.output_loss import output_loss
from heedful.training.engine import Alone
from heedful.training.gradient import Gradient
from heedful.training.memory import is_out_of_memory
from heedful.training.optimisation import adamw
from tolerances import approx, assert_close
from varlen_reference import Reference

HAS_CUDA = torch.cuda.is_available() and not os.environ.get("GPU_DRY_RUN")
DEVICE = "cuda" if HAS_CUDA else "cpu"
IS_DRY_RUN = not HAS_CUDA and bool(os.environ.get("GPU_DRY_RUN"))
pytestmark = [
    pytest.mark.skipif(not (HAS_CUDA or IS_DRY_RUN), reason="no CUDA GPU; GPU_DRY_RUN=1 runs the bodies on the CPU"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of what a test cannot change
]
cuda_only = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA GPU, also in a dry run")
commands = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("cyclopts", "tomli_w")),
    reason="heedful's command line needs cyclopts and tomli-w",
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
B, T, VOCAB = 3, 45, 60  # an odd length: kernels that want rows of eight have to cope


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # PyTorch's default for convolutions is True
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


# ------------------------------------------------------------------------------------------------ models and inputs


def alibi() -> DecoderConfig:
    config = presets.get("gpt-micro")
    return replace(config, decoder=replace(config.decoder, position=AlibiPosition()))


def t5() -> EncoderDecoderConfig:
    config = presets.t5(64, 2, 4, 128, head_dim=16)
    return replace(config, source=replace(config.source, vocab_size=VOCAB))


MODELS: dict[str, Callable[[], Any]] = {
    "gpt-micro": lambda: presets.get("gpt-micro"),  # learned positions
    "stories260k": lambda: presets.get("stories260k"),  # rotary positions, grouped queries
    "alibi": alibi,  # a bias on the scores
    "bert-tiny": lambda: presets.get("bert-tiny"),
    "transformer-tiny": lambda: presets.get("transformer-tiny"),
    "t5": t5,  # a learned bias on the scores
    "vit-micro": lambda: presets.get("vit-micro"),
}
GENERATORS = ("gpt-micro", "stories260k", "transformer-tiny", "t5")
PADDINGS = ("none", "left", "right", "packed")


@cache
def created(name: str) -> Any:
    """A float32 model on the CPU whose tokens attend unevenly: matrices keep the size of what goes through them."""
    model, random = heedful.create(MODELS[name](), seed=0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for path, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=random)
            if tensor.dim() == 1:
                tensor.add_(0.1 * noise)
            elif ".block." in path:
                tensor.copy_(0.7 * noise / tensor.size(1) ** 0.5)
        for part in model.modules():
            if isinstance(part, Attention) and part.scale == 1.0:
                part.query.weight.mul_(part.head_dim**-0.5)
    return apply_plan(model, "plain").eval()


def padding(kind: str) -> Tensor | None:
    """(B, T): None, False at padding, or segment numbers; every row has another length."""
    if kind == "none":
        return None
    if kind == "packed":
        numbers = torch.ones(B, T, dtype=torch.long)
        for row, (first, last) in enumerate(((20, 40), (7, T), (30, 31))):
            numbers[row, first:] = 2
            numbers[row, last:] = 0
        return numbers
    lengths = torch.tensor([T, 30, 3])[:, None]
    place = torch.arange(T)
    return place < lengths if kind == "right" else place >= T - lengths


def inputs_of(name: str, kind: str) -> tuple[Tensor | None, ...]:
    """Inputs of the model, on the CPU."""
    random = torch.Generator().manual_seed(2)
    if name == "vit-micro":
        return (torch.randn(B, 1, 28, 28, generator=random),)
    ids = torch.randint(5, VOCAB, (B, T), generator=random)
    mask = padding(kind)
    return (ids, ids.flip(1), mask, mask) if isinstance(MODELS[name](), EncoderDecoderConfig) else (ids, mask)


def moved(tensors: tuple[Tensor | None, ...], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """On the device; pixels in the model's dtype."""
    return [
        None if x is None else x.to(DEVICE, dtype if x.is_floating_point() else None) if dtype else x.to(DEVICE)
        for x in tensors
    ]


def exact(model: Any, dtype: torch.dtype, inputs: tuple[Tensor | None, ...]) -> tuple[Any, list[Tensor | None]]:
    """The model with weights rounded to ``dtype``, computing in float64 on the CPU, and its inputs."""
    rounded = [x.to(dtype).double() if x is not None and x.is_floating_point() else x for x in inputs]
    return copy.deepcopy(model).to(dtype).double(), rounded


def is_token(kind: str) -> Tensor:
    mask = padding(kind)
    return torch.ones(B, T, dtype=torch.bool) if mask is None else mask > 0


def assert_near(actual: Tensor, expected: Tensor, operation: str, dtype: torch.dtype | None = None) -> None:
    """Fails where ‖actual − expected‖ / ‖expected‖ is above the absolute tolerance of ``operation``, or NaN.

    In float32 that is 1e-5, far below what TF32 would give. ``dtype`` is by default that of ``actual``.
    """
    distance = (actual.double().cpu() - expected.double().cpu()).norm() / expected.double().norm().cpu()
    assert_close(distance, torch.zeros_like(distance), operation, dtype=dtype or actual.dtype)


# -------------------------------------------------------------------------------------------- numbers of every family


@pytest.mark.parametrize("kernels", ["gpu", "optimised"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in MODELS for kind in PADDINGS if name != "vit-micro" or kind == "none"]
)
def test_outputs_are_those_of_float64(name: str, kind: str, precision: str, kernels: str) -> None:
    dtype, inputs = DTYPES[precision], inputs_of(name, kind)
    reference, exact_inputs = exact(created(name), dtype, inputs)
    model = copy.deepcopy(created(name)).to(DEVICE, dtype)
    model = optimize(model, dtype) if kernels == "optimised" else apply_plan(model, "gpu")
    with torch.inference_mode():
        expected, output = reference(*exact_inputs), model(*moved(inputs, dtype))
    assert output.isfinite().all(), "NaN at padding"
    if name != "vit-micro":
        expected, output = expected[is_token(kind)], output[is_token(kind).to(DEVICE)]
    assert_near(output, expected, "forward")


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in MODELS for kind in PADDINGS if name != "vit-micro" or kind == "none"]
)
def test_gradients_are_those_of_float64(name: str, kind: str, precision: str) -> None:
    """As training computes them: float32 weights, and for bf16 autocast."""
    inputs, random = inputs_of(name, kind), torch.Generator().manual_seed(3)
    reference, exact_inputs = exact(created(name), torch.float32, inputs)
    model = apply_plan(copy.deepcopy(created(name)).to(DEVICE), "gpu")
    direction = torch.randn(reference(*exact_inputs).shape, generator=random)
    if name != "vit-micro":
        direction = direction * is_token(kind)[:, :, None]
    (reference(*exact_inputs) * direction.double()).sum().backward()
    with torch.autocast(DEVICE, torch.bfloat16) if precision == "bf16" else nullcontext():
        output = model(*moved(inputs))
    (output.float() * direction.to(DEVICE)).sum().backward()
    expected = {path: p.grad for path, p in reference.named_parameters() if p.grad is not None}
    actual = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys()
    gradients = [torch.cat([part.flatten() for part in parts.values()]) for parts in (actual, expected)]
    assert_near(*gradients, "gradient", DTYPES[precision])


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", GENERATORS)
def test_generated_tokens_are_those_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    ids, mask = inputs_of(name, "left")[0], padding("left")
    expected = copy.deepcopy(created(name)).double().generate(ids, mask, max_new_tokens=12, **options)
    model = copy.deepcopy(created(name)).to(DEVICE)
    actual = model.generate(ids.to(DEVICE), mask.to(DEVICE), max_new_tokens=12, **options)
    assert actual.device.type == DEVICE
    assert torch.equal(actual.cpu(), expected)


# ------------------------------------------------------------------------------------------------- attention kernels

BACKENDS = {
    "default": None,
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
HEADS = 8
REFUSALS = ("No available kernel", "No viable backend")  # on a GPU, on a CPU


def masks(kind: str, queries: int, keys: int) -> tuple[Mask, Tensor | None, Tensor]:
    """The mask, its bias in float64 if it has one, and (B, T) True for queries that may attend to nothing."""
    if kind in ("none", "causal"):
        return None if kind == "none" else "causal", None, torch.zeros(B, queries, dtype=torch.bool)
    lengths = torch.tensor([keys, keys - queries // 2, 1])[:, None]
    allowed = causal_mask(queries, keys) & padding_mask(torch.arange(keys) >= keys - lengths)  # (B, 1, T, S)
    empty = ~allowed.any(-1)[:, 0]
    if kind == "boolean":
        return allowed, None, empty
    bias = torch.randn(1, HEADS, queries, keys, generator=torch.Generator().manual_seed(4))
    return allowed, bias.double(), empty


def attended(
    attend: Any, tensors: list[Tensor], mask: Mask, bias: Tensor | None, direction: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Output and gradients of queries, keys, values and, if there is one, the bias."""
    leaves = [x.clone().requires_grad_() for x in (*tensors, *(() if bias is None else (bias,)))]
    y = attend(*leaves[:3], mask, leaves[3] if bias is not None else None, leaves[0].size(-1) ** -0.5, 0.0)
    (y * direction.to(y)).sum().backward()
    return y.detach(), [x.grad for x in leaves]


@pytest.mark.parametrize("size", [(64, 64), (45, 45), (64, 192), (320, 320)], ids=str)
@pytest.mark.parametrize("key_heads", [HEADS, 2], ids=["every head", "grouped"])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "bias"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_kernel(backend: str, precision: str, kind: str, key_heads: int, size: tuple[int, int]) -> None:
    """Close to float64, forward and backward; queries that may attend to nothing have zeros and no NaN.

    Lengths of 64 modulo 128 are those at which cuDNN's backward was reported to give NaN under a mask.
    """
    queries, keys = size
    dtype, random = DTYPES[precision], torch.Generator().manual_seed(5)
    shapes = ((B, HEADS, queries, 32), (B, key_heads, keys, 32), (B, key_heads, keys, 32))
    tensors = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    direction = torch.randn(shapes[0], generator=random).to(dtype)
    mask, bias, empty = masks(kind, queries, keys)
    bias = None if bias is None else bias.to(dtype).double()
    expected, gradients = attended(explicit_attention, [x.double() for x in tensors], mask, bias, direction)
    on_device = [x.to(DEVICE) for x in tensors]
    mask = mask.to(DEVICE) if isinstance(mask, Tensor) else mask
    bias = None if bias is None else bias.to(DEVICE, dtype)
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            with chosen(backend):
                y, actual = attended(fused_attention, on_device, mask, bias, direction)
        except RuntimeError as error:
            if backend == "default" or not any(word in str(error) for word in REFUSALS):
                raise
            reason = next((str(each.message).partition("(")[0].strip() for each in reasons), str(error))
            pytest.skip(f"{backend} does not do this: {reason}")
    assert (y.transpose(1, 2)[empty.to(DEVICE)] == 0).all(), "a query that may attend to nothing has a value"
    assert_near(y, expected, "forward")
    for name, one, other in zip("qkvb", actual, gradients, strict=False):
        assert one.isfinite().all(), f"NaN in the gradient of {name}"
        assert_near(one, other, "gradient")
    assert (actual[0].transpose(1, 2)[empty.to(DEVICE)] == 0).all(), "its gradient is not zero"


VARLEN = {"bidirectional": (-1, -1), "causal": (-1, 0), "window": (3, 0)}


@cuda_only
@pytest.mark.parametrize("key_heads", [HEADS, 2], ids=["every head", "grouped"])
@pytest.mark.parametrize("size", [8, 64, 192])
@pytest.mark.parametrize("kind", [*VARLEN, "cross"])
def test_varlen_attention(kind: str, size: int, key_heads: int) -> None:
    """Forward and backward, with sequences without keys, without queries, and without either."""
    lengths_q, lengths_k = ((40, 0, 5, 130, 0, 7), (12, 9, 0, 140, 0, 3)) if kind == "cross" else [(40, 0, 5, 130)] * 2
    starts = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k)]
    random = torch.Generator().manual_seed(5)
    shapes = [(sum(lengths_q), HEADS, size), *[(sum(lengths_k), key_heads, size)] * 2]
    tensors = [torch.randn(shape, generator=random).bfloat16() for shape in shapes]
    direction = torch.randn(shapes[0], generator=random).bfloat16()
    results = []
    for device, dtype, attend in (("cpu", torch.float64, Reference()), (DEVICE, torch.bfloat16, varlen_attention)):
        leaves = [x.to(device, dtype).requires_grad_() for x in tensors]
        ends = [each.to(device) for each in starts]
        y = attend(*leaves, *ends, max(lengths_q), max(lengths_k), size**-0.5, VARLEN.get(kind, (-1, -1)))
        (y * direction.to(device, dtype)).sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for name, expected, actual in zip(("y", "dq", "dk", "dv"), *results, strict=True):
        assert actual.isfinite().all(), name
        assert_near(actual, expected, "forward" if name == "y" else "gradient")
    if kind == "cross":
        assert (results[1][0][40:45] == 0).all(), "queries without keys"
        assert (results[1][2][12:21] == 0).all(), "keys without queries"


@cuda_only
@pytest.mark.parametrize("kind", ["left", "right", "packed"])
@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "bert-tiny", "transformer-tiny", "t5"])
def test_a_batch_with_padding_uses_it(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the tests above, which compare models with float64."""
    called, inner = list[int](), varlen.varlen_attention
    monkeypatch.setattr(varlen, "varlen_attention", lambda *row: (called.append(1), inner(*row))[1])
    model = apply_plan(copy.deepcopy(created(name)).to(DEVICE, torch.bfloat16), "gpu")
    inputs, options = moved(inputs_of(name, kind)), {}
    if kind == "packed":
        options["text_starts"] = text_starts(padding(kind)).to(DEVICE)
        if name not in ("gpt-micro", "stories260k"):
            pytest.skip("only decoders learn from packed batches")
    with torch.inference_mode():
        assert model.hidden(*inputs, **options).isfinite().all()
    attentions = [path for path, part in model.named_modules() if isinstance(part, Attention)]
    assert len(called) == sum(name != "t5" or "cross" in path for path in attentions)  # T5 has a bias on its scores


def chosen(backend: str) -> AbstractContextManager[Any]:
    kernel = BACKENDS[backend]
    return nullcontext() if kernel is None else sdpa_kernel(kernel)


# ------------------------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [64, 10**6], ids=["chunks", "at once"])
@pytest.mark.parametrize("precision", DTYPES)
def test_the_loss_of_a_vocabulary_that_is_no_multiple_of_64(
    precision: str, rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 tokens and 50,257 words; on a GPU with Triton by the kernel of ``vocabulary_loss``."""
    words, random = 50257, torch.Generator().manual_seed(7)
    head = head_of(LanguageHead(tied=False, bias=True), 64, nn.Embedding(words, 64))
    hidden = torch.randn(200, 64, generator=random)
    labels = torch.randint(words, (200,), generator=random).masked_fill(torch.arange(200) % 9 == 0, -100)
    monkeypatch.setattr(loss_module, "memory_of", lambda device: rows * words * 16 * 16)
    called, kernel = list[int](), loss_module.loss_and_gradient_in_one_kernel
    monkeypatch.setattr(
        loss_module, "loss_and_gradient_in_one_kernel", lambda *given: (called.append(1), kernel(*given))[1]
    )
    results = []
    for device, dtype in (("cpu", torch.float64), (DEVICE, torch.float32)):
        on_device, x = copy.deepcopy(head).to(device, dtype), hidden.to(device, dtype).requires_grad_()
        half = precision == "bf16" and dtype is torch.float32
        with torch.autocast(device, torch.bfloat16) if half else nullcontext():
            loss = output_loss(on_device, x, labels.to(device), smoothing)
        loss.backward()
        results.append([loss.detach(), x.grad, on_device.output.weight.grad, on_device.output.bias.grad])
    assert bool(called) == (HAS_CUDA and has_triton())
    for expected, actual in zip(*results, strict=True):
        assert_near(actual, expected, "gradient", DTYPES[precision])


# ------------------------------------------------------------------------------------------------- errors and memory

TOO_LONG = """
import sys, torch, heedful
from heedful.errors import HeedfulError
model = heedful.create("gpt-micro", seed=0).to(sys.argv[1])  # 64 positions
ids = torch.zeros(1, 65, dtype=torch.long, device=sys.argv[1])
try:
    print(model(ids).sum().item())
except HeedfulError as error:
    print(error)
print(model(ids[:, :64]).isfinite().all().item())
"""


def test_a_too_long_input_is_one_line_and_the_process_lives() -> None:
    """In a process of its own, because an assertion on the device makes every later call fail."""
    done = subprocess.run([sys.executable, "-c", TOO_LONG, DEVICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    message, alive = done.stdout.splitlines()
    assert "65 tokens" in message
    assert alive == "True"


def language_model() -> Any:
    """A decoder whose activations outweigh its weights."""
    return heedful.create(presets.gpt2(128, 4, 4, vocab=2000, length=128, dropout=0.0), seed=0).to(DEVICE).train()


def windows(rows: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 2000, (rows, 129), generator=torch.Generator().manual_seed(6))
    return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


def gradient_of(model: Any, optimiser: Any, on_split: Any = None, precision: Any = "fp32") -> Gradient:
    return Gradient(
        model=apply_plan(model, "gpu"),
        loss=lambda model, batch: output_loss(
            model.head, model.hidden(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
        ),
        count=lambda batch: batch["labels"].numel(),
        engine=Alone(),
        precision=precision,
        seed=0,
        device=model.device,
        zero_grad=optimiser.zero_grad,
        on_split=on_split,
    )


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Limits memory to three quarters of what a step needs: on a GPU by the allocator, in a dry run by rows."""

    def limit(rows: int, needed: int) -> None:
        if HAS_CUDA:
            torch.cuda.empty_cache()
            room = torch.cuda.memory_reserved() + needed * 3 // 4
            torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
            return
        forward = nn.Embedding.forward

        def crowded(self: nn.Embedding, ids: Tensor) -> Tensor:
            if len(ids) > rows * 3 // 4:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return forward(self, ids)

        monkeypatch.setattr(nn.Embedding, "forward", crowded)

    yield limit
    if HAS_CUDA:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_batch_that_does_not_fit_is_split_with_the_same_loss(little_memory: Callable[[int, int], None]) -> None:
    model, rows, splits = language_model(), 128 if HAS_CUDA else 8, list[int]()
    optimiser = adamw(model, lr=0.0)
    gradient = gradient_of(model, optimiser, splits.append)
    batch = gradient.micro_batches(0, [windows(rows)])
    gradient.compute(batch)  # workspaces and gradients are there
    if HAS_CUDA:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if HAS_CUDA else 0
    whole = gradient.compute(batch).item()
    expected = {path: p.grad.clone() for path, p in model.named_parameters()}
    little_memory(rows, torch.cuda.max_memory_allocated() - before if HAS_CUDA else 0)
    assert splits == []
    loss = gradient.compute(batch).item()
    assert splits
    assert loss == approx(whole, "gradient")
    for path, parameter in model.named_parameters():
        if path.endswith("key.bias"):  # the same for all scores of a query, so its gradient is rounding only
            assert max(parameter.grad.norm(), expected[path].norm()) < 1e-6
        else:
            assert_near(parameter.grad, expected[path], "gradient")
    parts = list(splits)
    assert gradient.compute(batch).item() == approx(loss, "gradient")
    assert splits == parts, "a later step tries the whole batch again"


@cuda_only
def test_an_allocation_that_is_too_large_is_known_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**45, device=DEVICE, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@cuda_only
@pytest.mark.parametrize("precision", DTYPES)
def test_the_memory_of_a_step_does_not_grow(precision: str) -> None:
    model = language_model()
    optimiser = adamw(model, lr=1e-3)
    gradient, peaks = gradient_of(model, optimiser, precision=precision), list[int]()
    for step in range(12):
        torch.cuda.reset_peak_memory_stats()
        gradient.compute(gradient.micro_batches(step, [windows(32)]))
        optimiser.step()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[3:]) <= peaks[2], peaks


# ---------------------------------------------------------------------------------------------- graphs and compilation


@cuda_only
@pytest.mark.parametrize("kernels", ["gpu", "optimised"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "alibi"])  # its slopes come from the host
def test_a_replayed_graph_gives_what_eager_gives(name: str, kernels: str) -> None:
    model = copy.deepcopy(created(name)).to(DEVICE, torch.bfloat16)
    model = optimize(model, torch.bfloat16) if kernels == "optimised" else apply_plan(model, "gpu")
    static, first = (moved(inputs_of(name, "none"), torch.bfloat16) for _ in range(2))
    other = [None if x is None else x.flip(0) for x in first]
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(*static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(*static)
        for inputs in (other, first):
            expected = model(*inputs)
            for held, given in zip(static, inputs, strict=True):
                if held is not None:
                    held.copy_(given)
            graph.replay()
            assert_near(output, expected, "forward")


METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 0, "top_k": 20},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
}


def captured(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return optimize(copy.deepcopy(created(name)).to(DEVICE), dtype)


def graph_of(model: Any) -> Any:
    (graph,) = model.captured._steps.values()
    return graph


@cuda_only
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [*GENERATORS, "alibi"])
def test_captured_decoding_gives_the_tokens_of_the_cpu(name: str, method: str) -> None:
    """Also when a second and a third call replay the graph of the first, after a stream was stopped in the middle."""
    reference, model = copy.deepcopy(created(name)).double(), captured(name)
    ids, mask = inputs_of(name, "left")[0], padding("left")
    options = {"max_new_tokens": 12, **METHODS[method]}
    for prompts in (ids, ids.flip(0), ids.flip(1)):
        expected = reference.generate(prompts, mask, **options)
        assert torch.equal(model.generate(prompts.to(DEVICE), mask.to(DEVICE), **options).cpu(), expected)
        if method != "beams":
            tokens = stream(model, ids.to(DEVICE), mask.to(DEVICE), **options)
            next(tokens), next(tokens), next(tokens)
            tokens.close()
    assert len(model.captured) == 1


@cuda_only
@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "alibi"])
def test_a_replay_gives_what_the_same_step_gives_uncaptured(name: str) -> None:
    """In bfloat16, over the same slots: while the graph is busy, a call runs without it."""
    model, ids = captured(name, torch.bfloat16), inputs_of(name, "none")[0].to(DEVICE)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "logprobs": True}
    replayed = decode(model, ids, **options)
    with graph_of(model).busy:
        expected = decode(model, ids, **options)
    assert torch.equal(replayed.ids, expected.ids)
    assert_near(replayed.logprobs, expected.logprobs, "forward")


@cuda_only
def test_threads_with_streams_of_their_own_share_a_captured_model() -> None:
    model, ids = captured("stories260k"), inputs_of("stories260k", "none")[0]
    prompts = [ids.roll(number, 1) for number in range(6)]
    expected = [model.generate(each.to(DEVICE), max_new_tokens=12).cpu() for each in prompts]

    def run(number: int) -> Tensor:
        with torch.cuda.stream(torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()):
            return model.generate(prompts[number].to(DEVICE), max_new_tokens=12).cpu()

    with ThreadPoolExecutor(3) as threads:
        assert all(map(torch.equal, threads.map(run, range(6)), expected))


@cuda_only
def test_the_memory_of_captured_steps_goes_with_the_model() -> None:
    ids, left = inputs_of("gpt-micro", "none")[0].to(DEVICE), list[int]()
    for _ in range(3):
        model, allocated = captured("gpt-micro"), list[int]()
        for _ in range(4):
            model.generate(ids, max_new_tokens=12)
            allocated.append(torch.cuda.memory_allocated())
        assert allocated[1:] == allocated[:1] * 3
        del model
        gc.collect()
        left.append(torch.cuda.memory_allocated())
    assert left[1:] == left[:1] * 2  # workspaces of libraries


@cuda_only
def test_a_step_that_cannot_be_captured_runs_uncaptured(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = captured("gpt-micro"), inputs_of("gpt-micro", "none")[0].to(DEVICE)
    expected = model.generate(ids, max_new_tokens=12)
    model.captured.clear()
    forward = model.decoder.norm.forward

    def reads(x: Tensor, *rest: Any) -> Tensor:
        assert x.sum().isfinite().item()
        return forward(x, *rest)

    model.decoder.norm.forward = reads
    for _ in range(2):
        assert torch.equal(model.generate(ids, max_new_tokens=12), expected)
    assert sum("could not be captured" in record.message for record in caplog.records) == 1
    assert torch.rand(3, device=DEVICE).isfinite().all()  # the generator is as before the capture
    del model.decoder.norm.forward
    model.captured = CapturedSteps()
    assert torch.equal(model.generate(ids, max_new_tokens=12), expected)
    assert len(model.captured) == 1


@pytest.mark.parametrize("name", ["stories260k", "bert-tiny"])
def test_a_compiled_model_gives_what_eager_gives_at_every_length(name: str) -> None:
    model = apply_plan(copy.deepcopy(created(name)).to(DEVICE), "gpu")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="inductor" if HAS_CUDA else "eager", fullgraph=True)
    ids = inputs_of(name, "none")[0].to(DEVICE)
    with torch.no_grad():
        for length in (T, 33, 17):
            assert_near(compiled(ids[:, :length]), model(ids[:, :length]), "forward")


# ------------------------------------------------------------------------------------------------ runs of the command

LETTERS = "the quick brown fox jumps over the lazy dog while seven wizards make toxic brew for the evil queen\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} {LETTERS[n % 40 :]}" for n in range(400)), encoding="utf-8")
    return path


def train(text: Path, out: Path, *options: str) -> list[str]:
    sizes = ["--preset=gpt-micro", "--model.dim=32", "--model.depth=2", "--training.batch-size=8", "--max-steps=8"]
    often = ["--training.log-every=1", "--training.save-every=2", "--training.evaluate-every=4"]
    fixed = ["--training.precision=fp32", "--model.dropout=0.1", f"--device={DEVICE}"]
    return ["train", "text-generation", "--train", str(text), "--out", str(out), *sizes, *often, *fixed, *options]


def started(*arguments: str) -> subprocess.Popen[str]:
    """A Python process; several can start at once."""
    return subprocess.Popen([sys.executable, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """Output of the process."""
    told, _ = process.communicate(timeout=200)
    assert process.returncode == status, told[-3000:]
    return told


def losses(folder: Path) -> list[float]:
    records = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record[key] for record in records for key in ("loss", "valid_loss") if key in record]


KILLED = """
import os, signal, sys
from heedful import cli
from heedful.training.loop import Loop
step = Loop._step
def killed(self):
    if self.step == 5:
        self.saving.checkpoints.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    step(self)
Loop._step = killed
cli.main(sys.argv[1:])
"""


@commands
@pytest.mark.parametrize("precision", DTYPES)
def test_a_killed_and_resumed_run_has_the_same_bits(text: Path, tmp_path: Path, precision: str) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    options = ("--deterministic", f"--training.precision={precision}")
    uninterrupted = started("-m", "heedful", *train(text, whole, *options))
    ended(started("-c", KILLED, *train(text, stopped, *options)), status=-9)
    ended(uninterrupted)
    assert len(losses(stopped)) < len(losses(whole))
    ended(started("-m", "heedful", *train(text, stopped, *options, "--resume")))
    assert losses(stopped) == losses(whole)
    weights = [(folder / "last" / "model.safetensors").read_bytes() for folder in (whole, stopped)]
    assert weights[0] == weights[1]


@commands
def test_one_rank_of_ddp_and_of_fsdp_has_the_losses_of_one_process(text: Path, tmp_path: Path) -> None:
    """Over NCCL on a GPU, gloo in a dry run; see ``one_rank.py``."""
    alone = started("-m", "heedful", *train(text, tmp_path / "alone", "--training.accumulate=2"))
    arguments = {"Replicated": [], "Sharded": ["--training.shard"]}
    file = tmp_path / "commands.json"
    ordered = [train(text, tmp_path / name, "--training.accumulate=2", *more) for name, more in arguments.items()]
    file.write_text(json.dumps(ordered), encoding="utf-8")
    script = str(Path(__file__).with_name("one_rank.py"))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    told = ended(started(*torchrun, script, str(file)))
    ended(alone)
    assert [line for line in told.splitlines() if line in arguments] == list(arguments)
    for name in arguments:
        assert losses(tmp_path / name) == approx(losses(tmp_path / "alone"), "gradient")


SHARDED = """
import sys, torch, torch.distributed as dist, heedful
from heedful import presets
from heedful.layers.block import Block
from heedful.training.engine import Sharded
from heedful.util.ranks import Ranks
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)  # its collectives move nothing
model = heedful.create(presets.gpt2(256, 6, 4, vocab=512, length=128, dropout=0.0), seed=0)
whole = sum(p.nbytes for p in model.parameters())
block = sum(p.nbytes for p in next(m for m in model.modules() if isinstance(m, Block)).parameters())
Sharded(Ranks(0, 4), device=sys.argv[1]).wrap(model, lambda model, batch: None)
shards = sum(p.to_local().nbytes for p in model.parameters())
print({tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {sys.argv[1]})
print(shards <= 0.3 * whole)
print(sys.argv[1] == "cpu" or torch.cuda.max_memory_allocated() <= shards + 3 * block)
"""


def test_sharding_never_has_the_whole_model_on_the_device() -> None:
    """Rank 0 of four, the others of which are not there: a unit's gathered weights and its shards beside it."""
    assert ended(started("-c", SHARDED, DEVICE)).splitlines()[-3:] == ["True"] * 3
