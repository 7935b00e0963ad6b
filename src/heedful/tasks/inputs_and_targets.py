"""Model inputs and targets of an example, token by token, read off a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from heedful.tasks.model_setup import IGNORED
from heedful.tasks.task import Task
from heedful.text import Tokenizer
from heedful.util.escaping import named, pictured


class Side(NamedTuple):
    """One text that a stack reads.

    Attributes:
        name: "text", "source", "target", ...
        ids: its tokens, special ones too, padding left out.
        tokenizer: whose they are.
        said: at each, what is learned there, as a person reads it; "" where nothing is. Of a text that goes on that is
            the next token.
        goes_on: whether what is said is the next token.
    """

    name: str
    ids: list[int]
    tokenizer: Tokenizer
    said: list[str]
    goes_on: bool = False

    @property
    def pieces(self) -> list[str]:
        """The tokens as people read them."""
        return self.tokenizer.pieces(self.ids)

    @property
    def learned(self) -> int:
        """At how many places something is learned."""
        return sum(map(bool, self.said))

    def line(self, most: int = 60) -> str:
        """The pieces with bars between; what is learned stands in ‹› where it is the next token, else after an arrow.

        Of more than ``most`` pieces those at the beginning and, where it comes later, those about the first place that
        is learned from and about the last.

        >>> words = Tokenizer.train(["one two"], size=300)
        >>> Side("text", [1, 2], words, ["X", ""]).line()
        '<s>→X|</s>'
        """
        if self.goes_on:
            after = [
                f"‹{said}›" if said else piece for said, piece in zip(self.said, [*self.pieces[1:], ""], strict=True)
            ]
            shown = [self.pieces[0], *after] if self.pieces else []
        else:
            pairs = zip(self.pieces, self.said, strict=True)
            shown = [f"{piece}→{said}" if said else piece for piece, said in pairs]
        lessons = [place + self.goes_on for place, said in enumerate(self.said) if said]
        kept = _kept(len(shown), lessons, most)
        cut = [piece for part in kept for piece in (*(["…"] * (part.start > 0)), *shown[part.start : part.stop])]
        cut += ["…"] * (kept[-1].stop < len(shown))
        return "|".join(pictured(piece.replace("\n", "⏎")) for piece in cut)


def _kept(length: int, lessons: Sequence[int], most: int) -> list[range]:
    """Which of ``length`` places are shown, at most ``most``: all, or the first ones and those about the first and the
    last of ``lessons``.
    """
    if length <= most:
        return [range(length)]
    if not lessons or lessons[-1] < most:
        return [range(most)]
    part = most // 3
    first = [lessons[0] - 2, lessons[0] - 2 + part]  # with two places before it, for where it begins
    last = [lessons[-1] + 3 - part, min(lessons[-1] + 3, length)]
    joined: list[range] = []
    for start, stop in ([0, part], first, last):
        if joined and start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, stop))
        else:
            joined.append(range(start, min(stop, length)))
    return joined


def seen(task: Task, batch: Mapping[str, Tensor], row: int = 0) -> list[Side]:
    """The sides of one row of a batch that ``task.collate`` made; none of an image."""
    owner: Any = task  # tasks of one kind of batch have tokenizers of one name
    if "source" in batch:
        return [
            _plain("source", batch, row, owner.source, "source_mask"),
            _next("target", batch["target"][row], batch["labels"][row], owner.target),
        ]
    sides = [name.removesuffix(".ids") for name in batch if name.endswith(".ids")]
    if sides:
        return [_plain(name, batch, row, owner.tokenizer, f"{name}.mask", f"{name}.ids") for name in sides]
    if "ids" not in batch:
        return []
    ids, labels = batch["ids"][row], batch.get("labels")
    if labels is None or labels.is_floating_point() or "context" in batch:  # of the text's classes, (B, C), not (B, T)
        side = _plain("text", batch, row, owner.tokenizer, "mask", "ids")
        return [_between(side, batch, row)] if "context" in batch else [side]
    if "mask" not in batch:
        return [_next("text", ids, labels[row], owner.tokenizer)]
    side = _plain("text", batch, row, owner.tokenizer, "mask", "ids")
    names = getattr(owner, "labels", None)
    kept = labels[row][batch["mask"][row].bool()].tolist()
    told = {n: named(names[n]) if names else owner.tokenizer.pieces([n])[0] for n in {*kept} - {IGNORED}}
    return [side._replace(said=[told.get(n, "") for n in kept])]


def _plain(
    name: str, batch: Mapping[str, Tensor], row: int, tokenizer: Tokenizer, mask: str, ids: str | None = None
) -> Side:
    read = batch[ids or name][row]
    kept = read[batch[mask][row].bool()].tolist() if mask in batch else read.tolist()
    return Side(name, kept, tokenizer, [""] * len(kept))


def _next(name: str, ids: Tensor, labels: Tensor, tokenizer: Tokenizer) -> Side:
    """A text whose every token is predicted from those before it."""
    places = (labels != IGNORED).nonzero().flatten()
    length = int(places[-1]) + 1 if len(places) else len(ids)
    said = [tokenizer.pieces([n])[0] if n != IGNORED else "" for n in labels[:length].tolist()]
    return Side(name, ids[:length].tolist(), tokenizer, said, goes_on=True)


def _between(side: Side, batch: Mapping[str, Tensor], row: int) -> Side:
    """A span: what begins and what ends at its places."""
    first, last = (int(place) for place in batch["labels"][row])
    said = list(side.said)
    said[first] = "first"
    said[last] = "last" if last != first else "whole"
    return side._replace(said=said)
