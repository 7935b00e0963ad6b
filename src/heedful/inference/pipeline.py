"""Pipeline: a pretrained folder with its task, called on inputs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heedful import tasks
from heedful.config import (
    Config,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    MaskedHead,
    PooledHead,
    SequenceHead,
    SpanHead,
    TokenHead,
    VisionConfig,
)
from heedful.errors import HeedfulError, nearest
from heedful.generation.options import NAMES, resolve
from heedful.inference.input_blocks import BLOCK, FIRST, Seeds, blocks
from heedful.inference.warnings import Told
from heedful.kernels.optimize import optimize, stored_as
from heedful.models import Model
from heedful.models.base import device_of
from heedful.pretrained import load, read_card
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.pretrained.pooling import pooled_head
from heedful.tasks.published import summarizes
from heedful.tasks.task import Answer, Streams, Task
from heedful.text.chat_template import is_conversation

log = logging.getLogger("heedful")

# a model of this family with this head: this task
HEADS: tuple[tuple[type[Config], type[Config], str], ...] = (
    (DecoderConfig, LanguageHead, "text-generation"),
    (EncoderDecoderConfig, LanguageHead, "translation"),
    (EncoderConfig, SequenceHead, "text-classification"),
    (DecoderConfig, SequenceHead, "text-classification"),
    (EncoderDecoderConfig, SequenceHead, "text-classification"),
    (EncoderConfig, TokenHead, "token-classification"),
    (EncoderConfig, SpanHead, "question-answering"),
    (EncoderConfig, MaskedHead, "fill-mask"),
    (EncoderConfig, PooledHead, "feature-extraction"),
    (DecoderConfig, PooledHead, "feature-extraction"),
    (VisionConfig, ImageHead, "image-classification"),
)


class Pipeline:
    """A model and its task, called with one input or a list of them; ``card`` is the folder's ``heedful.json``."""

    def __init__(self, task: Task, model: Model, card: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.task, self.model, self.card = task, model, card
        self._warned = False

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options; one that the task does not take is an error. A seed is left out where nothing is drawn, which
        the first call says in a warning.
        """
        for name in options:
            if name not in self.task.options:
                known = self.task.options
                hint = nearest(name, known) if known else "leave it out"
                raise HeedfulError(f"the option {name} has no effect for {self.task.name}; {hint}")
        if options.get("seed") is None or self._draws(options):
            return dict(options)
        if not self._warned:
            self._warned = True
            log.warning("seed has no effect: this model does not sample; --do-sample (do_sample=True) makes it draw")
        return {name: value for name, value in options.items() if name != "seed"}

    def _draws(self, options: Mapping[str, Any]) -> bool:
        """True if these options sample tokens."""
        resolve({"do_sample": True, "seed": options["seed"]})  # which raises where it is no seed
        others = {name: value for name, value in options.items() if name in NAMES and name != "seed"}
        return resolve(others, self.model.generation).method == "sampling"

    def answers(self, inputs: Sequence[Any], **options: Any) -> list[Answer]:
        """The answer to each input, in order; the options are the task's. Of many inputs no more are worked on at a
        time than ``heedful.inference.input_blocks.BLOCK``, so that memory is needed for the answers alone.
        """
        if len(inputs) > BLOCK:
            return list(self.each(inputs, first=BLOCK, **options))
        return self.asked(inputs, self.checked(options))

    def asked(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Answer]:
        """The task's answers, at once; one whose score or vector holds NaN or infinity is an error."""
        answers = self.task.answer(self.model, inputs, **options)
        for number, answer in enumerate(answers, 1):
            output = answer.output if isinstance(answer.output, list) else []
            numbers = [one for one in (answer.score, *output) if isinstance(one, float)]
            if any(math.isnan(one) or one == math.inf for one in numbers):  # −∞: fewer exist than were asked for
                raise HeedfulError(
                    f"the answer to input {number} is not a number (NaN or infinite): the model's numbers overflow; "
                    "open it with dtype float32, or take other weights"
                )
        return answers

    def each(self, inputs: Iterable[Any], *, first: int = FIRST, **options: Any) -> Iterator[Answer]:
        """The answers one by one, in order, to inputs that may be without end: they are taken in blocks, of ``first``
        at most and then larger ones, each when its first answer is asked for. Options are checked at once.
        """
        options = self.checked(options)
        self.task.answer(self.model, [], **options)  # which raises where options are wrong
        return self._each(inputs, first, options)

    def _each(self, inputs: Iterable[Any], first: int, options: dict[str, Any]) -> Iterator[Answer]:
        seeds, told, asked = Seeds(options.pop("seed", None)), Told(), 0
        try:
            for block in blocks(inputs, first):
                with told.naming(lambda place: f"input {asked + place}"):  # noqa: B023 (called in this turn alone)
                    answers = self.asked(block, options | seeds.of(block))
                asked += len(block)
                yield from answers
            seeds.end()
        finally:
            told.end(asked)

    def stream(self, text: Any, **options: Any) -> Iterator[str]:
        """The answer to one text, or to one list of messages, in pieces as they are made; an error where the task makes
        its answers whole.
        """
        if not isinstance(self.task, Streams):
            raise HeedfulError(f"{self.task.name} answers as a whole; call the pipeline instead of stream")
        return self.task.stream(self.model, text, **self.checked(options))

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """``{"input", "output", "score"}`` for one input; a list of them for a list; for any other iterable that is no
        input itself (a generator, a data set) an iterator over them, which takes inputs as it goes and never holds
        more than a block. A list of messages, each with its ``"role"``, is one input.
        """
        if isinstance(inputs, list) and not is_conversation(inputs):
            return [answer.as_dict() for answer in self.answers(inputs, **options)]
        if _several(inputs):
            return (answer.as_dict() for answer in self.each(inputs, **options))
        return self.answers([inputs], **options)[0].as_dict()


def _several(inputs: Any) -> bool:
    """True for an iterable over inputs: no text, pair, mapping, array, image or messages."""
    one = str | bytes | bytearray | memoryview | tuple | list | Mapping
    return isinstance(inputs, Iterable) and not isinstance(inputs, one) and not hasattr(inputs, "__array__")


def task_of(folder: Path) -> str:
    """The task that a published model's head is for; raises ``HeedfulError`` where there is none."""
    config = config_of(folder)
    for family, head, name in HEADS:
        if isinstance(config, family) and isinstance(config.head, head):
            return "summarization" if name == "translation" and summarizes(folder) else name
    if pooled_head(folder) is not None:
        return "feature-extraction"
    remedy = "an encoder learns to classify: heedful train text-classification --from MODEL"
    if isinstance(config, EncoderDecoderConfig | DecoderConfig):
        remedy = "take the model with its language-model head"
    raise HeedfulError(
        f"{folder} names no task, and none here answers with a model of kind {config.kind!r} whose head is of kind "
        f"{config.head.kind!r}; {remedy}"
    )


def pipeline(task: str | None, model: str | Path, device: str | None = None, dtype: Any = None) -> Pipeline:
    """The model in a folder, optimised for inference: see ``heedful.optimize``.

    Args:
        task: what to do with it; None is what the folder was trained for, or, where it does not say, what its model's
            head is for. Another one than the folder's is an error.
        model: a model folder, or a Hub id.
        device: "cpu", "cuda", ...; None: the best there is.
        dtype: "float32", "bfloat16", "float16", "int8", "int4" (see ``heedful.optimize``) or a torch.dtype;
            None: as stored.

    >>> import heedful
    >>> translate = heedful.pipeline("translation", "runs/en-fr")  # doctest: +SKIP
    >>> translate("How are you?")["output"]  # doctest: +SKIP
    'Comment allez-vous ?'
    >>> talk = heedful.pipeline("text-generation", "runs/assistant")  # doctest: +SKIP
    >>> talk([{"role": "user", "content": "How are you?"}])["output"]  # doctest: +SKIP
    'Well, thank you.'
    """
    if task is not None:
        tasks.check(task)
    model = find(model)
    card = read_card(model)
    own = card.get("task")
    if task is not None and own is not None and task != own:
        raise HeedfulError(f"{model} was trained for {own}, not for {task}; use a model of that task")
    kind = tasks.get(task or own or task_of(model), config_of(model).kind).for_folder(model)
    place = device_of(device)
    loaded = load(model, head=kind.head, device=place, dtype=stored_as(dtype, place))
    made = kind.load(model)
    made.check(loaded)
    return Pipeline(made, optimize(loaded, dtype), card)
