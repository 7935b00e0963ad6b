"""``heedful train``, ``audit`` before it, ``watch`` during it, and ``demo`` for a first try."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli import processes
from heedful.cli.arguments import IMPORTS, check_file, check_model, check_out
from heedful.cli.parser import Flattened, Json, Quiet
from heedful.cli.processes import rank
from heedful.errors import HeedfulError
from heedful.settings import (
    AUTO,
    DataSettings,
    ImageSettings,
    MaskingSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
)
from heedful.util.locks import contents
from heedful.util.terminal import program, say_nothing, say_to, to_json

NO_FOLDER = 'out = "."'  # where --out is left out


def train(
    settings: Annotated[RunSettings, Flattened],
    *,
    config: Annotated[
        str | None, Parameter(help="TOML file of options; options on the command line override it")
    ] = None,
    lr_range_test: Annotated[
        bool,
        Parameter(help="only try learning rates on the run's first steps; writes nothing, needs no --out"),
    ] = False,
    print_config: Annotated[
        bool,
        Parameter(help="only print all settings of the run, as --config reads them; writes nothing, needs no --out"),
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model on your own files."""
    _check(settings)
    if lr_range_test and print_config:
        raise HeedfulError("--lr-range-test and --print-config train nothing; give one of them")
    if rank() == 0 and not (lr_range_test or print_config):
        check_out(settings)

    from heedful.audit.audit import start_warnings
    from heedful.cli.scores import print_result
    from heedful.pretrained.upload import push_run
    from heedful.training.range_test import find_lr as run_range_test
    from heedful.training.run import train as train_model
    from heedful.views.run_figures import draw_report, draw_run
    from heedful.views.watch_html import draw_watch

    if print_config:
        from heedful.settings import to_toml
        from heedful.training.range_test import resolved_settings

        resolved = resolved_settings(settings)
        lines = to_toml(resolved).splitlines()
        print(to_json(resolved.to_dict()) if json else "\n".join(line for line in lines if line != NO_FOLDER))
        return
    if lr_range_test:
        result = run_range_test(settings, quiet=json or quiet)
        text = "\n".join(result.pop("lines"))
        print(to_json(result) if json else text)
        return
    try:
        result = train_model(
            settings,
            say=say_nothing if quiet else say_to(json),
            quiet=json or quiet,
            draw=draw_report,
            draw_attention=draw_watch,
            started=processes.started,
            audit=start_warnings,
        )
    except KeyboardInterrupt:
        saved = contents(Path(settings.out))
        raise KeyboardInterrupt(*([settings.out] if saved else [])) from None
    if rank() != 0:
        return
    draw_run(settings.out)
    own = [part for source in dict.fromkeys(IMPORTS) for part in ("--import", source)]
    result["next"] += own
    refused = None
    if name := result["settings"]["push"]:
        try:
            result["hub"] = push_run(settings.out, name)
        except HeedfulError as error:
            refused = error  # after the result of the run, which is complete
    if json or not quiet:
        print_result(result, json)
    if not (json or quiet):
        if (page := Path(settings.out, "watch.html")).is_file():
            print(f"watch: {page}")
        if "hub" in result:
            print(f"hub: {result['hub']}")
        if remedy := result.get("verdict", {}).get("remedy"):  # ends with a command
            advised = " ".join([remedy, *map(shlex.quote, own)])
        else:
            advised = f"{program()} {shlex.join(result['next'])}"
        print(f"next: {advised}")
    if refused is not None:
        raise refused


def _check(settings: RunSettings) -> None:
    """Raises for unknown names and missing files, before slow imports."""
    from heedful import presets, recipes, tasks

    tasks.check(settings.task)
    if settings.recipe is not None:
        recipes.get(settings.recipe)
    if settings.preset is not None:
        presets.get(settings.preset)
    if settings.start_from not in (None, AUTO):
        check_model(settings.start_from)
    for file in settings.files:
        check_file(file)


