"""Decoding methods: the description of one, its input and its output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from heedful.generation.decoder_state import Source
from heedful.generation.processors import Processor
from heedful.generation.stopping import StopStrings
from heedful.kernels.plan import decoding

if TYPE_CHECKING:
    from heedful.generation.options import Options

Made = tuple[Tensor, Tensor, Tensor]  # ids (N, columns), −1 for none; scores (N,); log p of each id, (N, columns) or 0
Steps = Generator[Tensor, None, Made]  # the tokens of each step (N,), −1 for none, where a method knows them


@dataclass(frozen=True, kw_only=True)
class Run:
    """Input of a decoding method.

    Attributes:
        source: not yet prefilled, without a cache.
        options: the plan.
        processors: what changes scores.
        limits: (B,) new tokens each prompt may have.
        end: ids that end a row.
        stops: texts that end one, too.
        scored: scores and log-probabilities are wanted of a method that needs none itself.
        logprobs: log-probabilities are wanted of a search.
        context: a decoder reads at most so many tokens; None: all.
    """

    source: Source
    options: Options
    processors: Sequence[Processor]
    limits: Tensor
    end: Tensor
    stops: StopStrings | None = None
    scored: bool = False
    logprobs: bool = False
    context: int | None = None

    @property
    def width(self) -> int:
        """Columns of the prompts."""
        return self.source.prompt.size(1)

    @property
    def most(self) -> int:
        """New tokens that a row may have at most."""
        return int(self.limits.max())


def unconstrained(options: Options) -> None:
    """Accepts all options."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A decoding method: its options, their check and its function.

    ``heedful.generation.options.METHODS`` lists all methods. A method that ``extends`` others refines them when one of
    its switches is on; the first of the others with a switch that is on is chosen.

    Attributes:
        name: of the method, in messages.
        steps: decodes a ``Run``: yields the tokens of each step, returns all that was generated.
        options: names of the options that it uses and that do not apply to every method.
        switches: the options that choose it, when they differ from their defaults.
        implied_by: options of a call that choose it, too, unless a chosen method uses them.
        extends: names of the methods that it refines; its options apply to these.
        remedy: what to set so that its options have an effect.
        check: raises ``HeedfulError`` for options that contradict each other.
        streams: its tokens are known before the end.
        needs_whole_text: names the method where it cannot continue from a part of the text (``context``); "" otherwise.
        without: what to set so that another method is chosen, where the whole text does not fit.
    """

    name: str
    steps: Callable[[Run], Steps]
    options: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    implied_by: tuple[str, ...] = ()
    extends: tuple[str, ...] = ()
    remedy: str = ""
    check: Callable[[Options], None] = unconstrained
    streams: bool = True
    needs_whole_text: str = ""
    without: str = ""


def as_steps(search: Callable[[Run], Made]) -> Callable[[Run], Steps]:
    """Makes a search, which knows no token before its end, a method's ``steps``."""

    def steps(run: Run) -> Steps:
        run.source.remember(None)
        yield from ()
        return search(run)

    return steps


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """No dropout inside, and linear maps by the fastest way; every part is afterwards in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with decoding(model):
            yield
    finally:
        for module in training:
            module.training = True
