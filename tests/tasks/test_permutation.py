"""Permutation language modelling: the orders, the loss against transformers, and a run from text to filled masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

import heedful
from heedful import HeedfulError, cli
from heedful.config import LanguageHead
from heedful.data import Row, Rows
from heedful.data.masking import LONGEST_PREDICTED, Factorisation
from heedful.pretrained import save
from heedful.settings import DataSettings, MaskingSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.fill_mask import FillMask
from heedful.tasks.masked_windows import neighbors
from heedful.tasks.permutation import PermutationFillMask
from heedful.training.run import train
from tolerances import approx

BOOK = "".join(
    f"The {animal} says {sound}, and the {animal} eats {food}.\n"
    for animal, sound, food in [("cow", "moo", "grass"), ("owl", "hoo", "mice"), ("hen", "cluck", "corn")] * 8
)
ROWS = Rows([Row({"text": BOOK}, "book.txt", 1)], 0, ("text",))


def settings(**given: Any) -> RunSettings:
    chosen: dict[str, Any] = {"train": ("-",), "out": "-", "preset": "xlnet-base"}
    chosen |= {"data": DataSettings(max_length=24), "tokenizer": TokenizerSettings(size=320)}
    chosen |= {"model": ModelSettings(dim=64, heads=4, depth=1, dropout=0.0)}
    return RunSettings(task="fill-mask", **(chosen | given))


def test_orders_predict_spans_of_a_sixth_of_the_tokens() -> None:
    ordinary = np.arange(50) > 4
    row = np.concatenate([[1, 2], np.arange(5, 50), np.arange(5, 50), [3]])
    factorisation, random = Factorisation(ordinary), np.random.default_rng(0)
    orders = np.stack([factorisation(row, random) for _ in range(2000)])
    predicted = orders > 0
    assert not predicted[:, ~ordinary[row]].any()
    assert predicted.sum(1).mean() / 90 == pytest.approx(1 / 6, rel=0.03)
    for order in orders[:200]:
        assert sorted(order[order > 0]) == list(range(1, (order > 0).sum() + 1))
        runs = "".join("x" if place else " " for place in order).split()
        assert min(map(len, runs)) >= 1
        assert max(map(len, runs)) <= 2 * LONGEST_PREDICTED  # two contexts may meet
    places = orders[:, 40][predicted[:, 40]]
    assert np.corrcoef(places, np.argsort(np.argsort(places)))[0, 1] > 0.5  # many different places
    assert places.min() == 1
    assert (Factorisation(ordinary)(np.array([1, 7, 2]), random) == [0, 1, 0]).all()
    assert not Factorisation(ordinary)(np.array([1, 2]), random).any()
    half = Factorisation(ordinary, share=0.5)
    assert np.mean([(half(row, random) > 0).sum() for _ in range(500)]) / 90 == pytest.approx(0.5, rel=0.03)


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    """Perm mask and target mapping, a row at a time, from the order alone."""
    asked = settings()
    task = FillMask.for_rows(ROWS, asked).prepare(ROWS, asked)
    assert isinstance(task, PermutationFillMask)
    model: Any = heedful.create(task.config(asked), seed=0).eval()
    assert save(model, tmp_path) == "xlnet"
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    batch: Any = task.collate(task.encode(ROWS).examples[:3], np.random.default_rng(0))
    total = torch.zeros(())
    for ids, order in zip(batch["ids"], batch["order"], strict=True):
        blind = torch.tensor([[bool(b) and b >= a for b in order.tolist()] for a in order.tolist()]).float()
        positions = order.nonzero()[:, 0]
        mapping = F.one_hot(positions, len(ids)).float()
        with torch.no_grad():
            logits = theirs(ids[None], perm_mask=blind[None], target_mapping=mapping[None]).logits[0]
        total += F.cross_entropy(logits, ids[positions], reduction="sum")
    assert task.objective(model, task.complete(batch)).item() == approx(total.item(), "training")
    assert task.objective(model, batch).item() == approx(total.item(), "training")
    assert task.count(batch) == int((batch["order"] > 0).sum())


def test_the_baseline_reads_tokens_that_were_predicted_before() -> None:
    task = FillMask.for_rows(ROWS, settings()).prepare(ROWS, settings())
    examples = task.encode(ROWS).examples
    batch, stream = task.collate(examples), examples[0].stream
    order = task._evaluation_order(examples)
    positions = np.flatnonzero(order)
    around = neighbors(stream, positions, order)
    before = len(task.input_template.before)
    windows, places = positions // stream.context, positions % stream.context + before
    assert (batch["order"].numpy()[windows, places] == order[positions]).all()
    seen = 0
    for i, (window, place) in enumerate(zip(windows, places, strict=True)):
        turns = batch["order"][window].tolist()
        for offset in (-2, -1, 1, 2):
            end = before + int(batch["mask"][window].sum()) - task.input_template.added
            is_inside = before <= place + offset < end
            is_visible = is_inside and turns[place + offset] < turns[place]
            assert around[offset][i] == (batch["ids"][window, place + offset] if is_visible else -1)
            seen += is_visible and turns[place + offset] > 0
    assert seen > 3


def test_from_text_to_filled_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the loss of the tokens' frequencies; answers as transformers computes them; tuned, audited, inspected."""
    book, out = tmp_path / "book.txt", tmp_path / "run"
    book.write_text(BOOK)
    run = train(settings(train=(str(book),), out=str(out), max_steps=200), say=lambda line: None, quiet=True)
    card = json.loads((out / "heedful.json").read_text())
    assert card["verdict"]["metric"] == "loss"
    assert card["verdict"]["baseline"]["name"] == "the tokens' frequencies in the training text"  # of few windows
    assert run["metrics"]["loss"] < 0.85 * card["verdict"]["baseline"]["value"]
    assert run["baseline"]["name"] == "n-grams of the tokens on both sides"
    text = "The cow says moo, and the cow eats <mask>."
    fill = heedful.pipeline("fill-mask", out)
    (guess, *_) = fill([text], top_k=3)[0]["output"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(out).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    place = int((ids[0] == tokenizer.mask_token_id).nonzero())
    blind = torch.zeros(1, ids.size(1), ids.size(1))
    blind[:, :, place] = 1
    mapping = F.one_hot(torch.tensor([[place]]), ids.size(1)).float()
    with torch.no_grad():
        p = theirs(ids, perm_mask=blind, target_mapping=mapping).logits[0, 0].softmax(-1)
    assert guess["score"] == approx(p.max().item(), "training")
    assert guess["label"] == tokenizer.decode(int(p.argmax())).strip()
    assert heedful.evaluate(str(out), str(book))["pseudo_perplexity"] > 1
    again = ["train", "fill-mask", "--train", str(book), "--from", str(out), "--max-steps", "2"]
    assert cli.main([*again, "--out", str(tmp_path / "tuned")]) == 0
    assert cli.main(["audit", "fill-mask", "--train", str(book), "--preset", "xlnet-base"]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(out), text, "--out", str(tmp_path / "page.html")]) == 0
    for head, kind in ((None, "language-model"), ("sequence", "sequence")):
        assert heedful.from_pretrained(out, head=head).config.head.kind == kind


def test_wrong_models_are_refused(tmp_path: Path) -> None:
    task = FillMask.for_rows(ROWS, settings()).prepare(ROWS, settings())
    config = task.config(settings())
    assert config.head == LanguageHead(bias=True)
    with pytest.raises(HeedfulError, match="needs a language-model head; this model's head is of kind 'no-head'"):
        task.check_model(heedful.create(config, head="none", seed=0))
    book = tmp_path / "book.txt"
    book.write_text(BOOK)
    span = settings(train=(str(book),), out=str(tmp_path / "run"), masking=MaskingSettings(unit="word"))
    with pytest.raises(HeedfulError, match=r"--masking\.unit has no effect .* 1 to 5 tokens"):
        train(span, say=lambda line: None, quiet=True)
