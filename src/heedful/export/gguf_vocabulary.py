"""Vocabulary of a GGUF file: a tokenizer's tokens, and how llama.cpp splits a text into them.

llama.cpp has two of the kinds of tokenizers that decoders have: byte-level BPE (Radford et al. 2019), whose
pre-tokenizer is a name from llama.cpp's list, and SentencePiece's BPE (Kudo & Richardson 2018), where a score ranks the
merges that make a token. Single characters are a byte-level BPE that merges the bytes of a character. A tokenizer that
it would read differently is refused; where it differs for rare texts alone, a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import pre_tokenizers

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.sentencepiece import SPACE
from heedful.text.tokenizer_training import CHARACTER

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS, _REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# name of llama.cpp's pre-tokenizer for the pattern by which a text is split
PATTERNS = {
    GPT2: "gpt-2",
    GPT2.removesuffix(r"|\s+"): "gpt-2",
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}": "llama-bpe",
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}": "qwen2",
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}*{_CASED[1]}+|[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}+{_CASED[1]}*|\p{{N}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "tekken",
    r" ?[^(\s|[.,!?…。，、।۔،])]+": "bloom",
}
IGNORE_MERGES = {"llama-bpe", "tekken"}  # llama.cpp first looks for a whole word in the vocabulary
DIGITS = r" ?\p{N}"  # the pattern of the tokenizers that are trained here: each digit is a token
NO_MERGE = "<none> <none>"  # llama.cpp wants one; texts begin as single letters, which this does not merge
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of tokens, as GGUF numbers them
# options of a BPE model that llama.cpp does not have, with the values that change nothing
PLAIN_BPE: Mapping[str, tuple[Any, ...]] = {
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
}
MARKS_NOTE = (
    "llama.cpp's pre-tokenizer 'tekken' splits before combining marks, as in Hindi and Thai, where the tokenizer does "
    "not; texts with them give other tokens"
)
NFC_NOTE = "llama.cpp does not normalise texts to NFC as the tokenizer does; give it NFC, which most texts are"
DIGITS_NOTE = (
    "llama.cpp has no pre-tokenizer of single digits like this tokenizer's; 'gpt-2' gives other tokens only where "
    "several line ends or tabs stand before a digit, and for digits of some scripts"
)
CHARACTERS_NOTE = (
    "llama.cpp leaves out characters that are not in the vocabulary, where this tokenizer reads the token {unknown!r}"
)
FIRST_NOTE = (
    "llama.cpp puts a space before every part of a text or before none; this tokenizer puts one before the first part "
    "alone: {what}"
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens of a GGUF file, in the order of their ids.

    Attributes:
        model: "gpt2" for byte-level BPE, "llama" for SentencePiece's BPE.
        pre: name of llama.cpp's pre-tokenizer; "default" for SentencePiece, which has none.
        tokens, types: each token's text and type.
        merges: pairs of tokens to merge, best first, joined by a space; for byte-level BPE.
        scores: each token's score, of which the highest is merged first; for SentencePiece.
        add_prefix: if True, a space is put before a text, and before each part after a special token.
        notes: sentences about texts that llama.cpp splits differently.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str] | None = None
    scores: list[float] | None = None
    add_prefix: bool = False
    notes: tuple[str, ...] = ()


def vocabulary_of(tokenizer: Tokenizer, rows: int) -> Vocabulary:
    """Returns a tokenizer's vocabulary for an embedding of ``rows`` rows; raises ``HeedfulError`` if GGUF has no such.

    Rows without a token get a made-up name and are never read from a text.
    """
    state = json.loads(tokenizer.backend.to_str())
    model, kinds = state["model"], [step["type"] for step in _steps(state["pre_tokenizer"])]
    if _is_of_characters(state):
        return _characters(state, *_tokens(state, rows))
    if model["type"] != "BPE":
        raise _error(
            f"of type {model['type']}; only characters, byte-level and SentencePiece BPE can be written: train with "
            "--tokenizer.kind bpe"
        )
    for name, values in PLAIN_BPE.items():
        if model.get(name) not in values:
            raise _error(f"a BPE with {name} {model[name]!r}")
    tokens, types = _tokens(state, rows)
    return (
        _byte_level(state, tokens, types) if "ByteLevel" in kinds else _sentencepiece(tokenizer, state, tokens, types)
    )


def _error(what: str) -> HeedfulError:
    return HeedfulError(f"llama.cpp has no tokenizer like this model's, which is {what}; use --to hf or --to onnx")


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the steps of a normaliser, pre-tokenizer or decoder: those of a sequence, or itself."""
    if part is None:
        return []
    names = ("normalizers", "pretokenizers", "decoders")
    inner = next((part[name] for name in names if name in part), None)
    return [part] if inner is None else [step for each in inner for step in _steps(each)]


