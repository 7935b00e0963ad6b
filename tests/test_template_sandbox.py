"""Templates of chats and of mixtures: one sandbox, whose limits stop each before it fills time or memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import jinja2
import pytest

from heedful.util import template_sandbox
from heedful.util.template_sandbox import LimitExceeded, Program, chat_program, data_program

BIG = "('x' * 1000000)"
UNBOUNDED = [
    "{{ 'x' * 300000000 }}",
    "{{ '%300000000d' % 1 }}",
    "{{ '%300000000d' | format(1) }}",
    "{{ '%*d' % (300000000, 1) }}",
    "{{ '{:>300000000}'.format(1) }}",
    "{{ '{:>{}}'.format(1, '300000000') }}",
    "{{ '{{{:>{}}}}'.format(1, '300000000') }}",
    "{{ '{x:{y}}'.format_map({'x': 1, 'y': 300000000}) }}",
    "{{ '{0[0]:>9999}'.format(" + BIG + ") * 99999 }}",
    "{{ text | center(300000000) }}",
    "{{ text.ljust(300000000) }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ ('a' * 10000).translate({97: " + BIG + "}) }}",
    "{{ ([" + BIG + "] * 1000) | join }}",
    "{{ ''.join([" + BIG + "] * 1000) }}",
    "{{ [" + BIG + "] * 1000 }}",
    "{% set x = " + BIG + " %}{{ [" + "x, " * 200 + "] }}",
    "{% set x = " + BIG + " %}{{ [" + "x, " * 200 + "] ~ '' }}",
    "{% set x = " + BIG + " %}{{ [" + "x, " * 200 + "] | tojson }}",
    "{% set s = namespace(x=[1]) %}{% for i in range(40) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x }}",
    "{{ [[[1]]] | tojson(indent=99999999) }}",
    "{{ " + BIG + " | wordwrap(1) }}",
    "{{ [1] | batch(99999999, 'x') | list | length }}",
    "{{ (10 ** 999) ** 999 }}",
    "{{ 5 | round(-1001) }}",
    "{{ [5] | map('round', method='ceil', precision=1001) | list }}",
    "{{ 'a'.encode().replace(''.encode(), 'b'.encode()) }}",
    "{{ (5).to_bytes(9, 'big') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% set s = namespace(x=[1]) %}{% for i in range(9999) %}{% set s.x = [s.x] %}{% endfor %}{{ s.x }}",
]
PROGRAMS: dict[str, Callable[[str], Program]] = {
    "chat": lambda text: chat_program(text, ("\ufdd0", "\ufdd1")),
    "data": data_program,
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("text", UNBOUNDED)
def test_work_and_output_are_bounded(kind: str, text: str) -> None:
    program = PROGRAMS[kind](text)
    with pytest.raises(LimitExceeded):
        program.render({"text": "abc"})


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{{ 1" + " - 1" * 20_000 + " }}",
        "{% for a in b %}" * 40 + "{% endfor %}" * 40,
        "{{ [1, 2] | random }}",
        "{{ lipsum(n=3) ",
    ],
)
def test_templates_that_cannot_be_compiled_are_broken(kind: str, text: str) -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        PROGRAMS[kind](text)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_ordinary_templates_are_not_stopped(kind: str) -> None:
    """The forms of published templates, on a conversation of 400,000 characters."""
    text = (
        "{% for m in messages %}{{ '%s in %d: ' % (m.role, 2024) }}{{ '{:>9}|{{}}{{{}}}'.format(loop.index, 1) }}"
        "{{ m.content.split('<|channel|>final<|message|>')[-1] | trim }}{{ messages | length }}"
        "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].role }}{{ m | tojson | length }}{% endfor %}"
        "{{ messages | map(attribute='role') | join(', ') }}{{ dict(a=1) | tojson(indent=2) }}"
    )
    messages = [{"role": ("user", "assistant")[i % 2], "content": "ab c " * 800} for i in range(100)]
    rendered = PROGRAMS[kind](text).render({"messages": messages})
    environment = jinja2.Environment()
    if kind == "chat":  # without escapes for HTML
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    assert rendered == environment.from_string(text).render(messages=messages)


def test_a_value_that_contains_itself_has_a_size() -> None:
    loop: list[object] = ["a"]
    loop.append(loop)
    assert data_program("{{ x }}").render({"x": loop}) == "['a', [...]]"


def test_each_rendering_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_WORK", 10**6)
    program = data_program("{% for i in range(200) %}{{ i }}{% endfor %}")
    assert {len(program.render({})) for _ in range(5)} == {490}
    with pytest.raises(LimitExceeded):
        data_program("{% for i in range(1000) %}{{ i }}{% endfor %}").render({})
