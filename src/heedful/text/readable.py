"""Tokens as displayed text."""

from __future__ import annotations

import re

PIECE_BOUNDARY = (
    "\uffff"  # no character (Unicode, 23.7): around an unused piece, which no text is split into: see sentencepiece.py
)
BYTE_TOKEN = re.compile("<0x([0-7][0-9A-F])>")  # byte fallback: a byte that is a character by itself


def readable(token: str, decoders: set[str]) -> str:
    """Returns a token as text for people.

    The space that begins a word becomes a leading space, the end of a word a trailing one (GPT's ``</w>``), and a byte
    of an incomplete character is written ``<0xE8>``.
    ``decoders`` names the decoder components of the library's tokenizer.
    """
    if "ByteLevel" in decoders:
        raw = bytes(_BYTE[character] for character in token if character in _BYTE)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "".join(chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in raw)
    if "WordPiece" in decoders:
        return token[2:] if token.startswith("##") else " " + token
    if "BPEDecoder" in decoders:
        return token.removesuffix("</w>") + " " * token.endswith("</w>")
    if "ByteFallback" in decoders and (byte := BYTE_TOKEN.fullmatch(token)):
        return chr(int(byte[1], 16))
    if "Metaspace" in decoders or "Replace" in decoders:
        return token.replace(PIECE_BOUNDARY, "").replace("▁", " ")
    return token


def _byte_names() -> dict[str, int]:
    """Returns the byte of each character of byte-level vocabularies (Radford et al. 2019).

    A printable Latin-1 character stands for its own byte; the characters from U+0100 on stand for the other bytes, in
    order.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE = _byte_names()
