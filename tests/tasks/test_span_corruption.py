"""Span corruption: what is hidden and given back, T5's own loss, figures by hand, answers, what begins with it."""

from __future__ import annotations

import json
import logging
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import cli, tasks
from heedful.audit.audit import audit
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.models import EncoderDecoder
from heedful.pretrained import load, save
from heedful.settings import DataSettings, MaskingSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.fill_mask import FillMask
from heedful.tasks.span_corruption import SpanCorruption
from heedful.tasks.task import Measured
from heedful.text import Tokenizer
from heedful.training.optimisation import adamw
from tolerances import approx

LENGTH = 16
BOOK = (
    "".join(
        f"The {animal} says {sound}, and the {animal} eats {food}.\n"
        for animal, sound, food in [("cow", "moo", "grass"), ("owl", "hoo", "mice"), ("hen", "cluck", "corn")]
    )
    * 8
)
TINY = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--model.ff-dim=32", "--training.log-every=1"]
SMALL = ["--tokenizer.size=380", "--data.max-length=16"]


def rows(*texts: str) -> Rows:
    return Rows((Row({"text": text}, f"{i}.txt", 1) for i, text in enumerate(texts)), 0, ("text",))


def settings(preset: str = "transformer-tiny", **given: Any) -> RunSettings:
    chosen: dict[str, Any] = {
        "preset": preset,
        "data": DataSettings(max_length=LENGTH),
        "model": ModelSettings(dim=64, heads=4, depth=1, ff_dim=128, dropout=0.0),
        "tokenizer": TokenizerSettings(kind="bpe", size=420),
    }
    return RunSettings(task="fill-mask", train=("-",), out="-", **(chosen | given))


def made(preset: str = "transformer-tiny") -> tuple[SpanCorruption, EncoderDecoder]:
    """A model with fresh weights."""
    task = SpanCorruption.prepare(rows(BOOK), settings(preset))
    model = heedful.create(task.config(settings(preset)), seed=0)
    assert isinstance(model, EncoderDecoder)
    return task, model.eval()


STEPS = 300


@cache
def trained() -> tuple[SpanCorruption, EncoderDecoder]:
    """A model that has read the book for a few seconds."""
    task, model = made()
    task.check_model(model)
    examples = task.encode(rows(BOOK), LENGTH).examples
    optimiser, random = adamw(model, lr=3e-3, betas=(0.9, 0.98)), np.random.default_rng(0)
    for step in range(STEPS):
        rate = 3e-3 * min(1, (step + 1) / 30, 2 * (1 - step / STEPS))  # it falls: the end is no matter of last bits
        optimiser.param_groups[0]["lr"] = optimiser.param_groups[1]["lr"] = rate
        batch = task.collate([*examples, *examples], random)
        optimiser.zero_grad()
        (task.objective(model, batch) / task.count(batch)).backward()
        optimiser.step()
    return task, model.eval()


def whole(task: SpanCorruption, source: list[int], target: list[int]) -> list[int]:
    """The text of a source and its target, by hand."""
    spans, last = dict[int, list[int]](), -1
    for token in target:
        if token in task.sentinels:
            spans[last := token] = []
        else:
            spans[last].append(token)
    return [one for token in source for one in (spans[token] if token in task.sentinels else [token])]


