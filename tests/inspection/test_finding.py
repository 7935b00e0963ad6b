"""Heads that were planted are found, and lost when they are ablated; every score is that of the recorded patterns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.config import (
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    LanguageHead,
    LearnedPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.inspection.find_heads import HeadMatch, find_heads
from heedful.inspection.head_scores import (
    duplicate_token,
    expects_object,
    first_token,
    induction,
    mutual_information,
    previous_token,
)
from heedful.inspection.intervene import intervene
from heedful.layers import Attention
from heedful.models import Model, build
from tolerances import approx

TOKENS, PLACES = 12, 24
SOURCE = torch.tensor([[4, 3, 4, 6, 2], [5, 4, 2, 0, 0]])
TARGET = torch.tensor([[0, 0, 1, 4, 5, 4], [1, 5, 5, 8, 5, 8]])
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()


def noisy(model: Model) -> Model:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def planted() -> Model:
    """The stream holds the token, its place, and the token before, each as one-hot.

    Block 0, head 1 looks at the place before and copies the token there into the third part. Block 1, head 0 asks for
    the key whose token before is the query's token: an induction head, made of two (Olsson et al. 2022).
    """
    dim = TOKENS + PLACES + TOKENS
    stack = StackConfig(
        dim=dim,
        depth=2,
        heads=2,
        norm="rms",
        causal=True,
        attention_bias="none",
        ff_bias=False,
        position=LearnedPosition(length=PLACES),
    )
    embedding = EmbeddingConfig(vocab_size=TOKENS)
    model = build(DecoderConfig(embedding=embedding, decoder=stack, head=LanguageHead(tied=False)))
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for name in state:
        if "before" in name or name == "decoder.norm.weight":
            state[name] += 1
    state["embedding.token.weight"][:, :TOKENS] = torch.eye(TOKENS)
    state["decoder.position.table.weight"][:, TOKENS : TOKENS + PLACES] = torch.eye(PLACES)
    head = [slice(0, dim // 2), slice(dim // 2, dim)]
    place, before = slice(TOKENS, TOKENS + PLACES), slice(TOKENS + PLACES, dim)

    block = "decoder.block.0.attention"
    state[f"{block}.query.weight"][head[1], place] = 10 * torch.eye(PLACES).roll(-1, 0)  # place p asks for p − 1
    state[f"{block}.key.weight"][head[1], place] = torch.eye(PLACES)
    state[f"{block}.value.weight"][dim // 2 : dim // 2 + TOKENS, :TOKENS] = torch.eye(TOKENS) / (dim / 2) ** 0.5
    state[f"{block}.out.weight"][before, dim // 2 : dim // 2 + TOKENS] = torch.eye(TOKENS)
    block = "decoder.block.1.attention"
    state[f"{block}.query.weight"][:TOKENS, :TOKENS] = 10 * torch.eye(TOKENS)
    state[f"{block}.key.weight"][:TOKENS, before] = torch.eye(TOKENS)
    model.load_state_dict(state)
    return model


class WithAttentionBefore(heedful.Encoder):
    """A model of one's own, with an attention outside of its blocks."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.attention = Attention(config.encoder.dim, heads=2)

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None = None, *args: Any, **named: Any) -> torch.Tensor:
        return self.encoder(self.attention(self.embedding(ids)), mask)


def test_only_heads_of_blocks_are_searched() -> None:
    stack = StackConfig(dim=16, depth=1, heads=2)
    model = WithAttentionBefore(EncoderConfig(embedding=EmbeddingConfig(vocab_size=TOKENS), encoder=stack))
    ids = torch.tensor([[3, 5, 7]])
    for by in ("previous-token", torch.ones(1, 3, 3).bool()):
        matches = find_heads(model, ids, by=by)
        assert {(match.path, match.layer) for match in matches} == {("encoder.block.0.attention.pattern", 0)}


def test_planted_heads_are_found_and_ablated() -> None:
    model = planted()
    first, *others = find_heads(model, by="previous-token")
    assert (first.path, first.layer, first.head) == ("decoder.block.0.attention.pattern", 0, 1)
    assert first.score > 0.99
    assert all(other.score < 0.2 for other in others)
    assert first.uniform == pytest.approx(sum(1 / (t + 1) for t in range(1, PLACES)) / (PLACES - 1))

    first, *others = find_heads(model, by="induction")
    assert (first.layer, first.head) == (1, 0)
    assert first.score > 0.9
    assert all(other.score < 0.1 for other in others)
    assert first.uniform == pytest.approx(sum(1 / (t + 1) for t in range(12, PLACES)) / 12)

    with intervene(model, "mixed", 0.0, layers=[0], heads=[1]):
        lost = {(one.layer, one.head): one for one in find_heads(model, by="induction")}
    assert lost[1, 0].score == approx(first.uniform, "gradient")  # nothing is left to tell keys apart
    assert [one.layer for one in find_heads(model, by="induction", layers=[0])] == [0, 0]


