"""``heedful chat``: history, commands, streamed answers, Ctrl-C and Ctrl-D, the context, in a pseudo-terminal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

import heedful
from answering_folders import saved
from heedful.cli import main
from heedful.cli.chat import Conversation
from heedful.errors import HeedfulError
from heedful.text.chat_template import DEFAULT_TEMPLATE
from heedful.util.escaping import safe_in_terminals

pytest.importorskip("jinja2")
pty = pytest.importorskip("pty")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a language model with a chat template and a context of 200 tokens, one a character."""
    folder = saved("text-generation", tmp_path_factory.mktemp("talk") / "talker", length=200)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role[0] }} {{ message.content }} {% endfor %}a ", encoding="utf-8"
    )
    return folder


@pytest.fixture
def conversation(talker: Path) -> Conversation:
    return Conversation(heedful.pipeline(None, talker), "talker", {"max_new_tokens": 5, "do_sample": False}, "apple")


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def test_an_answer_is_that_of_predict_and_stays_in_the_history(conversation: Conversation) -> None:
    pipe, options = conversation.pipe, conversation.options
    talk: list[dict[str, str]] = [{"role": "system", "content": "apple"}]
    for text in ("the pear", "and plum"):
        talk.append({"role": "user", "content": text})
        pieces = list(conversation.answer(text))
        assert len(pieces) > 1
        talk.append({"role": "assistant", "content": "".join(pieces)})
        assert pipe(talk[:-1], **options)["output"] == talk[-1]["content"]
    assert [*conversation.before, *conversation.turns[0], *conversation.turns[1]] == talk


def test_commands_forget(conversation: Conversation) -> None:
    for text in ("one", "the pear", "a plum"):
        list(conversation.answer(text))
    assert conversation.command("/undo") == "(forgotten: a plum)"
    assert [turn[0]["content"] for turn in conversation.turns] == ["one", "the pear"]
    assert "forgotten" in conversation.command("/reset")
    assert conversation.turns == []
    assert conversation.command("/undo") == "(there is no turn to undo)"
    assert conversation.command("/undoo").startswith("(no command /undoo; /reset forgets")


def test_an_answer_that_is_stopped_is_kept(conversation: Conversation) -> None:
    pieces = conversation.answer("the pear")
    first = next(pieces)
    pieces.close()
    assert contents(conversation.turns[0]) == ["the pear", first]


def test_the_context_holds_the_last_whole_turns(
    conversation: Conversation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[dict[str, str]]] = []
    stream = conversation.pipe.stream

    def listened(messages: Any, **options: Any) -> Iterator[str]:
        given.append(messages)
        return stream(messages, **options)

    monkeypatch.setattr(conversation.pipe, "stream", listened)
    for number in range(4):
        list(conversation.answer(f"{number} " + "a pear " * 8))
    for messages in given:
        assert len(conversation.task.prompt_ids([messages])[0]) + 5 <= 200
        assert messages[0] == {"role": "system", "content": "apple"}
        assert [message["role"] for message in messages[1:3]] == (
            ["user", "assistant"] if len(messages) > 2 else ["user"]
        )
    assert contents(given[-1])[1].startswith("2 ")
    assert capsys.readouterr().err.splitlines() == [
        "(1 turn left out at the beginning: the context has 200 tokens)",
        "(2 turns left out at the beginning: the context has 200 tokens)",
    ]
    conversation.command("/undo")
    assert len(conversation.turns) == 3  # a turn that is left out is not forgotten


