"""Predicts for all inputs of a file and writes the predictions, block by block; a stopped call can be resumed."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from heedful import __version__
from heedful.data.prediction_inputs import Given, described, inputs
from heedful.data.text_files import STDIN
from heedful.errors import HeedfulError, many
from heedful.generation.options import NAMES, part, resolve
from heedful.inference.input_blocks import FIRST, Seeds, blocks, size_of
from heedful.inference.output_formats import form_of, outlined
from heedful.inference.partial_file import Unfinished
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.inference.warnings import Told
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import find
from heedful.tasks.run_data import columns_of, prefix_of
from heedful.tasks.task import Answer
from heedful.util.progress import Progress
from heedful.util.ranks import joined, own_device
from heedful.util.sharding import among
from heedful.util.values import to_json

SAYS = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")  # the files of a folder that make its answers
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
    as_json: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    show: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Answer every input of the file ``source`` with the model in the folder ``model``.

    The inputs are read as they are answered: no more than some thousand are held. First they are all looked through,
    so that a broken line is found before the work begins. The answers come in the order of the inputs, an empty one to
    an empty line.

    ``out`` is written as ``OUT.part``, a block at a time, and gets its name at the end. A call that was stopped,
    however, is gone on with by the same call, and what it writes is, byte for byte, what one call would have written;
    where model, options or inputs are not the same any more it is an error. Where a model draws and no seed is given,
    one is drawn and kept for the calls that go on.

    Processes that ``torchrun`` started share the batches out; the first alone writes and shows.

    Args:
        model: a model folder, or a Hub id.
        source: as ``heedful.data.prediction_inputs.inputs`` takes it; standard input (``-``) cannot be gone on with.
        out: ``.jsonl``: an object a line, ``{"id", "input", "output", "score"}``, the id where the input has one.
            ``.txt``: the output alone, a line each; line ends inside it become ``\\n`` and ``\\r``. None: nothing is
            written, each answer is shown.
        task: what to do; None: what the model was trained for.
        columns: what the file calls the columns of an input.
        options: of the task's ``answer``.
        device: where to compute.
        dtype: of the weights, as ``heedful.pipeline`` takes it.
        as_json: show answers as JSON.
        overwrite: begin anew, whatever is there.
        quiet: show no progress.
        show: takes each answer as a line, without ``out``.

    Returns:
        ``{"task", "model", "in", "out", "inputs", "before", "seconds"}``: how many inputs there are, and how many of
        them an earlier call had answered.
    """
    with joined() as ranks, among(ranks):
        if ranks.size > 1 and source == STDIN:
            raise HeedfulError("standard input reaches one process; name a file, or leave torchrun out")
        if not ranks.first:
            quiet, show = True, _unseen
        began = time.monotonic()
        as_json = form_of(out, as_json)
        pipe = pipeline(task, model, device=own_device(device), dtype=dtype)
        chosen = pipe.checked(options or {})
        if chosen.get("logprobs") and not as_json:
            raise HeedfulError("logprobs are only told in JSON; give --json, or write a .jsonl file")
        pipe.task.answer(pipe.model, [], **chosen)  # which raises where options are wrong
        read = partial(inputs, source, pipe.task.input_columns, columns, **_remembered(pipe.card))
        noted = None if quiet else log.warning
        total, digest = (None, secrets.token_hex()) if source == STDIN else _survey(read(say=noted))
        with ExitStack() as stack:
            file: Unfinished | None = None

            def begun() -> tuple[int, Any]:
                """Number of predictions that exist, and the seed; rank 0 opens the file."""
                nonlocal file
                seed = _seed(pipe, chosen)
                if out is None:
                    return 0, seed
                facts = {
                    "model": fingerprint(model),
                    "options": to_json([__version__, pipe.task.name, as_json, device, dtype, sorted(chosen.items())]),
                    "input": digest,
                }
                file = stack.enter_context(Unfinished(out, facts, {"seed": seed}, overwrite=overwrite))
                if total is not None and file.done > total:
                    raise HeedfulError(f"{out}.part has more lines than there are inputs; --overwrite starts anew")
                return file.done, file.kept["seed"]

            done, seed = ranks.led(begun)
            progress = stack.enter_context(Progress(total, done, quiet=quiet or file is None))
            if done:
                progress.note(f"going on after {many(done, 'answer')}")
            if seed is not None:
                chosen["seed"] = seed
            place = done
            try:
                for pairs in _answered(pipe, read(), chosen, done):
                    lines = [line_of(given, answer, as_json) for given, answer in pairs]
                    if file is not None:
                        file.add(lines)
                    elif out is None:
                        for line in lines:
                            show(line)
                    place += len(lines)
                    progress.tick(place)
            except KeyboardInterrupt:
                if file is not None:
                    progress.note(f"{many(place, 'answer')} kept in {file.part}; the same call goes on after them")
                raise
            if file is not None:
                file.finish()
            seconds = round(time.monotonic() - began, 3)
            progress.note(f"{many(place - done, 'input')} answered in {seconds:,.1f} s: {out}")
    told = {"task": pipe.task.name, "model": str(model), "in": source, "out": out}
    return {**told, "inputs": place, "before": done, "seconds": seconds}


