"""Labels that are numbers: recognised or asked for, learned in any unit, scored, saved as transformers has it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.cli import main
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.layers.linear import Linear
from heedful.metrics import regression
from heedful.metrics.intervals import intervals
from heedful.metrics.regression import Regression
from heedful.pretrained import load, read_card, save
from heedful.settings import (
    DataSettings,
    LoraSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    resolve,
)
from heedful.tasks.baselines import ridge_text
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_regression import TextRegression
from heedful.training.run import train
from tolerances import approx

WORTH = {"good": 2, "fine": 1, "bad": -1, "poor": -2, "great": 3, "awful": -3}
SIZE = ModelSettings(dim=16, heads=2, depth=1)


def lines(count: int, seed: int) -> list[tuple[str, float]]:
    """Texts, and prices of about 2,000 ± 100 that their words say."""
    drawn = random.Random(seed)
    texts = [drawn.choices(list(WORTH), k=4) for _ in range(count)]
    return [(" ".join(words), round(2000 + 30 * sum(map(WORTH.get, words)) + drawn.random(), 2)) for words in texts]  # type: ignore[arg-type]


def written(path: Path, pairs: list[tuple[str, float]]) -> str:
    path.write_text("review,price\n" + "".join(f"{text},{number}\n" for text, number in pairs))
    return str(path)


def settings(data: str, out: Path, **given: Any) -> RunSettings:
    asked = RunSettings(
        task="text-classification",
        train=(data,),
        out=str(out),
        preset=None if "start_from" in given else "bert-tiny",
        max_steps=given.pop("max_steps", 6),
        training=TrainingSettings(lr=5e-3, batch_size=32, evaluate_every=3, save_every=2),
    )
    if "start_from" not in given:
        asked = replace(asked, model=SIZE, tokenizer=TokenizerSettings(size=60))
    return replace(asked, **given)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A run's folder, other data like its own, and what it said."""
    folder = tmp_path_factory.mktemp("regression")
    told: list[str] = []
    made = settings(written(folder / "train.csv", lines(200, 0)), folder / "run", max_steps=60)
    train(made, say=told.append, quiet=True)
    return folder / "run", written(folder / "test.csv", lines(60, 1)), told


# ------------------------------------------------------------------------------------------------------- which it is


def rows(labels: list[str]) -> Rows:
    return Rows(Row({"text": f"text {i}", "label": label}, "a.csv", i) for i, label in enumerate(labels, 1))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0.5", "1.25", "3.75", "2"], TextRegression),
        ([str(1900 + year) for year in range(30)], TextRegression),
        (["0", "1", "0", "1"], TextClassification),
        (["1", "2", "3", "4", "5"] * 3, TextClassification),
        (["0.0", "1.0"] * 3, TextClassification),
        ([str(number) for number in range(40)] * 2, TextClassification),  # classes by number
        (["good", "1.5", "2.5", "3.5"], TextClassification),
        (["1_0", "2.5", "3.5", "4.5"], TextClassification),
        (["٣", "2.5", "3.5", "4.5"], TextClassification),
    ],
)
def test_which_labels_are_numbers(labels: list[str], expected: type) -> None:
    found, asked = rows(labels), RunSettings(task="text-classification", train=("a.csv",), out="out")
    assert TextClassification.for_rows(found, asked) is expected
    numeric = all(label.replace(".", "").isascii() and label.replace(".", "").isdigit() for label in labels)
    other = "class" if expected is TextRegression else "number"
    assert [f"--data.label-kind {other}" in note for note in found.notes] == [True] * numeric
    turned = replace(asked, data=DataSettings(label_kind=other))  # type: ignore[arg-type]
    assert TextClassification.for_rows(rows(labels), turned) is not expected


