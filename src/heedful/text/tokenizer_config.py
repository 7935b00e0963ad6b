"""Tokenizer settings of a folder: its type, special tokens, added tokens and options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.text.tokenizer_types import CLASSES, GENERIC_CLASSES, ROLES, TOKENIZER_TYPES, TYPES_OF_FILES, TokenizerType
from heedful.util.files import check_regular
from heedful.util.files import read_json as read_value

LISTS = ("additional_special_tokens", "extra_special_tokens")
NO_LIMIT = 10**9  # a `model_max_length` beyond it means that there is no limit


@dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer settings from a folder's files.

    - ``config``: entries of ``tokenizer_config.json`` with the special tokens of ``special_tokens_map.json``, without
      null values
    - ``type_name``: the tokenizer's class, else the model's type, or None
    - ``absent_roles``: roles, such as padding, for which the files say that there is no token
    - ``unset_entries``: entries of ``tokenizer_config.json`` that set nothing (roles without a token, a
      ``model_max_length`` that is endless or no length), which ``config`` leaves out
    - ``added_tokens``: (id, properties of a `tokenizers.AddedToken`) of every token added to the vocabulary
    """

    config: dict[str, Any]
    type_name: str | None
    absent_roles: frozenset[str]
    unset_entries: dict[str, Any]
    added_tokens: list[tuple[int, dict[str, Any]]]

    @property
    def tokenizer_type(self) -> TokenizerType | None:
        """The tokenizer type with the name ``type_name``; None if the name is unknown."""
        return TOKENIZER_TYPES.get(CLASSES.get(self.type_name or "", self.type_name or ""))

    def required_type(self, folder: Path, file: str) -> TokenizerType:
        """Returns the tokenizer type with the name ``type_name`` or, without a name, the only type that has this
        ``file``.

        Raises `HeedfulError`, naming the folder, if there is no such type.
        """
        if self.type_name is None and file not in TYPES_OF_FILES:
            raise HeedfulError(
                f"{folder} holds {file} but no model type; add a config.json with its model_type "
                f"({', '.join(TOKENIZER_TYPES)}) or a tokenizer.json"
            )
        if self.type_name is not None and self.tokenizer_type is None:
            raise HeedfulError(
                f"{folder} holds no tokenizer.json, and older tokenizer files of {self.type_name!r} are not read; "
                f"known types: {', '.join(TOKENIZER_TYPES)}; save it with a tokenizer.json"
            )
        return self.tokenizer_type or TOKENIZER_TYPES[TYPES_OF_FILES[file]]

    def with_special_tokens(
        self, tokenizer_type: TokenizerType | None, is_token: Callable[[str], bool]
    ) -> dict[str, Any]:
        """Returns ``config`` with the usual special tokens of a tokenizer type for roles without a token in the files.

        Only tokens of the vocabulary are added, for which ``is_token`` returns True.
        """
        special = {} if tokenizer_type is None else tokenizer_type.special
        is_set = self.absent_roles.union(self.config)
        own = {
            role: special[role]
            for role in ROLES
            if role in special and role not in is_set and is_token(token_name(special[role]))
        }
        return {**self.config, **own}


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Reads the tokenizer settings of a folder; every file may be missing. Raises `HeedfulError` for broken JSON."""
    config = read_optional_json(folder / "tokenizer_config.json")
    names = read_optional_json(folder / "special_tokens_map.json")
    model = read_optional_json(folder / "config.json")
    # With added_tokens_decoder the configuration is the newer file; without it the map is.
    merged = {**names, **config} if "added_tokens_decoder" in config else {**config, **names}
    for role in ROLES:
        merged[role] = merged.get(role) or names.get(role) or config.get(role)
        _check_token_name(merged[role], f"{role} of {folder}")
    for key in LISTS:
        for name in merged.get(key) or ():
            _check_token_name(name, f"a name among the {key} of {folder}")
    absent_roles = frozenset(role for role in ROLES if merged[role] is None and (role in names or role in config))
    merged = {key: value for key, value in merged.items() if key not in ROLES or value is not None}
    length = merged.get("model_max_length")
    if type(length) is not int or not 0 < length < NO_LIMIT:
        merged.pop("model_max_length", None)
    words = (config.get("tokenizer_class"), model.get("tokenizer_class"), model.get("model_type"))
    classes = [word.removesuffix("Fast") for word in words if isinstance(word, str)]
    type_name = next((word for word in classes if word not in GENERIC_CLASSES), None)
    unset = {key: config[key] for key in (*ROLES, "model_max_length") if key in config and key not in merged}
    return TokenizerConfig(merged, type_name, absent_roles, unset, _added_tokens(folder, config))


def find_files(folder: Path, config: TokenizerConfig, target: bool = False) -> tuple[str, ...] | None:
    """Returns the names of a tokenizer's older files, such as vocab.json and merges.txt; None if there are none.

    Files of the tokenizer's own type come first. Raises `HeedfulError` if only some of the files are there, or if one
    is not a regular file.
    """
    own = config.tokenizer_type
    types = [own, *TOKENIZER_TYPES.values()] if own else [*TOKENIZER_TYPES.values()]
    if target:
        has_both = all((folder / name).is_file() for name in ("source.spm", "target.spm"))
        types = [TOKENIZER_TYPES["marian"]] if has_both else []
    alternatives = [files for tokenizer_type in types for files in tokenizer_type.files]
    for name in dict.fromkeys(name for files in alternatives for name in files):
        check_regular(folder / name, "download it again")
    complete = [files for files in alternatives if all((folder / name).is_file() for name in files)]
    for files in alternatives if not complete else ():
        present = [name for name in files if (folder / name).is_file()]
        if present:
            missing = next(name for name in files if name not in present)
            raise HeedfulError(f"{folder} holds {present[0]} but no {missing}; download {missing} too")
    return complete[0] if complete else None


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer configuration with special tokens as strings; ``tokenizer.json`` has their properties."""
    names = {role: token_name(config[role]) for role in ROLES if role in config}
    lists = {key: [token_name(name) for name in config[key]] for key in LISTS if isinstance(config.get(key), list)}
    return {**config, **names, **lists}


