"""Counts layers, shapes, parameters, operations and memory of a model, without allocating its weights."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config
from torch.utils.flop_counter import FlopCounterMode

from heedful.config import EncoderDecoderConfig, LearnedPosition, ModelConfig, patches_of
from heedful.errors import HeedfulError
from heedful.inspection.summary.memory import measure_memory
from heedful.inspection.summary.table import Layer, Memory, Summary, Unfused
from heedful.inspection.summary.weightless import Size, module_of
from heedful.layers.experts import Experts
from heedful.models import Ensemble, Model
from heedful.models.base import parameter_count
from heedful.pretrained.folder import member_folder

LENGTH = 128  # tokens of the default input
MAX_SIZE = 2**31 - 1  # tokens or rows of an input
DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def _countable() -> Iterator[None]:
    """Raises ``HeedfulError`` for sizes that exceed 64 bits or the memory."""
    try:
        yield
    except RuntimeError as error:
        if not re.search(r"overflow|allocate", str(error)):
            raise
        raise HeedfulError(
            "the input is too large for counting operations; give a smaller length, batch or image size"
        ) from None


@_countable()
def summary(
    what: str | Path | ModelConfig | nn.Module,
    input_shape: Sequence[int] | None = None,
    *,
    length: int | None = None,
    batch: int | None = None,
    image_size: Size = None,
    depth: int = 3,
) -> Summary:
    """Counts layers, shapes, parameters, multiply-adds and memory of a model for one input.

    Args:
        what: a preset's name, a model folder (its weights are not read), a ``config.json``, a configuration, or any
            module, ours or not.
        input_shape: token ids (B, T), images (B, C, H, W), or the float input of any other module; default one
            sequence of ``length`` tokens, or one image.
        length: tokens of the default input, of source and target each; default 128, or the number of learned
            positions if that is less.
        batch: rows of the default input; default 1.
        image_size: side in pixels, or (height, width): counts a vision model that is built for images of this size.
        depth: levels of modules in the printed table; ``layers`` has all.

    Multiply-adds are half of PyTorch's own count of FLOPs in a forward pass on the meta device: no weights are
    allocated.

    ``memory`` gives bytes for float32 and for bfloat16 (float16 is as large):

    - ``weights``: the parameters, tied parameters once;
    - ``forward``: activations at the peak of a forward pass without gradients in evaluation mode. All tensors that
      operations return count while they live, input and output included; a view shares the memory of its base.
      Memory that a kernel allocates for itself does not count, nor do weights and buffers;
    - ``backward``: tensors that autograd saves in a forward pass in training mode, with the configuration's dropout,
      each once, the input included, without parameters and buffers. The loss and its own activations are extra;
    - ``cache``: the cache of generation, of a token and of the whole input (see ``CacheBytes``).

    Attention is counted as the CPU computes it. ``unfused`` names the layers for which PyTorch has no fused kernel
    there, in prediction or in training, and the reason: such a layer stores all its attention weights (B, H, T, S).

    Of a mixture of experts, ``active`` counts the parameters that compute a token, and the operations are those of the
    chosen experts, between which the tokens are spread evenly.

    Raises:
        HeedfulError: for an input that does not fit the model, a folder whose weights do not fit it, and an ensemble.

    >>> import heedful
    >>> info = heedful.summary("vit-b/16")
    >>> info.parameters, info.multiply_adds
    (86567656, 17563828224)
    >>> heedful.summary("gpt2", length=1024).memory["bfloat16"].cache
    CacheBytes(token=36864, source_token=0, window=None, total=37748736)
    """
    if depth < 1:
        raise HeedfulError(f"depth is {depth}; give at least 1")
    module, name = module_of(what, image_size)
    if isinstance(module, Ensemble):
        raise HeedfulError(
            f"{name} is an ensemble of {len(module.members)} models, which are counted one by one: heedful summary "
            f"{member_folder(Path(name))}"
        )
    inputs = _inputs(module, input_shape, length, batch)
    meta_module = _on_meta(module)
    try:
        return replace(_count(meta_module, name, inputs), depth=depth)
    except Exception as error:  # modules of other libraries raise any error for a wrong input
        if isinstance(module, Model):
            raise
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"the module takes no input of shape {input_shape} ({reason}); give another shape") from None


def _count(module: nn.Module, name: str, inputs: Sequence[Tensor]) -> Summary:
    """Counts a module on the meta device."""
    counter = FlopCounterMode(display=False)
    recorder = LayerRecorder(module, counter)
    module.eval()
    all_real = {"meta_nonzero_assume_all_nonzero": True}  # batch norm selects the real tokens
    with _config.patch(all_real):  # type: ignore[attr-defined]  # set when the module is imported
        with _frozen(module), counter, torch.no_grad():
            module(*inputs)
        recorder.stop()
        memory, unfused = _memory(module, inputs)
    return Summary(
        name=name,
        input=tuple(tuple(tensor.shape) for tensor in inputs),
        parameters=parameter_count(module),
        active=parameter_count(module) - _idle_count(module),
        trainable=parameter_count(module, trainable_only=True),
        flops=counter.get_total_flops(),
        layers=recorder.layers(module),
        memory=memory,
        unfused=unfused,
    )


def _idle_count(module: nn.Module) -> int:
    """Returns the number of parameters of the experts that do not compute a token."""
    mixtures = (part for part in module.modules() if isinstance(part, Experts))
    return sum((len(part.expert) - part.config.per_token) * parameter_count(part.expert[0]) for part in mixtures)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Context manager in which no parameter requires a gradient.

    Even without gradients a view of a parameter requires one, and PyTorch's counter fails on a module that returns such
    a view.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.requires_grad_(False)
    yield
    for parameter in trainable:
        parameter.requires_grad_()


def _memory(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, Memory], list[Unfused]]:
    """Returns the memory in both types of ``DTYPES``; for a module of another library in its own data type only."""
    memory: dict[str, Memory] = {}
    unfused: list[Unfused] = []
    for dtype in DTYPES if isinstance(module, Model) else (_dtype_of(module),):
        config = module.config if isinstance(module, Model) else None
        dtype_memory, dtype_unfused = measure_memory(module, inputs, dtype, config)
        memory[dtype_memory.dtype] = dtype_memory
        unfused += dtype_unfused
    return memory, unfused


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters()), torch.float32)


def _on_meta(module: nn.Module) -> nn.Module:
    """Returns a copy on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def _inputs(
    module: nn.Module, shape: Sequence[int] | None, length: int | None, batch: int | None
) -> tuple[Tensor, ...]:
    if shape is not None and (length, batch) != (None, None):
        raise HeedfulError("input_shape sets the whole input; leave length and batch out")
    for name, number in (("length", length), ("batch", batch)):
        if number is not None and not 1 <= number <= MAX_SIZE:
            raise HeedfulError(f"{name} is {number}; give a whole number from 1 to {MAX_SIZE}")
    rows = batch or 1
    if not isinstance(module, Model):
        if shape is None:
            raise HeedfulError("a module says nothing of its input; give input_shape, such as (1, 5, 768)")
        return (torch.empty(*shape, dtype=_dtype_of(module), device="meta"),)
    config = module.config
    if (patches := patches_of(config)) is not None:
        if length is not None:
            raise HeedfulError("an image has no length; give image_size, or leave length out")
        pixels = torch.empty(*(shape or (rows, patches.channels, *patches.image_size)), device="meta")
        if not isinstance(config, EncoderDecoderConfig):
            return (pixels,)
        limit = config.decoder.position.length if isinstance(config.decoder.position, LearnedPosition) else LENGTH
        return pixels, torch.zeros(len(pixels), min(LENGTH, limit), dtype=torch.long, device="meta")
    position = module.main.position
    positions = position.length if isinstance(position, LearnedPosition) else None
    given_length = length if shape is None else shape[-1]
    if positions is not None and given_length is not None and given_length > positions:
        raise HeedfulError(f"{given_length} tokens, but the model has {positions} positions; give at most {positions}")
    tokens = length or min(LENGTH, positions or LENGTH)
    ids = torch.zeros(*(shape or (rows, tokens)), dtype=torch.long, device="meta")
    return (ids, ids) if isinstance(config, EncoderDecoderConfig) else (ids,)


