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

from heedful.config import LearnedPosition
from heedful.errors import HeedfulError, lookup
from heedful.inspection.alignment import Link
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, plain
from heedful.inspection.head_scores import EXPECTS, repeated_tokens
from heedful.inspection.record import observe
from heedful.inspection.tensor_paths import chosen_places
from heedful.models import Decoder, Encoder, EncoderDecoder, VisionTransformer
from heedful.models.base import Model

Pattern = Literal["previous-token", "first-token", "duplicate-token", "induction", "alignment"]
SELF, CROSS = "attention.pattern", "cross_attention.pattern"


class Found(NamedTuple):
    """A head and how well it fits."""

    path: str  # of its pattern, such as "decoder.block.1.attention.pattern"
    layer: int
    head: int
    score: float  # mean weight on the expected keys, 0 to 1; of an alignment without gold, nats; NaN: nothing tells
    even: float  # what a head would score that looks alike at all it may see


def find_heads(
    model: Model,
    *inputs: Tensor,
    by: Pattern | Tensor = "previous-token",
    gold: Sequence[Iterable[Link]] | None = None,
    when: Literal["output", "input"] = "output",
    layers: Sequence[int] | None = None,
    **named: Any,
) -> list[Found]:
    """All heads of a model, those that fit best first.

    "previous-token", "first-token", "duplicate-token" and "induction" score self-attention, as the functions of these
    names in ``heedful.inspection.head_scores`` do. "alignment" scores cross-attention: with ``gold`` links by the mean
    weight that linked target tokens give to their source tokens; without, by ``mutual_information`` of target and
    source position, which is high where each target token looks at a source token of its own.

    Hold a score against ``even``, what indifference would score; ablate a head to know whether it matters.

    Args:
        model: of any family.
        inputs: what the model is called with. A decoder or an encoder of text without any gets ``repeated_tokens``,
            after its start token.
        by: the pattern; or, of a model with one stack, the keys that each query is expected to look at, (B, T, T) and
            True, such as ``head_scores.expects_object`` makes for an image.
        gold: of each sequence, links (source token, column of the target ids), as ``alignment.align`` makes them.
        when: whether the row counts that chooses a target token or the one that reads it; see ``align``.
        layers: only the blocks of these numbers.
        named: what the model is called with by name: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: for a pattern that the model or the inputs cannot show.

    >>> import heedful
    >>> found = find_heads(heedful.create("gpt-micro", seed=0), by="previous-token")
    >>> len(found), found[0].score >= found[-1].score, round(found[0].even, 3)
    (16, True, 0.071)
    """
    if not isinstance(by, Tensor):
        lookup(dict.fromkeys([*EXPECTS, "alignment"]), by, "pattern")
    aligned = not isinstance(by, Tensor) and by == "alignment"
    if not aligned and (gold is not None or when != "output"):
        raise HeedfulError("gold and when are for by='alignment'; leave them out")
    model = plain(model)
    given = inputs or (_made(model),)
    name = CROSS if aligned else SELF
    places = chosen_places(model, name, layers)
    sums = _sums(model, [place.path for place in places], by, _sides(model, *given, **named), gold, when)
    with torch.no_grad(), evaluating(model), observe(model, sums.receive, name, layers=layers):
        model(*given, **named)
    found = []
    for place in places:
        assert place.layer is not None
        scores, even = sums.scores(place.path)
        found += [Found(place.path, place.layer, head, score, even) for head, score in enumerate(scores.tolist())]
    return sorted(found, key=lambda one: (math.isnan(one.score), -one.score))


def _sums(
    model: Model,
    paths: Sequence[str],
    by: Pattern | Tensor,
    sides: Mapping[str, tuple[Tensor, Tensor]],
    gold: Sequence[Iterable[Link]] | None,
    when: Literal["output", "input"],
) -> _Sums:
    """Accumulator for the patterns at ``paths``."""
    if isinstance(by, Tensor):
        shapes = {(*real.shape, real.size(1)) for _, real in sides.values()}
        if len(sides) > 1 or by.shape not in shapes:
            wanted = "leave that to one of the named patterns" if len(sides) > 1 else f"give {shapes.pop()}"
            raise HeedfulError(f"expected keys of shape {tuple(by.shape)} for {len(sides)} stack(s); {wanted}")
        return _Expected(dict.fromkeys(paths, by.bool()))
    if by == "alignment":
        (_, real), (_, source_real) = sides["decoder"], sides["encoder"]
        if gold is None:
            return _Information(real)
        return _Expected(dict.fromkeys(paths, expects_links(gold, real, source_real, when)))
    if isinstance(model, VisionTransformer) and by not in ("previous-token", "first-token"):
        raise HeedfulError(f"an image has no token ids that could repeat: {by!r} is for texts")
    expected = {side: EXPECTS[by](*text) for side, text in sides.items()}
    return _Expected({path: expected[_side(path)] for path in paths})


