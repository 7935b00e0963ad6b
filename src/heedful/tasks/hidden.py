"""What both ways of hiding parts of a text do alike: its windows, whose each token is, the simple method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heedful.checkpoints import read_card
from heedful.data import Rows
from heedful.data.windows import Stream, Window, read
from heedful.errors import HeedfulError, many
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.documents import joined, located
from heedful.tasks.encoders import LONGEST
from heedful.tasks.shared import special_id
from heedful.text import Tokenizer


class Size(NamedTuple):
    """What a number of characters suggests."""

    preset: str
    vocabulary: int
    epochs: int
    window: int  # tokens


# below so many characters: this. A model that sees little text must see each pair of places, and each token, often:
# otherwise it stays for long at the tokens' frequencies (stdlib: 1,000 steps of 128 places and 8,000 tokens end there).
SIZES: tuple[tuple[float, Size], ...] = (
    (500_000, Size("bert-tiny", 1000, 20, 32)),
    (20_000_000, Size("bert-tiny", 1000, 1, 32)),
    (200_000_000, Size("bert-mini", 16_000, 2, LONGEST)),
    (float("inf"), Size("bert-mini", 30_000, 1, LONGEST)),
)
A_TOKEN = 4  # characters, about
SEED = 1  # of what is hidden in an evaluation


def beginning(characters: int, asked: RunSettings, lr: float = 1e-3) -> RunSettings:
    """How a model learns from nothing, by the length of the text."""
    size = next(size for most, size in SIZES if characters < most)
    tokens = 1024
    steps = asked.max_steps or size.epochs * max(1, characters // (A_TOKEN * tokens))
    return replace(
        asked,
        preset=None if asked.start_from else asked.preset or size.preset,
        max_epochs=size.epochs,
        data=DataSettings(max_length=asked.data.max_length or size.window),
        tokenizer=TokenizerSettings(kind="bpe", size=size.vocabulary),
        model=ModelSettings(dropout=None if asked.preset else 0.0),
        training=TrainingSettings(
            lr=lr,
            schedule="linear",
            warmup=min(200, steps // 10 + 1),
            batch_tokens=tokens,
            accumulate=1,
            label_smoothing=0.0,
            clip=1.0,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            eps=1e-6,
            average=0.05,
            patience=10,
            log_every=50,
        ),
    )


def window_of(folder: Path, task: str) -> int | None:
    """The tokens of a window that a folder's model was trained with for this task; None where it does not say."""
    card = read_card(folder)
    length: int | None = card.get("settings", {}).get("data", {}).get("max_length")
    return length if card.get("task") == task else None


def cut_up(tokenizer: Tokenizer, rows: Rows, room: int, added: int, ordinary: np.ndarray) -> tuple[list[Window], str]:
    """All rows as one stream of tokens, the end token after each, in windows of ``room`` of them, and what is to be
    said of it. ``added`` tokens stand around each; ``ordinary`` (V,) ids can be hidden.
    """
    if room < 1:
        raise HeedfulError(
            f"{many(room + added, 'token')} cannot hold a text and the {many(added, 'special one')} around it; raise "
            "--data.max-length"
        )
    tokens, starts = located(tokenizer, rows, [], [special_id(tokenizer.end)])
    if not ordinary[tokens].any():
        where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
        raise HeedfulError(f"no token that can be hidden{where}: nothing to learn from; give more text")
    stream = Stream(tokens, min(room, len(tokens) - 1), starts)
    around = f"{added} special ones around each" if added > 1 else "a special one after each"
    note = f"{many(len(tokens), 'token')} in windows of {stream.context}, {around}"
    unknown = int((tokens == tokenizer.unknown).sum()) if tokenizer.unknown is not None else 0
    if unknown:
        note += f"; {unknown:,} of them unknown to the vocabulary, never hidden"
    return [Window(stream, place) for place in range(stream.windows)], note


def texts_of(examples: Sequence[Window], random: np.random.Generator | None = None) -> list[np.ndarray]:
    """The ids of each window, with ``random`` from elsewhere each time; what closes the last document of all closes the
    window, too, and is left out.
    """
    tokens, there, _ = (part[:, :-1] for part in read(examples, random))
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
    seen, asked = (np.bincount(joined(tokenizer, part, [], []), minlength=len(ordinary)) for part in (learned, rows))
    counts, truth = (seen + 1) * ordinary, asked * ordinary
    p = counts / counts.sum()
    loss = float(-(truth[ordinary] * np.log(p[ordinary])).sum() / truth.sum())
    return loss, 100 * float(truth[p.argmax()] / truth.sum())
