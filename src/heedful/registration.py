"""``heedful.register``: parts of one's own under a name, which configurations, settings and commands then know.

A registered name stands in ``config.json`` or ``run.toml`` like a built-in one. The code does not: it must be
registered again before a folder that names it is opened, from Python or by ``--import FILE`` on the command line.
Nothing is imported because a folder says so.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from heedful.config import (
    REGISTERED,
    Head,
    ImageHead,
    LanguageHead,
    MaskedHead,
    Norm,
    Position,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from heedful.data.rows import required_columns
from heedful.errors import HeedfulError, nearest

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z][\w.+-]*")


class NormFactory(Protocol):
    """Factory of a norm (kind "norm"): makes a module with ``forward(x, real=None)``: (B, T, D) → (B, T, D).

    ``real`` (B, T) is False for padding; most norms ignore it.
    """

    def __call__(self, dim: int, eps: float) -> Any:
        """Returns the module."""


class PositionFactory(Protocol):
    """Factory of a position scheme (kind "position"): makes a ``PositionScheme`` from a ``StackConfig``.

    The scheme derives from ``heedful.layers.PositionScheme`` and has two methods. ``embed(x, positions,
    end=None)`` adds positions to the embedding. ``prepare(queries, keys)`` returns what attention needs: a
    ``PositionBias(bias)``, or a ``PositionEncoding`` whose ``rotate`` turns queries and keys. Positions are (B or 1, T)
    and count non-padding tokens, so that padding and caches have no effect.

    A scheme that depends on the queries and keys of each layer also has ``layer(config)``, a static method that makes
    the ``heedful.layers.RelativeLayer`` of an attention; its ``prepare`` returns a ``RelativeEncoding``.
    """

    def __call__(self, config: Any) -> Any:
        """Returns the module."""


class AttentionFunction(Protocol):
    """Attention function (kind "attention"), in place of softmax(scale · q kᵀ + bias) v.

    It maps (q, k, v, bias, scale, dropout) to (B, H, T, E). q is (B, H, T, E), k and v are (B, H, S, E); ``bias``
    broadcasts to (B, H, T, S) and is −∞ where attention is not allowed. The function's attribute ``weights``, itself a
    function (q, k, bias, scale) → (B, H, T, S), returns the weights that mix the values: y = weights @ v. Without this
    attribute the pattern cannot be recorded or changed.
    """

    def __call__(self, q: Any, k: Any, v: Any, bias: Any, scale: float, dropout: float) -> Any:
        """Returns the mixed values of each head."""


class FeedForwardFactory(Protocol):
    """Factory of a feed-forward (kind "feed_forward"): makes a module from a ``StackConfig``.

    The module has ``forward(x)``: (..., D) → (..., D).
    """

    def __call__(self, config: Any) -> Any:
        """Returns the module."""


class BlockFactory(Protocol):
    """Factory of a block (kind "block"): makes a module from a ``StackConfig``.

    The module's ``forward`` has the arguments of ``heedful.Block.forward``.

    The module must pass ``mask``, ``position`` and the attention's part of ``cache`` on to its attention. Derive it
    from ``heedful.Block`` where possible: ``record`` and ``optimize`` find the parts of a block by their names.
    """

    def __call__(self, config: Any) -> Any:
        """Returns the module."""


class HeadFactory(Protocol):
    """Kind "head": makes a module with ``forward(hidden, real=None)`` in place of the head that ``config`` describes.

    ``config`` is a configuration of a head (``heedful.config.SequenceHead``, ...); it says what the module returns: for
    a ``SequenceHead`` logits (B, ``config.labels``), for a ``LanguageHead`` logits (B, T, V), and so on, from the final
    hidden states (B, T, D). ``dim`` is D. ``token`` is the model's token embedding, for tied weights; None for images.
    ``real`` (B, T) is False for padding, or None. Tensors of the embedding that the module keeps are stored once.
    """

    def __call__(self, config: Any, dim: int, token: Any) -> Any:
        """Returns the module."""


class OptimizerFactory(Protocol):
    """Factory of an optimiser (kind "optimizer"), for ``--training.optimiser``: makes it for the model's parameters."""

    def __call__(self, model: Any, *, lr: float, weight_decay: float) -> Any:
        """Returns the optimiser; its learning rates are the peaks."""


class ScheduleFactory(Protocol):
    """Factory of a schedule (kind "schedule"), for ``--training.schedule``: (step, progress) → factor of the rate."""

    def __call__(self, warmup: int) -> Callable[[int, float | None], float]:
        """Returns the schedule; ``step`` counts from 1, ``progress`` from 0 to 1 is the share of the run done."""


