"""The view steps: generated text token by token, with attention and candidates of each step.

The maps are recorded during the generation, along the beam that is returned; of a given target, in one forward over it.
The candidates come from one forward over the whole text: the model's probabilities at each step, before temperature,
penalties and cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig, LearnedPosition
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection import record
from heedful.tasks.model_setup import start_of
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps
from heedful.views.generation_html import GenerationSteps, steps_page
from heedful.views.inspect.attention_view import MAX_WEIGHTS, maps_as_data
from heedful.views.inspect.catalogue import stacks_of
from heedful.views.inspect.model_input import (
    Array,
    check_fits,
    continued,
    name_of,
    pieces_of,
    read_source,
    row_of,
    single_output,
    target_of,
)
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

DEFAULT_NEW_TOKENS = 40  # new tokens of a decoder by default
CANDIDATES = 8  # candidates of a step
NOTE = "Probabilities are the model's own, before temperature, penalties and cuts."


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of a generation step by step: one text that the model continues or translates."""
    text = request.inputs[0]
    steps = steps_of(opened, text, request)
    title = f"{opened.name}: {name_of(text)}"
    data = {
        "input": text,
        "prompt": list(steps.prompt),
        "generated": list(steps.generated),
        "probabilities": list(steps.chosen),
        "candidates": [[list(candidate) for candidate in step] for step in steps.candidates],
        "note": steps.note,
        "maps": [maps_as_data(maps) for maps in steps.maps],
    }
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(steps_page, steps, title=title),
        picture=partial(_svg, steps, title),
    )


