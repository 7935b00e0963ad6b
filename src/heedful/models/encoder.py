"""Encoder family (BERT): every token attends to all tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.cache import NoCache
from heedful.config import EncoderConfig
from heedful.errors import HeedfulError
from heedful.heads import head_of
from heedful.layers.embedding import TokenEmbedding
from heedful.models.base import Model
from heedful.models.deberta import first_block_of
from heedful.models.xlnet import query_stream
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
        self.encoder = Stack(config.encoder, first_block_of(config.encoder))  # None but for DeBERTa's convolution
        self.head = head_of(config.head, config.encoder.dim, self.embedding.token)
        self.initialise_weights()

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        cache: NoCache | None = None,
        tokens_read: slice = ALL_TOKENS,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``ids`` (B, T).

        ``mask`` is (B, T), False at padding, or (B, T, T), True where the first token may attend to the second. Hidden
        states of tokens outside ``tokens_read`` may be zeros.

        ``cache`` is the memory of a text read in parts (Dai et al. 2019, section 3.2): the tokens attend to those of
        earlier calls too, whose keys and values it holds, and these do not attend to later ones.
        ``Cache(depth, window=512)`` keeps only the last 512. To relative segments the memory counts as segment 0.

        >>> import heedful, torch
        >>> from heedful.cache import Cache
        >>> model = heedful.create(heedful.presets.xlnet(16, 2, 4, vocab=50), seed=0).eval()
        >>> memory, (first, second) = Cache(model.config.encoder.depth), torch.tensor([[5, 7, 9, 6]]).split(2, dim=1)
        >>> hidden = [model.hidden(part, cache=memory) for part in (first, second)]
        >>> torch.equal(hidden[0], model.hidden(first)), torch.allclose(hidden[1], model.hidden(second), atol=1e-3)
        (True, False)
        """
        if self.main.relative_segments:
            return self.encoder(self.embedding(ids), mask, cache=cache, tokens_read=tokens_read, segments=segments)
        return self.encoder(self.embedding(ids, segments), mask, cache=cache, tokens_read=tokens_read)

    def query_hidden(
        self,
        ids: Tensor,
        visible: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Returns the final query stream (B, M, D) at the positions ``targets`` (B, M), which predicts their tokens.

        Two-stream attention (Yang et al. 2019, section 2.3). The content stream h begins with the tokens, the query
        stream g with one vector for all. In each block g_t attends to the content of the tokens that ``visible``
        (B, T, T) allows token t, and h_t to these and itself. So that g_t does not know token t, the tokens that it
        attends to may not attend to t either: in an order of all tokens, each attends to those before it. ``mask``
        (B, T) is False at padding. The model needs ``embedding.query``.

        >>> import heedful, torch
        >>> model = heedful.create(heedful.presets.xlnet(16, 2, 4, vocab=50), seed=0).eval()
        >>> visible = torch.tensor([True, False, True]).expand(1, 3, 3)  # no token attends to the second
        >>> a, b = (model.query_hidden(torch.tensor([[5, x, 9]]), visible, torch.tensor([[1]])) for x in (7, 8))
        >>> a.shape, torch.equal(a, b)
        (torch.Size([1, 1, 16]), True)
        """
        if self.embedding.query is None:
            raise HeedfulError("the model has no query stream; create it with EmbeddingConfig(query=True)")
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        visible = visible & real[:, None]
        own = torch.eye(ids.size(1), dtype=torch.bool, device=ids.device) & real[:, None]
        g = self.embedding.query.expand(*targets.shape, -1)
        return query_stream(
            self.encoder,
            self.embedding(ids),
            g,
            mask=visible | own,
            query_mask=visible,
            targets=targets,
            segments=segments,
        )

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Returns the output of the head for ``ids`` (B, T); without a head, the hidden states (B, T, D).

        ``mask`` is as in ``hidden``. ``segments`` (B, T) numbers the texts of a pair, 0 and 1; by default all tokens
        are of one segment.
        """
        return self.output(self.hidden(ids, mask, segments, tokens_read=self.tokens_read), mask)