def expects_links(
    gold: Sequence[Iterable[Link]], real: Tensor, source_real: Tensor, when: Literal["output", "input"] = "output"
) -> Tensor:
    """Expected keys of cross-attention by ``gold``: (B, T, S), True in the row of a target token at its sources.

    Args:
        gold: of each sequence, links (source token, column of the target ids).
        real: (B, T), of the decoder's input.
        source_real: (B, S).
        when: "output": token t belongs to row t − 1, which chooses it; "input": to row t.
    """
    back = lookup({"output": 1, "input": 0}, when, "time of alignment")
    expected = torch.zeros(len(real), real.size(1), source_real.size(1), dtype=torch.bool, device=real.device)
    if len(gold) != len(real):
        raise HeedfulError(f"gold links of {len(gold)} sentences for a batch of {len(real)}; give one list a sentence")
    for row, links in enumerate(gold):
        for source, target in links:
            if not (0 <= source < source_real.size(1) and 1 <= target < real.size(1) + back):
                raise HeedfulError(
                    f"sentence {row}: the link ({source}, {target}) is outside of {source_real.size(1)} source tokens "
                    f"and columns 1 to {real.size(1) - 1 + back} of the target"
                )
            expected[row, target - back, source] = True
    return expected & real[:, :, None] & source_real[:, None, :]


# ----------------------------------------------------------------------------------------- what is summed up on the way


class _Sums(Protocol):
    def receive(self, path: str, weights: Tensor, first: int) -> None: ...

    def scores(self, path: str) -> tuple[Tensor, float]: ...


class _Expected:
    """The mean weight on expected keys; ``expected`` (B, T, S) by path."""

    def __init__(self, expected: Mapping[str, Tensor]) -> None:
        self.expected = expected
        self.number = {path: int(keys.any(-1).sum()) for path, keys in expected.items()}
        if not any(self.number.values()):
            raise HeedfulError("no token of these inputs tells whether a head does this; give longer or other inputs")
        self.sum: dict[str, Tensor] = {}
        self.even: dict[str, float] = dict.fromkeys(expected, 0.0)

    def receive(self, path: str, weights: Tensor, first: int) -> None:
        keys = self.expected[path][:, first : first + weights.size(2)]
        here = (precise(weights) * keys[:, None]).sum((0, 2, 3))
        self.sum[path] = self.sum.get(path, torch.zeros_like(here)) + here
        seen = weights.gt(0).any(1)  # (B, t, S): what the mask lets through, to some head at least
        share = (keys & seen).sum(-1) / seen.sum(-1).clamp(min=1)
        self.even[path] += float(share.sum())

    def scores(self, path: str) -> tuple[Tensor, float]:
        number = self.number[path] or math.nan  # of a pair, one stack's tokens may not tell
        return self.sum[path] / number, self.even[path] / number


class _Information:
    """H(mean_t a_t) − mean_t H(a_t) over ``real`` (B, T) queries, mean over B."""

    def __init__(self, real: Tensor) -> None:
        self.real, self.number = real, real.sum(1)
        self.total: dict[str, Tensor] = {}  # (B, H, S)
        self.own: dict[str, Tensor] = {}  # (B, H)

    def receive(self, path: str, weights: Tensor, first: int) -> None:
        here = precise(weights) * self.real[:, None, first : first + weights.size(2), None]
        total, own = here.sum(2), torch.special.entr(here).sum((2, 3))
        self.total[path] = self.total.get(path, torch.zeros_like(total)) + total
        self.own[path] = self.own.get(path, torch.zeros_like(own)) + own

    def scores(self, path: str) -> tuple[Tensor, float]:
        mean = self.total[path] / self.number[:, None, None]
        return (torch.special.entr(mean).sum(-1) - self.own[path] / self.number[:, None]).mean(0), 0.0


# ------------------------------------------------------------------------------------------------ what a model is given


def _side(path: str) -> str:
    return path.partition(".")[0]


def _made(model: Model) -> Tensor:
    """Repeated random ids after the model's start token, no longer than its learned positions."""
    if not isinstance(model, Decoder | Encoder):
        raise HeedfulError("give what the model is to be called with; random tokens suit a decoder or encoder alone")
    special, place = model.config.special, model.main.position
    most = (place.length - (special.start is not None)) // 2 if isinstance(place, LearnedPosition) else 25
    named = (special.pad, special.start, *special.end)
    ids = repeated_tokens(
        model.config.embedding.vocab_size,
        length=min(25, most),
        start=special.start,
        avoid=tuple(i for i in named if i is not None),
    )
    return ids.to(model.device)


def _sides(model: Model, *inputs: Tensor, **named: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Ids and real tokens, each (B, T), of each stack's tokens; an image's ids are all 0."""
    try:
        given = inspect.signature(model.forward).bind(*inputs, **named).arguments
    except TypeError as error:
        raise HeedfulError(f"the model cannot be called so: {error}") from None
    if isinstance(model, EncoderDecoder):
        pairs = {"encoder": ("source", "source_mask"), "decoder": ("target", "target_mask")}
    else:
        pairs = {"decoder" if isinstance(model, Decoder) else "encoder": ("ids", "mask")}
    if isinstance(model, VisionTransformer):
        given["ids"] = torch.zeros(len(given["pixels"]), model.config.patches.tokens).long().to(model.device)
    sides = {}
    for side, (ids, mask) in pairs.items():
        real = given.get(mask)
        sides[side] = given[ids], torch.ones_like(given[ids]).bool() if real is None else real.bool()
    return sides
