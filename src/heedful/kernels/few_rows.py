"""Compiled kernels: few rows through linear maps and whole stacks, in C++ for the processor at hand.

A decoding step is bound by memory bandwidth, and PyTorch adds a call for each of its two hundred small operations.
``few_rows.cpp`` computes all blocks of a stack in one call and reads each weight once, in its own format. It is
compiled once for a processor, by the machine's own C++ compiler, in a few seconds; any model uses it.

Shapes: R rows (one token each), D model width, H query heads, G key-value heads, E head size, S keys.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.kernels.prepacked_linear import (
    Activation,
    FloatLinear,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PrepackedLinear,
    activation_name,
)
from heedful.util.files import cache_folder, read_own_bytes, shared_folder

SOURCE = Path(__file__).with_name("few_rows.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
TIMEOUT = 300  # seconds for the compiler, which needs about 3
DIGEST = 32  # bytes at the end of a compiled library
BLOCK, TILE = 16, 16  # outputs of interleaved weights that are side by side; lines of a tile
PROGRESS = 8  # int64 numbers of a ``Progress`` of the source
LAYER_NORM, RMS_NORM, LINEAR, APPEND, SELF_ATTENTION, CROSS_ATTENTION, MULTIPLY, ADD = range(8)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")  # in the order of the source's enum
log = logging.getLogger("heedful")
UNLIMITED = sys.maxsize
# formats in the order of the source, and the most rows for which their compiled kernel is the fastest: with interleaved
# weights, and without
MOST_ROWS = {
    torch.float32: (64, 12),
    torch.bfloat16: (128, 6),
    torch.float16: (64, 16),
    torch.int8: (128, 12),
    torch.uint8: (UNLIMITED, 32),  # PyTorch's kernel takes three times as long
}
FORMATS = tuple(MOST_ROWS)  # uint8: two int4 weights


class Operation(Structure):
    """Step of a program; its fields are those of the source."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "x", "y")),
        *((name, c_int64) for name in ("inputs", "outputs", "format", "activation", "layer", "accumulate")),
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
        *((name, c_int64) for name in ("rows", "threads", "bfloat16_cache")),
        *((name, c_void_p) for name in ("scratch", "scores")),
        ("max_keys", c_int64),
        *((name, c_void_p) for name in ("cosine", "sine")),
        ("rotation_stride", c_int64),
        ("keys", POINTER(KeyValues)),
        ("progress", c_void_p),
    )


class Weights(NamedTuple):
    """Weights of a linear map as the source reads them; ``values`` and ``groups`` may be ``interleaved``."""

    values: Tensor  # (out, in) in its format; int4 (out, in / 2)
    scales: Tensor | None = None  # (out,) float32, of int8
    groups: Tensor | None = None  # (out, in / 32, 2) bfloat16, scale and middle of each group of int4


