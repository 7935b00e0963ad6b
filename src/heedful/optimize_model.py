"""Optimises a model for inference: fused projections, prepacked or quantised weights, and the plan of its device."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.adapters import merge
from heedful.config import LanguageHead, MaskedHead
from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import keep_few_kernels, keep_memory
from heedful.kernels.captured import CapturedSteps, can_capture
from heedful.kernels.compiled_step import STEPS, has_sequences
from heedful.kernels.few_rows import (
    GROUP,
    CompiledLinear,
    Weights,
    compiled_linear_factory,
    is_ready,
    library,
)
from heedful.kernels.few_rows_build import features
from heedful.kernels.fused_projections import FusedAttention, plain_linear
from heedful.kernels.onednn_linear import has_onednn
from heedful.kernels.plan import apply_plan
from heedful.kernels.prepacked_linear import (
    Activation,
    FloatLinear,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PrepackedLinear,
    activation_name,
)
from heedful.layers.attention import Attention
from heedful.layers.block import Block
from heedful.layers.feedforward import FeedForward
from heedful.layers.linear import ALIGNED, AlignedLinear, Linear
from heedful.models.base import Model
from heedful.stack import Stack
from heedful.util.machine import available_memory

M = TypeVar("M", bound=Model)
log = logging.getLogger("heedful")

# by dtype: the class of prepacked linear maps (None: plain ones), and the dtype of all other weights
LINEAR_CLASSES: dict[str, tuple[type[PrepackedLinear] | None, torch.dtype]] = {
    "float64": (None, torch.float64),
    "float32": (FloatLinear, torch.float32),
    "bfloat16": (FloatLinear, torch.bfloat16),
    "float16": (HalfLinear, torch.float32),
    "int8": (Int8Linear, torch.float32),
    "int4": (Int4Linear, torch.float32),
}
DtypeName = Literal["float64", "float32", "bfloat16", "float16", "int8", "int4"]  # the keys, for editors
CPU_ONLY = ("int8", "int4")
SEQUENCES = ("float32", "bfloat16", "int8", "int4")  # dtypes in which whole sequences have compiled kernels
DECODER, ENCODER = "decoder", "encoder"  # stacks of a model
BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4}


@torch.no_grad()
def optimize(model: M, dtype: DtypeName | torch.dtype | None = None, *, compiled_decoding: bool = True) -> M:
    """Optimises a model for inference, in place and permanently: the same outputs in less time.

    - The projections of self-attention become one product. On a CPU the rows of DeBERTa's positions are projected once
      for texts of one length, and stored in each block.
    - On a CPU the weights of linear maps are prepacked (``heedful.kernels.prepacked_linear``) and are no longer
      parameters.
    - On a GPU the output projection to a vocabulary gets rows of zeros up to a multiple of 64; logits are without them.
    - The plan "cpu-compiled", "cpu-inference" or "gpu" is applied (``heedful.kernels.plan``). On a CPU it skips
      padding, whose hidden states become zeros, and in the last block also the tokens that the head does not read. On a
      GPU it leaves padding out of attention, in half precision.
    - An adapter is merged first.
    - The process keeps freed memory for later tensors (``heedful.kernels.allocator``).

    The model generates, predicts and is recorded as before. While it is recorded, padding and all tokens are computed;
    outputs are equal up to rounding. The model can no longer be trained, saved or pruned: load it again for that.

    Args:
        model: any model; it is returned, in evaluation mode.
        dtype: "float32", "bfloat16" or "float64"; "float16", on a CPU weights of float16 and arithmetic in float32;
            "int8" and "int4", on a CPU only: weights of 8 or 4 bits in the blocks and the output projection to a
            vocabulary (``Int8Linear``, ``Int4Linear``), all others float32. None: the model's type.
        compiled_decoding: True: a model that generates decodes by compiled steps; this is not ``torch.compile``. On a
            CPU, steps of a few rows run C++ code (``heedful.kernels.few_rows``). If it is not compiled yet, g++ does so
            in the background, in a few seconds, once for a processor, and the first ``generate`` or call of a pipeline
            that begins afterwards uses it (``Model.compiling``). Where it cannot be had (no g++, no memory for the
            decoder's weights in a second order) a line says so, and PyTorch's kernels are used. On a CPU with
            AVX512-VNNI the same code computes whole sequences, of encoders and of prompts, in float32, bfloat16 (if the
            processor has no AMX), int8 and int4 (``has_sequences``). On an NVIDIA GPU ``generate`` captures decoding
            steps as CUDA graphs and replays them (``heedful.kernels.captured``). False: always PyTorch's kernels.

    Raises:
        HeedfulError: for a dtype that is unknown, or that the weights, the device or this CPU do not support, and for a
            model that is already optimised.

    >>> import heedful
    >>> model = optimize(heedful.create("gpt-micro", seed=0), "int8")
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    """
    if model.optimised:
        raise HeedfulError(f"the model is already optimised, in {model.optimised}; load it again for another dtype")
    dtype_name = str(model.dtype if dtype is None else dtype).removeprefix("torch.")
    if dtype_name not in LINEAR_CLASSES:
        raise HeedfulError(f"no model can be optimised to dtype {dtype_name!r}; {nearest(dtype_name, LINEAR_CLASSES)}")
    keep_few_kernels()
    if model.device.type == "cpu":
        keep_memory()  # what a linear map needs while it is made serves the next
    linear_class, other_dtype = _linear_class(model, dtype_name)
    captures = compiled_decoding and generates(model) and can_capture(model.device)
    compiled: tuple[str, ...] = ()
    ready = None
    if compiled_decoding and linear_class is not None:
        compiled = compiled_stacks(model, dtype_name)
        ready = _library_is_ready(model, compiled, dtype_name) if compiled else None
    makers: dict[str, Callable[..., nn.Module]] = {}
    if linear_class is not None and ready is not None:
        groups = {DECODER: GROUP, ENCODER: None}  # rows of an encoder are rounded with one scale
        makers = {each: compiled_linear_factory(linear_class, not ready, groups[each]) for each in compiled}
    if model.adapter is not None:
        merge(model)
    model.to(other_dtype).requires_grad_(False)
    parameters_before = model.num_parameters()
    small_class = FloatLinear if linear_class is not None and has_onednn(other_dtype) else None
    _replace_linears(model, makers, linear_class, small_class)
    if model.device.type == "cpu":  # on a GPU a call for each length may cost more than padding
        apply_plan(model, "cpu-compiled" if ready and makers else "cpu-inference")
        model.compiling = Preparation(model) if ready is False else None
    else:
        apply_plan(model, "gpu")
    model.optimised, model.prepacked = dtype_name, parameters_before - model.num_parameters()
    model.captured = CapturedSteps() if captures else None
    model.on_copy = prepare_copy
    return model.eval()  # includes the new parts


def _linear_class(model: Model, dtype_name: str) -> tuple[type[PrepackedLinear] | None, torch.dtype]:
    """Returns the class of prepacked linear maps (None if maps stay plain) and the dtype of other weights.

    Raises ``HeedfulError`` for a dtype that the device or the weights do not support.
    """
    linear_class, other_dtype = LINEAR_CLASSES[dtype_name]
    if model.device.type != "cpu":
        if dtype_name in CPU_ONLY:
            raise HeedfulError(f"{dtype_name} weights need a CPU, but the model is on {model.device}; use bfloat16")
        return None, getattr(torch, dtype_name)
    if linear_class is FloatLinear:
        return FloatLinear if has_onednn(other_dtype) else None, other_dtype
    if linear_class is not None:
        _check_weights(model, linear_class)
    return linear_class, other_dtype


class Preparation:
    """Compiled kernels that are made in the background, for a model that meanwhile works without them.

    Args:
        model: whose linear maps wait for the library (``CompiledLinear``).
    """

    def __init__(self, model: Model) -> None:
        self.linears = [part for part in model.modules() if isinstance(part, CompiledLinear)]
        self.weights: list[Weights] = []
        self.problem = ""
        self.thread = Thread(target=self._prepare, name="heedful-compiling", daemon=True)
        self.thread.start()

    def _prepare(self) -> None:
        try:
            library()
            with torch.inference_mode():
                self.weights = [linear.prepared() for linear in self.linears]
        except HeedfulError as error:
            self.problem = str(error)

    def __repr__(self) -> str:
        return "in the background" if self.thread.is_alive() else "done"

    def finish(self, model: Model) -> bool:
        """Puts the kernels on the model if they are ready; returns True if they are. A warning says why they fail."""
        if self.thread.is_alive():
            return False
        model.compiling = None
        if self.problem or len(self.weights) != len(self.linears):
            log.warning("%s is not compiled: %s", _work(model), self.problem or "the kernels could not be prepared")
            return False
        for linear, weights in zip(self.linears, self.weights, strict=True):
            linear.use(weights)
        for stack in (part for part in model.modules() if isinstance(part, Stack)):
            STEPS.pop(stack, None)
        apply_plan(model, "cpu-compiled")
        log.info("%s is compiled from now on", _work(model))
        return True


def prepare_copy(model: Model) -> None:
    """Gives compiled kernels to a copied or unpickled model, whose linear maps wait for them: at once if this process
    has them, else they are compiled in the background.
    """
    linears = [part for part in model.modules() if isinstance(part, CompiledLinear)]
    if not linears:
        return
    apply_plan(model, "cpu-inference")
    with suppress(HeedfulError):  # no compiler here
        if not is_ready():
            model.compiling = Preparation(model)
            return
        for linear in linears:
            linear.use(linear.prepared())
        apply_plan(model, "cpu-compiled")


def generates(model: Model) -> bool:
    """Returns True for a model that generates, and so has decoding steps."""
    return hasattr(model, "decoder") and isinstance(model.config.head, LanguageHead)


def compiled_stacks(model: Model, dtype_name: str) -> tuple[str, ...]:
    """Returns the stacks of a model that have compiled kernels: a decoder that generates, and on a processor with
    AVX512-VNNI an encoder that attends to all tokens without a bias (``has_sequences``).
    """
    stacks = (DECODER,) if generates(model) else ()
    encoder, found = getattr(model, ENCODER, None), features()
    if dtype_name not in SEQUENCES or not isinstance(encoder, Stack) or encoder.config.causal:
        return stacks
    if "avx512_vnni" not in found or (dtype_name == "bfloat16" and "amx_bf16" in found):  # PyTorch has tiles, too
        return stacks
    return (*stacks, ENCODER) if has_sequences(encoder) and _has_known_activations(encoder) else stacks


def _has_known_activations(stack: Stack) -> bool:
    try:
        for block in stack.block:
            activation_name(block.feed_forward.activation)  # type: ignore[union-attr, arg-type]  # a ``FeedForward``
    except (AttributeError, HeedfulError):  # a part or an activation of your own
        return False
    return True


def _work(model: Model) -> str:
    return "decoding" if generates(model) else "the encoder"


def _library_is_ready(model: Model, stacks: tuple[str, ...], dtype_name: str) -> bool | None:
    """Returns True if the compiled kernels are there, False if they can be compiled, and None if they cannot be had or
    the memory has no room for the weights of these stacks in their order; a warning then says why.
    """
    parts = [part for stack in stacks for _, part in _linears(model.get_submodule(stack))]
    needed = sum(part.weight.numel() for part in parts) * BITS[dtype_name] // 8
    free = available_memory()
    if free is not None and needed > free // 2:
        message = "%s is not compiled: the weights would need %.1f GB more, of %.1f free"
        log.warning(message, _work(model), needed / 1e9, free / 1e9)
        return None
    try:
        return is_ready()
    except HeedfulError as error:
        level = logging.WARNING if platform.system() == "Linux" else logging.INFO  # elsewhere there is no remedy
        log.log(level, "%s is not compiled: %s", _work(model), error)
        return None


def _replace_linears(
    model: Model,
    makers: Mapping[str, Callable[..., nn.Module]],
    linear_class: type[PrepackedLinear] | None,
    small_class: type[PrepackedLinear] | None,
) -> None:
    """Fuses the projections of each block, and replaces every linear map.

    ``makers`` make the linear maps in the blocks of a stack, that of ``DECODER`` also the output projection to a
    vocabulary; ``linear_class`` those of other blocks, ``small_class`` all others.
    """
    for path, block in model.named_modules():
        if isinstance(block, Block):
            _fuse(block, makers.get(path.partition(".")[0], linear_class))
    has_vocabulary = isinstance(model.config.head, LanguageHead | MaskedHead)
    for path, linear in _linears(model):
        if has_vocabulary and path == "head.output":
            make = makers.get(DECODER, linear_class)
        else:
            make = makers.get(path.partition(".")[0], linear_class) if ".block." in path else small_class
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, _packed_linear(make, linear.weight, linear.bias))
    _share_linears(model)
    if has_vocabulary and model.device.type != "cpu" and type(model.get_submodule("head.output")) is Linear:
        _align_vocabulary(model)


def replace_decoding_linears(model: Model, make: Callable[..., nn.Module]) -> None:
    """Fuses the projections of the decoder's blocks; ``make`` makes their linear maps and the one to the vocabulary."""
    for path, block in model.named_modules():
        if path.startswith("decoder.") and isinstance(block, Block):
            _fuse(block, make)
    for path, linear in _linears(model):
        if path.startswith("decoder.block.") or path == "head.output":
            parent, _, attribute = path.rpartition(".")
            setattr(model.get_submodule(parent), attribute, make(linear.weight, linear.bias))
    _share_linears(model)


def _share_linears(model: Model) -> None:
    """Gives blocks that share their weights the same linear maps, so that these are stored once."""
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        for index, block in enumerate(stack.block):
            first = stack.block[index - index % stack.config.shared_blocks]
            for path, part in first.named_modules() if first is not block else ():
                if isinstance(part, Linear | PrepackedLinear | CompiledLinear):
                    block.set_submodule(path, part)


def _align_vocabulary(model: Model) -> None:
    """Adds rows of zeros to the output projection to a vocabulary that is no multiple of 64 (``AlignedLinear``).

    A tied embedding shares its memory, until the model is moved or copied.
    """
    output = cast(Linear, model.get_submodule("head.output"))
    if output.out_features % ALIGNED == 0:
        return
    aligned, address = AlignedLinear(output.weight, output.bias), output.weight.data_ptr()
    for embedding in (part for part in model.modules() if isinstance(part, nn.Embedding)):
        if embedding.weight.shape == output.weight.shape and embedding.weight.data_ptr() == address:
            embedding.weight = nn.Parameter(aligned.weight[: output.out_features], requires_grad=False)
    model.set_submodule("head.output", aligned)


def load_dtype(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype | None:
    """Returns the dtype in which to load the weights of a model that will be optimised to ``dtype`` on ``device``.

    >>> load_dtype("int8", torch.device("cpu")), load_dtype("bfloat16", torch.device("cpu"))
    (torch.float32, torch.bfloat16)
    """
    dtype_name = str(dtype).removeprefix("torch.")
    if dtype_name in CPU_ONLY or (dtype_name in LINEAR_CLASSES and device.type == "cpu"):
        return LINEAR_CLASSES[dtype_name][1]
    return dtype


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yields the path and the module of each linear map that is not prepacked yet."""
    yield from [(path, module) for path, module in model.named_modules() if type(module) is Linear]


def _packed_linear(
    make: Callable[..., nn.Module] | None, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
) -> nn.Module:
    return plain_linear(weight, bias) if make is None else make(weight, bias, activation)


def _fuse(block: nn.Module, make: Callable[..., nn.Module] | None) -> None:
    """Fuses the projections of self-attention, and the activation with the linear map before it."""
    if type(block.attention) is Attention:
        block.attention = FusedAttention(block.attention, partial(_packed_linear, make))
    feed_forward = block.feed_forward
    if make is not None and isinstance(feed_forward, FeedForward):
        attribute = "up" if feed_forward.gate is None else "gate"
        linear = getattr(feed_forward, attribute)
        setattr(feed_forward, attribute, make(linear.weight, linear.bias, feed_forward.activation))
        feed_forward.activation = _identity


def _identity(x: Tensor) -> Tensor:
    """Returns ``x``: the activation of a feed-forward network whose linear map already applies it."""
    return x


def _check_weights(model: nn.Module, linear_class: type[PrepackedLinear]) -> None:
    """Raises ``HeedfulError`` if a weight of a block cannot be stored in ``linear_class``; names its path."""
    for path, linear in _linears(model):
        if ".block." in path:
            try:
                linear_class.check(linear.weight)
            except HeedfulError as error:
                raise HeedfulError(f"{path}: {error}") from None
