"""Fill-mask: windows and what is hidden in them, the loss by hand, figures by brute force, answers, wrong inputs."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.data import Row, Rows
from heedful.data.masking import Masking
from heedful.data.token_stream import Stream, StreamWindows
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.metrics.example_scores import Sums
from heedful.metrics.verdict import Rival, verdict
from heedful.models import Encoder
from heedful.pretrained import save
from heedful.settings import (
    DataSettings,
    MaskingSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks import masked_windows as hidden
from heedful.tasks.baselines import DISCOUNT, NEIGHBORS
from heedful.tasks.fill_mask import FillMask
from heedful.text import Tokenizer
from heedful.training.optimisation import adamw
from heedful.training.run import train
from tolerances import approx, assert_close

LENGTH = 16
BOOK = (
    "".join(
        f"The {animal} says {sound}, and the {animal} eats {food}.\n"
        for animal, sound, food in [("cow", "moo", "grass"), ("owl", "hoo", "mice"), ("hen", "cluck", "corn")]
    )
    * 8
)


def rows(*texts: str) -> Rows:
    return Rows((Row({"text": text}, f"{i}.txt", 1) for i, text in enumerate(texts)), 0, ("text",))


def settings(kind: str = "bpe", **given: Any) -> RunSettings:
    chosen: dict[str, Any] = {
        "preset": "bert-tiny",
        "data": DataSettings(max_length=LENGTH),
        "model": ModelSettings(dim=64, heads=4, depth=1, dropout=0.0),
        "tokenizer": TokenizerSettings(kind=kind, size=320),  # type: ignore[arg-type]
    }
    return RunSettings(task="fill-mask", train=("-",), out="-", **(chosen | given))


def made(kind: str) -> tuple[FillMask, Encoder]:
    """A model with fresh weights."""
    task = FillMask.prepare(rows(BOOK), settings(kind))
    model = heedful.create(task.config(settings(kind)), seed=0)
    assert isinstance(model, Encoder)
    return task, model.eval()


@cache
def trained() -> tuple[FillMask, Encoder]:
    """A model that has read the book for a few seconds."""
    task, model = made("bpe")
    task.check_model(model)
    examples = task.encode(rows(BOOK), LENGTH).examples
    task.before_training(model, settings(masking=MaskingSettings(probability=0.3)))
    optimiser, random = adamw(model, lr=3e-3, betas=(0.9, 0.98)), np.random.default_rng(0)
    for step in range(200):
        optimiser.param_groups[0]["lr"] = optimiser.param_groups[1]["lr"] = 3e-3 * min(1, (step + 1) / 30)
        batch = task.collate([*examples, *examples], random)
        optimiser.zero_grad()
        (task.objective(model, batch) / task.count(batch)).backward()
        optimiser.step()
    task.before_training(model, settings())
    return task, model.eval()


def test_another_model_or_a_wrapper_is_refused() -> None:
    task, model = made("bpe")
    encoded = task.encode(rows(BOOK), LENGTH)
    calls: list[Callable[[Any], object]] = [
        lambda wrong: task.objective(wrong, task.collate(encoded.examples)),
        lambda wrong: task.measure(wrong, encoded.examples, encoded.rows),
        lambda wrong: task.predict(wrong, ["The <mask>"]),
    ]
    for wrong in (heedful.create("gpt-micro", seed=0), torch.nn.DataParallel(model)):
        for call in calls:
            with pytest.raises(HeedfulError, match=rf"needs a model of class Encoder, not {type(wrong).__name__};"):
                call(wrong)


# ------------------------------------------------------------------------------------------------------------ the data


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_windows_show_every_token_once_with_what_stands_around(kind: str) -> None:
    task, _ = made(kind)
    texts = [BOOK, "The cow", BOOK[:99]]
    stream = [token for ids in task.tokenizer.encode(texts) for token in [*ids, task.tokenizer.end]]
    encoded = task.encode(rows(*texts), LENGTH)
    batch = task.collate(encoded.examples)
    whole = torch.where(batch["labels"] == -100, batch["ids"], batch["labels"])
    shown = [row[real].tolist() for row, real in zip(whole, batch["mask"], strict=True)]
    assert all((row[0], row[-1]) == (task.tokenizer.start, task.tokenizer.end) for row in shown)
    assert [len(row) for row in shown[:-1]] == [LENGTH] * (len(shown) - 1)
    assert [token for row in shown for token in row[1:-1]] == stream[:-1]
    assert encoded.note == f"{len(stream):,} tokens in windows of 14, 2 special tokens around each"
    assert task.lengths(encoded.examples).tolist() == [[LENGTH]] * len(shown)
    assert encoded.rows == rows(*texts)


def test_the_same_tokens_are_masked_in_every_evaluation() -> None:
    task, _ = trained()
    examples = task.encode(rows(BOOK), LENGTH).examples
    together, again = task.collate(examples), task.collate(examples)
    alone = [task.collate([example]) for example in examples]
    for i, one in enumerate(alone):
        length = one["ids"].size(1)
        assert torch.equal(one["ids"][0], together["ids"][i, :length])
        assert torch.equal(one["labels"][0], together["labels"][i, :length])
    assert torch.equal(together["ids"], again["ids"])
    chosen = together["labels"] != -100
    assert (together["ids"][chosen] == task.mask).all()
    assert chosen.any(dim=1).all()
    assert not (chosen & ~together["mask"]).any()
    text = (
        task.evaluation_masking.ordinary[np.where(chosen, together["labels"], together["ids"])]
        & together["mask"].numpy()
    )
    assert task.count(together) == chosen.sum() == pytest.approx(0.15 * text.sum(), rel=0.15)


def test_training_hides_other_tokens_each_time_as_the_settings_say() -> None:
    task, model = trained()
    examples = task.encode(rows(BOOK), LENGTH).examples
    first, again, other = (task.collate(examples, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first["ids"], again["ids"])
    assert not torch.equal(first["labels"], other["labels"])
    hidden = first["ids"][first["labels"] != -100]
    assert 0.5 < float((hidden == task.mask).float().mean()) < 1  # some are others, some stay
    fresh = FillMask(task.tokenizer, LENGTH)
    fresh.before_training(model, settings(masking=MaskingSettings(probability=0.5, unit="span")))
    assert (fresh.masking.share, fresh.masking.unit) == (0.5, "span")
    more = fresh.collate(examples, np.random.default_rng(0))
    assert fresh.count(more) > 2.5 * task.count(first)
    assert torch.equal(fresh.collate(examples)["labels"], task.collate(examples)["labels"])  # measured as any other


def test_a_shorter_text_and_one_of_nothing() -> None:
    task, model = made("wordpiece")
    encoded = task.encode(rows("The cow"), LENGTH)
    assert encoded.note == "3 tokens in windows of 2, 2 special tokens around each"
    assert task.collate(encoded.examples, np.random.default_rng(0))["ids"].shape == (1, 4)
    assert task.measure(model, encoded.examples, encoded.rows).details["tokens"] == 2
    with pytest.raises(HeedfulError, match=r"no token can be masked, in 0\.txt:1, so there is nothing to learn from"):
        task.encode(rows("日"), LENGTH)
    with pytest.raises(HeedfulError, match=r"--data\.max-length 17 is more than the 16 tokens"):
        task.encode(rows(BOOK), 17)
    with pytest.raises(HeedfulError, match=r"max-length 2 has no room for text and 2 special tokens"):
        task.encode(rows(BOOK), 2)
    assert task.encode(rows("The 日 cow 日"), LENGTH).note.endswith(
        "; 2 of them not in the vocabulary and never masked"
    )


# ------------------------------------------------------------------------------------------------------------- learning


def test_the_loss_by_hand() -> None:
    """The head on the chosen rows alone is the whole model's cross-entropy."""
    task, model = trained()
    batch = task.collate(task.encode(rows(BOOK), LENGTH).examples, np.random.default_rng(0))
    p = model(batch["ids"], batch["mask"]).detach().double().log_softmax(-1)
    places = [(i, t) for i, row in enumerate(batch["labels"].tolist()) for t, label in enumerate(row) if label != -100]
    truth = [int(batch["labels"][place]) for place in places]
    plain = -sum(float(p[i, t, label]) for (i, t), label in zip(places, truth, strict=True))
    assert float(task.objective(model, batch).detach()) == approx(plain, "gradient")
    spread = -sum(float(p[i, t].mean()) for i, t in places)
    assert float(task.objective(model, batch, 0.1).detach()) == approx(0.9 * plain + 0.1 * spread, "gradient")
    assert task.count(batch) == len(places)
    task.objective(model, batch).backward()
    assert model.embedding.token.weight is model.get_parameter("head.output.weight")
    model.zero_grad()


