"""Errors and waits of a GPU, on a simulated one: no mixed devices, counted waits, float64 where it is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pretend
import pytest
import torch
from counted import (
    BUDGETS,
    CUDA,
    DECODING,
    FAMILIES,
    GENERATORS,
    IDS,
    LEFT,
    MASKS,
    OTHER_ROWS,
    Budget,
    config_of,
    counts,
    decoding_counts,
    generated,
    inputs_of,
    made,
    task_command,
    trained,
)
from pretend import MixedDevices, pretend_gpu
from torch import Tensor
from torch.nn import functional as F

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.config import AlibiPosition, RelativePosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.generation import decode, token_choice
from heedful.generation.decoder_state import create_state
from heedful.generation.static import StaticStep
from heedful.generation.token_choice import choose
from heedful.inspection.ablation import ablate
from heedful.inspection.embedding_space import principal_components
from heedful.inspection.importance import head_importance
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import logit_lens
from heedful.inspection.position_tables import position_similarity
from heedful.inspection.pruning import prune
from heedful.kernels.plan import apply_training_plan
from heedful.layers.block import Block
from heedful.optimize_model import optimize
from heedful.tasks.contrastive_loss import cosent
from heedful.tasks.model_setup import load_with_head
from heedful.training.engine import Alone
from heedful.training.gradient import Gradient
from heedful.training.loop import Loop
from heedful.training.optimisation import adamw
from heedful.training.validation import Validation
from heedful.util import exact
from recorded_step import recorded_steps
from test_every_task import MADE, command_of
from tolerances import assert_close

REASON = pretend.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def assert_within(measured: Budget, kind: str, events: Any) -> None:
    budget = BUDGETS[kind]
    assert measured.waits <= budget.waits, events
    assert measured.copies <= budget.copies, events


def loss_of(model: Any, batch: Any) -> Tensor:
    """Cross entropy of what any model returns, over the tokens that are no padding."""
    logits = model(*(tensor for name, tensor in batch.items() if name != "labels"))
    return F.cross_entropy(logits.flatten(0, -2).float(), batch["labels"].flatten(), reduction="sum")


def batch_of(family: str, mask: str) -> dict[str, Tensor]:
    batch, real = inputs_of(family, mask), MASKS[mask]
    if family == "vit-micro":
        return batch | {"labels": torch.tensor([3, 7])}
    return batch | {"labels": IDS if real is None or real.ndim == 3 else IDS.where(real > 0, -100)}


def training_step(model: Any, batch: dict[str, Tensor], precision: Any) -> Callable[[], Tensor]:
    """Returns a step of training as the loop takes it; the step returns its loss."""
    apply_training_plan(model.train())
    optimiser = adamw(model, lr=1e-3, eps=1e-3)  # keys' biases have no gradient but rounding, which Adam would scale up
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

    def step() -> Tensor:
        loss = gradient.compute(gradient.micro_batches(0, [batch]))
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norm = Alone().norm([parameter.grad for parameter in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        optimiser.step()
        return loss

    return step


INPUTS = [(family, mask) for mask in MASKS for family in FAMILIES if mask == "plain" or family != "vit-micro"]
PRECISIONS = [("bf16", False), ("fp32", True), ("bf16", True), ("fp32", False)]
FIRST_INPUTS = [(family, "plain", "bf16", False) for family in FAMILIES]
FIRST_INPUTS += [(family, "plain" if family == "vit-micro" else "left", "fp32", True) for family in FAMILIES]


@pytest.mark.full(keep=len(FIRST_INPUTS))
@pytest.mark.parametrize(
    ("family", "mask", "precision", "no_float64"),
    dict.fromkeys([*FIRST_INPUTS, *((*inputs, *kind) for inputs in INPUTS for kind in PRECISIONS)]),
)
def test_a_forward_pass_and_a_step_of_training(family: str, mask: str, precision: str, no_float64: bool) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    batch = batch_of(family, mask)
    inputs = [tensor for name, tensor in batch.items() if name != "labels"]
    inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
    expected, trained_model = made(family).to(dtype)(*inputs), made(family)
    expected_loss = training_step(trained_model, batch, precision)()
    with pretend_gpu(no_float64) as watch:
        model, inputs = made(family).to(CUDA, dtype), [tensor.to(CUDA) for tensor in inputs]
        watch.events.clear()
        logits = model(*inputs)
        assert_within(counts(watch.events), "forward pass", watch.events)
        assert logits.device.type == "cuda"
        real = batch["labels"] >= 0
        assert_close(logits.cpu()[real], expected[real], "gradient")
        model = made(family).to(CUDA)
        step = training_step(model, batch, precision)
        watch.events.clear()
        watch.attention.clear()
        loss = step()
        assert_within(counts(watch.events), "step of training", watch.events)
        assert_close(loss.cpu(), expected_loss, "training", dtype=dtype)
        for (name, ours), theirs in zip(model.named_parameters(), trained_model.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None and theirs.grad is not None:
                assert ours.grad.device.type == "cuda"
                assert_close(ours.grad.cpu(), theirs.grad, "training", dtype=dtype)
            assert_close(ours.detach().cpu(), theirs.detach(), "training", dtype=dtype)
    if precision == "bf16" and mask == "plain" and family not in ("alibi", "relative", "window"):
        assert set(watch.attention) == {"flash (bfloat16)"}


@pytest.mark.full  # test_compile_table.py has the same of padded texts, and test_compile.py
def test_a_second_length_compiles_to_one_graph_of_any_length() -> None:
    """A comparison of lengths that is no plain ``if`` fails here; ``test_compile_table.py`` has all families."""
    torch._dynamo.reset()
    model, graphs = made("gpt-micro"), []

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for length in (7, 5, 6):
        assert_close(compiled(IDS[:, :length]), model(IDS[:, :length]))
    assert len(graphs) <= 2


def test_the_page_counts_all_kinds_of_work_within_their_budgets() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (forward pass|step of training|token): (.+?) \| .+ \| .+ \| (.+) \| (.+) \|$", page, re.M)
    named: dict[str, set[str]] = {}
    for unit, names, waits, copies in rows:
        for name in names.split(", ") if "(B" not in names else [names]:
            named.setdefault(unit, set()).add(name)
            assert_within(Budget(float(waits), float(copies)), DECODING[name].budget if unit == "token" else unit, name)
    assert named == {
        "forward pass": {*FAMILIES, "masks (B, T, T)"},
        "step of training": {*MADE, *OTHER_ROWS},
        "token": {*DECODING},
    }


def test_a_tensor_on_the_cpu_is_refused() -> None:
    with pretend_gpu(), pytest.raises(MixedDevices, match="cpu beside cuda:0"):
        made("gpt-micro").to(CUDA)(IDS.to(CUDA), LEFT)


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


FIRST_METHODS = [(name, method) for method in ("greedy", "beams") for name in GENERATORS]
FIRST_METHODS += [(GENERATORS[number % 3], method) for number, method in enumerate(DECODING) if number in range(12)]


@pytest.mark.full(keep=len(dict.fromkeys(FIRST_METHODS)))
@pytest.mark.parametrize(
    ("name", "method"),
    dict.fromkeys([*FIRST_METHODS, *((name, method) for method in DECODING for name in GENERATORS)]),
)
def test_decoding(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens are those of a CPU, with float64 and without it; the budget is one of a token."""
    expected = generated(made(name), method, 16)
    with pretend_gpu() as watch:
        measured, ids = decoding_counts(name, method, watch)
        assert_within(measured, DECODING[method].budget, watch.events)
        assert ids.device.type == "cuda"
        assert torch.equal(ids.cpu(), expected)
    with monkeypatch.context() as patched:
        patched.setattr(exact, "WITHOUT_FLOAT64", {"cpu"})
        expected = generated(made(name), method, 8)
    with pretend_gpu(no_float64=True):
        assert torch.equal(generated(made(name).to(CUDA), method, 8).cpu(), expected)


