"""Compiled kernels: few rows, and whole sequences, through linear maps and whole stacks, in C++ for this processor.

A decoding step is bound by memory bandwidth, and PyTorch adds a call for each of its two hundred small operations.
``few_rows.cpp`` computes all blocks of a stack in one call and reads each weight once, in its own format;
``whole_sequences.h``, a part of it, does so for encoders and prompts, a few dozen tokens at a time. Wheels have
it compiled for each kind of processor; elsewhere the machine's own C++ compiler compiles it once, in a few seconds. Any
model uses it.

Shapes: R rows (one token each), D model width, H query heads, G key-value heads, E head size, S keys.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_uint64, c_void_p
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.kernels.few_rows_build import (
    DIGEST,
    FLAGS,
    SOURCE,
    TIMEOUT,
    BuildError,
    build_in_own_process,
    compiler,
    features,
    packaged,
    source_text,
    version,
)
from heedful.kernels.prepacked_linear import (
    Activation,
    FloatLinear,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PrepackedLinear,
    activation_name,
    int8_weight_levels,
)
from heedful.util.files import cache_folder, read_own_bytes, shared_folder

GROUP = 256  # inputs of a decoder's row that int8 rounds with one scale
TILE_INPUTS, MOST_SUMMED = 64, 2**15  # inputs of int8 in a tile; products of bytes that 32 bits can hold for sure
BLOCK, TILE = 16, 16  # outputs of interleaved weights that are side by side; lines of a tile
ROWS_APART = 64  # rows from which threads divide rows among them, not outputs
PROGRESS = 8  # int64 numbers of a ``Progress`` of the source
LAYER_NORM, RMS_NORM, LINEAR, APPEND, SELF_ATTENTION, CROSS_ATTENTION, MULTIPLY, ADD, EMBED, CHOOSE = range(10)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")  # in the order of the source's enum
log = logging.getLogger("heedful")
WITHOUT = "do without them: --no-compiled-decoding, or compiled_decoding=False"
UNLIMITED = sys.maxsize
_one_order = Lock()
MANY = "map_for_many_rows"  # attribute of a ``CompiledLinear``
# formats in the order of the source, and the most rows for which their compiled kernel is the fastest: with interleaved
# weights, and without
MOST_ROWS = {
    torch.float32: (64, 12),
    torch.bfloat16: (128, 6),
    torch.float16: (64, 16),
    torch.int8: (UNLIMITED, 12),
    torch.uint8: (UNLIMITED, 32),  # PyTorch's kernel takes three times as long
}
INT8_IN_TILES = 128
FORMATS = tuple(MOST_ROWS)  # uint8: two int4 weights


class Operation(Structure):
    """Step of a program; its fields are those of the source."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "x", "y")),
        *((name, c_int64) for name in ("inputs", "outputs", "format", "activation", "layer", "accumulate", "group")),
        *((name, c_void_p) for name in ("weight", "groups", "scale", "bias", "query_norm", "key_norm")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_size")),
        *((name, c_double) for name in ("factor", "epsilon", "key_epsilon")),
    )


class KeyValues(Structure):
    """KeyValues and values of an attention in a call; its fields are those of the source."""

    _fields_ = (
        *((name, c_void_p) for name in ("key", "value")),
        *((name, c_int64) for name in ("row_stride", "head_stride", "columns", "queries_per_source")),
        *((name, c_void_p) for name in ("slots", "rows")),
        ("in_order", c_int64),
        ("bias", c_void_p),
        *((name, c_int64) for name in ("bias_row_stride", "bias_head_stride")),
    )


