"""Encoder-decoder family (the paper's Transformer, T5, BART, Marian)."""

from __future__ import annotations

from torch import Tensor

from heedful.cache import NoCache
from heedful.config import EncoderDecoderConfig
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.models.base import Model
from heedful.stack import Stack


class EncoderDecoder(Model):
    """Encoder-decoder Transformer. Vaswani et al. 2017.

    source → embedding → encoder; target → embedding → decoder with cross-attention → head. ``target`` is the decoder's
    *input*, start token included; the model does not shift it.

    >>> import heedful, torch
    >>> model = EncoderDecoder(heedful.presets.get("transformer-tiny"))
    >>> model(torch.tensor([[5, 7, 2]]), torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 4000])
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.encoder
        self.embedding = TokenEmbedding.of(config.source, config.encoder.dim)
        self.encoder = Stack(config.encoder)
        self.target_embedding = (
            TokenEmbedding.of(config.target, config.decoder.dim) if config.target else self.embedding
        )
        self.decoder = Stack(config.decoder)
        self.head = head_of(config.head, config.decoder.dim, self.target_embedding.token)
        self.initialise_weights()

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the encoder's final hidden states (B, S, D) of ``source`` (B, S); ``mask`` is False at padding."""
        return self.encoder(self.embedding(source), mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        cache: NoCache | None = None,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``target`` (B, T), which follows the tokens in ``cache``.

        ``memory`` (B, S, D) is the output of :meth:`encode`. The masks are False at padding.
        """
        x = self.target_embedding(target)
        return self.decoder(x, target_mask, memory=memory, memory_mask=memory_mask, cache=cache)

    def hidden(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the decoder's final hidden states (B, T, D) for ``source`` (B, S) and ``target`` (B, T).

        The masks have the shapes of source and target, and are False at padding.
        """
        return self.decode(target, self.encode(source, source_mask), target_mask, source_mask)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the output of the head, logits (B, T, V), for ``source`` (B, S) and ``target`` (B, T).

        The masks have the shapes of source and target, and are False at padding.
        """
        return self.head(self.hidden(source, target, source_mask, target_mask), target_mask)
