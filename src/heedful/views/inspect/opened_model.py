"""A model opened for inspection, with its tokenizers or its image preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from heedful.config import EncoderDecoderConfig, PooledHead, VisionConfig
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.models.base import device_of
from heedful.pretrained import load
from heedful.pretrained.configuration import config_of, home
from heedful.pretrained.folder import find, read_card
from heedful.pretrained.pooling import pooled_head
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing
from heedful.tasks.model_setup import check_vocabulary, tokenizer_of
from heedful.tasks.published import prefix_of
from heedful.text import Tokenizer
from heedful.views.inspect.request import Request, called, check_request

Named = str | PathLike[str] | Model | tuple[Model, str | PathLike[str]]


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model, its name for headings, and its tokenizers or its preparation of images.

    ``tokenizers`` are those of source and target, one and the same but for some encoder-decoders; None for images.
    ``pooled`` says how the folder makes one vector of a text, where it does.
    """

    model: Model
    name: str
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    preprocessing: Preprocessing | None = None
    pooled: PooledHead | None = None
    prefix: str = ""  # what stands before every source, as the model was trained

    @property
    def source(self) -> Tokenizer:
        """The source tokenizer."""
        assert self.tokenizers is not None
        return self.tokenizers[0]

    @property
    def target(self) -> Tokenizer:
        """The target tokenizer."""
        assert self.tokenizers is not None
        return self.tokenizers[1]

    @property
    def labels(self) -> list[str]:
        """The names of the head's classes; their numbers where the folder names none."""
        named = list(self.model.labels)
        return named or [str(number) for number in range(getattr(self.model.config.head, "labels", 0))]

    @property
    def untrained(self) -> str:
        """A warning if the head is untrained, else ""."""
        return "The head is untrained: its answers mean nothing yet." if self.model.fresh else ""


def open_model(model: Named, request: Request, device: str | None = None) -> tuple[OpenedModel, Request]:
    """The model of a folder or a Hub id, or one in memory with the folder that it came from; and what is asked, once it
    is known that the model can show it: before its weights are read.
    """
    given, place = _parts(model)
    if given is not None and device is not None:
        raise HeedfulError(f"device {device!r} is for a model that is opened here; move the model itself with .to(...)")
    folder = find(place if isinstance(place, str) else Path(place))
    name = called(place)
    config = config_of(folder) if given is None else given.config
    request = check_request(config, name, request)
    if given is None:
        given = load(folder, device=device_of(device))
    return OpenedModel(model=given, name=name, **_prepares(given, folder)), request


def _parts(model: Named) -> tuple[Model | None, str | PathLike[str]]:
    if isinstance(model, tuple):
        if len(model) != 2 or not isinstance(model[0], Model):
            raise HeedfulError("a model and the folder of its tokenizer go together: (model, folder)")
        return model
    if not isinstance(model, Model):
        return None, model
    if not model.source:
        raise HeedfulError("a model without a folder has no tokenizer; give (model, folder), or a folder's name alone")
    return model, model.source


def _prepares(model: Model, folder: Path) -> dict[str, Any]:
    config = model.config
    if isinstance(config, VisionConfig):
        how = read_preprocessing(folder)
        takes = (config.patches.channels, *config.patches.image_size)
        if takes != how.shape:
            raise HeedfulError(
                f"{folder}: the model takes images of {takes}, its preprocessor_config.json makes {how.shape}"
            )
        return {"preprocessing": how}
    source = target = tokenizer_of(folder)
    first = config.source if isinstance(config, EncoderDecoderConfig) else config.embedding
    check_vocabulary(source, first)
    if isinstance(config, EncoderDecoderConfig):
        own = folder if Tokenizer.lies_in(folder) else home(folder)
        if Tokenizer.lies_in(own, "tokenizer.target"):
            target = Tokenizer.load(own, "tokenizer.target")
        check_vocabulary(target, config.target or config.source, "target tokenizer")
    prefix = prefix_of(folder, str(read_card(folder).get("task")))
    return {"tokenizers": (source, target), "pooled": pooled_head(folder), "prefix": prefix}
