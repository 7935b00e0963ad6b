"""A pretend GPU for tests on a CPU: tensors that report ``cuda:0`` and hold their numbers in host memory.

It proves that no operation mixes devices, that none needs float64 where a device has none (MPS), and where the host
waits for the device (``.item()``, ``nonzero``, boolean indices) or copies to or from it, each with its line. It proves
nothing about kernels, their numbers and speed, streams, or memory.

It relies on internals of PyTorch; ``missing()`` says what a build lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map

from heedful.training import checkpoint
from heedful.util import exact

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
INNER = torch.device("lazy", 0)  # the device in C++: of "cuda" autograd would ask a CPU build for its streams
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10's table of device guards
MEMORY = 2**36  # bytes: 64 GiB
DEVICE_TYPES, CUDA_TYPE, META_TYPE = 22, 1, 14

# operations after which the host must have waited for the device
WAITS = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.repeat_interleave.Tensor, aten.is_nonzero.default),
    aten.bincount.default,
}
INDEXING = {
    *(aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default),
    aten._unsafe_index.Tensor,
}
COPIES = {
    *(aten._to_copy.default, aten.copy_.default, aten._copy_from.default, aten.lift_fresh.default),
    *(aten.set_.source_Storage, aten.lift_fresh_copy.default),
}
# what autocast computes in the lower precision, and in float32
LOWER = {
    *(
        F.linear,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        F.conv2d,
        F.scaled_dot_product_attention,
    ),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm),
}
FULL = {
    *(F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm, F.cross_entropy, F.log_softmax, torch.log_softmax),
    *(F.softmax, torch.softmax, Tensor.softmax, Tensor.log_softmax, F.normalize, Tensor.cumsum, torch.exp, Tensor.exp),
    *(Tensor.log, Tensor.pow, Tensor.sum, torch.sum),
}

# composites of which no part waits or copies: they are computed whole, which is faster
WHOLE = {
    *(aten.linear.default, aten.matmul.default, aten.reshape.default, aten.flatten.using_ints),
    *(aten.unflatten.int, aten.chunk.default),
}

_watch: Watch | None = None
_autocast: list[torch.dtype | None] = [None]


class MixedDevices(RuntimeError):
    """An operation got tensors of the CPU and of the pretend GPU."""


class DeviceAssert(RuntimeError):
    """An index out of range, after which a process cannot use a GPU any more."""


class NoFloat64(TypeError):
    """An operation made float64 on a device that has none."""


def missing() -> str | None:
    """The reason why this build of PyTorch cannot pretend a GPU; None where it can."""
    if torch.cuda.is_available():
        return "there is a real GPU"
    try:
        _give_guard()
        with pretend_gpu():
            total = torch.ones(2, device="cuda").add(1).sum().item()
        return None if total == 4 else f"1 + 1 + 1 + 1 gave {total}"
    except Exception as error:  # whatever the internals of another version raise
        return f"PyTorch {torch.__version__} cannot pretend a GPU ({type(error).__name__}: {error})"


def _give_guard() -> None:
    """Let C++ take the meta device's guard, which does nothing, for CUDA's, which a CPU build lacks."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    table = (ctypes.c_void_p * DEVICE_TYPES).in_dll(library, GUARDS)
    table[CUDA_TYPE] = table[CUDA_TYPE] or table[META_TYPE]


class PretendTensor(Tensor):
    """A tensor that reports ``cuda:0``; ``held`` is its tensor on the CPU."""

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        return Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=INNER,
            requires_grad=held.requires_grad,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held.detach() if held.requires_grad else held

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def __repr__(self) -> str:
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def tolist(self) -> list[Any]:
        _note("wait", ".tolist()")
        return self.held.tolist()

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = PretendTensor(self.held.clone()).requires_grad_(self.requires_grad)
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class Facts(NamedTuple):
    """Properties of an operation, looked up once."""

    is_copy: bool
    waits: bool
    is_indexing: bool
    mutates: bool
    has_alias: bool  # its result is, or shares the storage of, an argument
    is_composite: bool  # in inference mode it arrives whole, though its parts may wait


