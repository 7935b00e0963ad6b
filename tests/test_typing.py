"""The types of the Python interface: those of what is checked at run time, and right for a user's program."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import heedful
from heedful import tasks
from heedful.api import SECTIONS
from heedful.generation import generate
from heedful.generation.options import FIELDS, Options
from heedful.optimize_model import LINEAR_CLASSES, DtypeName
from heedful.settings import AnsweringSettings, RunSettings, Settings, typed_dicts
from heedful.tasks.task import Prediction, PredictionDict

SRC = Path(heedful.__file__).parents[1]

# ---------------------------------------------------------------------------------------- what is checked at run time


def with_lists(hint: Any) -> Any:
    """The type of a setting, where lists may stand for tuples."""
    parts = get_args(hint) if type(None) in get_args(hint) else (hint,)
    lists = [list[get_args(part)[0]] for part in parts if get_origin(part) is tuple]
    return reduce(or_, [*lists, *parts])


def types_of(section: type[Settings]) -> dict[str, Any]:
    hints = get_type_hints(section)
    types = {}
    for field in fields(section):
        words = field.metadata["words"]  # beside them registered names
        types[field.name] = with_lists(hints[field.name]) | (Literal[*words] if words else None)
    return types


ARGUMENTS = {section: argument for argument, section in SECTIONS.items()}
CHECKED = {
    ARGUMENTS.get(name, name): hint
    for name, hint in get_type_hints(RunSettings).items()
    if isinstance(hint, type) and issubclass(hint, Settings)
}
WINDOW = int  # ``ModelSettings`` takes a number, too, which it makes a tuple


@pytest.mark.parametrize("argument", CHECKED)
def test_a_section_has_the_names_and_types_of_its_settings(argument: str) -> None:
    of_section = {"training": typed_dicts.TrainingDict, **get_type_hints(typed_dicts.Sections)}[argument]
    expected = types_of(CHECKED[argument])
    if "window" in expected:
        expected["window"] |= WINDOW
    assert get_type_hints(of_section) == expected
    assert not of_section.__required_keys__


def test_all_sections_are_arguments() -> None:
    assert {"training", *get_type_hints(typed_dicts.Sections)} == {*CHECKED}
    parameters = inspect.signature(heedful.train).parameters
    assert parameters["training"].annotation == "TrainingDict"
    assert parameters["sections"].annotation == "Unpack[Sections]"


def test_options_of_decoding_have_the_names_and_types_of_those_that_are_checked() -> None:
    hints = get_type_hints(Options)
    expected = {name: hints[name] if hints[name] is Any else hints[name] | None for name in FIELDS}
    assert get_type_hints(typed_dicts.DecodingOptions) == expected
    others = {*inspect.signature(generate).parameters} - {"model", "ids", "mask", "defaults", "options"}
    assert {*get_type_hints(typed_dicts.GenerateOptions)} - {*expected} == others


def test_options_of_predictions_are_those_of_all_tasks() -> None:
    typed = get_type_hints(typed_dicts.PredictionOptions)
    answering = types_of(AnsweringSettings)
    assert typed == get_type_hints(typed_dicts.DecodingOptions) | answering | {"batch_tokens": int | None}
    classes = [tasks.get(name, variant) for name in built_in() for variant in ("", *tasks.TASKS[name].variants)]
    assert set().union(*(task.options for task in classes)) == {*typed}
    several = {"top_k", "num_return_sequences"}  # with which an output may be a list
    assert {*get_type_hints(typed_dicts.SingleOutputOptions)} == {*typed} - several


def built_in() -> tuple[str, ...]:
    return tuple(name for name, entry in tasks.TASKS.items() if entry.path.startswith("heedful."))


def test_names_are_those_of_the_tables() -> None:
    assert get_args(tasks.TaskName) == built_in()
    assert get_args(DtypeName) == tuple(LINEAR_CLASSES)


def test_a_prediction_as_a_dictionary_has_the_keys_of_its_type() -> None:
    prediction = Prediction("in", "out", -1.0, [0.5], ["fill"]).as_dict()
    assert prediction.keys() == {*get_type_hints(PredictionDict)} == {field.name for field in fields(Prediction)}
    assert Prediction("in", "out", None).as_dict().keys() == {"input", "output", "score"}
    assert list(prediction) == ["input", "output", "score", "fills", "logprobs"]


# ----------------------------------------------------------------------------------------------------- a user's program

PROGRAMS = {
    "rows": """
import heedful

rows = [{"text": f"film {n} is {word}", "label": word} for n in range(50) for word in ("good", "bad")]
run = heedful.train(
    "text-classification", rows, out="runs/films", max_epochs=2, training={"lr": 1e-3}, model_settings={"dim": 32}
)
for film in ("film 3 is good", "film 4 is bad"):
    print(run.pipeline(film, batch_tokens=512)["output"], run.metrics["accuracy"], run.verdict)
print(heedful.evaluate(run, rows)["intervals"], run.model.num_parameters(trainable_only=True))
""",
    "options": """
import heedful

