"""What a GPU would refuse or wait for, on a pretend one: devices never mixed, waits counted, float64 where it hurts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pretend
import pytest
import torch
from pretend import MixedDevices, Watch, pretend_gpu
from torch import Tensor
from torch.nn import functional as F

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.config import AlibiPosition, LanguageHead, MaskedHead, RelativePosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import token_choice
from heedful.generation.decoder_state import create_state
from heedful.generation.static import StaticStep
from heedful.generation.token_choice import choose
from heedful.inspection.ablation import ablate
from heedful.inspection.embedding_space import principal_components
from heedful.inspection.importance import head_importance
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import logit_lens
from heedful.inspection.position_tables import position_similarity
from heedful.kernels import varlen
from heedful.kernels.optimize import optimize
from heedful.kernels.plan import apply_plan, apply_training_plan
from heedful.layers import text_starts
from heedful.layers.attention import Attention
from heedful.stack import Block
from heedful.tasks import output_loss as loss_module
from heedful.tasks.model_setup import load_with_head
from heedful.tasks.output_loss import output_loss
from heedful.training.engine import Alone, Sharded
from heedful.training.feed import Feed
from heedful.training.gradient import Gradient, MicroBatches
from heedful.training.loop import Loop
from heedful.training.muon import muon
from heedful.training.optimisation import adamw
from heedful.training.validation import Validation
from heedful.util.ranks import Ranks
from test_every_task import MADE, command_of
from tolerances import assert_close
from varlen_reference import Reference

REASON = pretend.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

CUDA = "cuda:0"
IDS = torch.tensor([[9, 14, 33, 7, 52, 21, 40], [8, 30, 11, 47, 5, 29, 18], [55, 6, 24, 13, 38, 44, 10]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]]).bool()
TEXTS = torch.tensor([[1, 1, 2, 2, 2, 0, 0]] * 3)
INPUTS = {
    "gpt-micro": (IDS, MASK),
    "stories260k": (IDS, MASK),
    "bert-tiny": (IDS, MASK),
    "transformer-tiny": (IDS, IDS, MASK, MASK),
    "vit-micro": (torch.linspace(0, 1, 2 * 784).reshape(2, 1, 28, 28),),
}
HEADS = {"gpt-micro": LanguageHead(), "bert-tiny": MaskedHead()}
GENERATORS = ("gpt-micro", "stories260k", "transformer-tiny")
METHODS = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 0, "top_k": 5, "top_p": 0.9},
    "beams": {"num_beams": 3},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 3, "bad_words_ids": [[7, 8]]},
    "lists of ids": {
        "min_new_tokens": 5,
        "bad_words_ids": [[7], [8, 9]],
        "suppress_tokens": [3],
        "begin_suppress_tokens": [4],
        "forced_eos_token_id": 5,
    },
    "forced words": {"num_beams": 3, "force_words_ids": [[7, 9]]},
}


def made(name: str) -> Any:
    return heedful.create(name, seed=0).eval()


def loss_of(model: Any, batch: Any) -> Tensor:
    hidden = model.hidden(batch["ids"], batch.get("texts"))
    return output_loss(model.head, hidden.flatten(0, 1), batch["labels"].flatten())


@pytest.mark.parametrize("name", INPUTS)
def test_forward_mixes_no_devices_never_waits_and_needs_no_float64(name: str) -> None:
    expected = made(name)(*INPUTS[name])
    with pretend_gpu(no_float64=True) as watch:
        model, inputs = made(name).to(CUDA), [tensor.to(CUDA) for tensor in INPUTS[name]]
        watch.events.clear()
        logits = model(*inputs)
        assert logits.device.type == "cuda"
        assert not watch.events
        assert_close(logits.cpu(), expected, "gradient")


@pytest.mark.parametrize("mask", [None, MASK, TEXTS], ids=["plain", "padded", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_of_mask_stays_on_the_device(mask: Tensor | None, dtype: torch.dtype) -> None:
    with pretend_gpu() as watch:
        model = made("stories260k").to(CUDA, dtype)
        inputs = [IDS.to(CUDA), *([] if mask is None else [mask.to(CUDA)])]
        watch.events.clear()
        assert model(*inputs).device.type == "cuda"
        assert not watch.events


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
        *((name, mask) for name in INPUTS if name != "vit-micro" for mask in (MASK, MASK.flip(1))),
        *((name, TEXTS) for name in ("gpt-micro", "stories260k")),
    ],
)
def test_padding_is_left_out_of_attention_without_a_wait(
    name: str, mask: Tensor, varlen_attn: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "HALVES", (torch.float32,))  # whose rounding is not seen
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


def test_a_tensor_on_the_cpu_is_refused() -> None:
    with pretend_gpu(), pytest.raises(MixedDevices, match="cpu beside cuda:0"):
        made("gpt-micro").to(CUDA)(IDS.to(CUDA), MASK)


def error_of(function: Callable[[], Any]) -> str:
    with pytest.raises(HeedfulError) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("name", ["gpt-micro", "bert-tiny"])
def test_too_long_an_input_is_found_before_the_lookup(name: str) -> None:
    model, fitting = made(name), 64 if name == "gpt-micro" else 512
    ids = torch.ones(1, fitting + 1, dtype=torch.int64)
    mask = torch.ones(1, fitting + 1, dtype=torch.bool)
    mask[0, 0] = False
    expected, padded = error_of(lambda: model(ids)), model(ids, mask)
    with pretend_gpu() as watch:
        model = made(name).to(CUDA)
        assert error_of(lambda: model(ids.to(CUDA))) == expected
        assert_close(model(ids.to(CUDA), mask.to(CUDA))[:, 1:].cpu(), padded[:, 1:], "gradient")
        watch.events.clear()
        model(ids[:, 1:].to(CUDA))
        assert watch.waits() == 0


@pytest.mark.parametrize("name", GENERATORS)
def test_ids_outside_the_vocabulary_are_found_before_the_lookup(name: str) -> None:
    model, wrong = made(name), IDS.clone()
    wrong[0, 0] = model.config.source.vocab_size if name == "transformer-tiny" else model.config.embedding.vocab_size
    expected = error_of(lambda: model.generate(wrong, max_new_tokens=2))
    with pretend_gpu():
        model = made(name).to(CUDA)
        assert error_of(lambda: model.generate(wrong.to(CUDA), max_new_tokens=2)) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.full(keep=8)
def test_generation_gives_the_tokens_of_the_cpu(name: str, method: str) -> None:
    options, events = METHODS[method], []
    for count in (8, 24):
        expected = made(name).generate(IDS, MASK, max_new_tokens=count, **options)
        with pretend_gpu() as watch:
            model, ids, mask = made(name).to(CUDA), IDS.to(CUDA), MASK.to(CUDA)
            watch.events.clear()
            ids = model.generate(ids, mask, max_new_tokens=count, **options)
            events.append(Counter(watch.events))
            assert torch.equal(ids.cpu(), expected)
    steps = {event: count for event, count in (events[1] - events[0]).items() if event[1] != "outside"}
    assert {kind for kind, _, _ in steps} == {"wait"}, "a copy between host and device at each step"
    assert sum(steps.values()) == (16 if "num_beams" in options else 2)


@pytest.mark.full(keep=4)
@pytest.mark.parametrize(("method", "most_waits"), [("greedy", 1), ("sampling", 1), ("beams", 8), ("groups", 8)])
@pytest.mark.parametrize("name", GENERATORS)
def test_a_static_step_lets_the_gpu_run_ahead(name: str, method: str, most_waits: int) -> None:
    """Eight tokens more: one more wait, and no copy; a beam search waits once a token."""
    options, events = METHODS[method], []
    for count in (8, 16):
        expected = made(name).generate(IDS, MASK, max_new_tokens=count, **options)
        with pretend_gpu() as watch:
            model = made(name).to(CUDA)
            ids = model.generate(
                IDS.to(CUDA), MASK.to(CUDA), max_new_tokens=count, cache_implementation="static", **options
            )
            assert torch.equal(ids.cpu(), expected)
            events.append(Counter(watch.events))
    more = events[1] - events[0]
    assert {kind for kind, _, _ in more} == {"wait"}
    assert more.total() == most_waits


@pytest.mark.full(keep=5)
@pytest.mark.parametrize("position", [None, AlibiPosition(), RelativePosition(), SinusoidalPosition(), "window"])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_static_step_is_the_same_work_and_reads_nothing(name: str, position: Any) -> None:
    config = heedful.presets.get(name)
    changes = {"window": 4} if position == "window" else {"position": position} if position else {}
    model = heedful.create(replace(config, decoder=replace(config.decoder, **changes)), seed=0).eval()
    with pretend_gpu() as watch, torch.inference_mode():
        state = create_state(model.to(CUDA), IDS.to(CUDA), MASK.to(CUDA))
        step = StaticStep(state, torch.full((3,), 12, device=CUDA))
        step.make_cache(None)
        tokens = step.step(step.prefill().argmax(1)).argmax(1)
        watch.events.clear()
        watch.attention.clear()
        launches = []
        for _ in range(10):
            before = watch.launches
            tokens = choose(step.step(tokens), torch.full((3,), 0.5, device=CUDA))
            launches.append(watch.launches - before)
        assert not watch.events
        assert len(set(launches)) == 1
        assert "math (float32)" not in watch.attention  # CUDA's slowest: the others refuse grouped queries with a mask


@pytest.mark.parametrize("texts", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt-micro", "stories260k"])
def test_a_step_of_training_never_waits(name: str, precision: str, texts: bool) -> None:
    with pretend_gpu() as watch:
        model = heedful.create(name, seed=0).to(CUDA).train()
        apply_training_plan(model)
        optimiser = adamw(model, lr=1e-3)
        assert all(group["fused"] for group in optimiser.param_groups)
        gradient = Gradient(
            model=model,
            loss=loss_of,
            count=lambda batch: 21,
            engine=Alone(),
            precision=precision,
            seed=0,
            device=model.device,
            zero_grad=optimiser.zero_grad,
            on_split=None,
        )
        batch = {"ids": IDS, "labels": IDS, **({"texts": TEXTS} if texts else {})}
        watch.events.clear()
        loss = gradient.compute(gradient.micro_batches(0, [batch]))
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norm = Alone().norm([parameter.grad for parameter in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        optimiser.step()
        assert watch.waits() == 0, watch.events
        assert all(parameter.grad.device.type == "cuda" for parameter in parameters)
        assert torch.isfinite(loss.cpu())
    if precision == "bf16" and not texts:
        assert set(watch.attention) == {"flash (bfloat16)"}


@pytest.mark.parametrize(("smoothing", "agreement"), [(0.0, 0.0), (0.1, 0.0), (0.1, 2.0)])
@pytest.mark.parametrize("rows", [4, 5, 20])
@pytest.mark.parametrize("name", ["gpt-micro", "bert-tiny"])
def test_the_loss_is_computed_in_chunks_that_fit_the_memory(
    name: str, rows: int, smoothing: float, agreement: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 rows, in several chunks or at once, with the same loss and gradients and no wait."""
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
    inner = loss_module.ChunkedLoss.forward
    monkeypatch.setattr(loss_module.ChunkedLoss, "forward", lambda *given: (seen.append(1), inner(*given))[1])
    monkeypatch.setattr(loss_module, "memory_of", lambda device: rows * 70 * 16 * 16)
    with pretend_gpu() as watch:
        model = heedful.create(config, seed=0).to(CUDA)
        hidden, labels = hidden.to(CUDA), labels.to(CUDA)
        watch.events.clear()
        actual = learned(model, hidden, labels)
        assert watch.waits() == 0
        assert model.head(hidden).shape == (20, 70)
    assert seen == ([1] if rows < 20 else [])
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, "gradient")


