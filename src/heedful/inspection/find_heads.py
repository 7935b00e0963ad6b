"""Head search: ranks all heads of a model by how well their attention fits a known pattern.

Patterns come a few queries at a time, and only sums are kept. Shapes: B sequences, H heads, t of T queries, S keys.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.config import LearnedPosition, patches_of
from heedful.errors import HeedfulError, lookup
from heedful.inspection.alignment import Link
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, unwrap
from heedful.inspection.head_scores import EXPECTED_KEYS, repeated_tokens
from heedful.inspection.record import observe
from heedful.inspection.tensor_paths import select_hook_points
from heedful.models import Decoder, Encoder, EncoderDecoder
from heedful.models.base import Model

Pattern = Literal["previous-token", "first-token", "duplicate-token", "induction", "alignment"]
SELF, CROSS = "attention.pattern", "cross_attention.pattern"


class HeadMatch(NamedTuple):
    """Head of a model with its score for a pattern, and the score that equal weights on all keys would have."""

    path: str  #: of its weights, such as "decoder.block.1.attention.pattern"
    layer: int
    head: int
    score: float  #: mean weight on the expected keys, 0 to 1; mutual information in nats; NaN without tokens to score
    uniform: float  #: the score of equal weights on all keys that the mask admits


def find_heads(
    model: Model,
    *inputs: Tensor,
    by: Pattern | Tensor = "previous-token",
    gold: Sequence[Iterable[Link]] | None = None,
    when: Literal["output", "input"] = "output",
    layers: Sequence[int] | None = None,
    **named: Any,
) -> list[HeadMatch]:
    """Returns all heads of a model, the best match of a pattern first.

    "previous-token", "first-token", "duplicate-token" and "induction" score self-attention, as the functions of these
    names in ``heedful.inspection.head_scores`` do. "alignment" scores cross-attention: with ``gold`` links by the mean
    weight of linked target tokens on their source tokens; without ``gold`` by the ``mutual_information`` of target and
    source positions, which is high if different target tokens attend to different source tokens.

    Compare the ``score`` of a head with its ``uniform``, the score that equal weights on all keys would have. Ablate a
    head to measure whether it matters.

    Args:
        model: a model of any family.
        inputs: arguments of the model. Without any, a decoder or an encoder of text gets ``repeated_tokens`` after its
            start token.
        by: the pattern; or, for a model with one stack, the expected keys of each query, (B, T, T) boolean, such as
            ``head_scores.expects_object`` makes for an image.
        gold: for each sequence, links (source token, column of the target ids), as ``alignment.align`` makes them.
        when: "output" scores the row that predicts a target token, "input" the row that has it as input; see ``align``.
        layers: numbers of blocks; None is all.
        named: keyword arguments of the model: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: for a pattern that does not apply to the model, or inputs without a token to score.

    >>> import heedful
    >>> matches = find_heads(heedful.create("gpt-micro", seed=0), by="previous-token")
    >>> len(matches), matches[0].score >= matches[-1].score, round(matches[0].uniform, 3)
    (16, True, 0.071)
    """
    if not isinstance(by, Tensor):
        lookup(dict.fromkeys([*EXPECTED_KEYS, "alignment"]), by, "pattern")
    is_alignment = not isinstance(by, Tensor) and by == "alignment"
    if not is_alignment and (gold is not None or when != "output"):
        raise HeedfulError("gold and when apply to by='alignment' only; remove them, or give by='alignment'")
    model = unwrap(model)
    inputs = inputs or (_default_input(model),)
    name = CROSS if is_alignment else SELF
    points = select_hook_points(model, name, layers)
    blocks = {point.path: layer for point in points if (layer := point.layer) is not None}  # not what is outside
    sums = _sums(model, list(blocks), by, _sides(model, *inputs, **named), gold, when)
    with torch.no_grad(), evaluating(model), observe(model, sums.receive, list(blocks)):
        model(*inputs, **named)
    matches = []
    for path, layer in blocks.items():
        scores, uniform = sums.scores(path)
        matches += [HeadMatch(path, layer, head, score, uniform) for head, score in enumerate(scores.tolist())]
    return sorted(matches, key=lambda match: (math.isnan(match.score), -match.score))


def _sums(
    model: Model,
    paths: Sequence[str],
    by: Pattern | Tensor,
    sides: Mapping[str, tuple[Tensor, Tensor]],
    gold: Sequence[Iterable[Link]] | None,
    when: Literal["output", "input"],
) -> _ScoreAccumulator:
    """Returns the object that sums the scores of the patterns at ``paths``."""
    if isinstance(by, Tensor):
        if len(sides) > 1:
            raise HeedfulError(
                f"by is a tensor, but the model has {len(sides)} stacks with different tokens; name a pattern, such "
                "as by='previous-token'"
            )
        [(_, real)] = sides.values()
        expected_shape = (*real.shape, real.size(1))
        if by.shape != expected_shape:
            raise HeedfulError(f"by has shape {tuple(by.shape)}; give (B, T, T) for these inputs: {expected_shape}")
        return _ExpectedWeight(dict.fromkeys(paths, by.bool()))
    if by == "alignment":
        (_, real), (_, source_real) = sides["decoder"], sides["encoder"]
        if gold is None:
            return _MutualInformation(real)
        return _ExpectedWeight(dict.fromkeys(paths, expects_links(gold, real, source_real, when)))
    if patches_of(model.config) is not None and by not in ("previous-token", "first-token"):
        raise HeedfulError(f"{by!r} compares token ids, which an image does not have; give 'previous-token'")
    expected = {side: EXPECTED_KEYS[by](*tokens) for side, tokens in sides.items()}
    return _ExpectedWeight({path: expected[_side(path)] for path in paths})


def expects_links(
    gold: Sequence[Iterable[Link]], real: Tensor, source_real: Tensor, when: Literal["output", "input"] = "output"
) -> Tensor:
    """Returns the keys to which links expect cross-attention to attend, boolean (B, T, S).

    A target token's row is True at the source tokens to which the token is linked.

    Args:
        gold: for each sequence, its links (source token, column of the target ids).
        real: (B, T), True for non-padding tokens of the decoder's input.
        source_real: (B, S), True for non-padding tokens of the source.
        when: the row of token t: "output" is row t − 1, which predicts the token; "input" is row t, which reads it.
    """
    shift = lookup({"output": 1, "input": 0}, when, "time of alignment")
    expected = torch.zeros(len(real), real.size(1), source_real.size(1), dtype=torch.bool, device=real.device)
    if len(gold) != len(real):
        raise HeedfulError(f"gold has {len(gold)} lists for a batch of {len(real)} sentences; give one list for each")
    for row, links in enumerate(gold):
        for source, target in links:
            if not (0 <= source < source_real.size(1) and 1 <= target < real.size(1) + shift):
                raise HeedfulError(
                    f"sentence {row}: the link ({source}, {target}) is outside the {source_real.size(1)} source tokens "
                    f"and columns 1 to {real.size(1) - 1 + shift} of the target; correct the link"
                )
            expected[row, target - shift, source] = True
    return expected & real[:, :, None] & source_real[:, None, :]


# --------------------------------------------------------------------------------------------------------- accumulators


class _ScoreAccumulator(Protocol):
    def receive(self, path: str, weights: Tensor, first: int) -> None: ...

    def scores(self, path: str) -> tuple[Tensor, float]: ...


class _ExpectedWeight:
    """Mean weight on the expected keys; ``expected`` (B, T, S) by path."""

    def __init__(self, expected: Mapping[str, Tensor]) -> None:
        self.expected = expected
        self.queries = {path: int(keys.any(-1).sum()) for path, keys in expected.items()}
        if not any(self.queries.values()):
            raise HeedfulError("the pattern expects no key for any token of these inputs; give other inputs")
        self.sum: dict[str, Tensor] = {}
        self.uniform: dict[str, float] = dict.fromkeys(expected, 0.0)

    def receive(self, path: str, weights: Tensor, first: int) -> None:
        keys = self.expected[path][:, first : first + weights.size(2)]
        weight = (precise(weights) * keys[:, None]).sum((0, 2, 3))
        self.sum[path] = self.sum.get(path, torch.zeros_like(weight)) + weight
        admitted = weights.gt(0).any(1)  # (B, t, S): keys with weight in at least one head
        share = (keys & admitted).sum(-1) / admitted.sum(-1).clamp(min=1)
        self.uniform[path] += float(share.sum())

    def scores(self, path: str) -> tuple[Tensor, float]:
        queries = self.queries[path] or math.nan  # one stack of an encoder-decoder may have no token to score
        return self.sum[path] / queries, self.uniform[path] / queries


class _MutualInformation:
    """H(mean_t a_t) − mean_t H(a_t) over ``real`` (B, T) queries, mean over B."""

    def __init__(self, real: Tensor) -> None:
        self.real, self.queries = real, real.sum(1)
        self.weights: dict[str, Tensor] = {}  # sums over queries, (B, H, S)
        self.entropies: dict[str, Tensor] = {}  # sums over queries, (B, H)

    def receive(self, path: str, weights: Tensor, first: int) -> None:
        weights = precise(weights) * self.real[:, None, first : first + weights.size(2), None]
        total, entropy = weights.sum(2), torch.special.entr(weights).sum((2, 3))
        self.weights[path] = self.weights.get(path, torch.zeros_like(total)) + total
        self.entropies[path] = self.entropies.get(path, torch.zeros_like(entropy)) + entropy

    def scores(self, path: str) -> tuple[Tensor, float]:
        mean = self.weights[path] / self.queries[:, None, None]
        return (torch.special.entr(mean).sum(-1) - self.entropies[path] / self.queries[:, None]).mean(0), 0.0


# --------------------------------------------------------------------------------------------------------------- inputs


def _side(path: str) -> str:
    return path.partition(".")[0]


def _default_input(model: Model) -> Tensor:
    """Returns repeated random ids after the model's start token, no longer than its learned positions."""
    if not isinstance(model, Decoder | Encoder):
        raise HeedfulError("the default inputs, random tokens, suit only a decoder or an encoder; give inputs")
    special, position = model.config.special, model.main.position
    longest = (position.length - (special.start is not None)) // 2 if isinstance(position, LearnedPosition) else 25
    special_ids = (special.pad, special.start, *special.end)
    ids = repeated_tokens(
        model.config.embedding.vocab_size,
        length=min(25, longest),
        start=special.start,
        avoid=tuple(i for i in special_ids if i is not None),
    )
    return ids.to(model.device)


def _sides(model: Model, *inputs: Tensor, **named: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns ids and the mask of non-padding tokens (B, T) of each stack; the ids of an image are all 0."""
    try:
        arguments = inspect.signature(model.forward).bind(*inputs, **named).arguments
    except TypeError as error:
        raise HeedfulError(
            f"the model does not take these inputs: {error}; give the arguments of model.forward"
        ) from None
    if isinstance(model, EncoderDecoder):
        pairs = {"encoder": ("source", "source_mask"), "decoder": ("target", "target_mask")}
    else:
        pairs = {"decoder" if isinstance(model, Decoder) else "encoder": ("ids", "mask")}
    if (patches := patches_of(model.config)) is not None:
        name, pixels = ("source" if isinstance(model, EncoderDecoder) else "ids"), arguments[next(iter(arguments))]
        arguments[name] = torch.zeros(len(pixels), patches.tokens).long().to(model.device)
    sides = {}
    for side, (ids, mask) in pairs.items():
        real = arguments.get(mask)
        sides[side] = arguments[ids], torch.ones_like(arguments[ids]).bool() if real is None else real.bool()
    return sides
