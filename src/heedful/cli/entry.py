"""The process ``heedful``: its standard streams, Ctrl-C from its first moment on, its end.

Before Ctrl-C is handled, nothing is imported that the interpreter has not loaded at its own start.
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
    """Runs the command line of this process, and ends it.

    One of several processes ends at once, when all is written: the others may not answer any more, and the threads that
    speak with them could abort it on its way out, or crash it after a run that went well.
    """
    try:
        import signal
        import time
    except KeyboardInterrupt:
        os._exit(STOPPED)
    started = time.monotonic()
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored, as ``nohup`` has it
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process at once, and quietly
    _open_streams()
    from heedful.cli import command_line, processes

    processes.started = started
    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = command_line.process()
    except KeyboardInterrupt:
        print("heedful: stopped", file=sys.stderr)
        status = STOPPED
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
    _flush()
    if processes.several():
        if status and processes.rank():
            command_line.wait_for_the_first()
        os._exit(status)
    sys.exit(status)


class _Unfailing(io.TextIOWrapper):
    """A stream for messages, whose reader may have gone and whose disk may be full: what cannot be written is lost."""

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
    """Opens the null device in the place of each standard stream that is closed, and keeps messages from failing.

    Files opened later would take the numbers of closed streams, and be written by whatever writes to those.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    errors = sys.stderr
    if isinstance(errors, io.TextIOWrapper):
        encoding = errors.encoding
        sys.stderr = _Unfailing(errors.detach(), encoding=encoding, errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    """Writes what is left; where that is impossible, Python is not to try again on its way out and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
            if not (isinstance(stream, _Unfailing) and stream.failed):
                continue
        except OSError:
            pass
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except (OSError, ValueError):
            pass