def check(found: list[HeadMatch], expected: dict[str, torch.Tensor]) -> None:
    made = {(one.path, one.head): one.score for one in found}
    assert len(made) == len(found) == sum(map(len, expected.values()))
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for path, scores in expected.items():
        assert [made[path, head] for head in range(len(scores))] == approx(scores.tolist(), "gradient")


@pytest.mark.parametrize("by", ["previous-token", "first-token", "duplicate-token", "induction"])
def test_scores_are_those_of_recorded_patterns(by: str) -> None:
    """Both stacks of a pair, each over its own tokens and padding; dropout is off whatever the mode."""

    def scored(pattern: torch.Tensor, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        if by in ("previous-token", "first-token"):
            return {"previous-token": previous_token, "first-token": first_token}[by](pattern, real)
        return {"duplicate-token": duplicate_token, "induction": induction}[by](pattern, ids, real)

    model = noisy(heedful.create("transformer-tiny", seed=0))
    with torch.no_grad(), heedful.record(model.eval(), "attention.pattern") as seen:
        model(SOURCE, TARGET, SOURCE > 0, LEFT)
    texts = {"encoder": (SOURCE, SOURCE > 0), "decoder": (TARGET, LEFT)}
    expected = {path: scored(pattern, *texts[path.split(".")[0]]) for path, pattern in seen.items()}
    assert len(expected) == 6
    model.train()
    check(find_heads(model, SOURCE, TARGET, by=by, source_mask=SOURCE > 0, target_mask=LEFT), expected)
    assert model.training


def test_long_inputs_come_in_blocks() -> None:
    config = heedful.presets.get("stories260k")
    model = noisy(build(config)).eval()
    ids = torch.randint(3, 500, (1, 150))
    with torch.no_grad(), heedful.record(model) as seen:
        model(ids)
    check(find_heads(model, ids), {path: previous_token(pattern) for path, pattern in seen.items()})


def test_alignment_without_gold() -> None:
    model = noisy(heedful.create("transformer-tiny", seed=0)).eval()
    with torch.no_grad(), heedful.record(model, "cross_attention.pattern") as seen:
        model(SOURCE, TARGET, SOURCE > 0, LEFT)
    expected = {path: mutual_information(pattern, LEFT) for path, pattern in seen.items()}
    found = find_heads(model, SOURCE, TARGET, by="alignment", source_mask=SOURCE > 0, target_mask=LEFT)
    check(found, expected)
    assert {one.uniform for one in found} == {0.0}


@pytest.mark.parametrize(("when", "back"), [("output", 1), ("input", 0)])
def test_alignment_with_gold(when: Any, back: int) -> None:
    gold = [[(0, 4), (2, 4), (3, 5)], [(1, 1), (0, 2)]]
    model = noisy(heedful.create("transformer-tiny", seed=0)).eval()
    with torch.no_grad(), heedful.record(model, "cross_attention.pattern") as seen:
        model(SOURCE, TARGET, SOURCE > 0, LEFT)
    expected = {}
    for path, pattern in seen.items():
        each = [(pattern[b, :, t - back, s]) for b, links in enumerate(gold) for s, t in links]
        expected[path] = torch.stack(each).sum(0) / 4  # four linked target tokens
    found = find_heads(
        model, SOURCE, TARGET, by="alignment", gold=gold, when=when, source_mask=SOURCE > 0, target_mask=LEFT
    )
    check(found, expected)
    # of 5 source tokens two are linked, of 5 one, of 3 real ones one, twice
    assert found[0].uniform == pytest.approx((2 / 5 + 1 / 5 + 1 / 3 + 1 / 3) / 4)


def test_images() -> None:
    model, pixels = noisy(heedful.create("vit-micro", seed=0)).eval(), torch.randn(2, 1, 28, 28)
    with torch.no_grad(), heedful.record(model) as seen:
        model(pixels)
    check(find_heads(model, pixels), {path: previous_token(pattern) for path, pattern in seen.items()})
    with pytest.raises(HeedfulError, match="token ids, which an image does not have"):
        find_heads(model, pixels, by="induction")


def test_a_stack_whose_tokens_do_not_tell() -> None:
    """No source token occurs twice: the encoder's heads have no score and come last, the decoder's have theirs."""
    model, source = heedful.create("transformer-tiny", seed=0), torch.tensor([[4, 3, 2]])
    found = find_heads(model, source, TARGET[1:], by="induction")
    assert ["decoder" in one.path for one in found] == [True] * 12 + [False] * 12
    assert all(0 <= one.score <= 1 for one in found[:12])
    assert all(one.score != one.score and one.uniform != one.uniform for one in found[12:])  # NaN
    with pytest.raises(HeedfulError, match="expects no key for any token of these inputs"):
        find_heads(model, source, source, by="induction")


def test_expected_keys_of_ones_own() -> None:
    """Which heads of an image look from the class token at the object? Counted patch by patch."""
    model, pixels = noisy(heedful.create("vit-micro", seed=0)).eval(), torch.randn(2, 1, 28, 28)
    objects = torch.rand(2, 4, 4) > 0.6
    with torch.no_grad(), heedful.record(model) as seen:
        model(pixels)
    expected = {}
    for path, pattern in seen.items():
        each = [pattern[b, :, 0, 1 + 4 * i + j] for b, i, j in objects.nonzero().tolist()]
        expected[path] = torch.stack(each).sum(0) / 2
    found = find_heads(model, pixels, by=expects_object(objects))
    check(found, expected)
    assert found[0].uniform == pytest.approx(float(objects.sum()) / 17 / 2)
    with pytest.raises(HeedfulError, match=r"\(2, 16, 16\); give .*\(2, 17, 17\)"):
        find_heads(model, pixels, by=expects_object(objects, prefix=0))
    with pytest.raises(HeedfulError, match="2 stacks"):
        find_heads(heedful.create("transformer-tiny", seed=0), SOURCE, TARGET, by=torch.ones(2, 6, 6))


def test_masked_keys_score_nothing() -> None:
    """Expected is the next token, too, in a model that sees no later ones: one key of two can have weight."""
    model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[5, 6, 7]])
    expected = torch.zeros(1, 3, 3)
    expected[0, 1, 0] = expected[0, 1, 2] = 1
    assert find_heads(model, ids, by=expected)[0].uniform == pytest.approx(1 / 2)
    assert find_heads(torch.compile(model, backend="eager"), ids, by=expected) == find_heads(model, ids, by=expected)


