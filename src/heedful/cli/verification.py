"""``heedful verify`` of a model's folder, and ``verify resume`` of a run that is killed and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from heedful.cli.arguments import check_model
from heedful.cli.parser import Json, app
from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.util.terminal import say_to, to_json

proofs = App(
    name="verify",
    help="Prove that a model's folder is right, or that a run goes on with the same bits wherever it is killed.",
    help_epilogue="Example:  heedful verify runs/en-fr\nA folder that is called resume is ./resume.\n"
    "Exit status: 0 everything holds, 1 something is off.",
)


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

    from heedful.verify import verify as run
    from heedful.verify.check_report import keep

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
    processes: Annotated[
        int, Parameter(help="that learn together; kills take all of them and one of them in turn; 1 by default")
    ] = 1,
    out: Annotated[str | None, Parameter(help="folder to keep the runs in")] = None,
    json: Json = False,
) -> int:
    """Kill a training run again and again, and compare its end, bit by bit, with that of one never stopped."""
    if not arguments:
        raise HeedfulError("verify resume trains a task; name one, as: heedful verify resume translation --train FILE")
    line = ["train", *arguments, f"--out={out or '-'}"]
    _, bound, _ = app.parse_args(line, exit_on_error=False, print_error=False)
    settings: RunSettings = bound.arguments["settings"]
    from heedful.verify.resume_options import check_repeatable

    check_repeatable(settings, kills, processes)

    from rich.console import Console

    from heedful.verify.resume import verify_resume as run

    with Console(stderr=True).status("") as status:
        trial = run(
            settings, arguments, kills=kills, processes=processes, out=out, say=say_to(json), status=status.update
        )
    if json:
        print(to_json(trial.as_dict()))
    else:
        print(trial.headline)
        Console().print(trial.table())
    return 0 if trial.ok else 1
