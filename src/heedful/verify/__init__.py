"""The proofs that a model's folder is right, by every check it allows, and that a killed run ends with the same bits.

    checks      the table: what is checked, in order
    round_trip  opened, saved and opened again         logits   against ``transformers``
    greedy      generated text against ``transformers``   tokens   ids of the tokenizer against ``transformers``
    padding     the same answer alone and in any batch    caching  step by step against all at once
    answers     the folder's task, alone and in a batch
    subject     the folder under proof                 inputs   what models are called with, distances
    theirs      the folder opened by ``transformers``  report   what was found
    run         ``verify``                             keeping  the figures kept in the folder
    resume      ``verify_resume``                      kills    a run in a process, and the moments it is killed at
    ends        what two runs ended with, compared     repeatable   what is refused before the work

``transformers`` is used where it is installed; without it its checks are skipped, and say so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.verify.report import Finding, Report
    from heedful.verify.resume import Trial, verify_resume
    from heedful.verify.run import verify

_HOMES = {"Finding": "report", "Report": "report", "Trial": "resume", "verify": "run", "verify_resume": "resume"}

__all__ = ["Finding", "Report", "Trial", "verify", "verify_resume"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"heedful.verify.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'heedful.verify' has no attribute {name!r}")
