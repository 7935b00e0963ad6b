"""Shared parts of masked language modelling and span corruption: windows, word boundaries, the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from heedful.data import Rows
from heedful.data.token_stream import Stream, StreamWindow, StreamWindows, count_token, read_windows
from heedful.errors import HeedfulError, plural
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.tasks.conversations import prompt_and_target
from heedful.tasks.documents import joined_tokens, token_stream
from heedful.tasks.model_setup import special_id
from heedful.tasks.task import LINE, SAMPLES, LoggedSample, Task, short
from heedful.text import Tokenizer

SEED = 1  # of the masked tokens of an evaluation
CHUNK = 1 << 20  # tokens read at a time
SHUFFLED = 1 << 22  # maximum number of positions that are drawn by a permutation


def last_word_samples(task: Task, model: Model, rows: Rows) -> list[LoggedSample]:
    """Returns samples for a run's log: first words of the first ``rows``, the last word masked and predicted."""
    texts = [text for text in (short(prompt_and_target(row)[0]) for row in rows[:SAMPLES]) if len(text.split()) > 1]
    inputs = task.trial_inputs(texts)
    predictions = task.predict(model, inputs) if inputs else []
    return [
        {"input": value, "output": short(prediction.output, LINE), "target": text}
        for value, prediction, text in zip(inputs, predictions, texts, strict=True)
    ]


def trained_window(folder: Path, task: str) -> int | None:
    """Returns the window length, in tokens, with which a folder's model was trained for this task.

    Returns None if it was not trained for it.
    """
    card = read_card(folder)
    length: int | None = card.get("settings", {}).get("data", {}).get("max_length")
    return length if card.get("task") == task else None


def window_stream(
    tokenizer: Tokenizer, rows: Rows, room: int, added: int, ordinary: np.ndarray
) -> tuple[StreamWindows, str]:
    """Joins all rows to one stream of tokens, each closed by the end token; returns its windows, and a note for people.

    Args:
        tokenizer: tokenizer of the text.
        rows: the documents.
        room: number of tokens of a window, without special tokens.
        added: number of special tokens that are put around each window.
        ordinary: (V,) boolean, True for ids that can be masked.

    Raises:
        HeedfulError: a window has no room for text, or no token can be masked.
    """
    if room < 1:
        raise HeedfulError(
            f"--data.max-length {room + added} has no room for text and {plural(added, 'special token')}; raise it"
        )
    tokens, starts = token_stream(tokenizer, rows, [], [special_id(tokenizer.end)])
    if not any(ordinary[chunk].any() for _, chunk in chunks(tokens)):
        where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
        raise HeedfulError(f"no token can be masked{where}, so there is nothing to learn from; give more text")
    stream = Stream(tokens, min(room, len(tokens) - 1), starts)
    around = f"{added} special tokens around each" if added > 1 else "a special token after each"
    note = f"{plural(len(tokens), 'token')} in windows of {stream.context}, {around}"
    if isinstance(tokens, np.memmap):
        note += f", on disk in {tokens.filename} ({tokens.nbytes / 2**20:,.0f} MiB)"
    if unknown := count_token(tokens, tokenizer.unknown):
        note += f"; {unknown:,} of them not in the vocabulary and never masked"
    return StreamWindows(stream), note


