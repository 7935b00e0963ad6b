"""Fill-mask by an encoder: masked language modelling (Devlin et al. 2019). Column ``text``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful import presets
from heedful.config import EncoderConfig, Head, MaskedHead, ModelConfig, StackConfig, TokenHead
from heedful.data import Kind, Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.data.masking import SHARE, SPANS, STOP, Masking, stop_probability
from heedful.data.split import Same, content_digest
from heedful.data.token_stream import StreamWindow
from heedful.errors import HeedfulError
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.language_model import masked_metrics
from heedful.models import Encoder, Model
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.settings import AUTO, DataSettings, RunSettings
from heedful.tasks import defaults, get
from heedful.tasks.baselines import MaskedNGrams
from heedful.tasks.documents import joined_tokens, sampled_documents, split_documents
from heedful.tasks.encoder_task import EncoderTask, limit_length
from heedful.tasks.inputs_and_targets import Side, label_side
from heedful.tasks.masked_windows import (
    SEED,
    document_numbers,
    drawn_positions,
    frequency_sums,
    last_word_samples,
    neighbors,
    trained_window,
    window_ids,
    window_lengths,
    window_stream,
)
from heedful.tasks.model_setup import load_with_head, model_of, special_id, tokenizer_of
from heedful.tasks.output_loss import output_loss
from heedful.tasks.task import (
    EVALUATED,
    SQUARE,
    Baseline,
    Batch,
    Encoded,
    LoggedSample,
    Measured,
    Prediction,
    check_texts,
    short,
)
from heedful.tasks.token_batches import IGNORED, label_index, padded_with_mask, with_label_index
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.text.mask_filling import check_has_mask, fill_masks, mask_token
from heedful.text.word_boundaries import word_joints
from heedful.util import sharding
from heedful.util.exact import exact_dtype
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

IN_TURN = 2000  # maximum number of tokens that are masked one at a time
WINDOWS = 256  # windows whose masked tokens the baseline reads at a time


class Guess(NamedTuple):
    """Most likely tokens (ids) for one mask, with their probabilities."""

    tokens: list[int]
    scores: list[float]


class MaskedInput(NamedTuple):
    """Token ids of a text, or of a part of it, with the positions of the masks to fill."""

    text_index: int  # index of the text among the inputs
    ids: list[int]
    positions: list[int]  # positions of the masks to fill


class FillMask(EncoderTask):
    """An encoder with a masked-language-model head, trained on documents; predicts the masked tokens of a text.

    Documents are joined to one stream, each with the tokenizer's end token, and read in windows, which may cross the
    ends of documents (Liu et al. 2019, section 4.2: full sentences). Each window gets the tokenizer's special tokens
    (``[CLS] ... [SEP]``).

    >>> import heedful
    >>> data = Rows([Row({"text": "the cow says moo and the owl says hoo"}, "farm.txt", 1)])
    >>> settings = RunSettings(task="fill-mask", train=("farm.txt",), out="farm", preset="bert-tiny")
    >>> task = FillMask.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> task.predict(model, ["the <mask> says moo"])[0].output.endswith("says moo")
    True

    Args:
        tokenizer: tokenizer of the text, with a mask token.
        window: default number of tokens of a window, special tokens included.
    """

    name: ClassVar[str] = "fill-mask"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "document"})
    unit = "masked_tokens"
    main_metric: str = "loss"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["FillMask"]
    head_class: ClassVar[type[Head]] = MaskedHead
    options: ClassVar[frozenset[str]] = frozenset({"top_k", "batch_tokens"})

    def __init__(self, tokenizer: Tokenizer, window: int | None = None) -> None:
        self.tokenizer, self.window = tokenizer, window
        self.mask_name, self.mask = mask_token(tokenizer)
        self.input_template = tokenizer.template()
        self.padding = self.mask if tokenizer.pad is None else tokenizer.pad
        table = word_joints(tokenizer)
        ordinary = np.array([i not in tokenizer.special for i in range(tokenizer.vocab_size)])
        self.masking = Masking(self.mask, ordinary, np.array(table.before), np.array(table.after))
        self.evaluation_masking = replace(self.masking, masked=1.0, other=0.0)  # every chosen token is masked

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[FillMask]:
        """Returns the task class for a model folder: permutation language modelling if it has a query stream,
        replaced-token detection if it has one logit a token.
        """
        config = config_of(find(folder))
        return _variant(config, is_discriminator(config))

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[FillMask]:
        """Returns the task class for the model that a run starts from, or creates."""
        detects = settings.masking.objective == "replaced-token"
        if settings.start_from not in (None, AUTO):
            return _variant(config_of(find(settings.start_from)), detects)
        return _variant(presets.get(settings.preset) if settings.preset else None, detects)

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows.

        Holds out some documents for validation or, if there are few, the last lines of each. ``valid`` is the fraction
        to hold out.
        """
        return split_documents(rows, valid, seed, same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the length of the text.

        For a pretrained model, they are those of published fine-tuning.
        """
        if given.masking.span_length is not None and given.masking.unit != "span":
            raise HeedfulError("--masking.span-length has no effect without --masking.unit span; leave it out")
        if given.masking.span_length is not None and given.masking.span_length >= SPANS.mean():
            raise HeedfulError(
                f"--masking.span-length {given.masking.span_length:g} is too long: an encoder masks spans of at most "
                f"{SPANS[-1]} words, and their mean must be below {SPANS.mean():g}; lower it"
            )
        if given.masking.generator is not None and given.masking.objective != "replaced-token":
            raise HeedfulError(
                "--masking.generator has no effect without --masking.objective replaced-token; leave it out"
            )
        characters = sum(len(row.values["text"]) for row in rows)
        if given.start_from:
            longest = cls.load(cls.model_folder(given.start_from)).longest
            longest = min(given.data.max_length or defaults.MAX_LENGTH, longest)
            windows = characters // (defaults.CHARACTERS_PER_TOKEN * longest) + 1
            suggested = defaults.encoder_finetuning(windows, given, given.start_from)
            return replace(suggested, data=DataSettings(max_length=longest))
        return defaults.masked_model(characters, given)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer on the training documents."""
        texts = (row.values["text"] for row in sampled_documents(rows))
        tokenizer = cls.train_tokenizer(texts, settings, kind="bpe", mask=True)
        return cls(tokenizer, settings.data.max_length or defaults.MAX_LENGTH)

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        A model without the task's head gets a new one, tied to its embedding.
        """
        folder = cls.model_folder(folder)
        task, own = cls.load(folder), isinstance(config_of(folder).head, cls.head_class)
        model = load_with_head(folder, None if own else cls.head_class.kind, settings.seed or 0)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer and the window length used in training (at most 128 tokens if the folder stores none)."""
        folder = cls.model_folder(folder)
        tokenizer = tokenizer_of(folder)
        limit_length(tokenizer, config_of(folder))
        return cls(tokenizer, trained_window(folder, cls.name))

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Sets the probability of masking (by default 15 %) and its unit (by default tokens) from the settings."""
        masking = settings.masking
        stop = STOP if masking.span_length is None else stop_probability(masking.span_length)
        self.masking = replace(
            self.masking, share=masking.probability or SHARE, unit=masking.unit or "token", stop=stop
        )

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a masked-language-model head that is tied to the embedding."""
        return MaskedHead(activation=stack.activation, norm_eps=stack.norm_eps)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has the task's head."""
        head = model.config.head
        if not isinstance(head, self.head_class):
            raise HeedfulError(
                f"{self.name} needs a {self.head_class.kind} head; this model's head is of kind {head.kind!r}; choose "
                "another model"
            )

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Joins all documents to one stream of tokens and returns its windows of ``max_length`` tokens.

        The length includes the special tokens that are put around each window.
        """
        most = max_length or min(self.window or defaults.MAX_LENGTH, self.longest)
        if most > self.longest:
            raise HeedfulError(
                f"--data.max-length {most} is more than the {self.longest} tokens that the model reads; lower it"
            )
        added = self.input_template.added
        examples, note = window_stream(self.tokenizer, rows, most - added, added, self.masking.ordinary)
        return Encoded(examples, rows, note)

    def lengths(self, examples: Sequence[StreamWindow]) -> np.ndarray:
        """Returns the number of tokens of each window, special tokens included, as an array (N, 1)."""
        return window_lengths(examples)[:, None] + self.input_template.added

    def _framed(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> list[list[int]]:
        """Returns the ids of each window with its special tokens."""
        return [self.input_template.join(row.tolist())[0] for row in window_ids(examples, random)]

    def collate(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: ``ids`` (B, T) with masked tokens, ``mask``, and ``labels``: the masked tokens, −100
        elsewhere.

        In training (with ``random``), the windows begin at random positions, and random tokens are masked as the
        settings say. In evaluation, 15 % of each window's tokens are masked, always the same, so that models trained
        with different settings can be compared.
        """
        ids, mask = padded_with_mask(self._framed(examples, random), self.padding)
        rows = ids.numpy()
        if random is not None:
            hidden, chosen = self.masking(rows, random)
        else:
            generators = [np.random.default_rng([SEED, window.number]) for window in examples]
            masked = [
                self.evaluation_masking(row[None], generator) for row, generator in zip(rows, generators, strict=True)
            ]
            hidden, chosen = (np.concatenate(part) for part in zip(*masked, strict=True))
        labels = ids.masked_fill(~torch.from_numpy(chosen), IGNORED)
        return {"ids": torch.from_numpy(hidden), "mask": mask, "labels": labels}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: the text with masks.

        ``heedful audit`` shows it. In it only masked tokens have a target, the token that was there.
        """
        ids, mask, labels = (batch[name][row] for name in ("ids", "mask", "labels"))
        return [label_side("text", ids, mask, labels, self.tokenizer, lambda token: self.tokenizer.pieces([token])[0])]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch: the tokens that were chosen for masking."""
        return int((batch["labels"] != IGNORED).sum())

    def complete(self, batch: Batch) -> Batch:
        """Adds the indices of the tokens that were chosen for masking."""
        return with_label_index(batch)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over the tokens chosen for masking of −log p(token | masked window).

        The head is computed for these tokens alone. With label smoothing ε, a term becomes (1 − ε)(−log p(token)) + ε/V
        Σ_v(−log p(v)) over the vocabulary of V tokens.
        """
        model = model_of(Encoder, model, self.name)
        return output_loss(model.head, *self._chosen(model, batch), label_smoothing)

    def _chosen(self, model: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the encoder's output (M, D) at the M chosen tokens of a batch, and their ids (M,)."""
        index = label_index(batch)
        hidden = self.hidden_at(model, batch["ids"], batch["mask"], index)
        return hidden, batch["labels"].flatten().index_select(0, index)

    def hidden_at(self, model: Encoder, ids: Tensor, mask: Tensor | None, index: Tensor) -> Tensor:
        """Returns the hidden states (M, D) that predict the tokens with ascending ``index`` (M,) among all B · T.

        These are masked in ``ids`` (B, T); ``mask`` (B, T) is False at padding.
        """
        return model.hidden(ids, mask).flatten(0, 1).index_select(0, index)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self,
        model: Model,
        examples: Sequence[StreamWindow],
        rows: Rows,
        *,
        most: int | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Measured:
        """Returns ``loss`` and ``accuracy`` (percent) on masked tokens of all windows, and ``pseudo_perplexity``.

        Loss and accuracy are those of the 15 % of tokens that ``collate`` masks in evaluation. Pseudo-perplexity is
        exp(−1/N Σ log p(w_t | all other tokens of its window)) (Salazar et al. 2020, section 2.3). It takes a forward
        pass for each token, so it is computed on only ``most`` tokens, by default 2,000 and always the same; the
        details have their number. It can compare only models with the same vocabulary.

        Raises:
            HeedfulError: ``options`` has an option; none has an effect here.
        """
        for name in options:
            raise HeedfulError(
                f"{name} has no effect: evaluation scores tokens and fills in no text; leave the option out"
            )
        row_sums, stream = np.zeros((len(rows), 5)), examples[0].stream
        window_sums, encoder = np.zeros((stream.windows, 5)), model_of(Encoder, model, self.name)

        def read(batch: Batch) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
            hidden, truth = self._chosen(encoder, batch)
            logits = encoder.head(hidden).float()
            losses = F.cross_entropy(logits, truth, reduction="none")
            sums = torch.stack([losses, (logits.argmax(-1) == truth).float(), torch.ones_like(losses)], 1)
            return sums.cpu().double().numpy(), np.divmod(label_index(batch).cpu().numpy(), batch["labels"].size(1))

        for indices, (sums, hidden) in self.map_batches(model, examples, read, batch_tokens):
            window, position = hidden
            windows = np.array([examples[i].number for i in indices])
            firsts = windows * stream.context - len(self.input_template.before)
            np.add.at(row_sums[:, :3], document_numbers(stream, firsts[window] + position), sums)
            np.add.at(window_sums[:, :3], windows[window], sums)
        tokens = self._add_pseudo_likelihoods(encoder, examples, row_sums, most or IN_TURN, batch_tokens or EVALUATED)
        scored = Sums(row_sums, masked_metrics)
        total = row_sums.sum(axis=0)
        details = {"tokens": tokens, "hidden": int(total[2]), "hidden_in_turn": int(total[4])}
        return Measured(overall(scored), details, scored, window_scores=Sums(window_sums, masked_metrics))

    def _add_pseudo_likelihoods(
        self, model: Encoder, examples: Sequence[StreamWindow], row_sums: np.ndarray, most: int, tokens: int
    ) -> int:
        """Masks up to ``most`` tokens one at a time and adds −log p and 1 to the last two sums of their documents;
        returns the number of tokens.
        """
        stream, before = examples[0].stream, len(self.input_template.before)
        drawn, total = drawn_positions(examples, self.evaluation_masking.ordinary, most)
        windows = (drawn // stream.context).tolist()
        rows = {window: torch.tensor(self._framed([StreamWindow(stream, window)])[0]) for window in set(windows)}
        masked = list(zip(windows, (drawn % stream.context + before).tolist(), strict=True))
        log_p = pseudo_log_likelihoods(model, rows, masked, self.mask, tokens, self.hidden_at)
        documents = document_numbers(stream, drawn)
        row_sums[:, 3] += np.bincount(documents, -log_p, len(row_sums))
        row_sums[:, 4] += np.bincount(documents, minlength=len(row_sums))
        return total

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: n-grams of the masked tokens and their neighbors (``baselines.MaskedNGrams``)."""
        return self.quick_baseline(self.encode(rows).examples, rows, learned())

    def quick_baseline(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline:
        """Scores the same baseline as ``baseline`` on the tokens that ``measure`` masks; the scores are of windows."""
        end, stream = special_id(self.tokenizer.end), examples[0].stream
        ordinary = self.evaluation_masking.ordinary
        model = MaskedNGrams(joined_tokens(self.tokenizer, learned, [], [end]), ordinary)
        sums = np.zeros((stream.windows, 5))

        def add(first: int, positions: np.ndarray, order: np.ndarray, has_accuracy: bool) -> None:
            windows, truth = positions // stream.context, np.asarray(stream.tokens[positions], dtype=np.int64)
            around = neighbors(stream, positions, order)
            columns = [-np.log(model.p(around, truth)), np.ones(len(truth))]
            if has_accuracy:
                columns.insert(1, model.likeliest(around) == truth)
            for number, column in enumerate(columns, first):
                sums[:, number] += np.bincount(windows, column, stream.windows)

        order = self._evaluation_order(examples)
        add(0, np.flatnonzero(order), order, has_accuracy=True)
        add(3, drawn_positions(examples, ordinary, IN_TURN)[0], np.zeros_like(order), has_accuracy=False)
        scored = Sums(sums, masked_metrics)
        return Baseline("n-grams of the tokens on both sides", overall(scored), scored)

    def _evaluation_order(self, examples: Sequence[StreamWindow]) -> np.ndarray:
        """Returns when each token of the stream is predicted in evaluation, (N,): 0 for never, 1 for first."""
        stream, before = examples[0].stream, len(self.input_template.before)
        order = np.zeros(len(stream.tokens), dtype=np.int32)
        for first in range(0, len(examples), WINDOWS):
            windows = examples[first : first + WINDOWS]
            batch = self.collate(windows)
            is_chosen = batch["labels"].numpy() != IGNORED
            rows, places = np.nonzero(is_chosen)
            firsts = np.array([window.number * stream.context - before for window in windows])
            order[firsts[rows] + places] = batch["order"].numpy()[is_chosen] if "order" in batch else 1
        return order

    def guess(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that ignores the context: each token is predicted by its frequency in the training text.

        The scores are those of each window.
        """
        sums = frequency_sums(self.tokenizer, self.masking.ordinary, examples[0].stream, learned)
        scored = Sums(np.pad(sums, ((0, 0), (0, 2))), masked_metrics)
        return Baseline("the tokens' frequencies in the training text", overall(scored), scored)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns each text with the most likely token in place of each mask; "" for a text without words.

        The score is the product of these tokens' probabilities. Masks are written as the tokenizer's mask token
        (``[MASK]``, ``<mask>``). Each mask is predicted on its own while the other masks stay, as in `transformers`.

        With ``top_k`` the output is a list of the most likely tokens, ``{"label": token, "score": probability, "text":
        text with it}``. For several masks it is a list of such lists, with the other masks left in the texts. If a text
        is longer than the model takes, only the part around each mask is read, with a warning.
        """
        encoder = model_of(Encoder, model, self.name)
        top_k, budget = options.get("top_k"), options.get("batch_tokens") or EVALUATED
        check_texts(self.name, inputs)
        nonblank = [i for i, text in enumerate(inputs) if text.strip()]
        for i in nonblank:
            check_has_mask(inputs[i], self.mask_name, i, len(inputs))
        predictions = [Prediction(text, [] if top_k else "", None) for text in inputs]
        parts = masked_inputs(self.tokenizer, [inputs[i] for i in nonblank], self.longest)
        guesses: list[list[Guess]] = [[] for _ in parts]

        @torch.no_grad()
        def guess_masks(batch: np.ndarray) -> list[list[Guess]]:
            ids, mask = (
                tensor.to(encoder.device) for tensor in padded_with_mask([parts[i].ids for i in batch], self.padding)
            )
            batch_guesses, length = [], ids.size(1)
            counts = [len(parts[i].positions) for i in batch]
            places = [row * length + place for row, i in enumerate(batch) for place in parts[i].positions]
            hidden_states = self.hidden_at(encoder, ids, mask, torch.tensor(places, device=encoder.device))
            for hidden in hidden_states.split(counts):
                p = encoder.head(hidden).float().softmax(-1)
                best = p.topk(min(top_k or 1, p.size(-1)))
                batch_guesses.append(list(map(Guess, best.indices.tolist(), best.values.tolist())))
            return batch_guesses

        lengths = [len(part.ids) for part in parts]
        batches = evaluation_batches(lengths, budget, pairs=budget * SQUARE) if parts else []
        for batch, batch_guesses in sharding.each(batches, guess_masks):
            for i, best in zip(batch, batch_guesses, strict=True):
                guesses[i] = best
        text_guesses: list[list[Guess]] = [[] for _ in nonblank]
        for part, own_guesses in zip(parts, guesses, strict=True):
            text_guesses[part.text_index] += own_guesses
        for i, own_guesses in zip(nonblank, text_guesses, strict=True):
            score = math.prod(guess.scores[0] for guess in own_guesses)
            predictions[i] = Prediction(inputs[i], self._output(inputs[i], own_guesses, top_k), score)
        return predictions

    def _output(self, text: str, guesses: Sequence[Guess], top_k: int | None) -> Any:
        if not top_k:
            return fill_masks(self.tokenizer, text, [guess.tokens[0] for guess in guesses])
        lists = []
        for number, guess in enumerate(guesses):
            before, after = [None] * number, [None] * (len(guesses) - number - 1)
            texts = [fill_masks(self.tokenizer, text, [*before, token, *after]) for token in guess.tokens]
            labels = [
                self.tokenizer.backend.decode([token], skip_special_tokens=False).strip() for token in guess.tokens
            ]
            choices = zip(labels, guess.scores, texts, strict=True)
            lists.append([{"label": label, "score": score, "text": filled} for label, score, filled in choices])
        return lists[0] if len(lists) == 1 else lists

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns samples for the run's log: the first words of some texts, with the last word masked and predicted."""
        return last_word_samples(self, model, rows)

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model: each text with its last word masked."""
        return [" ".join([*text.split()[:-1], self.mask_name]) for text in texts]

    def row_line(self, row: Row) -> str:
        """Returns the beginning of the text."""
        return short(row.values["text"][:200])


def masked_inputs(tokenizer: Tokenizer, texts: Sequence[str], longest: int) -> list[MaskedInput]:
    """Returns the model inputs for texts with masks: one input for each text, with its masks in order.

    A text of more than ``longest`` tokens gets one input for each mask, with the tokens around it, and a warning.

    >>> tokenizer = Tokenizer.train(["a small text"], size=300, template="both", mask=True)
    >>> masked_inputs(tokenizer, ["<mask> <mask>"], 8)
    [MaskedInput(text_index=0, ids=[1, 4, 4, 2], positions=[1, 2])]
    >>> masked_inputs(tokenizer, ["<mask><mask>"], 3)
    [MaskedInput(text_index=0, ids=[1, 4, 2], positions=[1]), MaskedInput(text_index=0, ids=[1, 4, 2], positions=[1])]
    """
    (name, mask), template = mask_token(tokenizer), tokenizer.template()
    room, shift = longest - template.added, len(template.before)
    parts, cut = [], 0
    for text_index, (text, ids) in enumerate(zip(texts, tokenizer.encode(texts), strict=True)):
        positions = [position for position, token in enumerate(ids) if token == mask]
        if len(positions) != text.count(name):
            raise HeedfulError(
                f"the tokenizer reads {name} as plain text in {short(text)!r}; set split_special_tokens to false in "
                "its tokenizer_config.json"
            )
        if len(ids) <= room:
            parts.append(MaskedInput(text_index, template.join(ids)[0], [position + shift for position in positions]))
            continue
        cut += 1
        for position in positions:
            first = min(max(0, position - room // 2), len(ids) - room)
            parts.append(
                MaskedInput(text_index, template.join(ids[first : first + room])[0], [position - first + shift])
            )
    if cut:
        log.warning(
            CountWarning(
                cut,
                len(texts),
                f"longer than the {longest:,} tokens that the model takes; only the tokens around each mask were read",
            )
        )
    return parts


def is_discriminator(config: ModelConfig) -> bool:
    """Returns True for an encoder with ELECTRA's discriminator: a dense layer without norm, and one logit a token."""
    head = config.head
    if not isinstance(config, EncoderConfig) or not isinstance(head, TokenHead) or head.dense is None:
        return False
    return head.labels == 1 and not head.dense.norm


def _variant(config: ModelConfig | None, detects: bool) -> type[FillMask]:
    """Returns the task class for a model: that of permutation language models if it has a query stream.

    ``detects`` is True for replaced-token detection.
    """
    is_permuted = isinstance(config, EncoderConfig) and config.embedding.query
    task = get(FillMask.name, "permutation" if is_permuted else "replaced-token" if detects else None)
    assert issubclass(task, FillMask)
    return task


@torch.no_grad()
def pseudo_log_likelihoods(
    model: Encoder,
    rows: Mapping[int, Tensor],
    masked: Sequence[tuple[int, int]],
    mask: int,
    tokens: int,
    hidden_at: Callable[[Encoder, Tensor, None, Tensor], Tensor],
) -> NDArray[np.float64]:
    """Returns log p(token | the other tokens of its window), in nats, for each token in ``masked``.

    Each value takes a forward pass of the window with that token masked (Salazar et al. 2020, equation 2).

    Args:
        model: an encoder with a head that predicts tokens.
        rows: number of a window → its ids (T,), without padding.
        masked: the tokens to predict, as (number of the window, position).
        mask: id of the mask token.
        tokens: approximate number of tokens in a batch.
        hidden_at: returns the hidden states that predict masked tokens (``FillMask.hidden_at``).
    """
    log_p = np.empty(len(masked))
    order = sorted(range(len(masked)), key=lambda i: len(rows[masked[i][0]]))
    while order:
        length = len(rows[masked[order[0]][0]])
        most = max(1, tokens // length)
        batch = [i for i in order[:most] if len(rows[masked[i][0]]) == length]
        del order[: len(batch)]
        ids = torch.stack([rows[masked[i][0]] for i in batch]).to(model.device)
        positions = torch.tensor([masked[i][1] for i in batch], device=model.device)
        index = torch.arange(len(batch), device=model.device)
        truth = ids[index, positions]
        ids[index, positions] = mask
        logits = model.head(hidden_at(model, ids, None, index * length + positions))
        log_p[batch] = logits.log_softmax(-1, dtype=exact_dtype(model.device))[index, truth].cpu().numpy()
    return log_p
