"""A mixture of experts against transformers' blocks and the formulae, in float64: outputs, gradients, losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MixtralConfig, SwitchTransformersConfig
from transformers.models.mixtral import modeling_mixtral
from transformers.models.switch_transformers import modeling_switch_transformers as modeling_switch

import heedful
from heedful.config import ExpertsConfig, StackConfig
from heedful.errors import HeedfulError
from heedful.kernels import apply_plan
from heedful.layers.block import feed_forward_of
from heedful.layers.experts import Expert, Experts, over_all, over_chosen
from heedful.stack import Stack
from heedful.training.router_loss import recording_routers, with_router_loss
from tolerances import assert_close

DIM, WIDTH, NUMBER = 6, 10, 4


def stack_config(experts: ExpertsConfig, **options: Any) -> StackConfig:
    return StackConfig(dim=DIM, depth=2, heads=2, ff_dim=WIDTH, ff_bias=False, experts=experts, **options)


def random(experts: Experts) -> Experts:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return experts.double().eval()


def inputs(length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, length, DIM, generator=generator, dtype=torch.float64)


class ExactRouter(nn.Module):
    """Mixtral's router in the precision of its input: theirs rounds to float32, whatever comes in."""

    def __init__(self, weight: Tensor, top: int) -> None:
        super().__init__()
        self.weight, self.top = nn.Parameter(weight), top

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(x.reshape(-1, DIM), self.weight)
        weights, choice = logits.softmax(-1).topk(self.top)
        return logits, weights / weights.sum(-1, keepdim=True), choice


@pytest.mark.parametrize("per_token", [1, 2, 4])
def test_equals_mixtral_with_gradients(per_token: int) -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER, per_token=per_token), gated=True)))
    sizes = {"hidden_size": DIM, "intermediate_size": WIDTH, "num_local_experts": NUMBER, "hidden_act": "gelu"}
    theirs = modeling_mixtral.MixtralSparseMoeBlock(MixtralConfig(**sizes, num_experts_per_tok=per_token)).double()
    theirs.experts.config._experts_implementation = "eager"
    theirs.gate = ExactRouter(experts.router.weight.detach().clone(), per_token)
    with torch.no_grad():
        for e, expert in enumerate(experts.expert):
            theirs.experts.gate_up_proj[e] = torch.cat((expert.gate.weight, expert.up.weight))
            theirs.experts.down_proj[e] = expert.down.weight
    x, y = inputs().requires_grad_(), inputs().requires_grad_()
    ours, reference = experts(x), theirs(y)
    assert_close(ours, reference, "layer")
    ours.square().sum().backward()
    reference.square().sum().backward()
    assert_close(x.grad, y.grad, "layer")
    assert_close(experts.router.weight.grad, theirs.gate.weight.grad, "layer")
    for e, expert in enumerate(experts.expert):
        both = torch.cat((expert.gate.weight.grad, expert.up.weight.grad))
        assert_close(both, theirs.experts.gate_up_proj.grad[e], "layer")
        assert_close(expert.down.weight.grad, theirs.experts.down_proj.grad[e], "layer")


