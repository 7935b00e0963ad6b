"""Small, well-known pretrained models of the Hub, by kind of task: for ``--from auto``, and for the advice of a run.

A task names its entry in its class attribute ``known_models``. All models here have a permissive licence (Apache 2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from heedful.errors import HeedfulError, plural
from heedful.pretrained.folder import downloaded, fetch
from heedful.settings import AUTO, RunSettings
from heedful.tasks import TASKS
from heedful.tasks.defaults import RARE_FALL, rarely_new
from heedful.util.downloads import check_hub, hub_answers, is_offline

if TYPE_CHECKING:
    from heedful.data import Row
    from heedful.tasks.task import Task

FEW_EXAMPLES = 10_000  # below which the advice is given: the sets of the measurements are smaller
FEWEST_NAMES = 200  # below which too few words are known to tell names from sentences
READ_ROWS, READ_CHARACTERS = 1000, 500  # of the training data and of each text, for the language
FOREIGN = 0.005  # share of letters beyond a to z above which texts do not count as English
WAIT = 0.3  # seconds for which a run waits for the answer of the Hub, which it asked earlier


@dataclass(frozen=True)
class KnownModel:
    """A model of the Hub."""

    name: str
    size: str  # parameters and download, for people
    languages: str


@dataclass(frozen=True)
class KnownModels:
    """The models for a kind of task.

    Attributes:
        english: for English texts.
        multilingual: for texts of other languages; None if there is only ``english``.
        gain: what the model gained over training from scratch on few examples, as measured in docs/results.md.
        gains_on_names: False if nothing was gained where new words are frequent, as in names: then none is advised.
    """

    english: KnownModel
    multilingual: KnownModel | None = None
    gain: str = ""
    gains_on_names: bool = True


MINILM = KnownModel("sentence-transformers/all-MiniLM-L6-v2", "22.7 M parameters, 91 MB", "English")
MULTILINGUAL_MINILM = KnownModel(
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", "118 M parameters, 471 MB", "50 languages"
)
T5_SMALL = KnownModel("google-t5/t5-small", "60.5 M parameters, 242 MB", "English, German, French and Romanian")

ENCODERS = KnownModels(MINILM, MULTILINGUAL_MINILM)
TEXT_CLASSIFICATION = replace(
    ENCODERS, gain="SST-2: accuracy 89.3 from all-MiniLM-L6-v2, 83.6 from scratch", gains_on_names=False
)
TOKEN_CLASSIFICATION = replace(ENCODERS, gain="WNUT-17: F1 46.0 from all-MiniLM-L6-v2, 8.2 from scratch")
FEATURE_EXTRACTION = replace(
    ENCODERS, gain="search among Python functions: recall@1 56.9 from all-MiniLM-L6-v2, 1.1 from scratch"
)
SEQUENCE_TO_SEQUENCE = KnownModels(T5_SMALL)


def is_known(name: str | None) -> bool:
    """Returns True if ``name`` is a model that ``--from auto`` takes, with or without its revision."""
    return (name or "").partition("@")[0] in {model.name for model in (MINILM, MULTILINGUAL_MINILM, T5_SMALL)}


def without_auto(settings: RunSettings) -> RunSettings:
    """Returns the settings without ``--from auto``, which only the training data decides."""
    return replace(settings, start_from=None) if settings.start_from == AUTO else settings


def with_known_model(
    kind: type[Task], rows: Sequence[Row], settings: RunSettings, say: Callable[[str], None]
) -> RunSettings:
    """Returns the settings with ``--from auto`` replaced by the model for the task and for the language of ``rows``.

    The model is downloaded, and named with its revision (``org/name@commit``), so that the run can be repeated. ``say``
    is called with a line on the choice.

    Raises:
        HeedfulError: there is no such model for the task, or it can neither be downloaded nor has been.
    """
    if settings.start_from != AUTO:
        return settings
    if kind.known_models is None:
        families = sorted({family for family, _ in TASKS[kind.name].heads})
        raise HeedfulError(
            f"--from auto has no small pretrained model that suits all uses of {kind.name}; name one (--from NAME, of "
            f"kind {' or '.join(families)}), or leave --from out to train a new model"
        )
    model, reason = chosen_model(kind.known_models, rows)
    say(f"auto       {model.name} ({model.languages}; {model.size}): {reason}; for another model: --from NAME")
    snapshot = fetch(model.name, remedy=_elsewhere(model))
    revision = snapshot.name if snapshot.parent.name == "snapshots" else None  # the layout of the Hub's cache
    return replace(settings, start_from=f"{model.name}@{revision}" if revision else model.name)


def chosen_model(models: KnownModels, rows: Sequence[Row]) -> tuple[KnownModel, str]:
    """Returns the model for the language of ``rows``, and the reason for people.

    Texts count as English if at most one letter in 200 is beyond a to z. Dutch or Indonesian texts do, too.
    """
    letters = [letter for text in _texts(rows) for letter in text[:READ_CHARACTERS] if letter.isalpha()]
    share = sum(not letter.isascii() for letter in letters) / max(1, len(letters))
    counted = f"{100 * share:.1f} % of the letters are beyond a to z"
    if share <= FOREIGN:
        return models.english, f"{counted}, as in English"
    if models.multilingual is None:
        return models.english, f"{counted}, so the texts may not be English, but it is the only one for this task"
    return models.multilingual, f"{counted}, so the texts are not English"


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the texts of the first rows; labels are no texts."""
    for row in islice(rows, READ_ROWS):
        for name, value in row.values.items():
            if isinstance(value, str) and name != "label":
                yield value
            elif isinstance(value, tuple) and name not in ("label", "tags"):
                yield from (part for part in value if isinstance(part, str))


