"""Merges warnings that a task gives for each block of inputs into those of one call."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heedful.errors import HeedfulError, many
from heedful.util.input_warnings import CountWarning, InputWarning

POSITION = re.compile(r"input (\d+)\b")  # the input that an error of a task begins with
MOST = 50  # warnings that are shown; the others are counted

log = logging.getLogger("heedful")


def placed(text: str, name: Callable[[int], str]) -> str:
    """An error's message with the name of the input that it begins with.

    >>> placed("input 3 is too long", lambda place: f"a.txt:{place + 1}")
    'a.txt:4 is too long'
    """
    found = POSITION.match(text)
    return text if found is None else name(int(found[1])) + text[found.end() :]


class Told(logging.Filter):
    """Merges the warnings of a task that is called block by block.

    While entered, an ``InputWarning`` names its input by ``name(position)``, and the counts of ``CountWarning`` are
    added up for ``end`` to log. After ``MOST`` warnings the rest are counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: Callable[[int], str] = "input {}".format
        self.shown, self.more = 0, 0
        self.sums: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is shown now."""
        if threading.get_ident() != self.thread:
            return True
        if isinstance(record.msg, CountWarning):
            self.sums[record.msg.text] += record.msg.count
            return False
        if isinstance(record.msg, InputWarning):
            record.msg = f"{self.called(record.msg.position)} {record.msg.text}"
        self.shown += 1
        self.more += self.shown > MOST
        return self.shown <= MOST

    @contextmanager
    def naming(self, name: Callable[[int], str]) -> Iterator[None]:
        """For one call, in which the input at a place is to be called ``name(place)``; errors call it so, too."""
        self.called, self.thread = name, threading.get_ident()
        log.addFilter(self)
        try:
            yield
        except HeedfulError as error:
            raise HeedfulError(placed(str(error), name)) from error
        finally:
            log.removeFilter(self)

    def end(self, asked: int) -> None:
        """Tell what was added up and counted, ``asked`` inputs in all."""
        for what, count in self.sums.items():
            log.warning(f"{count:,} of {many(asked, 'input')} {what}")
        if self.more:
            log.warning(f"{many(self.more, 'more warning')} like these")