def test_without_a_template_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task in ("text-generation", "text-classification"):
        folder = saved(task, tmp_path / task)
        assert main(["chat", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(
            "has no chat template, so it takes no conversation; use heedful predict, or a model that "
            "was trained on messages"
        )


def test_wrong_options(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--system", " "], "--system is empty"),
        (["--temperature", "2", "--do-sample=false"], "temperature"),
    ):
        assert main(["chat", str(talker), *options]) == 2
        assert said in capsys.readouterr().err


def test_lines_of_a_pipe_are_answered(talker: Path) -> None:
    command = [sys.executable, "-m", "heedful", "chat", str(talker), "--max-new-tokens=5", "--do-sample=false"]
    done = subprocess.run(command, input=b"the pear\n\n/undo\nthe pear\n", capture_output=True, check=False)
    assert done.returncode == 0
    talk = [{"role": "user", "content": "the pear"}]
    answer = heedful.pipeline(None, talker)(talk, max_new_tokens=5, do_sample=False)["output"]
    assert done.stdout.decode() == f"{answer}\n" * 2
    assert done.stderr.decode() == "(forgotten: the pear)\n"


def test_lines_that_are_not_utf_8_are_refused(
    talker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    assert main(["chat", str(talker), "--max-new-tokens=5", "--do-sample=false"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "UTF-8" in err


class Terminal:
    """A process in a pseudo-terminal."""

    def __init__(self, *command: str) -> None:
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "dumb"
            os.execv(sys.executable, [sys.executable, "-m", "heedful", *command])
        self.text = ""

    def until(self, wanted: str, again: str = "") -> str:
        """Reads until a text has come; returns everything since the last call.

        ``again`` is sent each second meanwhile: Python misses a Ctrl-C that comes just before it waits for a key.
        """
        self._read(lambda: wanted in self.text, again)
        before, _, self.text = self.text.partition(wanted)
        return before

    def until_longer(self, characters: int) -> None:
        """Reads until more characters than these have come since what the last call waited for."""
        self._read(lambda: len(self.text) > characters)

    def _read(self, is_enough: Callable[[], bool], again: str = "") -> None:
        end = time.monotonic() + 60
        while not is_enough():
            assert time.monotonic() < end, self.text
            if not select.select([self.file], [], [], 1.0)[0]:
                self.send(again)
                continue
            try:
                self.text += os.read(self.file, 1 << 16).decode("utf-8", "replace")
            except OSError:  # the process has ended
                raise AssertionError(self.text) from None

    def send(self, text: str) -> None:
        os.write(self.file, text.encode())


def test_a_conversation_in_a_terminal(talker: Path) -> None:
    options = ["--max-new-tokens=100000", "--min-new-tokens=90000", "--seed=1"]
    terminal = Terminal("chat", str(talker), *options)
    try:
        assert "Ctrl-D ends. The context has 200 tokens." in terminal.until("> ")
        terminal.send("the pear\n")
        terminal.until("the pear")
        terminal.until_longer(100)
        os.kill(terminal.pid, signal.SIGINT)  # as Ctrl-C does, in the middle of an answer that would last minutes
        assert len(terminal.until("(stopped)").strip()) > 20
        terminal.until("> ")
        terminal.send("\x03")
        terminal.until("(Ctrl-D ends)", again="\x03")
        terminal.until("> ")
        terminal.send("/undo\n")
        terminal.until("(forgotten: the pear)")
        terminal.until("> ")
        terminal.send("/reset\n")
        terminal.until("(the conversation is forgotten)")
        terminal.until("> ")
        terminal.send("\x04")
        terminal.until("\n")
        assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    finally:
        os.close(terminal.file)


def test_generated_text_does_not_move_the_cursor() -> None:

    assert safe_in_terminals("a\n\tb\x1b[2J\r ") == "a\n\tb␛[2J␍ "


def test_a_template_that_refuses_the_messages_ends_no_conversation(conversation: Conversation) -> None:
    conversation.task.tokenizer.config["chat_template"] = "{{ raise_exception('no') }}"
    with pytest.raises(HeedfulError, match="refuses the messages"):
        list(conversation.answer("the pear"))
    assert conversation.turns == []
    conversation.task.tokenizer.config["chat_template"] = DEFAULT_TEMPLATE
    assert list(conversation.answer("the pear"))
