"""Preferences: what is read, DPO and reward models against independent losses, runs, folders, and wrong data."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.adapters.low_rank import LowRank
from heedful.audit.audit import row_findings
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.layers.attention import Attention
from heedful.metrics.example_scores import overall
from heedful.metrics.intervals import intervals
from heedful.metrics.preference import preference_scores, win_scores
from heedful.metrics.verdict import Rival, verdict
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.preference_tuning import PreferenceExample, PreferenceTuning
from heedful.tasks.preferences import chance_baseline, linear_baseline
from heedful.tasks.reward_model import RewardModel
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_generation import TextGeneration
from heedful.text import Tokenizer
from heedful.training.run import train
from tolerances import approx

Message = dict[str, str]
ANIMALS = ["cat", "dog", "cow", "owl", "hen", "fox"]
SOUNDS = ["runs", "eats", "sings"]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------------------- files

PAIR = {"prompt": "Q", "chosen": "x", "rejected": "y"}
TALK = {"prompt": (user("Q"),), "chosen": (assistant("x"),), "rejected": (assistant("y"),)}
TURNS = [user("Q"), assistant("m"), user("R")]
HUMAN = "\n\nHuman: hi\n\nAssistant:"
LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PAIR, PAIR),
    ({"prompt": [user("Q")], "chosen": [assistant("x")], "rejected": [assistant("y")], "id": 3}, TALK),
    ({"prompt": [user("Q")], "chosen": "x", "rejected": "y"}, TALK),
    ({"prompt": "Q", "chosen": [assistant("x")], "rejected": [assistant("y")]}, TALK),
    ({"prompt": "Q", "chosen": [user("Q"), assistant("x")], "rejected": [user("Q"), assistant("y")]}, TALK),
    (
        {"chosen": [*TURNS, assistant("x")], "rejected": [*TURNS, assistant("y")]},
        {**TALK, "prompt": tuple(TURNS)},
    ),
    (
        {"chosen": f"{HUMAN} I am", "rejected": f"{HUMAN} I was"},
        {"prompt": HUMAN, "chosen": " I am", "rejected": " I was"},
    ),
    ({"chosen": "Say:\nA b", "rejected": "Say:\nA c"}, {"prompt": "Say:\n", "chosen": "A b", "rejected": "A c"}),
]


@pytest.mark.parametrize(("given", "expected"), LAYOUTS)
@pytest.mark.parametrize("task", [TextGeneration, TextClassification, RewardModel])
def test_layouts_of_the_hub_become_prompt_chosen_and_rejected(
    tmp_path: Path, given: dict[str, Any], expected: dict[str, Any], task: Any
) -> None:
    rows = read(written(tmp_path / "a.jsonl", [given]), task.columns)
    assert [(row.values, row.line) for row in rows] == [(expected, 1)]


def test_other_files_and_python_objects_hold_preferences(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    cell = json.dumps([assistant("x")]).replace('"', '""')
    table.write_text(f'question,better,worse\nQ,x,y\nQ,"{cell}",y\nQ, ,y\n', encoding="utf-8")
    rows = read(table, TextGeneration.columns, names=["prompt=question", "chosen=better", "rejected=worse"])
    assert [row.values for row in rows] == [PAIR, TALK]
    assert (rows.skipped, rows[1].line) == (1, 3)
    again = read(table, TextClassification.columns, remembered=rows.mapping)
    assert [row.values for row in again] == [PAIR, TALK]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([LAYOUTS[1][0]]), tmp_path / "a.parquet")
    assert [row.values for row in read(tmp_path / "a.parquet", TextGeneration.columns)] == [TALK]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**PAIR, "rejected": 3}, "'rejected' is 3, in .*:2; write a text, or"),
    ({**PAIR, "chosen": [{"role": "assistant"}]}, "message 1 of 'chosen' needs .* in .*:2"),
    ({"prompt": "", "chosen": "x", "rejected": "y"}, "no beginning in common, so the prompt is unknown, in .*:2"),
    ({"prompt": "", "chosen": [assistant("x")], "rejected": [user("y")]}, "no beginning in common.*:2"),
    ({**PAIR, "chosen": [user("Q"), assistant("x")]}, "chosen begins with the prompt, but rejected does not, in .*:2"),
    ({**PAIR, "chosen": [user("x")]}, 'chosen has no message with the role "assistant" after the prompt, in .*:2'),
]


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_wrong_rows_are_named_by_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        read(written(tmp_path / "a.jsonl", [PAIR, row]), TextGeneration.columns)


def test_a_column_that_is_missing_is_named_and_other_tables_stay_what_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"prompt": "Q", "chosen": "x"}])
    with pytest.raises(HeedfulError, match=r"a column 'chosen' but no 'rejected', in .*:1; .*chosen=NAME"):
        read(path, TextGeneration.columns)
    labelled = {"text": "t", "label": "l", "chosen": "x", "rejected": "y"}
    (row,) = read(written(path, [labelled]), TextClassification.columns)
    assert row.values == {"text": "t", "label": "l"}
    (row,) = read(path, TextGeneration.columns)
    assert row.values == {"text": "t"}
    with pytest.raises(HeedfulError, match="not a table with chosen and rejected"):
        read(written(path, [{"text": "t", "label": "l"}]), RewardModel.columns)


# -------------------------------------------------------------------------------------------------------------- losses


def preferences(*triples: tuple[Any, Any, Any]) -> Rows:
    names = ("prompt", "chosen", "rejected")
    return Rows(
        (Row(dict(zip(names, values, strict=True)), "p.jsonl", i) for i, values in enumerate(triples, 1)), 0, names
    )


TRIPLES = [("the cat ", "runs !", "eats and eats ."), ("a dog ", "sings", "runs"), ("", "owl !", "hen .")]


def small(kind: Any = PreferenceTuning, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """A task and a model with random weights."""
    tokenizer = Tokenizer.train([text for triple in TRIPLES for text in triple], 300, template="none")
    task = kind(tokenizer, 32)
    given = RunSettings(task="text-generation", train=("-",), out="-", preset="gpt-micro")
    config = task.config(replace(given, model=ModelSettings(dim=16, heads=2, depth=1)))
    return task, heedful.create(config, seed=0).to(dtype).eval()


def plain_log_p(model: Any, ids: list[int], first: int) -> Tensor:
    """Σ log p of the tokens from ``first`` on, by the definition: one text, log-softmax and a loop."""
    log_p = torch.log_softmax(model(torch.tensor([ids])), dim=-1)[0]
    return torch.stack([log_p[position - 1, ids[position]] for position in range(first, len(ids))]).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradient_are_those_of_equation_7(smoothing: float) -> None:
    task, model = small()
    task.beta = 0.3
    rows = preferences(*TRIPLES)
    examples = task.encode(rows).examples
    reference = heedful.create(model.config, seed=1).double().eval()
    task.use_starting_tensors(task.starting_tensors(reference, [examples]))
    batch = task.complete(task.collate(examples))
    assert batch["ids"].shape[:2] == (3, 2)
    loss = task.objective(model, batch, smoothing)
    loss.backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(rows):
        [prompt] = task.prompt_ids([row.values["prompt"]])
        ratios = []
        for j, name in enumerate(("chosen", "rejected")):
            ids = [*prompt, *task.tokenizer.encode([row.values[name]])[0], task.end]
            reference_log_p = plain_log_p(reference, ids, len(prompt)).item()
            assert batch["reference"][i, j].item() == pytest.approx(reference_log_p, rel=1e-6)
            ratios.append(plain_log_p(model, ids, len(prompt)) - batch["reference"][i, j].double())
        h = 0.3 * (ratios[0] - ratios[1])
        expected = expected + (1 - smoothing) * torch.log1p(torch.exp(-h)) + smoothing * torch.log1p(torch.exp(h))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-9, atol=1e-12)
    assert task.count(batch) == 3


def test_dropout_is_off_in_the_model_and_stays_in_an_adapter() -> None:
    task, model = small(dtype=torch.float32)
    add_adapter(model, LoraConfig(rank=2, dropout=0.4))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
        elif isinstance(module, Attention):
            module.dropout = 0.3
    settings = RunSettings.from_dict(
        {"task": "text-generation", "train": ["-"], "out": "-", "start_from": "x", "preference": {"beta": 0.7}}
    )
    task.before_training(model.train(), settings)
    assert task.beta == 0.7
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} <= {0.0}
    assert {part.dropout for part in model.modules() if isinstance(part, Attention)} == {0.0}
    assert {part.dropout for part in model.modules() if isinstance(part, LowRank)} == {0.4}


def test_loss_is_a_sum_over_parts_of_a_batch_and_ln_2_at_the_start() -> None:
    task, model = small()
    examples = task.encode(preferences(*TRIPLES)).examples
    with torch.no_grad():
        task.use_starting_tensors(task.starting_tensors(model, [examples]))
        whole = task.objective(model, task.complete(task.collate(examples)))
        parts = [task.objective(model, task.complete(task.collate([example]))) for example in examples]
    assert whole.item() == pytest.approx(sum(map(float, parts)), rel=1e-9)
    assert whole.item() == pytest.approx(3 * math.log(2), rel=1e-6)
    assert np.array_equal(
        task.lengths(examples).max(1), [len(max(e, key=lambda a: len(a.ids)).ids) - 1 for e in examples]
    )


def test_only_the_answer_of_a_conversation_is_learned() -> None:
    task, _ = small()
    talk = tuple(TURNS), (assistant("runs !"),), (assistant("eats ."),)
    task.tokenizer.config |= {
        "chat_template": "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    }
    task.context = 200
    (example,) = task.encode(preferences(talk)).examples
    assert isinstance(example, PreferenceExample)
    for answer, text in zip(example, ("runs !\n", "eats .\n"), strict=True):
        learned = [token for token, is_learned in zip(answer.ids, answer.learned, strict=True) if is_learned]
        assert task.tokenizer.decode([learned])[0] == text


def test_answers_that_are_cut_are_counted_with_their_places() -> None:
    tokenizer = small()[0].tokenizer
    triples = [*TRIPLES, ("the cat ", "runs !", "eats")]
    lengths = [
        (line, sum(map(len, tokenizer.encode([prompt, answer]))))
        for line, (prompt, *answers) in enumerate(triples, 1)
        for answer in answers
    ]
    longest = max(length for _, length in lengths)
    encoded = RewardModel(tokenizer).encode(preferences(*triples), longest - 1)
    cut = [line for line, length in lengths if length == longest]
    assert [(row.file, row.line) for row in encoded.unread] == [("p.jsonl", line) for line in cut]
    assert (encoded.lost, len(encoded.examples), len(encoded.rows)) == (len(cut), 4, 4)
    assert encoded.note.startswith(f"{len(cut)} answer")


def test_metrics_are_those_of_their_definitions() -> None:
    rewards = np.random.default_rng(0).normal(size=(50, 2))
    margins = rewards[:, 0] - rewards[:, 1]
    found = overall(preference_scores(rewards))
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-margins)).mean())
    assert found["accuracy"] == pytest.approx(100 * (margins > 0).mean())
    assert found["margin"] == pytest.approx(margins.mean())
    assert overall(win_scores([[1, 0], [1, 1]], [[0, 0], [1, 0]])) == {"win_rate": 75.0}


def test_the_baseline_learns_words_length_and_what_a_prompt_asks() -> None:
    """Of held-out pairs the longer answer is right for half, but for the second set."""
    draw = np.random.default_rng(0)

    def text(size: int, *more: str) -> str:
        return " ".join(draw.permutation([*draw.choice([f"w{i}" for i in range(40)], size), *more]))

    def polite() -> tuple[str, str, str]:
        return text(3), text(draw.integers(3, 9), "please"), text(draw.integers(3, 9), "never")

    def short() -> tuple[str, str, str]:
        size = int(draw.integers(2, 9))
        return text(3), text(size), text(size + 4)

    def on_topic() -> tuple[str, str, str]:
        topic, other = draw.choice(range(1000), 2, replace=False)
        return text(3, f"topic{topic}"), text(5, f"topic{topic}"), text(5, f"topic{other}")

    for make in (polite, short, on_topic):
        learned, held = preferences(*(make() for _ in range(200))), preferences(*(make() for _ in range(100)))
        baseline, guess = linear_baseline(held, learned), chance_baseline(held)
        assert baseline.metrics["accuracy"] > 90
        assert baseline.metrics["loss"] < 0.8 * guess.metrics["loss"]
        rivals = [
            Rival(part.name, part.example_scores) for part in (guess, baseline) if part.example_scores is not None
        ]
        assert verdict(preference_scores(np.zeros((100, 2))), "accuracy", baseline=rivals[1]).kind == "below"
        found = verdict(preference_scores([[1, 0]] * 100), "accuracy", guess=rivals[0], baseline=rivals[1])
        assert found.rival == baseline.name
        assert linear_baseline(held, preferences(make())).metrics["accuracy"] >= 0  # of a single pair


# ---------------------------------------------------------------------------------------------------------------- runs

INSTRUCTIONS = [
    {"prompt": f"{a} ", "completion": f"{s} {mark}"} for a in ANIMALS for s in SOUNDS for mark in (".", "!")
]
LIKED = [  # answers that end with "!" are preferred
    {"prompt": f"{a} ", "chosen": f"{s} !", "rejected": f"{t} ."} for a in ANIMALS for s in SOUNDS for t in SOUNDS
]


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def assistant_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that ends its answers with "." or "!" alike."""
    folder = tmp_path_factory.mktemp("assistant")
    settings = RunSettings(
        task="text-generation",
        train=(str(written(folder / "train.jsonl", INSTRUCTIONS)),),
        out=str(folder / "run"),
        preset="gpt-micro",
        max_steps=60,
        model=ModelSettings(dim=32, heads=2, depth=1),
        tokenizer=TokenizerSettings(kind="character"),
        training=RunSettings.from_dict(
            {"task": "text-generation", "train": ["-"], "out": "-", "training": {"lr": 5e-3, "warmup": 5}}
        ).training,
    )
    train(settings, say=lambda line: None, quiet=True)
    return folder / "run"


