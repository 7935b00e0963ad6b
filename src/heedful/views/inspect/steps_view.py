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
from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.inspection import record
from heedful.tasks.model_setup import start_of
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps
from heedful.views.generation_html import GenerationSteps, steps_page
from heedful.views.inspect.attention_view import MAX_WEIGHTS, maps_as_data
from heedful.views.inspect.catalogue import reads_images, stack_names
from heedful.views.inspect.model_input import (
    Array,
    check_fits,
    continued,
    name_of,
    pieces_of,
    row_of,
    single_output,
    source_of,
    target_of,
)
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, decoder_layers_and_heads
from heedful.views.inspect.result import InspectionResult

DEFAULT_NEW_TOKENS = 40  # new tokens of a decoder by default
CANDIDATES = 8  # candidates of a step
NOTE = "Probabilities are the model's own, before temperature, penalties and cuts."


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of a generation step by step: one text that the model continues or translates."""
    text = request.inputs[0]
    steps = steps_of(opened, text, request)
    name = LazyImage.of(text).name if reads_images(opened.model.config) else name_of(text)
    title = f"{opened.name}: {name}"
    data = {
        "input": name if reads_images(opened.model.config) else text,
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
    model, target = opened.model, opened.target
    has_encoder = isinstance(model.config, EncoderDecoderConfig)
    layers, heads = decoder_layers_and_heads(request, stack_names(model.config)["decoder"])
    attention_modules = (
        {"cross-attention": "cross_attention", "self-attention": "attention"}
        if has_encoder
        else {"self-attention": "attention"}
    )
    paths = {name: [f"decoder.block.{n}.{part}.pattern" for n in layers] for name, part in attention_modules.items()}
    all_paths = [path for layer_paths in paths.values() for path in layer_paths]
    recording = partial(record, model, all_paths, heads=heads)
    if request.target is None:
        source, inputs, row, begin, recorded = _generated(opened, text, request, recording)
        probabilities = _probabilities(opened, inputs, row, begin)
    else:
        source, inputs, row, begin = _given(opened, text, request)
        requested = len(all_paths) * len(heads) * (len(row) - begin) * max(len(row), len(source))
        if requested > MAX_WEIGHTS:
            raise HeedfulError(
                f"the steps have up to {requested:,} weights, but at most {MAX_WEIGHTS:,} can be shown; choose fewer "
                "layers or heads"
            )
        with recording(queries=range(begin - 1, len(row) - 1)) as recorded:
            probabilities = _probabilities(opened, inputs, row, begin)
    generated = row[begin:]
    row_pieces, generated_pieces = pieces_of(target, row), pieces_of(target, generated)
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
) -> tuple[list[str], list[Tensor], list[int], int, Mapping[str, Tensor]]:
    """Generates, and returns the tokens of the source or prompt, an encoder's input, the whole row, its first generated
    token, and the maps.
    """
    model, has_encoder = opened.model, isinstance(opened.model.config, EncoderDecoderConfig)
    _, source, tensor = source_of(opened, text)
    check_fits(opened, "encoder" if has_encoder else "decoder", len(source))
    options = single_output(request)
    if "max_new_tokens" not in options and "max_length" not in options:
        options |= _default_length(model.config, len(source))
    with recording() as recorded:
        output = decode(model, tensor, defaults=model.generation, tokenizer=opened.target, **options)
    row = output.ids[0, : int(output.lengths[0])].tolist()
    begin = 1 if has_encoder else len(source)  # after the start token, or after the prompt
    return source, [tensor] if has_encoder else [], row, begin, recorded


def _given(opened: OpenedModel, text: Any, request: Request) -> tuple[list[str], list[Tensor], list[int], int]:
    """Returns the tokens of the source or prompt, an encoder's input, the ids of the row that ends in the target, and
    where the target begins.

    Raises ``HeedfulError`` for a row that the model has no positions for; its last token is predicted and not read.
    """
    config = opened.model.config
    assert request.target is not None
    if isinstance(config, EncoderDecoderConfig):
        _, source, tensor = source_of(opened, text)
        target, _ = target_of(opened, tensor, request)
        inputs, row, begin = [tensor], [start_of(config), *target], 1
    else:
        row, begin = continued(opened, text, request.target)
        source, inputs = pieces_of(opened.source, row[:begin]), []
    check_fits(opened, "decoder", len(row) - 1, "the target" if begin == 1 else "the text")
    return source, inputs, row, begin


def _stacked(recorded: Sequence[Tensor], steps: int, length: int, name: str) -> Array:
    """Returns the maps of all layers (L, H, M, S); in self-attention with a column for the last token, no key yet."""
    maps = torch.stack([pattern[0, :, :steps] for pattern in recorded]).float().cpu()
    if name == "self-attention" and maps.size(-1) < length:
        maps = F.pad(maps, (0, length - maps.size(-1)))
    return maps.numpy()


def _default_length(config: Any, length: int) -> dict[str, int]:
    """Returns the default ``max_new_tokens`` of a decoder, within its positions."""
    if not isinstance(config, DecoderConfig):
        return {}
    scheme = config.decoder.position
    room = scheme.length + 1 - length if isinstance(scheme, LearnedPosition) else DEFAULT_NEW_TOKENS
    return {"max_new_tokens": max(1, min(DEFAULT_NEW_TOKENS, room))}


@torch.no_grad()
def _probabilities(opened: OpenedModel, inputs: Sequence[Tensor], row: list[int], begin: int) -> Tensor:
    """Returns the probabilities (M, V) at each step of ``row``, whose tokens from ``begin`` on were generated, after an
    encoder's ``inputs``.
    """
    model = opened.model
    stream = model.hidden(*inputs, row_of(opened, row[:-1]))  # type: ignore[operator]  # every model's
    logits: Tensor = model.head(stream[:, begin - 1 :])[0]
    return logits.float().softmax(-1).cpu()


def _svg(steps: GenerationSteps, title: str) -> str:
    """Returns a figure of the probability of each generated token."""
    return figures.saliency(
        list(steps.generated), list(steps.chosen), f"{title} · probability of each token", note=steps.note
    )
