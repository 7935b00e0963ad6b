"""``heedful predict`` and ``nearest``: predictions for texts or images, and texts of similar meaning."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from heedful.cli.arguments import check_file, check_model
from heedful.cli.parser import Answering, CompiledDecoding, Decoding, Device, Dtype, Json, Quiet
from heedful.cli.processes import rank, several
from heedful.errors import HeedfulError
from heedful.generation.options import DecodingSettings
from heedful.settings import AnsweringSettings, DataSettings
from heedful.util.escaping import safe_in_terminals
from heedful.util.terminal import lines, to_json

if TYPE_CHECKING:
    from heedful.inference.pipeline import Pipeline
    from heedful.tasks import Task


def predict(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *inputs: Annotated[
        str, Parameter(help="texts, or image files; without inputs, or for -, standard input is read line by line")
    ],
    source: Annotated[
        str | None,
        Parameter(name="--in", help="inputs: a table, a text file with one input per line, or a folder of images"),
    ] = None,
    out: Annotated[
        str | None,
        Parameter(
            help="predictions: .csv, .tsv, .parquet, .jsonl with the columns of --in, or .txt; continued if stopped"
        ),
    ] = None,
    columns: Annotated[tuple[str, ...] | None, Parameter(help="columns of --in: names, or numbers from 1")] = None,
    overwrite: Annotated[bool, Parameter(help="replace the file --out")] = False,
    task: Annotated[str | None, Parameter(help="the task; by default the one that the model was trained for")] = None,
    device: Device = None,
    dtype: Dtype = None,
    compiled_decoding: CompiledDecoding = True,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Predict with a trained model, for texts or images, in their order."""
    check_model(model)
    inputs = _checked_inputs(inputs)
    from heedful import tasks
    from heedful.inference.output_file import is_json

    if task is not None:
        tasks.named(task)  # raises for an unknown one
    out = None if out == "-" else out
    _check_source(source, inputs, out, columns, overwrite)
    options = decoding.given() | answering.given()
    if answering.logprobs and not is_json(out, json):
        raise HeedfulError("--logprobs needs JSON output; give --json, or write a .jsonl file")
    if source is None:
        import heedful

        pipe = heedful.pipeline(task, model, device=device, dtype=dtype, compiled_decoding=compiled_decoding)
        _check_paths(pipe.task, inputs)
        _predict_texts(pipe, inputs, options, json)
        return
    from heedful.inference.predict_file import predict as predict_file

    result = predict_file(
        model,
        source,
        out,
        task=task,
        columns=DataSettings(columns=columns).columns,
        options=options,
        device=device,
        dtype=dtype,
        compiled_decoding=compiled_decoding,
        as_json=json,
        overwrite=overwrite,
        quiet=quiet,
        show=lambda line: print(line if json else shown(line)),
    )
    if json and out is not None and not rank():
        print(to_json(result))


