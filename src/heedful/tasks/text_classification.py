"""Text classification: one or several labels for a text or a pair of texts (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import EncoderConfig, EnsembleConfig, ModelConfig, SequenceHead
from heedful.data import Kind, Row, Rows
from heedful.data.cell_values import are_quantities, parse_number
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.metrics.classification import ClassifierScores, Mistakes, best_threshold
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import HEEDFUL_JSON, find, is_multi_label, is_regression
from heedful.settings import AUTO, DistillationSettings, RunSettings
from heedful.tasks import defaults, get, known_models
from heedful.tasks.baselines import QUICK_LABELLED, QUICK_LINEAR_TEXTS, linear_text, ridge_labels
from heedful.tasks.choices import CHOICES
from heedful.tasks.distillation import (
    TEACHER_FOLDER,
    SoftTargets,
    Teacher,
    begin_as_mean,
    check_distillation,
    note_of,
    teacher_of,
)
from heedful.tasks.labels import (
    are_multi_label,
    check_known_labels,
    constant_baseline,
    label_ids,
    labels_to_list,
    row_labels,
    stored_label_names,
    top_labels,
    training_labels,
    with_learnable_labels,
)
from heedful.tasks.model_setup import load_with_head, tokenizer_of
from heedful.tasks.preferences import are_preferences
from heedful.tasks.r_drop import agreement_of, divergence, repeat_batch
from heedful.tasks.task import Baseline, Batch, Encoded, Measured, Prediction, short
from heedful.tasks.text_pairs import SIDES, EncodedPair, TextPairTask, columns_of
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.util.escaping import named

THRESHOLD = 0.5  # probability from which a label is predicted, with several labels, unless training chose another
THRESHOLD_KEY = "threshold"  # in heedful.json
ZERO_SHOT = frozenset({CHOICES, "hypothesis_template", "multi_label"})  # options of heedful.tasks.zero_shot
Labels = list[tuple[str, ...]]  # of texts


class TaughtExample(NamedTuple):
    """An ``EncodedPair`` with its text, or both texts of a pair, from which others are made up."""

    ids: list[int]
    segments: list[int]
    labels: tuple[float, ...]
    texts: tuple[str, ...]
    number: int  # among the training examples


class TextClassification(TextPairTask):
    """Text classification by a model of text with a classifier over one token.

    In an encoder this is the first token, in a decoder the last token, and in an encoder-decoder the last token that
    the decoder reads.

    >>> import heedful
    >>> pairs = [("tweet", "yes"), ("moo", "no")]
    >>> data = Rows(Row({"text": text, "label": label}, "birds.tsv", 1) for text, label in pairs)
    >>> settings = RunSettings(task="text-classification", train=("birds.tsv",), out="birds", preset="bert-tiny")
    >>> task = TextClassification.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> task.predict(model, ["tweet"])[0].output in ("no", "yes")
    True

    Args:
        tokenizer: tokenizer of the texts.
        labels: names of the classes, in the order of the model's logits.
        columns: columns of an example and their kinds; before training, ``text_pair`` is optional.
        multi_label: True if an example may have several labels, or none.
        threshold: with several labels, the probability from which a label is predicted.
    """

    name: ClassVar[str] = "text-classification"
    columns: Mapping[str, Kind] = MappingProxyType(
        {
            "text": "text",
            "text_pair": "text?",
            "label": "label",
            "prompt": "turns?",
            "chosen": "turns?",
            "rejected": "turns?",
        }
    )
    main_metric: str = "accuracy"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["TextClassification"]
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "top_k"}) | ZERO_SHOT
    known_models: ClassVar[known_models.KnownModels | None] = known_models.TEXT_CLASSIFICATION
    display_options: ClassVar[frozenset[str]] = frozenset({"top_k"})

    def __init__(
        self,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        columns: Mapping[str, Kind] | None = None,
        multi_label: bool = False,
        threshold: float = THRESHOLD,
    ) -> None:
        self.tokenizer, self.labels, self.multi_label = tokenizer, list(labels), multi_label
        self.threshold = threshold
        self.columns = dict(columns or type(self).columns)
        if multi_label:
            self.main_metric = "micro_f1"
        self.agreement = 0.0  # α of R-Drop
        self.teacher: Teacher | None = None  # until it has given its targets
        self.soft_targets: SoftTargets | None = None  # from a teacher
        self.teacher_note = ""  # for people
        self.temperature, self.has_teacher, self.seed, self.limit = 1.0, False, 0, 0  # of training with a teacher
        self.model_notes: list[str] = []

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[TextPairTask]:
        """Returns this class or, for chosen and rejected answers, ``RewardModel``, or, for labels that are numbers to
        predict, ``TextRegression``.

        It is ``TextRegression`` for ``--data.label-kind number``. If that option is not set, it is also for labels that
        are quantities (``data.cell_values.are_quantities``), and for numeric labels if ``--from`` names a regression
        model. Then a note is added if the labels are numbers. A subclass with a name of its own has no variant.
        """
        regression_task, kind = _variant("number"), settings.data.label_kind
        if are_preferences(rows) and cls.name == TextClassification.name:
            return _variant("preference")
        if cls.name != TextClassification.name:
            if kind == "number":
                raise HeedfulError(f"{cls.name} learns classes, not numbers; leave --data.label-kind out")
            return cls
        if rows and isinstance(rows[0].values["label"], float):
            return regression_task
        if kind == "class" or not rows or are_multi_label(rows):
            if kind == "number":
                raise HeedfulError(
                    f"{rows[0].file}: rows may have several labels, which cannot be learned as a number; leave "
                    "--data.label-kind out"
                )
            return cls._one_or_several(rows, settings) if rows else cls
        labels = [str(row.values["label"]) for row in rows]
        numbers = sorted({number for label in labels if (number := parse_number(label)) is not None})
        are_numbers = all(parse_number(label) is not None for label in set(labels))
        is_regression = kind == "number" or are_quantities(labels)
        if are_numbers and settings.start_from not in (None, AUTO) and not is_regression and not kind:
            is_regression = cls.for_folder(find(str(settings.start_from))) is regression_task
        if are_numbers and len(numbers) > 1 and not kind:
            described = f"{len(numbers):,} different numbers from {numbers[0]:g} to {numbers[-1]:g}"
            other = "class learns classes" if is_regression else "number learns numbers (regression)"
            learned = "learned as numbers (regression)" if is_regression else "learned as classes"
            note = f"the labels are {described}, {learned}; --data.label-kind {other}"
            rows.notes.extend([note] if note not in rows.notes else [])
        return regression_task if is_regression else cls._one_or_several(rows, settings)

    @classmethod
    def _one_or_several(cls, rows: Rows, settings: RunSettings) -> type[TextClassification]:
        """Returns the variant that trains an ensemble, if ``defaults.member_count`` is above 1; else this class."""
        one_text_and_label = "text_pair" not in rows[0].values and not are_multi_label(rows)
        count = settings.model.members or 1
        if one_text_and_label:
            count = defaults.member_count(len(rows), settings, texts_of_rows(rows))
        ensemble = _variant(EnsembleConfig.kind)
        assert issubclass(ensemble, TextClassification)
        return ensemble if count > 1 else cls

    @classmethod
    def teacher_settings(cls, rows: Rows, given: RunSettings) -> RunSettings | None:
        """Returns the settings of the run that trains the teacher of this one: of an ensemble that the data suggests.

        None: the run has no teacher, or one that exists, or the ensemble is all that is wanted (``--model.members``),
        or there are fewer than ``defaults.FEWEST_TAUGHT`` examples.
        """
        if cls is not _variant(EnsembleConfig.kind) or given.model.members is not None or given.unlabelled:
            return None
        if len(rows) < defaults.FEWEST_TAUGHT:
            return None
        return replace(
            given,
            out=str(Path(given.out) / TEACHER_FOLDER),
            model=replace(given.model, members=len(defaults.MEMBERS)),
            distillation=DistillationSettings(),
            training=replace(given.training, report=None, record_attention=None, profile=None),
            push=None,
        )

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[TextPairTask]:
        """Returns ``TextRegression`` if the folder's model has a single output that is a number, ``RewardModel`` if the
        number is a reward, ``ClassifierEnsemble`` for an ensemble, else this class.
        """
        config, hub = config_of(Path(folder)), read_configs(Path(folder))[0]
        if isinstance(config, EnsembleConfig):
            return _variant(config.kind)
        if not isinstance(config.head, SequenceHead) or not is_regression(hub):
            return cls
        return _variant("preference" if "preference" in read_card(Path(folder)) else "number")

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows; ``valid`` is the fraction to hold out.

        A text with a label that no training row has is moved to training.
        """
        return with_learnable_labels(*super().split_rows(rows, valid, seed, same), by="text", same=same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of rows and their words (``defaults.word_tokens``).

        For a pretrained model, they are those of ``defaults.classifier_finetuning``.

        Sets ``--data.label-kind class``.
        """
        if given.start_from:
            labels = len({label for row in rows for label in row_labels(row)})
            suggested = defaults.classifier_finetuning(len(rows), labels, given, given.start_from)
            if given.teacher:
                suggested = defaults.made_up_texts(suggested, len(rows), texts_of_rows(rows))
        else:
            suggested, fall = super().suggested_settings(rows, given), 0.0
            if given.teacher:
                suggested, fall = defaults.student(len(rows), given, texts_of_rows(rows)), defaults.RARE_FALL
            suggested = defaults.word_tokens(suggested, given, texts_of_rows(rows), fall)
        return replace(suggested, data=replace(suggested.data, label_kind="class"))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains its tokenizer, and sorts the training labels by name."""
        columns = columns_of(rows)
        texts = (row.values[column] for row in rows for column, kind in columns.items() if kind == "text")
        tokenizer = cls.train_tokenizer(texts, settings)
        return cls(tokenizer, training_labels(rows), columns=columns, multi_label=are_multi_label(rows))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        A model without a classifier gets a new one. If the data has labels that the model does not know, the classifier
        gets a new output layer. With ``--pooling.kind`` a new classifier reads the mean, the maximum or another token.
        """
        folder = cls.model_folder(folder)
        names = training_labels(rows)
        own = stored_label_names(read_configs(folder)[0]) if isinstance(config_of(folder).head, SequenceHead) else []
        known = set(names) <= set(own)
        task = cls(
            tokenizer_of(folder), own if known else names, columns=columns_of(rows), multi_label=are_multi_label(rows)
        )
        model = load_with_head(folder, SequenceHead.kind, settings.seed or 0, None if known else len(names))
        task.set_pooling(model, settings, is_new=not known)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, the labels from ``config.json``, and the threshold from ``heedful.json``."""
        folder = cls.model_folder(folder)
        hub, _ = read_configs(folder)
        card = read_card(folder)
        threshold = card.get(THRESHOLD_KEY, THRESHOLD)
        if not isinstance(threshold, float) or not 0 < threshold < 1:
            raise HeedfulError(
                f"{folder / HEEDFUL_JSON}: {THRESHOLD_KEY} is {threshold!r}; write a number between 0 and 1"
            )
        return cls(
            tokenizer_of(folder),
            stored_label_names(hub),
            columns=card.get("columns"),
            multi_label=is_multi_label(hub),
            threshold=threshold,
        )

    def card_entries(self) -> dict[str, Any]:
        """Returns the ``threshold`` of a classifier of several labels."""
        return {THRESHOLD_KEY: self.threshold} if self.multi_label else {}

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns ``EncoderTask.config``. The blocks of a model with a teacher begin near the identity, N(0, 0.02²)."""
        config = super().config(settings)
        if settings.teacher is None or not isinstance(config, EncoderConfig):
            return config
        return replace(config, encoder=replace(config.encoder, init="normal"))

    def initialise(self, model: Model, settings: RunSettings) -> None:
        """Lets the class token of a model with a teacher begin as the mean of the tokens."""
        if settings.teacher:
            begin_as_mean(model)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the label names in the model, and prepares R-Drop and the teacher."""
        super().before_training(model, settings)
        model.multi_label = self.multi_label
        self.agreement = agreement_of(model, settings)
        self.has_teacher, self.seed = settings.teacher is not None, settings.seed or 0
        check_distillation(settings)
        if self.has_teacher:
            self.hidden_share, self.temperature = 0.0, settings.distillation.temperature or 1.0
            if not settings.resume and self.soft_targets is None:
                self.teacher = teacher_of(self, settings)
                self.teacher_note = note_of(self.teacher, settings)
            if self.teacher_note:
                self.model_notes.append(self.teacher_note)
        if self.agreement:
            note = (
                f"R-Drop {self.agreement:g}: each example passes twice in a step; --model.r-drop 0 takes half the time"
            )
            self.model_notes.append(note)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each row's texts and labels; raises ``HeedfulError`` for labels that the model does not know."""
        check_known_labels(rows, self.labels)
        encoded = super().encode(rows, max_length)
        if not self.has_teacher:
            return encoded
        self.limit = min(max_length or self.longest, self.longest)
        taught = [
            TaughtExample(example.ids, example.segments, example.labels, self.texts_of(row), number)
            for number, (example, row) in enumerate(zip(encoded.examples, rows, strict=True))
        ]
        return encoded._replace(examples=taught)

    def starting_tensors(self, model: Model, parts: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
        """Returns what the teacher gives the training examples, and texts made up from them (``SoftTargets``)."""
        if self.teacher is None:
            return {}
        tensors = self.teacher.targets(self, [example.texts for example in parts[0]], self.seed, self.limit)
        self.teacher = None
        return tensors

    def use_starting_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the teacher's targets."""
        self.soft_targets = SoftTargets(tensors)

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: see ``TextPairTask.collate``. In training with a teacher it also has texts made up from the
        examples, and ``labels`` are the probabilities that the teacher gives all of them.
        """
        if self.soft_targets is None or random is None:
            return super().collate(examples, random)
        made_up, p = self.soft_targets.draw([example.number for example in examples], random)
        return super().collate([*examples, *made_up], random) | {"labels": p}

    def targets_of(self, row: Row) -> tuple[float, ...]:
        """Returns the indices of a row's labels among the model's labels."""
        if not self.multi_label and len(row_labels(row)) != 1:
            raise HeedfulError(
                f"{row.file}:{row.line}: {plural(len(row_labels(row)), 'label')}, but this model gives each example "
                "one label; correct the row, or train with --data.label-separator"
            )
        return label_ids(row, self.labels)

    def target_tensor(self, examples: Sequence[EncodedPair]) -> Tensor:
        """Returns the targets (B, labels): 1 for each label that an example has, else 0."""
        labels = torch.zeros(len(examples), len(self.labels))
        for i, example in enumerate(examples):
            labels[i, list(map(int, example.labels))] = 1
        return labels

    # --------------------------------------------------------------------------------------------------------- training

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over examples of −Σ_c y_c log p_c.

        y is the one-hot label, smoothed to (1 − ε) y + ε/C for C labels (Szegedy et al. 2016, section 7). If examples
        may have several labels, each example has the mean over the C labels of −y log p − (1 − y) log(1 − p), with each
        label smoothed to (1 − ε) y + ε/2. With ``--model.r-drop`` the loss is that of :mod:`heedful.tasks.r_drop`.
        With a teacher y are its probabilities at the temperature τ, p those of the logits / τ, and the loss is τ²
        times as large, so that its gradient does not shrink (Hinton et al. 2015, section 2).
        """
        if self.agreement:
            batch = repeat_batch(batch)
        return self.training_loss(self.logits(model, batch), batch["labels"], label_smoothing)

    def training_loss(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        """Returns the loss of ``logits``; with R-Drop the rows are those of the first pass, then of the second."""
        if self.temperature == 1:
            return self._training_loss(logits, labels, label_smoothing)
        return self.temperature**2 * self._training_loss(logits / self.temperature, labels, label_smoothing)

    def _training_loss(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        if not self.agreement:
            return self._loss(logits, labels, label_smoothing)
        apart = divergence(logits, self.probabilities(logits)).sum() / (len(self.labels) if self.multi_label else 1)
        return (self._loss(logits, labels, label_smoothing) + self.agreement * apart) / 2

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        if self.multi_label:
            smoothed = labels * (1 - smoothing) + smoothing / 2
            return F.binary_cross_entropy_with_logits(logits, smoothed, reduction="sum") / len(self.labels)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the losses (B,) of the examples."""
        if self.multi_label:
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
        return F.cross_entropy(logits, labels, reduction="none")

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns the probabilities (B, labels): a softmax, or with several labels a sigmoid of each."""
        return logits.sigmoid() if self.multi_label else logits.softmax(1)

    def _predicted(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the predicted labels (B, labels), True for each, and the probability (B,) of exactly that set."""
        p = self.probabilities(logits)
        if self.multi_label:
            predicted = p >= self.threshold
            return predicted, torch.where(predicted, p, 1 - p).prod(1)
        score, best = p.max(1)
        return F.one_hot(best, len(self.labels)).bool(), score

    def _output(self, predicted: Tensor) -> Any:
        names = [self.labels[i] for i in predicted.nonzero().flatten().tolist()]
        return names if self.multi_label else names[0]

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[EncodedPair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns accuracy, macro F1 and Matthews correlation; for several labels exact match, micro F1 and macro F1.

        All examples are scored; ``most`` has no effect. The details have ``by_class``, ``confusion`` (unless examples
        may have several labels) and the most confident ``mistakes``.
        """
        return self._scored(self._outputs(model, examples, options.get("batch_tokens")), len(examples), rows)

    def validate(
        self, model: Model, examples: Sequence[EncodedPair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns what ``measure`` does; with several labels, first sets the threshold with the highest micro F1."""
        outputs = self._outputs(model, examples, options.get("batch_tokens"))
        if self.multi_label:
            outputs = list(outputs)
            self.threshold = best_threshold((truth, self.probabilities(logits)) for _, (truth, logits, _) in outputs)
        return self._scored(outputs, len(examples), rows)

    def _outputs(
        self, model: Model, examples: Sequence[EncodedPair], tokens: int | None
    ) -> Iterable[tuple[np.ndarray, tuple[Tensor, Tensor, Tensor]]]:
        """Yields (indices of the examples, (targets, logits (B, labels), losses (B,))) of each batch, on the CPU."""

        def compute(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            logits = self.logits(model, batch)
            return batch["labels"].bool().cpu(), logits.cpu(), self._losses(logits, batch["labels"]).cpu()

        return self.map_batches(model, examples, compute, tokens)

    def _scored(
        self, outputs: Iterable[tuple[np.ndarray, tuple[Tensor, Tensor, Tensor]]], count: int, rows: Rows
    ) -> Measured:
        scores, mistakes = ClassifierScores(self.labels, count, self.multi_label), Mistakes()
        for indices, (truth, logits, losses) in outputs:
            predicted, p = self._predicted(logits)
            scores.add(indices, truth, predicted, loss=losses)
            for i in (predicted != truth).any(1).nonzero().flatten().tolist():
                index = int(indices[i])
                text = " + ".join(short(text, 200) for text in self.texts_of(rows[index]))
                mistakes.add(index, text, self._output(truth[i]), self._output(predicted[i]), float(p[i]))
        return Measured(overall(scores), scores.details() | mistakes.details(), scores, scores.outputs())

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: a linear model on words and character n-grams (``heedful.tasks.baselines.linear_text``),
        with several labels ridge regression, whose time does not depend on their number (``ridge_labels``).
        """
        return self._baseline(ridge_labels if self.multi_label else linear_text, rows, learned())

    def quick_baseline(self, examples: Sequence[EncodedPair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the same baseline on fewer texts."""
        if self.multi_label:
            return self._baseline(partial(ridge_labels, most=QUICK_LABELLED), rows, learned)
        return self._baseline(partial(linear_text, most=QUICK_LINEAR_TEXTS), rows, learned)

    def _baseline(
        self,
        classify: Callable[[Sequence[str], Labels, Sequence[str]], tuple[str, Labels]],
        rows: Rows,
        learned: Rows,
    ) -> Baseline:
        """Scores ``classify``, which returns its name and labels, given texts, their labels and new texts."""
        train_texts, texts = ([" ".join(self.texts_of(row)) for row in part] for part in (learned, rows))
        name, predicted = classify(train_texts, list(map(row_labels, learned)), texts)
        scores = ClassifierScores.of(self.labels, list(map(row_labels, rows)), predicted, self.multi_label)
        return Baseline(name, overall(scores), scores)

    def guess(self, examples: Sequence[EncodedPair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that predicts the most frequent label, or set of labels, of the training rows."""
        return constant_baseline(self.labels, rows, learned)

    def for_options(self, options: Mapping[str, Any]) -> TextClassification:
        """Returns the task that chooses among the ``choices`` of a call (:mod:`heedful.tasks.zero_shot`); without
        choices this task. Raises ``HeedfulError`` for options that have an effect with choices alone.
        """
        if options.get(CHOICES) is not None:
            choosing: Any = _variant("choices")
            task: TextClassification = choosing(self, options)
            return task
        idle = sorted(name for name in ZERO_SHOT & options.keys() if options[name] is not None)
        if idle:
            raise HeedfulError(f"{idle[0]} has no effect without choices; give choices, or leave it out")
        return self

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the label of each input and its probability. An input without text gets an empty output.

        If texts may have several labels, the output is all labels with a probability of ``threshold`` or more. The
        score is the probability of exactly this set, as if labels were independent. With ``top_k`` the output is a list
        of the ``top_k`` most likely labels (of all, if None), ``{"label", "score"}``, best first, and the score is that
        of the first.

        An input is a text or a pair: ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab
        between them. With ``choices`` a model of natural language inference chooses among them
        (:mod:`heedful.tasks.zero_shot`).
        """
        task = self.for_options(options)
        if task is not self:
            return task.predict(model, inputs, **options)
        top_k = labels_to_list(options, self.labels)

        def compute(batch: Batch) -> list[tuple[Any, float | None]]:
            logits = self.logits(model, batch)
            if top_k is not None:
                best = top_labels(self.probabilities(logits), self.labels, top_k)
                return [(labels, labels[0]["score"]) for labels in best]
            predicted, p = self._predicted(logits)
            return [(self._output(row), score) for row, score in zip(predicted, p.tolist(), strict=True)]

        empty: Any = [] if self.multi_label or top_k else ""
        return self.predictions(model, inputs, empty, compute, options.get("batch_tokens"))

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``text → label`` or ``text + pair → label``."""
        return self.line_of(row, ", ".join(map(named, row_labels(row))))


def texts_of_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the texts of rows, of a pair both."""
    return (text for row in rows for name in SIDES if isinstance(text := row.values.get(name), str))


def _variant(label_kind: str) -> type[TextPairTask]:
    task = get(TextClassification.name, label_kind)
    assert issubclass(task, TextPairTask)
    return task
