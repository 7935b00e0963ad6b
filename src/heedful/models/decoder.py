"""Decoder family (GPT-2, Llama): every token attends to itself and the tokens before it."""

from __future__ import annotations

from torch import Tensor

from heedful.cache import StackCache
from heedful.config import DecoderConfig
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.models.base import Model
from heedful.stack import ALL_TOKENS, Stack


class Decoder(Model):
    """Decoder-only Transformer: ids → embedding → causal stack → head. Radford et al. 2019.

    >>> import torch
    >>> from heedful.config import DecoderConfig, EmbeddingConfig, StackConfig
    >>> stack = StackConfig(dim=16, depth=2, heads=4, causal=True)
    >>> Decoder(DecoderConfig(embedding=EmbeddingConfig(vocab_size=100), decoder=stack))(torch.tensor([[5, 7]])).shape
    torch.Size([1, 2, 100])
    """

    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.decoder
        self.embedding = TokenEmbedding.of(config.embedding, config.decoder.width)
        self.decoder = Stack(config.decoder)  # causal, as the configuration has checked
        self.head = head_of(config.head, config.decoder.dim, self.embedding.token)
        self.initialise_weights()

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, cache: StackCache | None = None) -> Tensor:
        """Returns the output of the head for ``ids`` (B, T), which follow the tokens in ``cache``.

        A language model returns logits (B, T, V). ``mask`` is one of a model's masks (``heedful.layers.mask``), such as
        (B, T), False at padding, or that of a prefix (``heedful.layers.prefix_mask``).
        """
        return self.output(self.hidden(ids, mask, cache=cache, tokens_read=self.tokens_read), mask)

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        cache: StackCache | None = None,
        tokens_read: slice = ALL_TOKENS,
        text_starts: Tensor | None = None,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``ids`` (B, T), which follow the tokens in ``cache``.

        ``mask``, ``tokens_read`` and ``text_starts`` are as in ``Stack.forward``: hidden states of tokens that are not
        read may be zeros, and ``text_starts`` change the speed on a GPU, not the result.
        """
        x = self.embedding(ids)
        return self.decoder(x, mask, cache=cache, tokens_read=tokens_read, text_starts=text_starts)
