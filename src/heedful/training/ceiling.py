"""Share of the machine's peak: the run's FLOP/s relative to those of bare matrix products.

Model FLOPs utilisation (Chowdhery et al. 2022, section 4.1 and appendix B), but the machine's peak is measured, not
taken from its manufacturer. A multiply-add is 2 FLOPs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import (
    EncoderDecoderConfig,
    EnsembleConfig,
    LanguageHead,
    MaskedHead,
    PatchConfig,
    SpanHead,
    StackConfig,
    TokenHead,
    VisionConfig,
    patches_of,
)
from heedful.kernels.onednn_linear import emulates_bfloat16, has_onednn, onednn_product
from heedful.models.ensemble import member_batch
from heedful.tasks.token_batches import IGNORED
from heedful.util.out_of_memory import is_out_of_memory

Batch = Mapping[str, Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
AFTER = 30.0  # seconds of a run before the measurement, so that short runs have none
TIME = 0.4  # seconds of the measurement
REPEATS = 2  # of a measurement that a run exceeds: other work held the machine, or its clock was low
LARGEST = 4096  # rows of the matrices
LONG = 0.02  # seconds of a product from which on its matrices are large enough
FORWARD, BACKWARD = 2, 2  # FLOPs a weight and token; backward twice, for the gradients of input and weight


class Ceiling:
    """Share of the machine's peak in each window of a run's log.

    The peak is measured at the first line of the log after ``after`` seconds. From then on the work of each step is
    counted. If the steps reach more than the peak, it is measured again, up to twice in a run, and the highest
    measurement counts; a share above 1 is never returned. Global random state stays the same.

    Args:
        flops: returns the FLOPs of a batch, forward and backward.
        measure: returns the peak in FLOPs a second; None where it cannot be measured.
        after: seconds from the first call of :meth:`share`.
    """

    def __init__(
        self, flops: Callable[[Batch], float], measure: Callable[[], float | None], after: float = AFTER
    ) -> None:
        self.flops, self.measure, self.after = flops, measure, after
        self._started: float | None = None
        self._peak: float | None = None
        self._measured = False
        self._repeats = REPEATS
        self._work = 0.0

    def add(self, batches: Iterable[Batch]) -> None:
        """Counts the work of a step's batches; call it before they are moved to the device."""
        if self._peak is not None:
            self._work += sum(map(self.flops, batches))

    def share(self, seconds: float) -> float | None:
        """Returns the share (0 to 1) of the peak that the steps since the last call reached in ``seconds``.

        None if the peak is not measured yet, or measured below what the steps reached.
        """
        work, self._work = self._work, 0.0
        if self._started is None:
            self._started = time.monotonic()
        if not self._measured and time.monotonic() - self._started >= self.after:
            self._measured, self._peak = True, self.measure()
            return None  # the steps of this window were not counted
        if not self._peak or not work or seconds <= 0:
            return None
        reached = work / seconds
        if reached > self._peak and self._repeats:
            self._repeats -= 1
            self._peak = max(self._peak, self.measure() or 0.0)
        return reached / self._peak if reached <= self._peak else None


@torch.no_grad()
def peak_flops(device: torch.device, dtype: torch.dtype, seconds: float = TIME) -> float | None:
    """Returns the highest FLOPs a second of square matrix products within ``seconds``.

    None where memory is too small, or the machine has no instructions for the dtype. The matrices grow until a product
    takes 20 ms, or has 4,096 rows. On a CPU both torch's own product and oneDNN's are measured, since the faster one
    differs between machines and a run may use both.
    """
    if dtype is torch.bfloat16 and emulates_bfloat16(device):
        return None
    products: list[Product] = [torch.mm]
    if device.type == "cpu" and has_onednn(dtype):
        products.append(lambda a, b: onednn_product(a, b, None))
    generator = torch.Generator(device).manual_seed(0)
    ends, size, best, long = time.monotonic() + seconds, 512, 0.0, False
    try:
        while time.monotonic() < ends:
            a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
            for product in products:
                product(a, b)  # the first one of a size is slower
            while time.monotonic() < ends:
                duration = min(_timed(product, a, b) for product in products)
                best = max(best, FORWARD * size**3 / duration)
                long = duration >= LONG
                if not long and size < LARGEST:
                    size *= 2
                    break
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return best


