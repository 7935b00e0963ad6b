"""The parser: the app with its commands, the groups of options in the help, options that commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, Parameter, default_name_transform

from heedful import __version__
from heedful.cli.arguments import read_file, refuse_fractions, trials_without_out
from heedful.errors import nearest
from heedful.generation.options import DecodingSettings
from heedful.settings import (
    AnsweringSettings,
    AveragingSettings,
    DataSettings,
    DistillationSettings,
    ImageSettings,
    LoraSettings,
    MaskingSettings,
    ModelSettings,
    PoolingSettings,
    PreferenceSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    TuningSettings,
    common_keys,
)

for _section, _title in (
    (DataSettings, "Data"),
    (TokenizerSettings, "Tokenizer"),
    (ImageSettings, "Images"),
    (ModelSettings, "Model: parts of the preset to change"),
    (TrainingSettings, "Training"),
    (AveragingSettings, "Averaging of the weights: set only one of these"),
    (TuningSettings, "Tuning"),
    (LoraSettings, "Adapter: with --from, trained instead of the model's own weights"),
    (MaskingSettings, "Masking: for fill-mask"),
    (PoolingSettings, "Pooling: for feature-extraction; kind also for text-classification"),
    (PreferenceSettings, "Preferences: for text-generation with chosen and rejected answers"),
    (DistillationSettings, "Distillation: for text-classification, with --teacher or few labels"),
    (DecodingSettings, "Decoding"),
    (AnsweringSettings, "Answers"),
):
    Parameter(group=_title)(_section)

Flattened = Parameter(
    name="*", name_transform=lambda name: "from" if name == "start_from" else default_name_transform(name)
)
Json = Annotated[bool, Parameter(help="print JSON for programs instead of text for people")]
Quiet = Annotated[bool, Parameter(help="print no progress and no notes, only results that were asked for, and errors")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, cuda:1, mps; the fastest available by default")]
Dtype = Annotated[str | None, Parameter(help="weights: float32, bfloat16, float16, int8, int4; as stored by default")]
CompiledDecoding = Annotated[
    bool,
    Parameter(
        negative="--no-compiled-decoding",
        help="decode and encode with compiled kernels on a CPU, decode with CUDA graphs on an NVIDIA GPU: the default",
    ),
]
Decoding = Annotated[DecodingSettings, Parameter(name="*")]
Answering = Annotated[AnsweringSettings, Parameter(name="*")]

PREFIX = "HEEDFUL_"  # of environment variables that set options
HELP, HELP_ALL = {"--help", "-h"}, "--help-all"
COMMON_FLAGS = ("--config", "--json")  # of ``train``, besides the common settings
OTHER_VARIABLES = ("HEEDFUL_CACHE", "HEEDFUL_DEBUG", "HEEDFUL_IMPORT")


def complete_values(context: Any) -> list[tuple[str, str]]:
    """Returns the values that a shell offers for an argument (``cli/completion.py``, imported when one asks)."""
    from heedful.cli.completion import values

    return values(context)


def read_environment(command: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reads options that the command line does not set from variables: ``HEEDFUL_TRAINING_LR`` for ``--training.lr``.

    A variable that is an option of no command is named in a warning.
    """
    names = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES)
    if not names:
        return
    from cyclopts.config import Env  # here: few command lines have such variables

    Env(PREFIX, command=False, show=False)(command, commands, arguments)
    known = {_variable(argument.name) for argument in arguments}
    if {*names} <= known:
        return
    for other in (name for name in app if not name.startswith("-")):
        known |= {_variable(argument.name) for argument in app[other].assemble_argument_collection()}
    for name in names:
        if name not in known:
            print(f"heedful: the variable {name} is no option of a command; {nearest(name, known)}", file=sys.stderr)


def _variable(option: str) -> str:
    return PREFIX + option.removeprefix("--").upper().replace("-", "_").replace(".", "_")


app = App(
    name="heedful",
    version=__version__,
    version_flags=("--version", "-V"),
    help="Train, use and inspect Transformers of all four families.",
    help_epilogue="Start with:  heedful demo\n"
    "Then:        heedful train translation --train pairs.tsv --out runs/mine\n"
    "Own parts:   any command with --import mine.py, which calls heedful.register",
    help_format="plaintext",
    default_parameter=Parameter(
        consume_multiple=1, allow_repeating=True, negative=(), show_default=False, completer=complete_values
    ),
    config=(read_environment, read_file, refuse_fractions, trials_without_out),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


def show_completion(shell: Literal["bash", "zsh", "fish", "powershell"] | None = None) -> None:
    """Print the completion of a shell: bash, zsh, fish or powershell; of this one by default."""
    print(app.generate_completion(shell=shell))


def with_name_of_task(tokens: Sequence[str]) -> list[str]:
    """Returns the tokens of a command line; after ``train`` and ``audit`` other names of a task become ours."""
    from heedful.tasks import OTHER_NAMES, PAIR_OF_LANGUAGES, named

    command, task, *others = [*tokens, "", ""][: max(2, len(tokens))]
    if command in ("train", "audit") and (task.lower() in OTHER_NAMES or PAIR_OF_LANGUAGES.fullmatch(task)):
        return [command, named(task), *others]
    return list(tokens)


def with_help_flag(tokens: Sequence[str]) -> list[str]:
    """Returns the tokens of a command line, with ``help train`` as ``train --help``."""
    return [*tokens[1:], "--help"] if tokens[:1] == ["help"] else list(tokens)


def with_help_of_task(tokens: Sequence[str]) -> list[str]:
    """Returns the tokens of a command line; where they ask for the help of ``train``, sets what it shows.

    That is the common options that the task uses, and after ``--help-all`` all options.
    """
    end = [*tokens, "--"].index("--")
    asked = {*tokens[:end]} & {*HELP, HELP_ALL}
    if tokens[:1] != ["train"] or not asked:
        return list(tokens)
    train, task = app["train"], next((token for token in tokens[1:end] if not token.startswith("-")), "")
    if HELP_ALL in asked:
        train.help_formatter, train.help_prologue = "default", ""
        return ["train", "--help"]
    shown = _options_of(task)
    train.help_formatter = _shortened(shown)
    train.help_prologue = (
        f"The common options; all of them: heedful train {HELP_ALL}; those of a task: heedful train TASK --help"
        if shown is COMMON
        else f"The common options of {task}; all options: heedful train {HELP_ALL}"
    )
    return list(tokens)


COMMON = frozenset({f"--{key.replace('_', '-')}" for key in common_keys(RunSettings)} | {*COMMON_FLAGS, "--task"})


def _options_of(task: str) -> frozenset[str]:
    """Returns the common options that a task uses; for another word all common options."""
    from heedful.tasks import TASKS, unused_settings

    if task not in TASKS:
        return COMMON
    unused = unused_settings(task)
    return frozenset(
        flag
        for flag in COMMON
        if not {name := flag.removeprefix("--").replace("-", "_"), name.partition(".")[0]} & unused
    )


def _shortened(shown: frozenset[str]) -> Any:
    """Returns a formatter of the help that shows these options alone."""
    from cyclopts.help import DefaultFormatter, HelpPanel

    class Shortened(DefaultFormatter):
        def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
            entries = [entry for entry in panel.entries if shown.intersection(entry.positive_names)]
            if entries:
                super().__call__(console, options, panel.copy(entries=entries))

    return Shortened()
