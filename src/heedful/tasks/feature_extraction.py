"""Feature extraction: a vector for a text, near those of texts with the same meaning (Reimers and Gurevych 2019)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.config import Config, DecoderConfig, EncoderConfig, Head, PooledHead, StackConfig
from heedful.data import Kind, Row, Rows, split
from heedful.data.batching import evaluation_batches
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.metrics import ranking
from heedful.metrics.classification import Mistakes
from heedful.metrics.example_scores import Scored, overall
from heedful.models import Model
from heedful.pretrained import load, read_card
from heedful.pretrained.configuration import config_of
from heedful.pretrained.pooling import (
    TextPreparation,
    pooled_head,
    read_text_preparation,
    repool,
    write_text_preparation,
)
from heedful.settings import PoolingSettings, RunSettings
from heedful.tasks import defaults, known_models
from heedful.tasks.baselines import word_vectors
from heedful.tasks.contrastive_loss import contrastive, cosent, negative_mask, text_vectors
from heedful.tasks.encoder_task import EncoderTask
from heedful.tasks.inputs_and_targets import Side, input_side
from heedful.tasks.model_setup import tokenizer_of
from heedful.tasks.retrieval_pairs import SIDES, check_rows, groups_of, retrieval_texts, search
from heedful.tasks.task import (
    EVALUATED,
    SQUARE,
    Baseline,
    Batch,
    Encoded,
    Measured,
    Prediction,
    arrow_joined,
    check_texts,
    short,
)
from heedful.tasks.text_pairs import fitted
from heedful.tasks.token_batches import padded_with_mask
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

POOLED = PooledHead(pooling="mean", normalise=True)  # default
NO_CUT = 1 << 40  # more tokens than a text has
TEMPERATURE = 0.05  # as in sentence-transformers and SimCSE (Gao, Yao and Chen 2021)
PLAIN = TextPreparation()


class TextsExample(NamedTuple):
    """Token ids of a row's texts: a text, its pair and perhaps a negative; or a pair with its score."""

    sides: tuple[list[int], ...]  # token ids of each text, special tokens included
    score: float | None


