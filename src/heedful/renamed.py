"""Old names of version 0.1 that still work in this version: modules, settings and options.

To rename a module that documentation or examples name, add a line to ``MODULES``; a module below it follows it. Names
are relative to ``heedful``. A renamed setting is a line of ``SETTINGS``: Python warns (``DeprecationWarning``), the
command line and ``--config`` print a line, and files of older runs are read as they are. Nothing here imports torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # as in typing, which is not imported before Ctrl-C is handled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

MODULES = {  # old: new
    "answering": "inference",
    "checkpoints": "pretrained",
    "data.augment": "data.image_transforms",
    "data.files": "data.text_files",
    "data.hub_sets": "data.hub_datasets",
    "data.images": "data.image_reader",
    "data.pictures": "data.lazy_image",
    "data.readers": "data.read_source",
    "evaluation.metrics": "metrics.translation",
    "evaluation.paired": "metrics.paired",
    "evaluation.run": "evaluation.evaluate",
    "files": "util.files",
    "inspection.finding": "inspection.find_heads",
    "inspection.lens": "inspection.logit_lens",
    "looking": "views.inspect",
    "tasks.blanks": "tasks.fill_mask",
    "tasks.classes": "tasks.labels",
    "tasks.contrast": "tasks.contrastive_loss",
    "tasks.encoder_decoders": "tasks.encoder_decoder_task",
    "tasks.encoders": "tasks.encoder_task",
    "tasks.hidden": "tasks.masked_windows",
    "tasks.pairs": "tasks.text_pairs",
    "tasks.pipeline": "inference.pipeline",
    "tasks.pseudo": "tasks.fill_mask",
    "tasks.related": "tasks.retrieval_pairs",
    "tasks.seen": "tasks.inputs_and_targets",
    "tasks.shared": "tasks.model_setup",
    "tasks.spans": "tasks.answer_spans",
    "tasks.specific": "tasks.published",
    "tasks.words": "tasks.word_tokens",
    "text.chat": "text.chat_template",
    "text.filling": "text.mask_filling",
    "text.merge_dropout": "text.bpe_dropout",
    "training.beginning": "training.run_folder",
    "training.choices": "training.resolve",
    "training.layer_rates": "training.optimisation",
    "training.watch": "training.record_attention",
    "verification": "verify",
    "verify.own_checks": "verify.consistency_checks",
    "verify.report": "verify.check_report",
    "views.attention": "views.attention_html",
    "views.attention_picture": "views.attention_figure",
    "views.convert": "views.figure_files",
    "views.image": "views.image_html",
    "views.lens": "views.lens_html",
    "views.map_data": "views.attention_data",
    "views.maps": "views.attention_data",
    "views.steps": "views.generation_html",
    "views.steps_html": "views.generation_html",
    "views.watch": "views.watch_html",
}
SETTINGS = {  # old: new, keys of a run's settings
    "averaging.share": "averaging.polynomial",
    "data.separate": "data.document_mask",
    "image.augment": "image.rand_augment",
    "image.crop": "image.crop_padding",
    "image.erase": "image.random_erasing",
    "masking.length": "masking.span_length",
    "masking.share": "masking.probability",
    "training.decay": "training.decay_ratio",
    "training.floor": "training.min_lr_ratio",
    "training.keep": "training.keep_checkpoints",
    "training.watch": "training.record_attention",
}
OPTIONS = {"--find-lr": "--lr-range-test"}  # old: new, options of the command line that are no settings
ATTRIBUTES = {  # old: module and name
    "config.Dropout": "config:DropoutRates",
    "data.Picture": "data.lazy_image:LazyImage",
    "data.parts": "data.read_source:splits",
    "inference.prepare": "kernels.optimize:optimize",
    "inspection.find_heads.Found": "inspection.find_heads:HeadMatch",
    "inspection.picture": "inspection.embedding_space:principal_components",
    "inspection.similarity": "inspection.embedding_space:cosine_similarity",
    "inspection.tables": "inspection.embedding_space:embedding_tables",
    "inspection.weakest": "inspection.importance:least_important_heads",
    "verify.Finding": "verify.check_report:CheckResult",
    "verify.Trial": "verify.resume:ResumeReport",
    "views.Lens": "views.lens_html:LensPredictions",
    "views.Maps": "views.attention_data:AttentionMaps",
    "views.Steps": "views.generation_html:GenerationSteps",
}


def new_name(module: str) -> str | None:
    """Returns the present name of a module that has been renamed, or None for any other.

    >>> new_name("heedful.checkpoints.preprocessing"), new_name("heedful.config")
    ('heedful.pretrained.preprocessing', None)
    """
    package, _, name = module.partition(".")
    parts = name.split(".")
    for end in range(len(parts), 0, -1) if package == "heedful" else ():
        new = MODULES.get(".".join(parts[:end]))
        if new is not None:
            return ".".join([package, new, *parts[end:]])
    return None


def old_attribute(module: str, name: str) -> Any:
    """Returns the object that was ``module.name`` before it moved; raises ``AttributeError`` for any other name."""
    place = ATTRIBUTES.get(f"{module}.{name}".removeprefix("heedful."))
    if place is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, attribute = place.partition(":")
    warn(f"{module}.{name}", f"heedful.{home}.{attribute}")
    return getattr(import_module(f"heedful.{home}"), attribute)


def warn(old: str, new: str) -> None:
    """Warns that the name ``old`` is now ``new``, at the line of the caller's code that used the old name."""
    import warnings

    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("heedful", "importlib"):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{old} is now {new}; the next version will not have the old name",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
    )


def new_settings(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a section, with old names of settings replaced by their present names.

    >>> new_settings("image", {"erase": 0.1, "size": 8})
    {'random_erasing': 0.1, 'size': 8}
    """
    prefix = f"{section}."
    return {SETTINGS.get(prefix + name, prefix + name).removeprefix(prefix): value for name, value in values.items()}


class RenamedModules:
    """Finder and loader that gives the import of a module under its old name the module of the new name."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a module spec for an old name, or None, which leaves the import to other finders."""
        return None if new_name(name) is None else ModuleSpec(name, cls())  # type: ignore[arg-type]  # a loader by shape

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None, so that Python makes an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Warns, and replaces the empty module in ``sys.modules`` by the module of the new name."""
        old = module.__name__
        new = str(new_name(old))
        warn(old, new)
        sys.modules[old] = import_module(new)


def install() -> None:
    """Lets ``import`` find modules under their old names."""
    if RenamedModules not in sys.meta_path:
        sys.meta_path.insert(0, RenamedModules)  # before the finder of files, which would load a submodule twice
