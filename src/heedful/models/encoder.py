"""Encoder family (BERT): every token attends to all tokens."""

from __future__ import annotations

from torch import Tensor

from heedful.cache import StackCache
from heedful.config import EncoderConfig
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.models.base import Model
from heedful.models.deberta import first_block_of
from heedful.models.xlnet import query_hidden
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
        self.embedding = TokenEmbedding.of(config.embedding, config.encoder.width)
        self.encoder = Stack(config.encoder, first_block_of(config.encoder))  # DeBERTa: with a convolution
        self.head = head_of(config.head, config.encoder.dim, self.embedding.token)
        self.initialise_weights()

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Returns the output of the head for ``ids`` (B, T); without a head, the hidden states (B, T, D).

        ``mask`` is one of a model's masks (``heedful.layers.mask``), such as (B, T), False at padding. ``segments``
        (B, T) numbers the texts of a pair, 0 and 1; by default all tokens are of one segment.
        """
        return self.output(self.hidden(ids, mask, segments, tokens_read=self.tokens_read), mask)

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        cache: StackCache | None = None,
        tokens_read: slice = ALL_TOKENS,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``ids`` (B, T).

        ``mask`` and ``tokens_read`` are as in ``Stack.forward``; hidden states of tokens not read may be zeros.

        ``cache`` is the memory of a text read in parts (Dai et al. 2019, section 3.2). It holds the keys and values of
        the parts read so far: the tokens of a part attend to those of earlier parts, and not to those of later parts.
        ``Cache(depth, window=512)`` keeps only the last 512 tokens. Relative segments count them as segment 0.

        >>> import heedful, torch
        >>> from heedful.cache import Cache
        >>> model = heedful.create(heedful.presets.xlnet(16, 2, 4, vocab=50), seed=0).eval()
        >>> memory, (first, second) = Cache(model.config.encoder.depth), torch.tensor([[5, 7, 9, 6]]).split(2, dim=1)
        >>> hidden = [model.hidden(part, cache=memory) for part in (first, second)]
        >>> torch.equal(hidden[0], model.hidden(first)), torch.allclose(hidden[1], model.hidden(second), atol=1e-3)
        (True, False)
        """
        in_attention = self.main.relative_segments  # not in the embedding
        x = self.embedding(ids, None if in_attention else segments)
        own = segments if in_attention else None
        return self.encoder(x, mask, cache=cache, tokens_read=tokens_read, segments=own)

    def query_hidden(
        self,
        ids: Tensor,
        visible: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Returns the final query stream (B, M, D) of an XLNet, which predicts the tokens at the positions ``targets``.

        ``targets`` is (B, M), ``visible`` (B, T, T): see ``heedful.models.xlnet.query_hidden``. Raises ``HeedfulError``
        for a model without ``embedding.query``.
        """
        return query_hidden(self.encoder, self.embedding, ids, visible, targets, mask, segments)
