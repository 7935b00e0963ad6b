"""Plans of kernels: the same outputs, in any order, removable, visible, and never over a part of one's own."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import cli
from heedful.config import DropoutRates, StackConfig
from heedful.kernels import PLANS, Plan, apply_plan, using
from heedful.kernels.blocked_attention import blocked_attention
from heedful.kernels.cpu_dropout import cpu_dropout
from heedful.kernels.onednn_linear import emulates_bfloat16, onednn_linear
from heedful.kernels.plan import (
    AUTO,
    apply_training_plan,
    attending,
    decoding_kernels,
    filled_slots,
    recomputed,
    two_query_attention,
)
from heedful.kernels.unpadded import (
    unpadded_inference,
    unpadded_training,
)
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import explicit_attention, fused_attention
from heedful.layers.block import Block, Residual
from heedful.layers.dropout import Dropout, DropPath
from heedful.layers.linear import Linear, ScaledLinear
from heedful.layers.norm import Identity, LayerNorm
from heedful.models import Model
from heedful.pretrained.scaled_output import scale_output
from heedful.stack import Stack, padded, set_drop_path
from tolerances import approx, assert_close

IDS = torch.tensor([[5, 7, 9, 4], [6, 3, 0, 0]])
NAMES = [*PLANS]


def encoder() -> Model:
    return heedful.create("bert-tiny", seed=0)


def kernels(model: nn.Module) -> list[Any]:
    """The kernel of every part, in order, and the name of every model's plan."""
    slots = {
        Block: "run",
        Residual: "add",
        Attention: "attend",
        Linear: "linear",
        Dropout: "dropout",
        Stack: "layout",
        Model: "kernels",
    }
    return [getattr(part, slot) for part in model.modules() for kind, slot in slots.items() if isinstance(part, kind)]


def losses(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """A loss over real tokens, without dropout, and its gradients.

    A sum of squares would be constant under the norm that ends the stack: its gradients would be rounding errors alone.
    """
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, Attention):
            part.dropout = 0.0
    loss = model(IDS, IDS > 0)[IDS > 0].exp().mean()
    return loss.detach(), list(torch.autograd.grad(loss, list(model.encoder.parameters())))


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_applied_twice_is_applied_once(name: str) -> None:
    once = apply_plan(encoder(), name)
    assert kernels(apply_plan(copy.deepcopy(once), name)) == kernels(once)
    assert once.kernels == name


@pytest.mark.parametrize("last", NAMES)
def test_the_plans_before_make_no_difference(last: str) -> None:
    model, expected = encoder(), kernels(apply_plan(encoder(), last))
    for first in NAMES:
        assert kernels(apply_plan(apply_plan(model, first), last)) == expected


def test_each_part_gets_the_kernel_of_its_plan() -> None:
    model = apply_plan(encoder(), "cpu-training")
    assert model.encoder.layout is unpadded_training
    assert model.encoder.block[0].attention.attend is blocked_attention
    assert model.encoder.dropout.dropout is cpu_dropout
    apply_plan(model, "cpu-inference")
    assert model.encoder.layout is unpadded_inference
    assert model.encoder.block[0].attention.attend is fused_attention
    assert model.encoder.dropout.dropout is F.dropout


@pytest.mark.parametrize("name", NAMES)
def test_after_removal_outputs_are_those_of_a_fresh_model_bit_for_bit(name: str) -> None:
    fresh, model = encoder().eval(), apply_plan(encoder().eval(), name)
    apply_plan(model, "plain")
    assert kernels(model) == kernels(apply_plan(fresh, "plain"))
    assert torch.equal(model(IDS, IDS > 0), fresh(IDS, IDS > 0))
    (loss, gradients), (expected, others) = losses(model), losses(encoder())
    assert torch.equal(loss, expected)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_those_of_the_plain_plan(name: str) -> None:
    plain, model = encoder().double().eval(), apply_plan(encoder().double().eval(), name)
    real = IDS > 0
    assert_close(model(IDS, real)[real], plain(IDS, real)[real], "gradient")
    (loss, gradients), (expected, others) = losses(model), losses(plain)
    assert_close(loss, expected)
    for ours, theirs in zip(gradients, others, strict=True):
        assert_close(ours, theirs, "gradient")


