"""A small run killed at changes of its folder, and taken up again: killed_at.py FOLDER EACH|CHANGE,... TASK OPTION ...

It is killed before every change whose number EACH divides, or before the first that is like each CHANGE, as "os.rename
last/". Every run is a fork of this process, which has made one itself: what is imported late is there. A line a kill on
standard output: the change, what was half written then, and how the run that went on ended: "the same", or what differs
from one never killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path

import torch

from heedful import cli
from heedful.verify.kills import unfinished
from heedful.verify.run_comparison import compare_runs

CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}


def watched(folder: Path, seen: Callable[[str], None]) -> None:
    """Have ``seen`` called before anything is changed in ``folder``, for as long as the process lives."""

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event not in CHANGES or not isinstance(given[0], str | Path):
            return
        if event == "open" and not int(str(given[2])) & (os.O_WRONLY | os.O_RDWR):
            return
        path = Path(given[0])
        if path == folder or folder in path.parents:
            seen(f"{event} {path.relative_to(folder)}")

    sys.addaudithook(hook)


def apart(work: Callable[[], int]) -> int:
    """The exit status of a fork that does ``work``."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try:
            os._exit(work())
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    place, which, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork has no other threads
    whole, stopped, changes = place / "whole" / "run", place / "stopped" / "run", place / "changes"

    def train(out: Path, *more: str) -> int:
        with (place / "told").open("w") as told, redirect_stdout(told):
            return cli.main(["train", *arguments, "--out", str(out), "--json", *more])

    def counted() -> int:
        with changes.open("w") as log:
            watched(whole, lambda what: print(what, file=log, flush=True))
            return train(whole)

    def killed(at: int | str) -> int:
        numbers = count()

        def seen(what: str) -> None:
            if next(numbers) == at or (isinstance(at, str) and at in what):
                os.kill(os.getpid(), signal.SIGKILL)

        watched(stopped, seen)
        return train(stopped)

    if train(place / "warm" / "run") or apart(counted):
        sys.exit("the run ends with an error when nothing stops it")
    names = changes.read_text().splitlines()
    for at in range(0, len(names), int(which)) if which.isdigit() else which.split(","):
        shutil.rmtree(stopped, ignore_errors=True)
        ended = apart(lambda at=at: killed(at))
        half = " and ".join(unfinished(stopped)) or "nothing"
        status = apart(lambda: train(stopped, "--resume"))
        found = [f"{one.name}: {one.reason}" for one in compare_runs(whole, stopped) if one.verdict == "failed"]
        told = f"status {status}" if status else "; ".join(found) or "the same"
        what = at if isinstance(at, str) else f"{at}/{len(names)} {names[at]}"
        print(f"{what}{'' if ended == -signal.SIGKILL else ' (not killed)'} | {half} | {told}", flush=True)


if __name__ == "__main__":
    main()
