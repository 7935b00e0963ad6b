"""Base class of the four families: configuration, initialisation, parameter count, saving and generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from heedful.config import ModelConfig, StackConfig
from heedful.errors import HeedfulError
from heedful.heads import checked_output
from heedful.models.initial_weights import initialise
from heedful.stack import ALL_TOKENS

if TYPE_CHECKING:
    from typing import Unpack

    from heedful.settings.typed_dicts import GenerateOptions


def device_of(name: str | torch.device | None) -> torch.device:
    """Returns the device called ``name``; None is the best available: cuda, mps or cpu.

    Raises ``HeedfulError`` for a device that cannot be used here.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"device {str(name)!r} cannot be used here ({reason}); leave it out, or use 'cpu'") from None


def parameter_count(module: nn.Module, trainable_only: bool = False) -> int:
    """Returns the number of parameters of any module, or of those that require a gradient; shared ones count once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)


OWN = ("observers", "compiling", "decoding_copy")  # attributes of one object, which are neither copied nor pickled
TRANSFORMERS_ARGUMENTS = {  # arguments of transformers' models, and what a user of ours does in their place
    "input_ids": "pass the ids first: model(ids, mask)",
    "attention_mask": "pass it as mask: True or 1 for tokens, False or 0 for padding",
    "token_type_ids": "pass them as segments",
    "decoder_input_ids": "pass them as target: model(source, target, source_mask, target_mask)",
    "decoder_attention_mask": "pass it as target_mask",
    "pixel_values": "pass the pixels first: model(pixels)",
    "labels": "compute the loss from the output: F.cross_entropy(model(ids, mask).flatten(0, 1), labels.flatten())",
    "past_key_values": "use model.generate, or a cache: heedful.cache",
    "mems": "read a text in parts with a cache: model.hidden(part, cache=heedful.cache.Cache(depth))",
    "perm_mask": "use model.query_hidden, whose visible is True where a token may attend",
    "target_mapping": "use model.query_hidden, whose targets are positions",
    "output_attentions": 'record them: with heedful.record(model, "pattern") as recorded: model(ids)',
    "output_hidden_states": 'record them: with heedful.record(model, "stream") as recorded: model(ids)',
    "return_dict": "leave it out: a model returns one tensor",
}


@dataclass(slots=True)
class ModelFolder:
    """Facts about the folder that a model was read from, which ``save_pretrained`` uses; empty for a new model."""

    source: str = ""  # the folder's whole path, or the Hub's "org/name@revision"
    layout: str = ""  # model type of the folder; the model is written in its layout if that can express it
    config: Mapping[str, Any] = field(default_factory=dict)  # its config.json; unknown keys are saved again
    ids: Mapping[str, Any] = field(default_factory=dict)  # token ids in its generation_config.json
    fused: Sequence[Sequence[str]] = ()  # paths of linear maps that the layout stores as one
    classifier: Sequence[str] = ()  # parameters of a head of classes or spans: an adapter trains and stores them whole


class Model(nn.Module):
    """A model of any family: embedding → stack → head.

    Each family defines ``hidden``, the final hidden states (B, T, D); a call returns one tensor, the head's output for
    them.
    """

    config: ModelConfig
    head: nn.Module
    main: StackConfig  # of the encoder, or of a decoder without one; initialises the weights outside stacks too
    # what the model is for, as its folder or the task that trained it says
    labels: Sequence[str] = ()  # names of the head's classes
    multi_label: bool = False  # True if an input may have several classes, or none
    regression: bool = False  # True if the head's only output is a number, not the score of a class
    generation: Mapping[str, Any] = MappingProxyType({})  # defaults of ``generate``, which a caller's options override
    fresh: Sequence[str] = ()  # names of a loaded model's parameters that were drawn anew: an untrained head
    folder: ModelFolder  # where the weights were read from, and what writing the model again needs
    # what was done to it since it was made: kernels, quantization, an adapter, recording
    observers: Sequence[Any] = ()  # called at each step of a generation: see heedful.inspection.record
    kernels: str = "auto"  # name of the plan of kernels that was applied (heedful.kernels.plan); "auto": none
    optimised: str = ""  # by ``heedful.optimize``: type of the weights, such as "int8"; "": not optimised
    prepacked: int = 0  # number of parameters replaced by prepacked weights
    compiling: Any = None  # compiled kernels that are being made (``heedful.optimize``); None: none
    decoding_copy: Any = None  # optimised, for ``generate`` (``heedful.generation.decoding_copy``); None: none
    on_copy: Callable[[Model], None] | None = None  # called with a copied or unpickled model (``heedful.optimize``)
    captured: Any = None  # steps of decoding as CUDA graphs (``heedful.kernels.captured``); None: never captured
    adapter: object | None = None  # its adapter (``heedful.adapters``), beside the weights of ``folder.source``

    def __init__(self) -> None:
        super().__init__()
        self.folder = ModelFolder()

    def __call__(self, *args: Any, **named: Any) -> Tensor:
        """Calls ``forward``. Raises ``HeedfulError`` for an argument of transformers' models, with its name here."""
        for name in named:
            if name in TRANSFORMERS_ARGUMENTS:
                raise HeedfulError(f"a model has no argument {name!r}; {TRANSFORMERS_ARGUMENTS[name]}")
        output: Tensor = super().__call__(*args, **named)
        return output

    def initialise_weights(self) -> None:
        """Initialises all weights by ``heedful.models.initialise``; does nothing on the meta device."""
        if self.device.type != "meta":
            initialise(self, self.main)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to copy and pickle, without what is of this object alone (``OWN``)."""
        return {name: value for name, value in self.__dict__.items() if name not in OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.on_copy is not None:
            self.on_copy(self)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def tokens_read(self) -> slice:
        """Slice of a sequence's non-padding tokens that the head reads; all by default."""
        return getattr(self.head, "tokens_read", ALL_TOKENS)

    def output(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the output of the head for the final hidden states (B, T, D); ``mask`` is that of their tokens."""
        return checked_output(self.head, hidden, self.head(hidden, mask))

    def num_parameters(self, trainable_only: bool = False) -> int:
        """Returns the number of parameters: tied parameters count once, buffers not at all.

        Parameters that ``heedful.optimize`` replaced by prepacked weights count as before, although they are no longer
        parameters. With ``trainable_only`` those alone count that require a gradient: of a model with an adapter the
        adapter's, of an optimised model none.

        >>> import heedful
        >>> from heedful.adapters import LoraConfig, add_adapter
        >>> model = heedful.create("bert-tiny", seed=0)
        >>> model.num_parameters()
        4385920
        >>> add_adapter(model, LoraConfig(rank=4)).num_parameters(trainable_only=True)
        4096
        """
        return parameter_count(self, trainable_only) + (0 if trainable_only else self.prepacked)

    def check_not_optimised(self, purpose: str) -> None:
        """Raises ``HeedfulError`` if the model is optimised for inference.

        ``purpose`` ends the message: what needs a model that is not, such as "train an adapter".
        """
        if self.optimised:
            raise HeedfulError(
                f"the model was optimised for inference, in {self.optimised}; to {purpose}, load it again with "
                "heedful.from_pretrained"
            )

    def extra_repr(self) -> str:
        """Returns the name of the plan of kernels for ``repr``, and what is compiled or captured."""
        kernels = [] if self.kernels == "auto" else [f"kernels={self.kernels!r}"]
        kernels += [] if self.compiling is None else [f"compiling={self.compiling!r}"]
        copied = getattr(self.decoding_copy, "model", None)
        kernels += [] if copied is None else [f"decoding_copy={copied.kernels!r}"]
        return ", ".join(kernels if self.captured is None else [*kernels, f"captured={self.captured!r}"])

    def begin_call(self) -> bool:
        """Uses the compiled kernels if they have been made since the last call; returns True if it did just now."""
        compiling = self.compiling  # another thread may be first
        return compiling is not None and bool(compiling.finish(self))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Model:
        if self.captured is not None:  # a graph reads the weights where they were
            self.captured.clear()
        super()._apply(fn, recurse)
        return self

    def generate(self, ids: Tensor, mask: Tensor | None = None, **options: Unpack[GenerateOptions]) -> Tensor:
        """Generates the token ids that follow ``ids`` (B, T): see ``heedful.generation.generate``."""
        from heedful.generation import DecodingCopy, generate

        self.begin_call()
        self.decoding_copy = decoding_copy = self.decoding_copy or DecodingCopy()
        model = decoding_copy.of(self, options.get("max_new_tokens", 20))
        return generate(model, ids, mask, defaults=self.generation, **options)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of all parts; in training mode no optimised copy is kept."""
        if mode:
            self.decoding_copy = None
        return super().train(mode)

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, **options: Any) -> Self:
        """Loads a model of this family from a folder or a Hub id: see ``heedful.from_pretrained``.

        Raises ``HeedfulError`` for a model of another family.
        """
        from heedful.pretrained import load

        model = load(folder_or_id, **options)
        if not isinstance(model, cls):
            kind = type(model).__name__
            raise HeedfulError(f"{folder_or_id} is no {cls.__name__}, but of the family {kind}; call heedful.{kind}")
        return model

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str = "5GB") -> None:
        """Writes the model as a folder, or only its adapter if it has one: see ``heedful.pretrained.save``."""
        from heedful.pretrained import save

        save(self, folder, max_shard_size=max_shard_size)

    def push_to_hub(self, name: str, *, private: bool = False, revision: str | None = None) -> str:
        """Uploads the model to the Hub and returns its address: see ``heedful.pretrained.push``.

        The tokenizer is not part of a model; ``push`` uploads a whole folder.
        """
        from heedful.pretrained import push

        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            return push(folder, name, private=private, revision=revision)
