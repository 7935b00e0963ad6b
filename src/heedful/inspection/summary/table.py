"""Result of a summary: printed as a table, shown as HTML in a notebook, plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class Layer:
    """One module: where it is, what it is, what goes in and comes out, how much it holds and does.

    All that runs inside it counts: a residual's numbers are those of its whole sub-block, the attention or feed-forward
    that it calls and its norm.
    """

    path: str
    kind: str
    input: tuple[int, ...] | None
    output: tuple[int, ...] | None
    parameters: int  # each once; a tied one in every row that uses it
    flops: int  # of the products of one forward (linear maps, convolutions, attention); a multiply-add is 2

    @property
    def multiply_adds(self) -> int:
        """Of one forward, attention's two products included."""
        return self.flops // 2

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self) | {"multiply_adds": self.multiply_adds}


@dataclass(frozen=True)
class CacheBytes:
    """Size of the generation cache in bytes: keys and values of the key-value heads."""

    token: int  # of one token of one row, in all blocks
    source_token: int  # of one token of the source, which cross-attention looks at; 0 without an encoder
    window: int | None  # the most tokens of a row that are kept; None: all
    total: int  # of the whole input: its rows, their tokens (at most the window), and as long a source


@dataclass(frozen=True)
class Memory:
    """Bytes in one type of number."""

    dtype: str
    weights: int  # parameters, ties once
    forward: int  # activations at the peak of a forward without gradients, input and output among them
    backward: int  # what a forward in training keeps for the backward pass
    cache: CacheBytes | None  # None: of a model that does not generate

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Unfused:
    """An attention that PyTorch has no fused kernel for: its weights are computed whole, (B, H, T, S)."""

    path: str
    mode: str  # "prediction" or "training"
    dtype: str
    because: str


@dataclass(frozen=True)
class Summary:
    """Printed, a table; ``layers``, ``memory`` and the totals for programs."""

    name: str
    input: tuple[tuple[int, ...], ...]
    parameters: int
    trainable: int
    flops: int
    layers: list[Layer] = field(repr=False)
    memory: Mapping[str, Memory] = field(default_factory=dict, repr=False)  # by the type of its numbers
    unfused: Sequence[Unfused] = ()  # on the CPU
    depth: int = 3

    @property
    def multiply_adds(self) -> int:
        """Of one forward, attention's two products included."""
        return self.flops // 2

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        return {
            "name": self.name,
            "input": [list(shape) for shape in self.input],
            "parameters": self.parameters,
            "trainable": self.trainable,
            "flops": self.flops,
            "multiply_adds": self.multiply_adds,
            "memory": {dtype: memory.as_dict() for dtype, memory in self.memory.items()},
            "unfused": [asdict(one) for one in self.unfused],
            "layers": [layer.as_dict() for layer in self.layers],
        }

    def __str__(self) -> str:
        """The layers down to the third level as a table, in the order in which they run, then the totals."""
        parts = [_aligned(self._rows(), left=4), self._said()]
        if self.memory:
            parts.append(_aligned(self._memory_rows(), left=1))
        return "\n\n".join([*parts, "\n".join(self._notes())])

    def _repr_html_(self) -> str:
        """The same as tables of a notebook."""
        layers, memory = _html(self._rows(), left=4), _html(self._memory_rows(), left=1) if self.memory else ""
        said = "".join(f"<p>{escape(line)}</p>" for line in self._said().splitlines())
        notes = "".join(f"<p><small>{escape(line)}</small></p>" for line in self._notes())
        return f"<div>{said}{layers}{memory}{notes}</div>"

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("layer", "kind", "input", "output", "parameters", "multiply-adds")]
        for layer in self.layers:
            if layer.path.count(".") < self.depth:
                shapes = [_shape(shape) if shape else "" for shape in (layer.input, layer.output)]
                rows.append((layer.path, layer.kind, *shapes, f"{layer.parameters:,}", short(layer.multiply_adds)))
        return rows

    def _said(self) -> str:
        inputs = ", ".join(map(_shape, self.input))
        return (
            f"{self.name}: {self.parameters:,} parameters ({self.parameters * 4 / 1e6:,.1f} MB in float32), ties once\n"
            f"forward of {inputs}: {short(self.multiply_adds).strip()} multiply-adds, {short(self.flops)}FLOPs"
        )

    def _memory_rows(self) -> list[tuple[str, ...]]:
        held = list(self.memory.values())
        rows = [
            ("memory", [one.dtype for one in held]),
            ("weights", [bytes_of(one.weights) for one in held]),
            ("a forward at its peak", [bytes_of(one.forward) for one in held]),
            ("kept for the backward pass", [bytes_of(one.backward) for one in held]),
        ]
        caches = [one.cache for one in held if one.cache is not None]
        if caches:
            rows.append(("cache, a token", [bytes_of(one.token) for one in caches]))
            if caches[0].source_token:
                rows.append(("cache, a source token", [bytes_of(one.source_token) for one in caches]))
            rows.append((f"cache for {self._cached(caches[0])}", [bytes_of(one.total) for one in caches]))
        return [(name, *cells) for name, cells in rows]

    def _cached(self, cache: CacheBytes) -> str:
        rows, tokens = self.input[-1]
        what = f"{tokens:,} tokens" if cache.window is None else f"{tokens:,} tokens (window {cache.window:,})"
        what += f" and {self.input[0][1]:,} source tokens" if cache.source_token else ""
        return what if rows == 1 else f"{rows} rows of {what}"

    def _notes(self) -> list[str]:
        notes = ["a row counts all that runs inside it: a residual's, its attention or feed-forward and its norm"]
        if self.memory:
            notes.append(
                "a forward: without gradients, beside the weights; the backward pass: in training, without the loss"
            )
            notes += [f"attention on the CPU: {line}" for line in _attention(self.unfused)]
        return notes


def _attention(unfused: Iterable[Unfused]) -> list[str]:
    """Lists attentions without a fused kernel, grouped by reason."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for one in unfused:
        found.setdefault((one.mode, one.because), {}).setdefault(one.path, {})[one.dtype] = None
    if not found:
        return ["fused kernels everywhere, in prediction and in training"]
    lines = []
    for (mode, because), paths in found.items():
        first, *others = paths
        where = first if not others else f"{len(paths)} layers, {first} the first"
        dtypes = {dtype: None for own in paths.values() for dtype in own}
        lines.append(f"no fused kernel in {mode} for {because} ({where}; {', '.join(dtypes)})")
    return lines


def short(number: float) -> str:
    """12_345_678 → "12.3 M"."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:g} "


def bytes_of(number: int) -> str:
    """12_345_678 → "12.3 MB"."""
    return f"{short(number)}B"


def _shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))


def _aligned(rows: Sequence[tuple[str, ...]], left: int) -> str:
    """Columns of equal width, the first ``left`` aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _html(rows: Sequence[tuple[str, ...]], left: int) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        sides = ("left" if place < left else "right" for place in range(len(cells)))
        made = (
            f'<{kind} style="text-align:{side}">{escape(cell)}</{kind}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    head, *body = rows
    rest = "".join(line(row, "td") for row in body)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{rest}</tbody></table>"
