"""Text generation by a decoder that predicts each token from the earlier tokens (Radford et al. 2019)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import DecoderConfig, LanguageHead, LearnedPosition, ModelConfig, SpecialTokens
from heedful.data import Kind, Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.data.split import Same, content_digest, split
from heedful.data.texts_on_disk import continues_previous
from heedful.data.token_stream import Stream, StreamWindow, StreamWindows, count_token, read_windows
from heedful.errors import HeedfulError, InputError, plural
from heedful.generation import decode, stream
from heedful.generation.incremental_text import pieces
from heedful.generation.options import NAMES, Options, resolve
from heedful.generation.stopping import cut_at_stop, until
from heedful.layers.mask import text_starts
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.language_model import next_token_metrics, text_metrics
from heedful.models import Decoder, Model
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find, read_card
from heedful.settings import RunSettings, TokenizerSettings
from heedful.tasks import defaults, get
from heedful.tasks.baselines import NGrams, xz_bits_per_byte
from heedful.tasks.choices import OPTIONS as RANKING
from heedful.tasks.choices import (
    RankedPrompt,
    add_majority_choice,
    answer,
    check_ranking,
    choices_of_rows,
    have_choices,
    rank_choices,
    split_inputs,
    with_accuracy,
)
from heedful.tasks.conversations import (
    LONGEST,
    InstructionExample,
    add_default_template,
    answer_losses,
    are_instructions,
    collate_instructions,
    encode_instructions,
    instruction_line,
    instruction_texts,
    is_conversation,
    prompt_and_target,
    tokenizer_with_template,
)
from heedful.tasks.documents import sampled_documents, split_documents, token_stream
from heedful.tasks.inputs_and_targets import Side, next_token_side
from heedful.tasks.model_setup import (
    check_vocabulary,
    checked_folder,
    model_of,
    positions_of,
    preset_of,
    special_id,
    with_positions,
    with_settings,
)
from heedful.tasks.output_loss import output_loss
from heedful.tasks.preferences import are_preferences
from heedful.tasks.task import (
    EVALUATED,
    LINE,
    SAMPLES,
    Baseline,
    Batch,
    Encoded,
    LoggedSample,
    Measured,
    Prediction,
    Task,
    check_texts,
    short,
)
from heedful.tasks.token_batches import (
    IGNORED,
    GeneratedText,
    by_prompt,
    new_token_logprobs,
    outputs_of_call,
    padded_with_mask,
    prediction_of,
    seed_per_prompt,
)
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer, chat_template
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning, InputWarning

log = logging.getLogger("heedful")


SAMPLE_TOKENS = 60  # tokens of a sample in the log
CONTEXT = 256  # default context in tokens
GENERATION = MappingProxyType({"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": 200})


class TextGeneration(Task):
    """A decoder trained on documents or instructions; generates the continuation of a prompt.

    Documents are joined to one stream of tokens and read in windows.

    Args:
        tokenizer: tokenizer of the text. The tokens that it adds before a text (Llama's ``<s>``) begin each prompt and
            document. If it adds none, its end token begins each document (as in GPT-2) and stands for an empty prompt.
        context: maximum number of tokens that the model reads; None for any number.
        ends: the model's end tokens; () takes the tokenizer's. A document ends with an end token, unless the next
            document begins with one.
        separate: if True, documents in one window do not attend to each other, and positions of each begin at 0.
    """

    name: ClassVar[str] = "text-generation"
    columns: Mapping[str, Kind] = MappingProxyType(
        {
            "text": "document",
            "prompt": "text?",
            "completion": "text?",
            "messages": "messages?",
            "chosen": "turns?",
            "rejected": "turns?",
        }
    )
    main_metric: str = "loss"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["TextGeneration"]
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens", "logprobs"}) | RANKING
    display_options: ClassVar[frozenset[str]] = frozenset({"logprobs", "num_return_sequences"})

    def __init__(
        self, tokenizer: Tokenizer, context: int | None, ends: Sequence[int] = (), separate: bool = False
    ) -> None:
        end = tokenizer.end if tokenizer.end in ends or not ends else ends[0]
        if end is None:
            raise HeedfulError("the tokenizer has no end token (eos_token); name one in its tokenizer_config.json")
        self.tokenizer, self.context, self.end, self.separate = tokenizer, context, end, separate
        self.before = list(tokenizer.template().before)
        self.begins = self.before or [end]
        self.closes = [] if self.begins[0] in (*ends, end) else [end]

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[TextGeneration]:
        """Returns this class or, for chosen and rejected answers, ``PreferenceTuning``.

        Raises ``HeedfulError`` for options of preferences with other rows.
        """
        if are_preferences(rows) and cls.name == TextGeneration.name:
            return _preference_task()
        if flags := [f"--preference.{name}" for name in settings.preference.given()]:
            raise HeedfulError(
                f"{', '.join(flags)} has no effect: the data has no chosen and rejected answers; leave the option out"
            )
        return cls

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[TextGeneration]:
        """Returns ``PreferenceTuning`` for a model that learned from preferences, else this class."""
        return _preference_task() if "preference" in read_card(Path(folder)) else cls

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows.

        Holds out some documents for validation or, if there are few, the last lines of each. ``valid`` is the fraction
        to hold out. Instructions with the same prompt stay together.
        """
        if not rows or not are_instructions(rows):
            return split_documents(rows, valid, seed, same)
        train, held = split(rows, valid, seed, by="prompt" if "prompt" in rows[0].values else "messages", same=same)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings for the length of the text: tokenizer kind and size, number of epochs."""
        instructions = are_instructions(rows)
        characters = sum(len(text) for row in rows for text in _texts(row))
        size = defaults.size_for(characters, defaults.DECODER)
        context = given.data.max_length or (LONGEST if instructions else size.context)
        if given.start_from is not None:
            context = given.data.max_length or cls.load(given.start_from).context or CONTEXT
        kind = given.tokenizer.kind or ("bpe" if instructions else size.kind)  # a prompt may have any character
        vocabulary = size.vocabulary if kind != "character" else 4 + len(_letters(rows))
        tokenizer = TokenizerSettings()
        if given.start_from is None:
            tokenizer = TokenizerSettings(kind=kind, size=vocabulary)  # type: ignore[arg-type]  # words of the table
        return replace(defaults.decoder(size, given, context, instructions), tokenizer=tokenizer)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer on the training documents."""
        given = settings.tokenizer
        texts = (text for row in sampled_documents(rows) for text in _texts(row))
        tokenizer = Tokenizer.train(
            texts, given.size or 1000, given.kind or "bpe", bool(given.lowercase), template="none"
        )
        context = settings.data.max_length or CONTEXT
        tokenizer.config["model_max_length"] = context
        if given.chat_template is not None:
            chat_template.set_template(tokenizer, given.chat_template, adds_tokens=True)
        add_default_template(tokenizer, rows)
        return cls(tokenizer, context, separate=_separated(rows, settings))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        The tokenizer gets the chat template of the settings; without one in either, and if the rows have messages, it
        gets the default template. The token that ends a message is then one that ends a generation.
        """
        task, model = super().for_fine_tuning(folder, rows, settings)
        if settings.tokenizer.chat_template is not None:
            chat_template.set_template(task.tokenizer, settings.tokenizer.chat_template)
            config, end = model_of(Decoder, model, cls.name).config, special_id(task.tokenizer.end)
            ends = tuple(dict.fromkeys((end, *config.special.end)))
            model.config = replace(config, special=replace(config.special, end=ends))
            task = cls(task.tokenizer, task.context, ends)
        task.separate = _separated(rows, settings)
        if add_default_template(task.tokenizer, rows):
            log.warning(
                "the model has no chat template; messages are written with the default template (role and colon, line "
                "end, content, end token), which is saved in the new folder"
            )
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer and the number of tokens that the model reads.

        That number is the tokenizer's ``model_max_length``, or the number of the model's positions if that is smaller.
        """
        folder = find(folder)
        tokenizer, config = tokenizer_with_template(checked_folder(cls.name, folder)), config_of(folder)
        limits = [tokenizer.config.get("model_max_length"), positions_of(config)]
        lengths = [int(limit) for limit in limits if limit is not None and limit < 1e9]  # a huge one means no limit
        ends = config.special.end if isinstance(config, DecoderConfig) else ()
        data = read_card(folder).get("settings", {}).get("data", {})
        separate = bool(data.get("document_mask", data.get("separate")))  # the older name, in older folders
        return cls(tokenizer, min(lengths, default=None), ends, separate)

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer."""
        self.tokenizer.save(folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the changes in the settings and the size of the
        vocabulary.

        A model with learned positions has as many of them as a window has tokens.
        """
        config = preset_of(settings.preset or "llama-micro", DecoderConfig, self.name)
        stack = with_settings(config.decoder, settings.model, settings.model.decoder_depth)
        return replace(
            config,
            embedding=replace(config.embedding, vocab_size=self.tokenizer.vocab_size),
            decoder=with_positions(stack, self.context or CONTEXT),
            head=config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied),
            special=SpecialTokens(pad=self.tokenizer.pad, start=self.end, end=(self.end,)),
        )

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Sets the generation defaults of a new model; a fine-tuned model keeps the defaults of its folder."""
        if settings.start_from is None:
            model.generation = {**GENERATION, **model.generation}

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit the task.

        It must be a decoder with a language-model head and an embedding for every token.
        """
        config = model.config
        if not isinstance(config, DecoderConfig) or not isinstance(config.head, LanguageHead):
            raise HeedfulError(
                f"{self.name} needs a decoder with a language-model head; this model is of kind {config.kind!r} and "
                f"its head of kind {config.head.kind!r}; choose another model"
            )
        check_vocabulary(self.tokenizer, config.embedding)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Joins all documents to one stream of tokens and returns its windows of ``max_length`` tokens.

        There is one window if the stream is shorter. Each instruction or conversation is an example of its own
        (``heedful.tasks.conversations.encode_instructions``). The main metric is ``accuracy`` if all rows have choices,
        else the loss.
        """
        self.main_metric = "accuracy" if have_choices(rows) else type(self).main_metric
        return self._encoded(rows, self.checked_length(max_length))

    def _encoded(self, rows: Rows, context: int) -> Encoded:
        """Encodes rows in windows of ``context`` tokens, and leaves the main metric as it is."""
        if are_preferences(rows):
            raise HeedfulError(
                f"{rows[0].file} has chosen and rejected answers, but the model did not learn from preferences; tune "
                "it: heedful train text-generation --from MODEL --train FILE"
            )
        if rows and are_instructions(rows):
            self.unit = "answer_tokens"
            return encode_instructions(self.tokenizer, rows, self.before, self.end, context)
        tokens, starts = token_stream(self.tokenizer, rows, self.begins, self.closes)
        if len(tokens) < 3:
            where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
            raise HeedfulError(f"fewer than two tokens of text{where}, so there is nothing to learn; give more text")
        stream = Stream(tokens, min(context, len(tokens) - 1), starts)
        note = f"{plural(len(tokens), 'token')} in windows of {stream.context}"
        if stream.context < context:
            note += f": the text is shorter than the context of {context}"
        if isinstance(tokens, np.memmap):
            note += f", on disk in {tokens.filename} ({tokens.nbytes / 2**20:,.0f} MiB)"
        if unknown := count_token(tokens, self.tokenizer.unknown):
            note += f"; {unknown:,} of them not in the vocabulary"
        return Encoded(StreamWindows(stream), rows, note)

    def checked_length(self, max_length: int | None) -> int:
        """Returns the maximum number of tokens of an example; raises ``HeedfulError`` if the model reads fewer."""
        context = max_length or self.context or CONTEXT
        if context > (self.context or context):
            raise HeedfulError(
                f"--data.max-length {context} is more than the {self.context} tokens that the model reads; lower it"
            )
        return context

    def lengths(self, examples: Sequence[StreamWindow | InstructionExample]) -> np.ndarray:
        """Returns the number of tokens of each window or instruction, as an array (N, 1)."""
        if isinstance(examples, StreamWindows):
            return np.full((len(examples), 1), examples.stream.context, dtype=np.int64)
        sizes = [
            len(example.ids) - 1 if isinstance(example, InstructionExample) else example.stream.context
            for example in examples
        ]
        return np.array(sizes, dtype=np.int64)[:, None]

    def collate(
        self, examples: Sequence[StreamWindow | InstructionExample], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """Returns a batch: ``ids`` (B, T), and ``labels`` (B, T), the next tokens.

        With a document mask it also has ``texts`` (B, T), the number of each token's document in its window. The first
        token of a document is then not predicted. Instructions are padded at the end, and only their answers have
        labels.
        """
        instructions = [example for example in examples if isinstance(example, InstructionExample)]
        if instructions:
            return collate_instructions(instructions, self.tokenizer.pad or 0)
        windows = [example for example in examples if isinstance(example, StreamWindow)]
        read = read_windows(windows, random)
        labels = np.where(read.is_inside, read.tokens, IGNORED)[:, 1:]
        batch = {"ids": read.tokens[:, :-1]}
        if self.separate:
            begins = read.document_starts(windows[0].stream)
            batch["texts"] = np.where(read.is_inside, begins.cumsum(1) + ~begins[:, :1], 0)[:, :-1]
            if self.closes:  # else the token that begins the next document ends this one
                labels = np.where(begins[:, 1:], IGNORED, labels)
        return {name: torch.from_numpy(array) for name, array in {**batch, "labels": labels}.items()}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: the text.

        ``heedful audit`` shows it. In it the target at each token is the next token.
        """
        return [next_token_side("text", batch["ids"][row], batch["labels"][row], self.tokenizer)]

    def is_conversation(self, row: Row) -> bool:
        """Returns True for a row of messages."""
        return is_conversation(row)

    def shown_input(self, row: Row) -> Any:
        """Returns the text of a document, or the prompt of an instruction."""
        return row.values.get("text", row.values.get("prompt"))

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch: the tokens that have a label."""
        return int((batch["labels"] != IGNORED).sum())

    def complete(self, batch: Batch) -> Batch:
        """Adds the starts of the texts of a packed batch, with which a GPU attends within each text."""
        return {**batch, "text_starts": text_starts(batch["texts"])} if "texts" in batch else batch

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over predicted tokens of −log p(token | earlier tokens of its window).

        With label smoothing ε, a term becomes (1 − ε)(−log p(token)) + ε/V Σ_v(−log p(v)) over the vocabulary of V
        tokens.
        """
        model = model_of(Decoder, model, self.name)
        hidden = model.hidden(batch["ids"], batch.get("texts"), text_starts=batch.get("text_starts"))
        return output_loss(model.head, hidden.flatten(0, 1), batch["labels"].flatten(), label_smoothing)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

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
        """Returns ``loss``, ``perplexity`` and ``bits_per_byte`` of a language model.

        They are Σ −log p / tokens, e^loss, and Σ −log₂ p / bytes in UTF-8; ``bits_per_byte`` can compare models with
        different tokenizers. Each token is predicted from the earlier tokens of its window, which is as long as in
        training. Windows do not overlap, so a token has half a window before it on average. The end tokens of documents
        are predicted, too. Of instructions only the answers count, end tokens included; of those with choices, their
        own or those of the options, ``accuracy`` is the percentage whose completion is the most probable choice.
        ``most`` has no effect, since nothing is generated.

        Raises:
            HeedfulError: ``options`` has another option; none has an effect here.
        """
        choices, normalise = options.pop("choices", None), options.pop("normalise", None)
        for name in options:
            raise HeedfulError(
                f"{name} has no effect: a language model is scored without generating; leave the option out"
            )
        if isinstance(examples[0], InstructionExample):
            row_sums = np.zeros((len(rows), 3))
            row_sums[:, 2] = [example.answer_bytes for example in examples]
            for indices, (nats, count) in self.map_batches(
                model, examples, partial(answer_losses, model), batch_tokens
            ):
                row_sums[indices, 0], row_sums[indices, 1] = nats, count
            return self._with_accuracy(model, _measured(row_sums), rows, choices, normalise, batch_tokens)
        if choices is not None or normalise is not None:
            raise HeedfulError("choices need prompts with completions, but these are documents; leave choices out")
        documents = np.cumsum([not continues_previous(row) for row in rows])  # a large text has several rows
        documents -= documents[0]
        document_sums, window_sums = np.zeros((documents[-1] + 1, 3)), np.zeros((examples[0].stream.windows, 2))
        np.add.at(
            document_sums[:, 2], documents, [len(row.values["text"].encode("utf-8", "surrogatepass")) for row in rows]
        )
        for document, window, nats in self._nats(model, examples, batch_tokens):
            for table, owner in ((document_sums, document), (window_sums, window)):
                table[:, 0] += np.bincount(owner, nats, len(table))
                table[:, 1] += np.bincount(owner, minlength=len(table))
        return replace(_measured(document_sums), window_scores=Sums(window_sums, next_token_metrics))

    def _with_accuracy(
        self,
        model: Model,
        measured: Measured,
        rows: Rows,
        choices: Sequence[str] | None,
        normalise: str | None,
        batch_tokens: int | None,
    ) -> Measured:
        """Adds ``accuracy``, the percentage of rows whose completion is the most probable of their choices."""
        targets = [str(prompt_and_target(row)[1]) for row in rows]
        own = choices_of_rows(rows, targets, choices)
        if not any(own):
            check_ranking(own, Options(), normalise, False)
            return measured
        asked = [(index, texts) for index, texts in enumerate(own) if texts is not None]
        prompts, texts = [prompt_and_target(rows[i])[0] for i, _ in asked], [texts for _, texts in asked]
        outputs = [""] * len(rows)
        ranked = self._rank(model, prompts, texts, Options(), normalise, batch_tokens)
        for (index, _), prediction in zip(asked, ranked, strict=True):
            outputs[index] = prediction.output
        assert isinstance(measured.example_scores, Sums)
        scores = with_accuracy(measured.example_scores, outputs, targets, own)
        return Measured(overall(scores), measured.details, scores, outputs)

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns samples for the run's log: greedy continuations of the beginnings of texts, or of prompts."""
        pairs = [(prompt, target) for prompt, target in map(prompt_and_target, rows[:SAMPLES]) if prompt]
        prompts = [prompt for prompt, _ in pairs]
        predictions = self.predict(model, prompts, do_sample=False, max_new_tokens=SAMPLE_TOKENS)
        samples = []
        for (prompt, target), prediction in zip(pairs, predictions, strict=True):
            text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            output = prediction.output.removeprefix(prompt) if isinstance(prompt, str) else prediction.output
            samples.append({"input": short(text, LINE), "output": short(output, LINE)})
            if target is not None:
                samples[-1]["target"] = short(target, LINE)
        return samples

    def _nats(
        self, model: Model, examples: Sequence[StreamWindow], batch_tokens: int | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields for each batch (document, window, −log p) of the predicted tokens."""
        stream = examples[0].stream

        def token_losses(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
            logits, labels = model(batch["ids"], batch.get("texts")).flatten(0, 1).float(), batch["labels"].flatten()
            nats = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
            return nats.cpu().numpy(), (labels != IGNORED).cpu().numpy()

        for indices, (nats, predicted) in self.map_batches(model, examples, token_losses, batch_tokens):
            starts = np.array([examples[i].number * stream.context for i in indices])
            positions = (starts[:, None] + np.arange(1, stream.context + 1)).ravel()[predicted]
            documents = np.searchsorted(stream.starts, positions, side="right") - 1
            yield documents, (positions - 1) // stream.context, nats[predicted]

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: the compressor xz after it has read the training text (``baselines.xz_bits_per_byte``)."""
        if are_instructions(rows):
            raise HeedfulError("there is no baseline for prompts or messages; leave --baseline out")
        train_texts, texts = ([row.values["text"] for row in part] for part in (learned(), rows))
        name = "xz -9 that has read the training text, at most its last 8 MiB"
        return Baseline(name, {"bits_per_byte": xz_bits_per_byte(train_texts, texts)})

    def quick_baseline(
        self, examples: Sequence[StreamWindow | InstructionExample], rows: Rows, learned: Rows
    ) -> Baseline | None:
        """Scores a baseline: a trigram model of the tokens (``heedful.tasks.baselines.NGrams``)."""
        return self._ngram_baseline(examples, rows, learned, 3)

    def guess(
        self, examples: Sequence[StreamWindow | InstructionExample], rows: Rows, learned: Rows
    ) -> Baseline | None:
        """Scores a baseline that ignores the context: each token is predicted by its frequency in the training text."""
        return self._ngram_baseline(examples, rows, learned, 1)

    def _ngram_baseline(
        self, examples: Sequence[StreamWindow | InstructionExample], rows: Rows, learned: Rows, order: int
    ) -> Baseline:
        """Scores an n-gram model of the training text, for each window or instruction; of choices the most frequent."""
        train_tokens = _tokens(self._encoded(learned, self.checked_length(None)).examples)
        first, ngrams = examples[0], NGrams(train_tokens, self.tokenizer.vocab_size, order)
        if isinstance(first, InstructionExample):
            sums = [
                (
                    ngrams.nats(np.array(example.ids))[np.array(example.learned)].sum(),
                    sum(example.learned),
                    example.answer_bytes,
                )
                for example in examples
                if isinstance(example, InstructionExample)
            ]
            scored = Sums(sums, text_metrics)
        else:
            nats = ngrams.nats(first.stream.tokens)[1:]
            windows = np.arange(len(nats)) // first.stream.context
            scored = Sums(np.stack([np.bincount(windows, nats), np.bincount(windows)], axis=1), next_token_metrics)
        name = (
            f"an n-gram model of the tokens (n = {ngrams.order})"
            if order > 1
            else "the tokens' frequencies in the training text"
        )
        baseline = Baseline(name, overall(scored), scored)
        return add_majority_choice(baseline, rows, learned, lambda row: str(prompt_and_target(row)[1]))

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        logprobs: bool = False,
        choices: Sequence[str] | None = None,
        normalise: str | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """Returns each prompt with its continuation.

        The score is the mean log-probability of the new tokens, or the score of the beam search. A list of messages
        (``{"role": "user", "content": "..."}``) is written with the folder's chat template, and the output is the
        assistant's answer alone. An empty prompt begins a document.

        Prompt and continuation may be longer than the context: when the context is full, its last half is read again,
        or its last ``context_keep`` tokens (``context`` of ``heedful.generation.generate``). If the prompt alone is
        longer than the context, only as many of its last tokens are read, with a warning. For a beam search, prompt and
        continuation must fit into the context. If the model has no limit, the context is ``batch_tokens``, at least
        4,096.

        With ``stop_strings`` a continuation ends after the first stop string, and includes it. With ``logprobs``,
        predictions have log p of the new tokens. With ``num_return_sequences`` > 1 the output is a list of ``{"text",
        "score"}``: samples, or the best beams.

        With ``choices`` the output is the most probable of these texts directly after the prompt, and the score its log
        p, without an end token (:mod:`heedful.tasks.choices`); ``normalise`` divides it by the number of "tokens" or
        "characters". An input with choices of its own is a mapping, ``{"prompt": ..., "choices": [...]}``.
        """
        decoding = outputs_of_call(decoding or self.decoding_options(model, options))
        texts, own = split_inputs(inputs, choices)
        check_ranking(own or [choices], decoding, normalise, logprobs)

        def ranked(some: list[Any], hub_choices: list[Sequence[str]]) -> list[Prediction]:
            return self._rank(model, some, hub_choices, decoding, normalise, batch_tokens)

        def continued(some: list[Any], options_of_rows: Options) -> list[Prediction]:
            return self._continue(model, some, options_of_rows, batch_tokens, logprobs)

        return answer(inputs, texts, own, decoding, ranked, continued)

    def _rank(
        self,
        model: Model,
        prompts: Sequence[Any],
        choices: Sequence[Sequence[str]],
        decoding: Options,
        normalise: str | None,
        batch_tokens: int | None,
    ) -> list[Prediction]:
        """Returns the most probable of the choices after each prompt, whose beginning is cut if it is too long."""
        targets = {own: self.tokenizer.encode(own) for own in {*map(tuple, choices)}}
        limit, encoded = self.limit(model, batch_tokens), list[RankedPrompt]()
        for index, (ids, own) in enumerate(zip(self.prompt_ids(prompts), choices, strict=True)):
            room = max(1, limit + 1 - max(map(len, targets[tuple(own)])))
            if len(ids) > room:
                text = f"has {len(ids):,} tokens, only the last {room:,} of them are read (the model takes no more)"
                log.warning(InputWarning(index, text))
            encoded.append(RankedPrompt(ids[-room:], targets[tuple(own)]))
        return rank_choices(model, prompts, encoded, choices, decoding, normalise, batch_tokens)

    def _continue(
        self, model: Model, inputs: Sequence[Any], decoding: Options, batch_tokens: int | None, logprobs: bool
    ) -> list[Prediction]:
        """Returns each prompt with its continuation, generated in batches."""
        prompts = self.prompt_ids(inputs)
        limit = self.limit(model, batch_tokens)
        self._check_length(model, prompts, limit, decoding)
        predictions = [Prediction(text, text, None) for text in inputs]
        batches = (
            evaluation_batches(list(map(len, prompts)), batch_tokens or EVALUATED, max_rows=128) if prompts else []
        )
        seeded, context = seed_per_prompt(decoding, prompts), self._context(decoding, limit)

        def decoded(batch: np.ndarray) -> list[list[GeneratedText]]:
            ids, mask = padded_with_mask([prompts[i] for i in batch])
            own_options = seeded.for_rows(batch, len(inputs))
            generated = decode(
                model, ids, mask, decoding=own_options, context=context, tokenizer=self.tokenizer, logprobs=logprobs
            )
            owners = [i for i in batch for _ in range(decoding.num_return_sequences)]
            rows = zip(generated.ids.tolist(), generated.lengths.tolist(), strict=True)
            texts = [continued(i, ids[:length]) for i, (ids, length) in zip(owners, rows, strict=True)]
            log_p = new_token_logprobs(generated, [len(prompts[i]) for i in owners])
            return by_prompt(map(GeneratedText, texts, generated.scores.tolist(), log_p), decoding)

        def continued(index: int, ids: list[int]) -> str:
            prompt, text = self.tokenizer.decode([prompts[index], ids])
            shown_prompt = inputs[index] if isinstance(inputs[index], str) else ""
            return shown_prompt + cut_at_stop(text[len(prompt) :], seeded.stop_strings)

        for batch, outputs in sharding.each(batches, decoded):
            for i, of_prompt in zip(batch, outputs, strict=True):
                predictions[i] = prediction_of(inputs[i], of_prompt, decoding)
        return predictions

    def stream(
        self,
        model: Model,
        text: Any,
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Yields the prompt, then its continuation in whole characters while it is generated; for messages the answer
        alone.

        Joined, the pieces equal the ``output`` of ``predict`` with the same options and seed. An option that asks for a
        beam search is an error; if the folder sets it, the output comes as one piece.
        """
        for name in ("logprobs", *RANKING):
            if name in options:
                raise HeedfulError(f"stream cannot return {name}; call the pipeline instead")
        decoding = outputs_of_call(decoding or self.decoding_options(model, options))
        if decoding.num_return_sequences > 1:
            raise HeedfulError("stream cannot return several sequences; leave num_return_sequences out")
        if "num_beams" not in decoding.given and not decoding.base.streams:
            return iter([self.predict(model, [text], decoding=decoding)[0].output])
        prompt, limit = self.prompt_ids([text])[0], self.limit(model, batch_tokens)
        if decoding.base.streams:  # which `stream` refuses
            self._check_length(model, [prompt], limit, decoding)
        ids = torch.tensor([prompt], device=model.device)
        context = self._context(decoding, limit)
        tokens = stream(model, ids, decoding=decoding, context=context, tokenizer=self.tokenizer)
        texts = pieces(
            lambda row: self.tokenizer.decode([row])[0], prompt, map(int, tokens), self.tokenizer.byte_tokens
        )
        return chain(
            [text] if isinstance(text, str) and text else [],
            until(texts, decoding.stop_strings),
        )

    def prompt_ids(self, inputs: Sequence[Any]) -> list[list[int]]:
        """Returns the ids of the prompts; warns of characters that are not in the vocabulary."""
        conversations = [chat_template.is_conversation(value) for value in inputs]
        check_texts(self.name, [value for value, talk in zip(inputs, conversations, strict=True) if not talk])
        texts = [
            chat_template.render_prompt(self.tokenizer, value) if talk else value
            for value, talk in zip(inputs, conversations, strict=True)
        ]
        rows = self.tokenizer.encode(texts)
        for text, row in zip(texts, rows, strict=True):
            if self.tokenizer.unknown in row:
                log.warning(
                    "the vocabulary lacks characters of %r; the model reads the unknown token there", short(text)
                )
        firsts = [[] if talk else self.before for talk in conversations]  # a template has its own begin token
        return [[*first, *row] or [self.end] for first, row in zip(firsts, rows, strict=True)]

    @property
    def reads(self) -> int | None:
        """The context: prompt and continuation together."""
        return self.context

    def limit(self, model: Model, batch_tokens: int | None = None) -> int:
        """Returns the maximum number of tokens to read: the context, or the model's positions; without either, as many
        as a batch holds.
        """
        lengths = (self.context, positions_of(model.config))
        return min((length for length in lengths if length), default=max(batch_tokens or 0, EVALUATED))

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder.

        A method that needs the whole text is limited by the model's learned positions, not by the folder's
        ``max_new_tokens``.
        """
        resolved = resolve(options, model.generation)
        config = model.config
        if not isinstance(config, DecoderConfig) or not isinstance(config.decoder.position, LearnedPosition):
            return resolved
        if not resolved.base.needs_whole_text or "max_new_tokens" not in model.generation:
            return resolved
        return resolve(options, {name: value for name, value in model.generation.items() if name != "max_new_tokens"})

    def _context(self, decoding: Options, limit: int) -> int | None:
        """Returns the context for ``generate``; None for a method that needs the whole text."""
        return None if decoding.base.needs_whole_text else limit

    def _check_length(self, model: Model, prompts: Sequence[Sequence[int]], limit: int, decoding: Options) -> None:
        """Warns of prompts longer than ``limit``; raises ``HeedfulError`` if the method needs the whole text."""
        method, keep = decoding.base, decoding.context_keep or limit // 2
        long = [index for index, prompt in enumerate(prompts) if len(prompt) > limit]
        if not long:
            return
        by_batch = not (self.context or positions_of(model.config))
        first = f"has {len(prompts[long[0]]):,} tokens"
        if method.needs_whole_text:
            whose = f"{limit:,} tokens (batch_tokens)" if by_batch else f"the model's {limit:,} tokens"
            raise InputError(
                long[0],
                f"{first}, but {method.needs_whole_text} reads at most {whose}; shorten the input, or give "
                f"{method.alternative}",
            )
        remedy = "a larger batch_tokens reads more" if by_batch else "the model takes no more"
        if len(long) == 1:
            log.warning(InputWarning(long[0], f"{first}, only the last {keep:,} of them are read ({remedy})"))
        else:
            text = f"have more than {limit:,} tokens, only the last {keep:,} of each are read ({remedy})"
            log.warning(CountWarning(len(long), len(prompts), text))

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: the beginning of the text, or prompt and answer of an instruction."""
        return short(row.values["text"][:200]) if "text" in row.values else instruction_line(row)


def _preference_task() -> type[TextGeneration]:
    task = get(TextGeneration.name, "preference")
    assert issubclass(task, TextGeneration)
    return task


def _letters(rows: Sequence[Row]) -> set[str]:
    """Returns the distinct characters of all texts."""
    letters = set[str]()
    for row in rows:
        letters.update(*_texts(row))
    return letters


def _separated(rows: Sequence[Row], settings: RunSettings) -> bool:
    """Returns True for ``--data.document-mask``; raises ``HeedfulError`` if the data has no separate documents."""
    if not settings.data.document_mask:
        return False
    if are_instructions(rows):
        raise HeedfulError(
            "--data.document-mask has no effect: each instruction is an example of its own; leave the option out"
        )
    if sum(not continues_previous(row) for row in rows) < 2:
        raise HeedfulError(
            "--data.document-mask has no effect: the text is one document; leave the option out, or give several "
            "documents"
        )
    return True


def _texts(row: Row) -> list[str]:
    return [row.values["text"]] if "text" in row.values else instruction_texts(row)


def _tokens(examples: Sequence[StreamWindow | InstructionExample]) -> np.ndarray:
    """Returns the tokens of all examples."""
    first = examples[0]
    if isinstance(first, StreamWindow):
        return first.stream.tokens
    return np.concatenate([example.ids for example in examples if isinstance(example, InstructionExample)])


def _measured(sums: np.ndarray) -> Measured:
    """Returns the evaluation from the sums (N, 3) of nats, predicted tokens and bytes of each row."""
    scored = Sums(sums, text_metrics)
    return Measured(overall(scored), {"tokens": int(sums[:, 1].sum()), "bytes": int(sums[:, 2].sum())}, scored)