MADE = {
    "norm": ("dim, eps", "forward(x, real=None)"),
    "position": ("config", "embed and prepare"),
}  # arguments, methods
MADE |= {"feed_forward": ("config", "forward(x)"), "block": ("config", "forward(x, real, *, mask, position, ...)")}
MADE["head"] = ("config, dim, token", "forward(hidden, real=None)")


def _maker(kind: str, name: str, thing: Any) -> Callable[..., Any]:
    """Returns the factory, which raises ``HeedfulError`` with the part's name where it makes no module."""

    def make(*arguments: Any, **named: Any) -> Any:
        from torch import nn

        takes, methods = MADE[kind]
        try:
            part = thing(*arguments, *named.values())
        except TypeError as error:
            raise HeedfulError(
                f"the {kind} {name!r} is made by {name}({takes}), which failed: {error}; correct it"
            ) from error
        if not isinstance(part, nn.Module):
            raise HeedfulError(f"the {kind} {name!r} made {type(part).__name__}; return a module with {methods}")
        if kind == "position" and not (hasattr(part, "embed") and hasattr(part, "prepare")):
            raise HeedfulError(f"the position {name!r} lacks {methods}; derive it from PositionScheme")
        return part

    return make


@dataclass(frozen=True)
class OutputShape:
    """Shape that a registered head must return: that of the head in whose place it stands."""

    config: Head
    vocabulary: int | None  #: size of the token embedding

    def check(self, hidden: Any, output: Any) -> None:
        """Raises ``HeedfulError`` if the head's ``output`` for ``hidden`` (B, T, D) or (N, D) has another shape."""
        from torch import Tensor

        batch, tokens = hidden.shape[:1], hidden.shape[:-1]
        returned = tuple(output.shape) if isinstance(output, Tensor) else ()
        wanted: tuple[Any, ...]
        match self.config:
            case SequenceHead(labels=labels) | ImageHead(labels=labels):
                names, wanted = "(batch, labels)", (*batch, labels)
            case TokenHead(labels=labels):
                names, wanted = "(batch, tokens, labels)", (*tokens, labels)
            case SpanHead():
                names, wanted = "(batch, tokens, 2)", (*tokens, 2)
            case LanguageHead() | MaskedHead():
                names, wanted = "(batch, tokens, vocabulary)", (*tokens, self.vocabulary)
            case _:
                names, wanted = "(batch, width)", (*batch, returned[-1] if returned else hidden.size(-1))
        if returned != wanted:
            names = names if len(tokens) > 1 else names.replace("batch, ", "")
            described = returned if isinstance(output, Tensor) else type(output).__name__
            raise HeedfulError(
                f"the head {getattr(self.config, 'head', '')!r} returned {described}, not {wanted}: a head of kind "
                f"{self.config.kind!r} returns {names}; correct its forward"
            )


def _add_norm(name: str, thing: Any) -> None:
    from heedful.layers.norm import NORMS

    NORMS[name] = _maker("norm", name, thing)


def _add_position(name: str, thing: Any) -> None:
    from heedful.layers.position import SCHEMES
    from heedful.layers.relative import LAYERS

    SCHEMES[name] = _maker("position", name, thing)
    LAYERS.pop(name, None)
    if hasattr(thing, "layer"):
        LAYERS[name] = thing.layer


def _add_attention(name: str, thing: Any) -> None:
    from heedful.kernels.registered_attention import RegisteredAttention
    from heedful.layers.attention import ATTENTIONS

    ATTENTIONS[name] = RegisteredAttention(name, thing)


def _add_feed_forward(name: str, thing: Any) -> None:
    from heedful.layers.feedforward import FEED_FORWARDS

    FEED_FORWARDS[name] = _maker("feed_forward", name, thing)


def _add_block(name: str, thing: Any) -> None:
    from heedful.layers.block import BLOCKS

    BLOCKS[name] = _maker("block", name, thing)


def _add_head(name: str, thing: Any) -> None:
    from heedful.heads import HEADS

    make = _maker("head", name, thing)

    def head(config: Any, dim: int, token: Any) -> Any:
        part = make(config, dim, token)
        part.registered_output = OutputShape(config, None if token is None else token.num_embeddings)
        return part

    HEADS[name] = head


def _add_optimizer(name: str, thing: Any) -> None:
    from heedful.settings import base
    from heedful.training.optimisation import OPTIMISERS

    OPTIMISERS[name] = thing
    base.REGISTERED["training.optimiser"] = sorted(OPTIMISERS)


def _add_schedule(name: str, thing: Any) -> None:
    from heedful.settings import base
    from heedful.training.schedule import SCHEDULES

    SCHEDULES[name] = thing
    base.REGISTERED["training.schedule"] = sorted(SCHEDULES)


