"""Checks that need no other library: round trip, padding, cache, and the folder's task in batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.cache import Cache
from heedful.config import (
    DecoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    SequenceHead,
    TokenHead,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.inference.pipeline import pipeline
from heedful.models import Model
from heedful.pretrained import load, read_card
from heedful.pretrained.configuration import read_configs
from heedful.pretrained.flat_config import flat
from heedful.pretrained.model_types import model_type_of
from heedful.pretrained.rules import Drop, Tensors
from heedful.pretrained.weights import read_tensors
from heedful.verify.check_report import Outcome, Skipped
from heedful.verify.inputs import (
    ModelCall,
    Side,
    distance,
    draw,
    greedy_ids,
    need_language_head,
    new_tokens,
    output,
    pack,
    prompts,
    real_rows,
)
from heedful.verify.verified_folder import TEXTS, VerifiedFolder

SHOWN = 3  # names in a reason


def reopened(verified: VerifiedFolder) -> Outcome:
    """Counts tensors, configuration fields and other attributes that differ after saving."""
    again = load(verified.saved, dtype=verified.stored.dtype, device="cpu")
    wrong = _differences(verified.stored, again)
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=_listed("differ: ", wrong))


def _differences(before: Model, after: Model) -> list[str]:
    """Returns names of what is not the same."""
    ours, theirs = before.state_dict(), after.state_dict()
    wrong = [n for n in sorted(ours.keys() | theirs.keys()) if not _equal(ours.get(n), theirs.get(n))]
    said, says = flat(before.config), flat(after.config)
    wrong += [path for path in sorted(said.keys() | says.keys()) if said.get(path) != says.get(path)]
    head = before.config.head
    if isinstance(head, LanguageHead) and dict(before.generation) != dict(after.generation):
        wrong.append("generation")
    if isinstance(head, SequenceHead | TokenHead | ImageHead):
        unnamed = [f"LABEL_{number}" for number in range(head.labels)]
        if list(before.labels or unnamed) != list(after.labels or unnamed):
            wrong.append("labels")
        if before.multi_label != after.multi_label:
            wrong.append("multi_label")
        if before.regression != after.regression:
            wrong.append("regression")
    return wrong


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Returns whether both are there and have the same bits."""
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


def stored_again(verified: VerifiedFolder) -> Outcome:
    """Returns the number of tensors, by the names of the files, are not what they were once the folder was saved.

    What may differ is told: older names, copies of a tied tensor, buffers that are computed, another type.
    """
    if verified.stored.adapter is not None:
        raise Skipped("the folder holds an adapter; the round trip compares its tensors")
    (described, _), (again, _) = read_configs(verified.path), read_configs(verified.saved)
    if described["model_type"] != again["model_type"]:
        reason = f"the layout is {again['model_type']}, no longer {described['model_type']}"
        return Outcome(difference=1.0, allowed=0.0, reason=reason)
    model_type = model_type_of(described)
    architecture = model_type.architecture_of(described)
    files, copies = read_tensors(verified.path), read_tensors(verified.saved)
    before, after = model_type.names(files, architecture), model_type.names(copies, architecture)
    both = before.keys() & after.keys()
    types = {str(after[name].dtype).removeprefix("torch.") for name in both if after[name].dtype != before[name].dtype}
    before |= {name: before[name].to(after[name].dtype) for name in both}
    lost = {name: before[name] for name in before.keys() - after.keys()}
    drops = [rule for rule in (*architecture.rules, *architecture.body, *model_type.rules) if isinstance(rule, Drop)]
    computed = {name for name in lost if any(rule.claims(name) for rule in drops) or not lost[name].any()}
    wrong = [name for name in sorted(both) if not torch.equal(before[name], after[name])]
    wrong += [name for name in sorted(lost.keys() - computed) if not _copy(lost[name], after)]
    wrong += [name for name in sorted(after.keys() - both) if not _copy(after[name], before)]
    older = len(both) - len(files.keys() & copies.keys())
    notes = [f"{older} names of today for older ones"] if older else []
    notes += [f"now {', '.join(sorted(types))}"] if types else []
    notes += [f"{len(computed)} computed or empty left out"] if computed else []
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=_listed("differ: ", wrong) or ", ".join(notes))


def _copy(tensor: Tensor, among: Tensors) -> bool:
    """Returns whether one of the tensors has the same values: a tied tensor under its other name."""
    return any(other.shape == tensor.shape and torch.equal(other.to(tensor.dtype), tensor) for other in among.values())


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return what + ", ".join(names[:SHOWN]) + more


BATCH_LENGTHS = (1.0, 0.5, 0.8, 0.2)  # lengths of rows, of the longest


def padded(verified: VerifiedFolder, side: Side) -> Outcome:
    """Compares the outputs of rows padded together with those of each row alone."""
    config = verified.config
    images = isinstance(config, VisionConfig)
    if images and side != "mixed":
        raise Skipped("images have no padding")
    model, pad = verified.model(torch.float64), None if isinstance(config, VisionConfig) else config.special.pad
    rows = draw(config, BATCH_LENGTHS)
    call = pack(rows, "none" if images else side, pad)
    together = real_rows(output(model, call), call, config)
    alone = [output(model, pack([row], "none", pad))[0] for row in rows]
    return Outcome(difference=distance(together, alone), allowed=ALLOWED)


