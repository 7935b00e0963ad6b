from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.generation.options import DecodingSettings
from heedful.settings import (
    AnsweringSettings,
    AveragingSettings,
    DataSettings,
    DistillationSettings,
    ImageSettings,
    LoraSettings,
    MaskingSettings,
    ModelSettings,
    PoolingSettings,
    PreferenceSettings,
    ResolvedSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    TuningSettings,
    base,
    keys,
    read_toml,
    resolve,
    to_toml,
)


def test_dictionaries_and_back_through_json() -> None:
    run = RunSettings(
        task="translation",
        train=("a.en", "a.fr"),
        out="runs/x",
        start_from="runs/y",
        data=DataSettings(columns=("en", "fr")),
        training=TrainingSettings(betas=(0.9, 0.98), lr=1e-3, schedule="cosine"),
        model=ModelSettings(tied=False),
    )
    stored = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert stored["train"] == ["a.en", "a.fr"]
    assert stored["training"]["betas"] == [0.9, 0.98]
    assert RunSettings.from_dict(stored) == run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_step": 3}, "unknown setting 'max_step'; did you mean 'max_steps'?"),
        ({"training": {"lrr": 1}}, "unknown setting 'training.lrr'; did you mean 'training.lr'?"),
        ({"training": {"lr": "fast"}}, "--training.lr must be a number, not 'fast'"),
        ({"training": 3}, "--training must be TrainingSettings, not 3"),
        ({"seed": True}, "--seed must be a whole number, not True"),
        ({"seed": 1.5}, "--seed must be a whole number, not 1.5"),
        ({"model": {"heads": 2.5}}, "--model.heads must be a whole number, not 2.5"),
    ],
)
def test_wrong_dictionaries_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HeedfulError) as error:
        RunSettings.from_dict({"task": "translation", "train": ["a"], "out": "o", **values})
    assert str(error.value) == message


