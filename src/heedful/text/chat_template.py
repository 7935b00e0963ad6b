"""Chat templates: conversations as text, by the template of a published folder.

A template is a small program of strangers. It runs in Jinja's sandbox, sees plain data alone (strings, numbers, lists
and mappings), and can change none of it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_types import ROLES
from heedful.util.files import read_bytes

if TYPE_CHECKING:
    from jinja2 import Template

FILE = "chat_template.jinja"  # beside tokenizer_config.json, whose "chat_template" is the older place
MIN_JINJA = (3, 1, 6)  # the sandbox of older ones has known holes
MAX_WORK = 10**9  # of a template: a second or a few
MAX_SIZE = 10**8  # characters that one call may make at most, and numbers that it may be given
ASSISTANT_START, ASSISTANT_END = "\ufdd0", "\ufdd1"  # around what the assistant says; no characters (Unicode, 23.7)
# What messages look like where nobody says: a line with the role, and the content with an end token after it.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message.role + ':\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content + eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)


def is_conversation(one: Any) -> bool:
    """Returns True if this is a list of messages, ``{"role": ..., "content": ...}`` each.

    >>> is_conversation([{"role": "user", "content": "Hello"}]), is_conversation(["Hello"])
    (True, False)
    """
    return isinstance(one, list | tuple) and any(isinstance(message, Mapping) and "role" in message for message in one)


def read_template(folder: Path) -> str | None:
    """The template in a folder's ``chat_template.jinja``, or None; transformers, too, prefers it to the older place."""
    path = folder / FILE
    if not os.path.lexists(path):
        return None
    try:
        return read_bytes(path, "save or download it again").decode()
    except UnicodeDecodeError as error:
        raise HeedfulError(f"cannot read {path} ({error}); save or download it again") from None