def weights_of(linear_class: type[PrepackedLinear], weight: Tensor) -> Weights:
    """Returns a weight (out, in) in the format of ``linear_class``, rounded to the same numbers."""
    weight = weight.detach()
    if linear_class is Int8Linear:
        levels, scales = Int8Linear.quantised(weight)
        if is_interleaved():
            levels = interleaved(levels ^ -128, 4, TILE)  # q + 128, in an unsigned byte
        return Weights(levels, scales)
    if linear_class is Int4Linear:
        levels, scales, middle = Int4Linear.quantised(weight)
        halves = levels.unflatten(1, (-1, 2, Int4Linear.GROUP // 2))  # (out, groups, 2, 16)
        values = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).contiguous()
        groups = torch.stack((scales, middle), -1).contiguous()
        if is_interleaved():
            values, groups = interleaved(values, 4), interleaved(groups.flatten(1), 2)
        return Weights(values, None, groups)
    values = weight.to(torch.float16 if linear_class is HalfLinear else weight.dtype).contiguous()
    if is_interleaved():
        values = interleaved(values, 1) if values.dtype is torch.float32 else interleaved(values, 2, TILE)
    return Weights(values)


def is_interleaved() -> bool:
    """Returns True if the compiled kernels read interleaved weights, as on processors with AVX512-VNNI."""
    return bool(library().interleaved())


def interleaved(rows: Tensor, together: int, multiple: int = 1) -> Tensor:
    """Interleaves the numbers of 16 ``rows`` (N, K) at a time: (⌈N / 16⌉, ⌈K / together⌉, 16, together).

    Zeros fill up the last block of rows, and the lines of 16 · together numbers to a ``multiple``.

    >>> interleaved(torch.arange(6).view(2, 3), 2)[0, :, :2].tolist()
    [[[0, 1], [3, 4]], [[2, 0], [5, 0]]]
    """
    padded = F.pad(rows, (0, -rows.size(1) % (together * multiple), 0, -rows.size(0) % BLOCK))
    return padded.view(padded.size(0) // BLOCK, BLOCK, -1, together).transpose(1, 2).contiguous()


# ------------------------------------------------------------------------------------------------------------ library


def compiler() -> tuple[str, ...] | None:
    """Returns the C++ compiler's command, from ``CXX`` or g++; None if there is none, or not on Linux.

    It must be GCC: PyTorch's OpenMP runtime, which the kernels share, is GCC's libgomp.
    """
    words = (os.environ.get("CXX") or "g++").split()  # such as "ccache g++"
    path = shutil.which(words[0]) if words and platform.system() == "Linux" else None
    return None if path is None else (path, *words[1:])


@cache
def library() -> Any:
    """Returns the compiled library; compiles it unless it is in the user's cache folder.

    Raises ``HeedfulError`` without GCC, if it fails or hangs, and if the library cannot be stored or loaded.
    """
    command = compiler()
    if command is None:
        raise HeedfulError(
            "compiled kernels need Linux and the C++ compiler g++; install it, or leave compiled_decoding out"
        )
    try:
        key = "\n".join((SOURCE.read_text(encoding="utf-8"), *FLAGS, *command, _version(command), _processor()))
        loaded = _loaded(command, f"few-rows-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        raise HeedfulError(
            f"the compiled kernels cannot be stored or loaded: {error}; set HEEDFUL_CACHE to another folder, or leave "
            "compiled_decoding out"
        ) from None
    loaded.run.argtypes, loaded.run.restype = (c_void_p, c_int64, c_void_p), None
    loaded.interleaved.argtypes, loaded.interleaved.restype = (), c_int64
    return loaded


def _version(command: tuple[str, ...]) -> str:
    """Returns the output of ``--version``; raises ``HeedfulError`` unless it is GCC."""
    done = _output(*command, "--version")
    if done.returncode or "Free Software Foundation" not in done.stdout:
        raise HeedfulError(
            f"{' '.join(command)} is not GCC, whose OpenMP runtime PyTorch uses; set CXX to g++, or leave "
            "compiled_decoding out"
        )
    return done.stdout


def _loaded(command: tuple[str, ...], name: str) -> ctypes.CDLL:
    """Loads a library from the user's cache folder, which it is compiled into first unless it is there.

    A library runs as this user, so none is loaded that another user may have written: in a folder that others may write
    to it is compiled for this process alone.
    """
    folder = cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)
    shared = shared_folder(folder)
    if shared is not None:
        log.warning("other users may write to %s, so that the compiled kernels are not kept there: chmod go-w", shared)
        with tempfile.TemporaryDirectory() as own:
            file = Path(own, name)
            _compile(command, file)
            return ctypes.CDLL(str(file))
    if not _is_whole(folder / name):
        _compile(command, folder / name)
    return ctypes.CDLL(str(folder / name))


def _is_whole(file: Path) -> bool:
    """Returns True if a library exists, only this user may write it, and it ends with its digest.

    Loading a truncated file would crash the process.
    """
    content = read_own_bytes(file)
    return content is not None and hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _compile(command: tuple[str, ...], file: Path) -> None:
    """Compiles the source into ``file`` atomically, and appends a digest."""
    log.warning("compiling the kernels for this processor: a few seconds, once")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        objects, shared = Path(folder, "few_rows.o"), Path(folder, "few_rows.so")
        # linked without -fopenmp: its functions are those of the library that PyTorch has loaded, so that both use the
        # same threads
        for step in ((*FLAGS, "-c", str(SOURCE), "-o", str(objects)), ("-shared", str(objects), "-o", str(shared))):
            done = _output(*command, *step)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
                reason = lines[0][:200] if lines else f"it ends with {done.returncode}"
                raise HeedfulError(
                    f"{' '.join(command)} cannot compile the kernels: {reason}; leave compiled_decoding out"
                )
        with shared.open("ab") as end:
            end.write(hashlib.sha256(shared.read_bytes()).digest())
        shared.chmod(0o700)
        shared.replace(file)


def _output(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the compiler, in English; raises ``HeedfulError`` if it hangs."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HeedfulError(
            f"{command[0]} has not ended after {TIMEOUT} seconds; set CXX to another g++, or leave compiled_decoding "
            "out"
        ) from None


def _processor() -> str:
    """Returns a description of the processor, whose instructions the compiled code uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(names))) or platform.processor()


def run(operations: Any, call: Call) -> None:
    """Computes ``operations``, an array of ``Operation``."""
    progress = torch.zeros(len(operations) * PROGRESS, dtype=torch.int64)
    call.progress = progress.data_ptr()
    library().run(operations, len(operations), byref(call))


# --------------------------------------------------------------------------------------------------------- linear map


class CompiledLinear(PrepackedLinear):
    """act(x Wᵀ + b) by the compiled kernel for a few rows (``most_rows``), and by another prepacked map for more.

    The weights are in memory twice, rounded to the same numbers, or once if the compiled kernel takes any number of
    rows. ``x`` is rounded only on processors that multiply small numbers: with AVX512-VNNI, for int8 and int4, groups
    of 256 and of 32 inputs to 8 bits, each with its own scale; with AMX, for bfloat16, to bfloat16.

    Args:
        linear_class: class of the map for many rows.
        weight: (out, into), floating point.
        bias: (out,), or None.
        activation: applied to each output; None is the identity.

    Attributes:
        most_rows: number of rows up to which the compiled kernel is used.
        many_rows: the map for more rows; None if there is no limit.
    """

    def __init__(
        self,
        linear_class: type[PrepackedLinear],
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(weight, bias, activation)
        self.weights = weights_of(linear_class, weight)
        most_interleaved, most_in_rows = MOST_ROWS[self.weights.values.dtype]
        self.most_rows = most_interleaved if is_interleaved() else most_in_rows
        self.many_rows = None if self.most_rows == UNLIMITED else linear_class(weight, bias, activation)
        if isinstance(self.many_rows, FloatLinear):
            self.many_rows.plain = None  # it is for a few rows
        self.bias = None if bias is None else bias.detach().float().clone()

    @property
    def weight(self) -> Tensor:
        """Rounded W (out, into)."""
        return interleaved_int4(self.weights, self.out_features) if self.many_rows is None else self.many_rows.weight

    def operation(self, x: int = 0, y: int | None = None, accumulate: bool = False) -> Operation:
        """Returns the operation that maps the buffer at ``x`` to that at ``y``, or adds to it."""
        assert not accumulate or self.activation is None  # the activation is applied to the whole buffer
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
            weight=values.data_ptr(),
            scale=pointer(scales),
            groups=pointer(groups),
            bias=pointer(self.bias),
        )

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b)."""
        count = len(rows)
        if self.many_rows is not None and not 0 < count <= self.most_rows:
            return self.many_rows.product(rows)
        scratch = torch.empty(count * (self.in_features + self.out_features))
        scratch[: count * self.in_features].view_as(rows).copy_(rows)
        call = Call(rows=count, threads=torch.get_num_threads(), scratch=scratch.data_ptr())
        run((Operation * 1)(self.operation()), call)
        return scratch[count * self.in_features :].view(count, self.out_features).to(rows.dtype)


def interleaved_int4(weights: Weights, outputs: int) -> Tensor:
    """Returns W (out, in) in float32 of interleaved int4 weights."""
    assert weights.groups is not None
    values, groups = (
        part.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs] for part in (weights.values, weights.groups)
    )
    halves = values.unflatten(1, (-1, Int4Linear.GROUP // 2))  # (out, groups, 16)
    levels = torch.cat((halves & 15, halves >> 4), -1).float() - 8
    scales, middle = groups.float().unflatten(1, (-1, 2)).unbind(-1)
    return (levels * scales[..., None] + middle[..., None]).flatten(1)


def pointer(tensor: Tensor | None) -> int | None:
    """Returns the address of a tensor's numbers; None for None."""
    return None if tensor is None else tensor.data_ptr()


def compiled_linear_factory(linear_class: type[PrepackedLinear]) -> Callable[..., nn.Module]:
    """Returns a function that makes a ``CompiledLinear`` with ``linear_class`` for many rows."""

    def make(weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> nn.Module:
        return CompiledLinear(linear_class, weight, bias, activation)

    return make
