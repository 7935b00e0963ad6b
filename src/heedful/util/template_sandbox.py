"""Jinja sandbox of templates, with limits on a template's work and output: of chats, and of mixtures of data sets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_WORK = 10**9  # units of ``WorkLimit`` for one rendering: a second or a few
MAX_SIZE = 10**8  # maximum length of the result of one operation, of all nested texts together, and maximum integer
MAX_WIDTH = 99_999  # of a text that is formatted, and of texts and numbers for the filters in ``SLOW``
SLOW = frozenset({"wordwrap", "urlize", "striptags", "xmlattr", "pprint", "batch", "slice"})  # not linear, or they pad

FORMATS = {  # operator or method → its fields, of which some have a width
    "%": r"%(?:\([^)]*\))?[-#0 +]*[\d.*]*",
    "format": r"\{[^{}]*[{}]?",
    "format_map": r"\{[^{}]*[{}]?",
}


class LimitExceeded(Exception):
    """Error: a template does more work, or writes more text, than the limits allow."""


class WorkLimit:
    """Counter of the work of one rendering: 1,000 units for a loop iteration or a call, 10 for a character."""

    def __init__(self) -> None:
        self.work = 0

    def add(self, characters: int) -> None:
        """Counts an operation on this number of characters. Raises ``LimitExceeded`` above ``MAX_WORK`` units."""
        self.work += 1000 + 10 * characters
        if self.work > MAX_WORK:
            raise LimitExceeded("the template's loops or output exceed the limit for one text")

    def add_value(self, value: Any) -> Any:
        """Counts the length of a value and returns the value. Bytes are refused: no limit counts what they hold."""
        if isinstance(value, bytes):
            raise LimitExceeded("the template makes bytes of a text or number; it may make texts alone")
        self.check_size(_deep_size(value))
        self.add(_size(value))
        return value

    def check_size(self, size: int) -> None:
        """Raises ``LimitExceeded`` for a result that could be too large."""
        if size > MAX_SIZE:
            raise LimitExceeded(f"an operation of the template has a number or a text length above {MAX_SIZE:,}")

    def check_operands(self, operator: str, *values: Any) -> None:
        """Raises ``LimitExceeded`` if the result of an operator, filter or method on these values could be too large.

        A text, or a list that is repeated, may be combined with all of the other values; of other lists and mappings,
        as those of a conversation, the texts are only put together.
        """
        sizes, whole = [_size(value) for value in values], [_deep_size(value) for value in values]
        numbers = [abs(value) for value in values if isinstance(value, int)]
        factor = max(numbers, default=1) if operator != "+" and any(sizes) else 1
        if operator == "**" and max(numbers, default=0) > 1000:
            raise LimitExceeded("the template raises a number to a power above 1,000")
        if operator == "round" and any(isinstance(value, int) and abs(value) > 1000 for value in values[1:]):
            raise LimitExceeded("the template rounds to more than 1,000 digits")
        if operator in FORMATS and values and isinstance(values[0], str):
            factor = max(factor, _width(operator, values[0]))
        if operator in SLOW and max(*whole, *numbers, 0) > MAX_WIDTH:
            raise LimitExceeded(f"the template gives a text or number above {MAX_WIDTH:,} to {operator}")
        multiplies = operator == "*" or (bool(values) and isinstance(values[0], str))
        self.check_size(max(numbers, default=0))
        self.check_size(sum(whole))
        self.check_size(math.prod(max(1, size) for size in (*(whole if multiplies else sizes), factor)))
        self.add(sum(sizes))

    def limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a filter function whose arguments are checked and whose result is counted."""

        @wraps(function)
        def counted(*args: Any, **more: Any) -> Any:
            operands = args[1:] if args and isinstance(args[0], _FILTER_CONTEXTS) else args
            self.check_operands(name, *operands, *more.values())
            return self.add_value(function(*args, **more))

        return counted

    def to_json(self, value: Any, indent: int | None = None, **options: Any) -> str:
        """Returns a value as JSON; counts what is written as it is written."""
        if indent is None:
            return json.dumps(value, **options)
        if not isinstance(indent, int) or indent > 1000:
            raise LimitExceeded("the template indents JSON by more than 1,000 characters")
        parts: list[str] = []
        for part in json.JSONEncoder(indent=indent, **options).iterencode(value):
            self.add(len(part))
            parts.append(part)
        return "".join(parts)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits on work.

    Args:
        limit: counter of the work.
        length: number of characters of the template; each loop iteration counts as this many characters.
        options: of Jinja's environment.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, limit: WorkLimit, length: int, **options: Any) -> None:
        super().__init__(finalize=limit.add_value, **options)
        self.limit, self.length = limit, length
        self.policies |= {"json.dumps_function": limit.to_json, "json.dumps_kwargs": {"sort_keys": True}}
        self.filters = {
            name: limit.limited("%" if name == "format" else name, function) for name, function in self.filters.items()
        }
        del self.filters["random"]  # a row has the same text each time
        del self.globals["lipsum"]  # writes a text of any length, at random

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
        self.limit.check_size(sum(map(_deep_size, parts)))
        return str(self.limit.add_value("".join(map(str, parts))))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Returns ``left operator right``; checks the operands and counts the length of the result as work."""
        self.limit.check_operands(operator, left, right)
        return self.limit.add_value(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, *args: Any, **more: Any) -> Any:
        """Returns the result of a function call; checks the arguments and counts the length of the result as work."""
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "call")
        self.limit.check_operands(name, owner, *args, *more.values())
        return self.limit.add_value(super().call(context, function, *args, **more))


class ChatSandbox(Sandbox):
    """Sandbox with the settings, filters and functions that chat templates expect.

    Args:
        limit: counter of the work.
        length: number of characters of the template.
        marks: written before and after the text of a ``{% generation %}`` block.
    """

    def __init__(self, limit: WorkLimit, length: int, marks: tuple[str, str]) -> None:
        super().__init__(limit, length, trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self.marks = marks
        self.filters["tojson"] = limit.limited("tojson", partial(limit.to_json, ensure_ascii=False))
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)


class Generation(Extension):
    """Jinja extension for ``{% generation %}`` blocks, which mark the assistant's text for training."""

    environment: ChatSandbox
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
    """Compiled template. Each rendering counts its work from 0.

    Args:
        text: the template.
        sandbox: makes the environment, from the counter of the work and the length of the template.

    Raises:
        jinja2.TemplateSyntaxError: the template is broken, or nested too deeply.
    """

    def __init__(self, text: str, sandbox: Callable[[WorkLimit, int], Sandbox]) -> None:
        self._limit = WorkLimit()
        environment = sandbox(self._limit, len(text))
        try:
            self._template = environment.from_string(text)
        except (RecursionError, MemoryError, SyntaxError):  # of Jinja, and of Python on what Jinja makes
            raise jinja2.TemplateSyntaxError("it is nested too deeply", 1) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Renders the template with these variables and returns the text; raises ``LimitExceeded``."""
        self._limit.work = 0
        try:
            return self._template.render(variables)
        except RecursionError:
            raise LimitExceeded("its macros or values are nested too deeply") from None


def chat_program(text: str, marks: tuple[str, str]) -> Program:
    """Returns a compiled chat template; ``marks`` are those of ``ChatSandbox``."""
    return Program(text, partial(ChatSandbox, marks=marks))


def data_program(text: str) -> Program:
    """Returns a compiled template of rows of data, in which an absent column is an error."""
    return Program(text, partial(Sandbox, undefined=jinja2.StrictUndefined))


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _deep_size(value: Any) -> int:
    """Returns the length of a value as text, roughly: its items and all their texts, as often as they occur."""
    sizes: dict[int, int] = {}  # of the lists and mappings seen

    def size(item: Any) -> int:
        if isinstance(item, str):
            return len(item)
        if not isinstance(item, list | tuple | dict):
            return 0
        if id(item) not in sizes:
            sizes[id(item)] = 0  # a list that contains itself is shown with dots
            parts = (*item, *item.values()) if isinstance(item, dict) else item
            sizes[id(item)] = len(item) + sum(map(size, parts))
        return sizes[id(item)]

    return size(value)


def _width(operator: str, form: str) -> int:
    """Returns the largest width or precision in a format."""
    fields = re.findall(FORMATS[operator], form if operator == "%" else re.sub(r"\{\{|\}\}", "", form))
    width = max((int(number) for field in fields for number in re.findall(r"\d{1,9}", field)), default=1)
    if width > MAX_WIDTH or any(field.endswith(("*", "{")) for field in fields):
        raise LimitExceeded(f"the template formats text to a width above {MAX_WIDTH:,}, or to one that a value sets")
    return width


_FILTER_CONTEXTS = (jinja2.Environment, jinja2.runtime.Context, nodes.EvalContext)  # first arguments of some filters
