"""Result of a summary: printed as a table, shown as HTML in a notebook, plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class Layer:
    """A module's path, class, shapes, parameters and operations.

    Modules that run inside it are included: a residual's numbers include its norm and its attention or feed-forward.
    """

    path: str
    kind: str
    input: tuple[int, ...] | None
    output: tuple[int, ...] | None
    parameters: int  # each once; a tied parameter counts for every layer that uses it
    flops: int  # of the products of a forward pass (linear maps, convolutions, attention); a multiply-add is 2

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds of a forward pass, with the two matrix products of each attention."""
        return self.flops // 2

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary of plain values."""
        return vars(self) | {"multiply_adds": self.multiply_adds}


@dataclass(frozen=True)
class CacheBytes:
    """Size of the generation cache in bytes: keys and values of the key-value heads."""

    token: int  # of one token of one row, in all blocks
    source_token: int  # of one token of the source, for cross-attention; 0 without an encoder
    window: int | tuple[int | None, ...] | None  # maximum number of stored tokens of a row; None: no limit; of blocks
    total: int  # of the whole input: its rows, their tokens (at most the window), and an equally long source


@dataclass(frozen=True)
class Memory:
    """Memory that a model needs in one dtype, in bytes."""

    dtype: str
    weights: int  # parameters, tied parameters once
    forward: int  # activations at the peak of a forward pass without gradients, input and output included
    backward: int  # tensors that a forward pass in training saves for the backward pass
    cache: CacheBytes | None  # None: of a model that does not generate

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary of plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Unfused:
    """Attention for which PyTorch has no fused kernel: all attention weights (B, H, T, S) are stored."""

    path: str
    mode: str  # "prediction" or "training"
    dtype: str
    because: str


@dataclass(frozen=True)
class Summary:
    """Result of ``heedful.summary``: prints as a table; ``layers``, ``memory`` and totals are for programs."""

    name: str
    input: tuple[tuple[int, ...], ...]
    parameters: int
    active: int  # of them, those that compute a token: of a mixture of experts, a token's experts alone
    trainable: int
    flops: int
    layers: list[Layer] = field(repr=False)
    memory: Mapping[str, Memory] = field(default_factory=dict, repr=False)  # by data type
    unfused: Sequence[Unfused] = ()  # on the CPU
    depth: int = 3

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds of a forward pass, with the two matrix products of each attention."""
        return self.flops // 2

    def as_dict(self) -> dict[str, Any]:
        """Returns the summary as a dictionary of plain values, which ``heedful summary --json`` prints."""
        return {
            "name": self.name,
            "input": [list(shape) for shape in self.input],
            "parameters": self.parameters,
            "active": self.active,
            "trainable": self.trainable,
            "flops": self.flops,
            "multiply_adds": self.multiply_adds,
            "memory": {dtype: memory.as_dict() for dtype, memory in self.memory.items()},
            "unfused": [asdict(attention) for attention in self.unfused],
            "layers": [layer.as_dict() for layer in self.layers],
        }

    def __str__(self) -> str:
        """Returns a table of the layers down to the level ``depth``, in the order of their calls, then the totals."""
        parts = [_aligned(self._rows(), left=4), self._totals()]
        if self.memory:
            parts.append(_aligned(self._memory_rows(), left=1))
        return "\n\n".join([*parts, "\n".join(self._notes())])

    def _repr_html_(self) -> str:
        """Returns the same table as HTML for a notebook."""
        layers, memory = _html(self._rows(), left=4), _html(self._memory_rows(), left=1) if self.memory else ""
        totals = "".join(f"<p>{escape(line)}</p>" for line in self._totals().splitlines())
        notes = "".join(f"<p><small>{escape(line)}</small></p>" for line in self._notes())
        return f"<div>{totals}{layers}{memory}{notes}</div>"

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("layer", "kind", "input", "output", "parameters", "multiply-adds")]
        for layer in self.layers:
            if layer.path.count(".") < self.depth:
                shapes = [_shape(shape) if shape else "" for shape in (layer.input, layer.output)]
                rows.append((layer.path, layer.kind, *shapes, f"{layer.parameters:,}", with_unit(layer.multiply_adds)))
        return rows

    def _totals(self) -> str:
        inputs = ", ".join(map(_shape, self.input))
        active = "" if self.active == self.parameters else f"{self.active:,} active for a token, with its experts\n"
        return (
            f"{self.name}: {self.parameters:,} parameters ({self.parameters * 4 / 1e6:,.1f} MB in float32), "
            f"tied parameters once\n{active}{self.trainable:,} trainable, {self.parameters - self.trainable:,} frozen\n"
            f"forward of {inputs}: {with_unit(self.multiply_adds).strip()} multiply-adds, {with_unit(self.flops)}FLOPs"
        )

    def _memory_rows(self) -> list[tuple[str, ...]]:
        by_dtype = list(self.memory.values())
        rows = [
            ("memory", [memory.dtype for memory in by_dtype]),
            ("weights", [bytes_of(memory.weights) for memory in by_dtype]),
            ("peak of a forward pass", [bytes_of(memory.forward) for memory in by_dtype]),
            ("stored for the backward pass", [bytes_of(memory.backward) for memory in by_dtype]),
        ]
        caches = [memory.cache for memory in by_dtype if memory.cache is not None]
        if caches:
            rows.append(("cache per token", [bytes_of(cache.token) for cache in caches]))
            if caches[0].source_token:
                rows.append(("cache per source token", [bytes_of(cache.source_token) for cache in caches]))
            rows.append((f"cache for {self._cached(caches[0])}", [bytes_of(cache.total) for cache in caches]))
        return [(name, *cells) for name, cells in rows]

    def _cached(self, cache: CacheBytes) -> str:
        rows, tokens = self.input[-1]
        windows = cache.window if isinstance(cache.window, tuple) else (cache.window,)
        words = ", ".join("all" if window is None else f"{window:,}" for window in windows)
        text = f"{tokens:,} tokens" if cache.window is None else f"{tokens:,} tokens (window {words})"
        text += f" and {self.input[0][1]:,} source tokens" if cache.source_token else ""
        return text if rows == 1 else f"{rows} rows of {text}"

    def _notes(self) -> list[str]:
        notes = ["a row includes all modules inside it; that of a residual its norm and its attention or feed-forward"]
        if self.memory:
            notes.append(
                "peak of a forward pass: without gradients and weights; backward pass: in training, without the loss"
            )
            notes += [f"attention on the CPU: {line}" for line in _attention(self.unfused)]
        return notes