def test_it_learns() -> None:
    task, model = trained()
    encoded = task.encode(rows(BOOK), LENGTH)
    metrics = task.measure(model, encoded.examples, encoded.rows).metrics
    simple = task.guess(encoded.examples, encoded.rows, encoded.rows)
    assert simple is not None
    assert metrics["loss"] < simple.metrics["loss"] / 2
    assert metrics["accuracy"] > simple.metrics["accuracy"] + 30
    assert metrics["pseudo_perplexity"] < math.exp(simple.metrics["loss"]) / 3


# ------------------------------------------------------------------------------------------------------------ measuring


def test_the_figures_by_brute_force() -> None:
    task, model = trained()
    text = BOOK[:300] + "The cow eats mice and says hoo."
    encoded = task.encode(rows(text), LENGTH)
    measured = task.measure(model, encoded.examples, encoded.rows)
    model.requires_grad_(False)
    batch = task.collate(encoded.examples)
    chosen = batch["labels"] != -100
    logits, truth = model(batch["ids"], batch["mask"])[chosen], batch["labels"][chosen]
    assert measured.metrics["loss"] == approx(float(F.cross_entropy(logits, truth)), "gradient")
    assert measured.metrics["accuracy"] == pytest.approx(100 * float((logits.argmax(-1) == truth).float().mean()))
    stream = [*task.tokenizer.encode([text])[0]]
    total = 0.0
    for first in range(0, len(stream), LENGTH - 2):
        row = [task.tokenizer.start, *stream[first : first + LENGTH - 2], task.tokenizer.end]
        for t in range(1, len(row) - 1):
            hidden = torch.tensor([[*row[:t], task.mask, *row[t + 1 :]]])
            total -= float(model(hidden)[0, t].log_softmax(-1)[row[t]])
    assert measured.metrics["pseudo_perplexity"] == approx(math.exp(total / len(stream)), "gradient")
    counts = {"tokens": len(stream), "hidden": int(chosen.sum()), "hidden_in_turn": len(stream)}
    assert measured.details == counts
    assert measured.example_scores is not None
    every = np.arange(len(measured.example_scores))
    assert measured.example_scores.metrics_of(every) == pytest.approx(measured.metrics)
    model.requires_grad_(True)
    again = task.measure(model, encoded.examples, encoded.rows, batch_tokens=20)
    assert again.metrics == approx(measured.metrics, "gradient")