def render_prompt(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages in the template's words, up to where the assistant's answer begins.

    Equal to transformers' ``apply_chat_template(messages, tokenize=False, add_generation_prompt=True)``. Special tokens
    are in the text; what else the tokenizer puts around a text must not be added again.

    Raises:
        HeedfulError: where the tokenizer has no template, the template is broken or refuses the messages, a message is
            no plain data with a role, or the last is the assistant's.

    >>> tokenizer = Tokenizer.train(["some text"], size=300)
    >>> tokenizer.config["chat_template"] = "[{{ messages[0].role }}] {{ messages[0].content }}{{ eos_token }}"
    >>> render_prompt(tokenizer, [{"role": "user", "content": "Hello"}])
    '[user] Hello</s>'
    """
    plain = _plain_messages(messages)
    if plain[-1]["role"] == "assistant":
        raise HeedfulError("the last message is the assistant's, who is to answer; end with another's")
    return _without_marks(_render(tokenizer, plain, asking=True))


def render_conversation(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """A whole conversation in the template's words, in parts, each with whether it is the assistant's, to be learned.

    A template tells the assistant's parts by ``{% generation %}``; equal to what transformers' ``apply_chat_template``
    tells by ``return_assistant_tokens_mask``. Of one that does not, an assistant's part is all that comes after what
    asks for it: the conversation up to there, with the generation prompt. Where that is not how the longer text begins,
    an error says so, and one where a template shows nothing of the assistant's.

    >>> tokenizer = Tokenizer.train(["some text"], size=300)
    >>> tokenizer.config["chat_template"] = DEFAULT_TEMPLATE
    >>> talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    >>> render_conversation(tokenizer, talk)
    [('user:\\nHello</s>\\nassistant:\\n', False), ('Good day</s>', True), ('\\n', False)]
    """
    plain = _plain_messages(messages)
    whole = _render(tokenizer, plain, asking=False)
    parts = _marked_parts(whole) if ASSISTANT_START in whole else _turn_parts(tokenizer, plain, whole)
    if not any(said and text for text, said in parts):
        raise HeedfulError("the model's chat template shows nothing that the assistant says; look at its contents")
    return [(text, said) for text, said in parts if text]


def _marked_parts(text: str) -> list[tuple[str, bool]]:
    first, *others = text.split(ASSISTANT_START)
    parts = [(first, False)]
    for other in others:
        said, _, rest = other.partition(ASSISTANT_END)
        parts += [(said, True), (rest, False)]
    return parts


def _turn_parts(tokenizer: Tokenizer, messages: list[dict[str, Any]], whole: str) -> list[tuple[str, bool]]:
    parts, done = [], 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = _render(tokenizer, messages[:number], asking=True) if number else ""
        said = whole if number == len(messages) - 1 else _render(tokenizer, messages[: number + 1], asking=False)
        if not said.startswith(asked) or not whole.startswith(said) or len(asked) < done:
            raise HeedfulError(
                f"the model's chat template writes message {number + 1} otherwise when others follow it, so that what "
                "the assistant says cannot be told; give it {% generation %} marks"
            )
        parts += [(whole[done : len(asked)], False), (whole[len(asked) : len(said)], True)]
        done = len(said)
    return [*parts, (whole[done:], False)]


def _without_marks(text: str) -> str:
    return text.replace(ASSISTANT_START, "").replace(ASSISTANT_END, "")


def _render(tokenizer: Tokenizer, messages: list[dict[str, Any]], asking: bool) -> str:
    """The template's words, with marks around the assistant's where it tells them; ``asking`` for an answer."""
    template = _compile(_template_text(tokenizer))
    names = {role: name for role in ROLES if isinstance(name := tokenizer.config.get(role), str)}
    given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": asking}
    import jinja2

    try:
        return template.render(**names, **given)
    except _LimitExceeded as error:
        raise HeedfulError(f"the model's chat template is not run to its end: {error}; take another {FILE}") from None
    except jinja2.TemplateError as error:
        raise HeedfulError(f"the model's chat template refuses the messages: {_one_line(error)}; change them") from None
    except Exception as error:  # whatever the program does with data that it does not expect
        raise HeedfulError(
            f"the model's chat template cannot be filled with these messages "
            f"({type(error).__name__}: {_one_line(error)}); look at their contents"
        ) from None


def _template_text(tokenizer: Tokenizer) -> str:
    """The template of a tokenizer, of several the one for plain conversations."""
    found = tokenizer.config.get("chat_template")
    if isinstance(found, list):  # [{"name": "default", "template": ...}, {"name": "tool_use", ...}]
        found = {one["name"]: one.get("template") for one in found if isinstance(one, dict) and "name" in one}
    if isinstance(found, dict):
        found = found.get("default")
    if not isinstance(found, str):
        raise HeedfulError(
            f"the model has no chat template (no {FILE}, no chat_template in tokenizer_config.json); give it a text "
            "instead of messages"
        )
    return found


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as JSON has them, checked."""
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            shown = f"{str(message)[:40]!r}"
            raise HeedfulError(f'message {number} is {shown}; give {{"role": "user", "content": "..."}}')
    try:
        plain: list[dict[str, Any]] = json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError) as error:
        raise HeedfulError(f"a message holds more than text, numbers and lists of them ({_one_line(error)})") from None
    if any(mark in json.dumps(plain, ensure_ascii=False) for mark in (ASSISTANT_START, ASSISTANT_END)):
        raise HeedfulError("a message holds U+FDD0 or U+FDD1, which are no characters; take them out")
    return plain


