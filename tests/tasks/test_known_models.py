"""``--from auto`` and the advice to start from a pretrained model: the choice, what is here, and one line for each."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import tasks
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.pretrained.folder import read_card
from heedful.settings import RunSettings, read_toml
from heedful.tasks import known_models
from heedful.tasks.known_models import (
    MINILM,
    MULTILINGUAL_MINILM,
    T5_SMALL,
    advice,
    advice_for,
    chosen_model,
    with_known_model,
)
from heedful.util import downloads

ENGLISH = [
    {"text": f"it was a {word} film and a long day {n}", "label": word} for n in range(40) for word in ("good", "bad")
]
COMMIT = "0" * 39 + "1"
SMALL = {"dim": 16, "heads": 2, "depth": 1}


def rows_of(*texts: str) -> Rows:
    return Rows(Row({"text": text, "label": "žluťoučký"}, "a.tsv", 1) for text in texts)


def settings_of(task: str = "text-classification", **more: Any) -> RunSettings:
    return RunSettings(task=task, train=("a.tsv",), out="a", **more)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder in the layout of the Hub's cache."""
    run = tmp_path_factory.mktemp("run")
    heedful.train("text-classification", ENGLISH, out=run / "out", max_steps=1, quiet=True, model_settings=SMALL)
    snapshot = tmp_path_factory.mktemp("hub") / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((run / "out" / name).read_bytes())
    return snapshot


# ---------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (
            "The café’s owner — £5, 20 °C outside — asked. " + "And nobody in the room said a single word. " * 30,
            MINILM,
        ),
        ("日本語の文章です。", MULTILINGUAL_MINILM),
        ("Das Mädchen läuft über die Straße.", MULTILINGUAL_MINILM),
        ("12 + 30 = 42 🙂", MINILM),
    ],
)
def test_the_letters_choose_the_language(text: str, model: known_models.KnownModel) -> None:
    assert chosen_model(known_models.ENCODERS, rows_of(text * 3))[0] is model


def test_words_of_rows_count_and_labels_do_not() -> None:
    row = Row({"words": ("Straße", "Öl"), "tags": ("O", "O")}, "a", 1)
    assert chosen_model(known_models.ENCODERS, [row])[0] is MULTILINGUAL_MINILM
    assert chosen_model(known_models.ENCODERS, rows_of("plain words"))[0] is MINILM


def test_the_only_model_of_a_task_is_taken_with_a_doubt() -> None:
    model, reason = chosen_model(known_models.SEQUENCE_TO_SEQUENCE, rows_of("Öl"))
    assert model is T5_SMALL
    assert "may not be English" in reason


def test_tasks_without_a_model_say_so() -> None:
    with pytest.raises(HeedfulError, match=r"uses of translation; name one \(--from NAME, of kind encoder-decoder\)"):
        with_known_model(tasks.get("translation"), [], settings_of("translation", start_from="auto"), print)
    assert [name for name in tasks.TASKS if tasks.get(name).known_models] == [
        "text-classification",
        "token-classification",
        "question-answering",
        "generative-question-answering",
        "summarization",
        "feature-extraction",
    ]


def test_another_model_stays(no_hub: None) -> None:
    settings = settings_of(start_from="runs/a")
    assert with_known_model(tasks.get("text-classification"), [], settings, print) is settings


# ------------------------------------------------------------------------------------------------------------- the run


