"""Creates a model from a preset's name or a configuration, with a chosen head."""

from __future__ import annotations

from dataclasses import replace

from heedful import presets
from heedful.config import (
    DecoderConfig,
    EncoderConfig,
    Head,
    ImageHead,
    LanguageHead,
    MaskedHead,
    ModelConfig,
    NoHead,
    PooledHead,
    SequenceHead,
    SpanHead,
    TokenHead,
    VisionConfig,
    with_head,
)
from heedful.errors import HeedfulError, nearest
from heedful.models import Model, build
from heedful.util.random_state import seeded

HEADS: dict[str, type[Head]] = {
    "none": NoHead,
    "language-model": LanguageHead,
    "masked-language-model": MaskedHead,
    "sequence": SequenceHead,
    "token": TokenHead,
    "span": SpanHead,
    "pooled": PooledHead,
    "image": ImageHead,
}
NAMES = {head.kind: name for name, head in HEADS.items()}  # by the kind that a configuration stores


def head_name(name: str) -> str:
    """Returns the name in ``HEADS`` of a head that is written in any case, with dashes or underscores.

    Raises ``HeedfulError`` for an unknown name.
    """
    plain = name.lower().replace("_", "-")
    if plain not in HEADS:
        raise HeedfulError(f"unknown head {name!r}; {nearest(plain, HEADS)}")
    return plain


def head_config(config: ModelConfig, head: str | None, num_labels: int | None = None) -> Head:
    """Returns the configuration of the head named ``head``, with ``num_labels`` classes; None is the model's own head.

    A sequence head pools as is usual in the family: a decoder uses the last token, an encoder its class token, passed
    through the pooler if the configuration has one. An image head reads the mean of the patches too if the model was
    trained on masked patches, as DINOv2.
    """
    chosen = config.head
    if head is not None:
        chosen = HEADS[head_name(head)]()
        if isinstance(chosen, SequenceHead):
            if isinstance(config, DecoderConfig):
                chosen = replace(chosen, pooling="last", pooler=False, bias=False, dropout=0.0)
            else:
                has_pooler = isinstance(config, EncoderConfig) and config.head == NoHead(pooler=True)
                class_token = config.class_token if isinstance(config, EncoderConfig) else "first"
                chosen = replace(chosen, pooler=has_pooler, pooling=class_token)
        if isinstance(chosen, ImageHead) and isinstance(config, VisionConfig) and config.patches.mask_token:
            chosen = replace(chosen, tokens="class+mean")
    if num_labels is None:
        return chosen
    if not isinstance(chosen, SequenceHead | TokenHead | ImageHead):
        raise HeedfulError(
            f"num_labels={num_labels}, but a {chosen.kind!r} head has no labels; give head='sequence', 'token' or "
            "'image'"
        )
    return replace(chosen, labels=num_labels)


def create(
    name: str | ModelConfig, head: str | None = None, num_labels: int | None = None, seed: int | None = None
) -> Model:
    """Returns a model with newly initialised weights.

    Args:
        name: a preset's name (``heedful presets`` lists them) or a configuration.
        head: "none", "language-model", "masked-language-model", "sequence", "token", "span", "pooled", "image";
            None is the head of the published model.
        num_labels: classes of a sequence, token or image head.
        seed: makes the weights repeatable, and leaves torch's own random states, those of GPUs too, untouched; None
            draws from the CPU's state.

    >>> import heedful
    >>> heedful.create("vit-micro", num_labels=3, seed=0).num_parameters()
    204611
    """
    config = presets.get(name) if isinstance(name, str) else name
    if (chosen := head_config(config, head, num_labels)) != config.head:
        config = with_head(config, chosen)
    if seed is None:
        return build(config)
    with seeded(seed):
        return build(config)
