"""The process ``heedful``: its standard streams, Ctrl-C from the start, its exit.

Until Ctrl-C is handled, only modules are imported that the interpreter loads at its start.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # as in typing

if TYPE_CHECKING:
    from typing import NoReturn

STOPPED = 130  # exit status, as shells report SIGINT


def command() -> NoReturn:
    """Runs the command line of this process and exits.

    A process that ``torchrun`` started exits as soon as its output is written: if the other processes have ended, its
    communication threads could otherwise crash it after a successful run.
    """
    try:
        import signal
        import time
    except KeyboardInterrupt:
        os._exit(STOPPED)
    started = time.monotonic()
    handles_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored, as under ``nohup``
    if handles_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process at once, without a traceback
    _open_streams()
    from heedful.cli import processes
    from heedful.util.busy_machine import processor_times

    processes.started, processes.at_start = started, processor_times()
    from heedful.cli import command_line

    try:
        if handles_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = command_line.run_process()
    except KeyboardInterrupt:
        print("heedful: stopped", file=sys.stderr)
        status = STOPPED
    if handles_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
    _flush()
    if processes.several():
        if status and processes.rank():
            command_line.wait_for_rank_0()
        os._exit(status)
    import gc  # late, as all that Ctrl-C need not wait for

    gc.freeze()  # the last collection would go through all objects of PyTorch: a third of a second
    sys.exit(status)


class _LenientStream(io.TextIOWrapper):
    """Stream for messages that ignores write errors, for example if its reader is closed or the disk is full."""

    failed = False

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self.failed = True
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self.failed = True


def _open_streams() -> None:
    """Opens the null device for each closed standard stream, and makes standard error ignore write errors.

    Files that are opened later would otherwise get the numbers of closed streams, and their output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    errors = sys.stderr
    if isinstance(errors, io.TextIOWrapper):
        encoding = errors.encoding
        sys.stderr = _LenientStream(errors.detach(), encoding=encoding, errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    """Flushes the output streams; a stream that fails is redirected to the null device for a silent exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
            if not (isinstance(stream, _LenientStream) and stream.failed):
                continue
        except OSError:
            pass
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except (OSError, ValueError):
            pass
