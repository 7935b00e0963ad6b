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
from heedful.tasks import tagging
from heedful.tasks.encoder_task import HIDDEN_SHARE, EncoderTask
from heedful.tasks.inputs_and_targets import Side, label_side
from heedful.tasks.labels import stored
from heedful.tasks.model_setup import check_classifier, load_with_head, tokenizer_of
from heedful.tasks.task import TEXTS, Baseline, Batch, Encoded, Measured, Prediction, arrow_joined, short
from heedful.tasks.token_batches import IGNORED, padded, padded_with_mask
from heedful.tasks.word_tokens import Worded, of_texts, of_words, shared, spread, windows
from heedful.text import Tokenizer
from heedful.util.escaping import named

AT_ONCE = 1024  # inputs whose tokens are held at a time


class WordWindow(NamedTuple):
    """One window of a text: token ids with the special ones, their segments, and which words are asked for where."""

    ids: list[int]
    segments: list[int]
    labels: list[int]  # of these words; none where they are to be found
    places: list[int]  # the place of each word's first token
    row: int  # the text that this is a window of
    words: range  # which of its words


class Said(NamedTuple):
    """Predicted labels of the words of a text."""

    labels: np.ndarray  # (words,) the place of the label
    p: np.ndarray  # (words,) its probability
    losses: np.ndarray  # (words,) −log of the true label's probability; 0 where there is none


