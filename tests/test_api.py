"""`heedful.train` and `heedful.evaluate`: from Python objects, with callbacks and parts of one's own."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import heedful
from heedful import cli
from heedful.data import read
from heedful.errors import HeedfulError
from heedful.training.callbacks import TrainingRun
from tolerances import approx

WORDS = {"fruit": ["apple", "pear", "plum", "quince"], "tool": ["hammer", "saw", "chisel", "drill"]}
ROWS = [
    {"text": f"one {word} number {n}", "label": label} for label, ws in WORDS.items() for word in ws for n in range(6)
]
SMALL: dict[str, Any] = {
    "preset": "bert-tiny",
    "model_settings": {"dim": 16, "heads": 2, "depth": 1},
    "tokenizer": {"size": 200},
    "training": {"schedule": "constant", "warmup": 1, "log_every": 1, "evaluate_every": 3, "lr": 0.01},
    "max_steps": 6,
    "quiet": True,
}
FLAGS = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=200"]
FLAGS += ["--training.schedule=constant", "--training.warmup=1", "--training.log-every=1"]
FLAGS += ["--training.evaluate-every=3", "--training.lr=0.01", "--max-steps=6"]


def train(out: Path, data: Any = ROWS, **arguments: Any) -> TrainingRun:
    return heedful.train("text-classification", data, out=out, **{**SMALL, **arguments})


# the settings that have an effect beside an optimizer or a schedule of one's own
BESIDE_OPTIMIZER = {name: value for name, value in SMALL["training"].items() if name != "lr"}
BESIDE_BOTH = {name: value for name, value in BESIDE_OPTIMIZER.items() if name not in ("schedule", "warmup")}


def weights(run: TrainingRun, folder: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run.folder / folder / "model.safetensors")


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return train(tmp_path_factory.mktemp("api") / "run")


def test_a_run_from_rows_is_that_of_the_command_on_a_file(run: TrainingRun, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    command = ["train", "text-classification", "--train", str(file), "--out", str(tmp_path / "command"), *FLAGS]
    assert cli.main([*command, "--json"]) == 0
    assert same(load_file(tmp_path / "command" / "last" / "model.safetensors"), weights(run))
    written = json.loads((tmp_path / "command" / "heedful.json").read_text())
    ours = json.loads((run.folder / "heedful.json").read_text())
    assert written["data"]["sha256"] == ours["data"]["sha256"]
    assert written["metrics"] == ours["metrics"]


def test_a_run_has_metrics_history_model_and_pipeline(run: TrainingRun) -> None:
    assert run.task == "text-classification"
    assert set(run.metrics) >= {"loss", "accuracy"}
    assert [line["step"] for line in run.history] == [1, 2, 3, 4, 5, 6]
    assert (run.step, run.epoch > 0) == (6, True)
    assert run.loss == run.history[-1]["loss"]
    answers = run.pipeline(["one pear", "one saw"])
    assert [answer["input"] for answer in answers] == ["one pear", "one saw"]
    assert {answer["output"] for answer in answers} <= set(WORDS)
    assert same(dict(run.model.state_dict()), dict(heedful.from_pretrained(run.folder).state_dict()))
    assert "verdict" in run.result
    page = run._repr_html_()
    assert "<svg" in page
    assert "accuracy" in page
    assert repr(run).startswith("<run of text-classification in ")


def test_the_run_folder_is_one_of_the_command_line(run: TrainingRun, capsys: pytest.CaptureFixture[str]) -> None:
    table = run.folder / "data" / "train.jsonl"
    assert [dict(row.values) for row in read(table, {"text": "text", "label": "label"})] == ROWS
    assert cli.main(["evaluate", str(run.folder), "--data", str(table), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["examples"] == len(ROWS)
    assert result["trained_on"] == len(ROWS) - run.result["verdict"].get("examples", 0) or result["trained_on"] > 0


def test_evaluate_takes_rows_and_the_run(run: TrainingRun) -> None:
    rows = ROWS[::5]
    found = heedful.evaluate(run, rows, quiet=True)
    predictions = [answer["output"] for answer in run.pipeline([row["text"] for row in rows])]
    right = sum(a == row["label"] for a, row in zip(predictions, rows, strict=True))
    assert found["accuracy"] == approx(100 * right / len(rows))
    assert found["examples"] == len(rows)
    low, high = found["intervals"]["accuracy"]
    assert low <= found["accuracy"] <= high
    assert heedful.evaluate(str(run.folder), {"test": rows}, quiet=True)["loss"] == found["loss"]


def test_a_stopped_run_is_resumed_to_the_same_bits(run: TrainingRun, tmp_path: Path) -> None:
    def stop(run: TrainingRun) -> None:
        if run.step == 4:
            run.stop("enough seen")

    stopped = train(tmp_path / "run", callbacks=[stop])
    assert (stopped.step, stopped.result["stopped_because"]) == (4, "callback")
    rest = train(tmp_path / "run", None, resume=True)
    assert (rest.step, rest.result["stopped_because"]) == (6, "max_steps")
    assert same(weights(rest), weights(run))


def test_an_interrupted_run_is_resumed_from_python(run: TrainingRun, tmp_path: Path) -> None:
    def interrupt(run: TrainingRun) -> None:
        if run.step == 2:
            raise KeyboardInterrupt

    consumed = iter(ROWS)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", consumed, callbacks=[interrupt])
    assert list(consumed) == []
    rest = train(tmp_path / "run", iter(()), resume=True)  # the rows are those on disk
    assert rest.step == 6
    assert same(weights(rest), weights(run))


def test_callbacks_are_called_at_every_event(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Watch:
        def on_begin(self, run: TrainingRun) -> None:
            calls.append(("begin", run.step))
            assert run.loss is None
            assert isinstance(run.model, heedful.Encoder)

        def on_step(self, run: TrainingRun) -> None:
            calls.append(("step", run.step))
            assert math.isfinite(run.loss or math.nan)
            with pytest.raises(HeedfulError, match="a run that has ended"):
                run.pipeline("one pear")

        def on_evaluation(self, run: TrainingRun) -> None:
            calls.append(("evaluation", run.step))
            assert "accuracy" in run.metrics

        def on_save(self, run: TrainingRun) -> None:
            calls.append(("save", run.step))

        def on_end(self, run: TrainingRun) -> None:
            calls.append(("end", run.step))
            assert run.pipeline("one pear")["output"] in WORDS

    train(tmp_path / "run", callbacks=[Watch()])
    steps = [("step", n) for n in range(1, 7)]
    expected = [("begin", 0), *steps[:3], ("evaluation", 3), *steps[3:], ("evaluation", 6), ("end", 6)]
    assert [call for call in calls if call[0] != "save"] == expected
    assert {step for event, step in calls if event == "save"} >= {3, 6}
    assert calls[-2:] == [("save", 6), ("end", 6)]


def test_the_loss_of_a_step_is_that_of_the_log(tmp_path: Path) -> None:
    losses: list[float | None] = []
    run = train(tmp_path / "run", callbacks=[lambda run: losses.append(run.loss)])
    assert losses == [approx(line["loss"]) for line in run.history]


class Sgd(torch.optim.SGD):
    """Plain gradient descent, which keeps no state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.5)


