"""Token classification: a label for each word of a text (Devlin et al. 2019, section 5.3; Tjong Kim Sang 2003)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import Head, StackConfig, TokenHead
from heedful.data import Kind, Row, Rows
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.metrics.classification import Mistakes
from heedful.metrics.entities import OUTSIDE, Entity, EntityScores, Scheme, entities
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of, read_configs
from heedful.settings import RunSettings
from heedful.tasks import defaults, known_models, tagging
from heedful.tasks.baselines import evenly_spaced
from heedful.tasks.encoder_task import HIDDEN_SHARE, EncoderTask
from heedful.tasks.generated_text_baselines import SAMPLE
from heedful.tasks.inputs_and_targets import Side, label_side
from heedful.tasks.labels import stored_label_names
from heedful.tasks.model_setup import check_classifier, load_with_head, tokenizer_of
from heedful.tasks.task import Baseline, Batch, Encoded, Measured, Prediction, arrow_joined, short
from heedful.tasks.token_batches import IGNORED, padded, padded_with_mask
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.tasks.word_splitting import WordSplitting
from heedful.tasks.word_tokens import (
    WordTokens,
    joined_words,
    tokens_of_texts,
    tokens_of_words,
    window_stride,
    word_windows,
)
from heedful.text import Tokenizer
from heedful.util.escaping import named

INPUTS_AT_ONCE = 1024  # inputs whose tokens are in memory at a time


class WordWindow(NamedTuple):
    """Window of a text, with the words whose labels are predicted in it."""

    ids: list[int]  # special tokens included
    segments: list[int]
    labels: list[int]  # of the words; empty in prediction
    positions: list[int]  # position of each word's first token
    row: int  # number of the text
    words: range  # numbers of the words in the text


class WordPredictions(NamedTuple):
    """Predicted labels of the words of a text, with their probabilities and losses."""

    labels: np.ndarray  # (words,) index of the label
    p: np.ndarray  # (words,) its probability
    losses: np.ndarray  # (words,) −log of the true label's probability; 0 in prediction


class TokenClassification(EncoderTask):
    """An encoder with a classifier over every token; the prediction at a word's first token is the word's label.

    Tags of entities begin with B- or I- (IOB1, IOB2), also with E- and S- (BIOES, BILOU). Tags without these parts are
    entities if there is an ``O``, else labels of single words (parts of speech). A text longer than the model takes is
    read in windows that share ``--data.stride`` tokens. Each word is predicted once, in the window with the most
    context.

    >>> import heedful
    >>> row = Row({"words": ("in", "Paris"), "tags": ("O", "B-LOC")}, "places.conll", 1)
    >>> settings = RunSettings(task="token-classification", train=("places.conll",), out="-", preset="bert-tiny")
    >>> task = TokenClassification.prepare([row], settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> all(entity["text"] in "in Paris" for entity in task.predict(model, ["in Paris"])[0].output)
    True

    Args:
        tokenizer: tokenizer of the texts.
        labels: the tags, in the order of the model's logits.
        stride: number of tokens that neighbouring windows of a long text share; None for a quarter of a window.
        splitting: rules that split a text into words as the training data does; None for the words of the
            ``transformers`` pipeline, as for published models.
    """

    name: ClassVar[str] = "token-classification"
    known_models: ClassVar[known_models.KnownModels | None] = known_models.TOKEN_CLASSIFICATION
    columns: Mapping[str, Kind] = MappingProxyType({"words": "words", "tags": "tags"})
    unit = "words"
    main_metric: str = "f1"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["TokenClassification"]
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "stride"})

    def __init__(
        self,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        stride: int | None = None,
        splitting: WordSplitting | None = None,
    ) -> None:
        self.tokenizer, self.labels, self.stride, self.splitting = tokenizer, list(labels), stride, splitting
        self.scheme: Scheme = tagging.scheme_of(self.labels)
        self.main_metric = "accuracy" if self.scheme == "plain" else "f1"

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows; ``valid`` is the fraction to hold out.

        A sentence with a kind of tag that no training row has is moved to training.
        """
        if len(rows) == 1:
            raise HeedfulError(
                f"{rows[0].file}:{rows[0].line}: all {len(rows[0].values['words']):,} words are one sentence, so no "
                "sentence can be held out for validation; put blank lines between sentences, or give --valid FILE"
            )
        return tagging.with_learnable_tags(*super().split_rows(rows, valid, seed, same), same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of rows, for a pretrained model also that of tags."""
        if given.start_from:
            tags = {tag for row in rows for tag in row.values["tags"]}
            return defaults.encoder_finetuning(len(rows), given, given.start_from, len(tags))
        return super().suggested_settings(rows, given)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains its tokenizer, and takes the labels from the training tags."""
        labels = tagging.tag_labels(rows)
        tokenizer = cls.train_tokenizer((" ".join(row.values["words"]) for row in rows), settings)
        return cls(tokenizer, labels, settings.data.stride, WordSplitting.learn(row.values["words"] for row in rows))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        A model without a classifier of tokens gets a new one. If the data has tags that the model does not know, the
        classifier gets a new output layer.
        """
        folder = cls.model_folder(folder)
        names = tagging.tag_labels(rows)
        tags = {tag for row in rows for tag in row.values["tags"]}
        own = stored_label_names(read_configs(folder)[0]) if isinstance(config_of(folder).head, TokenHead) else []
        known = tags <= set(own)
        splitting = WordSplitting.learn(row.values["words"] for row in rows)
        task = cls(tokenizer_of(folder), own if known else names, settings.data.stride, splitting)
        model = load_with_head(folder, TokenHead.kind, settings.seed or 0, None if known else len(names))
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, the labels from ``config.json``, and the task's entries of ``heedful.json``."""
        folder = cls.model_folder(folder)
        card = read_card(folder)
        stored = card.get("word_splitting")
        splitting = None if stored is None else WordSplitting.read(stored, folder)
        return cls(tokenizer_of(folder), stored_label_names(read_configs(folder)[0]), card.get("stride"), splitting)

    def card_entries(self) -> dict[str, Any]:
        """Returns the task's entries for ``heedful.json``: the stride, if it was set, and how texts are split into
        words.
        """
        splitting = {} if self.splitting is None else {"word_splitting": self.splitting.as_dict()}
        return ({} if self.stride is None else {"stride": self.stride}) | splitting

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the label names in the model. In training of a new model, the unknown token replaces random tokens."""
        model.labels = list(self.labels)
        self.hidden_share = 0.0 if settings.start_from else HIDDEN_SHARE

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a classifier of tokens with an output for each label."""
        return TokenHead(labels=len(self.labels), dropout=stack.dropout.residual)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a classifier of tokens with an output for every label."""
        check_classifier(self.name, model, self.labels, TokenHead)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def reads(self) -> None:
        """No limit: longer texts are split into windows."""
        return None

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each row as one window, or as several if it is longer than ``max_length`` tokens or the model's
        limit.

        The note of the result names the tagging scheme.
        """
        most = min(max_length or self.longest, self.longest)
        labels = [tagging.tag_ids(row, self.labels) for row in rows]
        texts = tokens_of_words(self.tokenizer, [row.values["words"] for row in rows])
        examples = list(self._windows(texts, most, self.stride, labels))
        parts = np.bincount(np.array([example.row for example in examples], dtype=np.int64))
        note = tagging.tag_summary(rows, self.labels)
        if parts.max(initial=0) > 1:
            split, reason = int((parts > 1).sum()), "--data.max-length" if most == max_length else "the model's limit"
            note += (
                f"; {plural(split, 'sentence')} in {parts[parts > 1].sum():,} windows of "
                f"{most} tokens ({reason}), each word counted once"
            )
        return Encoded(examples, rows, note)

    def _windows(
        self, texts: Sequence[WordTokens], most: int, stride: int | None, labels: Sequence[Sequence[int]] | None = None
    ) -> Iterator[WordWindow]:
        template = self.tokenizer.template()
        room = most - template.added
        if room < 1:
            raise HeedfulError(f"--data.max-length {most} has no room for a word; give {template.added + 1} or more")
        shared = window_stride(stride, room)
        for row, text in enumerate(texts):
            own = None if labels is None else labels[row]
            for tokens, words in word_windows(text.first, len(text.ids), room, shared):
                ids, segments = template.join(text.ids[tokens.start : tokens.stop])
                offset = len(template.before) - tokens.start
                positions = [text.first[word] + offset for word in words]
                yield WordWindow(
                    ids, segments, [] if own is None else [own[word] for word in words], positions, row, words
                )

    def collate(self, examples: Sequence[WordWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: ``ids``, ``mask``, ``segments`` and ``labels`` (B, T).

        ``labels`` has a word's label at its first token, and −100 elsewhere. When a new model is trained, random tokens
        are replaced by the unknown token.
        """
        ids, mask = padded_with_mask([example.ids for example in examples])
        segments = padded([example.segments for example in examples], 0)
        labels = torch.full(ids.shape, IGNORED)
        for i, example in enumerate(examples):
            if example.labels:
                labels[i, example.positions] = torch.tensor(example.labels)
        self.hide_tokens(ids, mask, random)
        return {"ids": ids, "mask": mask, "segments": segments, "labels": labels}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: the text.

        ``heedful audit`` shows it. In it the target at the first token of a word is the word's label.
        """
        ids, mask, labels = (batch[name][row] for name in ("ids", "mask", "labels"))
        return [label_side("text", ids, mask, labels, self.tokenizer, lambda label: named(self.labels[label]))]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch: the words with a label."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over words of −Σ_c y_c log p_c at the word's first token.

        y is the one-hot label, smoothed to (1 − ε) y + ε/C for C labels.
        """
        return self._loss(self.logits(model, batch), batch["labels"], label_smoothing)

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def _predict_words(
        self, model: Model, examples: Sequence[WordWindow], sizes: Sequence[int], tokens: int | None
    ) -> list[WordPredictions]:
        """Predicts the labels of the words of each text; ``sizes`` holds the number of words of each text."""
        predictions = [WordPredictions(np.zeros(size, np.int32), *np.zeros((2, size), np.float32)) for size in sizes]

        def read(batch: Batch) -> tuple[np.ndarray, ...]:
            logits = self.logits(model, batch)
            losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], ignore_index=IGNORED, reduction="none")
            p, best = logits.softmax(-1).max(-1)
            return best.cpu().numpy(), p.cpu().numpy(), losses.cpu().numpy()

        for indices, arrays in self.map_batches(model, examples, read, tokens) if examples else ():
            for i, index in enumerate(indices):
                example = examples[index]
                words = slice(example.words.start, example.words.stop)
                for own, array in zip(predictions[example.row], arrays, strict=True):
                    own[words] = array[i, example.positions]
        return predictions

    def measure(
        self, model: Model, examples: Sequence[WordWindow], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns F1, precision, recall and macro F1 of entities, and the accuracy of words; for plain tags accuracy
        and macro F1.

        The details have ``by_class`` and the most confident ``mistakes``: the missed and the wrong entities of a
        sentence. For plain tags the mistakes are words, and there is also ``confusion``.
        """
        truth = [tagging.tag_ids(row, self.labels) for row in rows]
        if options.get("stride") is not None:
            texts = tokens_of_words(self.tokenizer, [row.values["words"] for row in rows])
            examples = list(self._windows(texts, self.longest, options["stride"], truth))
        predictions = self._predict_words(model, examples, [len(own) for own in truth], options.get("batch_tokens"))
        scores, mistakes, outputs = EntityScores(self.scheme), Mistakes(), []
        confusion = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        for index, (row, predicted) in enumerate(zip(rows, predictions, strict=True)):
            tags = [self.labels[i] for i in predicted.labels]
            scores.add(row.values["tags"], tags, float(predicted.losses.sum(dtype=np.float64)))
            np.add.at(confusion, (np.array(truth[index]), predicted.labels), 1)
            text, spans = joined_words(row.values["words"])
            outputs.append(self._output(text, spans, predicted))
            expected, output = entities(row.values["tags"], self.scheme), entities(tags, self.scheme)
            if expected != output:
                missed = _entity_list(text, spans, [entity for entity in expected if entity not in output])
                wrong = _entity_list(text, spans, [entity for entity in output if entity not in expected])
                mistakes.add(index, text, missed, wrong, _joint_probability(predicted))
        details = scores.details() | mistakes.details()
        if self.scheme == "plain":
            details["confusion"] = {"labels": list(self.labels), "counts": confusion.tolist()}
        return Measured(scores.metrics(), details, scores, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: a linear model on words and their neighbours (``heedful.tasks.tagging.LinearTagger``)."""
        predicted = tagging.LinearTagger(learned()).tags([row.values["words"] for row in rows])
        scores = self._scored_tags(rows, predicted)
        metrics = {name: value for name, value in scores.metrics().items() if name != "loss"}
        return Baseline("a linear SVM on words, their letters and neighbours", metrics, scores)

    def guess(self, examples: Sequence[WordWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that predicts the same tag for every word: the best one on at most 200 training rows.

        For entities it is usually ``O`` (no entity), whose F1 is 0.
        """
        sample, metric = Rows(learned[i] for i in evenly_spaced(len(learned), SAMPLE)), self.main_metric
        counts = Counter(tag for row in learned for tag in row.values["tags"])

        def scored(tag: str, rows: Rows) -> EntityScores:
            return self._scored_tags(rows, [[tag] * len(row.values["words"]) for row in rows])

        tag = max(dict(counts.most_common()), key=lambda tag: scored(tag, sample).metrics()[metric])
        scores = scored(tag, rows)
        return Baseline(f"the tag {tag} for every word", scores.metrics(), scores)

    def _scored_tags(self, rows: Rows, predicted: Sequence[Sequence[str]]) -> EntityScores:
        """Scores the tags of a simple method, with a loss of 0, as a model's scores have one."""
        scores = EntityScores(self.scheme)
        for row, tags in zip(rows, predicted, strict=True):
            scores.add(row.values["tags"], tags, 0.0)
        return scores

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the entities of each text, or for plain tags its words: ``{"label", "text", "start", "end",
        "score"}``.

        ``text[start:end]`` are the characters of an entity, and its score is the mean probability of its words' labels.
        The prediction's score is the probability that all labels are right, as if labels were independent. The output
        for an input without a word is empty.

        An input is a text, a list of words, or ``{"words": [...]}``, whose text is the words joined by spaces. A model
        that was trained here reads a text as the words of ``heedful.tasks.word_splitting``, any other as those of
        ``heedful.tasks.word_tokens.tokens_of_texts``. Entities are read as
        by ``seqeval`` (``heedful.metrics.entities``): an I- without an entity before it begins a new entity. The
        ``transformers`` pipeline with ``aggregation_strategy="first"`` does the same, but knows B and I only and
        truncates long texts.
        """
        predictions: list[Prediction] = []
        stride = self.stride if options.get("stride") is None else options["stride"]
        for first in range(0, max(1, len(inputs)), INPUTS_AT_ONCE):  # once without inputs, which checks the stride
            block = inputs[first : first + INPUTS_AT_ONCE]
            texts = self._encode_inputs(block)
            examples = list(self._windows(texts, self.longest, stride))
            sizes = [len(text.first) for text in texts]
            word_predictions = self._predict_words(model, examples, sizes, options.get("batch_tokens"))
            for value, text, predicted in zip(block, texts, word_predictions, strict=True):
                score = _joint_probability(predicted) if text.first else None
                predictions.append(Prediction(value, self._output(text.text, text.spans, predicted), score))
        return predictions

    def _encode_inputs(self, inputs: Sequence[Any]) -> list[WordTokens]:
        """Returns the tokens of each input."""
        texts = {index: value for index, value in enumerate(inputs) if isinstance(value, str)}
        lists = {index: _words(value) for index, value in enumerate(inputs) if not isinstance(value, str)}
        encoded = dict(zip(texts, self._encode_texts([*texts.values()]), strict=True))
        encoded |= dict(zip(lists, tokens_of_words(self.tokenizer, [*lists.values()]), strict=True))
        return [encoded[index] for index in range(len(inputs))]

    def _encode_texts(self, texts: Sequence[str]) -> list[WordTokens]:
        """Returns the tokens of texts, of each word as in training."""
        if self.splitting is None:
            return tokens_of_texts(self.tokenizer, texts)
        split = [self.splitting.words_of(text) for text in texts]
        encoded = tokens_of_words(self.tokenizer, [[word for word, _ in words] for words in split])
        return [
            own._replace(text=text, spans=[span for _, span in words])
            for own, text, words in zip(encoded, texts, split, strict=True)
        ]

    def _output(self, text: str, spans: Sequence[tuple[int, int]], predicted: WordPredictions) -> list[dict[str, Any]]:
        output = []
        for kind, first, last in entities([self.labels[i] for i in predicted.labels], self.scheme):
            start, end = spans[first][0], spans[last - 1][1]
            score = float(predicted.p[first:last].mean())
            output.append({"label": kind, "text": text[start:end], "start": start, "end": end, "score": score})
        return output

    def expected(self, row: Row) -> list[dict[str, Any]]:
        """Returns the entities of a row, or for plain tags its words: ``{"label", "text", "start", "end"}``."""
        text, spans = joined_words(row.values["words"])
        expected = []
        for kind, first, last in entities(row.values["tags"], self.scheme):
            start, end = spans[first][0], spans[last - 1][1]
            expected.append({"label": kind, "text": text[start:end], "start": start, "end": end})
        return expected

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``sentence → entities``, or for plain tags the tagged words."""
        text, spans = joined_words(row.values["words"])
        return arrow_joined([text, _entity_list(text, spans, entities(row.values["tags"], self.scheme))])


def _words(value: Any) -> list[str]:
    """Returns the words of an input that is not a text."""
    words = value.get("words") if isinstance(value, Mapping) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
        raise HeedfulError(
            'this model takes a text, a list of words, or {"words": [...]}, none of them empty; got '
            f"{short(repr(value))}"
        )
    return list(words)


def _entity_list(text: str, spans: Sequence[tuple[int, int]], listed: Sequence[Entity]) -> str:
    """Returns entities as text for people: ``Paris (LOC), Ann Lee (PER)``."""
    return (
        ", ".join(f"{text[spans[first][0] : spans[last - 1][1]]} ({kind})" for kind, first, last in listed) or OUTSIDE
    )


def _joint_probability(predicted: WordPredictions) -> float:
    """Returns the probability that all labels are right, as if labels were independent."""
    return float(np.exp(np.log(predicted.p.astype(np.float64)).sum()))
