"""Head scores: how well attention patterns fit known ones (previous token, induction ...).

Each score is the mean weight that queries give to the keys that the pattern expects. Shapes: B sequences, H heads, T
queries, S keys. ``real`` (B, T) is True for non-padding tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import precise


def weight_on(pattern: Tensor, expected: Tensor) -> Tensor:
    """Returns the mean weight (H,) on expected keys: for each head, the mean over queries of Σ_{s expected} a_ts.

    Queries without expected keys are left out.

    Args:
        pattern: (B, H, T, S).
        expected: (B, T, S), True for the expected keys of each query.

    Raises:
        HeedfulError: if no query has an expected key.
    """
    queries = int(expected.any(-1).sum())
    if not queries:
        raise HeedfulError("the pattern expects no key for any token of these inputs; give other inputs")
    return (precise(pattern) * expected[:, None]).sum((0, 2, 3)) / queries


def previous_token(pattern: Tensor, real: Tensor | None = None, *, offset: int = 1) -> Tensor:
    """Returns the mean weight on the token before the query: (B, H, T, T) → (H,).

    With ``offset`` 2, on the token two positions before the query; with −1, on the next token.

    >>> previous_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_previous(_real(pattern, real), offset))


def first_token(pattern: Tensor, real: Tensor | None = None) -> Tensor:
    """Returns the mean weight on the first non-padding token (attention sink) of later queries: (B, H, T, T) → (H,).

    Xiao et al. 2024, section 3.1.

    >>> first_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_first(_real(pattern, real)))


def duplicate_token(pattern: Tensor, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """Returns the mean weight on earlier copies of the query's token: (B, H, T, T) → (H,).

    The mean is over the queries whose token has an earlier copy.

    Wang et al. 2023, section 3: the duplicate token heads.

    >>> duplicate_token(torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]), torch.tensor([[5, 5]]))
    tensor([0.7500])
    """
    return weight_on(pattern, expects_duplicate(ids, _real(pattern, real)))


def induction(pattern: Tensor, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """Returns the mean weight on the tokens that followed earlier copies of the query's token: (B, H, T, T) → (H,).

    In "A B ... A" the second A attends to B: Olsson et al. 2022's prefix matching score. Use ``repeated_tokens`` for
    ``ids``, in which only the repetition predicts the next token.

    >>> pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.1, 0.8, 0.1]]]])
    >>> induction(pattern, torch.tensor([[5, 6, 5]]))
    tensor([0.8000])
    """
    return weight_on(pattern, expects_induction(ids, _real(pattern, real)))


def mutual_information(pattern: Tensor, real: Tensor | None = None) -> Tensor:
    """Returns the mutual information of query and key: (B, H, T, S) → (H,).

    It is H(mean_t a_t) − mean_t H(a_t), in nats, averaged over the batch; a_t are the weights of query t.

    It is 0 if all queries have the same weights, and ln T if each query attends only to its own key, as in a clean
    alignment. It needs no gold alignment. Queries with a row of zeros are left out.

    >>> mutual_information(torch.eye(2)[None, None])
    tensor([0.6931])
    """
    weights = precise(pattern)
    counted = weights.ne(0).any(-1).any(1)  # (B, T)
    counted = counted if real is None else counted & real.bool()
    queries = counted.sum(-1)
    if not queries.all():
        raise HeedfulError(
            "a sequence has no query to measure: every row is padding, or attends to no key; leave the sequence out"
        )
    weights = weights * counted[:, None, :, None]
    mean = weights.sum(2) / queries[:, None, None]
    mean_entropy = torch.special.entr(weights).sum((2, 3)) / queries[:, None]
    return (torch.special.entr(mean).sum(-1) - mean_entropy).mean(0)


# ----------------------------------------------------------------------------- expected keys, (B, T, T), True: expected


def expects_previous(real: Tensor, offset: int = 1) -> Tensor:
    """Returns a boolean mask (B, T, T) of expected keys: query t expects key t − ``offset``."""
    if offset == 0:
        raise HeedfulError("offset is 0, the token itself; give 1 for the previous token, −1 for the next")
    position = torch.arange(real.size(1), device=real.device)
    return (position[:, None] - position == offset) & _real_pairs(real)


def expects_first(real: Tensor) -> Tensor:
    """Returns a boolean mask (B, T, T) of expected keys: every later query expects the first non-padding key."""
    order = real.long().cumsum(1)  # 1 at the first real token
    return (order == 1)[:, None, :] & (order > 1)[:, :, None] & _real_pairs(real)


def expects_duplicate(ids: Tensor, real: Tensor) -> Tensor:
    """Returns a boolean mask (B, T, T) of expected keys: query t expects every earlier key with the same id."""
    return (ids[:, :, None] == ids[:, None, :]).tril(-1) & _real_pairs(real)


def expects_induction(ids: Tensor, real: Tensor) -> Tensor:
    """Returns a boolean mask (B, T, T) of expected keys: query t expects those after earlier copies of its token."""
    after = expects_duplicate(ids, real).roll(1, dims=2)  # from key s − 1 to key s
    return after.tril(-1) & _real_pairs(real)


def expects_object(objects: Tensor, prefix: int = 1, token: int = 0) -> Tensor:
    """Returns a boolean mask (B, N, N) of expected keys: the class token expects the patches of an object.

    Args:
        objects: (B, rows, columns), True for a patch that shows the object.
        prefix: number of tokens before the patches.
        token: number of the query that expects the object, 0 for the class token; other queries expect no key.

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
    """Returns random ids (rows, repeats · length): each row repeats ``length`` random ids ``repeats`` times.

    Args:
        size: size of the vocabulary.
        length: length of the repeated part. Its ids are distinct if the vocabulary is large enough.
        rows: number of sequences.
        repeats: number of repetitions.
        seed: seed of the random numbers.
        start: id of an additional first column: a model that was trained with a start token uses it as attention sink.
        avoid: ids that are left out, such as special tokens.

    >>> ids = repeated_tokens(100, length=3, rows=1)
    >>> bool((ids[:, :3] == ids[:, 3:]).all())
    True
    """
    allowed = torch.tensor([i for i in range(size) if i not in set(avoid)])
    if length < 2 or repeats < 2 or len(allowed) < 2:
        raise HeedfulError(
            f"length is {length}, repeats is {repeats}, and {len(allowed)} ids are allowed; each must be at least 2"
        )
    random = torch.Generator().manual_seed(seed)
    permutations = -(-length // len(allowed))  # more than 1 for a small vocabulary
    orders = [
        torch.cat([torch.randperm(len(allowed), generator=random) for _ in range(permutations)]) for _ in range(rows)
    ]
    ids = allowed[torch.stack(orders)[:, :length]].repeat(1, repeats)
    return ids if start is None else torch.cat((torch.full((rows, 1), start), ids), 1)


def _real(pattern: Tensor, real: Tensor | None) -> Tensor:
    if pattern.dim() != 4 or pattern.size(2) != pattern.size(3):
        raise HeedfulError(f"the pattern has shape {tuple(pattern.shape)}; give a self-attention pattern (B, H, T, T)")
    return pattern.new_ones(pattern.shape[0::2]).bool() if real is None else real.bool()


def _real_pairs(real: Tensor) -> Tensor:
    """Returns (B, T, T), True if neither query nor key is padding."""
    return real[:, :, None] & real[:, None, :]


Expects = Callable[[Tensor, Tensor], Tensor]

EXPECTED_KEYS: dict[str, Expects] = {
    "previous-token": lambda ids, real: expects_previous(real),
    "first-token": lambda ids, real: expects_first(real),
    "duplicate-token": expects_duplicate,
    "induction": expects_induction,
}