def test_each_document_has_its_own_figures() -> None:
    task, model = trained()
    texts = [BOOK[:160], "The cow eats mice and says hoo.", BOOK[:200]]
    encoded = task.encode(rows(*texts), LENGTH)
    measured = task.measure(model, encoded.examples, encoded.rows)
    assert measured.example_scores is not None
    assert len(measured.example_scores) == 3
    stream, c = encoded.examples[0].stream, LENGTH - 2
    batch = task.collate(encoded.examples)
    chosen = batch["labels"] != -100
    losses = F.cross_entropy(
        model(batch["ids"], batch["mask"]).detach()[chosen], batch["labels"][chosen], reduction="none"
    )
    places = [c * i + t - 1 for i, t in chosen.nonzero().tolist()]
    ends = [place for place, token in enumerate(stream.tokens) if token == task.tokenizer.end]
    for number in range(3):
        first, last = [-1, *ends][number], ends[number]
        own = [float(loss) for loss, place in zip(losses, places, strict=True) if first < place < last]
        assert measured.example_scores.metrics_of(np.array([number]))["loss"] == approx(sum(own) / len(own), "gradient")


def test_of_a_long_text_a_fixed_sample_is_hidden_in_turn() -> None:
    task, model = trained()
    encoded = task.encode(rows(BOOK), LENGTH)
    few, same = (task.measure(model, encoded.examples, encoded.rows, most=40) for _ in range(2))
    assert few.details["hidden_in_turn"] == 40
    assert few.metrics == same.metrics
    whole = task.measure(model, encoded.examples, encoded.rows)
    assert few.metrics["loss"] == whole.metrics["loss"]
    assert few.metrics["pseudo_perplexity"] == pytest.approx(whole.metrics["pseudo_perplexity"], rel=0.5)
    with pytest.raises(
        HeedfulError, match="top_k has no effect: evaluation scores tokens and fills in no text; leave the option out"
    ):
        task.measure(model, encoded.examples, encoded.rows, top_k=3)


