"""Models that ``torch.export`` can trace: the same outputs, without operations that depend on the sizes of inputs.

Fused attention compares two lengths; the plan "export" computes attention without this comparison. A table of
sinusoidal positions grows while the model runs, which a graph cannot do; so it is
extended to ``SINES`` positions before tracing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heedful.config import (
    EncoderConfig,
    EncoderDecoderConfig,
    EnsembleConfig,
    Head,
    LearnedPosition,
    ModelConfig,
    NoHead,
    PooledHead,
    SinusoidalPosition,
    StackConfig,
    VisionConfig,
    patches_of,
)
from heedful.kernels.plan import Plan, apply_plan
from heedful.layers.position import Sinusoidal
from heedful.models import Ensemble, Model

SINES = 4096  # positions in the table of sines of a graph
OUTPUTS: dict[type[Head], str] = {NoHead: "last_hidden_state", PooledHead: "sentence_embedding"}  # else "logits"


class Traceable(nn.Module):
    """Model whose ``forward`` takes the named inputs of an exported graph; masks are integers, 0 for padding.

    Args:
        model: the model, which is changed to this plan.
        plan: kernels that the tracer can follow.
    """

    def __init__(self, model: Model, plan: str | Plan = "export") -> None:
        super().__init__()
        self.model = apply_plan(model.eval(), plan)
        for part in model.modules():
            if isinstance(part, Sinusoidal):
                part.extend(SINES)


class TraceableText(Traceable):
    """Traceable encoder or decoder."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Returns the output of the head for ids (B, T), such as logits (B, T, V)."""
        more = () if token_type_ids is None else (token_type_ids,)
        return self.model(input_ids, attention_mask.bool(), *more)


class TraceableImages(Traceable):
    """Traceable vision model."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Returns the output of the head, such as class logits (B, labels), for pixels (B, C, H, W)."""
        return self.model(pixel_values)


class TraceableCaptioner(Traceable):
    """Traceable encoder-decoder of images without a cache: maps an image and a whole target to the target's logits."""

    def forward(self, pixel_values: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Returns the output of the head for each token of the target, such as logits (B, U, V), for pixels
        (B, C, H, W) and the target's input ids (B, U), start token included.
        """
        return self.model(pixel_values, decoder_input_ids)


class TraceableEncoderDecoder(Traceable):
    """Traceable encoder-decoder without a cache: maps a source and a whole target to the logits of the target."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Returns the output of the head for each token of the target, such as logits (B, U, V).

        Args:
            input_ids: ids of the source, (B, T).
            attention_mask: 1 for a non-padding token of the source, (B, T).
            decoder_input_ids: input ids of the target, (B, U), start token included.
        """
        return self.model(input_ids, decoder_input_ids, attention_mask.bool())


class TraceableEnsemble(Traceable):
    """Traceable ensemble: maps what each member reads to the logits of the mean probabilities."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns the logits (B, labels).

        ``inputs`` are the inputs of the first member, those of the second, and so on: ids (B, T_i), masks, which are 1
        for a token, and segment ids if the members have them.
        """
        each = len(inputs) // len(_members(self.model))
        parts = [inputs[start : start + each] for start in range(0, len(inputs), each)]
        return self.model([(ids, mask.bool(), *more) for ids, mask, *more in parts])


def traceable(model: Model, plan: str | Plan = "export") -> Traceable:
    """Returns a model without a cache as a module to trace."""
    if isinstance(model.config, EnsembleConfig):
        return TraceableEnsemble(model, plan)
    if isinstance(model.config, VisionConfig):
        return TraceableImages(model, plan)
    if isinstance(model.config, EncoderDecoderConfig):
        has_text = patches_of(model.config) is None
        return (TraceableEncoderDecoder if has_text else TraceableCaptioner)(model, plan)
    return TraceableText(model, plan)


def _members(model: Model) -> Sequence[Model]:
    assert isinstance(model, Ensemble)
    return [member for member in model.members if isinstance(member, Model)]


def input_names(config: ModelConfig) -> tuple[str, ...]:
    """Returns the names of the inputs of a model's exported graph, in order; of an ensemble with a member's number."""
    if isinstance(config, EnsembleConfig):
        return tuple(f"{name}_{i}" for i, member in enumerate(config.members) for name in input_names(member))
    if isinstance(config, VisionConfig):
        return ("pixel_values",)
    if isinstance(config, EncoderDecoderConfig):
        source = ("input_ids", "attention_mask") if patches_of(config) is None else ("pixel_values",)
        return (*source, "decoder_input_ids")
    segments = isinstance(config, EncoderConfig) and config.segments > 0
    return ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))


def output_name(config: ModelConfig) -> str:
    """Returns the name of the output of a model's exported graph."""
    return OUTPUTS.get(type(config.head), "logits")


def position_limit(stack: StackConfig) -> int | None:
    """Returns the maximum number of tokens that a traced stack accepts; None is no limit."""
    if isinstance(stack.position, LearnedPosition):
        return stack.position.length
    return SINES if isinstance(stack.position, SinusoidalPosition) else None


def axis_limits(config: ModelConfig) -> dict[str, int | None]:
    """Returns the maximum length of each token axis of a traced model, by the axis's name; None is no limit."""
    if isinstance(config, EnsembleConfig):
        return {f"length_{i}": position_limit(member.encoder) for i, member in enumerate(config.members)}
    if isinstance(config, EncoderDecoderConfig):
        return {"length": position_limit(config.encoder), "decoder_length": position_limit(config.decoder)}
    return {"length": position_limit(getattr(config, "encoder", None) or getattr(config, "decoder"))}  # noqa: B009  # by kind


def example_inputs(names: tuple[str, ...], model: Model) -> dict[str, Tensor]:
    """Returns example inputs by name, to trace a model with: unequal sizes, and padding on both sides."""
    if isinstance(model.config, EnsembleConfig):
        found = {}
        for number, member in enumerate(_members(model)):  # of different lengths: the tracer takes equal ones for one
            own = [name.removesuffix(f"_{number}") for name in names if name.endswith(f"_{number}")]
            for name, tensor in example_inputs(tuple(own), member).items():
                found[f"{name}_{number}"] = nn.functional.pad(tensor, (0, number))
        return found
    ids = torch.ones(3, 7, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    inputs["decoder_input_ids"] = torch.ones(3, 5, dtype=torch.long)
    if (patches := patches_of(model.config)) is not None:
        inputs["pixel_values"] = torch.zeros(3, patches.channels, *patches.image_size, dtype=model.dtype)
    return {name: inputs[name] for name in names}
