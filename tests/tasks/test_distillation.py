"""Teachers: their probabilities by `transformers` and by hand, texts made up, runs, folders, and what is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful import cli
from heedful.config import EncoderConfig, SequenceHead
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.models import Ensemble
from heedful.pretrained import read_card
from heedful.settings import DistillationSettings, ModelSettings, RunSettings, read_toml
from heedful.tasks import defaults, distillation
from heedful.tasks.classifier_ensemble import ClassifierEnsemble
from heedful.tasks.distillation import Teacher, begin_as_mean, words_of
from heedful.tasks.text_classification import TextClassification
from heedful.training import Loop, teacher
from heedful.verify.run_comparison import compare_runs
from tolerances import approx, assert_close

NAMES = {"fruit": "apple pear plum quince", "tool": "hammer saw chisel drill", "place": "lake valley island hill"}
FORMS = ("the {} is here", "one {} ?", "is that a {} or not ?", "no {} at all", "a {} , then")
TEXTS = [(form.format(word), label) for label, words in NAMES.items() for word in words.split() for form in FORMS]
ASKED = ["a pear or a saw ?", "the hill", "one unknown island here"]
SMALL = ["--training.log-every=1", "--training.evaluate-every=2", "--training.save-every=2", "--json"]
QUICK: dict[str, Any] = {"training": {"log_every": 1}, "quiet": True}


@pytest.fixture(autouse=True, scope="module")
def few_are_enough() -> Iterator[None]:
    """Lets the small sets of these tests have a teacher."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(defaults, "FEWEST_TAUGHT", 0)
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "set.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    """The folder of a default run of six steps each: an ensemble, and the model that learned from it."""
    command = ["train", "text-classification", "--train", str(table), "--out", str(table.parent / "run"), *SMALL]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(teacher, "MARGIN", 100)
        assert cli.main([*command, "--max-steps=6"]) == 0
    return table.parent / "run"


def rows(values: list[tuple[str, str]]) -> Rows:
    return Rows((Row({"text": text, "label": label}, "set.tsv", i) for i, (text, label) in enumerate(values, 1)), 0)


def settings(**given: Any) -> RunSettings:
    return RunSettings(**{"task": "text-classification", "train": ("set.tsv",), "out": "out", **given})


def loaded(folder: Path, **given: Any) -> Teacher:
    task = ClassifierEnsemble.load(folder)
    return Teacher(task, heedful.from_pretrained(folder, device="cpu"), **{"labels": task.labels, **given})


# ------------------------------------------------------------------------------------------------------------- made up


def test_words_keep_the_spaces_after_them() -> None:
    assert words_of("It's  fine, no?") == ["It", "'", "s ", "fine", ", ", "no", "? "]
    assert words_of(" ") == [" "]


def test_made_up_texts_have_the_words_of_the_texts(run: Path) -> None:
    given = [(text,) for text, _ in TEXTS]
    own = loaded(run / "teacher", made_up=3)
    made = own.made_up_texts(given, np.random.default_rng(5))
    assert made == own.made_up_texts(given, np.random.default_rng(5))
    assert made != own.made_up_texts(given, np.random.default_rng(6))
    assert len(made) == 3 * len(given)
    known = {word for text, _ in TEXTS for word in text.split()}
    assert {word for (text,) in made for word in text.split()} <= known
    assert all(text.strip() == text and text for (text,) in made)
    originals = {text for text, _ in TEXTS}
    assert 0.5 < np.mean([text not in originals for (text,) in made]) < 1
    # a part, and words left out, are shorter; the end of another text may make it longer
    lengths = np.array([len(text.split()) for (text,) in made]) - np.repeat([len(t.split()) for t, _ in TEXTS], 3)
    assert lengths.min() < 0 < lengths.max()


def test_both_texts_of_a_pair_change_and_stay_apart() -> None:
    given = [(f"left{i} a b", f"right{i} c d") for i in range(40)]
    own = Teacher.__new__(Teacher)
    own.made_up = 1
    made = own.made_up_texts(given, np.random.default_rng(0))
    assert {len(sides) for sides in made} == {2}
    starts = [(a, b) for a, b in made if a.startswith("left") and b.startswith("right")]
    assert len(starts) > 10


# ------------------------------------------------------------------------------------------------------- probabilities


def test_its_probabilities_are_those_of_the_pipeline_in_the_order_of_the_labels(run: Path) -> None:
    order = ["tool", "fruit", "place"]
    p = loaded(run / "teacher", labels=order).probabilities([(text,) for text in ASKED])
    answers = heedful.pipeline(None, run / "teacher", device="cpu", dtype="float32")(ASKED, top_k=3)
    for row, answer in zip(p, answers, strict=True):
        scores = {each["label"]: each["score"] for each in answer["output"]}
        assert [scores[label] for label in order] == approx(row.tolist())
    softer = loaded(run / "teacher", labels=order, temperature=4.0).probabilities([(text,) for text in ASKED])
    assert_close(softer, (p.log() / 4).softmax(1))


@pytest.mark.parametrize("several", [False, True])
def test_the_loss_is_hintons(several: bool) -> None:
    """Equal in gradient to τ² KL(teacher ‖ model) of the logits / τ, by PyTorch's own divergence in float64."""
    task = TextClassification.__new__(TextClassification)
    task.labels, task.multi_label, task.agreement = ["a", "b", "c"], several, 0.0
    task.temperature = 2.5
    torch.manual_seed(0)
    ours, theirs = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    p = theirs.sigmoid() if several else theirs.softmax(1)
    logits = ours.clone().requires_grad_()
    task.training_loss(logits, p, 0.0).backward()
    expected = ours.clone().requires_grad_()
    soft = expected / 2.5
    if several:
        on, off = F.logsigmoid(soft), F.logsigmoid(-soft)
        divergence = F.kl_div(on, p, reduction="sum") + F.kl_div(off, 1 - p, reduction="sum")
        divergence = divergence / 3
    else:
        divergence = F.kl_div(soft.log_softmax(1), p, reduction="sum")
    (2.5**2 * divergence).backward()
    torch.testing.assert_close(logits.grad, expected.grad, rtol=1e-12, atol=1e-12)


