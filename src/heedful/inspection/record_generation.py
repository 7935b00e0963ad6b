"""Tape of a generation: for each returned row, the tensors of the step that chose each token.

A generation works on rows that move: beams are copied and dropped, rows that have ended leave. The tape keeps what each
call showed, with the row of the call before from which each row came and the token that it was given. A returned row is
then found again by following its tokens from call to call.

Shapes: B prompts, R rows of a call, N returned rows, G generated tokens, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.inspection.tensor_paths import Place

NONE = -1  # in a history: no token here


@dataclass
class Call:
    """One call of the decoder."""

    seen: dict[str, Tensor]
    tokens: Tensor  # (R,) the token that each row was given last
    parents: Tensor  # (R,) its row in the call before
    number: int  # of how many columns the call saw: the prompt's and those after it


@dataclass
class Tape:
    """Filled while a generation runs: ``counts`` (B,) real tokens of the prompts, in ``width`` columns, right-aligned.

    ``reading``: an encoder is reading the sources.
    """

    counts: Tensor
    width: int
    reading: bool
    once: dict[str, Tensor] = field(default_factory=dict)  # what the encoder showed, (B, ...)
    calls: list[Call] = field(default_factory=list)
    now: dict[str, Tensor] = field(default_factory=dict)
    order: Tensor | None = None  # where the rows at work stood in the last call

    def keep(self, path: str, tensor: Tensor) -> None:
        """A tensor of the call that is running."""
        self.now[path] = tensor

    def read(self) -> None:
        """The encoder has read the sources."""
        self.once, self.now, self.reading = self.now, {}, False

    def step(self, tokens: Tensor) -> None:
        """A call is over."""
        order = torch.arange(len(tokens), device=tokens.device) if self.order is None else self.order
        self.calls.append(Call(self.now, tokens.clone(), order, self.width + len(self.calls)))
        self.now, self.order = {}, None

    def select(self, rows: Tensor) -> None:
        """The rows at work are from now on ``rows`` of those before."""
        self.order = rows.clone() if self.order is None else self.order[rows]

    def found(self, made: Tensor, copies: int) -> list[Tensor]:
        """The row (N,) of each call that belongs to each returned row; −1 where the row had ended.

        ``made`` (N, G) are the new tokens, ``NONE`` where there is none.
        """
        origin = torch.arange(len(made), device=made.device) // copies
        lengths = (made != NONE).sum(1)
        same = origin[:, None] == torch.arange(len(self.counts), device=made.device)  # (N, R): may it be this row?
        rows = [origin]
        for number, call in enumerate(self.calls[1 : made.size(1)], start=1):
            same = same[:, call.parents] & (call.tokens == made[:, number - 1, None])  # equal samples share their rows
            assert bool((same.any(1) | (lengths <= number)).all()), "a returned row was never at work"
            rows.append(same.int().argmax(1).where(lengths > number, -1))
        return rows

    def assembled(self, made: Tensor, copies: int, places: dict[str, Place]) -> dict[str, Tensor]:
        """Path → tensor, zero-padded (scores with −∞). With queries, (N, ..., G, ...): row t is the query that chose
        token t. With keys, their columns are those of the returned ids, or of the sources for cross-attention.
        """
        rows, steps = self.found(made, copies), int((made != NONE).sum(1).max())
        origin = torch.arange(len(made), device=made.device) // copies
        pads = self.width - self.counts[origin]  # columns before a row's first token
        columns = int(self.counts.max()) + steps
        result = {path: tensor[origin] for path, tensor in self.once.items()}
        for path in dict.fromkeys(path for call in self.calls for path in call.seen):
            axes, cross = places[path].point.axes, places[path].cross
            empty = float("-inf") if places[path].point.name == "scores" else 0.0
            parts = []
            for call, row in zip(self.calls[:steps], rows, strict=False):
                part = call.seen[path][row.clamp(min=0)]
                if "S" in axes and not cross:
                    part = moved(part, axes.index("S"), call.number, pads, columns, empty)
                parts.append(part.masked_fill((row < 0).view(-1, *(1,) * (part.dim() - 1)), empty))
            if "T" in axes:
                result[path] = torch.cat(parts, axes.index("T"))
            else:  # keys and values: those of a row's last step hold all before
                last = torch.stack([row >= 0 for row in rows[:steps]]).sum(0) - 1
                result[path] = torch.stack(parts)[last.clamp(min=0), torch.arange(len(made), device=made.device)]
        return result


def moved(part: Tensor, axis: int, number: int, pads: Tensor, columns: int, empty: float) -> Tensor:
    """``part``, whose keys end at column ``number``, with each row's first token at column 0, in ``columns`` columns;
    ``empty`` where there is none.
    """
    size = part.size(axis)
    source = torch.arange(columns, device=part.device) + pads[:, None] - (number - size)  # (N, columns) of the part
    shape = [len(part), *(columns if i == axis else 1 for i in range(1, part.dim()))]
    inside = ((source >= 0) & (source < size)).view(shape)
    whole = [columns if i == axis else n for i, n in enumerate(part.shape)]
    return part.gather(axis, source.clamp(0, size - 1).view(shape).expand(whole)).masked_fill(~inside, empty)
