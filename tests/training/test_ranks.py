"""Several processes learn as one does: the same losses, gradients and weights, however they share the work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from safetensors.torch import load_file

import fresh_process
from heedful import cli
from heedful.settings import read_toml
from heedful.training import Checkpoints
from heedful.util.ranks import is_loss, loss_message
from tolerances import approx

SCRIPT = Path(__file__).with_name("ranks_script.py")
STEPS = SCRIPT.with_name("ranks_steps.py")
TINY = ("--preset", "transformer-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--model.ff-dim=16")
RUN = (*TINY, "--training.schedule=constant", "--training.warmup=0", "--tokenizer.size=280", "--training.log-every=1")
RUN = (*RUN, "--training.eps=1e-4")  # or rounding decides which way a bias goes that nothing depends on
RUN = (*RUN, "--training.batch-tokens=60", "--training.accumulate=4", "--training.evaluate-every=4")


def launched(processes: int, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *map(str, arguments)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=settings
    )


def done(processes: int, *arguments: object) -> tuple[str, str]:
    """The output of all processes of a run, which are started without torchrun."""
    ended = fresh_process.run_ranks(processes, *arguments)
    out, err = "".join(each.stdout for each in ended), "".join(each.stderr for each in ended)
    assert [each.returncode for each in ended] == [0] * processes, err[-3000:]
    return out, err


def train(data: Path, out: Path, *options: object) -> list[object]:
    return ["train", "translation", "--train", data, "--out", out, *RUN, *options]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    file = tmp_path_factory.mktemp("ranks") / "pairs.tsv"
    rows = [f"{a} {b} {c}\t{c} {b} {a}" for a in words for b in words for c in words[:3]]
    file.write_text("source\ttarget\n" + "\n".join(rows) + "\n")
    return file


@pytest.fixture(scope="module")
def alone(data: Path) -> Path:
    out = data.parent / "alone"
    assert cli.main([*map(str, train(data, out, "--max-steps=8"))]) == 0
    return out


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]  # an evaluation may have a record of its own


def told(run: Path) -> dict[int, float]:
    """The loss of each step that the log tells one of."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def same_weights(one: Path, other: Path, part: str = "last") -> bool:
    mine, theirs = (load_file(folder / part / "model.safetensors") for folder in (one, other))
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 2e-5