def chunks(tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (start, tokens) for consecutive chunks of an array of tokens."""
    yield from ((start, np.asarray(tokens[start : start + CHUNK])) for start in range(0, len(tokens), CHUNK))


def window_lengths(examples: Sequence[StreamWindow]) -> np.ndarray:
    """Returns the number of tokens (N,) of each window."""
    if isinstance(examples, StreamWindows):
        return np.full(len(examples), examples.stream.context, dtype=np.int64)
    return np.array([window.stream.context for window in examples], dtype=np.int64)


def drawn_positions(examples: Sequence[StreamWindow], ordinary: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Draws ``most`` ordinary tokens of windows, always the same ones; all ordinary tokens if there are fewer.

    Returns the positions of the drawn tokens in the stream, in ascending order, and the number of all ordinary tokens.
    ``ordinary`` (V,) is True for ids that represent text.
    """
    stream, random = examples[0].stream, np.random.default_rng(SEED)
    is_example = np.ones(stream.windows, dtype=bool)
    if not isinstance(examples, StreamWindows):
        is_example[:] = False
        is_example[[window.number for window in examples]] = True

    def candidates() -> Iterator[np.ndarray]:
        for start, chunk in chunks(stream.tokens[: stream.windows * stream.context]):
            positions = start + np.flatnonzero(ordinary[chunk])
            yield positions[is_example[positions // stream.context]]

    counts = [len(positions) for positions in candidates()]
    total = sum(counts)
    if total <= SHUFFLED:
        chosen = random.permutation(total)[:most]
    else:
        chosen = random.choice(total, min(most, total), replace=False, shuffle=False)
    chosen.sort()
    firsts = np.cumsum([0, *counts])  # number of candidates before each chunk
    ends = np.searchsorted(chosen, firsts)
    drawn = [
        positions[chosen[begin:end] - first]
        for positions, begin, end, first in zip(candidates(), ends, ends[1:], firsts, strict=False)
    ]
    return np.concatenate(drawn), total


def window_ids(examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> list[np.ndarray]:
    """Returns the token ids of each window; in training (with ``random``) each window begins at a random position.

    The stream's last token is left out of the last window.
    """
    tokens, is_token, _ = (part[:, :-1] for part in read_windows(examples, random))
    stream = examples[0].stream
    if random is None:
        remaining = [len(stream.tokens) - 1 - window.number * stream.context for window in examples]
        is_token &= np.arange(stream.context) < np.array(remaining)[:, None]
    return [row[mask] for row, mask in zip(tokens, is_token, strict=True)]


def neighbors(stream: Stream, positions: np.ndarray, order: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the tokens (M,) at the offsets −2, −1, 1 and 2 from ``positions`` (M,) of a stream of N tokens.

    A token is −1 if it is in another window, or is not predicted before that at its position. ``order`` (N,) has the
    turn in which each token is predicted, 0 for tokens that are given.
    """
    last = len(stream.tokens) - 2  # the stream's last token is in no window

    def at(offset: int) -> np.ndarray:
        places = (positions + offset).clip(0, last)
        is_known = (places == positions + offset) & (places // stream.context == positions // stream.context)
        is_known &= order[places] < np.maximum(order[positions], 1)
        return np.where(is_known, np.asarray(stream.tokens[places], dtype=np.int64), -1)

    return {offset: at(offset) for offset in (-2, -1, 1, 2)}


def document_numbers(stream: Stream, positions: np.ndarray) -> np.ndarray:
    """Returns the number of the document at each of ``positions`` of the stream, from 0."""
    return np.searchsorted(stream.starts, positions, side="right") - 1


def frequency_metrics(tokenizer: Tokenizer, ordinary: np.ndarray, rows: Rows, learned: Rows) -> tuple[float, float]:
    """Returns the mean of −log p and the accuracy (percent) of a baseline on the tokens of ``rows``.

    It predicts each token by its frequency in the rows ``learned``, plus one. ``ordinary`` (V,) is True for ids that
    are counted.
    """
    known, own = (_counts(joined_tokens(tokenizer, part, [], []), len(ordinary)) for part in (learned, rows))
    counts, truth = (known + 1) * ordinary, own * ordinary
    p = counts / counts.sum()
    loss = float(-(truth[ordinary] * np.log(p[ordinary])).sum() / truth.sum())
    return loss, 100 * float(truth[p.argmax()] / truth.sum())


def frequency_sums(tokenizer: Tokenizer, ordinary: np.ndarray, stream: Stream, learned: Rows) -> np.ndarray:
    """Returns the sums of a baseline for each of N windows, (N, 3): Σ −log p, right predictions, tokens.

    The baseline predicts each token by its frequency in the rows ``learned``, plus one. ``ordinary`` (V,) is True for
    ids that are counted.
    """
    counts = (_counts(joined_tokens(tokenizer, learned, [], []), len(ordinary)) + 1) * ordinary
    p = counts / counts.sum()
    tokens = np.asarray(stream.tokens)
    positions = np.flatnonzero(ordinary[tokens])
    windows, tokens = positions // stream.context, tokens[positions]
    columns = [-np.log(p[tokens]), tokens == p.argmax(), np.ones(len(tokens))]
    size = stream.windows + 1  # with one for the tokens after the last window
    return np.stack([np.bincount(windows, column, size)[: stream.windows] for column in columns], axis=1)


def _counts(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Returns the count (V,) of each token."""
    return sum(
        (np.bincount(chunk, minlength=vocabulary) for _, chunk in chunks(tokens)), np.zeros(vocabulary, np.int64)
    )