@lru_cache(maxsize=8)
def _compile(text: str) -> _Program:
    """The program of a template: Jinja with the settings and names that templates are written for."""
    try:
        import jinja2
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.visitor import NodeTransformer
    except ImportError:
        raise HeedfulError("chat templates need Jinja: pip install 'jinja2>=3.1.6'") from None
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < MIN_JINJA:
        raise HeedfulError(
            f"chat templates need Jinja 3.1.6, this is {jinja2.__version__}: pip install 'jinja2>=3.1.6'"
        )

    class Generation(Extension):
        """``{% generation %}``: what the assistant says, marked for training."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return [*_text(ASSISTANT_START), *body, *_text(ASSISTANT_END)]

    def _text(data: str) -> list[nodes.Node]:
        return [nodes.Output([nodes.TemplateData(data)])]

    class Bounded(ImmutableSandboxedEnvironment):
        """The sandbox, with bounds on how long a template works and on how much it makes."""

        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def __init__(self, work: _WorkLimit, **how: Any) -> None:
            super().__init__(finalize=work.made, **how)
            self.work = work
            self.filters = {name: work.guarded(function) for name, function in self.filters.items()}
            del self.globals["lipsum"]  # as much text as is asked for

        def _generate(self, source: nodes.Template, *how: Any, **more: Any) -> str:
            for loop in source.find_all(nodes.For):
                loop.body.insert(0, nodes.ExprStmt(_call("turn")))
            for macro in source.find_all(nodes.Macro):
                macro.body.insert(0, nodes.ExprStmt(_call("turn")))
            return super()._generate(_Joins().visit(source), *how, **more)

        def turn(self) -> None:
            self.work.spend(len(text))

        def joined(self, *parts: Any) -> str:
            return self.work.made("".join(map(str, parts)))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self.work.before(operator, left, right)
            return self.work.made(super().call_binop(context, operator, left, right))

        def call(self, context: Any, function: Any, *args: Any, **more: Any) -> Any:
            self.work.before("call", getattr(function, "__self__", None), *args, *more.values())
            return self.work.made(super().call(context, function, *args, **more))

    class _Joins(NodeTransformer):
        """``a ~ b`` as a call, so that its length is seen."""

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
            return _call("joined", *(self.visit(part) for part in node.nodes))

    def _call(name: str, *args: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:  # Jinja's own is made for HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    work = _WorkLimit()
    made = Bounded(work, trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = work.guarded(as_json)
    made.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        return _Program(made.from_string(text), work)
    except jinja2.TemplateSyntaxError as error:
        raise HeedfulError(
            f"the model's chat template is broken in line {error.lineno} ({_one_line(error)}); download it again"
        ) from None


class _LimitExceeded(Exception):
    """A template that works longer, or makes more, than any conversation asks for."""


class _WorkLimit:
    """Work of a template since it began: a loop iteration or a call counts 1,000, a character 1."""

    def __init__(self) -> None:
        self.done = 0

    def spend(self, characters: int) -> None:
        """Count what was done; raises ``_LimitExceeded`` beyond the bound."""
        self.done += 1000 + characters
        if self.done > MAX_WORK:
            raise _LimitExceeded("it works longer, or writes more, than a conversation asks for")

    def made(self, value: Any) -> Any:
        """The value, counted."""
        self.spend(_size(value))
        return value

    def before(self, operator: str, *values: Any) -> None:
        """Raises ``_LimitExceeded`` for numbers and lengths of which the result could be beyond the bound."""
        sizes = [_size(value) for value in values]
        numbers = [abs(value) for value in values if isinstance(value, int)]
        times = max(numbers, default=1) if operator != "+" and any(sizes) else 1
        if operator == "**" and max(numbers, default=0) > 1000:
            raise _LimitExceeded("it raises to a power above 1,000")
        if operator == "%" and re.search(r"\d{6}|\*", str(values[0]) if isinstance(values[0], str) else ""):
            raise _LimitExceeded("it asks for a width of more than 99,999")
        if max(numbers, default=0) > MAX_SIZE or math.prod(max(1, size) for size in (*sizes, times)) > MAX_SIZE:
            raise _LimitExceeded("it makes more than a conversation asks for")
        self.spend(sum(sizes))

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is counted."""

        @wraps(function)
        def counted(*args: Any, **more: Any) -> Any:
            self.before("filter", *args, *more.values())
            return self.made(function(*args, **more))

        return counted


class _Program:
    """A template whose work is counted anew each time."""

    def __init__(self, template: Template, work: _WorkLimit) -> None:
        self.template, self.work = template, work

    def render(self, **names: Any) -> str:
        """The template's words."""
        self.work.done = 0
        return self.template.render(**names)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