def test_annotations_are_evaluated_once() -> None:
    """A run builds a hundred sections; evaluating their annotations takes longer than all checks of their values."""
    settings = RunSettings(task="translation", train=("a",), out="o")
    evaluated = base.type_hints.cache_info().misses
    assert RunSettings.from_dict(settings.to_dict()) == settings
    TrainingSettings.check_value("lr", 0.5)
    assert base.type_hints.cache_info().misses == evaluated


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        (TrainingSettings, "lr", -1.0, "--training.lr must be above 0, not -1.0"),
        (TrainingSettings, "lr", 0, "--training.lr must be above 0, not 0"),
        (TrainingSettings, "lr", float("nan"), "--training.lr must be a finite number, not nan"),
        (TrainingSettings, "weight_decay", float("inf"), "--training.weight-decay must be a finite number, not inf"),
        (TrainingSettings, "betas", (0.9, 1.0), "--training.betas must be below 1, not 1.0"),
        (TrainingSettings, "betas", (0.9,), "--training.betas must be a list of a number, a number, not (0.9,)"),
        (TrainingSettings, "batch_tokens", 0, "--training.batch-tokens must be at least 1, not 0"),
        (
            TrainingSettings,
            "schedule",
            "cosin",
            "unknown --training.schedule 'cosin'; did you mean 'cosine'?",
        ),
        (ModelSettings, "dropout", 1, "--model.dropout must be below 1, not 1"),
        (ModelSettings, "dropout", -0.1, "--model.dropout must be at least 0, not -0.1"),
        (
            TokenizerSettings,
            "kind",
            1,
            "--tokenizer.kind must be one of bpe, unigram, wordpiece, word, character, not 1",
        ),
        (TokenizerSettings, "lowercase", 1, "--tokenizer.lowercase must be true or false, not 1"),
        (DataSettings, "valid_fraction", 1.0, "--data.valid-fraction must be below 1, not 1.0"),
        (DataSettings, "columns", "en", "--data.columns must be a list of texts, not 'en'"),
        (DecodingSettings, "num_beams", 0, "--num-beams must be at least 1, not 0"),
    ],
)
def test_wrong_values_name_their_flag(section: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(HeedfulError) as error:
        section(**{name: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "both"),
    [
        ({"resume": True, "overwrite": True}, ("--resume", "--overwrite")),
        ({"preset": "gpt2", "start_from": "runs/x"}, ("--preset", "--from")),
        ({"train": ()}, ("--train", "at least one")),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], both: tuple[str, str]) -> None:
    with pytest.raises(HeedfulError) as error:
        RunSettings(**{"task": "translation", "train": ("a",), "out": "o", **values})
    assert all(part in str(error.value) for part in both)


def test_one_text_of_columns_is_split_at_its_commas() -> None:
    assert DataSettings(columns=("en, fr",)).columns == ("en", "fr")
    assert DataSettings(columns=("a,b", "c")).columns == ("a,b", "c")
    assert LoraSettings(rank=2, targets=("query, up",)).targets == ("query", "up")
    with pytest.raises(HeedfulError, match=r"^--data\.columns must be a list of texts, not \(2,\)"):
        DataSettings(columns=[2])  # type: ignore[arg-type]  # as a TOML file may say


@pytest.mark.parametrize(("given", "read"), [("0, 256", (0, 256)), ([0, 256], (0, 256)), ("4", (4,)), (4, (4,))])
def test_windows_are_read_from_a_text_or_numbers(given: Any, read: tuple[int, ...]) -> None:
    settings = ModelSettings(window=given)
    assert settings.window == read
    assert ModelSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("given", ["none,4", "4,", "-1", "1.5", (-1,), (True,)])
def test_wrong_windows_are_refused(given: Any) -> None:
    with pytest.raises(HeedfulError, match=r"--model\.window "):
        ModelSettings(window=given)


def test_the_first_that_is_set_wins_field_by_field() -> None:
    asked = TrainingSettings(lr=1e-3, label_smoothing=0.0)
    preset = TrainingSettings(lr=5e-4, warmup=100, label_smoothing=0.1)
    suggested = TrainingSettings(warmup=4000, clip=1.0)
    resolved = resolve(asked, preset, suggested)
    assert resolved == TrainingSettings(lr=1e-3, warmup=100, clip=1.0, label_smoothing=0.0)
    run = RunSettings(task="t", train=("a",), out="o", training=asked)
    other = RunSettings(task="t", train=("a",), out="o", training=preset, max_steps=5)
    merged = resolve(run, other)
    assert (merged.max_steps, merged.training.lr, merged.training.warmup) == (5, 1e-3, 100)


def test_only_what_is_set_is_given() -> None:
    assert DecodingSettings(num_beams=5).given() == {"num_beams": 5}


def test_every_field_has_a_line_of_help_and_a_key() -> None:
    from dataclasses import fields

    sections = (DataSettings, TokenizerSettings, ImageSettings, MaskingSettings, PoolingSettings)
    sections += (PreferenceSettings, DistillationSettings, ModelSettings, TrainingSettings, AveragingSettings)
    sections += (TuningSettings, LoraSettings)
    for section in (*sections, DecodingSettings, AnsweringSettings, RunSettings):
        for f in fields(section):
            assert f.name in {s.section for s in sections} or 0 < len(f.metadata["help"]) < 80
    known = keys(RunSettings)
    assert {"task", "from", "max_minutes", "training.lr", "data.columns"} <= set(known)
    assert len(known) == len(set(known)) == 18 + sum(len(fields(section)) for section in sections)


def test_a_run_file_holds_what_was_set_and_is_read_back(tmp_path: Path) -> None:
    settings = RunSettings(
        task="translation",
        train=('a "b"\x7f\u2028\\é.tsv', "b.tsv"),
        out="o",
        start_from="model",
        max_minutes=2.0,
        resume=True,
        training=TrainingSettings(lr=1e-9, betas=(0.9, 0.98), record_attention=("a\tb\nc",), shard=False),
    )
    path = tmp_path / "run.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    assert list(values) == ["task", "train", "out", "from", "max_minutes", "training"], "unset options are left out"
    assert read_toml(path) == replace(settings, resume=False)


COMPLETE = RunSettings(
    task="translation",
    train=("a",),
    out="o",
    seed=3,
    training=TrainingSettings(
        optimiser="adamw",
        lr=1e-3,
        schedule="cosine",
        warmup=10,
        accumulate=1,
        label_smoothing=0.0,
        clip=1.0,
        weight_decay=0.0,
        betas=(0.9, 0.98),
        eps=1e-9,
        precision="fp32",
        patience=10,
        log_every=50,
        threads=1,
        batch_size=4,
    ),
)


def test_resolved_settings_hold_a_value_for_every_option_that_needs_one() -> None:
    resolved = ResolvedSettings.of(COMPLETE)
    training = resolved.training
    assert (training.lr, training.kernels, training.shard, training.record_attention) == (1e-3, "auto", False, ())
    assert (training.skip_spikes, resolved.averaging.polynomial, resolved.tuning.layer_decay) == (0.0, 0.0, 1.0)
    assert (resolved.deterministic, resolved.seed) == (False, 3)
    assert resolved.max_minutes is None


def test_files_hold_resolved_settings_as_they_were_given() -> None:
    shard = replace(COMPLETE, training=replace(COMPLETE.training, shard=False))
    for settings in (COMPLETE, shard):
        resolved = ResolvedSettings.of(settings)
        assert to_toml(resolved) == to_toml(settings)
        assert json.dumps(resolved.to_dict()) == json.dumps(settings.to_dict())
        changed = replace(resolved, training=replace(resolved.training, planned_steps=5), max_minutes=1.0)
        assert tomllib.loads(to_toml(changed))["training"]["planned_steps"] == 5


@pytest.mark.parametrize(
    ("missing", "option"),
    [
        (replace(COMPLETE, training=replace(COMPLETE.training, lr=None)), "--training.lr"),
        (replace(COMPLETE, training=replace(COMPLETE.training, label_smoothing=None)), "--training.label-smoothing"),
        (replace(COMPLETE, training=replace(COMPLETE.training, batch_size=None)), "--training.batch-tokens"),
    ],
    ids=["lr", "smoothing", "batch"],
)
def test_an_option_without_a_value_is_named(missing: RunSettings, option: str) -> None:
    with pytest.raises(HeedfulError, match=option) as error:
        ResolvedSettings.of(missing)
    assert "give" in str(error.value)


def test_a_batch_has_as_many_tokens_as_its_longest_examples() -> None:
    training = ResolvedSettings.of(COMPLETE).training
    assert training.token_budget(7) == 28
    assert replace(training, batch_tokens=100).token_budget(7) == 100


def test_a_file_name_that_is_not_utf_8_is_written_escaped() -> None:
    settings = RunSettings(task="translation", train=("caf\udce9.tsv",), out="o")
    assert r'"caf\udce9.tsv"' in to_toml(settings)
