"""An input as the arguments of a model's call, and as token pieces.

Shapes: B = 1, T tokens of the text or patches of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.config import EncoderConfig, EncoderDecoderConfig, LearnedPosition
from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection.image_patches import tokens
from heedful.tasks.model_setup import start_of
from heedful.tasks.sequence_to_sequence import encode_with_special
from heedful.tasks.task import check_texts, short
from heedful.tasks.text_pairs import sides_of
from heedful.text import Tokenizer
from heedful.text.chat_template import is_conversation, render_prompt
from heedful.views.inspect.catalogue import generates_text, has_target, reads_images, stack_names
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, writes_target

Array = np.ndarray[Any, np.dtype[Any]]
Target = str | Sequence[int]  # a text, or token ids
UNKNOWN = "⁇"  # after what the vocabulary has no token for, as SentencePiece writes it


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """One input of a model, as arguments of a call and as pieces.

    Attributes:
        name: the input, shortened, for headings.
        arguments: arguments of the model's call: ``model(*arguments)``.
        ids: token ids of the text (for an encoder-decoder, of the source); [] for an image.
        read: the input pieces of each stack, by its name "encoder" or "decoder".
        written: the piece that follows each input piece of the decoder. In an encoder-decoder these are the target and
            the end token, in a decoder the text shifted by one, with "" after the last piece.
        answer: the ids of ``written``; −1 after the last token of a text.
        pixels: pixels of an image, uint8 (H, W, C), resized for the model.
        note: a sentence about the input.
    """

    name: str
    arguments: tuple[Any, ...]
    ids: Sequence[int] = ()
    read: Mapping[str, list[str]]
    written: Sequence[str] = ()
    answer: Sequence[int] = ()
    pixels: Array | None = None
    note: str = ""


def read_input(opened: OpenedModel, item: Any, request: Request) -> ModelInput:
    """Returns the model's input for a text or image; an encoder-decoder's target is ``request.target``, or generated.

    Raises ``HeedfulError`` for an invalid, empty or too long input.
    """
    config = opened.model.config
    if reads_images(config):
        reading = _captioned(opened, item, request) if generates_text(config) else _image(opened, item)
    elif has_target(config):
        reading = _pair(opened, item, request)
    elif generates_text(config):
        is_text = request.target is None or writes_target(config, request)
        reading = _prompt(opened, item, request.target if is_text else None)
    else:
        reading = _sentence(opened, item)
    for stack, pieces in reading.read.items():
        check_fits(
            opened, stack, len(pieces), "the target" if stack == "decoder" and has_target(config) else "the text"
        )
    return reading


def check_fits(opened: OpenedModel, stack: str, length: int, name: str = "the text") -> None:
    """Raises ``HeedfulError`` if a stack has fewer positions than ``length``."""
    scheme = stack_names(opened.model.config)[stack].position
    if isinstance(scheme, LearnedPosition) and length > scheme.length:
        raise HeedfulError(
            f"{name} has {length:,} tokens, but {opened.name} takes at most {scheme.length:,}; give a shorter text"
        )


def source_of(opened: OpenedModel, item: Any) -> tuple[str, list[str], Tensor]:
    """Returns the name of an input, the names of its tokens, and the input of the model's first stack, a batch of
    one; generates nothing.
    """
    if reads_images(opened.model.config):
        image = _image(opened, item)
        return image.name, image.read["encoder"], image.arguments[0]
    name, ids = read_source(opened, item)
    return name, pieces_of(opened.source, ids, texts_of(opened, item)), row_of(opened, ids)


def read_source(opened: OpenedModel, item: Any) -> tuple[str, list[int]]:
    """Returns the name and token ids of one text, which is the source of an encoder-decoder; generates nothing."""
    if has_target(opened.model.config):
        ids = _source(opened, item)  # first: it checks the text
        return name_of(item), ids
    reading = _prompt(opened, item) if generates_text(opened.model.config) else _sentence(opened, item)
    return reading.name, list(reading.ids)


# ---------------------------------------------------------------------------------------------------------------- texts


def _captioned(opened: OpenedModel, item: Any, request: Request) -> ModelInput:
    """Returns an image and the text about it, which is given or generated."""
    image = _image(opened, item)
    target_ids, note = target_of(opened, image.arguments[0], request)
    shifted = [start_of(opened.model.config), *target_ids[:-1]]  # type: ignore[arg-type]  # an encoder-decoder's
    return replace(
        image,
        arguments=(*image.arguments, row_of(opened, shifted)),
        read={**image.read, "decoder": pieces_of(opened.target, shifted)},
        written=pieces_of(opened.target, target_ids),
        answer=target_ids,
        note=note,
    )


def _image(opened: OpenedModel, item: Any) -> ModelInput:
    preprocessing = opened.preprocessing
    assert preprocessing is not None
    image = LazyImage.of(item)
    pixels = preprocessing.fitted(image.pixels(preprocessing.channels))
    normalised = torch.from_numpy(preprocessing.normalised(pixels[None])).to(opened.model.dtype)
    return ModelInput(
        name=short(image.name.rpartition("/")[2]),
        arguments=(on_device(opened, normalised),),
        read={"encoder": tokens(opened.model)},
        pixels=np.ascontiguousarray(pixels.transpose(1, 2, 0)),
    )


def _sentence(opened: OpenedModel, item: Any) -> ModelInput:
    """Returns a text, or a pair of texts, with the tokenizer's special tokens."""
    config, tokenizer = opened.model.config, opened.source
    sides = sides_of(item, "text?")
    parts = tokenizer.encode(sides)
    _check_not_empty(parts)
    ids, segments = tokenizer.template(pair=len(sides) == 2).join(*parts)
    name, pieces = short(" + ".join(sides)), pieces_of(tokenizer, ids, sides)
    if isinstance(config, EncoderDecoderConfig):  # a classifier's decoder reads the text too, shifted by one
        shifted = [start_of(config), *ids[:-1]]
        arguments = (row_of(opened, ids), row_of(opened, shifted))
        read = {"encoder": pieces, "decoder": pieces_of(tokenizer, shifted, sides)}
        return ModelInput(name=name, arguments=arguments, ids=ids, read=read)
    if isinstance(config, EncoderConfig):
        mask_and_segments = (None, row_of(opened, segments)) if config.segments > 1 else ()
        arguments = (row_of(opened, ids), *mask_and_segments)
        return ModelInput(name=name, arguments=arguments, ids=ids, read={"encoder": pieces})
    return ModelInput(name=name, arguments=(row_of(opened, ids),), ids=ids, read={"decoder": pieces})


