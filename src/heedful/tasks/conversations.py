"""Instructions and conversations for a language model, which reads the prompts and learns the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.data import Row, Rows
from heedful.data.preferences import ANSWERS, Turns, turn_texts
from heedful.errors import HeedfulError, plural
from heedful.models import Model
from heedful.pretrained.configuration import home
from heedful.tasks.model_setup import tokenizer_of
from heedful.tasks.task import Batch, Encoded, arrow_joined
from heedful.tasks.token_batches import IGNORED, padded
from heedful.text import Tokenizer, chat_template

LONGEST = 256  # default maximum number of tokens of an example
OPENING = 40  # characters of a document in a sample of a run's log


class InstructionExample(NamedTuple):
    """Token ids of an instruction or a conversation, with the tokens that are learned."""

    ids: list[int]
    learned: list[bool]  # True for each token of an answer
    answer_bytes: int  # number of bytes of the answers in UTF-8


def are_instructions(rows: Sequence[Row]) -> bool:
    """Returns True if the rows are instructions or conversations, False if they are documents.

    Raises ``HeedfulError`` if the data has both.
    """
    flags = ["text" not in row.values for row in rows]
    if any(flags) and not all(flags):
        other = rows[flags.index(not flags[0])]
        raise HeedfulError(
            f"{other.file}:{other.line}: documents and instructions are mixed in one data set; give only one kind"
        )
    return any(flags)


def is_conversation(row: Row) -> bool:
    """Returns True for a row of messages: a conversation, or a preference whose prompt has messages."""
    return "messages" in row.values or isinstance(row.values.get("prompt"), tuple)


def instruction_texts(row: Row) -> list[str]:
    """Returns the texts of a row: the prompt and the completion of an instruction, or all messages with their roles.

    Of a preference these are the prompt and both answers.
    """
    names = [name for name in ("messages", "prompt", "completion", *ANSWERS) if name in row.values]
    return [text for name in names for text in _turn_texts(row.values[name])]


def _turn_texts(turns: Turns) -> list[str]:
    if isinstance(turns, str):
        return [turns]
    return [f"{message['role']}:\n{message['content']}\n" for message in turns]


def prompt_and_target(row: Row) -> tuple[Any, str | None]:
    """Returns (prompt, target) of a row, for a sample in a run's log.

    The prompt of a conversation is all messages before the last one, and the target of a preference is the chosen
    answer. The prompt of a document is its first words, and its target is None.
    """
    if "chosen" in row.values:
        return row.values["prompt"], turn_texts(row.values["chosen"])[-1]
    if "messages" in row.values:
        *earlier, last = row.values["messages"]
        return earlier, last["content"]
    if "prompt" in row.values:
        return row.values["prompt"], row.values["completion"]
    first = row.values["text"][:OPENING]
    return first.rpartition(" ")[0] or first, None


def instruction_line(row: Row) -> str:
    """Returns an instruction or a conversation as one short line for people."""
    if "messages" in row.values:
        return arrow_joined([message["content"] for message in row.values["messages"]])
    return arrow_joined(instruction_texts(row))


def add_default_template(tokenizer: Tokenizer, rows: Sequence[Row]) -> bool:
    """Gives a tokenizer without a chat template the default one, if the rows have messages; returns True if it did.

    From then on, the tokenizer encodes an end token in a text, as the template writes it, as one special token.
    """
    needed = any(map(is_conversation, rows)) and "chat_template" not in tokenizer.config
    if needed:
        chat_template.set_template(tokenizer, "plain")
    return needed


def tokenizer_with_template(folder: Path) -> Tokenizer:
    """Loads the tokenizer of a model's folder, with the chat template of the folder or of its base model."""
    tokenizer = tokenizer_of(folder)
    template = chat_template.read_template(folder)
    if template is None and not (Tokenizer.has_files(folder) and "chat_template" in tokenizer.config):
        template = chat_template.read_template(home(folder))
    if template:
        tokenizer.config["chat_template"] = template
    return tokenizer


def encode_instructions(tokenizer: Tokenizer, rows: Rows, before: Sequence[int], end: int, most: int) -> Encoded:
    """Encodes each row as one example. Rows of more than ``most`` tokens are left out and counted in the note.

    An instruction becomes prompt, completion and end token, after the tokens that the tokenizer puts before a text, as
    the prompts of ``predict`` do; completion and end token are learned.
    Messages are written with the chat template, and the assistant's messages are learned
    (``heedful.text.chat_template.render_conversation``).

    Args:
        tokenizer: tokenizer of the model, with a chat template if rows have messages.
        rows: instructions and conversations.
        before: ids of the tokens that the tokenizer puts before a text; of many tokenizers there are none.
        end: id of the end token.
        most: maximum number of tokens of an example.

    Raises:
        HeedfulError: no example fits, or a conversation cannot be written with the template.
    """
    fitting, left_out, examples = Rows([], rows.skipped, rows.columns), Rows(), []
    for row, example in zip(rows, _examples(tokenizer, rows, before, end), strict=True):
        if len(example.ids) - 1 <= most:
            fitting.append(row)
            examples.append(example)
        else:
            left_out.append(row)
    if not examples:
        raise HeedfulError(
            f"every example is longer than {plural(most, 'token')}, in {rows[0].file}; raise --data.max-length, or "
            "give shorter examples"
        )
    learned_count = sum(sum(example.learned) for example in examples)
    note = f"{plural(learned_count, 'token')} of answers are learned, the tokens of prompts are not"
    note += f"; {plural(len(left_out))} longer than {most} tokens left out" if left_out else ""
    return Encoded(examples, fitting, note, len(left_out), left_out)


