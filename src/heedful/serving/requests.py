"""Requests: their fields, checked by pydantic, and how inputs and options of HTTP become those of a pipeline."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import from_json

from heedful.data.lazy_image import LazyImage
from heedful.errors import HeedfulError
from heedful.generation.options import NAMES, DecodingSettings, Options
from heedful.inference.input_blocks import input_size
from heedful.inference.pipeline import Pipeline
from heedful.serving.admission import RequestError, ServiceLimits
from heedful.settings import AnsweringSettings
from heedful.tasks.task import Continues, Task

# options of a call that are the server's business: sizes of batches, caches, and other models
OWN = frozenset({"batch_tokens", "prefill_chunk_size", "context_keep", "cache_implementation", "assistant_model"})
SIDE = 1 << 16  # pixels; a line of one pixel takes several times as long as it should
CHARACTERS = 3  # of a token, for an estimate that is rather too high
STOPS, STOP_LENGTH = 16, 256  # stop strings of a request, and their characters: each token is compared with all
ROW_TOKENS = 64  # that each of several rows counts at least: it has scores of the whole vocabulary
MAX_FIELDS = 100  # of an object of a request; pydantic collects an error for each that is wrong
MAX_VALUES = 1 << 18  # of a body, counted by the characters before values: other requests wait while it is parsed
ROOM = 50  # tokens of an answer, if neither the request nor the folder says
CONFIG = ConfigDict(extra="forbid", strict=True)
HELP = {
    option.name: option.metadata["help"]
    for settings in (DecodingSettings, AnsweringSettings)
    for option in fields(settings)
}


def parse_body(content: bytes) -> Any:
    """Returns the value of a body; raises ``RequestError`` for too many values, and for what is not JSON.

    Half of a surrogate pair, which UTF-8 cannot encode, is not JSON here.
    """
    if sum(map(content.count, (b",", b":", b"[", b"{"))) > MAX_VALUES:
        message = f"the body has more than {MAX_VALUES:,} commas, colons and opening brackets; send it in parts"
        raise RequestError(413, message)
    try:
        return from_json(content)
    except ValueError as error:
        message = f"the body is not JSON ({error}); send an object, with Content-Type: application/json"
        raise RequestError(400, message, "json") from None


class JsonRequest(Request):
    """Request whose body is parsed by ``parse_body``."""

    async def json(self) -> Any:
        """Returns the value of the body."""
        return parse_body(await self.body())


class JsonRoute(APIRoute):
    """Route whose fields are those of a ``JsonRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler of a request."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class Fields(BaseModel):
    """A request's fields; any other field is an error."""

    model_config = CONFIG

    @model_validator(mode="before")
    @classmethod
    def _check_number(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and len(values) > MAX_FIELDS:
            message = f"{len(values):,} fields are more than {MAX_FIELDS}; leave out those that are not supported"
            raise RequestError(400, message, "unsupported_field")
        return values


if TYPE_CHECKING:
    DecodingFields = Fields
else:
    hints = get_type_hints(DecodingSettings)
    DecodingFields = create_model(
        "DecodingFields",
        __base__=Fields,
        **{
            option.name: (
                Annotated[list[str], Field(fail_fast=True)] | None
                if option.name == "stop_strings"
                else hints[option.name],
                Field(None, description=option.metadata["help"]),
            )
            for option in fields(DecodingSettings)
            if option.name not in OWN
        },
    )


def decoding_options(request: BaseModel) -> dict[str, Any]:
    """Returns our decoding options that a request sets, by their own names."""
    return {name: value for name in NAMES if (value := getattr(request, name, None)) is not None}


def options_of(task: Task) -> dict[str, str]:
    """Returns the options that requests may set for a task, with a line of help each."""
    return {name: HELP.get(name, "") for name in sorted(task.options - OWN) if name in HELP}


def resolved_options(pipe: Pipeline, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for the task's ``predict``; raises ``RequestError`` that names the option at fault."""
    for name in options:
        if name in OWN:
            raise RequestError(400, f"{name} is set by the server; leave it out", "unsupported_field", name)
    check_stop_strings(options.get("stop_strings"))
    try:
        # null leaves an option out, except where it asks for all labels, as in the pipeline
        kept = {
            name: value for name, value in options.items() if value is not None or (name == "top_k" and pipe.labels)
        }
        return pipe.resolve(kept)
    except HeedfulError as error:
        raise RequestError(400, str(error), param=_named(str(error), options)) from None


def check_stop_strings(strings: Any) -> None:
    """Raises ``RequestError`` for too many or too long stop strings."""
    texts = strings if isinstance(strings, list | tuple) else [strings]
    if len(texts) > STOPS or any(isinstance(text, str) and len(text) > STOP_LENGTH for text in texts):
        message = f"a request has at most {STOPS} stop strings of {STOP_LENGTH} characters; give fewer or shorter ones"
        raise RequestError(400, message, param="stop_strings")


def _named(message: str, options: Mapping[str, Any]) -> str | None:
    """Returns the first option that a message names."""
    places = {name: match.start() for name in options if (match := re.search(rf"\b{re.escape(name)}\b", message))}
    return min(places, key=lambda name: places[name], default=None)


def inputs_of(task: Task, values: Sequence[Any], limits: ServiceLimits) -> tuple[list[Any], int]:
    """Returns the inputs of a request as the task takes them, images from base64, and the number of their pixels.

    No input names a file or an address, and no image is decoded. Raises ``RequestError`` for an image that is none, or
    is too large.
    """
    if not takes_images(task):
        return list(values), 0
    images = [request_image(value, limits) for value in values]
    return images, sum(image.decoded_pixels for image in images)


def takes_images(task: Task) -> bool:
    """Returns True for a task whose inputs are images."""
    return "image" in task.input_columns.values()


def request_image(value: Any, limits: ServiceLimits) -> LazyImage:
    """Returns an image from base64 (also as a ``data:`` address), or from the bytes of a file."""
    if isinstance(value, str):
        if re.match(r"\w+://", value):
            raise RequestError(400, "an image is fetched from no address; send its bytes, in base64", param="inputs")
        try:
            value = base64.b64decode(re.sub(r"^data:[\w/+.-]*;base64,", "", value), validate=True)
        except ValueError:  # the characters, or their number
            raise RequestError(400, "an image is not in base64; encode the bytes of its file", param="inputs") from None
    if not isinstance(value, bytes):
        raise RequestError(400, "an image is text in base64, or the body of a request", param="inputs")
    image = LazyImage.of(value, "the image")
    try:
        (width, height), pixels = image.size, image.decoded_pixels
    except HeedfulError as error:
        raise RequestError(400, str(error), param="inputs") from None
    if pixels > limits.pixels or max(width, height) > SIDE:
        raise RequestError(
            413,
            f"the image has {width:,} × {height:,} pixels or larger tiles; it may have {limits.pixels:,}, and "
            f"{SIDE:,} on a side: make it smaller",
        )
    return image


def estimated_tokens(task: Task, values: Sequence[Any], options: Mapping[str, Any], limits: ServiceLimits) -> int:
    """Returns about how many tokens inputs have, with those to be generated, before they are tokenised.

    Where a text is continued, each beam has a copy of it; zero-shot classification reads a text with each choice.
    """
    decoding, choices = options.get("decoding"), input_size(options.get("choices") or ()) // CHARACTERS
    sizes, length = [input_size(value) // CHARACTERS + 1 for value in values], requested_tokens(decoding, limits)
    rows = 1 if decoding is None else rows_of(decoding)
    if "hypothesis_template" in task.options and isinstance(options.get("choices"), list):
        return sum(size * len(options["choices"]) + choices for size in sizes)
    if isinstance(task, Continues):
        return sum(tokens_of_rows(rows, size + length) + choices for size in sizes)
    return sum(size + choices + tokens_of_rows(rows, length) for size in sizes)


def rows_of(decoding: Options) -> int:
    """Returns the number of rows in which an input is decoded: beams, samples, or contrastive search's candidates."""
    candidates = decoding.top_k if decoding.method == "contrastive" else 1
    return max(decoding.num_beams, decoding.num_return_sequences, candidates)


def tokens_of_rows(rows: int, tokens: int) -> int:
    """Returns the tokens of several rows, of which each counts as ``ROW_TOKENS`` at least.

    >>> tokens_of_rows(1, 2), tokens_of_rows(4, 2), tokens_of_rows(4, 100)
    (2, 256, 400)
    """
    return rows * (tokens if rows == 1 else max(tokens, ROW_TOKENS))


def requested_tokens(decoding: Options | None, limits: ServiceLimits) -> int:
    """Returns the number of tokens that may be generated for an input, for each beam and sample.

    Raises ``RequestError`` for a request's own length above the server's limit.
    """
    if decoding is None:
        return 0
    length = decoding.max_new_tokens or decoding.max_length or ROOM
    if length > limits.max_tokens and {"max_new_tokens", "max_length"} & decoding.given:
        raise RequestError(
            400,
            f"{length:,} new tokens are more than the server's {limits.max_tokens:,} (--max-tokens); lower "
            "max_new_tokens",
            param="max_new_tokens",
        )
    return length
