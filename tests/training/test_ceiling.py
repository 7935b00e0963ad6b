"""The share of the ceiling: FLOPs as PyTorch counts them, padding that is none, and when anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.config import DecoderConfig, EmbeddingConfig, LanguageHead, StackConfig
from heedful.models import Model, build
from heedful.tasks.token_batches import IGNORED
from heedful.training import ceiling as module
from heedful.training.ceiling import Ceiling, flops_of, peak_flops

Batch = Mapping[str, Tensor]


def ids(rows: int, length: int) -> Tensor:
    return torch.arange(5, 5 + rows * length).view(rows, length) % 90


def decoder() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = _small_decoder()
    return model, {"ids": ids(3, 24), "labels": ids(3, 24)}, lambda model, batch: model(batch["ids"]).sum()


def _small_decoder(**changes: Any) -> Model:
    stack = StackConfig(**({"dim": 32, "depth": 3, "heads": 4, "causal": True} | changes))
    config = DecoderConfig(embedding=EmbeddingConfig(vocab_size=100), decoder=stack, head=LanguageHead(tied=True))
    return build(config)


def grouped() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = _small_decoder(kv_heads=2, gated=True, head_dim=16)
    return model, {"ids": ids(2, 40), "labels": ids(2, 40)}, lambda model, batch: model(batch["ids"]).sum()


def masked() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = heedful.create("bert-tiny", head="masked-language-model", seed=0)
    labels = torch.full((4, 16), IGNORED)
    labels[:, 3:6] = 7
    batch = {"ids": ids(4, 16), "mask": torch.ones(4, 16, dtype=torch.bool), "labels": labels}

    def learned(model: Model, batch: Batch) -> Tensor:  # the head is computed for what is hidden alone
        hidden = model.hidden(batch["ids"], batch["mask"])
        return model.head(hidden[batch["labels"] != IGNORED]).sum()

    return model, batch, learned


def classifier() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = heedful.create("bert-tiny", head="sequence", num_labels=3, seed=0)
    batch = {"ids": ids(4, 16), "mask": torch.ones(4, 16, dtype=torch.bool), "labels": torch.zeros(4, 3)}
    return model, batch, lambda model, batch: model(batch["ids"], batch["mask"]).sum()


def pairs() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = heedful.create("transformer-tiny", seed=0)
    batch = {
        "source": ids(2, 30),
        "source_mask": torch.ones(2, 30, dtype=torch.bool),
        "target": ids(2, 20),
        "labels": ids(2, 20),
    }
    return model, batch, lambda model, batch: model(batch["source"], batch["target"], batch["source_mask"]).sum()


def images() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = heedful.create("vit-micro", num_labels=10, seed=0)
    batch = {"pixels": torch.ones(3, 1, 28, 28), "labels": torch.zeros(3, dtype=torch.long)}
    return model, batch, lambda model, batch: model(batch["pixels"]).sum()


def adapted() -> tuple[Model, Batch, Callable[[Model, Batch], Tensor]]:
    model = _small_decoder()
    add_adapter(model, LoraConfig(rank=4, targets=["query", "value", "up"]), seed=0)
    return model, {"ids": ids(3, 24), "labels": ids(3, 24)}, lambda model, batch: model(batch["ids"]).sum()


CASES = {one.__name__: one for one in (decoder, grouped, masked, classifier, pairs, images, adapted)}


def counted(model: Model, batch: Batch, learned: Callable[[Model, Batch], Tensor]) -> int:
    """PyTorch's count for a forward and backward pass, attention written out."""
    model.train()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        learned(model, batch).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_that_pytorch_counts(case: str) -> None:
    """Exactly, but for an adapter, below whose first one no gradient of an input is wanted."""
    model, batch, learned = CASES[case]()
    slack = 0.06 if case == "adapted" else 1e-9
    assert flops_of(model)(batch) == pytest.approx(counted(model, batch, learned), rel=slack)


def test_the_formula_of_the_paper() -> None:
    """6 N + 12 L d T a token, N with the output head (Chowdhery et al. 2022, appendix B)."""
    model = _small_decoder(dim=32, depth=3, heads=4)
    n = 3 * (4 * 32 * 32 + 2 * 32 * 128) + 32 * 100
    assert flops_of(model)({"ids": ids(5, 24), "labels": ids(5, 24)}) == 5 * 24 * (6 * n + 12 * 3 * 32 * 24)


def test_padding_is_no_work() -> None:
    """A padded batch is as much work as its texts one by one."""
    model, _, _ = pairs()
    work, sizes = flops_of(model), [(30, 4), (11, 20), (1, 1)]
    alone, source, mask, labels = 0.0, ids(3, 30), torch.zeros(3, 30, dtype=torch.bool), torch.full((3, 20), IGNORED)
    for row, (long, short) in enumerate(sizes):
        one = {"source": ids(1, long), "source_mask": torch.ones(1, long, dtype=torch.bool), "labels": ids(1, short)}
        alone += work(one)
        mask[row, -long:] = True  # on either side
        labels[row, :short] = 7
    assert work({"source": source, "source_mask": mask, "labels": labels}) == pytest.approx(alone)
    texts = flops_of(masked()[0])
    short = {"ids": ids(2, 9), "mask": torch.ones(2, 9, dtype=torch.bool), "labels": torch.full((2, 9), IGNORED)}
    padded = {name: F.pad(tensor, (0, 7), value=IGNORED if name == "labels" else 0) for name, tensor in short.items()}
    assert texts(padded) == texts(short)


