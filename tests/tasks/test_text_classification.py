"""Text classification: what goes in, the loss by hand, what comes out, and the folder opened by `transformers`."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score

import heedful
from heedful import cli
from heedful.config import EncoderConfig, SequenceHead
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError, plural
from heedful.metrics.classification import THRESHOLDS, best_threshold
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.settings import (
    DataSettings,
    LoraSettings,
    ModelSettings,
    PoolingSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.baselines import ridge_labels
from heedful.tasks.labels import label_ids, training_labels
from heedful.tasks.task import Prediction
from heedful.tasks.text_classification import TextClassification
from heedful.training.optimisation import adamw
from heedful.training.run_folder import save_task_and_model
from tolerances import approx, assert_close

transformers = pytest.importorskip("transformers")
SMALL = ModelSettings(dim=32, heads=2, depth=1)
WORDS = {"fruit": "apple pear plum quince", "tool": "hammer saw chisel drill", "place": "lake valley island hill"}


def rows(*values: tuple[Any, ...], columns: tuple[str, ...] = ("text", "label")) -> Rows:
    found = (Row(dict(zip(columns, each, strict=True)), "set.tsv", i) for i, each in enumerate(values, 1))
    return Rows(found, 0, columns)


SINGLE = rows(
    *(
        (form.format(word), label)  # each word twice, so that it is a token
        for label, words in WORDS.items()
        for word in words.split()
        for form in ("the {} is here", "one {} ?")
    )
)
PAIRS = rows(
    ("is it a pear ?", "a pear is a fruit", "yes"),
    ("is it a saw ?", "the hill", "no"),
    ("a lake ?", "the lake is an island , a hill and a valley", "no"),
    columns=("text", "text_pair", "label"),
)
SEVERAL = rows(
    ("an apple and a saw", ("tool", "fruit")), ("a hill", ("place",)), ("nothing", ()), ("a pear", ("fruit",))
)


SETS = {"single": SINGLE, "pairs": PAIRS, "several": SEVERAL}


def settings(**given: Any) -> RunSettings:
    chosen = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(size=300)} | given
    return RunSettings(task="text-classification", train=("-",), out="-", **chosen)


def made(data: Rows, longest: int = 128) -> tuple[TextClassification, Model]:
    asked = settings(data=DataSettings(max_length=longest))
    task = TextClassification.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0)
    task.before_training(model, asked)
    return task, model.eval()


@cache
def taught(which: str, steps: int = 120) -> tuple[TextClassification, Model]:
    """A few steps over all rows at once: enough to tell these apart."""
    data = SETS[which]
    task, model = made(data)
    batch = task.collate(task.encode(data).examples)
    optimiser = adamw(model, lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        task.objective(model, batch).backward()
        optimiser.step()
    return task, model


def said(answers: list[Prediction]) -> list[tuple[Any, ...]]:
    """Outputs and scores to compare: a score's last bit depends on where its row lies in memory."""
    return [(answer.output, approx(answer.score)) for answer in answers]


def saved(task: TextClassification, model: Model, folder: Path) -> Path:
    """As a run writes it."""
    save(model, folder, extra={"task": task.name, "columns": dict(task.columns)})
    task.save(folder)
    return folder


# ------------------------------------------------------------------------------------------------------------- encoding


def test_a_text_and_a_pair_as_bert_has_them() -> None:
    task, _ = made(PAIRS)
    examples = task.encode(PAIRS).examples
    batch = task.collate(examples)
    for i, row in enumerate(PAIRS):
        first, second = task.tokenizer.encode([row.values["text"], row.values["text_pair"]])
        ids = [1, *first, 2, *second, 2]
        real = batch["mask"][i]
        assert batch["ids"][i][real].tolist() == ids
        assert real.tolist() == [True] * len(ids) + [False] * (len(real) - len(ids))
        assert batch["segments"][i][real].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert task.lengths(examples)[i].tolist() == [len(ids)]
    assert task.labels == ["no", "yes"]
    assert batch["labels"].tolist() == [[0, 1], [1, 0], [1, 0]]
    assert task.count(batch) == 3


@pytest.mark.parametrize("most", [5, 8, 11, 12, 20])
def test_long_pairs_are_cut_as_transformers_cuts_them(most: int, tmp_path: Path) -> None:
    task, _ = made(PAIRS)
    task.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    examples, kept, note, lost, unread = task.encode(PAIRS, most)
    wanted = [
        theirs(row.values["text"], row.values["text_pair"], truncation="longest_first", max_length=most)
        for row in PAIRS
    ]
    assert [example.ids for example in examples] == [each["input_ids"] for each in wanted]
    whole = [len(example.ids) for example in task.encode(PAIRS).examples]
    cut = sum(length > most for length in whole)
    assert kept == PAIRS
    assert note == (f"{plural(cut)} cut to {most} tokens (--data.max-length)" if cut else "")
    assert lost == cut
    assert unread == [row for row, length in zip(PAIRS, whole, strict=True) if length > most]