def test_tokens_hidden_in_turn_are_drawn_alike_from_any(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    stream, ordinary = Stream(random.integers(0, 9, 1000), 7), np.arange(9) > 2
    some = [StreamWindows(stream)[i] for i in range(0, stream.windows, 3)]
    for examples in (StreamWindows(stream), some):
        mine = {window.number for window in examples}
        there = [i for i, token in enumerate(stream.tokens) if ordinary[token] and i // 7 in mine]
        expected = np.sort(np.random.default_rng(hidden.SEED).permutation(there)[:50])
        for part in (64, 1 << 20):
            monkeypatch.setattr(hidden, "CHUNK", part)
            places, count = hidden.drawn_positions(examples, ordinary, 50)
            assert (places.tolist(), count) == (expected.tolist(), len(there))
            assert hidden.drawn_positions(examples, ordinary, 10**6)[0].tolist() == there
        with monkeypatch.context() as patch:
            patch.setattr(hidden, "SHUFFLED", 10)  # too many to be shuffled
            places, count = hidden.drawn_positions(examples, ordinary, 50)
            assert (len({*places}), count) == (50, len(there))
            assert {*places} <= {*there}
            assert places.tolist() == sorted(places)
            assert hidden.drawn_positions(examples, ordinary, 50)[0].tolist() == places.tolist()
            assert hidden.drawn_positions(examples, ordinary, 10**6)[0].tolist() == there


def test_the_guess_by_hand() -> None:
    task, _ = trained()
    learned, asked = "the cow , the cow , the owl", "the owl eats the hen"
    counts = Counter(task.tokenizer.encode([learned])[0])
    size = task.tokenizer.vocab_size - 5  # but for special tokens
    total = counts.total() + size
    truth = task.tokenizer.encode([asked])[0]
    loss = -sum(math.log((counts[token] + 1) / total) for token in truth) / len(truth)
    guess = task.guess(task.encode(rows(asked)).examples, rows(asked), rows(learned))
    assert guess is not None
    assert guess.metrics["loss"] == pytest.approx(loss)
    best = max(counts, key=lambda token: (counts[token], -token))
    assert guess.metrics["accuracy"] == pytest.approx(100 * truth.count(best) / len(truth))


def ngram_p(train: list[int], size: int, around: dict[int, int], token: int) -> float:
    """Discounted, interpolated n-grams by counting, one token at a time; ``around`` has only what is visible."""
    p = 1 / size
    for offsets in NEIGHBORS:
        if all(offset in around for offset in offsets):
            places = range(-min(0, *offsets, 0), len(train) - max(0, *offsets, 0))
            same = [i for i in places if all(train[i + offset] == around[offset] for offset in offsets)]
            counts = Counter(train[i] for i in same if train[i] > 4)
            if counts:
                rest = DISCOUNT * len(counts) * p
                p = (max(counts[token] - DISCOUNT, 0) + rest) / counts.total()
    return p


def test_the_baseline_reads_what_is_visible_around_each_masked_token() -> None:
    """By counting, from the masked ids that a model reads, in short windows so that neighbors are masked or missing."""
    task, _ = trained()
    learned, asked = rows(BOOK[:150], BOOK[40:110]), rows(BOOK[:400], BOOK[60:90])
    examples = task.encode(asked, LENGTH).examples
    train = [token for row in learned for token in [*task.tokenizer.encode([row.values["text"]])[0], 2]]
    size, losses = task.tokenizer.vocab_size - 5, np.zeros(len(examples))
    batch = task.collate(examples)
    hidden_neighbors = 0
    for window, (ids, labels) in enumerate(zip(batch["ids"].tolist(), batch["labels"].tolist(), strict=True)):
        last = int(batch["mask"][window].sum()) - 2  # before the closing token
        for place, token in enumerate(labels):
            if token != -100:
                near = {d: ids[place + d] for d in (-2, -1, 1, 2) if 1 <= place + d <= last}
                hidden_neighbors += task.mask in near.values()
                near = {offset: one for offset, one in near.items() if one != task.mask}
                losses[window] -= math.log(ngram_p(train, size, near, token))
    assert hidden_neighbors > 3
    baseline = task.quick_baseline(examples, asked, learned)
    assert isinstance(baseline.example_scores, Sums)
    assert_close(baseline.example_scores.statistics[:, 0], losses)
    assert baseline.example_scores.statistics[:, 2].sum() == task.count(batch)
    assert task.baseline(asked, lambda: learned).metrics.keys() == baseline.metrics.keys()


def test_the_baseline_beats_frequencies_where_neighbors_tell_the_token() -> None:
    task, model = trained()
    encoded = task.encode(rows(BOOK), LENGTH)
    guess = task.guess(encoded.examples, encoded.rows, encoded.rows)
    baseline = task.quick_baseline(encoded.examples, encoded.rows, encoded.rows)
    assert guess is not None
    assert guess.example_scores is not None
    assert baseline.example_scores is not None
    assert baseline.metrics["accuracy"] > guess.metrics["accuracy"] + 50
    assert baseline.metrics["loss"] < guess.metrics["loss"] / 3
    assert baseline.metrics["pseudo_perplexity"] < 2
    scored = task.measure(heedful.create(task.config(settings()), seed=0).eval(), encoded.examples, encoded.rows)
    rivals = {name: Rival(name, part.example_scores) for name, part in (("guess", guess), ("baseline", baseline))}
    assert verdict(scored.window_scores, "loss", baseline=rivals["baseline"]).kind == "below"
    learned = task.measure(model, encoded.examples, encoded.rows).window_scores
    found = verdict(learned, "loss", guess=rivals["guess"], baseline=rivals["baseline"])
    assert found.rival == "baseline"
    assert found.rival_value == pytest.approx(baseline.metrics["loss"])


# ------------------------------------------------------------------------------------------------------------ answering


def test_a_text_is_filled_in() -> None:
    task, model = trained()
    answer = task.predict(model, ["The hen says cluck, <mask> the hen eats corn."])[0]
    assert answer.output == "The hen says cluck, and the hen eats corn."
    ids = [1, *task.tokenizer.encode([answer.input])[0], 2]
    p = model(torch.tensor([ids]))[0, ids.index(4)].softmax(-1)
    assert answer.score == approx(float(p.detach().max()), "gradient")
    best = task.predict(model, [answer.input], top_k=3)[0]
    assert [one["label"] for one in best.output] == [
        task.tokenizer.pieces([i])[0].strip() for i in p.topk(3).indices.tolist()
    ]
    assert [one["score"] for one in best.output] == approx(p.topk(3).values.tolist(), "gradient")
    assert best.output[0]["text"] == answer.output
    assert best.score == answer.score


def test_several_masks_are_filled_each_on_its_own() -> None:
    task, model = trained()
    text = "The owl says <mask>, and the <mask> eats mice."
    answer, lists = task.predict(model, [text])[0], task.predict(model, [text], top_k=2)[0]
    first, second = lists.output
    assert answer.output == text.replace("<mask>", first[0]["label"], 1).replace("<mask>", second[0]["label"])
    assert answer.score == pytest.approx(first[0]["score"] * second[0]["score"])
    assert second[1]["text"] == f"The owl says <mask>, and the {second[1]['label']} eats mice."


def test_answers_are_the_same_alone_and_in_a_batch() -> None:
    task, model = trained()
    texts = ["The <mask> says moo", "<mask>", "", "The hen <mask> cluck, and the <mask> eats", "  "]
    together = task.predict(model, texts, batch_tokens=8)
    for text, answer in zip(texts, together, strict=True):
        alone = task.predict(model, [text])[0]
        assert alone.output == answer.output
        assert answer.score == (None if not text.strip() else approx(alone.score, "gradient"))
    assert (together[2].output, together[2].score) == ("", None)
    assert task.predict(model, [" "], top_k=2)[0].output == []
    assert task.predict(model, []) == []


def test_around_each_mask_of_a_long_text_is_read(caplog: pytest.LogCaptureFixture) -> None:
    task, model = trained()
    line = "The owl says hoo, <mask> the owl eats mice. "
    text = "<mask> " + line * 3 + "The hen <mask>"
    answer = task.predict(model, [text, "The <mask>"])[0]
    (ids,) = task.tokenizer.encode([text])
    scores = []
    for place in [place for place, token in enumerate(ids) if token == task.mask]:
        first = min(max(place - 7, 0), len(ids) - 14)
        row = [1, *ids[first : first + 14], 2]
        p = model(torch.tensor([row]))[0, place - first + 1].softmax(-1)
        scores.append(float(p.detach().max()))
    assert answer.score == pytest.approx(math.prod(scores), rel=1e-3)
    assert line.replace("<mask>", "and") * 3 in answer.output
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "1 of 2 inputs longer than the 16 tokens that the model takes; only the tokens around each mask were read"
    ]


def test_a_model_is_tried_with_a_text_whose_last_word_is_missing() -> None:
    task, model = trained()
    inputs = task.trial_inputs(["The cow says moo", "hoo"])
    assert inputs == ["The cow says <mask>", "<mask>"]
    assert all(answer.score for answer in task.predict(model, inputs))


def test_wrong_inputs() -> None:
    task, model = trained()
    pipe = Pipeline(task, model)
    with pytest.raises(
        HeedfulError,
        match=r"^the input has no <mask> \(it has \[MASK\], .*\): 'The \[MASK\]'; write <mask> where",
    ):
        pipe("The [MASK]")
    with pytest.raises(HeedfulError, match=r"^input 1 has no <mask>: 'The cow'; write <mask> where a word is missing"):
        pipe(["The <mask>", "The cow"])
    with pytest.raises(HeedfulError, match="fill-mask takes a text or a list of texts; got int"):
        pipe([3])
    with pytest.raises(HeedfulError, match="the option num_beams has no effect for fill-mask"):
        pipe("The <mask>", num_beams=3)


# ----------------------------------------------------------------------------------------------------- runs and folders


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(BOOK * 2, "utf-8")
    return tmp_path / "book.txt"


def run(book: Path, out: Path, **given: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"max_steps": 6, "preset": "bert-tiny", "data": DataSettings(max_length=LENGTH)}
    asked |= {"model": ModelSettings(dim=32, heads=2, depth=1)} if "start_from" not in given else {"preset": None}
    asked |= {"train": (str(book),), "out": str(out)}
    return train(RunSettings(task="fill-mask", **(asked | given)), say=lambda line: None, quiet=True)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_transformers_opens_a_trained_folder_and_fills_alike(kind: Any, book: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run(book, tmp_path / "run", tokenizer=TokenizerSettings(kind=kind, size=320))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run").eval()
    assert type(theirs).__name__ == "BertForMaskedLM"
    assert theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "run"))
    ours = heedful.pipeline("fill-mask", tmp_path / "run", device="cpu")
    for text in ("The cow <mask>,", "<mask> owl eats.", "(<mask>)", "the <mask>"):
        expected = fill(text, top_k=4)
        found = ours(text, top_k=4)
        assert [one["label"] for one in found["output"]] == [one["token_str"].strip() for one in expected]
        assert [one["score"] for one in found["output"]] == approx([one["score"] for one in expected], "gradient")
    several = fill("The <mask> and <mask>.", top_k=2)
    found = ours("The <mask> and <mask>.", top_k=2)["output"]
    assert [[one["label"] for one in each] for each in found] == [
        [one["token_str"].strip() for one in each] for each in several
    ]


