"""``verify``: every check of a folder, made, timed and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from heedful import tasks
from heedful.config import VisionConfig
from heedful.errors import HeedfulError
from heedful.inference.pipeline import pipeline
from heedful.pretrained.folder import find
from heedful.verify.checks import CHECKS, Check
from heedful.verify.report import Finding, Outcome, Report, Skipped
from heedful.verify.verified_folder import Subject


def verify(
    folder: str | Path,
    *,
    task: str | None = None,
    texts: Sequence[str] = (),
    revision: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Prove that a model's folder is right: ours or Hugging Face's, of any family, with any head.

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
        The report: ``ok``, ``checks`` (``Finding``: name, what, largest difference, what is allowed, verdict, reason,
        seconds), ``seconds``.

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
    with Subject(find(folder, revision), texts, task) as subject, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a state of its own: nothing of the caller's moves
        if isinstance(subject.config, VisionConfig) and texts:  # a folder that does not open is no finding either
            raise HeedfulError(f"{folder} is a vision model, which reads no texts; leave --text out")
        if task is not None:
            pipeline(task, subject.folder, device="cpu")  # one that the model cannot serve is a mistake, not a finding
        for check in CHECKS:
            if say is not None:
                say(check.name)
            findings.append(_made(check, subject))
    return Report(model=str(folder), checks=tuple(findings), seconds=time.perf_counter() - started)


def _made(check: Check, subject: Subject) -> Finding:
    """One check, with its verdict: a check that breaks off has found something, and is off."""
    started = time.perf_counter()
    outcome: Outcome | None = None
    try:
        outcome = check.make(subject)
        verdict, reason = ("ok" if outcome.ok else "off"), outcome.reason
    except Skipped as why:
        verdict, reason = "skipped", str(why)
    except Exception as error:  # whatever breaks in the model, in its files, or in transformers
        verdict, reason = "off", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Finding(
        name=check.name,
        what=check.what,
        verdict=verdict,  # type: ignore[arg-type]  # one of the three words
        difference=None if outcome is None else outcome.difference,
        allowed=None if outcome is None else outcome.allowed,
        reason=reason,
        seconds=time.perf_counter() - started,
    )
