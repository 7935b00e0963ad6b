"""Translation: tensors, the loss by hand in float64, answers in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import heedful
from heedful.config import EmbeddingConfig
from heedful.data import Row
from heedful.errors import HeedfulError
from heedful.settings import ModelSettings, RunSettings
from heedful.tasks import check, get, names
from heedful.tasks.pipeline import Pipeline
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer

ROWS = [Row({"source": s, "target": t}, "f", 1) for s, t in [("a b", "b a"), ("one two three", "x"), ("é", "ü ö")]]


@pytest.fixture(scope="module")
def task() -> Translation:
    tokenizer = Tokenizer.train([text for row in ROWS for text in row.values.values()], 300)
    return Translation(tokenizer, tokenizer)


def settings(**model: object) -> RunSettings:
    return RunSettings(
        task="translation", train=("-",), out="-", preset="transformer-tiny", model=ModelSettings(**model)
    )


def test_a_batch(task: Translation) -> None:
    examples = task.encode(ROWS)
    batch = task.collate(examples)
    start, end, pad = task.target.start, task.target.end, task.target.pad
    for i, row in enumerate(ROWS):
        source, target = (task.source.encode([row.values[side]])[0] for side in ("source", "target"))
        real = batch["source_mask"][i]
        assert batch["source"][i][real].tolist() == [*source, end]
        assert batch["source"][i][~real].eq(pad).all()
        length = len(target) + 1
        assert batch["target"][i, :length].tolist() == [start, *target]
        assert batch["labels"][i, :length].tolist() == [*target, end]
        assert batch["labels"][i, length:].eq(-100).all()
        assert task.lengths(examples)[i].tolist() == [len(source) + 1, length]
    assert task.count(batch) == int(task.lengths(examples)[:, 1].sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_by_hand(task: Translation, smoothing: float) -> None:
    """Σ over real target tokens alone; padding takes no part in the smoothing either."""
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).double().eval()
    examples = task.encode(ROWS)
    expected = 0.0
    for example in examples:
        batch = task.collate([example])
        log_p = model(batch["source"], batch["target"])[0].log_softmax(-1)
        for row, label in zip(log_p, batch["labels"][0].tolist(), strict=True):
            expected += -(1 - smoothing) * row[label].item() - smoothing * row.mean().item()
    together = task.objective(model, task.collate(examples), smoothing).item()
    assert together == pytest.approx(expected, rel=1e-6)


def test_settings_change_the_preset(task: Translation) -> None:
    config = task.config(settings(dim=64, encoder_depth=2, decoder_depth=1, heads=2, dropout=0.25, tied=False))
    assert (config.encoder.depth, config.decoder.depth) == (2, 1)
    assert config.encoder.ff_dim == config.decoder.ff_dim == 256
    assert config.decoder.dropout.residual == config.encoder.dropout.embedding == 0.25
    assert config.head.tied is False
    assert config.source.vocab_size == task.source.vocab_size
    with pytest.raises(HeedfulError, match="gpt2"):
        task.config(RunSettings(task="translation", train=("-",), out="-", preset="gpt2"))


def test_answers_keep_the_order_and_blanks_stay_blank(task: Translation) -> None:
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    pipe = Pipeline(task, model)
    texts = ["one two three", "", "a", "  ", "one two three one two three"]
    together = pipe(texts, max_new_tokens=5)
    assert [answer["input"] for answer in together] == texts
    assert together[1]["output"] == together[3]["output"] == ""
    for i in (0, 2, 4):
        alone = pipe(texts[i], max_new_tokens=5)
        assert alone["output"] == together[i]["output"]
        assert alone["score"] == pytest.approx(together[i]["score"], abs=1e-5)
    assert pipe([]) == []
    with pytest.raises(HeedfulError, match="did you mean 'num_beams'"):
        pipe("a", num_beam=3)


def test_the_list_of_tasks() -> None:
    assert [entry["name"] for entry in names()] == ["translation"]
    assert get("translation") is Translation
    with pytest.raises(HeedfulError, match="did you mean 'translation'"):
        check("translate")


@pytest.mark.parametrize("extra", [64, 0, -1])
def test_an_embedding_with_other_rows_than_the_tokenizer(task: Translation, tmp_path: Path, extra: int) -> None:
    """Rows to spare, as published models have them, change nothing; a row too few is refused when the folder opens."""
    config = task.config(settings(dim=16, heads=2, depth=1))
    spare = EmbeddingConfig(vocab_size=task.source.vocab_size + extra)
    model = heedful.create(replace(config, source=spare), seed=0)
    model.save_pretrained(tmp_path)
    task.save(tmp_path)
    if extra < 0:
        with pytest.raises(HeedfulError, match="do not belong together"):
            heedful.pipeline("translation", tmp_path)
    else:
        assert isinstance(heedful.pipeline("translation", tmp_path)("a b", max_new_tokens=4)["output"], str)


def test_a_model_of_another_family_is_refused(task: Translation, tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    task.save(tmp_path)
    with pytest.raises(HeedfulError, match="needs an encoder-decoder"):
        heedful.pipeline("translation", tmp_path)
