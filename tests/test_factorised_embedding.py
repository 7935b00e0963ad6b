"""Embeddings of another width than the model: against their equation, in every family, cached and compiled."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from compiled_calls import rows_of_steps
from heedful.cache import Cache
from heedful.config import (
    Config,
    DecoderConfig,
    DenseConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    PatchConfig,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    StackConfig,
    TokenHead,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.inspection.position_tables import position_table
from heedful.kernels import few_rows, using
from heedful.kernels.few_rows import compiler
from heedful.pretrained import load, save
from heedful.training.optimisation import layer_rates
from tolerances import assert_close, assert_same_model

SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 4, "embedding_dim": 6, "init_std": 0.4}
UNTIED = LanguageHead(tied=False)
IDS = torch.tensor([[5, 7, 9, 11, 4], [6, 8, 10, 0, 0]])
MASK = IDS > 0


def encoder(**more: Any) -> EncoderConfig:
    stack = StackConfig(**SIZES, placement="post", embedding_norm=True, position=LearnedPosition(length=12))
    return EncoderConfig(embedding=EmbeddingConfig(vocab_size=23, segments=2), encoder=stack, **more)


def decoder(position: Any = None, **more: Any) -> DecoderConfig:
    stack = StackConfig(**SIZES, causal=True, position=position or SinusoidalPosition(), **more)
    return DecoderConfig(embedding=EmbeddingConfig(vocab_size=23, scale="sqrt"), decoder=stack, head=UNTIED)


def encoder_decoder(**target: Any) -> EncoderDecoderConfig:
    made = StackConfig(**SIZES, position=LearnedPosition(length=12))
    causal = StackConfig(**SIZES | target, position=LearnedPosition(length=12), causal=True, cross=True)
    return EncoderDecoderConfig(source=EmbeddingConfig(vocab_size=23), encoder=made, decoder=causal, head=UNTIED)


def vision() -> VisionConfig:
    return VisionConfig(
        patches=PatchConfig(image_size=(8, 8), patch_size=4, channels=1),
        encoder=StackConfig(**SIZES, position=LearnedPosition(length=5)),
    )


def test_the_embedding_is_normed_before_it_is_projected() -> None:
    """ALBERT's and ELECTRA's equation, h = W norm(E + S + P) + b, in plain PyTorch."""
    model = heedful.create(encoder(), seed=0).double().eval()
    state = model.state_dict()
    x = state["embedding.token.weight"][IDS] + state["embedding.segment.weight"][IDS % 2]
    x = x + state["encoder.position.table.weight"][: IDS.size(1)]
    norm = [state[f"encoder.embedding_norm.{name}"] for name in ("weight", "bias")]
    x = torch.nn.functional.layer_norm(x, (6,), *norm, eps=1e-5)
    x = x @ state["encoder.projection.weight"].T + state["encoder.projection.bias"]
    with torch.no_grad(), heedful.record(model, "encoder.stream") as seen:
        y = model(IDS, segments=IDS % 2)
    assert_close(seen["encoder.stream"], x, "layer")
    for block in model.encoder.block:
        x = block(x)
    assert_close(y, x)
    assert position_table(model, 3).shape == (3, 6)


@pytest.mark.parametrize("config", [encoder(), encoder(head=MaskedHead()), decoder(), encoder_decoder(), vision()])
def test_every_family(config: Config, tmp_path: Path) -> None:
    model = heedful.create(config, seed=0).eval()
    images = torch.randn(2, 1, 8, 8)
    inputs = {"vision": (images,), "encoder-decoder": (IDS, IDS, MASK, MASK)}.get(config.kind, (IDS, MASK))
    assert Config.from_dict(config.to_dict()) == config
    y = model(*inputs)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert save(model, tmp_path) in ("electra", "heedful")
    assert_same_model(load(tmp_path), model, *inputs)
    assert heedful.summary(model).parameters == model.num_parameters()
    rates = layer_rates(model, 0.5)
    stack: Any = model.get_submodule("decoder" if config.kind == "decoder" else "encoder")
    assert rates[id(stack.projection.weight)] == 0.5**3
    if config.kind != "encoder-decoder":
        fast = heedful.optimize(copy.deepcopy(model))
        assert_close(fast(*inputs)[MASK] if y.dim() == 3 else fast(*inputs), y[MASK] if y.dim() == 3 else y)


@pytest.mark.parametrize("plan", ["cpu-training", "cpu-inference"])
def test_unpadded(plan: str) -> None:
    model = heedful.create(encoder(head=SequenceHead()), seed=0).train(plan == "cpu-training")
    model.head.dropout.p = 0.0
    with torch.set_grad_enabled(model.training):
        expected = [model(IDS, MASK), model.hidden(IDS, MASK)[MASK]]
        with using(model, plan):
            assert_close([model(IDS, MASK), model.hidden(IDS, MASK)[MASK]], expected)
            if plan == "cpu-inference":
                assert model.hidden(IDS, torch.zeros_like(MASK)).shape == (2, 5, 16)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ on Linux)")
@pytest.mark.parametrize("position", [SinusoidalPosition(), LearnedPosition(length=32), RotaryPosition()], ids=repr)
def test_decoding(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = heedful.create(decoder(position), seed=0).eval()
    memory = Cache(2)
    with torch.no_grad():
        parts = [model(part, cache=memory) for part in IDS[:1].split(1, dim=1)]
        assert_close(torch.cat(parts, 1), model(IDS[:1]))
    greedy = load_plain(model).generate(IDS[:1], max_new_tokens=6)
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=6), greedy)
    few_rows.library()
    rows = rows_of_steps(monkeypatch)
    fast = heedful.optimize(copy.deepcopy(model))
    assert torch.equal(fast.generate(IDS[:1], max_new_tokens=6), greedy)
    assert rows
    beams = model.generate(IDS, MASK, num_beams=2, max_new_tokens=4)
    assert torch.equal(fast.generate(IDS, MASK, num_beams=2, max_new_tokens=4), beams)


def load_plain(model: Any) -> Any:
    plain = copy.deepcopy(model)
    plain.kernels = "plain"
    return plain


def test_compiled() -> None:
    model = heedful.create(encoder(), seed=0).eval()
    with torch.no_grad():
        assert_close(torch.compile(model, backend="aot_eager")(IDS, MASK)[MASK], model(IDS, MASK)[MASK])


def test_more_tokens(tmp_path: Path) -> None:
    save(heedful.create(decoder(), seed=0), tmp_path)
    model = load(tmp_path, vocab_size=30)
    assert model.embedding.token.weight.shape == (30, 6)
    assert model.head.output.weight.shape == (30, 16)


def test_what_does_not_fit_is_refused() -> None:
    tied = "the language-model head reads a width of 16, but the embedding, whose weights it shares, has 6; give"
    for config in (decoder(), encoder_decoder()):
        with pytest.raises(HeedfulError, match=tied):
            type(config)(**{**vars(config), "head": LanguageHead()})
    with pytest.raises(HeedfulError, match="share one embedding, but have not the same embedding_dim"):
        encoder_decoder(embedding_dim=8)


def test_a_token_head_with_a_dense_layer() -> None:
    head = heedful.create(
        encoder(head=TokenHead(labels=1, dropout=0.0, dense=DenseConfig(activation="tanh", norm=False))), seed=0
    ).head
    x = torch.randn(2, 3, 16)
    inner = torch.tanh(x @ head.hidden.dense.weight.T + head.hidden.dense.bias)
    assert_close(head(x), inner @ head.output.weight.T + head.output.bias, "layer")


def test_a_discriminator_is_fine_tuned_without_its_head(tmp_path: Path) -> None:
    config = encoder(head=TokenHead(labels=1, dropout=0.0, dense=DenseConfig(norm=False)))
    assert save(heedful.create(config, seed=0), tmp_path) == "electra"
    assert load(tmp_path).config.head == config.head
    for head, kind in (("token", TokenHead), ("sequence", SequenceHead)):
        model = load(tmp_path, head=head, num_labels=5)
        assert isinstance(model.config.head, kind)
        assert model.config.head.labels == 5
        assert not any(".hidden." in name for name in model.state_dict())
        assert save(model, tmp_path / head) == "electra"
