"""A large head's loss in chunks is the loss, and never holds the logits of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import heedful
from heedful import presets
from heedful.config import LanguageHead, MaskedHead
from heedful.heads import head_of
from heedful.kernels import vocabulary_loss
from heedful.kernels.allocator import rounded_rows
from heedful.kernels.plan import apply_plan
from heedful.tasks import output_loss as module
from heedful.tasks.output_loss import ChunkedLoss, chunk_sizes, output_loss
from heedful.tasks.r_drop import interleave_passes
from heedful.tasks.token_batches import IGNORED
from tolerances import assert_close

ROWS, WIDTH, WORDS = 23, 16, 301


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of five rows, from the first on, of which two stay in the cache."""
    monkeypatch.setattr(module, "CHUNK", 5 * WORDS)
    monkeypatch.setattr(module, "BLOCK", 2 * WORDS)
    monkeypatch.setattr(module, "CHUNKED_FROM", 0)


def made(config: Any, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return head_of(config, WIDTH, nn.Embedding(WORDS, WIDTH))


def given(ignored: bool, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    labels = torch.randint(WORDS, (ROWS,), generator=generator)
    return hidden, labels.masked_fill(torch.rand(ROWS, generator=generator) < 0.3, IGNORED) if ignored else labels


def learned(loss: Tensor, hidden: Tensor, head: nn.Module) -> dict[str, Tensor]:
    """The loss and the gradients of thrice the loss, by name."""
    head.zero_grad()
    hidden.grad = None
    (3 * loss).backward()
    found = {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "hidden": hidden.grad.clone(), **found}


def plain(head: nn.Module, hidden: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(head(hidden), labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the losses that are computed in chunks."""
    called: list[int] = []
    apply = ChunkedLoss.apply

    def counted(*arguments: Any) -> Tensor:
        called.append(1)
        return apply(*arguments)

    monkeypatch.setattr(ChunkedLoss, "apply", counted)
    return called


@pytest.fixture(params=[0, 10**9], ids=["in chunks", "at once"])
def once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tells if all logits are computed at once."""
    monkeypatch.setattr(module, "CHUNKED_FROM", request.param)
    return bool(request.param)


@pytest.fixture(params=[False, True], ids=["", "aligned"])
def aligned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both forms of W in its products: as it is, and with a multiple of 64 rows, as on a GPU."""
    monkeypatch.setattr(module, "pads_vocabulary", lambda device: request.param)
    return bool(request.param)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(
    "config",
    [LanguageHead(tied=True), LanguageHead(tied=False, bias=True, scale="sqrt"), MaskedHead(tied=True)],
    ids=["tied", "bias and scale", "masked"],
)
def test_loss_and_gradients_are_those_of_cross_entropy(
    config: Any, ignored: bool, smoothing: float, once: bool, aligned: bool, chunks: list[int]
) -> None:
    head = made(config).double()
    hidden, labels = given(ignored)
    hidden = hidden.double().requires_grad_()
    expected = learned(plain(head, hidden, labels, smoothing), hidden, head)
    loss = output_loss(head, hidden, labels, smoothing)
    assert loss.grad_fn is not None
    assert loss.grad_fn.name() == "ChunkedLossBackward"
    found = learned(loss, hidden, head)
    assert chunks == [1]
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert_close(found[name], one, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_kernel_of_a_gpu_gets_whole_rows(at_once: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the padded columns, which it sets to zero: here a function in plain PyTorch stands for the kernel."""
    rows: list[int] = []

    def kernel(logits: Tensor, labels: Tensor, size: int, smoothing: float, ignored: int) -> Tensor:
        assert logits.is_contiguous()
        assert (logits.size(1), size, ignored) == (320, WORDS, IGNORED)
        rows.append(len(logits))
        with torch.enable_grad():
            leaf = logits[:, :size].clone().requires_grad_()
            loss = F.cross_entropy(leaf, labels, reduction="sum", ignore_index=ignored, label_smoothing=smoothing)
            (gradient,) = torch.autograd.grad(loss, leaf)
        logits.zero_()[:, :size] = gradient
        return loss.detach()

    monkeypatch.setattr(module, "pads_vocabulary", lambda device: True)
    monkeypatch.setattr(module, "runs_in_one_kernel", lambda logits: True)
    monkeypatch.setattr(module, "loss_and_gradient_in_one_kernel", kernel)
    monkeypatch.setattr(module, "CHUNKED_FROM", 10**9 if at_once else 0)
    head = made(LanguageHead(tied=False, bias=True)).double()
    hidden, labels = given(ignored=True)
    hidden = hidden.double().requires_grad_()
    expected = learned(plain(head, hidden, labels, smoothing), hidden, head)
    found = learned(output_loss(head, hidden, labels, smoothing), hidden, head)
    assert len(rows) == 1 if at_once else len(rows) > 1
    for name, one in expected.items():
        assert_close(found[name], one, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_in_tritons_interpreter(
    dtype: torch.dtype, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Triton is installed beside PyTorch for a CPU; ``tests/gpu/test_cuda.py`` runs the compiled kernel."""
    pytest.importorskip("triton", reason="Triton is not installed: it comes with PyTorch for CUDA")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET=1 is not set")
    monkeypatch.setattr(vocabulary_loss, "BLOCK", 64)
    logits = torch.randn(9, 320, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.tensor([0, 300, 5, IGNORED, 7, 63, 64, 200, 9])
    exact = logits[:, :WORDS].double().requires_grad_()
    expected = F.cross_entropy(exact, labels, reduction="sum", label_smoothing=smoothing)
    expected.backward()
    loss = vocabulary_loss.loss_and_gradient_in_one_kernel(logits, labels, WORDS, smoothing, IGNORED)
    assert_close(loss, expected.detach().float())
    assert_close(logits[:, :WORDS].double(), exact.grad, dtype=dtype)
    assert not logits[:, WORDS:].any()
    assert not logits[3].any()


@pytest.mark.parametrize("direct", [False, True], ids=["as it is", "by oneDNN"])
def test_float32_stays_float32(direct: bool, chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.kernels.plan.LARGE", 0)
    monkeypatch.setattr("heedful.kernels.onednn_linear.is_intel_with_mkl", lambda: not direct)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=True)
    hidden.requires_grad_()
    expected = learned(plain(head, hidden, labels, 0.1), hidden, head)
    if direct:
        apply_plan(head, "cpu-training")
    found = learned(output_loss(head, hidden, labels, 0.1), hidden, head)
    assert chunks == [1]
    for name, one in expected.items():
        assert found[name].dtype is torch.float32
        assert_close(found[name], one, msg=name)


def test_under_autocast_products_are_in_bfloat16_and_sums_in_float32(once: bool, aligned: bool) -> None:
    head, (hidden, labels) = made(MaskedHead(tied=True)), given(ignored=True)
    hidden.requires_grad_()
    exact = learned(plain(head, hidden, labels, 0.0), hidden, head)
    with torch.autocast("cpu", torch.bfloat16):
        autocast = plain(head, hidden, labels, 0.0)
    expected = learned(autocast, hidden, head)
    with torch.autocast("cpu", torch.bfloat16):
        chunked = output_loss(head, hidden, labels)
    found = learned(chunked, hidden, head)
    for name, one in exact.items():
        assert found[name].dtype is torch.float32
        assert (found[name] - one).norm() <= 1.5 * (expected[name] - one).norm() + 1e-6 * one.norm(), name


def test_rows_to_ignore_are_left_out_on_any_device(chunks: list[int]) -> None:
    """On a GPU they come to the function itself."""
    head, (hidden, labels) = made(LanguageHead(tied=True)).double(), given(ignored=True)
    hidden = hidden.double().requires_grad_()
    expected = learned(plain(head, hidden, labels, 0.1), hidden, head)
    loss = ChunkedLoss.apply(head.transform(hidden), head.output.weight, head.output.bias, labels, 0.1)
    for name, one in learned(loss, hidden, head).items():
        assert_close(one, expected[name], msg=name)


def test_pairs_to_ignore_do_not_count_as_divergent_on_any_device() -> None:
    """R-Drop: their gradients were left out, their divergences were not."""
    head, (hidden, labels) = made(LanguageHead(tied=True)).double(), given(ignored=True)
    labels = labels.repeat_interleave(2)
    hidden = torch.cat((hidden, hidden.flip(0))).double().requires_grad_()
    expected = learned(output_loss(head, hidden, labels, 0.1, 3.0), hidden, head)
    loss = ChunkedLoss.apply(head.transform(hidden), head.output.weight, None, labels, 0.1, 3.0)
    for name, one in learned(loss, hidden, head).items():
        assert_close(one, expected[name], msg=name)


def test_a_second_way_back_is_an_error_and_not_another_gradient() -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    loss = output_loss(head, hidden.requires_grad_(), labels)
    (2 * loss).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (2 * loss).backward()


def test_a_frozen_head_has_no_gradient(once: bool) -> None:
    head, (hidden, labels) = made(LanguageHead(tied=False)), given(ignored=False)
    head.requires_grad_(False)
    hidden.requires_grad_()
    output_loss(head, hidden, labels).backward()
    assert hidden.grad is not None
    assert head.output.weight.grad is None
    head.requires_grad_(True)
    output_loss(head, hidden.detach(), labels).backward()
    assert head.output.weight.grad is not None


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(one.numel() for one in tree_leaves(out) if isinstance(one, Tensor))])
        return out


def test_the_logits_are_never_held() -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    with Largest() as largest:
        output_loss(head, hidden.requires_grad_(), labels).backward()
    assert largest.numbers == WORDS * WIDTH  # its weights
    with Largest() as largest:
        plain(head, hidden, labels, 0.0).backward()
    assert largest.numbers == ROWS * WORDS


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def test_one_chunk_without_rows_to_ignore_takes_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNKED_FROM", 10**9)
    monkeypatch.setattr(module, "BLOCK", 10**9)
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    with Operations() as operations:
        ChunkedLoss.apply(hidden.requires_grad_(), head.output.weight, None, labels, 0.0)
    assert not {"clamp", "masked_fill_"} & set(operations.names)
    assert operations.names.count("copy_") == 1  # of the gradient over the logits
    with Operations() as operations:
        ChunkedLoss.apply(hidden, head.output.weight, None, torch.full_like(labels, IGNORED), 0.0)
    assert operations.names.count("masked_fill_") == 2


def test_capped_logits_are_computed_at_once(chunks: list[int]) -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True, logit_cap=0.5)), given(ignored=False)
    logits = 0.5 * (F.linear(hidden, head.output.weight) / 0.5).tanh()
    assert_close(output_loss(head, hidden, labels), F.cross_entropy(logits, labels, reduction="sum"))
    assert chunks == []


def test_a_head_that_is_watched_or_exchanged_is_called(chunks: list[int]) -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    expected = output_loss(head, hidden, labels)
    assert len(chunks) == 1
    seen: list[Tensor] = []
    handle = head.output.register_forward_hook(lambda module, inputs, logits: seen.append(logits))
    assert_close(output_loss(head, hidden, labels), expected)
    assert seen[0].shape == (ROWS, WORDS)
    handle.remove()

    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    louder = Louder(WIDTH, WORDS, bias=False)
    louder.weight = head.output.weight
    head.output = louder
    expected = F.cross_entropy(2 * F.linear(hidden, louder.weight), labels, reduction="sum")
    assert_close(output_loss(head, hidden, labels), expected)
    assert len(chunks) == 1


def test_the_head_is_computed_for_what_is_learned_alone() -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=True)
    seen: list[Tensor] = []
    head.output.register_forward_hook(lambda module, inputs, logits: seen.append(logits))
    output_loss(head, hidden, labels)
    assert seen[0].shape == (int((labels != IGNORED).sum()), WORDS)
    assert len(seen[0]) < ROWS


@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
def test_nothing_to_learn_is_no_loss(watched: bool, once: bool) -> None:
    """A micro-batch may have none; its step has."""
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    hidden.requires_grad_()
    if watched:
        head.output.register_forward_hook(lambda module, inputs, logits: None)
    loss = output_loss(head, hidden, torch.full_like(labels, IGNORED), 0.1)
    found = learned(loss, hidden, head)
    assert found.keys() == learned(plain(head, hidden, labels, 0.1), hidden, head).keys()  # the other ranks wait for it
    assert not any(one.any() for one in found.values())


def test_without_gradients_nothing_is_made_for_them(chunks: list[int]) -> None:
    head, (hidden, labels) = made(LanguageHead(tied=True)), given(ignored=False)
    learning = output_loss(head, hidden, labels)
    with torch.no_grad():
        measured = output_loss(head, hidden, labels)
    assert chunks == [1]
    assert_close(measured, learning)


@pytest.mark.parametrize("bias", [False, True])
def test_products_have_a_multiple_of_64_rows_on_a_gpu(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without gradients; a caller's logits and the saved weights have as many as there are words."""
    shapes: list[tuple[int, ...]] = []
    inner = F.linear

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((len(weight), *(() if bias is None else (len(bias),))))
        return inner(x, weight, bias)

    head, (hidden, labels) = made(LanguageHead(tied=False, bias=bias)).double(), given(ignored=True)
    hidden = hidden.double()
    expected = plain(head, hidden, labels, 0.1)
    monkeypatch.setattr(module, "pads_vocabulary", lambda device: True)
    monkeypatch.setattr(F, "linear", linear)
    with torch.no_grad():
        assert_close(output_loss(head, hidden, labels, 0.1), expected)
    assert shapes == [(320, 320) if bias else (320,)]
    output_loss(head, hidden, labels, 0.1).backward()
    assert shapes[1] == shapes[0]
    assert head.output.weight.shape == head.output.weight.grad.shape == (WORDS, WIDTH)
    assert head(hidden).shape == (ROWS, WORDS)


@pytest.mark.parametrize("rows", [ROWS, 2048])
def test_rows_whose_kernels_come_again_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number that comes again there is nothing to learn from, and nothing is."""
    seen: list[int] = []
    apply = ChunkedLoss.apply
    monkeypatch.setattr(ChunkedLoss, "apply", lambda *given: (seen.append(len(given[0])), apply(*given))[1])
    head, generator = made(MaskedHead(tied=True)).double(), torch.Generator().manual_seed(2)
    hidden = torch.randn(rows + 3, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(WORDS, (rows + 3,), generator=generator).masked_fill(torch.arange(rows + 3) == 1, IGNORED)
    expected = learned(plain(head, hidden, labels, 0.1), hidden, head)
    monkeypatch.setattr(module, "kernels_depend_on_rows", lambda: True)
    found = learned(output_loss(head, hidden, labels, 0.1), hidden, head)
    assert seen == [rounded_rows(rows + 2)]
    assert (seen[0] > rows + 2) == (rows == 2048)
    for name, one in expected.items():
        assert_close(found[name], one, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
def test_pairs_are_drawn_together_as_the_formula_says(
    smoothing: float, watched: bool, once: bool, aligned: bool
) -> None:
    """R-Drop, against PyTorch's own divergences."""
    head, (hidden, labels) = made(LanguageHead(tied=False, bias=True)).double(), given(ignored=False)
    hidden = torch.cat((hidden, hidden + 0.3 * torch.randn(ROWS, WIDTH))).double().requires_grad_()
    logits = head(hidden)
    a, b = logits.log_softmax(1).chunk(2)
    apart = [F.kl_div(one, other, reduction="sum", log_target=True) for one, other in ((b, a), (a, b))]
    cross = F.cross_entropy(logits, labels.repeat(2), reduction="sum", label_smoothing=smoothing)
    expected = learned(cross + 5.0 / 2 * sum(apart), hidden, head)
    if watched:
        head.output.register_forward_hook(lambda module, inputs, logits: None)
    loss = output_loss(head, interleave_passes(hidden), interleave_passes(labels.repeat(2)), smoothing, 5.0)
    found = learned(loss, hidden, head)
    for name, one in expected.items():
        assert_close(found[name], one, msg=name)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives every CUDA device so many bytes of memory."""

    def give(total: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=total))

    monkeypatch.setattr(torch.cuda, "mem_get_info", None)  # what is free differs when a run is resumed
    return give


def test_chunks_on_a_gpu_follow_from_all_its_memory(memory: Callable[[int], None]) -> None:
    memory(80 * 2**30)
    assert chunk_sizes(torch.device("cuda", 0)) == (335_544_320, 335_544_321)
    memory(8 * 2**30)
    assert chunk_sizes(torch.device("cuda", 0))[0] == 2**25
    for name in ("cpu", "mps"):
        assert chunk_sizes(torch.device(name)) == (module.CHUNK, module.CHUNKED_FROM)


def test_tasks_learn_with_it(chunks: list[int]) -> None:
    """Through a whole model: the same gradients as from the model's own logits, the tied embedding's among them."""
    model = heedful.create(presets.gpt2(WIDTH, 2, 2, WORDS, 12), seed=0).double().eval()
    ids = torch.randint(WORDS, (2, 12), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    output_loss(model.head, model.hidden(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert chunks == [1]
    for name, p in model.named_parameters():
        assert_close(p.grad, expected[name], msg=name)
