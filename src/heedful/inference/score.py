"""``heedful.score``: log-probabilities of given continuations or targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import checked_ids
from heedful.inference.pipeline import Pipeline
from heedful.tasks.choices import OPTIONS, RankedPrompt, logprobs, normalised_scores


def score(
    model: Any,
    inputs: Any,
    choices: Sequence[Any],
    mask: Tensor | None = None,
    *,
    normalise: str | None = None,
    batch_tokens: int | None = None,
) -> Tensor:
    """Returns the log-probability of each choice after each input, Σ_t log p(y_t | x, y_<t): (B, C).

    The companion of ``generate``: a choice is a continuation of a decoder's prompt, or a target of an
    encoder-decoder's source. An input is read once for all of its choices.

    Args:
        model: a decoder or an encoder-decoder with a language-model head, or a pipeline with such a model.
        inputs: (B, T) ids of prompts or sources; for a pipeline a text, a list of messages, or a list of those.
        choices: C lists of ids for all inputs, or such a list for each input; for a pipeline C texts. The ids of an
            encoder-decoder's choice do not have the start token, and its end token is counted if they have it. A
            pipeline adds the end token to an encoder-decoder's choice (Sanh et al. 2022), and none to a decoder's,
            whose text may go on.
        mask: (B, T), False for padding, on either side; None: no padding. Not for a pipeline.
        normalise: "tokens" divides by the number of a choice's tokens; for a pipeline also "characters" (``acc_norm``
            of the language model evaluation harness). None: the sum.
        batch_tokens: maximum number of tokens of a batch; by default 4,096.

    Returns:
        Float32, or float64 for a float64 model; −∞ where an input has fewer choices than another.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> scores = score(model, torch.tensor([[1, 2, 3]]), [[4], [5, 6]])
    >>> scores.shape, bool((scores < 0).all())
    (torch.Size([1, 2]), True)
    """
    if isinstance(model, Pipeline):
        return _score_texts(model, inputs, choices, mask, normalise, batch_tokens)
    if normalise not in (None, "tokens"):
        raise HeedfulError(f"normalise is {normalise!r}, but ids have no characters; give 'tokens', or a pipeline")
    ids, real = checked_ids("ids", inputs, mask, model)
    prompts = [row[present].tolist() for row, present in zip(ids.cpu(), real.cpu(), strict=True)]
    ranked = [RankedPrompt(*pair) for pair in zip(prompts, _for_each(choices, len(prompts)), strict=True)]
    found = logprobs(model, ranked, batch_tokens)
    rows = [normalised_scores(sums, prompt, (), normalise) for sums, prompt in zip(found, ranked, strict=True)]
    most = max(map(len, rows))
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    return torch.tensor([[*row, *[-torch.inf] * (most - len(row))] for row in rows], dtype=dtype, device=model.device)


def _for_each(choices: Sequence[Any], count: int) -> Sequence[Sequence[Sequence[int]]]:
    """Returns the choices of each of ``count`` prompts, as lists of ids."""
    plain = choices.tolist() if isinstance(choices, Tensor) else choices
    plain = [one.tolist() if isinstance(one, Tensor) else one for one in plain]
    if not plain or not all(isinstance(one, Sequence) and len(one) for one in plain):
        raise HeedfulError("a list of choices is empty; give each input at least one choice of one token")
    if isinstance(plain[0][0], int):
        return [plain] * count
    if len(plain) != count:
        raise HeedfulError(f"{len(plain)} lists of choices for {count} inputs; give one list for each, or one for all")
    return [[one.tolist() if isinstance(one, Tensor) else one for one in own] for own in plain]


def _score_texts(
    pipe: Pipeline, inputs: Any, choices: Sequence[str], mask: Any, normalise: str | None, batch_tokens: int | None
) -> Tensor:
    if mask is not None:
        raise HeedfulError("a pipeline reads texts, which have no mask; leave it out")
    if not pipe.task.options >= OPTIONS:
        raise HeedfulError(f"{pipe.task.name} ranks no choices; use a model that generates text from text")
    given: Mapping[str, Any] = {"choices": choices, "normalise": normalise, "batch_tokens": batch_tokens}
    options = {name: value for name, value in given.items() if value is not None}
    results = pipe(inputs, top_k=max(1, len(choices)), **options)
    rows = []
    for result in results if isinstance(results, list) else [results]:
        if len(result["output"]) != len(choices):
            raise HeedfulError("an input is blank; give each a text")
        scores = {one["text"]: one["score"] for one in result["output"]}
        rows.append([scores[text] for text in choices])
    return torch.tensor(rows)