def test_a_folder_comes_back_as_it_was_trained(book: Path, tmp_path: Path) -> None:
    result = run(book, tmp_path / "run", masking=MaskingSettings(unit="word", probability=0.3))
    unset = dict.fromkeys(("span_length", "objective", "generator"))
    assert result["settings"]["masking"] == {"probability": 0.3, "unit": "word", **unset}
    task = FillMask.load(tmp_path / "run")
    assert (task.window, task.longest, task.mask_name) == (LENGTH, LENGTH, "<mask>")
    card = json.loads((tmp_path / "run" / "heedful.json").read_text())
    assert card["task"] == "fill-mask"
    assert set(result["metrics"]) == {"loss", "accuracy", "pseudo_perplexity"}


def test_the_same_seed_gives_the_same_run(book: Path, tmp_path: Path) -> None:
    masking = MaskingSettings(unit="span")
    first, again, other = (
        run(book, tmp_path / name, masking=masking, seed=seed)["metrics"]
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert first == again != other


def test_a_stopped_run_goes_on_with_the_same_bits(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(book, tmp_path / "whole", masking=MaskingSettings(unit="word"))["metrics"]
    collate, calls = FillMask.collate, iter(range(100))

    def stopping(self: FillMask, examples: Any, random: Any = None) -> Any:
        if random is not None and next(calls) == 4:
            raise KeyboardInterrupt
        return collate(self, examples, random)

    every = TrainingSettings(save_every=2)
    monkeypatch.setattr(FillMask, "collate", stopping)
    with pytest.raises((KeyboardInterrupt, HeedfulError)):
        run(book, tmp_path / "parts", masking=MaskingSettings(unit="word"), training=every)
    monkeypatch.undo()
    resumed = RunSettings(task="fill-mask", train=(str(book),), out=str(tmp_path / "parts"), resume=True)
    assert train(resumed, say=lambda line: None, quiet=True)["metrics"] == whole


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
def test_published_models_fill_as_in_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    shape |= {"initializer_range": 0.5, "max_position_embeddings": 42}
    if name == "DistilBert":
        shape = {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40, "initializer_range": 0.5}
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if name == "Roberta" else []
    words = [
        "the",
        "cow",
        "owl",
        "hen",
        "says",
        "moo",
        "hoo",
        "cluck",
        "eats",
        "grass",
        "mice",
        "corn",
        "and",
        ",",
        ".",
    ]
    if special:
        shape |= {"type_vocab_size": 1, "pad_token_id": 1}
        made = Tokenizer.train([BOOK], 400, "bpe").backend
        pieces = [*special, *(piece for piece in made.get_vocab() if piece not in special)]
        state = json.loads(made.to_str())["model"]
        merges = [tuple(pair) for pair in state["merges"]]
        tokenizer = transformers.RobertaTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
    else:
        letters = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
        tokenizer = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(dict.fromkeys(vocabulary))})
    config = getattr(transformers, f"{name}Config")(vocab_size=len(tokenizer), **shape)
    model = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    torch.nn.init.normal_(model.get_output_embeddings().bias)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
    ours = heedful.pipeline("fill-mask", tmp_path, device="cpu")
    mask = tokenizer.mask_token
    for text in (f"The cow says {mask}, and", f"{mask} owl eats mice.", f"the hen eats {mask}"):
        expected = fill(text, top_k=5)
        found = ours(text, top_k=5)
        assert [one["label"] for one in found["output"]] == [one["token_str"].strip() for one in expected]
        assert [one["score"] for one in found["output"]] == approx([one["score"] for one in expected], "gradient")
    both = fill(f"The {mask} eats {mask}", top_k=1)
    score = ours(f"The {mask} eats {mask}")["score"]
    assert score == approx(both[0][0]["score"] * both[1][0]["score"], "gradient")