def test_a_text_longer_than_the_model_is_cut_and_the_note_says_so() -> None:
    task, model = made(SINGLE, longest=6)
    assert isinstance(model.config, EncoderConfig)
    assert model.config.encoder.position.length == 6
    long = rows(("the apple and the pear and the plum and the quince", "fruit"))
    examples, _, note, _, unread = task.encode(long, 100)
    assert unread == long
    assert len(examples[0].ids) == 6
    assert note == "1 example cut to 6 tokens (the model takes no more)"
    assert task.predict(model, [long[0].values["text"]])[0].output in task.labels
    with pytest.raises(HeedfulError, match=r"max-length 2 has no room for text; give 3"):
        task.encode(SINGLE, 2)


def test_words_are_hidden_in_training_alone() -> None:
    task, _ = made(SINGLE)
    examples = task.encode(SINGLE).examples * 20
    plain = task.collate(examples)["ids"]
    assert not plain.eq(3).any()
    drawn = [task.collate(examples, np.random.default_rng(seed))["ids"] for seed in (0, 0, 1)]
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])
    hidden = drawn[0] != plain
    assert drawn[0][hidden].eq(3).all()
    assert not hidden[plain <= 2].any()  # padding, start, end
    assert hidden[plain > 3].float().mean().item() == pytest.approx(0.1, abs=0.03)
    task.before_training(heedful.create("bert-tiny", head="sequence"), settings(preset=None, start_from="elsewhere"))
    assert task.collate(examples, np.random.default_rng(0))["ids"].equal(plain)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            rows(("a", "fruits")),
            r"^set\.tsv:1: the model has no label 'fruits'; did you mean 'fruit'",
        ),
        (
            rows(("a", "fruit"), ("b", ("fruit", "tool"))),
            r"^set\.tsv:2: 2 labels, but this model gives each example one label",
        ),
        (rows(("a", ())), r"^set\.tsv:1: 0 labels, but"),
    ],
)
def test_labels_that_cannot_be(data: Rows, message: str) -> None:
    task, _ = made(SINGLE)
    with pytest.raises(HeedfulError, match=message):
        task.encode(data)
    assert task.encode(rows(("a", ("tool",)))).examples[0].labels == (2,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rows(("a", "x"), ("b", "x")), r"^set\.tsv: only the label 'x' in 2 rows; add rows, .* different labels$"),
        (rows(("a", ()), ("b", ())), r"^set\.tsv: no label in 2 rows"),
    ],
)
def test_one_label_is_nothing_to_learn(data: Rows, message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        TextClassification.prepare(data, settings())


def test_held_back_rows_have_only_trained_labels() -> None:
    many = rows(*((f"text {i}", "common") for i in range(200)), *((f"rare text {i}", f"rare {i}") for i in range(30)))
    for seed in range(3):
        train, held = TextClassification.split_rows(many, 0.2, seed)
        assert sorted(row.line for row in (*train, *held)) == list(range(1, 231))
        assert {row.values["label"] for row in held} == {"common"}
        assert len(held) > 20
    with pytest.raises(HeedfulError, match="--valid"):
        TextClassification.split_rows(rows(*((f"text {i}", f"label {i}") for i in range(20))), 0.2, 0)


def test_every_class_has_its_share_of_what_is_held_back() -> None:
    few = rows(*((f"text {i}", "abcd"[i % 4]) for i in range(240)))
    for seed in range(3):
        _, held = TextClassification.split_rows(few, None, seed)
        assert sorted(row.values["label"] for row in held) == [name for name in "abcd" for _ in range(12)]


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("{}.5", r"20 different labels in 20 rows, such as '\d+\.5': they look like numbers; "),
        ("a text of {} words", r"20 different labels in 20 rows, such as 'a text of \d+ words': they look like text; "),
    ],
)
def test_labels_in_the_other_column_are_an_error(tmp_path: Path, label: str, told: str) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"{i % 2} text {i}\t{label.format(i)}\n" for i in range(20)))
    remedy = "if the columns are swapped, give --data.columns 2,1, else give --valid FILE$"
    with pytest.raises(HeedfulError, match=rf"^{file}: {told}{remedy}"):
        TextClassification.split_rows(read(file, TextClassification.columns), 0.2, 0)
    (tmp_path / "a.txt").write_text("".join(f"text {i}\n" for i in range(20)))
    (tmp_path / "a.labels").write_text("".join(label.format(i) + "\n" for i in range(20)))
    plain = read([tmp_path / "a.txt", tmp_path / "a.labels"], TextClassification.columns)
    with pytest.raises(HeedfulError, match=r"a\.txt: every label has too few examples to hold any out for validation"):
        TextClassification.split_rows(plain, 0.2, 0)


