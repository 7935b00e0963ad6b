"""Chat templates: conversations as text, by the template of a published folder.

A template is a program from an unknown author. It runs in a sandbox (``heedful.util.template_sandbox``), sees only
plain data (strings, numbers, lists and mappings), and cannot change them.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from heedful.errors import HeedfulError
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_types import ROLES
from heedful.util.files import read_bytes

if TYPE_CHECKING:
    from heedful.util.template_sandbox import Program

M = TypeVar("M", bound=Mapping[str, Any])
FILE = "chat_template.jinja"  # beside tokenizer_config.json; older folders have it there as "chat_template"
MIN_JINJA = (3, 1, 6)  # older sandboxes have known holes
ASSISTANT_START, ASSISTANT_END = "\ufdd0", "\ufdd1"  # around the assistant's text; no characters (Unicode, 23.7)
# For models without a template: the role in a line, then the content with an end token.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message.role + ':\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content + eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)

# Llama 2 (Touvron et al. 2023, section 3.3, and Meta's code): the system message stands within the first user message,
# and every turn begins with a start token and ends with an end token.
_LLAMA2 = """\
{%- if messages[0].role == 'system' -%}
    {%- set system, turns = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n', messages[1:] -%}
{%- else -%}
    {%- set system, turns = '', messages -%}
{%- endif -%}
{%- if not turns -%}{{- raise_exception('a message of the user is missing after that of the system') -}}{%- endif -%}
{%- for message in turns -%}
    {%- if message.role != ('assistant' if loop.index0 % 2 else 'user') -%}
        {{- raise_exception('user and assistant take turns after a system message, if there is one') -}}
    {%- elif message.role == 'user' -%}
        {{- bos_token + '[INST] ' + ((system if loop.first else '') + message.content) | trim + ' [/INST]' -}}
    {%- else -%}
        {%- generation -%}{{- ' ' + message.content | trim + ' ' + eos_token -}}{%- endgeneration -%}
    {%- endif -%}
{%- endfor -%}"""
# Llama 3 (Meta's model card): every message has a header with its role, and ends with an end token.
_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.content is not string -%}{{- raise_exception('a message has no text as its content') -}}{%- endif -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- message.content | trim + eos_token -}}{%- endgeneration -%}
    {%- else -%}
        {{- message.content | trim + eos_token -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""


class ChatFormat(NamedTuple):
    """Chat template, and the special tokens that it needs.

    Attributes:
        template: in Jinja's language.
        roles: special tokens that it writes by their role → name that the role gets; None: the tokenizer's own.
        tokens: special tokens that it writes by name.
    """

    template: str
    roles: Mapping[str, str | None]
    tokens: tuple[str, ...] = ()


FORMATS = {  # names of ``--tokenizer.chat-template``
    "plain": ChatFormat(DEFAULT_TEMPLATE, {"eos_token": None}),
    "llama2": ChatFormat(_LLAMA2, {"bos_token": None, "eos_token": None}),
    "llama3": ChatFormat(
        _LLAMA3,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ("<|start_header_id|>", "<|end_header_id|>"),
    ),
}


def set_template(tokenizer: Tokenizer, name: str, adds_tokens: bool = False) -> None:
    """Gives a tokenizer the chat template ``name`` of ``FORMATS``, in place of its own.

    From then on, the tokenizer encodes a special token in a text, as the template writes it, as one token.

    Args:
        tokenizer: is changed in place.
        name: plain, llama2 or llama3.
        adds_tokens: adds special tokens that the vocabulary lacks, with the next ids.

    Raises:
        HeedfulError: the vocabulary lacks a special token of the template.

    >>> tokenizer = Tokenizer.train(["some text"], size=300)
    >>> set_template(tokenizer, "llama3", adds_tokens=True)
    >>> render_prompt(tokenizer, [{"role": "user", "content": "Hello"}]).partition("<|eot_id|>")[0]
    '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\\n\\nHello'
    """
    form = FORMATS[name]
    roles = {role: own or tokenizer.config.get(role) for role, own in form.roles.items()}
    tokens = [token for token in (*form.roles.values(), *form.tokens) if token is not None]
    if adds_tokens:
        tokenizer.backend.add_special_tokens(tokens)
    missing = [f"a {role}" for role, token in roles.items() if token is None]
    missing += [token for token in tokens if tokenizer.backend.token_to_id(token) is None]
    if missing:
        raise HeedfulError(
            f"the tokenizer lacks {', '.join(missing)}, which the chat template {name} writes; choose another template"
        )
    tokenizer.config |= {**roles, "chat_template": form.template, "split_special_tokens": False}
    tokenizer.backend.encode_special_tokens = False


def is_conversation(value: Any) -> bool:
    """Returns True for a list of messages, ``{"role": ..., "content": ...}`` each.

    >>> is_conversation([{"role": "user", "content": "Hello"}]), is_conversation(["Hello"])
    (True, False)
    """
    if not isinstance(value, list | tuple):
        return False
    return any(isinstance(message, Mapping) and "role" in message for message in value)


def last_turns(messages: Sequence[M], fits: Callable[[list[M]], bool]) -> list[M]:
    """Returns the longest end of a conversation that ``fits``, in whole turns, after its system message.

    A turn begins with a message of the user; what comes before the first turn stays. The last turn stays in any case.
    ``fits`` must be monotone: if a conversation fits, so does a shorter end of it. It is called O(log turns) times.

    >>> talk = [{"role": role, "content": ""} for role in ("system", "user", "assistant", "user")]
    >>> [message["role"] for message in last_turns(talk, lambda messages: len(messages) < 4)]
    ['system', 'user']
    """
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not starts:
        return list(messages)
    ends = [[*messages[: starts[0]], *messages[start:]] for start in starts]
    return ends[bisect_left(ends[:-1], True, key=fits)]


def read_template(folder: Path) -> str | None:
    """Returns the chat template in a folder's ``chat_template.jinja``; None if there is no such file.

    As in ``transformers``, this file takes precedence over ``chat_template`` in ``tokenizer_config.json``.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return None
    try:
        return read_bytes(path, "save or download it again").decode()
    except UnicodeDecodeError as error:
        raise HeedfulError(f"cannot read {path} ({error}); save or download it again") from None


def render_prompt(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """Renders messages as a prompt, up to the beginning of the assistant's next message.

    Equal to transformers' ``apply_chat_template(messages, tokenize=False, add_generation_prompt=True)``. The text
    contains the special tokens, so the tokenizer must not add its own around it.

    Raises:
        HeedfulError: the tokenizer has no template, the template is broken or refuses the messages, a message is not
            plain data with a role, or the last message is the assistant's.

    >>> tokenizer = Tokenizer.train(["some text"], size=300)
    >>> tokenizer.config["chat_template"] = "[{{ messages[0].role }}] {{ messages[0].content }}{{ eos_token }}"
    >>> render_prompt(tokenizer, [{"role": "user", "content": "Hello"}])
    '[user] Hello</s>'
    """
    plain = _plain_messages(messages)
    if plain[-1]["role"] == "assistant":
        raise HeedfulError("the last message is the assistant's; end with a message of another role")
    return _without_marks(_render(tokenizer, plain, generation_prompt=True))


def render_conversation(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Renders a whole conversation for training, as parts (text, True if it is the assistant's).

    A template marks the assistant's parts with ``{% generation %}``; they equal those of transformers'
    ``apply_chat_template(..., return_assistant_tokens_mask=True)``. Without marks, the preceding messages are
    rendered with the generation prompt, and the text after them is the assistant's part.

    Raises:
        HeedfulError: a template without marks renders a message differently when later messages follow, or renders no
            text of the assistant; the tokenizer has no template, the template is broken or refuses the messages, or a
            message is not plain data with a role.

    >>> tokenizer = Tokenizer.train(["some text"], size=300)
    >>> tokenizer.config["chat_template"] = DEFAULT_TEMPLATE
    >>> talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    >>> render_conversation(tokenizer, talk)
    [('user:\\nHello</s>\\nassistant:\\n', False), ('Good day</s>', True), ('\\n', False)]
    """
    plain = _plain_messages(messages)
    whole = _render(tokenizer, plain, generation_prompt=False)
    parts = _marked_parts(whole) if ASSISTANT_START in whole else _turn_parts(tokenizer, plain, whole)
    if not any(is_assistant and text for text, is_assistant in parts):
        raise HeedfulError(
            "the model's chat template writes no text of the assistant, so nothing can be learned; check the template"
        )
    return [(text, is_assistant) for text, is_assistant in parts if text]


def _marked_parts(text: str) -> list[tuple[str, bool]]:
    first, *others = text.split(ASSISTANT_START)
    parts = [(first, False)]
    for other in others:
        assistant, _, rest = other.partition(ASSISTANT_END)
        parts += [(assistant, True), (rest, False)]
    return parts


def _turn_parts(tokenizer: Tokenizer, messages: list[dict[str, Any]], whole: str) -> list[tuple[str, bool]]:
    parts, end = [], 0
    for number, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            continue
        prompt = _render(tokenizer, messages[: number - 1], generation_prompt=True) if number > 1 else ""
        so_far = whole if number == len(messages) else _render(tokenizer, messages[:number], generation_prompt=False)
        if not so_far.startswith(prompt) or not whole.startswith(so_far) or len(prompt) < end:
            raise HeedfulError(
                f"the model's chat template renders message {number} differently when later messages follow, "
                "so the position of the assistant's text is unknown; put {% generation %} marks into the template"
            )
        parts += [(whole[end : len(prompt)], False), (whole[len(prompt) : len(so_far)], True)]
        end = len(so_far)
    return [*parts, (whole[end:], False)]


def _without_marks(text: str) -> str:
    return text.replace(ASSISTANT_START, "").replace(ASSISTANT_END, "")


def _render(tokenizer: Tokenizer, messages: list[dict[str, Any]], generation_prompt: bool) -> str:
    """Returns the rendered text, with the marks of ``{% generation %}`` blocks."""
    template = _compile(template_text(tokenizer))
    special_tokens = {role: name for role in ROLES if isinstance(name := tokenizer.config.get(role), str)}
    variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": generation_prompt}
    import jinja2

    from heedful.util.template_sandbox import LimitExceeded

    try:
        return template.render({**special_tokens, **variables})
    except LimitExceeded as error:
        raise HeedfulError(f"the model's chat template was stopped: {error}; use another {FILE}") from None
    except jinja2.TemplateError as error:
        raise HeedfulError(
            f"the model's chat template refuses the messages: {_one_line(error)}; change the messages"
        ) from None
    except Exception as error:  # the program may fail in any way on data that it does not expect
        raise HeedfulError(
            f"the model's chat template cannot be filled with these messages "
            f"({type(error).__name__}: {_one_line(error)}); check their contents"
        ) from None


def template_text(tokenizer: Tokenizer) -> str:
    """Returns the template of a tokenizer; of several templates the one named "default"."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": ...}, {"name": "tool_use", ...}]
        entries = [entry for entry in template if isinstance(entry, dict) and "name" in entry]
        template = {entry["name"]: entry.get("template") for entry in entries}
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        raise HeedfulError(
            f"the model has no chat template (no {FILE}, no chat_template in tokenizer_config.json); give a text "
            "instead of messages"
        )
    return template


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages as plain JSON data. Raises ``HeedfulError`` if that is not possible."""
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            text = f"{str(message)[:40]!r}"
            raise HeedfulError(f'message {number} is {text}; give {{"role": "user", "content": "..."}}')
    try:
        plain: list[dict[str, Any]] = json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError) as error:
        raise HeedfulError(
            f"a message contains a value that JSON cannot represent ({_one_line(error)}); give text, numbers, lists "
            "and dictionaries"
        ) from None
    if any(mark in json.dumps(plain, ensure_ascii=False) for mark in (ASSISTANT_START, ASSISTANT_END)):
        raise HeedfulError("a message holds U+FDD0 or U+FDD1, which are not characters; remove them")
    return plain


@lru_cache(maxsize=8)
def _compile(text: str) -> Program:
    try:
        import jinja2
    except ImportError:
        raise HeedfulError("chat templates need Jinja: pip install 'jinja2>=3.1.6'") from None
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < MIN_JINJA:
        raise HeedfulError(
            f"chat templates need Jinja 3.1.6 or later, not {jinja2.__version__}: pip install 'jinja2>=3.1.6'"
        )
    from heedful.util.template_sandbox import chat_program

    try:
        return chat_program(text, (ASSISTANT_START, ASSISTANT_END))
    except jinja2.TemplateSyntaxError as error:
        raise HeedfulError(
            f"the model's chat template is broken in line {error.lineno} ({_one_line(error)}); download it again"
        ) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
