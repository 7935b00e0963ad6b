"""`heedful.train` and `heedful.evaluate`: from Python objects, with callbacks and parts of one's own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

    training = {**SMALL["training"], "clip": 0}
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
    whole = train(tmp_path / "whole", optimizer=Sgd)
    train(tmp_path / "run", optimizer=Sgd, max_steps=3)
    with pytest.raises(HeedfulError, match=r"custom optimizer \(.*Sgd\); resume it from Python"):
        train(tmp_path / "run", None, resume=True)
    assert cli.main(["train", "text-classification", "--train", "x", "--out", str(tmp_path / "run"), "--resume"]) == 2
    with pytest.raises(HeedfulError, match="began without a custom schedule"):
        train(tmp_path / "run", None, resume=True, optimizer=Sgd, schedule=rising)
    rest = train(tmp_path / "run", None, resume=True, optimizer=Sgd)
    assert same(weights(rest), weights(whole))


def test_an_own_objective_is_what_is_learned(tmp_path: Path) -> None:
    def halved(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["ids"], batch["mask"])
        return torch.nn.functional.cross_entropy(logits.float(), batch["labels"], reduction="sum") / 2

    plain = {**SMALL["training"], "label_smoothing": 0.0, "clip": 0}
    whole, half = (
        train(tmp_path / name, objective=objective, optimizer=Sgd, max_steps=1, training=plain)
        for name, objective in (("whole", None), ("half", halved))
    )
    assert half.history[0]["loss"] == approx(whole.history[0]["loss"] / 2)
    begun = train(tmp_path / "begun", optimizer=Sgd, schedule=lambda step, progress: 0.0, max_steps=1, training=plain)
    for name, weight in weights(begun).items():  # one step of plain gradient descent: half the loss, half the way
        torch.testing.assert_close(
            weights(half)[name] - weight, (weights(whole)[name] - weight) / 2, rtol=1e-3, atol=1e-6
        )


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
        ({"training": {"learning_rate": 1}}, "unknown setting 'training.learning_rate'"),
        ({"training": 3}, "training is of type int; give a dict"),
        ({"callbacks": [3]}, "has none of the methods on_begin"),
        ({"callbacks": [type("C", (), {"on_batch": print})()]}, "unknown method on_batch"),
        ({"model": 3, "preset": None}, "model is of type int"),
        ({"max_steps": 0}, "max-steps"),
    ],
)
def test_wrong_arguments_are_one_line_and_write_nothing(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as error:
        train(tmp_path / "run", **arguments)
    assert words in str(error.value)
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
    with pytest.raises(HeedfulError, match="has 36 rows of train data, but 48 were passed"):
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
assert (run.step, run.result["stopped_because"]) == (4, "callback")
"""


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
