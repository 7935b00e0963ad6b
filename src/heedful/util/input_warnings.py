"""Warnings about inputs of a call. Their fields let a caller that splits inputs into blocks renumber and sum them."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.errors import plural


@dataclass(frozen=True)
class InputWarning:
    """Warning about one input of a call, to be logged.

    >>> str(InputWarning(3, "is cut to 512 tokens"))
    'input 3 is cut to 512 tokens'
    """

    position: int  # of the input, from 0
    text: str

    def __str__(self) -> str:
        """Returns the message."""
        return f"input {self.position} {self.text}"


@dataclass(frozen=True)
class CountWarning:
    """Warning about several inputs of a call, to be logged: the number of such inputs, and of all inputs.

    >>> str(CountWarning(2, 1000, "cut to 512 tokens"))
    '2 of 1,000 inputs cut to 512 tokens'
    """

    count: int
    total: int
    text: str
    noun: str = "input"

    def __str__(self) -> str:
        """Returns the message."""
        return f"{self.count:,} of {plural(self.total, self.noun)} {self.text}"
