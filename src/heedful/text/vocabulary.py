"""The plain files of older tokenizers: vocab.json, vocab.txt, merges.txt."""

from __future__ import annotations

from pathlib import Path

from heedful.errors import HeedfulError
from heedful.text.tokenizer_config import read_json


def table(path: Path) -> dict[str, int]:
    """Token → id of a JSON file. Raises `HeedfulError` where it is none, or two tokens share an id."""
    found = read_json(path, missing=False)
    wrong = next((token for token, number in found.items() if type(number) is not int or number < 0), None)
    if wrong is not None or not found:
        what = f"{wrong!r} has no id but {str(found[wrong])[:40]!r}" if wrong is not None else "it is empty"
        raise HeedfulError(f"{path} is no vocabulary: {what}; download it again")
    if len(set(found.values())) < len(found):
        owners: dict[int, str] = {}
        first, second, number = next((owners[n], t, n) for t, n in found.items() if owners.setdefault(n, t) != t)
        raise HeedfulError(f"{path} gives {first!r} and {second!r} the same id, {number}; download it again")
    return found


def lines(path: Path) -> dict[str, int]:
    """Token → id of a file with a token a line, counted from 0."""
    tokens = _read(path).split("\n")  # not splitlines: published vocabularies hold other separators as tokens
    if tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise HeedfulError(f"{path} is empty; download it again")
    return {token.removesuffix("\r"): place for place, token in enumerate(tokens)}


def merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges file, checked against the vocabulary. Raises `HeedfulError`, with the line, otherwise."""
    found = []
    for number, text in enumerate(_read(path).split("\n"), 1):
        text = text.removesuffix("\r")
        if not text.strip() or (number == 1 and text.startswith("#version")):
            continue
        pair = text.split(" ")
        if len(pair) != 2:
            raise HeedfulError(f"{path}, line {number}: {text[:40]!r} is no pair of tokens; download it again")
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise HeedfulError(
                    f"{path}, line {number}: {token!r} is not in the vocabulary beside it; "
                    "take both files from the same model"
                )
        found.append((pair[0], pair[1]))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror}; look at its permissions") from None
    except UnicodeDecodeError as error:
        raise HeedfulError(f"{path} is no text in UTF-8 (byte {error.start}); download it again") from error
