"""Recorded patterns against two independent witnesses: transformers' eager attentions, and the fused kernel itself.

The kernel tells its weights when each value is a one-hot row of its own: what a head then makes is its row of weights.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    LearnedPosition,
    NoPosition,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.inspection import intervene, observe, record
from heedful.models import build
from heedful.pretrained import load
from relative_schemes import CONTENT
from tolerances import assert_close

sys.path.append(str(Path(__file__).parents[1] / "pretrained"))
from tiny_models import CASES, masks, our_output, reference, their_output

GROUPS = {"encoder.": ("encoder_attentions", "attentions"), "decoder.": ("decoder_attentions", "attentions")}


def exact_softmax(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Theirs in the precision of ``x``: several of their families round to float32, whatever comes in."""
    return torch.softmax(x, dim)


def keep_attentions(theirs: torch.nn.Module, out: dict[str, Any]) -> None:
    """Puts the weights of each kind of attention, block by block, into ``out`` when the model is called."""

    def keep(name: str, block: int, weights: torch.Tensor) -> None:
        out.setdefault(name, {})[block] = weights

    for path, part in theirs.named_modules():
        if type(part).__name__ in ("ViTAttention", "DeiTAttention", "GPT2Attention"):
            block = next(int(word) for word in path.split(".") if word.isdigit())
            kind = "cross" if "cross" in path else path.split(".")[0]
            part.register_forward_hook(lambda _, given, made, k=f"{kind}_attentions", n=block: keep(k, n, made[1]))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_family_against_transformers_eager_attentions(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = copy.deepcopy(reference(case)).float()
    theirs.save_pretrained(tmp_path / "theirs")
    theirs.set_attn_implementation("eager")
    for part in theirs.modules():  # T5 hands each stack a copy
        if hasattr(part, "config"):
            part.config.output_attentions = True
    out: dict[str, Any] = {}
    if "vision-encoder-decoder" in case:  # whose output has no attentions
        keep_attentions(theirs, out)
    else:
        theirs.register_forward_hook(lambda module, given, made: out.update(made))
    monkeypatch.setattr(torch.nn.functional, "softmax", exact_softmax)
    for dtype, allowed in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ours = load(tmp_path / "theirs", dtype=dtype)
        for mask in masks(case).values():
            their_output(theirs, mask, dtype)
            with record(ours) as seen:
                our_output(ours, mask)
            assert seen
            for path, pattern in seen.items():
                names = ("cross_attentions",) if "cross_attention" in path else GROUPS[path[:8]]
                expected = next(out[name] for name in names if out.get(name) is not None)
                expected = expected[int(path.split(".")[2])]
                if mask is not None and expected.size(-2) == mask.size(1):
                    real = mask[:, None, :, None].expand_as(expected)  # what padding looks at is nobody's business
                    pattern, expected = pattern[real], expected[real]
                torch.testing.assert_close(pattern, expected.to(dtype), atol=allowed, rtol=0)


SCHEMES = {
    "none": {"position": NoPosition()},
    "sinusoidal": {"position": SinusoidalPosition()},
    "halves": {"position": SinusoidalPosition(order="halves")},
    "learned": {"position": LearnedPosition(length=16, offset=2)},
    "rotary": {"position": RotaryPosition(), "kv_heads": 2},
    "one key": {"position": RotaryPosition(), "kv_heads": 1},
    "linear": {"position": RotaryPosition(scaling="linear", factor=4.0)},
    "llama3": {"position": RotaryPosition(scaling="llama3", factor=4.0, original_length=8)},
    "norms over all heads": {"position": RotaryPosition(), "qk_norm": "all", "kv_heads": 2},
    "capped": {"position": RotaryPosition(), "score_cap": 1.5, "kv_heads": 2},
    "capped alibi": {"position": AlibiPosition(), "score_cap": 0.7, "scale": 0.9},
    "yarn": {"position": RotaryPosition(scaling="yarn", factor=4.0, original_length=8), "qk_norm": "head"},
    "half": {"position": RotaryPosition(share=0.5, scaling="yarn", factor=4.0), "sublayers": "parallel"},
    "alibi": {"position": AlibiPosition()},
    "relative": {"position": RelativePosition(buckets=8, max_distance=6), "scale": "none"},
    "shaw": {"position": ShawPosition(distance=3, values=False), "kv_heads": 2},  # rows of values are not mixed by v
    **{position.kind: {"position": position, "kv_heads": 2} for position in CONTENT[1:]},
}
LEFT = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
SHAPES = {
    "encoder": ({}, {}),
    "causal": ({"causal": True}, {}),
    "window": ({"causal": True, "window": 3}, {}),
    "left-padded": ({"causal": True}, {"mask": LEFT}),
    "right-padded": ({"causal": True}, {"mask": LEFT.flip(1)}),
    "encoder, padded": ({}, {"mask": LEFT.flip(1)}),
}


def noisy(config: Any) -> Any:
    torch.manual_seed(0)
    model = build(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def one_hot(value: torch.Tensor) -> torch.Tensor:
    """(B, K, S, E), E ≥ S: key s says e_s."""
    return torch.eye(value.size(2), value.size(3), dtype=value.dtype).expand_as(value)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_every_scheme_and_mask_against_the_fused_kernel(scheme: str, shape: str) -> None:
    settings, given = SHAPES[shape]
    stack = StackConfig(dim=32, depth=2, heads=4, **SCHEMES[scheme], **settings)
    embedding = EmbeddingConfig(vocab_size=20)
    config = (
        DecoderConfig(embedding=embedding, decoder=stack)
        if stack.causal
        else EncoderConfig(embedding=embedding, encoder=stack)
    )
    ids = torch.randint(20, (2, 7))
    for dtype, allowed in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = noisy(config).to(dtype)
        with intervene(model, "value", one_hot), record(model, ["pattern", "mixed"]) as seen:
            model(ids, **given)
        for path in [path for path in seen if path.endswith("pattern")]:
            mixed = seen[path.replace("pattern", "mixed")]
            torch.testing.assert_close(seen[path], mixed[..., :7], atol=allowed, rtol=0)
            assert seen[path].std() > 0.02


@torch.no_grad()
def test_cross_attention_against_the_fused_kernel() -> None:
    config = presets.get("transformer-tiny")
    model = noisy(replace(config, source=replace(config.source, vocab_size=20)))
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 4))
    with intervene(model, "value", one_hot), record(model, ["pattern", "mixed"]) as seen:
        model(source, target, LEFT)
    for path in [path for path in seen if path.endswith("pattern")]:
        size = seen[path].size(-1)
        assert_close(seen[path], seen[path.replace("pattern", "mixed")][..., :size])
    assert seen["decoder.block.0.cross_attention.pattern"][0, :, :, :2].eq(0).all()


