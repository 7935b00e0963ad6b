"""Work that a GPU is spared, on a simulated one: padding, masks, large logits, waits for batches, sharded models."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pretend
import pytest
import torch
from counted import CUDA, GENERATORS, IDS, LEFT, MASKS, made
from pretend import Watch, pretend_gpu
from torch import Tensor

import heedful
from heedful import cli
from heedful.config import LanguageHead, MaskedHead
from heedful.errors import HeedfulError
from heedful.kernels import varlen
from heedful.kernels.plan import apply_plan
from heedful.layers import attention_kernels, text_starts
from heedful.layers.attention import Attention
from heedful.optimize_model import optimize
from heedful.tasks import output_loss as loss_module
from heedful.tasks.output_loss import output_loss
from heedful.training.engine import Sharded
from heedful.training.feed import PrefetchingLoader
from heedful.training.loop import Loop
from heedful.training.validation import Validation
from heedful.util.ranks import Ranks
from test_every_task import command_of
from tolerances import assert_close
from varlen_reference import Reference

REASON = pretend.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

MASK, TEXTS = LEFT, MASKS["packed"]
NAMES = ("gpt-micro", "stories260k", "bert-tiny", "transformer-tiny")
HEADS = {"gpt-micro": LanguageHead(), "bert-tiny": MaskedHead()}


@pytest.fixture
def varlen_attn(monkeypatch: pytest.MonkeyPatch) -> Reference:
    """Stands in for PyTorch's function, which a CPU build lacks."""
    reference = Reference()
    monkeypatch.setattr(varlen, "has_varlen", lambda device: True)
    monkeypatch.setattr(varlen, "varlen_attention", reference)
    return reference


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *((name, mask) for name in NAMES for mask in (MASK, MASK.flip(1))),
        *((name, TEXTS) for name in ("gpt-micro", "stories260k")),
    ],
)
def test_padding_is_left_out_of_attention_without_a_wait(
    name: str, mask: Tensor, varlen_attn: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "HALF_DTYPES", (torch.float32,))  # whose rounding is not seen
    inputs = (IDS, IDS, mask, mask) if name == "transformer-tiny" else (IDS, mask)
    options = {"text_starts": text_starts(TEXTS)} if mask is TEXTS else {}
    expected = made(name).hidden(*inputs)
    with pretend_gpu(no_float64=True) as watch:
        model = apply_plan(made(name).to(CUDA), "gpu")
        inputs = tuple(tensor.to(CUDA) for tensor in inputs)
        options = {name: tensor.to(CUDA) for name, tensor in options.items()}
        watch.events.clear()
        watch.attention.clear()
        hidden = model.hidden(*inputs, **options)
        assert not watch.events
        assert not watch.attention
        assert_close(hidden.cpu()[mask > 0], expected[mask > 0])
    assert varlen_attn.calls == sum(isinstance(part, Attention) for part in model.modules())


def test_an_optimised_model_leaves_padding_out_of_attention(varlen_attn: Reference) -> None:
    with pretend_gpu() as watch:
        model = optimize(made("bert-tiny").to(CUDA), "bfloat16")
        hidden = model.hidden(IDS.to(CUDA), MASK.to(CUDA))
        assert hidden.isfinite().all().cpu()
        assert not watch.attention
    assert varlen_attn.calls == model.config.encoder.depth


def steps_of(command: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, Counter[Any], Counter[str]]:
    """Two training steps of a command without a line of the log between them: events and attention kernels."""
    inner, events, kernels = Loop._step, Counter[Any](), Counter[str]()
    command = [part.replace("log-every=1", "log-every=50") for part in command]

    def step(self: Loop) -> None:
        before = Counter(watch.events), Counter(watch.attention)
        inner(self)
        events.update(watch.events - before[0])
        kernels.update(watch.attention - before[1])

    monkeypatch.setattr(Loop, "_step", step)
    with pretend_gpu() as watch:
        assert cli.main([*command, "--max-steps=2", "--device=cuda:0"]) == 0
    return watch, events, kernels


