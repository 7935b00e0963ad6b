"""The verdict at the end of a run: made scores with known answers, a brute-force bootstrap, and whole small runs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful import cli
from heedful.metrics.classification import ClassifierScores
from heedful.metrics.example_scores import Sums
from heedful.metrics.intervals import FEW
from heedful.metrics.language_model import span_metrics
from heedful.metrics.translation import translation_scores
from heedful.metrics.verdict import MOST, Rival, constant_predictions, improving, verdict
from heedful.settings import RunSettings
from heedful.tasks.baselines import NGrams, linear_text
from heedful.tasks.text_classification import TextClassification
from heedful.training.report import remedy


def accuracy(right: Any) -> Sums:
    right = np.asarray(right, dtype=float)
    return Sums(
        np.stack([right, np.ones_like(right)], axis=1), lambda sums: {"accuracy": 100 * sums[0] / max(1, sums[1])}
    )


def loss(nats: Any) -> Sums:
    nats = np.asarray(nats, dtype=float)
    return Sums(np.stack([nats, np.ones_like(nats)], axis=1), lambda sums: {"loss": sums[0] / max(1, sums[1])})


def first(right: int, of: int = 200) -> Sums:
    return accuracy(np.arange(of) < right)


GUESS, SIMPLE = Rival("the most frequent label", first(100)), Rival("a linear model", first(150))


@pytest.mark.parametrize(
    ("model", "kind", "useful"),
    [
        (first(180), "better", True),
        (first(120), "below", True),
        (first(152), "cannot tell", True),
        (first(102), "chance", False),  # above the guess, but two of 200 differ: not surely
        (first(100), "chance", False),
        (first(90), "chance", False),
    ],
)
def test_each_kind_by_made_scores(model: Sums, kind: str, useful: bool) -> None:
    found = verdict(model, "accuracy", guess=GUESS, baseline=SIMPLE)
    assert (found.kind, found.useful) == (kind, useful)
    assert found.rival == (GUESS.name if kind == "chance" else SIMPLE.name)
    assert found.rival is not None
    assert found.rival in found.text
    assert json.loads(json.dumps(found.as_dict()))["baseline"]["name"] == found.rival


def test_the_interval_is_that_of_a_brute_force_bootstrap() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.random(300) < 0.7, draw.random(300) < 0.8
    found = verdict(accuracy(b), "accuracy", baseline=Rival("simple", accuracy(a)))
    again = [100 * (b[drawn].mean() - a[drawn].mean()) for drawn in (draw.integers(300, size=300) for _ in range(4000))]
    assert found.difference == pytest.approx(np.quantile(again, [0.025, 0.975]), abs=1.0)
    assert (found.value, found.rival_value) == (pytest.approx(100 * b.mean()), pytest.approx(100 * a.mean()))
    assert found.kind == ("better" if np.quantile(again, 0.025) > 0 else "cannot tell")


def test_of_a_loss_the_lower_is_the_better() -> None:
    nats = np.random.default_rng(0).normal(3.0, 0.1, 100)
    simple = Rival("n-grams", loss(nats))
    assert verdict(loss(nats - 0.5), "loss", baseline=simple).kind == "better"
    assert verdict(loss(nats + 0.5), "loss", baseline=simple).kind == "below"
    assert verdict(loss(nats + 0.01), "loss", guess=simple).kind == "chance"


def test_a_constant_output_must_be_passed_first() -> None:
    """A copy of the source scores 0 between scripts, so that any text is better; one text for all is not passed."""
    model, constant, copy = first(30), Rival("the same text for every input", first(32)), Rival("a copy", first(0))
    found = verdict(model, "accuracy", guess=constant, baseline=copy)
    assert (found.kind, found.useful, found.rival) == ("chance", False, constant.name)
    assert found.text.startswith("has not learned more than the same text for every input: accuracy 15 against 16")
    assert verdict(model, "accuracy", baseline=copy).kind == "better"
    few = verdict(accuracy([1, 1, 1, 0]), "accuracy", guess=Rival("one label", accuracy([1, 0, 0, 0])), baseline=copy)
    assert (few.kind, few.useful) == ("cannot tell", True)
    assert few.text.startswith("cannot tell whether it has learned more than one label: accuracy 75 against 25")


def test_where_a_metric_is_0_for_all_another_one_compares() -> None:
    """BLEU of texts of fewer than four words is 0, of right ones, too; chrF tells them apart."""
    right, copies = ["ein Hund", "drei Katzen", "ein Haus"] * 20, ["a dog", "three cats", "a house"] * 20
    scores = partial(translation_scores, references=right, ter=False)
    model = scores(right)
    assert model.metrics_of(np.arange(60))["bleu"] == 0
    guess, baseline = Rival("one text", scores(["ein Hund"] * 60)), Rival("a copy", scores(copies))
    found = verdict(model, "bleu", guess=guess, baseline=baseline)
    assert (found.kind, found.metric, found.value) == ("better", "chrf", 100)
    found = verdict(scores(copies), "bleu", guess=guess)
    assert (found.kind, found.metric) == ("chance", "chrf")
    nothing = verdict(first(0), "accuracy", guess=Rival("one label", first(0)))
    assert (nothing.kind, nothing.metric) == ("chance", "accuracy")


def test_a_loss_is_compared_itself() -> None:
    """Beside a loss there may be an accuracy, of which higher is better."""
    sides = [Sums(np.array([[nats, right, 1.0]] * 40), span_metrics) for nats, right in ((1.0, 0.0), (2.0, 1.0))]
    found = verdict(sides[0], "loss", guess=Rival("a guess", sides[1]))
    assert (found.kind, found.metric, found.value, found.rival_value) == ("better", "loss", 1, 2)


def test_the_number_of_examples_that_would_tell_has_the_power_of_80_percent() -> None:
    """86 against 80.7 % of 150: 18 examples only the model has right, 10 only the simple method."""
    cells = {(1, 1): 111, (1, 0): 18, (0, 1): 10, (0, 0): 11}
    pairs = np.array([pair for pair, count in cells.items() for _ in range(count)])
    found = verdict(accuracy(pairs[:, 0]), "accuracy", baseline=Rival("a linear SVM", accuracy(pairs[:, 1])))
    assert (found.kind, round(found.value or 0, 1), round(found.rival_value or 0, 1)) == ("cannot tell", 86.0, 80.7)
    d, discordant = 8 / 150, 28 / 150
    exact = ((1.959964 + 0.841621) / d) ** 2 * (discordant - d**2)
    assert found.needed == pytest.approx(exact, rel=0.12), "the bootstrap's error is known to a few percent"
    assert "150 examples; at this difference about " in found.text
    assert found.as_dict()["needed"] == found.needed

    draw, size = np.random.default_rng(0), found.needed or 0
    only_model, only_simple, _ = draw.multinomial(size, [18 / 150, 10 / 150, 122 / 150], size=20_000).T
    difference = (only_model - only_simple) / size
    error = np.sqrt(((only_model + only_simple) / size - difference**2) / size)
    assert (difference > 1.959964 * error).mean() == pytest.approx(0.8, abs=0.05)

    kinds = []
    for _ in range(60):
        drawn = pairs[draw.integers(150, size=size)]
        kinds.append(verdict(accuracy(drawn[:, 0]), "accuracy", baseline=Rival("", accuracy(drawn[:, 1]))).kind)
    assert 0.65 < kinds.count("better") / 60 < 0.95


def test_no_number_of_examples_tells_equal_models_apart() -> None:
    right = np.arange(200) % 2
    found = verdict(accuracy(right), "accuracy", baseline=Rival("a linear SVM", accuracy(1 - right)))
    assert (found.kind, found.needed) == ("cannot tell", None)
    assert "would tell" not in found.text
    assert verdict(first(180), "accuracy", baseline=SIMPLE).needed is None
    few = verdict(accuracy([1] * 12), "accuracy", baseline=Rival("a linear SVM", first(8, 12)))
    assert few.needed == FEW


def test_few_examples_cannot_tell() -> None:
    right = np.array([0, 0, 0, 1, 1])
    found = verdict(accuracy([1] * 5), "accuracy", baseline=Rival("simple", accuracy(right)))
    assert found.kind == "cannot tell"
    assert "give more" in found.text
    assert verdict(accuracy([1]), "accuracy", baseline=Rival("simple", accuracy([0]))).kind == "cannot tell"
    assert verdict(None, "accuracy").kind == "cannot tell"


def test_the_p_value_decides_for_few_examples() -> None:
    """Four of 12 predictions differ, all for the better: by chance one time in 2³ (the sign test), as p says."""
    found = verdict(accuracy([1] * 12), "accuracy", baseline=Rival("a linear SVM", first(8, 12)), more="hold back more")
    assert found.difference is not None
    assert found.difference[0] > 0
    assert found.kind == "cannot tell"
    assert found.p == pytest.approx(1 / 8, abs=0.03)
    assert found.text.endswith(
        f"at 95 %, but p = {found.p:.2g} (12 examples; at this difference about 30 would tell; hold back more)"
    )
    assert found.as_dict()["p"] == found.p
    sure = verdict(accuracy([1] * 12), "accuracy", baseline=Rival("a linear SVM", first(2, 12)))
    assert (sure.kind, sure.p is not None and sure.p < 0.05) == ("better", True)
    assert f"at 95 %, p = {sure.p:.2g} (12 examples)" in sure.text
    many = verdict(first(180), "accuracy", baseline=SIMPLE)
    assert (many.p, "p =" in many.text) == (None, False)


def test_equal_predictions_are_no_difference() -> None:
    found = verdict(first(40, 40), "accuracy", baseline=Rival("a linear SVM", first(40, 40)))
    assert found.text == (
        "cannot tell whether it is better than a linear SVM: accuracy 100 against 100, no difference (40 examples; "
        "give more)"
    )


def test_a_perfect_model_does_not_improve() -> None:
    for scored, metric in ((first(200), "accuracy"), (loss(np.zeros(200)), "loss")):
        found = verdict(scored, metric, improving=True)
        assert not found.improving
        assert "improving" not in found.text
    assert verdict(first(199), "accuracy", improving=True).improving


@pytest.mark.parametrize("given", [False, True])
def test_where_validation_was_held_back_the_option_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    texts = [f"{'good' if i % 2 else 'bad'} thing {i}\t{i % 2}\n" for i in range(40)]
    (tmp_path / "all.tsv").write_text("".join(texts))
    (tmp_path / "held.tsv").write_text("".join(text.replace("thing", "other") for text in texts[:4]))
    options = ["--valid", str(tmp_path / "held.tsv")] if given else ["--data.valid-fraction", "0.1"]
    arguments = ["train", "text-classification", "--train", str(tmp_path / "all.tsv"), "--model.members", "1", *options]
    arguments += ["--out", str(tmp_path / "run"), "--device", "cpu", "--max-steps", "40", "--training.lr", "0.01"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["verdict"]
    more = "give more" if given else "hold back more: --data.valid-fraction"
    assert found["text"].startswith("cannot tell whether it has learned more than the most frequent label: accuracy")
    assert found["text"].endswith(f"; {more})")


def test_many_examples_are_compared_in_part() -> None:
    scored, simple = first(90_000, 100_000), Rival("simple", first(10_000, 100_000))
    assert verdict(scored, "accuracy", baseline=simple).examples == MOST
    labels = [("a",), ("b",)] * 6000
    said = ClassifierScores.of(["a", "b"], labels, labels)
    found = verdict(said, "accuracy", guess=Rival("a", ClassifierScores.of(["a", "b"], labels, [("a",)] * 12_000)))
    assert (found.kind, found.value, found.examples) == ("better", 100.0, MOST)


@pytest.mark.parametrize(
    ("outputs", "expected", "classes", "kind"),
    [
        (["ham"] * 3, ["ham", "spam", "ham"], True, "one class"),
        (["ham"] * 3, ["ham"] * 3, True, None),  # there is nothing else to say
        (["", " "], ["un", "deux"], False, "writes nothing"),
        (["le le"] * 2, ["un", "deux"], False, "writes nothing"),
        ([[], []], [("B-PER", "O"), ("O",)], True, "writes nothing"),
        ([[], []], [("O",), ("O", "O")], True, None),
        ([[{"label": "NOUN"}], [{"label": "NOUN"}]], [("NOUN",), ("VERB",)], True, "one class"),
        ([{"answer": ""}, {"answer": ""}], [("Paris",), ("Rome",)], False, "writes nothing"),
        ([0.5, 0.5], [1.0, 2.0], False, None),
        (["ham", "spam"], ["ham", "ham"], True, None),
    ],
)
def test_predictions_that_are_all_alike(
    outputs: list[Any], expected: list[Any], classes: bool, kind: str | None
) -> None:
    found = constant_predictions(outputs, expected, classes)
    assert (None if found is None else found[0]) == kind
    if kind is not None:
        told = verdict(first(2, 2), "accuracy", outputs=outputs, expected=expected, classes=classes)
        assert (told.kind, told.useful) == (kind, False)


def test_still_improving_stands_beside_the_kind() -> None:
    assert improving([(10, 2.0), (20, 1.0)])
    assert not improving([(10, 1.0), (20, 2.0)])
    assert not improving([(10, 1.0)])
    found = verdict(first(120), "accuracy", baseline=SIMPLE, improving=True)
    assert found.kind == "below"
    assert found.improving
    assert "improving" in found.text


def test_the_remedy_names_what_to_do() -> None:
    settings = RunSettings(task="text-classification", train=("labels.tsv",), out="my out", max_minutes=2.0)
    below = verdict(first(120), "accuracy", baseline=SIMPLE)
    told = remedy(below, settings, "max_minutes")
    assert told is not None
    assert "--from" in told
    assert "heedful audit text-classification --config 'my out/run.toml'" in told
    assert "--from" not in str(remedy(below, settings, "max_minutes", None))
    late = verdict(first(120), "accuracy", baseline=SIMPLE, improving=True)
    told = remedy(late, settings, "max_minutes")
    assert told is not None
    assert told.endswith("heedful train text-classification --config 'my out/run.toml' --resume --max-minutes 6")
    long = replace(settings, max_minutes=None, max_steps=1_000_000)
    assert str(remedy(late, long, "max_steps")).endswith("--resume --max-steps 3000000"), "a whole number of steps"
    assert remedy(verdict(first(180), "accuracy", baseline=SIMPLE), settings, "max_steps") is None


def test_n_grams_by_hand() -> None:
    """Witten-Bell of the unigram: (count + types / vocabulary) / (tokens + types)."""
    tokens = np.array([0, 1, 0, 2])
    assert np.exp(-NGrams(tokens, 4, order=1).nats(np.array([0, 3]))) == pytest.approx([(2 + 3 / 4) / 7, (3 / 4) / 7])
    model = NGrams(tokens, 4, order=2)  # 0 was followed by 1 and by 2, once each
    one = (1 + 3 / 4) / 7
    assert np.exp(-model.nats(np.array([0, 1])))[1] == pytest.approx((1 + 2 * one) / (2 + 2))
    for history in range(4):  # probabilities of what follows sum to 1
        each = [np.exp(-NGrams(tokens, 4).nats(np.array([history, 0, after]))[2]) for after in range(4)]
        assert sum(each) == pytest.approx(1)


def test_many_labels_take_the_quick_way() -> None:
    texts = [f"word{i} and more" for i in range(120)] * 3
    labels = [(f"label {i}",) for i in range(120)] * 3
    name, found = linear_text(texts, labels, ["word7", "word59"])
    assert (name, found) == ("naive Bayes on words and character n-grams", [("label 7",), ("label 59",)])


# ------------------------------------------------------------------------------------------------------ whole runs

TINY = ["--preset=bert-tiny", "--model.depth=1", "--model.dim=16", "--model.heads=2", "--training.log-every=10"]


def classify(folder: Path, rows: list[tuple[str, str]], *more: str) -> list[str]:
    file = folder / "labels.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return ["train", "text-classification", "--train", str(file), "--out", str(folder / "out"), *TINY, *more]


def test_a_useless_model_does_not_end_with_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    rows = [
        (" ".join(draw.choice(["red", "blue", "green", "pink"], 3)) + f" {i}", "ab"[i % 3 == 0]) for i in range(150)
    ]
    assert cli.main(classify(tmp_path, rows, "--max-steps", "2", "--training.lr", "1e-6")) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("verdict:"))
    told = json.loads((tmp_path / "out" / "heedful.json").read_text(encoding="utf-8"))["verdict"]
    assert told["kind"] in ("one class", "chance")
    assert told["useful"] is False
    assert told["text"] in line
    assert told["text"] in (tmp_path / "out" / "README.md").read_text("utf-8"), "the model card has it, too"
    table = out[out.index("verdict:") :].splitlines()
    assert table[1].strip() == "a linear SVM on words and character n-grams", (
        "the simple method stands in the last table"
    )
    assert len(next(line.split() for line in table if line.startswith("accuracy"))) == 3
    end = out.splitlines()[-1]
    assert end.startswith("next:")
    assert "predict" not in end
    assert "audit" in end or "--resume" in end
    assert cli.main(shlex.split(end[end.index("heedful ") :])[1:]) == 0


def test_a_good_model_is_better_than_guessing_and_ends_with_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing baseline takes nothing from the run: the guess stands in its place."""

    def fails(*_: object) -> None:
        raise RuntimeError("no baseline today")

    monkeypatch.setattr(TextClassification, "quick_baseline", fails)
    rows = [(f"{word} {i}", label) for i in range(300) for word, label in (("good", "a"), ("bad", "b"), ("fine", "a"))]
    part = ["--training.evaluate-examples", "40"]
    assert cli.main([*classify(tmp_path, rows, "--max-steps", "40", "--training.lr", "5e-3", *part), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    told = result["verdict"]
    assert (told["kind"], told["baseline"]["name"], told["remedy"]) == ("better", "the most frequent label", None)
    assert result["baseline"] == {"name": "the most frequent label", "metrics": {"accuracy": told["baseline"]["value"]}}
    assert told["difference"][0] > 0
    assert told["examples"] == 100, "all held-out rows, of which an evaluation has 40"
    rest = classify(tmp_path, rows, "--max-steps", "40", "--training.lr", "5e-3", *part, "--resume")
    assert cli.main(rest) == 0  # done already: the weights that were kept are measured again, to the same verdict
    assert capsys.readouterr().out.splitlines()[-1].startswith("next:")
    assert json.loads((tmp_path / "out" / "heedful.json").read_text(encoding="utf-8"))["verdict"] == told


def test_the_verdict_predicts_more_rows_than_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run, which has done all its steps, ends with the same verdict."""
    monkeypatch.setattr("heedful.training.validation.MAX_PREDICTED", 3)
    pairs = [(f"{word} {number}", number) for word in ("a", "the", "one") for number in "abcdefghijklmnop"]
    table = "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)
    (tmp_path / "pairs.tsv").write_text(table)
    command = ["train", "translation", "--train", str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "out")]
    small = ["--preset=transformer-tiny", "--model.depth=1", "--model.dim=16", "--model.heads=2"]
    options = [*command, *small, "--data.valid-fraction", "0.25", "--max-steps", "2", "--json"]
    verdicts = []
    for more in ([], ["--resume"]):
        assert cli.main([*options, *more]) == 0
        verdicts.append(json.loads(capsys.readouterr().out)["verdict"])
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["examples"] == 12
    assert verdicts[0]["useful"] is False


def test_language_models_and_numbers_have_their_rivals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    text = "\n".join(" ".join(draw.choice(["red", "blue", "green", "pink"], 8)) for _ in range(120))
    (tmp_path / "book.txt").write_text(text + "\n", encoding="utf-8")
    small = ["--preset=gpt-micro", "--model.depth=1", "--model.dim=16", "--model.heads=2", "--data.max-length=16"]
    command = ["train", "text-generation", "--train", str(tmp_path / "book.txt"), "--out", str(tmp_path / "book")]
    assert cli.main([*command, *small, "--max-steps", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    told = result["verdict"]
    assert result["baseline"]["name"] == "an n-gram model of the tokens (n = 3)"
    assert told["kind"] in ("chance", "below")  # three steps: no n-gram model is as bad
    assert told["metric"] == "loss"
    assert told["examples"] > 10  # windows, of one text
    assert told["value"] > told["baseline"]["value"]
    table = "".join(f"{word} {i}\t{value + i / 97}\n" for i in range(60) for word, value in (("good", 4), ("bad", 1)))
    (tmp_path / "scores.tsv").write_text("text\tscore\n" + table, encoding="utf-8")
    command = ["train", "text-classification", "--train", str(tmp_path / "scores.tsv"), "--out", str(tmp_path / "n")]
    more = ["--data.columns", "text,score", "--data.label-kind", "number", "--max-steps", "2", "--json"]
    assert cli.main([*command, *TINY, *more]) == 0
    told = json.loads(capsys.readouterr().out)["verdict"]
    assert (told["metric"], told["baseline"]["name"]) in {
        ("r2", "ridge regression on words and character n-grams"),
        ("r2", "the mean of the training labels"),
    }
    assert told["kind"] != "better"
