"""Distillation: a text classifier that learns the probabilities of another one, its teacher (Hinton et al. 2015).

The teacher labels the training texts, and texts made up from them, so that the model sees many more texts than there
are (Tang et al. 2019, "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks", section 4):

- words replaced by words of all texts, with probability 0.1, 0.2 or 0.4 (4 of 10 texts);
- the beginning of a text with the end of another, and a tenth of the words replaced (3 of 10);
- a part of a text (2 of 10);
- words left out with probability 0.3 (1 of 10).

They are made up and labelled once, before the first step; in training each text comes with some of its own, drawn anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.config import EncoderConfig
from heedful.data.batching import evaluation_batches
from heedful.errors import HeedfulError
from heedful.heads import SequenceClassifier
from heedful.layers.attention import Attention
from heedful.models import Encoder, Model
from heedful.models.base import device_of
from heedful.pretrained import load, read_card
from heedful.pretrained.folder import find
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.text_pairs import EncodedPair
from heedful.util.ranks import own_device
from heedful.util.to_device import to_device

TEACHER_FOLDER = "teacher"  # in a run folder: the teacher that the run trained first
REPLACED, DROPPED, SPLICED = (0.1, 0.2, 0.4), 0.3, 0.1  # shares of the words
KINDS = (0.4, 0.3, 0.2, 0.1)  # shares of the kinds of texts, in the order above
BATCH_TOKENS = 4096  # of the teacher
MEAN_SCALE = 3.0  # of the mean of the tokens beside the class token
WORD = re.compile(r"(\w+|[^\w\s])(\s*)")


class Teacher:
    """A trained text classifier that gives the targets of another one.

    Args:
        task: the teacher's task.
        model: the teacher.
        labels: the labels of the model that learns, in the order of its outputs.
        made_up: number of texts made up from each training text.
        temperature: divisor of the teacher's logits.

    Raises:
        HeedfulError: the teacher has other labels.
    """

    def __init__(
        self, task: Any, model: Model, labels: Sequence[str], made_up: int = 0, temperature: float = 1.0
    ) -> None:
        if sorted(task.labels) != sorted(labels):
            ours, theirs = ({*labels} - {*task.labels}, {*task.labels} - {*labels})
            found = f"does not know the label {min(ours)!r}" if ours else f"has the label {min(theirs)!r} besides"
            raise HeedfulError(f"the teacher {found}; give one with the labels of the training data")
        self.task, self.model = task, model.eval().requires_grad_(False)
        self.made_up, self.temperature = made_up, temperature
        self._order = [task.labels.index(label) for label in labels]

    @torch.no_grad()
    def probabilities(self, texts: Sequence[tuple[str, ...]]) -> Tensor:
        """Returns the probabilities (N, labels), on the CPU, of texts or pairs: softmax of the logits over the
        temperature, or with several labels a text the sigmoid.
        """
        examples, _ = self.task.examples(texts, [()] * len(texts), self.task.longest)
        result = torch.zeros(len(texts), len(self._order))
        for indices in evaluation_batches(self.task.lengths(examples), BATCH_TOKENS):
            batch = to_device(self.task.collate([examples[i] for i in indices]), self.model.device)
            p = self.task.probabilities(self.task.logits(self.model, batch) / self.temperature)
            result[torch.from_numpy(indices)] = p[:, self._order].cpu()
        return result

    def made_up_texts(self, texts: Sequence[tuple[str, ...]], random: np.random.Generator) -> list[tuple[str, ...]]:
        """Returns ``made_up`` texts or pairs for each of ``texts``."""
        draws = Random(int(random.integers(2**63)))
        split = [[words_of(side) for side in sides] for sides in texts]
        words = [word for sides in split for side in sides for word in side]
        sources = [sides for sides in split for _ in range(self.made_up)]
        return [
            tuple(_changed(side, draws.choice(split)[number], words, draws) for number, side in enumerate(sides))
            for sides in sources
        ]

    def targets(self, task: Any, texts: Sequence[tuple[str, ...]], seed: int, limit: int) -> dict[str, Tensor]:
        """Returns what ``SoftTargets`` takes: the probabilities of ``texts`` and of those made up, which ``task``
        encodes as examples of at most ``limit`` tokens.
        """
        made_up = self.made_up_texts(texts, np.random.default_rng(seed))
        examples, _ = task.examples(made_up, [()] * len(made_up), limit)
        return {
            "p": self.probabilities(texts),
            "made_up.p": self.probabilities(made_up),
            "made_up.lengths": torch.tensor([len(example.ids) for example in examples], dtype=torch.int32),
            "made_up.ids": torch.tensor([i for example in examples for i in example.ids], dtype=torch.int32),
            "made_up.segments": torch.tensor([i for example in examples for i in example.segments], dtype=torch.uint8),
        }


class SoftTargets:
    """The probabilities that a teacher gave N training texts, and k N texts made up from them.

    Args:
        tensors: ``p`` (N, labels) and ``made_up.p`` (k N, labels), where those of a text stand together; the token ids
            and the segments of the texts made up, joined, and their ``lengths`` (k N,).
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.p, self.made_up_p = tensors["p"], tensors["made_up.p"]
        self.a_text = len(self.made_up_p) // len(self.p)
        ends = tensors["made_up.lengths"].cumsum(0)[:-1].tolist()
        self._ids, self._segments = (
            np.split(tensors[name].numpy(), ends) for name in ("made_up.ids", "made_up.segments")
        )

    def draw(self, numbers: Sequence[int], random: np.random.Generator) -> tuple[list[EncodedPair], Tensor]:
        """Returns examples made up from those of the ``numbers``, up to ``defaults.DRAWN`` for each, and the
        probabilities of these texts and of the examples of the numbers first.
        """
        order = random.random((len(numbers), self.a_text)).argsort(1)[:, : defaults.DRAWN]
        drawn = (np.asarray(numbers)[:, None] * self.a_text + order).ravel()
        examples = [EncodedPair(self._ids[i].tolist(), self._segments[i].tolist(), ()) for i in drawn]
        return examples, torch.cat((self.p[list(numbers)], self.made_up_p[drawn]))


