"""The table of checks of a model folder, and ``verify``, which runs them in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from heedful import tasks
from heedful.config import VisionConfig
from heedful.errors import HeedfulError
from heedful.inference.pipeline import pipeline
from heedful.pretrained.folder import find, members_of
from heedful.util.random_state import seeded
from heedful.verify import consistency_checks, transformers_checks
from heedful.verify.check_report import CheckResult, Comparison, Report, Skipped
from heedful.verify.verified_folder import VerifiedFolder


class Check(NamedTuple):
    """Check of a model folder: its name, what it proves, and its function."""

    name: str
    description: str
    run: Callable[[VerifiedFolder], Comparison]
    of_ensembles: bool = False  # True if it also runs on an ensemble as a whole


CHECKS = (
    Check(
        "round trip",
        "loaded, saved and loaded again: the same tensors and configuration",
        consistency_checks.reloaded,
        of_ensembles=True,
    ),
    Check("stored tensors", "the saved files hold the same tensors, bit for bit", consistency_checks.stored_again),
    Check(
        "logits, float64",
        "logits equal those of transformers",
        partial(transformers_checks.logits, dtype=torch.float64),
    ),
    Check(
        "logits, float32",
        "logits equal those of transformers",
        partial(transformers_checks.logits, dtype=torch.float32),
    ),
    Check(
        "saved logits",
        "transformers computes the same logits from the saved folder",
        transformers_checks.logits_of_saved,
    ),
    Check("greedy text", "generates the same tokens as transformers", transformers_checks.greedy_text),
    Check("token ids", "token ids equal those of AutoTokenizer", transformers_checks.token_ids),
    Check(
        "padded left", "a row has the same output in a batch as alone", partial(consistency_checks.padded, side="left")
    ),
    Check(
        "padded right",
        "a row has the same output in a batch as alone",
        partial(consistency_checks.padded, side="right"),
    ),
    Check(
        "mixed batch", "a row has the same output in a batch as alone", partial(consistency_checks.padded, side="mixed")
    ),
    Check("batched text", "a row has the same greedy text in a batch as alone", consistency_checks.generated),
    Check("cached", "the same output token by token as in one pass", consistency_checks.cached),
    Check(
        "answers",
        "an input has the same prediction in a batch as alone",
        consistency_checks.predictions,
        of_ensembles=True,
    ),
)


def verify(
    folder: str | Path,
    *,
    task: str | None = None,
    texts: Sequence[str] = (),
    revision: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Checks a model folder: ours or Hugging Face's, of any family, with any head.

    The model is loaded, saved and loaded again; compared with ``transformers`` (logits, greedy text, token ids) if
    transformers is installed and knows the layout; run on single rows, on rows padded on either side and on a mixed
    batch; and decoded with and without a cache. Inputs are short, random and the same each time. Everything runs on the
    CPU. The members of an ensemble are checked one by one.

    Args:
        folder: a model folder, or a Hub id.
        task: task of the check "answers", if the folder names none.
        texts: your own texts for the tokenizer, the greedy text and the task.
        revision: revision of the folder on the Hub.
        say: called with the name of each check before it runs.

    Returns:
        The report, with ``ok``, ``seconds`` and ``checks``, each a ``CheckResult``.

    Raises:
        HeedfulError: the folder cannot be loaded, the task is unknown or does not suit the model, or a vision model is
            given texts.

    >>> import heedful, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heedful.create("gpt-micro", seed=0).save_pretrained(folder)
    ...     verify(folder).ok
    True
    """
    if task is not None:
        task = tasks.named(task)
    started = time.perf_counter()
    results = []
    with VerifiedFolder(find(folder, revision), texts, task) as verified, seeded(0):
        if isinstance(verified.config, VisionConfig) and texts:
            raise HeedfulError(f"{folder} is a vision model, which takes no texts; leave --text out")
        if task is not None:
            pipeline(task, verified.path, device="cpu")  # raises if the task does not suit the model
        members = members_of(verified.path)
        for check in CHECKS:
            if members and not check.of_ensembles:
                continue
            if say is not None:
                say(check.name)
            results.append(_result(check, verified))
    for member in members:
        own = verify(member, task=task, texts=texts, say=say).checks
        results += [replace(result, name=f"{member.name}: {result.name}") for result in own]
    return Report(model=str(folder), checks=tuple(results), seconds=time.perf_counter() - started)


def _result(check: Check, verified: VerifiedFolder) -> CheckResult:
    """Runs a check. If it raises an error, the check has failed, with the error as the reason."""
    started = time.perf_counter()
    comparison: Comparison | None = None
    try:
        comparison = check.run(verified)
        verdict, reason = ("ok" if comparison.ok else "failed"), comparison.reason
    except Skipped as skipped:
        verdict, reason = "skipped", str(skipped)
    except HeedfulError as error:
        verdict, reason = "failed", str(error)
    except Exception as error:  # of the model, its files or transformers
        verdict, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return CheckResult(
        name=check.name,
        description=check.description,
        verdict=verdict,  # type: ignore[arg-type]  # one of the three words
        difference=None if comparison is None else comparison.difference,
        tolerance=None if comparison is None else comparison.tolerance,
        reason=reason,
        seconds=time.perf_counter() - started,
    )
