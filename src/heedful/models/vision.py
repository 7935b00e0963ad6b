"""Vision family (ViT, DeiT): an encoder over image patches."""

from __future__ import annotations

from torch import Tensor

from heedful.config import VisionConfig
from heedful.heads import head_of
from heedful.layers.embedding import PatchEmbedding
from heedful.models.base import Model
from heedful.models.deberta import first_block_of
from heedful.stack import ALL_TOKENS, Stack


class VisionTransformer(Model):
    """Vision Transformer: pixels → patches → stack → head. Dosovitskiy et al. 2021.

    >>> import heedful, torch
    >>> VisionTransformer(heedful.presets.get("vit-micro"))(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    config: VisionConfig

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, self.main = config, config.encoder
        self.embedding = PatchEmbedding.of(config.patches, config.encoder.width)
        self.encoder = Stack(config.encoder, first_block_of(config.encoder))
        self.head = head_of(config.head, config.encoder.dim, prefix_tokens=config.patches.prefix_tokens)
        self.initialise_weights()

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns the output of the head, class logits (B, labels); without a head, the hidden states."""
        return self.output(self.hidden(pixels, tokens_read=self.tokens_read))

    def hidden(self, pixels: Tensor, *, tokens_read: slice = ALL_TOKENS) -> Tensor:
        """Returns the final hidden states (B, T, D) of ``pixels`` (B, channels, height, width).

        The T tokens are prefix tokens, such as the class token, then patches. Hidden states of tokens outside
        ``tokens_read``, a slice, may be zeros.
        """
        return self.encoder(self.embedding(pixels), tokens_read=tokens_read)
