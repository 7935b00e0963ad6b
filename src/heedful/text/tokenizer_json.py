"""Reading of ``tokenizer.json``, and checks of the entries for which the library takes memory or stack unchecked."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.text.tokenizer_config import library_message
from heedful.util.files import read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

REMEDY = "save or download it again"
MAX_PIECE = 1 << 12  # characters of a unigram model's piece; the library frees its tree by recursion, a level a byte
SIZE_BYTES = 4  # at the start of a charsmap: the size of its table, little-endian


def read_tokenizer(path: Path) -> Backend:
    """Returns the library's tokenizer of a ``tokenizer.json``; raises ``HeedfulError`` for a broken file."""
    from tokenizers import Tokenizer as Backend

    content = read_bytes(path, REMEDY)

    def check(entries: list[tuple[str, Any]]) -> None:  # of an object; a repeated key has several
        for key, value in entries:
            if key == "precompiled_charsmap" and isinstance(value, str):
                check_charsmap(_decoded(value[:8]), len(value) * 3 // 4, path)
            elif key == "vocab" and isinstance(value, list):
                check_pieces((piece[0] for piece in value if isinstance(piece, list) and piece), path)

    try:
        json.loads(content, object_pairs_hook=check)
        return Backend.from_buffer(content)
    except HeedfulError:
        raise
    except BaseException as error:
        raise HeedfulError(f"{path} is not a tokenizer ({library_message(error)}); {REMEDY}") from error


def _decoded(text: str) -> bytes:
    """Returns the bytes of a text in base64; b"" for another text, which the library refuses."""
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""


def check_charsmap(start: bytes, size: int, path: Path) -> None:
    """Raises ``HeedfulError`` for a compiled normaliser whose table is larger than itself.

    The library allocates the table before it reads it.

    Args:
        start: at least the first bytes of the normaliser.
        size: number of all its bytes.
        path: its file.
    """
    table = int.from_bytes(start[:SIZE_BYTES], "little")
    if table + SIZE_BYTES > max(size, SIZE_BYTES):
        raise HeedfulError(
            f"{path}: precompiled_charsmap has {size:,} bytes, but says that its table has {table:,}; {REMEDY}"
        )


def check_pieces(pieces: Iterable[Any], path: Path) -> None:
    """Raises ``HeedfulError`` for a piece that is too long."""
    longest = max((len(piece) for piece in pieces if isinstance(piece, str)), default=0)
    if longest > MAX_PIECE:
        raise HeedfulError(
            f"{path}: a piece of vocab has {longest:,} characters; at most {MAX_PIECE:,} are supported: {REMEDY}"
        )