@pytest.mark.parametrize(("start", "length", "columns"), [(None, 9, 8), (7, 9, 9), (7, 8, 7)])
def test_random_tokens_fit_the_model(start: int | None, length: int, columns: int) -> None:
    """They keep to the learned positions, begin with the start token and draw no special one."""
    stack = StackConfig(dim=16, depth=1, heads=4, causal=True, position=LearnedPosition(length=length))
    embedding = EmbeddingConfig(vocab_size=8)
    model = build(
        DecoderConfig(embedding=embedding, decoder=stack, special=SpecialTokens(pad=0, start=start, end=(5,)))
    )
    given = []
    model.embedding.register_forward_hook(lambda part, inputs, output: given.append(inputs[0]))
    find_heads(model, by="duplicate-token")
    assert given[0].shape == (8, columns)
    assert start is None or given[0][:, 0].eq(start).all()
    drawn = given[0] if start is None else given[0][:, 1:]
    assert set(drawn.flatten().tolist()) == {1, 2, 3, 4, 6, 7} - {start}


@pytest.mark.parametrize(
    ("name", "inputs", "options", "said"),
    [
        ("gpt-micro", (), {"by": "inductoin"}, "did you mean 'induction'"),
        ("gpt-micro", (), {"gold": [[]]}, "remove them"),
        ("gpt-micro", (), {"when": "input"}, "remove them"),
        ("gpt-micro", (), {"by": "alignment"}, "cross_attention"),
        ("gpt-micro", (), {"layers": [4]}, "no block 4"),
        ("gpt-micro", (torch.tensor([[1, 2, 3]]),), {"by": "induction"}, "expects no key for any token"),
        ("gpt-micro", (TARGET,), {"masks": None}, "does not take these inputs"),
        ("transformer-tiny", (), {}, "suit only a decoder or an encoder; give inputs"),
        ("transformer-tiny", (SOURCE, TARGET), {"by": "alignment", "gold": [[]]}, "1 lists for a batch of 2"),
        ("transformer-tiny", (SOURCE, TARGET), {"by": "alignment", "gold": [[(5, 1)], []]}, r"\(5, 1\)"),
        ("transformer-tiny", (SOURCE, TARGET), {"by": "alignment", "gold": [[], [(0, 0)]]}, "sentence 1"),
        ("transformer-tiny", (SOURCE, TARGET), {"by": "alignment", "gold": [[(0, 7)], []]}, "columns 1 to 6"),
    ],
)
def test_refuses(name: str, inputs: tuple[Any, ...], options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        find_heads(heedful.create(name, seed=0), *inputs, **options)