@pytest.mark.parametrize("rows", [1, 3, 64])
@torch.no_grad()
def test_blocks_of_queries_are_parts_of_the_whole(rows: int) -> None:
    model = heedful.create("stories260k", seed=0).eval()
    ids, mask = torch.randint(50, (2, 7)), LEFT
    with record(model, layers=[1, 3], heads=[5, 0]) as whole:
        model(ids, mask)
    found: dict[str, list[tuple[int, torch.Tensor]]] = {}
    with observe(
        model,
        lambda path, part, first: found.setdefault(path, []).append((first, part)),
        layers=[1, 3],
        heads=[5, 0],
        rows=rows,
    ):
        model(ids, mask)
    assert found.keys() == whole.keys()
    for path, parts in found.items():
        assert [first for first, _ in parts] == list(range(0, 7, rows))
        assert_close(torch.cat([part for _, part in parts], 2), whole[path])


@torch.no_grad()
def test_chosen_queries_are_rows_of_the_whole() -> None:
    model = heedful.create("gpt-micro", seed=0).eval()
    ids = torch.randint(50, (2, 7))
    names = ["pattern", "scores", "query", "mixed"]
    with record(model, [*names, "stream", "logits", "activation"]) as whole:
        model(ids)
    with record(model, names, heads=[3, 1], queries=[-1, 0, 4]) as some:
        model(ids)
    for path, tensor in some.items():
        assert_close(tensor, whole[path][:, [3, 1]][:, :, [-1, 0, 4]])
    with record(model, ["stream", "logits", "activation"], queries=[-1, 0, 4]) as some:
        model(ids)
    for path, tensor in some.items():
        assert_close(tensor, whole[path][:, [-1, 0, 4]])