@pytest.mark.full
def test_both_engines_learn_as_one_process_does(tmp_path: Path) -> None:
    done(2, SCRIPT, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["differences"]) == 4 * (2 * 7 + 3)
    assert {name: far for name, far in found["differences"].items() if far > 1e-9} == {}
    assert found["told"] == [[1, 2], "first"]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of ``ranks_steps.py``."""
    file = tmp_path_factory.mktemp("steps") / "found.json"
    done(2, STEPS, file)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_unused_parameters_are_searched_only_where_there_are_some(steps: dict[str, Any]) -> None:
    assert steps["all used"] == {"searches": False, "same": True}
    assert steps["never used"] == steps["used by one"] == {"searches": True, "same": True}


def test_constant_buffers_are_not_broadcast_in_each_pass(steps: dict[str, Any]) -> None:
    assert steps["tables"] == [0, 1]
    assert steps["statistics"] == [0, 0], "those of a batch norm are"


def test_a_step_has_two_collectives_and_all_ranks_stop_at_the_same_step(steps: dict[str, Any]) -> None:
    """Besides those of gradients: one of numbers, over gloo, and one of the loss, which a GPU does not wait for."""
    for engine in ("Replicated", "Replicated, callbacks", "Sharded", "Sharded, callbacks"):
        assert steps[engine] == {"all_reduce": 2}
    assert steps["Replicated, log line"] == steps["Sharded, log line"] == {"all_reduce": 3}
    assert steps["interrupted"] == [3, 3]
    assert steps["interrupted evaluation"] == steps["callback"] == [2, 2]
    assert steps["time"] == [1, 1]


def test_two_processes_leave_what_one_leaves(data: Path, alone: Path, tmp_path: Path) -> None:
    out, err = done(2, "-m", "heedful", *train(data, tmp_path / "two", "--max-steps=8"))
    assert losses(tmp_path / "two") == approx(losses(alone))
    assert same_weights(alone, tmp_path / "two")
    assert same_weights(alone, tmp_path / "two", "average")
    assert out.count("all steps are done") == 1, "the first alone speaks"
    assert err.count("step 3 ") == 1
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in alone.iterdir()}


def test_two_processes_follow_the_plan_of_the_first(data: Path, tmp_path: Path) -> None:
    """The first measures; its plan is that of both, or they would wait for each other."""
    out = tmp_path / "two"
    said, _ = done(2, "-m", "heedful", *train(data, out, "--max-minutes=20", "--max-steps=4"))
    assert said.count("time       20 min: 4 steps") == 1
    assert read_toml(out / "run.toml").training.planned_steps is not None
    assert len(losses(out)) == 4


@pytest.mark.full
def test_a_shared_run_goes_on_with_one_process_and_with_four(data: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    done(2, "-m", "heedful", *train(data, out, "--training.shard", "--max-steps=3"))
    done(4, "-m", "heedful", *train(data, out, "--resume", "--max-steps=6"))
    assert cli.main([*map(str, train(data, out, "--resume", "--max-steps=8"))]) == 0
    assert losses(out) == approx(losses(alone))
    assert same_weights(alone, out)
    assert same_weights(alone, out, "average")
    assert len(list(out.glob("shards-*"))) == 1


@pytest.mark.full
def test_a_run_that_did_not_fit_one_process_goes_on_whole_with_two(data: Path, tmp_path: Path) -> None:
    """Where micro-batches are passed in parts, and a step has one less than the processes would pass."""

    def run(name: str, *options: str) -> list[object]:
        return train(data, tmp_path / name, "--training.accumulate=3", *options)

    assert cli.main([*map(str, run("alone", "--max-steps=6"))]) == 0
    assert cli.main([*map(str, run("cut", "--max-steps=3"))]) == 0
    checkpoints = Checkpoints(tmp_path / "cut")
    state = checkpoints.load()
    assert state is not None
    state["numbers"]["parts"] = 2
    checkpoints.save(state)
    done(2, "-m", "heedful", *run("cut", "--resume", "--max-steps=6"))
    assert losses(tmp_path / "cut") == approx(losses(tmp_path / "alone"))
    assert same_weights(tmp_path / "alone", tmp_path / "cut")


@pytest.mark.full
def test_the_first_alone_watches_what_the_model_says_itself(data: Path, alone: Path, tmp_path: Path) -> None:
    done(
        2,
        "-m",
        "heedful",
        *train(data, tmp_path / "x", "--max-steps=8", "--training.record-attention", "one two three"),
    )
    assert same_weights(alone, tmp_path / "x")
    assert (tmp_path / "x" / "watch.html").is_file()


@pytest.mark.full
def test_muon_shares_its_matrices_and_what_it_remembers(data: Path, tmp_path: Path) -> None:
    def run(name: str, *options: str) -> list[object]:
        return train(data, tmp_path / name, "--training.optimiser=muon", *options)

    assert cli.main([*map(str, run("whole", "--max-steps=4"))]) == 0
    done(2, "-m", "heedful", *run("shared", "--training.shard", "--max-steps=2"))
    assert cli.main([*map(str, run("shared", "--resume", "--max-steps=4"))]) == 0
    assert losses(tmp_path / "shared") == approx(losses(tmp_path / "whole"))
    assert same_weights(tmp_path / "whole", tmp_path / "shared")


@pytest.mark.parametrize(("lost", "torchrun"), [(0, False), (0, True), (1, True)])
@pytest.mark.full(keep=1)
def test_a_lost_process_ends_the_run_with_a_line_and_a_checkpoint(
    data: Path, alone: Path, tmp_path: Path, lost: int, torchrun: bool
) -> None:
    out = tmp_path / "lost"
    command = ["-m", "heedful", *train(data, out, "--max-steps=4000", "--training.evaluate-every=4000")]
    begun = launched(2, *command) if torchrun else None
    ranks = [] if torchrun else fresh_process.start_ranks(2, *command)
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() or len(losses(out)) < 3:
            assert time.monotonic() < deadline
            assert [process.poll() for process in (begun, *ranks) if process] == [None] * (1 if torchrun else 2)
            time.sleep(0.05)
        if begun:
            os.kill(child(begun.pid, str(lost)), signal.SIGKILL)
            _, err = begun.communicate(timeout=120)
            assert begun.returncode != 0
        else:
            ranks[lost].send_signal(signal.SIGKILL)
            statuses = [rank.wait(120) for rank in ranks]
            assert (statuses[lost], statuses[1 - lost]) == (-signal.SIGKILL, 2)
            err = "".join(rank.written[1] for rank in ranks)
    finally:
        for rank in ranks:
            rank.close()
    lines = [line for line in err.splitlines() if re.match("heedful(, process [0-9]+)?:", line)]
    assert len(lines) == 1, err
    assert lines[0].startswith("heedful:" if lost else "heedful, process 1:")
    assert "another process of the run has ended, at step" in lines[0]
    assert "Traceback" not in err.split("torch/distributed")[0]
    steps = len(losses(out))
    if "the checkpoint of step" in lines[0]:
        assert f"the checkpoint of step {Checkpoints(out).load()['numbers']['step']:,} is in {out}" in lines[0]
    else:
        assert lost == 0, "the first always writes one; another one where it stands in a step, as nearly always"
    assert cli.main([*map(str, train(data, out, "--resume", f"--max-steps={max(steps + 3, 8)}"))]) == 0
    assert list(told(out)) == list(range(1, max(steps + 3, 8) + 1)), "each step has its line, and one alone"
    expected, found = told(alone), told(out)
    assert expected.keys() <= found.keys()
    assert all(found[step] == approx(expected[step]) for step in expected)


def test_no_rank_goes_on_before_the_first_has_written_a_line(data: Path, tmp_path: Path) -> None:
    """Or its checkpoint would say that the line is written, and a resumed run would leave it out."""
    out = tmp_path / "lost"
    code = "import os; from heedful import cli; from heedful.training.log import Log; write = Log.write\n"
    code += "def lost(log, line, **options):\n"
    code += "    os._exit(9) if os.environ['RANK'] == '0' and line['step'] == 4 else write(log, line, **options)\n"
    code += "Log.write = lost; cli.command()"
    command = ["-c", code, *train(data, out, "--max-steps=8", "--training.save-every=3")]
    first, second = fresh_process.run_ranks(2, *command)
    assert "has ended, at step" in second.stderr
    assert first.returncode == 9
    assert cli.main([*map(str, train(data, out, "--resume", "--max-steps=8"))]) == 0
    assert list(told(out)) == list(range(1, 9))


@pytest.mark.full
def test_a_process_that_is_silent_is_not_waited_for_long(data: Path, tmp_path: Path) -> None:
    """Stopped, it closes nothing: the other one ends after a while, here of six seconds, and keeps what it has."""
    out = tmp_path / "silent"
    code = "from datetime import timedelta; from heedful import cli; from heedful.util import ranks; "
    code += "ranks.TIMEOUT = timedelta(seconds=6); cli.command()"
    command = [sys.executable, "-c", code, *map(str, train(data, out, "--max-steps=4000"))]
    first, second = started(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() or len(losses(out)) < 3:
            assert time.monotonic() < deadline
            assert first.poll() is None
            time.sleep(0.05)
        second.send_signal(signal.SIGSTOP)
        _, said = first.communicate(timeout=120)
    finally:
        second.kill()
        second.communicate()
    (line,) = [line for line in said.splitlines() if line.startswith("heedful:")]
    assert first.returncode == 2, said
    assert re.search("another process of the run has not responded for (0.1 minutes|too long), at step", line)
    assert "Traceback" not in said
    assert f"the checkpoint of step {Checkpoints(out).load()['numbers']['step']:,} is in {out}" in line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "[gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            "not responded for 30 min",
        ),
        (
            "WorkNCCL(SeqNum=7, Timeout(ms)=600000) ran for 600014 milliseconds before timing out",
            "not responded for 10 min",
        ),
        ("Application timeout caused pair closure", "not responded for too long"),
        ("[gloo/pair.cc:524] Read error [127.0.0.1]:27182: Connection reset by peer", "has ended"),
    ],
)
def test_silence_is_distinguished_from_a_lost_rank(error: str, told: str) -> None:
    lost = RuntimeError("x" * 200 + error)
    assert is_loss(lost)
    assert told in loss_message(lost)


def child(parent: int, rank: str) -> int:
    """The process of this rank below ``parent``."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                environment = (status.parent / "environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in environment:
                    return int(status.parent.name)
        except (OSError, ValueError):
            continue
    raise AssertionError(f"no process of rank {rank}")


