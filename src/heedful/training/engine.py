"""Engines for one or several processes: PyTorch's DDP and ``fully_shard``, wrapped around the model.

Each rank takes a share of a step's micro-batches. All ranks end the step with the gradient that a single process would
compute:

* :class:`Alone`: one process;
* :class:`Replicated`: each rank has the whole model, and gradients are averaged (``DistributedDataParallel``; Li et
  al. 2020);
* :class:`Sharded`: each rank has a shard of the weights, gradients and optimiser, and gathers a block's weights while
  it computes (``fully_shard``; Rajbhandari et al. 2020, ZeRO stage 3; Zhao et al. 2023).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.layers.block import Block
from heedful.util.ranks import Ranks
from heedful.util.sharding import among

Batch = Mapping[str, Tensor]
LossFunction = Callable[[Any, Batch], Tensor]  # model and batch → the loss summed over the batch
BROADCAST = next(  # DDP's option that buffers are broadcast in each forward pass; the second before PyTorch 2.13
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(nn.parallel.DistributedDataParallel).parameters
)
OWN = ("heedful", "torch")  # packages whose modules use the same parameters for every batch


class Alone:
    """Engine for one process: wraps the loss function, and saves and restores model and optimiser.

    It is the base class of the other engines.
    """

    needs_all = False  # True: every rank writes a part of a checkpoint

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()

    @property
    def writes(self) -> bool:
        """True if this rank writes a checkpoint or a part of it."""
        return self.needs_all or self.ranks.is_first

    def wrap(self, model: nn.Module, loss: LossFunction, same_parameters: bool = False) -> LossFunction:
        """Returns the loss function to call in training; call ``wrap`` before you create the optimiser.

        ``same_parameters``: the loss of every batch depends on the same parameters (:func:`uses_same_parameters`).
        """
        return loss

    def sync(self, last: bool) -> AbstractContextManager[Any]:
        """Returns the context manager for a forward and backward pass of a step.

        Gradients are averaged over the ranks in the ``last`` pass of the step only.
        """
        return nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Returns the gradient norm √Σ g² over the whole model."""
        return nn.utils.get_total_norm(gradients)

    def evaluating(self, model: nn.Module) -> AbstractContextManager[None]:
        """Returns a context manager for evaluation, in which all ranks call the model with the same inputs."""
        return among(self.ranks)

    def whole(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Returns a context manager that yields the model with whole weights on rank 0, and None on other ranks."""
        return nullcontext(model if self.ranks.is_first else None)

    def state(self, model: nn.Module, optimiser: Any) -> dict[str, Any]:
        """Returns the state of model and optimiser for a checkpoint, without frozen parameters."""
        frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
        weights = {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
        return {"model": weights, "optimiser": optimiser.state_dict()}

    def restore(self, model: nn.Module, optimiser: Any, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from :meth:`state`; raises ``ValueError`` or ``RuntimeError`` if it does not fit."""
        if different := state["model"].keys() ^ self.state(model, optimiser)["model"].keys():
            raise RuntimeError(f"in the model or the checkpoint, but not in both: {', '.join(sorted(different))}")
        model.load_state_dict(state["model"], strict=False)
        optimiser.load_state_dict(state["optimiser"])


class ModelWithLoss(nn.Module):
    """A model and its loss function as one module, which DDP and ``fully_shard`` wrap."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss summed over the batch; 0 for an empty batch."""
        return self.loss(self.model, batch) if batch else torch.zeros(())


def uses_same_parameters(model: nn.Module, *code: object) -> bool:
    """Returns True if the loss of every batch depends on the same parameters, so that DDP need not search for others.

    True for Heedful's and PyTorch's modules and tasks; False if a module, function or task is custom.

    Args:
        model: the model.
        *code: the classes and functions that compute the loss.
    """
    parts = [value for part in model.modules() for value in (type(part), *vars(part).values()) if callable(value)]
    functions = [part.func if isinstance(part, partial) else part for part in (*parts, *code)]
    return all(str(getattr(function, "__module__", "")).partition(".")[0] in OWN for function in functions)


def parameters_of(loss: Tensor) -> set[Tensor]:
    """Returns the parameters on which a loss depends, the leaves of its autograd graph.

    >>> part = nn.Linear(2, 2)
    >>> parameters_of(part(torch.ones(2)).sum()) == {part.weight, part.bias}
    True
    """
    seen: set[Any] = set()
    nodes: list[Any] = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [node for node, _ in node.next_functions]
    return {node.variable for node in seen if hasattr(node, "variable")}


class Replicated(Alone):
    """Engine for several ranks with the whole model on each; an evaluation shards its batches over the ranks."""

    def wrap(self, model: nn.Module, loss: LossFunction, same_parameters: bool = False) -> LossFunction:
        """Returns the loss function under ``DistributedDataParallel``, which averages gradients during backward."""
        self._module, self._ddp, self._syncs = ModelWithLoss(model, loss), None, True
        if not same_parameters:
            self._ddp = self._replicated(find_unused=True)
        return self._loss

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self._ddp is None:
            self._ddp = self._replicated(self._has_unused(batch))
        with nullcontext() if self._syncs else self._ddp.no_sync():
            return cast(Tensor, self._ddp(batch))

    def _replicated(self, find_unused: bool) -> nn.parallel.DistributedDataParallel:
        """Returns the module under DDP.

        With ``find_unused`` DDP searches the autograd graph in each step for parameters without a gradient, such as a
        pooler without a loss, and the ranks agree on them in one more collective. If all buffers are non-persistent
        (tables of positions), they are constants, and none is broadcast.
        """
        module = self._module
        device, state = next(module.parameters()).device, module.state_dict()
        has_only_constants = not any(name in state for name, _ in module.named_buffers())
        options: dict[str, Any] = {BROADCAST: False} if has_only_constants else {}
        return nn.parallel.DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=True,  # gradients are summed where they are: no second copy of them
            **options,
        )

    def _has_unused(self, batch: Batch) -> bool:
        """Returns True if, on any rank, the loss of the rank's ``batch`` does not depend on all trainable parameters.

        Restores the random state and the buffers.
        """
        module, device = self._module, next(self._module.parameters()).device
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            used = parameters_of(module(batch))
        for buffer, before in buffers:
            buffer.copy_(before)
        unused = any(p.requires_grad and p not in used for p in module.parameters())
        return self.ranks.sum(unused)[0] > 0

    def sync(self, last: bool) -> AbstractContextManager[Any]:
        """Sets whether gradients are averaged over the ranks: only in a step's ``last`` backward pass.

        Returns an empty context manager: ``DistributedDataParallel.no_sync`` must enclose the forward pass, in
        ``_loss``.
        """
        self._syncs = last  # read by ``_loss``: DDP decides in the forward pass
        return nullcontext()