def _timed(product: Product, a: Tensor, b: Tensor) -> float:
    """Returns the seconds of a product; on a GPU the mean of ten products, since a single product is too short to
    time.
    """
    wait = partial(torch.accelerator.synchronize, a.device) if a.device.type != "cpu" else _nothing
    count = 1 if a.device.type == "cpu" else 10
    wait()
    started = time.perf_counter()
    for _ in range(count):
        product(a, b)
    wait()
    return (time.perf_counter() - started) / count


def _nothing() -> None:
    """Does nothing: operations on a CPU are synchronous."""


def flops_of(model: Any) -> Callable[[Batch], float]:
    r"""Returns a function that counts the FLOPs of a batch's forward and backward pass, without padding.

    .. math:: \sum_{stacks} \Big(6 N \sum_i n_i + 12 L d \sum_i n_i m_i\Big) + 6 N_{head} n

    N is the number of weights in a stack's linear maps, L its number of blocks, d the number of heads times their size,
    n_i the number of tokens of text i and m_i its number of keys: its own tokens, in cross-attention the source's
    tokens, with a sliding window at most the window's size. Key and value maps of cross-attention count source tokens.
    A causal mask does not halve the count (as in the paper), and work that is computed twice (gradient checkpointing,
    cached gradients) counts once. A weight that is not trained counts 4 in place of 6, and so does the projection of
    patches, whose input needs no gradient. The head counts the tokens for which it is computed: the masked tokens in
    masked language models, one token of each text in classifiers, all tokens in other models. Norms, activations,
    softmax, embeddings, biases and the optimiser are left out.
    """
    config = model.config
    if isinstance(config, VisionConfig):
        return _of_images(model, config)
    if isinstance(config, EnsembleConfig):
        members = [flops_of(member) for member in model.members]
        return lambda batch: sum(flops(member_batch(batch, number)) for number, flops in enumerate(members))
    head = _maps(model.head)
    of_labelled_tokens = isinstance(config.head, MaskedHead | LanguageHead)
    of_all_tokens = isinstance(config.head, TokenHead | SpanHead)

    def of_head(batch: Batch, lengths: Tensor) -> float:
        if of_labelled_tokens:
            return head * int((batch["labels"] != IGNORED).sum())
        return head * (float(lengths.sum()) if of_all_tokens else len(lengths))

    if isinstance(config, EncoderDecoderConfig):
        first, second = _Stack(model.encoder, config.encoder), _Stack(model.decoder, config.decoder)
        first.token += _maps(model.memory_projection)
        patches = patches_of(config)
        patch_flops = 0.0 if patches is None else _of_patches(model, patches)

        def of_pairs(batch: Batch) -> float:
            if patches is not None:
                target = _labelled_lengths(batch["labels"])
                source = torch.full_like(target, patches.tokens)
                pixels = patch_flops * len(target)
                return pixels + first(source, source) + second(target, target, source) + of_head(batch, target)
            if "source" in batch:
                source, target = _lengths(batch["source"], batch.get("source_mask")), _labelled_lengths(batch["labels"])
            else:  # a classifier, whose decoder reads the text again
                source = target = _lengths(batch["ids"], batch.get("mask"))
            return first(source, source) + second(target, target, source) + of_head(batch, target)

        return of_pairs
    (stack_config,) = (part for part in vars(config).values() if isinstance(part, StackConfig))
    stack = _Stack(getattr(model, "decoder" if stack_config.causal else "encoder"), stack_config)

    def of_texts(batch: Batch) -> float:
        total = 0.0
        for name in (name for name in batch if name.endswith("ids")):
            ids, labels = _rows(batch[name]), batch.get("labels")
            mask = batch.get(f"{name[:-3]}mask", batch.get("texts"))
            labels, mask = (None if part is None else _rows(part) for part in (labels, mask))
            shifted = mask is None and labels is not None and labels.shape == ids.shape
            lengths = _labelled_lengths(labels) if shifted and labels is not None else _lengths(ids, mask)
            total += stack(lengths, lengths) + of_head(batch, lengths)
        return total

    return of_texts