def pairs(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """The ids of each source and target, without their end tokens."""
    found = []
    for source, mask, labels in zip(batch["source"], batch["source_mask"], batch["labels"], strict=True):
        own, target = source[mask].tolist(), labels[labels != -100].tolist()
        assert (own.pop(), target.pop()) == (2, 2)
        found.append((own, target))
    return found


# ------------------------------------------------------------------------------------------------------------ the data


def test_source_and_target_hold_every_token_once() -> None:
    task, _ = made()
    texts = [BOOK, "The cow", BOOK[:99]]
    stream = [token for ids in task.source.encode(texts) for token in [*ids, 2]][:-1]
    encoded = task.encode(rows(*texts), LENGTH)
    batch = task.collate(encoded.examples)
    shown = [whole(task, *pair) for pair in pairs(batch)]
    assert [token for row in shown for token in row] == stream
    assert [len(row) for row in shown[:-1]] == [LENGTH - 1] * (len(shown) - 1)
    assert encoded.note == f"{len(stream) + 1:,} tokens in windows of 15, a special token after each"
    assert torch.equal(batch["target"][:, 1:], batch["labels"][:, :-1].masked_fill(batch["labels"][:, 1:] == -100, 0))
    assert (batch["target"][:, 0] == 1).all()
    ordinary = sum(task.evaluation_corruption.ordinary[token] for token in stream)
    hidden = sum(task.evaluation_corruption.ordinary[token] for _, target in pairs(batch) for token in target)
    assert hidden == pytest.approx(0.15 * ordinary, rel=0.15)
    lengths = np.array([(len(source) + 1, len(target) + 1) for source, target in pairs(batch)])
    assert (np.abs(lengths[:-1] - task.lengths(encoded.examples)[:-1]) <= 1).all()  # a span may be cut in two


def test_other_spans_are_hidden_each_time_and_the_same_ones_measured() -> None:
    task, model = made()
    examples = task.encode(rows(BOOK), LENGTH).examples
    first, again, other = (task.collate(examples, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first["source"], again["source"])
    assert pairs(first) != pairs(other)
    together, alone = pairs(task.collate(examples)), [pairs(task.collate([one]))[0] for one in examples]
    assert together == alone
    task.before_training(model, settings(masking=MaskingSettings(probability=0.5, span_length=1.5)))
    assert (task.corruption.share, task.corruption.length) == (0.5, 1.5)
    assert task.count(task.collate(examples, np.random.default_rng(0))) > 2 * task.count(first)
    assert pairs(task.collate(examples)) == together


def test_few_tokens_and_too_many() -> None:
    task, model = made()
    for text in ("o", "o cow"):
        encoded = task.encode(rows(text), LENGTH)
        assert len(task.collate(encoded.examples, np.random.default_rng(0))["labels"]) == 1
        assert math.isnan(task.measure(model, encoded.examples, encoded.rows).metrics["loss"]) == (text == "o")
    with pytest.raises(HeedfulError, match="max-length 1 has no room for text and 1 special token; raise"):
        task.encode(rows(BOOK), 1)
    task.before_training(model, settings(masking=MaskingSettings(probability=0.5, span_length=1)))
    with pytest.raises(
        HeedfulError, match=r"masking makes 200 spans in 401 tokens, but the tokenizer has 100 sentinels.*lower"
    ):
        task.encode(rows(BOOK), 401)
    bart = SpanCorruption(task.source, task.source, positions=20)
    with pytest.raises(HeedfulError, match=r"--data\.max-length 21 is more than the 20 tokens"):
        bart.encode(rows(BOOK), 21)
    bart.before_training(model, settings(masking=MaskingSettings(probability=0.9, span_length=3)))
    with pytest.raises(
        HeedfulError, match=r"17 masked tokens in 2 spans need .* at most 20; lower --masking\.probability"
    ):
        bart.encode(rows(BOOK), 20)


# ------------------------------------------------------------------------------------------------------------- learning


def test_the_loss_is_that_of_t5_itself(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    task, model = made("t5-small")
    save(model, tmp_path)
    task.save(tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "T5ForConditionalGeneration"
    batch = task.collate(task.encode(rows(BOOK), LENGTH).examples, np.random.default_rng(0))
    with torch.no_grad():
        ours = task.objective(model, batch) / task.count(batch)
        labels, mask = batch["labels"], batch["source_mask"].long()
        expected = theirs(
            input_ids=batch["source"], attention_mask=mask, labels=labels, decoder_input_ids=batch["target"]
        ).loss
    assert float(ours) == approx(float(expected))
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The <extra_id_0> says moo"
    assert read(text)["input_ids"] == [*task.source.encode([text])[0], 2]
    assert read.convert_tokens_to_ids("<extra_id_0>") == len(read) - 1


def test_it_learns() -> None:
    task, model = trained()
    encoded = task.encode(rows(BOOK), LENGTH)
    metrics = task.measure(model, encoded.examples, encoded.rows).metrics
    simple = task.baseline(encoded.rows, lambda: encoded.rows)
    assert set(metrics) == set(simple.metrics) == {"loss", "perplexity", "accuracy"}
    assert metrics["loss"] < simple.metrics["loss"] / 2
    assert metrics["accuracy"] > 90 > 3 * simple.metrics["accuracy"]


# ------------------------------------------------------------------------------------------------------------ measuring


def test_the_figures_by_hand() -> None:
    task, model = trained()
    texts = [BOOK[:160], "The cow eats mice and says hoo.", BOOK[:200]]
    encoded = task.encode(rows(*texts), LENGTH)
    measured = task.measure(model, encoded.examples, encoded.rows)
    text = [i for i in range(task.source.vocab_size) if i not in task.source.special]
    losses, right, owners = list[float](), list[bool](), list[int]()
    ends = [place for place, token in enumerate(encoded.examples[0].stream.tokens) if token == 2]
    for number, example in enumerate(encoded.examples):
        [(source, target)] = pairs(task.collate([example]))
        logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))[0].detach()
        p = logits[:, text].log_softmax(-1)
        places = iter(sorted(set(range(len(whole(task, source, target)))) - kept(task, source, target)))
        for t, token in enumerate(target):
            if token in text:
                losses.append(-float(p[t, text.index(token)]))
                right.append(int(p[t].argmax()) == text.index(token))
                place = 15 * number + next(places)
                owners.append(sum(end < place for end in ends))
    assert measured.metrics["loss"] == approx(np.mean(losses), "gradient")
    assert measured.metrics["perplexity"] == approx(math.exp(np.mean(losses)), "gradient")
    assert measured.metrics["accuracy"] == pytest.approx(100 * np.mean(right))
    assert measured.details == {"tokens": ends[-1] + 1, "hidden": len(losses)}
    assert measured.example_scores is not None
    assert len(measured.example_scores) == 3
    for number in range(3):
        own = [loss for loss, owner in zip(losses, owners, strict=True) if owner == number]
        mean = np.mean(own) if own else math.nan
        assert measured.example_scores.metrics_of(np.array([number]))["loss"] == pytest.approx(
            mean, rel=1e-4, nan_ok=True
        )
    again = task.measure(model, encoded.examples, encoded.rows, batch_tokens=20)
    assert again.metrics == approx(measured.metrics, "gradient")
    with pytest.raises(HeedfulError, match="num_beams has no effect: evaluation scores tokens and fills in no text"):
        task.measure(model, encoded.examples, encoded.rows, num_beams=2)


def kept(task: SpanCorruption, source: list[int], target: list[int]) -> set[int]:
    """The places of the text that are shown."""
    found, place, spans = set[int](), 0, {}
    for token in target:
        if token in task.sentinels:
            last = token
            spans[last] = 0
        else:
            spans[last] += 1
    for token in source:
        if token not in task.sentinels:
            found.add(place)
        place += spans.get(token, 1)
    return found


# ------------------------------------------------------------------------------------------------------------ answering


def test_holes_are_filled_with_what_is_generated() -> None:
    task, model = trained()
    text = "The hen <extra_id_0>, and the hen eats<extra_id_1>."
    answer, short = task.predict(model, [text, "The cow <extra_id_0> moo, and the"])
    ids = model.generate(torch.tensor([[*task.source.encode([text])[0], 2]]), max_new_tokens=34)[0].tolist()
    left, right = (ids.index(task.sentinels[i]) for i in (0, 1))
    ends = [place for place, token in enumerate(ids) if token in (2, *task.sentinels) and place > right]
    spans = ids[left + 1 : right], ids[right + 1 : ends[0]]
    assert answer.fills == [made.strip() for made in task.source.decode(spans)]
    first, last = (rf"\s*{re.escape(fill)}\s*" for fill in answer.fills)  # what is made may have blanks around it
    assert re.fullmatch(rf"The hen{first}, and the hen eats{last}\.", answer.output)
    assert short.as_dict().keys() == {"input", "output", "score", "fills"}
    assert re.fullmatch(rf"The cow\s*{re.escape(short.fills[0])}\s*moo, and the", short.output)
    assert answer.score is not None
    assert answer.score < 0
    told = task.predict(model, [text], logprobs=True)[0]
    assert told.logprobs is not None
    assert sum(told.logprobs) / len(told.logprobs) == approx(answer.score, "gradient")


def test_answers_are_the_same_alone_and_in_a_batch() -> None:
    task, model = trained()
    texts = ["The <extra_id_0> says moo", "", "<extra_id_0>, and the <extra_id_1> eats", "The owl <extra_id_0>", " "]
    together = task.predict(model, texts, batch_tokens=8)
    for text, answer in zip(texts, together, strict=True):
        alone = task.predict(model, [text])[0]
        assert (alone.output, alone.fills) == (answer.output, answer.fills)
        assert answer.score == (None if not text.strip() else approx(alone.score, "gradient"))
    assert (together[1].output, together[1].score, together[1].fills) == ("", None, [])
    assert task.predict(model, []) == []
    drawn = [task.predict(model, texts[:1], do_sample=True, seed=3, temperature=2.0)[0] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(task.predict(model, texts[:1], num_beams=3, max_new_tokens=4)) == 1


def test_a_model_that_writes_no_holes_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    task, _ = trained()
    _, fresh = made()
    answers = task.predict(fresh, ["The <extra_id_0> says moo", "", "The <extra_id_0>"], max_new_tokens=2)
    assert [answer.fills for answer in answers] == [[""], [], [""]]
    assert caplog.messages[0].startswith("2 of 3 inputs without output: the model wrote no <extra_id_0>, because it")
    caplog.clear()
    texts = ("The cow says moo, and the farmer says nothing", "The ox says moo", "Moo")
    first, other = task.logged_samples(fresh, Rows([Row({"text": text}, "a.txt", 1) for text in texts]), Measured({}))
    assert first["input"] == "The cow says moo, and the farmer <extra_id_0>"
    assert first["target"] == "The cow says moo, and the farmer says"
    assert first["output"].startswith("The cow says moo, and the farmer")
    assert (other["input"], other["target"]) == ("The ox <extra_id_0>", "The ox says")
    assert not caplog.messages, "of a model that has not learned it yet"


def test_of_a_long_text_what_stands_around_its_holes_is_read(caplog: pytest.LogCaptureFixture) -> None:
    task, model = trained()
    short = SpanCorruption(task.source, task.target, positions=LENGTH)
    line = "the owl says hoo, and the owl eats mice. "
    text = f"{line * 3}The <extra_id_0> says moo, and the cow eats grass. {line * 3}"
    [answer] = short.predict(model, [text])
    ids = task.source.encode([text])[0]
    place = ids.index(task.sentinels[0])
    near = model.generate(torch.tensor([[*ids[place - 7 : place + 8], 2]]), max_new_tokens=18)[0].tolist()
    assert answer.fills == [task.source.decode([near[2 : near.index(task.sentinels[1])]])[0].strip()]
    assert answer.output.startswith(f"{line * 3}The")
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "1 of 1 input longer than the 15 tokens that the model takes; only the tokens around the spans were read"
    ]
    with pytest.raises(
        HeedfulError, match=r"^the input has \d+ tokens from its first to its last span, .* takes 15; give fewer spans"
    ):
        short.predict(model, [f"<extra_id_0> {line * 2} <extra_id_1>"])


def test_wrong_inputs_are_refused() -> None:
    task, model = trained()
    with pytest.raises(HeedfulError, match=r"input 1 has no <extra_id_0> \(it has \[MASK\],"):
        task.predict(model, ["<extra_id_0>", "The [MASK]"])
    with pytest.raises(HeedfulError, match="a text or a list of texts; got int"):
        task.predict(model, [3])
    many = " ".join(f"<extra_id_{i}>" for i in range(100))
    with pytest.raises(
        HeedfulError, match="a text has 100 spans to fill, but the tokenizer has sentinels for 99; give fewer spans"
    ):
        task.predict(model, [many])
    assert task.trial_inputs(["The cow says moo"]) == ["The cow says <extra_id_0>"]


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a run of six steps, and the command that made it."""
    folder = tmp_path_factory.mktemp("spans")
    (folder / "book.txt").write_text(BOOK, encoding="utf-8")
    command = ["train", "fill-mask", "--train", str(folder / "book.txt"), "--preset=t5-small", *TINY, *SMALL]
    command += [
        "--training.schedule=constant",
        "--training.warmup=1",
        "--masking.span-length=2",
        "--masking.probability=0.3",
    ]
    assert cli.main([*command, "--out", str(folder / "run"), "--max-steps=4", "--json"]) == 0
    return folder / "run", command


def test_the_task_is_chosen_by_the_model(run: tuple[Path, list[str]]) -> None:
    folder, _ = run
    assert tasks.get("fill-mask") is tasks.get("fill-mask", "encoder") is FillMask
    assert tasks.get("fill-mask", "encoder-decoder") is SpanCorruption
    asked = {"task": "fill-mask", "train": ["a"], "out": "o"}
    assert tasks.chosen(RunSettings.from_dict(asked | {"preset": "bart-base"})) is SpanCorruption
    assert tasks.chosen(RunSettings.from_dict(asked | {"preset": "bert-tiny"})) is tasks.chosen(
        RunSettings.from_dict(asked)
    )
    assert tasks.chosen(RunSettings.from_dict(asked | {"start_from": str(folder)})) is SpanCorruption
    task = heedful.pipeline("fill-mask", folder).task
    assert isinstance(task, SpanCorruption)
    assert task.window == LENGTH


def test_a_run_is_evaluated_asked_and_looked_into(
    run: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, command = run
    assert cli.main(["evaluate", str(folder), "--data", command[3], "--baseline", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["metrics"]) == set(told["baseline"]["metrics"]) == {"loss", "perplexity", "accuracy"}
    assert cli.main(["predict", str(folder), "The <extra_id_0> says <extra_id_1>.", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["fills"]) == 2
    assert answer["output"].endswith(".")
    assert cli.main(["verify", str(folder), "--json"]) == 0, capsys.readouterr().out
    assert cli.main(["inspect", str(folder), "The <extra_id_0>", "--out", str(tmp_path / "look.html")]) == 0
    found = audit(RunSettings("fill-mask", train=(command[3],), out="-", start_from=str(folder)))
    lines = [line.strip() for line in found.sample]
    assert [line.split()[0] for line in lines if line.startswith(("source", "target"))] == ["source", "target"]
    assert any("<extra_id_0>" in line for line in lines)


def test_it_is_not_compared_with_an_encoder(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = run
    encoder = [*command[:4], "--preset=bert-tiny", *TINY, "--tokenizer.size=300", "--data.max-length=16"]
    assert cli.main([*encoder, "--out", str(tmp_path / "bert"), "--max-steps=1", "--json"]) == 0
    with pytest.raises(
        HeedfulError, match=r"main metric of .* is perplexity, .*bert is loss; only models with the same main metric"
    ):
        compare([str(folder), str(tmp_path / "bert")], [command[3]], say=lambda line: None)


def test_a_stopped_run_goes_on_to_the_same_bits(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = run
    out = ["--out", str(tmp_path / "parts")]
    assert cli.main([*command, *out, "--max-steps=2", "--json"]) == 0
    assert cli.main([*command, *out, "--max-steps=4", "--resume", "--json"]) == 0
    ours, theirs = (load(place / "last").state_dict() for place in (tmp_path / "parts", folder))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(("task", "header"), [("translation", "source\ttarget"), ("summarization", "text\tsummary")])
def test_other_tasks_begin_with_it(
    run: tuple[Path, list[str]], task: str, header: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"the {a} says {b}\t{b} says the {a}" for a in ("cow", "owl", "hen") for b in ("moo", "hoo", "cluck")]
    (tmp_path / "pairs.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    command = ["train", task, "--train", str(tmp_path / "pairs.tsv"), "--from", str(run[0])]
    assert cli.main([*command, "--out", str(tmp_path / "out"), "--max-steps=2", "--json"]) == 0
    capsys.readouterr()
    begun, learned = load(run[0]), load(tmp_path / "out" / "last")
    assert begun.config == learned.config
    assert cli.main(["predict", str(tmp_path / "out"), "the cow says moo", "--json"]) == 0
    assert "extra_id" not in json.loads(capsys.readouterr().out)["output"]


def test_it_goes_on_from_a_folder(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = run
    start = ["train", "fill-mask", "--train", command[3], "--from", str(folder), "--out", str(tmp_path / "more")]
    assert cli.main([*start, "--max-steps=2", "--json"]) == 0
    task = SpanCorruption.load(tmp_path / "more")
    assert task.source.backend.to_str() == SpanCorruption.load(folder).source.backend.to_str()


def test_wrong_models_and_settings_are_one_line(
    run: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, command = run
    model = heedful.create("transformer-tiny", seed=0)
    plain = Tokenizer.train([BOOK], 300)
    save(model, tmp_path / "plain")
    plain.save(tmp_path / "plain")
    capsys.readouterr()
    for more, told in {
        "--preset=t5-small --masking.unit=word": "--masking.unit word has no effect for an encoder-decoder",
        "--preset=bert-tiny --masking.span-length=2": "--masking.span-length has no effect without --masking.unit span",
        "--preset=bert-tiny --masking.unit=span --masking.span-length=6": "--masking.span-length 6 is too long",
        f"--from={tmp_path / 'plain'}": "the tokenizer has no <extra_id_0>",
        "--preset=gpt2": "is of the decoder family; fill-mask needs an encoder",
    }.items():
        assert cli.main([*command[:4], *more.split(), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip()
        assert told in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    two = Tokenizer.train([BOOK], 420, sentinels=100)
    with pytest.raises(HeedfulError, match="fill-mask needs one vocabulary for source and target"):
        SpanCorruption(two, Tokenizer.train([BOOK], 420, sentinels=100))