UNCAPTURED = {"contrastive", "contrastive and processors", "assisted", "assisted samples"}
UNCAPTURED |= {"prompt lookup", "lookup and processors"}


CAPTURED = [  # every method with one model; the others with one row and several for each prompt
    *((GENERATORS[0], method) for method in DECODING if not method.startswith("static")),
    *((name, method) for name in (*GENERATORS[1:], "alibi", "relative", "window") for method in ("greedy", "beams")),
]


@pytest.mark.full(keep=12)
@pytest.mark.parametrize(("name", "method"), CAPTURED)
def test_captured_decoding(name: str, method: str) -> None:
    """A replay waits for nothing and copies nothing; the second of two calls captures nothing."""
    expected = generated(made(name), method, 16)
    with pretend_gpu() as watch, recorded_steps("cuda") as captures:
        measured, ids = decoding_counts(name, method, watch, captured=True)
        assert_within(measured, DECODING[method].budget, watch.events)
        assert ids.device.type == "cuda"
        assert torch.equal(ids.cpu(), expected)
        assert len(captures) == (method not in UNCAPTURED)
        assert captures.replays >= 16 or method in UNCAPTURED


def test_a_model_shows_that_it_captures_and_an_amd_gpu_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend_gpu():
        model = optimize(made("gpt-micro").to(CUDA), "bfloat16")
        assert "kernels='gpu', captured=CapturedSteps(graphs=0)" in str(model)
        assert model.to("cpu").generate(IDS, LEFT, max_new_tokens=4).shape == (3, 11)  # not captured on a CPU
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert optimize(made("gpt-micro").to(CUDA)).captured is None


