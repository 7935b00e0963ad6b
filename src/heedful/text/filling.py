"""Texts with something to fill in: where the mask stands, and what stands there when it is filled."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.errors import HeedfulError
from heedful.text.tokenizer import Tokenizer

COMMON = ("<mask>", "[MASK]", "___")  # what people write elsewhere


def mask_of(tokenizer: Tokenizer) -> tuple[str, int]:
    """The mask token and its id; none is an error."""
    name, number = tokenizer.config.get("mask_token"), tokenizer.mask
    if number is None or name is None:
        raise HeedfulError(
            "the tokenizer has no mask token (mask_token in its tokenizer_config.json), so that nothing can be hidden "
            "from the model; take another model, or train one with heedful train fill-mask"
        )
    return str(name["content"] if isinstance(name, dict) else name), number


def check_masked(text: str, mask: str, where: str) -> None:
    """Raise, saying how the mask is written, where ``text`` has none."""
    if mask not in text:
        other = next((name for name in COMMON if name in text), None)
        found = f"{where} has no {mask}" + (f", but {other}" if other else "")
        raise HeedfulError(f"{found}: {text[:60]!r}; write {mask} where a word is missing")


def filled(tokenizer: Tokenizer, text: str, ids: Sequence[int | None]) -> str:
    """The text with a token in the place of each mask, or, for None, the mask left there.

    All else stays as it was written. A token that begins a word stands after a space where its vocabulary tells words
    by their spaces, and as the mask did otherwise; one that goes on with a word follows it.

    >>> tokenizer = Tokenizer.train(["one man, two men"], size=300, mask=True)
    >>> filled(tokenizer, "one <mask> two", tokenizer.encode([","])[0])
    'one, two'
    """
    mask, number = mask_of(tokenizer)
    added = tokenizer.backend.get_added_tokens_decoder().get(number)
    spaced = added is not None and added.lstrip  # the space before a mask belongs to it, as to a word's token
    first, *others = text.split(mask)
    for token, following in zip(ids, others, strict=True):
        piece = mask if token is None else tokenizer.pieces([token])[0]
        if token is not None and tokenizer.by_words:
            before = first if piece.startswith(" ") else first.rstrip()
            piece = piece.removeprefix(" ")
        elif token is not None and spaced:
            before = first.rstrip()
            piece = piece if before else piece.lstrip()
        else:
            before = first
        first = before + piece + following
    return first