def test_asked_for_numbers_must_be_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("text,label\na b,1\nb c,good\nc d,3\n")
    asked = ["train", "text-classification", "--train", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]
    assert main([*asked, "--data.label-kind", "number"]) == 2
    assert "a.csv:3: the label 'good' is not a number; " in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("text,label\na b,1.5\nb c,2.5\nc d,3.5\n")
    assert main([*asked, "--training.label-smoothing", "0.1"]) == 2
    assert "--training.label-smoothing has no effect on labels that are numbers" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("text,label\na b,2\nb c,2\nc d,2\n")
    assert main([*asked, "--data.label-kind", "number"]) == 2
    assert "every label is 2" in capsys.readouterr().err


def test_fractions_of_json_are_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t {i}", "label": i / 4}) + "\n" for i in range(5)))
    found = read(str(path), TextClassification.columns)
    assert [row.values["label"] for row in found] == ["0", "0.25", "0.5", "0.75", "1"]


# --------------------------------------------------------------------------------------------------------- a run of it


def test_a_run_says_what_it_learns_and_learns_it(run: tuple[Path, str, list[str]]) -> None:
    folder, data, told = run
    assert any("learned as numbers (regression); --data.label-kind class" in line for line in told)
    said: list[str] = []
    found = evaluate(str(folder), [data], say=said.append, baseline=True)
    assert set(found["metrics"]) == {"r2", "pearson", "spearman", "mae", "loss"}
    assert found["metrics"]["r2"] > 80
    assert found["metrics"]["mae"] < 40  # of prices about 2,000: the mean alone would miss by about 80
    low, high = found["intervals"]["r2"]
    assert low < found["metrics"]["r2"] < high
    assert found["baseline"]["name"] == "ridge regression on words and character n-grams"
    assert set(found["baseline"]["metrics"]) == {"r2", "pearson", "spearman", "mae"}
    assert "text=review, label=price (as in training; --columns TEXT,LABEL changes it)" in said


