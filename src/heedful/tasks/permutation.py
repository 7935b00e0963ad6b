"""Permutation language modelling (Yang et al. 2019), the fill-mask of encoders with a query stream. Column ``text``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.config import Head, LanguageHead, StackConfig
from heedful.data.masking import Factorisation
from heedful.data.token_stream import StreamWindow
from heedful.models import Encoder, Model
from heedful.settings import RunSettings
from heedful.tasks.fill_mask import FillMask
from heedful.tasks.masked_windows import SEED
from heedful.tasks.task import Batch
from heedful.tasks.token_batches import IGNORED, label_index, padded_with_mask, with_label_index
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer


class PermutationFillMask(FillMask):
    """An encoder that predicts a sixth of the tokens in random order, each from the others and those predicted before.

    No token is replaced by a mask: the query stream (``Encoder.query_hidden``) does not know the token that it
    predicts. In a text with masks each mask is predicted from the tokens around, without the other masks.

    >>> import heedful
    >>> from heedful.data import Row, Rows
    >>> data = Rows([Row({"text": "the cow says moo and the owl says hoo"}, "farm.txt", 1)])
    >>> settings = RunSettings(task="fill-mask", train=("farm.txt",), out="farm", preset="xlnet-base")
    >>> task = FillMask.for_rows(data, settings).prepare(data, settings)
    >>> batch = task.collate(task.encode(data).examples)
    >>> int((batch["order"] > 0).sum()) == task.count(batch)
    True
    """

    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["PermutationFillMask"]
    head_class: ClassVar[type[Head]] = LanguageHead

    def __init__(self, tokenizer: Tokenizer, window: int | None = None) -> None:
        super().__init__(tokenizer, window)
        self.factorisation = self.evaluated = Factorisation(self.masking.ordinary)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Sets the share of predicted tokens (by default a sixth) from the settings."""
        self.factorisation = replace(self.evaluated, share=settings.masking.probability or self.evaluated.share)

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a language-model head with a bias, tied to the embedding."""
        return LanguageHead(bias=True)

    def collate(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: ``ids`` (B, T), ``mask``, ``order``, and ``labels``: the predicted tokens, −100 elsewhere.

        ``order`` (B, T) is 0 for tokens that are not predicted, and 1, 2, ... for the others in turn. In evaluation it
        is always the same.
        """
        rows = self._framed(examples, random)
        ids, mask = padded_with_mask(rows, self.padding)
        generators = [random or np.random.default_rng([SEED, window.number]) for window in examples]
        choose = self.evaluated if random is None else self.factorisation
        order = np.stack([choose(row, generator) for row, generator in zip(ids.numpy(), generators, strict=True)])
        labels = ids.masked_fill(torch.from_numpy(order == 0), IGNORED)
        return {"ids": ids, "mask": mask, "order": torch.from_numpy(order), "labels": labels}

    def complete(self, batch: Batch) -> Batch:
        """Adds the indices and the positions of the predicted tokens."""
        batch = with_label_index(batch)
        targets, places = targets_of(batch["label_index"], batch["ids"].shape)
        return {**batch, "targets": targets, "places": places}

    def _chosen(self, model: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the query stream (M, D) at the M predicted tokens of a batch, and their ids (M,)."""
        batch = batch if "targets" in batch else self.complete(batch)
        hidden = query_states(model, batch["ids"], batch["mask"], batch["order"], batch["targets"], batch["places"])
        return hidden, batch["labels"].flatten().index_select(0, label_index(batch))

    def hidden_at(self, model: Encoder, ids: Tensor, mask: Tensor | None, index: Tensor) -> Tensor:
        """Returns the query stream (M, D) at the tokens with ascending ``index`` (M,) among all B · T.

        No token attends to those.
        """
        order = torch.zeros_like(ids).flatten().index_fill(0, index, 1).view_as(ids)
        return query_states(model, ids, mask, order, *targets_of(index, ids.shape))


def query_states(
    model: Encoder, ids: Tensor, mask: Tensor | None, order: Tensor, targets: Tensor, places: Tensor
) -> Tensor:
    """Returns the query stream (N, D) at the ``places`` (N,) of ``targets`` (B, M), flattened.

    A token attends to the tokens of ``order`` (B, T) 0, and to those before its own.
    """
    visible = (order[:, None, :] < order[:, :, None]) | (order == 0)[:, None, :]
    hidden = model.query_hidden(ids, visible, targets, mask)
    return hidden.flatten(0, 1).index_select(0, places)


def targets_of(index: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns the positions (B, M) of tokens with ascending ``index`` (N,) in a batch of ``shape`` (B, T), row by row.

    Rows with fewer than M are filled with position 0. The second result (N,) has the place of each token in the first,
    flattened.

    >>> targets_of(torch.tensor([1, 2, 7]), (2, 4))
    (tensor([[1, 2],
            [3, 0]]), tensor([0, 1, 2]))
    """
    rows, positions = index // shape[1], index % shape[1]
    counts = torch.bincount(rows, minlength=shape[0])
    most = max(1, int(counts.max())) if shape[0] else 1
    columns = torch.arange(len(index), device=index.device) - (counts.cumsum(0) - counts)[rows]
    places = rows * most + columns
    targets = index.new_zeros(shape[0] * most).index_copy(0, places, positions)
    return targets.view(shape[0], most), places
