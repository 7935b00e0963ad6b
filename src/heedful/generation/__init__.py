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

__all__ = ["Generated", "decode", "generate", "stream"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("heedful.generation.decoding"), name)
    if name == "DecodingCopy":  # of ``Model.generate``
        return import_module("heedful.generation.decoding_copy").DecodingCopy
    raise AttributeError(f"module 'heedful.generation' has no attribute {name!r}")
