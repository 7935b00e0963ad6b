"""Tokenizers rebuilt from the older files of a model type: vocab.json, vocab.txt, merges.txt, *.model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from heedful.errors import HeedfulError
from heedful.text import sentencepiece
from heedful.text.sentencepiece import Piece
from heedful.text.tokenizer_config import TokenizerConfig, library_message, plain_config, read_json, token_name
from heedful.text.tokenizer_types import ROLES, TOKENIZER_TYPES, TokenizerType

Built = tuple[Tokenizer, list[AddedToken]]  # and what is found in a text before it is cut
LANGUAGE_NAME = re.compile(r">>.+<<")  # Marian's names of target languages
MAX_EXTRA_IDS = 100_000  # a folder may ask for more than the memory holds
DROPPED_KEYS = {  # what speaks of the folder as it was: the rebuilt tokenizer says it in tokenizer.json
    *("added_tokens_decoder", "auto_map", "name_or_path", "sp_model_kwargs", "special_tokens_map_file"),
    *("add_bos_token", "add_eos_token", "extra_ids", "legacy", "separate_vocabs", "target_vocab_file"),
    *("tokenizer_file", "vocab_file"),
}


def load(
    folder: Path, facts: TokenizerConfig, files: tuple[str, ...], target: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer made of ``files`` and what is to stand in its ``tokenizer_config.json``.

    Raises `HeedfulError` for files of a family that is not read, and for broken ones or such as do not fit.
    """
    family = facts.needed(folder, files[0])
    if files not in family.files:
        raise HeedfulError(
            f"{folder} is told to be of {facts.told!r} but holds {' and '.join(files)}; "
            f"wanted: {' or '.join(' and '.join(names) for names in family.files)}"
        )
    try:
        return _load(folder, facts, family, files, target)
    except HeedfulError:
        raise
    except BaseException as error:  # the library's, or a setting's of another type than is meant
        raise HeedfulError(f"{folder}: {' and '.join(files)} make no tokenizer ({library_message(error)})") from error


