"""A model that can be traced: the same outputs, without operations that a tracer cannot follow.

The fused attention asks whether two lengths are equal: the plan "export" computes attention in another way. A table of
sines grows while the model runs, which a graph cannot do: it is extended before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.config import (
    EncoderDecoderConfig,
    LearnedPosition,
    ModelConfig,
    SinusoidalPosition,
    StackConfig,
    VisionConfig,
)
from heedful.kernels.plan import apply_plan
from heedful.layers.position import Sinusoidal
from heedful.models import Model

SINES = 4096  # positions of a table of sines, which a graph cannot extend


class Traceable(nn.Module):
    """The model as a function of the named tensors of a graph: masks come as whole numbers, 1 for a real token."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = apply_plan(model.eval(), "export")
        for part in model.modules():
            if isinstance(part, Sinusoidal):
                part.extend(SINES)


class TraceableText(Traceable):
    """An encoder or a decoder."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Returns the head's output for ids (B, T)."""
        more = () if token_type_ids is None else (token_type_ids,)
        return self.model(input_ids, attention_mask.bool(), *more)


class TraceableImages(Traceable):
    """A vision model."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Returns the head's output for pixels (B, C, H, W)."""
        return self.model(pixel_values)


class TraceablePair(Traceable):
    """An encoder-decoder: both sides in one call, nothing remembered."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Returns the head's output for the target (B, U) given the source (B, T)."""
        return self.model(input_ids, decoder_input_ids, attention_mask.bool())


def longest(stack: StackConfig) -> int | None:
    """Returns the number of tokens a traced stack can take; None: any number."""
    if isinstance(stack.position, LearnedPosition):
        return stack.position.length
    return SINES if isinstance(stack.position, SinusoidalPosition) else None


def lengths(config: ModelConfig) -> dict[str, int | None]:
    """For each axis of tokens, how long it may be."""
    if isinstance(config, EncoderDecoderConfig):
        return {"length": longest(config.encoder), "decoder_length": longest(config.decoder)}
    return {"length": longest(getattr(config, "encoder", None) or getattr(config, "decoder"))}  # noqa: B009  # by kind


def example(names: tuple[str, ...], model: Model) -> dict[str, Tensor]:
    """Tensors to trace with: sizes that no axis of the model's own has to share, and padding on both sides."""
    ids = torch.ones(3, 7, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    made["decoder_input_ids"] = torch.ones(3, 5, dtype=torch.long)
    if "pixel_values" in names:
        assert isinstance(model.config, VisionConfig)
        patches = model.config.patches
        made["pixel_values"] = torch.zeros(3, patches.channels, *patches.image_size, dtype=model.dtype)
    return {name: made[name] for name in names}
