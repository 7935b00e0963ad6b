"""The command line: parses, calls, prints. What is wrong with the options is said before anything slow is imported.

Every command prints for people, and with ``--json`` one JSON object (``predict``: a line an input) and nothing else on
standard output. An error is one line on standard error with exit status 2; ``HEEDFUL_DEBUG=1`` shows where it arose.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError, default_name_transform

from heedful import __version__
from heedful.errors import HeedfulError
from heedful.options import check_file, check_model, check_out, join_dashes, read_file, refuse_fractions
from heedful.settings import (
    AnsweringSettings,
    AveragingSettings,
    DataSettings,
    DecodingSettings,
    ImageSettings,
    LoraSettings,
    MaskingSettings,
    ModelSettings,
    PoolingSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    TuningSettings,
)
from heedful.terminal import lines, print_comparison, print_list, print_result, program, rank, say_to, to_json

for _section, _title in (
    (DataSettings, "Data"),
    (TokenizerSettings, "Tokenizer"),
    (ImageSettings, "Images"),
    (ModelSettings, "Model: parts of the preset to change"),
    (TrainingSettings, "Training"),
    (AveragingSettings, "Averaging: in place of --training.average"),
    (TuningSettings, "Tuning: with --from"),
    (LoraSettings, "Adapter: with --from, trained in place of the model's own weights"),
    (MaskingSettings, "Masking: for fill-mask"),
    (PoolingSettings, "Pooling: for feature-extraction"),
    (DecodingSettings, "Decoding"),
    (AnsweringSettings, "Answers"),
):
    Parameter(group=_title)(_section)

Flattened = Parameter(
    name="*", name_transform=lambda name: "from" if name == "start_from" else default_name_transform(name)
)
Json = Annotated[bool, Parameter(help="print JSON for programs instead of text for people")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, cuda:1, mps; the best there is by default")]
Dtype = Annotated[str | None, Parameter(help="weights: float32, bfloat16, float16, int8, int4; as stored by default")]
Decoding = Annotated[DecodingSettings, Parameter(name="*")]
Answering = Annotated[AnsweringSettings, Parameter(name="*")]


app = App(
    name="heedful",
    version=__version__,
    help="Train, use and look into Transformers of all four families.",
    help_epilogue="Start with:  heedful demo\nThen:        heedful train translation --train pairs.tsv --out runs/mine",
    help_format="plaintext",
    default_parameter=Parameter(consume_multiple=1, allow_repeating=True, negative=(), show_default=False),
    config=(read_file, refuse_fractions),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


# --------------------------------------------------------------------------------------------------------- commands


@app.command(help_epilogue="Example:  heedful train translation --train train.en train.fr --out runs/en-fr")
def train(
    settings: Annotated[RunSettings, Flattened],
    *,
    config: Annotated[str | None, Parameter(help="TOML file of options; the command line wins over it")] = None,
    find_lr: Annotated[bool, Parameter(help="try learning rates on the run's first steps instead; writes nothing")] = (
        False
    ),
    json: Json = False,
) -> None:
    """Train a model on your own files."""
    from heedful import presets, recipes, tasks

    tasks.check(settings.task)
    if settings.recipe is not None:
        recipes.get(settings.recipe)
    if settings.preset is not None:
        presets.get(settings.preset)
    if settings.start_from is not None:
        check_model(settings.start_from)
    for file in (*settings.train, *(settings.valid or ())):
        check_file(file)
    if rank() == 0 and not find_lr:
        check_out(settings)

    from heedful.training.run import train as run
    from heedful.training.run import tried
    from heedful.views.draw import draw_report, draw_run
    from heedful.views.watch import draw_watch

    if find_lr:
        found = tried(settings, quiet=json)
        people = found.pop("lines")
        print(to_json(found) if json else "\n".join(people))
        return
    try:
        result = run(settings, say=say_to(json), quiet=json, draw=draw_report, watched=draw_watch)
    except KeyboardInterrupt:
        saved = Path(settings.out).is_dir() and any(Path(settings.out).iterdir())
        raise KeyboardInterrupt(*([settings.out] if saved else [])) from None
    if rank() != 0:
        return
    draw_run(settings.out)
    print_result(result, json)
    if not json:
        if (page := Path(settings.out, "watch.html")).is_file():
            print(f"watch: {page}")
        print(f"next: {program()} predict {shlex.quote(settings.out)} ...")


@app.command(help_epilogue="Example:  heedful audit text-classification --train labels.csv --valid held.csv")
def audit(
    task: Annotated[str, Parameter(help="what is to be learned; heedful tasks lists them")],
    /,
    *,
    train: Annotated[tuple[str, ...], Parameter(help="a file or folder, or a file a language, as for train")],
    valid: Annotated[tuple[str, ...] | None, Parameter(help="validation data; without it a part of --train")] = None,
    start_from: Annotated[str | None, Parameter(name="--from", help="model folder to go on from")] = None,
    seed: Annotated[int, Parameter(help="of what is held back for validation; 0 by default")] = 0,
    data: DataSettings = DataSettings(),  # noqa: B008 (frozen)
    tokenizer: TokenizerSettings = TokenizerSettings(),  # noqa: B008 (frozen)
    strict: Annotated[bool, Parameter(help="exit with status 1 where something is marked !")] = False,
    json: Json = False,
) -> int:
    """Look at the data before training: what is cut, doubled, leaked, unknown or odd, and what the model is given."""
    from heedful import tasks

    tasks.check(task)
    if start_from is not None:
        check_model(start_from)
    for file in (*train, *(valid or ())):
        check_file(file)
    settings = RunSettings(
        task=task, train=train, valid=valid, out="-", start_from=start_from, seed=seed, data=data, tokenizer=tokenizer
    )
    from heedful.auditing.audit import audit as run

    found = run(settings)
    print(to_json(found.as_dict()) if json else "\n".join(found.lines()))
    return 1 if strict and not found.ok else 0


@app.command(help_epilogue="Example:  heedful watch runs")
def watch(
    *folders: Annotated[str, Parameter(help="where runs lie, at any depth; runs by default")],
    port: Annotated[int, Parameter(help="of the page; a free one by default")] = 0,
    no_open: Annotated[bool, Parameter(help="only tell its address")] = False,
    json: Json = False,
) -> None:
    """Show training runs while they go on, in the browser; with --json as they are now."""
    from heedful.watching.runs import Runs

    runs = Runs(folders or ("runs",))
    if json:
        if port or no_open:
            raise HeedfulError("--json shows no page; leave --port and --no-open out")
        print(to_json(runs.told()))
        return
    from heedful.watching.server import Server, opened

    with Server(runs, port) as server:
        print(f"{server.address} shows the runs in {', '.join(runs.folders)} (Ctrl-C ends it)", flush=True)
        if not no_open:
            opened(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)


@app.command(
    help_epilogue='Example:  heedful predict runs/en-fr "How are you?"\nA text that begins with a hyphen goes after --.'
)
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
    from heedful.answering.forms import check_files, form_of

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
        check_files(source, out, overwrite)
    if source is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise HeedfulError("several processes answer a file together: name it with --in, or leave torchrun out")
    given = decoding.given() | answering.given()
    if answering.logprobs and not form_of(out, json):
        raise HeedfulError("--logprobs are only told in JSON; give --json, or write a .jsonl file")
    if source is not None:
        from heedful.answering.through import predict as run

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


@app.command(help_epilogue="Example:  heedful evaluate runs/en-fr --data test.en test.fr --num-beams 5")
def evaluate(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(help="a file of examples, or one a language; - is standard input")],
    columns: Annotated[
        tuple[str, ...] | None, Parameter(help="names or numbers from 1, source first, as en,fr")
    ] = None,
    split: Annotated[str, Parameter(help="part of a data set that has several; test by default")] = "test",
    out: Annotated[str | None, Parameter(help="folder for the pictures: confusions, mistakes")] = None,
    device: Device = None,
    dtype: Dtype = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    baseline: Annotated[bool, Parameter(help="score a simple method on the same examples beside it")] = False,
    baseline_train: Annotated[
        tuple[str, ...] | None, Parameter(help="files it learns from; by default what the model was trained on")
    ] = None,
    json: Json = False,
) -> None:
    """Score a trained model on examples with known answers."""
    check_model(model)
    for file in (*data, *(baseline_train or ())):
        check_file(file)

    from heedful.evaluation.run import evaluate as run
    from heedful.views.draw import draw_report

    columns = DataSettings(columns=columns).columns
    result = run(
        model,
        data,
        columns=columns,
        decoding=decoding.given() | answering.given(),
        device=device,
        dtype=dtype,
        split=split,
        baseline=baseline,
        baseline_train=baseline_train,
        say=say_to(json),
        draw=None if out is None else partial(draw_report, Path(out)),
    )
    if not rank():
        print_result(result, json)


@app.command(help_epilogue="Example:  heedful compare runs/small runs/large --data test.en test.fr")
def compare(
    first: Annotated[str, Parameter(name="A", help="model folder")],
    second: Annotated[str, Parameter(name="B", help="model folder of the same task")],
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(help="a file of examples, or one a language; - is standard input")],
    columns: Annotated[
        tuple[str, ...] | None, Parameter(help="names or numbers from 1, source first, as en,fr")
    ] = None,
    split: Annotated[str, Parameter(help="part of a data set that has several; test by default")] = "test",
    examples: Annotated[int, Parameter(help="show so many that the two answer differently; 5 by default")] = 5,
    device: Device = None,
    dtype: Dtype = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    answering: Answering = AnsweringSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Tell which of two models is better on the same examples, and whether that may be chance."""
    for model in (first, second):
        check_model(model)
    for file in data:
        check_file(file)
    if examples < 0:
        raise HeedfulError(f"--examples must be at least 0, not {examples}")

    from heedful.evaluation.compare import compare as run

    result = run(
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


@app.command(help_epilogue='Example:  heedful nearest runs/near "how do I open a file?" --among notes')
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
    from heedful.answering.neighbours import Index, texts_among

    pipe = heedful.pipeline("feature-extraction", model, device=device, dtype=dtype)
    if among is None:
        found = Index.open(str(index), pipe, engine)
    else:
        found = Index(pipe, engine).add(texts_among(among, column))
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


proofs = App(
    name="verify",
    help="Prove that a model's folder is right, or that a run goes on with the same bits wherever it is killed.",
    help_epilogue="Example:  heedful verify runs/en-fr\nA folder that is called resume is ./resume.\n"
    "Exit status: 0 everything holds, 1 something is off.",
)
app.command(proofs)


@proofs.default
def verify(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *,
    task: Annotated[str | None, Parameter(help="what to ask of it; by default what the folder says")] = None,
    text: Annotated[tuple[str, ...], Parameter(help="texts of your own, for tokens, greedy text and the task")] = (),
    save: Annotated[bool, Parameter(help="keep the figures in the folder's heedful.json")] = False,
    json: Json = False,
) -> int:
    """Prove that a model's folder is right: there and back, against transformers, padded, batched, cached."""
    check_model(model)
    if task is not None:
        from heedful import tasks

        tasks.check(task)
    if save and not Path(model).is_dir():
        raise HeedfulError(f"--save keeps the figures in a folder, and {model} is none here; leave it out")

    from rich.console import Console

    from heedful.verification import verify as run
    from heedful.verification.keeping import keep

    with Console(stderr=True).status("opening the model") as status:
        report = run(model, task=task, texts=text, say=status.update)
    if save:
        keep(report, model)
    if json:
        print(to_json(report.as_dict()))
    else:
        print(report.headline)
        Console().print(report.table())
    return 0 if report.ok else 1


@proofs.command(
    name="resume",
    help_epilogue="Example:  heedful verify resume translation --train train.en train.fr --max-steps 100 --kills 20\n"
    "Exit status: 0 the same bits, 1 something differs.",
)
def verify_resume(
    *arguments: Annotated[
        str, Parameter(name="TASK", allow_leading_hyphen=True, help="with --train FILE, and any option of train")
    ],
    kills: Annotated[int, Parameter(help="how many; 20 by default")] = 20,
    out: Annotated[str | None, Parameter(help="folder to keep the runs in")] = None,
    json: Json = False,
) -> int:
    """Kill a training run again and again, and compare its end, bit by bit, with that of one never stopped."""
    if not arguments:
        raise HeedfulError("verify resume trains a task; name one, as: heedful verify resume translation --train FILE")
    line = ["train", *arguments, f"--out={out or '-'}"]
    _, bound, _ = app.parse_args(line, exit_on_error=False, print_error=False)
    settings: RunSettings = bound.arguments["settings"]
    from heedful.verification.repeatable import check_repeatable

    check_repeatable(settings, kills)

    from rich.console import Console

    from heedful.verification.resume import verify_resume as run

    with Console(stderr=True).status("") as status:
        trial = run(settings, arguments, kills=kills, out=out, say=say_to(json), status=status.update)
    if json:
        print(to_json(trial.as_dict()))
    else:
        print(trial.headline)
        Console().print(trial.table())
    return 0 if trial.ok else 1


@app.command(help_epilogue="Example:  heedful export runs/en-fr --to ctranslate2 --quantization int8 --out en-fr.ct2")
def export(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *,
    to: Annotated[
        str,
        Parameter(help="hf: Hugging Face's layout, adapters merged; ctranslate2; onnx: one graph without a cache"),
    ],
    out: Annotated[str, Parameter(help="folder to write")],
    dtype: Annotated[str | None, Parameter(help="hf: float32, float16, bfloat16; as stored by default")] = None,
    quantization: Annotated[
        str | None, Parameter(help="ctranslate2: int8, int8_float16, float16, ...; as stored by default")
    ] = None,
    overwrite: Annotated[bool, Parameter(help="replace a folder that holds a model")] = False,
    json: Json = False,
) -> None:
    """Hand a model on: for transformers, CTranslate2 or ONNX."""
    check_model(model)
    from heedful.export import formats

    formats.check(to, out, overwrite, {"dtype": dtype, "quantization": quantization})
    result = formats.export(model, to, out, dtype=dtype, quantization=quantization, overwrite=overwrite)
    if json:
        print(to_json(result))
        return
    for name, size in result["files"].items():
        print(f"{Path(out) / name}  {size:,} bytes")


@app.command(help_epilogue="Example:  heedful summary bert-base --length 512 --batch 8")
def summary(
    name: Annotated[str, Parameter(help="model folder, preset, or a config.json")],
    /,
    *,
    length: Annotated[int | None, Parameter(help="tokens of the input; 128 by default")] = None,
    batch: Annotated[int | None, Parameter(help="rows of the input; 1 by default")] = None,
    image_size: Annotated[int | None, Parameter(help="pixels of an image's side; the model's by default")] = None,
    json: Json = False,
) -> None:
    """Show a model's layers, parameters, operations and memory."""
    from heedful import presets

    if name not in presets.names() and not Path(name).exists() and "/" not in name:
        presets.get(name)  # raises, with the nearest name
    import heedful

    info = heedful.summary(name, length=length, batch=batch, image_size=image_size)
    print(to_json(info.as_dict()) if json else info)


@app.command(
    help_epilogue='Example:  heedful inspect runs/en-fr "How are you?" --out look.html\n'
    "Decoding options are those of predict. A text that begins with a hyphen goes after --."
)
def inspect(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *inputs: Annotated[str, Parameter(help="a text, a pair with a tab between, or an image file; - is standard input")],
    target: Annotated[
        str | None,
        Parameter(help="what an encoder-decoder is to write, or the label or token in question"),
    ] = None,
    view: Annotated[
        str | None,
        Parameter(
            help="heads, model, matrix, steps, lens, image, gradient, embeddings, similarity, positions, filters or "
            "importance; what suits the model by default"
        ),
    ] = None,
    layers: Annotated[tuple[int, ...] | None, Parameter(help="only these, numbered from 0")] = None,
    heads: Annotated[tuple[int, ...] | None, Parameter(help="only these, numbered from 0")] = None,
    queries: Annotated[str | None, Parameter(help="START:END, the tokens that look; of long texts the first")] = None,
    keys: Annotated[str | None, Parameter(help="START:END, the tokens that are looked at")] = None,
    out: Annotated[str | None, Parameter(help=".html, .svg, .png or .pdf; by default MODEL.VIEW.html here")] = None,
    show: Annotated[bool, Parameter(name="--open", help="open what was written")] = False,
    device: Device = None,
    decoding: Annotated[DecodingSettings, Parameter(name="*", show=False)] = DecodingSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Look inside a model: attention, generated text step by step, what each layer would say, and more."""
    check_model(model)
    from heedful.looking.ask import Ask, called, check_format

    if out is not None:
        check_format(out)
    if show and json and out is None:
        raise HeedfulError("--json writes no page to --open; name one with --out")
    texts = [sys.stdin.read().removesuffix("\n")] if inputs == ("-",) else list(inputs)
    given = decoding.given()
    ask = Ask.of(texts, view, target=target, layers=layers, heads=heads, queries=queries, keys=keys, decoding=given)
    if Path(model).is_dir():
        ask = ask.checked(model)

    from heedful.looking.inspect import looked

    look = looked(model, ask, device)
    if json:
        print(to_json({"model": model, "view": look.view, "title": look.title, **look.data}))
    if json and out is None:
        return
    path = look.save(out or f"{called(model)}.{look.view}.html")
    print(path, file=sys.stderr if json else sys.stdout)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


@app.command(name="presets", help_epilogue="Example:  heedful summary vit-b/16")
def list_presets(*, json: Json = False) -> None:
    """List the published sizes that a model can be made in."""
    from heedful import presets

    print_list(presets.describe(), json)


@app.command(
    name="recipes", help_epilogue="Example:  heedful train text-generation --recipe nanogpt-shakespeare-cpu ..."
)
def list_recipes(*, json: Json = False) -> None:
    """List the published training settings that a run can take."""
    from heedful import recipes

    print_list(recipes.describe(), json)


@app.command(name="tasks", help_epilogue="Example:  heedful train translation --help")
def list_tasks(*, json: Json = False) -> None:
    """List what a model can be trained for."""
    from heedful import tasks

    print_list(tasks.names(), json)


@app.command(help_epilogue="Example:  heedful demo --to de\n          heedful demo --all")
def demo(
    name: Annotated[str, Parameter(help="dates, languages, code or digits; dates by default")] = "dates",
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", help="all four, one of each family")] = False,
    to: Annotated[str | None, Parameter(help="language of the dates; fr by default")] = None,
    out: Annotated[str | None, Parameter(help="folder of the run and its model")] = None,
    json: Json = False,
) -> None:
    """Train a small model before your eyes, in minutes: a translator of dates, or one of each family."""
    if every and (name != "dates" or to is not None or out is not None):
        raise HeedfulError("--all makes every demo in its own folder; leave the name, --to and --out out")
    if to is not None and name != "dates":
        raise HeedfulError(f"--to is the language of the dates; the demo {name} has none, leave it out")
    from heedful.demos import all_demos
    from heedful.demos import demo as run

    choices = {} if to is None else {"to": to}
    say = say_to(json)
    result = all_demos(say, quiet=json) if every else run(name, out, say, quiet=json, **choices)
    if json:
        print(to_json(result))


# ----------------------------------------------------------------------------------------------------------- the end


def _explain(error: BaseException, tokens: Sequence[str]) -> tuple[str, int]:
    """The one line that a person reads and the exit status."""
    command = tokens[0] if tokens and not tokens[0].startswith("-") else ""
    if isinstance(error, CycloptsError):
        text = f"unexpected {error.unused_tokens}" if isinstance(error, UnusedCliTokensError) else str(error)
        return f"{text} (heedful {command + ' ' if command in app else ''}--help lists what there is)", 2
    if isinstance(error, KeyboardInterrupt):
        if not error.args:
            return "stopped", 130
        again = [token for token in tokens if token not in ("--resume", "--overwrite")]
        return f"stopped; continue with: heedful {shlex.join(again)} --resume", 130
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        remedy = {
            errno.ENOSPC: "; free some space or write elsewhere",
            errno.EACCES: "; ask for the right or go elsewhere",
        }
        return f"{where}{error.strerror or error}{remedy.get(error.errno or 0, '')}", 2
    if isinstance(error, HeedfulError):
        return str(error), 2
    return f"a fault in heedful: {type(error).__name__}: {error} (HEEDFUL_DEBUG=1 shows where)", 1


SHARED = (["train"], ["evaluate"], ["predict"])  # what several processes do together


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status: 0, 2 for an error, 130 for Ctrl-C, 1 for a fault of ours.

    ``verify`` returns 1 where it finds something off.
    """
    tokens = join_dashes(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and tokens[:1] not in SHARED:
            raise HeedfulError(
                "torchrun's processes share the work of heedful train, evaluate, and predict --in; leave torchrun out"
            )
        status = app(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HEEDFUL_DEBUG") == "1":
            raise
        if isinstance(error, BrokenPipeError):
            return 141  # as a shell reports a program that nobody listens to any more
        message, status = _explain(error, tokens)
        who = f"heedful, process {rank()}:" if rank() else "heedful:"
        # Ctrl-C reaches all, and so does what is asked for and, where all do the same, what is wrong with it
        same = status == 130 or (tokens[:1] != ["train"] and status == 2)
        if not (same and rank()):
            print(who, " ".join(message.split()), file=sys.stderr)
        return status
    return status if isinstance(status, int) else 0