def _prompt(opened: OpenedModel, item: Any, target: Target | None = None) -> ModelInput:
    """Returns a decoder's text or messages, with the tokenizer's special tokens before it, and the target after it."""
    ids, _ = continued(opened, item, target)
    written = target if isinstance(target, str) else ""
    pieces = pieces_of(opened.source, ids, [text + written for text in texts_of(opened, item)])
    return ModelInput(
        name=name_of(item),
        arguments=(row_of(opened, ids),),
        ids=ids,
        read={"decoder": pieces},
        written=[*pieces[1:], ""],
        answer=[*ids[1:], -1],
    )


def name_of(item: Any) -> str:
    """Returns a text, several texts, or the last of some messages, shortened for headings.

    >>> name_of("Who came?"), name_of(("Who came?", "Ann came."))
    ('Who came?', 'Who came? + Ann came.')
    """
    if is_conversation(item):
        return short(str(item[-1].get("content", "")))
    parts = item.values() if isinstance(item, Mapping) else (item,) if isinstance(item, str) else item
    return short(" + ".join(map(str, parts)))


def continued(opened: OpenedModel, item: Any, target: Target | None = None) -> tuple[list[int], int]:
    """Returns the ids of a decoder's prompt with the target after it, and how many of them are the prompt's.

    ``item`` is a text or messages. A target text is encoded together with the prompt; a token that has characters of
    both counts as the prompt's.
    """
    tokenizer, before = opened.source, list(opened.source.template().before)
    item = opened.input_text(item)
    if is_conversation(item):
        item, before = render_prompt(tokenizer, item), []  # a template has its own begin token
    check_texts("this model", [item])
    (prompt,) = tokenizer.encode([item])
    _check_not_empty([prompt])
    if target is None:
        return [*before, *prompt], len(before) + len(prompt)
    if not isinstance(target, str):
        return [*before, *prompt, *checked_target(opened, target)], len(before) + len(prompt)
    ((ids, offsets),) = tokenizer.encode_with_offsets([item + target])
    begin = len(item.rstrip())  # the space before a word may be part of the target's first token
    length = sum(start < begin or end <= len(item) for start, end in offsets)
    if length == len(ids):
        raise HeedfulError("the target adds no token to the prompt; give a longer one, or its token ids")
    return [*before, *ids], len(before) + length


def checked_target(opened: OpenedModel, ids: Sequence[int]) -> list[int]:
    """Returns the token ids of a target; raises ``HeedfulError`` if the vocabulary lacks one."""
    size = opened.target.vocab_size
    for number in ids:
        if not 0 <= number < size:
            raise HeedfulError(f"the target has the token id {number}; the vocabulary has 0 to {size - 1}")
    return list(ids)