def test_all_rows_with_unknown_labels_are_counted() -> None:
    task, _ = made(SINGLE)
    known = training_labels(SINGLE)[0]
    data = rows(("a", known), ("b", "sales"), ("c", known), ("d", "sales"), ("e", "other"))
    with pytest.raises(HeedfulError) as told:
        task.encode(data)
    assert str(told.value).startswith("set.tsv:2: the model has no label 'sales'; 3 rows have unknown labels; known: ")
    assert str(told.value).endswith("; correct them, or delete the rows")
    with pytest.raises(HeedfulError, match=r"^set\.tsv:2: .* 'sales'; known: .*; correct it, or delete the row$"):
        task.encode(rows(("a", known), ("b", "sales")))


def test_texts_as_labels_are_an_error() -> None:
    swapped = rows(*((f"{i % 2}", f"a text of {i} words") for i in range(30)))
    with pytest.raises(HeedfulError) as told:
        label_ids(rows(("a text of 40 words", "1"))[0], training_labels(swapped))
    assert str(told.value) == (
        "set.tsv:1: the model has no label '1'; its 30 labels, such as 'a text of 0 words', look "
        "like texts; if so, train again and name the column of labels with --data.columns"
    )
    spaced = [f"class {i}" for i in range(20)]  # so few may well be names
    with pytest.raises(
        HeedfulError, match=r"the model has no label 'clas 1'; did you mean 'class 1'\? correct it, or delete the row$"
    ):
        label_ids(rows(("a", "clas 1"))[0], spaced)


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_by_hand(smoothing: float) -> None:
    task, model = made(SINGLE)
    model.double()
    expected = 0.0
    for row, example in zip(SINGLE, task.encode(SINGLE).examples, strict=True):
        logits = model(torch.tensor([example.ids]), segments=torch.zeros(1, len(example.ids), dtype=torch.long))[0]
        log_p = logits.log_softmax(0)
        expected -= (1 - smoothing) * log_p[task.labels.index(row.values["label"])].item()
        expected -= smoothing * log_p.mean().item()
    batch = task.collate(task.encode(SINGLE).examples)
    assert task.objective(model, batch, smoothing).item() == approx(expected, "layer")


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_several_labels_by_hand(smoothing: float) -> None:
    task, model = made(SEVERAL)
    model.double()
    assert (task.labels, task.multi_label, task.main_metric) == (["fruit", "place", "tool"], True, "micro_f1")
    expected = 0.0
    for row, example in zip(SEVERAL, task.encode(SEVERAL).examples, strict=True):
        for name, logit in zip(task.labels, model(torch.tensor([example.ids]))[0].tolist(), strict=True):
            p, y = 1 / (1 + math.exp(-logit)), (name in row.values["label"]) * (1 - smoothing) + smoothing / 2
            expected -= (y * math.log(p) + (1 - y) * math.log(1 - p)) / 3
    batch = task.collate(task.encode(SEVERAL).examples)
    assert task.objective(model, batch, smoothing).item() == approx(expected, "layer")


@pytest.mark.parametrize(("count", "preset"), [(100, "bert-tiny"), (60_000, "bert-mini")])
def test_more_examples_a_larger_model(count: int, preset: str) -> None:
    asked = settings(preset=None, model=ModelSettings(), tokenizer=TokenizerSettings())
    many = Rows(SINGLE[i % len(SINGLE)] for i in range(count))
    told = TextClassification.suggested_settings(many, asked)
    assert told.preset == preset
    needed = ("lr", "schedule", "warmup", "batch_tokens", "accumulate", "weight_decay", "betas", "eps", "log_every")
    assert all(getattr(told.training, name) is not None for name in needed)
    assert told.tokenizer.size > 4000


@pytest.mark.parametrize(("new", "kind"), [(15, "word"), (16, "wordpiece")])
def test_whole_words_are_tokens_if_few_are_new(new: int, kind: str) -> None:
    """The share of words that occur once is new / 100; The and the are one word."""
    once = " ".join(f"w{number}" for number in range(new))
    texts = [f"The the {once}", " ".join(["the"] * (98 - new))]
    data = rows(*((text, label) for text, label in zip(texts, ("a", "b"), strict=True)))
    suggested = TextClassification.suggested_settings(data, settings()).tokenizer
    assert (suggested.kind, suggested.lowercase) == (kind, True if kind == "word" else None)
    given = settings(tokenizer=TokenizerSettings(kind="wordpiece"))
    assert TextClassification.suggested_settings(data, given).tokenizer.lowercase is None


@pytest.mark.parametrize(("change", "lr"), [({}, 5e-5 * 768 / 32), ({"kv_heads": 1}, 5e-5 * 768 / 32)])
def test_going_on_takes_few_passes_and_steps_by_the_width(change: dict[str, int], lr: float, tmp_path: Path) -> None:
    """The same in BERT's layout and in our own; a given rate needs no folder."""
    asked = settings(model=ModelSettings(dim=32, heads=2, depth=1, **change))
    task = TextClassification.prepare(SINGLE, asked)
    folder = str(saved(task, heedful.create(task.config(asked), seed=0), tmp_path / "model"))
    plain: dict[str, Any] = {"preset": None, "model": ModelSettings(), "tokenizer": TokenizerSettings()}
    many = Rows(SINGLE[i % len(SINGLE)] for i in range(4000))
    fine = TextClassification.suggested_settings(many, settings(start_from=folder, **plain))
    assert (fine.preset, fine.tokenizer, fine.model) == (None, TokenizerSettings(), ModelSettings(r_drop=1.0))
    assert fine.training.lr == pytest.approx(lr)
    assert fine.max_epochs < TextClassification.suggested_settings(many, asked).max_epochs
    given = settings(
        preset=None,
        start_from="gone",
        training=TrainingSettings(lr=1e-4),
        model=ModelSettings(r_drop=0.5),
        pooling=PoolingSettings(kind="first"),
    )
    assert TextClassification.suggested_settings(SINGLE, given).training.lr == 1e-4


