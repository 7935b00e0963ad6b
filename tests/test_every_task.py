"""Every task alike: trained on a small file, evaluated, used, resumed, inspected, verified."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import fields
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import fresh_process
import heedful
from card_code import outputs_of_card
from heedful import cli, tasks
from heedful.data import Rows, builtin, read
from heedful.data.masking import LONGEST_PREDICTED
from heedful.errors import HeedfulError
from heedful.serving.run_attention import RunAttention
from heedful.serving.runs import WatchedRun
from heedful.settings import PoolingSettings, RunSettings
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.training import Checkpoints, Loop, report
from heedful.training import run as training
from heedful.training.resolve import suggested, with_recipe
from heedful.verify.run_comparison import TIMED, compare_runs
from tolerances import approx

SMALL = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--training.log-every=1"]
SMALL += ["--training.evaluate-every=2", "--training.schedule=constant", "--training.warmup=1"]
FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]


def _table(folder: Path, header: str, lines: list[str]) -> Path:
    file = folder / "set.tsv"
    file.write_text("\n".join([header.replace(" ", "\t"), *lines]) + "\n", encoding="utf-8")
    return file


def _pairs(folder: Path, header: str) -> Path:
    return _table(folder, header, [f"the {a} and a {b}\t{b} {a}" for a in FRUIT for b in TOOLS])


def _labels(folder: Path) -> Path:
    return _table(folder, "text label", [f"one {w} {n}\t{k}" for k, ws in SETS.items() for w in ws for n in range(4)])


def _plain(folder: Path) -> Path:
    file = folder / "book.txt"
    file.write_text("".join(f"the {a} fell on the {b} .\n" for a in FRUIT for b in TOOLS), encoding="utf-8")
    return file


def _tags(folder: Path) -> Path:
    file = folder / "set.conll"
    sentences = [f"take\tO\nthe\tO\n{a}\tB-fruit\n{a}\tI-fruit\nor\tO\n{b}\tB-tool\n" for a in FRUIT for b in TOOLS]
    file.write_text("\n".join(sentences), encoding="utf-8")
    return file


def _questions(folder: Path) -> Path:
    paragraphs = []
    for number, (a, b) in enumerate((a, b) for a in FRUIT for b in TOOLS):
        context = f"The {a} lies in the box. The {b} hangs on the wall."
        qas = [
            {"id": f"{number}a", "question": "What hangs?", "answers": [{"text": b, "answer_start": context.index(b)}]},
            {"id": f"{number}b", "question": "What lies?", "answers": [{"text": a, "answer_start": 4}]},
        ]
        paragraphs.append({"context": context, "qas": qas})
    file = folder / "set.json"
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")
    return file


SETS = {"fruit": FRUIT, "tool": TOOLS}
# task: (its file, more options, two inputs)
MADE: dict[str, tuple[Callable[[Path], Path] | str, list[str], list[Any]]] = {
    "translation": (lambda folder: _pairs(folder, "source target"), ["--tokenizer.size=300"], ["the fig", "a saw"]),
    "summarization": (lambda folder: _pairs(folder, "text summary"), ["--tokenizer.size=300"], ["the fig", "a saw"]),
    "text-generation": (_plain, ["--data.max-length=16"], ["the fig", "the saw fell"]),
    "text-classification": (_labels, ["--tokenizer.size=200"], ["one fig 1", "one saw"]),
    "token-classification": (_tags, ["--tokenizer.size=200"], ["take the fig", "or the saw"]),
    "question-answering": (
        _questions,
        ["--tokenizer.size=200"],
        [{"question": "What hangs?", "context": "The saw hangs."}, ("What lies?", "The fig lies here.")],
    ),
    "generative-question-answering": (
        _questions,
        ["--tokenizer.size=300"],
        [{"question": "What hangs?", "context": "The saw hangs."}, ("What lies?", "The fig lies here.")],
    ),
    "fill-mask": (_plain, ["--tokenizer.size=300", "--data.max-length=16"], ["the <mask> fell", "the saw <mask>"]),
    "feature-extraction": (lambda folder: _pairs(folder, "text text_pair"), ["--tokenizer.size=200"], ["fig", "a saw"]),
    "image-classification": (lambda folder: Path("builtin:digits"), ["--data.limit=60"], []),
    "image-to-text": (lambda folder: Path("builtin:shapes"), ["--data.limit=60"], []),
}


WRITERS = ("translation", "summarization", "generative-question-answering", "text-generation")
IMAGES = {"image-classification": "builtin:digits", "image-to-text": "builtin:shapes"}


def command_of(name: str, folder: Path, encoder: str = "bert-tiny") -> list[str]:
    """Arguments that train a small model of this task, on a file in ``folder``; ``encoder``: its preset."""
    make, more, _ = MADE[name]
    command = ["train", name, "--train", str(make(folder)), *SMALL, *more]
    if name not in (*WRITERS, *IMAGES):
        command.append(f"--preset={encoder}")
    return command


# first those whose runs draw or remember what others do not: masks, changed images, wrong candidates, two texts, one
FIRST = ("fill-mask", "image-classification", "feature-extraction", "translation", "text-generation")


@pytest.fixture(scope="module", params=[*FIRST, *(name for name in tasks.TASKS if name not in FIRST)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, list[str]]:
    """The name of a task, the folder of a run of six steps, and the command that made it."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    command = command_of(name, folder)
    assert cli.main([*command, "--out", str(folder / "whole"), "--max-steps=6", "--json"]) == 0
    return name, folder / "whole", command


