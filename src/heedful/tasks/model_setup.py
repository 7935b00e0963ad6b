"""Models of tasks: presets with the settings' changes, folders with a new head, and checks that model and task fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from heedful import presets
from heedful.config import (
    Config,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EnsembleConfig,
    ExpertsConfig,
    ImageHead,
    LearnedPosition,
    ModelConfig,
    NoHead,
    RotaryPosition,
    SequenceHead,
    StackConfig,
    TokenHead,
    VisionConfig,
    patches_of,
    with_head,
)
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.models.create import create
from heedful.models.initial_weights import initialise
from heedful.pretrained import load
from heedful.pretrained.configuration import config_of, home
from heedful.pretrained.fill_model import align_weights, build_head
from heedful.settings import ModelSettings, RunSettings
from heedful.text import Tokenizer
from heedful.util.random_state import seeded

if TYPE_CHECKING:
    from heedful.tasks.task import Task

FAMILIES: dict[type[Config], str] = {
    EncoderConfig: "an encoder",
    DecoderConfig: "a decoder",
    EncoderDecoderConfig: "an encoder-decoder",
    VisionConfig: "a vision model",
}
C = TypeVar("C", EncoderConfig, DecoderConfig, EncoderDecoderConfig, VisionConfig)
M = TypeVar("M", bound=Model)


def new_model(task: Task, settings: RunSettings) -> Model:
    """Returns the model of a run with newly initialised weights."""
    model = create(task.model_config(settings), seed=settings.seed)
    task.initialise(model, settings)
    return model


def fresh_model(task: Task, settings: RunSettings, device: torch.device) -> Model:
    """Returns the model of a run with newly initialised weights, ready for training."""
    model = new_model(task, settings)
    task.before_training(model, settings)
    align_weights(model.to(device))
    return model


def preset_of(name: str, family: type[C], task: str) -> C:
    """Returns the configuration of a preset; raises ``HeedfulError`` if it is not of the ``family`` that ``task``
    needs.
    """
    config = presets.get(name)
    if not isinstance(config, family):
        raise HeedfulError(
            f"preset {name!r} is of the {config.kind} family; {task} needs {FAMILIES[family]}; choose another preset "
            "(heedful presets lists them)"
        )
    return config


OWN_NAMES = ("heads", "kv_heads", "activation", "norm", "position", "attention", "feed_forward", "block")  # of a stack


def with_settings(stack: StackConfig, model: ModelSettings, depth: int | None) -> StackConfig:
    """Returns a stack's configuration with the changes in the settings, and ``depth`` blocks if it is given.

    If the width changes, the feed-forward width changes by the same ratio. A window is that of a causal stack.
    """
    given = {name: value for name, value in model.given().items() if name in OWN_NAMES}
    if model.window is not None and stack.causal:
        given["window"] = tuple(int(number) or None for number in model.window)
    given["experts"] = _experts(stack.experts, model)
    dim = model.dim or stack.dim
    dropout = stack.dropout
    if model.dropout is not None:
        dropout = DropoutRates(embedding=model.dropout, residual=model.dropout)
    return replace(
        stack,
        dim=dim,
        depth=depth or model.depth or stack.depth,
        ff_dim=model.ff_dim or (stack.ff_dim or 4 * stack.dim) * dim // stack.dim,
        dropout=dropout,
        **given,
    )


def _experts(experts: ExpertsConfig | None, model: ModelSettings) -> ExpertsConfig | None:
    """Returns the experts of a stack that has ``experts`` or None, with the changes in the settings."""
    if experts is None and model.experts is None:
        name = next((name for name in ("experts_per_token", "balance") if getattr(model, name) is not None), None)
        if name is not None:
            option = name.replace("_", "-")
            raise HeedfulError(f"--model.{option} is given for a model without experts; give --model.experts too")
        return None
    names = {"experts": "number", "experts_per_token": "per_token", "balance": "balance"}
    given = {ours: getattr(model, name) for name, ours in names.items() if getattr(model, name) is not None}
    return replace(experts or ExpertsConfig(), **given)


def with_positions(stack: StackConfig, length: int) -> StackConfig:
    """Returns the configuration of a new stack with ``length`` learned or rotary positions; others have no length.

    Scaled rotary positions keep theirs, for which their scaling was made.
    """
    is_scaled = isinstance(stack.position, RotaryPosition) and stack.position.scaling != "default"
    if is_scaled or not isinstance(stack.position, LearnedPosition | RotaryPosition):
        return stack
    return replace(stack, position=replace(stack.position, length=length))


def stacks_of(config: ModelConfig) -> list[StackConfig]:
    """Returns the stacks of a model's configuration: one; encoder and decoder; of an ensemble those of its members."""
    if isinstance(config, EnsembleConfig):
        return [stack for member in config.members for stack in stacks_of(member)]
    return [stack for stack in vars(config).values() if isinstance(stack, StackConfig)]