def _pair(opened: OpenedModel, item: Any, request: Request) -> ModelInput:
    """Returns a source and its target, which is given or generated."""
    source, target = opened.source, opened.target
    ids = _source(opened, item)
    target_ids, note = target_of(opened, row_of(opened, ids), request)
    shifted = [start_of(opened.model.config), *target_ids[:-1]]  # type: ignore[arg-type]  # an encoder-decoder's
    return ModelInput(
        name=name_of(item),
        arguments=(row_of(opened, ids), row_of(opened, shifted)),
        ids=ids,
        read={"encoder": pieces_of(source, ids, texts_of(opened, item)), "decoder": pieces_of(target, shifted)},
        written=pieces_of(target, target_ids),
        answer=target_ids,
        note=note,
    )


def _source(opened: OpenedModel, item: Any) -> list[int]:
    text = opened.input_text(item)
    check_texts("this model", [text])
    _check_not_empty(opened.source.encode([text]))
    ids = encode_with_special(opened.source, [opened.prefix + text])[0]
    check_fits(opened, "encoder", len(ids))  # before anything is generated
    return ids


def target_of(opened: OpenedModel, source: Tensor, request: Request) -> tuple[list[int], str]:
    """Returns the target's ids with the end token, and a note on their origin; ``source`` is a batch of one.

    A text that fills all positions of the decoder is without the end token, as the model generates it.
    """
    if request.target is not None and not isinstance(request.target, str):
        return checked_target(opened, request.target), "The target was given."
    if request.target is not None:
        _check_not_empty(opened.target.encode([request.target]), "the target")
        ids, config = encode_with_special(opened.target, [request.target])[0], opened.model.config
        assert isinstance(config, EncoderDecoderConfig)
        position = config.decoder.position
        is_full = isinstance(position, LearnedPosition) and len(ids) == position.length + 1
        if is_full and ids[-1] in config.special.end:
            ids.pop()  # the model can write this text, but has no position to end it
        return ids, "The target was given."
    options = {"defaults": opened.model.generation, "tokenizer": opened.target, **single_output(request)}
    output = decode(opened.model, source, **options)
    return output.ids[0, 1 : int(output.lengths[0])].tolist(), "The target was generated by the model."


def single_output(request: Request) -> dict[str, Any]:
    """Returns the decoding options of a request; raises ``HeedfulError`` if they ask for several outputs."""
    if request.decoding.get("num_return_sequences", 1) != 1:
        raise HeedfulError("num_return_sequences must be 1 for this view; leave num_return_sequences out")
    return {**request.decoding, "num_return_sequences": 1}


# --------------------------------------------------------------------------------------------------------------- shared


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int], texts: Sequence[str] = ()) -> list[str]:
    """Returns the pieces of token ids; ``<id 7>`` for an id that the embedding has and the vocabulary has not.

    An unknown token of ``texts``, from which the ids were made, is the characters that it stands for, and ``⁇``.
    """
    pieces = [piece or f"<id {number}>" for piece, number in zip(tokenizer.pieces(ids), ids, strict=True)]
    at = [place for place, number in enumerate(ids) if number == tokenizer.unknown]
    words = _unknown_words(tokenizer, texts) if at else []
    for place, word in zip(at, words, strict=False) if len(at) == len(words) else ():
        pieces[place] = word + UNKNOWN
    return pieces


def _unknown_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Returns the characters of each unknown token, with a leading space where the tokenizer's pieces have one."""
    words = []
    for text, (ids, offsets) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        before = 0  # the end of the token before: a space between is part of none, and shown with the word
        for number, (start, end) in zip(ids, offsets, strict=True):
            if number == tokenizer.unknown:
                begins = tokenizer.marks_continuations or start > before or text[start:end][:1].isspace()
                words.append((" " if begins else "") + text[start:end].strip())
            before = end
    return words


def unknown_count(opened: OpenedModel, items: Sequence[Any]) -> int:
    """Returns the number of unknown tokens in the texts of inputs."""
    if opened.tokenizers is None or opened.source.unknown is None:
        return 0
    texts = [text for item in items for text in texts_of(opened, item)]
    return sum(ids.count(opened.source.unknown) for ids in opened.source.encode(texts))


def texts_of(opened: OpenedModel, item: Any) -> Sequence[str]:
    """Returns the texts of an input, as they are tokenised; none of an image or a conversation."""
    config = opened.model.config
    if reads_images(config) or is_conversation(item):
        return ()
    if has_target(config) or generates_text(config):
        text = opened.input_text(item)
        return (opened.prefix + text,) if isinstance(text, str) else ()
    return sides_of(item, "text?")


def _check_not_empty(parts: Sequence[Sequence[int]], name: str = "the text") -> None:
    if not parts or not all(parts):
        raise HeedfulError(f"{name} is empty; give at least one word")


def row_of(opened: OpenedModel, ids: Sequence[int]) -> Tensor:
    """Returns ids as a tensor (1, T) on the model's device."""
    return on_device(opened, torch.tensor([list(ids)], dtype=torch.long))


def on_device(opened: OpenedModel, tensor: Tensor) -> Tensor:
    """Returns a tensor on the model's device."""
    return tensor.to(opened.model.device)
