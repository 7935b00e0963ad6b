"""Probes under all that happens to a model: copies, compilers, half precision, other modes, any order of leaving."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch._dynamo.eval_frame import _stance
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import heedful
from heedful import presets
from heedful.adapters import LoraConfig, add_adapter, merge
from heedful.config import AlibiPosition, RelativePosition
from heedful.errors import HeedfulError
from heedful.inspection import head_importance, intervene, observe, paths, record
from heedful.inspection.probe import AttentionProbe
from heedful.layers.attention_kernels import explicit_attention
from heedful.models import build
from tolerances import assert_close, is_close

IDS = torch.tensor([[3, 5, 8, 13, 21], [2, 9, 4, 4, 7]])
FIRST = "decoder.block.0.attention."
EVERY = ["pattern", "scores", "query", "mixed", "stream", "activation", "logits"]


def gpt(**stack: Any) -> Any:
    config = presets.get("gpt-micro")
    torch.manual_seed(0)
    model = build(replace(config, decoder=replace(config.decoder, **stack))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def is_left_alone(model: Any) -> bool:
    hooks = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    return not hooks and all(block.attention.probe is None for block in model.decoder.block)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_nobody_looks_at_a_copy(copied: Callable[[Any], Any]) -> None:
    """Neither while the model is looked at nor afterwards; what was seen of the model stays."""
    model = gpt()
    with record(model, EVERY) as seen, intervene(model, ["mixed", "pattern"], 0.0), observe(model, lambda *_: None):
        model(IDS[:1])
        before, twin = dict(seen), copied(model)
        twin(IDS)
        twin.generate(IDS, max_new_tokens=2)
        heedful.summary(model)
        assert all(seen[path] is tensor for path, tensor in before.items())
    assert twin.observers == ()
    assert all(block.attention.probe is None for block in twin.decoder.block)
    assert torch.equal(twin(IDS), model(IDS))
    with record(twin, EVERY) as other:
        twin(IDS)
    assert other.keys() == before.keys()
    assert all(seen[path] is tensor for path, tensor in before.items())


@torch.no_grad()
def test_any_order_of_entering_and_leaving() -> None:
    model = gpt()
    plain = model(IDS)
    makers: list[Callable[[], Any]] = [
        lambda: record(model, EVERY),
        lambda: intervene(model, ["pattern", "stream"], lambda x: x.flip(1)),
        lambda: intervene(model, "mixed", 0.0, heads=[1]),
        lambda: observe(model, lambda *_: None),
    ]
    for entered, left in itertools.product(itertools.permutations(range(4)), repeat=2):
        managers = {number: makers[number]() for number in entered}
        for number in entered:
            managers[number].__enter__()
        model(IDS)
        for number in left:
            managers[number].__exit__(None, None, None)
    assert is_left_alone(model)
    assert torch.equal(model(IDS), plain)


@pytest.mark.parametrize("own", [AttentionProbe(explicit_attention), explicit_attention])
def test_a_probe_of_ones_own_is_neither_ignored_nor_lost(own: Any) -> None:
    model = gpt()
    model.decoder.block[1].attention.probe = own
    for context in (record(model), intervene(model, "mixed", 0.0)):
        with pytest.raises(HeedfulError, match=r"probe of its own .* set attention\.probe = None first"), context:
            pass
    assert model.decoder.block[1].attention.probe is own
    model.decoder.block[1].attention.probe = None
    assert is_left_alone(model)


def test_edited_keys_of_rows_that_shared_them_keep_each_row_s_mask() -> None:
    """Rows 0 and 1 of the queries share the first keys and mask, rows 2 and 3 the second; only row 1 is edited."""
    q, k, v = torch.randn(4, 2, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])[:, None, None]
    probe = AttentionProbe(explicit_attention)
    probe.taps["key"].edits.append(lambda keys: keys * torch.tensor([1.0, 2.0, 1.0, 1.0])[:, None, None, None])
    expected = [
        explicit_attention(q[[row]], (2 if row == 1 else 1) * k[[row // 2]], v[[row // 2]], mask[[row // 2]], None, 0.3)
        for row in range(4)
    ]
    torch.testing.assert_close(probe(q, k, v, mask, None, 0.3, 0.0), torch.cat(expected))


def test_a_kernel_that_is_set_meanwhile_stays() -> None:
    model = gpt()
    with record(model):
        model(IDS)
        for block in model.decoder.block:
            block.attention.attend = explicit_attention
    assert all(block.attention.attend is explicit_attention for block in model.decoder.block)


def test_nothing_is_kept_alive() -> None:
    model = gpt()
    with record(model, paths(model)) as seen, observe(model, lambda *_: None):
        model(IDS)
        model.generate(IDS, max_new_tokens=3)
    held = [ref(model), *map(ref, seen.values())]
    del model, seen
    gc.collect()
    assert all(one() is None for one in held)


# ------------------------------------------------------------------------------------------------------------ compilers


@torch.no_grad()
def test_the_compiler_is_as_it_was_when_the_last_has_left() -> None:
    model = gpt()
    compiled = torch.compile(model, backend="eager")
    plain, before = compiled(IDS), copy.copy(_stance)
    first, second = record(compiled, "stream"), record(compiled, "stream")
    first.__enter__()
    seen = second.__enter__()
    compiled(IDS)
    first.__exit__(None, None, None)
    seen.clear()
    compiled(IDS)
    assert len(seen) == 5
    second.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance == before
    assert torch.equal(compiled(IDS), plain)


@torch.no_grad()
def test_compiled_code_around_a_model_is_seen_and_changed() -> None:
    """The model itself is not compiled, but a function that calls it, whole."""
    model = gpt()
    around = torch.compile(lambda ids: 2 * model(ids), backend="eager", fullgraph=True)
    plain = around(IDS)
    with record(model, "stream") as seen:
        assert torch.equal(around(IDS), plain)
    assert len(seen) == 5
    with intervene(model, "block.3.stream", 0.0):
        assert not is_close(around(IDS), plain)


@torch.no_grad()
def test_a_compiled_part_keeps_its_path() -> None:
    model = gpt()
    names = paths(model)
    model.decoder.block[1] = torch.compile(model.decoder.block[1], backend="eager", fullgraph=True)
    assert sorted(paths(model)) == sorted(names)
    holder = torch.nn.Module()
    holder.text_module = model
    assert paths(holder)[0] == "text_module.embedding.embedded"


# ---------------------------------------------------------------------------------------- modes, precision and adapters


@torch.no_grad()
@pytest.mark.parametrize("changed", [False, True])
def test_autocast_does_not_round_weights(changed: bool) -> None:
    model = gpt()
    with torch.autocast("cpu", torch.bfloat16), record(model, ["query", "key", "scores", "pattern"]) as seen:
        if changed:
            with intervene(model, "pattern", lambda x: x):
                model(IDS)
        else:
            model(IDS)
    q, k = seen[f"{FIRST}query"].double(), seen[f"{FIRST}key"].double()
    scores = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(~torch.ones(5, 5).tril().bool(), float("-inf"))
    assert seen[f"{FIRST}pattern"].dtype == seen[f"{FIRST}scores"].dtype == torch.float32
    assert_close(seen[f"{FIRST}scores"].double(), scores, dtype=torch.float32)
    assert_close(seen[f"{FIRST}pattern"].double(), scores.softmax(-1), dtype=torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("position", [AlibiPosition(), RelativePosition()], ids=lambda position: position.kind)
def test_a_pattern_is_changed_in_half_precision(position: Any) -> None:
    """The bias is a float32 one; what is left as it is makes what the kernel made, but for the last bit."""
    model = gpt(position=position).bfloat16()
    with record(model, "mixed") as kernel:
        model(IDS)
    with intervene(model, "pattern", lambda x: x), record(model, ["mixed", "pattern"]) as seen:
        model(IDS)
    assert seen[f"{FIRST}pattern"].dtype == torch.float32
    torch.testing.assert_close(seen[f"{FIRST}mixed"], kernel[f"{FIRST}mixed"], atol=0.02, rtol=0.02)


def test_tensors_recorded_in_inference_mode_may_be_trained_on() -> None:
    model = gpt()
    with torch.inference_mode(), record(model, EVERY) as seen, observe(model, lambda *found: parts.append(found[1])):
        parts: list[Tensor] = []
        model(IDS)
    for tensor in [*seen.values(), *parts]:
        gate = torch.ones(1, requires_grad=True)
        (tensor * gate).sum().backward()
        assert gate.grad is not None


def test_importance_where_parts_are_run_again_for_the_backward_pass() -> None:
    model = gpt()
    expected = head_importance(model, lambda: model(IDS).square().sum())
    for block in model.decoder.block:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    with torch.inference_mode():
        found = head_importance(model, lambda: model(IDS).square().sum())
    assert_close(found, expected)


@torch.no_grad()
def test_an_adapter_is_put_on_and_merged_while_one_looks() -> None:
    model = gpt()
    with record(model, EVERY) as seen:
        add_adapter(model, LoraConfig(rank=2))
        model(IDS)
        before = dict(seen)
        merge(model)
        model(IDS)
    for path, tensor in before.items():
        assert_close(seen[path], tensor)
    assert is_left_alone(model)


# ------------------------------------------------------------------------------------------------------ what is changed


@torch.no_grad()
def test_a_change_may_work_in_place() -> None:
    """On a cache it would be made again at each step."""
    model = gpt()
    made = []
    for change in (lambda x: x.add_(1.0), lambda x: x + 1.0):
        with intervene(model, ["value", "stream"], change), record(model, "value") as seen:
            model.generate(IDS, max_new_tokens=6)
        made.append(seen[f"{FIRST}value"])
    assert torch.equal(*made)


def test_a_change_that_returns_nothing() -> None:
    model = gpt()
    with pytest.raises(HeedfulError, match="returned nothing"), intervene(model, "mixed", lambda x: None):
        model(IDS)
    assert is_left_alone(model)


@pytest.mark.parametrize(("given", "said"), [([], "empty"), (0, r"give \[0\]")])
@pytest.mark.parametrize("what", ["layers", "heads", "queries"])
def test_nothing_asked_for(what: str, given: Any, said: str) -> None:
    with pytest.raises(HeedfulError, match=f"{what} is.*{said}"), record(gpt(), **{what: given}):
        pass


# --------------------------------------------------------------------------------------------------------- what is held


class Whole(TorchDispatchMode):
    """The operations that make a tensor of T × S numbers or more, views not counted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.found = size, list[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dim() > 1 and made.numel() >= self.size and not op.is_view:
            self.found.append(str(op))
        return made


@torch.no_grad()
@pytest.mark.parametrize("position", [AlibiPosition(), RelativePosition()], ids=lambda position: position.kind)
def test_to_observe_makes_nothing_of_the_size_of_a_pattern(position: Any) -> None:
    """A bias by head and query is the model's own, and is not copied for each few queries."""
    model, ids = gpt(position=position), torch.randint(50, (1, 300))
    with Whole(300 * 300) as alone:
        model(ids)
    assert alone.found
    with Whole(300 * 300) as observed, observe(model, lambda *_: None, heads=[3, 1], rows=20):
        model(ids)
    assert observed.found == alone.found
