from __future__ import annotations

import pytest
import torch

from heedful.kernels.cpu_dropout import Bits


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
    keep = Bits.keep

    def keep_and_note(bits, shape):
        masks.append(keep(bits, shape))
        return masks[-1]

    monkeypatch.setattr(Bits, "keep", keep_and_note)
    return masks