@functools.cache
def _facts(operation: Any) -> Facts:
    schema = operation._schema
    return Facts(
        is_copy=operation in COPIES,
        waits=operation in WAITS,
        is_indexing=operation in INDEXING,
        mutates=schema.name.endswith("_"),
        has_alias=any(value.alias_info is not None for value in (*schema.arguments, *schema.returns)),
        is_composite=operation not in WHOLE
        and torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd"),
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yields the tensors in arguments: several times faster than PyTorch's own trees."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _inner(value: Any) -> Any:
    """Returns the arguments with the tensors on the CPU."""
    if isinstance(value, PretendTensor):
        return value.held
    return type(value)(map(_inner, value)) if type(value) in (list, tuple) else value


def _outer(value: Any) -> Any:
    """Returns the results with tensors of the device."""
    if isinstance(value, Tensor):
        return PretendTensor(value)
    return type(value)(map(_outer, value)) if type(value) in (list, tuple) else value


def _run(operation: Any, args: Any, kwargs: Any) -> Any:
    """Check an operation, compute it on the CPU, and wrap what it gives."""
    facts = _facts(operation)
    if facts.is_composite and not facts.is_copy and not facts.mutates and torch.is_inference_mode_enabled():
        with _watch if _watch is not None else contextlib.nullcontext():
            parts = operation.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
    device = kwargs.get("device")
    to_gpu = _is_gpu(device) if device is not None else bool(on_gpu)
    if facts.is_copy:
        to_gpu = _note_copy(operation, args, on_gpu, tensors, to_gpu)
    elif on_gpu and on_cpu:
        _check_devices(operation, args, on_cpu)
    if on_gpu and facts.waits:
        _note("wait", operation)
    if on_gpu and facts.is_indexing and any(map(_is_mask, _tensors(args[1]))):
        _note("wait", "boolean index")
    if to_gpu and _watch is not None:
        if _watch.no_float64 and torch.float64 in {kwargs.get("dtype"), *(tensor.dtype for tensor in tensors)}:
            raise NoFloat64(f"{operation} makes float64 on the device, at {_line()}")
        _watch.launches += 1
    args_cpu, kwargs_cpu = _inner(tuple(args)), {name: _inner(value) for name, value in kwargs.items()}
    if kwargs_cpu.get("device") is not None:
        kwargs_cpu["device"] = torch.device("cpu")
    if not to_gpu:
        return operation(*args_cpu, **kwargs_cpu)
    kwargs_cpu.pop("pin_memory", None)
    try:
        result = operation(*args_cpu, **kwargs_cpu)
    except IndexError as error:
        raise DeviceAssert(f"device-side assert triggered: {error}, at {_line()}") from None
    wrapped = _outer(result)
    if on_gpu and facts.has_alias:
        with contextlib.suppress(Exception):  # operations without aliasing information
            return return_and_correct_aliasing(operation, args, kwargs, wrapped)
    return wrapped


def _note_copy(operation: Any, args: Any, on_gpu: list[Tensor], tensors: list[Tensor], to_gpu: bool) -> bool:
    """Count a copy between host and device; return whether its result lies on the device."""
    if operation is aten.copy_.default:
        to_gpu = isinstance(args[0], PretendTensor)
        if to_gpu != isinstance(args[1], PretendTensor):
            _note("to device" if to_gpu else "to host", args[1])
    elif on_gpu and not to_gpu:
        _note("to host", on_gpu[0])
    elif not on_gpu and to_gpu:
        _note("to device", tensors[0])
    return to_gpu


def _check_devices(operation: Any, args: Any, on_cpu: list[Tensor]) -> None:
    """Refuse tensors of the CPU beside those of the device, but for numbers and for indices, which are copied."""
    mixed = [tensor for tensor in on_cpu if tensor.dim() > 0]
    if operation in INDEXING:
        values = [args[0], *args[2:3]]
        mixed = [value for value in values if value.dim() and not isinstance(value, PretendTensor)]
        if not mixed and not all(isinstance(index, PretendTensor) for index in _tensors(args[1])):
            _note("to device", "index on the CPU")
    if mixed:
        raise MixedDevices(f"{operation}: {[tuple(t.shape) for t in mixed]} on cpu beside cuda:0, at {_line()}")


def _is_gpu(device: Any) -> bool:
    return torch.device(device).type in ("cuda", "lazy")


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    assert tensor.device.type == "cpu"
    if _watch is not None:
        _watch.pinned += 1
    return tensor


def _held(leaf: Any) -> Any:
    return leaf.held.clone() if isinstance(leaf, PretendTensor) else leaf


def _line() -> str:
    """File and line of the package from which the current operation is called."""
    frame = inspect.currentframe()
    while frame is not None:
        if "/src/heedful/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.rpartition('/src/heedful/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


def _note(kind: str, subject: Any) -> None:
    if _watch is not None:
        _watch.events[kind, _line(), str(subject) if kind == "wait" else ""] += 1


class Watch(TorchDispatchMode):
    """Counts, while it lasts, the operations that wait or copy.

    Attributes:
        events: number of each ``(kind, line, operation)``; kind is "wait", "to device" or "to host".
        launches: number of operations on the device.
        pinned: number of tensors that were copied to pinned memory.
        attention: number of attention calls by the kernel that CUDA would take by its published rules.
    """

    def __init__(self, no_float64: bool = False) -> None:
        super().__init__()
        self.no_float64 = no_float64
        self.events: Counter[tuple[str, str, str]] = Counter()
        self.attention: Counter[str] = Counter()
        self.launches = self.pinned = 0

    def waits(self) -> int:
        """Number of waits that code of the package causes."""
        return sum(n for (kind, line, _), n in self.events.items() if kind == "wait" and line != "outside")

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.device) and _is_gpu(value):
                return _run(operation, args, kwargs)
        if any(isinstance(tensor, PretendTensor) for tensor in (*_tensors(args), *_tensors(kwargs.values()))):
            return _run(operation, args, kwargs)
        return operation(*args, **kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would wrap each call to hide it from a compiler, which never sees a pretend GPU."""
        return False


class Casts(TorchFunctionMode):
    """Casts the arguments of functions as autocast does."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, lower = kwargs or {}, _autocast[-1]
        if lower is None or not (function in LOWER or function in FULL):
            return function(*args, **kwargs)
        target = lower if function in LOWER else torch.float32

        def cast(leaf: Any) -> Any:
            is_cast = isinstance(leaf, PretendTensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64
            return leaf.to(target) if is_cast else leaf

        args, kwargs = tree_map(cast, (args, kwargs))
        return function(*args, **kwargs)


class Autocast(contextlib.ContextDecorator):
    """``torch.autocast`` for the pretend device: the lower precision for products, float32 for norms and losses."""

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.real = None if device_type == "cuda" else _AUTOCAST(device_type, dtype, enabled, cache_enabled)
        self.dtype = (dtype or torch.bfloat16) if enabled else None
        self.casts = Casts()  # of this thread: a backward pass recomputes in one of its own

    def __enter__(self) -> Any:
        if self.real is not None:
            return self.real.__enter__()
        _autocast.append(self.dtype)
        self.casts.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        if self.real is not None:
            return self.real.__exit__(*error)
        self.casts.__exit__(*error)
        _autocast.pop()
        return None


_AUTOCAST, _ENABLED, _DTYPE = torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype


class Attention(TorchFunctionMode):
    """Notes which kernel CUDA would take for attention."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention and isinstance(args[0], PretendTensor):
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            kernel = "efficient"
            if mask is None and args[0].dtype in (torch.float16, torch.bfloat16):
                kernel = "flash"
            elif kwargs.get("enable_gqa"):
                kernel = "math"
            self.watch.attention[f"{kernel} ({str(args[0].dtype).removeprefix('torch.')})"] += 1
        if function is Tensor.expand and isinstance(args[0], PretendTensor) and not args[0].is_inference():
            with torch.inference_mode(False):  # PyTorch has no view of a subclass's parameter in inference mode
                return function(*args, **kwargs)
        return function(*args, **kwargs)


@contextlib.contextmanager
def pretend_gpu(no_float64: bool = False) -> Iterator[Watch]:
    """The device ``cuda``, as far as a CPU can pretend it.

    Args:
        no_float64: raise where float64 is made on the device, as on MPS, which has none.
    """
    global _watch
    _give_guard()
    watch, generator = Watch(no_float64), torch.Generator()
    replaced: dict[tuple[Any, str], Any] = {
        (torch.cuda, "_lazy_init"): lambda: None,
        (torch.cuda, "is_available"): lambda: True,
        (torch.cuda, "is_current_stream_capturing"): lambda: False,
        (torch.cuda, "is_bf16_supported"): lambda *args, **kwargs: True,
        (torch.cuda, "is_initialized"): lambda: True,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "device_count"): lambda: 1,
        (torch.cuda, "get_device_properties"): lambda device=None: SimpleNamespace(total_memory=MEMORY),
        (torch.cuda, "synchronize"): lambda *args: None,
        (torch.cuda, "default_generators"): (generator,),
        (torch.cuda, "manual_seed_all"): generator.manual_seed,
        (torch.cuda, "get_rng_state"): lambda device=None: generator.get_state(),
        (torch.cuda, "set_rng_state"): lambda state, device=None: generator.set_state(state),
        (torch.accelerator, "current_accelerator"): lambda check_available=False: None,  # a CUDA build without a driver
        (torch.cuda.amp.common, "amp_definitely_not_available"): lambda: False,
        (torch.Tensor, "pin_memory"): _pinned,
        (checkpoint, "copy_to_cpu"): lambda state: tree_map(_held, dict(state)),  # which reads the storages
        (torch, "autocast"): Autocast,
        (torch.amp, "autocast"): Autocast,  # which recomputation enters
        (torch, "is_autocast_enabled"): lambda device=None: (
            _autocast[-1] is not None if device == "cuda" else _ENABLED(*([device] if device is not None else []))
        ),
        (torch, "get_autocast_dtype"): lambda device: (
            (_autocast[-1] or torch.float16) if device == "cuda" else _DTYPE(device)
        ),
    }
    if no_float64:
        replaced[exact, "WITHOUT_FLOAT64"] = {"cuda"}
    with contextlib.ExitStack() as stack:
        for (owner, name), value in replaced.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        # parameters are swapped on conversion, or ``param.data = `` would lose their class
        stack.callback(
            torch.__future__.set_swap_module_params_on_conversion,
            torch.__future__.get_swap_module_params_on_conversion(),
        )
        torch.__future__.set_swap_module_params_on_conversion(True)
        # ``torch.tensor(..., device=)`` is made on the CPU and copied, where the mode sees it
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        _watch = watch
        try:
            with watch, Attention(watch):
                yield watch
        finally:
            _watch = None
