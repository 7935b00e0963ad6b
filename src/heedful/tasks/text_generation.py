"""Text generation: a text goes on, by a decoder that predicts each token from those before it (Radford et al. 2019)."""

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
from heedful.errors import HeedfulError, InputError, many
from heedful.generation import decode, stream
from heedful.generation.incremental_text import pieces
from heedful.generation.method import Method
from heedful.generation.options import NAMES, Options, resolve
from heedful.generation.stopping import cut, until
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.language_model import next_token_metrics, text_metrics
from heedful.models import Decoder, Model
from heedful.pretrained.configuration import config_of, home
from heedful.pretrained.folder import find, read_card
from heedful.settings import RunSettings, TokenizerSettings
from heedful.tasks import defaults
from heedful.tasks.baselines import NGrams, packed
from heedful.tasks.conversations import (
    LONGEST,
    Talk,
    answered,
    are_talks,
    collated,
    encoded,
    opening,
    told,
    with_template,
    words_of,
)
from heedful.tasks.documents import divided, located, sampled
from heedful.tasks.inputs_and_targets import Side, next_token_side
from heedful.tasks.model_setup import (
    check_vocabulary,
    checked_folder,
    positions_of,
    preset_of,
    tokenizer_of,
    with_settings,
)
from heedful.tasks.output_loss import output_loss
from heedful.tasks.task import (
    EVALUATED,
    LINE,
    SAMPLES,
    TEXTS,
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
from heedful.tasks.token_batches import IGNORED, new_token_logprobs, padded_with_mask, seed_per_prompt
from heedful.text import Tokenizer, chat_template
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning, InputWarning

log = logging.getLogger("heedful")


SPOKEN = 60  # tokens of a sample in the log
CONTEXT = 256  # of a published model that names none
GENERATION = MappingProxyType({"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": 200})


class TextGeneration(Task):
    """A decoder over a stream of documents: loss, perplexity, bits a byte; continuations of prompts.

    Args:
        tokenizer: of the text. What it puts before a text (Llama's ``<s>``) stands before each prompt and document;
            where it puts nothing, its end token stands before each document (as in GPT-2) and for an empty prompt.
        context: the most tokens that the model reads; None: any number.
        ends: the ids that end a text for the model; () are the tokenizer's end token. A document is closed by one of
            them, unless what begins the next is one.
        separate: documents that share a window do not see each other, and their positions begin at 0.
    """

    name: ClassVar[str] = "text-generation"
    columns: Mapping[str, Kind] = MappingProxyType(
        {"text": "document", "prompt": "text?", "completion": "text?", "messages": "messages?"}
    )
    main_metric: str = "loss"
    used_settings: ClassVar[frozenset[str]] = TEXTS | {"data.document_mask", "model.decoder_depth", "model.tied"}
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens", "logprobs"} - {"num_return_sequences"})
    display_options: ClassVar[frozenset[str]] = frozenset({"logprobs"})

    def __init__(
        self, tokenizer: Tokenizer, context: int | None, ends: Sequence[int] = (), separate: bool = False
    ) -> None:
        end = tokenizer.end if tokenizer.end in ends or not ends else ends[0]
        if end is None:
            raise HeedfulError("the tokenizer has no end token (eos_token); name one in its tokenizer_config.json")
        self.tokenizer, self.context, self.end, self.separate = tokenizer, context, end, separate
        self.before = list(tokenizer.around().before)
        self.begins = self.before or [end]
        self.closes = [] if self.begins[0] in (*ends, end) else [end]

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Of many documents some are held back, of few the last part of each that has lines, cut at a line's end. Of
        instructions those with the same prompt stay together.
        """
        if not rows or not are_talks(rows):
            return divided(rows, valid, seed, same)
        train, held = split(rows, valid, seed, by="prompt" if "prompt" in rows[0].values else "messages", same=same)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the length of the text: every character a token, or learned pieces; few passes over much of it."""
        talks = are_talks(rows)
        characters = sum(len(text) for row in rows for text in _texts(row))
        size = defaults.size_for(characters, defaults.DECODER)
        begun = asked.start_from is not None
        context = asked.data.max_length or (LONGEST if talks else size.context)
        if asked.start_from is not None:
            context = asked.data.max_length or cls.load(asked.start_from).context or CONTEXT
        kind = asked.tokenizer.kind or ("bpe" if talks else size.kind)  # what is asked may hold any character
        vocabulary = size.vocabulary if kind != "character" else 4 + len(_letters(rows))
        tokenizer = TokenizerSettings() if begun else TokenizerSettings(kind=kind, size=vocabulary)  # type: ignore[arg-type]  # words of the table
        return replace(defaults.decoder(size, asked, context), tokenizer=tokenizer)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer on the training documents."""
        asked = settings.tokenizer
        texts = (text for row in sampled(rows) for text in _texts(row))
        tokenizer = Tokenizer.train(
            texts, asked.size or 1000, asked.kind or "bpe", bool(asked.lowercase), template="none"
        )
        context = settings.data.max_length or CONTEXT
        tokenizer.config["model_max_length"] = context
        with_template(tokenizer, rows)
        return cls(tokenizer, context, separate=_separated(rows, settings))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """The folder's model; one without a chat template that is to learn from messages gets the plain one."""
        task, model = super().for_fine_tuning(folder, rows, settings)
        task.separate = _separated(rows, settings)
        if with_template(task.tokenizer, rows):
            log.warning(
                "the model has no chat template; messages are put in the plain one (the role and a colon, a line end, "
                "the content, the end token), which the new folder keeps"
            )
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizer of a model folder; the context is what it names, or the model's positions where those are
        fewer.
        """
        folder = find(folder)
        tokenizer, config = tokenizer_of(checked_folder(cls.name, folder)), config_of(folder)
        if template := chat_template.read_template(folder) or chat_template.read_template(home(folder)):
            tokenizer.config["chat_template"] = template
        named = [tokenizer.config.get("model_max_length"), positions_of(config)]
        known = [int(length) for length in named if length is not None and length < 1e9]  # a huge one stands for none
        ends = config.special.end if isinstance(config, DecoderConfig) else ()
        data = read_card(folder).get("settings", {}).get("data", {})
        separate = bool(data.get("document_mask", data.get("separate")))  # the older name, in older folders
        return cls(tokenizer, min(known, default=None), ends, separate)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer."""
        self.tokenizer.save(folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset with this vocabulary, and as many learned positions as the context."""
        config = preset_of(settings.preset or "gpt-micro", DecoderConfig, self.name)
        stack = with_settings(config.decoder, settings.model, settings.model.decoder_depth)
        if isinstance(stack.position, LearnedPosition):
            stack = replace(stack, position=replace(stack.position, length=self.context or CONTEXT))
        return replace(
            config,
            embedding=replace(config.embedding, vocab_size=self.tokenizer.vocab_size),
            decoder=stack,
            head=config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied),
            special=SpecialTokens(pad=self.tokenizer.pad, start=self.end, end=(self.end,)),
        )

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Tell how to generate; a model that goes on keeps what its folder said."""
        if settings.start_from is None:
            model.generation = {**GENERATION, **model.generation}

    def check_model(self, model: Model) -> None:
        """A decoder that predicts tokens, with a row for every token; rows to spare are no harm."""
        config = model.config
        if not isinstance(config, DecoderConfig) or not isinstance(config.head, LanguageHead):
            raise HeedfulError(
                f"{self.name} needs a decoder with a language-model head; this model is of kind {config.kind!r}, its "
                f"head of kind {config.head.kind!r}"
            )
        check_vocabulary(self.tokenizer, config.embedding)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """All rows as one stream of tokens, in windows of ``max_length``; of all tokens, where there are fewer.
        Instructions are examples of their own: ``heedful.tasks.conversations.encoded``.
        """
        context = max_length or self.context or CONTEXT
        if context > (self.context or context):
            raise HeedfulError(f"the model reads {self.context} tokens, not {context}; lower --data.max-length")
        if rows and are_talks(rows):
            self.unit = "answer_tokens"
            return encoded(self.tokenizer, rows, self.begins, self.end, context)
        tokens, starts = located(self.tokenizer, rows, self.begins, self.closes)
        if len(tokens) < 3:
            where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
            raise HeedfulError(f"fewer than two tokens of text{where}: nothing to learn from; give more text")
        made = Stream(tokens, min(context, len(tokens) - 1), starts)
        note = f"{many(len(tokens), 'token')} in windows of {made.context}"
        if made.context < context:
            note += f": the text is shorter than the context of {context}"
        if isinstance(tokens, np.memmap):
            note += f", on disk in {tokens.filename} ({tokens.nbytes / 2**20:,.0f} MiB)"
        if unknown := count_token(tokens, self.tokenizer.unknown):
            note += f"; {unknown:,} of them unknown to the vocabulary"
        return Encoded(StreamWindows(made), rows, note)

    def lengths(self, examples: Sequence[StreamWindow | Talk]) -> np.ndarray:
        """(N, 1): the context, for each; of an instruction its own length."""
        if isinstance(examples, StreamWindows):
            return np.full((len(examples), 1), examples.stream.context, dtype=np.int64)
        sizes = [len(one.ids) - 1 if isinstance(one, Talk) else one.stream.context for one in examples]
        return np.array(sizes, dtype=np.int64)[:, None]

    def collate(
        self, examples: Sequence[StreamWindow | Talk], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """``ids`` (B, context) and ``labels``, the token after each: see ``heedful.data.token_stream.read_windows``;
        for instructions ``heedful.tasks.conversations.collated``. Where documents are separate, ``texts`` (B, context)
        numbers those of a window, and none is asked how the next one begins.
        """
        talks = [one for one in examples if isinstance(one, Talk)]
        if talks:
            return collated(talks, self.tokenizer.pad or 0)
        windows = [one for one in examples if isinstance(one, StreamWindow)]
        shown = read_windows(windows, random)
        labels = np.where(shown.there, shown.tokens, IGNORED)[:, 1:]
        batch = {"ids": shown.tokens[:, :-1]}
        if self.separate:
            begins = shown.begins(windows[0].stream)
            batch["texts"] = np.where(shown.there, begins.cumsum(1) + ~begins[:, :1], 0)[:, :-1]
            if self.closes:  # else what begins the next closes this one
                labels = np.where(begins[:, 1:], IGNORED, labels)
        return {name: torch.from_numpy(each) for name, each in {**batch, "labels": labels}.items()}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the text, with the next token as target."""
        return [next_token_side("text", batch["ids"][row], batch["labels"][row], self.tokenizer)]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Tokens that are predicted."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ −log p(token | those before it in its window); see ``Translation.objective`` for ``label_smoothing``."""
        assert isinstance(model, Decoder)
        hidden = model.hidden(batch["ids"], batch.get("texts"))
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
        """Over all tokens, each predicted from those before it in its window of the training context.

        ``loss`` is Σ −log p / tokens, ``perplexity`` e^loss, ``bits_per_byte`` Σ −log₂ p / bytes of the text in UTF-8:
        the one that models of different tokenizers may be compared by. Windows follow one another, so that a token
        sees half a context on average; the end-of-text tokens between documents are among those predicted. Nothing is
        generated: ``most`` changes nothing, and any of ``options`` is an error. Of instructions all figures are of what
        is answered, end tokens included, each token predicted from all of its example before it.
        """
        for name in options:
            raise HeedfulError(f"{name} has no effect: a language model is scored without generating; leave it out")
        sums = np.zeros((len(rows), 3))
        if isinstance(examples[0], Talk):
            sums[:, 2] = [talk.size for talk in examples]
            for places, (nats, count) in self.map_batches(model, examples, partial(answered, model), batch_tokens):
                sums[places, 0], sums[places, 1] = nats, count
            return _measured(sums)
        owners = np.cumsum([not continues_previous(row) for row in rows])  # of pieces of a large text, the document
        owners -= owners[0]
        sums, window_sums = np.zeros((owners[-1] + 1, 3)), np.zeros((examples[0].stream.windows, 2))
        np.add.at(sums[:, 2], owners, [len(row.values["text"].encode("utf-8", "surrogatepass")) for row in rows])
        for document, window, nats in self._nats(model, examples, batch_tokens):
            for table, owner in ((sums, document), (window_sums, window)):
                table[:, 0] += np.bincount(owner, nats, len(table))
                table[:, 1] += np.bincount(owner, minlength=len(table))
        return replace(_measured(sums), window_scores=Sums(window_sums, next_token_metrics))

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """As all: how the beginnings of texts go on, or what is answered, by the likeliest token each time."""
        asked = [(ask, target) for ask, target in map(opening, rows[:SAMPLES]) if ask]
        answers = self.predict(model, [ask for ask, _ in asked], do_sample=False, max_new_tokens=SPOKEN)
        told = []
        for (ask, target), answer in zip(asked, answers, strict=True):
            shown = ask if isinstance(ask, str) else ask[-1]["content"]
            output = answer.output.removeprefix(ask) if isinstance(ask, str) else answer.output
            told.append({"input": short(shown, LINE), "output": short(output, LINE)})
            if target is not None:
                told[-1]["target"] = short(target, LINE)
        return told

    def _nats(
        self, model: Model, examples: Sequence[StreamWindow], batch_tokens: int | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The document and the window of each token that is predicted, and −log p of the token, batch by batch."""
        stream = examples[0].stream

        def read_windows(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
            logits, labels = model(batch["ids"], batch.get("texts")).flatten(0, 1).float(), batch["labels"].flatten()
            nats = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
            return nats.cpu().numpy(), (labels != IGNORED).cpu().numpy()

        for places, (nats, real) in self.map_batches(model, examples, read_windows, batch_tokens):
            firsts = np.array([examples[i].place * stream.context for i in places])
            index = (firsts[:, None] + np.arange(1, stream.context + 1)).ravel()[real]
            yield np.searchsorted(stream.starts, index, side="right") - 1, (index - 1) // stream.context, nats[real]

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """xz, which has read what the model learned from: ``heedful.tasks.baselines.packed``."""
        if are_talks(rows):
            raise HeedfulError("no simple method answers prompts or messages; leave --baseline out")
        before, texts = ([row.values["text"] for row in part] for part in (learned(), rows))
        name = "xz -9 that has read the training text, at most its last 8 MiB"
        return Baseline(name, {"bits_per_byte": packed(before, texts)})

    def quick_baseline(self, examples: Sequence[StreamWindow | Talk], rows: Rows, learned: Rows) -> Baseline | None:
        """Trigrams of the model's own tokens: ``heedful.tasks.baselines.NGrams``."""
        return self._counted(examples, learned, 3)

    def guess(self, examples: Sequence[StreamWindow | Talk], rows: Rows, learned: Rows) -> Baseline | None:
        """Each token with its frequency in the training text."""
        return self._counted(examples, learned, 1)

    def _counted(self, examples: Sequence[StreamWindow | Talk], learned: Rows, order: int) -> Baseline:
        """The loss of n-grams, window by window or instruction by instruction."""
        first, known = examples[0], NGrams(_tokens(self.encode(learned).examples), self.tokenizer.vocab_size, order)
        if isinstance(first, Talk):
            talks = [one for one in examples if isinstance(one, Talk)]
            sums = [
                (known.nats(np.array(one.ids))[np.array(one.learned)].sum(), sum(one.learned), one.size)
                for one in talks
            ]
            scored = Sums(sums, text_metrics)
        else:
            each = known.nats(first.stream.tokens)[1:]
            windows = np.arange(len(each)) // first.stream.context
            scored = Sums(np.stack([np.bincount(windows, each), np.bincount(windows)], axis=1), next_token_metrics)
        name = (
            f"an n-gram model of the tokens (n = {known.order})"
            if order > 1
            else "the tokens' frequencies in the training text"
        )
        return Baseline(name, overall(scored), scored)

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        logprobs: bool = False,
        **options: Any,
    ) -> list[Prediction]:
        """Each prompt and how it goes on; the score is of the new tokens, the mean log-probability or the beam's.

        A list of messages (``{"role": "user", "content": "..."}``) is put in the words of the folder's chat template;
        its output is what the assistant answers, alone.

        An empty prompt begins a document. When the context is full its last half is read again and the text goes on
        (``heedful.generation.generate``: ``context``), to any length; of a prompt longer than the context only that
        half is read, and a warning says so. A model without any limit has a context of what one batch holds
        (``batch_tokens``, at least 4,096). A beam search cannot do so: prompt and continuation must fit.

        With ``stop_strings`` a continuation ends right after the first of them, which is shown. With ``logprobs`` each
        answer has log p of its new tokens, as the model itself says it (``heedful.generation.decode.Generated``).
        """
        prompts = self._prompts(inputs)
        decoding = decoding or self.decoding_options(model, options)
        most = self._most(model, batch_tokens)
        self._check_length(model, prompts, most, decoding.base)
        answers = [Prediction(text, text, None) for text in inputs]
        batches = (
            evaluation_batches(list(map(len, prompts)), batch_tokens or EVALUATED, max_rows=128) if prompts else []
        )
        own, context = seed_per_prompt(decoding, prompts), self._context(decoding, most)

        def decoded(batch: np.ndarray) -> list[tuple[list[int], int, float, list[float] | None]]:
            ids, real = padded_with_mask([prompts[i] for i in batch])
            resolved = own.for_rows(batch, len(inputs))
            found = decode(
                model, ids, real, decoding=resolved, context=context, tokenizer=self.tokenizer, logprobs=logprobs
            )
            said = new_token_logprobs(found, [len(prompts[i]) for i in batch])
            told = found.ids.tolist(), found.lengths.tolist(), found.scores.tolist(), said
            return list(zip(*told, strict=True))

        for batch, found in sharding.each(batches, decoded):
            for i, (row, length, score, log_p) in zip(batch, found, strict=True):
                before, text = self.tokenizer.decode([prompts[i], row[:length]])
                shown = inputs[i] if isinstance(inputs[i], str) else ""
                answers[i] = Prediction(inputs[i], shown + cut(text[len(before) :], own.stop_strings), score, log_p)
        return answers

    def stream(
        self,
        model: Model,
        text: Any,
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """The prompt, then its continuation as it is made, never a part of a character; of messages the answer alone.

        Joined, the pieces are the ``output`` of ``predict`` with the same options and seed; ``batch_tokens`` is for
        many prompts and has no effect here. A beam search that is asked for is an error; one that the folder asks for
        comes as a whole.
        """
        if "logprobs" in options:
            raise HeedfulError("logprobs are told with a whole answer; call the pipeline instead of stream")
        decoding = decoding or self.decoding_options(model, options)
        if "num_beams" not in decoding.given and not decoding.base.streams:
            return iter([self.predict(model, [text], decoding=decoding)[0].output])
        prompt, most = self._prompts([text])[0], self._most(model, batch_tokens)
        if decoding.base.streams:  # which `stream` refuses
            self._check_length(model, [prompt], most, decoding.base)
        ids = torch.tensor([prompt], device=model.device)
        context = self._context(decoding, most)
        tokens = stream(model, ids, decoding=decoding, context=context, tokenizer=self.tokenizer)
        made = pieces(lambda row: self.tokenizer.decode([row])[0], prompt, map(int, tokens), self.tokenizer.joined)
        return chain(
            [text] if isinstance(text, str) and text else [],
            until(made, decoding.stop_strings),
        )

    def _prompts(self, inputs: Sequence[Any]) -> list[list[int]]:
        """Ids to go on from; what the vocabulary lacks is said."""
        talks = [chat_template.is_conversation(one) for one in inputs]
        check_texts(self.name, [one for one, talk in zip(inputs, talks, strict=True) if not talk])
        texts = [
            chat_template.render_prompt(self.tokenizer, one) if talk else one
            for one, talk in zip(inputs, talks, strict=True)
        ]
        rows = self.tokenizer.encode(texts)
        for text, row in zip(texts, rows, strict=True):
            if self.tokenizer.unknown in row:
                log.warning(
                    "the model does not know every character of %r; it reads the unknown token there", short(text)
                )
        befores = [[] if talk else self.before for talk in talks]  # a template says itself what begins it
        return [[*before, *row] or [self.end] for before, row in zip(befores, rows, strict=True)]

    def _most(self, model: Model, batch_tokens: int | None) -> int:
        """The most tokens that are read: the folder's context or the model's positions; where neither has a limit, as
        many as one batch holds, since memory has one.
        """
        lengths = (self.context, positions_of(model.config))
        return min((length for length in lengths if length), default=max(batch_tokens or 0, EVALUATED))

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns a call's decoding options, resolved over those of the model's folder. A method that needs the whole
        text generates as many tokens as there are learned positions for, whatever the folder says.
        """
        resolved = resolve(options, model.generation)
        config = model.config
        if not isinstance(config, DecoderConfig) or not isinstance(config.decoder.position, LearnedPosition):
            return resolved
        if not resolved.base.needs_whole_text or "max_new_tokens" not in model.generation:
            return resolved
        return resolve(options, {name: value for name, value in model.generation.items() if name != "max_new_tokens"})

    def _context(self, decoding: Options, most: int) -> int | None:
        """Returns the context for ``generate``; None for a method that needs the whole text."""
        return None if decoding.base.needs_whole_text else most

    def _check_length(self, model: Model, prompts: Sequence[Sequence[int]], most: int, method: Method) -> None:
        """Say which prompts are not read whole; raise where the method cannot but keep all that it reads."""
        long = [place for place, prompt in enumerate(prompts) if len(prompt) > most]
        if not long:
            return
        ours = not (self.context or positions_of(model.config))
        first = f"has {len(prompts[long[0]]):,} tokens"
        if method.needs_whole_text:
            whose = f"{most:,} (batch_tokens)" if ours else f"the model's {most:,}"
            raise InputError(
                long[0],
                f"{first}, but {method.needs_whole_text} reads at most {whose}; shorten it, or give "
                f"{method.alternative}",
            )
        remedy = "a larger batch_tokens reads more" if ours else "the model takes no more"
        if len(long) == 1:
            log.warning(InputWarning(long[0], f"{first}, only the last {most // 2:,} of them are read ({remedy})"))
        else:
            text = f"have more than {most:,} tokens, only the last {most // 2:,} of each are read ({remedy})"
            log.warning(CountWarning(len(long), len(prompts), text))

    def row_line(self, row: Row) -> str:
        """The beginning of the text; of an instruction what is asked and answered."""
        return short(row.values["text"][:200]) if "text" in row.values else told(row)


def _letters(rows: Sequence[Row]) -> set[str]:
    """The characters of all texts."""
    found = set[str]()
    for row in rows:
        found.update(*_texts(row))
    return found


def _separated(rows: Sequence[Row], settings: RunSettings) -> bool:
    """Returns True if documents are to be told apart; asked of what has nothing to tell apart is an error."""
    if not settings.data.document_mask:
        return False
    if are_talks(rows):
        raise HeedfulError("--data.document-mask has no effect: instructions are examples of their own; leave it out")
    if sum(not continues_previous(row) for row in rows) < 2:
        raise HeedfulError(
            "--data.document-mask has no effect: the text is one document; leave it out, or give several"
        )
    return True


def _texts(row: Row) -> list[str]:
    return [row.values["text"]] if "text" in row.values else words_of(row)


def _tokens(examples: Sequence[StreamWindow | Talk]) -> np.ndarray:
    """The tokens of all examples."""
    first = examples[0]
    if isinstance(first, StreamWindow):
        return first.stream.tokens
    return np.concatenate([one.ids for one in examples if isinstance(one, Talk)])


def _measured(sums: np.ndarray) -> Measured:
    """From the nats, predicted tokens and bytes of each row."""
    each = Sums(sums, text_metrics)
    return Measured(overall(each), {"tokens": int(sums[:, 1].sum()), "bytes": int(sums[:, 2].sum())}, each)
