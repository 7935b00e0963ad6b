"""The process that measures: names of rows come in, a line of JSON for each goes out.

    python -m benchmarks.gpu.worker '{"device": "cuda", "short": false, "text": null}'

The first line out describes the machine. The process ends when its standard input does, even in the middle of a row.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from importlib import import_module
from typing import Any

from benchmarks.gpu import measure
from benchmarks.gpu.rows import ROWS


def figures(name: str, settings: measure.Settings) -> dict[str, Any]:
    """Measures a row; an error is ``{"error": its type and message in one line}``, its traceback on standard error."""
    row = ROWS[name]
    module, _, function = row.function.partition(".")
    try:
        measure.begin_row(settings.device)
        call = getattr(import_module(f"benchmarks.gpu.{module}"), function)
        result = {**call(settings, **row.sizes(settings.short)), **measure.peak(settings.device)}
        measure.begin_row(settings.device)
        return {**result, "left_gb": measure.allocated(settings.device)}
    except Exception as error:
        traceback.print_exc()
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def main() -> None:
    settings = measure.Settings(**json.loads(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the standard error
    try:
        print(json.dumps(measure.machine(settings.device)), file=out, flush=True)
    except (AssertionError, RuntimeError) as error:  # no such device
        print(json.dumps({"error": str(error).partition("\n")[0]}), file=out, flush=True)
        return
    names: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            names.put(line.strip())
        os._exit(0)  # the program that asked is gone

    threading.Thread(target=read, daemon=True).start()
    while True:
        print(json.dumps(figures(names.get(), settings)), file=out, flush=True)


if __name__ == "__main__":
    main()
