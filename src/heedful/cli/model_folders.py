"""``heedful summary``, ``inspect``, ``verify``, ``export`` and ``push``: commands on one model folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from heedful.cli.arguments import check_model
from heedful.cli.parser import Device, Json, app
from heedful.errors import HeedfulError, nearest
from heedful.generation.options import DecodingSettings
from heedful.settings import RunSettings
from heedful.util.terminal import say_to, to_json


def summary(
    name: Annotated[str, Parameter(help="model folder, preset, or a config.json")],
    /,
    *,
    length: Annotated[int | None, Parameter(help="number of input tokens; 128 by default")] = None,
    batch: Annotated[int | None, Parameter(help="number of input rows; 1 by default")] = None,
    image_size: Annotated[int | None, Parameter(help="side of an image in pixels; the model's by default")] = None,
    depth: Annotated[int, Parameter(help="levels of layers in the table; 3 by default")] = 3,
    json: Json = False,
) -> None:
    """Show a model's layers, parameters, operations and memory."""
    from heedful import presets

    if name not in presets.names() and not Path(name).exists() and "/" not in name:
        raise HeedfulError(f"{name} is not a folder, file or preset; {nearest(name, presets.names())}")
    import heedful

    info = heedful.summary(name, length=length, batch=batch, image_size=image_size, depth=depth)
    print(to_json(info.as_dict()) if json else info)


def push(
    model: Annotated[str, Parameter(help="model folder")],
    name: Annotated[str, Parameter(help="name on the Hub: ORG/NAME")],
    /,
    *,
    private: Annotated[bool, Parameter(help="create a private repository, if there is none of this name")] = False,
    revision: Annotated[str | None, Parameter(help="branch to write to; main by default")] = None,
    json: Json = False,
) -> None:
    """Upload a model to the Hub: weights, tokenizer and model card."""
    check_model(model)
    from heedful.pretrained import upload

    upload.check_push(name, "push")
    url = upload.push(model, name, private=private, revision=revision)
    print(to_json({"model": model, "hub": url}) if json else url)