translate = heedful.pipeline("translation", "runs/en-fr", dtype="int8")
print(translate("How are you?", num_beams=4, max_new_tokens=20)["output"].upper())
for prediction in translate(["Good day.", "Good night."], length_penalty=0.8):
    print(prediction["output"].lower(), prediction["score"])
print([found["text"] for found in translate("Thanks.", num_beams=4, num_return_sequences=2)["output"]])
chat = heedful.pipeline("text-generation", "runs/assistant")
reply: str = chat([{"role": "user", "content": "Hello"}], temperature=0.7, seed=0)["output"]
print(reply, "".join(chat.stream("Hello", max_new_tokens=5)), heedful.pipeline("runs/own").labels)
vector: list[float] = heedful.pipeline("feature-extraction", "runs/vectors")("a text")["output"]
""",
    "estimator": """
from heedful.sklearn import TextClassifier

texts = [f"one {word} number {n}" for word in ("apple", "saw") for n in range(20)]
labels = [text.split()[1] for text in texts]
classifier = TextClassifier(preset="bert-tiny", max_steps=20, settings={"training": {"lr": 1e-3}}, random_state=0)
classifier.fit(texts, labels)
print(classifier.predict(["one saw"])[0], classifier.classes_, classifier.metrics_)
print(classifier.predict_proba(["one saw"]).shape, classifier.score(texts, labels))
""",
}
BEGINNING = """
import heedful
from heedful.sklearn import TextClassifier

rows = [{"text": "a", "label": "b"}]
run = heedful.train("a task of one's own", rows, out="runs/a")
pipe = heedful.pipeline("translation", "runs/b")
"""
WRONG = {
    'heedful.train("translation", rows, out="a", training={"learning_rate": 1e-3})': 'Extra key "learning_rate"',
    'heedful.train("translation", rows, out="a", training={"lr": "high"})': 'item "lr" has type "float | None"',
    'heedful.train("translation", rows, out="a", lora={"targets": "query"})': 'item "targets" has type',
    'heedful.train("translation", rows, out="a", model_setting={"dim": 8})': 'did you mean "model_settings"?',
    'run.pipeline("a", topk=3)': 'did you mean "top_k"?',
    'pipe("a", num_beam=4)': 'did you mean "num_beams"?',
    'pipe("a", num_beams="4")': "No overload variant",
    'pipe("a")["output"] + 1': "Unsupported operand types",
    'pipe(["a"])["output"]': "No overload variant",
    'pipe.predict(["a"], temprature=0.5)': 'did you mean "temperature"?',
    'pipe.iter_predict(["a"], early_stopping="soon")': "Literal['never']",
    'pipe.stream("a", max_new_tokens=1.5)': '"float"; expected "int | None"',
    'heedful.evaluate(run, rows, num_beam=4)': 'did you mean "num_beams"?',
    'run.model.generate(ids, max_new_token=1)': 'did you mean "max_new_tokens"',
    'heedful.pipelin("a")': 'maybe "pipeline"?',
    'TextClassifier(max_step=3)': 'did you mean "max_steps"?',
}  # fmt: skip
WITH_TORCH = {'heedful.optimize(run.model, "int7")': "incompatible type \"Literal['int7']\""}
# Without ``--full`` mypy reads these modules of the package alone, in a twentieth of the time; the others, and PyTorch,
# count as untyped.
INTERFACE = (
    *("heedful", "heedful.api", "heedful.errors", "heedful.sklearn", "heedful.inference.*", "heedful.settings.*"),
    *("heedful.tasks", "heedful.tasks.task", "heedful.training.callbacks", "heedful.models", "heedful.models.base"),
    *("typing", "typing_extensions", "collections.*", "os.*", "pathlib", "types"),
)
READ = {
    "interface": f"[mypy]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
    f"[mypy-{','.join(INTERFACE)}]\nfollow_imports = silent\n",
    "everything": "[mypy]\nfollow_imports = silent\n",
}


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("read", READ)
def test_mypy_accepts_programs_of_users_and_finds_wrong_options(tmp_path: Path, read: str) -> None:
    pytest.importorskip("mypy")
    wrong: Mapping[str, str] = WRONG | (WITH_TORCH if read == "everything" else {})
    lines = (BEGINNING + "\n".join(["import torch", "ids = torch.zeros(1, 1).long()", *wrong])).splitlines()
    for name, text in {**PROGRAMS, "wrong": "\n".join(lines)}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(READ[read], encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--config-file=mypy.ini"]
    done = subprocess.run(
        [*command, "--hide-error-context", "--cache-dir=cache", *(f"{name}.py" for name in (*PROGRAMS, "wrong"))],
        cwd=tmp_path,
        env={"PATH": "", "MYPYPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found: dict[tuple[str, str], str] = {}
    for name, number, text in re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.M):
        statement = lines[int(number) - 1] if name == "wrong" else number
        found[name, statement] = found.get((name, statement), "") + text
    assert found.keys() == {("wrong", statement) for statement in wrong}, done.stdout
    for statement, part in wrong.items():
        assert part in found["wrong", statement]
