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
    EnsembleConfig,
    ImageHead,
    LanguageHead,
    SequenceHead,
    TokenHead,
    VisionConfig,
    patches_of,
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
from heedful.verify.check_report import Comparison, Skipped
from heedful.verify.inputs import (
    InputRow,
    ModelCall,
    Side,
    batch_of,
    greedy_ids,
    largest_distance,
    model_output,
    need_language_head,
    new_tokens,
    prompts,
    random_rows,
    rows_without_padding,
)
from heedful.verify.verified_folder import TEXTS, VerifiedFolder

SHOWN = 3  # names in a reason


def reloaded(verified: VerifiedFolder) -> Comparison:
    """Counts tensors, configuration fields and other attributes that differ after saving."""
    reloaded_model = load(verified.saved, dtype=verified.stored.dtype, device="cpu")
    wrong = _differences(verified.stored, reloaded_model)
    return Comparison(difference=float(len(wrong)), tolerance=0.0, reason=_first_names("differ: ", wrong))


def _differences(before: Model, after: Model) -> list[str]:
    """Returns the names of tensors, configuration fields and attributes that differ."""
    ours, hub = before.state_dict(), after.state_dict()
    wrong = [n for n in sorted(ours.keys() | hub.keys()) if not _equal(ours.get(n), hub.get(n))]
    fields, new_fields = flat(before.config), flat(after.config)
    wrong += [path for path in sorted(fields.keys() | new_fields.keys()) if fields.get(path) != new_fields.get(path)]
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


def _equal(first: Tensor | None, second: Tensor | None) -> bool:
    """Returns True if both tensors exist and have the same bits."""
    return first is not None and second is not None and first.dtype == second.dtype and torch.equal(first, second)


def stored_again(verified: VerifiedFolder) -> Comparison:
    """Counts the tensors in the files whose bits have changed after saving the folder again.

    Changes of a name from an older one, and of the dtype, are listed but not counted; so are computed buffers that are
    no longer stored. Copies of a tied tensor are not counted either.
    """
    if verified.stored.adapter is not None:
        raise Skipped("the folder holds an adapter; the round trip compares its tensors")
    (described, _), (again, _) = read_configs(verified.path), read_configs(verified.saved)
    if described["model_type"] != again["model_type"]:
        reason = f"the saved layout is {again['model_type']}, not {described['model_type']}"
        return Comparison(difference=1.0, tolerance=0.0, reason=reason)
    model_type = model_type_of(described)
    architecture = model_type.architecture_of(described)
    files, copies = read_tensors(verified.path), read_tensors(verified.saved)
    before, after = model_type.names(files, architecture), model_type.names(copies, architecture)
    common = before.keys() & after.keys()
    types = {
        str(after[name].dtype).removeprefix("torch.") for name in common if after[name].dtype != before[name].dtype
    }
    before |= {name: before[name].to(after[name].dtype) for name in common}
    lost = {name: before[name] for name in before.keys() - after.keys()}
    drops = [rule for rule in (*architecture.rules, *architecture.body, *model_type.rules) if isinstance(rule, Drop)]
    computed = {name for name in lost if any(rule.claims(name) for rule in drops) or not lost[name].any()}
    changed = [name for name in sorted(common) if not torch.equal(before[name], after[name])]
    changed += [name for name in sorted(lost.keys() - computed) if not _has_copy(lost[name], after)]
    changed += [name for name in sorted(after.keys() - common) if not _has_copy(after[name], before)]
    older = len(common) - len(files.keys() & copies.keys())
    notes = [f"{older} older names replaced"] if older else []
    notes += [f"now {', '.join(sorted(types))}"] if types else []
    notes += [f"{len(computed)} computed or zero tensors left out"] if computed else []
    return Comparison(
        difference=float(len(changed)), tolerance=0.0, reason=_first_names("differ: ", changed) or ", ".join(notes)
    )


def _has_copy(tensor: Tensor, others: Tensors) -> bool:
    """Returns True if one of the tensors has the same values: a tied tensor under its other name."""
    return any(other.shape == tensor.shape and torch.equal(other.to(tensor.dtype), tensor) for other in others.values())