@pytest.mark.parametrize(
    ("count", "dropout", "given", "agreement"),
    [(19_999, 0.1, None, 1.0), (20_000, 0.1, None, 0.0), (100, 0.0, None, 0.0), (100, 0.1, 0.0, 0.0)],
)
def test_fine_tuning_on_few_examples_lets_two_passes_agree(
    count: int, dropout: float, given: float | None, agreement: float, tmp_path: Path
) -> None:
    """A run that goes on keeps what it began with, also where its source is gone."""
    asked = settings(model=replace(SMALL, dropout=dropout))
    task = TextClassification.prepare(SINGLE, asked)
    folder = str(saved(task, heedful.create(task.config(asked), seed=0), tmp_path / "model"))
    many = Rows(SINGLE[i % len(SINGLE)] for i in range(count))
    fine = settings(preset=None, start_from=folder, model=ModelSettings(r_drop=given))
    assert TextClassification.suggested_settings(many, fine).model.r_drop == agreement
    several = Rows(replace(row, values=row.values | {"label": str(number)}) for number, row in enumerate(many[:11]))
    assert TextClassification.suggested_settings(several, fine).model.r_drop == (given or 0.0)
    going_on = replace(fine, start_from="gone", resume=True, training=TrainingSettings(lr=1e-4))
    assert TextClassification.suggested_settings(many, going_on).model.r_drop == given


@pytest.mark.parametrize(("labels", "epochs"), [(3, 3), (24, 8), (59, 9), (500, 9)])
def test_many_labels_want_more_epochs_of_fine_tuning(labels: int, epochs: int) -> None:
    """6,400 texts are 200 steps an epoch; a label wants 60, all of them together 1,800 at most."""
    many = rows(*((f"text {number}", f"label {number % labels}") for number in range(6_400)))
    model, training = ModelSettings(r_drop=0.0), TrainingSettings(lr=1e-4)
    pooling = PoolingSettings(kind="first")
    given = settings(preset=None, start_from="gone", training=training, model=model, pooling=pooling)
    assert TextClassification.suggested_settings(many, given).max_epochs == epochs


def test_a_short_run_warms_up_shortly() -> None:
    told = TextClassification.suggested_settings(SINGLE, settings(max_steps=40, training=TrainingSettings()))
    assert 0 < told.training.warmup <= 8


def test_a_preset_of_another_family_is_refused() -> None:
    task, _ = made(SINGLE)
    with pytest.raises(HeedfulError, match=r"'gpt2' is of the decoder family; text-classification needs an encoder"):
        task.config(settings(preset="gpt2"))


# ------------------------------------------------------------------------------------------------ measuring, answering


def test_metrics_are_those_of_the_predictions() -> None:
    task, model = taught("single", steps=6)
    data = rows(*((row.values["text"], row.values["label"]) for row in SINGLE), ("a hill and a lake", "tool"))
    examples = task.encode(data).examples
    measured = task.measure(model, examples, data)
    answers = task.predict(model, [row.values["text"] for row in data])
    wrong = [i for i, row in enumerate(data) if answers[i].output != row.values["label"]]
    assert 0 < len(wrong) < len(data)
    assert measured.metrics["accuracy"] == pytest.approx(100 * (1 - len(wrong) / len(data)))
    assert measured.metrics["loss"] == pytest.approx(task.objective(model, task.collate(examples)).item() / len(data))
    mistakes = measured.details["mistakes"]
    assert sorted(each["place"] for each in mistakes) == wrong
    assert [each["score"] for each in mistakes] == sorted((each["score"] for each in mistakes), reverse=True)
    for each in mistakes:
        row, answer = data[each["place"]], answers[each["place"]]
        assert (each["input"], each["expected"]) == (row.values["text"], row.values["label"])
        assert (each["output"], each["score"]) == (answer.output, approx(answer.score))
    assert np.trace(measured.details["confusion"]["counts"]) == len(data) - len(wrong)
    assert json.loads(json.dumps(measured.details)) == measured.details