def positions_of(config: ModelConfig) -> int | None:
    """Returns the maximum number of tokens of a text; None if the model's position schemes have no limit."""
    reads_images = patches_of(config) is not None
    stacks = stacks_of(config)[1:] if reads_images else stacks_of(config)  # those of the first are of patches
    schemes = (stack.position for stack in stacks)
    limited = (scheme for scheme in schemes if isinstance(scheme, LearnedPosition | RotaryPosition))
    return min((scheme.length for scheme in limited), default=None)


def model_of(family: type[M], model: nn.Module, task: str) -> M:
    """Returns the model; raises ``HeedfulError`` for a model of another family, and for a wrapper around a model."""
    if not isinstance(model, family):
        raise HeedfulError(
            f"{task} needs a model of class {family.__name__}, not {type(model).__name__}; choose another model, or "
            "pass the model itself instead of a wrapper around it"
        )
    return model


def checked_folder(task: str, folder: Path, images: bool = False) -> Path:
    """Returns a model folder; raises ``HeedfulError`` if its model does not read text (with ``images``: images)."""
    config = config_of(folder)
    if isinstance(config, VisionConfig) != images:
        needed = "a vision model" if images else "a model of text"
        raise HeedfulError(
            f"{task} needs {needed}; the model in {folder} is of kind {config.kind!r}; choose another model"
        )
    return folder


def tokenizer_of(folder: Path) -> Tokenizer:
    """Loads the tokenizer of a model's folder; for an adapter without a tokenizer, the tokenizer of its base model."""
    return Tokenizer.load(folder if Tokenizer.has_files(folder) else home(folder))


def check_vocabulary(tokenizer: Tokenizer, embedding: EmbeddingConfig, name: str = "tokenizer") -> None:
    """Raises ``HeedfulError`` if the embedding has fewer rows than the tokenizer has tokens; more rows are allowed."""
    if tokenizer.vocab_size > embedding.vocab_size:
        raise HeedfulError(
            f"the {name} has {tokenizer.vocab_size} tokens, but the model's embedding has {embedding.vocab_size} rows; "
            "they do not belong together, so use the model's own tokenizer"
        )


def check_classifier(
    task: str, model: Model, labels: Sequence[str], head: type[SequenceHead] | type[TokenHead] | type[ImageHead]
) -> None:
    """Raises ``HeedfulError`` if the model's head is not of the class ``head`` with one output for each label."""
    model_head = model.config.head
    if not isinstance(model_head, head):
        raise HeedfulError(
            f"{task} needs a classifier, but this {model.config.kind} model has none (its head is of kind "
            f"{model_head.kind!r}); train one: heedful train {task} --from MODEL --train FILE"
        )
    if model_head.labels != len(labels):
        raise HeedfulError(
            f"the model has {model_head.labels} classes, but its folder names {len(labels)} labels; correct "
            "id2label in its config.json"
        )


def load_with_head(folder: Path, head: str | None, seed: int, labels: int | None = None) -> Model:
    """Loads the model of a folder with a head of kind ``head``: the folder's own or, if it has another, a new one.

    A new head is initialised with ``seed``. With ``labels`` the head always gets a new output layer, for that many
    labels, since even an old layer of the same size is for other labels.
    """
    with seeded(seed):
        model = load(folder, head=head, num_labels=labels, dtype="float32")
        if labels is not None:
            path = "head.output" if hasattr(model.head, "output") else "head"  # a registered head may have no such part
            output = model.get_submodule(path)
            initialise(output, model.main)
            model.fresh = sorted({*model.fresh, *(f"{path}.{name}" for name in output.state_dict())})
    return model


def replace_head(model: Model, seed: int, **changes: Any) -> None:
    """Replaces the head of a model by one whose configuration has ``changes``, initialised with ``seed``, in place.

    ``head="mine"`` is the registered head of that name.
    """
    config = model.config
    if isinstance(config.head, NoHead):
        raise HeedfulError("the model has no head to replace; leave --model.head out")
    model.config = with_head(config, replace(config.head, **changes))
    model.head = nn.Identity()
    with seeded(seed):
        head = build_head(model)
        own = {id(parameter) for parameter in model.parameters()}
        shared = {parameter: parameter.detach().clone() for parameter in head.parameters() if id(parameter) in own}
        initialise(head, model.main)
    with torch.no_grad():
        for parameter, value in shared.items():  # of the embedding, which stays as it was trained
            parameter.copy_(value)
    fresh = (f"head.{name}" for name, parameter in head.named_parameters() if parameter not in shared)
    model.head = head.to(model.device)
    model.fresh = sorted({*(name for name in model.fresh if not name.startswith("head.")), *fresh})


def special_id(special: int | None) -> int:
    """Returns the id of a start or end token unchanged; raises ``HeedfulError`` if it is None."""
    if special is None:
        raise HeedfulError(
            "the tokenizer has no start or end token; set bos_token and eos_token in its tokenizer_config.json"
        )
    return special


def start_of(config: EncoderDecoderConfig) -> int:
    """Returns the id of the token that the decoder reads first; raises ``HeedfulError`` if the model has none."""
    if config.special.start is None:
        raise HeedfulError(
            "the model has no start token for its decoder; set decoder_start_token_id in its config.json"
        )
    return config.special.start