class LayerRecorder:
    """Recorder of the calls of a model's modules: their order, shapes, parameters and FLOPs.

    A list of modules is never called itself; the calls of its modules count for it too.
    """

    def __init__(self, module: nn.Module, counter: FlopCounterMode) -> None:
        self.counter = counter
        self.running: list[tuple[str, int]] = []  # path, and the count of FLOPs at its start
        self.order: dict[str, int] = {}
        self.shapes: dict[str, tuple[Any, Any]] = {}
        self.used: dict[str, dict[int, int]] = defaultdict(dict)  # sizes of parameters, by identity
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
        for name in (*reversed(self._uncalled_owners(path)), path):
            self.order.setdefault(name, len(self.order))

    def _leave(self, path: str, part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        owners = self._uncalled_owners(path)
        spent = self.counter.get_total_flops() - self.running.pop()[1]
        for name in (path, *owners):
            self.flops[name] += spent
        first = next((tuple(x.shape) for x in inputs if isinstance(x, Tensor)), None)
        self.shapes[path] = (first, tuple(output.shape) if isinstance(output, Tensor) else None)

    def _uncalled_owners(self, path: str) -> list[str]:
        """Returns the owners of ``path`` that are not running: lists, and modules whose ``forward`` is not called."""
        running = {name for name, _ in self.running}
        owner, owners = path, []
        while owner and (owner := owner.rpartition(".")[0]) not in running:
            owners.append(owner)
        return owners

    def stop(self) -> None:
        """Ends the recording: removes the hooks from the modules."""
        for hook in self.hooks:
            hook.remove()

    def layers(self, module: nn.Module) -> list[Layer]:
        """Returns the modules that have or use parameters, in the order of their first calls."""
        layers, order = [], {"": -1}
        for path, part in module.named_modules():
            sizes = {id(p): p.numel() for p in part.parameters()} | self.used[path]
            if path:
                order[path] = self.order.get(
                    path, order[path.rpartition(".")[0]]
                )  # an uncalled module follows its owner
            if path and sizes:
                shapes = self.shapes.get(path, (None, None))
                layers.append(Layer(path, type(part).__name__, *shapes, sum(sizes.values()), self.flops[path]))
        return sorted(layers, key=lambda layer: order[layer.path])
