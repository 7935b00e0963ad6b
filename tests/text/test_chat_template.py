"""Chat templates, of the shapes that published folders have, against transformers' ``apply_chat_template``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.chat_template import (
    is_conversation,
    read_template,
    render_conversation,
    render_prompt,
    set_template,
)

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

CHATML = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA_3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}\
{% set content = head + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}\
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for message in turns %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
{% if loop.index0 == 0 and system != false %}\
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"""
MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if loop.last and system is defined else '') + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- else %}
        {{- raise_exception('only user, assistant and system, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
TOOLS = """\
{% macro block(name, value) %}<{{ name }}>{{ value | tojson(indent=2) }}</{{ name }}>{% endmacro %}
{% set ns = namespace(last=-1) %}
{% for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% if tools %}{{ tools | tojson }}{% endif %}{% if documents is not none %}none{% endif %}
{% for message in messages %}
  {% if message.content is string %}
    {{ message.role }}: {{ message.content }}{% if loop.index0 == ns.last %} (last){% endif %}
  {% else %}
    {% for part in message.content %}{% if part.type != 'text' %}{% continue %}{% endif %}{{ part.text }}{% endfor %}
  {% endif %}
  {% if message.tool_calls is defined %}{{ block('calls', message.tool_calls) }}{% endif %}
  {% if message.stop %}{% break %}{% endif %}
{% endfor %}
{{ {'é <': ["'", true, none]} | tojson }} {{ cls_token }}|{{ dict(a=1).a }}"""
TRAINED = """\
{% for message in messages %}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}### {{ message.role | title }}:
{{ message.content.split('</think>')[-1] }}
{% endif %}
{% endfor %}{{ strftime_now('%Y') }}
"""
TEMPLATES = {
    "ChatML": CHATML,
    "Llama 3": LLAMA_3,
    "Mistral": MISTRAL,
    "Gemma": GEMMA,
    "tools": TOOLS,
    "trained": TRAINED,
}

TALKS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Who are you?"}],
    "system": [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": " Hi <b> & 'you' é🙂\n"}],
    "turns": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?</think>{{ 7 * 7 }}"},
    ],
    "out of turn": [{"role": "user", "content": "One?"}, {"role": "user", "content": "Two?"}],
    "tool": [
        {"role": "user", "content": "One?"},
        {"role": "tool", "content": "4", "tool_calls": [{"a": "é", "b": 1.5}]},
    ],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}], "stop": True}],
}


def tokenizer_with(template: Any) -> Tokenizer:
    tokenizer = Tokenizer.train(["some text"], 300)
    tokenizer.config = {**NAMES, "chat_template": template}
    return tokenizer


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_as_transformers(template: str, talk: list[dict[str, Any]]) -> None:
    transformers = pytest.importorskip("transformers")
    ours = tokenizer_with(template)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=ours.backend, chat_template=template, **NAMES)
    refusal, expected = "", ""
    try:
        expected = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        refusal = str(error)
    if refusal:
        with pytest.raises(HeedfulError) as caught:
            render_prompt(ours, talk)
        assert refusal in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        assert render_prompt(ours, talk) == expected
        assert len(expected) > 10