def test_answers_keep_the_order_and_blanks_stay_blank() -> None:
    task, model = taught("single")
    inputs = ["the pear is here", " ", "the drill is here", "", "a text that is a long one", "the lake is here"]
    together = task.predict(model, inputs, batch_tokens=20)
    assert [answer.input for answer in together] == inputs
    assert [answer.output for answer in together[:4]] == ["fruit", "", "tool", ""]
    assert together[5].output == "place"
    assert together[1].score is together[3].score is None
    for i in (0, 2, 4, 5):
        alone = task.predict(model, inputs[i : i + 1])[0]
        assert (alone.output, alone.score) == (together[i].output, approx(together[i].score))
    assert task.predict(model, []) == []
    assert task.predict(model, ["a\tb"])[0].output in task.labels  # a tab is a space like others


def test_several_labels_and_their_probability() -> None:
    task, model = taught("several")
    texts = [row.values["text"] for row in SEVERAL]
    answers = task.predict(model, [*texts, ""])
    assert [answer.output for answer in answers] == [["fruit", "tool"], ["place"], [], ["fruit"], []]
    examples = task.encode(SEVERAL).examples
    for answer, example in zip(answers[:-1], examples, strict=True):
        p = model(torch.tensor([example.ids]))[0].sigmoid().tolist()
        exactly = math.prod(x if name in answer.output else 1 - x for name, x in zip(task.labels, p, strict=True))
        assert answer.score == approx(exactly, "gradient")
    measured = task.measure(model, examples, SEVERAL)
    assert (measured.metrics["exact_match"], measured.metrics["micro_f1"]) == (100, 100)
    assert "confusion" not in measured.details


def test_a_pair_is_asked_in_three_ways() -> None:
    task, model = taught("pairs")
    assert dict(task.columns) == {"text": "text", "text_pair": "text", "label": "label"}
    first, second = PAIRS[0].values["text"], PAIRS[0].values["text_pair"]
    assert task.trial_inputs(["a", "b", "c\td"]) == [("a", "b"), ("b", "c"), "c\td"]  # what `verify` asks
    inputs = [(first, second), {"text": first, "text_pair": second}, f"{first}\t{second}", (first, " "), ""]
    answers = task.predict(model, inputs)
    assert [answer.output for answer in answers] == ["yes", "yes", "yes", "", ""]
    assert len({answer.score for answer in answers[:3]}) == 1
    assert task.row_line(PAIRS[1]) == "is it a saw ? + the hill → no"
    for wrong in (first, (first, second, "c"), {"question": first}, 7, (first, None)):
        with pytest.raises(HeedfulError, match="this model takes two texts"):
            task.predict(model, [wrong])
    single, other = made(SINGLE)
    assert dict(single.columns) == {"text": "text", "label": "label"}
    with pytest.raises(HeedfulError, match="takes a text; got"):
        single.predict(other, [(first, second)])


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("which", SETS)
def test_the_folder_opens_in_transformers_with_the_same_answers(which: str, tmp_path: Path) -> None:
    data, (task, model) = SETS[which], taught(which)
    folder = saved(task, model, tmp_path / "model")
    again, opened = TextClassification.load(folder), load(folder)
    again.check_model(opened)
    assert (again.labels, again.multi_label, again.columns) == (task.labels, task.multi_label, task.columns)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(theirs).__name__ == "BertForSequenceClassification"
    assert tokenizer.model_max_length == task.longest == 128
    sides = [[row.values[name] for row in data] for name in ("text", "text_pair") if name in task.columns]
    batch = task.collate(task.encode(data).examples)
    inputs = tokenizer(*sides, padding=True, return_tensors="pt")
    assert inputs["input_ids"].equal(batch["ids"])
    assert inputs["token_type_ids"].equal(batch["segments"])
    assert inputs["attention_mask"].bool().equal(batch["mask"])
    with torch.no_grad():
        ours = model(batch["ids"], batch["mask"], batch["segments"])
        assert_close(theirs(**inputs).logits, ours, "gradient")
    assert [theirs.config.id2label[i] for i in range(len(task.labels))] == task.labels
    several = "multi_label_classification" if task.multi_label else None
    assert theirs.config.problem_type == several
    asked = list(zip(*sides, strict=True)) if len(sides) > 1 else sides[0]
    assert said(again.predict(opened, asked)) == said(task.predict(model, asked))


def test_a_model_that_bert_cannot_say_keeps_its_labels_too(tmp_path: Path) -> None:
    """Keys shared by the heads: our own layout."""
    task, _ = made(SEVERAL)
    model = heedful.create(task.config(settings(model=ModelSettings(dim=32, heads=2, depth=1, kv_heads=1))), seed=0)
    task.before_training(model, settings())
    folder = saved(task, model, tmp_path / "model")
    assert json.loads((folder / "heedful.json").read_text())["layout"] == "heedful"
    again, opened = TextClassification.load(folder), load(folder)
    assert (again.labels, again.multi_label, again.longest) == (task.labels, True, 128)
    assert (opened.labels, opened.multi_label) == (task.labels, True)
    assert said(again.predict(opened, ["a hill"])) == said(task.predict(model.eval(), ["a hill"]))


