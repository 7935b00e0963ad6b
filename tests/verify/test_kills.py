"""``verify resume``: three kills of a real run, every planted difference found, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import fresh_process
from heedful import cli
from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.training import Checkpoints
from heedful.verify import kills, resume
from heedful.verify.kills import unfinished
from heedful.verify.resume import Kill, verify_resume
from heedful.verify.run_comparison import compare_runs

SMALL = ["--preset=bert-tiny", "--model.dim=8", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60"]
SMALL += ["--training.save-every=2", "--training.evaluate-every=5", "--training.log-every=1", "--max-steps=20"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["one", "two", "three", "four", "five", "six"]
    file = tmp_path_factory.mktemp("data") / "labels.csv"
    lines = [f"{a} {b},{'even' if i % 2 else 'odd'}\n" for i, a in enumerate(words) for b in words]
    file.write_text("text,label\n" + "".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    command = ["train", "text-classification", "--train", str(data), "--out", str(out), *SMALL[:-1], "--max-steps=6"]
    assert cli.main([*command, "--json"]) == 0
    return out


@pytest.mark.full
def test_three_kills_change_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["verify", "resume", "text-classification", "--train", str(data), *SMALL, "--kills=3", "--json"]
    status = cli.main(command)
    told, said = capsys.readouterr()
    found = json.loads(told)
    assert (status, found["ok"]) == (0, True), said
    assert {"ok", "checks", "kills"} <= found.keys()
    assert len(found["kills"]) == 3
    assert len([line for line in said.splitlines() if "killed" in line]) == 3
    verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
    assert set(verdicts.values()) == {"ok"}
    assert {"going on", "last weights", "best weights", "averaged weights", "checkpoint", "losses"} <= verdicts.keys()


@pytest.mark.full
def test_kills_of_processes_that_share_the_weights_change_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["verify", "resume", "text-classification", "--train", str(data), *SMALL[:-1], "--max-steps=8"]
    command += ["--training.shard", "--processes=2", "--kills=1", "--out", str(tmp_path / "kept"), "--json"]
    status = cli.main(command)
    told, said = capsys.readouterr()
    found = json.loads(told)
    assert (status, found["ok"]) == (0, True), said
    run, again = tmp_path / "kept" / "undisturbed" / "run", tmp_path / "kept" / "killed-1" / "run"
    (shares,) = run.glob("shards-*")
    assert len(list(shares.glob("*.distcp"))) == 2  # of each process its own
    assert off(run, again) == {}
    one_of_shares(again)
    assert off(run, again) == {"checkpoint": "shards.model.encoder.embedding_norm.weight"}
    of_the_state(lambda state: state["optimiser"]["param_groups"][0].update(lr=9.0))(again)
    assert off(run, again)["checkpoint"].startswith("optimiser.param_groups.0.lr, ")


@pytest.mark.full
def test_kills_of_all_processes_and_of_one_change_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["verify", "resume", "text-classification", "--train", str(data), *SMALL[:-1], "--max-steps=8"]
    status = cli.main([*command, "--processes=2", "--kills=2", "--json"])
    told, said = capsys.readouterr()
    found = json.loads(told)
    assert (status, found["ok"]) == (0, True), said
    assert [kill["process"] is None for kill in found["kills"]] == [True, False]
    assert f"rank {found['kills'][1]['process']} killed" in said
    assert "left alone" in {check["name"] for check in found["checks"]}


@pytest.mark.parametrize(
    ("does", "left_running"),
    [
        (
            "trap '' TERM; while :; do sleep 0.05; done",
            "rank 1 was killed, but another rank did not end after SIGTERM",
        ),
        ("echo 'Traceback (most recent call last):' >&2; echo 'KeyError: 1' >&2; sleep 9", "ended with: KeyError: 1"),
        ("echo 'heedful: another process has gone' >&2; sleep 9", None),
    ],
)
def test_the_end_of_the_other_processes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, left_running: str | None
) -> None:
    script = tmp_path / "run"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun-$RANK\n{does}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(kills.sys, "executable", str(script))
    monkeypatch.setattr(kills, "OWN_SECONDS", 0.2)
    monkeypatch.setattr(kills, "SIGTERM_SECONDS", 1)
    with kills.Session([], tmp_path, processes=2, victim=1) as session:
        session.until(lambda: all((tmp_path / f"begun-{rank}").exists() for rank in "01"))
        time.sleep(0.1)
        assert session.kill()
    assert (session.left_running or "").endswith(left_running or "")
    assert (session.left_running is None) == (left_running is None)


def test_who_ended_by_itself_is_not_killed_and_the_others_end_as_they_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "run"
    script.write_text("#!/bin/sh\n[ $RANK = 1 ] || sleep 0.6\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(kills.sys, "executable", str(script))
    monkeypatch.setattr(kills, "OWN_SECONDS", 0.1)
    with kills.Session([], tmp_path, processes=2, victim=1) as session:
        session.until(lambda: False)  # until one has ended
        assert not session.kill()
        assert session.end() is None
        assert session.left_running is None
    with kills.Session([], tmp_path, processes=2) as session:
        session.until(lambda: False)
        assert session.kill()  # of what was left
        assert session.end() is not None


@pytest.mark.parametrize(
    ("processes", "does", "told"),
    [
        (1, "true", None),
        (1, "echo 'heedful: no such file' >&2; exit 2", "no such file"),
        (1, "exit 3", "the run ended with exit status 3"),
        (2, "echo done >&2; [ $RANK = 0 ] || kill -SEGV $$", "rank 1 was ended by SIGSEGV; its last message: done"),
        (2, "[ $RANK = 0 ] || kill -ABRT $$", "rank 1 was ended by SIGABRT"),
        (2, "[ $RANK = 1 ] || echo 'heedful: no such file' >&2; exit 2", "no such file"),
        (2, "exit 1", "rank 0 ended with exit status 1; rank 1 ended with exit status 1"),
    ],
)
def test_the_end_of_a_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, does: str, told: str | None
) -> None:
    script = tmp_path / "run"
    script.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(kills.sys, "executable", str(script))
    with kills.Session([], tmp_path, processes=processes) as session:
        assert session.end() == told


# ------------------------------------------------------------------------------------------------- what is compared


def copied(run: Path, place: Path) -> Path:
    return Path(shutil.copytree(run, place / "other" / run.name))


def off(one: Path, other: Path) -> dict[str, str]:
    return {check.name: check.reason for check in compare_runs(one, other) if check.verdict == "failed"}


def test_a_run_is_like_its_copy(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path)
    card = json.loads((other / "heedful.json").read_text(encoding="utf-8"))
    card["settings"] |= {"out": "elsewhere", "resume": True}
    (other / "heedful.json").write_text(json.dumps(card), encoding="utf-8")
    assert off(run, other) == {}


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def of_the_state(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def changed(run: Path) -> None:
        state = Checkpoints(run).load()
        assert state is not None
        change(state)
        Checkpoints(run).save(state)

    return changed


def _steps(state: dict[str, Any]) -> list[torch.Tensor]:
    return [slots["step"] for slots in state["optimiser"]["state"].values()]


def one_of_shares(run: Path) -> None:
    from torch.distributed import checkpoint as dcp

    from heedful.training.sharded import load_whole_tensors

    (shares,) = run.glob("shards-*")
    state = load_whole_tensors(shares)
    state["model"]["encoder.embedding_norm.weight"][0] += 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(state, checkpoint_id=shares, no_dist=True)


def of_the_log(run: Path) -> None:
    *lines, last = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    line = json.loads(last) | {"loss": 0.5}
    (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(line)]), encoding="utf-8")


def of_the_card(run: Path) -> None:
    card = json.loads((run / "heedful.json").read_text(encoding="utf-8"))
    (run / "heedful.json").write_text(json.dumps(card | {"metrics": {}}), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "found", "named"),
    [
        (lambda run: one_bit(run / "last" / "model.safetensors"), "last weights", "model.safetensors"),
        (lambda run: one_bit(run / "model.safetensors"), "best weights", "model.safetensors"),
        (lambda run: one_bit(run / "tokenizer.json"), "best weights", "tokenizer.json"),
        (of_the_card, "best weights", "heedful.json: metrics"),
        (lambda run: one_bit(run / "average" / "model.safetensors"), "averaged weights", "model.safetensors"),
        (
            of_the_state(lambda state: state["optimiser"]["state"][0]["step"].add_(1)),
            "checkpoint",
            "optimiser.state.0.step",
        ),
        (of_the_state(lambda state: state["numbers"].update(stale=9)), "checkpoint", "numbers.stale"),
        (of_the_state(lambda state: state["loader"].update(step=99)), "checkpoint", "loader.step"),
        (of_the_log, "losses", "line 6 (step 6)"),
    ],
)
def test_differences_are_named(
    run: Path, tmp_path: Path, change: Callable[[Path], None], found: str, named: str
) -> None:
    other = copied(run, tmp_path)
    change(other)
    assert off(run, other) == {found: named}


def test_a_difference_in_time_is_none(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path)
    of_the_state(lambda state: state["numbers"].update(seconds=9.0, window_seconds=8.0))(other)
    text = (other / "metrics.jsonl").read_text(encoding="utf-8")
    (other / "metrics.jsonl").write_text(text.replace('"seconds": ', '"seconds": 9'), encoding="utf-8")
    assert off(run, other) == {}


def test_a_picture_that_is_missing_and_a_half_that_is_left_are_found(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path)
    (other / "confusion.svg").unlink()
    (other / "last" / ".12-34.part").mkdir()
    assert off(run, other) == {"files": "confusion.svg, last/"}


def test_partial_files_have_the_name_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    for name in ("shards-4-2", "shards-6-3"):
        (tmp_path / name).mkdir()
    (tmp_path / "shards-4-2" / ".metadata").touch()  # that one is whole
    for name in (".12-34.part", ".last.12-34.part", ".56.ready", "last/.78.ready"):
        (tmp_path / name).mkdir()
    files = ("run.toml.part", "checkpoint.pt.part", ".metrics.jsonl.1-2.part", "last/.tokenizer.json.ab_d3f9h")
    for name in (*files, "notes.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    expected = ["run.toml.part", "shards", "checkpoint.pt", "metrics.jsonl"]
    expected += ["last/", "last/", "last/tokenizer.json", "the best model"]
    assert sorted(unfinished(tmp_path)) == sorted([*expected, "the best model"])


# ------------------------------------------------------------------------------------------------------ what is told


class Unfaithful:
    """In place of a process: a run that goes on with other weights, or with an error."""

    error: str | None = None
    left_running: str | None = None
    seconds = 1.0

    def __init__(self, arguments: list[str], out: Path, processes: int, victim: int | None = None) -> None:
        self.out, self.resumed, self.victim = out, "--resume" in arguments, victim

    def __enter__(self) -> Unfaithful:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def until(self, seen: Callable[[], bool]) -> bool:
        return True

    def has_started(self) -> bool:
        return True

    def end(self) -> str | None:
        if self.resumed and self.error is not None:
            return self.error
        self.out.mkdir(exist_ok=True)
        Checkpoints(self.out).save({"weight": torch.full((2,), float(self.resumed))})
        return None


def unfaithful(monkeypatch: pytest.MonkeyPatch, error: str | None = None) -> None:
    killed = iter([True, False, True, False])
    monkeypatch.setattr(Unfaithful, "error", error)
    monkeypatch.setattr(resume, "Session", Unfaithful)
    monkeypatch.setattr(resume, "kill_at", lambda *given: next(killed))


def test_a_run_that_continues_differently_is_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    unfaithful(monkeypatch)
    command = ["verify", "resume", "text-classification", "--train", str(data), "--kills", "2"]
    assert cli.main([*command, "--out", str(tmp_path / "kept")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "1  run 1: killed before the first line of the log, 1.0 s after its start"
    assert lines[1].strip() == "run 1 ended different: checkpoint"
    assert lines[4].startswith("different: checkpoint: 2 kills in 2 runs, 0 of them during a write")
    assert any(line.split()[:2] == ["checkpoint", "failed"] and "weight" in line for line in lines)
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"undisturbed", "killed-1", "killed-2"}


def test_processes_that_stay_are_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfaithful(monkeypatch)
    monkeypatch.setattr(Unfaithful, "left_running", "rank 0 was killed, but another rank did not end after SIGTERM")
    command = ["verify", "resume", "text-classification", "--train", str(data), "--kills=2", "--processes=2", "--json"]
    assert cli.main(command) == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (found["left alone"]["verdict"], found["left alone"]["reason"]) == ("failed", Unfaithful.left_running)


def test_a_run_that_cannot_continue_is_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfaithful(monkeypatch, "checkpoint.pt is cut off")
    command = ["verify", "resume", "text-classification", "--train", str(data), "--kills=1", "--json"]
    assert cli.main(command) == 1
    told, said = capsys.readouterr()
    assert "run 1 could not be resumed: checkpoint.pt is cut off" in said
    (check,) = json.loads(told)["checks"]
    assert (check["name"], check["verdict"], check["reason"]) == ("going on", "failed", "checkpoint.pt is cut off")


def test_a_kill_in_words() -> None:
    kill = Kill(run=1, aim="save", step=1200, writing=("checkpoint.pt", "last/"), seconds=2.04)
    said = "killed after step 1,200, 2.0 s after its start, while checkpoint.pt and last/ were being written"
    assert str(kill) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-minutes=3"], "--max-minutes ends a run by the clock, so two runs would differ; give --max-steps"),
        (["--resume"], "verify resume sets --resume itself; leave it out"),
        (["--overwrite"], "verify resume sets --overwrite itself; leave it out"),
        (["--kills=0"], "--kills must be at least 1, not 0"),
        (["--processes=0"], "--processes must be at least 1, not 0"),
        (["--valid=-"], "standard input cannot be read again when a run is resumed; give a file"),
        (["--max-step=3"], "Unknown option: --max-step. Did you mean --max-steps?"),
    ],
)
def test_runs_that_cannot_repeat_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert cli.main(["verify", "resume", "text-classification", "--train", str(data), *more]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_folder_called_resume_is_a_model_s(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "resume")
    assert cli.main(["verify", "./resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "./resume"
    assert cli.main(["verify", "resume"]) == 2
    assert "the task to train is missing; name it" in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_not_taken(data: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    settings = RunSettings("text-classification", train=(str(data),), out="-")
    with pytest.raises(HeedfulError, match="not empty; name a new folder"):
        verify_resume(settings, [], out=tmp_path)


def test_ending_the_program_ends_its_run(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from heedful.verify.kills import Session\n"
        "with Session(['translation', '--train', '-'], Path(sys.argv[1])) as session:\n"
        "    print(session._processes[0].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with closing(fresh_process.Started(program, str(tmp_path / "run"), env=os.environ)) as asker:
        while not (line := asker.written[0]).endswith("\n"):
            assert asker.poll() is None, asker.written[1]
            time.sleep(0.01)
        run = int(line)
        os.kill(run, 0)
        asker.send_signal(signal.SIGTERM)
        assert asker.wait(30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(run, 0)
