"""The view experts: the experts of each token are those whose weights the router gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import heedful
from heedful.text import Tokenizer
from heedful.views.inspect.inspect import inspect
from tolerances import assert_close

Make = Callable[[str], Path]
TEXT = "a small dog sees two cats"


def test_the_experts_are_those_of_the_router(made: Make) -> None:
    folder = made("experts")
    shown = inspect(folder, TEXT, view="experts")
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = torch.tensor(tokenizer.encode([TEXT]))
    states: dict[int, torch.Tensor] = {}
    routers = {n: model.get_submodule(f"decoder.block.{n}.feed_forward.router") for n in (1, 3)}
    for n, router in routers.items():
        router.register_forward_hook(lambda _, inputs, __, n=n: states.update({n: inputs[0]}))
    with torch.no_grad():
        model(ids)
        p = torch.stack([(states[n] @ routers[n].weight.T).softmax(-1)[0] for n in (1, 3)])  # (L, T, E)
    best = p.topk(2, -1)
    assert shown.data["layers"] == [1, 3]
    assert shown.data["pieces"] == tokenizer.pieces(ids[0].tolist())
    assert shown.data["experts"] == best.indices.tolist()
    weights = torch.zeros_like(p).scatter(-1, best.indices, best.values / best.values.sum(-1, keepdim=True))
    assert_close(torch.as_tensor(shown.data["weights"]), weights, "layer")
    first, second = best.indices[1, 0].tolist()
    assert f">{first} {second}</text>" in shown.svg()
    assert f"{first} ({weights[1, 0, first]:.2f}), {second} ({weights[1, 0, second]:.2f})" in shown.html()
    assert {"layer 1", "layer 3"} <= set(shown.svg().replace("<", ">").split(">"))


def test_a_part_of_the_experts(made: Make) -> None:
    whole = inspect(made("experts"), TEXT, view="experts").data
    part = inspect(made("experts"), TEXT, view="experts", layers=3, queries="1:3").data
    assert part["experts"] == [whole["experts"][1][1:3]]
    assert part["pieces"] == whole["pieces"][1:3]
    assert f"positions 1:3 of {len(whole['pieces'])}" in part["note"]
    with pytest.raises(heedful.HeedfulError, match="layer 0 of the decoder has no experts; choose of layers 1, 3"):
        inspect(made("experts"), TEXT, view="experts", layers=[1, 0])


def test_a_token_over_the_capacity_has_no_expert(made: Make) -> None:
    """Of an encoder-decoder whose encoder alone has experts, the source is shown."""
    shown = inspect(made("capacity"), "two cats", view="experts", target="les chats")
    source = Tokenizer.load(made("capacity")).encode(["two cats"])[0]
    assert (shown.data["stack"], len(shown.data["pieces"])) == ("encoder", len(source) + 1)  # and the end
    for row in shown.data["experts"]:
        assert sorted(e for token in row for e in token) in ([0], [1], [0, 1])  # one token each
    assert [] in shown.data["experts"][0]
    assert "over the capacity of its experts" in shown.data["note"]
    assert ">–</text>" in shown.svg()


def test_a_model_without_experts_has_no_such_view(made: Make) -> None:
    with pytest.raises(heedful.HeedfulError, match="mixture of experts"):
        inspect(made("decoder"), TEXT, view="experts")
