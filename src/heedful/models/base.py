"""Base class of the four families: configuration, initialisation, parameter count, saving and generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import Adapter, ModelConfig, StackConfig
from heedful.errors import HeedfulError
from heedful.stack import ALL_TOKENS, initialise


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of a name; None: the best there is (cuda, then mps, then cpu). Raises ``HeedfulError`` otherwise."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"device {str(name)!r} cannot be used here ({reason}); leave it out, or take cpu") from None


class Model(nn.Module):
    """A model of any family: ``embed → stack → head``. A call returns one tensor, its head's output."""

    config: ModelConfig
    main: StackConfig  # the stack whose table fresh weights are drawn from
    labels: Sequence[str] = ()  # the names of the head's classes, where a folder told them
    multi_label: bool = False  # whether an input may have several of them, or none
    regression: bool = False  # whether the head's only output is a number, not the score of a class
    generation: Mapping[str, Any] = MappingProxyType({})  # how a folder says to generate, where the caller does not
    source_ids: Mapping[str, Any] = MappingProxyType({})  # token ids in generation_config.json of the source
    source_config: Mapping[str, Any] = MappingProxyType({})  # config.json of the source; unknown keys are saved again
    layout: str = ""  # the family whose layout the model was read from, and is written in where that can say it
    fresh: Sequence[str] = ()  # parameters of a loaded model that were drawn anew: an untrained head
    source: str = ""  # where the weights were read from: a folder's whole path, or the Hub's "org/name@revision"
    fused: Sequence[Sequence[str]] = ()  # paths of linear maps that the layout stores as one
    classifier: Sequence[str] = ()  # parameters of a head of classes or spans: an adapter trains and stores them whole
    watchers: Sequence[Any] = ()  # who is told of each step of a generation: see heedful.inspection.record
    kernels: str = "auto"  # the plan of kernels that was applied, by name: see heedful.kernels.plan
    optimised: str = ""  # type of the weights, "int8", ..., of a model optimised for inference (``heedful.optimize``)
    prepacked: int = 0  # number of parameters replaced by prepacked weights
    adapter: Adapter | None = None  # see heedful.adapters; the other weights are then those of ``source``

    def begin(self) -> None:
        """Draw all weights anew (see ``heedful.stack.initialise``); on the meta device there is nothing to draw."""
        if self.device.type != "meta":
            initialise(self, self.main)

    def __getstate__(self) -> dict[str, Any]:
        """State to copy and pickle: everything except observers."""
        return {name: value for name, value in self.__dict__.items() if name != "watchers"}

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.parameters()).dtype

    @property
    def tokens_read(self) -> slice:
        """The real tokens of a sequence that the head reads: all, where it does not say."""
        return getattr(self.head, "tokens_read", ALL_TOKENS)

    def count(self) -> int:
        """The number of parameters: ties once, no buffers."""
        return sum(p.numel() for p in self.parameters()) + self.prepacked

    def whole(self, purpose: str) -> None:
        """Raises where the weights are prepacked, and so cannot serve ``purpose``."""
        if self.optimised:
            raise HeedfulError(
                f"the model was optimised for inference, in {self.optimised}; to {purpose}, load it anew with "
                "heedful.from_pretrained"
            )

    def extra_repr(self) -> str:
        """The plan of kernels, where one was applied."""
        return "" if self.kernels == "auto" else f"kernels={self.kernels!r}"

    def generate(self, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Token ids that follow ``ids`` (B, T): see ``heedful.generation.generate``."""
        from heedful.generation import generate

        return generate(self, ids, mask, defaults=self.generation, **options)

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str = "5GB") -> None:
        """Write the model as a folder, or of a model with an adapter that alone: see ``heedful.pretrained.save``."""
        from heedful.pretrained import save

        save(self, folder, max_shard_size=max_shard_size)

    def push_to_hub(self, name: str, *, private: bool = False, revision: str | None = None) -> str:
        """Send the model to the Hub and return its address there: see ``heedful.pretrained.push``.

        The tokenizer is not part of a model: ``push`` sends a whole folder.
        """
        from heedful.pretrained import push

        with TemporaryDirectory() as made:
            folder = Path(made) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            return push(folder, name, private=private, revision=revision)
