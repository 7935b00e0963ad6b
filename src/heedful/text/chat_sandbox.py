"""Jinja sandbox of chat templates, with limits on a template's work and output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_WORK = 10**9  # units of ``WorkLimit`` for one rendering: a second or a few
MAX_SIZE = 10**8  # maximum length of the result of one operation, and maximum integer argument


class LimitExceeded(Exception):
    """Error: a chat template does more work, or writes more text, than the limits allow."""


class WorkLimit:
    """Counter of the work of one rendering: 1,000 units for a loop iteration or a call, 1 for a character."""

    def __init__(self) -> None:
        self.work = 0

    def add(self, characters: int) -> None:
        """Counts an operation on this number of characters. Raises ``LimitExceeded`` above ``MAX_WORK`` units."""
        self.work += 1000 + characters
        if self.work > MAX_WORK:
            raise LimitExceeded("the template's loops or output exceed the limit for one conversation")

    def add_value(self, value: Any) -> Any:
        """Counts the length of a value and returns the value."""
        self.add(_size(value))
        return value

    def check_operands(self, operator: str, *values: Any) -> None:
        """Raises ``LimitExceeded`` if the result of an operator on these values could be too large."""
        sizes = [_size(value) for value in values]
        numbers = [abs(value) for value in values if isinstance(value, int)]
        factor = max(numbers, default=1) if operator != "+" and any(sizes) else 1
        if operator == "**" and max(numbers, default=0) > 1000:
            raise LimitExceeded("the template raises a number to a power above 1,000")
        if operator == "%" and re.search(r"\d{6}|\*", str(values[0]) if isinstance(values[0], str) else ""):
            raise LimitExceeded("the template formats text to a width above 99,999")
        if max(numbers, default=0) > MAX_SIZE or math.prod(max(1, size) for size in (*sizes, factor)) > MAX_SIZE:
            raise LimitExceeded(f"an operation of the template has a number or a text length above {MAX_SIZE:,}")
        self.add(sum(sizes))

    def limited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a filter function whose arguments are checked and whose result is counted."""

        @wraps(function)
        def counted(*args: Any, **more: Any) -> Any:
            self.check_operands("filter", *args, *more.values())
            return self.add_value(function(*args, **more))

        return counted


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits on work, and with the settings, filters and functions that chat templates expect.

    Args:
        limit: counter of the work.
        length: number of characters of the template; each loop iteration counts as this many characters.
        marks: written before and after the text of a ``{% generation %}`` block.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, limit: WorkLimit, length: int, marks: tuple[str, str]) -> None:
        super().__init__(
            finalize=limit.add_value, trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        self.limit, self.length, self.marks = limit, length, marks
        filters = {**self.filters, "tojson": _to_json}
        self.filters = {name: limit.limited(function) for name, function in filters.items()}
        del self.globals["lipsum"]  # writes a text of any length
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _generate(self, source: nodes.Template, *args: Any, **more: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(_call("add_iteration")))
        for macro in source.find_all(nodes.Macro):
            macro.body.insert(0, nodes.ExprStmt(_call("add_iteration")))
        return super()._generate(_ConcatAsCall().visit(source), *args, **more)

    def add_iteration(self) -> None:
        """Counts one iteration of a loop, or one call of a macro, as work."""
        self.limit.add(self.length)

    def concatenate(self, *parts: Any) -> str:
        """Joins values as the template's operator ``~`` does, and counts the length of the result as work."""
        return str(self.limit.add_value("".join(map(str, parts))))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Returns ``left operator right``; checks the operands and counts the length of the result as work."""
        self.limit.check_operands(operator, left, right)
        return self.limit.add_value(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, *args: Any, **more: Any) -> Any:
        """Returns the result of a function call; checks the arguments and counts the length of the result as work."""
        self.limit.check_operands("call", getattr(function, "__self__", None), *args, *more.values())
        return self.limit.add_value(super().call(context, function, *args, **more))


class Generation(Extension):
    """Jinja extension for ``{% generation %}`` blocks, which mark the assistant's text for training."""

    environment: Sandbox
    tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

    def parse(self, parser: Any) -> list[nodes.Node]:
        """Parses a block; returns its nodes between two nodes that write the marks."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, end = (nodes.Output([nodes.TemplateData(mark)]) for mark in self.environment.marks)
        return [start, *body, end]


class _ConcatAsCall(NodeTransformer):
    """Replaces ``a ~ b`` by a call, so that the length of the result is counted."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _call("concatenate", *(self.visit(part) for part in node.nodes))


class Program:
    """Compiled chat template. Each rendering counts its work from 0."""

    def __init__(self, text: str, marks: tuple[str, str]) -> None:
        self._limit = WorkLimit()
        self._template = Sandbox(self._limit, len(text), marks).from_string(text)

    def render(self, **variables: Any) -> str:
        """Renders the template with these variables and returns the text."""
        self._limit.work = 0
        return self._template.render(**variables)


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # Jinja's own escapes for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0
