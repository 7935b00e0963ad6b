"""Recording of a generation: for each returned row, the tensors of the step that chose each token.

The rows of a generation move: beams are copied and dropped, and finished rows leave. Each call of the decoder is stored
with the row of the previous call that every row came from, and with the token that it was given. A returned row is then
found again by following its tokens from call to call.

Shapes: B prompts, R rows of a call, N returned rows, G generated tokens, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.inspection.tensor_paths import HookPoint

NONE = -1  # in ids: no token here


@dataclass
class DecoderCall:
    """Recorded tensors of one call of the decoder, and how its rows follow from those of the call before."""

    tensors: dict[str, Tensor]  # by path
    tokens: Tensor  # (R,) the last token that each row was given
    parents: Tensor  # (R,) its row in the previous call
    columns: int  # of ids that the call had read: the prompt's and those after it


@dataclass
class RecordedGeneration:
    """Tensors of a running generation, from prompts of ``counts`` (B,) tokens, right-aligned in ``width`` columns.

    ``in_encoder`` is True while an encoder reads the sources.
    """

    counts: Tensor
    width: int
    in_encoder: bool
    encoder_tensors: dict[str, Tensor] = field(default_factory=dict)  # (B, ...), by path
    calls: list[DecoderCall] = field(default_factory=list)
    current: dict[str, Tensor] = field(default_factory=dict)  # of the running call
    parents: Tensor | None = None  # rows of the last call that the current rows came from

    def add(self, path: str, tensor: Tensor) -> None:
        """Stores a tensor of the running call."""
        self.current[path] = tensor

    def end_encoder(self) -> None:
        """Notes that the encoder has read the sources."""
        self.encoder_tensors, self.current, self.in_encoder = self.current, {}, False

    def end_call(self, tokens: Tensor) -> None:
        """Notes the end of a call of the decoder, in which ``tokens`` (R,) were the last input tokens of its R rows."""
        parents = torch.arange(len(tokens), device=tokens.device) if self.parents is None else self.parents
        self.calls.append(DecoderCall(self.current, tokens.clone(), parents, self.width + len(self.calls)))
        self.current, self.parents = {}, None

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""
        self.parents = rows.clone() if self.parents is None else self.parents[rows]

    def rows_of_calls(self, generated: Tensor, copies: int) -> list[Tensor]:
        """Returns for each call of the decoder its row (N,) that led to each of N returned rows; −1 if that had ended.

        ``generated`` (N, G) are the new tokens, ``NONE`` after the end; ``copies`` rows belong to each prompt.
        """
        prompts = torch.arange(len(generated), device=generated.device) // copies
        lengths = (generated != NONE).sum(1)
        may_be = prompts[:, None] == torch.arange(len(self.counts), device=generated.device)  # (N, R)
        rows = [prompts]
        for number, call in enumerate(self.calls[1 : generated.size(1)], start=1):
            same_token = call.tokens == generated[:, number - 1, None]
            may_be = may_be[:, call.parents] & same_token  # equal samples share their rows
            assert bool((may_be.any(1) | (lengths <= number)).all()), "a returned row belongs to no call"
            rows.append(may_be.int().argmax(1).where(lengths > number, -1))
        return rows

    def assembled(self, generated: Tensor, copies: int, points: dict[str, HookPoint]) -> dict[str, Tensor]:
        """Returns the recorded tensor of each path, put together from all calls of the decoder.

        Missing positions are 0, in attention scores −∞. A tensor with queries is (N, ..., G, ...): row t is the query
        that predicted token t. Keys have the columns of the returned ids, or of the sources for cross-attention.
        """
        rows, steps = self.rows_of_calls(generated, copies), int((generated != NONE).sum(1).max())
        prompts = torch.arange(len(generated), device=generated.device) // copies
        padding = self.width - self.counts[prompts]  # columns before a row's first token
        columns = int(self.counts.max()) + steps
        result = {path: tensor[prompts] for path, tensor in self.encoder_tensors.items()}
        for path in dict.fromkeys(path for call in self.calls for path in call.tensors):
            axes, is_cross = points[path].kind.axes, points[path].is_cross
            empty = float("-inf") if points[path].kind.name == "scores" else 0.0
            parts = []
            for call, row in zip(self.calls[:steps], rows, strict=False):
                part = call.tensors[path][row.clamp(min=0)]
                if "S" in axes and not is_cross:
                    part = left_aligned(part, axes.index("S"), call.columns, padding, columns, empty)
                parts.append(part.masked_fill((row < 0).view(-1, *(1,) * (part.dim() - 1)), empty))
            if "T" in axes:
                result[path] = torch.cat(parts, axes.index("T"))
            else:  # keys and values: those of a row's last call hold all before
                last = torch.stack([row >= 0 for row in rows[:steps]]).sum(0) - 1
                numbers = torch.arange(len(generated), device=generated.device)
                result[path] = torch.stack(parts)[last.clamp(min=0), numbers]
        return result


def left_aligned(part: Tensor, axis: int, end: int, padding: Tensor, columns: int, empty: float) -> Tensor:
    """Returns a tensor with each row's first token in column 0 of the axis of keys, and ``columns`` columns there.

    The keys in ``part`` end at column ``end``; ``padding`` (N,) is the number of columns before each row's first token.
    Columns without a key become ``empty``.
    """
    size = part.size(axis)
    source = torch.arange(columns, device=part.device) + padding[:, None] - (end - size)  # (N, columns) of the part
    shape = [len(part), *(columns if i == axis else 1 for i in range(1, part.dim()))]
    inside = ((source >= 0) & (source < size)).view(shape)
    whole = [columns if i == axis else n for i, n in enumerate(part.shape)]
    return part.gather(axis, source.clamp(0, size - 1).view(shape).expand(whole)).masked_fill(~inside, empty)