@pytest.mark.parametrize("capacity", [1, 2, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_switch_transformers_with_gradients(capacity: int, bias: bool) -> None:
    config = ExpertsConfig(number=NUMBER, per_token=1, normalize=False, capacity=capacity, router_bias=bias)
    experts = random(feed_forward_of(stack_config(config, activation="relu")))
    theirs = modeling_switch.SwitchTransformersSparseMLP(
        SwitchTransformersConfig(
            d_model=DIM, d_ff=WIDTH, num_experts=NUMBER, expert_capacity=capacity, router_bias=bias, dropout_rate=0.0
        )
    )
    theirs.double().eval().router.dtype = torch.float64  # theirs rounds to float32, whatever comes in
    theirs.router.classifier.load_state_dict(experts.router.state_dict())
    for e, expert in enumerate(experts.expert):
        own = {"wi.weight": expert.up.weight, "wo.weight": expert.down.weight}
        theirs.experts[f"expert_{e}"].load_state_dict(own)
    x, y = inputs().requires_grad_(), inputs().requires_grad_()
    ours, reference = experts(x), theirs(y)
    assert_close(ours, reference, "layer")
    ours.square().sum().backward()
    reference.square().sum().backward()
    assert_close(x.grad, y.grad, "layer")
    assert_close(experts.router.weight.grad, theirs.router.classifier.weight.grad, "layer")
    for e, expert in enumerate(experts.expert):
        assert_close(expert.up.weight.grad, theirs.experts[f"expert_{e}"].wi.weight.grad, "layer")
    dropped = (experts.router(x) != 0).sum(-1) == 0
    assert bool(dropped.any()) == (capacity < 7)
    assert not ours[dropped].any()


@pytest.mark.parametrize("per_token", [1, 3])
def test_every_expert_over_every_token_is_the_same(per_token: int) -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER, per_token=per_token))))
    x = inputs().flatten(0, 1)
    weights = experts.router(x[None])[0]
    chosen, every = over_chosen(list(experts.expert), x, weights, per_token), over_all(list(experts.expert), x, weights)
    assert_close(chosen, every, "layer")
    assert over_chosen(list(experts.expert), x[:0], weights[:0], per_token).shape == (0, DIM)


def test_each_expert_computes_its_tokens_alone() -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER, per_token=1))))
    rows: list[int] = []
    for expert in experts.expert:
        expert.register_forward_hook(lambda _, args, output: rows.append(len(args[0])))
    with torch.no_grad():
        experts(inputs())
        assert sum(rows) == 21
        experts(inputs()[:1, :1])
    assert rows[-1] == 1
    assert len(rows) <= NUMBER + 1


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER, per_token=1))))
    experts(inputs()[:1, :1]).sum().backward()
    assert all(parameter.grad is not None for parameter in experts.parameters())
    assert sum(bool(expert.up.weight.grad.any()) for expert in experts.expert) == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("per_token", [1, 2])
def test_balance_loss_equals_mixtral_in_each_block(per_token: int, padded: bool) -> None:
    config = ExpertsConfig(number=NUMBER, per_token=per_token, balance=0.7)
    stack = Stack(stack_config(config)).double()
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5]) if padded else None
    logits: list[Tensor] = []
    for block in stack.block:
        nn.init.normal_(block.feed_forward.router.weight)
        block.feed_forward.router.register_forward_pre_hook(
            lambda router, args: logits.append(F.linear(args[0], router.weight).flatten(0, 1))
        )
    with recording_routers(stack) as router_loss:
        stack(inputs(), mask)
    real = None if mask is None else mask.long()
    theirs = sum(modeling_mixtral.load_balancing_loss_func((own,), NUMBER, per_token, real) for own in logits)
    assert abs(float(router_loss().detach() - 0.7 * theirs.detach())) < 1e-6  # theirs is in float32
    with recording_routers(stack) as router_loss:
        pass
    assert float(router_loss()) == 0
    assert all(block.feed_forward.router.loads is None for block in stack.block)


def test_losses_equal_switch_transformers() -> None:
    """Theirs are of each sequence, and of all blocks together; of one sequence and one block, ours are the same."""
    config = ExpertsConfig(number=NUMBER, per_token=1, normalize=False, balance=1.0)
    stack, x, logits = Stack(stack_config(config)).double(), inputs()[:1], []
    for block in stack.block:
        nn.init.normal_(block.feed_forward.router.weight)
        block.feed_forward.router.register_forward_pre_hook(
            lambda router, args: logits.append(F.linear(args[0], router.weight))
        )
    with recording_routers(stack) as router_loss:
        stack(x)
    theirs = sum(modeling_switch.load_balancing_loss_func(own.softmax(-1), own.argmax(-1)) for own in logits)
    assert abs(float(router_loss().detach() - theirs.detach())) < 1e-6  # theirs counts in float32
    logits.clear()
    for block in stack.block:
        block.feed_forward.router.config = replace(config, balance=0.0, z_loss=0.3)
    with recording_routers(stack) as router_loss:
        stack(x)
    assert_close(router_loss(), 0.3 * sum(map(modeling_switch.router_z_loss_func, logits)), "forward")


