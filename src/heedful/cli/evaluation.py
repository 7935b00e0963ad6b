"""``heedful evaluate`` and ``compare``: scores of one model, or two, on examples with known outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.arguments import check_file, check_model
from heedful.cli.parser import Answering, CompiledDecoding, Decoding, Device, Dtype, Json
from heedful.cli.processes import rank
from heedful.errors import HeedfulError
from heedful.generation.options import DecodingSettings
from heedful.settings import AnsweringSettings, DataSettings
from heedful.util.terminal import say_to

Data = Annotated[tuple[str, ...], Parameter(help="a file of examples, or one file per language; - is standard input")]
Columns = Annotated[
    tuple[str, ...] | None, Parameter(help="columns to read: names, or numbers from 1; source first, as in en,fr")
]
Split = Annotated[str, Parameter(help="split to read from a data set that has several splits; test by default")]


def evaluate(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *,
    data: Data,
    columns: Columns = None,
    split: Split = "test",
    out: Annotated[str | None, Parameter(help="folder for the figures: confusions, mistakes")] = None,
    device: Device = None,
    dtype: Dtype = None,
    compiled_decoding: CompiledDecoding = True,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    baseline: Annotated[bool, Parameter(help="score a simple baseline on the same examples too")] = False,
    baseline_train: Annotated[
        tuple[str, ...] | None,
        Parameter(help="files that the baseline learns from; by default the model's training files"),
    ] = None,
    json: Json = False,
) -> None:
    """Score a trained model on examples with known outputs."""
    check_model(model)
    for file in (*data, *(baseline_train or ())):
        check_file(file)

    from heedful.cli.scores import print_result
    from heedful.evaluation.evaluate import evaluate as evaluate_model
    from heedful.views.run_figures import draw_report

    result = evaluate_model(
        model,
        data,
        columns=DataSettings(columns=columns).columns,
        decoding=decoding.given() | answering.given(),
        device=device,
        dtype=dtype,
        compiled_decoding=compiled_decoding,
        split=split,
        baseline=baseline,
        baseline_train=baseline_train,
        say=say_to(json),
        draw=None if out is None else partial(draw_report, Path(out)),
    )
    if not rank():
        print_result(result, json)


def compare(
    first: Annotated[str, Parameter(name="A", help="model folder")],
    second: Annotated[str, Parameter(name="B", help="model folder of the same task")],
    /,
    *,
    data: Data,
    columns: Columns = None,
    split: Split = "test",
    examples: Annotated[int, Parameter(help="examples to show in which the two models differ; 5 by default")] = 5,
    device: Device = None,
    dtype: Dtype = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Compare two models on the same examples, with a significance test."""
    for model in (first, second):
        check_model(model)
    for file in data:
        check_file(file)
    if examples < 0:
        raise HeedfulError(f"--examples is {examples}; give a number of at least 0")

    from heedful.cli.scores import print_comparison
    from heedful.evaluation.compare import compare as compare_models

    result = compare_models(
        [first, second],
        data,
        columns=DataSettings(columns=columns).columns,
        decoding=decoding.given() | answering.given(),
        device=device,
        dtype=dtype,
        split=split,
        examples=examples,
        say=say_to(json),
    )
    print_comparison(result, json)