def _checked_inputs(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the texts of the command line; () for ``-``, which is standard input."""
    if inputs == ("-",):
        return ()
    if "-" in inputs:
        raise HeedfulError("- (standard input) cannot be combined with other texts; give only one of them")
    for number, text in enumerate(inputs, start=1):
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes that are not UTF-8
            raise HeedfulError(f"text {number} of the command line is not UTF-8; convert it first")
    return inputs


def _check_source(
    source: str | None, inputs: tuple[str, ...], out: str | None, columns: tuple[str, ...] | None, overwrite: bool
) -> None:
    """Checks the files of inputs and predictions; without ``source``, raises for options that need a file of inputs."""
    from heedful.inference.output_file import check_output

    if source is not None and inputs:
        raise HeedfulError("--in FILE and texts are both given; give only one of them")
    if source is not None:
        check_file(source)
        check_output(source, out, overwrite)
        return
    for flag, value in (("--out", out), ("--columns", columns), ("--overwrite", overwrite)):
        if value:
            raise HeedfulError(f"{flag} needs a file of inputs; give it with --in FILE (- is standard input)")
    if several():
        raise HeedfulError("with torchrun, predict needs a file of inputs: give --in FILE, or run it without torchrun")


def _check_paths(task: Task, inputs: tuple[str, ...]) -> None:
    """Prints a hint if a text is the name of a file; raises ``HeedfulError`` for a folder of images."""
    for name in filter(os.path.exists, inputs):
        reads_images = "image" in task.input_columns.values()
        if reads_images and os.path.isdir(name):
            raise HeedfulError(f"{name} is a folder; predict the images in it with --in {shlex.quote(name)}")
        if not reads_images and os.path.isfile(name):
            hint = f"did you mean --in {shlex.quote(name)}?"
            print(f"{name} is the name of a file, but predicted as a text; {hint}", file=sys.stderr, flush=True)


def _predict_texts(pipe: Pipeline, inputs: tuple[str, ...], options: Mapping[str, Any], json: bool) -> None:
    """Prints predictions for texts, or for the lines of standard input; streams generated text to a terminal."""
    from heedful.tasks.task import Streams

    streams = isinstance(pipe.task, Streams) and not json and sys.stdout.isatty()
    streams = (
        streams
        and "choices" not in options
        and options.get("num_beams", 1) == options.get("num_return_sequences", 1) == 1
    )
    if not inputs and sys.stdin.isatty():
        print("write one text per line; Ctrl-D ends", file=sys.stderr, flush=True)
    for texts in [inputs] if inputs else lines(cast(BufferedReader, sys.stdin.buffer)):
        if streams:
            for text in texts:
                for piece in pipe.stream(text, **options):
                    print(shown(piece), end="", flush=True)
                print()
            continue
        for prediction in pipe(list(texts), **options):
            print(to_json(prediction) if json else shown(people_text(prediction["output"])))
        sys.stdout.flush()


def shown(text: str) -> str:
    """Returns a text for standard output, escaped if that is a terminal: a label could otherwise control it."""
    return safe_in_terminals(text) if sys.stdout.isatty() else text


def people_text(output: Any) -> str:
    """Returns an output for people: a text, labels or spans with their probabilities a line each, else JSON.

    >>> print(people_text([{"label": "spam", "score": 0.93}, {"label": "ham", "score": 0.07}]))
    spam  0.9300
    ham   0.0700
    """
    if isinstance(output, str):
        return output
    if (
        not isinstance(output, list)
        or not output
        or not all(isinstance(one, dict) and "label" in one for one in output)
    ):
        return to_json(output)
    width = max(len(one["label"]) for one in output)
    return "\n".join(
        f"{one['label']:<{width}}  {one['score']:.4f}" + (f"  {one['text']}" if "text" in one else "") for one in output
    )


def nearest(
    model: Annotated[str, Parameter(help="model folder for feature-extraction")],
    /,
    *queries: Annotated[str, Parameter(help="texts to search for")],
    among: Annotated[
        str | None,
        Parameter(help="texts to search in: a table, a text file with one text per line, or a folder of texts"),
    ] = None,
    index: Annotated[
        str | None,
        Parameter(help="folder for the texts' vectors: written with --among, read without --among"),
    ] = None,
    column: Annotated[str | None, Parameter(help="column of a table; text by default")] = None,
    k: Annotated[int, Parameter(help="results for each query; 10 by default")] = 10,
    engine: Annotated[Literal["numpy", "faiss"], Parameter(help="search library; both are exact")] = "numpy",
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Find the texts of the most similar meaning."""
    check_model(model)
    if not queries:
        raise HeedfulError("no text to search for; give at least one")
    if among is None and (index is None or not Path(index).is_dir()):
        raise HeedfulError("no texts to search in; give --among with a file or a folder, or --index with a saved index")
    if among is None and column is not None:
        raise HeedfulError("--column names a column of the --among table; give both options, or neither")
    if among is not None:
        check_file(among)
        if index is not None and Path(index).exists():
            raise HeedfulError(
                f"--index {index} already exists; leave --among out to search in it, or name a new folder"
            )

    import heedful
    from heedful.inference.neighbours import Index, texts_among
    from heedful.tasks import EMBEDDING_TASK
    from heedful.util.progress import Progress

    pipe = heedful.pipeline(EMBEDDING_TASK, model, device=device, dtype=dtype)
    if among is None:
        vectors = Index.open(str(index), pipe, engine)
    else:
        texts = texts_among(among, column)
        if texts.mapping:
            print(f"searches column {texts.mapping['text']} of {among}; another: --column NAME", file=sys.stderr)
        with Progress(len(texts), unit="texts") as progress:
            vectors = Index(pipe, engine).add(texts, progress.tick)
        if index is not None:
            vectors.save(index)
    for query, matches in zip(queries, vectors.nearest(list(queries), k), strict=True):
        if json:
            print(to_json({"input": query, "output": [match._asdict() for match in matches]}))
            continue
        if len(queries) > 1:
            print(query)
        for match in matches:
            text = " ".join(match.text.split())[:200]
            print(f"{match.score:6.3f}  {match.file + ':' if match.file else ''}{match.line}  {text}")
