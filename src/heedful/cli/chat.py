"""``heedful chat``: a conversation with a language model in the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.arguments import check_model
from heedful.cli.parser import CompiledDecoding, Decoding, Device, Dtype
from heedful.errors import HeedfulError, plural
from heedful.generation.options import DecodingSettings
from heedful.util.escaping import pictured, safe_in_terminals

if TYPE_CHECKING:
    from heedful.inference.pipeline import Pipeline

HELP = "/reset forgets the conversation, /undo the last turn; Ctrl-C stops an answer, Ctrl-D ends"
COMMAND = re.compile(r"/[a-z]+")
Messages = list[dict[str, str]]


def chat(
    model: Annotated[str, Parameter(help="model folder with a chat template")],
    /,
    *,
    system: Annotated[str | None, Parameter(help="a system message before the conversation")] = None,
    device: Device = None,
    dtype: Dtype = None,
    compiled_decoding: CompiledDecoding = True,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Talk to a language model that was trained on conversations."""
    check_model(model)
    if system is not None and not system.strip():
        raise HeedfulError("--system is empty; give its text, or leave it out")
    import heedful

    pipe = heedful.pipeline(None, model, device=device, dtype=dtype, compiled_decoding=compiled_decoding)
    conversation = Conversation(pipe, model, decoding.given(), system)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (line editing and history for input)
        print(
            f"{HELP}. The context has {conversation.limit:,} tokens. Kernels: {pipe.model.kernels}.",
            file=sys.stderr,
            flush=True,
        )
    while (line := _read("> " if is_terminal else "")) is not None:
        try:
            _answer(conversation, line)
        except HeedfulError as error:
            if not is_terminal:
                raise
            print(f"heedful: {error}", file=sys.stderr, flush=True)


def _read(prompt: str) -> str | None:
    """Returns the next line of standard input; None at its end."""
    while True:
        try:
            return input(prompt)
        except EOFError:
            if prompt:
                print()
            return None
        except KeyboardInterrupt:
            if not prompt:
                raise
            print("\n(Ctrl-D ends)", file=sys.stderr, flush=True)
        except UnicodeDecodeError:
            raise HeedfulError("standard input is not UTF-8; convert it first") from None


def _answer(conversation: Conversation, line: str) -> None:
    """Carries out a command, or prints the answer to a message while it is generated."""
    if not line.strip():
        return
    if COMMAND.fullmatch(line.strip()):
        print(conversation.command(line.strip()), file=sys.stderr, flush=True)
        return
    if any("\ud800" <= letter <= "\udfff" for letter in line):  # bytes that are not UTF-8
        raise HeedfulError("the message is not UTF-8; set the terminal to UTF-8")
    with closing(conversation.answer(line)) as pieces:
        try:
            for piece in pieces:
                print(safe_in_terminals(piece), end="", flush=True)
        except KeyboardInterrupt:
            print(" (stopped)", end="", file=sys.stderr, flush=True)
    print(flush=True)


class Conversation:
    """A conversation with a model; the context holds its last turns.

    Args:
        pipe: the model with its task.
        name: the model's name in messages.
        options: decoding options.
        system: text of a system message before all turns; None for none.

    Raises:
        HeedfulError: the model has no chat template, or an option has no effect.
    """

    def __init__(
        self, pipe: Pipeline, name: str, options: Mapping[str, Any] | None = None, system: str | None = None
    ) -> None:
        from heedful.tasks.task import Continues

        if not isinstance(pipe.task, Continues) or not pipe.task.tokenizer.config.get("chat_template"):
            raise HeedfulError(
                f"{name} has no chat template, so it takes no conversation; use heedful predict, or a model that was "
                "trained on messages"
            )
        self.pipe, self.task, self.options = pipe, pipe.task, dict(options or {})
        resolved = pipe.resolve(self.options)["decoding"]
        self.limit = pipe.task.limit(pipe.model)
        self.room = min(resolved.max_new_tokens or 0, self.limit // 2)  # tokens that are kept free for an answer
        self.before: Messages = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[Messages] = []
        self.left_out = 0  # turns that the context has no room for

    def command(self, name: str) -> str:
        """Carries out a command, and returns a line that says what happened."""
        if name == "/reset":
            self.turns, self.left_out = [], 0
            return "(the conversation is forgotten)"
        if name == "/undo":
            if not self.turns:
                return "(there is no turn to undo)"
            return f"(forgotten: {pictured(self.turns.pop()[0]['content'])})"
        return f"(no command {name}; {HELP})"

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yields the answer to a message in pieces; the turn is kept, also if it is closed before its end."""
        turn = [{"role": "user", "content": text}]
        messages = self._fitted(turn)
        answer = ""
        pieces = self.pipe.stream(messages, **self.options)
        try:
            for piece in pieces:
                answer += piece
                yield piece
        finally:
            if answer:
                self.turns.append([*turn, {"role": "assistant", "content": answer}])

    def _fitted(self, turn: Messages) -> Messages:
        """Returns the messages of the last whole turns that leave room for an answer, and prints if turns are left out.

        The last turn stays in any case; the pipeline then warns that its beginning is not read.
        """
        from heedful.text.chat_template import last_turns

        def fits(messages: Messages) -> bool:
            return len(self.task.prompt_ids([messages])[0]) + self.room <= self.limit

        messages = [*self.before, *(message for other in self.turns for message in other), *turn]
        fitted = last_turns(messages, fits)
        first = (len(messages) - len(fitted)) // 2  # a turn that is over has two messages
        if first > self.left_out:
            said = f"({plural(first, 'turn')} left out at the beginning: the context has {self.limit:,} tokens)"
            print(said, file=sys.stderr, flush=True)
        self.left_out = first
        return fitted