def _first_names(prefix: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return prefix + ", ".join(names[:SHOWN]) + more


BATCH_LENGTHS = (1.0, 0.5, 0.8, 0.2)  # lengths of rows, as shares of the longest


def padded(verified: VerifiedFolder, side: Side) -> Comparison:
    """Compares the outputs of rows padded in a batch with the outputs of each row alone."""
    config = verified.config
    assert not isinstance(config, EnsembleConfig)  # its members are checked
    images = isinstance(config, VisionConfig)
    if images and side != "mixed":
        raise Skipped("images have no padding")
    model, pad = verified.model(torch.float64), None if isinstance(config, VisionConfig) else config.special.pad
    rows = random_rows(config, BATCH_LENGTHS)
    call = batch_of(rows, "none" if images else side, pad)
    batched = rows_without_padding(model_output(model, call), call, config)
    alone = [model_output(model, batch_of([row], "none", pad))[0] for row in rows]
    return Comparison(difference=largest_distance(batched, alone), tolerance=TOLERANCE)


def generated(verified: VerifiedFolder) -> Comparison:
    """Counts rows whose greedy tokens in a batch, padded if they are texts, differ from those of the row alone."""
    need_language_head(verified)
    model, count = verified.model(torch.float64), new_tokens(verified)
    rows = prompts(verified)
    sides: tuple[Side, ...] = ("left", "right")
    if patches_of(verified.config) is not None:  # images have no padding
        rows, sides = [row.to(model.dtype) for row in rows], ("none",)
    alone = [greedy_ids(model, row[None], None, count)[0].tolist() for row in rows]
    differing = set()
    for side in sides:
        call = batch_of([InputRow(row) for row in rows], side, 0)
        batched = greedy_ids(model, call.ids, call.mask, count)
        differing |= {n for n, ids in enumerate(alone) if batched[n, : len(ids)].tolist() != ids}
    reason = f"rows {', '.join(map(str, sorted(differing)))}" if differing else ""
    return Comparison(difference=float(len(differing)), tolerance=0.0, reason=reason)


TOLERANCE = 1e-10  # in float64, relative to the largest value
CACHE_LENGTHS = (1.0, 0.5, 0.8)


@torch.no_grad()
def cached(verified: VerifiedFolder) -> Comparison:
    """Compares decoding token by token with one pass, for each kind of cache."""
    config = verified.config
    if not isinstance(config, DecoderConfig | EncoderDecoderConfig):
        raise Skipped("the model does not decode step by step")
    model, stack = verified.model(torch.float64), config.decoder
    # a sliding cache takes padding on the left only; a decoder's prompts are padded there, targets not at all
    call = batch_of(
        random_rows(config, CACHE_LENGTHS), "left" if isinstance(config, DecoderConfig) else "right", config.special.pad
    )
    tokens, real = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert real is not None
    kinds = [Cache(stack.depth)] if stack.window is None else []
    capacity = tokens.size(1) if None in stack.windows else None
    kinds += [Cache(stack.depth, capacity=capacity, window=stack.windows)]
    whole = _stepwise_output(model, call, None)[real]
    worst = max(largest_distance([_stepwise_output(model, call, cache)[real]], [whole]) for cache in kinds)
    return Comparison(difference=worst, tolerance=TOLERANCE)


def _stepwise_output(model: torch.nn.Module, call: ModelCall, cache: Cache | None) -> Tensor:
    """Returns the logits of a language model, else the hidden states.

    Without ``cache`` one pass computes all positions. With ``cache`` one pass computes the positions up to the one
    where every row has a token; the remaining positions are computed token by token.
    """
    tokens, mask = (call.ids, call.mask) if call.target is None else (call.target, call.target_mask)
    assert mask is not None
    prefix = int(mask.int().argmax(1).max()) + 1  # tokens after which no row starts with padding
    source = call.ids.double() if call.ids.is_floating_point() else call.ids  # the model's precision
    memory = None if call.target is None else model.encode(source, call.mask)  # type: ignore[operator]
    width = tokens.size(1)
    cuts = [width] if cache is None else range(prefix, width + 1)
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


SCORE_TOLERANCE = 1e-4  # absolute; scores are probabilities


def predictions(verified: VerifiedFolder) -> Comparison:
    """Compares the scores of predictions in a batch with the scores of each input alone.

    The difference is infinite if an output other than a score differs.
    """
    task = verified.task or read_card(verified.path).get("task")
    try:
        pipe = pipeline(task, verified.path, device="cpu", dtype="float32")
    except HeedfulError as error:
        if task is not None:
            raise
        raise Skipped(f"no task uses this model ({str(error).partition(';')[0]})") from None
    images = "image" in pipe.task.columns.values()
    inputs = _noise_images() if images else pipe.task.trial_inputs(verified.texts or TEXTS)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
    options = {name: value for name, value in options.items() if name in pipe.task.options}
    alone = [pipe(value, **options) for value in inputs]
    batch = pipe(inputs, **options)
    largest = 0.0
    for first, second in zip(alone, batch, strict=True):
        output = difference(first["output"], second["output"])
        if output > SCORE_TOLERANCE:
            return Comparison(
                difference=output, tolerance=SCORE_TOLERANCE, reason=f"the output for {first['input']!r} differs"
            )
        largest = max(largest, output, difference(first["score"], second["score"]))
    return Comparison(difference=largest, tolerance=SCORE_TOLERANCE)


def difference(first: Any, second: Any) -> float:
    """Returns the largest difference of numbers at the same position in two outputs; infinite if another value differs.

    >>> difference([{"label": "x", "score": 0.5}], [{"label": "x", "score": 0.25}]), difference("a", "b")
    (0.25, inf)
    """
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max((difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys():
        return max((difference(first[name], second[name]) for name in first), default=0.0)
    return 0.0 if first == second else float("inf")


def _noise_images() -> list[Any]:
    """Returns images of noise in three sizes."""
    sizes = ((28, 28), (40, 30), (64, 64))
    random = torch.Generator().manual_seed(0)
    return [torch.randint(256, (*size, 3), generator=random, dtype=torch.uint8).numpy() for size in sizes]
