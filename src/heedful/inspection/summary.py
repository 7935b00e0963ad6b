"""What a model is made of: layers, shapes, parameters, operations, without allocating its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heedful import presets
from heedful.checkpoints import load
from heedful.config import EncoderDecoderConfig, LearnedPosition, ModelConfig, VisionConfig
from heedful.errors import HeedfulError
from heedful.models import Model, build


@dataclass(frozen=True)
class Layer:
    """One module: where it is, what it is, what goes in and comes out, how much it holds and does."""

    path: str
    kind: str
    input: tuple[int, ...] | None
    output: tuple[int, ...] | None
    parameters: int  # its own and its parts'; a tied one counts where it stands first
    flops: int  # of one forward; a multiply-add is 2

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Summary:
    """Printed, a table; ``layers`` and the totals for programs."""

    name: str
    input: tuple[tuple[int, ...], ...]
    parameters: int
    trainable: int
    flops: int
    layers: list[Layer] = field(repr=False)
    depth: int = 3

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        return {
            "name": self.name,
            "input": [list(shape) for shape in self.input],
            "parameters": self.parameters,
            "trainable": self.trainable,
            "flops": self.flops,
            "layers": [layer.as_dict() for layer in self.layers],
        }

    def __str__(self) -> str:
        """The layers down to the third level as a table, then the totals."""
        shown = [layer for layer in self.layers if layer.path.count(".") < self.depth]
        rows: list[tuple[str, ...]] = [("layer", "kind", "input", "output", "parameters", "FLOPs")]
        for layer in shown:
            shapes = [" × ".join(map(str, shape)) if shape else "" for shape in (layer.input, layer.output)]
            rows.append((layer.path, layer.kind, *shapes, f"{layer.parameters:,}", short(layer.flops)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            left = [cell.ljust(width) for cell, width in zip(row[:4], widths[:4], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:], strict=True)]
            lines.append("  ".join(left + right).rstrip())
        inputs = ", ".join(" × ".join(map(str, shape)) for shape in self.input)
        lines += [
            "",
            f"{self.name}: {self.parameters:,} parameters ({self.parameters * 4 / 1e6:,.1f} MB in float32), ties once",
            f"forward of {inputs}: {short(self.flops)}FLOPs (a multiply-add is 2)",
        ]
        return "\n".join(lines)


def short(number: float) -> str:
    """12_345_678 → "12.3 M"."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:g} "


def summary(
    what: str | Path | ModelConfig | nn.Module, input_shape: Sequence[int] | None = None, *, length: int = 128
) -> Summary:
    """Layers, shapes, parameters and FLOPs of a model, for one input.

    Args:
        what: a preset's name, a model folder, a configuration, or any module, ours or not.
        input_shape: of the input: token ids (B, T), images (B, C, H, W), or the float input of any other module. By
            default one sequence of ``length`` tokens, or of the learned positions where those are fewer, or one image.
        length: tokens of the default input.

    FLOPs are PyTorch's own count over a forward on the meta device: no weights are allocated.

    >>> import heedful
    >>> heedful.summary("vit-b/16").parameters
    86567656
    """
    module, name = _module(what)
    inputs = _inputs(module, input_shape, length)
    copy = _on_meta(module)
    shapes: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {}
    hooks = [part.register_forward_hook(_noting(shapes, path)) for path, part in copy.named_modules()]
    training = copy.training
    try:
        copy.eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            copy(*inputs)
    except Exception as error:  # another's module says in its own way what it does not take
        if isinstance(module, Model):
            raise
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"the module does not take an input of shape {input_shape} ({reason})") from None
    finally:
        copy.train(training)
        for hook in hooks:
            hook.remove()
    flops = {path: sum(counts.values()) for path, counts in counter.get_flop_counts().items()}
    root = type(copy).__name__
    layers = []
    for path, part in copy.named_modules():
        if path and any(True for _ in part.parameters()):
            own = sum(p.numel() for p in part.parameters())
            inside = [f"{root}.{path}", *(f"{root}.{path}.{child}" for child, _ in part.named_children())]
            spent = flops.get(inside[0]) or sum(flops.get(child, 0) for child in inside[1:])  # a list is never called
            layers.append(Layer(path, type(part).__name__, *shapes.get(path, (None, None)), own, spent))
    everything = list(copy.parameters())
    return Summary(
        name=name,
        input=tuple(tuple(tensor.shape) for tensor in inputs),
        parameters=sum(p.numel() for p in everything),
        trainable=sum(p.numel() for p in everything if p.requires_grad),
        flops=counter.get_total_flops(),
        layers=layers,
    )


def _module(what: str | Path | ModelConfig | nn.Module) -> tuple[nn.Module, str]:
    if isinstance(what, nn.Module):
        return what, type(what).__name__
    name = str(what) if isinstance(what, str | Path) else what.kind
    if isinstance(what, Path) or (isinstance(what, str) and what not in presets.PRESETS):
        return load(what), name  # its files are mapped, not read
    with torch.device("meta"):
        return build(presets.get(what) if isinstance(what, str) else what), name


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without weights."""
    import copy

    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def _inputs(module: nn.Module, shape: Sequence[int] | None, length: int) -> tuple[Tensor, ...]:
    if not isinstance(module, Model):
        if shape is None:
            raise HeedfulError("a module needs an input_shape, such as (1, 5, 768)")
        return (torch.empty(*shape, device="meta"),)
    config = module.config
    if isinstance(config, VisionConfig):
        patches = config.patches
        return (torch.empty(*(shape or (1, patches.channels, *patches.image_size)), device="meta"),)
    place = module.main.position
    most = min(length, place.length) if isinstance(place, LearnedPosition) else length
    ids = torch.zeros(*(shape or (1, most)), dtype=torch.long, device="meta")
    return (ids, ids) if isinstance(config, EncoderDecoderConfig) else (ids,)


def _noting(shapes: dict[str, Any], path: str) -> Any:
    def note(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        first = next((tuple(x.shape) for x in inputs if isinstance(x, Tensor)), None)
        shapes[path] = (first, tuple(output.shape) if isinstance(output, Tensor) else None)

    return note
