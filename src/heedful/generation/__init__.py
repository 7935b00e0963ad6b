"""Decoding for decoders and encoder-decoders.

- ``decoding``: the public calls and length limits; ``options``: the table of methods, and their options, validated;
- ``sampling`` (greedy decoding, too), ``assisted``, ``contrastive``, ``beam``, ``diverse_beam``, ``constrained_beam``:
  the methods, one per file; ``method``: their description, input and output; ``decoded_rows``: the rows of methods
  that decode one token per row and step;
- ``decoder_state``: a model with its cache, the only module that distinguishes the two families; ``static``: one step
  of it with fixed shapes; ``slots``: rows that join and leave at any step; ``decoding_copy``: an optimised copy of a
  model for the later calls of its ``generate``;
- ``processors``: change scores before a token is chosen; ``token_choice``: chooses the token;
- ``stopping``: stop strings, and callers that go; ``incremental_text``: text of tokens as they arrive.

This package receives models and imports no model class. Every method must return the same result for a row alone and
in any batch.

The public calls are imported on their first use: the command line reads ``options`` without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.generation.decoding import Generated, decode, generate, stream
    from heedful.generation.decoding_copy import DecodingCopy
    from heedful.generation.options import Options, resolve
    from heedful.generation.slots import SlotDecoder, SlotRow, SlotToken
    from heedful.generation.static import StaticStep
    from heedful.generation.stopping import Interrupted, interruptible

_HOMES = {
    "DecodingCopy": "decoding_copy",
    "Generated": "decoding",
    "Interrupted": "stopping",
    "Options": "options",
    "SlotDecoder": "slots",
    "SlotRow": "slots",
    "SlotToken": "slots",
    "StaticStep": "static",
    "decode": "decoding",
    "generate": "decoding",
    "interruptible": "stopping",
    "resolve": "options",
    "stream": "decoding",
}

__all__ = [
    "DecodingCopy",
    "Generated",
    "Interrupted",
    "Options",
    "SlotDecoder",
    "SlotRow",
    "SlotToken",
    "StaticStep",
    "decode",
    "generate",
    "interruptible",
    "resolve",
    "stream",
]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.generation.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