def command(assistant_folder: Path, folder: Path, *more: str) -> list[str]:
    data = folder / "liked.jsonl"
    if not data.exists():
        written(data, LIKED)
    start = ["train", "text-generation", "--from", str(assistant_folder), "--train", str(data), "--json"]
    return [*start, "--training.batch-size=16", "--training.log-every=1", "--training.evaluate-every=4", *more]


@pytest.fixture(scope="module")
def tuned(assistant_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    more = ("--training.lr=3e-3", "--training.schedule=constant", "--max-steps=16", "--out", str(folder / "run"))
    before = contents(assistant_folder)
    assert cli.main(command(assistant_folder, folder, *more)) == 0
    assert contents(assistant_folder) == before
    return folder / "run"


def test_answers_win_against_those_of_the_reference(assistant_folder: Path, tuned: Path) -> None:
    prompts = [f"{animal} " for animal in ANIMALS for _ in range(10)]

    def liked(folder: Path) -> list[bool]:
        pipe = heedful.pipeline("text-generation", folder)
        answers = pipe(prompts, do_sample=True, temperature=1.0, max_new_tokens=12, seed=1)
        return [answer["output"].rstrip().endswith("!") for answer in answers]

    scores = win_scores(liked(tuned), liked(assistant_folder))
    low, _ = intervals(scores)["win_rate"]
    assert overall(scores)["win_rate"] > 60
    assert low > 50


def test_a_tuned_folder_is_scored_against_its_reference(
    assistant_folder: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = heedful.pipeline(None, tuned)
    assert pipe.task.name == "text-generation"
    assert not any(isinstance(part, torch.nn.Dropout) and part.training for part in pipe.model.modules())
    card = json.loads((tuned / "heedful.json").read_text(encoding="utf-8"))
    assert card["task"] == "text-generation"
    assert card["preference"] == {"beta": 0.1, "reference": str(assistant_folder)}
    data = written(tmp_path / "test.jsonl", LIKED)
    found = evaluate(str(tuned), [str(data)], baseline=True, say=lambda line: None)
    assert found["metrics"]["accuracy"] > 90
    assert found["metrics"]["margin"] > 0.1
    assert found["baseline"]["metrics"]["accuracy"] > 90
    assert set(found["intervals"]) >= {"accuracy", "loss", "margin"}
    told = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert told[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)  # without dropout, the first rewards are 0
    assert {"valid_accuracy", "valid_margin", "valid_loss"} <= told[-1].keys()
    documents = tmp_path / "book.txt"
    documents.write_text("cat runs !\ndog eats .\n", encoding="utf-8")
    assert "bits_per_byte" in evaluate(str(tuned), [str(documents)], say=lambda line: None)["metrics"]
    with pytest.raises(HeedfulError, match="the model did not learn from preferences; tune it"):
        evaluate(str(assistant_folder), [str(data)], say=lambda line: None)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tuned.glob("*.*"):
        (copy / path.name).write_bytes(path.read_bytes())

    def scored(preference: Any) -> dict[str, Any]:
        (copy / "heedful.json").write_text(json.dumps({**card, "preference": preference}), encoding="utf-8")
        return evaluate(str(copy), [str(data)], say=lambda line: None)["metrics"]

    gone, other = str(tmp_path / "gone"), tmp_path / "other"
    with pytest.raises(HeedfulError, match=r"the run started from, .*gone, which cannot be loaded .*put it back"):
        scored({"beta": 0.1, "reference": gone})
    heedful.create("gpt-micro", seed=0).save_pretrained(other)
    with pytest.raises(HeedfulError, match=r"the run started from, .*other, but there is another model now; put it"):
        scored({"beta": 0.1, "reference": str(other)})
    for wrong in (
        None,
        [],
        "x",
        {"beta": 0.1},
        {"beta": "1", "reference": gone},
        {"beta": math.inf, "reference": gone},
    ):
        with pytest.raises(HeedfulError, match=r"heedful\.json: preference is .*; write"):
            scored(wrong)
    beside = os.path.relpath(assistant_folder, copy)
    assert scored({"beta": 0.1, "reference": beside}) == scored({"beta": 0.1, "reference": str(assistant_folder)})


def test_a_reference_named_by_a_relative_path_is_found_from_anywhere(
    assistant_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = command(assistant_folder, tmp_path, "--max-steps=1", "--out", "tuned")
    run[run.index("--from") + 1] = assistant_folder.name
    monkeypatch.chdir(assistant_folder.parent)
    assert cli.main(run) == 0
    card = json.loads(Path("tuned", "heedful.json").read_text(encoding="utf-8"))
    assert card["preference"]["reference"] == str(assistant_folder.resolve())


@pytest.mark.parametrize("more", [(), ("--lora.rank=2", "--training.precision=bf16")], ids=["whole", "adapter"])
def test_a_resumed_run_ends_with_the_same_bits_and_one_reference(
    assistant_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    calls = []
    own = PreferenceTuning.starting_tensors

    def counted(task: Any, model: Any, parts: Any) -> dict[str, Tensor]:
        calls.append(len(parts))
        return own(task, model, parts)

    monkeypatch.setattr(PreferenceTuning, "starting_tensors", counted)
    run = command(assistant_folder, tmp_path, "--training.lr=3e-3", "--training.schedule=constant", *more)
    before = contents(assistant_folder)
    assert cli.main([*run, "--max-steps=6", "--out", str(tmp_path / "whole")]) == 0
    assert cli.main([*run, "--max-steps=3", "--out", str(tmp_path / "parts")]) == 0
    assert cli.main([*run, "--max-steps=6", "--out", str(tmp_path / "parts"), "--resume"]) == 0
    assert calls == [2, 2]  # once for each run, not for a resumed one
    assert contents(assistant_folder) == before
    name = "adapter_model.safetensors" if more else "model.safetensors"
    ours, theirs = (load_file(tmp_path / part / "last" / name) for part in ("whole", "parts"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["loss"] == pytest.approx(math.log(2), abs=0.02)  # an adapter begins as its base
    changed = [row | {"chosen": row["chosen"] + "!"} for row in LIKED]
    written(tmp_path / "liked.jsonl", changed)
    assert cli.main([*run, "--max-steps=7", "--out", str(tmp_path / "parts"), "--resume"]) == 2


def test_a_resumed_run_says_that_beta_changes(
    assistant_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run = command(assistant_folder, tmp_path, "--out", str(out))
    run.remove("--json")
    for beta, more in ((0.4, ["--max-steps=1"]), (0.2, ["--max-steps=2", "--resume"])):
        assert cli.main([*run, *more, f"--preference.beta={beta}"]) == 0
        told = "".join(capsys.readouterr())
        assert f"preference.beta {beta} (DPO)" in told
        assert ("--preference.beta is 0.2 from now on; it was 0.4" in told) == ("--resume" in more)
        card = json.loads((out / "last" / "heedful.json").read_text(encoding="utf-8"))
        assert card["preference"]["beta"] == beta


def test_wrong_settings_are_one_line(
    assistant_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command(assistant_folder, tmp_path, "--out", str(tmp_path / "out"), "--max-steps=1")
    start = run.index("--from")
    cases = {
        "name it with --from MODEL": [*run[:start], *run[start + 2 :]],
        "give less than 0.5": [*run, "--training.label-smoothing=0.5"],
        "--preference.beta must be above 0": [*run, "--preference.beta=0"],
        "give shorter examples, or raise --data.max-length": [*run, "--data.max-length=4"],
    }
    documents = tmp_path / "book.txt"
    documents.write_text("cat runs !\ndog eats .\n" * 10, encoding="utf-8")
    cases["--preference.beta has no effect"] = [
        *("train", "text-generation", "--train", str(documents), "--out", str(tmp_path / "out"), "--preference.beta=1")
    ]
    own = str(shutil.copytree(assistant_folder, tmp_path / "own"))
    cases["against which answers are scored; choose another --out"] = [*run, "--from", own, "--out", own, "--overwrite"]
    cases["the validation data has no chosen and rejected answers"] = [*run, "--valid", str(documents)]
    for message, arguments in cases.items():
        assert cli.main(arguments) == 2, message
        told = capsys.readouterr().err.strip()
        assert message in told
        assert len(told.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_an_audit_finds_equal_exchanged_and_repeated_pairs_and_lengths() -> None:
    task, _ = small()
    same = ("a dog ", "runs", "runs ")
    rows = preferences(TRIPLES[0], TRIPLES[0], (TRIPLES[0][0], TRIPLES[0][2], TRIPLES[0][1]), same)
    talk = preferences(((user("Q"),), (assistant("x"),), (assistant("x"),)))
    found = {finding.name: finding for finding in row_findings(task, rows, Rows())}
    assert found["copies"].places == ["p.jsonl:4"]
    assert found["copies"].level == "warning"
    assert found["exchanged"].places == ["p.jsonl:3"]
    assert found["duplicates"].places == ["p.jsonl:2"]
    assert found["length"].text.startswith("the chosen answer is longer in 25 % of the pairs")
    assert {finding.name for finding in row_findings(task, talk, Rows())} >= {"copies", "length"}


# ------------------------------------------------------------------------------------------------------- reward models


def plain_rewards(model: Any, task: Any, rows: Rows) -> Tensor:
    """Rewards of the answers, one text at a time."""
    numbers = []
    for row in rows:
        for name in ("chosen", "rejected"):
            parts = task.tokenizer.encode([row.values["prompt"], row.values[name]])
            ids, segments = task.tokenizer.template(pair=True).join(*parts)
            inputs = [torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool)]
            if model.config.kind == "encoder":
                inputs.append(torch.tensor([segments]))
            numbers.append(model(*inputs)[0, 0])
    return torch.stack(numbers).view(-1, 2)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_reward_model_learns_by_the_loss_of_bradley_and_terry(
    kind: str, assistant_folder: Path, tmp_path: Path
) -> None:
    data = written(tmp_path / "liked.jsonl", LIKED)
    start = ["--preset=bert-tiny", "--model.dim=32", "--model.depth=1"] if kind == "encoder" else []
    start = start or ["--from", str(assistant_folder)]
    out = tmp_path / "reward"
    run = ["train", "text-classification", "--train", str(data), "--out", str(out), "--json", *start]
    assert cli.main([*run, "--max-steps=12", "--training.lr=3e-3", "--training.batch-size=16"]) == 0
    found = evaluate(str(out), [str(data)], baseline=True, say=lambda line: None)
    assert found["metrics"]["accuracy"] > 90
    assert found["baseline"]["name"].startswith("a linear reward")
    assert found["baseline"]["metrics"]["accuracy"] > 90
    pipe = heedful.pipeline(None, out)
    assert isinstance(pipe.task, RewardModel)
    rows = read(data, pipe.task.columns, limit=5)
    expected = plain_rewards(pipe.model, pipe.task, rows)
    batch = pipe.task.collate(pipe.task.encode(rows).examples)
    loss = pipe.task.objective(pipe.model, batch)
    assert loss.item() == approx(-torch.log(torch.sigmoid(expected[:, 0] - expected[:, 1])).sum().item(), "layer")
    smoothed = pipe.task.objective(pipe.model, batch, 0.3)
    margins = expected[:, 0] - expected[:, 1]
    assert smoothed.item() == approx(
        -(0.7 * torch.log(torch.sigmoid(margins)) + 0.3 * torch.log(torch.sigmoid(-margins))).sum().item(), "layer"
    )
    scored = pipe([(row.values["prompt"], row.values[name]) for row in rows for name in ("chosen", "rejected")])
    assert [one["output"] for one in scored] == approx(expected.flatten().tolist(), "layer")
    tabbed = pipe([f"{rows[0].values['prompt']}\t{rows[0].values['chosen']}", ""])
    assert tabbed[0]["output"] == approx(expected[0, 0].item(), "layer")
    assert tabbed[1]["output"] is None
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert len(config["id2label"]) == 1
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert pipe.task.relevance(pipe.model, rows[0].values["prompt"], ["runs !", "runs ."])[0] > 0
    settings = RunSettings(task="text-classification", train=("-",), out="-", start_from=str(out))
    _, again = RewardModel.for_fine_tuning(out, rows, settings)
    ours, theirs = (found.head.state_dict() for found in (again, heedful.from_pretrained(out)))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_reward_model_reads_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talks = [{"prompt": [user(row["prompt"])], "chosen": row["chosen"], "rejected": row["rejected"]} for row in LIKED]
    data, out = written(tmp_path / "talks.jsonl", talks), tmp_path / "reward"
    run = ["train", "text-classification", "--train", str(data), "--out", str(out), "--json", "--preset=bert-tiny"]
    assert cli.main([*run, "--model.dim=16", "--model.heads=2", "--model.depth=1", "--max-steps=2"]) == 0
    pipe = heedful.pipeline(None, out)
    talk = [user("cat "), assistant("runs !")]
    (given,) = pipe([talk])
    assert given["input"] == talk
    rows = read(data, pipe.task.columns, limit=1)
    rewards = pipe.task.rewards(pipe.model, pipe.task.collate(pipe.task.encode(rows).examples))
    assert given["output"] == approx(rewards[0, 0].item(), "layer")
    with pytest.raises(HeedfulError, match="the last message is not the assistant's"):
        pipe([[user("cat ")]])
    with pytest.raises(HeedfulError, match="the last message is not the assistant's"):
        pipe([[user("cat "), "runs !"]])
    with pytest.raises(HeedfulError, match=r"^the model's chat template refuses the messages"):
        pipe([[user("cat "), {"role": "assistant"}]])
    capsys.readouterr()
    for more in ("--data.label-kind=class", "--model.r-drop=1", "--pooling.kind=mean"):
        assert cli.main([*run[:4], "--out", str(tmp_path / "no"), more]) == 2
        assert "has no effect on chosen and rejected answers" in capsys.readouterr().err


@pytest.mark.parametrize("command_name", ["train", "audit"])
def test_preferences_do_not_validate_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command_name: str
) -> None:
    labels = [{"text": f"cat {number}", "label": "xy"[number % 2]} for number in range(12)]
    data = ["--train", str(written(tmp_path / "a.jsonl", labels)), "--valid", str(written(tmp_path / "b.jsonl", LIKED))]
    out = ["--out", str(tmp_path / "out")] if command_name == "train" else []
    assert cli.main([command_name, "text-classification", *data, *out]) == 2
    told = capsys.readouterr().err
    assert "b.jsonl has prompt, chosen, rejected, but the training data label, text; give validation data of" in told


@pytest.mark.full
@pytest.mark.parametrize("task", ["text-generation", "text-classification"])
def test_two_processes_learn_what_one_does(
    assistant_folder: Path, tmp_path: Path, task: str, ranks_losses: Callable[[list[str]], list[float]]
) -> None:
    run = command(assistant_folder, tmp_path, "--max-steps=4", "--training.accumulate=3", "--training.eps=1e-4")
    run[1] = task
    assert cli.main([*run, "--out", str(tmp_path / "alone")]) == 0
    lines = (tmp_path / "alone" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    theirs = ranks_losses([*run, "--out", str(tmp_path / "two")])
    assert theirs == [approx(json.loads(line)["loss"], "gradient") for line in lines]


@pytest.fixture
def ranks_losses(tmp_path: Path) -> Callable[[list[str]], list[float]]:
    """Runs a command in two processes; gives the losses of its log."""
    import subprocess
    import sys

    def run(arguments: list[str]) -> list[float]:
        script = Path(__file__).parents[1] / "training" / "ranks_commands.py"
        (tmp_path / "commands.json").write_text(json.dumps([arguments]), encoding="utf-8")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        ended = subprocess.run([*launch, str(tmp_path / "commands.json")], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr[-3000:]
        log = Path(arguments[arguments.index("--out") + 1]) / "metrics.jsonl"
        return [json.loads(line)["loss"] for line in log.read_text(encoding="utf-8").splitlines()]

    return run
