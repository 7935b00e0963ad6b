"""Merges warnings that a task gives for each block of inputs into those of one call."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heedful.errors import HeedfulError, many

PLACE = re.compile(r"input (\d+)\b")  # how tasks call an input: by its place among those they are asked with
SHARE = re.compile(r"([\d,]+) of [\d,]+ (?:inputs?|texts?|questions?) (.*)", re.DOTALL)  # how they tell of several
MOST = 50  # warnings that are shown; the others are counted

log = logging.getLogger("heedful")


def placed(text: str, name: Callable[[int], str]) -> str:
    """A message with the name of the input that it begins with.

    >>> placed("input 3 is too long", lambda place: f"a.txt:{place + 1}")
    'a.txt:4 is too long'
    """
    found = PLACE.match(text)
    return text if found is None else name(int(found[1])) + text[found.end() :]


class Told(logging.Filter):
    """Warnings of a task that is asked several times in turn.

    While it is entered, those that begin with an input call it by ``name(place)``, those that tell how many inputs
    something befell are added up for ``end`` to tell. After ``MOST`` warnings the rest are counted.
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
        text = record.getMessage()
        if share := SHARE.fullmatch(text):
            self.sums[share[2]] += int(share[1].replace(",", ""))
            return False
        record.msg, record.args = placed(text, self.called), ()
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
