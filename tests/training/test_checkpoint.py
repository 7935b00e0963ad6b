from __future__ import annotations

import os
import resource

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits
from heedful.training.checkpoint import random_state, set_random_state

STATE = {"weight": torch.arange(5000.0), "numbers": {"step": 3, "best": None, "names": ["a", 1.5]}}


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    assert checkpoints.load() is None
    checkpoints.save(STATE)
    found = checkpoints.load()
    assert torch.equal(found["weight"], STATE["weight"])
    assert found["numbers"] == STATE["numbers"]
    assert os.listdir(checkpoints.path.parent) == ["checkpoint.pt"]
    checkpoints.clear()
    assert checkpoints.load() is None


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_a_file_cut_off_is_named(tmp_path, kept):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    whole = checkpoints.path.read_bytes()
    checkpoints.path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(HeedfulError, match=r"checkpoint\.pt is cut off or damaged; remove it"):
        checkpoints.load()


def test_one_wrong_bit_is_found(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    content = bytearray(checkpoints.path.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoints.path.write_bytes(content)
    with pytest.raises(HeedfulError, match="damaged"):
        checkpoints.load()


def test_a_file_that_is_something_else_is_refused(tmp_path):
    class Code:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    checkpoints = Checkpoints(tmp_path)
    torch.save({"weight": Code()}, checkpoints.path)
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeedfulError, match=r"cannot write .*file"):
        Checkpoints(tmp_path / "file").save(STATE)


def test_what_cannot_be_saved_is_a_bug_and_no_full_disk(tmp_path):
    with pytest.raises(Exception, match="lambda") as error:
        Checkpoints(tmp_path).save({"bug": lambda: None})
    assert not isinstance(error.value, HeedfulError)


def test_the_random_state_comes_back():
    device = torch.device("cpu")
    state = random_state(device)
    drawn = torch.rand(3)
    set_random_state(state, device)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("state", [{"format": 0}, {"weight": torch.zeros(1)}], ids=["older", "other"])
def test_a_checkpoint_of_another_layout_is_refused(toy, tmp_path, state):
    Checkpoints(tmp_path).save(state)
    with pytest.raises(HeedfulError, match="no checkpoint of this version"):
        toy.loop(tmp_path, limits=Limits(max_steps=1)).fit()