def _load(
    folder: Path, facts: TokenizerConfig, family: TokenizerType, files: tuple[str, ...], target: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    settings = {**family.defaults, **facts.config}
    tokenizer, own = READERS[family.layout]([folder / name for name in files], facts, settings, target)
    named = facts.named(family, lambda name: tokenizer.token_to_id(name) is not None)
    _add_tokens(tokenizer, folder, facts, named, own)
    _set_template(tokenizer, folder, family, settings | named)
    kept = {key: value for key, value in (settings | named).items() if key not in DROPPED_KEYS}
    return tokenizer, {**plain_config(kept), "tokenizer_class": "PreTrainedTokenizerFast"}


def _byte_level(files: list[Path], facts: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """GPT-2's byte-pair encoding (Radford et al. 2019), which RoBERTa and BART took over."""
    ids = _json_vocabulary(files[0])
    named = facts.named(facts.family or TOKENIZER_TYPES["gpt2"], ids.__contains__)
    unknown, end = (token_name(named[role]) if role in named else None for role in ("unk_token", "eos_token"))
    spelled = unknown == end or unknown not in ids  # GPT-2 spells every byte: it has no token for the unknown
    tokenizer = Tokenizer(models.BPE(ids, _merges(files[1], ids), unk_token=None if spelled else unknown))
    prefix = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=settings.get("trim_offsets", False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, []


def _wordpiece(files: list[Path], facts: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """BERT's pipeline (Devlin et al. 2019)."""
    ids = _line_vocabulary(files[0])
    unknown = token_name(settings.get("unk_token", "[UNK]"))
    if unknown not in ids:
        raise HeedfulError(f"{files[0]} lacks the unknown token {unknown!r}; download it again")
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings["do_lower_case"],
        handle_chinese_chars=settings["tokenize_chinese_chars"],
        strip_accents=settings["strip_accents"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, []


def _pieces(files: list[Path], facts: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """Ids as in the SentencePiece file; T5's sentinels (Raffel et al. 2020) after its pieces, the last first."""
    model = sentencepiece.read_model(files[0])
    if not 0 <= settings.get("extra_ids", 0) <= MAX_EXTRA_IDS:
        raise HeedfulError(
            f"{files[0].parent} asks for {settings['extra_ids']} extra ids; at most {MAX_EXTRA_IDS} are read"
        )
    here = {piece.text for piece in model.pieces}
    extra = [f"<extra_id_{number}>" for number in reversed(range(settings.get("extra_ids", 0)))]
    order = [*model.pieces, *(Piece(name) for name in extra if name not in here)]
    return sentencepiece.build_tokenizer(model, order, settings.get("legacy", True)), sentencepiece.added_tokens(
        model, order
    )


def _fairseq(files: list[Path], facts: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """XLM-RoBERTa's ids (Conneau et al. 2020): fairseq's names, the pieces after the file's first three, the mask."""
    model = sentencepiece.read_model(files[0])
    first = [Piece("<s>"), Piece("<pad>"), Piece("</s>"), Piece("<unk>", kind="unknown")]
    order = [*first, *model.pieces[len(first) - 1 :], Piece("<mask>")]
    return sentencepiece.build_tokenizer(model, order), sentencepiece.added_tokens(model, order)


def _two_sided(files: list[Path], facts: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """Marian's: pieces and scores of one side's file, ids of a vocabulary that also holds the other side's pieces.

    Those are decoded and never come out of a text. A piece that the vocabulary lacks is as if it were not.
    """
    spm, table = files
    if target:
        spm = spm.with_name("target.spm")
        table = table.with_name("target_vocab.json") if settings["separate_vocabs"] else table
    ids = _json_vocabulary(table)
    if max(ids.values()) >= len(ids):
        raise HeedfulError(f"{table} has {len(ids)} tokens and the id {max(ids.values())}; download it again")
    model = sentencepiece.read_model(spm)
    named = facts.named(TOKENIZER_TYPES["marian"], ids.__contains__)
    control = {token_name(named[role]) for role in ROLES if role in named}
    if "unk_token" not in named:
        raise HeedfulError(f"{table} lacks the unknown token; download it again")
    own = {piece.text: piece for piece in model.pieces if piece.kind in ("normal", "user", "byte")}
    languages = [name for name in ids if LANGUAGE_NAME.fullmatch(name)]
    own |= {name: Piece(name) for name in control.union(languages)}
    own[token_name(named["unk_token"])] = Piece(token_name(named["unk_token"]), kind="unknown")
    order = [own.get(name, Piece(name, kind="unused")) for name in sorted(ids, key=ids.__getitem__)]
    # The name of a language is written into a text by the person: no control token, and it stays when decoding.
    named_languages = [AddedToken(name, special=False, normalized=False) for name in languages]
    return sentencepiece.build_tokenizer(model, order), [*named_languages, *sentencepiece.added_tokens(model, order)]


READERS: dict[str, Callable[[list[Path], TokenizerConfig, dict[str, Any], bool], Built]] = {
    "byte-level": _byte_level,
    "wordpiece": _wordpiece,
    "pieces": _pieces,
    "fairseq": _fairseq,
    "two-sided": _two_sided,
}


def _add_tokens(
    tokenizer: Tokenizer, folder: Path, facts: TokenizerConfig, named: dict[str, Any], own: list[AddedToken]
) -> None:
    """Make the special names tokens of their own, wherever they stand in a text, and add those that the vocabulary
    lacks, at the ids told. What the folder says of a token goes before what the vocabulary itself (``own``) does.
    """
    roles = {token_name(named[role]): named[role] for role in ROLES if role in named}
    more = named.get("extra_special_tokens") or named.get("additional_special_tokens") or []
    roles |= {token_name(name): name for name in (more.values() if isinstance(more, dict) else more)}
    for number, token in facts.added:
        name = token["content"]
        tokenizer.add_tokens([_token(roles.get(name, name), name in roles, token)])
        if tokenizer.token_to_id(name) != number:
            raise HeedfulError(
                f"{folder} adds {name!r} as id {number}, and after the vocabulary it would be "
                f"{tokenizer.token_to_id(name)}; take all files from the same model"
            )
    done = {token["content"] for _, token in facts.added}
    tokenizer.add_tokens([_token(value, True, {}) for name, value in roles.items() if name not in done])
    tokenizer.add_tokens([token for token in own if token.content not in done.union(roles)])


def _token(name: Any, special: bool, told: dict[str, Any]) -> AddedToken:
    """An added token with the properties that its role and the list of added tokens tell. A role makes it special."""
    properties = {**(name if isinstance(name, dict) else {}), **told}
    special = special or bool(properties.get("special"))
    flags = {
        key: bool(properties[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in properties
    }
    return AddedToken(token_name(name), **{"normalized": not special, **flags}, special=special)


def _set_template(tokenizer: Tokenizer, folder: Path, family: TokenizerType, settings: dict[str, Any]) -> None:
    """Say what stands around a text, and around two."""
    single, pair = family.single, family.pair
    if "add_bos_token" in family.defaults:
        begin, end = ("{bos_token}" * settings["add_bos_token"], "{eos_token}" * settings["add_eos_token"])
        single = f"{begin} $A {end}"
        pair = f"{single} {begin and begin + ':1'} $B:1 {end and end + ':1'}"
    if single.strip() == "$A":
        return
    names = {role: token_name(settings[role]) for role in ROLES if role in settings}
    lacking = [role for role in ROLES if f"{{{role}}}" in single and tokenizer.token_to_id(names.get(role, "")) is None]
    if lacking:
        raise HeedfulError(f"{folder} has no {lacking[0]} in its vocabulary; take all files from the same model")
    used = sorted({names[role] for role in ROLES if f"{{{role}}}" in single})
    template = processors.TemplateProcessing(
        single=[part.format(**names) for part in single.split()],
        pair=[part.format(**names) for part in pair.split()],
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in used],
    )
    bytes_ = tokenizer.post_processor
    tokenizer.post_processor = processors.Sequence([bytes_, template]) if bytes_ is not None else template


def _json_vocabulary(path: Path) -> dict[str, int]:
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


def _line_vocabulary(path: Path) -> dict[str, int]:
    """Token → id of a file with a token a line, counted from 0."""
    tokens = _read(path).split("\n")  # not splitlines: published vocabularies hold other separators as tokens
    if tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise HeedfulError(f"{path} is empty; download it again")
    return {token.removesuffix("\r"): place for place, token in enumerate(tokens)}


def _merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
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