def test_a_bare_encoder_gets_a_fresh_tied_head(shared_data: Any, tmp_path: Path) -> None:
    folder = shared_data("weights/minilm-l6")
    task, model = FillMask.for_fine_tuning(folder, rows(BOOK), settings(start_from=str(folder), preset=None))
    assert all(name.startswith("head.") for name in model.fresh)
    assert model.get_parameter("head.output.weight") is model.embedding.token.weight  # type: ignore[union-attr]
    assert (task.mask_name, task.encode(rows(BOOK)).examples[0].stream.context) == ("[MASK]", 126)
    save(model, tmp_path)
    task.save(tmp_path)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    batch = task.collate(task.encode(rows(BOOK[:200])).examples)
    with torch.no_grad():
        expected = theirs(input_ids=batch["ids"], attention_mask=batch["mask"].long()).logits
        assert_close(model(batch["ids"], batch["mask"]), expected, "training")


def test_a_model_goes_on_from_a_folder(book: Path, tmp_path: Path) -> None:
    first = run(book, tmp_path / "one", max_steps=30)
    second = run(book, tmp_path / "two", max_steps=30, start_from=str(tmp_path / "one"))
    assert second["metrics"]["loss"] < first["metrics"]["loss"]


def test_folders_that_cannot_fill(tmp_path: Path, book: Path) -> None:
    plain = Tokenizer.train([BOOK], 300, template="both")
    model = heedful.create("bert-tiny", head="masked-language-model", seed=0)
    save(model, tmp_path / "none")
    plain.save(tmp_path / "none")
    with pytest.raises(HeedfulError, match="the tokenizer has no mask token"):
        heedful.pipeline("fill-mask", tmp_path / "none")
    task, _ = trained()
    sequence = heedful.create("bert-tiny", head="sequence", seed=0)
    with pytest.raises(HeedfulError, match="fill-mask needs a masked-language-model head; this model"):
        task.check_model(sequence)
    with pytest.raises(HeedfulError, match="needs an encoder; this model is of kind 'd"):
        task.check_model(heedful.create("gpt-micro", seed=0))
    with pytest.raises(HeedfulError, match="they do not belong together"):
        task.check_model(made("wordpiece")[1])