def test_a_batch_has_the_texts_then_those_made_up_with_the_probabilities_of_all(run: Path) -> None:
    given = settings(
        teacher=str(run / "teacher"),
        out=str(run.parent / "x"),
        preset="bert-tiny",
        device="cpu",
        distillation=DistillationSettings(made_up=5),
    )
    few = rows(TEXTS[:8])
    task = TextClassification.prepare(rows(TEXTS), given)
    model: Any = heedful.create(task.config(given), seed=0)
    assert model.config.encoder.init == "normal"
    alone: Any = task.config(replace(given, teacher=None))
    assert alone.encoder.init == "xavier"
    task.before_training(model, given)
    assert task.hidden_share == 0
    examples, own = task.encode(few).examples, task.teacher
    assert own is not None
    tensors = task.starting_tensors(model, [examples, examples])
    assert task.teacher is None  # its memory is free again
    task.use_starting_tensors({name: tensor.clone() for name, tensor in tensors.items()})
    chosen = [examples[number] for number in (6, 2, 3)]
    batch = task.collate(chosen, np.random.default_rng(1))
    assert batch["ids"].shape[0] == task.count(batch) == 3 + 3 * 3  # three of the five made up from each
    texts = task.tokenizer.decode([row[1 : int(mask.sum()) - 1].tolist() for row, mask in unpadded(batch)])
    assert list(map(joined, texts[:3])) == [joined(TEXTS[number][0]) for number in (6, 2, 3)]
    assert_close(batch["labels"], own.probabilities([(text,) for text in texts]))
    made_up = own.made_up_texts([(text,) for text, _ in TEXTS[:8]], np.random.default_rng(0))
    for place, number in enumerate((6, 2, 3)):
        mine = {joined(text) for (text,) in made_up[5 * number : 5 * number + 5]}
        assert set(map(joined, texts[3 + 3 * place : 6 + 3 * place])) <= mine
    evaluated = task.collate(examples)
    assert torch.equal(evaluated["labels"], torch.nn.functional.one_hot(torch.zeros(8).long(), 3).float())


def joined(text: str) -> str:
    return text.replace(" ", "")


def unpadded(batch: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(batch["ids"], batch["mask"], strict=True))