def _remembered(card: Mapping[str, Any]) -> dict[str, Any]:
    """Reading settings of the training data that also apply to inputs."""
    return {"remembered": columns_of(card), "strip_prefix": prefix_of(card)}


def _unseen(line: str) -> None:
    """Discards a line on ranks above 0."""


def line_of(given: Given, answer: Answer, as_json: bool) -> str:
    """An answer as one line: an object, with the input's id where it has one, or the output alone.

    >>> line_of(Given("a", "x.txt:1"), Answer("a", "b\\nc", 0.5), False)
    'b\\\\nc'
    """
    if as_json:
        return to_json(({} if given.id is None else {"id": given.id}) | answer.as_dict())
    return outlined(answer.output)


def fingerprint(model: str | Path) -> str:
    """A digest of all that makes a model's answers: the files of its folder, and of its base where it is an adapter."""
    whole = hashlib.blake2b(digest_size=16)
    folder = find(model)
    for place in dict.fromkeys((folder, home(folder))):
        for path in sorted(place.iterdir()):
            if path.suffix in SAYS and path.is_file():
                with path.open("rb") as file:
                    whole.update(path.name.encode() + hashlib.file_digest(file, "blake2b").digest())
    return whole.hexdigest()


def _survey(given: Iterator[Given]) -> tuple[int, str]:
    """Counts the inputs and computes their digest; raises ``HeedfulError`` for a broken one."""
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for one in given:
        count += 1
        digest.update(described(one).encode("utf-8", "surrogatepass") + b"\n")
    if not count:
        raise HeedfulError("there is no input in the file; give one with an input a line")
    return count, digest.hexdigest()


def _seed(pipe: Pipeline, options: Mapping[str, Any]) -> Any:
    """The seed to draw with: the call's, the folder's, or, where neither has one, any; None where nothing is drawn."""
    if "seed" not in pipe.task.options:
        return None
    plan = resolve({name: value for name, value in options.items() if name in NAMES}, pipe.model.generation)
    if plan.method != "sampling":
        return None
    return secrets.randbits(32) if plan.seed is None else plan.seed


def _answered(
    pipe: Pipeline, given: Iterator[Given], options: dict[str, Any], done: int
) -> Iterator[list[tuple[Given, Answer]]]:
    """The inputs after the first ``done`` with their answers, block for block. The block that holds the first of them
    is answered whole, so that its batches, and with them the last bits of the scores, are those of one call.
    """
    seeds, told, place = Seeds(options.pop("seed", None)), Told(), 0
    try:
        for block in blocks(given, FIRST, lambda one: size_of(one.input)):
            own = options | seeds.of([one.input for one in block])
            there = max(0, done - place)
            place += len(block)
            if there < len(block):
                yield list(zip(block, _asked(pipe, block, own, told), strict=True))[there:]
        seeds.end()
    finally:
        told.end(place)


def _asked(pipe: Pipeline, block: Sequence[Given], options: Mapping[str, Any], told: Told) -> list[Answer]:
    """The answer to each; an error names the file and line of the input that it is of."""
    if "image" in pipe.task.input_columns.values():  # no image, no answer; what a blank text says is the task's matter
        there = [one for one in block if not one.blank]
        found = iter(_asked_for(pipe, there, options, told) if there else [])
        return [Answer("", [] if "top_k" in options else "", None) if one.blank else next(found) for one in block]
    return _asked_for(pipe, block, options, told)


def _asked_for(pipe: Pipeline, block: Sequence[Given], options: Mapping[str, Any], told: Told) -> list[Answer]:
    try:
        with told.naming(lambda place: block[place].where):
            return pipe.asked([one.input for one in block], options)
    except HeedfulError as error:
        if str(error) != str(error.__cause__):  # it says which
            raise
        with _silent():
            place = _blamed(pipe, block, options)
        at = block[place].where
        raise HeedfulError(str(error) if at in str(error) else f"{error}, in {at}") from None


def _blamed(pipe: Pipeline, block: Sequence[Given], options: Mapping[str, Any]) -> int:
    """The place of the first input that is not answered: the halves that have it are asked again."""
    first, last = 0, len(block)
    while last - first > 1:
        middle = (first + last) // 2
        asked = range(first, middle)
        try:
            own = part(options, asked, len(block))
            pipe.asked([block[place].input for place in asked], own)
            first = middle
        except HeedfulError:
            last = middle
    return first


@contextmanager
def _silent() -> Iterator[None]:
    """Without the warnings that have been given before."""
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
