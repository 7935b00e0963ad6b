"""The table of views: the models that each supports, its options and inputs. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heedful.config import (
    ContentPosition,
    DecoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    MaskedHead,
    ModelConfig,
    NoPosition,
    SequenceHead,
    SpanHead,
    StackConfig,
    patches_of,
)

# --------------------------------------------------------------------------------------------------- kinds of models


def stack_names(config: ModelConfig) -> dict[str, StackConfig]:
    """Returns the stacks of a model by name, the encoder first."""
    return {name: stack for name, stack in vars(config).items() if isinstance(stack, StackConfig)}


def generates_text(config: ModelConfig) -> bool:
    """Returns True if the model generates text."""
    return isinstance(config, DecoderConfig | EncoderDecoderConfig) and isinstance(config.head, LanguageHead)


def predicts_tokens(config: ModelConfig) -> bool:
    """Returns True if the model's head predicts a token at each position."""
    return isinstance(config.head, MaskedHead) or generates_text(config)  # a content stream knows its own tokens


def has_target(config: ModelConfig) -> bool:
    """Returns True if the model reads a source, which is a text or an image, and a target text (an encoder-decoder)."""
    return isinstance(config, EncoderDecoderConfig) and not isinstance(config.head, SequenceHead)


def classifies(config: ModelConfig) -> bool:
    """Returns True if the model predicts a class."""
    return isinstance(config.head, SequenceHead | ImageHead)


def reads_images(config: ModelConfig) -> bool:
    """Returns True if the model's inputs are images."""
    return patches_of(config) is not None


def reads_text(config: ModelConfig) -> bool:
    """Returns True if the model's inputs are texts."""
    return not reads_images(config)


def _generates_from_text(config: ModelConfig) -> bool:
    return generates_text(config) and reads_text(config)


def _explains(config: ModelConfig) -> bool:
    return _generates_from_text(config) or classifies(config) or isinstance(config.head, MaskedHead | SpanHead)


def _has_experts(config: ModelConfig) -> bool:
    return reads_text(config) and any(stack.experts is not None for stack in stack_names(config).values())


def _has_positions(config: ModelConfig) -> bool:
    return not all(isinstance(stack.position, NoPosition | ContentPosition) for stack in stack_names(config).values())


# ------------------------------------------------------------------------------------------------------------ the views


@dataclass(frozen=True, kw_only=True)
class View:
    """View of ``heedful inspect``: its function, the models that it supports, its options and number of inputs.

    Attributes:
        home: "module:function" of the function ``(OpenedModel, Request) -> InspectionResult`` that makes the view.
        shows: description in a few words.
        has: returns True for the configuration of a supported model.
        whose: the supported models, in words.
        takes: the options that have an effect on the view.
        least, most: minimum and maximum number of inputs; None is no limit.
    """

    home: str
    shows: str
    has: Callable[[ModelConfig], bool]
    whose: str
    takes: frozenset[str] = frozenset()
    least: int = 1
    most: int | None = 1


OPTIONS = ("target", "layers", "heads", "queries", "keys", "decoding")
_MAPS = frozenset(OPTIONS)


def _attention(shows: str) -> View:
    return View(
        home="heedful.views.inspect.attention_view:look",
        shows=shows,
        has=lambda c: True,
        whose="any model",
        takes=_MAPS,
    )


VIEWS: dict[str, View] = {
    "heads": _attention("who attends to whom, as lines"),
    "model": _attention("every layer and head at a glance"),
    "matrix": _attention("one head as a heat map"),
    "steps": View(
        home="heedful.views.inspect.steps_view:look",
        shows="generated text token by token",
        has=generates_text,
        whose="models that write text",
        takes=frozenset({"target", "layers", "heads", "decoding"}),
    ),
    "lens": View(
        home="heedful.views.inspect.lens_view:look",
        shows="the predictions of every layer",
        has=predicts_tokens,
        whose="models that write text or fill masks",
        takes=frozenset({"target", "layers", "queries", "decoding"}),
    ),
    "experts": View(
        home="heedful.views.inspect.experts_view:look",
        shows="which experts of a mixture computed each token",
        has=_has_experts,
        whose="models of text with a mixture of experts",
        takes=frozenset({"target", "layers", "queries", "decoding"}),
    ),
    "image": View(
        home="heedful.views.inspect.image_view:look",
        shows="an image's patches and the attention to them",
        has=lambda config: reads_images(config) and isinstance(config.head, ImageHead),
        whose="image classifiers",
        takes=frozenset({"layers", "heads"}),
    ),
    "words": View(
        home="heedful.views.inspect.words_view:look",
        shows="the patches to which each written word attends",
        has=lambda config: reads_images(config) and generates_text(config),
        whose="models that write a text about an image",
        takes=frozenset({"target", "layers", "heads", "decoding"}),
    ),
    "gradient": View(
        home="heedful.views.inspect.gradient_views:look_at_gradient",
        shows="how much each part of the input contributes to the prediction",
        has=_explains,
        whose="models that write from a text, label whole texts or images, fill masks or find answers",
        takes=frozenset({"target", "decoding"}),
    ),
    "embeddings": View(
        home="heedful.views.inspect.vector_views:look_at_embeddings",
        shows="the tokens' embeddings and their neighbours",
        has=reads_text,
        whose="models of text",
    ),
    "similarity": View(
        home="heedful.views.inspect.vector_views:look_at_similarity",
        shows="how similar several inputs are to the model",
        has=lambda config: True,
        whose="any model",
        least=2,
        most=None,
    ),
    "positions": View(
        home="heedful.views.inspect.vector_views:look_at_positions",
        shows="how similar the positions are",
        has=_has_positions,
        whose="models with positions",
        least=0,
        most=0,
    ),
    "filters": View(
        home="heedful.views.inspect.vector_views:look_at_filters",
        shows="the filters of the patch projection",
        has=reads_images,
        whose="models of images",
        least=0,
        most=0,
    ),
    "importance": View(
        home="heedful.views.inspect.gradient_views:look_at_importance",
        shows="how much the loss depends on each head",
        has=lambda config: _generates_from_text(config) or classifies(config),
        whose="models that write from a text, or label whole texts or images",
        takes=frozenset({"target", "decoding"}),
        most=None,
    ),
}
