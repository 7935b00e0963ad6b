"""Run settings: the same on the command line, in a TOML file and in Python.

    base       ``Settings``, the base of all sections, and ``resolve``, which merges layers of settings
    sections   the sections and ``RunSettings`` as given, with their help; ``run.toml``
    resolved   ``ResolvedSettings``, which a run uses

None means *auto* in settings as given: the value comes from the recipe, else from the data, else from the machine
(:mod:`heedful.training.resolve`). To add an option, add a field to a section. Nothing here imports torch.
"""

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

__all__ = [
    "AUTO",
    "LORA_TARGETS",
    "REPORTS",
    "AnsweringSettings",
    "AveragingSettings",
    "DataSettings",
    "ImageSettings",
    "LoraSettings",
    "MaskingSettings",
    "ModelSettings",
    "PoolingSettings",
    "PreferenceSettings",
    "ResolvedAveraging",
    "ResolvedSettings",
    "ResolvedTraining",
    "ResolvedTuning",
    "RunSettings",
    "Settings",
    "TokenizerSettings",
    "TrainingSettings",
    "TuningSettings",
    "common_keys",
    "key",
    "keys",
    "read_toml",
    "resolve",
    "to_toml",
    "with_present_keys",
]