def audit(
    task: Annotated[str, Parameter(help="task to learn; heedful tasks lists the tasks")],
    *,
    train: Annotated[tuple[str, ...], Parameter(help="a file or folder, or one file per language, as for train")],
    valid: Annotated[tuple[str, ...] | None, Parameter(help="validation data; by default a part of --train")] = None,
    config: Annotated[
        str | None, Parameter(help="TOML file of a run's options; options that audit does not have are ignored")
    ] = None,
    recipe: Annotated[str | None, Parameter(help="published training settings, as for train")] = None,
    preset: Annotated[str | None, Parameter(help="published size of a new model, as for train")] = None,
    start_from: Annotated[str | None, Parameter(name="--from", help="model to fine-tune, as for train")] = None,
    seed: Annotated[int, Parameter(help="seed of the validation split; 0 by default")] = 0,
    data: DataSettings = DataSettings(),  # noqa: B008 (frozen)
    tokenizer: TokenizerSettings = TokenizerSettings(),  # noqa: B008 (frozen)
    image: ImageSettings = ImageSettings(),  # noqa: B008 (frozen)
    masking: MaskingSettings = MaskingSettings(),  # noqa: B008 (frozen)
    model: ModelSettings = ModelSettings(),  # noqa: B008 (frozen)
    strict: Annotated[bool, Parameter(help="exit with status 1 if there is a warning, marked !")] = False,
    json: Json = False,
) -> int:
    """Check data before training: truncated, duplicate, leaked, unknown or unusual examples, and the model's inputs."""
    settings = RunSettings(
        task=task,
        train=train,
        valid=valid,
        out="-",
        recipe=recipe,
        preset=preset,
        start_from=start_from,
        seed=seed,
        data=data,
        tokenizer=tokenizer,
        image=image,
        masking=masking,
        model=model,
    )
    _check(settings)
    from heedful.audit.audit import audit as audit_data

    report = audit_data(settings)
    print(to_json(report.as_dict()) if json else "\n".join(report.lines()))
    return 1 if strict and not report.ok else 0


def watch(
    *folders: Annotated[str, Parameter(help="folders that hold runs, at any depth; runs by default")],
    port: Annotated[int, Parameter(help="port of the page; a free one by default")] = 0,
    no_open: Annotated[bool, Parameter(help="only print the address")] = False,
    json: Json = False,
) -> None:
    """Show training runs in the browser while they train; with --json print their current state."""
    from heedful.serving.runs import Runs

    runs = Runs(folders or ("runs",))
    if json:
        if port or no_open:
            raise HeedfulError("--json serves no page, so --port and --no-open have no effect; remove them")
        print(to_json(runs.as_dict()))
        return
    from heedful.serving.server import Server, open_in_browser

    with Server(runs, port) as server:
        print(f"{server.address} shows the runs in {', '.join(runs.folders)} (Ctrl-C ends it)", flush=True)
        if not no_open:
            open_in_browser(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)


def demo(
    name: Annotated[str, Parameter(help="dates, languages, code or digits; dates by default")] = "dates",
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", help="all four, one for each family")] = False,
    to: Annotated[str | None, Parameter(help="language of the dates; fr by default")] = None,
    out: Annotated[str | None, Parameter(help="folder of the run and its model")] = None,
    json: Json = False,
) -> None:
    """Train a small model in minutes and show what it learned: a translator of dates, or one of each family."""
    if every and (name != "dates" or to is not None or out is not None):
        raise HeedfulError("--all runs every demo in its own folder; remove the demo's name, --to and --out")
    if to is not None and name != "dates":
        raise HeedfulError(f"--to sets the language of the demo dates, but the demo is {name}; leave --to out")
    from heedful.demos import all_demos
    from heedful.demos import demo as run_demo

    options = {} if to is None else {"to": to}
    say = say_to(json)
    result = all_demos(say, quiet=json) if every else run_demo(name, out, say, quiet=json, **options)
    if json:
        print(to_json(result))
