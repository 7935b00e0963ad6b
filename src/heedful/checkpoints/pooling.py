"""How a folder of ``sentence-transformers`` makes one vector of a text: ``modules.json`` and what it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.checkpoints.folder import read_json
from heedful.config import PooledHead, Pooling
from heedful.errors import HeedfulError

MODULES = "modules.json"
KNOWN = ("Transformer", "Pooling", "Normalize")  # in this order, the last one or not
MODES: dict[str, Pooling] = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
OLDER = "pooling_mode_"  # a key a kind, each true or false, as "pooling_mode_mean_tokens"


def pooled_head(folder: Path) -> PooledHead | None:
    """The head that the folder tells of; None where it tells none.

    Raises ``HeedfulError`` for modules other than the transformer, its pooling and a normalisation, and for a pooling
    of several kinds joined, or of one that we have not.
    """
    path = folder / MODULES
    if not path.exists():
        return None
    modules = _modules(path)
    kinds = tuple(str(module.get("type", "")).rpartition(".")[2] for module in modules)
    if kinds not in (KNOWN, KNOWN[:2]):
        raise HeedfulError(f"{path} names {', '.join(kinds) or 'nothing'}; only {', '.join(KNOWN)} are supported")
    inner = Path(str(modules[1].get("path", "")))
    if inner.is_absolute() or ".." in inner.parts:
        raise HeedfulError(f"{path} names the path {str(inner)!r}, which leaves the folder; download it again")
    config = folder / inner / "config.json"
    told = read_json(config)
    on = [key.removeprefix(OLDER) for key, value in told.items() if key.startswith(OLDER) and value]
    older = [name.removesuffix("_tokens").removesuffix("_token") for name in on]
    mode = told.get("pooling_mode", older[0] if len(older) == 1 else older)
    if not isinstance(mode, str) or mode not in MODES:
        raise HeedfulError(f"{config} pools by {mode!r}; only one of {', '.join(MODES)} is supported")
    return PooledHead(pooling=MODES[mode], normalise=len(kinds) == len(KNOWN))


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise HeedfulError(f"cannot read {path}: {str(error).splitlines()[0]}; download it again") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise HeedfulError(f"{path} is no list of modules; download it again")
    return modules