def _attention(unfused: Iterable[Unfused]) -> list[str]:
    """Lists attentions without a fused kernel, grouped by reason."""
    by_reason: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for attention in unfused:
        paths = by_reason.setdefault((attention.mode, attention.because), {})
        paths.setdefault(attention.path, {})[attention.dtype] = None
    if not by_reason:
        return ["fused kernels everywhere, in prediction and in training"]
    lines = []
    for (mode, because), paths in by_reason.items():
        first, *others = paths
        where = first if not others else f"{len(paths)} layers, the first is {first}"
        dtypes = {dtype: None for path_dtypes in paths.values() for dtype in path_dtypes}
        lines.append(f"no fused kernel in {mode} for {because} ({where}; {', '.join(dtypes)})")
    return lines


def with_unit(number: float) -> str:
    """Returns a number as text with a unit: 12_345_678 → "12.3 M"."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:g} "


def bytes_of(number: int) -> str:
    """Returns a number of bytes as text: 12_345_678 → "12.3 MB"."""
    return f"{with_unit(number)}B"


def _shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))


def _aligned(rows: Sequence[tuple[str, ...]], left: int) -> str:
    """Aligns columns: the first ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _html(rows: Sequence[tuple[str, ...]], left: int) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        sides = ("left" if column < left else "right" for column in range(len(cells)))
        html_cells = (
            f'<{kind} style="text-align:{side}">{escape(cell)}</{kind}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(html_cells)}</tr>"

    head, *body = rows
    rest = "".join(line(row, "td") for row in body)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{rest}</tbody></table>"
