"""The checkpoint in shares, in the one process that may read and write it without others."""

from __future__ import annotations

import threading

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import sharded
from heedful.training.checkpoint import Checkpoints, DamagedCheckpoint
from heedful.training.sharded import ShardedCheckpoints
from heedful.util.ranks import Ranks


def state(step, fill):
    return {
        "numbers": {"step": step},
        "model": {"weight": torch.full((3,), fill), "tied": torch.full((2,), fill)},
        "optimiser": {"state": {"weight": {"exp_avg": torch.full((3,), fill)}}, "param_groups": [{"lr": fill}]},
        "average": {"updates": step, "weights": {"weight": torch.full((3,), fill)}},
    }


def written_later(monkeypatch):
    """Two events: the library has begun to write, and it may go on."""
    begun, go_on, save = threading.Event(), threading.Event(), sharded.dcp.save

    def held(*arguments, **options):
        begun.set()
        assert go_on.wait(60)
        return save(*arguments, **options)

    monkeypatch.setattr(sharded.dcp, "save", held)
    return begun, go_on


def test_steps_go_on_while_shares_are_written(tmp_path, monkeypatch):
    live = state(7, 1.0)
    checkpoints = ShardedCheckpoints(tmp_path, Ranks(), lambda: live)
    begun, go_on = written_later(monkeypatch)
    checkpoints.save(live, wait=False)
    assert begun.wait(60)
    assert not (tmp_path / "checkpoint.pt").exists()
    for tensors in (live["model"], live["optimiser"]["state"]["weight"], live["average"]["weights"]):
        for tensor in tensors.values():
            tensor.fill_(9.0)
    live["optimiser"]["param_groups"][0]["lr"] = live["numbers"]["step"] = 9
    go_on.set()
    checkpoints.wait()
    live = state(0, 0.0)
    found = checkpoints.load()
    assert found["numbers"] == {"step": 7}
    assert found["average"]["updates"] == 7
    assert torch.equal(found["average"]["weights"]["weight"], torch.ones(3))
    assert torch.equal(found["model"]["weight"], torch.ones(3))
    assert torch.equal(found["model"]["tied"], torch.ones(2))
    assert torch.equal(found["optimiser"]["state"]["weight"]["exp_avg"], torch.ones(3))


def test_an_error_of_writing_is_raised_on_waiting(tmp_path, monkeypatch):
    live = state(1, 1.0)
    checkpoints = ShardedCheckpoints(tmp_path, Ranks(), lambda: live)
    checkpoints.save(live)
    begun, go_on = written_later(monkeypatch)
    checkpoints.save(state(2, 2.0), wait=False)
    assert begun.wait(60)
    (tmp_path / "shards-2-2").write_text("in the way", encoding="utf-8")
    go_on.set()
    with pytest.raises(HeedfulError, match=r"cannot write .*shards-2-2: File exists; make room"):
        checkpoints.wait()
    assert checkpoints.load()["numbers"] == {"step": 1}


@pytest.mark.parametrize("first", [True, False])
def test_of_several_the_first_alone_tells_what_was_left_out_and_passed_over(tmp_path, caplog, first):
    checkpoints = Checkpoints(tmp_path, 2, warns=first)
    checkpoints.save(state(1, 1.0))
    checkpoints._error = HeedfulError("no room")
    checkpoints.save(state(2, 1.0), wait=False)
    checkpoints.path.write_bytes(checkpoints.path.read_bytes()[:-1])
    assert checkpoints.load()["numbers"] == {"step": 1}
    told = [
        text for text in caplog.messages if "but an earlier checkpoint was not" in text or "the run resumes" in text
    ]
    assert len(told) == (2 if first else 0)
    assert ShardedCheckpoints(tmp_path, Ranks(), lambda: state(0, 0.0)).warns


class Torn(Ranks):
    """The first of two, the other of which finds something else."""

    def __init__(self, other):
        super().__init__(0, 2)
        self.other = other

    def with_new_group(self):
        return self

    def broadcast(self, value=None):
        return value

    def gather(self, value):
        return [value, self.other]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (HeedfulError("cannot read it: Permission denied"), "Permission denied"),
        (DamagedCheckpoint("its file is cut off or damaged"), "its file is cut off"),
    ],
)
def test_a_checkpoint_that_another_rank_cannot_read_is_reported_by_the_first(tmp_path, other, said):
    ShardedCheckpoints(tmp_path, Ranks(), lambda: state(0, 0.0)).save(state(1, 1.0))
    with pytest.raises(type(other), match=said):
        ShardedCheckpoints(tmp_path, Torn(other), lambda: state(0, 0.0)).load()


def test_shares_that_no_checkpoint_names_go(tmp_path):
    checkpoints = ShardedCheckpoints(tmp_path, Ranks(), lambda: state(0, 0.0), keep=2)
    for step in (1, 2, 3):
        checkpoints.save(state(step, float(step)), wait=False)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.1.pt",
        "checkpoint.pt",
        "shards-2-2",
        "shards-3-3",
    ]