@pytest.mark.parametrize("method", ["greedy", "sampling", "beams", "groups", "prompt lookup", "static", "static beams"])
def test_rows_that_end_leave_the_batch_on_the_device(method: str) -> None:
    options = {"max_length": 30, **DECODING[method].options}
    options["num_return_sequences"] = options.get("num_beams", 1)
    model = made("stories260k")
    model.config = replace(model.config, special=replace(model.config.special, end=tuple(range(3, 65, 7))))
    expected = decode(model, IDS, LEFT, logprobs=True, **options)
    assert expected.lengths.min() < expected.lengths.max()
    with pretend_gpu():
        found = decode(model.to(CUDA), IDS.to(CUDA), LEFT.to(CUDA), logprobs=True, **options)
        assert torch.equal(found.ids.cpu(), expected.ids)
        assert torch.equal(found.lengths.cpu(), expected.lengths)
        assert_close(found.scores.cpu(), expected.scores, "gradient")
        assert_close(found.logprobs.cpu(), expected.logprobs, "gradient")


@pytest.mark.full(keep=5)
@pytest.mark.parametrize("position", [None, AlibiPosition(), RelativePosition(), SinusoidalPosition(), "window"])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_static_step_is_the_same_work_and_reads_nothing(name: str, position: Any) -> None:
    config = config_of(name)
    changes = {"window": 4} if position == "window" else {"position": position} if position else {}
    model = heedful.create(replace(config, decoder=replace(config.decoder, **changes)), seed=0).eval()
    with pretend_gpu() as watch, torch.inference_mode():
        state = create_state(model.to(CUDA), IDS.to(CUDA), LEFT.to(CUDA))
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


