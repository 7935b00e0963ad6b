"""Embeddings: tokens (with segments), and image patches (with class and distillation tokens).

Shapes: B sequences, T tokens, D model width; images are (B, channels, height, width); P is the patch's side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.config import EmbeddingConfig, PatchConfig
from heedful.errors import HeedfulError, lookup

PAIR_FACTOR = 1_000_003  # a prime above the number of tokens, so that few pairs share a row


def check_ids(ids: Tensor, rows: int) -> None:
    """Raises ``HeedfulError`` unless all ``ids`` are 0 to ``rows`` − 1; the host waits for the ids' device."""
    smallest, largest = int(ids.min()), int(ids.max())
    if not 0 <= smallest <= largest < rows:
        raise HeedfulError(
            f"token ids are {smallest} to {largest}, but the model has {rows} tokens, 0 to {rows - 1}; use the "
            "model's own tokenizer"
        )


class TokenEmbedding(nn.Module):
    """Token embedding: a row for each id, multiplied by √dim with ``scale="sqrt"`` (Vaswani et al. 2017, section 3.4).

    With "sqrt-rounded" √dim is rounded to the type of the rows before it multiplies them (Gemma 2).

    Args:
        vocab_size, dim: rows and columns of the table.
        scale: "sqrt", "sqrt-rounded" or "none".
        segments: number of segments (BERT's sentence A and B); their embedding is added.
        bigrams: number of rows b for hashed pairs of neighbouring tokens; row (1,000,003 · id before + id) mod b is
            added (Joulin et al. 2017, section 2.1). The id before the first token is 0, that of our padding.
        query: adds the vector that begins the query stream, ``query`` (1, D) (Yang et al. 2019, section 2.3).

    >>> import torch
    >>> TokenEmbedding(100, 8)(torch.tensor([[5, 7, 9]])).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        scale: str = "none",
        segments: int = 0,
        bigrams: int = 0,
        query: bool = False,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.segment = nn.Embedding(segments, dim) if segments else None
        self.bigram = nn.Embedding(bigrams, dim) if bigrams else None
        self.query = nn.Parameter(torch.zeros(1, dim)) if query else None
        self.factor = lookup({"sqrt": dim**0.5, "sqrt-rounded": dim**0.5, "none": 1.0}, scale, "embedding scale")
        self.rounds_factor = scale == "sqrt-rounded"

    @classmethod
    def of(cls, config: EmbeddingConfig, dim: int) -> TokenEmbedding:
        """Returns the embedding of a configuration."""
        return cls(
            config.vocab_size,
            dim,
            scale=config.scale,
            segments=config.segments,
            bigrams=config.bigrams,
            query=config.query,
        )

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embeds ``ids`` (B, T), and ``segments`` (B, T; default 0) if the model has segments: (B, T, D).

        On a CPU an id outside the table is a ``HeedfulError``. On a GPU the check would wait for the device at each
        call; there ``check_ids`` checks the ids first, as ``generate`` does. Tasks check their tokenizer's vocabulary.
        """
        try:
            x = self.token(ids)
        except IndexError:
            check_ids(ids, self.token.num_embeddings)
            raise
        if self.factor != 1.0:
            x = x * (x.new_full((), self.factor) if self.rounds_factor else self.factor)
        if self.bigram is not None:
            before = nn.functional.pad(ids, (1, -1))  # torch.export cannot trace ids[:, :-1] for all lengths
            x = x + self.bigram((PAIR_FACTOR * before.long() + ids) % self.bigram.num_embeddings)
        if self.segment is not None:
            return x + self.segment(torch.zeros_like(ids) if segments is None else segments)
        if segments is not None:
            raise HeedfulError("segments were given, but this model has no segment embedding; leave them out")
        return x


class PatchEmbedding(nn.Module):
    """Patch embedding: projects each P × P patch of an image to D, after the prefix tokens.

    The projection is a convolution with stride P, equal to a linear map of each flattened patch. Dosovitskiy et al.
    2021, equation 1; the distillation token: Touvron et al. 2021. A prefix token is one row, the same for all images.

    >>> import torch
    >>> PatchEmbedding(8, image_size=(28, 28), patch_size=7, channels=1)(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 17, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        image_size: tuple[int, int] = (224, 224),
        patch_size: int = 16,
        channels: int = 3,
        prefix: str = "class",
        mask_token: bool = False,
    ) -> None:
        super().__init__()
        config = PatchConfig(image_size=image_size, patch_size=patch_size, channels=channels, prefix=prefix)  # type: ignore[arg-type]  # checked there
        self.shape = (channels, *image_size)
        self.projection = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        self.prefix = nn.Parameter(torch.zeros(1, config.prefix_tokens, dim)) if config.prefix_tokens else None
        self.mask = nn.Parameter(torch.zeros(1, dim)) if mask_token else None  # stored, not used

    @classmethod
    def of(cls, config: PatchConfig, dim: int) -> PatchEmbedding:
        """Returns the embedding of a configuration."""
        return cls(
            dim,
            image_size=config.image_size,
            patch_size=config.patch_size,
            channels=config.channels,
            prefix=config.prefix,
            mask_token=config.mask_token,
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeds ``pixels`` (B, channels, height, width): (B, prefix + patches, D). Another image size is an error."""
        if pixels.shape[1:] != self.shape:
            raise HeedfulError(
                f"images have shape {tuple(pixels.shape[1:])}, but the model needs {self.shape}; resize them"
            )
        patches = self.projection(pixels).flatten(2).transpose(1, 2)  # (B, D, H/P, W/P) → (B, N, D)
        if self.prefix is None:
            return patches.contiguous()  # otherwise all blocks would read transposed memory
        return torch.cat((self.prefix.expand(pixels.size(0), -1, -1), patches), dim=1)


EMBEDDINGS: dict[type[EmbeddingConfig | PatchConfig], type[TokenEmbedding | PatchEmbedding]] = {
    EmbeddingConfig: TokenEmbedding,
    PatchConfig: PatchEmbedding,
}


def embedding_of(config: EmbeddingConfig | PatchConfig, dim: int) -> TokenEmbedding | PatchEmbedding:
    """Returns the embedding of a configuration, of token ids or of image patches."""
    return EMBEDDINGS[type(config)].of(config, dim)  # type: ignore[arg-type]  # the class of this configuration