def test_answers_are_numbers(run: tuple[Path, str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, data, _ = run
    answer = heedful.pipeline("text-classification", str(folder))("good great fine good")
    assert isinstance(answer["output"], float)
    assert answer["score"] is None
    assert main(["predict", str(folder), "good great fine good", "", "--json"]) in (0, None)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["output"] for one in said] == [pytest.approx(answer["output"]), None]
    assert main(["predict", str(folder), "good", "--top-k", "2"]) == 2
    assert "--top-k has no effect" in capsys.readouterr().err
    compared = compare([str(folder), str(folder / "last")], [data], say=lambda line: None)
    assert compared["main_metric"] == "r2"


def test_transformers_opens_the_folder_with_the_same_numbers(run: tuple[Path, str, list[str]]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, _, _ = run
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["good great fine good", "bad awful poor poor"]
    with torch.no_grad():
        expected = [theirs(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts]
    found = [one["output"] for one in heedful.pipeline(None, str(folder))(texts)]
    assert found == approx(expected, "gradient")
    assert expected[0] > 2050 > 1950 > expected[1]


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path / "a.csv", lines(80, 2))
    train(settings(data, tmp_path / "whole", max_steps=8), say=lambda line: None, quiet=True)
    calls = iter(range(100))
    objective = TextRegression.objective

    def stopping(*given: Any) -> torch.Tensor:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return objective(*given)

    with monkeypatch.context() as patch:
        patch.setattr(TextRegression, "objective", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(settings(data, tmp_path / "stopped", max_steps=8), say=lambda line: None, quiet=True)
    train(settings(data, tmp_path / "stopped", max_steps=8, resume=True), say=lambda line: None, quiet=True)
    one, other = (tmp_path / name / "last" / "model.safetensors" for name in ("whole", "stopped"))
    assert one.read_bytes() == other.read_bytes()


def test_going_on_from_a_model_of_numbers_keeps_its_output(run: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    folder, _, _ = run
    pairs = [(text, round(number / 500)) for text, number in lines(60, 3)]  # few whole numbers: the model decides
    data = written(tmp_path / "a.csv", pairs)
    told: list[str] = []
    still = TrainingSettings(lr=1e-12, batch_size=16)
    made = settings(data, tmp_path / "tuned", start_from=str(folder), max_steps=1, training=still)
    train(made, say=told.append, quiet=True)
    assert any("learned as numbers" in line for line in told)
    text = "good great fine good"
    before, after = (heedful.pipeline(None, str(one))(text)["output"] for one in (folder, tmp_path / "tuned"))
    assert after == approx(before, "gradient")


def test_an_adapter_learns_numbers(run: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    folder, data, _ = run
    classes = written(tmp_path / "a.csv", lines(60, 4))
    made = settings(classes, tmp_path / "tuned", start_from=str(folder), max_steps=2, lora=LoraSettings(rank=2))
    result = train(made, say=lambda line: None, quiet=True)
    found = evaluate(str(tmp_path / "tuned"), [data], say=lambda line: None)
    assert found["metrics"]["mae"] < 60  # in the labels' unit, whatever the weights were learned in
    assert result["metrics"]["r2"] > 50


# ------------------------------------------------------------------------------------------------------------ its parts


def small(mean: float, deviation: float) -> tuple[TextRegression, heedful.models.Model, Rows]:
    pairs = [("good", mean + deviation), ("bad", mean - deviation), ("fine film", mean)]
    found = Rows(Row({"text": text, "label": number}, "a.csv", i) for i, (text, number) in enumerate(pairs, 1))
    asked = settings("a.csv", Path("out"))
    asked = resolve(asked, TextRegression.suggested_settings(found, asked))
    task = TextRegression.prepare(found, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    task.before_training(model, asked)
    task.unseen = 0.0
    return task, model, found


@pytest.mark.parametrize(("mean", "deviation"), [(2000.0, 130.0), (0.002, 0.0001), (-3.0, 2.0)])
def test_the_output_begins_at_the_mean_and_is_saved_in_its_unit(mean: float, deviation: float, tmp_path: Path) -> None:
    task, model, found = small(mean, deviation)
    examples = task.encode(found).examples
    batch = task.collate(examples)
    with torch.no_grad():
        began = model(batch["ids"], batch["mask"], batch["segments"])
        loss = float(task.objective(model, batch))
    assert (began[:, 0] - mean).abs().max() < 8 * deviation
    by_hand = sum(((float(y) - float(t)) / task.factor) ** 2 for y, t in zip(began[:, 0], batch["labels"], strict=True))
    assert loss == pytest.approx(float(by_hand), rel=1e-3)
    assert np.log2(task.factor).is_integer()
    save(model, tmp_path, extra={"task": task.name, "columns": dict(task.columns), **task.card_entries()})
    task.save(tmp_path)
    again = load(tmp_path)
    assert again.regression
    assert type(again.get_submodule("head.output")) is Linear, "no factor is left"
    with torch.no_grad():
        assert torch.equal(again(batch["ids"], batch["mask"], batch["segments"]), began)
    loaded = TextRegression.load(tmp_path)
    assert (loaded.mean, loaded.factor) == (task.mean, task.factor)
    assert TextClassification.for_folder(tmp_path) is TextRegression
    assert read_card(tmp_path)["numbers"]["factor"] == task.factor


def test_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    drawn = np.random.default_rng(0)
    true = drawn.normal(size=50).round(1)
    found = true + drawn.normal(size=50)
    scored = Regression(found, true, 2.0)
    assert scored.metrics_of(np.arange(50)) == pytest.approx(
        {
            "r2": 100 * metrics.r2_score(true, found),
            "pearson": 100 * stats.pearsonr(true, found)[0],
            "spearman": 100 * stats.spearmanr(true, found)[0],
            "mae": metrics.mean_absolute_error(true, found),
            "loss": metrics.mean_squared_error(true, found) / 4,
        }
    )
    mean = Regression(np.full(50, true.mean()), true).metrics_of(np.arange(50))
    assert (mean["r2"], mean["pearson"]) == (approx(0.0, dtype=torch.float64), 0.0)
    assert Regression([1.0], [1.0]).metrics_of(np.arange(1))["r2"] == 0.0
    assert len(scored.joined(scored)) == 100
    assert {"r2", "mae"} <= set(intervals(scored))


@pytest.mark.parametrize("block", [1, 200, 1 << 15])
def test_metrics_of_many_draws_are_those_of_scikit_learn_and_scipy(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    monkeypatch.setattr(regression, "BLOCK", block)
    drawn = np.random.default_rng(1)
    true = drawn.normal(size=40).round(1)  # with ties
    predicted = (true + drawn.normal(size=40)).round(1)
    scored = Regression(predicted, true, 2.0)
    places = drawn.integers(40, size=(9, 25))
    for row, values in zip(places, scored.metrics_of_draws(places), strict=True):
        y, output = true[row], predicted[row]
        expected = {
            "r2": 100 * metrics.r2_score(y, output),
            "pearson": 100 * stats.pearsonr(y, output)[0],
            "spearman": 100 * stats.spearmanr(y, output)[0],
            "mae": metrics.mean_absolute_error(y, output),
            "loss": metrics.mean_squared_error(y, output) / 4,
        }
        assert values == approx(expected, dtype=torch.float64)
        assert values == scored.metrics_of(row)
    assert scored.metrics_of_draws(places[:0]) == []


def test_draws_of_equal_numbers_have_no_correlation() -> None:
    """The mean of ten times 0.1 is not 0.1, so that their deviations from it are not 0."""
    scored = Regression([0.1, 0.5, 0.1], [0.1, 0.1, 0.7])
    places = np.array([[0, 1] * 5, [0, 2] * 5, [1, 2] * 5])
    y_equal, predicted_equal, neither = scored.metrics_of_draws(places)
    assert (y_equal["r2"], y_equal["pearson"], y_equal["spearman"]) == (0.0, 0.0, 0.0)
    assert (predicted_equal["pearson"], predicted_equal["spearman"]) == (0.0, 0.0)
    assert predicted_equal["r2"] < 0
    assert neither["pearson"] == neither["spearman"] == approx(-100.0, dtype=torch.float64)


def test_the_baseline_is_ridge_regression_on_words() -> None:
    pairs = lines(300, 5)
    texts, numbers = [text for text, _ in pairs], [number for _, number in pairs]
    found = ridge_text(texts[:250], numbers[:250], texts[250:])
    figures = Regression(found, numbers[250:]).metrics_of(np.arange(50))
    assert figures["r2"] > 90


def test_the_baseline_reads_letters() -> None:
    """Each word is new; its ending tells the number, which words alone cannot know."""
    drawn = np.random.default_rng(0)
    stems = ["".join(drawn.choice([*"bdfgklmnprst"], 5)) for _ in range(300)]
    numbers = drawn.integers(5, size=300).astype(float)
    texts = [stem + ("a", "en", "io", "uz", "yx")[int(number)] for stem, number in zip(stems, numbers, strict=True)]
    found = ridge_text(texts[:250], numbers[:250].tolist(), texts[250:])
    assert Regression(found, numbers[250:]).metrics_of(np.arange(50))["r2"] > 70


def test_without_a_relation_the_baseline_is_near_the_mean() -> None:
    drawn = np.random.default_rng(0)
    texts = [" ".join(drawn.choice([*"abcdefgh"], 6)) for _ in range(400)]
    numbers = drawn.normal(size=400)
    found = ridge_text(texts[:300], numbers[:300].tolist(), texts[300:])
    assert Regression(found, numbers[300:]).metrics_of(np.arange(100))["r2"] > -15


def test_values_that_are_no_numbers_are_named_in_evaluation(run: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    folder, _, _ = run
    (tmp_path / "a.csv").write_text("review,price\ngood film,2000\nbad film,cheap\n")
    with pytest.raises(HeedfulError, match=r"'price' is \"cheap\", but a number is expected, in .*a\.csv:3"):
        evaluate(str(folder), [str(tmp_path / "a.csv")], say=lambda line: None)


def test_an_audit_tells_the_range(run: tuple[Path, str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    _, data, _ = run
    main(["audit", "text-classification", "--train", data, "--preset", "bert-tiny"])
    told = capsys.readouterr().out
    assert "labels          numbers from 1" in told
    assert "rare" not in told
