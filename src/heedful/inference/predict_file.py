"""Predictions for all inputs of a file, written block by block; a stopped call can be continued."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heedful import __version__
from heedful.data.prediction_inputs import Input, input_identity, read_inputs
from heedful.data.text_files import STDIN
from heedful.errors import HeedfulError, InputError, plural
from heedful.inference.input_blocks import FIRST, BlockOptions, BlockWarnings, blocks, input_size
from heedful.inference.output_file import PARQUET, ParquetColumns, PartialFile, is_json, one_line
from heedful.inference.pipeline import Pipeline, beside, pipeline
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import find, members_of
from heedful.tasks.run_data import columns_in_card, stripped_prefix
from heedful.tasks.task import Prediction, check_input_columns, derived_columns
from heedful.util.progress import Progress
from heedful.util.ranks import Ranks, join_ranks, own_device
from heedful.util.sharding import among
from heedful.util.values import to_json

MODEL_FILES = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")  # files that change a model's predictions
log = logging.getLogger("heedful")


def predict(
    model: str | Path,
    source: str,
    out: str | None = None,
    *,
    task: str | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    compiled_decoding: bool = True,
    as_json: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    show: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Predicts for every input of the file ``source`` with the model in the folder ``model``.

    The file is read twice: first to find a broken line, or a column that a Parquet file ``out`` cannot hold, before the
    work begins, then block by block, so that no more than some thousand inputs are in memory. Predictions have the
    order of the inputs; an empty line has an empty prediction.

    ``out`` is written as ``OUT.part``, a block at a time, and renamed at the end. If a call is stopped, the same call
    continues the file, and writes byte for byte what a single call would have written; a different model, options or
    inputs are an error. If a model samples and no seed is given, a random seed is stored for the calls that continue.
    Predictions that a Parquet file cannot hold together end the call; the same call with a ``.jsonl`` file continues.

    Ranks that ``torchrun`` started share the batches; rank 0 alone writes and shows.

    Args:
        model: a model folder, or a Hub id.
        source: file of inputs, in a format that ``heedful.data.prediction_inputs.read_inputs`` reads. Standard input
            (``-``) cannot be continued.
        out: file of predictions. Of a table, ``.csv``, ``.tsv``, ``.parquet`` and ``.jsonl`` (an object in each line)
            have all columns of the input, and then ``output`` and ``score``, which are called ``predicted_output`` and
            ``predicted_score`` if the table has such columns; other inputs are in a column ``input``. ``.txt`` has the
            output alone in each line; line ends inside it become ``\\n`` and ``\\r``. None shows every prediction.
        task: name of the task; None is the task for which the model was trained.
        columns: names of the file's columns that make an input.
        options: options of the task's ``predict``.
        device: device of the model.
        dtype: dtype of the weights: "float32", "bfloat16", "float16", "int8" or "int4"; None keeps the stored dtype.
        compiled_decoding: decode with compiled code on a CPU, with CUDA graphs on an NVIDIA GPU (``heedful.optimize``);
            False: with PyTorch's kernels, one call each.
        as_json: show predictions as JSON.
        overwrite: start again, even if a file exists.
        quiet: show no progress.
        show: called with each prediction as a line, if ``out`` is None.

    Returns:
        ``{"task", "model", "in", "out", "inputs", "before", "seconds", "kernels"}``. ``inputs`` is the number of
        inputs, ``before`` how many of them earlier calls had predicted, and ``kernels`` the plan of the kernels that
        ran (``heedful.kernels.plan``).
    """
    with join_ranks() as ranks, among(ranks), ExitStack() as stack:
        if ranks.size > 1 and source == STDIN:
            raise HeedfulError("torchrun passes standard input to one process only; name a file, or leave torchrun out")
        if not ranks.is_first:
            quiet, show = True, _discard
        start = time.monotonic()
        as_json = is_json(out, as_json)
        pipe = pipeline(task, model, device=own_device(device), dtype=dtype, compiled_decoding=compiled_decoding)
        check_input_columns(pipe.task)
        resolved = _resolve(pipe, options or {}, as_json)
        inputs = pipe.task.for_options(resolved).input_columns
        read = partial(read_inputs, source, inputs, columns, **_reading_settings(pipe.card), whole=as_json)
        total, digest, names = _survey(source, read, None if quiet else log.warning, out)
        effective = _effective(options or {}, resolved)
        call = [__version__, pipe.task.name, as_json, device, dtype, effective]
        line = partial(line_of, names=names) if as_json else text_of
        kernels = pipe.model.kernels  # of the whole file: those that are compiled meanwhile are left to the next
        facts = {"model": fingerprint(model), "options": to_json(call), "kernels": kernels, "input": digest}
        file, done, resolved = _output(ranks, stack, out, facts, total, resolved, overwrite)
        progress = stack.enter_context(Progress(total, done, quiet=quiet or file is None))
        if done:
            progress.note(f"continues after {plural(done, 'prediction')}")
        types = ParquetColumns(out, source) if out is not None and out.lower().endswith(PARQUET) else None
        pairs = _predictions(pipe, read(), resolved, done)
        if types is not None:
            pairs = _checked(pairs, names, types, file)
        blocks_of_lines = ([line(item, prediction) for item, prediction in block] for block in pairs)
        number = _write(blocks_of_lines, file, show if out is None else None, progress, done, source)
        seconds = round(time.monotonic() - start, 3)
        progress.note(f"{plural(number - done, 'input')} predicted in {seconds:,.1f} s: {out}")
    facts_of_call = {"task": pipe.task.name, "model": str(model), "in": source, "out": out}
    return {**facts_of_call, "inputs": number, "before": done, "seconds": seconds, "kernels": kernels}