def inputs_of(name: str) -> list[Any]:
    if name in IMAGES:
        return [row.values["image"] for row in read(f"{IMAGES[name]}:test", {"image": "image"}, limit=2)]
    return MADE[name][2]


def plain(output: Any) -> Any:
    return (
        approx(output, "training") if isinstance(output, list) and output and isinstance(output[0], float) else output
    )


# task: what is the same in the outputs here and in transformers, by the code of the model card
BOTH: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **dict.fromkeys(
        ("translation", "summarization", "generative-question-answering", "image-to-text", "image-classification"),
        (lambda ours: ours["output"][:7], lambda hub: hub[:7]),  # the limits of their lengths differ
    ),
    "text-classification": (lambda ours: ours["output"], lambda hub: hub[0]["label"]),
    "fill-mask": (lambda ours: ours["output"], lambda hub: hub[0]["sequence"]),
    "feature-extraction": (lambda ours: len(ours["output"]), lambda hub: len(hub[0][0])),
    "text-generation": (lambda ours: ours["output"][:7], lambda hub: hub[0]["generated_text"][:7]),  # the rest is drawn
    "token-classification": (
        lambda ours: {entity["label"] for entity in ours["output"]},
        lambda hub: {word["entity"].partition("-")[2] for word in hub if word["entity"] != "O"},
    ),
    "question-answering": (lambda ours: ours["output"]["answer"] in "Ann came.", lambda hub: isinstance(hub, str)),
}


def test_the_code_of_the_model_card_runs(run: tuple[str, Path, list[str]]) -> None:
    pytest.importorskip("transformers")
    name, folder, _ = run
    ours, hub = outputs_of_card(folder)
    of_ours, of_hub = BOTH[name]
    assert of_ours(ours) == of_hub(hub)
    assert ModelCard.load(folder / "README.md").data.library_name == "transformers"


def test_every_task_is_tried_here() -> None:
    assert (
        set(MADE)
        == set(tasks.TASKS)
        == {
            *("text-generation", "translation", "summarization", "text-classification", "token-classification"),
            *(
                "question-answering",
                "generative-question-answering",
                "fill-mask",
                "feature-extraction",
                "image-classification",
                "image-to-text",
            ),
        }
    )


