"""An input as the arguments of a model's call, and as pieces for people.

Shapes: B = 1, T tokens of the text or patches of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.config import EncoderConfig, EncoderDecoderConfig, LearnedPosition, VisionConfig
from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection.image_patches import tokens
from heedful.tasks.model_setup import start_of
from heedful.tasks.sequence_to_sequence import encode_with_special
from heedful.tasks.task import check_texts, short
from heedful.tasks.text_pairs import sides_of
from heedful.text import Tokenizer
from heedful.views.inspect.catalogue import stacks_of, translates, writes
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """One input.

    Attributes:
        name: the input, short, for headings.
        arguments: what the model is called with: ``model(*arguments)``.
        ids: the ids that the main text became, for an encoder-decoder its source; none for an image.
        read: by stack, "encoder" or "decoder", the pieces that it reads.
        written: of an encoder-decoder that writes, the pieces after each that its decoder reads, the end token last; of
            a decoder the next piece of its text, "" after the last.
        answer: the ids of ``written``; −1 after the last token of a text.
        pixels: of an image, uint8 (H, W, C), as it was cut to the model's size.
        note: what is to be said about it.
    """

    name: str
    arguments: tuple[Any, ...]
    ids: Sequence[int] = ()
    read: Mapping[str, list[str]]
    written: Sequence[str] = ()
    answer: Sequence[int] = ()
    pixels: Array | None = None
    note: str = ""


def read(opened: OpenedModel, one: Any, request: Request) -> ModelInput:
    """The input ``one`` as ``opened`` takes it; what an encoder-decoder writes is ``request.target``, or is generated.

    Raises ``HeedfulError`` for what is no text, or no image, for nothing, and for more than the model takes.
    """
    config = opened.model.config
    if isinstance(config, VisionConfig):
        reading = _image(opened, config, one)
    elif translates(config):
        reading = _pair(opened, one, request)
    elif writes(config):
        reading = _prompt(opened, one)
    else:
        reading = _sentence(opened, one)
    for stack, pieces in reading.read.items():
        fits(opened, stack, len(pieces), "the target" if stack == "decoder" and translates(config) else "the text")
    return reading


def fits(opened: OpenedModel, stack: str, length: int, what: str = "the text") -> None:
    """Raises where a stack has fewer positions than ``length``."""
    scheme = stacks_of(opened.model.config)[stack].position
    if isinstance(scheme, LearnedPosition) and length > scheme.length:
        raise HeedfulError(f"{what} has {length:,} tokens, {opened.name} takes {scheme.length:,}; give a shorter one")


def read_source(opened: OpenedModel, one: Any) -> tuple[str, list[int]]:
    """Returns the name and the ids of one text, of an encoder-decoder its source: nothing is generated."""
    if translates(opened.model.config):
        return short(one), _source(opened, one)
    reading = _prompt(opened, one) if writes(opened.model.config) else _sentence(opened, one)
    return reading.name, list(reading.ids)


# ---------------------------------------------------------------------------------------------------------------- texts


def _image(opened: OpenedModel, config: VisionConfig, one: Any) -> ModelInput:
    how = opened.preprocessing
    assert how is not None
    picture = LazyImage.of(one)
    pixels = how.fitted(picture.pixels(how.channels))
    return ModelInput(
        name=short(picture.name.rpartition("/")[2]),
        arguments=(on_device(opened, torch.from_numpy(how.normalised(pixels[None])).to(opened.model.dtype)),),
        read={"encoder": tokens(opened.model)},
        pixels=np.ascontiguousarray(pixels.transpose(1, 2, 0)),
    )


def _sentence(opened: OpenedModel, one: Any) -> ModelInput:
    """Returns a text, or a pair of texts, with what the tokenizer puts around."""
    config, tokenizer = opened.model.config, opened.source
    sides = sides_of(one, "text?")
    parts = tokenizer.encode(sides)
    _something(parts)
    ids, segments = tokenizer.around(pair=len(sides) == 2).join(*parts)
    name, pieces = short(" + ".join(sides)), tokenizer.pieces(ids)
    if isinstance(config, EncoderDecoderConfig):  # the decoder of a classifier reads the text again, one place further
        again = [start_of(config), *ids[:-1]]
        arguments = (row_of(opened, ids), row_of(opened, again))
        read = {"encoder": pieces, "decoder": tokenizer.pieces(again)}
        return ModelInput(name=name, arguments=arguments, ids=ids, read=read)
    if isinstance(config, EncoderConfig):
        two = (None, row_of(opened, segments)) if config.embedding.segments > 1 else ()
        return ModelInput(name=name, arguments=(row_of(opened, ids), *two), ids=ids, read={"encoder": pieces})
    return ModelInput(name=name, arguments=(row_of(opened, ids),), ids=ids, read={"decoder": pieces})


def _prompt(opened: OpenedModel, one: Any) -> ModelInput:
    """Returns a text that goes on, with what the tokenizer puts before it."""
    tokenizer = opened.source
    check_texts("this model", [one])
    parts = tokenizer.encode([one])
    _something(parts)
    ids = [*tokenizer.around().before, *parts[0]]
    pieces = tokenizer.pieces(ids)
    return ModelInput(
        name=short(one),
        arguments=(row_of(opened, ids),),
        ids=ids,
        read={"decoder": pieces},
        written=[*pieces[1:], ""],
        answer=[*ids[1:], -1],
    )


def _pair(opened: OpenedModel, one: Any, request: Request) -> ModelInput:
    """Returns a source, and the target that is given or generated."""
    source, target = opened.source, opened.target
    ids = _source(opened, one)
    made, note = _target(opened, ids, request)
    before = [start_of(opened.model.config), *made[:-1]]  # type: ignore[arg-type]  # an encoder-decoder's
    return ModelInput(
        name=short(one),
        arguments=(row_of(opened, ids), row_of(opened, before)),
        ids=ids,
        read={"encoder": source.pieces(ids), "decoder": pieces_of(target, before)},
        written=pieces_of(target, made),
        answer=made,
        note=note,
    )


def _source(opened: OpenedModel, one: Any) -> list[int]:
    check_texts("this model", [one])
    _something(opened.source.encode([one]))
    ids = encode_with_special(opened.source, [opened.prefix + one])[0]
    fits(opened, "encoder", len(ids))  # before anything is generated
    return ids


def _target(opened: OpenedModel, ids: Sequence[int], request: Request) -> tuple[list[int], str]:
    """Returns the ids that are written, the end token last, and whose they are."""
    if request.target is not None:
        _something(opened.target.encode([request.target]), "the target")
        return encode_with_special(opened.target, [request.target])[0], "The target was given."
    options = {"defaults": opened.model.generation, "tokenizer": opened.target, **one_answer(request)}
    found = decode(opened.model, row_of(opened, ids), **options)
    return found.ids[0, 1 : int(found.lengths[0])].tolist(), "The target is what the model itself wrote."


def one_answer(request: Request) -> dict[str, Any]:
    """Returns the decoding options that were given, for one row; several are an error."""
    if request.decoding.get("num_return_sequences", 1) != 1:
        raise HeedfulError("num_return_sequences: one text is looked at; leave it out")
    return {**request.decoding, "num_return_sequences": 1}


# --------------------------------------------------------------------------------------------------------------- shared


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The pieces of ids; one that the vocabulary lacks, of a spare row of the embedding, by its number: ``<id 7>``."""
    return [piece or f"<id {number}>" for piece, number in zip(tokenizer.pieces(ids), ids, strict=True)]


def _something(parts: Sequence[Sequence[int]], what: str = "the text") -> None:
    if not parts or not all(parts):
        raise HeedfulError(f"{what} is empty; give a word at least")


def row_of(opened: OpenedModel, ids: Sequence[int]) -> Tensor:
    """Returns ids as (1, T), where the model is."""
    return on_device(opened, torch.tensor([list(ids)], dtype=torch.long))


def on_device(opened: OpenedModel, tensor: Tensor) -> Tensor:
    """Returns a tensor where the model is."""
    return tensor.to(opened.model.device)
