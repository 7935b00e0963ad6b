"""Instructions and conversations for a language model: what is asked is read, what is answered is learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.data import Row, Rows
from heedful.errors import HeedfulError, many
from heedful.models import Model
from heedful.tasks.task import Batch, Encoded, arrow_joined
from heedful.tasks.token_batches import IGNORED, padded
from heedful.text import Tokenizer, chat_template

LONGEST = 256  # tokens of an example, where nobody says
OPENING = 40  # characters of a document that it is begun with


class Talk(NamedTuple):
    """One example: its ids, which of them are learned, and the bytes of text that these stand for."""

    ids: list[int]
    learned: list[bool]
    size: int


def are_talks(rows: Sequence[Row]) -> bool:
    """Returns True if rows hold instructions, not documents; both is an error."""
    talks = ["text" not in row.values for row in rows]
    if any(talks) and not all(talks):
        odd = rows[talks.index(not talks[0])]
        raise HeedfulError(f"documents and instructions in one set, in {odd.file}:{odd.line}; give one kind of data")
    return any(talks)


def words_of(row: Row) -> list[str]:
    """The texts of an instruction, or of a conversation with the words that the plain template puts before each."""
    if "messages" in row.values:
        return [f"{message['role']}:\n{message['content']}\n" for message in row.values["messages"]]
    return [row.values["prompt"], row.values["completion"]]


def opening(row: Row) -> tuple[Any, str | None]:
    """What a model may be asked to show what it has learned of a row, and what it should say: the first words of a
    document, which has no answer; a prompt; the messages before the last.
    """
    if "messages" in row.values:
        *before, last = row.values["messages"]
        return before, last["content"]
    if "prompt" in row.values:
        return row.values["prompt"], row.values["completion"]
    first = row.values["text"][:OPENING]
    return first.rpartition(" ")[0] or first, None


def told(row: Row) -> str:
    """An example as one short line for a person."""
    if "messages" in row.values:
        return arrow_joined([message["content"] for message in row.values["messages"]])
    return arrow_joined(words_of(row))


def with_template(tokenizer: Tokenizer, rows: Sequence[Row]) -> bool:
    """Give a tokenizer that is to read conversations the plain template, in which its end token is written out; whether
    it needed one.
    """
    needed = any("messages" in row.values for row in rows) and "chat_template" not in tokenizer.config
    if needed:
        tokenizer.config |= {"chat_template": chat_template.DEFAULT_TEMPLATE, "split_special_tokens": False}
        tokenizer.backend.encode_special_tokens = False
    return needed


def encoded(tokenizer: Tokenizer, rows: Rows, begins: Sequence[int], end: int, most: int) -> Encoded:
    """Each row as one example, whole; those of more than ``most`` tokens are left out, and the note says so.

    Of a prompt and its completion these stand one after the other as they are written, after what begins a text, and
    before the end token; the completion and the end token are learned. Of messages the words of the chat template, in
    which the assistant's are learned (``heedful.text.chat_template.render_conversation``).
    """
    kept, out, examples = Rows([], rows.skipped, rows.columns), Rows(), []
    for row, talk in zip(rows, _talks(tokenizer, rows, begins, end), strict=True):
        if len(talk.ids) - 1 <= most:
            kept.append(row)
            examples.append(talk)
        else:
            out.append(row)
    if not examples:
        raise HeedfulError(
            f"every example is longer than {many(most, 'token')}, in {rows[0].file}; raise --data.max-length, or give "
            "shorter ones"
        )
    note = f"{many(sum(sum(talk.learned) for talk in examples), 'token')} of answers learned, what is asked is read"
    note += f"; {many(len(out))} longer than {most} tokens left out" if out else ""
    return Encoded(examples, kept, note, len(out), out)


def _talks(tokenizer: Tokenizer, rows: Rows, begins: Sequence[int], end: int) -> Iterator[Talk]:
    for row in rows:
        if "messages" in row.values:
            yield _conversation(tokenizer, row)
            continue
        asked, answered = tokenizer.encode(words_of(row))
        before = [*begins, *asked]
        yield Talk(
            [*before, *answered, end],
            [False] * len(before) + [True] * (len(answered) + 1),
            len(row.values["completion"].encode("utf-8", "surrogatepass")),
        )


def _conversation(tokenizer: Tokenizer, row: Row) -> Talk:
    try:
        parts = chat_template.render_conversation(tokenizer, row.values["messages"])
    except HeedfulError as error:
        raise HeedfulError(f"{row.file}:{row.line}: {error}") from None
    ends = np.cumsum([len(text) for text, _ in parts])
    spans = [(int(end) - len(text), int(end)) for (text, said), end in zip(parts, ends, strict=True) if said]
    ((ids, offsets),) = tokenizer.offsets(["".join(text for text, _ in parts)])
    learned = [any(first < until and last > begin for begin, until in spans) for first, last in offsets]
    if not any(learned[1:]):
        raise HeedfulError(f"{row.file}:{row.line}: no token of the assistant's is left to learn; look at the template")
    return Talk(ids, learned, sum(len(text.encode("utf-8", "surrogatepass")) for text, said in parts if said))


def collated(examples: Sequence[Talk], padding: int) -> dict[str, Tensor]:
    """``ids`` (B, T) and ``labels``, the token after each where that one is learned. Padding comes last, where no real
    token sees it.
    """
    labels = [
        [token if learned else IGNORED for token, learned in zip(talk.ids[1:], talk.learned[1:], strict=True)]
        for talk in examples
    ]
    return {"ids": padded([talk.ids[:-1] for talk in examples], padding), "labels": padded(labels, IGNORED)}


def answered(model: Model, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Σ −log p of each example's learned tokens, and how many there are, (B,) each."""
    labels = batch["labels"]
    losses = F.cross_entropy(
        model(batch["ids"]).flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    total: Tensor = losses.view(labels.shape).sum(1)
    return total.double().cpu().numpy(), (labels != IGNORED).sum(1).cpu().numpy()