def inspect(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *inputs: Annotated[
        str, Parameter(help="a text, two texts with a tab between, or an image file; - is standard input")
    ],
    target: Annotated[
        str | None,
        Parameter(help="text that the model writes (by default generated), or the label or token to explain"),
    ] = None,
    view: Annotated[
        str | None,
        Parameter(
            help="heads, model, matrix, steps, lens, experts, image, words, gradient, embeddings, similarity, "
            "positions, filters or importance; by default one that fits the model"
        ),
    ] = None,
    layers: Annotated[tuple[int, ...] | None, Parameter(help="layers to show, numbered from 0")] = None,
    heads: Annotated[tuple[int, ...] | None, Parameter(help="heads to show, numbered from 0")] = None,
    queries: Annotated[
        str | None, Parameter(help="START:END, the tokens that attend; by default all, or the first of a long text")
    ] = None,
    keys: Annotated[str | None, Parameter(help="START:END, the tokens attended to")] = None,
    out: Annotated[str | None, Parameter(help=".html, .svg, .png or .pdf; MODEL.VIEW.html by default")] = None,
    show: Annotated[bool, Parameter(name="--open", help="open the written file")] = False,
    device: Device = None,
    decoding: Annotated[DecodingSettings, Parameter(name="*", show=False)] = DecodingSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Look inside a model: attention, generation step by step, predictions of each layer, and more."""
    check_model(model)
    from heedful.views.inspect.request import Request, check_format, model_name

    if out is not None:
        check_format(out)
    if show and json and out is None:
        raise HeedfulError("--open opens the written page, but --json writes none; name a page with --out")
    texts = [sys.stdin.read().removesuffix("\n")] if inputs == ("-",) else list(inputs)
    given = decoding.given()
    request = Request.of(
        texts, view, target=target, layers=layers, heads=heads, queries=queries, keys=keys, decoding=given
    )
    if Path(model).is_dir():
        request = request.checked(model)

    from heedful.views.inspect.inspect import run_request

    look = run_request(model, request, device)
    if json:
        print(to_json({"model": model, "view": look.view, "title": look.title, **look.data}))
    if json and out is None:
        return
    path = look.save(out or f"{model_name(model)}.{look.view}.html")
    print(path, file=sys.stderr if json else sys.stdout)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


proofs = App(
    name="verify",
    help="Check a model folder, or check that a killed and resumed run ends with the same weights.",
    help_epilogue="Example:  heedful verify runs/en-fr\nFor a folder named resume, write ./resume.\n"
    "Exit status: 0 all checks pass, 1 a check fails.",
)


@proofs.default
def verify(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *,
    task: Annotated[str | None, Parameter(help="the task to check; by default the folder's")] = None,
    text: Annotated[
        tuple[str, ...], Parameter(help="your own texts for the checks of token ids, greedy text and task")
    ] = (),
    save: Annotated[bool, Parameter(help="write the results into the folder's heedful.json")] = False,
    json: Json = False,
) -> int:
    """Check a model folder: saving and loading, comparison with transformers, padding, batches, cache."""
    check_model(model)
    if task is not None:
        from heedful import tasks

        task = tasks.named(task)
    if save and not Path(model).is_dir():
        raise HeedfulError(f"--save writes into a local folder, but {model} is not one; leave --save out")

    from rich.console import Console

    from heedful.verify import verify as verify_folder
    from heedful.verify.check_report import save_report

    with Console(stderr=True).status("loading the model") as status:
        report = verify_folder(model, task=task, texts=text, say=status.update)
    if save:
        save_report(report, model)
    if json:
        print(to_json(report.as_dict()))
    else:
        print(report.headline)
        Console().print(report.table())
    return 0 if report.ok else 1


@proofs.command(
    name="resume",
    help_epilogue="Example:  heedful verify resume translation --train train.en train.fr --max-steps 100 --kills 20\n"
    "Exit status: 0 the same bits, 1 a difference.",
)
def verify_resume(
    *arguments: Annotated[
        str,
        Parameter(
            name="TASK", allow_leading_hyphen=True, help="the task to train, with --train FILE and any option of train"
        ),
    ],
    kills: Annotated[int, Parameter(help="number of kills; 20 by default")] = 20,
    processes: Annotated[
        int,
        Parameter(help="number of processes that train together; kills take all of them and one in turn; 1 by default"),
    ] = 1,
    out: Annotated[str | None, Parameter(help="folder for the runs; a temporary one by default")] = None,
    json: Json = False,
) -> int:
    """Kill a training run repeatedly, and compare its result bit by bit with that of an uninterrupted run."""
    if not arguments:
        raise HeedfulError(
            "the task to train is missing; name it, as in: heedful verify resume translation --train FILE"
        )
    line = ["train", *arguments, f"--out={out or '-'}"]
    _, bound, _ = app.parse_args(line, exit_on_error=False, print_error=False)
    settings: RunSettings = bound.arguments["settings"]
    from heedful.verify.resume_options import check_repeatable

    check_repeatable(settings, kills, processes)

    from rich.console import Console

    from heedful.verify.resume import verify_resume as verify_run

    with Console(stderr=True).status("") as status:
        trial = verify_run(
            settings, arguments, kills=kills, processes=processes, out=out, say=say_to(json), status=status.update
        )
    if json:
        print(to_json(trial.as_dict()))
    else:
        print(trial.headline)
        Console().print(trial.table())
    return 0 if trial.ok else 1


def export(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            help="hf: Hugging Face's layout, adapters merged; ctranslate2; gguf: for llama.cpp and Ollama; "
            "openvino; onnx: one graph without a cache"
        ),
    ],
    out: Annotated[
        str,
        Parameter(
            help="folder to write; for gguf a file, FILE.gguf; for onnx, a name that ends in .onnx writes one file, "
            "the graph alone"
        ),
    ],
    dtype: Annotated[str | None, Parameter(help="hf: float32, float16, bfloat16; as stored by default")] = None,
    quantization: Annotated[
        str | None,
        Parameter(
            help="ctranslate2: int8, int8_float16, float16, ...; gguf: f32, f16, bf16, q8_0, q4_0; openvino: "
            "float32, float16, int8; as stored by default"
        ),
    ] = None,
    overwrite: Annotated[bool, Parameter(help="replace an existing model folder or file")] = False,
    json: Json = False,
) -> None:
    """Export a model for transformers, CTranslate2, llama.cpp, OpenVINO or ONNX."""
    check_model(model)
    from heedful.export import formats

    formats.check(to, out, overwrite, {"dtype": dtype, "quantization": quantization})
    result = formats.export(model, to, out, dtype=dtype, quantization=quantization, overwrite=overwrite)
    if json:
        print(to_json(result))
        return
    folder = Path(out).parent if formats.writes_file(to, out) else Path(out)
    for name, size in result["files"].items():
        print(f"{folder / name}  {size:,} bytes")
    for note in result.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