@pytest.mark.parametrize("name", ["translation", "text-classification", "text-generation"])
def test_no_mask_tensor_is_left_in_a_step(
    name: str, varlen_attn: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding of sources and texts, packed documents, and targets, whose padding is on the right."""
    command = [
        *command_of(name, tmp_path),
        "--out",
        str(tmp_path / "run"),
        "--training.precision=bf16",
        "--model.dropout=0",
    ]
    if name == "text-generation":
        second = tmp_path / "second.txt"
        second.write_text("the plum fell on the saw .\n" * 20, encoding="utf-8")
        command += ["--train", str(second), "--data.document-mask"]
    _, events, kernels = steps_of(command, monkeypatch)
    assert {kind for kind, line, _ in events if line != "outside"} == {"to device"}
    assert set(kernels) <= {"flash (bfloat16)"}
    assert varlen_attn.calls
    assert bool(kernels) == (name == "translation")  # its target has no mask


@pytest.mark.parametrize(("smoothing", "agreement"), [(0.0, 0.0), (0.1, 0.0), (0.1, 2.0)])
@pytest.mark.parametrize(("rows", "chunks"), [(4, 5), (5, 5), (20, 1)])
@pytest.mark.parametrize("name", ["gpt-micro", "bert-tiny"])
def test_the_loss_is_computed_in_chunks_that_fit_the_memory(
    name: str, rows: int, chunks: int, smoothing: float, agreement: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 rows, in several chunks of even rows or in one, with the same loss and gradients and no wait."""
    config = heedful.presets.get(name)
    config = replace(config, embedding=replace(config.embedding, vocab_size=70), head=HEADS[name])
    plain = heedful.create(config, seed=0)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, plain.main.dim, generator=generator)
    labels = torch.randint(70, (10,), generator=generator).masked_fill(torch.arange(10) == 3, -100).repeat_interleave(2)

    def learned(model: Any, hidden: Tensor, labels: Tensor) -> list[Tensor]:
        hidden = hidden.clone().requires_grad_()
        loss = output_loss(model.head, hidden, labels, smoothing, agreement)
        loss.backward()
        gradients = [p.grad for p in model.head.parameters()]
        return [loss.detach().cpu(), *(gradient.cpu() for gradient in (hidden.grad, *gradients))]

    expected = learned(plain, hidden, labels)
    seen: list[int] = []
    inner = loss_module.loss_and_gradient
    monkeypatch.setattr(loss_module, "loss_and_gradient", lambda *given: (seen.append(1), inner(*given))[1])
    monkeypatch.setattr(loss_module, "memory_of", lambda device: rows * 70 * 16 * 16)
    with pretend_gpu() as watch:
        model = heedful.create(config, seed=0).to(CUDA)
        hidden, labels = hidden.to(CUDA), labels.to(CUDA)
        watch.events.clear()
        actual = learned(model, hidden, labels)
        assert watch.waits() == 0
        assert model.head(hidden).shape == (20, 70)
    assert len(seen) == chunks
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, "gradient")


