from __future__ import annotations

import pytest
import torch

from heedful.kernels.cpu_dropout import DropoutMasks


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def drawn(monkeypatch):
    """The masks that dropout draws, in turn."""
    masks = []
    draw = DropoutMasks.draw

    def draw_and_note(self, shape):
        masks.append(draw(self, shape))
        return masks[-1]

    monkeypatch.setattr(DropoutMasks, "draw", draw_and_note)
    return masks