def words_of(text: str) -> list[str]:
    """Returns the words and signs of a text, each with the space after it; the last word has one too.

    >>> words_of("It's  fine")
    ['It', "'", 's ', 'fine ']
    """
    found = [word + (" " if space else "") for word, space in WORD.findall(text)]
    return [*found[:-1], found[-1].rstrip() + " "] if found else [text]


def _changed(words: Sequence[str], other: Sequence[str], pool: Sequence[str], draws: Random) -> str:
    """Returns a text made up from ``words``, those of another text, and words of a ``pool``."""

    def replaced(text: Sequence[str], share: float) -> list[str]:
        return [draws.choice(pool) if draws.random() < share else word for word in text]

    kind = draws.choices(range(len(KINDS)), KINDS)[0]
    if kind == 0:
        made = replaced(words, draws.choice(REPLACED))
    elif kind == 1:
        first, second = (words, other) if draws.random() < 0.5 else (other, words)
        made = [*first[: draws.randint(0, len(first))], *second[draws.randint(0, len(second)) :]]
        made = replaced(made, SPLICED)
    elif kind == 2:
        length = draws.randint(1, len(words))
        start = draws.randint(0, len(words) - length)
        made = list(words[start : start + length])
    else:
        made = [word for word in words if draws.random() >= DROPPED]
    return "".join(made).strip() or "".join(words).strip()


def check_distillation(settings: RunSettings) -> None:
    """Raises ``HeedfulError`` for options of distillation without a teacher."""
    if settings.teacher is None and settings.distillation.given():
        names = " and ".join(f"--distillation.{name.replace('_', '-')}" for name in settings.distillation.given())
        raise HeedfulError(f"{names} needs --teacher, a classifier to learn from; name one, or leave it out")


def teacher_of(task: Any, settings: RunSettings) -> Teacher:
    """Returns the teacher that the settings name.

    Raises:
        HeedfulError: it is no classifier, or has other labels.
    """
    assert settings.teacher is not None
    given, folder = settings.distillation, find(settings.teacher)
    kind = type(task).for_folder(folder)
    if kind.name != task.name or not hasattr(kind, "probabilities"):
        raise HeedfulError(f"--teacher {settings.teacher} is no classifier; name a folder of text-classification")
    teacher: Any = kind.load(folder)
    if teacher.multi_label != task.multi_label:
        number = "several labels" if teacher.multi_label else "one label"
        raise HeedfulError(
            f"--teacher {settings.teacher} gives each text {number}, other than the training data; name another"
        )
    model = load(folder, dtype="float32").to(device_of(own_device(settings.device)))
    teacher.check_model(model)
    return Teacher(teacher, model, task.labels, given.made_up or 0, given.temperature or 1.0)


def note_of(teacher: Teacher, settings: RunSettings) -> str:
    """Returns a line for people on the teacher, with its validation metric if its folder has one."""
    metric = teacher.task.main_metric
    value = read_card(Path(teacher.model.folder.source)).get("metrics", {}).get(metric)
    known = f" ({metric.replace('_', ' ')} {value:.1f})" if isinstance(value, int | float) else ""
    more = f", for each text and {teacher.made_up} made up from it" if teacher.made_up else ", for each text"
    return f"learns the probabilities of {settings.teacher}{known}{more}"


@torch.no_grad()
def begin_as_mean(model: Model) -> None:
    """Changes the random weights of a new encoder's last block so that the class token reads the mean of all tokens.

    Its queries are 0, so that all tokens have the same weight; its values and outputs are the identity. Training then
    begins where a classifier over the mean of the tokens does, and ``transformers`` opens the model. A model with other
    parts than BERT's, shared blocks or another pooling stays as it is.
    """
    config = model.config
    if not isinstance(model, Encoder) or not isinstance(config, EncoderConfig) or config.encoder.shared_blocks > 1:
        return
    blocks: Any = model.encoder.block
    attention, head = blocks[-1].attention, model.head
    if not isinstance(attention, Attention) or not isinstance(head, SequenceClassifier):
        return
    pooler = [part for part in head.pooler.modules() if isinstance(part, nn.Linear)]
    squares = [attention.value, attention.out, *pooler]
    fits = all(part.in_features == part.out_features for part in squares)
    if not fits or config.encoder.placement != "post" or not head.pooling == config.class_token == "first":
        return
    attention.query.weight.zero_()
    for part, scale in zip(squares, (1.0, MEAN_SCALE, 1.0), strict=False):
        nn.init.eye_(part.weight).mul_(scale)
