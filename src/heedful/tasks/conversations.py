"""Instructions and conversations for a language model, which reads the prompts and learns the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.data import Row, Rows
from heedful.errors import HeedfulError, plural
from heedful.models import Model
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


def instruction_texts(row: Row) -> list[str]:
    """Returns the texts of a row: the prompt and the completion of an instruction, or all messages with their roles."""
    if "messages" in row.values:
        return [f"{message['role']}:\n{message['content']}\n" for message in row.values["messages"]]
    return [row.values["prompt"], row.values["completion"]]


def prompt_and_target(row: Row) -> tuple[Any, str | None]:
    """Returns (prompt, target) of a row, for a sample in a run's log.

    The prompt of a conversation is all messages before the last one. The prompt of a document is its first words, and
    its target is None.
    """
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
    needed = any("messages" in row.values for row in rows) and "chat_template" not in tokenizer.config
    if needed:
        chat_template.set_template(tokenizer, "plain")
    return needed


def encode_instructions(tokenizer: Tokenizer, rows: Rows, begins: Sequence[int], end: int, most: int) -> Encoded:
    """Encodes each row as one example. Rows of more than ``most`` tokens are left out and counted in the note.

    An instruction becomes begin tokens, prompt, completion and end token; completion and end token are learned.
    Messages are written with the chat template, and the assistant's messages are learned
    (``heedful.text.chat_template.render_conversation``).

    Args:
        tokenizer: tokenizer of the model, with a chat template if rows have messages.
        rows: instructions and conversations.
        begins: ids of the begin tokens of an instruction.
        end: id of the end token.
        most: maximum number of tokens of an example.

    Raises:
        HeedfulError: no example fits, or a conversation cannot be written with the template.
    """
    fitting, left_out, examples = Rows([], rows.skipped, rows.columns), Rows(), []
    for row, example in zip(rows, _examples(tokenizer, rows, begins, end), strict=True):
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


def _examples(tokenizer: Tokenizer, rows: Rows, begins: Sequence[int], end: int) -> Iterator[InstructionExample]:
    for row in rows:
        if "messages" in row.values:
            yield _conversation(tokenizer, row)
            continue
        prompt, answer = tokenizer.encode(instruction_texts(row))
        before = [*begins, *prompt]
        yield InstructionExample(
            [*before, *answer, end],
            [False] * len(before) + [True] * (len(answer) + 1),
            len(row.values["completion"].encode("utf-8", "surrogatepass")),
        )


def _conversation(tokenizer: Tokenizer, row: Row) -> InstructionExample:
    try:
        parts = chat_template.render_conversation(tokenizer, row.values["messages"])
    except HeedfulError as error:
        raise HeedfulError(f"{row.file}:{row.line}: {error}") from None
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
