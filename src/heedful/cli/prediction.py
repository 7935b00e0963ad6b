"""``heedful predict`` and ``nearest``: a trained model's answers to texts or images, and texts that mean the same."""

from __future__ import annotations

import sys
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from heedful.cli.arguments import check_file, check_model
from heedful.cli.parser import Answering, Decoding, Device, Dtype, Json
from heedful.cli.processes import rank, several
from heedful.errors import HeedfulError
from heedful.settings import AnsweringSettings, DataSettings, DecodingSettings
from heedful.util.terminal import lines, to_json


def predict(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *inputs: Annotated[
        str, Parameter(help="texts, or image files; without any, or for -, standard input line by line")
    ],
    source: Annotated[
        str | None,
        Parameter(name="--in", help="file to answer: a table, text with an input a line, or a folder of images"),
    ] = None,
    out: Annotated[
        str | None,
        Parameter(help="file of the answers to --in: .jsonl, or text with an output a line; the same call goes on"),
    ] = None,
    columns: Annotated[tuple[str, ...] | None, Parameter(help="of --in: names, or numbers from 1")] = None,
    overwrite: Annotated[bool, Parameter(help="begin --out anew")] = False,
    task: Annotated[str | None, Parameter(help="what to do; by default what the model was trained for")] = None,
    device: Device = None,
    dtype: Dtype = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Answer texts or images with a trained model, in order, as they come."""
    check_model(model)
    if "-" in inputs:
        if len(inputs) > 1:
            raise HeedfulError("- is standard input and stands alone; leave it out, or the other texts")
        inputs = ()
    for number, text in enumerate(inputs, start=1):
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # what the shell passed was no UTF-8
            raise HeedfulError(f"text {number} of the command line is not UTF-8; convert it first")
    from heedful import tasks
    from heedful.inference.output_file import check_output, is_json

    if task is not None:
        tasks.check(task)
    out = None if out == "-" else out
    if source is None:
        for flag, given_one in (("--out", out), ("--columns", columns), ("--overwrite", overwrite)):
            if given_one:
                raise HeedfulError(f"{flag} is for a file of inputs; name it with --in (- is standard input)")
    elif inputs:
        raise HeedfulError("--in names a file of inputs, and there are texts besides; leave one of them out")
    else:
        check_file(source)
        check_output(source, out, overwrite)
    if source is None and several():
        raise HeedfulError("several processes answer a file together: name it with --in, or leave torchrun out")
    given = decoding.given() | answering.given()
    if answering.logprobs and not is_json(out, json):
        raise HeedfulError("--logprobs are only told in JSON; give --json, or write a .jsonl file")
    if source is not None:
        from heedful.inference.predict_file import predict as run

        result = run(
            model,
            source,
            out,
            task=task,
            columns=DataSettings(columns=columns).columns,
            options=given,
            device=device,
            dtype=dtype,
            as_json=json,
            overwrite=overwrite,
        )
        if json and out is not None and not rank():
            print(to_json(result))
        return
    import heedful
    from heedful.tasks.task import Streams

    pipe = heedful.pipeline(task, model, device=device, dtype=dtype)
    if not inputs and sys.stdin.isatty():
        print("write one text a line; Ctrl-D ends", file=sys.stderr, flush=True)
    for texts in [inputs] if inputs else lines(cast(BufferedReader, sys.stdin.buffer)):
        if isinstance(pipe.task, Streams) and not json and sys.stdout.isatty() and decoding.num_beams in (None, 1):
            for text in texts:
                for piece in pipe.stream(text, **given):
                    print(piece, end="", flush=True)
                print()
            continue
        for answer in pipe(list(texts), **given):
            output = answer["output"]
            print(to_json(answer) if json else output if isinstance(output, str) else to_json(output))
        sys.stdout.flush()


def nearest(
    model: Annotated[str, Parameter(help="model folder, of feature-extraction")],
    /,
    *queries: Annotated[str, Parameter(help="what is looked for")],
    among: Annotated[
        str | None, Parameter(help="texts to look in: a table, a text with one a line, or a folder of texts")
    ] = None,
    index: Annotated[
        str | None, Parameter(help="folder in which their vectors are kept; with it alone --among")
    ] = None,
    column: Annotated[str | None, Parameter(help="of a table; text by default")] = None,
    k: Annotated[int, Parameter(help="so many of each; 10 by default")] = 10,
    engine: Annotated[Literal["numpy", "faiss"], Parameter(help="what compares, equally exact")] = "numpy",
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Find the texts that mean about the same."""
    check_model(model)
    if not queries:
        raise HeedfulError("nothing is looked for; give a text")
    if among is None and (index is None or not Path(index).is_dir()):
        raise HeedfulError("--among names no texts to look in; give a file or a folder, or --index with kept ones")
    if among is None and column is not None:
        raise HeedfulError("--column is of --among; give both, or neither")
    if among is not None:
        check_file(among)
        if index is not None and Path(index).exists():
            raise HeedfulError(f"--index {index} is there already; leave --among out to look in it, or name a new one")

    import heedful
    from heedful.inference.neighbours import Index, texts_among
    from heedful.tasks import EMBEDDING_TASK
    from heedful.util.progress import Progress

    pipe = heedful.pipeline(EMBEDDING_TASK, model, device=device, dtype=dtype)
    if among is None:
        found = Index.open(str(index), pipe, engine)
    else:
        texts = texts_among(among, column)
        with Progress(len(texts), unit="texts") as progress:
            found = Index(pipe, engine).add(texts, progress.tick)
        if index is not None:
            found.save(index)
    for query, near in zip(queries, found.nearest(list(queries), k), strict=True):
        if json:
            print(to_json({"input": query, "output": [one._asdict() for one in near]}))
            continue
        if len(queries) > 1:
            print(query)
        for one in near:
            print(
                f"{one.score:6.3f}  {one.file + ':' if one.file else ''}{one.line}  {' '.join(one.text.split())[:200]}"
            )
