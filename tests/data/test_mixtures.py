"""Mixtures of prompted sets: rows under templates, splits, mixing, errors, and a run from the file to the metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.cli.command_line import main
from heedful.data import Row, Rows, read, splits
from heedful.data.prediction_inputs import read_inputs
from heedful.data.split import split
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.settings import RunSettings
from heedful.tasks.run_data import train_and_validation_rows
from heedful.tasks.translation import Translation

PAIR = {"source": "text", "target": "text", "language": "tag?"}
WRITER = {"text": "document", "prompt": "text?", "completion": "text?"}
COLOURS = ("red", "blue", "green", "white")
SMALL: dict[str, Any] = {"model_settings": {"dim": 16, "heads": 2, "depth": 1}}
SETS = """
[[sets]]
name = "colours"
train = "colours.tsv"
test = "colours.tsv"
classes.label = ["red", "blue", "green", "white"]

[[sets.templates]]
name = "which"
answer_choices = "red ||| blue ||| green ||| white"
jinja = "Which colour? {{text}} ||| {{answer_choices[label]}}"

[[sets.templates]]
name = "is red"
answer_choices = "no ||| yes"
jinja = '''Is it red?
{{text}} |||
{{answer_choices[label == 0]}}'''

[[sets]]
name = "sums"
train = "sums.jsonl"

