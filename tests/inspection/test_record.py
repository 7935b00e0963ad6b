"""Recording against transformers' own attention maps, and the promise that it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful.config import AlibiPosition, DropoutRates, RelativePosition, RotaryPosition
from heedful.errors import HeedfulError
from heedful.models import build
from tolerances import assert_close, is_close


def noisy(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def test_patterns_are_transformers_own(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel, MarianMTModel

    ids = torch.tensor([[3, 5, 8, 13, 21]])
    model = noisy(heedful.create("gpt-micro", seed=0))
    model.save_pretrained(tmp_path / "gpt")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt", attn_implementation="eager").eval()
    with torch.no_grad(), heedful.record(model) as seen:
        model(ids)
        expected = theirs(ids, output_attentions=True).attentions
    assert list(seen) == [f"decoder.block.{layer}.attention.pattern" for layer in range(4)]
    for pattern, other in zip(seen.values(), expected, strict=True):
        assert_close(pattern, other)

    model = noisy(heedful.create("transformer-tiny", seed=0))
    model.save_pretrained(tmp_path / "pair")
    theirs = MarianMTModel.from_pretrained(tmp_path / "pair", attn_implementation="eager").eval()
    source, target = torch.tensor([[3, 5, 8, 2, 0]]), torch.tensor([[1, 9, 4]])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    with torch.no_grad(), heedful.record(model, "cross_attention.pattern") as seen:
        model(source, target, mask)
        out = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target, output_attentions=True)
    assert list(seen) == [f"decoder.block.{layer}.cross_attention.pattern" for layer in range(3)]
    for pattern, other in zip(seen.values(), out.cross_attentions, strict=True):
        assert_close(pattern, other)


@pytest.mark.parametrize("name", ["gpt-micro", "stories260k", "bert-tiny", "vit-micro"])
def test_the_output_stays_the_same_bit_for_bit(name: str) -> None:
    model = heedful.create(name, seed=0).eval()
    given = torch.randn(2, 1, 28, 28) if "vit" in name else torch.randint(50, (2, 7))
    before = model(given)
    with heedful.record(model) as seen:
        assert torch.equal(model(given), before)
    assert seen
    assert torch.equal(model(given), before)
    for pattern in seen.values():
        assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))


def test_training_under_a_record_is_the_same_training() -> None:
    """Dropout on: the same random numbers are drawn, the same gradients come, and patterns are those before dropout."""
    config = heedful.presets.get("gpt-micro")
    config = replace(config, decoder=replace(config.decoder, dropout=DropoutRates.everywhere(0.3, attention=0.3)))
    ids = torch.randint(50, (2, 6))
    gradients = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = build(config).train()
        if recorded:
            with heedful.record(model) as seen:
                model(ids).square().sum().backward()
            for pattern in seen.values():
                assert not pattern.requires_grad
                assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))
        else:
            model(ids).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_heads_and_layers_that_are_asked_for() -> None:
    model, ids = heedful.create("stories260k", seed=0).eval(), torch.randint(50, (2, 5))  # 8 heads share 4 keys
    with heedful.record(model) as everything:
        model(ids)
    with heedful.record(model, layers=[3, 1], heads=[6, 0, 1]) as some:
        model(ids)
    assert list(some) == ["decoder.block.1.attention.pattern", "decoder.block.3.attention.pattern"]
    for path, pattern in some.items():
        assert_close(pattern, everything[path][:, [6, 0, 1]])


@pytest.mark.parametrize("position", [AlibiPosition(), RelativePosition(), RotaryPosition()], ids=lambda p: p.kind)
def test_left_padding_and_biases(position: object) -> None:
    """A bias has its own row for each head; padding before a sentence only moves its pattern."""
    config = heedful.presets.get("gpt-micro")
    model = noisy(build(replace(config, decoder=replace(config.decoder, position=position))))
    ids = torch.randint(50, (1, 4))
    with torch.no_grad(), heedful.record(model, heads=[2, 3]) as alone:
        model(ids)
    with torch.no_grad(), heedful.record(model, heads=[2, 3]) as padded:
        model(torch.cat((torch.zeros(1, 2, dtype=torch.long), ids), 1), torch.tensor([[0, 0, 1, 1, 1, 1]]).bool())
    for path, pattern in padded.items():
        assert_close(pattern[:, :, 2:, 2:], alone[path], "gradient")
        assert pattern[:, :, :2].eq(0).all()


def test_the_last_call_stays_and_the_model_is_left_as_it_was() -> None:
    model = heedful.create("gpt-micro", seed=0).eval()
    before = [block.attention.attend for block in model.decoder.block]
    with heedful.record(model, layers=[0]) as seen:
        model(torch.tensor([[1, 2, 3]]))
        model(torch.tensor([[1, 2]]))
    assert seen["decoder.block.0.attention.pattern"].shape == (1, 4, 2, 2)
    assert [block.attention.attend for block in model.decoder.block] == before

    def breaks() -> None:
        with heedful.record(model):
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert [block.attention.attend for block in model.decoder.block] == before


def test_wrappers_leave_no_trace_in_paths() -> None:
    class DataParallel(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    model = heedful.create("gpt-micro", seed=0)
    with heedful.record(DataParallel(model), "decoder.block.2.attention.pattern") as seen:
        model(torch.tensor([[1, 2]]))
    assert list(seen) == ["decoder.block.2.attention.pattern"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "patern"}, "did you mean 'pattern'"),
        ({"name": "cross_attention.pattern"}, "the model has no tensor"),
        ({"layers": [4]}, "no block 4"),
        ({"layers": [0, -1]}, "no block -1"),
        ({"heads": [4]}, "no head 4"),
    ],
)
def test_missing_tensors_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(HeedfulError, match=said), heedful.record(heedful.create("gpt-micro", seed=0), **options):
        pass


def test_a_shared_embedding_speaks_for_both_sides() -> None:
    model = noisy(heedful.create("transformer-tiny", seed=0))
    assert model.embedding is model.target_embedding
    source, target = torch.tensor([[5, 7, 9]]), torch.tensor([[1, 4]])
    with torch.no_grad(), heedful.record(model, "embedded") as seen:
        plain = model(source, target)
    assert torch.equal(seen["embedding.embedded"], model.embedding(source))
    assert torch.equal(seen["target_embedding.embedded"], model.embedding(target))
    with torch.no_grad(), heedful.inspection.intervene(model, "embedding.embedded", model.embedding(source.flip(1))):
        changed = model(source, target)
    with torch.no_grad():
        assert_close(changed, model(source.flip(1), target))
    assert not is_close(changed, plain)


def test_a_recording_in_which_the_model_did_not_run_is_an_error() -> None:
    """As around the pipeline of a run, which computes with a model of its own."""
    model, other = (heedful.create("gpt-micro", seed=0) for _ in range(2))
    ids = torch.tensor([[1, 2]])
    with (
        pytest.raises(HeedfulError, match=r"no call of this model reached .*pipe\.model"),
        heedful.record(model, "pattern"),
    ):
        other(ids)
    with pytest.raises(ZeroDivisionError), heedful.record(model, "pattern"):
        raise ZeroDivisionError
    for run in (model, model.hidden, model.decoder, lambda ids: model.generate(ids, max_new_tokens=1)):
        with heedful.record(model, "pattern") as recorded:
            run(torch.zeros(1, 2, 128) if run is model.decoder else ids)
        assert recorded
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_a_call_that_reaches_no_recorded_point_is_an_error() -> None:
    model = heedful.create("transformer-tiny", seed=0)
    with pytest.raises(HeedfulError, match="reached the recorded"), heedful.record(model, "cross_attention.pattern"):
        model.encode(torch.tensor([[1, 2]]))