def test_texts_packed_in_a_row_look_at_themselves() -> None:
    work = flops_of(_small_decoder())
    mask = torch.tensor([[1] * 10 + [2] * 9 + [0] * 5, [3] * 24])
    packed = {"ids": ids(2, 24), "labels": ids(2, 24).masked_fill(mask == 0, IGNORED), "mask": mask}
    alone = [{"ids": ids(1, n), "labels": ids(1, n)} for n in (10, 9, 24)]
    assert work(packed) == pytest.approx(sum(map(work, alone)))
    packed["texts"] = packed.pop("mask")  # as text-generation calls it
    assert work(packed) == pytest.approx(sum(map(work, alone)))


def test_a_sliding_window_bounds_what_is_looked_at() -> None:
    batch = {"ids": ids(2, 24), "labels": ids(2, 24)}
    near, far = (flops_of(_small_decoder(window=window))(batch) for window in (8, None))
    assert far - near == 12 * 3 * 32 * 2 * 24 * (24 - 8)
    mixed = flops_of(_small_decoder(window=(None, 8, None)))(batch)
    assert far - mixed == 12 * 32 * 2 * 24 * (24 - 8)


def test_both_sides_of_a_pair_are_counted() -> None:
    model = heedful.create("bert-tiny", head="pooled", seed=0)
    one = {"text.ids": ids(2, 9), "text.mask": torch.ones(2, 9, dtype=torch.bool)}
    other = {"text_pair.ids": ids(2, 5), "text_pair.mask": torch.ones(2, 5, dtype=torch.bool)}
    work, same = flops_of(model), {"same": torch.zeros(2, 2)}
    assert work(one | other | same) == work(one | same) + work(other | same) > work(one | same) > 0


def test_nothing_is_done_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [100.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    one = Ceiling(lambda batch: made.append("counted") or 50.0, lambda: made.append("measured") or 1000.0)
    for _ in range(3):
        one.add([{}])
        assert one.share(1.0) is None
        now[0] += 14
    assert made == []
    assert one.share(1.0) is None  # measured now, 42 s from the first line; its own steps were not counted
    assert made == ["measured"]
    one.add([{}, {}])
    assert one.share(0.5) == 0.2
    assert one.share(0.5) is None  # no step since
    assert made == ["measured", "counted", "counted"]


def test_no_run_reaches_more_than_the_ceiling() -> None:
    """A peak that was measured too low is measured again, twice at most; what exceeds it all the same is not told."""
    peaks = [100.0, 50.0, 200.0, 1000.0]
    one = Ceiling(lambda batch: 150.0, lambda: peaks.pop(0), after=0.0)
    assert one.share(1.0) is None
    shares = []
    for seconds in (2.0, 1.0, 1.0, 0.5, 1.0):
        one.add([{}])
        shares.append(one.share(seconds))
    assert shares == [0.75, None, 0.75, None, 0.75]
    assert peaks == [1000.0]


def test_no_share_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Ceiling(lambda batch: 1.0, lambda: None, after=0.0)
    assert one.share(1.0) is None
    one.add([{}])
    assert one.share(1.0) is None

    def full(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "randn", full)
    assert peak_flops(torch.device("cpu"), torch.float32) is None


@pytest.mark.parametrize("has", [True, False])
def test_bf16_has_no_ceiling_where_it_has_no_instructions(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has}, raising=False)
    monkeypatch.setattr("heedful.training.ceiling.onednn_product", lambda a, b, bias: a @ b)
    found = peak_flops(torch.device("cpu"), torch.bfloat16, seconds=0.05)
    assert (found is not None) == has


def test_measuring_draws_nothing() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = peak_flops(torch.device("cpu"), torch.float32, seconds=0.05)
    assert torch.equal(torch.get_rng_state(), before)
    assert found is not None
    assert found > 0


def test_a_run_tells_its_share_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"the {a} {b}\t{'good' if a < b else 'bad'}\n" for a in "abcdefg" for b in "abcdefg")
    (tmp_path / "set.tsv").write_text("text\tlabel\n" + rows)
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300"]
    logs = {}
    for after in (1e9, 0.0):
        monkeypatch.setattr(Ceiling.__init__, "__defaults__", (after,))
        out = tmp_path / str(after)
        command = ["train", "text-classification", "--train", str(tmp_path / "set.tsv"), "--out", str(out), *small]
        assert cli.main([*command, "--max-steps=6", "--training.log-every=1", "--training.accumulate=2"]) == 0
        logs[after] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    told = capsys.readouterr().err
    assert "ceiling" not in told, "the word is not explained on the screen"
    shares = [line.pop("share_of_ceiling", None) for line in logs[0.0]]
    assert all(share is None or 0 < share <= 1 for share in shares)
    assert any(shares)
    assert not any("share_of_ceiling" in line for line in logs[1e9])
    for one, other in zip(logs[0.0], logs[1e9], strict=True):
        assert {k: v for k, v in one.items() if "second" not in k} == {
            k: v for k, v in other.items() if "second" not in k
        }
