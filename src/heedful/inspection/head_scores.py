"""Head scores: fit of attention patterns to known ones (previous token, induction ...).

Each score is the mean weight that queries give to the keys that the pattern expects. Shapes: B sequences, H heads, T
queries, S keys. ``real`` (B, T) is True for real tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import precise


def weight_on(pattern: Tensor, expected: Tensor) -> Tensor:
    """The mean over queries of Σ_{s expected} a_ts, for each head (H,); queries that expect no key do not count.

    Args:
        pattern: (B, H, T, S).
        expected: (B, T, S), True where the pattern looked for would look.

    Raises:
        HeedfulError: no query expects anything.
    """
    counted = int(expected.any(-1).sum())
    if not counted:
        raise HeedfulError("no token of these inputs tells whether a head does this; give longer or other inputs")
    return (precise(pattern) * expected[:, None]).sum((0, 2, 3)) / counted


def previous_token(pattern: Tensor, real: Tensor | None = None, *, offset: int = 1) -> Tensor:
    """The mean weight on the token before the query's own: (B, H, T, T) → (H,). ``offset`` 2: two before; −1: the next.

    >>> previous_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_previous(_real(pattern, real), offset))


def first_token(pattern: Tensor, real: Tensor | None = None) -> Tensor:
    """The mean weight on the first real token, the "sink", of all queries after it: (B, H, T, T) → (H,).

    Xiao et al. 2024, section 3.1.

    >>> first_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_first(_real(pattern, real)))


def duplicate_token(pattern: Tensor, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """The mean weight on earlier copies of the query's own token, of all tokens that have one: → (H,).

    Wang et al. 2023, section 3: the duplicate token heads.

    >>> duplicate_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]), torch.tensor([[5, 5]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_duplicate(ids, _real(pattern, real)))


def induction(pattern: Tensor, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """The mean weight on the tokens that followed earlier copies of the query's own token: → (H,).

    In "A B ... A" the second A looks at B. Olsson et al. 2022's prefix matching score; take ``repeated_tokens`` for
    ``ids``, where nothing but the repetition tells what comes next.

    >>> pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.1, 0.8, 0.1]]]])
    >>> induction(pattern, torch.tensor([[5, 6, 5]]))
    tensor([0.8000])
    """
    return weight_on(pattern, expects_induction(ids, _real(pattern, real)))


def mutual_information(pattern: Tensor, real: Tensor | None = None) -> Tensor:
    """Mutual information of query and key: H(mean_t a_t) − mean_t H(a_t), in nats, mean over B: → (H,).

    0 where all queries look alike (everywhere, or all at the end mark); ln T where each looks at a key of its own, as a
    clean alignment does. It needs no gold alignment. Queries with a row of zeros do not count.

    >>> mutual_information(torch.eye(2)[None, None])
    tensor([0.6931])
    """
    weights = precise(pattern)
    counts = weights.ne(0).any(-1).any(1)  # (B, T)
    counts = counts if real is None else counts & real.bool()
    number = counts.sum(-1)
    if not number.all():
        raise HeedfulError("a sequence has no query that counts: every row is padding, or attends to nothing")
    weights = weights * counts[:, None, :, None]
    mean = weights.sum(2) / number[:, None, None]
    apart = torch.special.entr(weights).sum((2, 3)) / number[:, None]
    return (torch.special.entr(mean).sum(-1) - apart).mean(0)


# --------------------------------------------------------------------- where a pattern looks, (B, T, T), True: expected


def expects_previous(real: Tensor, offset: int = 1) -> Tensor:
    """Query t expects key t − offset."""
    if offset == 0:
        raise HeedfulError("offset is 0, the token itself; give 1 for the one before, −1 for the next")
    place = torch.arange(real.size(1), device=real.device)
    return (place[:, None] - place == offset) & _both(real)


def expects_first(real: Tensor) -> Tensor:
    """Every later query expects the first real key."""
    order = real.long().cumsum(1)  # 1 at the first real token
    return (order == 1)[:, None, :] & (order > 1)[:, :, None] & _both(real)


def expects_duplicate(ids: Tensor, real: Tensor) -> Tensor:
    """Query t expects every earlier key of the same id."""
    return (ids[:, :, None] == ids[:, None, :]).tril(-1) & _both(real)


def expects_induction(ids: Tensor, real: Tensor) -> Tensor:
    """Query t expects every earlier key whose own previous token has the same id."""
    after = expects_duplicate(ids, real).roll(1, dims=2)  # what held of key s − 1 now stands at s
    return after.tril(-1) & _both(real)


def expects_object(objects: Tensor, prefix: int = 1, token: int = 0) -> Tensor:
    """Query ``token``, the class token, expects the patches where the object is: (B, rows, columns) → (B, N, N).

    Args:
        objects: True where a patch shows the object.
        prefix: how many tokens stand before the patches.
        token: which query; the others expect nothing and do not count.

    >>> expects_object(torch.tensor([[[True, False]]]))[0].int()
    tensor([[0, 1, 0],
            [0, 0, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    patches = objects.bool().flatten(1)
    tokens = patches.size(1) + prefix
    expected = torch.zeros(len(patches), tokens, tokens, dtype=torch.bool, device=patches.device)
    expected[:, token, prefix:] = patches
    return expected


def repeated_tokens(
    size: int,
    *,
    length: int = 25,
    rows: int = 8,
    repeats: int = 2,
    seed: int = 0,
    start: int | None = None,
    avoid: tuple[int, ...] = (),
) -> Tensor:
    """Random ids (rows, repeats · length), each row a draw of ``length`` ids said ``repeats`` times over.

    Args:
        size: of the vocabulary.
        length: of what is repeated. No id is drawn twice in a row while there are enough of them.
        rows: sequences.
        repeats: how often it is said.
        seed: of the draw.
        start: an id that each row begins with, one column more: a model that has always seen one uses it as a sink.
        avoid: ids that are never drawn, such as special tokens.

    >>> ids = repeated_tokens(100, length=3, rows=1)
    >>> bool((ids[:, :3] == ids[:, 3:]).all())
    True
    """
    allowed = torch.tensor([i for i in range(size) if i not in set(avoid)])
    if length < 2 or repeats < 2 or len(allowed) < 2:
        raise HeedfulError(
            f"length {length}, repeats {repeats}, {len(allowed)} ids to draw from: each must be 2 at least to repeat"
        )
    random = torch.Generator().manual_seed(seed)
    draws = -(-length // len(allowed))  # more than 1 where there are too few
    drawn = [torch.cat([torch.randperm(len(allowed), generator=random) for _ in range(draws)]) for _ in range(rows)]
    ids = allowed[torch.stack(drawn)[:, :length]].repeat(1, repeats)
    return ids if start is None else torch.cat((torch.full((rows, 1), start), ids), 1)


def _real(pattern: Tensor, real: Tensor | None) -> Tensor:
    if pattern.dim() != 4 or pattern.size(2) != pattern.size(3):
        raise HeedfulError(f"a pattern of shape {tuple(pattern.shape)}; give a self-attention (B, H, T, T)")
    return pattern.new_ones(pattern.shape[0::2]).bool() if real is None else real.bool()


def _both(real: Tensor) -> Tensor:
    """Query and key are real."""
    return real[:, :, None] & real[:, None, :]


Expects = Callable[[Tensor, Tensor], Tensor]

EXPECTS: dict[str, Expects] = {
    "previous-token": lambda ids, real: expects_previous(real),
    "first-token": lambda ids, real: expects_first(real),
    "duplicate-token": expects_duplicate,
    "induction": expects_induction,
}
