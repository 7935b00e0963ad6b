"""R-Drop: two passages drawn together, by the formula written out with PyTorch's own divergence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import cli
from heedful.settings import ModelSettings, RunSettings
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask
from heedful.tasks.r_drop import divergence, repeat_batch
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.token_batches import IGNORED
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer
from tolerances import assert_close

ALPHA, SMOOTHING = 3.0, 0.1
PAIRS = [("one two", "two one"), ("three", "three"), ("one three two", "two three one"), ("two", "two")]


def symmetric(logits: Tensor) -> Tensor:
    """½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)), summed over all examples."""
    a, b = logits.log_softmax(-1).chunk(2)
    return 0.5 * (F.kl_div(a, b, reduction="sum", log_target=True) + F.kl_div(b, a, reduction="sum", log_target=True))


def dropping(model: nn.Module, rate: float) -> nn.Module:
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = rate
    return model.double().train()


@pytest.fixture
def translation() -> tuple[Translation, nn.Module, dict[str, Tensor]]:
    tokenizer = Tokenizer.train([text for pair in PAIRS for text in pair], kind="bpe", size=280)
    task = Translation(tokenizer, tokenizer)
    settings = RunSettings(
        task="translation",
        train=("x",),
        out="y",
        preset="transformer-tiny",
        model=ModelSettings(dim=16, depth=2, heads=2, ff_dim=32, r_drop=ALPHA),
    )
    model = heedful.create(task.config(settings), seed=0)
    task.before_training(model, settings)
    sources, targets = (tokenizer.encode([pair[side] for pair in PAIRS]) for side in (0, 1))
    return task, model, task.tensors(list(zip(sources, targets, strict=True)))


@pytest.mark.parametrize("rate", [0.0, 0.3], ids=["nothing dropped", "dropped"])
def test_a_translator_learns_by_the_formula(translation: Any, rate: float) -> None:
    task, model, batch = translation
    assert task.agreement == ALPHA
    dropping(model, rate)
    torch.manual_seed(5)
    loss = task.objective(model, batch, SMOOTHING)
    found = torch.autograd.grad(loss, list(model.parameters()))
    torch.manual_seed(5)
    both = repeat_batch(batch)
    real = both["labels"] != IGNORED
    logits = model.head(model.hidden(both["source"], both["target"], both["source_mask"], real)[real])
    cross = F.cross_entropy(logits, both["labels"][real], reduction="sum", label_smoothing=SMOOTHING)
    expected = (cross + ALPHA * symmetric(logits)) / 2
    assert_close(loss, expected)
    for one, other in zip(found, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        assert_close(one, other, "gradient")
    if not rate:  # the two are one
        task.agreement = 0.0
        assert_close(loss, task.objective(model, batch, SMOOTHING))
    else:
        assert symmetric(logits) > 0.01


def test_without_it_an_example_passes_once(translation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model, batch = translation
    seen: list[int] = []
    hidden = type(model).hidden
    monkeypatch.setattr(
        type(model), "hidden", lambda self, source, *rest: (seen.append(len(source)), hidden(self, source, *rest))[1]
    )
    task.objective(model, batch)
    task.agreement = 0.0
    task.objective(model, batch)
    assert seen == [2 * len(PAIRS), len(PAIRS)]
    assert EncoderDecoderTask.used_settings.isdisjoint({"model.r_drop"})  # of span corruption it is refused


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several"])
def test_a_classifier_learns_by_the_formula(several: bool) -> None:
    tokenizer = Tokenizer.train(["good bad fair day"], kind="bpe", size=280)
    task = TextClassification(tokenizer, ["a", "b", "c"], multi_label=several)
    settings = RunSettings(
        task="text-classification",
        train=("x",),
        out="y",
        preset="bert-tiny",
        model=ModelSettings(dim=16, depth=2, heads=2, r_drop=ALPHA),
    )
    model = heedful.create(task.config(settings), seed=0)
    task.before_training(model, settings)
    dropping(model, 0.4)
    ids = torch.randint(5, 30, (4, 6), generator=torch.Generator().manual_seed(0))
    labels = (
        torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]).double() if several else torch.tensor([0, 2, 1, 1])
    )
    batch = {"ids": ids, "mask": torch.ones_like(ids).bool(), "segments": torch.zeros_like(ids), "labels": labels}
    torch.manual_seed(5)
    loss = task.objective(model, batch)
    torch.manual_seed(5)
    both = repeat_batch(batch)
    logits = task.logits(model, both)
    if several:
        cross = F.binary_cross_entropy_with_logits(logits, both["labels"], reduction="none").mean(1).sum()
        chances = torch.stack((logits, torch.zeros_like(logits)), -1)  # of two classes each
        apart = symmetric(chances) / 3
    else:
        cross, apart = F.cross_entropy(logits, both["labels"], reduction="sum"), symmetric(logits)
    assert apart > 1e-4
    assert_close(loss, (cross + ALPHA * apart) / 2, dtype=torch.float32)


def test_two_alike_are_not_apart() -> None:
    logits = torch.randn(3, 5).repeat(2, 1)
    assert not divergence(logits, logits.softmax(1)).any()


def run(data: Path, out: Path, *more: str) -> list[str]:
    small = [
        "--preset=transformer-tiny",
        "--model.dim=16",
        "--model.heads=2",
        "--model.depth=1",
        "--tokenizer.size=280",
    ]
    small += ["--training.batch-tokens=64", "--training.log-every=1", "--training.evaluate-every=4"]
    return ["train", "translation", "--train", str(data), "--out", str(out), *small, "--model.dropout=0.2", *more]


def test_a_run_hears_it_and_goes_on_with_it(tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    lines = [" ".join(words[int(digit)] for digit in f"{number:03}") for number in range(0, 400, 10)]
    data.write_text("".join(f"{line}\t{line}\n" for line in lines), encoding="utf-8")
    asked = ["--model.r-drop=4", "--training.schedule=constant", "--training.warmup=2"]
    assert cli.main(run(data, tmp_path / "whole", *asked, "--max-steps=6")) == 0
    assert cli.main(run(data, tmp_path / "halves", *asked, "--max-steps=3")) == 0
    assert cli.main(run(data, tmp_path / "halves", *asked, "--max-steps=6", "--resume")) == 0
    assert cli.main(run(data, tmp_path / "plain", *asked[1:], "--max-steps=6")) == 0
    losses = {
        name: {
            line["step"]: line["loss"]
            for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        }
        for name in ("whole", "halves", "plain")
    }
    assert losses["whole"] == losses["halves"]
    assert losses["whole"] != losses["plain"]


def test_who_does_not_hear_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "book.txt"
    data.write_text("one two three\n" * 50, encoding="utf-8")
    out = ["--out", str(tmp_path / "out"), "--model.r-drop=4"]
    assert cli.main(["train", "text-generation", "--train", str(data), *out]) == 2
    assert "--model.r-drop" in capsys.readouterr().err


def test_where_nothing_is_dropped_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("one two\tone\nthree\ttwo three\n" * 9, encoding="utf-8")
    asked = run(data, tmp_path / "out", "--model.r-drop=4", "--max-steps=2")
    assert cli.main([*asked[:-3], "--model.dropout=0", *asked[-2:]]) == 2
    assert "has no dropout; give --model.dropout" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*asked[:-3], "--model.dropout=0", asked[-1]]) == 0
    going_on = ["train", "translation", "--train", str(data), "--from", str(tmp_path / "out"), "--max-steps=1"]
    going_on += ["--training.batch-tokens=64", "--model.r-drop=4", "--out"]
    assert cli.main([*going_on, str(tmp_path / "more")]) == 2
    assert "has no dropout; give --model.drop-path" in capsys.readouterr().err
    assert cli.main([*going_on, str(tmp_path / "path"), "--model.drop-path=0.2"]) == 0
    assert cli.main([*going_on, str(tmp_path / "lora"), "--lora.rank=2", "--lora.dropout=0.3"]) == 0