def test_a_decoder_is_refused_before_a_head_is_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.train([BOOK], 300, template="both", mask=True)
    model = heedful.create("gpt-micro", seed=0)
    save(model, tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(HeedfulError, match=r"fill-mask needs an encoder; the model in .* is of kind 'decoder'; choose"):
        FillMask.for_fine_tuning(tmp_path, rows(BOOK), settings())
    assert caplog.messages == []


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("une journée\n".encode("latin-1") * 3)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "line.txt").write_text("all in one line")
    (tmp_path / "table.tsv").write_text("body\tkind\nThe cow\tx\n")
    for name, told in {
        "latin.txt": r"latin\.txt:1",
        "empty.txt": r"only blank or unreadable texts \(1\), in .*empty\.txt; give text files",
        "line.txt": r"no text has two lines, in .*line\.txt, .*--valid FILE",
        "absent.txt": r"absent\.txt",
    }.items():
        with pytest.raises(HeedfulError, match=told):
            run(tmp_path / name, tmp_path / "out")
    with pytest.raises(HeedfulError, match=r"--model\.tied has no effect for fill-mask; leave it out"):
        run(tmp_path / "line.txt", tmp_path / "out", model=ModelSettings(tied=False))
    assert not (tmp_path / "out").exists()


def test_windows_line_ends_and_a_mark_at_the_beginning_are_read(tmp_path: Path) -> None:
    lines = BOOK.replace("\n", "\r\n")
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "unix.txt").write_text(BOOK)
    results = [run(tmp_path / name, tmp_path / name[:3], max_steps=2)["metrics"] for name in ("dos.txt", "unix.txt")]
    assert results[0] == results[1]


