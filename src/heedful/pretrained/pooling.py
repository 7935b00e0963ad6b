"""Pooling of a ``sentence-transformers`` folder: ``modules.json`` and the files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from heedful.config import PooledHead, Pooling, with_head
from heedful.errors import HeedfulError
from heedful.heads import head_of
from heedful.models import Model
from heedful.pretrained.folder import indented_json, read_required_json
from heedful.util import files
from heedful.util.files import write

MODULES = "modules.json"
MODULE_KINDS = ("Transformer", "Pooling", "Normalize")  # in this order; the last is optional
POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
OLDER_PREFIX = "pooling_mode_"  # prefix of older keys, one a kind, true or false: "pooling_mode_mean_tokens"
OLDER_KEYS: dict[Pooling, str] = {"first": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
NEWER = "last"  # older releases refuse its key: it is written only if it is true
TYPE_PREFIX = "sentence_transformers.models."
TEXT_CONFIG, PROMPT_CONFIG = "sentence_bert_config.json", "config_sentence_transformers.json"


class TextPreparation(NamedTuple):
    """Text preparation before the tokenizer: maximum length, lower case, prompt."""

    longest: int | None = None  # tokens, with special ones; None: as many as tokenizer and model allow
    lowercase: bool = False
    prompt: str = ""  # prefix of every text


def pooled_head(folder: Path) -> PooledHead | None:
    """Returns the pooling head of ``modules.json``; None without that file.

    Raises ``HeedfulError`` for modules other than transformer, pooling and normalisation, and for unsupported kinds of
    pooling, such as several poolings that are concatenated.
    """
    path = folder / MODULES
    if not path.exists():
        return None
    modules = _modules(path)
    kinds = tuple(str(module.get("type", "")).rpartition(".")[2] for module in modules)
    if kinds not in (MODULE_KINDS, MODULE_KINDS[:2]):
        raise HeedfulError(
            f"{path} lists the modules {', '.join(kinds) or 'none'}; only {', '.join(MODULE_KINDS)} are supported"
        )
    inner = Path(str(modules[1].get("path", "")))
    if inner.is_absolute() or ".." in inner.parts:
        raise HeedfulError(
            f"{path} names the path {str(inner)!r}, which is outside the folder; download the folder again"
        )
    config = folder / inner / "config.json"
    settings = read_required_json(config)
    true_keys = [
        key.removeprefix(OLDER_PREFIX) for key, value in settings.items() if key.startswith(OLDER_PREFIX) and value
    ]
    older = [name.removesuffix("_tokens").removesuffix("_token") for name in true_keys]
    mode = settings.get("pooling_mode", older[0] if len(older) == 1 else older)
    if not isinstance(mode, str) or mode not in POOLINGS:
        raise HeedfulError(f"{config} sets the pooling {mode!r}; only one of {', '.join(POOLINGS)} is supported")
    return PooledHead(pooling=POOLINGS[mode], normalise=len(kinds) == len(MODULE_KINDS))


def module_files(head: PooledHead, dim: int) -> dict[str, Any]:
    """Returns the files of ``sentence-transformers`` for a pooling head, as ``{path: JSON}``.

    The head has no dense layer, and its embeddings have ``dim`` numbers.
    """
    kinds = MODULE_KINDS if head.normalise else MODULE_KINDS[:2]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": TYPE_PREFIX + kind}
        for i, kind in enumerate(kinds)
    ]
    modes = {
        OLDER_PREFIX + key: kind == head.pooling
        for kind, key in OLDER_KEYS.items()
        if kind != NEWER or head.pooling == NEWER
    }
    modes[OLDER_PREFIX + "mean_sqrt_len_tokens"] = False
    return {MODULES: modules, "1_Pooling/config.json": {"word_embedding_dimension": dim, **modes}}


def read_text_preparation(folder: Path) -> TextPreparation:
    """Returns a folder's text preparation; raises ``HeedfulError`` for invalid values."""
    settings = read_required_json(folder / TEXT_CONFIG) if (folder / TEXT_CONFIG).exists() else {}
    longest = settings.get("max_seq_length")
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        raise HeedfulError(f"{folder / TEXT_CONFIG}: max_seq_length is {longest!r}; write a whole number above 0")
    prompt_config = read_required_json(folder / PROMPT_CONFIG) if (folder / PROMPT_CONFIG).exists() else {}
    name, prompts = prompt_config.get("default_prompt_name"), prompt_config.get("prompts") or {}
    if name is not None and not isinstance(prompts.get(name), str):
        raise HeedfulError(f"{folder / PROMPT_CONFIG}: the default prompt {name!r} is not among the prompts; add it")
    return TextPreparation(longest, bool(settings.get("do_lower_case")), "" if name is None else prompts[name])


def write_text_preparation(folder: Path, preparation: TextPreparation) -> None:
    """Writes the files that ``read_text_preparation`` reads."""
    settings = {"max_seq_length": preparation.longest, "do_lower_case": preparation.lowercase}
    write(folder / TEXT_CONFIG, indented_json(settings))
    if preparation.prompt:
        prompts = {"prompts": {"default": preparation.prompt}, "default_prompt_name": "default"}
        write(folder / PROMPT_CONFIG, indented_json(prompts))


def repool(model: Model, head: PooledHead) -> None:
    """Replaces a model's pooling head, which has no weights, by another."""
    model.config = with_head(model.config, head)
    model.head = head_of(head, model.main.dim)


def _modules(path: Path) -> list[dict[str, Any]]:
    modules = files.read_json(path, "download it again")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise HeedfulError(f"{path} is not a list of modules; download it again")
    return modules
