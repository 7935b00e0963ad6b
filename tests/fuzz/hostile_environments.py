"""Environments: variables, limits, streams, locales and signals under which commands still end as they should."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hostile_commands import SMALL, judged
from hostile_commands import prepare as _prepare
from sandbox import GIB, Case, Fault

PYTHON = [sys.executable, "-m", "heedful"]
VARIABLES: dict[str, list[str | None]] = {
    "RANK": ["0", "1", "-1", "x", "", "1.5", "٣", "99"],
    "WORLD_SIZE": ["0", "1", "2", "-2", "x", "", "1_0"],
    "LOCAL_RANK": ["0", "x", "-1", "7", ""],
    "MASTER_PORT": ["x", "-1", "99999999", ""],
    "MASTER_ADDR": ["", "nowhere.invalid"],
    "LANG": ["C", "POSIX", "xx_YY.UTF-8", "", None],
    "LC_ALL": ["C", "de_DE.ISO-8859-1", "x" * 500, "", None],
    "PYTHONIOENCODING": ["ascii", "latin-1", "ascii:strict", "utf-16"],
    "PYTHONUTF8": ["0", "1"],
    "PYTHONWARNINGS": ["error", "x"],
    "PYTHONOPTIMIZE": ["2"],
    "PYTHONHASHSEED": ["0"],
    "PYTHONDONTWRITEBYTECODE": ["1"],
    "COLUMNS": ["1", "0", "-5", "x", "100000", ""],
    "LINES": ["0", "x"],
    "TERM": ["dumb", "", "xterm", "x" * 300, None],
    "NO_COLOR": ["1", ""],
    "FORCE_COLOR": ["1", "x"],
    "HOME": ["", "/nonexistent", "/dev/null", None],
    "TMPDIR": ["/nonexistent", "", "/dev/null", "/proc"],
    "XDG_CACHE_HOME": ["/nonexistent", "/dev/null", ""],
    "HF_HOME": ["/nonexistent", "/dev/null", ""],
    "HF_HUB_OFFLINE": ["1", "x", "0"],
    "HF_TOKEN": ["x", "\udcff", ""],
    "HF_ENDPOINT": ["x", "http://", ""],
    "OMP_NUM_THREADS": ["0", "-1", "x", "9999", "1,2", ""],
    "OMP_WAIT_POLICY": ["x", "ACTIVE", ""],
    "MKL_NUM_THREADS": ["x", "0"],
    "TORCH_NUM_THREADS": ["x"],
    "CUDA_VISIBLE_DEVICES": ["", "-1", "x", "0,1,2"],
    "TOKENIZERS_PARALLELISM": ["x", "true"],
    "TORCHINDUCTOR_CACHE_DIR": ["/nonexistent/x"],
    "USER": ["", None],
    "PATH": ["", "/nonexistent"],
    "TZ": ["x", "Asia/Tokyo", ":"],
    "SOURCE_DATE_EPOCH": ["x", "0"],
    "PAGER": ["false"],
    "BROWSER": ["false"],
    "EDITOR": [""],
    "HEEDFUL_DEBUG": ["0", "x", ""],
}
LIMITS: dict[str, tuple[int, list[int]]] = {
    "memory": (resource.RLIMIT_AS, [300 << 20, 700 << 20, 2 * GIB, 4 * GIB]),
    "files": (resource.RLIMIT_NOFILE, [16, 40, 128]),
    "file size": (resource.RLIMIT_FSIZE, [0, 1000, 20_000]),
    "core": (resource.RLIMIT_CORE, [0]),
    "stack": (resource.RLIMIT_STACK, [256 << 10, 1 << 20]),
}
STREAMS = [
    ">&-",
    "2>&-",
    "<&-",
    ">&- 2>&-",
    ">/dev/full",
    "2>/dev/full",
    "</dev/full",
    "| head -c 1 >/dev/null",
    "| true",
]
STREAMS += ["< /dev/zero", ">/dev/full 2>&1", "< /proc/self/mem"]
ENDS = {signal.SIGINT: (130,), signal.SIGTERM: (-signal.SIGTERM, 143), signal.SIGHUP: (-signal.SIGHUP, 129)}


def prepare(root: Path) -> None:
    """Makes what the command lines name."""
    _prepare(root)


def case(random: Random, root: Path, folder: Path) -> Case:
    """A command under changed circumstances, and what runs it in a process of its own."""
    tokens, says = _command(random, root)
    environment = dict(os.environ) | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    what: dict[str, str] = {}
    streams, limit, sent, gone = "", None, None, False
    for _ in range(random.choice([1, 1, 2, 3])):
        match random.choices(["variable", "limit", "streams", "signal", "place"], [60, 14, 16, 8, 4])[0]:
            case "variable":
                name = random.choice(sorted(VARIABLES))
                value = random.choice(VARIABLES[name])
                environment.pop(name, None)
                if value is not None:
                    environment[name] = value
                what[name] = f"{name}={value!r}"[:60]
            case "limit":
                name = random.choice(sorted(LIMITS))
                limit = (LIMITS[name][0], random.choice(LIMITS[name][1]))
                what["limit"] = f"{name} of {limit[1]:,}"
            case "streams":
                streams = random.choice(STREAMS)
                what["streams"] = streams
            case "signal":
                sent = (random.choice(list(ENDS)), random.choice([0.02, 0.1, 0.3, 1.0, 2.0, 4.0]))
                what["signal"] = f"{sent[0].name} after {sent[1]} s"
            case "place":
                gone = True
                what["place"] = "a folder that is gone"
    return f"{', '.join(what.values())}: {' '.join(says)}", lambda: _ran(
        tokens, environment, streams, limit, sent, gone, folder
    )


def _command(random: Random, root: Path) -> tuple[list[str], list[str]]:
    data = str(root / "text-classification.jsonl")
    model = str(
        root / random.choice(["text-classification", "translation", "question-answering", "image-classification"])
    )
    commands = [
        (8, ["tasks"]),
        (3, ["presets", "--json"]),
        (3, ["--help"]),
        (3, ["train", "--help"]),
        (2, ["summary", "bert-tiny"]),
        (5, ["predict", model, "a saw"]),
        (3, ["predict", model]),
        (2, ["evaluate", str(root / "text-classification"), "--data", data, "--json"]),
        (2, ["audit", "text-classification", "--train", data]),
        (5, ["train", "text-classification", "--train", data, "--preset=bert-tiny", *SMALL, "--out=run"]),
        (1, ["watch", str(root), "--json"]),
        (1, ["recipes"]),
    ]
    tokens = random.choices([tokens for _, tokens in commands], [weight for weight, _ in commands])[0]
    return tokens, [Path(token).name if token.startswith("/") else token for token in tokens]


def _ran(
    tokens: list[str],
    environment: dict[str, str],
    streams: str,
    limit: tuple[int, int] | None,
    sent: tuple[signal.Signals, float] | None,
    gone: bool,
    folder: Path,
) -> str:
    place = folder / "out"
    if gone:
        place = folder / "out" / "gone"
        place.mkdir()
    printed, said = folder / "tmp" / "printed", folder / "tmp" / "errors"
    # the shell that opens and closes the streams is gone before the limits matter
    command = ["/bin/bash", "-c", f'set -o pipefail; exec 3>&-; "$@" {streams}', "bash", *PYTHON, *tokens]
    if not streams.startswith("|"):
        command[2] = f'exec "$@" {streams}'
    with printed.open("wb") as out, said.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            preexec_fn=_before(limit, place if gone else None),
        )
        if sent is not None:
            time.sleep(sent[1])
            process.send_signal(sent[0])
        status = process.wait()
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if most > 2 * GIB:
        raise Fault(f"{most / GIB:.1f} GiB")
    return _judged(status, printed, said, tokens, streams, limit, sent)


def _before(limit: tuple[int, int] | None, place: Path | None) -> Callable[[], None]:
    def prepare() -> None:
        if place is not None:
            place.rmdir()
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], limit[1]))

    return prepare


def _judged(
    status: int,
    printed: Path,
    said: Path,
    tokens: list[str],
    streams: str,
    limit: Any,
    sent: tuple[signal.Signals, float] | None,
) -> str:
    errors = said.read_text(errors="replace")
    if limit is not None and limit[0] == resource.RLIMIT_FSIZE and status == 2:
        return "refused"  # the line of why may have found no room
    if sent is not None and status in ENDS[sent[0]] and "Traceback" not in errors:
        return "ended by the signal"
    if sent is not None and sent[0] is signal.SIGINT and "KeyboardInterrupt" in errors and "/heedful/" not in errors:
        return "interrupted while Python itself began"
    if streams.startswith("|") and status == 141 and "Traceback" not in errors:
        return "nobody listens"
    if "2>&-" in streams or "2>/dev/full" in streams or "2>&1" in streams:
        if status not in (0, 2):
            raise Fault(f"status {status} with {streams}")
        return "done" if status == 0 else "refused"
    return judged(status, printed.read_bytes() if "--json" in tokens else b"", errors.encode(), tokens)
