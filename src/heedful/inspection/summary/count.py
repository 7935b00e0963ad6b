"""Counts layers, shapes, parameters, operations and memory of a model, without allocating its weights."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config
from torch.utils.flop_counter import FlopCounterMode

from heedful.config import EncoderDecoderConfig, LearnedPosition, ModelConfig, VisionConfig
from heedful.errors import HeedfulError
from heedful.inspection.summary.memory import measured
from heedful.inspection.summary.table import Layer, Memory, Summary, Unfused
from heedful.inspection.summary.weightless import Size, module_of
from heedful.models import Model

LENGTH = 128  # tokens of the default input
MOST = 2**31 - 1  # tokens, or rows, of an input
DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def _countable() -> Iterator[None]:
    """Raises ``HeedfulError`` where sizes exceed what 64 bits or the memory hold."""
    try:
        yield
    except RuntimeError as error:
        if not re.search(r"overflow|allocate", str(error)):
            raise
        raise HeedfulError("the input is too large to be counted; give a smaller length, batch or image size") from None


@_countable()
def summary(
    what: str | Path | ModelConfig | nn.Module,
    input_shape: Sequence[int] | None = None,
    *,
    length: int | None = None,
    batch: int | None = None,
    image_size: Size = None,
) -> Summary:
    """Layers, shapes, parameters, multiply-adds and memory of a model, for one input.

    Args:
        what: a preset's name, a model folder (its weights, if it has any, are not read), a ``config.json``, a
            configuration, or any module, ours or not.
        input_shape: of the input: token ids (B, T), images (B, C, H, W), or the float input of any other module. By
            default one sequence of ``length`` tokens, or one image.
        length: tokens of the default input, of source and target each; default 128, or the learned positions where
            those are fewer.
        batch: rows of the default input; default 1.
        image_size: pixels a side, or (height, width), of a vision model made for other images.

    Multiply-adds are half of PyTorch's own count of FLOPs over a forward on the meta device: no weights are allocated.

    ``memory`` tells bytes for float32 and for bfloat16 (float16 is as large):

    - ``weights``: the parameters, ties once;
    - ``forward``: activations at the peak of a forward without gradients in evaluation mode. All tensors that
      operations return count while they live, input and output among them, views with what they are views of. What a
      kernel allocates for itself does not, nor do weights and buffers;
    - ``backward``: what a forward in training mode, with the configuration's dropout, keeps for the backward pass: the
      memory of all tensors that autograd saves, each once, the input among them, parameters and buffers not. The loss
      and its own activations come on top;
    - ``cache``: what generation remembers, of a token and of the whole input (see ``CacheBytes``).

    Attention is counted as the CPU computes it. ``unfused`` names the layers for which PyTorch has no fused kernel
    there, in prediction or in training, and why: such a layer holds its weights (B, H, T, S) whole.

    Raises:
        HeedfulError: for an input that the model cannot take, and for a folder whose weights do not fit it.

    >>> import heedful
    >>> info = heedful.summary("vit-b/16")
    >>> info.parameters, info.multiply_adds
    (86567656, 17563828224)
    >>> heedful.summary("gpt2", length=1024).memory["bfloat16"].cache
    CacheBytes(token=36864, source_token=0, window=None, total=37748736)
    """
    module, name = module_of(what, image_size)
    inputs = _inputs(module, input_shape, length, batch)
    made = _on_meta(module)
    counter = FlopCounterMode(display=False)
    watch = Watch(made, counter)
    try:
        made.eval()
        every = {"meta_nonzero_assume_all_nonzero": True}  # all tokens are real: batch norm picks each
        with _config.patch(every):  # type: ignore[attr-defined]  # put there when the module is imported
            with counter, torch.no_grad():
                made(*inputs)
            watch.stop()
            memory, unfused = _memory(made, inputs)
    except Exception as error:  # another's module says in its own way what it does not take
        if isinstance(module, Model):
            raise
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"the module does not take an input of shape {input_shape} ({reason})") from None
    everything = list(made.parameters())
    return Summary(
        name=name,
        input=tuple(tuple(tensor.shape) for tensor in inputs),
        parameters=sum(p.numel() for p in everything),
        trainable=sum(p.numel() for p in everything if p.requires_grad),
        flops=counter.get_total_flops(),
        layers=watch.layers(made),
        memory=memory,
        unfused=unfused,
    )


def _memory(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, Memory], list[Unfused]]:
    """In both types; another's module in its own alone, since nobody says that it can compute in others."""
    own = next((p.dtype for p in module.parameters()), torch.float32)
    memory: dict[str, Memory] = {}
    unfused: list[Unfused] = []
    for dtype in DTYPES if isinstance(module, Model) else (own,):
        held, found = measured(module, inputs, dtype, module.config if isinstance(module, Model) else None)
        memory[held.dtype] = held
        unfused += found
    return memory, unfused


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without weights."""
    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def _inputs(
    module: nn.Module, shape: Sequence[int] | None, length: int | None, batch: int | None
) -> tuple[Tensor, ...]:
    if shape is not None and (length, batch) != (None, None):
        raise HeedfulError("input_shape says it all; leave length and batch out")
    for what, number in (("length", length), ("batch", batch)):
        if number is not None and not 1 <= number <= MOST:
            raise HeedfulError(f"{what} is {number}; give a whole number from 1 to {MOST}")
    rows = batch or 1
    if not isinstance(module, Model):
        if shape is None:
            raise HeedfulError("a module needs an input_shape, such as (1, 5, 768)")
        return (torch.empty(*shape, device="meta"),)
    config = module.config
    if isinstance(config, VisionConfig):
        if length is not None:
            raise HeedfulError("an image has no length; give image_size, or leave length out")
        patches = config.patches
        return (torch.empty(*(shape or (rows, patches.channels, *patches.image_size)), device="meta"),)
    place = module.main.position
    most = place.length if isinstance(place, LearnedPosition) else None
    asked = length if shape is None else shape[-1]
    if most is not None and asked is not None and asked > most:
        raise HeedfulError(f"{asked} tokens, but the model has {most} positions; give at most so many")
    tokens = length or min(LENGTH, most or LENGTH)
    ids = torch.zeros(*(shape or (rows, tokens)), dtype=torch.long, device="meta")
    return (ids, ids) if isinstance(config, EncoderDecoderConfig) else (ids,)


class Watch:
    """Records calls inside each module: order, shapes, parameters and FLOPs.

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