def _resolve(pipe: Pipeline, options: Mapping[str, Any], as_json: bool) -> dict[str, Any]:
    """Returns the resolved options; raises ``HeedfulError`` for options that the task or the output format does not
    support.
    """
    resolved = pipe.resolve(options)
    if resolved.get("logprobs") and not as_json:
        raise HeedfulError("logprobs are not written as text; add --json, or write a .jsonl file")
    pipe.predict_block([], resolved)  # raises for options that the task refuses
    return resolved


def _write(
    blocks_of_lines: Iterator[list[str]],
    file: PartialFile | None,
    show: Callable[[str], object] | None,
    progress: Progress,
    done: int,
    source: str,
) -> int:
    """Writes lines to the file or shows them; returns the number of lines, including the ``done`` lines of an earlier
    call.
    """
    number = done
    try:
        for lines in blocks_of_lines:
            if file is not None:
                file.add(lines)
            elif show is not None:
                for line in lines:
                    show(line)
            number += len(lines)
            progress.tick(number)
    except KeyboardInterrupt:
        if file is not None:
            progress.note(f"{plural(number, 'prediction')} kept in {file.part}; the same command continues from there")
        raise
    if file is not None:
        file.finish(source)
    return number


def _checked(
    pairs: Iterator[list[tuple[Input, Prediction]]],
    names: Container[str],
    types: ParquetColumns,
    file: PartialFile | None,
) -> Iterator[list[tuple[Input, Prediction]]]:
    """Yields the blocks of predictions, and checks each after it was written: if Parquet cannot hold its columns, the
    file becomes one of JSON lines, which a later call continues, and ``HeedfulError`` is raised.
    """
    for block in pairs:
        yield block
        for item, prediction in block:
            values = prediction.as_dict()
            own = values if item.row is None else beside(values, names)
            if problem := types.problem_of(own, item.location):
                raise HeedfulError(problem if file is None else f"{problem}; {_kept(file)}")


def _kept(file: PartialFile) -> str:
    """Turns a partial file of a table into one of JSON lines; returns how to continue it."""
    path = file.path.with_suffix(".jsonl")
    if file.continue_as(path):
        return f"the predictions so far are kept: the same command with --out {path} continues after them"
    return f"the predictions so far are in {file.part}, as JSON lines: name another output, .jsonl or .csv"