def test_masking_knows_the_words_of_the_vocabulary() -> None:
    task, _ = trained()
    assert isinstance(task.masking, Masking)
    row = np.array([1, *task.tokenizer.encode(["The cow says moo, and the owl hoo."])[0], 2])
    words = ["".join(task.tokenizer.pieces(row[word])).strip() for word in FillMask(task.tokenizer).masking.words(row)]
    assert len(words) == len(row) - 2  # tokens, one by one
    whole = FillMask(task.tokenizer)
    whole.before_training(trained()[1], settings(masking=MaskingSettings(unit="word")))
    words = ["".join(task.tokenizer.pieces(row[word])).strip() for word in whole.masking.words(row)]
    assert words == ["The", "cow", "says", "moo", ",", "and", "the", "owl", "hoo", "."]


def test_little_text_is_read_in_short_windows_of_few_tokens() -> None:
    asked = RunSettings(task="fill-mask", train=("-",), out="-")
    for size, vocabulary, window in ((400_000, 1000, 32), (7_000_000, 1000, 32), (30_000_000, 16_000, 128)):
        text = rows("a b\n" * (size // 4))
        found = FillMask.suggested_settings(text, asked)
        assert (found.tokenizer.size, found.data.max_length) == (vocabulary, window)
        longer = FillMask.suggested_settings(text, replace(asked, data=DataSettings(max_length=64)))
        assert longer.data.max_length == 64