def _add_metric(name: str, thing: Any) -> None:
    from heedful.metrics import registry

    if not isinstance(thing, registry.Metric):
        raise HeedfulError(f"metric {name!r} is of type {type(thing).__name__}; give a heedful.metrics.registry.Metric")
    if thing.name != name:
        raise HeedfulError(f"the metric is called {thing.name!r}, not {name!r}; give one name")
    registry.REGISTERED[name] = thing
    registry.registered.cache_clear()


def _add_task(name: str, thing: Any) -> None:
    from heedful import tasks
    from heedful.tasks.task import Task

    if not (isinstance(thing, type) and issubclass(thing, Task)):
        raise HeedfulError(f"task {name!r} is no subclass of heedful.tasks.Task; give such a class")
    if getattr(thing, "name", None) != name:
        raise HeedfulError(
            f"the task is called {getattr(thing, 'name', None)!r}, not {name!r}; set name = {name!r} in its class"
        )
    if "<locals>" in thing.__qualname__:
        raise HeedfulError(f"task {name!r} is a class inside a function; define it at the top of a file or notebook")
    _check_columns(name, thing)
    summary = (thing.__doc__ or name).strip().splitlines()[0]
    tasks.TASKS[name] = tasks.TaskEntry(
        path=f"{thing.__module__}:{thing.__qualname__}", summary=summary, main_metrics=(thing.main_metric,)
    )


def _check_columns(name: str, task: Any) -> None:
    """Raises ``HeedfulError`` for a task without a part that it needs, or without the columns of the built-in task that
    it derives from.
    """
    absent = [part for part in ("columns", "main_metric") if not hasattr(task, part)]
    missing = [*absent, *sorted(task.__abstractmethods__)]
    if missing:
        raise HeedfulError(f"task {name!r} lacks {', '.join(missing)}; heedful.tasks.Task says what each must be")
    for base in task.__mro__[1:]:
        if base.__module__.startswith("heedful.") and "columns" in vars(base):
            required = [column for column in required_columns(base.columns) if column not in task.columns]
            if required:
                raise HeedfulError(
                    f"task {name!r} has the columns {', '.join(task.columns)}, but its base class {base.__name__} uses "
                    f"{' and '.join(map(repr, required))}; keep its columns, and override read_rows to make them from "
                    "others"
                )


def _add_model_type(name: str, thing: Any) -> None:
    from heedful.pretrained.model_type import ModelType
    from heedful.pretrained.model_types import MODEL_TYPES

    if not isinstance(thing, ModelType):
        raise HeedfulError(
            f"model type {name!r} is of type {type(thing).__name__}; give a ModelType of heedful.pretrained.model_type"
        )
    if thing.name != name:
        raise HeedfulError(f"the model type is called {thing.name!r}, not {name!r}; give one name")
    MODEL_TYPES[name] = thing


KINDS: dict[str, Callable[[str, Any], None]] = {
    "norm": _add_norm,
    "position": _add_position,
    "attention": _add_attention,
    "feed_forward": _add_feed_forward,
    "block": _add_block,
    "head": _add_head,
    "optimizer": _add_optimizer,
    "schedule": _add_schedule,
    "metric": _add_metric,
    "task": _add_task,
    "model_type": _add_model_type,
}


def _built_in(kind: str) -> set[str]:
    """Returns the names that cannot be registered, since the package itself has them."""
    from heedful import tasks
    from heedful.metrics import registry
    from heedful.pretrained.model_types import BUILT_IN
    from heedful.settings.sections import TrainingSettings

    words = {f.name: set(f.metadata["words"]) for f in TrainingSettings.__dataclass_fields__.values() if f.metadata}
    names = {
        "norm": {*Norm.__args__},  # type: ignore[attr-defined]
        "attention": {"softmax"},
        "feed_forward": {"mlp"},
        "block": {"standard"},
        "head": {"standard"},
        "optimizer": words["optimiser"],
        "schedule": words["schedule"],
        "position": {kind.kind for kind in get_args(Position)},
        "task": {name for name, entry in tasks.TASKS.items() if entry.path.startswith("heedful.")},
        "metric": {*registry.registered()} - {*registry.REGISTERED},
        "model_type": {*BUILT_IN},
    }
    return names.get(kind, set())


