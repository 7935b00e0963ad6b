"""Reading of runs while they are written: every whole line once, and no part of one."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful import tasks
from heedful.errors import HeedfulError
from heedful.serving import runs as reading
from heedful.serving.runs import Curve, Runs, WatchedRun, runs_below
from heedful.settings import RunSettings, TrainingSettings, to_toml
from heedful.tasks import TASKS
from heedful.training.log import Log
from tolerances import approx


def begun(folder: Path, **settings: Any) -> Path:
    folder.mkdir(parents=True)
    asked = {"task": "translation", "preset": "transformer-tiny", "train": ("a",), "out": str(folder), "max_steps": 100}
    (folder / "run.toml").write_text(to_toml(RunSettings(**(asked | settings))), encoding="utf-8")
    (folder / "metrics.jsonl").touch()
    return folder


def age(folder: Path, name: str, seconds: float) -> None:
    time = (folder / name).stat().st_mtime - seconds
    os.utime(folder / name, (time, time))


def only(runs: Runs, known: str = "") -> dict[str, Any]:
    (one,) = runs.as_dict(known)["runs"]
    return one


def test_the_verdict_is_that_of_the_best_weights(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    card, runs = folder / "heedful.json", Runs([str(tmp_path)])
    text = "has not learned more than one text for all inputs: bleu 0.03 against 0.5"
    told = {"kind": "chance", "text": text, "useful": False, "value": 0.03, "baseline": {"name": "one text"}}
    assert only(runs)["verdict"] is None, "a running run, or one of an early version"
    card.write_text(json.dumps({"task": "translation", "verdict": told}), encoding="utf-8")
    assert only(runs)["verdict"] == {"kind": "chance", "text": text, "useful": False}
    card.write_text(json.dumps({"task": "translation"}), encoding="utf-8")  # better weights of a resumed run
    assert only(runs)["verdict"] is None
    for damaged in ("", "{", "[]", '{"verdict": 3}', '{"verdict": {"text": 3}}'):
        card.write_text(damaged, encoding="utf-8")
        assert (only(runs)["verdict"], only(runs)["state"]) == (None, "running")


def test_a_log_that_training_writes_is_read_as_it_grows(tmp_path: Path) -> None:
    """Against reading the whole file anew: after each line, an evaluation that joins a line among them."""
    folder = begun(tmp_path / "run")
    runs, drawn = Runs([str(tmp_path)]), random.Random(0)
    with Log(folder / "metrics.jsonl", quiet=True) as log:
        log.begin(0)
        for step in range(5, 60, 5):
            log.write({"step": step, "loss": drawn.random(), "lr": 0.1, "seconds": float(step)})
            runs.as_dict()
            if step % 15 == 0:
                log.write({"step": step, "valid_loss": drawn.random(), "valid_bleu": drawn.random()})
            told = only(runs)
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for name, key in (("training", "loss"), ("validation", "valid_loss"), ("rate", "lr")):
                points = [(line["step"], line[key]) for line in lines if key in line]
                assert [x for x, _ in told["curves"][name]] == [x for x, _ in points]
                assert [y for _, y in told["curves"][name]] == approx([y for _, y in points], "gradient")
            assert (told["step"], told["loss"]) == (step, lines[-1]["loss"])
            best = max(
                (line for line in lines if "valid_bleu" in line), key=lambda one: one["valid_bleu"], default=None
            )
            assert told["best"] == (best and {"metric": "BLEU", "value": best["valid_bleu"], "step": best["step"]})


def test_only_what_is_new_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    whole = reading._parsed
    monkeypatch.setattr(reading, "_parsed", lambda text: (parsed.append(text), whole(text))[1])
    folder = begun(tmp_path / "run")
    log = folder / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(200)]
    log.write_text("".join(lines[:100]))
    runs = Runs([str(tmp_path)])
    runs.as_dict()
    assert len(parsed) == 100
    parsed.clear()
    runs.as_dict()
    assert parsed == []
    with log.open("a") as file:
        file.write("".join(lines[100:103]) + lines[103][:9])
    assert only(runs)["step"] == 102
    assert len(parsed) == 4  # three, and the last one before them, which might have been joined
    with log.open("a") as file:
        file.write(lines[103][9:])
    assert only(runs)["step"] == 103


@pytest.mark.parametrize(
    "spoilt", ["no JSON", "[1, 2]", '{"loss": 1}', '{"step": "seven"}', '{"step": NaN}', "\x00\x00", ""]
)
def test_lines_that_are_none_are_passed_over(tmp_path: Path, spoilt: str) -> None:
    folder = begun(tmp_path / "run")
    lines = [
        '{"step": 1, "loss": 3.0}',
        spoilt,
        '{"step": 2, "loss": null, "lr": Infinity}',
        '{"step": 3, "loss": 2.0}',
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    told = only(Runs([str(tmp_path)]))
    assert told["curves"] == {"training": [[1, 3.0], [3, 2.0]], "validation": [], "rate": []}


def test_a_run_begun_anew_or_taken_up_is_read_anew(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 10)))
    runs = Runs([str(tmp_path)])
    assert only(runs)["step"] == 9
    with Log(log, quiet=True) as writer:
        writer.begin(4)  # as a run that goes on from its checkpoint
        assert only(runs)["step"] == 4
        writer.write({"step": 5, "loss": 2.0})
        assert only(runs)["curves"]["training"] == [[1, 1], [2, 1], [3, 1], [4, 1], [5, 2]]
    log.write_text('{"step": 1, "loss": 7.0}\n')  # in place, and shorter
    assert only(runs)["curves"]["training"] == [[1, 7]]
    (folder / "run.toml").unlink()
    assert runs.as_dict()["runs"] == []


def test_new_curves_are_announced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (begun(tmp_path / name) / "metrics.jsonl").write_text('{"step": 1, "loss": 7.0}\n')
    runs = Runs([str(tmp_path)])
    first = runs.as_dict()
    assert all("curves" in one for one in first["runs"])
    assert not any("curves" in one for one in runs.as_dict(first["version"])["runs"])
    with (tmp_path / "a" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 2, "loss": 6.0}\n')
    assert ["curves" in one for one in sorted(runs.as_dict(first["version"])["runs"], key=lambda one: one["name"])] == [
        True,
        False,
    ]
    for stranger in ("", "other-5", "-", f"{runs.server_id}-x", f"{runs.server_id}"):  # of another server, or spoilt
        assert all("curves" in one for one in runs.as_dict(stranger)["runs"])


def test_a_curve_is_bounded_and_keeps_its_mean() -> None:
    drawn = random.Random(0)
    for count in (1, 499, 500, 501, 502, 10_007):
        curve, values = Curve(), [drawn.gauss(0, 1) for _ in range(count)]
        for step, value in enumerate(values):
            curve.add(step, value)
        points = curve.points()
        assert min(count, 250) <= len(points) <= 500
        assert sum(y * n for (_, y), (_, _, n) in zip(points, curve.groups, strict=True)) == pytest.approx(sum(values))
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        size = curve.size
        assert points[0] == pytest.approx((sum(range(size)) / size, math.fsum(values[:size]) / size))


@pytest.mark.parametrize("count", [600])
def test_long_runs_are_small_to_send(tmp_path: Path, count: int) -> None:
    lines = "".join(f'{{"step": {i}, "loss": {1 / (i + 1)}, "lr": 0.001, "valid_loss": 0.5}}\n' for i in range(count))
    (begun(tmp_path / "run") / "metrics.jsonl").write_text(lines)
    curves = only(Runs([str(tmp_path)]))["curves"]
    assert all(len(points) <= 501 for points in curves.values())


def test_where_a_run_stands(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    runs = Runs([str(tmp_path)])
    assert (only(runs)["state"], only(runs)["step"], only(runs)["seconds_left"]) == ("running", 0, None)  # no line yet
    log = folder / "metrics.jsonl"
    lines = [{"step": 10, "seconds": 100.0, "images_per_second": 70.0}, {"step": 25, "seconds": 250.0, "loss": 1.0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = only(runs)
    assert (told["state"], told["share"], told["unit"], told["speed"]) == ("running", 0.25, "images", 70.0)
    assert told["seconds_left"] == pytest.approx(750, abs=5)
    age(folder, "metrics.jsonl", 590)  # its lines are 150 s apart
    assert only(runs)["state"] == "running"
    assert only(runs)["seconds_left"] == pytest.approx(160, abs=5)
    age(folder, "metrics.jsonl", 20)
    assert (only(runs)["state"], only(runs)["seconds_left"]) == ("stopped", None)
    (folder / "last").mkdir()
    (folder / "last" / "heedful.json").touch()  # written when all is done
    assert (only(runs)["state"], only(runs)["share"]) == ("done", 1.0)
    with log.open("a") as file:
        file.write('{"step": 130, "seconds": 1300.0}\n')  # taken up again, with a later limit than it was begun with
    age(folder, "last/heedful.json", 5)
    assert (only(runs)["state"], only(runs)["share"], only(runs)["seconds_left"]) == ("running", None, None)


@pytest.mark.parametrize(
    ("limits", "line", "share"),
    [
        ({"max_steps": 10}, {"step": 5}, 0.5),
        ({"max_steps": 10, "max_epochs": 10}, {"step": 2, "epoch": 9.0}, 0.9),
        ({"max_steps": None, "max_minutes": 2.0}, {"step": 2, "seconds": 30.0}, 0.25),
        (
            {"max_steps": None, "max_minutes": 2.0, "training": TrainingSettings(planned_steps=8)},
            {"step": 2, "seconds": 60.0},
            0.25,
        ),
        ({"max_steps": None}, {"step": 5}, None),
    ],
)
def test_the_share_of_a_run_that_is_done(
    tmp_path: Path, limits: dict[str, Any], line: dict[str, Any], share: float | None
) -> None:
    folder = begun(tmp_path / "run", **limits)
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert only(Runs([str(tmp_path)]))["share"] == share


def test_a_whole_run_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from heedful import cli

    pairs = "".join(f"one {a} {b}\t{b} {a}\n" for a in "abcdefg" for b in "vwxyz")
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + pairs)
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300", "--max-steps=2"]
    out = tmp_path / "runs" / "mine"
    assert cli.main(["train", "translation", "--train", str(tmp_path / "pairs.tsv"), "--out", str(out), *small]) == 0
    capsys.readouterr()
    assert cli.main(["watch", str(tmp_path / "runs"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert (told["name"], told["task"], told["state"], told["step"]) == ("mine", "translation", "done", 2)
    assert told["model"] == "transformer-tiny"
    assert told["pages"] == ["curve.svg"]
    last, log = (out / name for name in ("last/heedful.json", "metrics.jsonl"))
    assert last.stat().st_mtime_ns >= log.stat().st_mtime_ns  # by which a run that ends before its limits is done


def test_runs_are_found_at_any_depth_and_named_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "deep/er/two", "one/last/three", ".hidden/four", "other/five"):
        begun(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert {path.relative_to(tmp_path).as_posix() for path in runs_below(tmp_path)} == {
        "one",
        "deep/er/two",
        "other/five",
    }
    monkeypatch.chdir(tmp_path)
    names = lambda *folders: {one["name"] for one in Runs(folders).as_dict()["runs"]}  # noqa: E731
    assert names("deep") == {"er/two"}
    assert names("deep/", "other") == {"deep/er/two", "other/five"}
    assert names("one") == {"one"}
    assert names(".", "one") == {"one", "deep/er/two", "other/five"}
    for missing in ("nowhere", "one/run.toml"):
        with pytest.raises(HeedfulError, match=missing):
            Runs([missing])


def test_a_spoilt_settings_file_hides_nothing_else(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    (folder / "run.toml").write_text("task = ")
    (folder / "metrics.jsonl").write_text('{"step": 5, "loss": 2.0}\n')
    told = only(Runs([str(tmp_path)]))
    assert (told["task"], told["model"], told["share"], told["loss"], told["best"]) == (None, None, None, 2.0, None)


def fifo(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no FIFOs here")
    path.unlink()
    os.mkfifo(path)


DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a deep line": (lambda run: (run / "metrics.jsonl").write_text("[" * 300_000 + "\n"), "metrics.jsonl"),
    "a deep line that parses": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "a": ' + "[" * 300 + "]" * 300 + "}\n"),
        "metrics.jsonl",
    ),
    "a long number": (lambda run: (run / "metrics.jsonl").write_text('{"step":1' + "0" * 400 + "}\n"), "metrics.jsonl"),
    "a huge number": (lambda run: (run / "metrics.jsonl").write_text('{"step": 1e308}\n' * 3), "metrics.jsonl"),
    "an endless line": (
        lambda run: (run / "metrics.jsonl").write_bytes(b"0" * ((1 << 24) + (1 << 22))),
        "a line of more",
    ),
    "20 GB of holes": (lambda run: os.truncate(run / "metrics.jsonl", 20 << 30), "more than .* new bytes"),
    "no step": (lambda run: (run / "metrics.jsonl").write_text('{"loss": 1}\n'), "has no step"),
    "no UTF-8": (lambda run: (run / "metrics.jsonl").write_bytes(b'{"step": "\xff"}\n'), "metrics.jsonl"),
    "a FIFO for a log": (lambda run: fifo(run / "metrics.jsonl"), "metrics.jsonl is not a regular file"),
    "a folder for a log": (
        lambda run: (run / "metrics.jsonl").unlink() or (run / "metrics.jsonl").mkdir(),
        "metrics.jsonl is not a regular file",
    ),
    "a FIFO for settings": (lambda run: fifo(run / "run.toml"), "run.toml is not a regular file"),
    "empty settings": (lambda run: (run / "run.toml").write_text(""), "run.toml is damaged .*'task' is missing"),
    "a part of the settings": (lambda run: (run / "run.toml").write_text('task = "x"'), "'train' is missing"),
    "deep settings": (lambda run: (run / "run.toml").write_text("a=" + "[" * 900), "run.toml"),
    "deep tables": (lambda run: (run / "run.toml").write_text("[" + "a." * 900 + "a]"), "run.toml"),
    "a table for a list": (
        lambda run: (run / "run.toml").write_text('task = "x"\nout = "y"\n[train]\na = 1'),
        "run.toml is damaged .*--train must be",
    ),
    "a long number in the settings": (
        lambda run: (run / "run.toml").write_text('task = "x"\ntrain = ["a"]\nout = "y"\nmax_epochs = 1' + "0" * 400),
        "run.toml",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGED.values(), ids=DAMAGED)
def test_one_damaged_run_hides_no_other(
    tmp_path: Path, damage: Callable[[Path], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from heedful import cli

    for name in ("bad", "good"):
        (begun(tmp_path / name) / "metrics.jsonl").write_text('{"step": 5, "loss": 2.0}\n')
    runs = Runs([str(tmp_path)])
    assert [one["state"] for one in runs.as_dict()["runs"]] == ["running", "running"]
    damage(tmp_path / "bad")
    for path in (tmp_path / "bad").iterdir():
        os.utime(path, (1e9, 1e9))  # another time than it was read at
    runs.as_dict()
    for told in (runs.as_dict(), Runs([str(tmp_path)]).as_dict()):
        good, bad = sorted(told["runs"], key=lambda one: one["state"] == "unreadable")
        assert (good["name"], good["state"], good["reason"], good["loss"]) == ("good", "running", None, 2.0)
        assert (bad["name"], bad["state"]) == ("bad", "unreadable")
        assert re.search(said, bad["reason"])
        assert "\n" not in bad["reason"]
    assert cli.main(["watch", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert sorted(one["state"] for one in printed["runs"]) == ["running", "unreadable"]


def test_a_run_that_was_mended_is_readable_again(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    settings, log = (folder / "run.toml").read_text(), folder / "metrics.jsonl"
    runs = Runs([str(tmp_path)])
    for path, damaged, whole in ((folder / "run.toml", "", settings), (log, "nothing\n", '{"step": 1}\n')):
        path.write_text(damaged)
        assert only(runs)["state"] == "unreadable"
        path.unlink()
        path.write_text(whole)
        assert (only(runs)["state"], only(runs)["reason"]) == ("running", None)


def test_unreadable_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser may read everything, so that the refusal is made up."""
    begun(tmp_path / "run")
    runs, whole = Runs([str(tmp_path)]), Path.open

    def refused(self: Path, *how: Any, **more: Any) -> Any:
        if self.name == "metrics.jsonl":
            raise PermissionError(13, "Permission denied", str(self))
        return whole(self, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        assert (only(runs)["state"], only(runs)["reason"]) == ("unreadable", "Permission denied")
    assert (only(runs)["state"], only(runs)["reason"]) == ("running", None)


def test_files_of_a_run_for_a_browser(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    (tmp_path / "secret.html").write_text("secret")
    for name in ("curve.svg", "watch.html", "mistakes.png", "notes.txt", ".hidden.html"):
        (folder / name).write_text(name)
    (folder / "leads_out.html").symlink_to(tmp_path / "secret.html")
    (folder / "folder.html").mkdir()
    runs = Runs([str(tmp_path)])
    assert only(runs)["pages"] == ["curve.svg", "mistakes.png", "watch.html"]
    number = only(runs)["id"]
    assert runs.file(number, "watch.html") == folder / "watch.html"
    for name in ("../secret.html", "leads_out.html", "notes.txt", "run.toml", ".hidden.html", "folder.html", "", "."):
        assert runs.file(number, name) is None, name
    assert runs.file(number + 1, "watch.html") is None


def test_a_run_that_goes_while_it_is_looked_at(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    run = WatchedRun(folder, "run")
    run.update()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        run.update()


def test_the_metric_that_decides_is_each_task_s() -> None:
    for name, entry in TASKS.items():
        assert tasks.get(name).main_metric in entry.main_metrics
        for variant in entry.variants:
            assert tasks.get(name, variant).main_metric in entry.main_metrics


def test_it_starts_without_torch() -> None:
    code = "import sys, heedful.serving.server; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_a_clock_that_is_set_back_gives_no_negative_speed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.toml").write_text(
        'task = "translation"\ntrain = ["a"]\nout = "one"\nmax_steps = 10\n', encoding="utf-8"
    )
    lines = [
        {"step": 1, "loss": 2.0, "seconds": 100.0, "target_tokens_per_second": 50.0},
        {"step": 5, "loss": 1.0, "seconds": -20.0, "target_tokens_per_second": -3.0},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.utime(path / "metrics.jsonl", (time.time() + 3600, time.time() + 3600))  # the clock was set back by an hour
    run = Runs([str(tmp_path)]).as_dict()["runs"][0]
    assert run["speed"] is None
    assert run["state"] == "running"
    assert run["seconds_left"] is None or run["seconds_left"] >= 0