[[sets.templates]]
name = "first"
jinja = "{% if numbers|length > 1 %}First of {{numbers | join(' and ')}} ||| {{numbers[0]}}{% endif %}"
"""


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    rows = [f"a {COLOURS[i % 4]} ||| house {i % 30}\t{COLOURS[i % 4]}\n" for i in range(60)]
    (tmp_path / "colours.tsv").write_text("text\tlabel\n" + "".join(rows))
    numbers = [json.dumps({"numbers": list(range(i, i + 1 + i % 2))}) + "\n" for i in range(20)]
    (tmp_path / "sums.jsonl").write_text("".join(numbers))
    path = tmp_path / "mixture.toml"
    path.write_text(SETS)
    return path


def changed(mixture: Path, old: str, new: str) -> Path:
    text = mixture.read_text()
    assert old in text
    mixture.write_text(text.replace(old, new, 1))
    return mixture


def test_each_row_stands_under_each_template(mixture: Path) -> None:
    rows = read(mixture, PAIR)
    assert len(rows) == 2 * 60 + 10  # a number alone has no first
    assert splits(mixture) == ("train", "test")
    first, second = rows[:2]
    assert first.values == {
        "source": "Which colour? a red ||| house 0",  # the row's own bars are none of the template's
        "target": "red",
        "set": "colours",
        "template": "colours/which",
        "choices": COLOURS,
    }
    assert second.values["source"] == "Is it red?\na red ||| house 0"
    assert (second.values["target"], second.values["choices"]) == ("yes", ("no", "yes"))
    assert (first.file, first.line) == (second.file, second.line) == (str(mixture.parent / "colours.tsv"), 2)
    assert rows[-1].values["source"] == "First of 19 and 20"
    assert "choices" not in rows[-1].values
    assert rows.notes == [
        "colours: 120 rows under 2 templates",
        "sums: 10 rows under 1 template",
        "10 rows left out, for which a template writes nothing",
    ]
    assert len(read(mixture, PAIR, split="test")) == 120
    writer = read(mixture, WRITER)
    assert [row.values["completion"] for row in writer] == [row.values["target"] for row in rows]


def test_a_table_without_header(mixture: Path) -> None:
    lines = (mixture.parent / "colours.tsv").read_text().splitlines()[1:]
    (mixture.parent / "colours.tsv").write_text("".join(f"{i}\t{line}\n" for i, line in enumerate(lines)))
    changed(mixture, "classes.label", 'columns = ["number", "text", "label"]\nclasses.label')
    assert read(mixture, PAIR)[1].values["target"] == "yes"


def test_a_separator_begins_every_target(mixture: Path) -> None:
    rows = read(changed(mixture, "\n[[sets]]", 'separator = " "\n[[sets]]'), WRITER)
    assert rows[0].values["completion"] == " red"
    assert rows[0].values["choices"] == (" red", " blue", " green", " white")


def test_examples_and_equal_inputs_stay_on_one_side(mixture: Path) -> None:
    """Rows 0 and 30 differ, since the colours repeat every 4 rows and the houses every 30; with 60 they are equal."""
    lines = (mixture.parent / "colours.tsv").read_text()
    (mixture.parent / "colours.tsv").write_text(lines + lines.partition("\n")[2])
    rows = read(mixture, PAIR)
    for seed in range(5):
        train, valid = split(rows, 0.3, seed)
        assert len(train) + len(valid) == len(rows)
        for key in (lambda row: (row.file, row.line), lambda row: row.values["source"]):
            assert not {key(row) for row in train} & {key(row) for row in valid}
    assert split(rows, 0.3, 1) == split(rows, 0.3, 1) != split(rows, 0.3, 2)


def counts(rows: Rows) -> Counter[str]:
    return Counter(row.values["template"] for row in rows)


def test_sets_are_mixed_by_size_with_a_limit(mixture: Path) -> None:
    """min(n, limit / templates) of each template, as T0: 40 of 2 templates are 20 each."""
    rows = read(mixture, PAIR)
    assert rows.mix is not None
    assert rows.mix(rows, 0) == rows
    limited = read(changed(mixture, "\n[[sets]]", "limit = 40\n[[sets]]"), PAIR)
    mix = limited.mix
    assert mix is not None
    mixed = mix(limited, 0)
    assert counts(mixed) == {"colours/which": 20, "colours/is red": 20, "sums/first": 10}
    assert mixed == mix(limited, 0) != mix(limited, 1)
    assert mixed == sorted(mixed, key=limited.index)
    lines = [
        {row.line for row in mixed if row.values["template"] == name} for name in ("colours/which", "colours/is red")
    ]
    assert lines[0] != lines[1]  # a draw for each template
    turned = mix(Rows(reversed(limited)), 0)
    assert {id(row) for row in turned} == {id(row) for row in mixed}  # whatever the order of the file
    assert mixed.notes[-1] == "an epoch has 50 rows: colours 40, sums 10"


def test_sets_are_mixed_by_weight(mixture: Path) -> None:
    changed(mixture, 'name = "colours"', 'name = "colours"\nweight = 1')
    rows = read(changed(mixture, 'name = "sums"', 'name = "sums"\nweight = 3.0'), PAIR)
    assert rows.mix is not None
    mixed = rows.mix(rows, 0)
    assert Counter(row.values["set"] for row in mixed) == {"colours": 32, "sums": 98}
    times = Counter(row.line for row in mixed if row.values["set"] == "sums")
    assert {*times.values()} == {9, 10}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{text}} ||| {{ans", "{{txt}} ||| {{ans", r"no column 'txt' among 'text', 'label', in .*colours.tsv:1"),
        ("numbers[0]", "numbers[0] + x", r"there is no column 'x'; .*numbers.*, in .*sums.jsonl:2, for the template"),
        ("numbers[0]", "numbers['a'] + 1", r"in .*sums.jsonl:2, for the template 'first', in .*mixture.toml:26"),
        ("{{answer_choices[label]}}", "{{answer_choices[label]}", r"'which' is broken \(.*\), in .*mixture.toml:11"),
        ("{{answer_choices[label == 0]}}'''", "{{'''", r"'is red' is broken \(.*\), in .*mixture.toml:18"),
        (
            "{{answer_choices[label]}}",
            "{{''}}",
            r"'which' writes an empty target, in .*colours.tsv:2; .*mixture.toml:11",
        ),
        (" ||| {{answer_choices[label]}}", "", r"'which' writes an empty target: it writes no \|\|\|, in .*tsv:2"),
        ("{{answer_choices[label]}}", "grey", r"the target grey is none of the answer_choices red, blue.*tsv:2"),
        ('"no ||| yes"', '"no"', r"answer_choices of the template 'is red' are no, in .*colours.tsv:2"),
        ('"blue", ', "", r"'label' is blue, which is none of the classes red, green.* of the set colours, in .*tsv:3"),
        ('answer_choices = "no ||| yes"', "", r"reads answer_choices, but has none, in .*mixture.toml:16"),
        (
            'train = "colours.tsv"\ntest = "colours.tsv"',
            "",
            r"the set colours has no file, in .*mixture.toml; name one",
        ),
        ("classes.label", "klasses.label", r"unknown key 'klasses' in .*mixture.toml; .*classes"),
        ('name = "is red"', 'name = "which"', r"two templates of colours are named 'which'"),
        ('name = "sums"', 'name = "sums"\nweight = 1', "the set colours has no weight, but others have"),
        ("\n[[sets]]", "limit = 0\n[[sets]]", "limit in .* must be at least 1, not 0"),
        ("{{text}} ||| {{ans", "{{text.nothing()}} ||| {{ans", r"fails|nothing"),
        ("colours.tsv", "colour.tsv", r"colour.tsv"),
        (
            "{{text}}",
            "{{'x' * 300000000}}",
            r"'which' was stopped: .* above 100,000,000, in .*tsv:2; .*.toml:11",
        ),
        ("{{text}}", "{% macro m() %}{{m()}}{% endmacro %}{{m()}}", r"stopped: .* nested too deeply, in .*tsv:2"),
        ("{{text}}", "{{" + "(" * 500 + "1" + ")" * 500 + "}}", r"broken \(it is nested too deeply.*\), in .*toml:11"),
        ("{{text}}", "{{[1, 2] | random}}", r"broken \(No filter named 'random'.*\), in .*mixture.toml:11"),
    ],
)
def test_errors_name_file_and_line(mixture: Path, old: str, new: str, message: str) -> None:
    changed(mixture, old, new)
    with pytest.raises(HeedfulError, match=message):
        read(mixture, PAIR)


def test_a_mixture_takes_no_options_of_a_table(mixture: Path) -> None:
    for options, flag in (({"names": ["a", "b"]}, "columns"), ({"limit": 3}, "limit")):
        with pytest.raises(HeedfulError, match=f"--data.{flag} has no effect on a mixture"):
            read(mixture, PAIR, **options)
    with pytest.raises(HeedfulError, match="use a task that learns pairs of texts"):
        read(mixture, {"text": "text", "text_pair": "text?", "label": "label"})
    with pytest.raises(HeedfulError, match=r"no set of .* has a file for the split valid, only for train, test"):
        read(mixture, PAIR, split="valid")


def test_inputs_need_no_targets(mixture: Path) -> None:
    """Texts without labels are enough: the part before the bars alone is read."""
    (mixture.parent / "colours.tsv").write_text("text\na red house\n")
    items = list(read_inputs(str(mixture), {"source": "text"}))
    assert [item.input for item in items] == [
        {"source": "Which colour? a red house", "choices": list(COLOURS)},
        {"source": "Is it red?\na red house", "choices": ["no", "yes"]},
    ]
    assert items[0].location.endswith("colours.tsv:2")


@pytest.mark.parametrize("task", ["translation", "text-generation"])
def test_from_the_file_to_the_accuracy_of_each_template(
    task: str, mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = {"out": out, "max_steps": 4, "training": {"evaluate_every": 2, "warmup": 1}, "seed": 3, **SMALL}
    run = heedful.train(task, mixture, **options)
    assert 0 <= run.metrics["accuracy"] <= 100
    result = evaluate(str(out), [str(mixture)])
    assert result["examples"] == 120
    assert set(result["by_template"]) == {"colours/which", "colours/is red"}
    assert result["by_set"]["colours"]["accuracy"] == result["metrics"]["accuracy"]
    share = [result["by_template"][name] for name in ("colours/which", "colours/is red")]
    assert result["metrics"]["accuracy"] == pytest.approx(sum(one["accuracy"] for one in share) / 2)
    prompts = read(mixture, PAIR, split="test")
    pipe = heedful.pipeline(None, out)
    asked = [pipe(row.values["source"], choices=list(row.values["choices"]))["output"] for row in prompts[:8]]
    rows = evaluate(str(out), [str(mixture)], decoding={"normalise": "characters"})
    assert rows["metrics"]["loss"] == result["metrics"]["loss"]
    capsys.readouterr()
    assert main(["predict", str(out), "--in", str(mixture), "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["output"] for one in shown[:8]] == asked
    assert main(["evaluate", str(out), "--data", str(mixture)]) == 0
    assert "colours/is red" in capsys.readouterr().out
    assert main(["predict", str(out), "a red house", "--choices", "red,blue", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] in ("red", "blue")


@pytest.mark.parametrize("task", ["translation", "text-generation"])
def test_the_deciding_metric_is_that_of_the_validation_rows(task: str, mixture: Path, tmp_path: Path) -> None:
    """Only the training rows have choices, all of them, so that validation has no accuracy."""
    text = mixture.read_text()
    mixture.write_text(text[: text.rindex("[[sets]]")])
    pairs, names = tmp_path / "pairs.tsv", ("source", "target") if task == "translation" else ("prompt", "completion")
    pairs.write_text("\t".join(names) + "\n" + "a red house\tred\n" * 12)
    options = {"max_steps": 2, "training": {"evaluate_every": 1, "warmup": 1}, "quiet": True, **SMALL}
    run = heedful.train(task, mixture, valid=pairs, out=tmp_path / "run", **options)
    assert "accuracy" not in run.metrics
    assert run.metrics["loss"] > 0


def test_a_run_mixes_what_it_learns_after_the_split(mixture: Path) -> None:
    """Validation rows are neither drawn nor repeated, and the seed of the run draws."""
    changed(mixture, 'name = "colours"', 'name = "colours"\nweight = 1')
    changed(mixture, 'name = "sums"', 'name = "sums"\nweight = 9')
    seeds = [RunSettings(task="translation", train=(str(mixture),), out="x", seed=seed) for seed in (0, 0, 1)]
    (learned, held), again, other = (train_and_validation_rows(Translation, settings) for settings in seeds)
    assert max(Counter(row.line for row in learned if row.values["set"] == "sums").values()) > 8
    assert len(set(map(id, held))) == len(held)
    assert not {row.group for row in learned} & {row.group for row in held}
    assert (learned, held) == again != other
    given = RunSettings(task="translation", train=(str(mixture),), valid=(str(mixture),), out="x")
    with pytest.raises(HeedfulError, match=r"no set of .* has a file for the split valid"):
        train_and_validation_rows(Translation, given)
    changed(mixture, "test =", "valid =")
    learned, held = train_and_validation_rows(Translation, given)
    assert (len(learned), len(held)) == (130, 120)
    assert Counter(row.values["set"] for row in learned) == {"colours": 13, "sums": 117}


def stop_after_two(run: Any, *more: Any) -> None:
    if run.step == 2:
        run.stop("two steps are done")


def test_resuming_gives_the_same_bits(mixture: Path, tmp_path: Path) -> None:
    changed(mixture, "\n[[sets]]", "limit = 40\n[[sets]]")
    options = {"max_steps": 4, "training": {"save_every": 1, "warmup": 1, "evaluate_every": 4}, "seed": 3, **SMALL}
    whole = heedful.train("text-generation", mixture, out=tmp_path / "whole", **options)
    heedful.train("text-generation", mixture, out=tmp_path / "part", callbacks=[stop_after_two], **options)
    part = heedful.train("text-generation", mixture, out=tmp_path / "part", **options, resume=True)
    weights = [(Path(run.folder) / "model.safetensors").read_bytes() for run in (whole, part)]
    assert weights[0] == weights[1]


def test_choices_of_the_call_are_those_of_every_row(mixture: Path, tmp_path: Path) -> None:
    from answering_folders import saved

    folder, data = saved("translation", tmp_path / "model"), tmp_path / "pairs.tsv"
    data.write_text("source\ttarget\nthe pear\tfruit\nthe saw\ttool\nthe plum\tfruit\n")
    result = evaluate(str(folder), [str(data)], decoding={"choices": ["fruit", "tool"]})
    pipe = heedful.pipeline(None, folder)
    outputs = [one["output"] for one in pipe(["the pear", "the saw", "the plum"], choices=["fruit", "tool"])]
    right = sum(one == target for one, target in zip(outputs, ("fruit", "tool", "fruit"), strict=True))
    assert result["metrics"]["accuracy"] == pytest.approx(100 * right / 3)
    assert set(result["metrics"]) == {"accuracy", "loss"}
    with pytest.raises(
        HeedfulError, match=r"the target tool is none of the choices fruit, vegetable, in .*pairs.tsv:3"
    ):
        evaluate(str(folder), [str(data)], decoding={"choices": ["fruit", "vegetable"]})


def test_a_group_holds_rows_together() -> None:
    rows = [Row({"source": f"text {i}"}, "a.tsv", i, group=f"group {i // 5}") for i in range(50)]
    train, valid = split(rows, 0.2, 0)
    assert not {row.group for row in train} & {row.group for row in valid}
    assert len(valid) == 10
