"""The checkpoint in shares, in the one process that may read and write it without others."""

from __future__ import annotations

import threading

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.training import sharded
from heedful.training.ranks import Ranks
from heedful.training.sharded import ShardedCheckpoints


def state(step, fill):
    return {
        "numbers": {"step": step},
        "model": {"weight": torch.full((3,), fill), "tied": torch.full((2,), fill)},
        "optimiser": {"state": {"weight": {"exp_avg": torch.full((3,), fill)}}, "param_groups": [{"lr": fill}]},
        "average": {"updates": step, "weights": {"weight": torch.full((3,), fill)}},
    }


def written_later(monkeypatch):
    """Whether the library has begun to write, and what lets it go on."""
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


def test_what_goes_wrong_meanwhile_is_raised_where_it_is_waited_for(tmp_path, monkeypatch):
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


def test_what_the_first_tells_no_other_tells_again(tmp_path, caplog):
    checkpoints = ShardedCheckpoints(tmp_path, Ranks(), lambda: state(0, 0.0))
    for failed, said in ((SystemExit(2), []), (HeedfulError("no room"), ["a checkpoint was left out"])):
        caplog.clear()
        checkpoints._failed = failed
        checkpoints.save(state(1, 1.0), wait=False)
        assert [text.partition(" and ")[0] for text in caplog.messages if "checkpoint was" in text] == said
        assert checkpoints.load()["numbers"] == {"step": 1}


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
