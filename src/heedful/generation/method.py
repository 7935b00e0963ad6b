"""Decoding methods: description, input and output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from heedful.generation.decoder_state import DecoderState
from heedful.generation.processors import Processor
from heedful.generation.static import StaticStep
from heedful.generation.stopping import Interrupted, StopStrings
from heedful.kernels.plan import decoding_kernels

if TYPE_CHECKING:
    from heedful.generation.options import Options

# ids (N, columns), −1 for none; scores (N,); log p of each id, (N, columns) or (N, 0)
Decoded = tuple[Tensor, Tensor, Tensor]
# yields the tokens of each step (N,), −1 for none; nothing if a method knows them at its end alone
Steps = Generator[Tensor, None, Decoded]


@dataclass(frozen=True, kw_only=True)
class MethodInput:
    """Input of a decoding method.

    Attributes:
        state: before ``prefill``, without a cache.
        options: resolved.
        processors: change the scores.
        limits: (B,) number of new tokens of each prompt.
        end_ids: ids that end a row.
        stop_strings: texts that also end a row.
        with_scores: True if scores and log-probabilities are returned by a method that does not need them itself.
        with_logprobs: True if log-probabilities are returned by a search.
        context: maximum number of tokens that a decoder reads; None is unlimited.
        static: reads the tokens in place of ``state``, if the shapes are fixed: rows then stay until all have ended.
        read_every: number of tokens after which the host reads which rows have ended; searches read at each token.
        streams: True if the tokens of each step are wanted at once.
        should_stop: returns True to end the generation before its next step; None: nobody ends it.
    """

    state: DecoderState
    options: Options
    processors: Sequence[Processor]
    limits: Tensor
    end_ids: Tensor
    stop_strings: StopStrings | None = None
    with_scores: bool = False
    with_logprobs: bool = False
    context: int | None = None
    static: StaticStep | None = None
    read_every: int = 1
    streams: bool = False
    should_stop: Callable[[], bool] | None = None

    @property
    def reader(self) -> DecoderState | StaticStep:
        """The part that reads prompts and tokens: ``static``, or else ``state``."""
        return self.static or self.state

    @property
    def width(self) -> int:
        """Columns of the prompts."""
        return self.state.prompt.size(1)

    @property
    def max_steps(self) -> int:
        """Number of new tokens of the longest row."""
        return int(self.limits.max())

    def steps(self) -> Iterator[int]:
        """Yields the numbers of the steps, from 1; raises ``Interrupted`` as soon as ``should_stop`` returns True."""
        for step in range(1, self.max_steps + 1):
            if self.should_stop is not None and self.should_stop():
                raise Interrupted
            yield step


def accept_all(options: Options) -> None:
    """Accepts all options."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A decoding method: its options, their check and its function.

    ``heedful.generation.options.METHODS`` lists all methods. A method that ``extends`` other methods replaces them
    when one of its switches is on. Among the remaining methods, the first with a switch that is on is chosen.

    Attributes:
        name: for messages.
        steps: decodes a ``MethodInput``: yields the tokens of each step, returns all rows.
        options: names of the options that it uses, without those that apply to every method.
        switches: options that choose the method, when they differ from their defaults.
        implied_by: options of a call that also choose this method, unless a method chosen by a switch uses them.
        extends: names of the methods that it refines; its options apply to these.
        remedy: setting with which its options have an effect.
        check: raises ``HeedfulError`` for options that contradict each other.
        streams: True if its tokens are final before the end of decoding.
        is_static: True if it reads one token of every row at a step, and so works with a static cache.
        needs_whole_text: its name in messages if it cannot continue from a part of the text (``context``), or "".
        alternative: setting that chooses another method, for a text that is too long.
    """

    name: str
    steps: Callable[[MethodInput], Steps]
    options: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    implied_by: tuple[str, ...] = ()
    extends: tuple[str, ...] = ()
    remedy: str = ""
    check: Callable[[Options], None] = accept_all
    streams: bool = True
    is_static: bool = True
    needs_whole_text: str = ""
    alternative: str = ""


def as_steps(search: Callable[[MethodInput], Decoded]) -> Callable[[MethodInput], Steps]:
    """Turns a search, which knows no token before its end, into a method's ``steps``."""

    def steps(inputs: MethodInput) -> Steps:
        inputs.state.make_cache(None)
        yield from ()
        return search(inputs)

    return steps


@contextmanager
def decoding_mode(model: nn.Module) -> Iterator[None]:
    """Sets evaluation mode and the kernels for decoding while entered, and restores the mode of every part."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with decoding_kernels(model):
            yield
    finally:
        for module in training:
            module.training = True