def steps_of(opened: OpenedModel, text: str, request: Request) -> GenerationSteps:
    """Returns the steps by which the model continues ``text``, or translates it."""
    model, tokenizer, target = opened.model, opened.source, opened.target
    has_encoder = isinstance(model.config, EncoderDecoderConfig)
    stack = stacks_of(model.config)["decoder"]
    layers, heads = list(request.layers or range(stack.depth)), list(request.heads or range(stack.heads))
    _check_numbers("layer", layers, stack.depth)
    _check_numbers("head", heads, stack.heads)
    attention_modules = (
        {"cross-attention": "cross_attention", "self-attention": "attention"}
        if has_encoder
        else {"self-attention": "attention"}
    )
    paths = {name: [f"decoder.block.{n}.{part}.pattern" for n in layers] for name, part in attention_modules.items()}
    all_paths = [path for layer_paths in paths.values() for path in layer_paths]
    recording = partial(record, model, all_paths, heads=heads)
    if request.target is None:
        ids, row, begin, recorded = _generated(opened, text, request, recording)
        probabilities = _probabilities(opened, ids, row, begin)
    else:
        ids, row, begin = _given(opened, text, request)
        requested = len(all_paths) * len(heads) * (len(row) - begin) * max(len(row), len(ids))
        if requested > MAX_WEIGHTS:
            raise HeedfulError(
                f"the steps have up to {requested:,} weights, but at most {MAX_WEIGHTS:,} can be shown; choose fewer "
                "layers or heads"
            )
        with recording(queries=range(begin - 1, len(row) - 1)) as recorded:
            probabilities = _probabilities(opened, ids, row, begin)
    generated = row[begin:]
    source, row_pieces, generated_pieces = (
        pieces_of(tokenizer, ids),
        pieces_of(target, row),
        pieces_of(target, generated),
    )
    maps = [
        AttentionMaps.of(
            f"decoder {name}" if has_encoder and name == "self-attention" else name,
            generated_pieces,
            source if name == "cross-attention" else row_pieces,
            _stacked([recorded[path] for path in layer_paths], len(generated), len(row_pieces), name),
            layers,
            heads,
        )
        for name, layer_paths in paths.items()
    ]
    best = probabilities.topk(min(CANDIDATES, probabilities.size(-1)))
    return GenerationSteps(
        prompt=source,
        generated=generated_pieces,
        chosen=probabilities[torch.arange(len(generated)), torch.tensor(generated)].tolist(),
        candidates=[
            list(zip(pieces_of(target, candidate_ids), probabilities_of_step, strict=True))
            for candidate_ids, probabilities_of_step in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        maps=maps,
        note=" ".join(part for part in (NOTE, opened.untrained) if part),
    )


def _generated(
    opened: OpenedModel, text: Any, request: Request, recording: Callable[..., Any]
) -> tuple[list[int], list[int], int, Mapping[str, Tensor]]:
    """Generates, and returns the ids of the source or prompt, the whole row, its first generated token, the maps."""
    model, has_encoder = opened.model, isinstance(opened.model.config, EncoderDecoderConfig)
    _, ids = read_source(opened, text)
    check_fits(opened, "encoder" if has_encoder else "decoder", len(ids))
    options = single_output(request)
    if "max_new_tokens" not in options and "max_length" not in options:
        options |= _default_length(model.config, ids)
    with recording() as recorded:
        output = decode(model, row_of(opened, ids), defaults=model.generation, tokenizer=opened.target, **options)
    row = output.ids[0, : int(output.lengths[0])].tolist()
    return ids, row, 1 if has_encoder else len(ids), recorded  # after the start token, or after the prompt


def _given(opened: OpenedModel, text: Any, request: Request) -> tuple[list[int], list[int], int]:
    """Returns the ids of the source or prompt, those of the row that ends in the target, and where the target begins.

    Raises ``HeedfulError`` for a row that the model has no positions for; its last token is predicted and not read.
    """
    config = opened.model.config
    assert request.target is not None
    if isinstance(config, EncoderDecoderConfig):
        _, ids = read_source(opened, text)
        target, _ = target_of(opened, ids, request)
        row, begin = [start_of(config), *target], 1
    else:
        row, begin = continued(opened, text, request.target)
        ids = row[:begin]
    check_fits(opened, "decoder", len(row) - 1, "the target" if begin == 1 else "the text")
    return ids, row, begin


def _stacked(recorded: Sequence[Tensor], steps: int, length: int, name: str) -> Array:
    """Returns the maps of all layers (L, H, M, S); in self-attention with a column for the last token, no key yet."""
    maps = torch.stack([pattern[0, :, :steps] for pattern in recorded]).float().cpu()
    if name == "self-attention" and maps.size(-1) < length:
        maps = F.pad(maps, (0, length - maps.size(-1)))
    return maps.numpy()


def _check_numbers(kind: str, numbers: list[int], count: int) -> None:
    """Raises for layers or heads that the decoder does not have."""
    unknown = [number for number in numbers if number >= count]
    if unknown:
        raise HeedfulError(f"no {kind} {unknown[0]}; the decoder's {kind}s are 0 to {count - 1}")


def _default_length(config: Any, ids: list[int]) -> dict[str, int]:
    """Returns the default ``max_new_tokens`` of a decoder, within its positions."""
    if not isinstance(config, DecoderConfig):
        return {}
    scheme = config.decoder.position
    room = scheme.length + 1 - len(ids) if isinstance(scheme, LearnedPosition) else DEFAULT_NEW_TOKENS
    return {"max_new_tokens": max(1, min(DEFAULT_NEW_TOKENS, room))}


@torch.no_grad()
def _probabilities(opened: OpenedModel, ids: list[int], row: list[int], begin: int) -> Tensor:
    """Returns the probabilities (M, V) at each step of ``row``, whose tokens from ``begin`` on were generated."""
    model, inputs = opened.model, [row_of(opened, row[:-1])]
    if isinstance(model.config, EncoderDecoderConfig):
        inputs.insert(0, row_of(opened, ids))
    stream = model.hidden(*inputs)  # type: ignore[operator]  # every model's
    logits: Tensor = model.head(stream[:, begin - 1 :])[0]
    return logits.float().softmax(-1).cpu()


def _svg(steps: GenerationSteps, title: str) -> str:
    """Returns a figure of the probability of each generated token."""
    return figures.saliency(
        list(steps.generated), list(steps.chosen), f"{title} · probability of each token", note=steps.note
    )
