"""Shared parts of masked language modelling and span corruption: windows, word boundaries, the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from heedful.data import Rows
from heedful.data.token_stream import Stream, StreamWindow, StreamWindows, count_token, read_windows
from heedful.errors import HeedfulError, many
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.tasks.conversations import opening
from heedful.tasks.documents import joined, located
from heedful.tasks.model_setup import special_id
from heedful.tasks.task import LINE, SAMPLES, LoggedSample, Task, short
from heedful.text import Tokenizer

SEED = 1  # of what is hidden in an evaluation
PART = 1 << 20  # tokens looked at together
SHUFFLED = 1 << 22  # places of tokens that are drawn from by shuffling them


def last_words(task: Task, model: Model, rows: Rows) -> list[LoggedSample]:
    """The first words of the first of ``rows``, and what the model puts in the place of the last of them."""
    texts = [text for text in (short(opening(row)[0]) for row in rows[:SAMPLES]) if len(text.split()) > 1]
    asked = task.trial_inputs(texts)
    answers = task.predict(model, asked) if asked else []
    told = zip(asked, answers, texts, strict=True)
    return [{"input": ask, "output": short(answer.output, LINE), "target": text} for ask, answer, text in told]


def window_of(folder: Path, task: str) -> int | None:
    """The tokens of a window that a folder's model was trained with for this task; None where it does not say."""
    card = read_card(folder)
    length: int | None = card.get("settings", {}).get("data", {}).get("max_length")
    return length if card.get("task") == task else None


def cut_up(tokenizer: Tokenizer, rows: Rows, room: int, added: int, ordinary: np.ndarray) -> tuple[StreamWindows, str]:
    """All rows as one stream of tokens, the end token after each, in windows of ``room`` of them, and what is to be
    said of it. ``added`` tokens stand around each; ``ordinary`` (V,) ids can be hidden.
    """
    if room < 1:
        raise HeedfulError(
            f"{many(room + added, 'token')} cannot hold a text and the {many(added, 'special one')} around it; raise "
            "--data.max-length"
        )
    tokens, starts = located(tokenizer, rows, [], [special_id(tokenizer.end)])
    if not any(ordinary[part].any() for _, part in parts(tokens)):
        where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
        raise HeedfulError(f"no token that can be hidden{where}: nothing to learn from; give more text")
    stream = Stream(tokens, min(room, len(tokens) - 1), starts)
    around = f"{added} special ones around each" if added > 1 else "a special one after each"
    note = f"{many(len(tokens), 'token')} in windows of {stream.context}, {around}"
    if isinstance(tokens, np.memmap):
        note += f", on disk in {tokens.filename} ({tokens.nbytes / 2**20:,.0f} MiB)"
    if unknown := count_token(tokens, tokenizer.unknown):
        note += f"; {unknown:,} of them unknown to the vocabulary, never hidden"
    return StreamWindows(stream), note


def parts(tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """A stream a part at a time, each with the place that it begins at."""
    yield from ((place, np.asarray(tokens[place : place + PART])) for place in range(0, len(tokens), PART))


def contexts(examples: Sequence[StreamWindow]) -> np.ndarray:
    """(N,): the tokens of each window."""
    if isinstance(examples, StreamWindows):
        return np.full(len(examples), examples.stream.context, dtype=np.int64)
    return np.array([window.stream.context for window in examples], dtype=np.int64)


def drawn(examples: Sequence[StreamWindow], ordinary: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """The places in the stream of ``most`` ordinary tokens of its windows ``examples``, or of all where there are no
    more, in order and always the same; and how many there are.
    """
    stream, random = examples[0].stream, np.random.default_rng(SEED)
    asked = np.ones(stream.windows, dtype=bool)
    if not isinstance(examples, StreamWindows):
        asked[:] = False
        asked[[window.place for window in examples]] = True

    def there() -> Iterator[np.ndarray]:
        for place, part in parts(stream.tokens[: stream.windows * stream.context]):
            found = place + np.flatnonzero(ordinary[part])
            yield found[asked[found // stream.context]]

    counts = [len(found) for found in there()]
    total = sum(counts)
    if total <= SHUFFLED:
        chosen = random.permutation(total)[:most]
    else:
        chosen = random.choice(total, min(most, total), replace=False, shuffle=False)
    chosen.sort()
    ends = np.searchsorted(chosen, np.cumsum([0, *counts]))
    taken = [
        found[chosen[begin:end] - first]
        for found, begin, end, first in zip(there(), ends, ends[1:], np.cumsum([0, *counts]), strict=False)
    ]
    return np.concatenate(taken), total


def texts_of(examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> list[np.ndarray]:
    """The ids of each window, with ``random`` from elsewhere each time; what closes the last document of all closes the
    window, too, and is left out.
    """
    tokens, there, _ = (part[:, :-1] for part in read_windows(examples, random))
    stream = examples[0].stream
    if random is None:
        lefts = [len(stream.tokens) - 1 - window.place * stream.context for window in examples]
        there &= np.arange(stream.context) < np.array(lefts)[:, None]
    return [row[real] for row, real in zip(tokens, there, strict=True)]


def documents_of(stream: Stream, places: np.ndarray) -> np.ndarray:
    """Which document each of these tokens is of."""
    return np.searchsorted(stream.starts, places, side="right") - 1


def frequencies(tokenizer: Tokenizer, ordinary: np.ndarray, rows: Rows, learned: Rows) -> tuple[float, float]:
    """Mean −log p and percent right where each token of ``rows`` is guessed by its frequency in ``learned``, one added
    to every count, whatever stands around it.
    """
    seen, asked = (_counts(joined(tokenizer, part, [], []), len(ordinary)) for part in (learned, rows))
    counts, truth = (seen + 1) * ordinary, asked * ordinary
    p = counts / counts.sum()
    loss = float(-(truth[ordinary] * np.log(p[ordinary])).sum() / truth.sum())
    return loss, 100 * float(truth[p.argmax()] / truth.sum())


def window_frequencies(tokenizer: Tokenizer, ordinary: np.ndarray, stream: Stream, learned: Rows) -> np.ndarray:
    """As ``frequencies``, of each window of a stream: Σ −log p, how many are right, and how many there are, (N, 3)."""
    counts = (_counts(joined(tokenizer, learned, [], []), len(ordinary)) + 1) * ordinary
    p = counts / counts.sum()
    tokens = np.asarray(stream.tokens)
    kept = np.flatnonzero(ordinary[tokens])
    windows, tokens = kept // stream.context, tokens[kept]
    columns = [-np.log(p[tokens]), tokens == p.argmax(), np.ones(len(tokens))]
    size = stream.windows + 1  # what is left over has a window of its own
    return np.stack([np.bincount(windows, column, size)[: stream.windows] for column in columns], axis=1)


def _counts(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """(V,): how often each token stands among them."""
    return sum((np.bincount(part, minlength=vocabulary) for _, part in parts(tokens)), np.zeros(vocabulary, np.int64))
