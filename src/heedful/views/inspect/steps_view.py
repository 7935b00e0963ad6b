"""The view steps: generated text token by token, with attention and alternatives of each step.

The maps are those of the generation itself, recorded while it ran, along the beam that is returned. The alternatives
come from one forward over the returned text: what the model said at each step, before temperature, penalties and cuts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig, LearnedPosition
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection import record
from heedful.tasks.task import short
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps
from heedful.views.generation_html import GenerationSteps, steps_page
from heedful.views.inspect.attention_view import numbers
from heedful.views.inspect.catalogue import stacks_of
from heedful.views.inspect.model_input import fits, one_answer, pieces_of, read_source, row_of
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

USUAL = 40  # new tokens of a decoder, where nobody says
TOP = 8  # alternatives of a step
SAID = "Probabilities are the model's own, before temperature, penalties and cuts."


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """One text that the model goes on with, or one that it translates."""
    text = request.inputs[0]
    steps = steps_of(opened, text, request)
    title = f"{opened.name}: {short(text)}"
    data = {
        "input": text,
        "prompt": list(steps.prompt),
        "made": list(steps.made),
        "chosen": list(steps.chosen),
        "nearly": [[list(one) for one in step] for step in steps.nearly],
        "note": steps.note,
        "maps": [numbers(maps) for maps in steps.maps],
    }
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(steps_page, steps, title=title),
        picture=partial(_svg, steps, title),
    )


def steps_of(opened: OpenedModel, text: str, request: Request) -> GenerationSteps:
    """Returns the steps by which the model goes on with ``text``, or translates it."""
    model, tokenizer, target = opened.model, opened.source, opened.target
    two = isinstance(model.config, EncoderDecoderConfig)
    _, ids = read_source(opened, text)
    fits(opened, "encoder" if two else "decoder", len(ids))
    stack = stacks_of(model.config)["decoder"]
    layers, heads = list(request.layers or range(stack.depth)), list(request.heads or range(stack.heads))
    _there("layer", layers, stack.depth)
    _there("head", heads, stack.heads)
    kinds = (
        {"cross-attention": "cross_attention", "self-attention": "attention"}
        if two
        else {"self-attention": "attention"}
    )
    paths = {name: [f"decoder.block.{n}.{part}.pattern" for n in layers] for name, part in kinds.items()}
    options = one_answer(request)
    if "max_new_tokens" not in options and "max_length" not in options:
        options |= _room(model.config, ids)
    every = [path for own in paths.values() for path in own]
    with record(model, every, heads=heads) as seen:
        found = decode(model, row_of(opened, ids), defaults=model.generation, tokenizer=opened.target, **options)
    row = found.ids[0, : int(found.lengths[0])].tolist()
    begin = 1 if two else len(ids)  # of what was made: after the start token, or after the prompt
    made = row[begin:]
    said = _said(opened, ids, row, begin, two)
    source, read, wrote = pieces_of(tokenizer, ids), pieces_of(target, row), pieces_of(target, made)
    maps = [
        AttentionMaps.of(
            f"decoder {name}" if two and name == "self-attention" else name,
            wrote,
            source if name == "cross-attention" else read,
            torch.stack([seen[path][0, :, : len(made)] for path in own]).float().cpu().numpy(),
            layers,
            heads,
        )
        for name, own in paths.items()
    ]
    best = said.topk(min(TOP, said.size(-1)))
    return GenerationSteps(
        prompt=source,
        made=wrote,
        chosen=said[torch.arange(len(made)), torch.tensor(made)].tolist(),
        nearly=[
            list(zip(pieces_of(target, names), chances, strict=True))
            for names, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        maps=maps,
        note=" ".join(part for part in (SAID, opened.untrained) if part),
    )


def _there(what: str, numbers: list[int], most: int) -> None:
    wrong = [number for number in numbers if number >= most]
    if wrong:
        raise HeedfulError(f"{what} {wrong[0]} is not there: the decoder's {what}s are 0 to {most - 1}")


def _room(config: Any, ids: list[int]) -> dict[str, int]:
    """Returns the number of tokens a decoder makes where nobody says: no more than its positions have room for."""
    if not isinstance(config, DecoderConfig):
        return {}
    scheme = config.decoder.position
    room = scheme.length + 1 - len(ids) if isinstance(scheme, LearnedPosition) else USUAL
    return {"max_new_tokens": max(1, min(USUAL, room))}


@torch.no_grad()
def _said(opened: OpenedModel, ids: list[int], row: list[int], begin: int, two: bool) -> Tensor:
    """(M, V): the probabilities at each step of ``row``, whose tokens from ``begin`` on were made."""
    model, read = opened.model, row_of(opened, row[:-1])
    stream = model.hidden(*([row_of(opened, ids), read] if two else [read]))  # type: ignore[operator]  # every model's
    logits: Tensor = model.head(stream[:, begin - 1 :])[0]  # type: ignore[operator]
    return logits.float().softmax(-1).cpu()


def _svg(steps: GenerationSteps, title: str) -> str:
    """Returns a picture of the probability of each generated token."""
    return figures.saliency(
        list(steps.made), list(steps.chosen), f"{title} · how probable each token was", note=steps.note
    )