def started(command: list[str], **options: Any) -> list[subprocess.Popen[str]]:
    """Two processes of one run, without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    own = ({**told, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
    return [subprocess.Popen(command, env={**os.environ, **each}, **options) for each in own]


def failed(data: Path, out: Path, *options: object, before: str = "") -> list[str]:
    """Two processes that are to end with an error: their exit status is 2, and this is what they say.

    ``before``: a shell command that sets a limit of both.
    """
    ended: Sequence[Any]
    if before:
        command = ["sh", "-c", before + ' exec "$0" "$@"', sys.executable, "-m", "heedful"]
        command += map(str, train(data, out, *options))
        ended = started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = "".join(process.communicate(timeout=120)[1] for process in ended)
    else:
        ended = fresh_process.run_ranks(2, "-m", "heedful", *train(data, out, *options))
        said = "".join(process.stderr for process in ended)
    assert [process.returncode for process in ended] == [2, 2], said
    assert "Traceback" not in said
    assert "terminate called" not in said
    return [line for line in said.splitlines() if line.startswith("heedful")]


@pytest.mark.parametrize("shard", [(), ("--training.shard",)], ids=["whole", "shared"])
@pytest.mark.full(keep=1)
def test_nan_is_reported_once_with_its_place(data: Path, tmp_path: Path, shard: tuple[str]) -> None:
    (said,) = failed(data, tmp_path / "x", "--max-steps=20", "--training.lr=1e30", *shard)
    assert re.search(
        r"the (loss|gradient's norm) is (nan|inf) at step \d+, first in (encoder|decoder|head|the )", said
    ), said


@pytest.mark.full
def test_shares_that_are_damaged_are_refused(data: Path, tmp_path: Path) -> None:
    done(2, "-m", "heedful", *train(data, tmp_path / "x", "--training.shard", "--max-steps=2"))
    file = max((tmp_path / "x").glob("shards-*/*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (said,) = failed(data, tmp_path / "x", "--resume", "--max-steps=4")
    assert f"{file.parent} is cut off or damaged; start a new run" in said


@pytest.mark.full
def test_shares_of_another_model_are_refused_once(data: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    done(2, "-m", "heedful", *train(data, one, "--training.shard", "--max-steps=2"))
    done(2, "-m", "heedful", *train(data, other, "--training.shard", "--max-steps=2", "--model.ff-dim=32"))
    shutil.rmtree(next(one.glob("shards-*")))
    shutil.copytree(shares := next(other.glob("shards-*")), one / shares.name)
    shutil.copy(other / "checkpoint.pt", one)
    (said,) = failed(data, one, "--resume", "--max-steps=4")
    assert f"the weights in {one / shares.name} do not fit this model; start a new run" in said


@pytest.mark.full
def test_of_shares_that_are_kept_the_newest_that_are_whole_are_taken_up(
    data: Path, alone: Path, tmp_path: Path
) -> None:
    out, keep = tmp_path / "x", ("--training.shard", "--training.keep-checkpoints=2", "--training.save-every=2")
    done(2, "-m", "heedful", *train(data, out, *keep, "--max-steps=6"))
    assert sorted(path.name.split("-")[1] for path in out.glob("shards-*")) == ["4", "6"]
    file = max(out.glob("shards-6-*/*.distcp"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    _, err = done(2, "-m", "heedful", *train(data, out, "--resume", "--max-steps=8"))
    assert "the run resumes from the older checkpoint.1.pt" in err
    assert list(told(out)) == list(range(1, 9))
    assert losses(out) == approx(losses(alone))
    assert same_weights(alone, out)
    assert sorted(path.name.split("-")[1] for path in out.glob("shards-*")) == ["6", "8"]


@pytest.mark.full
def test_shards_without_room_are_reported_once_and_removed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    done(2, "-m", "heedful", *train(data, out, "--training.shard", "--max-steps=2"))
    limit = max(path.stat().st_size for path in out.glob("shards-*/*.distcp")) // 1024  # whole KiB, so it is less
    (said,) = failed(data, out, "--resume", "--max-steps=4", before=f"ulimit -f {2 * limit};")
    assert re.search(rf"cannot write {out}/shards-4-2: .{{1,200}}; make room", said), said
    assert cli.main([*map(str, train(data, out, "--resume", "--max-steps=4"))]) == 0


def test_a_refused_option_is_reported_once_and_ends_all_ranks(data: Path, tmp_path: Path) -> None:
    (said,) = failed(data, tmp_path / "x", "--max-steps=4", "--training.shard", "--averaging.last=2")
    assert "--averaging.last needs all weights in one process" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_an_error_of_all_ranks_is_reported_once(data: Path, tmp_path: Path) -> None:
    process = launched(2, "-m", "heedful", *train(data, tmp_path / "x", "--max-steps=8", "--data.columns=a,b"))
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert [line for line in err.splitlines() if "no column 'a'" in line and line.startswith("heedful:")]
    assert not [line for line in err.splitlines() if line.startswith("heedful, process 1")]
    assert not (tmp_path / "x").exists()


def test_one_process_does_not_wait_for_what_several_import() -> None:
    code = "import sys, heedful.training.run; sys.exit('torch.distributed.checkpoint' in sys.modules)"
    assert fresh_process.run(code).returncode == 0


@pytest.mark.parametrize("rank", ["0", "1"])
def test_other_commands_are_for_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    assert cli.main(["tasks"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert ("torchrun works only with heedful train, evaluate, and predict --in" in told.err) == (rank == "0")
    assert told.err.count("heedful:") == (rank == "0")


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_wrong_number_of_processes_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "two")
    assert cli.main(["tasks"]) == 2
    said = f"heedful: environment variable {name} is 'two', not a number; unset it, or start with torchrun\n"
    assert capsys.readouterr().err == said
    monkeypatch.setenv(name, "")
    assert cli.main(["tasks"]) == 0
    monkeypatch.setenv(name, "٣")  # three, in digits that torchrun never writes
    capsys.readouterr()
    assert cli.main(["tasks"]) == 2
    assert f"environment variable {name} is" in capsys.readouterr().err


def test_a_process_that_is_alone_speaks_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["predict", "/nowhere/at/all", "a text"]) == 2
    assert capsys.readouterr().err.startswith("heedful: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--training.shard"], "--training.shard shards the weights over several processes, but there is only one"),
        (["--training.shard", "--resume"], "--training.shard is True, but the run in"),
    ],
)
def test_nothing_to_share(
    data: Path, alone: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], message: str
) -> None:
    out = alone if "--resume" in options else alone.parent / "none"
    assert cli.main([*map(str, train(data, out, "--max-steps=8", *options))]) == 2
    assert message in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- several machines


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a wire between them: two machines, as far as the network tells."""
    names = [f"hosts{os.getpid()}{side}" for side in "ab"]
    ends = [f"h{os.getpid()}{side}"[-15:] for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.213.77.{number}/24", "dev", end)
            for link in (end, "lo"):
                ip("-n", name, "link", "set", link, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True) if which("ip") else None
        pytest.skip(f"network namespaces are not permitted here ({error})")
    yield names
    for name in names:
        ip("netns", "del", name)


@pytest.mark.full
def test_two_machines_learn_as_one_process(data: Path, alone: Path, tmp_path: Path, hosts: list[str]) -> None:
    processes = []
    for number, host in enumerate(hosts):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"]
        torchrun += ["--nproc-per-node=1", "--master-addr=10.213.77.1", "--master-port=29513"]
        command = [
            "ip",
            "netns",
            "exec",
            host,
            *torchrun,
            "-m",
            "heedful",
            *train(data, tmp_path / "two", "--max-steps=8"),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": f"h{os.getpid()}{'ab'[number]}"[-15:],
        }
        processes.append(
            subprocess.Popen(
                [*map(str, command)], text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        )
    for process in processes:
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-2000:]
    assert losses(tmp_path / "two") == approx(losses(alone))


@pytest.mark.full
def test_answers_and_scores_are_those_of_one_process(
    data: Path, alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*dict.fromkeys(line.split("\t")[0] for line in data.read_text().splitlines()[1:])]
    (tmp_path / "texts.txt").write_text("\n".join(lines[:45]) + "\n")
    written = []
    for name in ("one", "two"):
        options = ["predict", alone, "--in", tmp_path / "texts.txt", "--out", tmp_path / f"{name}.jsonl"]
        options += ["--do-sample", "--seed", 3, "--batch-tokens", 64]
        if name == "one":
            assert cli.main([*map(str, options)]) == 0
        else:
            done(2, "-m", "heedful", *options)
        written.append([json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()])
    assert [each["output"] for each in written[0]] == [each["output"] for each in written[1]]
    assert [each["score"] for each in written[0]] == approx([each["score"] for each in written[1]])
    assert len({each["output"] for each in written[0]}) > 5
    options = ["evaluate", alone, "--data", data, "--batch-tokens", 64, "--baseline", "--json"]
    capsys.readouterr()
    assert cli.main([*map(str, options)]) == 0
    one, two = json.loads(capsys.readouterr().out), json.loads(done(2, "-m", "heedful", *options)[0])
    texts = {name: value for name, value in one["metrics"].items() if isinstance(value, str)}
    assert {name: two["metrics"].pop(name) for name in texts} == texts
    assert two["metrics"] == approx({n: v for n, v in one["metrics"].items() if n not in texts}, "training")
    assert two["baseline"] == one["baseline"]


@pytest.mark.full
def test_a_first_that_is_slow_to_speak_is_heard(alone: Path, tmp_path: Path) -> None:
    """torchrun ends all processes where one has ended with an error."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import os, time\n"
        "from heedful.cli import command, command_line\n"
        "explain = command_line._explain\n"
        "def slowly(*given):\n"
        "    time.sleep(1.0 if os.environ['RANK'] == '0' else 0.0)\n"
        "    return explain(*given)\n"
        "command_line._explain = slowly\n"
        "command()\n",
        encoding="utf-8",
    )
    process = launched(2, script, "evaluate", alone, "--data", "-")
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "heedful: torchrun passes standard input to one process" in err


@pytest.mark.full
def test_input_that_ranks_cannot_share_is_refused_once(alone: Path) -> None:
    for options, wrong in (
        (["evaluate", alone, "--data", "-"], "torchrun passes standard input to one process"),
        (["predict", alone, "a text"], "give --in FILE"),
    ):
        process = launched(2, "-m", "heedful", *options)
        _, err = process.communicate(timeout=120)
        assert process.returncode != 0
        (line,) = (line for line in err.splitlines() if line.startswith(("heedful:", "heedful, process")))
        assert wrong in line


EXPERTS = ("--model.experts=4", "--model.experts-per-token=1", "--model.balance=1", "--max-steps=4")


@pytest.mark.parametrize("shard", [(), ("--training.shard",)], ids=["replicated", "sharded"])
def test_experts_learn_alike_on_two_processes(shard: tuple[str, ...], data: Path, tmp_path: Path) -> None:
    """Some experts have no tokens in a micro-batch; the balance loss is that of each micro-batch, on any rank."""
    assert cli.main([*map(str, train(data, tmp_path / "one", *EXPERTS))]) == 0
    done(2, "-m", "heedful", *train(data, tmp_path / "two", *EXPERTS, *shard))
    assert losses(tmp_path / "two") == approx(losses(tmp_path / "one"), "training")
    assert losses(tmp_path / "one")[0] > 6.5  # log 280 = 5.6, and 1 for each of two blocks