def _examples(tokenizer: Tokenizer, rows: Rows, before: Sequence[int], end: int) -> Iterator[InstructionExample]:
    for row in rows:
        if "messages" in row.values:
            yield _conversation(tokenizer, row, rendered_conversation(tokenizer, row, row.values["messages"]))
        else:
            yield _instruction(tokenizer, row.values["prompt"], row.values["completion"], before, end)


def encode_answer(
    tokenizer: Tokenizer, row: Row, prompt: Turns, answer: Turns, before: Sequence[int], end: int
) -> InstructionExample:
    """Encodes one answer to a prompt, two texts or two lists of messages, as ``encode_instructions`` does.

    Of messages only those of the answer are learned, not the assistant's messages in the prompt.

    Raises:
        HeedfulError: the conversation cannot be written with the template; the message names the ``row``.
    """
    if isinstance(prompt, str) and isinstance(answer, str):
        return _instruction(tokenizer, prompt, answer, before, end)
    return _conversation(tokenizer, row, answer_parts(tokenizer, row, prompt, answer))


def answer_parts(tokenizer: Tokenizer, row: Row | None, prompt: Turns, answer: Turns) -> list[tuple[str, bool]]:
    """Returns the rendered parts of a conversation, (text, True if it is the assistant's and of the answer).

    An error names the ``row``, if there is one.
    """
    messages = [message for turns in (prompt, answer) if not isinstance(turns, str) for message in turns]
    parts = rendered_conversation(tokenizer, row, messages)
    own = sum(message["role"] == "assistant" for message in answer if not isinstance(message, str))
    answers = [number for number, (_, is_answer) in enumerate(parts) if is_answer][-own:]
    return [(text, number in answers) for number, (text, _) in enumerate(parts)]


def rendered_conversation(tokenizer: Tokenizer, row: Row | None, messages: Sequence[Any]) -> list[tuple[str, bool]]:
    """Returns ``chat_template.render_conversation``; an error names the ``row``, if there is one."""
    try:
        return chat_template.render_conversation(tokenizer, messages)
    except HeedfulError as error:
        raise HeedfulError(f"{row.file}:{row.line}: {error}" if row else str(error)) from None


def _instruction(tokenizer: Tokenizer, prompt: str, answer: str, before: Sequence[int], end: int) -> InstructionExample:
    prompt_ids, answer_ids = tokenizer.encode([prompt, answer])
    read = [*before, *prompt_ids] or [end]
    return InstructionExample(
        [*read, *answer_ids, end],
        [False] * len(read) + [True] * (len(answer_ids) + 1),
        len(answer.encode("utf-8", "surrogatepass")),
    )


def _conversation(tokenizer: Tokenizer, row: Row, parts: Sequence[tuple[str, bool]]) -> InstructionExample:
    ends = np.cumsum([len(text) for text, _ in parts])
    spans = [(int(end) - len(text), int(end)) for (text, is_answer), end in zip(parts, ends, strict=True) if is_answer]
    ((ids, offsets),) = tokenizer.encode_with_offsets(["".join(text for text, _ in parts)])
    learned = [any(first < until and last > begin for begin, until in spans) for first, last in offsets]
    if not any(learned[1:]):
        raise HeedfulError(
            f"{row.file}:{row.line}: the chat template writes no token of the assistant, so nothing can be learned; "
            "check the template"
        )
    answer_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text, is_answer in parts if is_answer)
    return InstructionExample(ids, learned, answer_bytes)


def collate_instructions(examples: Sequence[InstructionExample], padding: int) -> dict[str, Tensor]:
    """Returns a batch: ``ids`` (B, T), and ``labels`` (B, T), the next token where it is learned, else ``IGNORED``.

    Padding is at the end, where the causal mask hides it.
    """
    labels = [
        [token if learned else IGNORED for token, learned in zip(example.ids[1:], example.learned[1:], strict=True)]
        for example in examples
    ]
    return {"ids": padded([example.ids[:-1] for example in examples], padding), "labels": padded(labels, IGNORED)}


def answer_losses(model: Model, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns Σ −log p over each example's learned tokens, and the number of these tokens, two arrays (B,)."""
    labels = batch["labels"]
    losses = F.cross_entropy(
        model(batch["ids"]).flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    total: Tensor = losses.view(labels.shape).sum(1)
    return total.cpu().double().numpy(), (labels != IGNORED).sum(1).cpu().numpy()