def test_the_class_token_begins_as_the_mean_of_the_tokens(run: Path) -> None:
    task = TextClassification.load(run)
    config = heedful.from_pretrained(run, device="cpu").config
    model = heedful.create(config, seed=3).eval()
    begin_as_mean(model)
    seen: dict[str, torch.Tensor] = {}
    block: Any = model.encoder.block[-1]
    block.attention.register_forward_hook(lambda module, given, output: seen.update(x=given[0], out=output))
    block.attention.register_forward_pre_hook(lambda module, given, kwargs: seen.update(kwargs), with_kwargs=True)
    batch = task.collate(task.examples([("the hill is here",), ("one pear ?",)], [(0.0,)] * 2, 20)[0])
    hidden = model.hidden(batch["ids"], batch["mask"], batch["segments"])
    del hidden
    out = seen["out"] if isinstance(seen["out"], torch.Tensor) else seen["out"][0]
    x, mask = seen["x"], batch["mask"][..., None]
    assert_close(out[:, 0], 3 * (x * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("kind", ["decoder", "no classifier", "the mean", "pre-norm"])
def test_other_models_begin_as_they_are(kind: str) -> None:
    config: Any = heedful.presets.get("llama-micro" if kind == "decoder" else "bert-tiny")
    head = SequenceHead(labels=3, pooling="mean" if kind == "the mean" else "first", pooler=kind != "the mean")
    if kind in ("the mean", "pre-norm"):
        config = replace(config, head=head)
    if kind == "pre-norm":
        config = replace(config, encoder=replace(config.encoder, placement="pre"))
    before, after = heedful.create(config, seed=0), heedful.create(config, seed=0)
    begin_as_mean(after)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


# ----------------------------------------------------------------------------------------------------------------- runs


def test_few_labels_end_in_one_model_that_transformers_opens(run: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(run).eval()
    assert type(theirs).__name__ == "BertForSequenceClassification"
    tokens = transformers.AutoTokenizer.from_pretrained(run)(ASKED, return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = theirs(**tokens).logits.softmax(-1)
    answers = heedful.pipeline(None, run, device="cpu", dtype="float32")(ASKED, top_k=3)
    for row, answer in zip(expected.tolist(), answers, strict=True):
        scores = {each["label"]: each["score"] for each in answer["output"]}
        assert scores == {theirs.config.id2label[number]: approx(p) for number, p in enumerate(row)}
    assert isinstance(heedful.from_pretrained(run / "teacher"), Ensemble)
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [line["step"] for line in logged if "valid_loss" in line]
    assert len(evaluations) > 1
    assert read_card(run)["metrics"]["loss"] == approx(
        next(line for line in logged[::-1] if "valid_loss" in line)["valid_loss"]
    )
    assert f'teacher = "{run / "teacher"}"' in (run / "run.toml").read_text(encoding="utf-8")


def test_the_teacher_is_kept_where_the_model_is_worse(
    table: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(teacher, "MARGIN", -1000)
    out = tmp_path / "run"
    command = ["train", "text-classification", "--train", str(table), "--out", str(out), "--max-steps=2"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "the ensemble is kept; the one model is in" in said
    assert said.count("advice ") == 1
    assert said.index("advice ") < said.index("now the one model")  # what concerns the data comes first
    assert isinstance(heedful.from_pretrained(out), Ensemble)
    ours, theirs = (heedful.pipeline(None, folder, device="cpu") for folder in (out, out / "teacher"))
    assert ours(ASKED) == theirs(ASKED)
    card = json.loads((out / "heedful.json").read_text(encoding="utf-8"))
    stored = json.loads((out / "teacher" / "heedful.json").read_text(encoding="utf-8"))
    assert card["metrics"]["accuracy"] == approx(stored["metrics"]["accuracy"])
    assert heedful.pipeline(None, out / "last").task.labels == theirs.task.labels
    assert not list(out.glob("tokenizer*"))
    assert "learned the probabilities" not in (out / "README.md").read_text(encoding="utf-8")
    before = ours(ASKED)
    assert cli.main([*command, "--resume"]) == 0  # it has ended already
    said = capsys.readouterr().out
    assert f"the ensemble is kept, since no evaluation was better; the one model is in {out / 'last'}" in said
    assert heedful.pipeline(None, out, device="cpu")(ASKED) == before
    assert json.loads((out / "heedful.json").read_text(encoding="utf-8"))["metrics"] == card["metrics"]
    assert [path.name for path in sorted(out.glob("member-*"))] == [f"member-{number}" for number in range(4)]
    (out / "member-0" / "mine.txt").write_text("of a person", encoding="utf-8")
    assert cli.main([*command[:-1], "--max-steps=4", "--resume"]) == 0  # the one model goes on
    assert isinstance(heedful.from_pretrained(out), Ensemble)
    monkeypatch.setattr(teacher, "MARGIN", 100)
    assert cli.main([*command[:-1], "--max-steps=6", "--resume", "--training.evaluate-every=1"]) == 0
    capsys.readouterr()
    assert not isinstance(heedful.from_pretrained(out), Ensemble)
    assert list(out.glob("member-*/*")) == [out / "member-0" / "mine.txt"]
    assert list(out.glob("member-*")) == [out / "member-0"]


def test_a_run_from_python_that_broke_off_with_its_teacher_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, own, out = iter(range(99)), Loop._step, tmp_path / "run"

    def breaking(*given: Any) -> Any:
        if next(steps) == 3:
            raise HeedfulError("broken off")
        return own(*given)

    data = [{"text": text, "label": label} for text, label in TEXTS]
    quick = {"training": {"log_every": 1, "save_every": 1}, "quiet": True}
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_step", breaking)
        with pytest.raises(HeedfulError, match="broken off"):
            heedful.train("text-classification", data, out=out, max_steps=4, **quick)
    assert (out / "teacher" / "checkpoint.pt").is_file()
    again = heedful.train("text-classification", out=out, resume=True, **quick)
    assert again.history[-1]["step"] == 4
    lines = (out / "teacher" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.parametrize("breaks", [3, 9])
def test_a_run_that_broke_off_ends_with_the_same_bits(
    run: Path, table: Path, breaks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the teacher trains, and while the model learns from it."""
    parts, steps, own = tmp_path / "run", iter(range(99)), Loop._step
    command = ["train", "text-classification", "--train", str(table), "--out", str(parts), *SMALL, "--max-steps=6"]

    def breaking(*given: Any) -> Any:
        if next(steps) == breaks:
            raise HeedfulError("broken off")
        return own(*given)

    monkeypatch.setattr(teacher, "MARGIN", 100)
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_step", breaking)
        assert cli.main(command) == 2
    assert (parts / "run.toml.part").is_file() == (breaks == 3)
    assert cli.main([*command, "--resume"]) == 0
    for folder in (Path(), Path("teacher")):
        found = {check.name: check for check in compare_runs(run / folder, parts / folder)}
        for name in ("last weights", "averaged weights", "checkpoint", "losses"):
            assert found[name].verdict == "ok", (folder, name, found[name].reason)


def test_a_moved_run_goes_on_without_its_teacher(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved, ignore=lambda folder, names: ["teacher"] if Path(folder) == run else [])
    again = heedful.train("text-classification", out=moved, resume=True, max_steps=8, **QUICK)
    assert again.history[-1]["step"] == 8


def test_a_teacher_of_ones_own(run: Path, table: Path, tmp_path: Path) -> None:
    taught = heedful.train(
        "text-classification",
        [{"text": text, "label": label} for text, label in TEXTS],
        out=tmp_path / "own",
        teacher=run / "teacher",
        distillation={"temperature": 2.0, "made_up": 1},
        max_steps=2,
        **QUICK,
    )
    assert isinstance(taught.model.config, EncoderConfig)
    assert not (tmp_path / "own" / "teacher").exists()
    head = taught.model.config.head
    assert isinstance(head, SequenceHead)
    assert (head.pooling, head.pooler) == ("first", True)


def test_the_named_teacher_is_the_teacher_of_a_run_that_is_overwritten(run: Path, tmp_path: Path, caplog: Any) -> None:
    """And not the one that the folder had until now."""
    again = tmp_path / "again"
    shutil.copytree(run, again)
    data = [{"text": text, "label": label} for text, label in TEXTS]
    with caplog.at_level(logging.INFO, logger="heedful.training"):
        heedful.train(
            "text-classification", data, out=again, teacher=run / "last", overwrite=True, max_steps=1, **QUICK
        )
    assert f"learns the probabilities of {run / 'last'}, for each text and 30 made up from it" in caplog.text
    assert not (again / "teacher").exists()


def test_a_pretrained_model_learns_from_a_teacher_too(run: Path, tmp_path: Path) -> None:
    data = [{"text": text, "label": label} for text, label in TEXTS]
    given: dict[str, Any] = {"model": run, "teacher": run / "teacher", "max_steps": 1, **QUICK}
    heedful.train("text-classification", data, out=tmp_path / "own", **given)
    assert read_toml(tmp_path / "own" / "run.toml").distillation == DistillationSettings(made_up=30, temperature=1.0)


def test_the_settings_of_a_run_with_two_parts_are_not_printed(table: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["train", "text-classification", "--train", str(table), "--out", str(tmp_path / "out"), "--print-config"]
    assert cli.main(command) == 2
    assert "this one trains a teacher first; name a teacher with --teacher" in capsys.readouterr().err
    assert cli.main([*command, "--model.members=4"]) == 0
    assert "members = 4" in capsys.readouterr().out


def test_who_has_a_teacher() -> None:
    few = rows([*TEXTS, *TEXTS])
    kind = TextClassification.for_rows(few, settings())
    assert kind is ClassifierEnsemble
    first = kind.teacher_settings(few, settings(distillation=DistillationSettings(made_up=1)))
    assert first is not None
    assert first.out == os.path.join("out", distillation.TEACHER_FOLDER)
    assert first.model.members == 4
    assert not first.distillation.given()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(defaults, "FEWEST_TAUGHT", len(few) + 1)
        assert kind.teacher_settings(few, settings()) is None
    alone = settings(model=ModelSettings(members=3))
    assert TextClassification.for_rows(few, alone).teacher_settings(few, alone) is None
    given = settings(teacher="folder")
    assert TextClassification.for_rows(few, given) is TextClassification
    assert TextClassification.teacher_settings(few, given) is None


def test_too_little_time_trains_one_model(table: Path, tmp_path: Path, capsys: Any) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS * 200), encoding="utf-8")
    out = tmp_path / "run"
    command = ["train", "text-classification", "--train", str(long), "--out", str(out), "--max-minutes=0.05"]
    assert cli.main(command) == 0
    assert "too short for a teacher: one model is trained" in capsys.readouterr().out
    assert not isinstance(heedful.from_pretrained(out), Ensemble)
    assert not (out / "teacher").exists()


# ------------------------------------------------------------------------------------------------------------- refused


def test_what_is_refused(run: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    base = ["train", "text-classification", "--train", str(table), "--out", str(tmp_path / "out"), "--max-steps=1"]
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\n" + "".join(f"{text}\t{label[0]}\n" for text, label in TEXTS), encoding="utf-8")
    more = tmp_path / "more.tsv"
    more.write_text(table.read_text(encoding="utf-8") + "a cloud\tsky\na sun\tsky\n" * 9, encoding="utf-8")
    numbers = tmp_path / "numbers.tsv"
    numbers.write_text("text\tlabel\n" + "".join(f"{text}\t{i / 7}\n" for i, (text, _) in enumerate(TEXTS)))
    teacher_of = ["--teacher", str(run / "teacher")]
    cases: list[tuple[list[str], str]] = [
        ([*base, "--preset=bert-tiny", "--distillation.temperature=2"], "--distillation.temperature needs --teacher"),
        ([*base, "--teacher", str(tmp_path)], "is not a model folder"),
        ([*base[:3], str(other), *base[4:], *teacher_of], "does not know the label 'f'"),
        ([*base[:3], str(more), *base[4:], *teacher_of], "does not know the label 'sky'"),
        ([*base[:3], str(numbers), *base[4:], *teacher_of], "--teacher teaches a text classifier"),
        ([*base, *teacher_of, "--distillation.temperature=0"], "--distillation.temperature"),
        (["train", "fill-mask", *base[2:], *teacher_of], "--teacher has no effect for fill-mask"),
    ]
    for command, says in cases:
        assert cli.main(command) == 2
        assert says in capsys.readouterr().err, command
        assert not (tmp_path / "out").exists()
    again = ["train", "text-classification", "--train", str(table), "--out", str(run), "--resume", "--max-steps=7"]
    assert cli.main([*again, "--teacher", str(tmp_path)]) == 2
    assert "was started with" in capsys.readouterr().err