def generated(verified: VerifiedFolder) -> Outcome:
    """Returns the number of rows get other greedy tokens in a batch, padded on either side, than alone."""
    need_language_head(verified)
    model, count = verified.model(torch.float64), new_tokens(verified)
    rows = prompts(verified)
    alone = [greedy_ids(model, row[None], None, count)[0].tolist() for row in rows]
    wrong = set()
    for side in ("left", "right"):
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for number, row in enumerate(rows):
            start = width - len(row) if side == "left" else 0
            ids[number, start : start + len(row)], mask[number, start : start + len(row)] = row, True
        made = greedy_ids(model, ids, mask, count)
        wrong |= {n for n, ids in enumerate(alone) if made[n, : len(ids)].tolist() != ids}
    reason = f"rows {', '.join(map(str, sorted(wrong)))}" if wrong else ""
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=reason)


ALLOWED = 1e-10  # of the largest value, in float64
CACHE_LENGTHS = (1.0, 0.5, 0.8)


@torch.no_grad()
def cached(verified: VerifiedFolder) -> Outcome:
    """Compares decoding token by token with one pass, for each kind of cache."""
    config = verified.config
    if not isinstance(config, DecoderConfig | EncoderDecoderConfig):
        raise Skipped("nothing is decoded step by step")
    model, stack = verified.model(torch.float64), config.decoder
    # a sliding cache takes padding on the left only; a decoder's prompts are padded there, targets not at all
    call = pack(
        draw(config, CACHE_LENGTHS), "left" if isinstance(config, DecoderConfig) else "right", config.special.pad
    )
    tokens, real = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert real is not None
    kinds = [Cache(stack.depth)] if stack.window is None else []
    kinds += [Cache(stack.depth, capacity=None if stack.window else tokens.size(1), window=stack.window)]
    whole = _stepwise_output(model, call, None)[real]
    worst = max(distance([_stepwise_output(model, call, cache)[real]], [whole]) for cache in kinds)
    return Outcome(difference=worst, allowed=ALLOWED)


def _stepwise_output(model: torch.nn.Module, call: ModelCall, cache: Cache | None) -> Tensor:
    """Logits of a language model, else the stream: at once, or up to where every row has begun, then token by token."""
    tokens, mask = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert mask is not None
    begun = int(mask.int().argmax(1).max()) + 1
    memory = None if call.target is None else model.encode(call.ids, call.mask)  # type: ignore[operator]
    width = tokens.size(1)
    cuts = [width] if cache is None else range(begun, width + 1)
    parts, start = [], 0
    for end in cuts:
        part, real = tokens[:, start:end], mask[:, start:end]
        if memory is None:
            parts.append(model.hidden(part, real, cache=cache))  # type: ignore[operator]
        else:
            parts.append(model.decode(part, memory, real, call.mask, cache=cache))  # type: ignore[operator]
        start = end
    stream = torch.cat(parts, 1)
    return model.head(stream) if isinstance(model.config.head, LanguageHead) else stream  # type: ignore


SCORE_ALLOWED = 1e-4  # of scores, which are probabilities


def together(verified: VerifiedFolder) -> Outcome:
    """Returns the largest difference of a score; infinite where an output itself is another."""
    told = verified.task or read_card(verified.path).get("task")
    try:
        pipe = pipeline(told, verified.path, device="cpu", dtype="float32")
    except HeedfulError as error:
        if told is not None:
            raise
        raise Skipped(f"no task answers with it ({str(error).partition(';')[0]})") from None
    images = "image" in pipe.task.columns.values()
    inputs = _noise() if images else pipe.task.trial_inputs(verified.texts or TEXTS)
    options = {"do_sample": False, "max_new_tokens": 12}
    given = {name: value for name, value in options.items() if name in pipe.task.options}
    alone = [pipe(one, **given) for one in inputs]
    batch = pipe(inputs, **given)
    apart = 0.0
    for one, other in zip(alone, batch, strict=True):
        output = difference(one["output"], other["output"])
        if output > SCORE_ALLOWED:
            return Outcome(difference=output, allowed=SCORE_ALLOWED, reason=f"{one['input']!r} gets another answer")
        apart = max(apart, output, difference(one["score"], other["score"]))
    return Outcome(difference=apart, allowed=SCORE_ALLOWED)


def difference(one: Any, other: Any) -> float:
    """The largest difference of two numbers at the same place in two answers; infinite where anything else differs.

    >>> difference([{"label": "x", "score": 0.5}], [{"label": "x", "score": 0.25}]), difference("a", "b")
    (0.25, inf)
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    return 0.0 if one == other else float("inf")


def _noise() -> list[Any]:
    """Pictures of noise in sizes of their own."""
    sizes = ((28, 28), (40, 30), (64, 64))
    random = torch.Generator().manual_seed(0)
    return [torch.randint(256, (*size, 3), generator=random, dtype=torch.uint8).numpy() for size in sizes]