class FeatureExtraction(EncoderTask):
    """Text embedding by a model of text, usually an encoder, whose head pools a text's tokens to one vector.

    The model learns from pairs of related texts: each text is contrasted with all other pairs of the batch, and with
    the ``negative`` texts, if the data has them. From pairs with a ``score`` it learns to order them as the scores do.
    Both losses depend on the whole batch, so two accumulated batches do not equal one batch of twice the size.
    ``pooling.chunk`` makes large batches possible in little memory.

    >>> import heedful
    >>> pairs = [("a bird sings", "tweet"), ("a cow calls", "moo")]
    >>> data = Rows(Row({"text": text, "text_pair": pair}, "calls.tsv", 1) for text, pair in pairs)
    >>> settings = RunSettings(task="feature-extraction", train=("calls.tsv",), out="calls", preset="bert-tiny")
    >>> task = FeatureExtraction.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> len(task.predict(model, ["tweet"])[0].output)
    128

    Args:
        tokenizer: tokenizer of the texts.
        reading: how texts are prepared: maximum length, lower case, a prompt put before the text.
    """

    name: ClassVar[str] = "feature-extraction"
    known_models: ClassVar[known_models.KnownModels | None] = known_models.FEATURE_EXTRACTION
    columns: Mapping[str, Kind] = MappingProxyType(
        {"text": "text", "text_pair": "text", "negative": "text?", "score": "number?"}
    )
    unit = "examples"
    additive_loss: ClassVar[bool] = False
    ranks_rows: ClassVar[bool] = True
    main_metric: str = "mrr"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["FeatureExtraction"]
    head: ClassVar[str | None] = PooledHead.kind
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens"})
    families: ClassVar[tuple[type[Config], ...]] = (EncoderConfig, DecoderConfig)
    needs: ClassVar[str] = "an encoder or a decoder"

    def __init__(self, tokenizer: Tokenizer, reading: TextPreparation = PLAIN) -> None:
        self.tokenizer, self.reading = tokenizer, reading
        if reading.longest is not None:
            limit = tokenizer.config.get("model_max_length")
            tokenizer.config["model_max_length"] = min(reading.longest, limit or reading.longest)
        self._set_loss(PoolingSettings())

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows; rows connected by shared texts, in any column, stay together."""
        groups = [Row({"group": group}, rows[0].file, i) for i, group in enumerate(groups_of(rows))]
        try:
            parts = split(groups, valid, seed, by="group", same=same)
        except HeedfulError:
            if len({row.values["group"] for row in groups}) > 1:
                raise
            if len(rows) > 1:
                reason, remedy = "shared texts connect all rows", "add rows with other texts"
            else:
                reason, remedy = "there is a single row", "add rows"
            raise HeedfulError(
                f"{rows[0].file}: {reason}, so no row can be held out for validation; {remedy}, or give --valid FILE"
            ) from None
        train, held = ([rows[group.line] for group in part] for part in parts)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of examples.

        For a pretrained model, they are those of published fine-tuning.
        """
        batch = given.training.batch_size or defaults.PAIR_BATCH
        pooling = PoolingSettings(temperature=TEMPERATURE, symmetric=True)
        if given.start_from:
            sized = replace(given, training=replace(given.training, batch_size=batch))
            suggested = defaults.encoder_finetuning(len(rows), sized, given.start_from)
        else:
            first = rows[:1000]
            words = sum(len(text.split()) for row in first for text in retrieval_texts(row)) / len(first)
            suggested = defaults.encoder(len(rows), given, round(words))
            pooling = replace(pooling, kind=POOLED.pooling, normalise=POOLED.normalise)
        training = replace(suggested.training, label_smoothing=0.0)
        if not given.training.batch_tokens:
            training = replace(training, batch_size=batch, batch_tokens=None)
        return replace(suggested, pooling=pooling, training=training)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer on the training texts."""
        check_rows(rows, settings)
        return cls(cls.train_tokenizer([text for row in rows for text in retrieval_texts(row)], settings))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        The pooling is that of the settings, else the folder's, else mean pooling with vectors scaled to length 1.
        """
        check_rows(rows, settings)
        folder = cls.model_folder(folder)
        has_pooling = pooled_head(folder) is not None or isinstance(config_of(folder).head, PooledHead)
        task, model = cls.load(folder), load(folder, head=cls.head, dtype="float32")
        if isinstance(model.config.head, PooledHead):
            repool(model, _head(settings.pooling, model.config.head if has_pooling else POOLED))
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer and how texts are prepared, from a folder of Heedful or of sentence-transformers."""
        folder = cls.model_folder(folder)
        task = cls(tokenizer_of(folder), read_text_preparation(folder))
        task._set_loss(PoolingSettings(**read_card(folder).get("settings", {}).get("pooling", {})))
        return task

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer and, in the files of sentence-transformers, how texts are prepared."""
        super().save(folder)
        write_text_preparation(Path(folder), self.reading._replace(longest=self.longest))

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a pooled head with the settings' pooling."""
        return _head(settings.pooling, POOLED)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the settings of the loss, such as temperature and chunk, in the task."""
        self._set_loss(settings.pooling)

    def _set_loss(self, pooling: PoolingSettings) -> None:
        self.temperature = pooling.temperature or TEMPERATURE
        self.symmetric = pooling.symmetric is not False
        self.chunk: int | None = pooling.chunk

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a pooled head."""
        head = model.config.head
        if not isinstance(head, PooledHead):
            raise HeedfulError(
                f"{self.name} needs a pooled head, and this model's head is of kind {head.kind!r}; load it with "
                'heedful.from_pretrained(..., head="pooled")'
            )

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each row's texts, truncated to ``max_length`` tokens and to the model's limit.

        Sets the task's ``main_metric``: "spearman" for pairs with scores, else "mrr". Validation rows are encoded last,
        so they determine it.
        """
        most = min(max_length or self.longest, self.longest)
        texts = [retrieval_texts(row) for row in rows]
        ids, cut = self._ids([text for sides in texts for text in sides], most)
        encoded = iter(zip(ids, cut, strict=True))
        examples, unread = [], []
        for sides, row in zip(texts, rows, strict=True):
            own = [next(encoded) for _ in sides]
            examples.append(TextsExample(tuple(side for side, _ in own), row.values.get("score")))
            unread += [row] if any(is_cut for _, is_cut in own) else []
        self.main_metric = "mrr" if examples and examples[0].score is None else "spearman"
        reason = "--data.max-length" if most == max_length else "the model takes no more"
        note = f"{plural(sum(cut), 'text')} cut to {most} tokens ({reason})" if unread else ""
        return Encoded(examples, rows, note, len(unread), unread)

    def _ids(self, texts: Sequence[str], most: int) -> tuple[list[list[int]], list[bool]]:
        """Returns the ids of each text, and for each text True if it was truncated."""
        prompted = [self.reading.prompt + text for text in texts]
        parts = self.tokenizer.encode([text.lower() for text in prompted] if self.reading.lowercase else prompted)
        template = self.tokenizer.template()
        truncated = [fitted([ids], most, template.added)[0] for ids in parts]
        cut = [len(short_ids) != len(ids) for short_ids, ids in zip(truncated, parts, strict=True)]
        return [template.join(ids)[0] for ids in truncated], cut

    def normalises(self, model: Model) -> bool:
        """Returns True if the model's vectors have length 1."""
        return isinstance(model.config.head, PooledHead) and model.config.head.normalise

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each text before it is truncated, special tokens included."""
        return [len(ids) for ids in self._ids(texts, NO_CUT)[0]]

    def lengths(self, examples: Sequence[TextsExample]) -> np.ndarray:
        """Returns the number of tokens of each text, special tokens included, as an array (N, texts of an example)."""
        return np.array([[len(ids) for ids in example.sides] for example in examples], dtype=np.int64)

    def collate(self, examples: Sequence[TextsExample], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch of B examples as tensors.

        For each text of an example there are ``ids`` and ``mask`` (B, T), named as "text.ids". ``same`` (texts of an
        example, B) has numbers that are equal for equal texts. ``scores`` (B,) is included if the data has scores.
        """
        batch: dict[str, Tensor] = {}
        numbers: dict[tuple[int, ...], int] = {}
        columns = list(zip(*(example.sides for example in examples), strict=True))
        for name, side in zip(SIDES, columns, strict=False):
            batch[f"{name}.ids"], batch[f"{name}.mask"] = padded_with_mask(side)
        same = [[numbers.setdefault(tuple(ids), len(numbers)) for ids in side] for side in columns]
        batch["same"] = torch.tensor(same)
        if examples[0].score is not None:
            batch["scores"] = torch.tensor([example.score for example in examples])
        return batch

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the two or three token sequences of a batch's ``row``: text, pair and any negative.

        ``heedful audit`` shows them. They have no targets.
        """
        names = [name for name in SIDES if f"{name}.ids" in batch]
        return [
            input_side(name, batch[f"{name}.ids"][row], batch[f"{name}.mask"][row], self.tokenizer) for name in names
        ]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch, which are its pairs."""
        return len(batch["text.ids"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the contrastive loss from texts to their pairs (``contrastive_loss.contrastive``).

        If ``symmetric`` is set, it is the mean of both directions (Radford et al. 2021, section 2.3). For pairs with
        scores it is the CoSENT loss (``contrastive_loss.cosent``).
        """
        sides = [name for name in SIDES if f"{name}.ids" in batch]
        vectors = [text_vectors(model, batch[f"{name}.ids"], batch[f"{name}.mask"], self.chunk) for name in sides]
        texts, pairs = vectors[:2]
        if "scores" in batch:
            return cosent(texts, pairs, batch["scores"], self.temperature)
        same = batch["same"]
        negatives = negative_mask(same[0], same[1], same[1:].flatten())
        loss = contrastive(texts, torch.cat(vectors[1:]), negatives, self.temperature, label_smoothing)
        if not self.symmetric:
            return loss
        negatives = negative_mask(same[1], same[0], same[0])
        reverse_loss = contrastive(pairs, texts, negatives, self.temperature, label_smoothing)
        return (loss + reverse_loss) / 2

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[TextsExample], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns the scores of similarity or of retrieval on all examples; ``most`` has no effect.

        With scores they are Spearman's and Pearson's correlation of the scores with the cosines. Without scores they
        are recall@k and the mean reciprocal rank of each text's pair among all pairs and negatives of these rows.
        ``loss`` is the loss of all rows as one batch. The details have the most confident ``mistakes`` of retrieval.
        """
        numbers: dict[tuple[int, ...], int] = {}
        text_numbers = np.array(
            [[numbers.setdefault(tuple(ids), len(numbers)) for ids in example.sides] for example in examples]
        )
        vectors = ranking.unit(self._vectors(model, list(numbers), options.get("batch_tokens")))
        if examples[0].score is not None:
            cosines = (vectors[text_numbers[:, 0]] * vectors[text_numbers[:, 1]]).sum(1)
            scores = np.array([example.score for example in examples], dtype=np.float64)
            scored: Scored = ranking.Correlations(cosines, scores, self.temperature)
            return Measured(overall(scored), example_scores=scored, outputs=cosines.tolist())
        result, nearest = search(vectors, text_numbers, self.temperature)
        losses = result.losses
        if self.symmetric:
            losses = (losses + search(vectors, text_numbers[:, 1::-1], self.temperature)[0].losses) / 2
        scored = ranking.retrieval(result.ranks, losses)
        texts = {
            number: text
            for row, numbers_of_row in zip(rows, text_numbers.tolist(), strict=True)
            for text, number in zip(retrieval_texts(row), numbers_of_row, strict=True)
        }
        outputs = [texts[int(number)] for number in nearest]
        mistakes = Mistakes()
        for i in np.flatnonzero(result.ranks > 1):
            row, similarity = rows[i].values, float(vectors[text_numbers[i, 0]] @ vectors[nearest[i]])
            text, pair, found = (short(text, 200) for text in (row["text"], row["text_pair"], outputs[i]))
            mistakes.add(int(i), text, pair, found, similarity)
        return Measured(overall(scored), mistakes.details(), scored, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: cosines of TF-IDF vectors, with document frequencies counted in the training texts."""
        numbers: dict[str, int] = {}
        text_numbers = np.array(
            [[numbers.setdefault(text, len(numbers)) for text in retrieval_texts(row)] for row in rows]
        )
        (vectors,) = word_vectors([text for row in learned() for text in retrieval_texts(row)], list(numbers))
        if "score" in rows[0].values:
            cosines = np.asarray(vectors[text_numbers[:, 0]].multiply(vectors[text_numbers[:, 1]]).sum(1)).ravel()
            scored: Scored = ranking.Correlations(cosines, [row.values["score"] for row in rows], self.temperature)
        else:
            result, _ = search(vectors, text_numbers, self.temperature)
            scored = ranking.retrieval(result.ranks, result.losses)
        metrics = {name: value for name, value in overall(scored).items() if name != "loss"}
        return Baseline("cosine of TF-IDF vectors", metrics, scored)

    def guess(self, examples: Sequence[TextsExample], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that ignores the texts: equal similarity for all pairs or, for retrieval, random ranks."""
        if "score" in rows[0].values:
            scores = [row.values["score"] for row in rows]
            constant: Scored = ranking.Correlations(np.zeros(len(rows)), scores, self.temperature)
            return Baseline("the same similarity for all pairs", overall(constant), constant)
        ranks = np.random.default_rng(0).integers(1, len(rows) + 1, len(rows))
        scored = ranking.retrieval(ranks, np.zeros(len(rows)))
        return Baseline("ranks drawn at random", overall(scored), scored)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the vector of each text, a list of numbers; [] for a blank text.

        A text longer than the model takes is truncated, with a warning.
        """
        check_texts(self.name, inputs)
        predictions = [Prediction(text, [], None) for text in inputs]
        nonblank = [i for i, text in enumerate(inputs) if text.strip()]
        if nonblank:
            vectors = self.vectors(model, [inputs[i] for i in nonblank], options.get("batch_tokens"))
            for i, vector in zip(nonblank, vectors, strict=True):
                predictions[i] = Prediction(inputs[i], vector.tolist(), None)
        return predictions

    @torch.no_grad()
    def vectors(
        self,
        model: Model,
        texts: Sequence[str],
        tokens: int | None = None,
        tick: Callable[[int], object] | None = None,
    ) -> NDArray[np.float32]:
        """Returns the vectors (N, D) of texts.

        Texts are computed in batches of ``tokens`` tokens, equal texts once. ``tick`` is called after each batch with
        the number of texts done so far, equal texts included. Logs a warning if texts are longer than the model takes
        and are truncated.
        """
        ids, cut = self._ids(texts, self.longest)
        if any(cut):
            log.warning(
                CountWarning(sum(cut), len(texts), f"cut to {self.longest:,} tokens (the model takes no more)", "text")
            )
        numbers: dict[tuple[int, ...], int] = {}
        number_of_text = [numbers.setdefault(tuple(row), len(numbers)) for row in ids]
        distinct = np.zeros((len(numbers), model.main.dim), dtype=np.float32)
        times, done = np.bincount(np.array(number_of_text, np.int64), minlength=len(numbers)), 0
        for batch, vectors in self._batches(model, list(numbers), tokens):
            distinct[batch] = vectors
            done += int(times[batch].sum())
            if tick is not None:
                tick(done)
        return distinct[number_of_text]

    @property
    def ranks_texts(self) -> bool:
        """True: texts are ranked by the cosine of their vectors with the query's."""
        return True

    def relevance(self, model: Model, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the cosine similarity of each text with the query; raises ``HeedfulError`` for a blank one."""
        if not all(text.strip() for text in (query, *texts)):
            raise HeedfulError("the query or a text is blank; give texts")
        vectors = self.vectors(model, [query, *texts])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        return [float(similarity) for similarity in vectors[1:] @ vectors[0]]

    def _vectors(self, model: Model, texts: Sequence[Sequence[int]], tokens: int | None) -> NDArray[np.float32]:
        """Returns the vectors (N, D) of rows of ids."""
        vectors = np.zeros((len(texts), model.main.dim), dtype=np.float32)
        for indices, batch_vectors in self._batches(model, texts, tokens):
            vectors[indices] = batch_vectors
        return vectors

    def _batches(
        self, model: Model, texts: Sequence[Sequence[int]], tokens: int | None
    ) -> Iterator[tuple[np.ndarray, NDArray[np.float32]]]:
        """Yields (indices, vectors) for each batch of rows of ids of similar lengths."""
        budget = tokens or EVALUATED

        @torch.no_grad()
        def read(indices: np.ndarray) -> NDArray[np.float32]:
            ids, mask = padded_with_mask([texts[i] for i in indices])
            return model(ids.to(model.device), mask.to(model.device)).float().cpu().numpy()

        return sharding.each(evaluation_batches([len(ids) for ids in texts], budget, pairs=budget * SQUARE), read)

    def input_and_target(self, row: Row) -> tuple[Any, Any]:
        """Returns (text, pair) of a row, or ([text, pair], score) if it has a score."""
        text, pair = retrieval_texts(row)[:2]
        return ([text, pair], row.values["score"]) if "score" in row.values else (text, pair)

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``text → pair``, ``text → pair, not negative`` or ``text + pair →
        3.5``.
        """
        text, pair, *negative = map(short, retrieval_texts(row))
        if "score" in row.values:
            return f"{text} + {pair} → {row.values['score']:g}"
        return arrow_joined([text, pair]) + "".join(f", not {other}" for other in negative)


def _head(given: PoolingSettings, default: PooledHead) -> PooledHead:
    """Returns the pooled head of the settings; unset values are those of ``default``."""
    normalise = default.normalise if given.normalise is None else given.normalise
    return replace(default, pooling=given.kind or default.pooling, normalise=normalise)