def token_name(token: Any) -> str:
    """Returns the name of a special token, which files give as a string or as a mapping with its properties."""
    return str(token["content"] if isinstance(token, dict) else token)


def read_optional_json(path: Path, missing_ok: bool = True) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if the file is missing and ``missing_ok``.

    Raises `HeedfulError` for a broken file, and for a value that is not an object.
    """
    if missing_ok and not os.path.lexists(path):
        return {}
    value = read_value(path, "save or download it again")
    if not isinstance(value, dict):
        raise HeedfulError(f"{path} holds a {type(value).__name__}, not an object; save or download it again")
    return value


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return str(error).partition("\n")[0]


def library_message(error: BaseException) -> str:
    """Returns the first line of the library's error about a file. Re-raises interruptions (Ctrl-C).

    Some broken files make the library panic; such an error is not an `Exception` either.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return first_line(error)


def _check_token_name(token: Any, subject: str) -> None:
    if isinstance(token, dict):
        token = token.get("content", 0)
    if not isinstance(token, str | None):
        raise HeedfulError(f"{subject} is not a name: {str(token)[:40]!r}; write it as a string")


def _added_tokens(folder: Path, config: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Reads ``added_tokens.json`` (name → id) and ``added_tokens_decoder`` (id → properties), which has precedence."""
    tokens: dict[int, dict[str, Any]] = {}
    try:
        for name, number in read_optional_json(folder / "added_tokens.json").items():
            tokens[int(number)] = {"content": name}
        for number, token in (config.get("added_tokens_decoder") or {}).items():
            tokens[int(number)] = {"content": token_name(token)} | (token if isinstance(token, dict) else {})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise HeedfulError(
            f"the added tokens of {folder} have an unknown form ({first_line(error)}); save or download them again"
        ) from error
    return sorted(tokens.items(), key=lambda entry: entry[0])
