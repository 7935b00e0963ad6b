"""A loaded model for inspection, with its tokenizers and its image preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from heedful import tasks
from heedful.config import EncoderDecoderConfig, PooledHead, VisionConfig, patches_of, source_tokens
from heedful.errors import HeedfulError
from heedful.models import Ensemble, Model
from heedful.models.base import device_of
from heedful.pretrained import load
from heedful.pretrained.configuration import config_of, home
from heedful.pretrained.folder import find, members_of, read_card
from heedful.pretrained.pooling import pooled_head
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing
from heedful.tasks.conversations import tokenizer_with_template
from heedful.tasks.image_inputs import check_image_size
from heedful.tasks.model_setup import check_vocabulary
from heedful.tasks.published import prefix_of
from heedful.tasks.task import Task
from heedful.text import Tokenizer
from heedful.views.inspect.request import Request, check_request, model_name

ModelSource = str | PathLike[str] | Model | tuple[Model, str | PathLike[str]]


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """Model for inspection: loaded, with its name for headings, and its tokenizers and image preprocessing."""

    model: Model
    name: str
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None  # of source and target, usually the same; None without texts
    preprocessing: Preprocessing | None = None
    pooled: PooledHead | None = None  # pooling of the folder's sentence-transformers files
    prefix: str = ""  # before every source, as in training
    task: type[Task] | None = None  # the task for which the folder was trained, if it is known
    folder: Path | None = None  # of the model, or of the ensemble's member

    @property
    def source(self) -> Tokenizer:
        """Tokenizer of the model's source texts."""
        assert self.tokenizers is not None
        return self.tokenizers[0]

    @property
    def target(self) -> Tokenizer:
        """Tokenizer of the model's target texts."""
        assert self.tokenizers is not None
        return self.tokenizers[1]

    def input_text(self, item: Any) -> Any:
        """Returns the text that the model reads for an input of its task, without the prefix."""
        return item if self.task is None else self.task.input_text(item)

    @property
    def labels(self) -> list[str]:
        """Label names; the labels' numbers if the folder has no names."""
        named = list(self.model.labels)
        return named or [str(number) for number in range(getattr(self.model.config.head, "labels", 0))]

    @property
    def untrained(self) -> str:
        """A warning if the head is untrained, else ""."""
        return "The head is untrained: its predictions mean nothing yet." if self.model.fresh else ""


def open_model(model: ModelSource, request: Request, device: str | None = None) -> tuple[OpenedModel, Request]:
    """Returns a model for inspection, and the checked request.

    The model is in memory already, or loaded from a folder or Hub id.
    The request is checked before the weights are read.
    """
    loaded, source = _parts(model)
    if loaded is not None and device is not None:
        raise HeedfulError(f"device {device!r} works only with a model folder; move a model in memory with .to(...)")
    folder = find(source if isinstance(source, str) else Path(source))
    loaded, folder, name = _first_member(loaded, folder, model_name(source))
    config = config_of(folder) if loaded is None else loaded.config
    request = check_request(config, name, request)
    if loaded is None:
        loaded = load(folder, device=device_of(device))
    return opened_of(loaded, folder, name), request


def opened_of(model: Model, folder: Path, name: str) -> OpenedModel:
    """Returns a model in memory for inspection, with the tokenizers or the preprocessing of its folder.

    Of an ensemble it is the first member, which the name then says.
    """
    member, folder, name = _first_member(model, folder, name)
    model = model if member is None else member
    return OpenedModel(model=model, name=name, folder=folder, **_preparation(model, folder))


def _first_member(model: Model | None, folder: Path, name: str) -> tuple[Model | None, Path, str]:
    """Returns the arguments, or of an ensemble the first member, its folder, and a name that says which it is."""
    if isinstance(model, Ensemble):
        first = model.members[0]
        assert isinstance(first, Model)
        model = first
    members = members_of(folder)
    return (model, members[0], f"{name}/{members[0].name}") if members else (model, folder, name)


def _parts(model: ModelSource) -> tuple[Model | None, str | PathLike[str]]:
    if isinstance(model, tuple):
        if len(model) != 2 or not isinstance(model[0], Model):
            raise HeedfulError("a pair is not of a model and the folder of its tokenizer; give (model, folder)")
        return model
    if not isinstance(model, Model):
        return None, model
    if not model.folder.source:
        raise HeedfulError("a model without a folder has no tokenizer; give (model, folder), or a folder's name alone")
    return model, model.folder.source


def _preparation(model: Model, folder: Path) -> dict[str, Any]:
    """Returns the fields of ``OpenedModel`` that prepare inputs."""
    config = model.config
    preprocessing = None
    if patches_of(config) is not None:
        preprocessing = read_preprocessing(folder)
        check_image_size(config, preprocessing)
        if isinstance(config, VisionConfig):
            return {"preprocessing": preprocessing}
    source = target = tokenizer_with_template(folder)
    if preprocessing is None:
        check_vocabulary(source, source_tokens(config))
    if isinstance(config, EncoderDecoderConfig):
        own = folder if Tokenizer.has_files(folder) else home(folder)
        if Tokenizer.has_files(own, "tokenizer.target"):
            target = Tokenizer.load(own, "tokenizer.target")
        check_vocabulary(target, config.tokens, "target tokenizer")
    name = str(read_card(folder).get("task"))
    return {
        "preprocessing": preprocessing,
        "tokenizers": (source, target),
        "pooled": pooled_head(folder),
        "prefix": prefix_of(folder, name),
        "task": tasks.get(name, config.kind) if name in tasks.TASKS else None,
    }