def register(kind: str, name: str, thing: T) -> T:
    """Registers a part under a name; returns the part.

    Args:
        kind: what the part is; the protocol or class in brackets says what such a part must do:

            - "norm" (``NormFactory``), "position" (``PositionFactory``), "attention" (``AttentionFunction``),
              "feed_forward" (``FeedForwardFactory``), "block" (``BlockFactory``), "head" (``HeadFactory``);
            - "optimizer" (``OptimizerFactory``), "schedule" (``ScheduleFactory``);
            - "metric" (``heedful.metrics.registry.Metric``: label and direction), "task" (a subclass of
              ``heedful.tasks.Task``), "model_type" (``heedful.pretrained.ModelType``).
        name: the part's name, for the field of ``StackConfig`` or of a head's configuration, or the setting, that
            chooses parts of this kind. If it is registered already, models that are created afterwards have the new
            part.
        thing: the part: a class, function or object, as its kind requires.

    Raises:
        HeedfulError: for an unknown kind, a name that is built in or malformed, and a part that cannot be called.

    >>> import torch
    >>> class DynamicTanh(torch.nn.Module):
    ...     def __init__(self, dim, eps):
    ...         super().__init__()
    ...         self.alpha, self.weight = (torch.nn.Parameter(x) for x in (torch.tensor(0.5), torch.ones(dim)))
    ...     def forward(self, x, real=None):
    ...         return self.weight * torch.tanh(self.alpha * x)
    >>> _ = register("norm", "dyt", DynamicTanh)
    >>> from heedful.config import StackConfig
    >>> StackConfig(dim=16, depth=1, heads=4, norm="dyt").norm
    'dyt'
    """
    if kind not in KINDS:
        raise HeedfulError(f"unknown kind of part {kind!r}; {nearest(str(kind), KINDS)}")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise HeedfulError(f"the name {name!r} is not valid; begin with a letter, then letters, digits, _ . + or -")
    if name in _built_in(kind):
        raise HeedfulError(f"{kind} {name!r} is built in; choose another name")
    if kind == "attention" and isinstance(thing, type):
        raise HeedfulError(
            f"attention {name!r} is a class; give a function (q, k, v, bias, scale, dropout), or an object"
        )
    if kind not in ("metric", "model_type") and not callable(thing):
        raise HeedfulError(
            f"{kind} {name!r} is of type {type(thing).__name__}, which cannot be called; give a class or a function"
        )
    KINDS[kind](name, thing)
    if kind in REGISTERED:
        REGISTERED[kind].add(name)
    return thing


IMPORTED: set[str] = set()  # names of the modules that ``import_file`` imported


def import_file(source: str, option: str = "--import") -> None:
    """Imports a Python file, or a module by its dotted name, for the parts that it registers.

    Raises ``HeedfulError`` for a missing file, and for an error in it, with its line; ``option`` named it.
    """
    path = Path(source)
    if path.suffix != ".py":
        IMPORTED.add(source)
        _run(f"{option} {source}", source, lambda: importlib.import_module(source))
        return
    if not path.is_file():
        raise HeedfulError(f"{option} {source}: there is no such file; give a Python file or a module's name")
    if path.stem in sys.modules and Path(getattr(sys.modules[path.stem], "__file__", None) or "") == path.resolve():
        return
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path.resolve()))  # a link's target may have any name
    specification = importlib.machinery.ModuleSpec(path.stem, loader, origin=loader.path)
    specification.has_location = True
    module = importlib.util.module_from_spec(specification)
    IMPORTED.add(path.stem)
    sys.modules[path.stem] = module  # so that its classes can be found by their module's name
    _run(f"{option} {source}", source, lambda: loader.exec_module(module))


def own_part_at_fault(error: BaseException) -> str | None:
    """Returns the place in a file of ``import_file`` where an error arose: ``mine.py:12``, or a class whose ``forward``
    does not take its arguments; None if the error arose elsewhere.
    """
    trace, place = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        owner = type(frame.f_locals.get("self"))  # a module, while PyTorch calls its forward
        if frame.f_globals.get("__name__") in IMPORTED:
            place = f"{Path(frame.f_code.co_filename).name}:{trace.tb_lineno}"
        elif owner.__module__ in IMPORTED:
            place = f"{owner.__name__}, in {Path(sys.modules[owner.__module__].__file__ or '').name}"
        trace = trace.tb_next
    return place


def _run(named: str, source: str, load: Callable[[], object]) -> None:
    try:
        load()
    except HeedfulError as error:
        raise HeedfulError(f"{named}: {error}") from None
    except Exception as error:
        trace, line = error.__traceback__, ""
        while trace is not None:
            if Path(trace.tb_frame.f_code.co_filename).name == Path(source).resolve().name:
                line = f":{trace.tb_lineno}"
            trace = trace.tb_next
        raise HeedfulError(f"{named}{line}: {type(error).__name__}: {error}; correct the file") from None
