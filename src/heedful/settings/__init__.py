"""Run settings: the same on the command line, in a TOML file and in Python.

    base         ``Settings``, the base of all sections, and ``resolve``, which merges layers of settings
    sections     the sections and ``RunSettings`` as given, with their help; ``run.toml``
    resolved     ``ResolvedSettings``, which a run uses
    typed_dicts  sections and options as dictionaries, for type checkers; imported when first used

None means *auto* in settings as given: the value comes from the recipe, else from the data, else from the machine
(:mod:`heedful.training.resolve`). To add an option, add a field to a section, and to its dictionary. Nothing here
imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heedful.settings.base import Settings, common_keys, key, keys, resolve, with_present_keys
from heedful.settings.resolved import (
    ResolvedAveraging,
    ResolvedSettings,
    ResolvedTraining,
    ResolvedTuning,
)
from heedful.settings.sections import (
    AUTO,
    LORA_TARGETS,
    REPORTS,
    AnsweringSettings,
    AveragingSettings,
    DataSettings,
    DistillationSettings,
    ImageSettings,
    LoraSettings,
    MaskingSettings,
    ModelSettings,
    PoolingSettings,
    PreferenceSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    TuningSettings,
    read_toml,
    to_toml,
)

if TYPE_CHECKING:
    from heedful.settings.typed_dicts import (
        AveragingDict,
        DataDict,
        DecodingOptions,
        DistillationDict,
        ImageDict,
        LoraDict,
        MaskingDict,
        Message,
        ModelDict,
        PoolingDict,
        PredictionOptions,
        PreferenceDict,
        Sections,
        TokenizerDict,
        TrainingDict,
        TuningDict,
    )

__all__ = [
    "AUTO",
    "LORA_TARGETS",
    "REPORTS",
    "AnsweringSettings",
    "AveragingDict",
    "AveragingSettings",
    "DataDict",
    "DataSettings",
    "DecodingOptions",
    "DistillationDict",
    "DistillationSettings",
    "ImageDict",
    "ImageSettings",
    "LoraDict",
    "LoraSettings",
    "MaskingDict",
    "MaskingSettings",
    "Message",
    "ModelDict",
    "ModelSettings",
    "PoolingDict",
    "PoolingSettings",
    "PredictionOptions",
    "PreferenceDict",
    "PreferenceSettings",
    "ResolvedAveraging",
    "ResolvedSettings",
    "ResolvedTraining",
    "ResolvedTuning",
    "RunSettings",
    "Sections",
    "Settings",
    "TokenizerDict",
    "TokenizerSettings",
    "TrainingDict",
    "TrainingSettings",
    "TuningDict",
    "TuningSettings",
    "common_keys",
    "key",
    "keys",
    "read_toml",
    "resolve",
    "to_toml",
    "with_present_keys",
]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in __all__:  # of those that are not imported above
            return getattr(import_module("heedful.settings.typed_dicts"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