@pytest.mark.parametrize("name", GENERATORS)
def test_an_optimised_model_generates_on_the_device(name: str) -> None:
    expected = optimize(made(name), "bfloat16").generate(IDS, LEFT, max_new_tokens=4)
    with pretend_gpu(no_float64=True):
        model = optimize(made(name).to(CUDA), "bfloat16", compiled_decoding=False)
        vocabulary = model.head.output.out_features
        assert model.head.output.weight.size(0) == -(-vocabulary // 64) * 64
        ids = model.generate(IDS.to(CUDA), LEFT.to(CUDA), max_new_tokens=4)
        assert ids.device.type == "cuda"
        assert torch.equal(ids.cpu(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_recorded_changed_and_removed_on_the_device(family: str) -> None:
    def inspected(device: str) -> dict[str, Tensor]:
        model = made(family).to(device)
        inputs = [
            tensor.to(device) for tensor in inputs_of(family, "plain" if family == "vit-micro" else "left").values()
        ]

        def loss() -> Tensor:
            return model(*inputs).square().mean()

        with heedful.record(model, ["pattern", "stream"]) as seen:
            model(*inputs)
        stack = "decoder" if hasattr(model, "decoder") else "encoder"
        with intervene(model, f"{stack}.block.0.stream", lambda stream: stream * 0):
            changed = model(*inputs)
        small = prune(model, layers=[1], units={0: [0, 1]})
        effects = {**ablate(model, loss).change, **{f"gate {k}": v for k, v in head_importance(model, loss).items()}}
        assert {seen[name].device.type for name in seen} == {changed.device.type} == {device.partition(":")[0]}
        return {**seen, **effects, "changed": changed, "pruned": small(*inputs)}

    expected = inspected("cpu")
    with pretend_gpu(no_float64=True):
        found = {name: tensor.cpu() for name, tensor in inspected(CUDA).items()}
    for name, tensor in found.items():
        assert_close(tensor.float(), expected[name].float(), "gradient")


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
            model(ids, LEFT.to(CUDA))
        assert {tensor.device.type for tensor in seen.values()} == {"cuda"}
        with heedful.record(model, ["pattern", "logits"]) as seen:
            model.generate(ids, LEFT.to(CUDA), max_new_tokens=3)
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


RUNS = {  # task and options beside the defaults
    "r-drop of a decoder": (
        "translation",
        ["--model.r-drop=1", "--model.dropout=0.1", "--training.label-smoothing=0.1"],
    ),
    "r-drop of an encoder": ("text-classification", ["--model.r-drop=1", "--model.dropout=0.1"]),
    "muon": ("text-generation", ["--training.optimiser=muon", "--training.accumulate=2"]),
    "muon of an encoder": ("fill-mask", ["--training.optimiser=muon", "--tuning.layer-decay=0.9"]),
    "gradient checkpointing": ("text-generation", ["--training.gradient-checkpointing", "--model.drop-path=0.1"]),
    "checkpointing of two stacks": ("translation", ["--training.gradient-checkpointing", "--model.dropout=0.1"]),
    "exponential average": ("text-classification", ["--averaging.ema=0.9"]),
    "polynomial average": ("text-generation", ["--averaging.polynomial=0.1"]),
    "average of the last": ("token-classification", ["--averaging.last=2"]),
    "mixup": ("image-classification", ["--image.mixup=0.2", "--image.random-erasing=0.5"]),
    "chunked contrast": ("feature-extraction", ["--pooling.chunk=8"]),
    "span corruption": ("fill-mask", ["--preset=transformer-tiny"]),
    "adapter": ("text-generation", ["--lora.rank=2", "--lora.targets=all", "--lora.dropout=0.1"]),
}


@pytest.mark.full(keep=len(MADE) + len(OTHER_ROWS))
@pytest.mark.parametrize(
    ("precision", "no_float64"), [("bf16", False), ("fp32", True)], ids=["bf16, float64", "fp32, no float64"]
)
@pytest.mark.parametrize("run", [*MADE, *OTHER_ROWS, *RUNS])
def test_no_step_of_a_run_waits_or_copies_but_its_batch(
    run: str, precision: str, no_float64: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations of the run compute in its precision."""
    inner, dtypes = Validation._measured, set()

    def measured(self: Validation, model: Any, examples: Any, most: int) -> Any:
        block = next(module for module in model.modules() if isinstance(module, Block))
        hook = block.feed_forward.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
        try:
            return inner(self, model, examples, most)
        finally:
            hook.remove()

    task, options = RUNS.get(run, (run, []))
    command = [*task_command(task, tmp_path), f"--training.precision={precision}", *options]
    if run == "span corruption":
        command = [part.replace("size=300", "size=400") for part in command if part != "--preset=bert-tiny"]
    if run == "adapter":
        assert cli.main([*task_command(task, tmp_path)[:-1], str(tmp_path / "base"), "--max-steps=1"]) == 0
        command = [part for part in command if not part.startswith("--model.")] + [f"--from={tmp_path / 'base'}"]
    monkeypatch.setattr(Validation, "_measured", measured)
    with pretend_gpu(no_float64) as watch:
        events = trained(command, watch)
    assert_within(counts(events), "step of training", events)
    assert {line.partition(":")[0] for _, line, _ in events} == {"util/to_device.py"}
    assert watch.pinned >= sum(events.values()), "a copy from memory that is not pinned makes the host wait"
    assert dtypes == {{"bf16": torch.bfloat16, "fp32": torch.float32}[precision]}


def test_the_loss_of_pairs_with_scores_is_that_of_the_cpu() -> None:
    texts, pairs = torch.randn(2, 6, 8)
    scores = torch.tensor([0.1, 0.7, 0.7, 0.0, 1.0, 0.4])
    expected = cosent(texts, pairs, scores, 0.05)
    with pretend_gpu() as watch:
        moved = texts.to(CUDA), pairs.to(CUDA), scores.to(CUDA)
        watch.events.clear()
        loss = cosent(*moved, 0.05)
        assert_within(counts(watch.events), "step of training", watch.events)
        assert_close(loss.cpu(), expected)


@pytest.mark.parametrize("options", [[], ["--training.tf32=false"]], ids=["default", "exact"])
def test_a_run_rounds_float32_products_by_default(
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


def test_rounded_uniform_numbers_stay_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[0.0, 1.0, float("-inf")]])
    monkeypatch.setattr("heedful.util.exact.WITHOUT_FLOAT64", {"cpu"})
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.full(size, 1 - 2**-53, dtype=torch.float64))
    numbers = token_choice.uniform_numbers(IDS[:1], 1, 1, 0)
    assert numbers.dtype == torch.float32
    assert token_choice.choose(scores, numbers[:, 0]).item() == 1, "a token of probability 0"


def test_new_weights_keep_the_random_state_of_the_gpu(tmp_path: Path) -> None:
    heedful.create("bert-tiny", seed=0).save_pretrained(tmp_path)
    expected = heedful.create("gpt-micro", seed=3).state_dict()
    with pretend_gpu():
        torch.cuda.default_generators[0].manual_seed(7)
        before = torch.cuda.default_generators[0].get_state(), torch.get_rng_state()
        model = heedful.create("gpt-micro", seed=3)
        model.folder.source = "a folder"
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
        add_adapter(model, LoraConfig(rank=4, targets=("query", "value")), seed=0)
        load_with_head(tmp_path, "sequence", seed=0, labels=3)
        assert torch.equal(before[0], torch.cuda.default_generators[0].get_state())
        assert torch.equal(before[1], torch.get_rng_state())
