"""Lower learning rates for what lies deeper: the bottom of a trained model is the most general part of it."""

from __future__ import annotations

from torch import nn

from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.models import Model
from heedful.stack import Stack


def layer_rates(model: Model, decay: float) -> dict[int, float]:
    """By ``id`` of a parameter, the factor of its learning rate; those that are not named have factor 1.

    Of a stack of n blocks, block i = 1..n has ``decay`` ^ (n + 1 − i); its embeddings, positions and embedding norm
    have ``decay`` ^ (n + 1), head and final norm 1, as in BEiT's fine-tuning (Bao et al. 2022); ELECTRA's puts one more
    step between head and blocks (Clark et al. 2020). The idea is Howard and Ruder's (2018, section 3.2). Encoder and
    decoder count their own blocks. An embedding that is the output layer too is an embedding; one of both sides is the
    encoder's.
    """
    factors: list[tuple[nn.Module, float]] = []
    embeddings: list[nn.Module] = []
    for part in model.children():
        if isinstance(part, TokenEmbedding | PatchEmbedding):
            embeddings.append(part)
        elif isinstance(part, Stack):
            count = len(part.block)
            below = (*embeddings, part.position, part.embedding_norm)
            factors += [(module, decay ** (count + 1)) for module in below]
            factors += [(block, decay ** (count - index)) for index, block in enumerate(part.block)]
            embeddings = []
    return {id(p): factor for module, factor in factors for p in module.parameters()}