def other_sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def rising(step: int, progress: float | None) -> float:
    return step / 10


def test_own_optimizer_and_schedule_make_the_steps(tmp_path: Path) -> None:
    before: list[dict[str, torch.Tensor]] = []
    gradients: list[dict[str, torch.Tensor]] = []

    class Watch:
        def on_begin(self, run: TrainingRun) -> None:
            before.append({name: p.detach().clone() for name, p in run.model.named_parameters()})

        def on_step(self, run: TrainingRun) -> None:
            before.append({name: p.detach().clone() for name, p in run.model.named_parameters()})
            gradients.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})

    training = {**BESIDE_BOTH, "clip": 0}
    run = train(tmp_path / "run", optimizer=Sgd, schedule=rising, callbacks=[Watch()], training=training)
    assert [line["lr"] for line in run.history] == [approx(0.5 * step / 10) for step in range(1, 7)]
    for step, gradient in enumerate(gradients):
        for name, value in gradient.items():
            expected = before[step][name] - 0.5 * (step + 1) / 10 * value
            torch.testing.assert_close(before[step + 1][name], expected)
    assert json.loads((run.folder / "heedful.json").read_text())["custom"] == {
        "optimizer": f"{__name__}.Sgd",
        "schedule": f"{__name__}.rising",
    }


