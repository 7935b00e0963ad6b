"""Tokenizers rebuilt from the older files of a model type: vocab.json, vocab.txt, merges.txt, *.model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from heedful.errors import HeedfulError
from heedful.text import sentencepiece
from heedful.text.languages import apply_settings
from heedful.text.sentencepiece import Piece
from heedful.text.tokenizer_config import TokenizerConfig, library_message, plain_config, read_optional_json, token_name
from heedful.text.tokenizer_types import ROLES, TOKENIZER_TYPES, TokenizerType

Built = tuple[Tokenizer, list[AddedToken]]  # a tokenizer, and the tokens that are matched before segmentation
LANGUAGE_NAME = re.compile(r">>.+<<")  # Marian's names of target languages
MAX_EXTRA_IDS = 100_000  # a folder may ask for more than fits memory
DROPPED_KEYS = {  # describe the older files; tokenizer.json holds this information after the conversion
    *("added_tokens_decoder", "auto_map", "name_or_path", "sp_model_kwargs", "special_tokens_map_file"),
    *("add_bos_token", "add_eos_token", "extra_ids", "legacy", "separate_vocabs", "target_vocab_file"),
    *("tokenizer_file", "vocab_file", "keep_accents", "remove_space", "offset", "mask_token_sent"),
    *("languages", "language_class", "language_codes", "num_madeup_words", "spm_file"),
}


def load_legacy_tokenizer(
    folder: Path, config: TokenizerConfig, files: tuple[str, ...], target: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    """Returns the tokenizer built from older files, and the entries of its ``tokenizer_config.json``.

    Args:
        folder: folder of the files.
        config: the tokenizer settings of the folder.
        files: names of the files.
        target: True for the target tokenizer of Marian.

    Raises:
        HeedfulError: files of an unknown type, broken files, or files of different models.
    """
    tokenizer_type = config.required_type(folder, files[0])
    if files not in tokenizer_type.files:
        raise HeedfulError(
            f"{folder} is of the type {config.type_name!r} but holds {' and '.join(files)}; "
            f"download the files of this type: {' or '.join(' and '.join(names) for names in tokenizer_type.files)}"
        )
    try:
        return _load(folder, config, tokenizer_type, files, target)
    except HeedfulError:
        raise
    except BaseException as error:  # the library's, or a setting of another type than expected
        raise HeedfulError(
            f"{folder}: cannot build a tokenizer from {' and '.join(files)} ({library_message(error)}); "
            "download them again"
        ) from error


def _load(
    folder: Path, config: TokenizerConfig, tokenizer_type: TokenizerType, files: tuple[str, ...], target: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    settings = {**tokenizer_type.defaults, **config.config}
    build = READERS[tokenizer_type.layout]
    tokenizer, matched_first = build([folder / name for name in files], config, settings, target)
    named = config.with_special_tokens(tokenizer_type, lambda name: tokenizer.token_to_id(name) is not None)
    _add_tokens(tokenizer, folder, config, named, matched_first)
    _set_template(tokenizer, folder, tokenizer_type, settings | named)
    if (language_class := tokenizer_type.defaults.get("language_class")) is not None:
        apply_settings(tokenizer, plain_config(settings | named | {"tokenizer_class": language_class}))
    entries = {key: value for key, value in (settings | named).items() if key not in DROPPED_KEYS}
    return tokenizer, {**plain_config(entries), "tokenizer_class": "PreTrainedTokenizerFast"}


def _byte_level(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """GPT-2's byte-pair encoding (Radford et al. 2019), also RoBERTa's and BART's."""
    ids = _json_vocabulary(files[0])
    named = config.with_special_tokens(config.tokenizer_type or TOKENIZER_TYPES["gpt2"], ids.__contains__)
    unknown, end = (token_name(named[role]) if role in named else None for role in ("unk_token", "eos_token"))
    has_no_unknown = unknown == end or unknown not in ids  # GPT-2 spells every byte
    merges = _merges(files[1], ids)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=None if has_no_unknown else unknown))
    prefix = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=settings.get("trim_offsets", False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, []


def _words(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """GPT's byte-pair encoding (Radford et al. 2018) of BERT's lower-case words, whose last token has ``</w>``."""
    ids = _json_vocabulary(files[0])
    unknown = _unknown(files[0], ids, settings.get("unk_token", "<unk>"))
    merges = _merges(files[1], ids)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer, []


def _unknown(path: Path, ids: dict[str, int], token: Any) -> str:
    """Returns the name of the unknown token. Raises `HeedfulError` if the vocabulary lacks it."""
    name = token_name(token)
    if name not in ids:
        raise HeedfulError(f"{path} lacks the unknown token {name!r}; download it again")
    return name


def _wordpiece(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """BERT's pipeline (Devlin et al. 2019)."""
    ids = _line_vocabulary(files[0])
    unknown = _unknown(files[0], ids, settings.get("unk_token", "[UNK]"))
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings["do_lower_case"],
        handle_chinese_chars=settings["tokenize_chinese_chars"],
        strip_accents=settings["strip_accents"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, []


def _pieces(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """SentencePiece with the file's ids, followed by T5's sentinels (Raffel et al. 2020), the highest number first."""
    model = sentencepiece.read_model(files[0])
    extra_ids = settings.get("extra_ids", 0)
    if not 0 <= extra_ids <= MAX_EXTRA_IDS:
        raise HeedfulError(
            f"extra_ids in tokenizer_config.json of {files[0].parent} is {extra_ids}; set it to a number from 0 to "
            f"{MAX_EXTRA_IDS}"
        )
    in_file = {piece.text for piece in model.pieces}
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(extra_ids))]
    vocabulary = [*model.pieces, *(Piece(name) for name in sentinels if name not in in_file)]
    tokenizer = sentencepiece.build_tokenizer(model, vocabulary, settings.get("legacy", True))
    return tokenizer, sentencepiece.added_tokens(model, vocabulary)


def _cased_pieces(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """DeBERTa's SentencePiece (He et al. 2021): the file's ids, then the mask."""
    if settings["split_by_punct"]:
        raise HeedfulError(
            f"{files[0].parent} has split_by_punct in tokenizer_config.json, which only tokenizer.json can say; save "
            "the folder's fast tokenizer"
        )
    model = sentencepiece.read_model(files[0])
    mask = token_name(settings.get("mask_token", "[MASK]"))
    vocabulary = [*model.pieces, *([] if mask in {piece.text for piece in model.pieces} else [Piece(mask)])]
    tokenizer = sentencepiece.build_tokenizer(model, vocabulary)
    if settings["do_lower_case"]:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), tokenizer.normalizer])
    return tokenizer, sentencepiece.added_tokens(model, vocabulary)


def _unaccented_pieces(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """XLNet's SentencePiece (Yang et al. 2019): the file's ids, quotation marks as one, and no accents."""
    if not settings["remove_space"]:
        raise HeedfulError(
            f"{files[0].parent} has remove_space false in tokenizer_config.json, which is not supported; remove it"
        )
    model = sentencepiece.read_model(files[0])
    tokenizer = sentencepiece.build_tokenizer(model, model.pieces)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(quote, '"') for quote in ("``", "''")]
    steps += [] if settings["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings["do_lower_case"] else []
    tokenizer.normalizer = normalizers.Sequence([*steps, tokenizer.normalizer])
    return tokenizer, sentencepiece.added_tokens(model, model.pieces)


def _fairseq(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """XLM-RoBERTa's ids (Conneau et al. 2020): fairseq's tokens, the file's pieces from the fourth on, the mask."""
    model = sentencepiece.read_model(files[0])
    first = [Piece("<s>"), Piece("<pad>"), Piece("</s>"), Piece("<unk>", kind="unknown")]
    languages = map(Piece, settings.get("languages", ()))  # mBART's
    vocabulary = [*first, *model.pieces[len(first) - 1 :], *languages, Piece("<mask>")]
    return sentencepiece.build_tokenizer(model, vocabulary), sentencepiece.added_tokens(model, vocabulary)


def _shifted_pieces(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """Pegasus' SentencePiece (Zhang et al. 2020): padding, end, two masks and unused tokens, then the file's pieces."""
    model, offset = sentencepiece.read_model(files[0]), settings["offset"]
    settings = {**TOKENIZER_TYPES["pegasus"].special, **settings}
    if type(offset) is not int or not 2 <= offset <= MAX_EXTRA_IDS:
        raise HeedfulError(f"offset in tokenizer_config.json of {files[0].parent} is {offset!r}; set it to 103")
    names = [token_name(settings[role]) for role in ("mask_token_sent", "mask_token") if settings.get(role)]
    names += [f"<unk_{number}>" for number in range(2, offset)]
    first = [Piece(piece.text) for piece in model.pieces[:2]]  # padding and end
    vocabulary = [*first, *map(Piece, names), *model.pieces[2:]]
    return sentencepiece.build_tokenizer(model, vocabulary), sentencepiece.added_tokens(model, vocabulary)


def _listed(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """M2M-100's tokenizer (Fan et al. 2021): pieces of one file, ids of the vocabulary, then a token a language.

    Pieces that the vocabulary lacks are ignored.
    """
    if settings.get("language_codes", "m2m100") != "m2m100":
        raise HeedfulError(
            f"{files[0].parent} has language_codes {settings['language_codes']!r} in tokenizer_config.json; only "
            "'m2m100' is supported: save the folder with a tokenizer.json"
        )
    ids = _json_vocabulary(files[0])
    if max(ids.values()) >= len(ids):
        raise HeedfulError(
            f"{files[0]} has {len(ids)} tokens, but the id {max(ids.values())}, so ids are missing; download it again"
        )
    model = sentencepiece.read_model(files[1])
    own = {piece.text: piece for piece in model.pieces if piece.kind in ("normal", "user", "byte")}
    own |= {name: Piece(name) for name in ("<s>", "<pad>", "</s>")} | {"<unk>": Piece("<unk>", kind="unknown")}
    names = sorted(ids, key=ids.__getitem__)
    vocabulary = [own.get(name, Piece(name, kind="unused")) for name in names]
    vocabulary += [Piece(name) for name in settings["languages"] if name not in ids]
    return sentencepiece.build_tokenizer(model, vocabulary), sentencepiece.added_tokens(model, vocabulary)


def _fairseq_beside(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """CamemBERT's ids (Martin et al. 2020): fairseq's tokens, unused beside the file's own, then the file's pieces."""
    model = sentencepiece.read_model(files[0])
    first = [Piece("<s>NOTUSED"), Piece("<pad>"), Piece("</s>NOTUSED"), Piece("<unk>", kind="unknown")]
    vocabulary = [*first, Piece("<unk>NOTUSED"), *model.pieces[1:], Piece("<mask>")]
    return sentencepiece.build_tokenizer(model, vocabulary), sentencepiece.added_tokens(model, vocabulary)


def _two_sided(files: list[Path], config: TokenizerConfig, settings: dict[str, Any], target: bool) -> Built:
    """Marian's tokenizer: pieces and scores from one language's file, ids from the vocabulary of both languages.

    Pieces of the other language can be decoded, but texts are never encoded to them. Pieces that the vocabulary lacks
    are ignored.
    """
    spm, table = files
    if target:
        spm = spm.with_name("target.spm")
        table = table.with_name("target_vocab.json") if settings["separate_vocabs"] else table
    ids = _json_vocabulary(table)
    if max(ids.values()) >= len(ids):
        raise HeedfulError(
            f"{table} has {len(ids)} tokens, but the id {max(ids.values())}, so ids are missing; download it again"
        )
    model = sentencepiece.read_model(spm)
    named = config.with_special_tokens(TOKENIZER_TYPES["marian"], ids.__contains__)
    control = {token_name(named[role]) for role in ROLES if role in named}
    if "unk_token" not in named:
        raise HeedfulError(f"{table} lacks the unknown token; download it again")
    unknown = token_name(named["unk_token"])
    own = {piece.text: piece for piece in model.pieces if piece.kind in ("normal", "user", "byte")}
    languages = [name for name in ids if LANGUAGE_NAME.fullmatch(name)]
    own |= {name: Piece(name) for name in control.union(languages)}
    own[unknown] = Piece(unknown, kind="unknown")
    vocabulary = [own.get(name, Piece(name, kind="unused")) for name in sorted(ids, key=ids.__getitem__)]
    # People write the name of a language into a text: it is not a control token, and decoding does not drop it.
    language_tokens = [AddedToken(name, special=False, normalized=False) for name in languages]
    tokenizer = sentencepiece.build_tokenizer(model, vocabulary)
    return tokenizer, [*language_tokens, *sentencepiece.added_tokens(model, vocabulary)]


READERS: dict[str, Callable[[list[Path], TokenizerConfig, dict[str, Any], bool], Built]] = {
    "byte-level": _byte_level,
    "words": _words,
    "wordpiece": _wordpiece,
    "pieces": _pieces,
    "cased-pieces": _cased_pieces,
    "unaccented-pieces": _unaccented_pieces,
    "fairseq": _fairseq,
    "fairseq-beside": _fairseq_beside,
    "two-sided": _two_sided,
    "shifted-pieces": _shifted_pieces,
    "listed": _listed,
}


def _add_tokens(
    tokenizer: Tokenizer, folder: Path, config: TokenizerConfig, named: dict[str, Any], matched_first: list[AddedToken]
) -> None:
    """Makes each special token match anywhere in a text, and adds the special tokens that the vocabulary lacks.

    New tokens get the ids that the folder gives. Properties from the folder take precedence over those from the
    vocabulary (``matched_first``).
    """
    special = {token_name(named[role]): named[role] for role in ROLES if role in named}
    more = named.get("extra_special_tokens") or named.get("additional_special_tokens") or []
    special |= {token_name(token): token for token in (more.values() if isinstance(more, dict) else more)}
    for number, properties in config.added_tokens:
        name = properties["content"]
        tokenizer.add_tokens([_added_token(special.get(name, name), name in special, properties)])
        if tokenizer.token_to_id(name) != number:
            raise HeedfulError(
                f"{folder} gives the added token {name!r} the id {number}, but in the vocabulary its id is "
                f"{tokenizer.token_to_id(name)}; take all files from the same model"
            )
    added = {properties["content"] for _, properties in config.added_tokens}
    tokenizer.add_tokens([_added_token(token, True, {}) for name, token in special.items() if name not in added])
    tokenizer.add_tokens([token for token in matched_first if token.content not in added.union(special)])


def _added_token(token: Any, is_special: bool, properties: dict[str, Any]) -> AddedToken:
    """Returns a token with its own properties, overridden by ``properties`` of the list of added tokens."""
    merged = {**(token if isinstance(token, dict) else {}), **properties}
    is_special = is_special or bool(merged.get("special"))
    flags = {key: bool(merged[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in merged}
    return AddedToken(token_name(token), **{"normalized": not is_special, **flags}, special=is_special)


def _set_template(tokenizer: Tokenizer, folder: Path, tokenizer_type: TokenizerType, settings: dict[str, Any]) -> None:
    """Sets the post-processor that adds special tokens around a text and a pair."""
    single, pair = tokenizer_type.single, tokenizer_type.pair
    if "add_bos_token" in tokenizer_type.defaults:
        begin, end = ("{bos_token}" * settings["add_bos_token"], "{eos_token}" * settings["add_eos_token"])
        single = f"{begin} $A {end}"
        pair = f"{single} {begin and begin + ':1'} $B:1 {end and end + ':1'}"
    if single.strip() == "$A":
        return
    names = {role: token_name(settings[role]) for role in ROLES if role in settings}
    roles = [role for role in ROLES if f"{{{role}}}" in single]
    missing = [role for role in roles if tokenizer.token_to_id(names.get(role, "")) is None]
    if missing:
        raise HeedfulError(f"{folder} has no {missing[0]} in its vocabulary; take all files from the same model")
    special_tokens = [(name, tokenizer.token_to_id(name)) for name in sorted({names[role] for role in roles})]
    template = processors.TemplateProcessing(
        single=[part.format(**names) for part in single.split()],
        pair=[part.format(**names) for part in pair.split()],
        special_tokens=special_tokens,
    )
    byte_level = tokenizer.post_processor
    tokenizer.post_processor = processors.Sequence([byte_level, template]) if byte_level is not None else template


def _json_vocabulary(path: Path) -> dict[str, int]:
    """Reads token → id from a JSON file. Raises `HeedfulError` if it is not a vocabulary, or two tokens share an id."""
    ids = read_optional_json(path, missing_ok=False)
    wrong = next((token for token, number in ids.items() if type(number) is not int or number < 0), None)
    if wrong is not None or not ids:
        problem = f"{wrong!r} has the id {str(ids[wrong])[:40]!r}" if wrong is not None else "it is empty"
        raise HeedfulError(f"{path} is not a vocabulary: {problem}; download it again")
    if len(set(ids.values())) < len(ids):
        tokens: dict[int, str] = {}
        first, second, number = next((tokens[n], t, n) for t, n in ids.items() if tokens.setdefault(n, t) != t)
        raise HeedfulError(f"{path} gives {first!r} and {second!r} the same id, {number}; download it again")
    return ids


def _line_vocabulary(path: Path) -> dict[str, int]:
    """Reads token → id from a file with one token a line, numbered from 0."""
    tokens = _read(path).split("\n")  # not splitlines: published vocabularies hold other separators as tokens
    if tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise HeedfulError(f"{path} is empty; download it again")
    return {token.removesuffix("\r"): number for number, token in enumerate(tokens)}


def _merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Reads the pairs of a merges file. Raises `HeedfulError`, with the line, if they do not fit the vocabulary."""
    merges = []
    for number, text in enumerate(_read(path).split("\n"), 1):
        text = text.removesuffix("\r")
        if not text.strip() or (number == 1 and text.startswith("#version")):
            continue
        pair = text.split(" ")
        if len(pair) != 2:
            raise HeedfulError(f"{path}, line {number}: {text[:40]!r} is not a pair of tokens; download it again")
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise HeedfulError(
                    f"{path}, line {number}: {token!r} is not in the vocabulary of the same folder; "
                    "take both files from the same model"
                )
        merges.append((pair[0], pair[1]))
    return merges


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror}; check its permissions") from None
    except UnicodeDecodeError as error:
        raise HeedfulError(f"{path} is not UTF-8 text (byte {error.start}); download it again") from error