# ------------------------------------------------------------------------------------------------------ recommendation


def advice_for(kind: type[Task], rows: Sequence[Row], settings: RunSettings) -> Callable[[], str] | None:
    """Returns a function that gives the line of advice (``advice``) for a new model on few examples; else None.

    None too for a task without known models, and for names if nothing was gained on them. The Hub is asked meanwhile,
    in the background, whether it answers.
    """
    models = kind.known_models
    if models is None or settings.start_from or settings.resume or len(rows) >= FEW_EXAMPLES:
        return None
    if not models.gains_on_names and len(rows) >= FEWEST_NAMES and not rarely_new(_texts(rows), RARE_FALL):
        return None
    check_hub()
    return partial(advice, models, rows)


def advice(models: KnownModels, rows: Sequence[Row]) -> str:
    """Returns the line that advises to start from a pretrained model: the gain, and how to get the model from here."""
    model, _ = chosen_model(models, rows)
    gain = f" ({models.gain})" if models.gain else ""
    if downloaded(model.name):
        how = f"the same command with --from auto ({model.name}, downloaded already)"
    elif hub_answers(WAIT):
        how = f"the same command with --from auto (downloads {model.name}, {model.size})"
    else:
        why = "HF_HUB_OFFLINE is set" if is_offline() else "the Hub does not answer"
        how = f"none is here and {why}: {_elsewhere(model)}"
    return f"advice     on {plural(len(rows))} a pretrained model is probably better{gain}: {how}"


def is_out_of_reach(kind: type[Task], rows: Sequence[Row], settings: RunSettings) -> bool:
    """Returns True if the advice of this run says that its model is not here and cannot be downloaded."""
    if kind.known_models is None or advice_for(kind, rows, replace(settings, resume=False)) is None:
        return False
    return not _is_within_reach(chosen_model(kind.known_models, rows)[0])


def _is_within_reach(model: KnownModel) -> bool:
    return downloaded(model.name) or hub_answers(WAIT)


def _elsewhere(model: KnownModel) -> str:
    return f"download huggingface.co/{model.name} where there is a network, and give its folder: --from FOLDER"