class TokenClassification(EncoderTask):
    """An encoder with a classifier over every token; what it says of a word's first token is the word's label.

    Words that tell entities begin with B- or I- (IOB1, IOB2) or with E- and S- too (BIOES, BILOU); tags without these
    are entities where there is an ``O``, else each word's own (parts of speech). A text longer than the model takes is
    read in windows that share ``--data.stride`` tokens, and every word counts once, where its window shows most of what
    stands around it: no label is ever lost.

    >>> import heedful
    >>> row = Row({"words": ("in", "Paris"), "tags": ("O", "B-LOC")}, "places.conll", 1)
    >>> settings = RunSettings(task="token-classification", train=("places.conll",), out="-", preset="bert-tiny")
    >>> task = TokenClassification.prepare([row], settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> all(one["text"] in "in Paris" for one in task.predict(model, ["in Paris"])[0].output)
    True

    Args:
        tokenizer: of the texts.
        labels: the tags, in the order of the model's logits.
        stride: tokens that neighbouring windows of a long text share; None is a quarter of a window.
    """

    name: ClassVar[str] = "token-classification"
    columns: Mapping[str, Kind] = MappingProxyType({"words": "words", "tags": "tags"})
    unit = "words"
    main_metric: str = "f1"
    used_settings: ClassVar[frozenset[str]] = TEXTS | {"data.stride", "data.strip_prefix"}
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "stride"})

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str], stride: int | None = None) -> None:
        self.tokenizer, self.labels, self.stride = tokenizer, list(labels), stride
        self.scheme: Scheme = tagging.scheme_of(self.labels)
        self.main_metric = "accuracy" if self.scheme == "plain" else "f1"

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """As every task does, but a sentence with a kind of tag that no training row would have goes to training."""
        if len(rows) == 1:
            raise HeedfulError(
                f"{rows[0].file}:{rows[0].line}: all {len(rows[0].values['words']):,} words are one sentence, and some "
                "are held back to validate on; put a blank line between sentences, or name validation data: --valid"
            )
        return tagging.teachable(*super().split_rows(rows, valid, seed, same), same)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Trains the tokenizer on the training sentences; the labels are theirs."""
        labels = tagging.labels_of(rows)
        tokenizer = cls.train_tokenizer((" ".join(row.values["words"]) for row in rows), settings)
        return cls(tokenizer, labels, settings.data.stride)

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads the folder's model, with a new classifier of tokens if it has none, and with a new output layer if the
        data has tags that the model does not know.
        """
        folder = cls.model_folder(folder)
        names = tagging.labels_of(rows)
        tags = {tag for row in rows for tag in row.values["tags"]}
        own = stored(read_configs(folder)[0]) if isinstance(config_of(folder).head, TokenHead) else []
        known = tags <= set(own)
        task = cls(tokenizer_of(folder), own if known else names, settings.data.stride)
        model = load_with_head(folder, TokenHead.kind, settings.seed or 0, None if known else len(names))
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, and the labels of ``config.json``."""
        folder = cls.model_folder(folder)
        return cls(tokenizer_of(folder), stored(read_configs(folder)[0]), read_card(folder).get("stride"))

    def card_entries(self) -> dict[str, Any]:
        """Returns the stride, if it was set."""
        return {} if self.stride is None else {"stride": self.stride}

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Names the model's classes; a new model has tokens hidden."""
        model.labels = list(self.labels)
        self.hidden_share = 0.0 if settings.start_from else HIDDEN_SHARE

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns a classifier of tokens with an output for each label."""
        return TokenHead(labels=len(self.labels), dropout=stack.dropout.residual)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a classifier of tokens with an output for every label."""
        check_classifier(self.name, model, self.labels, TokenHead)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Each row as a window, or as several where it is longer than ``max_length`` tokens or than the model takes.
        The note says by which scheme the tags tell entities.
        """
        most = min(max_length or self.longest, self.longest)
        labels = [tagging.numbers_of(row, self.labels) for row in rows]
        worded = of_words(self.tokenizer, [row.values["words"] for row in rows])
        examples = list(self._windows(worded, most, self.stride, labels))
        parts = np.bincount(np.array([example.row for example in examples], dtype=np.int64))
        note = tagging.told(rows, self.labels)
        if parts.max(initial=0) > 1:
            split, reason = int((parts > 1).sum()), "--data.max-length" if most == max_length else "the model's most"
            note += (
                f"; {plural(split, 'sentence')} in {parts[parts > 1].sum():,} windows of "
                f"{most} tokens ({reason}), each word counted once"
            )
        return Encoded(examples, rows, note)

    def _windows(
        self, texts: Sequence[Worded], most: int, stride: int | None, labels: Sequence[Sequence[int]] | None = None
    ) -> Iterator[WordWindow]:
        around = self.tokenizer.around()
        room = most - around.added
        if room < 1:
            raise HeedfulError(f"--data.max-length {most} has no room for a word; give {around.added + 1} or more")
        kept = shared(stride, room)
        for row, text in enumerate(texts):
            own = None if labels is None else labels[row]
            for tokens, words in windows(text.first, len(text.ids), room, kept):
                ids, segments = around.join(text.ids[tokens.start : tokens.stop])
                offset = len(around.before) - tokens.start
                places = [text.first[word] + offset for word in words]
                yield WordWindow(
                    ids, segments, [] if own is None else [own[word] for word in words], places, row, words
                )

    def collate(self, examples: Sequence[WordWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns ``ids``, ``mask``, ``segments`` and ``labels`` (B, T): the label where a word begins, −100 elsewhere.
        In training, tokens of a new model are hidden (``hide_tokens``), others each time.
        """
        ids, mask = padded_with_mask([example.ids for example in examples])
        segments = padded([example.segments for example in examples], 0)
        labels = torch.full(ids.shape, IGNORED)
        for i, example in enumerate(examples):
            if example.labels:
                labels[i, example.places] = torch.tensor(example.labels)
        self.hide_tokens(ids, mask, random)
        return {"ids": ids, "mask": mask, "segments": segments, "labels": labels}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the text, with the label of a word at its first token."""
        ids, mask, labels = (batch[name][row] for name in ("ids", "mask", "labels"))
        return [label_side("text", ids, mask, labels, self.tokenizer, lambda label: named(self.labels[label]))]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Words that have a label."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over words of −Σ_c y_c log p_c at their first tokens, y smoothed to (1 − ε) y + ε/C."""
        return self._loss(self.logits(model, batch), batch["labels"], label_smoothing)

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def _say(
        self, model: Model, examples: Sequence[WordWindow], sizes: Sequence[int], tokens: int | None
    ) -> list[Said]:
        """Predicts the labels of the words of each text; there are ``sizes`` words."""
        said = [Said(np.zeros(size, np.int32), *np.zeros((2, size), np.float32)) for size in sizes]

        def read(batch: Batch) -> tuple[np.ndarray, ...]:
            logits = self.logits(model, batch)
            losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], ignore_index=IGNORED, reduction="none")
            p, best = logits.softmax(-1).max(-1)
            return best.cpu().numpy(), p.cpu().numpy(), losses.cpu().numpy()

        for places, found in self.map_batches(model, examples, read, tokens) if examples else ():
            for i, place in enumerate(places):
                example = examples[place]
                words = slice(example.words.start, example.words.stop)
                for kept, each in zip(said[example.row], found, strict=True):
                    kept[words] = each[i, example.places]
        return said

    def measure(
        self, model: Model, examples: Sequence[WordWindow], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Entity F1, precision, recall and macro F1, and the accuracy of words; of plain tags accuracy and macro F1.

        Details: ``by_class``; of plain tags ``confusion``; and the surest ``mistakes``: the entities (of plain tags the
        words) that a sentence has and that were not said, against those that were said and are none.
        """
        truth = [tagging.numbers_of(row, self.labels) for row in rows]
        if options.get("stride") is not None:
            worded = of_words(self.tokenizer, [row.values["words"] for row in rows])
            examples = list(self._windows(worded, self.longest, options["stride"], truth))
        every = self._say(model, examples, [len(own) for own in truth], options.get("batch_tokens"))
        scores, mistakes, outputs = EntityScores(self.scheme), Mistakes(), []
        confusion = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        for place, (row, said) in enumerate(zip(rows, every, strict=True)):
            tags = [self.labels[i] for i in said.labels]
            scores.add(row.values["tags"], tags, float(said.losses.sum(dtype=np.float64)))
            np.add.at(confusion, (np.array(truth[place]), said.labels), 1)
            text, spans = spread(row.values["words"])
            outputs.append(self._output(text, spans, said))
            expected, found = (entities(each, self.scheme) for each in (row.values["tags"], tags))
            if expected != found:
                lacking = _listed(text, spans, [one for one in expected if one not in found])
                wrong = _listed(text, spans, [one for one in found if one not in expected])
                mistakes.add(place, text, lacking, wrong, _whole(said))
        details = scores.details() | mistakes.details()
        if self.scheme == "plain":
            details["confusion"] = {"labels": list(self.labels), "counts": confusion.tolist()}
        return Measured(scores.metrics(), details, scores, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """The tag that each word had most often in training; for words that were not there the most frequent of all."""
        simple, scores = tagging.MostFrequent(learned()), EntityScores(self.scheme)
        for row in rows:
            scores.add(
                row.values["tags"], simple.tags(row.values["words"]), 0.0
            )  # a loss, as a model's scores have one
        metrics = {name: value for name, value in scores.metrics().items() if name != "loss"}
        return Baseline("most frequent tag of each word", metrics, scores)

    def guess(self, examples: Sequence[WordWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """The most frequent tag of training for every word: of entities most often that there is none."""
        counts, scores = Counter(tag for row in learned for tag in row.values["tags"]), EntityScores(self.scheme)
        ((tag, _),) = counts.most_common(1)
        for row in rows:
            scores.add(row.values["tags"], [tag] * len(row.values["tags"]), 0.0)
        return Baseline(f"the tag {tag} for every word", scores.metrics(), scores)

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """The entities of each text, or of plain tags its words: ``{"label", "text", "start", "end", "score"}``, the
        characters being ``text[start:end]``. A score is the mean over its words of the probability of their labels; the
        answer's own is the probability that all labels are right, were they independent.

        An input is a text, or its words: a list of them, or ``{"words": [...]}``, whose text is the words with a space
        between. Of a text's words see ``heedful.tasks.word_tokens.of_texts``. The prediction at a word's first token is
        its label, and entities are read as by ``seqeval`` (``evaluation.entities``): one that goes on with nothing
        begins there. So does the ``transformers`` pipeline with ``aggregation_strategy="first"``, which knows B and I
        only, and cuts off what is longer than the model takes. An input without a word gets an empty answer.
        """
        answers: list[Prediction] = []
        stride = self.stride if options.get("stride") is None else options["stride"]
        for first in range(0, max(1, len(inputs)), AT_ONCE):  # once without inputs: what cannot be shared is said
            some = inputs[first : first + AT_ONCE]
            worded = self._worded(some)
            examples = list(self._windows(worded, self.longest, stride))
            every = self._say(model, examples, [len(text.first) for text in worded], options.get("batch_tokens"))
            for one, text, said in zip(some, worded, every, strict=True):
                score = _whole(said) if text.first else None
                answers.append(Prediction(one, self._output(text.text, text.spans, said), score))
        return answers

    def _worded(self, inputs: Sequence[Any]) -> list[Worded]:
        """The words of each input, in order."""
        texts = {place: one for place, one in enumerate(inputs) if isinstance(one, str)}
        lists = {place: _words(one) for place, one in enumerate(inputs) if not isinstance(one, str)}
        found = dict(zip(texts, of_texts(self.tokenizer, [*texts.values()]), strict=True))
        found |= dict(zip(lists, of_words(self.tokenizer, [*lists.values()]), strict=True))
        return [found[place] for place in range(len(inputs))]

    def _output(self, text: str, spans: Sequence[tuple[int, int]], said: Said) -> list[dict[str, Any]]:
        found = []
        for kind, first, last in entities([self.labels[i] for i in said.labels], self.scheme):
            start, end = spans[first][0], spans[last - 1][1]
            score = float(said.p[first:last].mean())
            found.append({"label": kind, "text": text[start:end], "start": start, "end": end, "score": score})
        return found

    def expected(self, row: Row) -> list[dict[str, Any]]:
        """The entities of a row, or of plain tags its words: ``{"label", "text", "start", "end"}``."""
        text, spans = spread(row.values["words"])
        found = []
        for kind, first, last in entities(row.values["tags"], self.scheme):
            start, end = spans[first][0], spans[last - 1][1]
            found.append({"label": kind, "text": text[start:end], "start": start, "end": end})
        return found

    def row_line(self, row: Row) -> str:
        """``the sentence → its entities``, or of plain tags its words with theirs."""
        text, spans = spread(row.values["words"])
        return arrow_joined([text, _listed(text, spans, entities(row.values["tags"], self.scheme))])


def _words(one: Any) -> list[str]:
    """The words of an input that is no text."""
    words = one.get("words") if isinstance(one, Mapping) else one
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
        raise HeedfulError(
            'this model takes a text, a list of words, or {"words": [...]}, none of them empty; got '
            f"{short(repr(one))}"
        )
    return list(words)


def _listed(text: str, spans: Sequence[tuple[int, int]], found: Sequence[Entity]) -> str:
    """Entities for a person: ``Paris (LOC), Ann Lee (PER)``."""
    return ", ".join(f"{text[spans[first][0] : spans[last - 1][1]]} ({kind})" for kind, first, last in found) or OUTSIDE


def _whole(said: Said) -> float:
    """The probability that all labels are right, were they independent."""
    return float(np.exp(np.log(said.p.astype(np.float64)).sum()))