def test_a_published_folder_answers(shared_data: Any) -> None:
    folder = shared_data("weights/bert-tiny-question")
    expected = json.loads((folder / "expected.json").read_text())
    task, model = TextClassification.load(folder), load(folder)
    task.check_model(model)
    assert task.labels == ["generic", "directed"]
    assert task.longest == 512
    answers = task.predict(model, [case["text"] for case in expected["sentences"]])
    assert [answer.output for answer in answers] == [case["label"] for case in expected["sentences"]]
    for answer, case in zip(answers, expected["sentences"], strict=True):
        assert answer.score == approx(max(case["probabilities"]))
    data = rows((*expected["pair"]["text"], "directed"), columns=("text", "text_pair", "label"))
    batch = task.collate(task.encode(data).examples)
    assert batch["ids"][0].tolist() == expected["pair"]["ids"]
    assert batch["segments"][0].tolist() == expected["pair"]["segments"]
    pair = task.predict(model, [tuple(expected["pair"]["text"])])[0]
    assert pair.score == approx(torch.tensor(expected["pair"]["logits"]).softmax(0).max().item())


# ----------------------------------------------------------------------------------------------------------- going on


TWO = rows(("a good film", "good"), ("a bad film", "bad"))


@pytest.mark.parametrize(
    ("name", "data"),
    [("bert-tiny-question", SINGLE), ("bert-tiny-question", TWO), ("minilm-l6", SINGLE)],
    ids=["more labels", "other labels", "no head"],
)
def test_going_on_from_a_published_model(name: str, data: Rows, shared_data: Any, tmp_path: Path) -> None:
    """Whatever head the folder has, the output is new and repeatable, and the body is the stored one."""
    folder = shared_data(f"weights/{name}")
    asked = settings(preset=None, start_from=str(folder), model=ModelSettings(), data=DataSettings(max_length=16))
    task, model = TextClassification.for_fine_tuning(folder, data, asked)
    task.before_training(model, asked)
    assert task.labels == list(model.labels) == sorted({row.values["label"] for row in data})
    assert {"head.output.weight", "head.output.bias"} == set(model.fresh)
    stored, again = (
        load(folder, dtype="float32").state_dict(),
        TextClassification.for_fine_tuning(folder, data, asked)[1],
    )
    for key, tensor in model.state_dict().items():
        assert tensor.equal(again.state_dict()[key] if key.startswith("head.output") else stored[key])
    assert model.state_dict()["head.output.weight"].std().item() == pytest.approx(0.02, rel=0.2)
    examples = task.encode(data, 16).examples
    assert task.measure(model, examples, data).metrics["loss"] == pytest.approx(math.log(len(task.labels)), abs=0.3)
    saved(task, model, tmp_path / "model")
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert list(theirs.id2label.values()) == task.labels
    assert TextClassification.load(tmp_path / "model").encode(data, 16).examples == examples


def test_going_on_with_the_same_labels_keeps_the_head(tmp_path: Path) -> None:
    task, model = taught("single")
    folder = saved(task, model, tmp_path / "model")
    fewer = rows(*((row.values["text"], row.values["label"]) for row in SINGLE[:16]))  # no place
    again, opened = TextClassification.for_fine_tuning(folder, fewer, settings(preset=None, start_from=str(folder)))
    assert (again.labels, list(opened.fresh)) == (task.labels, [])
    assert all(tensor.equal(model.state_dict()[name]) for name, tensor in opened.state_dict().items())


def headless(folder: Path) -> str:
    """A tiny encoder's folder without a classifier, with the tokenizer of ``SINGLE``."""
    task, _ = made(SINGLE)
    saved(task, heedful.create(task.config(settings()), head="none", seed=1), folder)
    return str(folder)


def test_a_new_classifier_reads_the_mean_of_the_tokens(tmp_path: Path) -> None:
    folder = headless(tmp_path / "plain")
    asked = settings(preset=None, start_from=folder, model=ModelSettings(), pooling=PoolingSettings(kind="mean"))
    task, model = TextClassification.for_fine_tuning(folder, SINGLE, asked)
    model = model.eval()
    assert set(model.fresh) == {"head.output.weight", "head.output.bias"}
    assert model.state_dict().keys() == {*load(folder).state_dict(), *model.fresh} - {
        "head.pooler.dense.weight",
        "head.pooler.dense.bias",
    }
    batch = task.collate(task.encode(SINGLE).examples)
    hidden, real = model.hidden(batch["ids"], batch["mask"]), batch["mask"].float()[:, :, None]
    mean = (hidden * real).sum(1) / real.sum(1)
    assert_close(task.logits(model, batch), F.linear(mean, model.head.output.weight, model.head.output.bias), "layer")
    task.before_training(model, asked)
    assert "reads the mean of the tokens" in "".join(task.model_notes)
    saved(task, model, tmp_path / "model")
    again = load(tmp_path / "model").eval()
    assert task.logits(again, batch).equal(task.logits(model, batch))
    other = replace(asked, start_from=str(tmp_path / "model"), pooling=PoolingSettings(kind="first"))
    back, opened = TextClassification.for_fine_tuning(tmp_path / "model", TWO, other)
    assert isinstance(opened.config.head, SequenceHead)
    assert (opened.config.head.pooling, opened.config.head.pooler) == ("first", True)
    back.before_training(opened, other)
    assert back.model_notes == []
    saved(back, opened, tmp_path / "back")
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back")
    new = TextClassification.prepare(SINGLE, settings()).config(settings(pooling=PoolingSettings(kind="max")))
    assert isinstance(new.head, SequenceHead)
    assert (new.head.pooling, new.head.pooler) == ("max", False)


