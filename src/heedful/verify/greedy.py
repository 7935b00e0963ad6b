"""Greedy text against ``transformers``: token by token, in float32; a tie is settled in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.config import EncoderDecoderConfig, LanguageHead, VisionConfig
from heedful.generation import generate
from heedful.verify import reference as theirs
from heedful.verify.inputs import Call, draw, embedding_of, output, room
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import TEXTS, Subject

NEW = 12  # tokens generated for a prompt
PROMPT = 24  # tokens of a prompt, at most


def need_language_head(subject: Subject) -> None:
    """Raise ``Skipped`` for a model that does not generate."""
    if not hasattr(subject.stored, "decoder") or not isinstance(subject.config.head, LanguageHead):
        raise Skipped("the model does not generate text")


def prompts(subject: Subject) -> list[Tensor]:
    """Ids (T,) of the person's texts, or else of our own, where the folder has a tokenizer; random ones besides."""
    config = subject.config
    assert not isinstance(config, VisionConfig)
    own: list[list[int]] = []
    if subject.tokenizer is not None:
        end = list(config.special.end[:1]) if isinstance(config, EncoderDecoderConfig) else []
        own = [ids + end for ids in subject.tokenizer.encode(list(subject.texts or TEXTS)) if ids]
    vocabulary = embedding_of(config).vocab_size
    most = max(1, room(config, PROMPT + NEW) - new_tokens(subject))
    kept = [torch.tensor(ids[:most]) for ids in own if max(ids) < vocabulary]
    return [*kept, *(row.ids[:most] for row in draw(config, (0.7, 0.2)))]


def new_tokens(subject: Subject) -> int:
    """How many tokens to generate: fewer where the learned positions end."""
    return min(NEW, room(subject.config, PROMPT + NEW) // 2)


def plain(model: Any, ids: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """Greedy ids, with the folder's other settings but its stop strings, which end texts and not ids."""
    defaults = {**model.generation, "stop_strings": None}
    return generate(model, ids, mask, defaults=defaults, do_sample=False, num_beams=1, max_new_tokens=count)


def against_transformers(subject: Subject) -> Outcome:
    """How many generated tokens differ, over a few prompts, each alone."""
    need_language_head(subject)
    theirs.need_their_layout(subject)
    rows, count = prompts(subject), new_tokens(subject)
    reason = ""
    with theirs.quiet() as transformers:
        for dtype in (torch.float32, torch.float64):
            ours, other = subject.model(dtype), theirs.reference(transformers, subject, dtype)
            other.generation_config.stop_strings = None
            pairs = []
            for row in rows:
                ids = row[None]
                made = other.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=count
                )
                pairs.append((plain(ours, ids, None, count)[0].tolist(), made[0].tolist()))
            apart = sum(_apart(*pair) for pair in pairs)
            if not apart:
                break
            first = next(number for number, pair in enumerate(pairs) if _apart(*pair))
            reason = _parting(subject, rows[first], *pairs[first], str(dtype).removeprefix("torch."))
    told = reason and (reason if apart else f"{reason}: a tie, equal in float64")
    return Outcome(difference=float(apart), allowed=0.0, reason=told)


def _apart(ours: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip(ours, other, strict=False)) + abs(len(ours) - len(other))


def _parting(subject: Subject, row: Tensor, ours: list[int], other: list[int], dtype: str) -> str:
    """Where two texts part first, and how far apart the two tokens are to the model."""
    pairs = list(zip(ours, other, strict=False))
    place = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return f"in {dtype} one text ends after {len(pairs)} tokens, the other does not"
    before = torch.tensor([ours[:place]])
    call = Call(row[None], target=before) if isinstance(subject.config, EncoderDecoderConfig) else Call(before)
    scores = output(subject.model(torch.float32), call)[0, -1]
    a, b = pairs[place]
    gap = float((scores[a] - scores[b]).abs() / scores.abs().max())
    return f"in {dtype} token {place} is {a} here and {b} there, {gap:.1g} of the largest logit apart"