def test_padding_takes_no_capacity_and_changes_nothing() -> None:
    config = ExpertsConfig(number=2, per_token=1, normalize=False, capacity=2)
    stack, x = Stack(stack_config(config)).double().eval(), inputs()
    real = torch.tensor([[False] * 3 + [True] * 4, [True] * 7, [True] * 7])
    with torch.no_grad():
        padded, alone = stack(x, real)[0, 3:], stack(x[:1, 3:])[0]
        assert_close(padded, alone, "forward")
        assert_close(apply_plan(stack, "cpu-inference")(x, real)[0, 3:], alone, "forward")


@pytest.mark.parametrize("capacity", [0, 2])
def test_training_without_padding_has_the_same_loss_and_gradients(capacity: int) -> None:
    config = ExpertsConfig(number=NUMBER, per_token=2, capacity=capacity, balance=1.0, z_loss=1.0)
    gradients = []
    x = inputs().float()
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    for plan in ("plain", "cpu-training"):
        torch.manual_seed(0)
        stack = apply_plan(Stack(stack_config(config)), plan).train()
        loss = with_router_loss(lambda stack, batch: stack(x, real)[real].square().sum(), lambda batch: 3)
        loss(stack, {}).backward()
        gradients.append([parameter.grad for parameter in stack.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other, "gradient")


def test_packed_texts_count_as_texts_do_alone() -> None:
    stack = Stack(stack_config(ExpertsConfig(number=NUMBER, per_token=2), causal=True)).double().eval()
    x = inputs()[:1]
    with torch.no_grad():
        packed = stack(x, torch.tensor([[1, 1, 1, 2, 2, 2, 2]]))
        assert_close(packed[:, 3:], stack(x[:, 3:]), "forward")
    capped = Stack(stack_config(ExpertsConfig(capacity=2), causal=True)).double()
    with pytest.raises(HeedfulError, match="packed batch has several texts; set capacity to 0"):
        capped(x, torch.tensor([[1, 1, 1, 2, 2, 2, 2]]))


def test_step_chooses_the_blocks() -> None:
    def kinds(step: int, depth: int) -> list[bool]:
        config = replace(stack_config(ExpertsConfig(step=step)), depth=depth)
        return [isinstance(block.feed_forward, Experts) for block in Stack(config).block]

    assert kinds(1, 3) == [True, True, True]
    assert kinds(2, 4) == [False, True, False, True]
    assert kinds(3, 6) == [False, True, False, False, True, False]
    with pytest.raises(HeedfulError, match="none of 1 blocks has experts; give 1"):
        kinds(2, 1)


def test_jitter_is_noise_in_training_alone() -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER, jitter=0.5)))).train()
    assert not torch.equal(experts(inputs()), experts(inputs()))
    assert torch.equal(experts.eval()(inputs()), experts(inputs()))


def test_router_is_float32_in_half_precision() -> None:
    experts = random(feed_forward_of(stack_config(ExpertsConfig(number=NUMBER)))).bfloat16()
    x = inputs().bfloat16()
    assert experts.router(x).dtype == torch.float32
    assert experts(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(experts.float().router(x.float()), experts.router(x.float()))
        assert experts.router(x.float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 2, "per_token": 3}, "experts.per_token is 3, of 2 experts"),
        ({"jitter": 1.0}, "experts.jitter is 1.0; give a number from 0 to below 1"),
        ({"balance": -1.0}, "experts.balance is -1.0; give 0 or a finite number above it"),
        ({"step": 0}, "experts.step is 0; give at least 1"),
    ],
)
def test_invalid_configurations(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        ExpertsConfig(**options)


def test_configuration_is_stored_and_older_ones_have_none() -> None:
    config = stack_config(ExpertsConfig(number=3, per_token=1, step=2))
    assert StackConfig.from_dict(config.to_dict()) == config
    older = {key: value for key, value in config.to_dict().items() if key != "experts"}
    assert StackConfig.from_dict(older).experts is None


def test_experts_are_the_public_feed_forward() -> None:
    expert = Expert(DIM, WIDTH).double()
    one = Experts(DIM, ExpertsConfig(number=1, per_token=1), [expert]).double()
    assert_close(one(inputs()), expert(inputs()), "forward")
    assert heedful.layers.Experts is Experts
