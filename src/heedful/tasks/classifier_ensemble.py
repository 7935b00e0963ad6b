"""Ensemble of small classifiers with tokenizers of their own, for few labelled texts (Hansen and Salamon 1990)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import EncoderConfig, EnsembleConfig, ModelConfig, SequenceHead
from heedful.data import Row, Rows
from heedful.data.rows import unlabelled_of
from heedful.layers import TokenEmbedding
from heedful.models import Ensemble, Model
from heedful.models.ensemble import mean_logits, member_batch
from heedful.pretrained.ensemble import refuse_ensemble
from heedful.pretrained.folder import find, member_folder, members_of
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.distillation import TEACHER_FOLDER
from heedful.tasks.inputs_and_targets import Side
from heedful.tasks.labels import are_multi_label, training_labels
from heedful.tasks.model_setup import model_of
from heedful.tasks.r_drop import repeat_batch
from heedful.tasks.task import Batch, Task
from heedful.tasks.text_classification import TextClassification, texts_of_rows
from heedful.tasks.text_pairs import EncodedPair, columns_of
from heedful.tasks.token_vectors import token_vectors
from heedful.tasks.used_settings import USED_SETTINGS

BIGRAM_STD = 1e-3  # of the first embeddings of a member that reads pairs
VECTOR_STD, BIGRAM_VECTOR_STD = 0.5, 0.1  # of vectors of tokens; in a member that reads pairs they are not normed
HIDDEN_SHARE = 0.2  # of the tokens in training: a narrow model relies on single words


class MemberExamples(NamedTuple):
    """An example as each member reads it, and its labels."""

    members: tuple[EncodedPair, ...]
    labels: tuple[float, ...]


class ClassifierEnsemble(TextClassification):
    r"""Variant of text classification that trains several small encoders side by side.

    The probability of a label is the mean of the members' probabilities. The members share no weights, and the loss of
    an example is the mean of their own losses, so that each learns as it would alone. What differs is what they read:
    whole words or pieces of words, alone or with hashed pairs of neighbours (``defaults.MEMBERS``). Each member reads
    the mean of its tokens, or what ``--pooling.kind`` says.

    Texts without labels (``--unlabelled``) teach which words are alike: two more members know the words of all texts,
    and their first embeddings are vectors of these words (``token_vectors``).

    Args:
        members: a task for each member, with its tokenizer; all have the same labels and columns.
        texts: all texts of a new run, labelled or not.
    """

    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["ClassifierEnsemble"]
    unknown_remedy: ClassVar[str | None] = None  # other members read pieces of the words that one does not know

    def __init__(self, members: Sequence[TextClassification], texts: Sequence[str] = ()) -> None:
        first = members[0]
        super().__init__(
            first.tokenizer,
            first.labels,
            columns=first.columns,
            multi_label=first.multi_label,
            threshold=first.threshold,
        )
        self.members, self.texts = list(members), texts

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[TextClassification]:
        """Raises ``HeedfulError``: an ensemble cannot be fine-tuned."""
        if settings.start_from is not None:
            refuse_ensemble(find(settings.start_from), "fine-tune")
        return cls

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[TextClassification]:
        """Returns this class."""
        return cls

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings for an ensemble (``defaults.ensemble``)."""
        suggested = defaults.ensemble(len(rows), given, texts_of_rows(rows))
        return replace(suggested, data=replace(suggested.data, label_kind="class"))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the tasks of the members, each with a new tokenizer; equal tokenizers are trained once."""
        columns = columns_of(rows)
        labelled = list(texts_of_rows(rows))
        texts = [*labelled, *texts_of_rows(unlabelled_of(rows))]
        options: dict[str, Any] = {"columns": columns, "multi_label": are_multi_label(rows)}
        tokenizers: dict[Any, Any] = {}
        for member in defaults.members(settings):
            key = member.tokenizer, member.vectors
            if key not in tokenizers:
                own = replace(settings, tokenizer=member.tokenizer)
                tokenizers[key] = cls.train_tokenizer(texts if member.vectors else labelled, own)
        labels = training_labels(rows)
        tasks = (
            TextClassification(tokenizers[member.tokenizer, member.vectors], labels, **options)
            for member in defaults.members(settings)
        )
        return cls(list(tasks), texts)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the members' tokenizers and labels, each from its own folder."""
        return cls([TextClassification.load(member) for member in members_of(find(folder))])

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer of each member into its folder."""
        for number, member in enumerate(self.members):
            member.save(member_folder(Path(folder), number))

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new ensemble. Each member is as the settings say, but reads other tokens."""
        configs = []
        for spec, member in zip(defaults.members(settings), self.members, strict=True):
            config = member.model_config(settings)
            assert isinstance(config, EncoderConfig)
            assert isinstance(config.head, SequenceHead)
            stack, embedding = config.encoder, replace(config.embedding, bigrams=spec.bigrams)
            if spec.bigrams:
                # The mean of embeddings that begin near 0 counts words and pairs, as a linear model does. A norm of
                # each embedding would make rare pairs as long as frequent words.
                stack = replace(stack, placement="pre", embedding_norm=False, init_std=BIGRAM_STD)
            head = replace(config.head, pooling=settings.pooling.kind or "mean", pooler=False)
            configs.append(replace(config, embedding=embedding, encoder=stack, head=head))
        return EnsembleConfig(members=tuple(configs))

    def model_config(self, settings: RunSettings) -> ModelConfig:
        """Returns ``config``; the members have the registered head that ``--model.head`` names, if it is set."""
        return self.config(settings)

    @torch.no_grad()
    def initialise(self, model: Model, settings: RunSettings) -> None:
        """Writes vectors of tokens into the first embeddings of the members that have them (``Member.vectors``).

        Their deviation is large beside the learning rate, so that words of unlabelled texts stay near those of labelled
        texts, which training moves.
        """
        vectors: Tensor | None = None  # such members read the same tokens
        for (member, own), spec in zip(self._pairs(model), defaults.members(settings), strict=True):
            if not spec.vectors:
                continue
            embedding, tokenizer = own.embedding, member.tokenizer
            assert isinstance(embedding, TokenEmbedding)
            weight = embedding.token.weight
            if vectors is None:
                template = tokenizer.template()
                special = (*template.before, *template.after, tokenizer.pad, tokenizer.unknown)
                found = token_vectors(tokenizer.encode(self.texts), weight.shape[0], weight.shape[1], special)
                vectors = torch.from_numpy(found).to(weight)
            std = BIGRAM_VECTOR_STD if spec.bigrams else VECTOR_STD
            weight.copy_(torch.where(vectors.any(1, keepdim=True), std * vectors, weight))

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Prepares each member. The unknown token replaces more tokens than in a single model."""
        super().before_training(model, settings)
        averaged = f"an ensemble of {len(self.members)} classifiers, whose probabilities are averaged"
        if Path(settings.out).name == TEACHER_FOLDER:  # the run goes on with one model by itself
            self.model_notes.insert(0, averaged)
        else:
            hint = f"--teacher {settings.out} trains one model, which transformers opens"
            self.model_notes.insert(0, f"{averaged}; {hint}")
        if 0 < len(self.texts) < defaults.FEWEST_TAUGHT:  # all texts of a new run
            few = f"on fewer than {defaults.FEWEST_TAUGHT:,} texts"
            self.model_notes.insert(1, f"{few} that one is worse (667 questions of TREC: 72.1 for 75.5)")
        for member, own in self._pairs(model):
            member.before_training(own, settings)
            member.hidden_share = HIDDEN_SHARE

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model is an ensemble with a member for each of the task's."""
        for member, own in self._pairs(model):
            member.check_model(own)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless each member has a classifier with an output for every label."""
        for member, own in self._pairs(model):
            member.check_head(own)

    def recorded(self, model: Model) -> tuple[Task, Model]:
        """Returns the first member: the maps of members that read other tokens cannot be shown in one picture."""
        return next(iter(self._pairs(model)))

    def _pairs(self, model: Model) -> Iterable[tuple[TextClassification, Model]]:
        """Returns (task, model) of each member."""
        models: Any = model_of(Ensemble, model, self.name).members
        return zip(self.members, models, strict=True)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def longest(self) -> int:
        """The maximum number of tokens of an example, special tokens included: the smallest of the members'."""
        return min(member.longest for member in self.members)

    def examples(
        self, texts: Iterable[tuple[str, ...]], labels: Iterable[tuple[float, ...]], limit: int
    ) -> tuple[list[Any], list[int]]:
        """Encodes texts for every member; returns the examples, and the indices of those that a member reads cut."""
        texts, labels = list(texts), list(labels)
        encoded = [member.examples(texts, labels, limit) for member in self.members]
        views = zip(*(own for own, _ in encoded), strict=True)
        examples = [MemberExamples(view, own) for view, own in zip(views, labels, strict=True)]
        return examples, sorted({number for _, cut in encoded for number in cut})

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the numbers of tokens that each member reads of each example, (N, members)."""
        return np.array([[len(view.ids) for view in example.members] for example in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: of member i ``i.ids``, ``i.mask`` and ``i.segments`` (B, T_i); and ``labels`` (B, outputs).

        In training, each member's tokens are hidden at random on their own.
        """
        batch = {"labels": self.target_tensor(examples)}
        for number, member in enumerate(self.members):
            own = member.collate([example.members[number] for example in examples], random)
            batch |= {f"{number}.{name}": tensor for name, tensor in own.items() if name != "labels"}
        return batch

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the token sequence of each member; no token has a target."""
        return [
            side._replace(name=f"member {number}")
            for number, member in enumerate(self.members)
            for side in member.sides(member_batch(batch, number), row)
        ]

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch, which are its examples."""
        return len(batch["labels"])

    # --------------------------------------------------------------------------------------------------------- training

    def member_logits(self, model: Model, batch: Batch) -> Tensor:
        """Returns the logits (members, B, labels) of each member, in float32."""
        return torch.stack(
            [member.logits(own, member_batch(batch, number)) for number, (member, own) in enumerate(self._pairs(model))]
        )

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Returns the logits (B, labels) of the members' mean probabilities (``models.ensemble.mean_logits``)."""
        return mean_logits(self.member_logits(model, batch), self.multi_label)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the mean over the members of their losses of a batch: see ``TextClassification.objective``."""
        if self.agreement:
            batch = repeat_batch(batch)
        logits = self.member_logits(model, batch)
        losses = [self.training_loss(own, batch["labels"], label_smoothing) for own in logits]
        return torch.stack(losses).mean()
