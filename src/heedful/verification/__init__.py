"""The proof that a model's folder is right: ``verify`` makes every check that the folder allows, and says how far off.

    checks      the table: what is checked, in order
    round_trip  opened, saved and opened again         logits   against ``transformers``
    greedy      generated text against ``transformers``   tokens   ids of the tokenizer against ``transformers``
    padding     the same answer alone and in any batch    caching  step by step against all at once
    answers     the folder's task, alone and in a batch
    subject     the folder under proof                 inputs   what models are called with, distances
    theirs      the folder opened by ``transformers``  report   what was found
    run         ``verify``                             keeping  the figures kept in the folder

``transformers`` is used where it is installed; without it its checks are skipped, and say so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.verification.report import Finding as Finding
    from heedful.verification.report import Report as Report
    from heedful.verification.run import verify as verify

_HOMES = {"Finding": "report", "Report": "report", "verify": "run"}

__all__ = ["Finding", "Report", "verify"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"heedful.verification.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'heedful.verification' has no attribute {name!r}")
