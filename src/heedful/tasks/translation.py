"""Translation: one text into another, by an encoder-decoder. Columns ``source`` and ``target``, and ``language``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from heedful.data import Kind, Row, Rows
from heedful.errors import HeedfulError, nearest
from heedful.metrics.example_scores import overall
from heedful.metrics.translation import exact_match, signatures, translation_scores, warnings_of
from heedful.models import Model
from heedful.pretrained.folder import find, read_card
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.encoder_decoder_task import Pair, with_loss
from heedful.tasks.sequence_to_sequence import SequenceToSequence
from heedful.tasks.task import Baseline, Measured, Task
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

LANGUAGE = re.compile(r"<2[\w-]+>|>>[\w-]+<<")  # the tag of a target language, ours and Marian's
BACK = re.compile(r"<BT>")  # of a source that was translated back (Caswell et al. 2019)
PAIR: dict[str, Kind] = {"source": "text", "target": "text"}


class Translation(SequenceToSequence):
    """From ``source`` to ``target``.

    Rows may say which ``language`` the target is in: a tag before the source, ``<2fr>``, then tells the model which to
    write, one token of the source's vocabulary (Johnson et al. 2017, "Google's multilingual neural machine translation
    system", section 3; Marian's models have ``>>fra<<``). It is written before a text that is asked, or is the prefix
    of all. ``<BT>`` before a source is one token, too.
    """

    name: ClassVar[str] = "translation"
    columns: Mapping[str, Kind] = MappingProxyType({**PAIR, "language": "tag?"})
    main_metric: str = "bleu"
    most: ClassVar[int] = 256
    lowercase: bool = False  # score in lower case though the model writes capitals
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]] = defaults.TRANSLATION

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer, or two of them, on the training texts; each tag becomes a token of its own."""
        task = super().prepare(rows, settings)
        task.columns = _columns("language" in rows[0].values)
        tags = {_tag(row.values["language"]) for row in rows if "language" in row.values}
        for pattern in (LANGUAGE, BACK):
            tags |= {found[0] for row in rows if (found := pattern.match(row.values["source"]))}
        task.source.add(sorted(tags))
        return task

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """As all, with the columns that it was trained on here."""
        task = super().load(folder)
        told = read_card(find(folder)).get("columns")
        if told is not None:
            task.columns = _columns("language" in told)
        return task

    @property
    def languages(self) -> list[str]:
        """The tags of target languages among the source's tokens."""
        return [token for token in self.source.added if LANGUAGE.fullmatch(token)]

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def asked(self, row: Row) -> str:
        """The source, after the tag of the language that is wanted."""
        source: str = row.values["source"]
        if "language" not in row.values:
            return source
        language, known = row.values["language"], self.languages
        tag = next((one for one in (f">>{language}<<", _tag(language)) if one in known), None)
        if tag is None and known:
            hint = nearest(_tag(language), known)
            raise HeedfulError(f"{row.file}:{row.line}: the model has no tag for the language {language!r}; {hint}")
        return f"{tag or _tag(language)} {source}"

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[Pair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """BLEU, chrF and TER (sacreBLEU) and the share of exactly right targets; with ``most`` of the first ``most``
        rows, and without TER, which takes some milliseconds a sentence.

        A model that writes no capitals is scored in lower case, and so are the references; the signatures say so. Rows
        that say of themselves that no answer can be exact are left out; where rows name their ``format``, the
        exact match of each format is among the details, and where they name their ``language``, the scores of each.
        """
        losses = self.losses(model, examples)
        total, count = losses.sum(0).tolist()
        asked = rows[:most]
        outputs = self.answered(model, examples, rows, most, options)
        targets = [self.wanted(row) for row in asked]
        fair = [row.values.get("exact") != "no" for row in asked]
        lower, ter = self.folds, most is None
        each = translation_scores(outputs, targets, fair, ter=ter, lowercase=lower)
        metrics = {**overall(each), **signatures(ter=ter, lowercase=lower)} if any(fair) else {}
        if lower:
            targets = [target.lower() for target in targets]
        pairs, details = list(zip(outputs, targets, strict=True)), dict[str, Any]()
        for name, chosen in _groups(asked, "format"):
            details.setdefault("by_format", {})[name] = {
                "exact_match": exact_match(*zip(*compress(pairs, chosen), strict=True)),
                "examples": sum(chosen),
                "counted": all(compress(fair, chosen)),
            }
        for name, chosen in _groups(asked, "language"):
            own = each.metrics_of(np.flatnonzero(chosen))
            details.setdefault("by_language", {})[name] = {**own, "examples": sum(chosen)}
        if told := warnings_of(outputs, targets):
            details["warnings"] = told
        beside = with_loss(each, losses) if metrics else None
        return Measured({"loss": total / count, **metrics}, details, beside, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """The source as it is."""
        fair = [row for row in rows if row.values.get("exact") != "no"]
        copies, targets = [row.values["source"] for row in fair], [self.wanted(row) for row in fair]
        return Baseline("a copy of the source", overall(translation_scores(copies, targets, lowercase=self.folds)))

    def quick_baseline(self, examples: Sequence[Pair], rows: Rows, learned: Rows) -> Baseline | None:
        """As ``baseline``, but without TER, as validation has it."""
        copies, targets = [row.values["source"] for row in rows], [self.wanted(row) for row in rows]
        fair = [row.values.get("exact") != "no" for row in rows]
        scored = with_loss(
            translation_scores(copies, targets, fair, ter=False, lowercase=self.folds), np.zeros((len(rows), 2))
        )
        return Baseline("a copy of the source", overall(scored), scored)

    def align_scoring(self, other: Task) -> str:
        """Scores both in lower case if one of them writes no capitals."""
        if not isinstance(other, Translation) or self.folds == other.folds:
            return ""
        self.lowercase = other.lowercase = True
        return "both are scored in lower case: one of them writes no capitals"

    @property
    def folds(self) -> bool:
        """True if it is scored in lower case: it was asked to be, or the model writes nothing else."""
        return self.lowercase or self.target.lowercase

    def _read(self, texts: Sequence[str], places: Sequence[int], held: int) -> list[list[int]]:
        """As all; a text that does not say its language to a model that knows several is told of."""
        known = self.languages
        bare = sum(LANGUAGE.search(text) is None for text in texts) if known else 0
        if bare:
            log.warning(
                CountWarning(
                    bare,
                    len(texts),
                    f"do not say into which language; write one of {', '.join(known[:8])} before each, or before all: "
                    f"--prefix '{known[0]} '",
                )
            )
        return super()._read(texts, places, held)


def _columns(tagged: bool) -> Mapping[str, Kind]:
    return MappingProxyType({**PAIR, **({"language": "text"} if tagged else {})})


def _tag(language: str) -> str:
    """The tag of a language; what is one already stays."""
    return language if LANGUAGE.fullmatch(language) else f"<2{language}>"


def _groups(rows: Sequence[Row], column: str) -> list[tuple[str, list[bool]]]:
    """Each value of a column, where all rows have it, with a mark for the rows that have this one."""
    if not all(column in row.values for row in rows):
        return []
    values = [row.values[column] for row in rows]
    return [(value, [one == value for one in values]) for value in sorted(set(values))]