# what Meta's documentation writes for these messages
SYSTEM = {"role": "system", "content": "You are a helpful assistant"}
ASKED = [SYSTEM, {"role": "user", "content": "What is the capital of France?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": " And of Italy? "}]
WRITTEN = {
    "llama2": (
        "<s>[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nWhat is the capital of France? [/INST]",
        " Paris. </s><s>[INST] And of Italy? [/INST]",
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is the capital of France?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "Paris.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd of Italy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}


def with_format(name: str) -> Tokenizer:
    tokenizer = Tokenizer.train(["some text about the capital of France"], 300, template="none")
    set_template(tokenizer, name, adds_tokens=True)
    return tokenizer


@pytest.mark.parametrize("name", WRITTEN)
def test_the_published_formats(name: str) -> None:
    """A special token is one token; the assistant's part ends with the token that ends a generation."""
    tokenizer, (prompt, more) = with_format(name), WRITTEN[name]
    assert render_prompt(tokenizer, ASKED) == prompt
    assert render_prompt(tokenizer, ANSWERED) == prompt + more
    parts = render_conversation(tokenizer, ANSWERED[:3])
    end = tokenizer.config["eos_token"]
    assert [text for text, is_assistant in parts if is_assistant] == [more.partition(end)[0] + end]
    assert "".join(text for text, _ in parts).startswith(prompt)
    (ids,) = tokenizer.encode([prompt + more])
    assert ids[0] == tokenizer.start
    assert ids.count(tokenizer.end) == (prompt + more).count(end)
    assert len({*ids} & {*tokenizer.special}) == (2 if name == "llama2" else 4)


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("name", WRITTEN)
def test_the_published_formats_as_transformers(name: str, talk: list[dict[str, Any]]) -> None:
    """The templates of the published folders, in their own words, and ours in transformers' Jinja."""
    transformers = pytest.importorskip("transformers")
    ours = with_format(name)
    roles = {role: ours.config[role] for role in ("bos_token", "eos_token")}
    results = []
    for template in (ours.config["chat_template"], {"llama2": LLAMA_2, "llama3": LLAMA_3}[name]):
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=ours.backend, chat_template=template, **roles)
        try:
            results.append(theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=True))
        except Exception:  # both refuse, each in its own words
            results.append(None)
    if not isinstance(talk[-1]["content"], str) or (name == "llama2" and talk[-1]["role"] == "tool"):
        assert results[0] is None  # where the published one writes a list, or leaves a message out
    else:
        assert results[0] == results[1]
    if results[0] is None:
        with pytest.raises(HeedfulError):
            render_prompt(ours, talk)
    elif talk[-1]["role"] != "assistant":
        assert render_prompt(ours, talk) == results[0]


def test_a_tokenizer_without_the_tokens_of_a_format() -> None:
    tokenizer = Tokenizer.train(["some text"], 300)
    with pytest.raises(
        HeedfulError, match=r"lacks <\|begin_of_text\|>, <\|eot_id\|>, .* the chat template llama3 writes"
    ):
        set_template(tokenizer, "llama3")
    del tokenizer.config["bos_token"]
    with pytest.raises(HeedfulError, match="the tokenizer lacks a bos_token, which the chat template llama2 writes"):
        set_template(tokenizer, "llama2")
    assert "chat_template" not in tokenizer.config


@pytest.mark.parametrize("name", WRITTEN)
def test_our_formats_lose_no_message(name: str) -> None:
    """Neither a system message without the user's, which Llama 2's form has no place for, nor what is no text."""
    tokenizer = with_format(name)
    if name == "llama2":
        with pytest.raises(HeedfulError, match="a message of the user is missing after that of the system"):
            render_prompt(tokenizer, [{"role": "system", "content": "Be brief."}])
    for message in ({"role": "user"}, {"role": "user", "content": None}, {"role": "user", "content": 3}):
        with pytest.raises(HeedfulError, match=r"chat template (refuses|cannot be filled with)"):
            render_prompt(tokenizer, [message])


def test_a_refusal_is_the_template_s_own_words() -> None:
    with pytest.raises(HeedfulError, match="chat template refuses the messages: user and assistant must take turns; "):
        render_prompt(tokenizer_with(MISTRAL), TALKS["out of turn"])
    with pytest.raises(HeedfulError, match="cannot be filled with these messages"):
        render_prompt(tokenizer_with(MISTRAL), [{"role": "user", "content": None}])
    with pytest.raises(HeedfulError, match="refuses the messages: 'dict object' has no attribute 'content'"):
        render_prompt(tokenizer_with(MISTRAL), [{"role": "user"}])


