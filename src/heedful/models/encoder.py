"""Encoder family (BERT): every token attends to all tokens."""

from __future__ import annotations

from torch import Tensor

from heedful.config import EncoderConfig
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.models.base import Model
from heedful.stack import ALL_TOKENS, Stack


class Encoder(Model):
    """Encoder-only Transformer: ids → embedding → stack → head. Devlin et al. 2019.

    >>> import torch
    >>> from heedful.config import EmbeddingConfig, EncoderConfig, StackConfig
    >>> config = EncoderConfig(embedding=EmbeddingConfig(vocab_size=100), encoder=StackConfig(dim=16, depth=2, heads=4))
    >>> Encoder(config)(torch.tensor([[5, 7, 9]])).shape
    torch.Size([1, 3, 16])
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.encoder
        self.embedding = TokenEmbedding.of(config.embedding, config.encoder.dim)
        self.encoder = Stack(config.encoder)
        self.head = head_of(config.head, config.encoder.dim, self.embedding.token)
        self.initialise_weights()

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        tokens_read: slice = ALL_TOKENS,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``ids`` (B, T).

        ``mask`` is (B, T), False at padding, or (B, T, T), True where the first token may attend to the second. Hidden
        states of tokens outside ``tokens_read`` may be zeros.
        """
        return self.encoder(self.embedding(ids, segments), mask, tokens_read=tokens_read)

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Returns the output of the head for ``ids`` (B, T); without a head, the hidden states (B, T, D).

        ``mask`` (B, T) is False at padding. ``segments`` (B, T) numbers the texts of a pair, 0 and 1.
        """
        return self.output(self.hidden(ids, mask, segments, tokens_read=self.tokens_read), mask)