def test_a_run_with_parts_of_its_own_resumes_only_with_them(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", optimizer=Sgd, training=BESIDE_OPTIMIZER)
    train(tmp_path / "run", optimizer=Sgd, max_steps=3, training=BESIDE_OPTIMIZER)
    with pytest.raises(HeedfulError, match=r"passed from Python: optimizer \(.*Sgd\); resume it there"):
        train(tmp_path / "run", None, resume=True)
    assert cli.main(["train", "text-classification", "--train", "x", "--out", str(tmp_path / "run"), "--resume"]) == 2
    with pytest.raises(HeedfulError, match="began without a custom schedule"):
        train(tmp_path / "run", None, resume=True, optimizer=Sgd, schedule=rising, training=BESIDE_BOTH)
    with pytest.raises(HeedfulError, match=r"began with the optimizer .*Sgd, not .*other_sgd; pass the same"):
        train(tmp_path / "run", None, resume=True, optimizer=other_sgd, training=BESIDE_OPTIMIZER)
    rest = train(tmp_path / "run", None, resume=True, optimizer=Sgd, training=BESIDE_OPTIMIZER)
    assert same(weights(rest), weights(whole))


def test_an_own_objective_is_what_is_learned(tmp_path: Path) -> None:
    def halved(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["ids"], batch["mask"])
        return torch.nn.functional.cross_entropy(logits.float(), batch["labels"], reduction="sum") / 2

    plain = {**BESIDE_OPTIMIZER, "label_smoothing": 0.0, "clip": 0}
    whole, half = (
        train(tmp_path / name, objective=objective, optimizer=Sgd, max_steps=1, training=plain)
        for name, objective in (("whole", None), ("half", halved))
    )
    assert half.history[0]["loss"] == approx(whole.history[0]["loss"] / 2)
    still = {**BESIDE_BOTH, "label_smoothing": 0.0, "clip": 0}
    begun = train(tmp_path / "begun", optimizer=Sgd, schedule=lambda step, progress: 0.0, max_steps=1, training=still)
    for name, weight in weights(begun).items():  # one step of plain gradient descent: half the loss, half the way
        torch.testing.assert_close(
            weights(half)[name] - weight, (weights(whole)[name] - weight) / 2, rtol=1e-3, atol=1e-6
        )


def test_an_own_objective_gets_each_example_once_in_fine_tuning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, fine-tuning on few examples passes them twice (R-Drop)."""
    train(tmp_path / "start", max_steps=1)

    def own(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["ids"], batch["mask"])
        return torch.nn.functional.cross_entropy(logits.float(), batch["labels"], reduction="sum")

    for name, objective, agreement in (("usual", None, 1.0), ("own", own, 0.0)):
        capsys.readouterr()
        common = {"model": str(tmp_path / "start"), "out": tmp_path / name, "max_steps": 1, "objective": objective}
        heedful.train("text-classification", ROWS, **common)
        assert f"r_drop = {agreement}\n" in (tmp_path / name / "run.toml").read_text(encoding="utf-8")
        assert ("each example passes twice" in capsys.readouterr().out) == (agreement > 0)


def test_own_metrics_are_logged_and_returned(tmp_path: Path) -> None:
    seen: list[tuple[list[Any], list[Any]]] = []

    def fruit(outputs: Any, expected: Any) -> float:
        seen.append((list(outputs), list(expected)))
        return sum(output == "fruit" for output in outputs) / len(outputs)

    run = train(tmp_path / "run", metrics={"fruit_share": fruit})
    logged = [line["valid_fruit_share"] for line in run.history if "valid_accuracy" in line]
    assert logged == [sum(o == "fruit" for o in outputs) / len(outputs) for outputs, _ in seen[:2]]
    assert "fruit_share" in run.metrics
    for outputs, expected in seen:
        assert set(expected) <= set(WORDS)
        assert len(outputs) == len(expected)


def test_validation_rows_and_splits_are_used(tmp_path: Path) -> None:
    held = [{"text": "one fig", "label": "fruit"}, {"text": "one file", "label": "tool"}]
    for number, (data, valid) in enumerate(((ROWS, held), ({"train": ROWS, "validation": held}, None))):
        run = train(tmp_path / str(number), data, valid=valid, max_steps=1)
        assert len(read(run.folder / "data" / "valid.jsonl", {"text": "text", "label": "label"})) == 2
        assert json.loads((run.folder / "heedful.json").read_text())["data"]["sha256"]
        assert run.result["settings"]["valid"] == [str(run.folder / "data" / "valid.jsonl")]


def test_a_loaded_model_is_fine_tuned_with_its_changed_weights(run: TrainingRun, tmp_path: Path) -> None:
    model = heedful.from_pretrained(run.folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    begun: list[dict[str, torch.Tensor]] = []

    class Begin:
        def on_begin(self, run: TrainingRun) -> None:
            begun.append({name: p.detach().clone() for name, p in run.model.named_parameters()})

    arguments = {key: value for key, value in SMALL.items() if key not in ("preset", "model_settings", "tokenizer")}
    tuned = heedful.train(
        "text-classification", ROWS, out=tmp_path / "run", model=model, callbacks=[Begin()], **arguments
    )
    assert same(begun[0], dict(model.named_parameters()))
    assert tuned.pipeline("one pear")["output"] in WORDS


def test_images_are_learned_from_arrays(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bright = [random.integers(150, 256, (8, 8), dtype=np.uint8) for _ in range(20)]
    dark = [random.integers(0, 100, (8, 8), dtype=np.uint8) for _ in range(20)]
    rows = [{"image": image, "label": "bright"} for image in bright] + [
        {"image": image, "label": "dark"} for image in dark
    ]
    run = heedful.train("image-classification", rows, out=tmp_path / "run", max_steps=30, quiet=True)
    assert run.pipeline([bright[0], dark[0]])[0]["output"] in ("bright", "dark")
    assert heedful.evaluate(run, rows, quiet=True)["accuracy"] > 90


def test_a_frame_and_an_endless_kind_of_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = train(tmp_path / "frame", pandas.DataFrame(ROWS), max_steps=1)
    assert len(run.history) == 1

    def rows() -> Iterator[dict[str, str]]:
        yield from ROWS

    assert same(weights(train(tmp_path / "rows", rows(), max_steps=1)), weights(run))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": None}, "data is missing"),
        ({"data": 3}, "data of type int cannot be read"),
        ({"trainning": {}}, "no argument 'trainning'; did you mean 'training'"),
        ({"max_step": 3}, "no argument 'max_step'; did you mean 'max_steps'"),
        ({"lr": 3}, "no argument 'lr'; write training={'lr': ...}"),
        ({"columns": ["a", "b"]}, "write data_settings={'columns': ...}"),
        ({"callbacks": [type("Stop", (), {"on_step": print})]}, "the callback Stop is a class; pass an object: Stop()"),
        ({"callbacks": [lambda: None]}, "is called with one argument, the run"),
        ({"optimizer": "adam"}, "give a function; the built-in ones are settings: training={'optimiser': ...}"),
        ({"optimizer": torch.optim.SGD, "training": {}}, "optimizer is called with the model"),
        ({"optimizer": lambda model: None, "training": {}}, "optimizer returned NoneType"),
        ({"optimizer": lambda model: None}, "lr has no effect beside your own optimizer"),
        ({"schedule": lambda step, progress: None, "training": {}}, "schedule returned NoneType for step 1"),
        ({"objective": lambda model, batch: 3.0}, "objective returned float"),
        ({"objective": lambda model, batch: model(batch["ids"])}, "objective returned a tensor of shape"),
        ({"metrics": [print]}, "metrics is of type list; give {name: function}"),
        ({"data": None, "resume": True}, "holds no run to resume; give data"),
        ({"data": [{"text": "a", "label": None}] * 3}, "in row 1 of the data"),
        ({"data": [{"a": "b"}] * 3}, 'data_settings={"columns": ["TEXT", "LABEL"]}'),
        ({"model": heedful.create("bert-tiny", seed=0), "preset": None}, "model was not loaded from a folder"),
        ({"training": {"learning_rate": 1}}, "unknown setting 'training.learning_rate'"),
        ({"training": 3}, "training is of type int; give a dict"),
        ({"callbacks": [3]}, "has none of the methods on_begin"),
        ({"callbacks": [type("C", (), {"on_batch": print})()]}, "unknown method on_batch"),
        ({"model": 3, "preset": None}, "model is of type int"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_wrong_arguments_are_one_line_and_write_nothing(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as error:
        train(tmp_path / "run", **arguments)
    assert words in str(error.value)
    assert "--" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_empty_is_never_written_in(run: TrainingRun, tmp_path: Path) -> None:
    before = sorted(path.name for path in run.folder.iterdir())
    with pytest.raises(HeedfulError, match="resume=True continues the run"):
        train(run.folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(HeedfulError, match="not empty"):
        train(tmp_path / "mine")
    with pytest.raises(HeedfulError, match="not the folder of a heedful run"):
        train(tmp_path / "mine", overwrite=True)
    assert sorted(path.name for path in run.folder.iterdir()) == before
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_run_is_replaced_with_its_data(tmp_path: Path) -> None:
    train(tmp_path / "run", {"train": ROWS, "validation": ROWS[:4]}, max_steps=1)
    run = train(tmp_path / "run", ROWS[6:42], max_steps=1, overwrite=True)
    assert len((run.folder / "data" / "train.jsonl").read_text().splitlines()) == 36
    assert run.result["settings"]["valid"] is None
    with pytest.raises(HeedfulError, match="the rows of train data are not those that the run"):
        train(tmp_path / "run", ROWS, resume=True)


SCRIPT = f"""
import heedful, sys
rows = {ROWS!r}

class Stop:
    def on_step(self, run):
        print("step", run.step, flush=True)
        if run.step == 4:
            run.stop()

run = heedful.train("text-classification", iter(rows), out=sys.argv[1], callbacks=[Stop()], **{SMALL!r})
if (run.step, run.result["stopped_because"]) != (4, "callback"):
    sys.exit(f"step {{run.step}}, stopped because of {{run.result['stopped_because']}}")
"""


@pytest.mark.full
def test_two_processes_train_on_rows_and_stop_together(run: TrainingRun, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*launch, str(script), str(tmp_path / "run")], capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split() == ["step", "1", "step", "2", "step", "3", "step", "4"]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses == [approx(line["loss"]) for line in run.history[:4]]


def test_a_new_folder_may_be_overwritten_and_a_failed_callback_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert train(tmp_path / "empty", max_steps=1, overwrite=True).step == 1
    assert train(tmp_path / "new", max_steps=1, overwrite=True).step == 1

    def broken(run: TrainingRun) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        train(tmp_path / "run", callbacks=broken)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="broken"):
        train(tmp_path / "new", callbacks=broken, resume=True, max_steps=3)
    assert (tmp_path / "new" / "run.toml").is_file()


def test_columns_with_other_names_are_guessed_or_named(run: TrainingRun, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS).rename(columns={"text": "review", "label": "stars"})
    guessed = train(tmp_path / "guessed", frame)
    named = train(tmp_path / "named", frame, data_settings={"columns": ["review", "stars"]})
    assert same(weights(guessed), weights(run))
    assert same(weights(named), weights(run))
    assert heedful.evaluate(guessed, frame, quiet=True)["examples"] == len(ROWS)
    assert heedful.evaluate(run, frame, columns=["review", "stars"], quiet=True)["examples"] == len(ROWS)
    assert [a["output"] for a in guessed.pipeline(frame["review"][:3])] == [
        guessed.pipeline(text)["output"] for text in frame["review"][:3]
    ]


def test_paths_of_images_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    rows = []
    for number in range(12):
        shade = 30 if number % 2 else 220
        Image.new("L", (8, 8), shade + number).save(tmp_path / "pictures" / f"{number}.png")
        rows.append({"image": f"pictures/{number}.png", "label": "dark" if number % 2 else "light"})
    made = heedful.train("image-classification", rows, out="run", max_steps=1, quiet=True)
    assert heedful.evaluate(made, rows, quiet=True)["examples"] == 12


def test_a_moved_run_finds_its_rows(run: TrainingRun, tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps=3)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert same(weights(train(tmp_path / "moved", None, resume=True)), weights(run))


def test_other_rows_do_not_continue_a_run(tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps=1)
    others = [{**row, "text": row["text"] + " more"} for row in ROWS]
    with pytest.raises(HeedfulError, match="the rows of train data are not those that the run"):
        train(tmp_path / "run", others, resume=True)
    assert train(tmp_path / "run", list(ROWS), resume=True, max_steps=2).step == 2


def test_the_history_has_the_evaluation_that_a_callback_sees(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch:
        def on_evaluation(self, run: TrainingRun) -> None:
            seen.append((run.history[-1]["step"], run.history[-1]["valid_loss"] == run.metrics["loss"]))
            run.stop()

    made = train(tmp_path / "run", callbacks=Watch())
    assert seen == [(3, True)]
    assert made.step == 3
    assert made.loss == approx(made.history[-1]["loss"])
    assert made.verdict == made.result["verdict"]["text"]


def test_metrics_must_be_given_again_on_resuming(tmp_path: Path) -> None:
    metrics = {"share": lambda outputs, expected: 0.5}
    train(tmp_path / "run", max_steps=1, metrics=metrics)
    with pytest.raises(HeedfulError, match=r"parts that were passed from Python: metrics \(share\)"):
        train(tmp_path / "run", None, resume=True, max_steps=2)
    assert train(tmp_path / "run", None, resume=True, max_steps=2, metrics=metrics).metrics["share"] == 0.5


def test_a_metric_that_is_no_number_or_has_a_known_name_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="the metric 'share' returned NoneType; return a number"):
        train(tmp_path / "a", metrics={"share": lambda outputs, expected: None})
    with pytest.raises(HeedfulError, match="text-classification has a metric 'accuracy' already"):
        train(tmp_path / "b", metrics={"accuracy": lambda outputs, expected: 1.0})


# ------------------------------------------------------------------------------------------------ a model of one's own


def test_a_configuration_is_a_preset(tmp_path: Path) -> None:
    config = heedful.presets.get("bert-tiny")
    config = replace(config, encoder=replace(config.encoder, dim=48, heads=3, ff_dim=96, gated=True))
    options: dict[str, Any] = {"out": tmp_path / "run", "quiet": True, "deterministic": True}
    run = heedful.train("text-classification", ROWS, preset=config, max_steps=2, **options)
    assert run.model.config.encoder.gated
    assert (run.model.config.encoder.dim, run.model.config.head.labels) == (48, 2)
    assert "deterministic = true" in (tmp_path / "run" / "run.toml").read_text(encoding="utf-8")
    other = replace(config, encoder=replace(config.encoder, gated=False))
    with pytest.raises(HeedfulError, match="preset is not the configuration that the run in"):
        heedful.train("text-classification", preset=other, resume=True, max_steps=4, **options)
    assert heedful.train("text-classification", preset=config, resume=True, max_steps=4, **options).step == 4
    run = heedful.train("text-classification", ROWS, preset=other, overwrite=True, max_steps=2, **options)
    assert not run.model.config.encoder.gated
    file = tmp_path / "own.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    command = ["train", "text-classification", f"--train={table}", f"--preset={file}", "--max-steps=1"]
    assert cli.main([*command, f"--out={tmp_path / 'command'}"]) == 0
    assert heedful.from_pretrained(tmp_path / "command").config.encoder.gated


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        (3, "preset is of type int; give the name"),
        ("absent.json", "cannot read absent.json"),
        ("bert-tin", "did you mean 'bert-tiny'"),
        ({"kind": "stack", "dim": 4, "depth": 1, "heads": 1}, "holds a configuration of kind 'stack'"),
        ({"kind": "encoder", "dims": 4}, "unknown key 'dims'"),
        ([1], "holds no JSON object"),
    ],
)
def test_a_wrong_preset_is_one_line(preset: Any, words: str, tmp_path: Path) -> None:
    if isinstance(preset, dict | list):
        (tmp_path / "own.json").write_text(json.dumps(preset), encoding="utf-8")
        preset = tmp_path / "own.json"
    with pytest.raises(HeedfulError, match=re.escape(words)):
        heedful.train("text-classification", ROWS, out=tmp_path / "run", preset=preset, max_steps=1, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_an_argument(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="unknown recipe 'no-such'"):
        heedful.train("translation", ROWS, out=tmp_path / "run", recipe="no-such", quiet=True)


def test_the_lines_of_a_run_go_to_a_logger_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "heedful.training")
    train(tmp_path / "run", quiet=False)
    logged = [record.message for record in caplog.records if record.name == "heedful.training"]
    captured = capsys.readouterr()
    printed = [line for line in captured.out.splitlines() if line]
    assert [line for line in logged if not line.startswith("step ")] == printed
    steps = [line for line in captured.err.splitlines() if line.startswith("step ") and "evaluating" not in line]
    assert [line for line in logged if line.startswith("step ")] == steps
    assert len(steps) >= 6
    caplog.clear()
    train(tmp_path / "quiet")
    assert [record for record in caplog.records if record.name == "heedful.training"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("limits", "every"),
    [({"max_steps": 6}, 1), ({"max_steps": 60}, 3), ({"max_epochs": 4}, 2), ({"max_steps": 60, "max_epochs": 4}, 2)],
)
def test_a_short_run_has_lines_enough_for_a_curve(limits: dict[str, int], every: int, tmp_path: Path) -> None:
    training = {"lr": 0.01, "batch_size": 4, "accumulate": 1, "evaluate_every": 100}
    run = train(tmp_path / "run", training=training, **{"max_steps": None, **limits})
    assert f"log_every = {every}\n" in (tmp_path / "run" / "run.toml").read_text(encoding="utf-8")
    assert [line["step"] for line in run.history][:3] == [every, 2 * every, 3 * every]


def test_a_given_number_of_steps_between_lines_stays(tmp_path: Path) -> None:
    train(tmp_path / "run", training={"lr": 0.01, "log_every": 4})
    assert "log_every = 4\n" in (tmp_path / "run" / "run.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"validation_data": ROWS}, "write valid=..."),
        ({"early_stopping": 3}, "write training={'patience': ...}"),
        ({"validation_split": 0.2}, "write data_settings={'valid_fraction': ...}"),
        ({"epochs": 3}, "write max_epochs=..."),
        ({"training": {"learning_rate": 1e-3}}, "did you mean 'training.lr'?"),
        ({"training": {"num_train_epochs": 3}}, "did you mean 'max_epochs'?"),
        ({"model_settings": {"num_hidden_layers": 3}}, "did you mean 'model.depth'?"),
        ({"model_settings": {"hidden_size": 3}}, "did you mean 'model.dim'?"),
        ({"training": {"early_stopping_patience": 3}}, "did you mean 'training.patience'?"),
    ],
)
def test_names_of_other_libraries_are_answered(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=re.escape(words)):
        heedful.train("text-classification", ROWS, out=tmp_path / "run", quiet=True, **arguments)


def test_a_table_as_input_names_a_column(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = train(tmp_path / "run", max_steps=1)
    with pytest.raises(HeedfulError, match="the model takes one text; give a column, such as 'text'"):
        run.pipeline(pandas.DataFrame(ROWS[:2]))
    assert len(run.pipeline(pandas.DataFrame(ROWS[:2])["text"])) == 2


def test_all_missing_parts_of_a_resumed_run_are_named(tmp_path: Path) -> None:
    def flat(step: int, progress: float | None) -> float:
        return 1.0

    def count(outputs: Any, expected: Any) -> float:
        return len(outputs)

    parts: dict[str, Any] = {"schedule": flat, "metrics": {"count": count}}
    training = {"lr": 0.01, "evaluate_every": 3, "log_every": 1}
    train(tmp_path / "run", training=training, **parts)
    with pytest.raises(HeedfulError, match=r"metrics \(count\), schedule .*metrics=..., schedule=...\)"):
        train(tmp_path / "run", None, resume=True, training=training, max_steps=8)
    flat.__module__, flat.__qualname__ = "__main__", "flat"  # a function of a module that was one of a script
    assert train(tmp_path / "run", None, resume=True, training=training, max_steps=8, **parts).step == 8


def test_a_function_that_moved_out_of_a_script_is_the_same() -> None:
    from heedful.training.loop_parts import _is_same

    assert _is_same("__main__.warm", "schedules.warm")
    assert _is_same("mine.Rates.step", "__main__.Rates.step")
    assert not _is_same("__main__.Rates.step", "mine.Others.step")
    assert not _is_same("mine.warm", "schedules.warm")
