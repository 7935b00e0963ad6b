"""A person's input as a model is called with it, and as pieces that people read.

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
from heedful.data import Picture
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection.image_patches import tokens
from heedful.tasks.pairs import sides_of
from heedful.tasks.sequence_to_sequence import whole
from heedful.tasks.shared import check_texts, start_of
from heedful.tasks.task import short
from heedful.text import Tokenizer
from heedful.views.inspect.catalogue import stacks_of, translates, writes
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Reading:
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


def read(subject: Subject, one: Any, ask: Ask) -> Reading:
    """The input ``one`` as ``subject`` takes it; what an encoder-decoder writes is ``ask.target``, or is generated.

    Raises ``HeedfulError`` for what is no text, or no image, for nothing, and for more than the model takes.
    """
    config = subject.model.config
    if isinstance(config, VisionConfig):
        reading = _image(subject, config, one)
    elif translates(config):
        reading = _pair(subject, one, ask)
    elif writes(config):
        reading = _prompt(subject, one)
    else:
        reading = _sentence(subject, one)
    for stack, pieces in reading.read.items():
        fits(subject, stack, len(pieces), "the target" if stack == "decoder" and translates(config) else "the text")
    return reading


def fits(subject: Subject, stack: str, length: int, what: str = "the text") -> None:
    """Raise where a stack has fewer positions than ``length``."""
    scheme = stacks_of(subject.model.config)[stack].position
    if isinstance(scheme, LearnedPosition) and length > scheme.length:
        raise HeedfulError(f"{what} has {length:,} tokens, {subject.name} takes {scheme.length:,}; give a shorter one")


def read_source(subject: Subject, one: Any) -> tuple[str, list[int]]:
    """The name and the ids of one text, of an encoder-decoder its source: nothing is generated."""
    if translates(subject.model.config):
        return short(one), _source(subject, one)
    reading = _prompt(subject, one) if writes(subject.model.config) else _sentence(subject, one)
    return reading.name, list(reading.ids)


# ---------------------------------------------------------------------------------------------------------------- texts


def _image(subject: Subject, config: VisionConfig, one: Any) -> Reading:
    how = subject.preprocessing
    assert how is not None
    picture = Picture.of(one)
    pixels = how.fitted(picture.pixels(how.channels))
    return Reading(
        name=short(picture.name.rpartition("/")[2]),
        arguments=(on_device(subject, torch.from_numpy(how.normalised(pixels[None])).to(subject.model.dtype)),),
        read={"encoder": tokens(subject.model)},
        pixels=np.ascontiguousarray(pixels.transpose(1, 2, 0)),
    )


def _sentence(subject: Subject, one: Any) -> Reading:
    """A text, or a pair of texts, with what the tokenizer puts around."""
    config, tokenizer = subject.model.config, subject.source
    sides = sides_of(one, "text?")
    parts = tokenizer.encode(sides)
    _something(parts)
    ids, segments = tokenizer.around(pair=len(sides) == 2).join(*parts)
    name, pieces = short(" + ".join(sides)), tokenizer.pieces(ids)
    if isinstance(config, EncoderDecoderConfig):  # the decoder of a classifier reads the text again, one place further
        again = [start_of(config), *ids[:-1]]
        arguments = (row_of(subject, ids), row_of(subject, again))
        read = {"encoder": pieces, "decoder": tokenizer.pieces(again)}
        return Reading(name=name, arguments=arguments, ids=ids, read=read)
    if isinstance(config, EncoderConfig):
        two = (None, row_of(subject, segments)) if config.embedding.segments > 1 else ()
        return Reading(name=name, arguments=(row_of(subject, ids), *two), ids=ids, read={"encoder": pieces})
    return Reading(name=name, arguments=(row_of(subject, ids),), ids=ids, read={"decoder": pieces})


def _prompt(subject: Subject, one: Any) -> Reading:
    """A text that goes on, with what the tokenizer puts before it."""
    tokenizer = subject.source
    check_texts("this model", [one])
    parts = tokenizer.encode([one])
    _something(parts)
    ids = [*tokenizer.around().before, *parts[0]]
    pieces = tokenizer.pieces(ids)
    return Reading(
        name=short(one),
        arguments=(row_of(subject, ids),),
        ids=ids,
        read={"decoder": pieces},
        written=[*pieces[1:], ""],
        answer=[*ids[1:], -1],
    )


def _pair(subject: Subject, one: Any, ask: Ask) -> Reading:
    """A source, and the target that is given or generated."""
    source, target = subject.source, subject.target
    ids = _source(subject, one)
    made, note = _target(subject, ids, ask)
    before = [start_of(subject.model.config), *made[:-1]]  # type: ignore[arg-type]  # an encoder-decoder's
    return Reading(
        name=short(one),
        arguments=(row_of(subject, ids), row_of(subject, before)),
        ids=ids,
        read={"encoder": source.pieces(ids), "decoder": pieces_of(target, before)},
        written=pieces_of(target, made),
        answer=made,
        note=note,
    )


def _source(subject: Subject, one: Any) -> list[int]:
    check_texts("this model", [one])
    _something(subject.source.encode([one]))
    ids = whole(subject.source, [subject.prefix + one])[0]
    fits(subject, "encoder", len(ids))  # before anything is generated
    return ids


def _target(subject: Subject, ids: Sequence[int], ask: Ask) -> tuple[list[int], str]:
    """The ids that are written, the end token last, and whose they are."""
    if ask.target is not None:
        _something(subject.target.encode([ask.target]), "the target")
        return whole(subject.target, [ask.target])[0], "The target was given."
    options = {"defaults": subject.model.generation, "tokenizer": subject.target, **one_answer(ask)}
    found = decode(subject.model, row_of(subject, ids), **options)
    return found.ids[0, 1 : int(found.lengths[0])].tolist(), "The target is what the model itself wrote."


def one_answer(ask: Ask) -> dict[str, Any]:
    """The decoding options that were given, for one row; several are an error."""
    if ask.decoding.get("num_return_sequences", 1) != 1:
        raise HeedfulError("num_return_sequences: one text is looked at; leave it out")
    return {**ask.decoding, "num_return_sequences": 1}


# --------------------------------------------------------------------------------------------------------------- shared


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The pieces of ids; one that the vocabulary lacks, of a spare row of the embedding, by its number: ``<id 7>``."""
    return [piece or f"<id {number}>" for piece, number in zip(tokenizer.pieces(ids), ids, strict=True)]


def _something(parts: Sequence[Sequence[int]], what: str = "the text") -> None:
    if not parts or not all(parts):
        raise HeedfulError(f"{what} is empty; give a word at least")


def row_of(subject: Subject, ids: Sequence[int]) -> Tensor:
    """Ids as (1, T), where the model is."""
    return on_device(subject, torch.tensor([list(ids)], dtype=torch.long))


def on_device(subject: Subject, tensor: Tensor) -> Tensor:
    """A tensor where the model is."""
    return tensor.to(subject.model.device)
