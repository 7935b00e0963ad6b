from __future__ import annotations

import pytest

from heedful.kernels.cpu_dropout import Bits


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
