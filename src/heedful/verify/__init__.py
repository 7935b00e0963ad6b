"""Verification: checks that a model folder is right, and that a killed and resumed run ends with the same bits.

    checks               the table of checks, and ``verify``
    consistency_checks   round trip, padding, cache and the folder's task: no other library needed
    transformers_checks  outputs, greedy text and token ids against ``transformers``
    reference            the folder opened and run by ``transformers``
    verified_folder      the folder under verification, opened once per dtype
    inputs               random inputs for models, and the distance of two outputs
    check_report         results: a finding per check, and the report
    resume               ``verify_resume``
    resume_options       its options, checked before anything slow is imported
    kills                a training run in processes of its own, killed at random moments
    run_comparison       two run folders, compared bit by bit

``transformers`` is used where it is installed; without it, its checks are skipped and say so. To add a check, write a
function from ``VerifiedFolder`` to ``Comparison`` and add a line to ``checks.CHECKS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.verify.check_report import CheckResult, Report
    from heedful.verify.checks import verify
    from heedful.verify.resume import ResumeReport, verify_resume

_HOMES = {
    "CheckResult": "check_report",
    "Report": "check_report",
    "ResumeReport": "resume",
    "verify": "checks",
    "verify_resume": "resume",
}

__all__ = ["CheckResult", "Report", "ResumeReport", "verify", "verify_resume"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.verify.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