@pytest.mark.parametrize(
    ("mode", "labels", "given", "pooling"),
    [
        ("mean", 11, None, "mean"),
        ("mean", 10, None, None),
        ("max", 11, None, "max"),
        ("mean", 11, "first", "first"),
        ("weightedmean", 11, None, None),
    ],
)
def test_many_labels_are_read_from_what_a_sentence_encoder_s_vectors_are_made_of(
    mode: str, labels: int, given: Any, pooling: str | None, tmp_path: Path
) -> None:
    folder = sentence_encoder(tmp_path / "encoder", mode)
    asked = settings(preset=None, start_from=folder, model=ModelSettings(), pooling=PoolingSettings(kind=given))
    data = rows(*((f"text {number}", f"label {number}") for number in range(labels)))
    assert TextClassification.suggested_settings(data, asked).pooling.kind == pooling
    adapter = replace(asked, lora=LoraSettings(rank=2))
    assert TextClassification.suggested_settings(data, adapter).pooling.kind == given


def test_a_run_from_a_sentence_encoder_says_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sentence_encoder(tmp_path / "encoder", "mean")
    data = tmp_path / "set.tsv"
    for labels, told in [(12, "the classifier reads the mean of the tokens"), (3, "R-Drop 1: each example passes")]:
        data.write_text("".join(f"one {number}\tlabel {number % labels}\n" for number in range(24)), encoding="utf-8")
        out = tmp_path / f"run-{labels}"
        common = ["train", "text-classification", "--train", str(data), "--out", str(out)]
        assert cli.main([*common, "--from", folder, "--max-steps=2"]) == 0
        assert told in capsys.readouterr().out
        if labels == 3:
            shutil.move(folder, tmp_path / "elsewhere")  # a run that goes on does not need it
        assert cli.main([*common, "--max-steps=4", "--resume"]) == 0
        assert told in capsys.readouterr().out
        trained = load(out)
        assert trained.config.head.pooling == ("mean" if labels == 12 else "first")
        assert trained.head.output.out_features == labels
    assert transformers.AutoModelForSequenceClassification.from_pretrained(out).config.num_labels == 3


def sentence_encoder(folder: Path, mode: str) -> str:
    headless(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}), encoding="utf-8")
    return str(folder)


def test_where_the_pooling_is_settled_another_is_refused(tmp_path: Path) -> None:
    folder, other = headless(tmp_path / "plain"), PoolingSettings(kind="mean")
    asked = settings(preset=None, start_from=folder, model=ModelSettings(), pooling=other)
    with pytest.raises(HeedfulError, match=r"--pooling\.kind mean: an adapter's files store no pooling"):
        TextClassification.for_fine_tuning(folder, SINGLE, replace(asked, lora=LoraSettings(rank=2)))
    task, model = made(SINGLE)
    known = str(saved(task, model, tmp_path / "known"))
    with pytest.raises(
        HeedfulError, match=r"--pooling\.kind mean: the classifier in .*known has learned with .*'first'"
    ):
        TextClassification.for_fine_tuning(known, SINGLE, replace(asked, start_from=known))
    pair = heedful.create("transformer-tiny", head="sequence", seed=0)
    with pytest.raises(HeedfulError, match=r"a classifier of an encoder-decoder has the pooling"):
        task.set_pooling(pair, asked, is_new=True)


def test_models_that_cannot_classify(tmp_path: Path) -> None:
    task, model = made(SINGLE)
    for other, message in [
        (heedful.create("gpt-micro"), r"this decoder model has none \(its head is of kind 'language-model'\)"),
        (heedful.create(task.config(settings()), head="none"), "its head is of kind 'no-head'"),
        (heedful.create(task.config(settings()), num_labels=5), "has 5 classes, but its folder names 3 labels"),
        (heedful.create("vit-micro"), "needs a model of text; this model is of kind 'vision'"),
    ]:
        with pytest.raises(HeedfulError, match=message):
            task.check_model(other)
    big = TextClassification.prepare(rows(*((f"{w} {w}", w) for w in "abcdefghijklmnopqrst")), settings())
    big.labels = task.labels
    if big.tokenizer.vocab_size > task.tokenizer.vocab_size:
        with pytest.raises(HeedfulError, match="do not belong together"):
            big.check_model(model)


# ------------------------------------------------------------------------------------- the threshold of several labels


