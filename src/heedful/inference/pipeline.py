"""Pipeline: a pretrained folder with its task, called on inputs."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from itertools import chain, count
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, overload

from heedful import tasks
from heedful.data.prediction_inputs import read_frame
from heedful.errors import HeedfulError, nearest
from heedful.generation.options import NAMES, check_option
from heedful.inference.input_blocks import BLOCK, FIRST, BlockOptions, BlockWarnings, blocks
from heedful.models import Model
from heedful.models.base import device_of
from heedful.optimize_model import load_dtype, optimize
from heedful.pretrained import load, read_card
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.settings import AnsweringSettings
from heedful.tasks.choices import CHOICES
from heedful.tasks.labels import checked_top_k
from heedful.tasks.published import task_of
from heedful.tasks.run_data import columns_in_card, stripped_prefix
from heedful.tasks.task import Decodes, Output, Prediction, PredictionDict, Streams, Task, check_mappings
from heedful.text.chat_template import is_conversation

if TYPE_CHECKING:
    from typing import Unpack

    import torch

    from heedful.optimize_model import DtypeName
    from heedful.settings.typed_dicts import Message, PredictionOptions, SingleOutputOptions
    from heedful.tasks import TaskName

log = logging.getLogger("heedful")
# tasks whose output, without ``top_k`` and ``num_return_sequences``, is a text
WritesText = Literal[
    "translation", "text-generation", "summarization", "fill-mask", "image-classification", "image-to-text"
]
FOREIGN_OPTIONS = {
    "candidate_labels": CHOICES,
    "src_lang": "source_language",
    "tgt_lang": "target_language",
}  # names of transformers
ANSWERING = frozenset(field.name for field in fields(AnsweringSettings))


class HasArray(Protocol):
    """An array or a tensor, which is one input."""

    def __array__(self) -> Any: ...


class HasColumns(Protocol):
    """DataFrame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""


class HasToList(Protocol):
    """Series of pandas or polars."""

    def to_list(self) -> list[Any]:
        """Returns the values."""


Frame = HasColumns | HasToList
OneInput = str | bytes | bytearray | memoryview | tuple[Any, ...] | Mapping[str, Any] | PathLike[str] | HasArray