class _Stack:
    """Counts the FLOPs of a stack over texts."""

    def __init__(self, stack: Any, config: StackConfig) -> None:
        cross = [block.cross_attention for block in stack.block] if config.cross else []
        self.memory = sum(_maps(attention.key) + _maps(attention.value) for attention in cross)  # a source token
        self.token = sum(map(_maps, (stack.position, stack.projection, *stack.block))) - self.memory
        width = config.heads * (config.head_dim or config.dim // config.heads)
        self.pair = 6 * FORWARD * width  # in each block two products, and four in the backward pass
        self.windows = Counter(config.windows)

    def __call__(self, queries: Tensor, keys: Tensor, source: Tensor | None = None) -> float:
        """Returns the FLOPs for texts of these lengths (N,): ``keys`` are attended to in self-attention, ``source`` in
        cross-attention.
        """
        flops = self.token * float(queries.sum())
        for window, blocks in self.windows.items():
            self_keys = keys if window is None else keys.clamp(max=window)
            flops += blocks * self.pair * float((queries * self_keys).sum())
        if source is not None:
            depth = self.windows.total()
            flops += self.memory * float(source.sum()) + depth * self.pair * float((queries * source).sum())
        return flops


def _of_images(model: Any, config: VisionConfig) -> Callable[[Batch], float]:
    row = torch.tensor([float(config.patches.tokens)])
    flops = _of_patches(model, config.patches) + _Stack(model.encoder, config.encoder)(row, row) + _maps(model.head)
    return lambda batch: float(flops * len(batch["pixels"]))


def _of_patches(model: Any, patches: PatchConfig) -> float:
    """Returns the FLOPs of the projection of an image's patches, whose input needs no gradient."""
    projection = model.embedding.projection.weight
    factor = FORWARD + BACKWARD * projection.requires_grad
    return float((patches.tokens - patches.prefix_tokens) * factor * projection.numel())


def _maps(part: nn.Module) -> float:
    """Returns the FLOPs for one token, forward and backward, of all linear maps in ``part``, adapters included."""
    weights = {
        id(p): p
        for module in part.modules()
        if isinstance(module, nn.Linear)
        for p in module.parameters(recurse=False)
        if p.dim() == 2
    }
    return float(sum((FORWARD + BACKWARD * (1 + p.requires_grad)) * p.numel() for p in weights.values()))


def _rows(tensor: Tensor) -> Tensor:
    """Returns a tensor (..., T) as (rows, T); an example of preferences has two rows."""
    return tensor.flatten(0, -2) if tensor.ndim > 2 else tensor


def _lengths(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the number of tokens of each text; in packed rows the mask holds the texts' numbers, 0 is padding."""
    if mask is None:
        return torch.full((len(ids),), float(ids.size(1)))
    if mask.dtype == torch.bool:
        return mask.sum(1).double()
    texts = mask.long() + (int(mask.max()) + 1) * torch.arange(len(mask))[:, None]
    counts = torch.bincount(texts[mask > 0])
    return counts[counts > 0].double()


def _labelled_lengths(labels: Tensor) -> Tensor:
    """Returns the number of tokens of each row up to its last label: what follows is padding."""
    is_label = labels != IGNORED
    positions = torch.arange(1, labels.size(1) + 1)
    return (is_label * positions).amax(1).double()
