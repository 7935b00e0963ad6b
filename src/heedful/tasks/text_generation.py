"""Text generation: a text goes on, by a decoder that predicts each token from those before it (Radford et al. 2019)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.checkpoints.configuration import config_of, home
from heedful.checkpoints.folder import find
from heedful.config import DecoderConfig, LanguageHead, LearnedPosition, ModelConfig, SpecialTokens
from heedful.data import Kind, Row, Rows
from heedful.data.batching import ordered
from heedful.data.split import divide_text
from heedful.data.windows import Stream, Window, read
from heedful.errors import HeedfulError
from heedful.generation import decode, stream
from heedful.generation.options import NAMES, part, resolve
from heedful.generation.pieces import pieces
from heedful.generation.stopping import cut, until
from heedful.models import Model
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.shared import (
    IGNORED,
    changed,
    check_texts,
    check_vocabulary,
    masked,
    positions_of,
    preset_of,
    reads,
    seeded,
    tokenizer_of,
)
from heedful.tasks.task import EVALUATED, Answer, Batch, Encoded, Measured, Task, short
from heedful.text import Tokenizer, chat
from heedful.text.parts import encode_parts

log = logging.getLogger("heedful")


class Size(NamedTuple):
    """What a number of characters suggests."""

    preset: str
    kind: str
    vocabulary: int  # of other kinds than character, which has every character
    context: int
    epochs: int
    windows: int  # in a batch


# below so many characters: this
SIZES: tuple[tuple[float, Size], ...] = (
    (200_000, Size("gpt-micro", "character", 500, 64, 40, 12)),
    (2_000_000, Size("gpt-micro", "character", 1000, 64, 5, 12)),
    (200_000_000, Size("gpt-micro", "bpe", 4000, 64, 2, 12)),
    (float("inf"), Size("gpt-mini", "bpe", 8000, 256, 1, 16)),
)
FEW = 20  # below so many documents a part of each is held back, from there on some documents
VALID = 0.1  # the share of each
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
    """

    name: ClassVar[str] = "text-generation"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "document"})
    decides: str = "loss"
    without: ClassVar[frozenset[str]] = frozenset(
        {"data.label_separator", "tokenizer.shared", "image", "model.encoder_depth", "model.patch_size"}
    )
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens"} - {"num_return_sequences"})

    def __init__(self, tokenizer: Tokenizer, context: int | None, ends: Sequence[int] = ()) -> None:
        end = tokenizer.end if tokenizer.end in ends or not ends else ends[0]
        if end is None:
            raise HeedfulError("the tokenizer has no end token (eos_token); name one in its tokenizer_config.json")
        self.tokenizer, self.context, self.end = tokenizer, context, end
        self.before = list(tokenizer.around().before)
        self.begins = self.before or [end]
        self.closes = [] if self.begins[0] in (*ends, end) else [end]

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def divide(cls, rows: Rows, valid: float | None, seed: int) -> tuple[Rows, Rows]:
        """Of many documents some are held back, of few the last part of each that has lines, cut at a line's end."""
        if len(rows) >= FEW:
            return super().divide(rows, valid, seed)
        train, held = Rows([], rows.skipped, rows.columns), Rows([], 0, rows.columns)
        for row in rows:
            text = row.values["text"]
            first, last = divide_text(text, valid or VALID) if "\n" in text.strip() else (text, "")
            train.append(Row({"text": first}, row.file, row.line))
            if last:
                held.append(Row({"text": last}, row.file, row.line + first.count("\n")))
        if not held:
            where = f", in {rows[0].file}" if rows else ""
            raise HeedfulError(
                f"no text has two lines{where}, so that a part could be held back; give a validation file: --valid FILE"
            )
        return train, held

    @classmethod
    def suggest(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the length of the text: every character a token, or learned pieces; few passes over much of it."""
        texts = [row.values["text"] for row in rows]
        characters = sum(map(len, texts))
        size = next(size for most, size in SIZES if characters < most)
        begun = asked.start_from is not None
        context = asked.data.max_length or size.context
        if asked.start_from is not None:
            context = asked.data.max_length or cls.load(asked.start_from).context or CONTEXT
        kind = asked.tokenizer.kind or size.kind
        vocabulary = size.vocabulary if kind != "character" else 4 + len(set().union(*texts))
        return replace(
            asked,
            preset=None if begun else asked.preset or size.preset,
            max_epochs=3 if begun else size.epochs,
            data=DataSettings(max_length=context),
            tokenizer=TokenizerSettings() if begun else TokenizerSettings(kind=kind, size=vocabulary),  # type: ignore[arg-type]  # SIZES' words
            model=ModelSettings(dropout=None if begun or asked.preset else 0.0),
            training=TrainingSettings(
                lr=1e-4 if begun else 1e-3,
                schedule="cosine",
                floor=0.1 if asked.training.schedule in (None, "cosine", "linear") else None,
                warmup=min(100, (asked.max_steps or 10**9) // 10 + 1),
                batch_tokens=size.windows * context,
                accumulate=1,
                label_smoothing=0.0,
                clip=1.0,
                weight_decay=0.1,
                betas=(0.9, 0.99),
                eps=1e-8,
                average=0.05,
                patience=10,
                log_every=50,
            ),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer on the training documents."""
        asked = settings.tokenizer
        texts = (row.values["text"] for row in rows)
        tokenizer = Tokenizer.train(texts, asked.size or 1000, asked.kind or "bpe", asked.lowercase, template="none")
        context = settings.data.max_length or CONTEXT
        tokenizer.config["model_max_length"] = context
        return cls(tokenizer, context)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizer of a model folder; the context is what it names, or the model's positions where those are
        fewer.
        """
        folder = find(folder)
        tokenizer, config = tokenizer_of(reads(cls.name, folder)), config_of(folder)
        if template := chat.read(folder) or chat.read(home(folder)):
            tokenizer.config["chat_template"] = template
        named = [tokenizer.config.get("model_max_length"), positions_of(config)]
        known = [int(length) for length in named if length is not None and length < 1e9]  # a huge one stands for none
        ends = config.special.end if isinstance(config, DecoderConfig) else ()
        return cls(tokenizer, min(known, default=None), ends)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer."""
        self.tokenizer.save(folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset with this vocabulary, and as many learned positions as the context."""
        config = preset_of(settings.preset or "gpt-micro", DecoderConfig, self.name)
        stack = changed(config.decoder, settings.model, settings.model.decoder_depth)
        if isinstance(stack.position, LearnedPosition):
            stack = replace(stack, position=replace(stack.position, length=self.context or CONTEXT))
        return replace(
            config,
            embedding=replace(config.embedding, vocab_size=self.tokenizer.vocab_size),
            decoder=stack,
            head=config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied),
            special=SpecialTokens(pad=self.tokenizer.pad, start=self.end, end=(self.end,)),
        )

    def ready(self, model: Model, settings: RunSettings) -> None:
        """Tell how to generate; a model that goes on keeps what its folder said."""
        if settings.start_from is None:
            model.generation = {**GENERATION, **model.generation}

    def check(self, model: Model) -> None:
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
        """All rows as one stream of tokens, in windows of ``max_length``; of all tokens, where there are fewer."""
        context = max_length or self.context or CONTEXT
        if context > (self.context or context):
            raise HeedfulError(f"the model reads {self.context} tokens, not {context}; lower --data.max-length")
        tokens = self._tokens([row.values["text"] for row in rows])
        if len(tokens) < 3:
            where = f", in {rows[0].file}:{rows[0].line}" if rows else ""
            raise HeedfulError(f"fewer than two tokens of text{where}: nothing to learn from; give more text")
        made = Stream(tokens, min(context, len(tokens) - 1))
        note = f"{len(tokens):,} tokens in windows of {made.context}"
        if made.context < context:
            note += f": the text is shorter than the context of {context}"
        unknown = int((tokens == self.tokenizer.unknown).sum()) if self.tokenizer.unknown is not None else 0
        if unknown:
            note += f"; {unknown:,} of them unknown to the vocabulary"
        return Encoded([Window(made, place) for place in range(made.windows)], rows, note)

    def _tokens(self, texts: Sequence[str]) -> np.ndarray:
        """What begins a document, its ids and what closes it, for each."""
        kind = np.uint16 if self.tokenizer.vocab_size <= 1 << 16 else np.int32
        parts, closes = [], []  # type: tuple[list[np.ndarray], list[int]]
        for begins, ids in encode_parts(self.tokenizer, texts):
            parts.append(np.array([*closes, *self.begins, *ids] if begins else ids, kind))
            closes = self.closes
        return np.concatenate([*parts, np.array(closes, kind)])

    def lengths(self, examples: Sequence[Window]) -> np.ndarray:
        """(N, 1): the context, for each."""
        return np.array([[window.stream.context] for window in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Window], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """``ids`` (B, context) and ``labels``, the token after each; see ``heedful.data.windows.read``."""
        tokens, there = map(torch.from_numpy, read(examples, random))
        return {"ids": tokens[:, :-1], "labels": tokens[:, 1:].masked_fill(~there[:, 1:], IGNORED)}

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> int:
        """Tokens that are predicted."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ −log p(token | those before it in its window); see ``Translation.objective`` for ``label_smoothing``."""
        return F.cross_entropy(
            model(batch["ids"]).flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )

    # ------------------------------------------------------------------------------------ measuring, answering, telling

    def measure(
        self,
        model: Model,
        examples: Sequence[Window],
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
        generated: ``most`` changes nothing, and any of ``options`` is an error.
        """
        for name in options:
            raise HeedfulError(f"{name} has no effect: a language model is scored without generating; leave it out")
        total, count = self.loss(model, examples, batch_tokens)
        size = sum(len(row.values["text"].encode("utf-8", "surrogatepass")) for row in rows)
        loss = total / count
        metrics = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": total / math.log(2) / size}
        return Measured(metrics, {"tokens": count, "bytes": size})

    def answer(
        self, model: Model, inputs: Sequence[Any], *, batch_tokens: int | None = None, **options: Any
    ) -> list[Answer]:
        """Each prompt and how it goes on; the score is of the new tokens, the mean log-probability or the beam's.

        A list of messages (``{"role": "user", "content": "..."}``) is put in the words of the folder's chat template;
        its output is what the assistant answers, alone.

        An empty prompt begins a document. When the context is full its last half is read again and the text goes on
        (``heedful.generation.generate``: ``context``), to any length; of a prompt longer than the context only that
        half is read. A beam search cannot do so: prompt and continuation must fit the model's positions.

        With ``stop_strings`` a continuation ends right after the first of them, which is shown.
        """
        prompts = self._prompts(inputs)
        plan, strings = self._plan(model, options), resolve(options, model.generation).stop_strings
        self._check_search(plan, prompts, positions_of(model.config))
        answers = [Answer(text, text, None) for text in inputs]
        batches = ordered(list(map(len, prompts)), batch_tokens or EVALUATED, max_rows=128) if prompts else []
        own = seeded(options, prompts)
        for batch in batches:
            ids, real = masked([prompts[i] for i in batch])
            found = decode(model, ids, real, **plan, **part(own, batch, len(inputs)))
            for i, row, length, score in zip(
                batch, found.ids.tolist(), found.lengths.tolist(), found.scores.tolist(), strict=True
            ):
                before, text = self.tokenizer.decode([prompts[i], row[:length]])
                shown = inputs[i] if isinstance(inputs[i], str) else ""
                answers[i] = Answer(inputs[i], shown + cut(text[len(before) :], strings), score)
        return answers

    def stream(self, model: Model, text: Any, *, batch_tokens: int | None = None, **options: Any) -> Iterator[str]:
        """The prompt, then its continuation as it is made, never a part of a character; of messages the answer alone.

        Joined, the pieces are the ``output`` of ``answer`` with the same options and seed; ``batch_tokens`` is for many
        prompts, and has nothing to do here. A beam search is an error where it is asked for; where the folder asks for
        it, its answer comes as a whole.
        """
        if "num_beams" not in options and resolve(options, model.generation).method == "beam":
            return iter([self.answer(model, [text], **options)[0].output])
        prompt = self._prompts([text])[0]
        ids = torch.tensor([prompt], device=model.device)
        tokens = stream(model, ids, **self._plan(model, options), **options)
        made = pieces(lambda row: self.tokenizer.decode([row])[0], prompt, map(int, tokens), self.tokenizer.joined)
        return chain(
            [text] if isinstance(text, str) and text else [],
            until(made, resolve(options, model.generation).stop_strings),
        )

    def _prompts(self, inputs: Sequence[Any]) -> list[list[int]]:
        """Ids to go on from; what the vocabulary lacks is said."""
        talks = [chat.is_conversation(one) for one in inputs]
        check_texts(self.name, [one for one, talk in zip(inputs, talks, strict=True) if not talk])
        texts = [chat.rendered(self.tokenizer, one) if talk else one for one, talk in zip(inputs, talks, strict=True)]
        rows = self.tokenizer.encode(texts)
        for text, row in zip(texts, rows, strict=True):
            if self.tokenizer.unknown in row:
                log.warning(
                    "the model does not know every character of %r; it reads the unknown token there", short(text)
                )
        befores = [[] if talk else self.before for talk in talks]  # a template says itself what begins it
        return [[*before, *row] or [self.end] for before, row in zip(befores, rows, strict=True)]

    def _plan(self, model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
        """How much is read at a time, and the folder's ways of generating."""
        defaults = dict(model.generation)
        if resolve(options, defaults).method not in ("beam", "contrastive"):
            lengths = [length for length in (self.context, positions_of(model.config)) if length]
            return {"context": min(lengths, default=None), "defaults": defaults, "tokenizer": self.tokenizer}
        if isinstance(model.config, DecoderConfig) and isinstance(model.config.decoder.position, LearnedPosition):
            defaults.pop("max_new_tokens", None)  # as many as there is room for
        return {"defaults": defaults, "tokenizer": self.tokenizer}

    def _check_search(self, plan: Mapping[str, Any], prompts: Sequence[Sequence[int]], positions: int | None) -> None:
        """Raise where a search would have to read more than the model does: it keeps all that it reads."""
        most = min((length for length in (self.context, positions) if length), default=None)
        if "context" in plan or most is None:
            return
        for place, prompt in enumerate(prompts):
            if len(prompt) > most:
                raise HeedfulError(
                    f"input {place} has {len(prompt):,} tokens, but a beam search reads at most the model's {most:,}; "
                    "shorten it, or leave num_beams out"
                )

    def sample(self, row: Row) -> str:
        """The beginning of the text."""
        return short(row.values["text"][:200])
