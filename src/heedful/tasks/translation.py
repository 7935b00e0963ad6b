"""Translation of one text into another by an encoder-decoder. Columns ``source``, ``target`` and ``language``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from heedful.config import EncoderDecoderConfig
from heedful.data import Kind, Row, Rows
from heedful.errors import HeedfulError, known_names
from heedful.generation.options import NAMES
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.translation import exact_match, signatures, translation_scores, warnings_of
from heedful.models import Model
from heedful.pretrained.configuration import read_configs
from heedful.pretrained.folder import find, read_card
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.choices import OPTIONS as RANKING
from heedful.tasks.choices import (
    add_majority_choice,
    choices_of_rows,
    have_choices,
    majority_choice,
    measured_choices,
    split_inputs,
    with_accuracy,
    with_choices,
)
from heedful.tasks.encoder_decoder_task import Pair, with_loss
from heedful.tasks.generated_text_baselines import best_constant, better_of, nearest_targets, with_learned
from heedful.tasks.sequence_to_sequence import SequenceToSequence, encode_with_special
from heedful.tasks.task import Baseline, Encoded, Measured, Prediction, Task
from heedful.tasks.used_settings import TRANSLATION
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

LANGUAGE = re.compile(r"<2[\w-]+>|>>[\w-]+<<")  # tag of a target language, ours and Marian's
BACK_TRANSLATED = re.compile(r"<BT>")  # tag of a source made by back-translation (Caswell et al. 2019)
BEST = "bleu", "chrf"  # decide on the better simple method; BLEU is 0 for texts of fewer than four words
LANGUAGE_OPTIONS = "source_language", "target_language"
NO_LANGUAGES = "it has no language tokens: leave it out, or put a prefix before the sources"
PAIR: dict[str, Kind] = {"source": "text", "target": "text"}


class Translation(SequenceToSequence):
    """Translation of the column ``source`` into the column ``target``.

    If the data has a column ``language`` of target languages, each source is put after a tag, ``<2fr>``, which tells
    the model the language. The tag is one token of the source vocabulary (Johnson et al. 2017, "Google's multilingual
    neural machine translation system", section 3; Marian's models have ``>>fra<<``). To translate, begin each input
    with the tag, add it to all inputs with ``--prefix``, or give ``{"source": ..., "language": ...}``. ``<BT>``, which
    marks a back-translated source, is one token, too.

    Multilingual models (mBART, M2M-100, NLLB-200) have special tokens for languages instead: that of the source
    language in the source, where the tokenizer puts it, and that of the target language at the beginning of the target.
    The options ``source_language`` and ``target_language`` name them.
    """

    name: ClassVar[str] = "translation"
    columns: Mapping[str, Kind] = MappingProxyType({**PAIR, "language": "tag?"})
    main_metric: str = "bleu"
    used_settings: ClassVar[frozenset[str]] = TRANSLATION
    options: ClassVar[frozenset[str]] = SequenceToSequence.options | RANKING | {"source_language", "target_language"}
    default_length: ClassVar[int] = 256
    source_language: str | None = None  # of a multilingual model; None: as its tokenizer's template says
    target_language: str | None = None  # of a multilingual model; None: any
    lowercase: bool = False  # scores in lower case even if the model writes capitals
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]] = defaults.TRANSLATION

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model, and trains one tokenizer for both languages or one for each.

        The setting ``tokenizer.shared`` decides. Each language tag, such as ``<2fr>``, becomes one token.
        """
        task = super().prepare(rows, settings)
        task.columns = _columns("language" in rows[0].values)
        tags = {_tag(row.values["language"]) for row in rows if "language" in row.values}
        for pattern in (LANGUAGE, BACK_TRANSLATED):
            tags |= {match[0] for row in rows if (match := pattern.match(row.values["source"]))}
        task.source.add(sorted(tags))
        return task

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizers, prefix and generation settings of a folder, and the columns of its training data."""
        task = super().load(folder)
        columns = read_card(find(folder)).get("columns")
        if columns is not None:
            task.columns = _columns("language" in columns)
        ids = task.source.languages
        if ids:
            first, config = read_configs(find(folder))[1].get("forced_bos_token_id"), task.source.config
            named = next(
                (code for code, number in ids.items() if number in (first, task.first)), config.get("tgt_lang")
            )
            task.target_language = named if named in ids else None
            task.source_language = task.source.source_language
        return task

    @property
    def begins_with_language(self) -> bool:
        """True if the target language's token takes the place of the start token, as in mBART-25; else it follows."""
        ids = self.source.languages
        return bool(ids) and (self.first is None or self.first in ids.values())

    def for_options(self, options: Mapping[str, Any]) -> Translation:
        """Returns the task with the languages of a call."""
        given = {name: options[name] for name in LANGUAGE_OPTIONS if options.get(name) is not None}
        if not given:
            return self
        for name, code in given.items():
            if code not in self.source.languages:
                known = known_names(self.source.languages) if self.source.languages else NO_LANGUAGES
                raise HeedfulError(f"the model has no language {code!r} ({name}); {known}")
        task = copy(self)
        for name, code in given.items():
            setattr(task, name, code)
        if task.begins_with_language and task.target_language is not None:
            task.first = task.source.languages[task.target_language]
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores prefix, R-Drop and BPE-dropout in the task, and the languages in task, tokenizer and model."""
        super().before_training(model, settings)
        given = {name: getattr(settings.data, name) for name in LANGUAGE_OPTIONS}
        vars(self).update(vars(self.for_options(given)))
        if not self.source.languages:
            return
        if self.target_language is None:
            raise HeedfulError(
                f"the model translates into several languages; give --data.target-language, {self._known}"
            )
        self.source.set_languages(self.source_language, self.target_language)
        config, first = model.config, self.source.languages[self.target_language]
        if self.begins_with_language and isinstance(config, EncoderDecoderConfig):
            model.config = replace(config, special=replace(config.special, start=first))
        else:
            model.generation = {**model.generation, "forced_bos_token_id": first}

    @property
    def _known(self) -> str:
        return known_names(self.source.languages)

    def encode_sources(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """Returns the ids of source texts, with the token of the source language if the model has such tokens."""
        template = self.source.template_in(self.source_language) if self.source.languages else None
        return encode_with_special(self.source, texts, most, template)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of target texts, after the token of the target language if it is not the start token."""
        ids, language = self.source.languages, self.target_language
        if not ids:
            return super().encode_targets(texts)
        template = self.target.template_in(None)
        if language is not None and not self.begins_with_language:
            template = replace(template, before=(ids[language], *template.before))
        return encode_with_special(self.target, texts, template=template)

    @property
    def languages(self) -> list[str]:
        """The tags of target languages in the source vocabulary."""
        return [token for token in self.source.added if LANGUAGE.fullmatch(token)]

    def card_entries(self) -> dict[str, Any]:
        """Returns the entry ``languages`` for ``heedful.json``: the codes (ISO 639) in the tags of target languages."""
        codes = [tag.strip("<>").removeprefix("2") for tag in self.languages]
        codes = [code for code in codes if re.fullmatch("[a-z]{2,3}", code)]
        return {"languages": codes} if codes else {}

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes rows as the base class does. The main metric is ``accuracy`` if all have choices, else BLEU."""
        self.main_metric = "accuracy" if have_choices(rows) else type(self).main_metric
        return super().encode(rows, max_length)

    def source_text(self, row: Row) -> str:
        """Returns the source text of a row, after the tag of the target language if the row has a language."""
        source: str = row.values["source"]
        if "language" not in row.values:
            return source
        language = row.values["language"]
        try:
            known = self.languages or self.source.languages
            return f"{self._known_tag(language) if known else _tag(language)} {source}"
        except HeedfulError as error:
            raise HeedfulError(f"{row.file}:{row.line}: {error}") from None

    def _known_tag(self, language: str) -> str:
        """Returns the model's tag of a language; raises ``HeedfulError`` with the known ones if there is none."""
        known = self.languages
        tag = next((tag for tag in (f">>{language}<<", _tag(language)) if tag in known), None)
        if tag is None:
            hint = known_names(known) if known else "it has no languages to choose from: leave it out"
            hint = "give target_language for all sources" if self.source.languages else hint
            raise HeedfulError(f"the model has no tag for the language {language!r}; {hint}")
        return tag

    @property
    def request_columns(self) -> dict[str, Kind]:
        """The source and, for a model with language tags, the target language."""
        return {**self.input_columns, **({"language": "text?"} if self.languages else {})}

    def as_read(self, value: Any) -> Any:
        """Returns the source text, after the tag of the language if the input is a mapping with ``"language"``.

        A source that begins with this tag is unchanged; with another tag it is an error.
        """
        if not isinstance(value, Mapping):
            return value
        [value], _ = split_inputs([value], None)
        if not isinstance(value, Mapping):
            return value
        source, language = value.get("source"), value.get("language") or ""
        if not value.keys() <= {"source", "language"} or not isinstance(source, str):
            raise HeedfulError(f'the input is {dict(value)!s:.60}; give a text, or {{"source": ..., "language": ...}}')
        if not isinstance(language, str):
            known = ", ".join(self.languages)
            hint = f"give one of {known}" if known else "the model has none: leave it out"
            raise HeedfulError(f"the language is {language!s:.60}, not a text; {hint}")
        if not language.strip():
            return source
        tag, own = self._known_tag(language), LANGUAGE.match(source)
        if own is not None and own[0] != tag:
            raise HeedfulError(f"the source begins with {own[0]}, but the language is {language!r}; give one of them")
        return f"{tag} {source}" if own is None and source.strip() else source

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[Pair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns BLEU, chrF and TER (sacreBLEU) and the exact match of outputs.

        With ``most``, only the first ``most`` rows are scored, and without TER, which takes some milliseconds for each
        sentence. If a model writes no capital letters, outputs and references are scored in lower case; the metrics'
        signatures say so. Rows with ``exact`` = "no" are left out. Rows with choices, their own or those of the
        options, are answered by the most probable one, and ``accuracy`` is the percentage of right ones; if all rows
        have choices, it is the only metric beside the loss. The details have the exact match of each ``format``
        and the scores of each ``language``, if the rows have such columns.
        """
        losses = self.losses(model, examples)
        total, count = losses.sum(0).tolist()
        scored_rows = rows[:most]
        targets = [self.target_text(row) for row in scored_rows]
        choices = choices_of_rows(scored_rows, targets, options.pop("choices", None))
        outputs = self.outputs_for(model, examples, rows, most, options, choices)
        if choices and all(choices):
            return measured_choices(outputs, targets, choices, losses)
        counted = _counted(scored_rows)
        lower, ter = self.scored_in_lower_case, most is None
        scores = translation_scores(outputs, targets, counted, ter=ter, lowercase=lower)
        if any(choices):
            scores = with_accuracy(scores, outputs, targets, choices)
        metrics = {**overall(scores), **signatures(ter=ter, lowercase=lower)} if any(counted) else {}
        if lower:
            targets = [target.lower() for target in targets]
        pairs, details = list(zip(outputs, targets, strict=True)), dict[str, Any]()
        for name, chosen in _groups(scored_rows, "format"):
            details.setdefault("by_format", {})[name] = {
                "exact_match": exact_match(*zip(*compress(pairs, chosen), strict=True)),
                "examples": sum(chosen),
                "counted": all(compress(counted, chosen)),
            }
        for name, chosen in _groups(scored_rows, "language"):
            own = scores.metrics_of(np.flatnonzero(chosen))
            details.setdefault("by_language", {})[name] = {**own, "examples": sum(chosen)}
        if warnings := warnings_of(outputs, targets):
            details["warnings"] = warnings
        example_scores = with_loss(scores, losses) if metrics else None
        return Measured({"loss": total / count, **metrics}, details, example_scores, outputs)

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Translates texts, or mappings with ``"source"`` and ``"language"``; otherwise as the base class does."""
        task = self.for_options(options)
        options = {name: value for name, value in options.items() if name not in LANGUAGE_OPTIONS}
        if task is not self:
            return task.predict(model, inputs, **options)
        if self.source.languages:
            options = self._into_language(model, len(inputs), options)
        bare, own = split_inputs(inputs, options.get("choices"))
        read = with_choices("source", [self.as_read(value) for value in bare], own)
        predictions = super().predict(model, read, **options)
        return [replace(prediction, input=value) for prediction, value in zip(predictions, inputs, strict=True)]

    def _into_language(self, model: Model, inputs: int, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a call with which targets begin with the token of the target language.

        Warns if no language is named; raises ``HeedfulError`` if the model then has no start token.
        """
        decoding = options.get("decoding") or self.decoding_options(
            model, {name: options.pop(name) for name in NAMES if name in options}
        )
        language = self.target_language
        if language is None and self.first is None:
            raise HeedfulError(f"the model translates into several languages; give target_language, {self._known}")
        if language is None and decoding.forced_bos_token_id is None and inputs and not self.silent:
            log.warning(CountWarning(inputs, inputs, f"have no target language; give target_language, {self._known}"))
        if language is not None and self.begins_with_language:
            own = isinstance(model.config, EncoderDecoderConfig) and model.config.special.start
            if options.get("choices") and own != self.source.languages[language]:
                raise HeedfulError("choices begin with the model's own target language; leave out target_language")
            decoding = replace(decoding, decoder_start_token_id=self.source.languages[language])
        elif language is not None and "forced_bos_token_id" not in decoding.given:
            decoding = replace(decoding, forced_bos_token_id=self.source.languages[language])
        return {**options, "decoding": decoding}

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores the better one of two baselines: the target of the nearest training source, and the untranslated
        source; of rows with choices the most frequent one.
        """
        if have_choices(rows):
            return majority_choice(rows, learned(), self.target_text)
        rows = Rows(compress(rows, _counted(rows)))
        outputs = self._simple_outputs(rows, learned)
        name = better_of([self._scored_texts(name, outputs[name], rows) for name in outputs], *BEST).name
        targets = [self.target_text(row) for row in rows]
        scores = translation_scores(outputs[name], targets, lowercase=self.scored_in_lower_case)
        return Baseline(name, overall(scores))

    def quick_baseline(self, examples: Sequence[Pair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the same baseline without TER, as validation does."""
        if have_choices(rows):
            return majority_choice(rows, learned, self.target_text)
        outputs = self._simple_outputs(rows, lambda: learned)
        best = better_of([self._scored_texts(name, outputs[name], rows) for name in outputs], *BEST)
        return self._with_choices_and_loss(best, rows, learned)

    def guess(self, examples: Sequence[Pair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that writes the same text for every source; of rows with choices the most frequent one."""
        if have_choices(rows):
            return majority_choice(rows, learned, self.target_text)
        best = best_constant(learned, rows, self.target_text, self._scored_texts, *BEST)
        return self._with_choices_and_loss(best, rows, learned)

    def _simple_outputs(self, rows: Rows, learned: Callable[[], Rows]) -> dict[str, list[str]]:
        """Returns the outputs of two simple methods, by their names."""

        def nearest(known: Rows) -> list[str]:
            return nearest_targets(known, rows, _source, self.target_text, lambda row: row.values.get("language"))

        copies = {"a copy of the source": [*map(_source, rows)]}
        return with_learned(learned, {"the target of the most similar training source": nearest}, copies)

    def _scored_texts(self, name: str, outputs: Sequence[str], rows: Rows) -> Baseline:
        """Scores outputs without TER."""
        targets = [self.target_text(row) for row in rows]
        lower = self.scored_in_lower_case
        scores = translation_scores(outputs, targets, _counted(rows), ter=False, lowercase=lower)
        return Baseline(name, overall(scores), scores)

    def _with_choices_and_loss(self, baseline: Baseline, rows: Rows, learned: Rows) -> Baseline:
        baseline = add_majority_choice(baseline, rows, learned, self.target_text)
        assert isinstance(baseline.example_scores, Sums)
        return replace(baseline, example_scores=with_loss(baseline.example_scores, np.zeros((len(rows), 2))))

    def align_scoring(self, other: Task) -> str:
        """Scores both models in lower case if one of them writes no capital letters; returns a note for people."""
        if not isinstance(other, Translation) or self.scored_in_lower_case == other.scored_in_lower_case:
            return ""
        self.lowercase = other.lowercase = True
        return "both models are scored in lower case: one model writes no capital letters"

    @property
    def scored_in_lower_case(self) -> bool:
        """True if outputs are scored in lower case: ``lowercase`` is set, or the model writes no capital letters."""
        return self.lowercase or self.target.lowercase

    def _encode_inputs(self, texts: Sequence[str], indices: Sequence[int], limit: int) -> list[list[int]]:
        """Returns the ids of the inputs as the base class does; warns of texts without a language tag if the model has
        such tags.
        """
        known = self.languages
        untagged = sum(LANGUAGE.search(text) is None for text in texts) if known else 0
        if untagged:
            log.warning(
                CountWarning(
                    untagged,
                    len(texts),
                    f"have no language tag; write one of {', '.join(known[:8])} before each, or before all: "
                    f"--prefix '{known[0]} '",
                )
            )
        return super()._encode_inputs(texts, indices, limit)


def _source(row: Row) -> str:
    """Returns the source of a row without a tag of its language."""
    source: str = row.values["source"]
    return source


def _columns(tagged: bool) -> Mapping[str, Kind]:
    return {**PAIR, **({"language": "text"} if tagged else {})}


def _tag(language: str) -> str:
    """Returns the tag of a language; a tag is returned unchanged."""
    return language if LANGUAGE.fullmatch(language) else f"<2{language}>"


def _counted(rows: Sequence[Row]) -> list[bool]:
    """Returns False for each row with ``exact`` = "no", whose output cannot be exactly right."""
    return [row.values.get("exact") != "no" for row in rows]


def _groups(rows: Sequence[Row], column: str) -> list[tuple[str, list[bool]]]:
    """Returns (value, flags) for each value of a column; flags are True for the rows with this value. Returns [] unless
    all rows have the column.
    """
    if not all(column in row.values for row in rows):
        return []
    values = [row.values[column] for row in rows]
    return [(value, [other == value for other in values]) for value in sorted(set(values))]