def test_validation_sets_the_threshold_that_the_folder_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that are all too low: at ½ nothing would be predicted."""
    task, model = taught("several")
    task = TextClassification(task.tokenizer, task.labels, columns=task.columns, multi_label=True)
    examples, right = task.encode(SEVERAL).examples, task.logits
    monkeypatch.setattr(task, "logits", lambda *given: right(*given) / 8 - 2)
    assert task.measure(model, examples, SEVERAL).metrics["micro_f1"] == 0
    assert task.predict(model, ["a pear"])[0].output == []
    assert task.validate(model, examples, SEVERAL).metrics["micro_f1"] == 100
    assert 0 < task.threshold < 0.5
    assert task.measure(model, examples, SEVERAL).metrics["micro_f1"] == 100, "the threshold stays"
    assert task.predict(model, ["a pear"])[0].output == ["fruit"]
    save_task_and_model(model, task, tmp_path / "model", {"task": task.name, "threshold": 0.9})
    assert TextClassification.load(tmp_path / "model").threshold == task.threshold
    card = json.loads((tmp_path / "model" / "heedful.json").read_text())
    (tmp_path / "model" / "heedful.json").write_text(json.dumps({**card, "threshold": 2}))
    with pytest.raises(HeedfulError, match="threshold is 2; write a number between 0 and 1"):
        TextClassification.load(tmp_path / "model")


def test_one_label_has_no_threshold() -> None:
    task, model = taught("single")
    examples = task.encode(SINGLE).examples
    assert task.validate(model, examples, SINGLE).metrics == task.measure(model, examples, SINGLE).metrics
    assert (task.threshold, task.card_entries()) == (0.5, {})


def test_a_run_predicts_by_the_threshold_of_its_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.text_classification.best_threshold", lambda batches: 0.35)
    data = [
        {"text": f"{' and '.join(label)} {n}", "label": list(label)}
        for n in range(30)
        for label in (("apple",), ("saw", "apple"), ("hill",), ("valley", "hill"))
    ]
    run = heedful.train("text-classification", data, out=tmp_path / "run", max_steps=12, quiet=True)
    card = json.loads((tmp_path / "run" / "heedful.json").read_text())
    assert card["threshold"] == 0.35
    assert run.result["baseline"]["name"].startswith("TF-IDF and ridge regression on ")
    scored = heedful.evaluate(tmp_path / "run", data, baseline=True)
    assert scored["baseline"]["name"].startswith("TF-IDF and ridge regression on ")
    task, model = TextClassification.load(tmp_path / "run"), load(tmp_path / "run").eval()
    for prediction in task.predict(model, ["apple 3", "valley and hill"]):
        p = {row["label"]: row["score"] for row in task.predict(model, [prediction.input], top_k=4)[0].output}
        assert prediction.output == [name for name in task.labels if p[name] >= card["threshold"]]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold_is_that_of_scikit_learn_s_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.random((40, 6)) < 0.2
    p = np.clip(truth * 0.2 + random.random((40, 6)) * 0.6, 0.01, 0.99)
    scores = {t: f1_score(truth, p >= t, average="micro", zero_division=0) for t in THRESHOLDS.tolist()}
    best = best_threshold([(truth[:15], p[:15]), (truth[15:], p[15:])])
    assert scores[best] == approx(max(scores.values()))
    assert best_threshold([(np.zeros((2, 3)), p[:2, :3])]) == 0.5, "no label at all: ½ as before"


def test_ridge_labels_equal_scikit_learn_s_ridge_and_its_leave_one_out() -> None:
    random = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(random.choice(words, 6)) for _ in range(60)]
    labels = [
        tuple(name for name, word in (("a", "w1"), ("b", "w2"), ("c", "w3")) if word in text.split()) for text in texts
    ]
    name, predicted = ridge_labels(texts[:40], labels[:40], texts[40:])
    assert name == "TF-IDF and ridge regression on 40 texts"
    names = sorted({label for own in labels[:40] for label in own})
    truth = np.array([[label in own for label in names] for own in labels[:40]], dtype=float)
    vectors = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+").fit(texts[:40])
    x, new = vectors.transform(texts[:40]).toarray(), vectors.transform(texts[40:]).toarray()
    mean = truth.mean(0)

    def fitted(rows: list[int], targets: np.ndarray) -> Ridge:
        return Ridge(alpha=0.1, fit_intercept=False).fit(x[rows], targets[rows] - mean)

    left_out = np.stack(
        [fitted([j for j in range(40) if j != i], truth).predict(x[i : i + 1])[0] + mean for i in range(40)]
    )
    threshold = best_threshold([(truth, left_out)])
    scores = fitted(list(range(40)), truth).predict(new) + mean
    assert predicted == [tuple(n for n, s in zip(names, row, strict=True) if s >= threshold) for row in scores]


def test_the_simple_method_of_many_labels_takes_two_seconds() -> None:
    random = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(5000)])
    texts = [" ".join(random.choice(words, 20)) for _ in range(4000)]
    labels = [tuple(f"l{i}" for i in random.choice(400, 3, replace=False)) for _ in texts]
    began = time.process_time()
    ridge_labels(texts, labels, texts[:500], most=2000)
    assert time.process_time() - began < 8, "logistic regression takes minutes"