class Call(Structure):
    """Call of a program; its fields are those of the source."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "threads", "bfloat16_keys")),
        *((name, c_void_p) for name in ("scratch", "scores")),
        ("max_keys", c_int64),
        *((name, c_void_p) for name in ("cosine", "sine")),
        ("rotation_stride", c_int64),
        ("keys", POINTER(KeyValues)),
        ("progress", c_void_p),
        *((name, c_int64) for name in ("step", "step_rotation")),
        *((name, c_void_p) for name in ("tokens", "log_p", "positions")),
        ("position_rows", c_int64),
        ("ends", c_void_p),
        *((name, c_int64) for name in ("end_count", "without_end")),
        ("has_ended", c_void_p),
        *((name, c_int64) for name in ("enough", "width", "bfloat16_attention", "causal", "sequences", "shared")),
        ("starts", c_void_p),
        ("last_layer", c_int64),
        *((name, c_void_p) for name in ("selected", "selected_starts")),
    )


class Weights(NamedTuple):
    """Weights of a linear map as the source reads them; ``values`` and ``groups`` may be ``interleaved``."""

    values: Tensor  # (out, in) in its format; int4 (out, in / 2)
    scales: Tensor | None = None  # (out,) float32, of int8
    groups: Tensor | None = None  # (out, in / 32, 2) bfloat16, scale and middle of each group of int4


def weights_of(linear_class: type[PrepackedLinear], numbers: Sequence[Tensor]) -> Weights:
    """Returns a weight (out, in) for the compiled kernel; ``numbers`` are ``linear_class.numbers(weight)``."""
    if linear_class is Int8Linear:
        levels, scales = numbers
        return Weights(interleaved(levels ^ -128, TILE) if is_interleaved() else levels, scales)  # q + 128, in a byte
    if linear_class is Int4Linear:
        levels, scales, middle = numbers
        halves = levels.unflatten(1, (-1, 2, Int4Linear.GROUP // 2))  # (out, groups, 2, 16)
        values = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).contiguous()
        groups = torch.stack((scales, middle), -1).contiguous()
        if is_interleaved():
            values, groups = interleaved(values), interleaved(groups.flatten(1))
        return Weights(values, None, groups)
    (values,) = numbers
    values = values.to(torch.float16) if linear_class is HalfLinear else values
    if not is_interleaved():
        return Weights(values.contiguous())
    return Weights(interleaved(values, 1 if values.dtype is torch.float32 else TILE))


def rounded_numbers(linear_class: type[PrepackedLinear], weight: Tensor) -> Sequence[Tensor]:
    """Returns ``linear_class.numbers(weight)``; of int8 and int4 by compiled code, which reads the weight once."""
    weight = weight.detach()
    if linear_class not in (Int8Linear, Int4Linear) or weight.dtype is not torch.float32 or not weight.numel():
        return linear_class.numbers(weight)
    (outputs, inputs), threads = weight.shape, torch.get_num_threads()
    given = (weight.data_ptr(), outputs, inputs, *weight.stride())
    empty = partial(torch.empty, device="cpu")
    if linear_class is Int8Linear:
        levels, scales = empty(outputs, inputs, dtype=torch.int8), empty(outputs, dtype=torch.float32)
        library().round8(*given, int8_weight_levels(), levels.data_ptr(), scales.data_ptr(), threads)
        return levels, scales
    levels = empty(outputs, inputs, dtype=torch.uint8)
    scales, middles = (empty(outputs, inputs // Int4Linear.GROUP, dtype=torch.bfloat16) for _ in range(2))
    library().round4(*given, levels.data_ptr(), scales.data_ptr(), middles.data_ptr(), threads)
    return levels, scales, middles


def is_interleaved() -> bool:
    """Returns True if the compiled kernels read interleaved weights, as on processors with AVX512-VNNI."""
    return bool(library().interleaved())


def has_tiles() -> bool:
    """Returns True if the compiled kernels multiply in tiles (AMX)."""
    return bool(library().interleaved() == 2)


def checksum(tensor: Tensor) -> int:
    """Returns a number of the bits of a tensor whose memory is dense, read at memory bandwidth."""
    size = tensor.numel() * tensor.element_size()
    number: int = library().checksum(tensor.data_ptr(), size, torch.get_num_threads())
    return number


def interleaved(rows: Tensor, multiple: int = 1) -> Tensor:
    """Interleaves the numbers of 16 ``rows`` (N, K) at a time: (⌈N / 16⌉, ⌈K / t⌉, 16, t), t numbers in four bytes.

    Zeros fill up the last block of rows, and the second size to a ``multiple``.

    >>> interleaved(torch.arange(6).to(torch.float16).view(2, 3))[0, :, :2].tolist()
    [[[0.0, 1.0], [3.0, 4.0]], [[2.0, 0.0], [5.0, 0.0]]]
    """
    together = 4 // rows.element_size()
    if together > 1:
        rows = rows.contiguous()
    lines = -(-rows.size(1) // (together * multiple)) * multiple
    out = torch.empty(-(-len(rows) // BLOCK), lines, BLOCK, together, dtype=rows.dtype, device="cpu")
    row, number = (stride * rows.element_size() for stride in rows.stride())
    between = number * together  # bytes from one four to the next
    library().interleave(
        rows.data_ptr(),
        *rows.shape[:1],
        rows.size(1) * rows.element_size(),
        row,
        between,
        out.data_ptr(),
        lines,
        torch.get_num_threads(),
    )
    return out


# ------------------------------------------------------------------------------------------------------------ library


_one_load = Lock()  # a thread may wait for the compiler while another asks for the library


def library() -> Any:
    """Returns the compiled library: the wheel's, or that in the user's cache folder, into which it is compiled first.

    Raises ``HeedfulError`` without GCC, if it fails or hangs, and if the library cannot be stored or loaded.
    """
    with _one_load:
        return _library()


def is_ready() -> bool:
    """Returns True if the library is there, and False if it is being compiled or can be, without waiting for it.

    Raises ``HeedfulError`` if there is no compiler, or no folder for the library.
    """
    if not _one_load.acquire(blocking=False):
        return False
    try:
        if not _library.cache_info().currsize:
            if packaged() is None and not _is_whole(_file(_command())):
                return False
            _library()
        return True
    finally:
        _one_load.release()


@cache
def _library() -> Any:
    file = packaged()
    try:
        loaded = _loaded(command := _command(), _file(command)) if file is None else ctypes.CDLL(str(file))
    except BuildError as error:
        raise HeedfulError(f"{error}; {WITHOUT}") from None
    except OSError as error:
        raise HeedfulError(_unstored(error)) from None
    loaded.run.argtypes, loaded.run.restype = (c_void_p, c_int64, c_void_p, c_int64), c_int64
    loaded.run_sequences.argtypes, loaded.run_sequences.restype = (c_void_p, c_int64, c_void_p), None
    loaded.interleaved.argtypes, loaded.interleaved.restype = (), c_int64
    loaded.checksum.argtypes, loaded.checksum.restype = (c_void_p, c_int64, c_int64), c_uint64
    loaded.round8.argtypes = (c_void_p, *(c_int64,) * 5, c_void_p, c_void_p, c_int64)
    loaded.round4.argtypes = (c_void_p, *(c_int64,) * 4, c_void_p, c_void_p, c_void_p, c_int64)
    loaded.round8.restype = loaded.round4.restype = None
    loaded.interleave.restype = None
    loaded.interleave.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64)
    return loaded


def _flags() -> tuple[str, ...]:
    """Returns the flags of the compiler.

    Without interleaved weights rows are summed in tiles of several shapes. Tuned for some processors the compiler fuses
    multiplication and addition in some of them and not in others, so that a row would depend on those beside it.
    """
    return FLAGS if "avx512_vnni" in features() else (*FLAGS, "-mtune=generic")


def _command() -> tuple[str, ...]:
    """Returns the compiler's command; raises ``HeedfulError`` if there is none."""
    command = compiler()
    if command is None:
        raise HeedfulError(f"compiled kernels need Linux and a wheel or the C++ compiler g++; install it, or {WITHOUT}")
    return command