@pytest.mark.parametrize("name", NAMES)
def test_classes_forwards_weights_and_their_names_stay(name: str) -> None:
    model = encoder()
    classes, state = [type(part) for part in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
    apply_plan(model, name)
    assert [type(part) for part in model.modules()] == classes
    assert not any("forward" in vars(part) for part in model.modules())
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_a_context_gives_each_part_what_it_had() -> None:
    for before in ("plain", "cpu-training"):
        model = apply_plan(encoder(), before)
        expected = kernels(model)
        with suppress(RuntimeError), using(model, "cpu-inference"):
            assert model.encoder.layout is unpadded_inference
            model.encoder.block[0].attention.attend = explicit_attention
            raise RuntimeError
        assert model.encoder.block[0].attention.attend is explicit_attention  # put there meanwhile
        model.encoder.block[0].attention.attend = expected[kernels(model).index(explicit_attention)]
        assert kernels(model) == expected


def test_two_contexts_that_overlap_leave_nothing_behind() -> None:
    model = heedful.create("gpt-micro", seed=0)
    expected = kernels(model)
    first, second = decoding_kernels(model), decoding_kernels(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert kernels(model) == expected


def test_print_shows_the_plan_and_the_kernels() -> None:
    model = encoder()
    plain = str(model)
    assert "kernels=" not in plain
    shown = str(apply_plan(model, "cpu-training"))
    assert shown.splitlines()[1].strip() == "kernels='cpu-training'"
    for kernel in ("layout=unpadded_training", "attend=blocked_attention", "dropout=cpu_dropout"):
        assert kernel in shown
    assert "kernels='plain'" in str(apply_plan(model, "plain"))
    assert str(model).replace("  kernels='plain'\n", "") == plain
    assert "kernels='cpu-inference'" in str(heedful.optimize(model, compiled_decoding=False))


def test_a_part_of_ones_own_keeps_what_it_has() -> None:
    class Own(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, scale: float, dropout: float) -> Tensor:
        assert k.dim() == 4  # never a row's
        assert len(k) == len(IDS)
        return fused_attention(q, k, v, mask, bias, scale, dropout)

    model = encoder().eval()
    block, plain = model.encoder.block[0], nn.Linear(128, 128)
    block.attention.attend, block.attention.query, block.attention.value = attend, Own(128, 128), plain
    block.feed_forward.down.linear = own = lambda x, weight, bias: F.linear(x, weight, bias)
    block.feed_forward.dropout.forward = forward = lambda x: x
    expected = model(IDS, IDS > 0)
    for name in NAMES:
        apply_plan(model, name)
        assert block.attention.attend is attend
        assert block.attention.query.linear is F.linear
        assert block.attention.value is plain
        assert block.feed_forward.down.linear is own
        assert block.feed_forward.dropout.forward is forward
        assert block.feed_forward.dropout.dropout is F.dropout
        assert_close(model(IDS, IDS > 0), expected)
        model.train()
        model(IDS, IDS > 0).sum().backward()
        model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_keep_the_plan(name: str) -> None:
    model = apply_plan(encoder().eval(), name)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kernels(copied) == kernels(model)
        assert torch.equal(copied(IDS, IDS > 0), model(IDS, IDS > 0))


def test_a_plan_of_ones_own_and_an_unknown_one() -> None:
    model = apply_plan(encoder(), Plan("mine", layout=unpadded_inference, attend=fused_attention))
    assert (model.kernels, model.encoder.layout, model.encoder.dropout.dropout) == (
        "mine",
        unpadded_inference,
        F.dropout,
    )
    with pytest.raises(heedful.HeedfulError, match="'plane'; did you mean 'plain'"):
        apply_plan(model, "plane")


def test_generation_chooses_unless_a_plan_was_applied(tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    model, plain = heedful.from_pretrained(tmp_path), heedful.from_pretrained(tmp_path, kernels="plain")
    assert (model.kernels, plain.kernels) == (AUTO, "plain")
    seen: list[str] = []
    for each in (model, plain):
        handle = each.decoder.register_forward_hook(lambda *_, each=each: seen.append(each.kernels))
        assert each.generate(ids, max_new_tokens=3).shape == (1, 6)
        handle.remove()
    assert [name for name, _ in itertools.groupby(seen)] == ["cpu-decoding", "plain"]
    assert torch.equal(model.generate(ids, max_new_tokens=9), plain.generate(ids, max_new_tokens=9))
    assert model.kernels == AUTO
    assert model.decoder.layout is padded
    with pytest.raises(heedful.HeedfulError, match="plain"):
        heedful.from_pretrained(tmp_path, kernels="plane")


def test_training_takes_the_plan_of_the_device_or_the_one_that_is_given() -> None:
    assert apply_training_plan(encoder()).kernels == "cpu-training"
    assert apply_training_plan(encoder().to("meta")).kernels == "gpu"
    assert kernels(apply_training_plan(encoder(), "plain")) == kernels(apply_plan(encoder(), "plain"))


def test_a_block_that_is_computed_again_gives_the_same_losses_and_gradients() -> None:
    """To rounding: under the hook that counts the calls padding is computed too, so that products have other shapes."""
    for name in (AUTO, "plain"):
        model = apply_training_plan(encoder(), name, recompute=True)
        assert model.encoder.block[0].run is recomputed
        calls: list[int] = []
        model.encoder.block[0].feed_forward.up.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        (loss, gradients), (expected, others) = losses(model), losses(apply_training_plan(encoder(), name))
        assert len(calls) == 2
        assert_close((loss, *gradients), (expected, *others), "gradient")
        model.eval()(IDS)
        assert len(calls) == 3


@pytest.mark.parametrize("option", ["recompute", "compile_blocks"])
def test_a_block_with_a_forward_of_its_own_is_named(option: str) -> None:
    """The option was accepted, and did nothing for such blocks."""

    class Own(Block):
        def forward(self, x: Any, *given: Any, **context: Any) -> Any:
            return super().forward(x, *given, **context)

    model = encoder()
    model.encoder.block[1] = Own(model.config.encoder)
    with pytest.raises(heedful.HeedfulError, match="has no effect on the block Own, which has a forward of its own"):
        apply_training_plan(model, **{option: True})


def test_records_are_the_same_under_a_plan_that_comes_meanwhile() -> None:
    model = encoder().eval()
    with heedful.record(model, "pattern") as expected:
        model(IDS)
    with heedful.record(model, "pattern") as seen:
        apply_plan(model, "cpu-inference")
        model(IDS, IDS > 0)
    assert seen.keys() == expected.keys()
    for path, pattern in expected.items():
        assert_close(seen[path][0], pattern[0])
    assert kernels(model) == kernels(apply_plan(encoder(), "cpu-inference"))


def test_a_run_with_plain_kernels_has_the_same_losses(tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    lines = [f"{w} day {'and night ' * (n % 4)}{n}\t{w}\n" for w in ("good", "bad") for n in range(20)]
    data.write_text("".join(lines), encoding="utf-8")
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--tokenizer.size=60", "--max-steps=6"]
    small += ["--model.dropout=0", "--training.log-every=1", "--training.evaluate-every=3"]
    found = {}
    for name in ("auto", "plain"):
        out = tmp_path / name
        run = ["train", "text-classification", "--train", str(data), "--out", str(out), *small]
        assert cli.main([*run, "--training.kernels", name]) == 0
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        found[name] = [row["loss"] for row in rows if "loss" in row]
        assert f'kernels = "{name}"' in (out / "run.toml").read_text(encoding="utf-8")
    assert len(found["auto"]) >= 6
    assert found["auto"] == approx(found["plain"], "gradient")


@torch.no_grad()
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "out"])
def test_a_residual_calls_a_slot_that_is_filled_or_drops(placement: Any) -> None:
    stack = Stack(StackConfig(dim=16, depth=1, heads=4, placement=placement, dropout=DropoutRates(residual=0.5))).eval()
    x, residual = torch.randn(2, 3, 16), stack.block[0].attention_residual
    expected = stack(x)
    apply_plan(stack, "cpu-inference")
    assert residual.add is filled_slots
    assert torch.equal(stack(x), expected)
    residual.dropout.train()  # dropout that stays on in evaluation, as for Monte Carlo estimates
    assert not torch.equal(stack(x), expected)
    residual.dropout.eval()
    residual.out, residual.after = LayerNorm(16, 0.5), LayerNorm(16, 2.0)
    assert torch.equal(stack(x), apply_plan(copy.deepcopy(stack), "plain")(x))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_training_calls_no_slot_that_is_empty_or_drops_nothing(rate: float) -> None:
    config = StackConfig(dim=16, depth=2, heads=4, placement="pre", dropout=DropoutRates(residual=rate))
    stack, x, called = Stack(config).train(), torch.randn(2, 3, 16), []
    set_drop_path(stack, rate)
    torch.manual_seed(1)
    expected = apply_plan(stack, "plain")(x)
    for name, part in stack.block.named_modules():
        if type(part) in (Identity, Dropout, DropPath) and "_residual." in name:
            part.register_forward_hook(lambda part, inputs, output: called.append(type(part)))
    torch.manual_seed(1)
    assert_close(apply_plan(stack, "cpu-training")(x), expected, "forward")
    assert called == ([Dropout] * 2 + [Dropout, DropPath] * 2 if rate else [])  # the first block keeps every path


def test_stochastic_depth_drops_whole_sequences_under_the_plan_for_training() -> None:
    stack = Stack(StackConfig(dim=16, depth=1, heads=4, placement="post")).train()
    stack.block[0].attention_residual.after = stack.block[0].feed_forward_residual.after = Identity()
    set_drop_path(stack, 0.5)
    x, real = torch.randn(32, 3, 16), torch.ones(32, 3, dtype=torch.bool)
    real[:, 2] = False
    torch.manual_seed(1)
    expected = apply_plan(stack, "plain")(x, real)
    torch.manual_seed(1)
    assert_close(apply_plan(stack, "cpu-training")(x, real), expected, "forward")


def test_a_plan_reaches_the_output_map_of_a_regression() -> None:
    model = heedful.create("bert-tiny", head="sequence", num_labels=1, seed=0).eval()
    scale_output(model.head, 4.0, None)
    assert isinstance(model.head.output, ScaledLinear)
    apply_plan(model, "cpu-inference")
    assert model.head.output.linear is onednn_linear


def test_a_gpus_sublayers_get_their_input_in_autocasts_dtype() -> None:
    """Cast once, after the norm; the stream stays in float32."""
    residual, seen = apply_plan(Residual(StackConfig(dim=8, depth=1, heads=2)), "gpu"), list[torch.dtype]()
    x = torch.randn(2, 3, 8)

    def sublayer(inner: Tensor) -> Tensor:
        seen.append(inner.dtype)
        return inner

    plain = residual(x, None, sublayer)
    with torch.autocast("cpu", torch.bfloat16):
        y = residual(x, None, sublayer)
    assert seen == [torch.float32, torch.bfloat16]
    assert y.dtype is torch.float32
    assert_close(y, plain, dtype=torch.bfloat16)


@pytest.mark.parametrize(("kv_heads", "queries"), [(4, 1), (2, 1), (4, 3)])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "bias"])
def test_attention_of_two_queries_is_that_of_one(kv_heads: int, queries: int, kind: str) -> None:
    q, k, v = torch.randn(3, 4, queries, 8), torch.randn(3, kv_heads, 16, 8), torch.randn(3, kv_heads, 16, 8)
    given = {
        "none": (None, None),
        "causal": ("causal", None),
        "boolean": (torch.rand(3, 1, 1, 16) < 0.7, None),
        "bias": (None, torch.randn(3, 4, queries, 16)),
    }[kind]
    assert_close(two_query_attention(q, k, v, *given, 0.3), explicit_attention(q, k, v, *given, 0.3), "layer")


