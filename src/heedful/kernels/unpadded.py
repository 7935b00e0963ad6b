"""No work on padding: the real tokens of a batch stand in one long row, and attention goes from length to length.

Everything in a stack but attention treats each token alone, so that it may as well read one row of the N real tokens.
Attention takes the sequences of one length together, without a mask: sequences stand in the row by length, and those
of one length are a view of it.

Shapes: B sequences, T tokens of the longest with its padding, N real tokens in all, D model width, H heads, E head
size.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.cache import Seen, counted
from heedful.layers.attention import Attend, Attention, fused_attention
from heedful.layers.mask import Mask
from heedful.layers.position import Place
from heedful.stack import Block, Stack, StackInput, padded

ALL = slice(None)


class Group(NamedTuple):
    """``rows`` sequences of ``length`` tokens, one after another from ``start``."""

    start: int
    rows: int
    length: int

    def of(self, x: Tensor) -> Tensor:
        """(N, ...) → (rows, length, ...), a view."""
        return x[self.start : self.start + self.rows * self.length].unflatten(0, (self.rows, self.length))


class Row:
    """The real tokens of a batch in one row, by length of their sequence, the shortest first.

    Args:
        real: (B, T) which tokens are real; None where all of ``shape`` are.
        shape: (B, T).

    >>> row = Row(torch.tensor([[True, True, True], [False, False, False], [False, True, True]]), (3, 3))
    >>> row.places.tolist(), row.positions.tolist()
    ([7, 8, 0, 1, 2], [[0, 1, 0, 1, 2]])
    >>> row.groups
    [Group(start=0, rows=1, length=2), Group(start=2, rows=1, length=3)]
    """

    def __init__(self, real: Tensor | None, shape: tuple[int, int], device: torch.device | None = None) -> None:
        real = torch.ones(shape, dtype=torch.bool, device=device) if real is None else real.bool()
        lengths = real.sum(1)
        order = lengths.argsort(stable=True)
        kept = real[order]
        grid = torch.arange(real.numel(), device=real.device).view(shape)
        self.shape = shape
        self.places = grid[order][kept]  # (N,) in the batch, counted along its rows
        self.positions = counted(kept)[kept][None]  # (1, N)
        self.order = order[int((lengths == 0).sum()) :]  # the sequences that have a token, as they stand in the row
        self.groups, start = [], 0
        for length, rows in sorted(Counter(lengths.tolist()).items()):
            if length:
                self.groups.append(Group(start, rows, length))
                start += rows * length

    def gather(self, x: Tensor) -> Tensor:
        """(B, T, D) → (1, N, D)."""
        return x.flatten(0, 1)[self.places][None]

    def scatter(self, y: Tensor) -> Tensor:
        """(1, N, D) → (B, T, D); padding is zeros."""
        made = y.new_zeros(self.shape[0] * self.shape[1], y.size(-1))
        made[self.places] = y[0]
        return made.view(*self.shape, -1)

    def ends(self, kept: slice) -> Tensor:
        """Where in the row the tokens ``kept`` of each sequence stand, all of one sequence together."""
        tokens = torch.arange(len(self.places), device=self.places.device)
        return torch.cat([group.of(tokens)[:, kept].flatten() for group in self.groups])

    def by_sequence(self, y: Tensor) -> Tensor:
        """(1, sequences · k, D), k tokens of each sequence in the row → (B, k, D), zeros for those without a token."""
        each = y[0].unflatten(0, (len(self.order), -1))
        made = y.new_zeros(self.shape[0], *each.shape[1:])
        made[self.order] = each
        return made


class Ragged(NamedTuple):
    """A mask for a row: each sequence attends to itself.

    Attributes:
        groups: the sequences.
        within: what the longest of them may attend to; shorter ones begin as it does.
        kept: which queries of a sequence are asked.
    """

    groups: list[Group]
    within: Mask
    kept: slice = ALL

    def attend(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
        """q, k, v (1, H, N, E) → (1, H, M, E), M of the N queries kept."""
        made = []
        for group in self.groups:
            own_q, own_k, own_v = (group.of(x[0].transpose(0, 1)).transpose(1, 2) for x in (q, k, v))
            mixed = attend(own_q[:, :, self.kept], own_k, own_v, self._allowed(group.length), scale, dropout)
            made.append(mixed.transpose(1, 2).flatten(0, 1))  # (rows, H, tokens, E) → (rows · tokens, H, E)
        return torch.cat(made)[None].transpose(1, 2)

    def _allowed(self, length: int) -> Mask:
        if not isinstance(self.within, Tensor):
            return self.within
        return self.within[..., :length, :length][..., self.kept, :]


def fused_row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float = 0.0) -> Tensor:
    """``fused_attention``, under the masks of rows too (``Ragged``)."""
    if isinstance(mask, Ragged):
        return mask.attend(fused_attention, q, k, v, scale, dropout)
    return fused_attention(q, k, v, mask, scale, dropout)


def watched(part: nn.Module) -> bool:
    """Returns whether anyone observes or changes what a module, or one inside it, computes: by a hook or a probe.

    Observers are promised (B, T) tokens. The hooks by which PyTorch shards weights over processes do not count.
    """
    state = vars(part)  # asking each module for what it has not would take longer than all the rest
    hooks = (*state["_forward_hooks"].values(), *state["_forward_pre_hooks"].values())
    here = any(not str(getattr(hook, "__module__", "")).startswith("torch.distributed") for hook in hooks)
    return here or state.get("probe") is not None or any(watched(child) for child in part.children())


def attends_by(stack: Stack, attend: Attend) -> bool:
    """Returns whether a stack has our blocks alone, with ``attend``, which knows the masks of rows, in each."""
    for block in stack.block:
        if not isinstance(block, Block) or block.attention.attend is not attend:
            return False
        if isinstance(block.cross_attention, Attention) and block.cross_attention.attend is not attend:
            return False
    return True


def unpadded_inference(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves padding out: what ``padded`` computes at the real tokens, and zeros at padding.

    Where nothing is padded, where several texts share a row, where a cache or a memory is given, where the parts of the
    stack are watched (``heedful.record``, an intervention, any hook) and where an attention has a callable of its own,
    it runs as ``padded``.

    >>> import heedful
    >>> from heedful.kernels.plan import apply_plan
    >>> model, ids = heedful.create("bert-tiny", seed=0).eval(), torch.tensor([[5, 7, 9], [5, 0, 0]])
    >>> output = model(ids, ids > 0)
    >>> unpadded = apply_plan(model, "cpu-inference")(ids, ids > 0)
    >>> torch.allclose(unpadded[0], output[0], atol=1e-5), unpadded[1, 1:].count_nonzero().item()
    (True, 0)
    """
    x, mask, memory, _, cache = batch
    joined = memory is not None or cache is not None
    if mask is None or joined or bool((mask == 1).all() | (mask > 1).any()) or not unpaddable(stack):
        return padded(stack, batch)
    row = Row(mask, (x.size(0), x.size(1)))
    if not row.groups:
        return torch.zeros_like(x)
    x, within, place = enter(stack, row.gather(x), row)
    for block in stack.block:
        x = block(x, mask=Ragged(row.groups, within), position=place)
    return row.scatter(stack.norm(x))


def unpaddable(stack: Stack) -> bool:
    """Returns whether a stack may leave padding out in inference: nobody watches it, and its attentions know rows."""
    return attends_by(stack, fused_row_attention) and not watched(stack)


def enter(stack: Stack, x: Tensor, row: Row) -> tuple[Tensor, Mask, Place]:
    """Returns what the first block reads (1, N, D), what the longest sequence may attend to, and the positions."""
    longest = row.groups[-1].length
    one = torch.arange(longest, device=x.device)[None]
    within = stack.position.prepare(one, one).join(stack.visible(Seen(one, one, None, longest), stack.config))
    place = stack.position.prepare(row.positions, row.positions[:, :0])  # turns; its bias is in ``within``
    x = stack.position.embed(x, row.positions, longest)
    return stack.dropout(stack.embedding_norm(x)), within, place
