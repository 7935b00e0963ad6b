"""The model card: what the Hub reads at its head, what people read below."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from huggingface_hub import ModelCard
from PIL import Image
from sklearn import metrics as scores

import heedful
from card_code import outputs_of_card
from heedful import cli, presets
from heedful.config import StackConfig
from heedful.metrics.classification import single_label_metrics
from heedful.metrics.translation import translation_metrics
from heedful.pretrained import read_card, save
from heedful.pretrained.model_card import MARK, update_model_card
from tolerances import approx

EXTRA: dict[str, Any] = {
    "task": "text-classification",
    "labels": ["no", "yes"],
    "data": {"train": ["/home/ada/data/sst2.tsv", "builtin:cldr-dates/en-fr"], "examples": 12345},
    "metrics": {"accuracy": 87.123, "loss": 0.4, "confusion": [[1, 2]], "best": None, "nan": float("nan")},
    "settings": {
        "start_from": "sentence-transformers/MiniLM@v1",
        "out": "/home/ada/runs/x",
        "data": {"max_length": 64},
    },
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
    assert head.library_name == "transformers"
    assert head.pipeline_tag == "text-classification"
    assert head.tags == ["heedful", "bert"]
    assert head.base_model == "sentence-transformers/MiniLM"
    assert head.license is None
    assert head.metrics == ["accuracy"]
    assert head.model_name == "sst2"
    (accuracy,) = head.eval_results
    assert (accuracy.metric_type, accuracy.metric_value) == ("accuracy", 0.87123)
    assert accuracy.dataset_name == "sst2.tsv, builtin:cldr-dates/en-fr"
    save(model, tmp_path / "sst2", extra={**EXTRA, "license": "apache-2.0", "metrics": {"mae": 1e-5}})
    assert ModelCard.load(tmp_path / "sst2" / "README.md").data.eval_results[0].metric_value == 1e-5
    assert ModelCard.load(tmp_path / "sst2" / "README.md").data.license == "apache-2.0"


def test_people_read_layout_data_and_checks(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "sst2", extra={**EXTRA, "verification": VERIFICATION})
    text = (tmp_path / "sst2" / "README.md").read_text(encoding="utf-8")
    for part in (
        "# sst2",
        "layout of `bert` (`BertForSequenceClassification`) for text-classification",
        f", with {model.num_parameters():,} parameters",
        "fine-tuned from `sentence-transformers/MiniLM@v1`",
        "Trained on `sst2.tsv`, `builtin:cldr-dates/en-fr`.",
        "| accuracy | 87.12 |",
        "## Limits\n\n- Training examples: 12,345.\n- Maximum length in training: 64 tokens.\n- Labels: no, yes.\n",
        "Checked by `heedful verify` on 2026-01-02 (heedful 0.1.0, transformers 5.0)",
        "| logits | ok | 1.2e-07 | 1e-05 |",
        'print(heedful.pipeline("text-classification", "sst2")("A text."))',
        'predict = pipeline("text-classification", model="sst2")',
    ):
        assert part in text
    assert "/home/ada" not in text
    assert str(tmp_path) not in text


def test_people_read_the_verdict(model: Any, tmp_path: Path) -> None:
    text = "has not learned more than the most frequent label: accuracy 50 against 52"
    save(model, tmp_path / "sst2", extra={**EXTRA, "verdict": {"kind": "chance", "text": text}})
    assert f"## Limits\n\n- On the validation data: {text}.\n" in (tmp_path / "sst2" / "README.md").read_text("utf-8")
    save(model, tmp_path / "sst2", extra=EXTRA)  # a run of an early version, and one that has not ended
    assert "On the validation data:" not in (tmp_path / "sst2" / "README.md").read_text("utf-8")


def test_a_model_without_task_and_metrics(model: Any, tmp_path: Path) -> None:
    save(heedful.create(replace(model.config, embedding=replace(model.config.embedding, segments=0))), tmp_path / "own")
    if read_card(tmp_path / "own")["layout"] == "heedful":
        text = (tmp_path / "own" / "README.md").read_text(encoding="utf-8")
        assert "A Transformer (encoder) in heedful's own layout, with" in text
        assert "only heedful loads it" in text
    save(model, tmp_path / "m")
    head = ModelCard.load(tmp_path / "m" / "README.md").data
    assert (head.library_name, head.pipeline_tag, head.base_model, head.eval_results) == (
        "transformers",
        None,
        None,
        None,
    )


def test_a_folder_here_is_no_base_of_the_hub(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for base in ("runs/mine", str(tmp_path / "runs" / "mine")):
        save(model, tmp_path / "m", extra={"settings": {"start_from": base}})
        assert ModelCard.load(tmp_path / "m" / "README.md").data.base_model is None
        text = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
        assert "It was fine-tuned from `mine`." in text


def test_a_persons_own_card_stays(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path, extra={"task": "fill-mask"})
    path = tmp_path / "README.md"
    assert MARK in path.read_text(encoding="utf-8")
    save(model, tmp_path, extra={"task": "text-classification"})
    assert "pipeline_tag: text-classification" in path.read_text(encoding="utf-8")
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
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "transformers"


# --------------------------------------------------------------------------------------------------- the code of a card


def trained(folder: Path, task: str, train: Path, *options: str) -> Path:
    """A run of two small steps in ``folder/run``."""
    small = ["--max-steps=2", "--training.evaluate-every=2", "--training.schedule=constant", "--training.warmup=1"]
    sizes = [] if "--from" in options else ["--model.dim=16", "--model.heads=2", "--model.depth=1"]
    command = ["train", task, "--train", str(train), *small, *sizes, *options, "--out", str(folder / "run"), "--json"]
    assert cli.main(command) == 0
    return folder / "run"


def table(folder: Path, header: str, *lines: str) -> Path:
    (folder / "set.tsv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "set.tsv"


def labelled(folder: Path) -> Path:
    return table(folder, "text\tlabel", *(f"one {word} {n}\t{word}" for word in ("fig", "saw") for n in range(10)))


def test_the_code_of_an_ensemble_is_heedfuls_alone(tmp_path: Path) -> None:
    folder = trained(tmp_path, "text-classification", labelled(tmp_path), "--model.members=2")
    (output,) = outputs_of_card(folder)
    assert output["output"] in ("fig", "saw")
    text = (folder / "README.md").read_text("utf-8")
    assert "An ensemble of 2 Transformers (encoder), the folders `member-0` to `member-1`, in heedful's own" in text
    assert "Only heedful loads an ensemble" in text
    head = ModelCard.load(folder / "README.md").data
    assert (head.library_name, head.pipeline_tag, head.tags) == ("heedful", "text-classification", ["heedful"])


def test_the_code_for_pairs_of_texts(tmp_path: Path) -> None:
    rows = [f"one {word} {n}\t{word} two\t{word}" for word in ("fig", "saw") for n in range(10)]
    source = table(tmp_path, "text\ttext_pair\tlabel", *rows)
    ours, hub = outputs_of_card(trained(tmp_path, "text-classification", source, "--preset=bert-tiny"))
    theirs = hub if isinstance(hub, dict) else hub[0]
    assert ours["output"] == theirs["label"]
    assert ours["score"] == approx(theirs["score"])


def test_the_code_for_numbers_as_labels(tmp_path: Path) -> None:
    source = table(tmp_path, "text\tlabel", *(f"a text {n} of {n % 3}\t{n / 8}" for n in range(24)))
    folder = trained(tmp_path, "text-classification", source, "--preset=bert-tiny")
    ours, hub = outputs_of_card(folder)
    assert ours["output"] == approx(hub[0]["score"])
    assert "- Labels:" not in (folder / "README.md").read_text("utf-8")
    types = {result.metric_type for result in ModelCard.load(folder / "README.md").data.eval_results}
    assert {"r_squared", "pearsonr", "spearmanr", "mae"} == types


def test_the_code_for_images_in_color(tmp_path: Path) -> None:
    for color in ("red", "blue"):
        (tmp_path / "set" / color).mkdir(parents=True)
        for n in range(8):
            Image.new("RGB", (8 + n, 8), color).save(tmp_path / "set" / color / f"{n}.png")
    folder = trained(tmp_path, "image-classification", tmp_path / "set", "--image.size=8", "--model.patch-size=4")
    ours, hub = outputs_of_card(folder)
    assert 'pipeline("image-classification", model="run")' in (folder / "README.md").read_text("utf-8")
    assert ours["output"] == hub[0]["label"]


def test_the_code_for_spans_that_an_encoder_decoder_fills(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(f"the fig {n} fell on the saw\n" for n in range(30)))
    options = ("--preset=t5-small", "--tokenizer.size=400", "--data.max-length=16")
    ours, hub = outputs_of_card(trained(tmp_path, "fill-mask", tmp_path / "book.txt", *options))
    assert ours["output"].startswith("A ")
    assert isinstance(hub, str)


def test_the_code_of_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = trained(tmp_path / "base", "text-classification", labelled(tmp_path), "--preset=bert-tiny")
    options = ("--from", str(base), "--lora.rank=2")
    folder = trained(tmp_path, "text-classification", labelled(tmp_path), *options)
    (ours,) = outputs_of_card(folder)
    assert ours["output"] in ("fig", "saw")
    assert ModelCard.load(folder / "README.md").data.library_name == "peft"
    assert "This is an adapter in the format of `peft`." in (folder / "README.md").read_text("utf-8")


def test_code_without_a_pipeline_loads_the_model(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "m")  # of an unknown task
    ours, hub = outputs_of_card(tmp_path / "m")
    assert type(hub).__name__ == "BertForSequenceClassification"
    assert type(ours) is type(model)
    save(model, tmp_path / "m", extra={"task": "a-task-of-my-own"})
    text = (tmp_path / "m" / "README.md").read_text("utf-8")
    assert 'predict = heedful.pipeline("a-task-of-my-own", "m")' in text
    assert ModelCard.load(tmp_path / "m" / "README.md").data.pipeline_tag is None


# ------------------------------------------------------------------------------------------------ languages and metrics


@pytest.mark.parametrize(
    ("sources", "tags", "languages"),
    [
        (["builtin:cldr-dates"], None, ["en", "fr"]),
        (["builtin:cldr-dates/de-pt_BR:train"], None, ["de", "pt"]),
        (["builtin:cldr-dates/en-fr", "builtin:shapes"], None, ["en", "fr"]),
        (["builtin:cldr-dates/en-fr", "more.tsv"], None, None),  # some texts may be in another language
        (["train.en", "train.fr"], None, None),
        (["builtin:digits"], None, None),
        (["m.tsv"], ["de", "fr"], ["de", "fr"]),
    ],
)
def test_languages_are_those_that_are_known(
    sources: list[str], tags: Any, languages: Any, model: Any, tmp_path: Path
) -> None:
    extra = {"task": "translation", "data": {"train": sources}, **({"languages": tags} if tags else {})}
    save(model, tmp_path / "m", extra=extra)
    assert ModelCard.load(tmp_path / "m" / "README.md").data.language == languages
    text = (tmp_path / "m" / "README.md").read_text("utf-8")
    expected = f"- Languages: {', '.join(languages)}." if languages else "- The language of the texts is not recorded;"
    assert expected in text


def results_of(model: Any, folder: Path, metrics: dict[str, Any]) -> dict[tuple[str, str | None], float]:
    save(model, folder, extra={"task": "text-classification", "metrics": metrics})
    results = ModelCard.load(folder / "README.md").data.eval_results
    return {(result.metric_type, (result.metric_args or {}).get("average")): result.metric_value for result in results}


def test_metrics_of_labels_are_those_of_scikit_learn(model: Any, tmp_path: Path) -> None:
    """``evaluate`` computes these with scikit-learn."""
    true, predicted = np.array([0, 1, 0, 2, 2]), np.array([0, 1, 2, 2, 1])
    counts = [np.bincount(each, minlength=3) for each in (true, predicted, true[true == predicted])]
    written = results_of(model, tmp_path / "m", {**single_label_metrics(*counts), "top5_accuracy": 100.0, "loss": 1.0})
    assert written == {
        ("accuracy", None): pytest.approx(scores.accuracy_score(true, predicted), abs=1e-6),
        ("f1", "macro"): pytest.approx(scores.f1_score(true, predicted, average="macro"), abs=1e-6),
        ("matthews_correlation", None): pytest.approx(scores.matthews_corrcoef(true, predicted), abs=1e-6),
    }  # the Hub has no name for the others, which only the table has
    text = (tmp_path / "m" / "README.md").read_text("utf-8")
    assert "| accuracy | 60 |" in text
    assert "| top5_accuracy | 100 |" in text


def test_metrics_of_translations_are_those_of_sacrebleu(model: Any, tmp_path: Path) -> None:
    outputs, references = ["the cat sat on the mat", "a dog ran off"], ["the cat sat on a mat", "a dog ran away"]
    written = results_of(model, tmp_path / "m", translation_metrics(outputs, references))
    assert written["bleu", None] == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score)
    assert written["chrf", None] == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert written["exact_match", None] == 0


def test_metrics_of_numbers_and_several_labels(model: Any, tmp_path: Path) -> None:
    ours = {"micro_f1": 66.0, "r2": -20.0, "pearson": 50.0, "spearman": 40.0, "mae": 0.25, "perplexity": 12.5}
    assert results_of(model, tmp_path / "m", {**ours, "rougeL": 30.0}) == {
        ("f1", "micro"): 0.66,
        ("r_squared", None): -0.2,
        ("pearsonr", None): 0.5,
        ("spearmanr", None): 0.4,
        ("mae", None): 0.25,
        ("perplexity", None): 12.5,
        ("rouge", None): 0.3,
    }


def test_a_license_is_left_to_the_person(model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "m", extra=EXTRA)
    text = (tmp_path / "m" / "README.md").read_text("utf-8")
    assert "This card names no license." in text
    save(model, tmp_path / "m", extra={**EXTRA, "license": "apache-2.0"})
    assert "names no license" not in (tmp_path / "m" / "README.md").read_text("utf-8")