def _reading_settings(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those settings for reading the training data that also apply to inputs."""
    return {"remembered": columns_in_card(card), "strip_prefix": stripped_prefix(card)}


def _effective(options: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the call's options that have an effect, sorted by name: all except a seed without sampling."""
    used = "decoding" in resolved and "seed" in resolved["decoding"].given
    return sorted((name, value) for name, value in options.items() if used or name != "seed")


def _discard(line: str) -> None:
    """Discards a line on ranks above 0."""


def _survey(
    source: str, read: Callable[..., Iterator[Input]], say: Callable[[str], object] | None, out: str | None
) -> tuple[int | None, str, frozenset[str]]:
    """Counts the inputs, computes their digest, and collects the columns of a table; raises ``HeedfulError`` for a
    broken input, and for a column that a Parquet file ``out`` cannot hold. For standard input, which cannot be read
    twice, the number is None and the digest random.
    """
    names: set[str] = set()
    if source == STDIN:
        return None, secrets.token_hex(), frozenset()
    count, digest, types = 0, hashlib.blake2b(digest_size=16), None
    if out is not None and out.lower().endswith(PARQUET) and not source.lower().endswith(PARQUET):
        types = ParquetColumns(out, source)
    for item in read(say=say):
        count += 1
        names.update(item.row or ())
        if types is not None and (item.row is not None or isinstance(item.input, str | Mapping)):
            types.add({"input": item.input} if item.row is None else item.row, item.location)
        digest.update(input_identity(item).encode("utf-8", "surrogatepass") + b"\n")
    if not count:
        raise HeedfulError("the file contains no inputs; write one input per line")
    if types is not None:
        types.end()
    return count, digest.hexdigest(), frozenset(names)


def _output(
    ranks: Ranks,
    stack: ExitStack,
    out: str | None,
    facts: Mapping[str, Any],
    total: int | None,
    resolved: Mapping[str, Any],
    overwrite: bool,
) -> tuple[PartialFile | None, int, dict[str, Any]]:
    """Opens the output file on rank 0. Returns the file, the number of predictions in it, and the options with the seed
    of the call that began it.
    """
    file: PartialFile | None = None

    def begin() -> tuple[int, Any]:
        nonlocal file
        seed = _seed(resolved)
        if out is None:
            return 0, seed
        file = stack.enter_context(PartialFile(out, facts, {"seed": seed}, overwrite=overwrite))
        if total is not None and file.done > total:
            raise HeedfulError(f"{out}.part has more lines than there are inputs; add --overwrite to start again")
        return file.done, file.values["seed"]

    done, seed = ranks.run_on_first(begin)
    decoding = {} if seed is None else {"decoding": replace(resolved["decoding"], seed=seed)}
    return file, done, {**resolved, **decoding}


def _seed(resolved: Mapping[str, Any]) -> Any:
    """Returns the seed for sampling: the call's, the folder's, or else a random one; None if nothing is sampled."""
    decoding = resolved.get("decoding")
    if decoding is None or decoding.method != "sampling":
        return None
    return secrets.randbits(32) if decoding.seed is None else decoding.seed


def fingerprint(model: str | Path) -> str:
    """Returns a digest of the files that determine a model's predictions.

    They are the files of its folder and of its members' and, for an adapter, also those of its base model.
    """
    digest = hashlib.blake2b(digest_size=16)
    own = find(model)
    for folder in dict.fromkeys((own, home(own), *members_of(own))):
        for path in sorted(folder.iterdir()):
            if path.suffix in MODEL_FILES and path.is_file():
                with path.open("rb") as file:
                    digest.update(path.name.encode() + hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def line_of(item: Input, prediction: Prediction, names: Container[str] = ()) -> str:
    """Returns a prediction as a JSON object; of a table, with all columns of its row in place of the ``"input"``.

    ``names`` are the columns of the table.

    >>> row = {"text": "a", "score": "3"}
    >>> line_of(Input("a", "x.csv:2", row=row), Prediction("a", "b", 0.5), row)
    '{"text": "a", "score": "3", "output": "b", "predicted_score": 0.5}'
    """
    values = prediction.as_dict()
    return to_json(values if item.row is None else {**item.row, **beside(values, names)})


def text_of(item: Input, prediction: Prediction) -> str:
    """Returns a prediction's output on one line."""
    return one_line(prediction.output)


def _predictions(
    pipe: Pipeline, inputs: Iterator[Input], resolved: Mapping[str, Any], done: int
) -> Iterator[list[tuple[Input, Prediction]]]:
    """Yields the inputs after the first ``done`` with their predictions, a block at a time. The block of the
    first of these inputs is computed as a whole, so that its batches, and thus the last bits of scores, are those of a
    single call.
    """
    options, warnings, number = BlockOptions(resolved), BlockWarnings(), 0
    try:
        for block in blocks(inputs, FIRST, lambda item: input_size(item.input)):
            block_options = options.of([item.input for item in block])
            finished = max(0, done - number)
            number += len(block)
            if finished < len(block):
                yield list(zip(block, _block(pipe, block, block_options, warnings), strict=True))[finished:]
        options.end()
    finally:
        warnings.end(number)


def _block(
    pipe: Pipeline, block: Sequence[Input], resolved: Mapping[str, Any], warnings: BlockWarnings
) -> list[Prediction]:
    """Returns the predictions for a block. A blank line in a file of images, or of columns from which the task makes
    its input, gets an empty prediction; the task handles other blank texts.
    """
    if "image" not in pipe.task.input_columns.values() and not derived_columns(pipe.task):
        return _named(pipe, block, resolved, warnings)
    inputs = [item for item in block if not item.blank]
    predictions = iter(_named(pipe, inputs, resolved, warnings) if inputs else [])
    return [
        Prediction("", [] if "top_k" in resolved else "", None) if item.blank else next(predictions) for item in block
    ]


def _named(
    pipe: Pipeline, block: Sequence[Input], resolved: Mapping[str, Any], warnings: BlockWarnings
) -> list[Prediction]:
    """Returns the predictions for a block; an error names the file and line of its input."""
    try:
        with warnings.naming(lambda position: block[position].location):
            return pipe.predict_block([item.input for item in block], resolved)
    except HeedfulError as error:
        if isinstance(error.__cause__, InputError):  # it has the name already
            raise
        with _silent():
            where = block[_first_failing(pipe, block, resolved)].location
        raise HeedfulError(str(error) if where in str(error) else f"{error}, in {where}") from None


def _first_failing(pipe: Pipeline, block: Sequence[Input], resolved: Mapping[str, Any]) -> int:
    """Returns the index of the first input that raises, found by halving the block."""
    first, last = 0, len(block)
    while last - first > 1:
        middle = (first + last) // 2
        rows = range(first, middle)
        options = dict(resolved)
        if "decoding" in options:
            options["decoding"] = options["decoding"].for_rows(rows, len(block))
        try:
            pipe.predict_block([block[row].input for row in rows], options)
            first = middle
        except HeedfulError:
            last = middle
    return first


@contextmanager
def _silent() -> Iterator[None]:
    """Suppresses warnings, which have been shown before."""
    log.addFilter(_reject)
    try:
        yield
    finally:
        log.removeFilter(_reject)


def _reject(record: logging.LogRecord) -> bool:
    return False