def _tokens(state: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Returns the text and type of each token, and names for the rows that have none."""
    names = {number: token for token, number in state["model"]["vocab"].items()}
    types = dict.fromkeys(names, NORMAL)
    for token in state["added_tokens"]:
        number, flags = token["id"], [flag for flag in ("single_word", "lstrip", "rstrip") if token[flag]]
        if flags:
            raise _error(f"one with {flags[0]} on the token {token['content']!r}")
        names[number], types[number] = token["content"], CONTROL if token["special"] else USER_DEFINED
    if max(names) >= rows:
        raise HeedfulError(
            f"the tokenizer has the token {max(names)} ({names[max(names)]!r}), but the model has {rows} embeddings; "
            "take both from the same model"
        )
    tokens = [names.get(number, f"[PAD{number}]") for number in range(rows)]
    if len(set(tokens)) < rows:
        raise _error("one with two tokens of the same text")
    return tokens, [types.get(number, UNUSED) for number in range(rows)]


# ----------------------------------------------------------------------------------------------------------- characters


def _is_of_characters(state: Mapping[str, Any]) -> bool:
    """Returns True for a vocabulary of single characters, as ``--tokenizer.kind character`` trains it."""
    splits = [(step["type"], step.get("pattern"), step.get("behavior")) for step in _steps(state["pre_tokenizer"])]
    return state["model"]["type"] == "WordLevel" and splits == [("Split", {"Regex": CHARACTER}, "Isolated")]


def _characters(state: Mapping[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    """Returns characters as the tokens of a byte-level BPE whose merges join the bytes of each character."""
    if normalizers := [step["type"] for step in _steps(state["normalizer"])]:
        raise _error(f"of characters with the normaliser {' and '.join(normalizers)}")
    names = [_byte_text(token) if kind == NORMAL else token for token, kind in zip(tokens, types, strict=True)]
    merges = dict.fromkeys(
        f"{name[:end]} {name[end]}"
        for name, kind in zip(names, types, strict=True)
        if kind == NORMAL
        for end in range(1, len(name))
    )
    unknown = state["model"]["unk_token"]
    types = [UNKNOWN if token == unknown else kind for token, kind in zip(tokens, types, strict=True)]
    return Vocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=names,
        types=types,
        merges=list(merges) or [NO_MERGE],
        notes=(CHARACTERS_NOTE.format(unknown=unknown),),
    )


def _byte_text(text: str) -> str:
    """Returns a text as byte-level BPE writes it: a printable character for each byte of its UTF-8.

    >>> _byte_text(" é")
    'ĠÃ©'
    """
    ((letters, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return letters


# ----------------------------------------------------------------------------------------------------------- byte-level


def _byte_level(state: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    model, notes = state["model"], []
    normalizers = [step["type"] for step in _steps(state["normalizer"])]
    if normalizers == ["NFC"]:
        notes.append(NFC_NOTE)
    elif normalizers:
        raise _error(f"a byte-level BPE with the normaliser {' and '.join(normalizers)}")
    if [step["type"] for step in _steps(state["decoder"])] != ["ByteLevel"]:
        raise _error("a byte-level BPE with another decoder")
    pre = _pre_tokenizer(_steps(state["pre_tokenizer"]))
    if pre is None:
        pre = "gpt-2"
        notes.append(DIGITS_NOTE)
    elif pre == "tekken":
        notes.append(MARKS_NOTE)
    if bool(model.get("ignore_merges")) != (pre in IGNORE_MERGES):
        raise _error(f"a byte-level BPE of kind {pre!r} with ignore_merges {bool(model.get('ignore_merges'))}")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]] or [NO_MERGE]
    return Vocabulary(model="gpt2", pre=pre, tokens=tokens, types=types, merges=merges, notes=tuple(notes))


def _pre_tokenizer(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the name of llama.cpp's pre-tokenizer with these steps; None for that of the tokenizers trained here."""
    *splits, last = steps
    if last["type"] == "ByteLevel" and not last["add_prefix_space"]:
        if not splits and last["use_regex"]:
            return "gpt-2"
        if len(splits) == 1:
            pattern, kind = splits[0].get("pattern", {}).get("Regex", ""), splits[0]["type"]
            isolated = kind == "Split" and splits[0]["behavior"] == "Isolated" and not splits[0]["invert"]
            if isolated and not last["use_regex"] and pattern in PATTERNS:
                return PATTERNS[pattern]
            if isolated and last["use_regex"] and pattern == DIGITS:
                return None
            if kind == "Digits" and splits[0]["individual_digits"] and last["use_regex"]:
                return "smollm"
    raise _error(f"a byte-level BPE with the pre-tokenizer {json.dumps(list(steps))[:300]}")


# -------------------------------------------------------------------------------------------------------- SentencePiece


def _sentencepiece(tokenizer: Tokenizer, state: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    model, ids = state["model"], state["model"]["vocab"]
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    if not model["byte_fallback"] or any(token not in ids for token in byte_tokens):
        raise _error("a BPE without tokens for all bytes")
    always, notes = _space_before(tokenizer, state)
    for token in byte_tokens:
        types[ids[token]] = BYTE
    if model["unk_token"] in ids:
        types[ids[model["unk_token"]]] = UNKNOWN
    scores = _scores(model, tokens, types)
    return Vocabulary(
        model="llama", pre="default", tokens=tokens, types=types, scores=scores, add_prefix=always, notes=notes
    )


def _space_before(tokenizer: Tokenizer, state: dict[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Returns True if a space is put before each part of a text, False for none, and notes."""
    normalizers, splits = _steps(state["normalizer"]), _steps(state["pre_tokenizer"])
    prepend, replace = {"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "content": SPACE}
    replaces = [step for step in normalizers if step.items() >= replace.items() and step["pattern"] == {"String": " "}]
    others = [step["type"] for step in normalizers if step not in (prepend, *replaces)]
    metaspace = [step for step in splits if step["type"] == "Metaspace" and step["replacement"] == SPACE]
    if others or len(metaspace) < len(splits) or len(metaspace) > 1 or not (replaces or metaspace):
        kinds = others + [step["type"] for step in splits if step not in metaspace]
        raise _error(f"a SentencePiece BPE with {' and '.join(kinds) or 'no mark for spaces'}")
    scheme = metaspace[0]["prepend_scheme"] if metaspace else "never"
    if scheme != "first":
        return prepend in normalizers or scheme == "always", ()
    if "chat_template" in tokenizer.config:  # in a conversation a special token stands before every part
        return False, (FIRST_NOTE.format(what="with no space, as in conversations, a text's first word differs"),)
    return True, (FIRST_NOTE.format(what="with a space, the first word after a special token in a text differs"),)


def _scores(model: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> list[float]:
    """Returns scores that rank tokens as the merges do: minus the number of groups of tokens that are merged earlier.

    llama.cpp merges any two tokens whose texts make a third, the highest score first. Merges express this if they hold
    all such pairs. Tokens whose merges alternate had the same score in SentencePiece's file.
    """
    pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    if not set(pairs).issuperset(_pairs(normal)):
        raise _error("a BPE whose merges no scores of tokens express")
    results = [left + right for left, right in pairs]
    last = {token: index for index, token in enumerate(results)}
    ranks: dict[str, int] = {}
    group, end = -1, -1  # end: last merge of the group's tokens
    for index, token in enumerate(results):
        group, end = group + (index > end), max(end, last[token])
        ranks.setdefault(token, group)
    return [-float(ranks.get(token, group + 1)) if token in normal else 0.0 for token in tokens]


def _pairs(tokens: set[str]) -> Iterator[tuple[str, str]]:
    """Yields every pair of tokens whose texts make a third."""
    for token in tokens:
        for split in range(1, len(token)):
            if token[:split] in tokens and token[split:] in tokens:
                yield token[:split], token[split:]