class Sharded(Alone):
    """Engine with a shard of the model on each rank; all ranks evaluate together, with the same inputs.

    A run of several ranks can be resumed with one rank; then nothing is sharded.

    Args:
        ranks: the ranks of the run.
        bf16: if True, blocks compute with bfloat16 copies of their weights; gradients are summed in float32.
        device: device of the shards. The model that is wrapped lies on the CPU.
    """

    needs_all = True

    def __init__(self, ranks: Ranks, bf16: bool = False, device: torch.device | str = "cpu") -> None:
        super().__init__(ranks)
        self.bf16, self.device = bf16, torch.device(device)
        self._root: Any = None
        self._whole_model: nn.Module | None = None

    def wrap(self, model: nn.Module, loss: LossFunction, same_parameters: bool = False) -> LossFunction:
        """Shards the model's weights, and returns the loss function of the sharded model.

        Each block is a unit of sharding; all other weights are one more unit. ``fully_shard`` moves a unit with its
        buffers to the device, and frees what is not of this rank's shard before the next one: the device never holds
        more than the shards and one whole unit, as in the forward pass.
        """
        if self.ranks.size == 1:
            model.to(self.device)
            return loss
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        weights = [id(parameter) for block in blocks for parameter in block.parameters()]
        if len({*weights}) < len(weights):
            raise HeedfulError("the blocks share their weights, which --training.shard cannot divide; leave it out")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if self.ranks.is_first:
            self._whole_model = copy.deepcopy(model)  # on the CPU; weights are gathered into it for writing
        mesh = init_device_mesh(self.device.type, (self.ranks.size,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.bf16 else MixedPrecisionPolicy()
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._root = fully_shard(ModelWithLoss(model, loss), mesh=mesh, mp_policy=policy)
        with torch.no_grad():
            self._root(
                {}
            )  # the first forward makes the root: an evaluation before the first step would make a block it
        self._root.reshard()
        return lambda model, batch: cast(Tensor, self._root(batch))

    def sync(self, last: bool) -> AbstractContextManager[Any]:
        """Returns a context manager that sums gradients over the ranks only in the ``last`` backward pass of a step."""
        if self._root is not None:
            self._root.set_requires_gradient_sync(last)
        return nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Returns the gradient norm over all shards."""
        norm = super().norm(gradients)
        return norm.full_tensor() if self._root is not None else norm  # type: ignore[attr-defined]  # a DTensor

    @contextmanager
    def evaluating(self, model: nn.Module) -> Iterator[None]:
        """Context manager for evaluation: gathers weights outside the blocks; all ranks compute each batch together."""
        if self._root is None:
            yield
            return
        self._root.unshard()
        try:
            yield
        finally:
            self._root.reshard()

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[Any]:
        """Context manager that yields a copy of the model with gathered weights on rank 0's CPU, and None elsewhere."""
        if self._root is None:
            yield model
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self._whole_model is not None:
            self._whole_model.load_state_dict(weights)
        yield self._whole_model

    def state(self, model: nn.Module, optimiser: Any) -> dict[str, Any]:
        """Returns this rank's shards of weights and optimiser state, by the parameters' names."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(ignore_frozen_params=True)
        weights, optimiser_state = get_state_dict(model, parts_of(optimiser), options=options)
        return {"model": weights, "optimiser": optimiser_state}

    def restore(self, model: nn.Module, optimiser: Any, state: Mapping[str, Any]) -> None:
        """Restores this rank's shards from a ``state``, which another number of ranks may have saved."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        set_state_dict(
            model,
            parts_of(optimiser),
            model_state_dict=state["model"],
            optim_state_dict=state["optimiser"],
            options=StateDictOptions(ignore_frozen_params=True, strict=False),
        )


def parts_of(optimiser: Any) -> Any:
    """Returns the optimisers inside a combined optimiser (Muon with AdamW), or the optimiser itself."""
    return getattr(optimiser, "optimisers", optimiser)


def create_engine(ranks: Ranks, shard: bool, bf16: bool, device: torch.device) -> Alone:
    """Returns the engine for one rank or several; with ``shard`` no rank has the whole model on its ``device``."""
    if shard:
        return Sharded(ranks, bf16, device)
    return Alone() if ranks.size == 1 else Replicated(ranks)
