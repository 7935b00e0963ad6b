"""Ensemble of classifiers: the mean of the probabilities of members that are trained side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import EnsembleConfig
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.models.encoder import Encoder


class Ensemble(Model):
    """Classifiers of the same labels, each with its own tokenizer, whose probabilities are averaged.

    The members share no weights. Their errors differ, so that the mean errs less often than each (Hansen and Salamon
    1990).

    >>> from heedful.config import EmbeddingConfig, EncoderConfig, SequenceHead, StackConfig
    >>> stack = StackConfig(dim=16, depth=1, heads=2)
    >>> member = EncoderConfig(embedding=EmbeddingConfig(vocab_size=50), encoder=stack, head=SequenceHead(labels=3))
    >>> model = Ensemble(EnsembleConfig(members=(member, member)))
    >>> model([(torch.tensor([[5, 7, 9]]),), (torch.tensor([[4, 8]]),)]).shape
    torch.Size([1, 3])
    """

    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.members[0].encoder
        self.members = nn.ModuleList(Encoder(member) for member in config.members)

    def forward(self, inputs: Sequence[Sequence[Any]]) -> Tensor:
        """Returns the logits (B, labels) of the mean probabilities.

        ``inputs`` has the arguments of each member's own call, (ids, mask, segments), of the same B texts.
        """
        if isinstance(inputs, Tensor) or len(inputs) != len(self.members):
            raise HeedfulError(
                f"an ensemble of {len(self.members)} members takes a list of their inputs, [(ids, mask), ...], since "
                "each has its own tokenizer; a pipeline makes them from texts"
            )
        logits = [member(*own) for member, own in zip(self.members, inputs, strict=True)]
        return mean_logits(torch.stack(logits), self.multi_label)


def member_batch(batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Returns the tensors of a member in the batch of an ensemble, ``number.ids``, ..., by their usual names.

    >>> member_batch({"0.ids": torch.zeros(1), "1.ids": torch.ones(1), "labels": torch.ones(1)}, 1)
    {'ids': tensor([1.])}
    """
    prefix = f"{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in batch.items() if name.startswith(prefix)}


def mean_logits(logits: Tensor, multi_label: bool = False) -> Tensor:
    r"""Returns the logits (B, C) of the mean probabilities of members with ``logits`` (M, B, C).

    .. math:: \log \bar p, \quad \bar p = \frac{1}{M} \sum_m \mathrm{softmax}(l_m)

    Their softmax is the mean of the members' probabilities. With several labels p is a sigmoid and the result
    log p̄ − log(1 − p̄).

    >>> mean_logits(torch.tensor([[[0.0, 0.0]], [[0.0, 50.0]]])).softmax(-1)
    tensor([[0.2500, 0.7500]])
    """
    if not multi_label:
        return torch.logsumexp(logits.log_softmax(-1), 0) - math.log(len(logits))
    yes, no = nn.functional.logsigmoid(logits), nn.functional.logsigmoid(-logits)
    return torch.logsumexp(yes, 0) - torch.logsumexp(no, 0)
