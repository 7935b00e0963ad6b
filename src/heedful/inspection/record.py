"""Recording: what chosen layers compute while a model runs, under its own paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from heedful.errors import HeedfulError, nearest
from heedful.layers.attention import Attention, attention_weights
from heedful.layers.probe import PatternProbe

WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.")


def clean(path: str) -> str:
    """A module's path without what wrappers (compile, data parallel) put into it."""
    for wrapper in WRAPPERS:
        path = path.replace(wrapper, "")
    return path


@contextmanager
def record(
    model: nn.Module, name: str = "pattern", *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Keep the attention patterns of a model while it runs; its output stays the same, bit for bit.

    Args:
        model: any model of heedful, or a part of one.
        name: what to record: "pattern", or a longer end of a path, such as "cross_attention.pattern" or
            "decoder.block.3.attention.pattern".
        layers: only the blocks of these numbers; None: all.
        heads: only these heads, in this order; None: all.

    Yields:
        A dictionary that fills as the model runs: full path → detached tensor (B, heads, T, S), before dropout. A later
        call replaces an earlier one.

    Raises:
        HeedfulError: when nothing in the model is called so.

    >>> import heedful, torch
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> with heedful.record(model, "pattern", layers=[0]) as seen:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> {path: tuple(tensor.shape) for path, tensor in seen.items()}
    {'decoder.block.0.attention.pattern': (1, 4, 3, 3)}
    """
    paths = {f"{clean(path)}.pattern": part for path, part in model.named_modules() if isinstance(part, Attention)}
    chosen = {path: part for path, part in paths.items() if f".{path}".endswith(f".{name}")}
    if not chosen:
        raise HeedfulError(f"nothing in the model is called {name!r}; {nearest(name, [*paths, 'pattern'])}")
    if layers is not None:
        chosen = {path: part for path, part in chosen.items() if _layer(path) in layers}
        missing = set(layers) - {_layer(path) for path in chosen}
        if missing:
            raise HeedfulError(f"the model has no block {min(missing)} with a {name!r}; number them from 0")
    for head in heads or ():
        if not all(0 <= head < part.heads for part in chosen.values()):
            raise HeedfulError(f"the model has no head {head}; number them from 0")
    seen: dict[str, Tensor] = {}
    before = {path: part.attend for path, part in chosen.items()}
    try:
        for path, part in chosen.items():
            own = range(part.heads) if heads is None else heads
            part.attend = PatternProbe(part.attend, attention_weights, own, partial(seen.__setitem__, path))
        yield seen
    finally:
        for path, part in chosen.items():
            part.attend = before[path]


def _layer(path: str) -> int | None:
    numbers = [part for part in path.split(".") if part.isdigit()]
    return int(numbers[-1]) if numbers else None
