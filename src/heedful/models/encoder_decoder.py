"""Encoder-decoder family (the paper's Transformer, T5, BART, Marian)."""

from __future__ import annotations

from torch import Tensor

from heedful.cache import NoCache
from heedful.config import EncoderDecoderConfig
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.layers.mask import attended_tokens
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
        """Returns the encoder's final hidden states (B, S, D) of ``source`` (B, S).

        ``mask`` is (B, S), False at padding, or (B, S, S), True where the first token may attend to the second.
        """
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

        ``memory`` (B, S, D) is the output of :meth:`encode`. ``target_mask`` is (B, T), False at padding, or (B, T, T)
        in place of causality; ``memory_mask`` is (B, S), or (B, T, S), True where a target token may attend to a source
        token.
        """
        x = self.target_embedding(target)
        return self.decoder(x, target_mask, memory=memory, memory_mask=memory_mask, cache=cache)

    def hidden(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the decoder's final hidden states (B, T, D) for ``source`` (B, S) and ``target`` (B, T).

        ``source_mask`` and ``target_mask`` are as in ``encode`` and ``decode``; of a source mask (B, S, S), targets
        attend to the tokens that some source token may attend to.
        """
        memory_mask = None if source_mask is None else attended_tokens(source_mask)
        return self.decode(target, self.encode(source, source_mask), target_mask, memory_mask)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the output of the head, logits (B, T, V), for ``source`` (B, S) and ``target`` (B, T).

        The masks have the shapes of source and target, and are False at padding.
        """
        return self.output(self.hidden(source, target, source_mask, target_mask), target_mask)
