"""Replaced-token detection: samples, labels and loss against plain arithmetic and transformers, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

import fresh_process
import heedful
from heedful import HeedfulError, cli, presets
from heedful.config import DenseConfig, SequenceHead, TokenHead, with_head
from heedful.data import Row, Rows
from heedful.pretrained import save
from heedful.settings import (
    DataSettings,
    LoraSettings,
    MaskingSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.fill_mask import FillMask, is_discriminator
from heedful.tasks.permutation import PermutationFillMask
from heedful.tasks.replaced_tokens import ReplacedTokens, discriminator_of, generator_config, sampled
from heedful.training.optimisation import adamw
from heedful.training.run import train
from heedful.util.files import temporary_path
from tolerances import approx, assert_close

BOOK = "".join(
    f"The {animal} says {sound}, and the {animal} eats {food}.\n"
    for animal, sound, food in [("cow", "moo", "grass"), ("owl", "hoo", "mice"), ("hen", "cluck", "corn")] * 8
)
ROWS = Rows([Row({"text": BOOK}, "book.txt", 1)], 0, ("text",))
DETECT = MaskingSettings(objective="replaced-token", generator=0.5)
LAMBDA = 50
FROM: dict[str, Any] = {
    "preset": None,
    "model": ModelSettings(),
    "tokenizer": TokenizerSettings(),
    "masking": MaskingSettings(objective="replaced-token"),
}


def settings(**given: Any) -> RunSettings:
    chosen: dict[str, Any] = {"train": ("-",), "out": "-", "preset": "electra-small", "masking": DETECT}
    chosen |= {"data": DataSettings(max_length=24), "tokenizer": TokenizerSettings(size=320)}
    chosen |= {"model": ModelSettings(dim=32, heads=4, depth=1, dropout=0.0)}
    return RunSettings(task="fill-mask", **(chosen | given))


def made(**given: Any) -> tuple[ReplacedTokens, Any]:
    """Task and model with fresh weights, whose generator is far from uniform."""
    asked = settings(**given)
    task = FillMask.for_rows(ROWS, asked).prepare(ROWS, asked)
    assert isinstance(task, ReplacedTokens)
    model: Any = heedful.create(task.config(asked), seed=0).eval()
    task.initialise(model, asked)
    task.before_training(model, asked)
    with torch.no_grad():
        model.generator.head.output.bias.normal_(generator=torch.Generator().manual_seed(0)).mul_(3)
    return task, model.eval()


def run(tmp_path: Path, name: str, **given: Any) -> dict[str, Any]:
    book = tmp_path / "book.txt"
    book.write_text(BOOK)
    values = {"train": (str(book),), "out": str(tmp_path / name), "max_steps": 6} | given
    return train(settings(**values), say=lambda line: None, quiet=True)


def test_samples_have_the_probabilities_of_the_softmax() -> None:
    logits = torch.tensor([0.0, 2.0, -60.0, 1.0, -1.0])
    draws = torch.from_numpy(np.random.default_rng(0).integers(2**40, size=40_000))
    samples = sampled(logits.expand(len(draws), -1), draws)
    shares = torch.bincount(samples, minlength=5) / len(draws)
    assert (shares - logits.softmax(-1)).abs().max() < 0.01
    assert shares[2] == 0
    assert torch.equal(sampled(logits.expand(2, -1), torch.tensor([0, 2**40 - 1])), torch.tensor([0, 4]))


def test_labels_are_of_the_tokens_that_differ_from_the_text() -> None:
    task, model = made()
    examples = task.encode(ROWS).examples
    batch = task.collate(examples, np.random.default_rng(1))
    original = torch.where(batch["labels"] < 0, batch["ids"], batch["labels"])
    assert (batch["ids"][batch["labels"] >= 0] == task.mask).all()  # every chosen token is masked
    chosen = batch["labels"] >= 0
    truth = batch["labels"][chosen]
    perfect = 100 * F.one_hot(truth, task.tokenizer.vocab_size).float()
    ids, is_replaced = task.replaced(batch, perfect, truth)
    assert torch.equal(ids, original)
    assert not is_replaced.any()  # a sample that equals the original counts as original
    with torch.no_grad():
        ids, is_replaced = task.replaced(batch, *task._guesses(model.generator, batch))
    assert torch.equal(is_replaced, ids != original)
    assert is_replaced.any()
    assert not (is_replaced & ~chosen).any()
    assert torch.equal(task.collate(examples)["draws"], task.collate(examples)["draws"])  # of an evaluation


def test_the_loss_is_that_of_plain_arithmetic_and_of_transformers(tmp_path: Path) -> None:
    task, model = made()
    assert save(discriminator_of(model), tmp_path / "one") == "electra"
    assert save(model.generator, tmp_path / "two") == "electra"
    theirs: Any = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "one").eval()
    guesser: Any = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "two").eval()
    batch = task.collate(task.encode(ROWS).examples[-3:])  # the last is short
    assert not batch["mask"].all()
    total = guessing = 0.0
    for ids, mask, labels, draws in zip(*(batch[name] for name in ("ids", "mask", "labels", "draws")), strict=True):
        length = int(mask.sum())
        ids, labels, draws = ids[:length], labels[:length], draws[:length]
        with torch.no_grad():
            p = guesser(ids[None]).logits[0].softmax(-1).double()
        text, masked = torch.where(labels < 0, ids, labels), (labels >= 0).nonzero()[:, 0].tolist()
        corrupted = ids.clone()
        for place in masked:
            below = int(draws[place]) / 2**40
            corrupted[place] = int((p[place].cumsum(0) <= below).sum())
        with torch.no_grad():
            loss = theirs(corrupted[None], labels=(corrupted != text)[None].long()).loss.item()
        generator_loss = sum(-float(p[place, text[place]].log()) for place in masked)
        guessing += generator_loss
        total += generator_loss + LAMBDA * len(masked) * loss
    assert task.objective(model, task.complete(batch)).item() == approx(total, "training")
    assert task.objective(model, batch).item() == approx(total, "training")
    smoothed = task.objective(model, batch, 0.1).item() - task.objective(model, batch).item()
    with torch.no_grad():
        logits, truth = task._guesses(model.generator, batch)
    mean = -logits.log_softmax(-1).mean(-1).sum().item()
    assert smoothed == pytest.approx(0.1 * (mean - guessing), abs=1e-3)
    assert task.count(batch) == len(truth)


def test_a_batch_in_parts_has_the_gradients_of_the_whole() -> None:
    task, model = made()
    batch = task.collate(task.encode(ROWS).examples, np.random.default_rng(0))
    task.objective(model, batch).backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for part in (slice(0, 3), slice(3, None)):
        task.objective(model, {name: tensor[part] for name, tensor in batch.items()}).backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, whole[name], "gradient", msg=name)


def test_no_gradient_flows_through_the_samples() -> None:
    """Without its own loss the generator learns nothing, beside the shared embedding."""
    task, model = made()
    batch = task.collate(task.encode(ROWS).examples, np.random.default_rng(0))
    guessing = F.cross_entropy(*task._guesses(model.generator, batch), reduction="sum")
    (task.objective(model, batch) - guessing).backward()
    shared = {id(parameter) for parameter in model.embedding.parameters()}
    own = [parameter for parameter in model.generator.parameters() if id(parameter) not in shared]
    assert len(own) > 20
    assert max(float(parameter.grad.abs().max()) for parameter in own) < 1e-4
    assert model.generator.head.output.weight is model.embedding.token.weight is model.generator.embedding.token.weight


@pytest.mark.parametrize(("share", "heads"), [(0.25, 1), (0.5, 2), (0.01, 1), (1.0, 4)])
def test_the_generator_is_narrower_and_has_the_embedding_of_the_model(share: float, heads: int) -> None:
    config = heedful.presets.get("electra-small")
    stack = generator_config(config, share).encoder
    assert (stack.dim, stack.heads, stack.ff_dim, stack.depth, stack.width) == (64 * heads, heads, 256 * heads, 12, 128)
    assert isinstance(config, heedful.config.EncoderConfig)
    assert generator_config(config, share).embedding == config.embedding


def test_it_learns_to_tell_replaced_tokens() -> None:
    """Each line repeats one word, so a token of another line stands out."""
    words, random = ["cow", "owl", "hen", "dog", "cat", "pig", "ant", "bee"], np.random.default_rng(0)
    text = "".join(" ".join([words[i]] * 12) + "\n" for i in random.integers(8, size=100))
    rows = Rows([Row({"text": text}, "words.txt", 1)], 0, ("text",))
    asked = settings(preset="bert-tiny", model=ModelSettings(dim=64, heads=4, depth=1, dropout=0.0))
    task = FillMask.for_rows(rows, asked).prepare(rows, asked)
    model: Any = heedful.create(task.config(asked), seed=0)
    task.initialise(model, asked)
    task.before_training(model, asked)
    encoded = task.encode(rows, 16)
    before = task.measure(model.eval(), encoded.examples, encoded.rows).metrics
    optimiser = adamw(model.train(), lr=1e-3, betas=(0.9, 0.98))
    for _ in range(80):
        batch = task.collate(list(encoded.examples)[:48], random)
        optimiser.zero_grad()
        (task.objective(model, batch) / task.count(batch)).backward()
        optimiser.step()
    measured = task.measure(model.eval(), encoded.examples, encoded.rows)
    assert measured.metrics["f1"] > 70 > before["f1"]
    assert measured.metrics["generator_loss"] < 0.8 * before["generator_loss"]
    (told,) = task.predict(model, ["cow cow cow cow bee cow cow cow"])
    p = [token["score"] if token["label"] == "replaced" else 1 - token["score"] for token in told.output]
    assert int(np.argmax(p)) == [token["text"] for token in told.output].index("bee")


def test_metrics_are_those_of_the_predictions() -> None:
    """Counted one window at a time, from the labels; the loss is that of training."""
    task, model = made()
    encoded = task.encode(ROWS)
    measured = task.measure(model, encoded.examples, encoded.rows)
    nats = masked = losses = 0.0
    right, said, truth = [], [], []
    for example in encoded.examples:
        batch = task.collate([example])
        with torch.no_grad():
            logits, tokens = task._guesses(model.generator, batch)
            ids, is_replaced = task.replaced(batch, logits, tokens)
            p = model(ids)[0, :, 0].double().sigmoid()
        nats -= float(logits.double().log_softmax(-1).gather(1, tokens[:, None]).sum())
        masked += len(tokens)
        losses -= float(torch.where(is_replaced[0], p, 1 - p).log().sum())
        said += (p > 0.5).tolist()
        truth += is_replaced[0].tolist()
        right += ((p > 0.5) == is_replaced[0]).tolist()
    found = sum(a and b for a, b in zip(said, truth, strict=True))
    expected = {
        "loss": nats / masked + LAMBDA * losses / len(right),
        "generator_loss": nats / masked,
        "accuracy": 100 * sum(right) / len(right),
        "f1": 100 * 2 * found / (sum(said) + sum(truth)),
    }
    assert measured.metrics == approx(expected, "training")
    assert measured.details == {"tokens": len(right), "masked": masked, "replaced": sum(truth)}
    assert measured.window_scores is not None
    windows = measured.window_scores.metrics_of(np.arange(len(encoded.examples)))
    assert windows == approx(expected, "training")


def test_from_text_to_a_discriminator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folders open in transformers; both predict; scored, trained further and fine-tuned."""
    result, out = run(tmp_path, "run", masking=MaskingSettings(objective="replaced-token")), tmp_path / "run"
    assert set(result["metrics"]) == {"loss", "generator_loss", "accuracy", "f1"}
    assert result["baseline"]["name"] == "n-grams of the tokens on both sides; no token replaced"
    assert result["baseline"]["metrics"]["f1"] == 0
    assert json.loads((out / "heedful.json").read_text())["verdict"]["metric"] == "loss"
    theirs = transformers.AutoModelForPreTraining.from_pretrained(out).eval()
    generator = transformers.AutoModelForMaskedLM.from_pretrained(out / "generator").eval()
    assert [type(model).__name__ for model in (theirs, generator)] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert torch.equal(theirs.get_input_embeddings().weight, generator.get_input_embeddings().weight)
    tell, fill = heedful.pipeline("fill-mask", out), heedful.pipeline("fill-mask", out / "generator")
    assert isinstance(tell.task, ReplacedTokens)
    assert type(fill.task) is FillMask
    text = "The cow says moo."
    ids = torch.tensor(tell.task.input_ids([text]))
    p = theirs(ids).logits[0].sigmoid().tolist()[1:-1]
    for told, own in zip(tell(text)["output"], p, strict=True):
        assert told["label"] == ("replaced" if own > 0.5 else "original")
        assert told["score"] == approx(max(own, 1 - own), "gradient")
    assert tell(["", text])[0]["output"] == []
    assert "metrics" not in json.loads((out / "generator" / "heedful.json").read_text())
    assert "AutoModelForPreTraining" in (out / "README.md").read_text()
    assert fill("The cow says <mask>.")["output"].startswith("The cow says")
    audit = ["audit", "fill-mask", "--train", str(tmp_path / "book.txt"), "--masking.objective=replaced-token"]
    assert cli.main(audit) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(out), "--data", str(tmp_path / "book.txt"), "--baseline", "--json"]) == 0
    assert "generator_loss" in json.loads(capsys.readouterr().out)["metrics"]
    more = run(tmp_path, "more", start_from=str(out), **FROM)
    assert more["steps"] == 6
    labels = tmp_path / "labels.tsv"
    labels.write_text("text\tlabel\n" + "".join(f"{n} cows say moo\tcow\n{n} owls say hoo\towl\n" for n in range(20)))
    command = ["train", "text-classification", "--train", str(labels), "--from", str(out), "--max-steps=2", "--quiet"]
    assert cli.main([*command, "--out", str(tmp_path / "tuned")]) == 0
    tuned = heedful.from_pretrained(tmp_path / "tuned")
    assert isinstance(tuned.config.head, SequenceHead)
    (out / "generator" / "config.json").unlink()
    with pytest.raises(HeedfulError, match="has no folder 'generator'"):
        heedful.evaluate(out, str(tmp_path / "book.txt"))
    with pytest.raises(HeedfulError, match="has no folder 'generator'"):
        run(tmp_path, "again", start_from=str(out), **FROM)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = {part: load_file(folder / part / "model.safetensors") for part in ("last", "last/generator")}
    return {f"{part}/{name}": tensor for part, own in found.items() for name, tensor in own.items()}


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "batch_tokens": 60}])
def test_a_stopped_run_goes_on_with_the_same_bits(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"model": ModelSettings(dim=32, heads=4, depth=1, dropout=0.1)}
    whole = run(tmp_path, "whole", training=TrainingSettings(**options), **given)
    collate, calls = ReplacedTokens.collate, iter(range(100))

    def stopping(self: ReplacedTokens, examples: Any, random: Any = None) -> Any:
        if random is not None and next(calls) == 4 * options.get("accumulate", 1):
            raise KeyboardInterrupt
        return collate(self, examples, random)

    monkeypatch.setattr(ReplacedTokens, "collate", stopping)
    with pytest.raises((KeyboardInterrupt, HeedfulError)):
        run(tmp_path, "parts", training=TrainingSettings(save_every=2, **options), **given)
    monkeypatch.undo()
    half_written = temporary_path(tmp_path / "parts" / "last" / "generator" / "config.json")
    half_written.write_text("{")
    resumed = RunSettings(
        task="fill-mask", train=(str(tmp_path / "book.txt"),), out=str(tmp_path / "parts"), resume=True
    )
    assert train(resumed, say=lambda line: None, quiet=True)["metrics"] == whole["metrics"]
    assert not half_written.exists()
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    command = ["train", "fill-mask", "--train", str(tmp_path / "book.txt"), "--preset=electra-small", "--max-steps=4"]
    command += ["--masking.objective=replaced-token", "--model.dim=32", "--model.heads=4", "--model.depth=1", "--quiet"]
    command += ["--model.dropout=0", "--data.max-length=24", "--tokenizer.size=320", "--training.batch-size=5"]
    command += ["--training.accumulate=2", "--training.eps=1e-4", "--device=cpu"]
    assert cli.main([*command, "--out", str(tmp_path / "one")]) == 0
    (tmp_path / "commands.json").write_text(json.dumps([[*command, "--out", str(tmp_path / "two")]]))
    script = Path(__file__).parents[1] / "training" / "ranks_commands.py"
    for ended in fresh_process.run_ranks(2, script, tmp_path / "commands.json"):
        assert ended.returncode == 0, ended.stderr[-3000:]
    metrics = [json.loads((tmp_path / name / "heedful.json").read_text())["metrics"] for name in ("one", "two")]
    assert metrics[1] == approx(metrics[0], "gradient")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"training": TrainingSettings(shard=True)}, "--training.shard does not work with --masking.objective"),
        ({"model": ModelSettings(head="mine")}, "--model.head does not work with --masking.objective replaced-token"),
        (
            {"lora": LoraSettings(rank=4), "preset": None, "start_from": "run"},
            "--lora.rank does not work with --masking.objective replaced-token",
        ),
        ({"masking": MaskingSettings(generator=0.5)}, "--masking.generator has no effect without --masking.objective"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], message: str) -> None:
    asked = settings(**given)
    kind = ReplacedTokens if asked.start_from else FillMask.for_rows(ROWS, asked)
    with pytest.raises(HeedfulError, match=message):
        kind.suggested_settings(ROWS, asked)


