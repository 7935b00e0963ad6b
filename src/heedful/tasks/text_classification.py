"""Text classification: a label, or several, for a text or a pair of texts (Devlin et al. 2019)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import (
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    SequenceHead,
    VisionConfig,
)
from heedful.data import Kind, Row, Rows
from heedful.data.cell_values import are_quantities, as_number
from heedful.data.split import Same, content
from heedful.errors import HeedfulError, many
from heedful.metrics.classification import Labelled, Mistakes
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import find, multi_label, regression
from heedful.settings import RunSettings
from heedful.tasks import defaults, get
from heedful.tasks.baselines import linear_text, svm
from heedful.tasks.encoder_task import encoder_config, limit, longest_of
from heedful.tasks.labels import (
    check_classifier,
    checked_top,
    classifier_in,
    labels_of,
    likeliest,
    most_frequent,
    names_of,
    numbers_of,
    several,
    stored,
    teachable,
)
from heedful.tasks.model_setup import check_vocabulary, masked, padded, reads, special_id, start_of, tokenizer_of
from heedful.tasks.r_drop import agreement_of, divergence, twice
from heedful.tasks.task import TEXTS, Baseline, Batch, Encoded, Measured, Prediction, Task, short
from heedful.tasks.text_pairs import SIDES, Example, examples_of, sides_of
from heedful.text import Tokenizer
from heedful.util.escaping import named
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")


UNSEEN = 0.1  # share of a fresh model's words that are hidden from it in training, so that it leans on no single one
SURE = 0.5  # the probability from which on a label is among the answer's several


class TextClassification(Task):
    """A model of text with a classifier over one token: an encoder's first, a decoder's last, or the last that the
    decoder of an encoder-decoder reads.

    What stands around a text, or between two, is what the model's own tokenizer puts there: ``[CLS] text [SEP] pair
    [SEP]`` in two segments for BERT, ``<s> text </s></s> pair </s>`` for RoBERTa and BART, nothing for GPT-2.

    >>> import heedful
    >>> pairs = [("tweet", "yes"), ("moo", "no")]
    >>> data = Rows(Row({"text": text, "label": label}, "birds.tsv", 1) for text, label in pairs)
    >>> settings = RunSettings(task="text-classification", train=("birds.tsv",), out="birds", preset="bert-tiny")
    >>> task = TextClassification.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> task.predict(model, ["tweet"])[0].output in ("no", "yes")
    True

    Args:
        tokenizer: of the texts.
        labels: the names of the classes, in the order of the model's logits.
        columns: what an example holds; ``text_pair`` is optional until training says.
        multi_label: whether an example may have several labels, or none.
    """

    name: ClassVar[str] = "text-classification"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "text_pair": "text?", "label": "label"})
    unit = "examples"
    main_metric: str = "accuracy"
    used_settings: ClassVar[frozenset[str]] = TEXTS | {"data.label_kind", "data.label_separator", "model.r_drop"}
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "top_k"})
    display_options: ClassVar[frozenset[str]] = frozenset({"top_k"})
    input_names: ClassVar[tuple[str, ...]] = SIDES

    def __init__(
        self,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        columns: Mapping[str, Kind] | None = None,
        multi_label: bool = False,
    ) -> None:
        self.tokenizer, self.labels, self.multi_label = tokenizer, list(labels), multi_label
        self.columns = MappingProxyType(dict(columns or type(self).columns))
        if multi_label:
            self.main_metric = "micro_f1"
        self.unseen = 0.0
        self.agreement = 0.0  # R-Drop's α, where training is told one

    # ------------------------------------------------------------------------------------------------------- making it

    @staticmethod
    def _regression() -> type[TextClassification]:
        task = get("text-classification", "number")
        assert issubclass(task, TextClassification)
        return task

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[TextClassification]:
        """``TextRegression`` where ``--data.label-kind number`` says so, or, where nothing is said, the labels are
        quantities (``heedful.data.cell_values.are_quantities``) or numbers for a model of numbers; a note says so.
        """
        regression_task = cls._regression()

        asked = settings.data.label_kind
        if rows and isinstance(rows[0].values["label"], float):
            return regression_task
        if asked == "class" or not rows or several(rows):
            if asked == "number":
                raise HeedfulError(f"{rows[0].file}: several labels a row are no number; leave --data.label-kind out")
            return cls
        labels = [str(row.values["label"]) for row in rows]
        found = sorted({number for label in labels if (number := as_number(label)) is not None})
        numeric = all(as_number(label) is not None for label in set(labels))
        number = asked == "number" or are_quantities(labels)
        if numeric and settings.start_from and not number and not asked:
            number = cls.for_folder(find(settings.start_from)) is regression_task
        if numeric and len(found) > 1 and not asked:
            what = f"numbers from {found[0]:g} to {found[-1]:g}, {len(found):,} different ones"
            other = "class learns classes" if number else "number learns the number"
            how = "a number is learned (regression)" if number else "learned as classes"
            note = f"the labels are {what}: {how}; --data.label-kind {other}"
            rows.notes.extend([note] if note not in rows.notes else [])
        return regression_task if number else cls

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[TextClassification]:
        """``TextRegression`` where the model's only output is a number."""
        regression_task = cls._regression()

        config, theirs = config_of(Path(folder)), read_configs(Path(folder))[0]
        return regression_task if isinstance(config.head, SequenceHead) and regression(theirs) else cls

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content) -> tuple[Rows, Rows]:
        """As every task does, but a text whose label no training row would have goes to training."""
        return teachable(*super().split_rows(rows, valid, seed, same), by="text", same=same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the number of examples; what starts from a model learns as published models are tuned."""
        made = (
            defaults.encoder_finetuning(len(rows), asked, asked.start_from)
            if asked.start_from
            else defaults.encoder(len(rows), asked)
        )
        return replace(made, data=replace(made.data, label_kind="class"))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer on the training texts, and take the label names from them, in alphabetical order."""
        columns = columns_of(rows)
        tokenizer = cls._tokenizer(rows, columns, settings)
        return cls(tokenizer, names_of(rows), columns=columns, multi_label=several(rows))

    @staticmethod
    def _tokenizer(rows: Sequence[Row], columns: Mapping[str, Kind], settings: RunSettings) -> Tokenizer:
        texts = (row.values[column] for row in rows for column, kind in columns.items() if kind == "text")
        asked = settings.tokenizer
        tokenizer = Tokenizer.train(
            texts, asked.size or 8000, asked.kind or "wordpiece", bool(asked.lowercase), template="both"
        )
        tokenizer.config["model_max_length"] = settings.data.max_length or defaults.MAX_LENGTH
        return tokenizer

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """The folder's model, with a classifier where it has none; where the data has labels that it does not know,
        with a new output layer for those.
        """
        folder = reads(cls.name, find(folder))
        names = names_of(rows)
        own = stored(read_configs(folder)[0]) if isinstance(config_of(folder).head, SequenceHead) else []
        known = set(names) <= set(own)
        tokenizer = tokenizer_of(folder)
        task = cls(tokenizer, own if known else names, columns=columns_of(rows), multi_label=several(rows))
        model = classifier_in(folder, "sequence", None if known else len(names), settings.seed or 0)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizer of a model folder, and the labels of its ``config.json``."""
        folder = Path(folder)
        theirs, _ = read_configs(reads(cls.name, folder))
        labels = stored(theirs)
        columns = read_card(folder).get("columns")
        return cls(tokenizer_of(folder), labels, columns=columns, multi_label=multi_label(theirs))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer; the labels are the model's."""
        self.tokenizer.save(folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset with this vocabulary, these labels and no more positions than the longest example needs."""
        config = encoder_config(settings, self.tokenizer, self.longest, self.name)
        return replace(config, head=SequenceHead(labels=len(self.labels), dropout=config.encoder.dropout.residual))

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Name the model's classes; what starts anew has words hidden from it."""
        model.labels, model.multi_label = list(self.labels), self.multi_label
        self.unseen = 0.0 if settings.start_from else UNSEEN
        self.agreement = agreement_of(model, settings)

    def check_model(self, model: Model) -> None:
        """A model of text that classifies, with an output for every label and a row for every token. From then on no
        example is longer than the model's positions reach.
        """
        config = model.config
        if isinstance(config, VisionConfig):
            raise HeedfulError(f"{self.name} needs a model of text; this one is of kind {config.kind!r}")
        check_classifier(self.name, model, self.labels, SequenceHead)
        self._check_texts(model)

    def _check_texts(self, model: Model) -> None:
        config = model.config
        assert not isinstance(config, VisionConfig)
        source = config.source if isinstance(config, EncoderDecoderConfig) else config.embedding
        check_vocabulary(self.tokenizer, source)
        if isinstance(config, EncoderDecoderConfig):
            start_of(config)
        limit(self.tokenizer, config)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def longest(self) -> int:
        """The most tokens of an example, special ones counted."""
        return longest_of(self.tokenizer)

    @property
    def _start(self) -> int:
        return special_id(self.tokenizer.start)

    @property
    def _end(self) -> int:
        return special_id(self.tokenizer.end)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Each row's ids and labels; what is longer than ``max_length`` tokens, or than the model takes, is cut: of a
        pair the longer text first.
        """
        most = min(max_length or self.longest, self.longest)
        examples, cut = examples_of(self.tokenizer, map(self._texts, rows), map(self._label_ids, rows), most)
        reason = "--data.max-length" if most == max_length else "the model takes no more"
        note = f"{many(len(cut))} cut to {most} tokens ({reason})" if cut else ""
        return Encoded(examples, rows, note, len(cut), [rows[number] for number in cut])

    def _texts(self, row: Row) -> tuple[str, ...]:
        return tuple(row.values[name] for name in SIDES if name in self.columns and name in row.values)

    def _label_ids(self, row: Row) -> tuple[float, ...]:
        if not self.multi_label and len(labels_of(row)) != 1:
            raise HeedfulError(
                f"{row.file}:{row.line}: {many(len(labels_of(row)), 'label')}, but this model gives each example one; "
                "correct the row, or train with --data.label-separator"
            )
        return numbers_of(row, self.labels)

    def lengths(self, examples: Sequence[Example]) -> np.ndarray:
        """(N, 1): tokens, special ones counted."""
        return np.array([[len(example.ids)] for example in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Example], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """``ids``, ``mask`` and ``segments`` (B, T), and ``labels`` (B, labels), 1 where a label holds.

        With ``random`` a share of the words of a model that starts anew becomes ``<unk>``, other ones each time.
        """
        ids, mask = masked([example.ids for example in examples])
        segments = padded([example.segments for example in examples], 0)
        labels = self._targets(examples)
        if random is not None and self.unseen and self.tokenizer.unknown is not None:
            hidden = torch.from_numpy(random.random(ids.shape) < self.unseen)
            ids[hidden & mask & (ids != self._start) & (ids != self._end)] = self.tokenizer.unknown
        return {"ids": ids, "mask": mask, "segments": segments, "labels": labels}

    def _targets(self, examples: Sequence[Example]) -> Tensor:
        labels = torch.zeros(len(examples), len(self.labels))
        for i, example in enumerate(examples):
            labels[i, list(map(int, example.labels))] = 1
        return labels

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> int:
        """Examples."""
        return len(batch["ids"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over examples of −Σ_c y_c log p_c, y smoothed to (1 − ε) y + ε/C (Szegedy et al. 2016, section 7).

        With several labels it is the mean over the C labels of −y log p − (1 − y) log(1 − p), each label on its own and
        smoothed to (1 − ε) y + ε/2. With ``--model.r-drop`` as :mod:`heedful.tasks.r_drop` says.
        """
        if not self.agreement:
            return self._loss(self._logits(model, batch), batch["labels"], label_smoothing)
        batch = twice(batch)
        logits = self._logits(model, batch)
        apart = divergence(logits, self._probabilities(logits)).sum() / (len(self.labels) if self.multi_label else 1)
        return (self._loss(logits, batch["labels"], label_smoothing) + self.agreement * apart) / 2

    def _logits(self, model: Model, batch: Batch) -> Tensor:
        config, ids, mask = model.config, batch["ids"], batch["mask"]
        if isinstance(config, EncoderDecoderConfig):  # the decoder reads the text again, one place further right
            target = ids.roll(1, dims=1)
            target[:, 0] = start_of(config)
            return model(ids, target, mask, mask).float()
        two = isinstance(config, EncoderConfig) and config.embedding.segments > 1
        return model(ids, mask, *([batch["segments"]] if two else [])).float()

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        if self.multi_label:
            smoothed = labels * (1 - smoothing) + smoothing / 2
            return F.binary_cross_entropy_with_logits(logits, smoothed, reduction="sum") / len(self.labels)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of each example, (B,)."""
        if self.multi_label:
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
        return F.cross_entropy(logits, labels, reduction="none")

    # ------------------------------------------------------------------------------------ measuring, answering, telling

    def _probabilities(self, logits: Tensor) -> Tensor:
        """Of each label (B, labels); with several labels each on its own."""
        return logits.sigmoid() if self.multi_label else logits.softmax(1)

    def _said(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the predicted labels (B, labels), True for each, and the probability (B,) of exactly that set."""
        p = self._probabilities(logits)
        if self.multi_label:
            said = p >= SURE
            return said, torch.where(said, p, 1 - p).prod(1)
        score, best = p.max(1)
        return F.one_hot(best, len(self.labels)).bool(), score

    def _output(self, said: Tensor) -> Any:
        names = [self.labels[i] for i in said.nonzero().flatten().tolist()]
        return names if self.multi_label else names[0]

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[Example], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Accuracy, macro F1 and Matthews correlation; with several labels the exact match, micro and macro F1. Always
        of all examples.

        Details: ``by_class``, ``confusion`` (but for several labels) and the surest ``mistakes``.
        """
        each, mistakes = Labelled(self.labels, len(examples), self.multi_label), Mistakes()

        def read(batch: Batch) -> tuple[Tensor, ...]:
            logits = self._logits(model, batch)
            said, p = self._said(logits)
            return batch["labels"].bool().cpu(), said.cpu(), p.cpu(), self._losses(logits, batch["labels"]).cpu()

        for places, (truth, said, p, losses) in self.map_batches(model, examples, read, options.get("batch_tokens")):
            each.add(places, truth, said, loss=losses)
            for i in (said != truth).any(1).nonzero().flatten().tolist():
                place = int(places[i])
                text = " + ".join(map(short, self._texts(rows[place])))
                mistakes.add(place, text, self._output(truth[i]), self._output(said[i]), float(p[i]))
        return Measured(overall(each), each.details() | mistakes.details(), each, each.outputs())

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """TF-IDF and logistic regression: ``heedful.tasks.baselines.linear_text``."""
        known = learned()
        texts, asked = ([" ".join(self._texts(row)) for row in part] for part in (known, rows))
        said = linear_text(texts, list(map(labels_of, known)), asked, self.multi_label)
        scored = Labelled.of(self.labels, list(map(labels_of, rows)), said, self.multi_label)
        return Baseline("TF-IDF and logistic regression", overall(scored), scored)

    def quick_baseline(self, examples: Sequence[Example], rows: Rows, learned: Rows) -> Baseline | None:
        """As ``baseline``, with a support vector machine, which is quicker."""
        texts, asked = ([" ".join(self._texts(row)) for row in part] for part in (learned, rows))
        said = linear_text(texts, list(map(labels_of, learned)), asked, self.multi_label, svm)
        scored = Labelled.of(self.labels, list(map(labels_of, rows)), said, self.multi_label)
        return Baseline("TF-IDF and a linear SVM", overall(scored), scored)

    def guess(self, examples: Sequence[Example], rows: Rows, learned: Rows) -> Baseline | None:
        """The most frequent label, or set of labels, of training."""
        return most_frequent(self.labels, rows, learned)

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """The texts as they are; of a model of two texts each with the one after it, unless it is a pair already (a tab
        between both).
        """
        if self.columns.get("text_pair") != "text":
            return list(texts)
        others = [*texts[1:], *texts[:1]]
        return [
            text if "\t" in text else (text, other.split("\t")[0]) for text, other in zip(texts, others, strict=True)
        ]

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """The label of each input and its probability; of several labels those of probability ½ and more, and the
        probability of exactly this set, were they independent. An input without text gets an empty answer.

        With ``top_k`` the output is a list of so many ``{"label", "score"}``, the likeliest first, of all labels where
        there are no more; the score is that of the first.

        A pair is ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab between them. What is
        longer than the model takes is cut, and a warning says so.
        """
        top_k = checked_top(options.get("top_k"))
        answers = [Prediction(one, [] if self.multi_label or top_k else "", None) for one in inputs]
        pair = self.columns.get("text_pair")
        texts = {i: sides for i, one in enumerate(inputs) if (sides := sides_of(one, pair))}
        asked = list(texts)
        if not asked:
            return answers
        examples, cut = examples_of(self.tokenizer, texts.values(), [()] * len(texts), self.longest)
        if cut:
            log.warning(
                CountWarning(len(cut), len(inputs), f"cut to {self.longest:,} tokens (the model takes no more)")
            )

        def read(batch: Batch) -> list[tuple[Any, float]]:
            logits = self._logits(model, batch)
            if top_k is not None:
                best = likeliest(self._probabilities(logits), self.labels, top_k)
                return [(labels, labels[0]["score"]) for labels in best]
            said, p = self._said(logits)
            return [(self._output(row), score) for row, score in zip(said, p.tolist(), strict=True)]

        for places, found in self.map_batches(model, examples, read, options.get("batch_tokens")):
            for place, (output, score) in zip(places, found, strict=True):
                answers[asked[place]] = Prediction(inputs[asked[place]], output, score)
        return answers

    def row_line(self, row: Row) -> str:
        """``text → label``, ``text + pair → label``."""
        return f"{' + '.join(map(short, self._texts(row)))} → {', '.join(map(named, labels_of(row)))}"


def columns_of(rows: Sequence[Row], kind: Kind = "label") -> dict[str, Kind]:
    """Returns the columns of the rows, which are those of the model's inputs."""
    pair: dict[str, Kind] = {"text_pair": "text"} if "text_pair" in rows[0].values else {}
    return {"text": "text", **pair, "label": kind}