def test_a_run_from_auto_names_the_revision(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetched(name: str, patterns: Any, revision: str | None = None, kind: str = "model") -> Path:
        asked.append((name, revision))
        return published

    monkeypatch.setattr("heedful.pretrained.folder.fetched", fetched)
    run = heedful.train("text-classification", ENGLISH, out=tmp_path / "run", model="auto", max_steps=2)
    origin = f"{MINILM.name}@{COMMIT}"
    said = capsys.readouterr().out
    assert "auto       sentence-transformers/all-MiniLM-L6-v2 (English; 22.7 M parameters, 91 MB): 0.0 %" in said
    assert f"model      from {origin}" in said
    assert "advice" not in said
    assert read_toml(tmp_path / "run" / "run.toml").start_from == origin
    assert read_card(run.folder)["settings"]["start_from"] == origin
    assert asked[0] == (MINILM.name, None)
    assert set(asked[1:]) == {(MINILM.name, COMMIT)}
    assert "base_model: sentence-transformers/all-MiniLM-L6-v2\n" in (Path(run.folder) / "README.md").read_text()

    heedful.train(
        "text-classification", ENGLISH, out=tmp_path / "run", model="auto", max_steps=3, resume=True, quiet=True
    )
    before = read_card(run.folder)["settings"]["start_from"]
    assert before == origin, "a resumed run keeps the choice"
    with pytest.raises(HeedfulError, match="model is runs/other, but the run"):
        heedful.train(
            "text-classification", ENGLISH, out=tmp_path / "run", model="runs/other", max_steps=4, resume=True
        )


def test_without_the_model_nothing_is_trained(tmp_path: Path, no_hub: None) -> None:
    with pytest.raises(HeedfulError, match=r"download huggingface.co/sentence-transformers/.*its folder: model FOLDER"):
        heedful.train("text-classification", ENGLISH, out=tmp_path / "run", model="auto", max_steps=1, quiet=True)
    assert not (tmp_path / "run" / "run.toml").exists()


def test_a_run_from_scratch_cannot_become_one_from_auto(tmp_path: Path, no_hub: None) -> None:
    heedful.train("text-classification", ENGLISH, out=tmp_path / "run", max_steps=1, quiet=True, model_settings=SMALL)
    with pytest.raises(HeedfulError, match="was started without it"):
        heedful.train("text-classification", ENGLISH, out=tmp_path / "run", model="auto", max_steps=2, resume=True)


# ---------------------------------------------------------------------------------------------------------- the advice


@pytest.mark.parametrize("state", ["downloaded", "answers", "silent"])
def test_the_advice_says_how_to_get_the_model_here(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_models, "downloaded", lambda name: state == "downloaded")
    monkeypatch.setattr(known_models, "hub_answers", lambda seconds: state == "answers")
    monkeypatch.setattr(known_models, "is_offline", lambda: False)
    line = advice(known_models.TEXT_CLASSIFICATION, rows_of("a film") * 3)
    assert "on 3 examples" in line
    assert "accuracy 89.3 from all-MiniLM-L6-v2, 83.6 from scratch" in line
    expected = {
        "downloaded": "--from auto (sentence-transformers/all-MiniLM-L6-v2, downloaded already)",
        "answers": "--from auto (downloads sentence-transformers/all-MiniLM-L6-v2, 22.7 M parameters, 91 MB)",
        "silent": "the Hub does not answer: download huggingface.co/sentence",
    }
    assert expected[state] in line
    assert "\n" not in line


def test_the_measured_gains_are_those_of_the_results() -> None:
    table = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    for models, figures in (
        (known_models.TEXT_CLASSIFICATION, ("accuracy 83.6", "accuracy 89.3")),
        (known_models.TOKEN_CLASSIFICATION, ("F1 46.0", "F1 8.2")),
        (known_models.FEATURE_EXTRACTION, ("recall@1 56.9", "recall@1 1.1")),
    ):
        for figure in figures:
            assert figure in table
            assert figure.rpartition(" ")[2] in models.gain


def test_who_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bool] = []
    monkeypatch.setattr(known_models, "check_hub", lambda: checks.append(True))
    kind, few = tasks.get("text-classification"), rows_of("a")
    assert advice_for(kind, few, settings_of()) is not None
    assert advice_for(kind, few, settings_of(preset="bert-mini")) is not None
    assert checks == [True, True]
    assert advice_for(kind, few, settings_of(start_from="a")) is None
    assert advice_for(kind, few, settings_of(resume=True)) is None
    assert advice_for(kind, few * 10_000, settings_of()) is None
    assert advice_for(tasks.get("translation"), few, settings_of("translation")) is None
    names = rows_of(*(f"Nowakowska{number} Szymańska{number}" for number in range(200)))
    assert advice_for(kind, names, settings_of()) is None
    assert advice_for(tasks.get("feature-extraction"), names, settings_of("feature-extraction")) is not None
    assert len(checks) == 3, "nobody else uses the network"


def test_a_run_from_scratch_is_advised_in_its_head(
    tmp_path: Path, no_hub: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = heedful.train("text-classification", ENGLISH, out=tmp_path / "run", max_steps=1, model_settings=SMALL)
    head = capsys.readouterr().out.partition("step 1 ")[0]
    assert "advice     on 64 examples a pretrained model is probably better" in head
    assert "none is here and HF_HUB_OFFLINE is set" in head
    remedy = read_card(run.folder)["verdict"]["remedy"]
    assert remedy is None or "--from auto" not in remedy, "the head has said that it is out of reach"


@pytest.mark.parametrize("state", ["downloaded", "answers", "silent"])
def test_the_end_of_a_run_advises_no_model_that_its_head_called_out_of_reach(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_models, "downloaded", lambda name: state == "downloaded")
    monkeypatch.setattr(known_models, "hub_answers", lambda seconds: state == "answers")
    monkeypatch.setattr(known_models, "check_hub", lambda: None)
    kind, few = tasks.get("text-classification"), rows_of("a film") * 3
    assert known_models.is_out_of_reach(kind, few, settings_of()) == (state == "silent")
    assert not known_models.is_out_of_reach(kind, few * 10_000, settings_of()), "the head has said nothing"
    assert not known_models.is_out_of_reach(tasks.get("image-classification"), few, settings_of())


def test_a_silent_hub_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import time

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        downloads.check_hub()
        assert not downloads.hub_answers(0.05)
        assert time.monotonic() - began < downloads.PATIENCE / 2
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not downloads.hub_answers(60), "offline nobody is asked"


def test_the_cache_is_read_without_the_network(
    published: Path, tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heedful.pretrained.folder import downloaded

    repository = tmp_path / f"models--{MINILM.name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert not downloaded(MINILM.name)
    (snapshot / "config.json").write_bytes((published / "config.json").read_bytes())
    assert not downloaded(MINILM.name), "a download without weights was cut off"
    (snapshot / "model.safetensors").write_bytes((published / "model.safetensors").read_bytes())
    assert downloaded(MINILM.name)


@pytest.mark.full
def test_minilm_itself_is_what_auto_takes(
    tmp_path: Path, shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_data("weights/minilm-l6")
    monkeypatch.setattr("heedful.pretrained.folder.fetched", lambda *given, **more: folder)
    few = random.Random(0).sample(ENGLISH, 16)
    run = heedful.train("text-classification", few, out=tmp_path / "run", model="auto", max_steps=1, quiet=True)
    assert torch.isfinite(torch.tensor(run.metrics["loss"]))
    assert run.model.num_parameters() > 22_000_000
