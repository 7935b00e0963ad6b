"""The model card: what the Hub reads at its head, what people read below."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import heedful
from heedful import presets
from heedful.config import StackConfig
from heedful.pretrained import read_card, save
from heedful.pretrained.model_card import MARK, update_model_card

EXTRA: dict[str, Any] = {
    "task": "text-classification",
    "labels": ["no", "yes"],
    "data": {"train": ["/home/ada/data/sst2.tsv", "builtin:cldr-dates/en-fr"], "examples": 12345},
    "metrics": {"accuracy": 0.87123, "loss": 0.4, "confusion": [[1, 2]], "best": None, "nan": float("nan")},
    "settings": {"start_from": "sentence-transformers/MiniLM@v1", "out": "/home/ada/runs/x"},
}
VERIFICATION = {
    "ok": True,
    "date": "2026-01-02",
    "versions": {"heedful": "0.1.0", "transformers": "5.0"},
    "checks": [{"name": "logits", "verdict": "ok", "difference": 1.234e-7, "allowed": 1e-5, "reason": ""}],
}


@pytest.fixture
def model() -> Any:
    config = presets.get("bert-base")
    small = StackConfig(dim=16, depth=1, heads=2, ff_dim=64, placement="post", embedding_norm=True)
    small = replace(small, position=config.encoder.position, norm_eps=1e-12)
    embedding = replace(config.embedding, vocab_size=11)
    return heedful.create(replace(config, embedding=embedding, encoder=small), head="sequence", seed=0)


def test_the_hub_reads_task_metrics_and_base(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "sst2", extra=EXTRA)
    head = ModelCard.load(tmp_path / "sst2" / "README.md").data
    assert head.library_name == "heedful"
    assert head.pipeline_tag == "text-classification"
    assert head.tags == ["heedful", "bert"]
    assert head.base_model == "sentence-transformers/MiniLM"
    assert head.license is None
    assert head.metrics == ["accuracy", "loss"]
    assert head.model_name == "sst2"
    (accuracy, loss) = head.eval_results
    assert (accuracy.metric_type, accuracy.metric_value) == ("accuracy", 0.87123)
    assert (loss.metric_type, loss.metric_value) == ("loss", 0.4)
    assert accuracy.dataset_name == "sst2.tsv, builtin:cldr-dates/en-fr"
    save(model, tmp_path / "sst2", extra={**EXTRA, "license": "apache-2.0", "metrics": {"loss": 1e-5}})
    assert ModelCard.load(tmp_path / "sst2" / "README.md").data.eval_results[0].metric_value == 1e-5
    assert ModelCard.load(tmp_path / "sst2" / "README.md").data.license == "apache-2.0"


def test_people_read_layout_data_and_checks(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "sst2", extra={**EXTRA, "verification": VERIFICATION})
    text = (tmp_path / "sst2" / "README.md").read_text(encoding="utf-8")
    for part in (
        "# sst2",
        "layout of `bert` (`BertForSequenceClassification`) for text-classification",
        f", with {model.count():,} parameters",
        "fine-tuned from `sentence-transformers/MiniLM@v1`",
        "Labels: no, yes.",
        "Trained on `sst2.tsv`, `builtin:cldr-dates/en-fr`, 12,345 examples.",
        "| accuracy | 0.8712 |",
        "Checked by `heedful verify` on 2026-01-02 (heedful 0.1.0, transformers 5.0)",
        "| logits | ok | 1.2e-07 | 1e-05 |",
        'predict = heedful.pipeline("text-classification", "sst2")',
        'model = BertForSequenceClassification.from_pretrained("sst2")',
    ):
        assert part in text
    assert "/home/ada" not in text
    assert str(tmp_path) not in text


def test_people_read_the_verdict(model: Any, tmp_path: Path) -> None:
    text = "has not learned more than the most frequent label: accuracy 50 against 52"
    save(model, tmp_path / "sst2", extra={**EXTRA, "verdict": {"kind": "chance", "text": text}})
    assert f"## Verdict\n\nOn the validation data: {text}.\n" in (tmp_path / "sst2" / "README.md").read_text("utf-8")
    save(model, tmp_path / "sst2", extra=EXTRA)  # a run of an early version, and one that has not ended
    assert "Verdict" not in (tmp_path / "sst2" / "README.md").read_text("utf-8")


def test_a_model_without_task_and_metrics(model: Any, tmp_path: Path) -> None:
    save(heedful.create(replace(model.config, embedding=replace(model.config.embedding, segments=0))), tmp_path / "own")
    if read_card(tmp_path / "own")["layout"] == "heedful":
        text = (tmp_path / "own" / "README.md").read_text(encoding="utf-8")
        assert "A Transformer (encoder) in heedful's own layout, with" in text
        assert "only heedful loads it" in text
    save(model, tmp_path / "m")
    head = ModelCard.load(tmp_path / "m" / "README.md").data
    assert (head.library_name, head.pipeline_tag, head.base_model, head.eval_results) == ("heedful", None, None, None)


def test_a_folder_here_is_no_base_of_the_hub(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for base in ("runs/mine", str(tmp_path / "runs" / "mine")):
        save(model, tmp_path / "m", extra={"settings": {"start_from": base}})
        assert ModelCard.load(tmp_path / "m" / "README.md").data.base_model is None
        text = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
        assert "It was fine-tuned from `mine`." in text


def test_a_persons_own_card_stays(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path, extra={"task": "x"})
    path = tmp_path / "README.md"
    assert MARK in path.read_text(encoding="utf-8")
    save(model, tmp_path, extra={"task": "y"})
    assert "pipeline_tag: y" in path.read_text(encoding="utf-8")
    for mine in (b"# Mine\n", path.read_bytes().replace(MARK.encode(), b""), b"\xff\xfe"):
        path.write_bytes(mine)
        save(model, tmp_path)
        update_model_card(tmp_path)
        assert path.read_bytes() == mine


def test_the_card_follows_heedful_json(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path, extra={"task": "text-classification"})
    (tmp_path / "heedful.json").write_text(json.dumps(read_card(tmp_path) | {"verification": VERIFICATION}))
    update_model_card(tmp_path)
    assert "| logits | ok | 1.2e-07 | 1e-05 |" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("odd", [3, "x", [], None, {"train": 3}, {"checks": [3]}])
def test_odd_values_are_left_out(odd: Any, model: Any, tmp_path: Path) -> None:
    save(model, tmp_path, extra={"data": odd, "metrics": odd, "settings": odd, "verification": odd})
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "heedful"