@pytest.mark.parametrize("plan", ["plain", "cpu-inference"])
def test_attention_is_replaced_while_entered(plan: str) -> None:
    model = apply_plan(heedful.create("gpt-micro", seed=0), plan)
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    before = [part.attend for part in attentions]
    attentions[0].attend = custom = PLANS["export"].attend  # not PyTorch's fused attention: it stays
    with suppress(ZeroDivisionError), attending(model, two_query_attention):
        assert [part.attend for part in attentions] == [custom, *[two_query_attention] * (len(attentions) - 1)]
        raise ZeroDivisionError
    assert [part.attend for part in attentions] == [custom, *before[1:]]
    with attending(model, None):
        assert [part.attend for part in attentions[1:]] == before[1:]


@pytest.mark.parametrize(
    ("capabilities", "emulates"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, True),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, False),
        ({"bf16": True}, False),
        ({}, False),  # unknown: as oneDNN says
    ],
)
def test_bfloat16_is_native_only_with_its_instructions(
    capabilities: dict[str, bool], emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN says that it has bfloat16 on processors with AVX-512 alone too."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr("heedful.kernels.onednn_linear.has_onednn", lambda dtype: True)
    assert emulates_bfloat16(cpu) == emulates
    monkeypatch.setattr("heedful.kernels.onednn_linear.has_onednn", lambda dtype: False)
    assert emulates_bfloat16(cpu)