def test_the_objective_is_of_encoders_without_a_query_stream(tmp_path: Path) -> None:
    for preset, message in (("xlnet-base", "--masking.* has no effect on a model with"), ("t5-small", "has no effect")):
        with pytest.raises(HeedfulError, match=message):
            run(tmp_path, "run", preset=preset, model=ModelSettings())
    asked = settings(masking=MaskingSettings(objective="masked-token"))
    assert FillMask.for_rows(ROWS, asked) is FillMask
    assert FillMask.for_rows(ROWS, settings(preset="xlnet-base")) is PermutationFillMask
    plain = run(tmp_path, "plain", masking=MaskingSettings(), max_steps=1)
    with pytest.raises(HeedfulError, match="holds no discriminator"):
        run(tmp_path, "run", **FROM | {"start_from": plain["model"]})
    task, model = made()
    examples = task.encode(ROWS).examples
    with pytest.raises(HeedfulError, match="top_k has no effect on evaluation"):
        task.measure(model, examples, ROWS, top_k=3)


def test_attention_maps_are_recorded_of_the_discriminator(tmp_path: Path) -> None:
    run(tmp_path, "run", training=TrainingSettings(record_attention=("the cow says moo",)))
    first = json.loads((tmp_path / "run" / "watch.jsonl").read_text().splitlines()[0])
    assert "cow" in json.dumps(first)
    assert "generator" not in json.dumps(first)


@pytest.mark.parametrize(("norm", "labels", "detects"), [(False, 1, True), (True, 1, False), (False, 2, False)])
def test_a_classifier_of_tokens_with_one_label_is_no_discriminator(norm: bool, labels: int, detects: bool) -> None:
    """ModernBERT's classifiers have a dense layer too, with a norm."""
    config = presets.get("bert-tiny")
    assert is_discriminator(with_head(config, TokenHead(labels=labels, dense=DenseConfig(norm=norm)))) == detects
    assert not is_discriminator(with_head(config, TokenHead(labels=1)))
