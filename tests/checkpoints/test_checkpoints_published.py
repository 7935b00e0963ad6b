"""Published folders as they are, against what ``transformers`` computed from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.checkpoints import load

WEIGHTS = Path(__file__).parents[2].parent / "shared" / "data" / "weights"


def folder(name: str) -> Path:
    if not (WEIGHTS / name / "model.safetensors").exists():
        pytest.skip(f"{name} is not beside this checkout")
    return WEIGHTS / name


def expected(path: Path) -> Any:
    return json.loads((path / "expected.json").read_text())


def close(found: torch.Tensor, wanted: list[Any]) -> None:
    assert (found.flatten() - torch.tensor(wanted).flatten()).abs().max() <= 3e-5  # five decimals are given


@torch.no_grad()
def test_minilm() -> None:
    """float16, names without ``bert.``, a stored row of position ids."""
    path = folder("minilm-l6")
    wanted, model = expected(path), load(path)
    assert model.dtype == torch.float32
    assert model.count() == wanted["parameters"]
    ids = {case["text"]: torch.tensor([case["ids"]]) for case in wanted["tokenizer"]}
    pooled = load(path, head="pooled")
    assert vars(pooled)["fresh"] == []
    for case in wanted["sentences"]:
        hidden = model(ids[case["text"]])[0]
        close(hidden[0, :8], case["last_hidden_first8"])
        close(model.head.pooler(hidden[0])[:8], case["pooler_first8"])
        mean = pooled(ids[case["text"]])[0]
        close(mean.norm(), [case["mean_pooled_norm"]])
        close((mean / mean.norm())[:8], case["embedding_first8"])
    pair = wanted["pair"]
    hidden = model(torch.tensor([pair["ids"]]), segments=torch.tensor([pair["segments"]]))[0]
    close(hidden[0, :8], pair["last_hidden_first8"])
    close(hidden[-1, -8:], pair["last_hidden_last8"])


@torch.no_grad()
def test_bert_tiny_question() -> None:
    path = folder("bert-tiny-question")
    wanted, model = expected(path), load(path)
    assert model.count() == wanted["parameters"]
    assert vars(model)["labels"] == ["generic", "directed"]
    for case in wanted["sentences"]:
        ids = torch.tensor([case["ids"]])
        close(model(ids), case["logits"])
        close(model.hidden(ids)[0, 0, :8], case["hidden_first8"])
    pair = wanted["pair"]
    close(model(torch.tensor([pair["ids"]]), segments=torch.tensor([pair["segments"]])), pair["logits"])
