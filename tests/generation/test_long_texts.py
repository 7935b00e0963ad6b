"""Ten thousand tokens under a sliding window, or a context: flat memory, and a token as quick as the first.

Memory is what all tensors that are alive hold, looked at inside the attention of a late and of an early step, where
most of a step is alive. Quickness is the number of keys that a token attends to. The ten thousand are made with

    HEEDFUL_GRID=full pytest -n0 tests/generation/test_long_texts.py    # about a minute

and 1,500 otherwise, under the same limits a token.
"""

from __future__ import annotations

import gc
import os
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.config import SpecialTokens
from heedful.generation import decode, stream

TOKENS = 10_000 if os.environ.get("HEEDFUL_GRID") == "full" else 1500
WINDOW = 64
KEPT = 2 * 2 * 2 * 8 * 4  # bytes of a token's keys and values: layers, heads, numbers of float32


def model_of(name: str) -> Any:
    if name == "window":  # Mistral's shape
        config = presets.llama(32, 2, 4, 2, 48, 50, length=2 * TOKENS)
        config = replace(config, decoder=replace(config.decoder, window=WINDOW))
    else:  # GPT-2's, that reads its last tokens anew
        config = presets.gpt2(32, 1, 2, 50, WINDOW)
    return heedful.create(replace(config, special=SpecialTokens(pad=0, start=1)), seed=0).eval()  # nothing ends it


def alive() -> int:
    """Bytes of all tensors, each storage once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of objects that only want to be asked
        tensors = [one for one in gc.get_objects() if type(one) in (Tensor, torch.nn.Parameter)]
        stored = [one.untyped_storage() for one in tensors if one.device.type == "cpu" and one.layout is torch.strided]
    found = {one.data_ptr(): one.nbytes() for one in stored}
    return sum(found.values())


def watched(model: Any, at: tuple[int, ...]) -> tuple[list[int], dict[int, int]]:
    """Lists that fill as the model works: keys of each step, and what is alive inside the steps ``at``."""
    keys: list[int] = []
    held: dict[int, int] = {}
    attention = model.decoder.block[-1].attention
    attend = attention.attend

    def counting(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        keys.append(k.size(2))
        if len(keys) in at:
            held[len(keys)] = alive()
        return attend(q, k, *rest)

    attention.attend = counting
    return keys, held


@pytest.mark.parametrize(("name", "options"), [("window", {}), ("context", {"context": WINDOW})])
@pytest.mark.full(keep=1)
def test_many_tokens_in_flat_memory(name: str, options: dict[str, Any]) -> None:
    model, prompt = model_of(name), torch.randint(50, (1, 40), generator=torch.Generator().manual_seed(1))
    early, late, before = TOKENS // 10, TOKENS - 100, alive()
    keys, held = watched(model, (early, late))
    made = sum(1 for _ in stream(model, prompt, max_new_tokens=TOKENS, do_sample=True, seed=1, **options))
    assert made == TOKENS
    assert max(keys) <= WINDOW + 1  # the window's and the new one
    assert max(keys[-early:]) == max(keys[:early])
    # its id, its number and where it stands, not its keys and values: those would be KEPT bytes more
    assert held[late] - held[early] < 24 * (late - early)
    assert held[late] - before < 40 * TOKENS + 2 * KEPT * WINDOW


def test_without_a_window_everything_is_kept() -> None:
    """The same figures of a cache that forgets nothing: the test above would see it."""
    model, count = model_of("window"), 500
    config = replace(model.config, decoder=replace(model.config.decoder, window=None))
    model, prompt = heedful.create(config, seed=0).eval(), torch.ones(1, 40, dtype=torch.int64)
    before = alive()
    keys, held = watched(model, (count - 10,))
    assert sum(1 for _ in stream(model, prompt, max_new_tokens=count, do_sample=True, seed=1)) == count
    assert keys[-1] == 40 + count - 1
    assert held[count - 10] - before > KEPT * count


@torch.no_grad()
def test_the_last_of_many_tokens_is_what_a_fresh_reading_says() -> None:
    """Two layers of a window see no more than twice as far: the end read alone gives the same log p."""
    model = model_of("window").double()
    prompt = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(1))
    made = decode(model, prompt, max_new_tokens=400, do_sample=True, seed=1, logprobs=True)
    end = made.ids[:, -4 * WINDOW :]
    log_p = model(end)[:, :-1].log_softmax(-1).gather(2, end[:, 1:, None])[..., 0]
    torch.testing.assert_close(log_p[:, -WINDOW:], made.logprobs[:, -WINDOW:], atol=1e-3, rtol=0)