def test_the_next_batches_are_collated_before_the_host_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each step is checked, so that the host waits in it."""
    step, prefetch, waits = Loop._step, PrefetchingLoader.prefetch, list[tuple[int, int, int]]()

    def checked(self: Loop) -> None:
        nonlocal before
        before = watch.waits()
        step(self)
        waits[-1:] = [(*waits[-1][:2], watch.waits() - before)]

    def ahead(self: PrefetchingLoader, step: int) -> None:
        waits.append((step, watch.waits() - before, 0))
        prefetch(self, step)

    before = 0
    monkeypatch.setattr(Loop, "_step", checked)
    monkeypatch.setattr(PrefetchingLoader, "prefetch", ahead)
    command = [*command_of("text-generation", tmp_path), "--out", str(tmp_path / "run"), "--training.log-every=1"]
    with pretend_gpu() as watch:
        assert cli.main([*command, "--max-steps=4", "--device=cuda:0"]) == 0
    assert [(number, before) for number, before, _ in waits] == [(1, 0), (2, 0), (3, 0)]
    assert all(after > 0 for _, _, after in waits)


class Memory:
    """``fully_shard`` for four ranks: moves a unit to the device, whole, and leaves this rank's quarter there.

    PyTorch does so in ``_move_states_to_device`` and ``FSDPParam``; ``test_cuda.py`` measures it on a GPU.
    """

    def __init__(self) -> None:
        self.held = self.peak = self.largest = 0
        self.shards: list[Tensor] = []

    def fully_shard(self, module: Any, **options: Any) -> Any:
        unit = {p: None for p in module.parameters() if not any(p is shard for shard in self.shards)}
        assert {p.device.type for p in unit} == {"cpu"}, "moved before it is sharded"
        size = sum(p.nbytes for p in unit)
        self.largest, self.peak = max(self.largest, size), max(self.peak, self.held + size)
        shards = {p: torch.nn.Parameter(p.detach().flatten()[: -(-p.numel() // 4)].to(CUDA)) for p in unit}
        for owner in module.modules():
            for name, p in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
                setattr(owner, name, shards.get(p, p))
            for name, buffer in list(owner.named_buffers(recurse=False)):
                setattr(owner, name, buffer.to(CUDA))
        self.shards += shards.values()
        self.held += sum(shard.nbytes for shard in shards.values())
        return mock.MagicMock()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", GENERATORS)
def test_sharding_never_has_the_whole_model_on_a_gpu(
    name: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, model = Memory(), made(name)
    weights, whole = copy.deepcopy(model.state_dict()), sum(p.nbytes for p in model.parameters())
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda device, size: None)
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", memory.fully_shard)
    with pretend_gpu():
        engine = Sharded(mock.Mock(spec=Ranks, size=4, is_first=is_first), device=CUDA)
        engine.wrap(model, lambda model, batch: model(batch).sum())
        assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cuda"}
    assert memory.peak <= memory.held + memory.largest < whole
    assert (engine._whole_model is not None) == is_first
    if engine._whole_model is not None:
        state = engine._whole_model.state_dict()
        assert all(tensor.device.type == "cpu" and torch.equal(tensor, weights[key]) for key, tensor in state.items())


def test_a_run_that_is_sharded_leaves_its_model_on_the_cpu_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = Ranks(0, 2)
    for name in ("barrier", "_broadcast"):
        monkeypatch.setattr(several, name, lambda *values: None)
    monkeypatch.setattr("heedful.training.run.join_ranks", lambda: nullcontext(several))
    found = []

    def wrap(self: Sharded, model: Any, loss: Any, same_parameters: bool) -> Any:
        found.append((model.device.type, model.kernels, str(self.device)))
        raise HeedfulError("the run has come this far")

    monkeypatch.setattr(Sharded, "wrap", wrap)
    command = [*command_of("text-generation", tmp_path), "--out", str(tmp_path / "run"), "--device=cuda:0"]
    with pretend_gpu():
        assert cli.main([*command, "--training.shard"]) == 2
    assert found == [("cpu", "gpu", "cuda:0")]
    assert "on cuda:0" in capsys.readouterr().out


@pytest.mark.parametrize(("is_sharded", "device"), [(True, "cpu"), (False, "cuda")])
def test_the_best_weights_of_a_sharded_run_are_measured_on_the_cpu(
    is_sharded: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validation, "_measured", lambda self, model, examples, most: model.device.type)
    training = SimpleNamespace(shard=is_sharded, precision="bf16", evaluate_examples=None)
    settings: Any = SimpleNamespace(
        training=training, data=SimpleNamespace(max_length=None), start_from=None, max_minutes=None
    )
    with pretend_gpu():
        model, examples = mock.Mock(device=torch.device(CUDA)), mock.Mock(rows=[None])
        task = mock.Mock(columns={}, read_model=lambda folder: made("gpt-micro"))
        validation = Validation(task, model, examples, settings)
        validation.measure_folder(Path(), step=100)
    assert validation.best == device


@pytest.mark.parametrize("mask", [MASK, None], ids=["a mask", "no mask"])
def test_attention_under_a_mask_is_never_cudnns(mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN gives a query that may attend to nothing a mean of the values, where zeros are promised."""
    inner, allowed = attention_kernels.F.scaled_dot_product_attention, list[bool]()

    def noted(*arguments: Any, **options: Any) -> Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return inner(*arguments, **options)

    with pretend_gpu():
        model = made("bert-tiny").to(CUDA)
        monkeypatch.setattr(attention_kernels.F, "scaled_dot_product_attention", noted)
        model.hidden(IDS.to(CUDA), None if mask is None else mask.to(CUDA))
    assert allowed
    assert set(allowed) == {mask is None}
    assert torch.backends.cuda.cudnn_sdp_enabled()
