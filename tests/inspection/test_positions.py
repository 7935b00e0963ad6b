"""Tables of positions, against the model's own sums, for each scheme in its plain form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

import heedful
from heedful.config import AlibiPosition, NoPosition, Position, RelativePosition, RotaryPosition, SinusoidalPosition
from heedful.errors import HeedfulError
from heedful.inspection.position_tables import position_bias, position_similarity, position_table
from heedful.layers.position import Alibi, PositionBias, PositionEncoding, PositionScheme
from heedful.models import Model, build
from tolerances import assert_close


def made(position: Position, **changes: Any) -> Model:
    config = heedful.presets.get("gpt-micro")
    return build(replace(config, decoder=replace(config.decoder, position=position, **changes)))


def test_learned_rows_begin_after_the_offset() -> None:
    model = heedful.create(heedful.presets.bart(16, 2, 4, vocab=50, length=20), seed=0)
    own = model.decoder.position.table.weight.detach()
    assert own.shape == (22, 16)
    assert torch.equal(position_table(model, stack="decoder"), own[2:])
    expected = torch.from_numpy(cosine_similarity(own[2:7].double().numpy())).float()
    assert_close(position_similarity(model, 5, "decoder"), expected)


def test_sinusoids() -> None:
    """The cosine of two positions is the mean of cos((p − q) ω_i): Vaswani et al. 2017, section 3.5."""
    model = made(SinusoidalPosition(order="interleaved"))
    assert position_table(model, 3)[2, :2].tolist() == pytest.approx([0.90929743, -0.41614684])
    steps = torch.arange(70).double()
    rates = 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)
    expected = ((steps[:, None] - steps)[..., None] * rates).cos().mean(-1)
    assert_close(position_similarity(model, 70), expected.float())
    assert position_similarity(model).shape == (64, 64)


def test_rotary_positions_are_alike_as_a_turned_vector_is() -> None:
    """A vector whose pairs are of one length, turned by the model's own rotation, with itself."""
    model = made(RotaryPosition(base=100.0))
    places = torch.arange(9)[None]
    angle = torch.rand(16) * 6.3
    vector = torch.cat((angle.cos(), angle.sin())).expand(1, 1, 9, 32)
    turned = model.decoder.position.prepare(places, places).rotate(vector)[0, 0]
    expected = torch.from_numpy(cosine_similarity(turned.double().numpy())).float()
    assert_close(position_similarity(model, 9), expected)


def test_biases() -> None:
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    steps = torch.arange(6)
    expected = -slopes[:, None, None] * (steps[:, None] - steps).abs()
    assert_close(position_bias(made(AlibiPosition()), 6), expected)
    model = made(RelativePosition(buckets=8, max_distance=6))
    table, found = model.decoder.position.table.weight.detach(), position_bias(model, 4)
    for query in range(4):  # a causal stack's buckets: one for each of the first four distances back
        for key in range(query + 1):
            assert_close(found[:, query, key], table[query - key])


class Own(PositionScheme):
    """A scheme of one's own, whose bias is minus the squared distance."""

    def prepare(self, queries: torch.Tensor, keys: torch.Tensor) -> PositionEncoding:
        return PositionBias(-((queries[:, None, :, None] - keys[:, None, None, :]).float() ** 2))


class Silent(Alibi):
    """A scheme of one's own, which has no bias although its base has one."""

    def prepare(self, queries: torch.Tensor, keys: torch.Tensor) -> PositionEncoding:
        return PositionEncoding()


def test_the_bias_of_a_scheme_of_ones_own() -> None:
    model = made(AlibiPosition())
    model.decoder.position = Own()
    assert position_bias(model, 3).tolist() == [[[0.0, -1.0, -4.0], [-1.0, 0.0, -1.0], [-4.0, -1.0, 0.0]]]
    model.decoder.position = Silent(4)
    with pytest.raises(HeedfulError, match="positions add nothing to the scores"):
        position_bias(model, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: position_similarity(made(NoPosition())), "'none' positions add no rows"),
        (lambda: position_similarity(made(AlibiPosition())), "'alibi' positions add no rows"),
        (lambda: position_bias(heedful.create("gpt-micro")), "'learned' positions add nothing to the scores"),
        (lambda: position_similarity(heedful.create("gpt-micro"), 65), "from 1 to the 64 that are learned"),
        (lambda: position_similarity(made(RotaryPosition()), 0), "length is 0; give 1 or more"),
        (lambda: position_similarity(heedful.create("transformer-tiny")), "2 stacks; give stack="),
        (lambda: position_similarity(heedful.create("gpt-micro"), stack="encoder"), "no stack 'encoder'"),
        (lambda: position_similarity(torch.nn.Linear(2, 2)), "no stack of blocks"),
    ],
)
def test_missing_tables_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said) as error:
        call()
    assert "\n" not in str(error.value)