@pytest.mark.parametrize("kind", ["muon", "gradient checkpointing", "adapter"])
def test_other_ways_to_train_stay_on_the_device(kind: str) -> None:
    model = heedful.create("gpt-micro", seed=0)
    if kind == "adapter":
        model.source = "a folder"
        add_adapter(model, LoraConfig(rank=4, targets=("query", "value")), seed=0)
    with pretend_gpu() as watch:
        model = model.to(CUDA).train()
        if kind == "gradient checkpointing":
            apply_training_plan(model, "plain", recompute=True)
        optimiser = adamw(model, lr=1e-3)
        if kind == "muon":
            optimiser = muon(model, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, dtype=torch.bfloat16)
        batch = {"ids": IDS.to(CUDA), "labels": IDS.to(CUDA)}
        watch.events.clear()
        loss_of(model, batch).backward()
        optimiser.step()
        assert watch.waits() == 0, watch.events


def test_an_optimised_model_generates_on_the_device() -> None:
    with pretend_gpu():
        model = optimize(made("gpt-micro").to(CUDA), "bfloat16")
        assert model.generate(IDS.to(CUDA), max_new_tokens=4).device.type == "cuda"


@pytest.mark.parametrize("no_float64", [False, True], ids=["float64", "no float64"])
def test_inspection_stays_on_the_device(no_float64: bool) -> None:
    plain = made("gpt-micro")

    def loss_of_ids(model: Any, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    importance = head_importance(plain, lambda: loss_of_ids(plain, IDS))
    change = ablate(plain, lambda: loss_of_ids(plain, IDS).item()).change
    similarity = position_similarity(made("stories260k"))
    components = principal_components(plain.embedding.token.weight)
    with pretend_gpu(no_float64) as watch:
        model, ids = made("gpt-micro").to(CUDA), IDS.to(CUDA)
        with heedful.record(model, ["pattern", "stream", "logits"]) as seen:
            model(ids, MASK.to(CUDA))
        assert {tensor.device.type for tensor in seen.values()} == {"cuda"}
        with heedful.record(model, ["pattern", "logits"]) as seen:
            model.generate(ids, MASK.to(CUDA), max_new_tokens=3)
        assert seen
        for path, values in head_importance(model, lambda: loss_of_ids(model, ids)).items():
            assert values.dtype == torch.float64
            assert values.device.type == ("cpu" if no_float64 else "cuda")
            assert_close(values.cpu().float(), importance[path].float(), "gradient")
        for path, values in ablate(model, lambda: loss_of_ids(model, ids).item()).change.items():
            assert_close(values.float(), change[path].float(), "gradient")
        assert_close(position_similarity(made("stories260k").to(CUDA)).cpu(), similarity, "gradient")
        on_gpu = principal_components(model.embedding.token.weight)
        for name, values in vars(components).items():
            assert getattr(on_gpu, name).device.type == "cuda"
            assert_close(getattr(on_gpu, name).cpu(), values, "gradient")
        logit_lens(model, ids[:1], top=2)
        with intervene(model, "decoder.block.0.stream", lambda stream: stream * 0):
            model(ids)
    assert watch.launches


@pytest.mark.parametrize("method", [*METHODS, "assisted", "typical"])
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.full(keep=8)
def test_decoding_without_float64(name: str, method: str) -> None:
    options = dict(METHODS.get(method, {"do_sample": True, "seed": 0}))
    with pretend_gpu(no_float64=True):
        model = made(name).to(CUDA)
        if method == "assisted":
            options["assistant_model"] = made(name).to(CUDA)
        if method == "typical":
            options["typical_p"] = 0.8
        ids = model.generate(IDS.to(CUDA), MASK.to(CUDA), max_new_tokens=6, **options)
        assert ids.device.type == "cuda"


@pytest.mark.parametrize("name", ["fill-mask", "translation", *sorted(set(MADE) - {"fill-mask", "translation"})])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.full(keep=3)
def test_an_evaluation_computes_in_the_precision_of_the_run(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, dtypes = Validation._measured, set()

    def measured(self: Validation, model: Any, examples: Any) -> Any:
        block = next(module for module in model.modules() if isinstance(module, Block))
        hook = block.feed_forward.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
        try:
            return inner(self, model, examples)
        finally:
            hook.remove()

    monkeypatch.setattr(Validation, "_measured", measured)
    command = [*command_of(name, tmp_path), "--out", str(tmp_path / "run"), "--max-steps=2", "--device=cuda:0"]
    with pretend_gpu():
        assert cli.main([*command, f"--training.precision={precision}"]) == 0
    assert dtypes == {{"bf16": torch.bfloat16, "fp32": torch.float32}[precision]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, []) for name in MADE),
        *((name, ["--model.r-drop=1", "--model.dropout=0.1"]) for name in ("translation", "text-classification")),
    ],
)
def test_no_step_of_any_task_waits_or_copies_but_its_batch(
    name: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ahead, ahead = Feed.look_ahead, list[int]()

    def collate(self: Feed, step: int) -> None:
        ahead.append(step)
        look_ahead(self, step)
        assert isinstance(self._next, MicroBatches), self._next

    monkeypatch.setattr(Feed, "look_ahead", collate)
    command = [*command_of(name, tmp_path), *options, "--out", str(tmp_path / "run")]
    watch, events, _ = steps_of(command, monkeypatch)
    steps = {event for event in events if event[1] != "outside"}
    assert {(kind, line.partition(":")[0]) for kind, line, _ in steps} == {("to device", "util/to_device.py")}
    assert watch.pinned >= sum(events.values()), "a copy from memory that is not pinned makes the host wait"
    assert ahead == [1, 2], "each step but the first is collated while another one runs"


def test_the_next_batches_are_collated_before_the_host_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each step is checked, so that the host waits in it."""
    step, look_ahead, waits = Loop._step, Feed.look_ahead, list[tuple[int, int, int]]()

    def checked(self: Loop) -> None:
        nonlocal before
        before = watch.waits()
        step(self)
        waits[-1:] = [(*waits[-1][:2], watch.waits() - before)]

    def ahead(self: Feed, step: int) -> None:
        waits.append((step, watch.waits() - before, 0))
        look_ahead(self, step)

    before = 0
    monkeypatch.setattr(Loop, "_step", checked)
    monkeypatch.setattr(Feed, "look_ahead", ahead)
    command = [*command_of("text-generation", tmp_path), "--out", str(tmp_path / "run"), "--training.log-every=1"]
    with pretend_gpu() as watch:
        assert cli.main([*command, "--max-steps=4", "--device=cuda:0"]) == 0
    assert [(number, before) for number, before, _ in waits] == [(1, 0), (2, 0), (3, 0)]
    assert all(after > 0 for _, _, after in waits)


@pytest.mark.parametrize("options", [[], ["--training.tf32=false"]], ids=["default", "exact"])
def test_a_run_rounds_float32_products_unless_it_is_told_not_to(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, allowed = Loop._step, []

    def step(self: Loop) -> None:
        allowed.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        inner(self)

    monkeypatch.setattr(Loop, "_step", step)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    command = [*command_of("text-generation", tmp_path), "--out", str(tmp_path / "run"), "--max-steps=1", *options]
    with pretend_gpu():
        assert cli.main([*command, "--device=cuda:0", "--training.precision=fp32"]) == 0
    assert allowed == [(not options, not options)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert f"tf32 = {str(not options).lower()}" in (tmp_path / "run/run.toml").read_text()


def test_tf32_has_no_effect_on_a_cpu_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_float32_matmul_precision()
    command = [*command_of("text-generation", tmp_path), "--out", str(tmp_path / "run"), "--max-steps=1"]
    assert cli.main([*command, "--device=cpu", "--training.tf32"]) == 0
    assert "--training.tf32 has no effect on cpu" in capsys.readouterr().out
    assert torch.get_float32_matmul_precision() == before


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
        engine.wrap(model, loss_of)
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

    def wrap(self: Sharded, model: Any, loss: Any, is_fixed: bool) -> Any:
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
    monkeypatch.setattr("heedful.training.validation.load", lambda folder, dtype: made("gpt-micro"))
    monkeypatch.setattr(Validation, "_measured", lambda self, model, examples: model.device.type)
    training = SimpleNamespace(shard=is_sharded, precision="bf16", evaluate_examples=None)
    settings: Any = SimpleNamespace(training=training, data=SimpleNamespace(max_length=None))
    with pretend_gpu():
        model, examples = mock.Mock(device=torch.device(CUDA)), mock.Mock(rows=[None])
        validation = Validation(mock.Mock(columns={}), model, examples, settings)
        validation.measure_folder(Path())
    assert validation.best == device


def test_rounded_uniform_numbers_stay_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[0.0, 1.0, float("-inf")]])
    monkeypatch.setattr("heedful.util.exact.WITHOUT_FLOAT64", {"cpu"})
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.full(size, 1 - 2**-53, dtype=torch.float64))
    numbers = token_choice.uniform_numbers(IDS[:1], 1, 1, 0)
    assert numbers.dtype == torch.float32
    assert token_choice.choose(scores, numbers[:, 0]).item() == 1, "a token of probability 0"


@pytest.mark.parametrize("name", ["fill-mask", "translation", *sorted(set(MADE) - {"fill-mask", "translation"})])
@pytest.mark.full(keep=2)
def test_every_task_trains_and_evaluates_without_float64(name: str, tmp_path: Path) -> None:
    command = [*command_of(name, tmp_path), "--out", str(tmp_path / "run"), "--max-steps=2", "--device=cuda:0"]
    with pretend_gpu(no_float64=True):
        assert cli.main(command) == 0


def test_new_weights_keep_the_random_state_of_the_gpu(tmp_path: Path) -> None:
    heedful.create("bert-tiny", seed=0).save_pretrained(tmp_path)
    expected = heedful.create("gpt-micro", seed=3).state_dict()
    with pretend_gpu():
        torch.cuda.default_generators[0].manual_seed(7)
        before = torch.cuda.default_generators[0].get_state(), torch.get_rng_state()
        model = heedful.create("gpt-micro", seed=3)
        model.source = "a folder"
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
        add_adapter(model, LoraConfig(rank=4, targets=("query", "value")), seed=0)
        load_with_head(tmp_path, "sequence", seed=0, labels=3)
        assert torch.equal(before[0], torch.cuda.default_generators[0].get_state())
        assert torch.equal(before[1], torch.get_rng_state())
