"""What runs inside each module of a model while a forward lasts."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heedful.inspection.summary.table import Layer


class Watch:
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
