"""Training on several processes: PyTorch's own engines (DDP, ``fully_shard``), put around the model from outside.

Each takes its share of a step's micro-batches, and all end the step with the same gradient, that of one process:

* :class:`Alone` — one process;
* :class:`Replicated` — each has the whole model, and gradients are averaged (``DistributedDataParallel``; Li et al.
  2020);
* :class:`Sharded` — each keeps a share of the weights, gradients and optimiser, and gathers a block's weights while it
  computes (``fully_shard``; Rajbhandari et al. 2020, ZeRO stage 3; Zhao et al. 2023).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.stack import Block
from heedful.util.ranks import Ranks
from heedful.util.sharding import among

Batch = Mapping[str, Tensor]
Objective = Callable[[Any, Batch], Tensor]


class Alone:
    """One process; also what the engines of several share."""

    needs_all = False  # whether every rank has a part in a checkpoint

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()

    @property
    def writes(self) -> bool:
        """True if this rank has to write something of a checkpoint."""
        return self.needs_all or self.ranks.first

    def learner(self, model: nn.Module, objective: Objective) -> Objective:
        """The objective as it is to be called in training; before the optimiser is made."""
        return objective

    def joint(self, last: bool) -> AbstractContextManager[Any]:
        """Around a forward and backward pass; after the ``last`` of a step gradients are the sum over all ranks
        divided by their number.
        """
        return nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """√Σ g² over the whole model."""
        return nn.utils.get_total_norm(gradients)

    def measuring(self, model: nn.Module) -> AbstractContextManager[None]:
        """While it lasts all ranks may call the model's methods, with the same inputs."""
        return among(self.ranks)

    def whole(self, model: nn.Module) -> AbstractContextManager[Any]:
        """The model with all of its weights, on the rank that writes it; ``None`` on the others."""
        return nullcontext(model if self.ranks.first else None)

    def state(self, model: nn.Module, optimiser: Any) -> dict[str, Any]:
        """Returns the checkpoint's part of both: all but frozen parameters, which are as they were loaded."""
        frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
        weights = {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
        return {"model": weights, "optimiser": optimiser.state_dict()}

    def restore(self, model: nn.Module, optimiser: Any, state: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` told; ``ValueError`` or ``RuntimeError`` where it is of another model."""
        if odd := state["model"].keys() ^ self.state(model, optimiser)["model"].keys():
            raise RuntimeError(f"only one of them has {', '.join(sorted(odd))}")
        model.load_state_dict(state["model"], strict=False)
        optimiser.load_state_dict(state["optimiser"])


class Learner(nn.Module):
    """A model and its objective as one module: what the engines want to be put around."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> Tensor:
        """The loss summed over the batch, which is 0 of an empty one."""
        return self.objective(self.model, batch) if batch else torch.zeros(())


class Replicated(Alone):
    """The whole model on each rank, which share evaluations out, batch by batch."""

    def learner(self, model: nn.Module, objective: Objective) -> Objective:
        """The objective under ``DistributedDataParallel``, which averages gradients while they are made."""
        device = next(model.parameters()).device
        self._copies = nn.parallel.DistributedDataParallel(
            Learner(model, objective),
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=True,  # a pooler that no loss sees, an adapter's frozen head
        )
        return lambda model, batch: cast(Tensor, self._copies(batch))

    def joint(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are added up on each rank before they are averaged once."""
        return nullcontext() if last else self._copies.no_sync()


class Sharded(Alone):
    """A share of the model on each rank; evaluated by all of them together, step by step alike.

    With one rank, which a run begun on several may be taken up with, nothing is shared out.

    Args:
        ranks: the processes.
        bf16: blocks compute with bfloat16 copies of their weights; gradients are summed in float32.
    """

    needs_all = True

    def __init__(self, ranks: Ranks, bf16: bool = False) -> None:
        super().__init__(ranks)
        self.bf16 = bf16
        self._root: Any = None
        self._twin: nn.Module | None = None

    def learner(self, model: nn.Module, objective: Objective) -> Objective:
        """The objective over sharded weights: each block a unit, whatever is outside of them another."""
        if self.ranks.size == 1:
            return objective
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if self.ranks.first:
            self._twin = copy.deepcopy(model).cpu()  # into which weights are gathered for writing
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.ranks.size,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.bf16 else MixedPrecisionPolicy()
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._root = fully_shard(Learner(model, objective), mesh=mesh, mp_policy=policy)
        with torch.no_grad():
            self._root({})  # before any block, which would take itself for the root: a run may begin with an evaluation
        self._root.reshard()
        return lambda model, batch: cast(Tensor, self._root(batch))

    def joint(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are added up unshared before they are summed once."""
        if self._root is not None:
            self._root.set_requires_gradient_sync(last)
        return nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Over all shares."""
        norm = super().norm(gradients)
        return norm.full_tensor() if self._root is not None else norm  # type: ignore[attr-defined]  # a DTensor

    @contextmanager
    def measuring(self, model: nn.Module) -> Iterator[None]:
        """Nothing is shared out, as no rank can compute alone; what is outside of the blocks is gathered meanwhile."""
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
        """A copy on the first rank's CPU, gathered into."""
        if self._root is None:
            yield model
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self._twin is not None:
            self._twin.load_state_dict(found)
        yield self._twin

    def state(self, model: nn.Module, optimiser: Any) -> dict[str, Any]:
        """This rank's shares, by the parameters' names."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(ignore_frozen_params=True)
        weights, remembered = get_state_dict(model, each_of(optimiser), options=options)
        return {"model": weights, "optimiser": remembered}

    def restore(self, model: nn.Module, optimiser: Any, state: Mapping[str, Any]) -> None:
        """This rank's shares; they may have been written by another number of ranks."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        set_state_dict(
            model,
            each_of(optimiser),
            model_state_dict=state["model"],
            optim_state_dict=state["optimiser"],
            options=StateDictOptions(ignore_frozen_params=True, strict=False),
        )


def each_of(optimiser: Any) -> Any:
    """The optimisers that step as this one."""
    return getattr(optimiser, "optimisers", optimiser)


def engine_of(ranks: Ranks, shard: bool, bf16: bool) -> Alone:
    """The engine for these processes: with ``shard`` none has the whole model."""
    if shard:
        return Sharded(ranks, bf16)
    return Alone() if ranks.size == 1 else Replicated(ranks)