def test_wrong_templates_and_messages_are_refused() -> None:
    one = TALKS["one"]
    with pytest.raises(HeedfulError, match=r"no chat template \(.*give a text instead of messages"):
        render_prompt(Tokenizer.train(["some text"], 300), one)
    with pytest.raises(HeedfulError, match=r"broken in line 2 \(.*\); download it again"):
        render_prompt(tokenizer_with("a\n{% for %}"), one)
    with pytest.raises(HeedfulError, match="message 2 is 'hello'; give"):
        render_prompt(tokenizer_with(CHATML), [*one, "hello"])  # type: ignore[list-item]
    with pytest.raises(HeedfulError, match=r"message 1 is .*; give"):
        render_prompt(tokenizer_with(CHATML), [{"content": "x"}, *one])
    with pytest.raises(HeedfulError, match="the last message is the assistant's"):
        render_prompt(tokenizer_with(CHATML), [*one, {"role": "assistant", "content": "I"}])
    with pytest.raises(HeedfulError, match="a message contains a value that JSON cannot represent"):
        render_prompt(tokenizer_with(CHATML), [{"role": "user", "content": object()}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_a_template_reaches_nothing_but_the_messages(template: str) -> None:
    with pytest.raises(HeedfulError, match="the model's chat template"):
        render_prompt(tokenizer_with(template), TALKS["one"])


def test_of_several_templates_the_default_is_taken() -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    assert render_prompt(tokenizer_with(several), TALKS["one"]) == "Who are you?"
    assert (
        render_prompt(tokenizer_with({one["name"]: one["template"] for one in several}), TALKS["one"]) == "Who are you?"
    )
    with pytest.raises(HeedfulError, match="no chat template"):
        render_prompt(tokenizer_with(several[:1]), TALKS["one"])


def test_a_conversation_is_known_by_its_roles() -> None:
    assert is_conversation(TALKS["turns"])
    assert is_conversation([{"content": "x"}, {"role": "user"}])  # one message is wrong, and will be named
    for other in ("text", [], ["a", "b"], {"role": "user"}, [{"text": "a", "text_pair": "b"}], [TALKS["one"]], [3]):
        assert not is_conversation(other)


def test_the_file_goes_before_the_configuration(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_text("é {{ messages }}\n", "utf-8")
    assert read_template(tmp_path) == "é {{ messages }}\n"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(HeedfulError, match=r"cannot read .*chat_template\.jinja"):
        read_template(tmp_path)


@pytest.mark.parametrize(("version", "said"), [(None, "need Jinja: "), ("3.1.2", "or later, not 3.1.2")])
def test_without_jinja_it_is_one_line(monkeypatch: pytest.MonkeyPatch, version: str | None, said: str) -> None:
    if version is None:
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        monkeypatch.setattr(sys.modules.get("jinja2") or pytest.importorskip("jinja2"), "__version__", version)
    with pytest.raises(HeedfulError, match=rf"{said}.*'jinja2>=3.1.6'"):
        render_prompt(tokenizer_with(f"{said}{{{{ messages }}}}"), TALKS["one"])


def test_it_is_kept_with_the_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer_with(CHATML).save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))["chat_template"] == CHATML
    back = Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(TALKS["turns"], tokenize=False, add_generation_prompt=True)
    assert render_prompt(back, TALKS["turns"]) == expected


HUGE = {
    "lipsum": "{{ lipsum(n=100000) }}",
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
    "a macro in a loop": "{% macro m() %}x{% endmacro %}{% for a in range(99999) %}{% for b in range(999) %}{{ m() }}"
    "{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "adding": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "multiplying": "{{ 'x' * 10000000000 }}",
    "a list multiplied": "{{ [1] * 10000000000 }}",
    "a power": "{{ 10 ** 10 ** 9 }}",
    "a width": "{{ '%10000000000d' % 1 }}",
    "a filter": "{{ 'x' | center(10000000000) }}",
    "a method": "{{ 'x'.ljust(10000000000) }}",
    "replacing": "{% set x = 'a' * 90000 %}{{ x.replace('a', x) }}",
    "replacing by a filter": "{% set x = 'a' * 90000 %}{{ x | replace('a', x) }}",
}


@pytest.mark.parametrize("template", HUGE.values(), ids=HUGE)
@pytest.mark.full(keep=2)
def test_a_template_that_works_without_end_is_one_line(template: str) -> None:
    tokenizer = Tokenizer.train(["some text"], size=300)
    tokenizer.config["chat_template"] = template
    with pytest.raises(HeedfulError, match="the model's chat template") as error:
        render_prompt(tokenizer, [{"role": "user", "content": "Hello"}])
    assert "\n" not in str(error.value)


def test_long_conversations_are_within_the_bounds() -> None:
    tokenizer = Tokenizer.train(["some text"], size=300)
    tokenizer.config["chat_template"] = CHATML
    talk = [{"role": role, "content": "word " * 2000} for _ in range(500) for role in ("user", "assistant")][:-1]
    for _ in range(2):  # each time anew
        assert len(render_prompt(tokenizer, talk)) > 999 * 9999


def test_lists_joined_by_templates_are_as_they_were() -> None:
    tokenizer = Tokenizer.train(["some text"], size=300)
    tokenizer.config["chat_template"] = (
        "{{ 1 ~ 'a' ~ [2] }} {{ [1] + [2] }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ '%s' % 'b' }} {{ 'x' * 3 }}"
    )
    assert render_prompt(tokenizer, [{"role": "user", "content": "Hello"}]) == "1a[2] [1, 2] 3 8 b xxx"
