"""Model inputs and targets of one example, token by token, for people (``heedful audit``).

``Task.sides`` returns them; the functions here build a side from one row of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from heedful.tasks.token_batches import IGNORED
from heedful.text import Tokenizer
from heedful.util.escaping import pictured


class Side(NamedTuple):
    """One token sequence of an example, with the target at each of its positions.

    Attributes:
        name: "text", "source", "target", ...
        ids: token ids, special tokens included, without padding.
        tokenizer: the tokenizer of the ids.
        targets: the target at each position as text; "" where there is none.
        predicts_next: True if the target at a position is the next token.
    """

    name: str
    ids: list[int]
    tokenizer: Tokenizer
    targets: list[str]
    predicts_next: bool = False

    @property
    def pieces(self) -> list[str]:
        """The tokens as texts, one for each id."""
        return self.tokenizer.pieces(self.ids)

    @property
    def target_count(self) -> int:
        """Number of positions with a target."""
        return sum(map(bool, self.targets))

    def line(self, most: int = 60) -> str:
        """Returns the tokens as one line of text, separated by bars.

        A target is put in ‹› if it is the next token, else after an arrow. If there are more than ``most`` tokens, only
        the tokens at the beginning, around the first target and around the last target are shown.

        >>> words = Tokenizer.train(["one two"], size=300)
        >>> Side("text", [1, 2], words, ["X", ""]).line()
        '<s>→X|</s>'
        """
        if self.predicts_next:
            following = zip(self.targets, [*self.pieces[1:], ""], strict=True)
            tokens = [self.pieces[0]] if self.pieces else []
            tokens += [f"‹{target}›" if target else piece for target, piece in following]
        else:
            pairs = zip(self.pieces, self.targets, strict=True)
            tokens = [f"{piece}→{target}" if target else piece for piece, target in pairs]
        positions = [position + self.predicts_next for position, target in enumerate(self.targets) if target]
        ranges = _shown_ranges(len(tokens), positions, most)
        shown: list[str] = []
        for part in ranges:
            shown += ["…"] * (part.start > 0) + tokens[part.start : part.stop]
        shown += ["…"] * (ranges[-1].stop < len(tokens))
        return "|".join(pictured(token.replace("\n", "⏎")) for token in shown)


def _shown_ranges(length: int, targets: Sequence[int], most: int) -> list[range]:
    """Returns the ranges of ``length`` positions to show, at most ``most`` positions: all, or the first positions and
    the positions around the first and the last of ``targets``.
    """
    if length <= most:
        return [range(length)]
    if not targets or targets[-1] < most:
        return [range(most)]
    size = most // 3
    first = [targets[0] - 2, targets[0] - 2 + size]  # with two positions of context before it
    last = [targets[-1] + 3 - size, min(targets[-1] + 3, length)]
    ranges: list[range] = []
    for start, stop in ([0, size], first, last):
        if ranges and start <= ranges[-1].stop:
            ranges[-1] = range(ranges[-1].start, max(ranges[-1].stop, stop))
        else:
            ranges.append(range(start, min(stop, length)))
    return ranges


def input_side(name: str, ids: Tensor, mask: Tensor, tokenizer: Tokenizer) -> Side:
    """Returns a token sequence without targets; ``mask`` (T,) is False for the padding of ``ids`` (T,)."""
    tokens = ids[mask.bool()].tolist()
    return Side(name, tokens, tokenizer, [""] * len(tokens))


def next_token_side(name: str, ids: Tensor, labels: Tensor, tokenizer: Tokenizer) -> Side:
    """Returns a token sequence whose targets are the next tokens.

    ``labels`` (T,) has the next token for each of ``ids`` (T,), and ``IGNORED`` where there is no target.
    """
    positions = (labels != IGNORED).nonzero().flatten()
    length = int(positions[-1]) + 1 if len(positions) else len(ids)
    targets = [tokenizer.pieces([label])[0] if label != IGNORED else "" for label in labels[:length].tolist()]
    return Side(name, ids[:length].tolist(), tokenizer, targets, predicts_next=True)


def label_side(
    name: str, ids: Tensor, mask: Tensor, labels: Tensor, tokenizer: Tokenizer, label_name: Callable[[int], str]
) -> Side:
    """Returns a token sequence with labels as targets at some tokens.

    ``labels`` (T,) has a label for each of ``ids`` (T,), and ``IGNORED`` where there is none; ``label_name`` returns
    the text of a label.
    """
    side = input_side(name, ids, mask, tokenizer)
    numbers = labels[mask.bool()].tolist()
    return side._replace(targets=[label_name(number) if number != IGNORED else "" for number in numbers])


def span_side(name: str, ids: Tensor, mask: Tensor, span: Tensor, tokenizer: Tokenizer) -> Side:
    """Returns a token sequence with two targets, the first and the last token of an answer.

    ``span`` (2,) has their positions in ``ids`` (T,).
    """
    side = input_side(name, ids, mask, tokenizer)
    first, last = span.tolist()
    targets = list(side.targets)
    targets[first] = "first"
    targets[last] = "last" if last != first else "whole"
    return side._replace(targets=targets)