def test_a_folder_answers_alone_together_and_empty(run: tuple[str, Path, list[str]]) -> None:
    name, folder, _ = run
    pipe = heedful.pipeline(None, folder)
    assert pipe.task.name == name
    options = {"do_sample": False, "max_new_tokens": 5}
    given = {key: value for key, value in options.items() if key in pipe.task.options}
    inputs = inputs_of(name)
    together = pipe(list(inputs), **given)
    for one, answer in zip(inputs, together, strict=True):
        alone = pipe(one, **given)
        assert set(alone) == {"input", "output", "score"}
        assert alone["output"] == plain(answer["output"])
        generates = "max_new_tokens" in pipe.task.options  # whose score is a log-probability for each token
        assert alone["score"] is None or (alone["score"] <= 0 if generates else 0 <= alone["score"] <= 1 + 1e-6)
    assert pipe([]) == []
    if name not in (*IMAGES, "text-generation"):  # which goes on from nothing
        empty = pipe(["", inputs[0]], **given)
        assert empty[0]["score"] is None
        assert empty[1]["output"] == plain(together[0]["output"])


def test_names_of_other_libraries_are_understood(
    run: tuple[str, Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    name, folder, _ = run
    names = [other for other, meant in tasks.OTHER_NAMES.items() if name in meant]
    names += ["translation_en_to_fr"] if name == "translation" else []
    for other in names:
        assert heedful.pipeline(other, folder).task.name == name
    for other in (other for other in names if tasks.named(other) == name):
        assert cli.main(["train", other, "--help"]) == 0
        assert f"The common options of {name};" in " ".join(capsys.readouterr().out.split())
    text = {"fill-mask": "the <mask>", "question-answering": "What?\tThe fig."}.get(name, "the fig")
    if names and name not in (*IMAGES, "generative-question-answering"):
        assert cli.main(["predict", str(folder), "--task", names[0], text]) == 0


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_a_pipeline_is_pickled_and_copied(run: tuple[str, Path, list[str]], dtype: str | None) -> None:
    name, folder, _ = run
    pipe = heedful.pipeline(None, folder, dtype=dtype)
    given = {key: value for key, value in {"do_sample": False, "max_new_tokens": 5}.items() if key in pipe.task.options}
    expected = pipe(inputs_of(name), **given)
    for again in (pickle.loads(pickle.dumps(pipe)), copy.deepcopy(pipe)):
        assert repr(again) == repr(pipe)
        assert again.model.optimised == pipe.model.optimised
        for answer, one in zip(again(inputs_of(name), **given), expected, strict=True):
            assert answer["output"] == plain(one["output"])
            assert answer["score"] == (None if one["score"] is None else approx(one["score"], "layer"))


def test_the_command_that_a_run_suggests_runs(
    run: tuple[str, Path, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, whole, command = run
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    monkeypatch.setattr(report, "remedy", lambda *given: None)
    assert cli.main([*command, "--out", str(folder), "--max-steps=6", "--resume"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("next: heedful predict ")
    assert cli.main(shlex.split(line)[2:]) == 0
    assert capsys.readouterr().out.strip()


def test_metrics_are_made_of_the_rows(run: tuple[str, Path, list[str]]) -> None:
    name, folder, command = run
    pipe = heedful.pipeline(None, folder)
    rows = read(command[3], pipe.task.columns, limit=20, split="test")
    encoded = pipe.task.encode(rows)
    measured = pipe.task.measure(pipe.model, encoded.examples, encoded.rows)
    assert pipe.task.main_metric in measured.metrics
    assert math.isfinite(measured.metrics["loss"])
    assert measured.example_scores is not None
    again = measured.example_scores.metrics_of(np.arange(len(measured.example_scores)))
    assert again
    for metric, value in again.items():
        assert value == approx(measured.metrics[metric], "layer"), metric
    assert pipe.task.main_metric in again
    halves = measured.example_scores.metrics_of(np.arange(len(measured.example_scores) // 2))
    assert set(halves) == set(again)
    answers = name not in ("text-generation", "fill-mask")  # of which a text is measured, and nothing asked
    assert len(measured.outputs) == answers * len(measured.example_scores)


@pytest.mark.full(keep=5)
def test_a_stopped_run_goes_on_to_the_same_bits(run: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    _, whole, command = run
    out = ["--out", str(tmp_path / "parts")]
    assert cli.main([*command, *out, "--max-steps=3", "--json"]) == 0
    assert cli.main([*command, *out, "--max-steps=6", "--resume", "--json"]) == 0
    ours, theirs = (load_file(folder / "last" / "model.safetensors") for folder in (tmp_path / "parts", whole))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert ours.keys() == theirs.keys()


@pytest.mark.full(keep=3)
def test_a_run_that_broke_off_anywhere_ends_the_same(
    run: tuple[str, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of its beginning, of a step, of a write: weights, best ones, state, losses, files are those of ``whole``."""
    _, whole, command = run
    again = [*command, "--out", str(tmp_path / "whole"), "--max-steps=6", "--resume", "--json"]
    places = ((training, "mark_complete", 0), (Loop, "_step", 3), (Checkpoints, "_write", 1), (Loop, "_step", 1))
    for place, name, call in places:
        made, own = iter(range(call + 1)), getattr(place, name)

        def breaking(*given: Any, made: Any = made, own: Any = own, call: int = call) -> Any:
            if next(made) == call:
                raise HeedfulError("broken off")
            return own(*given)

        with monkeypatch.context() as patched:
            patched.setattr(place, name, breaking)
            assert cli.main(again) == 2
    assert cli.main(again) == 0
    findings = compare_runs(whole, tmp_path / "whole")
    assert [(one.name, one.reason) for one in findings if one.verdict == "failed"] == []
    held = {one.name for one in findings if one.verdict == "ok"}
    assert held >= {"last weights", "best weights", "checkpoint", "losses", "files"}


def test_each_evaluation_says_what_the_model_makes_of_some_examples(run: tuple[str, Path, list[str]]) -> None:
    name, folder, _ = run
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(("samples" in line) == ("valid_loss" in line) for line in lines)
    for sample in lines[-1]["samples"]:
        parts = {"input", "output"} if name == "text-generation" else {"input", "output", "target"}
        assert sample.keys() == parts
        assert all(isinstance(text, str) for text in sample.values())
        assert sample["input"]
    if name == "feature-extraction":
        assert not any(", " in sample["input"] for sample in lines[-1]["samples"])
    if name in IMAGES:
        word, target = {"image-classification": ("digit", "[0-9]"), "image-to-text": ("shapes", "a .* a .*")}[name]
        assert all(re.fullmatch(f"{word} [0-9]+", sample["input"]) for sample in lines[-1]["samples"])
        assert all(re.fullmatch(target, sample["target"]) for sample in lines[-1]["samples"])


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without what is of the clock and what is no number."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith(TIMED) and isinstance(v, int | float)} for line in lines]


WAYS = {
    "whole": [],
    "shared": ["--training.shard"],
    "computed again": ["--training.shard", "--training.gradient-checkpointing"],
    "bf16": ["--training.shard", "--training.precision=bf16"],
}
# A near-tie of two tokens falls either way in bfloat16: scores out of 100 of greedily written words move with it.
WORD_SCORES = {"valid_bleu": 1.0, "valid_chrf": 1.0}
SHARED_OUT = [(name, way) for name in MADE for way in list(WAYS)[: 4 if name in ("translation", "fill-mask") else 2]]


@pytest.fixture(scope="module")
def learned_by_two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[Path, Path]]:
    """Of each tested task and way to share the work: the folder of a run of one process, and that of one of two."""
    parent = tmp_path_factory.mktemp("ranks")
    tests = [item.callspec.params for item in request.session.items if "learned_by_two" in item.fixturenames]
    chosen = {(params["name"], params["way"]) for params in tests}
    found, commands = {}, []
    for name in dict.fromkeys(name for name, _ in SHARED_OUT if name in {task for task, _ in chosen}):
        folder = parent / name
        folder.mkdir()
        common = [*command_of(name, folder), "--max-steps=4", "--json"]
        common += ["--training.batch-size=5", "--training.accumulate=3", "--training.eps=1e-4"]
        assert cli.main([*common, "--out", str(folder / "alone")]) == 0
        for way in (way for task, way in SHARED_OUT if (task, way) in chosen and task == name):
            found[name, way] = (folder / "alone", folder / way)
            commands.append([*common, *WAYS[way], "--out", str(folder / way)])
    (parent / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    script = Path(__file__).with_name("training") / "ranks_commands.py"
    for ended in fresh_process.run_ranks(2, script, parent / "commands.json"):
        assert ended.returncode == 0, ended.stderr[-3000:]
    return found


@pytest.mark.parametrize(("name", "way"), SHARED_OUT)
@pytest.mark.full(keep=2)
def test_two_processes_learn_and_measure_what_one_does(
    learned_by_two: dict[tuple[str, str], tuple[Path, Path]], name: str, way: str
) -> None:
    ours, theirs = map(told, learned_by_two[name, way])
    assert len(ours) == 4
    assert any(key.startswith("valid_") for key in ours[-1])
    exactly = [approx(line, "gradient") for line in ours]
    if way == "bf16":
        nearly = [{k: pytest.approx(v, rel=0.02, abs=WORD_SCORES.get(k, 1e-2)) for k, v in o.items()} for o in ours]
        assert theirs == nearly
        assert theirs != exactly
    else:
        assert theirs == exactly


def test_a_folder_is_verified_summed_up_and_looked_into(
    run: tuple[str, Path, list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name, folder, _ = run
    assert cli.main(["verify", str(folder), "--json"]) == 0, capsys.readouterr().out
    assert cli.main(["summary", str(folder), "--json"]) == 0
    if name not in IMAGES:
        one = inputs_of(name)[0]
        text = one if isinstance(one, str) else f"{one['question']}\t{one['context']}"
        assert cli.main(["inspect", str(folder), text, "--out", str(tmp_path / "look.html")]) == 0
        assert (tmp_path / "look.html").stat().st_size > 10_000


def test_the_dashboard_shows_what_a_validation_example_makes_the_model_look_at(
    run: tuple[str, Path, list[str]],
) -> None:
    """The examples are those whose predictions stand in the log."""
    _, folder, _ = run
    saved = WatchedRun(folder, "tiny").saved_model()
    assert saved is not None
    samples = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["samples"]
    attention = RunAttention()
    threads = torch.get_num_threads()
    try:
        for number, sample in enumerate(samples[:2]):
            found = attention.view("tiny", saved, number)
            title = unescape(re.search("<title>(.*?)</title>", found["page"])[1])  # type: ignore[index]
            assert title.removeprefix("tiny: ")[:8] in sample["input"]
            assert found["view"] in found["views"]
            assert found["example"] == number < found["examples"]
        again = attention.view("tiny", saved, found["examples"] + number, "no such view")
        assert {**again, "page": ""} == {**found, "page": ""}
    finally:
        torch.set_num_threads(threads)


def test_settings_of_other_tasks_are_refused(
    run: tuple[str, Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    name = run[0]
    values = {"data.label_separator": ",", "data.stride": 2, "data.prefix": "p: ", "pooling.kind": "mean"}
    values |= {"masking.unit": "word", "image.size": 8, "tokenizer.shared": True, "model.patch_size": 2}
    kind = tasks.get(name)
    for key, value in values.items():
        section, _, field = key.partition(".")
        given = {"task": name, "train": ["a"], "out": "o", section: {field: value}}
        settings = RunSettings.from_dict(given)
        if {key, section} & (tasks.specific_settings() - kind.used_settings):
            with pytest.raises(HeedfulError, match="has no effect"):
                with_recipe(kind, settings)
        else:
            with_recipe(kind, settings)


def test_the_table_of_used_settings_is_that_of_the_classes() -> None:
    classes = [tasks.get(name, kind) for name, entry in tasks.TASKS.items() for kind in (None, *entry.variants)]
    assert {kind.__name__: kind.used_settings for kind in classes} == USED_SETTINGS
    assert {f"pooling.{field.name}" for field in fields(PoolingSettings)} <= USED_SETTINGS["FeatureExtraction"]


SETTINGS = {  # of some tasks, in the order of the settings
    "data.label_kind": "class",
    "data.label_separator": ",",
    "masking.unit": "word",
    "masking.span_length": 2.0,
    "masking.generator": 0.5,
    "pooling.kind": "mean",
    "preference.beta": 0.2,
    "model.members": 2,
    "model.r_drop": 0.5,
}


@pytest.mark.parametrize(
    ("task", "variant", "used", "subject"),
    [
        ("text-classification", "number", ["data.label_kind", "pooling.kind"], "labels that are numbers"),
        ("text-classification", "preference", [], "chosen and rejected answers"),
        ("fill-mask", "permutation", [], "a model with a query stream, which always predicts spans of 1 to 5 tokens"),
        ("fill-mask", "replaced-token", ["masking.unit", "masking.span_length", "masking.generator"], ""),
        ("text-generation", "preference", ["preference.beta"], ""),
    ],
)
def test_settings_without_effect_on_a_variant_are_refused(
    task: str, variant: str, used: list[str], subject: str
) -> None:
    base, kind = tasks.get(task), tasks.get(task, variant)
    of_task = [key for key in SETTINGS if not tasks.idle_settings(base, [key])]
    idle = tasks.idle_settings(kind, of_task)
    assert sorted([*idle, *used]) == sorted(of_task)
    assert bool(idle) == bool(subject)
    for keys in ([[key] for key in idle] + [idle]) if idle else []:
        sections: dict[str, dict[str, Any]] = {}
        for key in keys:
            section, _, field = key.partition(".")
            sections.setdefault(section, {})[field] = SETTINGS[key]
        settings = RunSettings.from_dict({"task": task, "train": ["a"], "out": "o", **sections})
        with_recipe(base, settings)  # the rows decide later
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in keys)
        with pytest.raises(HeedfulError, match=f"^{flags} has no effect on {subject}; leave the option out$"):
            suggested(kind, Rows(), settings)


def test_every_variant_by_kind_has_words_for_messages() -> None:
    kinds = {kind for entry in tasks.TASKS.values() for kind in entry.kinds}
    assert kinds == tasks.KINDS.keys()
    assert f"1 to {LONGEST_PREDICTED} tokens" in tasks.KINDS["permutation"]


def test_unreadable_files_are_errors_of_one_line(
    run: tuple[str, Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = run[0]
    for content in (b"", b"\xff\xfe\x00 no text\n", b"just some words\n\n"):
        file = tmp_path / ("set.json" if name.endswith("question-answering") else "set.tsv")
        file.write_bytes(content)
        status = cli.main(["train", name, "--train", str(file), "--out", str(tmp_path / "out"), "--max-steps=1"])
        told = capsys.readouterr().err.strip()
        if status == 0:
            assert name in ("text-generation", "fill-mask")  # to which any text is data
            continue
        assert status == 2
        assert len(told.splitlines()) == 1, told
        assert str(file) in told
        assert "Traceback" not in told
        assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_every_built_in_set_is_of_a_task() -> None:
    for name in builtin.names():
        first = builtin.load(f"builtin:{name}", "test")[0]
        wanted = [kind for kind in map(tasks.get, tasks.TASKS) if set(read_columns(kind)) <= set(first)]
        assert wanted, name


def read_columns(kind: Any) -> list[str]:
    return [name for name, what in kind.columns.items() if not what.endswith("?")]