def _file(command: tuple[str, ...]) -> Path:
    """Returns the place of the library in the user's cache folder, which is made."""
    try:
        key = "\n".join((source_text(SOURCE), *_flags(), *command, version(command, TIMEOUT), _processor()))
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o700)
    except BuildError as error:
        raise HeedfulError(f"{error}; {WITHOUT}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        raise HeedfulError(_unstored(error)) from None
    return folder / f"few-rows-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


def _unstored(error: Exception) -> str:
    return (
        f"the compiled kernels cannot be stored or loaded: {error}; set HEEDFUL_CACHE to another folder, or {WITHOUT}"
    )


def _loaded(command: tuple[str, ...], file: Path) -> ctypes.CDLL:
    """Loads a library from ``file``, into which it is compiled first unless it is there.

    A library runs as this user, so none is loaded that another user may have written: in a folder that others may write
    to it is compiled for this process alone.
    """
    if (shared := shared_folder(file.parent)) is not None:
        log.warning("other users may write to %s, so that the compiled kernels are not kept there: chmod go-w", shared)
        with tempfile.TemporaryDirectory() as own:
            _compile(command, Path(own, file.name))
            return ctypes.CDLL(str(Path(own, file.name)))
    if not _is_whole(file):
        _compile(command, file)
    return ctypes.CDLL(str(file))


def _is_whole(file: Path) -> bool:
    """Returns True if a library exists, only this user may write it and its folder, and it ends with its digest.

    Loading a truncated file would crash the process.
    """
    content = read_own_bytes(file)
    if content is None or shared_folder(file.parent) is not None:
        return False
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _compile(command: tuple[str, ...], file: Path) -> None:
    log.warning("compiling the kernels for this processor: a few seconds, once")
    build_in_own_process(command, file, _flags(), SOURCE, TIMEOUT)


def _processor() -> str:
    """Returns a description of the processor, whose instructions the compiled code uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(names))) or platform.processor()


def run(operations: Any, call: Call, steps: int = 1) -> int:
    """Computes ``operations``, an array of ``Operation``, at most ``steps`` times; returns how often."""
    progress = torch.zeros(steps * len(operations) * PROGRESS, dtype=torch.int64, device="cpu")
    call.progress = progress.data_ptr()
    done: int = library().run(operations, len(operations), byref(call), steps)
    return done


def run_sequences(operations: Any, call: Call) -> None:
    """Computes ``operations``, an array of ``Operation``, for whole sequences.

    Threads divide the rows among them between two attentions, not the outputs of each operation as ``run`` does.
    """
    progress = torch.zeros(len(operations) * PROGRESS, dtype=torch.int64, device="cpu")
    call.progress = progress.data_ptr()
    library().run_sequences(operations, len(operations), byref(call))


# --------------------------------------------------------------------------------------------------------- linear map


class CompiledLinear(PrepackedLinear):
    """act(x Wᵀ + b) by the compiled kernel for a few rows (``most_rows``), and by another prepacked map for more.

    The weights of each kernel are made when it is first needed, rounded to the same numbers; if the compiled kernel
    takes any number of rows, they are in memory once. ``x`` is rounded only on processors that multiply small numbers:
    with AVX512-VNNI, for int8 and int4, groups of ``group`` and of 32 inputs to 8 bits, each with its own scale; with
    AVX512-BF16, for bfloat16, to bfloat16.

    Args:
        linear_class: class of the map for many rows.
        weight: (out, into), floating point.
        bias: (out,), or None.
        activation: applied to each output; None is the identity.
        waits: True if the library is not there yet: until ``use`` the other map takes all rows.
        group: number of inputs of int8 that are rounded with one scale, a multiple of 64; None: all.

    Attributes:
        weights: of the compiled kernel; None before ``use``.
        most_rows: number of rows up to which the compiled kernel is used.
    """

    packed_names = ("unpacked", "weights", "most_rows", MANY)

    def __init__(
        self,
        linear_class: type[PrepackedLinear],
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Activation | None = None,
        *,
        waits: bool = False,
        group: int | None = GROUP,
    ) -> None:
        linear_class.check(weight)
        activation_name(activation)  # raises for one without a kernel
        numbers = linear_class.numbers if waits else partial(rounded_numbers, linear_class)
        super().__init__(weight, bias, activation, numbers=numbers(weight))
        self.linear_class, self.dtype = linear_class, weight.dtype
        self.bias = None if bias is None else bias.detach().float().clone()
        whole = min(-(-weight.size(1) // TILE_INPUTS) * TILE_INPUTS, MOST_SUMMED)
        self.group = whole if group is None else group
        if not waits:
            self.use(self.prepared())

    def pack(self, *numbers: Tensor) -> None:
        """Keeps the numbers until both kernels have them in their order."""
        self.unpacked, self.most_rows = numbers, 0
        self.weights: Weights | None = None

    def stored_numbers(self) -> Sequence[Tensor]:
        """Returns the numbers of the weights, which both kernels have, in the order of neither."""
        if unpacked := self.unpacked:  # another thread may be making a map, and frees them then
            return unpacked
        if self.many_rows is not None:
            return self.many_rows.stored_numbers()
        assert self.weights is not None
        return interleaved_numbers(self.weights, self.out_features, self.in_features)

    def prepared(self) -> Weights:
        """Returns the weights of the compiled kernel, which are not used yet."""
        return weights_of(self.linear_class, self.unpacked)

    def use(self, weights: Weights) -> None:
        """Uses the compiled kernel from now on; ``weights`` are ``prepared``."""
        with _one_order:  # another thread may be making the other map
            self.weights = weights
            self.most_rows = most_rows(weights.values.dtype)
            if self.most_rows == UNLIMITED:
                vars(self).pop(MANY, None)
            if MANY in vars(self) or self.most_rows == UNLIMITED:
                self.unpacked = ()

    @property
    def many_rows(self) -> PrepackedLinear | None:
        """The map for more rows, made when it is first needed; None if there is no limit."""
        made: PrepackedLinear | None = vars(self).get(MANY)
        if made is not None or self.most_rows == UNLIMITED:
            return made
        with _one_order:  # threads may need it at once
            if self.most_rows != UNLIMITED and MANY not in vars(self):
                vars(self)[MANY] = self._many_rows()  # no part of the model, in whose weights it is not counted
            return vars(self).get(MANY)

    def _many_rows(self) -> PrepackedLinear:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        size = torch.empty(self.out_features, self.in_features, dtype=self.dtype, device="meta")
        many_rows = self.linear_class(size, bias, self.activation, numbers=self.unpacked)
        if self.weights is not None:
            self.unpacked = ()
            if isinstance(many_rows, FloatLinear):
                many_rows.plain = None  # it is for a few rows
        return many_rows

    @property
    def weight(self) -> Tensor:
        """Rounded W (out, into)."""
        return self.linear_class.of_numbers(self.stored_numbers())

    def operation(self, x: int = 0, y: int | None = None, accumulate: bool = False) -> Operation:
        """Returns the operation that maps the buffer at ``x`` to that at ``y``, or adds to it."""
        assert not accumulate or self.activation is None  # the activation is applied to the whole buffer
        assert self.weights is not None
        values, scales, groups = self.weights
        return Operation(
            kind=LINEAR,
            x=x,
            y=self.in_features if y is None else y,
            inputs=self.in_features,
            outputs=self.out_features,
            format=FORMATS.index(values.dtype),
            activation=ACTIVATIONS.index(activation_name(self.activation)),
            accumulate=accumulate,
            group=self.group,
            weight=values.data_ptr(),
            scale=pointer(scales),
            groups=pointer(groups),
            bias=pointer(self.bias),
        )

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b)."""
        count = len(rows)
        other = None if 0 < count <= self.most_rows else self.many_rows
        if other is not None:
            return other.product(rows)
        width = self.in_features + self.out_features
        scratch = torch.empty(count * width, dtype=torch.float32, device="cpu")
        scratch[: count * self.in_features].view_as(rows).copy_(rows)
        call = Call(rows=count, threads=torch.get_num_threads(), scratch=scratch.data_ptr(), shared=width)
        if count < ROWS_APART or not is_interleaved():
            run((Operation * 1)(self.operation()), call)
        else:
            run_sequences((Operation * 1)(self.operation()), call)  # threads take rows, not outputs
        return scratch[count * self.in_features :].view(count, self.out_features).to(rows.dtype)


def most_rows(dtype: torch.dtype) -> int:
    """Returns the number of rows up to which the compiled kernel of weights of this dtype is the fastest."""
    if not is_interleaved():
        return MOST_ROWS[dtype][1]
    if dtype is torch.int8 and has_tiles():
        return INT8_IN_TILES  # a scale for each group of inputs costs more than the tiles save
    return MOST_ROWS[dtype][0]


def interleaved_numbers(weights: Weights, outputs: int, inputs: int) -> Sequence[Tensor]:
    """Returns the numbers of interleaved int8 or int4 weights (``Int8Linear.numbers``, ``Int4Linear.numbers``)."""
    values = rows_of_interleaved(weights.values)[:outputs]
    if weights.scales is not None:
        return (values ^ -128)[:, :inputs].contiguous(), weights.scales
    assert weights.groups is not None
    halves = values.unflatten(1, (-1, Int4Linear.GROUP // 2))  # (out, groups, 16)
    levels = torch.cat((halves & 15, halves >> 4), -1).flatten(1)[:, :inputs].contiguous()
    groups = rows_of_interleaved(weights.groups)[:outputs].unflatten(1, (-1, 2))[:, : inputs // Int4Linear.GROUP]
    scales, middle = (part.contiguous() for part in groups.unbind(-1))
    return levels, scales, middle


def rows_of_interleaved(numbers: Tensor) -> Tensor:
    """Returns the rows (N, K) of ``interleaved`` numbers, with the zeros that fill them up."""
    return numbers.transpose(1, 2).flatten(2).flatten(0, 1)


def pointer(tensor: Tensor | None) -> int | None:
    """Returns the address of a tensor's numbers; None for None."""
    return None if tensor is None else tensor.data_ptr()


def compiled_linear_factory(
    linear_class: type[PrepackedLinear], waits: bool, group: int | None = GROUP
) -> Callable[..., nn.Module]:
    """Returns a function that makes a ``CompiledLinear`` with ``linear_class`` for many rows."""
    return partial(CompiledLinear, linear_class, waits=waits, group=group)