class Pipeline(Generic[Output]):
    """Model with its task, called with one input or several.

    A call resolves its options once (``resolve``) and then calls the task's ``predict``, block by block if there are
    many inputs.

    Args:
        task: encodes the inputs and decodes the outputs.
        model: the model, optimised for inference.
        card: content of the folder's ``heedful.json``.
    """

    def __init__(self, task: Task, model: Model, card: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.task, self.model, self.card = task, model, card
        self._seed_reported = False

    def __repr__(self) -> str:
        source = f" of {self.model.folder.source!r}" if self.model.folder.source else ""
        return f"<Pipeline for {self.task.name}{source} on {self.model.device}>"

    @property
    def labels(self) -> list[str]:
        """Names of the labels, or of the tags, in the order of the model's logits; [] for a task without labels."""
        return list(getattr(self.task, "labels", ()))

    @overload
    def __call__(self, inputs: Frame, **options: Unpack[PredictionOptions]) -> Any: ...
    @overload
    def __call__(self, inputs: list[Message], **options: Unpack[SingleOutputOptions]) -> PredictionDict[Output]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a list is an iterable, but not read lazily
        self, inputs: list[Any], **options: Unpack[SingleOutputOptions]
    ) -> list[PredictionDict[Output]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # as a text
        self, inputs: OneInput, **options: Unpack[SingleOutputOptions]
    ) -> PredictionDict[Output]: ...
    @overload
    def __call__(
        self, inputs: Iterable[Any], **options: Unpack[SingleOutputOptions]
    ) -> Iterator[PredictionDict[Output]]: ...
    @overload
    def __call__(self, inputs: Any, *, as_frame: bool | None = None, **options: Unpack[PredictionOptions]) -> Any: ...

    def __call__(self, inputs: Any, *, as_frame: bool | None = None, **options: Any) -> Any:
        """Returns ``{"input", "output", "score"}`` for one input, and a list of them for a list.

        A DataFrame of pandas or polars gives a copy with the columns ``output`` and ``score``
        (``predicted_output`` and ``predicted_score`` if it has such columns); its columns for the task are found as in
        a file. A column (Series) gives what a list gives. ``as_frame=True`` gives a DataFrame for lists and columns
        too, with a column ``input``; ``as_frame=False`` a list of dictionaries for a DataFrame.

        Any other iterable that is no input itself (a generator, a data set) gives an iterator over such dictionaries,
        which reads the inputs lazily and never holds more than a block. A list of messages, each with its ``"role"``,
        is one input.
        """
        if hasattr(inputs, "collect_schema") and not hasattr(inputs, "iter_rows"):
            raise HeedfulError("a LazyFrame has no rows yet; call its collect() first")
        is_frame = hasattr(inputs, "columns") and (hasattr(inputs, "iloc") or hasattr(inputs, "iter_rows"))
        if is_frame or hasattr(inputs, "to_list"):
            return self._of_frame(inputs, as_frame, options)
        if as_frame:
            if not isinstance(inputs, list) or is_conversation(inputs):
                raise HeedfulError("as_frame=True takes a list, a Series or a DataFrame; put the input into a list")
            return _pandas().DataFrame([prediction.as_dict() for prediction in self.predict(inputs, **options)])
        if isinstance(inputs, list) and not is_conversation(inputs):
            return [prediction.as_dict() for prediction in self.predict(inputs, **options)]
        if _is_stream(inputs):
            return (prediction.as_dict() for prediction in self.iter_predict(inputs, **options))
        return self.predict([inputs], **options)[0].as_dict()

    def _of_frame(self, data: Any, as_frame: bool | None, options: Mapping[str, Any]) -> Any:
        """Returns the predictions for the rows of a DataFrame, or for a Series: see ``__call__``."""
        is_series = not hasattr(data, "columns")
        if is_series:
            inputs = data.to_list()
        else:
            remembered, prefix = columns_in_card(self.card), stripped_prefix(self.card)
            columns_of_input = self.task.for_options(options).input_columns
            rows = read_frame(data, columns_of_input, remembered=remembered, strip_prefix=prefix)
            inputs = [item.input for item in rows]
        predictions = self.predict(inputs, **options)
        if not (as_frame or (as_frame is None and not is_series)):
            return [prediction.as_dict() for prediction in predictions]
        found = [prediction.as_dict() for prediction in predictions]
        names = list(dict.fromkeys(name for row in found for name in row if is_series or name != "input"))
        columns = {name: [row.get(name) for row in found] for name in names}
        if type(data).__module__.partition(".")[0] != "polars":
            pandas, index = _pandas(), getattr(data, "index", None)
            added = {name: pandas.Series(values, index=index) for name, values in columns.items()}
            return pandas.DataFrame(added) if is_series else data.assign(**beside(added, data.columns))
        polars = import_module("polars")
        columns = {name: polars.Series(name, values, strict=False) for name, values in columns.items()}
        return polars.DataFrame(columns) if is_series else data.with_columns(**beside(columns, data.columns))

    def predict(self, inputs: Sequence[Any], **options: Unpack[PredictionOptions]) -> list[Prediction]:
        """Returns the prediction for each input, in order; ``options`` are those of the task's ``predict``.

        More than ``heedful.inference.input_blocks.BLOCK`` inputs are predicted in blocks, which bounds the memory.
        """
        self.model.begin_call()
        if len(inputs) > BLOCK:
            return list(self.iter_predict(inputs, first=BLOCK, **options))
        return self.predict_block(inputs, self.resolve(options))

    def iter_predict(
        self, inputs: Iterable[Any], *, first: int = FIRST, **options: Unpack[PredictionOptions]
    ) -> Iterator[Prediction]:
        """Yields the predictions in order, for a stream of inputs that may never end.

        Inputs are read in blocks, at first of at most ``first`` inputs and then larger. A block is read when its first
        prediction is requested. Options are checked when this function is called.
        """
        self.model.begin_call()
        resolved = self.resolve(options)
        self.predict_block([], resolved)  # raises for options that the task refuses
        return self._iterate(inputs, first, resolved)

    def _iterate(self, inputs: Iterable[Any], first: int, resolved: Mapping[str, Any]) -> Iterator[Prediction]:
        block_options, warnings, number = BlockOptions(resolved), BlockWarnings(), 0
        try:
            for block in blocks(inputs, first):
                with warnings.naming(lambda position: f"input {number + position}"):  # noqa: B023 (called in this turn alone)
                    predictions = self.predict_block(block, block_options.of(block))
                number += len(block)
                yield from predictions
            block_options.end()
        finally:
            warnings.end(number)

    def predict_block(self, inputs: Sequence[Any], resolved: Mapping[str, Any]) -> list[Prediction]:
        """Returns the predictions of one block of inputs; ``resolved`` are the options that ``resolve`` returned.

        Raises ``HeedfulError`` for a score or vector with NaN or infinity, and for inputs with columns from which the
        task makes its own in training alone.
        """
        check_mappings(self.task, inputs)
        predictions = self.task.predict(self.model, inputs, **resolved)
        for number, prediction in enumerate(predictions, 1):
            vector = prediction.output if isinstance(prediction.output, list) else []
            values = [value for value in (prediction.score, *vector) if isinstance(value, float)]
            if any(math.isnan(value) or value == math.inf for value in values):  # −∞: fewer beams exist than requested
                raise HeedfulError(
                    f"the prediction for input {number} is NaN or infinite: the model's numbers overflow; "
                    "load the model with dtype float32, or use other weights"
                )
        return predictions

    def stream(self, text: Any, **options: Unpack[PredictionOptions]) -> Iterator[str]:
        """Yields the output for one text, or for one list of messages, in pieces while it is generated.

        Raises ``HeedfulError`` for a task that does not generate.
        """
        if not isinstance(self.task, Streams):
            raise HeedfulError(f"{self.task.name} cannot stream its output; call the pipeline instead of stream")
        self.model.begin_call()
        return self.task.stream(self.model, text, **self.resolve(options))

    def resolve(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options for the task's ``predict``, with all decoding options combined under the key
        ``decoding``.

        Raises ``HeedfulError`` for an option that the task does not have, and for a value that it does not take. A
        seed is dropped if nothing is sampled, with a warning in the first call.
        """
        for name in options:
            if name not in self.task.options:
                known = self.task.options
                hint = nearest(FOREIGN_OPTIONS.get(name, name), known) if known else "leave it out"
                raise HeedfulError(f"the option {name} has no effect for {self.task.name}; {hint}")
        for name in ANSWERING & options.keys():
            AnsweringSettings.check_value(name, options[name])
        if not isinstance(self.task, Decodes):
            checked_top_k(options.get("top_k"))
            return dict(options)
        seed = options.get("seed")
        check_option("seed", seed)
        call = {name: value for name, value in options.items() if name in NAMES and name != "seed"}
        decoding = self.task.decoding_options(self.model, call)
        if seed is not None and decoding.method == "sampling":
            decoding = replace(decoding, seed=seed, given=decoding.given | {"seed"})
        elif seed is not None and not self._seed_reported:
            self._seed_reported = True
            log.warning("seed has no effect: the model does not sample; add --do-sample (do_sample=True) to sample")
        return {**{name: value for name, value in options.items() if name not in NAMES}, "decoding": decoding}

    def for_options(self, options: Mapping[str, Any]) -> Pipeline[Output]:
        """Returns the pipeline of the task as the options of a call change it (``Task.for_options``)."""
        return Pipeline(self.task.for_options(options), self.model, self.card)

    def check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of an evaluation unchanged, except that a seed without an effect is removed.

        Raises ``HeedfulError`` for an option that the task does not have, and for one that changes no score.
        """
        for name in self.task.display_options & options.keys():
            raise HeedfulError(f"{name} has no effect: it changes the shown output, but no score; leave the option out")
        decoding = self.resolve(options).get("decoding")
        unused = {"seed"} if decoding is not None and "seed" not in decoding.given else set()
        return {name: value for name, value in options.items() if name not in unused}


def beside(prediction: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Returns the values of a prediction as further columns of a table with the columns ``names``, without its input.

    A name that the table has is "predicted_output" and, if it has that too, "predicted_output_2" and so on.

    >>> beside({"input": "a", "output": "b", "score": 0.5}, ["text", "score"])
    {'output': 'b', 'predicted_score': 0.5}
    >>> beside({"output": "b"}, ["output", "predicted_output"])
    {'predicted_output_2': 'b'}
    """
    found = {}
    for name, value in prediction.items():
        longer = f"predicted_{name}"
        candidates = chain((name, longer), (f"{longer}_{number}" for number in count(2)))
        if name != "input":
            found[next(candidate for candidate in candidates if candidate not in names)] = value
    return found


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise HeedfulError("as_frame=True needs pandas; pip install pandas") from None


def _is_stream(inputs: Any) -> bool:
    """Returns True if ``inputs`` is an iterable over inputs, not a text, pair, mapping, array, image or list of
    messages.
    """
    single = str | bytes | bytearray | memoryview | tuple | list | Mapping
    return isinstance(inputs, Iterable) and not isinstance(inputs, single) and not hasattr(inputs, "__array__")


def _only_model(folder: Any) -> str | Path:
    """Returns the single argument of ``pipeline``; raises ``HeedfulError`` if it is not a model's folder or Hub id."""
    if isinstance(folder, str) and folder in (*tasks.TASKS, *tasks.OTHER_NAMES) and not Path(folder).is_dir():
        raise HeedfulError(f"no model is given for {folder}; name its folder too: pipeline({folder!r}, 'runs/name')")
    if not isinstance(folder, str | Path):
        raise HeedfulError("no model is given; name its folder or Hub id: pipeline('runs/name')")
    return folder


@overload
def pipeline(
    task: WritesText,
    model: str | Path,
    device: str | None = None,
    dtype: DtypeName | str | torch.dtype | None = None,
    *,
    compiled_decoding: bool = True,
) -> Pipeline[str]: ...
@overload
def pipeline(
    task: Literal["feature-extraction"],
    model: str | Path,
    device: str | None = None,
    dtype: DtypeName | str | torch.dtype | None = None,
    *,
    compiled_decoding: bool = True,
) -> Pipeline[list[float]]: ...
@overload
def pipeline(
    task: TaskName | str | Path | None,
    model: str | Path | None = None,
    device: str | None = None,
    dtype: DtypeName | str | torch.dtype | None = None,
    *,
    compiled_decoding: bool = True,
) -> Pipeline: ...
def pipeline(
    task: str | Path | None,
    model: str | Path | None = None,
    device: str | None = None,
    dtype: Any = None,
    *,
    compiled_decoding: bool = True,
) -> Pipeline:
    """Loads the model in a folder with its task, and optimises it for inference (``heedful.optimize``).

    Args:
        task: name of the task, or one of transformers' for it, such as "sentiment-analysis". None is the task for which
            the folder was trained or, if it names none, the first task of ``heedful tasks`` that reads the model's
            head. A task other than the folder's is an error.
        model: a model folder, or a Hub id. A folder alone, ``pipeline("runs/en-fr")``, is used for its own task.
        device: "cpu", "cuda", ...; None for the best available.
        dtype: "float32", "bfloat16", "float16", "int8", "int4" (see ``heedful.optimize``) or a torch.dtype;
            None keeps the stored dtype, on a GPU too: float32 for most runs of ours, for which "bfloat16" is faster.
        compiled_decoding: decode with compiled code on a CPU, with CUDA graphs on an NVIDIA GPU (see
            ``heedful.optimize``); False: with PyTorch's kernels, one call each.

    >>> import heedful
    >>> translate = heedful.pipeline("translation", "runs/en-fr")  # doctest: +SKIP
    >>> translate("How are you?")["output"]  # doctest: +SKIP
    'Comment allez-vous ?'
    >>> talk = heedful.pipeline("text-generation", "runs/assistant")  # doctest: +SKIP
    >>> talk([{"role": "user", "content": "How are you?"}])["output"]  # doctest: +SKIP
    'Well, thank you.'
    """
    if model is None:
        task, model = None, _only_model(task)
    if task is not None:
        tasks.named(str(task))  # raises for an unknown one before a download
    folder = find(model)
    card = read_card(folder)
    trained_for = card.get("task")
    task = None if task is None else tasks.named(str(task), trained_for)
    if task is not None and trained_for is not None and task != trained_for:
        raise HeedfulError(
            f"{folder} was trained for {trained_for}, not for {task}; use a model that was trained for {task}"
        )
    task_class = tasks.get(task or trained_for or task_of(folder), config_of(folder).kind).for_folder(folder)
    best_device = device_of(device)
    loaded = load(folder, head=task_class.head, device=best_device, dtype=load_dtype(dtype, best_device))
    loaded_task = task_class.load(folder)
    loaded_task.check_model(loaded)
    return Pipeline(loaded_task, optimize(loaded, dtype, compiled_decoding=compiled_decoding), card)
