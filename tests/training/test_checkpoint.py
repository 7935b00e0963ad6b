from __future__ import annotations

import errno
import os
import resource
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

import fresh_process
from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits
from heedful.util import files

STATE = {"weight": torch.arange(5000.0), "numbers": {"step": 3, "best": None, "names": ["a", 1.5]}}


def test_a_saved_state_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    assert checkpoints.load() is None
    checkpoints.save(STATE)
    found = checkpoints.load()
    assert torch.equal(found["weight"], STATE["weight"])
    assert found["numbers"] == STATE["numbers"]
    assert os.listdir(checkpoints.path.parent) == ["checkpoint.pt"]
    checkpoints.clear()
    assert checkpoints.load() is None


def test_after_a_failed_write_the_next_is_tried_at_once(tmp_path, caplog, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    in_the_way = tmp_path / "in-the-way"
    monkeypatch.setattr(files, "temporary_path", lambda path: in_the_way)
    in_the_way.mkdir()
    checkpoints.save({**STATE, "step": 1}, wait=False)
    checkpoints._writer.join()
    in_the_way.rmdir()
    checkpoints.save({**STATE, "step": 2}, wait=False)
    assert checkpoints._writer is None, "it is there already"
    checkpoints.wait()  # and nothing is left to be told
    assert checkpoints.load()["step"] == 2
    (said,) = caplog.messages
    assert said.startswith("the newest checkpoint was written, but an earlier checkpoint was not: cannot write ")
    in_the_way.mkdir()
    checkpoints.save({**STATE, "step": 3}, wait=False)
    with pytest.raises(HeedfulError, match="cannot write"):
        checkpoints.save({**STATE, "step": 4}, wait=False)
    assert checkpoints.load()["step"] == 2


def steps(checkpoints):
    """Of the checkpoints that are there, the newest first."""
    return [torch.load(path, weights_only=True)["step"] for path in checkpoints.paths().values()]


def test_so_many_are_kept_and_older_ones_go(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in range(1, 6):
        checkpoints.save({"step": step}, wait=step % 2 == 0)
        checkpoints.wait()
        assert steps(checkpoints) == list(range(step, max(step - 3, 0), -1))
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.1.pt", "checkpoint.2.pt", "checkpoint.pt"]
    fewer = Checkpoints(tmp_path, keep=2)
    fewer.save({"step": 6})
    assert steps(fewer) == [6, 5]
    only = Checkpoints(tmp_path)
    only.save({"step": 7})
    assert steps(only) == [7]


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_the_newest_whole_checkpoint_is_resumed_with_a_note(tmp_path, caplog, damaged):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in range(1, 4):
        checkpoints.save({"step": step})
    paths = list(checkpoints.paths().values())
    for path in paths[:damaged]:
        path.write_bytes(path.read_bytes()[:-1])
    again = Checkpoints(tmp_path, keep=3)
    if damaged == 3:
        with pytest.raises(HeedfulError, match=r"/checkpoint\.pt is cut off or damaged; remove it"):
            again.load()
        assert all(path.exists() for path in paths)
        return
    assert again.load() == {"step": 3 - damaged}
    (said,) = caplog.messages
    names = ", ".join(path.name for path in paths[:damaged])
    assert said == f"{names} in {tmp_path} is cut off or damaged; the run resumes from the older {paths[damaged].name}"
    again.save({"step": 9})
    assert steps(again) == [9, *range(3 - damaged, 0, -1)], "what is damaged takes no whole one's place"


def test_a_kill_while_they_make_way_loses_none(tmp_path, monkeypatch):
    whole = os.replace
    for stop in range(3):
        checkpoints = Checkpoints(tmp_path / str(stop), keep=3)
        for step in (1, 2, 3):
            checkpoints.save({"step": step})
        done = []

        def replace(source, target, stop=stop, done=done):
            if len(done) == stop:
                raise KeyboardInterrupt
            done.append(whole(source, target))

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                checkpoints.save({"step": 4})
        again = Checkpoints(tmp_path / str(stop), keep=3)
        assert again.load() == {"step": 3}
        again.save({"step": 4})
        assert steps(again)[:2] == [4, 3]


@pytest.mark.parametrize("gone", ["damaged", "removed"])
def test_a_kill_before_the_new_one_has_its_name_leaves_the_one_that_was_taken_up(tmp_path, monkeypatch, gone):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.save({"step": step})
    if gone == "damaged":
        checkpoints.path.write_bytes(checkpoints.path.read_bytes()[:-1])
    else:
        checkpoints.path.unlink()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() == {"step": 1}

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({"step": 3})
    assert Checkpoints(tmp_path).load() == {"step": 1}
    checkpoints.save({"step": 3})
    assert sorted(checkpoints.paths()) == [0]
    assert Checkpoints(tmp_path).load() == {"step": 3}


def test_a_disk_that_fails_to_read_is_passed_over(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.save({"step": step})
    opened = Path.open

    def failing(self, *arguments, **options):
        if self.name == "checkpoint.pt" and arguments == ("rb",):
            raise OSError(errno.EIO, "Input/output error")
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", failing)
    assert checkpoints.load() == {"step": 1}


def test_of_those_that_rescue_a_step_one_writes(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"numbers": {"step": 7}}
    other = tmp_path / ".checkpoint.pt.7-0.part"
    other.touch()
    checkpoints.rescue(state)
    assert checkpoints.load() is None
    other.unlink()
    checkpoints.rescue(state)
    assert checkpoints.load() == state
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_a_file_cut_off_is_named(tmp_path, kept):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    whole = checkpoints.path.read_bytes()
    checkpoints.path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(HeedfulError, match=r"checkpoint\.pt is cut off or damaged; remove it"):
        checkpoints.load()


def test_one_wrong_bit_is_found_wherever_it_is(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    content = bytearray(checkpoints.path.read_bytes())
    for place in (
        0,
        len(content) // 2,
        *range(len(content) - 1500, len(content)),
    ):  # the end: the directory of the file
        bit = 1 << place % 8
        content[place] ^= bit
        checkpoints.path.write_bytes(content)
        with pytest.raises(HeedfulError, match="damaged"):
            checkpoints.load()
        content[place] ^= bit
    checkpoints.path.write_bytes(content)
    assert checkpoints.load() is not None


@pytest.mark.parametrize("sealed", [False, True])
def test_a_file_that_is_something_else_is_refused(tmp_path, sealed):
    class Code:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    checkpoints = Checkpoints(tmp_path)
    if sealed:
        checkpoints.save({"weight": Code()})
    else:
        torch.save({"weight": torch.zeros(2)}, checkpoints.path)
    with pytest.raises(HeedfulError, match="damaged"):
        checkpoints.load()
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def little_room():
    """No file may grow over 8 KB: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_leaves_the_earlier_file(tmp_path, little_room):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"step": 1})
    with pytest.raises(HeedfulError, match=r"cannot write .*checkpoint\.pt: File too large; make room") as error:
        checkpoints.save(STATE)
    assert "\n" not in str(error.value)
    assert checkpoints.load() == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_an_interrupted_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"step": 1})

    def interrupted(state, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(STATE)
    assert checkpoints.load() == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def slowly(monkeypatch, gate):
    """``torch.save`` that waits for ``gate``."""
    save = torch.save

    def wait(state, file):
        gate.wait(30)
        save(state, file)

    monkeypatch.setattr(torch, "save", wait)


def test_the_written_state_is_that_of_the_call(tmp_path, monkeypatch):
    checkpoints, gate = Checkpoints(tmp_path), threading.Event()
    tied = torch.arange(6.0)
    state = {
        "numbers": {"step": 1},
        "weights": [tied, tied.view(2, 3)],
        "half": tied.half()[1:],
        "none": torch.empty(0),
    }
    slowly(monkeypatch, gate)
    checkpoints.save(state, wait=False)
    tied.zero_()
    state["weights"].clear()
    state["numbers"]["step"] = 2
    assert not checkpoints.path.exists()
    gate.set()
    checkpoints.wait()
    found = checkpoints.load()
    assert found["numbers"] == {"step": 1}
    assert found["weights"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["weights"][1].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["weights"][0].data_ptr() == found["weights"][1].data_ptr(), "tied weights are stored once"
    assert found["half"].tolist() == [1, 2, 3, 4, 5]
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_the_next_save_waits_for_the_one_before(tmp_path, monkeypatch):
    checkpoints, gate = Checkpoints(tmp_path), threading.Event()
    slowly(monkeypatch, gate)
    checkpoints.save({"step": 1}, wait=False)
    threading.Timer(0.05, gate.set).start()
    checkpoints.save({"step": 2}, wait=False)
    assert torch.load(checkpoints.path)["step"] in (1, 2), "the first one is there"
    assert checkpoints.load() == {"step": 2}


def test_an_error_of_writing_is_raised_at_the_next_call(tmp_path, little_room):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"step": 1})
    for call in (checkpoints.wait, lambda: checkpoints.save(STATE), checkpoints.load):
        checkpoints.save(STATE, wait=False)
        with pytest.raises(HeedfulError, match=r"cannot write .*checkpoint\.pt: File too large; make room"):
            call()
        checkpoints.wait()
    assert checkpoints.load() == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


WRITER = """
import sys, time, torch
from heedful.training import Checkpoints
save = torch.save
def slow(state, file):
    save(state, file)
    if state["step"] == 2:
        print("half", flush=True)
        time.sleep(float(sys.argv[2]))
torch.save = slow
checkpoints = Checkpoints(sys.argv[1])
for step in (1, 2):
    checkpoints.save({"step": step, "weight": torch.full((1000,), float(step))}, wait=False)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_a_kill_meanwhile_leaves_the_earlier_one_and_an_end_waits(tmp_path, number):
    arguments = (WRITER, str(tmp_path), "60" if number else "0.1")
    with closing(fresh_process.Started(*arguments, env=os.environ)) as process:
        while process.written[0] != "half\n":
            assert process.poll() is None, process.written[1]
            time.sleep(0.01)
        if number:
            process.send_signal(number)
        process.wait(60)
    step = 1 if number else 2
    assert Checkpoints(tmp_path).load()["weight"].tolist() == [step] * 1000
    left = [name for name in os.listdir(tmp_path) if files.TEMPORARY.fullmatch(name)]
    assert len(left) == (number is not None)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeedfulError, match=r"cannot write .*file"):
        Checkpoints(tmp_path / "file").save(STATE)


def test_a_state_that_cannot_be_pickled_is_a_bug_and_no_full_disk(tmp_path):
    with pytest.raises(Exception, match="lambda") as error:
        Checkpoints(tmp_path).save({"bug": lambda: None})
    assert not isinstance(error.value, HeedfulError)


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    """Not even where its digest is right, as here, since whoever writes a file can write its digest too."""
    run, canary = tmp_path / "run", tmp_path / "harm"
    Checkpoints(run).save({"step": 1, "bug": Harm(canary)})
    with pytest.raises(HeedfulError, match=r"checkpoint\.pt is cut off or damaged; remove it"):
        Checkpoints(run).load()
    assert not canary.exists()
    torch.load(run / "checkpoint.pt", weights_only=False)  # so would be what no check stops
    assert canary.exists()


@pytest.mark.parametrize("state", [{"format": 0}, {"weight": torch.zeros(1)}], ids=["older", "other"])
def test_a_checkpoint_of_another_layout_is_refused(toy, tmp_path, state):
    Checkpoints(tmp_path).save(state)
    with pytest.raises(HeedfulError, match="was not written by this version"):
        toy.loop(tmp_path, limits=Limits(max_steps=1)).fit()
