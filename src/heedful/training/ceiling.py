"""Share of the machine's peak: the run's FLOP/s relative to those of bare matrix products.

Model FLOPs utilisation (Chowdhery et al. 2022, section 4.1 and appendix B), with the machine's ceiling measured in
place of its maker's figure. A multiply-add is 2 FLOPs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import (
    EncoderDecoderConfig,
    LanguageHead,
    MaskedHead,
    SpanHead,
    StackConfig,
    TokenHead,
    VisionConfig,
)
from heedful.kernels.onednn_linear import emulates_bfloat16, has_onednn, onednn_product
from heedful.tasks.token_batches import IGNORED

Batch = Mapping[str, Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
AFTER = 30.0  # seconds of a run before anything is measured or counted: a short one pays nothing
TIME = 0.4  # seconds that measuring takes
LARGEST = 4096  # rows of the matrices
LONG = 0.02  # seconds of a product from which on its matrices are large enough
FORWARD, BACKWARD = 2, 2  # FLOPs a weight and token; the backward pass twice, for the input's gradient and the weight's


class Ceiling:
    """The share of the ceiling in each window of a run's log.

    Nothing is done until the first line of the log that falls ``after`` so many seconds: then the ceiling is measured,
    and from there on each step's work is counted. No random state but its own is touched.

    Args:
        flops: of a batch, forward and backward.
        measure: the most FLOPs a second; None where it cannot be measured.
        after: seconds from the first call.
    """

    def __init__(
        self, flops: Callable[[Batch], float], measure: Callable[[], float | None], after: float = AFTER
    ) -> None:
        self.flops, self.measure, self.after = flops, measure, after
        self._began: float | None = None
        self._most: float | None = None
        self._measured = False
        self._work = 0.0

    def add(self, batches: Iterable[Batch]) -> None:
        """The batches of a step, before they are moved to the device."""
        if self._most is not None:
            self._work += sum(map(self.flops, batches))

    def share(self, seconds: float) -> float | None:
        """Returns the share of the peak that the last steps reached in ``seconds``; None: not known yet."""
        work, self._work = self._work, 0.0
        if self._began is None:
            self._began = time.monotonic()
        if not self._measured and time.monotonic() - self._began >= self.after:
            self._measured, self._most = True, self.measure()
            return None  # its own steps were not counted
        return work / (seconds * self._most) if self._most and work and seconds > 0 else None


@torch.no_grad()
def most_flops(device: torch.device, dtype: torch.dtype, seconds: float = TIME) -> float | None:
    """FLOPs a second of square matrix products, the best of those made in ``seconds``; None where memory is too small,
    and where there are no instructions for the type, where large products are the slowest.

    The matrices grow until a product takes 20 ms, or has 4,096 rows. On a CPU the general routine and oneDNN take
    turns, for the faster one differs from machine to machine, and a run may use both.
    """
    if dtype is torch.bfloat16 and emulates_bfloat16(device):
        return None
    ways: list[Product] = [torch.mm]
    if device.type == "cpu" and has_onednn(dtype):
        ways.append(lambda a, b: onednn_product(a, b, None))
    generator = torch.Generator(device).manual_seed(0)
    ends, size, best, long = time.monotonic() + seconds, 512, 0.0, False
    try:
        while time.monotonic() < ends:
            a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
            for way in ways:
                way(a, b)  # the first of a size is slower
            while time.monotonic() < ends:
                took = min(_timed(way, a, b) for way in ways)
                best = max(best, FORWARD * size**3 / took)
                long = took >= LONG
                if not long and size < LARGEST:
                    size *= 2
                    break
    except torch.OutOfMemoryError:
        return None
    return best


def _timed(way: Product, a: Tensor, b: Tensor) -> float:
    """Seconds of a product; several are timed together where one would be over before it could be timed."""
    wait = partial(torch.accelerator.synchronize, a.device) if a.device.type != "cpu" else _nothing
    count = 1 if a.device.type == "cpu" else 10
    wait()
    began = time.perf_counter()
    for _ in range(count):
        way(a, b)
    wait()
    return (time.perf_counter() - began) / count


def _nothing() -> None:
    """A CPU is done when it says so."""


def flops_of(model: Any) -> Callable[[Batch], float]:
    r"""A function of a batch: the FLOPs of its forward and backward pass, padding left out.

    .. math:: \sum_{stacks} \Big(6 N \sum_i n_i + 12 L d \sum_i n_i m_i\Big) + 6 N_{head} n

    N are the weights of a stack's linear maps, L its blocks, d heads times their size, n_i the tokens of text i and m_i
    those that it looks at: its own, in cross-attention the source's, with a sliding window no more than that. Maps of
    keys and values in cross-attention count source tokens. A causal mask halves nothing (as in the paper), and whatever
    is computed twice (gradient checkpointing, cached gradients) counts once. A weight that is not trained counts 4 in
    place of 6, and the projection of patches, whose input wants no gradient, too. The head counts the tokens that it is
    computed for: all, for masked language models the hidden ones, for classifiers one of each text. Norms, activations,
    softmax, embeddings, biases and the optimiser are left out.
    """
    config = model.config
    if isinstance(config, VisionConfig):
        return _of_images(model, config)
    head = _maps(model.head)
    chosen = isinstance(config.head, MaskedHead | LanguageHead)
    every = isinstance(config.head, TokenHead | SpanHead)

    def of_head(batch: Batch, lengths: Tensor) -> float:
        if chosen:
            return head * int((batch["labels"] != IGNORED).sum())
        return head * (float(lengths.sum()) if every else len(lengths))

    if isinstance(config, EncoderDecoderConfig):
        first, second = _Stack(model.encoder, config.encoder), _Stack(model.decoder, config.decoder)

        def of_pairs(batch: Batch) -> float:
            if "source" in batch:
                source, target = _lengths(batch["source"], batch.get("source_mask")), _learned(batch["labels"])
            else:  # a classifier, whose decoder reads the text again
                source = target = _lengths(batch["ids"], batch.get("mask"))
            return first(source, source) + second(target, target, source) + of_head(batch, target)

        return of_pairs
    (own,) = (part for part in vars(config).values() if isinstance(part, StackConfig))
    stack = _Stack(getattr(model, "decoder" if own.causal else "encoder"), own)

    def of_texts(batch: Batch) -> float:
        total = 0.0
        for name in (name for name in batch if name.endswith("ids")):
            ids, labels = batch[name], batch.get("labels")
            mask = batch.get(f"{name[:-3]}mask", batch.get("texts"))
            shifted = mask is None and labels is not None and labels.shape == ids.shape
            lengths = _learned(labels) if shifted and labels is not None else _lengths(ids, mask)
            total += stack(lengths, lengths) + of_head(batch, lengths)
        return total

    return of_texts


class _Stack:
    """The FLOPs of a stack over texts."""

    def __init__(self, stack: Any, config: StackConfig) -> None:
        cross = [block.cross_attention for block in stack.block] if config.cross else []
        self.memory = sum(_maps(one.key) + _maps(one.value) for one in cross)  # a source token
        self.token = _maps(stack) - self.memory
        width = config.heads * (config.head_dim or config.dim // config.heads)
        self.pair = 6 * FORWARD * config.depth * width  # of each block: two products, and four in the backward pass
        self.window = config.window

    def __call__(self, queries: Tensor, keys: Tensor, source: Tensor | None = None) -> float:
        """Of texts of these lengths (N,), which look at ``keys`` of their own and ``source`` tokens of another."""
        own = keys if self.window is None else keys.clamp(max=self.window)
        flops = self.token * float(queries.sum()) + self.pair * float((queries * own).sum())
        if source is not None:
            flops += self.memory * float(source.sum()) + self.pair * float((queries * source).sum())
        return flops


def _of_images(model: Any, config: VisionConfig) -> Callable[[Batch], float]:
    tokens, before = config.patches.tokens, config.patches.prefix_tokens
    row, projection = torch.tensor([float(tokens)]), model.embedding.projection.weight
    each = (tokens - before) * (FORWARD + BACKWARD * projection.requires_grad) * projection.numel()
    each += _Stack(model.encoder, config.encoder)(row, row) + _maps(model.head)
    return lambda batch: float(each * len(batch["pixels"]))


def _maps(part: nn.Module) -> float:
    """FLOPs a token of the linear maps in a part of a model, adapters among them."""
    weights = {
        id(p): p
        for module in part.modules()
        if isinstance(module, nn.Linear)
        for p in module.parameters(recurse=False)
        if p.dim() == 2
    }
    return float(sum((FORWARD + BACKWARD * (1 + p.requires_grad)) * p.numel() for p in weights.values()))


def _lengths(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the number of tokens of each text; in packed rows the mask holds the texts' numbers, 0 is padding."""
    if mask is None:
        return torch.full((len(ids),), float(ids.size(1)))
    if mask.dtype == torch.bool:
        return mask.sum(1).double()
    texts = mask.long() + (int(mask.max()) + 1) * torch.arange(len(mask))[:, None]
    counts = torch.bincount(texts[mask > 0])
    return counts[counts > 0].double()


def _learned(labels: Tensor) -> Tensor:
    """Returns the number of tokens of each row up to its last label: what follows is padding."""
    there = labels != IGNORED
    places = torch.arange(1, labels.size(1) + 1)
    return (there * places).amax(1).double()
