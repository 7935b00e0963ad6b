"""The table of checks of a model folder, and ``verify``, which makes them in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from heedful import tasks
from heedful.config import VisionConfig
from heedful.errors import HeedfulError
from heedful.inference.pipeline import pipeline
from heedful.pretrained.folder import find
from heedful.verify import consistency_checks, transformers_checks
from heedful.verify.check_report import CheckResult, Outcome, Report, Skipped
from heedful.verify.verified_folder import VerifiedFolder


class Check(NamedTuple):
    """A name, what it shows when it holds, and how it is made."""

    name: str
    what: str
    make: Callable[[VerifiedFolder], Outcome]


CHECKS = (
    Check("round trip", "opened, saved, opened: the same tensors and configuration", consistency_checks.reopened),
    Check("stored tensors", "saved again, the files' tensors are the same bits", consistency_checks.stored_again),
    Check("logits, float64", "as transformers gives them", partial(transformers_checks.logits, dtype=torch.float64)),
    Check("logits, float32", "as transformers gives them", partial(transformers_checks.logits, dtype=torch.float32)),
    Check("saved logits", "transformers opens what is saved: the same logits", transformers_checks.logits_of_saved),
    Check("greedy text", "as transformers generates it, token by token", transformers_checks.greedy_text),
    Check("token ids", "as AutoTokenizer gives them", transformers_checks.token_ids),
    Check("padded left", "a row answers as it does alone", partial(consistency_checks.padded, side="left")),
    Check("padded right", "a row answers as it does alone", partial(consistency_checks.padded, side="right")),
    Check("mixed batch", "a row answers as it does alone", partial(consistency_checks.padded, side="mixed")),
    Check("batched text", "greedy text is the same as alone", consistency_checks.generated),
    Check("cached", "token by token as all at once", consistency_checks.cached),
    Check("answers", "the task answers a batch as it does each alone", consistency_checks.together),
)


def verify(
    folder: str | Path,
    *,
    task: str | None = None,
    texts: Sequence[str] = (),
    revision: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Proves that a model's folder is right: ours or Hugging Face's, of any family, with any head.

    It is opened, saved and opened again; compared with ``transformers`` (logits, greedy text, token ids) where that is
    installed and the layout is its own; asked alone, padded on either side and in a mixed batch; decoded with and
    without a cache. Inputs are short, random but always the same. Everything runs on the CPU.

    Args:
        folder: a model's folder, or a Hub id.
        task: which task to ask, where the folder does not say (the check "answers").
        texts: your own, for the tokenizer, the greedy text and the task.
        revision: of the Hub's folder.
        say: is told the name of each check before it is made.

    Returns:
        The report: ``ok``, ``seconds`` and ``checks``, each a ``CheckResult``.

    Raises:
        HeedfulError: for a folder that does not open at all, a task that is unknown or not the model's, and texts for a
            model of images.

    >>> import heedful, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heedful.create("gpt-micro", seed=0).save_pretrained(folder)
    ...     verify(folder).ok
    True
    """
    if task is not None:
        tasks.check(task)
    started = time.perf_counter()
    findings = []
    with VerifiedFolder(find(folder, revision), texts, task) as verified, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a state of its own: nothing of the caller's moves
        if isinstance(verified.config, VisionConfig) and texts:  # a folder that does not open is no finding either
            raise HeedfulError(f"{folder} is a vision model, which reads no texts; leave --text out")
        if task is not None:
            pipeline(task, verified.path, device="cpu")  # one that the model cannot serve is a mistake, not a finding
        for check in CHECKS:
            if say is not None:
                say(check.name)
            findings.append(_made(check, verified))
    return Report(model=str(folder), checks=tuple(findings), seconds=time.perf_counter() - started)


def _made(check: Check, verified: VerifiedFolder) -> CheckResult:
    """One check, with its verdict: a check that breaks off has found something, and is off."""
    started = time.perf_counter()
    outcome: Outcome | None = None
    try:
        outcome = check.make(verified)
        verdict, reason = ("ok" if outcome.ok else "off"), outcome.reason
    except Skipped as why:
        verdict, reason = "skipped", str(why)
    except Exception as error:  # whatever breaks in the model, in its files, or in transformers
        verdict, reason = "off", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return CheckResult(
        name=check.name,
        what=check.what,
        verdict=verdict,  # type: ignore[arg-type]  # one of the three words
        difference=None if outcome is None else outcome.difference,
        allowed=None if outcome is None else outcome.allowed,
        reason=reason,
        seconds=time.perf_counter() - started,
    )
