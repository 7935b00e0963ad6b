"""Encoder-decoder family (the paper's Transformer, T5, BART, Marian; a vision encoder with a text decoder)."""

from __future__ import annotations

from torch import Tensor, nn

from heedful.cache import StackCache
from heedful.config import EncoderDecoderConfig
from heedful.heads import Dense, head_of
from heedful.layers.embedding import TokenEmbedding, embedding_of
from heedful.layers.linear import Linear
from heedful.layers.mask import attended_tokens
from heedful.models.base import Model
from heedful.models.deberta import first_block_of
from heedful.stack import Stack


class EncoderDecoder(Model):
    """Encoder-decoder Transformer. Vaswani et al. 2017.

    source → embedding → encoder; target → embedding → decoder with cross-attention → head. ``target`` is the decoder's
    *input*, start token included; the model does not shift it.

    The source is token ids (B, S), or with ``config.source`` patches an image's pixels (B, channels, height, width). If
    encoder and decoder have different widths, a linear map of the encoder's output joins them.

    >>> import heedful, torch
    >>> model = EncoderDecoder(heedful.presets.get("transformer-tiny"))
    >>> model(torch.tensor([[5, 7, 2]]), torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 4000])
    >>> captioner = EncoderDecoder(heedful.presets.get("captioner-micro"))
    >>> captioner(torch.randn(1, 3, 32, 32), torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 1000])
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.encoder
        self.embedding = embedding_of(config.source, config.encoder.width)
        self.encoder = Stack(config.encoder, first_block_of(config.encoder))  # DeBERTa: with a convolution
        same_width = config.encoder.dim == config.decoder.dim
        self.memory_projection = nn.Identity() if same_width else Linear(config.encoder.dim, config.decoder.dim)
        target = TokenEmbedding.of(config.target, config.decoder.width) if config.target else self.embedding
        assert isinstance(target, TokenEmbedding)  # the configuration has no target only for a source of tokens
        self.target_embedding = target  # without ``config.target`` the same as that of the source
        self.decoder = Stack(config.decoder)
        self.head = head_of(config.head, config.decoder.dim, self.target_embedding.token)
        # the pooler of a published image encoder is not used in a forward pass, but it is saved again
        self.pooler = Dense(config.encoder.dim, config.encoder.dim).requires_grad_(False) if config.pooler else None
        self.initialise_weights()

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the output of the head, logits (B, T, V), for ``source``, as in ``encode``, and ``target`` (B, T).

        The masks are as in ``hidden``.
        """
        return self.output(self.hidden(source, target, source_mask, target_mask), target_mask)

    def hidden(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the decoder's final hidden states (B, T, D) for ``source``, as in ``encode``, and ``target`` (B, T).

        ``source_mask`` and ``target_mask`` are as in ``encode`` and ``decode``. Under a source mask (B, S, S), a source
        token to which no source token may attend is padding for the target too.
        """
        memory_mask = None if source_mask is None else attended_tokens(source_mask)
        return self.decode(target, self.encode(source, source_mask), target_mask, memory_mask)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the encoder's final hidden states (B, S, D) of ``source``, in the width of the decoder.

        ``source`` is (B, S), or (B, channels, height, width): S is then the number of an image's tokens, prefix tokens
        first, then patches. ``mask`` is one of a model's masks (``heedful.layers.mask``), such as (B, S), False at
        padding.
        """
        return self.memory_projection(self.encoder(self.embedding(source), mask))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        cache: StackCache | None = None,
    ) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``target`` (B, T), which follows the tokens in ``cache``.

        ``memory`` (B, S, D) is the output of ``encode``; with a cache, its first call alone reads it.
        ``target_mask``, ``memory_mask`` and ``cache`` are as ``mask``, ``memory_mask`` and ``cache`` of
        ``Stack.forward``.
        """
        x = self.target_embedding(target)
        return self.decoder(x, target_mask, memory=memory, memory_mask=memory_mask, cache=cache)
