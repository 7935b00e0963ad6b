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
NO_LIMIT = 10**9  # a `model_max_length` beyond it says that there is no limit


@dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer settings from a folder's files.

    - ``config``: ``tokenizer_config.json`` with the special names of ``special_tokens_map.json``; none is ``None``
    - ``told``: the word that decides the family (a tokenizer's class, else a model's type), or None
    - ``none``: the roles that the files say no token has
    - ``silent``: entries of ``tokenizer_config.json`` that set nothing (roles without a token, an endless
      ``model_max_length``) and that ``config`` lacks
    - ``added``: (id, token as `tokenizers.AddedToken` takes it) of every token added to the vocabulary
    """

    config: dict[str, Any]
    told: str | None
    none: frozenset[str]
    silent: dict[str, Any]
    added: list[tuple[int, dict[str, Any]]]

    @property
    def family(self) -> TokenizerType | None:
        """The family told, where it is known."""
        return TOKENIZER_TYPES.get(CLASSES.get(self.told or "", self.told or ""))

    def needed(self, folder: Path, file: str) -> TokenizerType:
        """The family told, or the only one that has such a ``file``. Raises `HeedfulError` where there is none."""
        if self.told is None and file not in TYPES_OF_FILES:
            raise HeedfulError(
                f"{folder} holds {file} and nothing says whose; add a config.json with its model_type "
                f"({', '.join(TOKENIZER_TYPES)}) or a tokenizer.json"
            )
        if self.told is not None and self.family is None:
            raise HeedfulError(
                f"{folder} holds no tokenizer.json, and older tokenizer files of {self.told!r} are not read; "
                f"known: {', '.join(TOKENIZER_TYPES)}; save it with a tokenizer.json"
            )
        return self.family or TOKENIZER_TYPES[TYPES_OF_FILES[file]]

    def named(self, family: TokenizerType | None, known: Callable[[str], bool]) -> dict[str, Any]:
        """``config`` with the family's own special names for the roles of which nothing was said, as far as the
        vocabulary (``known``) has them.
        """
        special = {} if family is None else family.special
        own = {
            role: special[role]
            for role in ROLES
            if role in special
            and role not in self.none
            and role not in self.config
            and known(token_name(special[role]))
        }
        return {**self.config, **own}


def read(folder: Path) -> TokenizerConfig:
    """The facts of a folder, whatever of the files is there. Raises `HeedfulError` for broken JSON."""
    config = read_json(folder / "tokenizer_config.json")
    names = read_json(folder / "special_tokens_map.json")
    model = read_json(folder / "config.json")
    # In a folder that tells its added tokens in the configuration, that is the newer file; else the map is.
    both = {**names, **config} if "added_tokens_decoder" in config else {**config, **names}
    for role in ROLES:
        both[role] = both.get(role) or names.get(role) or config.get(role)
        _check_token_name(both[role], f"{role} of {folder}")
    for key in LISTS:
        for name in both.get(key) or ():
            _check_token_name(name, f"a name among the {key} of {folder}")
    none = frozenset(role for role in ROLES if both[role] is None and (role in names or role in config))
    both = {key: value for key, value in both.items() if key not in ROLES or value is not None}
    if not (isinstance(both.get("model_max_length"), int | float) and both["model_max_length"] < NO_LIMIT):
        both.pop("model_max_length", None)
    words = (config.get("tokenizer_class"), model.get("tokenizer_class"), model.get("model_type"))
    classes = [word.removesuffix("Fast") for word in words if isinstance(word, str)]
    told = next((word for word in classes if word not in GENERIC_CLASSES), None)
    silent = {key: config[key] for key in (*ROLES, "model_max_length") if key in config and key not in both}
    return TokenizerConfig(both, told, none, silent, _added_tokens(folder, config))


def find_files(folder: Path, facts: TokenizerConfig, target: bool = False) -> tuple[str, ...] | None:
    """The names of the older files of which a tokenizer is made, those of the family told first; None: there are none.

    Raises `HeedfulError` where a part of them is there alone, or is no regular file.
    """
    families = [facts.family, *TOKENIZER_TYPES.values()] if facts.family else [*TOKENIZER_TYPES.values()]
    if target:
        both = all((folder / name).is_file() for name in ("source.spm", "target.spm"))
        families = [TOKENIZER_TYPES["marian"]] if both else []
    known = [files for family in families for files in family.files]
    for name in dict.fromkeys(name for files in known for name in files):
        check_regular(folder / name, "download it again")
    whole = [files for files in known if all((folder / name).is_file() for name in files)]
    for files in known if not whole else ():
        here = [name for name in files if (folder / name).is_file()]
        if here:
            lacking = next(name for name in files if name not in here)
            raise HeedfulError(f"{folder} holds {here[0]} but no {lacking}; download it too")
    return whole[0] if whole else None


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with its special names as strings: their properties stand in ``tokenizer.json``."""
    names = {role: token_name(config[role]) for role in ROLES if role in config}
    lists = {key: [token_name(name) for name in config[key]] for key in LISTS if isinstance(config.get(key), list)}
    return {**config, **names, **lists}


def token_name(name: Any) -> str:
    """A special token's name, which files give as a string or as a mapping with its properties."""
    return str(name["content"] if isinstance(name, dict) else name)


def read_json(path: Path, missing: bool = True) -> dict[str, Any]:
    """The object in a JSON file; none where there is no such file, and it may be ``missing``."""
    if missing and not os.path.lexists(path):
        return {}
    found = read_value(path, "save or download it again")
    if not isinstance(found, dict):
        raise HeedfulError(f"{path} holds a {type(found).__name__}, not an object; save or download it again")
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    return str(error).partition("\n")[0]


def library_message(error: BaseException) -> str:
    """The first line of what the library says of a file. Some broken files make it panic, which is no `Exception`;
    an interruption is none either, and is raised again.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return first_line(error)


def _check_token_name(name: Any, what: str) -> None:
    if isinstance(name, dict):
        name = name.get("content", 0)
    if not isinstance(name, str | None):
        raise HeedfulError(f"{what} is no name: {str(name)[:40]!r}; write it as a string")


def _added_tokens(folder: Path, config: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Of ``added_tokens.json`` (name → id) and ``added_tokens_decoder`` (id → properties), the latter knowing more."""
    found: dict[int, dict[str, Any]] = {}
    try:
        for name, number in read_json(folder / "added_tokens.json").items():
            found[int(number)] = {"content": name}
        for number, token in (config.get("added_tokens_decoder") or {}).items():
            found[int(number)] = {"content": token_name(token)} | (token if isinstance(token, dict) else {})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise HeedfulError(
            f"{folder} tells its added tokens in no known way ({first_line(error)}); save or download them again"
        ) from error
    return sorted(found.items(), key=lambda entry: entry[0])
