"""What a model is made of: layers, shapes, parameters, operations, without allocating its weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
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
class Summary:
    """Printed, a table; ``layers`` and the totals for programs."""

    name: str
    input: tuple[tuple[int, ...], ...]
    parameters: int
    trainable: int
    flops: int
    layers: list[Layer] = field(repr=False)
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
            "layers": [layer.as_dict() for layer in self.layers],
        }

    def __str__(self) -> str:
        """The layers down to the third level as a table, in the order in which they run, then the totals."""
        shown = [layer for layer in self.layers if layer.path.count(".") < self.depth]
        rows: list[tuple[str, ...]] = [("layer", "kind", "input", "output", "parameters", "multiply-adds")]
        for layer in shown:
            shapes = [" × ".join(map(str, shape)) if shape else "" for shape in (layer.input, layer.output)]
            rows.append((layer.path, layer.kind, *shapes, f"{layer.parameters:,}", short(layer.multiply_adds)))
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
            f"forward of {inputs}: {short(self.multiply_adds).strip()} multiply-adds, {short(self.flops)}FLOPs",
            "a row counts all that runs inside it: a residual's, its attention or feed-forward and its norm",
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
    """Layers, shapes, parameters and multiply-adds of a model, for one input.

    Args:
        what: a preset's name, a model folder, a configuration, or any module, ours or not.
        input_shape: of the input: token ids (B, T), images (B, C, H, W), or the float input of any other module. By
            default one sequence of ``length`` tokens, or of the learned positions where those are fewer, or one image.
        length: tokens of the default input.

    Multiply-adds are half of PyTorch's own count of FLOPs over a forward on the meta device: no weights are allocated.

    >>> import heedful
    >>> info = heedful.summary("vit-b/16")
    >>> info.parameters, info.multiply_adds
    (86567656, 17563828224)
    """
    module, name = _module(what)
    inputs = _inputs(module, input_shape, length)
    copy = _on_meta(module)
    counter = FlopCounterMode(display=False)
    watch = _Watch(copy, counter)
    training = copy.training
    try:
        copy.eval()
        with counter, torch.no_grad():
            copy(*inputs)
    except Exception as error:  # another's module says in its own way what it does not take
        if isinstance(module, Model):
            raise
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"the module does not take an input of shape {input_shape} ({reason})") from None
    finally:
        copy.train(training)
        watch.stop()
    everything = list(copy.parameters())
    return Summary(
        name=name,
        input=tuple(tuple(tensor.shape) for tensor in inputs),
        parameters=sum(p.numel() for p in everything),
        trainable=sum(p.numel() for p in everything if p.requires_grad),
        flops=counter.get_total_flops(),
        layers=watch.layers(copy),
    )


class _Watch:
    """What runs inside each module while it lasts: when first, on which shapes, with which parameters and FLOPs.

    A list of modules is never called itself; what its modules do counts for it as well.
    """

    def __init__(self, module: nn.Module, counter: FlopCounterMode) -> None:
        self.counter = counter
        self.running: list[tuple[str, int]] = []  # paths, and the count of FLOPs at which each began
        self.turn: dict[str, int] = {}
        self.shapes: dict[str, tuple[Any, Any]] = {}
        self.used: dict[str, dict[int, int]] = defaultdict(dict)  # the sizes of parameters, by identity
        self.flops: dict[str, int] = defaultdict(int)
        self.hooks = []
        for path, part in module.named_modules():
            self.hooks.append(part.register_forward_pre_hook(partial(self._enter, path)))
            self.hooks.append(part.register_forward_hook(partial(self._leave, path)))

    def _enter(self, path: str, part: nn.Module, inputs: Any) -> None:
        self.running.append((path, self.counter.get_total_flops()))
        sizes = {id(p): p.numel() for p in part.parameters()}
        for name in [path for path, _ in self.running]:
            self.used[name] |= sizes
        for name in (*reversed(self._lists(path)), path):
            self.turn.setdefault(name, len(self.turn))

    def _leave(self, path: str, part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        lists = self._lists(path)
        spent = self.counter.get_total_flops() - self.running.pop()[1]
        for name in (path, *lists):
            self.flops[name] += spent
        first = next((tuple(x.shape) for x in inputs if isinstance(x, Tensor)), None)
        self.shapes[path] = (first, tuple(output.shape) if isinstance(output, Tensor) else None)

    def _lists(self, path: str) -> list[str]:
        """The modules around ``path`` up to the nearest that is running: lists, and what is reached by attribute."""
        running = {name for name, _ in self.running}
        around = path
        found = []
        while around and (around := around.rpartition(".")[0]) not in running:
            found.append(around)
        return found

    def stop(self) -> None:
        """Watch no longer."""
        for hook in self.hooks:
            hook.remove()

    def layers(self, module: nn.Module) -> list[Layer]:
        """The modules that have or use parameters, in the order in which they ran first."""
        layers, turns = [], {"": -1}
        for path, part in module.named_modules():
            sizes = {id(p): p.numel() for p in part.parameters()} | self.used[path]
            if path:
                turns[path] = self.turn.get(path, turns[path.rpartition(".")[0]])  # what never ran follows its owner
            if path and sizes:
                shapes = self.shapes.get(path, (None, None))
                layers.append(Layer(path, type(part).__name__, *shapes, sum(sizes.values()), self.flops[path]))
        return sorted(layers, key=lambda layer: turns[layer.path])


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
