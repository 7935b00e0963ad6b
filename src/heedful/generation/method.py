"""One generation: what every method is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from heedful.generation.options import Options
from heedful.generation.processors import Processor
from heedful.generation.source import Source
from heedful.generation.stopping import StopStrings
from heedful.kernels.plan import decoding

Made = tuple[Tensor, Tensor, Tensor]  # ids (N, columns), −1 for none; scores (N,); log p of each id, (N, columns) or 0
Steps = Generator[Tensor, None, Made]  # the tokens of each step (N,), −1 for none, where a method knows them


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a method is given.

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
