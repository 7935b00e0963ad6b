"""Decoder family (GPT-2, Llama): every token attends to itself and the tokens before it."""

from __future__ import annotations

from torch import Tensor

from heedful.cache import NoCache
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
        self.embedding = TokenEmbedding.of(config.embedding, config.decoder.dim)
        self.decoder = Stack(config.decoder)  # causal, as the configuration has checked
        self.head = head_of(config.head, config.decoder.dim, self.embedding.token)
        self.initialise_weights()

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        cache: NoCache | None = None,
        tokens_read: slice = ALL_TOKENS,
        text_starts: Tensor | None = None,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``ids`` (B, T), which follow the tokens in ``cache``.

        ``mask`` is (B, T), False at padding, or (B, T, T), True where the first token may attend to the second: the
        whole mask, in place of causality (``heedful.layers.prefix_mask``). Hidden states of tokens outside
        ``tokens_read`` may be zeros. ``text_starts`` are those of a packed batch (``heedful.layers.text_starts``), with
        which a GPU computes attention within each text.
        """
        x = self.embedding(ids)
        return self.decoder(x, mask, cache=cache, tokens_read=tokens_read, text_starts=text_starts)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, cache: NoCache | None = None) -> Tensor:
        """Returns the output of the head for ``ids`` (B, T), which follow the tokens in ``cache``.

        A language model returns logits (B, T, V). ``mask`` is as in ``hidden``.
        """
        return self.output(self.hidden(ids, mask, cache=cache, tokens_read=self.tokens_read), mask)
